//! Laws of the circuit breaker: an open breaker holds messages without using attempts, probes are counted
//! over all workers, and late results are ignored.

use super::LawContext;
use super::kit::{fail, failure, max_attempts, msg, operator, q, refused, refused_field, secs};
use redrive_core::breaker::{BreakerKey, BreakerPolicy, BreakerState, BreakerView};
use redrive_core::failure::Route;
use redrive_core::ids::LeaseToken;
use redrive_core::message::{NewMessage, Payload};
use redrive_core::policy::QueuePolicy;
use redrive_core::store::Settle;

fn with_breaker(key: BreakerKey) -> QueuePolicy {
    QueuePolicy { breaker: Some(BreakerPolicy::new(key)), ..max_attempts(100) }
}

fn of_kind(n: u64, kind: &str) -> NewMessage {
    NewMessage { kind: kind.into(), ..msg(n, "q") }
}

impl LawContext<'_> {
    async fn breaker(&self, key: &str) -> BreakerView {
        let all = self.store.breakers().await.expect("breakers succeeds");
        all.into_iter().find(|b| b.key == key).expect("the breaker exists")
    }

    /// Sets up a queue with a breaker by kind, ten messages of kind `a` and two of kind `b`. The breaker of
    /// `a` has just opened after five failures. Returns the tokens of two `a` messages that are still leased.
    async fn with_open_breaker(&self) -> Vec<LeaseToken> {
        self.configure("q", with_breaker(BreakerKey::Kind)).await;
        for n in 1..=10 {
            self.send(of_kind(n, "a")).await;
        }
        let mut tokens: Vec<LeaseToken> = self.lease("q", 7).await.iter().map(|d| d.token).collect();
        for token in tokens.drain(..5) {
            self.settle(token, fail("ConnectionError")).await.expect("held");
        }
        for n in 11..=12 {
            self.send(of_kind(n, "b")).await;
        }
        tokens
    }

    /// Sets up the same queue with the breaker of `a` half open.
    async fn with_half_open_breaker(&self) {
        for token in self.with_open_breaker().await {
            self.settle(token, Settle::Release).await.expect("held");
        }
        for b in self.lease("q", 9).await {
            self.settle(b.token, Settle::Ack).await.expect("held");
        }
        self.clock.advance(secs(30));
    }
}

pub(super) async fn i28_an_open_breaker_holds_without_using_attempts(ctx: &LawContext<'_>) {
    let out = ctx.with_open_breaker().await;
    let shown = ctx.breaker("a").await;
    let until = ctx.now().plus(secs(30));
    assert_eq!((shown.state, shown.until, shown.held), (BreakerState::Open, Some(until), 8));
    assert_eq!((shown.since, shown.forced), (ctx.now(), false));
    let other: Vec<String> = ctx.lease("q", 9).await.into_iter().map(|d| d.message.envelope.kind).collect();
    assert_eq!(other, ["b", "b"], "the other key is not affected");
    ctx.clock.advance(secs(29));
    assert!(ctx.lease("q", 9).await.is_empty(), "retries that are due are held too");
    for n in 8..=10 {
        let held = ctx.message(of_kind(n, "a").id).await;
        assert_eq!((held.attempts, held.deliveries, held.failed), (0, 0, 0), "message {n}");
    }
    // Deliveries that were out when the breaker opened are settled and do not change it.
    for token in out {
        ctx.settle(token, fail("ConnectionError")).await.expect("held");
    }
    let now = ctx.breaker("a").await;
    assert_eq!((now.state, now.until, now.events.len()), (BreakerState::Open, Some(until), 1));
}

pub(super) async fn i28_k_probes_in_total_over_all_workers(ctx: &LawContext<'_>) {
    ctx.with_half_open_breaker().await;
    let probes = ctx.lease_as("x", "q", 2).await;
    let more = ctx.lease_as("y", "q", 9).await;
    assert_eq!((probes.len(), more.len()), (2, 1));
    assert!(ctx.lease_as("z", "q", 9).await.is_empty());
    assert_eq!(ctx.breaker("a").await.state, BreakerState::HalfOpen);
    ctx.settle(probes[0].token, Settle::Ack).await.expect("held");
    assert!(ctx.lease_as("z", "q", 9).await.is_empty(), "one of two required successes");
    ctx.settle(more[0].token, Settle::Ack).await.expect("held");
    let closed = ctx.breaker("a").await;
    assert_eq!((closed.state, closed.results, closed.failures_in_a_row), (BreakerState::Closed, 0, 0));
    // The third probe was leased before the breaker closed, so its failure is ignored.
    ctx.settle(probes[1].token, fail("ConnectionError")).await.expect("held");
    assert_eq!(ctx.breaker("a").await.results, 0);
    assert_eq!(ctx.lease_as("z", "q", 9).await.len(), 7);
}

