//! What the core decides on every verb, timed: signature, class, verdict, pick, filter. Run with
//! `cargo bench -p redrive-bench`.

#![expect(clippy::expect_used, reason = "a benchmark that cannot be set up has nothing to measure")]

use divan::{Bencher, black_box};
use redrive::core::backoff::Roll;
use redrive::core::classify::{Patterns, classify};
use redrive::core::failure::{Analysed, ErrorInfo, Report};
use redrive::core::filter::Filter;
use redrive::core::ids::MessageId;
use redrive::core::lifecycle::Life;
use redrive::core::message::{Message, NewMessage, Payload, Terms};
use redrive::core::poison::Finding;
use redrive::core::policy::{Case, QueuePolicy, judge};
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

fn failure() -> Analysed {
    Report { error: error(), ..Report::default() }.analyse()
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
    let (policy, failure, life) = (QueuePolicy::default(), failure(), Life::new(NOW, NOW));
    bencher.bench(|| {
        judge(black_box(&Case {
            policy: &policy,
            terms: Terms::default(),
            life: &life,
            failure: &failure,
            finding: &Finding::Continue,
            said: None,
            now: NOW,
            roll: Roll(42),
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
