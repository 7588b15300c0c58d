//! Laws of operations: they act on the previewed letters, once, however often they are started (I36, I37).

use super::LawContext;
use super::kit::{fail_permanently, max_attempts, msg, operator, q, refused, refused_field, secs};
use crate::clock::START;
use crate::ids::{message_id, operation_id};
use crate::observe::read_all;
use redrive_core::audit::AuditEntry;
use redrive_core::dead_letter::{Act, Actor, DeadLetter, Status};
use redrive_core::error::Refusal;
use redrive_core::filter::Filter;
use redrive_core::invariants::Counts;
use redrive_core::limits;
use redrive_core::message::NewMessage;
use redrive_core::operation::{
    BreakdownEntry, Control, HaltReason, Member, MemberOutcome, Operation, OperationSpec, PreviewRequest,
    Stage, WarningKind,
};
use redrive_core::query::PageRequest;
use redrive_core::store::{LetterLeaseRequest, Settle};
use redrive_core::time::{Clock as _, Span};

pub(super) fn spec(n: u64, act: Act, filter: &str) -> OperationSpec {
    let filter = Filter::parse(filter).expect("a filter");
    OperationSpec::new(operation_id(n), act, filter, operator())
}

fn all(n: u64, act: Act) -> OperationSpec {
    spec(n, act, "")
}

impl LawContext<'_> {
    pub(super) async fn start(&self, spec: OperationSpec) -> Operation {
        self.store.start(spec).await.expect("the operation starts")
    }

    pub(super) async fn step(&self, n: u64) -> Operation {
        self.store.step(operation_id(n)).await.expect("the step succeeds")
    }

    pub(super) async fn run_operation(&self, n: u64) -> Operation {
        for _ in 0..100 {
            let operation = self.step(n).await;
            if !operation.stage.is_moving() {
                return operation;
            }
        }
        panic!("operation {n} does not end");
    }

    pub(super) async fn members(&self, n: u64) -> Vec<Member> {
        read_all(|page| self.store.members(operation_id(n), page)).await.expect("members succeeds")
    }

    pub(super) async fn deaths(&self, count: u64) {
        self.configure("q", max_attempts(1)).await;
        for n in 1..=count {
            self.dead_letter(msg(n, "q"), "Bad").await;
        }
    }
}

pub(super) async fn a_preview_says_what_would_be_touched(ctx: &LawContext<'_>) {
    let look = |filter: &str, sample| {
        let filter = Filter::parse(filter).expect("a filter");
        ctx.store.preview(PreviewRequest::new(Act::retry(), filter, sample))
    };
    let empty = look("", 5).await.expect("succeeds");
    assert_eq!((empty.count, empty.bound, empty.sample, empty.warnings), (0, 0, vec![], vec![]));
    ctx.deaths(3).await;
    ctx.dead_letter(msg(9, "other"), "Bad").await;
    let before = ctx.view().await;
    let preview = look("queue:q", 2).await.expect("succeeds");
    let sample = vec![ctx.letter(message_id(3)).await, ctx.letter(message_id(2)).await];
    let group = sample[0].group;
    assert_eq!((preview.count, preview.sample, preview.bound), (3, sample, 4));
    assert_eq!(preview.by_group, [BreakdownEntry { of: group, count: 3 }]);
    assert_eq!(preview.by_queue, [BreakdownEntry { of: q("q"), count: 3 }]);
    let ages: Vec<u64> = preview.by_age.iter().map(|age| age.count).collect();
    assert_eq!(ages, [3, 0, 0, 0, 0, 0]);
    let warned: Vec<_> = preview.warnings.iter().map(|warning| (warning.kind, warning.count)).collect();
    assert_eq!(
        (preview.estimate, warned),
        (None, vec![(WarningKind::Hopeless, 3)]),
        "the letters failed permanently"
    );
    assert_eq!(ctx.view().await, before);
}

