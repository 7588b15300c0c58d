//! Operations and the small key-value space: bulk acts in chunks over frozen members, one commit each.

use super::Engine;
use super::tables::Tables;
use redrive_core::audit::AuditEntry;
use redrive_core::dead_letter::{Act, ActRequest, Actor, Status};
use redrive_core::error::{Error, Outcome, Refusal};
use redrive_core::ids::{MessageId, OperationId};
use redrive_core::limits;
use redrive_core::operation::{Control, MemberOutcome, Operation, OperationSpec, Stage};
use redrive_core::store::KvEntry;
use redrive_core::time::Time;

impl<T: Tables> Engine<T> {
    /// Starts an operation, once.
    pub(crate) fn start(&mut self, spec: &OperationSpec, now: Time) -> Outcome<Operation> {
        spec.actor.check()?;
        if let Some(known) = self.tables.operation(spec.id)? {
            return Ok(known);
        }
        if matches!(spec.act, Act::Note | Act::Quarantine { .. } | Act::Edit(_)) {
            let why = format!("{} is not done in bulk; act on single letters", spec.act.name());
            return Err(Refusal::invalid("act", why).into());
        }
        let last_death = self.heads()?.death;
        let operation = Operation::start(spec, last_death, now);
        self.tables.add_operation(&operation)?;
        let entry = AuditEntry::new(now, &spec.actor, "start", spec.id, 0);
        self.record(entry.with_detail(spec.filter.text()))?;
        Ok(operation)
    }

    fn operation_of(&mut self, id: OperationId) -> Outcome<Operation> {
        self.tables.operation(id)?.ok_or_else(|| Refusal::NoSuchOperation { id }.into())
    }

    /// Does one chunk of an operation's work.
    pub(crate) fn step(&mut self, id: OperationId, now: Time) -> Outcome<Operation> {
        let mut operation = self.operation_of(id)?;
        match operation.stage {
            Stage::Freezing => self.freeze(&mut operation, now)?,
            Stage::Running => self.run(&mut operation, now)?,
            Stage::Paused | Stage::Done | Stage::Cancelled => return Ok(operation),
        }
        self.tables.put_operation(&operation)?;
        Ok(operation)
    }

    fn freeze(&mut self, operation: &mut Operation, now: Time) -> Outcome<()> {
        let anybody = MessageId::from_bytes([0; 16]);
        let legal = |status: &Status| operation.act.next_status(anybody, *status).is_ok();
        let statuses: Vec<Status> = Status::ALL.iter().copied().filter(legal).collect();
        let range = (operation.frozen_to, operation.bound);
        let (id, filter) = (operation.id, operation.filter.clone());
        let frozen = self.freeze_members(id, &filter, &statuses, range, limits::OPERATION_CHUNK, now)?;
        operation.froze(frozen.members, frozen.frozen_to, frozen.exhausted);
        Ok(())
    }

    fn run(&mut self, operation: &mut Operation, now: Time) -> Outcome<()> {
        let (mut succeeded, mut skipped) = (0, 0);
        for (position, member) in self.tables.waiting_members(operation.id, limits::OPERATION_CHUNK)? {
            let request = ActRequest {
                id: member.id,
                act: operation.act.clone(),
                actor: operation.actor.clone(),
                expected_version: Some(member.version),
            };
            let acted = match self.tables.letter(member.id)? {
                Some(letter) => match self.act_on(&letter, &request, now) {
                    Ok(_) => Ok(self.group_operated(&letter, operation.id, now)?),
                    Err(refused) => Err(refused),
                },
                None => Err(Refusal::NoSuchLetter { id: member.id }.into()),
            };
            let outcome = match acted {
                Ok(()) => {
                    succeeded += 1;
                    MemberOutcome::Succeeded
                }
                Err(Error::Refused(_)) => {
                    skipped += 1;
                    MemberOutcome::Skipped
                }
                Err(Error::Store(error)) => return Err(error.into()),
            };
            self.tables.put_member(operation.id, position, outcome)?;
        }
        operation.ran(succeeded, skipped, now);
        let (actor, act) = (&operation.actor, operation.act.name());
        self.record(AuditEntry::new(now, actor, act, operation.id, succeeded))?;
        Ok(())
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
        let mut operation = self.operation_of(id)?;
        operation.control(control, now)?;
        self.tables.put_operation(&operation)?;
        let act = match control {
            Control::Pause => "pause",
            Control::Resume => "resume",
            Control::Cancel => "cancel",
        };
        self.record(AuditEntry::new(now, actor, act, id, 0))?;
        Ok(operation)
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
