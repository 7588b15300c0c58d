//! Instants and spans as the store counts them, in whole milliseconds. This module reads no clock: code that
//! needs the time gets it as an argument or through [`Clock`], so that every decision can be replayed.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// An instant of the store's clock: milliseconds since the Unix epoch, shown as RFC 3339 in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(i64);

/// The last instant that can be written and read in every time zone: 9999-12-30T22:00:00.999Z.
const LAST_MS: i64 = 253_402_207_200_999;

impl Time {
    /// The earliest instant.
    pub const ZERO: Self = Self(0);
    /// The latest instant: the time of what never becomes due.
    pub const NEVER: Self = Self(LAST_MS);

    /// The instant this many milliseconds after the epoch, clamped to the range that can be written down.
    #[must_use]
    pub const fn from_millis(ms: i64) -> Self {
        Self(if ms < 0 {
            0
        } else if ms > LAST_MS {
            LAST_MS
        } else {
            ms
        })
    }

    /// Milliseconds since the epoch.
    #[must_use]
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// This instant plus a span. Stops at [`Time::NEVER`] instead of overflowing.
    #[must_use]
    pub const fn plus(self, span: Span) -> Self {
        Self::from_millis(self.0.saturating_add_unsigned(span.0))
    }

    /// This instant minus a span. Stops at [`Time::ZERO`].
    #[must_use]
    pub const fn minus(self, span: Span) -> Self {
        Self::from_millis(self.0.saturating_sub_unsigned(span.0))
    }

    /// The span from `earlier` to this instant. Zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Span {
        Span(u64::try_from(self.0 - earlier.0).unwrap_or(0))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(t) => write!(f, "{t:.3}"),
            Err(_) => f.write_str("9999-12-30T22:00:00.999Z"),
        }
    }
}

/// Why a time or a duration could not be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {wanted}")]
pub struct TimeError {
    text: String,
    wanted: &'static str,
}

impl FromStr for Time {
    type Err = TimeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let parsed: Result<jiff::Timestamp, _> = text.parse();
        match parsed {
            Ok(t) if (0..=LAST_MS).contains(&t.as_millisecond()) => Ok(Self(t.as_millisecond())),
            Ok(_) | Err(_) => Err(TimeError {
                text: text.chars().take(64).collect(),
                wanted: "a time such as 2026-01-31T12:00:00Z (RFC 3339, from 1970 to 9999)",
            }),
        }
    }
}

crate::ids::serde_as_text_or_bytes!(Time, |time: Time| time.0.to_be_bytes(), |bytes| Time::from_millis(
    i64::from_be_bytes(bytes)
));

/// A duration in whole milliseconds. Parsed from text such as `5s`, `2h` or `1h30m`, serialized as an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Span(u64);

impl Span {
    /// The empty span.
    pub const ZERO: Self = Self(0);

    /// A span of milliseconds.
    #[must_use]
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms)
    }

    /// A span of seconds.
    #[must_use]
    pub const fn from_secs(s: u64) -> Self {
        Self(s.saturating_mul(1_000))
    }

    /// A span of hours.
    #[must_use]
    pub const fn from_hours(h: u64) -> Self {
        Self(h.saturating_mul(3_600_000))
    }

    /// A span of days.
    #[must_use]
    pub const fn from_days(d: u64) -> Self {
        Self(d.saturating_mul(86_400_000))
    }

    /// Whole milliseconds.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// The span as a `Duration` of the standard library.
    #[must_use]
    pub const fn to_std(self) -> std::time::Duration {
        std::time::Duration::from_millis(self.0)
    }

    /// `n` times this span, saturating at the largest span.
    #[must_use]
    pub const fn times(self, n: u64) -> Self {
        Self(self.0.saturating_mul(n))
    }
}

/// The units of a duration in text, largest first, in milliseconds.
const UNITS: [(&str, u64); 6] =
    [("w", 604_800_000), ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0s");
        }
        let mut rest = self.0;
        // Weeks are parsed but not printed: people say 30 days, not 4 weeks and 2 days.
        for (name, unit) in UNITS.into_iter().skip_while(|(name, _)| *name == "w") {
            if rest >= unit {
                write!(f, "{}{name}", rest / unit)?;
                rest %= unit;
            }
        }
        Ok(())
    }
}

