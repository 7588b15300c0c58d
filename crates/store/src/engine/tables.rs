//! The boundary between the engine and storage. The engine is written once over these traits. A backend provides
//! tables that can be read at any time ([`Reads`]) and written inside a commit ([`Tables`]). An implementation stores
//! what it is given and makes no decisions.

use redrive_core::audit::AuditRow;
use redrive_core::breaker::Breaker;
use redrive_core::dead_letter::{LetterRecord, Status};
use redrive_core::error::{StoreError, StoreErrorKind};
use redrive_core::failure::Failure;
use redrive_core::filter::Filter;
use redrive_core::group::{GroupActivity, GroupRow, Leaf, LeafCount, LeafKey, Marker};
use redrive_core::ids::{GroupId, LeafId, MessageId, OperationId, QueueName, Secret};
use redrive_core::invariants::{Counts, Verification};
use redrive_core::lifecycle::{Lifecycle, State};
use redrive_core::message::{Envelope, MessageMeta, NewMessage, Payload};
use redrive_core::metrics::{CounterKey, CounterTotals, OpenCounts, OpenKey};
use redrive_core::operation::{Member, MemberOutcome, Operation, Outcomes};
use redrive_core::poison::GroupHistory;
use redrive_core::policy::QueuePolicy;
use redrive_core::revision::Content;
use redrive_core::short_id::IdKind;
use redrive_core::store::{KvEntry, KvItem};
use redrive_core::survey::Survey;
use redrive_core::time::{Span, Time};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Instant;

/// The result of a table access.
pub(crate) type TableResult<T> = Result<T, StoreError>;

/// Returns `None` for a record whose bytes are damaged, so that the caller can skip it. Other errors end the commit.
pub(crate) fn unless_damaged<T>(read: TableResult<T>) -> TableResult<Option<T>> {
    match read {
        Err(error) if error.kind == StoreErrorKind::Damaged => Ok(None),
        read => read.map(Some),
    }
}

/// The error for stored content that cannot be right.
#[cfg(any(feature = "sqlite", feature = "postgres", feature = "redis"))]
pub(crate) fn damaged(what: impl std::fmt::Display) -> StoreError {
    let text = format!(
        "{what}; `redrive doctor --deep` names all that is damaged, then restore the last backup, or set damaged \
         records aside with `redrive doctor --repair`"
    );
    StoreError::new(StoreErrorKind::Damaged, text)
}

/// Rows with their keys. A damaged row carries its own error, so that the other rows stay usable.
pub(crate) type Rows<K, T> = Vec<(K, TableResult<T>)>;

/// A live message as stored in its table.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Live {
    pub(crate) meta: MessageMeta,
    pub(crate) lifecycle: Lifecycle,
}

/// A dead letter as stored in its table. While it is being redriven, `lifecycle` is the one at its death; the live
/// message has the current one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Letter {
    pub(crate) death: u64,
    pub(crate) meta: MessageMeta,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) record: LetterRecord,
    pub(crate) secret: Option<Secret>,
}

/// What is stored under an idempotency key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KeyRow {
    pub(crate) id: MessageId,
    pub(crate) body_hash: [u8; 32],
    pub(crate) created_at: Time,
    /// How the message ended, if it has.
    pub(crate) ended: Option<State>,
}

/// A queue as stored in its table.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct QueueRow {
    pub(crate) policy: Arc<QueuePolicy>,
    pub(crate) paused_by: Option<String>,
    pub(crate) counts: Counts,
    /// The most messages it ever held.
    pub(crate) peak: i64,
    /// The most dead letters it ever held.
    pub(crate) dead_peak: i64,
}

/// Numbers that only grow, and the head of the audit chain.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Heads {
    pub(crate) seq: u64,
    pub(crate) death: u64,
    pub(crate) audit_n: u64,
    pub(crate) audit_seal: String,
    /// The most messages the store ever held at once.
    pub(crate) messages_peak: i64,
    /// The most dead letters the store ever held at once.
    pub(crate) letters_peak: i64,
}

