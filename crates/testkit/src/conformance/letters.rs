//! Laws of acts on letters: the status table on a real store (I12), versions, notes, pages.

use super::LawContext;
use super::kit::{max_attempts, msg, operator, q, refused, refused_field, secs};
use crate::clock::START;
use crate::ids::message_id;
use redrive_core::dead_letter::{
    Act, ActRequest, Actor, DeadLetter, LetterRecord, Note, Status, TimelineEntry, TimelineEvent,
};
use redrive_core::error::Refusal;
use redrive_core::filter::Filter;
use redrive_core::ids::MessageId;
use redrive_core::invariants::Counts;
use redrive_core::limits;
use redrive_core::message::NewMessage;
use redrive_core::policy::QueuePolicy;
use redrive_core::query::{Cursor, Page, PageRequest, Query};
use redrive_core::store::{Dlq, LetterState};
use redrive_core::time::Time;

fn request(id: MessageId, act: Act, reason: &str) -> ActRequest {
    let actor = Actor { reason: Some(reason.into()), ..operator() };
    ActRequest { id, act, actor, expected_version: None }
}

/// The acts that bring a new letter into each status.
fn acts_leading_to(status: Status) -> Vec<Act> {
    let until = START.plus(secs(3_600));
    match status {
        Status::Pending => vec![],
        Status::Retrying => vec![Act::retry()],
        Status::Review => vec![Act::Review],
        Status::Quarantined => vec![Act::Quarantine { until }],
        Status::Resolved => vec![Act::Resolve],
        Status::Abandoned => vec![Act::Abandon],
        Status::Purged => vec![Act::Abandon, Act::Purge],
    }
}

/// Every act.
fn acts() -> [Act; 16] {
    let until = START.plus(secs(7_200));
    [
        Act::retry(),
        Act::Review,
        Act::Quarantine { until },
        Act::Release,
        Act::Resolve,
        Act::Abandon,
        Act::Reopen,
        Act::Note,
        Act::Purge,
        Act::Unpurge,
        Act::PullBack,
        Act::Move { dlq: q("other-dlq") },
        Act::Hold { on: true },
        Act::Snooze { until },
        Act::Assign { to: Some("eve".into()) },
        Act::Label { add: ["seen".to_owned()].into(), remove: [].into() },
    ]
}

/// The status table of the product, written out by hand: the status after this act, or `None` if it is
/// refused.
fn next_status(from: Status, act: &Act) -> Option<&'static str> {
    let retrying = from == Status::Retrying;
    let purged = from == Status::Purged;
    let (open, closed) = (!from.is_closed() && !retrying, from.is_closed() && !purged);
    match act {
        Act::Retry { .. } => open.then_some("retrying"),
        Act::Review => (open && from != Status::Review).then_some("review"),
        Act::Quarantine { .. } => (open && from != Status::Quarantined).then_some("quarantined"),
        Act::Release => (open && from != Status::Pending).then_some("pending"),
        Act::Resolve => open.then_some("resolved"),
        Act::Abandon => open.then_some("abandoned"),
        Act::Reopen => closed.then_some("pending"),
        Act::Purge => closed.then_some("purged"),
        Act::Unpurge => purged.then_some("abandoned"),
        Act::PullBack => retrying.then_some("pending"),
        Act::Note => Some(from.name()),
        Act::Edit(_) | Act::Patch(_) | Act::Restore { .. } => open.then_some(from.name()),
        Act::Erase => (!retrying).then_some(from.name()),
        Act::Move { .. } => (open || closed).then_some(from.name()),
        Act::Snooze { .. } => open.then_some(from.name()),
        Act::Hold { .. } | Act::Assign { .. } | Act::Label { .. } => (!purged).then_some(from.name()),
    }
}

pub(super) async fn i12_the_status_table_holds(ctx: &LawContext<'_>) {
    ctx.configure("other", max_attempts(1)).await;
    let mut n = 0;
    for from in Status::ALL {
        for act in acts() {
            n += 1;
            let queue = format!("q{n}");
            let id = ctx.dead_letter(msg(n, &queue), "Bad").await.id();
            for step in acts_leading_to(*from) {
                ctx.act(id, step).await.expect("the act is allowed");
            }
            let before = ctx.view().await;
            let version = ctx.letter(id).await.record.version;
            let got = ctx.act(id, act.clone()).await;
            let cell = format!("{from} x {}", act.name());
            match next_status(*from, &act) {
                Some(to) => {
                    let status = Some(to.parse().expect("a status"));
                    assert_eq!(got, Ok(LetterState { id, status, version: version + 1 }), "{cell}");
                    let letter = ctx.letter(id).await;
                    assert_eq!((Some(letter.record.status), letter.record.version), (status, version + 1));
                }
                None => {
                    let why = act.next_status(id, *from).expect_err("the act is refused");
                    assert_eq!(got, Err(why), "{cell}");
                    assert_eq!(ctx.view().await, before, "{cell}: a refusal changes nothing");
                }
            }
        }
    }
    assert_eq!(n, 112);
}

