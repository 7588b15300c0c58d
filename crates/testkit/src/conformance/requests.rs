//! Laws of request keys: a call with a key is carried out once, however often it is sent.

use super::LawContext;
use super::kit::{MS, max_attempts, msg, operator, q, refused, refused_field};
use crate::ids::{message_id, operation_id};
use redrive_core::breaker::{BreakerKey, BreakerPolicy};
use redrive_core::dead_letter::{Act, ActRequest, Actor, RequestKey, Status};
use redrive_core::error::Refusal;
use redrive_core::filter::Filter;
use redrive_core::group::GroupAct;
use redrive_core::ids::MessageId;
use redrive_core::limits;
use redrive_core::operation::{Control, OperationSpec, Stage};
use redrive_core::policy::QueuePolicy;
use redrive_core::store::VerifyRequest;
use redrive_core::time::Span;

fn keyed(key: &str, fingerprint: &str) -> Actor {
    let request = RequestKey { key: key.into(), fingerprint: fingerprint.into() };
    Actor { request: Some(request), ..operator() }
}

fn note(id: MessageId, actor: Actor) -> ActRequest {
    let actor = Actor { reason: Some("looked at it".into()), ..actor };
    ActRequest { id, act: Act::Note, actor, expected_version: None }
}

fn spec(n: u64, actor: Actor) -> OperationSpec {
    let filter = Filter::parse("queue:q").expect("a filter");
    OperationSpec::new(operation_id(n), Act::Resolve, filter, actor)
}

pub(super) async fn i42_an_act_with_a_request_key_happens_once(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    let id = ctx.dead_letter(msg(1, "q"), "Bad").await.id();
    let first = ctx.store.act(vec![note(id, keyed("k", "f"))]).await.expect("acts");
    let rows = ctx.audit_trail().await;
    assert_eq!(rows.last().expect("a row").request.as_deref(), Some("k"), "the key is in the audit row");
    let noted = ctx.letter(id).await;
    ctx.act(id, Act::Review).await.expect("pending");
    let changed = ctx.view().await;
    let again = ctx.store.act(vec![note(id, keyed("k", "f"))]).await;
    assert_eq!(again.expect("acts"), first, "the same reply as before");
    assert_eq!(ctx.view().await, changed, "and nothing is done twice");
    assert_eq!(noted.record.notes.len(), 1);
}

pub(super) async fn i42_a_request_key_with_another_request_is_refused(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    let id = ctx.dead_letter(msg(1, "q"), "Bad").await.id();
    ctx.store.act(vec![note(id, keyed("k", "f"))]).await.expect("acts").remove(0).expect("open");
    let before = ctx.view().await;
    let conflict = Refusal::RequestConflict { key: "k".into() };
    assert_eq!(refused(ctx.store.act(vec![note(id, keyed("k", "g"))]).await), conflict);
    assert_eq!(refused(ctx.store.pause(q("q"), true, keyed("k", "f")).await), conflict, "another verb");
    assert_eq!(ctx.view().await, before);
    let bob = Actor { name: "bob".into(), ..keyed("k", "g") };
    ctx.store.act(vec![note(id, bob)]).await.expect("acts").remove(0).expect("a key belongs to its actor");
    assert_eq!(ctx.letter(id).await.record.notes.len(), 2);
}

pub(super) async fn i42_a_refused_call_can_be_repeated_with_its_key(ctx: &LawContext<'_>) {
    let nowhere = Refusal::NoSuchQueue { queue: q("q") };
    assert_eq!(refused(ctx.store.pause(q("q"), true, keyed("k", "f")).await), nowhere);
    ctx.send(msg(1, "q")).await;
    assert!(ctx.store.pause(q("q"), true, keyed("k", "f")).await.expect("there is a queue now").paused);
}

