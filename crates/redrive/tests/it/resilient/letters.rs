//! What is kept: the whole letter, its group, its place; and many at once.

use super::{Own, all_letters, operation, paused_clock, paused_store, quick, sound, stored};
use redrive::ResilientExecutor;
use redrive::core::dead_letter::{Note, Status};
use redrive::core::failure::Reason;
use redrive::core::message::{Payload, Priority};
use redrive::core::policy::QueuePolicy;
use redrive::core::query::{PageRequest, Query};
use redrive::core::time::Span;
use redrive::core::{dead_letter::Actor, lifecycle::State as Place};
use redrive::resilient::{Operation, Repository};
use serde_json::json;
use std::collections::BTreeSet;

#[tokio::test(start_paused = true)]
async fn the_letter_has_everything() {
    let clock = paused_clock();
    let store = paused_store(&clock);
    let executor =
        ResilientExecutor::builder(store.clone()).clock(clock.clone()).name("bot").build().unwrap();
    let began_at = clock.now();
    let bytes = vec![0, 159, 146, 150, b'{'];
    let asked = Operation::new("github_api")
        .method("issues.create")
        .endpoint("https://api.example.com/repos/o/r/issues")
        .payload(Payload { bytes: bytes.clone(), content_type: "application/octet-stream".into() })
        .context(json!({"run": 7}))
        .task("t-1", "file an issue", "webhook")
        .repository(Repository {
            owner: "o".into(),
            repo: "r".into(),
            entity_number: Some(12),
            entity_type: Some("pr".into()),
        })
        .tag("bot")
        .tag("release")
        .notes("asked for in the stand-up")
        .enqueued_by("ada");
    let failed =
        executor.execute("verification", asked.clone(), || async { Err::<(), _>(Own(4)) }).await.unwrap_err();
    let letter = store.letter(stored(failed.capture)).await.unwrap();

    let message = &letter.message;
    assert_eq!(message.envelope.payload.bytes, bytes);
    assert_eq!(
        (message.envelope.queue.as_str(), letter.record.dlq.as_str()),
        ("verification", "verification-dlq")
    );
    assert_eq!((message.envelope.kind.as_str(), message.state), ("github_api", Place::Dead));
    assert_eq!((message.attempts, message.deliveries, message.failed, message.generation), (3, 3, 3, 1));
    assert_eq!(message.envelope.enqueued_by.as_deref(), Some("ada"));
    assert_eq!(message.envelope.tags, BTreeSet::from(["bot".to_owned(), "release".to_owned()]));
    let context = json!({
        "method": "issues.create",
        "endpoint": "https://api.example.com/repos/o/r/issues",
        "task": {"id": "t-1", "description": "file an issue", "source": "webhook"},
        "repository": {"owner": "o", "repo": "r", "entity_number": 12, "entity_type": "pr"},
        "context": {"run": 7},
    });
    assert_eq!(message.envelope.context, Some(context));
    let read = Operation { notes: None, priority: Some(message.envelope.priority), ..asked };
    assert_eq!(Operation::of(&message.envelope).tags, read.tags);
    assert_eq!(Operation::of(&message.envelope), read);

    let at = |s| began_at.plus(Span::from_secs(s));
    let times: Vec<_> = message.failures.iter().map(|f| (f.attempt, f.at)).collect();
    assert_eq!(times, [(1, at(0)), (2, at(2)), (3, at(6))]);
    assert!(message.failures.iter().all(|f| f.worker.as_deref() == Some("bot")));
    let record = &letter.record;
    assert_eq!((record.status, record.reason, letter.eligible), (Status::Pending, Reason::MaxAttempts, true));
    assert_eq!(
        (record.first_failed_at, record.last_failed_at, record.dead_at),
        (Some(at(0)), Some(at(6)), at(6))
    );
    let note = Note { at: began_at, by: "ada".into(), text: "asked for in the stand-up".into() };
    assert_eq!(record.notes, [note]);
    assert_eq!(letter.error.error_type, "Own");
    assert_eq!(letter.error.message, "connection to model 4 refused");
    assert_eq!(letter.signature, "connection to model <num> refused");
    assert_eq!(letter.group, record.leaf);

    let filter = "context.task.id:t-1 kind:github_api".parse().unwrap();
    let found = store.letters(Query { filter, page: PageRequest::first(5) }).await.unwrap();
    assert_eq!(found.items.len(), 1, "found where all letters are");
    sound(store.as_ref()).await;
}

