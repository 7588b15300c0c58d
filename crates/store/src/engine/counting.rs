//! Counts events of messages and letters, in the commit that causes them. Changes nothing but the counters.

use super::Engine;
use super::tables::{TableResult, Tables};
use redrive_core::dead_letter::{Act, LetterRecord, Status};
use redrive_core::ids::QueueName;
use redrive_core::lifecycle::{Command, Effect, Final, Lifecycle};
use redrive_core::message::MessageMeta;
use redrive_core::metrics::{CounterKey, Counters, Event};
use redrive_core::time::Time;

impl<T: Tables> Engine<T> {
    /// Counts an event for the statistics, in this commit.
    pub(super) fn count_event(
        &mut self,
        event: Event,
        queue: &QueueName,
        labels: &[&str],
        amount: u64,
        now: Time,
    ) -> TableResult<()> {
        self.cached_writes += 1;
        if self.cache.event_counters.is_none() {
            self.cache.event_counters = Some(Counters::new(self.tables.event_counters()?));
        }
        if let Some(counters) = &mut self.cache.event_counters {
            let key = counters.add(CounterKey::new(event, queue, labels), amount, now);
            self.cache.event_counters_changed.insert(key);
        }
        self.after_commit.event(event, amount, now);
        Ok(())
    }

    /// Counts one transition of a message. Deaths and failures are counted where they are recorded.
    pub(super) fn count_step(
        &mut self,
        meta: &MessageMeta,
        (lifecycle, next): (&Lifecycle, &Lifecycle),
        command: &Command,
        effect: Effect,
        now: Time,
    ) -> TableResult<()> {
        let queue = &meta.queue;
        if matches!(command, Command::LoseLease { .. }) {
            self.count_event(Event::LeasesLost, queue, &[], 0, now)?;
        }
        match effect {
            Effect::Granted => {
                self.count_event(Event::Leased, queue, &[], now.since(lifecycle.ready_at).as_millis(), now)
            }
            Effect::Retried => {
                self.count_event(Event::Retried, queue, &[], next.ready_at.since(now).as_millis(), now)
            }
            Effect::GivenBack => self.count_event(Event::GivenBack, queue, &[], 0, now),
            Effect::Ended(Final::Done) => {
                self.count_event(Event::Acked, queue, &[&meta.kind], u64::from(next.attempts), now)
            }
            Effect::Ended(Final::Expired) => self.count_event(Event::Expired, queue, &[], 0, now),
            Effect::Ended(Final::Cancelled) => self.count_event(Event::Cancelled, queue, &[], 0, now),
            Effect::Ended(Final::Purged) => self.count_event(Event::Discarded, queue, &["message"], 0, now),
            Effect::Extended | Effect::Died(_) | Effect::Revived | Effect::PulledBack => Ok(()),
        }
    }

    /// Counts a death.
    pub(super) fn count_death(
        &mut self,
        meta: &MessageMeta,
        lifecycle: &Lifecycle,
        record: &LetterRecord,
        error_type: &str,
        now: Time,
    ) -> TableResult<()> {
        let labels = [record.reason.name(), record.route.name(), record.category.name()];
        self.count_event(Event::Dead, &meta.queue, &labels, u64::from(lifecycle.attempts), now)?;
        self.count_event(Event::DeadByError, &meta.queue, &[error_type], 0, now)?;
        let labels = [meta.kind.as_str(), meta.priority.name(), record.dlq.as_str()];
        self.count_event(Event::DeadByKind, &meta.queue, &labels, 0, now)?;
        if record.status == Status::Quarantined {
            self.count_event(Event::Quarantined, &meta.queue, &[], 0, now)?;
        }
        Ok(())
    }

    /// Counts an action on a letter, by what it led to.
    pub(super) fn count_act(
        &mut self,
        meta: &MessageMeta,
        record: &LetterRecord,
        act: &Act,
        led_to: Status,
        now: Time,
    ) -> TableResult<()> {
        let age = now.since(record.dead_at).as_millis();
        let (event, amount) = match act {
            Act::Retry(_) if led_to == Status::Resolved => (Event::Resolved, age),
            Act::Retry(_) => (Event::Redriven, 0),
            Act::PullBack => (Event::PulledBack, 0),
            Act::Resolve => (Event::Resolved, age),
            Act::Abandon => (Event::Abandoned, age),
            Act::Review => (Event::Reviewed, 0),
            Act::Quarantine { .. } => (Event::Quarantined, 0),
            Act::Release
            | Act::Reopen
            | Act::Note
            | Act::Purge
            | Act::Unpurge
            | Act::Move { .. }
            | Act::Hold { .. }
            | Act::Snooze { .. }
            | Act::Assign { .. }
            | Act::Label { .. }
            | Act::Edit(_)
            | Act::Patch(_)
            | Act::Restore { .. }
            | Act::Erase => return Ok(()),
        };
        self.count_event(event, &meta.queue, &[], amount, now)
    }
}
