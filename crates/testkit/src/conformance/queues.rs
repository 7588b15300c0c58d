//! Laws of queues: policies, pause, purge, counters (I11, I15), and that a dead letter queue is never a queue
//! (I38).

use super::LawContext;
use super::kit::{
    BACKOFF, fail, fail_permanently, max_attempts, msg, operator, q, refused, refused_field, secs,
};
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

pub(super) async fn a_policy_is_stored_as_configured(ctx: &LawContext<'_>) {
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
        ..max_attempts(9)
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
    assert_eq!(ctx.configure("q", policy.clone()).await, queue);
    assert_eq!(ctx.queue("q").await, queue);
    ctx.configure("a", max_attempts(1)).await;
    let all = ctx.store.queues().await.expect("succeeds");
    assert_eq!(
        all.iter().map(|queue| queue.name.as_str()).collect::<Vec<_>>(),
        ["a", "q"],
        "ordered by name"
    );
    assert_eq!(all[1], queue);
    let loud = Actor { reason: Some("calmer".into()), ..operator() };
    ctx.store.configure(q("q"), max_attempts(2), loud.clone()).await.expect("accepted");
    assert_eq!(ctx.queue("q").await.policy, max_attempts(2));
    let rows: Vec<_> =
        ctx.audit_trail().await.into_iter().map(|row| (row.act, row.target, row.reason)).collect();
    let row = |target: &str, reason: Option<String>| ("configure".to_owned(), target.to_owned(), reason);
    assert_eq!(rows, [row("q", None), row("a", None), row("q", loud.reason.clone())]);
    ctx.store.configure(q("q"), max_attempts(2), loud).await.expect("accepted");
    assert_eq!(ctx.audit_trail().await.len(), 3, "an unchanged policy writes no row");
}

pub(super) async fn an_invalid_policy_is_refused_by_field(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(3)).await;
    let before = ctx.view().await;
    let zero_cap = Backoff { cap: Span::ZERO, ..Backoff::default() };
    for (name, policy) in [
        ("max_attempts", max_attempts(0)),
        ("max_attempts", max_attempts(limits::ATTEMPTS_MAX + 1)),
        ("backoff.cap", QueuePolicy { backoff: zero_cap, ..max_attempts(1) }),
        ("lease", QueuePolicy { lease: Span::from_millis(99), ..max_attempts(1) }),
        ("ttl", QueuePolicy { ttl: Some(Span::ZERO), ..max_attempts(1) }),
        ("retention", QueuePolicy { retention: Span::from_days(4_000), ..max_attempts(1) }),
        ("dlq", QueuePolicy { dlq: Some(q("q")), ..max_attempts(1) }),
        ("dlq", QueuePolicy { routes: [(Route::Agent, q("q"))].into(), ..max_attempts(1) }),
    ] {
        assert_eq!(refused_field(refused(ctx.store.configure(q("q"), policy, operator()).await)), name);
    }
    assert_eq!(ctx.view().await, before);
}

pub(super) async fn i38_a_dlq_is_never_a_queue(ctx: &LawContext<'_>) {
    ctx.configure("q", QueuePolicy { dlq: Some(q("bin")), ..max_attempts(1) }).await;
    ctx.send(msg(1, "work")).await;
    let before = ctx.view().await;
    let configure = |name: &'static str, policy| ctx.store.configure(q(name), policy, operator());
    let dlq = refused(configure("bin", max_attempts(1)).await);
    assert_eq!(dlq, Refusal::IsDlq { queue: q("bin"), owner: q("q") });
    let default_dlq = refused(configure("work-dlq", max_attempts(1)).await);
    assert_eq!(default_dlq, Refusal::IsDlq { queue: q("work-dlq"), owner: q("work") });
    let over_work = QueuePolicy { dlq: Some(q("work")), ..max_attempts(1) };
    assert_eq!(refused_field(refused(configure("q", over_work.clone()).await)), "dlq");
    assert_eq!(refused_field(refused(configure("third", over_work).await)), "dlq");
    assert_eq!(ctx.view().await, before);
    // A name that no policy uses as a dead letter queue any more can be a queue.
    ctx.configure("q", max_attempts(1)).await;
    ctx.send(msg(2, "bin")).await;
}

pub(super) async fn unknown_queues_are_refused(ctx: &LawContext<'_>) {
    let unknown = Refusal::NoSuchQueue { queue: q("nowhere") };
    assert_eq!(refused(ctx.store.queue(q("nowhere")).await), unknown);
    assert_eq!(refused(ctx.store.pause(q("nowhere"), true, operator()).await), unknown);
    assert_eq!(refused(ctx.store.purge(q("nowhere"), operator()).await), unknown);
    assert_eq!(refused(ctx.store.lease(ctx.lease_request(&["nowhere"], 1)).await), unknown);
    assert_eq!(ctx.store.queues().await, Ok(Vec::new()));
    assert_eq!(ctx.audit_trail().await, []);
}

pub(super) async fn a_new_policy_applies_to_the_next_failure(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(5)).await;
    ctx.send(msg(1, "q")).await;
    ctx.settle(ctx.lease_one("q").await.token, fail("Bad")).await.expect("held");
    ctx.clock.advance(BACKOFF);
    let taken = ctx.lease_one("q").await;
    ctx.configure("q", max_attempts(2)).await;
    assert_eq!(ctx.settle(taken.token, fail("Bad")).await.map(|s| s.state), Ok(State::Dead));
}

