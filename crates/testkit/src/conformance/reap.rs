//! Laws of `reap`: bounded maintenance that hides nothing, removes nothing early and counts what it removes.

use super::Stage;
use super::kit::{BACKOFF, MS, new, q, refused, rules, secs};
use crate::ids::message_id;
use redrive_core::dead_letter::{Act, DeadLetter, File, Happening, Moment, Status};
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

impl Stage<'_> {
    async fn reap(&self, limit: usize) -> Reaped {
        self.store.reap(limit).await.expect("reap answers")
    }
}

pub(super) async fn an_idle_store_has_nothing_to_reap(stage: &Stage<'_>) {
    assert!(stage.reap(100).await.is_idle());
    stage.send(new(1, "q")).await;
    stage.take_one("q").await;
    stage.dead(new(2, "other"), "Bad").await;
    let before = stage.seen().await;
    assert!(stage.reap(100).await.is_idle());
    assert_eq!(stage.seen().await, before);
}

pub(super) async fn i23_a_pass_is_bounded_and_the_next_goes_on(stage: &Stage<'_>) {
    stage.set("q", rules(5)).await;
    for n in 1..=5 {
        stage.send(new(n, "q")).await;
        stage.take_one("q").await;
        stage.clock.advance(MS);
    }
    for n in 11..=13 {
        stage.send(NewMessage { ttl: Some(secs(30)), ..new(n, "late") }).await;
    }
    stage.clock.advance(secs(30));
    let pass = |leases_lost, timed_out| Reaped { leases_lost, timed_out, ..Reaped::default() };
    assert_eq!(stage.reap(2).await, pass(2, 2), "of each kind");
    let lost: Vec<_> =
        stage.seen().await.messages.iter().filter(|m| m.failed == 1).map(|m| m.envelope.id).collect();
    assert_eq!(lost, [1, 2].map(message_id), "the oldest first");
    assert_eq!(stage.reap(2).await, pass(2, 1));
    assert_eq!(stage.reap(2).await, pass(1, 0));
    assert!(stage.reap(2).await.is_idle());
    assert_eq!(stage.counts("late").await.dead, 3);
    assert_eq!(stage.trail().await.len(), 1, "maintenance is no act: only the configure is on record");
}

pub(super) async fn i14_what_was_reaped_can_be_leased_again(stage: &Stage<'_>) {
    stage.set("q", rules(3)).await;
    stage.send(new(1, "q")).await;
    stage.take_one("q").await;
    stage.clock.advance(secs(30));
    assert_eq!(stage.reap(10).await.leases_lost, 1);
    stage.clock.advance(BACKOFF);
    let taken = stage.take_one("q").await;
    stage.settle(taken.token, Settle::Ack).await.expect("held");
}

pub(super) async fn quarantine_ends_in_review(stage: &Stage<'_>) {
    let id = stage.dead(new(1, "q"), "Bad").await.id();
    let until = stage.now().plus(secs(60));
    stage.act(id, Act::Quarantine { until }).await.expect("pending");
    let before = stage.letter(id).await;
    stage.clock.set(until.minus(MS));
    assert!(stage.reap(10).await.is_idle());
    stage.clock.set(until);
    assert_eq!(stage.reap(10).await, Reaped { released: 1, ..Reaped::default() });
    let mut history = before.file.history.clone();
    let event = Moment::new(until, Happening::Released).by(Some("system")).saying("to review");
    history.push(event.because(Some("the quarantine ended")));
    let released = DeadLetter {
        file: File {
            history,
            status: Status::Review,
            quarantined_until: None,
            version: before.file.version + 1,
            available_at: until,
            ..before.file
        },
        review_required: true,
        ..before
    };
    assert_eq!(stage.letter(id).await, released);
}

