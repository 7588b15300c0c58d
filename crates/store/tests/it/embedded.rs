//! What only the embedded store promises: it survives a restart, has one holder, is copied as of one commit, and
//! refuses foreign, newer or damaged data with advice on what to do.

use crate::laws::options;
use redrive_core::dead_letter::Actor;
use redrive_core::error::{CallError, StoreError, StoreErrorKind};
use redrive_core::ids::{MessageId, QueueName};
use redrive_core::message::{NewMessage, Payload};
use redrive_core::policy::QueuePolicy;
use redrive_core::query::Query;
use redrive_core::store::{LeaseRequest, Letters as _, Settle, Settlement, Store, VerifyRequest, Work as _};
use redrive_core::time::Span;
use redrive_store::sqlite::{Options, SqliteStore};
use redrive_testkit::clock::TestClock;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

fn q() -> QueueName {
    "q".parse().unwrap()
}

fn new(n: u8) -> NewMessage {
    let payload = Payload { bytes: vec![n; 3_000], content_type: "x/y".into() };
    NewMessage::new(MessageId::new(u64::from(n), [n; 10]), q(), payload)
}

pub(crate) fn block<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap().block_on(work)
}

fn open(at: &Path) -> Result<SqliteStore, StoreError> {
    SqliteStore::open(at, Options::default())
}

async fn send(store: &dyn Store, n: u8) {
    store.enqueue(vec![new(n)]).await.unwrap().remove(0).unwrap();
}

async fn lease(store: &dyn Store, max: usize) -> Vec<redrive_core::message::Delivery> {
    // Longer than any test takes: most tests run on the machine's clock.
    let lease_for = Some(Span::from_hours(1));
    let request =
        LeaseRequest { queues: vec![q()], max, lease_for, worker: "w".into(), ..LeaseRequest::default() };
    store.lease(request).await.unwrap()
}

pub(crate) async fn assert_clean(store: &dyn Store) {
    let v = store.verify(VerifyRequest { deep: true, repair: false }).await.unwrap();
    assert!(v.is_clean(), "{:?}", v.findings);
}

#[test]
fn i1_i2_i3_what_was_acknowledged_is_there_after_a_restart() {
    let home = TempDir::new().unwrap();
    let token = block(async {
        let store = open(home.path()).unwrap();
        for n in 1..=3 {
            send(&store, n).await;
        }
        let taken = lease(&store, 2).await;
        store.settle(vec![Settlement { token: taken[0].token, what: Settle::Ack }]).await.unwrap();
        taken[1].token
    });
    block(async {
        let store = open(home.path()).unwrap();
        let live = store.messages(Query::default()).await.unwrap().items;
        let states: Vec<_> = live.iter().map(|m| (m.envelope.payload.bytes[0], m.state.name())).collect();
        assert_eq!(states, [(2, "leased"), (3, "ready")]);
        let settled = store.settle(vec![Settlement { token, what: Settle::Ack }]).await.unwrap();
        assert_eq!(settled[0].as_ref().unwrap().state.name(), "done", "a lease survives the restart");
        assert_clean(&store).await;
    });
}

#[test]
fn one_process_holds_the_directory_and_the_next_can_open_it_afterwards() {
    let home = TempDir::new().unwrap();
    let held = open(home.path()).unwrap();
    let refused = open(home.path()).unwrap_err();
    assert_eq!(refused.kind, StoreErrorKind::Locked);
    drop(held);
    open(home.path()).unwrap();
}

#[test]
fn what_is_not_a_store_is_refused_and_left_alone() {
    let home = TempDir::new().unwrap();
    let file = home.path().join("redrive.db");
    for (bytes, kind) in [
        (
            b"this is a letter to my aunt, not a database at all, and it goes on".repeat(40),
            StoreErrorKind::NotAStore,
        ),
        (b"x".to_vec(), StoreErrorKind::NotAStore),
    ] {
        fs::write(&file, &bytes).unwrap();
        let error = open(home.path()).unwrap_err();
        assert_eq!(error.kind, kind, "{error}");
        assert_eq!(fs::read(&file).unwrap(), bytes, "nothing was changed");
    }
    let other = TempDir::new().unwrap();
    assert_eq!(
        SqliteStore::open(&other.path().join("none"), Options { create: false, ..Options::default() })
            .unwrap_err()
            .kind,
        StoreErrorKind::NotAStore
    );
    fs::write(other.path().join("file"), b"x").unwrap();
    assert_eq!(open(&other.path().join("file")).unwrap_err().kind, StoreErrorKind::Io);
}