/// A member of an operation that waits for its turn.
pub(crate) struct FrozenMember {
    /// The death number of its letter when the member was frozen.
    pub(crate) position: u64,
    pub(crate) member: Member,
    pub(crate) letter: Option<Letter>,
}

/// What became of a member of an operation.
pub(crate) struct MemberUpdate {
    pub(crate) outcome: MemberOutcome,
    /// The version of its letter, if the operation changed the letter.
    pub(crate) version: Option<u64>,
    pub(crate) why: Option<String>,
}

/// A bounded search for letters: which ones match, and how much may be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LetterScan<'a> {
    /// The filter, with each group replaced by the group it was merged into.
    pub(crate) filter: &'a Filter,
    /// The statuses to include. `None` includes all.
    pub(crate) statuses: Option<&'a [Status]>,
    /// Only letters whose death number is greater than this.
    pub(crate) after: u64,
    /// Only letters whose death number is at most this.
    pub(crate) up_to: u64,
    /// Whether to go from the latest death to the oldest, instead of from the oldest to the latest.
    pub(crate) latest_first: bool,
    /// The maximum number of candidates to return.
    pub(crate) candidates_max: usize,
    /// The maximum number of rows to read; a backend that reads in batches may read a few more.
    pub(crate) rows_max: usize,
    /// No further batch is started after this instant.
    pub(crate) until: Option<Instant>,
    pub(crate) now: Time,
}

/// The result of a [`LetterScan`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Candidates {
    /// The death numbers of the candidates, in the order of the scan.
    pub(crate) deaths: Vec<u64>,
    /// The number of rows that were read.
    pub(crate) looked_at: usize,
    /// The scan has covered everything up to this death number, in the order of the scan.
    pub(crate) reached: u64,
    /// Whether the scan reached its end.
    pub(crate) ended: bool,
    /// Whether every candidate is known to match, so that the filter need not be evaluated on it.
    pub(crate) exact: bool,
}

/// How far the text index has come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TextState {
    /// Every letter that died up to this death number is in the index.
    pub(crate) indexed_to: u64,
    /// Letters whose index entry is out of date or whose letter is gone: the death number and the number of the change.
    pub(crate) stale: Vec<(u64, u64)>,
}

/// Entries to be added to the text index, prepared from one consistent snapshot.
#[derive(Clone, Debug, Default)]
pub(crate) struct TextBatch {
    /// How far the index had come when the batch was prepared.
    pub(crate) state: TextState,
    /// How far the index has come with this batch.
    pub(crate) up_to: u64,
    /// The text of letters that are not in the index yet, by death number.
    pub(crate) fresh: Vec<(u64, String)>,
    /// The current text of the letters in [`TextState::stale`]; `None` for letters that are gone.
    pub(crate) changed: Vec<((u64, u64), Option<String>)>,
}

/// The result of freezing one batch of members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frozen {
    /// How many members were added.
    pub(crate) members: u64,
    /// Every letter up to this death number has been considered.
    pub(crate) frozen_to: u64,
    /// Whether no letter is left up to the bound.
    pub(crate) exhausted: bool,
}

/// Identifies a breaker: its queue and the value of its key.
pub(crate) type BreakerId = (QueueName, String);

/// The number of letters by dead letter queue and status.
pub(crate) type DlqCounts = BTreeMap<(QueueName, Status), i64>;

/// A body that was read but not decoded yet.
#[derive(Debug)]
pub(crate) enum StoredBody {
    /// Kept as a value in memory.
    #[cfg(feature = "memory")]
    Whole(Box<Envelope>),
    /// Kept as bytes with a checksum.
    #[cfg(any(feature = "sqlite", feature = "postgres", feature = "redis"))]
    Packed(crate::body::Packed),
}

impl StoredBody {
    /// Decodes the envelope. Fails if the bytes are not what was written (I46).
    pub(crate) fn open(self, meta: &MessageMeta) -> TableResult<Envelope> {
        match self {
            #[cfg(feature = "memory")]
            Self::Whole(envelope) => Ok(*envelope),
            #[cfg(any(feature = "sqlite", feature = "postgres", feature = "redis"))]
            Self::Packed(packed) => packed.open(meta),
        }
    }
}

