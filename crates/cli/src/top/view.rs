//! Draws the state. Pure: the same state is always the same screen. All text goes through [`Canvas::put`], which
//! escapes and clips it, so that untrusted text has no effect on the terminal.

use super::dialogs;
use super::state::{FRAME_LINES, GroupRow, LetterRow, LetterView, OperationRow, Page, SLOW, State};
use crate::output::{escape, rough, table};
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier, Style};
use redrive::core::dead_letter::Status;
use redrive::core::time::Time;

/// The role of a piece of text, which determines its style.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tone {
    Plain,
    Dim,
    Strong,
    Good,
    Warn,
    Bad,
    /// The row under the cursor.
    Cursor,
    /// A bar across the screen.
    Bar,
}

impl Tone {
    fn style(self, color: bool) -> Style {
        let plain = Style::new();
        let tinted = |tint: Color| if color { plain.fg(tint) } else { plain };
        match self {
            Self::Plain => plain,
            Self::Dim => plain.add_modifier(Modifier::DIM),
            Self::Strong => plain.add_modifier(Modifier::BOLD),
            Self::Good => tinted(Color::Green),
            Self::Warn => tinted(Color::Yellow),
            Self::Bad => tinted(Color::Red).add_modifier(Modifier::BOLD),
            Self::Cursor | Self::Bar => plain.add_modifier(Modifier::REVERSED),
        }
    }
}

/// The buffer to draw to, and whether to use colours.
pub(super) struct Canvas<'a> {
    pub(super) buffer: &'a mut Buffer,
    pub(super) color: bool,
}

impl Canvas<'_> {
    /// Writes escaped text of at most `width` cells; returns the number of cells used.
    pub(super) fn put(&mut self, x: u16, y: u16, width: u16, text: &str, tone: Tone) -> u16 {
        let area = self.buffer.area;
        if y >= area.height || x >= area.width {
            return 0;
        }
        let width = width.min(area.width - x);
        let text = table::shortened(&escape::line(text), usize::from(width));
        let (end, _) = self.buffer.set_stringn(x, y, text, usize::from(width), tone.style(self.color));
        end.saturating_sub(x)
    }

    /// Writes text that ends at `x`.
    fn put_right(&mut self, x: u16, y: u16, width: u16, text: &str, tone: Tone) {
        let text = table::shortened(&escape::line(text), usize::from(width));
        let taken = u16::try_from(table::width_of(&text)).unwrap_or(width).min(width);
        self.put(x.saturating_sub(taken), y, taken, &text, tone);
    }

    /// Fills a whole line with a tone.
    fn bar(&mut self, y: u16, tone: Tone) {
        let width = self.buffer.area.width;
        let blank = " ".repeat(usize::from(width));
        self.put(0, y, width, &blank, tone);
    }
}

/// A column: its heading, width and alignment.
#[derive(Clone, Copy)]
struct Cell {
    head: &'static str,
    width: u16,
    right: bool,
}

const fn left(head: &'static str, width: u16) -> Cell {
    Cell { head, width, right: false }
}

const fn right(head: &'static str, width: u16) -> Cell {
    Cell { head, width, right: true }
}

/// The screen width from which optional columns are shown.
const WIDE: u16 = 110;

/// Draws the whole screen.
pub(super) fn render(frame: &mut Frame<'_>, state: &State, color: bool) {
    let area = frame.area();
    let mut canvas = Canvas { buffer: frame.buffer_mut(), color };
    if area.width < 40 || area.height <= FRAME_LINES {
        canvas.put(0, 0, area.width, "too small: 80 x 24 is enough, q quits", Tone::Plain);
        return;
    }
    title(&mut canvas, state);
    overview(&mut canvas, state);
    match state.page {
        Page::Groups => groups(&mut canvas, state),
        Page::Letters => letters(&mut canvas, state),
        Page::Letter => letter(&mut canvas, state),
    }
    message(&mut canvas, state, area.height - 2);
    canvas.bar(area.height - 1, Tone::Bar);
    canvas.put(1, area.height - 1, area.width - 1, keys(state), Tone::Bar);
    if let Some(dialog) = &state.dialog {
        dialogs::render(&mut canvas, state, dialog);
    }
}

fn title(canvas: &mut Canvas<'_>, state: &State) {
    canvas.bar(0, Tone::Bar);
    let (health, tone) = health(state);
    let width = state.width;
    let room = u16::try_from(table::width_of(&health)).unwrap_or(width) + 2;
    let mode = if state.may_act { "ACT" } else { "read-only" };
    let text = format!("redrive top  {mode}  {}", state.data_dir);
    canvas.put(1, 0, width.saturating_sub(room + 1), &text, Tone::Bar);
    canvas.put_right(width - 1, 0, width, &health, tone);
}

