//! What must always hold, verified by recounting. A store passes everything it holds to a [`Census`], which
//! then compares the recount with the store's counters. The same census runs in the model, in tests and in
//! `doctor`.

use crate::dead_letter::{LetterRecord, Status};
use crate::group::{LeafCount, LeafKey};
use crate::ids::{MessageId, OperationId, QueueName};
use crate::lifecycle::{Final, Lifecycle, Phase};
use crate::limits;
use crate::message::MessageMeta;
use crate::metrics::{OpenCounts, OpenKey};
use crate::operation::{Operation, Outcomes};
use crate::time::Span;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// The counters of one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Messages ever accepted, including imported letters.
    pub enqueued: i64,
    /// Messages that are scheduled or ready.
    pub waiting: i64,
    /// Messages leased to workers.
    pub leased: i64,
    /// Dead letters that are not being retried, including closed ones.
    pub dead: i64,
    /// Messages ever acknowledged.
    pub done: i64,
    /// Messages ever cancelled.
    pub cancelled: i64,
    /// Messages ever dropped because their ttl or deadline passed.
    pub expired: i64,
    /// Messages ever purged.
    pub purged: i64,
    /// Payload bytes of waiting and leased messages.
    pub bytes: i64,
}

impl Counts {
    /// Conservation: every accepted message is in exactly one state or final count (I11).
    #[must_use]
    pub const fn conserved(&self) -> bool {
        self.missing() == 0
    }

    /// The number of accepted messages that no state accounts for.
    #[must_use]
    pub const fn missing(&self) -> i64 {
        let live = self.waiting + self.leased + self.dead;
        self.enqueued - live - self.done - self.cancelled - self.expired - self.purged
    }

    /// Removes one message from the count of its phase: the first half of every move.
    pub fn leave(&mut self, phase: &Phase, size: u64) {
        self.shift(phase, -1, size);
    }

    /// Adds one message to the count of its phase: the second half.
    pub fn enter(&mut self, phase: &Phase, size: u64) {
        self.shift(phase, 1, size);
    }

    fn shift(&mut self, phase: &Phase, by: i64, size: u64) {
        let bytes = i64::try_from(size).unwrap_or(i64::MAX) * by;
        match phase {
            Phase::Waiting => {
                self.waiting += by;
                self.bytes += bytes;
            }
            Phase::Leased(_) => {
                self.leased += by;
                self.bytes += bytes;
            }
            Phase::Dead => self.dead += by,
            Phase::Over(Final::Done) => self.done += by,
            Phase::Over(Final::Cancelled) => self.cancelled += by,
            Phase::Over(Final::Expired) => self.expired += by,
            Phase::Over(Final::Purged) => self.purged += by,
        }
    }

    /// Adds a difference.
    pub fn add(&mut self, delta: &Self) {
        self.enqueued += delta.enqueued;
        self.waiting += delta.waiting;
        self.leased += delta.leased;
        self.dead += delta.dead;
        self.done += delta.done;
        self.cancelled += delta.cancelled;
        self.expired += delta.expired;
        self.purged += delta.purged;
        self.bytes += delta.bytes;
    }
}

/// A violated invariant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The number of the invariant.
    pub invariant: String,
    /// What was found, with ids.
    pub what: String,
    /// Whether `doctor --repair` can repair it. The repair recomputes what follows from other data and sets
    /// damaged records aside.
    pub repairable: bool,
    /// The command that repairs it.
    #[serde(default)]
    pub mend: String,
}

/// The command that repairs what can be recomputed from other data.
pub const REPAIR: &str = "`redrive doctor --repair`";
/// The remedy for a store that has lost data.
const RESTORE: &str = "`redrive --data NEW_DIR restore BACKUP_DIR`, with the last backup from before it; then go on \
                       with `--data NEW_DIR`";

/// What a verification examined and found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verification {
    /// Live messages examined.
    pub messages: u64,
    /// Dead letters examined.
    pub letters: u64,
    /// Payloads read and compared with their checksum.
    pub payloads: u64,
    /// Failures examined.
    pub failures: u64,
    /// Audit rows examined.
    pub audit_rows: u64,
    /// Violated invariants. At most [`limits::FINDINGS_MAX`] are listed.
    pub findings: Vec<Finding>,
    /// The number of violations, including those not listed.
    pub findings_total: u64,
    /// Counters that were corrected.
    pub repaired: u64,
}

