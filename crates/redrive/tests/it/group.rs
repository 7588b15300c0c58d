//! Loops as one program: health over a real socket, failures, the watchdog, signals, one shutdown.

use crate::loops_kit::{PATIENCE, dead, memory, until};
use async_trait::async_trait;
use redrive::core::error::{CallError, StoreError, StoreErrorKind};
use redrive::core::time::Span;
use redrive::maintenance::Maintenance;
use redrive::{
    BoundGroup, DeadLetterConsumer, GroupError, HealthStatus, Heartbeat, LoopGroup, LoopState, OnFailure,
    OnStuck, Runnable, discard,
};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

/// What a test loop does.
#[derive(Clone, Copy)]
enum How {
    /// Beats until it is told to stop.
    Well,
    /// Never beats and never ends.
    Stuck,
    /// Fails so often, then is well.
    Fails(usize),
    /// The same with a panic.
    Panics(usize),
    /// Ends by itself.
    Ends,
}

struct Looping {
    how: How,
    starts: Arc<AtomicUsize>,
    ends: Arc<AtomicUsize>,
}

impl Looping {
    fn new(how: How) -> Self {
        Self { how, starts: Arc::default(), ends: Arc::default() }
    }
}

fn broken() -> CallError {
    StoreError::new(StoreErrorKind::Stopped, "the disk is gone").into()
}

#[async_trait]
impl Runnable for Looping {
    fn name(&self) -> String {
        "looping".into()
    }

