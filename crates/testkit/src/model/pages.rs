//! What the reference model shows: pages, sums, the recount, and the store traits over its books.

use super::{AUDIT_KEY, Books, Letter, Model};
use async_trait::async_trait;
use redrive_core::audit::{
    Anchor, AuditCheck, AuditEntry, AuditReport, AuditRow, AuditTrimmed, ORIGIN, seal,
};
use redrive_core::breaker::BreakerView;
use redrive_core::dead_letter::{ActRequest, Actor, DeadLetter, LetterDelivery};
use redrive_core::disclosure::Disclosure;
use redrive_core::error::{Outcome, Refusal};
use redrive_core::failure::Failure;
use redrive_core::failure::{Category, check_label};
use redrive_core::group::{
    Group, GroupAct, GroupDetail, GroupQuery, LeafCount, LeafKey, Marker, check_merge,
};
use redrive_core::ids::{GroupId, LeaseToken, MessageId, OperationId, QueueName};
use redrive_core::invariants::{Census, Verification};
use redrive_core::lifecycle::{Command, State, transition};
use redrive_core::limits;
use redrive_core::message::{Delivery, Message, NewMessage, Record};
use redrive_core::operation::{Control, Member, Operation, OperationSpec, Outcomes, Preview, PreviewRequest};
use redrive_core::policy::QueuePolicy;
use redrive_core::query::{Cursor, Page, PageRequest, Query};
use redrive_core::revision::Revision;
use redrive_core::store::{
    Drawer, Each, Enqueued, HandOver, Indexed, KeyState, LeaseRequest, LetterLeaseRequest, LetterSettlement,
    LetterState, Letters, Purged, Queue, Reaped, Settled, Settlement, WaitingFor, Work,
};
use redrive_core::time::{Clock, Span, Time};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// One page of a list whose items are given in order, each with its position.
fn page<T>(
    list: &str,
    request: &PageRequest,
    all: impl IntoIterator<Item = (u64, T)>,
    wanted: impl Fn(&T) -> bool,
) -> Outcome<Page<T>> {
    let after = request.position(list)?;
    let mut rest = all.into_iter().peekable();
    if let Some(after) = after {
        // Positions of a descending list fall: the caller has turned them round.
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

/// The position of an item in a list that shows the latest first.
pub(super) fn latest(n: u64) -> u64 {
    u64::MAX - n
}

impl Books {
    pub(super) fn failures(&self, id: MessageId) -> Vec<Failure> {
        let kept = self.histories.get(&id).into_iter().flatten();
        kept.map(|(_, failure)| failure.clone()).collect()
    }

    fn show(&self, record: &Record, now: Time) -> Message {
        record.view(self.policy(&record.envelope.queue), now)
    }

    /// A letter shows how far its message is now, also while it is being retried; it stays where it was filed.
    pub(super) fn show_letter(&self, letter: &Letter, now: Time) -> DeadLetter {
        let id = letter.record.envelope.id;
        let mut record = letter.record.clone();
        if let Some(at) = self.live_at(id) {
            record.life = self.live[at].life.clone();
        }
        let record = &record;
        let group =
            self.leaves.iter().find(|l| l.id == letter.file.leaf).map_or(letter.file.leaf, |l| l.group);
        let failures = self.failures(id);
        DeadLetter::assemble(self.show(record, now), letter.file.clone(), group, letter.death, failures)
    }

    /// Every letter, latest death first.
    pub(super) fn show_letters(&self, now: Time) -> Vec<DeadLetter> {
        let mut all: Vec<DeadLetter> = self.letters.iter().map(|l| self.show_letter(l, now)).collect();
        all.sort_by_key(|l| latest(l.death));
        all
    }

    fn show_queue(&self, name: &QueueName, now: Time) -> Result<Queue, Refusal> {
        let shelf = self.queues.get(name).ok_or_else(|| Refusal::NoSuchQueue { queue: name.clone() })?;
        let in_state = |state: State| {
            let here = self.live.iter().filter(|r| r.envelope.queue == *name && r.life.state(now) == state);
            here.count() as u64
        };
        Ok(Queue {
            name: name.clone(),
            paused: shelf.paused_by.is_some(),
            paused_by: shelf.paused_by.clone(),
            scheduled: in_state(State::Scheduled),
            ready: in_state(State::Ready),
            counts: shelf.counts,
            policy: shelf.policy.clone(),
        })
    }

    fn check_audit(&self, head: Option<&str>) -> AuditReport {
        let mut check = AuditCheck::new(&AUDIT_KEY, self.anchor.as_ref());
        self.audit.iter().for_each(|row| check.row(row));
        let begins = self.anchor.as_ref().map_or(ORIGIN, |anchor| &anchor.seal);
        let trimmed = self.anchor.as_ref().map_or(0, |anchor| anchor.n);
        let stored = self.audit.last().map_or((trimmed, begins), |row| (row.n, &*row.seal));
        check.finish(stored, head.map(|h| h == begins || self.audit.iter().any(|row| row.seal == h)))
    }

    fn trim(&mut self, before: Time, actor: &Actor, now: Time) -> AuditTrimmed {
        let old = self.audit.iter().take_while(|row| row.entry.at < before).count();
        let gone = old.min(limits::AUDIT_TRIM_CHUNK);
        let Some(last) = self.audit.drain(..gone).next_back() else { return AuditTrimmed::default() };
        self.anchor = Some(Anchor::after(&AUDIT_KEY, &last));
        let entry = AuditEntry::new(now, actor, "trim", "audit", gone as u64);
        // Not `seal` of an empty trail: the last row may be among those that went.
        let head = self.audit.last().unwrap_or(&last).clone();
        let detail = format!("rows up to {}, from before {before}", last.n);
        self.audit.push(seal(&AUDIT_KEY, head.n + 1, &head.seal, entry.with_detail(detail)));
        AuditTrimmed { rows: gone as u64, more: gone < old }
    }

    fn cancel(&mut self, id: MessageId, actor: &Actor, now: Time) -> Result<MessageId, Refusal> {
        if let Some(at) = self.live_at(id) {
            let life = &self.live[at].life;
            if life.generation > 1 {
                return Err(Refusal::WrongState { id, state: life.state(now), command: "cancel".into() });
            }
            self.change(at, &Command::Cancel, None, now)?;
        } else {
            let at = self.letter_at(id).ok_or(Refusal::NoSuchMessage { id })?;
            let _ = transition(id, &self.letters[at].record.life, &Command::Cancel, now)?;
        }
        self.log(now, actor, "cancel", id, 1);
        Ok(id)
    }

    pub(super) fn list_drawers(&self) -> Vec<Drawer> {
        let mut all: Vec<Drawer> =
            self.drawers.iter().map(|dlq| Drawer { dlq: dlq.clone(), by_status: BTreeMap::new() }).collect();
        for drawer in &mut all {
            for letter in self.letters.iter().filter(|l| l.file.dlq == drawer.dlq) {
                *drawer.by_status.entry(letter.file.status).or_default() += 1;
            }
        }
        all
    }

    pub(super) fn verify(&self) -> Verification {
        let mut census = Census::default();
        self.live.iter().for_each(|r| census.message(&r.into(), &r.life));
        for letter in &self.letters {
            census.letter(&(&letter.record).into(), &letter.file);
            let id = letter.record.envelope.id;
            let kept: Vec<u32> = self.earlier(id).into_iter().map(|(n, _)| n).collect();
            census.lineage(id, &letter.file, &kept);
        }
        for (operation, members) in &self.operations {
            let mut counted = Outcomes::default();
            members.iter().for_each(|(_, member)| *counted.of(member.outcome) += 1);
            census.operation(operation, counted);
        }
        let shown = self.queues.iter().map(|(name, shelf)| (name.clone(), shelf.counts)).collect();
        let leaves: Vec<(LeafKey, LeafCount)> = self.tallies.iter().map(|(k, c)| (k.clone(), *c)).collect();
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
    /// An empty model that asks this clock for the time.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, books: Mutex::new(Books::default()) }
    }

    /// Runs one verb: one lock, one instant.
    pub(super) fn at<T>(&self, verb: impl FnOnce(&mut Books, Time) -> T) -> T {
        let now = self.clock.now();
        verb(&mut self.books.lock().expect("a law that panics ends its test"), now)
    }
}

#[async_trait]
impl Work for Model {
    async fn enqueue(&self, batch: Vec<NewMessage>) -> Outcome<Each<Enqueued>> {
        let bytes: usize = batch.iter().map(|m| m.payload.bytes.len()).sum();
        if batch.len() > limits::BATCH_ENTRIES_MAX || bytes > limits::BATCH_BYTES_MAX {
            return Err(Refusal::invalid("batch", "too much at once").into());
        }
        self.at(|b, now| Ok(batch.into_iter().map(|new| b.enqueue(new, now)).collect()))
    }

    async fn lease(&self, request: LeaseRequest) -> Outcome<Vec<Delivery>> {
        request.check()?;
        self.at(|b, now| {
            if let Some(queue) = request.queues.iter().find(|q| !b.queues.contains_key(q)) {
                return Err(Refusal::NoSuchQueue { queue: queue.clone() }.into());
            }
            b.reap_work(limits::REAP_MAX, now);
            b.end_quarantines(limits::REAP_MAX, now);
            let ids = b.hand_out(&request, now);
            let deliver = |id: &MessageId| {
                let record = &b.live[b.live_at(*id).expect("just leased")];
                let secret = record.life.lease().expect("just leased").secret;
                let (message, token) = (b.show(record, now), LeaseToken { id: *id, secret });
                Delivery { message, token, attempt: record.life.attempts }
            };
            Ok(ids.iter().map(deliver).collect())
        })
    }

    async fn settle(&self, batch: Vec<Settlement>) -> Outcome<Each<Settled>> {
        let bytes: usize = batch.iter().map(Settlement::payload_bytes).sum();
        if batch.len() > limits::BATCH_ENTRIES_MAX || bytes > limits::BATCH_BYTES_MAX {
            return Err(Refusal::invalid("batch", "too much at once").into());
        }
        self.at(|b, now| Ok(batch.into_iter().map(|s| b.settle(s, now)).collect()))
    }

    async fn reap(&self, limit: usize) -> Outcome<Reaped> {
        self.at(|b, now| {
            let mut reaped = b.reap_work(limit, now);
            b.reap_letters(limit, &mut reaped, now);
            Ok(reaped)
        })
    }

    async fn tidy(&self, limit: usize) -> Outcome<Option<Reaped>> {
        self.reap(limit).await.map(Some)
    }

    /// Says whether there is due work now. The model never waits: nobody else could move its clock meanwhile.
    async fn wait(&self, queues: Vec<QueueName>, _at_most: Span) -> Outcome<bool> {
        self.at(|b, now| {
            let open = |q: &QueueName| queues.contains(q) && b.queues[q].paused_by.is_none();
            Ok(b.live.iter().any(|r| r.life.state(now) == State::Ready && open(&r.envelope.queue)))
        })
    }

    async fn messages(&self, query: Query) -> Outcome<Page<Message>> {
        self.at(|b, now| {
            let mut all: Vec<&Record> = b.live.iter().collect();
            all.sort_by_key(|r| r.envelope.id);
            let after = query.page.id("m")?;
            let mut rest = all.into_iter().filter(|r| Some(r.envelope.id) > after).peekable();
            let mut page = Page::last(Vec::new());
            while page.items.len() < query.page.limit()
                && let Some(record) = rest.next()
            {
                let message = b.show(record, now);
                let failures = b.failures(message.envelope.id);
                page.next = rest.peek().map(|_| Cursor::after_id("m", message.envelope.id));
                if query.filter.matches_message(&Message { failures, ..message.clone() }, now) {
                    page.items.push(message);
                }
            }
            Ok(page)
        })
    }

    async fn message(&self, id: MessageId) -> Outcome<Message> {
        self.at(|b, now| {
            let at = b.live_at(id).ok_or(Refusal::NoSuchMessage { id })?;
            Ok(Message { failures: b.failures(id), ..b.show(&b.live[at], now) })
        })
    }

    async fn key_state(&self, queue: QueueName, key: String) -> Outcome<Option<KeyState>> {
        self.at(|b, now| {
            let known = b.keys.get(&(queue, key)).filter(|k| k.created_at.plus(limits::KEY_WINDOW) > now);
            Ok(known.map(|key| KeyState { id: key.id, state: b.key_state(key, now) }))
        })
    }

    async fn cancel(&self, ids: Vec<MessageId>, actor: Actor) -> Outcome<Each<MessageId>> {
        actor.check()?;
        self.at(|b, now| Ok(ids.into_iter().map(|id| b.cancel(id, &actor, now)).collect()))
    }

    async fn queues(&self) -> Outcome<Vec<Queue>> {
        self.at(|b, now| Ok(b.queues.keys().map(|name| b.show_queue(name, now)).collect::<Result<_, _>>()?))
    }

    async fn queue(&self, name: QueueName) -> Outcome<Queue> {
        self.at(|b, now| Ok(b.show_queue(&name, now)?))
    }

    /// The model keeps no index to count from.
    async fn waiting_for(&self) -> Outcome<Option<BTreeMap<QueueName, WaitingFor>>> {
        Ok(None)
    }

    async fn configure(&self, name: QueueName, policy: QueuePolicy, actor: Actor) -> Outcome<Queue> {
        actor.check()?;
        policy.check(&name)?;
        self.at(|b, now| {
            b.check_name(&name, &policy)?;
            let is_known = b.queues.contains_key(&name);
            let shelf = b.queues.entry(name.clone()).or_default();
            if is_known && shelf.policy == policy {
                return Ok(b.show_queue(&name, now)?);
            }
            let key = |policy: &QueuePolicy| policy.breaker.as_ref().map(|rules| rules.key.clone());
            if key(&shelf.policy) != key(&policy) {
                b.breakers.retain(|(queue, _), _| *queue != name);
            }
            shelf.policy = policy;
            b.log(now, &actor, "configure", &name, 1);
            Ok(b.show_queue(&name, now)?)
        })
    }

    async fn pause(&self, name: QueueName, paused: bool, actor: Actor) -> Outcome<Queue> {
        actor.check()?;
        self.at(|b, now| {
            b.show_queue(&name, now)?;
            b.queues.entry(name.clone()).or_default().paused_by = paused.then(|| actor.name.clone());
            b.log(now, &actor, if paused { "pause" } else { "resume" }, &name, 0);
            Ok(b.show_queue(&name, now)?)
        })
    }

    async fn purge(&self, name: QueueName, actor: Actor) -> Outcome<Purged> {
        actor.check()?;
        self.at(|b, now| {
            b.show_queue(&name, now)?;
            let here =
                |r: &&Record| r.envelope.queue == name && r.life.generation == 1 && r.life.lease().is_none();
            let mut waiting: Vec<(u64, MessageId)> =
                b.live.iter().filter(here).map(|r| (r.envelope.seq, r.envelope.id)).collect();
            waiting.sort_unstable();
            let more = waiting.len() > limits::BATCH_ENTRIES_MAX;
            waiting.truncate(limits::BATCH_ENTRIES_MAX);
            for (_, id) in &waiting {
                b.change(b.live_at(*id).expect("just found"), &Command::Purge, None, now)?;
            }
            let purged = waiting.len() as u64;
            b.log(now, &actor, "purge", &name, purged);
            Ok(Purged { purged, more })
        })
    }

    async fn breakers(&self) -> Outcome<Vec<BreakerView>> {
        self.at(|b, now| Ok(b.show_breakers(now)))
    }

    async fn force_breaker(
        &self,
        queue: QueueName,
        key: String,
        open: bool,
        actor: Actor,
    ) -> Outcome<BreakerView> {
        self.at(|b, now| Ok(b.force_breaker(&queue, &key, open, &actor, now)?))
    }
}

#[async_trait]
impl Letters for Model {
    async fn letters(&self, query: Query) -> Outcome<Page<DeadLetter>> {
        self.at(|b, now| {
            let all = b.show_letters(now).into_iter().map(|l| (latest(l.death), l));
            let filter = b.present(&query.filter);
            page("l", &query.page, all, |letter| filter.matches_letter(letter, now))
        })
    }

    async fn letter(&self, id: MessageId) -> Outcome<DeadLetter> {
        self.at(|b, now| {
            let at = b.letter_at(id).ok_or(Refusal::NoSuchLetter { id })?;
            Ok(b.show_letter(&b.letters[at], now))
        })
    }

    async fn revisions(&self, id: MessageId) -> Outcome<Vec<Revision>> {
        self.at(|b, _| {
            let letter = &b.letters[b.letter_at(id).ok_or(Refusal::NoSuchLetter { id })?];
            Ok(Revision::list(&letter.file, &letter.record.envelope, b.earlier(id)))
        })
    }

    async fn drawers(&self) -> Outcome<Vec<Drawer>> {
        self.at(|b, _| Ok(b.list_drawers()))
    }

    async fn lease_letters(&self, request: LetterLeaseRequest) -> Outcome<Vec<LetterDelivery>> {
        request.check()?;
        self.at(|b, now| {
            let tokens = b.lease_letters(&request, now);
            let shown = |token: LeaseToken| {
                let letter = &b.letters[b.letter_at(token.id).expect("just leased")];
                LetterDelivery { letter: b.show_letter(letter, now), token }
            };
            Ok(tokens.into_iter().map(shown).collect())
        })
    }

    async fn settle_letters(&self, batch: Vec<LetterSettlement>) -> Outcome<Each<LetterState>> {
        self.at(|b, now| Ok(batch.into_iter().map(|s| b.settle_letter(s, now)).collect()))
    }

    async fn act(&self, batch: Vec<ActRequest>) -> Outcome<Each<LetterState>> {
        self.at(|b, now| Ok(batch.iter().map(|request| b.act(request, now)).collect()))
    }

    async fn groups(&self, query: GroupQuery) -> Outcome<Page<Group>> {
        self.at(|b, now| Ok(query.select(b.show_groups(now), now)?))
    }

    async fn group(&self, id: GroupId) -> Outcome<Group> {
        self.at(|b, now| Ok(b.show_group(id, now)?))
    }

    async fn group_detail(&self, id: GroupId) -> Outcome<GroupDetail> {
        self.at(|b, now| Ok(b.group_detail(id, now)?))
    }

    async fn act_on_group(&self, id: GroupId, act: GroupAct, actor: Actor) -> Outcome<Group> {
        actor.check()?;
        self.at(|b, now| Ok(b.act_on_group(id, &act, &actor, now)?))
    }

    async fn mark(&self, text: String, actor: Actor) -> Outcome<Marker> {
        actor.check()?;
        self.at(|b, now| Ok(b.mark(text, &actor, now)?))
    }

    async fn markers(&self, request: PageRequest) -> Outcome<Page<Marker>> {
        self.at(|b, _| {
            page("k", &request, b.markers.iter().rev().map(|m| (latest(m.n), m.clone())), |_| true)
        })
    }

    async fn merge_groups(&self, groups: Vec<GroupId>, actor: Actor) -> Outcome<Group> {
        actor.check()?;
        check_merge(&groups)?;
        let name = self.at(|b, now| b.merge_groups(&groups, &actor, now))?;
        self.group(name).await
    }

    async fn label_group(&self, id: GroupId, category: Option<Category>, actor: Actor) -> Outcome<Group> {
        actor.check()?;
        check_label(category)?;
        let name = self.at(|b, now| {
            let name = b.tree.group_of(id).ok_or(Refusal::NoSuchGroup { group: id })?;
            b.standings.entry(name).or_default().lessons.said = category;
            b.log(now, &actor, "label group", name, 1);
            Ok::<_, Refusal>(name)
        })?;
        self.group(name).await
    }

    async fn export(&self, query: Query) -> Outcome<Page<DeadLetter>> {
        let after = query.page.position("x")?.unwrap_or(0);
        self.at(|b, now| Ok(b.export(&query, after, now)))
    }

    async fn disclose(&self, disclosure: Disclosure, actor: Actor) -> Outcome<()> {
        self.at(|b, now| Ok(b.disclose(&disclosure, &actor, now)?))
    }

    async fn import(&self, batch: Vec<DeadLetter>, actor: Actor) -> Outcome<Each<MessageId>> {
        actor.check()?;
        self.at(|b, now| Ok(batch.into_iter().map(|letter| b.import(letter, &actor, now)).collect()))
    }

    /// The model reads every letter for every question; it has no index.
    async fn index_text(&self, _: usize) -> Outcome<Indexed> {
        Ok(Indexed::default())
    }

    async fn preview(&self, request: PreviewRequest) -> Outcome<Preview> {
        request.pace.check(&request.act)?;
        self.at(|b, now| Ok(b.preview(&request, now)))
    }

    async fn start(&self, spec: OperationSpec) -> Outcome<Operation> {
        self.at(|b, now| Ok(b.start(&spec, now)?.told(Span::ZERO, now)))
    }

    async fn step(&self, id: OperationId) -> Outcome<Operation> {
        self.at(|b, now| Ok(b.step(id, now)?.told(Span::ZERO, now)))
    }

    async fn control(&self, id: OperationId, control: Control, actor: Actor) -> Outcome<Operation> {
        actor.check()?;
        self.at(|b, now| {
            let at = b.operation(id)?;
            let mut operation = b.operations[at].0.clone();
            operation.control(control, &actor, now)?;
            b.operations[at].0 = operation.clone();
            b.log(now, &actor, control.name(), id, 0);
            Ok(operation.told(Span::ZERO, now))
        })
    }

    async fn operation(&self, id: OperationId) -> Outcome<Operation> {
        self.at(|b, _| Ok(b.operations[b.operation(id)?].0.clone()))
    }

    async fn operations(&self, request: PageRequest) -> Outcome<Page<Operation>> {
        self.at(|b, _| {
            let all = (0_u64..).zip(&b.operations).collect::<Vec<_>>().into_iter().rev();
            page("o", &request, all.map(|(n, (op, _))| (latest(n), op.clone())), |_| true)
        })
    }

    async fn members(&self, id: OperationId, request: PageRequest) -> Outcome<Page<Member>> {
        self.at(|b, _| page("p", &request, b.operations[b.operation(id)?].1.clone(), |_| true))
    }

    async fn audit(&self, request: PageRequest) -> Outcome<Page<AuditRow>> {
        self.at(|b, _| page("a", &request, b.audit.iter().rev().map(|r| (latest(r.n), r.clone())), |_| true))
    }

    async fn audit_verify(&self, head: Option<String>) -> Outcome<AuditReport> {
        self.at(|b, _| Ok(b.check_audit(head.as_deref())))
    }

    async fn audit_trim(&self, before: Time, actor: Actor) -> Outcome<AuditTrimmed> {
        actor.check()?;
        self.at(|b, now| Ok(b.trim(before, &actor, now)))
    }

    async fn hand_over(&self, batch: Vec<HandOver>, actor: Actor) -> Outcome<Each<MessageId>> {
        actor.check()?;
        self.at(|b, now| Ok(batch.into_iter().map(|one| b.hand_over(one, &actor, now)).collect()))
    }
}
