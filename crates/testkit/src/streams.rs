//! Random operations on two stores at once. Both have the same clock and are told the same things; every
//! reply and, after every operation, everything they show must be equal. A stream that tells them apart is
//! shrunk to the shortest one that still does, so it can be read.
//!
//! Universes are small on purpose: few queues, keys and ordering keys, so that operations meet. Secrets are
//! the one thing two stores cannot have in common; tokens are paired by the order in which they were given.
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
use redrive_core::operation::{Canary, Control, Pace};
use redrive_core::patch::Patch;
use redrive_core::poison::{PoisonPolicy, Release};
use redrive_core::policy::{OnDead, OnExpire, Override, QueuePolicy};
use redrive_core::revision::Edit;
use redrive_core::time::{Span, Time};
use std::collections::BTreeSet;

/// Operations in one stream at most: what is compared after each grows with them.
pub const STREAM_OPS_MAX: usize = 60;

/// What is said about a message that is sent.
#[derive(Clone, Debug)]
pub struct Send {
    /// Which queue.
    pub queue: usize,
    /// Which idempotency key.
    pub key: Option<usize>,
    /// Which ordering key.
    pub order: Option<usize>,
    /// Which level.
    pub level: usize,
    /// Seconds of delay.
    pub delay: Option<u64>,
    /// Seconds of ttl.
    pub ttl: Option<u64>,
    /// Seconds to the deadline.
    pub deadline: Option<u64>,
    /// Executions allowed.
    pub max_attempts: Option<u32>,
    /// Bytes of payload.
    pub size: usize,
    /// Which place for replies.
    pub reply_to: Option<usize>,
}

/// What is said about a delivery.
#[derive(Clone, Debug)]
pub enum Say {
    /// Done.
    Ack,
    /// Done, with an answer of so many bytes.
    Reply(usize),
    /// Failed: which error, whether for good, and a custom policy's word.
    Fail(usize, bool, Option<Override>),
    /// Back.
    Release,
    /// Later, by seconds.
    Snooze(u64),
    /// Longer, by seconds.
    Extend(Option<u64>),
    /// This far.
    Progress(u64),
}

/// What is said about a leased letter.
#[derive(Clone, Debug)]
pub enum SayLetter {
    /// Do this.
    Do(ActOp),
    /// The consumer failed.
    Fail,
    /// Back.
    Release,
    /// Back, and not for so many seconds.
    Snooze(u64),
    /// Longer, by seconds.
    Extend(Option<u64>),
}

/// An act; times are seconds from now.
#[derive(Clone, Debug)]
pub enum ActOp {
    /// Back to work.
    Retry(Option<u64>),
    /// Ask for a person.
    Review,
    /// Set aside.
    Quarantine(u64),
    /// Back to pending.
    Release,
    /// Close.
    Resolve,
    /// Close.
    Abandon,
    /// Open.
    Reopen,
    /// Say something.
    Note,
    /// Remove.
    Purge,
    /// Back to work: to which of [`PLACES`], at which level, with how many attempts, by force.
    Send(usize, Option<usize>, Option<u32>, bool),
    /// Take a redrive back.
    PullBack,
    /// Take back what was removed.
    Unpurge,
    /// Into one of [`PLACES`].
    Move(usize),
    /// Keep, or let go.
    Hold(bool),
    /// Hide for seconds.
    Snooze(u64),
    /// Whose.
    Assign(Option<usize>),
    /// A label on, or off.
    Label(usize, bool),
    /// Other content: a JSON document with so many members, or so many bytes that are none.
    Edit(usize),
    /// One of [`PATCHES`].
    Patch(usize),
    /// The content of an earlier revision.
    Restore(u32),
    /// No content.
    Erase,
}

/// The patches of every stream: most fit some documents and not others, one changes nothing.
pub const PATCHES: [&str; 4] = [
    r#"[{"op":"add","path":"/n","value":12345678901234567890123}]"#,
    r#"[{"op":"replace","path":"/m0","value":[1.50]},{"op":"copy","from":"/m0","path":"/c"}]"#,
    r#"[{"op":"remove","path":"/n"}]"#,
    r#"[{"op":"test","path":"","value":{}}]"#,
];

