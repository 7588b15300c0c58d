//! Quiet hours: the part of every day in which only critical alerts are told. The others are told when it is over, if
//! they still hold.

use crate::time::Time;
use serde::Deserialize;

const DAY_MINUTES: i64 = 24 * 60;

/// The part of every day in which only critical alerts are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "QuietHoursToml")]
pub struct QuietHours {
    /// The first quiet minute of the day.
    from: i64,
    /// The first minute that is not quiet any more.
    to: i64,
    /// How far the local time is ahead of UTC, in minutes.
    offset: i64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct QuietHoursToml {
    from: String,
    to: String,
    #[serde(default)]
    utc_offset: Option<String>,
}

impl TryFrom<QuietHoursToml> for QuietHours {
    type Error = String;

    fn try_from(toml: QuietHoursToml) -> Result<Self, String> {
        Self::new(&toml.from, &toml.to, toml.utc_offset.as_deref().unwrap_or("+00:00"))
    }
}

impl QuietHours {
    /// Quiet hours from and to a time such as `22:00`, in a time zone such as `+02:00`. They may go over midnight.
    ///
    /// # Errors
    /// What is wrong with which of the three.
    pub fn new(from: &str, to: &str, utc_offset: &str) -> Result<Self, String> {
        let time = |text: &str| minutes(text).ok_or_else(|| format!("{text:?} is not a time such as 22:00"));
        let wrong = || format!("{utc_offset:?} is not an offset such as +02:00 or -05:30");
        let (sign, rest) = match (utc_offset.strip_prefix('+'), utc_offset.strip_prefix('-')) {
            (Some(rest), _) => (1, rest),
            (_, Some(rest)) => (-1, rest),
            (None, None) => return Err(wrong()),
        };
        let offset = sign * minutes(rest).ok_or_else(wrong)?;
        let hours = Self { from: time(from)?, to: time(to)?, offset };
        if hours.from == hours.to {
            return Err("quiet hours that begin and end at the same time are none; leave them out".into());
        }
        Ok(hours)
    }

    /// Whether it is quiet at this time.
    #[must_use]
    pub fn contains(&self, now: Time) -> bool {
        let minute = (now.as_millis() / 60_000 + self.offset).rem_euclid(DAY_MINUTES);
        if self.from < self.to {
            (self.from..self.to).contains(&minute)
        } else {
            minute >= self.from || minute < self.to
        }
    }
}

fn minutes(text: &str) -> Option<i64> {
    let (hours, minutes) = text.split_once(':')?;
    let number = |text: &str| (text.len() == 2).then(|| text.parse::<u8>().ok()).flatten();
    let (hours, minutes) = (number(hours)?, number(minutes)?);
    (hours < 24 && minutes < 60).then(|| i64::from(hours) * 60 + i64::from(minutes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(clock: &str) -> Time {
        format!("2026-03-01T{clock}:00Z").parse().unwrap()
    }

    #[test]
    fn quiet_hours_include_their_first_minute_and_exclude_their_last() {
        let night = QuietHours::new("22:00", "07:00", "+00:00").unwrap();
        let noon = QuietHours::new("12:00", "13:30", "+00:00").unwrap();
        let east = QuietHours::new("22:00", "07:00", "+02:00").unwrap();
        let west = QuietHours::new("22:00", "07:00", "-05:30").unwrap();
        for (hours, clock, quiet) in [
            (night, "21:59", false),
            (night, "22:00", true),
            (night, "00:00", true),
            (night, "06:59", true),
            (night, "07:00", false),
            (noon, "11:59", false),
            (noon, "12:00", true),
            (noon, "13:29", true),
            (noon, "13:30", false),
            (east, "19:59", false),
            (east, "20:00", true),
            (east, "05:00", false),
            (west, "03:29", false),
            (west, "03:30", true),
            (west, "12:29", true),
            (west, "12:30", false),
        ] {
            assert_eq!(hours.contains(at(clock)), quiet, "{hours:?} at {clock}");
        }
    }

    #[test]
    fn whatever_is_no_time_is_refused() {
        for (from, to, offset) in [
            ("24:00", "07:00", "+00:00"),
            ("22:60", "07:00", "+00:00"),
            ("22", "07:00", "+00:00"),
            ("2:00", "07:00", "+00:00"),
            ("22:00", "22:00", "+00:00"),
            ("22:00", "07:00", "CET"),
            ("22:00", "07:00", "02:00"),
        ] {
            assert!(QuietHours::new(from, to, offset).is_err(), "{from} {to} {offset}");
        }
    }
}
