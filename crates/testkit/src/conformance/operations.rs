//! Laws of operations: what was seen is what is touched, once, however often it is asked for (I36, I37).

use super::Stage;
use super::kit::{field, hopeless, new, operator, q, refused, rules, secs};
use crate::clock::START;
use crate::ids::{message_id, operation_id};
use crate::observe::walk;
use redrive_core::audit::AuditEntry;
use redrive_core::dead_letter::{Act, Actor, DeadLetter, Status};
use redrive_core::error::Refusal;
use redrive_core::filter::Filter;
use redrive_core::invariants::Counts;
use redrive_core::limits;
use redrive_core::message::NewMessage;
use redrive_core::operation::{
    Control, Member, MemberOutcome, Operation, OperationSpec, Part, PreviewRequest, Stage as Step,
    WarningKind, Why,
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

impl Stage<'_> {
    pub(super) async fn start(&self, spec: OperationSpec) -> Operation {
        self.store.start(spec).await.expect("it starts")
    }

    pub(super) async fn step(&self, n: u64) -> Operation {
        self.store.step(operation_id(n)).await.expect("it steps")
    }

    pub(super) async fn finish(&self, n: u64) -> Operation {
        for _ in 0..100 {
            let operation = self.step(n).await;
            if !operation.stage.is_moving() {
                return operation;
            }
        }
        panic!("operation {n} does not end");
    }

    pub(super) async fn members(&self, n: u64) -> Vec<Member> {
        walk(|page| self.store.members(operation_id(n), page)).await.expect("members answers")
    }

    pub(super) async fn deaths(&self, count: u64) {
        self.set("q", rules(1)).await;
        for n in 1..=count {
            self.dead(new(n, "q"), "Bad").await;
        }
    }
}

pub(super) async fn a_preview_says_what_would_be_touched(stage: &Stage<'_>) {
    let look = |filter: &str, sample| {
        let filter = Filter::parse(filter).expect("a filter");
        stage.store.preview(PreviewRequest::new(Act::retry(), filter, sample))
    };
    let empty = look("", 5).await.expect("answers");
    assert_eq!((empty.count, empty.bound, empty.sample, empty.warnings), (0, 0, vec![], vec![]));
    stage.deaths(3).await;
    stage.dead(new(9, "other"), "Bad").await;
    let before = stage.seen().await;
    let preview = look("queue:q", 2).await.expect("answers");
    let sample = vec![stage.letter(message_id(3)).await, stage.letter(message_id(2)).await];
    let group = sample[0].group;
    assert_eq!((preview.count, preview.sample, preview.bound), (3, sample, 4));
    assert_eq!(preview.by_group, [Part { of: group, count: 3 }]);
    assert_eq!(preview.by_queue, [Part { of: q("q"), count: 3 }]);
    let ages: Vec<u64> = preview.by_age.iter().map(|age| age.count).collect();
    assert_eq!(ages, [3, 0, 0, 0, 0, 0]);
    let warned: Vec<_> = preview.warnings.iter().map(|warning| (warning.kind, warning.count)).collect();
    assert_eq!((preview.estimate, warned), (None, vec![(WarningKind::Hopeless, 3)]), "they failed for good");
    assert_eq!(stage.seen().await, before);
}

