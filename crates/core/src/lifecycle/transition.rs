//! The only code that decides the next state of a message. It is pure and exhaustive: a pair of state and command
//! that is not legal ends in a [`Refusal`] that names both, and no wildcard arm can hide a forgotten pair. The tests
//! beside it list the result of every pair.

use super::command::{Command, Effect, Transition};
use super::state::{Final, Lease, Lifecycle, Phase};
use crate::error::Refusal;
use crate::failure::Reason;
use crate::ids::{MessageId, Secret};
use crate::poison::Indicators;
use crate::policy::Verdict;
use crate::time::Time;

/// Applies a command to a lifecycle at `now` and returns the next lifecycle.
///
/// # Errors
/// Returns a [`Refusal`] if the command is illegal in this state, or if the secret is not that of the live
/// lease. The message does not change then (I17).
pub fn transition(
    id: MessageId,
    lifecycle: &Lifecycle,
    command: &Command,
    now: Time,
) -> Result<Transition, Refusal> {
    let transition = match &lifecycle.phase {
        Phase::Waiting => from_waiting(id, lifecycle, command, now),
        Phase::Leased(lease) => from_leased(id, lifecycle, lease, command, now),
        Phase::Dead => return from_dead(id, lifecycle, command, now),
        Phase::Over(_) => return Err(refuse(id, lifecycle, command, now)),
    }?;
    // The letter of a redriven message is still open, and only success closes it.
    match transition.effect {
        Effect::Ended(Final::Cancelled | Final::Purged | Final::Expired) if lifecycle.generation > 1 => {
            let (state, command) = (lifecycle.state(now), command.name().into());
            Err(Refusal::WrongState { id, state, command })
        }
        Effect::Ended(_)
        | Effect::Granted
        | Effect::Retried
        | Effect::GivenBack
        | Effect::Extended
        | Effect::Died(_)
        | Effect::Revived
        | Effect::PulledBack => Ok(transition),
    }
}

/// The refusal of an illegal pair. A worker that settles or extends a message it no longer holds is always refused
/// with [`Refusal::StaleToken`]: the worker must not learn more about the message, and must not try again.
fn refuse(id: MessageId, lifecycle: &Lifecycle, command: &Command, now: Time) -> Refusal {
    match command {
        Command::Ack { .. } | Command::Fail { .. } | Command::GiveBack { .. } | Command::Extend { .. } => {
            Refusal::StaleToken { id }
        }
        Command::Lease { .. }
        | Command::LoseLease { .. }
        | Command::TimeOut { .. }
        | Command::Cancel
        | Command::Purge
        | Command::Redrive { .. }
        | Command::UndoRedrive => {
            Refusal::WrongState { id, state: lifecycle.state(now), command: command.name().into() }
        }
    }
}

fn from_waiting(
    id: MessageId,
    lifecycle: &Lifecycle,
    command: &Command,
    now: Time,
) -> Result<Transition, Refusal> {
    match command {
        Command::Lease { secret, worker, lease_for, permit } if lifecycle.ready_at <= now => {
            let (worker, expires_at) = (worker.clone(), now.plus(*lease_for));
            let lease = Lease { secret: *secret, worker, granted_at: now, expires_at, permit: *permit };
            Ok(grant(lifecycle, lease, now))
        }
        Command::TimeOut { verdict } => Ok(apply_verdict(lifecycle, *verdict, now)),
        Command::Cancel => Ok(finish_as(lifecycle, Final::Cancelled, now)),
        Command::Purge => Ok(finish_as(lifecycle, Final::Purged, now)),
        Command::UndoRedrive if lifecycle.generation > 1 && lifecycle.attempts == 0 => {
            let mut next = to_dead(lifecycle, now);
            next.generation -= 1;
            Ok(Transition { next, effect: Effect::PulledBack })
        }
        Command::Lease { .. }
        | Command::Ack { .. }
        | Command::Fail { .. }
        | Command::GiveBack { .. }
        | Command::Extend { .. }
        | Command::LoseLease { .. }
        | Command::Redrive { .. }
        | Command::UndoRedrive => Err(refuse(id, lifecycle, command, now)),
    }
}

fn from_leased(
    id: MessageId,
    lifecycle: &Lifecycle,
    lease: &Lease,
    command: &Command,
    now: Time,
) -> Result<Transition, Refusal> {
    let check = |secret: &Secret| check_lease(id, lease, *secret, now);
    match command {
        Command::Ack { secret } => check(secret).map(|()| finish_as(lifecycle, Final::Done, now)),
        Command::Fail { secret, verdict } => {
            check(secret).map(|()| apply_verdict(&count_failure(lifecycle, now), *verdict, now))
        }
        Command::GiveBack { secret, until, max_attempts } => {
            check(secret).map(|()| give_back(lifecycle, *until, *max_attempts, now))
        }
        Command::Extend { secret, lease_for, progress } => check(secret).map(|()| {
            let longer = Lease { expires_at: lease.expires_at.max(now.plus(*lease_for)), ..lease.clone() };
            let mut next = Lifecycle { phase: Phase::Leased(longer), updated_at: now, ..lifecycle.clone() };
            if progress.is_some() {
                next.progress.clone_from(progress);
            }
            Transition { next, effect: Effect::Extended }
        }),
        Command::LoseLease { verdict } if lease.expires_at <= now => {
            Ok(apply_verdict(&count_failure(lifecycle, now), *verdict, now))
        }
        Command::Lease { .. }
        | Command::LoseLease { .. }
        | Command::TimeOut { .. }
        | Command::Cancel
        | Command::Purge
        | Command::Redrive { .. }
        | Command::UndoRedrive => Err(refuse(id, lifecycle, command, now)),
    }
}

