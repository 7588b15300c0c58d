//! Everything that follows from a failed delivery before anything is written: the message's indicators, what its
//! and its group's history make of the failure, and the verdict. A store calls this inside its commit, for a
//! worker's report and for a lost lease alike, and applies what it says. Pure.

use crate::backoff::Roll;
use crate::classify::{Class, History, with_history};
use crate::failure::{Analysed, Category, Reason, Route};
use crate::lifecycle::Life;
use crate::message::Slip;
use crate::poison::{Finding, Indicators, OTHERS_WITHIN, Standing, assess};
use crate::policy::{Case, Override, QueuePolicy, Verdict, judge};
use crate::time::{Span, Time};

/// "At once": other messages of a group that failed within this time tell of a systematic cause.
const AT_ONCE: Span = Span::from_secs(600);

/// A failed delivery as a store sees it.
#[derive(Clone, Copy, Debug)]
pub struct Failed<'a> {
    /// The message.
    pub slip: &'a Slip,
    /// Its life during the delivery.
    pub life: &'a Life,
    /// The rules of its queue.
    pub policy: &'a QueuePolicy,
    /// What is known of the failure's group, this failure not included.
    pub standing: &'a Standing,
    /// Whether the message's failure before this one was of the same group.
    pub same: bool,
    /// A custom policy's word.
    pub said: Option<Override>,
    /// The store's clock.
    pub now: Time,
}

/// What follows.
#[derive(Clone, Debug, PartialEq)]
pub struct Review {
    /// The failure, with what its history says about it.
    pub failure: Analysed,
    /// What the message carries on.
    pub indicators: Indicators,
    /// What becomes of it.
    pub verdict: Verdict,
}

/// Looks at a failed delivery in the light of all that is known.
#[must_use]
pub fn review(failed: &Failed<'_>, failure: Analysed) -> Review {
    let Failed { slip, life, policy, standing, same, said, now } = *failed;
    let worker = life.lease().map(|lease| lease.worker.as_str());
    let mut indicators = life.indicators.after(&failure, same, worker, now);
    if !policy.poison.detect {
        // Nobody looks for poison here, so nobody is suspect either.
        indicators.crashes = 0;
    }
    let others = standing.others(slip.id, OTHERS_WITHIN, now);
    let finding = if policy.poison.detect { assess(&indicators, others) } else { Finding::Continue };
    let mut class = with_history(&failure.class(), &history(failed, &indicators));
    if finding == Finding::Systematic && class.category != Category::Systematic {
        class = Class { reasons: class.reasons, ..Class::new(Category::Systematic, class.route, 0.9) };
    }
    // Only a verdict makes a failure poison: what it was called before that, it stays.
    let judged = if class.category == Category::Poison { failure } else { failure.seen_as(class) };
    let roll = Roll::of(slip.id, life.deliveries);
    let case = Case { policy, terms: slip.terms, life, failure: &judged, finding: &finding, said, now, roll };
    let verdict = judge(&case);
    let failure = match (verdict, finding) {
        (Verdict::Dead { reason: Reason::Poison }, Finding::Quarantine { why, .. }) => condemned(judged, why),
        (_, _) => judged,
    };
    Review { failure, indicators, verdict }
}

/// The failure that showed a message to be poison.
fn condemned(failure: Analysed, why: String) -> Analysed {
    let mut class = Class::new(Category::Poison, Route::Poison, 0.95);
    class.reasons = failure.reasons.clone();
    class.reasons.truncate(4);
    class.reasons.push(why);
    failure.seen_as(class)
}

/// The numbers that a class is judged by.
fn history(failed: &Failed<'_>, seen: &Indicators) -> History {
    let Failed { slip, life, policy, standing, now, .. } = *failed;
    let own = if policy.poison.detect { seen.same } else { seen.same.min(4) };
    History {
        same_in_a_row: own,
        attempts: life.attempts,
        distinct_leaves: seen.distinct_leaves(),
        distinct_workers: seen.distinct_workers(),
        crashes: seen.crashes,
        group_messages: standing.others(slip.id, AT_ONCE, now),
        group_workers: standing.workers(AT_ONCE, now),
        window: AT_ONCE,
        spread: standing.spread(AT_ONCE, now),
        lessons: standing.lessons,
    }
}