/// Changes four bytes, big-endian, of the database header.
fn poke(file: &Path, at: usize, value: u32) {
    let mut bytes = fs::read(file).unwrap();
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
    fs::write(file, bytes).unwrap();
}

#[test]
fn i47_a_newer_file_and_a_foreign_database_are_refused() {
    let home = TempDir::new().unwrap();
    drop(open(home.path()).unwrap());
    let file = home.path().join("redrive.db");
    poke(&file, 60, 99);
    let error = open(home.path()).unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Newer);
    assert!(error.text.contains("version 99"), "{error}");
    poke(&file, 60, 1);
    poke(&file, 68, 0x0102_0304);
    assert_eq!(open(home.path()).unwrap_err().kind, StoreErrorKind::NotAStore);
}

#[test]
fn i46_a_log_that_lost_its_end_is_noticed() {
    let home = TempDir::new().unwrap();
    block(async {
        let store = open(home.path()).unwrap();
        for n in 1..=9 {
            send(&store, n).await;
        }
    });
    // As if SQLite could not read its log to the end, and acknowledged commits were lost.
    let ahead = 1_000_u64.to_be_bytes();
    fs::write(home.path().join("commits"), [ahead, ahead].concat()).unwrap();
    let error = open(home.path()).unwrap_err();
    assert_eq!(error.kind, StoreErrorKind::Damaged);
    assert!(error.text.contains("1000 commits were acknowledged"), "{error}");
    fs::remove_file(home.path().join("commits")).unwrap();
    open(home.path()).unwrap();
}

#[test]
fn i46_a_damaged_payload_is_reported_and_does_not_hold_up_the_others() {
    let home = TempDir::new().unwrap();
    block(async {
        let store = open(home.path()).unwrap();
        let mut odd = new(1);
        odd.payload.bytes = b"the quick brown fox".to_vec();
        store.enqueue(vec![odd, new(2)]).await.unwrap();
    });
    let file = home.path().join("redrive.db");
    let mut bytes = fs::read(&file).unwrap();
    let at = bytes.windows(9).position(|w| w == b"quick bro").unwrap();
    bytes[at] ^= 1;
    fs::write(&file, bytes).unwrap();
    block(async {
        let store = open(home.path()).unwrap();
        let taken = lease(&store, 10).await;
        assert_eq!(taken.len(), 1, "the intact one is leased");
        assert_eq!(taken[0].message.envelope.payload.bytes[0], 2);
        let v = store.verify(VerifyRequest { deep: true, repair: false }).await.unwrap();
        assert!(v.findings.iter().any(|f| f.invariant == "I46"), "{:?}", v.findings);
        let shown = store.message(MessageId::new(1, [1; 10])).await.unwrap_err();
        assert!(
            matches!(shown, CallError::Store(StoreError { kind: StoreErrorKind::Damaged, .. })),
            "{shown}"
        );
    });
}

