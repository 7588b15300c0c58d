//! The read calls of the reference model, the recount, and the calls about messages and queues.

use super::{AUDIT_KEY, Letter, Model, ModelState};
use async_trait::async_trait;
use redrive_core::audit::{Anchor, AuditCheck, AuditEntry, AuditReport, AuditTrimmed, ORIGIN, seal};
use redrive_core::breaker::BreakerView;
use redrive_core::dead_letter::{Actor, DeadLetter};
use redrive_core::error::{Refusal, StoreResult};
use redrive_core::failure::Failure;
use redrive_core::group::{LeafCount, LeafKey};
use redrive_core::ids::{LeaseToken, MessageId, QueueName};
use redrive_core::invariants::{Census, Verification};
use redrive_core::lifecycle::{Command, State, transition};
use redrive_core::limits;
use redrive_core::message::{Delivery, Message, NewMessage, StoredMessage};
use redrive_core::operation::Outcomes;
use redrive_core::policy::QueuePolicy;
use redrive_core::query::{Cursor, Page, PageRequest, Query};
use redrive_core::store::{
    BatchResults, Dlq, Enqueued, KeyState, LeaseRequest, Purged, Queue, Reaped, Settled, Settlement,
    WaitingFor, Work,
};
use redrive_core::time::{Clock, Span, Time};
use redrive_core::workers::WorkerView;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// One page of a list. The items come in order, each with its position.
pub(super) fn page<T>(
    list: &str,
    request: &PageRequest,
    all: impl IntoIterator<Item = (u64, T)>,
    wanted: impl Fn(&T) -> bool,
) -> StoreResult<Page<T>> {
    let after = request.position(list)?;
    let mut rest = all.into_iter().peekable();
    if let Some(after) = after {
        // Positions always ascend here: for a descending list the caller passes them inverted.
        while rest.next_if(|(position, _)| *position <= after).is_some() {}
    }
    let mut items = Vec::new();
    let mut last = 0;
    while items.len() < request.limit()
        && let Some((position, item)) = rest.next()
    {
        last = position;
        if wanted(&item) {
            items.push(item);
        }
    }
    let next = rest.peek().map(|_| Cursor::after(list, last));
    Ok(Page { next, ..Page::last(items) })
}

/// The position of an item in a list that shows the latest item first.
pub(super) fn latest(n: u64) -> u64 {
    u64::MAX - n
}

impl ModelState {
    pub(super) fn failures(&self, id: MessageId) -> Vec<Failure> {
        let kept = self.histories.get(&id).into_iter().flatten();
        kept.map(|(_, failure)| failure.clone()).collect()
    }

    fn view_message(&self, stored: &StoredMessage, now: Time) -> Message {
        stored.view(self.policy(&stored.envelope.queue), now)
    }

    /// The public view of a letter. It shows the lifecycle of the live message while the letter is being
    /// retried.
    pub(super) fn view_letter(&self, letter: &Letter, now: Time) -> DeadLetter {
        let id = letter.stored.envelope.id;
        let mut stored = letter.stored.clone();
        if let Some(at) = self.live_at(id) {
            stored.lifecycle = self.live[at].lifecycle.clone();
        }
        let stored = &stored;
        let group =
            self.leaves.iter().find(|l| l.id == letter.record.leaf).map_or(letter.record.leaf, |l| l.group);
        let failures = self.failures(id);
        DeadLetter::assemble(
            self.view_message(stored, now),
            letter.record.clone(),
            group,
            letter.death,
            failures,
        )
    }

    /// Every letter, latest death first.
    pub(super) fn view_letters(&self, now: Time) -> Vec<DeadLetter> {
        let mut all: Vec<DeadLetter> = self.letters.iter().map(|l| self.view_letter(l, now)).collect();
        all.sort_by_key(|l| latest(l.death));
        all
    }

    fn view_queue(&self, name: &QueueName, now: Time) -> Result<Queue, Refusal> {
        let queue_state =
            self.queues.get(name).ok_or_else(|| Refusal::NoSuchQueue { queue: name.clone() })?;
        let in_state = |state: State| {
            let here =
                self.live.iter().filter(|r| r.envelope.queue == *name && r.lifecycle.state(now) == state);
            here.count() as u64
        };
        Ok(Queue {
            name: name.clone(),
            paused: queue_state.paused_by.is_some(),
            paused_by: queue_state.paused_by.clone(),
            scheduled: in_state(State::Scheduled),
            ready: in_state(State::Ready),
            counts: queue_state.counts,
            policy: queue_state.policy.clone(),
        })
    }

