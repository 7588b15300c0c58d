//! How fast an operation runs and when it halts by itself: a canary, a time to observe it, a ramp, a rate, and a limit
//! on running members. [`Operation::allowance`] alone decides how many members may be sent now and when to step next.
//! It is a pure function of the recorded state and the time, so no caller can send more than that by stepping more
//! often.

use super::{Operation, Stage};
use crate::dead_letter::Act;
use crate::error::Refusal;
use crate::ids::serde_as_text;
use crate::limits;
use crate::message::check_span;
use crate::time::{Span, Time};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// The members that are sent first, ahead of all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// A number of members.
    Count(u64),
    /// A percentage of the members, rounded up.
    Percent(u8),
}

impl Canary {
    /// The size of the canary in an operation with this many members.
    #[must_use]
    pub fn size(self, members: u64) -> u64 {
        match self {
            Self::Count(count) => count.min(members),
            Self::Percent(percent) => members.saturating_mul(u64::from(percent)).div_ceil(100).min(members),
        }
    }
}

impl fmt::Display for Canary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

impl FromStr for Canary {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is neither a number such as 10 nor a percentage such as 5%");
        let canary = match text.strip_suffix('%') {
            Some(percent) => Self::Percent(percent.trim().parse().map_err(|_| wrong())?),
            None => Self::Count(text.trim().parse().map_err(|_| wrong())?),
        };
        match canary {
            Self::Count(1..) | Self::Percent(1..=100) => Ok(canary),
            Self::Count(_) | Self::Percent(_) => Err(wrong()),
        }
    }
}
serde_as_text!(Canary);

/// How fast and how carefully an operation runs. By default nothing limits its speed, and only an operator halts it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rollout {
    /// Send this many first, and the others only after these have an outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
    /// The minimum time to observe the canary.
    #[serde(default, rename = "observe_ms")]
    pub observe: Span,
    /// The maximum number of members per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u32>,
    /// The time in which the rate rises from a tenth to its full value.
    #[serde(default, rename = "ramp_ms", skip_serializing_if = "Option::is_none")]
    pub ramp: Option<Span>,
    /// The maximum number of members that may be running at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u32>,
    /// Halt when more than this percentage of the settled members died again of the failure they had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_at: Option<u8>,
    /// Halt when the breaker of a member is open.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stop_on_breaker: bool,
}

impl Rollout {
    /// Refuses values out of range, and settings that make no sense for this act: only a retried message has an outcome
    /// to observe.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] naming the field.
    pub fn check(&self, act: &Act) -> Result<(), Refusal> {
        check_rate(self.rate)?;
        if self.in_flight == Some(0) {
            return Err(Refusal::invalid("in_flight", "must be at least 1, or nothing is ever sent"));
        }
        if self.stop_at.is_some_and(|percent| percent > 100) {
            return Err(Refusal::invalid("stop_at", "must be a percentage from 0 to 100"));
        }
        match self.canary {
            Some(Canary::Count(0) | Canary::Percent(0 | 101..)) => {
                return Err(Refusal::invalid("canary", "must be at least 1, or 1% to 100%"));
            }
            Some(Canary::Count(_) | Canary::Percent(_)) | None => {}
        }
        check_span("observe", self.observe, Span::ZERO, limits::SPAN_MAX)?;
        if let Some(ramp) = self.ramp {
            check_span("ramp", ramp, Span::ZERO, limits::SPAN_MAX)?;
            if self.rate.is_none() {
                return Err(Refusal::invalid("ramp", "a ramp leads up to a rate; give one"));
            }
        }
        let watches = self.canary.is_some()
            || self.observe > Span::ZERO
            || self.in_flight.is_some()
            || self.stop_at.is_some()
            || self.stop_on_breaker;
        if watches && !matches!(act, Act::Retry(_)) {
            let reason = format!(
                "{} has no outcome to wait for; canary, observe, in_flight and the stop settings are for retry",
                act.name()
            );
            return Err(Refusal::invalid("pace", reason));
        }
        Ok(())
    }

    /// How long `count` members take with this rollout if the canary succeeds at once, or `None` without a rate.
    #[must_use]
    pub fn estimate(&self, count: u64) -> Option<Span> {
        let rate = u64::from(self.rate?.max(1));
        let observing = if self.canary.is_some() { self.observe } else { Span::ZERO };
        let steady = count.saturating_mul(1_000).div_ceil(rate);
        // A ramp runs at 55% of the rate on average, and never below a tenth.
        let ramp = self.ramp.unwrap_or(Span::ZERO).as_millis();
        let lost = (ramp.saturating_mul(45) / 100).min(steady.saturating_mul(9));
        Some(Span::from_millis(steady.saturating_add(lost).saturating_add(observing.as_millis())))
    }
}

/// Refuses a rate of zero, and one that no store can keep up with.
///
/// # Errors
/// [`Refusal::Invalid`] naming the field.
pub fn check_rate(rate: Option<u32>) -> Result<(), Refusal> {
    match rate {
        Some(0) => Err(Refusal::invalid("rate", "at least 1 per second; to send nothing, pause")),
        Some(rate) if rate > limits::OPERATION_RATE_MAX => {
            let max = limits::OPERATION_RATE_MAX;
            Err(Refusal::invalid("rate", format!("at most {max} per second; leave it out for no limit")))
        }
        Some(_) | None => Ok(()),
    }
}

