//! Laws of groups: their counts are exact after everything that can happen to a letter (I15).

use super::LawContext;
use super::kit::{
    BACKOFF, fail, fail_permanently, failure, max_attempts, msg, operator, q, refused, refused_field, secs,
};
use crate::clock::START;
use crate::ids::message_id;
use redrive_core::dead_letter::Act;
use redrive_core::error::Refusal;
use redrive_core::failure::{Category, ErrorInfo, FailureReport};
use redrive_core::group::{Group, GroupStatus};
use redrive_core::ids::LeafId;
use redrive_core::message::NewMessage;
use redrive_core::query::PageRequest;
use redrive_core::store::Settle;

impl LawContext<'_> {
    /// The open letters, all letters and failures of the group of an error type.
    async fn group_counts(&self, error_type: &str) -> (u64, u64, u64) {
        let id = failure(error_type).signature.leaf;
        let group = self.store.group(id).await.expect("the group exists");
        (group.open, group.total, group.failures)
    }
}

pub(super) async fn a_group_is_all_failures_of_one_cause(ctx: &LawContext<'_>) {
    ctx.configure("a", max_attempts(2)).await;
    ctx.configure("b", max_attempts(1)).await;
    ctx.send(NewMessage { kind: "charge".into(), ..msg(1, "a") }).await;
    let start = ctx.clock.advance(secs(1));
    ctx.settle(ctx.lease_one("a").await.token, fail("Bad")).await.expect("held");
    let sign = failure("Bad").signature;
    let mut group = Group {
        id: sign.leaf,
        template: sign.template,
        error_type: "Bad".into(),
        code: None,
        status: GroupStatus::New,
        open: 0,
        total: 0,
        failures: 1,
        first_seen: start,
        last_seen: start,
        queues: [q("a")].into(),
        kinds: ["charge".into()].into(),
        owner: None,
        note: None,
        link: None,
        trend: None,
    };
    assert_eq!(ctx.store.group(sign.leaf).await, Ok(group.clone()), "known from the first failure");
    ctx.clock.advance(BACKOFF);
    ctx.settle(ctx.lease_one("a").await.token, fail("Bad")).await.expect("held");
    let end = ctx.clock.advance(secs(5));
    ctx.dead_letter(msg(2, "b"), "Bad").await;
    (group.open, group.total, group.failures, group.last_seen) = (2, 2, 3, end);
    group.queues.insert(q("b"));
    assert_eq!(ctx.store.group(sign.leaf).await, Ok(group.clone()), "across queues and kinds");
    assert_eq!(ctx.letter(message_id(2)).await.group, sign.leaf);
    ctx.dead_letter(msg(3, "b"), "Other").await;
    let groups = ctx.view().await.groups;
    assert_eq!((groups.len(), &groups[0]), (2, &group), "most open letters first");
    let unknown = LeafId::new(7);
    assert_eq!(refused(ctx.store.group(unknown).await), Refusal::NoSuchGroup { group: unknown });
}

pub(super) async fn i15_counts_are_exact_after_every_act(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    let id = ctx.dead_letter(msg(1, "q"), "Bad").await.id();
    ctx.dead_letter(msg(2, "q"), "Bad").await;
    assert_eq!(ctx.group_counts("Bad").await, (2, 2, 2));
    for (act, open) in [
        (Act::Review, 2),
        (Act::Quarantine { until: START.plus(secs(60)) }, 2),
        (Act::Release, 2),
        (Act::Resolve, 1),
        (Act::Reopen, 2),
        (Act::Abandon, 1),
        (Act::Note, 1),
        (Act::Reopen, 2),
        (Act::retry(), 2),
    ] {
        let name = act.name();
        ctx.act(id, act).await.expect("the act is allowed");
        assert_eq!(ctx.group_counts("Bad").await, (open, 2, 2), "after {name}");
    }
    // A second death of another cause moves the letter to the other group.
    ctx.settle(ctx.lease_one("q").await.token, fail_permanently("Worse")).await.expect("held");
    assert_eq!((ctx.group_counts("Bad").await, ctx.group_counts("Worse").await), ((1, 2, 2), (1, 1, 1)));
    // A second death of the same cause.
    ctx.act(id, Act::retry()).await.expect("pending");
    ctx.settle(ctx.lease_one("q").await.token, fail_permanently("Worse")).await.expect("held");
    assert_eq!(ctx.group_counts("Worse").await, (1, 2, 2));
    ctx.act(id, Act::retry()).await.expect("pending");
    ctx.settle(ctx.lease_one("q").await.token, Settle::Ack).await.expect("held");
    assert_eq!(ctx.group_counts("Worse").await, (0, 2, 2), "a success closes the letter");
    ctx.act(id, Act::Purge).await.expect("closed");
    assert_eq!(ctx.group_counts("Worse").await, (0, 2, 2), "totals never decrease");
    assert_eq!(ctx.group_counts("Bad").await, (1, 2, 2));
}

