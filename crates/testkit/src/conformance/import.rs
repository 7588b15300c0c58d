//! Laws of `export`, `import` and `disclose`: a letter that left by export comes back as it was, and who was shown
//! what is on record.

use super::Stage;
use super::kit::{BACKOFF, failed, failure, field, hopeless, new, operator, q, refused, rules, secs};
use crate::clock::START;
use crate::ids::message_id;
use redrive_core::audit::AuditEntry;
use redrive_core::dead_letter::{Act, Actor, DeadLetter, File, Status};
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

impl Stage<'_> {
    /// Takes a letter out at once; what is purged stays for a while.
    async fn remove(&self, id: redrive_core::ids::MessageId) {
        let version = self.letter(id).await.file.version;
        let each = self.store.hand_over(vec![HandOver { id, version }], operator()).await.expect("answers");
        assert_eq!(each, [Ok(id)]);
    }
}

pub(super) async fn i33_a_letter_comes_back_as_it_left(stage: &Stage<'_>) {
    stage.set("q", rules(25)).await;
    let rich = NewMessage {
        kind: "charge".into(),
        headers: [("h".into(), "v".into())].into(),
        key: Some("k".into()),
        ordering_key: Some("o".into()),
        context: Some(serde_json::json!({"n": 1})),
        ..new(1, "q")
    };
    let id = stage.send(rich).await;
    for n in 0..25 {
        let error = if n % 2 == 0 { "Even" } else { "Odd" };
        stage.settle(stage.take_one("q").await.token, failed(error)).await.expect("held");
        stage.clock.advance(BACKOFF);
    }
    stage.act(id, Act::Review).await.expect("pending");
    let left = stage.letter(id).await;
    let text = serde_json::to_string(&left).expect("an export");
    stage.remove(id).await;
    let rows = stage.trail().await.len();
    let letter: DeadLetter = serde_json::from_str(&text).expect("an import");
    assert_eq!(letter, left, "exports lose nothing");
    assert_eq!(stage.store.import(vec![letter], operator()).await, Ok(vec![Ok(id)]));
    let envelope = Envelope { seq: 2, ..left.message.envelope.clone() };
    let back = DeadLetter { message: Message { envelope, ..left.message.clone() }, death: 2, ..left };
    assert_eq!(stage.letter(id).await, back);
    assert_eq!(stage.trail().await[rows..], [AuditEntry::new(stage.now(), &operator(), "import", id, 1)]);
    let counts = Counts { enqueued: 2, dead: 1, purged: 1, ..Counts::default() };
    assert_eq!(stage.counts("q").await, counts);
    // Its life goes on where it stopped: fencing number, generation and history.
    stage.act(id, Act::retry()).await.expect("under review");
    let taken = stage.take_one("q").await;
    assert_eq!((taken.message.deliveries, taken.message.generation, taken.attempt), (26, 2, 1));
    stage.settle(taken.token, hopeless("Again")).await.expect("held");
    let letter = stage.letter(id).await;
    assert_eq!((letter.message.failed, letter.message.failures.len()), (26, 20));
    assert_eq!(letter.message.failures[..10], back.message.failures[..10]);
    assert_eq!(letter.message.failures[10..19], back.message.failures[11..]);
    assert_eq!(letter.message.failures[19].error.error_type, "Again");
}

pub(super) async fn a_letter_that_is_here_is_left_alone(stage: &Stage<'_>) {
    let dead = stage.dead(new(1, "q"), "Bad").await;
    let mut live = dead.clone();
    live.message.envelope.id = stage.send(new(2, "q")).await;
    let mut fresh = dead.clone();
    fresh.message.envelope.id = message_id(3);
    let before = stage.seen().await;
    let each = stage.store.import(vec![dead.clone(), live.clone()], operator()).await.expect("answers");
    assert_eq!(each, [dead.id(), live.id()].map(|id| Err(Refusal::IdConflict { id })));
    assert_eq!(stage.seen().await, before);
    let each =
        stage.store.import(vec![dead.clone(), fresh.clone(), fresh], operator()).await.expect("answers");
    let conflict = |id| Err(Refusal::IdConflict { id });
    assert_eq!(each, [conflict(dead.id()), Ok(message_id(3)), conflict(message_id(3))], "per entry");
}

