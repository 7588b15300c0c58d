//! How fast an operation goes and when it stops by itself: a canary first, a look at what became of it, a ramp,
//! a rate, a bound on what is under way. [`Operation::allowance`] is the one answer to "how many now, and when
//! next"; it is a pure function of what is on record and the time, so whoever steps, and however often, sends no
//! more than that.

use super::{Operation, Stage};
use crate::dead_letter::Act;
use crate::error::Refusal;
use crate::ids::serde_as_text;
use crate::limits;
use crate::message::sane;
use crate::time::{Span, Time};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// How many go first, alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canary {
    /// So many.
    Count(u64),
    /// So many of a hundred, rounded up.
    Percent(u8),
}

impl Canary {
    /// How many of so many members.
    #[must_use]
    pub fn of(self, members: u64) -> u64 {
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
        let wrong = || format!("{text:?} is neither a number such as 10 nor a share such as 5%");
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

/// How fast, how carefully. The default is as fast as it goes, and nothing stops it but a person.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pace {
    /// So many first; the others only when those have an outcome.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
    /// How long to look at the canary at least.
    #[serde(default, rename = "observe_ms")]
    pub observe: Span,
    /// So many per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u32>,
    /// From a tenth of the rate to all of it within this time.
    #[serde(default, rename = "ramp_ms", skip_serializing_if = "Option::is_none")]
    pub ramp: Option<Span>,
    /// So many under way at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u32>,
    /// Halts when more than so many of a hundred come back with the failure they had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_at: Option<u8>,
    /// Halts when the breaker of a member is open.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stop_on_breaker: bool,
}

impl Pace {
    /// Refuses what is absurd, and what makes no sense for this act: only what is sent back to work has a fate to
    /// be looked at.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] naming the field.
    pub fn check(&self, act: &Act) -> Result<(), Refusal> {
        check_rate(self.rate)?;
        if self.in_flight == Some(0) {
            return Err(Refusal::invalid("in_flight", "at least 1, or nothing is ever sent"));
        }
        if self.stop_at.is_some_and(|percent| percent > 100) {
            return Err(Refusal::invalid("stop_at", "a share of a hundred, 0 to 100"));
        }
        match self.canary {
            Some(Canary::Count(0) | Canary::Percent(0 | 101..)) => {
                return Err(Refusal::invalid("canary", "at least 1, or 1% to 100%"));
            }
            Some(Canary::Count(_) | Canary::Percent(_)) | None => {}
        }
        sane("observe", self.observe, Span::ZERO, limits::SPAN_MAX)?;
        if let Some(ramp) = self.ramp {
            sane("ramp", ramp, Span::ZERO, limits::SPAN_MAX)?;
            if self.rate.is_none() {
                return Err(Refusal::invalid("ramp", "a ramp leads up to a rate; say which"));
            }
        }
        let watches = self.canary.is_some()
            || self.observe > Span::ZERO
            || self.in_flight.is_some()
            || self.stop_at.is_some()
            || self.stop_on_breaker;
        if watches && !matches!(act, Act::Retry(_)) {
            let why = format!(
                "{} has no outcome to wait for; canary, observe, in_flight and stops are for retry",
                act.name()
            );
            return Err(Refusal::invalid("pace", why));
        }
        Ok(())
    }

