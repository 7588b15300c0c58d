//! The seam between what is done and where it is kept. Verbs are written once, over these traits; a backend
//! is a set of tables that can be read ([`Reads`]) and, inside one commit, written ([`Tables`]). Tables keep
//! what they are told: nothing in an implementation decides anything.

use redrive_core::audit::AuditRow;
use redrive_core::breaker::Breaker;
use redrive_core::dead_letter::{File, Status};
use redrive_core::error::{StoreError, StoreErrorKind};
use redrive_core::failure::Failure;
use redrive_core::filter::Filter;
use redrive_core::group::{Facts, GroupRow, Leaf, LeafCount, LeafKey, Marker};
use redrive_core::ids::{GroupId, LeafId, MessageId, OperationId, QueueName, Secret};
use redrive_core::invariants::{Counts, Verification};
use redrive_core::lifecycle::{Life, State};
use redrive_core::message::{Envelope, NewMessage, Payload, Slip};
use redrive_core::metrics::{OpenCounts, OpenKey, Tally, TallyKey};
use redrive_core::operation::{Member, MemberOutcome, Operation, Outcomes};
use redrive_core::poison::Standing;
use redrive_core::policy::QueuePolicy;
use redrive_core::revision::Content;
use redrive_core::short_id::IdKind;
use redrive_core::store::KvEntry;
use redrive_core::survey::Survey;
use redrive_core::time::{Span, Time};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// What a table access gives.
pub(crate) type Kept<T> = Result<T, StoreError>;

/// Tells a record whose own bytes are damaged from a store that cannot go on: the one is set aside, the other
/// ends the commit.
pub(crate) fn unless_damaged<T>(read: Kept<T>) -> Kept<Option<T>> {
    match read {
        Err(error) if error.kind == StoreErrorKind::Damaged => Ok(None),
        read => read.map(Some),
    }
}

/// Rows by where they lie, each whole or with word of its damage: one bad row is set aside, the others are not.
pub(crate) type Rows<K, T> = Vec<(K, Kept<T>)>;

/// A live message as it lies in its table.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Live {
    pub(crate) slip: Slip,
    pub(crate) life: Life,
}

/// A dead letter as it lies in its table. While it is being retried, `life` is as it was at death and the
/// live message has the present one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Letter {
    pub(crate) death: u64,
    pub(crate) slip: Slip,
    pub(crate) life: Life,
    pub(crate) file: File,
    pub(crate) secret: Option<Secret>,
}

/// What is remembered under an idempotency key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KeyRow {
    pub(crate) id: MessageId,
    pub(crate) body_hash: [u8; 32],
    pub(crate) created_at: Time,
    /// How the message ended, once it has.
    pub(crate) ended: Option<State>,
}

/// A queue as it lies in its table.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct QueueRow {
    pub(crate) policy: Arc<QueuePolicy>,
    pub(crate) paused_by: Option<String>,
    pub(crate) counts: Counts,
    /// Most messages it ever held.
    pub(crate) peak: i64,
    /// Most dead letters it ever had.
    pub(crate) dead_peak: i64,
}

/// The numbers that only ever grow, and the head of the audit chain.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Heads {
    pub(crate) seq: u64,
    pub(crate) death: u64,
    pub(crate) audit_n: u64,
    pub(crate) audit_seal: String,
    /// Most messages the store held at once.
    pub(crate) messages_peak: i64,
    /// Most dead letters the store held at once.
    pub(crate) letters_peak: i64,
}

/// A member on its way through an operation.
pub(crate) struct FrozenMember {
    /// The death of its letter when it was frozen.
    pub(crate) position: u64,
    pub(crate) member: Member,
    pub(crate) letter: Option<Letter>,
}

/// What became of a member.
pub(crate) struct Fate {
    pub(crate) outcome: MemberOutcome,
    /// The version of its letter, when the operation changed it.
    pub(crate) version: Option<u64>,
    pub(crate) why: Option<String>,
}

/// Which letters are looked for, and how much may be looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask<'a> {
    /// The filter, with groups called by their present names.
    pub(crate) filter: &'a Filter,
    /// Only these statuses; any when not said.
    pub(crate) statuses: Option<&'a [Status]>,
    /// Deaths after this one.
    pub(crate) after: u64,
    /// Deaths up to this one.
    pub(crate) up_to: u64,
    /// The latest death first, or the oldest.
    pub(crate) latest_first: bool,
    /// Candidates wanted at most.
    pub(crate) hits: usize,
    /// Rows to look at, at most; a few more when they come in batches.
    pub(crate) rows: usize,
    /// No further batch after this instant.
    pub(crate) until: Option<Instant>,
    pub(crate) now: Time,
}

