//! The store: the contract that every backend keeps, as one table of verbs. The command line, the API and the socket
//! between processes all use these verbs and no others. A call takes a batch where that makes sense, is carried out in
//! one commit, and returns a result for each entry. The documentation of a verb names the invariants it promises
//! (`docs/guarantees.md`); a backend is finished when the laws of the testkit hold on it.
//!
//! Every verb promises: **I1-I3** a reply that reports success is durable before it is sent; **I4** a call that got no
//! reply was carried out completely or not at all, for each entry (**I5**); **I6** nothing is acknowledged after a failed
//! write or fsync; **I11** no message is lost or counted twice.
//!
//! How to read a row: `fn pause(name: QueueName, paused: bool, actor: Actor) -> Queue as Pause, needs Operator, by actor`
//! declares the async method [`Work::pause`], which returns a `StoreResult<Queue>`. Between processes it travels as [`Call::Pause`]. A server lets only operators
//! call it, and writes the name of the authenticated caller into `actor`, which goes into the audit trail. A role in
//! braces, such as `needs { acts_role(batch) }`, depends on the arguments. Callers in the
//! same process, and other processes of the same user on the socket of a data directory, are trusted with any verb.
//!
//! The table produces the traits [`Work`], [`Letters`] and [`Store`] and the type [`Call`]. A store in this process
//! implements the traits itself (the engine in the `store` crate). A store in another process is reached through a
//! [`Caller`], which only has to carry calls there and replies back. A [`Gated`] store asks a [`Gate`] about every call
//! first; a server uses no other kind.

mod encoding;
mod types;
mod verbs;

pub use crate::settlement::{Settle, Settled, Settlement};
pub use crate::waiting::WaitingFor;
pub use encoding::Encoding;
pub use types::*;
pub use verbs::{
    CALL_VERSION, CALL_VERSION_HEADER, CALL_VERSION_OLDEST, Caller, Gate, Gated, Role, Route, Routed, Verb,
    encode_reply,
};

use crate::audit::{AuditReport, AuditRow, AuditTrimmed};
use crate::breaker::BreakerView;
use crate::changes::{Changes, FeedPosition};
use crate::dead_letter::{ActRequest, Actor, DeadLetter, LetterDelivery};
use crate::disclosure::Disclosure;
#[cfg(doc)]
use crate::error::StoreErrorKind;
use crate::error::{StoreError, StoreResult};
use crate::failure::Category;
use crate::group::{Group, GroupAct, GroupDetail, GroupQuery, Marker};
use crate::ids::{GroupId, MessageId, OperationId, QueueName};
use crate::invariants::Verification;
#[cfg(doc)]
use crate::limits;
use crate::message::{Delivery, Message, NewMessage};
use crate::metrics::Stats;
use crate::operation::{Control, Member, Operation, OperationSpec, Preview, PreviewRequest};
use crate::policy::QueuePolicy;
use crate::query::{Page, PageRequest, Query};
use crate::recording::RecordRequest;
use crate::revision::Revision;
use crate::short_id::IdSuffixQuery;
use crate::time::{Span, Time};
use crate::workers::WorkerView;
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use verbs::{NamesActors, acts_role, another_verb, consumer_role, decode_reply, verbs};

