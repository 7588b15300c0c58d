//! Laws of group triage: acts on groups, automatic status changes, merged groups, and markers.

use super::LawContext;
use super::kit::{
    BACKOFF, fail, fail_permanently, failure, max_attempts, msg, no_poison_check, operator, q, refused,
    refused_field, secs,
};
use super::operations::spec;
use crate::ids::operation_id;
use crate::observe::read_all;
use redrive_core::dead_letter::{Act, Actor};
use redrive_core::error::Refusal;
use redrive_core::failure::{ErrorInfo, FailureReport};
use redrive_core::group::{Group, GroupAct, GroupDetail, GroupQuery, GroupSort, GroupStatus, Marker};
use redrive_core::ids::{GroupId, LeafId};
use redrive_core::limits;
use redrive_core::message::NewMessage;
use redrive_core::query::PageRequest;
use redrive_core::store::Settle;
use redrive_core::time::{Span, Time};

impl LawContext<'_> {
    async fn group_status(&self, id: GroupId) -> GroupStatus {
        self.store.group(id).await.expect("the group exists").status
    }

    async fn act_on_group(&self, id: GroupId, act: GroupAct) -> Group {
        self.store.act_on_group(id, act, operator()).await.expect("the act is allowed")
    }

    async fn detail(&self, id: GroupId) -> GroupDetail {
        self.store.group_detail(id).await.expect("the group exists")
    }

    /// Redrives a letter and acknowledges its message.
    async fn redrive_and_ack(&self, id: redrive_core::ids::MessageId, queue: &str) {
        self.act(id, Act::retry()).await.expect("pending");
        self.settle(self.lease_one(queue).await.token, Settle::Ack).await.expect("held");
    }

    /// Lets a message die of an error whose text differs only in a name.
    async fn die_of_missing_mailbox(&self, n: u64, user: &str) -> GroupId {
        let message = format!("mailbox of {user} is gone");
        let error = ErrorInfo { message, ..ErrorInfo::default() };
        let report = FailureReport { error, permanent: true, ..FailureReport::default() };
        self.send(msg(n, "q")).await;
        let what = Settle::Fail { failure: Box::new(report.analyse()), policy_override: None };
        self.settle(self.lease_one("q").await.token, what).await.expect("held");
        self.letter(msg(n, "q").id).await.group
    }
}

/// The acts that change a status, and the status each one leads to from every status.
#[rustfmt::skip]
const TABLE: [(&str, [&str; 5]); 4] = [
    // act           new             acknowledged    resolved        ignored         regressed
    ("acknowledge", ["acknowledged", "refused",      "refused",      "acknowledged", "acknowledged"]),
    ("resolve",     ["resolved",     "resolved",     "refused",      "resolved",     "resolved"]),
    ("ignore",      ["ignored",      "ignored",      "ignored",      "ignored",      "ignored"]),
    ("reopen",      ["refused",      "new",          "new",          "new",          "refused"]),
];

fn act(name: &str) -> GroupAct {
    match name {
        "acknowledge" => GroupAct::Acknowledge,
        "resolve" => GroupAct::Resolve,
        "ignore" => GroupAct::Ignore { until: None, count: None },
        _ => GroupAct::Reopen,
    }
}

pub(super) async fn the_group_status_table_holds(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    let mut n = 0;
    for (name, row) in TABLE {
        for (status, wanted) in GroupStatus::ALL.iter().zip(row) {
            n += 1;
            let error = format!("{name} {status}");
            let id = ctx.dead_letter(msg(n, "q"), &error).await.group;
            match status {
                GroupStatus::New => {}
                GroupStatus::Acknowledged => drop(ctx.act_on_group(id, GroupAct::Acknowledge).await),
                GroupStatus::Resolved => drop(ctx.act_on_group(id, GroupAct::Resolve).await),
                GroupStatus::Ignored => drop(ctx.act_on_group(id, act("ignore")).await),
                GroupStatus::Regressed => {
                    ctx.act_on_group(id, GroupAct::Resolve).await;
                    ctx.dead_letter(msg(1_000 + n, "q"), &error).await;
                }
            }
            assert_eq!(ctx.group_status(id).await, *status, "the starting status");
            let before = ctx.view().await;
            let found = ctx.store.act_on_group(id, act(name), operator()).await;
            if wanted == "refused" {
                let refusal = refused(found);
                assert!(matches!(&refusal, Refusal::WrongGroupStatus { status: s, .. } if s == status));
                assert_eq!(ctx.view().await, before, "a refusal changes nothing");
            } else {
                assert_eq!(found.expect("allowed").status.name(), wanted, "{name} while {status}");
            }
        }
    }
}

