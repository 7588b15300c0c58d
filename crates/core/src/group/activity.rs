//! What is counted of a group beside the sums over its leaves: deaths, failures and closed letters by hour; failures by
//! worker, version and host; and the operations that touched it. All of it is bounded, so that the cost of recording a failure does
//! not grow with time, and it is updated in the commit of the failure.

use crate::ids::OperationId;
use crate::limits;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// The deaths, failures and closed letters of a group in one hour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hour {
    /// When the hour begins.
    pub at: Time,
    /// Messages that died.
    pub deaths: u64,
    /// Deliveries that failed.
    pub failures: u64,
    /// Letters that were closed: by success, by an operator, or by a purge.
    #[serde(default)]
    pub closed: u64,
}

/// What happened to a group lately. A list of groups holds it if the query asks for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupTrend {
    /// The hours of the last two days in which something happened, oldest first.
    pub hours: Vec<Hour>,
    /// The versions in which it failed, most failures first.
    pub versions: Vec<NameCount>,
    /// The hosts on which it failed, most failures first.
    pub hosts: Vec<NameCount>,
}

/// A name and how often it was seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameCount {
    /// The name.
    pub name: String,
    /// How often it was seen.
    pub count: u64,
    /// How many of these may belong to other names: this one replaced a name that was seen less often.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub over: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
const fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// The names seen most often. The counts are exact while there are few names; once the list is full, a new name
/// replaces the one seen least.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TopNames(Vec<NameCount>);

impl TopNames {
    /// Counts one occurrence of a name.
    pub fn add(&mut self, name: &str) {
        if let Some(known) = self.0.iter_mut().find(|known| known.name == name) {
            known.count = known.count.saturating_add(1);
            return;
        }
        if self.0.len() < limits::GROUP_NAMES_MAX {
            self.0.push(NameCount { name: name.to_owned(), count: 1, over: 0 });
        } else if let Some(least) = self.0.iter_mut().min_by_key(|known| known.count) {
            least.over = least.count;
            least.count = least.count.saturating_add(1);
            name.clone_into(&mut least.name);
        }
    }

    fn join(&mut self, other: Self) {
        for entry in other.0 {
            match self.0.iter_mut().find(|known| known.name == entry.name) {
                Some(known) => {
                    known.count = known.count.saturating_add(entry.count);
                    known.over = known.over.saturating_add(entry.over);
                }
                None => self.0.push(entry),
            }
        }
        self.0 = self.sorted();
        self.0.truncate(limits::GROUP_NAMES_MAX);
    }

    /// The names, seen most often first.
    #[must_use]
    pub fn sorted(&self) -> Vec<NameCount> {
        let mut all = self.0.clone();
        all.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.name.cmp(&b.name)));
        all
    }
}

/// What is counted of a group beside the sums over its leaves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupActivity {
    /// The hours with deaths or failures, oldest first: number of the hour, deaths, failures.
    hours: VecDeque<(u64, u64, u64)>,
    /// The hours in which letters were closed, oldest first: number of the hour, letters closed.
    #[serde(skip_serializing_if = "VecDeque::is_empty")]
    closed: VecDeque<(u64, u64)>,
    workers: TopNames,
    versions: TopNames,
    hosts: TopNames,
    /// The operations that touched its letters, and when they last did; latest last.
    operations: Vec<(Time, OperationId)>,
}

const HOUR: Span = Span::from_hours(1);

fn hour_of(at: Time) -> u64 {
    u64::try_from(at.as_millis()).unwrap_or(0) / HOUR.as_millis()
}

impl GroupActivity {
    /// The entry of an hour, which is inserted if it is missing.
    fn hour(&mut self, hour: u64) -> Option<&mut (u64, u64, u64)> {
        let index = self.hours.iter().rposition(|(known, _, _)| *known <= hour);
        let known = index.and_then(|index| self.hours.get(index)).is_some_and(|(known, _, _)| *known == hour);
        let index = match index {
            Some(index) if known => index,
            index => {
                let index = index.map_or(0, |index| index + 1);
                self.hours.insert(index, (hour, 0, 0));
                index
            }
        };
        self.hours.get_mut(index)
    }

