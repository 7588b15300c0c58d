//! The store traits in terms of an engine: every verb is one closure that either writes in a commit or reads.
//! Backends that run an engine supply [`Access`] and get the traits; the verbs are spelled out once.

use crate::access::{Access, Wants, WriteCost};
use crate::engine::enqueue::check_batch;
use crate::engine::lease::deliver;
use crate::engine::letters::check_import;
use crate::engine::requests::Once;
use crate::engine::settle::PackedSettlement;
use crate::engine::tables::{Incoming, Reads, Tables, unless_damaged};
use crate::engine::{Engine, export, group_reads, kv, preview, reads, replies, short_ids, survey, text};
use crate::holder::{self, LetterSettlements, Settlements};
use crate::metrics;
use async_trait::async_trait;
use redrive_core::audit::{AuditReport, AuditRow, AuditTrimmed};
use redrive_core::breaker::BreakerView;
use redrive_core::changes::{Changes, FeedPosition};
use redrive_core::dead_letter::{ActRequest, Actor, DeadLetter, LetterDelivery};
use redrive_core::disclosure::Disclosure;
use redrive_core::error::{Refusal, StoreResult};
use redrive_core::failure::Category;
use redrive_core::group::{Group, GroupAct, GroupDetail, GroupQuery, Marker, check_merge};
use redrive_core::ids::{GroupId, MessageId, OperationId, QueueName};
use redrive_core::invariants::Verification;
use redrive_core::limits;
use redrive_core::message::{Delivery, Message, NewMessage};
use redrive_core::metrics::{Stats, Timer};
use redrive_core::operation::{Control, Member, Operation, OperationSpec, Preview, PreviewRequest};
use redrive_core::policy::QueuePolicy;
use redrive_core::query::{Page, PageRequest, Query};
use redrive_core::recording::{KvWrite, RecordRequest};
use redrive_core::revision::Revision;
use redrive_core::short_id::IdSuffixQuery;
use redrive_core::store::{
    BatchResults, Dlq, Enqueued, HandOver, Indexed, KeyState, KvEntry, KvItem, LeaseRequest,
    LetterLeaseRequest, LetterSettlement, LetterState, Letters, Purged, Queue, Reaped, Settle, Settled,
    Settlement, Store, StoreInfo, VerifyRequest, WaitingFor, Work,
};
use redrive_core::time::{Span, Time};
use redrive_core::workers::WorkerView;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// The path of a backup as it reads from the root on: who copies may have another working directory than who asks.
pub(crate) fn absolute(target: &str) -> Result<String, Refusal> {
    let refused = |why: String| Refusal::invalid("target", format!("{why}; name a new directory"));
    let path = std::path::absolute(target).map_err(|e| refused(format!("{target:?} is no path: {e}")))?;
    path.into_os_string().into_string().map_err(|path| refused(format!("{} is not UTF-8", path.display())))
}

/// A store made of an engine and a way to reach it.
#[derive(Debug)]
pub struct EngineStore<A>(pub(crate) A);

fn pack<T: Tables>(mut new: NewMessage) -> Result<Incoming<T::Body>, Refusal> {
    new.check()?;
    let size = new.payload.bytes.len() as u64;
    let body_hash = new.key.is_some().then(|| new.body_hash());
    let body = T::pack(&mut new);
    Ok(Incoming { new, body_hash, size, body })
}

/// Takes the bytes of an answer out of a settlement; one that is too large stays in, to be refused.
fn pack_answer<T: Tables>(mut settlement: Settlement) -> PackedSettlement<T::Payload> {
    let answer = match (settlement.check(), &mut settlement.what) {
        (Ok(()), Settle::Reply { payload }) => Some(replies::pack::<T>(std::mem::take(payload))),
        (_, _) => None,
    };
    PackedSettlement { settlement, answer }
}

#[async_trait]
impl<A: Access> Work for EngineStore<A> {
    async fn enqueue(&self, batch: Vec<NewMessage>) -> StoreResult<BatchResults<Enqueued>> {
        check_batch(batch.len(), batch.iter().map(|m| m.payload.bytes.len()).sum())?;
        let began = Instant::now();
        let packed: Vec<_> = batch.into_iter().map(pack::<A::Tables>).collect();
        let mut wants = Wants::ids(packed.iter().flatten().map(|incoming| incoming.new.id));
        let keyed = packed.iter().flatten().map(|incoming| &incoming.new);
        wants.keys = keyed.filter_map(|new| Some((new.queue.clone(), new.key.clone()?))).collect();
        let enqueue = move |engine: &mut Engine<A::Tables>, now| engine.enqueue(packed, now);
        let each = self.0.write_wanting(WriteCost::GROWS, wants, enqueue).await?;
        metrics::process().record(Timer::Enqueue, began.elapsed());
        Ok(each)
    }

