//! Enqueueing, and the operations on queues and waiting messages: configure, pause, cancel, purge.

use super::Engine;
use super::settle::SideEffects;
use super::tables::{Incoming, KeyRow, Live, QueueRow, TableResult, Tables, unless_damaged};
use redrive_core::audit::{self, AuditEntry};
use redrive_core::breaker::{BreakerKey, BreakerPolicy};
use redrive_core::dead_letter::Actor;
use redrive_core::error::{Refusal, StoreResult};
use redrive_core::ids::{MessageId, QueueName};
use redrive_core::lifecycle::{Command, Phase, State};
use redrive_core::limits;
use redrive_core::message::{MessageMeta, NewMessage};
use redrive_core::metrics::Event;
use redrive_core::policy::QueuePolicy;
use redrive_core::store::{BatchResults, Enqueued, Purged};
use redrive_core::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Refuses a batch that is too large for one commit.
pub(crate) fn check_batch(entries: usize, bytes: usize) -> Result<(), Refusal> {
    if entries > limits::BATCH_ENTRIES_MAX || bytes > limits::BATCH_BYTES_MAX {
        let why = format!(
            "{entries} entries with {bytes} bytes; send at most {} entries and {} bytes in one call",
            limits::BATCH_ENTRIES_MAX,
            limits::BATCH_BYTES_MAX
        );
        return Err(Refusal::invalid("batch", why));
    }
    Ok(())
}

impl<T: Tables> Engine<T> {
    /// Enqueues each entry on its own. Earlier entries of the batch count towards the limits of later ones.
    pub(crate) fn enqueue(
        &mut self,
        batch: Vec<Result<Incoming<T::Body>, Refusal>>,
        now: Time,
    ) -> StoreResult<BatchResults<Enqueued>> {
        let results = self.run_batch(batch, |engine, entry| engine.enqueue_one(entry?, now))?;
        // Counted after the entries, because a refused entry must not have written anything.
        for result in &results {
            if let Err(Refusal::QueueFull { queue, .. }) = result {
                self.count_event(Event::Overflowed, queue, &[], 0, now)?;
            }
        }
        Ok(results)
    }

    fn enqueue_one(&mut self, incoming: Incoming<T::Body>, now: Time) -> StoreResult<Enqueued> {
        let new = &incoming.new;
        self.check_queue(&new.queue, &QueuePolicy::default())?;
        if let Some(duplicate) = self.find_duplicate(&incoming, now)? {
            return Ok(duplicate);
        }
        if let Some(reply_to) = &new.reply_to {
            self.check_reply_to(&new.queue, reply_to)?;
            self.check_room_for_both(&new.queue, reply_to)?;
        }
        if let Some(row) = self.queues()?.get(&new.queue) {
            check_room(&new.queue, row, incoming.size)?;
        }
        self.ensure_queue(&new.queue, &QueuePolicy::default())?;
        if let Some(reply_to) = &new.reply_to {
            self.ensure_queue(reply_to, &QueuePolicy::default())?;
        }
        self.accept(incoming, now)
    }

    /// Stores a new message that has passed all checks.
    pub(super) fn accept(&mut self, incoming: Incoming<T::Body>, now: Time) -> StoreResult<Enqueued> {
        let Incoming { new, body, body_hash, size } = incoming;
        let policy = self.queue(&new.queue)?.policy.clone();
        let breaker = breaker_value::<T>(&policy, &new, &body)?;
        let heads = self.heads()?;
        heads.seq += 1;
        let record = new.accept(&policy, heads.seq, now);
        let mut meta = MessageMeta::from(&record);
        meta.size = size;
        meta.breaker = breaker;
        self.tables.put_body(meta.seq, body, record.envelope.ttl, now)?;
        if let (Some(key), Some(body_hash)) = (&meta.key, body_hash) {
            let row = KeyRow { id: meta.id, body_hash, created_at: now, ended: None };
            self.tables.put_key(&meta.queue, key, &row)?;
        }
        self.move_count(&meta, None, &Phase::Waiting)?;
        self.count_event(Event::Enqueued, &meta.queue, &[&meta.kind, meta.priority.name()], size, now)?;
        let state = record.lifecycle.state(now);
        let id = meta.id;
        let live = Live { meta, lifecycle: record.lifecycle };
        self.tables.add_live(&live)?;
        if let Some(ready_index) = &mut self.ready_index {
            ready_index.add(&live.meta, &live.lifecycle);
        }
        self.work_available(&live.meta.queue, live.lifecycle.ready_at, now);
        Ok(Enqueued { id, state, duplicate: false })
    }

