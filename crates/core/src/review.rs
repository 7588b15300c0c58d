//! What follows from a failed delivery, before a store writes anything: the updated indicators of the message,
//! the failure as its history and that of its group classify it, and the verdict. A store calls [`review()`]
//! inside its commit, for reported failures and expired leases alike, and applies the result. Pure.

use crate::backoff::JitterSeed;
use crate::classify::{Class, History, with_history};
use crate::failure::{AnalysedFailure, Category, Reason, Route};
use crate::lifecycle::Lifecycle;
use crate::message::MessageMeta;
use crate::poison::{GroupHistory, Indicators, OTHERS_WITHIN, PoisonVerdict, assess};
use crate::policy::{FailureCase, Override, QueuePolicy, Verdict, judge};
use crate::time::{Span, Time};

/// Other messages of the group that failed within this time suggest a systematic cause.
const SYSTEMATIC_WINDOW: Span = Span::from_secs(600);

/// A failed delivery as the store sees it.
#[derive(Clone, Copy, Debug)]
pub struct FailedDelivery<'a> {
    /// The metadata of the message.
    pub meta: &'a MessageMeta,
    /// The lifecycle of the message during the delivery.
    pub lifecycle: &'a Lifecycle,
    /// The policy of the message's queue.
    pub policy: &'a QueuePolicy,
    /// The history of the failure's group, without this failure.
    pub group_history: &'a GroupHistory,
    /// Whether the previous failure of the message belongs to the same group.
    pub same_group: bool,
    /// The decision of a custom dead letter policy, if it made one.
    pub policy_override: Option<Override>,
    /// The current time of the store.
    pub now: Time,
}

/// The result of a [`review()`].
#[derive(Clone, Debug, PartialEq)]
pub struct Review {
    /// The failure, classified in the light of its history.
    pub failure: AnalysedFailure,
    /// The indicators that the message carries from now on.
    pub indicators: Indicators,
    /// What happens to the message.
    pub verdict: Verdict,
}

/// Classifies a failed delivery by the history of its message and its group, and judges it.
#[must_use]
pub fn review(failed: &FailedDelivery<'_>, failure: AnalysedFailure) -> Review {
    let FailedDelivery { meta, lifecycle, policy, group_history, same_group, policy_override, now } = *failed;
    let worker = lifecycle.lease().map(|lease| lease.worker.as_str());
    let mut indicators = lifecycle.indicators.after(&failure, same_group, worker, now);
    if !policy.poison.detect {
        // Without poison detection no message is suspect, so none runs alone.
        indicators.crashes = 0;
    }
    let others = group_history.others(meta.id, OTHERS_WITHIN, now);
    let poison_verdict =
        if policy.poison.detect { assess(&indicators, others) } else { PoisonVerdict::Continue };
    let mut class = with_history(&failure.class(), &history(failed, &indicators));
    if poison_verdict == PoisonVerdict::Systematic && class.category != Category::Systematic {
        class = Class { reasons: class.reasons, ..Class::new(Category::Systematic, class.route, 0.9) };
    }
    // Only the verdict can make a failure poison. Until then it keeps its earlier class.
    let judged = if class.category == Category::Poison { failure } else { failure.reclassified(class) };
    let jitter_seed = JitterSeed::of(meta.id, lifecycle.deliveries);
    let case = FailureCase {
        policy,
        limits: meta.limits,
        lifecycle,
        failure: &judged,
        poison_verdict: &poison_verdict,
        policy_override,
        now,
        jitter_seed,
    };
    let verdict = judge(&case);
    let failure = match (verdict, poison_verdict) {
        (Verdict::Dead { reason: Reason::Poison }, PoisonVerdict::Quarantine { why, .. }) => {
            as_poison(judged, why)
        }
        (_, _) => judged,
    };
    Review { failure, indicators, verdict }
}

/// The failure that proved its message to be poison.
fn as_poison(failure: AnalysedFailure, why: String) -> AnalysedFailure {
    let mut class = Class::new(Category::Poison, Route::Poison, 0.95);
    class.reasons = failure.reasons.clone();
    class.reasons.truncate(4);
    class.reasons.push(why);
    failure.reclassified(class)
}

/// The numbers on which [`with_history`] bases the class.
fn history(failed: &FailedDelivery<'_>, indicators: &Indicators) -> History {
    let FailedDelivery { meta, lifecycle, policy, group_history, now, .. } = *failed;
    let own = if policy.poison.detect { indicators.same } else { indicators.same.min(4) };
    History {
        same_in_a_row: own,
        attempts: lifecycle.attempts,
        distinct_leaves: indicators.distinct_leaves(),
        distinct_workers: indicators.distinct_workers(),
        crashes: indicators.crashes,
        group_messages: group_history.others(meta.id, SYSTEMATIC_WINDOW, now),
        group_workers: group_history.workers(SYSTEMATIC_WINDOW, now),
        window: SYSTEMATIC_WINDOW,
        spread: group_history.spread(SYSTEMATIC_WINDOW, now),
        outcome_stats: group_history.outcome_stats,
    }
}
