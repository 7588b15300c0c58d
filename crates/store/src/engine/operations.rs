//! Operations. An operation acts on many letters, in chunks of frozen members, one commit
//! each. The core ([`redrive_core::operation`]) decides its stage and how many members it may act on;
//! [`super::members`] handles the members.

use super::Engine;
use super::tables::{Frozen, Tables};
use redrive_core::audit::AuditEntry;
use redrive_core::changes::Area;
use redrive_core::dead_letter::Actor;
use redrive_core::error::{Refusal, StoreResult};
use redrive_core::ids::OperationId;
use redrive_core::limits;
use redrive_core::operation::{Control, Operation, OperationSpec, Stage, possible_from, token};
use redrive_core::time::{Span, Time};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// How long a step that made other jobs wait stays away, as a multiple of the time it took. All waiting jobs share
/// the next commit, so for a few of them short steps are enough. Many of them keep the writer busy all the time and
/// are left up to three quarters of it.
fn pause_factor(waiting_writers: usize) -> u64 {
    (waiting_writers as u64 / WAITING_PER_FACTOR).min(3)
}

/// How many waiting jobs lengthen the pause by another multiple of the step.
const WAITING_PER_FACTOR: u64 = 16;

impl<T: Tables> Engine<T> {
    /// Starts an operation. Repeating the call returns the operation that was started.
    pub(crate) fn start(&mut self, spec: &OperationSpec, now: Time) -> StoreResult<Operation> {
        spec.actor.check()?;
        if let Some(started) = self.find_operation(spec.id)? {
            return Ok(started.with_next_step(Span::ZERO, now));
        }
        spec.check()?;
        if let Some(shown) = &spec.token
            && *shown != token(&self.audit_key, &spec.act, &spec.filter, spec.bound.unwrap_or(0))
        {
            let why = "it does not belong to a preview of this act, filter and bound; preview again and start what you saw";
            return Err(Refusal::invalid("token", why).into());
        }
        let last_death = self.heads()?.death;
        let operation = Operation::start(spec, last_death, now);
        self.tables.add_operation(&operation)?;
        self.touched.areas.insert(Area::Operation(spec.id));
        let entry = AuditEntry::new(now, &spec.actor, "start", spec.id, 0);
        self.append_audit(entry.with_detail(spec.filter.text()))?;
        Ok(operation.with_next_step(Span::ZERO, now))
    }

    /// An operation by its id, from the cache or the tables.
    fn find_operation(&mut self, id: OperationId) -> StoreResult<Option<&mut Operation>> {
        if !self.cache.operations.contains_key(&id)
            && let Some(operation) = self.tables.operation(id)?
        {
            self.cache.operations.insert(id, operation);
        }
        Ok(self.cache.operations.get_mut(&id))
    }

    /// An operation as it stands in this commit.
    pub(super) fn operation_mut(&mut self, id: OperationId) -> StoreResult<&mut Operation> {
        self.find_operation(id)?.ok_or_else(|| Refusal::NoSuchOperation { id }.into())
    }

    /// Changes an operation. It is written with this commit if it is different afterwards.
    pub(super) fn change_operation<R>(
        &mut self,
        id: OperationId,
        change: impl FnOnce(&mut Operation) -> R,
    ) -> StoreResult<R> {
        let operation = self.operation_mut(id)?;
        let before = operation.clone();
        let result = change(operation);
        if before != *operation {
            self.cache.operations_changed.insert(id);
            self.cached_writes += 1;
        }
        Ok(result)
    }

    /// Does one chunk of an operation's work.
    pub(crate) fn step(&mut self, id: OperationId, now: Time) -> StoreResult<Operation> {
        let began = Instant::now();
        let stage = self.change_operation(id, |operation| {
            operation.advance(now);
            operation.stage
        })?;
        let others_waited = match stage {
            Stage::Freezing => self.freeze(id, now)?,
            Stage::Canary | Stage::Ramping | Stage::Running => self.act_on_members(id, now)?,
            Stage::Undoing => self.undo_members(id, now)?,
            Stage::Observing
            | Stage::Settling
            | Stage::Paused
            | Stage::Done
            | Stage::Cancelled
            | Stage::Undone => false,
        };
        let took = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
        let factor =
            if others_waited { pause_factor(self.waiting_writers.load(Ordering::Relaxed)) } else { 0 };
        Ok(self.operation_mut(id)?.with_next_step(Span::from_millis(took).times(factor), now))
    }

    /// Freezes one chunk of members. Returns whether other jobs had to wait.
    fn freeze(&mut self, id: OperationId, now: Time) -> StoreResult<bool> {
        let operation = self.operation_mut(id)?.clone();
        let statuses = possible_from(&operation.act);
        // Conditions on time are evaluated as of the start, because freezing may take long or be paused.
        let as_of = operation.created_at;
        let mut frozen = Frozen { members: 0, frozen_to: operation.frozen_to, exhausted: false };
        let began = Instant::now();
        // A call may find nothing at all, so both the members found and the number of calls are bounded.
        for _ in 0..limits::OPERATION_CHUNK / limits::FREEZE_LOOK_MAX {
            let range = (frozen.frozen_to, operation.bound);
            let more = self.freeze_members(id, &operation.filter, &statuses, range, as_of)?;
            frozen = Frozen { members: frozen.members + more.members, ..more };
            let full = frozen.members >= limits::OPERATION_CHUNK as u64;
            if self.should_yield(began) || frozen.exhausted || full {
                break;
            }
        }
        self.change_operation(id, |operation| {
            operation.record_frozen(frozen.members, frozen.frozen_to, frozen.exhausted, now);
        })?;
        Ok(self.others_wait())
    }

    /// Pauses, resumes, cancels, undoes or paces an operation.
    pub(crate) fn control(
        &mut self,
        id: OperationId,
        control: Control,
        actor: &Actor,
        now: Time,
    ) -> StoreResult<Operation> {
        actor.check()?;
        self.change_operation(id, |operation| operation.control(control, actor, now))??;
        let entry = AuditEntry::new(now, actor, control.name(), id, 0);
        self.append_audit(match control {
            Control::Rate(rate) => {
                entry.with_detail(rate.map_or("no limit".to_owned(), |r| format!("{r}/s")))
            }
            Control::Pause | Control::Resume | Control::Cancel | Control::Undo => entry,
        })?;
        Ok(self.operation_mut(id)?.with_next_step(Span::ZERO, now))
    }
}
