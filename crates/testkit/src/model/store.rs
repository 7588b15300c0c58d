//! The implementation of `Store` for the model: information about itself, statistics, key-value entries, and acts on record.

use super::{Letter, Model, ModelState};
use async_trait::async_trait;
use redrive_core::changes::{Changes, FeedPosition};
use redrive_core::error::{CallError, Refusal, StoreError, StoreErrorKind, StoreResult};
use redrive_core::ids::{GroupId, MessageId, QueueName};
use redrive_core::invariants::Verification;
use redrive_core::limits;
use redrive_core::message::MessageMeta;
use redrive_core::metrics::{OpenCounts, QueueStats, Snapshot, Stats};
use redrive_core::query::{Cursor, Page, PageRequest};
use redrive_core::recording::{KvWrite, RecordRequest};
use redrive_core::short_id::{IdKind, IdSuffixQuery};
use redrive_core::store::{BatchResults, KvEntry, KvItem, Store, StoreInfo, VerifyRequest};
use redrive_core::time::{Span, Time};
use std::collections::BTreeSet;

#[async_trait]
impl Store for Model {
    async fn info(&self) -> StoreResult<StoreInfo> {
        let (backend, place, now) = ("model".into(), "memory".into(), self.clock.now());
        Ok(StoreInfo { backend, durable: false, place, now, skew_ms: 0, degraded: Vec::new() })
    }

    async fn stats(&self) -> StoreResult<Stats> {
        self.with_state(|state, now| {
            let letters = |queue: &QueueName| {
                let open = |l: &&Letter| l.stored.envelope.queue == *queue && !l.record.status.is_closed();
                state.letters.iter().filter(open).count() as u64
            };
            let queues = state.queues.iter().map(|(name, queue_state)| QueueStats {
                queue: name.clone(),
                waiting: queue_state.counts.waiting.unsigned_abs(),
                leased: queue_state.counts.leased.unsigned_abs(),
                bytes: queue_state.counts.bytes.unsigned_abs(),
                letters_open: letters(name),
                peak: queue_state.peak.unsigned_abs(),
                letters_peak: queue_state.dead_peak.unsigned_abs(),
                capacity: queue_state.policy.max_messages,
            });
            let mut counted = OpenCounts::default();
            for letter in state.letters.iter().filter(|l| !l.record.status.is_closed()) {
                counted.add((&MessageMeta::from(&letter.stored)).into(), 1);
            }
            let open = state.letters.iter().filter(|l| !l.record.status.is_closed());
            Ok(Stats {
                now,
                counters: state.counted.views(),
                queues: queues.collect(),
                open: counted.list(),
                dlqs: state.list_dlqs(),
                messages_peak: state.peaks.0.unsigned_abs(),
                letters_peak: state.peaks.1.unsigned_abs(),
                oldest_open_at: open.map(|l| l.record.dead_at).min(),
                process: Snapshot::default(),
            })
        })
    }

    async fn changes(&self, since: Option<FeedPosition>, _at_most: Span) -> StoreResult<Changes> {
        Ok(self.changes_since(since))
    }

    async fn verify(&self, _request: VerifyRequest) -> StoreResult<Verification> {
        self.with_state(|state, _| Ok(state.verify()))
    }

    async fn backup(&self, _target: String) -> StoreResult<u64> {
        Err(CallError::Store(StoreError::new(StoreErrorKind::Unsupported, "the model cannot be backed up")))
    }

