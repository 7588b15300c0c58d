//! Laws of the circuit breaker: an open one holds its messages without using an attempt, probes are counted over
//! all workers, and what comes too late says nothing.

use super::Stage;
use super::kit::{failed, failure, field, new, operator, q, refused, rules, secs};
use redrive_core::breaker::{BreakerKey, BreakerPolicy, BreakerState, BreakerView};
use redrive_core::failure::Route;
use redrive_core::ids::LeaseToken;
use redrive_core::message::{NewMessage, Payload};
use redrive_core::policy::QueuePolicy;
use redrive_core::store::Settle;

fn guarded(key: BreakerKey) -> QueuePolicy {
    QueuePolicy { breaker: Some(BreakerPolicy::new(key)), ..rules(100) }
}

fn of_kind(n: u64, kind: &str) -> NewMessage {
    NewMessage { kind: kind.into(), ..new(n, "q") }
}

impl Stage<'_> {
    async fn breaker(&self, key: &str) -> BreakerView {
        let all = self.store.breakers().await.expect("breakers answers");
        all.into_iter().find(|b| b.key == key).expect("there is such a breaker")
    }

    /// A queue guarded by kind with ten messages of `a` and two of `b`, whose `a` breaker has just opened.
    /// Five failed; the two tokens are of `a` messages still in a worker's hands.
    async fn opened(&self) -> Vec<LeaseToken> {
        self.set("q", guarded(BreakerKey::Kind)).await;
        for n in 1..=10 {
            self.send(of_kind(n, "a")).await;
        }
        let mut tokens: Vec<LeaseToken> = self.take("q", 7).await.iter().map(|d| d.token).collect();
        for token in tokens.drain(..5) {
            self.settle(token, failed("ConnectionError")).await.expect("held");
        }
        for n in 11..=12 {
            self.send(of_kind(n, "b")).await;
        }
        tokens
    }

    /// The same, half open: its time is over.
    async fn half_open(&self) {
        for token in self.opened().await {
            self.settle(token, Settle::Release).await.expect("held");
        }
        for b in self.take("q", 9).await {
            self.settle(b.token, Settle::Ack).await.expect("held");
        }
        self.clock.advance(secs(30));
    }
}

pub(super) async fn i28_an_open_breaker_holds_without_using_attempts(stage: &Stage<'_>) {
    let out = stage.opened().await;
    let shown = stage.breaker("a").await;
    let until = stage.now().plus(secs(30));
    assert_eq!((shown.state, shown.until, shown.held), (BreakerState::Open, Some(until), 8));
    assert_eq!((shown.since, shown.forced), (stage.now(), false));
    let other: Vec<String> = stage.take("q", 9).await.into_iter().map(|d| d.message.envelope.kind).collect();
    assert_eq!(other, ["b", "b"], "another key is not touched");
    stage.clock.advance(secs(29));
    assert!(stage.take("q", 9).await.is_empty(), "retries that are due are held too");
    for n in 8..=10 {
        let held = stage.message(of_kind(n, "a").id).await;
        assert_eq!((held.attempts, held.deliveries, held.failed), (0, 0, 0), "message {n}");
    }
    // What was out when it opened comes back and changes nothing about the breaker.
    for token in out {
        stage.settle(token, failed("ConnectionError")).await.expect("held");
    }
    let now = stage.breaker("a").await;
    assert_eq!((now.state, now.until, now.events.len()), (BreakerState::Open, Some(until), 1));
}

pub(super) async fn i28_k_probes_in_total_over_all_workers(stage: &Stage<'_>) {
    stage.half_open().await;
    let probes = stage.take_as("x", "q", 2).await;
    let more = stage.take_as("y", "q", 9).await;
    assert_eq!((probes.len(), more.len()), (2, 1));
    assert!(stage.take_as("z", "q", 9).await.is_empty());
    assert_eq!(stage.breaker("a").await.state, BreakerState::HalfOpen);
    stage.settle(probes[0].token, Settle::Ack).await.expect("held");
    assert!(stage.take_as("z", "q", 9).await.is_empty(), "one success of two");
    stage.settle(more[0].token, Settle::Ack).await.expect("held");
    let closed = stage.breaker("a").await;
    assert_eq!((closed.state, closed.results, closed.failures_in_a_row), (BreakerState::Closed, 0, 0));
    // The third probe began before it closed: its failure is of another time.
    stage.settle(probes[1].token, failed("ConnectionError")).await.expect("held");
    assert_eq!(stage.breaker("a").await.results, 0);
    assert_eq!(stage.take_as("z", "q", 9).await.len(), 7);
}

