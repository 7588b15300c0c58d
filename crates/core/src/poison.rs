//! Poison: a message that breaks whoever touches it. [`Indicators`] are what a failing message carries with it,
//! [`Standing`] is what is known of its group, [`assess`] is the finding: hard rules first, then a score.
//!
//! It must not condemn the bystanders. A message that was in the hands of a crashing worker is only *suspect*:
//! it runs alone ([`Isolation`]) until it succeeds or has crashed often enough by itself. And it must not take
//! an outage for poison: when other messages fail the same way the cause is systematic, not this message.
//! Pure: a store keeps what is here and asks.

use crate::classify::Lessons;
use crate::failure::{Analysed, Category};
use crate::ids::{LeafId, MessageId};
use crate::limits;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// The same signature so often in a row, seen by at least two workers, is poison.
pub const SAME_OVER_WORKERS: u32 = 5;
/// The same signature so often in a row is poison on any number of workers.
pub const SAME_ANYWHERE: u32 = 10;
/// So many crashes or lost leases are poison.
pub const CRASHES: u32 = 3;
/// So many other messages of the group make a cause systematic.
pub const OTHERS_SYSTEMATIC: u32 = 3;
/// Others of the group count for so long.
pub const OTHERS_WITHIN: Span = Span::from_hours(24);
/// A delivery longer than this was slow.
const SLOW: Span = Span::from_secs(10);
/// A suspect that has waited so long is worth emptying a worker for.
const SUSPECT_WAITS: Span = Span::from_secs(10);
/// A worker is emptied for a suspect for so long at most; then it works on, and nobody is emptied for as long.
const DRAIN_FOR: Span = Span::from_secs(30);
/// Of so many calls of idle workers while suspects wait long, one is served the oldest of them.
const SUSPECT_SHARE: u32 = 8;

/// What a queue does about poison.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PoisonPolicy {
    /// Whether messages are judged by their indicators at all.
    pub detect: bool,
    /// How long a poison message is set aside.
    #[serde(rename = "quarantine_ms", alias = "quarantine")]
    pub quarantine: Span,
    /// Where it goes when that time is over.
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
    /// A person looks at it.
    #[default]
    Review,
    /// Back to work.
    Queue,
}

/// A name as a small number: enough to tell a handful of workers apart, not to find one.
fn fingerprint(name: &str) -> u32 {
    // FNV-1a: short names spread well, and it is the same on every machine and in every version.
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

/// What a message carries from failure to failure. A redrive starts it afresh; success ends the message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Indicators {
    /// Failures in a row.
    pub failures: u32,
    /// How many of the latest have one signature.
    pub same: u32,
    /// That signature.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leaf: Option<LeafId>,
    /// Workers that saw it, as fingerprints.
    same_workers: Vec<u32>,
    /// All workers it failed on.
    workers: Vec<u32>,
    /// Error types it failed with.
    kinds: Vec<u32>,
    /// Signatures it failed with.
    leaves: Vec<u32>,
    /// Workers that died with it, and leases that ran out.
    pub crashes: u32,
    /// The first failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_at: Option<Time>,
    /// The latest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_at: Option<Time>,
    /// The most it used of processor and memory together, in hundredths; 200 is all of both.
    pub resources: u32,
    /// The longest it took.
    #[serde(rename = "slowest_ms")]
    pub slowest: Span,
}

impl Indicators {
    /// The indicators with one more failure. `same` says whether its signature is of the same group as the
    /// one before.
    #[must_use]
    pub fn after(&self, failure: &Analysed, same: bool, worker: Option<&str>, now: Time) -> Self {
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

    /// Whether it was in the hands of a worker that died: such a message runs alone.
    #[must_use]
    pub const fn is_suspect(&self) -> bool {
        self.crashes > 0
    }

    /// Distinct workers it failed on; from [`limits::INDICATORS_MAX`] on that is "many".
    #[must_use]
    pub fn distinct_workers(&self) -> u32 {
        count(&self.workers)
    }

    /// Distinct error types it failed with.
    #[must_use]
    pub fn distinct_kinds(&self) -> u32 {
        count(&self.kinds)
    }

    /// Distinct signatures it failed with.
    #[must_use]
    pub fn distinct_leaves(&self) -> u32 {
        count(&self.leaves)
    }

    /// From the first failure to the latest.
    #[must_use]
    pub fn spread(&self) -> Span {
        match (self.first_at, self.last_at) {
            (Some(first), Some(last)) => last.since(first),
            (_, _) => Span::ZERO,
        }
    }

    /// How much it looks like poison, from 0 to 1.
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

/// How close a message is to being taken for poison, for people.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Suspicion {
    /// From 0 to 1: beyond 0.4 it is watched, beyond 0.6 its retries are throttled, beyond 0.8 it is quarantined.
    pub score: f64,
    /// Whether its next attempt waits longer because of the score.
    pub throttled: bool,
    /// Whether it is given only to a worker with nothing else in its hands, because a worker died with it.
    pub runs_alone: bool,
    /// What the score is made of, in words.
    pub reason: String,
}

impl Indicators {
    /// Whether retries wait longer because of the score.
    #[must_use]
    pub fn is_throttled(&self) -> bool {
        self.failures > 0 && self.score() > THROTTLE_ABOVE
    }

