//! Everything that commands print. Data goes to stdout in the requested format, everything else to stderr; both are
//! escaped. Commands pass values and never write themselves.

pub(crate) mod choice;
pub(crate) mod escape;
mod layout;
mod paint;
pub(crate) mod table;
mod yaml;

use crate::exit_code::{CliError, ExitCode};
use crate::progress::ProgressWhen;
use choice::Choice;
use clap::ValueEnum;
use redrive::core::masking::Rules;
use redrive::core::query::Cursor;
use redrive::core::time::{Clock as _, Span, Time};
use serde::{Deserialize, Serialize};
use std::io::{self, IsTerminal as _, Write as _};
use std::marker::PhantomData;
use std::sync::OnceLock;
pub(crate) use table::{Column, Sheet};

/// The masking rules of this process; the built-in ones by default.
static RULES: OnceLock<Rules> = OnceLock::new();

/// Sets the masking rules for everything that is shown. Only the first call has an effect.
pub(crate) fn mask_with(rules: Rules) {
    let _ = RULES.set(rules);
}

/// The masking rules for everything that is shown.
pub(crate) fn rules() -> &'static Rules {
    RULES.get_or_init(Rules::default)
}

/// The output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Format {
    /// A table that fits the terminal, with short ids and relative times
    Table,
    /// The table with more columns, complete ids and exact times, without a width limit
    Wide,
    /// One document: an object, or `{"items": […], "next": cursor}`
    Json,
    /// One object per line
    Ndjson,
    /// The columns of the table, quoted, safe for spreadsheets
    Csv,
    /// The same document as json, as YAML
    Yaml,
    /// One line per item, formatted by `--template`
    Template,
    /// No data; only the exit code
    None,
}

impl Format {
    /// Whether the format is a table.
    pub(crate) const fn is_table(self) -> bool {
        matches!(self, Self::Table | Self::Wide)
    }
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorWhen {
    /// On a terminal, unless NO_COLOR is set; everywhere if FORCE_COLOR is set
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

impl ColorWhen {
    /// Whether to use colours. Only `Auto` depends on the environment.
    fn holds(self, terminal: bool) -> bool {
        let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        match self {
            Self::Always => true,
            Self::Never => false,
            Self::Auto if set("NO_COLOR") => false,
            Self::Auto if set("FORCE_COLOR") => true,
            Self::Auto => terminal && std::env::var_os("TERM").is_none_or(|term| term != "dumb"),
        }
    }
}

/// How tables show times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TimeStyle {
    /// Relative to now: `5m ago`, `in 30s`
    Relative,
    /// RFC 3339, in UTC
    Iso,
    /// Seconds since 1970
    Unix,
}

/// How values are formatted as cells.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ValueFormat {
    time: TimeStyle,
    now: Time,
}

impl ValueFormat {
    /// Formats a time.
    pub(crate) fn time(&self, at: Time) -> String {
        match self.time {
            TimeStyle::Iso => at.to_string(),
            TimeStyle::Unix => (at.as_millis() / 1_000).to_string(),
            TimeStyle::Relative if at == self.now => "now".to_owned(),
            TimeStyle::Relative if at > self.now => format!("in {}", in_seconds(at.since(self.now))),
            TimeStyle::Relative => format!("{} ago", in_seconds(self.now.since(at))),
        }
    }

    /// Formats an optional time.
    pub(crate) fn maybe(&self, at: Option<Time>) -> String {
        at.map(|at| self.time(at)).unwrap_or_default()
    }
}

/// A duration in its largest unit, without fractions of a second.
fn in_seconds(span: Span) -> String {
    if span < Span::from_secs(1) { "0s".to_owned() } else { rough(span) }
}

/// A duration in its largest unit.
pub(crate) fn rough(span: Span) -> String {
    let ms = span.as_millis();
    let units = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000)];
    let unit = units.iter().find(|(_, unit)| ms >= *unit);
    unit.map_or_else(|| format!("{ms}ms"), |(name, unit)| format!("{}{name}", ms / unit))
}

/// Something that can be shown in every format. JSON and YAML use its serialisation.
pub(crate) trait Show: Serialize {
    /// The columns of a table.
    const COLUMNS: &'static [Column];