    async fn lease(&self, request: LeaseRequest) -> StoreResult<Vec<Delivery>> {
        request.check()?;
        let began = Instant::now();
        let asked = request.clone();
        let lease = move |engine: &mut Engine<A::Tables>, now| {
            let grants = engine.lease(&asked, now)?;
            let more = if grants.is_empty() { None } else { engine.more_due(&asked.queues, now)? };
            let with_body =
                grants.into_iter().map(|g| engine.tables.body_at_hand(&g.live.meta).map(|body| (g, body)));
            Ok((with_body.collect::<Result<Vec<_>, _>>()?, more, now))
        };
        let wants = Wants { lease: Some((request.queues.clone(), request.max)), ..Wants::default() };
        let (grants, more, now) = self.0.write_wanting(WriteCost::FREES, wants, lease).await?;
        let later: Vec<_> = grants
            .iter()
            .filter(|(_, body)| body.is_none())
            .map(|(grant, _)| grant.live.meta.clone())
            .collect();
        let mut later = match later.is_empty() {
            true => Vec::new(),
            false => self.0.read(move |tables, _| Ok(tables.bodies(&later)?)).await?,
        }
        .into_iter();
        // A message whose bytes are damaged is not handed out and does not hold up the others: its
        // lease runs out until it is a dead letter, and `doctor` names it (I46).
        let opened = grants.into_iter().filter_map(|(grant, body)| {
            let body = body.or_else(|| later.next()?.ok())?;
            body.open(&grant.live.meta).ok().map(|envelope| deliver(envelope, grant, now))
        });
        let leased: Vec<Delivery> = opened.collect();
        self.0.holder().leased(&request, &leased, more.as_ref(), now);
        metrics::process().record(Timer::Lease, began.elapsed());
        Ok(leased)
    }

    async fn settle(&self, batch: Vec<Settlement>) -> StoreResult<BatchResults<Settled>> {
        check_batch(batch.len(), batch.iter().map(Settlement::payload_bytes).sum())?;
        let began = Instant::now();
        let asked = Settlements::of(&batch);
        let said: Vec<_> = batch.into_iter().map(pack_answer::<A::Tables>).collect();
        let wants = Wants::ids(said.iter().map(|said| said.settlement.token.id));
        let settle = move |engine: &mut Engine<A::Tables>, now| engine.settle(said, now);
        let each = self.0.write_wanting(WriteCost::FREES, wants, settle).await?;
        let holder = self.0.holder();
        holder.workers_changed(holder.workers().settled(&asked, &each, self.0.now()));
        metrics::process().record(Timer::Settle, began.elapsed());
        Ok(each)
    }

    async fn reap(&self, limit: usize) -> StoreResult<Reaped> {
        self.0.write(WriteCost::FREES.long(), move |engine, now| engine.reap(limit, now)).await
    }

    async fn tidy(&self, limit: usize) -> StoreResult<Option<Reaped>> {
        self.0.write(WriteCost::FREES.long(), move |engine, now| engine.tidy(limit, now).map(Some)).await
    }

    async fn wait(&self, queues: Vec<QueueName>, at_most: Span) -> StoreResult<bool> {
        holder::wait(&self.0, queues, at_most).await
    }

    async fn messages(&self, query: Query) -> StoreResult<Page<Message>> {
        self.0.read(move |tables, now| reads::messages(tables, &query, now)).await
    }

    async fn message(&self, id: MessageId) -> StoreResult<Message> {
        self.0.read(move |tables, now| reads::message(tables, id, now)).await
    }

    async fn key_state(&self, queue: QueueName, key: String) -> StoreResult<Option<KeyState>> {
        self.0.read(move |tables, now| reads::key(tables, &queue, &key, now)).await
    }

    async fn cancel(&self, ids: Vec<MessageId>, actor: Actor) -> StoreResult<BatchResults<MessageId>> {
        self.0
            .once(Once::of("cancel", &actor), WriteCost::FREES, move |engine, now| {
                engine.cancel(&ids, &actor, now)
            })
            .await
    }

    async fn queues(&self) -> StoreResult<Vec<Queue>> {
        self.0.read(reads::queues).await
    }

    async fn queue(&self, name: QueueName) -> StoreResult<Queue> {
        self.0.read(move |tables, now| reads::queue(tables, &name, now)).await
    }

    async fn waiting_for(&self) -> StoreResult<Option<BTreeMap<QueueName, WaitingFor>>> {
        self.0.write(WriteCost::FREES, Engine::waiting_for).await
    }

