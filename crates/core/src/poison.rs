//! Poison: a message that breaks every worker that runs it. A failing message carries [`Indicators`], a group
//! has a [`GroupHistory`], and [`assess`] turns them into a [`PoisonVerdict`]: hard rules first, then a score.
//!
//! Two mistakes must not happen. A message that merely ran on a worker that crashed is not condemned: it is a
//! *suspect* and runs alone ([`Isolation`]) until it succeeds or has crashed often enough by itself. And an
//! outage is not taken for poison: if other messages fail the same way, the cause is systematic. Everything
//! here is pure; a store keeps the state and asks.

use crate::classify::OutcomeStats;
use crate::failure::{AnalysedFailure, Category};
use crate::ids::{LeafId, MessageId};
use crate::limits;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// This many failures in a row with the same signature, on at least two workers, are poison.
pub const SAME_OVER_WORKERS: u32 = 5;
/// This many failures in a row with the same signature are poison on any number of workers.
pub const SAME_ANYWHERE: u32 = 10;
/// This many crashes or expired leases are poison.
pub const CRASHES: u32 = 3;
/// If this many other messages of the group failed lately, the cause is systematic.
pub const OTHERS_SYSTEMATIC: u32 = 3;
/// How long the failures of other messages in the group count.
pub const OTHERS_WITHIN: Span = Span::from_hours(24);
/// A delivery that takes longer than this is slow.
const SLOW: Span = Span::from_secs(10);
/// A suspect that has waited longer than this justifies draining a worker.
const SUSPECT_WAIT_MAX: Span = Span::from_secs(10);
/// How long a worker is drained for a suspect. After that it gets messages again, and no worker is drained for
/// the same time.
const DRAIN_FOR: Span = Span::from_secs(30);
/// While suspects have waited too long, one in this many calls of idle workers is served the oldest of them.
const SUSPECT_SHARE: u32 = 8;

/// How a queue treats poison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PoisonPolicy {
    /// Whether poison detection is on.
    pub detect: bool,
    /// How long a poison message stays in quarantine.
    #[serde(rename = "quarantine_ms", alias = "quarantine")]
    pub quarantine: Span,
    /// Where the letter goes when its quarantine ends.
    pub release: Release,
}

impl Default for PoisonPolicy {
    fn default() -> Self {
        Self { detect: true, quarantine: Span::from_hours(24), release: Release::Review }
    }
}

/// Where a letter goes when its quarantine ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Release {
    /// The letter waits for review.
    #[default]
    Review,
    /// The message goes back to its queue.
    Queue,
}

/// A small number for a name. It distinguishes a handful of workers, but does not identify one.
fn fingerprint(name: &str) -> u32 {
    // FNV-1a spreads short names well and is the same on every machine and in every version.
    name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

fn note(list: &mut Vec<u32>, name: &str) {
    let mark = fingerprint(name);
    if !list.contains(&mark) && list.len() < limits::INDICATORS_MAX {
        list.push(mark);
    }
}

fn count(list: &[u32]) -> u32 {
    u32::try_from(list.len()).unwrap_or(u32::MAX)
}

/// What a message carries from failure to failure. A redrive resets it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Indicators {
    /// Failures in a row.
    pub failures: u32,
    /// How many of the latest failures have the same signature.
    pub same: u32,
    /// The signature of the latest failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaf: Option<LeafId>,
    /// The workers that saw the latest signature, as fingerprints.
    same_workers: Vec<u32>,
    /// All workers that the message failed on.
    workers: Vec<u32>,
    /// The error types that the message failed with.
    kinds: Vec<u32>,
    /// The signatures that the message failed with.
    leaves: Vec<u32>,
    /// Workers that crashed and leases that expired while they held the message.
    pub crashes: u32,
    /// When the message first failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_at: Option<Time>,
    /// When the message last failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_at: Option<Time>,
    /// The highest use of processor and memory by one delivery, in hundredths; 200 is all of both.
    pub resources: u32,
    /// The duration of the longest delivery.
    #[serde(rename = "slowest_ms")]
    pub slowest: Span,
}