    /// The item without secrets; `None` if it cannot have any. Everything that is printed goes through this, except
    /// [`Revealed`] items.
    fn masked(&self, _: &Rules) -> Option<Self>
    where
        Self: Sized,
    {
        None
    }

    /// One cell per column.
    fn cells(&self, fmt: &ValueFormat) -> Vec<String>;

    /// Columns that only a wide table shows, or that are requested by name.
    const MORE: &'static [Column] = &[];

    /// One cell per column of [`Show::MORE`].
    fn more(&self, _: &ValueFormat) -> Vec<String> {
        Vec::new()
    }

    /// A single item as a sheet of fields.
    fn sheet(&self, fmt: &ValueFormat) -> Sheet {
        let cells = self.cells(fmt);
        Self::COLUMNS.iter().zip(cells).fold(Sheet::default(), |sheet, (c, cell)| sheet.field(c.name, cell))
    }
}

/// An item that is shown with its secrets, after this was recorded in the audit trail.
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct Revealed<T>(pub T);

impl<T: Show> Show for Revealed<T> {
    const COLUMNS: &'static [Column] = T::COLUMNS;

    fn cells(&self, fmt: &ValueFormat) -> Vec<String> {
        self.0.cells(fmt)
    }

    const MORE: &'static [Column] = T::MORE;

    fn more(&self, fmt: &ValueFormat) -> Vec<String> {
        self.0.more(fmt)
    }

    fn sheet(&self, fmt: &ValueFormat) -> Sheet {
        self.0.sheet(fmt)
    }
}

/// The output settings of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    /// The format of data.
    pub format: Format,
    /// Whether to suppress notes and progress.
    pub quiet: bool,
    /// How to show progress.
    pub progress: ProgressWhen,
    /// Whether stdout is a terminal.
    pub terminal: bool,
    /// Whether to colour stdout.
    pub color: bool,
    /// Whether to colour stderr.
    color_stderr: bool,
    fmt: ValueFormat,
    choice: &'static Choice,
}

impl Output {
    /// Combines flags and environment.
    pub(crate) fn new(
        format: Format,
        time: Option<TimeStyle>,
        color: ColorWhen,
        (quiet, progress): (bool, ProgressWhen),
        choice: &'static Choice,
    ) -> Self {
        let terminal = io::stdout().is_terminal();
        let color_stderr = color.holds(io::stderr().is_terminal());
        let color = color.holds(terminal);
        let rough = terminal && format != Format::Wide;
        let time = time.unwrap_or(if rough { TimeStyle::Relative } else { TimeStyle::Iso });
        let fmt = ValueFormat { time, now: redrive::store::clock::Wall.now() };
        Self { format, quiet, progress, terminal, color, color_stderr, fmt, choice }
    }

    /// On a terminal, clears the screen before the next output.
    pub(crate) fn wipe_next(&self) {
        if self.terminal {
            self.choice.wipe_next();
        }
    }

    /// Whether the user named the columns.
    pub(crate) const fn names_columns(&self) -> bool {
        self.choice.names_columns()
    }

    /// Prints one item.
    pub(crate) fn one<T: Show>(&self, item: &T) -> Result<(), CliError> {
        let masked = item.masked(rules());
        let item = masked.as_ref().unwrap_or(item);
        match self.format {
            // If columns are named, show only those.
            Format::Table | Format::Wide if !self.names_columns() => {
                self.raw(item.sheet(&self.fmt).render().as_bytes())
            }
            Format::Json => self.raw((escape::json(pretty(item)?) + "\n").as_bytes()),
            Format::Yaml => self.raw(yaml::document(&value(item)?).as_bytes()),
            Format::Table | Format::Wide | Format::Ndjson | Format::Csv | Format::Template | Format::None => {
                let mut list = self.list();
                list.add(std::slice::from_ref(item))?;
                list.end(None).map(drop)
            }
        }
    }