    async fn ids_ending(&self, query: IdSuffixQuery) -> StoreResult<Page<String>> {
        self.with_state(|state, _| {
            let ids = |all: Vec<MessageId>| {
                let mut ends: Vec<MessageId> = all.into_iter().filter(|id| query.tail.matches(*id)).collect();
                ends.sort_unstable();
                ends.iter().map(ToString::to_string).collect::<Vec<_>>()
            };
            let found = match query.of {
                IdKind::Message => ids(state.live.iter().map(|r| r.envelope.id).collect()),
                IdKind::Letter => ids(state.letters.iter().map(|l| l.stored.envelope.id).collect()),
                IdKind::Operation => ids(state
                    .operations
                    .iter()
                    .map(|(o, _)| MessageId::from_bytes(o.id.to_bytes()))
                    .collect()),
                IdKind::Group => {
                    let known: BTreeSet<GroupId> = state.leaves.iter().map(|leaf| leaf.group).collect();
                    let ends = known.into_iter().filter(|id| query.tail.matches_group(*id));
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

    async fn kv_get(&self, namespace: String, key: String) -> StoreResult<Option<KvEntry>> {
        self.with_state(|state, _| Ok(state.kv.get(&(namespace, key)).cloned()))
    }

    async fn kv_list(
        &self,
        namespace: String,
        prefix: String,
        page: PageRequest,
    ) -> StoreResult<Page<KvItem>> {
        let after = page.key("k")?;
        self.with_state(|state, _| {
            let wanted = |(space, key): &(String, String)| {
                *space == namespace
                    && key.starts_with(&prefix)
                    && after.is_none_or(|after| key.as_str() > after)
            };
            let all = state.kv.iter().filter(|(key, _)| wanted(key));
            let mut items: Vec<KvItem> = all
                .map(|((_, key), KvEntry { value, version })| KvItem {
                    key: key.clone(),
                    value: value.clone(),
                    version: *version,
                })
                .collect();
            let mut bytes = 0;
            let fits = items.iter().take(page.limit()).take_while(|item| {
                let fits = bytes < limits::KV_PAGE_BYTES_MAX;
                bytes += item.value.len();
                fits
            });
            let shown = fits.count();
            let more = shown < items.len();
            items.truncate(shown);
            let next = items.last().filter(|_| more).map(|last| Cursor::after_key("k", &last.key));
            Ok(Page { items, next, damaged: Vec::new() })
        })
    }

    async fn kv_put(
        &self,
        namespace: String,
        key: String,
        value: Option<Vec<u8>>,
        expected: u64,
    ) -> StoreResult<u64> {
        let write = KvWrite { namespace, key, value, expected };
        self.with_state(|state, _| {
            state.may_write(&write)?;
            Ok(state.write(write))
        })
    }

    async fn record(&self, batch: Vec<RecordRequest>) -> StoreResult<BatchResults<()>> {
        if batch.len() > limits::BATCH_ENTRIES_MAX {
            return Err(Refusal::invalid("batch", "too many entries").into());
        }
        self.with_state(|state, now| Ok(batch.into_iter().map(|one| state.record(one, now)).collect()))
    }
}

impl ModelState {
    fn may_write(&self, write: &KvWrite) -> Result<(), Refusal> {
        let KvWrite { namespace, key, value, expected } = write;
        if ["audit", "requests", "requests-by-time"].contains(&namespace.as_str()) {
            return Err(Refusal::invalid("namespace", "belongs to the store"));
        }
        if value.as_ref().is_some_and(|v| v.len() > limits::KV_BYTES_MAX) {
            return Err(Refusal::invalid("value", format!("at most {} bytes", limits::KV_BYTES_MAX)));
        }
        let found = self.kv.get(&(namespace.clone(), key.clone())).map_or(0, |entry| entry.version);
        if found == *expected {
            return Ok(());
        }
        Err(Refusal::KvConflict { namespace: namespace.clone(), key: key.clone() })
    }

    fn write(&mut self, write: KvWrite) -> u64 {
        let (kv_key, version) = ((write.namespace, write.key), write.expected + 1);
        let Some(value) = write.value else {
            self.kv.remove(&kv_key);
            return 0;
        };
        self.kv.insert(kv_key, KvEntry { value, version });
        version
    }

    fn record(&mut self, request: RecordRequest, now: Time) -> Result<(), Refusal> {
        request.check()?;
        request.writes.iter().try_for_each(|write| self.may_write(write))?;
        self.seal(request.entry(now));
        for write in request.writes {
            self.write(write);
        }
        Ok(())
    }
}
