//! Tables and sheets for people. On a terminal a table fits the width by shortening its text columns; in a
//! pipe nothing is shortened. Every cell is made harmless here, so nobody else has to think of it.

use super::escape;
use std::fmt::Write as _;

/// How a column behaves when there is not enough room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    /// Never shortened: ids, tokens, names and times are useless in part.
    Whole,
    /// Never shortened, to the right.
    Number,
    /// Shortened when need be.
    Text,
}

/// A column: the field's name, as in JSON, and how it behaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    /// The name.
    pub name: &'static str,
    /// How it behaves.
    pub fit: Fit,
}

impl Column {
    /// A column that is shown whole.
    pub(crate) const fn whole(name: &'static str) -> Self {
        Self { name, fit: Fit::Whole }
    }

    /// A column of numbers.
    pub(crate) const fn number(name: &'static str) -> Self {
        Self { name, fit: Fit::Number }
    }

    /// A column of text.
    pub(crate) const fn text(name: &'static str) -> Self {
        Self { name, fit: Fit::Text }
    }
}

/// Text columns are not made narrower than this.
const TEXT_WIDTH_MIN: usize = 10;
/// What stands between columns.
const GAP: usize = 2;

/// How many places a character takes on a terminal.
pub(crate) const fn places(c: char) -> usize {
    match c {
        '\u{300}'..='\u{36f}'
        | '\u{1ab0}'..='\u{1aff}'
        | '\u{20d0}'..='\u{20ff}'
        | '\u{fe00}'..='\u{fe0f}' => 0,
        '\u{1100}'..='\u{115f}'
        | '\u{2e80}'..='\u{a4cf}'
        | '\u{ac00}'..='\u{d7a3}'
        | '\u{f900}'..='\u{faff}'
        | '\u{fe30}'..='\u{fe6f}'
        | '\u{ff00}'..='\u{ff60}'
        | '\u{ffe0}'..='\u{ffe6}'
        | '\u{1f300}'..='\u{1faff}'
        | '\u{20000}'..='\u{3fffd}' => 2,
        _ => 1,
    }
}

/// How many places a text takes.
pub(crate) fn width_of(text: &str) -> usize {
    text.chars().map(places).sum()
}

/// The text cut so that it takes at most `width` places, with a mark where it was cut.
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

/// The rows of one page, laid out like the pages before it.
#[derive(Debug, Default)]
pub(crate) struct Table {
    widths: Vec<usize>,
    cuts: bool,
}

impl Table {
    /// Lays out a page of rows; the first one decides the widths and brings the headings.
    pub(crate) fn page(
        &mut self,
        columns: &[Column],
        rows: &[Vec<String>],
        room: Option<usize>,
        bold: bool,
    ) -> String {
        let rows: Vec<Vec<String>> =
            rows.iter().map(|row| row.iter().map(|cell| escape::line(cell).into_owned()).collect()).collect();
        let mut text = String::new();
        if self.widths.is_empty() {
            self.widths = widths(columns, &rows, room);
            self.cuts = room.is_some();
            let heads: Vec<String> = columns.iter().map(|column| column.name.to_uppercase()).collect();
            let heads = self.row(columns, &heads);
            let _ =
                if bold { writeln!(text, "\u{1b}[1m{heads}\u{1b}[0m") } else { writeln!(text, "{heads}") };
        }
        for row in &rows {
            let _ = writeln!(text, "{}", self.row(columns, row));
        }
        text
    }

    fn row(&self, columns: &[Column], cells: &[String]) -> String {
        let mut text = String::new();
        for ((column, cell), width) in columns.iter().zip(cells).zip(&self.widths) {
            if !text.is_empty() {
                text.extend(std::iter::repeat_n(' ', GAP));
            }
            let cell =
                if self.cuts && column.fit == Fit::Text { shortened(cell, *width) } else { cell.clone() };
            let padding = std::iter::repeat_n(' ', width.saturating_sub(width_of(&cell)));
            match column.fit {
                Fit::Number => {
                    text.extend(padding);
                    text.push_str(&cell);
                }
                Fit::Whole | Fit::Text => {
                    text.push_str(&cell);
                    text.extend(padding);
                }
            }
        }
        text.truncate(text.trim_end().len());
        text
    }
}

