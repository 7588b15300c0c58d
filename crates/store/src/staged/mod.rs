//! Tables for stores that are kept in a database on the network, where every read costs a round trip.
//!
//! A group of verbs is applied in memory and written in one go. [`Staged`] implements the engine's tables over a
//! [`Base`], which is no more than ordered maps of bytes and a few questions about letters. What the group changes is
//! collected and seen by its own reads; [`Staged::take_changes`] hands over the final rows, and the backend writes them in
//! one step. Because the holder is the only writer, rows that it has read or written can be cached between groups.
//!
//! A reader uses the same type with nothing collected and nothing cached.

mod cache;
mod keys;
mod letters;
mod merge;
mod reads;
mod rows;
mod writes;

pub(crate) use letters::LetterQuery;
pub(crate) use merge::KeyRange;

use crate::access::Wants;
use crate::engine::tables::{Candidates, Letter, LetterScan, TableResult};
use cache::Cache;
use redrive_core::ids::{MessageId, QueueName};
use redrive_core::invariants::Verification;
use redrive_core::survey::Survey;
use redrive_core::time::Time;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The bytes of a row.
pub(crate) type Bytes = Arc<[u8]>;

/// A table: an ordered map from the bytes of a key to the bytes of a row. The number is part of the stored format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Table {
    /// Live messages, by id.
    Live = 1,
    /// Payloads and what belongs to them, by the sequence number of the message.
    Body = 2,
    /// Dead letters, by id.
    Letter = 3,
    /// Idempotency keys, by queue and key.
    Key = 4,
    /// Numbers that only grow; one row.
    Head = 10,
    /// Policies of queues, by name.
    Queue = 11,
    /// Counters of queues, by name.
    QueueCounts = 12,
    /// Failures, by sequence number and ordinal.
    Failure = 13,
    /// Earlier contents of letters, by sequence number and revision.
    Revision = 14,
    /// Letters by dead letter queue and status.
    DlqCount = 15,
    /// Open letters by queue, kind and priority.
    OpenLetters = 16,
    /// Leaves of the signature tree, by id.
    Leaf = 17,
    /// Counters of leaves, by leaf, queue and kind.
    LeafCount = 18,
    /// Groups, by id.
    Group = 19,
    /// Activity of groups, by id.
    GroupActivity = 20,
    /// Histories of groups, by id.
    GroupHistory = 21,
    /// Markers, by number.
    Marker = 22,
    /// Breakers, by queue and key.
    Breaker = 23,
    /// Counters of events, by event, queue and label.
    EventCounter = 24,
    /// Operations, by position.
    Operation = 25,
    /// Positions of operations, by id.
    OperationPosition = 26,
    /// Members of operations, by operation and position.
    Member = 27,
    /// The audit trail, by number.
    Audit = 28,
    /// Small durable values, by namespace and key.
    Kv = 29,
}

impl Table {
    /// Whether rows are kept in memory between groups.
    const fn is_cached(self) -> bool {
        matches!(
            self,
            Self::Live | Self::Body | Self::Letter | Self::Key | Self::Member | Self::OperationPosition
        )
    }

    /// Whether the rows are few and change with nearly every commit.
    #[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "only PostgreSQL keeps them apart"))]
    pub(crate) const fn is_hot(self) -> bool {
        matches!(self, Self::Head | Self::QueueCounts | Self::DlqCount | Self::OpenLetters | Self::LeafCount)
            || matches!(self, Self::Group | Self::GroupActivity | Self::GroupHistory | Self::EventCounter)
            || matches!(self, Self::Breaker)
    }
}

