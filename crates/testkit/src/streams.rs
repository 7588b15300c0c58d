//! Random operations on two stores at once. Both stores share a clock and run the same operations. Every
//! result must be equal, and so must everything the stores show after every operation. A stream that finds a
//! difference is shrunk to the shortest one that still does, so that a person can read it.
//!
//! Queues, keys and ordering keys are few on purpose, so that operations affect each other. Only the secrets
//! of lease tokens differ between two stores; tokens are paired in the order in which they were granted.
//!
//! ```no_run
//! use redrive_testkit::clock::TestClock;
//! use redrive_testkit::model::Model;
//! use redrive_testkit::streams;
//!
//! streams::check(256, None, |ops| {
//!     let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(|e| e.to_string())?;
//!     let clock = TestClock::shared();
//!     let (model, yours) = (Model::new(clock.clone()), Model::new(clock.clone())); // your store instead
//!     runtime.block_on(streams::run_pair(&model, &yours, &clock, &ops))
//! });
//! ```

mod check;
mod pair;

pub use check::check;
pub use pair::run_pair;

use proptest::collection::vec;
use proptest::option::{of, weighted};
use proptest::prelude::{Just, Strategy, prop_oneof};
use redrive_core::auto_redrive::AutoRedrive;
use redrive_core::backoff::{Backoff, Growth, Jitter};
use redrive_core::breaker::{BreakerKey, BreakerPolicy};
use redrive_core::dead_letter::{Act, Retry};
use redrive_core::failure::Route;
use redrive_core::group::GroupAct;
use redrive_core::ids::QueueName;
use redrive_core::message::{Payload, Priority};
use redrive_core::operation::{Canary, Control, Rollout};
use redrive_core::patch::Patch;
use redrive_core::poison::{PoisonPolicy, Release};
use redrive_core::policy::{OnDead, OnExpire, Override, QueuePolicy};
use redrive_core::revision::Edit;
use redrive_core::time::{Span, Time};
use std::collections::BTreeSet;

/// The maximum number of operations in a stream. The view that is compared after each operation grows with
/// them.
pub const STREAM_OPS_MAX: usize = 60;

/// A message to send.
#[derive(Clone, Debug)]
pub struct SendOp {
    /// Index of the queue.
    pub queue: usize,
    /// Index of the idempotency key.
    pub key: Option<usize>,
    /// Index of the ordering key.
    pub order: Option<usize>,
    /// The priority level.
    pub level: usize,
    /// The delay in seconds.
    pub delay: Option<u64>,
    /// The ttl in seconds.
    pub ttl: Option<u64>,
    /// Seconds until the deadline.
    pub deadline: Option<u64>,
    /// The maximum number of attempts.
    pub max_attempts: Option<u32>,
    /// The payload size in bytes.
    pub size: usize,
    /// Index of the queue for replies.
    pub reply_to: Option<usize>,
}

/// How to settle a delivery.
#[derive(Clone, Debug)]
pub enum SettleOp {
    /// Acknowledge it.
    Ack,
    /// Acknowledge it with a reply of this many bytes.
    Reply(usize),
    /// Fail it: index of the error, whether it is permanent, and the override of a custom policy.
    Fail(usize, bool, Option<Override>),
    /// Release it.
    Release,
    /// Snooze it for this many seconds.
    Snooze(u64),
    /// Extend its lease by this many seconds.
    Extend(Option<u64>),
    /// Report this much progress.
    Progress(u64),
}

/// How to settle a leased letter.
#[derive(Clone, Debug)]
pub enum LetterSettleOp {
    /// Act on it.
    Do(ActOp),
    /// Report that the consumer failed.
    Fail,
    /// Release it.
    Release,
    /// Release it and hide it for this many seconds.
    Snooze(u64),
    /// Extend its lease by this many seconds.
    Extend(Option<u64>),
}

