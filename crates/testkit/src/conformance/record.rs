//! Laws of acts that no other verb records: one audit row each, and the values that belong to an act change with it (I48).

use super::LawContext;
use super::kit::{operator, refused, refused_field};
use redrive_core::audit::AuditEntry;
use redrive_core::dead_letter::{Actor, RequestKey};
use redrive_core::error::Refusal;
use redrive_core::limits;
use redrive_core::recording::{KvWrite, OutsideAct, RecordRequest};
use redrive_core::store::{BatchResults, KvEntry};

fn write(key: &str, value: Option<&[u8]>, expected: u64) -> KvWrite {
    KvWrite { namespace: "n".into(), key: key.into(), value: value.map(<[u8]>::to_vec), expected }
}

fn request(act: OutsideAct, target: &str) -> RecordRequest {
    RecordRequest::new(act, operator(), target)
}

impl LawContext<'_> {
    async fn record(&self, batch: Vec<RecordRequest>) -> BatchResults<()> {
        self.store.record(batch).await.expect("record succeeds")
    }

    async fn value(&self, key: &str) -> Option<KvEntry> {
        self.store.kv_get("n".into(), key.into()).await.expect("kv_get succeeds")
    }
}

pub(super) async fn i48_an_act_beside_the_verbs_is_on_record(ctx: &LawContext<'_>) {
    let now = ctx.now();
    assert_eq!(ctx.record(Vec::new()).await, []);
    let peer = Actor::new("unknown", "10.0.0.7");
    let refused =
        RecordRequest { count: 17, ..RecordRequest::new(OutsideAct::Refuse, peer.clone(), "cross_site") };
    let keyed = RequestKey { key: "k".into(), fingerprint: "f".into() };
    let keyed = Actor { reason: Some("why".into()), request: Some(keyed), ..operator() };
    let batch = vec![
        refused.with_detail("POST /api/v1/dlq/{id}/retry"),
        RecordRequest::new(OutsideAct::SilenceAlert, keyed.clone(), "depth"),
    ];
    assert_eq!(ctx.record(batch).await, [Ok(()), Ok(())]);
    let expected = [
        AuditEntry::new(now, &peer, "refuse", "cross_site", 17).with_detail("POST /api/v1/dlq/{id}/retry"),
        AuditEntry::new(now, &keyed.without_request(), "silence alert", "depth", 1),
    ];
    assert_eq!(ctx.audit_trail().await, expected, "in the order of the batch, at the time of the store");
    for act in OutsideAct::ALL {
        assert_eq!(ctx.record(vec![request(*act, "t")]).await, [Ok(())]);
        assert_eq!(ctx.audit_trail().await.last().map(|entry| entry.act.clone()), Some(act.to_string()));
    }
}

pub(super) async fn i48_an_act_and_its_values_are_one_change(ctx: &LawContext<'_>) {
    let before = ctx.store.changes(None, redrive_core::time::Span::ZERO).await.expect("changes").at;
    let create = request(OutsideAct::CreateToken, "t").writing(write("index", Some(b"t"), 0));
    assert_eq!(ctx.record(vec![create.writing(write("t", Some(b"x"), 0))]).await, [Ok(())]);
    assert_eq!(ctx.value("index").await, Some(KvEntry { value: b"t".to_vec(), version: 1 }));
    assert_eq!(ctx.value("t").await, Some(KvEntry { value: b"x".to_vec(), version: 1 }));
    let changes = ctx.store.changes(Some(before), redrive_core::time::Span::ZERO).await.expect("changes");
    let areas: Vec<String> = changes.areas.iter().map(|area| format!("{area:?}")).collect();
    assert_eq!(areas.len(), 2, "the audit trail and the values: {areas:?}");
    let revoke = request(OutsideAct::RevokeToken, "t").writing(write("index", Some(b""), 1));
    assert_eq!(ctx.record(vec![revoke.writing(write("t", None, 1))]).await, [Ok(())]);
    assert_eq!(ctx.value("t").await, None);
    assert_eq!(ctx.value("index").await.map(|entry| entry.version), Some(2));
    assert_eq!(ctx.audit_trail().await.len(), 2);
}

pub(super) async fn i48_an_act_whose_values_have_changed_is_not_recorded(ctx: &LawContext<'_>) {
    ctx.store.kv_put("n".into(), "b".into(), Some(vec![1]), 0).await.expect("written");
    let stale = request(OutsideAct::CreateToken, "t").writing(write("a", Some(b"x"), 0)).writing(write(
        "b",
        Some(b"x"),
        0,
    ));
    let fine = request(OutsideAct::CreateToken, "u").writing(write("c", Some(b"x"), 0));
    let conflict = Refusal::KvConflict { namespace: "n".into(), key: "b".into() };
    assert_eq!(ctx.record(vec![stale, fine.clone(), fine]).await[..2], [Err(conflict), Ok(())]);
    assert_eq!(ctx.value("a").await, None, "a refused act changes nothing");
    assert_eq!(ctx.value("b").await, Some(KvEntry { value: vec![1], version: 1 }));
    assert_eq!(ctx.value("c").await.map(|entry| entry.version), Some(1), "an entry sees those before it");
    let targets: Vec<String> = ctx.audit_trail().await.into_iter().map(|entry| entry.target).collect();
    assert_eq!(targets, ["u"]);
    let anchor = KvWrite { namespace: "audit".into(), ..write("anchor", None, 0) };
    let forged = ctx.record(vec![request(OutsideAct::Refuse, "t").writing(anchor)]).await;
    assert_eq!(
        forged.into_iter().map(|one| refused_field(one.expect_err("refused"))).collect::<Vec<_>>(),
        ["namespace"]
    );
}

pub(super) async fn i49_a_recorded_act_is_bounded(ctx: &LawContext<'_>) {
    let field = async |request: RecordRequest| {
        let results = ctx.record(vec![request]).await;
        refused_field(results.into_iter().next().expect("one result").expect_err("refused"))
    };
    let long = "x".repeat(limits::NOTE_BYTES_MAX + 1);
    assert_eq!(field(request(OutsideAct::Refuse, &long)).await, "target");
    assert_eq!(field(request(OutsideAct::Refuse, "a\nb")).await, "target");
    assert_eq!(field(request(OutsideAct::Refuse, "t").with_detail(long.clone())).await, "detail");
    let actor = Actor::new(long, "api");
    assert_eq!(field(RecordRequest::new(OutsideAct::Refuse, actor, "t")).await, "actor");
    let value = vec![0; limits::KV_BYTES_MAX + 1];
    let large = request(OutsideAct::CreateToken, "t").writing(write("k", Some(&value), 0));
    assert_eq!(field(large).await, "value");
    let many = (0..=limits::RECORD_WRITES_MAX).map(|n| write(&n.to_string(), Some(b"x"), 0)).collect();
    assert_eq!(
        field(RecordRequest { writes: many, ..request(OutsideAct::CreateToken, "t") }).await,
        "writes"
    );
    let twice = vec![write("k", Some(b"x"), 0), write("k", Some(b"y"), 1)];
    assert_eq!(
        field(RecordRequest { writes: twice, ..request(OutsideAct::CreateToken, "t") }).await,
        "writes"
    );
    let batch = vec![request(OutsideAct::Refuse, "t"); limits::BATCH_ENTRIES_MAX + 1];
    assert_eq!(refused_field(refused(ctx.store.record(batch).await)), "batch");
    assert_eq!(ctx.audit_trail().await, []);
}
