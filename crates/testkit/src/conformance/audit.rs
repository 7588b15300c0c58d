//! Laws of the audit trail: each act exactly once, in order, in a chain that shows what was done to it (I48).

use super::Stage;
use super::kit::{field, hopeless, new, operator, q, refused, rules, secs};
use crate::clock::START;
use crate::ids::{message_id, operation_id};
use crate::observe::walk;
use redrive_core::audit::{AuditEntry, ORIGIN};
use redrive_core::dead_letter::{Act, ActRequest, Actor};
use redrive_core::filter::Filter;
use redrive_core::operation::OperationSpec;
use redrive_core::query::PageRequest;
use redrive_core::store::Settle;

pub(super) async fn i48_every_act_is_on_record_exactly_once(stage: &Stage<'_>) {
    let actor = Actor { reason: Some("because".into()), ..operator() };
    stage.store.configure(q("q"), rules(1), actor.clone()).await.expect("answers");
    for n in 1..=3 {
        stage.dead(new(n, "q"), "Bad").await;
    }
    stage.send(new(4, "q")).await;
    let at = stage.clock.advance(secs(1));
    let act = |n, act| ActRequest { id: message_id(n), act, actor: actor.clone(), expected_version: None };
    let batch = vec![act(1, Act::Note), act(1, Act::Resolve), act(9, Act::Resolve), act(1, Act::Purge)];
    stage.store.act(batch).await.expect("answers");
    stage.store.cancel(vec![message_id(4), message_id(4)], actor.clone()).await.expect("answers");
    let id = operation_id(1);
    let filter = Filter::default();
    let spec = OperationSpec { id, act: Act::Abandon, filter, bound: None, actor: actor.clone() };
    stage.store.start(spec).await.expect("answers");
    for _ in 0..5 {
        stage.store.step(id).await.expect("answers");
    }
    stage.store.reap(100).await.expect("answers");
    let row = |act: &str, target: String, count| AuditEntry::new(at, &actor, act, target, count);
    let expected = [
        row("note", message_id(1).to_string(), 1),
        row("resolve", message_id(1).to_string(), 1),
        row("purge", message_id(1).to_string(), 1),
        row("cancel", message_id(4).to_string(), 1),
        row("start", id.to_string(), 0).with_detail(""),
        row("abandon", id.to_string(), 2),
    ];
    let trail = stage.trail().await;
    assert_eq!((trail[0].act.as_str(), trail[0].at, trail[0].target.as_str()), ("configure", START, "q"));
    assert_eq!(trail[1..], expected);
    let numbers: Vec<_> =
        walk(|page| stage.store.audit(page)).await.expect("answers").iter().map(|r| r.n).collect();
    assert_eq!(numbers, [7, 6, 5, 4, 3, 2, 1]);
}

pub(super) async fn i48_work_leaves_no_rows(stage: &Stage<'_>) {
    stage.send(new(1, "q")).await;
    stage.send(new(2, "q")).await;
    stage.settle(stage.take_one("q").await.token, Settle::Ack).await.expect("held");
    stage.settle(stage.take_one("q").await.token, hopeless("Bad")).await.expect("held");
    stage.store.reap(10).await.expect("answers");
    assert_eq!(stage.trail().await, []);
    let report = stage.store.audit_verify(None).await.expect("answers");
    assert_eq!((report.rows, report.head.as_str(), report.broken), (0, ORIGIN, None));
}

pub(super) async fn i48_the_chain_holds_and_knows_its_heads(stage: &Stage<'_>) {
    let mut heads = Vec::new();
    for n in 1..=4 {
        stage.set("q", rules(n)).await;
        let report = stage.store.audit_verify(None).await.expect("answers");
        assert_eq!((report.rows, report.broken), (u64::from(n), None));
        heads.push(report.head);
    }
    let rows = walk(|page| stage.store.audit(page)).await.expect("answers");
    let seals: Vec<_> = rows.iter().rev().map(|row| row.seal.clone()).collect();
    assert_eq!(seals, heads, "a head is the seal of the last row");
    for head in heads {
        assert_eq!(stage.store.audit_verify(Some(head)).await.expect("answers").broken, None);
    }
    let forged = Some("ab".repeat(32));
    assert!(stage.store.audit_verify(forged).await.expect("answers").broken.is_some(), "a head nobody wrote");
}

pub(super) async fn the_trail_is_paged_latest_first(stage: &Stage<'_>) {
    for n in 1..=5 {
        stage.set("q", rules(n)).await;
    }
    let first = stage.store.audit(PageRequest::first(2)).await.expect("answers");
    stage.set("q", rules(9)).await;
    let rest = PageRequest { limit: Some(3), cursor: first.next };
    let rest = stage.store.audit(rest).await.expect("answers");
    let numbers: Vec<_> = first.items.iter().chain(&rest.items).map(|row| row.n).collect();
    assert_eq!((numbers, rest.next), (vec![5, 4, 3, 2, 1], None), "new rows do not move old ones");
    let foreign = PageRequest { limit: None, cursor: Some(redrive_core::query::Cursor::after("m", 1)) };
    assert_eq!(field(refused(stage.store.audit(foreign).await)), "cursor");
}
