//! What must always hold, checked by recounting. A store walks everything it has past a [`Census`] and then
//! asks it to compare with the counters it shows. The same census runs in the model, in tests and in `doctor`.

use crate::dead_letter::{File, Status};
use crate::group::{LeafCount, LeafKey};
use crate::ids::{MessageId, OperationId, QueueName};
use crate::lifecycle::{Final, Life, Phase};
use crate::limits;
use crate::message::Slip;
use crate::metrics::{OpenCounts, OpenKey};
use crate::operation::{Operation, Outcomes};
use crate::time::Span;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// The counters of one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Accepted ever, imports included.
    pub enqueued: i64,
    /// Scheduled or ready.
    pub waiting: i64,
    /// With workers.
    pub leased: i64,
    /// Dead letters that are not being retried, closed ones included.
    pub dead: i64,
    /// Acknowledged ever.
    pub done: i64,
    /// Taken back ever.
    pub cancelled: i64,
    /// Dropped because their time was over.
    pub expired: i64,
    /// Removed ever.
    pub purged: i64,
    /// Payload bytes of waiting and leased messages.
    pub bytes: i64,
}

impl Counts {
    /// Conservation: whatever came in is somewhere, or in a final count (I11).
    #[must_use]
    pub const fn conserved(&self) -> bool {
        self.missing() == 0
    }

    /// How many came in that are nowhere.
    #[must_use]
    pub const fn missing(&self) -> i64 {
        let live = self.waiting + self.leased + self.dead;
        self.enqueued - live - self.done - self.cancelled - self.expired - self.purged
    }

    /// Takes one message from here: the first half of every move.
    pub fn leave(&mut self, phase: &Phase, size: u64) {
        self.shift(phase, -1, size);
    }

    /// Puts one message there: the second half.
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

    /// Adds a change made elsewhere.
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

/// Something that does not hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The invariant, by number.
    pub invariant: String,
    /// What was found, with ids.
    pub what: String,
    /// Whether `doctor --repair` can mend it: what can be made again from the rest is, and damaged records are set aside.
    pub repairable: bool,
    /// The command that mends it.
    #[serde(default)]
    pub mend: String,
}

/// The command that mends what can be made again from the rest.
pub const REPAIR: &str = "`redrive doctor --repair`";
/// What mends a store that has lost something.
const RESTORE: &str = "`redrive --data NEW_DIR restore BACKUP_DIR`, with the last backup from before it; then go on \
                       with `--data NEW_DIR`";

/// What a check looked at and what it found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verification {
    /// Live messages walked.
    pub messages: u64,
    /// Dead letters walked.
    pub letters: u64,
    /// Payloads read and compared with their checksum.
    pub payloads: u64,
    /// Failures walked.
    pub failures: u64,
    /// Audit rows checked.
    pub audit_rows: u64,
    /// What does not hold; empty is good. At most [`limits::FINDINGS_MAX`] are listed.
    pub findings: Vec<Finding>,
    /// How many there are in all.
    pub findings_total: u64,
    /// Counters that were set right.
    pub repaired: u64,
}

impl Verification {
    /// Notes a finding.
    pub fn find(&mut self, invariant: &str, what: impl Into<String>, repairable: bool) {
        let mend = if repairable { REPAIR } else { RESTORE };
        self.note(Finding { invariant: invariant.into(), what: what.into(), repairable, mend: mend.into() });
    }

    /// Notes a finding that a command of its own mends.
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

