//! The store's operations, implemented once over the [`Tables`] traits.
//!
//! An [`Engine`] does the work inside one commit: it reads and writes tables, keeps the index of ready messages up to
//! date, and caches counters so that each is written at most once per commit. Every decision is left to the core.

mod breaker_queue;
mod breakers;
mod counting;
mod edit;
pub(crate) mod group_reads;
mod group_rows;
mod groups;
mod hand_over;
pub(crate) mod ready_index;
pub(crate) mod tables;
pub(crate) mod touched;

pub(crate) mod enqueue;
pub(crate) mod export;
pub(crate) mod kv;
pub(crate) mod lease;
pub(crate) mod letters;
mod maintain;
mod members;
mod operations;
pub(crate) mod preview;
pub(crate) mod reads;
pub(crate) mod replies;
pub(crate) mod requests;
pub(crate) mod settle;
pub(crate) mod short_ids;
pub(crate) mod survey;
pub(crate) mod text;
pub(crate) mod trim;

use crate::entropy::Entropy;
use crate::faults::{self, Fault};
use crate::metrics::AfterCommit;
use breakers::Breakers;
use ready_index::ReadyIndex;
use redrive_core::audit::{self, AuditEntry, AuditKey, AuditRow};
use redrive_core::changes::Area;
use redrive_core::dead_letter::{Actor, Status};
use redrive_core::error::{CallError, Refusal, StoreError, StoreErrorKind, StoreResult};
use redrive_core::group::{LeafCount, LeafKey};
use redrive_core::ids::{GroupId, LeafId, OperationId, QueueName};
use redrive_core::invariants::Counts;
use redrive_core::limits;
use redrive_core::metrics::{CounterKey, Counters, OpenCounts, OpenKey};
use redrive_core::operation::Operation;
use redrive_core::poison::{GroupHistory, Isolation};
use redrive_core::scheduler::Scheduler;
use redrive_core::signature::Tree;
use redrive_core::store::BatchResults;
use redrive_core::time::Time;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use tables::{DlqCounts, Heads, Letter, QueueRow, TableResult, Tables};
use touched::Touched;

/// Runs the store's operations inside a commit.
pub(crate) struct Engine<T> {
    pub(crate) tables: T,
    entropy: Arc<dyn Entropy>,
    audit_key: AuditKey,
    /// Built when it is first needed.
    ready_index: Option<ReadyIndex>,
    ready_index_max: usize,
    /// One scheduler per set of queues that are leased from together.
    schedulers: HashMap<Vec<QueueName>, Scheduler>,
    /// Rows that are read once, changed in memory and written back by [`Engine::flush`].
    cache: Cache,
    breakers: Breakers,
    /// The signature tree: the leaves and their groups. Loaded when it is first needed.
    tree: Option<Tree>,
    /// Decides when a suspect (a message that may have crashed a worker) runs alone.
    isolation: Isolation,
    /// How many jobs wait for a commit, not counting long ones. A long operation stops early to let them in.
    pub(crate) waiting_writers: Arc<AtomicUsize>,
    /// When an operation last saw a job waiting for a commit.
    contended_at: Option<Instant>,
    /// How many cached rows were changed; see [`Engine::write_count`].
    cached_writes: u64,
    /// The purge that is under way, if its caller has not finished it.
    purging: Option<enqueue::PurgeProgress>,
    /// What this commit touches.
    touched: Touched,
    /// How many callers wait for work. Nobody has to be told about work while there are none.
    pub(crate) waiting_workers: Arc<AtomicUsize>,
    /// What is measured if this commit happens.
    pub(crate) after_commit: AfterCommit,
    /// Audit rows that an injected fault keeps out of their commit; empty otherwise.
    pub(crate) late_audit: Vec<AuditRow>,
    /// Whether the audit trail was found to end at its stored head.
    audit_head_checked: bool,
}

