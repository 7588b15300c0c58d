//! The model as a whole: what it says about itself, its recount, and the small key-value space.

use super::{Letter, Model};
use async_trait::async_trait;
use redrive_core::error::{Error, Outcome, Refusal, StoreError, StoreErrorKind};
use redrive_core::ids::QueueName;
use redrive_core::invariants::Verification;
use redrive_core::limits;
use redrive_core::metrics::{QueueStats, Snapshot, Stats};
use redrive_core::store::{KvEntry, Store, StoreInfo, VerifyRequest};

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
            let open = b.letters.iter().filter(|l| !l.file.status.is_closed());
            Ok(Stats {
                now,
                counters: b.counted.counted(),
                queues: queues.collect(),
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
