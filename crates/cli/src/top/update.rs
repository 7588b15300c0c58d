//! Applies keys, ticks and store events to the state. Pure: the same state and event always have the same result.
//! Changes to the store are returned as an [`Effect`], only if they are allowed and, for more than one letter,
//! confirmed.

use super::rows::Row as _;
use super::state::{
    ActPreview, DataRequest, Dialog, GroupAction, GroupFacts, GroupRow, Intent, LetterRow, LetterView,
    OperationRow, Overview, Page, PageStart, Purpose, Sample, Scope, State, StatusMessage, Target,
};
use redrive::core::dead_letter::Act;
use redrive::core::ids::{GroupId, MessageId};
use redrive::core::limits;
use redrive::core::query::Cursor;
use redrive::core::time::Time;
use std::time::Duration;

/// A key with a meaning in `redrive top`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Esc,
    Backspace,
    /// Ctrl-U: clears the line.
    Clear,
    /// Ctrl-C.
    Interrupt,
}

/// An event for the UI.
#[derive(Debug)]
pub(super) enum Event {
    Key(Key),
    /// Text from the clipboard, which is never treated as keys.
    Paste(String),
    Resize(u16, u16),
    /// The time since the start.
    Tick(Duration),
    Feed(FeedEvent),
}

/// An event from the feed.
#[derive(Debug)]
pub(super) enum FeedEvent {
    /// A poll has started.
    PollStarted,
    /// The poll was answered.
    Answer(Box<Answer>),
    /// The poll failed.
    PollFailed(String),
    /// The preview of an act.
    Preview(Box<ActPreview>),
    /// The result of a request.
    Message(StatusMessage),
}

/// The answer to a poll.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) now: Time,
    pub(super) overview: Overview,
    pub(super) sample: Sample,
    pub(super) operations: Vec<OperationRow>,
    pub(super) page: PageData,
}

/// The data for the current page.
#[derive(Debug)]
pub(super) enum PageData {
    Groups(Vec<GroupRow>, Option<GroupFacts>),
    Letters { scope: Scope, start: Option<PageStart>, rows: Vec<LetterRow>, next: Option<Cursor> },
    Letter(MessageId, Option<Box<LetterView>>),
}

/// Something to do outside of the state.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Effect {
    Quit,
    /// Act on these letters now.
    Act(Intent),
    /// Act on a group.
    OnGroup(GroupId, GroupAction, Option<String>),
    /// Count the letters that this would change.
    Preview(Intent),
    /// Start an operation.
    Start(ActPreview),
    /// Open this letter, at this version, in the user's editor.
    Edit(MessageId, u64),
    /// Copy this to the clipboard.
    Copy(String),
}

/// Applies an event, and returns what to do outside.
pub(super) fn update(state: &mut State, event: Event) -> Option<Effect> {
    match event {
        Event::Tick(clock) => state.clock = clock,
        Event::Resize(width, height) => state.resize(width, height),
        Event::Feed(event) => feed_event(state, event),
        Event::Paste(text) => paste(state, &text),
        Event::Key(Key::Interrupt) => return Some(Effect::Quit),
        Event::Key(key) => return key_pressed(state, key),
    }
    None
}

fn key_pressed(state: &mut State, key: Key) -> Option<Effect> {
    state.message = None;
    match state.dialog.take() {
        Some(dialog) => dialog_key(state, dialog, key),
        None => page_key(state, key),
    }
}

/// Adds pasted text to the open input line, without control characters.
fn paste(state: &mut State, text: &str) {
    let typed = text.chars().filter(|c| !c.is_control());
    match &mut state.dialog {
        Some(Dialog::Input { text, purpose, .. }) => typed.for_each(|c| push(text, c, purpose)),
        Some(Dialog::Confirm { .. } | Dialog::Help | Dialog::Ask(_) | Dialog::Counting) | None => {}
    }
}

