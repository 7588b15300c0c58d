//! Decides which columns of a table fit on a terminal, and how wide each of them is. The decision depends only on the
//! cells of the first page. Output to a pipe does not use this.

use redrive::core::ids::{GroupId, MessageId};
use std::collections::HashSet;
use unicode_width::UnicodeWidthChar as _;

/// How a column behaves if there is not enough room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// Names, states and times: shortened only as a last resort.
    Whole,
    /// Like [`Fit::Whole`], but aligned to the right.
    Number,
    /// Ids: a terminal shows their last digits, which every command accepts.
    Id,
    /// Useless if shortened, such as a lease token: never shortened.
    Token,
    /// Text that may be shortened.
    Text,
    /// The most important text of the list: it gets the room that the other columns leave.
    Main,
}

/// A column: the name of the field, as in JSON, and how it behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    /// The name of the field.
    pub name: &'static str,
    /// How the column behaves if there is not enough room.
    pub fit: Fit,
    /// Zero is always shown; of the others the highest rank is dropped first if there is not enough room.
    pub rank: u8,
    /// Whether its values have colours.
    pub tinted: bool,
}

impl Column {
    pub(super) const fn new(name: &'static str, fit: Fit) -> Self {
        Self { name, fit, rank: 0, tinted: false }
    }

    /// A column that is shown in full.
    pub(crate) const fn whole(name: &'static str) -> Self {
        Self::new(name, Fit::Whole)
    }

    /// A column of numbers.
    pub(crate) const fn number(name: &'static str) -> Self {
        Self::new(name, Fit::Number)
    }

    /// A column of ids.
    pub(crate) const fn id(name: &'static str) -> Self {
        Self::new(name, Fit::Id)
    }

    /// A column of tokens.
    pub(crate) const fn token(name: &'static str) -> Self {
        Self::new(name, Fit::Token)
    }

    /// A column of text.
    pub(crate) const fn text(name: &'static str) -> Self {
        Self::new(name, Fit::Text)
    }

    /// The most important column of the list.
    pub(crate) const fn main(name: &'static str) -> Self {
        Self::new(name, Fit::Main)
    }

    /// A column of states, with colours.
    pub(crate) const fn state(name: &'static str) -> Self {
        Self { tinted: true, ..Self::new(name, Fit::Whole) }
    }

    /// Makes the column optional; the highest rank is dropped first if there is not enough room.
    pub(crate) const fn optional(self, rank: u8) -> Self {
        Self { rank, ..self }
    }
}

/// The number of spaces between columns.
pub(super) const GAP: usize = 2;

/// The number of terminal cells that a character occupies.
pub(crate) fn places(c: char) -> usize {
    match c {
        // A variation selector that requests the wide form of the previous character.
        '\u{fe0f}' => 1,
        c => c.width().unwrap_or(0),
    }
}

/// The number of terminal cells that a text occupies.
pub(crate) fn width_of(text: &str) -> usize {
    text.chars().map(places).sum()
}

/// Shortens text to at most `width` terminal cells, with `…` at the end if it was cut.
pub(crate) fn shortened(text: &str, width: usize) -> String {
    if width_of(text) <= width {
        return text.to_owned();
    }
    let mut short = String::new();
    let mut used = 1;
    for c in text.chars() {
        used += places(c);
        if used > width {
            break;
        }
        short.push(c);
    }
    short.push('…');
    short
}

/// The numbers of last digits of an id that a terminal shows, from the usual one to the last block of a UUID.
const DIGITS: [usize; 3] = [8, 10, 12];

/// Whether the text is a complete id of a message, letter, operation or group.
fn is_id(text: &str) -> bool {
    match text.len() {
        36 => text.parse::<MessageId>().is_ok(),
        16 => text.parse::<GroupId>().is_ok(),
        _ => false,
    }
}

/// The last digits of an id; other text unchanged.
fn tail(text: &str, digits: usize) -> &str {
    if is_id(text) { text.get(text.len().saturating_sub(digits)..).unwrap_or(text) } else { text }
}

/// The layout of all pages of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    /// The columns that are shown: their index among all columns, and their width.
    pub(super) columns: Vec<(usize, usize)>,
    /// The number of last digits of ids to show; `None` shows complete ids.
    digits: Option<usize>,
    /// Whether cells are shortened to the width of their column.
    cuts: bool,
}

impl Layout {
    /// A layout that shows everything in full.
    pub(super) fn whole(columns: &[Column], rows: &[Vec<String>]) -> Self {
        let widths = natural(columns, rows, |_, cell| width_of(cell));
        Self { columns: widths.into_iter().enumerate().collect(), digits: None, cuts: false }
    }

