//! Laws of redrives, the operations that redrive letters: they keep their pace, record the outcome of every
//! member in the commit that decides it, pause by themselves, and can be undone (I36, I37).

use super::LawContext;
use super::kit::{fail_permanently, max_attempts, msg, operator, q, refused, refused_field, secs};
use super::operations::spec;
use crate::ids::{message_id, operation_id};
use redrive_core::breaker::{BreakerKey, BreakerPolicy};
use redrive_core::dead_letter::{ALREADY_DONE, Act, Retry, Status};
use redrive_core::message::NewMessage;
use redrive_core::operation::{
    Canary, Control, GONE, HaltReason, MemberOutcome, Operation, OperationSpec, Outcomes, PreviewRequest,
    Rollout, Stage, WarningKind,
};
use redrive_core::policy::QueuePolicy;
use redrive_core::store::{Settle, VerifyRequest};
use redrive_core::time::Span;

fn redrive(rollout: Rollout) -> OperationSpec {
    OperationSpec { rollout, ..spec(1, Act::retry(), "queue:q") }
}

impl LawContext<'_> {
    async fn redrive(&self, pace: Rollout) -> Operation {
        self.start(redrive(pace)).await;
        self.step(1).await
    }

    async fn operation(&self) -> Operation {
        self.store.operation(operation_id(1)).await.expect("the operation exists")
    }

    /// Leases this many messages, settles each the same way, and returns the operation.
    async fn settle_and_show(&self, count: usize, what: &Settle) -> Operation {
        self.settle_next(count, what).await;
        self.operation().await
    }

    async fn settle_next(&self, count: usize, what: &Settle) {
        let taken = self.lease("q", count).await;
        assert_eq!(taken.len(), count, "this many messages are due");
        for taken in taken {
            self.settle(taken.token, what.clone()).await.expect("held");
        }
        self.verify().await;
    }

    /// Verifies the store: among other things, the counters of an operation are the sum of its members'
    /// outcomes.
    async fn verify(&self) {
        let found = self.store.verify(VerifyRequest::default()).await.expect("verify succeeds");
        assert_eq!(found.findings, [], "verification finds nothing");
    }

    /// The warnings of a preview, except that the letters failed permanently.
    async fn warnings(&self) -> Vec<(WarningKind, u64)> {
        let look = PreviewRequest::new(Act::retry(), redrive(Rollout::default()).filter, 0);
        let all = self.store.preview(look).await.expect("succeeds").warnings;
        let others = all.iter().filter(|warning| warning.kind != WarningKind::Hopeless);
        others.map(|warning| (warning.kind, warning.count)).collect()
    }

    async fn control(&self, control: Control) -> Operation {
        self.store.control(operation_id(1), control, operator()).await.expect("the control is allowed")
    }
}

pub(super) async fn i36_an_outcome_is_written_when_the_message_settles(ctx: &LawContext<'_>) {
    ctx.deaths(4).await;
    ctx.redrive(Rollout::default()).await;
    let sent = ctx.step(1).await;
    assert_eq!(
        (sent.stage, sent.outcomes),
        (Stage::Settling, Outcomes { running: 4, ..Outcomes::default() })
    );
    for n in 1..=4 {
        let record = ctx.letter(message_id(n)).await.record;
        assert_eq!(record.operation, Some(operation_id(1)));
        assert_eq!(record.history.last().and_then(|event| event.operation), Some(operation_id(1)));
    }
    ctx.settle_and_show(1, &Settle::Ack).await;
    ctx.settle_and_show(1, &fail_permanently("Bad")).await;
    let left = ctx.settle_and_show(1, &fail_permanently("Quite another thing")).await;
    assert_eq!((left.stage, left.outcomes.running), (Stage::Settling, 1));
    let now = ctx.clock.advance(secs(1));
    let done = ctx.settle_and_show(1, &Settle::Ack).await;
    assert_eq!((done.stage, done.finished_at), (Stage::Done, Some(now)));
    let outcomes = Outcomes { succeeded: 2, failed_same: 1, failed_other: 1, ..Outcomes::default() };
    assert_eq!((done.outcomes, done.outcomes.success_percent()), (outcomes, Some(50)));
    let members = ctx.members(1).await;
    let other = ctx.letter(message_id(3)).await.group;
    assert_eq!(members[2].why, Some(format!("group {other}")));
    assert_eq!(
        members.iter().map(|m| m.outcome).collect::<Vec<_>>(),
        [
            MemberOutcome::Succeeded,
            MemberOutcome::FailedSame,
            MemberOutcome::FailedOther,
            MemberOutcome::Succeeded
        ]
    );
    // A letter that is redriven again by hand no longer belongs to the operation.
    ctx.act(message_id(2), Act::retry()).await.expect("pending");
    assert_eq!(ctx.letter(message_id(2)).await.record.operation, None);
    ctx.settle_and_show(1, &Settle::Ack).await;
    assert_eq!(ctx.operation().await, done);
}