pub(super) async fn i15_failures_count_whatever_becomes_of_the_message(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(3)).await;
    for n in 1..=3 {
        ctx.send(msg(n, "q")).await;
        ctx.settle(ctx.lease_one("q").await.token, fail("Bad")).await.expect("held");
    }
    ctx.store.cancel(vec![message_id(1)], operator()).await.expect("succeeds");
    ctx.clock.advance(BACKOFF);
    ctx.settle(ctx.lease_one("q").await.token, Settle::Ack).await.expect("held");
    ctx.settle(ctx.lease_one("q").await.token, Settle::Release).await.expect("held");
    assert_eq!(ctx.group_counts("Bad").await, (0, 0, 3));
}

pub(super) async fn groups_are_paged_in_their_order(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    let mut n = 0;
    for (error, deaths) in [("A", 1), ("B", 4), ("C", 2), ("D", 3)] {
        for _ in 0..deaths {
            n += 1;
            ctx.dead_letter(msg(n, "q"), error).await;
        }
    }
    let first = ctx.store.groups(PageRequest::first(3).into()).await.expect("succeeds");
    let names = |page: &[Group]| -> Vec<_> { page.iter().map(|g| g.error_type.clone()).collect() };
    assert_eq!(names(&first.items), ["B", "D", "C"]);
    let rest = PageRequest { limit: Some(3), cursor: first.next };
    let rest = ctx.store.groups(rest.into()).await.expect("succeeds");
    assert_eq!((names(&rest.items), &rest.next), (vec!["A".to_owned()], &None));
    let exact = ctx.store.groups(PageRequest::first(4).into()).await.expect("succeeds");
    assert_eq!((exact.items.len(), exact.next), (4, None));
}

pub(super) async fn outcomes_and_operators_set_the_category_of_a_group(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    let first = ctx.dead_letter(msg(1, "q"), "IndexError").await;
    assert_eq!(first.record.category, Category::Persistent);
    // A cause whose letters succeed unchanged, again and again, is transient.
    for n in 2..=7 {
        let id = ctx.dead_letter(msg(n, "q"), "IndexError").await.id();
        ctx.act(id, Act::retry()).await.expect("pending");
        let taken = ctx.lease_one("q").await;
        ctx.settle(taken.token, Settle::Ack).await.expect("held");
    }
    let learned = ctx.dead_letter(msg(8, "q"), "IndexError").await;
    assert_eq!(learned.record.category, Category::Transient, "{:?}", learned.message.failures);
    let group = learned.group;
    let label = |category| ctx.store.label_group(group, category, operator());
    assert_eq!(refused_field(refused(label(Some(Category::Poison)).await)), "category");
    label(Some(Category::Resource)).await.expect("the group exists");
    assert_eq!(ctx.dead_letter(msg(9, "q"), "IndexError").await.record.category, Category::Resource);
    label(None).await.expect("the group exists");
    assert_eq!(ctx.dead_letter(msg(10, "q"), "IndexError").await.record.category, Category::Transient);
    let unknown = ctx.store.label_group(LeafId::new(7), None, operator()).await;
    assert!(matches!(refused(unknown), Refusal::NoSuchGroup { .. }));
}

pub(super) async fn groups_that_differ_in_one_word_merge_and_old_ids_still_work(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    let mut names = Vec::new();
    for (n, user) in (1..).zip(["ann", "bob", "cyd", "dan", "eve", "fay"]) {
        let error = ErrorInfo {
            message: format!("no such account for user {user} in the ledger of the bank"),
            ..ErrorInfo::default()
        };
        let report = FailureReport { error, permanent: true, ..FailureReport::default() };
        ctx.send(msg(n, "q")).await;
        let taken = ctx.lease_one("q").await;
        let what = Settle::Fail { failure: Box::new(report.analyse()), policy_override: None };
        ctx.settle(taken.token, what).await.expect("held");
        names.push(ctx.letter(msg(n, "q").id).await.record.leaf);
    }
    let groups = ctx.view().await.groups;
    assert_eq!((groups.len(), groups[0].open, groups[0].id), (1, 6, names[0]));
    assert!(groups[0].template.contains("<*>"), "{}", groups[0].template);
    for name in names {
        assert_eq!(ctx.store.group(name).await.expect("an old id still works").id, groups[0].id);
    }
}
