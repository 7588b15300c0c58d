//! The verbs, written once over [`Tables`]. An engine is what a store does inside one commit: it reads and
//! writes tables, keeps the hot index in step, and collects counters so that they are written once per commit.
//! It decides nothing that the core decides.

mod breakers;
mod counting;
mod edit;
pub(crate) mod group_reads;
mod groups;
mod hand_over;
pub(crate) mod hot;
mod lines;
mod lives;
pub(crate) mod tables;

pub(crate) mod enqueue;
pub(crate) mod export;
pub(crate) mod lease;
pub(crate) mod letters;
mod maintain;
mod members;
mod operations;
pub(crate) mod preview;
pub(crate) mod reads;
pub(crate) mod replies;
pub(crate) mod settle;
pub(crate) mod short_ids;
pub(crate) mod survey;
pub(crate) mod text;
pub(crate) mod trim;

use crate::entropy::Entropy;
use crate::faults::{self, Fault};
use breakers::Breakers;
use hot::Hot;
use redrive_core::audit::{self, AuditEntry, AuditKey, AuditRow};
use redrive_core::dead_letter::{Actor, Status};
use redrive_core::error::{Error, Outcome, Refusal, StoreError, StoreErrorKind};
use redrive_core::group::{LeafCount, LeafKey};
use redrive_core::ids::{GroupId, LeafId, OperationId, QueueName};
use redrive_core::invariants::Counts;
use redrive_core::limits;
use redrive_core::metrics::{Event, OpenCounts, OpenKey, Tallies, TallyKey};
use redrive_core::operation::Operation;
use redrive_core::poison::{Isolation, Standing};
use redrive_core::scheduler::Scheduler;
use redrive_core::signature::Tree;
use redrive_core::store::Each;
use redrive_core::time::Time;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Instant;
use tables::{DrawerCounts, Heads, Kept, QueueRow, Tables};

/// What a store does inside a commit.
pub(crate) struct Engine<T> {
    pub(crate) tables: T,
    entropy: Arc<dyn Entropy>,
    audit_key: AuditKey,
    hot: Option<Hot>,
    hot_entries_max: usize,
    schedulers: HashMap<Vec<QueueName>, Scheduler>,
    /// What was read from the tables once and is written back when it changed.
    cache: Cache,
    breakers: Breakers,
    /// The leaves and their groups, once they are needed.
    tree: Option<Tree>,
    /// Suspects run alone.
    isolation: Isolation,
    /// How many wait for a commit, those aside who bring long work; a long verb makes room for them.
    pub(crate) crowd: Arc<AtomicUsize>,
    /// When an operation last saw somebody wait.
    waited_at: Option<Instant>,
    /// How often something was changed that is written with the commit; see [`Engine::written`].
    touched: u64,
    /// A purge that its caller has not finished.
    purging: Option<enqueue::Purging>,
    /// Whether this commit may have made work leasable.
    pub(crate) woke: bool,
    /// Audit rows that a deliberate bug keeps out of the commit they belong to; empty otherwise.
    pub(crate) late_audit: Vec<AuditRow>,
    /// Whether the audit trail was found to end where its head says.
    trail_checked: bool,
}

/// Rows that nearly every commit touches: read once, changed in memory, written once per commit.
#[derive(Default)]
struct Cache {
    heads: Option<Heads>,
    heads_changed: bool,
    queues: Option<BTreeMap<QueueName, QueueRow>>,
    queues_changed: BTreeSet<QueueName>,
    /// Those of them of which more than counts has changed.
    queues_configured: BTreeSet<QueueName>,
    drawers: Option<DrawerCounts>,
    drawers_changed: BTreeSet<(QueueName, Status)>,
    /// Letters in quarantine, in all drawers.
    quarantined: i64,
    open_letters: Option<OpenCounts>,
    open_letters_changed: BTreeSet<OpenKey>,
    /// Messages and dead letters of all queues together, and the most there ever were.
    totals: Option<Totals>,
    leaves: HashMap<LeafKey, LeafCount>,
    leaves_changed: BTreeSet<LeafKey>,
    /// The counters that there are of a leaf, for leaves that were asked for.
    leaf_rows: HashMap<LeafId, HashSet<LeafKey>>,
    standings: HashMap<GroupId, Standing>,
    standings_changed: BTreeSet<GroupId>,
    groups: lives::Groups,
    tallies: Option<Tallies>,
    tallies_changed: BTreeSet<TallyKey>,
    operations: HashMap<OperationId, Operation>,
    operations_changed: BTreeSet<OperationId>,
}