pub(super) async fn resolving_a_group_leaves_its_letters_alone(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    let first = ctx.dead_letter(msg(1, "q"), "Bad").await;
    let group = ctx.act_on_group(first.group, GroupAct::Resolve).await;
    assert_eq!((group.status, group.open), (GroupStatus::Resolved, 1));
    assert_eq!(ctx.letter(first.id()).await, first, "the letter is unchanged");
    // Closing or reopening letters by hand says nothing about their cause.
    ctx.act(first.id(), Act::Resolve).await.expect("pending");
    ctx.act(first.id(), Act::Reopen).await.expect("closed");
    assert_eq!(ctx.group_status(group.id).await, GroupStatus::Resolved);
    ctx.dead_letter(msg(2, "q"), "Other").await;
    assert_eq!(ctx.group_status(group.id).await, GroupStatus::Resolved, "a death of another cause");
    ctx.dead_letter(msg(3, "q"), "Bad").await;
    assert_eq!(ctx.group_status(group.id).await, GroupStatus::Regressed, "the cause came back");
    ctx.dead_letter(msg(4, "q"), "Bad").await;
    assert_eq!(ctx.group_status(group.id).await, GroupStatus::Regressed);
}

pub(super) async fn success_of_the_last_open_letter_resolves_a_group_until_the_next_death(
    ctx: &LawContext<'_>,
) {
    ctx.configure("q", no_poison_check(1)).await;
    let mut ids = Vec::new();
    for n in 1..=3 {
        ids.push(ctx.dead_letter(msg(n, "q"), "Bad").await.id());
    }
    let group = failure("Bad").signature.leaf;
    ctx.redrive_and_ack(ids[0], "q").await;
    ctx.act(ids[1], Act::Abandon).await.expect("pending");
    assert_eq!(
        (ctx.group_status(group).await, ctx.open_letters_of_group(group).await),
        (GroupStatus::New, 1)
    );
    ctx.redrive_and_ack(ids[2], "q").await;
    assert_eq!(
        (ctx.group_status(group).await, ctx.open_letters_of_group(group).await),
        (GroupStatus::Resolved, 0)
    );
    // Only a death makes the group regress, not a failure that is retried.
    ctx.configure("q", no_poison_check(2)).await;
    ctx.send(msg(9, "q")).await;
    ctx.settle(ctx.lease_one("q").await.token, fail("Bad")).await.expect("held");
    assert_eq!(ctx.group_status(group).await, GroupStatus::Resolved);
    ctx.clock.advance(BACKOFF);
    ctx.settle(ctx.lease_one("q").await.token, fail("Bad")).await.expect("held");
    assert_eq!(ctx.group_status(group).await, GroupStatus::Regressed);
    ctx.redrive_and_ack(msg(9, "q").id, "q").await;
    assert_eq!(ctx.group_status(group).await, GroupStatus::Resolved, "resolved again");
    let audited: Vec<(String, String)> =
        ctx.audit_trail().await.into_iter().map(|e| (e.act, e.target)).collect();
    let mine = |act: &str| audited.iter().filter(|(a, t)| a == act && *t == group.to_string()).count();
    assert_eq!((mine("resolve group"), mine("group came back")), (2, 1), "the audit trail has it too");
    let history = ctx.detail(group).await.history;
    let marks: Vec<(&str, GroupStatus)> = history.iter().map(|m| (m.what.as_str(), m.status)).collect();
    let back = ("died", GroupStatus::Regressed);
    assert_eq!(marks, [("emptied", GroupStatus::Resolved), back, ("emptied", GroupStatus::Resolved)]);
    // Letters closed by hand do not resolve the group: the cause may still be there.
    let other = ctx.dead_letter(msg(20, "q"), "Other").await;
    ctx.act(other.id(), Act::Resolve).await.expect("pending");
    assert_eq!(ctx.group_status(other.group).await, GroupStatus::New);
}