pub(super) async fn an_operation_freezes_then_runs_then_ends(ctx: &LawContext<'_>) {
    ctx.deaths(3).await;
    ctx.act(message_id(2), Act::Resolve).await.expect("pending");
    let rows = ctx.audit_trail().await.len();
    let actor = Actor { reason: Some("known cause".into()), ..operator() };
    let spec = OperationSpec { actor: actor.clone(), ..spec(1, Act::Abandon, "queue:q") };
    let with_next_step = |operation: &Operation| operation.with_next_step(Span::ZERO, ctx.clock.now());
    let mut expected = Operation::start(&spec, 3, START);
    assert_eq!((expected.stage, expected.bound, expected.outcomes.sum()), (Stage::Freezing, 3, 0));
    assert_eq!(ctx.start(spec.clone()).await, with_next_step(&expected));
    assert_eq!(ctx.members(1).await, []);
    let now = ctx.clock.advance(secs(1));
    expected.record_frozen(2, 3, true, now);
    assert_eq!((expected.stage, expected.outcomes.waiting), (Stage::Running, 2));
    assert_eq!(ctx.step(1).await, with_next_step(&expected), "closed letters are not members");
    let member = |n, version, outcome| Member { outcome, ..Member::frozen(message_id(n), version) };
    let waiting = [member(1, 1, MemberOutcome::Waiting), member(3, 1, MemberOutcome::Waiting)];
    assert_eq!(ctx.members(1).await, waiting, "in the order of deaths");
    assert_eq!(ctx.letter(message_id(1)).await.record.status, Status::Pending, "not acted on yet");
    let now = ctx.clock.advance(secs(1));
    for death in [1, 3] {
        expected.record_acted(death, MemberOutcome::Succeeded);
    }
    expected.end_step(2, now);
    assert_eq!((expected.stage, expected.finished_at), (Stage::Done, Some(now)));
    assert_eq!((expected.outcomes.succeeded, expected.outcomes.sum()), (2, 2));
    assert_eq!(ctx.step(1).await, with_next_step(&expected));
    let done = [member(1, 2, MemberOutcome::Succeeded), member(3, 2, MemberOutcome::Succeeded)];
    assert_eq!(ctx.members(1).await, done);
    for n in [1, 3] {
        let record = ctx.letter(message_id(n)).await.record;
        assert_eq!(
            (record.status, record.closed_by, record.closed_at),
            (Status::Abandoned, Some("ada".into()), Some(now))
        );
        assert_eq!(record.resolution, actor.reason);
    }
    ctx.clock.advance(secs(1));
    assert_eq!(ctx.step(1).await, expected, "a step after the end changes nothing");
    assert_eq!(ctx.store.operation(spec.id).await, Ok(expected));
    let started = AuditEntry::new(START, &actor, "start", spec.id, 0).with_detail("queue:q");
    let ran = AuditEntry::new(now, &actor, "abandon", spec.id, 2);
    assert_eq!(
        ctx.audit_trail().await[rows..],
        [started, ran],
        "one row for the start and one for the chunk"
    );
}

pub(super) async fn i36_starting_twice_starts_once(ctx: &LawContext<'_>) {
    ctx.deaths(2).await;
    let first = ctx.start(all(1, Act::retry())).await;
    let rows = ctx.audit_trail().await;
    assert_eq!(ctx.start(all(1, Act::retry())).await, first);
    let done = ctx.run_operation(1).await;
    assert_eq!(ctx.start(all(1, Act::retry())).await, done, "returned as it is");
    assert_eq!(ctx.audit_trail().await.len(), rows.len() + 1);
    assert_eq!(ctx.counts("q").await.waiting, 2);
    assert_eq!(ctx.letter(message_id(1)).await.record.redrives, 1);
}

pub(super) async fn i36_letters_that_die_after_the_preview_are_not_touched(ctx: &LawContext<'_>) {
    ctx.deaths(2).await;
    let look = PreviewRequest::new(Act::Resolve, Filter::default(), 0);
    let bound = ctx.store.preview(look).await.expect("succeeds").bound;
    ctx.dead_letter(msg(3, "q"), "Bad").await;
    let spec = OperationSpec { bound: Some(bound), ..all(1, Act::Resolve) };
    assert_eq!(ctx.start(spec).await.bound, 2);
    ctx.dead_letter(msg(4, "q"), "Bad").await;
    let done = ctx.run_operation(1).await;
    assert_eq!((done.members, done.outcomes.succeeded, done.outcomes.skipped), (2, 2, 0));
    let open: Vec<_> = ctx.letters("status:pending").await.iter().map(DeadLetter::id).collect();
    assert_eq!(open, [message_id(4), message_id(3)]);
    let beyond = OperationSpec { bound: Some(u64::MAX), ..all(2, Act::Resolve) };
    assert_eq!(ctx.start(beyond).await.bound, 4, "a bound beyond the last death is lowered");
}

pub(super) async fn trap4_a_letter_that_dies_again_is_not_redriven_twice(ctx: &LawContext<'_>) {
    ctx.deaths(3).await;
    ctx.start(all(1, Act::retry())).await;
    assert_eq!(ctx.step(1).await.stage, Stage::Running);
    let sent = ctx.step(1).await;
    assert_eq!((sent.stage, sent.outcomes.running), (Stage::Settling, 3));
    for taken in ctx.lease("q", 10).await {
        ctx.settle(taken.token, fail_permanently("Bad")).await.expect("held");
    }
    let done = ctx.step(1).await;
    assert_eq!((done.stage, done.outcomes.failed_same), (Stage::Done, 3));
    assert_eq!(ctx.lease("q", 10).await, [], "three letters, three attempts");
    assert!(ctx.letters("").await.iter().all(|l| l.record.redrives == 1));
}

