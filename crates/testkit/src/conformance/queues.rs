//! Laws of queues: rules, pause, purge, counters (I11, I15), and that a drawer is never a queue (I38).

use super::Stage;
use super::kit::{BACKOFF, failed, field, hopeless, new, operator, q, refused, rules, secs};
use crate::clock::START;
use crate::ids::message_id;
use redrive_core::audit::AuditEntry;
use redrive_core::backoff::Backoff;
use redrive_core::dead_letter::{Act, Actor};
use redrive_core::error::Refusal;
use redrive_core::failure::Route;
use redrive_core::invariants::Counts;
use redrive_core::lifecycle::State;
use redrive_core::limits;
use redrive_core::message::NewMessage;
use redrive_core::policy::QueuePolicy;
use redrive_core::store::{Purged, Queue, Settle};
use redrive_core::time::Span;

pub(super) async fn rules_are_kept_as_they_were_set(stage: &Stage<'_>) {
    let policy = QueuePolicy {
        include: vec!["Http*".parse().expect("a glob")],
        exclude: vec!["category:resource".parse().expect("a category")],
        retry_for: secs(77),
        ttl: Some(secs(3)),
        dlq: Some(q("bin")),
        routes: [(Route::Poison, q("poison"))].into(),
        open_ttl: Some(Span::from_days(2)),
        max_messages: Some(7),
        max_bytes: Some(1 << 40),
        ..rules(9)
    };
    let queue = Queue {
        name: q("q"),
        paused: false,
        paused_by: None,
        scheduled: 0,
        ready: 0,
        counts: Counts::default(),
        policy: policy.clone(),
    };
    assert_eq!(stage.set("q", policy.clone()).await, queue);
    assert_eq!(stage.queue("q").await, queue);
    stage.set("a", rules(1)).await;
    let all = stage.store.queues().await.expect("answers");
    assert_eq!(all.iter().map(|queue| queue.name.as_str()).collect::<Vec<_>>(), ["a", "q"], "by name");
    assert_eq!(all[1], queue);
    let loud = Actor { reason: Some("calmer".into()), ..operator() };
    stage.store.configure(q("q"), rules(2), loud.clone()).await.expect("accepted");
    assert_eq!(stage.queue("q").await.policy, rules(2));
    let rows: Vec<_> = stage.trail().await.into_iter().map(|row| (row.act, row.target, row.reason)).collect();
    let row = |target: &str, reason: Option<String>| ("configure".to_owned(), target.to_owned(), reason);
    assert_eq!(rows, [row("q", None), row("a", None), row("q", loud.reason.clone())]);
    stage.store.configure(q("q"), rules(2), loud).await.expect("accepted");
    assert_eq!(stage.trail().await.len(), 3, "what changes nothing leaves no row");
}

pub(super) async fn rules_that_cannot_be_meant_are_refused_by_field(stage: &Stage<'_>) {
    stage.set("q", rules(3)).await;
    let before = stage.seen().await;
    let zero_cap = Backoff { cap: Span::ZERO, ..Backoff::default() };
    for (name, policy) in [
        ("max_attempts", rules(0)),
        ("max_attempts", rules(limits::ATTEMPTS_MAX + 1)),
        ("backoff.cap", QueuePolicy { backoff: zero_cap, ..rules(1) }),
        ("lease", QueuePolicy { lease: Span::from_millis(99), ..rules(1) }),
        ("ttl", QueuePolicy { ttl: Some(Span::ZERO), ..rules(1) }),
        ("retention", QueuePolicy { retention: Span::from_days(4_000), ..rules(1) }),
        ("dlq", QueuePolicy { dlq: Some(q("q")), ..rules(1) }),
        ("dlq", QueuePolicy { routes: [(Route::Agent, q("q"))].into(), ..rules(1) }),
    ] {
        assert_eq!(field(refused(stage.store.configure(q("q"), policy, operator()).await)), name);
    }
    assert_eq!(stage.seen().await, before);
}

