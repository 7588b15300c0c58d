//! Laws of what a letter says: edits with lineage, patches that keep every other byte, restore, erase (I39).

use super::Stage;
use super::kit::{field, hopeless, new, operator, q, refused, rules, secs};
use crate::clock::START;
use crate::ids::operation_id;
use redrive_core::breaker::{BreakerKey, BreakerPolicy};
use redrive_core::dead_letter::{Act, ActRequest, Actor, DeadLetter, Happening, Moment, Status};
use redrive_core::error::Refusal;
use redrive_core::filter::Filter;
use redrive_core::ids::MessageId;
use redrive_core::limits;
use redrive_core::message::{NewMessage, Payload};
use redrive_core::operation::{MemberOutcome, OperationSpec, Stage as Step};
use redrive_core::patch::Patch;
use redrive_core::policy::QueuePolicy;
use redrive_core::query::PageRequest;
use redrive_core::revision::{Content, Edit, EditMark, Erased, Revision};
use redrive_core::store::{
    HandOver, LetterLeaseRequest, LetterSettle, LetterSettlement, LetterState, Settle,
};
use std::collections::BTreeMap;

/// Spacing, order and digits that no serializer would write, and bytes after it that are no text at all.
const ODD: &str = "{ \"z\":1.50 ,\n\t\"id\": 12345678901234567890123, \"a\" : [ ] }";

fn payload(bytes: impl Into<Vec<u8>>) -> Payload {
    Payload { bytes: bytes.into(), content_type: "application/json".into() }
}

fn headers(value: &str) -> BTreeMap<String, String> {
    [("h".to_owned(), value.to_owned())].into()
}

fn sent(n: u64) -> NewMessage {
    NewMessage { payload: payload(ODD), headers: headers("first"), ..new(n, "q") }
}

fn bytes(payload: Payload) -> Act {
    Act::Edit(Box::new(Edit { payload: Some(payload), headers: None }))
}

fn patch(text: &str) -> Act {
    Act::Patch(Box::new(Patch::parse(text).expect("a patch")))
}

fn because(reason: &str) -> Actor {
    Actor { reason: Some(reason.into()), ..operator() }
}

impl Stage<'_> {
    /// Edits a letter as it is now.
    async fn edit(&self, id: MessageId, act: Act) -> Result<LetterState, Refusal> {
        let version = self.letter(id).await.file.version;
        self.act_as(ActRequest { id, act, actor: operator(), expected_version: Some(version) }).await
    }

    async fn revisions(&self, id: MessageId) -> Vec<Revision> {
        self.store.revisions(id).await.expect("the letter is there")
    }
}

pub(super) async fn i39_an_edit_keeps_what_it_replaces(stage: &Stage<'_>) {
    let before = stage.dead(sent(1), "Bad").await;
    let id = before.id();
    let original = Content::of(&before.message.envelope);
    let first = Revision { n: 0, at: START, by: String::new(), reason: None, content: original.clone() };
    assert_eq!(stage.revisions(id).await, std::slice::from_ref(&first), "the original, and nothing else");
    let now = stage.clock.advance(secs(5));
    let next = Content {
        payload: Payload { bytes: vec![0xff, 0, b'{'], content_type: String::new() },
        headers: headers("second"),
    };
    let edit = Edit { payload: Some(next.payload.clone()), headers: Some(next.headers.clone()) };
    let request = ActRequest {
        id,
        act: Act::Edit(Box::new(edit)),
        actor: because("wrong address"),
        expected_version: Some(before.file.version),
    };
    let state = LetterState { id, status: Some(Status::Pending), version: before.file.version + 1 };
    assert_eq!(stage.act_as(request).await, Ok(state));
    let mut expected = before.clone();
    expected.file.version += 1;
    expected.message.envelope.payload = next.payload.clone();
    expected.message.envelope.headers = next.headers.clone();
    let after = stage.letter(id).await;
    assert!(after.file.body_hash.is_some());
    expected.file.body_hash.clone_from(&after.file.body_hash);
    let event = Moment::new(now, Happening::Edited).by(Some("ada")).saying("revision 1");
    expected.file.history.push(event.because(Some("wrong address")));
    expected.file.edits = vec![EditMark {
        n: 1,
        at: now,
        by: "ada".into(),
        reason: Some("wrong address".into()),
        before: original.digest(),
        after: next.digest(),
        bytes: ODD.len() as u64,
    }];
    assert_eq!(after, expected, "and nothing else changed");
    let second =
        Revision { n: 1, at: now, by: "ada".into(), reason: Some("wrong address".into()), content: next };
    assert_eq!(stage.revisions(id).await, [first, second]);
    let last = stage.trail().await.pop().expect("a row");
    assert_eq!((last.act.as_str(), last.target, last.count), ("edit", id.to_string(), 1));
}

