//! What an operation would do, before it does it: how many letters, in which groups and queues, how old, how long it
//! takes, and what to consider first. The token ties a start to the preview that was shown.

use super::Rollout;
use crate::audit::{AuditKey, hmac_hex};
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

/// The request for a preview.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PreviewRequest {
    /// The act that would be performed.
    pub act: Act,
    /// Selects the letters.
    pub filter: Filter,
    /// How fast the operation would run; only the estimate depends on it.
    #[serde(default, rename = "pace")]
    pub rollout: Rollout,
    /// The maximum number of letters to show as a sample.
    #[serde(default)]
    pub sample: usize,
}

impl PreviewRequest {
    /// A preview with the default rollout.
    #[must_use]
    pub fn new(act: Act, filter: Filter, sample: usize) -> Self {
        Self { act, filter, rollout: Rollout::default(), sample }
    }
}

/// The state of a queue to which letters would go back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Destination {
    /// The number of letters that would go there.
    pub count: u64,
    /// Whether the queue is paused, so that it hands out nothing.
    pub paused: bool,
    /// How many more messages fit, if the queue has a limit.
    pub room: Option<u64>,
    /// The keys of its open breakers.
    pub open: Vec<String>,
}

named! {
    /// What to consider before starting an operation.
    WarningKind, "warning", {
        /// A breaker is open: the messages would be held.
        BreakerOpen = "breaker_open",
        /// The queue is paused.
        QueuePaused = "queue_paused",
        /// The queue has no room for all of them.
        TargetFull = "target_full",
        /// Letters with an ordering key: they go behind messages that were enqueued since.
        OrderingKeys = "ordering_keys",
        /// Letters that were redriven before and died again.
        RedrivenBefore = "redriven_before",
        /// Letters whose idempotency key is finished or belongs to another message.
        KeyConflicts = "key_conflicts",
        /// Letters that a handler or a rule called permanent, or that could not be decoded.
        Hopeless = "hopeless",
    }
}

/// One thing to consider before starting an operation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    /// The kind of warning.
    pub kind: WarningKind,
    /// The number of letters it concerns.
    pub count: u64,
    /// The warning in words.
    pub text: String,
}

/// The number of letters in one group, queue, or other category.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BreakdownEntry<T> {
    /// The category.
    pub of: T,
    /// The number of letters.
    pub count: u64,
}

/// What an operation would do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Preview {
    /// The number of letters.
    pub count: u64,
    /// The letters by group, largest first; at most [`limits::PREVIEW_PARTS_MAX`] groups.
    pub by_group: Vec<BreakdownEntry<GroupId>>,
    /// The letters by queue, largest first; at most as many queues.
    pub by_queue: Vec<BreakdownEntry<QueueName>>,
    /// The letters by how long they have been dead, youngest first.
    pub by_age: Vec<AgeCount>,
    /// Some of the letters, latest death first.
    pub sample: Vec<DeadLetter>,
    /// The latest death number that was examined, for [`super::OperationSpec::bound`].
    pub bound: u64,
    /// How long the operation would take, if the rollout has a rate.
    #[serde(rename = "estimate_ms")]
    pub estimate: Option<Span>,
    /// What to consider first.
    pub warnings: Vec<Warning>,
    /// Ties a start to this act, filter and bound, for [`super::OperationSpec::token`].
    pub token: String,
}

fn largest_first<T: Clone + Ord>(all: &BTreeMap<T, u64>) -> Vec<BreakdownEntry<T>> {
    let mut entries: Vec<BreakdownEntry<T>> =
        all.iter().map(|(of, count)| BreakdownEntry { of: of.clone(), count: *count }).collect();
    entries.sort_by(|a, b| (Reverse(a.count), &a.of).cmp(&(Reverse(b.count), &b.of)));
    entries.truncate(limits::PREVIEW_PARTS_MAX);
    entries
}

impl Preview {
    /// Puts a preview together from a survey of the letters.
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
            by_group: largest_first(&survey.by_group),
            by_queue: largest_first(&survey.by_queue),
            by_age: survey.by_age.clone(),
            sample: Vec::new(),
            bound,
            estimate: request.rollout.estimate(survey.count),
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
            let text = format!("queue {queue}: the breaker is open ({keys}); messages sent there are held");
            warn(WarningKind::BreakerOpen, count, text);
        }
        if to.paused {
            let text = format!("queue {queue} is paused: messages sent there do not run until it is resumed");
            warn(WarningKind::QueuePaused, count, text);
        }
        if let Some(room) = to.room
            && room < count
        {
            let text = format!("queue {queue} has room for {room} of {count}: the rest waits for room");
            warn(WarningKind::TargetFull, count - room, text);
        }
    }
    let ordered = survey.ordered;
    let text =
        format!("{ordered} have an ordering key: they go behind messages that were enqueued since they died");
    warn(WarningKind::OrderingKeys, ordered, text);
    let redriven = survey.by_redrives.range(1..).map(|(_, count)| count).sum();
    let most = survey.by_redrives.keys().next_back().copied().unwrap_or(0);
    let text = format!("{redriven} were redriven before and died again, one of them {most} times");
    warn(WarningKind::RedrivenBefore, redriven, text);
    let text =
        format!("{key_conflicts} have an idempotency key that is finished or belongs to another message");
    warn(WarningKind::KeyConflicts, key_conflicts, text);
    let of = |reason| survey.by_reason.get(&reason).copied().unwrap_or(0);
    let hopeless = of(Reason::Permanent) + of(Reason::Undecodable);
    let text = format!(
        "{hopeless} failed permanently or could not be decoded: unless they are changed, they will fail again"
    );
    warn(WarningKind::Hopeless, hopeless, text);
    all
}

/// A token for an act, a filter and a bound, which proves that what is started is what was previewed. It cannot be made
/// without the key of the store.
#[must_use]
pub fn token(key: &AuditKey, act: &Act, filter: &Filter, bound: u64) -> String {
    let act = serde_json::to_string(act).unwrap_or_default();
    let parts: [&[u8]; 6] =
        [b"redrive preview", act.as_bytes(), b"\n", filter.text().as_bytes(), b"\n", &bound.to_be_bytes()];
    hmac_hex(key, &parts)
}
