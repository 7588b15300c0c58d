//! Laws of the audit trail: each act appears exactly once, in order, in a chain that reveals tampering (I48).

use super::LawContext;
use super::kit::{fail_permanently, max_attempts, msg, operator, q, refused, refused_field, secs};
use crate::clock::START;
use crate::ids::{message_id, operation_id};
use crate::observe::read_all;
use redrive_core::audit::{AuditEntry, AuditTrimmed, ORIGIN};
use redrive_core::dead_letter::{Act, ActRequest, Actor};
use redrive_core::filter::Filter;
use redrive_core::limits::AUDIT_TRIM_CHUNK;
use redrive_core::message::NewMessage;
use redrive_core::operation::OperationSpec;
use redrive_core::query::PageRequest;
use redrive_core::store::Settle;

pub(super) async fn i48_every_act_is_on_record_exactly_once(ctx: &LawContext<'_>) {
    let actor = Actor { reason: Some("because".into()), ..operator() };
    ctx.store.configure(q("q"), max_attempts(1), actor.clone()).await.expect("succeeds");
    for n in 1..=3 {
        ctx.dead_letter(msg(n, "q"), "Bad").await;
    }
    ctx.send(msg(4, "q")).await;
    let at = ctx.clock.advance(secs(1));
    let act = |n, act| ActRequest { id: message_id(n), act, actor: actor.clone(), expected_version: None };
    let batch = vec![act(1, Act::Note), act(1, Act::Resolve), act(9, Act::Resolve), act(1, Act::Purge)];
    ctx.store.act(batch).await.expect("succeeds");
    ctx.store.cancel(vec![message_id(4), message_id(4)], actor.clone()).await.expect("succeeds");
    let id = operation_id(1);
    let filter = Filter::default();
    let spec = OperationSpec::new(id, Act::Abandon, filter, actor.clone());
    ctx.store.start(spec).await.expect("succeeds");
    for _ in 0..5 {
        ctx.store.step(id).await.expect("succeeds");
    }
    ctx.store.reap(100).await.expect("succeeds");
    let row = |act: &str, target: String, count| AuditEntry::new(at, &actor, act, target, count);
    let expected = [
        row("note", message_id(1).to_string(), 1),
        row("resolve", message_id(1).to_string(), 1),
        row("purge", message_id(1).to_string(), 1),
        row("cancel", message_id(4).to_string(), 1),
        row("start", id.to_string(), 0).with_detail(""),
        row("abandon", id.to_string(), 2),
    ];
    let trail = ctx.audit_trail().await;
    assert_eq!((trail[0].act.as_str(), trail[0].at, trail[0].target.as_str()), ("configure", START, "q"));
    assert_eq!(trail[1..], expected);
    let numbers: Vec<_> =
        read_all(|page| ctx.store.audit(page)).await.expect("succeeds").iter().map(|r| r.n).collect();
    assert_eq!(numbers, [7, 6, 5, 4, 3, 2, 1]);
}

pub(super) async fn i48_ordinary_work_writes_no_audit_rows(ctx: &LawContext<'_>) {
    ctx.send(msg(1, "q")).await;
    ctx.send(msg(2, "q")).await;
    ctx.settle(ctx.lease_one("q").await.token, Settle::Ack).await.expect("held");
    ctx.settle(ctx.lease_one("q").await.token, fail_permanently("Bad")).await.expect("held");
    ctx.store.reap(10).await.expect("succeeds");
    assert_eq!(ctx.audit_trail().await, []);
    let report = ctx.store.audit_verify(None).await.expect("succeeds");
    assert_eq!((report.rows, report.head.as_str(), report.broken), (0, ORIGIN, None));
}

pub(super) async fn i48_the_chain_verifies_and_recognises_its_heads(ctx: &LawContext<'_>) {
    let mut heads = Vec::new();
    for n in 1..=4 {
        ctx.configure("q", max_attempts(n)).await;
        let report = ctx.store.audit_verify(None).await.expect("succeeds");
        assert_eq!((report.rows, report.broken), (u64::from(n), None));
        heads.push(report.head);
    }
    let rows = read_all(|page| ctx.store.audit(page)).await.expect("succeeds");
    let seals: Vec<_> = rows.iter().rev().map(|row| row.seal.clone()).collect();
    assert_eq!(seals, heads, "a head is the seal of the last row");
    for head in heads {
        assert_eq!(ctx.store.audit_verify(Some(head)).await.expect("succeeds").broken, None);
    }
    let forged = Some("ab".repeat(32));
    assert!(ctx.store.audit_verify(forged).await.expect("succeeds").broken.is_some(), "an unknown head");
}