pub(super) async fn a_letter_comes_to_a_store_that_knows_nothing_of_it(stage: &Stage<'_>) {
    let mut letter = stage.dead(new(1, "q"), "Bad").await;
    stage.remove(letter.id()).await;
    letter.message.envelope.queue = q("elsewhere");
    letter.file.dlq = q("elsewhere-dlq");
    let id = letter.id();
    assert_eq!(stage.store.import(vec![letter], operator()).await, Ok(vec![Ok(id)]));
    let queue = stage.queue("elsewhere").await;
    assert_eq!(queue.policy, QueuePolicy::default(), "the queue is made");
    assert_eq!(queue.counts, Counts { enqueued: 1, dead: 1, ..Counts::default() });
    let group = stage.store.group(failure("Bad").signature.leaf).await.expect("the cause is known");
    assert_eq!((group.open, group.total, group.failures), (1, 2, 2));
    assert_eq!(group.queues, [q("elsewhere"), q("q")].into());
    let drawn = LetterLeaseRequest { dlq: q("elsewhere-dlq"), max: 1, lease_for: None, worker: "c".into() };
    assert_eq!(stage.store.lease_letters(drawn).await.expect("answers").len(), 1);
}

pub(super) async fn i38_a_letter_is_not_imported_into_a_drawer(stage: &Stage<'_>) {
    let mut letter = stage.dead(new(1, "q"), "Bad").await;
    stage.remove(letter.id()).await;
    letter.message.envelope.queue = q("q-dlq");
    let each = stage.store.import(vec![letter], operator()).await.expect("answers");
    assert_eq!(each, [Err(Refusal::IsDrawer { queue: q("q-dlq"), owner: q("q") })]);
}

pub(super) async fn what_was_in_flight_comes_back_pending(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    let id = stage.dead(new(1, "q"), "Bad").await.id();
    stage.act(id, Act::retry()).await.expect("pending");
    let retrying = stage.letter(id).await;
    assert_eq!(retrying.message.state, State::Ready);
    stage.settle(stage.take_one("q").await.token, Settle::Ack).await.expect("held");
    stage.remove(id).await;
    stage.store.import(vec![retrying.clone()], operator()).await.expect("answers")[0]
        .clone()
        .expect("unknown");
    let letter = stage.letter(id).await;
    assert_eq!(letter.file, File { status: Status::Pending, ..retrying.file });
    assert_eq!((letter.message.state, letter.message.generation), (State::Dead, 2));
    let held = stage.dead(new(2, "other"), "Bad").await;
    let wish = LetterLeaseRequest { dlq: q("other-dlq"), max: 1, lease_for: None, worker: "c".into() };
    let drawn = stage.store.lease_letters(wish).await.expect("answers").remove(0);
    stage.clock.advance(secs(600));
    stage.remove(held.id()).await;
    stage.store.import(vec![drawn.letter], operator()).await.expect("answers")[0].clone().expect("unknown");
    assert_eq!(stage.letter(held.id()).await.file, held.file, "nobody has it in hands");
}

pub(super) async fn closed_letters_come_back_closed(stage: &Stage<'_>) {
    let id = stage.dead(new(1, "q"), "Bad").await.id();
    stage.act(id, Act::Resolve).await.expect("pending");
    let closed = stage.letter(id).await;
    stage.remove(id).await;
    stage.clock.advance(secs(5));
    stage.store.import(vec![closed.clone()], operator()).await.expect("answers")[0].clone().expect("unknown");
    assert_eq!(stage.letter(id).await.file, closed.file, "retention goes on from closing");
    let group = stage.store.group(closed.group).await.expect("known");
    assert_eq!((group.open, group.total), (0, 2));
    stage.clock.set(START.plus(QueuePolicy::default().retention));
    assert_eq!(stage.store.reap(10).await.expect("answers").letters_expired, 1);
}

