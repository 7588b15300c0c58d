//! The policy of a worker: what it proposes, what it finds, what it says.

use crate::loops_kit::{dead, me, message, name, send, take};
use redrive::core::error::{CallError, Refusal};
use redrive::core::failure::{AnalysedFailure, ErrorInfo, FailureReport, Route};
use redrive::core::policy::{Override, QueuePolicy};
use redrive::core::time::Span;
use redrive::{DeadLetterPolicy, Drift};

fn failure(error_type: &str) -> AnalysedFailure {
    let error = ErrorInfo { error_type: error_type.into(), message: "no".into(), ..ErrorInfo::default() };
    FailureReport { error, ..FailureReport::default() }.analyse()
}

fn wanted() -> DeadLetterPolicy {
    DeadLetterPolicy::new()
        .max_attempts(3)
        .include("Validation*")
        .exclude("category:resource")
        .retry_for(Span::from_hours(2))
        .dlq("graves")
        .route(Route::Corruption, "broken")
}

#[tokio::test]
async fn an_unknown_queue_is_made_as_proposed() {
    let store = redrive::memory();
    let drift = wanted().propose(&*store, &name("q"), me()).await.unwrap();
    assert!(drift.made && !drift.is_drift());
    let stored = store.queue(name("q")).await.unwrap().policy;
    assert_eq!(stored, wanted().over(QueuePolicy::default()));
    assert_eq!((stored.max_attempts, stored.dlq), (3, Some(name("graves"))));
    let again = wanted().propose(&*store, &name("q"), me()).await.unwrap();
    assert_eq!(again, Drift { made: false, ..drift });
}

#[tokio::test]
async fn a_queue_that_its_producer_made_gets_its_rules() {
    let store = redrive::memory();
    send(&*store, message("q", &serde_json::json!(1))).await;
    let drift = wanted().propose(&*store, &name("q"), me()).await.unwrap();
    assert!(drift.made && !drift.is_drift());
    assert_eq!(store.queue(name("q")).await.unwrap().policy, wanted().over(QueuePolicy::default()));
    let nothing = DeadLetterPolicy::new().propose(&*store, &name("q"), me()).await.unwrap();
    assert!(!nothing.made && !nothing.is_drift(), "who proposes nothing changes nothing");
}

#[tokio::test]
async fn a_known_queue_keeps_its_rules_until_told_otherwise() {
    let store = redrive::memory();
    let theirs = QueuePolicy { max_attempts: 9, lease: Span::from_secs(7), ..QueuePolicy::default() };
    store.configure(name("q"), theirs.clone(), me()).await.unwrap();
    let policy = DeadLetterPolicy::new().max_attempts(3).dlq("graves");
    let drift = policy.propose(&*store, &name("q"), me()).await.unwrap();
    assert!(drift.is_drift());
    let settings: Vec<_> = drift.differences.iter().map(|d| d.setting.as_str()).collect();
    assert_eq!(settings, ["dlq", "max_attempts"]);
    assert_eq!((&*drift.differences[1].proposed, &*drift.differences[1].stored), ("3", "9"));
    assert_eq!(store.queue(name("q")).await.unwrap().policy, theirs);

    let written = policy.apply().propose(&*store, &name("q"), me()).await.unwrap();
    assert!(written.written && !written.is_drift());
    let now = store.queue(name("q")).await.unwrap().policy;
    assert_eq!((now.max_attempts, now.dlq.clone(), now.lease), (3, Some(name("graves")), theirs.lease));
    assert_eq!(written.policy, now);
}

#[tokio::test]
async fn what_cannot_be_meant_is_refused_and_changes_nothing() {
    let store = redrive::memory();
    let bad = [
        (DeadLetterPolicy::new().include("category:nonsense"), "include"),
        (DeadLetterPolicy::new().exclude(""), "exclude"),
        (DeadLetterPolicy::new().dlq("no spaces"), "dlq"),
        (DeadLetterPolicy::new().route(Route::Network, "-"), "routes"),
        (DeadLetterPolicy::new().max_attempts(0), "max_attempts"),
        (DeadLetterPolicy::new().dlq("q"), "dlq"),
    ];
    for (policy, wrong) in bad {
        match policy.propose(&*store, &name("q"), me()).await {
            Err(CallError::Refused(Refusal::Invalid { field, .. })) => assert_eq!(field, wrong),
            other => panic!("{wrong}: {other:?}"),
        }
    }
    assert!(store.queues().await.unwrap().is_empty());
}

#[tokio::test]
async fn only_custom_code_speaks_about_a_failure() {
    let store = redrive::memory();
    send(&*store, message("q", &serde_json::json!({"n": 1}))).await;
    let delivery = take(&*store, "q").await;
    assert_eq!(wanted().decide(&delivery, &failure("ValidationError")), None);
    let custom = wanted().should_dead_letter(|delivery, failure| {
        assert_ne!(failure.report.error.error_type, "Trap", "a bug in the policy");
        (failure.report.error.error_type == "Mine").then_some(delivery.attempt > 1)
    });
    assert_eq!(custom.decide(&delivery, &failure("Other")), None);
    assert_eq!(custom.decide(&delivery, &failure("Mine")), Some(Override::Retry));
    assert_eq!(custom.decide(&delivery, &failure("Trap")), None, "a panic says nothing");
    let later = Override::RetryAfter(Span::from_secs(9));
    let patient = DeadLetterPolicy::new().should_dead_letter(move |_, _| later);
    assert_eq!(patient.decide(&delivery, &failure("Any")), Some(later));
}

#[tokio::test]
async fn deaths_lie_where_the_policy_says() {
    let store = redrive::memory();
    DeadLetterPolicy::new().dlq("graves").propose(&*store, &name("q"), me()).await.unwrap();
    let id = dead(&*store, "q", &serde_json::json!({})).await;
    assert_eq!(store.letter(id).await.unwrap().record.dlq, name("graves"));
}