verbs! {
    /// The verbs for messages: from enqueue to the last attempt.
    pub trait Work: Send + Sync {
        /// Accepts messages. **I41** enqueueing an idempotency key with the same body again within 24 hours returns the
        /// first message, even if it is dead or done; the same key with another body is refused. **I42** enqueueing the
        /// same id and body again is harmless. Creates the queue named in `reply_to` if there is none, so that the sender can wait
        /// there; refuses a dead letter queue (**I38**).
        fn enqueue(batch: Vec<NewMessage>) -> BatchResults<Enqueued> as Enqueue, needs Producer;

        /// Leases due messages in the order the scheduler chooses. **I16** a message has one live lease; **I17** every
        /// lease has a new secret; **I19** expired leases are judged in the same commit; **I24** each lease counts
        /// once; **I29** every priority gets its share; **I30** one message at a time for each ordering key;
        /// **I31** never early; **I49** fewer messages than requested when their payloads are large
        /// ([`limits::LEASE_BYTES_MAX`]), but at least one.
        fn lease(request: LeaseRequest) -> Vec<Delivery> as Lease, needs Worker;

        /// Records how deliveries ended. **I13** a delivery ends exactly once; **I17** a stale token changes nothing;
        /// **I20, I22** a lease that has expired cannot be settled; **I26** the attempt limit; **I32** a death is one
        /// commit, and so is every reply that follows from it.
        fn settle(batch: Vec<Settlement>) -> BatchResults<Settled> as Settle, needs Worker;

        /// Runs one maintenance pass over at most `limit` items of each kind. **I14, I23** an item that cannot be
        /// processed does not stop the others.
        fn reap(limit: usize) -> Reaped as Reap, needs Worker;

        /// Runs the part of [`Self::reap`] that is quick at any size, for a process that opens a directory briefly:
        /// letters always, messages only if there are few ([`limits::TIDY_MESSAGES_MAX`]). Returns `None` on a
        /// connection to another process, because the holder of the store maintains it.
        fn tidy(limit: usize) -> Option<Reaped> as Tidy, needs Worker;

        /// Returns true as soon as one of the queues may have due messages, or false after `at_most`. A queue that nobody
        /// has sent to yet may be among them. A caller that waits costs nothing until then. When messages become due, about as many callers are woken as there is work
        /// for; one that is woken and does not lease delays the others by a moment only.
        fn wait(queues: Vec<QueueName>, at_most: Span) -> bool as Wait, needs Worker;

        /// Lists live messages in the order they were enqueued.
        fn messages(query: Query) -> Page<Message> as Messages, needs Viewer;

        /// Returns one live message with its failures.
        fn message(id: MessageId) -> Message as Message, needs Viewer;

        /// Returns the state of the message that has this idempotency key, or `None` if the key is not known any more.
        fn key_state(queue: QueueName, key: String) -> Option<KeyState> as KeyState, needs Viewer;

        /// Cancels waiting messages. Leased messages are refused.
        fn cancel(ids: Vec<MessageId>, actor: Actor) -> BatchResults<MessageId>
            as Cancel, needs Operator, by actor;

        /// Lists the queues by name.
        fn queues() -> Vec<Queue> as Queues, needs Viewer;

        /// Returns one queue.
        fn queue(name: QueueName) -> Queue as Queue, needs Viewer;

        /// Returns, for each queue with such messages, what its due messages wait for before they can be leased.
        /// Counted from the index of ready messages; `None` if the index is not there and would take long to build.
        fn waiting_for() -> Option<BTreeMap<QueueName, WaitingFor>> as WaitingFor, needs Viewer;

        /// Sets the policy of a queue and creates the queue if there is none. **I38** a dead letter queue is never a
        /// queue for work.
        fn configure(name: QueueName, policy: QueuePolicy, actor: Actor) -> Queue
            as Configure, needs Admin, by actor;

        /// Pauses or resumes leasing. Messages can still be enqueued and settled.
        fn pause(name: QueueName, paused: bool, actor: Actor) -> Queue as Pause, needs Operator, by actor;

        /// Removes waiting messages, a bounded number in each call. Leased messages and letters stay.
        fn purge(name: QueueName, actor: Actor) -> Purged as Purge, needs Admin, by actor;

        /// Lists the breakers that counted something lately, by queue and key (**I28**).
        fn breakers() -> Vec<BreakerView> as Breakers, needs Viewer;

        /// Lists the workers that leased or settled something lately, by name, as the process that holds the store knows
        /// them: nothing of this is durable ([`limits::WORKER_KNOWN_FOR`]). A worker that has something in its hands is
        /// listed for as long as its lease lasts.
        fn workers() -> Vec<WorkerView> as Workers, needs Viewer;

        /// Opens a breaker until somebody closes it, or closes it and clears its window (**I28**).
        fn force_breaker(queue: QueueName, key: String, open: bool, actor: Actor) -> BreakerView
            as ForceBreaker, needs Operator, by actor;
    }

    /// The verbs for dead letters: from death to decision.
    pub trait Letters: Send + Sync {
        /// Lists the letters that match a filter, latest death first. The evaluator of the core decides what matches.
        fn letters(query: Query) -> Page<DeadLetter> as Letters, needs Viewer;

        /// Returns one letter with its history. **I33** the payload bit for bit, and every attempt.
        fn letter(id: MessageId) -> DeadLetter as Letter, needs Viewer;

        /// Returns every version of a letter's content, oldest first, with who changed it and why; empty if the
        /// letter was erased. **I39** the original is always among them.
        fn revisions(id: MessageId) -> Vec<Revision> as Revisions, needs Viewer;

        /// Lists the dead letter queues that have or had letters, by name.
        fn dlqs() -> Vec<Dlq> as Dlqs, needs Viewer;

        /// Leases pending letters to a dead-letter consumer, oldest death first. **I16, I17, I49** as for messages.
        fn lease_letters(request: LetterLeaseRequest) -> Vec<LetterDelivery> as LeaseLetters, needs Worker;

        /// Records what a consumer did with its letters. **I17, I22** as for messages.
        fn settle_letters(batch: Vec<LetterSettlement>) -> BatchResults<LetterState>
            as SettleLetters, needs { consumer_role(batch) }, by batch;

        /// Acts on single letters. **I12** only as the status table allows; **I48** with one audit row for each act, in
        /// the same commit.
        fn act(batch: Vec<ActRequest>) -> BatchResults<LetterState> as Act, needs { acts_role(batch) }, by batch;

        /// Lists groups. The counts are exact (**I15**). Reads one row for each group, however many letters it has.
        fn groups(query: GroupQuery) -> Page<Group> as Groups, needs Viewer;

        /// Returns one group.
        fn group(id: GroupId) -> Group as Group, needs Viewer;

        /// Returns everything about one group.
        fn group_detail(id: GroupId) -> GroupDetail as GroupDetail, needs Viewer;

        /// Records an operator's decision about a group (**I48**). Its letters stay as they are. A group also changes
        /// by itself: the success of its last open letter resolves it, the next death makes it regressed, and an
        /// ignored group returns when its time or count is over.
        fn act_on_group(id: GroupId, act: GroupAct, actor: Actor) -> Group as ActOnGroup, needs Operator, by actor;

        /// Records a moment such as a deploy, so that people can ask what is new since then (**I48**). The oldest
        /// markers beyond [`limits::MARKERS_MAX`] are removed.
        fn mark(text: String, actor: Actor) -> Marker as Mark, needs Operator, by actor;

        /// Lists the markers, latest first.
        fn markers(page: PageRequest) -> Page<Marker> as Markers, needs Viewer;

        /// Merges groups that have one cause. The oldest id stays, the others become aliases of it (**I48**).
        fn merge_groups(groups: Vec<GroupId>, actor: Actor) -> Group as MergeGroups, needs Operator, by actor;

        /// Sets the category of a group's failures, or clears it with `None` (**I48**). It overrides the classifier for
        /// failures from then on.
        fn label_group(id: GroupId, category: Option<Category>, actor: Actor) -> Group
            as LabelGroup, needs Operator, by actor;

        /// Lists the letters that match a filter, oldest death first, in the form of an export
        /// ([`crate::transfer::exported`]). The caller masks them before it shows them, or calls [`Self::disclose`].
        fn export(query: Query) -> Page<DeadLetter> as Export, needs Operator;

        /// Records that somebody is about to see what is masked for others (**I48**). A server also requires the right
        /// to reveal ([`crate::access::Grant::reveals`]), which some viewers do not have.
        fn disclose(disclosure: Disclosure, actor: Actor) -> () as Disclose, needs Viewer, by actor;

        /// Imports letters from an export. Refuses, for each entry, a letter whose id is known and a letter that was
        /// masked. In an empty store, letters keep their death numbers and their groups.
        fn import(batch: Vec<DeadLetter>, actor: Actor) -> BatchResults<MessageId> as Import, needs Admin, by actor;

        /// Removes letters that the caller has stored elsewhere. They count as purged, with one audit row each. Refuses
        /// a letter that changed, is being retried, is leased to a consumer or holds its ordering key: it is still
        /// needed here (**I12, I48**). Its idempotency key stays known, because the message is not finished (**I41**).
        fn hand_over(batch: Vec<HandOver>, actor: Actor) -> BatchResults<MessageId>
            as HandOver, needs Admin, by actor;

        /// Adds up to `limit` letters to the text index in a commit of its own. Searches do not wait for it: they scan
        /// what is not indexed. Reports no work if the store has no index.
        fn index_text(limit: usize) -> Indexed as IndexText, needs Worker;

        /// Previews an operation: counts, a sample, warnings, the bound that fixes its members, and a token that binds
        /// the start to this preview (**I36**).
        fn preview(request: PreviewRequest) -> Preview as Preview, needs Operator;

        /// Starts an operation. Starting the same id again returns the operation as it is (**I36**). Refuses a token of
        /// a preview with another act, filter or bound.
        fn start(spec: OperationSpec) -> Operation as Start, needs { spec.act.role() }, by spec;

        /// Does one chunk of an operation in one commit, with one audit row (**I36, I48**): as much as its stage, rate,
        /// ramp and the members in flight allow now (**I37**). Reports when the next step makes sense. The outcome of a
        /// redriven letter is recorded in the commit that settles its message; the counters are the sum of outcomes.
        fn step(id: OperationId) -> Operation as Step, needs Operator;

        /// Steers an operation: pause, resume, cancel, another rate, undo (**I37, I48**).
        fn control(id: OperationId, control: Control, actor: Actor) -> Operation as Control, needs Operator, by actor;

        /// Returns one operation.
        fn operation(id: OperationId) -> Operation as Operation, needs Viewer;

        /// Lists operations, latest first.
        fn operations(page: PageRequest) -> Page<Operation> as Operations, needs Viewer;

        /// Lists the members of an operation with their outcomes.
        fn members(id: OperationId, page: PageRequest) -> Page<Member> as Members, needs Viewer;

        /// Lists the audit trail, latest row first.
        fn audit(page: PageRequest) -> Page<AuditRow> as Audit, needs Viewer;

        /// Verifies the audit chain, and that it contains a head that was noted earlier (**I48**).
        fn audit_verify(head: Option<String>) -> AuditReport as AuditVerify, needs Viewer;

        /// Removes audit rows older than `before`, a bounded number in each call, and leaves an anchor from which the
        /// rest can still be verified. The removal is an audit row itself (**I48, I49**).
        fn audit_trim(before: Time, actor: Actor) -> AuditTrimmed as AuditTrim, needs Admin, by actor;
    }

    /// A whole store: the verbs for messages and letters, and those for the store itself.
    pub trait Store: Work + Letters {
        /// Describes the store and its condition.
        fn info() -> StoreInfo as Info, needs Viewer;

        /// Returns what was counted in commits, which survives a restart, the queues as they are, and what the process
        /// that holds the store measured about itself.
        fn stats() -> Stats as Stats, needs Viewer;

        /// Returns what changed since a position, as soon as something did, or nothing after `at_most`. Without a position
        /// it returns the current one at once. **I49** no data, and a bounded number of areas: a reader that is too far
        /// behind is told to look at everything ([`limits::CHANGES_AREAS_MAX`]). A change is reported after its commit.
        fn changes(since: Option<FeedPosition>, at_most: Span) -> Changes as Changes, needs Viewer;

        /// Recounts everything and compares (**I11, I14, I15, I30, I32, I46, I48**).
        fn verify(request: VerifyRequest) -> Verification as Verify, needs Admin;

        /// Copies the store to a new directory, as of one commit, while work goes on (**I9**).
        fn backup(target: String) -> u64 as Backup, needs Admin;

        /// Lists whole ids that end in given digits. A page looks at [`limits::PAGE_SCAN_MAX`] ids at most: as with a
        /// filtered list, a page may be empty and still have a next one.
        fn ids_ending(query: IdSuffixQuery) -> Page<String> as IdsEnding, needs Viewer;

        /// Reads a small durable value.
        fn kv_get(namespace: String, key: String) -> Option<KvEntry> as KvGet, needs Admin;

        /// Lists the entries of a namespace whose keys begin with `prefix` (an empty one matches all), in the order of
        /// their bytes. **I49** a page ends early when its values are large ([`limits::KV_PAGE_BYTES_MAX`]).
        fn kv_list(namespace: String, prefix: String, page: PageRequest) -> Page<KvItem> as KvList, needs Admin;

        /// Writes a small durable value, or removes it with `None`, if it still has the version `expected` (0 means that
        /// there is none). Returns the new version.
        fn kv_put(namespace: String, key: String, value: Option<Vec<u8>>, expected: u64) -> u64
            as KvPut, needs Admin;

        /// Records acts that no other verb records, one audit row each, and changes the small durable values that belong
        /// to an act in the same commit (**I48**). An act whose values are not as expected is refused, and changes and
        /// records nothing.
        fn record(batch: Vec<RecordRequest>) -> BatchResults<()> as Record, needs Admin, by batch;
    }
}

/// Adds a letter's earlier versions to it, as a full export and another store need them. A letter that is edited
/// meanwhile is read again.
///
/// # Errors
/// Those of [`Letters::revisions`] and [`Letters::letter`].
pub async fn with_revisions<L: Letters + ?Sized>(
    letters: &L,
    mut letter: DeadLetter,
) -> StoreResult<DeadLetter> {
    while !letter.record.edits.is_empty() && letter.record.erased.is_none() {
        let mut revisions = letters.revisions(letter.id()).await?;
        if revisions.pop().is_some_and(|last| last.n == letter.record.revision()) {
            letter.revisions = revisions;
            break;
        }
        letter = letters.letter(letter.id()).await?;
    }
    Ok(letter)
}

#[cfg(test)]
mod tests;
