//! Random streams of operations: every backend behaves like the reference model.

use crate::laws::options;
use redrive_core::store::Store;
use redrive_store::entropy::System;
use redrive_store::memory::MemoryStore;
use redrive_store::remote::RemoteStore;
use redrive_store::sqlite::SqliteStore;
use redrive_testkit::clock::TestClock;
use redrive_testkit::model::Model;
use redrive_testkit::streams;
use std::sync::Arc;
use tempfile::TempDir;

/// The number of streams per backend; `REDRIVE_STREAMS` sets another.
fn cases(default: u32) -> u32 {
    std::env::var("REDRIVE_STREAMS").ok().and_then(|n| n.parse().ok()).unwrap_or(default)
}

fn seed() -> Option<u64> {
    std::env::var("REDRIVE_SEED").ok().and_then(|n| n.parse().ok())
}

pub(crate) fn against_the_model(default: u32, make: impl Fn(&Arc<TestClock>) -> Arc<dyn Store>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let _entered = runtime.enter();
    streams::check(cases(default), seed(), |ops| {
        let clock = TestClock::shared();
        let model = Model::new(clock.clone());
        let store = make(&clock);
        runtime.block_on(streams::run_pair(&model, store.as_ref(), &clock, &ops))
    });
}

#[test]
fn memory_behaves_like_the_model() {
    against_the_model(120, |clock| Arc::new(MemoryStore::with(clock.clone(), Arc::new(System))));
}

#[test]
fn memory_that_spills_behaves_like_the_model() {
    against_the_model(60, |clock| {
        Arc::new(MemoryStore::with(clock.clone(), Arc::new(System)).with_hot_entries(2))
    });
}

#[test]
fn sqlite_behaves_like_the_model() {
    let home = TempDir::new().unwrap();
    let count = std::sync::atomic::AtomicUsize::new(0);
    against_the_model(50, |clock| {
        let n = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Arc::new(SqliteStore::open(&home.path().join(n.to_string()), options(clock)).unwrap())
    });
}

#[test]
fn a_store_through_the_socket_behaves_like_the_model() {
    let home = TempDir::new().unwrap();
    let count = std::sync::atomic::AtomicUsize::new(0);
    // The holder of a directory lives until the next stream has a store of its own.
    let holder = std::sync::Mutex::new(None);
    against_the_model(20, |clock| {
        let n = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let directory = home.path().join(n.to_string());
        *holder.lock().unwrap() = Some(redrive_store::open_serving(&directory, options(clock)).unwrap());
        let connected = tokio::runtime::Handle::current().block_on(RemoteStore::connect(&directory));
        Arc::new(connected.unwrap())
    });
}

#[cfg(feature = "postgres")]
#[test]
fn postgresql_behaves_like_the_model() {
    let server = redrive_testkit::pg::shared();
    against_the_model(20, |clock| {
        let options = redrive_store::postgres::Options { clock: Some(clock.clone()), ..Default::default() };
        let url = server.schema();
        let opened = redrive_store::postgres::PostgresStore::open(&url, options);
        Arc::new(tokio::runtime::Handle::current().block_on(opened).unwrap())
    });
}

#[cfg(feature = "redis")]
#[test]
fn redis_behaves_like_the_model() {
    let server = redrive_testkit::redis::shared();
    against_the_model(20, |clock| {
        let options = redrive_store::redis::Options { clock: Some(clock.clone()), ..Default::default() };
        let url = server.prefix();
        let opened = redrive_store::redis::RedisStore::open(&url, options);
        Arc::new(tokio::runtime::Handle::current().block_on(opened).unwrap())
    });
}