    /// Notes how far the store's clock is ahead of the machine's, if that is far.
    pub fn skew(&mut self, ahead_ms: i64) {
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

    /// Whether everything holds.
    #[must_use]
    pub const fn is_clean(&self) -> bool {
        self.findings_total == 0
    }
}

/// A recount of everything.
#[derive(Debug, Default)]
pub struct Census {
    queues: BTreeMap<QueueName, Counts>,
    open: BTreeMap<LeafKey, i64>,
    open_letters: OpenCounts,
    redriven: HashSet<MessageId>,
    retrying: HashSet<MessageId>,
    live: HashSet<MessageId>,
    leased_keys: HashMap<(QueueName, String), MessageId>,
    /// Letters that an operation sent back and that are not settled.
    under_way: BTreeMap<OperationId, u64>,
    outcomes: BTreeMap<OperationId, Outcomes>,
    /// Whether only the stored head of the audit trail is wrong, and every row of it is proved.
    pub trail_mendable: bool,
    /// What was found on the way.
    pub verification: Verification,
}

impl Census {
    /// Counts one live message.
    pub fn message(&mut self, slip: &Slip, life: &Life) {
        let id = slip.id;
        self.verification.messages += 1;
        self.live.insert(id);
        let counts = self.queues.entry(slip.queue.clone()).or_default();
        counts.enter(&life.phase, slip.size);
        match &life.phase {
            Phase::Waiting => {}
            Phase::Leased(_) => {
                if let Some(key) = &slip.ordering_key {
                    let place = (slip.queue.clone(), key.clone());
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
        if life.generation > 1 {
            self.redriven.insert(id);
        }
        if life.attempts > life.deliveries {
            let what = format!("message {id} has more attempts than deliveries");
            self.verification.find("I24", what, false);
        }
    }

    /// Notes a record that cannot be counted because it is damaged. `doctor --repair` sets it aside.
    pub fn damaged(&mut self, what: String) {
        self.verification.find("I46", what, true);
    }

    /// Counts one dead letter.
    pub fn letter(&mut self, slip: &Slip, file: &File) {
        self.verification.letters += 1;
        let counts = self.queues.entry(slip.queue.clone()).or_default();
        if file.status == Status::Retrying {
            self.retrying.insert(slip.id);
            if let Some(operation) = file.operation {
                *self.under_way.entry(operation).or_default() += 1;
            }
        } else {
            // A purged one is in a final count already, and lies here only to be taken back.
            counts.dead += i64::from(file.status != Status::Purged);
            if self.live.contains(&slip.id) {
                let what = format!("message {} is both live and dead", slip.id);
                self.verification.find("I32", what, false);
            }
        }
        if !file.status.is_closed() {
            let key = LeafKey { leaf: file.leaf, queue: slip.queue.clone(), kind: slip.kind.clone() };
            *self.open.entry(key).or_default() += 1;
            self.open_letters.add(OpenKey::from(slip), 1);
        }
    }

    /// Checks that the earlier contents of a letter are kept, all of them, and none once it was erased.
    pub fn lineage(&mut self, id: MessageId, file: &File, kept: &[u32]) {
        let told = if file.erased.is_some() { 0 } else { file.revision() };
        if !kept.iter().copied().eq(0..told) {
            let what = format!("letter {id} should have {told} earlier contents, and has {}", kept.len());
            self.verification.find("I39", what, false);
        }
    }

    /// Compares an operation with its members, counted. Letters must have been walked before.
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
        let under_way = self.under_way.remove(&id).unwrap_or(0);
        if under_way != counted.running {
            let what = format!(
                "operation {id}: {} members are running, but {under_way} letters are retried for it",
                counted.running
            );
            self.verification.find("I36", what, false);
        }
    }

    /// The recounted outcomes of operations that show others, for repair.
    #[must_use]
    pub fn outcomes(&self) -> &BTreeMap<OperationId, Outcomes> {
        &self.outcomes
    }

    /// Compares the recount with the counters shown. Messages must have been walked before letters.
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
            let says = shown.get(&name).copied().unwrap_or_default();
            for (what, counted, says) in [
                ("waiting", counted.waiting, says.waiting),
                ("leased", counted.leased, says.leased),
                ("dead", counted.dead, says.dead),
                ("bytes", counted.bytes, says.bytes),
            ] {
                if counted != says {
                    let what = format!("queue {name}: {what} shows {says}, recounted {counted}");
                    self.verification.find("I15", what, true);
                }
            }
            if !says.conserved() {
                let what =
                    format!("queue {name}: {} enqueued, but the states sum to another number", says.enqueued);
                self.verification.find("I11", what, false);
            }
        }
        let shown_open: BTreeMap<&LeafKey, i64> = leaves.iter().map(|(k, c)| (k, c.open)).collect();
        // A kind without a counter of its own is counted with the others of its queue, where there are such.
        let mut open = BTreeMap::new();
        for (key, count) in std::mem::take(&mut self.open) {
            let others = Some(key.other_kinds()).filter(|others| shown_open.contains_key(others));
            let key = others.filter(|_| !shown_open.contains_key(&key)).unwrap_or(key);
            *open.entry(key).or_insert(0) += count;
        }
        self.open = open;
        for (key, says) in &shown_open {
            let counted = self.open.get(*key).copied().unwrap_or(0);
            if counted != *says {
                let what = format!(
                    "leaf {} in queue {}: open shows {says}, recounted {counted}",
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

    /// Compares the counters of open letters with the letters, which must have been walked before.
    pub fn compare_open(&mut self, shown: &OpenCounts) {
        for (key, says, counted) in self.open_letters.differences(shown) {
            let OpenKey { queue, kind, priority } = key;
            let what = format!(
                "queue {queue}, kind {kind:?}, priority {priority}: open letters show {says}, recounted {counted}"
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

    /// The recounted open letters, for repair.
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
        for (skew, says) in [
            (0, None),
            (minute, None),
            (-minute, None),
            (2 * minute, Some(("2m ahead", "by themselves in 4m"))),
            (-2 * minute, Some(("2m behind", "by themselves in 2m"))),
            (i64::MIN, Some(("behind", "timedatectl"))),
        ] {
            let mut verification = Verification::default();
            verification.skew(skew);
            assert_eq!(verification.is_clean(), says.is_none(), "{skew}");
            if let (Some((what, mend)), [finding]) = (says, verification.findings.as_slice()) {
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
            census.message(&(&record).into(), &record.life);
            census.compare(&[(queue.clone(), shown)].into(), &[]);
            assert_eq!(census.verification.findings.len(), findings, "{shown:?}");
            for finding in census.verification.findings {
                assert!(finding.mend.contains("`redrive "), "{finding:?}");
                assert_eq!(finding.mend.contains("--repair"), finding.repairable, "{finding:?}");
            }
        }
    }
}