impl LawContext<'_> {
    async fn open_letters_of_group(&self, id: GroupId) -> u64 {
        self.store.group(id).await.expect("the group exists").open
    }
}

pub(super) async fn an_ignored_group_returns_when_its_time_or_count_is_over(ctx: &LawContext<'_>) {
    ctx.configure("q", no_poison_check(1)).await;
    let group = ctx.dead_letter(msg(1, "q"), "Bad").await.group;
    let until = ctx.now().plus(secs(60));
    ctx.act_on_group(group, GroupAct::Ignore { until: Some(until), count: None }).await;
    let ended = ctx.detail(group).await.ignored.expect("ignored");
    assert_eq!((ended.until, ended.deaths), (Some(until), None));
    let id = ctx.dead_letter(msg(2, "q"), "Bad").await.id();
    ctx.redrive_and_ack(id, "q").await;
    ctx.redrive_and_ack(msg(1, "q").id, "q").await;
    assert_eq!(
        ctx.group_status(group).await,
        GroupStatus::Ignored,
        "still ignored after a death and a success"
    );
    ctx.clock.advance(secs(60));
    let back = ctx.detail(group).await;
    assert_eq!((back.group.status, back.since, back.ignored), (GroupStatus::New, Some(until), None));
    ctx.act_on_group(group, GroupAct::Ignore { until: None, count: Some(2) }).await;
    ctx.dead_letter(msg(3, "q"), "Bad").await;
    assert_eq!(ctx.group_status(group).await, GroupStatus::Ignored);
    assert_eq!(ctx.detail(group).await.ignored.and_then(|i| i.deaths), Some(1));
    ctx.dead_letter(msg(4, "q"), "Bad").await;
    assert_eq!(ctx.group_status(group).await, GroupStatus::New);
    ctx.act_on_group(group, GroupAct::Ignore { until: None, count: None }).await;
    ctx.clock.advance(Span::from_days(3_000));
    ctx.dead_letter(msg(5, "q"), "Bad").await;
    assert_eq!(ctx.group_status(group).await, GroupStatus::Ignored, "ignored until reopened");
    ctx.act_on_group(group, GroupAct::Reopen).await;
    assert_eq!(ctx.group_status(group).await, GroupStatus::New);
}

