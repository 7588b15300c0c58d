//! All metrics in one table: every exported name with its kind, unit, labels and meaning. An [`Event`] is counted by
//! the store in the commit that causes it, so that it survives a restart. A [`Snapshot`] is what one process measured
//! about itself. [`Stats`] is both, read at one moment. Nothing here is recorded, rendered or sent: the store records,
//! and `redrive::metrics` and the server render.

mod measured;
mod open;
mod report;
mod stats;
#[cfg(test)]
mod tests;

pub use crate::alert::AlertLevel;
pub use measured::{Counter, Gauge, HistogramSnapshot, Snapshot, Timer};
pub use open::{OpenCounts, OpenKey, OpenLetters};
pub use report::{Alert, Report, report, report_with};
pub use stats::{CounterKey, CounterTotals, CounterView, Counters, QueueStats, Stats, Summary};

use serde::{Deserialize, Serialize};

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// A distribution: buckets, count and sum, so that the distributions of several processes add up.
    Histogram,
}

/// One exported name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Definition {
    /// The name.
    pub name: &'static str,
    /// The kind of the metric.
    pub kind: Kind,
    /// The unit of its values.
    pub unit: &'static str,
    /// Its labels, in order.
    pub labels: &'static [&'static str],
    /// What it means.
    pub help: &'static str,
}

/// The metrics for the amount of an event, beside the number of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amount {
    /// The sum of the amounts.
    pub total: Definition,
    /// The highest amount.
    pub max: Definition,
}

/// Declares the events: a key in the store, a metric for their number, and, if an event has an amount, two more for its
/// sum and its maximum.
macro_rules! events {
    ($($(#[doc = $help:literal])+ $variant:ident = $key:literal, $name:literal, [$($label:literal),*]
        $(, $unit:literal $total:literal $max:literal)?;)+) => {
        /// What a store counts, in the commit that causes it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub enum Event { $($(#[doc = $help])+ #[serde(rename = $key)] $variant),+ }

        impl Event {
            /// All events, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Its key in the store and in JSON.
            #[must_use]
            pub const fn key(self) -> &'static str {
                match self { $(Self::$variant => $key),+ }
            }

            /// The metric for the number of events.
            #[must_use]
            pub const fn number(self) -> Definition {
                match self { $(Self::$variant => Definition {
                    name: $name,
                    kind: Kind::Counter,
                    unit: "events",
                    labels: &["queue", $($label),*],
                    help: concat!($($help),+),
                }),+ }
            }

            /// The metrics for its amount, if it has one.
            #[must_use]
            pub const fn amount(self) -> Option<Amount> {
                match self { $(Self::$variant => events!(@amount [$($label),*] $(, $unit $total $max)?)),+ }
            }
        }
    };
    (@amount [$($label:literal),*]) => { None };
    (@amount [$($label:literal),*], $unit:literal $total:literal $max:literal) => {
        Some(Amount {
            total: Definition {
                name: $total,
                kind: Kind::Counter,
                unit: $unit,
                labels: &["queue", $($label),*],
                help: "Their sum.",
            },
            max: Definition {
                name: $max,
                kind: Kind::Gauge,
                unit: $unit,
                labels: &["queue", $($label),*],
                help: "The highest.",
            },
        })
    };
}