/// Rows that nearly every commit touches. They are read once, changed in memory and written once per commit.
#[derive(Default)]
struct Cache {
    heads: Option<Heads>,
    heads_changed: bool,
    queues: Option<BTreeMap<QueueName, QueueRow>>,
    queues_changed: BTreeSet<QueueName>,
    /// Changed queues whose whole row has to be written, not only the
    /// counters: new ones and those whose policy or pause state changed.
    queues_configured: BTreeSet<QueueName>,
    dlqs: Option<DlqCounts>,
    dlqs_changed: BTreeSet<(QueueName, Status)>,
    /// The number of quarantined letters in all dead letter queues.
    quarantined: i64,
    open_letters: Option<OpenCounts>,
    open_letters_changed: BTreeSet<OpenKey>,
    /// How many messages and dead letters all queues hold together, and the peaks.
    totals: Option<Totals>,
    leaves: HashMap<LeafKey, LeafCount>,
    leaves_changed: BTreeSet<LeafKey>,
    /// The counters that exist for each leaf, for the leaves that were looked up.
    leaf_rows: HashMap<LeafId, HashSet<LeafKey>>,
    group_histories: HashMap<GroupId, GroupHistory>,
    group_histories_changed: BTreeSet<GroupId>,
    groups: group_rows::Groups,
    event_counters: Option<Counters>,
    event_counters_changed: BTreeSet<CounterKey>,
    operations: HashMap<OperationId, Operation>,
    operations_changed: BTreeSet<OperationId>,
}

/// How many messages and dead letters the whole store holds, and the most it ever held at once.
#[derive(Clone, Copy)]
struct Totals {
    messages: i64,
    letters: i64,
    messages_peak: i64,
    letters_peak: i64,
}

/// Leaf counters kept in memory between commits. Above this number the cache is emptied and read again.
const LEAF_CACHE_MAX: usize = 100_000;
/// Operations kept in memory between commits. Above this number the cache is emptied and read again.
const OPERATION_CACHE_MAX: usize = 1_000;

impl<T: Tables> Engine<T> {
    pub(crate) fn new(tables: T, entropy: Arc<dyn Entropy>, audit_key: AuditKey) -> Self {
        Self {
            tables,
            entropy,
            audit_key,
            ready_index: None,
            ready_index_max: limits::READY_INDEX_ENTRIES_MAX,
            schedulers: HashMap::new(),
            cache: Cache::default(),
            breakers: Breakers::default(),
            tree: None,
            isolation: Isolation::default(),
            waiting_writers: Arc::default(),
            contended_at: None,
            cached_writes: 0,
            purging: None,
            touched: Touched::default(),
            waiting_workers: Arc::default(),
            after_commit: AfterCommit::default(),
            late_audit: Vec::new(),
            audit_head_checked: false,
        }
    }

    /// How many writes this commit made or will make when it is flushed. Only meaningful for comparison.
    pub(crate) fn write_count(&self) -> u64 {
        self.cached_writes.wrapping_add(self.tables.writes())
    }

    /// Runs one entry of a batch. A refusal promises that nothing changed, and this function enforces it: if an entry
    /// refuses after its first write, the whole commit is undone instead of keeping half of the entry. If an entry
    /// finds a damaged record before it has written anything, only that entry is refused (I46).
    fn run_entry<R>(
        &mut self,
        entry: impl FnOnce(&mut Self) -> StoreResult<R>,
    ) -> StoreResult<Result<R, Refusal>> {
        let before = self.write_count();
        let result = entry(self);
        match self.forbid_refusal_after_write(before, result) {
            Ok(done) => Ok(Ok(done)),
            Err(CallError::Refused(refusal)) => Ok(Err(refusal)),
            Err(CallError::Store(error))
                if error.kind == StoreErrorKind::Damaged && self.write_count() == before =>
            {
                Ok(Err(Refusal::Damaged { what: error.text }))
            }
            Err(error @ CallError::Store(_)) => Err(error),
        }
    }

