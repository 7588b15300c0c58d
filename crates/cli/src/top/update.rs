//! What a key, a tick or news from the store does to the state, and what follows for the outside. Pure: the same
//! state and event always give the same. Nothing is changed in the store from here: an [`Effect`] asks for it, and
//! only where that was allowed and, for more than one letter, confirmed.

use super::rows::Row as _;
use super::state::{
    Dialog, GroupFacts, GroupRow, GroupWord, Intent, LetterRow, OperationRow, Page, PageStart, Previewed,
    Pulse, Purpose, Said, Sample, Scope, Sheet, State, Target, Want,
};
use redrive::core::dead_letter::Act;
use redrive::core::ids::{GroupId, MessageId};
use redrive::core::limits;
use redrive::core::query::Cursor;
use redrive::core::time::Time;
use std::time::Duration;

/// A key, as far as it means something here.
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
    /// Ctrl-U: the line is empty again.
    Clear,
    /// Ctrl-C.
    Interrupt,
}

/// What happened.
#[derive(Debug)]
pub(super) enum Event {
    Key(Key),
    /// Text from the clipboard; it is never taken for keys.
    Paste(String),
    Resize(u16, u16),
    /// So long after the start.
    Tick(Duration),
    News(News),
}

/// What the store says.
#[derive(Debug)]
pub(super) enum News {
    /// A question is on its way.
    Asking,
    /// It was answered.
    Heard(Box<Heard>),
    /// It was not.
    Trouble(String),
    /// What an act would touch.
    Previewed(Box<Previewed>),
    /// How something that was asked for went.
    Said(Said),
}

/// An answer.
#[derive(Debug)]
pub(super) struct Heard {
    pub(super) now: Time,
    pub(super) pulse: Pulse,
    pub(super) sample: Sample,
    pub(super) operations: Vec<OperationRow>,
    pub(super) page: PageNews,
}

/// What was asked for beside the counters.
#[derive(Debug)]
pub(super) enum PageNews {
    Groups(Vec<GroupRow>, Option<GroupFacts>),
    Letters { scope: Scope, start: Option<PageStart>, rows: Vec<LetterRow>, next: Option<Cursor> },
    Letter(MessageId, Option<Box<Sheet>>),
}

/// What is to happen outside.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Effect {
    Quit,
    /// Act on these letters now.
    Act(Intent),
    /// Say this about a group.
    OnGroup(GroupId, GroupWord, Option<String>),
    /// Count what this would touch.
    Preview(Intent),
    /// Start an operation.
    Start(Previewed),
    /// Open this letter in the person's editor.
    Edit(MessageId, u64),
    /// Put this on the clipboard.
    Copy(String),
}

/// Takes an event.
pub(super) fn update(state: &mut State, event: Event) -> Option<Effect> {
    match event {
        Event::Tick(clock) => state.clock = clock,
        Event::Resize(width, height) => state.resize(width, height),
        Event::News(news) => heard(state, news),
        Event::Paste(text) => paste(state, &text),
        Event::Key(Key::Interrupt) => return Some(Effect::Quit),
        Event::Key(key) => return pressed(state, key),
    }
    None
}

fn pressed(state: &mut State, key: Key) -> Option<Effect> {
    state.said = None;
    match state.dialog.take() {
        Some(dialog) => answer(state, dialog, key),
        None => command(state, key),
    }
}

/// Text that was typed or pasted goes to whatever line is open; what acts on a terminal is left out.
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

/// A key while something lies over the page.
fn answer(state: &mut State, dialog: Dialog, key: Key) -> Option<Effect> {
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
            | Key::Interrupt => say(state, "nothing was changed", false),
        },
        Dialog::Confirm { preview, typed } => confirm(state, preview, typed, key),
        Dialog::Input { purpose, text, wrong } => input(state, purpose, text, wrong, key),
    }
}