pub(super) async fn i38_a_drawer_is_never_a_queue(stage: &Stage<'_>) {
    stage.set("q", QueuePolicy { dlq: Some(q("bin")), ..rules(1) }).await;
    stage.send(new(1, "work")).await;
    let before = stage.seen().await;
    let configure = |name: &'static str, policy| stage.store.configure(q(name), policy, operator());
    let drawer = refused(configure("bin", rules(1)).await);
    assert_eq!(drawer, Refusal::IsDrawer { queue: q("bin"), owner: q("q") });
    let default_drawer = refused(configure("work-dlq", rules(1)).await);
    assert_eq!(default_drawer, Refusal::IsDrawer { queue: q("work-dlq"), owner: q("work") });
    let over_work = QueuePolicy { dlq: Some(q("work")), ..rules(1) };
    assert_eq!(field(refused(configure("q", over_work.clone()).await)), "dlq");
    assert_eq!(field(refused(configure("third", over_work).await)), "dlq");
    assert_eq!(stage.seen().await, before);
    // A drawer that no rule names any more is free again.
    stage.set("q", rules(1)).await;
    stage.send(new(2, "bin")).await;
}

pub(super) async fn unknown_queues_are_said_to_be_unknown(stage: &Stage<'_>) {
    let unknown = Refusal::NoSuchQueue { queue: q("nowhere") };
    assert_eq!(refused(stage.store.queue(q("nowhere")).await), unknown);
    assert_eq!(refused(stage.store.pause(q("nowhere"), true, operator()).await), unknown);
    assert_eq!(refused(stage.store.purge(q("nowhere"), operator()).await), unknown);
    assert_eq!(refused(stage.store.lease(stage.wish(&["nowhere"], 1)).await), unknown);
    assert_eq!(stage.store.queues().await, Ok(Vec::new()));
    assert_eq!(stage.trail().await, []);
}

pub(super) async fn new_rules_judge_the_next_failure(stage: &Stage<'_>) {
    stage.set("q", rules(5)).await;
    stage.send(new(1, "q")).await;
    stage.settle(stage.take_one("q").await.token, failed("Bad")).await.expect("held");
    stage.clock.advance(BACKOFF);
    let taken = stage.take_one("q").await;
    stage.set("q", rules(2)).await;
    assert_eq!(stage.settle(taken.token, failed("Bad")).await.map(|s| s.state), Ok(State::Dead));
}

pub(super) async fn pause_halts_leasing_and_nothing_else(stage: &Stage<'_>) {
    stage.send(new(1, "q")).await;
    let taken = stage.take_one("q").await;
    let actor = Actor { reason: Some("deploy".into()), ..operator() };
    for _ in 0..2 {
        let paused = stage.store.pause(q("q"), true, actor.clone()).await.expect("answers");
        assert!(paused.paused && paused.paused_by.is_some(), "{paused:?}");
        assert_eq!(stage.queue("q").await, paused, "pausing twice is pausing");
    }
    stage.send(new(2, "q")).await;
    assert_eq!(stage.take("q", 9).await, []);
    stage.settle(taken.token, Settle::Ack).await.expect("settling goes on");
    let resumed = stage.store.pause(q("q"), false, operator()).await.expect("answers");
    assert_eq!((resumed.paused, resumed.paused_by), (false, None));
    assert_eq!(stage.take("q", 9).await.len(), 1);
    let rows: Vec<_> = stage.trail().await.into_iter().map(|row| (row.act, row.target, row.reason)).collect();
    let row = |act: &str, reason: Option<String>| (act.to_owned(), "q".to_owned(), reason);
    let deploy = actor.reason;
    assert_eq!(rows, [row("pause", deploy.clone()), row("pause", deploy), row("resume", None)]);
}

