//! Laws of the life of a group: what people say about it, what follows by itself, what becomes of it when groups
//! become one, and markers.

use super::Stage;
use super::kit::{
    BACKOFF, failed, failure, field, hopeless, new, operator, q, refused, rules, secs, unwatched,
};
use super::operations::spec;
use crate::ids::operation_id;
use crate::observe::walk;
use redrive_core::dead_letter::{Act, Actor};
use redrive_core::error::Refusal;
use redrive_core::failure::{ErrorInfo, Report};
use redrive_core::group::{Group, GroupAct, GroupDetail, GroupQuery, GroupSort, GroupStatus, Marker};
use redrive_core::ids::{GroupId, LeafId};
use redrive_core::limits;
use redrive_core::message::NewMessage;
use redrive_core::query::PageRequest;
use redrive_core::store::Settle;
use redrive_core::time::{Span, Time};

impl Stage<'_> {
    async fn group_status(&self, id: GroupId) -> GroupStatus {
        self.store.group(id).await.expect("the group is known").status
    }

    async fn say(&self, id: GroupId, act: GroupAct) -> Group {
        self.store.act_on_group(id, act, operator()).await.expect("the way is open")
    }

    async fn detail(&self, id: GroupId) -> GroupDetail {
        self.store.group_detail(id).await.expect("the group is known")
    }

    /// Sends a letter back and lets it succeed.
    async fn redeem(&self, id: redrive_core::ids::MessageId, queue: &str) {
        self.act(id, Act::retry()).await.expect("pending");
        self.settle(self.take_one(queue).await.token, Settle::Ack).await.expect("held");
    }

    /// Lets a message die of words that differ in a name only.
    async fn no_mailbox(&self, n: u64, user: &str) -> GroupId {
        let message = format!("mailbox of {user} is gone");
        let error = ErrorInfo { message, ..ErrorInfo::default() };
        let report = Report { error, permanent: true, ..Report::default() };
        self.send(new(n, "q")).await;
        let what = Settle::Fail { failure: Box::new(report.analyse()), said: None };
        self.settle(self.take_one("q").await.token, what).await.expect("held");
        self.letter(new(n, "q").id).await.group
    }
}

/// The acts that change a status, the way to each status, and where each act leads from there.
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

pub(super) async fn the_table_of_a_groups_life(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    let mut n = 0;
    for (name, row) in TABLE {
        for (status, wanted) in GroupStatus::ALL.iter().zip(row) {
            n += 1;
            let error = format!("{name} {status}");
            let id = stage.dead(new(n, "q"), &error).await.group;
            match status {
                GroupStatus::New => {}
                GroupStatus::Acknowledged => drop(stage.say(id, GroupAct::Acknowledge).await),
                GroupStatus::Resolved => drop(stage.say(id, GroupAct::Resolve).await),
                GroupStatus::Ignored => drop(stage.say(id, act("ignore")).await),
                GroupStatus::Regressed => {
                    stage.say(id, GroupAct::Resolve).await;
                    stage.dead(new(1_000 + n, "q"), &error).await;
                }
            }
            assert_eq!(stage.group_status(id).await, *status, "the way there");
            let before = stage.seen().await;
            let found = stage.store.act_on_group(id, act(name), operator()).await;
            if wanted == "refused" {
                let refusal = refused(found);
                assert!(matches!(&refusal, Refusal::WrongGroupStatus { status: s, .. } if s == status));
                assert_eq!(stage.seen().await, before, "what is refused changes nothing");
            } else {
                assert_eq!(found.expect("allowed").status.name(), wanted, "{name} while {status}");
            }
        }
    }
}

pub(super) async fn resolving_a_group_leaves_its_letters_alone(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    let first = stage.dead(new(1, "q"), "Bad").await;
    let group = stage.say(first.group, GroupAct::Resolve).await;
    assert_eq!((group.status, group.open), (GroupStatus::Resolved, 1));
    assert_eq!(stage.letter(first.id()).await, first, "not touched");
    // Letters that people close or open are no sign that the cause is gone or back.
    stage.act(first.id(), Act::Resolve).await.expect("pending");
    stage.act(first.id(), Act::Reopen).await.expect("closed");
    assert_eq!(stage.group_status(group.id).await, GroupStatus::Resolved);
    stage.dead(new(2, "q"), "Other").await;
    assert_eq!(stage.group_status(group.id).await, GroupStatus::Resolved, "another cause");
    stage.dead(new(3, "q"), "Bad").await;
    assert_eq!(stage.group_status(group.id).await, GroupStatus::Regressed, "it came back");
    stage.dead(new(4, "q"), "Bad").await;
    assert_eq!(stage.group_status(group.id).await, GroupStatus::Regressed);
}

