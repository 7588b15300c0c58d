//! Laws of redrives, the operations that send letters back: they go at their pace, note what becomes of every member
//! in the commit in which it does, halt by themselves, and can be taken back (I36, I37).

use super::Stage;
use super::kit::{field, hopeless, new, operator, q, refused, rules, secs};
use super::operations::spec;
use crate::ids::{message_id, operation_id};
use redrive_core::breaker::{BreakerKey, BreakerPolicy};
use redrive_core::dead_letter::{ALREADY_DONE, Act, Retry, Status};
use redrive_core::message::NewMessage;
use redrive_core::operation::{
    Canary, Control, GONE, MemberOutcome, Operation, OperationSpec, Outcomes, Pace, PreviewRequest,
    Stage as Step, WarningKind, Why,
};
use redrive_core::policy::QueuePolicy;
use redrive_core::store::{Settle, VerifyRequest};
use redrive_core::time::Span;

fn redrive(pace: Pace) -> OperationSpec {
    OperationSpec { pace, ..spec(1, Act::retry(), "queue:q") }
}

impl Stage<'_> {
    async fn redrive(&self, pace: Pace) -> Operation {
        self.start(redrive(pace)).await;
        self.step(1).await
    }

    async fn at(&self) -> Operation {
        self.store.operation(operation_id(1)).await.expect("it is there")
    }

    /// Leases so many and ends each the same way; says how the operation stands.
    async fn work(&self, count: usize, what: &Settle) -> Operation {
        self.work_off(count, what).await;
        self.at().await
    }

    async fn work_off(&self, count: usize, what: &Settle) {
        let taken = self.take("q", count).await;
        assert_eq!(taken.len(), count, "so many are there");
        for taken in taken {
            self.settle(taken.token, what.clone()).await.expect("held");
        }
        self.sound().await;
    }

    /// The counters of operations are the sum of their members, and all else holds.
    async fn sound(&self) {
        let found = self.store.verify(VerifyRequest::default()).await.expect("verify answers");
        assert_eq!(found.findings, [], "the recount agrees");
    }

    /// What a preview warns of, beside that the letters failed for good.
    async fn warnings(&self) -> Vec<(WarningKind, u64)> {
        let look = PreviewRequest::new(Act::retry(), redrive(Pace::default()).filter, 0);
        let all = self.store.preview(look).await.expect("answers").warnings;
        let others = all.iter().filter(|warning| warning.kind != WarningKind::Hopeless);
        others.map(|warning| (warning.kind, warning.count)).collect()
    }

    async fn steer(&self, control: Control) -> Operation {
        self.store.control(operation_id(1), control, operator()).await.expect("it can be steered so")
    }
}

pub(super) async fn i36_an_outcome_is_written_when_the_message_settles(stage: &Stage<'_>) {
    stage.deaths(4).await;
    stage.redrive(Pace::default()).await;
    let sent = stage.step(1).await;
    assert_eq!((sent.stage, sent.outcomes), (Step::Settling, Outcomes { running: 4, ..Outcomes::default() }));
    for n in 1..=4 {
        let file = stage.letter(message_id(n)).await.file;
        assert_eq!(file.operation, Some(operation_id(1)));
        assert_eq!(file.history.last().and_then(|event| event.operation), Some(operation_id(1)));
    }
    stage.work(1, &Settle::Ack).await;
    stage.work(1, &hopeless("Bad")).await;
    let left = stage.work(1, &hopeless("Quite another thing")).await;
    assert_eq!((left.stage, left.outcomes.running), (Step::Settling, 1));
    let now = stage.clock.advance(secs(1));
    let done = stage.work(1, &Settle::Ack).await;
    assert_eq!((done.stage, done.finished_at), (Step::Done, Some(now)));
    let outcomes = Outcomes { succeeded: 2, failed_same: 1, failed_other: 1, ..Outcomes::default() };
    assert_eq!((done.outcomes, done.outcomes.success_percent()), (outcomes, Some(50)));
    let members = stage.members(1).await;
    let other = stage.letter(message_id(3)).await.group;
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
    // Whoever is sent back again by hand is no longer the operation's.
    stage.act(message_id(2), Act::retry()).await.expect("pending");
    assert_eq!(stage.letter(message_id(2)).await.file.operation, None);
    stage.work(1, &Settle::Ack).await;
    assert_eq!(stage.at().await, done);
}