#[test]
fn i9_a_backup_is_one_commit_and_restores_to_a_store_that_adds_up() {
    let home = TempDir::new().unwrap();
    let (data, copy, back) = (home.path().join("data"), home.path().join("copy"), home.path().join("back"));
    block(async {
        let store = Arc::new(open(&data).unwrap());
        let actor = Actor::new("ada", "test");
        store.configure(q(), QueuePolicy { max_attempts: 1, ..QueuePolicy::default() }, actor).await.unwrap();
        let busy = Arc::clone(&store);
        let work = tokio::spawn(async move {
            for n in 1..=200 {
                send(busy.as_ref(), n).await;
            }
        });
        while store.queue(q()).await.unwrap().counts.enqueued < 20 {
            tokio::task::yield_now().await;
        }
        let bytes = store.backup(copy.to_str().unwrap().to_owned()).await.unwrap();
        assert!(bytes > 0);
        work.await.unwrap();
        let again = store.backup(copy.to_str().unwrap().to_owned()).await.unwrap_err();
        assert!(again.to_string().contains("holds a store already"), "{again}");
        redrive_store::restore(&copy, &back).await.unwrap();
        assert!(redrive_store::restore(&copy, &back).await.is_err(), "never overwrites a store");
    });
    block(async {
        let store = open(&back).unwrap();
        assert_clean(&store).await;
        let restored = store.queue(q()).await.unwrap().counts.enqueued;
        let walked = store.messages(Query::default()).await.unwrap().items.len();
        assert!((20..=200).contains(&restored) && walked > 0, "{restored}");
        assert_eq!(store.audit_verify(None).await.unwrap().broken, None, "the key was copied too");
    });
}

#[test]
fn files_are_accessible_to_their_owner_alone() {
    let home = TempDir::new().unwrap();
    let data = home.path().join("data");
    block(async {
        let store = redrive_store::open(&data, true, true, Span::ZERO).await.unwrap();
        send(store.as_ref(), 1).await;
        let mode = |name: &str| fs::metadata(data.join(name)).unwrap().permissions().mode() & 0o077;
        for name in ["", "redrive.db", "redrive.db-wal", "audit.key", "commits", "lock", "socket"] {
            assert_eq!(mode(name), 0, "{name:?}");
        }
    });
}

#[test]
fn a_directory_with_a_long_path_has_a_socket_too() {
    let home = TempDir::new().unwrap();
    let data = home.path().join("d".repeat(90)).join("e".repeat(90));
    block(async {
        let store = redrive_store::open(&data, true, true, Span::ZERO).await.unwrap();
        let other = redrive_store::open(&data, false, false, Span::ZERO).await.unwrap();
        send(other.as_ref(), 1).await;
        assert_eq!(store.queue(q()).await.unwrap().ready, 1);
    });
}

#[test]
fn a_holder_that_opens_the_directory_again_gives_live_leases_time() {
    let home = TempDir::new().unwrap();
    let clock = TestClock::shared();
    let token = block(async {
        let store = SqliteStore::open(home.path(), options(&clock)).unwrap();
        send(&store, 1).await;
        lease(&store, 1).await[0].token
    });
    clock.advance(Span::from_secs(3_600));
    block(async {
        let store = SqliteStore::open(home.path(), Options { grace: true, ..options(&clock) }).unwrap();
        assert_eq!(lease(&store, 1).await, [], "its worker still holds it");
        let settled = store.settle(vec![Settlement { token, what: Settle::Ack }]).await.unwrap();
        assert_eq!(settled[0].as_ref().unwrap().state.name(), "done");
    });
}

#[test]
fn i14_a_hundred_thousand_messages_of_one_blocked_key_do_not_hide_the_others() {
    let home = TempDir::new().unwrap();
    block(async {
        let store = open(home.path()).unwrap();
        let make = |n: u32, key: Option<&str>| {
            let mut random = [0; 10];
            random[6..].copy_from_slice(&n.to_be_bytes());
            let message = NewMessage::new(MessageId::new(1, random), q(), Payload::default());
            NewMessage { ordering_key: key.map(str::to_owned), ..message }
        };
        for start in (0..100_000).step_by(10_000) {
            store.enqueue((start..start + 10_000).map(|n| make(n, Some("one"))).collect()).await.unwrap();
        }
        store.enqueue((100_000..100_010).map(|n| make(n, None)).collect()).await.unwrap();
        let taken = lease(&store, 100).await;
        let keyed = taken.iter().filter(|d| d.message.envelope.ordering_key.is_some()).count();
        assert_eq!((keyed, taken.len()), (1, 11));
    });
}