/// Other content: by its number a document or not, with headers or not.
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

/// Where letters are sent: queues, drawers, and a name that nobody has.
pub const PLACES: [&str; 8] = ["a", "b", "c", "a-dlq", "b-dlq", "bin", "net", "nowhere"];

fn place(n: usize) -> QueueName {
    PLACES[n % PLACES.len()].parse().expect("a name")
}

impl ActOp {
    /// The act, at this instant.
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
            Self::Send(to, level, max_attempts, force) => Act::Retry(Retry {
                at: None,
                queue: Some(place(*to)),
                priority: level.map(Priority::from_level),
                max_attempts: *max_attempts,
                force: *force,
            }),
            Self::PullBack => Act::PullBack,
            Self::Unpurge => Act::Unpurge,
            Self::Move(to) => Act::Move { dlq: place(*to) },
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

/// An act on a group; times are seconds from now.
#[derive(Clone, Debug)]
pub enum GroupOp {
    /// Seen.
    Acknowledge,
    /// Its cause is gone.
    Resolve,
    /// Not worth a look: for so long, for so many deaths.
    Ignore(Option<u64>, Option<u64>),
    /// Taken back.
    Reopen,
    /// Who looks after it.
    Assign(Option<usize>),
    /// What is known.
    Note(usize),
    /// Where more is written, or something that is no address.
    Link(bool),
}

impl GroupOp {
    /// The act, at this instant.
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

/// One operation. Numbers that choose among things there are wrap round, so every stream makes sense.
#[derive(Clone, Debug)]
pub enum Op {
    /// Send messages.
    Send(Vec<Send>),
    /// Send an earlier message again, with its body changed or not.
    Resend(usize, bool),
    /// Lease from these queues (a bit each), at most so many, for so many seconds.
    Lease(usize, usize, Option<u64>),
    /// Settle deliveries: which token ever given, counted from the latest.
    Settle(Vec<(usize, Say)>),
    /// Move the clock by milliseconds.
    Advance(u64),
    /// Maintain.
    Reap(usize),
    /// Take back.
    Cancel(Vec<usize>),
    /// Halt or resume a queue.
    Pause(usize, bool),
    /// Force a breaker of a queue open or closed.
    Force(usize, bool),
    /// Say that two groups are one.
    Merge(usize, usize),
    /// Say what kind of failure a group is.
    Label(usize, usize),
    /// Say something about a group.
    ActOnGroup(usize, GroupOp),
    /// Note a moment.
    Mark(usize),
    /// Read groups by one of a few queries, in small pages.
    Groups(usize, usize),
    /// Empty a queue.
    Purge(usize),
    /// Give a queue one of [`policies`].
    Configure(usize, usize),
    /// Act on letters; the last part insists on a version, wrongly if true.
    Act(Vec<(usize, ActOp, Option<bool>)>),
    /// Lease letters from a drawer.
    Draw(usize, usize, Option<u64>),
    /// Settle letters.
    Return(Vec<(usize, SayLetter)>),
    /// Ask what an operation would touch.
    Preview(ActOp, usize, usize),
    /// Start an operation: which, what, over which filter, bounded by the last preview or not, and at which pace if it
    /// sends letters back.
    Start(u64, ActOp, usize, bool, Pace),
    /// Go on with an operation, so many steps.
    Step(u64, usize),
    /// Steer an operation.
    Control(u64, Control),
    /// Keep a copy of a letter.
    Export(usize),
    /// Import a kept copy, under a new id or its own.
    Import(usize, bool),
    /// Say that somebody is shown a letter, nothing at all, or all that match a filter.
    Disclose(usize, usize),
    /// Read in small pages with a filter.
    Walk(usize, usize),
    /// Feed the text index, if there is one.
    Index(usize),
    /// Where the message of a key is.
    KeyState(usize, usize),
    /// Compare and set a small value, with the right version or one too high.
    Kv(usize, Option<u8>, bool),
}

/// The queues of every stream.
pub const QUEUES: [&str; 3] = ["a", "b", "c"];

/// Where replies go: a queue with rules of its own, one that nobody else sends to, and two that may be drawers.
pub const REPLY_TO: [&str; 4] = ["c", "answers", "a-dlq", "bin"];

/// The errors of every stream: two causes of different routes, one that the rules know and one they spare.
pub const ERRORS: [&str; 4] = ["ConnectionError", "Bad", "Fatal", "Patient"];

/// Names in messages that say the same otherwise: after a few of them their groups become one.
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

/// How many ways streams ask for groups in.
pub const GROUP_QUERIES: usize = 5;

/// The rules a queue can be given.
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

/// A breaker that opens soon and not for long.
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
        4 => (0..PLACES.len(), rarely(0_usize..5), rarely(1_u32..4), proptest::bool::weighted(0.3))
            .prop_map(|(to, level, attempts, force)| ActOp::Send(to, level, attempts, force)),
        3 => Just(ActOp::PullBack),
        2 => Just(ActOp::Unpurge),
        1 => (0..PLACES.len()).prop_map(ActOp::Move),
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

/// Most messages say nothing about such things.
fn rarely<T: Strategy>(what: T) -> impl Strategy<Value = Option<T::Value>> {
    weighted(0.15, what)
}

fn send() -> impl Strategy<Value = Send> {
    let said = (weighted(0.25, 0_usize..3), weighted(0.4, 0_usize..2), 0_usize..5, 0_usize..20);
    let times = (of(prop_oneof![Just(0), Just(5)]), rarely(1_u64..20), rarely(1_u64..20), rarely(1_u32..4));
    // The last places are mostly refused, and being asked for takes a name away from the drawers.
    let reply_to = prop_oneof![6 => 0_usize..2, 1 => 2..REPLY_TO.len()];
    (0_usize..3, said, times, weighted(0.3, reply_to)).prop_map(|(queue, said, times, reply_to)| {
        let (key, order, level, size) = said;
        let (delay, ttl, deadline, max_attempts) = times;
        Send { queue, key, order, level, delay, ttl, deadline, max_attempts, size, reply_to }
    })
}

fn say() -> impl Strategy<Value = Say> {
    let word = prop_oneof![
        6 => Just(None),
        1 => Just(Some(Override::DeadLetter)),
        1 => Just(Some(Override::RetryAfter(Span::from_secs(3)))),
    ];
    let variants = ERRORS.len() * (1 + USERS.len());
    let error = prop_oneof![4 => 0..ERRORS.len(), 2 => (0..USERS.len()).prop_map(|n| ERRORS.len() * (n + 1) + 1), 1 => 0..variants];
    prop_oneof![
        3 => Just(Say::Ack),
        2 => (0_usize..40).prop_map(Say::Reply),
        8 => (error, proptest::bool::weighted(0.4), word).prop_map(|(e, p, w)| Say::Fail(e, p, w)),
        1 => Just(Say::Release),
        1 => (0_u64..10).prop_map(Say::Snooze),
        1 => of(1_u64..60).prop_map(Say::Extend),
        1 => (0_u64..3).prop_map(Say::Progress),
    ]
}

fn say_letter() -> impl Strategy<Value = SayLetter> {
    prop_oneof![
        3 => act().prop_map(SayLetter::Do),
        1 => Just(SayLetter::Fail),
        1 => Just(SayLetter::Release),
        1 => (0_u64..600).prop_map(SayLetter::Snooze),
        1 => of(1_u64..600).prop_map(SayLetter::Extend),
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

/// Half of the operations are in no hurry.
fn pace() -> impl Strategy<Value = Pace> {
    let canary = prop_oneof![(1_u64..3).prop_map(Canary::Count), Just(Canary::Percent(30))];
    let stops = (weighted(0.5, prop_oneof![Just(0), Just(20), Just(60)]), proptest::bool::weighted(0.3));
    let careful = (of(canary), 0_u64..4, of(1_u32..4), of(0_u64..5), of(1_u32..3), stops).prop_map(
        |(canary, observe, rate, ramp, in_flight, (stop_at, stop_on_breaker))| Pace {
            canary,
            observe: Span::from_secs(observe),
            ramp: ramp.filter(|_| rate.is_some()).map(Span::from_secs),
            rate,
            in_flight,
            stop_at,
            stop_on_breaker,
        },
    );
    prop_oneof![Just(Pace::default()), careful]
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
        18 => vec((0_usize..4, say()), 1..4).prop_map(Op::Settle),
        6 => advance(),
        2 => prop_oneof![Just(1_usize), Just(1_000)].prop_map(Op::Reap),
        1 => vec(0_usize..9, 1..3).prop_map(Op::Cancel),
        1 => (0_usize..3, proptest::bool::weighted(0.3)).prop_map(|(q, on)| Op::Pause(q, on)),
        1 => (0_usize..3, proptest::bool::ANY).prop_map(|(q, open)| Op::Force(q, open)),
        1 => (0_usize..5, 0_usize..5).prop_map(|(a, b)| Op::Merge(a, b)),
        1 => (0_usize..5, 0_usize..6).prop_map(|(group, category)| Op::Label(group, category)),
        3 => (0_usize..5, group_act()).prop_map(|(group, act)| Op::ActOnGroup(group, act)),
        1 => (0_usize..4).prop_map(Op::Mark),
        1 => (0..GROUP_QUERIES, 1_usize..4).prop_map(|(query, limit)| Op::Groups(query, limit)),
        1 => (0_usize..3).prop_map(Op::Purge),
        4 => (0_usize..3, 0..policies().len()).prop_map(|(q, p)| Op::Configure(q, p)),
        8 => vec((0_usize..5, act(), rarely(proptest::bool::ANY)), 1..4).prop_map(Op::Act),
        2 => (0_usize..5, 1_usize..4, of(1_u64..600)).prop_map(|(d, max, s)| Op::Draw(d, max, s)),
        2 => vec((0_usize..4, say_letter()), 1..3).prop_map(Op::Return),
        1 => (act(), 0..FILTERS.len(), 0_usize..3).prop_map(|(act, f, n)| Op::Preview(act, f, n)),
        3 => (0_u64..4, bulk, 0..FILTERS.len(), proptest::bool::weighted(0.3), pace())
            .prop_map(|(n, act, f, bound, pace)| Op::Start(n, act, f, bound, pace)),
        5 => (0_u64..4, 1_usize..4).prop_map(|(n, times)| Op::Step(n, times)),
        2 => (0_u64..4, control).prop_map(|(n, c)| Op::Control(n, c)),
        1 => (0_usize..9).prop_map(Op::Export),
        2 => (0_usize..4, proptest::bool::ANY).prop_map(|(n, fresh)| Op::Import(n, fresh)),
        2 => (1_usize..4, 0..FILTERS.len()).prop_map(|(limit, f)| Op::Walk(limit, f)),
        1 => (1_usize..9).prop_map(Op::Index),
        1 => (0_usize..4, 0..FILTERS.len()).prop_map(|(n, what)| Op::Disclose(n, what)),
        1 => (0_usize..3, 0_usize..3).prop_map(|(q, k)| Op::KeyState(q, k)),
        1 => (0_usize..2, of(0_u8..9), proptest::bool::weighted(0.2)).prop_map(|(k, v, w)| Op::Kv(k, v, w)),
    ]
}

/// Streams of operations. All are long, so that deaths and returns happen; each operation may be left out, so
/// that what matters of a stream is found by leaving out the rest.
pub fn ops() -> impl Strategy<Value = Vec<Op>> {
    vec(weighted(0.95, op()), STREAM_OPS_MAX).prop_map(|all| all.into_iter().flatten().collect())
}
