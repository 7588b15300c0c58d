//! Tables and sheets. On a terminal a table fits the width, see [`super::layout`]; in a pipe nothing is shortened.
//! Every cell is escaped here.

pub(crate) use super::layout::{Column, places, shortened, width_of};
use super::layout::{Fit, GAP, Layout};
use super::{escape, paint};
use std::fmt::Write as _;

/// The space and style available to a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Space {
    /// The width of a line; `None` if lines may have any length.
    pub room: Option<usize>,
    /// Whether to highlight headings and states.
    pub color: bool,
    /// Whether the user named the columns.
    pub chosen: bool,
}

/// A table that is printed page by page with the layout of its first page.
#[derive(Debug, Default)]
pub(crate) struct Table {
    layout: Option<Layout>,
}

impl Table {
    /// Renders a page of rows. The first page decides the columns and their widths, and includes the headings.
    pub(crate) fn page(&mut self, columns: &[Column], rows: &[Vec<String>], space: Space) -> String {
        let rows: Vec<Vec<String>> =
            rows.iter().map(|row| row.iter().map(|cell| escape::line(cell).into_owned()).collect()).collect();
        let begins = self.layout.is_none();
        let layout = self.layout.get_or_insert_with(|| match space.room {
            Some(room) => Layout::fitted(columns, &rows, room, space.chosen),
            None => Layout::whole(columns, &rows),
        });
        let mut text = String::new();
        if begins {
            let heads: Vec<String> = columns.iter().map(|column| column.name.to_uppercase()).collect();
            let heads = line(layout, columns, &heads, false);
            let heads = if space.color { paint::bold(&heads) } else { heads };
            let _ = writeln!(text, "{heads}");
        }
        for row in &rows {
            let _ = writeln!(text, "{}", line(layout, columns, row, space.color));
        }
        text
    }

    /// The columns that are not shown because they are empty or there is no room for them.
    pub(crate) fn left_out(&self, columns: &[Column]) -> Vec<&'static str> {
        let shown = |place: usize| {
            self.layout.as_ref().is_none_or(|layout| layout.columns.iter().any(|(at, _)| *at == place))
        };
        columns
            .iter()
            .enumerate()
            .filter(|(place, _)| !shown(*place))
            .map(|(_, column)| column.name)
            .collect()
    }
}

/// Renders one line of a table.
fn line(layout: &Layout, columns: &[Column], cells: &[String], color: bool) -> String {
    let mut text = String::new();
    for (n, (place, width)) in layout.columns.iter().enumerate() {
        let (Some(column), Some(cell)) = (columns.get(*place), cells.get(*place)) else { continue };
        if n > 0 {
            text.extend(std::iter::repeat_n(' ', GAP));
        }
        let shown = layout.cell(*column, cell, *width);
        let padding = std::iter::repeat_n(' ', width.saturating_sub(width_of(&shown)));
        let shown = if color && column.tinted { paint::painted(cell, &shown) } else { shown };
        match column.fit {
            Fit::Number => {
                text.extend(padding);
                text.push_str(&shown);
            }
            Fit::Whole | Fit::Id | Fit::Token | Fit::Text | Fit::Main => {
                text.push_str(&shown);
                text.extend(padding);
            }
        }
    }
    text.truncate(text.trim_end().len());
    text
}

/// A single item: its fields, one per line, and longer texts below.
#[derive(Debug, Default)]
pub(crate) struct Sheet {
    fields: Vec<(String, String)>,
    blocks: Vec<(String, String)>,
}

impl Sheet {
    /// Adds a field, unless its value is empty.
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

    /// Adds a text of several lines under a title, unless it is empty.
    #[must_use]
    pub(crate) fn block(mut self, title: impl Into<String>, text: impl Into<String>) -> Self {
        let text = text.into();
        if !text.is_empty() {
            self.blocks.push((title.into(), text));
        }
        self
    }

    /// Appends the fields and blocks of another sheet.
    #[must_use]
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.fields.extend(other.fields);
        self.blocks.extend(other.blocks);
        self
    }

    /// Renders the sheet.
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

    const COLUMNS: [Column; 3] = [Column::whole("id"), Column::number("n"), Column::main("error")];
    const PIPE: Space = Space { room: None, color: false, chosen: false };

    fn row(id: &str, n: &str, error: &str) -> Vec<String> {
        vec![id.into(), n.into(), error.into()]
    }

    #[test]
    fn a_pipe_gets_everything_and_a_terminal_what_fits() {
        let rows = [row("a1", "5", &"x".repeat(30)), row("b22", "12", "y\nz")];
        let piped = Table::default().page(&COLUMNS, &rows, PIPE);
        let expected = format!("ID    N  ERROR\na1    5  {}\nb22  12  y\\nz\n", "x".repeat(30));
        assert_eq!(piped, expected);
        let fitted = Table::default().page(&COLUMNS, &rows, Space { room: Some(22), ..PIPE });
        assert_eq!(fitted, "ID    N  ERROR\na1    5  xxxxxxxxxxxx…\nb22  12  y\\nz\n");
        assert!(fitted.lines().all(|line| width_of(line) <= 22));
    }

    #[test]
    fn tokens_are_never_cut_however_narrow_it_is() {
        let columns = [Column::token("token"), Column::number("n"), Column::main("error")];
        let rows = [row(&"i".repeat(64), "1", &"x".repeat(30))];
        let text = Table::default().page(&columns, &rows, Space { room: Some(10), ..PIPE });
        assert_eq!(text, format!("TOKEN\n{}\n", "i".repeat(64)));
    }

    #[test]
    fn colour_takes_no_room() {
        let columns = [Column::state("status"), Column::main("error")];
        let rows = [["new", "x"], ["regressed", "y"]].map(|row| row.map(str::to_owned).to_vec());
        let text = Table::default().page(&columns, &rows, Space { color: true, ..PIPE });
        let expected = "\u{1b}[1mSTATUS     ERROR\u{1b}[0m\n\u{1b}[33mnew\u{1b}[0m        x\n\
                        \u{1b}[1;31mregressed\u{1b}[0m  y\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn later_pages_have_no_second_heading() {
        let mut table = Table::default();
        table.page(&COLUMNS, &[row("a", "1", "x")], PIPE);
        assert_eq!(table.page(&COLUMNS, &[row("b", "2", "y")], PIPE), "b   2  y\n");
    }

    #[test]
    fn a_sheet_omits_empty_fields_and_escapes_text() {
        let sheet = Sheet::default()
            .field("id", "7")
            .field("kind", "")
            .field("queue", "a\u{1b}b")
            .block("stack", "one\n\ttwo\u{9b}\n");
        assert_eq!(sheet.render(), "id     7\nqueue  a\\u{1b}b\n\nstack:\n  one\n  \\ttwo\\u{9b}\n");
    }
}
