//! How far a long command is: a bar with rate and time left on a terminal, a plain line now and then
//! elsewhere, nothing when quiet. It only reports; it never decides when to stop.

use crate::output::{Output, complain};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

/// How often a plain line is written.
const EVERY: Duration = Duration::from_secs(10);

/// The progress of one command.
#[derive(Debug)]
pub(crate) struct Progress {
    doing: &'static str,
    bar: Option<ProgressBar>,
    plain: bool,
    total: Option<u64>,
    done: u64,
    told: Instant,
}

impl Progress {
    /// Begins; `total` when it is known.
    pub(crate) fn new(out: &Output, doing: &'static str, total: Option<u64>) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let bar = (terminal && !out.quiet).then(|| bar(doing, total));
        Self { doing, bar, plain: !terminal && !out.quiet, total, done: 0, told: Instant::now() }
    }

    /// Says how much is done, and how much there is when that is known only now.
    pub(crate) fn at(&mut self, done: u64, total: Option<u64>) {
        self.done = done;
        self.total = total.or(self.total);
        if let Some(bar) = &self.bar {
            if let Some(total) = self.total {
                bar.set_length(total);
            }
            bar.set_position(done);
        } else if self.plain && self.told.elapsed() >= EVERY {
            self.told = Instant::now();
            let of = self.total.map(|total| format!(" of {total}")).unwrap_or_default();
            complain(&format!("{}: {done}{of}", self.doing));
        }
    }

    /// Some more is done.
    pub(crate) fn add(&mut self, more: u64) {
        self.at(self.done + more, None);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// One line that says how something without an end is going: written anew in place on a terminal, now and then
/// and only when it has changed elsewhere, not at all when quiet.
#[derive(Debug)]
pub(crate) struct Status {
    line: Option<ProgressBar>,
    plain: bool,
    told: Option<(Instant, String)>,
}

impl Status {
    /// Begins.
    pub(crate) fn new(out: &Output) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let line = (terminal && !out.quiet).then(|| {
            let line = ProgressBar::no_length();
            // A template that does not parse would only cost the looks.
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
                line.set_style(style);
            }
            line
        });
        Self { line, plain: !terminal && !out.quiet, told: None }
    }

    /// Says how it is going now.
    pub(crate) fn show(&mut self, text: &str) {
        if let Some(line) = &self.line {
            line.set_message(text.to_owned());
            line.tick();
        } else if self.plain
            && self.told.as_ref().is_none_or(|(at, told)| at.elapsed() >= EVERY && told != text)
        {
            // The first is only remembered: that nothing has happened yet is no news.
            if self.told.is_some() {
                complain(text);
            }
            self.told = Some((Instant::now(), text.to_owned()));
        }
    }

    /// Takes the line away.
    pub(crate) fn end(&mut self) {
        if let Some(line) = self.line.take() {
            line.finish_and_clear();
        }
    }
}

fn bar(doing: &'static str, total: Option<u64>) -> ProgressBar {
    let (bar, template) = match total {
        Some(total) => {
            (ProgressBar::new(total), "{msg} [{bar:30}] {human_pos}/{human_len} {per_sec}, {eta} left")
        }
        None => (ProgressBar::no_length(), "{msg} {human_pos} {per_sec}"),
    };
    // A template that does not parse would only cost the looks.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_message(doing);
    bar
}
