//! The store traits: the contract every backend keeps. Verbs are the CLI's and the API's. One call is many
//! items is one commit, with a result per entry. Promises are named by invariant number; a backend is done
//! when the laws of the testkit hold on it.
//!
//! For all verbs: **I1-I3** a reply that says success is durable before it is given; **I4** a call that gave
//! no reply is applied whole or not at all, per entry (**I5**); **I6** after a failed write or fsync nothing
//! more is acknowledged; **I11** conservation holds at every commit.

use crate::audit::{AuditReport, AuditRow, AuditTrimmed};
use crate::breaker::BreakerView;
use crate::dead_letter::{Act, ActRequest, Actor, DeadLetter, LetterDelivery, Status};
use crate::disclosure::Disclosure;
use crate::error::{Outcome, Refusal};
use crate::failure::Category;
use crate::group::{Group, GroupAct, GroupDetail, GroupQuery, Marker};
use crate::ids::{GroupId, LeaseToken, MessageId, OperationId, QueueName};
use crate::invariants::{Counts, Verification};
use crate::lifecycle::State;
use crate::limits;
use crate::message::{Delivery, Message, NewMessage, sane};
use crate::metrics::Stats;
use crate::operation::{Control, Member, Operation, OperationSpec, Preview, PreviewRequest};
use crate::policy::QueuePolicy;
use crate::query::{Page, PageRequest, Query};
use crate::revision::Revision;
use crate::short_id::TailQuery;
use crate::time::{Span, Time};
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub use crate::settlement::{Settle, Settled, Settlement};
pub use crate::waiting::WaitingFor;

/// A result per entry of a batch.
pub type Each<T> = Vec<Result<T, Refusal>>;

/// What became of one enqueue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enqueued {
    /// The message's id: the given one, or that of the message that has the same key.
    pub id: MessageId,
    /// Where that message is.
    pub state: State,
    /// Whether it was here before.
    pub duplicate: bool,
}

/// Who wants how much work from where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRequest {
    /// From these queues, as if they were one.
    pub queues: Vec<QueueName>,
    /// At most so many.
    pub max: usize,
    /// For how long; each queue's policy when not said.
    #[serde(default)]
    pub lease_for: Option<Span>,
    /// Who.
    pub worker: String,
}

impl LeaseRequest {
    /// Refuses absurd numbers, naming the field.
    ///
    /// # Errors
    /// [`Refusal::Invalid`].
    pub fn check(&self) -> Result<(), Refusal> {
        if self.queues.is_empty() || self.queues.len() > limits::LEASE_QUEUES_MAX {
            let why = format!("name 1 to {} queues", limits::LEASE_QUEUES_MAX);
            return Err(Refusal::invalid("queues", why));
        }
        if self.max == 0 || self.max > limits::LEASE_BATCH_MAX {
            return Err(Refusal::invalid("max", format!("ask for 1 to {}", limits::LEASE_BATCH_MAX)));
        }
        check_lease(self.lease_for)?;
        check_worker(&self.worker)
    }
}

/// Refuses leases that are too short or too long.
///
/// # Errors
/// [`Refusal::Invalid`].
pub fn check_lease(lease_for: Option<Span>) -> Result<(), Refusal> {
    lease_for.map_or(Ok(()), |span| sane("lease", span, limits::LEASE_MIN, limits::LEASE_MAX))
}

/// Refuses snoozes that are a typing mistake.
///
/// # Errors
/// [`Refusal::Invalid`].
pub fn check_snooze(span: Span) -> Result<(), Refusal> {
    sane("snooze", span, Span::ZERO, limits::SPAN_MAX)
}

/// Refuses worker names that are empty, too long or not printable.
///
/// # Errors
/// [`Refusal::Invalid`].
pub fn check_worker(worker: &str) -> Result<(), Refusal> {
    let fits = !worker.is_empty() && worker.len() <= limits::LABEL_BYTES_MAX;
    if fits && !worker.chars().any(char::is_control) {
        return Ok(());
    }
    let why = format!("1 to {} printable bytes", limits::LABEL_BYTES_MAX);
    Err(Refusal::invalid("worker", why))
}

/// What a maintenance pass did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reaped {
    /// Leases that had run out.
    pub leases_lost: u64,
    /// Messages whose time was over.
    pub timed_out: u64,
    /// Letters whose quarantine ended.
    pub released: u64,
    /// Error replies sent for letters that are not sent back by themselves any more, since the rules of their queue
    /// changed.
    #[serde(default)]
    pub replies_sent: u64,
    /// Letters removed by retention.
    pub letters_expired: u64,
    /// Purged letters whose time to be taken back was over; they are gone now.
    #[serde(default)]
    pub letters_gone: u64,
    /// Idempotency keys forgotten.
    pub keys_forgotten: u64,
}

