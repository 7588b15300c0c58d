//! How failures are handled according to their category and their route. These are plain tables that
//! [`crate::policy::judge`] consults.

use crate::backoff::{Backoff, Growth, Jitter};
use crate::failure::{Category, Route, named};
use crate::time::Span;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Which rules decide when and how often a message is retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// The queue's own rules, for every failure.
    #[default]
    Queue,
    /// The rules of the latest failure's category, with the queue's `max_attempts` as a ceiling.
    ByCategory,
}

/// The strategy of a category: its backoff and the number of retries.
#[must_use]
pub fn strategy_of(category: Category) -> (Backoff, u32) {
    let exponential = |initial, cap, multiplier, jitter| Backoff {
        initial,
        cap,
        floor: Span::ZERO,
        growth: Growth::Exponential { multiplier },
        jitter,
    };
    let minutes = |n: u64| Span::from_secs(n * 60);
    match category {
        Category::Transient => {
            (exponential(Span::from_millis(100), Span::from_secs(30), 1.5, Jitter::Equal), 10)
        }
        Category::Persistent => (exponential(Span::from_secs(1), minutes(5), 2.0, Jitter::Full), 5),
        Category::Resource => (exponential(Span::from_secs(5), minutes(10), 2.0, Jitter::Decorrelated), 3),
        Category::Poison => (exponential(minutes(1), minutes(60), 3.0, Jitter::Full), 2),
        Category::Systematic => (exponential(Span::from_secs(30), minutes(30), 2.0, Jitter::Full), 3),
    }
}

/// The largest number of executions that any category allows, which makes it a ceiling without effect.
#[must_use]
pub fn attempts_of_any_category() -> u32 {
    Category::ALL.iter().map(|category| strategy_of(*category).1 + 1).max().unwrap_or(1)
}

named! {
    /// How failures of a route are handled.
    Handling, "handling", {
        /// Retry with the backoff of the queue or the category.
        Backoff = "backoff",
        /// Retry with backoff, and rely on the queue's breaker to hold messages back.
        Breaker = "breaker",
        /// Retry soon: after the first delay of the backoff, but at most [`FAST`]. The delay does not grow.
        FastRetry = "fast_retry",
        /// Quarantine the dead letter for [`QUARANTINE`]. Bulk redrives leave it out until then.
        Quarantine = "quarantine",
        /// Quarantine the dead letter for as long as poison.
        LongQuarantine = "long_quarantine",
        /// Raise an alert: the dead letter is marked and its severity is at least high.
        Alert = "alert",
    }
}

impl Handling {
    /// The default handling of a route.
    #[must_use]
    pub const fn of(route: Route) -> Self {
        match route {
            Route::Network => Self::Backoff,
            Route::Agent => Self::Breaker,
            Route::Corruption => Self::Quarantine,
            Route::Timeout => Self::FastRetry,
            Route::Poison => Self::LongQuarantine,
            Route::System => Self::Alert,
        }
    }
}

/// The longest delay of a fast retry.
pub const FAST: Span = Span::from_secs(1);
/// How long the letters of a quarantined route stay in quarantine.
pub const QUARANTINE: Span = Span::from_secs(3_600);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_category_has_its_documented_numbers() {
        let table = [
            (Category::Transient, 100, 30_000, 1.5, Jitter::Equal, 10),
            (Category::Persistent, 1_000, 300_000, 2.0, Jitter::Full, 5),
            (Category::Resource, 5_000, 600_000, 2.0, Jitter::Decorrelated, 3),
            (Category::Poison, 60_000, 3_600_000, 3.0, Jitter::Full, 2),
            (Category::Systematic, 30_000, 1_800_000, 2.0, Jitter::Full, 3),
        ];
        assert_eq!(table.len(), Category::ALL.len());
        for (category, initial, cap, multiplier, jitter, retries) in table {
            let (backoff, n) = strategy_of(category);
            assert_eq!((backoff.initial.as_millis(), backoff.cap.as_millis()), (initial, cap), "{category}");
            assert_eq!(
                (backoff.growth, backoff.jitter, n),
                (Growth::Exponential { multiplier }, jitter, retries)
            );
        }
        assert_eq!(attempts_of_any_category(), 11);
    }

    #[test]
    fn every_route_has_a_handling() {
        let all: Vec<&str> = Route::ALL.iter().map(|route| Handling::of(*route).name()).collect();
        assert_eq!(all, ["backoff", "breaker", "quarantine", "fast_retry", "long_quarantine", "alert"]);
    }
}