impl FromStr for Span {
    type Err = TimeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || TimeError {
            text: text.chars().take(64).collect(),
            wanted: "a duration such as 500ms, 30s, 15m, 2h, 1h30m or 7d",
        };
        let mut rest = text.trim();
        let mut total: u64 = 0;
        if rest == "0" {
            return Ok(Self::ZERO);
        }
        if rest.is_empty() {
            return Err(wrong());
        }
        while !rest.is_empty() {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let (number, after) = rest.split_at(digits);
            let letters = after.bytes().take_while(u8::is_ascii_alphabetic).count();
            let (unit, after) = after.split_at(letters);
            let number: u64 = number.parse().map_err(|_| wrong())?;
            let (_, unit_ms) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
            total = number.checked_mul(*unit_ms).and_then(|ms| total.checked_add(ms)).ok_or_else(wrong)?;
            rest = after;
        }
        Ok(Self(total))
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Millis(u64),
            Text(String),
        }
        match Written::deserialize(d)? {
            Written::Millis(ms) => Ok(Self(ms)),
            Written::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

/// A source of the current time. A store gets one when it opens; tests use a clock that they advance
/// themselves.
pub trait Clock: Send + Sync {
    /// The current instant. Never earlier than a previous result.
    fn now(&self) -> Time;
}

/// A moment that people name: a time, or a duration before now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeBound {
    /// At this time.
    At(Time),
    /// This long ago.
    Ago(Span),
}

impl TimeBound {
    /// The time that is meant.
    #[must_use]
    pub const fn at(self, now: Time) -> Time {
        match self {
            Self::At(at) => at,
            Self::Ago(span) => now.minus(span),
        }
    }
}

impl FromStr for TimeBound {
    type Err = TimeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let ago = |_| text.parse().map(Self::Ago);
        text.parse().map(Self::At).or_else(ago).map_err(|_: TimeError| TimeError {
            text: text.chars().take(64).collect(),
            wanted: "a time such as 2026-01-31T12:00:00Z or a duration such as 2h",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_read_back_as_written() {
        let t = Time::from_millis(1_767_225_600_123);
        assert_eq!(t.to_string(), "2026-01-01T00:00:00.123Z");
        assert_eq!(t.to_string().parse::<Time>(), Ok(t));
        assert_eq!(
            "2026-01-01T01:00:00+01:00".parse::<Time>().unwrap().to_string(),
            "2026-01-01T00:00:00.000Z"
        );
    }

    #[test]
    fn the_edges_of_time_are_clamped_not_wrapped() {
        assert_eq!(Time::NEVER.plus(Span::from_days(1)), Time::NEVER);
        assert_eq!(Time::ZERO.minus(Span::from_days(1)), Time::ZERO);
        assert_eq!(Time::ZERO.since(Time::NEVER), Span::ZERO);
        assert_eq!(Time::NEVER.to_string(), "9999-12-30T22:00:00.999Z");
        assert_eq!("9999-12-30T22:00:00.999Z".parse(), Ok(Time::NEVER), "the last instant can be parsed");
        assert!("1969-12-31T23:59:59Z".parse::<Time>().is_err());
        assert!("yesterday".parse::<Time>().is_err());
    }

    #[test]
    fn spans_read_back_as_written() {
        for (text, ms) in
            [("500ms", 500), ("30s", 30_000), ("1h30m", 5_400_000), ("7d", 604_800_000), ("0", 0)]
        {
            assert_eq!(text.parse::<Span>().unwrap().as_millis(), ms, "{text}");
        }
        for ms in [1, 999, 61_001, 604_800_001] {
            let span = Span::from_millis(ms);
            assert_eq!(span.to_string().parse::<Span>(), Ok(span));
        }
        for (text, written) in
            [("30d", "30d"), ("2w", "14d"), ("24h", "1d"), ("36h", "1d12h"), ("90m", "1h30m")]
        {
            assert_eq!(text.parse::<Span>().unwrap().to_string(), written, "{text}");
        }
    }

    #[test]
    fn a_bound_is_a_time_or_a_duration_before_now() {
        let now = Time::from_millis(7_200_000);
        for (text, at) in [("2h", 0), ("90m", 1_800_000), ("1970-01-01T00:00:05Z", 5_000)] {
            assert_eq!(text.parse::<TimeBound>().unwrap().at(now), Time::from_millis(at), "{text}");
        }
        let error = "yesterday".parse::<TimeBound>().unwrap_err().to_string();
        assert!(error.contains("2026-01-31") && error.contains("2h"), "{error}");
    }

    #[test]
    fn absurd_spans_are_refused_with_an_example() {
        for text in
            ["", "-5s", "5", "5 s", "s", "5parsecs", "1.5h", "99999999999999999999s", "18446744073709551615w"]
        {
            let error = text.parse::<Span>().unwrap_err().to_string();
            assert!(error.contains("1h30m"), "{text}: {error}");
        }
    }
}