    /// The message that was enqueued before with the same key, within the key's window, or with the same id (I41, I42).
    fn find_duplicate(&mut self, incoming: &Incoming<T::Body>, now: Time) -> StoreResult<Option<Enqueued>> {
        let new = &incoming.new;
        if let Some(key) = &new.key
            && let Some(row) = self.tables.key(&new.queue, key)?
            && row.created_at.plus(limits::KEY_WINDOW) > now
        {
            if Some(row.body_hash) != incoming.body_hash {
                let (queue, key) = (new.queue.clone(), key.clone());
                return Err(Refusal::KeyConflict { queue, key, id: row.id }.into());
            }
            let state = super::reads::key_state(&self.tables, &row, now)?;
            return Ok(Some(Enqueued { id: row.id, state, duplicate: true }));
        }
        if !self.tables.id_exists(new.id)? {
            return Ok(None);
        }
        let (live, letter) = (self.tables.live(new.id)?, self.tables.letter(new.id)?);
        let hash = T::unpack(new, &incoming.body)?.body_hash();
        // A sender that repeats a message knows nothing of edits: compare with what was enqueued originally.
        let edited = letter.as_ref().and_then(|letter| letter.record.is_original_body(&hash));
        let found = match live {
            Some(live) => Some((live.meta, live.lifecycle.state(now))),
            None => letter.map(|letter| (letter.meta, letter.record.state())),
        };
        let Some((meta, state)) = found else { return Ok(None) };
        let same = match edited {
            Some(same) => same,
            None => unless_damaged(self.tables.envelope(&meta))?.is_some_and(|e| e.body_hash() == hash),
        };
        if same {
            return Ok(Some(Enqueued { id: new.id, state, duplicate: true }));
        }
        Err(Refusal::IdConflict { id: new.id }.into())
    }

    /// Creates a queue if it does not exist, unless its name is taken by a dead letter queue or its own dead letter
    /// queues are queues (I38).
    pub(super) fn ensure_queue(&mut self, name: &QueueName, policy: &QueuePolicy) -> StoreResult<()> {
        if self.queues()?.contains_key(name) {
            return Ok(());
        }
        self.check_queue(name, policy)?;
        self.queues()?
            .insert(name.clone(), QueueRow { policy: Arc::new(policy.clone()), ..QueueRow::default() });
        self.cached_writes += 1;
        self.queue_config_mut(name)?;
        Ok(())
    }

    /// Refuses to redrive a letter to a queue that does not exist, is a dead letter queue, or is full.
    pub(super) fn check_destination(&mut self, meta: &MessageMeta) -> StoreResult<()> {
        let queues = self.queues()?;
        let Some(row) = queues.get(&meta.queue) else {
            let queue = meta.queue.clone();
            return Err(match dlq_owner(queues.iter(), &queue) {
                Some(owner) => Refusal::IsDlq { queue, owner },
                None => Refusal::NoSuchQueue { queue },
            }
            .into());
        };
        // A message that can never fit is refused for good: waiting for room would never end.
        if let Some(most) = row.policy.max_bytes.filter(|most| meta.size > *most) {
            let why = format!("{} bytes; queue {} holds {most} at most", meta.size, meta.queue);
            return Err(Refusal::invalid("payload", why).into());
        }
        Ok(check_room(&meta.queue, row, meta.size)?)
    }

