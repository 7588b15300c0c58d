//! What many failures reveal about one: statistics over the message and its group, and the outcomes of earlier redrives
//! and decisions. This is pure arithmetic over counts, which the store keeps.
//!
//! It must not make anything permanent, and no number in its input, not even NaN, may break it.

use super::{Class, usual_for};
use crate::failure::{Category, Recoverability, Route};
use crate::poison::{self, CRASHES, SAME_ANYWHERE, SAME_OVER_WORKERS as SAME_ON_WORKERS};
use crate::time::Span;
use serde::{Deserialize, Serialize};

/// The number of other messages with the same failure from which on the message is not the cause.
const MANY_MESSAGES: u32 = poison::OTHERS_SYSTEMATIC;
/// The number of workers with the same failure from which on the worker is not the cause.
const MANY_WORKERS: u32 = 2;
/// The maximum number of outcomes that count, so that a group may change its behaviour.
const OUTCOMES_COUNTED: f32 = 20.0;

/// What is known about a message and its group besides the error. A number that is not known is 0.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct History {
    /// Consecutive failures of this message with the same signature, including this one.
    pub same_in_a_row: u32,
    /// Executions of this message, including this one.
    pub attempts: u32,
    /// Different signatures among its failures.
    pub distinct_leaves: u32,
    /// Workers on which this message failed.
    pub distinct_workers: u32,
    /// Crashes and lost leases of this message.
    pub crashes: u32,
    /// Other messages that failed with this signature within the window.
    pub group_messages: u32,
    /// Workers that failed with this signature within the window.
    pub group_workers: u32,
    /// The length of the window.
    #[serde(rename = "window_ms")]
    pub window: Span,
    /// The share of the window in which the group failed, from 0 to 1: a short burst is near 0.
    pub spread: f64,
    /// The outcomes of the group so far.
    pub outcome_stats: OutcomeStats,
}

/// The outcomes of a group, from which the classifier learns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OutcomeStats {
    /// Letters that were redriven unchanged and succeeded.
    pub redriven_ok: u32,
    /// Letters that were redriven unchanged and failed again.
    pub redriven_failed: u32,
    /// Letters that an operator resolved.
    pub resolved: u32,
    /// Letters that an operator abandoned.
    pub abandoned: u32,
    /// The category that an operator assigned to the group.
    #[serde(rename = "said")]
    pub operator_category: Option<Category>,
}

impl OutcomeStats {
    /// The sum of both. The category that was assigned later wins.
    #[must_use]
    pub fn and(self, later: Self) -> Self {
        Self {
            redriven_ok: self.redriven_ok.saturating_add(later.redriven_ok),
            redriven_failed: self.redriven_failed.saturating_add(later.redriven_failed),
            resolved: self.resolved.saturating_add(later.resolved),
            abandoned: self.abandoned.saturating_add(later.abandoned),
            operator_category: later.operator_category.or(self.operator_category),
        }
    }
}

/// The classification of an error in the light of its history.
#[must_use]
pub fn with_history(class: &Class, history: &History) -> Class {
    let outcome_stats = &history.outcome_stats;
    let mut updated = class.clone();
    updated.reasons.truncate(4);
    updated.confidence = if class.confidence.is_nan() { 0.0 } else { class.confidence.clamp(0.0, 1.0) };
    if let Some(category) = outcome_stats.operator_category {
        set_category(&mut updated, category, 0.97);
        updated.add_reason(&format!("an operator says that this group is {category}"));
    } else if let Some(reason) = systematic(history) {
        set_category(&mut updated, Category::Systematic, 0.9);
        updated.add_reason(&reason);
    } else if let Some(reason) = poisonous(history) {
        set_category(&mut updated, Category::Poison, 0.9);
        updated.add_reason(&reason);
    } else {
        weigh(&mut updated, history);
    }
    apply_outcomes(&mut updated, outcome_stats);
    updated
}