pub(super) async fn an_operation_freezes_then_runs_then_ends(stage: &Stage<'_>) {
    stage.deaths(3).await;
    stage.act(message_id(2), Act::Resolve).await.expect("pending");
    let rows = stage.trail().await.len();
    let actor = Actor { reason: Some("known cause".into()), ..operator() };
    let spec = OperationSpec { actor: actor.clone(), ..spec(1, Act::Abandon, "queue:q") };
    let told = |operation: &Operation| operation.told(Span::ZERO, stage.clock.now());
    let mut expected = Operation::start(&spec, 3, START);
    assert_eq!((expected.stage, expected.bound, expected.outcomes.sum()), (Step::Freezing, 3, 0));
    assert_eq!(stage.start(spec.clone()).await, told(&expected));
    assert_eq!(stage.members(1).await, []);
    let now = stage.clock.advance(secs(1));
    expected.froze(2, 3, true, now);
    assert_eq!((expected.stage, expected.outcomes.waiting), (Step::Running, 2));
    assert_eq!(stage.step(1).await, told(&expected), "what is closed already is no member");
    let member = |n, version, outcome| Member { outcome, ..Member::frozen(message_id(n), version) };
    let waiting = [member(1, 1, MemberOutcome::Waiting), member(3, 1, MemberOutcome::Waiting)];
    assert_eq!(stage.members(1).await, waiting, "by death");
    assert_eq!(stage.letter(message_id(1)).await.file.status, Status::Pending, "not touched yet");
    let now = stage.clock.advance(secs(1));
    for death in [1, 3] {
        expected.acted(death, MemberOutcome::Succeeded);
    }
    expected.stepped(2, now);
    assert_eq!((expected.stage, expected.finished_at), (Step::Done, Some(now)));
    assert_eq!((expected.outcomes.succeeded, expected.outcomes.sum()), (2, 2));
    assert_eq!(stage.step(1).await, told(&expected));
    let done = [member(1, 2, MemberOutcome::Succeeded), member(3, 2, MemberOutcome::Succeeded)];
    assert_eq!(stage.members(1).await, done);
    for n in [1, 3] {
        let file = stage.letter(message_id(n)).await.file;
        assert_eq!(
            (file.status, file.closed_by, file.closed_at),
            (Status::Abandoned, Some("ada".into()), Some(now))
        );
        assert_eq!(file.resolution, actor.reason);
    }
    stage.clock.advance(secs(1));
    assert_eq!(stage.step(1).await, expected, "a step after the end changes nothing");
    assert_eq!(stage.store.operation(spec.id).await, Ok(expected));
    let started = AuditEntry::new(START, &actor, "start", spec.id, 0).with_detail("queue:q");
    let ran = AuditEntry::new(now, &actor, "abandon", spec.id, 2);
    assert_eq!(stage.trail().await[rows..], [started, ran], "one row for the start and one for the chunk");
}

pub(super) async fn i36_starting_twice_starts_once(stage: &Stage<'_>) {
    stage.deaths(2).await;
    let first = stage.start(all(1, Act::retry())).await;
    let rows = stage.trail().await;
    assert_eq!(stage.start(all(1, Act::retry())).await, first);
    let done = stage.finish(1).await;
    assert_eq!(stage.start(all(1, Act::retry())).await, done, "as it stands");
    assert_eq!(stage.trail().await.len(), rows.len() + 1);
    assert_eq!(stage.counts("q").await.waiting, 2);
    assert_eq!(stage.letter(message_id(1)).await.file.redrives, 1);
}

pub(super) async fn i36_what_dies_after_the_preview_is_not_touched(stage: &Stage<'_>) {
    stage.deaths(2).await;
    let look = PreviewRequest::new(Act::Resolve, Filter::default(), 0);
    let bound = stage.store.preview(look).await.expect("answers").bound;
    stage.dead(new(3, "q"), "Bad").await;
    let spec = OperationSpec { bound: Some(bound), ..all(1, Act::Resolve) };
    assert_eq!(stage.start(spec).await.bound, 2);
    stage.dead(new(4, "q"), "Bad").await;
    let done = stage.finish(1).await;
    assert_eq!((done.members, done.outcomes.succeeded, done.outcomes.skipped), (2, 2, 0));
    let open: Vec<_> = stage.letters("status:pending").await.iter().map(DeadLetter::id).collect();
    assert_eq!(open, [message_id(4), message_id(3)]);
    let beyond = OperationSpec { bound: Some(u64::MAX), ..all(2, Act::Resolve) };
    assert_eq!(stage.start(beyond).await.bound, 4, "a bound from the future is now");
}

pub(super) async fn trap4_what_dies_again_is_not_swept_in(stage: &Stage<'_>) {
    stage.deaths(3).await;
    stage.start(all(1, Act::retry())).await;
    assert_eq!(stage.step(1).await.stage, Step::Running);
    let sent = stage.step(1).await;
    assert_eq!((sent.stage, sent.outcomes.running), (Step::Settling, 3));
    for taken in stage.take("q", 10).await {
        stage.settle(taken.token, hopeless("Bad")).await.expect("held");
    }
    let done = stage.step(1).await;
    assert_eq!((done.stage, done.outcomes.failed_same), (Step::Done, 3));
    assert_eq!(stage.take("q", 10).await, [], "three letters, three executions");
    assert!(stage.letters("").await.iter().all(|l| l.file.redrives == 1));
}