pub(super) async fn i48_acts_on_groups_are_in_the_audit_trail(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    let group = ctx.dead_letter(msg(1, "q"), "Bad").await.group;
    let ada = Actor { reason: Some("mine".into()), ..operator() };
    let act_on = |act| ctx.store.act_on_group(group, act, ada.clone());
    act_on(GroupAct::Assign { to: Some("bob".into()) }).await.expect("taken");
    act_on(GroupAct::Note { text: Some("bank is down".into()) }).await.expect("accepted");
    let shown = act_on(GroupAct::Link { url: Some("https://example.org/7".into()) }).await.expect("taken");
    let notes = (shown.owner.as_deref(), shown.note.as_deref(), shown.link.as_deref());
    assert_eq!(notes, (Some("bob"), Some("bank is down"), Some("https://example.org/7")));
    assert_eq!(shown.status, GroupStatus::New, "the status is unchanged");
    assert_eq!(act_on(GroupAct::Assign { to: None }).await.expect("taken").owner, None);
    let before = ctx.view().await;
    for (act, named) in [
        (GroupAct::Assign { to: Some("x".repeat(9_999)) }, "owner"),
        (GroupAct::Note { text: Some(" ".into()) }, "note"),
        (GroupAct::Link { url: Some("javascript:alert(1)".into()) }, "link"),
        (GroupAct::Ignore { until: Some(Time::ZERO), count: None }, "until"),
        (GroupAct::Ignore { until: None, count: Some(0) }, "count"),
    ] {
        assert_eq!(refused_field(refused(act_on(act).await)), named);
    }
    let unknown = ctx.store.act_on_group(LeafId::new(7), GroupAct::Resolve, operator()).await;
    assert_eq!(refused(unknown), Refusal::NoSuchGroup { group: LeafId::new(7) });
    assert!(matches!(refused(ctx.store.group_detail(LeafId::new(7)).await), Refusal::NoSuchGroup { .. }));
    assert_eq!(ctx.view().await, before, "a refusal changes nothing");
    let trail = ctx.audit_trail().await;
    let mine: Vec<&str> =
        trail.iter().filter(|e| e.target == group.to_string()).map(|e| e.act.as_str()).collect();
    assert_eq!(mine, ["assign group", "note group", "link group", "assign group"]);
    let history = ctx.detail(group).await.history;
    assert_eq!(history.len(), 4);
    assert_eq!(history[0].text.as_deref(), Some("bob; mine"));
}

pub(super) async fn i15_merged_groups_add_up_and_keep_their_notes(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    let first = ctx.die_of_missing_mailbox(1, "ann").await;
    let second = ctx.die_of_missing_mailbox(2, "bob").await;
    assert_ne!(first, second, "not merged yet");
    ctx.act_on_group(second, GroupAct::Acknowledge).await;
    ctx.act_on_group(second, GroupAct::Assign { to: Some("eve".into()) }).await;
    ctx.act_on_group(first, GroupAct::Note { text: Some("one".into()) }).await;
    ctx.act_on_group(second, GroupAct::Note { text: Some("two".into()) }).await;
    for (n, user) in (3..).zip(["cyd", "dan", "eve", "fay"]) {
        ctx.die_of_missing_mailbox(n, user).await;
    }
    let merged = ctx.store.group(second).await.expect("an old id still works");
    assert_eq!((merged.id, merged.open, merged.total, merged.failures), (first, 6, 6, 6));
    assert_eq!((merged.status, merged.owner.as_deref()), (GroupStatus::Acknowledged, Some("eve")));
    assert_eq!(merged.note.as_deref(), Some("one\ntwo"), "both notes are kept");
    assert!(merged.template.contains("<*>"), "{}", merged.template);
    let detail = ctx.detail(second).await;
    assert_eq!(detail.hours.iter().map(|h| (h.deaths, h.failures)).collect::<Vec<_>>(), [(6, 6)]);
    assert_eq!(detail.workers.iter().map(|w| (w.name.as_str(), w.count)).collect::<Vec<_>>(), [("w", 6)]);
    assert_eq!(detail.history.len(), 4, "the history of both groups");
    // A merge by an operator: a regressed group is not hidden by a resolved one.
    let (bad, worse) = (
        ctx.dead_letter(msg(10, "q"), "Bad").await.group,
        ctx.dead_letter(msg(11, "q"), "Worse").await.group,
    );
    ctx.act_on_group(worse, GroupAct::Resolve).await;
    ctx.dead_letter(msg(12, "q"), "Worse").await;
    ctx.act_on_group(bad, GroupAct::Resolve).await;
    let one = ctx.store.merge_groups(vec![worse, bad], operator()).await.expect("both groups exist");
    assert_eq!((one.id, one.open, one.total, one.status), (bad, 3, 3, GroupStatus::Regressed));
    let all = read_all(|page| ctx.store.groups(GroupQuery::from(page))).await.expect("succeeds");
    assert_eq!(all.len(), 2, "the merged groups are gone from the list");
    // An act on an old id applies to the merged group.
    ctx.act_on_group(worse, GroupAct::Resolve).await;
    ctx.dead_letter(msg(13, "q"), "Bad").await;
    let one = ctx.store.group(worse).await.expect("an old id");
    assert_eq!((one.open, one.status), (4, GroupStatus::Regressed));
}