/// What a backend must be able to read. All reads of one transaction see the same state.
pub(crate) trait Base {
    /// The rows with these keys, each with the position of its table and key in the question. Missing ones are left out.
    fn get(&self, wanted: &[(Table, Vec<Vec<u8>>)]) -> TableResult<Vec<(Table, Vec<u8>, Bytes)>>;
    /// Rows in the order of their keys, or in reverse.
    fn range(
        &self,
        table: Table,
        range: &KeyRange,
        reverse: bool,
        limit: usize,
    ) -> TableResult<Vec<(Vec<u8>, Bytes)>>;
    /// Letters in the order of the query: death number, id and row.
    fn letters(&self, query: &LetterQuery<'_>, limit: usize) -> TableResult<Vec<(u64, MessageId, Bytes)>>;
    /// See [`crate::engine::tables::Reads::candidates`].
    fn candidates(&self, scan: &LetterScan<'_>) -> TableResult<Candidates>;
    /// See [`crate::engine::tables::Reads::survey`].
    fn survey(&self, scan: &LetterScan<'_>) -> TableResult<Option<Survey>>;
    /// How many messages of a queue are delayed beyond `now`, without these.
    fn scheduled(&self, queue: &QueueName, now: Time, without: &[MessageId]) -> TableResult<u64>;
    /// The time of death of the oldest letter that is not closed.
    fn oldest_open(&self) -> TableResult<Option<Time>>;
    /// The keys of idempotency keys that were created at or before a time, oldest first.
    fn old_keys(&self, before: Time, limit: usize) -> TableResult<Vec<Vec<u8>>>;
    /// Ids in order, after this one.
    fn ids_after(&self, table: Table, after: &[u8], limit: usize) -> TableResult<Vec<Vec<u8>>>;
    /// Checks what is specific to the backend.
    fn check(&self, deep: bool, verification: &mut Verification) -> TableResult<()>;
}

/// What a backend stores in columns of its own, beside the row, so that it can be found.
#[derive(Clone, Debug)]
pub(crate) enum Columns {
    /// Nothing: the row is found by its key alone.
    None,
    /// Of a live message.
    #[cfg_attr(
        not(feature = "postgres"),
        expect(dead_code, reason = "only PostgreSQL has a column for `seq`")
    )]
    Live { seq: u64, queue: QueueName, ready_at: Time, delayed: bool },
    /// Of a letter.
    Letter(Box<Letter>),
    /// Of an idempotency key: when it was created.
    Key(Time),
}

/// The final state of a row that a group changed.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    /// The row. `None` if it was removed.
    pub(crate) row: Option<Bytes>,
    /// Whether the row did not exist before the group.
    pub(crate) fresh: bool,
    pub(crate) columns: Columns,
}

/// Everything that a group changed.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    /// Changed rows.
    pub(crate) rows: BTreeMap<(Table, Vec<u8>), Change>,
    /// Ranges of rows that were removed, by table and first key, with the last key. They are removed before `rows` are
    /// written.
    pub(crate) dropped: BTreeMap<(Table, Vec<u8>), Vec<u8>>,
}

impl Changes {
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.dropped.is_empty()
    }

    /// Whether the row with this key was removed as part of a range.
    fn is_dropped(&self, table: Table, key: &[u8]) -> bool {
        if self.dropped.is_empty() {
            return false;
        }
        let before = self.dropped.range(..=(table, key.to_vec())).next_back();
        before.is_some_and(|((of, _), last)| *of == table && key <= last.as_slice())
    }

    /// Whether a range was removed from this table.
    fn has_dropped(&self, table: Table) -> bool {
        self.dropped.keys().any(|(of, _)| *of == table)
    }
}

/// The sequence number of the message or letter that is stored in this row. `None` if the row cannot be read.
#[cfg(feature = "redis")]
pub(crate) fn seq_of(table: Table, key: &[u8], row: &[u8]) -> Option<u64> {
    let id = MessageId::from_bytes(<[u8; 16]>::try_from(key).ok()?);
    match table == Table::Letter {
        true => rows::decode_letter(id, row).ok().map(|letter| letter.meta.seq),
        false => rows::to_live(id, row).ok().map(|live| live.meta.seq),
    }
}

/// The tables of a store on the network.
#[derive(Debug)]
pub(crate) struct Staged<B> {
    pub(crate) base: B,
    changes: Changes,
    cache: RefCell<Cache>,
    /// How many writes were made.
    writes: u64,
    /// How many reads of single rows had to ask the database in the middle of a group.
    pub(crate) misses: Cell<u64>,
}

impl<B: Base> Staged<B> {
    /// Tables for reading only.
    pub(crate) fn reader(base: B) -> Self {
        Self::with_cache(base, 0)
    }

    /// Tables for the only writer, which keeps rows of up to `bytes` bytes in memory.
    pub(crate) fn with_cache(base: B, bytes: usize) -> Self {
        Self {
            base,
            changes: Changes::default(),
            cache: RefCell::new(Cache::new(bytes)),
            writes: 0,
            misses: Cell::new(0),
        }
    }

    /// The row with this key, as this group sees it.
    fn row(&self, table: Table, key: &[u8]) -> TableResult<Option<Bytes>> {
        if let Some(known) = self.known(table, key) {
            return Ok(known);
        }
        self.misses.set(self.misses.get() + 1);
        let found = self.base.get(&[(table, vec![key.to_vec()])])?.pop().map(|(_, _, row)| row);
        if table.is_cached() {
            self.cache.borrow_mut().put(table, key, found.clone());
        }
        Ok(found)
    }

    /// The row with this key if it is in memory; `Some(None)` if it is known not to exist.
    fn known(&self, table: Table, key: &[u8]) -> Option<Option<Bytes>> {
        if let Some(change) = self.changes.rows.get(&(table, key.to_vec())) {
            return Some(change.row.clone());
        }
        if self.changes.is_dropped(table, key) {
            return Some(None);
        }
        if table.is_cached() { self.cache.borrow_mut().get(table, key) } else { None }
    }