pub(super) async fn i36_trap10_what_changed_since_the_freeze_is_skipped(stage: &Stage<'_>) {
    stage.deaths(6).await;
    stage.start(all(1, Act::Resolve)).await;
    stage.step(1).await;
    stage.act(message_id(2), Act::retry()).await.expect("pending");
    stage.act(message_id(3), Act::Abandon).await.expect("pending");
    stage.act(message_id(3), Act::Purge).await.expect("closed");
    stage.act(message_id(5), Act::Note).await.expect("a note");
    let wish = LetterLeaseRequest { dlq: q("q-dlq"), max: 2, lease_for: None, worker: "c".into() };
    let drawn = stage.store.lease_letters(wish).await.expect("answers");
    assert_eq!(drawn.iter().map(|d| d.token.id).collect::<Vec<_>>(), [message_id(1), message_id(4)]);
    let done = stage.step(1).await;
    assert_eq!(
        (done.stage, done.members, done.outcomes.succeeded, done.outcomes.skipped),
        (Step::Done, 6, 1, 5)
    );
    let outcomes: Vec<_> = stage.members(1).await.iter().map(|m| m.outcome).collect();
    let (skipped, succeeded) = (MemberOutcome::Skipped, MemberOutcome::Succeeded);
    assert_eq!(
        outcomes,
        [skipped, skipped, skipped, skipped, skipped, succeeded],
        "one bad one stops nobody"
    );
    assert_eq!(stage.letter(message_id(5)).await.file.status, Status::Pending, "a mere note is a change");
    assert_eq!(stage.trail().await.last().map(|row| row.count), Some(1), "the row counts what was touched");
}

pub(super) async fn i37_an_operation_can_be_halted_and_stopped(stage: &Stage<'_>) {
    stage.deaths(2).await;
    let started = stage.start(all(1, Act::Resolve)).await;
    let id = started.id;
    let steer = |control| stage.store.control(id, control, operator());
    let wrong = |at: Step, command: &str| Refusal::WrongStage {
        id,
        stage: at.name().into(),
        command: command.into(),
    };
    assert_eq!(refused(steer(Control::Resume).await), wrong(Step::Freezing, "resume"));
    let told = |operation: &Operation| operation.told(Span::ZERO, stage.clock.now());
    let mut expected = started.clone();
    expected.control(Control::Pause, &operator(), START).expect("it freezes");
    assert_eq!((expected.stage, expected.resume_to), (Step::Paused, Some(Step::Freezing)));
    assert_eq!(expected.halt.as_ref().map(|halt| (halt.why, halt.by.as_str())), Some((Why::Operator, "ada")));
    assert_eq!(steer(Control::Pause).await, Ok(told(&expected)));
    assert_eq!(stage.step(1).await, told(&expected), "nothing happens meanwhile");
    assert_eq!(refused(steer(Control::Pause).await), wrong(Step::Paused, "pause"));
    let resumed = steer(Control::Resume).await.expect("it is paused");
    assert_eq!((resumed.stage, resumed.halt), (Step::Freezing, None));
    let running = stage.step(1).await;
    steer(Control::Pause).await.expect("it runs");
    assert_eq!(steer(Control::Resume).await, Ok(running.clone()), "back to where it was");
    let now = stage.clock.advance(secs(1));
    let cancelled = steer(Control::Cancel).await.expect("it runs");
    assert_eq!((cancelled.stage, cancelled.finished_at), (Step::Cancelled, Some(now)));
    assert_eq!((cancelled.outcomes.waiting, cancelled.next_in), (2, None));
    assert_eq!(stage.step(1).await, cancelled);
    for control in [Control::Pause, Control::Resume, Control::Cancel, Control::Rate(Some(5))] {
        assert_eq!(refused(steer(control).await), wrong(Step::Cancelled, control.name()));
    }
    assert_eq!(stage.letters("status:pending").await.len(), 2);
    let acts: Vec<_> = stage.trail().await.into_iter().skip(1).map(|row| (row.act, row.target)).collect();
    let row = |act: &str| (act.to_owned(), id.to_string());
    let expected = [row("start"), row("pause"), row("resume"), row("pause"), row("resume"), row("cancel")];
    assert_eq!(acts, expected);
    assert_eq!(stage.trail().await.last().map(|row| row.at), Some(now));
}