fn push(text: &mut String, c: char, purpose: &Purpose) {
    let max = match purpose {
        Purpose::Filter => limits::FILTER_BYTES_MAX,
        Purpose::Reason(_) | Purpose::Group(..) => limits::NOTE_BYTES_MAX,
    };
    if text.len() + c.len_utf8() <= max {
        text.push(c);
    }
}

/// Handles a key while a dialog is open.
fn dialog_key(state: &mut State, dialog: Dialog, key: Key) -> Option<Effect> {
    match dialog {
        Dialog::Help => None,
        Dialog::Counting => {
            if key != Key::Esc {
                state.dialog = Some(Dialog::Counting);
            }
            None
        }
        Dialog::Ask(intent) => match key {
            Key::Char('y' | 'Y') => Some(act(state, *intent)),
            Key::Char(_)
            | Key::Up
            | Key::Down
            | Key::PageUp
            | Key::PageDown
            | Key::Home
            | Key::End
            | Key::Enter
            | Key::Esc
            | Key::Backspace
            | Key::Clear
            | Key::Interrupt => show_message(state, "nothing was changed", false),
        },
        Dialog::Confirm { preview, typed } => confirm(state, preview, typed, key),
        Dialog::Input { purpose, text, wrong } => input(state, purpose, text, wrong, key),
    }
}

fn confirm(state: &mut State, preview: Box<ActPreview>, mut typed: String, key: Key) -> Option<Effect> {
    match key {
        Key::Esc => return show_message(state, "nothing was changed", false),
        Key::Enter if typed == preview.count.to_string() => {
            state.unmark();
            return Some(Effect::Start(*preview));
        }
        Key::Enter | Key::Clear => typed.clear(),
        Key::Backspace => drop(typed.pop()),
        Key::Char(c) if c.is_ascii_digit() && typed.len() < 20 => typed.push(c),
        Key::Char(_)
        | Key::Up
        | Key::Down
        | Key::PageUp
        | Key::PageDown
        | Key::Home
        | Key::End
        | Key::Interrupt => {}
    }
    state.dialog = Some(Dialog::Confirm { preview, typed });
    None
}

fn input(
    state: &mut State,
    purpose: Purpose,
    mut text: String,
    mut wrong: Option<String>,
    key: Key,
) -> Option<Effect> {
    match key {
        Key::Esc => return None,
        Key::Enter => match submit(state, &purpose, &text) {
            Ok(effect) => return effect,
            Err(why) => wrong = Some(why),
        },
        Key::Clear => text.clear(),
        Key::Backspace => drop(text.pop()),
        Key::Char(c) => {
            push(&mut text, c, &purpose);
            wrong = None;
        }
        Key::Up | Key::Down | Key::PageUp | Key::PageDown | Key::Home | Key::End | Key::Interrupt => {}
    }
    state.dialog = Some(Dialog::Input { purpose, text, wrong });
    None
}

/// Handles a completed input line.
fn submit(state: &mut State, purpose: &Purpose, text: &str) -> Result<Option<Effect>, String> {
    match purpose {
        Purpose::Filter => {
            // On the groups page, a filter applies to the letters of all groups.
            let here = if state.page == Page::Groups { Scope::default() } else { state.scope.clone() };
            let scope = Scope { typed: text.trim().to_owned(), ..here };
            scope.filter()?;
            state.open_list(scope);
            Ok(None)
        }
        Purpose::Reason(_) | Purpose::Group(..) if text.trim().is_empty() => {
            Err("type a text, or cancel with Esc".into())
        }
        Purpose::Group(id, action) => Ok(Some(Effect::OnGroup(*id, *action, Some(text.trim().to_owned())))),
        Purpose::Reason(intent) => {
            let intent = Intent { reason: Some(text.trim().to_owned()), ..*intent.clone() };
            Ok(check(state, intent))
        }
    }
}

