//! Laws of letter content: edits with revisions, patches that keep every other byte, restore and erase (I39).

use super::LawContext;
use super::kit::{fail_permanently, max_attempts, msg, operator, q, refused, refused_field, secs};
use crate::clock::START;
use crate::ids::operation_id;
use redrive_core::breaker::{BreakerKey, BreakerPolicy};
use redrive_core::dead_letter::{Act, ActRequest, Actor, DeadLetter, Status, TimelineEntry, TimelineEvent};
use redrive_core::error::Refusal;
use redrive_core::filter::Filter;
use redrive_core::ids::MessageId;
use redrive_core::limits;
use redrive_core::message::{NewMessage, Payload};
use redrive_core::operation::{MemberOutcome, OperationSpec, Stage};
use redrive_core::patch::Patch;
use redrive_core::policy::QueuePolicy;
use redrive_core::query::PageRequest;
use redrive_core::revision::{Content, Edit, EditRecord, Erased, Revision};
use redrive_core::store::{
    HandOver, LetterLeaseRequest, LetterSettle, LetterSettlement, LetterState, Settle, with_revisions,
};
use std::collections::BTreeMap;

/// JSON with spacing, key order and digits that no serializer would write.
const ODD_JSON: &str = "{ \"z\":1.50 ,\n\t\"id\": 12345678901234567890123, \"a\" : [ ] }";

fn payload(bytes: impl Into<Vec<u8>>) -> Payload {
    Payload { bytes: bytes.into(), content_type: "application/json".into() }
}

fn headers(value: &str) -> BTreeMap<String, String> {
    [("h".to_owned(), value.to_owned())].into()
}

fn sent(n: u64) -> NewMessage {
    NewMessage { payload: payload(ODD_JSON), headers: headers("first"), ..msg(n, "q") }
}

fn bytes(payload: Payload) -> Act {
    Act::Edit(Box::new(Edit { payload: Some(payload), headers: None }))
}

fn patch(text: &str) -> Act {
    Act::Patch(Box::new(Patch::parse(text).expect("a patch")))
}

fn actor_because(reason: &str) -> Actor {
    Actor { reason: Some(reason.into()), ..operator() }
}

impl LawContext<'_> {
    /// Edits the current version of a letter.
    async fn edit(&self, id: MessageId, act: Act) -> Result<LetterState, Refusal> {
        let version = self.letter(id).await.record.version;
        self.act_as(ActRequest { id, act, actor: operator(), expected_version: Some(version) }).await
    }

    async fn revisions(&self, id: MessageId) -> Vec<Revision> {
        self.store.revisions(id).await.expect("the letter exists")
    }
}

pub(super) async fn i39_an_edit_keeps_what_it_replaces(ctx: &LawContext<'_>) {
    let before = ctx.dead_letter(sent(1), "Bad").await;
    let id = before.id();
    let original = Content::of(&before.message.envelope);
    let first = Revision { n: 0, at: START, by: String::new(), reason: None, content: original.clone() };
    assert_eq!(ctx.revisions(id).await, std::slice::from_ref(&first), "only the original");
    let now = ctx.clock.advance(secs(5));
    let next = Content {
        payload: Payload { bytes: vec![0xff, 0, b'{'], content_type: String::new() },
        headers: headers("second"),
    };
    let edit = Edit { payload: Some(next.payload.clone()), headers: Some(next.headers.clone()) };
    let request = ActRequest {
        id,
        act: Act::Edit(Box::new(edit)),
        actor: actor_because("wrong address"),
        expected_version: Some(before.record.version),
    };
    let state = LetterState { id, status: Some(Status::Pending), version: before.record.version + 1 };
    assert_eq!(ctx.act_as(request).await, Ok(state));
    let mut expected = before.clone();
    expected.record.version += 1;
    expected.message.envelope.payload = next.payload.clone();
    expected.message.envelope.headers = next.headers.clone();
    let after = ctx.letter(id).await;
    assert!(after.record.body_hash.is_some());
    expected.record.body_hash.clone_from(&after.record.body_hash);
    let event = TimelineEntry::new(now, TimelineEvent::Edited).by(Some("ada")).with_detail("revision 1");
    expected.record.history.push(event.with_reason(Some("wrong address")));
    expected.record.edits = vec![EditRecord {
        n: 1,
        at: now,
        by: "ada".into(),
        reason: Some("wrong address".into()),
        before: original.digest(),
        after: next.digest(),
        bytes: ODD_JSON.len() as u64,
    }];
    assert_eq!(after, expected, "only the content changed");
    let second =
        Revision { n: 1, at: now, by: "ada".into(), reason: Some("wrong address".into()), content: next };
    assert_eq!(ctx.revisions(id).await, [first, second]);
    let last = ctx.audit_trail().await.pop().expect("a row");
    assert_eq!((last.act.as_str(), last.target, last.count), ("edit", id.to_string(), 1));
}