pub(super) async fn i28_a_failed_probe_reopens_for_twice_as_long(ctx: &LawContext<'_>) {
    ctx.with_half_open_breaker().await;
    for seconds in [60, 120, 240, 300, 300] {
        let probe = ctx.lease("q", 1).await.remove(0);
        ctx.settle(probe.token, fail("ConnectionError")).await.expect("held");
        let until = ctx.now().plus(secs(seconds));
        assert_eq!(ctx.breaker("a").await.until, Some(until), "{seconds}");
        ctx.clock.advance(secs(seconds - 1));
        assert!(ctx.lease("q", 9).await.is_empty());
        ctx.clock.advance(secs(1));
    }
    for probe in ctx.lease("q", 2).await {
        ctx.settle(probe.token, Settle::Ack).await.expect("held");
    }
    assert_eq!(ctx.breaker("a").await.state, BreakerState::Closed);
}

pub(super) async fn i28_a_released_probe_can_be_repeated_and_a_lost_one_reopens(ctx: &LawContext<'_>) {
    ctx.with_half_open_breaker().await;
    let probes = ctx.lease("q", 9).await;
    assert_eq!(probes.len(), 3);
    ctx.settle(probes[0].token, Settle::Release).await.expect("held");
    let again = ctx.lease_as("x", "q", 9).await;
    assert_eq!(again.len(), 1, "one probe is free again");
    let mut broken = failure("DecodeError");
    broken.route = Route::Corruption;
    let what = Settle::Fail { failure: Box::new(broken), policy_override: None };
    ctx.settle(again[0].token, what).await.expect("held");
    assert_eq!(ctx.breaker("a").await.state, BreakerState::HalfOpen, "corruption is not a breaker signal");
    ctx.clock.advance(secs(30));
    ctx.store.reap(100).await.expect("reap succeeds");
    assert_eq!(ctx.breaker("a").await.state, BreakerState::Open, "the other probes were lost");
}

pub(super) async fn i28_failures_of_more_than_half_the_window_open_it(ctx: &LawContext<'_>) {
    ctx.configure("q", with_breaker(BreakerKey::Queue)).await;
    for n in 1..=30 {
        ctx.send(msg(n, "q")).await;
    }
    // Never five failures in a row, but six of ten results: more than half.
    let results = [true, true, false, true, true, false, true, false, false, true];
    let first = ctx.store.lease(ctx.lease_request(&["q"], 9)).await.expect("succeeds");
    assert_eq!(first.len(), 9);
    for (delivery, bad) in first.iter().zip(results) {
        let what = if bad { fail("ConnectionError") } else { Settle::Ack };
        ctx.settle(delivery.token, what).await.expect("held");
    }
    assert_eq!(ctx.breaker("q").await.state, BreakerState::Closed, "nine results are too few");
    let tenth = ctx.lease("q", 1).await.remove(0);
    ctx.settle(tenth.token, fail("ConnectionError")).await.expect("held");
    assert_eq!(ctx.breaker("q").await.state, BreakerState::Open);
    assert!(ctx.lease("q", 9).await.is_empty());
}

pub(super) async fn i28_old_results_do_not_count(ctx: &LawContext<'_>) {
    ctx.configure("q", with_breaker(BreakerKey::Queue)).await;
    for n in 1..=30 {
        ctx.send(msg(n, "q")).await;
    }
    for round in 0..12 {
        let taken = ctx.lease("q", 2).await;
        ctx.settle(taken[0].token, fail("ConnectionError")).await.expect("held");
        ctx.settle(taken[1].token, if round % 3 == 0 { Settle::Ack } else { Settle::Release })
            .await
            .expect("held");
        if round % 3 == 2 {
            ctx.clock.advance(secs(61));
        }
    }
    assert_eq!(ctx.breaker("q").await.state, BreakerState::Closed, "three in a row and three in the window");
}

