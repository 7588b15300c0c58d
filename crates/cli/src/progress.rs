//! Progress of long commands: a bar with rate and remaining time on a terminal, otherwise a plain line at intervals,
//! JSON for other programs, or nothing with --quiet.

use crate::output::{Output, eprint_line};
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::io::IsTerminal as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The interval of plain lines.
const EVERY: Duration = Duration::from_secs(10);
/// The interval of JSON lines.
const EVERY_JSON: Duration = Duration::from_secs(1);

/// How to show progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProgressWhen {
    /// A bar on a terminal, otherwise a line every ten seconds
    Auto,
    /// A JSON object on stderr every second, and one at the end
    Json,
    /// No progress
    None,
}

/// How progress is written.
#[derive(Debug)]
enum Style {
    Bar(ProgressBar),
    Lines,
    Json,
    Silent,
}

/// The JSON of a progress line.
#[derive(Serialize)]
struct ProgressJson {
    doing: &'static str,
    done: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    total: Option<u64>,
    per_second: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    seconds_left: Option<f64>,
}

/// The progress of one command.
#[derive(Debug)]
pub(crate) struct Progress {
    doing: &'static str,
    style: Style,
    total: Option<u64>,
    done: u64,
    began: Instant,
    printed: Instant,
}

impl Progress {
    /// Starts showing progress; `total` is `None` if it is not known yet.
    pub(crate) fn new(out: &Output, doing: &'static str, total: Option<u64>) -> Self {
        let style = match out.progress {
            ProgressWhen::Json => Style::Json,
            ProgressWhen::None => Style::Silent,
            ProgressWhen::Auto if out.quiet => Style::Silent,
            ProgressWhen::Auto if std::io::stderr().is_terminal() => Style::Bar(bar(doing, total)),
            ProgressWhen::Auto => Style::Lines,
        };
        let now = Instant::now();
        Self { doing, style, total, done: 0, began: now, printed: now }
    }

    /// Sets how much is done, and the total if it has become known.
    pub(crate) fn at(&mut self, done: u64, total: Option<u64>) {
        self.done = done;
        self.total = total.or(self.total);
        match &self.style {
            Style::Bar(bar) => {
                if let Some(total) = self.total {
                    bar.set_length(total);
                }
                bar.set_position(done);
            }
            Style::Lines if self.printed.elapsed() >= EVERY => {
                self.printed = Instant::now();
                let of = self.total.map(|total| format!(" of {total}")).unwrap_or_default();
                eprint_line(&format!("{}: {done}{of}", self.doing));
            }
            Style::Json if self.printed.elapsed() >= EVERY_JSON => {
                self.printed = Instant::now();
                self.print_json();
            }
            Style::Lines | Style::Json | Style::Silent => {}
        }
    }

    fn print_json(&self) {
        #[expect(clippy::cast_precision_loss, reason = "a rate is not exact")]
        let (done, left) = (self.done as f64, self.total.map(|total| total.saturating_sub(self.done) as f64));
        let per_second = done / self.began.elapsed().as_secs_f64().max(0.001);
        let seconds_left = left.filter(|_| per_second > 0.0).map(|left| left / per_second);
        let json =
            ProgressJson { doing: self.doing, done: self.done, total: self.total, per_second, seconds_left };
        if let Ok(line) = serde_json::to_string(&json) {
            eprint_line(&line);
        }
    }

    /// Adds to how much is done.
    pub(crate) fn add(&mut self, more: u64) {
        self.at(self.done + more, None);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        match &self.style {
            Style::Bar(bar) => bar.finish_and_clear(),
            Style::Json => self.print_json(),
            Style::Lines | Style::Silent => {}
        }
    }
}

/// The bar or status line that is currently shown on the terminal.
static SHOWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Sets or clears the bar that is currently shown.
pub(crate) fn set_shown_bar(bar: Option<&ProgressBar>) {
    *SHOWN.lock().unwrap_or_else(PoisonError::into_inner) = bar.cloned();
}

/// Writes to stderr without garbling the bar that is currently shown.
pub(crate) fn without_garbling_the_bar(write: impl FnOnce()) {
    let shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match shown {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// A status line for something without an end. On a terminal it is updated in place; otherwise it is printed at
/// intervals if it has changed, and not at all when quiet.
#[derive(Debug)]
pub(crate) struct Status {
    line: Option<ProgressBar>,
    plain: bool,
    printed: Option<(Instant, String)>,
}

impl Status {
    /// Starts the status line.
    pub(crate) fn new(out: &Output) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let line = (terminal && !out.quiet).then(|| {
            let line = ProgressBar::no_length();
            // If the template does not parse, the line keeps its default style.
            if let Ok(bar_style) = ProgressStyle::with_template("{spinner} {msg}") {
                line.set_style(bar_style);
            }
            line
        });
        set_shown_bar(line.as_ref());
        Self { line, plain: !terminal && !out.quiet, printed: None }
    }

    /// Updates the line.
    pub(crate) fn show(&mut self, text: &str) {
        if let Some(line) = &self.line {
            line.set_message(text.to_owned());
            line.tick();
        } else if self.plain
            && self.printed.as_ref().is_none_or(|(at, printed)| at.elapsed() >= EVERY && printed != text)
        {
            // Do not print the first line, when nothing has happened yet.
            if self.printed.is_some() {
                eprint_line(text);
            }
            self.printed = Some((Instant::now(), text.to_owned()));
        }
    }

    /// Removes the line.
    pub(crate) fn end(&mut self) {
        if let Some(line) = self.line.take() {
            set_shown_bar(None);
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
    // If the template does not parse, the bar keeps its default style.
    if let Ok(bar_style) = ProgressStyle::with_template(template) {
        bar.set_style(bar_style);
    }
    bar.set_message(doing);
    bar
}
