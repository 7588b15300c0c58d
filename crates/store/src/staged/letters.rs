//! Questions about letters that an index answers, and how a group's own changes are merged into the answer.

use super::{Base, Bytes, Change, Columns, Staged, Table, rows};
use crate::engine::tables::{Letter, Rows, TableResult, unless_damaged};
use redrive_core::dead_letter::Status;
use redrive_core::ids::{LeafId, MessageId, QueueName};
use redrive_core::time::Time;
use std::collections::HashSet;

/// Which letters are asked for, and in which order.
#[derive(Clone, Copy, Debug)]
pub(crate) enum LetterQuery<'a> {
    /// Those with these death numbers, in the order of death.
    At(&'a [u64]),
    /// Those that died after one death number, up to another; in the order of death.
    Deaths { after: u64, up_to: u64 },
    /// Those of a dead letter queue that a consumer may lease, in the order of death.
    Leasable { dlq: &'a QueueName, now: Time },
    /// Those whose quarantine has ended, by its end, then by id.
    QuarantineEnded { now: Time },
    /// Those of a queue that owe a reply after this many redrives, by redrives, then by death.
    OwingReplies { queue: &'a QueueName, redrives: u32 },
    /// Those whose retention has ended, by its end, then by id.
    RetentionEnded { now: Time },
    /// Those that hold their ordering key, in the order of death.
    HoldingKeys,
    /// Those of a leaf, latest death first.
    OfLeaf(LeafId),
}

impl LetterQuery<'_> {
    /// Whether the letter is one of those asked for.
    fn matches(&self, letter: &Letter) -> bool {
        let record = &letter.record;
        match self {
            Self::At(deaths) => deaths.contains(&letter.death),
            Self::Deaths { after, up_to } => letter.death > *after && letter.death <= *up_to,
            Self::Leasable { dlq, now } => record.dlq == **dlq && record.leasable(*now),
            Self::QuarantineEnded { now } => {
                record.status == Status::Quarantined
                    && record.quarantined_until.is_some_and(|until| until <= *now)
            }
            Self::OwingReplies { queue, redrives } => {
                let rests = !matches!(record.status, Status::Quarantined | Status::Retrying);
                record.owes_reply && letter.meta.queue == **queue && rests && record.redrives >= *redrives
            }
            Self::RetentionEnded { now } => record.is_past_retention(*now),
            Self::HoldingKeys => record.holds_key,
            Self::OfLeaf(leaf) => record.leaf == *leaf,
        }
    }

    /// What the answer is sorted by.
    fn position(&self, letter: &Letter) -> (i64, i64, MessageId) {
        let death = i64::try_from(letter.death).unwrap_or(i64::MAX);
        let (record, id) = (&letter.record, letter.meta.id);
        let end = |time: Option<Time>| time.map_or(i64::MAX, Time::as_millis);
        match self {
            Self::At(_) | Self::Deaths { .. } | Self::Leasable { .. } | Self::HoldingKeys => (death, 0, id),
            Self::QuarantineEnded { .. } => (end(record.quarantined_until), 0, id),
            Self::OwingReplies { .. } => (record.redrives.into(), death, id),
            Self::RetentionEnded { .. } => (end(record.expires_at), 0, id),
            Self::OfLeaf(_) => (-death, 0, id),
        }
    }
}

impl<B: Base> Staged<B> {
    /// The letters that this group changed or removed.
    fn changed_letters(&self) -> impl Iterator<Item = (MessageId, &Change)> {
        let of_letters = self.changes.rows.range((Table::Letter, Vec::new())..);
        of_letters.take_while(|((table, _), _)| *table == Table::Letter).filter_map(|((_, key), change)| {
            Some((MessageId::from_bytes(<[u8; 16]>::try_from(key.as_slice()).ok()?), change))
        })
    }

    /// Whether this group changed any letter.
    pub(super) fn has_changed_letters(&self) -> bool {
        self.changed_letters().next().is_some()
    }

    /// The changed letters that still exist.
    pub(super) fn pending_letters(&self) -> impl Iterator<Item = &Letter> {
        self.changed_letters().filter_map(|(_, change)| match &change.columns {
            Columns::Letter(letter) => Some(letter.as_ref()),
            Columns::None | Columns::Live { .. } | Columns::Key(_) => None,
        })
    }

    /// The ids of the letters that this group changed or removed.
    pub(super) fn changed_letter_ids(&self) -> HashSet<MessageId> {
        self.changed_letters().map(|(id, _)| id).collect()
    }

    /// Letters in the order of the query, as this group sees them.
    pub(super) fn find_letters(
        &self,
        query: &LetterQuery<'_>,
        limit: usize,
    ) -> TableResult<Rows<u64, Letter>> {
        let read = |(death, id, row): (u64, MessageId, Bytes)| (death, rows::decode_letter(id, &row));
        let changed = self.changed_letter_ids();
        let found = self.base.letters(query, limit.saturating_add(changed.len()))?;
        if changed.is_empty() {
            return Ok(found.into_iter().map(read).collect());
        }
        let mut letters: Rows<u64, Letter> =
            found.into_iter().filter(|(_, id, _)| !changed.contains(id)).map(read).collect();
        let pending = self.pending_letters().filter(|letter| query.matches(letter));
        letters.extend(pending.map(|letter| (letter.death, Ok(letter.clone()))));
        letters.sort_by_cached_key(|(death, letter)| match letter {
            Ok(letter) => query.position(letter),
            Err(_) => (i64::try_from(*death).unwrap_or(i64::MAX), 0, MessageId::from_bytes([0; 16])),
        });
        letters.truncate(limit);
        Ok(letters)
    }

    /// Like [`Staged::find_letters`], without damaged letters: they never stand in the way of the others.
    pub(super) fn undamaged_letters(
        &self,
        query: &LetterQuery<'_>,
        limit: usize,
    ) -> TableResult<Vec<Letter>> {
        let mut wanted = limit;
        loop {
            let found = self.find_letters(query, wanted)?;
            let all = found.len() < wanted;
            let mut letters = Vec::with_capacity(found.len());
            for (_, letter) in found {
                letters.extend(unless_damaged(letter)?);
            }
            if all || letters.len() >= limit {
                letters.truncate(limit);
                return Ok(letters);
            }
            wanted = wanted.saturating_mul(2);
        }
    }
}
