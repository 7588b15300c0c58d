//! A store in Redis when things go wrong: the server is killed, forgets the functions, runs out of memory or goes back,
//! and another process takes the store.

use redrive_core::dead_letter::Actor;
use redrive_core::error::{CallError, StoreErrorKind};
use redrive_core::failure::FailureReport;
use redrive_core::ids::{MessageId, QueueName};
use redrive_core::message::{NewMessage, Payload};
use redrive_core::policy::QueuePolicy;
use redrive_core::store::{
    LeaseRequest, Letters as _, Settle, Settlement, Store as _, VerifyRequest, Work as _,
};
use redrive_store::redis::{Options, RedisStore};
use redrive_testkit::redis::{Server, shared};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// Only a hang reaches this.
const PATIENCE: Duration = Duration::from_secs(600);

fn q() -> QueueName {
    "q".parse().unwrap()
}

fn message(bytes: usize) -> NewMessage {
    let payload = Payload { bytes: vec![7; bytes], ..Payload::default() };
    NewMessage::new(redrive_store::new_id(), q(), payload)
}

fn lease(max: usize) -> LeaseRequest {
    LeaseRequest { queues: vec![q()], max, worker: "w".into(), ..LeaseRequest::default() }
}

async fn open(url: &str) -> Arc<RedisStore> {
    let store = RedisStore::open(url, Options::default()).await.unwrap();
    store.configure(q(), QueuePolicy::default(), Actor::new("test", "test")).await.unwrap();
    Arc::new(store)
}

fn kind<T>(result: Result<T, CallError>) -> Option<StoreErrorKind> {
    match result {
        Err(CallError::Store(error)) => Some(error.kind),
        Err(CallError::Refused(_)) | Ok(_) => None,
    }
}

async fn refusal(url: &str) -> String {
    RedisStore::open(url, Options::default()).await.unwrap_err().text
}

async fn assert_sound(store: &RedisStore) {
    let found = store.verify(VerifyRequest { deep: true, repair: false }).await.unwrap();
    assert_eq!(found.findings, Vec::new());
}

/// The key of the holder in the store at an address.
fn holder_key(url: &str) -> String {
    format!("{{{}}}:holder", url.split_once("prefix=").unwrap().1)
}

/// What a load was told.
#[derive(Default)]
struct Told {
    enqueued: Mutex<HashSet<MessageId>>,
    /// Settled, or perhaps settled.
    settled: Mutex<HashSet<MessageId>>,
    done: Mutex<HashSet<MessageId>>,
    failed: AtomicUsize,
    succeeded: AtomicUsize,
    progress: Notify,
    stop: AtomicBool,
}

impl Told {
    fn count<T>(&self, result: &Result<T, CallError>) -> bool {
        let to = if result.is_ok() { &self.succeeded } else { &self.failed };
        to.fetch_add(1, Ordering::SeqCst);
        self.progress.notify_one();
        result.is_ok()
    }

    /// Waits until this many more calls have succeeded.
    async fn more(&self, count: usize) {
        let goal = self.succeeded.load(Ordering::SeqCst) + count;
        let reached = async {
            while self.succeeded.load(Ordering::SeqCst) < goal {
                self.progress.notified().await;
            }
        };
        tokio::time::timeout(PATIENCE, reached).await.unwrap();
    }
}

/// Enqueues, leases and acknowledges until it is told to stop.
fn load(store: &Arc<RedisStore>, told: &Arc<Told>, tasks: &mut JoinSet<()>) {
    for _ in 0..6 {
        let (store, told) = (Arc::clone(store), Arc::clone(told));
        tasks.spawn(async move {
            while !told.stop.load(Ordering::SeqCst) {
                let new = message(100);
                let id = new.id;
                if told.count(&store.enqueue(vec![new]).await) {
                    told.enqueued.lock().unwrap().insert(id);
                }
            }
        });
    }
    for _ in 0..2 {
        let (store, told) = (Arc::clone(store), Arc::clone(told));
        tasks.spawn(async move {
            while !told.stop.load(Ordering::SeqCst) {
                let leased = store.lease(lease(3)).await;
                told.count(&leased);
                for delivery in leased.unwrap_or_default() {
                    let id = delivery.token.id;
                    told.settled.lock().unwrap().insert(id);
                    let ack = Settlement { token: delivery.token, what: Settle::Ack };
                    if told.count(&store.settle(vec![ack]).await) {
                        told.done.lock().unwrap().insert(id);
                    }
                }
            }
        });
    }
}

