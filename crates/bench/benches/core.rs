//! Micro-benchmarks of the decisions that the core makes on every call: signature, class, verdict, pick,
//! filter. Run with `cargo bench -p redrive-bench`.

#![expect(clippy::expect_used, reason = "a benchmark that cannot be set up has nothing to measure")]

use divan::{Bencher, black_box};
use redrive::core::backoff::JitterSeed;
use redrive::core::classify::{Patterns, classify};
use redrive::core::failure::{AnalysedFailure, ErrorInfo, FailureReport};
use redrive::core::filter::Filter;
use redrive::core::ids::MessageId;
use redrive::core::lifecycle::Lifecycle;
use redrive::core::message::{Message, MessageLimits, NewMessage, Payload};
use redrive::core::poison::PoisonVerdict;
use redrive::core::policy::{FailureCase, QueuePolicy, judge};
use redrive::core::scheduler::{Head, Heads, Scheduler};
use redrive::core::signature::Signature;
use redrive::core::time::Time;

fn main() {
    divan::main();
}

const NOW: Time = Time::from_millis(1_767_225_600_000);

fn error() -> ErrorInfo {
    ErrorInfo {
        error_type: "HttpError".into(),
        message:
            "POST https://api.example.com/v1/orders/84213 failed after 3021 ms: 503 Service Unavailable \
                  (request 7c9e6679-7425-40de-944b-e07fc1f90ae7)"
                .into(),
        code: Some("503".into()),
        stack: Some("at send (src/http.rs:120)\nat run (src/worker.rs:41)\nat main (src/main.rs:9)".into()),
        ..ErrorInfo::default()
    }
}

fn failure() -> AnalysedFailure {
    FailureReport { error: error(), ..FailureReport::default() }.analyse()
}

fn message() -> Message {
    let payload = Payload {
        bytes: br#"{"order":84213,"customer":{"tier":"gold","country":"DE"}}"#.to_vec(),
        content_type: "application/json".into(),
    };
    let id = MessageId::new(1_767_225_600_000, [7; 10]);
    let new = NewMessage::new(id, "orders".parse().expect("a queue name"), payload);
    let policy = QueuePolicy::default();
    new.accept(&policy, 1, NOW).view(&policy, NOW)
}

#[divan::bench]
fn signature(bencher: Bencher<'_, '_>) {
    let error = error();
    bencher.bench(|| Signature::of(black_box(&error)));
}

#[divan::bench]
fn class(bencher: Bencher<'_, '_>) {
    let error = error();
    bencher.bench(|| classify(black_box(&error), &Patterns::default()));
}

#[divan::bench]
fn verdict(bencher: Bencher<'_, '_>) {
    let (policy, failure, lifecycle) = (QueuePolicy::default(), failure(), Lifecycle::new(NOW, NOW));
    bencher.bench(|| {
        judge(black_box(&FailureCase {
            policy: &policy,
            limits: MessageLimits::default(),
            lifecycle: &lifecycle,
            failure: &failure,
            poison_verdict: &PoisonVerdict::Continue,
            policy_override: None,
            now: NOW,
            jitter_seed: JitterSeed(42),
        }))
    });
}

#[divan::bench]
fn pick(bencher: Bencher<'_, '_>) {
    let head = Some(Head { ready_at: NOW, seq: 1 });
    let heads = Heads { levels: [head; 5], urgent: None };
    let mut scheduler = Scheduler::new();
    bencher.bench_local(|| scheduler.pick(black_box(&heads), NOW));
}

#[divan::bench]
fn filter(bencher: Bencher<'_, '_>) {
    let filter = Filter::parse("queue:orders state:ready").expect("a filter");
    let message = message();
    bencher.bench(|| black_box(&filter).matches_message(black_box(&message), NOW));
}

/// What every enqueue, lease and settle pays for its latency metric.
#[divan::bench(threads = [1, 2])]
fn record_a_latency(bencher: Bencher<'_, '_>) {
    static LATENCIES: redrive_store::metrics::Histogram = redrive_store::metrics::Histogram::new();
    bencher.bench(|| LATENCIES.record(black_box(std::time::Duration::from_nanos(1_234_567))));
}
