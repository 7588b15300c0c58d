//! Directories written by earlier formats, kept in `tests/golden`: every later version opens them with all their data.

use crate::embedded::{assert_clean, block};
use redrive_core::dead_letter::{Act, ActRequest, Actor};
use redrive_core::group::{GroupQuery, GroupStatus};
use redrive_core::ids::QueueName;
use redrive_core::message::{Message, Payload};
use redrive_core::query::{PageRequest, Query};
use redrive_core::store::{LeaseRequest, Letters as _, Settle, Settlement, Store as _, Work as _};
use redrive_core::time::Time;
use redrive_store::sqlite::{Options, SqliteStore};
use redrive_testkit::clock::TestClock;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// A time shortly after the directories were written. They are always opened at this time: the retention of their
/// content must not end one day.
const THEN: Time = Time::from_millis(1_795_046_400_000);

/// A copy of a directory kept in the repository.
fn golden(version: &str) -> TempDir {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(version);
    let home = TempDir::new().unwrap();
    for name in ["redrive.db", "audit.key"] {
        fs::copy(kept.join(name), home.path().join(name)).unwrap();
    }
    home
}

fn open(at: &Path) -> SqliteStore {
    let clock = TestClock::shared();
    clock.set(THEN);
    SqliteStore::open(at, Options { clock: Some(clock), ..Options::default() }).unwrap()
}

/// A directory written by the first released format.
#[test]
fn i47_a_directory_of_every_older_format_opens() {
    let home = golden("v1");
    block(async {
        let store = open(home.path());
        assert_clean(&store).await;
        let counts: Vec<_> = store
            .queues()
            .await
            .unwrap()
            .into_iter()
            .map(|q| (q.name.to_string(), q.counts.waiting, q.counts.dead, q.paused))
            .collect();
        assert_eq!(counts, [("jobs".to_owned(), 1, 2, false), ("other".to_owned(), 1, 0, true)]);
        let letters = store.letters(Query::default()).await.unwrap().items;
        let seen: Vec<_> =
            letters.iter().map(|l| (l.record.status.name(), l.message.failures.len())).collect();
        assert_eq!(seen, [("resolved", 2), ("pending", 2)]);
        assert!(letters.iter().any(|l| l.error.stack.as_deref().is_some_and(|s| s.contains("in charge"))));
        assert_eq!(store.audit_verify(None).await.unwrap().broken, None);
    });
}

/// The second format: breakers, suspects and the histories of groups.
#[test]
fn i47_a_directory_of_the_second_format_opens_with_all_it_knows() {
    let home = golden("v2");
    block(async {
        let store = open(home.path());
        assert_clean(&store).await;
        let breakers = store.breakers().await.unwrap();
        let shown: Vec<_> = breakers.iter().map(|b| (b.key.as_str(), b.events.len())).collect();
        assert_eq!(shown, [("mail", 1)]);
        let groups = store.groups(Default::default()).await.unwrap().items;
        assert_eq!(groups.iter().map(|g| g.open).collect::<Vec<_>>(), [2, 0]);
        let both = LeaseRequest {
            queues: vec!["crashy".parse().unwrap(), "jobs".parse().unwrap()],
            max: 9,
            lease_for: None,
            worker: "w".into(),
            ..LeaseRequest::default()
        };
        let suspect = store.lease(LeaseRequest { queues: vec!["crashy".parse().unwrap()], ..both.clone() });
        assert_eq!(suspect.await.unwrap().len(), 1);
        assert_eq!(store.lease(both).await.unwrap(), [], "nothing beside a suspect");
    });
}

/// Reply queues, which the second format kept in the bodies and later ones keep in the message's row.
#[test]
fn i47_who_asked_in_the_second_format_is_answered() {
    let home = golden("v2-asking");
    block(async {
        let store = open(home.path());
        assert_clean(&store).await;
        let answers: QueueName = "answers".parse().unwrap();
        let live = store.messages(Query::default()).await.unwrap().items;
        let asked: Vec<_> = live.iter().map(|m| m.envelope.reply_to.clone()).collect();
        assert_eq!(asked, [Some(answers.clone()), None]);
        let letter = store.letters(Query::default()).await.unwrap().items.remove(0);
        assert_eq!(letter.message.envelope.reply_to, Some(answers.clone()));
        let actor = Actor::new("ada", "test");
        let retry = ActRequest { id: letter.id(), act: Act::retry(), actor, expected_version: None };
        store.act(vec![retry]).await.unwrap().remove(0).unwrap();
        let jobs = LeaseRequest {
            queues: vec!["jobs".parse().unwrap()],
            max: 9,
            lease_for: None,
            worker: "w".into(),
            ..LeaseRequest::default()
        };
        for delivery in store.lease(jobs).await.unwrap() {
            let payload = Payload { bytes: b"42".to_vec(), content_type: String::new() };
            let settlement = Settlement { token: delivery.token, what: Settle::Reply { payload } };
            assert!(store.settle(vec![settlement]).await.unwrap().remove(0).unwrap().reply.is_some());
        }
        assert_eq!(store.queue(answers).await.unwrap().ready, 2);
        assert_clean(&store).await;
    });
}

