//! Reading the items: CSV, JSON Lines and JSON, from a file or a command, within bounds. What cannot be read is
//! named with file, line and column, and the run does not start; `on_bad_row: skip` leaves such rows out, counts
//! them and shows them. An item is one JSON value on one line; numbers stay as they were written.

use super::error::BatchError;
use super::path::{compact, describe};
use super::spec::{Format, Input, Source};
use super::template::Values;
use crate::executor::output::OutputLimit;
use crate::executor::process::{Process, ProcessEnd};
use redrive_core::limits;
use serde_json::value::RawValue;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read};
use std::path::Path;
use tokio_util::sync::CancellationToken;

/// What was read.
#[derive(Debug, Default)]
pub(super) struct Items {
    /// The items, each a JSON value on one line.
    pub(super) items: Vec<String>,
    /// Rows that were left out.
    pub(super) bad_rows: u64,
    /// The first of them, for people.
    pub(super) bad_samples: Vec<String>,
}

/// Bad rows that are shown.
const BAD_ROWS_SHOWN: usize = 5;

/// Reads the whole input. Relative paths and commands start from `directory`.
pub(super) async fn read(input: &Input, directory: &Path, values: &Values<'_>) -> Result<Items, BatchError> {
    match &input.source {
        Source::File(path) => {
            let path = directory.join(path);
            let input = input.clone();
            let name = path.display().to_string();
            let reading = tokio::task::spawn_blocking(move || {
                let file = File::open(&path).map_err(|e| BatchError::io("open the input", &path, &e))?;
                Reader::new(&input, name).read(file)
            });
            reading.await.map_err(|e| BatchError::Input(format!("reading the input failed: {e}")))?
        }
        Source::Command { run, timeout } => {
            let line = run.fill(values).map_err(BatchError::Input)?;
            let everything = OutputLimit { head: limits::RUN_INPUT_BYTES_MAX, tail: 0 };
            let process = Process::shell(line).directory(directory).limit(*timeout).keep_stdout(everything);
            let done = process.run(&CancellationToken::new()).await;
            let complaint = done.stderr.last_lines(3, 400);
            let why = match done.ended {
                ProcessEnd::Exited(0) => None,
                ProcessEnd::TimedOut => Some(format!("took longer than {timeout} (input.timeout)")),
                ended @ (ProcessEnd::Exited(_)
                | ProcessEnd::Signalled(_)
                | ProcessEnd::Cancelled
                | ProcessEnd::NotStarted(_)) => Some(ended.to_string()),
            };
            if let Some(why) = why {
                return Err(BatchError::Input(format!("the input command {why}: {complaint}")));
            }
            let too_much = || BatchError::Input(too_long("the command's output"));
            let bytes = done.stdout.whole().ok_or_else(too_much)?;
            Reader::new(input, "the command's output".into()).read(bytes.as_slice())
        }
    }
}

fn too_long(what: &str) -> String {
    let most = limits::RUN_INPUT_BYTES_MAX;
    format!("{what} has more than {most} bytes; split it into several jobs")
}

struct Reader<'a> {
    input: &'a Input,
    name: String,
    read: Items,
    bytes: usize,
}

impl<'a> Reader<'a> {
    fn new(input: &'a Input, name: String) -> Self {
        Self { input, name, read: Items::default(), bytes: 0 }
    }

    fn read(mut self, from: impl Read) -> Result<Items, BatchError> {
        match self.input.format {
            Format::Csv => self.csv(from)?,
            Format::Jsonl => self.jsonl(from)?,
            Format::Json => self.json(from)?,
        }
        Ok(self.read)
    }

    fn wrong(&self, location: &str, what: &str) -> BatchError {
        BatchError::Input(format!("{}: {location}{what}", self.name))
    }

    /// A row that cannot be read: the end, or one more that is left out.
    fn bad_row(&mut self, line: u64, what: &str) -> Result<(), BatchError> {
        if !self.input.skip_bad_rows {
            let hint = "; mend it, or say on_bad_row: skip";
            return Err(self.wrong(&format!("line {line}: "), &format!("{what}{hint}")));
        }
        self.read.bad_rows += 1;
        if self.read.bad_samples.len() < BAD_ROWS_SHOWN {
            self.read.bad_samples.push(format!("{}: line {line}: {what}", self.name));
        }
        Ok(())
    }

    fn item(&mut self, location: &str, item: String) -> Result<(), BatchError> {
        if item.len() > limits::PAYLOAD_BYTES_MAX {
            let what =
                format!("an item of {} bytes; at most {} are allowed", item.len(), limits::PAYLOAD_BYTES_MAX);
            return Err(self.wrong(location, &what));
        }
        self.bytes = self.bytes.saturating_add(item.len());
        if self.bytes > limits::RUN_INPUT_BYTES_MAX {
            return Err(BatchError::Input(too_long(&self.name)));
        }
        if self.read.items.len() >= limits::RUN_ITEMS_MAX {
            let what = format!("more than {} items; split it into several jobs", limits::RUN_ITEMS_MAX);
            return Err(self.wrong(location, &what));
        }
        self.read.items.push(item);
        Ok(())
    }