/// The connection status: whether the data on the screen is current.
fn health(state: &State) -> (String, Tone) {
    let secs = |since: std::time::Duration| state.clock.saturating_sub(since).as_secs();
    match (&state.health.error, state.health.last_answer, state.health.polling_since) {
        (Some(_), Some((at, _)), _) => (format!(" NO ANSWER FOR {}s ", secs(at)), Tone::Bad),
        (Some(_), None, _) => (" NO ANSWER ".to_owned(), Tone::Bad),
        (None, None, _) => ("asking".to_owned(), Tone::Bar),
        (None, Some((at, _)), Some(asking)) if state.clock.saturating_sub(asking) >= SLOW => {
            (format!(" SLOW: DATA {}s OLD ", secs(at)), Tone::Bad)
        }
        (None, Some(_), _) => ("live".to_owned(), Tone::Bar),
    }
}

/// Draws the overview, most important numbers first; items that do not fit are left out.
fn overview(canvas: &mut Canvas<'_>, state: &State) {
    if state.health.last_answer.is_none() {
        return;
    }
    let overview = &state.overview;
    let open = if overview.open > 0 { Tone::Strong } else { Tone::Good };
    let mut items = vec![(format!("open {}", short(overview.open)), open)];
    if let Some((dead, done)) = state.rates() {
        let deaths = state.deaths();
        let bars = if state.width >= WIDE { 30 } else { 8 };
        let line = spark(deaths.get(deaths.len().saturating_sub(bars)..).unwrap_or_default());
        let tone = if dead > 0 { Tone::Bad } else { Tone::Plain };
        items.push((format!("dying {}/s {line}", per_second(dead)), tone));
        items.push((format!("done {}/s", per_second(done)), Tone::Plain));
    }
    if overview.breakers_open > 0 {
        items.push((format!("breakers open {}", overview.breakers_open), Tone::Warn));
    }
    if overview.paused > 0 {
        items.push((format!("paused {}", overview.paused), Tone::Warn));
    }
    items.push((format!("waiting {}", short(overview.waiting)), Tone::Plain));
    if let (Some(oldest), Some(now)) = (overview.oldest, state.now()) {
        items.push((format!("oldest {}", rough(now.since(oldest))), Tone::Plain));
    }
    items.push((format!("running {}", short(overview.leased)), Tone::Plain));
    let mut x: u16 = 1;
    for (text, tone) in items {
        let width = u16::try_from(table::width_of(&text)).unwrap_or(u16::MAX);
        if x.saturating_add(width) < state.width {
            x += canvas.put(x, 1, width, &text, tone) + 2;
        }
    }
}

/// Draws the location on the left and counts on the right.
fn location_line(canvas: &mut Canvas<'_>, state: &State, left: &str, right: &str) {
    let room = u16::try_from(table::width_of(right)).unwrap_or(0) + 2;
    canvas.put(1, 2, state.width.saturating_sub(room + 1), left, Tone::Strong);
    canvas.put_right(state.width - 1, 2, state.width, right, Tone::Dim);
}

fn heading(canvas: &mut Canvas<'_>, cells: &[Cell]) {
    let heads: Vec<(String, Tone)> = cells.iter().map(|cell| (cell.head.to_owned(), Tone::Dim)).collect();
    row(canvas, 3, cells, &heads, "  ");
}

/// Draws one line of a list with `mark` in front of it.
fn row(canvas: &mut Canvas<'_>, y: u16, cells: &[Cell], texts: &[(String, Tone)], mark: &str) {
    canvas.put(0, y, 2, mark, Tone::Strong);
    let mut x = 3;
    for (cell, (text, tone)) in cells.iter().zip(texts) {
        let rest = canvas.buffer.area.width.saturating_sub(x);
        let width = if cell.width == 0 { rest } else { cell.width.min(rest) };
        if cell.right {
            canvas.put_right(x + width, y, width, text, *tone);
        } else {
            canvas.put(x, y, width, text, *tone);
        }
        x = x.saturating_add(width + 1);
    }
}

/// Highlights every cell of the row under the cursor.
fn under_cursor(texts: &mut [(String, Tone)]) {
    for (_, tone) in texts {
        *tone = Tone::Cursor;
    }
}

