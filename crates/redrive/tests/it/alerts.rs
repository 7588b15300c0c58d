//! Alerts from a real store to real receivers: once, over restarts, crashes and second processes, and late rather than
//! never.

use crate::push::{Receiver, assert_signed, secret};
use crate::support::{
    StoppedClock, configure, eager, enqueue, eventually, memory_on, message, queue, runtime_clock,
};
use redrive::alerts::{AlertLoop, test_channel};
use redrive::core::alert::{
    AlertRecord, AlertSettings, AlertState, NoticeStatus, QUEUE, Rule, STATE_KEY, Silence, kv,
};
use redrive::core::ids::GroupId;
use redrive::core::store::Store;
use redrive::core::time::Span;
use redrive::{CancellationToken, Heartbeat, Outcome, Runnable as _, Worker};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;

/// Settings with one channel, which look all the time, and only for new groups: how slow or full this machine is must
/// not decide.
fn settings(channel: &Value) -> AlertSettings {
    let off = |rule: &&Rule| **rule != Rule::NewGroup;
    let rules: serde_json::Map<String, Value> =
        Rule::ALL.iter().filter(off).map(|rule| (rule.to_string(), json!({"enabled": false}))).collect();
    serde_json::from_value(json!({"every": "5ms", "channels": {"ops": channel}, "rules": rules})).unwrap()
}

fn webhook(receiver: &Receiver) -> AlertSettings {
    let (secret, _) = secret();
    settings(&json!({"type": "webhook", "url": receiver.url(), "secret": secret, "allow_private": true}))
}

/// One message of this queue dies of this error.
async fn die(store: &Arc<dyn Store>, name: &str, error: &str) {
    configure(store, name, eager(1)).await;
    enqueue(store, vec![message(name, "charge", "{\"card\": \"4111 1111 1111 1111\"}")]).await;
    let error = error.to_owned();
    let worker = Worker::builder(store.clone())
        .queue(name)
        .fallback(move |_: redrive::Context| {
            let error = error.clone();
            async move { Outcome::dead_letter(error) }
        })
        .until_empty();
    assert_eq!(worker.build().unwrap().run().await.unwrap().dead, 1);
}

/// The loop of a process, until it is ended.
struct Process {
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Process {
    fn begin(store: &Arc<dyn Store>, settings: &AlertSettings) -> Self {
        let alerts =
            AlertLoop::new(store.clone(), settings.clone()).unwrap().links("https://redrive.example");
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move { alerts.run(stopped, Heartbeat::default()).await.unwrap() });
        Self { stop, task }
    }

