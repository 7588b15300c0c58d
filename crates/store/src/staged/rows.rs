//! The bytes of rows. Rows that every lease and ack touches are tuples in MessagePack, which are short and quick to
//! read; a value may be added at the end. The others are JSON.

use crate::body::Packed;
use crate::engine::tables::{Heads, KeyRow, Letter, Live, TableResult, damaged};
use redrive_core::ids::{MessageId, QueueName, Secret};
use redrive_core::invariants::Counts;
use redrive_core::lifecycle::{Lease, Lifecycle, Phase, State};
use redrive_core::message::{MessageLimits, MessageMeta, Priority};
use redrive_core::time::{Span, Time};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Id, sequence number, queue, origin, kind, priority, size, key, ordering key, maximum of attempts, expiry, deadline,
/// breaker, reply queue.
type Meta<S> = (
    MessageId,
    u64,
    S,
    Option<S>,
    S,
    u8,
    u64,
    Option<S>,
    Option<S>,
    Option<u32>,
    Option<i64>,
    Option<i64>,
    Option<S>,
    Option<S>,
);
/// Secret, worker, granted, expires, permit.
type LeaseRow<S> = ([u8; 16], S, i64, i64, Option<u64>);
/// Lease, ready, attempts, deliveries, generation, given back, failed, failing since, last delay, first received,
/// updated, indicators and progress.
type LifecycleRow<S> = (
    Option<LeaseRow<S>>,
    i64,
    u32,
    u32,
    u32,
    u32,
    u32,
    Option<i64>,
    Option<u64>,
    Option<i64>,
    i64,
    Option<String>,
    Option<String>,
);

fn pack<T: Serialize>(value: &T) -> TableResult<Vec<u8>> {
    rmp_serde::to_vec(value).map_err(|e| damaged(format!("a row cannot be written: {e}")))
}

fn unpack<'a, T: Deserialize<'a>>(bytes: &'a [u8], what: &dyn Fn() -> String) -> TableResult<T> {
    rmp_serde::from_slice(bytes).map_err(|e| damaged(format!("{} cannot be read: {e}", what())))
}

/// Writes a value as JSON.
pub(super) fn json<T: Serialize>(value: &T) -> TableResult<Vec<u8>> {
    serde_json::to_vec(value).map_err(|e| damaged(format!("a row cannot be written: {e}")))
}

/// Reads JSON that the store has written.
pub(super) fn from_json<T: DeserializeOwned>(bytes: &[u8], what: &str) -> TableResult<T> {
    serde_json::from_slice(bytes).map_err(|e| damaged(format!("{what} cannot be read: {e}")))
}

fn meta_row(meta: &MessageMeta) -> Meta<&str> {
    (
        meta.id,
        meta.seq,
        meta.queue.as_str(),
        meta.origin.as_ref().map(QueueName::as_str),
        meta.kind.as_str(),
        u8::try_from(meta.priority.level()).unwrap_or(u8::MAX),
        meta.size,
        meta.key.as_deref(),
        meta.ordering_key.as_deref(),
        meta.limits.max_attempts,
        meta.limits.expires_at.map(Time::as_millis),
        meta.limits.deadline.map(Time::as_millis),
        meta.breaker.as_deref(),
        meta.reply_to.as_ref().map(QueueName::as_str),
    )
}

fn queue(name: &str) -> TableResult<QueueName> {
    name.parse().map_err(|_| damaged(format!("{name:?} is not a queue's name")))
}

fn meta(
    (
        id,
        seq,
        name,
        origin,
        kind,
        level,
        size,
        key,
        ordering_key,
        max_attempts,
        expires_at,
        deadline,
        breaker,
        reply_to,
    ): Meta<&str>,
) -> TableResult<MessageMeta> {
    Ok(MessageMeta {
        id,
        seq,
        queue: queue(name)?,
        origin: origin.map(queue).transpose()?,
        kind: kind.to_owned(),
        priority: Priority::from_level(level.into()),
        size,
        key: key.map(str::to_owned),
        ordering_key: ordering_key.map(str::to_owned),
        limits: MessageLimits {
            max_attempts,
            expires_at: expires_at.map(Time::from_millis),
            deadline: deadline.map(Time::from_millis),
        },
        breaker: breaker.map(str::to_owned),
        reply_to: reply_to.map(queue).transpose()?,
    })
}

