//! Laws of `export`, `import` and `disclose`: an exported letter is imported unchanged, and disclosures are
//! in the audit trail.

use super::LawContext;
use super::kit::{
    BACKOFF, fail, fail_permanently, failure, max_attempts, msg, operator, q, refused, refused_field, secs,
};
use crate::clock::START;
use crate::ids::message_id;
use redrive_core::audit::AuditEntry;
use redrive_core::dead_letter::{Act, Actor, DeadLetter, LetterRecord, Status};
use redrive_core::disclosure::{Disclosed, Disclosure};
use redrive_core::error::Refusal;
use redrive_core::filter::Filter;
use redrive_core::ids::GroupId;
use redrive_core::invariants::Counts;
use redrive_core::lifecycle::State;
use redrive_core::masking::Rules;
use redrive_core::message::{Envelope, Message, NewMessage};
use redrive_core::policy::QueuePolicy;
use redrive_core::query::{Cursor, PageRequest, Query};
use redrive_core::store::{HandOver, LetterLeaseRequest, Settle};
use redrive_core::transfer::exported;

impl LawContext<'_> {
    /// Removes a letter at once; a purged letter would stay for a while.
    async fn remove(&self, id: redrive_core::ids::MessageId) {
        let version = self.letter(id).await.record.version;
        let each = self.store.hand_over(vec![HandOver { id, version }], operator()).await.expect("succeeds");
        assert_eq!(each, [Ok(id)]);
    }
}

pub(super) async fn i33_an_exported_letter_is_imported_unchanged(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(25)).await;
    let rich = NewMessage {
        kind: "charge".into(),
        headers: [("h".into(), "v".into())].into(),
        key: Some("k".into()),
        ordering_key: Some("o".into()),
        context: Some(serde_json::json!({"n": 1})),
        ..msg(1, "q")
    };
    let id = ctx.send(rich).await;
    for n in 0..25 {
        let error = if n % 2 == 0 { "Even" } else { "Odd" };
        ctx.settle(ctx.lease_one("q").await.token, fail(error)).await.expect("held");
        ctx.clock.advance(BACKOFF);
    }
    ctx.act(id, Act::Review).await.expect("pending");
    let left = ctx.letter(id).await;
    let text = serde_json::to_string(&left).expect("an export");
    ctx.remove(id).await;
    let rows = ctx.audit_trail().await.len();
    let letter: DeadLetter = serde_json::from_str(&text).expect("an import");
    assert_eq!(letter, left, "an export is lossless");
    assert_eq!(ctx.store.import(vec![letter], operator()).await, Ok(vec![Ok(id)]));
    let envelope = Envelope { seq: 2, ..left.message.envelope.clone() };
    let back = DeadLetter { message: Message { envelope, ..left.message.clone() }, death: 2, ..left };
    assert_eq!(ctx.letter(id).await, back);
    assert_eq!(ctx.audit_trail().await[rows..], [AuditEntry::new(ctx.now(), &operator(), "import", id, 1)]);
    let counts = Counts { enqueued: 2, dead: 1, purged: 1, ..Counts::default() };
    assert_eq!(ctx.counts("q").await, counts);
    // Its lifecycle continues where it stopped: fencing number, generation and history.
    ctx.act(id, Act::retry()).await.expect("under review");
    let taken = ctx.lease_one("q").await;
    assert_eq!((taken.message.deliveries, taken.message.generation, taken.attempt), (26, 2, 1));
    ctx.settle(taken.token, fail_permanently("Again")).await.expect("held");
    let letter = ctx.letter(id).await;
    assert_eq!((letter.message.failed, letter.message.failures.len()), (26, 20));
    assert_eq!(letter.message.failures[..10], back.message.failures[..10]);
    assert_eq!(letter.message.failures[10..19], back.message.failures[11..]);
    assert_eq!(letter.message.failures[19].error.error_type, "Again");
}