    /// Prints a document of several parts in JSON or YAML; other formats print one line of JSON.
    pub(crate) fn document(&self, item: &impl Serialize) -> Result<(), CliError> {
        let text = match self.format {
            Format::Json => escape::json(pretty(item)?) + "\n",
            Format::Yaml => yaml::document(&value(item)?),
            Format::Template => self.choice.template()?.line(&value(item)?),
            Format::None => return Ok(()),
            Format::Table | Format::Wide | Format::Ndjson | Format::Csv => compact(item)? + "\n",
        };
        self.raw(text.as_bytes())
    }

    /// Starts a list. Nothing is printed before its first page or its end.
    pub(crate) fn list<T: Show>(&self) -> List<T> {
        List { out: *self, begun: false, count: 0, table: table::Table::default(), of: PhantomData }
    }

    /// Prints a whole list.
    pub(crate) fn all<T: Show>(&self, items: &[T]) -> Result<(), CliError> {
        let mut list = self.list();
        list.add(items)?;
        list.end(None).map(drop)
    }

    /// Prints bytes unchanged.
    pub(crate) fn raw(&self, bytes: &[u8]) -> Result<(), CliError> {
        let mut stdout = io::stdout().lock();
        // Move the cursor home and clear the screen only now, so that the previous output stays visible until then.
        let wiped = if self.choice.take_wipe() { stdout.write_all(b"\x1b[H\x1b[2J") } else { Ok(()) };
        wiped.and_then(|()| stdout.write_all(bytes)).and_then(|()| stdout.flush()).map_err(|error| {
            if error.kind() == io::ErrorKind::BrokenPipe {
                return CliError::reader_gone();
            }
            CliError::io("write to stdout", &error)
        })
    }

    /// Prints a note for the user on stderr; it is not part of the data.
    pub(crate) fn note(&self, text: &str) {
        if !self.quiet {
            eprint_line(text);
        }
    }

    /// Prints a warning on stderr that nobody may overlook: in red, and also with `--quiet`.
    pub(crate) fn alarm(&self, text: &str) {
        let text = escape::lines(text);
        let text = if self.color_stderr { paint::alarm(&text) } else { text };
        // There is nowhere left to report an error of stderr.
        let _ = writeln!(io::stderr().lock(), "{text}");
    }

    /// Prints a few items on stderr as a table, whatever the output format, before the user decides.
    pub(crate) fn sample<T: Show>(&self, items: &[T]) {
        let row = |item: &T| item.masked(rules()).as_ref().unwrap_or(item).cells(&self.fmt);
        let rows: Vec<Vec<String>> = items.iter().map(row).collect();
        let space = table::Space { room: self.room(), color: false, chosen: false };
        let text = table::Table::default().page(T::COLUMNS, &rows, space);
        eprint_line(text.trim_end());
    }

    /// The width of the terminal; `None` in a pipe, where lines may have any length.
    fn room(&self) -> Option<usize> {
        let from_env = || std::env::var("COLUMNS").ok()?.parse().ok();
        let measured = || ratatui::crossterm::terminal::size().ok().map(|(width, _)| usize::from(width));
        self.terminal.then(|| from_env().or_else(measured).filter(|width| *width > 0).unwrap_or(80))
    }
}

/// Writes an escaped line to stderr. Ignores errors, because there is nowhere left to report them.
pub(crate) fn eprint_line(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", escape::lines(text));
}

/// Prints the error of a command.
pub(crate) fn report(error: &CliError) {
    if error.what.is_empty() {
        return;
    }
    eprint_line(&format!("error: {}", error.what));
    if let Some(hint) = &error.hint {
        eprint_line(&format!("  try: {hint}"));
    }
}

/// A list that is printed page by page, so that it can have any length.
#[derive(Debug)]
pub(crate) struct List<T> {
    out: Output,
    begun: bool,
    count: u64,
    table: table::Table,
    of: PhantomData<T>,
}