/// What the whole store holds, and the most it ever held at once.
#[derive(Clone, Copy)]
struct Totals {
    messages: i64,
    letters: i64,
    messages_peak: i64,
    letters_peak: i64,
}

/// Leaf counters kept in memory between commits; beyond it they are read again.
const LEAF_CACHE_MAX: usize = 100_000;
/// Operations kept in memory between commits, likewise.
const OPERATION_CACHE_MAX: usize = 1_000;

impl<T: Tables> Engine<T> {
    pub(crate) fn new(tables: T, entropy: Arc<dyn Entropy>, audit_key: AuditKey) -> Self {
        Self {
            tables,
            entropy,
            audit_key,
            hot: None,
            hot_entries_max: limits::HOT_ENTRIES_MAX,
            schedulers: HashMap::new(),
            cache: Cache::default(),
            breakers: Breakers::default(),
            tree: None,
            isolation: Isolation::default(),
            crowd: Arc::default(),
            waited_at: None,
            touched: 0,
            purging: None,
            woke: false,
            late_audit: Vec::new(),
            trail_checked: false,
        }
    }

    /// How often something was written by this commit, or will be with it. A number to compare, nothing else.
    pub(crate) fn written(&self) -> u64 {
        self.touched.wrapping_add(self.tables.writes())
    }

    /// Runs one entry of a verb. A refusal says that nothing was changed, and here that is held to: what refuses after
    /// its first write takes the whole commit back, instead of leaving half of itself in it. A record that turns out
    /// to be damaged before anything was written is refused alone (I46).
    fn entry<R>(&mut self, one: impl FnOnce(&mut Self) -> Outcome<R>) -> Outcome<Result<R, Refusal>> {
        let before = self.written();
        let result = one(self);
        match self.only_clean_refusals(before, result) {
            Ok(done) => Ok(Ok(done)),
            Err(Error::Refused(refusal)) => Ok(Err(refusal)),
            Err(Error::Store(error)) if error.kind == StoreErrorKind::Damaged && self.written() == before => {
                Ok(Err(Refusal::Damaged { what: error.text }))
            }
            Err(error @ Error::Store(_)) => Err(error),
        }
    }

    /// The result, unless it is a refusal of something that has written since: then the commit must not happen.
    pub(crate) fn only_clean_refusals<R>(&self, before: u64, result: Outcome<R>) -> Outcome<R> {
        match result {
            Err(Error::Refused(refusal)) if self.written() != before => {
                let why = format!(
                    "the commit was taken back, none of it happened: something was refused after a part of it was \
                     written ({refusal}); this is a fault in Redrive: report it, and ask again"
                );
                Err(StoreError::new(StoreErrorKind::Undone, why).into())
            }
            result => result,
        }
    }

    /// Runs every entry of a batch; an error of the store ends it.
    fn each<I, R>(
        &mut self,
        batch: Vec<I>,
        mut one: impl FnMut(&mut Self, I) -> Outcome<R>,
    ) -> Outcome<Each<R>> {
        let mut results = Vec::with_capacity(batch.len());
        for entry in batch {
            results.push(self.entry(|engine| one(engine, entry))?);
        }
        Ok(results)
    }

    /// Sets how many entries the hot index holds before it spills; tests make it small.
    pub(crate) fn hold_at_most(&mut self, entries: usize) {
        self.hot_entries_max = entries;
        self.hot = None;
    }

    #[cfg(feature = "memory")]
    pub(crate) fn audit_key(&self) -> &AuditKey {
        &self.audit_key
    }