pub(super) async fn an_export_is_oldest_first_and_without_what_is_only_this_stores(stage: &Stage<'_>) {
    for n in 1..=5 {
        stage.dead(new(n, if n == 3 { "other" } else { "q" }), "Bad").await;
    }
    let wish = LetterLeaseRequest { dlq: q("q-dlq"), max: 1, lease_for: None, worker: "c".into() };
    let drawn = stage.store.lease_letters(wish).await.expect("answers").remove(0).letter;
    assert_eq!((drawn.id(), drawn.file.consumer.is_some()), (message_id(1), true));
    let filter: Filter = Filter::parse("queue:q").expect("a filter");
    let (mut met, mut cursor) = (Vec::new(), None);
    loop {
        let page = PageRequest { limit: Some(2), cursor };
        let page = stage.store.export(Query { filter: filter.clone(), page }).await.expect("answers");
        met.extend(page.items);
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    let ids: Vec<_> = met.iter().map(|letter| (letter.id(), letter.death)).collect();
    assert_eq!(ids, [1, 2, 4, 5].map(|n| (message_id(n), n)));
    for letter in met {
        assert_eq!((letter.message.envelope.seq, letter.file.consumer.as_ref()), (0, None));
        assert_eq!(letter, exported(stage.letter(letter.id()).await));
    }
    let foreign = PageRequest { limit: None, cursor: Some(Cursor::after("l", 1)) };
    let foreign = Query { page: foreign, ..Query::default() };
    assert_eq!(field(refused(stage.store.export(foreign).await)), "cursor");
}

pub(super) async fn a_masked_letter_is_not_taken_for_the_letter(stage: &Stage<'_>) {
    let mut letter = stage.dead(new(1, "q"), "Bad").await;
    stage.remove(letter.id()).await;
    letter = Rules::default().letter(&letter);
    let before = stage.seen().await;
    let each = stage.store.import(vec![letter.clone()], operator()).await.expect("answers");
    match &each[0] {
        Err(Refusal::Invalid { field, why }) => assert!(field == "masked" && why.contains("--full")),
        other => panic!("{other:?}"),
    }
    assert_eq!(stage.seen().await, before);
    letter.message.masked = false;
    assert!(stage.store.import(vec![letter], operator()).await.expect("answers")[0].is_ok());
}

pub(super) async fn an_imported_death_keeps_its_number_where_that_keeps_the_order(stage: &Stage<'_>) {
    let first = stage.dead(new(1, "q"), "Bad").await;
    let with = |n: u64, death: u64| {
        let mut letter = first.clone();
        (letter.message.envelope.id, letter.death) = (message_id(n), death);
        letter
    };
    let batch = vec![with(2, 9), with(3, 4), with(4, 11), with(5, u64::MAX)];
    let each = stage.store.import(batch, operator()).await.expect("answers");
    assert!(each.iter().all(Result::is_ok), "{each:?}");
    let next = stage.dead(new(6, "q"), "Bad").await.id();
    let mut deaths = Vec::new();
    for n in 1..=5 {
        deaths.push(stage.letter(message_id(n)).await.death);
    }
    assert_eq!((deaths, stage.letter(next).await.death), (vec![1, 9, 10, 11, 12], 13));
}

pub(super) async fn an_imported_letter_stays_in_the_group_it_was_in(stage: &Stage<'_>) {
    let here = stage.dead(new(1, "q"), "Here").await;
    let mut first = stage.dead(new(2, "q"), "One").await;
    let mut second = stage.dead(new(3, "q"), "Two").await;
    for letter in [&first, &second] {
        stage.remove(letter.id()).await;
    }
    // Elsewhere both causes were put into one group whose first cause this store has never seen.
    let foreign = GroupId::new(77);
    for (n, letter) in [(4, &mut first), (5, &mut second)] {
        letter.message.envelope.id = message_id(n);
        letter.file.leaf = GroupId::new(1_000 + n);
        letter.message.failures[0].leaf = letter.file.leaf;
        letter.group = foreign;
    }
    let each = stage.store.import(vec![first, second], operator()).await.expect("answers");
    assert!(each.iter().all(Result::is_ok), "{each:?}");
    for n in [4, 5] {
        let letter = stage.letter(message_id(n)).await;
        assert_eq!((letter.group, letter.file.leaf), (foreign, GroupId::new(1_000 + n)));
    }
    let group = stage.store.group(GroupId::new(1_005)).await.expect("any of its names leads to it");
    assert_eq!((group.id, group.open, group.total), (foreign, 2, 2));
    // What is together here stays together under its own name.
    let mut third = here.clone();
    (third.message.envelope.id, third.group) = (message_id(6), foreign);
    stage.store.import(vec![third], operator()).await.expect("answers")[0].clone().expect("unknown");
    assert_eq!(stage.letter(message_id(6)).await.group, here.group);
    assert_eq!(stage.letter(message_id(4)).await.group, here.group, "one cause, and the oldest name stays");
}

pub(super) async fn i48_who_is_shown_what_is_masked_is_on_record(stage: &Stage<'_>) {
    let id = stage.dead(new(1, "q"), "Bad").await.id();
    let actor = Actor { reason: Some("ticket 7".into()), ..operator() };
    let one = Disclosure::of(Disclosed::Payload, id);
    stage.store.disclose(one, actor.clone()).await.expect("answers");
    let filter = Filter::parse("queue:q").expect("a filter");
    let many = Disclosure::matching(Disclosed::Export, filter, 41);
    stage.store.disclose(many.clone(), actor.clone()).await.expect("answers");
    let row = |target: String, count| AuditEntry::new(stage.now(), &actor, "reveal", target, count);
    let expected = [
        row(id.to_string(), 1).with_detail("payload"),
        row("letters".into(), 41).with_detail("export").with_filter("queue:q"),
    ];
    assert_eq!(stage.trail().await, expected);
    let nothing = Disclosure { filter: None, ..many.clone() };
    assert_eq!(field(refused(stage.store.disclose(nothing, actor.clone()).await)), "disclosure");
    let both = Disclosure { ids: vec![id], ..many.clone() };
    assert_eq!(field(refused(stage.store.disclose(both, actor).await)), "disclosure");
    let nobody = Actor { name: "x".repeat(1_000), ..operator() };
    assert_eq!(field(refused(stage.store.disclose(many, nobody).await)), "actor");
    assert_eq!(stage.trail().await.len(), 2);
}