#[tokio::test(start_paused = true)]
async fn the_priority_is_the_callers_or_follows_from_how_bad_it_is() {
    let store = redrive::memory();
    let executor = ResilientExecutor::builder(store.clone()).policy("p", quick(1)).build().unwrap();
    let mut seen = Vec::new();
    for (said, words) in [
        (Some(Priority::Background), "disk full: no space left on device"),
        (None, "connection reset by peer"),
        (None, "no space left on device"),
    ] {
        let asked = Operation { priority: said, ..operation("x") };
        let run = || async { Err::<(), _>(std::io::Error::other(words)) };
        let failed = executor.execute("p", asked, run).await.unwrap_err();
        let letter = store.letter(stored(failed.capture)).await.unwrap();
        seen.push((letter.record.severity, letter.message.envelope.priority));
    }
    assert_eq!(seen[0].1, Priority::Background);
    for (severity, priority) in &seen[1..] {
        let names = (severity.name(), priority.name());
        let pairs = [("critical", "critical"), ("high", "high"), ("medium", "normal"), ("low", "low")];
        assert!(pairs.contains(&names), "{names:?}");
    }
    assert_ne!(seen[1], seen[2], "the two are not equally bad");
}

#[tokio::test(start_paused = true)]
async fn the_queues_own_rules_say_where_it_lies() {
    let store = redrive::memory();
    let policy = QueuePolicy { dlq: Some("post".parse().unwrap()), ..QueuePolicy::by_category() };
    store.configure("p".parse().unwrap(), policy, Actor::new("ada", "test")).await.unwrap();
    let executor = ResilientExecutor::builder(store.clone()).policy("p", quick(1)).build().unwrap();
    let run = || async { Err::<(), _>(std::io::Error::other("permission denied")) };
    let failed = executor.execute("p", operation("x"), run).await.unwrap_err();
    let letter = store.letter(stored(failed.capture)).await.unwrap();
    assert_eq!(letter.record.dlq.as_str(), "post");
    assert!(letter.record.alert, "a system failure alerts where routes are handled");
    sound(store.as_ref()).await;
}

/// A thousand calls fail together: a letter each, one group, exact counts, and few commits.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_thousand_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let store = redrive::open(directory.path(), redrive::OpenOptions::default()).await.unwrap();
    let executor = ResilientExecutor::builder(store.clone()).policy("p", quick(2)).build().unwrap();
    let calls: Vec<_> = (0..1_000)
        .map(|n| {
            let executor = executor.clone();
            tokio::spawn(async move {
                let run = || async move { if n % 10 == 0 { Ok(n) } else { Err(Own(n)) } };
                executor.execute("p", operation("x"), run).await
            })
        })
        .collect();
    let mut ids = BTreeSet::new();
    for (n, call) in (0..).zip(calls) {
        match call.await.unwrap() {
            Ok(value) => assert_eq!((value, n % 10), (n, 0)),
            Err(failed) => {
                assert_eq!(failed.error(), Some(&Own(n)));
                // A slow machine may not have written it when the caller's patience ends.
                ids.insert(failed.capture.id().unwrap());
            }
        }
    }
    let state = executor.shutdown(crate::support::PATIENCE).await;
    assert_eq!((state.stored, state.buffered, state.dropped), (900, 0, 0));
    let letters = all_letters(store.as_ref()).await;
    assert_eq!(letters.iter().map(redrive::core::dead_letter::DeadLetter::id).collect::<BTreeSet<_>>(), ids);
    assert_eq!(letters.len(), 900);
    let groups = store.groups(PageRequest::first(10).into()).await.unwrap().items;
    let counted: Vec<_> = groups.iter().map(|g| (g.open, g.total, g.failures)).collect();
    assert_eq!(counted, [(900, 900, 1_800)]);
    let queue = store.queue("p".parse().unwrap()).await.unwrap();
    assert_eq!((queue.counts.dead, queue.counts.enqueued), (900, 900));
    sound(store.as_ref()).await;
}