    /// Turns a refusal that came after a write into an error that undoes the commit. Passes other results through.
    pub(crate) fn forbid_refusal_after_write<R>(
        &self,
        before: u64,
        result: StoreResult<R>,
    ) -> StoreResult<R> {
        match result {
            Err(CallError::Refused(refusal)) if self.write_count() != before => {
                let why = format!(
                    "the commit was undone and nothing of it happened: a call was refused after part of it had been \
                     written ({refusal}); this is a fault in Redrive: report it, then try again"
                );
                Err(StoreError::new(StoreErrorKind::Undone, why).into())
            }
            result => result,
        }
    }

    /// Runs every entry of a batch. A refusal concerns one entry; a store error ends the batch.
    fn run_batch<I, R>(
        &mut self,
        batch: Vec<I>,
        mut one: impl FnMut(&mut Self, I) -> StoreResult<R>,
    ) -> StoreResult<BatchResults<R>> {
        let mut results = Vec::with_capacity(batch.len());
        for entry in batch {
            results.push(self.run_entry(|engine| one(engine, entry))?);
        }
        Ok(results)
    }

    /// Sets how many entries the ready index holds before it spills to disk. Tests make it small.
    pub(crate) fn set_ready_index_max(&mut self, entries: usize) {
        self.ready_index_max = entries;
        self.ready_index = None;
    }

    #[cfg(feature = "memory")]
    pub(crate) fn audit_key(&self) -> &AuditKey {
        &self.audit_key
    }

    /// Writes the cached rows that this commit changed. Called last, so that the audit head and the counters are
    /// committed together with what they describe.
    pub(crate) fn flush(&mut self) -> TableResult<()> {
        let (cache, areas) = (&mut self.cache, &mut self.touched.areas);
        if let Some(queues) = &cache.queues {
            for name in std::mem::take(&mut cache.queues_changed) {
                if let Some(row) = queues.get(&name) {
                    match cache.queues_configured.remove(&name) {
                        true => self.tables.put_queue(&name, row)?,
                        false => self.tables.put_queue_counts(&name, row)?,
                    }
                }
                areas.insert(Area::Queue(name));
            }
        }
        if let Some(dlqs) = &cache.dlqs {
            for (dlq, status) in std::mem::take(&mut cache.dlqs_changed) {
                let count = dlqs.get(&(dlq.clone(), status)).copied().unwrap_or(0);
                self.tables.put_dlq_count(&dlq, status, count)?;
                areas.insert(Area::Dlq(dlq));
            }
        }
        if let Some(open) = &cache.open_letters {
            for key in std::mem::take(&mut cache.open_letters_changed) {
                self.tables.put_open_letters(&key, open.get(&key))?;
            }
        }
        for key in std::mem::take(&mut cache.leaves_changed) {
            if let Some(count) = cache.leaves.get(&key) {
                self.tables.put_leaf_count(&key, count)?;
            }
        }
        cache.groups.flush(&mut self.tables, areas)?;
        for group in std::mem::take(&mut cache.group_histories_changed) {
            if let Some(history) = cache.group_histories.get(&group) {
                let known = Some(history).filter(|history| **history != GroupHistory::default());
                self.tables.put_group_history(group, known)?;
            }
        }
        if let Some(counters) = &cache.event_counters {
            for key in std::mem::take(&mut cache.event_counters_changed) {
                if let Some(totals) = counters.get(&key) {
                    self.tables.put_event_counter(&key, totals)?;
                }
            }
        }
        for id in std::mem::take(&mut cache.operations_changed) {
            if let Some(operation) = cache.operations.get(&id) {
                self.tables.put_operation(operation)?;
            }
            areas.insert(Area::Operation(id));
        }
        if cache.operations.len() > OPERATION_CACHE_MAX {
            cache.operations.clear();
        }
        if cache.group_histories.len() > LEAF_CACHE_MAX {
            cache.group_histories.clear();
        }
        if cache.leaves.len() > LEAF_CACHE_MAX {
            cache.leaves.clear();
            cache.leaf_rows.clear();
        }
        if std::mem::take(&mut cache.heads_changed)
            && let Some(heads) = &cache.heads
        {
            self.tables.put_heads(heads)?;
        }
        self.flush_breakers()
    }