pub(super) async fn i34_retention_counts_from_closing(stage: &Stage<'_>) {
    let retention = Span::from_days(3);
    stage.set("q", QueuePolicy { retention, ..rules(1) }).await;
    let resolved = stage.dead(new(1, "q"), "Bad").await.id();
    let abandoned = stage.dead(NewMessage { key: Some("k".into()), ..new(2, "q") }, "Bad").await.id();
    let open = stage.dead(new(3, "q"), "Bad").await.id();
    stage.clock.advance(Span::from_days(100));
    assert_eq!(stage.reap(10).await.letters_expired, 0, "open letters do not expire");
    let closed_at = stage.now();
    stage.act(resolved, Act::Resolve).await.expect("pending");
    stage.clock.advance(secs(1));
    stage.act(abandoned, Act::Abandon).await.expect("pending");
    assert_eq!(stage.letter(resolved).await.file.expires_at, Some(closed_at.plus(retention)));
    stage.clock.set(closed_at.plus(retention).minus(MS));
    assert_eq!(stage.reap(10).await.letters_expired, 0);
    stage.clock.advance(MS);
    assert_eq!(stage.reap(10).await, Reaped { letters_expired: 1, ..Reaped::default() });
    assert_eq!(refused(stage.store.letter(resolved).await), Refusal::NoSuchLetter { id: resolved });
    stage.clock.advance(secs(1));
    assert_eq!(stage.reap(10).await.letters_expired, 1, "every way of closing is covered");
    assert_eq!(stage.letters("").await.iter().map(DeadLetter::id).collect::<Vec<_>>(), [open]);
    let counts = Counts { enqueued: 3, dead: 1, purged: 2, ..Counts::default() };
    assert_eq!(stage.counts("q").await, counts, "what is removed is counted");
    let again = stage.try_send(new(1, "q")).await;
    assert_eq!(
        again,
        Ok(Enqueued { id: resolved, state: State::Ready, duplicate: false }),
        "nothing is left of it"
    );
    assert_eq!(stage.message(resolved).await.failures, []);
}

pub(super) async fn i34_what_is_past_retention_is_neither_listed_nor_counted_before_it_is_removed(
    stage: &Stage<'_>,
) {
    stage.set("q", QueuePolicy { retention: secs(60), ..rules(1) }).await;
    let closed = stage.dead(new(1, "q"), "Bad").await.id();
    let open = stage.dead(new(2, "q"), "Bad").await.id();
    stage.act(closed, Act::Resolve).await.expect("pending");
    stage.clock.advance(Span::from_millis(59_999));
    assert_eq!(stage.letters("").await.len(), 2);
    stage.clock.advance(MS);
    for filter in ["", "status:resolved,pending", "queue:q", "error:Bad"] {
        let listed: Vec<_> = stage.letters(filter).await.iter().map(DeadLetter::id).collect();
        assert_eq!(listed, [open], "{filter:?}");
    }
    let all = Filter::default();
    let look = PreviewRequest::new(Act::Note, all.clone(), 5);
    assert_eq!(stage.store.preview(look).await.expect("preview answers").count, 1);
    let query = Query { filter: all, page: PageRequest::first(10) };
    assert_eq!(stage.store.export(query).await.expect("export answers").items.len(), 1);
}

pub(super) async fn i48_retention_leaves_one_row_per_pass_and_exact_counts(stage: &Stage<'_>) {
    stage.set("a", QueuePolicy { retention: secs(60), ..rules(1) }).await;
    stage.set("b", QueuePolicy { retention: secs(60), ..rules(1) }).await;
    let rows = stage.trail().await.len();
    for (n, queue) in [(1, "a"), (2, "b"), (3, "b"), (4, "b")] {
        let id = stage.dead(new(n, queue), "Bad").await.id();
        stage.act(id, Act::Resolve).await.expect("pending");
        // One after the other, so that it is known which go first.
        stage.clock.advance(MS);
    }
    stage.clock.advance(secs(60));
    assert_eq!(stage.reap(3).await.letters_expired, 3);
    assert_eq!(stage.reap(3).await.letters_expired, 1);
    assert!(stage.reap(3).await.is_idle());
    let trail = stage.trail().await;
    let rows = &trail[rows + 4..];
    let said: Vec<_> = rows.iter().map(|row| (row.act.as_str(), row.count, row.detail.as_deref())).collect();
    assert_eq!(said, [("retention", 3, Some("a-dlq: 1, b-dlq: 2")), ("retention", 1, Some("b-dlq: 1"))]);
    assert_eq!((rows[0].actor.as_str(), rows[0].source.as_str()), ("system", "maintenance"));
    let counts = |enqueued| Counts { enqueued, purged: enqueued, ..Counts::default() };
    assert_eq!((stage.counts("a").await, stage.counts("b").await), (counts(1), counts(3)));
    assert_eq!(stage.store.stats().await.expect("stats answers").summary().removed_by_retention, 4);
}