impl<T: Show> List<T> {
    /// Prints more items.
    pub(crate) fn add(&mut self, items: &[T]) -> Result<(), CliError> {
        let masked: Option<Vec<T>> = items.iter().map(|item| item.masked(rules())).collect();
        let items = masked.as_deref().unwrap_or(items);
        let text = match self.out.format {
            Format::Table | Format::Wide => {
                if items.is_empty() {
                    return Ok(());
                }
                let columns = self.columns(items)?;
                let rows = self.rows(items, &columns, &self.out.fmt)?;
                let room = if self.out.format == Format::Wide { None } else { self.out.room() };
                let chosen = self.out.names_columns();
                let text =
                    self.table.page(&columns, &rows, table::Space { room, color: self.out.color, chosen });
                let left_out = self.table.left_out(&columns);
                if chosen && !self.begun && !left_out.is_empty() {
                    let names = left_out.join(", ");
                    self.out.note(&format!("no room for {names}; name fewer columns, or use -o wide"));
                }
                text
            }
            Format::Template => {
                let template = self.out.choice.template()?;
                let lines: Result<Vec<String>, CliError> =
                    items.iter().map(|item| Ok(template.line(&value(item)?))).collect();
                lines?.concat()
            }
            Format::None => String::new(),
            Format::Csv => self.csv(items)?,
            Format::Ndjson => {
                let lines: Result<Vec<String>, CliError> = items.iter().map(|item| compact(item)).collect();
                lines?.into_iter().map(|line| line + "\n").collect()
            }
            Format::Json | Format::Yaml => self.part_of_document(items)?,
        };
        self.begun = true;
        self.count += items.len() as u64;
        self.out.raw(text.as_bytes())
    }

    /// The columns to show. Notes once if the user named a column that no item has.
    fn columns(&self, items: &[T]) -> Result<Vec<Column>, CliError> {
        if !self.begun && !items.is_empty() {
            let unknown = self.out.choice.unknown(items)?;
            if !unknown.is_empty() {
                let known: Vec<&str> = T::COLUMNS.iter().chain(T::MORE).map(|column| column.name).collect();
                let (unknown, known) = (unknown.join(", "), known.join(", "));
                self.out.note(&format!(
                    "nothing here has {unknown}; columns are {known}, or a path into the JSON"
                ));
            }
        }
        Ok(self.out.choice.columns::<T>(self.out.format == Format::Wide))
    }

    fn rows(&self, items: &[T], columns: &[Column], fmt: &ValueFormat) -> Result<Vec<Vec<String>>, CliError> {
        items.iter().map(|item| self.out.choice.row(item, columns, fmt)).collect()
    }