fn optional_json<T: Serialize + Default + PartialEq>(value: &T) -> TableResult<Option<String>> {
    if *value == T::default() {
        return Ok(None);
    }
    serde_json::to_string(value).map(Some).map_err(|e| damaged(format!("a row cannot be written: {e}")))
}

fn lifecycle_row(lifecycle: &Lifecycle) -> TableResult<LifecycleRow<&str>> {
    let lease = lifecycle.lease().map(|lease| {
        (
            lease.secret.to_bytes(),
            lease.worker.as_str(),
            lease.granted_at.as_millis(),
            lease.expires_at.as_millis(),
            lease.permit,
        )
    });
    Ok((
        lease,
        lifecycle.ready_at.as_millis(),
        lifecycle.attempts,
        lifecycle.deliveries,
        lifecycle.generation,
        lifecycle.given_back,
        lifecycle.failed,
        lifecycle.failing_since.map(Time::as_millis),
        lifecycle.last_delay.map(Span::as_millis),
        lifecycle.first_received_at.map(Time::as_millis),
        lifecycle.updated_at.as_millis(),
        optional_json(&lifecycle.indicators)?,
        optional_json(&lifecycle.progress)?,
    ))
}

/// Reads a lifecycle. Without a lease it is in the given phase.
fn lifecycle(row: LifecycleRow<&str>, phase: Phase) -> TableResult<Lifecycle> {
    let (
        lease,
        ready_at,
        attempts,
        deliveries,
        generation,
        given_back,
        failed,
        failing_since,
        last_delay,
        first_received_at,
        updated_at,
        indicators,
        progress,
    ) = row;
    let phase = lease.map_or(phase, |(secret, worker, granted_at, expires_at, permit)| {
        Phase::Leased(Lease {
            secret: Secret::new(secret),
            worker: worker.to_owned(),
            granted_at: Time::from_millis(granted_at),
            expires_at: Time::from_millis(expires_at),
            permit,
        })
    });
    Ok(Lifecycle {
        phase,
        ready_at: Time::from_millis(ready_at),
        attempts,
        deliveries,
        generation,
        given_back,
        failed,
        failing_since: failing_since.map(Time::from_millis),
        last_delay: last_delay.map(Span::from_millis),
        first_received_at: first_received_at.map(Time::from_millis),
        updated_at: Time::from_millis(updated_at),
        indicators: match indicators {
            Some(text) => from_json(text.as_bytes(), "what failures suggest about a message")?,
            None => Default::default(),
        },
        progress: match progress {
            Some(text) => from_json(text.as_bytes(), "the progress of a message")?,
            None => None,
        },
    })
}

/// Whether a waiting message has to wait beyond its last change.
pub(crate) fn delayed(lifecycle: &Lifecycle) -> bool {
    lifecycle.phase == Phase::Waiting && lifecycle.ready_at > lifecycle.updated_at
}

pub(super) fn live(live: &Live) -> TableResult<Vec<u8>> {
    pack(&(meta_row(&live.meta), lifecycle_row(&live.lifecycle)?))
}

pub(super) fn to_live(id: MessageId, bytes: &[u8]) -> TableResult<Live> {
    let what = || format!("the record of message {id}");
    let (meta_row, lifecycle_row): (Meta<&str>, LifecycleRow<&str>) = unpack(bytes, &what)?;
    let live = Live { meta: meta(meta_row)?, lifecycle: lifecycle(lifecycle_row, Phase::Waiting)? };
    if live.meta.id != id {
        return Err(damaged(format!("{} is that of {}", what(), live.meta.id)));
    }
    Ok(live)
}

pub(super) fn letter(letter: &Letter) -> TableResult<Vec<u8>> {
    let record = serde_json::to_string(&letter.record)
        .map_err(|e| damaged(format!("the record of a dead letter cannot be written: {e}")))?;
    let secret = letter.secret.map(Secret::to_bytes);
    pack(&(letter.death, meta_row(&letter.meta), lifecycle_row(&letter.lifecycle)?, record, secret))
}