impl Reaped {
    /// Whether there was nothing to do.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        *self == Self::default()
    }

    /// Both passes together.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self {
            leases_lost: self.leases_lost.saturating_add(other.leases_lost),
            timed_out: self.timed_out.saturating_add(other.timed_out),
            replies_sent: self.replies_sent.saturating_add(other.replies_sent),
            released: self.released.saturating_add(other.released),
            letters_expired: self.letters_expired.saturating_add(other.letters_expired),
            letters_gone: self.letters_gone.saturating_add(other.letters_gone),
            keys_forgotten: self.keys_forgotten.saturating_add(other.keys_forgotten),
        }
    }

    /// Items changed.
    #[must_use]
    pub fn total(&self) -> u64 {
        let messages = self.leases_lost.saturating_add(self.timed_out);
        let letters = self.released.saturating_add(self.letters_expired).saturating_add(self.letters_gone);
        messages.saturating_add(letters).saturating_add(self.replies_sent).saturating_add(self.keys_forgotten)
    }

    /// Whether a pass over at most `limit` items of each kind may have left some.
    #[must_use]
    pub fn may_have_left_some(&self, limit: usize) -> bool {
        let letters = self.letters_expired.saturating_add(self.letters_gone);
        let messages = self.leases_lost.saturating_add(self.timed_out);
        let parts = [messages, self.released, self.replies_sent, letters, self.keys_forgotten];
        parts.iter().any(|part| *part >= limit as u64)
    }
}

/// A queue as people see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Queue {
    /// The name.
    pub name: QueueName,
    /// Whether leasing is halted.
    pub paused: bool,
    /// Who halted it, when and why.
    #[serde(default)]
    pub paused_by: Option<String>,
    /// Waiting for their time.
    pub scheduled: u64,
    /// May be leased now.
    pub ready: u64,
    /// The counters.
    #[serde(flatten)]
    pub counts: Counts,
    /// The rules in effect.
    pub policy: QueuePolicy,
}

/// A drawer as people see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drawer {
    /// The name.
    pub dlq: QueueName,
    /// Letters by status.
    pub by_status: BTreeMap<Status, u64>,
}

impl Drawer {
    /// Letters in it that are not closed.
    #[must_use]
    pub fn open(&self) -> u64 {
        self.by_status.iter().filter(|(status, _)| !status.is_closed()).map(|(_, n)| n).sum()
    }
}

/// Where the message that has an idempotency key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyState {
    /// The message.
    pub id: MessageId,
    /// Where it is, also when it is finished.
    pub state: State,
}

/// How far a purge came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Purged {
    /// Messages removed by this call.
    pub purged: u64,
    /// Whether there is more to remove.
    pub more: bool,
}

/// The work side: from enqueue to the last attempt.
#[async_trait]
pub trait Work: Send + Sync {
    /// Accepts work. **I41** same key and body within the window is the same message, also when it is dead
    /// or done; same key and another body is refused. **I42** the same id and body again is harmless.
    /// The queue named in `reply_to` is made if need be, so that the sender can wait there; a drawer is
    /// refused (**I38**).
    async fn enqueue(&self, batch: Vec<NewMessage>) -> Outcome<Each<Enqueued>>;

    /// Hands out due work, most deserving first. **I16** one live lease per message; **I17** a new secret
    /// each; **I19** run-out leases are judged in the same commit; **I24** each grant counts once;
    /// **I29** the scheduler's shares; **I30** one at a time per ordering key; **I31** never early; **I49** fewer
    /// than asked for when their payloads are large ([`limits::LEASE_BYTES_MAX`]), but one at least.
    async fn lease(&self, request: LeaseRequest) -> Outcome<Vec<Delivery>>;

    /// Takes the outcome of deliveries. **I13** exactly one finaliser; **I17** a stale token changes nothing;
    /// **I20, I22** too late is too late; **I26** the attempt limit; **I32** death is one commit, and so is
    /// whatever reply follows from an outcome.
    async fn settle(&self, batch: Vec<Settlement>) -> Outcome<Each<Settled>>;

    /// One bounded maintenance pass over at most `limit` items. **I14, I23** nothing hides behind a block.
    async fn reap(&self, limit: usize) -> Outcome<Reaped>;