    pub(super) fn check_audit(&self, head: Option<&str>) -> AuditReport {
        let mut check = AuditCheck::new(&AUDIT_KEY, self.anchor.as_ref());
        self.audit.iter().for_each(|row| check.row(row));
        let begins = self.anchor.as_ref().map_or(ORIGIN, |anchor| &anchor.seal);
        let trimmed = self.anchor.as_ref().map_or(0, |anchor| anchor.n);
        let stored = self.audit.last().map_or((trimmed, begins), |row| (row.n, &*row.seal));
        check.finish(stored, head.map(|h| h == begins || self.audit.iter().any(|row| row.seal == h)))
    }

    pub(super) fn trim(&mut self, before: Time, actor: &Actor, now: Time) -> AuditTrimmed {
        let old = self.audit.iter().take_while(|row| row.entry.at < before).count();
        let gone = old.min(limits::AUDIT_TRIM_CHUNK);
        let Some(last) = self.audit.drain(..gone).next_back() else { return AuditTrimmed::default() };
        self.anchor = Some(Anchor::after(&AUDIT_KEY, &last));
        let entry = AuditEntry::new(now, actor, "trim", "audit", gone as u64);
        // `seal` does not fit here: the last row may be among the removed ones.
        let head = self.audit.last().unwrap_or(&last).clone();
        let detail = format!("rows up to {}, from before {before}", last.n);
        self.audit.push(seal(&AUDIT_KEY, head.n + 1, &head.seal, entry.with_detail(detail)));
        AuditTrimmed { rows: gone as u64, more: gone < old }
    }

    fn cancel(&mut self, id: MessageId, actor: &Actor, now: Time) -> Result<MessageId, Refusal> {
        if let Some(at) = self.live_at(id) {
            let lifecycle = &self.live[at].lifecycle;
            if lifecycle.generation > 1 {
                return Err(Refusal::WrongState {
                    id,
                    state: lifecycle.state(now),
                    command: "cancel".into(),
                });
            }
            self.apply(at, &Command::Cancel, None, now)?;
        } else {
            let at = self.letter_at(id).ok_or(Refusal::NoSuchMessage { id })?;
            let _ = transition(id, &self.letters[at].stored.lifecycle, &Command::Cancel, now)?;
        }
        self.log(now, actor, "cancel", id, 1);
        Ok(id)
    }

    pub(super) fn list_dlqs(&self) -> Vec<Dlq> {
        let mut all: Vec<Dlq> =
            self.dlqs.iter().map(|dlq| Dlq { dlq: dlq.clone(), by_status: BTreeMap::new() }).collect();
        for dlq in &mut all {
            for letter in self.letters.iter().filter(|l| l.record.dlq == dlq.dlq) {
                *dlq.by_status.entry(letter.record.status).or_default() += 1;
            }
        }
        all
    }

    pub(super) fn verify(&self) -> Verification {
        let mut census = Census::default();
        self.live.iter().for_each(|r| census.message(&r.into(), &r.lifecycle));
        for letter in &self.letters {
            census.letter(&(&letter.stored).into(), &letter.record);
            let id = letter.stored.envelope.id;
            let kept: Vec<u32> = self.earlier_contents(id).into_iter().map(|(n, _)| n).collect();
            census.lineage(id, &letter.record, &kept);
        }
        for (operation, members) in &self.operations {
            let mut counted = Outcomes::default();
            members.iter().for_each(|(_, member)| *counted.count_mut(member.outcome) += 1);
            census.operation(operation, counted);
        }
        let shown =
            self.queues.iter().map(|(name, queue_state)| (name.clone(), queue_state.counts)).collect();
        let leaves: Vec<(LeafKey, LeafCount)> =
            self.leaf_counts.iter().map(|(k, c)| (k.clone(), *c)).collect();
        census.compare(&shown, &leaves);
        let mut found = census.verification;
        let report = self.check_audit(None);
        found.audit_rows = report.rows;
        found.failures = self.histories.values().map(|h| h.len() as u64).sum();
        if let Some(broken) = report.broken {
            found.find("I48", broken, false);
        }
        found
    }
}