impl Indicators {
    /// The indicators after one more failure. `same` says whether its signature belongs to the same group as
    /// the previous one.
    #[must_use]
    pub fn after(&self, failure: &AnalysedFailure, same: bool, worker: Option<&str>, now: Time) -> Self {
        let mut next = self.clone();
        next.failures = next.failures.saturating_add(1);
        if !same {
            next.same = 0;
            next.same_workers.clear();
        }
        next.same = next.same.saturating_add(1);
        next.leaf = Some(failure.signature.leaf);
        if let Some(worker) = worker {
            note(&mut next.same_workers, worker);
            note(&mut next.workers, worker);
        }
        note(&mut next.kinds, &failure.report.error.error_type);
        note(&mut next.leaves, &failure.signature.leaf.to_string());
        next.crashes = next.crashes.saturating_add(u32::from(failure.crashed()));
        next.first_at = next.first_at.or(Some(now));
        next.last_at = Some(now);
        next.resources = next.resources.max(resources(failure));
        next.slowest = next.slowest.max(failure.report.duration.unwrap_or(Span::ZERO));
        next
    }

    /// Whether a worker crashed or lost its lease on this message. Such a message runs alone.
    #[must_use]
    pub const fn is_suspect(&self) -> bool {
        self.crashes > 0
    }

    /// The number of distinct workers that the message failed on, up to [`limits::INDICATORS_MAX`].
    #[must_use]
    pub fn distinct_workers(&self) -> u32 {
        count(&self.workers)
    }

    /// The number of distinct error types that the message failed with.
    #[must_use]
    pub fn distinct_kinds(&self) -> u32 {
        count(&self.kinds)
    }

    /// The number of distinct signatures that the message failed with.
    #[must_use]
    pub fn distinct_leaves(&self) -> u32 {
        count(&self.leaves)
    }

    /// The time between the first failure and the latest.
    #[must_use]
    pub fn spread(&self) -> Span {
        match (self.first_at, self.last_at) {
            (Some(first), Some(last)) => last.since(first),
            (_, _) => Span::ZERO,
        }
    }

    /// How much the message looks like poison, from 0 to 1.
    #[must_use]
    pub fn score(&self) -> f64 {
        let share = |n: u32, full: u32| f64::from(n.min(full)) / f64::from(full);
        0.30 * share(self.failures, 5)
            + 0.25 * share(self.distinct_workers(), 3)
            + 0.20 * share(self.distinct_kinds(), 4)
            + 0.15 * share(self.resources, 200)
            + 0.10 * f64::from(u8::from(self.slowest > SLOW))
    }
}

/// How close a message is to being classified as poison; part of the public view of a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Suspicion {
    /// From 0 to 1. Above 0.4 the message is watched, above 0.6 its retries are throttled, above 0.8 it is
    /// quarantined.
    pub score: f64,
    /// Whether the next attempt waits longer because of the score.
    pub throttled: bool,
    /// Whether only a worker without other leases gets the message, because a worker crashed on it.
    pub runs_alone: bool,
    /// What the score is based on, in words.
    pub reason: String,
}

impl Indicators {
    /// Whether retries wait longer because of the score.
    #[must_use]
    pub fn is_throttled(&self) -> bool {
        self.failures > 0 && self.score() > THROTTLE_ABOVE
    }

    /// The public view of the indicators. `None` while the failures of the message are unsuspicious.
    #[must_use]
    pub fn suspicion(&self) -> Option<Suspicion> {
        let score = if self.failures > 0 { self.score() } else { 0.0 };
        let runs_alone = self.is_suspect();
        if score <= MONITOR_ABOVE {
            return None;
        }
        let mut reason = format!(
            "{} failures in a row on {} workers with {} types of errors",
            self.failures,
            self.distinct_workers(),
            self.distinct_kinds()
        );
        if self.slowest > SLOW {
            reason.push_str(&format!(", taking up to {}", self.slowest));
        }
        if self.crashes > 0 {
            reason.push_str(&format!("; {} workers died or lost their lease with it", self.crashes));
        }
        // Two digits, as the score is shown everywhere.
        let score = (score * 100.0).round() / 100.0;
        Some(Suspicion { score, throttled: self.is_throttled(), runs_alone, reason })
    }
}