    /// Refuses to put a letter into a queue, or into a dead letter queue that belongs to no queue (I38).
    pub(super) fn check_dlq(&mut self, dlq: &QueueName) -> StoreResult<()> {
        let queues = self.queues()?;
        if queues.contains_key(dlq) {
            let why = format!("{dlq} is a queue, not a dead letter queue; name another");
            return Err(Refusal::invalid("dlq", why).into());
        }
        if dlq_owner(queues.iter(), dlq).is_none() {
            let why =
                format!("{dlq} is no queue's dead letter queue; assign it with `queue set --dlq` first");
            return Err(Refusal::invalid("dlq", why).into());
        }
        Ok(())
    }

    /// Refuses a queue that does not exist and cannot be created.
    fn check_queue(&mut self, name: &QueueName, policy: &QueuePolicy) -> StoreResult<()> {
        let queues = self.queues()?;
        if queues.contains_key(name) {
            return Ok(());
        }
        if let Some(owner) = dlq_owner(queues.iter(), name) {
            return Err(Refusal::IsDlq { queue: name.clone(), owner }.into());
        }
        check_policy_dlqs(queues, name, policy)?;
        if queues.len() >= limits::QUEUES_MAX {
            return Err(too_many_queues().into());
        }
        Ok(())
    }

    /// Refuses a reply queue that is a dead letter queue, including one of the message's own queue if that is new,
    /// and a reply queue whose own dead letter queue would be the message's queue.
    fn check_reply_to(&mut self, queue: &QueueName, reply_to: &QueueName) -> StoreResult<()> {
        self.check_queue(reply_to, &QueuePolicy::default())?;
        if self.queues()?.contains_key(queue) || queue == reply_to {
            return Ok(());
        }
        let plain = QueuePolicy::default();
        if plain.dlqs(queue).contains(reply_to) {
            return Err(Refusal::IsDlq { queue: reply_to.clone(), owner: queue.clone() }.into());
        }
        if plain.dlqs(reply_to).contains(queue) && !self.queues()?.contains_key(reply_to) {
            let why = format!("{queue} is its dead letter queue; name another queue for replies");
            return Err(Refusal::invalid("reply_to", why).into());
        }
        Ok(())
    }

    /// Refuses a message that needs a new queue and a new reply queue when there is room for only one: otherwise it
    /// would be refused after the first was created.
    fn check_room_for_both(&mut self, queue: &QueueName, reply_to: &QueueName) -> StoreResult<()> {
        let queues = self.queues()?;
        let new = [queue, reply_to].into_iter().collect::<BTreeSet<_>>();
        let missing = new.into_iter().filter(|name| !queues.contains_key(*name)).count();
        if queues.len() + missing > limits::QUEUES_MAX {
            return Err(too_many_queues().into());
        }
        Ok(())
    }

    /// Sets the policy of a queue and creates the queue if needed.
    pub(crate) fn configure(
        &mut self,
        name: &QueueName,
        policy: QueuePolicy,
        actor: &Actor,
        now: Time,
    ) -> StoreResult<()> {
        policy.check(name)?;
        actor.check()?;
        self.check_queue(name, &policy)?;
        check_policy_dlqs(self.queues()?, name, &policy)?;
        let rules = self.queues()?.get(name).and_then(|row| row.policy.breaker.clone());
        let key = |rules: &Option<BreakerPolicy>| rules.as_ref().map(|rules| rules.key.clone());
        let (key_changed, rules_changed) = (key(&rules) != key(&policy.breaker), rules != policy.breaker);
        let is_new = !self.queues()?.contains_key(name);
        self.ensure_queue(name, &policy)?;
        let before = Arc::clone(&self.queue(name)?.policy);
        // For a new queue, the recorded changes are the differences from the default policy.
        let before = if is_new { Arc::default() } else { before };
        if !is_new && *before == policy {
            return Ok(());
        }
        let changes = audit::changes(before.as_ref(), &policy);
        self.queue_config_mut(name)?.policy = Arc::new(policy);
        if key_changed {
            self.forget_breakers(name)?;
        }
        if rules_changed {
            // The index shows what the old breaker rules let through.
            self.ready_index = None;
            self.work_available(name, now, now);
        }
        let entry = AuditEntry::new(now, actor, "configure", name, 1);
        self.append_audit(if changes.is_empty() { entry } else { entry.with_detail(changes) })?;
        Ok(())
    }