    /// Reads the rows that a group will ask for: one round trip for what its verbs name, and another for what those rows
    /// lead to.
    pub(crate) fn load(&self, wants: &[Wants], leased: Vec<MessageId>) -> TableResult<()> {
        let at = |table: Table, id: MessageId| (table, id.to_bytes().to_vec());
        let mut named: Vec<(Table, Vec<u8>)> = Vec::new();
        let mut live: Vec<MessageId> = leased;
        for want in wants {
            live.extend(&want.messages);
            named.extend(want.letters.iter().map(|id| at(Table::Letter, *id)));
            named.extend(
                want.keys.iter().map(|(queue, key)| (Table::Key, keys::texts(&[queue.as_str()], key))),
            );
        }
        named.extend(live.iter().map(|id| at(Table::Live, *id)));
        self.preload(&named)?;
        let mut further = Vec::new();
        for id in live {
            let Some(Some(row)) = self.known(Table::Live, &id.to_bytes()) else { continue };
            // A row that cannot be read is reported by whoever needs it.
            let Ok(live) = rows::to_live(id, &row) else { continue };
            if let Some(key) = &live.meta.key {
                further.push((Table::Key, keys::texts(&[live.meta.home().as_str()], key)));
            }
            if live.lifecycle.generation > 1 {
                further.push(at(Table::Letter, id));
            }
        }
        self.preload(&further)
    }

    /// Reads rows that are not in memory yet, in one round trip.
    fn preload(&self, wanted: &[(Table, Vec<u8>)]) -> TableResult<()> {
        let mut missing: BTreeMap<Table, Vec<Vec<u8>>> = BTreeMap::new();
        for (table, key) in wanted {
            if table.is_cached() && self.known(*table, key).is_none() {
                missing.entry(*table).or_default().push(key.clone());
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        let missing: Vec<(Table, Vec<Vec<u8>>)> = missing.into_iter().collect();
        let mut cache = self.cache.borrow_mut();
        for (table, keys) in &missing {
            for key in keys {
                cache.put(*table, key, None);
            }
        }
        for (table, key, row) in self.base.get(&missing)? {
            cache.put(table, &key, Some(row));
        }
        Ok(())
    }

    fn put(&mut self, table: Table, key: Vec<u8>, row: Vec<u8>, columns: Columns) {
        self.writes += 1;
        let fresh = self.changes.rows.get(&(table, key.clone())).is_some_and(|change| change.fresh);
        self.changes.rows.insert((table, key), Change { row: Some(row.into()), fresh, columns });
    }

    /// Adds a row that does not exist yet.
    fn add(&mut self, table: Table, key: Vec<u8>, row: Vec<u8>, columns: Columns) {
        self.writes += 1;
        // A row that this group removed is still in the database.
        let fresh = !self.changes.rows.contains_key(&(table, key.clone()));
        self.changes.rows.insert((table, key), Change { row: Some(row.into()), fresh, columns });
    }

    fn remove(&mut self, table: Table, key: Vec<u8>) {
        self.writes += 1;
        let at = (table, key);
        if self.changes.rows.get(&at).is_some_and(|change| change.fresh) {
            self.changes.rows.remove(&at);
        } else {
            self.changes.rows.insert(at, Change { row: None, fresh: false, columns: Columns::None });
        }
    }

    /// Removes all rows of a table whose keys are in a range, both ends included.
    fn remove_range(&mut self, table: Table, first: Vec<u8>, last: Vec<u8>) {
        self.writes += 1;
        let within: Vec<_> = self
            .changes
            .rows
            .range((table, first.clone())..=(table, last.clone()))
            .map(|(at, _)| at.clone())
            .collect();
        for at in within {
            self.changes.rows.remove(&at);
        }
        let end = self.changes.dropped.entry((table, first)).or_default();
        if *end < last {
            *end = last;
        }
    }

    /// Takes what the group changed, to be written in one step.
    pub(crate) fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    /// Keeps what was written in memory, after a commit that happened.
    pub(crate) fn committed(&self, changes: Changes) {
        let mut cache = self.cache.borrow_mut();
        for ((table, key), change) in changes.rows {
            if !table.is_cached() {
                continue;
            }
            match change.row {
                Some(row) => cache.put(table, &key, Some(row)),
                None => cache.forget(table, &key),
            }
        }
    }

    /// Drops everything that is only in memory, after a commit that did not happen.
    fn forget_all(&mut self) {
        self.changes = Changes::default();
        self.cache.borrow_mut().clear();
    }
}