impl Verification {
    /// Adds a finding that `doctor --repair` or a restore can repair.
    pub fn find(&mut self, invariant: &str, what: impl Into<String>, repairable: bool) {
        let mend = if repairable { REPAIR } else { RESTORE };
        self.note(Finding { invariant: invariant.into(), what: what.into(), repairable, mend: mend.into() });
    }

    /// Adds a finding with its own remedy.
    pub fn find_mended_by(&mut self, invariant: &str, what: impl Into<String>, mend: impl Into<String>) {
        let (invariant, what, mend) = (invariant.into(), what.into(), mend.into());
        self.note(Finding { invariant, what, repairable: false, mend });
    }

    fn note(&mut self, finding: Finding) {
        self.findings_total += 1;
        if self.findings.len() < limits::FINDINGS_MAX {
            self.findings.push(finding);
        }
    }

    /// Adds a finding if the store's clock is too far from the machine's. `ahead_ms` is how far it is ahead.
    pub fn check_clock(&mut self, ahead_ms: i64) {
        let skew = Span::from_millis(ahead_ms.unsigned_abs());
        if skew <= limits::CLOCK_SKEW_MAX {
            return;
        }
        let set = "`timedatectl` to see whether the machine's clock is right, and `sudo timedatectl set-ntp true` if it \
                   is not";
        if ahead_ms > 0 {
            let met = Span::from_millis(skew.as_millis().saturating_mul(2));
            let what = format!(
                "the store's clock is {skew} ahead of the machine's: it runs at half speed, so that delays and leases \
                 last up to twice as long, and deadlines come early"
            );
            self.find_mended_by(
                "I21",
                what,
                format!("{set}; if it is, the clocks meet by themselves in {met}"),
            );
        } else {
            let what = format!(
                "the store's clock is {skew} behind the machine's: it runs at double speed, so that delays and leases \
                 may last half as long"
            );
            let mend = format!(
                "{set}; if it is, the clocks meet by themselves in {skew}, or at once in a copy: \
                 `redrive backup COPY_DIR`, then `redrive --data NEW_DIR restore COPY_DIR`"
            );
            self.find_mended_by("I21", what, mend);
        }
    }

    /// Whether every invariant holds.
    #[must_use]
    pub const fn is_clean(&self) -> bool {
        self.findings_total == 0
    }
}

/// A recount of everything in a store.
#[derive(Debug, Default)]
pub struct Census {
    queues: BTreeMap<QueueName, Counts>,
    open: BTreeMap<LeafKey, i64>,
    open_letters: OpenCounts,
    redriven: HashSet<MessageId>,
    retrying: HashSet<MessageId>,
    live: HashSet<MessageId>,
    leased_keys: HashMap<(QueueName, String), MessageId>,
    /// Letters that an operation redrove and that are not settled yet.
    in_progress: BTreeMap<OperationId, u64>,
    outcomes: BTreeMap<OperationId, Outcomes>,
    /// Whether only the stored head of the audit trail is wrong, while every row is verified.
    pub trail_mendable: bool,
    /// The findings so far.
    pub verification: Verification,
}

impl Census {
    /// Counts a live message.
    pub fn message(&mut self, meta: &MessageMeta, lifecycle: &Lifecycle) {
        let id = meta.id;
        self.verification.messages += 1;
        self.live.insert(id);
        let counts = self.queues.entry(meta.queue.clone()).or_default();
        counts.enter(&lifecycle.phase, meta.size);
        match &lifecycle.phase {
            Phase::Waiting => {}
            Phase::Leased(_) => {
                if let Some(key) = &meta.ordering_key {
                    let place = (meta.queue.clone(), key.clone());
                    if let Some(other) = self.leased_keys.insert(place, id) {
                        let what =
                            format!("messages {other} and {id} of ordering key {key:?} are both leased");
                        self.verification.find("I30", what, false);
                    }
                }
            }
            Phase::Dead | Phase::Over(_) => {
                self.verification.find(
                    "I11",
                    format!("message {id} is finished but still in its queue"),
                    false,
                );
            }
        }
        if lifecycle.generation > 1 {
            self.redriven.insert(id);
        }
        if lifecycle.attempts > lifecycle.deliveries {
            let what = format!("message {id} has more attempts than deliveries");
            self.verification.find("I24", what, false);
        }
    }