/// What a look for candidates came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Candidates {
    /// Their deaths, in the order asked for.
    pub(crate) deaths: Vec<u64>,
    /// Rows looked at.
    pub(crate) looked_at: usize,
    /// Everything up to this death, in the order asked for, was looked at.
    pub(crate) reached: u64,
    /// Whether there is nothing beyond.
    pub(crate) ended: bool,
    /// Whether every candidate is a match, without a look by the evaluator.
    pub(crate) exact: bool,
}

/// How far a text index is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TextState {
    /// Every letter that died up to here has been put in.
    pub(crate) indexed_to: u64,
    /// Deaths whose entry is not what the letter says now, or whose letter is gone, each with the number of the
    /// change.
    pub(crate) stale: Vec<(u64, u64)>,
}

/// What is to be put into a text index, made from one consistent view.
#[derive(Clone, Debug, Default)]
pub(crate) struct TextBatch {
    /// How far the index was.
    pub(crate) state: TextState,
    /// How far it is with this.
    pub(crate) up_to: u64,
    /// The letters in between, by death.
    pub(crate) fresh: Vec<(u64, String)>,
    /// What letters of [`TextState::stale`] say now; none for those that are gone.
    pub(crate) changed: Vec<((u64, u64), Option<String>)>,
}

/// Members written down in one go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frozen {
    /// How many.
    pub(crate) members: u64,
    /// Every death up to this one was looked at.
    pub(crate) frozen_to: u64,
    /// Whether none is left up to the bound.
    pub(crate) exhausted: bool,
}

/// Where a breaker belongs: its queue and the value of its key.
pub(crate) type BreakerAt = (QueueName, String);

/// Letters by drawer and status.
pub(crate) type DrawerCounts = BTreeMap<(QueueName, Status), i64>;

/// A body that was read and not opened yet.
#[derive(Debug)]
pub(crate) enum Stored {
    /// Kept as it is.
    #[cfg(feature = "memory")]
    Whole(Box<Envelope>),
    /// Kept as bytes with a checksum.
    #[cfg(feature = "sqlite")]
    Packed(crate::sqlite::body::Packed),
}

impl Stored {
    /// The whole envelope, or that its bytes are not what was written (I46).
    pub(crate) fn open(self, slip: &Slip) -> Kept<Envelope> {
        match self {
            #[cfg(feature = "memory")]
            Self::Whole(envelope) => Ok(*envelope),
            #[cfg(feature = "sqlite")]
            Self::Packed(packed) => packed.open(slip),
        }
    }
}

/// Everything that can be read, from a connection of its own or inside a commit.
pub(crate) trait Reads {
    fn heads(&self) -> Kept<Heads>;
    fn queues(&self) -> Kept<BTreeMap<QueueName, QueueRow>>;
    /// How many waiting messages of a queue are not due yet.
    fn scheduled(&self, queue: &QueueName, now: Time) -> Kept<u64>;

    /// Whether a live message or a letter has this id.
    fn is_known(&self, id: MessageId) -> Kept<bool>;
    fn live(&self, id: MessageId) -> Kept<Option<Live>>;
    /// Live messages in the order of ids, after this one.
    fn live_after(&self, after: Option<MessageId>, limit: usize) -> Kept<Rows<MessageId, Live>>;
    /// Live messages in the order of ids, from this one on.
    fn live_from(&self, from: MessageId, limit: usize) -> Kept<Rows<MessageId, Live>>;
    /// The letters that hold their ordering key.
    fn holding_keys(&self) -> Kept<Vec<Slip>>;
    /// The body of a message as it lies in its table; opening it is the caller's work, not the commit's.
    fn body(&self, slip: &Slip) -> Kept<Stored>;
    /// The whole envelope.
    fn envelope(&self, slip: &Slip) -> Kept<Envelope> {
        self.body(slip)?.open(slip)
    }
    /// The trace context of a message, without its payload.
    fn trace(&self, slip: &Slip) -> Kept<Option<String>>;
    fn failures(&self, slip: &Slip) -> Kept<Vec<Failure>>;
    fn key(&self, queue: &QueueName, key: &str) -> Kept<Option<KeyRow>>;
    /// One earlier content of a letter.
    fn revision(&self, slip: &Slip, n: u32) -> Kept<Option<Content>>;
    /// The numbers of those that are kept, in order.
    fn revision_numbers(&self, slip: &Slip) -> Kept<Vec<u32>>;