/// Everything that can be read, on a connection of its own or inside a commit.
pub(crate) trait Reads {
    fn heads(&self) -> TableResult<Heads>;
    fn queues(&self) -> TableResult<BTreeMap<QueueName, QueueRow>>;
    /// How many waiting messages of a queue are not due yet.
    fn scheduled(&self, queue: &QueueName, now: Time) -> TableResult<u64>;

    /// Whether a live message or a letter has this id.
    fn id_exists(&self, id: MessageId) -> TableResult<bool>;
    fn live(&self, id: MessageId) -> TableResult<Option<Live>>;
    /// Live messages in id order, after this id.
    fn live_after(&self, after: Option<MessageId>, limit: usize) -> TableResult<Rows<MessageId, Live>>;
    /// Live messages in id order, starting at this id.
    fn live_from(&self, from: MessageId, limit: usize) -> TableResult<Rows<MessageId, Live>>;
    /// The messages of letters that hold their ordering key.
    fn letters_holding_keys(&self) -> TableResult<Vec<MessageMeta>>;
    /// The stored body of a message. The caller decodes it, outside the commit where possible.
    fn body(&self, meta: &MessageMeta) -> TableResult<StoredBody>;
    /// The stored body of a message if it is in memory. `None` if a lease should read it after the commit, with others.
    fn body_at_hand(&self, meta: &MessageMeta) -> TableResult<Option<StoredBody>> {
        self.body(meta).map(Some)
    }
    /// The stored bodies of messages, in the same order.
    fn bodies(&self, metas: &[MessageMeta]) -> TableResult<Vec<TableResult<StoredBody>>> {
        Ok(metas.iter().map(|meta| self.body(meta)).collect())
    }
    /// The decoded envelope of a message.
    fn envelope(&self, meta: &MessageMeta) -> TableResult<Envelope> {
        self.body(meta)?.open(meta)
    }
    /// The trace context of a message, read without its payload.
    fn trace(&self, meta: &MessageMeta) -> TableResult<Option<String>>;
    fn failures(&self, meta: &MessageMeta) -> TableResult<Vec<Failure>>;
    fn key(&self, queue: &QueueName, key: &str) -> TableResult<Option<KeyRow>>;
    /// One earlier content of a letter.
    fn revision(&self, meta: &MessageMeta, n: u32) -> TableResult<Option<Content>>;
    /// The numbers of the revisions that are kept, in order.
    fn revision_numbers(&self, meta: &MessageMeta) -> TableResult<Vec<u32>>;