pub(super) async fn success_of_the_last_open_letter_resolves_and_the_next_death_brings_it_back(
    stage: &Stage<'_>,
) {
    stage.set("q", unwatched(1)).await;
    let mut ids = Vec::new();
    for n in 1..=3 {
        ids.push(stage.dead(new(n, "q"), "Bad").await.id());
    }
    let group = failure("Bad").signature.leaf;
    stage.redeem(ids[0], "q").await;
    stage.act(ids[1], Act::Abandon).await.expect("pending");
    assert_eq!((stage.group_status(group).await, stage.tally_open(group).await), (GroupStatus::New, 1));
    stage.redeem(ids[2], "q").await;
    assert_eq!((stage.group_status(group).await, stage.tally_open(group).await), (GroupStatus::Resolved, 0));
    // A failure that is not a death does not bring it back; a death does.
    stage.set("q", unwatched(2)).await;
    stage.send(new(9, "q")).await;
    stage.settle(stage.take_one("q").await.token, failed("Bad")).await.expect("held");
    assert_eq!(stage.group_status(group).await, GroupStatus::Resolved);
    stage.clock.advance(BACKOFF);
    stage.settle(stage.take_one("q").await.token, failed("Bad")).await.expect("held");
    assert_eq!(stage.group_status(group).await, GroupStatus::Regressed);
    stage.redeem(new(9, "q").id, "q").await;
    assert_eq!(stage.group_status(group).await, GroupStatus::Resolved, "and resolved again");
    let told: Vec<(String, String)> = stage.trail().await.into_iter().map(|e| (e.act, e.target)).collect();
    let mine = |act: &str| told.iter().filter(|(a, t)| a == act && *t == group.to_string()).count();
    assert_eq!((mine("resolve group"), mine("group came back")), (2, 1), "the trail tells it too");
    let history = stage.detail(group).await.history;
    let marks: Vec<(&str, GroupStatus)> = history.iter().map(|m| (m.what.as_str(), m.status)).collect();
    let back = ("died", GroupStatus::Regressed);
    assert_eq!(marks, [("emptied", GroupStatus::Resolved), back, ("emptied", GroupStatus::Resolved)]);
    // Emptied by hand: nobody knows whether the cause is gone.
    let other = stage.dead(new(20, "q"), "Other").await;
    stage.act(other.id(), Act::Resolve).await.expect("pending");
    assert_eq!(stage.group_status(other.group).await, GroupStatus::New);
}

impl Stage<'_> {
    async fn tally_open(&self, id: GroupId) -> u64 {
        self.store.group(id).await.expect("the group is known").open
    }
}

pub(super) async fn what_is_ignored_comes_back_when_its_time_or_count_is_over(stage: &Stage<'_>) {
    stage.set("q", unwatched(1)).await;
    let group = stage.dead(new(1, "q"), "Bad").await.group;
    let until = stage.now().plus(secs(60));
    stage.say(group, GroupAct::Ignore { until: Some(until), count: None }).await;
    let ended = stage.detail(group).await.ignored.expect("ignored");
    assert_eq!((ended.until, ended.deaths), (Some(until), None));
    let id = stage.dead(new(2, "q"), "Bad").await.id();
    stage.redeem(id, "q").await;
    stage.redeem(new(1, "q").id, "q").await;
    assert_eq!(stage.group_status(group).await, GroupStatus::Ignored, "neither death nor success ends it");
    stage.clock.advance(secs(60));
    let back = stage.detail(group).await;
    assert_eq!((back.group.status, back.since, back.ignored), (GroupStatus::New, Some(until), None));
    stage.say(group, GroupAct::Ignore { until: None, count: Some(2) }).await;
    stage.dead(new(3, "q"), "Bad").await;
    assert_eq!(stage.group_status(group).await, GroupStatus::Ignored);
    assert_eq!(stage.detail(group).await.ignored.and_then(|i| i.deaths), Some(1));
    stage.dead(new(4, "q"), "Bad").await;
    assert_eq!(stage.group_status(group).await, GroupStatus::New);
    stage.say(group, GroupAct::Ignore { until: None, count: None }).await;
    stage.clock.advance(Span::from_days(3_000));
    stage.dead(new(5, "q"), "Bad").await;
    assert_eq!(stage.group_status(group).await, GroupStatus::Ignored, "until somebody reopens it");
    stage.say(group, GroupAct::Reopen).await;
    assert_eq!(stage.group_status(group).await, GroupStatus::New);
}

