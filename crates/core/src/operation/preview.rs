//! What an operation would do, before it does it: how many letters, of what, how old, for how long, and what to
//! think of first. The token binds a start to just this preview.

use super::Pace;
use crate::audit::{AuditKey, prove};
use crate::dead_letter::{Act, DeadLetter};
use crate::failure::{Reason, named};
use crate::filter::Filter;
use crate::ids::{GroupId, QueueName};
use crate::limits;
use crate::survey::{AgeCount, Survey};
use crate::time::Span;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// What to look at beforehand.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PreviewRequest {
    /// What would be done.
    pub act: Act,
    /// To which.
    pub filter: Filter,
    /// How fast.
    #[serde(default)]
    pub pace: Pace,
    /// Show so many of them.
    #[serde(default)]
    pub sample: usize,
}

impl PreviewRequest {
    /// A preview without a pace.
    #[must_use]
    pub fn new(act: Act, filter: Filter, sample: usize) -> Self {
        Self { act, filter, pace: Pace::default(), sample }
    }
}

/// A queue to which letters would go back, as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Destination {
    /// How many would go there.
    pub count: u64,
    /// Nobody gets anything from it.
    pub paused: bool,
    /// So many more fit, if it has a limit.
    pub room: Option<u64>,
    /// Breakers of it that are open, by key.
    pub open: Vec<String>,
}

named! {
    /// What to think of before an operation.
    WarningKind, "warning", {
        /// A dependency is taken for down: what is sent back would be held.
        BreakerOpen = "breaker_open",
        /// Nobody gets anything from the queue.
        QueuePaused = "queue_paused",
        /// The queue takes fewer than that.
        TargetFull = "target_full",
        /// Letters with an ordering key: they go behind what was enqueued since.
        OrderingKeys = "ordering_keys",
        /// Letters that were sent back before, and died again.
        RedrivenBefore = "redriven_before",
        /// Letters whose idempotency key another message has, or which is finished.
        KeyConflicts = "key_conflicts",
        /// Letters that a handler or a rule called permanent, or that could not be decoded.
        Hopeless = "hopeless",
    }
}

/// One thing to think of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    /// What kind.
    pub kind: WarningKind,
    /// How many letters it concerns.
    pub count: u64,
    /// In words.
    pub text: String,
}

/// So many of one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Part<T> {
    /// Of what.
    pub of: T,
    /// How many.
    pub count: u64,
}

/// What an operation would do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Preview {
    /// How many letters.
    pub count: u64,
    /// By group, most first; at most [`limits::PREVIEW_PARTS_MAX`].
    pub by_group: Vec<Part<GroupId>>,
    /// By queue, most first; as many at most.
    pub by_queue: Vec<Part<QueueName>>,
    /// By how long they have been dead, youngest first.
    pub by_age: Vec<AgeCount>,
    /// Some of them, latest death first.
    pub sample: Vec<DeadLetter>,
    /// The last death that was looked at; goes into the spec.
    pub bound: u64,
    /// How long it would take at the rate, when there is one.
    #[serde(rename = "estimate_ms")]
    pub estimate: Option<Span>,
    /// What to think of first.
    pub warnings: Vec<Warning>,
    /// What binds a start to this act, filter and bound.
    pub token: String,
}

fn parts<T: Clone + Ord>(all: &BTreeMap<T, u64>) -> Vec<Part<T>> {
    let mut parts: Vec<Part<T>> =
        all.iter().map(|(of, count)| Part { of: of.clone(), count: *count }).collect();
    parts.sort_by(|a, b| (Reverse(a.count), &a.of).cmp(&(Reverse(b.count), &b.of)));
    parts.truncate(limits::PREVIEW_PARTS_MAX);
    parts
}

impl Preview {
    /// Puts together what was found.
    #[must_use]
    pub fn of(
        request: &PreviewRequest,
        survey: &Survey,
        destinations: &BTreeMap<QueueName, Destination>,
        key_conflicts: u64,
        bound: u64,
        key: &AuditKey,
    ) -> Self {
        Self {
            count: survey.count,
            by_group: parts(&survey.by_group),
            by_queue: parts(&survey.by_queue),
            by_age: survey.by_age.clone(),
            sample: Vec::new(),
            bound,
            estimate: request.pace.estimate(survey.count),
            warnings: if matches!(request.act, Act::Retry(_)) {
                warnings(survey, destinations, key_conflicts)
            } else {
                Vec::new()
            },
            token: token(key, &request.act, &request.filter, bound),
        }
    }
}

fn warnings(
    survey: &Survey,
    destinations: &BTreeMap<QueueName, Destination>,
    key_conflicts: u64,
) -> Vec<Warning> {
    let mut all = Vec::new();
    let mut warn = |kind, count, text| {
        if count > 0 {
            all.push(Warning { kind, count, text });
        }
    };
    for (queue, to) in destinations {
        let count = to.count;
        if !to.open.is_empty() {
            let keys = to.open.join(", ");
            let text =
                format!("queue {queue}: the breaker is open ({keys}); what is sent back there is held");
            warn(WarningKind::BreakerOpen, count, text);
        }
        if to.paused {
            let text = format!("queue {queue} is paused: nothing sent back there runs until it is resumed");
            warn(WarningKind::QueuePaused, count, text);
        }
        if let Some(room) = to.room
            && room < count
        {
            let text = format!("queue {queue} takes {room} more, of {count}: the rest waits for room");
            warn(WarningKind::TargetFull, count - room, text);
        }
    }
    let ordered = survey.ordered;
    let text = format!("{ordered} have an ordering key: they go behind what was enqueued since they died");
    warn(WarningKind::OrderingKeys, ordered, text);
    let redriven = survey.by_redrives.range(1..).map(|(_, count)| count).sum();
    let most = survey.by_redrives.keys().next_back().copied().unwrap_or(0);
    let text = format!("{redriven} were sent back before and died again, one of them {most} times");
    warn(WarningKind::RedrivenBefore, redriven, text);
    let text =
        format!("{key_conflicts} have an idempotency key that is finished or that another message has");
    warn(WarningKind::KeyConflicts, key_conflicts, text);
    let of = |reason| survey.by_reason.get(&reason).copied().unwrap_or(0);
    let hopeless = of(Reason::Permanent) + of(Reason::Undecodable);
    let text = format!("{hopeless} failed for good or could not be decoded: unchanged they will fail again");
    warn(WarningKind::Hopeless, hopeless, text);
    all
}

/// Binds an act, a filter and a bound, so that what is started is what was looked at. Whoever lacks the store's
/// key cannot make one.
#[must_use]
pub fn token(key: &AuditKey, act: &Act, filter: &Filter, bound: u64) -> String {
    let act = serde_json::to_string(act).unwrap_or_default();
    let parts: [&[u8]; 6] =
        [b"redrive preview", act.as_bytes(), b"\n", filter.text().as_bytes(), b"\n", &bound.to_be_bytes()];
    prove(key, &parts)
}