impl Model {
    /// Creates an empty model that uses this clock.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, state: Mutex::new(ModelState::default()) }
    }

    /// Runs one call under the lock, at one instant.
    pub(super) fn with_state<T>(&self, verb: impl FnOnce(&mut ModelState, Time) -> T) -> T {
        let now = self.clock.now();
        verb(&mut self.state.lock().expect("a law that panics ends its test"), now)
    }
}

#[async_trait]
impl Work for Model {
    async fn enqueue(&self, batch: Vec<NewMessage>) -> StoreResult<BatchResults<Enqueued>> {
        let bytes: usize = batch.iter().map(|m| m.payload.bytes.len()).sum();
        if batch.len() > limits::BATCH_ENTRIES_MAX || bytes > limits::BATCH_BYTES_MAX {
            return Err(Refusal::invalid("batch", "too much at once").into());
        }
        self.with_state(|state, now| Ok(batch.into_iter().map(|new| state.enqueue(new, now)).collect()))
    }

    async fn lease(&self, request: LeaseRequest) -> StoreResult<Vec<Delivery>> {
        request.check()?;
        self.with_state(|state, now| {
            if let Some(queue) = request.queues.iter().find(|q| !state.queues.contains_key(q)) {
                return Err(Refusal::NoSuchQueue { queue: queue.clone() }.into());
            }
            state.reap_work(limits::REAP_MAX, now);
            state.end_quarantines(limits::REAP_MAX, now);
            let ids = state.lease_for_worker(&request, now);
            state.note_lease(&request, now);
            let deliver = |id: &MessageId| {
                let stored = &state.live[state.live_at(*id).expect("just leased")];
                let secret = stored.lifecycle.lease().expect("just leased").secret;
                let (message, token) = (state.view_message(stored, now), LeaseToken { id: *id, secret });
                Delivery { message, token, attempt: stored.lifecycle.attempts }
            };
            Ok(ids.iter().map(deliver).collect())
        })
    }

    async fn settle(&self, batch: Vec<Settlement>) -> StoreResult<BatchResults<Settled>> {
        let bytes: usize = batch.iter().map(Settlement::payload_bytes).sum();
        if batch.len() > limits::BATCH_ENTRIES_MAX || bytes > limits::BATCH_BYTES_MAX {
            return Err(Refusal::invalid("batch", "too much at once").into());
        }
        self.with_state(|state, now| {
            let settle = |settlement: Settlement| {
                let (worker, what) = (state.lessee(settlement.token.id), settlement.what.clone());
                let settled = state.settle(settlement, now)?;
                state.note_settled(worker, &what, now);
                Ok(settled)
            };
            Ok(batch.into_iter().map(settle).collect())
        })
    }

    async fn reap(&self, limit: usize) -> StoreResult<Reaped> {
        self.with_state(|state, now| {
            let mut reaped = state.reap_work(limit, now);
            state.reap_letters(limit, &mut reaped, now);
            Ok(reaped)
        })
    }

    async fn tidy(&self, limit: usize) -> StoreResult<Option<Reaped>> {
        self.reap(limit).await.map(Some)
    }

    /// Returns whether work is due now. The model never waits: nobody else could move its clock in the
    /// meantime.
    async fn wait(&self, queues: Vec<QueueName>, _at_most: Span) -> StoreResult<bool> {
        self.with_state(|state, now| {
            let open = |q: &QueueName| queues.contains(q) && state.queues[q].paused_by.is_none();
            Ok(state.live.iter().any(|r| r.lifecycle.state(now) == State::Ready && open(&r.envelope.queue)))
        })
    }

    async fn messages(&self, query: Query) -> StoreResult<Page<Message>> {
        self.with_state(|state, now| {
            let mut all: Vec<&StoredMessage> = state.live.iter().collect();
            all.sort_by_key(|r| r.envelope.id);
            let after = query.page.id("m")?;
            let mut rest = all.into_iter().filter(|r| Some(r.envelope.id) > after).peekable();
            let mut page = Page::last(Vec::new());
            while page.items.len() < query.page.limit()
                && let Some(stored) = rest.next()
            {
                let message = state.view_message(stored, now);
                let failures = state.failures(message.envelope.id);
                page.next = rest.peek().map(|_| Cursor::after_id("m", message.envelope.id));
                if query.filter.matches_message(&Message { failures, ..message.clone() }, now) {
                    page.items.push(message);
                }
            }
            Ok(page)
        })
    }