pub(super) async fn a_process_that_comes_by_does_what_is_due(stage: &Stage<'_>) {
    stage.set("q", QueuePolicy { retention: secs(60), ..rules(1) }).await;
    let closed = stage.dead(new(1, "q"), "Bad").await.id();
    stage.act(closed, Act::Resolve).await.expect("pending");
    let aside = stage.dead(new(2, "q"), "Bad").await.id();
    stage.act(aside, Act::Quarantine { until: stage.now().plus(secs(60)) }).await.expect("pending");
    stage.send(new(3, "q")).await;
    stage.take_one("q").await;
    stage.clock.advance(secs(60));
    let due = Reaped { leases_lost: 1, released: 1, letters_expired: 1, ..Reaped::default() };
    let done = stage.store.tidy(10).await.expect("tidy answers");
    // A connection leaves it to the process that holds the store.
    let done = if done.is_some() { done } else { Some(stage.reap(10).await) };
    assert_eq!(done, Some(due));
}

pub(super) async fn reopening_stops_retention(stage: &Stage<'_>) {
    stage.set("q", QueuePolicy { retention: secs(60), ..rules(1) }).await;
    let id = stage.dead(new(1, "q"), "Bad").await.id();
    stage.act(id, Act::Resolve).await.expect("pending");
    stage.clock.advance(secs(59));
    stage.act(id, Act::Reopen).await.expect("closed");
    stage.clock.advance(secs(600));
    assert!(stage.reap(10).await.is_idle());
    stage.act(id, Act::Abandon).await.expect("pending");
    stage.clock.advance(secs(60));
    assert_eq!(stage.reap(10).await.letters_expired, 1);
}

pub(super) async fn open_letters_expire_only_by_their_own_rule(stage: &Stage<'_>) {
    stage.set("q", QueuePolicy { open_ttl: Some(secs(100)), ..rules(1) }).await;
    let pending = stage.dead(new(1, "q"), "Bad").await;
    assert_eq!(pending.file.expires_at, Some(pending.file.dead_at.plus(secs(100))));
    let retrying = stage.dead(new(2, "q"), "Bad").await.id();
    stage.act(retrying, Act::retry()).await.expect("pending");
    stage.clock.advance(secs(100));
    assert_eq!(stage.reap(10).await, Reaped { letters_expired: 1, ..Reaped::default() });
    assert_eq!(
        stage.letter(retrying).await.file.status,
        Status::Retrying,
        "work in progress is never removed"
    );
    let counts = Counts { enqueued: 2, waiting: 1, purged: 1, bytes: 9, ..Counts::default() };
    assert_eq!(stage.counts("q").await, counts);
    let groups = stage.seen().await.groups;
    assert_eq!((groups[0].open, groups[0].total), (1, 2), "an open letter that is removed is no longer open");
}

pub(super) async fn keys_are_forgotten_after_their_window(stage: &Stage<'_>) {
    for n in 1..=3 {
        stage.send(NewMessage { key: Some(format!("k{n}")), ..new(n, "q") }).await;
    }
    stage.clock.advance(limits::KEY_WINDOW);
    stage.send(NewMessage { key: Some("k4".into()), ..new(4, "q") }).await;
    assert_eq!(stage.reap(2).await, Reaped { keys_forgotten: 2, ..Reaped::default() });
    assert_eq!(stage.reap(2).await, Reaped { keys_forgotten: 1, ..Reaped::default() });
    assert!(stage.reap(2).await.is_idle());
    assert!(stage.store.key_state(q("q"), "k4".into()).await.expect("answers").is_some());
    assert_eq!(stage.counts("q").await.waiting, 4, "the messages stay");
}

pub(super) async fn i50_all_that_is_due_is_reaped_in_bounded_passes(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    for n in 1..=40 {
        stage.send(new(n, "q")).await;
    }
    stage.take("q", 40).await;
    stage.clock.advance(secs(30));
    let mut passes = 0;
    while !stage.reap(7).await.is_idle() {
        passes += 1;
    }
    assert_eq!(passes, 6);
    let letters = stage.letters("").await;
    assert_eq!(letters.len(), 40);
    assert!(letters.iter().all(|l| l.file.reason == Reason::MaxAttempts));
}
