//! What a commit will have measured once it has happened. A commit that is undone leaves no trace in the metrics.

use super::process;
use redrive_core::metrics::{Counter, Event, Timer};
use redrive_core::time::{Span, Time};

/// Measurements that wait for their commit.
#[derive(Debug, Default)]
pub(crate) struct AfterCommit {
    spans: Vec<(Timer, Span)>,
    deaths: Vec<Time>,
    starved: u64,
}

impl AfterCommit {
    /// Notes a span of the store's clock.
    pub(crate) fn span(&mut self, timer: Timer, span: Span) {
        self.spans.push((timer, span));
    }

    /// Notes what is measured about an event that is also counted in the store.
    pub(crate) fn event(&mut self, event: Event, amount: u64, now: Time) {
        if event == Event::Dead {
            self.deaths.push(now);
        }
        if matches!(event, Event::Resolved | Event::RedriveSucceeded) {
            self.span(Timer::ResolutionTime, Span::from_millis(amount));
        }
    }

    /// Notes a pick that was made out of turn.
    pub(crate) fn starvation(&mut self) {
        self.starved += 1;
    }

    /// Records everything: the commit has happened.
    pub(crate) fn record(&mut self) {
        for (timer, span) in self.spans.drain(..) {
            process().record_span(timer, span);
        }
        for at in self.deaths.drain(..) {
            process().deaths.mark(at);
        }
        match std::mem::take(&mut self.starved) {
            0 => {}
            starved => process().count(Counter::Starvation, starved),
        }
    }
}
