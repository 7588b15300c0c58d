//! Draws dialogs over a page: the list of keys, an input line, a question, a confirmation. Drawing is pure and uses
//! [`Canvas::put`] like the pages.

use super::state::{ActPreview, Dialog, GroupAction, Intent, Purpose, State, Target};
use super::view::{Canvas, Tone, wrapped};
use ratatui::layout::Rect;
use ratatui::widgets::{Block, Clear, Widget as _};

const KEYS: &[&str] = &[
    "j k, arrows     move; PgUp PgDn, g G to the ends",
    "Enter           open the group or the letter",
    "Esc             back: from the letter, selection, filter, group",
    "/               filter letters, as in redrive dlq list",
    "o               show closed letters too, or only open ones",
    "y               copy the id",
    "q, Ctrl-C       quit; a running operation continues",
];

const ACT_KEYS: &[&str] = &[
    "x   A           select a letter; select all that match",
    "r               retry the selected letters, or the current one",
    "n   D   B       note, resolve, abandon; they ask for a reason",
    "a   n   D       on a group: acknowledge, note, resolve",
    "R               redrive everything in the group or list",
    "e               edit the current letter in $VISUAL or $EDITOR",
    "A single letter is changed at once, unless somebody changed it",
    "since it was shown. More than one letter needs confirmation.",
];

/// Draws a dialog.
pub(super) fn render(canvas: &mut Canvas<'_>, state: &State, dialog: &Dialog) {
    let room = usize::from(state.width.saturating_sub(8).min(72));
    let mut lines = Vec::new();
    let title = match dialog {
        Dialog::Help => help(&mut lines, state),
        Dialog::Input { purpose, text, wrong } => input(&mut lines, purpose, text, wrong.as_deref(), room),
        Dialog::Ask(intent) => ask(&mut lines, intent, room),
        Dialog::Counting => {
            lines.push(("counting the letters this would change; Esc cancels".to_owned(), Tone::Plain));
            "counting"
        }
        Dialog::Confirm { preview, typed } => confirm(&mut lines, preview, typed, room),
    };
    boxed(canvas, state, title, &lines, room);
}

/// Draws a box in the middle of the screen. If it is too small, the top is cut, because the question is at the end.
fn boxed(canvas: &mut Canvas<'_>, state: &State, title: &str, lines: &[(String, Tone)], room: usize) {
    let most = usize::from(state.height.saturating_sub(4));
    let lines = lines.get(lines.len().saturating_sub(most)..).unwrap_or(lines);
    let width = u16::try_from(room + 4).unwrap_or(state.width).min(state.width);
    let height = u16::try_from(lines.len() + 2).unwrap_or(state.height).min(state.height);
    let (x, y) = ((state.width - width) / 2, (state.height - height) / 2);
    let area = Rect { x, y, width, height };
    Clear.render(area, canvas.buffer);
    Block::bordered().title(format!(" {title} ")).render(area, canvas.buffer);
    for (line, (text, tone)) in (y + 1..).zip(lines) {
        canvas.put(x + 2, line, width.saturating_sub(4), text, *tone);
    }
}

fn help(lines: &mut Vec<(String, Tone)>, state: &State) -> &'static str {
    let mut add = |text: &str| lines.push((text.to_owned(), Tone::Plain));
    KEYS.iter().for_each(|text| add(text));
    add("");
    if state.may_act {
        ACT_KEYS.iter().for_each(|text| add(text));
    } else {
        add("read-only: start it as `redrive top --act` to change anything");
    }
    add("");
    add("> cursor   * selected   × no longer in the list");
    "keys"
}

fn input(
    lines: &mut Vec<(String, Tone)>,
    purpose: &Purpose,
    text: &str,
    wrong: Option<&str>,
    room: usize,
) -> &'static str {
    let title = match purpose {
        Purpose::Filter => {
            lines.push(("such as queue:payments error:timeout attempts>3 age<2h".to_owned(), Tone::Dim));
            "filter"
        }
        Purpose::Reason(intent) => {
            wrapped(lines, "", &format!("{}: reason?", describe(intent)), room, Tone::Plain);
            "reason"
        }
        Purpose::Group(_, action) => {
            let text = match action {
                GroupAction::Note => "note about this group:",
                GroupAction::Resolve | GroupAction::Acknowledge => {
                    "reason to resolve this group? Its letters stay; the next dead letter reopens it"
                }
            };
            wrapped(lines, "", text, room, Tone::Plain);
            "group"
        }
    };
    wrapped(lines, "> ", &format!("{text}_"), room, Tone::Strong);
    for one in wrong.unwrap_or_default().lines() {
        wrapped(lines, "", one, room, Tone::Bad);
    }
    lines.push(("Enter confirms, Esc cancels, Ctrl-U clears".to_owned(), Tone::Dim));
    title
}

fn ask(lines: &mut Vec<(String, Tone)>, intent: &Intent, room: usize) -> &'static str {
    wrapped(lines, "", &format!("{}?", describe(intent)), room, Tone::Strong);
    lines.push(("y confirms, any other key cancels".to_owned(), Tone::Dim));
    "confirm"
}

fn confirm(lines: &mut Vec<(String, Tone)>, preview: &ActPreview, typed: &str, room: usize) -> &'static str {
    let count = preview.count;
    let letters = if count == 1 { "dead letter" } else { "dead letters" };
    wrapped(lines, "", &format!("{} {count} {letters}", preview.intent.act.name()), room, Tone::Strong);
    if let Target::Matching { words, .. } = &preview.intent.target {
        wrapped(lines, "", words, room, Tone::Plain);
    }
    for line in &preview.lines {
        wrapped(lines, "  ", line, room, Tone::Plain);
    }
    lines.push((String::new(), Tone::Plain));
    wrapped(lines, "", &format!("type {count} and press Enter to confirm; Esc cancels"), room, Tone::Dim);
    lines.push((format!("> {typed}_"), Tone::Strong));
    "confirm"
}

/// The act and its target as text.
fn describe(intent: &Intent) -> String {
    let act = intent.act.name();
    match &intent.target {
        Target::These(letters) if letters.len() == 1 => format!("{act} this letter"),
        Target::These(letters) => format!("{act} {} letters", letters.len()),
        Target::Matching { words, .. } => format!("{act} all letters {words}"),
    }
}
