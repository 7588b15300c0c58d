//! Handing letters over to another store. Only removes them here: the caller has stored them there first.

use super::Engine;
use super::tables::Tables;
use redrive_core::audit::AuditEntry;
use redrive_core::dead_letter::Actor;
use redrive_core::error::StoreResult;
use redrive_core::ids::MessageId;
use redrive_core::store::{BatchResults, HandOver};
use redrive_core::time::Time;

impl<T: Tables> Engine<T> {
    /// Removes letters that another store holds now.
    pub(crate) fn hand_over(
        &mut self,
        batch: Vec<HandOver>,
        actor: &Actor,
        now: Time,
    ) -> StoreResult<BatchResults<MessageId>> {
        super::enqueue::check_batch(batch.len(), 0)?;
        actor.check()?;
        self.run_batch(batch, |engine, HandOver { id, version }| {
            let letter = engine.require_letter(id)?;
            letter.record.check_hand_over(id, version, now)?;
            // The message has not ended: its idempotency key still says that it is dead.
            engine.delete_letter(&letter, "hand_over", now)?;
            engine.append_audit(AuditEntry::new(now, actor, "hand over", id, 1))?;
            Ok(id)
        })
    }
}
