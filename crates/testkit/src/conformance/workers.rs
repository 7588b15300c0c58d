//! Laws of the list of workers.

use super::LawContext;
use super::kit::{fail, max_attempts, msg, q, refused, refused_field, secs};
use crate::ids::message_id;
use redrive_core::limits;
use redrive_core::store::{LeaseRequest, LetterLeaseRequest, LetterSettle, LetterSettlement, Settle};
use redrive_core::time::Span;
use redrive_core::workers::{LeaseView, WorkerView};

impl LawContext<'_> {
    async fn workers(&self) -> Vec<WorkerView> {
        self.store.workers().await.expect("workers succeeds")
    }

    async fn worker(&self, name: &str) -> WorkerView {
        self.workers().await.into_iter().find(|worker| worker.worker == name).expect("the worker is known")
    }
}

pub(super) async fn whoever_leases_is_listed_with_what_is_in_hand(ctx: &LawContext<'_>) {
    assert_eq!(ctx.workers().await, []);
    ctx.configure("q", max_attempts(5)).await;
    ctx.configure("empty", max_attempts(5)).await;
    for n in 1..=3 {
        ctx.send(msg(n, "q")).await;
    }
    let begin = ctx.now();
    let request = LeaseRequest {
        worker: "ada".into(),
        version: Some("1.2.3".into()),
        host: Some("web-1".into()),
        ..ctx.lease_request(&["q", "empty"], 2)
    };
    let leased = ctx.store.lease(request.clone()).await.expect("leases");
    ctx.lease_as("idle", "empty", 1).await;
    let lease = |n: usize| LeaseView {
        id: leased[n].token.id,
        queue: q("q"),
        since: begin,
        lease_expires_at: leased[n].message.lease_expires_at.expect("leased"),
    };
    let ada = WorkerView {
        worker: "ada".into(),
        version: Some("1.2.3".into()),
        host: Some("web-1".into()),
        queues: vec![q("empty"), q("q")],
        first_seen: begin,
        last_seen: begin,
        in_hand: 2,
        leases: vec![lease(0), lease(1)],
        done: 0,
        failed: 0,
    };
    let idle = WorkerView {
        worker: "idle".into(),
        version: None,
        host: None,
        queues: vec![q("empty")],
        in_hand: 0,
        leases: Vec::new(),
        ..ada.clone()
    };
    assert_eq!(ctx.workers().await, [ada.clone(), idle.clone()], "by name");
    let now = ctx.clock.advance(secs(5));
    ctx.settle(leased[0].token, Settle::Ack).await.expect("held");
    let extended = ctx.settle(leased[1].token, Settle::Extend { by: Some(secs(120)) }).await.expect("held");
    let kept = LeaseView { lease_expires_at: extended.lease_expires_at.expect("extended"), ..lease(1) };
    let ada = WorkerView { last_seen: now, in_hand: 1, leases: vec![kept], done: 1, ..ada };
    assert_eq!(ctx.workers().await, [ada.clone(), idle.clone()]);
    let now = ctx.clock.advance(secs(5));
    ctx.settle(leased[1].token, fail("Bad")).await.expect("held");
    ctx.settle(leased[1].token, fail("Bad")).await.expect_err("it was settled");
    let ada = WorkerView { last_seen: now, in_hand: 0, leases: Vec::new(), failed: 1, ..ada };
    assert_eq!(ctx.workers().await, [ada.clone(), idle.clone()]);
    let plain = LeaseRequest { version: None, host: None, ..request };
    let third = ctx.store.lease(plain).await.expect("leases").remove(0);
    ctx.settle(third.token, Settle::Release).await.expect("held");
    assert_eq!(ctx.workers().await, [ada, idle], "what was said once is kept, and a release is not counted");
}

pub(super) async fn a_worker_is_known_for_as_long_as_it_reports(ctx: &LawContext<'_>) {
    for n in 1..=2 {
        ctx.send(msg(n, "q")).await;
    }
    let hour = LeaseRequest { lease_for: Some(Span::from_hours(1)), ..ctx.lease_request(&["q"], 1) };
    let long = LeaseRequest { worker: "long".into(), ..hour };
    let slow = ctx.store.lease(long).await.expect("leases").remove(0);
    ctx.lease_as("brief", "q", 1).await;
    let names = async || ctx.workers().await.into_iter().map(|worker| worker.worker).collect::<Vec<_>>();
    ctx.clock.advance(secs(31));
    assert_eq!(ctx.worker("brief").await.in_hand, 0, "its lease has expired");
    ctx.clock.advance(limits::WORKER_KNOWN_FOR);
    assert_eq!(names().await, ["long"], "it has something in its hands");
    assert_eq!(ctx.worker("long").await.leases.len(), 1);
    ctx.settle(slow.token, Settle::Ack).await.expect("held");
    assert_eq!(ctx.worker("long").await.done, 1);
    ctx.clock.advance(limits::WORKER_KNOWN_FOR);
    assert_eq!(names().await, [""; 0]);
}

pub(super) async fn consumers_of_letters_are_workers(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    ctx.dead_letter(msg(1, "q"), "Bad").await;
    let now = ctx.clock.advance(secs(1));
    let request =
        LetterLeaseRequest { dlq: q("q-dlq"), max: 1, lease_for: Some(secs(60)), worker: "consumer".into() };
    let leased = ctx.store.lease_letters(request).await.expect("leases").remove(0);
    let seen = ctx.worker("consumer").await;
    let lease =
        LeaseView { id: message_id(1), queue: q("q-dlq"), since: now, lease_expires_at: now.plus(secs(60)) };
    assert_eq!((seen.queues, seen.in_hand, seen.leases), (vec![q("q-dlq")], 1, vec![lease]));
    let failed = LetterSettlement { token: leased.token, what: LetterSettle::Fail { note: "no".into() } };
    ctx.store.settle_letters(vec![failed]).await.expect("settles").remove(0).expect("held");
    let seen = ctx.worker("consumer").await;
    assert_eq!((seen.in_hand, seen.done, seen.failed), (0, 0, 1));
}

pub(super) async fn i49_a_worker_lists_a_bounded_number_of_leases(ctx: &LawContext<'_>) {
    let most = limits::WORKER_LEASES_LISTED_MAX as u64;
    for n in 1..=most + 1 {
        ctx.send(msg(n, "q")).await;
    }
    assert_eq!(ctx.lease("q", limits::WORKER_LEASES_LISTED_MAX + 1).await.len() as u64, most + 1);
    let seen = ctx.worker("w").await;
    assert_eq!((seen.in_hand, seen.leases.len() as u64), (most + 1, most));
    let long = "x".repeat(limits::LABEL_BYTES_MAX + 1);
    let good = ctx.lease_request(&["q"], 1);
    for (field, wrong) in [
        ("version", LeaseRequest { version: Some(long.clone()), ..good.clone() }),
        ("host", LeaseRequest { host: Some(long), ..good.clone() }),
        ("host", LeaseRequest { host: Some("a\tb".into()), ..good.clone() }),
    ] {
        assert_eq!(refused_field(refused(ctx.store.lease(wrong).await)), field);
    }
}