events! {
    /// Messages accepted, replies included, with their payload bytes.
    Enqueued = "enqueued", "redrive_enqueued_total", ["kind", "priority"],
        "bytes" "redrive_enqueued_bytes_total" "redrive_enqueued_bytes_max";
    /// Deliveries handed out, with the time the message had been due.
    Leased = "leased", "redrive_leased_total", [],
        "milliseconds" "redrive_due_wait_ms_total" "redrive_due_wait_ms_max";
    /// Messages done, with the executions it took.
    Acked = "acked", "redrive_acked_total", ["kind"],
        "executions" "redrive_acked_attempts_total" "redrive_acked_attempts_max";
    /// Failed deliveries, with the time they took.
    Failed = "failed", "redrive_failed_total", ["route", "category"],
        "milliseconds" "redrive_failed_duration_ms_total" "redrive_failed_duration_ms_max";
    /// Retries, with the delay before each.
    Retried = "retried", "redrive_retried_total", [],
        "milliseconds" "redrive_backoff_ms_total" "redrive_backoff_ms_max";
    /// Deliveries given back without an attempt: released or snoozed.
    GivenBack = "given_back", "redrive_given_back_total", [];
    /// Leases that ran out.
    LeasesLost = "leases_lost", "redrive_leases_lost_total", [];
    /// Deaths, with the executions it took.
    Dead = "dead", "redrive_dead_total", ["reason", "route", "category"],
        "executions" "redrive_dead_attempts_total" "redrive_dead_attempts_max";
    /// Deaths by the type of the last error.
    DeadByError = "dead_by_error", "redrive_dead_by_error_total", ["error_type"];
    /// Deaths by kind, priority and the dead letter queue they led to.
    DeadByKind = "dead_by_kind", "redrive_dead_by_kind_total", ["kind", "priority", "dlq"];
    /// Letters that were redriven.
    Redriven = "redriven", "redrive_redriven_total", [];
    /// Redriven messages that were done, with the time since their death.
    RedriveSucceeded = "redrive_succeeded", "redrive_redrive_succeeded_total", [],
        "milliseconds" "redrive_redriven_age_ms_total" "redrive_redriven_age_ms_max";
    /// Redriven messages that died again.
    RedriveFailed = "redrive_failed", "redrive_redrive_failed_total", [];
    /// Redriven messages that were pulled back before a worker leased them.
    PulledBack = "pulled_back", "redrive_pulled_back_total", [];
    /// Letters that were resolved, with the time since their death.
    Resolved = "resolved", "redrive_resolved_total", [],
        "milliseconds" "redrive_resolved_age_ms_total" "redrive_resolved_age_ms_max";
    /// Letters that were abandoned, with the time since their death.
    Abandoned = "abandoned", "redrive_abandoned_total", [],
        "milliseconds" "redrive_abandoned_age_ms_total" "redrive_abandoned_age_ms_max";
    /// Letters that were put up for review.
    Reviewed = "reviewed", "redrive_reviews_total", [];
    /// Letters that were quarantined.
    Quarantined = "quarantined", "redrive_quarantined_total", [];
    /// Letters that a dead-letter consumer dealt with, by how: done, failed or released.
    Processed = "processed", "redrive_letters_processed_total", ["outcome"];
    /// Messages and letters removed, by what: message, letter, retention or hand_over.
    Discarded = "discarded", "redrive_discarded_total", ["what"];
    /// Messages that were dropped because their time was over.
    Expired = "expired", "redrive_expired_total", [];
    /// Messages that were cancelled.
    Cancelled = "cancelled", "redrive_cancelled_total", [];
    /// Letters that were imported.
    Imported = "imported", "redrive_imported_total", [];
    /// Replies that were due, by status: done, dead, expired, or left_out when there was no place for it.
    Replied = "replied", "redrive_replies_total", ["status"];
    /// Enqueues refused because their queue was full.
    Overflowed = "overflowed", "redrive_overflow_total", [];
}

