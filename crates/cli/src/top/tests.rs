//! Tests `redrive top` without a terminal and without a store: events in, screens and effects out. The screens must be
//! the ones in docs/top.md, so that the page shows what is drawn.

use super::state::{
    DataRequest, Dialog, GroupAction, GroupFacts, GroupRow, LetterRow, LetterView, OperationRow, Overview,
    Page, Sample, Scope, State, StatusMessage, Target, TimelineRow,
};
use super::update::{Answer, Effect, Event, FeedEvent, Key, PageData, update};
use super::view::{render, short, spark};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use redrive::core::dead_letter::{Act, Status};
use redrive::core::ids::{LeafId, MessageId, OperationId};
use redrive::core::query::Cursor;
use redrive::core::time::{Span, Time};
use std::time::Duration;

const PAGE: &str = include_str!("../../../../docs/top.md");

fn now() -> Time {
    Time::from_millis(1_800_000_000_000)
}

fn ago(span: Span) -> Time {
    now().minus(span)
}

fn id(n: u8) -> MessageId {
    MessageId::new(1_800_000_000_000 - u64::from(n), [n; 10])
}

fn group(n: u64, open: u64, status: &str, queues: &str, error: &str) -> GroupRow {
    GroupRow {
        id: LeafId::new(0x5a00_0000_0000_0000 + n),
        open,
        total: open * 3,
        status: status.into(),
        owner: if n == 1 { "ana".into() } else { String::new() },
        first_seen: ago(Span::from_hours(30)),
        last_seen: ago(Span::from_secs(n * 40)),
        queues: queues.into(),
        error: error.into(),
    }
}

fn four_groups() -> Vec<GroupRow> {
    vec![
        group(1, 4_711, "regressed", "payments", "GatewayTimeout: no answer from <host> after <n> ms"),
        group(2, 212, "new", "emails, sms", "SmtpError: 451 mailbox <word> is busy, try again in <n> s"),
        group(3, 17, "acknowledged", "reports", "KeyError: 'customer_<n>' in render_invoice"),
        group(4, 0, "resolved", "payments", "DbError: deadlock detected on orders"),
    ]
}

fn facts() -> GroupFacts {
    let hours = (0..48).map(|hour: u64| if hour < 20 { 0 } else { (hour * hour) % 37 * hour }).collect();
    let words = "sent back 400: 396 ok, 4 back, version 1.4.2 (3811)".into();
    GroupFacts { id: LeafId::new(0x5a00_0000_0000_0001), hours, words }
}

fn letter(n: u8, death: u64, status: Status) -> LetterRow {
    LetterRow {
        id: id(n),
        death,
        version: 3,
        queue: "payments".into(),
        dlq: "payments-dlq".into(),
        status,
        reason: "attempts_exhausted".into(),
        attempts: 5,
        redrives: u32::from(n % 3),
        dead_at: ago(Span::from_secs(u64::from(n) * 50)),
        error: format!("GatewayTimeout: no answer from bank-{n}.example after 30000 ms"),
    }
}

fn letters(numbers: impl IntoIterator<Item = u8>) -> Vec<LetterRow> {
    numbers.into_iter().map(|n| letter(n, 1_000 - u64::from(n), Status::Pending)).collect()
}

fn sheet(n: u8) -> LetterView {
    let moment = |at, what: &str, more: &str| TimelineRow { at, what: what.into(), more: more.into() };
    let error = "GatewayTimeout: no answer from bank-1.example after 30000 ms";
    LetterView {
        id: id(n),
        version: 3,
        status: Status::Pending,
        fields: vec![
            ("error", error.into()),
            ("queue", "payments -> payments-dlq".into()),
            ("reason", "attempts_exhausted, transient, network".into()),
            ("payload", "62 bytes, application/json".into()),
        ],
        timeline: vec![
            moment(ago(Span::from_hours(3)), "enqueued by shop-api", ""),
            moment(
                ago(Span::from_hours(2)),
                "attempt 1.1 failed after 30s, worker w-7, version 1.4.2",
                error,
            ),
            moment(
                ago(Span::from_hours(1)),
                "attempt 1.2 failed after 30s, worker w-3, version 1.4.2",
                error,
            ),
            moment(ago(Span::from_hours(1)), "DEAD: attempts_exhausted", ""),
            moment(
                ago(Span::from_secs(300)),
                "ana said",
                "the bank is down, their status page says until noon",
            ),
            moment(now().plus(Span::from_days(29)), "removed by retention", ""),
        ],
        payload: r#"{"order":4411,"amount":"12.50","card":"***"}"#.into(),
        stack: String::new(),
    }
}