fn groups(canvas: &mut Canvas<'_>, state: &State) {
    let wide = state.width >= WIDE;
    let mut cells = vec![right("OPEN", 6)];
    if wide {
        cells.extend([right("TOTAL", 7), left("FIRST", 5)]);
    }
    cells.extend([left("LAST", 5), left("STATUS", 12)]);
    if wide {
        cells.push(left("OWNER", 10));
    }
    cells.extend([left("QUEUES", if wide { 18 } else { 12 }), left("ERROR", 0)]);
    let open: u64 = state.groups.items().iter().map(|group| group.open).sum();
    let count =
        format!("{} groups, {} open letters{}", state.groups.len(), short(open), above(&state.groups));
    location_line(canvas, state, "groups", if state.health.last_answer.is_some() { &count } else { "" });
    heading(canvas, &cells);
    let now = state.now().unwrap_or(Time::ZERO);
    for (y, line) in (4u16..).zip(state.groups.lines()) {
        let Some((group, cursor)) = line else { continue };
        let gone = cursor && state.groups.gone();
        let mut texts = group_cells(group, wide, now);
        if cursor {
            canvas.bar(y, Tone::Cursor);
            under_cursor(&mut texts);
        }
        row(canvas, y, &cells, &texts, mark(cursor, gone, false));
    }
    if state.groups.items().is_empty() && state.health.last_answer.is_some() {
        canvas.put(2, 5, state.width - 2, "no failures: nothing has failed here", Tone::Good);
    }
    if let Some(group) = state.groups.current() {
        detail(canvas, state, 4, &format!("{}  {}", group.id, group.error));
        if let Some(facts) = state.facts.as_ref().filter(|facts| facts.id == group.id) {
            let hours = if wide { facts.hours.as_slice() } else { facts.hours.get(24..).unwrap_or_default() };
            let line = format!("{}h {} {}", hours.len(), spark(hours), facts.words);
            detail(canvas, state, 3, &line);
        }
    }
}

/// Draws a detail line about the row under the cursor, `up` lines above the bottom of the screen.
fn detail(canvas: &mut Canvas<'_>, state: &State, up: u16, text: &str) {
    canvas.put(1, state.height - up, state.width - 1, text, Tone::Dim);
}

fn above<T: super::rows::Row>(rows: &super::rows::Rows<T>) -> String {
    match rows.hidden() {
        (0, _) => String::new(),
        (above, _) => format!(", {above} above"),
    }
}

/// The mark in front of a row.
fn mark(cursor: bool, gone: bool, selected: bool) -> &'static str {
    match (cursor, gone, selected) {
        (_, true, _) => "×",
        (true, false, true) => ">*",
        (true, false, false) => ">",
        (false, false, true) => " *",
        (false, false, false) => "",
    }
}

fn group_cells(group: &GroupRow, wide: bool, now: Time) -> Vec<(String, Tone)> {
    let status = match group.status.as_str() {
        "regressed" => Tone::Bad,
        "new" => Tone::Warn,
        "resolved" => Tone::Good,
        _ => Tone::Plain,
    };
    let open = if group.open > 0 { Tone::Strong } else { Tone::Dim };
    let mut texts = vec![(short(group.open), open)];
    if wide {
        texts.push((short(group.total), Tone::Plain));
        texts.push((rough(now.since(group.first_seen)), Tone::Plain));
    }
    texts.push((rough(now.since(group.last_seen)), Tone::Plain));
    texts.push((group.status.clone(), status));
    if wide {
        texts.push((group.owner.clone(), Tone::Plain));
    }
    texts.push((group.queues.clone(), Tone::Plain));
    texts.push((group.error.clone(), Tone::Plain));
    texts
}