    async fn run(&self, stop: CancellationToken, heartbeat: Heartbeat) -> Result<(), CallError> {
        let start = self.starts.fetch_add(1, Ordering::Relaxed);
        match self.how {
            How::Ends => return Ok(()),
            How::Stuck => std::future::pending::<()>().await,
            How::Fails(times) if start < times => return Err(broken()),
            How::Panics(times) => assert!(start >= times, "a bug"),
            How::Fails(_) | How::Well => {}
        }
        let mut tick = tokio::time::interval(std::time::Duration::from_millis(5));
        while !stop.is_cancelled() {
            heartbeat.beat();
            tick.tick().await;
        }
        self.ends.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// One request as it goes over the wire, and the status and body of the answer.
async fn http(address: SocketAddr, request: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an HTTP answer");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    (status, body.to_owned())
}

async fn get(address: SocketAddr, path: &str) -> (u16, Value) {
    let (status, body) = http(address, &format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n")).await;
    (status, serde_json::from_str(&body).expect("json"))
}

fn start(group: BoundGroup) -> (CancellationToken, tokio::task::JoinHandle<Result<(), GroupError>>) {
    let stop = CancellationToken::new();
    let token = stop.clone();
    (stop, tokio::spawn(async move { group.until(token).await }))
}

async fn ended(run: tokio::task::JoinHandle<Result<(), GroupError>>) -> Result<(), GroupError> {
    tokio::time::timeout(PATIENCE, run).await.expect("it ends").expect("no panic")
}

#[tokio::test]
async fn a_well_group_is_live_and_ready_and_ends_together() {
    let store = memory();
    let well = Looping::new(How::Well);
    let ends = Arc::clone(&well.ends);
    let consumer =
        DeadLetterConsumer::builder(store.clone()).dlq("q-dlq").handler(discard("no")).build().unwrap();
    let group = LoopGroup::new(store.clone()).run(well).run(Maintenance::new(store.clone())).run(consumer);
    let group = group.health_port(0).bind().await.unwrap();
    let address = group.health_address().unwrap();
    assert!(address.ip().is_loopback());
    let health = group.health();
    let (stop, run) = start(group);
    until("all run", || async { health.live().loops.iter().all(|one| one.state == LoopState::Running) })
        .await;
    let (status, body) = get(address, "/health/live").await;
    assert_eq!((status, &body["status"]), (200, &json!("ok")));
    let (status, body) = get(address, "/health/ready").await;
    assert_eq!((status, &body["status"], &body["open_letters"]), (200, &json!("ok"), &json!(0)), "{body}");
    let names: Vec<_> =
        body["loops"].as_array().unwrap().iter().map(|l| l["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["looping", "maintenance", "dead-letter-consumer (q-dlq)"]);
    let (status, text) = http(address, "GET /metrics HTTP/1.1\r\n\r\n").await;
    assert_eq!(status, 200);
    assert!(text.contains("# TYPE redrive_dead_per_second gauge"), "{text}");
    stop.cancel();
    assert_eq!(ended(run).await, Ok(()));
    assert_eq!(ends.load(Ordering::Relaxed), 1);
    assert!(TcpStream::connect(address).await.is_err(), "the port is closed with the group");
}

#[tokio::test(start_paused = true)]
async fn many_open_letters_are_a_reason_and_not_a_failure() {
    let store = memory();
    for n in 0..3 {
        dead(&*store, "q", &json!(n)).await;
    }
    let group = LoopGroup::new(store).run(Looping::new(How::Well)).degraded_at(3).bind().await.unwrap();
    let report = group.health().ready().await;
    assert_eq!((report.status, report.open_letters), (HealthStatus::Degraded, Some(3)));
    assert!(report.reasons[0].contains("3 dead letters are open"));
}

#[tokio::test]
async fn the_port_answers_only_what_it_must() {
    let group = LoopGroup::new(memory()).run(Looping::new(How::Well)).health_port(0).bind().await.unwrap();
    let address = group.health_address().unwrap();
    let (stop, run) = start(group);
    let long = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(20_000));
    for (request, code) in [
        ("HEAD /health/live HTTP/1.1\r\n\r\n", 200),
        ("GET /health/live?x=1 HTTP/1.0\r\n\r\n", 200),
        ("POST /health/live HTTP/1.1\r\ncontent-length: 0\r\n\r\n", 405),
        ("GET /metrics/../secret HTTP/1.1\r\n\r\n", 404),
        ("GET http://evil/health/live HTTP/1.1\r\n\r\n", 400),
        ("GET /health/live\r\n\r\n", 400),
        ("\u{1}\u{2}\r\n\r\n", 400),
        (&long, 431),
    ] {
        let (status, body) = http(address, request).await;
        assert_eq!(status, code, "{request:?}");
        assert_eq!(body.is_empty(), request.starts_with("HEAD"), "{request:?}");
    }
    // Visitors who say nothing do not keep others out.
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    assert_eq!(get(address, "/health/live").await.0, 200);
    stop.cancel();
    assert_eq!(ended(run).await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_failed_loop_ends_all_of_them() {
    for how in [How::Fails(9), How::Panics(9)] {
        let well = Looping::new(How::Well);
        let ends = Arc::clone(&well.ends);
        let group = LoopGroup::new(memory()).run(well).run(Looping::new(how)).bind().await.unwrap();
        let (_stop, run) = start(group);
        match ended(run).await {
            Err(GroupError::Failed { name, .. }) => assert_eq!(name, "looping"),
            other => panic!("{other:?}"),
        }
        assert_eq!(ends.load(Ordering::Relaxed), 1, "the other was told to stop and did");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_loop_is_started_again_when_asked_for() {
    for how in [How::Fails(2), How::Panics(2)] {
        let flaky = Looping::new(how);
        let starts = Arc::clone(&flaky.starts);
        let group = LoopGroup::new(memory()).run(flaky).on_failure(OnFailure::Restart);
        let group = group.bind().await.unwrap();
        let health = group.health();
        let (stop, run) = start(group);
        until("it failed", || async { health.ready().await.status == HealthStatus::Failing }).await;
        until("it is well", || async { health.ready().await.status == HealthStatus::Ok }).await;
        assert_eq!((starts.load(Ordering::Relaxed), health.live().loops[0].restarts), (3, 2));
        stop.cancel();
        assert_eq!(ended(run).await, Ok(()));
    }
}

#[tokio::test]
async fn a_stuck_loop_is_reported_and_cut_off() {
    let group = LoopGroup::new(memory()).run(Looping::new(How::Stuck)).watchdog(Span::from_millis(50));
    let group = group.end_within(Span::from_millis(50)).health_port(0).bind().await.unwrap();
    let (health, address) = (group.health(), group.health_address().unwrap());
    let (stop, run) = start(group);
    until("it is noticed", || async { health.live().status == HealthStatus::Failing }).await;
    let (status, body) = get(address, "/health/live").await;
    assert_eq!(status, 503);
    assert!(body["reasons"][0].as_str().unwrap().contains("no sign of life"), "{body}");
    assert_eq!(get(address, "/health/ready").await.0, 503);
    assert!(!run.is_finished(), "reporting is all that was asked for");
    stop.cancel();
    assert_eq!(ended(run).await, Err(GroupError::Aborted { names: vec!["looping".into()] }));
}

#[tokio::test(start_paused = true)]
async fn a_stuck_loop_ends_the_run_when_asked_for() {
    let well = Looping::new(How::Well);
    let ends = Arc::clone(&well.ends);
    let group = LoopGroup::new(memory()).run(Looping::new(How::Stuck)).run(well);
    let group =
        group.watchdog(Span::from_millis(50)).on_stuck(OnStuck::Exit).end_within(Span::from_millis(500));
    let (_stop, run) = start(group.bind().await.unwrap());
    assert!(matches!(ended(run).await, Err(GroupError::Stuck { name, .. }) if name == "looping"));
    assert_eq!(ends.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn loops_that_end_by_themselves_end_the_group_when_all_have() {
    let group = LoopGroup::new(memory()).run(Looping::new(How::Ends)).run(Looping::new(How::Ends));
    let (_stop, run) = start(group.bind().await.unwrap());
    assert_eq!(ended(run).await, Ok(()));
}

#[tokio::test]
async fn a_port_that_is_taken_is_said_before_work_begins() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap();
    let group = LoopGroup::new(memory()).run(Looping::new(How::Well)).health_at(address);
    assert!(matches!(group.bind().await, Err(GroupError::Setup(why)) if why.contains("cannot be bound")));
}

#[tokio::test]
async fn a_signal_ends_all_loops() {
    let well = Looping::new(How::Well);
    let (starts, ends) = (Arc::clone(&well.starts), Arc::clone(&well.ends));
    let group = LoopGroup::new(memory()).run(well).bind().await.unwrap();
    let run = tokio::spawn(group.until_signalled());
    until("it runs", || async { starts.load(Ordering::Relaxed) == 1 }).await;
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM).unwrap();
    assert_eq!(ended(run).await, Ok(()));
    assert_eq!(ends.load(Ordering::Relaxed), 1);
}
