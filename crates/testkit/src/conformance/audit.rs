//! Laws of the audit trail: each act exactly once, in order, in a chain that shows what was done to it (I48).

use super::Stage;
use super::kit::{field, hopeless, new, operator, q, refused, rules, secs};
use crate::clock::START;
use crate::ids::{message_id, operation_id};
use crate::observe::walk;
use redrive_core::audit::{AuditEntry, AuditTrimmed, ORIGIN};
use redrive_core::dead_letter::{Act, ActRequest, Actor};
use redrive_core::filter::Filter;
use redrive_core::limits::AUDIT_TRIM_CHUNK;
use redrive_core::message::NewMessage;
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
    let spec = OperationSpec::new(id, Act::Abandon, filter, actor.clone());
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

pub(super) async fn i48_a_trimmed_trail_is_still_proved(stage: &Stage<'_>) {
    let mut heads = Vec::new();
    for n in 1..=4 {
        stage.set("q", rules(n)).await;
        heads.push(stage.store.audit_verify(None).await.expect("answers").head);
        stage.clock.advance(secs(10));
    }
    let before = START.plus(secs(20));
    let trimmed = stage.store.audit_trim(before, operator()).await.expect("answers");
    assert_eq!(trimmed, AuditTrimmed { rows: 2, more: false });
    let rows = walk(|page| stage.store.audit(page)).await.expect("answers");
    let trail: Vec<_> = rows.iter().map(|row| (row.n, row.entry.act.as_str())).collect();
    assert_eq!(trail, [(5, "trim"), (4, "configure"), (3, "configure")], "that it was done is on record");
    assert_eq!((rows[0].entry.count, rows[0].entry.target.as_str()), (2, "audit"));
    let report = stage.store.audit_verify(None).await.expect("answers");
    assert_eq!((report.rows, report.trimmed, report.broken), (3, 2, None));
    for (n, head) in heads.into_iter().enumerate() {
        let report = stage.store.audit_verify(Some(head)).await.expect("answers");
        assert_eq!(report.broken.is_some(), n == 0, "the anchor itself is the oldest that is known");
    }
    let all = stage.clock.advance(secs(1));
    assert_eq!(stage.store.audit_trim(all, operator()).await.expect("answers").rows, 3);
    stage.set("q", rules(9)).await;
    let report = stage.store.audit_verify(None).await.expect("answers");
    assert_eq!((report.rows, report.trimmed, report.broken), (2, 5, None));
    let put = stage.store.kv_put("audit".into(), "anchor".into(), None, 2).await;
    assert_eq!(field(refused(put)), "namespace", "the anchor is nobody's to change");
}

pub(super) async fn i48_what_is_young_is_not_trimmed_and_a_pass_is_bounded(stage: &Stage<'_>) {
    assert_eq!(stage.store.audit_trim(stage.now(), operator()).await, Ok(AuditTrimmed::default()));
    let names: Vec<_> = (0..AUDIT_TRIM_CHUNK as u64 + 5).map(message_id).collect();
    stage.set("q", rules(1)).await;
    for ids in names.chunks(1_000) {
        let batch = ids.iter().map(|id| NewMessage { id: *id, ..new(1, "q") }).collect();
        stage.store.enqueue(batch).await.expect("answers");
        stage.store.cancel(ids.to_vec(), operator()).await.expect("answers");
    }
    let young = stage.store.audit_trim(stage.now(), operator()).await.expect("answers");
    assert_eq!(young, AuditTrimmed::default(), "nothing is older than now");
    assert_eq!(stage.trail().await.len(), names.len() + 1, "and nothing was said about it");
    let now = stage.clock.advance(secs(1));
    let first = stage.store.audit_trim(now, operator()).await.expect("answers");
    assert_eq!(first, AuditTrimmed { rows: AUDIT_TRIM_CHUNK as u64, more: true });
    let second = stage.store.audit_trim(now, operator()).await.expect("answers");
    assert_eq!(second, AuditTrimmed { rows: 6, more: false });
    let too_long = Actor { name: "x".repeat(1_000), ..operator() };
    assert_eq!(field(refused(stage.store.audit_trim(now, too_long).await)), "actor");
}