    async fn message(&self, id: MessageId) -> StoreResult<Message> {
        self.with_state(|state, now| {
            let at = state.live_at(id).ok_or(Refusal::NoSuchMessage { id })?;
            Ok(Message { failures: state.failures(id), ..state.view_message(&state.live[at], now) })
        })
    }

    async fn key_state(&self, queue: QueueName, key: String) -> StoreResult<Option<KeyState>> {
        self.with_state(|state, now| {
            let known = state.keys.get(&(queue, key)).filter(|k| k.created_at.plus(limits::KEY_WINDOW) > now);
            Ok(known.map(|key| KeyState { id: key.id, state: state.key_state(key, now) }))
        })
    }

    async fn cancel(&self, ids: Vec<MessageId>, actor: Actor) -> StoreResult<BatchResults<MessageId>> {
        actor.check()?;
        self.once("cancel", &actor, |state, now| {
            Ok(ids.into_iter().map(|id| state.cancel(id, &actor, now)).collect())
        })
    }

    async fn queues(&self) -> StoreResult<Vec<Queue>> {
        self.with_state(|state, now| {
            Ok(state.queues.keys().map(|name| state.view_queue(name, now)).collect::<Result<_, _>>()?)
        })
    }

    async fn queue(&self, name: QueueName) -> StoreResult<Queue> {
        self.with_state(|state, now| Ok(state.view_queue(&name, now)?))
    }

    /// The model keeps no index to count from.
    async fn waiting_for(&self) -> StoreResult<Option<BTreeMap<QueueName, WaitingFor>>> {
        Ok(None)
    }

    async fn configure(&self, name: QueueName, policy: QueuePolicy, actor: Actor) -> StoreResult<Queue> {
        actor.check()?;
        policy.check(&name)?;
        self.once("configure", &actor, |state, now| {
            state.check_name(&name, &policy)?;
            let is_known = state.queues.contains_key(&name);
            let queue_state = state.queues.entry(name.clone()).or_default();
            if is_known && queue_state.policy == policy {
                return Ok(());
            }
            let key = |policy: &QueuePolicy| policy.breaker.as_ref().map(|rules| rules.key.clone());
            if key(&queue_state.policy) != key(&policy) {
                state.breakers.retain(|(queue, _), _| *queue != name);
            }
            queue_state.policy = policy;
            state.log(now, &actor, "configure", &name, 1);
            Ok(())
        })?;
        self.queue(name).await
    }

    async fn pause(&self, name: QueueName, paused: bool, actor: Actor) -> StoreResult<Queue> {
        actor.check()?;
        self.once("pause", &actor, |state, now| {
            state.view_queue(&name, now)?;
            state.queues.entry(name.clone()).or_default().paused_by = paused.then(|| actor.name.clone());
            state.log(now, &actor, if paused { "pause" } else { "resume" }, &name, 0);
            Ok(())
        })?;
        self.queue(name).await
    }

    async fn purge(&self, name: QueueName, actor: Actor) -> StoreResult<Purged> {
        actor.check()?;
        self.once("purge", &actor, |state, now| {
            state.view_queue(&name, now)?;
            let here = |r: &&StoredMessage| {
                r.envelope.queue == name && r.lifecycle.generation == 1 && r.lifecycle.lease().is_none()
            };
            let mut waiting: Vec<(u64, MessageId)> =
                state.live.iter().filter(here).map(|r| (r.envelope.seq, r.envelope.id)).collect();
            waiting.sort_unstable();
            let more = waiting.len() > limits::BATCH_ENTRIES_MAX;
            waiting.truncate(limits::BATCH_ENTRIES_MAX);
            for (_, id) in &waiting {
                state.apply(state.live_at(*id).expect("just found"), &Command::Purge, None, now)?;
            }
            let purged = waiting.len() as u64;
            state.log(now, &actor, "purge", &name, purged);
            Ok(Purged { purged, more })
        })
    }

    async fn workers(&self) -> StoreResult<Vec<WorkerView>> {
        self.with_state(|state, now| Ok(state.list_workers(now)))
    }

    async fn breakers(&self) -> StoreResult<Vec<BreakerView>> {
        self.with_state(|state, now| Ok(state.view_breakers(now)))
    }

    async fn force_breaker(
        &self,
        queue: QueueName,
        key: String,
        open: bool,
        actor: Actor,
    ) -> StoreResult<BreakerView> {
        self.once("force_breaker", &actor, |state, now| {
            Ok(state.force_breaker(&queue, &key, open, &actor, now)?)
        })
    }
}
