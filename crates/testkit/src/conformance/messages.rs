//! Laws of the live messages as people see them: pages, single messages, cancel.

use super::Stage;
use super::kit::{BACKOFF, failed, field, fresh, new, operator, q, refused, rules, secs};
use crate::clock::START;
use crate::ids::message_id;
use redrive_core::audit::AuditEntry;
use redrive_core::dead_letter::{Act, Actor};
use redrive_core::error::Refusal;
use redrive_core::filter::Filter;
use redrive_core::ids::MessageId;
use redrive_core::invariants::Counts;
use redrive_core::lifecycle::State;
use redrive_core::limits;
use redrive_core::message::{Message, NewMessage};
use redrive_core::policy::QueuePolicy;
use redrive_core::query::{Cursor, Page, PageRequest, Query};
use redrive_core::store::Settle;

impl Stage<'_> {
    async fn page(&self, filter: &str, limit: usize, cursor: Option<Cursor>) -> Page<Message> {
        let filter = Filter::parse(filter).expect("a filter");
        let query = Query { filter, page: PageRequest { limit: Some(limit), cursor } };
        self.store.messages(query).await.expect("messages answers")
    }
}

fn ids(page: &Page<Message>) -> Vec<MessageId> {
    page.items.iter().map(|m| m.envelope.id).collect()
}

pub(super) async fn messages_are_listed_as_they_are_in_the_order_of_ids(stage: &Stage<'_>) {
    let sent = [new(3, "b"), NewMessage { delay: Some(secs(9)), ..new(1, "a") }, new(2, "a")];
    let places = [2, 3, 1];
    for message in &sent {
        stage.send(message.clone()).await;
    }
    let page = stage.page("", 10, None).await;
    let mut expected: Vec<_> =
        (1..).zip(&sent).map(|(seq, m)| fresh(m, &QueuePolicy::default(), seq, START)).collect();
    expected.sort_by_key(|m| m.envelope.id);
    assert_eq!(expected.iter().map(|m| m.envelope.seq).collect::<Vec<_>>(), places);
    assert_eq!(page, Page::last(expected));
    assert_eq!(stage.page("nothing-has-this-text", 10, None).await, Page::last(Vec::new()));
    assert_eq!(ids(&stage.page("queue:a", 10, None).await), [message_id(1), message_id(2)]);
    assert_eq!(ids(&stage.page("state:scheduled", 10, None).await), [message_id(1)]);
    stage.clock.advance(secs(9));
    assert_eq!(ids(&stage.page("state:ready", 10, None).await), [1, 2, 3].map(message_id));
}

pub(super) async fn one_message_is_shown_with_its_failures(stage: &Stage<'_>) {
    stage.set("q", rules(5)).await;
    let id = stage.send(new(1, "q")).await;
    stage.settle(stage.take_one("q").await.token, failed("Bad")).await.expect("held");
    let shown = stage.message(id).await;
    assert_eq!(shown.failures.len(), 1);
    let listed = stage.page("", 1, None).await;
    assert_eq!(listed, Page::last(vec![Message { failures: Vec::new(), ..shown }]));
    let unknown = message_id(9);
    assert_eq!(refused(stage.store.message(unknown).await), Refusal::NoSuchMessage { id: unknown });
    let dead = stage.dead(new(2, "other"), "Bad").await.id();
    assert_eq!(
        refused(stage.store.message(dead).await),
        Refusal::NoSuchMessage { id: dead },
        "it is not live"
    );
}

pub(super) async fn i49_pages_are_bounded_and_end(stage: &Stage<'_>) {
    let batch = (1..=1_002).map(|n| new(n, "q")).collect();
    stage.store.enqueue(batch).await.expect("answers");
    let unsaid = Query { page: PageRequest::default(), ..Query::default() };
    let page = stage.store.messages(unsaid).await.expect("answers");
    assert_eq!((page.items.len(), page.next.is_some()), (limits::PAGE_ITEMS_DEFAULT, true));
    assert_eq!(stage.page("", 0, None).await.items.len(), 1, "a page has something on it");
    let most = stage.page("", usize::MAX, None).await;
    assert_eq!((most.items.len(), most.next.is_some()), (limits::PAGE_ITEMS_MAX, true));
    let rest = stage.page("", 2, most.next.clone()).await;
    assert_eq!(
        (ids(&rest), &rest.next),
        (vec![message_id(1_001), message_id(1_002)], &None),
        "the exact end"
    );
    let all_of_three = stage.page("queue:q", 999, None).await;
    let tail = stage.page("queue:q", 3, all_of_three.next).await;
    assert_eq!((tail.items.len(), &tail.next), (3, &None));
    assert_eq!(
        stage.page("", 5, Some(Cursor::after_id("m", message_id(999_999)))).await,
        Page::last(Vec::new()),
        "past the end"
    );
}

