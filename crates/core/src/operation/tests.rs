//! The complete stage table, the rate limit under random steps, and counters that always add up.

use super::*;
use crate::dead_letter::Retry;
use proptest::prelude::*;

const START: Time = Time::from_millis(1_000_000);

fn spec(act: Act, rollout: Rollout) -> OperationSpec {
    let id = OperationId::new(MessageId::new(1, [1; 10]));
    let actor = Actor::new("ada", "test");
    OperationSpec { rollout, ..OperationSpec::new(id, act, Filter::default(), actor) }
}

/// A redrive whose members were frozen at the start.
fn redrive(members: u64, rollout: Rollout) -> Operation {
    let mut operation = Operation::start(&spec(Act::retry(), rollout), 100, START);
    operation.record_frozen(members, 100, true, START);
    operation
}

/// Sends what may be sent now; returns how many members that was.
fn step(operation: &mut Operation, now: Time) -> u64 {
    operation.advance(now);
    let send = operation.chunk(now) as u64;
    for _ in 0..send {
        operation.record_acted(operation.ran_to + 1, MemberOutcome::Running);
    }
    operation.end_step(send, now);
    send
}

fn after(seconds: u64) -> Time {
    START.plus(Span::from_secs(seconds))
}

/// A stage, the events that are possible there, and where each leads.
type Row = (Stage, &'static [(Event, Stage)]);

/// The table for a rollout with every stage, resumed to observing.
const LEGAL: &[Row] = &[
    (
        Stage::Freezing,
        &[
            (Event::Frozen, Stage::Canary),
            (Event::Pause, Stage::Paused),
            (Event::Cancel, Stage::Cancelled),
            (Event::Rate, Stage::Freezing),
        ],
    ),
    (
        Stage::Canary,
        &[
            (Event::CanarySent, Stage::Observing),
            (Event::AllSent, Stage::Settling),
            (Event::Halt, Stage::Paused),
            (Event::Pause, Stage::Paused),
            (Event::Cancel, Stage::Cancelled),
            (Event::Rate, Stage::Canary),
            (Event::Undo, Stage::Undoing),
        ],
    ),
    (
        Stage::Observing,
        &[
            (Event::Observed, Stage::Ramping),
            (Event::AllSent, Stage::Settling),
            (Event::Halt, Stage::Paused),
            (Event::Pause, Stage::Paused),
            (Event::Cancel, Stage::Cancelled),
            (Event::Rate, Stage::Observing),
            (Event::Undo, Stage::Undoing),
        ],
    ),
    (
        Stage::Ramping,
        &[
            (Event::RampOver, Stage::Running),
            (Event::AllSent, Stage::Settling),
            (Event::Halt, Stage::Paused),
            (Event::Pause, Stage::Paused),
            (Event::Cancel, Stage::Cancelled),
            (Event::Rate, Stage::Ramping),
            (Event::Undo, Stage::Undoing),
        ],
    ),
    (
        Stage::Running,
        &[
            (Event::AllSent, Stage::Settling),
            (Event::Halt, Stage::Paused),
            (Event::Pause, Stage::Paused),
            (Event::Cancel, Stage::Cancelled),
            (Event::Rate, Stage::Running),
            (Event::Undo, Stage::Undoing),
        ],
    ),
    (Stage::Settling, &[(Event::AllSettled, Stage::Done), (Event::Undo, Stage::Undoing)]),
    (
        Stage::Paused,
        &[
            (Event::Resume, Stage::Observing),
            (Event::Cancel, Stage::Cancelled),
            (Event::Rate, Stage::Paused),
            (Event::Undo, Stage::Undoing),
        ],
    ),
    (Stage::Undoing, &[(Event::Undone, Stage::Undone)]),
    (Stage::Done, &[(Event::Undo, Stage::Undoing)]),
    (Stage::Cancelled, &[(Event::Undo, Stage::Undoing)]),
    (Stage::Undone, &[]),
];

#[test]
fn the_stage_table_is_complete() {
    let plain = Rollout::default();
    let all = Rollout {
        canary: Some(Canary::Count(1)),
        rate: Some(1),
        ramp: Some(Span::from_secs(1)),
        ..Rollout::default()
    };
    assert_eq!(LEGAL.len(), Stage::ALL.len());
    for (from, wanted) in LEGAL {
        for event in Event::ALL {
            let leads = wanted.iter().find(|(by, _)| *by == event).map(|(_, to)| *to);
            assert_eq!(next_stage(*from, event, &all, Stage::Observing), leads, "{from} x {event:?}");
        }
    }
    // Stages that the rollout does not ask for are skipped.
    let next = |from, event| next_stage(from, event, &plain, Stage::Freezing);
    assert_eq!(next(Stage::Freezing, Event::Frozen), Some(Stage::Running));
    assert_eq!(next(Stage::Observing, Event::Observed), Some(Stage::Running));
}

#[test]
fn a_plain_operation_sends_all_at_once_and_ends_with_the_last_outcome() {
    let mut operation = redrive(3, Rollout::default());
    assert_eq!((operation.stage, operation.allowance(START).send), (Stage::Running, 3));
    assert_eq!(step(&mut operation, START), 3);
    assert_eq!((operation.stage, operation.outcomes.running), (Stage::Settling, 3));
    operation.record_settled(MemberOutcome::Succeeded, START);
    operation.record_settled(MemberOutcome::FailedSame, START);
    assert_eq!(operation.stage, Stage::Settling);
    operation.record_settled(MemberOutcome::FailedOther, after(1));
    assert_eq!((operation.stage, operation.finished_at), (Stage::Done, Some(after(1))));
    assert_eq!((operation.outcomes.sum(), operation.outcomes.success_percent()), (3, Some(33)));
    let nothing = redrive(0, Rollout { canary: Some(Canary::Count(5)), ..Rollout::default() });
    assert_eq!(nothing.stage, Stage::Done);
}

#[test]
fn a_canary_waits_for_its_outcomes_and_for_its_time() {
    let rollout = Rollout {
        canary: Some(Canary::Count(2)),
        observe: Span::from_secs(10),
        stop_at: Some(20),
        ..Rollout::default()
    };
    let mut operation = redrive(100, rollout);
    assert_eq!((operation.stage, step(&mut operation, START)), (Stage::Canary, 2));
    assert_eq!((operation.stage, step(&mut operation, after(60))), (Stage::Observing, 0), "no outcome yet");
    operation.record_settled(MemberOutcome::Succeeded, after(1));
    operation.record_settled(MemberOutcome::Succeeded, after(2));
    assert_eq!(step(&mut operation, after(9)), 0, "the observation time is not over");
    assert_eq!(operation.allowance(after(9)).next_in, Some(Span::from_secs(1)));
    assert_eq!(step(&mut operation, after(10)), 98);
    assert_eq!(operation.stage, Stage::Settling);
}

#[test]
fn a_canary_that_fails_again_halts_and_is_sent_again_on_resume() {
    let rollout = Rollout { canary: Some(Canary::Percent(10)), stop_at: Some(20), ..Rollout::default() };
    let mut operation = redrive(100, rollout);
    assert_eq!(step(&mut operation, START), 10);
    assert!(!operation.record_settled(MemberOutcome::FailedSame, START));
    assert!(!operation.record_settled(MemberOutcome::FailedSame, START), "two of ten are a fifth, not more");
    assert!(operation.record_settled(MemberOutcome::FailedSame, START));
    let halt = operation.halt.clone().unwrap();
    assert_eq!((operation.stage, halt.reason), (Stage::Paused, HaltReason::SameFailure));
    assert!(halt.text.starts_with("3 of 3 came back"), "{}", halt.text);
    for _ in 0..7 {
        assert!(!operation.record_settled(MemberOutcome::FailedSame, START), "it is halted already");
    }
    assert_eq!((step(&mut operation, after(99)), operation.allowance(after(99)).next_in), (0, None));
    assert_eq!(operation.outcomes.waiting, 90, "no other member is touched");
    operation.control(Control::Resume, &Actor::new("ada", "test"), after(99)).unwrap();
    assert_eq!((operation.stage, step(&mut operation, after(99))), (Stage::Canary, 10));
    for _ in 0..10 {
        operation.record_settled(MemberOutcome::Succeeded, after(100));
    }
    assert_eq!(step(&mut operation, after(100)), 80);
}

#[test]
fn few_failures_of_many_do_not_halt_but_one_of_one_does() {
    let rollout = |canary| Rollout { canary, stop_at: Some(20), ..Rollout::default() };
    let mut alone = redrive(100, rollout(Some(Canary::Count(1))));
    step(&mut alone, START);
    assert!(alone.record_settled(MemberOutcome::FailedSame, START));
    let mut many = redrive(100, Rollout { in_flight: Some(10), ..rollout(None) });
    step(&mut many, START);
    assert!(!many.record_settled(MemberOutcome::FailedSame, START));
    assert!(!many.record_settled(MemberOutcome::FailedOther, START), "another failure is not the same");
    assert!(!many.record_settled(MemberOutcome::FailedSame, START));
    assert!(many.record_settled(MemberOutcome::FailedSame, START));
    // When all members were sent there is nothing left to stop.
    let mut late = redrive(2, rollout(None));
    step(&mut late, START);
    assert!(!late.record_settled(MemberOutcome::FailedSame, START));
    assert_eq!(late.stage, Stage::Settling);
}

#[test]
fn a_full_queue_is_tried_again_and_an_open_breaker_halts() {
    let mut operation = redrive(5, Rollout { stop_on_breaker: true, ..Rollout::default() });
    operation.delay("queue q is full".into(), START);
    assert_eq!((operation.allowance(START).send, operation.stage), (0, Stage::Running));
    assert_eq!(operation.allowance(after(1)).send, 5);
    operation.record_acted(1, MemberOutcome::Running);
    assert_eq!(operation.delayed, None);
    assert!(operation.halt(HaltReason::BreakerOpen, "down".into(), START));
    assert!(!operation.halt(HaltReason::BreakerOpen, "down".into(), START), "it is halted already");
    operation.control(Control::Resume, &Actor::new("ada", "test"), START).unwrap();
    assert_eq!(operation.stage, Stage::Running);
}

#[test]
fn only_reversible_acts_are_undone() {
    let actor = Actor::new("ada", "test");
    let undo = |act: Act| {
        let mut operation = Operation::start(&spec(act, Rollout::default()), 1, START);
        operation.record_frozen(1, 1, true, START);
        operation.record_acted(1, MemberOutcome::Succeeded);
        operation.end_step(1, START);
        assert_eq!(operation.stage, Stage::Done);
        operation.control(Control::Undo, &actor, START).map(|()| operation.stage)
    };
    for act in [Act::Resolve, Act::Abandon, Act::Purge] {
        assert_eq!(undo(act), Ok(Stage::Undoing));
    }
    for act in [Act::Review, Act::Reopen, Act::retry()] {
        assert!(undo(act).unwrap_err().to_string().starts_with("undo:"));
    }
    let mut operation = redrive(9, Rollout { in_flight: Some(2), ..Rollout::default() });
    step(&mut operation, START);
    operation.control(Control::Cancel, &actor, START).unwrap();
    operation.control(Control::Undo, &actor, START).unwrap();
    assert_eq!((operation.stage, operation.finished_at), (Stage::Undoing, None));
    operation.record_settled(MemberOutcome::Undone, START);
    operation.record_undone(2, true, START);
    assert_eq!((operation.stage, operation.outcomes.undone), (Stage::Undone, 1));
    operation.record_settled(MemberOutcome::Succeeded, START);
    assert_eq!(operation.outcomes.sum(), 9, "a message that was leased already still gets its outcome");
    assert!(operation.control(Control::Undo, &actor, START).is_err());
}

#[test]
fn a_rollout_that_makes_no_sense_is_refused() {
    let retry = Act::Retry(Retry::default());
    let plain = Rollout::default();
    let ok = Rollout { rate: Some(5), ramp: Some(Span::from_secs(1)), ..plain.clone() };
    assert_eq!((ok.check(&retry), ok.check(&Act::Resolve)), (Ok(()), Ok(())));
    for (rollout, act, field) in [
        (Rollout { rate: Some(0), ..plain.clone() }, &retry, "rate"),
        (Rollout { rate: Some(2_000_000), ..plain.clone() }, &retry, "rate"),
        (Rollout { ramp: Some(Span::from_secs(1)), ..plain.clone() }, &retry, "ramp"),
        (Rollout { in_flight: Some(0), ..plain.clone() }, &retry, "in_flight"),
        (Rollout { stop_at: Some(101), ..plain.clone() }, &retry, "stop_at"),
        (Rollout { canary: Some(Canary::Percent(0)), ..plain.clone() }, &retry, "canary"),
        (Rollout { observe: Span::from_days(9_999), ..plain.clone() }, &retry, "observe"),
        (Rollout { canary: Some(Canary::Count(1)), ..plain.clone() }, &Act::Resolve, "pace"),
        (Rollout { stop_on_breaker: true, ..plain }, &Act::Purge, "pace"),
    ] {
        let refusal = rollout.check(act).unwrap_err().to_string();
        assert!(refusal.starts_with(&format!("{field}:")), "{refusal}");
    }
    for (text, canary) in [("10", Some(Canary::Count(10))), ("5%", Some(Canary::Percent(5)))] {
        assert_eq!(text.parse().ok(), canary);
        assert_eq!(canary.unwrap().to_string(), text);
    }
    for text in ["0", "0%", "101%", "", "ten", "-1", "%"] {
        assert!(text.parse::<Canary>().is_err(), "{text:?}");
    }
    assert_eq!(
        (Canary::Percent(1).size(10), Canary::Percent(50).size(3), Canary::Count(9).size(3)),
        (1, 2, 3)
    );
}

#[test]
fn an_estimate_includes_rate_ramp_and_observation() {
    let rollout = Rollout { rate: Some(100), ..Rollout::default() };
    assert_eq!(Rollout::default().estimate(1_000), None);
    assert_eq!(rollout.estimate(1_000), Some(Span::from_secs(10)));
    let ramp = Rollout { ramp: Some(Span::from_secs(4)), ..rollout.clone() };
    assert_eq!(ramp.estimate(1_000), Some(Span::from_millis(11_800)));
    let canary = Rollout { canary: Some(Canary::Count(1)), observe: Span::from_secs(60), ..rollout };
    assert_eq!(canary.estimate(1_000), Some(Span::from_secs(70)));
}

#[test]
fn a_token_is_for_one_act_filter_and_bound() {
    let key = crate::audit::AuditKey([7; 32]);
    let filter = |text: &str| Filter::parse(text).unwrap();
    let made = token(&key, &Act::Resolve, &filter("queue:q"), 7);
    assert_eq!(made, token(&key, &Act::Resolve, &filter("queue:q"), 7));
    for other in [
        token(&key, &Act::Abandon, &filter("queue:q"), 7),
        token(&key, &Act::Resolve, &filter("queue:r"), 7),
        token(&key, &Act::Resolve, &filter("queue:q"), 8),
        token(&crate::audit::AuditKey([8; 32]), &Act::Resolve, &filter("queue:q"), 7),
    ] {
        assert_ne!(made, other);
    }
}

proptest! {
    /// However often steps come: no window has more than the rate and one burst, a ramp never exceeds the full rate,
    /// and the number of running members stays within its limit.
    #[test]
    fn i37_the_rate_is_kept_however_often_steps_come(
        rate in 1_u32..5_000,
        ramp in proptest::option::of(0_u64..20),
        in_flight in proptest::option::of(1_u32..500),
        gaps in proptest::collection::vec((0_u64..2_000, 0_u64..100), 1..200),
    ) {
        let ramp = ramp.map(Span::from_secs);
        let rollout = Rollout { rate: Some(rate), ramp, in_flight, ..Rollout::default() };
        let mut operation = redrive(1_000_000, rollout);
        let (mut now, mut sent) = (START, Vec::new());
        for (gap, settle) in gaps {
            now = now.plus(Span::from_millis(gap));
            sent.push((now, step(&mut operation, now)));
            for _ in 0..settle.min(operation.outcomes.running) {
                operation.record_settled(MemberOutcome::Succeeded, now);
            }
            prop_assert!(in_flight.is_none_or(|most| operation.outcomes.running <= u64::from(most)));
            prop_assert_eq!(operation.outcomes.sum(), operation.members);
        }
        let burst = (u64::from(rate) / 2).max(1);
        for (n, (from, _)) in sent.iter().enumerate() {
            let mut total = 0;
            for (to, count) in &sent[n..] {
                total += count;
                let time = to.since(*from).as_millis();
                prop_assert!(total * 1_000 <= u64::from(rate) * time + (burst + 1) * 1_000);
            }
        }
    }

    #[test]
    fn i37_stepping_when_asked_keeps_up_with_the_rate(rate in 1_u32..3_000, members in 1_u64..5_000) {
        let mut operation = redrive(members, Rollout { rate: Some(rate), ..Rollout::default() });
        let (mut now, mut steps) = (START, 0_u64);
        while operation.stage == Stage::Running {
            step(&mut operation, now);
            now = now.plus(operation.allowance(now).next_in.unwrap());
            steps += 1;
            prop_assert!(steps < 20_000, "it does not end");
        }
        let took = now.since(START).as_millis();
        prop_assert!(took <= members * 1_000 / u64::from(rate) + 1_500, "{members} at {rate}/s took {took} ms");
        prop_assert!(steps <= took / 50 + members.min(u64::from(rate)) + 10, "{steps} steps in {took} ms");
    }

    /// After any sequence of events the counters are the sum of the members, and a halted operation sends nothing.
    #[test]
    fn i36_counters_are_the_sum_of_outcomes(
        canary in proptest::option::of(1_u64..5),
        stop_at in proptest::option::of(0_u8..100),
        in_flight in proptest::option::of(1_u32..5),
        members in 0_u64..40,
        events in proptest::collection::vec(0_u8..12, 0..200),
    ) {
        let canary = canary.map(Canary::Count);
        let rollout = Rollout { canary, stop_at, in_flight, rate: Some(7), ..Rollout::default() };
        let mut operation = redrive(members, rollout);
        let (mut now, actor) = (START, Actor::new("ada", "test"));
        for event in events {
            let before = operation.clone();
            now = now.plus(Span::from_millis(300));
            match event {
                0..=3 => drop(step(&mut operation, now)),
                4..=7 if operation.outcomes.running > 0 => {
                    let outcomes = [
                        MemberOutcome::Succeeded,
                        MemberOutcome::FailedSame,
                        MemberOutcome::FailedOther,
                        MemberOutcome::Undone,
                    ];
                    operation.record_settled(outcomes[usize::from(event - 4)], now);
                }
                8 => drop(operation.control(Control::Pause, &actor, now)),
                9 => drop(operation.control(Control::Resume, &actor, now)),
                10 => drop(operation.control(Control::Rate(Some(50)), &actor, now)),
                _ => drop(operation.halt(HaltReason::BreakerOpen, String::new(), now)),
            }
            let (outcomes, was) = (operation.outcomes, before.outcomes);
            prop_assert_eq!(outcomes.sum(), members);
            prop_assert!(outcomes.sent() >= was.sent());
            if before.stage == Stage::Paused && event < 8 {
                prop_assert_eq!(outcomes.sent(), was.sent(), "a halted operation sends nothing");
            }
            prop_assert_eq!(operation.stage.is_over(), operation.finished_at.is_some());
            let text = serde_json::to_string(&operation).unwrap();
            prop_assert_eq!(serde_json::from_str::<Operation>(&text).unwrap(), operation.clone());
        }
    }
}