pub(super) async fn i39_an_edit_is_delivered_and_the_original_can_be_had_back(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    let original = Content::of(&stage.dead(sent(1), "Bad").await.message.envelope);
    let id = new(1, "q").id;
    stage.edit(id, patch(r#"[{"op":"replace","path":"/id","value":7}]"#)).await.expect("it fits");
    let fixed = ODD.replace("12345678901234567890123", "7");
    stage.act(id, Act::retry()).await.expect("open");
    let message = stage.message(id).await;
    assert_eq!(message.envelope.payload.bytes, fixed.as_bytes(), "the live message says so");
    assert_eq!(stage.counts("q").await.bytes, i64::try_from(fixed.len()).expect("small"));
    let taken = stage.take_one("q").await;
    assert_eq!(taken.message.envelope.payload, payload(fixed.clone()), "the edited body is delivered");
    stage.settle(taken.token, hopeless("Again")).await.expect("held");
    let letter = stage.letter(id).await;
    assert_eq!((letter.file.edits.len(), letter.message.generation), (1, 2), "death forgets nothing");
    assert_eq!(stage.revisions(id).await[0].content, original);
    let wanted = Act::Restore { n: 0 };
    stage
        .act_as(ActRequest { id, act: wanted, actor: because("back"), expected_version: None })
        .await
        .expect("kept");
    let all = stage.revisions(id).await;
    assert_eq!(all.iter().map(|r| r.n).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!((&all[2].content, all[2].reason.as_deref()), (&original, Some("back")));
    stage.act(id, Act::retry()).await.expect("open");
    let taken = stage.take_one("q").await;
    assert_eq!(Content::of(&taken.message.envelope), original, "bit for bit");
    stage.settle(taken.token, Settle::Ack).await.expect("held");
    assert_eq!(stage.revisions(id).await.len(), 3, "a closed letter keeps its lineage");
    stage.act(id, Act::Purge).await.expect("closed");
    assert_eq!(stage.revisions(id).await.len(), 3, "and so does one that can be taken back");
    stage.clock.advance(limits::PURGE_UNDO);
    stage.store.reap(100).await.expect("answers");
    assert_eq!(refused(stage.store.revisions(id).await), Refusal::NoSuchLetter { id });
}

pub(super) async fn i39_two_operators_edit_one_letter(stage: &Stage<'_>) {
    let letter = stage.dead(sent(1), "Bad").await;
    let (id, seen) = (letter.id(), letter.file.version);
    let edit = |text: &str, expected_version| ActRequest {
        id,
        act: bytes(payload(text)),
        actor: operator(),
        expected_version,
    };
    stage.act_as(edit("{\"by\":1}", Some(seen))).await.expect("the first");
    let before = stage.seen().await;
    let late = stage.act_as(edit("{\"by\":2}", Some(seen))).await;
    assert_eq!(late, Err(Refusal::VersionConflict { id, expected: seen, actual: seen + 1 }));
    let blind = stage.act_as(edit("{\"by\":2}", None)).await;
    assert_eq!(blind.map_err(field), Err("expected_version".to_owned()));
    assert_eq!(stage.seen().await, before, "a refusal changes nothing");
    stage.act_as(edit("{\"by\":2}", Some(seen + 1))).await.expect("who has seen the first");
    let texts: Vec<Vec<u8>> =
        stage.revisions(id).await.into_iter().map(|r| r.content.payload.bytes).collect();
    assert_eq!(texts, [ODD.as_bytes(), b"{\"by\":1}", b"{\"by\":2}"]);
}

pub(super) async fn content_changes_only_where_it_is_looked_at(stage: &Stage<'_>) {
    let until = START.plus(secs(3_600));
    let ways = [
        (Status::Pending, None),
        (Status::Review, Some(Act::Review)),
        (Status::Quarantined, Some(Act::Quarantine { until })),
        (Status::Retrying, Some(Act::retry())),
        (Status::Resolved, Some(Act::Resolve)),
        (Status::Abandoned, Some(Act::Abandon)),
        (Status::Purged, Some(Act::Purge)),
    ];
    for (n, (status, way)) in (1..).zip(ways) {
        let queue = format!("q{n}");
        let id = stage.dead(NewMessage { queue: q(&queue), ..sent(n) }, "Bad").await.id();
        stage.edit(id, bytes(payload("{\"n\":1}"))).await.expect("open");
        if status == Status::Purged {
            stage.act(id, Act::Resolve).await.expect("open");
        }
        if let Some(way) = way {
            stage.act(id, way).await.expect("the way there is open");
        }
        let acts =
            [bytes(payload("[]")), patch(r#"[{"op":"add","path":"/k","value":1}]"#), Act::Restore { n: 0 }];
        let open = matches!(status, Status::Pending | Status::Review | Status::Quarantined);
        for act in acts.into_iter().chain([Act::Erase]) {
            let allowed = open || act == Act::Erase && status != Status::Retrying;
            let (before, name) = (stage.seen().await, act.name());
            match stage.edit(id, act.clone()).await {
                Ok(state) => assert!(allowed && state.status == Some(status), "{status} x {name}"),
                Err(Refusal::WrongStatus { act, .. }) => {
                    assert!(!allowed && act == name, "{status} x {name}");
                    assert_eq!(stage.seen().await, before, "a refusal changes nothing");
                }
                Err(other) => panic!("{status} x {name}: {other}"),
            }
            if allowed && act != Act::Erase {
                // So that the next one finds a document to change.
                stage.edit(id, bytes(payload("{\"n\":2}"))).await.expect("open");
            }
        }
    }
    let unknown = new(99, "q").id;
    assert_eq!(refused(stage.store.revisions(unknown).await), Refusal::NoSuchLetter { id: unknown });
}

pub(super) async fn a_patch_keeps_every_other_byte(stage: &Stage<'_>) {
    let id = stage.dead(sent(1), "Bad").await.id();
    let steps = r#"[{"op":"test","path":"/id","value":12345678901234567890123},
                    {"op":"replace","path":"/z","value":99999999999999999999.10},
                    {"op":"add","path":"/a/-","value":"é"}]"#;
    stage.act(id, patch(steps)).await.expect("it fits, whatever the version");
    let after = ODD.replace("1.50", "99999999999999999999.10").replace("[ ]", "[\"é\" ]");
    let letter = stage.letter(id).await;
    assert_eq!(letter.message.envelope.payload, payload(after));
    assert_eq!(letter.message.envelope.headers, headers("first"));
    let before = stage.seen().await;
    let gone = stage.act(id, patch(r#"[{"op":"remove","path":"/none"}]"#)).await;
    assert!(matches!(&gone, Err(Refusal::PatchFailed { why, .. }) if why.contains("step 1")), "{gone:?}");
    let same = stage.act(id, patch(r#"[{"op":"test","path":"/a/0","value":"é"}]"#)).await;
    assert_eq!(same, Err(Refusal::NoChange { id }));
    assert_eq!(stage.seen().await, before, "a refusal changes nothing");
    let text = stage.dead(new(2, "q"), "Bad").await.id();
    let none = stage.act(text, patch(r#"[{"op":"add","path":"","value":1}]"#)).await;
    assert!(matches!(&none, Err(Refusal::PatchFailed { why, .. }) if why.contains("not JSON")), "{none:?}");
}

pub(super) async fn i49_edits_are_bounded(stage: &Stage<'_>) {
    let id = stage.dead(sent(1), "Bad").await.id();
    let before = stage.seen().await;
    let large = payload(vec![b'x'; limits::PAYLOAD_BYTES_MAX + 1]);
    assert_eq!(stage.edit(id, bytes(large)).await.map_err(field), Err("payload".to_owned()));
    let many = (0..=limits::HEADERS_MAX).map(|n| (n.to_string(), String::new())).collect();
    let act = Act::Edit(Box::new(Edit { payload: None, headers: Some(many) }));
    assert_eq!(stage.edit(id, act).await.map_err(field), Err("headers".to_owned()));
    let same = Act::Edit(Box::default());
    assert_eq!(stage.edit(id, same).await, Err(Refusal::NoChange { id }));
    assert_eq!(stage.edit(id, Act::Restore { n: 7 }).await.map_err(field), Err("revision".to_owned()));
    assert_eq!(stage.seen().await, before, "a refusal changes nothing");
    for n in 0..limits::EDITS_MAX {
        stage.edit(id, bytes(payload(format!("{{\"n\":{n}}}")))).await.expect("within the bound");
    }
    assert_eq!(stage.edit(id, Act::Restore { n: 0 }).await.map_err(field), Err("content".to_owned()));
    assert_eq!(stage.revisions(id).await.len(), limits::EDITS_MAX + 1);
}

pub(super) async fn i41_i42_an_edit_is_nothing_to_the_sender(stage: &Stage<'_>) {
    let keyed = |n| NewMessage { key: Some(format!("k{n}")), ..sent(n) };
    let ids = [stage.dead(keyed(1), "Bad").await.id(), stage.dead(sent(2), "Bad").await.id()];
    for id in ids {
        stage.edit(id, bytes(payload("{\"n\":1}"))).await.expect("open");
    }
    for again in [keyed(1), sent(2)] {
        let known = stage.try_send(again.clone()).await.expect("it was sent like this");
        assert!(known.duplicate && known.id == again.id);
        let other = NewMessage { payload: payload("{\"n\":1}"), ..again.clone() };
        stage.try_send(other).await.expect_err("it was never sent like that");
    }
    stage.act(ids[1], Act::retry()).await.expect("open");
    assert!(stage.try_send(sent(2)).await.expect("also while it is retried").duplicate);
    stage.act(ids[0], Act::Erase).await.expect("open");
    assert!(stage.try_send(keyed(1)).await.expect("also when it is erased").duplicate);
    let id = stage.dead(NewMessage { queue: q("r"), ..sent(3) }, "Bad").await.id();
    stage.act(id, Act::Erase).await.expect("open");
    assert!(
        stage.try_send(NewMessage { queue: q("r"), ..sent(3) }).await.expect("without a key too").duplicate
    );
    stage.try_send(NewMessage { queue: q("r"), ..new(3, "r") }).await.expect_err("other content");
}

pub(super) async fn an_erased_letter_is_a_tombstone(stage: &Stage<'_>) {
    let rich = NewMessage {
        context: Some(serde_json::json!({"tenant": "ada"})),
        tags: ["t".to_owned()].into(),
        ..sent(1)
    };
    let id = stage.dead(rich, "Bad").await.id();
    stage.edit(id, bytes(payload("secret"))).await.expect("open");
    let before = stage.letter(id).await;
    let now = stage.clock.advance(secs(1));
    let request = ActRequest { id, act: Act::Erase, actor: because("asked to"), expected_version: None };
    let state = LetterState { id, status: Some(Status::Pending), version: before.file.version + 1 };
    assert_eq!(stage.act_as(request.clone()).await, Ok(state));
    let mut expected = before.clone();
    expected.message.envelope.payload = Payload::default();
    expected.message.envelope.headers = BTreeMap::new();
    expected.message.envelope.context = None;
    expected.eligible = false;
    expected.file.version += 1;
    let after = stage.letter(id).await;
    expected.file.available_at = after.file.available_at;
    let event = Moment::new(now, Happening::Erased).by(Some("ada")).saying("6 bytes");
    expected.file.history.push(event.because(Some("asked to")));
    // printf secret | sha256sum
    let sha256 = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";
    expected.file.erased = Some(Erased {
        at: now,
        by: "ada".into(),
        reason: Some("asked to".into()),
        bytes: 6,
        sha256: Some(sha256.into()),
    });
    assert_eq!(after, expected, "what it was about is gone, that it was is not");
    assert_eq!(stage.revisions(id).await, []);
    for act in [
        Act::retry(),
        bytes(payload("{}")),
        patch(r#"[{"op":"add","path":"","value":1}]"#),
        Act::Restore { n: 0 },
    ] {
        let name = act.name().to_owned();
        assert_eq!(stage.edit(id, act).await, Err(Refusal::Erased { id, act: name }));
    }
    assert_eq!(stage.act_as(request).await, Ok(state), "again is harmless");
    assert_eq!(stage.letter(id).await, after);
    for way in [Act::Review, Act::Release] {
        stage.act(id, way).await.expect("its status still moves");
    }
    let wish = LetterLeaseRequest { dlq: q("q-dlq"), max: 9, lease_for: None, worker: "c".into() };
    assert_eq!(stage.store.lease_letters(wish).await, Ok(vec![]), "there is nothing to work on");
    stage.act(id, Act::Resolve).await.expect("open");
    stage.act(id, Act::Purge).await.expect("closed");
    assert_eq!(stage.counts("q").await.purged, 1);
}

pub(super) async fn a_patch_that_fails_on_one_of_many_does_the_rest(stage: &Stage<'_>) {
    for n in 1..=20 {
        let odd = if n == 13 { "no document" } else { ODD };
        stage.dead(NewMessage { payload: payload(odd), ..sent(n) }, "Bad").await;
    }
    let act = patch(r#"[{"op":"replace","path":"/z","value":2}]"#);
    let spec = OperationSpec::new(operation_id(1), act, Filter::default(), because("z"));
    stage.store.start(spec).await.expect("started");
    let mut operation = stage.store.step(operation_id(1)).await.expect("steps");
    while operation.stage != Step::Done {
        operation = stage.store.step(operation_id(1)).await.expect("steps");
    }
    let outcomes = operation.outcomes;
    assert_eq!((operation.members, outcomes.succeeded, outcomes.skipped), (20, 19, 1));
    let members = stage.store.members(operation_id(1), PageRequest::default()).await.expect("answers").items;
    let skipped: Vec<MessageId> =
        members.iter().filter(|m| m.outcome == MemberOutcome::Skipped).map(|m| m.id).collect();
    assert_eq!(skipped, [new(13, "q").id]);
    for letter in stage.letters("").await {
        let other = letter.id() == new(13, "q").id;
        let text = if other { "no document".to_owned() } else { ODD.replace("1.50", "2") };
        assert_eq!(letter.message.envelope.payload, payload(text));
        assert_eq!(letter.file.edits.len(), usize::from(!other), "each once, and the other not at all");
    }
}

pub(super) async fn i33_a_letter_comes_back_with_its_lineage(stage: &Stage<'_>) {
    let id = stage.dead(sent(1), "Bad").await.id();
    stage.edit(id, bytes(payload(vec![0xfe, 0xff]))).await.expect("open");
    stage.edit(id, Act::Restore { n: 0 }).await.expect("kept");
    let bare = stage.letter(id).await;
    assert_eq!(bare.revisions, [], "a letter is shown without its past");
    let whole = stage.store.with_lineage(bare.clone()).await.expect("kept");
    assert_eq!(whole.revisions.len(), 2);
    let text = serde_json::to_string(&whole).expect("an export");
    let back: DeadLetter = serde_json::from_str(&text).expect("an import");
    assert_eq!(back, whole, "exports lose nothing");
    let version = bare.file.version;
    let gone = stage.store.hand_over(vec![HandOver { id, version }], operator()).await.expect("answers");
    assert_eq!(gone, [Ok(id)]);
    let mut forged = whole.clone();
    forged.revisions[1].content.payload.bytes.push(b'!');
    for wrong in [bare, forged] {
        let each = stage.store.import(vec![wrong], operator()).await.expect("answers");
        assert_eq!(
            each.into_iter().map(|one| one.map_err(field)).collect::<Vec<_>>(),
            [Err("revisions".to_owned())]
        );
    }
    assert_eq!(stage.store.import(vec![back], operator()).await, Ok(vec![Ok(id)]));
    let again = stage.store.with_lineage(stage.letter(id).await).await.expect("kept");
    assert_eq!((again.revisions, again.file), (whole.revisions, whole.file));
    stage.edit(id, Act::Restore { n: 1 }).await.expect("kept");
    assert_eq!(stage.letter(id).await.message.envelope.payload.bytes, [0xfe, 0xff]);
}

pub(super) async fn a_letter_in_a_consumers_hands_says_the_same(stage: &Stage<'_>) {
    let id = stage.dead(sent(1), "Bad").await.id();
    let wish = LetterLeaseRequest { dlq: q("q-dlq"), max: 1, lease_for: None, worker: "c".into() };
    let token = stage.store.lease_letters(wish).await.expect("answers").remove(0).token;
    for act in [bytes(payload("{}")), Act::Erase] {
        let got = stage.edit(id, act).await;
        assert!(matches!(got, Err(Refusal::LetterLeased { .. })), "{got:?}");
    }
    let what = LetterSettle::Do { act: bytes(payload("{}")), actor: operator() };
    let done = stage.store.settle_letters(vec![LetterSettlement { token, what }]).await.expect("answers");
    assert!(done[0].is_ok(), "the consumer may: {done:?}");
    let letter = stage.letter(id).await;
    assert_eq!((letter.message.envelope.payload, letter.file.consumer), (payload("{}"), None));
}

pub(super) async fn a_message_answers_to_the_breaker_of_what_it_says_now(stage: &Stage<'_>) {
    let breaker = Some(BreakerPolicy::new(BreakerKey::Header("h".into())));
    stage.set("q", QueuePolicy { breaker, ..rules(1) }).await;
    let id = stage.dead(sent(1), "Bad").await.id();
    stage.store.force_breaker(q("q"), "first".into(), true, operator()).await.expect("forced");
    let elsewhere = Edit { payload: None, headers: Some(headers("second")) };
    stage.edit(id, Act::Edit(Box::new(elsewhere))).await.expect("open");
    stage.act(id, Act::retry()).await.expect("open");
    let taken = stage.take_one("q").await;
    assert_eq!(taken.message.envelope.headers, headers("second"), "the open breaker is not its own any more");
    stage.settle(taken.token, hopeless("Again")).await.expect("held");
    stage.edit(id, Act::Restore { n: 0 }).await.expect("kept");
    stage.act(id, Act::retry()).await.expect("open");
    assert_eq!(stage.take("q", 1).await, vec![], "and now it is again");
}