pub(super) async fn i42_every_audited_call_takes_a_request_key(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    let group = ctx.dead_letter(msg(1, "q"), "Bad").await.group;
    ctx.send(msg(2, "q")).await;
    ctx.send(msg(3, "q")).await;
    let breaker = Some(BreakerPolicy::new(BreakerKey::Queue));
    let policy = QueuePolicy { breaker, ..max_attempts(7) };
    for round in 0..2 {
        let queue = ctx.store.configure(q("q"), policy.clone(), keyed("1", "f")).await.expect("configures");
        assert_eq!(queue.policy.max_attempts, 7);
        let paused = ctx.store.pause(q("q"), true, keyed("2", "f")).await.expect("pauses");
        assert!(paused.paused, "round {round}");
        let cancelled = ctx.store.cancel(vec![message_id(2)], keyed("3", "f")).await.expect("cancels");
        assert_eq!(cancelled, [Ok(message_id(2))]);
        let breaker = ctx.store.force_breaker(q("q"), "q".into(), true, keyed("4", "f")).await;
        assert!(breaker.expect("opens").forced);
        let acknowledged = ctx.store.act_on_group(group, GroupAct::Acknowledge, keyed("5", "f")).await;
        assert_eq!(acknowledged.expect("acknowledges").id, group);
        let marker = ctx.store.mark("deploy".into(), keyed("6", "f")).await.expect("marks");
        assert_eq!((marker.n, marker.text.as_str()), (1, "deploy"));
        let started = ctx.store.start(spec(1 + round, keyed("7", "f"))).await.expect("starts");
        assert_eq!((started.id, started.stage), (operation_id(1), Stage::Freezing));
        let halted =
            ctx.store.control(operation_id(1), Control::Pause, keyed("8", "f")).await.expect("pauses");
        assert_eq!(halted.stage, Stage::Paused);
        let purged = ctx.store.purge(q("q"), keyed("9", "f")).await.expect("purges");
        assert_eq!((purged.purged, purged.more), (1, false));
    }
    let rows = ctx.audit_trail().await;
    let mut keys: Vec<String> = rows.into_iter().filter_map(|row| row.request).collect();
    keys.sort();
    assert_eq!(keys, ["1", "2", "3", "4", "5", "6", "7", "8", "9"], "one row for each");
    ctx.store.control(operation_id(1), Control::Resume, operator()).await.expect("resumes");
    while !ctx.store.step(operation_id(1)).await.expect("steps").stage.is_over() {}
    assert_eq!(ctx.letter(message_id(1)).await.record.status, Status::Resolved);
    let rows = ctx.audit_trail().await;
    let keys = rows.into_iter().filter(|row| row.request.as_deref() == Some("7")).count();
    assert_eq!(keys, 1, "what an operation does later is not the call that started it");
}

pub(super) async fn i42_a_request_key_is_forgotten_after_its_window(ctx: &LawContext<'_>) {
    ctx.send(msg(1, "q")).await;
    let mark = async || ctx.store.mark("deploy".into(), keyed("k", "f")).await.expect("marks").n;
    assert_eq!(mark().await, 1);
    ctx.clock.advance(Span::from_millis(limits::KEY_WINDOW.as_millis() - 1));
    assert_eq!(mark().await, 1);
    assert_eq!(ctx.store.reap(100).await.expect("reaps").keys_forgotten, 0);
    ctx.clock.advance(MS);
    assert_eq!(mark().await, 2, "the key is free again");
    ctx.store.mark("other".into(), keyed("l", "f")).await.expect("marks");
    ctx.clock.advance(limits::KEY_WINDOW);
    assert_eq!(ctx.store.reap(1).await.expect("reaps").keys_forgotten, 1, "bounded");
    assert_eq!(ctx.store.reap(100).await.expect("reaps").keys_forgotten, 1);
    assert_eq!(ctx.store.reap(100).await.expect("reaps").keys_forgotten, 0);
    assert_eq!(mark().await, 4);
}

pub(super) async fn i49_request_keys_are_bounded(ctx: &LawContext<'_>) {
    ctx.send(msg(1, "q")).await;
    for (field, key, fingerprint) in [
        ("request key", String::new(), "f".to_owned()),
        ("request key", "x".repeat(limits::KEY_BYTES_MAX + 1), "f".into()),
        ("request key", "a\nb".into(), "f".into()),
        ("fingerprint", "k".into(), "x".repeat(limits::LABEL_BYTES_MAX + 1)),
    ] {
        let actor = keyed(&key, &fingerprint);
        assert_eq!(refused_field(refused(ctx.store.pause(q("q"), true, actor).await)), field);
    }
    for namespace in ["requests", "requests-by-time"] {
        let put = ctx.store.kv_put(namespace.into(), "k".into(), Some(Vec::new()), 0).await;
        assert_eq!(refused_field(refused(put)), "namespace");
    }
    let found = ctx.store.verify(VerifyRequest { deep: true, repair: false }).await.expect("verifies");
    assert!(found.is_clean(), "{:?}", found.findings);
}