/// An act on a letter. Times are seconds from now.
#[derive(Clone, Debug)]
pub enum ActOp {
    /// Retry it, possibly at a later time.
    Retry(Option<u64>),
    /// Request a review.
    Review,
    /// Quarantine it for this many seconds.
    Quarantine(u64),
    /// Set it back to pending.
    Release,
    /// Close it as resolved.
    Resolve,
    /// Close it as abandoned.
    Abandon,
    /// Reopen it.
    Reopen,
    /// Add a note.
    Note,
    /// Purge it.
    Purge,
    /// Retry it with options: index into [`DESTINATIONS`], priority level, attempt limit, and force.
    RetryTo(usize, Option<usize>, Option<u32>, bool),
    /// Pull a redrive back.
    PullBack,
    /// Restore it after a purge.
    Unpurge,
    /// Move it to one of [`DESTINATIONS`].
    Move(usize),
    /// Set or clear its hold.
    Hold(bool),
    /// Hide it from consumers for this many seconds.
    Snooze(u64),
    /// Assign it to an owner, or to nobody.
    Assign(Option<usize>),
    /// Add or remove a label.
    Label(usize, bool),
    /// Replace its content: a JSON document with this many members, or this many bytes that are not JSON.
    Edit(usize),
    /// Apply one of [`PATCHES`].
    Patch(usize),
    /// Restore the content of this revision.
    Restore(u32),
    /// Erase its content.
    Erase,
}

/// The patches of every stream. Most apply to some documents and not to others; one changes nothing.
pub const PATCHES: [&str; 4] = [
    r#"[{"op":"add","path":"/n","value":12345678901234567890123}]"#,
    r#"[{"op":"replace","path":"/m0","value":[1.50]},{"op":"copy","from":"/m0","path":"/c"}]"#,
    r#"[{"op":"remove","path":"/n"}]"#,
    r#"[{"op":"test","path":"","value":{}}]"#,
];

