//! Laws of live messages: pages, single messages and cancel.

use super::LawContext;
use super::kit::{
    BACKOFF, expected_message, fail, max_attempts, msg, operator, q, refused, refused_field, secs,
};
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

impl LawContext<'_> {
    async fn page(&self, filter: &str, limit: usize, cursor: Option<Cursor>) -> Page<Message> {
        let filter = Filter::parse(filter).expect("a filter");
        let query = Query { filter, page: PageRequest { limit: Some(limit), cursor } };
        self.store.messages(query).await.expect("messages succeeds")
    }
}

fn ids(page: &Page<Message>) -> Vec<MessageId> {
    page.items.iter().map(|m| m.envelope.id).collect()
}

pub(super) async fn messages_are_listed_in_the_order_of_ids(ctx: &LawContext<'_>) {
    let sent = [msg(3, "b"), NewMessage { delay: Some(secs(9)), ..msg(1, "a") }, msg(2, "a")];
    let places = [2, 3, 1];
    for message in &sent {
        ctx.send(message.clone()).await;
    }
    let page = ctx.page("", 10, None).await;
    let mut expected: Vec<_> =
        (1..).zip(&sent).map(|(seq, m)| expected_message(m, &QueuePolicy::default(), seq, START)).collect();
    expected.sort_by_key(|m| m.envelope.id);
    assert_eq!(expected.iter().map(|m| m.envelope.seq).collect::<Vec<_>>(), places);
    assert_eq!(page, Page::last(expected));
    assert_eq!(ctx.page("nothing-has-this-text", 10, None).await, Page::last(Vec::new()));
    assert_eq!(ids(&ctx.page("queue:a", 10, None).await), [message_id(1), message_id(2)]);
    assert_eq!(ids(&ctx.page("state:scheduled", 10, None).await), [message_id(1)]);
    ctx.clock.advance(secs(9));
    assert_eq!(ids(&ctx.page("state:ready", 10, None).await), [1, 2, 3].map(message_id));
}

pub(super) async fn one_message_is_shown_with_its_failures(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(5)).await;
    let id = ctx.send(msg(1, "q")).await;
    ctx.settle(ctx.lease_one("q").await.token, fail("Bad")).await.expect("held");
    let shown = ctx.message(id).await;
    assert_eq!(shown.failures.len(), 1);
    let listed = ctx.page("", 1, None).await;
    assert_eq!(listed, Page::last(vec![Message { failures: Vec::new(), ..shown }]));
    let unknown = message_id(9);
    assert_eq!(refused(ctx.store.message(unknown).await), Refusal::NoSuchMessage { id: unknown });
    let dead = ctx.dead_letter(msg(2, "other"), "Bad").await.id();
    assert_eq!(
        refused(ctx.store.message(dead).await),
        Refusal::NoSuchMessage { id: dead },
        "the message is not live"
    );
}

pub(super) async fn i49_pages_are_bounded_and_end(ctx: &LawContext<'_>) {
    let batch = (1..=1_002).map(|n| msg(n, "q")).collect();
    ctx.store.enqueue(batch).await.expect("succeeds");
    let unsaid = Query { page: PageRequest::default(), ..Query::default() };
    let page = ctx.store.messages(unsaid).await.expect("succeeds");
    assert_eq!((page.items.len(), page.next.is_some()), (limits::PAGE_ITEMS_DEFAULT, true));
    assert_eq!(ctx.page("", 0, None).await.items.len(), 1, "a page has at least one item");
    let most = ctx.page("", usize::MAX, None).await;
    assert_eq!((most.items.len(), most.next.is_some()), (limits::PAGE_ITEMS_MAX, true));
    let rest = ctx.page("", 2, most.next.clone()).await;
    assert_eq!(
        (ids(&rest), &rest.next),
        (vec![message_id(1_001), message_id(1_002)], &None),
        "the exact end"
    );
    let all_of_three = ctx.page("queue:q", 999, None).await;
    let tail = ctx.page("queue:q", 3, all_of_three.next).await;
    assert_eq!((tail.items.len(), &tail.next), (3, &None));
    assert_eq!(
        ctx.page("", 5, Some(Cursor::after_id("m", message_id(999_999)))).await,
        Page::last(Vec::new()),
        "past the end"
    );
}