    async fn end(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

/// Whether everything that was enqueued for a channel has arrived.
async fn all_sent(store: &Arc<dyn Store>, notices: i64) -> bool {
    let counts = queue(store, QUEUE).await.counts;
    counts.enqueued == notices && counts.done == notices
}

fn notice(body: &[u8]) -> Value {
    serde_json::from_slice::<Value>(body).unwrap()["data"].clone()
}

#[tokio::test]
async fn a_new_group_reaches_a_webhook_once_over_a_restart() {
    let receiver = Receiver::new(|_| 200).await;
    let settings = webhook(&receiver);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("data");
    let options = redrive::OpenOptions::default();
    let store = redrive::open(&path, options).await.unwrap();
    let watch = AlertLoop::new(store.clone(), settings.clone()).unwrap();
    assert_eq!(watch.check().await.unwrap(), 0, "nothing is wrong yet");

    die(&store, "payments", "card 17 was refused").await;
    let process = Process::begin(&store, &settings);
    eventually("the alert arrives", async || !receiver.all().is_empty()).await;
    // The same cause again is the same group.
    die(&store, "payments", "card 18 was refused").await;
    eventually("it is done", async || all_sent(&store, 1).await).await;
    process.end().await;
    drop((watch, store));

    let store = redrive::open(&path, options).await.unwrap();
    let process = Process::begin(&store, &settings);
    die(&store, "payments", "card 19 was refused").await;
    let watch = AlertLoop::new(store.clone(), settings).unwrap();
    for _ in 0..20 {
        assert_eq!(watch.check().await.unwrap(), 0, "nobody is told twice");
    }
    process.end().await;
    let all = receiver.all();
    assert_eq!(all.len(), 1);
    assert_signed(&all[0], &secret().1);
    let told = notice(&all[0].body);
    assert_eq!((&told["rule"], &told["status"]), (&"new_group".into(), &"firing".into()));
    let group: GroupId = told["subject"].as_str().unwrap().parse().unwrap();
    assert_eq!(told["link"], format!("https://redrive.example/groups/{group}"));
    assert_eq!(store.group(group).await.unwrap().total, 3);
    let text = String::from_utf8(all[0].body.clone()).unwrap();
    assert!(text.contains("was refused") && !text.contains("4111"), "no payload: {text}");
}

#[tokio::test]
async fn a_receiver_that_fails_for_a_minute_gets_the_alert_later() {
    let works = Arc::new(AtomicBool::new(false));
    let answers = Arc::clone(&works);
    let receiver = Receiver::new(move |_| if answers.load(Ordering::SeqCst) { 200 } else { 503 }).await;
    let settings = webhook(&receiver);
    let store = memory_on(&runtime_clock());
    let watch = AlertLoop::new(store.clone(), settings.clone()).unwrap();
    watch.check().await.unwrap();
    die(&store, "payments", "the bank is down").await;
    assert_eq!(watch.check().await.unwrap(), 1);

    let clock = StoppedClock::new();
    let worker = watch.worker().unwrap();
    let handle = worker.handle();
    let working = tokio::spawn(async move { worker.run().await.unwrap() });
    clock.eventually("the first attempt fails", async || handle.counts().retried == 1).await;
    for _ in 0..60 {
        clock.advance(Duration::from_secs(1)).await;
    }
    assert_eq!(handle.counts().done, 0);
    works.store(true, Ordering::SeqCst);
    let begun = receiver.all().len();
    clock
        .eventually("the alert arrives", async || {
            clock.advance(Duration::from_secs(5)).await;
            handle.counts().done == 1
        })
        .await;
    handle.stop();
    working.await.unwrap();
    let all = receiver.all();
    assert_eq!(all.len(), begun + 1);
    let ids: std::collections::BTreeSet<_> =
        all.iter().map(|request| &request.headers["webhook-id"]).collect();
    assert_eq!(ids.len(), 1, "a receiver recognises an alert that it gets again");
}

#[tokio::test]
async fn a_crash_between_deciding_and_sending_neither_loses_nor_doubles() {
    let receiver = Receiver::new(|_| 200).await;
    let settings = webhook(&receiver);
    let store = redrive::memory();
    let watch = AlertLoop::new(store.clone(), settings.clone()).unwrap();
    watch.check().await.unwrap();
    die(&store, "payments", "out of money").await;
    assert_eq!(watch.check().await.unwrap(), 1);
    let enqueued = async || queue(&store, QUEUE).await.counts.enqueued;
    assert_eq!(enqueued().await, 1);

    // A crash after the message was enqueued and before the outbox was emptied.
    let (mut state, version) = kv::read::<AlertState>(&*store, STATE_KEY).await.unwrap();
    assert!(state.outbox.is_empty());
    let mut told = None;
    let lease = redrive::core::store::LeaseRequest {
        queues: vec![QUEUE.parse().unwrap()],
        max: 1,
        lease_for: None,
        worker: "test".into(),
        version: None,
        host: None,
    };
    for delivery in store.lease(lease).await.unwrap() {
        told = Some(serde_json::from_slice(&delivery.message.envelope.payload.bytes).unwrap());
    }
    let told: redrive::core::alert::Notice = told.unwrap();
    state.outbox = vec![told.clone()];
    kv::write(&*store, STATE_KEY, &state, version).await.unwrap().unwrap();
    assert_eq!(AlertLoop::new(store.clone(), settings.clone()).unwrap().check().await.unwrap(), 0);
    assert_eq!(enqueued().await, 1, "the same message");

    // A crash after the decision was written and before anything was enqueued.
    let (mut state, version) = kv::read::<AlertState>(&*store, STATE_KEY).await.unwrap();
    state.outbox = vec![redrive::core::alert::Notice { number: 99, subject: "another".into(), ..told }];
    kv::write(&*store, STATE_KEY, &state, version).await.unwrap().unwrap();
    watch.check().await.unwrap();
    assert_eq!(enqueued().await, 2, "it is sent after all");
}

#[tokio::test]
async fn two_processes_tell_an_alert_once() {
    let receiver = Receiver::new(|_| 200).await;
    let settings = webhook(&receiver);
    let store = redrive::memory();
    let watches: Vec<AlertLoop> =
        (0..4).map(|_| AlertLoop::new(store.clone(), settings.clone()).unwrap()).collect();
    watches[0].check().await.unwrap();
    let errors =
        ["no such table", "disk quota exceeded", "certificate has expired", "broken pipe", "bad gateway"];
    for (n, error) in errors.iter().enumerate() {
        die(&store, "payments", error).await;
        let (a, b, c, d) =
            tokio::join!(watches[0].check(), watches[1].check(), watches[2].check(), watches[3].check());
        let told: usize = [a, b, c, d].into_iter().map(|told| told.unwrap()).sum();
        assert_eq!(told, 1, "{error}");
        assert_eq!(queue(&store, QUEUE).await.counts.enqueued, i64::try_from(n).unwrap() + 1);
    }
}

#[tokio::test]
async fn an_alert_ends_and_a_silence_is_kept() {
    let settings: AlertSettings = serde_json::from_value(json!({
        "channels": {"log": {"type": "log"}},
        "rules": {"depth": {"limit": 2, "clear_after": "0s"}, "growth": {"enabled": false},
                  "new_group": {"enabled": false}, "disk": {"enabled": false},
                  "slow_enqueue": {"enabled": false}, "dead_letter_rate": {"enabled": false}},
    }))
    .unwrap();
    let store = redrive::memory();
    let watch = AlertLoop::new(store.clone(), settings).unwrap();
    die(&store, "payments", "e").await;
    assert_eq!(watch.check().await.unwrap(), 0);
    let by = "ada".to_owned();
    let now = store.info().await.unwrap().now;
    let silence = Silence::of("payments", Span::from_hours(1), by, Some("deploy".into()), now).unwrap();
    let actor = || redrive::core::dead_letter::Actor::new("ada", "test");
    kv::silence(&*store, &silence, actor()).await.unwrap();
    die(&store, "payments", "e").await;
    assert_eq!(watch.check().await.unwrap(), 0, "it is silenced");
    let AlertRecord { active, channels, told, rules } = kv::record(&*store).await.unwrap();
    assert_eq!((active[0].rule, active[0].told, channels[0].name.as_str()), (Rule::Depth, None, "log"));
    assert!(told.is_empty());
    let used =
        |rule: Rule| rules.iter().find(|view| view.rule == rule && view.enabled).map(|view| view.limit);
    assert_eq!((used(Rule::Depth), used(Rule::Growth)), (Some(2.0), None), "only those that are used");
    assert!(kv::unsilence(&*store, "payments", actor()).await.unwrap());
    assert!(!kv::unsilence(&*store, "payments", actor()).await.unwrap());
    assert_eq!(watch.check().await.unwrap(), 1);
    for letter in crate::support::letters(&store).await {
        let act = redrive::core::dead_letter::ActRequest {
            id: letter.id(),
            act: redrive::core::dead_letter::Act::Resolve,
            actor: redrive::core::dead_letter::Actor::new("ada", "test"),
            expected_version: None,
        };
        store.act(vec![act]).await.unwrap().remove(0).unwrap();
    }
    assert_eq!(watch.check().await.unwrap(), 1, "it is over");
    let AlertRecord { active, told, .. } = kv::record(&*store).await.unwrap();
    assert!(active.is_empty());
    let told: Vec<_> = told.iter().map(|notice| (notice.rule, notice.status)).collect();
    assert_eq!(told, [(Rule::Depth, NoticeStatus::Firing), (Rule::Depth, NoticeStatus::Cleared)]);
    let worker = watch.worker().unwrap();
    let handle = worker.handle();
    let working = tokio::spawn(async move { worker.run().await.unwrap() });
    eventually("both are logged", async || all_sent(&store, 2).await).await;
    handle.stop();
    working.await.unwrap();
}

#[tokio::test]
async fn a_channel_that_is_gone_or_misconfigured_makes_its_alerts_die_visibly() {
    let store = redrive::memory();
    let receiver = Receiver::new(|_| 200).await;
    let before = AlertLoop::new(store.clone(), webhook(&receiver)).unwrap();
    before.check().await.unwrap();
    die(&store, "payments", "e").await;
    assert_eq!(before.check().await.unwrap(), 1);
    let other: AlertSettings = serde_json::from_value(
        json!({"channels": {"pager": {"type": "pagerduty", "routing_key": "${env.NO_SUCH_KEY}"},
            "slack": {"type": "slack", "url": "${env.NO_SUCH_URL}"}}}),
    )
    .unwrap();
    let after = AlertLoop::new(store.clone(), other.clone()).unwrap();
    assert!(after.degraded()[0].contains("NO_SUCH_URL"), "{:?}", after.degraded());
    let worker = after.worker().unwrap();
    let handle = worker.handle();
    let working = tokio::spawn(async move { worker.run().await.unwrap() });
    eventually("the alert is dead", async || handle.counts().dead == 1).await;
    handle.stop();
    working.await.unwrap();
    let letters = crate::support::letters(&store).await;
    let dead = letters.iter().find(|letter| letter.message.envelope.queue.as_str() == QUEUE).unwrap();
    assert_eq!(dead.error.error_type, "NoSuchChannel");
    let error = test_channel(&other, "pager", "ada", None).await.unwrap_err();
    assert!(error.contains("NO_SUCH_KEY"), "{error}");
    let error = test_channel(&other, "slak", "ada", None).await.unwrap_err();
    assert!(error.contains("did you mean `slack`?"), "{error}");
}

#[tokio::test]
async fn a_test_goes_to_its_channel_at_once_and_says_so() {
    let receiver = Receiver::new(|nth| if nth == 0 { 200 } else { 404 }).await;
    let settings = webhook(&receiver);
    test_channel(&settings, "ops", "ada", None).await.unwrap();
    let told = notice(&receiver.all()[0].body);
    assert_eq!((&told["status"], told["number"].as_u64()), (&json!(NoticeStatus::Test), Some(0)));
    let error = test_channel(&settings, "ops", "ada", None).await.unwrap_err();
    assert!(error.contains("404"), "{error}");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("alert.json");
    let argv = json!(["cp", "/dev/stdin", file.to_str().unwrap()]);
    let settings = self::settings(&json!({"type": "command", "argv": argv}));
    test_channel(&settings, "ops", "ada", None).await.unwrap();
    assert_eq!(notice(&std::fs::read(file).unwrap())["status"], "test");
}

/// A mail server that takes one mail and returns it.
async fn mail_server() -> (u16, tokio::task::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let taken = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = BufReader::new(stream);
        let (mut mail, mut in_data) = (String::new(), false);
        stream.write_all(b"220 mx ESMTP\r\n").await.unwrap();
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await.unwrap() == 0 {
                return mail;
            }
            mail.push_str(&line);
            let reply = match (in_data, line.trim_end()) {
                (true, ".") => {
                    in_data = false;
                    "250 taken"
                }
                (true, _) => continue,
                (false, "DATA") => {
                    in_data = true;
                    "354 go on"
                }
                (false, "QUIT") => "221 bye",
                (false, _) => "250 ok",
            };
            stream.write_all(format!("{reply}\r\n").as_bytes()).await.unwrap();
        }
    });
    (port, taken)
}

#[tokio::test]
async fn an_alert_is_mailed() {
    let (port, taken) = mail_server().await;
    let email = json!({"type": "email", "server": "127.0.0.1", "port": port, "encryption": "none",
        "from": "Redrive <redrive@example.com>", "to": ["ops@example.com", "ada@example.com"]});
    let settings = settings(&email);
    let sent = test_channel(&settings, "ops", "ada", Some("https://redrive.example/".into())).await;
    if cfg!(feature = "smtp") {
        sent.unwrap();
        // The connection is kept for the next mail and ends with the channel.
        let mail = taken.await.unwrap().replace("\r\n ", " ");
        for part in [
            "MAIL FROM:<redrive@example.com>",
            "RCPT TO:<ops@example.com>",
            "RCPT TO:<ada@example.com>",
            "Subject: [test] ada tests the channel ops; nothing is wrong",
            "@redrive>",
            "https://redrive.example/",
        ] {
            assert!(mail.contains(part), "{part} is not in {mail}");
        }
    } else {
        assert!(sent.unwrap_err().contains("--features smtp"));
        taken.abort();
    }
}