    /// Records a damaged record that cannot be counted. `doctor --repair` sets it aside.
    pub fn damaged(&mut self, what: String) {
        self.verification.find("I46", what, true);
    }

    /// Counts a dead letter.
    pub fn letter(&mut self, meta: &MessageMeta, record: &LetterRecord) {
        self.verification.letters += 1;
        let counts = self.queues.entry(meta.queue.clone()).or_default();
        if record.status == Status::Retrying {
            self.retrying.insert(meta.id);
            if let Some(operation) = record.operation {
                *self.in_progress.entry(operation).or_default() += 1;
            }
        } else {
            // A purged letter is in a final count already and stays only so that the purge can be undone.
            counts.dead += i64::from(record.status != Status::Purged);
            if self.live.contains(&meta.id) {
                let what = format!("message {} is both live and dead", meta.id);
                self.verification.find("I32", what, false);
            }
        }
        if !record.status.is_closed() {
            let key = LeafKey { leaf: record.leaf, queue: meta.queue.clone(), kind: meta.kind.clone() };
            *self.open.entry(key).or_default() += 1;
            self.open_letters.add(OpenKey::from(meta), 1);
        }
    }

    /// Checks that every earlier content of a letter is kept, and none once the letter was erased.
    pub fn lineage(&mut self, id: MessageId, record: &LetterRecord, kept: &[u32]) {
        let expected = if record.erased.is_some() { 0 } else { record.revision() };
        if !kept.iter().copied().eq(0..expected) {
            let what = format!("letter {id} should have {expected} earlier contents, and has {}", kept.len());
            self.verification.find("I39", what, false);
        }
    }

    /// Compares an operation with the recount of its members. Every letter must have been counted before.
    pub fn operation(&mut self, operation: &Operation, counted: Outcomes) {
        let id = operation.id;
        if operation.outcomes != counted || operation.members != counted.sum() {
            let what = format!(
                "operation {id}: {} members and {}, recounted {counted}",
                operation.members, operation.outcomes
            );
            self.verification.find("I36", what, true);
            self.outcomes.insert(id, counted);
        }
        let in_progress = self.in_progress.remove(&id).unwrap_or(0);
        if in_progress != counted.running {
            let what = format!(
                "operation {id}: {} members are running, but {in_progress} letters are retried for it",
                counted.running
            );
            self.verification.find("I36", what, false);
        }
    }

    /// The recounted outcomes of operations whose stored outcomes differ, for repair.
    #[must_use]
    pub fn outcomes(&self) -> &BTreeMap<OperationId, Outcomes> {
        &self.outcomes
    }

    /// Compares the recount with the store's counters. Messages must have been counted before letters.
    pub fn compare(&mut self, shown: &BTreeMap<QueueName, Counts>, leaves: &[(LeafKey, LeafCount)]) {
        let redriven_alone: Vec<_> = self.redriven.difference(&self.retrying).copied().collect();
        for id in redriven_alone {
            let what = format!("message {id} was redriven but its letter does not say so");
            self.verification.find("I32", what, false);
        }
        let retrying_alone: Vec<_> = self.retrying.difference(&self.redriven).copied().collect();
        for id in retrying_alone {
            let what = format!("letter {id} says retrying but its message is not in any queue");
            self.verification.find("I32", what, false);
        }
        let names: BTreeSet<QueueName> = shown.keys().chain(self.queues.keys()).cloned().collect();
        for name in names {
            let counted = self.queues.get(&name).copied().unwrap_or_default();
            let stored = shown.get(&name).copied().unwrap_or_default();
            for (what, counted, stored) in [
                ("waiting", counted.waiting, stored.waiting),
                ("leased", counted.leased, stored.leased),
                ("dead", counted.dead, stored.dead),
                ("bytes", counted.bytes, stored.bytes),
            ] {
                if counted != stored {
                    let what = format!("queue {name}: {what} shows {stored}, recounted {counted}");
                    self.verification.find("I15", what, true);
                }
            }
            if !stored.conserved() {
                let what = format!(
                    "queue {name}: {} enqueued, but the states sum to another number",
                    stored.enqueued
                );
                self.verification.find("I11", what, false);
            }
        }
        let shown_open: BTreeMap<&LeafKey, i64> = leaves.iter().map(|(k, c)| (k, c.open)).collect();
        // A kind without a counter of its own is counted with the other kinds of its queue, if they have a
        // counter.
        let mut open = BTreeMap::new();
        for (key, count) in std::mem::take(&mut self.open) {
            let others = Some(key.other_kinds()).filter(|others| shown_open.contains_key(others));
            let key = others.filter(|_| !shown_open.contains_key(&key)).unwrap_or(key);
            *open.entry(key).or_insert(0) += count;
        }
        self.open = open;
        for (key, stored) in &shown_open {
            let counted = self.open.get(*key).copied().unwrap_or(0);
            if counted != *stored {
                let what = format!(
                    "leaf {} in queue {}: open shows {stored}, recounted {counted}",
                    key.leaf, key.queue
                );
                self.verification.find("I15", what, true);
            }
        }
        let unknown: Vec<String> =
            self.open.keys().filter(|k| !shown_open.contains_key(k)).map(|k| k.leaf.to_string()).collect();
        for leaf in unknown {
            self.verification.find("I15", format!("leaf {leaf} has letters but no counter"), true);
        }
    }