pub(super) async fn groups_are_found_by_status_queue_owner_age_and_text(ctx: &LawContext<'_>) {
    ctx.configure("a", max_attempts(1)).await;
    ctx.configure("b", max_attempts(1)).await;
    let old = ctx.dead_letter(msg(1, "a"), "Old").await.group;
    ctx.clock.advance(secs(7_200));
    let marker = ctx.store.mark("deploy 1.4.2".into(), operator()).await.expect("taken");
    let young = ctx.dead_letter(msg(2, "b"), "Young").await.group;
    ctx.dead_letter(msg(3, "b"), "Young").await;
    ctx.act_on_group(old, GroupAct::Assign { to: Some("bob".into()) }).await;
    let find = async |query: GroupQuery| -> Vec<GroupId> {
        let page = ctx.store.groups(query).await.expect("succeeds");
        page.items.iter().map(|group| group.id).collect()
    };
    let all = GroupQuery::default;
    assert_eq!(find(all()).await, [young, old]);
    assert_eq!(find(GroupQuery { sort: Some(GroupSort::Impact), ..all() }).await, [old, young]);
    assert_eq!(find(GroupQuery { queue: Some(q("a")), ..all() }).await, [old]);
    assert_eq!(find(GroupQuery { owner: Some("bob".into()), ..all() }).await, [old]);
    assert_eq!(find(GroupQuery { owner: Some(String::new()), ..all() }).await, [young]);
    assert_eq!(find(GroupQuery { since: Some(marker.at), ..all() }).await, [young], "new since the marker");
    assert_eq!(find(GroupQuery { text: Some("OLD".into()), ..all() }).await, [old]);
    ctx.act_on_group(young, GroupAct::Ignore { until: Some(ctx.now().plus(secs(5))), count: None }).await;
    let fresh = GroupQuery { status: vec![GroupStatus::New], ..all() };
    assert_eq!(find(fresh.clone()).await, [old]);
    ctx.clock.advance(secs(5));
    assert_eq!(find(fresh).await, [young, old], "by the current status, not the stored one");
}