/// The timeline entry of each act in the next law, on a letter with this status.
fn timeline_entry(act: &Act, from: Status) -> (TimelineEvent, String) {
    match act.name() {
        "review" => (TimelineEvent::ReviewRequested, String::new()),
        "quarantine" => (TimelineEvent::Quarantined, act.detail().unwrap_or_default()),
        "release" => (TimelineEvent::Released, format!("from {from} to pending")),
        "resolve" => (TimelineEvent::Closed, "resolved".into()),
        "abandon" => (TimelineEvent::Closed, "abandoned".into()),
        _ => (TimelineEvent::Reopened, String::new()),
    }
}

pub(super) async fn an_act_changes_only_what_it_names(ctx: &LawContext<'_>) {
    let mut expected = ctx.dead_letter(msg(1, "q"), "Bad").await;
    let id = expected.id();
    let by = Some("ada".to_owned());
    let until = START.plus(secs(600));
    let mut check = async |act: Act, said: &str, change: &(dyn Fn(&mut LetterRecord, Time) + Sync)| {
        let now = ctx.clock.advance(secs(1));
        expected.record.version += 1;
        expected.record.available_at = now;
        expected.record.notes.push(Note { at: now, by: "ada".into(), text: said.into() });
        (expected.record.quarantined_until, expected.record.resolution) = (None, None);
        (expected.record.closed_at, expected.record.closed_by, expected.record.expires_at) =
            (None, None, None);
        let (what, detail) = timeline_entry(&act, expected.record.status);
        let event = TimelineEntry::new(now, what).by(Some("ada")).with_detail(detail).with_reason(Some(said));
        expected.record.history.push(event);
        change(&mut expected.record, now);
        expected.eligible = expected.record.eligible();
        expected.review_required = expected.record.status == Status::Review;
        let state =
            LetterState { id, status: Some(expected.record.status), version: expected.record.version };
        assert_eq!(ctx.act_as(request(id, act, said)).await, Ok(state));
        assert_eq!(ctx.letter(id).await, expected, "{said}");
    };
    let retention = QueuePolicy::default().retention;
    check(Act::Review, "look at it", &|record, now| {
        record.status = Status::Review;
        (record.review_requested_by, record.review_requested_at) = (by.clone(), Some(now));
    })
    .await;
    check(Act::Quarantine { until }, "not now", &|record, now| {
        (record.status, record.quarantined_until) = (Status::Quarantined, Some(until));
        (record.reviewed_by, record.reviewed_at) = (by.clone(), Some(now));
    })
    .await;
    check(Act::Release, "now", &|record, _| record.status = Status::Pending).await;
    for (status, act) in [(Status::Resolved, Act::Resolve), (Status::Abandoned, Act::Abandon)] {
        check(act, "the end", &|record, now| {
            (record.status, record.resolution) = (status, Some("the end".into()));
            (record.closed_at, record.closed_by, record.expires_at) =
                (Some(now), by.clone(), Some(now.plus(retention)));
        })
        .await;
        check(Act::Reopen, "not the end", &|record, _| record.status = Status::Pending).await;
    }
}

pub(super) async fn unknown_letters_are_refused(ctx: &LawContext<'_>) {
    let live = ctx.send(msg(1, "q")).await;
    for id in [live, message_id(9)] {
        assert_eq!(refused(ctx.store.letter(id).await), Refusal::NoSuchLetter { id });
        for act in [Act::retry(), Act::Note, Act::Purge] {
            assert_eq!(ctx.act(id, act).await, Err(Refusal::NoSuchLetter { id }));
        }
    }
    assert_eq!(ctx.audit_trail().await, []);
}

pub(super) async fn an_outdated_version_is_a_conflict(ctx: &LawContext<'_>) {
    let id = ctx.dead_letter(msg(1, "q"), "Bad").await.id();
    let at = |act, expected_version| ActRequest { id, act, actor: operator(), expected_version };
    assert_eq!(ctx.act_as(at(Act::Review, Some(1))).await.map(|s| s.version), Ok(2));
    let before = ctx.view().await;
    for (act, expected) in [(Act::Resolve, 1), (Act::Note, 1), (Act::retry(), 3), (Act::Purge, 0)] {
        let conflict = Refusal::VersionConflict { id, expected, actual: 2 };
        assert_eq!(ctx.act_as(at(act, Some(expected))).await, Err(conflict));
    }
    assert_eq!(ctx.view().await, before);
    assert_eq!(ctx.act_as(at(Act::Resolve, Some(2))).await.map(|s| s.version), Ok(3));
}