/// Sets the category and what follows from it.
fn set_category(class: &mut Class, category: Category, confidence: f32) {
    if class.category != category {
        class.category = category;
        (class.severity, class.recoverability) = usual_for(category);
    }
    if category == Category::Poison {
        class.route = Route::Poison;
    }
    class.confidence = confidence;
}

/// Why the failure is systematic, if it is: many messages fail on several workers at once.
fn systematic(history: &History) -> Option<String> {
    let History { group_messages: messages, group_workers: workers, .. } = history;
    let spread = *messages >= MANY_MESSAGES && *workers >= MANY_WORKERS;
    // One worker cannot rule itself out, but a message is not to blame for the failures of others.
    let steady = *messages >= MANY_MESSAGES && history.same_in_a_row >= SAME_ANYWHERE;
    (spread || steady).then(|| {
        format!("{messages} other messages fail alike on {workers} workers: the system, not the message")
    })
}

/// Why the message is poison, if it is: it fails the same way wherever it goes, or crashes workers.
fn poisonous(history: &History) -> Option<String> {
    let History { same_in_a_row: same, distinct_workers: workers, crashes, .. } = history;
    if *crashes >= CRASHES {
        return Some(format!("{crashes} workers crashed or lost their lease with this message"));
    }
    if history.group_messages >= MANY_MESSAGES {
        return None;
    }
    let everywhere = *same >= SAME_ON_WORKERS && *workers >= MANY_WORKERS;
    (everywhere || *same >= SAME_ANYWHERE).then(|| {
        format!(
            "the same error {same} times in a row on {workers} workers, and hardly any other message has it"
        )
    })
}

/// Shifts the shares of the three categories that an error alone can have.
fn weigh(class: &mut Class, history: &History) {
    let own = class.confidence.max(0.02);
    let rest = ((1.0 - own) / 2.0).clamp(0.01, 0.9 * own);
    let share = |category: Category| if class.category == category { own } else { rest };
    let mut transient = share(Category::Transient);
    let mut persistent = share(Category::Persistent);
    let mut resource = share(Category::Resource);
    let same = history.same_in_a_row.min(SAME_ANYWHERE);
    let mut reasons: Vec<String> = Vec::new();
    if same >= 3 && history.distinct_leaves <= 1 {
        persistent *= (2..same).fold(1.0, |factor: f32, _| factor * 1.8);
        reasons.push(format!("the same error {} times in a row", history.same_in_a_row));
    } else if history.distinct_leaves >= 2 && history.attempts > history.same_in_a_row {
        transient *= 1.5;
        reasons
            .push(format!("{} different errors in {} attempts", history.distinct_leaves, history.attempts));
    }
    // NaN is in no range, and so changes nothing.
    if history.group_messages >= MANY_MESSAGES && (0.0..0.1).contains(&history.spread) {
        transient *= 1.3;
        reasons.push(format!("{} other messages failed alike in one short burst", history.group_messages));
    }
    let (ok, failed) = counted(history.outcome_stats.redriven_ok, history.outcome_stats.redriven_failed);
    // An operator who closes letters has seen more than a passing problem.
    let by_hand = history.outcome_stats.abandoned.saturating_add(history.outcome_stats.resolved);
    let (abandoned, _) = counted(by_hand, 0);
    if reasons.is_empty() && ok + failed + abandoned < 0.5 {
        // The history adds nothing to the error itself.
        return;
    }
    // Success without a change is what transient means; failing again is the opposite.
    transient *= (1.0 + ok) / (1.0 + failed);
    resource *= (1.0 + 0.5 * ok) / (1.0 + 0.5 * failed);
    persistent *= (1.0 + failed + 0.25 * abandoned) / (1.0 + ok);
    // The present category wins a tie.
    let mut best = (class.category, 0.0);
    let all = [
        (Category::Transient, transient),
        (Category::Persistent, persistent),
        (Category::Resource, resource),
    ];
    for (category, share) in all {
        if share > best.1 || (share >= best.1 && category == class.category) {
            best = (category, share);
        }
    }
    set_category(class, best.0, (best.1 / (transient + persistent + resource)).min(0.98));
    reasons.iter().for_each(|reason| class.add_reason(reason));
}