    fn jsonl(&mut self, from: impl Read) -> Result<(), BatchError> {
        let mut reader = BufReader::new(from);
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            let most = limits::PAYLOAD_BYTES_MAX as u64 + 2;
            let read = (&mut reader).take(most).read_until(b'\n', &mut line);
            let read = read.map_err(|e| self.wrong(&format!("line {number}: "), &e.to_string()))?;
            if read == 0 {
                break;
            }
            if line.len() > limits::PAYLOAD_BYTES_MAX + 1 {
                let what = format!("a line of more than {} bytes", limits::PAYLOAD_BYTES_MAX);
                return Err(self.wrong(&format!("line {number}: "), &what));
            }
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            match serde_json::from_slice::<&RawValue>(&line) {
                Ok(raw) => self.item(&format!("line {number}: "), compact(raw.get()))?,
                Err(error) => {
                    let what = format!("column {}: not JSON: {}", error.column(), plain(&error));
                    self.bad_row(number, &what)?;
                }
            }
        }
        Ok(())
    }

    fn json(&mut self, from: impl Read) -> Result<(), BatchError> {
        let mut text = String::new();
        let most = limits::RUN_INPUT_BYTES_MAX as u64;
        let read = from.take(most + 1).read_to_string(&mut text);
        let read = read.map_err(|e| self.wrong("", &format!("not JSON: {e}")))?;
        if read as u64 > most {
            return Err(BatchError::Input(too_long(&self.name)));
        }
        let document: &RawValue = serde_json::from_str(&text).map_err(|e| {
            self.wrong(
                &format!("line {}: column {}: ", e.line(), e.column()),
                &format!("not JSON: {}", plain(&e)),
            )
        })?;
        let document = document.get();
        let whole = super::path::JsonPath::parse("$").map_err(BatchError::Input)?;
        let path = match &self.input.json_path {
            Some(path) => path.clone(),
            None if document.starts_with('[') => whole,
            None => {
                let is = describe(document);
                let what =
                    format!("the document is {is}, not a list; say input.json_path, such as $.items[*]");
                return Err(self.wrong("", &what));
            }
        };
        let mut failed = None;
        let walked = path.walk(document, &mut |json| {
            self.item("", compact(json)).map_err(|error| {
                let said = error.to_string();
                failed = Some(error);
                said
            })
        });
        match (failed, walked) {
            (Some(error), _) => Err(error),
            (None, Err(what)) => Err(self.wrong("", &what)),
            (None, Ok(())) => Ok(()),
        }
    }

    fn csv(&mut self, from: impl Read) -> Result<(), BatchError> {
        let quotes = std::rc::Rc::new(std::cell::Cell::new(0_u64));
        let counting = Counting { from, quotes: std::rc::Rc::clone(&quotes) };
        let mut reader =
            csv::ReaderBuilder::new().delimiter(self.input.delimiter).flexible(true).from_reader(counting);
        let header = reader.byte_headers().map_err(|e| self.wrong("line 1: ", &e.to_string()))?.clone();
        let names = self.columns(&header)?;
        let mut record = csv::ByteRecord::new();
        let mut last = (0, 0, false);
        loop {
            let more = reader.read_byte_record(&mut record);
            if !more.map_err(|e| self.wrong("", &e.to_string()))? {
                break;
            }
            let line = record.position().map_or(0, csv::Position::line);
            last = (line, self.read.items.len(), record.as_slice().contains(&b'\n'));
            match row(&names, &record) {
                Ok(item) => self.item(&format!("line {line}: "), item)?,
                Err(what) => self.bad_row(line, &what)?,
            }
        }
        // A quote that is not closed swallows the rest of the file into one field; that is never what is meant.
        let (line, before, on_lines) = last;
        if quotes.get() % 2 == 1 && on_lines {
            self.read.items.truncate(before);
            self.bad_row(line, "a quote is not closed; everything after it was read as one field")?;
        }
        Ok(())
    }

    fn columns(&self, header: &csv::ByteRecord) -> Result<Vec<String>, BatchError> {
        let mut names: Vec<String> = Vec::new();
        for (n, name) in header.iter().enumerate() {
            let location = format!("line 1: column {}: ", n + 1);
            let Ok(name) = std::str::from_utf8(name) else { return Err(self.wrong(&location, "not UTF-8")) };
            let name = name.trim_start_matches('\u{feff}').trim().to_owned();
            if name.is_empty() {
                return Err(
                    self.wrong(&location, "the column has no name; the first line must name the columns")
                );
            }
            if names.contains(&name) {
                return Err(self.wrong(&location, &format!("a second column is called {name:?}")));
            }
            names.push(name);
        }
        if names.is_empty() {
            return Err(self.wrong("line 1: ", "the file is empty; the first line must name the columns"));
        }
        Ok(names)
    }
}