pub(super) async fn i48_people_look_after_groups_and_the_trail_says_who(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    let group = stage.dead(new(1, "q"), "Bad").await.group;
    let ada = Actor { reason: Some("mine".into()), ..operator() };
    let say = |act| stage.store.act_on_group(group, act, ada.clone());
    say(GroupAct::Assign { to: Some("bob".into()) }).await.expect("taken");
    say(GroupAct::Note { text: Some("bank is down".into()) }).await.expect("taken");
    let shown = say(GroupAct::Link { url: Some("https://example.org/7".into()) }).await.expect("taken");
    let said = (shown.owner.as_deref(), shown.note.as_deref(), shown.link.as_deref());
    assert_eq!(said, (Some("bob"), Some("bank is down"), Some("https://example.org/7")));
    assert_eq!(shown.status, GroupStatus::New, "that is not a change of status");
    assert_eq!(say(GroupAct::Assign { to: None }).await.expect("taken").owner, None);
    let before = stage.seen().await;
    for (act, named) in [
        (GroupAct::Assign { to: Some("x".repeat(9_999)) }, "owner"),
        (GroupAct::Note { text: Some(" ".into()) }, "note"),
        (GroupAct::Link { url: Some("javascript:alert(1)".into()) }, "link"),
        (GroupAct::Ignore { until: Some(Time::ZERO), count: None }, "until"),
        (GroupAct::Ignore { until: None, count: Some(0) }, "count"),
    ] {
        assert_eq!(field(refused(say(act).await)), named);
    }
    let unknown = stage.store.act_on_group(LeafId::new(7), GroupAct::Resolve, operator()).await;
    assert_eq!(refused(unknown), Refusal::NoSuchGroup { group: LeafId::new(7) });
    assert!(matches!(refused(stage.store.group_detail(LeafId::new(7)).await), Refusal::NoSuchGroup { .. }));
    assert_eq!(stage.seen().await, before, "what is refused changes nothing");
    let trail = stage.trail().await;
    let mine: Vec<&str> =
        trail.iter().filter(|e| e.target == group.to_string()).map(|e| e.act.as_str()).collect();
    assert_eq!(mine, ["assign group", "note group", "link group", "assign group"]);
    let history = stage.detail(group).await.history;
    assert_eq!(history.len(), 4);
    assert_eq!(history[0].text.as_deref(), Some("bob; mine"));
}

