//! The full table: every state times every command, each cell checked.

use super::*;
use crate::error::Refusal;
use crate::failure::Reason;
use crate::ids::{MessageId, Secret};
use crate::policy::Verdict;
use crate::progress::Progress;
use crate::time::{Span, Time};

const NOW: Time = Time::from_millis(100_000);
const RIGHT: Secret = Secret::new([1; 16]);
const WRONG: Secret = Secret::new([2; 16]);

fn id() -> MessageId {
    MessageId::new(1, [0; 10])
}

fn lease(expires_at: Time) -> Lease {
    Lease {
        secret: RIGHT,
        worker: "w".into(),
        granted_at: Time::from_millis(90_000),
        expires_at,
        permit: None,
    }
}

fn lifecycle(phase: Phase, ready_at: Time) -> Lifecycle {
    Lifecycle { phase, attempts: 1, deliveries: 3, ..Lifecycle::new(ready_at, Time::from_millis(1)) }
}

/// A lifecycle in every state, with separate ones for a live and an expired lease.
fn lifecycles() -> Vec<(&'static str, Lifecycle)> {
    let past = Time::from_millis(50_000);
    let live = NOW.plus(Span::from_secs(30));
    vec![
        ("scheduled", lifecycle(Phase::Waiting, NOW.plus(Span::from_secs(1)))),
        ("ready", lifecycle(Phase::Waiting, NOW)),
        ("leased", lifecycle(Phase::Leased(lease(live)), past)),
        ("lease-expired", lifecycle(Phase::Leased(lease(NOW)), past)),
        ("dead", lifecycle(Phase::Dead, past)),
        ("done", lifecycle(Phase::Over(Final::Done), past)),
        ("cancelled", lifecycle(Phase::Over(Final::Cancelled), past)),
        ("expired", lifecycle(Phase::Over(Final::Expired), past)),
        ("purged", lifecycle(Phase::Over(Final::Purged), past)),
    ]
}

fn commands() -> Vec<(&'static str, Command)> {
    let retry = Verdict::Retry { at: NOW.plus(Span::from_secs(5)) };
    let die = Verdict::Dead { reason: Reason::MaxAttempts };
    let lease_for = Span::from_secs(60);
    let back = |secret| Command::GiveBack { secret, until: None, max_attempts: 5 };
    vec![
        ("lease", Command::Lease { secret: WRONG, worker: "w2".into(), lease_for, permit: None }),
        ("ack", Command::Ack { secret: RIGHT }),
        ("ack-wrong", Command::Ack { secret: WRONG }),
        ("fail-retry", Command::Fail { secret: RIGHT, verdict: retry }),
        ("fail-dead", Command::Fail { secret: RIGHT, verdict: die }),
        ("fail-drop", Command::Fail { secret: RIGHT, verdict: Verdict::Drop }),
        ("fail-wrong", Command::Fail { secret: WRONG, verdict: die }),
        ("release", back(RIGHT)),
        ("release-wrong", back(WRONG)),
        ("extend", Command::Extend { secret: RIGHT, lease_for, progress: None }),
        ("extend-wrong", Command::Extend { secret: WRONG, lease_for, progress: None }),
        ("lose", Command::LoseLease { verdict: retry }),
        ("time-out", Command::TimeOut { verdict: die }),
        ("cancel", Command::Cancel),
        ("purge", Command::Purge),
        ("redrive", Command::Redrive { at: NOW }),
        ("undo", Command::UndoRedrive),
    ]
}

/// What a cell of the table must hold: the state afterwards, or how it is refused.
fn expected(state: &str, command: &str) -> &'static str {
    match (state, command) {
        ("ready", "lease") => "leased",
        ("scheduled" | "ready", "time-out") | ("leased", "fail-dead") => "dead",
        ("scheduled" | "ready", "cancel") => "cancelled",
        ("scheduled" | "ready" | "dead", "purge") => "purged",
        ("leased", "ack") => "done",
        ("leased", "fail-retry") | ("lease-expired", "lose") => "scheduled",
        ("leased", "fail-drop") => "expired",
        ("leased", "release") | ("dead", "redrive") => "ready",
        ("leased", "extend") => "leased",
        ("lease-expired", "ack" | "fail-retry" | "fail-dead" | "fail-drop" | "release" | "extend") => {
            "too late"
        }
        (
            _,
            "ack" | "ack-wrong" | "fail-retry" | "fail-dead" | "fail-drop" | "fail-wrong" | "release"
            | "release-wrong" | "extend" | "extend-wrong",
        ) => "stale",
        (_, _) => "wrong state",
    }
}

#[test]
fn i12_every_state_times_every_command_is_as_the_table_says() {
    let mut cells = 0;
    for (state, lifecycle) in lifecycles() {
        for (name, command) in commands() {
            let got = match transition(id(), &lifecycle, &command, NOW) {
                Ok(t) => t.next.state(NOW).name(),
                Err(Refusal::StaleToken { .. }) => "stale",
                Err(Refusal::LeaseExpired { .. }) => "too late",
                Err(Refusal::WrongState { .. }) => "wrong state",
                Err(other) => panic!("{state} x {name}: {other}"),
            };
            assert_eq!(got, expected(state, name), "{state} x {name}");
            cells += 1;
        }
    }
    assert_eq!(cells, 9 * 17);
}