pub(super) async fn i49_paging_returns_every_item_exactly_once(ctx: &LawContext<'_>) {
    for n in 1..=20 {
        ctx.send(msg(n, "q")).await;
    }
    let mut listed = Vec::new();
    let mut cursor = None;
    let mut added = 100;
    loop {
        let page = ctx.page("", 3, cursor).await;
        listed.extend(ids(&page));
        // While one caller reads the pages, others cancel messages that were read, finish some that were not,
        // and enqueue new ones.
        let first = page.items.first().expect("pages are not empty here").envelope.id;
        ctx.store.cancel(vec![first], operator()).await.expect("succeeds");
        if added < 103 {
            added += 1;
            ctx.send(msg(added, "q")).await;
        }
        match page.next {
            Some(next) => cursor = Some(next),
            None => break,
        }
    }
    let expected: Vec<_> = (1..=20).chain(101..=103).map(message_id).collect();
    assert_eq!(listed, expected);
    let mut cursor = None;
    let mut listed = Vec::new();
    loop {
        let page = ctx.page("", 2, cursor).await;
        listed.extend(ids(&page));
        let Some(next) = page.next else { break };
        // The last message of the page goes away: the cursor must not need it.
        let last = page.items.last().expect("not empty").envelope.id;
        ctx.store.cancel(vec![last], operator()).await.expect("succeeds");
        cursor = Some(next);
    }
    assert_eq!(listed.len(), 23 - 8, "nothing is skipped because other messages left");
}

pub(super) async fn a_cursor_belongs_to_its_list(ctx: &LawContext<'_>) {
    for n in 1..=3 {
        ctx.send(msg(n, "q")).await;
    }
    let next = ctx.page("", 1, None).await.next.expect("there is more");
    let page = PageRequest { limit: None, cursor: Some(next) };
    let letters = ctx.store.letters(Query { page: page.clone(), ..Query::default() }).await;
    assert_eq!(refused_field(refused(letters)), "cursor");
    assert_eq!(refused_field(refused(ctx.store.groups(page.clone().into()).await)), "cursor");
    assert_eq!(refused_field(refused(ctx.store.operations(page.clone()).await)), "cursor");
    assert_eq!(refused_field(refused(ctx.store.audit(page).await)), "cursor");
    for text in ["", "garbage", "m.", "m.zz", "l.1"] {
        let page = PageRequest { limit: None, cursor: Some(Cursor::from_text(text)) };
        let answer = ctx.store.messages(Query { page, ..Query::default() }).await;
        assert_eq!(refused_field(refused(answer)), "cursor", "{text:?}");
    }
}

pub(super) async fn waiting_messages_can_be_cancelled(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(3)).await;
    let leased = ctx.send(msg(1, "q")).await;
    let taken = ctx.lease_one("q").await;
    let retried = ctx.send(msg(2, "q")).await;
    ctx.settle(ctx.lease_one("q").await.token, fail("Bad")).await.expect("held");
    let ready = ctx.send(msg(3, "q")).await;
    let later = ctx.send(NewMessage { delay: Some(secs(60)), ..msg(4, "q") }).await;
    let dead = ctx.dead_letter(msg(5, "other"), "Bad").await.id();
    let unknown = message_id(99);
    let before = ctx.audit_trail().await;
    let actor = Actor { reason: Some("not needed".into()), ..operator() };
    let batch = vec![ready, leased, retried, later, dead, unknown, ready];
    let each = ctx.store.cancel(batch, actor.clone()).await.expect("succeeds");
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
    assert_eq!(
        ctx.audit_trail().await[before.len()..],
        rows,
        "one row per cancelled message, none for refusals"
    );
    let counts = Counts { enqueued: 4, leased: 1, cancelled: 3, bytes: 9, ..Counts::default() };
    assert_eq!(ctx.counts("q").await, counts);
    ctx.settle(taken.token, Settle::Ack).await.expect("the leased message was not cancelled");
    ctx.clock.advance(BACKOFF);
    assert_eq!(ctx.lease("q", 9).await, [], "cancelled messages never run");
}

pub(super) async fn a_redriven_message_cannot_be_cancelled(ctx: &LawContext<'_>) {
    let id = ctx.dead_letter(msg(1, "q"), "Bad").await.id();
    ctx.act(id, Act::retry()).await.expect("pending");
    let before = ctx.view().await;
    let wrong = Refusal::WrongState { id, state: State::Ready, command: "cancel".into() };
    assert_eq!(ctx.store.cancel(vec![id], operator()).await, Ok(vec![Err(wrong)]));
    assert_eq!(ctx.view().await, before);
    assert_eq!(ctx.store.key_state(q("q"), "none".into()).await, Ok(None));
}