pub(super) async fn i28_a_failed_probe_reopens_for_twice_as_long(stage: &Stage<'_>) {
    stage.half_open().await;
    for seconds in [60, 120, 240, 300, 300] {
        let probe = stage.take("q", 1).await.remove(0);
        stage.settle(probe.token, failed("ConnectionError")).await.expect("held");
        let until = stage.now().plus(secs(seconds));
        assert_eq!(stage.breaker("a").await.until, Some(until), "{seconds}");
        stage.clock.advance(secs(seconds - 1));
        assert!(stage.take("q", 9).await.is_empty());
        stage.clock.advance(secs(1));
    }
    for probe in stage.take("q", 2).await {
        stage.settle(probe.token, Settle::Ack).await.expect("held");
    }
    assert_eq!(stage.breaker("a").await.state, BreakerState::Closed);
}

pub(super) async fn i28_a_released_probe_gives_its_place_back_and_a_lost_one_reopens(stage: &Stage<'_>) {
    stage.half_open().await;
    let probes = stage.take("q", 9).await;
    assert_eq!(probes.len(), 3);
    stage.settle(probes[0].token, Settle::Release).await.expect("held");
    let again = stage.take_as("x", "q", 9).await;
    assert_eq!(again.len(), 1, "one place is free again");
    let mut broken = failure("DecodeError");
    broken.route = Route::Corruption;
    let what = Settle::Fail { failure: Box::new(broken), said: None };
    stage.settle(again[0].token, what).await.expect("held");
    assert_eq!(stage.breaker("a").await.state, BreakerState::HalfOpen, "corruption says nothing");
    stage.clock.advance(secs(30));
    stage.store.reap(100).await.expect("reap answers");
    assert_eq!(stage.breaker("a").await.state, BreakerState::Open, "the others never came back");
}

pub(super) async fn i28_more_than_half_of_the_window_opens_it(stage: &Stage<'_>) {
    stage.set("q", guarded(BreakerKey::Queue)).await;
    for n in 1..=30 {
        stage.send(new(n, "q")).await;
    }
    // Never five in a row; ten results, six of them failures, is more than half.
    let story = [true, true, false, true, true, false, true, false, false, true];
    let first = stage.store.lease(stage.wish(&["q"], 9)).await.expect("answers");
    assert_eq!(first.len(), 9);
    for (delivery, bad) in first.iter().zip(story) {
        let what = if bad { failed("ConnectionError") } else { Settle::Ack };
        stage.settle(delivery.token, what).await.expect("held");
    }
    assert_eq!(stage.breaker("q").await.state, BreakerState::Closed, "nine are too few to tell");
    let tenth = stage.take("q", 1).await.remove(0);
    stage.settle(tenth.token, failed("ConnectionError")).await.expect("held");
    assert_eq!(stage.breaker("q").await.state, BreakerState::Open);
    assert!(stage.take("q", 9).await.is_empty());
}

pub(super) async fn i28_old_results_do_not_count(stage: &Stage<'_>) {
    stage.set("q", guarded(BreakerKey::Queue)).await;
    for n in 1..=30 {
        stage.send(new(n, "q")).await;
    }
    for round in 0..12 {
        let taken = stage.take("q", 2).await;
        stage.settle(taken[0].token, failed("ConnectionError")).await.expect("held");
        stage
            .settle(taken[1].token, if round % 3 == 0 { Settle::Ack } else { Settle::Release })
            .await
            .expect("held");
        if round % 3 == 2 {
            stage.clock.advance(secs(61));
        }
    }
    assert_eq!(stage.breaker("q").await.state, BreakerState::Closed, "three in a row, three in a window");
}