    /// Drops everything that is not in the tables, after a commit that did not happen.
    pub(crate) fn forget(&mut self) {
        self.ready_index = None;
        self.cache = Cache::default();
        self.breakers = Breakers::default();
        self.tree = None;
        self.purging = None;
        self.tables.forget();
        self.touched = Touched::default();
        self.after_commit = AfterCommit::default();
    }

    /// What the commit touched, once it is durable.
    pub(crate) fn take_touched(&mut self) -> Touched {
        std::mem::take(&mut self.touched)
    }

    /// Notes that a message of a queue may be leased from `ready_at` on, because of this commit.
    fn work_available(&mut self, queue: &QueueName, ready_at: Time, now: Time) {
        // A waiter that comes after this look makes one of its own, which sees the commit.
        if self.waiting_workers.load(Ordering::SeqCst) > 0 {
            self.touched.add_work(queue, ready_at, now);
        }
    }

    /// Notes that a letter of a dead letter queue changed in this commit.
    fn letter_touched(&mut self, dlq: &QueueName) {
        let area = Area::Dlq(dlq.clone());
        if !self.touched.areas.contains(&area) {
            self.touched.areas.insert(area);
        }
    }

    /// Writes a changed letter.
    fn put_letter(&mut self, stored: &Letter, letter: &Letter) -> TableResult<()> {
        self.letter_touched(&letter.record.dlq);
        self.tables.put_letter(stored, letter)
    }

    /// Files a letter.
    fn add_letter(&mut self, letter: &Letter) -> TableResult<()> {
        self.letter_touched(&letter.record.dlq);
        self.tables.add_letter(letter)
    }

    /// Removes a letter.
    fn drop_letter(&mut self, letter: &Letter) -> TableResult<()> {
        self.letter_touched(&letter.record.dlq);
        self.tables.drop_letter(letter)
    }

    /// The ready index, built from the tables when it is first needed.
    fn ready_index(&mut self) -> TableResult<&mut ReadyIndex> {
        if self.ready_index.is_none() {
            self.ready_index = Some(self.build_ready_index()?);
        }
        match &mut self.ready_index {
            Some(ready_index) => Ok(ready_index),
            None => Err(StoreError::new(
                StoreErrorKind::Stopped,
                "the index of ready messages could not be built",
            )),
        }
    }

    /// The heads row, for changing. It is written with this commit.
    fn heads(&mut self) -> TableResult<&mut Heads> {
        if self.cache.heads.is_none() {
            self.cache.heads = Some(self.tables.heads()?);
        }
        self.cache.heads_changed = true;
        self.cache.heads.as_mut().ok_or_else(|| unreachable_cache("heads"))
    }

    /// Fails if the stored audit head is not the last row of the trail: another row would break the chain for good or
    /// overwrite an existing row. Checked once, before the first row is appended.
    fn check_audit_head(&mut self) -> TableResult<()> {
        if !self.audit_head_checked {
            let (n, seal) = trim::last(&self.tables)?;
            let heads = self.heads()?;
            if let Some(why) = audit::head_mismatch((heads.audit_n, &heads.audit_seal), (n, &seal)) {
                return Err(StoreError::new(StoreErrorKind::Damaged, why));
            }
            self.audit_head_checked = true;
        }
        Ok(())
    }

