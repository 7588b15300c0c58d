//! What many failures tell about one: statistics over the message and its group, and what became of the group
//! when it was sent back or decided upon. Pure arithmetic over counts; whoever keeps the counts keeps them
//! durably.
//!
//! It must not make anything permanent, and no number it is given, not even one that is none, may break it.

use super::{Class, usual};
use crate::failure::{Category, Recoverability, Route};
use crate::poison::{self, CRASHES, SAME_ANYWHERE, SAME_OVER_WORKERS as SAME_ON_WORKERS};
use crate::time::Span;
use serde::{Deserialize, Serialize};

/// Other messages that fail alike from which on the cause is not the message.
const MANY_MESSAGES: u32 = poison::OTHERS_SYSTEMATIC;
/// Workers that see the same from which on the cause is not the worker.
const MANY_WORKERS: u32 = 2;
/// Outcomes beyond which more of them change nothing: a group may change its ways.
const OUTCOMES_COUNTED: f32 = 20.0;

/// What is known of a message and its group besides the error. Every number may be missing: 0.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct History {
    /// Failures of this message in a row with the same signature, this one included.
    pub same_in_a_row: u32,
    /// Executions of this message, this one included.
    pub attempts: u32,
    /// Different signatures among its failures.
    pub distinct_leaves: u32,
    /// Workers that failed with this message.
    pub distinct_workers: u32,
    /// Crashes and lost leases of this message.
    pub crashes: u32,
    /// Other messages that failed with this signature within the window.
    pub group_messages: u32,
    /// Workers that failed with this signature within the window.
    pub group_workers: u32,
    /// How far back the two above look.
    #[serde(rename = "window_ms")]
    pub window: Span,
    /// Share of the window in which the group failed, 0 to 1: a short burst is near 0.
    pub spread: f64,
    /// What became of the group before.
    pub lessons: Lessons,
}

/// Outcomes of a group: what teaches the classifier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lessons {
    /// Letters that were sent back unchanged and succeeded.
    pub redriven_ok: u32,
    /// Letters that were sent back unchanged and failed again.
    pub redriven_failed: u32,
    /// Letters that somebody resolved by hand.
    pub resolved: u32,
    /// Letters that somebody gave up.
    pub abandoned: u32,
    /// What an operator says the group is.
    pub said: Option<Category>,
}

impl Lessons {
    /// These outcomes and those, an operator's later word before an earlier one.
    #[must_use]
    pub fn and(self, later: Self) -> Self {
        Self {
            redriven_ok: self.redriven_ok.saturating_add(later.redriven_ok),
            redriven_failed: self.redriven_failed.saturating_add(later.redriven_failed),
            resolved: self.resolved.saturating_add(later.resolved),
            abandoned: self.abandoned.saturating_add(later.abandoned),
            said: later.said.or(self.said),
        }
    }
}

/// The verdict on an error in the light of its history.
#[must_use]
pub fn with_history(class: &Class, history: &History) -> Class {
    let lessons = &history.lessons;
    let mut judged = class.clone();
    judged.reasons.truncate(4);
    judged.confidence = if class.confidence.is_nan() { 0.0 } else { class.confidence.clamp(0.0, 1.0) };
    if let Some(said) = lessons.said {
        turn(&mut judged, said, 0.97);
        judged.because(&format!("an operator says that this group is {said}"));
    } else if let Some(why) = systematic(history) {
        turn(&mut judged, Category::Systematic, 0.9);
        judged.because(&why);
    } else if let Some(why) = poisonous(history) {
        turn(&mut judged, Category::Poison, 0.9);
        judged.because(&why);
    } else {
        weigh(&mut judged, history);
    }
    outcomes(&mut judged, lessons);
    judged
}

/// Another category, with what follows from it.
fn turn(class: &mut Class, category: Category, confidence: f32) {
    if class.category != category {
        class.category = category;
        (class.severity, class.recoverability) = usual(category);
    }
    if category == Category::Poison {
        class.route = Route::Poison;
    }
    class.confidence = confidence;
}

/// Many messages on several workers at once: the system, not the message.
fn systematic(history: &History) -> Option<String> {
    let History { group_messages: messages, group_workers: workers, .. } = history;
    let spread = *messages >= MANY_MESSAGES && *workers >= MANY_WORKERS;
    // One worker cannot say that it is not the worker, but a message is not to blame for others.
    let steady = *messages >= MANY_MESSAGES && history.same_in_a_row >= SAME_ANYWHERE;
    (spread || steady).then(|| {
        format!("{messages} other messages fail alike on {workers} workers: the system, not the message")
    })
}

/// The same error wherever this one message goes, or workers that do not come back from it.
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
    // A number that is none is in no range, and so changes nothing.
    if history.group_messages >= MANY_MESSAGES && (0.0..0.1).contains(&history.spread) {
        transient *= 1.3;
        reasons.push(format!("{} other messages failed alike in one short burst", history.group_messages));
    }
    let (ok, failed) = counted(history.lessons.redriven_ok, history.lessons.redriven_failed);
    // Whoever closed letters by hand saw more than time at work.
    let by_hand = history.lessons.abandoned.saturating_add(history.lessons.resolved);
    let (abandoned, _) = counted(by_hand, 0);
    if reasons.is_empty() && ok + failed + abandoned < 0.5 {
        // Nothing is known that the error does not say itself.
        return;
    }
    // Success when sent back unchanged is what transient means; failing again is the opposite of it.
    transient *= (1.0 + ok) / (1.0 + failed);
    resource *= (1.0 + 0.5 * ok) / (1.0 + 0.5 * failed);
    persistent *= (1.0 + failed + 0.25 * abandoned) / (1.0 + ok);
    // The category it has wins a tie.
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
    turn(class, best.0, (best.1 / (transient + persistent + resource)).min(0.98));
    reasons.iter().for_each(|reason| class.because(reason));
}

