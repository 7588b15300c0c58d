//! The chores: what each does, that several nodes do it once, and that an outage does not end them.

use crate::loops_kit::{
    PATIENCE, all_letters, bury, dead, me, memory, message, name, send, status, take, until,
};
use async_trait::async_trait;
use redrive::core::auto_redrive::AutoRedrive;
use redrive::core::dead_letter::{Act, ActRequest, Actor, Status};
use redrive::core::error::{CallError, StoreError, StoreErrorKind};
use redrive::core::ids::OperationId;
use redrive::core::operation::{Control, OperationSpec, Rollout, Stage};
use redrive::core::policy::QueuePolicy;
use redrive::core::query::PageRequest;
use redrive::core::store::{LeaseRequest, Settle, Settlement, Store};
use redrive::core::time::Span;
use redrive::maintenance::{
    AutoRedriveLetters, Chore, Maintenance, PassReport, Reap, ResumeOperations, TrimAudit,
};
use redrive::{Heartbeat, Runnable as _};
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

const MS: Span = Span::from_millis(1);

async fn rules(store: &dyn Store, policy: QueuePolicy) {
    store.configure(name("q"), policy, me()).await.expect("rules");
}

/// Runs the loop until it is so.
async fn while_running<F: Future<Output = ()>>(maintenance: Maintenance, so: F) {
    let stop = CancellationToken::new();
    let token = stop.clone();
    let running = tokio::spawn(async move { maintenance.run(token, Heartbeat::default()).await });
    so.await;
    stop.cancel();
    tokio::time::timeout(PATIENCE, running).await.expect("it ends").expect("no panic").expect("well");
}