    /// A layout that fits into `room` cells. Columns that the user named are dropped only as a last resort.
    pub(super) fn fitted(columns: &[Column], rows: &[Vec<String>], room: usize, chosen: bool) -> Self {
        let digits = digits(columns, rows);
        let shown = |column: &Column, cell: &String| width_of(cell_of(*column, cell, digits));
        let natural = natural(columns, rows, shown);
        let empty = |place: usize| rows.iter().all(|row| row.get(place).is_none_or(String::is_empty));
        let mut left: Vec<usize> = (0..columns.len()).collect();
        if !chosen {
            left.retain(|place| *place == 0 || !empty(*place));
        }
        let columns = fit(columns, &natural, left, room, chosen);
        Self { columns, digits, cuts: true }
    }

    /// The text of a cell in a column of this width.
    pub(super) fn cell(&self, column: Column, cell: &str, width: usize) -> String {
        let cell = cell_of(column, cell, self.digits);
        if self.cuts && column.fit != Fit::Token { shortened(cell, width) } else { cell.to_owned() }
    }
}

fn cell_of(column: Column, cell: &str, digits: Option<usize>) -> &str {
    match digits {
        Some(digits) if column.fit == Fit::Id => tail(cell, digits),
        Some(_) | None => cell,
    }
}

/// The width of the widest cell of each column, or of its name.
fn natural(
    columns: &[Column],
    rows: &[Vec<String>],
    width: impl Fn(&Column, &String) -> usize,
) -> Vec<usize> {
    let mut widths: Vec<usize> = columns.iter().map(|column| width_of(column.name)).collect();
    for row in rows {
        for ((widest, column), cell) in widths.iter_mut().zip(columns).zip(row) {
            *widest = (*widest).max(width(column, cell));
        }
    }
    widths
}

/// The number of digits that distinguishes the ids of each column; `None` if no number does.
fn digits(columns: &[Column], rows: &[Vec<String>]) -> Option<usize> {
    let apart = |digits: &usize| {
        columns.iter().enumerate().filter(|(_, column)| column.fit == Fit::Id).all(|(place, _)| {
            let ids: HashSet<&str> =
                rows.iter().filter_map(|row| row.get(place)).map(String::as_str).collect();
            let tails: HashSet<&str> = ids.iter().map(|id| tail(id, *digits)).collect();
            tails.len() == ids.len()
        })
    };
    DIGITS.into_iter().find(apart)
}

/// How narrow columns may become, step by step: main text, other text, and everything except numbers and tokens.
const STEPS: [(usize, usize, usize); 4] = [(40, 16, 20), (24, 10, 14), (20, 8, 12), (10, 6, 6)];
/// The minimum width of a column of short ids, because a truncated id is useless.
const ID_WIDTH_MIN: usize = 12;