/// The score above which a message is watched.
const MONITOR_ABOVE: f64 = 0.4;
/// The score above which the retries of a message are throttled.
const THROTTLE_ABOVE: f64 = 0.6;
/// The score above which a message is quarantined.
const QUARANTINE_ABOVE: f64 = 0.8;

/// What a delivery used: the share of a processor while it ran, plus 100 if it failed because a resource ran
/// out. Implausible reports count as 0.
fn resources(failure: &AnalysedFailure) -> u32 {
    let seconds = failure.report.duration.map_or(0.0, |d| d.to_std().as_secs_f64());
    let cpu = failure.report.cpu.filter(|cpu| cpu.is_finite() && *cpu > 0.0 && seconds > 0.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to 0 to 100")]
    let cpu = cpu.map_or(0, |cpu| (cpu / seconds * 100.0).clamp(0.0, 100.0) as u32);
    cpu + if failure.category == Category::Resource { 100 } else { 0 }
}

/// What the indicators of a message call for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoisonVerdict {
    /// The message is unsuspicious.
    Continue,
    /// The message is watched.
    Monitor,
    /// The next attempt waits at least this long.
    Throttle(Span),
    /// The message is not at fault: many others fail the same way.
    Systematic,
    /// The message is poison and goes to quarantine.
    Quarantine {
        /// The reason, in words.
        why: String,
        /// Whether workers crashed on the message, which no exclude rule excuses.
        crashed: bool,
    },
}

/// Judges a message by its indicators, which include the latest failure. `others` is the number of other
/// messages in its group that failed lately.
#[must_use]
pub fn assess(seen: &Indicators, others: u32) -> PoisonVerdict {
    if seen.crashes >= CRASHES {
        let why = format!("{} workers died or lost their lease with it", seen.crashes);
        return PoisonVerdict::Quarantine { why, crashed: true };
    }
    let over_workers = seen.same >= SAME_OVER_WORKERS && count(&seen.same_workers) >= 2;
    if over_workers || seen.same >= SAME_ANYWHERE {
        if others >= OTHERS_SYSTEMATIC {
            return PoisonVerdict::Systematic;
        }
        let workers = count(&seen.same_workers);
        let why = format!("the same failure {} times in a row on {workers} workers", seen.same);
        return PoisonVerdict::Quarantine { why, crashed: false };
    }
    let score = seen.score();
    if score > QUARANTINE_ABOVE {
        let why = format!("score {score:.2} of 1 over {} failures", seen.failures);
        PoisonVerdict::Quarantine { why, crashed: false }
    } else if score > THROTTLE_ABOVE {
        PoisonVerdict::Throttle(Span::from_secs(60).times(u64::from(seen.failures)).min(Span::from_secs(300)))
    } else if score > MONITOR_ABOVE {
        PoisonVerdict::Monitor
    } else {
        PoisonVerdict::Continue
    }
}

/// A recent failure of a message, remembered by its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "KeptWitness", into = "KeptWitness")]
struct Witness {
    id: MessageId,
    worker: u32,
    at: Time,
}

/// The serialized form of a witness. Every failure writes the witnesses of its group, so this form is short:
/// the two halves of the id, the worker, and milliseconds. Stores once wrote the named form, and it can still
/// be read.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum KeptWitness {
    Short(u64, u64, u32, i64),
    Named { id: MessageId, worker: u32, at: Time },
}

impl From<KeptWitness> for Witness {
    fn from(kept: KeptWitness) -> Self {
        match kept {
            KeptWitness::Short(high, low, worker, at) => Self {
                id: MessageId::from_bytes((u128::from(high) << 64 | u128::from(low)).to_be_bytes()),
                worker,
                at: Time::from_millis(at),
            },
            KeptWitness::Named { id, worker, at } => Self { id, worker, at },
        }
    }
}

