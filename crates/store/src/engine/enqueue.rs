//! Enqueue, and the verbs of queues and of waiting messages: configure, pause, cancel, purge.

use super::Engine;
use super::settle::Along;
use super::tables::{Incoming, Kept, KeyRow, Live, QueueRow, Tables, unless_damaged};
use redrive_core::audit::{self, AuditEntry};
use redrive_core::breaker::{BreakerKey, BreakerPolicy};
use redrive_core::dead_letter::Actor;
use redrive_core::error::{Outcome, Refusal};
use redrive_core::ids::{MessageId, QueueName};
use redrive_core::lifecycle::{Command, Phase, State};
use redrive_core::limits;
use redrive_core::message::{NewMessage, Slip};
use redrive_core::metrics::Event;
use redrive_core::policy::QueuePolicy;
use redrive_core::store::{Each, Enqueued, Purged};
use redrive_core::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Refuses a batch that one commit should not carry.
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
    /// Accepts work, entry by entry; entries before count for the limits of those after.
    pub(crate) fn enqueue(
        &mut self,
        batch: Vec<Result<Incoming<T::Body>, Refusal>>,
        now: Time,
    ) -> Outcome<Each<Enqueued>> {
        let results = self.each(batch, |engine, entry| engine.enqueue_one(entry?, now))?;
        // After the entries, because an entry that is refused must not have written anything.
        for result in &results {
            if let Err(Refusal::QueueFull { queue, .. }) = result {
                self.tally(Event::Overflowed, queue, &[], 0, now)?;
            }
        }
        Ok(results)
    }

    fn enqueue_one(&mut self, incoming: Incoming<T::Body>, now: Time) -> Outcome<Enqueued> {
        let new = &incoming.new;
        self.check_queue(&new.queue, &QueuePolicy::default())?;
        if let Some(known) = self.known(&incoming, now)? {
            return Ok(known);
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

    /// Takes a message in: nothing stands in its way any more.
    pub(super) fn accept(&mut self, incoming: Incoming<T::Body>, now: Time) -> Outcome<Enqueued> {
        let Incoming { new, body, body_hash, size } = incoming;
        let policy = self.queue(&new.queue)?.policy.clone();
        let breaker = breaker_value::<T>(&policy, &new, &body)?;
        let heads = self.heads()?;
        heads.seq += 1;
        let record = new.accept(&policy, heads.seq, now);
        let mut slip = Slip::from(&record);
        slip.size = size;
        slip.breaker = breaker;
        self.tables.put_body(slip.seq, body, record.envelope.ttl, now)?;
        if let (Some(key), Some(body_hash)) = (&slip.key, body_hash) {
            let row = KeyRow { id: slip.id, body_hash, created_at: now, ended: None };
            self.tables.put_key(&slip.queue, key, &row)?;
        }
        self.move_count(&slip, None, &Phase::Waiting)?;
        self.tally(Event::Enqueued, &slip.queue, &[&slip.kind, slip.priority.name()], size, now)?;
        let state = record.life.state(now);
        let id = slip.id;
        let live = Live { slip, life: record.life };
        self.tables.add_live(&live)?;
        if let Some(hot) = &mut self.hot {
            hot.add(&live.slip, &live.life);
        }
        self.woke = true;
        Ok(Enqueued { id, state, duplicate: false })
    }

    /// Whether this message is here already: by key within its window, or by id (I41, I42).
    fn known(&mut self, incoming: &Incoming<T::Body>, now: Time) -> Outcome<Option<Enqueued>> {
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
        if !self.tables.is_known(new.id)? {
            return Ok(None);
        }
        let (live, letter) = (self.tables.live(new.id)?, self.tables.letter(new.id)?);
        let hash = T::whole(new, &incoming.body)?.body_hash();
        // Whoever sends it again knows nothing of edits: what counts is what it was enqueued with.
        let edited = letter.as_ref().and_then(|letter| letter.file.was_sent_as(&hash));
        let found = match live {
            Some(live) => Some((live.slip, live.life.state(now))),
            None => letter.map(|letter| (letter.slip, letter.file.state())),
        };
        let Some((slip, state)) = found else { return Ok(None) };
        let same = match edited {
            Some(same) => same,
            None => unless_damaged(self.tables.envelope(&slip))?.is_some_and(|e| e.body_hash() == hash),
        };
        if same {
            return Ok(Some(Enqueued { id: new.id, state, duplicate: true }));
        }
        Err(Refusal::IdConflict { id: new.id }.into())
    }

    /// Makes a queue if it is not there, unless its name is a drawer's or its drawers are queues (I38).
    pub(super) fn ensure_queue(&mut self, name: &QueueName, policy: &QueuePolicy) -> Outcome<()> {
        if self.queues()?.contains_key(name) {
            return Ok(());
        }
        self.check_queue(name, policy)?;
        self.queues()?
            .insert(name.clone(), QueueRow { policy: Arc::new(policy.clone()), ..QueueRow::default() });
        self.touched += 1;
        self.queue_whole(name)?;
        Ok(())
    }

    /// Refuses to send a letter back to a queue that is not there, is a drawer, or is full.
    pub(super) fn check_destination(&mut self, slip: &Slip) -> Outcome<()> {
        let queues = self.queues()?;
        let Some(row) = queues.get(&slip.queue) else {
            let queue = slip.queue.clone();
            return Err(match owner_of_drawer(queues.iter(), &queue) {
                Some(owner) => Refusal::IsDrawer { queue, owner },
                None => Refusal::NoSuchQueue { queue },
            }
            .into());
        };
        // What can never fit is refused for good; whoever waits for room would wait for ever.
        if let Some(most) = row.policy.max_bytes.filter(|most| slip.size > *most) {
            let why = format!("{} bytes; queue {} holds {most} at most", slip.size, slip.queue);
            return Err(Refusal::invalid("payload", why).into());
        }
        Ok(check_room(&slip.queue, row, slip.size)?)
    }

    /// Refuses to put a letter into what is a queue, or no queue's drawer (I38).
    pub(super) fn check_drawer(&mut self, dlq: &QueueName) -> Outcome<()> {
        let queues = self.queues()?;
        if queues.contains_key(dlq) {
            let why = format!("{dlq} is a queue, not a drawer; name another");
            return Err(Refusal::invalid("dlq", why).into());
        }
        if owner_of_drawer(queues.iter(), dlq).is_none() {
            let why = format!("{dlq} is no queue's drawer; give it to one with `queue set --dlq` first");
            return Err(Refusal::invalid("dlq", why).into());
        }
        Ok(())
    }

    /// Refuses a queue that is not there and cannot be made.
    fn check_queue(&mut self, name: &QueueName, policy: &QueuePolicy) -> Outcome<()> {
        let queues = self.queues()?;
        if queues.contains_key(name) {
            return Ok(());
        }
        if let Some(owner) = owner_of_drawer(queues.iter(), name) {
            return Err(Refusal::IsDrawer { queue: name.clone(), owner }.into());
        }
        check_drawers(queues, name, policy)?;
        if queues.len() >= limits::QUEUES_MAX {
            return Err(too_many_queues().into());
        }
        Ok(())
    }

    /// Refuses a place for replies that is a drawer, also one of the message's own queue if that is new, and
    /// one whose own drawer would be that queue.
    fn check_reply_to(&mut self, queue: &QueueName, reply_to: &QueueName) -> Outcome<()> {
        self.check_queue(reply_to, &QueuePolicy::default())?;
        if self.queues()?.contains_key(queue) || queue == reply_to {
            return Ok(());
        }
        let plain = QueuePolicy::default();
        if plain.drawers(queue).contains(reply_to) {
            return Err(Refusal::IsDrawer { queue: reply_to.clone(), owner: queue.clone() }.into());
        }
        if plain.drawers(reply_to).contains(queue) && !self.queues()?.contains_key(reply_to) {
            let why = format!("{queue} is its drawer; name another queue for replies");
            return Err(Refusal::invalid("reply_to", why).into());
        }
        Ok(())
    }

    /// Refuses a message whose queue and place for replies are both new where there is room for one more: it would be
    /// refused after the first was made.
    fn check_room_for_both(&mut self, queue: &QueueName, reply_to: &QueueName) -> Outcome<()> {
        let queues = self.queues()?;
        let new = [queue, reply_to].into_iter().collect::<BTreeSet<_>>();
        let missing = new.into_iter().filter(|name| !queues.contains_key(*name)).count();
        if queues.len() + missing > limits::QUEUES_MAX {
            return Err(too_many_queues().into());
        }
        Ok(())
    }

    /// Sets the rules of a queue, making it if need be.
    pub(crate) fn configure(
        &mut self,
        name: &QueueName,
        policy: QueuePolicy,
        actor: &Actor,
        now: Time,
    ) -> Outcome<()> {
        policy.check(name)?;
        actor.check()?;
        self.check_queue(name, &policy)?;
        check_drawers(self.queues()?, name, &policy)?;
        let rules = self.queues()?.get(name).and_then(|row| row.policy.breaker.clone());
        let key = |rules: &Option<BreakerPolicy>| rules.as_ref().map(|rules| rules.key.clone());
        let (rekeyed, renumbered) = (key(&rules) != key(&policy.breaker), rules != policy.breaker);
        let is_new = !self.queues()?.contains_key(name);
        self.ensure_queue(name, &policy)?;
        let before = Arc::clone(&self.queue(name)?.policy);
        // A queue that is made has the rules it is made with: what they are beside the usual ones is what changed.
        let before = if is_new { Arc::default() } else { before };
        if !is_new && *before == policy {
            return Ok(());
        }
        let changes = audit::changes(before.as_ref(), &policy);
        self.queue_whole(name)?.policy = Arc::new(policy);
        if rekeyed {
            self.forget_breakers(name)?;
        }
        if renumbered {
            // What the index lets through was decided by the old rules.
            self.hot = None;
            self.woke = true;
        }
        let entry = AuditEntry::new(now, actor, "configure", name, 1);
        self.record(if changes.is_empty() { entry } else { entry.with_detail(changes) })?;
        Ok(())
    }

    /// Halts or resumes leasing.
    pub(crate) fn pause(&mut self, name: &QueueName, paused: bool, actor: &Actor, now: Time) -> Outcome<()> {
        actor.check()?;
        self.queue(name)?;
        self.queue_whole(name)?.paused_by = paused.then(|| actor.name.clone());
        self.woke = true;
        let act = if paused { "pause" } else { "resume" };
        self.record(AuditEntry::new(now, actor, act, name, 1))?;
        Ok(())
    }

    /// Takes waiting messages back.
    pub(crate) fn cancel(&mut self, ids: &[MessageId], actor: &Actor, now: Time) -> Outcome<Each<MessageId>> {
        actor.check()?;
        check_batch(ids.len(), 0)?;
        self.each(ids.to_vec(), |engine, id| engine.cancel_one(id, actor, now).map(|()| id))
    }

    fn cancel_one(&mut self, id: MessageId, actor: &Actor, now: Time) -> Outcome<()> {
        let Some(live) = self.tables.live(id)? else {
            return Err(match self.tables.letter(id)? {
                Some(_) => Refusal::WrongState { id, state: State::Dead, command: "cancel".into() },
                None => Refusal::NoSuchMessage { id },
            }
            .into());
        };
        let policy = self.queue(&live.slip.queue)?.policy.clone();
        self.change(live, &Command::Cancel, Along::NONE, &policy, now)?;
        self.record(AuditEntry::new(now, actor, "cancel", id, 1))?;
        Ok(())
    }

    /// Removes waiting messages of a queue; redriven ones stay, their letters are waiting for them.
    pub(crate) fn purge(&mut self, name: &QueueName, actor: &Actor, now: Time) -> Outcome<Purged> {
        actor.check()?;
        let policy = self.queue(name)?.policy.clone();
        // Others wait for this commit: it looks at one page of messages, whichever queue they are of, and the next
        // call goes on behind it.
        let begun = self.purging.take().filter(|begun| begun.goes_on(name, now));
        let after = begun.map(|begun| begun.to);
        let page = self.tables.live_after(after, limits::REAP_MAX)?;
        let last = page.last().map(|(id, _)| *id).filter(|_| page.len() >= limits::REAP_MAX);
        let mut purged = 0;
        let of_queue = page.into_iter().filter_map(|(_, live)| live.ok()).filter(|l| l.slip.queue == *name);
        for live in of_queue.filter(|l| l.life.lease().is_none() && l.life.generation == 1) {
            self.change(live, &Command::Purge, Along::NONE, &policy, now)?;
            purged += 1;
        }
        self.purging = last.map(|to| Purging { queue: name.clone(), to, at: now });
        if purged > 0 || after.is_none() {
            self.record(AuditEntry::new(now, actor, "purge", name, purged))?;
        }
        Ok(Purged { purged, more: last.is_some() })
    }
}

/// How far a purge has come that its caller has not finished.
pub(super) struct Purging {
    queue: QueueName,
    to: MessageId,
    at: Time,
}

impl Purging {
    /// Whether a call goes on with it. One that came late, or for another queue, begins anew.
    fn goes_on(&self, queue: &QueueName, now: Time) -> bool {
        self.queue == *queue && now.since(self.at) <= limits::PURGE_PAUSE_MAX
    }
}

/// The value a new message's breaker goes by, where that is in its headers or payload.
fn breaker_value<T: Tables>(policy: &QueuePolicy, new: &NewMessage, body: &T::Body) -> Kept<Option<String>> {
    match policy.breaker.as_ref().map(|rules| &rules.key) {
        Some(key @ (BreakerKey::Header(_) | BreakerKey::Payload(_))) => {
            let whole = T::whole(new, body)?;
            Ok(key.read(&whole.headers, &whole.payload))
        }
        Some(BreakerKey::Queue | BreakerKey::Kind) | None => Ok(None),
    }
}

fn too_many_queues() -> Refusal {
    let why = format!("there may be {} and no more; a name per message is a mistake", limits::QUEUES_MAX);
    Refusal::invalid("queue", why)
}

/// Refuses a policy whose letters would lie among work.
fn check_drawers(
    queues: &BTreeMap<QueueName, QueueRow>,
    name: &QueueName,
    policy: &QueuePolicy,
) -> Result<(), Refusal> {
    match policy.drawers(name).into_iter().find(|drawer| queues.contains_key(drawer)) {
        Some(drawer) => {
            Err(Refusal::invalid("dlq", format!("{drawer} is a queue, not a drawer; name another")))
        }
        None => Ok(()),
    }
}

/// The first queue, by name, that files into this drawer.
fn owner_of_drawer<'a>(
    mut queues: impl Iterator<Item = (&'a QueueName, &'a QueueRow)>,
    drawer: &QueueName,
) -> Option<QueueName> {
    queues.find(|(name, row)| row.policy.drawers(name).contains(drawer)).map(|(name, _)| name.clone())
}

/// Refuses what is over the queue's limits.
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
    use crate::memory::MemoryStore;
    use crate::verbs::{Access as _, Load};
    use redrive_core::message::Payload;

    fn incoming<T: Tables>(_: &Engine<T>, mut new: NewMessage) -> Incoming<T::Body> {
        let body = T::pack(&mut new);
        Incoming { new, body_hash: None, size: 0, body }
    }

    #[tokio::test]
    async fn a_refused_entry_at_the_limit_of_queues_leaves_no_queue_behind() {
        let store = MemoryStore::new();
        let answer = store.0.write(Load::GROWS, |engine, now| {
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
        assert_eq!(queues, limits::QUEUES_MAX - 1, "none was made");
    }
}
