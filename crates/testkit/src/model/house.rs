//! The model as a whole: what it says about itself, its recount, and the small key-value space.

use super::{Letter, Model};
use async_trait::async_trait;
use redrive_core::error::{Error, Outcome, Refusal, StoreError, StoreErrorKind};
use redrive_core::ids::{GroupId, MessageId, QueueName};
use redrive_core::invariants::Verification;
use redrive_core::limits;
use redrive_core::message::Slip;
use redrive_core::metrics::{OpenCounts, QueueStats, Snapshot, Stats};
use redrive_core::query::{Cursor, Page};
use redrive_core::short_id::{IdKind, TailQuery};
use redrive_core::store::{KvEntry, Store, StoreInfo, VerifyRequest};
use std::collections::BTreeSet;

#[async_trait]
impl Store for Model {
    async fn info(&self) -> Outcome<StoreInfo> {
        let (backend, place, now) = ("model".into(), "memory".into(), self.clock.now());
        Ok(StoreInfo { backend, durable: false, place, now, skew_ms: 0, degraded: Vec::new() })
    }

    async fn stats(&self) -> Outcome<Stats> {
        self.at(|b, now| {
            let letters = |queue: &QueueName| {
                let open = |l: &&Letter| l.record.envelope.queue == *queue && !l.file.status.is_closed();
                b.letters.iter().filter(open).count() as u64
            };
            let queues = b.queues.iter().map(|(name, shelf)| QueueStats {
                queue: name.clone(),
                waiting: shelf.counts.waiting.unsigned_abs(),
                leased: shelf.counts.leased.unsigned_abs(),
                bytes: shelf.counts.bytes.unsigned_abs(),
                letters_open: letters(name),
                peak: shelf.peak.unsigned_abs(),
                letters_peak: shelf.dead_peak.unsigned_abs(),
                capacity: shelf.policy.max_messages,
            });
            let mut counted = OpenCounts::default();
            for letter in b.letters.iter().filter(|l| !l.file.status.is_closed()) {
                counted.add((&Slip::from(&letter.record)).into(), 1);
            }
            let open = b.letters.iter().filter(|l| !l.file.status.is_closed());
            Ok(Stats {
                now,
                counters: b.counted.counted(),
                queues: queues.collect(),
                open: counted.list(),
                drawers: b.list_drawers(),
                messages_peak: b.peaks.0.unsigned_abs(),
                letters_peak: b.peaks.1.unsigned_abs(),
                oldest_open_at: open.map(|l| l.file.dead_at).min(),
                process: Snapshot::default(),
            })
        })
    }

    async fn verify(&self, _request: VerifyRequest) -> Outcome<Verification> {
        self.at(|b, _| Ok(b.verify()))
    }

    async fn backup(&self, _target: String) -> Outcome<u64> {
        Err(Error::Store(StoreError::new(StoreErrorKind::Unsupported, "the model has nothing to copy")))
    }

    async fn ids_ending(&self, query: TailQuery) -> Outcome<Page<String>> {
        self.at(|b, _| {
            let ids = |all: Vec<MessageId>| {
                let mut ends: Vec<MessageId> = all.into_iter().filter(|id| query.tail.ends(*id)).collect();
                ends.sort_unstable();
                ends.iter().map(ToString::to_string).collect::<Vec<_>>()
            };
            let found = match query.of {
                IdKind::Message => ids(b.live.iter().map(|r| r.envelope.id).collect()),
                IdKind::Letter => ids(b.letters.iter().map(|l| l.record.envelope.id).collect()),
                IdKind::Operation => {
                    ids(b.operations.iter().map(|(o, _)| MessageId::from_bytes(o.id.to_bytes())).collect())
                }
                IdKind::Group => {
                    let known: BTreeSet<GroupId> = b.leaves.iter().map(|leaf| leaf.group).collect();
                    let ends = known.into_iter().filter(|id| query.tail.ends_group(*id));
                    ends.map(|id| id.to_string()).collect()
                }
            };
            let after = query.page.id("i")?.map(|id| id.to_string());
            let rest = found.into_iter().filter(|id| after.as_ref().is_none_or(|after| id > after));
            let mut items: Vec<String> = rest.collect();
            let more = items.len() > query.page.limit();
            items.truncate(query.page.limit());
            let last = items.last().and_then(|id| id.parse().ok());
            Ok(Page {
                next: last.filter(|_| more).map(|id| Cursor::after_id("i", id)),
                items,
                damaged: Vec::new(),
            })
        })
    }

    async fn kv_get(&self, namespace: String, key: String) -> Outcome<Option<KvEntry>> {
        self.at(|b, _| Ok(b.kv.get(&(namespace, key)).cloned()))
    }

    async fn kv_put(
        &self,
        namespace: String,
        key: String,
        value: Option<Vec<u8>>,
        expected: u64,
    ) -> Outcome<u64> {
        if namespace == "audit" {
            return Err(Refusal::invalid("namespace", "belongs to the audit trail").into());
        }
        if value.as_ref().is_some_and(|v| v.len() > limits::KV_BYTES_MAX) {
            return Err(Refusal::invalid("value", format!("at most {} bytes", limits::KV_BYTES_MAX)).into());
        }
        self.at(|b, _| {
            let place = (namespace.clone(), key.clone());
            let version = b.kv.get(&place).map_or(0, |entry| entry.version);
            if version != expected {
                return Err(Refusal::KvConflict { namespace, key }.into());
            }
            let Some(value) = value else {
                b.kv.remove(&place);
                return Ok(0);
            };
            b.kv.insert(place, KvEntry { value, version: version + 1 });
            Ok(version + 1)
        })
    }
}
