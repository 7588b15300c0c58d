//! The composition of a set of dead letters: how many there are, by group, queue, status and age. It is counted
//! from facts on each letter's row, so that a store can count a million letters without reading a payload.

use crate::dead_letter::Status;
use crate::failure::Reason;
use crate::ids::{GroupId, QueueName};
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The upper bounds of the age brackets. The last bracket is open.
pub const AGES: [Span; 5] = [
    Span::from_secs(3_600),
    Span::from_hours(24),
    Span::from_days(7),
    Span::from_days(30),
    Span::from_days(90),
];

/// The facts about one letter that are counted.
#[derive(Clone, Copy, Debug)]
pub struct LetterFacts<'a> {
    /// The group.
    pub group: GroupId,
    /// The queue.
    pub queue: &'a QueueName,
    /// The status.
    pub status: Status,
    /// Why the message died.
    pub reason: Reason,
    /// When the message died.
    pub dead_at: Time,
    /// How often the letter was redriven.
    pub redrives: u32,
    /// Payload bytes.
    pub bytes: u64,
    /// Whether the message has an idempotency key.
    pub keyed: bool,
    /// Whether the message has an ordering key.
    pub ordered: bool,
}

/// The composition of a set of letters. The counts of each breakdown add up to `count`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survey {
    /// The number of letters.
    pub count: u64,
    /// By group.
    #[serde(default)]
    pub by_group: BTreeMap<GroupId, u64>,
    /// By queue.
    #[serde(default)]
    pub by_queue: BTreeMap<QueueName, u64>,
    /// By status.
    #[serde(default)]
    pub by_status: BTreeMap<Status, u64>,
    /// By the reason of their death.
    #[serde(default)]
    pub by_reason: BTreeMap<Reason, u64>,
    /// By age, youngest first. Each bracket starts where the one before ends.
    #[serde(default)]
    pub by_age: Vec<AgeCount>,
    /// By the number of redrives.
    #[serde(default)]
    pub by_redrives: BTreeMap<u32, u64>,
    /// Payload bytes of all letters.
    #[serde(default)]
    pub bytes: u64,
    /// Letters with an idempotency key.
    #[serde(default)]
    pub keyed: u64,
    /// Letters with an ordering key.
    #[serde(default)]
    pub ordered: u64,
}

/// The number of letters in an age bracket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgeCount {
    /// The upper bound of the bracket. `None` for the last one.
    #[serde(default, rename = "up_to_ms")]
    pub up_to: Option<Span>,
    /// The number of letters.
    pub count: u64,
}

impl Survey {
    /// Counts one letter, with its age at `now`.
    pub fn add(&mut self, letter: &LetterFacts<'_>, now: Time) {
        self.count += 1;
        *self.by_group.entry(letter.group).or_default() += 1;
        match self.by_queue.get_mut(letter.queue) {
            Some(count) => *count += 1,
            None => {
                self.by_queue.insert(letter.queue.clone(), 1);
            }
        }
        *self.by_status.entry(letter.status).or_default() += 1;
        *self.by_reason.entry(letter.reason).or_default() += 1;
        *self.by_redrives.entry(letter.redrives).or_default() += 1;
        if self.by_age.is_empty() {
            let bounds = AGES.iter().map(|age| Some(*age)).chain([None]);
            self.by_age = bounds.map(|up_to| AgeCount { up_to, count: 0 }).collect();
        }
        let age = now.since(letter.dead_at);
        if let Some(bracket) = self.by_age.iter_mut().find(|b| b.up_to.is_none_or(|up_to| age <= up_to)) {
            bracket.count += 1;
        }
        self.bytes = self.bytes.saturating_add(letter.bytes);
        self.keyed += u64::from(letter.keyed);
        self.ordered += u64::from(letter.ordered);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_letter_is_counted_once_in_every_breakdown() {
        let (now, queue) = (Time::from_millis(100 * 86_400_000), "q".parse().unwrap());
        let mut survey = Survey::default();
        for (n, age_ms) in (0..).zip([0, 3_600_000, 3_600_001, 86_400_001, 40 * 86_400_000, 99 * 86_400_000])
        {
            let facts = LetterFacts {
                group: GroupId::new(n % 2),
                queue: &queue,
                status: Status::Pending,
                reason: Reason::Poison,
                dead_at: now.minus(Span::from_millis(age_ms)),
                redrives: u32::from(n == 3),
                bytes: 10,
                keyed: n < 2,
                ordered: n == 0,
            };
            survey.add(&facts, now);
        }
        let ages: Vec<u64> = survey.by_age.iter().map(|bracket| bracket.count).collect();
        assert_eq!((survey.count, survey.bytes, survey.keyed, survey.ordered), (6, 60, 2, 1));
        assert_eq!(ages, [2, 1, 1, 0, 1, 1]);
        assert_eq!(survey.by_group.values().copied().collect::<Vec<_>>(), [3, 3]);
        assert_eq!(survey.by_redrives, BTreeMap::from([(0, 5), (1, 1)]));
        let json = serde_json::to_string(&survey).unwrap();
        assert_eq!(serde_json::from_str::<Survey>(&json).unwrap(), survey);
    }
}