/// The gauges that are read from the current state of a store.
pub const STORE_GAUGES: [Definition; 14] = [
    store_gauge("redrive_queue_messages", "messages", &["queue", "state"], "Messages waiting or leased."),
    store_gauge("redrive_queue_bytes", "bytes", &["queue"], "Payload bytes of waiting and leased messages."),
    store_gauge("redrive_queue_peak", "messages", &["queue"], "Most messages the queue ever held."),
    store_gauge(
        "redrive_queue_utilisation",
        "ratio",
        &["queue"],
        "Messages held, as a part of `max_messages`.",
    ),
    store_gauge("redrive_letters_open", "letters", &["queue"], "Dead letters that are not closed."),
    store_gauge("redrive_letters_peak", "letters", &["queue"], "Most dead letters the queue ever had."),
    store_gauge(
        "redrive_letters_open_by_kind",
        "letters",
        &["queue", "kind", "priority"],
        "Dead letters that are not closed, by kind and priority.",
    ),
    store_gauge(
        "redrive_dlq_letters",
        "letters",
        &["dlq", "status"],
        "Dead letters by dead letter queue and status.",
    ),
    store_gauge("redrive_store_messages_peak", "messages", &[], "Most messages the store held at once."),
    store_gauge("redrive_store_letters_peak", "letters", &[], "Most dead letters the store held at once."),
    store_gauge(
        "redrive_oldest_open_letter_seconds",
        "seconds",
        &[],
        "Age of the oldest letter that is not closed.",
    ),
    store_gauge(
        "redrive_dead_per_second",
        "letters",
        &[],
        "Deaths per second over the last ten seconds that this process recorded; 0 unless it holds the store.",
    ),
    store_gauge(
        "redrive_retry_success_rate",
        "ratio",
        &["queue"],
        "Redriven messages that were done, as a part of those that were done or died again.",
    ),
    store_gauge(
        "redrive_store_degraded",
        "reasons",
        &[],
        "Reasons why the store is degraded; 0 if it is not.",
    ),
];

/// The version of the program.
pub const BUILD_INFO: Definition = Definition {
    name: "redrive_build_info",
    kind: Kind::Gauge,
    unit: "constant",
    labels: &["version"],
    help: "Always 1; the label is the version of the program.",
};

/// What a server measures about the requests it answers.
pub mod http {
    use super::{Definition, Kind};

    /// Requests by route, method and class of status.
    pub const REQUESTS: Definition = Definition {
        name: "redrive_http_requests_total",
        kind: Kind::Counter,
        unit: "requests",
        labels: &["route", "method", "status"],
        help: "Requests answered, by the template of the route, the method and the class of the status.",
    };
    /// How long the replies took.
    pub const SECONDS: Definition = Definition {
        name: "redrive_http_request_seconds",
        kind: Kind::Histogram,
        unit: "seconds",
        labels: &["route", "method"],
        help: "From the head of a request to the head of its reply.",
    };
    /// Requests without a reply yet.
    pub const IN_FLIGHT: Definition = Definition {
        name: "redrive_http_requests_in_flight",
        kind: Kind::Gauge,
        unit: "requests",
        labels: &[],
        help: "Requests without a reply yet, long polls included.",
    };
    /// Callers that wait for work.
    pub const LONG_POLLS: Definition = Definition {
        name: "redrive_http_long_polls",
        kind: Kind::Gauge,
        unit: "requests",
        labels: &[],
        help: "Requests that wait for work.",
    };
    /// Clients of event streams.
    pub const EVENT_STREAMS: Definition = Definition {
        name: "redrive_http_event_streams",
        kind: Kind::Gauge,
        unit: "streams",
        labels: &[],
        help: "Event streams that are open.",
    };
    /// All of them.
    pub const ALL: [Definition; 5] = [REQUESTS, SECONDS, IN_FLIGHT, LONG_POLLS, EVENT_STREAMS];
}

const fn store_gauge(
    name: &'static str,
    unit: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Definition {
    Definition { name, kind: Kind::Gauge, unit, labels, help }
}

/// All exported metrics. `docs/observability.md` documents each of them, and a test compares the two.
#[must_use]
pub fn definitions() -> Vec<Definition> {
    let mut all = Vec::new();
    for event in Event::ALL {
        all.push(event.number());
        all.extend(event.amount().into_iter().flat_map(|amount| [amount.total, amount.max]));
    }
    all.extend(STORE_GAUGES);
    all.push(BUILD_INFO);
    all.extend(http::ALL);
    all.extend(Timer::ALL.iter().map(|timer| timer.definition()));
    all.extend(Counter::ALL.iter().map(|counter| counter.definition()));
    all.extend(Gauge::ALL.iter().map(|gauge| gauge.definition()));
    all
}
