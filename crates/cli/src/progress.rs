//! How far a long command is: a bar with rate and time left on a terminal, a plain line now and then
//! elsewhere, JSON for another program, nothing when quiet. It only reports; it never decides when to stop.

use crate::output::{Output, complain};
use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use std::io::IsTerminal as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a plain line is written.
const EVERY: Duration = Duration::from_secs(10);
/// How often a line of JSON is.
const EVERY_JSON: Duration = Duration::from_secs(1);

/// How progress is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProgressWhen {
    /// A bar on a terminal, a line every ten seconds elsewhere.
    Auto,
    /// A JSON object on stderr every second, and one at the end.
    Json,
    /// Not at all.
    None,
}

/// How it is written.
#[derive(Debug)]
enum Way {
    Bar(ProgressBar),
    Lines,
    Json,
    Silent,
}

/// How far it is, for another program.
#[derive(Serialize)]
struct Far {
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
    way: Way,
    total: Option<u64>,
    done: u64,
    began: Instant,
    told: Instant,
}

impl Progress {
    /// Begins; `total` when it is known.
    pub(crate) fn new(out: &Output, doing: &'static str, total: Option<u64>) -> Self {
        let way = match out.progress {
            ProgressWhen::Json => Way::Json,
            ProgressWhen::None => Way::Silent,
            ProgressWhen::Auto if out.quiet => Way::Silent,
            ProgressWhen::Auto if std::io::stderr().is_terminal() => Way::Bar(bar(doing, total)),
            ProgressWhen::Auto => Way::Lines,
        };
        let now = Instant::now();
        Self { doing, way, total, done: 0, began: now, told: now }
    }

    /// Says how much is done, and how much there is when that is known only now.
    pub(crate) fn at(&mut self, done: u64, total: Option<u64>) {
        self.done = done;
        self.total = total.or(self.total);
        match &self.way {
            Way::Bar(bar) => {
                if let Some(total) = self.total {
                    bar.set_length(total);
                }
                bar.set_position(done);
            }
            Way::Lines if self.told.elapsed() >= EVERY => {
                self.told = Instant::now();
                let of = self.total.map(|total| format!(" of {total}")).unwrap_or_default();
                complain(&format!("{}: {done}{of}", self.doing));
            }
            Way::Json if self.told.elapsed() >= EVERY_JSON => {
                self.told = Instant::now();
                self.tell_program();
            }
            Way::Lines | Way::Json | Way::Silent => {}
        }
    }

    fn tell_program(&self) {
        #[expect(clippy::cast_precision_loss, reason = "a rate is not exact")]
        let (done, left) = (self.done as f64, self.total.map(|total| total.saturating_sub(self.done) as f64));
        let per_second = done / self.began.elapsed().as_secs_f64().max(0.001);
        let seconds_left = left.filter(|_| per_second > 0.0).map(|left| left / per_second);
        let far = Far { doing: self.doing, done: self.done, total: self.total, per_second, seconds_left };
        if let Ok(line) = serde_json::to_string(&far) {
            complain(&line);
        }
    }

    /// Some more is done.
    pub(crate) fn add(&mut self, more: u64) {
        self.at(self.done + more, None);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        match &self.way {
            Way::Bar(bar) => bar.finish_and_clear(),
            Way::Json => self.tell_program(),
            Way::Lines | Way::Silent => {}
        }
    }
}

/// The bar or line that is shown on the terminal at the moment.
static SHOWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Takes note of what is shown, or that nothing is any more.
pub(crate) fn shows(bar: Option<&ProgressBar>) {
    *SHOWN.lock().unwrap_or_else(PoisonError::into_inner) = bar.cloned();
}

/// Writes something to stderr without leaving half of a bar behind.
pub(crate) fn beside_the_line(write: impl FnOnce()) {
    let shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match shown {
        Some(bar) => bar.suspend(write),
        None => write(),
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
        shows(line.as_ref());
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
            shows(None);
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