pub(super) async fn i36_trap10_letters_changed_since_the_freeze_are_skipped(ctx: &LawContext<'_>) {
    ctx.deaths(6).await;
    ctx.start(all(1, Act::Resolve)).await;
    ctx.step(1).await;
    ctx.act(message_id(2), Act::retry()).await.expect("pending");
    ctx.act(message_id(3), Act::Abandon).await.expect("pending");
    ctx.act(message_id(3), Act::Purge).await.expect("closed");
    ctx.act(message_id(5), Act::Note).await.expect("a note");
    let request = LetterLeaseRequest { dlq: q("q-dlq"), max: 2, lease_for: None, worker: "c".into() };
    let leased = ctx.store.lease_letters(request).await.expect("succeeds");
    assert_eq!(leased.iter().map(|d| d.token.id).collect::<Vec<_>>(), [message_id(1), message_id(4)]);
    let done = ctx.step(1).await;
    assert_eq!(
        (done.stage, done.members, done.outcomes.succeeded, done.outcomes.skipped),
        (Stage::Done, 6, 1, 5)
    );
    let outcomes: Vec<_> = ctx.members(1).await.iter().map(|m| m.outcome).collect();
    let (skipped, succeeded) = (MemberOutcome::Skipped, MemberOutcome::Succeeded);
    assert_eq!(
        outcomes,
        [skipped, skipped, skipped, skipped, skipped, succeeded],
        "one changed letter does not stop the others"
    );
    assert_eq!(ctx.letter(message_id(5)).await.record.status, Status::Pending, "even a note is a change");
    assert_eq!(
        ctx.audit_trail().await.last().map(|row| row.count),
        Some(1),
        "the row counts only members that were acted on"
    );
}

pub(super) async fn i37_an_operation_can_be_paused_and_cancelled(ctx: &LawContext<'_>) {
    ctx.deaths(2).await;
    let started = ctx.start(all(1, Act::Resolve)).await;
    let id = started.id;
    let steer = |control| ctx.store.control(id, control, operator());
    let wrong = |at: Stage, command: &str| Refusal::WrongStage {
        id,
        stage: at.name().into(),
        command: command.into(),
    };
    assert_eq!(refused(steer(Control::Resume).await), wrong(Stage::Freezing, "resume"));
    let with_next_step = |operation: &Operation| operation.with_next_step(Span::ZERO, ctx.clock.now());
    let mut expected = started.clone();
    expected.control(Control::Pause, &operator(), START).expect("the operation is freezing");
    assert_eq!((expected.stage, expected.resume_to), (Stage::Paused, Some(Stage::Freezing)));
    assert_eq!(
        expected.halt.as_ref().map(|halt| (halt.reason, halt.by.as_str())),
        Some((HaltReason::Operator, "ada"))
    );
    assert_eq!(steer(Control::Pause).await, Ok(with_next_step(&expected)));
    assert_eq!(ctx.step(1).await, with_next_step(&expected), "a paused operation does nothing");
    assert_eq!(refused(steer(Control::Pause).await), wrong(Stage::Paused, "pause"));
    let resumed = steer(Control::Resume).await.expect("it is paused");
    assert_eq!((resumed.stage, resumed.halt), (Stage::Freezing, None));
    let running = ctx.step(1).await;
    steer(Control::Pause).await.expect("it runs");
    assert_eq!(steer(Control::Resume).await, Ok(running.clone()), "back to its earlier stage");
    let now = ctx.clock.advance(secs(1));
    let cancelled = steer(Control::Cancel).await.expect("it runs");
    assert_eq!((cancelled.stage, cancelled.finished_at), (Stage::Cancelled, Some(now)));
    assert_eq!((cancelled.outcomes.waiting, cancelled.next_in), (2, None));
    assert_eq!(ctx.step(1).await, cancelled);
    for control in [Control::Pause, Control::Resume, Control::Cancel, Control::Rate(Some(5))] {
        assert_eq!(refused(steer(control).await), wrong(Stage::Cancelled, control.name()));
    }
    assert_eq!(ctx.letters("status:pending").await.len(), 2);
    let acts: Vec<_> = ctx.audit_trail().await.into_iter().skip(1).map(|row| (row.act, row.target)).collect();
    let row = |act: &str| (act.to_owned(), id.to_string());
    let expected = [row("start"), row("pause"), row("resume"), row("pause"), row("resume"), row("cancel")];
    assert_eq!(acts, expected);
    assert_eq!(ctx.audit_trail().await.last().map(|row| row.at), Some(now));
}