pub(super) async fn i36_only_a_redrive_waits_for_the_message(stage: &Stage<'_>) {
    stage.deaths(2).await;
    // One is retried by hand, the other for an operation; what is written on them is done when it is written.
    stage.act(message_id(2), Act::retry()).await.expect("pending");
    stage.redrive(Pace::default()).await;
    assert_eq!(stage.step(1).await.outcomes, Outcomes { running: 1, ..Outcomes::default() });
    let label = Act::Label { add: ["seen".into()].into(), remove: [].into() };
    for (n, act) in (2..).zip([Act::Assign { to: Some("bob".into()) }, label, Act::Hold { on: true }]) {
        stage.start(spec(n, act.clone(), "status:retrying")).await;
        let done = stage.finish(n).await;
        let outcomes = Outcomes { succeeded: 2, ..Outcomes::default() };
        assert_eq!((done.stage, done.outcomes), (Step::Done, outcomes), "{}", act.name());
        assert!(stage.members(n).await.iter().all(|member| member.why.is_none()), "{}", act.name());
        stage.sound().await;
    }
    assert_eq!(
        stage.letter(message_id(1)).await.file.operation,
        Some(operation_id(1)),
        "still its redrive's"
    );
    let done = stage.work(2, &Settle::Ack).await;
    assert_eq!((done.stage, done.outcomes.succeeded), (Step::Done, 1), "when the message settles");
}

pub(super) async fn i37_a_canary_that_comes_back_halts_the_rest(stage: &Stage<'_>) {
    stage.deaths(12).await;
    let pace =
        Pace { canary: Some(Canary::Count(2)), observe: secs(10), stop_at: Some(20), ..Pace::default() };
    assert_eq!(stage.redrive(pace).await.stage, Step::Canary);
    let canary = stage.step(1).await;
    assert_eq!((canary.stage, canary.outcomes.running), (Step::Observing, 2));
    let halted = stage.work(2, &hopeless("Bad")).await;
    let why = halted.halt.as_ref().map(|halt| (halt.why, halt.by.as_str()));
    assert_eq!((halted.stage, why), (Step::Paused, Some((Why::SameFailure, "system"))));
    stage.clock.advance(secs(60));
    let still = stage.step(1).await;
    assert_eq!((still.outcomes.waiting, still.next_in), (10, None), "nothing else is touched");
    let row = stage.trail().await.pop().expect("the halt is on record");
    assert_eq!((row.act.as_str(), row.actor.as_str()), ("pause", "system"));
    assert!(row.reason.is_some_and(|text| text.contains("came back")));
    // The cause is mended: a canary proves it first.
    assert_eq!(stage.steer(Control::Resume).await.stage, Step::Canary);
    assert_eq!(stage.step(1).await.outcomes.running, 2);
    assert_eq!(stage.work(2, &Settle::Ack).await.stage, Step::Observing, "looked at for ten seconds");
    assert_eq!(stage.step(1).await.next_in, Some(secs(10)));
    stage.clock.advance(secs(10));
    assert_eq!(stage.step(1).await.outcomes.running, 8);
    let done = stage.work(8, &Settle::Ack).await;
    assert_eq!((done.stage, done.outcomes.succeeded, done.outcomes.failed_same), (Step::Done, 10, 2));
}

pub(super) async fn i37_an_open_breaker_halts(stage: &Stage<'_>) {
    let breaker = Some(BreakerPolicy { failures: 2, ..BreakerPolicy::new(BreakerKey::Queue) });
    stage.deaths(3).await;
    stage.set("q", QueuePolicy { breaker, ..rules(1) }).await;
    stage.redrive(Pace { stop_on_breaker: true, ..Pace::default() }).await;
    stage.store.force_breaker(q("q"), "q".into(), true, operator()).await.expect("it has one");
    assert_eq!(stage.warnings().await, [(WarningKind::BreakerOpen, 3)]);
    let halted = stage.step(1).await;
    let why = halted.halt.map(|halt| halt.why);
    assert_eq!((halted.stage, why, halted.outcomes.waiting), (Step::Paused, Some(Why::BreakerOpen), 3));
    stage.store.force_breaker(q("q"), "q".into(), false, operator()).await.expect("it has one");
    stage.steer(Control::Resume).await;
    assert_eq!(stage.step(1).await.outcomes.running, 3);
}

