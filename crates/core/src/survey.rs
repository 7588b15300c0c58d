//! What a set of dead letters is made of: how many, of which groups, queues, statuses and ages. Counted letter by
//! letter from facts that stand on its row, so that a store can count a million without reading one payload.

use crate::dead_letter::Status;
use crate::failure::Reason;
use crate::ids::{GroupId, QueueName};
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Up to these ages letters are counted apart; the last stretch is open.
pub const AGES: [Span; 5] = [
    Span::from_secs(3_600),
    Span::from_hours(24),
    Span::from_days(7),
    Span::from_days(30),
    Span::from_days(90),
];

/// What is counted of one letter.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// Its group.
    pub group: GroupId,
    /// Its queue.
    pub queue: &'a QueueName,
    /// Where it stands.
    pub status: Status,
    /// Why it died.
    pub reason: Reason,
    /// When.
    pub dead_at: Time,
    /// How often it was sent back.
    pub redrives: u32,
    /// Bytes of its payload.
    pub bytes: u64,
    /// It has an idempotency key.
    pub keyed: bool,
    /// It has an ordering key.
    pub ordered: bool,
}

/// What a set of letters is made of. Counts of a breakdown always add up to `count`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survey {
    /// How many letters.
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
    /// By the reason they died of.
    #[serde(default)]
    pub by_reason: BTreeMap<Reason, u64>,
    /// By age, youngest first: at most so old, each stretch beginning where the one before ends.
    #[serde(default)]
    pub by_age: Vec<AgeCount>,
    /// By how often they were sent back.
    #[serde(default)]
    pub by_redrives: BTreeMap<u32, u64>,
    /// Bytes of their payloads.
    #[serde(default)]
    pub bytes: u64,
    /// Those with an idempotency key.
    #[serde(default)]
    pub keyed: u64,
    /// Those with an ordering key.
    #[serde(default)]
    pub ordered: u64,
}

/// How many letters are of an age.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgeCount {
    /// At most so old; nothing for the rest.
    #[serde(default, rename = "up_to_ms")]
    pub up_to: Option<Span>,
    /// How many.
    pub count: u64,
}

impl Survey {
    /// Counts one more letter, as old as it is at this instant.
    pub fn add(&mut self, letter: &Facts<'_>, now: Time) {
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
            let stretches = AGES.iter().map(|age| Some(*age)).chain([None]);
            self.by_age = stretches.map(|up_to| AgeCount { up_to, count: 0 }).collect();
        }
        let age = now.since(letter.dead_at);
        if let Some(stretch) = self.by_age.iter_mut().find(|s| s.up_to.is_none_or(|up_to| age <= up_to)) {
            stretch.count += 1;
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
            let facts = Facts {
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
        let ages: Vec<u64> = survey.by_age.iter().map(|stretch| stretch.count).collect();
        assert_eq!((survey.count, survey.bytes, survey.keyed, survey.ordered), (6, 60, 2, 1));
        assert_eq!(ages, [2, 1, 1, 0, 1, 1]);
        assert_eq!(survey.by_group.values().copied().collect::<Vec<_>>(), [3, 3]);
        assert_eq!(survey.by_redrives, BTreeMap::from([(0, 5), (1, 1)]));
        let json = serde_json::to_string(&survey).unwrap();
        assert_eq!(serde_json::from_str::<Survey>(&json).unwrap(), survey);
    }
}