fn fit(
    columns: &[Column],
    natural: &[usize],
    mut left: Vec<usize>,
    room: usize,
    chosen: bool,
) -> Vec<(usize, usize)> {
    let narrow = |place: usize, (main, text, other): (usize, usize, usize)| {
        let natural = natural.get(place).copied().unwrap_or(0);
        match columns.get(place).map(|column| column.fit) {
            Some(Fit::Main) => natural.min(main),
            Some(Fit::Text) => natural.min(text),
            Some(Fit::Whole) => natural.min(other),
            Some(Fit::Id) => natural.min(other.max(ID_WIDTH_MIN)),
            Some(Fit::Number | Fit::Token) | None => natural,
        }
    };
    let total = |left: &[usize], step| {
        left.iter().map(|place| narrow(*place, step)).sum::<usize>() + GAP * left.len().saturating_sub(1)
    };
    let rank = |place: usize| columns.get(place).map_or(0, |column| column.rank);
    let [first, .., last] = STEPS;
    while !chosen && total(&left, first) > room {
        let Some(place) = left.iter().copied().filter(|place| rank(*place) > 0).max_by_key(|p| rank(*p))
        else {
            break;
        };
        left.retain(|other| *other != place);
    }
    while left.len() > 1 && total(&left, last) > room {
        left.pop();
    }
    let step = STEPS.into_iter().find(|step| total(&left, *step) <= room).unwrap_or(last);
    let mut spare = room.saturating_sub(total(&left, step));
    let mut widths: Vec<(usize, usize)> = left.iter().map(|place| (*place, narrow(*place, step))).collect();
    // Remaining room goes to the main text first, then to names, then to other text.
    for fits in [[Fit::Main, Fit::Main], [Fit::Whole, Fit::Id], [Fit::Text, Fit::Text]] {
        for (place, width) in &mut widths {
            let more = natural.get(*place).copied().unwrap_or(0).saturating_sub(*width).min(spare);
            if columns.get(*place).is_some_and(|column| fits.contains(&column.fit)) {
                *width += more;
                spare -= more;
            }
        }
    }
    widths
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 6] = [
        Column::id("id"),
        Column::whole("queue"),
        Column::number("n").optional(1),
        Column::text("kind").optional(2),
        Column::text("code"),
        Column::main("error"),
    ];

    fn row(id: &str, queue: &str, n: &str, kind: &str, code: &str, error: &str) -> Vec<String> {
        [id, queue, n, kind, code, error].map(str::to_owned).into()
    }

    fn names(layout: &Layout) -> Vec<&'static str> {
        layout.columns.iter().map(|(place, _)| COLUMNS[*place].name).collect()
    }

    fn total(layout: &Layout) -> usize {
        layout.columns.iter().map(|(_, width)| width).sum::<usize>() + GAP * (layout.columns.len() - 1)
    }

    const A: &str = "01981c3e-7d5a-7cc0-8b1f-3a52c0ffee00";

    #[test]
    fn the_main_text_gets_the_room_and_optional_columns_go_by_rank() {
        let rows = [row(A, "payments", "5", "a kind of work", "504", &"x".repeat(70))];
        let at = |room| Layout::fitted(&COLUMNS, &rows, room, false);
        assert_eq!(names(&at(200)), ["id", "queue", "n", "kind", "code", "error"]);
        assert_eq!(names(&at(90)), ["id", "queue", "n", "kind", "code", "error"]);
        assert_eq!(names(&at(80)), ["id", "queue", "n", "code", "error"]);
        assert_eq!(names(&at(68)), ["id", "queue", "code", "error"]);
        for room in [200, 90, 80, 60, 40, 30, 20, 10] {
            assert!(total(&at(room)) <= room, "{room}: {:?}", at(room));
        }
        let error = at(80).columns.last().copied();
        assert_eq!(error, Some((5, 80 - 8 - 8 - 1 - 4 - 4 * GAP)));
    }

    #[test]
    fn named_columns_are_shortened_before_they_are_dropped() {
        let rows = [row(A, "payments", "5", "a kind of work", "", &"x".repeat(70))];
        assert_eq!(names(&Layout::fitted(&COLUMNS, &rows, 80, true)).len(), 6);
        assert_eq!(names(&Layout::fitted(&COLUMNS, &rows, 24, true)), ["id", "queue", "n"]);
    }

    #[test]
    fn short_ids_are_not_cut_however_narrow_it_is() {
        let rows = [row(A, &"q".repeat(90), "5", "", &"c".repeat(90), &"x".repeat(90))];
        for room in [80, 40, 34] {
            let layout = Layout::fitted(&COLUMNS, &rows, room, false);
            assert_eq!(layout.columns[0], (0, 8), "{room}");
            assert!(total(&layout) <= room);
        }
    }

    #[test]
    fn empty_columns_are_left_out() {
        let rows = [row(A, "q", "", "", "", "x"), row(A, "q", "1", "", "", "x")];
        assert_eq!(names(&Layout::fitted(&COLUMNS, &rows, 80, false)), ["id", "queue", "n", "error"]);
    }

    #[test]
    fn ids_show_enough_last_digits_to_distinguish_them() {
        let shown = |ids: &[&str]| {
            let rows: Vec<Vec<String>> = ids.iter().map(|id| row(id, "q", "1", "k", "c", "x")).collect();
            let layout = Layout::fitted(&COLUMNS, &rows, 80, false);
            ids.iter().map(|id| layout.cell(COLUMNS[0], id, 40)).collect::<Vec<_>>()
        };
        let b = "01981c3e-7d5a-7cc0-8b1f-3a53c0ffee00";
        assert_eq!(shown(&[A, "5f3a9c21b7d4e680"]), ["c0ffee00", "b7d4e680"]);
        assert_eq!(shown(&[A, b]), ["3a52c0ffee00", "3a53c0ffee00"].map(|t| &t[2..]));
        assert_eq!(shown(&[A, A]), ["c0ffee00", "c0ffee00"], "the same one twice");
        let c = "01981c3e-7d5a-7cc0-8b2f-3a52c0ffee00";
        assert_eq!(shown(&[A, c]), [A, c], "no tail tells them apart");
        assert_eq!(shown(&["payments", "a queue, not an id"]), ["payments", "a queue, not an id"]);
    }

    #[test]
    fn wide_characters_take_two_places() {
        assert_eq!(width_of("日本é"), 5);
        assert_eq!(width_of("e\u{301}"), 1);
        assert_eq!(shortened("日本語", 4), "日…");
    }
}