    /// Sets the stored audit head to the last row of the trail and records the repair.
    fn repair_audit_head(&mut self, now: Time) -> TableResult<()> {
        let last = trim::last(&self.tables)?;
        let heads = self.heads()?;
        let stored_n = heads.audit_n;
        (heads.audit_n, heads.audit_seal) = last;
        let detail = format!("the stored head said row {stored_n}, and the last row was {}", heads.audit_n);
        let system = Actor::new("system", "doctor");
        self.append_audit(AuditEntry::new(now, &system, "repair", "audit", 1).with_detail(detail))
    }

    /// The rows of all queues, read once.
    fn queues(&mut self) -> TableResult<&mut BTreeMap<QueueName, QueueRow>> {
        if self.cache.queues.is_none() {
            self.cache.queues = Some(self.tables.queues()?);
        }
        self.cache.queues.as_mut().ok_or_else(|| unreachable_cache("queues"))
    }

    /// A queue's row, for reading.
    fn queue(&mut self, name: &QueueName) -> StoreResult<&QueueRow> {
        let row = self.queues()?.get(name);
        row.ok_or_else(|| CallError::Refused(Refusal::NoSuchQueue { queue: name.clone() }))
    }

    /// A queue's row, for changing its counters. The counters are written with this commit.
    fn queue_mut(&mut self, name: &QueueName) -> StoreResult<&mut QueueRow> {
        if self.queues()?.contains_key(name) {
            self.cache.queues_changed.insert(name.clone());
            self.cached_writes += 1;
        }
        let row = self.queues()?.get_mut(name);
        row.ok_or_else(|| CallError::Refused(Refusal::NoSuchQueue { queue: name.clone() }))
    }

    /// A queue's row, for changing its policy or pause state. The whole row is written with this commit.
    fn queue_config_mut(&mut self, name: &QueueName) -> StoreResult<&mut QueueRow> {
        self.cache.queues_configured.insert(name.clone());
        self.queue_mut(name)
    }

    /// Loads the counters of the dead letter queues, once.
    fn load_dlq_counts(&mut self) -> TableResult<()> {
        if self.cache.dlqs.is_none() {
            let dlqs = self.tables.dlqs()?;
            let quarantined = dlqs.iter().filter(|((_, status), _)| *status == Status::Quarantined);
            self.cache.quarantined = quarantined.map(|(_, count)| count).sum();
            self.cache.dlqs = Some(dlqs);
        }
        Ok(())
    }

    /// Adds to the number of letters that a dead letter queue holds in a status, in this commit.
    fn count_dlq(&mut self, dlq: &QueueName, status: Status, by: i64) -> TableResult<()> {
        self.load_dlq_counts()?;
        self.cached_writes += 1;
        if status == Status::Quarantined {
            self.cache.quarantined += by;
        }
        let key = (dlq.clone(), status);
        if let Some(dlqs) = &mut self.cache.dlqs {
            *dlqs.entry(key.clone()).or_default() += by;
        }
        self.cache.dlqs_changed.insert(key);
        Ok(())
    }

    /// The counter to use for a leaf, queue and kind. The number of counters per leaf is bounded: once it is reached,
    /// new kinds share one counter per queue, while existing counters stay in use.
    fn leaf_counter_key(&mut self, key: LeafKey) -> TableResult<LeafKey> {
        if self.cache.leaves.contains_key(&key) {
            return Ok(key);
        }
        if !self.cache.leaf_rows.contains_key(&key.leaf) {
            let rows = self.tables.leaf_counts_of(key.leaf)?.into_iter().map(|(key, _)| key).collect();
            self.cache.leaf_rows.insert(key.leaf, rows);
        }
        let rows = self.cache.leaf_rows.entry(key.leaf).or_default();
        let key = if rows.contains(&key) || rows.len() < limits::LEAF_COUNTERS_MAX {
            key
        } else {
            key.other_kinds()
        };
        rows.insert(key.clone());
        Ok(key)
    }