pub(super) async fn purge_removes_what_waits_and_nothing_else(stage: &Stage<'_>) {
    stage.set("q", rules(5)).await;
    let leased = stage.send(new(1, "q")).await;
    let taken = stage.take_one("q").await;
    let dead = stage.dead(new(2, "q"), "Bad").await.id();
    let redriven = stage.dead(new(3, "q"), "Bad").await.id();
    stage.act(redriven, Act::retry()).await.expect("pending");
    stage.settle(stage.take_one("q").await.token, failed("Bad")).await.expect("held");
    let retried = stage.send(new(4, "q")).await;
    stage.settle(stage.take_one("q").await.token, failed("Bad")).await.expect("held");
    stage.send(new(5, "q")).await;
    stage.send(NewMessage { delay: Some(secs(5)), ..new(6, "q") }).await;
    stage.send(new(7, "other")).await;
    let rows = stage.trail().await.len();
    let purged = stage.store.purge(q("q"), operator()).await;
    assert_eq!(purged, Ok(Purged { purged: 3, more: false }));
    assert_eq!(stage.store.purge(q("q"), operator()).await, Ok(Purged { purged: 0, more: false }));
    let entry = |count| AuditEntry::new(START, &operator(), "purge", "q", count);
    assert_eq!(stage.trail().await[rows..], [entry(3), entry(0)]);
    let left: Vec<_> = stage.seen().await.messages.iter().map(|m| m.envelope.id).collect();
    assert_eq!(left, [leased, redriven, message_id(7)]);
    assert_eq!(refused(stage.store.message(retried).await), Refusal::NoSuchMessage { id: retried });
    let counts =
        Counts { enqueued: 6, waiting: 1, leased: 1, dead: 1, purged: 3, bytes: 18, ..Counts::default() };
    assert_eq!(stage.counts("q").await, counts);
    assert_eq!(stage.letter(dead).await.id(), dead);
    stage.settle(taken.token, Settle::Ack).await.expect("the leased one was left alone");
}

pub(super) async fn i11_whatever_came_in_is_somewhere(stage: &Stage<'_>) {
    stage.set("q", rules(2)).await;
    for n in 1..=12 {
        stage.send(new(n, "q")).await;
    }
    let taken = stage.take("q", 6).await;
    for (n, what) in (0..).zip([Settle::Ack, failed("Bad"), hopeless("Worse"), Settle::Release, Settle::Ack])
    {
        stage.settle(taken[n].token, what).await.expect("held");
        assert!(stage.counts("q").await.conserved());
    }
    stage.store.cancel(vec![message_id(12)], operator()).await.expect("answers");
    let queue = stage.queue("q").await;
    let counts = Counts {
        enqueued: 12,
        waiting: 7,
        leased: 1,
        dead: 1,
        done: 2,
        cancelled: 1,
        bytes: 9 * 6 + 10 * 2,
        ..Counts::default()
    };
    assert_eq!((queue.scheduled, queue.ready, queue.counts), (1, 6, counts));
    stage.store.purge(q("q"), operator()).await.expect("answers");
    let counts = Counts { waiting: 0, purged: 7, bytes: 9, ..counts };
    assert_eq!(stage.counts("q").await, counts);
}

pub(super) async fn i49_who_acts_is_named_within_bounds(stage: &Stage<'_>) {
    let id = stage.send(new(1, "q")).await;
    let letter = stage.dead(new(2, "other"), "Bad").await;
    let before = stage.seen().await;
    let long = |n: usize| "x".repeat(n);
    for (name, actor) in [
        ("actor", Actor::new(long(limits::LABEL_BYTES_MAX + 1), "law")),
        ("source", Actor::new("ada", long(limits::LABEL_BYTES_MAX + 1))),
        ("reason", Actor { reason: Some(long(limits::NOTE_BYTES_MAX + 1)), ..operator() }),
    ] {
        let configured = stage.store.configure(q("q"), rules(1), actor.clone()).await;
        assert_eq!(field(refused(configured)), name);
        assert_eq!(field(refused(stage.store.pause(q("q"), true, actor.clone()).await)), name);
        assert_eq!(field(refused(stage.store.purge(q("q"), actor.clone()).await)), name);
        assert_eq!(field(refused(stage.store.cancel(vec![id], actor.clone()).await)), name);
        assert_eq!(field(refused(stage.store.import(vec![letter.clone()], actor).await)), name);
    }
    assert_eq!(stage.seen().await, before);
}
