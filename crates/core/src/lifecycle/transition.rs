//! The only place where the state of a message changes: pure and exhaustive. A pair that is not listed as
//! legal is a refusal that names both halves; there is no wildcard arm to hide one in.

use super::command::{Command, Effect, Transition};
use super::state::{Final, Lease, Life, Phase};
use crate::error::Refusal;
use crate::failure::Reason;
use crate::ids::{MessageId, Secret};
use crate::poison::Indicators;
use crate::policy::Verdict;
use crate::time::Time;

/// Applies one command to one life at one instant.
///
/// # Errors
/// A [`Refusal`] when the pair is illegal or the token is not of the live lease; nothing changes then (I17).
pub fn transition(id: MessageId, life: &Life, command: &Command, now: Time) -> Result<Transition, Refusal> {
    match &life.phase {
        Phase::Waiting => from_waiting(id, life, command, now),
        Phase::Leased(lease) => from_leased(id, life, lease, command, now),
        Phase::Dead => from_dead(id, life, command, now),
        Phase::Over(_) => Err(refuse(id, life, command, now)),
    }
}

/// The refusal of an illegal pair. A worker's verb on a message it no longer holds is always a stale token:
/// the worker must not learn more, and must not be told to try again.
fn refuse(id: MessageId, life: &Life, command: &Command, now: Time) -> Refusal {
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
            Refusal::WrongState { id, state: life.state(now), command: command.name().into() }
        }
    }
}

fn from_waiting(id: MessageId, life: &Life, command: &Command, now: Time) -> Result<Transition, Refusal> {
    match command {
        Command::Lease { secret, worker, lease_for, permit } if life.ready_at <= now => {
            let (worker, expires_at) = (worker.clone(), now.plus(*lease_for));
            let lease = Lease { secret: *secret, worker, granted_at: now, expires_at, permit: *permit };
            Ok(grant(life, lease, now))
        }
        Command::TimeOut { verdict } => Ok(judged(life, *verdict, now)),
        Command::Cancel => Ok(end(life, Final::Cancelled, now)),
        Command::Purge => Ok(end(life, Final::Purged, now)),
        Command::UndoRedrive if life.generation > 1 && life.attempts == 0 => {
            let mut next = dead(life, now);
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
        | Command::UndoRedrive => Err(refuse(id, life, command, now)),
    }
}

fn from_leased(
    id: MessageId,
    life: &Life,
    lease: &Lease,
    command: &Command,
    now: Time,
) -> Result<Transition, Refusal> {
    let holder = |secret: &Secret| holds(id, lease, *secret, now);
    match command {
        Command::Ack { secret } => holder(secret).map(|()| end(life, Final::Done, now)),
        Command::Fail { secret, verdict } => {
            holder(secret).map(|()| judged(&failed(life, now), *verdict, now))
        }
        Command::GiveBack { secret, until, max_attempts } => {
            holder(secret).map(|()| give_back(life, *until, *max_attempts, now))
        }
        Command::Extend { secret, lease_for, progress } => holder(secret).map(|()| {
            let longer = Lease { expires_at: lease.expires_at.max(now.plus(*lease_for)), ..lease.clone() };
            let mut next = Life { phase: Phase::Leased(longer), updated_at: now, ..life.clone() };
            if progress.is_some() {
                next.progress.clone_from(progress);
            }
            Transition { next, effect: Effect::Extended }
        }),
        Command::LoseLease { verdict } if lease.expires_at <= now => {
            Ok(judged(&failed(life, now), *verdict, now))
        }
        Command::Lease { .. }
        | Command::LoseLease { .. }
        | Command::TimeOut { .. }
        | Command::Cancel
        | Command::Purge
        | Command::Redrive { .. }
        | Command::UndoRedrive => Err(refuse(id, life, command, now)),
    }
}

fn from_dead(id: MessageId, life: &Life, command: &Command, now: Time) -> Result<Transition, Refusal> {
    match command {
        Command::Redrive { at } => {
            let next = Life {
                phase: Phase::Waiting,
                ready_at: (*at).max(now),
                attempts: 0,
                generation: life.generation.saturating_add(1),
                given_back: 0,
                failing_since: None,
                last_delay: None,
                updated_at: now,
                indicators: Indicators::default(),
                ..life.clone()
            };
            Ok(Transition { next, effect: Effect::Revived })
        }
        Command::Purge => Ok(end(life, Final::Purged, now)),
        Command::Lease { .. }
        | Command::Ack { .. }
        | Command::Fail { .. }
        | Command::GiveBack { .. }
        | Command::Extend { .. }
        | Command::LoseLease { .. }
        | Command::TimeOut { .. }
        | Command::Cancel
        | Command::UndoRedrive => Err(refuse(id, life, command, now)),
    }
}

/// Whether this secret is of the live lease: the right one, and not too late (I17, I20, I22).
fn holds(id: MessageId, lease: &Lease, secret: Secret, now: Time) -> Result<(), Refusal> {
    if lease.secret != secret {
        return Err(Refusal::StaleToken { id });
    }
    if lease.expires_at <= now {
        return Err(Refusal::LeaseExpired { id, expired_at: lease.expires_at });
    }
    Ok(())
}

fn grant(life: &Life, lease: Lease, now: Time) -> Transition {
    let next = Life {
        phase: Phase::Leased(lease),
        attempts: life.attempts.saturating_add(1),
        deliveries: life.deliveries.saturating_add(1),
        first_received_at: life.first_received_at.or(Some(now)),
        updated_at: now,
        ..life.clone()
    };
    Transition { next, effect: Effect::Granted }
}

/// One more failed delivery on the record.
fn failed(life: &Life, now: Time) -> Life {
    Life {
        failed: life.failed.saturating_add(1),
        failing_since: life.failing_since.or(Some(now)),
        ..life.clone()
    }
}

fn judged(life: &Life, verdict: Verdict, now: Time) -> Transition {
    match verdict {
        Verdict::Retry { at } => {
            let next = Life {
                phase: Phase::Waiting,
                ready_at: at,
                last_delay: Some(at.since(now)),
                updated_at: now,
                ..life.clone()
            };
            Transition { next, effect: Effect::Retried }
        }
        Verdict::Dead { reason } => Transition { next: dead(life, now), effect: Effect::Died(reason) },
        Verdict::Drop => end(life, Final::Expired, now),
    }
}

fn give_back(life: &Life, until: Option<Time>, max_attempts: u32, now: Time) -> Transition {
    let free = life.can_give_back();
    if !free && life.attempts >= max_attempts {
        return Transition { next: dead(life, now), effect: Effect::Died(Reason::MaxAttempts) };
    }
    let next = Life {
        phase: Phase::Waiting,
        ready_at: until.map_or(life.ready_at, |t| t.max(now)),
        attempts: if free { life.attempts.saturating_sub(1) } else { life.attempts },
        given_back: life.given_back.saturating_add(u32::from(free)),
        updated_at: now,
        ..life.clone()
    };
    Transition { next, effect: if free { Effect::GivenBack } else { Effect::Retried } }
}

fn dead(life: &Life, now: Time) -> Life {
    Life { phase: Phase::Dead, updated_at: now, ..life.clone() }
}

fn end(life: &Life, how: Final, now: Time) -> Transition {
    let next = Life { phase: Phase::Over(how), updated_at: now, ..life.clone() };
    Transition { next, effect: Effect::Ended(how) }
}
