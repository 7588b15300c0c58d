//! Reading NDJSON in bulk: a thread reads lines, the command sends them on in bounded batches, and a line that
//! is wrong is named by its number. Nothing here knows what a line means.

use crate::config::explained;
use crate::connect::App;
use crate::exit_code::{CliError, ExitCode};
use crate::output::complain;
use crate::progress::Progress;
use redrive::core::limits;
use serde::de::DeserializeOwned;
use std::io::{self, BufRead as _, BufReader, Read};
use std::path::Path;
use tokio::sync::mpsc::{self, Receiver, Sender};

/// Lines sent in one commit: short for those who wait behind it, long enough to share its fsync.
const BATCH_LINES: usize = 500;
/// Bytes after which a batch is sent before it is full.
const BATCH_BYTES: usize = limits::BATCH_BYTES_MAX / 4;
/// A line may be as long as the largest payload with every byte escaped, and then some.
const LINE_BYTES_MAX: usize = 6 * limits::PAYLOAD_BYTES_MAX + 1024 * 1024;

/// One line and its number; the first is 1.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Line {
    number: u64,
    bytes: Vec<u8>,
}

/// Lines as they come in, a batch at a time.
pub(crate) type Lines = Receiver<io::Result<Vec<Line>>>;

/// Opens a file, or stdin for `-`.
pub(crate) fn open(path: &Path) -> Result<Lines, CliError> {
    if path == Path::new("-") {
        return Ok(read(io::stdin()));
    }
    let file = std::fs::File::open(path)
        .map_err(|error| CliError::io(format_args!("open {}", path.display()), &error))?;
    Ok(read(file))
}

/// Reads lines in a thread of its own, since reading may block for as long as the other side likes.
pub(crate) fn read(source: impl Read + Send + 'static) -> Lines {
    let (sender, lines) = mpsc::channel(2);
    std::thread::spawn(move || {
        if let Err(error) = read_into(BufReader::with_capacity(1 << 20, source), &sender) {
            // Nobody listens any more: then nobody needs to know.
            let _ = sender.blocking_send(Err(error));
        }
    });
    lines
}

fn read_into(mut source: BufReader<impl Read>, to: &Sender<io::Result<Vec<Line>>>) -> io::Result<()> {
    let (mut batch, mut size, mut number) = (Vec::new(), 0, 0);
    loop {
        let mut bytes = Vec::new();
        let limit = LINE_BYTES_MAX as u64 + 1;
        let ended = source.by_ref().take(limit).read_until(b'\n', &mut bytes)? == 0;
        number += 1;
        if bytes.len() > LINE_BYTES_MAX {
            let _ = to.blocking_send(Ok(batch));
            let what = format!("line {number} is longer than {LINE_BYTES_MAX} bytes");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        bytes.truncate(bytes.trim_ascii_end().len());
        if !bytes.is_empty() {
            size += bytes.len();
            batch.push(Line { number, bytes });
        }
        // A slow writer's lines go on at once instead of waiting for a full batch.
        let idle = source.buffer().is_empty();
        let full = batch.len() >= BATCH_LINES || size >= BATCH_BYTES;
        if (ended || idle || full) && !batch.is_empty() {
            size = 0;
            if to.blocking_send(Ok(std::mem::take(&mut batch))).is_err() {
                return Ok(());
            }
        }
        if ended {
            return Ok(());
        }
    }
}

/// Reads one line as JSON of a known shape. Complaints never quote a value that might be a payload.
pub(crate) fn json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    object(bytes)?;
    serde_json::from_slice(bytes).map_err(|error| complaint(&error))
}

/// Refuses what cannot be an object before anybody quotes it.
pub(crate) fn object(bytes: &[u8]) -> Result<(), String> {
    if let Err(error) = std::str::from_utf8(bytes) {
        return Err(format!("not valid UTF-8 at byte {}", error.valid_up_to() + 1));
    }
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err("not a JSON object".into());
    }
    Ok(())
}

/// What is wrong with a line, without its content.
pub(crate) fn complaint(error: &serde_json::Error) -> String {
    let column = error.column();
    match error.classify() {
        serde_json::error::Category::Eof => format!("the JSON ends too early, at column {column}"),
        serde_json::error::Category::Syntax | serde_json::error::Category::Io => {
            format!("not valid JSON at column {column}")
        }
        serde_json::error::Category::Data => {
            let text = error.to_string();
            let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what);
            let expected = text.starts_with("invalid").then(|| text.rsplit_once(", expected ")).flatten();
            match expected {
                Some((_, wanted)) => format!("a value is not {wanted}, at column {column}"),
                None => explained(text),
            }
        }
    }
}