pub(super) async fn invalid_and_unknown_operations_are_refused(ctx: &LawContext<'_>) {
    ctx.deaths(1).await;
    assert_eq!(refused_field(refused(ctx.store.start(all(1, Act::Note)).await)), "act");
    let wordy = Actor { reason: Some("x".repeat(limits::NOTE_BYTES_MAX + 1)), ..operator() };
    let spec = OperationSpec { actor: wordy, ..all(1, Act::Resolve) };
    assert_eq!(refused_field(refused(ctx.store.start(spec).await)), "reason");
    let id = operation_id(1);
    let unknown = Refusal::NoSuchOperation { id };
    assert_eq!(refused(ctx.store.operation(id).await), unknown);
    assert_eq!(refused(ctx.store.step(id).await), unknown);
    assert_eq!(refused(ctx.store.control(id, Control::Pause, operator()).await), unknown);
    assert_eq!(refused(ctx.store.members(id, PageRequest::default()).await), unknown);
    assert_eq!(ctx.view().await.operations, []);
}

pub(super) async fn an_operation_without_members_ends(ctx: &LawContext<'_>) {
    ctx.start(all(1, Act::Resolve)).await;
    let done = ctx.step(1).await;
    assert_eq!((done.stage, done.members, done.finished_at), (Stage::Done, 0, Some(START)));
}

pub(super) async fn every_bulk_act_works(ctx: &LawContext<'_>) {
    ctx.deaths(2).await;
    let steps = [
        (Act::Review, Status::Review),
        (Act::Release, Status::Pending),
        (Act::Quarantine { until: START.plus(secs(60)) }, Status::Quarantined),
        (Act::Abandon, Status::Abandoned),
        (Act::Reopen, Status::Pending),
        (Act::retry_at(START.plus(secs(9))), Status::Retrying),
    ];
    for (n, (act, status)) in (1..).zip(steps) {
        ctx.start(all(n, act)).await;
        assert_eq!(ctx.run_operation(n).await.outcomes.sent(), 2);
        assert!(ctx.letters("").await.iter().all(|l| l.record.status == status), "{status}");
    }
    assert_eq!(ctx.message(message_id(1)).await.ready_at, START.plus(secs(9)));
    ctx.clock.advance(secs(9));
    for taken in ctx.lease("q", 2).await {
        ctx.settle(taken.token, Settle::Ack).await.expect("held");
    }
    ctx.start(all(10, Act::Purge)).await;
    assert_eq!(ctx.run_operation(10).await.outcomes.succeeded, 2);
    assert_eq!(ctx.letters("").await, []);
    assert_eq!(ctx.counts("q").await, Counts { enqueued: 2, purged: 2, ..Counts::default() });
}

pub(super) async fn i36_a_large_operation_runs_in_chunks(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    let chunk = limits::OPERATION_CHUNK as u64;
    let total = chunk + 500;
    let batch = (1..=total).map(|n| NewMessage { ttl: Some(secs(1)), ..msg(n, "q") }).collect();
    ctx.store.enqueue(batch).await.expect("succeeds");
    ctx.clock.advance(secs(1));
    assert_eq!(ctx.store.reap(limits::REAP_MAX).await.expect("succeeds").timed_out, total);
    ctx.start(all(1, Act::Resolve)).await;
    let rows = ctx.audit_trail().await.len();
    let frozen = ctx.step(1).await;
    assert_eq!((frozen.stage, frozen.members, frozen.frozen_to), (Stage::Freezing, chunk, chunk));
    let frozen = ctx.step(1).await;
    assert_eq!((frozen.stage, frozen.members, frozen.frozen_to), (Stage::Running, total, total));
    let ran = ctx.step(1).await;
    assert_eq!((ran.stage, ran.outcomes.succeeded), (Stage::Running, chunk));
    let ran = ctx.step(1).await;
    assert_eq!((ran.stage, ran.outcomes.succeeded), (Stage::Done, total));
    let counts: Vec<_> = ctx.audit_trail().await[rows..].iter().map(|row| row.count).collect();
    assert_eq!(counts, [chunk, 500]);
    assert_eq!(ctx.members(1).await.len() as u64, total);
}

pub(super) async fn operations_are_listed_latest_first(ctx: &LawContext<'_>) {
    for n in 1..=5 {
        ctx.start(all(n, Act::Resolve)).await;
        ctx.clock.advance(secs(1));
    }
    let first = ctx.store.operations(PageRequest::first(2)).await.expect("succeeds");
    ctx.start(all(6, Act::Resolve)).await;
    let rest = PageRequest { limit: Some(3), cursor: first.next };
    let rest = ctx.store.operations(rest).await.expect("succeeds");
    let ids: Vec<_> = first.items.iter().chain(&rest.items).map(|op| op.id).collect();
    assert_eq!((ids, rest.next), (vec![5, 4, 3, 2, 1].into_iter().map(operation_id).collect(), None));
}