    /// Counts letters that were opened, or closed if `by` is negative.
    fn count_open(&mut self, key: OpenKey, by: i64) -> TableResult<()> {
        self.cached_writes += 1;
        if self.cache.open_letters.is_none() {
            self.cache.open_letters = Some(self.tables.open_letters()?);
        }
        if let Some(open) = &mut self.cache.open_letters {
            self.cache.open_letters_changed.insert(open.add(key, by));
        }
        Ok(())
    }

    /// Adds the change of one queue's counts to the totals of the store. The queue's row must already show `after`.
    /// The heads row is written only when a total reaches a new peak.
    fn count_totals(&mut self, before: &Counts, after: &Counts) -> TableResult<()> {
        let mut totals = match self.cache.totals {
            Some(mut totals) => {
                totals.messages += after.waiting + after.leased - before.waiting - before.leased;
                totals.letters += after.dead - before.dead;
                totals
            }
            None => {
                let Heads { messages_peak, letters_peak, .. } = *self.heads()?;
                let mut totals = Totals { messages: 0, letters: 0, messages_peak, letters_peak };
                for row in self.queues()?.values() {
                    totals.messages += row.counts.waiting + row.counts.leased;
                    totals.letters += row.counts.dead;
                }
                totals
            }
        };
        if totals.messages > totals.messages_peak || totals.letters > totals.letters_peak {
            totals.messages_peak = totals.messages_peak.max(totals.messages);
            totals.letters_peak = totals.letters_peak.max(totals.letters);
            let heads = self.heads()?;
            (heads.messages_peak, heads.letters_peak) = (totals.messages_peak, totals.letters_peak);
        }
        self.cache.totals = Some(totals);
        Ok(())
    }

    /// Changes the counter of a leaf, and the sums of its group, in this commit.
    fn count_leaf(&mut self, key: LeafKey, change: impl FnOnce(&mut LeafCount)) -> TableResult<()> {
        self.cached_writes += 1;
        let key = self.leaf_counter_key(key)?;
        if !self.cache.leaves.contains_key(&key) {
            let count = self.tables.leaf_count(&key)?;
            self.cache.leaves.insert(key.clone(), count);
        }
        if let Some(count) = self.cache.leaves.get_mut(&key) {
            let before = *count;
            change(count);
            let after = *count;
            self.count_group(&key, before, after)?;
        }
        self.cache.leaves_changed.insert(key);
        Ok(())
    }

    /// What is known about the failures of a group.
    fn group_history(&mut self, group: GroupId) -> TableResult<&GroupHistory> {
        if !self.cache.group_histories.contains_key(&group) {
            // A damaged history starts afresh; `doctor` reports the loss.
            let history = tables::unless_damaged(self.tables.group_history(group))?.unwrap_or_default();
            self.cache.group_histories.insert(group, history);
        }
        Ok(self.cache.group_histories.entry(group).or_default())
    }

    /// Changes a group's history, in this commit.
    fn update_group_history(
        &mut self,
        group: GroupId,
        change: impl FnOnce(&mut GroupHistory),
    ) -> TableResult<()> {
        self.group_history(group)?;
        self.cached_writes += 1;
        change(self.cache.group_histories.entry(group).or_default());
        self.cache.group_histories_changed.insert(group);
        Ok(())
    }

    /// Appends a row to the audit trail, in this commit.
    fn append_audit(&mut self, entry: AuditEntry) -> TableResult<()> {
        self.check_audit_head()?;
        let heads = self.heads()?;
        heads.audit_n += 1;
        let (n, previous) = (heads.audit_n, heads.audit_seal.clone());
        let row = audit::seal(&self.audit_key, n, &previous, entry);
        self.touched.areas.insert(Area::Audit);
        self.heads()?.audit_seal.clone_from(&row.seal);
        if faults::is(Fault::AuditOutsideCommit) {
            self.late_audit.push(row);
            return Ok(());
        }
        self.tables.add_audit(&row)
    }
}

fn unreachable_cache(what: &str) -> StoreError {
    StoreError::new(StoreErrorKind::Stopped, format!("the cache of {what} is gone"))
}