/// How much of the rate may be made up for at once after a time without steps. A late caller catches up by this much
/// and no more.
const BURST: Span = Span::from_millis(500);
/// The time between two steps of an operation with a rate, so that each step has enough members to be worth a commit.
const STRIDE: Span = Span::from_millis(250);
/// How soon to step again while the operation waits for messages to settle.
const POLL: Span = Span::from_millis(200);
/// How soon to try a full queue again.
const FULL_WAIT: Span = Span::from_secs(1);

/// The token bucket of the rate limit, in thousandths of a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// When it was last updated.
    pub at: Time,
    /// The tokens it held then, in thousandths.
    pub milli: u64,
}

/// How many members may be sent now, and when to ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// The number of members that may be sent now.
    pub send: u64,
    /// How long to wait before the next step; `None` if only an operator can move the operation.
    pub next_in: Option<Span>,
}

impl Operation {
    /// The rate at an instant, in members per second.
    fn rate_at(&self, at: Time) -> Option<u64> {
        let full = u64::from(self.rollout.rate?);
        let (Stage::Ramping, Some(ramp)) = (self.stage, self.rollout.ramp) else { return Some(full) };
        let (ramp, elapsed) = (ramp.as_millis().max(1), at.since(self.since).as_millis());
        let thousandths = 100 + 900_u64.saturating_mul(elapsed.min(ramp)) / ramp;
        Some((full.saturating_mul(thousandths) / 1_000).max(1))
    }

    /// The maximum number of tokens at this rate, in thousandths.
    fn burst(rate: u64) -> u64 {
        rate.saturating_mul(BURST.as_millis()).max(1_000)
    }

    /// The tokens available at `now`, in thousandths. Tokens gained since the last update are counted at the rate of
    /// that time, so that a ramp never runs ahead.
    fn tokens(&self, now: Time) -> Option<u64> {
        let then = self.rate_at(self.bucket.at)?;
        let rate = self.rate_at(now)?;
        let gained = then.saturating_mul(now.since(self.bucket.at).as_millis());
        Some(self.bucket.milli.saturating_add(gained).min(Self::burst(rate)))
    }

    /// Takes the tokens of the members that were sent out of the bucket.
    pub(super) fn spend(&mut self, sent: u64, now: Time) {
        if let Some(tokens) = self.tokens(now) {
            let milli = tokens.saturating_sub(sent.saturating_mul(1_000));
            self.bucket = Bucket { at: now, milli };
        }
    }

    /// Resets the bucket to one token, so that the first member may go at once whatever the rate.
    pub(super) fn fill(&mut self, now: Time) {
        self.bucket = Bucket { at: now, milli: 1_000 };
    }

    /// How many waiting members the stage and the limit on running members allow to be sent.
    fn sendable(&self) -> u64 {
        let outcomes = &self.outcomes;
        let in_stage = match self.stage {
            Stage::Canary => self.canary_to.saturating_sub(outcomes.sent()),
            Stage::Ramping | Stage::Running => u64::MAX,
            Stage::Freezing
            | Stage::Observing
            | Stage::Settling
            | Stage::Undoing
            | Stage::Paused
            | Stage::Done
            | Stage::Cancelled
            | Stage::Undone => 0,
        };
        let in_flight =
            self.rollout.in_flight.map_or(u64::MAX, |max| u64::from(max).saturating_sub(outcomes.running));
        outcomes.waiting.min(in_stage).min(in_flight)
    }

    /// How many members may be sent now, and when the next step is useful.
    #[must_use]
    pub fn allowance(&self, now: Time) -> Allowance {
        let wait = |next_in| Allowance { send: 0, next_in: Some(next_in) };
        match self.stage {
            Stage::Paused | Stage::Done | Stage::Cancelled | Stage::Undone => {
                return Allowance { send: 0, next_in: None };
            }
            Stage::Freezing | Stage::Undoing => return wait(Span::ZERO),
            Stage::Settling => return wait(POLL),
            Stage::Observing if self.outcomes.running > 0 => return wait(POLL),
            Stage::Observing => return wait(self.since.plus(self.rollout.observe).since(now)),
            Stage::Canary | Stage::Ramping | Stage::Running => {}
        }
        if let Some(obstacle) = &self.delayed {
            let left = obstacle.at.plus(FULL_WAIT).since(now);
            if left > Span::ZERO {
                return wait(left);
            }
        }
        let sendable = self.sendable();
        if sendable == 0 {
            return wait(POLL);
        }
        let (Some(tokens), Some(rate)) = (self.tokens(now), self.rate_at(now)) else {
            return Allowance { send: sendable, next_in: Some(Span::ZERO) };
        };
        let stride = (rate.saturating_mul(STRIDE.as_millis()) / 1_000).clamp(1, sendable);
        let short = stride.saturating_mul(1_000).saturating_sub(tokens);
        Allowance {
            send: sendable.min(tokens / 1_000),
            next_in: Some(Span::from_millis(short.div_ceil(rate))),
        }
    }
}