    /// The part of [`Self::reap`] that is quick however much the store holds, for a process that opens a directory
    /// for a moment: letters always, messages only where there are few ([`limits::TIDY_MESSAGES_MAX`]). Nothing on a
    /// connection to another process: whoever holds the store looks after it.
    async fn tidy(&self, limit: usize) -> Outcome<Option<Reaped>>;

    /// Returns true as soon as one of the queues may have due work, or false after `at_most`.
    async fn wait(&self, queues: Vec<QueueName>, at_most: Span) -> Outcome<bool>;

    /// Live messages in the order they were enqueued.
    async fn messages(&self, query: Query) -> Outcome<Page<Message>>;

    /// One live message with its failures so far.
    async fn message(&self, id: MessageId) -> Outcome<Message>;

    /// Where the message with this idempotency key is; nothing when the key is unknown or forgotten.
    async fn key_state(&self, queue: QueueName, key: String) -> Outcome<Option<KeyState>>;

    /// Takes waiting messages back. Leased ones are refused.
    async fn cancel(&self, ids: Vec<MessageId>, actor: Actor) -> Outcome<Each<MessageId>>;

    /// Every queue, by name.
    async fn queues(&self) -> Outcome<Vec<Queue>>;

    /// One queue.
    async fn queue(&self, name: QueueName) -> Outcome<Queue>;

    /// What the messages of each queue wait for that could be leased otherwise, for the queues where any do. Counted
    /// from the index of what is ready; nothing where that is not there and would take long to build.
    async fn waiting_for(&self) -> Outcome<Option<BTreeMap<QueueName, WaitingFor>>>;

    /// Sets a queue's rules, making it if need be. **I38** a drawer is never a queue.
    async fn configure(&self, name: QueueName, policy: QueuePolicy, actor: Actor) -> Outcome<Queue>;

    /// Halts or resumes leasing; enqueue and settle go on.
    async fn pause(&self, name: QueueName, paused: bool, actor: Actor) -> Outcome<Queue>;

    /// Removes waiting messages, a bounded number per call; leased ones and letters stay.
    async fn purge(&self, name: QueueName, actor: Actor) -> Outcome<Purged>;

    /// Every breaker that has seen something lately, by queue and key (**I28**).
    async fn breakers(&self) -> Outcome<Vec<BreakerView>>;

    /// Forces a breaker open, until it is closed by force, or closed, to start afresh (**I28**).
    async fn force_breaker(
        &self,
        queue: QueueName,
        key: String,
        open: bool,
        actor: Actor,
    ) -> Outcome<BreakerView>;
}

/// Who wants letters from which drawer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LetterLeaseRequest {
    /// The drawer.
    pub dlq: QueueName,
    /// At most so many.
    pub max: usize,
    /// For how long; 300 s when not said.
    #[serde(default)]
    pub lease_for: Option<Span>,
    /// Who.
    pub worker: String,
}

impl LetterLeaseRequest {
    /// Refuses absurd numbers, naming the field.
    ///
    /// # Errors
    /// [`Refusal::Invalid`].
    pub fn check(&self) -> Result<(), Refusal> {
        if self.max == 0 || self.max > limits::LEASE_BATCH_MAX {
            return Err(Refusal::invalid("max", format!("ask for 1 to {}", limits::LEASE_BATCH_MAX)));
        }
        check_lease(self.lease_for)?;
        check_worker(&self.worker)
    }
}

/// What a dead-letter consumer says about its letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "settle")]
pub enum LetterSettle {
    /// Do this with it.
    Do {
        /// The act.
        act: Act,
        /// Who, and why.
        actor: Actor,
    },
    /// The consumer failed; the letter rests for an hour. It never dies a second time from this.
    Fail {
        /// What to note on the letter.
        note: String,
    },
    /// Back to the drawer.
    Release,
    /// Back to the drawer, and no consumer is given it for so long.
    Snooze {
        /// For how long.
        #[serde(rename = "for_ms")]
        span: Span,
    },
    /// Longer, please.
    Extend {
        /// From now; 300 s when not said.
        #[serde(default, rename = "by_ms")]
        by: Option<Span>,
    },
}

/// One settlement of a letter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LetterSettlement {
    /// The right to settle.
    pub token: LeaseToken,
    /// What is said.
    #[serde(flatten)]
    pub what: LetterSettle,
}

/// A letter that another store has now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HandOver {
    /// The letter.
    pub id: MessageId,
    /// Its version when it was copied; a letter that changed since is refused.
    pub version: u64,
}

/// What a pass of the text index did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Indexed {
    /// Entries made.
    pub indexed: u64,
    /// Whether there is more to do.
    pub more: bool,
}

