//! Reads NDJSON in bulk: a thread reads lines, the command sends them in bounded batches, and errors name the number of
//! the line. This module does not know what a line means.

use crate::connect::App;
use crate::exit_code::{CliError, ExitCode};
use crate::output::eprint_line;
use crate::progress::Progress;
use redrive::core::limits;
use std::io::{self, BufRead as _, BufReader, Read};
use std::path::Path;
use tokio::sync::mpsc::{self, Receiver, Sender};

/// The number of lines to send in one commit: few enough for low latency, enough to share an fsync.
const BATCH_LINES: usize = 500;
/// The number of bytes after which a batch is sent before it is full.
const BATCH_BYTES: usize = limits::BATCH_BYTES_MAX / 4;
/// A line may be as long as the largest payload with every byte escaped, plus the other fields.
const LINE_BYTES_MAX: usize = 6 * limits::PAYLOAD_BYTES_MAX + 1024 * 1024;

/// A line and its number, starting at 1.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NumberedLine {
    number: u64,
    bytes: Vec<u8>,
}

/// Batches of lines from the reader thread.
pub(crate) type Lines = Receiver<io::Result<Vec<NumberedLine>>>;

/// Opens a file, or stdin for `-`.
pub(crate) fn open(path: &Path) -> Result<Lines, CliError> {
    if path == Path::new("-") {
        return Ok(read(io::stdin()));
    }
    let file = std::fs::File::open(path)
        .map_err(|error| CliError::io(format_args!("open {}", path.display()), &error))?;
    Ok(read(file))
}

/// Reads lines on a separate thread, because reading may block.
pub(crate) fn read(source: impl Read + Send + 'static) -> Lines {
    let (sender, lines) = mpsc::channel(2);
    std::thread::spawn(move || {
        if let Err(error) = read_into(BufReader::with_capacity(1 << 20, source), &sender) {
            // A failed send means that the command has ended and needs no error.
            let _ = sender.blocking_send(Err(error));
        }
    });
    lines
}

fn read_into(mut source: BufReader<impl Read>, to: &Sender<io::Result<Vec<NumberedLine>>>) -> io::Result<()> {
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
            batch.push(NumberedLine { number, bytes });
        }
        // Send the lines of a slow writer at once instead of waiting for a full batch.
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

/// The number of lines processed so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LineCounts {
    /// Lines that were accepted.
    pub taken: u64,
    /// Lines that were invalid or refused.
    pub failed: u64,
    /// The number of the last line that was processed.
    pub last: u64,
}

impl LineCounts {
    /// The exit code of the command.
    pub(crate) const fn code(&self) -> ExitCode {
        if self.failed == 0 { ExitCode::Ok } else { ExitCode::Partial }
    }

    fn resume_hint(&self) -> String {
        format!("{} lines were accepted; continue after line {}", self.taken, self.last)
    }
}

/// The result of one item of a batch.
pub(crate) type LineResult = Result<(), CliError>;

/// Processes all lines: `parse` turns a line into an item, `send` sends a batch of items in one commit. Stops at the
/// first line that fails and keeps the lines before it, unless `keep_going` is set.
pub(crate) async fn process<T>(
    app: &App,
    mut lines: Lines,
    keep_going: bool,
    parse: impl Fn(&[u8]) -> Result<T, CliError>,
    mut send: impl AsyncFnMut(Vec<T>) -> Result<Vec<LineResult>, CliError>,
) -> Result<LineCounts, CliError> {
    let mut progress = Progress::new(&app.out, "reading", None);
    let mut counts = LineCounts::default();
    while let Some(batch) = lines.recv().await {
        let batch =
            batch.map_err(|error| CliError::io("read the input", &error).hint(counts.resume_hint()))?;
        let (mut items, mut numbers, mut failure) = (Vec::new(), Vec::new(), None);
        for NumberedLine { number, bytes } in batch {
            match parse(&bytes) {
                Ok(item) => {
                    items.push(item);
                    numbers.push(number);
                }
                Err(error) if keep_going => fail(&mut counts, number, &error),
                Err(error) => {
                    failure = Some((number, error));
                    break;
                }
            }
        }
        let results = send(items).await.map_err(|error| error.hint(counts.resume_hint()))?;
        for (number, result) in numbers.into_iter().zip(results) {
            counts.last = number;
            match result {
                Ok(()) => counts.taken += 1,
                Err(error) if keep_going => fail(&mut counts, number, &error),
                Err(error) => failure = failure.or(Some((number, error))),
            }
        }
        progress.at(counts.taken, None);
        app.set_interrupt_hint(counts.resume_hint());
        if let Some((number, error)) = failure {
            let what = format!("line {number}: {}", error.what);
            return Err(CliError { what, ..error.hint(counts.resume_hint()) });
        }
    }
    Ok(counts)
}

fn fail(counts: &mut LineCounts, number: u64, error: &CliError) {
    counts.failed += 1;
    eprint_line(&format!("line {number}: {}", error.what));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batches(text: &'static [u8]) -> Vec<NumberedLine> {
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
}