pub(super) async fn a_breaker_goes_by_header_or_payload(stage: &Stage<'_>) {
    let by = |key: &str| guarded(key.parse().expect("a key"));
    stage.set("q", by("header:host")).await;
    stage.set("p", by("payload.to.host")).await;
    for n in 1..=12 {
        let host = if n % 2 == 0 { "even" } else { "odd" };
        let headers = [("host".to_owned(), host.to_owned())].into();
        stage.send(NewMessage { headers, ..new(n, "q") }).await;
        let bytes = format!(r#"{{"to":{{"host":"{host}"}}}}"#).into_bytes();
        let payload = Payload { bytes, content_type: "application/json".into() };
        stage.send(NewMessage { payload, ..new(n + 100, "p") }).await;
    }
    stage.send(new(50, "q")).await;
    stage.send(new(150, "p")).await;
    for queue in ["q", "p"] {
        for delivery in stage.take(queue, 12).await {
            let even = delivery.message.deliveries == 1 && stage.is_even(&delivery.message.envelope);
            let what = if even { failed("ConnectionError") } else { Settle::Release };
            stage.settle(delivery.token, what).await.expect("held");
        }
        stage.clock.advance(secs(10));
        let left = stage.take(queue, 20).await;
        assert_eq!(left.len(), 7, "{queue}: six odd ones and the one without a value");
        assert!(left.iter().all(|d| !stage.is_even(&d.message.envelope)));
        for delivery in left {
            stage.settle(delivery.token, Settle::Ack).await.expect("held");
        }
    }
    let keys: Vec<String> =
        stage.store.breakers().await.expect("answers").into_iter().map(|b| b.key).collect();
    assert_eq!(keys, ["even", "odd", "even", "odd"]);
}

impl Stage<'_> {
    fn is_even(&self, envelope: &redrive_core::message::Envelope) -> bool {
        let by_header = envelope.headers.get("host").is_some_and(|h| h == "even");
        by_header || String::from_utf8_lossy(&envelope.payload.bytes).contains("\"even\"")
    }
}

pub(super) async fn an_operator_opens_and_closes_a_breaker(stage: &Stage<'_>) {
    stage.send(new(1, "bare")).await;
    let force =
        |queue: &str, key: &str, open| stage.store.force_breaker(q(queue), key.into(), open, operator());
    assert_eq!(field(refused(force("bare", "bare", true).await)), "breaker");
    stage.set("q", guarded(BreakerKey::Queue)).await;
    assert_eq!(field(refused(force("q", "", true).await)), "key");
    stage.send(new(2, "q")).await;
    let open = force("q", "q", true).await.expect("it opens");
    assert_eq!((open.state, open.forced, open.until, open.held), (BreakerState::Open, true, None, 1));
    stage.clock.advance(secs(100_000));
    assert!(stage.take("q", 1).await.is_empty(), "until somebody closes it");
    let closed = force("q", "q", false).await.expect("it closes");
    assert_eq!((closed.state, closed.events.len()), (BreakerState::Closed, 2));
    assert_eq!(stage.take("q", 1).await.len(), 1);
    let rows = stage.store.audit(Default::default()).await.expect("answers").items;
    let acts: Vec<(&str, &str)> =
        rows.iter().take(2).map(|r| (r.entry.act.as_str(), r.entry.target.as_str())).collect();
    assert_eq!(acts, [("close breaker", "q/q"), ("open breaker", "q/q")]);
}

pub(super) async fn a_new_key_starts_afresh(stage: &Stage<'_>) {
    let out = stage.opened().await;
    stage.set("q", guarded(BreakerKey::Queue)).await;
    assert_eq!(stage.store.breakers().await.expect("answers"), []);
    assert_eq!(stage.take("q", 20).await.len(), 5, "three that were held, two of b");
    for token in out {
        stage.settle(token, Settle::Ack).await.expect("held");
    }
    stage.set("q", rules(100)).await;
    assert_eq!(stage.store.breakers().await.expect("answers"), []);
}

pub(super) async fn i28_new_numbers_count_at_once(stage: &Stage<'_>) {
    stage.half_open().await;
    let probes = stage.take("q", 9).await;
    assert_eq!(probes.len(), 3);
    let numbers = |probes| {
        let breaker = Some(BreakerPolicy { probes, ..BreakerPolicy::new(BreakerKey::Kind) });
        QueuePolicy { breaker, ..rules(100) }
    };
    stage.set("q", numbers(5)).await;
    assert_eq!(stage.take_as("x", "q", 9).await.len(), 2, "two more than before");
    stage.set("q", numbers(1)).await;
    stage.settle(probes[0].token, Settle::Release).await.expect("held");
    assert!(stage.take_as("y", "q", 9).await.is_empty(), "four are out and one is allowed");
}