/// Everything acknowledged is as it was acknowledged.
async fn assert_nothing_lost(store: &RedisStore, told: &Told) {
    let enqueued = told.enqueued.lock().unwrap().clone();
    let settled = told.settled.lock().unwrap().clone();
    let done = told.done.lock().unwrap().clone();
    println!(
        "{} enqueued, {} acknowledged, {} calls failed",
        enqueued.len(),
        done.len(),
        told.failed.load(Ordering::SeqCst)
    );
    for id in enqueued.difference(&settled) {
        assert!(store.message(*id).await.is_ok(), "{id} was acknowledged and is gone");
    }
    for id in done {
        assert!(store.message(id).await.is_err(), "{id} is done and came back");
    }
    assert_sound(store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_acknowledged_survives_that_it_is_killed() {
    let kills = std::env::var("REDRIVE_REDIS_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(5);
    let home = TempDir::new().unwrap();
    let mut server = Server::start(home.path(), &[]);
    let url = server.prefix();
    let store = open(&url).await;
    let (told, mut tasks) = (Arc::new(Told::default()), JoinSet::new());
    load(&store, &told, &mut tasks);
    for _ in 0..kills {
        told.more(100).await;
        server.kill();
        server.resume();
    }
    told.more(100).await;
    told.stop.store(true, Ordering::SeqCst);
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    assert_nothing_lost(&store, &told).await;
    drop(store);
    let again = open(&url).await;
    assert_nothing_lost(&again, &told).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn functions_that_the_server_lost_are_loaded_again_and_nobody_notices() {
    let home = TempDir::new().unwrap();
    let server = Server::start(home.path(), &[]);
    let store = open(&server.prefix()).await;
    let (told, mut tasks) = (Arc::new(Told::default()), JoinSet::new());
    load(&store, &told, &mut tasks);
    for _ in 0..5 {
        told.more(50).await;
        server.ask(&["FUNCTION", "FLUSH"]);
    }
    told.more(50).await;
    told.stop.store(true, Ordering::SeqCst);
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    assert_eq!(told.failed.load(Ordering::SeqCst), 0);
    assert_nothing_lost(&store, &told).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_memory_is_short_new_work_is_refused_and_acks_go_on() {
    let home = TempDir::new().unwrap();
    let server = Server::start(home.path(), &[("maxmemory", "12mb")]);
    let store = open(&server.prefix()).await;
    let mut enqueued = 0;
    let refused = loop {
        match store.enqueue(vec![message(100_000)]).await {
            Ok(_) => enqueued += 1,
            Err(error) => break error,
        }
        assert!(enqueued < 1_000, "the server has no limit");
    };
    assert_eq!(kind(Err::<(), _>(refused)), Some(StoreErrorKind::Full));
    assert_eq!(kind(store.enqueue(vec![message(1)]).await), Some(StoreErrorKind::Full));
    assert!(store.info().await.unwrap().degraded.iter().any(|why| why.contains("out of memory")));
    // Far beyond the limit, not only by the size of the call that was refused.
    server.ask(&["CONFIG", "SET", "maxmemory", "4mb"]);
    let mut acknowledged = 0;
    while acknowledged < enqueued {
        let acks = store.lease(lease(5)).await.unwrap().into_iter();
        let acks: Vec<_> = acks.map(|d| Settlement { token: d.token, what: Settle::Ack }).collect();
        // Whether or not they are committed together with new work.
        let (settled, _) = tokio::join!(store.settle(acks), store.enqueue(vec![message(1)]));
        acknowledged += settled.unwrap().into_iter().filter(Result::is_ok).count();
    }
    assert_eq!(server.ask(&["CONFIG", "SET", "maxmemory", "12mb"]), "OK");
    let accepted = async {
        while let Err(error) = store.enqueue(vec![message(1)]).await {
            assert_eq!(kind(Err::<(), _>(error)), Some(StoreErrorKind::Full));
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, accepted).await.expect("new work is accepted when there is room");
    let degraded = store.info().await.unwrap().degraded;
    assert!(!degraded.iter().any(|why| why.contains("out of memory")), "{degraded:?}");
    assert_sound(&store).await;
}

/// Takes the store from its holder, which goes on saying that it is alive.
async fn take_over(server: &Server, url: &str) -> RedisStore {
    loop {
        server.ask(&["HSET", &holder_key(url), "seen_at", "0"]);
        let options = Options { node: "the second".into(), ..Options::default() };
        match RedisStore::open(url, options).await {
            Ok(store) => return store,
            Err(error) => assert_eq!(error.kind, StoreErrorKind::Locked),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_lost_the_store_commits_nothing() {
    let server = shared();
    let url = server.prefix();
    let first = open(&url).await;
    let kept = first.enqueue(vec![message(10)]).await.unwrap().remove(0).unwrap();
    let locked = RedisStore::open(&url, Options::default()).await.unwrap_err();
    assert_eq!(locked.kind, StoreErrorKind::Locked);
    let second = take_over(&server, &url).await;
    let late = message(10);
    let id = late.id;
    let refused = first.enqueue(vec![late]).await.unwrap_err();
    assert!(refused.to_string().contains("the second holds it under term 2"), "{refused}");
    assert_eq!(kind(first.enqueue(vec![message(10)]).await), Some(StoreErrorKind::NotHolder));
    assert!(second.message(id).await.is_err(), "what was refused is not there");
    assert!(second.message(kept.id).await.is_ok());
    second.enqueue(vec![message(10)]).await.unwrap().remove(0).unwrap();
    drop(first);
    second.enqueue(vec![message(10)]).await.unwrap().remove(0).unwrap();
    assert_sound(&second).await;
    drop(second);
    open(&url).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_went_back_is_not_written_to() {
    let server = shared();
    let url = server.prefix();
    let store = open(&url).await;
    store.enqueue(vec![message(10)]).await.unwrap();
    server.ask(&["HSET", &holder_key(&url), "commit", "1"]);
    let refused = store.enqueue(vec![message(10)]).await.unwrap_err();
    assert!(refused.to_string().contains("went back"), "{refused}");
    assert_eq!(kind(store.enqueue(vec![message(10)]).await), Some(StoreErrorKind::Stopped));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_of_which_a_key_has_the_wrong_type_writes_nothing() {
    let server = shared();
    let url = server.prefix();
    let store = open(&url).await;
    let prefix = holder_key(&url).replace("holder", "");
    store.enqueue(vec![message(10)]).await.unwrap();
    // The order of failures. Nothing has failed yet, so it does not exist.
    server.ask(&["SET", &format!("{prefix}o:13"), "not a sorted set"]);
    let before = server.ask(&["HGET", &holder_key(&url), "commit"]);
    let leased = store.lease(lease(1)).await.unwrap().remove(0);
    let failure = Box::new(FailureReport::default().analyse());
    let fail = Settlement { token: leased.token, what: Settle::Fail { failure, policy_override: None } };
    let refused = store.settle(vec![fail]).await.unwrap_err();
    assert!(refused.to_string().contains("nothing of it happened"), "{refused}");
    let after = server.ask(&["HGET", &holder_key(&url), "commit"]);
    assert_eq!(after.parse::<u64>().unwrap(), before.parse::<u64>().unwrap() + 1, "only the lease");
    server.ask(&["DEL", &format!("{prefix}o:13")]);
    let ack = Settlement { token: leased.token, what: Settle::Ack };
    store.settle(vec![ack]).await.unwrap().remove(0).unwrap();
    assert_sound(&store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_cannot_keep_the_promises_is_refused_or_shown() {
    let home = TempDir::new().unwrap();
    let server = Server::start(home.path(), &[]);
    let url = server.prefix();
    let degraded = async |url: &str| {
        let info = open(url).await.info().await.unwrap();
        assert_eq!((info.backend.as_str(), info.durable), ("redis", info.degraded.is_empty()));
        info.degraded.join("\n")
    };
    assert_eq!(degraded(&url).await, "");
    server.ask(&["CONFIG", "SET", "appendfsync", "everysec"]);
    assert!(degraded(&url).await.contains("up to two seconds"));
    server.ask(&["CONFIG", "SET", "appendfsync", "no"]);
    assert!(degraded(&url).await.contains("half a minute"));
    server.ask(&["CONFIG", "SET", "appendonly", "no"]);
    assert!(degraded(&url).await.contains("everything since its last snapshot"));
    server.ask(&["CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "allkeys-lru"]);
    assert!(refusal(&url).await.contains("maxmemory-policy noeviction"));
    server.ask(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    server.ask(&["REPLICAOF", "127.0.0.1", "1"]);
    assert!(refusal(&url).await.contains("name the primary"));
    let cluster = TempDir::new().unwrap();
    let cluster = Server::start(cluster.path(), &[("cluster-enabled", "yes")]);
    assert!(refusal(&cluster.prefix()).await.contains("part of a cluster"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_waits_for_replicas_if_that_is_asked_for() {
    let (home, other) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let server = Server::start(home.path(), &[]);
    let mut replica = Server::start(other.path(), &[]);
    replica.ask(&["REPLICAOF", "127.0.0.1", &server.port().to_string()]);
    let url = format!("{}&wait=1", server.prefix());
    let store = RedisStore::open(&url, Options::default()).await.unwrap();
    let accepted = async {
        // Until the replica has caught up, nothing is acknowledged.
        while store.configure(q(), QueuePolicy::default(), Actor::new("test", "test")).await.is_err() {}
    };
    tokio::time::timeout(PATIENCE, accepted).await.expect("the replica catches up");
    store.enqueue(vec![message(10)]).await.unwrap().remove(0).unwrap();
    replica.kill();
    let unsure = message(10);
    let id = unsure.id;
    let told = store.enqueue(vec![unsure]).await.unwrap_err();
    assert!(told.to_string().contains("not confirmed by 1 replicas"), "{told}");
    assert!(store.message(id).await.is_ok(), "it is on the primary");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rights_in_the_documentation_are_enough_and_fewer_are_refused() {
    let documented = include_str!("../../../../docs/redis.md");
    assert!(
        documented.contains(&redrive_store::redis::acl("redrive", "redrive")),
        "the line in docs/redis.md is another"
    );
    let home = TempDir::new().unwrap();
    let server = Server::start(home.path(), &[]);
    let url = format!("{}?prefix=redrive", server.url());
    // A user who may do everything loads the functions.
    drop(open(&url).await);
    let line = redrive_store::redis::acl("redrive", "redrive").replace("PASSWORD", "secret");
    assert_eq!(server.ask(&line.split(' ').collect::<Vec<_>>()), "OK");
    let own = url.replace("redis://", "redis://redrive:secret@");
    let store = open(&own).await;
    let id = store.enqueue(vec![message(10)]).await.unwrap().remove(0).unwrap().id;
    let delivery = store.lease(lease(1)).await.unwrap().remove(0);
    let failure = Box::new(FailureReport { permanent: true, ..FailureReport::default() }.analyse());
    let fail = Settlement { token: delivery.token, what: Settle::Fail { failure, policy_override: None } };
    store.settle(vec![fail]).await.unwrap().remove(0).unwrap();
    assert!(store.letter(id).await.is_ok());
    assert_sound(&store).await;
    drop(store);
    assert!(
        refusal(&own.replace("prefix=redrive", "prefix=other")).await.contains("the rights in docs/redis.md")
    );
    server.ask(&["ACL", "SETUSER", "redrive", "-zrem"]);
    let refused = refusal(&own).await;
    assert!(refused.contains("may not run ZREM"), "{refused}");
    server.ask(&["ACL", "SETUSER", "redrive", "+zrem"]);
    server.ask(&["FUNCTION", "FLUSH"]);
    let refused = refusal(&own).await;
    assert!(refused.contains("may not load functions"), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_is_whole_or_absent_wherever_the_file_of_the_server_ends() {
    let home = TempDir::new().unwrap();
    let mut server = Server::start(home.path(), &[]);
    let url = server.prefix();
    let file = server.append_only_file();
    let first = open(&url).await.enqueue(vec![message(10)]).await.unwrap().remove(0).unwrap().id;
    let before = std::fs::metadata(&file).unwrap().len();
    let store = open(&url).await;
    let second = store.enqueue(vec![message(10)]).await.unwrap().remove(0).unwrap().id;
    let delivery = store.lease(lease(1)).await.unwrap().remove(0);
    let failure = Box::new(FailureReport { permanent: true, ..FailureReport::default() }.analyse());
    let fail = Settlement { token: delivery.token, what: Settle::Fail { failure, policy_override: None } };
    store.settle(vec![fail]).await.unwrap().remove(0).unwrap();
    drop(store);
    server.kill();
    let whole = std::fs::read(&file).unwrap();
    let (mut with, mut without) = (0, 0);
    for end in (usize::try_from(before).unwrap()..whole.len()).step_by(131) {
        std::fs::write(&file, &whole[..end]).unwrap();
        server.resume();
        let store = take_over(&server, &url).await;
        let buried = store.letter(first).await.is_ok();
        assert_ne!(store.message(first).await.is_ok(), buried, "at {end} of {}", whole.len());
        let there = store.message(second).await.is_ok();
        assert!(there || !buried, "the later commit is there and the earlier one is not, at {end}");
        if there {
            with += 1
        } else {
            without += 1
        }
        assert_sound(&store).await;
        drop(store);
        server.kill();
    }
    assert!(with > 0 && without > 0, "{with} with, {without} without");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_notices_that_the_server_lost_what_was_acknowledged() {
    let home = TempDir::new().unwrap();
    let mut server = Server::start(home.path(), &[]);
    let url = server.prefix();
    let store = open(&url).await;
    let file = server.append_only_file();
    let before = std::fs::metadata(&file).unwrap().len();
    store.enqueue(vec![message(10)]).await.unwrap().remove(0).unwrap();
    server.kill();
    let whole = std::fs::read(&file).unwrap();
    std::fs::write(&file, &whole[..usize::try_from(before).unwrap() + 20]).unwrap();
    server.resume();
    let refused = store.enqueue(vec![message(10)]).await.unwrap_err();
    assert!(refused.to_string().contains("went back"), "{refused}");
    assert!(store.info().await.unwrap().degraded.iter().any(|why| why.contains("went back")));
}