pub(super) async fn i37_rate_and_what_is_under_way_are_bounded(stage: &Stage<'_>) {
    stage.deaths(9).await;
    stage.redrive(Pace { rate: Some(2), in_flight: Some(4), ..Pace::default() }).await;
    let first = stage.step(1).await;
    assert_eq!((first.outcomes.running, first.next_in), (1, Some(Span::from_millis(500))));
    assert_eq!(stage.step(1).await.outcomes.running, 1, "asking more often sends no more");
    for sent in [2, 3, 4] {
        stage.clock.advance(Span::from_millis(500));
        assert_eq!(stage.step(1).await.outcomes.running, sent);
    }
    stage.clock.advance(secs(60));
    assert_eq!(stage.step(1).await.outcomes.running, 4, "four are under way");
    stage.work(2, &Settle::Ack).await;
    assert_eq!(stage.step(1).await.outcomes.running, 3, "a minute without a step is no reason to hurry");
    stage.clock.advance(Span::from_millis(500));
    assert_eq!(stage.step(1).await.outcomes.running, 4);
    assert_eq!(stage.steer(Control::Rate(None)).await.pace.rate, None);
    stage.work(4, &Settle::Ack).await;
    assert_eq!(stage.step(1).await.stage, Step::Settling, "without a rate the rest goes at once");
    assert_eq!(field(refused(stage.store.start(redrive_at(2, Some(0))).await)), "rate");
}

fn redrive_at(n: u64, rate: Option<u32>) -> OperationSpec {
    OperationSpec { pace: Pace { rate, ..Pace::default() }, ..spec(n, Act::retry(), "queue:q") }
}

pub(super) async fn i37_a_full_queue_is_waited_for(stage: &Stage<'_>) {
    stage.deaths(3).await;
    stage.set("q", QueuePolicy { max_messages: Some(2), ..rules(1) }).await;
    assert_eq!(stage.warnings().await, [(WarningKind::TargetFull, 1)]);
    stage.redrive(Pace::default()).await;
    let held = stage.step(1).await;
    assert_eq!((held.stage, held.outcomes.running, held.outcomes.waiting), (Step::Running, 2, 1));
    assert!(held.held_up.as_ref().is_some_and(|held| held.text.contains("full")), "{:?}", held.held_up);
    assert_eq!(held.next_in, Some(secs(1)), "it tries again by itself");
    stage.store.pause(q("q"), true, operator()).await.expect("answers");
    stage.clock.advance(secs(1));
    assert_eq!(stage.step(1).await.outcomes.running, 2, "still full, and now paused");
    stage.store.pause(q("q"), false, operator()).await.expect("answers");
    stage.work(1, &Settle::Ack).await;
    stage.clock.advance(secs(1));
    let sent = stage.step(1).await;
    assert_eq!((sent.stage, sent.held_up, sent.outcomes.running), (Step::Settling, None, 2));
}

pub(super) async fn i37_what_has_not_begun_can_be_taken_back(stage: &Stage<'_>) {
    stage.deaths(4).await;
    stage.redrive(Pace { in_flight: Some(3), ..Pace::default() }).await;
    stage.step(1).await;
    let taken = stage.take("q", 1).await;
    assert_eq!(stage.steer(Control::Undo).await.stage, Step::Undoing);
    let undone = stage.step(1).await;
    assert_eq!((undone.stage, undone.outcomes.undone, undone.outcomes.running), (Step::Undone, 2, 1));
    assert_eq!(undone.outcomes.waiting, 1, "it was never sent");
    stage.sound().await;
    for n in [2, 3] {
        let letter = stage.letter(message_id(n)).await;
        assert_eq!(
            (letter.file.status, letter.file.redrives, letter.file.operation),
            (Status::Pending, 0, None)
        );
        assert_eq!(letter.message.generation, 1);
    }
    for taken in taken {
        stage.settle(taken.token, Settle::Ack).await.expect("held");
    }
    let left = stage.at().await;
    assert_eq!((left.stage, left.outcomes.succeeded, left.outcomes.running), (Step::Undone, 1, 0));
    assert_eq!(stage.counts("q").await.waiting, 0);
    stage.sound().await;
}

pub(super) async fn what_was_closed_in_bulk_can_be_opened_again(stage: &Stage<'_>) {
    stage.deaths(3).await;
    stage.start(spec(1, Act::Resolve, "queue:q")).await;
    assert_eq!(stage.finish(1).await.outcomes.succeeded, 3);
    stage.act(message_id(2), Act::Reopen).await.expect("closed");
    stage.steer(Control::Undo).await;
    let undone = stage.step(1).await;
    assert_eq!((undone.stage, undone.outcomes.undone, undone.outcomes.succeeded), (Step::Undone, 2, 1));
    assert_eq!(stage.letters("status:pending").await.len(), 3);
    stage.start(spec(2, Act::Abandon, "queue:q")).await;
    stage.finish(2).await;
    stage.start(spec(3, Act::Purge, "queue:q")).await;
    stage.finish(3).await;
    assert_eq!(stage.letters("").await, []);
    stage.store.control(operation_id(3), Control::Undo, operator()).await.expect("within its time");
    assert_eq!(stage.step(3).await.outcomes.undone, 3);
    assert_eq!(stage.letters("status:abandoned").await.len(), 3);
    stage.sound().await;
    let refusal = stage.store.control(operation_id(2), Control::Rate(Some(1)), operator()).await;
    assert!(refusal.is_err(), "it is over");
}