    fn letter(&self, id: MessageId) -> Kept<Option<Letter>>;
    /// The deaths of letters that a filter may match, in the order asked for. Bounded by what it looks at, so it
    /// may find nothing and still not be at the end.
    fn candidates(&self, ask: &Ask<'_>) -> Kept<Candidates>;
    /// The letters of these deaths, in their order; one that is gone is left out.
    fn letters_at(&self, deaths: &[u64]) -> Kept<Rows<u64, Letter>>;
    /// Counts the letters that are asked for, if the tables can tell them exactly without opening any; the bounds
    /// on how much is looked at do not hold here. Nothing when every letter must be looked at.
    fn survey(&self, ask: &Ask<'_>) -> Kept<Option<Survey>>;
    /// Letters with a death after this one and up to the bound, oldest first.
    fn letters_after(&self, death: u64, bound: u64, limit: usize) -> Kept<Rows<u64, Letter>>;
    /// How far the text index is; nothing where there is none. Lists up to so many letters whose text changed.
    fn text_state(&self, limit: usize) -> Kept<Option<TextState>> {
        let _ = limit;
        Ok(None)
    }
    /// Letters that a consumer may have. Of these and the two lists below, damaged ones are left out.
    fn leasable_letters(&self, dlq: &QueueName, limit: usize, now: Time) -> Kept<Vec<Letter>>;
    fn quarantine_ended(&self, limit: usize, now: Time) -> Kept<Vec<Letter>>;
    /// Letters of a queue that owe a reply, were sent back this often or more, and are neither in quarantine nor
    /// being retried: by number of redrives, then by death.
    fn owing_replies(&self, queue: &QueueName, redrives: u32, limit: usize) -> Kept<Vec<Letter>>;
    fn retention_ended(&self, limit: usize, now: Time) -> Kept<Vec<Letter>>;
    fn drawers(&self) -> Kept<DrawerCounts>;
    /// Letters that are not closed, counted by queue, kind and priority.
    fn open_letters(&self) -> Kept<OpenCounts>;

    fn leaf(&self, id: LeafId) -> Kept<Option<Leaf>>;
    /// Every leaf, in the order of first sight.
    fn leaves(&self) -> Kept<Vec<Leaf>>;
    fn leaf_count(&self, key: &LeafKey) -> Kept<LeafCount>;
    fn leaf_counts(&self) -> Kept<Vec<(LeafKey, LeafCount)>>;
    /// Where the counters of one leaf are.
    fn counts_of(&self, leaf: LeafId) -> Kept<Vec<(LeafKey, LeafCount)>>;
    /// The leaves of a group.
    fn leaves_of(&self, group: GroupId) -> Kept<Vec<LeafId>>;
    /// The latest deaths filed under a leaf, latest first.
    fn deaths_of(&self, leaf: LeafId, limit: usize) -> Kept<Vec<u64>>;
    fn group_row(&self, id: GroupId) -> Kept<Option<GroupRow>>;
    /// Every group, in no order that means anything.
    fn group_rows(&self) -> Kept<Vec<(GroupId, GroupRow)>>;
    /// Every group that has a row, whether it can be read or not.
    fn group_ids(&self) -> Kept<Vec<GroupId>>;
    fn group_facts(&self, id: GroupId) -> Kept<Facts>;
    /// Markers with a number below this one, latest first.
    fn markers_before(&self, n: u64, limit: usize) -> Kept<Vec<Marker>>;
    /// What is known of a group; nothing much when it has no row.
    fn standing(&self, group: GroupId) -> Kept<Standing>;
    /// Every breaker that has something to remember.
    fn breakers(&self) -> Kept<BTreeMap<BreakerAt, Breaker>>;

    /// Everything that was counted.
    fn tallies(&self) -> Kept<Vec<(TallyKey, Tally)>>;
    /// When the oldest letter that is not closed died.
    fn oldest_open(&self) -> Kept<Option<Time>>;

    /// The ids of what is not a group, in their order, after this one. Tables that can read ids alone do so.
    fn ids_after(&self, of: IdKind, after: Option<MessageId>, limit: usize) -> Kept<Vec<MessageId>> {
        let mut ids: Vec<MessageId> = match of {
            IdKind::Message => self.live_after(after, limit)?.into_iter().map(|(id, _)| id).collect(),
            IdKind::Letter => {
                let letters = self.letters_after(0, u64::MAX, usize::MAX)?.into_iter();
                letters.filter_map(|(_, letter)| Some(letter.ok()?.slip.id)).collect()
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

    fn operation(&self, id: OperationId) -> Kept<Option<Operation>>;
    fn operations_before(&self, position: u64, limit: usize) -> Kept<Vec<(u64, Operation)>>;
    fn members_after(&self, id: OperationId, position: u64, limit: usize) -> Kept<Vec<(u64, Member)>>;
    /// Members with this outcome after a position and up to another, each with its letter if that still lies where it was
    /// frozen.
    fn members_with(
        &self,
        id: OperationId,
        outcome: MemberOutcome,
        range: (u64, u64),
        limit: usize,
    ) -> Kept<Vec<FrozenMember>>;
    /// The position of the member that comes so many after a position, whatever its outcome; none when there are fewer.
    fn member_after(&self, id: OperationId, position: u64, count: usize) -> Kept<Option<u64>>;
    /// The members of an operation by outcome, counted.
    fn member_counts(&self, id: OperationId) -> Kept<Outcomes>;

    fn audit_before(&self, n: u64, limit: usize) -> Kept<Vec<AuditRow>>;
    fn audit_after(&self, n: u64, limit: usize) -> Kept<Vec<AuditRow>>;
    fn kv(&self, namespace: &str, key: &str) -> Kept<Option<KvEntry>>;

    /// What only this kind of table can check: orphans, checksums, the file itself.
    fn check(&self, deep: bool, verification: &mut Verification) -> Kept<()>;
}

/// A message on its way in, with everything that can be prepared outside the commit.
pub(crate) struct Incoming<B> {
    /// What decisions look at; payload and what belongs to it are in `body`.
    pub(crate) new: NewMessage,
    /// The hash of the body, for messages with an idempotency key.
    pub(crate) body_hash: Option<[u8; 32]>,
    pub(crate) size: u64,
    pub(crate) body: B,
}

/// Everything that can be written inside a commit.
pub(crate) trait Tables: Reads {
    /// A body made ready for its table by the caller, so that the commit only copies bytes.
    type Body: Send;
    /// Takes the body out of a message.
    fn pack(new: &mut NewMessage) -> Self::Body;
    /// A payload made ready before it is known whose it is.
    type Payload: Send;
    fn pack_payload(payload: Payload) -> Self::Payload;
    /// The body with another payload.
    fn with_payload(body: Self::Body, payload: Self::Payload) -> Self::Body;
    /// The message as handlers see it, with the body that was taken out; only asked for when its id is known
    /// already or its breaker goes by what is in it.
    fn whole(new: &NewMessage, body: &Self::Body) -> Kept<NewMessage>;

    /// Takes damaged records out of the way, with all that is left of them kept; says what was done, one line each.
    fn set_aside(&mut self, now: Time) -> Kept<Vec<String>> {
        let _ = now;
        Ok(Vec::new())
    }
    /// Takes the damaged letter of a message out of the way, if there is one.
    fn set_letter_aside(&mut self, id: MessageId, now: Time) -> Kept<()> {
        let _ = (id, now);
        Ok(())
    }
    /// How often something was written, or tried to be; only ever grows.
    fn writes(&self) -> u64 {
        0
    }

    /// Forgets what is only in memory: the commit that wrote it did not happen.
    fn forget(&mut self) {}

    fn put_heads(&mut self, heads: &Heads) -> Kept<()>;
    fn put_queue(&mut self, name: &QueueName, row: &QueueRow) -> Kept<()>;
    /// Writes what is counted of a queue that is there.
    fn put_queue_counts(&mut self, name: &QueueName, row: &QueueRow) -> Kept<()> {
        self.put_queue(name, row)
    }

    fn put_body(&mut self, seq: u64, body: Self::Body, ttl: Option<Span>, enqueued_at: Time) -> Kept<()>;
    fn drop_body(&mut self, slip: &Slip) -> Kept<()>;
    /// Puts another body in the place of a message's; when it was enqueued stays.
    fn replace_body(&mut self, slip: &Slip, body: Self::Body) -> Kept<()>;
    fn add_revision(&mut self, slip: &Slip, n: u32, content: &Content) -> Kept<()>;
    fn drop_revisions(&mut self, slip: &Slip) -> Kept<()>;
    fn add_live(&mut self, live: &Live) -> Kept<()>;
    /// Writes the changing part of a live message.
    fn put_life(&mut self, slip: &Slip, life: &Life) -> Kept<()>;
    fn drop_live(&mut self, slip: &Slip) -> Kept<()>;

    fn add_failure(&mut self, slip: &Slip, ordinal: u32, failure: &Failure) -> Kept<()>;
    fn drop_failure(&mut self, slip: &Slip, ordinal: u32) -> Kept<()>;
    fn drop_failures(&mut self, slip: &Slip) -> Kept<()>;

    fn put_key(&mut self, queue: &QueueName, key: &str, row: &KeyRow) -> Kept<()>;
    /// Forgets up to `limit` keys made before `before`; says how many.
    fn drop_keys(&mut self, before: Time, limit: usize) -> Kept<u64>;

    fn add_letter(&mut self, letter: &Letter) -> Kept<()>;
    /// Writes a letter where it lies; what it was says which columns have to be.
    fn put_letter(&mut self, was: &Letter, letter: &Letter) -> Kept<()>;
    fn drop_letter(&mut self, letter: &Letter) -> Kept<()>;
    /// Notes that the text of a letter is not what it was. Nothing where there is no index.
    fn text_changed(&mut self, id: MessageId) -> Kept<()> {
        let _ = id;
        Ok(())
    }
    /// Takes the text of a letter out of the index at once: it was erased. Nothing where there is no index.
    fn text_erased(&mut self, letter: &Letter) -> Kept<()> {
        let _ = letter;
        Ok(())
    }
    /// Puts a batch into the text index, unless another has moved it on meanwhile; says how many entries it made.
    fn put_text(&mut self, batch: &TextBatch) -> Kept<u64> {
        let _ = batch;
        Ok(0)
    }
    /// Writes a counter of open letters.
    fn put_open_letters(&mut self, key: &OpenKey, open: i64) -> Kept<()>;
    fn put_drawer(&mut self, dlq: &QueueName, status: Status, count: i64) -> Kept<()>;

    fn put_leaf(&mut self, leaf: &Leaf) -> Kept<()>;
    fn put_leaf_count(&mut self, key: &LeafKey, count: &LeafCount) -> Kept<()>;
    fn put_group_row(&mut self, id: GroupId, row: Option<&GroupRow>) -> Kept<()>;
    fn put_group_facts(&mut self, id: GroupId, facts: Option<&Facts>) -> Kept<()>;
    /// Adds a marker; the oldest beyond [`redrive_core::limits::MARKERS_MAX`] go.
    fn add_marker(&mut self, marker: &Marker) -> Kept<()>;
    fn put_standing(&mut self, group: GroupId, standing: Option<&Standing>) -> Kept<()>;
    fn put_breaker(&mut self, at: &BreakerAt, breaker: Option<&Breaker>) -> Kept<()>;

    fn put_tally(&mut self, key: &TallyKey, tally: &Tally) -> Kept<()>;

    fn add_operation(&mut self, operation: &Operation) -> Kept<()>;
    fn put_operation(&mut self, operation: &Operation) -> Kept<()>;
    fn add_member(&mut self, id: OperationId, position: u64, member: &Member) -> Kept<()>;
    fn put_member(&mut self, id: OperationId, position: u64, fate: &Fate) -> Kept<()>;
    /// Writes down the letters that are asked for as waiting members, oldest first, if the tables can tell them
    /// exactly without opening any. Nothing when every letter must be looked at.
    fn freeze(&mut self, id: OperationId, ask: &Ask<'_>) -> Kept<Option<Frozen>>;

    fn add_audit(&mut self, row: &AuditRow) -> Kept<()>;
    /// Removes the rows up to this one.
    fn drop_audit(&mut self, up_to: u64) -> Kept<()>;
    fn put_kv(&mut self, namespace: &str, key: &str, entry: Option<&KvEntry>) -> Kept<()>;

    /// Sets right what [`Reads::check`] found and what can be made again from the rest; says how many rows that were.
    fn repair(&mut self, _deep: bool) -> Kept<u64> {
        Ok(0)
    }
}
