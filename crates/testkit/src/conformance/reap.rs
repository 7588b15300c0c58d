//! Laws of `reap`: maintenance is bounded, finds everything that is due, removes nothing early and counts
//! what it removes.

use super::LawContext;
use super::kit::{BACKOFF, MS, max_attempts, msg, q, refused, secs};
use crate::ids::message_id;
use redrive_core::dead_letter::{Act, DeadLetter, LetterRecord, Status, TimelineEntry, TimelineEvent};
use redrive_core::error::Refusal;
use redrive_core::failure::Reason;
use redrive_core::filter::Filter;
use redrive_core::invariants::Counts;
use redrive_core::lifecycle::State;
use redrive_core::limits;
use redrive_core::message::NewMessage;
use redrive_core::operation::PreviewRequest;
use redrive_core::policy::QueuePolicy;
use redrive_core::query::{PageRequest, Query};
use redrive_core::store::{Enqueued, Reaped, Settle};
use redrive_core::time::Span;

impl LawContext<'_> {
    async fn reap(&self, limit: usize) -> Reaped {
        self.store.reap(limit).await.expect("reap succeeds")
    }
}

pub(super) async fn an_idle_store_has_nothing_to_reap(ctx: &LawContext<'_>) {
    assert!(ctx.reap(100).await.is_idle());
    ctx.send(msg(1, "q")).await;
    ctx.lease_one("q").await;
    ctx.dead_letter(msg(2, "other"), "Bad").await;
    let before = ctx.view().await;
    assert!(ctx.reap(100).await.is_idle());
    assert_eq!(ctx.view().await, before);
}

pub(super) async fn i23_a_pass_is_bounded_and_the_next_continues(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(5)).await;
    for n in 1..=5 {
        ctx.send(msg(n, "q")).await;
        ctx.lease_one("q").await;
        ctx.clock.advance(MS);
    }
    for n in 11..=13 {
        ctx.send(NewMessage { ttl: Some(secs(30)), ..msg(n, "late") }).await;
    }
    ctx.clock.advance(secs(30));
    let pass = |leases_lost, timed_out| Reaped { leases_lost, timed_out, ..Reaped::default() };
    assert_eq!(ctx.reap(2).await, pass(2, 2), "at most two of each kind");
    let lost: Vec<_> =
        ctx.view().await.messages.iter().filter(|m| m.failed == 1).map(|m| m.envelope.id).collect();
    assert_eq!(lost, [1, 2].map(message_id), "the oldest leases first");
    assert_eq!(ctx.reap(2).await, pass(2, 1));
    assert_eq!(ctx.reap(2).await, pass(1, 0));
    assert!(ctx.reap(2).await.is_idle());
    assert_eq!(ctx.counts("late").await.dead, 3);
    assert_eq!(ctx.audit_trail().await.len(), 1, "maintenance writes no rows, only the configure is there");
}

pub(super) async fn i14_a_reaped_message_can_be_leased_again(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(3)).await;
    ctx.send(msg(1, "q")).await;
    ctx.lease_one("q").await;
    ctx.clock.advance(secs(30));
    assert_eq!(ctx.reap(10).await.leases_lost, 1);
    ctx.clock.advance(BACKOFF);
    let taken = ctx.lease_one("q").await;
    ctx.settle(taken.token, Settle::Ack).await.expect("held");
}

pub(super) async fn quarantine_ends_in_review(ctx: &LawContext<'_>) {
    let id = ctx.dead_letter(msg(1, "q"), "Bad").await.id();
    let until = ctx.now().plus(secs(60));
    ctx.act(id, Act::Quarantine { until }).await.expect("pending");
    let before = ctx.letter(id).await;
    ctx.clock.set(until.minus(MS));
    assert!(ctx.reap(10).await.is_idle());
    ctx.clock.set(until);
    assert_eq!(ctx.reap(10).await, Reaped { released: 1, ..Reaped::default() });
    let mut history = before.record.history.clone();
    let event =
        TimelineEntry::new(until, TimelineEvent::Released).by(Some("system")).with_detail("to review");
    history.push(event.with_reason(Some("the quarantine ended")));
    let released = DeadLetter {
        record: LetterRecord {
            history,
            status: Status::Review,
            quarantined_until: None,
            version: before.record.version + 1,
            available_at: until,
            ..before.record
        },
        review_required: true,
        ..before
    };
    assert_eq!(ctx.letter(id).await, released);
}

