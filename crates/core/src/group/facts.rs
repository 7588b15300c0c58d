//! What is counted of a group beside the sums of its leaves: by hour, by worker, version and host, and which
//! operations touched it. Bounded, so that a failure costs the same whatever came before it, and kept in the commit
//! of the failure. Pure.

use crate::ids::OperationId;
use crate::limits;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// One hour of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hour {
    /// When it begins.
    pub at: Time,
    /// Messages that died.
    pub deaths: u64,
    /// Deliveries that failed.
    pub failures: u64,
}

/// A name and how often it was seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// The name.
    pub name: String,
    /// How often.
    pub count: u64,
    /// How many of these may have been of others: the name took the place of one that was seen less.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub over: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
const fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// The names seen most. Exact while there are few; then the least seen makes room, so that new names can rise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tops(Vec<Counted>);

impl Tops {
    /// One more.
    pub fn add(&mut self, name: &str) {
        if let Some(known) = self.0.iter_mut().find(|known| known.name == name) {
            known.count = known.count.saturating_add(1);
            return;
        }
        if self.0.len() < limits::GROUP_NAMES_MAX {
            self.0.push(Counted { name: name.to_owned(), count: 1, over: 0 });
        } else if let Some(least) = self.0.iter_mut().min_by_key(|known| known.count) {
            least.over = least.count;
            least.count = least.count.saturating_add(1);
            name.clone_into(&mut least.name);
        }
    }

    fn join(&mut self, other: Self) {
        for counted in other.0 {
            match self.0.iter_mut().find(|known| known.name == counted.name) {
                Some(known) => {
                    known.count = known.count.saturating_add(counted.count);
                    known.over = known.over.saturating_add(counted.over);
                }
                None => self.0.push(counted),
            }
        }
        self.0 = self.most();
        self.0.truncate(limits::GROUP_NAMES_MAX);
    }

    /// The names, most seen first.
    #[must_use]
    pub fn most(&self) -> Vec<Counted> {
        let mut all = self.0.clone();
        all.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.name.cmp(&b.name)));
        all
    }
}

/// What is counted of a group beside its sums.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// Hours with something in them, oldest first: number of the hour, deaths, failures.
    hours: VecDeque<(u64, u64, u64)>,
    workers: Tops,
    versions: Tops,
    hosts: Tops,
    /// The operations that touched its letters and when they did so last, latest last.
    operations: Vec<(Time, OperationId)>,
}

/// How long an hour is.
const HOUR: Span = Span::from_hours(1);

fn hour_of(at: Time) -> u64 {
    u64::try_from(at.as_millis()).unwrap_or(0) / HOUR.as_millis()
}

impl Facts {
    fn hour(&mut self, hour: u64) -> Option<&mut (u64, u64, u64)> {
        let place = self.hours.iter().rposition(|(known, _, _)| *known <= hour);
        let known = place.and_then(|place| self.hours.get(place)).is_some_and(|(known, _, _)| *known == hour);
        let place = match place {
            Some(place) if known => place,
            place => {
                let place = place.map_or(0, |place| place + 1);
                self.hours.insert(place, (hour, 0, 0));
                place
            }
        };
        self.hours.get_mut(place)
    }

    /// Forgets hours that are too long before the latest.
    fn trim(&mut self) {
        let newest = self.hours.back().map_or(0, |(hour, _, _)| *hour);
        while self.hours.front().is_some_and(|(hour, _, _)| hour + limits::GROUP_HOURS <= newest) {
            self.hours.pop_front();
        }
    }

    /// A delivery failed with it.
    pub fn failed(&mut self, worker: Option<&str>, version: Option<&str>, host: Option<&str>, now: Time) {
        if let Some((_, _, failures)) = self.hour(hour_of(now)) {
            *failures += 1;
        }
        self.trim();
        for (tops, name) in
            [(&mut self.workers, worker), (&mut self.versions, version), (&mut self.hosts, host)]
        {
            if let Some(name) = name {
                tops.add(name);
            }
        }
    }

    /// A message died of it.
    pub fn died(&mut self, now: Time) {
        if let Some((_, deaths, _)) = self.hour(hour_of(now)) {
            *deaths += 1;
        }
        self.trim();
    }

    /// An operation touched one of its letters; says whether that is news. When it did so last is kept to ten
    /// seconds: thousands of letters a second follow each other.
    pub fn operated(&mut self, id: OperationId, now: Time) -> bool {
        match self.operations.last_mut() {
            Some((at, last)) if *last == id && now.since(*at) < Span::from_secs(10) => return false,
            Some((at, last)) if *last == id => *at = now,
            Some(_) | None => self.note_operation(id, now),
        }
        true
    }

    fn note_operation(&mut self, id: OperationId, at: Time) {
        let last =
            self.operations.iter().find(|(_, known)| *known == id).map_or(at, |(known, _)| at.max(*known));
        self.operations.retain(|(_, known)| *known != id);
        self.operations.push((last, id));
        self.operations.sort_unstable();
        let beyond = self.operations.len().saturating_sub(limits::GROUP_OPERATIONS_MAX);
        self.operations.drain(..beyond);
    }