fn confirm(state: &mut State, preview: Box<Previewed>, mut typed: String, key: Key) -> Option<Effect> {
    match key {
        Key::Esc => return say(state, "nothing was changed", false),
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
        Key::Enter => match typed(state, &purpose, &text) {
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

/// A line was typed to its end.
fn typed(state: &mut State, purpose: &Purpose, text: &str) -> Result<Option<Effect>, String> {
    match purpose {
        Purpose::Filter => {
            // On the page of groups a filter is over the letters of all of them.
            let here = if state.page == Page::Groups { Scope::default() } else { state.scope.clone() };
            let scope = Scope { typed: text.trim().to_owned(), ..here };
            scope.filter()?;
            state.list(scope);
            Ok(None)
        }
        Purpose::Reason(_) | Purpose::Group(..) if text.trim().is_empty() => {
            Err("say something, or leave with Esc".into())
        }
        Purpose::Group(id, word) => Ok(Some(Effect::OnGroup(*id, *word, Some(text.trim().to_owned())))),
        Purpose::Reason(intent) => {
            let intent = Intent { reason: Some(text.trim().to_owned()), ..*intent.clone() };
            Ok(check(state, intent))
        }
    }
}

/// A key on a page.
fn command(state: &mut State, key: Key) -> Option<Effect> {
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
            state.list(scope);
        }
        Key::Char('x') if state.page == Page::Letters => mark(state),
        Key::Char('A') if state.page == Page::Letters => {
            let all = !state.all;
            state.unmark();
            state.all = all;
        }
        Key::Char('y') => return copy(state),
        Key::Char('a') if state.page == Page::Groups => return on_group(state, GroupWord::Acknowledge),
        Key::Char('D') if state.page == Page::Groups => return on_group(state, GroupWord::Resolve),
        Key::Char('n') if state.page == Page::Groups => return on_group(state, GroupWord::Note),
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
                state.list(scope);
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

/// One step back: out of a letter, out of a selection, out of a filter, out of a group.
fn back(state: &mut State) {
    match state.page {
        Page::Letter => state.page = Page::Letters,
        Page::Letters if state.all || !state.marked.is_empty() => state.unmark(),
        Page::Letters if !state.scope.typed.is_empty() && state.scope.group.is_some() => {
            let scope = Scope { typed: String::new(), ..state.scope.clone() };
            state.list(scope);
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
    say(state, format!("copied {id}"), false);
    Some(Effect::Copy(id))
}

fn say(state: &mut State, text: impl Into<String>, bad: bool) -> Option<Effect> {
    state.said = Some(Said { text: text.into(), bad });
    None
}

const ONE_AT_A_TIME: &str = "one letter at a time; `redrive dlq patch` edits many";
const READ_ONLY: &str = "read-only: start it as `redrive top --act` to change anything";

/// What is selected: the marked letters, else the one under the cursor or on the page.
fn selected(state: &State) -> Result<Target, &'static str> {
    const GONE: &str = "that letter is not in the list any more";
    match state.page {
        Page::Groups => Err("open the group with Enter first; R redrives all of it"),
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
        return say(state, READ_ONLY, true);
    }
    let target = match selected(state) {
        Ok(target) => target,
        Err(why) => return say(state, why, true),
    };
    let intent = Intent { act, target, reason: None };
    if wants_reason {
        let purpose = Purpose::Reason(Box::new(intent));
        state.dialog = Some(Dialog::Input { purpose, text: String::new(), wrong: None });
        return None;
    }
    check(state, intent)
}

/// `e`: the letter under the cursor, or on the page, and no more than one.
fn edit(state: &mut State) -> Option<Effect> {
    if !state.may_act {
        return say(state, READ_ONLY, true);
    }
    match selected(state) {
        Ok(Target::These(letters)) => match letters.as_slice() {
            [(id, version)] => Some(Effect::Edit(*id, *version)),
            _ => say(state, ONE_AT_A_TIME, true),
        },
        Ok(Target::Matching { .. }) => say(state, ONE_AT_A_TIME, true),
        Err(why) => say(state, why, true),
    }
}

/// Says something about the group under the cursor; its letters stay as they are.
fn on_group(state: &mut State, word: GroupWord) -> Option<Effect> {
    if !state.may_act {
        return say(state, READ_ONLY, true);
    }
    let Some(id) = state.groups.present().map(|group| group.id) else {
        return say(state, "there is no group under the cursor", true);
    };
    match word {
        GroupWord::Acknowledge => Some(Effect::OnGroup(id, word, None)),
        GroupWord::Resolve | GroupWord::Note => {
            let purpose = Purpose::Group(id, word);
            state.dialog = Some(Dialog::Input { purpose, text: String::new(), wrong: None });
            None
        }
    }
}

/// `R`: everything in the list, or in the group under the cursor, goes back to work.
fn redrive(state: &mut State) -> Option<Effect> {
    if !state.may_act {
        return say(state, READ_ONLY, true);
    }
    let target = match (state.page, state.groups.present()) {
        (Page::Groups, None) => return say(state, "there is no group under the cursor", true),
        (Page::Groups, Some(group)) => {
            let scope = Scope { group: Some(group.id), ..Scope::default() };
            Target::Matching { scope, words: format!("of the group {:?}", group.error) }
        }
        (Page::Letters, _) => everything(state),
        (Page::Letter, _) => return say(state, "r retries this letter; R is for lists", true),
    };
    check(state, Intent { act: Act::retry(), target, reason: None })
}

/// One letter is acted on at once; several are asked about; all that match are counted first.
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

fn heard(state: &mut State, news: News) {
    match news {
        News::Asking => state.health.asking = Some(state.clock),
        News::Trouble(why) => {
            state.health.asking = None;
            state.health.trouble = Some(why);
        }
        News::Said(said) => {
            if said.bad && state.dialog == Some(Dialog::Counting) {
                state.dialog = None;
            }
            state.said = Some(said);
        }
        // Whoever went away with Esc does not want to hear it any more.
        News::Previewed(preview) => {
            if state.dialog == Some(Dialog::Counting) {
                state.dialog = None;
                if preview.count == 0 {
                    let text = format!("there is nothing to {}", preview.intent.act.name());
                    state.said = Some(Said { text, bad: false });
                } else {
                    state.dialog = Some(Dialog::Confirm { preview, typed: String::new() });
                }
            }
        }
        News::Heard(heard) => answered(state, *heard),
    }
}

fn answered(state: &mut State, heard: Heard) {
    state.health.asking = None;
    state.health.trouble = None;
    state.health.heard = Some((state.clock, heard.now));
    state.pulse = heard.pulse;
    state.sampled(heard.sample);
    state.operations = heard.operations;
    match heard.page {
        PageNews::Groups(groups, facts) => {
            state.groups.replace(groups);
            if facts.is_some() {
                state.facts = facts;
            }
        }
        // An answer to a question that nobody asks any more.
        PageNews::Letters { scope, .. } if scope != state.scope => {}
        PageNews::Letters { start, rows, next, .. } => {
            state.letters.take(start.as_ref(), rows, next);
            fresh_marks(state);
        }
        PageNews::Letter(id, _) if state.opened != Some(id) => {}
        PageNews::Letter(_, Some(sheet)) => {
            state.sheet_gone = false;
            state.sheet = Some(*sheet);
        }
        PageNews::Letter(_, None) => state.sheet_gone = true,
    }
}

/// A letter that is closed by its own success is not there to be acted upon; its mark goes with it. A mark keeps the
/// version it was made at: whoever changed the letter since is not overruled.
fn fresh_marks(state: &mut State) {
    let rows = state.letters.rows.items();
    state.marked.retain(|id, _| rows.iter().any(|row| row.id == *id));
}

/// Whether the feed has to be told.
pub(super) fn changed(state: &State, last: &mut Want) -> Option<Want> {
    let want = state.want();
    (want != *last).then(|| {
        last.clone_from(&want);
        want
    })
}