pub(super) async fn the_trail_is_paged_latest_first(ctx: &LawContext<'_>) {
    for n in 1..=5 {
        ctx.configure("q", max_attempts(n)).await;
    }
    let first = ctx.store.audit(PageRequest::first(2)).await.expect("succeeds");
    ctx.configure("q", max_attempts(9)).await;
    let rest = PageRequest { limit: Some(3), cursor: first.next };
    let rest = ctx.store.audit(rest).await.expect("succeeds");
    let numbers: Vec<_> = first.items.iter().chain(&rest.items).map(|row| row.n).collect();
    assert_eq!((numbers, rest.next), (vec![5, 4, 3, 2, 1], None), "new rows do not shift the pages");
    let foreign = PageRequest { limit: None, cursor: Some(redrive_core::query::Cursor::after("m", 1)) };
    assert_eq!(refused_field(refused(ctx.store.audit(foreign).await)), "cursor");
}

pub(super) async fn i48_a_trimmed_trail_still_verifies(ctx: &LawContext<'_>) {
    let mut heads = Vec::new();
    for n in 1..=4 {
        ctx.configure("q", max_attempts(n)).await;
        heads.push(ctx.store.audit_verify(None).await.expect("succeeds").head);
        ctx.clock.advance(secs(10));
    }
    let before = START.plus(secs(20));
    let trimmed = ctx.store.audit_trim(before, operator()).await.expect("succeeds");
    assert_eq!(trimmed, AuditTrimmed { rows: 2, more: false });
    let rows = read_all(|page| ctx.store.audit(page)).await.expect("succeeds");
    let trail: Vec<_> = rows.iter().map(|row| (row.n, row.entry.act.as_str())).collect();
    assert_eq!(trail, [(5, "trim"), (4, "configure"), (3, "configure")], "the trim itself is in the trail");
    assert_eq!((rows[0].entry.count, rows[0].entry.target.as_str()), (2, "audit"));
    let report = ctx.store.audit_verify(None).await.expect("succeeds");
    assert_eq!((report.rows, report.trimmed, report.broken), (3, 2, None));
    for (n, head) in heads.into_iter().enumerate() {
        let report = ctx.store.audit_verify(Some(head)).await.expect("succeeds");
        assert_eq!(report.broken.is_some(), n == 0, "the anchor is the oldest known head");
    }
    let all = ctx.clock.advance(secs(1));
    assert_eq!(ctx.store.audit_trim(all, operator()).await.expect("succeeds").rows, 3);
    ctx.configure("q", max_attempts(9)).await;
    let report = ctx.store.audit_verify(None).await.expect("succeeds");
    assert_eq!((report.rows, report.trimmed, report.broken), (2, 5, None));
    let put = ctx.store.kv_put("audit".into(), "anchor".into(), None, 2).await;
    assert_eq!(refused_field(refused(put)), "namespace", "callers cannot change the anchor");
}

pub(super) async fn i48_recent_rows_are_not_trimmed_and_a_pass_is_bounded(ctx: &LawContext<'_>) {
    assert_eq!(ctx.store.audit_trim(ctx.now(), operator()).await, Ok(AuditTrimmed::default()));
    let names: Vec<_> = (0..AUDIT_TRIM_CHUNK as u64 + 5).map(message_id).collect();
    ctx.configure("q", max_attempts(1)).await;
    for ids in names.chunks(1_000) {
        let batch = ids.iter().map(|id| NewMessage { id: *id, ..msg(1, "q") }).collect();
        ctx.store.enqueue(batch).await.expect("succeeds");
        ctx.store.cancel(ids.to_vec(), operator()).await.expect("succeeds");
    }
    let young = ctx.store.audit_trim(ctx.now(), operator()).await.expect("succeeds");
    assert_eq!(young, AuditTrimmed::default(), "nothing is older than now");
    assert_eq!(ctx.audit_trail().await.len(), names.len() + 1, "no row for a trim without effect");
    let now = ctx.clock.advance(secs(1));
    let first = ctx.store.audit_trim(now, operator()).await.expect("succeeds");
    assert_eq!(first, AuditTrimmed { rows: AUDIT_TRIM_CHUNK as u64, more: true });
    let second = ctx.store.audit_trim(now, operator()).await.expect("succeeds");
    assert_eq!(second, AuditTrimmed { rows: 6, more: false });
    let too_long = Actor { name: "x".repeat(1_000), ..operator() };
    assert_eq!(refused_field(refused(ctx.store.audit_trim(now, too_long).await)), "actor");
}