    /// Pauses or resumes leasing from a queue.
    pub(crate) fn pause(
        &mut self,
        name: &QueueName,
        paused: bool,
        actor: &Actor,
        now: Time,
    ) -> StoreResult<()> {
        actor.check()?;
        self.queue(name)?;
        self.queue_config_mut(name)?.paused_by = paused.then(|| actor.name.clone());
        self.work_available(name, now, now);
        let act = if paused { "pause" } else { "resume" };
        self.append_audit(AuditEntry::new(now, actor, act, name, 1))?;
        Ok(())
    }

    /// Cancels waiting messages.
    pub(crate) fn cancel(
        &mut self,
        ids: &[MessageId],
        actor: &Actor,
        now: Time,
    ) -> StoreResult<BatchResults<MessageId>> {
        actor.check()?;
        check_batch(ids.len(), 0)?;
        self.run_batch(ids.to_vec(), |engine, id| engine.cancel_one(id, actor, now).map(|()| id))
    }

    fn cancel_one(&mut self, id: MessageId, actor: &Actor, now: Time) -> StoreResult<()> {
        let Some(live) = self.tables.live(id)? else {
            return Err(match self.tables.letter(id)? {
                Some(_) => Refusal::WrongState { id, state: State::Dead, command: "cancel".into() },
                None => Refusal::NoSuchMessage { id },
            }
            .into());
        };
        let policy = self.queue(&live.meta.queue)?.policy.clone();
        self.change(live, &Command::Cancel, SideEffects::NONE, &policy, now)?;
        self.append_audit(AuditEntry::new(now, actor, "cancel", id, 1))?;
        Ok(())
    }

    /// Removes waiting messages of a queue. Redriven messages stay, because their letters depend on them.
    pub(crate) fn purge(&mut self, name: &QueueName, actor: &Actor, now: Time) -> StoreResult<Purged> {
        actor.check()?;
        let policy = self.queue(name)?.policy.clone();
        // To keep the commit short, each call looks at one page of messages, of whatever queue. The next call
        // continues after that page.
        let previous = self.purging.take().filter(|previous| previous.is_continued_by(name, now));
        let after = previous.map(|previous| previous.last_id);
        let page = self.tables.live_after(after, limits::REAP_MAX)?;
        let last = page.last().map(|(id, _)| *id).filter(|_| page.len() >= limits::REAP_MAX);
        let mut purged = 0;
        let of_queue = page.into_iter().filter_map(|(_, live)| live.ok()).filter(|l| l.meta.queue == *name);
        for live in of_queue.filter(|l| l.lifecycle.lease().is_none() && l.lifecycle.generation == 1) {
            self.change(live, &Command::Purge, SideEffects::NONE, &policy, now)?;
            purged += 1;
        }
        self.purging = last.map(|last_id| PurgeProgress { queue: name.clone(), last_id, at: now });
        if purged > 0 || after.is_none() {
            self.append_audit(AuditEntry::new(now, actor, "purge", name, purged))?;
        }
        Ok(Purged { purged, more: last.is_some() })
    }
}

/// How far an unfinished purge has come.
pub(super) struct PurgeProgress {
    queue: QueueName,
    last_id: MessageId,
    at: Time,
}

impl PurgeProgress {
    /// Whether a call continues this purge. A late call, or one for another queue, starts over.
    fn is_continued_by(&self, queue: &QueueName, now: Time) -> bool {
        self.queue == *queue && now.since(self.at) <= limits::PURGE_PAUSE_MAX
    }
}