/// Reads a letter.
pub(crate) fn decode_letter(id: MessageId, bytes: &[u8]) -> TableResult<Letter> {
    type Row<'a> = (u64, Meta<&'a str>, LifecycleRow<&'a str>, &'a str, Option<[u8; 16]>);
    let what = || format!("the record of dead letter {id}");
    let (death, meta_row, lifecycle_row, record, secret): Row<'_> = unpack(bytes, &what)?;
    let letter = Letter {
        death,
        meta: meta(meta_row)?,
        lifecycle: lifecycle(lifecycle_row, Phase::Dead)?,
        record: from_json(record.as_bytes(), &what())?,
        secret: secret.map(Secret::new),
    };
    if letter.meta.id != id {
        return Err(damaged(format!("{} is that of {}", what(), letter.meta.id)));
    }
    Ok(letter)
}

/// The version of the layout of a body.
const BODY_VERSION: u8 = 1;
/// Version, length of the content type, length of the rarely used part, time to live or -1, time of enqueue, length of
/// the decompressed payload, checksum. The content type, the rarely used part and the payload follow. A function of the
/// schema reads the payload from these bytes, so the layout is part of the format.
const BODY_HEADER: usize = 1 + 2 + 4 + 8 + 8 + 8 + 8;

/// Writes a body.
pub(super) fn body(packed: &Packed) -> Vec<u8> {
    let rest = packed.rest.as_deref();
    let mut bytes = Vec::with_capacity(BODY_HEADER + packed.content_type.len() + packed.payload.len());
    bytes.push(BODY_VERSION);
    bytes.extend(u16::try_from(packed.content_type.len()).unwrap_or(u16::MAX).to_be_bytes());
    bytes.extend(rest.map_or(u32::MAX, |rest| u32::try_from(rest.len()).unwrap_or(0)).to_be_bytes());
    let ttl = packed.ttl.map_or(-1, |ttl| i64::try_from(ttl.as_millis()).unwrap_or(i64::MAX));
    for number in [ttl, packed.enqueued_at.as_millis(), packed.unpacked, packed.checksum] {
        bytes.extend(number.to_be_bytes());
    }
    bytes.extend(packed.content_type.as_bytes());
    bytes.extend(rest.unwrap_or_default());
    bytes.extend(&packed.payload);
    bytes
}

/// Reads a body.
pub(super) fn to_body(bytes: &[u8]) -> Option<Packed> {
    let (header, contents) = bytes.split_first_chunk::<BODY_HEADER>()?;
    let (version, header) = header.split_first()?;
    let (type_length, header) = header.split_first_chunk::<2>()?;
    let (rest_length, mut numbers) = header.split_first_chunk::<4>()?;
    let mut number = || {
        let (bytes, after) = numbers.split_first_chunk::<8>()?;
        numbers = after;
        Some(i64::from_be_bytes(*bytes))
    };
    let (ttl, enqueued_at, unpacked, checksum) = (number()?, number()?, number()?, number()?);
    let (content_type, contents) = contents.split_at_checked(u16::from_be_bytes(*type_length).into())?;
    let rest_length = u32::from_be_bytes(*rest_length);
    let has_rest = rest_length != u32::MAX;
    let (rest, payload) =
        contents.split_at_checked(if has_rest { rest_length.try_into().ok()? } else { 0 })?;
    (*version == BODY_VERSION).then_some(())?;
    Some(Packed {
        rest: has_rest.then(|| rest.to_vec()),
        content_type: String::from_utf8(content_type.to_vec()).ok()?,
        payload: payload.to_vec(),
        unpacked,
        checksum,
        ttl: u64::try_from(ttl).ok().map(Span::from_millis),
        enqueued_at: Time::from_millis(enqueued_at),
    })
}

pub(super) fn key(row: &KeyRow) -> TableResult<Vec<u8>> {
    pack(&(row.id, row.body_hash, row.created_at.as_millis(), row.ended.map(State::name)))
}

pub(super) fn to_key(bytes: &[u8]) -> TableResult<KeyRow> {
    type Row<'a> = (MessageId, [u8; 32], i64, Option<&'a str>);
    let (id, body_hash, created_at, ended): Row<'_> = unpack(bytes, &|| "an idempotency key".to_owned())?;
    let ended = ended.map(|state| state.parse().map_err(damaged)).transpose()?;
    Ok(KeyRow { id, body_hash, created_at: Time::from_millis(created_at), ended })
}

pub(super) fn heads(heads: &Heads) -> TableResult<Vec<u8>> {
    pack(&(heads.seq, heads.death, heads.audit_n, &heads.audit_seal, heads.messages_peak, heads.letters_peak))
}