pub(super) async fn i36_only_a_redrive_waits_for_the_message(ctx: &LawContext<'_>) {
    ctx.deaths(2).await;
    // One letter is retried by hand, the other by an operation. Acts that only annotate them are done at
    // once.
    ctx.act(message_id(2), Act::retry()).await.expect("pending");
    ctx.redrive(Rollout::default()).await;
    assert_eq!(ctx.step(1).await.outcomes, Outcomes { running: 1, ..Outcomes::default() });
    let label = Act::Label { add: ["seen".into()].into(), remove: [].into() };
    for (n, act) in (2..).zip([Act::Assign { to: Some("bob".into()) }, label, Act::Hold { on: true }]) {
        ctx.start(spec(n, act.clone(), "status:retrying")).await;
        let done = ctx.run_operation(n).await;
        let outcomes = Outcomes { succeeded: 2, ..Outcomes::default() };
        assert_eq!((done.stage, done.outcomes), (Stage::Done, outcomes), "{}", act.name());
        assert!(ctx.members(n).await.iter().all(|member| member.why.is_none()), "{}", act.name());
        ctx.verify().await;
    }
    assert_eq!(
        ctx.letter(message_id(1)).await.record.operation,
        Some(operation_id(1)),
        "it still belongs to the redrive"
    );
    let done = ctx.settle_and_show(2, &Settle::Ack).await;
    assert_eq!((done.stage, done.outcomes.succeeded), (Stage::Done, 1), "done when the message settles");
}

pub(super) async fn i37_a_failing_canary_pauses_the_operation(ctx: &LawContext<'_>) {
    ctx.deaths(12).await;
    let pace = Rollout {
        canary: Some(Canary::Count(2)),
        observe: secs(10),
        stop_at: Some(20),
        ..Rollout::default()
    };
    assert_eq!(ctx.redrive(pace).await.stage, Stage::Canary);
    let canary = ctx.step(1).await;
    assert_eq!((canary.stage, canary.outcomes.running), (Stage::Observing, 2));
    let halted = ctx.settle_and_show(2, &fail_permanently("Bad")).await;
    let why = halted.halt.as_ref().map(|halt| (halt.reason, halt.by.as_str()));
    assert_eq!((halted.stage, why), (Stage::Paused, Some((HaltReason::SameFailure, "system"))));
    ctx.clock.advance(secs(60));
    let still = ctx.step(1).await;
    assert_eq!((still.outcomes.waiting, still.next_in), (10, None), "nothing else is redriven");
    let row = ctx.audit_trail().await.pop().expect("the pause is in the audit trail");
    assert_eq!((row.act.as_str(), row.actor.as_str()), ("pause", "system"));
    assert!(row.reason.is_some_and(|text| text.contains("came back")));
    // After a resume, a canary runs first again.
    assert_eq!(ctx.control(Control::Resume).await.stage, Stage::Canary);
    assert_eq!(ctx.step(1).await.outcomes.running, 2);
    assert_eq!(
        ctx.settle_and_show(2, &Settle::Ack).await.stage,
        Stage::Observing,
        "observed for ten seconds"
    );
    assert_eq!(ctx.step(1).await.next_in, Some(secs(10)));
    ctx.clock.advance(secs(10));
    assert_eq!(ctx.step(1).await.outcomes.running, 8);
    let done = ctx.settle_and_show(8, &Settle::Ack).await;
    assert_eq!((done.stage, done.outcomes.succeeded, done.outcomes.failed_same), (Stage::Done, 10, 2));
}