pub(super) async fn notes_can_be_added_in_every_status(ctx: &LawContext<'_>) {
    for (n, from) in (1..).zip(Status::ALL) {
        let id = ctx.dead_letter(msg(n, &format!("q{n}")), "Bad").await.id();
        for step in acts_leading_to(*from) {
            ctx.act(id, step).await.expect("the act is allowed");
        }
        let mut letter = ctx.letter(id).await;
        let noted = ctx.act_as(request(id, Act::Note, "seen")).await;
        letter.record.version += 1;
        letter.record.notes.push(Note { at: START, by: "ada".into(), text: "seen".into() });
        letter
            .record
            .history
            .push(TimelineEntry::new(START, TimelineEvent::Noted).by(Some("ada")).with_detail("seen"));
        assert_eq!(noted, Ok(LetterState { id, status: Some(*from), version: letter.record.version }));
        assert_eq!(ctx.letter(id).await, letter, "{from}");
    }
}

pub(super) async fn i49_notes_are_bounded(ctx: &LawContext<'_>) {
    let id = ctx.dead_letter(msg(1, "q"), "Bad").await.id();
    let wordy = request(id, Act::Note, &"x".repeat(limits::NOTE_BYTES_MAX + 1));
    assert_eq!(refused_field(ctx.act_as(wordy).await.expect_err("too long")), "reason");
    for n in 0..limits::NOTES_MAX + 5 {
        ctx.act_as(request(id, Act::Note, &format!("note {n}"))).await.expect("short enough");
    }
    let notes = ctx.letter(id).await.record.notes;
    assert_eq!((notes.len(), notes[0].text.as_str()), (limits::NOTES_MAX, "note 5"), "the oldest go first");
}

pub(super) async fn i5_each_act_has_its_own_result(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    for n in 1..=3 {
        ctx.dead_letter(msg(n, "q"), "Bad").await;
    }
    let act = |n, act| ActRequest { id: message_id(n), act, actor: operator(), expected_version: None };
    let batch = vec![
        act(1, Act::Resolve),
        act(9, Act::Resolve),
        act(1, Act::Resolve),
        act(1, Act::Purge),
        act(2, Act::Purge),
        act(3, Act::retry()),
    ];
    let each = ctx.store.act(batch).await.expect("succeeds");
    let ok: Vec<_> = each.iter().map(Result::is_ok).collect();
    assert_eq!(ok, [true, false, false, true, false, true], "{each:?}");
    let counts = Counts { enqueued: 3, waiting: 1, dead: 1, purged: 1, bytes: 9, ..Counts::default() };
    assert_eq!(ctx.counts("q").await, counts);
    let names: Vec<_> = ctx.audit_trail().await.into_iter().skip(1).map(|row| row.act).collect();
    assert_eq!(names, ["resolve", "purge", "retry"]);
    assert_eq!(ctx.store.act(Vec::new()).await, Ok(Vec::new()));
}

pub(super) async fn trap4_a_letter_is_redriven_once(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(1)).await;
    let id = ctx.dead_letter(msg(1, "q"), "Bad").await.id();
    let retry = || ActRequest { id, act: Act::retry(), actor: operator(), expected_version: None };
    let each = ctx.store.act(vec![retry(), retry(), retry()]).await.expect("succeeds");
    assert_eq!(each.iter().filter(|r| r.is_ok()).count(), 1, "{each:?}");
    assert_eq!(ctx.lease("q", 10).await.len(), 1);
    assert_eq!(ctx.letter(id).await.record.redrives, 1);
}

