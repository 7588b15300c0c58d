//! Bodies: payload bytes and everything of a message that no decision looks at. Packed and checksummed by the
//! caller, outside the commit; bit-exact on the way out, or an error (I33, I46).

use super::errors::damaged;
use crate::engine::tables::Kept;
use redrive_core::ids::{MessageId, QueueName};
use redrive_core::message::{Envelope, NewMessage, Payload, Slip};
use redrive_core::revision::Content;
use redrive_core::time::{Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use xxhash_rust::xxh3::Xxh3;

/// Payloads from this size on are compressed, if that makes them smaller.
const COMPRESS_FROM: usize = 1_024;
/// zstd's default level: the gain of higher ones does not pay for their time.
const LEVEL: i32 = 3;

/// A body as it lies in its table.
#[derive(Clone, Debug)]
pub(crate) struct Packed {
    pub(super) rest: Option<Vec<u8>>,
    pub(super) content_type: String,
    pub(super) payload: Vec<u8>,
    /// 0 = as it is, else the number of bytes after unpacking.
    pub(super) unpacked: i64,
    pub(super) checksum: i64,
    pub(super) ttl: Option<Span>,
    pub(super) enqueued_at: Time,
}

/// The rarely used part of an envelope; most messages have nothing of it.
#[derive(Default, PartialEq, Serialize, Deserialize)]
struct Rest {
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    tags: BTreeSet<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reply_to: Option<QueueName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    trace: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    context: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    delay: Option<Span>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    enqueued_by: Option<String>,
}

/// Tells whether the bytes are those that were written; against accidents, not against people.
fn checksum(rest: Option<&[u8]>, content_type: &str, payload: &[u8]) -> i64 {
    let mut hash = Xxh3::new();
    hash.update(rest.unwrap_or_default());
    hash.update(&[0]);
    hash.update(content_type.as_bytes());
    hash.update(&[0]);
    hash.update(payload);
    hash.digest().cast_signed()
}

/// Takes the body out of a message.
pub(super) fn pack(new: &mut NewMessage) -> Packed {
    let rest = Rest {
        headers: std::mem::take(&mut new.headers),
        tags: std::mem::take(&mut new.tags),
        // It is on the slip; only bodies of older formats have it here.
        reply_to: None,
        trace: new.trace.take(),
        context: new.context.take(),
        delay: new.delay,
        enqueued_by: new.enqueued_by.take(),
    };
    let rest = (rest != Rest::default()).then(|| serde_json::to_vec(&rest).unwrap_or_default());
    pack_payload(std::mem::take(&mut new.payload), rest)
}

/// A content without the message it belongs to.
pub(super) fn pack_content(content: &Content) -> Packed {
    let rest = Rest { headers: content.headers.clone(), ..Rest::default() };
    let rest = (rest != Rest::default()).then(|| serde_json::to_vec(&rest).unwrap_or_default());
    pack_payload(content.payload.clone(), rest)
}

/// A payload with the rarely used part that belongs to it.
pub(super) fn pack_payload(payload: Payload, rest: Option<Vec<u8>>) -> Packed {
    let Payload { bytes, content_type } = payload;
    let (payload, unpacked) = compress(bytes);
    let checksum = checksum(rest.as_deref(), &content_type, &payload);
    Packed { rest, content_type, payload, unpacked, checksum, ttl: None, enqueued_at: Time::ZERO }
}

fn compress(bytes: Vec<u8>) -> (Vec<u8>, i64) {
    if bytes.len() < COMPRESS_FROM {
        return (bytes, 0);
    }
    match (zstd::bulk::compress(&bytes, LEVEL), i64::try_from(bytes.len())) {
        (Ok(smaller), Ok(length)) if smaller.len() < bytes.len() => (smaller, length),
        (_, _) => (bytes, 0),
    }
}

/// The trace context in the rarely used part of a body, if it is there and can be read.
pub(super) fn trace(rest: Option<Vec<u8>>) -> Option<String> {
    serde_json::from_slice::<Rest>(&rest?).ok()?.trace
}

impl Packed {
    /// The payload of this body with the rest of another.
    pub(super) fn with_rest(self, rest: Option<Vec<u8>>) -> Self {
        let checksum = checksum(rest.as_deref(), &self.content_type, &self.payload);
        Self { rest, checksum, ..self }
    }

    /// Whether the bytes are what was written.
    pub(super) fn is_whole(&self) -> bool {
        checksum(self.rest.as_deref(), &self.content_type, &self.payload) == self.checksum
    }

    /// The rarely used part and the payload, bit for bit.
    fn unpack(self, id: MessageId) -> Kept<(Rest, Payload)> {
        let broken = || damaged(format!("the payload of message {id} is not what was written"));
        if !self.is_whole() {
            return Err(broken());
        }
        let rest: Rest = match &self.rest {
            Some(bytes) => serde_json::from_slice(bytes).map_err(|_| broken())?,
            None => Rest::default(),
        };
        let bytes = match usize::try_from(self.unpacked) {
            Ok(0) => self.payload,
            Ok(length) => zstd::bulk::decompress(&self.payload, length).map_err(|_| broken())?,
            Err(_) => return Err(broken()),
        };
        Ok((rest, Payload { bytes, content_type: self.content_type }))
    }

    /// The content alone.
    pub(super) fn content(self, id: MessageId) -> Kept<Content> {
        let (rest, payload) = self.unpack(id)?;
        Ok(Content { payload, headers: rest.headers })
    }

    /// The message as it was before its body was taken out, as far as handlers see it.
    pub(super) fn put_back(self, new: &NewMessage) -> Kept<NewMessage> {
        let (rest, payload) = self.unpack(new.id)?;
        Ok(NewMessage { payload, headers: rest.headers, ..new.clone() })
    }

    /// The whole envelope, with the slip's part.
    pub(crate) fn open(self, slip: &Slip) -> Kept<Envelope> {
        let (ttl, enqueued_at) = (self.ttl, self.enqueued_at);
        let (rest, payload) = self.unpack(slip.id)?;
        Ok(Envelope {
            id: slip.id,
            seq: slip.seq,
            queue: slip.queue.clone(),
            origin: slip.origin.clone(),
            kind: slip.kind.clone(),
            priority: slip.priority,
            payload,
            headers: rest.headers,
            tags: rest.tags,
            key: slip.key.clone(),
            ordering_key: slip.ordering_key.clone(),
            reply_to: slip.reply_to.clone(),
            trace: rest.trace,
            context: rest.context,
            max_attempts: slip.terms.max_attempts,
            delay: rest.delay,
            ttl,
            deadline: slip.terms.deadline,
            enqueued_by: rest.enqueued_by,
            enqueued_at,
        })
    }
}