    async fn configure(&self, name: QueueName, policy: QueuePolicy, actor: Actor) -> StoreResult<Queue> {
        let named = name.clone();
        self.0
            .once(Once::of("configure", &actor), WriteCost::GROWS, move |engine, now| {
                engine.configure(&named, policy, &actor, now)
            })
            .await?;
        self.queue(name).await
    }

    async fn pause(&self, name: QueueName, paused: bool, actor: Actor) -> StoreResult<Queue> {
        let named = name.clone();
        self.0
            .once(Once::of("pause", &actor), WriteCost::FREES, move |engine, now| {
                engine.pause(&named, paused, &actor, now)
            })
            .await?;
        self.queue(name).await
    }

    async fn purge(&self, name: QueueName, actor: Actor) -> StoreResult<Purged> {
        self.0
            .once(Once::of("purge", &actor), WriteCost::FREES.long(), move |engine, now| {
                engine.purge(&name, &actor, now)
            })
            .await
    }

    async fn breakers(&self) -> StoreResult<Vec<BreakerView>> {
        self.0.write(WriteCost::FREES, Engine::list_breakers).await
    }

    async fn workers(&self) -> StoreResult<Vec<WorkerView>> {
        // After a restart, leases that began earlier are found in the store.
        let holder = Arc::clone(self.0.holder());
        let find = move |engine: &mut Engine<A::Tables>, now| {
            let found = engine.unlisted_leases(holder.workers(), now)?;
            Ok((found, now))
        };
        let (found, now) = self.0.write(WriteCost::FREES, find).await?;
        self.0.holder().workers().adopt(found, now);
        Ok(self.0.holder().workers().list(now))
    }

    async fn force_breaker(
        &self,
        queue: QueueName,
        key: String,
        open: bool,
        actor: Actor,
    ) -> StoreResult<BreakerView> {
        self.0
            .once(Once::of("force_breaker", &actor), WriteCost::GROWS, move |engine, now| {
                engine.force_breaker(&queue, &key, open, &actor, now)
            })
            .await
    }
}

#[async_trait]
impl<A: Access> Letters for EngineStore<A> {
    async fn letters(&self, query: Query) -> StoreResult<Page<DeadLetter>> {
        self.0.read(move |tables, now| survey::letters(tables, &query, now)).await
    }

    async fn letter(&self, id: MessageId) -> StoreResult<DeadLetter> {
        self.0.read(move |tables, now| reads::letter(tables, id, now)).await
    }

    async fn revisions(&self, id: MessageId) -> StoreResult<Vec<Revision>> {
        self.0.read(move |tables, _| reads::revisions(tables, id)).await
    }

    async fn dlqs(&self) -> StoreResult<Vec<Dlq>> {
        self.0.read(|tables, _| reads::dlqs(tables)).await
    }

    async fn lease_letters(&self, request: LetterLeaseRequest) -> StoreResult<Vec<LetterDelivery>> {
        let asked = request.clone();
        let lease = move |engine: &mut Engine<A::Tables>, now| {
            let leased = engine.lease_letters(&asked, now)?;
            let mut deliveries = Vec::with_capacity(leased.len());
            for (letter, token) in leased {
                if let Some(letter) = unless_damaged(engine.assemble(&letter, now))? {
                    deliveries.push(LetterDelivery { letter, token });
                }
            }
            Ok((deliveries, now))
        };
        let (deliveries, now) = self.0.write(WriteCost::FREES, lease).await?;
        let holder = self.0.holder();
        holder.workers_changed(holder.workers().leased_letters(&request, &deliveries, now));
        Ok(deliveries)
    }

    async fn settle_letters(&self, batch: Vec<LetterSettlement>) -> StoreResult<BatchResults<LetterState>> {
        let asked = LetterSettlements::of(&batch, self.0.now());
        let each =
            self.0.write(WriteCost::FREES, move |engine, now| engine.settle_letters(batch, now)).await?;
        let holder = self.0.holder();
        holder.workers_changed(holder.workers().settled_letters(&asked, &each, self.0.now()));
        Ok(each)
    }

    async fn act(&self, batch: Vec<ActRequest>) -> StoreResult<BatchResults<LetterState>> {
        let once = batch.first().and_then(|first| Once::of("act", &first.actor));
        let wants = Wants::ids(batch.iter().map(|request| request.id));
        let act = move |engine: &mut Engine<A::Tables>, now| {
            engine.once(once.as_ref(), now, |engine| engine.act(batch, now))
        };
        self.0.write_wanting(WriteCost::FREES, wants, act).await
    }

