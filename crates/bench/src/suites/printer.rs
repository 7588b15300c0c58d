//! Prints figures as an aligned table or as one JSON document; progress goes to stderr.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "this is where the command prints")]

use super::BenchError;
use serde::Serialize;

/// One figure: a row of the table, and an object of the JSON document.
pub(super) trait Row: Serialize {
    /// The headings, in the order of the cells.
    const HEADINGS: &'static [&'static str];

    /// The cells of the row, one for each heading.
    fn cells(&self) -> Vec<String>;
}

/// The output of a suite.
pub(super) struct Printer {
    /// Whether to print one JSON document instead of a table.
    pub(super) json: bool,
}

impl Printer {
    /// Prints what is being measured now.
    pub(super) fn note(&self, text: &str) {
        eprintln!("{text}");
    }

    /// Prints a line for the program that started this one.
    pub(super) fn say(&self, line: &str) {
        println!("{line}");
    }

    /// Prints all figures of a suite.
    pub(super) fn figures<R: Row>(&self, rows: &[R]) -> Result<(), BenchError> {
        if self.json {
            println!("{}", serde_json::to_string_pretty(rows)?);
        } else {
            print!("{}", table(R::HEADINGS, &rows.iter().map(Row::cells).collect::<Vec<_>>()));
        }
        Ok(())
    }
}

/// Formats a table. The first column is left-aligned text; the others are right-aligned numbers.
fn table(headings: &[&str], rows: &[Vec<String>]) -> String {
    let headings: Vec<String> = headings.iter().map(|&heading| heading.to_owned()).collect();
    let lines = || std::iter::once(&headings).chain(rows);
    let width =
        |n: usize| lines().filter_map(|line| line.get(n)).map(|c| c.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..headings.len()).map(width).collect();
    let mut text = String::new();
    for line in lines() {
        let cells = line.iter().zip(&widths).enumerate().map(|(n, (cell, &width))| match n {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::table;

    #[test]
    fn text_stands_on_the_left_and_numbers_on_the_right() {
        let rows = [vec!["enqueue".into(), "9".into()], vec!["ack".into(), "120000".into()]];
        assert_eq!(table(&["what", "per s"], &rows), "what      per s\nenqueue       9\nack      120000\n");
    }
}