pub(super) async fn i34_retention_counts_from_closing(ctx: &LawContext<'_>) {
    let retention = Span::from_days(3);
    ctx.configure("q", QueuePolicy { retention, ..max_attempts(1) }).await;
    let resolved = ctx.dead_letter(msg(1, "q"), "Bad").await.id();
    let abandoned = ctx.dead_letter(NewMessage { key: Some("k".into()), ..msg(2, "q") }, "Bad").await.id();
    let open = ctx.dead_letter(msg(3, "q"), "Bad").await.id();
    ctx.clock.advance(Span::from_days(100));
    assert_eq!(ctx.reap(10).await.letters_expired, 0, "open letters do not expire");
    let closed_at = ctx.now();
    ctx.act(resolved, Act::Resolve).await.expect("pending");
    ctx.clock.advance(secs(1));
    ctx.act(abandoned, Act::Abandon).await.expect("pending");
    assert_eq!(ctx.letter(resolved).await.record.expires_at, Some(closed_at.plus(retention)));
    ctx.clock.set(closed_at.plus(retention).minus(MS));
    assert_eq!(ctx.reap(10).await.letters_expired, 0);
    ctx.clock.advance(MS);
    assert_eq!(ctx.reap(10).await, Reaped { letters_expired: 1, ..Reaped::default() });
    assert_eq!(refused(ctx.store.letter(resolved).await), Refusal::NoSuchLetter { id: resolved });
    ctx.clock.advance(secs(1));
    assert_eq!(ctx.reap(10).await.letters_expired, 1, "every way of closing is covered");
    assert_eq!(ctx.letters("").await.iter().map(DeadLetter::id).collect::<Vec<_>>(), [open]);
    let counts = Counts { enqueued: 3, dead: 1, purged: 2, ..Counts::default() };
    assert_eq!(ctx.counts("q").await, counts, "removed letters are counted");
    let again = ctx.try_send(msg(1, "q")).await;
    assert_eq!(
        again,
        Ok(Enqueued { id: resolved, state: State::Ready, duplicate: false }),
        "no trace is left"
    );
    assert_eq!(ctx.message(resolved).await.failures, []);
}

pub(super) async fn i34_letters_past_retention_are_neither_listed_nor_counted(ctx: &LawContext<'_>) {
    ctx.configure("q", QueuePolicy { retention: secs(60), ..max_attempts(1) }).await;
    let closed = ctx.dead_letter(msg(1, "q"), "Bad").await.id();
    let open = ctx.dead_letter(msg(2, "q"), "Bad").await.id();
    ctx.act(closed, Act::Resolve).await.expect("pending");
    ctx.clock.advance(Span::from_millis(59_999));
    assert_eq!(ctx.letters("").await.len(), 2);
    ctx.clock.advance(MS);
    for filter in ["", "status:resolved,pending", "queue:q", "error:Bad"] {
        let listed: Vec<_> = ctx.letters(filter).await.iter().map(DeadLetter::id).collect();
        assert_eq!(listed, [open], "{filter:?}");
    }
    let all = Filter::default();
    let look = PreviewRequest::new(Act::Note, all.clone(), 5);
    assert_eq!(ctx.store.preview(look).await.expect("preview succeeds").count, 1);
    let query = Query { filter: all, page: PageRequest::first(10) };
    assert_eq!(ctx.store.export(query).await.expect("export succeeds").items.len(), 1);
}

pub(super) async fn i48_retention_leaves_one_row_per_pass_and_exact_counts(ctx: &LawContext<'_>) {
    ctx.configure("a", QueuePolicy { retention: secs(60), ..max_attempts(1) }).await;
    ctx.configure("b", QueuePolicy { retention: secs(60), ..max_attempts(1) }).await;
    let rows = ctx.audit_trail().await.len();
    for (n, queue) in [(1, "a"), (2, "b"), (3, "b"), (4, "b")] {
        let id = ctx.dead_letter(msg(n, queue), "Bad").await.id();
        ctx.act(id, Act::Resolve).await.expect("pending");
        // One after the other, so that the order of removal is known.
        ctx.clock.advance(MS);
    }
    ctx.clock.advance(secs(60));
    assert_eq!(ctx.reap(3).await.letters_expired, 3);
    assert_eq!(ctx.reap(3).await.letters_expired, 1);
    assert!(ctx.reap(3).await.is_idle());
    let trail = ctx.audit_trail().await;
    let rows = &trail[rows + 4..];
    let summary: Vec<_> =
        rows.iter().map(|row| (row.act.as_str(), row.count, row.detail.as_deref())).collect();
    assert_eq!(summary, [("retention", 3, Some("a-dlq: 1, b-dlq: 2")), ("retention", 1, Some("b-dlq: 1"))]);
    assert_eq!((rows[0].actor.as_str(), rows[0].source.as_str()), ("system", "maintenance"));
    let counts = |enqueued| Counts { enqueued, purged: enqueued, ..Counts::default() };
    assert_eq!((ctx.counts("a").await, ctx.counts("b").await), (counts(1), counts(3)));
    assert_eq!(ctx.store.stats().await.expect("stats succeeds").summary().removed_by_retention, 4);
}