#[test]
fn i18_i24_only_a_lease_counts_a_delivery_and_none_takes_one_back() {
    for (state, lifecycle) in lifecycles() {
        for (name, command) in commands() {
            let Ok(t) = transition(id(), &lifecycle, &command, NOW) else { continue };
            let granted = u32::from(name == "lease");
            assert_eq!(t.next.deliveries, lifecycle.deliveries + granted, "{state} x {name}");
        }
    }
}

#[test]
fn i20_extend_never_shortens() {
    let far = lifecycle(Phase::Leased(lease(NOW.plus(Span::from_hours(1)))), NOW);
    let extend = Command::Extend { secret: RIGHT, lease_for: Span::from_secs(1), progress: None };
    let next = transition(id(), &far, &extend, NOW).unwrap().next;
    assert_eq!(next.lease().unwrap().expires_at, NOW.plus(Span::from_hours(1)));
}

#[test]
fn progress_survives_every_later_command() {
    let progress_so_far = Progress::new(3, Some(9), "unpacking");
    let l = lifecycle(Phase::Leased(lease(NOW.plus(Span::from_secs(9)))), NOW);
    let report =
        Command::Extend { secret: RIGHT, lease_for: Span::ZERO, progress: Some(progress_so_far.clone()) };
    let reported = transition(id(), &l, &report, NOW).unwrap().next;
    let plain = Command::Extend { secret: RIGHT, lease_for: Span::ZERO, progress: None };
    let retry = Verdict::Retry { at: NOW };
    let dead = Verdict::Dead { reason: Reason::MaxAttempts };
    for next in [
        plain,
        Command::GiveBack { secret: RIGHT, until: None, max_attempts: 5 },
        Command::Fail { secret: RIGHT, verdict: retry },
        Command::Fail { secret: RIGHT, verdict: dead },
    ] {
        let after = transition(id(), &reported, &next, NOW).unwrap().next;
        assert_eq!(after.progress, Some(progress_so_far.clone()), "{next:?}");
        if let Ok(revived) = transition(id(), &after, &Command::Redrive { at: NOW }, NOW) {
            assert_eq!(revived.next.progress, Some(progress_so_far.clone()));
        }
    }
}

#[test]
fn giving_back_is_free_a_hundred_times_and_then_counts() {
    let mut l = lifecycle(Phase::Waiting, NOW);
    l.attempts = 0;
    let mut rounds = 0;
    let reason = loop {
        l = transition(
            id(),
            &l,
            &Command::Lease {
                secret: RIGHT,
                worker: "w".into(),
                lease_for: Span::from_secs(30),
                permit: None,
            },
            NOW,
        )
        .unwrap()
        .next;
        let t = transition(id(), &l, &Command::GiveBack { secret: RIGHT, until: None, max_attempts: 3 }, NOW)
            .unwrap();
        rounds += 1;
        match t.effect {
            Effect::GivenBack => assert_eq!(t.next.attempts, 0),
            Effect::Retried => assert!(t.next.attempts > 0),
            Effect::Died(reason) => break reason,
            other @ (Effect::Granted
            | Effect::Extended
            | Effect::Ended(_)
            | Effect::Revived
            | Effect::PulledBack) => panic!("{other:?}"),
        }
        assert!(rounds < 1_000);
        l = t.next;
    };
    assert_eq!((rounds, reason), (103, Reason::MaxAttempts));
}

#[test]
fn a_redrive_starts_a_generation_and_keeps_the_lifetime_numbers() {
    let mut l = lifecycle(Phase::Dead, NOW);
    l.failed = 5;
    l.failing_since = Some(NOW);
    let t = transition(id(), &l, &Command::Redrive { at: Time::ZERO }, NOW).unwrap();
    assert_eq!((t.next.generation, t.next.attempts, t.next.deliveries, t.next.failed), (2, 0, 3, 5));
    assert_eq!((t.next.failing_since, t.next.ready_at), (None, NOW));
    let undone = transition(id(), &t.next, &Command::UndoRedrive, NOW).unwrap();
    assert_eq!((undone.next.generation, undone.effect), (1, Effect::PulledBack));
}

#[test]
fn a_redriven_message_ends_only_by_success_because_its_letter_is_open() {
    let mut waiting = lifecycle(Phase::Waiting, NOW);
    waiting.generation = 2;
    for command in [Command::Cancel, Command::Purge, Command::TimeOut { verdict: Verdict::Drop }] {
        let refused = transition(id(), &waiting, &command, NOW).unwrap_err();
        assert!(matches!(refused, Refusal::WrongState { .. }), "{refused}");
    }
    let mut leased = lifecycle(Phase::Leased(lease(NOW.plus(Span::from_secs(9)))), NOW);
    leased.generation = 2;
    let done = transition(id(), &leased, &Command::Ack { secret: RIGHT }, NOW).unwrap();
    assert_eq!(done.effect, Effect::Ended(Final::Done));
    let dropped = Command::Fail { secret: RIGHT, verdict: Verdict::Drop };
    assert!(transition(id(), &leased, &dropped, NOW).is_err());
}

#[test]
fn a_failure_is_counted_and_dated_once_per_generation() {
    let l = lifecycle(Phase::Leased(lease(NOW.plus(Span::from_secs(9)))), NOW);
    let retry = Verdict::Retry { at: NOW.plus(Span::from_secs(5)) };
    let t = transition(id(), &l, &Command::Fail { secret: RIGHT, verdict: retry }, NOW).unwrap();
    assert_eq!((t.next.failed, t.next.failing_since), (1, Some(NOW)));
    assert_eq!(t.next.last_delay, Some(Span::from_secs(5)));
}