#[test]
fn filters_in_sql_and_in_the_evaluator_agree() {
    let home = TempDir::new().unwrap();
    block(async {
        let store = open(home.path()).unwrap();
        let actor = Actor::new("ada", "test");
        store.configure(q(), QueuePolicy { max_attempts: 1, ..QueuePolicy::default() }, actor).await.unwrap();
        for n in 1..=30 {
            let mut message = new(n);
            message.kind = format!("kind{}", n % 3);
            message.key = (n % 4 == 0).then(|| format!("key{n}"));
            store.enqueue(vec![message]).await.unwrap();
        }
        for delivery in lease(&store, 100).await {
            let n = delivery.message.envelope.payload.bytes[0];
            let report = redrive_core::failure::FailureReport {
                error: redrive_core::failure::ErrorInfo {
                    error_type: format!("E{}", n % 5),
                    message: "connection refused".into(),
                    ..Default::default()
                },
                ..Default::default()
            };
            let what = Settle::Fail { failure: Box::new(report.analyse()), policy_override: None };
            store.settle(vec![Settlement { token: delivery.token, what }]).await.unwrap();
        }
        let all = store.letters(Query::default()).await.unwrap().items;
        assert_eq!(all.len(), 30);
        let now = store.info().await.unwrap().now;
        for text in [
            "kind:kind1",
            "kind:kind*",
            "not kind:kind1",
            "key:key4",
            "not key:key4",
            "key:*",
            "status:pending",
            "status:pending,review kind:kind2",
            "reason:max_attempts",
            "not reason:permanent",
            "type:E1",
            "E2",
            "error:refused or kind:kind0",
            "(kind:kind0 or type:E1) and not key:*",
            "died:1h",
            "age<1h",
            "age>1h",
            "attempts:1",
            "attempts>1",
            "redrives:0",
            "queue:q dlq:q-dlq",
            "route:network",
            "category:transient",
        ] {
            let filter = redrive_core::filter::Filter::parse(text).unwrap();
            let expected: Vec<_> = all
                .iter()
                .filter(|l| filter.matches_letter(l, now))
                .map(redrive_core::dead_letter::DeadLetter::id)
                .collect();
            let query = Query { filter, ..Query::default() };
            let found: Vec<_> = store
                .letters(query)
                .await
                .unwrap()
                .items
                .iter()
                .map(redrive_core::dead_letter::DeadLetter::id)
                .collect();
            assert_eq!(found, expected, "{text}");
        }
    });
}

#[test]
fn i3_what_was_counted_is_there_after_a_restart() {
    let home = TempDir::new().unwrap();
    let before = block(async {
        let store = open(home.path()).unwrap();
        for n in 1..=3 {
            send(&store, n).await;
        }
        for delivery in lease(&store, 2).await {
            store.settle(vec![Settlement { token: delivery.token, what: Settle::Ack }]).await.unwrap();
        }
        let policy = QueuePolicy { max_messages: Some(1), ..QueuePolicy::default() };
        store.configure(q(), policy, Actor::new("ada", "test")).await.unwrap();
        assert!(store.enqueue(vec![new(9)]).await.unwrap()[0].is_err());
        store.configure(q(), QueuePolicy::default(), Actor::new("ada", "test")).await.unwrap();
        store.stats().await.unwrap()
    });
    let summary = before.summary();
    assert_eq!((summary.acked, summary.overflows, summary.messages_peak), (2, 1, 3));
    block(async {
        let store = open(home.path()).unwrap();
        let after = store.stats().await.unwrap();
        assert_eq!((&after.counters, &after.queues), (&before.counters, &before.queues));
        assert_eq!(after.summary().overflows, 1, "including what a full queue refused");
        assert_eq!(after.summary().messages_peak, 3);
        send(&store, 4).await;
        assert_eq!(store.stats().await.unwrap().summary().enqueued, 4, "and counting continues");
    });
}