/// Two counts of outcomes as they count: in proportion, together at most so many.
fn counted(one: u32, other: u32) -> (f32, f32) {
    let number = |n: u32| f32::from(u16::try_from(n).unwrap_or(u16::MAX));
    let (one, other) = (number(one), number(other));
    let scale = (OUTCOMES_COUNTED / (one + other).max(1.0)).min(1.0);
    (one * scale, other * scale)
}

/// Tells what became of the group, and what that says about what it takes.
fn outcomes(class: &mut Class, lessons: &Lessons) {
    let Lessons { redriven_ok: ok, redriven_failed: failed, abandoned, .. } = *lessons;
    if ok > 0 || failed > 0 {
        class.because(&format!("sent back before: {ok} succeeded, {failed} failed again"));
    }
    if abandoned > 0 {
        class.because(&format!("given up before: {abandoned}"));
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

    fn judged(history: &History) -> Category {
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
    fn the_same_error_again_and_again_is_persistent_then_poison() {
        assert_eq!(judged(&history(|h| h.same_in_a_row = 2)), Category::Transient);
        assert_eq!(judged(&history(|h| h.same_in_a_row = 7)), Category::Persistent);
        assert_eq!(judged(&history(|h| (h.same_in_a_row, h.distinct_workers) = (5, 2))), Category::Poison);
        assert_eq!(judged(&history(|h| h.same_in_a_row = 10)), Category::Poison);
        let poison = with_history(&class(Category::Transient, 0.8), &history(|h| h.crashes = 3));
        assert_eq!((poison.category, poison.route), (Category::Poison, Route::Poison));
        assert_eq!(poison.recoverability, Recoverability::Unlikely);
    }

    #[test]
    fn many_messages_on_many_workers_are_systematic() {
        let many = |messages, workers| history(|h| (h.group_messages, h.group_workers) = (messages, workers));
        assert_eq!(judged(&many(2, 9)), Category::Transient);
        assert_eq!(judged(&many(99, 1)), Category::Transient);
        assert_eq!(judged(&many(3, 2)), Category::Systematic);
        assert_eq!(judged(&history(|h| (h.group_messages, h.same_in_a_row) = (3, 10))), Category::Systematic);
        let systematic = with_history(&class(Category::Transient, 0.8), &many(3, 2));
        assert_eq!((systematic.severity, systematic.route), (Severity::Critical, Route::Network));
    }

    #[test]
    fn outcomes_teach() {
        let lessons =
            |ok, failed| history(|h| (h.lessons.redriven_ok, h.lessons.redriven_failed) = (ok, failed));
        let persistent = class(Category::Persistent, 0.9);
        assert_eq!(with_history(&persistent, &lessons(400, 4)).category, Category::Transient);
        assert_eq!(judged(&lessons(0, 5)), Category::Persistent);
        let said = history(|h| h.lessons.said = Some(Category::Resource));
        assert_eq!(with_history(&persistent, &said).category, Category::Resource);
        let given_up = history(|h| h.lessons.abandoned = 3);
        assert_eq!(with_history(&persistent, &given_up).recoverability, Recoverability::Unlikely);
        let both = Lessons { redriven_ok: u32::MAX, ..Lessons::default() }.and(Lessons {
            redriven_ok: 1,
            said: Some(Category::Poison),
            ..Lessons::default()
        });
        assert_eq!((both.redriven_ok, both.said), (u32::MAX, Some(Category::Poison)));
    }

    fn any_history() -> impl Strategy<Value = History> {
        let number = || prop_oneof![0_u32..12, Just(u32::MAX)];
        let spread = prop_oneof![Just(f64::NAN), Just(f64::INFINITY), Just(f64::NEG_INFINITY), -1.0..2.0];
        let said = proptest::option::of(proptest::sample::select(Category::ALL));
        let lessons = (number(), number(), number(), number(), said).prop_map(
            |(redriven_ok, redriven_failed, resolved, abandoned, said)| Lessons {
                redriven_ok,
                redriven_failed,
                resolved,
                abandoned,
                said,
            },
        );
        let numbers = (number(), number(), number(), number(), number(), number(), number());
        (numbers, spread, lessons).prop_map(|(n, spread, lessons)| History {
            same_in_a_row: n.0,
            attempts: n.1,
            distinct_leaves: n.2,
            distinct_workers: n.3,
            crashes: n.4,
            group_messages: n.5,
            group_workers: n.6,
            window: Span::from_hours(1),
            spread,
            lessons,
        })
    }

    proptest! {
        #[test]
        fn no_history_makes_anything_permanent_or_breaks_a_bound(
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
        fn one_more_success_never_speaks_against_transient(history in any_history(), confidence in 0.0_f32..1.0) {
            let of = |history: &History| with_history(&class(Category::Transient, confidence), history);
            let mut more = history.clone();
            more.lessons.redriven_ok = more.lessons.redriven_ok.saturating_add(1);
            let (before, after) = (of(&history), of(&more));
            if before.category == Category::Transient {
                prop_assert_eq!(after.category, Category::Transient);
                prop_assert!(after.confidence >= before.confidence - 1e-6);
            }
        }

        #[test]
        fn one_more_failure_alike_never_speaks_for_transient(same in 1_u32..30, confidence in 0.0_f32..1.0) {
            let of = |same| with_history(&class(Category::Transient, confidence), &history(|h| h.same_in_a_row = same));
            if of(same).category != Category::Transient {
                prop_assert_ne!(of(same + 1).category, Category::Transient);
            }
        }
    }
}
