//! What is counted of a message's life, in the commit that causes it. It says what happened and changes nothing.

use super::Engine;
use super::tables::{Kept, Tables};
use redrive_core::dead_letter::{Act, File, Status};
use redrive_core::lifecycle::{Command, Effect, Final, Life};
use redrive_core::message::Slip;
use redrive_core::metrics::{self, Event};
use redrive_core::time::Time;

impl<T: Tables> Engine<T> {
    /// Counts one step: the life before and after it. Deaths and failures are counted where they are filed.
    pub(super) fn count_step(
        &mut self,
        slip: &Slip,
        (life, next): (&Life, &Life),
        command: &Command,
        effect: Effect,
        now: Time,
    ) -> Kept<()> {
        let queue = &slip.queue;
        if matches!(command, Command::LoseLease { .. }) {
            self.tally(Event::LeasesLost, queue, &[], 0, now)?;
        }
        match effect {
            Effect::Granted => {
                self.tally(Event::Leased, queue, &[], now.since(life.ready_at).as_millis(), now)
            }
            Effect::Retried => {
                self.tally(Event::Retried, queue, &[], next.ready_at.since(now).as_millis(), now)
            }
            Effect::GivenBack => self.tally(Event::GivenBack, queue, &[], 0, now),
            Effect::Ended(Final::Done) => {
                self.tally(Event::Acked, queue, &[&slip.kind], u64::from(next.attempts), now)
            }
            Effect::Ended(Final::Expired) => self.tally(Event::Expired, queue, &[], 0, now),
            Effect::Ended(Final::Cancelled) => self.tally(Event::Cancelled, queue, &[], 0, now),
            Effect::Ended(Final::Purged) => self.tally(Event::Discarded, queue, &["message"], 0, now),
            Effect::Extended | Effect::Died(_) | Effect::Revived | Effect::PulledBack => Ok(()),
        }
    }

    /// Counts a death.
    pub(super) fn count_death(
        &mut self,
        slip: &Slip,
        life: &Life,
        file: &File,
        error_type: &str,
        now: Time,
    ) -> Kept<()> {
        let labels = [file.reason.name(), file.route.name(), file.category.name()];
        self.tally(Event::Dead, &slip.queue, &labels, u64::from(life.attempts), now)?;
        self.tally(Event::DeadByError, &slip.queue, &[error_type], 0, now)?;
        let labels = [slip.kind.as_str(), slip.priority.name(), file.dlq.as_str()];
        self.tally(Event::DeadByKind, &slip.queue, &labels, 0, now)?;
        if file.status == Status::Quarantined {
            self.tally(Event::Quarantined, &slip.queue, &[], 0, now)?;
        }
        metrics::process().deaths.mark(now);
        Ok(())
    }

    /// Counts an act on a letter, by what it led to.
    pub(super) fn count_act(
        &mut self,
        slip: &Slip,
        file: &File,
        act: &Act,
        led_to: Status,
        now: Time,
    ) -> Kept<()> {
        let age = now.since(file.dead_at).as_millis();
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
        self.tally(event, &slip.queue, &[], amount, now)
    }
}