pub(super) async fn import_does_not_overwrite_an_existing_letter(ctx: &LawContext<'_>) {
    let dead = ctx.dead_letter(msg(1, "q"), "Bad").await;
    let mut live = dead.clone();
    live.message.envelope.id = ctx.send(msg(2, "q")).await;
    let mut fresh = dead.clone();
    fresh.message.envelope.id = message_id(3);
    let before = ctx.view().await;
    let each = ctx.store.import(vec![dead.clone(), live.clone()], operator()).await.expect("succeeds");
    assert_eq!(each, [dead.id(), live.id()].map(|id| Err(Refusal::IdConflict { id })));
    assert_eq!(ctx.view().await, before);
    let each =
        ctx.store.import(vec![dead.clone(), fresh.clone(), fresh], operator()).await.expect("succeeds");
    let conflict = |id| Err(Refusal::IdConflict { id });
    assert_eq!(
        each,
        [conflict(dead.id()), Ok(message_id(3)), conflict(message_id(3))],
        "one result per letter"
    );
}

pub(super) async fn import_creates_the_queue_and_the_group(ctx: &LawContext<'_>) {
    let mut letter = ctx.dead_letter(msg(1, "q"), "Bad").await;
    ctx.remove(letter.id()).await;
    letter.message.envelope.queue = q("elsewhere");
    letter.record.dlq = q("elsewhere-dlq");
    let id = letter.id();
    assert_eq!(ctx.store.import(vec![letter], operator()).await, Ok(vec![Ok(id)]));
    let queue = ctx.queue("elsewhere").await;
    assert_eq!(queue.policy, QueuePolicy::default(), "the queue is created");
    assert_eq!(queue.counts, Counts { enqueued: 1, dead: 1, ..Counts::default() });
    let group = ctx.store.group(failure("Bad").signature.leaf).await.expect("the group exists");
    assert_eq!((group.open, group.total, group.failures), (1, 2, 2));
    assert_eq!(group.queues, [q("elsewhere"), q("q")].into());
    let leased = LetterLeaseRequest { dlq: q("elsewhere-dlq"), max: 1, lease_for: None, worker: "c".into() };
    assert_eq!(ctx.store.lease_letters(leased).await.expect("succeeds").len(), 1);
}

pub(super) async fn i38_a_letter_whose_queue_is_a_dlq_is_not_imported(ctx: &LawContext<'_>) {
    let mut letter = ctx.dead_letter(msg(1, "q"), "Bad").await;
    ctx.remove(letter.id()).await;
    letter.message.envelope.queue = q("q-dlq");
    let each = ctx.store.import(vec![letter], operator()).await.expect("succeeds");
    assert_eq!(each, [Err(Refusal::IsDlq { queue: q("q-dlq"), owner: q("q") })]);
}

pub(super) async fn a_letter_in_flight_is_imported_as_pending(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    let id = ctx.dead_letter(msg(1, "q"), "Bad").await.id();
    ctx.act(id, Act::retry()).await.expect("pending");
    let retrying = ctx.letter(id).await;
    assert_eq!(retrying.message.state, State::Ready);
    ctx.settle(ctx.lease_one("q").await.token, Settle::Ack).await.expect("held");
    ctx.remove(id).await;
    ctx.store.import(vec![retrying.clone()], operator()).await.expect("succeeds")[0]
        .clone()
        .expect("unknown");
    let letter = ctx.letter(id).await;
    assert_eq!(letter.record, LetterRecord { status: Status::Pending, ..retrying.record });
    assert_eq!((letter.message.state, letter.message.generation), (State::Dead, 2));
    let held = ctx.dead_letter(msg(2, "other"), "Bad").await;
    let request = LetterLeaseRequest { dlq: q("other-dlq"), max: 1, lease_for: None, worker: "c".into() };
    let leased = ctx.store.lease_letters(request).await.expect("succeeds").remove(0);
    ctx.clock.advance(secs(600));
    ctx.remove(held.id()).await;
    ctx.store.import(vec![leased.letter], operator()).await.expect("succeeds")[0].clone().expect("unknown");
    assert_eq!(ctx.letter(held.id()).await.record, held.record, "the lease is not imported");
}