    /// Writes what this commit changed and was kept in memory. The last thing before a commit; the audit
    /// head and the counters go in with what they count.
    pub(crate) fn flush(&mut self) -> Kept<()> {
        let cache = &mut self.cache;
        if let Some(queues) = &cache.queues {
            for name in std::mem::take(&mut cache.queues_changed) {
                if let Some(row) = queues.get(&name) {
                    match cache.queues_configured.remove(&name) {
                        true => self.tables.put_queue(&name, row)?,
                        false => self.tables.put_queue_counts(&name, row)?,
                    }
                }
            }
        }
        if let Some(drawers) = &cache.drawers {
            for (dlq, status) in std::mem::take(&mut cache.drawers_changed) {
                let count = drawers.get(&(dlq.clone(), status)).copied().unwrap_or(0);
                self.tables.put_drawer(&dlq, status, count)?;
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
        cache.groups.flush(&mut self.tables)?;
        for group in std::mem::take(&mut cache.standings_changed) {
            if let Some(standing) = cache.standings.get(&group) {
                let known = Some(standing).filter(|standing| **standing != Standing::default());
                self.tables.put_standing(group, known)?;
            }
        }
        if let Some(tallies) = &cache.tallies {
            for key in std::mem::take(&mut cache.tallies_changed) {
                if let Some(tally) = tallies.get(&key) {
                    self.tables.put_tally(&key, tally)?;
                }
            }
        }
        for id in std::mem::take(&mut cache.operations_changed) {
            if let Some(operation) = cache.operations.get(&id) {
                self.tables.put_operation(operation)?;
            }
        }
        if cache.operations.len() > OPERATION_CACHE_MAX {
            cache.operations.clear();
        }
        if cache.standings.len() > LEAF_CACHE_MAX {
            cache.standings.clear();
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

    /// Forgets everything that is not in the tables: after a commit that did not happen.
    pub(crate) fn forget(&mut self) {
        self.hot = None;
        self.cache = Cache::default();
        self.breakers = Breakers::default();
        self.tree = None;
        self.purging = None;
        self.tables.forget();
        self.woke = false;
    }

    /// The hot index, built from the tables when it is first needed.
    fn hot(&mut self) -> Kept<&mut Hot> {
        if self.hot.is_none() {
            self.hot = Some(self.build_hot()?);
        }
        match &mut self.hot {
            Some(hot) => Ok(hot),
            None => Err(StoreError::new(
                StoreErrorKind::Stopped,
                "the index of ready messages could not be built",
            )),
        }
    }

    fn heads(&mut self) -> Kept<&mut Heads> {
        if self.cache.heads.is_none() {
            self.cache.heads = Some(self.tables.heads()?);
        }
        self.cache.heads_changed = true;
        self.cache.heads.as_mut().ok_or_else(|| unreachable_cache("heads"))
    }

    /// Refuses to go on with an audit trail whose stored head is not its last row: the next row would break the chain
    /// for good, or stand where there is one already. Looked at once, before the first row.
    fn check_trail(&mut self) -> Kept<()> {
        if !self.trail_checked {
            let (n, seal) = trim::last(&self.tables)?;
            let heads = self.heads()?;
            if let Some(why) = audit::head_mismatch((heads.audit_n, &heads.audit_seal), (n, &seal)) {
                return Err(StoreError::new(StoreErrorKind::Damaged, why));
            }
            self.trail_checked = true;
        }
        Ok(())
    }

    /// Sets the stored head to the last row and records that.
    fn mend_trail(&mut self, now: Time) -> Kept<()> {
        let last = trim::last(&self.tables)?;
        let heads = self.heads()?;
        let was = heads.audit_n;
        (heads.audit_n, heads.audit_seal) = last;
        let detail = format!("the stored head said row {was}, and the last row was {}", heads.audit_n);
        let system = Actor::new("system", "doctor");
        self.record(AuditEntry::new(now, &system, "repair", "audit", 1).with_detail(detail))
    }

    fn queues(&mut self) -> Kept<&mut BTreeMap<QueueName, QueueRow>> {
        if self.cache.queues.is_none() {
            self.cache.queues = Some(self.tables.queues()?);
        }
        self.cache.queues.as_mut().ok_or_else(|| unreachable_cache("queues"))
    }

    /// A queue's row for reading.
    fn queue(&mut self, name: &QueueName) -> Outcome<&QueueRow> {
        let row = self.queues()?.get(name);
        row.ok_or_else(|| Error::Refused(Refusal::NoSuchQueue { queue: name.clone() }))
    }

    /// A queue's row for counting; its counts are written with this commit.
    fn queue_mut(&mut self, name: &QueueName) -> Outcome<&mut QueueRow> {
        if self.queues()?.contains_key(name) {
            self.cache.queues_changed.insert(name.clone());
            self.touched += 1;
        }
        let row = self.queues()?.get_mut(name);
        row.ok_or_else(|| Error::Refused(Refusal::NoSuchQueue { queue: name.clone() }))
    }

    /// A queue's row for changing whatever there is of it; it is written with this commit.
    fn queue_whole(&mut self, name: &QueueName) -> Outcome<&mut QueueRow> {
        self.cache.queues_configured.insert(name.clone());
        self.queue_mut(name)
    }

    /// Reads the counters of the drawers, once.
    fn know_drawers(&mut self) -> Kept<()> {
        if self.cache.drawers.is_none() {
            let drawers = self.tables.drawers()?;
            let quarantined = drawers.iter().filter(|((_, status), _)| *status == Status::Quarantined);
            self.cache.quarantined = quarantined.map(|(_, count)| count).sum();
            self.cache.drawers = Some(drawers);
        }
        Ok(())
    }

    fn count_drawer(&mut self, dlq: &QueueName, status: Status, by: i64) -> Kept<()> {
        self.know_drawers()?;
        self.touched += 1;
        if status == Status::Quarantined {
            self.cache.quarantined += by;
        }
        let place = (dlq.clone(), status);
        if let Some(drawers) = &mut self.cache.drawers {
            *drawers.entry(place.clone()).or_default() += by;
        }
        self.cache.drawers_changed.insert(place);
        Ok(())
    }

    /// The counter that a queue and a kind of a leaf belong to. A leaf has a bounded number of them; what comes beyond
    /// is summed up per queue, and a counter that was once there stays.
    fn counter_of(&mut self, key: LeafKey) -> Kept<LeafKey> {
        if self.cache.leaves.contains_key(&key) {
            return Ok(key);
        }
        if !self.cache.leaf_rows.contains_key(&key.leaf) {
            let rows = self.tables.counts_of(key.leaf)?.into_iter().map(|(key, _)| key).collect();
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
    fn count_open(&mut self, key: OpenKey, by: i64) -> Kept<()> {
        self.touched += 1;
        if self.cache.open_letters.is_none() {
            self.cache.open_letters = Some(self.tables.open_letters()?);
        }
        if let Some(open) = &mut self.cache.open_letters {
            self.cache.open_letters_changed.insert(open.add(key, by));
        }
        Ok(())
    }

    /// Adds the change of one queue's counts, which its row shows already, to what all queues hold together. The head
    /// of the store is written only if it never held as much.
    fn count_totals(&mut self, before: &Counts, after: &Counts) -> Kept<()> {
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

    fn count_leaf(&mut self, key: LeafKey, change: impl FnOnce(&mut LeafCount)) -> Kept<()> {
        self.touched += 1;
        let key = self.counter_of(key)?;
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

    /// Counts an event, in this commit.
    fn tally(
        &mut self,
        event: Event,
        queue: &QueueName,
        labels: &[&str],
        amount: u64,
        now: Time,
    ) -> Kept<()> {
        self.touched += 1;
        if self.cache.tallies.is_none() {
            self.cache.tallies = Some(Tallies::new(self.tables.tallies()?));
        }
        if let Some(tallies) = &mut self.cache.tallies {
            let key = tallies.add(TallyKey::new(event, queue, labels), amount, now);
            self.cache.tallies_changed.insert(key);
        }
        Ok(())
    }

    /// What is known of a group.
    fn standing(&mut self, group: GroupId) -> Kept<&Standing> {
        if !self.cache.standings.contains_key(&group) {
            // What cannot be read is learned again; `doctor` says that it was lost.
            let standing = tables::unless_damaged(self.tables.standing(group))?.unwrap_or_default();
            self.cache.standings.insert(group, standing);
        }
        Ok(self.cache.standings.entry(group).or_default())
    }

    /// Changes what is known of a group, in this commit.
    fn teach(&mut self, group: GroupId, change: impl FnOnce(&mut Standing)) -> Kept<()> {
        self.standing(group)?;
        self.touched += 1;
        change(self.cache.standings.entry(group).or_default());
        self.cache.standings_changed.insert(group);
        Ok(())
    }

    /// Appends to the audit trail, in this commit.
    fn record(&mut self, entry: AuditEntry) -> Kept<()> {
        self.check_trail()?;
        let heads = self.heads()?;
        heads.audit_n += 1;
        let (n, previous) = (heads.audit_n, heads.audit_seal.clone());
        let row = audit::seal(&self.audit_key, n, &previous, entry);
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