/// Two counts of outcomes, scaled so that together they are at most [`OUTCOMES_COUNTED`].
fn counted(one: u32, other: u32) -> (f32, f32) {
    let number = |n: u32| f32::from(u16::try_from(n).unwrap_or(u16::MAX));
    let (one, other) = (number(one), number(other));
    let scale = (OUTCOMES_COUNTED / (one + other).max(1.0)).min(1.0);
    (one * scale, other * scale)
}

/// Adds the outcomes as reasons, and adjusts the recoverability.
fn apply_outcomes(class: &mut Class, outcome_stats: &OutcomeStats) {
    let OutcomeStats { redriven_ok: ok, redriven_failed: failed, abandoned, .. } = *outcome_stats;
    if ok > 0 || failed > 0 {
        class.add_reason(&format!("sent back before: {ok} succeeded, {failed} failed again"));
    }
    if abandoned > 0 {
        class.add_reason(&format!("given up before: {abandoned}"));
    }
    let tried = ok.saturating_add(failed);
    if tried >= 3 && failed > ok.saturating_mul(3) && class.recoverability == Recoverability::Automatic {
        class.recoverability = Recoverability::Manual;
    }
    if abandoned >= 3 && ok == 0 && class.recoverability == Recoverability::Manual {
        class.recoverability = Recoverability::Unlikely;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Severity;
    use crate::limits;
    use proptest::prelude::*;

    fn class(category: Category, confidence: f32) -> Class {
        Class::new(category, Route::Network, confidence)
    }

    fn history(change: impl FnOnce(&mut History)) -> History {
        let mut history = History { same_in_a_row: 1, attempts: 1, distinct_leaves: 1, ..History::default() };
        change(&mut history);
        history
    }

    fn category(history: &History) -> Category {
        with_history(&class(Category::Transient, 0.8), history).category
    }

    #[test]
    fn without_history_nothing_changes() {
        for category in [Category::Transient, Category::Persistent, Category::Resource] {
            for confidence in [0.1_f32, 0.34, 0.8, 0.99] {
                let before = class(category, confidence);
                let after = with_history(&before, &History::default());
                assert_eq!((after.category, after.route), (category, Route::Network), "{confidence}");
            }
        }
    }

    #[test]
    fn repeating_the_same_error_is_persistent_then_poison() {
        assert_eq!(category(&history(|h| h.same_in_a_row = 2)), Category::Transient);
        assert_eq!(category(&history(|h| h.same_in_a_row = 7)), Category::Persistent);
        assert_eq!(category(&history(|h| (h.same_in_a_row, h.distinct_workers) = (5, 2))), Category::Poison);
        assert_eq!(category(&history(|h| h.same_in_a_row = 10)), Category::Poison);
        let poison = with_history(&class(Category::Transient, 0.8), &history(|h| h.crashes = 3));
        assert_eq!((poison.category, poison.route), (Category::Poison, Route::Poison));
        assert_eq!(poison.recoverability, Recoverability::Unlikely);
    }

    #[test]
    fn many_messages_on_many_workers_are_systematic() {
        let many = |messages, workers| history(|h| (h.group_messages, h.group_workers) = (messages, workers));
        assert_eq!(category(&many(2, 9)), Category::Transient);
        assert_eq!(category(&many(99, 1)), Category::Transient);
        assert_eq!(category(&many(3, 2)), Category::Systematic);
        assert_eq!(
            category(&history(|h| (h.group_messages, h.same_in_a_row) = (3, 10))),
            Category::Systematic
        );
        let systematic = with_history(&class(Category::Transient, 0.8), &many(3, 2));
        assert_eq!((systematic.severity, systematic.route), (Severity::Critical, Route::Network));
    }

    #[test]
    fn outcomes_change_the_category() {
        let outcome_stats = |ok, failed| {
            history(|h| (h.outcome_stats.redriven_ok, h.outcome_stats.redriven_failed) = (ok, failed))
        };
        let persistent = class(Category::Persistent, 0.9);
        assert_eq!(with_history(&persistent, &outcome_stats(400, 4)).category, Category::Transient);
        assert_eq!(category(&outcome_stats(0, 5)), Category::Persistent);
        let assigned = history(|h| h.outcome_stats.operator_category = Some(Category::Resource));
        assert_eq!(with_history(&persistent, &assigned).category, Category::Resource);
        let abandoned = history(|h| h.outcome_stats.abandoned = 3);
        assert_eq!(with_history(&persistent, &abandoned).recoverability, Recoverability::Unlikely);
        let both = OutcomeStats { redriven_ok: u32::MAX, ..OutcomeStats::default() }.and(OutcomeStats {
            redriven_ok: 1,
            operator_category: Some(Category::Poison),
            ..OutcomeStats::default()
        });
        assert_eq!((both.redriven_ok, both.operator_category), (u32::MAX, Some(Category::Poison)));
    }

    fn any_history() -> impl Strategy<Value = History> {
        let number = || prop_oneof![0_u32..12, Just(u32::MAX)];
        let spread = prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(f64::NEG_INFINITY), -1.0..2.0];
        let operator_category = proptest::option::of(proptest::sample::select(Category::ALL));
        let outcome_stats = (number(), number(), number(), number(), operator_category).prop_map(
            |(redriven_ok, redriven_failed, resolved, abandoned, operator_category)| OutcomeStats {
                redriven_ok,
                redriven_failed,
                resolved,
                abandoned,
                operator_category,
            },
        );
        let numbers = (number(), number(), number(), number(), number(), number(), number());
        (numbers, spread, outcome_stats).prop_map(|(n, spread, outcome_stats)| History {
            same_in_a_row: n.0,
            attempts: n.1,
            distinct_leaves: n.2,
            distinct_workers: n.3,
            crashes: n.4,
            group_messages: n.5,
            group_workers: n.6,
            window: Span::from_hours(1),
            spread,
            outcome_stats,
        })
    }

    proptest! {
        #[test]
        fn no_history_makes_anything_permanent_or_exceeds_a_limit(
            history in any_history(),
            category in proptest::sample::select(Category::ALL),
            confidence in prop_oneof![Just(f32::NAN), Just(f32::INFINITY), -1.0_f32..2.0],
        ) {
            let mut before = class(category, 0.5);
            before.confidence = confidence;
            before.reasons = vec!["x".into(); limits::REASONS_MAX];
            let after = with_history(&before, &history);
            prop_assert!(!after.permanent);
            prop_assert!((0.0..=1.0).contains(&after.confidence), "{}", after.confidence);
            prop_assert!(after.reasons.len() <= limits::REASONS_MAX);
            prop_assert!(after.reasons.iter().all(|r| r.len() <= limits::REASON_BYTES_MAX));
            before.permanent = true;
            prop_assert!(with_history(&before, &history).permanent);
        }

        #[test]
        fn one_more_success_never_counts_against_transient(history in any_history(), confidence in 0.0_f32..1.0) {
            let of = |history: &History| with_history(&class(Category::Transient, confidence), history);
            let mut more = history.clone();
            more.outcome_stats.redriven_ok = more.outcome_stats.redriven_ok.saturating_add(1);
            let (before, after) = (of(&history), of(&more));
            if before.category == Category::Transient {
                prop_assert_eq!(after.category, Category::Transient);
                prop_assert!(after.confidence >= before.confidence - 1e-6);
            }
        }

        #[test]
        fn one_more_equal_failure_never_counts_for_transient(same in 1_u32..30, confidence in 0.0_f32..1.0) {
            let of = |same| with_history(&class(Category::Transient, confidence), &history(|h| h.same_in_a_row = same));
            if of(same).category != Category::Transient {
                prop_assert_ne!(of(same + 1).category, Category::Transient);
            }
        }
    }
}