    /// What people are told about it; nothing while it fails as others do.
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
        // Two digits, as everywhere it is shown.
        let score = (score * 100.0).round() / 100.0;
        Some(Suspicion { score, throttled: self.is_throttled(), runs_alone, reason })
    }
}

/// The score beyond which a message is watched.
const MONITOR_ABOVE: f64 = 0.4;
/// The score beyond which its retries are throttled.
const THROTTLE_ABOVE: f64 = 0.6;
/// The score beyond which it is quarantined.
const QUARANTINE_ABOVE: f64 = 0.8;

/// What one delivery used: the share of a processor while it ran, and a whole one more if it failed for want
/// of room. Nonsense counts as nothing.
fn resources(failure: &Analysed) -> u32 {
    let seconds = failure.report.duration.map_or(0.0, |d| d.to_std().as_secs_f64());
    let cpu = failure.report.cpu.filter(|cpu| cpu.is_finite() && *cpu > 0.0 && seconds > 0.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to 0 to 100")]
    let cpu = cpu.map_or(0, |cpu| (cpu / seconds * 100.0).clamp(0.0, 100.0) as u32);
    cpu + if failure.category == Category::Resource { 100 } else { 0 }
}

/// What is to be done about a message that failed again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// Nothing special.
    Continue,
    /// Keep an eye on it.
    Monitor,
    /// Wait at least this long before the next attempt.
    Throttle(Span),
    /// Not this message: many fail the same way.
    Systematic,
    /// Set it aside, for this reason.
    Quarantine {
        /// In words.
        why: String,
        /// Because workers died with it; no exclude rule excuses that.
        crashed: bool,
    },
}

/// Judges a message by its indicators, the latest failure included. `others` is how many other messages of its
/// group failed lately.
#[must_use]
pub fn assess(seen: &Indicators, others: u32) -> Finding {
    if seen.crashes >= CRASHES {
        let why = format!("{} workers died or lost their lease with it", seen.crashes);
        return Finding::Quarantine { why, crashed: true };
    }
    let over_workers = seen.same >= SAME_OVER_WORKERS && count(&seen.same_workers) >= 2;
    if over_workers || seen.same >= SAME_ANYWHERE {
        if others >= OTHERS_SYSTEMATIC {
            return Finding::Systematic;
        }
        let workers = count(&seen.same_workers);
        let why = format!("the same failure {} times in a row on {workers} workers", seen.same);
        return Finding::Quarantine { why, crashed: false };
    }
    let score = seen.score();
    if score > QUARANTINE_ABOVE {
        let why = format!("score {score:.2} of 1 over {} failures", seen.failures);
        Finding::Quarantine { why, crashed: false }
    } else if score > THROTTLE_ABOVE {
        Finding::Throttle(Span::from_secs(60).times(u64::from(seen.failures)).min(Span::from_secs(300)))
    } else if score > MONITOR_ABOVE {
        Finding::Monitor
    } else {
        Finding::Continue
    }
}

/// A message that failed with a group's signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "KeptWitness", into = "KeptWitness")]
struct Witness {
    id: MessageId,
    worker: u32,
    at: Time,
}

/// A witness as it is kept. Every failure writes those of its group, so they are short: the halves of the id, the
/// worker, milliseconds. They were once written by name, and are still read so.
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

/// What is known of a group beside its counters: who failed with it lately, and how it ended for others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Standing {
    witnesses: VecDeque<Witness>,
    /// What redrives and operators taught about it.
    pub lessons: Lessons,
}

impl Standing {
    /// One more failure of the group. A message is remembered once, with its latest failure.
    pub fn saw(&mut self, id: MessageId, worker: Option<&str>, now: Time) {
        self.witnesses.retain(|w| w.id != id);
        if self.witnesses.len() >= limits::WITNESSES_MAX {
            self.witnesses.pop_front();
        }
        self.witnesses.push_back(Witness { id, worker: worker.map_or(0, fingerprint), at: now });
    }