/// The third format: reply queues, progress and counters.
#[test]
fn i47_a_directory_of_the_third_format_opens_with_all_it_counted() {
    let home = golden("v3");
    block(async {
        let store = open(home.path());
        assert_clean(&store).await;
        let progress = |m: &Message| m.progress.as_ref().map(|p| (p.done, p.total, p.note.clone()));
        let letter = store.letters(Query::default()).await.unwrap().items.remove(0);
        assert_eq!(progress(&letter.message), Some((3, Some(9), "unpacking".into())));
        let live = store.messages(Query::default()).await.unwrap().items;
        let waiting = live.iter().find(|m| m.envelope.queue.as_str() == "jobs").unwrap();
        assert_eq!(progress(waiting), Some((1, Some(2), "adding".into())));
        assert_eq!(waiting.envelope.reply_to, Some("answers".parse().unwrap()));
        let answers = live.iter().filter(|m| m.envelope.kind == "reply");
        let statuses: Vec<_> = answers.map(|m| m.envelope.headers["reply-status"].as_str()).collect();
        assert_eq!(statuses, ["done", "dead"]);
        let summary = store.stats().await.unwrap().summary();
        assert_eq!((summary.enqueued, summary.acked, summary.dead, summary.replies), (5, 1, 1, 2));
    });
}

/// The fourth format: revisions, triage of groups, operations with outcomes, markers.
#[test]
fn i47_a_directory_of_the_fourth_format_opens_with_all_that_was_decided() {
    let home = golden("v4");
    block(async {
        let store = open(home.path());
        assert_clean(&store).await;
        let labelled = Query { filter: "tag:vip held:yes".parse().unwrap(), ..Query::default() };
        let letter = store.letters(labelled).await.unwrap().items.remove(0);
        assert_eq!(letter.message.envelope.payload.bytes, br#"{"host":"b.example"}"#);
        let original = store.revisions(letter.id()).await.unwrap().remove(0);
        assert_eq!(original.content.payload.bytes, br#"{"host":"a.example"}"#);
        let marker = store.markers(PageRequest::default()).await.unwrap().items.remove(0);
        assert_eq!(marker.text, "deploy 4");
        let operation = store.operations(PageRequest::default()).await.unwrap().items.remove(0);
        let outcomes = operation.outcomes;
        assert_eq!((operation.members, outcomes.running, outcomes.succeeded), (3, 2, 1));
        let groups = store.groups(GroupQuery::default()).await.unwrap().items;
        let known: Vec<_> = groups.iter().map(|g| (g.open, g.status)).collect();
        assert_eq!(known, [(2, GroupStatus::Acknowledged), (1, GroupStatus::New)]);
        let summary = store.stats().await.unwrap().summary();
        assert_eq!(summary.open_by_kind.values().sum::<u64>(), 3, "counted from the existing letters");
        assert_eq!(summary.open_by_priority.values().sum::<u64>(), 3);
        assert_eq!(summary.open_by_dlq.values().sum::<u64>(), 3);
        assert!(summary.letters_peak >= 3 && summary.messages_peak >= 2, "{summary:?}");
    });
}

/// The fifth format: checksums, timelines of letters, counters of open letters, error codes of groups.
#[test]
fn i47_a_directory_of_the_fifth_format_opens_with_all_it_recorded() {
    let home = golden("v5");
    block(async {
        let store = open(home.path());
        assert_clean(&store).await;
        let moved = Query { filter: "dlq:other-dlq".parse().unwrap(), ..Query::default() };
        let letter = store.letters(moved).await.unwrap().items.remove(0);
        let moments = letter.timeline();
        let events: Vec<_> = moments.iter().map(|moment| moment.what.name()).collect();
        assert!(events.ends_with(&["died", "moved"]), "{events:?}");
        assert_eq!(letter.message.failures[0].error.cause.as_deref(), Some("connection reset"));
        let group = store.groups(GroupQuery::default()).await.unwrap().items.remove(0);
        assert_eq!((group.open, group.code.as_deref()), (2, Some("504")));
        let summary = store.stats().await.unwrap().summary();
        assert_eq!((summary.letters_open, summary.letters_peak, summary.messages_peak), (2, 3, 3));
        assert_eq!(summary.open_by_kind.get("charge"), Some(&2));
    });
}
