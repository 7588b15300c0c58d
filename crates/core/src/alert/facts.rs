//! What the rules look at: numbers that are high or low now, and counts that only grow. The same store gives the same
//! facts, whoever gathers them.

use super::Rule;
use crate::breaker::{BreakerState, BreakerView};
use crate::group::{Group, GroupStatus};
use crate::limits;
use crate::metrics::{Event, Stats, Timer};
use crate::operation::{HaltReason, Operation, Stage};
use crate::store::StoreInfo;
use crate::time::{Span, Time};
use std::collections::{BTreeMap, BTreeSet};

/// Stands for all subjects beyond a limit.
pub(super) const OTHERS: &str = "others";
/// Characters of a group's template in a notice.
const TEMPLATE_CHARS: usize = 200;

/// A number that is high or low now.
#[derive(Clone, Debug, PartialEq)]
pub struct LevelFact {
    /// The rule that looks at it.
    pub rule: Rule,
    /// What it is about.
    pub subject: String,
    /// The value.
    pub value: f64,
    /// What a person should know beside the value. Empty if the value says it all.
    pub detail: String,
    /// Since when it is so, if that is known.
    pub since: Option<Time>,
}

impl LevelFact {
    fn new(rule: Rule, subject: impl Into<String>, value: f64) -> Self {
        let subject = subject.into().chars().take(limits::ALERT_SUBJECT_CHARS_MAX).collect();
        Self { rule, subject, value, detail: String::new(), since: None }
    }

    /// Describes the fact, with the limit where that is a number of the same kind.
    #[must_use]
    pub fn text(&self, limit: f64) -> String {
        let (value, detail) = (self.value, &self.detail);
        let span = |ms: f64| {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "shown to people")]
            let seconds = (ms / 1_000.0) as u64;
            Span::from_secs(if seconds > 3_600 { seconds / 60 * 60 } else { seconds })
        };
        match self.rule {
            Rule::Depth => format!(
                "{}; the limit is {limit}",
                counted(value, "dead letter is open", "dead letters are open")
            ),
            Rule::Growth => {
                format!("{value:.0} more dead letters are open than before; the limit is {limit}")
            }
            Rule::OldestAge => {
                format!("the oldest open dead letter is {} old; the limit is {}", span(value), span(limit))
            }
            Rule::NewGroup => format!("a new kind of failure: {detail}"),
            Rule::RegressedGroup => format!("a failure that was resolved is back: {detail}"),
            Rule::BreakerOpen | Rule::OperationHalted | Rule::StoreDegraded | Rule::Retention => {
                detail.clone()
            }
            Rule::Poison => {
                counted(value, "message was found to be poison", "messages were found to be poison")
            }
            Rule::Abandoned => counted(value, "dead letter was abandoned", "dead letters were abandoned"),
            Rule::SlowEnqueue => {
                format!("95% of enqueues take up to {value:.1} ms; the limit is {limit} ms")
            }
            Rule::Utilisation => {
                format!("it is {:.0}% full; the limit is {:.0}%", value * 100.0, limit * 100.0)
            }
            Rule::DeadLetterRate => format!("{value:.1} messages die per second; the limit is {limit}"),
            Rule::Disk => {
                format!(
                    "the disk of the store is {:.0}% full; the limit is {:.0}%",
                    value * 100.0,
                    limit * 100.0
                )
            }
        }
    }
}

/// A number with what is counted.
fn counted(value: f64, one: &str, more: &str) -> String {
    format!("{value:.0} {}", if value == 1.0 { one } else { more })
}

/// A number of events that only grows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountFact {
    /// The rule that looks at it.
    pub rule: Rule,
    /// What it is about.
    pub subject: String,
    /// The number so far.
    pub count: u64,
}

/// Everything the rules look at.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// Numbers that are high or low now. A rule whose subject is missing here has the value 0.
    pub levels: Vec<LevelFact>,
    /// Numbers of events.
    pub counts: Vec<CountFact>,
    /// Rules whose facts could not be gathered completely. What is missing of them says nothing.
    pub partial: BTreeSet<Rule>,
}

/// The facts that follow from the counters and measurements of a store.
#[must_use]
pub fn facts_of_stats(stats: &Stats) -> Facts {
    let mut facts = Facts::default();
    if let Some(enqueue) = stats.process.timer(Timer::Enqueue) {
        #[expect(clippy::cast_precision_loss, reason = "microseconds of one call")]
        let ms = enqueue.p95_us as f64 / 1_000.0;
        facts.levels.push(LevelFact::new(Rule::SlowEnqueue, "store", ms));
    }
    let deaths = stats.process.dead_per_second;
    facts.levels.push(LevelFact::new(Rule::DeadLetterRate, "store", deaths));
    for queue in &stats.queues {
        let name = queue.queue.as_str();
        if let Some(full) = queue.utilisation() {
            facts.levels.push(LevelFact::new(Rule::Utilisation, name, full));
        }
        if queue.letters_open > 0 {
            #[expect(clippy::cast_precision_loss, reason = "compared with a limit")]
            let open = queue.letters_open as f64;
            facts.levels.push(LevelFact::new(Rule::Depth, name, open));
        }
    }
    if let Some(age) = stats.oldest_open() {
        #[expect(clippy::cast_precision_loss, reason = "compared with a limit")]
        let ms = age.as_millis() as f64;
        facts.levels.push(LevelFact::new(Rule::OldestAge, "store", ms));
    }
    facts.count_events(stats);
    facts
}