    async fn groups(&self, query: GroupQuery) -> StoreResult<Page<Group>> {
        self.0.read(move |tables, now| group_reads::groups(tables, &query, now)).await
    }

    async fn group(&self, id: GroupId) -> StoreResult<Group> {
        self.0.read(move |tables, now| group_reads::group(tables, id, now)).await
    }

    async fn group_detail(&self, id: GroupId) -> StoreResult<GroupDetail> {
        self.0.read(move |tables, now| group_reads::detail(tables, id, now)).await
    }

    async fn act_on_group(&self, id: GroupId, act: GroupAct, actor: Actor) -> StoreResult<Group> {
        let named = self
            .0
            .once(Once::of("act_on_group", &actor), WriteCost::FREES, move |engine, now| {
                engine.act_on_group(id, &act, &actor, now)
            })
            .await?;
        self.group(named).await
    }

    async fn mark(&self, text: String, actor: Actor) -> StoreResult<Marker> {
        self.0
            .once(Once::of("mark", &actor), WriteCost::FREES, move |engine, now| {
                engine.mark(text, &actor, now)
            })
            .await
    }

    async fn markers(&self, page: PageRequest) -> StoreResult<Page<Marker>> {
        self.0.read(move |tables, _| group_reads::markers(tables, &page)).await
    }

    async fn merge_groups(&self, groups: Vec<GroupId>, actor: Actor) -> StoreResult<Group> {
        check_merge(&groups)?;
        let merged = self
            .0
            .once(Once::of("merge_groups", &actor), WriteCost::FREES, move |engine, now| {
                engine.merge_groups(&groups, &actor, now)
            })
            .await?;
        self.group(merged).await
    }

    async fn label_group(&self, id: GroupId, category: Option<Category>, actor: Actor) -> StoreResult<Group> {
        let named = self
            .0
            .once(Once::of("label_group", &actor), WriteCost::FREES, move |engine, now| {
                engine.label_group(id, category, &actor, now)
            })
            .await?;
        self.group(named).await
    }

    async fn export(&self, query: Query) -> StoreResult<Page<DeadLetter>> {
        self.0.read(move |tables, now| export::export(tables, &query, now)).await
    }

    async fn disclose(&self, disclosure: Disclosure, actor: Actor) -> StoreResult<()> {
        self.0.write(WriteCost::FREES, move |engine, now| engine.disclose(&disclosure, &actor, now)).await
    }

    async fn import(&self, batch: Vec<DeadLetter>, actor: Actor) -> StoreResult<BatchResults<MessageId>> {
        // What cannot be let in is refused here; the rest goes into one commit, and the results are merged.
        let mut results: Vec<Result<MessageId, Refusal>> = Vec::with_capacity(batch.len());
        let mut good = Vec::new();
        let mut places = Vec::new();
        for letter in batch {
            match check_import(&letter) {
                Ok(mut new) => {
                    places.push(results.len());
                    results.push(Ok(letter.id()));
                    let body = <A::Tables as Tables>::pack(&mut new);
                    good.push((letter, body));
                }
                Err(refusal) => results.push(Err(refusal)),
            }
        }
        let done = self
            .0
            .once(Once::of("import", &actor), WriteCost::GROWS, move |engine, now| {
                engine.import(good, &actor, now)
            })
            .await?;
        for (place, result) in places.into_iter().zip(done) {
            if let Some(slot) = results.get_mut(place) {
                *slot = result;
            }
        }
        Ok(results)
    }

    async fn hand_over(&self, batch: Vec<HandOver>, actor: Actor) -> StoreResult<BatchResults<MessageId>> {
        self.0
            .once(Once::of("hand_over", &actor), WriteCost::FREES, move |engine, now| {
                engine.hand_over(batch, &actor, now)
            })
            .await
    }

    async fn preview(&self, request: PreviewRequest) -> StoreResult<Preview> {
        request.rollout.check(&request.act)?;
        let key = self.0.audit_key();
        self.0.read(move |tables, now| preview::preview(tables, &request, &key, now)).await
    }

    async fn index_text(&self, limit: usize) -> StoreResult<Indexed> {
        // Read and folded beside the writer; the commit only writes.
        let Some(batch) = self.0.read(move |tables, _| Ok(text::batch(tables, limit)?)).await? else {
            return Ok(Indexed::default());
        };
        let taken = batch.fresh.len() + batch.changed.len();
        if taken == 0 {
            return Ok(Indexed::default());
        }
        let indexed = self
            .0
            .write(WriteCost::GROWS.long(), move |engine, _| Ok(engine.tables.put_text(&batch)?))
            .await?;
        Ok(Indexed { indexed, more: taken >= limit.clamp(1, limits::INDEX_TEXT_MAX) })
    }

