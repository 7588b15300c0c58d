//! Bodies: the payload, and everything else of a message that no decision depends on. The caller encodes and
//! checksums them outside the commit. They are read back bit for bit, or reported as damaged (I33, I46).

use crate::engine::tables::{TableResult, damaged};
use redrive_core::ids::{MessageId, QueueName};
use redrive_core::message::{Envelope, MessageMeta, NewMessage, Payload};
use redrive_core::revision::Content;
use redrive_core::time::{Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use xxhash_rust::xxh3::Xxh3;

/// Payloads of at least this size are compressed, if that makes them smaller.
const COMPRESS_FROM: usize = 1_024;
/// The default level of zstd: what higher levels gain is not worth their time.
const LEVEL: i32 = 3;

/// A body as stored in its table.
#[derive(Clone, Debug)]
pub(crate) struct Packed {
    pub(crate) rest: Option<Vec<u8>>,
    pub(crate) content_type: String,
    pub(crate) payload: Vec<u8>,
    /// The length of the decompressed payload; 0 if the payload is not compressed.
    pub(crate) unpacked: i64,
    pub(crate) checksum: i64,
    pub(crate) ttl: Option<Span>,
    pub(crate) enqueued_at: Time,
}

/// The rarely used part of an envelope; most messages have none of it.
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

/// A checksum that reveals accidental changes. It does not protect against deliberate ones.
fn checksum(rest: Option<&[u8]>, content_type: &str, payload: &[u8]) -> i64 {
    let mut hash = Xxh3::new();
    hash.update(rest.unwrap_or_default());
    hash.update(&[0]);
    hash.update(content_type.as_bytes());
    hash.update(&[0]);
    hash.update(payload);
    hash.digest().cast_signed()
}

/// Whether payloads are compressed before they are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    /// Large payloads are compressed if that makes them smaller.
    Large,
    #[cfg(any(feature = "postgres", feature = "redis"))]
    /// Payloads are stored as they are: the database compresses them itself, and people can read them in SQL.
    None,
}

/// Moves the body out of a message and encodes it.
pub(crate) fn pack(new: &mut NewMessage, compression: Compression) -> Packed {
    let rest = Rest {
        headers: std::mem::take(&mut new.headers),
        tags: std::mem::take(&mut new.tags),
        // It is in the message's row; only bodies of older formats have it here.
        reply_to: None,
        trace: new.trace.take(),
        context: new.context.take(),
        delay: new.delay,
        enqueued_by: new.enqueued_by.take(),
    };
    let rest = (rest != Rest::default()).then(|| serde_json::to_vec(&rest).unwrap_or_default());
    pack_payload(std::mem::take(&mut new.payload), rest, compression)
}

/// Encodes the content of a letter, without the message it belongs to.
pub(crate) fn pack_content(content: &Content, compression: Compression) -> Packed {
    let rest = Rest { headers: content.headers.clone(), ..Rest::default() };
    let rest = (rest != Rest::default()).then(|| serde_json::to_vec(&rest).unwrap_or_default());
    pack_payload(content.payload.clone(), rest, compression)
}

/// Encodes a payload together with the rarely used part.
pub(crate) fn pack_payload(payload: Payload, rest: Option<Vec<u8>>, compression: Compression) -> Packed {
    let Payload { bytes, content_type } = payload;
    let (payload, unpacked) = match compression {
        Compression::Large => compress(bytes),
        #[cfg(any(feature = "postgres", feature = "redis"))]
        Compression::None => (bytes, 0),
    };
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
pub(crate) fn trace(rest: Option<Vec<u8>>) -> Option<String> {
    serde_json::from_slice::<Rest>(&rest?).ok()?.trace
}

impl Packed {
    /// The payload of this body with the rarely used part of another.
    pub(crate) fn with_rest(self, rest: Option<Vec<u8>>) -> Self {
        let checksum = checksum(rest.as_deref(), &self.content_type, &self.payload);
        Self { rest, checksum, ..self }
    }

    /// Whether the bytes are what was written.
    pub(crate) fn is_intact(&self) -> bool {
        checksum(self.rest.as_deref(), &self.content_type, &self.payload) == self.checksum
    }

    /// Decodes the rarely used part and the payload, bit for bit.
    fn unpack(self, id: MessageId) -> TableResult<(Rest, Payload)> {
        let broken = || damaged(format!("the payload of message {id} is not what was written"));
        if !self.is_intact() {
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
    pub(crate) fn content(self, id: MessageId) -> TableResult<Content> {
        let (rest, payload) = self.unpack(id)?;
        Ok(Content { payload, headers: rest.headers })
    }

    /// The message with its payload and headers put back.
    pub(crate) fn put_back(self, new: &NewMessage) -> TableResult<NewMessage> {
        let (rest, payload) = self.unpack(new.id)?;
        Ok(NewMessage { payload, headers: rest.headers, ..new.clone() })
    }

    /// The whole envelope, completed from the message's row.
    pub(crate) fn open(self, meta: &MessageMeta) -> TableResult<Envelope> {
        let (ttl, enqueued_at) = (self.ttl, self.enqueued_at);
        let (rest, payload) = self.unpack(meta.id)?;
        Ok(Envelope {
            id: meta.id,
            seq: meta.seq,
            queue: meta.queue.clone(),
            origin: meta.origin.clone(),
            kind: meta.kind.clone(),
            priority: meta.priority,
            payload,
            headers: rest.headers,
            tags: rest.tags,
            key: meta.key.clone(),
            ordering_key: meta.ordering_key.clone(),
            reply_to: meta.reply_to.clone(),
            trace: rest.trace,
            context: rest.context,
            max_attempts: meta.limits.max_attempts,
            delay: rest.delay,
            ttl,
            deadline: meta.limits.deadline,
            enqueued_by: rest.enqueued_by,
            enqueued_at,
        })
    }
}