#[tokio::test(start_paused = true)]
async fn leases_quarantines_and_retention_are_seen_to_where_nobody_leases() {
    let store = memory();
    rules(&*store, QueuePolicy { retention: MS, ..QueuePolicy::default() }).await;
    for n in 0..3 {
        send(&*store, message("q", &json!(n))).await;
    }
    let closed = bury(&*store, "q", "Broken").await;
    let act = |id, act| ActRequest { id, act, actor: me(), expected_version: None };
    store.act(vec![act(closed, Act::Resolve)]).await.unwrap();
    let quarantined = bury(&*store, "q", "Broken").await;
    let until_soon = store.info().await.unwrap().now.plus(MS);
    store.act(vec![act(quarantined, Act::Quarantine { until: until_soon })]).await.unwrap();
    let short = Some(Span::from_millis(100));
    let request = LeaseRequest {
        queues: vec![name("q")],
        max: 1,
        lease_for: short,
        worker: "gone".into(),
        ..LeaseRequest::default()
    };
    let lost = store.lease(request).await.unwrap().pop().unwrap().message.envelope.id;
    let maintenance = Maintenance::bare(Arc::clone(&store)).chore(Reap { every: MS, page: 1 });
    while_running(maintenance, async {
        until("the lease is lost", || async { store.message(lost).await.unwrap().failed == 1 }).await;
        until("a person is asked", || async { status(&*store, quarantined).await == Status::Review }).await;
        until("retention", || async { store.letter(closed).await.is_err() }).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_pass_is_bounded_and_says_that_there_is_more() {
    let store = memory();
    rules(&*store, QueuePolicy { retention: MS, ..QueuePolicy::default() }).await;
    for n in 0..5 {
        let id = dead(&*store, "q", &json!(n)).await;
        store
            .act(vec![ActRequest { id, act: Act::Abandon, actor: me(), expected_version: None }])
            .await
            .unwrap();
    }
    let reap = Reap { every: MS, page: 2 };
    until("they are old", || async { all_letters(&*store).await.is_empty() }).await;
    assert_eq!(reap.pass(&*store).await.unwrap(), PassReport { changed: 2, more: true });
    assert_eq!(reap.pass(&*store).await.unwrap(), PassReport { changed: 2, more: true });
    assert_eq!(reap.pass(&*store).await.unwrap(), PassReport { changed: 1, more: false });
    assert_eq!(reap.pass(&*store).await.unwrap(), PassReport::default());
}

#[tokio::test(start_paused = true)]
async fn dead_letters_go_back_by_themselves_a_few_times() {
    let store = memory();
    let auto = Some(AutoRedrive { limit: 2, backoff: MS });
    rules(&*store, QueuePolicy { auto_redrive: auto, ..QueuePolicy::default() }).await;
    let id = dead(&*store, "q", &json!(1)).await;
    let other = dead(&*store, "manual", &json!(1)).await;
    let hopeless = dead(&*store, "q", &json!(2)).await;
    store
        .act(vec![ActRequest { id: hopeless, act: Act::Review, actor: me(), expected_version: None }])
        .await
        .unwrap();
    let every = AutoRedriveLetters { every: MS };
    let maintenance = Maintenance::bare(Arc::clone(&store)).chore(every);
    while_running(maintenance, async {
        for generation in 2..=3 {
            until("it is back", || async { status(&*store, id).await == Status::Retrying }).await;
            assert_eq!(store.message(id).await.unwrap().generation, generation);
            bury(&*store, "q", "Broken").await;
        }
    })
    .await;
    until("the wait is over", || async {
        let now = store.info().await.unwrap().now;
        now.since(store.letter(id).await.unwrap().record.dead_at) > Span::from_millis(20)
    })
    .await;
    assert_eq!(every.pass(&*store).await.unwrap(), PassReport::default(), "twice is enough");
    let letter = store.letter(id).await.unwrap().record;
    assert_eq!((letter.status, letter.redrives), (Status::Pending, 2));
    assert_eq!(letter.notes[0].text, "automatic redrive 1 of 2");
    assert_eq!(
        (status(&*store, other).await, status(&*store, hopeless).await),
        (Status::Pending, Status::Review)
    );
}

#[tokio::test(start_paused = true)]
async fn several_nodes_send_a_letter_back_once() {
    let store = memory();
    let auto = Some(AutoRedrive { limit: 10, backoff: MS });
    rules(&*store, QueuePolicy { auto_redrive: auto, ..QueuePolicy::default() }).await;
    let mut last = None;
    for n in 0..20 {
        last = Some(dead(&*store, "q", &json!(n)).await);
    }
    let last = store.letter(last.unwrap()).await.unwrap().record.dead_at;
    until("they are due", || async { store.info().await.unwrap().now > last.plus(MS) }).await;
    let chore = AutoRedriveLetters::default();
    let nodes = tokio::join!(chore.pass(&*store), chore.pass(&*store), chore.pass(&*store));
    let sent = nodes.0.unwrap().changed + nodes.1.unwrap().changed + nodes.2.unwrap().changed;
    assert_eq!(sent, 20);
    assert_eq!(store.queue(name("q")).await.unwrap().ready, 20);
}

#[tokio::test(start_paused = true)]
async fn the_audit_trail_is_trimmed_when_asked_for() {
    let store = memory();
    for max_attempts in 1..=3 {
        rules(&*store, QueuePolicy { max_attempts, ..QueuePolicy::default() }).await;
    }
    let newest = store.audit(PageRequest::default()).await.unwrap().items[0].entry.at;
    until("time passes", || async { store.info().await.unwrap().now > newest }).await;
    assert_eq!(TrimAudit::keeping(Span::from_days(1)).pass(&*store).await.unwrap(), PassReport::default());
    assert_eq!(
        TrimAudit::keeping(Span::ZERO).pass(&*store).await.unwrap(),
        PassReport { changed: 3, more: false }
    );
    let report = store.audit_verify(None).await.unwrap();
    assert_eq!((report.rows, report.trimmed, report.broken), (1, 3, None));
}

#[tokio::test(start_paused = true)]
async fn operations_that_nobody_moves_are_gone_on_with_and_paused_ones_are_not() {
    let store = memory();
    for n in 0..3 {
        dead(&*store, "q", &json!(n)).await;
    }
    let begin = async |rollout: Rollout| {
        let id = OperationId::new(redrive::new_id());
        let spec = OperationSpec::new(id, Act::retry(), "queue:q".parse().unwrap(), Actor::new("x", "cli"));
        store.start(OperationSpec { rollout, ..spec }).await.unwrap().id
    };
    let paused = begin(Rollout::default()).await;
    store.control(paused, Control::Pause, Actor::new("x", "cli")).await.unwrap();
    let left = begin(Rollout { in_flight: Some(1), ..Rollout::default() }).await;
    let chore = ResumeOperations::every(MS);
    assert_eq!(chore.pass(&*store).await.unwrap().changed, 0, "first it only looks");
    store.step(left).await.unwrap();
    assert_eq!(chore.pass(&*store).await.unwrap().changed, 0, "somebody moves it");
    let done = chore.pass(&*store).await.unwrap();
    assert!(done.changed > 0 && done.more, "nobody does, and there is more to send");
    let at = async |id| store.operation(id).await.unwrap();
    assert_eq!((at(left).await.outcomes.running, at(paused).await.stage), (1, Stage::Paused));
    for _ in 0..3 {
        let taken = take(&*store, "q").await;
        assert_eq!(taken.message.generation, 2);
        let ack = Settlement { token: taken.token, what: Settle::Ack };
        store.settle(vec![ack]).await.unwrap().remove(0).unwrap();
        chore.pass(&*store).await.unwrap();
    }
    assert_eq!((at(left).await.stage, at(left).await.outcomes.succeeded), (Stage::Done, 3));
    assert_eq!(at(paused).await.stage, Stage::Paused, "a person paused it, a person resumes it");
}

/// A chore whose store is away for a while.
struct Unlucky {
    left: AtomicUsize,
    done: Arc<Notify>,
}

#[async_trait]
impl Chore for Unlucky {
    fn name(&self) -> &'static str {
        "unlucky"
    }

    fn every(&self) -> Span {
        MS
    }

    async fn pass(&self, _: &dyn Store) -> Result<PassReport, CallError> {
        let before = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        if before.is_ok() {
            return Err(StoreError::new(StoreErrorKind::Unreachable, "nobody answers").into());
        }
        self.done.notify_one();
        Ok(PassReport::default())
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_is_survived_and_a_store_that_stopped_ends_it() {
    let store = memory();
    let done = Arc::new(Notify::new());
    let unlucky = Unlucky { left: AtomicUsize::new(3), done: Arc::clone(&done) };
    let maintenance = Maintenance::bare(Arc::clone(&store)).chore(unlucky);
    while_running(maintenance, async {
        tokio::time::timeout(PATIENCE, done.notified()).await.expect("it goes on");
    })
    .await;
    struct Broken;
    #[async_trait]
    impl Chore for Broken {
        fn name(&self) -> &'static str {
            "broken"
        }
        fn every(&self) -> Span {
            MS
        }
        async fn pass(&self, _: &dyn Store) -> Result<PassReport, CallError> {
            Err(StoreError::new(StoreErrorKind::Stopped, "the disk is gone").into())
        }
    }
    let maintenance = Maintenance::new(store).chore(Broken);
    let run = maintenance.run(CancellationToken::new(), Heartbeat::default());
    let ended = tokio::time::timeout(PATIENCE, run).await.expect("it ends by itself");
    assert!(matches!(ended, Err(CallError::Store(error)) if error.kind == StoreErrorKind::Stopped));
}