/// Where a letter stands after an act.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LetterState {
    /// The letter.
    pub id: MessageId,
    /// Its status; nothing when it was removed.
    pub status: Option<Status>,
    /// Its version.
    pub version: u64,
}

/// The dead-letter side: from death to decision.
#[async_trait]
pub trait Letters: Send + Sync {
    /// Letters that match, latest death first. The evaluator is the authority on what matches.
    async fn letters(&self, query: Query) -> Outcome<Page<DeadLetter>>;

    /// One letter with its kept history. **I33** payload bit-exact, every attempt.
    async fn letter(&self, id: MessageId) -> Outcome<DeadLetter>;

    /// Every content one letter had, oldest first and the present one last, with who changed it and why; nothing
    /// when it was erased. **I39** the original is always among them.
    async fn revisions(&self, id: MessageId) -> Outcome<Vec<Revision>>;

    /// The letter with its earlier contents, as a full export and another store need it. A letter that is edited
    /// meanwhile is read again.
    async fn with_lineage(&self, mut letter: DeadLetter) -> Outcome<DeadLetter> {
        while !letter.file.edits.is_empty() && letter.file.erased.is_none() {
            let mut revisions = self.revisions(letter.id()).await?;
            if revisions.pop().is_some_and(|last| last.n == letter.file.revision()) {
                letter.revisions = revisions;
                break;
            }
            letter = self.letter(letter.id()).await?;
        }
        Ok(letter)
    }

    /// Every drawer that has or had letters, by name.
    async fn drawers(&self) -> Outcome<Vec<Drawer>>;

    /// Hands pending letters to a dead-letter consumer, oldest death first. **I16, I17, I49** as for messages.
    async fn lease_letters(&self, request: LetterLeaseRequest) -> Outcome<Vec<LetterDelivery>>;

    /// Takes a consumer's word. **I17, I22** as for messages.
    async fn settle_letters(&self, batch: Vec<LetterSettlement>) -> Outcome<Each<LetterState>>;

    /// Acts on single letters. **I12** the status table; **I48** one audit row each, in the same commit.
    async fn act(&self, batch: Vec<ActRequest>) -> Outcome<Each<LetterState>>;

    /// Groups. Exact: **I15**. Reads one row per group, however many letters there are.
    async fn groups(&self, query: GroupQuery) -> Outcome<Page<Group>>;

    /// One group.
    async fn group(&self, id: GroupId) -> Outcome<Group>;

    /// Everything about one group.
    async fn group_detail(&self, id: GroupId) -> Outcome<GroupDetail>;

    /// An operator's word on a group (**I48**). Its letters stay as they are. What follows by itself: the success
    /// of the last open letter resolves a group, the next death brings a resolved one back, and what is ignored
    /// for a time or a count comes back when that is over.
    async fn act_on_group(&self, id: GroupId, act: GroupAct, actor: Actor) -> Outcome<Group>;

    /// Notes a moment, such as a deploy, so that people can ask what is new since (**I48**). The oldest beyond
    /// [`limits::MARKERS_MAX`] make room.
    async fn mark(&self, text: String, actor: Actor) -> Outcome<Marker>;

    /// The markers, latest first.
    async fn markers(&self, page: PageRequest) -> Outcome<Page<Marker>>;

    /// Says that these groups have one cause; the oldest name stays, the others lead to it (**I48**).
    async fn merge_groups(&self, groups: Vec<GroupId>, actor: Actor) -> Outcome<Group>;

    /// An operator's word on what kind of failure a group is; nothing takes it back (**I48**). It goes before
    /// what statistics say, for failures from then on.
    async fn label_group(&self, id: GroupId, category: Option<Category>, actor: Actor) -> Outcome<Group>;

    /// Letters that match, oldest death first, as they go into an export ([`crate::transfer::exported`]). Whoever
    /// shows them to somebody masks them or says so first ([`Self::disclose`]).
    async fn export(&self, query: Query) -> Outcome<Page<DeadLetter>>;

    /// Writes down that somebody is about to be shown what is masked for others (**I48**).
    async fn disclose(&self, disclosure: Disclosure, actor: Actor) -> Outcome<()>;

    /// Files letters from an export. A letter whose id is here already is left alone and refused by entry, and so is
    /// a masked one. Into an empty store they come as they were: number of the death and group included.
    async fn import(&self, batch: Vec<DeadLetter>, actor: Actor) -> Outcome<Each<MessageId>>;

    /// Removes letters that another store has now, counted as purged, with one audit row each. Whoever asks
    /// has seen to it that they are there. A letter that changed, is being retried, is in a consumer's hands or
    /// holds its ordering key is refused: it belongs here (**I12, I48**). Its idempotency key goes on saying what
    /// it said: the message is not over (**I41**).
    async fn hand_over(&self, batch: Vec<HandOver>, actor: Actor) -> Outcome<Each<MessageId>>;

