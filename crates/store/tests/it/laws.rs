//! Every law of the testkit on every backend of this crate.

use redrive_core::store::Store;
use redrive_store::entropy::System;
use redrive_store::memory::MemoryStore;
use redrive_store::remote::RemoteStore;
use redrive_store::sqlite::{Options, SqliteStore};
use redrive_testkit::clock::TestClock;
use redrive_testkit::conformance::{LAWS, run_law};
use std::future::Future;
use std::sync::Arc;
use tempfile::TempDir;

/// A store and its clock.
pub(crate) type StoreAndClock = (Arc<dyn Store>, Arc<TestClock>);

pub(crate) fn options(clock: &Arc<TestClock>) -> Options {
    Options { clock: Some(clock.clone()), ..Options::default() }
}

async fn memory() -> StoreAndClock {
    let clock = TestClock::shared();
    (Arc::new(MemoryStore::with(clock.clone(), Arc::new(System))), clock)
}

/// A memory store whose index holds four entries, so that everything else spills and is refilled.
async fn spilling() -> StoreAndClock {
    let clock = TestClock::shared();
    (Arc::new(MemoryStore::with(clock.clone(), Arc::new(System)).with_hot_entries(4)), clock)
}

pub(crate) fn run_all<F>(backend: &str, make: impl Fn() -> F)
where
    F: Future<Output = StoreAndClock> + Send + 'static,
{
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let broken: Vec<&str> = LAWS
        .iter()
        .filter(|law| {
            println!("{backend}: {}", law.name);
            let made = make();
            runtime.block_on(runtime.spawn(run_law(law, move || made))).is_err()
        })
        .map(|law| law.name)
        .collect();
    assert!(broken.is_empty(), "{backend} breaks {broken:?}");
}

#[test]
fn every_law_holds_in_memory() {
    run_all("memory", memory);
}

#[test]
fn every_law_holds_in_memory_when_the_index_spills() {
    run_all("memory, spilling", spilling);
}

#[test]
fn every_law_holds_in_sqlite() {
    let home = TempDir::new().unwrap();
    let root = home.path().to_owned();
    let count = std::sync::atomic::AtomicUsize::new(0);
    run_all("sqlite", move || {
        let n = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let directory = root.join(n.to_string());
        async move {
            let clock = TestClock::shared();
            let store = SqliteStore::open(&directory, options(&clock)).unwrap();
            (Arc::new(store) as Arc<dyn Store>, clock)
        }
    });
}

#[test]
fn every_law_holds_through_the_socket() {
    let home = TempDir::new().unwrap();
    let root = home.path().to_owned();
    let count = std::sync::atomic::AtomicUsize::new(0);
    let held: Arc<std::sync::Mutex<Vec<Arc<dyn Store>>>> = Arc::default();
    run_all("remote", move || {
        let n = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let directory = root.join(n.to_string());
        let held = Arc::clone(&held);
        async move {
            let clock = TestClock::shared();
            let store = redrive_store::open_serving(&directory, options(&clock)).unwrap();
            // Only the store of the latest law is needed; the earlier one closes here.
            let before = std::mem::replace(&mut *held.lock().unwrap(), vec![store]);
            drop(before);
            let remote = RemoteStore::connect(&directory).await.unwrap();
            (Arc::new(remote) as Arc<dyn Store>, clock)
        }
    });
}

#[cfg(feature = "postgres")]
#[test]
fn every_law_holds_in_postgresql() {
    let server = redrive_testkit::pg::shared();
    run_all("postgres", move || {
        let url = server.schema();
        async move {
            let clock = TestClock::shared();
            let options =
                redrive_store::postgres::Options { clock: Some(clock.clone()), ..Default::default() };
            let store = redrive_store::postgres::PostgresStore::open(&url, options).await.unwrap();
            (Arc::new(store) as Arc<dyn Store>, clock)
        }
    });
}

#[cfg(feature = "redis")]
#[test]
fn every_law_holds_in_redis() {
    let server = redrive_testkit::redis::shared();
    run_all("redis", move || {
        let url = server.prefix();
        async move {
            let clock = TestClock::shared();
            let options = redrive_store::redis::Options { clock: Some(clock.clone()), ..Default::default() };
            let store = redrive_store::redis::RedisStore::open(&url, options).await.unwrap();
            (Arc::new(store) as Arc<dyn Store>, clock)
        }
    });
}