pub(super) async fn what_makes_no_sense_for_many_is_refused(stage: &Stage<'_>) {
    stage.deaths(1).await;
    assert_eq!(field(refused(stage.store.start(all(1, Act::Note)).await)), "act");
    let wordy = Actor { reason: Some("x".repeat(limits::NOTE_BYTES_MAX + 1)), ..operator() };
    let spec = OperationSpec { actor: wordy, ..all(1, Act::Resolve) };
    assert_eq!(field(refused(stage.store.start(spec).await)), "reason");
    let id = operation_id(1);
    let unknown = Refusal::NoSuchOperation { id };
    assert_eq!(refused(stage.store.operation(id).await), unknown);
    assert_eq!(refused(stage.store.step(id).await), unknown);
    assert_eq!(refused(stage.store.control(id, Control::Pause, operator()).await), unknown);
    assert_eq!(refused(stage.store.members(id, PageRequest::default()).await), unknown);
    assert_eq!(stage.seen().await.operations, []);
}

pub(super) async fn an_operation_over_nothing_ends(stage: &Stage<'_>) {
    stage.start(all(1, Act::Resolve)).await;
    let done = stage.step(1).await;
    assert_eq!((done.stage, done.members, done.finished_at), (Step::Done, 0, Some(START)));
}

pub(super) async fn every_act_for_many_works(stage: &Stage<'_>) {
    stage.deaths(2).await;
    let steps = [
        (Act::Review, Status::Review),
        (Act::Release, Status::Pending),
        (Act::Quarantine { until: START.plus(secs(60)) }, Status::Quarantined),
        (Act::Abandon, Status::Abandoned),
        (Act::Reopen, Status::Pending),
        (Act::retry_at(START.plus(secs(9))), Status::Retrying),
    ];
    for (n, (act, status)) in (1..).zip(steps) {
        stage.start(all(n, act)).await;
        assert_eq!(stage.finish(n).await.outcomes.sent(), 2);
        assert!(stage.letters("").await.iter().all(|l| l.file.status == status), "{status}");
    }
    assert_eq!(stage.message(message_id(1)).await.ready_at, START.plus(secs(9)));
    stage.clock.advance(secs(9));
    for taken in stage.take("q", 2).await {
        stage.settle(taken.token, Settle::Ack).await.expect("held");
    }
    stage.start(all(10, Act::Purge)).await;
    assert_eq!(stage.finish(10).await.outcomes.succeeded, 2);
    assert_eq!(stage.letters("").await, []);
    assert_eq!(stage.counts("q").await, Counts { enqueued: 2, purged: 2, ..Counts::default() });
}

pub(super) async fn i36_a_large_operation_goes_in_chunks(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    let chunk = limits::OPERATION_CHUNK as u64;
    let total = chunk + 500;
    let batch = (1..=total).map(|n| NewMessage { ttl: Some(secs(1)), ..new(n, "q") }).collect();
    stage.store.enqueue(batch).await.expect("answers");
    stage.clock.advance(secs(1));
    assert_eq!(stage.store.reap(limits::REAP_MAX).await.expect("answers").timed_out, total);
    stage.start(all(1, Act::Resolve)).await;
    let rows = stage.trail().await.len();
    let frozen = stage.step(1).await;
    assert_eq!((frozen.stage, frozen.members, frozen.frozen_to), (Step::Freezing, chunk, chunk));
    let frozen = stage.step(1).await;
    assert_eq!((frozen.stage, frozen.members, frozen.frozen_to), (Step::Running, total, total));
    let ran = stage.step(1).await;
    assert_eq!((ran.stage, ran.outcomes.succeeded), (Step::Running, chunk));
    let ran = stage.step(1).await;
    assert_eq!((ran.stage, ran.outcomes.succeeded), (Step::Done, total));
    let counts: Vec<_> = stage.trail().await[rows..].iter().map(|row| row.count).collect();
    assert_eq!(counts, [chunk, 500]);
    assert_eq!(stage.members(1).await.len() as u64, total);
}

pub(super) async fn operations_are_listed_latest_first(stage: &Stage<'_>) {
    for n in 1..=5 {
        stage.start(all(n, Act::Resolve)).await;
        stage.clock.advance(secs(1));
    }
    let first = stage.store.operations(PageRequest::first(2)).await.expect("answers");
    stage.start(all(6, Act::Resolve)).await;
    let rest = PageRequest { limit: Some(3), cursor: first.next };
    let rest = stage.store.operations(rest).await.expect("answers");
    let ids: Vec<_> = first.items.iter().chain(&rest.items).map(|op| op.id).collect();
    assert_eq!((ids, rest.next), (vec![5, 4, 3, 2, 1].into_iter().map(operation_id).collect(), None));
}