/// One row as JSON, every value a text.
fn row(names: &[String], record: &csv::ByteRecord) -> Result<String, String> {
    if record.len() != names.len() {
        let (found, wanted) = (record.len(), names.len());
        let column = found.min(wanted) + 1;
        return Err(format!("column {column}: {found} columns where the first line names {wanted}"));
    }
    let mut json = String::from("{");
    for (n, (name, value)) in names.iter().zip(record).enumerate() {
        let Ok(value) = std::str::from_utf8(value) else {
            return Err(format!("column {} ({name}): not UTF-8", n + 1));
        };
        if n > 0 {
            json.push(',');
        }
        json.push_str(&quoted(name));
        json.push(':');
        json.push_str(&quoted(value));
    }
    json.push('}');
    Ok(json)
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// What is wrong, without the place, which is said before it.
fn plain(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or(&text).to_owned()
}

/// Counts the quotes that go by.
struct Counting<R> {
    from: R,
    quotes: std::rc::Rc<std::cell::Cell<u64>>,
}

impl<R: Read> Read for Counting<R> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let read = self.from.read(into)?;
        let seen = into.get(..read).unwrap_or_default().iter().filter(|b| **b == b'"').count();
        self.quotes.set(self.quotes.get() + seen as u64);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::spec::Job;

    fn read(options: &str, content: &[u8]) -> Result<Items, String> {
        let job = format!("name: t\ninput: {{file: x, {options}}}\nmap: [true]\n");
        let job = Job::parse(&job).unwrap();
        Reader::new(&job.input, "x".into()).read(content).map_err(|e| e.to_string())
    }

    #[test]
    fn every_format_gives_items_on_one_line_each() {
        let csv =
            read("format: csv", b"\xef\xbb\xbfid,name\n1,\"a, \"\"b\"\"\"\n2,\"two\nlines\"\n").unwrap();
        assert_eq!(csv.items, [r#"{"id":"1","name":"a, \"b\""}"#, r#"{"id":"2","name":"two\nlines"}"#]);
        let semicolons = read("format: csv, delimiter: ';'", b"a;b\n1;2\n").unwrap();
        assert_eq!(semicolons.items, [r#"{"a":"1","b":"2"}"#]);
        let jsonl = read("format: jsonl", b"{\"n\": 12345678901234567890123 }\n\n\"text\"\n7").unwrap();
        assert_eq!(jsonl.items, ["{\"n\":12345678901234567890123}", "\"text\"", "7"]);
        let json =
            read("format: json, json_path: '$.items[*]'", b"{\"items\": [ {\"a\": 1 },\n 2 ]}").unwrap();
        assert_eq!(json.items, ["{\"a\":1}", "2"]);
        assert_eq!(read("format: json", b"[1, 2]").unwrap().items, ["1", "2"]);
    }

    #[test]
    fn what_cannot_be_read_names_its_place() {
        for (options, content, says) in [
            (
                "format: csv",
                &b"a,b\n1,2\n3\n"[..],
                "x: line 3: column 2: 1 columns where the first line names 2",
            ),
            ("format: csv", b"a,b\n1,\xff\n", "line 2: column 2 (b): not UTF-8"),
            ("format: csv", b"a,b\n1,\"open\n2,3\n4,5\n", "line 2: a quote is not closed"),
            ("format: csv", b"a,a\n", "a second column"),
            ("format: csv", b"", "the file is empty"),
            ("format: jsonl", b"{}\n{\"a\": }\n", "x: line 2: column 7: not JSON"),
            ("format: json", b"{\"items\": []}", "a map with items, not a list"),
            ("format: json", b"[1,\n 2", "line 2: column"),
            (
                "format: json, json_path: $.a.b",
                b"{\"a\": {\"c\": 1}}",
                "$.a is a map with c, and .b is not in it",
            ),
        ] {
            let error = read(options, content).unwrap_err();
            assert!(error.contains(says), "{says}: {error}");
        }
    }

    #[test]
    fn bad_rows_are_left_out_and_counted_when_asked() {
        let read = read("format: csv, on_bad_row: skip", b"a,b\n1,2\n3\n4,5\n6,7,8\n").unwrap();
        assert_eq!((read.items.len(), read.bad_rows), (2, 2));
        assert!(read.bad_samples[0].contains("line 3"), "{:?}", read.bad_samples);
    }
}