fn answer(state: &mut State, page: PageData) {
    let overview = Overview {
        open: 4_940,
        waiting: 1_280,
        leased: 16,
        oldest: Some(ago(Span::from_hours(26))),
        breakers_open: 1,
        paused: 0,
        degraded: Vec::new(),
    };
    let at = state
        .health
        .last_answer
        .map_or(now().minus(Span::from_secs(9)), |(_, at)| at.plus(Span::from_secs(1)));
    let n = at.since(now().minus(Span::from_secs(9))).as_millis() / 1_000;
    let burst = [0, 30, 5, 12, 80, 200, 140, 60, 25, 9];
    let dead = burst.iter().take(usize::try_from(n).unwrap() + 1).sum();
    let sample = Sample { at, dead, done: 3_000 * n };
    let operations = Vec::new();
    let data = Answer { now: at, overview, sample, operations, page };
    update(state, Event::Feed(FeedEvent::Answer(Box::new(data))));
}

fn watching(width: u16, height: u16, may_act: bool) -> State {
    let mut state = State::new("/var/lib/redrive".into(), may_act, width, height);
    for second in 0..10 {
        update(&mut state, Event::Tick(Duration::from_secs(second)));
        answer(&mut state, PageData::Groups(four_groups(), Some(facts())));
    }
    state
}

fn letters_page(state: &State, rows: Vec<LetterRow>, next: Option<&str>) -> PageData {
    let DataRequest::Letters { scope, start } = state.data_request() else {
        panic!("letters are not wanted")
    };
    PageData::Letters { scope, start, rows, next: next.map(Cursor::from_text) }
}

fn press(state: &mut State, keys: &str) -> Option<Effect> {
    let mut last = None;
    for c in keys.chars() {
        let key = match c {
            '\n' => Key::Enter,
            '\u{1b}' => Key::Esc,
            '\u{8}' => Key::Backspace,
            c => Key::Char(c),
        };
        last = update(state, Event::Key(key));
    }
    last
}

fn in_letters(width: u16, height: u16, may_act: bool) -> State {
    let mut state = watching(width, height, may_act);
    press(&mut state, "\n");
    let page = letters_page(&state, letters(1..=9), None);
    answer(&mut state, page);
    state
}

