//! Laws of groups: counts are exact through every turn a letter can take (I15).

use super::Stage;
use super::kit::{BACKOFF, failed, failure, field, hopeless, new, operator, q, refused, rules, secs};
use crate::clock::START;
use crate::ids::message_id;
use redrive_core::dead_letter::Act;
use redrive_core::error::Refusal;
use redrive_core::failure::{Category, ErrorInfo, Report};
use redrive_core::group::{Group, GroupStatus};
use redrive_core::ids::LeafId;
use redrive_core::message::NewMessage;
use redrive_core::query::PageRequest;
use redrive_core::store::Settle;

impl Stage<'_> {
    /// Open, total and failures of a cause.
    async fn tally(&self, error_type: &str) -> (u64, u64, u64) {
        let id = failure(error_type).signature.leaf;
        let group = self.store.group(id).await.expect("the cause is known");
        (group.open, group.total, group.failures)
    }
}

pub(super) async fn a_group_is_all_failures_of_one_cause(stage: &Stage<'_>) {
    stage.set("a", rules(2)).await;
    stage.set("b", rules(1)).await;
    stage.send(NewMessage { kind: "charge".into(), ..new(1, "a") }).await;
    let start = stage.clock.advance(secs(1));
    stage.settle(stage.take_one("a").await.token, failed("Bad")).await.expect("held");
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
    };
    assert_eq!(stage.store.group(sign.leaf).await, Ok(group.clone()), "known from the first failure");
    stage.clock.advance(BACKOFF);
    stage.settle(stage.take_one("a").await.token, failed("Bad")).await.expect("held");
    let end = stage.clock.advance(secs(5));
    stage.dead(new(2, "b"), "Bad").await;
    (group.open, group.total, group.failures, group.last_seen) = (2, 2, 3, end);
    group.queues.insert(q("b"));
    assert_eq!(stage.store.group(sign.leaf).await, Ok(group.clone()), "over queues and kinds");
    assert_eq!(stage.letter(message_id(2)).await.group, sign.leaf);
    stage.dead(new(3, "b"), "Other").await;
    let groups = stage.seen().await.groups;
    assert_eq!((groups.len(), &groups[0]), (2, &group), "most open letters first");
    let unknown = LeafId::new(7);
    assert_eq!(refused(stage.store.group(unknown).await), Refusal::NoSuchGroup { group: unknown });
}

pub(super) async fn i15_counts_are_exact_through_every_turn(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    let id = stage.dead(new(1, "q"), "Bad").await.id();
    stage.dead(new(2, "q"), "Bad").await;
    assert_eq!(stage.tally("Bad").await, (2, 2, 2));
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
        stage.act(id, act).await.expect("the way is open");
        assert_eq!(stage.tally("Bad").await, (open, 2, 2), "after {name}");
    }
    // A second death of another cause: one group loses the letter, the other has it.
    stage.settle(stage.take_one("q").await.token, hopeless("Worse")).await.expect("held");
    assert_eq!((stage.tally("Bad").await, stage.tally("Worse").await), ((1, 2, 2), (1, 1, 1)));
    // A second death of the same cause.
    stage.act(id, Act::retry()).await.expect("pending");
    stage.settle(stage.take_one("q").await.token, hopeless("Worse")).await.expect("held");
    assert_eq!(stage.tally("Worse").await, (1, 2, 2));
    stage.act(id, Act::retry()).await.expect("pending");
    stage.settle(stage.take_one("q").await.token, Settle::Ack).await.expect("held");
    assert_eq!(stage.tally("Worse").await, (0, 2, 2), "success closes");
    stage.act(id, Act::Purge).await.expect("closed");
    assert_eq!(stage.tally("Worse").await, (0, 2, 2), "what happened has happened");
    assert_eq!(stage.tally("Bad").await, (1, 2, 2));
}