impl Facts {
    fn count_events(&mut self, stats: &Stats) {
        let mut counts: BTreeMap<Rule, BTreeMap<&str, u64>> = BTreeMap::new();
        for counter in &stats.counters {
            let poison = counter.labels.get("reason").is_some_and(|reason| reason == "poison");
            let rule = match counter.event {
                Event::Dead if poison => Rule::Poison,
                Event::Abandoned => Rule::Abandoned,
                Event::Enqueued
                | Event::Leased
                | Event::Acked
                | Event::Failed
                | Event::Retried
                | Event::GivenBack
                | Event::LeasesLost
                | Event::Dead
                | Event::DeadByError
                | Event::DeadByKind
                | Event::Redriven
                | Event::RedriveSucceeded
                | Event::RedriveFailed
                | Event::PulledBack
                | Event::Resolved
                | Event::Reviewed
                | Event::Quarantined
                | Event::Processed
                | Event::Discarded
                | Event::Expired
                | Event::Cancelled
                | Event::Imported
                | Event::Replied
                | Event::Overflowed => continue,
            };
            let counts = counts.entry(rule).or_default();
            let known =
                counts.len() < limits::ALERTS_COUNTED_MAX || counts.contains_key(counter.queue.as_str());
            let subject = if known { counter.queue.as_str() } else { OTHERS };
            let sum = counts.entry(subject).or_default();
            *sum = sum.saturating_add(counter.totals.count);
        }
        for (rule, counts) in counts {
            let fact = |(subject, count): (&str, u64)| CountFact { rule, subject: subject.to_owned(), count };
            self.counts.extend(counts.into_iter().map(fact));
        }
    }

    /// Adds groups that are new or regressed and have made dead letters.
    pub fn add_groups(&mut self, groups: &[Group]) {
        for group in groups {
            let rule = match group.status {
                GroupStatus::New if group.total > 0 => Rule::NewGroup,
                GroupStatus::Regressed => Rule::RegressedGroup,
                GroupStatus::New
                | GroupStatus::Acknowledged
                | GroupStatus::Resolved
                | GroupStatus::Ignored => continue,
            };
            let template: String = group.template.chars().take(TEMPLATE_CHARS).collect();
            let queues: Vec<&str> = group.queues.iter().take(3).map(|queue| queue.as_str()).collect();
            let letters = group.open;
            self.levels.push(LevelFact {
                detail: format!("{}: {template} ({letters} open in {})", group.error_type, queues.join(", ")),
                since: (rule == Rule::NewGroup).then_some(group.first_seen),
                ..LevelFact::new(rule, group.id.to_string(), 1.0)
            });
        }
    }

    /// Adds breakers that hold messages back.
    pub fn add_breakers(&mut self, breakers: &[BreakerView]) {
        for breaker in breakers {
            let state = match breaker.state {
                BreakerState::Closed => continue,
                BreakerState::Open => "open",
                BreakerState::HalfOpen => "half open",
            };
            let why = breaker.events.last().map(|event| format!(": {}", event.why)).unwrap_or_default();
            self.levels.push(LevelFact {
                detail: format!("the breaker is {state} and holds {} messages{why}", breaker.held),
                since: Some(breaker.since),
                ..LevelFact::new(Rule::BreakerOpen, format!("{}/{}", breaker.queue, breaker.key), 1.0)
            });
        }
    }

    /// Adds operations that halted by themselves.
    pub fn add_operations(&mut self, operations: &[Operation]) {
        for operation in operations {
            let Some(halt) = operation.halt.as_ref().filter(|_| operation.stage == Stage::Paused) else {
                continue;
            };
            match halt.reason {
                HaltReason::Operator => continue,
                HaltReason::SameFailure | HaltReason::BreakerOpen => {}
            }
            self.levels.push(LevelFact {
                detail: format!("the operation halted: {}", halt.text),
                since: Some(halt.at),
                ..LevelFact::new(Rule::OperationHalted, operation.id.to_string(), 1.0)
            });
        }
    }

    /// Adds what the store says about itself.
    pub fn add_store(&mut self, info: &StoreInfo) {
        if !info.degraded.is_empty() {
            self.levels.push(LevelFact {
                detail: info.degraded.join("; "),
                ..LevelFact::new(Rule::StoreDegraded, "store", 1.0)
            });
        }
    }

    /// Adds how full the disk of the store is, from 0 to 1.
    pub fn add_disk(&mut self, used: f64) {
        self.levels.push(LevelFact::new(Rule::Disk, "store", used));
    }

    /// Adds a queue with open letters that its `open_ttl` drops within `window`.
    pub fn add_retention(&mut self, queue: &str, window: Span) {
        self.levels.push(LevelFact {
            detail: format!(
                "open dead letters will be dropped within {window} by the open_ttl of their queue"
            ),
            ..LevelFact::new(Rule::Retention, queue, 1.0)
        });
    }
}