    /// How many other messages failed with it within this time, up to [`limits::WITNESSES_MAX`].
    #[must_use]
    pub fn others(&self, id: MessageId, within: Span, now: Time) -> u32 {
        let lately = self.witnesses.iter().filter(|w| w.id != id && now.since(w.at) <= within);
        u32::try_from(lately.count()).unwrap_or(u32::MAX)
    }

    /// How many workers saw it fail within this time.
    #[must_use]
    pub fn workers(&self, within: Span, now: Time) -> u32 {
        let mut marks: Vec<u32> =
            self.witnesses.iter().filter(|w| now.since(w.at) <= within).map(|w| w.worker).collect();
        marks.sort_unstable();
        marks.dedup();
        count(&marks)
    }

    /// The share of this time over which its failures are spread: a burst is near 0.
    #[must_use]
    pub fn spread(&self, within: Span, now: Time) -> f64 {
        let mut lately = self.witnesses.iter().map(|w| w.at).filter(|at| now.since(*at) <= within);
        let Some(first) = lately.next() else { return 0.0 };
        now.since(first).to_std().as_secs_f64() / within.to_std().as_secs_f64().max(0.001)
    }

    /// The standing of two groups that turned out to be one.
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
        self.lessons = self.lessons.and(other.lessons);
        self
    }
}

/// What a worker has in its hands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hands {
    /// Live leases.
    pub leases: usize,
    /// Those of suspects.
    pub suspects: usize,
}

/// What a worker may be given now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Anything; a suspect only as the first, and then nothing more.
    Anything,
    /// The suspect that has waited longest, before anything else.
    SuspectFirst,
    /// Anything but suspects.
    NoSuspects,
    /// Nothing: it has a suspect in its hands, or is being emptied to run one.
    Nothing,
}

/// Sees to it that suspects run alone and still run. One worker at a time is emptied for them.
#[derive(Clone, Debug, Default)]
pub struct Isolation {
    /// Who is being emptied, and since when.
    draining: Option<(String, Time)>,
    /// Idle workers that were served as usual since a suspect came first.
    usual: u32,
}

impl Isolation {
    /// What this worker may be given. `oldest_suspect` is when the suspect that could be leased and has waited
    /// longest became ready.
    pub fn admit(
        &mut self,
        worker: &str,
        hands: Hands,
        oldest_suspect: Option<Time>,
        now: Time,
    ) -> Admission {
        if hands.suspects > 0 {
            return Admission::Nothing;
        }
        let waits_long = oldest_suspect.is_some_and(|since| now.since(since) > SUSPECT_WAITS);
        if hands.leases == 0 {
            self.draining = self.draining.take().filter(|(name, _)| name != worker);
            return self.admit_idle(waits_long);
        }
        match &self.draining {
            // Being emptied, for whatever queue it asks.
            Some((name, since)) if name == worker && now.since(*since) <= DRAIN_FOR => Admission::Nothing,
            // Somebody is, or was and could not be in time.
            Some((_, since)) if now.since(*since) <= DRAIN_FOR.times(2) => Admission::NoSuspects,
            Some(_) | None if waits_long => {
                self.draining = Some((worker.to_owned(), now));
                Admission::Nothing
            }
            Some(_) | None => Admission::NoSuspects,
        }
    }