pub(super) async fn i39_an_edit_is_delivered_and_the_original_can_be_restored(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    let original = Content::of(&ctx.dead_letter(sent(1), "Bad").await.message.envelope);
    let id = msg(1, "q").id;
    ctx.edit(id, patch(r#"[{"op":"replace","path":"/id","value":7}]"#)).await.expect("it fits");
    let fixed = ODD_JSON.replace("12345678901234567890123", "7");
    ctx.act(id, Act::retry()).await.expect("open");
    let message = ctx.message(id).await;
    assert_eq!(message.envelope.payload.bytes, fixed.as_bytes(), "the live message has the new content");
    assert_eq!(ctx.counts("q").await.bytes, i64::try_from(fixed.len()).expect("small"));
    let taken = ctx.lease_one("q").await;
    assert_eq!(taken.message.envelope.payload, payload(fixed.clone()), "the edited body is delivered");
    ctx.settle(taken.token, fail_permanently("Again")).await.expect("held");
    let letter = ctx.letter(id).await;
    assert_eq!((letter.record.edits.len(), letter.message.generation), (1, 2), "a death keeps the edits");
    assert_eq!(ctx.revisions(id).await[0].content, original);
    let wanted = Act::Restore { n: 0 };
    ctx.act_as(ActRequest { id, act: wanted, actor: actor_because("back"), expected_version: None })
        .await
        .expect("kept");
    let all = ctx.revisions(id).await;
    assert_eq!(all.iter().map(|r| r.n).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!((&all[2].content, all[2].reason.as_deref()), (&original, Some("back")));
    ctx.act(id, Act::retry()).await.expect("open");
    let taken = ctx.lease_one("q").await;
    assert_eq!(Content::of(&taken.message.envelope), original, "byte for byte");
    ctx.settle(taken.token, Settle::Ack).await.expect("held");
    assert_eq!(ctx.revisions(id).await.len(), 3, "a closed letter keeps its revisions");
    ctx.act(id, Act::Purge).await.expect("closed");
    assert_eq!(ctx.revisions(id).await.len(), 3, "and so does a purged one");
    ctx.clock.advance(limits::PURGE_UNDO);
    ctx.store.reap(100).await.expect("succeeds");
    assert_eq!(refused(ctx.store.revisions(id).await), Refusal::NoSuchLetter { id });
}

pub(super) async fn i39_two_operators_edit_one_letter(ctx: &LawContext<'_>) {
    let letter = ctx.dead_letter(sent(1), "Bad").await;
    let (id, seen) = (letter.id(), letter.record.version);
    let edit = |text: &str, expected_version| ActRequest {
        id,
        act: bytes(payload(text)),
        actor: operator(),
        expected_version,
    };
    ctx.act_as(edit("{\"by\":1}", Some(seen))).await.expect("the first edit");
    let before = ctx.view().await;
    let late = ctx.act_as(edit("{\"by\":2}", Some(seen))).await;
    assert_eq!(late, Err(Refusal::VersionConflict { id, expected: seen, actual: seen + 1 }));
    let blind = ctx.act_as(edit("{\"by\":2}", None)).await;
    assert_eq!(blind.map_err(refused_field), Err("expected_version".to_owned()));
    assert_eq!(ctx.view().await, before, "a refusal changes nothing");
    ctx.act_as(edit("{\"by\":2}", Some(seen + 1))).await.expect("based on the first edit");
    let texts: Vec<Vec<u8>> = ctx.revisions(id).await.into_iter().map(|r| r.content.payload.bytes).collect();
    assert_eq!(texts, [ODD_JSON.as_bytes(), b"{\"by\":1}", b"{\"by\":2}"]);
}

pub(super) async fn content_can_be_edited_only_in_open_statuses(ctx: &LawContext<'_>) {
    let until = START.plus(secs(3_600));
    let cases = [
        (Status::Pending, None),
        (Status::Review, Some(Act::Review)),
        (Status::Quarantined, Some(Act::Quarantine { until })),
        (Status::Retrying, Some(Act::retry())),
        (Status::Resolved, Some(Act::Resolve)),
        (Status::Abandoned, Some(Act::Abandon)),
        (Status::Purged, Some(Act::Purge)),
    ];
    for (n, (status, act_before)) in (1..).zip(cases) {
        let queue = format!("q{n}");
        let id = ctx.dead_letter(NewMessage { queue: q(&queue), ..sent(n) }, "Bad").await.id();
        ctx.edit(id, bytes(payload("{\"n\":1}"))).await.expect("open");
        if status == Status::Purged {
            ctx.act(id, Act::Resolve).await.expect("open");
        }
        if let Some(act_before) = act_before {
            ctx.act(id, act_before).await.expect("the act is allowed");
        }
        let acts =
            [bytes(payload("[]")), patch(r#"[{"op":"add","path":"/k","value":1}]"#), Act::Restore { n: 0 }];
        let open = matches!(status, Status::Pending | Status::Review | Status::Quarantined);
        for act in acts.into_iter().chain([Act::Erase]) {
            let allowed = open || act == Act::Erase && status != Status::Retrying;
            let (before, name) = (ctx.view().await, act.name());
            match ctx.edit(id, act.clone()).await {
                Ok(state) => assert!(allowed && state.status == Some(status), "{status} x {name}"),
                Err(Refusal::WrongStatus { act, .. }) => {
                    assert!(!allowed && act == name, "{status} x {name}");
                    assert_eq!(ctx.view().await, before, "a refusal changes nothing");
                }
                Err(other) => panic!("{status} x {name}: {other}"),
            }
            if allowed && act != Act::Erase {
                // Restores a document for the next act to change.
                ctx.edit(id, bytes(payload("{\"n\":2}"))).await.expect("open");
            }
        }
    }
    let unknown = msg(99, "q").id;
    assert_eq!(refused(ctx.store.revisions(unknown).await), Refusal::NoSuchLetter { id: unknown });
}

pub(super) async fn a_patch_keeps_every_other_byte(ctx: &LawContext<'_>) {
    let id = ctx.dead_letter(sent(1), "Bad").await.id();
    let steps = r#"[{"op":"test","path":"/id","value":12345678901234567890123},
                    {"op":"replace","path":"/z","value":99999999999999999999.10},
                    {"op":"add","path":"/a/-","value":"é"}]"#;
    ctx.act(id, patch(steps)).await.expect("the patch applies without a version");
    let after = ODD_JSON.replace("1.50", "99999999999999999999.10").replace("[ ]", "[\"é\" ]");
    let letter = ctx.letter(id).await;
    assert_eq!(letter.message.envelope.payload, payload(after));
    assert_eq!(letter.message.envelope.headers, headers("first"));
    let before = ctx.view().await;
    let gone = ctx.act(id, patch(r#"[{"op":"remove","path":"/none"}]"#)).await;
    assert!(matches!(&gone, Err(Refusal::PatchFailed { why, .. }) if why.contains("step 1")), "{gone:?}");
    let same = ctx.act(id, patch(r#"[{"op":"test","path":"/a/0","value":"é"}]"#)).await;
    assert_eq!(same, Err(Refusal::NoChange { id }));
    assert_eq!(ctx.view().await, before, "a refusal changes nothing");
    let text = ctx.dead_letter(msg(2, "q"), "Bad").await.id();
    let none = ctx.act(text, patch(r#"[{"op":"add","path":"","value":1}]"#)).await;
    assert!(matches!(&none, Err(Refusal::PatchFailed { why, .. }) if why.contains("not JSON")), "{none:?}");
}

pub(super) async fn i49_edits_are_bounded(ctx: &LawContext<'_>) {
    let id = ctx.dead_letter(sent(1), "Bad").await.id();
    let before = ctx.view().await;
    let large = payload(vec![b'x'; limits::PAYLOAD_BYTES_MAX + 1]);
    assert_eq!(ctx.edit(id, bytes(large)).await.map_err(refused_field), Err("payload".to_owned()));
    let many = (0..=limits::HEADERS_MAX).map(|n| (n.to_string(), String::new())).collect();
    let act = Act::Edit(Box::new(Edit { payload: None, headers: Some(many) }));
    assert_eq!(ctx.edit(id, act).await.map_err(refused_field), Err("headers".to_owned()));
    let same = Act::Edit(Box::default());
    assert_eq!(ctx.edit(id, same).await, Err(Refusal::NoChange { id }));
    assert_eq!(ctx.edit(id, Act::Restore { n: 7 }).await.map_err(refused_field), Err("revision".to_owned()));
    assert_eq!(ctx.view().await, before, "a refusal changes nothing");
    for n in 0..limits::EDITS_MAX {
        ctx.edit(id, bytes(payload(format!("{{\"n\":{n}}}")))).await.expect("within the bound");
    }
    assert_eq!(ctx.edit(id, Act::Restore { n: 0 }).await.map_err(refused_field), Err("content".to_owned()));
    assert_eq!(ctx.revisions(id).await.len(), limits::EDITS_MAX + 1);
}

pub(super) async fn i41_i42_an_edit_does_not_change_deduplication(ctx: &LawContext<'_>) {
    let keyed = |n| NewMessage { key: Some(format!("k{n}")), ..sent(n) };
    let ids = [ctx.dead_letter(keyed(1), "Bad").await.id(), ctx.dead_letter(sent(2), "Bad").await.id()];
    for id in ids {
        ctx.edit(id, bytes(payload("{\"n\":1}"))).await.expect("open");
    }
    for again in [keyed(1), sent(2)] {
        let known = ctx.try_send(again.clone()).await.expect("the original body");
        assert!(known.duplicate && known.id == again.id);
        let other = NewMessage { payload: payload("{\"n\":1}"), ..again.clone() };
        ctx.try_send(other).await.expect_err("the edited body was never sent");
    }
    ctx.act(ids[1], Act::retry()).await.expect("open");
    assert!(ctx.try_send(sent(2)).await.expect("also during a retry").duplicate);
    ctx.act(ids[0], Act::Erase).await.expect("open");
    assert!(ctx.try_send(keyed(1)).await.expect("also after an erase").duplicate);
    let id = ctx.dead_letter(NewMessage { queue: q("r"), ..sent(3) }, "Bad").await.id();
    ctx.act(id, Act::Erase).await.expect("open");
    assert!(
        ctx.try_send(NewMessage { queue: q("r"), ..sent(3) }).await.expect("also without a key").duplicate
    );
    ctx.try_send(NewMessage { queue: q("r"), ..msg(3, "r") }).await.expect_err("a different body");
}

pub(super) async fn an_erased_letter_is_a_tombstone(ctx: &LawContext<'_>) {
    let rich = NewMessage {
        context: Some(serde_json::json!({"tenant": "ada"})),
        tags: ["t".to_owned()].into(),
        ..sent(1)
    };
    let id = ctx.dead_letter(rich, "Bad").await.id();
    ctx.edit(id, bytes(payload("secret"))).await.expect("open");
    let before = ctx.letter(id).await;
    let now = ctx.clock.advance(secs(1));
    let request =
        ActRequest { id, act: Act::Erase, actor: actor_because("asked to"), expected_version: None };
    let state = LetterState { id, status: Some(Status::Pending), version: before.record.version + 1 };
    assert_eq!(ctx.act_as(request.clone()).await, Ok(state));
    let mut expected = before.clone();
    expected.message.envelope.payload = Payload::default();
    expected.message.envelope.headers = BTreeMap::new();
    expected.message.envelope.context = None;
    expected.eligible = false;
    expected.record.version += 1;
    let after = ctx.letter(id).await;
    expected.record.available_at = after.record.available_at;
    let event = TimelineEntry::new(now, TimelineEvent::Erased).by(Some("ada")).with_detail("6 bytes");
    expected.record.history.push(event.with_reason(Some("asked to")));
    // printf secret | sha256sum
    let sha256 = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
    expected.record.erased = Some(Erased {
        at: now,
        by: "ada".into(),
        reason: Some("asked to".into()),
        bytes: 6,
        sha256: Some(sha256.into()),
    });
    assert_eq!(after, expected, "the content is gone, the record stays");
    assert_eq!(ctx.revisions(id).await, []);
    for act in [
        Act::retry(),
        bytes(payload("{}")),
        patch(r#"[{"op":"add","path":"","value":1}]"#),
        Act::Restore { n: 0 },
    ] {
        let name = act.name().to_owned();
        assert_eq!(ctx.edit(id, act).await, Err(Refusal::Erased { id, act: name }));
    }
    assert_eq!(ctx.act_as(request).await, Ok(state), "a second erase changes nothing");
    assert_eq!(ctx.letter(id).await, after);
    for act_before in [Act::Review, Act::Release] {
        ctx.act(id, act_before).await.expect("its status can still change");
    }
    let request = LetterLeaseRequest { dlq: q("q-dlq"), max: 9, lease_for: None, worker: "c".into() };
    assert_eq!(ctx.store.lease_letters(request).await, Ok(vec![]), "an erased letter is not leased");
    ctx.act(id, Act::Resolve).await.expect("open");
    ctx.act(id, Act::Purge).await.expect("closed");
    assert_eq!(ctx.counts("q").await.purged, 1);
}

pub(super) async fn a_bulk_patch_that_fails_on_one_letter_is_applied_to_the_rest(ctx: &LawContext<'_>) {
    for n in 1..=20 {
        let odd = if n == 13 { "no document" } else { ODD_JSON };
        ctx.dead_letter(NewMessage { payload: payload(odd), ..sent(n) }, "Bad").await;
    }
    let act = patch(r#"[{"op":"replace","path":"/z","value":2}]"#);
    let spec = OperationSpec::new(operation_id(1), act, Filter::default(), actor_because("z"));
    ctx.store.start(spec).await.expect("started");
    let mut operation = ctx.store.step(operation_id(1)).await.expect("steps");
    while operation.stage != Stage::Done {
        operation = ctx.store.step(operation_id(1)).await.expect("steps");
    }
    let outcomes = operation.outcomes;
    assert_eq!((operation.members, outcomes.succeeded, outcomes.skipped), (20, 19, 1));
    let members = ctx.store.members(operation_id(1), PageRequest::default()).await.expect("succeeds").items;
    let skipped: Vec<MessageId> =
        members.iter().filter(|m| m.outcome == MemberOutcome::Skipped).map(|m| m.id).collect();
    assert_eq!(skipped, [msg(13, "q").id]);
    for letter in ctx.letters("").await {
        let other = letter.id() == msg(13, "q").id;
        let text = if other { "no document".to_owned() } else { ODD_JSON.replace("1.50", "2") };
        assert_eq!(letter.message.envelope.payload, payload(text));
        assert_eq!(
            letter.record.edits.len(),
            usize::from(!other),
            "one edit each, except for the failed one"
        );
    }
}

pub(super) async fn i33_an_imported_letter_keeps_its_revisions(ctx: &LawContext<'_>) {
    let id = ctx.dead_letter(sent(1), "Bad").await.id();
    ctx.edit(id, bytes(payload(vec![0xfe, 0xff]))).await.expect("open");
    ctx.edit(id, Act::Restore { n: 0 }).await.expect("kept");
    let bare = ctx.letter(id).await;
    assert_eq!(bare.revisions, [], "a letter is read without its revisions");
    let whole = with_revisions(ctx.store, bare.clone()).await.expect("kept");
    assert_eq!(whole.revisions.len(), 2);
    let text = serde_json::to_string(&whole).expect("an export");
    let back: DeadLetter = serde_json::from_str(&text).expect("an import");
    assert_eq!(back, whole, "an export is lossless");
    let version = bare.record.version;
    let gone = ctx.store.hand_over(vec![HandOver { id, version }], operator()).await.expect("succeeds");
    assert_eq!(gone, [Ok(id)]);
    let mut forged = whole.clone();
    forged.revisions[1].content.payload.bytes.push(b'!');
    for wrong in [bare, forged] {
        let each = ctx.store.import(vec![wrong], operator()).await.expect("succeeds");
        assert_eq!(
            each.into_iter().map(|one| one.map_err(refused_field)).collect::<Vec<_>>(),
            [Err("revisions".to_owned())]
        );
    }
    assert_eq!(ctx.store.import(vec![back], operator()).await, Ok(vec![Ok(id)]));
    let again = with_revisions(ctx.store, ctx.letter(id).await).await.expect("kept");
    assert_eq!((again.revisions, again.record), (whole.revisions, whole.record));
    ctx.edit(id, Act::Restore { n: 1 }).await.expect("kept");
    assert_eq!(ctx.letter(id).await.message.envelope.payload.bytes, [0xfe, 0xff]);
}

pub(super) async fn only_the_consumer_can_edit_a_leased_letter(ctx: &LawContext<'_>) {
    let id = ctx.dead_letter(sent(1), "Bad").await.id();
    let request = LetterLeaseRequest { dlq: q("q-dlq"), max: 1, lease_for: None, worker: "c".into() };
    let token = ctx.store.lease_letters(request).await.expect("succeeds").remove(0).token;
    for act in [bytes(payload("{}")), Act::Erase] {
        let got = ctx.edit(id, act).await;
        assert!(matches!(got, Err(Refusal::LetterLeased { .. })), "{got:?}");
    }
    let what = LetterSettle::Do { act: bytes(payload("{}")), actor: operator() };
    let done = ctx.store.settle_letters(vec![LetterSettlement { token, what }]).await.expect("succeeds");
    assert!(done[0].is_ok(), "the consumer may edit: {done:?}");
    let letter = ctx.letter(id).await;
    assert_eq!((letter.message.envelope.payload, letter.record.consumer), (payload("{}"), None));
}

pub(super) async fn an_edited_message_uses_the_breaker_of_its_new_content(ctx: &LawContext<'_>) {
    let breaker = Some(BreakerPolicy::new(BreakerKey::Header("h".into())));
    ctx.configure("q", QueuePolicy { breaker, ..max_attempts(1) }).await;
    let id = ctx.dead_letter(sent(1), "Bad").await.id();
    ctx.store.force_breaker(q("q"), "first".into(), true, operator()).await.expect("forced");
    let elsewhere = Edit { payload: None, headers: Some(headers("second")) };
    ctx.edit(id, Act::Edit(Box::new(elsewhere))).await.expect("open");
    ctx.act(id, Act::retry()).await.expect("open");
    let taken = ctx.lease_one("q").await;
    assert_eq!(taken.message.envelope.headers, headers("second"), "its new breaker is closed");
    ctx.settle(taken.token, fail_permanently("Again")).await.expect("held");
    ctx.edit(id, Act::Restore { n: 0 }).await.expect("kept");
    ctx.act(id, Act::retry()).await.expect("open");
    assert_eq!(ctx.lease("q", 1).await, vec![], "its breaker is open again");
}
