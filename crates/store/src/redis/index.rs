//! The indexes: sorted sets whose members sort as bytes, and what a row has in each of them.
//!
//! A member begins with what it is found and sorted by. Members about letters end with the letter's id (16 bytes) and its
//! death number (8 bytes). The commit function remembers the entries of a row, so that it can take them back.

use crate::engine::tables::Letter;
use redrive_core::dead_letter::Status;
use redrive_core::ids::{MessageId, QueueName};
use redrive_core::time::Time;

/// An index. The number is part of the stored format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Index {
    /// Letters by death; the status follows the death number.
    Death = 1,
    /// Letters by leaf, then by death.
    Leaf = 2,
    /// Letters that a consumer could lease, by dead letter queue, then by death; the time from which it may follows.
    Pending = 3,
    /// Letters in quarantine, by its end.
    Quarantined = 4,
    /// Letters that owe a reply, by queue, redrives and death.
    Owing = 5,
    /// Letters that are removed at some time, by that time.
    Expiring = 6,
    /// Letters that hold their ordering key, by death.
    Holding = 7,
    /// Letters that are not closed, by the time of death.
    Open = 8,
    /// Delayed messages by queue, then by the time at which they are ready.
    Delayed = 9,
}

impl Index {
    /// The key of the sorted set, without the prefix.
    pub(super) fn name(self) -> String {
        format!("x:{}", self as u8)
    }
}

/// The bytes at the end of a member about a letter: its id and its death number.
pub(super) const LETTER_SUFFIX: usize = 24;

/// A time, so that earlier ones sort first.
pub(super) fn time(at: Time) -> [u8; 8] {
    (at.as_millis().cast_unsigned() ^ (1 << 63)).to_be_bytes()
}

/// The first time after this one.
pub(super) fn after(now: Time) -> [u8; 8] {
    time(Time::from_millis(now.as_millis().saturating_add(1)))
}

/// The time that [`time`] wrote.
pub(super) fn to_time(bytes: [u8; 8]) -> Time {
    Time::from_millis((u64::from_be_bytes(bytes) ^ (1 << 63)).cast_signed())
}

/// A name with its length, so that no name is the beginning of another.
pub(super) fn name(queue: &QueueName) -> Vec<u8> {
    let length = u16::try_from(queue.as_str().len()).unwrap_or(u16::MAX);
    [length.to_be_bytes().as_slice(), queue.as_str().as_bytes()].concat()
}

/// The status in members of [`Index::Death`].
pub(super) fn status(status: Status) -> u8 {
    match status {
        Status::Pending => 1,
        Status::Retrying => 2,
        Status::Review => 3,
        Status::Quarantined => 4,
        Status::Resolved => 5,
        Status::Abandoned => 6,
        Status::Purged => 7,
    }
}

/// Collects the entries of a row in the form that the commit function takes.
#[derive(Default)]
struct Entries(Vec<u8>);

impl Entries {
    fn add(&mut self, index: Index, parts: &[&[u8]]) {
        let length = parts.iter().map(|part| part.len()).sum::<usize>();
        self.0.push(index as u8);
        // Names are far shorter than this.
        self.0.extend(u16::try_from(length).unwrap_or(u16::MAX).to_be_bytes());
        parts.iter().for_each(|part| self.0.extend(*part));
    }
}

/// What the indexes have about a live message.
pub(super) fn of_live(id: &[u8], queue: &QueueName, ready_at: Time, delayed: bool) -> Vec<u8> {
    let mut entries = Entries::default();
    if delayed {
        entries.add(Index::Delayed, &[&name(queue), &time(ready_at), id]);
    }
    entries.0
}

/// What the indexes have about a letter.
pub(super) fn of_letter(letter: &Letter) -> Vec<u8> {
    let record = &letter.record;
    let death = letter.death.to_be_bytes();
    let suffix = [letter.meta.id.to_bytes().as_slice(), &death].concat();
    let mut entries = Entries::default();
    entries.add(Index::Death, &[&death, &[status(record.status)], &suffix]);
    entries.add(Index::Leaf, &[&record.leaf.get().to_be_bytes(), &death, &suffix]);
    if record.status == Status::Pending && record.erased.is_none() {
        let until = [record.snoozed_until, record.consumer_until].into_iter().flatten().max();
        let from = until.map_or(record.available_at, |until| until.max(record.available_at));
        entries.add(Index::Pending, &[&name(&record.dlq), &death, &time(from), &suffix]);
    }
    if let (Status::Quarantined, Some(until)) = (record.status, record.quarantined_until) {
        entries.add(Index::Quarantined, &[&time(until), &suffix]);
    }
    if record.owes_reply && !matches!(record.status, Status::Quarantined | Status::Retrying) {
        let queue = name(&letter.meta.queue);
        entries.add(Index::Owing, &[&queue, &record.redrives.to_be_bytes(), &death, &suffix]);
    }
    if let Some(end) = record.expires_at.filter(|_| record.status != Status::Retrying) {
        entries.add(Index::Expiring, &[&time(end), &suffix]);
    }
    if record.holds_key {
        entries.add(Index::Holding, &[&death, &suffix]);
    }
    if !record.status.is_closed() {
        entries.add(Index::Open, &[&time(record.dead_at), &suffix]);
    }
    entries.0
}

/// The death number and the id at the end of a member about a letter.
pub(super) fn to_letter(member: &[u8]) -> Option<(u64, MessageId)> {
    let (rest, death) = member.split_last_chunk::<8>()?;
    Some((u64::from_be_bytes(*death), MessageId::from_bytes(*rest.last_chunk::<16>()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_times_sort_first_and_are_read_back() {
        let times = [i64::MIN, -1, 0, 1, 1_700_000_000_000, i64::MAX].map(Time::from_millis);
        assert!(times.is_sorted_by_key(|at| time(*at)));
        assert!(times.iter().all(|at| to_time(time(*at)) == *at));
    }

    #[test]
    fn no_queue_is_found_under_the_name_of_another() {
        let (short, long) = ("a".parse().unwrap(), "aa".parse().unwrap());
        assert!(!name(&long).starts_with(&name(&short)));
    }
}