/// What became of the lines so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Lines that were taken.
    pub taken: u64,
    /// Lines that were wrong or refused.
    pub failed: u64,
    /// The last line looked at.
    pub last: u64,
}

impl Tally {
    /// How the command ends.
    pub(crate) const fn code(&self) -> ExitCode {
        if self.failed == 0 { ExitCode::Ok } else { ExitCode::Partial }
    }

    fn so_far(&self) -> String {
        format!("{} lines were taken; go on after line {}", self.taken, self.last)
    }
}

/// What became of one item of a batch.
pub(crate) type Taken = Result<(), CliError>;

/// Sends every line on: `parse` turns it into an item, `send` takes a batch of items in one commit. The first
/// line that fails ends it, with the lines before it kept, unless `keep_going`.
pub(crate) async fn feed<T>(
    app: &App,
    mut lines: Lines,
    keep_going: bool,
    parse: impl Fn(&[u8]) -> Result<T, CliError>,
    mut send: impl AsyncFnMut(Vec<T>) -> Result<Vec<Taken>, CliError>,
) -> Result<Tally, CliError> {
    let mut progress = Progress::new(&app.out, "reading", None);
    let mut tally = Tally::default();
    while let Some(batch) = lines.recv().await {
        let batch = batch.map_err(|error| CliError::io("read the input", &error).hint(tally.so_far()))?;
        let (mut items, mut numbers, mut failure) = (Vec::new(), Vec::new(), None);
        for Line { number, bytes } in batch {
            match parse(&bytes) {
                Ok(item) => {
                    items.push(item);
                    numbers.push(number);
                }
                Err(error) if keep_going => fail(&mut tally, number, &error),
                Err(error) => {
                    failure = Some((number, error));
                    break;
                }
            }
        }
        let results = send(items).await.map_err(|error| error.hint(tally.so_far()))?;
        for (number, result) in numbers.into_iter().zip(results) {
            tally.last = number;
            match result {
                Ok(()) => tally.taken += 1,
                Err(error) if keep_going => fail(&mut tally, number, &error),
                Err(error) => failure = failure.or(Some((number, error))),
            }
        }
        progress.at(tally.taken, None);
        app.on_interrupt(tally.so_far());
        if let Some((number, error)) = failure {
            let what = format!("line {number}: {}", error.what);
            return Err(CliError { what, ..error.hint(tally.so_far()) });
        }
    }
    Ok(tally)
}

fn fail(tally: &mut Tally, number: u64, error: &CliError) {
    tally.failed += 1;
    complain(&format!("line {number}: {}", error.what));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batches(text: &'static [u8]) -> Vec<Line> {
        let mut lines = read(text);
        let mut all = Vec::new();
        while let Some(batch) = lines.blocking_recv() {
            all.extend(batch.unwrap());
        }
        all
    }

    #[test]
    fn lines_keep_their_numbers_and_blank_ones_do_not_count() {
        let lines = batches(b"{\"a\":1}\n\n  \r\n{\"b\":2}");
        let seen: Vec<(u64, &[u8])> = lines.iter().map(|l| (l.number, l.bytes.as_slice())).collect();
        assert_eq!(seen, [(1, b"{\"a\":1}".as_slice()), (4, b"{\"b\":2}".as_slice())]);
    }

    #[test]
    fn batches_are_bounded() {
        let text = "{}\n".repeat(2 * BATCH_LINES + 1);
        let mut lines = read(io::Cursor::new(text));
        let mut sizes = Vec::new();
        while let Some(batch) = lines.blocking_recv() {
            sizes.push(batch.unwrap().len());
        }
        assert_eq!(sizes, [BATCH_LINES, BATCH_LINES, 1]);
    }

    #[test]
    fn complaints_say_what_is_wrong_and_never_what_it_says() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Shape {
            #[serde(rename = "queue")]
            _queue: Option<u32>,
        }
        for (line, says) in [
            (b"\"secret\"".as_slice(), "not a JSON object"),
            (b"secret", "not a JSON object"),
            (b"{\"queue\": 1, \"x\": \xff}", "not valid UTF-8 at byte 19"),
            (b"{\"queue\": 1", "ends too early"),
            (b"{\"queue\": secret}", "not valid JSON at column 11"),
            (b"{\"queue\": \"secret\"}", "a value is not u32, at column 18"),
            (b"{\"quue\": 1}", "unknown key `quue`; did you mean `queue`?"),
            (b"{\"queue\": 1} secret", "not valid JSON"),
            (b"{\"queue\": 1, \"queue\": 2}", "duplicate field `queue`"),
        ] {
            let error = json::<Shape>(line).unwrap_err();
            assert!(error.contains(says) && !error.contains("secret"), "{error}");
        }
    }
}