pub(super) async fn group_detail_is_complete(ctx: &LawContext<'_>) {
    ctx.configure("q", no_poison_check(2)).await;
    let report = |host: &str, version: &str| {
        let mut analysed = failure("Bad");
        (analysed.report.host, analysed.report.version) = (Some(host.into()), Some(version.into()));
        Settle::Fail { failure: Box::new(analysed), policy_override: None }
    };
    ctx.send(NewMessage { kind: "charge".into(), ..msg(1, "q") }).await;
    let first = ctx.now();
    let taken = ctx.lease_as("w1", "q", 1).await.remove(0);
    ctx.settle(taken.token, report("h1", "1.4.1")).await.expect("held");
    ctx.clock.advance(Span::from_hours(3));
    let taken = ctx.lease_as("w2", "q", 1).await.remove(0);
    ctx.settle(taken.token, report("h1", "1.4.2")).await.expect("held");
    let id = failure("Bad").signature.leaf;
    let detail = ctx.detail(id).await;
    assert_eq!(detail.hours.iter().map(|h| (h.deaths, h.failures)).collect::<Vec<_>>(), [(0, 1), (1, 1)]);
    assert!(detail.hours[0].at <= first && first.since(detail.hours[0].at) < Span::from_hours(1));
    let names = |of: &[redrive_core::group::NameCount]| -> Vec<String> {
        of.iter().map(|c| format!("{} {}", c.name, c.count)).collect()
    };
    assert_eq!(names(&detail.workers), ["w1 1", "w2 1"]);
    assert_eq!(names(&detail.versions), ["1.4.1 1", "1.4.2 1"]);
    assert_eq!(names(&detail.hosts), ["h1 2"]);
    let listed =
        ctx.store.groups(GroupQuery { trend: true, ..GroupQuery::default() }).await.expect("succeeds");
    let trend = listed.items[0].trend.clone().expect("the query asks for it");
    assert_eq!((trend.hours, trend.versions), (detail.hours.clone(), detail.versions.clone()));
    assert_eq!(trend.hosts, detail.hosts);
    let listed = ctx.store.groups(GroupQuery::default()).await.expect("succeeds");
    assert_eq!(listed.items[0].trend, None, "only on request");
    let share = &detail.shares[0];
    assert_eq!((share.queue.clone(), share.kind.as_str()), (q("q"), "charge"));
    assert_eq!((share.open, share.total, share.failures), (1, 1, 2));
    assert_eq!(detail.samples.len(), 1);
    assert_eq!(
        (detail.samples[0].id, detail.samples[0].message.as_str()),
        (msg(1, "q").id, "the other side said no")
    );
    // Two days later the hours are gone from the chart, but not from the totals.
    ctx.clock.advance(Span::from_hours(limits::GROUP_HOURS));
    let later = ctx.detail(id).await;
    assert_eq!((later.hours, later.group.failures), (Vec::new(), 2));
    // Similar groups, operations on the group, and their outcomes.
    ctx.dead_letter(msg(2, "q"), "Worse").await;
    assert_eq!(
        ctx.detail(id).await.similar.iter().map(|s| s.error_type.as_str()).collect::<Vec<_>>(),
        ["Worse"]
    );
    let operation = operation_id(1);
    ctx.store.start(spec(1, Act::retry(), &format!("group:{id}"))).await.expect("the operation starts");
    for _ in 0..4 {
        ctx.store.step(operation).await.expect("the step succeeds");
    }
    ctx.settle(ctx.lease_one("q").await.token, fail_permanently("Bad")).await.expect("held");
    let detail = ctx.detail(id).await;
    assert_eq!(detail.operations.iter().map(|o| o.id).collect::<Vec<_>>(), [operation]);
    assert_eq!((detail.outcomes.redriven_ok, detail.outcomes.redriven_failed), (0, 1));
    assert_eq!(ctx.detail(failure("Worse").signature.leaf).await.operations, []);
    // A closed letter counts in the hour in which it was closed.
    ctx.act(msg(1, "q").id, Act::Resolve).await.expect("pending");
    assert_eq!(ctx.detail(id).await.hours.last().map(|hour| (hour.deaths, hour.closed)), Some((1, 1)));
}

pub(super) async fn i48_markers_are_listed_in_order(ctx: &LawContext<'_>) {
    let mut marked = Vec::new();
    for text in ["deploy 1", "deploy 2", "deploy 3"] {
        ctx.clock.advance(secs(1));
        marked.insert(0, ctx.store.mark(text.into(), operator()).await.expect("taken"));
    }
    assert_eq!((marked[0].n, marked[0].text.as_str(), marked[0].by.as_str()), (3, "deploy 3", "ada"));
    let first = ctx.store.markers(PageRequest::first(2)).await.expect("succeeds");
    assert_eq!(first.items, marked[..2]);
    let rest = PageRequest { limit: Some(2), cursor: first.next };
    let rest = ctx.store.markers(rest).await.expect("succeeds");
    assert_eq!((rest.items.as_slice(), rest.next), (&marked[2..], None));
    for bad in [String::new(), "a\nb".into(), "x".repeat(9_999)] {
        assert_eq!(refused_field(refused(ctx.store.mark(bad, operator()).await)), "marker");
    }
    let trail: Vec<String> = ctx.audit_trail().await.into_iter().map(|e| e.act).collect();
    assert_eq!(trail, ["mark"; 3]);
    for n in 0..limits::MARKERS_MAX {
        ctx.store.mark(format!("n{n}"), operator()).await.expect("taken");
    }
    let all: Vec<Marker> = read_all(|page| ctx.store.markers(page)).await.expect("succeeds");
    assert_eq!(
        (all.len(), all[limits::MARKERS_MAX - 1].n),
        (limits::MARKERS_MAX, 4),
        "the oldest are removed"
    );
}