    /// Suspects that wait long get their share of idle workers and no more, whatever else is urgent.
    fn admit_idle(&mut self, waits_long: bool) -> Admission {
        if waits_long && self.usual >= SUSPECT_SHARE {
            self.usual = 0;
            return Admission::SuspectFirst;
        }
        self.usual = if waits_long { self.usual + 1 } else { SUSPECT_SHARE };
        Admission::Anything
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::{ErrorInfo, Report};

    const NOW: Time = Time::from_millis(1_000_000);

    fn failure(error_type: &str) -> Analysed {
        let error = ErrorInfo { error_type: error_type.into(), message: "no".into(), ..ErrorInfo::default() };
        Report { error, ..Report::default() }.analyse()
    }

    fn id(n: u64) -> MessageId {
        MessageId::new(n, [0; 10])
    }

    #[test]
    fn the_hard_rules_come_in_their_order() {
        let seen = |same: u32, workers: &[&str], crashes: u32| {
            let mut seen = Indicators { same, crashes, ..Indicators::default() };
            workers.iter().for_each(|worker| note(&mut seen.same_workers, worker));
            seen
        };
        let poison = |finding: Finding| matches!(finding, Finding::Quarantine { .. });
        assert!(!poison(assess(&seen(4, &["a", "b"], 2), 0)));
        assert!(poison(assess(&seen(5, &["a", "b"], 0), 2)));
        assert!(!poison(assess(&seen(9, &["a"], 0), 0)));
        assert!(poison(assess(&seen(10, &["a"], 0), 2)));
        assert_eq!(assess(&seen(10, &["a"], 0), 3), Finding::Systematic);
        assert_eq!(assess(&seen(5, &["a", "b"], 0), 3), Finding::Systematic);
        let crashed = assess(&seen(1, &["a"], 3), 100);
        assert!(matches!(crashed, Finding::Quarantine { crashed: true, .. }), "{crashed:?}");
    }

    #[test]
    fn the_score_is_that_of_its_five_parts() {
        let mut seen = Indicators { failures: 5, ..Indicators::default() };
        assert!((seen.score() - 0.30).abs() < 1e-9);
        ["a", "b", "c", "d"].iter().for_each(|name| note(&mut seen.workers, name));
        assert!((seen.score() - 0.55).abs() < 1e-9);
        ["a", "b", "c", "d"].iter().for_each(|name| note(&mut seen.kinds, name));
        assert!((seen.score() - 0.75).abs() < 1e-9);
        assert_eq!(assess(&seen, 0), Finding::Throttle(Span::from_secs(300)));
        seen.slowest = Span::from_millis(10_001);
        assert!((seen.score() - 0.85).abs() < 1e-9);
        assert!(matches!(assess(&seen, 0), Finding::Quarantine { crashed: false, .. }));
        seen.resources = 200;
        assert!((seen.score() - 1.0).abs() < 1e-9);
        let few = Indicators { failures: 2, workers: vec![1, 2, 3], ..Indicators::default() };
        assert_eq!(assess(&few, 0), Finding::Continue);
        let watched = Indicators { kinds: vec![1, 2], ..few };
        assert_eq!(assess(&watched, 0), Finding::Monitor);
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
    fn a_group_remembers_the_latest_and_forgets_the_old() {
        let mut standing = Standing::default();
        for n in 0..100 {
            standing.saw(id(n % 20), Some("w"), NOW.plus(Span::from_secs(n)));
        }
        let later = NOW.plus(Span::from_secs(100));
        assert_eq!(standing.others(id(99), Span::from_hours(1), later), 16);
        assert_eq!(standing.others(id(19), Span::from_secs(3), later), 2, "itself is not another");
        assert_eq!(standing.workers(Span::from_hours(1), later), 1);
        let mut other = Standing::default();
        other.saw(id(500), Some("x"), later);
        let both = standing.joined(other);
        assert_eq!(both.witnesses.len(), limits::WITNESSES_MAX);
        assert_eq!(both.workers(Span::from_secs(1), later), 2);
    }

    #[test]
    fn a_worker_is_emptied_for_a_suspect_one_at_a_time_and_not_for_ever() {
        let mut isolation = Isolation::default();
        let (busy, idle, old) = (Hands { leases: 2, suspects: 0 }, Hands::default(), Some(NOW));
        let at = |seconds| NOW.plus(Span::from_secs(seconds));
        assert_eq!(isolation.admit("a", idle, None, at(5)), Admission::Anything);
        assert_eq!(isolation.admit("a", idle, old, at(5)), Admission::Anything);
        assert_eq!(isolation.admit("a", busy, old, at(5)), Admission::NoSuspects);
        assert_eq!(isolation.admit("a", Hands { leases: 1, suspects: 1 }, None, at(5)), Admission::Nothing);
        assert_eq!(isolation.admit("a", busy, old, at(11)), Admission::Nothing);
        assert_eq!(isolation.admit("a", busy, None, at(12)), Admission::Nothing, "for any queue");
        assert_eq!(isolation.admit("b", busy, old, at(13)), Admission::NoSuspects, "one is enough");
        assert_eq!(isolation.admit("a", busy, old, at(42)), Admission::NoSuspects, "it took too long");
        assert_eq!(isolation.admit("b", busy, old, at(60)), Admission::NoSuspects, "nobody for a while");
        assert_eq!(isolation.admit("b", busy, old, at(75)), Admission::Nothing, "then another one");
    }

    #[test]
    fn suspects_that_wait_long_get_a_share_of_idle_workers() {
        let mut isolation = Isolation::default();
        let served: Vec<Admission> = (0..28)
            .map(|_| isolation.admit("a", Hands::default(), Some(NOW), NOW.plus(Span::from_secs(11))))
            .collect();
        assert_eq!(served.iter().filter(|a| **a == Admission::SuspectFirst).count(), 3);
        assert_eq!(served[8], Admission::SuspectFirst);
    }
}