    fn csv(&self, items: &[T]) -> Result<String, CliError> {
        let mut writer =
            csv::WriterBuilder::new().quote_style(csv::QuoteStyle::Always).from_writer(Vec::new());
        let broken = |e: csv::Error| CliError::new(ExitCode::Error, format!("failed to write csv: {e}"));
        let columns = self.columns(items)?;
        if !self.begun {
            writer.write_record(columns.iter().map(|column| column.name)).map_err(broken)?;
        }
        let fmt = ValueFormat { time: TimeStyle::Iso, ..self.out.fmt };
        for row in self.rows(items, &columns, &fmt)? {
            // A file keeps every character; for a terminal control characters are escaped.
            let plain = |cell: &String| {
                if self.out.terminal { escape::line(cell).into_owned() } else { cell.clone() }
            };
            let cells = row.iter().map(|cell| escape::cell(&plain(cell)).into_owned()).collect::<Vec<_>>();
            writer.write_record(cells).map_err(broken)?;
        }
        let bytes = writer.into_inner().map_err(|e| broken(e.into_error().into()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn part_of_document(&self, items: &[T]) -> Result<String, CliError> {
        let mut text = String::new();
        for (index, item) in items.iter().enumerate() {
            let first = !self.begun && index == 0;
            if self.out.format == Format::Yaml {
                text.push_str(if first { "items:\n  " } else { "  " });
                text.push_str(&yaml::element(&value(item)?, 2));
            } else {
                text.push_str(if first { "{\"items\":[\n" } else { ",\n" });
                text.push_str(&compact(item)?);
            }
        }
        Ok(text)
    }

    /// Whether no item was printed yet.
    pub(crate) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Ends the list and returns the number of items.
    pub(crate) fn end(self, next: Option<&Cursor>) -> Result<u64, CliError> {
        let cursor = serde_json::to_string(&next).unwrap_or_else(|_| "null".into());
        let empty = self.is_empty();
        match self.out.format {
            Format::Json if empty => {
                self.out.raw(format!("{{\"items\":[],\"next\":{cursor}}}\n").as_bytes())?
            }
            Format::Json => self.out.raw(format!("\n],\"next\":{cursor}}}\n").as_bytes())?,
            Format::Yaml if empty => self.out.raw(format!("items: []\nnext: {cursor}\n").as_bytes())?,
            Format::Yaml => self.out.raw(format!("next: {cursor}\n").as_bytes())?,
            Format::Csv if !self.begun => self.out.raw(self.csv(&[])?.as_bytes())?,
            Format::Table | Format::Wide if empty => self.out.note("nothing to show"),
            Format::Table | Format::Wide | Format::Ndjson | Format::Csv | Format::Template | Format::None => {
            }
        }
        let in_data = matches!(self.out.format, Format::Json | Format::Yaml | Format::None);
        if let (Some(next), false) = (next, in_data) {
            self.out.note(&format!("there is more: add --cursor {} or --all", next.as_str()));
        }
        Ok(self.count)
    }
}

fn unwritable(error: &serde_json::Error) -> CliError {
    CliError::new(ExitCode::Error, format!("failed to write JSON: {error}"))
}

/// Serializes to one line of JSON.
pub(crate) fn compact(item: &impl Serialize) -> Result<String, CliError> {
    serde_json::to_string(item).map(escape::json).map_err(|e| unwritable(&e))
}

fn pretty(item: &impl Serialize) -> Result<String, CliError> {
    serde_json::to_string_pretty(item).map_err(|e| unwritable(&e))
}

pub(crate) fn value(item: &impl Serialize) -> Result<serde_json::Value, CliError> {
    serde_json::to_value(item).map_err(|e| unwritable(&e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Item {
        name: String,
        at: Time,
    }

    impl Show for Item {
        const COLUMNS: &'static [Column] = &[Column::text("name"), Column::whole("at")];

        fn cells(&self, fmt: &ValueFormat) -> Vec<String> {
            vec![self.name.clone(), fmt.time(self.at)]
        }
    }

    fn list(format: Format) -> List<Item> {
        let fmt = ValueFormat { time: TimeStyle::Relative, now: Time::from_millis(100_000) };
        let choice = Choice::global(None, None);
        let progress = ProgressWhen::None;
        Output {
            format,
            quiet: true,
            progress,
            terminal: false,
            color: false,
            color_stderr: false,
            fmt,
            choice,
        }
        .list()
    }

    fn item(name: &str) -> Item {
        Item { name: name.into(), at: Time::from_millis(5_000) }
    }

    #[test]
    fn csv_is_quoted_iso_and_safe() {
        let text = list(Format::Csv).csv(&[item("=cmd|' /C calc'!A0"), item("a \"b\",\nc")]).unwrap();
        let expected = "\"name\",\"at\"\n\"'=cmd|' /C calc'!A0\",\"1970-01-01T00:00:05.000Z\"\n\
                        \"a \"\"b\"\",\nc\",\"1970-01-01T00:00:05.000Z\"\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_list_in_pieces_is_one_document() {
        let mut pages = list(Format::Json);
        let mut text = pages.part_of_document(&[item("a"), item("b")]).unwrap();
        pages.begun = true;
        text += &pages.part_of_document(&[item("c")]).unwrap();
        text += "\n],\"next\":null}";
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["items"].as_array().unwrap().len(), 3);
    }

    #[test]
    fn relative_times_use_the_largest_unit() {
        let fmt = ValueFormat { time: TimeStyle::Relative, now: Time::from_millis(100_000_000) };
        let ago = |ms: i64| fmt.time(Time::from_millis(100_000_000 - ms));
        assert_eq!(ago(0), "now");
        assert_eq!(ago(400), "0s ago");
        assert_eq!(ago(61_000), "1m ago");
        assert_eq!(ago(90_000_000), "1d ago");
        assert_eq!(ago(-7_200_000), "in 2h");
        assert_eq!(ValueFormat { time: TimeStyle::Unix, ..fmt }.time(Time::from_millis(5_999)), "5");
    }
}