fn screen(state: &State) -> String {
    let mut terminal = Terminal::new(TestBackend::new(state.width, state.height)).unwrap();
    terminal.draw(|frame| render(frame, state, true)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y: u16| (0..state.width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..state.height).map(|y| line(y).trim_end().to_owned() + "\n").collect()
}

#[track_caller]
fn assert_in_docs(state: &State) {
    let screen = screen(state);
    assert!(
        PAGE.contains(&format!("```text\n{screen}```")),
        "docs/top.md does not have this screen:\n{screen}"
    );
}

#[test]
fn the_page_shows_the_groups() {
    assert_in_docs(&watching(80, 24, false));
    assert_in_docs(&watching(120, 40, true));
}

#[test]
fn the_page_shows_letters_and_a_selection() {
    let mut state = in_letters(80, 24, true);
    press(&mut state, "jxjx");
    assert_in_docs(&state);
    assert_in_docs(&in_letters(120, 40, false));
}

#[test]
fn the_page_shows_a_timeline() {
    let mut state = in_letters(80, 24, true);
    press(&mut state, "\n");
    answer(&mut state, PageData::Letter(id(1), Some(Box::new(sheet(1)))));
    assert_in_docs(&state);
}

#[test]
fn the_page_shows_the_confirmation_of_a_redrive() {
    let mut state = watching(80, 24, true);
    let Some(Effect::Preview(intent)) = press(&mut state, "R") else { panic!("nothing is counted") };
    let lines = vec!["payments pending GatewayTimeout: no answer from bank-1.example".to_owned()];
    let preview = super::state::ActPreview { intent, count: 4_711, bound: 9, token: None, lines };
    update(&mut state, Event::Feed(FeedEvent::Preview(Box::new(preview))));
    press(&mut state, "47");
    assert_in_docs(&state);
}

#[test]
fn the_page_shows_a_store_that_does_not_answer() {
    let mut state = watching(80, 24, false);
    let why = "the process that holds /var/lib/redrive does not answer".to_owned();
    update(&mut state, Event::Feed(FeedEvent::PollFailed(why)));
    update(&mut state, Event::Tick(Duration::from_secs(21)));
    assert_in_docs(&state);
}

#[test]
fn a_slow_store_is_shown_as_slow_and_keys_still_work() {
    let mut state = in_letters(80, 24, false);
    update(&mut state, Event::Feed(FeedEvent::PollStarted));
    assert!(screen(&state).contains("live"));
    update(&mut state, Event::Tick(Duration::from_secs(14)));
    assert!(screen(&state).contains("SLOW: DATA 5s OLD"), "{}", screen(&state));
    press(&mut state, "j");
    assert!(screen(&state).contains("bank-2"));
    answer(&mut state, PageData::Groups(four_groups(), Some(facts())));
    assert!(screen(&state).contains("live"));
}

#[test]
fn nothing_changes_without_permission() {
    for keys in ["R", "\nr", "\nR", "\nn", "\nD", "\nB", "\nxjxr", "\nAr", "\n\nr", "\n\nD"] {
        let mut state = watching(80, 24, false);
        for c in keys.chars() {
            let effect = press(&mut state, &c.to_string());
            assert_eq!(effect, None, "{keys:?}");
            if state.page == Page::Letters && !state.letters.known {
                let page = letters_page(&state, letters(1..=9), None);
                answer(&mut state, page);
            }
        }
        assert!(state.dialog.is_none() && screen(&state).contains("read-only: start it as"), "{keys:?}");
    }
}

#[test]
fn a_single_letter_is_retried_at_once_at_the_version_shown() {
    let mut state = in_letters(80, 24, true);
    let Some(Effect::Act(intent)) = press(&mut state, "jr") else { panic!("nothing is done") };
    assert_eq!(intent.target, Target::These(vec![(id(2), 3)]), "with the version that was on the screen");
    assert_eq!((intent.act, intent.reason), (Act::retry(), None));
}

#[test]
fn several_letters_need_confirmation_with_y() {
    let ask = || {
        let mut state = in_letters(80, 24, true);
        assert_eq!(press(&mut state, "xxr"), None);
        assert!(screen(&state).contains("retry 2 letters?"));
        state
    };
    for no in ["n", "\n", "\u{1b}", "q", "r"] {
        let mut state = ask();
        assert_eq!(press(&mut state, no), None, "{no:?}");
        assert!(state.dialog.is_none() && screen(&state).contains("nothing was changed"));
        assert_eq!(state.marked.len(), 2, "the selection stays");
    }
    let mut state = ask();
    let Some(Effect::Act(intent)) = press(&mut state, "y") else { panic!("nothing is done") };
    assert_eq!(intent.target, Target::These(vec![(id(2), 3), (id(1), 3)]));
    assert!(state.marked.is_empty());
}

#[test]
fn acting_on_all_matches_requires_typing_their_number() {
    let mut state = in_letters(80, 24, true);
    press(&mut state, "/status:pending\n");
    let page = letters_page(&state, letters(1..=9), Some("more"));
    answer(&mut state, page);
    let Some(Effect::Preview(intent)) = press(&mut state, "Ar") else { panic!("nothing is counted") };
    let Target::Matching { scope, .. } = &intent.target else { panic!("{intent:?}") };
    let group = LeafId::new(0x5a00_0000_0000_0001);
    let expected = Scope { group: Some(group), closed: false, typed: "status:pending".into() };
    assert_eq!(*scope, expected);
    let text = scope.filter().unwrap().text().to_owned();
    assert!(text.starts_with(&format!("group:{group} status:pending,retrying,")), "{text}");
    assert!(text.ends_with(" (status:pending)"), "{text}");
    let preview = super::state::ActPreview { intent, count: 12, bound: 9, token: None, lines: Vec::new() };
    update(&mut state, Event::Feed(FeedEvent::Preview(Box::new(preview.clone()))));
    assert_eq!(press(&mut state, "y\n1\n123\n"), None, "anything else than the number does nothing");
    assert!(matches!(state.dialog, Some(Dialog::Confirm { .. })));
    assert_eq!(press(&mut state, "12\n"), Some(Effect::Start(preview)));
    assert!(!state.all && state.dialog.is_none());
}

#[test]
fn a_preview_that_arrives_after_esc_is_dropped() {
    let mut state = watching(80, 24, true);
    let Some(Effect::Preview(intent)) = press(&mut state, "R") else { panic!("nothing is counted") };
    press(&mut state, "\u{1b}");
    let preview = super::state::ActPreview { intent, count: 12, bound: 9, token: None, lines: Vec::new() };
    update(&mut state, Event::Feed(FeedEvent::Preview(Box::new(preview.clone()))));
    assert!(state.dialog.is_none());
    press(&mut state, "R");
    update(
        &mut state,
        Event::Feed(FeedEvent::Preview(Box::new(super::state::ActPreview { count: 0, ..preview }))),
    );
    assert!(state.dialog.is_none() && screen(&state).contains("there is nothing to retry"));
    press(&mut state, "R");
    update(&mut state, Event::Feed(FeedEvent::Message(StatusMessage { text: "no".into(), is_error: true })));
    assert!(state.dialog.is_none(), "an error ends the waiting");
}

#[test]
fn closing_asks_for_a_reason_first() {
    let mut state = in_letters(80, 24, true);
    press(&mut state, "D\n");
    assert!(screen(&state).contains("type a text, or cancel with Esc"));
    let Some(Effect::Act(intent)) = press(&mut state, "paid by hand\n") else { panic!("nothing is done") };
    assert_eq!((intent.act, intent.reason.as_deref()), (Act::Resolve, Some("paid by hand")));
    press(&mut state, "xxn");
    update(&mut state, Event::Paste("seen\u{1b}[2J\r\n".into()));
    assert_eq!(press(&mut state, "\n"), None);
    assert!(screen(&state).contains("note 2 letters?"), "{}", screen(&state));
}

#[test]
fn groups_are_acknowledged_noted_and_resolved() {
    let mut state = watching(80, 24, true);
    let group = LeafId::new(0x5a00_0000_0000_0002);
    assert_eq!(press(&mut state, "ja"), Some(Effect::OnGroup(group, GroupAction::Acknowledge, None)));
    let reason = Some("fixed in 1.4.3".to_owned());
    assert_eq!(
        press(&mut state, "Dfixed in 1.4.3\n"),
        Some(Effect::OnGroup(group, GroupAction::Resolve, reason))
    );
    assert_eq!(press(&mut state, "n\n"), None);
    assert!(screen(&state).contains("note about this group:"));
    for keys in ["a", "D", "n"] {
        let mut state = watching(80, 24, false);
        assert_eq!(press(&mut state, keys), None);
        assert!(state.dialog.is_none() && screen(&state).contains("read-only: start it as"));
    }
}

#[test]
fn one_letter_at_a_time_is_edited_and_only_where_that_is_allowed() {
    let mut state = in_letters(80, 24, true);
    assert_eq!(press(&mut state, "je"), Some(Effect::Edit(id(2), 3)), "as it was seen");
    for keys in ["xxe", "Ae"] {
        let mut state = in_letters(80, 24, true);
        assert_eq!(press(&mut state, keys), None);
        assert!(screen(&state).contains("only one letter at a time"));
    }
    let mut state = in_letters(80, 24, false);
    assert_eq!(press(&mut state, "e"), None);
    assert!(screen(&state).contains("read-only: start it as"));
}

#[test]
fn pasted_text_is_never_taken_for_keys() {
    let mut state = in_letters(80, 24, true);
    assert_eq!(update(&mut state, Event::Paste("rRDBy\nq".into())), None);
    assert!(state.dialog.is_none() && state.message.is_none() && state.page == Page::Letters);
}

#[test]
fn a_wrong_filter_is_shown_where_it_is_wrong_and_changes_nothing() {
    let mut state = in_letters(80, 24, false);
    let before = state.scope.clone();
    press(&mut state, "/quue:payments\n");
    assert!(matches!(state.dialog, Some(Dialog::Input { .. })) && state.scope == before);
    assert!(screen(&state).contains("queue"), "{}", screen(&state));
    press(&mut state, "\u{1b}/status:pending) or (status:resolved\n");
    assert_eq!(state.scope, before, "a parenthesis of one's own does not leave the group");
    press(&mut state, "\u{1b}");
    assert!(state.dialog.is_none() && state.scope == before);
}

#[test]
fn escape_goes_back_one_step_at_a_time() {
    let mut state = in_letters(80, 24, false);
    press(&mut state, "/status:pending\n");
    let page = letters_page(&state, letters(1..=9), None);
    answer(&mut state, page);
    press(&mut state, "x\n");
    assert_eq!(state.page, Page::Letter);
    press(&mut state, "\u{1b}");
    assert_eq!((state.page, state.marked.len()), (Page::Letters, 1));
    press(&mut state, "\u{1b}");
    assert_eq!(
        (state.page, state.marked.len(), state.scope.typed.as_str()),
        (Page::Letters, 0, "status:pending")
    );
    press(&mut state, "\u{1b}");
    assert_eq!((state.page, state.scope.typed.as_str()), (Page::Letters, ""));
    press(&mut state, "\u{1b}");
    assert_eq!(state.page, Page::Groups);
    assert_eq!(press(&mut state, "\u{1b}"), None, "and stays");
    assert_eq!(press(&mut state, "q"), Some(Effect::Quit));
}

#[test]
fn updates_never_move_the_letter_under_the_cursor() {
    let mut state = in_letters(80, 24, true);
    press(&mut state, "jjj");
    let line_of = |state: &State| screen(state).lines().position(|line| line.starts_with('>'));
    let before = line_of(&state);
    let mut rows = letters(1..=30);
    rows.insert(0, letter(90, 1_001, Status::Pending));
    rows.insert(0, letter(91, 1_002, Status::Pending));
    let page = letters_page(&state, rows, None);
    answer(&mut state, page);
    assert_eq!(line_of(&state), before);
    assert_eq!(state.letters.rows.current().map(|row| row.id), Some(id(4)));
    assert!(screen(&state).contains(", 2 above"), "new rows are counted: {}", screen(&state));
    // When it is removed, it stays in sight with a mark, and no key acts on it or on the row that took its place.
    let page = letters_page(&state, letters([1, 2, 3, 5, 6]), None);
    answer(&mut state, page);
    assert!(screen(&state).contains('×') && screen(&state).contains("no longer in this list"));
    assert_eq!(press(&mut state, "r"), None);
    assert!(screen(&state).contains("that letter is no longer in the list"));
    press(&mut state, "j");
    assert_eq!(state.letters.rows.current().map(|row| row.id), Some(id(5)));
    assert!(!screen(&state).contains('×'));
}

#[test]
fn an_answer_to_an_outdated_request_is_dropped() {
    let mut state = in_letters(80, 24, false);
    let late = letters_page(&state, letters(50..=59), None);
    press(&mut state, "o");
    answer(&mut state, late);
    assert!(state.letters.rows.items().is_empty() && screen(&state).contains("asking the store"));
}

#[test]
fn the_list_grows_when_the_cursor_comes_near_its_end() {
    let mut state = watching(80, 24, false);
    press(&mut state, "\n");
    let page = letters_page(&state, letters(1..=50), Some("second"));
    answer(&mut state, page);
    assert_eq!(
        state.data_request(),
        DataRequest::Letters { scope: state.scope.clone(), start: None },
        "the first page is kept fresh"
    );
    for _ in 0..40 {
        press(&mut state, "j");
    }
    let DataRequest::Letters { start: Some(start), .. } = state.data_request() else {
        panic!("no more is asked for")
    };
    assert_eq!((start.cursor.as_str(), start.after), ("second", 950));
    let page = letters_page(&state, letters(51..=99), Some("third"));
    answer(&mut state, page);
    assert_eq!(state.letters.rows.len(), 99);
    for _ in 0..20 {
        press(&mut state, "j");
    }
    // Deep in the second page that page is refreshed: letters that were closed disappear, and the first page stays.
    let second = state.data_request();
    let DataRequest::Letters { start: Some(start), .. } = &second else { panic!("{second:?}") };
    assert_eq!(start.cursor.as_str(), "second");
    let page = letters_page(&state, letters((51..=99).filter(|n| n % 2 == 1)), Some("third"));
    answer(&mut state, page);
    assert_eq!(state.letters.rows.len(), 50 + 25);
    assert!(state.letters.more());
    assert_eq!(state.letters.rows.current().map(|row| row.id), Some(id(61)));
}

#[test]
fn a_page_that_found_nothing_yet_is_followed_by_the_next() {
    let mut state = watching(80, 24, false);
    press(&mut state, "/payload.order:4411\n");
    let page = letters_page(&state, Vec::new(), Some("second"));
    answer(&mut state, page);
    assert!(screen(&state).contains("nothing so far, still searching"));
    let DataRequest::Letters { start: Some(start), .. } = state.data_request() else {
        panic!("it stopped looking")
    };
    assert_eq!(start.cursor.as_str(), "second");
    let page = letters_page(&state, Vec::new(), None);
    answer(&mut state, page);
    assert!(screen(&state).contains("no letter matches"));
}

#[test]
fn untrusted_text_has_no_effect_on_the_terminal() {
    const HOSTILE: &str = "\u{1b}[2J\u{1b}]52;c;aGk=\u{7}\u{9b}31m\u{202e}\r\n\t\u{200b}日本";
    let mut state = State::new(HOSTILE.into(), true, 80, 24);
    let groups = vec![group(1, 1, HOSTILE, HOSTILE, HOSTILE)];
    answer(&mut state, PageData::Groups(groups, None));
    let mut screens = vec![screen(&state)];
    press(&mut state, "\n");
    let row = LetterRow {
        queue: HOSTILE.into(),
        error: HOSTILE.into(),
        reason: HOSTILE.into(),
        ..letter(1, 5, Status::Review)
    };
    let page = letters_page(&state, vec![row], None);
    answer(&mut state, page);
    screens.push(screen(&state));
    press(&mut state, "n");
    update(&mut state, Event::Paste(HOSTILE.into()));
    screens.push(screen(&state));
    press(&mut state, "\u{1b}\n");
    let mut one = sheet(1);
    one.fields.push(("kind", HOSTILE.into()));
    one.stack = HOSTILE.into();
    one.payload = HOSTILE.into();
    one.timeline.push(TimelineRow { at: now(), what: HOSTILE.into(), more: HOSTILE.into() });
    answer(&mut state, PageData::Letter(id(1), Some(Box::new(one))));
    screens.push(screen(&state));
    press(&mut state, "G");
    screens.push(screen(&state));
    update(&mut state, Event::Feed(FeedEvent::PollFailed(HOSTILE.into())));
    screens.push(screen(&state));
    for screen in screens {
        let acts = |c: char| (c.is_control() && c != '\n') || matches!(c, '\u{200b}' | '\u{202e}');
        assert!(!screen.chars().any(acts), "{screen:?}");
        assert!(screen.contains("\\u{1b}"), "it is spelled out: {screen}");
    }
}

#[test]
fn every_size_can_be_drawn() {
    for (width, height) in [(1, 1), (10, 3), (39, 24), (40, 8), (60, 10), (80, 24), (200, 60), (500, 200)] {
        for keys in ["", "?", "\n", "\n?", "\n/", "\n\n", "R"] {
            let mut state = watching(80, 24, true);
            press(&mut state, keys);
            update(&mut state, Event::Resize(width, height));
            let lines = screen(&state);
            assert_eq!(lines.lines().count(), usize::from(height), "{width} x {height} {keys:?}");
        }
    }
}

#[test]
fn the_progress_of_an_operation_is_shown() {
    let mut state = watching(80, 24, true);
    state.operations = vec![OperationRow {
        id: OperationId::new(id(7)),
        act: "retry".into(),
        stage: "running".into(),
        active: true,
        members: 400,
        done: 100,
        problems: "4 skipped".into(),
    }];
    assert!(
        screen(&state).contains("retry [#####...............] 100/400 running, 4 skipped"),
        "{}",
        screen(&state)
    );
}

#[test]
fn numbers_and_bars_fit_their_places() {
    for (n, text) in
        [(0, "0"), (99_999, "99999"), (100_000, "100k"), (1_234_567, "1.2M"), (250_000_000, "250M")]
    {
        assert_eq!(short(n), text);
    }
    assert_eq!(spark(&[0, 1, 50, 100]), "▁▂▅█");
    assert_eq!(spark(&[0, 0]), "▁▁");
    assert_eq!(spark(&[]), "");
}

#[test]
fn rates_need_two_samples_and_restart_with_another_store() {
    let mut state = State::new("x".into(), false, 80, 24);
    let sample = |s: u64, dead| Sample { at: ago(Span::from_secs(100 - s)), dead, done: 0 };
    state.add_sample(sample(0, 10));
    assert_eq!(state.rates(), None);
    state.add_sample(sample(2, 30));
    assert_eq!(state.rates(), Some((100, 0)), "20 in two seconds are 100 in ten");
    state.add_sample(sample(60, 88));
    assert_eq!(state.rates(), Some((10, 0)), "over a gap too");
    state.add_sample(sample(61, 5));
    assert_eq!(state.rates(), None);
}