pub(super) async fn pause_stops_only_leasing(ctx: &LawContext<'_>) {
    ctx.send(msg(1, "q")).await;
    let taken = ctx.lease_one("q").await;
    let actor = Actor { reason: Some("deploy".into()), ..operator() };
    for _ in 0..2 {
        let paused = ctx.store.pause(q("q"), true, actor.clone()).await.expect("succeeds");
        assert!(paused.paused && paused.paused_by.is_some(), "{paused:?}");
        assert_eq!(ctx.queue("q").await, paused, "pausing twice changes nothing");
    }
    ctx.send(msg(2, "q")).await;
    assert_eq!(ctx.lease("q", 9).await, []);
    ctx.settle(taken.token, Settle::Ack).await.expect("settling is not paused");
    let resumed = ctx.store.pause(q("q"), false, operator()).await.expect("succeeds");
    assert_eq!((resumed.paused, resumed.paused_by), (false, None));
    assert_eq!(ctx.lease("q", 9).await.len(), 1);
    let rows: Vec<_> =
        ctx.audit_trail().await.into_iter().map(|row| (row.act, row.target, row.reason)).collect();
    let row = |act: &str, reason: Option<String>| (act.to_owned(), "q".to_owned(), reason);
    let deploy = actor.reason;
    assert_eq!(rows, [row("pause", deploy.clone()), row("pause", deploy), row("resume", None)]);
}

pub(super) async fn purge_removes_only_waiting_messages(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(5)).await;
    let leased = ctx.send(msg(1, "q")).await;
    let taken = ctx.lease_one("q").await;
    let dead = ctx.dead_letter(msg(2, "q"), "Bad").await.id();
    let redriven = ctx.dead_letter(msg(3, "q"), "Bad").await.id();
    ctx.act(redriven, Act::retry()).await.expect("pending");
    ctx.settle(ctx.lease_one("q").await.token, fail("Bad")).await.expect("held");
    let retried = ctx.send(msg(4, "q")).await;
    ctx.settle(ctx.lease_one("q").await.token, fail("Bad")).await.expect("held");
    ctx.send(msg(5, "q")).await;
    ctx.send(NewMessage { delay: Some(secs(5)), ..msg(6, "q") }).await;
    ctx.send(msg(7, "other")).await;
    let rows = ctx.audit_trail().await.len();
    let purged = ctx.store.purge(q("q"), operator()).await;
    assert_eq!(purged, Ok(Purged { purged: 3, more: false }));
    assert_eq!(ctx.store.purge(q("q"), operator()).await, Ok(Purged { purged: 0, more: false }));
    let entry = |count| AuditEntry::new(START, &operator(), "purge", "q", count);
    assert_eq!(ctx.audit_trail().await[rows..], [entry(3), entry(0)]);
    let left: Vec<_> = ctx.view().await.messages.iter().map(|m| m.envelope.id).collect();
    assert_eq!(left, [leased, redriven, message_id(7)]);
    assert_eq!(refused(ctx.store.message(retried).await), Refusal::NoSuchMessage { id: retried });
    let counts =
        Counts { enqueued: 6, waiting: 1, leased: 1, dead: 1, purged: 3, bytes: 18, ..Counts::default() };
    assert_eq!(ctx.counts("q").await, counts);
    assert_eq!(ctx.letter(dead).await.id(), dead);
    ctx.settle(taken.token, Settle::Ack).await.expect("the leased message was not purged");
}

pub(super) async fn i11_every_enqueued_message_is_counted_somewhere(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(2)).await;
    for n in 1..=12 {
        ctx.send(msg(n, "q")).await;
    }
    let taken = ctx.lease("q", 6).await;
    for (n, what) in
        (0..).zip([Settle::Ack, fail("Bad"), fail_permanently("Worse"), Settle::Release, Settle::Ack])
    {
        ctx.settle(taken[n].token, what).await.expect("held");
        assert!(ctx.counts("q").await.conserved());
    }
    ctx.store.cancel(vec![message_id(12)], operator()).await.expect("succeeds");
    let queue = ctx.queue("q").await;
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
    ctx.store.purge(q("q"), operator()).await.expect("succeeds");
    let counts = Counts { waiting: 0, purged: 7, bytes: 9, ..counts };
    assert_eq!(ctx.counts("q").await, counts);
}

pub(super) async fn i49_actor_names_are_bounded(ctx: &LawContext<'_>) {
    let id = ctx.send(msg(1, "q")).await;
    let letter = ctx.dead_letter(msg(2, "other"), "Bad").await;
    let before = ctx.view().await;
    let long = |n: usize| "x".repeat(n);
    for (name, actor) in [
        ("actor", Actor::new(long(limits::LABEL_BYTES_MAX + 1), "law")),
        ("source", Actor::new("ada", long(limits::LABEL_BYTES_MAX + 1))),
        ("reason", Actor { reason: Some(long(limits::NOTE_BYTES_MAX + 1)), ..operator() }),
    ] {
        let configured = ctx.store.configure(q("q"), max_attempts(1), actor.clone()).await;
        assert_eq!(refused_field(refused(configured)), name);
        assert_eq!(refused_field(refused(ctx.store.pause(q("q"), true, actor.clone()).await)), name);
        assert_eq!(refused_field(refused(ctx.store.purge(q("q"), actor.clone()).await)), name);
        assert_eq!(refused_field(refused(ctx.store.cancel(vec![id], actor.clone()).await)), name);
        assert_eq!(refused_field(refused(ctx.store.import(vec![letter.clone()], actor).await)), name);
    }
    assert_eq!(ctx.view().await, before);
}