    /// How long so many would take at this pace, if each canary were done at once; nothing without a rate.
    #[must_use]
    pub fn estimate(&self, count: u64) -> Option<Span> {
        let rate = u64::from(self.rate?.max(1));
        let looking = if self.canary.is_some() { self.observe } else { Span::ZERO };
        let steady = count.saturating_mul(1_000).div_ceil(rate);
        // A ramp goes at 55 of a hundred on the whole, and never at less than a tenth.
        let ramp = self.ramp.unwrap_or(Span::ZERO).as_millis();
        let lost = (ramp.saturating_mul(45) / 100).min(steady.saturating_mul(9));
        Some(Span::from_millis(steady.saturating_add(lost).saturating_add(looking.as_millis())))
    }
}

/// Refuses a rate of nothing and one that no store keeps up with.
///
/// # Errors
/// [`Refusal::Invalid`].
pub fn check_rate(rate: Option<u32>) -> Result<(), Refusal> {
    match rate {
        Some(0) => Err(Refusal::invalid("rate", "at least 1 per second; to send nothing, pause")),
        Some(rate) if rate > limits::OPERATION_RATE_MAX => {
            let most = limits::OPERATION_RATE_MAX;
            Err(Refusal::invalid("rate", format!("at most {most} per second; leave it out for no limit")))
        }
        Some(_) | None => Ok(()),
    }
}

/// What may be sent at once after a time without a step, as time at the rate: whoever steps late catches up with
/// that much and no more.
const BURST: Span = Span::from_millis(500);
/// Steps of a paced operation are so far apart, so that each is worth a commit.
const STRIDE: Span = Span::from_millis(250);
/// How soon to look again where what is waited for is the fate of messages.
const POLL: Span = Span::from_millis(200);
/// How soon to try a full queue again.
const FULL_WAIT: Span = Span::from_secs(1);

/// What a rate has left over: thousandths of a member, as of a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bucket {
    /// As of when.
    pub at: Time,
    /// Thousandths.
    pub milli: u64,
}

/// How many may be sent now, and when to ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// So many members.
    pub send: u64,
    /// A step makes sense after this; never without a person when there is nothing.
    pub next_in: Option<Span>,
}

impl Operation {
    /// The rate in force at an instant, per second.
    fn rate_at(&self, at: Time) -> Option<u64> {
        let full = u64::from(self.pace.rate?);
        let (Stage::Ramping, Some(ramp)) = (self.stage, self.pace.ramp) else { return Some(full) };
        let (ramp, gone) = (ramp.as_millis().max(1), at.since(self.since).as_millis());
        let thousandths = 100 + 900_u64.saturating_mul(gone.min(ramp)) / ramp;
        Some((full.saturating_mul(thousandths) / 1_000).max(1))
    }

    /// The most that a rate lets go at once.
    fn burst(rate: u64) -> u64 {
        rate.saturating_mul(BURST.as_millis()).max(1_000)
    }

    /// What the rate has left over by now. A rising rate counts as what it was at the beginning of the time, so
    /// a ramp is never overtaken.
    fn tokens(&self, now: Time) -> Option<u64> {
        let then = self.rate_at(self.bucket.at)?;
        let rate = self.rate_at(now)?;
        let gained = then.saturating_mul(now.since(self.bucket.at).as_millis());
        Some(self.bucket.milli.saturating_add(gained).min(Self::burst(rate)))
    }

    /// Takes what was sent out of what the rate had left over.
    pub(super) fn spend(&mut self, sent: u64, now: Time) {
        if let Some(tokens) = self.tokens(now) {
            let milli = tokens.saturating_sub(sent.saturating_mul(1_000));
            self.bucket = Bucket { at: now, milli };
        }
    }

    /// The first member goes at once, whatever the rate.
    pub(super) fn fill(&mut self, now: Time) {
        self.bucket = Bucket { at: now, milli: 1_000 };
    }

    /// How many of the waiting members the stage and what is under way leave room for.
    fn room(&self) -> u64 {
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
            self.pace.in_flight.map_or(u64::MAX, |most| u64::from(most).saturating_sub(outcomes.running));
        outcomes.waiting.min(in_stage).min(in_flight)
    }

    /// How many members may be sent now, and when a step makes sense next. Pure.
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
            Stage::Observing => return wait(self.since.plus(self.pace.observe).since(now)),
            Stage::Canary | Stage::Ramping | Stage::Running => {}
        }
        if let Some(held) = &self.held_up {
            let left = held.at.plus(FULL_WAIT).since(now);
            if left > Span::ZERO {
                return wait(left);
            }
        }
        let room = self.room();
        if room == 0 {
            return wait(POLL);
        }
        let (Some(tokens), Some(rate)) = (self.tokens(now), self.rate_at(now)) else {
            return Allowance { send: room, next_in: Some(Span::ZERO) };
        };
        let stride = (rate.saturating_mul(STRIDE.as_millis()) / 1_000).clamp(1, room);
        let short = stride.saturating_mul(1_000).saturating_sub(tokens);
        Allowance { send: room.min(tokens / 1_000), next_in: Some(Span::from_millis(short.div_ceil(rate))) }
    }
}