pub(super) async fn i15_failures_count_whatever_becomes_of_the_message(stage: &Stage<'_>) {
    stage.set("q", rules(3)).await;
    for n in 1..=3 {
        stage.send(new(n, "q")).await;
        stage.settle(stage.take_one("q").await.token, failed("Bad")).await.expect("held");
    }
    stage.store.cancel(vec![message_id(1)], operator()).await.expect("answers");
    stage.clock.advance(BACKOFF);
    stage.settle(stage.take_one("q").await.token, Settle::Ack).await.expect("held");
    stage.settle(stage.take_one("q").await.token, Settle::Release).await.expect("held");
    assert_eq!(stage.tally("Bad").await, (0, 0, 3));
}

pub(super) async fn groups_are_paged_in_their_order(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    let mut n = 0;
    for (error, deaths) in [("A", 1), ("B", 4), ("C", 2), ("D", 3)] {
        for _ in 0..deaths {
            n += 1;
            stage.dead(new(n, "q"), error).await;
        }
    }
    let first = stage.store.groups(PageRequest::first(3).into()).await.expect("answers");
    let names = |page: &[Group]| -> Vec<_> { page.iter().map(|g| g.error_type.clone()).collect() };
    assert_eq!(names(&first.items), ["B", "D", "C"]);
    let rest = PageRequest { limit: Some(3), cursor: first.next };
    let rest = stage.store.groups(rest.into()).await.expect("answers");
    assert_eq!((names(&rest.items), &rest.next), (vec!["A".to_owned()], &None));
    let exact = stage.store.groups(PageRequest::first(4).into()).await.expect("answers");
    assert_eq!((exact.items.len(), exact.next), (4, None));
}

pub(super) async fn outcomes_and_operators_teach_what_a_group_is(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    let first = stage.dead(new(1, "q"), "IndexError").await;
    assert_eq!(first.file.category, Category::Persistent);
    // Sent back unchanged and done, again and again: that is what transient means.
    for n in 2..=7 {
        let id = stage.dead(new(n, "q"), "IndexError").await.id();
        stage.act(id, Act::retry()).await.expect("pending");
        let taken = stage.take_one("q").await;
        stage.settle(taken.token, Settle::Ack).await.expect("held");
    }
    let learned = stage.dead(new(8, "q"), "IndexError").await;
    assert_eq!(learned.file.category, Category::Transient, "{:?}", learned.message.failures);
    let group = learned.group;
    let say = |category| stage.store.label_group(group, category, operator());
    assert_eq!(field(refused(say(Some(Category::Poison)).await)), "category");
    say(Some(Category::Resource)).await.expect("there is such a group");
    assert_eq!(stage.dead(new(9, "q"), "IndexError").await.file.category, Category::Resource);
    say(None).await.expect("there is such a group");
    assert_eq!(stage.dead(new(10, "q"), "IndexError").await.file.category, Category::Transient);
    let unknown = stage.store.label_group(LeafId::new(7), None, operator()).await;
    assert!(matches!(refused(unknown), Refusal::NoSuchGroup { .. }));
}

pub(super) async fn groups_that_vary_in_a_word_become_one_and_old_names_lead_to_it(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    let mut names = Vec::new();
    for (n, user) in (1..).zip(["ann", "bob", "cyd", "dan", "eve", "fay"]) {
        let error = ErrorInfo {
            message: format!("no such account for user {user} in the ledger of the bank"),
            ..ErrorInfo::default()
        };
        let report = Report { error, permanent: true, ..Report::default() };
        stage.send(new(n, "q")).await;
        let taken = stage.take_one("q").await;
        let what = Settle::Fail { failure: Box::new(report.analyse()), said: None };
        stage.settle(taken.token, what).await.expect("held");
        names.push(stage.letter(new(n, "q").id).await.file.leaf);
    }
    let groups = stage.seen().await.groups;
    assert_eq!((groups.len(), groups[0].open, groups[0].id), (1, 6, names[0]));
    assert!(groups[0].template.contains("<*>"), "{}", groups[0].template);
    for name in names {
        assert_eq!(stage.store.group(name).await.expect("an old name leads to it").id, groups[0].id);
    }
}