/// Handles a key on a page.
fn page_key(state: &mut State, key: Key) -> Option<Effect> {
    let page = isize::try_from(state.groups.height()).unwrap_or(1);
    match key {
        Key::Up | Key::Char('k') => go(state, -1),
        Key::Down | Key::Char('j') => go(state, 1),
        Key::PageUp => go(state, -page),
        Key::PageDown | Key::Char(' ') => go(state, page),
        Key::Home | Key::Char('g') => go(state, isize::MIN),
        Key::End | Key::Char('G') => go(state, isize::MAX),
        Key::Enter => open(state),
        Key::Esc | Key::Backspace => back(state),
        Key::Char('q') => return Some(Effect::Quit),
        Key::Char('?') => state.dialog = Some(Dialog::Help),
        Key::Char('/') => {
            let text = if state.page == Page::Groups { String::new() } else { state.scope.typed.clone() };
            state.dialog = Some(Dialog::Input { purpose: Purpose::Filter, text, wrong: None });
        }
        Key::Char('o') if state.page == Page::Letters => {
            let scope = Scope { closed: !state.scope.closed, ..state.scope.clone() };
            state.open_list(scope);
        }
        Key::Char('x') if state.page == Page::Letters => mark(state),
        Key::Char('A') if state.page == Page::Letters => {
            let all = !state.all;
            state.unmark();
            state.all = all;
        }
        Key::Char('y') => return copy(state),
        Key::Char('a') if state.page == Page::Groups => return on_group(state, GroupAction::Acknowledge),
        Key::Char('D') if state.page == Page::Groups => return on_group(state, GroupAction::Resolve),
        Key::Char('n') if state.page == Page::Groups => return on_group(state, GroupAction::Note),
        Key::Char('r') => return act_on_selected(state, Act::retry(), false),
        Key::Char('n') => return act_on_selected(state, Act::Note, true),
        Key::Char('D') => return act_on_selected(state, Act::Resolve, true),
        Key::Char('B') => return act_on_selected(state, Act::Abandon, true),
        Key::Char('R') => return redrive(state),
        Key::Char('e') => return edit(state),
        Key::Char(_) | Key::Clear | Key::Interrupt => {}
    }
    None
}

fn go(state: &mut State, by: isize) {
    let edge = |by: isize| by == isize::MIN || by == isize::MAX;
    match state.page {
        Page::Groups if edge(by) => state.groups.to(if by > 0 { usize::MAX } else { 0 }),
        Page::Groups => state.groups.go(by),
        Page::Letters if edge(by) => state.letters.rows.to(if by > 0 { usize::MAX } else { 0 }),
        Page::Letters => state.letters.rows.go(by),
        Page::Letter => {
            let last = super::view::sheet_lines(state).saturating_sub(state.groups.height());
            state.scroll = state.scroll.saturating_add_signed(by).min(last);
        }
    }
}

fn open(state: &mut State) {
    match state.page {
        Page::Groups => {
            if let Some(group) = state.groups.current() {
                let scope = Scope { group: Some(group.id), ..Scope::default() };
                state.open_list(scope);
            }
        }
        Page::Letters => {
            if let Some(letter) = state.letters.rows.current() {
                let id = letter.id;
                if state.opened != Some(id) {
                    state.sheet = None;
                }
                (state.opened, state.scroll, state.sheet_gone) = (Some(id), 0, false);
                state.page = Page::Letter;
            }
        }
        Page::Letter => {}
    }
}

/// Goes one step back: from a letter, a selection, a filter, or a group.
fn back(state: &mut State) {
    match state.page {
        Page::Letter => state.page = Page::Letters,
        Page::Letters if state.all || !state.marked.is_empty() => state.unmark(),
        Page::Letters if !state.scope.typed.is_empty() && state.scope.group.is_some() => {
            let scope = Scope { typed: String::new(), ..state.scope.clone() };
            state.open_list(scope);
        }
        Page::Letters => state.page = Page::Groups,
        Page::Groups => {}
    }
}

fn mark(state: &mut State) {
    state.all = false;
    let Some(row) = state.letters.rows.present() else { return };
    let (id, version) = (row.id, row.version);
    if state.marked.remove(&id).is_none() {
        state.marked.insert(id, version);
    }
    state.letters.rows.go(1);
}

