//! The calls about dead letters, groups, operations and the audit trail.

use super::Model;
use super::pages::{latest, page};
use async_trait::async_trait;
use redrive_core::audit::{AuditReport, AuditRow, AuditTrimmed};
use redrive_core::dead_letter::{ActRequest, Actor, DeadLetter, LetterDelivery};
use redrive_core::disclosure::Disclosure;
use redrive_core::error::{Refusal, StoreResult};
use redrive_core::failure::{Category, check_label};
use redrive_core::group::{Group, GroupAct, GroupDetail, GroupQuery, Marker, check_merge};
use redrive_core::ids::{GroupId, LeaseToken, MessageId, OperationId};
use redrive_core::operation::{Control, Member, Operation, OperationSpec, Preview, PreviewRequest};
use redrive_core::query::{Page, PageRequest, Query};
use redrive_core::revision::Revision;
use redrive_core::store::{
    BatchResults, Dlq, HandOver, Indexed, LetterLeaseRequest, LetterSettlement, LetterState, Letters,
};
use redrive_core::time::{Span, Time};

#[async_trait]
impl Letters for Model {
    async fn letters(&self, query: Query) -> StoreResult<Page<DeadLetter>> {
        self.with_state(|state, now| {
            let all = state.view_letters(now).into_iter().map(|l| (latest(l.death), l));
            let filter = state.with_current_groups(&query.filter);
            page("l", &query.page, all, |letter| filter.matches_letter(letter, now))
        })
    }

    async fn letter(&self, id: MessageId) -> StoreResult<DeadLetter> {
        self.with_state(|state, now| {
            let at = state.letter_at(id).ok_or(Refusal::NoSuchLetter { id })?;
            Ok(state.view_letter(&state.letters[at], now))
        })
    }

    async fn revisions(&self, id: MessageId) -> StoreResult<Vec<Revision>> {
        self.with_state(|state, _| {
            let letter = &state.letters[state.letter_at(id).ok_or(Refusal::NoSuchLetter { id })?];
            Ok(Revision::list(&letter.record, &letter.stored.envelope, state.earlier_contents(id)))
        })
    }

    async fn dlqs(&self) -> StoreResult<Vec<Dlq>> {
        self.with_state(|state, _| Ok(state.list_dlqs()))
    }

    async fn lease_letters(&self, request: LetterLeaseRequest) -> StoreResult<Vec<LetterDelivery>> {
        request.check()?;
        self.with_state(|state, now| {
            let tokens = state.lease_letters(&request, now);
            state.note_letter_lease(&request.worker, &request.dlq, now);
            let shown = |token: LeaseToken| {
                let letter = &state.letters[state.letter_at(token.id).expect("just leased")];
                LetterDelivery { letter: state.view_letter(letter, now), token }
            };
            Ok(tokens.into_iter().map(shown).collect())
        })
    }

    async fn settle_letters(&self, batch: Vec<LetterSettlement>) -> StoreResult<BatchResults<LetterState>> {
        self.with_state(|state, now| {
            let settle = |settlement: LetterSettlement| {
                let (worker, what) = (state.lessee(settlement.token.id), settlement.what.clone());
                let settled = state.settle_letter(settlement, now)?;
                state.note_settled_letter(worker, &what, now);
                Ok(settled)
            };
            Ok(batch.into_iter().map(settle).collect())
        })
    }

    async fn act(&self, batch: Vec<ActRequest>) -> StoreResult<BatchResults<LetterState>> {
        let nobody = Actor::new("", "");
        let actor = batch.first().map_or(nobody, |first| first.actor.clone());
        self.once("act", &actor, |state, now| {
            Ok(batch.iter().map(|request| state.act(request, now)).collect())
        })
    }

    async fn groups(&self, query: GroupQuery) -> StoreResult<Page<Group>> {
        self.with_state(|state, now| {
            let mut page = query.select(state.view_groups(now), now)?;
            for group in page.items.iter_mut().filter(|_| query.trend) {
                group.trend = Some(Box::new(state.trend(group.id, now)));
            }
            Ok(page)
        })
    }

    async fn group(&self, id: GroupId) -> StoreResult<Group> {
        self.with_state(|state, now| Ok(state.view_group(id, now)?))
    }

    async fn group_detail(&self, id: GroupId) -> StoreResult<GroupDetail> {
        self.with_state(|state, now| Ok(state.group_detail(id, now)?))
    }

    async fn act_on_group(&self, id: GroupId, act: GroupAct, actor: Actor) -> StoreResult<Group> {
        actor.check()?;
        let id = self
            .once("act_on_group", &actor, |state, now| Ok(state.act_on_group(id, &act, &actor, now)?.id))?;
        self.group(id).await
    }

    async fn mark(&self, text: String, actor: Actor) -> StoreResult<Marker> {
        actor.check()?;
        self.once("mark", &actor, |state, now| Ok(state.mark(text, &actor, now)?))
    }