pub(super) async fn a_breaker_key_can_be_a_header_or_a_payload_field(ctx: &LawContext<'_>) {
    let by = |key: &str| with_breaker(key.parse().expect("a key"));
    ctx.configure("q", by("header:host")).await;
    ctx.configure("p", by("payload.to.host")).await;
    for n in 1..=12 {
        let host = if n % 2 == 0 { "even" } else { "odd" };
        let headers = [("host".to_owned(), host.to_owned())].into();
        ctx.send(NewMessage { headers, ..msg(n, "q") }).await;
        let bytes = format!(r#"{{"to":{{"host":"{host}"}}}}"#).into_bytes();
        let payload = Payload { bytes, content_type: "application/json".into() };
        ctx.send(NewMessage { payload, ..msg(n + 100, "p") }).await;
    }
    ctx.send(msg(50, "q")).await;
    ctx.send(msg(150, "p")).await;
    for queue in ["q", "p"] {
        for delivery in ctx.lease(queue, 12).await {
            let even = delivery.message.deliveries == 1 && ctx.is_even(&delivery.message.envelope);
            let what = if even { fail("ConnectionError") } else { Settle::Release };
            ctx.settle(delivery.token, what).await.expect("held");
        }
        ctx.clock.advance(secs(10));
        let left = ctx.lease(queue, 20).await;
        assert_eq!(left.len(), 7, "{queue}: six odd messages and the one without a value");
        assert!(left.iter().all(|d| !ctx.is_even(&d.message.envelope)));
        for delivery in left {
            ctx.settle(delivery.token, Settle::Ack).await.expect("held");
        }
    }
    let keys: Vec<String> =
        ctx.store.breakers().await.expect("succeeds").into_iter().map(|b| b.key).collect();
    assert_eq!(keys, ["even", "odd", "even", "odd"]);
}

impl LawContext<'_> {
    fn is_even(&self, envelope: &redrive_core::message::Envelope) -> bool {
        let by_header = envelope.headers.get("host").is_some_and(|h| h == "even");
        by_header || String::from_utf8_lossy(&envelope.payload.bytes).contains("\"even\"")
    }
}

pub(super) async fn an_operator_opens_and_closes_a_breaker(ctx: &LawContext<'_>) {
    ctx.send(msg(1, "bare")).await;
    let force =
        |queue: &str, key: &str, open| ctx.store.force_breaker(q(queue), key.into(), open, operator());
    assert_eq!(refused_field(refused(force("bare", "bare", true).await)), "breaker");
    ctx.configure("q", with_breaker(BreakerKey::Queue)).await;
    assert_eq!(refused_field(refused(force("q", "", true).await)), "key");
    ctx.send(msg(2, "q")).await;
    let open = force("q", "q", true).await.expect("it opens");
    assert_eq!((open.state, open.forced, open.until, open.held), (BreakerState::Open, true, None, 1));
    ctx.clock.advance(secs(100_000));
    assert!(ctx.lease("q", 1).await.is_empty(), "open until an operator closes it");
    let closed = force("q", "q", false).await.expect("it closes");
    assert_eq!((closed.state, closed.events.len()), (BreakerState::Closed, 2));
    assert_eq!(ctx.lease("q", 1).await.len(), 1);
    let rows = ctx.store.audit(Default::default()).await.expect("succeeds").items;
    let acts: Vec<(&str, &str)> =
        rows.iter().take(2).map(|r| (r.entry.act.as_str(), r.entry.target.as_str())).collect();
    assert_eq!(acts, [("close breaker", "q/q"), ("open breaker", "q/q")]);
}

pub(super) async fn changing_the_breaker_key_discards_the_old_breakers(ctx: &LawContext<'_>) {
    let out = ctx.with_open_breaker().await;
    ctx.configure("q", with_breaker(BreakerKey::Queue)).await;
    assert_eq!(ctx.store.breakers().await.expect("succeeds"), []);
    assert_eq!(ctx.lease("q", 20).await.len(), 5, "three held messages of a, two of b");
    for token in out {
        ctx.settle(token, Settle::Ack).await.expect("held");
    }
    ctx.configure("q", max_attempts(100)).await;
    assert_eq!(ctx.store.breakers().await.expect("succeeds"), []);
}

pub(super) async fn i28_a_changed_breaker_policy_applies_at_once(ctx: &LawContext<'_>) {
    ctx.with_half_open_breaker().await;
    let probes = ctx.lease("q", 9).await;
    assert_eq!(probes.len(), 3);
    let numbers = |probes| {
        let breaker = Some(BreakerPolicy { probes, ..BreakerPolicy::new(BreakerKey::Kind) });
        QueuePolicy { breaker, ..max_attempts(100) }
    };
    ctx.configure("q", numbers(5)).await;
    assert_eq!(ctx.lease_as("x", "q", 9).await.len(), 2, "two more probes than before");
    ctx.configure("q", numbers(1)).await;
    ctx.settle(probes[0].token, Settle::Release).await.expect("held");
    assert!(ctx.lease_as("y", "q", 9).await.is_empty(), "four probes are out and one is allowed");
}