fn copy(state: &mut State) -> Option<Effect> {
    let id = match state.page {
        Page::Groups => state.groups.current().map(|row| row.key().to_string()),
        Page::Letters => state.letters.rows.current().map(|row| row.key().to_string()),
        Page::Letter => state.opened.map(|id| id.to_string()),
    }?;
    show_message(state, format!("copied {id}"), false);
    Some(Effect::Copy(id))
}

fn show_message(state: &mut State, text: impl Into<String>, is_error: bool) -> Option<Effect> {
    state.message = Some(StatusMessage { text: text.into(), is_error });
    None
}

const ONE_AT_A_TIME: &str = "only one letter at a time can be edited; use `redrive dlq patch` for many";
const READ_ONLY: &str = "read-only: start it as `redrive top --act` to change anything";

/// The letters to act on: the selected ones, or the one under the cursor or on the page.
fn selected(state: &State) -> Result<Target, &'static str> {
    const GONE: &str = "that letter is no longer in the list";
    match state.page {
        Page::Groups => Err("open the group with Enter first; R redrives the whole group"),
        Page::Letters if state.all => Ok(everything(state)),
        Page::Letters if !state.marked.is_empty() => {
            Ok(Target::These(state.marked.iter().map(|(id, version)| (*id, *version)).collect()))
        }
        Page::Letters => {
            let row = state.letters.rows.present().ok_or(GONE)?;
            Ok(Target::These(vec![(row.id, row.version)]))
        }
        Page::Letter => match &state.sheet {
            Some(sheet) if !state.sheet_gone => Ok(Target::These(vec![(sheet.id, sheet.version)])),
            Some(_) | None => Err(GONE),
        },
    }
}

/// All letters of the list.
fn everything(state: &State) -> Target {
    let mut words = match (state.scope.group, state.scope_group()) {
        (Some(_), Some(group)) => format!("of the group {:?}", group.error),
        (Some(id), None) => format!("of group {id}"),
        (None, _) => "of all groups".to_owned(),
    };
    if !state.scope.typed.is_empty() {
        words.push_str(&format!(" that match {}", state.scope.typed));
    }
    Target::Matching { scope: state.scope.clone(), words }
}

fn act_on_selected(state: &mut State, act: Act, wants_reason: bool) -> Option<Effect> {
    if !state.may_act {
        return show_message(state, READ_ONLY, true);
    }
    let target = match selected(state) {
        Ok(target) => target,
        Err(why) => return show_message(state, why, true),
    };
    let intent = Intent { act, target, reason: None };
    if wants_reason {
        let purpose = Purpose::Reason(Box::new(intent));
        state.dialog = Some(Dialog::Input { purpose, text: String::new(), wrong: None });
        return None;
    }
    check(state, intent)
}

/// `e`: edits the letter under the cursor or on the page; refuses more than one.
fn edit(state: &mut State) -> Option<Effect> {
    if !state.may_act {
        return show_message(state, READ_ONLY, true);
    }
    match selected(state) {
        Ok(Target::These(letters)) => match letters.as_slice() {
            [(id, version)] => Some(Effect::Edit(*id, *version)),
            _ => show_message(state, ONE_AT_A_TIME, true),
        },
        Ok(Target::Matching { .. }) => show_message(state, ONE_AT_A_TIME, true),
        Err(why) => show_message(state, why, true),
    }
}

/// Acts on the group under the cursor; its letters do not change.
fn on_group(state: &mut State, action: GroupAction) -> Option<Effect> {
    if !state.may_act {
        return show_message(state, READ_ONLY, true);
    }
    let Some(id) = state.groups.present().map(|group| group.id) else {
        return show_message(state, "there is no group under the cursor", true);
    };
    match action {
        GroupAction::Acknowledge => Some(Effect::OnGroup(id, action, None)),
        GroupAction::Resolve | GroupAction::Note => {
            let purpose = Purpose::Group(id, action);
            state.dialog = Some(Dialog::Input { purpose, text: String::new(), wrong: None });
            None
        }
    }
}