    /// Drops the hours that are too far before the latest.
    fn trim(&mut self) {
        let newest = self.hours.back().map_or(0, |(hour, _, _)| *hour);
        while self.hours.front().is_some_and(|(hour, _, _)| hour + limits::GROUP_HOURS <= newest) {
            self.hours.pop_front();
        }
    }

    /// Records a failed delivery.
    pub fn record_failure(
        &mut self,
        worker: Option<&str>,
        version: Option<&str>,
        host: Option<&str>,
        now: Time,
    ) {
        if let Some((_, _, failures)) = self.hour(hour_of(now)) {
            *failures += 1;
        }
        self.trim();
        for (names, name) in
            [(&mut self.workers, worker), (&mut self.versions, version), (&mut self.hosts, host)]
        {
            if let Some(name) = name {
                names.add(name);
            }
        }
    }

    /// Records the death of a message.
    pub fn record_death(&mut self, now: Time) {
        if let Some((_, deaths, _)) = self.hour(hour_of(now)) {
            *deaths += 1;
        }
        self.trim();
    }

    /// Records that a letter was closed.
    pub fn record_close(&mut self, now: Time) {
        self.add_closed(hour_of(now), 1);
    }

    fn add_closed(&mut self, hour: u64, letters: u64) {
        match self.closed.iter_mut().find(|(known, _)| *known == hour) {
            Some((_, closed)) => *closed += letters,
            None => {
                let at = self.closed.partition_point(|(known, _)| *known < hour);
                self.closed.insert(at, (hour, letters));
            }
        }
        let newest = self.closed.back().map_or(0, |(hour, _)| *hour);
        while self.closed.front().is_some_and(|(hour, _)| hour + limits::GROUP_HOURS <= newest) {
            self.closed.pop_front();
        }
    }

    /// Records that an operation touched one of the group's letters. Returns whether anything changed: repeated touches
    /// by the latest operation are recorded only every ten seconds, because it may touch thousands of letters a second.
    pub fn record_operation(&mut self, id: OperationId, now: Time) -> bool {
        match self.operations.last_mut() {
            Some((at, last)) if *last == id && now.since(*at) < Span::from_secs(10) => return false,
            Some((at, last)) if *last == id => *at = now,
            Some(_) | None => self.insert_operation(id, now),
        }
        true
    }

    fn insert_operation(&mut self, id: OperationId, at: Time) {
        let last =
            self.operations.iter().find(|(_, known)| *known == id).map_or(at, |(known, _)| at.max(*known));
        self.operations.retain(|(_, known)| *known != id);
        self.operations.push((last, id));
        self.operations.sort_unstable();
        let excess = self.operations.len().saturating_sub(limits::GROUP_OPERATIONS_MAX);
        self.operations.drain(..excess);
    }

    /// The operations that touched its letters, latest first.
    pub fn operations(&self) -> impl Iterator<Item = OperationId> {
        self.operations.iter().rev().map(|(_, id)| *id)
    }

    /// The combined activity of two groups that are merged.
    #[must_use]
    pub fn joined(mut self, other: Self) -> Self {
        for (hour, deaths, failures) in other.hours {
            if let Some((_, mine, failed)) = self.hour(hour) {
                *mine += deaths;
                *failed += failures;
            }
        }
        for (hour, letters) in other.closed {
            self.add_closed(hour, letters);
        }
        self.trim();
        self.workers.join(other.workers);
        self.versions.join(other.versions);
        self.hosts.join(other.hosts);
        for (at, id) in other.operations {
            self.insert_operation(id, at);
        }
        self
    }

    /// The hours of the last two days in which something happened, oldest first.
    #[must_use]
    pub fn hours(&self, now: Time) -> Vec<Hour> {
        let now = hour_of(now);
        let mut hours: BTreeMap<u64, Hour> = BTreeMap::new();
        let empty = |hour: u64| {
            let at = Time::ZERO.plus(HOUR.times(hour));
            Hour { at, deaths: 0, failures: 0, closed: 0 }
        };
        for (hour, deaths, failures) in &self.hours {
            let counted = hours.entry(*hour).or_insert_with(|| empty(*hour));
            (counted.deaths, counted.failures) = (*deaths, *failures);
        }
        for (hour, closed) in &self.closed {
            hours.entry(*hour).or_insert_with(|| empty(*hour)).closed = *closed;
        }
        hours.retain(|hour, _| hour + limits::GROUP_HOURS > now);
        hours.into_values().collect()
    }