    /// Puts the next letters into the text index, up to so many, in a commit of their own. Nobody waits for it: what
    /// is not in yet is looked at itself. Says how many entries were made and whether there is more
    /// to do; nothing where there is no index.
    async fn index_text(&self, limit: usize) -> Outcome<Indexed>;

    /// What an operation would touch: counts, a sample, what to think of first, the bound that freezes it and a
    /// token that binds a start to it (**I36**).
    async fn preview(&self, request: PreviewRequest) -> Outcome<Preview>;

    /// Starts an operation; starting the same id again returns it as it stands (**I36**). A token that is not of a
    /// preview of the same act, filter and bound is refused.
    async fn start(&self, spec: OperationSpec) -> Outcome<Operation>;

    /// Does one chunk of an operation's work in one commit, with one audit row (**I36, I48**): as much as its stage,
    /// rate, ramp and what is under way allow now (**I37**). Says when the next step makes sense. What becomes of
    /// letters that were sent back is written in the commit that settles them; counters are the sum of outcomes.
    async fn step(&self, id: OperationId) -> Outcome<Operation>;

    /// Steers an operation: pause, resume, cancel, another rate, undo (**I37, I48**).
    async fn control(&self, id: OperationId, control: Control, actor: Actor) -> Outcome<Operation>;

    /// One operation.
    async fn operation(&self, id: OperationId) -> Outcome<Operation>;

    /// Operations, latest first.
    async fn operations(&self, page: PageRequest) -> Outcome<Page<Operation>>;

    /// The members of an operation and what became of each.
    async fn members(&self, id: OperationId, page: PageRequest) -> Outcome<Page<Member>>;

    /// The audit trail, latest first.
    async fn audit(&self, page: PageRequest) -> Outcome<Page<AuditRow>>;

    /// Checks the chain, and that a head noted earlier is in it (**I48**).
    async fn audit_verify(&self, head: Option<String>) -> Outcome<AuditReport>;

    /// Removes rows of the trail that are older than `before`, a bounded number per call, and leaves an anchor
    /// from which the rest can still be proved. That it was done is a row itself (**I48, I49**).
    async fn audit_trim(&self, before: Time, actor: Actor) -> Outcome<AuditTrimmed>;
}

/// A small durable value and its version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvEntry {
    /// The value.
    pub value: Vec<u8>,
    /// Changes with every write.
    pub version: u64,
}

/// What a verification looks at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerifyRequest {
    /// Also read every payload and check the file itself.
    pub deep: bool,
    /// Set right what can be made again from the rest, and damaged records aside; nothing else is ever repaired.
    pub repair: bool,
}

/// What a store says about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreInfo {
    /// memory, sqlite, model.
    pub backend: String,
    /// Whether success means durable.
    pub durable: bool,
    /// Where the data is.
    pub place: String,
    /// The store's clock.
    pub now: Time,
    /// How far the store's clock is ahead of the wall clock.
    pub skew_ms: i64,
    /// What is wrong with it at the moment, in words; empty is good.
    pub degraded: Vec<String>,
}

/// A whole store.
#[async_trait]
pub trait Store: Work + Letters {
    /// What this store is and how it is.
    async fn info(&self) -> Outcome<StoreInfo>;

    /// What was counted in commits, which survives a restart; the queues as they stand; and what the process that
    /// holds the store measured about itself.
    async fn stats(&self) -> Outcome<Stats>;

    /// Recounts everything and compares (**I11, I14, I15, I30, I32, I46, I48**).
    async fn verify(&self, request: VerifyRequest) -> Outcome<Verification>;

    /// Copies the store to a new directory, as of one commit, while work goes on (**I9**).
    async fn backup(&self, target: String) -> Outcome<u64>;

    /// Whole ids that end in these digits. A page looks at [`limits::PAGE_SCAN_MAX`] ids at most: like a filtered list
    /// it may have nothing on it and still a next one.
    async fn ids_ending(&self, query: TailQuery) -> Outcome<Page<String>>;

    /// Reads a small durable value.
    async fn kv_get(&self, namespace: String, key: String) -> Outcome<Option<KvEntry>>;

    /// Writes or removes one, only if it is still at the version that was read (0 = not there).
    async fn kv_put(
        &self,
        namespace: String,
        key: String,
        value: Option<Vec<u8>>,
        expected: u64,
    ) -> Outcome<u64>;
}