pub(super) async fn i15_groups_that_become_one_add_up_and_keep_what_was_said(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    let first = stage.no_mailbox(1, "ann").await;
    let second = stage.no_mailbox(2, "bob").await;
    assert_ne!(first, second, "nobody can know yet");
    stage.say(second, GroupAct::Acknowledge).await;
    stage.say(second, GroupAct::Assign { to: Some("eve".into()) }).await;
    stage.say(first, GroupAct::Note { text: Some("one".into()) }).await;
    stage.say(second, GroupAct::Note { text: Some("two".into()) }).await;
    for (n, user) in (3..).zip(["cyd", "dan", "eve", "fay"]) {
        stage.no_mailbox(n, user).await;
    }
    let merged = stage.store.group(second).await.expect("an old name leads to it");
    assert_eq!((merged.id, merged.open, merged.total, merged.failures), (first, 6, 6, 6));
    assert_eq!((merged.status, merged.owner.as_deref()), (GroupStatus::Acknowledged, Some("eve")));
    assert_eq!(merged.note.as_deref(), Some("one\ntwo"), "nothing that was said is lost");
    assert!(merged.template.contains("<*>"), "{}", merged.template);
    let detail = stage.detail(second).await;
    assert_eq!(detail.hours.iter().map(|h| (h.deaths, h.failures)).collect::<Vec<_>>(), [(6, 6)]);
    assert_eq!(detail.workers.iter().map(|w| (w.name.as_str(), w.count)).collect::<Vec<_>>(), [("w", 6)]);
    assert_eq!(detail.history.len(), 4, "of both");
    // An operator's merge: a cause that came back is not hidden by one that is resolved.
    let (bad, worse) =
        (stage.dead(new(10, "q"), "Bad").await.group, stage.dead(new(11, "q"), "Worse").await.group);
    stage.say(worse, GroupAct::Resolve).await;
    stage.dead(new(12, "q"), "Worse").await;
    stage.say(bad, GroupAct::Resolve).await;
    let one = stage.store.merge_groups(vec![worse, bad], operator()).await.expect("both are there");
    assert_eq!((one.id, one.open, one.total, one.status), (bad, 3, 3, GroupStatus::Regressed));
    let all = walk(|page| stage.store.groups(GroupQuery::from(page))).await.expect("answers");
    assert_eq!(all.len(), 2, "the old rows are gone");
    // What happens under an old name happens to the group.
    stage.say(worse, GroupAct::Resolve).await;
    stage.dead(new(13, "q"), "Bad").await;
    let one = stage.store.group(worse).await.expect("an old name");
    assert_eq!((one.open, one.status), (4, GroupStatus::Regressed));
}

pub(super) async fn groups_are_found_by_status_queue_owner_age_and_text(stage: &Stage<'_>) {
    stage.set("a", rules(1)).await;
    stage.set("b", rules(1)).await;
    let old = stage.dead(new(1, "a"), "Old").await.group;
    stage.clock.advance(secs(7_200));
    let marker = stage.store.mark("deploy 1.4.2".into(), operator()).await.expect("taken");
    let young = stage.dead(new(2, "b"), "Young").await.group;
    stage.dead(new(3, "b"), "Young").await;
    stage.say(old, GroupAct::Assign { to: Some("bob".into()) }).await;
    let find = async |query: GroupQuery| -> Vec<GroupId> {
        let page = stage.store.groups(query).await.expect("answers");
        page.items.iter().map(|group| group.id).collect()
    };
    let all = GroupQuery::default;
    assert_eq!(find(all()).await, [young, old]);
    assert_eq!(find(GroupQuery { sort: Some(GroupSort::Impact), ..all() }).await, [old, young]);
    assert_eq!(find(GroupQuery { queue: Some(q("a")), ..all() }).await, [old]);
    assert_eq!(find(GroupQuery { owner: Some("bob".into()), ..all() }).await, [old]);
    assert_eq!(find(GroupQuery { owner: Some(String::new()), ..all() }).await, [young]);
    assert_eq!(find(GroupQuery { since: Some(marker.at), ..all() }).await, [young], "new since the deploy");
    assert_eq!(find(GroupQuery { text: Some("OLD".into()), ..all() }).await, [old]);
    stage.say(young, GroupAct::Ignore { until: Some(stage.now().plus(secs(5))), count: None }).await;
    let fresh = GroupQuery { status: vec![GroupStatus::New], ..all() };
    assert_eq!(find(fresh.clone()).await, [old]);
    stage.clock.advance(secs(5));
    assert_eq!(find(fresh).await, [young, old], "as it is now, not as it was written");
}