    /// What a list of groups shows of this.
    #[must_use]
    pub fn trend(&self, now: Time) -> GroupTrend {
        GroupTrend { hours: self.hours(now), versions: self.versions(), hosts: self.hosts() }
    }

    /// The workers on which it failed most often.
    #[must_use]
    pub fn workers(&self) -> Vec<NameCount> {
        self.workers.sorted()
    }

    /// The versions in which it failed most often.
    #[must_use]
    pub fn versions(&self) -> Vec<NameCount> {
        self.versions.sorted()
    }

    /// The hosts on which it failed most often.
    #[must_use]
    pub fn hosts(&self) -> Vec<NameCount> {
        self.hosts.sorted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(hours: u64) -> Time {
        Time::ZERO.plus(HOUR.times(hours))
    }

    fn operation(n: u128) -> OperationId {
        OperationId::new(crate::ids::MessageId::from_bytes(n.to_be_bytes()))
    }

    #[test]
    fn names_are_exact_while_they_are_few_and_rise_when_they_are_many() {
        let mut names = TopNames::default();
        for n in 0..limits::GROUP_NAMES_MAX {
            (0..=n).for_each(|_| names.add(&format!("w{n:02}")));
        }
        assert!(names.sorted().iter().all(|entry| entry.over == 0));
        assert_eq!(names.sorted().first().map(|entry| entry.count), Some(limits::GROUP_NAMES_MAX as u64));
        (0..100).for_each(|_| names.add("new"));
        let first = names.sorted().first().cloned().unwrap();
        assert_eq!(
            (first.name.as_str(), first.count, first.over),
            ("new", 101, 1),
            "at most one belongs to another name"
        );
        assert_eq!(names.sorted().len(), limits::GROUP_NAMES_MAX);
    }

    #[test]
    fn the_latest_operations_are_kept() {
        let mut activity = GroupActivity::default();
        for n in 1..100 {
            activity.record_operation(operation(n), at(1));
            activity.record_operation(operation(n), at(1));
        }
        activity.record_operation(operation(3), at(2));
        let mut other = GroupActivity::default();
        other.record_operation(operation(99), at(1));
        other.record_operation(operation(200), at(3));
        other.record_operation(operation(3), at(1));
        for both in [other.clone().joined(activity.clone()), activity.joined(other)] {
            let shown: Vec<OperationId> = both.operations().collect();
            assert_eq!(shown.len(), limits::GROUP_OPERATIONS_MAX);
            assert_eq!(shown.get(..3), Some([200, 3, 99].map(operation).as_slice()));
        }
    }

    proptest! {
        /// However failures are split over two groups, joining the groups gives what one group would have counted.
        #[test]
        fn hours_add_up(
            seen in proptest::collection::vec((0_u64..120, any::<bool>(), 0_u8..3), 0..200),
            later in 0_u64..60,
        ) {
            let mut ordered = seen.clone();
            ordered.sort_by_key(|(hour, _, _)| *hour);
            let (mut one, mut other) = (GroupActivity::default(), GroupActivity::default());
            let mut expected: BTreeMap<u64, (u64, u64, u64)> = BTreeMap::new();
            let mut latest = 0;
            for (hour, first, what) in ordered {
                let activity = if first { &mut one } else { &mut other };
                let counted = expected.entry(hour).or_default();
                match what {
                    0 => {
                        activity.record_death(at(hour));
                        counted.0 += 1;
                    }
                    1 => {
                        activity.record_failure(Some("w"), None, None, at(hour));
                        counted.1 += 1;
                    }
                    _ => {
                        activity.record_close(at(hour));
                        counted.2 += 1;
                    }
                }
                latest = hour;
            }
            let now = latest + later;
            expected.retain(|hour, _| hour + limits::GROUP_HOURS > now);
            let shown = one.joined(other).hours(at(now));
            let hours: BTreeMap<u64, (u64, u64, u64)> =
                shown.iter().map(|h| (hour_of(h.at), (h.deaths, h.failures, h.closed))).collect();
            prop_assert_eq!(hours, expected);
        }
    }
}
