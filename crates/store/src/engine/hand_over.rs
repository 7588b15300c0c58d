//! Letters that leave for another store. Only removes: whoever asks has put them there first.

use super::Engine;
use super::tables::Tables;
use redrive_core::audit::AuditEntry;
use redrive_core::dead_letter::Actor;
use redrive_core::error::Outcome;
use redrive_core::ids::MessageId;
use redrive_core::store::{Each, HandOver};
use redrive_core::time::Time;

impl<T: Tables> Engine<T> {
    /// Removes letters that another store has now.
    pub(crate) fn hand_over(
        &mut self,
        batch: Vec<HandOver>,
        actor: &Actor,
        now: Time,
    ) -> Outcome<Each<MessageId>> {
        super::enqueue::check_batch(batch.len(), 0)?;
        actor.check()?;
        self.each(batch, |engine, HandOver { id, version }| {
            let letter = engine.letter_of(id)?;
            letter.file.may_leave(id, version, now)?;
            // The message is not over: its key goes on saying that it is dead.
            engine.take_out_letter(&letter, "hand_over", now)?;
            engine.record(AuditEntry::new(now, actor, "hand over", id, 1))?;
            Ok(id)
        })
    }
}