    /// Compares the counters of open letters with the recount. Every letter must have been counted before.
    pub fn compare_open(&mut self, shown: &OpenCounts) {
        for (key, stored, counted) in self.open_letters.differences(shown) {
            let OpenKey { queue, kind, priority } = key;
            let what = format!(
                "queue {queue}, kind {kind:?}, priority {priority}: open letters show {stored}, recounted {counted}"
            );
            self.verification.find("I15", what, true);
        }
    }

    /// The recounted open letters by queue, kind and priority, for repair.
    #[must_use]
    pub fn open_letters(&self) -> &OpenCounts {
        &self.open_letters
    }

    /// The recounted states of a queue, for repair.
    #[must_use]
    pub fn counted(&self, queue: &QueueName) -> Counts {
        self.queues.get(queue).copied().unwrap_or_default()
    }

    /// The recounted open letters by leaf, for repair.
    #[must_use]
    pub fn open(&self) -> &BTreeMap<LeafKey, i64> {
        &self.open
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{NewMessage, Payload};
    use crate::policy::QueuePolicy;
    use crate::time::Time;

    #[test]
    fn i21_a_clock_that_is_far_off_is_a_finding_that_says_how_to_set_it_right() {
        let minute = 60_000;
        for (skew, expected) in [
            (0, None),
            (minute, None),
            (-minute, None),
            (2 * minute, Some(("2m ahead", "by themselves in 4m"))),
            (-2 * minute, Some(("2m behind", "by themselves in 2m"))),
            (i64::MIN, Some(("behind", "timedatectl"))),
        ] {
            let mut verification = Verification::default();
            verification.check_clock(skew);
            assert_eq!(verification.is_clean(), expected.is_none(), "{skew}");
            if let (Some((what, mend)), [finding]) = (expected, verification.findings.as_slice()) {
                assert!(finding.what.contains(what) && finding.mend.contains(mend), "{finding:?}");
                assert!(finding.mend.contains("timedatectl set-ntp true"));
            }
        }
    }

    #[test]
    fn i11_i15_a_census_sees_what_the_counters_hide() {
        let queue: QueueName = "q".parse().unwrap();
        let new = NewMessage::new(MessageId::new(1, [1; 10]), queue.clone(), Payload::default());
        let record = new.accept(&QueuePolicy::default(), 1, Time::ZERO);
        let good = Counts { enqueued: 1, waiting: 1, ..Counts::default() };
        for (shown, findings) in [
            (good, 0),
            (Counts { waiting: 2, ..good }, 2),
            (Counts { enqueued: 2, ..good }, 1),
            (Counts { waiting: 0, leased: 1, ..good }, 2),
        ] {
            let mut census = Census::default();
            census.message(&(&record).into(), &record.lifecycle);
            census.compare(&[(queue.clone(), shown)].into(), &[]);
            assert_eq!(census.verification.findings.len(), findings, "{shown:?}");
            for finding in census.verification.findings {
                assert!(finding.mend.contains("`redrive "), "{finding:?}");
                assert_eq!(finding.mend.contains("--repair"), finding.repairable, "{finding:?}");
            }
        }
    }
}
