//! The signature suite: how fast failures are analysed. It measures signatures with their groups (P9),
//! classes (P10), and the whole path from a report to a verdict, on one thread and without storage. The bare
//! limit is one hash of the same bytes, the minimum to tell messages apart by their text.

use super::measure::{Figure, Run, Stopwatch, run_of};
use super::printer::Printer;
use super::{BenchArgs, BenchResult};
use redrive::core::classify::{Patterns, classify};
use redrive::core::failure::{ErrorInfo, FailureReport};
use redrive::core::ids::MessageId;
use redrive::core::lifecycle::Lifecycle;
use redrive::core::message::{MessageMeta, NewMessage, Payload};
use redrive::core::poison::GroupHistory;
use redrive::core::policy::QueuePolicy;
use redrive::core::review::{FailedDelivery, review};
use redrive::core::signature::{Signature, Tree};
use redrive::core::time::Time;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::hint::black_box;
use std::time::Instant;

/// The default number of errors per run.
const ERRORS: u64 = 200_000;
/// The number of calls that are timed together, because one call is too short.
const LAP: usize = 64;

/// Errors in the shapes that services report, each with varying parts.
fn errors(count: u64, seed: u64) -> Vec<ErrorInfo> {
    let names = ["orders", "invoices", "carts", "users", "sessions", "ledger", "refunds", "webhooks"];
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let shapes = |kind: u64, a: u64, b: u64, name: &str| match kind {
        0 => (
            "ConnectionError",
            "",
            format!("connect to 10.{}.{}.7:5432 failed: connection refused", a % 256, b % 256),
        ),
        1 => (
            "HttpError",
            "503",
            format!(
                "503 Service Unavailable for POST https://api.example.com/v1/{name}/{a} after {} ms",
                b % 9_000
            ),
        ),
        2 => ("TimeoutError", "", format!("request {a:016x} to {name} timed out after {} s", b % 60)),
        3 => (
            "psycopg2.errors.UniqueViolation",
            "23505",
            format!(
                "duplicate key value violates unique constraint \"{name}_pkey\" DETAIL: Key (id)=({a}) already exists."
            ),
        ),
        4 => ("KeyError", "", format!("'{name}_id' at line {}", b % 500)),
        5 => (
            "json.decoder.JSONDecodeError",
            "",
            format!("Expecting value: line {} column {} (char {a})", b % 90, a % 90),
        ),
        6 => ("OSError", "ENOSPC", format!("[Errno 28] No space left on device: '/var/lib/{name}/{a}.dat'")),
        _ => (
            "RateLimitError",
            "429",
            format!(
                "Too Many Requests: limit of {} per minute reached for key {a:x}, retry in {}s",
                a % 600,
                b % 60
            ),
        ),
    };
    let make = |n: u64| {
        let (a, b) = (next(), next());
        let name = names.get(usize::try_from(a % 8).unwrap_or(0)).copied().unwrap_or_default();
        let (error_type, code, message) = shapes(n % 8, a % 10_000_000, b, name);
        let code = (!code.is_empty()).then(|| code.to_owned());
        ErrorInfo { error_type: error_type.into(), code, message, ..ErrorInfo::default() }
    };
    (0..count).map(make).collect()
}

/// Processes all errors once and times groups of calls.
fn timed(errors: &[ErrorInfo], mut each: impl FnMut(&ErrorInfo)) -> Run {
    let mut watch = Stopwatch::new();
    let began = Instant::now();
    for lap in errors.chunks(LAP) {
        let started = Instant::now();
        lap.iter().for_each(&mut each);
        watch.lap(started);
    }
    run_of(errors.len() as u64, began.elapsed(), vec![watch])
}

fn bare(errors: &[ErrorInfo]) -> Run {
    timed(errors, |error| {
        let mut hasher = DefaultHasher::new();
        error.message.hash(&mut hasher);
        black_box(hasher.finish());
    })
}

/// Runs the suite.
pub(super) fn run(printer: &Printer, args: &BenchArgs) -> BenchResult<()> {
    let errors = errors(args.messages.unwrap_or(ERRORS).max(1), args.seed);
    let runs = usize::try_from(args.runs.max(1)).unwrap_or(1);
    let patterns = Patterns::default();
    let mut lists: [Vec<Run>; 4] = Default::default();
    for _ in 0..runs {
        let limit = bare(&errors);
        let mut tree = Tree::new();
        let grouped = timed(&errors, |error| {
            let placed = tree.learn(&Signature::of(error));
            black_box(tree.group_of(placed.leaf));
        });
        let classed = timed(&errors, |error| {
            black_box(classify(error, &patterns));
        });
        let judged = verdicts(&errors);
        let rate = limit.rate();
        let [bares, groups, classes, verdicts] = &mut lists;
        bares.push(limit);
        groups.push(Run { bare: Some(rate), ..grouped });
        classes.push(Run { bare: Some(rate), ..classed });
        verdicts.push(Run { bare: Some(rate), ..judged });
    }
    let names = [
        "bare: one hash of the message",
        "signature and group (P9)",
        "classify (P10)",
        "report to verdict: classify, signature, judge",
    ];
    let figures: Vec<Figure> =
        names.iter().zip(&lists).map(|(name, runs)| Figure::of(name, "in memory", LAP, runs)).collect();
    printer.figures(&figures)?;
    printer.note(&format!("one thread; each time covers {LAP} errors: divide by {LAP} for one"));
    Ok(())
}

/// The whole analysis of a failed delivery, without the store.
fn verdicts(errors: &[ErrorInfo]) -> Run {
    let now = Time::from_millis(1_800_000_000_000);
    let policy = QueuePolicy::default();
    let id = MessageId::new(1, [7; 10]);
    let queue = "bench".parse().unwrap_or_else(|_| unnamed());
    let record = NewMessage::new(id, queue, Payload::default()).accept(&policy, 1, now);
    let meta = MessageMeta::from(&record);
    let lifecycle = Lifecycle { attempts: 1, deliveries: 1, ..record.lifecycle };
    let standing = GroupHistory::default();
    let mut tree = Tree::new();
    timed(errors, |error| {
        let mut failure = FailureReport { error: error.clone(), ..FailureReport::default() }.analyse();
        failure.signature.leaf = tree.learn(&failure.signature).leaf;
        let (policy, standing) = (&policy, &standing);
        let failed = FailedDelivery {
            meta: &meta,
            lifecycle: &lifecycle,
            policy,
            group_history: standing,
            same_group: false,
            policy_override: None,
            now,
        };
        black_box(review(&failed, failure));
    })
}

#[expect(clippy::panic, reason = "a word of letters is always a queue's name")]
fn unnamed() -> redrive::core::ids::QueueName {
    panic!("a plain word is not a valid queue name")
}