fn from_dead(
    id: MessageId,
    lifecycle: &Lifecycle,
    command: &Command,
    now: Time,
) -> Result<Transition, Refusal> {
    match command {
        Command::Redrive { at } => {
            let next = Lifecycle {
                phase: Phase::Waiting,
                ready_at: (*at).max(now),
                attempts: 0,
                generation: lifecycle.generation.saturating_add(1),
                given_back: 0,
                failing_since: None,
                last_delay: None,
                updated_at: now,
                indicators: Indicators::default(),
                ..lifecycle.clone()
            };
            Ok(Transition { next, effect: Effect::Revived })
        }
        Command::Purge => Ok(finish_as(lifecycle, Final::Purged, now)),
        Command::Lease { .. }
        | Command::Ack { .. }
        | Command::Fail { .. }
        | Command::GiveBack { .. }
        | Command::Extend { .. }
        | Command::LoseLease { .. }
        | Command::TimeOut { .. }
        | Command::Cancel
        | Command::UndoRedrive => Err(refuse(id, lifecycle, command, now)),
    }
}

/// Checks that this secret belongs to the lease and that the lease has not expired (I17, I20, I22).
fn check_lease(id: MessageId, lease: &Lease, secret: Secret, now: Time) -> Result<(), Refusal> {
    if lease.secret != secret {
        return Err(Refusal::StaleToken { id });
    }
    if lease.expires_at <= now {
        return Err(Refusal::LeaseExpired { id, expired_at: lease.expires_at });
    }
    Ok(())
}

fn grant(lifecycle: &Lifecycle, lease: Lease, now: Time) -> Transition {
    let next = Lifecycle {
        phase: Phase::Leased(lease),
        attempts: lifecycle.attempts.saturating_add(1),
        deliveries: lifecycle.deliveries.saturating_add(1),
        first_received_at: lifecycle.first_received_at.or(Some(now)),
        updated_at: now,
        ..lifecycle.clone()
    };
    Transition { next, effect: Effect::Granted }
}

/// Counts one more failed delivery.
fn count_failure(lifecycle: &Lifecycle, now: Time) -> Lifecycle {
    Lifecycle {
        failed: lifecycle.failed.saturating_add(1),
        failing_since: lifecycle.failing_since.or(Some(now)),
        ..lifecycle.clone()
    }
}

fn apply_verdict(lifecycle: &Lifecycle, verdict: Verdict, now: Time) -> Transition {
    match verdict {
        Verdict::Retry { at } => {
            let next = Lifecycle {
                phase: Phase::Waiting,
                ready_at: at,
                last_delay: Some(at.since(now)),
                updated_at: now,
                ..lifecycle.clone()
            };
            Transition { next, effect: Effect::Retried }
        }
        Verdict::Dead { reason } => {
            Transition { next: to_dead(lifecycle, now), effect: Effect::Died(reason) }
        }
        Verdict::Drop => finish_as(lifecycle, Final::Expired, now),
    }
}

/// Returns a message to its queue. The first [`GIVE_BACKS_MAX`](crate::limits::GIVE_BACKS_MAX) times this costs no
/// attempt. After that it does, and a message without attempts left dies. `judge` is not asked, because the handler did
/// not fail; the store records the lost attempt in the letter's history.
fn give_back(lifecycle: &Lifecycle, until: Option<Time>, max_attempts: u32, now: Time) -> Transition {
    let free = lifecycle.can_give_back();
    if !free && lifecycle.attempts >= max_attempts {
        return Transition { next: to_dead(lifecycle, now), effect: Effect::Died(Reason::MaxAttempts) };
    }
    let next = Lifecycle {
        phase: Phase::Waiting,
        ready_at: until.map_or(lifecycle.ready_at, |t| t.max(now)),
        attempts: if free { lifecycle.attempts.saturating_sub(1) } else { lifecycle.attempts },
        given_back: lifecycle.given_back.saturating_add(u32::from(free)),
        updated_at: now,
        ..lifecycle.clone()
    };
    Transition { next, effect: if free { Effect::GivenBack } else { Effect::Retried } }
}

fn to_dead(lifecycle: &Lifecycle, now: Time) -> Lifecycle {
    Lifecycle { phase: Phase::Dead, updated_at: now, ..lifecycle.clone() }
}

fn finish_as(lifecycle: &Lifecycle, final_state: Final, now: Time) -> Transition {
    let next = Lifecycle { phase: Phase::Over(final_state), updated_at: now, ..lifecycle.clone() };
    Transition { next, effect: Effect::Ended(final_state) }
}