pub(super) async fn i37_an_open_breaker_pauses_the_operation(ctx: &LawContext<'_>) {
    let breaker = Some(BreakerPolicy { failures: 2, ..BreakerPolicy::new(BreakerKey::Queue) });
    ctx.deaths(3).await;
    ctx.configure("q", QueuePolicy { breaker, ..max_attempts(1) }).await;
    ctx.redrive(Rollout { stop_on_breaker: true, ..Rollout::default() }).await;
    ctx.store.force_breaker(q("q"), "q".into(), true, operator()).await.expect("the queue has a breaker");
    assert_eq!(ctx.warnings().await, [(WarningKind::BreakerOpen, 3)]);
    let halted = ctx.step(1).await;
    let why = halted.halt.map(|halt| halt.reason);
    assert_eq!(
        (halted.stage, why, halted.outcomes.waiting),
        (Stage::Paused, Some(HaltReason::BreakerOpen), 3)
    );
    ctx.store.force_breaker(q("q"), "q".into(), false, operator()).await.expect("the queue has a breaker");
    ctx.control(Control::Resume).await;
    assert_eq!(ctx.step(1).await.outcomes.running, 3);
}

pub(super) async fn i37_rate_and_messages_in_flight_are_bounded(ctx: &LawContext<'_>) {
    ctx.deaths(9).await;
    ctx.redrive(Rollout { rate: Some(2), in_flight: Some(4), ..Rollout::default() }).await;
    let first = ctx.step(1).await;
    assert_eq!((first.outcomes.running, first.next_in), (1, Some(Span::from_millis(500))));
    assert_eq!(ctx.step(1).await.outcomes.running, 1, "more frequent steps redrive no more");
    for sent in [2, 3, 4] {
        ctx.clock.advance(Span::from_millis(500));
        assert_eq!(ctx.step(1).await.outcomes.running, sent);
    }
    ctx.clock.advance(secs(60));
    assert_eq!(ctx.step(1).await.outcomes.running, 4, "four are in flight");
    ctx.settle_and_show(2, &Settle::Ack).await;
    assert_eq!(ctx.step(1).await.outcomes.running, 3, "a pause between steps does not raise the rate");
    ctx.clock.advance(Span::from_millis(500));
    assert_eq!(ctx.step(1).await.outcomes.running, 4);
    assert_eq!(ctx.control(Control::Rate(None)).await.rollout.rate, None);
    ctx.settle_and_show(4, &Settle::Ack).await;
    assert_eq!(ctx.step(1).await.stage, Stage::Settling, "without a rate the rest is redriven at once");
    assert_eq!(refused_field(refused(ctx.store.start(redrive_at(2, Some(0))).await)), "rate");
}

fn redrive_at(n: u64, rate: Option<u32>) -> OperationSpec {
    OperationSpec { rollout: Rollout { rate, ..Rollout::default() }, ..spec(n, Act::retry(), "queue:q") }
}

pub(super) async fn i37_an_operation_waits_for_a_full_queue(ctx: &LawContext<'_>) {
    ctx.deaths(3).await;
    ctx.configure("q", QueuePolicy { max_messages: Some(2), ..max_attempts(1) }).await;
    assert_eq!(ctx.warnings().await, [(WarningKind::TargetFull, 1)]);
    ctx.redrive(Rollout::default()).await;
    let held = ctx.step(1).await;
    assert_eq!((held.stage, held.outcomes.running, held.outcomes.waiting), (Stage::Running, 2, 1));
    assert!(held.delayed.as_ref().is_some_and(|held| held.text.contains("full")), "{:?}", held.delayed);
    assert_eq!(held.next_in, Some(secs(1)), "it retries by itself");
    ctx.store.pause(q("q"), true, operator()).await.expect("succeeds");
    ctx.clock.advance(secs(1));
    assert_eq!(ctx.step(1).await.outcomes.running, 2, "still full, and now the queue is paused");
    ctx.store.pause(q("q"), false, operator()).await.expect("succeeds");
    ctx.settle_and_show(1, &Settle::Ack).await;
    ctx.clock.advance(secs(1));
    let sent = ctx.step(1).await;
    assert_eq!((sent.stage, sent.delayed, sent.outcomes.running), (Stage::Settling, None, 2));
}

