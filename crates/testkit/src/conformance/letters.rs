//! Laws of acts on letters: the status table on a real store (I12), versions, notes, pages.

use super::Stage;
use super::kit::{field, new, operator, q, refused, rules, secs};
use crate::clock::START;
use crate::ids::message_id;
use redrive_core::dead_letter::{Act, ActRequest, Actor, DeadLetter, File, Happening, Moment, Note, Status};
use redrive_core::error::Refusal;
use redrive_core::filter::Filter;
use redrive_core::ids::MessageId;
use redrive_core::invariants::Counts;
use redrive_core::limits;
use redrive_core::message::NewMessage;
use redrive_core::policy::QueuePolicy;
use redrive_core::query::{Cursor, Page, PageRequest, Query};
use redrive_core::store::{Drawer, LetterState};
use redrive_core::time::Time;

fn request(id: MessageId, act: Act, reason: &str) -> ActRequest {
    let actor = Actor { reason: Some(reason.into()), ..operator() };
    ActRequest { id, act, actor, expected_version: None }
}

/// How to get a fresh letter into each status.
fn way_to(status: Status) -> Vec<Act> {
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

/// The table of the product, word for word: where this act leads from this status, if anywhere.
fn leads_to(from: Status, act: &Act) -> Option<&'static str> {
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

pub(super) async fn i12_the_status_table_holds(stage: &Stage<'_>) {
    stage.set("other", rules(1)).await;
    let mut n = 0;
    for from in Status::ALL {
        for act in acts() {
            n += 1;
            let queue = format!("q{n}");
            let id = stage.dead(new(n, &queue), "Bad").await.id();
            for step in way_to(*from) {
                stage.act(id, step).await.expect("the way there is open");
            }
            let before = stage.seen().await;
            let version = stage.letter(id).await.file.version;
            let got = stage.act(id, act.clone()).await;
            let cell = format!("{from} x {}", act.name());
            match leads_to(*from, &act) {
                Some(to) => {
                    let status = Some(to.parse().expect("a status"));
                    assert_eq!(got, Ok(LetterState { id, status, version: version + 1 }), "{cell}");
                    let letter = stage.letter(id).await;
                    assert_eq!((Some(letter.file.status), letter.file.version), (status, version + 1));
                }
                None => {
                    let why = act.next_status(id, *from).expect_err("not a way");
                    assert_eq!(got, Err(why), "{cell}");
                    assert_eq!(stage.seen().await, before, "{cell}: a refusal changes nothing");
                }
            }
        }
    }
    assert_eq!(n, 112);
}

/// What is recorded of the acts that the next law tries, on a letter with this status.
fn told(act: &Act, from: Status) -> (Happening, String) {
    match act.name() {
        "review" => (Happening::ReviewRequested, String::new()),
        "quarantine" => (Happening::Quarantined, act.detail().unwrap_or_default()),
        "release" => (Happening::Released, format!("from {from} to pending")),
        "resolve" => (Happening::Closed, "resolved".into()),
        "abandon" => (Happening::Closed, "abandoned".into()),
        _ => (Happening::Reopened, String::new()),
    }
}

pub(super) async fn an_act_changes_what_it_says_and_nothing_else(stage: &Stage<'_>) {
    let mut expected = stage.dead(new(1, "q"), "Bad").await;
    let id = expected.id();
    let by = Some("ada".to_owned());
    let until = START.plus(secs(600));
    let mut check = async |act: Act, said: &str, change: &(dyn Fn(&mut File, Time) + Sync)| {
        let now = stage.clock.advance(secs(1));
        expected.file.version += 1;
        expected.file.available_at = now;
        expected.file.notes.push(Note { at: now, by: "ada".into(), text: said.into() });
        (expected.file.quarantined_until, expected.file.resolution) = (None, None);
        (expected.file.closed_at, expected.file.closed_by, expected.file.expires_at) = (None, None, None);
        let (what, detail) = told(&act, expected.file.status);
        let event = Moment::new(now, what).by(Some("ada")).saying(detail).because(Some(said));
        expected.file.history.push(event);
        change(&mut expected.file, now);
        expected.eligible = expected.file.eligible();
        expected.review_required = expected.file.status == Status::Review;
        let state = LetterState { id, status: Some(expected.file.status), version: expected.file.version };
        assert_eq!(stage.act_as(request(id, act, said)).await, Ok(state));
        assert_eq!(stage.letter(id).await, expected, "{said}");
    };
    let retention = QueuePolicy::default().retention;
    check(Act::Review, "look at it", &|file, now| {
        file.status = Status::Review;
        (file.review_requested_by, file.review_requested_at) = (by.clone(), Some(now));
    })
    .await;
    check(Act::Quarantine { until }, "not now", &|file, now| {
        (file.status, file.quarantined_until) = (Status::Quarantined, Some(until));
        (file.reviewed_by, file.reviewed_at) = (by.clone(), Some(now));
    })
    .await;
    check(Act::Release, "now", &|file, _| file.status = Status::Pending).await;
    for (status, act) in [(Status::Resolved, Act::Resolve), (Status::Abandoned, Act::Abandon)] {
        check(act, "the end", &|file, now| {
            (file.status, file.resolution) = (status, Some("the end".into()));
            (file.closed_at, file.closed_by, file.expires_at) =
                (Some(now), by.clone(), Some(now.plus(retention)));
        })
        .await;
        check(Act::Reopen, "not the end", &|file, _| file.status = Status::Pending).await;
    }
}

pub(super) async fn unknown_letters_are_said_to_be_unknown(stage: &Stage<'_>) {
    let live = stage.send(new(1, "q")).await;
    for id in [live, message_id(9)] {
        assert_eq!(refused(stage.store.letter(id).await), Refusal::NoSuchLetter { id });
        for act in [Act::retry(), Act::Note, Act::Purge] {
            assert_eq!(stage.act(id, act).await, Err(Refusal::NoSuchLetter { id }));
        }
    }
    assert_eq!(stage.trail().await, []);
}

pub(super) async fn a_version_that_moved_on_is_a_conflict(stage: &Stage<'_>) {
    let id = stage.dead(new(1, "q"), "Bad").await.id();
    let at = |act, expected_version| ActRequest { id, act, actor: operator(), expected_version };
    assert_eq!(stage.act_as(at(Act::Review, Some(1))).await.map(|s| s.version), Ok(2));
    let before = stage.seen().await;
    for (act, expected) in [(Act::Resolve, 1), (Act::Note, 1), (Act::retry(), 3), (Act::Purge, 0)] {
        let conflict = Refusal::VersionConflict { id, expected, actual: 2 };
        assert_eq!(stage.act_as(at(act, Some(expected))).await, Err(conflict));
    }
    assert_eq!(stage.seen().await, before);
    assert_eq!(stage.act_as(at(Act::Resolve, Some(2))).await.map(|s| s.version), Ok(3));
}

pub(super) async fn notes_can_be_left_in_every_status(stage: &Stage<'_>) {
    for (n, from) in (1..).zip(Status::ALL) {
        let id = stage.dead(new(n, &format!("q{n}")), "Bad").await.id();
        for step in way_to(*from) {
            stage.act(id, step).await.expect("the way there is open");
        }
        let mut letter = stage.letter(id).await;
        let noted = stage.act_as(request(id, Act::Note, "seen")).await;
        letter.file.version += 1;
        letter.file.notes.push(Note { at: START, by: "ada".into(), text: "seen".into() });
        letter.file.history.push(Moment::new(START, Happening::Noted).by(Some("ada")).saying("seen"));
        assert_eq!(noted, Ok(LetterState { id, status: Some(*from), version: letter.file.version }));
        assert_eq!(stage.letter(id).await, letter, "{from}");
    }
}

pub(super) async fn i49_notes_are_bounded(stage: &Stage<'_>) {
    let id = stage.dead(new(1, "q"), "Bad").await.id();
    let wordy = request(id, Act::Note, &"x".repeat(limits::NOTE_BYTES_MAX + 1));
    assert_eq!(field(stage.act_as(wordy).await.expect_err("too long")), "reason");
    for n in 0..limits::NOTES_MAX + 5 {
        stage.act_as(request(id, Act::Note, &format!("note {n}"))).await.expect("short enough");
    }
    let notes = stage.letter(id).await.file.notes;
    assert_eq!((notes.len(), notes[0].text.as_str()), (limits::NOTES_MAX, "note 5"), "the oldest go first");
}

pub(super) async fn i5_each_act_has_its_own_result(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    for n in 1..=3 {
        stage.dead(new(n, "q"), "Bad").await;
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
    let each = stage.store.act(batch).await.expect("answers");
    let ok: Vec<_> = each.iter().map(Result::is_ok).collect();
    assert_eq!(ok, [true, false, false, true, false, true], "{each:?}");
    let counts = Counts { enqueued: 3, waiting: 1, dead: 1, purged: 1, bytes: 9, ..Counts::default() };
    assert_eq!(stage.counts("q").await, counts);
    let names: Vec<_> = stage.trail().await.into_iter().skip(1).map(|row| row.act).collect();
    assert_eq!(names, ["resolve", "purge", "retry"]);
    assert_eq!(stage.store.act(Vec::new()).await, Ok(Vec::new()));
}

pub(super) async fn trap4_a_letter_is_sent_back_once(stage: &Stage<'_>) {
    stage.set("q", rules(1)).await;
    let id = stage.dead(new(1, "q"), "Bad").await.id();
    let retry = || ActRequest { id, act: Act::retry(), actor: operator(), expected_version: None };
    let each = stage.store.act(vec![retry(), retry(), retry()]).await.expect("answers");
    assert_eq!(each.iter().filter(|r| r.is_ok()).count(), 1, "{each:?}");
    assert_eq!(stage.take("q", 10).await.len(), 1);
    assert_eq!(stage.letter(id).await.file.redrives, 1);
}

pub(super) async fn letters_are_listed_latest_death_first(stage: &Stage<'_>) {
    for n in 1..=7 {
        stage.dead(NewMessage { kind: format!("kind{}", n % 2), ..new(n, "q") }, "Bad").await;
    }
    let page = async |filter: &str, limit, cursor| -> Page<DeadLetter> {
        let filter = Filter::parse(filter).expect("a filter");
        let query = Query { filter, page: PageRequest { limit: Some(limit), cursor } };
        stage.store.letters(query).await.expect("letters answers")
    };
    let ids = |page: &Page<DeadLetter>| -> Vec<_> { page.items.iter().map(DeadLetter::id).collect() };
    let first = page("", 3, None).await;
    assert_eq!(ids(&first), [7, 6, 5].map(message_id));
    // One dies again meanwhile: it is a newer death and not met a second time.
    stage.act(message_id(2), Act::retry()).await.expect("pending");
    stage.die("q", message_id(2), "Bad").await;
    stage.dead(new(8, "q"), "Bad").await;
    stage.act(message_id(5), Act::Abandon).await.expect("pending");
    stage.act(message_id(5), Act::Purge).await.expect("closed");
    let second = page("", 2, first.next).await;
    assert_eq!(ids(&second), [4, 3].map(message_id));
    let third = page("", 5, second.next).await;
    assert_eq!((ids(&third), &third.next), (vec![message_id(1)], &None));
    assert_eq!(ids(&page("kind:kind1", 10, None).await), [7, 3, 1].map(message_id));
    assert_eq!(ids(&page("status:resolved", 10, None).await), []);
    assert_eq!(page("", 10, Some(Cursor::after("l", 0))).await.next, None);
    for letter in page("", 10, None).await.items {
        assert_eq!(stage.letter(letter.id()).await, letter, "listed as it is shown");
    }
}

pub(super) async fn drawers_count_their_letters_by_status(stage: &Stage<'_>) {
    assert_eq!(stage.store.drawers().await, Ok(Vec::new()));
    for n in 1..=4 {
        stage.dead(new(n, "q"), "Bad").await;
    }
    stage.dead(new(5, "a"), "Bad").await;
    for (n, act) in [(1, Act::Review), (2, Act::retry()), (3, Act::Resolve)] {
        stage.act(message_id(n), act).await.expect("pending");
    }
    let drawer =
        |dlq: &str, by: &[(Status, u64)]| Drawer { dlq: q(dlq), by_status: by.iter().copied().collect() };
    let each = [(Status::Pending, 1), (Status::Retrying, 1), (Status::Review, 1), (Status::Resolved, 1)];
    let expected = [drawer("a-dlq", &[(Status::Pending, 1)]), drawer("q-dlq", &each)];
    assert_eq!(stage.seen().await.comparable().drawers, expected);
    stage.act(message_id(5), Act::Abandon).await.expect("pending");
    stage.act(message_id(5), Act::Purge).await.expect("closed");
    let purged = drawer("a-dlq", &[(Status::Purged, 1)]);
    assert_eq!(stage.seen().await.comparable().drawers[0], purged, "it can be taken back");
    stage.clock.advance(limits::PURGE_UNDO);
    stage.store.reap(10).await.expect("answers");
    assert_eq!(stage.seen().await.comparable().drawers[0], drawer("a-dlq", &[]), "it had letters");
}

pub(super) async fn text_is_found_whether_it_is_in_an_index_or_not(stage: &Stage<'_>) {
    for n in 1..=6 {
        stage.dead(new(n, "q"), if n % 2 == 0 { "ConnectionError" } else { "OutOfMemory" }).await;
    }
    let met =
        async |filter: &str| -> Vec<_> { stage.letters(filter).await.iter().map(DeadLetter::id).collect() };
    let expect = async |even: &[u64], odd: &[u64], when: &str| {
        let ids = |all: &[u64]| -> Vec<_> { all.iter().copied().map(message_id).collect() };
        assert_eq!(met("CONNECTION").await, ids(even), "{when}");
        assert_eq!(met("type:OutOf* memory").await, ids(odd), "{when}");
        assert_eq!(met("nowhere").await, [], "{when}");
    };
    expect(&[6, 4, 2], &[5, 3, 1], "before anything is indexed").await;
    stage.store.index_text(3).await.expect("answers");
    expect(&[6, 4, 2], &[5, 3, 1], "half of it").await;
    while stage.store.index_text(2).await.expect("answers").more {}
    expect(&[6, 4, 2], &[5, 3, 1], "all of it").await;
    // Dead again of something else, and gone: the old text must not be met, the new one must.
    stage.act(message_id(2), Act::retry()).await.expect("pending");
    stage.die("q", message_id(2), "OutOfMemory").await;
    stage.act(message_id(3), Act::Abandon).await.expect("pending");
    stage.act(message_id(3), Act::Purge).await.expect("closed");
    for when in ["changed", "and indexed again"] {
        expect(&[6, 4], &[2, 5, 1], when).await;
        while stage.store.index_text(2).await.expect("answers").more {}
    }
}