pub(super) async fn tidy_does_what_is_due(ctx: &LawContext<'_>) {
    ctx.configure("q", QueuePolicy { retention: secs(60), ..max_attempts(1) }).await;
    let closed = ctx.dead_letter(msg(1, "q"), "Bad").await.id();
    ctx.act(closed, Act::Resolve).await.expect("pending");
    let aside = ctx.dead_letter(msg(2, "q"), "Bad").await.id();
    ctx.act(aside, Act::Quarantine { until: ctx.now().plus(secs(60)) }).await.expect("pending");
    ctx.send(msg(3, "q")).await;
    ctx.lease_one("q").await;
    ctx.clock.advance(secs(60));
    let due = Reaped { leases_lost: 1, released: 1, letters_expired: 1, ..Reaped::default() };
    let done = ctx.store.tidy(10).await.expect("tidy succeeds");
    // A connection leaves this work to the process that holds the data directory.
    let done = if done.is_some() { done } else { Some(ctx.reap(10).await) };
    assert_eq!(done, Some(due));
}

pub(super) async fn reopening_stops_retention(ctx: &LawContext<'_>) {
    ctx.configure("q", QueuePolicy { retention: secs(60), ..max_attempts(1) }).await;
    let id = ctx.dead_letter(msg(1, "q"), "Bad").await.id();
    ctx.act(id, Act::Resolve).await.expect("pending");
    ctx.clock.advance(secs(59));
    ctx.act(id, Act::Reopen).await.expect("closed");
    ctx.clock.advance(secs(600));
    assert!(ctx.reap(10).await.is_idle());
    ctx.act(id, Act::Abandon).await.expect("pending");
    ctx.clock.advance(secs(60));
    assert_eq!(ctx.reap(10).await.letters_expired, 1);
}

pub(super) async fn open_letters_expire_only_by_the_open_ttl(ctx: &LawContext<'_>) {
    ctx.configure("q", QueuePolicy { open_ttl: Some(secs(100)), ..max_attempts(1) }).await;
    let pending = ctx.dead_letter(msg(1, "q"), "Bad").await;
    assert_eq!(pending.record.expires_at, Some(pending.record.dead_at.plus(secs(100))));
    let retrying = ctx.dead_letter(msg(2, "q"), "Bad").await.id();
    ctx.act(retrying, Act::retry()).await.expect("pending");
    ctx.clock.advance(secs(100));
    assert_eq!(ctx.reap(10).await, Reaped { letters_expired: 1, ..Reaped::default() });
    assert_eq!(
        ctx.letter(retrying).await.record.status,
        Status::Retrying,
        "work in progress is never removed"
    );
    let counts = Counts { enqueued: 2, waiting: 1, purged: 1, bytes: 9, ..Counts::default() };
    assert_eq!(ctx.counts("q").await, counts);
    let groups = ctx.view().await.groups;
    assert_eq!((groups[0].open, groups[0].total), (1, 2), "a removed letter is not open");
}

pub(super) async fn keys_are_forgotten_after_their_window(ctx: &LawContext<'_>) {
    for n in 1..=3 {
        ctx.send(NewMessage { key: Some(format!("k{n}")), ..msg(n, "q") }).await;
    }
    ctx.clock.advance(limits::KEY_WINDOW);
    ctx.send(NewMessage { key: Some("k4".into()), ..msg(4, "q") }).await;
    assert_eq!(ctx.reap(2).await, Reaped { keys_forgotten: 2, ..Reaped::default() });
    assert_eq!(ctx.reap(2).await, Reaped { keys_forgotten: 1, ..Reaped::default() });
    assert!(ctx.reap(2).await.is_idle());
    assert!(ctx.store.key_state(q("q"), "k4".into()).await.expect("succeeds").is_some());
    assert_eq!(ctx.counts("q").await.waiting, 4, "the messages stay");
}

pub(super) async fn i50_all_that_is_due_is_reaped_in_bounded_passes(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    for n in 1..=40 {
        ctx.send(msg(n, "q")).await;
    }
    ctx.lease("q", 40).await;
    ctx.clock.advance(secs(30));
    let mut passes = 0;
    while !ctx.reap(7).await.is_idle() {
        passes += 1;
    }
    assert_eq!(passes, 6);
    let letters = ctx.letters("").await;
    assert_eq!(letters.len(), 40);
    assert!(letters.iter().all(|l| l.record.reason == Reason::MaxAttempts));
}