pub(super) async fn i37_redriven_messages_not_yet_leased_can_be_undone(ctx: &LawContext<'_>) {
    ctx.deaths(4).await;
    ctx.redrive(Rollout { in_flight: Some(3), ..Rollout::default() }).await;
    ctx.step(1).await;
    let taken = ctx.lease("q", 1).await;
    assert_eq!(ctx.control(Control::Undo).await.stage, Stage::Undoing);
    let undone = ctx.step(1).await;
    assert_eq!((undone.stage, undone.outcomes.undone, undone.outcomes.running), (Stage::Undone, 2, 1));
    assert_eq!(undone.outcomes.waiting, 1, "one member was never redriven");
    ctx.verify().await;
    for n in [2, 3] {
        let letter = ctx.letter(message_id(n)).await;
        assert_eq!(
            (letter.record.status, letter.record.redrives, letter.record.operation),
            (Status::Pending, 0, None)
        );
        assert_eq!(letter.message.generation, 1);
    }
    for taken in taken {
        ctx.settle(taken.token, Settle::Ack).await.expect("held");
    }
    let left = ctx.operation().await;
    assert_eq!((left.stage, left.outcomes.succeeded, left.outcomes.running), (Stage::Undone, 1, 0));
    assert_eq!(ctx.counts("q").await.waiting, 0);
    ctx.verify().await;
}

pub(super) async fn a_bulk_close_can_be_undone(ctx: &LawContext<'_>) {
    ctx.deaths(3).await;
    ctx.start(spec(1, Act::Resolve, "queue:q")).await;
    assert_eq!(ctx.run_operation(1).await.outcomes.succeeded, 3);
    ctx.act(message_id(2), Act::Reopen).await.expect("closed");
    ctx.control(Control::Undo).await;
    let undone = ctx.step(1).await;
    assert_eq!((undone.stage, undone.outcomes.undone, undone.outcomes.succeeded), (Stage::Undone, 2, 1));
    assert_eq!(ctx.letters("status:pending").await.len(), 3);
    ctx.start(spec(2, Act::Abandon, "queue:q")).await;
    ctx.run_operation(2).await;
    ctx.start(spec(3, Act::Purge, "queue:q")).await;
    ctx.run_operation(3).await;
    assert_eq!(ctx.letters("").await, []);
    ctx.store.control(operation_id(3), Control::Undo, operator()).await.expect("within the undo window");
    assert_eq!(ctx.step(3).await.outcomes.undone, 3);
    assert_eq!(ctx.letters("status:abandoned").await.len(), 3);
    ctx.verify().await;
    let refusal = ctx.store.control(operation_id(2), Control::Rate(Some(1)), operator()).await;
    assert!(refusal.is_err(), "the undo window has ended");
}