pub(super) async fn everything_about_one_group(stage: &Stage<'_>) {
    stage.set("q", unwatched(2)).await;
    let report = |host: &str, version: &str| {
        let mut analysed = failure("Bad");
        (analysed.report.host, analysed.report.version) = (Some(host.into()), Some(version.into()));
        Settle::Fail { failure: Box::new(analysed), said: None }
    };
    stage.send(NewMessage { kind: "charge".into(), ..new(1, "q") }).await;
    let first = stage.now();
    let taken = stage.take_as("w1", "q", 1).await.remove(0);
    stage.settle(taken.token, report("h1", "1.4.1")).await.expect("held");
    stage.clock.advance(Span::from_hours(3));
    let taken = stage.take_as("w2", "q", 1).await.remove(0);
    stage.settle(taken.token, report("h1", "1.4.2")).await.expect("held");
    let id = failure("Bad").signature.leaf;
    let detail = stage.detail(id).await;
    assert_eq!(detail.hours.iter().map(|h| (h.deaths, h.failures)).collect::<Vec<_>>(), [(0, 1), (1, 1)]);
    assert!(detail.hours[0].at <= first && first.since(detail.hours[0].at) < Span::from_hours(1));
    let names = |of: &[redrive_core::group::Counted]| -> Vec<String> {
        of.iter().map(|c| format!("{} {}", c.name, c.count)).collect()
    };
    assert_eq!(names(&detail.workers), ["w1 1", "w2 1"]);
    assert_eq!(names(&detail.versions), ["1.4.1 1", "1.4.2 1"]);
    assert_eq!(names(&detail.hosts), ["h1 2"]);
    let share = &detail.shares[0];
    assert_eq!((share.queue.clone(), share.kind.as_str()), (q("q"), "charge"));
    assert_eq!((share.open, share.total, share.failures), (1, 1, 2));
    assert_eq!(detail.samples.len(), 1);
    assert_eq!(
        (detail.samples[0].id, detail.samples[0].message.as_str()),
        (new(1, "q").id, "the other side said no")
    );
    // Two days later the hours are gone from the chart, not from the sums.
    stage.clock.advance(Span::from_hours(limits::GROUP_HOURS));
    let later = stage.detail(id).await;
    assert_eq!((later.hours, later.group.failures), (Vec::new(), 2));
    // Similar ones, operations on it, and what came of them.
    stage.dead(new(2, "q"), "Worse").await;
    assert_eq!(
        stage.detail(id).await.similar.iter().map(|s| s.error_type.as_str()).collect::<Vec<_>>(),
        ["Worse"]
    );
    let operation = operation_id(1);
    stage.store.start(spec(1, Act::retry(), &format!("group:{id}"))).await.expect("it starts");
    for _ in 0..4 {
        stage.store.step(operation).await.expect("it goes on");
    }
    stage.settle(stage.take_one("q").await.token, hopeless("Bad")).await.expect("held");
    let detail = stage.detail(id).await;
    assert_eq!(detail.operations.iter().map(|o| o.id).collect::<Vec<_>>(), [operation]);
    assert_eq!((detail.outcomes.redriven_ok, detail.outcomes.redriven_failed), (0, 1));
    assert_eq!(stage.detail(failure("Worse").signature.leaf).await.operations, []);
}

pub(super) async fn i48_markers_are_moments_in_order(stage: &Stage<'_>) {
    let mut marked = Vec::new();
    for text in ["deploy 1", "deploy 2", "deploy 3"] {
        stage.clock.advance(secs(1));
        marked.insert(0, stage.store.mark(text.into(), operator()).await.expect("taken"));
    }
    assert_eq!((marked[0].n, marked[0].text.as_str(), marked[0].by.as_str()), (3, "deploy 3", "ada"));
    let first = stage.store.markers(PageRequest::first(2)).await.expect("answers");
    assert_eq!(first.items, marked[..2]);
    let rest = PageRequest { limit: Some(2), cursor: first.next };
    let rest = stage.store.markers(rest).await.expect("answers");
    assert_eq!((rest.items.as_slice(), rest.next), (&marked[2..], None));
    for bad in [String::new(), "a\nb".into(), "x".repeat(9_999)] {
        assert_eq!(field(refused(stage.store.mark(bad, operator()).await)), "marker");
    }
    let trail: Vec<String> = stage.trail().await.into_iter().map(|e| e.act).collect();
    assert_eq!(trail, ["mark"; 3]);
    for n in 0..limits::MARKERS_MAX {
        stage.store.mark(format!("n{n}"), operator()).await.expect("taken");
    }
    let all: Vec<Marker> = walk(|page| stage.store.markers(page)).await.expect("answers");
    assert_eq!((all.len(), all[limits::MARKERS_MAX - 1].n), (limits::MARKERS_MAX, 4), "the oldest make room");
}