#[test]
fn opening_a_directory_repeatedly_does_not_make_a_lease_longer() {
    let home = TempDir::new().unwrap();
    let clock = TestClock::shared();
    block(async {
        let store = SqliteStore::open(home.path(), options(&clock)).unwrap();
        send(&store, 1).await;
        let lease_for = Some(Span::from_secs(1));
        let request = LeaseRequest {
            queues: vec![q()],
            max: 1,
            lease_for,
            worker: "w".into(),
            ..LeaseRequest::default()
        };
        assert_eq!(store.lease(request).await.unwrap().len(), 1);
    });
    for _ in 0..5 {
        let now = clock.advance(Span::from_secs(10));
        block(async {
            let store = SqliteStore::open(home.path(), Options { grace: true, ..options(&clock) }).unwrap();
            let shown = store.messages(Query::default()).await.unwrap().items.remove(0);
            assert_eq!(shown.lease_expires_at, Some(now.plus(Span::from_secs(1))));
        });
    }
}

/// Replaces these bytes everywhere in the data file.
fn scribble(home: &Path, from: &[u8], to: &[u8]) {
    let file = home.join("redrive.db");
    let mut bytes = fs::read(&file).unwrap();
    let places: Vec<usize> =
        bytes.windows(from.len()).enumerate().filter(|(_, w)| *w == from).map(|(at, _)| at).collect();
    assert!(!places.is_empty(), "it is written there");
    for at in places {
        bytes[at..at + from.len()].copy_from_slice(to);
    }
    fs::write(&file, bytes).unwrap();
}

/// The sums of a group are stored beside the counters of its leaves. If they are wrong or unreadable, that is found,
/// repaired on demand, and does not stop work.
#[test]
fn i15_the_sums_of_a_group_are_checked_against_its_leaves_and_mended() {
    let home = TempDir::new().unwrap();
    let actor = || Actor::new("ada", "test");
    let die = async |store: &SqliteStore, n| {
        send(store, n).await;
        let token = lease(store, 1).await.remove(0).token;
        let failure = Box::new(
            redrive_core::failure::FailureReport { permanent: true, ..Default::default() }.analyse(),
        );
        let what = Settle::Fail { failure, policy_override: None };
        store.settle(vec![Settlement { token, what }]).await.unwrap().remove(0).unwrap();
    };
    let shown = async |store: &SqliteStore| {
        let groups = store.groups(Default::default()).await.unwrap().items;
        groups.iter().map(|group| (group.open, group.total, group.note.clone())).collect::<Vec<_>>()
    };
    let note = Some("known".to_owned());
    block(async {
        let store = open(home.path()).unwrap();
        for n in 1..=3 {
            die(&store, n).await;
        }
        let id = store.groups(Default::default()).await.unwrap().items[0].id;
        let act = redrive_core::group::GroupAct::Note { text: note.clone() };
        store.act_on_group(id, act, actor()).await.unwrap();
        assert_clean(&store).await;
    });
    scribble(home.path(), br#""open":3,"total":3"#, br#""open":7,"total":3"#);
    block(async {
        let store = open(home.path()).unwrap();
        assert_eq!(shown(&store).await, [(7, 3, note.clone())]);
        let v = store.verify(VerifyRequest { deep: true, repair: false }).await.unwrap();
        let found: Vec<_> = v.findings.iter().map(|f| (f.invariant.as_str(), f.repairable)).collect();
        assert_eq!(found, [("I15", true)], "{:?}", v.findings);
        assert_eq!(store.verify(VerifyRequest { deep: true, repair: true }).await.unwrap().repaired, 1);
        assert_eq!(shown(&store).await, [(3, 3, note.clone())], "the note stays");
        assert_clean(&store).await;
    });
    scribble(home.path(), br#"{"sums":{"#, br#"{"sums":["#);
    block(async {
        let store = open(home.path()).unwrap();
        assert_eq!(shown(&store).await, [], "not shown wrongly");
        let v = store.verify(VerifyRequest { deep: true, repair: false }).await.unwrap();
        assert!(v.findings.iter().any(|f| f.what.contains("cannot be read")), "{:?}", v.findings);
        die(&store, 4).await;
        assert_eq!(shown(&store).await, [(4, 4, None)], "counted again; the note is lost");
        assert_clean(&store).await;
    });
}