pub(super) async fn a_skipped_member_has_a_reason(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    for n in 1..=4 {
        let keyed = NewMessage { key: Some(format!("key {n}")), ..msg(n, "q") };
        ctx.dead_letter(keyed, "Bad").await;
    }
    ctx.redrive(Rollout::default()).await;
    // One is resolved, one is redriven and dies again, one succeeds by hand and is reopened.
    ctx.act(message_id(1), Act::Resolve).await.expect("pending");
    ctx.act(message_id(2), Act::retry()).await.expect("pending");
    ctx.settle_and_show(1, &fail_permanently("Bad")).await;
    let sent = ctx.step(1).await;
    assert_eq!((sent.outcomes.skipped, sent.outcomes.running), (2, 2));
    let members = ctx.members(1).await;
    assert!(members[0].why.as_ref().is_some_and(|why| why.contains("version 2")), "{:?}", members[0]);
    assert_eq!(members[1].why.as_deref(), Some(GONE));
    assert_eq!((members[2].version, members[2].why.as_deref()), (2, None));
    ctx.settle_and_show(2, &Settle::Ack).await;
    // Already done under its key: closed without running again.
    ctx.act(message_id(3), Act::Reopen).await.expect("closed");
    ctx.start(spec(2, Act::retry(), "status:pending key:\"key 3\"")).await;
    let done = ctx.run_operation(2).await;
    assert_eq!((done.stage, done.outcomes.succeeded), (Stage::Done, 1));
    assert_eq!(ctx.members(2).await[0].why.as_deref(), Some(ALREADY_DONE));
    assert_eq!(ctx.counts("q").await.waiting, 0);
    ctx.verify().await;
}

pub(super) async fn i36_a_token_starts_only_what_was_previewed(ctx: &LawContext<'_>) {
    ctx.deaths(2).await;
    let request = spec(1, Act::retry(), "queue:q");
    let look = PreviewRequest::new(request.act.clone(), request.filter.clone(), 0);
    let seen = ctx.store.preview(look).await.expect("succeeds");
    let request = OperationSpec { bound: Some(seen.bound), token: Some(seen.token), ..request };
    let elsewhere = Act::Retry(Retry { queue: Some(q("q")), ..Retry::default() });
    for other in [
        OperationSpec { bound: Some(9), ..request.clone() },
        OperationSpec { bound: None, ..request.clone() },
        OperationSpec { act: elsewhere, ..request.clone() },
        OperationSpec { filter: "".parse().expect("a filter"), ..request.clone() },
        OperationSpec { token: Some("0".repeat(64)), ..request.clone() },
    ] {
        assert_eq!(refused_field(refused(ctx.store.start(other).await)), "token");
    }
    assert_eq!(ctx.start(request).await.bound, 2);
}

pub(super) async fn a_preview_lists_warnings(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    ctx.dead_letter(NewMessage { ordering_key: Some("o".into()), ..msg(1, "q") }, "Bad").await;
    ctx.dead_letter(NewMessage { key: Some("k".into()), ..msg(2, "q") }, "Bad").await;
    for _ in 0..2 {
        ctx.act(message_id(2), Act::retry()).await.expect("pending");
        ctx.settle_next(1, &fail_permanently("Bad")).await;
    }
    ctx.act(message_id(2), Act::retry()).await.expect("pending");
    ctx.settle_next(1, &Settle::Ack).await;
    ctx.act(message_id(2), Act::Reopen).await.expect("closed");
    ctx.store.pause(q("q"), true, operator()).await.expect("succeeds");
    let rollout = Rollout { rate: Some(1), ..Rollout::default() };
    let look =
        PreviewRequest { rollout, ..PreviewRequest::new(Act::retry(), "queue:q".parse().expect("ok"), 1) };
    let seen = ctx.store.preview(look.clone()).await.expect("succeeds");
    let kinds: Vec<_> = seen.warnings.iter().map(|w| (w.kind, w.count)).collect();
    let expected = [
        (WarningKind::QueuePaused, 2),
        (WarningKind::OrderingKeys, 1),
        (WarningKind::RedrivenBefore, 1),
        (WarningKind::KeyConflicts, 1),
        (WarningKind::Hopeless, 2),
    ];
    assert_eq!((kinds.as_slice(), seen.estimate), (expected.as_slice(), Some(secs(2))));
    let resolve = PreviewRequest { act: Act::Resolve, ..look.clone() };
    assert_eq!(
        ctx.store.preview(resolve).await.expect("succeeds").warnings,
        [],
        "the warnings are about redrives"
    );
    let absurd = PreviewRequest { rollout: Rollout { in_flight: Some(0), ..Rollout::default() }, ..look };
    assert_eq!(refused_field(refused(ctx.store.preview(absurd).await)), "in_flight");
}
