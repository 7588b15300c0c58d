//! A store used by many processes, some of them with a wrong wall clock: the store goes by the time that has passed,
//! nothing is delivered early, and the clock recovers by itself.

use redrive_core::ids::{MessageId, QueueName};
use redrive_core::message::{Delivery, NewMessage, Payload};
use redrive_core::store::{LeaseRequest, Settle, Settlement, Store as _, VerifyRequest, Work as _};
use redrive_core::time::{Span, Time};
use redrive_store::clock::{Machine, Uptime};
use redrive_store::sqlite::{Options, SqliteStore};
use redrive_testkit::clock::START;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use tempfile::TempDir;

const DAY: Span = Span::from_days(1);

/// A machine whose time passes when a test says so, with a wall clock that can be set.
#[derive(Debug, Default)]
struct TestMachine {
    passed: AtomicI64,
    up: AtomicI64,
    boot: AtomicU64,
    wrong_by: AtomicI64,
}

impl TestMachine {
    /// Lets time pass.
    fn pass(&self, span: Span) {
        let ms = i64::try_from(span.as_millis()).unwrap();
        self.passed.fetch_add(ms, Ordering::SeqCst);
        self.up.fetch_add(ms, Ordering::SeqCst);
    }

    /// Sets the wall clock this far ahead of the correct time.
    fn set_ahead(&self, span: Span) {
        self.wrong_by.store(i64::try_from(span.as_millis()).unwrap(), Ordering::SeqCst);
    }

    /// Reboots the machine after it was off for this long.
    fn reboot(&self, off: Span) {
        self.pass(off);
        self.up.store(0, Ordering::SeqCst);
        self.boot.fetch_add(1, Ordering::SeqCst);
    }
}

impl Machine for TestMachine {
    fn wall(&self) -> Time {
        let wrong_by = self.wrong_by.load(Ordering::SeqCst);
        Time::from_millis(START.as_millis() + self.passed.load(Ordering::SeqCst) + wrong_by)
    }
    fn uptime(&self) -> Option<Uptime> {
        Some(Uptime { boot: self.boot.load(Ordering::SeqCst).into(), ms: self.up.load(Ordering::SeqCst) })
    }
    fn monotonic_ms(&self) -> i64 {
        self.passed.load(Ordering::SeqCst)
    }
}

fn q() -> QueueName {
    "q".parse().unwrap()
}

/// A process that opens the store for a moment.
fn process(machine: &Arc<TestMachine>, at: &Path) -> SqliteStore {
    let machine = Arc::clone(machine) as Arc<dyn Machine>;
    SqliteStore::open(at, Options { machine, ..Options::default() }).unwrap()
}

async fn send(store: &SqliteStore, n: u8, delay: Span) {
    let mut new = NewMessage::new(MessageId::new(u64::from(n), [n; 10]), q(), Payload::default());
    new.delay = Some(delay).filter(|delay| *delay > Span::ZERO);
    store.enqueue(vec![new]).await.unwrap().remove(0).unwrap();
}

async fn lease(store: &SqliteStore) -> Vec<Delivery> {
    let lease_for = Some(Span::from_secs(600));
    let request =
        LeaseRequest { queues: vec![q()], max: 10, lease_for, worker: "w".into(), ..LeaseRequest::default() };
    store.lease(request).await.unwrap()
}

#[tokio::test]
async fn i21_i31_a_command_under_a_wrong_wall_delivers_nothing_early_and_loses_no_lease() {
    let home = TempDir::new().unwrap();
    let machine = Arc::new(TestMachine::default());
    let store = process(&machine, home.path());
    send(&store, 1, Span::from_hours(1)).await;
    send(&store, 2, Span::ZERO).await;
    let held = lease(&store).await.remove(0);
    drop(store);

    machine.pass(Span::from_secs(5));
    machine.set_ahead(DAY);
    let store = process(&machine, home.path());
    assert_eq!(lease(&store).await, [], "neither the delayed one nor the leased one");
    send(&store, 3, Span::from_hours(5)).await;
    drop(store);

    machine.set_ahead(Span::ZERO);
    machine.pass(Span::from_secs(5));
    let store = process(&machine, home.path());
    let settled = store.settle(vec![Settlement { token: held.token, what: Settle::Ack }]).await.unwrap();
    assert_eq!(settled[0].as_ref().unwrap().state.name(), "done");
    let found = store.verify(VerifyRequest::default()).await.unwrap();
    assert!(found.is_clean(), "{:?}", found.findings);
    drop(store);

    machine.pass(Span::from_hours(1));
    assert_eq!(lease(&process(&machine, home.path())).await.len(), 1, "delays come due");
}

#[tokio::test]
async fn i21_a_store_that_is_ahead_finds_back_while_nobody_lives() {
    let home = TempDir::new().unwrap();
    let machine = Arc::new(TestMachine::default());
    drop(process(&machine, home.path()));
    let store = process(&machine, home.path());
    send(&store, 1, Span::ZERO).await;
    drop(store);
    // After a reboot only the wall clock can tell, and it is a day ahead.
    machine.reboot(Span::from_secs(60));
    machine.set_ahead(DAY);
    let store = process(&machine, home.path());
    send(&store, 2, Span::from_hours(1)).await;
    drop(store);

    machine.set_ahead(Span::ZERO);
    let skew_now = async || {
        let store = process(&machine, home.path());
        let skew = store.info().await.unwrap().skew_ms;
        (skew, store.verify(VerifyRequest::default()).await.unwrap())
    };
    let (skew, found) = skew_now().await;
    assert_eq!(skew, 86_400_000);
    assert!(found.findings.iter().any(|f| f.what.contains("1d ahead") && f.mend.contains("2d")), "{found:?}");
    // Commands that change nothing do not delay the recovery.
    for _ in 0..24 {
        machine.pass(Span::from_hours(1));
        skew_now().await;
    }
    assert_eq!(skew_now().await.0, 43_200_000, "half of it");
    assert_eq!(lease(&process(&machine, home.path())).await.len(), 2, "late, and not never");
    machine.pass(DAY);
    let (skew, found) = skew_now().await;
    assert_eq!(skew, 0);
    assert!(found.is_clean(), "{:?}", found.findings);
}

#[tokio::test]
async fn i21_what_a_process_adds_after_a_reboot_is_bounded_and_a_restored_copy_is_on_time() {
    let home = TempDir::new().unwrap();
    let (data, copy, new) = (home.path().join("data"), home.path().join("copy"), home.path().join("new"));
    let machine = Arc::new(TestMachine::default());
    let store = process(&machine, &data);
    send(&store, 1, Span::from_days(8)).await;
    drop(store);
    machine.reboot(Span::from_secs(60));
    machine.set_ahead(Span::from_days(3_650));
    let store = process(&machine, &data);
    assert_eq!(lease(&store).await, [], "ten years are not believed");
    assert_eq!(store.info().await.unwrap().now, START.plus(Span::from_days(7)));
    machine.set_ahead(Span::ZERO);
    machine.reboot(Span::from_days(30));
    drop(store);
    let store = process(&machine, &data);
    let found = store.verify(VerifyRequest::default()).await.unwrap();
    assert!(
        found.findings.iter().any(|f| f.what.contains("behind") && f.mend.contains("restore")),
        "{found:?}"
    );
    store.backup(copy.to_str().unwrap().to_owned()).await.unwrap();
    redrive_store::restore(&copy, &new).await.unwrap();
    let restored = process(&machine, &new);
    assert_eq!(restored.info().await.unwrap().skew_ms, 0);
    assert_eq!(lease(&restored).await.len(), 1);
}
