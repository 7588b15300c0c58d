//! The change feed of a holder: the version at which each area changed last. Publishing takes a lock that nobody holds
//! for long, and wakes only those who read the feed.

use super::Holder;
use redrive_core::changes::{Area, Changes, FeedPosition};
use redrive_core::limits;
use redrive_core::time::Span;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;

/// The feed.
#[derive(Debug)]
pub(super) struct Feed {
    epoch: u64,
    versions: Mutex<Versions>,
    /// Says that there is something new. The versions are behind the mutex.
    news: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct Versions {
    /// The version of the last change.
    last: u64,
    /// The version of the last change of each area.
    areas: BTreeMap<Area, u64>,
    /// Changes up to this version are forgotten.
    forgotten: u64,
}

impl Versions {
    fn publish(&mut self, areas: impl IntoIterator<Item = Area>) {
        self.last += 1;
        for area in areas {
            self.areas.insert(area, self.last);
        }
        if self.areas.len() > limits::CHANGES_AREAS_MAX {
            self.forget_older_half();
        }
    }

    fn forget_older_half(&mut self) {
        let mut versions: Vec<u64> = self.areas.values().copied().collect();
        versions.sort_unstable();
        self.forgotten = versions.get(versions.len() / 2).copied().unwrap_or(self.last);
        self.areas.retain(|_, version| *version > self.forgotten);
    }

    /// What changed after a version. `None` if that is not known any more.
    fn after(&self, version: u64) -> Option<BTreeSet<Area>> {
        if version < self.forgotten || version > self.last {
            return None;
        }
        if version == self.last {
            return Some(BTreeSet::new());
        }
        let changed = self.areas.iter().filter(|(_, changed)| **changed > version);
        Some(changed.map(|(area, _)| area.clone()).collect())
    }
}

impl Feed {
    pub(super) fn new(epoch: u64) -> Self {
        Self { epoch, versions: Mutex::default(), news: watch::Sender::new(()) }
    }

    fn versions(&self) -> MutexGuard<'_, Versions> {
        self.versions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts these areas as changed, at one version.
    pub(super) fn publish(&self, areas: impl IntoIterator<Item = Area>) {
        self.versions().publish(areas);
        if self.news.receiver_count() > 0 {
            self.news.send_replace(());
        }
    }

    fn since(&self, since: Option<FeedPosition>) -> Changes {
        let versions = self.versions();
        let at = FeedPosition { epoch: self.epoch, version: versions.last };
        let known = since.filter(|since| since.epoch == self.epoch);
        match known.and_then(|since| versions.after(since.version)) {
            Some(areas) => Changes { at, everything: false, areas },
            None => Changes::everything(at),
        }
    }
}

/// What changed since a position, as soon as something did, or nothing after `at_most`.
pub(crate) async fn changes(holder: &Holder, since: Option<FeedPosition>, at_most: Span) -> Changes {
    let end = tokio::time::Instant::now() + at_most.to_std();
    // Subscribe before looking, or a change between the two would be missed.
    let mut news = holder.feed.news.subscribe();
    loop {
        let changes = holder.feed.since(since);
        if !changes.is_empty() || tokio::time::timeout_at(end, news.changed()).await.is_err() {
            return changes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redrive_core::ids::LeafId;

    fn group(n: u64) -> Area {
        Area::Group(LeafId::new(n))
    }

    #[test]
    fn an_area_is_named_to_those_who_have_not_seen_its_last_change() {
        let mut versions = Versions::default();
        versions.publish([Area::Breakers, Area::Audit]);
        versions.publish([Area::Breakers]);
        assert_eq!(versions.after(0), Some(BTreeSet::from([Area::Breakers, Area::Audit])));
        assert_eq!(versions.after(1), Some(BTreeSet::from([Area::Breakers])));
        assert_eq!(versions.after(2), Some(BTreeSet::new()));
        assert_eq!(versions.after(3), None, "a position that was never given out");
    }

    #[test]
    fn i49_a_feed_forgets_what_changed_long_ago_and_says_so() {
        let mut versions = Versions::default();
        let most = limits::CHANGES_AREAS_MAX as u64;
        for n in 0..10 * most {
            versions.publish([group(n)]);
            assert!(versions.areas.len() <= limits::CHANGES_AREAS_MAX);
        }
        let last = 10 * most;
        assert_eq!(versions.after(0), None);
        assert_eq!(versions.after(versions.forgotten - 1), None);
        let known = versions.after(versions.forgotten).unwrap();
        assert_eq!(known.len() as u64, last - versions.forgotten);
        assert!(known.len() >= limits::CHANGES_AREAS_MAX / 2 - 1, "{}", known.len());
        assert_eq!(versions.after(last - 1), Some(BTreeSet::from([group(last - 1)])));
    }

    #[test]
    fn many_areas_in_one_commit_are_everything() {
        let mut versions = Versions::default();
        versions.publish((0..=limits::CHANGES_AREAS_MAX as u64).map(group));
        assert_eq!(versions.after(0), None);
        assert_eq!(versions.after(1), Some(BTreeSet::new()));
    }
}