pub(super) fn to_heads(bytes: &[u8]) -> TableResult<Heads> {
    let (seq, death, audit_n, audit_seal, messages_peak, letters_peak) =
        unpack(bytes, &|| "the head row".to_owned())?;
    Ok(Heads { seq, death, audit_n, audit_seal, messages_peak, letters_peak })
}

/// The counters of a queue and its peaks.
pub(super) fn queue_counts(c: &Counts, peak: i64, dead_peak: i64) -> TableResult<Vec<u8>> {
    let counts = (c.enqueued, c.waiting, c.leased, c.dead, c.done, c.cancelled, c.expired, c.purged, c.bytes);
    pack(&(counts, peak, dead_peak))
}

pub(super) fn to_queue_counts(bytes: &[u8]) -> TableResult<(Counts, i64, i64)> {
    type Row = ((i64, i64, i64, i64, i64, i64, i64, i64, i64), i64, i64);
    let (counts, peak, dead_peak): Row = unpack(bytes, &|| "the counters of a queue".to_owned())?;
    let (enqueued, waiting, leased, dead, done, cancelled, expired, purged, bytes) = counts;
    Ok((Counts { enqueued, waiting, leased, dead, done, cancelled, expired, purged, bytes }, peak, dead_peak))
}

/// A counter.
pub(super) fn count(n: i64) -> Vec<u8> {
    n.to_be_bytes().to_vec()
}

pub(super) fn to_count(bytes: &[u8]) -> TableResult<i64> {
    let number = <[u8; 8]>::try_from(bytes).map_err(|_| damaged("a counter cannot be read"))?;
    Ok(i64::from_be_bytes(number))
}

/// A small durable value: its version, then its bytes.
pub(super) fn kv(version: u64, value: &[u8]) -> Vec<u8> {
    [version.to_be_bytes().as_slice(), value].concat()
}

pub(super) fn to_kv(bytes: &[u8]) -> TableResult<(u64, Vec<u8>)> {
    let (version, value) =
        bytes.split_first_chunk::<8>().ok_or_else(|| damaged("a small durable value cannot be read"))?;
    Ok((u64::from_be_bytes(*version), value.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::body::{Compression, pack as pack_body};
    use redrive_core::message::{NewMessage, Payload};

    fn id() -> MessageId {
        MessageId::from_bytes([7; 16])
    }

    #[test]
    fn a_live_row_is_read_as_it_was_written() {
        let mut live_row = Live {
            meta: MessageMeta {
                id: id(),
                seq: 9,
                queue: "q".parse().unwrap(),
                origin: Some("home".parse().unwrap()),
                kind: "charge".into(),
                priority: Priority::Low,
                size: 12,
                key: Some("k".into()),
                ordering_key: None,
                limits: MessageLimits {
                    max_attempts: Some(3),
                    expires_at: Some(Time::from_millis(5)),
                    deadline: None,
                },
                breaker: Some("stripe".into()),
                reply_to: None,
            },
            lifecycle: Lifecycle::new(Time::from_millis(10), Time::from_millis(10)),
        };
        live_row.lifecycle.phase = Phase::Leased(Lease {
            secret: Secret::new([3; 16]),
            worker: "w".into(),
            granted_at: Time::from_millis(1),
            expires_at: Time::from_millis(2),
            permit: Some(4),
        });
        assert_eq!(to_live(id(), &live(&live_row).unwrap()).unwrap(), live_row);
        assert!(
            to_live(MessageId::from_bytes([8; 16]), &live(&live_row).unwrap()).is_err(),
            "of another message"
        );
        assert!(to_live(id(), b"garbage").is_err());
    }

    #[test]
    fn a_body_is_read_as_it_was_written_and_never_from_a_part_of_it() {
        let mut new = NewMessage::new(id(), "q".parse().unwrap(), Payload::json("text").unwrap());
        new.headers.insert("h".into(), "v".into());
        for with_rest in [true, false] {
            let mut new = new.clone();
            if !with_rest {
                new.headers.clear();
            }
            let mut packed = pack_body(&mut new, Compression::None);
            packed.ttl = with_rest.then(|| Span::from_secs(5));
            let bytes = body(&packed);
            let read = to_body(&bytes).unwrap();
            assert!(read.is_intact());
            assert_eq!((read.rest, read.payload, read.ttl), (packed.rest, packed.payload, packed.ttl));
            for end in 0..BODY_HEADER {
                assert!(to_body(&bytes[..end]).is_none());
            }
        }
    }
}