/// `R`: redrives everything in the list, or in the group under the cursor.
fn redrive(state: &mut State) -> Option<Effect> {
    if !state.may_act {
        return show_message(state, READ_ONLY, true);
    }
    let target = match (state.page, state.groups.present()) {
        (Page::Groups, None) => return show_message(state, "there is no group under the cursor", true),
        (Page::Groups, Some(group)) => {
            let scope = Scope { group: Some(group.id), ..Scope::default() };
            Target::Matching { scope, words: format!("of the group {:?}", group.error) }
        }
        (Page::Letters, _) => everything(state),
        (Page::Letter, _) => {
            return show_message(state, "press r to retry this letter; R is for lists", true);
        }
    };
    check(state, Intent { act: Act::retry(), target, reason: None })
}

/// Acts on a single letter at once, asks about several, and first counts all that match.
fn check(state: &mut State, intent: Intent) -> Option<Effect> {
    match &intent.target {
        Target::These(letters) if letters.len() == 1 => Some(act(state, intent)),
        Target::These(_) => {
            state.dialog = Some(Dialog::Ask(Box::new(intent)));
            None
        }
        Target::Matching { .. } => {
            state.dialog = Some(Dialog::Counting);
            Some(Effect::Preview(intent))
        }
    }
}

fn act(state: &mut State, intent: Intent) -> Effect {
    state.unmark();
    Effect::Act(intent)
}

fn feed_event(state: &mut State, event: FeedEvent) {
    match event {
        FeedEvent::PollStarted => state.health.polling_since = Some(state.clock),
        FeedEvent::PollFailed(why) => {
            state.health.polling_since = None;
            state.health.error = Some(why);
        }
        FeedEvent::Message(message) => {
            if message.is_error && state.dialog == Some(Dialog::Counting) {
                state.dialog = None;
            }
            state.message = Some(message);
        }
        // After Esc nobody waits for the preview any more.
        FeedEvent::Preview(preview) => {
            if state.dialog == Some(Dialog::Counting) {
                state.dialog = None;
                if preview.count == 0 {
                    let text = format!("there is nothing to {}", preview.intent.act.name());
                    state.message = Some(StatusMessage { text, is_error: false });
                } else {
                    state.dialog = Some(Dialog::Confirm { preview, typed: String::new() });
                }
            }
        }
        FeedEvent::Answer(answer) => apply_answer(state, *answer),
    }
}

fn apply_answer(state: &mut State, answer: Answer) {
    state.health.polling_since = None;
    state.health.error = None;
    state.health.last_answer = Some((state.clock, answer.now));
    state.overview = answer.overview;
    state.add_sample(answer.sample);
    state.operations = answer.operations;
    match answer.page {
        PageData::Groups(groups, facts) => {
            state.groups.replace(groups);
            if facts.is_some() {
                state.facts = facts;
            }
        }
        // An answer to an outdated request.
        PageData::Letters { scope, .. } if scope != state.scope => {}
        PageData::Letters { start, rows, next, .. } => {
            state.letters.merge_page(start.as_ref(), rows, next);
            drop_stale_marks(state);
        }
        PageData::Letter(id, _) if state.opened != Some(id) => {}
        PageData::Letter(_, Some(sheet)) => {
            state.sheet_gone = false;
            state.sheet = Some(*sheet);
        }
        PageData::Letter(_, None) => state.sheet_gone = true,
    }
}

/// Drops selected letters that are no longer in the list. A selected letter keeps the version at which it was
/// selected, so that a change made since then is not overwritten.
fn drop_stale_marks(state: &mut State) {
    let rows = state.letters.rows.items();
    state.marked.retain(|id, _| rows.iter().any(|row| row.id == *id));
}

/// Returns the request for the current page if it has changed.
pub(super) fn changed_request(state: &State, last: &mut DataRequest) -> Option<DataRequest> {
    let request = state.data_request();
    (request != *last).then(|| {
        last.clone_from(&request);
        request
    })
}