fn letters(canvas: &mut Canvas<'_>, state: &State) {
    let wide = state.width >= WIDE;
    let list = &state.letters.rows;
    let mut cells = vec![left("DIED", 5), left("STATUS", 11), right("TRY", 3), right("SENT", 4)];
    if wide {
        cells.extend([left("REASON", 18), left("ID", 36)]);
    }
    cells.extend([left("QUEUE", if wide { 14 } else { 12 }), left("ERROR", 0)]);
    let of = match (state.scope.group, state.scope_group()) {
        (Some(_), Some(group)) => format!("{}, {} open", group.error, short(group.open)),
        (Some(id), None) => format!("group {id}"),
        (None, _) => "all groups".to_owned(),
    };
    let filter =
        if state.scope.typed.is_empty() { String::new() } else { format!(" / {}", state.scope.typed) };
    let which = if state.scope.closed { "all" } else { "open" };
    let more = if state.letters.more() { "+" } else { "" };
    let mut count = format!("{}{more} {which}{}", list.len(), above(list));
    if state.all {
        count = format!("ALL MATCHING SELECTED, {count}");
    } else if !state.marked.is_empty() {
        count = format!("{} SELECTED, {count}", state.marked.len());
    }
    location_line(canvas, state, &format!("letters: {of}{filter}"), &count);
    heading(canvas, &cells);
    let now = state.now().unwrap_or(Time::ZERO);
    for (y, line) in (4u16..).zip(list.lines()) {
        let Some((letter, cursor)) = line else { continue };
        let gone = cursor && list.gone();
        let mut texts = letter_cells(letter, wide, now);
        if cursor {
            canvas.bar(y, Tone::Cursor);
            under_cursor(&mut texts);
        }
        let selected = state.all || state.marked.contains_key(&letter.id);
        row(canvas, y, &cells, &texts, mark(cursor, gone, selected));
    }
    if list.items().is_empty() {
        let text = match (state.letters.known, state.letters.more()) {
            (false, _) => "asking the store",
            (true, true) => "nothing so far, still searching",
            (true, false) => "no letter matches",
        };
        canvas.put(2, 5, state.width - 2, text, Tone::Dim);
    }
    if let Some(letter) = list.current() {
        let gone = if list.gone() { "no longer in this list: " } else { "" };
        detail(canvas, state, 4, &format!("{gone}{}  {}", letter.id, letter.error));
        let LetterRow { reason, version, dlq, .. } = letter;
        detail(canvas, state, 3, &format!("reason {reason}, dead letter queue {dlq}, version {version}"));
    }
}

fn letter_cells(letter: &LetterRow, wide: bool, now: Time) -> Vec<(String, Tone)> {
    let mut texts = vec![
        (rough(now.since(letter.dead_at)), Tone::Plain),
        (letter.status.to_string(), status_tone(letter.status)),
        (letter.attempts.to_string(), Tone::Plain),
        (if letter.redrives == 0 { "-".to_owned() } else { letter.redrives.to_string() }, Tone::Plain),
    ];
    if wide {
        texts.push((letter.reason.clone(), Tone::Plain));
        texts.push((letter.id.to_string(), Tone::Plain));
    }
    texts.push((letter.queue.clone(), Tone::Plain));
    texts.push((letter.error.clone(), Tone::Plain));
    texts
}

fn status_tone(status: Status) -> Tone {
    if status.is_closed() {
        return Tone::Dim;
    }
    match status.name() {
        "retrying" => Tone::Good,
        "pending" => Tone::Plain,
        _ => Tone::Warn,
    }
}

fn letter(canvas: &mut Canvas<'_>, state: &State) {
    let id = state.opened.map(|id| id.to_string()).unwrap_or_default();
    let lines = sheet_text(state);
    let height = state.groups.height();
    let shown_to = (state.scroll + height).min(lines.len());
    let right = match (&state.sheet, state.sheet_gone) {
        (_, true) => "NO LONGER EXISTS".to_owned(),
        (None, false) => "asking the store".to_owned(),
        (Some(sheet), false) => {
            format!("{}, version {}, {shown_to}/{} lines", sheet.status, sheet.version, lines.len())
        }
    };
    location_line(canvas, state, &format!("letter {id}"), &right);
    for (y, (text, tone)) in (4u16..).zip(lines.iter().skip(state.scroll).take(height)) {
        canvas.put(1, y, state.width - 1, text, *tone);
    }
}

/// The number of lines of the open letter.
pub(super) fn sheet_lines(state: &State) -> usize {
    sheet_text(state).len()
}

/// The lines of the open letter, wrapped to the width of the screen.
fn sheet_text(state: &State) -> Vec<(String, Tone)> {
    let Some(sheet) = &state.sheet else { return Vec::new() };
    let width = usize::from(state.width.saturating_sub(2));
    let now = state.now().unwrap_or(Time::ZERO);
    let mut lines = Vec::new();
    for (name, value) in &sheet.fields {
        wrapped(&mut lines, &format!("{name:<10}"), value, width, Tone::Plain);
    }
    timeline(&mut lines, sheet, width, now);
    block(&mut lines, "PAYLOAD", &sheet.payload, width);
    block(&mut lines, "STACK", &sheet.stack, width);
    lines
}