    async fn start(&self, spec: OperationSpec) -> StoreResult<Operation> {
        self.0
            .once(Once::of("start", &spec.actor), WriteCost::GROWS, move |engine, now| {
                engine.start(&spec, now)
            })
            .await
    }

    async fn step(&self, id: OperationId) -> StoreResult<Operation> {
        self.0.write(WriteCost::FREES.long(), move |engine, now| engine.step(id, now)).await
    }

    async fn control(&self, id: OperationId, control: Control, actor: Actor) -> StoreResult<Operation> {
        self.0
            .once(Once::of("control", &actor), WriteCost::FREES, move |engine, now| {
                engine.control(id, control, &actor, now)
            })
            .await
    }

    async fn operation(&self, id: OperationId) -> StoreResult<Operation> {
        self.0.read(move |tables, _| reads::operation(tables, id)).await
    }

    async fn operations(&self, page: PageRequest) -> StoreResult<Page<Operation>> {
        self.0.read(move |tables, _| reads::operations(tables, &page)).await
    }

    async fn members(&self, id: OperationId, page: PageRequest) -> StoreResult<Page<Member>> {
        self.0.read(move |tables, _| reads::members(tables, id, &page)).await
    }

    async fn audit(&self, page: PageRequest) -> StoreResult<Page<AuditRow>> {
        self.0.read(move |tables, _| reads::audit(tables, &page)).await
    }

    async fn audit_verify(&self, head: Option<String>) -> StoreResult<AuditReport> {
        let key = self.0.audit_key();
        self.0.read(move |tables, _| reads::audit_verify(tables, &key, head.as_deref())).await
    }

    async fn audit_trim(&self, before: Time, actor: Actor) -> StoreResult<AuditTrimmed> {
        self.0
            .once(Once::of("audit_trim", &actor), WriteCost::FREES.long(), move |engine, now| {
                engine.audit_trim(before, &actor, now)
            })
            .await
    }
}

#[async_trait]
impl<A: Access> Store for EngineStore<A> {
    async fn info(&self) -> StoreResult<StoreInfo> {
        Ok(self.0.describe())
    }

    async fn stats(&self) -> StoreResult<Stats> {
        self.0.read(reads::stats).await
    }

    async fn changes(&self, since: Option<FeedPosition>, at_most: Span) -> StoreResult<Changes> {
        Ok(holder::changes(self.0.holder(), since, at_most).await)
    }

    async fn verify(&self, request: VerifyRequest) -> StoreResult<Verification> {
        let key = self.0.audit_key();
        let deep = request.deep;
        let mut verification = if request.repair {
            self.0.write(WriteCost::FREES.long(), move |engine, now| engine.repair(deep, now)).await?
        } else {
            self.0.read(move |tables, _| Ok(reads::verify(tables, &key, deep)?.verification)).await?
        };
        verification.check_clock(self.0.describe().skew_ms);
        Ok(verification)
    }

    async fn backup(&self, target: String) -> StoreResult<u64> {
        self.0.copy_to(absolute(&target)?).await
    }

    async fn ids_ending(&self, query: IdSuffixQuery) -> StoreResult<Page<String>> {
        self.0.read(move |tables, _| short_ids::ids_ending(tables, &query)).await
    }

    async fn kv_get(&self, namespace: String, key: String) -> StoreResult<Option<KvEntry>> {
        self.0.read(move |tables, _| Ok(tables.kv(&namespace, &key)?)).await
    }

    async fn kv_list(
        &self,
        namespace: String,
        prefix: String,
        page: PageRequest,
    ) -> StoreResult<Page<KvItem>> {
        self.0.read(move |tables, _| kv::list(tables, &namespace, &prefix, &page)).await
    }

    async fn kv_put(
        &self,
        namespace: String,
        key: String,
        value: Option<Vec<u8>>,
        expected: u64,
    ) -> StoreResult<u64> {
        let write = KvWrite { namespace, key, value, expected };
        self.0.write(WriteCost::GROWS, move |engine, _| engine.kv_put(write)).await
    }

    async fn record(&self, batch: Vec<RecordRequest>) -> StoreResult<BatchResults<()>> {
        check_batch(batch.len(), batch.iter().map(RecordRequest::value_bytes).sum())?;
        let grows = batch.iter().any(RecordRequest::grows);
        let cost = if grows { WriteCost::GROWS } else { WriteCost::FREES };
        self.0.write(cost, move |engine, now| engine.record(batch, now)).await
    }
}
