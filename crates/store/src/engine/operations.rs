//! Operations and the small key-value space: bulk acts in chunks over frozen members, one commit each. Where an
//! operation is and how many it may send is [`redrive_core::operation`]'s to say; what happens to one member is in
//! [`super::members`].

use super::Engine;
use super::tables::{Frozen, Tables};
use redrive_core::audit::AuditEntry;
use redrive_core::dead_letter::Actor;
use redrive_core::error::{Outcome, Refusal};
use redrive_core::ids::OperationId;
use redrive_core::limits;
use redrive_core::operation::{Control, Operation, OperationSpec, Stage, possible_from, token};
use redrive_core::store::KvEntry;
use redrive_core::time::{Span, Time};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// How long a step that others had to wait for stays away, in times of what it took. Whoever waits is served by the
/// next commit, all at once, so a few need no more than that steps are short. A crowd has work for the writer all the
/// time, and keeps up to three quarters of it.
fn quiet_times(crowd: usize) -> u64 {
    (crowd as u64 / CROWD).min(3)
}

/// So many who wait are a crowd.
const CROWD: u64 = 16;

impl<T: Tables> Engine<T> {
    /// Starts an operation, once.
    pub(crate) fn start(&mut self, spec: &OperationSpec, now: Time) -> Outcome<Operation> {
        spec.actor.check()?;
        if let Some(known) = self.known_operation(spec.id)? {
            return Ok(known.told(Span::ZERO, now));
        }
        spec.check()?;
        if let Some(shown) = &spec.token
            && *shown != token(&self.audit_key, &spec.act, &spec.filter, spec.bound.unwrap_or(0))
        {
            let why =
                "it is not of a preview of this act, filter and bound; look again and start what you saw";
            return Err(Refusal::invalid("token", why).into());
        }
        let last_death = self.heads()?.death;
        let operation = Operation::start(spec, last_death, now);
        self.tables.add_operation(&operation)?;
        let entry = AuditEntry::new(now, &spec.actor, "start", spec.id, 0);
        self.record(entry.with_detail(spec.filter.text()))?;
        Ok(operation.told(Span::ZERO, now))
    }

    fn known_operation(&mut self, id: OperationId) -> Outcome<Option<&mut Operation>> {
        if !self.cache.operations.contains_key(&id)
            && let Some(operation) = self.tables.operation(id)?
        {
            self.cache.operations.insert(id, operation);
        }
        Ok(self.cache.operations.get_mut(&id))
    }

    /// An operation as it stands in this commit.
    pub(super) fn operation_of(&mut self, id: OperationId) -> Outcome<&mut Operation> {
        self.known_operation(id)?.ok_or_else(|| Refusal::NoSuchOperation { id }.into())
    }

    /// Changes an operation; it is written with this commit if that made a difference.
    pub(super) fn change_operation<R>(
        &mut self,
        id: OperationId,
        change: impl FnOnce(&mut Operation) -> R,
    ) -> Outcome<R> {
        let operation = self.operation_of(id)?;
        let before = operation.clone();
        let result = change(operation);
        if before != *operation {
            self.cache.operations_changed.insert(id);
            self.touched += 1;
        }
        Ok(result)
    }

    /// Does one chunk of an operation's work.
    pub(crate) fn step(&mut self, id: OperationId, now: Time) -> Outcome<Operation> {
        let began = Instant::now();
        let stage = self.change_operation(id, |operation| {
            operation.advance(now);
            operation.stage
        })?;
        let disturbs = match stage {
            Stage::Freezing => self.freeze(id, now)?,
            Stage::Canary | Stage::Ramping | Stage::Running => self.send_members(id, now)?,
            Stage::Undoing => self.take_back(id, now)?,
            Stage::Observing
            | Stage::Settling
            | Stage::Paused
            | Stage::Done
            | Stage::Cancelled
            | Stage::Undone => false,
        };
        let took = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
        let times = if disturbs { quiet_times(self.crowd.load(Ordering::Relaxed)) } else { 0 };
        Ok(self.operation_of(id)?.told(Span::from_millis(took).times(times), now))
    }

    fn freeze(&mut self, id: OperationId, now: Time) -> Outcome<bool> {
        let operation = self.operation_of(id)?.clone();
        let statuses = possible_from(&operation.act);
        // Whatever goes by the clock is judged as of the start: freezing may take long, or be paused.
        let seen = operation.created_at;
        let mut frozen = Frozen { members: 0, frozen_to: operation.frozen_to, exhausted: false };
        let began = Instant::now();
        // A look may find nothing at all; so both are bounded, what is found and how often it is looked.
        for _ in 0..limits::OPERATION_CHUNK / limits::FREEZE_LOOK_MAX {
            let range = (frozen.frozen_to, operation.bound);
            let more = self.freeze_members(id, &operation.filter, &statuses, range, seen)?;
            frozen = Frozen { members: frozen.members + more.members, ..more };
            let full = frozen.members >= limits::OPERATION_CHUNK as u64;
            if self.done_enough(began) || frozen.exhausted || full {
                break;
            }
        }
        self.change_operation(id, |operation| {
            operation.froze(frozen.members, frozen.frozen_to, frozen.exhausted, now);
        })?;
        Ok(self.others_wait())
    }

    /// Steers an operation.
    pub(crate) fn control(
        &mut self,
        id: OperationId,
        control: Control,
        actor: &Actor,
        now: Time,
    ) -> Outcome<Operation> {
        actor.check()?;
        self.change_operation(id, |operation| operation.control(control, actor, now))??;
        let entry = AuditEntry::new(now, actor, control.name(), id, 0);
        self.record(match control {
            Control::Rate(rate) => {
                entry.with_detail(rate.map_or("no limit".to_owned(), |r| format!("{r}/s")))
            }
            Control::Pause | Control::Resume | Control::Cancel | Control::Undo => entry,
        })?;
        Ok(self.operation_of(id)?.told(Span::ZERO, now))
    }

    /// Compare-and-set on a small durable value.
    pub(crate) fn kv_put(
        &mut self,
        namespace: &str,
        key: &str,
        value: Option<Vec<u8>>,
        expected: u64,
    ) -> Outcome<u64> {
        if namespace == super::trim::NAMESPACE {
            let why = format!("{namespace:?} belongs to the audit trail; use another");
            return Err(Refusal::invalid("namespace", why).into());
        }
        if namespace.len() + key.len() > limits::KEY_BYTES_MAX {
            return Err(Refusal::invalid("key", format!("at most {} bytes", limits::KEY_BYTES_MAX)).into());
        }
        if value.as_ref().is_some_and(|v| v.len() > limits::KV_BYTES_MAX) {
            return Err(Refusal::invalid("value", format!("at most {} bytes", limits::KV_BYTES_MAX)).into());
        }
        let current = self.tables.kv(namespace, key)?.map_or(0, |entry| entry.version);
        if current != expected {
            return Err(Refusal::KvConflict { namespace: namespace.into(), key: key.into() }.into());
        }
        let entry = value.map(|value| KvEntry { value, version: current + 1 });
        self.tables.put_kv(namespace, key, entry.as_ref())?;
        Ok(entry.map_or(0, |e| e.version))
    }
}