impl From<Witness> for KeptWitness {
    fn from(witness: Witness) -> Self {
        let id = witness.id.to_bytes();
        let half = |from: usize| {
            let bytes = id.iter().skip(from).take(8);
            bytes.fold(0, |half, byte| half << 8 | u64::from(*byte))
        };
        Self::Short(half(0), half(8), witness.worker, witness.at.as_millis())
    }
}

/// The history of a group beside its counters: which messages failed lately, and how redrives ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupHistory {
    witnesses: VecDeque<Witness>,
    /// What redrives and operators showed about the group.
    #[serde(rename = "lessons")]
    pub outcome_stats: OutcomeStats,
}

impl GroupHistory {
    /// Records one more failure of the group. Each message is remembered once, with its latest failure.
    pub fn record_failure(&mut self, id: MessageId, worker: Option<&str>, now: Time) {
        self.witnesses.retain(|w| w.id != id);
        if self.witnesses.len() >= limits::WITNESSES_MAX {
            self.witnesses.pop_front();
        }
        self.witnesses.push_back(Witness { id, worker: worker.map_or(0, fingerprint), at: now });
    }

    /// The number of other messages that failed within this time, up to [`limits::WITNESSES_MAX`].
    #[must_use]
    pub fn others(&self, id: MessageId, within: Span, now: Time) -> u32 {
        let lately = self.witnesses.iter().filter(|w| w.id != id && now.since(w.at) <= within);
        u32::try_from(lately.count()).unwrap_or(u32::MAX)
    }

    /// The number of workers that saw a failure within this time.
    #[must_use]
    pub fn workers(&self, within: Span, now: Time) -> u32 {
        let mut marks: Vec<u32> =
            self.witnesses.iter().filter(|w| now.since(w.at) <= within).map(|w| w.worker).collect();
        marks.sort_unstable();
        marks.dedup();
        count(&marks)
    }

    /// The share of this time over which the failures are spread. A burst is near 0.
    #[must_use]
    pub fn spread(&self, within: Span, now: Time) -> f64 {
        let mut lately = self.witnesses.iter().map(|w| w.at).filter(|at| now.since(*at) <= within);
        let Some(first) = lately.next() else { return 0.0 };
        now.since(first).to_std().as_secs_f64() / within.to_std().as_secs_f64().max(0.001)
    }

    /// The history of two groups that turned out to be one.
    #[must_use]
    pub fn joined(mut self, other: Self) -> Self {
        for witness in other.witnesses {
            if !self.witnesses.iter().any(|w| w.id == witness.id) {
                self.witnesses.push_back(witness);
            }
        }
        self.witnesses.make_contiguous().sort_by_key(|w| w.at);
        while self.witnesses.len() > limits::WITNESSES_MAX {
            self.witnesses.pop_front();
        }
        self.outcome_stats = self.outcome_stats.and(other.outcome_stats);
        self
    }
}

/// The leases that a worker holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerLoad {
    /// Live leases.
    pub leases: usize,
    /// Live leases on suspects.
    pub suspects: usize,
}

/// Which messages a worker may get now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Any message. A suspect only as the first of a batch, which then ends.
    Anything,
    /// The suspect that has waited longest, before anything else.
    SuspectFirst,
    /// Any message except suspects.
    NoSuspects,
    /// No message: the worker runs a suspect, or is being drained to run one.
    Nothing,
}

/// Makes sure that suspects run alone, and that they do run. At most one worker at a time is drained for them.
#[derive(Clone, Debug, Default)]
pub struct Isolation {
    /// The worker that is being drained, and since when.
    draining: Option<(String, Time)>,
    /// How many idle workers were served normally since a suspect came first.
    served_normally: u32,
}