/// The value of a new message's breaker key, if the key is taken from its headers or payload.
fn breaker_value<T: Tables>(
    policy: &QueuePolicy,
    new: &NewMessage,
    body: &T::Body,
) -> TableResult<Option<String>> {
    match policy.breaker.as_ref().map(|rules| &rules.key) {
        Some(key @ (BreakerKey::Header(_) | BreakerKey::Payload(_))) => {
            let whole = T::unpack(new, body)?;
            Ok(key.read(&whole.headers, &whole.payload))
        }
        Some(BreakerKey::Queue | BreakerKey::Kind) | None => Ok(None),
    }
}

fn too_many_queues() -> Refusal {
    let why =
        format!("there can be at most {} queues; do not create a queue per message", limits::QUEUES_MAX);
    Refusal::invalid("queue", why)
}

/// Refuses a policy whose dead letter queue is a queue.
fn check_policy_dlqs(
    queues: &BTreeMap<QueueName, QueueRow>,
    name: &QueueName,
    policy: &QueuePolicy,
) -> Result<(), Refusal> {
    match policy.dlqs(name).into_iter().find(|dlq| queues.contains_key(dlq)) {
        Some(dlq) => {
            let why = format!("{dlq} is a queue, not a dead letter queue; name another");
            Err(Refusal::invalid("dlq", why))
        }
        None => Ok(()),
    }
}

/// The first queue, by name, that uses this dead letter queue.
fn dlq_owner<'a>(
    mut queues: impl Iterator<Item = (&'a QueueName, &'a QueueRow)>,
    dlq: &QueueName,
) -> Option<QueueName> {
    queues.find(|(name, row)| row.policy.dlqs(name).contains(dlq)).map(|(name, _)| name.clone())
}

/// Refuses a message that would exceed the limits of its queue.
fn check_room(queue: &QueueName, row: &QueueRow, size: u64) -> Result<(), Refusal> {
    let held = u64::try_from(row.counts.waiting + row.counts.leased).unwrap_or(0);
    let bytes = u64::try_from(row.counts.bytes).unwrap_or(0);
    let full = |limit: &str, allowed: u64, actual: u64| Refusal::QueueFull {
        queue: queue.clone(),
        limit: limit.into(),
        allowed,
        actual,
    };
    match (row.policy.max_messages, row.policy.max_bytes) {
        (Some(allowed), _) if held >= allowed => Err(full("max_messages", allowed, held)),
        (_, Some(allowed)) if bytes.saturating_add(size) > allowed => Err(full("max_bytes", allowed, bytes)),
        (_, _) => Ok(()),
    }
}

#[cfg(all(test, feature = "memory"))]
mod tests {
    use super::*;
    use crate::access::Access as _;
    use crate::access::WriteCost;
    use crate::memory::MemoryStore;
    use redrive_core::message::Payload;

    fn incoming<T: Tables>(_: &Engine<T>, mut new: NewMessage) -> Incoming<T::Body> {
        let body = T::pack(&mut new);
        Incoming { new, body_hash: None, size: 0, body }
    }

    #[tokio::test]
    async fn a_refused_entry_at_the_limit_of_queues_leaves_no_queue_behind() {
        let store = MemoryStore::new();
        let answer = store.0.write(WriteCost::GROWS, |engine, now| {
            for n in 1..limits::QUEUES_MAX {
                engine.queues()?.insert(format!("q{n}").parse().unwrap(), QueueRow::default());
            }
            let id = MessageId::new(1, [0; 10]);
            let new = NewMessage::new(id, "questions".parse().unwrap(), Payload::default());
            let asking = NewMessage { reply_to: Some("answers".parse().unwrap()), ..new };
            let batch = vec![Ok(incoming(engine, asking))];
            let refused = engine.enqueue(batch, now)?.remove(0);
            Ok((refused, engine.queues()?.len()))
        });
        let (refused, queues) = answer.await.unwrap();
        assert!(matches!(refused, Err(Refusal::Invalid { .. })), "{refused:?}");
        assert_eq!(queues, limits::QUEUES_MAX - 1, "none was created");
    }
}