    async fn markers(&self, request: PageRequest) -> StoreResult<Page<Marker>> {
        self.with_state(|state, _| {
            page("k", &request, state.markers.iter().rev().map(|m| (latest(m.n), m.clone())), |_| true)
        })
    }

    async fn merge_groups(&self, groups: Vec<GroupId>, actor: Actor) -> StoreResult<Group> {
        actor.check()?;
        check_merge(&groups)?;
        let name =
            self.once("merge_groups", &actor, |state, now| Ok(state.merge_groups(&groups, &actor, now)?))?;
        self.group(name).await
    }

    async fn label_group(&self, id: GroupId, category: Option<Category>, actor: Actor) -> StoreResult<Group> {
        actor.check()?;
        check_label(category)?;
        let name = self.once("label_group", &actor, |state, now| {
            let name = state.tree.group_of(id).ok_or(Refusal::NoSuchGroup { group: id })?;
            state.group_histories.entry(name).or_default().outcome_stats.operator_category = category;
            state.log(now, &actor, "label group", name, 1);
            Ok(name)
        })?;
        self.group(name).await
    }

    async fn export(&self, query: Query) -> StoreResult<Page<DeadLetter>> {
        let after = query.page.position("x")?.unwrap_or(0);
        self.with_state(|state, now| Ok(state.export(&query, after, now)))
    }

    async fn disclose(&self, disclosure: Disclosure, actor: Actor) -> StoreResult<()> {
        self.with_state(|state, now| Ok(state.disclose(&disclosure, &actor, now)?))
    }

    async fn import(&self, batch: Vec<DeadLetter>, actor: Actor) -> StoreResult<BatchResults<MessageId>> {
        actor.check()?;
        self.once("import", &actor, |state, now| {
            Ok(batch.into_iter().map(|letter| state.import(letter, &actor, now)).collect())
        })
    }

    /// The model reads every letter for every search; it has no index.
    async fn index_text(&self, _: usize) -> StoreResult<Indexed> {
        Ok(Indexed::default())
    }

    async fn preview(&self, request: PreviewRequest) -> StoreResult<Preview> {
        request.rollout.check(&request.act)?;
        self.with_state(|state, now| Ok(state.preview(&request, now)))
    }

    async fn start(&self, spec: OperationSpec) -> StoreResult<Operation> {
        self.once("start", &spec.actor, |state, now| {
            Ok(state.start(&spec, now)?.with_next_step(Span::ZERO, now))
        })
    }

    async fn step(&self, id: OperationId) -> StoreResult<Operation> {
        self.with_state(|state, now| Ok(state.step(id, now)?.with_next_step(Span::ZERO, now)))
    }

    async fn control(&self, id: OperationId, control: Control, actor: Actor) -> StoreResult<Operation> {
        actor.check()?;
        self.once("control", &actor, |state, now| {
            let at = state.operation(id)?;
            let mut operation = state.operations[at].0.clone();
            operation.control(control, &actor, now)?;
            state.operations[at].0 = operation.clone();
            state.log(now, &actor, control.name(), id, 0);
            Ok(operation.with_next_step(Span::ZERO, now))
        })
    }

    async fn operation(&self, id: OperationId) -> StoreResult<Operation> {
        self.with_state(|state, _| Ok(state.operations[state.operation(id)?].0.clone()))
    }

    async fn operations(&self, request: PageRequest) -> StoreResult<Page<Operation>> {
        self.with_state(|state, _| {
            let all = (0_u64..).zip(&state.operations).collect::<Vec<_>>().into_iter().rev();
            page("o", &request, all.map(|(n, (op, _))| (latest(n), op.clone())), |_| true)
        })
    }

    async fn members(&self, id: OperationId, request: PageRequest) -> StoreResult<Page<Member>> {
        self.with_state(|state, _| {
            page("p", &request, state.operations[state.operation(id)?].1.clone(), |_| true)
        })
    }

    async fn audit(&self, request: PageRequest) -> StoreResult<Page<AuditRow>> {
        self.with_state(|state, _| {
            page("a", &request, state.audit.iter().rev().map(|r| (latest(r.n), r.clone())), |_| true)
        })
    }

    async fn audit_verify(&self, head: Option<String>) -> StoreResult<AuditReport> {
        self.with_state(|state, _| Ok(state.check_audit(head.as_deref())))
    }

    async fn audit_trim(&self, before: Time, actor: Actor) -> StoreResult<AuditTrimmed> {
        actor.check()?;
        self.once("audit_trim", &actor, |state, now| Ok(state.trim(before, &actor, now)))
    }

    async fn hand_over(&self, batch: Vec<HandOver>, actor: Actor) -> StoreResult<BatchResults<MessageId>> {
        actor.check()?;
        self.once("hand_over", &actor, |state, now| {
            Ok(batch.into_iter().map(|one| state.hand_over(one, &actor, now)).collect())
        })
    }
}