pub(super) async fn letters_are_listed_latest_death_first(ctx: &LawContext<'_>) {
    for n in 1..=7 {
        ctx.dead_letter(NewMessage { kind: format!("kind{}", n % 2), ..msg(n, "q") }, "Bad").await;
    }
    let page = async |filter: &str, limit, cursor| -> Page<DeadLetter> {
        let filter = Filter::parse(filter).expect("a filter");
        let query = Query { filter, page: PageRequest { limit: Some(limit), cursor } };
        ctx.store.letters(query).await.expect("letters succeeds")
    };
    let ids = |page: &Page<DeadLetter>| -> Vec<_> { page.items.iter().map(DeadLetter::id).collect() };
    let first = page("", 3, None).await;
    assert_eq!(ids(&first), [7, 6, 5].map(message_id));
    // One letter dies again in the meantime: its death is newer, and it is not listed a second time.
    ctx.act(message_id(2), Act::retry()).await.expect("pending");
    ctx.kill_next("q", message_id(2), "Bad").await;
    ctx.dead_letter(msg(8, "q"), "Bad").await;
    ctx.act(message_id(5), Act::Abandon).await.expect("pending");
    ctx.act(message_id(5), Act::Purge).await.expect("closed");
    let second = page("", 2, first.next).await;
    assert_eq!(ids(&second), [4, 3].map(message_id));
    let third = page("", 5, second.next).await;
    assert_eq!((ids(&third), &third.next), (vec![message_id(1)], &None));
    assert_eq!(ids(&page("kind:kind1", 10, None).await), [7, 3, 1].map(message_id));
    assert_eq!(ids(&page("status:resolved", 10, None).await), []);
    assert_eq!(page("", 10, Some(Cursor::after("l", 0))).await.next, None);
    for letter in page("", 10, None).await.items {
        assert_eq!(ctx.letter(letter.id()).await, letter, "the list and the single letter agree");
    }
}

pub(super) async fn dlqs_count_their_letters_by_status(ctx: &LawContext<'_>) {
    assert_eq!(ctx.store.dlqs().await, Ok(Vec::new()));
    for n in 1..=4 {
        ctx.dead_letter(msg(n, "q"), "Bad").await;
    }
    ctx.dead_letter(msg(5, "a"), "Bad").await;
    for (n, act) in [(1, Act::Review), (2, Act::retry()), (3, Act::Resolve)] {
        ctx.act(message_id(n), act).await.expect("pending");
    }
    let dlq = |dlq: &str, by: &[(Status, u64)]| Dlq { dlq: q(dlq), by_status: by.iter().copied().collect() };
    let each = [(Status::Pending, 1), (Status::Retrying, 1), (Status::Review, 1), (Status::Resolved, 1)];
    let expected = [dlq("a-dlq", &[(Status::Pending, 1)]), dlq("q-dlq", &each)];
    assert_eq!(ctx.view().await.comparable().dlqs, expected);
    ctx.act(message_id(5), Act::Abandon).await.expect("pending");
    ctx.act(message_id(5), Act::Purge).await.expect("closed");
    let purged = dlq("a-dlq", &[(Status::Purged, 1)]);
    assert_eq!(ctx.view().await.comparable().dlqs[0], purged, "a purged letter can be restored");
    ctx.clock.advance(limits::PURGE_UNDO);
    ctx.store.reap(10).await.expect("succeeds");
    assert_eq!(ctx.view().await.comparable().dlqs[0], dlq("a-dlq", &[]), "listed because it had letters");
}

pub(super) async fn text_is_found_with_and_without_an_index(ctx: &LawContext<'_>) {
    for n in 1..=6 {
        ctx.dead_letter(msg(n, "q"), if n % 2 == 0 { "ConnectionError" } else { "OutOfMemory" }).await;
    }
    let listed =
        async |filter: &str| -> Vec<_> { ctx.letters(filter).await.iter().map(DeadLetter::id).collect() };
    let expect = async |even: &[u64], odd: &[u64], when: &str| {
        let ids = |all: &[u64]| -> Vec<_> { all.iter().copied().map(message_id).collect() };
        assert_eq!(listed("CONNECTION").await, ids(even), "{when}");
        assert_eq!(listed("type:OutOf* memory").await, ids(odd), "{when}");
        assert_eq!(listed("nowhere").await, [], "{when}");
    };
    expect(&[6, 4, 2], &[5, 3, 1], "before anything is indexed").await;
    ctx.store.index_text(3).await.expect("succeeds");
    expect(&[6, 4, 2], &[5, 3, 1], "half is indexed").await;
    while ctx.store.index_text(2).await.expect("succeeds").more {}
    expect(&[6, 4, 2], &[5, 3, 1], "everything is indexed").await;
    // One letter dies again of another error, one is removed: the old text must not be found, the new text
    // must.
    ctx.act(message_id(2), Act::retry()).await.expect("pending");
    ctx.kill_next("q", message_id(2), "OutOfMemory").await;
    ctx.act(message_id(3), Act::Abandon).await.expect("pending");
    ctx.act(message_id(3), Act::Purge).await.expect("closed");
    for when in ["changed", "indexed again"] {
        expect(&[6, 4], &[2, 5, 1], when).await;
        while ctx.store.index_text(2).await.expect("succeeds").more {}
    }
}