pub(super) async fn i49_a_walk_meets_everything_exactly_once(stage: &Stage<'_>) {
    for n in 1..=20 {
        stage.send(new(n, "q")).await;
    }
    let mut met = Vec::new();
    let mut cursor = None;
    let mut added = 100;
    loop {
        let page = stage.page("", 3, cursor).await;
        met.extend(ids(&page));
        // While somebody walks, others take back what was met, finish what was not, and bring new work.
        let first = page.items.first().expect("pages are not empty here").envelope.id;
        stage.store.cancel(vec![first], operator()).await.expect("answers");
        if added < 103 {
            added += 1;
            stage.send(new(added, "q")).await;
        }
        match page.next {
            Some(next) => cursor = Some(next),
            None => break,
        }
    }
    let expected: Vec<_> = (1..=20).chain(101..=103).map(message_id).collect();
    assert_eq!(met, expected);
    let mut cursor = None;
    let mut met = Vec::new();
    loop {
        let page = stage.page("", 2, cursor).await;
        met.extend(ids(&page));
        let Some(next) = page.next else { break };
        // What the page ended with goes away: the cursor must not need it.
        let last = page.items.last().expect("not empty").envelope.id;
        stage.store.cancel(vec![last], operator()).await.expect("answers");
        cursor = Some(next);
    }
    assert_eq!(met.len(), 23 - 8, "nobody is skipped because others left");
}

pub(super) async fn a_cursor_belongs_to_its_list(stage: &Stage<'_>) {
    for n in 1..=3 {
        stage.send(new(n, "q")).await;
    }
    let next = stage.page("", 1, None).await.next.expect("there is more");
    let page = PageRequest { limit: None, cursor: Some(next) };
    let letters = stage.store.letters(Query { page: page.clone(), ..Query::default() }).await;
    assert_eq!(field(refused(letters)), "cursor");
    assert_eq!(field(refused(stage.store.groups(page.clone().into()).await)), "cursor");
    assert_eq!(field(refused(stage.store.operations(page.clone()).await)), "cursor");
    assert_eq!(field(refused(stage.store.audit(page).await)), "cursor");
    for text in ["", "garbage", "m.", "m.zz", "l.1"] {
        let page = PageRequest { limit: None, cursor: Some(Cursor::from_text(text)) };
        let answer = stage.store.messages(Query { page, ..Query::default() }).await;
        assert_eq!(field(refused(answer)), "cursor", "{text:?}");
    }
}

pub(super) async fn waiting_messages_can_be_taken_back(stage: &Stage<'_>) {
    stage.set("q", rules(3)).await;
    let leased = stage.send(new(1, "q")).await;
    let taken = stage.take_one("q").await;
    let retried = stage.send(new(2, "q")).await;
    stage.settle(stage.take_one("q").await.token, failed("Bad")).await.expect("held");
    let ready = stage.send(new(3, "q")).await;
    let later = stage.send(NewMessage { delay: Some(secs(60)), ..new(4, "q") }).await;
    let dead = stage.dead(new(5, "other"), "Bad").await.id();
    let unknown = message_id(99);
    let before = stage.trail().await;
    let actor = Actor { reason: Some("not needed".into()), ..operator() };
    let batch = vec![ready, leased, retried, later, dead, unknown, ready];
    let each = stage.store.cancel(batch, actor.clone()).await.expect("answers");
    let wrong = |id, state| Err(Refusal::WrongState { id, state, command: "cancel".into() });
    let gone = |id| Err(Refusal::NoSuchMessage { id });
    let expected = [
        Ok(ready),
        wrong(leased, State::Leased),
        Ok(retried),
        Ok(later),
        wrong(dead, State::Dead),
        gone(unknown),
        gone(ready),
    ];
    assert_eq!(each, expected);
    let rows = [ready, retried, later].map(|id| AuditEntry::new(START, &actor, "cancel", id, 1));
    assert_eq!(stage.trail().await[before.len()..], rows, "one row for each, none for the refused");
    let counts = Counts { enqueued: 4, leased: 1, cancelled: 3, bytes: 9, ..Counts::default() };
    assert_eq!(stage.counts("q").await, counts);
    stage.settle(taken.token, Settle::Ack).await.expect("the leased one was left alone");
    stage.clock.advance(BACKOFF);
    assert_eq!(stage.take("q", 9).await, [], "what was taken back never runs");
}

pub(super) async fn a_redriven_message_cannot_be_taken_back(stage: &Stage<'_>) {
    let id = stage.dead(new(1, "q"), "Bad").await.id();
    stage.act(id, Act::retry()).await.expect("pending");
    let before = stage.seen().await;
    let wrong = Refusal::WrongState { id, state: State::Ready, command: "cancel".into() };
    assert_eq!(stage.store.cancel(vec![id], operator()).await, Ok(vec![Err(wrong)]));
    assert_eq!(stage.seen().await, before);
    assert_eq!(stage.store.key_state(q("q"), "none".into()).await, Ok(None));
}