/// As wide as the widest cell; then, on a terminal, the widest text column gives way until all fit.
fn widths(columns: &[Column], rows: &[Vec<String>], room: Option<usize>) -> Vec<usize> {
    let mut widths: Vec<usize> = columns.iter().map(|column| width_of(column.name)).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(width_of(cell));
        }
    }
    let Some(room) = room else { return widths };
    let total = |widths: &[usize]| widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1);
    while total(&widths) > room {
        let over = total(&widths) - room;
        let texts = widths.iter_mut().zip(columns).filter(|(_, column)| column.fit == Fit::Text);
        let Some((widest, _)) = texts.max_by_key(|(width, _)| **width) else { break };
        if *widest <= TEXT_WIDTH_MIN {
            break;
        }
        *widest = widest.saturating_sub(over).max(TEXT_WIDTH_MIN);
    }
    widths
}

/// One item for people: its fields, one per line, and longer texts below.
#[derive(Debug, Default)]
pub(crate) struct Sheet {
    fields: Vec<(String, String)>,
    blocks: Vec<(String, String)>,
}

impl Sheet {
    /// A field; left out when there is nothing to say.
    #[must_use]
    #[expect(
        clippy::needless_pass_by_value,
        reason = "fields are mostly temporaries; a `&` on each would be noise"
    )]
    pub(crate) fn field(mut self, name: &str, value: impl ToString) -> Self {
        let value = value.to_string();
        if !value.is_empty() {
            self.fields.push((name.to_owned(), value));
        }
        self
    }

    /// A text of several lines under a title; left out when it is empty.
    #[must_use]
    pub(crate) fn block(mut self, title: impl Into<String>, text: impl Into<String>) -> Self {
        let text = text.into();
        if !text.is_empty() {
            self.blocks.push((title.into(), text));
        }
        self
    }

    /// The fields and blocks of both.
    #[must_use]
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.fields.extend(other.fields);
        self.blocks.extend(other.blocks);
        self
    }

    /// The whole sheet.
    pub(crate) fn render(&self) -> String {
        let widest = self.fields.iter().map(|(name, _)| width_of(name)).max().unwrap_or(0);
        let mut text = String::new();
        for (name, value) in &self.fields {
            let _ = writeln!(text, "{name:widest$}  {}", escape::line(value));
        }
        for (title, block) in &self.blocks {
            let _ = writeln!(text, "\n{}:", escape::line(title));
            for one in block.trim_end_matches('\n').split('\n') {
                let _ = writeln!(text, "  {}", escape::line(one.trim_end_matches('\r')));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 3] = [Column::whole("id"), Column::number("n"), Column::text("error")];

    fn row(id: &str, n: &str, error: &str) -> Vec<String> {
        vec![id.into(), n.into(), error.into()]
    }

    #[test]
    fn a_pipe_gets_everything_and_a_terminal_what_fits() {
        let rows = [row("a1", "5", &"x".repeat(30)), row("b22", "12", "y\nz")];
        let piped = Table::default().page(&COLUMNS, &rows, None, false);
        let expected = format!("ID    N  ERROR\na1    5  {}\nb22  12  y\\nz\n", "x".repeat(30));
        assert_eq!(piped, expected);
        let fitted = Table::default().page(&COLUMNS, &rows, Some(22), false);
        assert_eq!(fitted, "ID    N  ERROR\na1    5  xxxxxxxxxxxx…\nb22  12  y\\nz\n");
        assert!(fitted.lines().all(|line| width_of(line) <= 22));
    }

    #[test]
    fn ids_are_never_cut_however_narrow_it_is() {
        let rows = [row(&"i".repeat(36), "1", &"x".repeat(30))];
        let text = Table::default().page(&COLUMNS, &rows, Some(10), false);
        assert!(text.contains(&"i".repeat(36)) && text.contains("xxxxxxxxx…"));
    }

    #[test]
    fn wide_characters_take_two_places() {
        assert_eq!(width_of("日本é"), 5);
        assert_eq!(shortened("日本語", 4), "日…");
    }

    #[test]
    fn later_pages_have_no_second_heading() {
        let mut table = Table::default();
        table.page(&COLUMNS, &[row("a", "1", "x")], None, false);
        assert_eq!(table.page(&COLUMNS, &[row("b", "2", "y")], None, false), "b   2  y\n");
    }

    #[test]
    fn a_sheet_shows_what_is_there_and_nothing_that_acts() {
        let sheet = Sheet::default()
            .field("id", "7")
            .field("kind", "")
            .field("queue", "a\u{1b}b")
            .block("stack", "one\n\ttwo\u{9b}\n");
        assert_eq!(sheet.render(), "id     7\nqueue  a\\u{1b}b\n\nstack:\n  one\n  \\ttwo\\u{9b}\n");
    }
}