pub(super) async fn closed_letters_are_imported_closed(ctx: &LawContext<'_>) {
    let id = ctx.dead_letter(msg(1, "q"), "Bad").await.id();
    ctx.act(id, Act::Resolve).await.expect("pending");
    let closed = ctx.letter(id).await;
    ctx.remove(id).await;
    ctx.clock.advance(secs(5));
    ctx.store.import(vec![closed.clone()], operator()).await.expect("succeeds")[0].clone().expect("unknown");
    assert_eq!(ctx.letter(id).await.record, closed.record, "retention still counts from closing");
    let group = ctx.store.group(closed.group).await.expect("known");
    assert_eq!((group.open, group.total), (0, 2));
    ctx.clock.set(START.plus(QueuePolicy::default().retention));
    assert_eq!(ctx.store.reap(10).await.expect("succeeds").letters_expired, 1);
}

pub(super) async fn an_export_is_oldest_first_and_omits_local_state(ctx: &LawContext<'_>) {
    for n in 1..=5 {
        ctx.dead_letter(msg(n, if n == 3 { "other" } else { "q" }), "Bad").await;
    }
    let request = LetterLeaseRequest { dlq: q("q-dlq"), max: 1, lease_for: None, worker: "c".into() };
    let leased = ctx.store.lease_letters(request).await.expect("succeeds").remove(0).letter;
    assert_eq!((leased.id(), leased.record.consumer.is_some()), (message_id(1), true));
    let filter: Filter = Filter::parse("queue:q").expect("a filter");
    let (mut met, mut cursor) = (Vec::new(), None);
    loop {
        let page = PageRequest { limit: Some(2), cursor };
        let page = ctx.store.export(Query { filter: filter.clone(), page }).await.expect("succeeds");
        met.extend(page.items);
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    let ids: Vec<_> = met.iter().map(|letter| (letter.id(), letter.death)).collect();
    assert_eq!(ids, [1, 2, 4, 5].map(|n| (message_id(n), n)));
    for letter in met {
        assert_eq!((letter.message.envelope.seq, letter.record.consumer.as_ref()), (0, None));
        assert_eq!(letter, exported(ctx.letter(letter.id()).await));
    }
    let foreign = PageRequest { limit: None, cursor: Some(Cursor::after("l", 1)) };
    let foreign = Query { page: foreign, ..Query::default() };
    assert_eq!(refused_field(refused(ctx.store.export(foreign).await)), "cursor");
}

pub(super) async fn a_masked_letter_is_not_imported(ctx: &LawContext<'_>) {
    let mut letter = ctx.dead_letter(msg(1, "q"), "Bad").await;
    ctx.remove(letter.id()).await;
    letter = Rules::default().letter(&letter);
    let before = ctx.view().await;
    let each = ctx.store.import(vec![letter.clone()], operator()).await.expect("succeeds");
    match &each[0] {
        Err(Refusal::Invalid { field, why }) => assert!(field == "masked" && why.contains("--full")),
        other => panic!("{other:?}"),
    }
    assert_eq!(ctx.view().await, before);
    letter.message.masked = false;
    assert!(ctx.store.import(vec![letter], operator()).await.expect("succeeds")[0].is_ok());
}

pub(super) async fn an_imported_death_keeps_its_number_if_the_order_allows(ctx: &LawContext<'_>) {
    let first = ctx.dead_letter(msg(1, "q"), "Bad").await;
    let with = |n: u64, death: u64| {
        let mut letter = first.clone();
        (letter.message.envelope.id, letter.death) = (message_id(n), death);
        letter
    };
    let batch = vec![with(2, 9), with(3, 4), with(4, 11), with(5, u64::MAX)];
    let each = ctx.store.import(batch, operator()).await.expect("succeeds");
    assert!(each.iter().all(Result::is_ok), "{each:?}");
    let next = ctx.dead_letter(msg(6, "q"), "Bad").await.id();
    let mut deaths = Vec::new();
    for n in 1..=5 {
        deaths.push(ctx.letter(message_id(n)).await.death);
    }
    assert_eq!((deaths, ctx.letter(next).await.death), (vec![1, 9, 10, 11, 12], 13));
}

pub(super) async fn an_imported_letter_stays_in_its_group(ctx: &LawContext<'_>) {
    let here = ctx.dead_letter(msg(1, "q"), "Here").await;
    let mut first = ctx.dead_letter(msg(2, "q"), "One").await;
    let mut second = ctx.dead_letter(msg(3, "q"), "Two").await;
    for letter in [&first, &second] {
        ctx.remove(letter.id()).await;
    }
    // In the other store both causes are in one group, whose first cause this store has never seen.
    let foreign = GroupId::new(77);
    for (n, letter) in [(4, &mut first), (5, &mut second)] {
        letter.message.envelope.id = message_id(n);
        letter.record.leaf = GroupId::new(1_000 + n);
        letter.message.failures[0].leaf = letter.record.leaf;
        letter.group = foreign;
    }
    let each = ctx.store.import(vec![first, second], operator()).await.expect("succeeds");
    assert!(each.iter().all(Result::is_ok), "{each:?}");
    for n in [4, 5] {
        let letter = ctx.letter(message_id(n)).await;
        assert_eq!((letter.group, letter.record.leaf), (foreign, GroupId::new(1_000 + n)));
    }
    let group = ctx.store.group(GroupId::new(1_005)).await.expect("every id of the group works");
    assert_eq!((group.id, group.open, group.total), (foreign, 2, 2));
    // Leaves that are in one group here stay in it under its own id.
    let mut third = here.clone();
    (third.message.envelope.id, third.group) = (message_id(6), foreign);
    ctx.store.import(vec![third], operator()).await.expect("succeeds")[0].clone().expect("unknown");
    assert_eq!(ctx.letter(message_id(6)).await.group, here.group);
    assert_eq!(ctx.letter(message_id(4)).await.group, here.group, "one group with its oldest id");
}

pub(super) async fn i48_disclosures_are_in_the_audit_trail(ctx: &LawContext<'_>) {
    let id = ctx.dead_letter(msg(1, "q"), "Bad").await.id();
    let actor = Actor { reason: Some("ticket 7".into()), ..operator() };
    let one = Disclosure::of(Disclosed::Payload, id);
    ctx.store.disclose(one, actor.clone()).await.expect("succeeds");
    let filter = Filter::parse("queue:q").expect("a filter");
    let many = Disclosure::matching(Disclosed::Export, filter, 41);
    ctx.store.disclose(many.clone(), actor.clone()).await.expect("succeeds");
    let row = |target: String, count| AuditEntry::new(ctx.now(), &actor, "reveal", target, count);
    let expected = [
        row(id.to_string(), 1).with_detail("payload"),
        row("letters".into(), 41).with_detail("export").with_filter("queue:q"),
    ];
    assert_eq!(ctx.audit_trail().await, expected);
    let nothing = Disclosure { filter: None, ..many.clone() };
    assert_eq!(refused_field(refused(ctx.store.disclose(nothing, actor.clone()).await)), "disclosure");
    let both = Disclosure { ids: vec![id], ..many.clone() };
    assert_eq!(refused_field(refused(ctx.store.disclose(both, actor).await)), "disclosure");
    let nobody = Actor { name: "x".repeat(1_000), ..operator() };
    assert_eq!(refused_field(refused(ctx.store.disclose(many, nobody).await)), "actor");
    assert_eq!(ctx.audit_trail().await.len(), 2);
}
