//! Captures the output of a child process within bounds: the beginning and the end are kept, the middle is only
//! counted. Memory never grows beyond the configured limit, whatever the child prints.

use redrive_core::traceback::{Traceback, last_traceback};
use std::collections::VecDeque;

/// How much of a stream is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputLimit {
    /// The number of bytes kept from the beginning.
    pub head: usize,
    /// The number of bytes kept from the end.
    pub tail: usize,
}

impl Default for OutputLimit {
    /// Keeps enough for a person to read: 16 KiB from the beginning and 48 KiB from the end.
    fn default() -> Self {
        Self { head: 16 * 1024, tail: 48 * 1024 }
    }
}

/// The captured part of an output stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapturedOutput {
    keep: OutputLimit,
    head: Vec<u8>,
    tail: VecDeque<u8>,
    total: u64,
}

impl CapturedOutput {
    /// Creates an empty capture.
    #[must_use]
    pub fn new(keep: OutputLimit) -> Self {
        Self { keep, ..Self::default() }
    }

    /// Adds output.
    pub fn push(&mut self, bytes: &[u8]) {
        self.total = self.total.saturating_add(u64::try_from(bytes.len()).unwrap_or(u64::MAX));
        let room = self.keep.head.saturating_sub(self.head.len()).min(bytes.len());
        let (first, rest) = bytes.split_at_checked(room).unwrap_or((bytes, &[]));
        self.head.extend_from_slice(first);
        let last = rest.len().saturating_sub(self.keep.tail);
        let rest = rest.get(last..).unwrap_or_default();
        let over = (self.tail.len() + rest.len()).saturating_sub(self.keep.tail);
        self.tail.drain(..over.min(self.tail.len()));
        self.tail.extend(rest);
    }

    /// The number of bytes printed in total.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The number of bytes printed that were not kept.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        let kept = self.head.len() + self.tail.len();
        self.total.saturating_sub(u64::try_from(kept).unwrap_or(u64::MAX))
    }

    /// The complete output, or `None` if something was left out.
    #[must_use]
    pub fn whole(&self) -> Option<Vec<u8>> {
        (self.left_out() == 0).then(|| self.kept())
    }

    /// The bytes that were kept, without a mark where something was left out.
    #[must_use]
    pub fn kept(&self) -> Vec<u8> {
        self.head.iter().chain(&self.tail).copied().collect()
    }

    /// The output as text: invalid UTF-8 is replaced, and a note marks where something was left out.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { head, tail, .. } = self;
        match self.left_out() {
            0 => String::from_utf8_lossy(&self.kept()).into_owned(),
            left_out => {
                let tail: Vec<u8> = tail.iter().copied().collect();
                let (head, tail) = (String::from_utf8_lossy(head), String::from_utf8_lossy(&tail));
                format!("{head}\n… [{left_out} bytes left out] …\n{tail}")
            }
        }
    }

    /// The last traceback that was printed, if there is one.
    #[must_use]
    pub fn traceback(&self) -> Option<Traceback> {
        last_traceback(&self.text())
    }

    /// The last lines that are not empty: at most this number of lines and this number of bytes.
    #[must_use]
    pub fn last_lines(&self, lines: usize, bytes: usize) -> String {
        let text = self.text();
        let mut kept: Vec<&str> =
            text.lines().rev().map(str::trim_end).filter(|line| !line.is_empty()).take(lines).collect();
        kept.reverse();
        let joined = kept.join("\n");
        let mut from = joined.len().saturating_sub(bytes);
        while !joined.is_char_boundary(from) {
            from += 1;
        }
        joined.get(from..).unwrap_or_default().to_owned()
    }
}

/// Splits a stream into lines. A line that is too long is cut, and the rest of it dropped.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    line: Vec<u8>,
    too_long: bool,
}

/// The maximum length of a line for a line callback. Longer lines are data, not something to read.
const LINE_BYTES_MAX: usize = 8 * 1024;

impl Lines {
    /// Adds output, and calls `each` with every line that is complete.
    pub(crate) fn push(&mut self, bytes: &[u8], mut each: impl FnMut(&str)) {
        for piece in bytes.split_inclusive(|b| *b == b'\n') {
            let (text, ended) = match piece.strip_suffix(b"\n") {
                Some(text) => (text, true),
                None => (piece, false),
            };
            let room = LINE_BYTES_MAX.saturating_sub(self.line.len());
            self.too_long |= text.len() > room;
            self.line.extend(text.iter().take(room));
            if ended {
                self.end(&mut each);
            }
        }
    }

    /// Calls `each` with the last line if it has no line end.
    pub(crate) fn finish(&mut self, mut each: impl FnMut(&str)) {
        if !self.line.is_empty() {
            self.end(&mut each);
        }
    }

    fn end(&mut self, each: &mut impl FnMut(&str)) {
        let text = String::from_utf8_lossy(self.line.strip_suffix(b"\r").unwrap_or(&self.line));
        if self.too_long {
            each(&format!("{text}…"))
        } else {
            each(&text)
        }
        self.line.clear();
        self.too_long = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_and_the_end_are_kept_whatever_the_size_of_the_pieces() {
        let all: Vec<u8> = (0..=255u8).cycle().take(1_000).collect();
        for piece in [1, 3, 7, 10, 13, 64, 999, 1_000] {
            let mut captured = CapturedOutput::new(OutputLimit { head: 10, tail: 13 });
            all.chunks(piece).for_each(|bytes| captured.push(bytes));
            let expected: Vec<u8> = all[..10].iter().chain(&all[987..]).copied().collect();
            assert_eq!(captured.kept(), expected, "in pieces of {piece}");
            assert_eq!((captured.total(), captured.left_out(), captured.whole()), (1_000, 977, None));
        }
    }

    #[test]
    fn output_that_fits_is_kept_whole() {
        let mut captured = CapturedOutput::new(OutputLimit { head: 4, tail: 4 });
        captured.push(b"12345");
        captured.push(b"678");
        assert_eq!(captured.whole().as_deref(), Some(&b"12345678"[..]));
        captured.push(b"9");
        assert_eq!(captured.whole(), None);
        assert_eq!(captured.text(), "1234\n… [1 bytes left out] …\n6789");
    }

    #[test]
    fn the_last_lines_skip_empty_ones() {
        let mut captured = CapturedOutput::new(OutputLimit::default());
        captured.push("first\nsecond é\n\n  \n".as_bytes());
        assert_eq!(captured.last_lines(1, 100), "second é");
        assert_eq!(captured.last_lines(5, 100), "first\nsecond é");
        assert_eq!(captured.last_lines(5, 1), "", "never half a character");
        assert_eq!(CapturedOutput::default().last_lines(3, 100), "");
    }

    #[test]
    fn lines_are_found_across_pieces_and_long_ones_are_cut() {
        let mut seen = Vec::new();
        let mut lines = Lines::default();
        let long = "x".repeat(LINE_BYTES_MAX + 5);
        for piece in ["a\nb", "c\r\n\n", &long, "\nend"] {
            lines.push(piece.as_bytes(), |line| seen.push(line.to_owned()));
        }
        lines.finish(|line| seen.push(line.to_owned()));
        let cut = format!("{}…", "x".repeat(LINE_BYTES_MAX));
        assert_eq!(seen, ["a", "bc", "", &cut, "end"]);
    }
}
