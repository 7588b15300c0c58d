//! Everything that follows from a failed delivery before anything is written: the message's indicators, what the
//! group's standing makes of the failure, and the verdict. A store calls this inside its commit, for a
//! worker's report and for a lost lease alike, and applies what it says. Pure.

use crate::backoff::Roll;
use crate::failure::{Analysed, Category};
use crate::lifecycle::Life;
use crate::message::Slip;
use crate::poison::{Finding, Indicators, OTHERS_WITHIN, Standing, assess};
use crate::policy::{Case, Override, QueuePolicy, Verdict, judge};
use crate::time::Time;

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
    let indicators = life.indicators.after(&failure, same, worker, now);
    let finding = assess(&indicators, standing.others(slip.id, OTHERS_WITHIN, now));
    let mut failure = failure;
    if finding == Finding::Systematic {
        failure = failure.seen_as(Category::Systematic);
    }
    let roll = Roll::of(slip.id, life.deliveries);
    let case =
        Case { policy, terms: slip.terms, life, failure: &failure, finding: &finding, said, now, roll };
    let verdict = judge(&case);
    if let (Verdict::Dead { reason: crate::failure::Reason::Poison }, Finding::Quarantine { .. }) =
        (verdict, &finding)
    {
        failure = failure.seen_as(Category::Poison);
    }
    Review { failure, indicators, verdict }
}