/// New content. The number decides whether it is a JSON document and whether it has headers.
fn edit(n: usize) -> Edit {
    let members: Vec<String> = (0..n % 4).map(|m| format!(r#""m{m}": {n}"#)).collect();
    let (text, content_type) = match n % 3 {
        0 => ("y".repeat(n), ""),
        _ => (format!("{{ {} }}", members.join(", ")), "application/json"),
    };
    let payload = Payload { bytes: text.into_bytes(), content_type: content_type.into() };
    let headers = n.is_multiple_of(2).then(|| [("n".to_owned(), n.to_string())].into());
    Edit { payload: (!n.is_multiple_of(5)).then_some(payload), headers }
}

/// Names that letters are sent or moved to: queues, dead letter queues, and a name that does not exist.
pub const DESTINATIONS: [&str; 8] = ["a", "b", "c", "a-dlq", "b-dlq", "bin", "net", "nowhere"];

fn destination(n: usize) -> QueueName {
    DESTINATIONS[n % DESTINATIONS.len()].parse().expect("a name")
}

impl ActOp {
    /// The act at this instant.
    #[must_use]
    pub fn at(&self, now: Time) -> Act {
        match self {
            Self::Retry(delay) => {
                Act::Retry(Retry { at: delay.map(|s| now.plus(Span::from_secs(s))), ..Retry::default() })
            }
            Self::Review => Act::Review,
            Self::Quarantine(s) => Act::Quarantine { until: now.plus(Span::from_secs(*s)) },
            Self::Release => Act::Release,
            Self::Resolve => Act::Resolve,
            Self::Abandon => Act::Abandon,
            Self::Reopen => Act::Reopen,
            Self::Note => Act::Note,
            Self::Purge => Act::Purge,
            Self::RetryTo(to, level, max_attempts, force) => Act::Retry(Retry {
                at: None,
                queue: Some(destination(*to)),
                priority: level.map(Priority::from_level),
                max_attempts: *max_attempts,
                force: *force,
            }),
            Self::PullBack => Act::PullBack,
            Self::Unpurge => Act::Unpurge,
            Self::Move(to) => Act::Move { dlq: destination(*to) },
            Self::Hold(on) => Act::Hold { on: *on },
            Self::Snooze(s) => Act::Snooze { until: now.plus(Span::from_secs(*s)) },
            Self::Assign(to) => Act::Assign { to: to.map(|n| format!("p{n}")) },
            Self::Label(n, on) => {
                let (label, none) = (BTreeSet::from([format!("l{n}")]), BTreeSet::new());
                let (add, remove) = if *on { (label, none) } else { (none, label) };
                Act::Label { add, remove }
            }
            Self::Edit(n) => Act::Edit(Box::new(edit(*n))),
            Self::Patch(n) => {
                Act::Patch(Box::new(Patch::parse(PATCHES[n % PATCHES.len()]).expect("a patch")))
            }
            Self::Restore(n) => Act::Restore { n: *n },
            Self::Erase => Act::Erase,
        }
    }
}

/// An act on a group. Times are seconds from now.
#[derive(Clone, Debug)]
pub enum GroupOp {
    /// Acknowledge it.
    Acknowledge,
    /// Resolve it.
    Resolve,
    /// Ignore it for this many seconds or this many deaths.
    Ignore(Option<u64>, Option<u64>),
    /// Reopen it.
    Reopen,
    /// Assign it to an owner.
    Assign(Option<usize>),
    /// Set its note.
    Note(usize),
    /// Set its link: a valid one, or one that is refused.
    Link(bool),
}

impl GroupOp {
    /// The act at this instant.
    #[must_use]
    pub fn at(&self, now: Time) -> GroupAct {
        match self {
            Self::Acknowledge => GroupAct::Acknowledge,
            Self::Resolve => GroupAct::Resolve,
            Self::Ignore(seconds, count) => {
                GroupAct::Ignore { until: seconds.map(|s| now.plus(Span::from_secs(s))), count: *count }
            }
            Self::Reopen => GroupAct::Reopen,
            Self::Assign(who) => GroupAct::Assign { to: who.map(|n| ["bob", "eve", ""][n % 3].to_owned()) },
            Self::Note(n) => GroupAct::Note { text: (*n > 0).then(|| format!("note {n}")) },
            Self::Link(good) => {
                GroupAct::Link { url: Some(if *good { "https://example.org/1" } else { "ftp:" }.to_owned()) }
            }
        }
    }
}

/// One operation. Numbers that select an item wrap around, so every stream is valid.
#[derive(Clone, Debug)]
pub enum Op {
    /// Enqueue messages.
    Send(Vec<SendOp>),
    /// Enqueue an earlier message again, possibly with a changed body.
    Resend(usize, bool),
    /// Lease from these queues (one bit each), up to a maximum number, for this many seconds.
    Lease(usize, usize, Option<u64>),
    /// Settle deliveries. The number selects a token, counted from the latest one granted.
    Settle(Vec<(usize, SettleOp)>),
    /// Move the clock by this many milliseconds.
    Advance(u64),
    /// Reap with this limit.
    Reap(usize),
    /// Cancel messages.
    Cancel(Vec<usize>),
    /// Pause or resume a queue.
    Pause(usize, bool),
    /// Force a breaker of a queue open or closed.
    ForceBreaker(usize, bool),
    /// Merge two groups.
    Merge(usize, usize),
    /// Label a group with a category.
    Label(usize, usize),
    /// Act on a group.
    ActOnGroup(usize, GroupOp),
    /// Add a marker.
    Mark(usize),
    /// Read groups with one of a few queries, in small pages.
    ReadGroups(usize, usize),
    /// Purge a queue.
    Purge(usize),
    /// Configure a queue with one of [`policies`].
    Configure(usize, usize),
    /// Act on letters. The last part, if present, sends an expected version: a wrong one if `true`.
    Act(Vec<(usize, ActOp, Option<bool>)>),
    /// Lease letters from a dead letter queue.
    LeaseLetters(usize, usize, Option<u64>),
    /// Settle leased letters.
    SettleLetters(Vec<(usize, LetterSettleOp)>),
    /// Preview an operation.
    Preview(ActOp, usize, usize),
    /// Start an operation: its number, the act, index of the filter, whether the last preview bounds it, and
    /// the rollout if it redrives letters.
    Start(u64, ActOp, usize, bool, Rollout),
    /// Step an operation this many times.
    Step(u64, usize),
    /// Control an operation.
    Control(u64, Control),
    /// Keep a copy of a letter for a later import.
    Export(usize),
    /// Import a kept copy, under a new id or its own.
    Import(usize, bool),
    /// Disclose a letter, nothing, or every letter that matches a filter.
    Disclose(usize, usize),
    /// Read lists in small pages with a filter.
    ReadPages(usize, usize),
    /// Feed the text index, if the store has one.
    IndexText(usize),
    /// Read the state of the message that holds a key.
    KeyState(usize, usize),
    /// Compare and set a key-value entry, with the right version or one too high.
    Kv(usize, Option<u8>, bool),
    /// Record an act together with such an entry.
    Record(usize, Option<u8>, bool),
}

/// The queues of every stream.
pub const QUEUES: [&str; 3] = ["a", "b", "c"];

/// The queues for replies: a queue with its own policy, one that receives nothing else, and two that may be
/// dead letter queues.
pub const REPLY_TO: [&str; 4] = ["c", "answers", "a-dlq", "bin"];

/// The error types of every stream: two causes with different routes, one that a policy includes and one that
/// a policy excludes.
pub const ERRORS: [&str; 4] = ["ConnectionError", "Bad", "Fatal", "Patient"];

/// Names in otherwise equal messages. After a few of them their groups are merged.
pub const USERS: [&str; 6] = ["ann", "bob", "cyd", "dan", "eve", "fay"];

/// The filters of every stream.
pub const FILTERS: [&str; 12] = [
    "",
    "queue:a",
    "status:pending",
    "queue:b,c",
    "status:purged,resolved",
    "snoozed:no",
    "tag:l1 or held:yes",
    "connection or fatal",
    "not error:bad attempts>0",
    "eligible:yes closed_by!=x",
    "erased:no review_required:no",
    "operation:*",
];

/// The number of different group queries.
pub const GROUP_QUERIES: usize = 5;

/// The policies that a queue can be given.
#[must_use]
pub fn policies() -> Vec<QueuePolicy> {
    let fixed = |s| Backoff {
        initial: Span::from_secs(s),
        growth: Growth::Fixed,
        jitter: Jitter::None,
        ..Backoff::default()
    };
    let plain = |max_attempts| QueuePolicy { max_attempts, backoff: fixed(2), ..QueuePolicy::default() };
    let jittered = |jitter| Backoff { jitter, ..Backoff::default() };
    let twice = || Some(AutoRedrive { limit: 2, backoff: Span::from_secs(5) });
    let bin = || Some("bin".parse().expect("a name"));
    vec![
        plain(1),
        plain(2),
        QueuePolicy { backoff: jittered(Jitter::Full), ..plain(3) },
        QueuePolicy { backoff: jittered(Jitter::Decorrelated), ..plain(3) },
        QueuePolicy { on_dead: OnDead::Hold, ..plain(1) },
        QueuePolicy { on_dead: OnDead::Hold, ttl: Some(Span::from_secs(20)), ..plain(2) },
        QueuePolicy { on_expire: OnExpire::Drop, ttl: Some(Span::from_secs(20)), ..plain(2) },
        QueuePolicy { max_messages: Some(3), lease: Span::from_secs(5), ..plain(2) },
        QueuePolicy { max_bytes: Some(30), ..plain(1) },
        QueuePolicy {
            dlq: bin(),
            routes: [(Route::Network, "net".parse().expect("a name"))].into(),
            open_ttl: Some(Span::from_hours(1)),
            retention: Span::from_hours(1),
            ..plain(1)
        },
        QueuePolicy {
            include: vec!["Fatal*".parse().expect("a glob")],
            exclude: vec!["Patient".parse().expect("a type")],
            retry_for: Span::from_secs(30),
            ..plain(2)
        },
        QueuePolicy { dlq: Some("b".parse().expect("a name")), ..plain(2) },
        plain(0),
        QueuePolicy { max_redrives: 1, ..plain(1) },
        QueuePolicy { auto_redrive: twice(), open_ttl: Some(Span::from_hours(1)), ..plain(1) },
        QueuePolicy { breaker: Some(BreakerPolicy { probes: 2, ..breaker(BreakerKey::Queue) }), ..plain(9) },
        QueuePolicy { breaker: Some(breaker(BreakerKey::Kind)), lease: Span::from_secs(3), ..plain(9) },
        QueuePolicy {
            poison: PoisonPolicy { quarantine: Span::from_secs(20), release: Release::Queue, detect: true },
            ..QueuePolicy::by_category()
        },
    ]
}

/// A breaker that opens soon and closes soon.
fn breaker(key: BreakerKey) -> BreakerPolicy {
    BreakerPolicy { failures: 2, open_for: Span::from_secs(4), ..BreakerPolicy::new(key) }
}

fn act() -> impl Strategy<Value = ActOp> {
    prop_oneof![
        4 => of(1_u64..30).prop_map(ActOp::Retry),
        1 => Just(ActOp::Review),
        1 => (1_u64..60).prop_map(ActOp::Quarantine),
        1 => Just(ActOp::Release),
        3 => Just(ActOp::Resolve),
        1 => Just(ActOp::Abandon),
        2 => Just(ActOp::Reopen),
        1 => Just(ActOp::Note),
        3 => Just(ActOp::Purge),
        4 => (0..DESTINATIONS.len(), rarely(0_usize..5), rarely(1_u32..4), proptest::bool::weighted(0.3))
            .prop_map(|(to, level, attempts, force)| ActOp::RetryTo(to, level, attempts, force)),
        3 => Just(ActOp::PullBack),
        2 => Just(ActOp::Unpurge),
        1 => (0..DESTINATIONS.len()).prop_map(ActOp::Move),
        1 => proptest::bool::weighted(0.7).prop_map(ActOp::Hold),
        1 => (0_u64..60).prop_map(ActOp::Snooze),
        1 => of(0_usize..2).prop_map(ActOp::Assign),
        1 => (0_usize..2, proptest::bool::weighted(0.7)).prop_map(|(n, on)| ActOp::Label(n, on)),
        4 => (0_usize..12).prop_map(ActOp::Edit),
        2 => (0..PATCHES.len()).prop_map(ActOp::Patch),
        2 => (0_u32..3).prop_map(ActOp::Restore),
        1 => Just(ActOp::Erase),
    ]
}

fn group_act() -> impl Strategy<Value = GroupOp> {
    prop_oneof![
        2 => Just(GroupOp::Acknowledge),
        3 => Just(GroupOp::Resolve),
        3 => (of(0_u64..20), of(0_u64..4)).prop_map(|(seconds, count)| GroupOp::Ignore(seconds, count)),
        2 => Just(GroupOp::Reopen),
        1 => of(0_usize..3).prop_map(GroupOp::Assign),
        1 => (0_usize..3).prop_map(GroupOp::Note),
        1 => proptest::bool::ANY.prop_map(GroupOp::Link),
    ]
}

/// A value that most messages do not set.
fn rarely<T: Strategy>(what: T) -> impl Strategy<Value = Option<T::Value>> {
    weighted(0.15, what)
}

fn send() -> impl Strategy<Value = SendOp> {
    let content = (weighted(0.25, 0_usize..3), weighted(0.4, 0_usize..2), 0_usize..5, 0_usize..20);
    let times = (of(prop_oneof![Just(0), Just(5)]), rarely(1_u64..20), rarely(1_u64..20), rarely(1_u32..4));
    // The last two are mostly refused, and using one as a reply queue stops it from being a dead letter
    // queue.
    let reply_to = prop_oneof![6 => 0_usize..2, 1 => 2..REPLY_TO.len()];
    (0_usize..3, content, times, weighted(0.3, reply_to)).prop_map(|(queue, content, times, reply_to)| {
        let (key, order, level, size) = content;
        let (delay, ttl, deadline, max_attempts) = times;
        SendOp { queue, key, order, level, delay, ttl, deadline, max_attempts, size, reply_to }
    })
}

fn settle_op() -> impl Strategy<Value = SettleOp> {
    let override_ = prop_oneof![
        6 => Just(None),
        1 => Just(Some(Override::DeadLetter)),
        1 => Just(Some(Override::RetryAfter(Span::from_secs(3)))),
    ];
    let variants = ERRORS.len() * (1 + USERS.len());
    let error = prop_oneof![4 => 0..ERRORS.len(), 2 => (0..USERS.len()).prop_map(|n| ERRORS.len() * (n + 1) + 1), 1 => 0..variants];
    prop_oneof![
        3 => Just(SettleOp::Ack),
        2 => (0_usize..40).prop_map(SettleOp::Reply),
        8 => (error, proptest::bool::weighted(0.4), override_).prop_map(|(e, p, w)| SettleOp::Fail(e, p, w)),
        1 => Just(SettleOp::Release),
        1 => (0_u64..10).prop_map(SettleOp::Snooze),
        1 => of(1_u64..60).prop_map(SettleOp::Extend),
        1 => (0_u64..3).prop_map(SettleOp::Progress),
    ]
}

fn letter_settle_op() -> impl Strategy<Value = LetterSettleOp> {
    prop_oneof![
        3 => act().prop_map(LetterSettleOp::Do),
        1 => Just(LetterSettleOp::Fail),
        1 => Just(LetterSettleOp::Release),
        1 => (0_u64..600).prop_map(LetterSettleOp::Snooze),
        1 => of(1_u64..600).prop_map(LetterSettleOp::Extend),
    ]
}

fn advance() -> impl Strategy<Value = Op> {
    let often = [1, 500, 1_000, 2_000, 5_000, 11_000, 30_000];
    let seldom = [300_000, 3_600_000, 90_000_000, 2_700_000_000];
    prop_oneof![
        8 => (0..often.len()).prop_map(move |at| Op::Advance(often[at])),
        1 => (0..seldom.len()).prop_map(move |at| Op::Advance(seldom[at])),
    ]
}

/// Half of the operations have no limits on their rollout.
fn rollout() -> impl Strategy<Value = Rollout> {
    let canary = prop_oneof![(1_u64..3).prop_map(Canary::Count), Just(Canary::Percent(30))];
    let stops = (weighted(0.5, prop_oneof![Just(0), Just(20), Just(60)]), proptest::bool::weighted(0.3));
    let careful = (of(canary), 0_u64..4, of(1_u32..4), of(0_u64..5), of(1_u32..3), stops).prop_map(
        |(canary, observe, rate, ramp, in_flight, (stop_at, stop_on_breaker))| Rollout {
            canary,
            observe: Span::from_secs(observe),
            ramp: ramp.filter(|_| rate.is_some()).map(Span::from_secs),
            rate,
            in_flight,
            stop_at,
            stop_on_breaker,
        },
    );
    prop_oneof![Just(Rollout::default()), careful]
}

fn op() -> impl Strategy<Value = Op> {
    let bulk = prop_oneof![2 => Just(ActOp::Retry(None)), 2 => Just(ActOp::Resolve), 2 => act()];
    let control = prop_oneof![
        2 => Just(Control::Pause),
        4 => Just(Control::Resume),
        1 => Just(Control::Cancel),
        1 => of(1_u32..5).prop_map(Control::Rate),
        2 => Just(Control::Undo),
    ];
    prop_oneof![
        12 => vec(send(), 1..4).prop_map(Op::Send),
        1 => (0_usize..9, proptest::bool::ANY).prop_map(|(at, other)| Op::Resend(at, other)),
        14 => (1_usize..8, 1_usize..5, of(1_u64..60)).prop_map(|(q, max, s)| Op::Lease(q, max, s)),
        18 => vec((0_usize..4, settle_op()), 1..4).prop_map(Op::Settle),
        6 => advance(),
        2 => prop_oneof![Just(1_usize), Just(1_000)].prop_map(Op::Reap),
        1 => vec(0_usize..9, 1..3).prop_map(Op::Cancel),
        1 => (0_usize..3, proptest::bool::weighted(0.3)).prop_map(|(q, on)| Op::Pause(q, on)),
        1 => (0_usize..3, proptest::bool::ANY).prop_map(|(q, open)| Op::ForceBreaker(q, open)),
        1 => (0_usize..5, 0_usize..5).prop_map(|(a, b)| Op::Merge(a, b)),
        1 => (0_usize..5, 0_usize..6).prop_map(|(group, category)| Op::Label(group, category)),
        3 => (0_usize..5, group_act()).prop_map(|(group, act)| Op::ActOnGroup(group, act)),
        1 => (0_usize..4).prop_map(Op::Mark),
        1 => (0..GROUP_QUERIES, 1_usize..4).prop_map(|(query, limit)| Op::ReadGroups(query, limit)),
        1 => (0_usize..3).prop_map(Op::Purge),
        4 => (0_usize..3, 0..policies().len()).prop_map(|(q, p)| Op::Configure(q, p)),
        8 => vec((0_usize..5, act(), rarely(proptest::bool::ANY)), 1..4).prop_map(Op::Act),
        2 => (0_usize..5, 1_usize..4, of(1_u64..600)).prop_map(|(d, max, s)| Op::LeaseLetters(d, max, s)),
        2 => vec((0_usize..4, letter_settle_op()), 1..3).prop_map(Op::SettleLetters),
        1 => (act(), 0..FILTERS.len(), 0_usize..3).prop_map(|(act, f, n)| Op::Preview(act, f, n)),
        3 => (0_u64..4, bulk, 0..FILTERS.len(), proptest::bool::weighted(0.3), rollout())
            .prop_map(|(n, act, f, bound, rollout)| Op::Start(n, act, f, bound, rollout)),
        5 => (0_u64..4, 1_usize..4).prop_map(|(n, times)| Op::Step(n, times)),
        2 => (0_u64..4, control).prop_map(|(n, c)| Op::Control(n, c)),
        1 => (0_usize..9).prop_map(Op::Export),
        2 => (0_usize..4, proptest::bool::ANY).prop_map(|(n, fresh)| Op::Import(n, fresh)),
        2 => (1_usize..4, 0..FILTERS.len()).prop_map(|(limit, f)| Op::ReadPages(limit, f)),
        1 => (1_usize..9).prop_map(Op::IndexText),
        1 => (0_usize..4, 0..FILTERS.len()).prop_map(|(n, what)| Op::Disclose(n, what)),
        1 => (0_usize..3, 0_usize..3).prop_map(|(q, k)| Op::KeyState(q, k)),
        1 => (0_usize..2, of(0_u8..9), proptest::bool::weighted(0.2)).prop_map(|(k, v, w)| Op::Kv(k, v, w)),
        1 => (0_usize..2, of(0_u8..9), proptest::bool::weighted(0.2)).prop_map(|(k, v, w)| Op::Record(k, v, w)),
    ]
}

/// Streams of operations. All are long, so that deaths and redrives happen. Each operation may be left out,
/// so that shrinking removes what does not matter.
pub fn ops() -> impl Strategy<Value = Vec<Op>> {
    vec(weighted(0.95, op()), STREAM_OPS_MAX).prop_map(|all| all.into_iter().flatten().collect())
}