impl Isolation {
    /// Decides what this worker may get. `oldest_suspect` is the time at which the longest waiting suspect that
    /// could be leased became ready.
    pub fn admit(
        &mut self,
        worker: &str,
        load: WorkerLoad,
        oldest_suspect: Option<Time>,
        now: Time,
    ) -> Admission {
        if load.suspects > 0 {
            return Admission::Nothing;
        }
        let waits_long = oldest_suspect.is_some_and(|since| now.since(since) > SUSPECT_WAIT_MAX);
        if load.leases == 0 {
            self.draining = self.draining.take().filter(|(name, _)| name != worker);
            return self.admit_idle(waits_long);
        }
        match &self.draining {
            // The worker is being drained, whichever queues it asks for.
            Some((name, since)) if name == worker && now.since(*since) <= DRAIN_FOR => Admission::Nothing,
            // Another worker is being drained, or the draining of one ended in vain a short while ago.
            Some((_, since)) if now.since(*since) <= DRAIN_FOR.times(2) => Admission::NoSuspects,
            Some(_) | None if waits_long => {
                self.draining = Some((worker.to_owned(), now));
                Admission::Nothing
            }
            Some(_) | None => Admission::NoSuspects,
        }
    }

    /// Suspects that have waited too long get their share of idle workers, and no more, so that other messages
    /// are still served.
    fn admit_idle(&mut self, waits_long: bool) -> Admission {
        if waits_long && self.served_normally >= SUSPECT_SHARE {
            self.served_normally = 0;
            return Admission::SuspectFirst;
        }
        self.served_normally = if waits_long { self.served_normally + 1 } else { SUSPECT_SHARE };
        Admission::Anything
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{ErrorInfo, FailureReport};

    const NOW: Time = Time::from_millis(1_000_000);

    fn failure(error_type: &str) -> AnalysedFailure {
        let error = ErrorInfo { error_type: error_type.into(), message: "no".into(), ..ErrorInfo::default() };
        FailureReport { error, ..FailureReport::default() }.analyse()
    }

    fn id(n: u64) -> MessageId {
        MessageId::new(n, [0; 10])
    }

    #[test]
    fn the_hard_rules_apply_in_order() {
        let seen = |same: u32, workers: &[&str], crashes: u32| {
            let mut seen = Indicators { same, crashes, ..Indicators::default() };
            workers.iter().for_each(|worker| note(&mut seen.same_workers, worker));
            seen
        };
        let poison = |finding: PoisonVerdict| matches!(finding, PoisonVerdict::Quarantine { .. });
        assert!(!poison(assess(&seen(4, &["a", "b"], 2), 0)));
        assert!(poison(assess(&seen(5, &["a", "b"], 0), 2)));
        assert!(!poison(assess(&seen(9, &["a"], 0), 0)));
        assert!(poison(assess(&seen(10, &["a"], 0), 2)));
        assert_eq!(assess(&seen(10, &["a"], 0), 3), PoisonVerdict::Systematic);
        assert_eq!(assess(&seen(5, &["a", "b"], 0), 3), PoisonVerdict::Systematic);
        let crashed = assess(&seen(1, &["a"], 3), 100);
        assert!(matches!(crashed, PoisonVerdict::Quarantine { crashed: true, .. }), "{crashed:?}");
    }

    #[test]
    fn the_score_is_the_sum_of_its_five_parts() {
        let mut seen = Indicators { failures: 5, ..Indicators::default() };
        assert!((seen.score() - 0.30).abs() < 1e-9);
        ["a", "b", "c", "d"].iter().for_each(|name| note(&mut seen.workers, name));
        assert!((seen.score() - 0.55).abs() < 1e-9);
        ["a", "b", "c", "d"].iter().for_each(|name| note(&mut seen.kinds, name));
        assert!((seen.score() - 0.75).abs() < 1e-9);
        assert_eq!(assess(&seen, 0), PoisonVerdict::Throttle(Span::from_secs(300)));
        seen.slowest = Span::from_millis(10_001);
        assert!((seen.score() - 0.85).abs() < 1e-9);
        assert!(matches!(assess(&seen, 0), PoisonVerdict::Quarantine { crashed: false, .. }));
        seen.resources = 200;
        assert!((seen.score() - 1.0).abs() < 1e-9);
        let few = Indicators { failures: 2, workers: vec![1, 2, 3], ..Indicators::default() };
        assert_eq!(assess(&few, 0), PoisonVerdict::Continue);
        let watched = Indicators { kinds: vec![1, 2], ..few };
        assert_eq!(assess(&watched, 0), PoisonVerdict::Monitor);
    }

    #[test]
    fn indicators_grow_with_failures_and_stay_small() {
        let mut seen = Indicators::default();
        for n in 0..1_000 {
            let mut bad = failure(&format!("E{n}"));
            bad.report.cpu = Some(f64::NAN);
            bad.report.duration = Some(Span::from_secs(1));
            seen = seen.after(&bad, n % 3 != 0, Some(&format!("w{n}")), NOW);
        }
        assert_eq!((seen.failures, seen.same), (1_000, 1));
        assert_eq!((seen.distinct_workers(), seen.distinct_kinds()), (8, 8));
        assert!(serde_json::to_string(&seen).unwrap().len() < 900);
        let mut busy = failure("E");
        (busy.report.cpu, busy.report.duration) = (Some(30.0), Some(Span::from_secs(60)));
        assert_eq!(seen.after(&busy, true, None, NOW).resources, 50);
        busy.report.cpu = Some(f64::INFINITY);
        assert_eq!(resources(&busy), 0);
    }

    #[test]
    fn a_group_remembers_the_latest_messages_and_forgets_the_oldest() {
        let mut history = GroupHistory::default();
        for n in 0..100 {
            history.record_failure(id(n % 20), Some("w"), NOW.plus(Span::from_secs(n)));
        }
        let later = NOW.plus(Span::from_secs(100));
        assert_eq!(history.others(id(99), Span::from_hours(1), later), 16);
        assert_eq!(history.others(id(19), Span::from_secs(3), later), 2, "itself is not another");
        assert_eq!(history.workers(Span::from_hours(1), later), 1);
        let mut other = GroupHistory::default();
        other.record_failure(id(500), Some("x"), later);
        let both = history.joined(other);
        assert_eq!(both.witnesses.len(), limits::WITNESSES_MAX);
        assert_eq!(both.workers(Span::from_secs(1), later), 2);
    }

    #[test]
    fn workers_are_drained_for_a_suspect_one_at_a_time_and_not_for_ever() {
        let mut isolation = Isolation::default();
        let (busy, idle, old) = (WorkerLoad { leases: 2, suspects: 0 }, WorkerLoad::default(), Some(NOW));
        let at = |seconds| NOW.plus(Span::from_secs(seconds));
        assert_eq!(isolation.admit("a", idle, None, at(5)), Admission::Anything);
        assert_eq!(isolation.admit("a", idle, old, at(5)), Admission::Anything);
        assert_eq!(isolation.admit("a", busy, old, at(5)), Admission::NoSuspects);
        assert_eq!(
            isolation.admit("a", WorkerLoad { leases: 1, suspects: 1 }, None, at(5)),
            Admission::Nothing
        );
        assert_eq!(isolation.admit("a", busy, old, at(11)), Admission::Nothing);
        assert_eq!(isolation.admit("a", busy, None, at(12)), Admission::Nothing, "for any queue");
        assert_eq!(
            isolation.admit("b", busy, old, at(13)),
            Admission::NoSuspects,
            "one drained worker is enough"
        );
        assert_eq!(isolation.admit("a", busy, old, at(42)), Admission::NoSuspects, "draining took too long");
        assert_eq!(
            isolation.admit("b", busy, old, at(60)),
            Admission::NoSuspects,
            "no other worker for a while"
        );
        assert_eq!(isolation.admit("b", busy, old, at(75)), Admission::Nothing, "then another worker");
    }

    #[test]
    fn suspects_that_wait_too_long_get_a_share_of_idle_workers() {
        let mut isolation = Isolation::default();
        let served: Vec<Admission> = (0..28)
            .map(|_| isolation.admit("a", WorkerLoad::default(), Some(NOW), NOW.plus(Span::from_secs(11))))
            .collect();
        assert_eq!(served.iter().filter(|a| **a == Admission::SuspectFirst).count(), 3);
        assert_eq!(served[8], Admission::SuspectFirst);
    }
}