    /// The operations that touched its letters, latest first.
    pub fn operations(&self) -> impl Iterator<Item = OperationId> {
        self.operations.iter().rev().map(|(_, id)| *id)
    }

    /// The facts of two groups that turned out to be one.
    #[must_use]
    pub fn joined(mut self, other: Self) -> Self {
        for (hour, deaths, failures) in other.hours {
            if let Some((_, mine, failed)) = self.hour(hour) {
                *mine += deaths;
                *failed += failures;
            }
        }
        self.trim();
        self.workers.join(other.workers);
        self.versions.join(other.versions);
        self.hosts.join(other.hosts);
        for (at, id) in other.operations {
            self.note_operation(id, at);
        }
        self
    }

    /// The hours of the last two days that had something in them, oldest first.
    #[must_use]
    pub fn hours(&self, now: Time) -> Vec<Hour> {
        let now = hour_of(now);
        let lately = self.hours.iter().filter(|(hour, _, _)| hour + limits::GROUP_HOURS > now);
        let at = |hour: u64| Time::ZERO.plus(HOUR.times(hour));
        lately
            .map(|(hour, deaths, failures)| Hour { at: at(*hour), deaths: *deaths, failures: *failures })
            .collect()
    }

    /// The workers that failed with it most.
    #[must_use]
    pub fn workers(&self) -> Vec<Counted> {
        self.workers.most()
    }

    /// The versions that failed with it most.
    #[must_use]
    pub fn versions(&self) -> Vec<Counted> {
        self.versions.most()
    }

    /// The hosts it failed on most.
    #[must_use]
    pub fn hosts(&self) -> Vec<Counted> {
        self.hosts.most()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn at(hours: u64) -> Time {
        Time::ZERO.plus(HOUR.times(hours))
    }

    fn operation(n: u128) -> OperationId {
        OperationId::new(crate::ids::MessageId::from_bytes(n.to_be_bytes()))
    }

    #[test]
    fn names_are_exact_while_they_are_few_and_rise_when_they_are_many() {
        let mut tops = Tops::default();
        for n in 0..limits::GROUP_NAMES_MAX {
            (0..=n).for_each(|_| tops.add(&format!("w{n:02}")));
        }
        assert!(tops.most().iter().all(|counted| counted.over == 0));
        assert_eq!(tops.most().first().map(|c| c.count), Some(limits::GROUP_NAMES_MAX as u64));
        (0..100).for_each(|_| tops.add("new"));
        let first = tops.most().first().cloned().unwrap();
        assert_eq!(
            (first.name.as_str(), first.count, first.over),
            ("new", 101, 1),
            "at most one was another's"
        );
        assert_eq!(tops.most().len(), limits::GROUP_NAMES_MAX);
    }

    #[test]
    fn operations_are_the_latest_few() {
        let mut facts = Facts::default();
        for n in 1..100 {
            facts.operated(operation(n), at(1));
            facts.operated(operation(n), at(1));
        }
        facts.operated(operation(3), at(2));
        let mut other = Facts::default();
        other.operated(operation(99), at(1));
        other.operated(operation(200), at(3));
        other.operated(operation(3), at(1));
        for both in [other.clone().joined(facts.clone()), facts.joined(other)] {
            let shown: Vec<OperationId> = both.operations().collect();
            assert_eq!(shown.len(), limits::GROUP_OPERATIONS_MAX);
            assert_eq!(shown.get(..3), Some([200, 3, 99].map(operation).as_slice()));
        }
    }

    proptest! {
        /// However the failures are split over two groups, joined they are what one would have counted.
        #[test]
        fn hours_add_up(
            seen in proptest::collection::vec((0_u64..120, any::<bool>(), any::<bool>()), 0..200),
            later in 0_u64..60,
        ) {
            let mut ordered = seen.clone();
            ordered.sort_by_key(|(hour, _, _)| *hour);
            let (mut one, mut other) = (Facts::default(), Facts::default());
            let mut plain: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
            let mut latest = 0;
            for (hour, first, death) in ordered {
                let facts = if first { &mut one } else { &mut other };
                let counted = plain.entry(hour).or_default();
                if death {
                    facts.died(at(hour));
                    counted.0 += 1;
                } else {
                    facts.failed(Some("w"), None, None, at(hour));
                    counted.1 += 1;
                }
                latest = hour;
            }
            let now = latest + later;
            plain.retain(|hour, _| hour + limits::GROUP_HOURS > now);
            let hours: BTreeMap<u64, (u64, u64)> =
                one.joined(other).hours(at(now)).iter().map(|h| (hour_of(h.at), (h.deaths, h.failures))).collect();
            prop_assert_eq!(hours, plain);
        }
    }
}