fn timeline(lines: &mut Vec<(String, Tone)>, sheet: &LetterView, width: usize, now: Time) {
    lines.push((String::new(), Tone::Plain));
    lines.push(("TIMELINE".to_owned(), Tone::Strong));
    for moment in &sheet.timeline {
        let when = if moment.at > now {
            format!("in {}", rough(moment.at.since(now)))
        } else {
            format!("{} ago", rough(now.since(moment.at)))
        };
        wrapped(lines, &format!("{when:>9}  "), &moment.what, width, Tone::Plain);
        if !moment.more.is_empty() {
            wrapped(lines, "             ", &moment.more, width, Tone::Dim);
        }
    }
}

fn block(lines: &mut Vec<(String, Tone)>, title: &str, text: &str, width: usize) {
    if text.is_empty() {
        return;
    }
    lines.push((String::new(), Tone::Plain));
    lines.push((title.to_owned(), Tone::Strong));
    for one in text.lines() {
        wrapped(lines, "  ", one, width, Tone::Plain);
    }
}

/// Wraps text; the first line begins with `head`, the others are indented by its width.
pub(super) fn wrapped(lines: &mut Vec<(String, Tone)>, head: &str, text: &str, width: usize, tone: Tone) {
    let indent = table::width_of(head);
    let room = width.saturating_sub(indent).max(10);
    let mut line = head.to_owned();
    let mut used = 0;
    for c in escape::line(text).chars() {
        let places = table::places(c);
        if used + places > room {
            lines.push((std::mem::replace(&mut line, " ".repeat(indent)), tone));
            used = 0;
        }
        line.push(c);
        used += places;
    }
    lines.push((line, tone));
}

/// Draws the last message, or else a problem, or else the running operation.
fn message(canvas: &mut Canvas<'_>, state: &State, y: u16) {
    let active = state.operations.iter().find(|operation| operation.active);
    let (text, tone) = match (&state.message, &state.health.error, state.overview.degraded.first(), active) {
        (Some(message), ..) => (message.text.clone(), if message.is_error { Tone::Bad } else { Tone::Good }),
        (None, Some(why), ..) => (format!("no answer: {why}"), Tone::Bad),
        (None, None, Some(why), _) => (format!("the store reports: {why}"), Tone::Warn),
        (None, None, None, Some(operation)) => (operation_line(operation), Tone::Good),
        (None, None, None, None) => return,
    };
    canvas.put(1, y, state.width - 1, &text, tone);
}

fn operation_line(operation: &OperationRow) -> String {
    let OperationRow { act, stage, done, members, problems, id, .. } = operation;
    let filled =
        usize::try_from(done.saturating_mul(20).checked_div(*members).unwrap_or(0)).unwrap_or(0).min(20);
    let bar: String = std::iter::repeat_n('#', filled).chain(std::iter::repeat_n('.', 20 - filled)).collect();
    let problems = if problems.is_empty() { String::new() } else { format!(", {problems}") };
    format!("{act} [{bar}] {done}/{members} {stage}{problems}  {id}")
}

fn keys(state: &State) -> &'static str {
    match (state.page, state.may_act) {
        (Page::Groups, false) => "Enter letters  / filter letters  j k move  y copy id  ? help  q quit",
        (Page::Groups, true) => {
            "Enter letters  R redrive  a ack  D resolve  n note  / filter  ? help  q quit"
        }
        (Page::Letters, false) => "Enter open  / filter  o closed too  y copy id  Esc back  ? help  q quit",
        (Page::Letters, true) => "Enter open  x select  A all  r retry  R redrive  n note  / filter  ? help",
        (Page::Letter, false) => "j k scroll  y copy id  Esc back  ? help  q quit",
        (Page::Letter, true) => "j k scroll  r retry  e edit  n note  D resolve  B abandon  Esc back  ? help",
    }
}

/// A number in at most six characters.
pub(super) fn short(n: u64) -> String {
    match n {
        0..=99_999 => n.to_string(),
        100_000..=999_999 => format!("{}k", n / 1_000),
        1_000_000..=99_999_999 => format!("{}.{}M", n / 1_000_000, n % 1_000_000 / 100_000),
        _ => format!("{}M", n / 1_000_000),
    }
}

/// Formats a number per ten seconds as a number per second.
fn per_second(n: u64) -> String {
    if n >= 1_000 { short(n / 10) } else { format!("{}.{}", n / 10, n % 10) }
}

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A line of bars; only zero has no height.
pub(super) fn spark(values: &[u64]) -> String {
    let most = values.iter().copied().max().unwrap_or(0);
    let bar = |n: &u64| {
        let level = n.saturating_mul(7).div_ceil(most.max(1));
        BARS.get(usize::try_from(level).unwrap_or(0)).copied().unwrap_or('▁')
    };
    values.iter().map(bar).collect()
}