    fn letter(&self, id: MessageId) -> TableResult<Option<Letter>>;
    /// The death numbers of letters that may match the filter, in the order of the scan. The number of rows read is
    /// bounded, so the result can be empty although the scan has not ended.
    fn candidates(&self, scan: &LetterScan<'_>) -> TableResult<Candidates>;
    /// The letters with these death numbers, in the same order. Letters that are gone are left out.
    fn letters_at(&self, deaths: &[u64]) -> TableResult<Rows<u64, Letter>>;
    /// Summarises the matching letters if the tables can do so exactly without decoding any; ignores the limits of
    /// the scan. Returns `None` if every letter has to be looked at.
    fn survey(&self, scan: &LetterScan<'_>) -> TableResult<Option<Survey>>;
    /// Letters with a death number greater than `death` and at most `bound`, oldest first.
    fn letters_after(&self, death: u64, bound: u64, limit: usize) -> TableResult<Rows<u64, Letter>>;
    /// How far the text index has come, with at most `limit` stale letters. `None` if there is no text index.
    fn text_state(&self, limit: usize) -> TableResult<Option<TextState>> {
        let _ = limit;
        Ok(None)
    }
    /// Letters that a consumer may lease. This list and the three below leave out damaged letters.
    fn leasable_letters(&self, dlq: &QueueName, limit: usize, now: Time) -> TableResult<Vec<Letter>>;
    fn quarantine_ended(&self, limit: usize, now: Time) -> TableResult<Vec<Letter>>;
    /// Letters of a queue that owe a reply, were redriven at least `redrives` times, and are neither quarantined nor
    /// being retried; ordered by number of redrives, then by death.
    fn letters_owing_replies(
        &self,
        queue: &QueueName,
        redrives: u32,
        limit: usize,
    ) -> TableResult<Vec<Letter>>;
    fn retention_ended(&self, limit: usize, now: Time) -> TableResult<Vec<Letter>>;
    fn dlqs(&self) -> TableResult<DlqCounts>;
    /// The number of letters that are not closed, by queue, kind and priority.
    fn open_letters(&self) -> TableResult<OpenCounts>;

    fn leaf(&self, id: LeafId) -> TableResult<Option<Leaf>>;
    /// Every leaf, in the order in which they were first seen.
    fn leaves(&self) -> TableResult<Vec<Leaf>>;
    fn leaf_count(&self, key: &LeafKey) -> TableResult<LeafCount>;
    fn leaf_counts(&self) -> TableResult<Vec<(LeafKey, LeafCount)>>;
    /// The counters of one leaf.
    fn leaf_counts_of(&self, leaf: LeafId) -> TableResult<Vec<(LeafKey, LeafCount)>>;
    /// The leaves of a group.
    fn leaves_of(&self, group: GroupId) -> TableResult<Vec<LeafId>>;
    /// The death numbers of a leaf's letters, latest first.
    fn deaths_of(&self, leaf: LeafId, limit: usize) -> TableResult<Vec<u64>>;
    fn group_row(&self, id: GroupId) -> TableResult<Option<GroupRow>>;
    /// Every group, in no particular order.
    fn group_rows(&self) -> TableResult<Vec<(GroupId, GroupRow)>>;
    /// Every group that has a row, including damaged ones.
    fn group_ids(&self) -> TableResult<Vec<GroupId>>;
    fn group_facts(&self, id: GroupId) -> TableResult<GroupActivity>;
    /// Markers with a number below `n`, latest first.
    fn markers_before(&self, n: u64, limit: usize) -> TableResult<Vec<Marker>>;
    /// What is known about the failures of a group; the default if nothing is stored.
    fn group_history(&self, group: GroupId) -> TableResult<GroupHistory>;
    /// Every breaker that has a state to remember.
    fn breakers(&self) -> TableResult<BTreeMap<BreakerId, Breaker>>;

    /// All event counters.
    fn event_counters(&self) -> TableResult<Vec<(CounterKey, CounterTotals)>>;
    /// The time of death of the oldest letter that is not closed.
    fn oldest_open(&self) -> TableResult<Option<Time>>;

    /// Ids of messages, letters or operations in order, after this one. Backends that can read ids alone override this.
    fn ids_after(&self, of: IdKind, after: Option<MessageId>, limit: usize) -> TableResult<Vec<MessageId>> {
        let mut ids: Vec<MessageId> = match of {
            IdKind::Message => self.live_after(after, limit)?.into_iter().map(|(id, _)| id).collect(),
            IdKind::Letter => {
                let letters = self.letters_after(0, u64::MAX, usize::MAX)?.into_iter();
                letters.filter_map(|(_, letter)| Some(letter.ok()?.meta.id)).collect()
            }
            IdKind::Operation => {
                let all = self.operations_before(u64::MAX, usize::MAX)?;
                all.iter().map(|(_, operation)| MessageId::from_bytes(operation.id.to_bytes())).collect()
            }
            IdKind::Group => Vec::new(),
        };
        ids.retain(|id| after.is_none_or(|after| *id > after));
        ids.sort_unstable();
        ids.truncate(limit);
        Ok(ids)
    }

    fn operation(&self, id: OperationId) -> TableResult<Option<Operation>>;
    fn operations_before(&self, position: u64, limit: usize) -> TableResult<Vec<(u64, Operation)>>;
    fn members_after(&self, id: OperationId, position: u64, limit: usize) -> TableResult<Vec<(u64, Member)>>;
    /// Members with this outcome whose position is in the range (exclusive, inclusive), each with its letter if that
    /// is still the one that was frozen.
    fn members_with(
        &self,
        id: OperationId,
        outcome: MemberOutcome,
        range: (u64, u64),
        limit: usize,
    ) -> TableResult<Vec<FrozenMember>>;
    /// The position of the member `count` places after `position`, whatever its outcome. `None` if there are fewer.
    fn member_after(&self, id: OperationId, position: u64, count: usize) -> TableResult<Option<u64>>;
    /// The number of members of an operation by outcome.
    fn member_counts(&self, id: OperationId) -> TableResult<Outcomes>;

    fn audit_before(&self, n: u64, limit: usize) -> TableResult<Vec<AuditRow>>;
    fn audit_after(&self, n: u64, limit: usize) -> TableResult<Vec<AuditRow>>;
    fn kv(&self, namespace: &str, key: &str) -> TableResult<Option<KvEntry>>;
    /// Entries of a namespace in the order of keys, from or after a key.
    fn kv_range(&self, namespace: &str, from: Bound<&str>, limit: usize) -> TableResult<Vec<KvItem>>;

    /// Checks what is specific to this backend: orphaned rows, checksums, the database file.
    fn check(&self, deep: bool, verification: &mut Verification) -> TableResult<()>;
}

/// A new message, with everything that can be prepared outside the commit.
pub(crate) struct Incoming<B> {
    /// The message without its payload, headers and the like, which are in `body`.
    pub(crate) new: NewMessage,
    /// The hash of the body, for messages with an idempotency key.
    pub(crate) body_hash: Option<[u8; 32]>,
    pub(crate) size: u64,
    pub(crate) body: B,
}

/// Everything that can be written inside a commit.
pub(crate) trait Tables: Reads {
    /// A body encoded by the caller, so that the commit only copies bytes.
    type Body: Send;
    /// Moves the body out of a message and encodes it.
    fn pack(new: &mut NewMessage) -> Self::Body;
    /// A payload encoded before the message that will carry it exists.
    type Payload: Send;
    fn pack_payload(payload: Payload) -> Self::Payload;
    /// The body with another payload.
    fn with_payload(body: Self::Body, payload: Self::Payload) -> Self::Body;
    /// The message with the body that was moved out. Only needed when its id already exists or when its breaker's key
    /// is taken from the body.
    fn unpack(new: &NewMessage, body: &Self::Body) -> TableResult<NewMessage>;

    /// Moves damaged records to a table of their own and keeps what is left of them. Returns one line per record.
    fn set_aside(&mut self, now: Time) -> TableResult<Vec<String>> {
        let _ = now;
        Ok(Vec::new())
    }
    /// Moves the damaged letter of a message out of the way, if there is one.
    fn set_letter_aside(&mut self, id: MessageId, now: Time) -> TableResult<()> {
        let _ = (id, now);
        Ok(())
    }
    /// How many writes were attempted so far; only grows.
    fn writes(&self) -> u64 {
        0
    }

    /// Drops what is only in memory, after a commit that did not happen.
    fn forget(&mut self) {}

    fn put_heads(&mut self, heads: &Heads) -> TableResult<()>;
    fn put_queue(&mut self, name: &QueueName, row: &QueueRow) -> TableResult<()>;
    /// Writes the counters of an existing queue.
    fn put_queue_counts(&mut self, name: &QueueName, row: &QueueRow) -> TableResult<()> {
        self.put_queue(name, row)
    }

    fn put_body(
        &mut self,
        seq: u64,
        body: Self::Body,
        ttl: Option<Span>,
        enqueued_at: Time,
    ) -> TableResult<()>;
    fn drop_body(&mut self, meta: &MessageMeta) -> TableResult<()>;
    /// Replaces the body of a message and keeps the time at which it was enqueued.
    fn replace_body(&mut self, meta: &MessageMeta, body: Self::Body) -> TableResult<()>;
    fn add_revision(&mut self, meta: &MessageMeta, n: u32, content: &Content) -> TableResult<()>;
    fn drop_revisions(&mut self, meta: &MessageMeta) -> TableResult<()>;
    fn add_live(&mut self, live: &Live) -> TableResult<()>;
    /// Writes the changing part of a live message.
    fn put_lifecycle(&mut self, meta: &MessageMeta, lifecycle: &Lifecycle) -> TableResult<()>;
    fn drop_live(&mut self, meta: &MessageMeta) -> TableResult<()>;

    fn add_failure(&mut self, meta: &MessageMeta, ordinal: u32, failure: &Failure) -> TableResult<()>;
    fn drop_failure(&mut self, meta: &MessageMeta, ordinal: u32) -> TableResult<()>;
    fn drop_failures(&mut self, meta: &MessageMeta) -> TableResult<()>;

    fn put_key(&mut self, queue: &QueueName, key: &str, row: &KeyRow) -> TableResult<()>;
    /// Deletes up to `limit` keys created before `before`. Returns how many.
    fn drop_keys(&mut self, before: Time, limit: usize) -> TableResult<u64>;

    fn add_letter(&mut self, letter: &Letter) -> TableResult<()>;
    /// Writes a changed letter. `stored` is the letter in the table and shows which columns have to be written.
    fn put_letter(&mut self, stored: &Letter, letter: &Letter) -> TableResult<()>;
    fn drop_letter(&mut self, letter: &Letter) -> TableResult<()>;
    /// Marks the text of a letter as changed. Does nothing if there is no text index.
    fn text_changed(&mut self, id: MessageId) -> TableResult<()> {
        let _ = id;
        Ok(())
    }
    /// Removes the text of an erased letter from the index at once. Does nothing if there is no text index.
    fn text_erased(&mut self, letter: &Letter) -> TableResult<()> {
        let _ = letter;
        Ok(())
    }
    /// Adds a batch to the text index, unless the index has moved on meanwhile. Returns the number of entries added.
    fn put_text(&mut self, batch: &TextBatch) -> TableResult<u64> {
        let _ = batch;
        Ok(0)
    }
    /// Writes a counter of open letters.
    fn put_open_letters(&mut self, key: &OpenKey, open: i64) -> TableResult<()>;
    fn put_dlq_count(&mut self, dlq: &QueueName, status: Status, count: i64) -> TableResult<()>;

    fn put_leaf(&mut self, leaf: &Leaf) -> TableResult<()>;
    fn put_leaf_count(&mut self, key: &LeafKey, count: &LeafCount) -> TableResult<()>;
    fn put_group_row(&mut self, id: GroupId, row: Option<&GroupRow>) -> TableResult<()>;
    fn put_group_facts(&mut self, id: GroupId, facts: Option<&GroupActivity>) -> TableResult<()>;
    /// Adds a marker and removes the oldest ones beyond [`redrive_core::limits::MARKERS_MAX`].
    fn add_marker(&mut self, marker: &Marker) -> TableResult<()>;
    fn put_group_history(&mut self, group: GroupId, history: Option<&GroupHistory>) -> TableResult<()>;
    fn put_breaker(&mut self, at: &BreakerId, breaker: Option<&Breaker>) -> TableResult<()>;

    fn put_event_counter(&mut self, key: &CounterKey, totals: &CounterTotals) -> TableResult<()>;

    fn add_operation(&mut self, operation: &Operation) -> TableResult<()>;
    fn put_operation(&mut self, operation: &Operation) -> TableResult<()>;
    fn add_member(&mut self, id: OperationId, position: u64, member: &Member) -> TableResult<()>;
    fn put_member(&mut self, id: OperationId, position: u64, update: &MemberUpdate) -> TableResult<()>;
    /// Adds the matching letters as waiting members, oldest first, if the tables can find them exactly without
    /// decoding any. Returns `None` if every letter has to be looked at.
    fn freeze(&mut self, id: OperationId, scan: &LetterScan<'_>) -> TableResult<Option<Frozen>>;

    fn add_audit(&mut self, row: &AuditRow) -> TableResult<()>;
    /// Deletes the audit rows up to this number.
    fn drop_audit(&mut self, up_to: u64) -> TableResult<()>;
    fn put_kv(&mut self, namespace: &str, key: &str, entry: Option<&KvEntry>) -> TableResult<()>;

    /// Repairs what [`Reads::check`] found and what can be derived from other rows. Returns the number of rows.
    fn repair(&mut self, _deep: bool) -> TableResult<u64> {
        Ok(0)
    }
}