pub(super) async fn a_member_says_why_it_was_left_alone(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    for n in 1..=4 {
        let keyed = NewMessage { key: Some(format!("key {n}")), ..new(n, "q") };
        stage.dead(keyed, "Bad").await;
    }
    stage.redrive(Pace::default()).await;
    // One is dealt with, one is sent back and dies again, one is done by hand and opened again.
    stage.act(message_id(1), Act::Resolve).await.expect("pending");
    stage.act(message_id(2), Act::retry()).await.expect("pending");
    stage.work(1, &hopeless("Bad")).await;
    let sent = stage.step(1).await;
    assert_eq!((sent.outcomes.skipped, sent.outcomes.running), (2, 2));
    let members = stage.members(1).await;
    assert!(members[0].why.as_ref().is_some_and(|why| why.contains("version 2")), "{:?}", members[0]);
    assert_eq!(members[1].why.as_deref(), Some(GONE));
    assert_eq!((members[2].version, members[2].why.as_deref()), (2, None));
    stage.work(2, &Settle::Ack).await;
    // Done already under its key: closed, not run.
    stage.act(message_id(3), Act::Reopen).await.expect("closed");
    stage.start(spec(2, Act::retry(), "status:pending key:\"key 3\"")).await;
    let done = stage.finish(2).await;
    assert_eq!((done.stage, done.outcomes.succeeded), (Step::Done, 1));
    assert_eq!(stage.members(2).await[0].why.as_deref(), Some(ALREADY_DONE));
    assert_eq!(stage.counts("q").await.waiting, 0);
    stage.sound().await;
}

pub(super) async fn i36_a_token_starts_what_was_looked_at(stage: &Stage<'_>) {
    stage.deaths(2).await;
    let wish = spec(1, Act::retry(), "queue:q");
    let look = PreviewRequest::new(wish.act.clone(), wish.filter.clone(), 0);
    let seen = stage.store.preview(look).await.expect("answers");
    let wish = OperationSpec { bound: Some(seen.bound), token: Some(seen.token), ..wish };
    let elsewhere = Act::Retry(Retry { queue: Some(q("q")), ..Retry::default() });
    for other in [
        OperationSpec { bound: Some(9), ..wish.clone() },
        OperationSpec { bound: None, ..wish.clone() },
        OperationSpec { act: elsewhere, ..wish.clone() },
        OperationSpec { filter: "".parse().expect("a filter"), ..wish.clone() },
        OperationSpec { token: Some("0".repeat(64)), ..wish.clone() },
    ] {
        assert_eq!(field(refused(stage.store.start(other).await)), "token");
    }
    assert_eq!(stage.start(wish).await.bound, 2);
}

pub(super) async fn a_preview_warns(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    stage.dead(NewMessage { ordering_key: Some("o".into()), ..new(1, "q") }, "Bad").await;
    stage.dead(NewMessage { key: Some("k".into()), ..new(2, "q") }, "Bad").await;
    for _ in 0..2 {
        stage.act(message_id(2), Act::retry()).await.expect("pending");
        stage.work_off(1, &hopeless("Bad")).await;
    }
    stage.act(message_id(2), Act::retry()).await.expect("pending");
    stage.work_off(1, &Settle::Ack).await;
    stage.act(message_id(2), Act::Reopen).await.expect("closed");
    stage.store.pause(q("q"), true, operator()).await.expect("answers");
    let pace = Pace { rate: Some(1), ..Pace::default() };
    let look =
        PreviewRequest { pace, ..PreviewRequest::new(Act::retry(), "queue:q".parse().expect("ok"), 1) };
    let seen = stage.store.preview(look.clone()).await.expect("answers");
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
        stage.store.preview(resolve).await.expect("answers").warnings,
        [],
        "they are about sending back"
    );
    let absurd = PreviewRequest { pace: Pace { in_flight: Some(0), ..Pace::default() }, ..look };
    assert_eq!(field(refused(stage.store.preview(absurd).await)), "in_flight");
}
