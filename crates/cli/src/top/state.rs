//! What `redrive top` knows and where the person is in it. Plain data and pure functions on it: nothing here asks
//! the store, reads a clock or draws.

use super::rows::{Row, Rows};
use redrive::core::dead_letter::{Act, Status};
use redrive::core::filter::Filter;
use redrive::core::ids::{GroupId, MessageId, OperationId};
use redrive::core::query::Cursor;
use redrive::core::time::{Span, Time};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Letters asked for at once.
pub(super) const LETTERS_PAGE: usize = 100;
/// Letters kept in the list at most; a person narrows the filter before that.
pub(super) const LETTERS_MAX: usize = 2_000;
/// Samples of the counters that are kept.
const SAMPLES: usize = 60;
/// Rates are over so many milliseconds.
const RATE_WINDOW_MS: u64 = 10_000;
/// A question that takes longer than this is said to be slow.
pub(super) const SLOW: Duration = Duration::from_secs(2);

/// Which page is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    /// Groups of failures.
    Groups,
    /// Dead letters.
    Letters,
    /// One dead letter, with its timeline.
    Letter,
}

/// A group, as far as a row shows it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct GroupRow {
    pub(super) id: GroupId,
    pub(super) open: u64,
    pub(super) total: u64,
    pub(super) status: String,
    pub(super) owner: String,
    pub(super) first_seen: Time,
    pub(super) last_seen: Time,
    pub(super) queues: String,
    pub(super) error: String,
}

/// More about the group under the cursor.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct GroupFacts {
    pub(super) id: GroupId,
    /// Deaths in each of the last hours, oldest first.
    pub(super) hours: Vec<u64>,
    /// What became of redrives, and who failed most.
    pub(super) words: String,
}

impl Row for GroupRow {
    type Key = GroupId;

    fn key(&self) -> GroupId {
        self.id
    }
}

/// A dead letter, as far as a row shows it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LetterRow {
    pub(super) id: MessageId,
    pub(super) death: u64,
    pub(super) version: u64,
    pub(super) queue: String,
    pub(super) dlq: String,
    pub(super) status: Status,
    pub(super) reason: String,
    pub(super) attempts: u32,
    pub(super) redrives: u32,
    pub(super) dead_at: Time,
    pub(super) error: String,
}

impl Row for LetterRow {
    type Key = MessageId;

    fn key(&self) -> MessageId {
        self.id
    }
}

/// One event in the life of a letter.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Moment {
    pub(super) at: Time,
    pub(super) what: String,
    /// More about it: an error, a note.
    pub(super) more: String,
}

/// One dead letter, whole.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sheet {
    pub(super) id: MessageId,
    pub(super) version: u64,
    pub(super) status: Status,
    pub(super) fields: Vec<(&'static str, String)>,
    pub(super) timeline: Vec<Moment>,
    pub(super) payload: String,
    pub(super) stack: String,
}

/// An operation, as far as a line shows it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OperationRow {
    pub(super) id: OperationId,
    pub(super) act: String,
    pub(super) stage: String,
    /// Whether it is still to be done.
    pub(super) active: bool,
    pub(super) members: u64,
    pub(super) done: u64,
    /// What did not go as wanted, in words; empty is good.
    pub(super) but: String,
}

/// The counters at one moment of the store's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) at: Time,
    pub(super) dead: u64,
    pub(super) done: u64,
}

/// How the store is doing as a whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Pulse {
    pub(super) open: u64,
    pub(super) waiting: u64,
    pub(super) leased: u64,
    pub(super) oldest: Option<Time>,
    pub(super) breakers_open: usize,
    pub(super) paused: usize,
    /// What is wrong with the store at the moment, in its words.
    pub(super) degraded: Vec<String>,
}

/// Which letters are listed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Scope {
    /// Only of this group.
    pub(super) group: Option<GroupId>,
    /// Closed ones too.
    pub(super) closed: bool,
    /// What was typed; it has been read as a filter.
    pub(super) typed: String,
}

impl Scope {
    /// The filter that says the same.
    pub(super) fn filter(&self) -> Result<Filter, String> {
        let mut terms = Vec::new();
        if let Some(group) = self.group {
            terms.push(format!("group:{group}"));
        }
        if !self.closed {
            let open: Vec<&str> =
                Status::ALL.iter().filter(|status| !status.is_closed()).map(|status| status.name()).collect();
            terms.push(format!("status:{}", open.join(",")));
        }
        // Read alone first, so that a mistake is shown where the person made it, and cannot close a parenthesis.
        let typed = Filter::parse(&self.typed).map_err(|error| error.to_string())?;
        if !typed.is_all() {
            terms.push(format!("({})", self.typed));
        }
        Filter::parse(&terms.join(" ")).map_err(|error| error.to_string())
    }
}

/// Where a page of letters that has been read begins.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PageStart {
    /// How to ask for it.
    pub(super) cursor: Cursor,
    /// It begins after this death.
    pub(super) after: u64,
}

/// What the feed is to ask for beside the counters.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Want {
    /// The groups, and more about one.
    Groups(Option<GroupId>),
    /// A page of letters.
    Letters {
        /// Of these.
        scope: Scope,
        /// Beginning here.
        start: Option<PageStart>,
    },
    /// One letter.
    Letter(MessageId),
}

/// Letters as far as they have been read.
#[derive(Clone, Debug, Default)]
pub(super) struct Letters {
    pub(super) rows: Rows<LetterRow>,
    /// Where every page after the first begins.
    starts: Vec<PageStart>,
    /// Where the rest begins.
    rest: Option<Cursor>,
    /// Whether anything was heard about this list yet.
    pub(super) known: bool,
}

impl Letters {
    /// Takes a page: it replaces what the list has of the same part of the order of deaths.
    pub(super) fn take(&mut self, start: Option<&PageStart>, fresh: Vec<LetterRow>, next: Option<Cursor>) {
        self.known = true;
        let ceiling = start.map_or(u64::MAX, |start| start.after);
        let floor = match (&next, fresh.last()) {
            (None, _) => 0,
            (Some(_), Some(last)) => last.death,
            (Some(_), None) => ceiling,
        };
        let tail = self.rows.items().iter().any(|row| row.death < floor);
        if !tail {
            if let Some(start) = start
                && self.rest.as_ref() == Some(&start.cursor)
            {
                self.starts.push(start.clone());
            }
            self.rest = next;
        }
        let gone = self.rows.gone().then(|| self.rows.current().map(Row::key)).flatten();
        let stays = |row: &&LetterRow| {
            (row.death >= ceiling || row.death < floor)
                && gone != Some(row.id)
                && !fresh.iter().any(|other| other.id == row.id)
        };
        let mut all: Vec<LetterRow> = self.rows.items().iter().filter(stays).cloned().collect();
        all.extend(fresh);
        all.sort_by_key(|row| std::cmp::Reverse(row.death));
        all.truncate(LETTERS_MAX);
        self.rows.replace(all);
    }

    /// Whether there are more than were read.
    pub(super) const fn more(&self) -> bool {
        self.rest.is_some()
    }

    /// Which page to ask for: the next one when the cursor comes near the end of what was read, else the one the
    /// cursor is in, to keep it fresh.
    fn start(&self) -> Option<PageStart> {
        let near_end = self.rows.cursor() + self.rows.height() >= self.rows.items().len();
        if let (true, Some(rest)) = (near_end && self.rows.items().len() < LETTERS_MAX, &self.rest) {
            let after = self.rows.items().iter().map(|row| row.death).min().unwrap_or(u64::MAX);
            return Some(PageStart { cursor: rest.clone(), after });
        }
        let death = self.rows.current().map_or(u64::MAX, |row| row.death);
        self.starts.iter().rev().find(|start| death < start.after).cloned()
    }

    /// Another list begins.
    pub(super) fn clear(&mut self) {
        self.rows.clear();
        self.starts.clear();
        self.rest = None;
        self.known = false;
    }
}

/// Whether the store answers.
#[derive(Clone, Debug, Default)]
pub(super) struct Health {
    /// Since when a question is open.
    pub(super) asking: Option<Duration>,
    /// When an answer came last, and the store's time in it.
    pub(super) heard: Option<(Duration, Time)>,
    /// Why the last question was not answered.
    pub(super) trouble: Option<String>,
}

/// What is to be done to which letters.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Intent {
    pub(super) act: Act,
    pub(super) target: Target,
    pub(super) reason: Option<String>,
}

/// Which letters.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Target {
    /// These, at these versions.
    These(Vec<(MessageId, u64)>),
    /// All that match.
    Matching {
        /// What.
        scope: Scope,
        /// In words.
        words: String,
    },
}

/// What an operation would do, and what it needs to be started.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Previewed {
    pub(super) intent: Intent,
    pub(super) count: u64,
    /// The last death that belongs to it.
    pub(super) bound: u64,
    /// What the store gave to bind the start to this preview.
    pub(super) token: Option<String>,
    /// What a person should know before: breakdown, warnings.
    pub(super) lines: Vec<String>,
}

/// What a line of text is asked for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Purpose {
    /// The filter.
    Filter,
    /// The reason of an act, which must be given.
    Reason(Box<Intent>),
    /// What an operator says about a group: a note, or why it is resolved.
    Group(GroupId, GroupWord),
}

/// What can be said about a group here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GroupWord {
    Acknowledge,
    Resolve,
    Note,
}

/// What lies over the page.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Dialog {
    /// The keys.
    Help,
    /// A line of text.
    Input {
        /// For what.
        purpose: Purpose,
        /// As far as it is typed.
        text: String,
        /// What is wrong with it.
        wrong: Option<String>,
    },
    /// Yes or no.
    Ask(Box<Intent>),
    /// The store is counting what an act would touch.
    Counting,
    /// The number of letters has to be typed.
    Confirm {
        /// What would be done.
        preview: Box<Previewed>,
        /// As far as it is typed.
        typed: String,
    },
}

/// Something said to the person.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Said {
    pub(super) text: String,
    /// It did not work.
    pub(super) bad: bool,
}

/// Everything.
#[derive(Clone, Debug)]
pub(super) struct State {
    /// Whether anything may be changed.
    pub(super) may_act: bool,
    /// Where the data is.
    pub(super) place: String,
    /// Time since the start.
    pub(super) clock: Duration,
    pub(super) health: Health,
    pub(super) pulse: Pulse,
    samples: VecDeque<Sample>,
    pub(super) page: Page,
    pub(super) groups: Rows<GroupRow>,
    /// What is known about the group that was under the cursor last.
    pub(super) facts: Option<GroupFacts>,
    pub(super) scope: Scope,
    pub(super) letters: Letters,
    /// Letters that were selected, with the version they had then.
    pub(super) marked: BTreeMap<MessageId, u64>,
    /// All that match are selected.
    pub(super) all: bool,
    /// Which letter is shown, and as far as it is known.
    pub(super) opened: Option<MessageId>,
    pub(super) sheet: Option<Sheet>,
    /// The shown letter is not there any more.
    pub(super) sheet_gone: bool,
    /// Lines of the sheet above the screen.
    pub(super) scroll: usize,
    pub(super) operations: Vec<OperationRow>,
    pub(super) dialog: Option<Dialog>,
    pub(super) said: Option<Said>,
    pub(super) width: u16,
    pub(super) height: u16,
}

/// Lines that are not rows of a list: title, pulse, place and heading above; two of detail, message and keys below.
pub(super) const FRAME_LINES: u16 = 8;

impl State {
    /// Before anything is known.
    pub(super) fn new(place: String, may_act: bool, width: u16, height: u16) -> Self {
        let mut state = Self {
            may_act,
            place,
            clock: Duration::ZERO,
            health: Health::default(),
            pulse: Pulse::default(),
            samples: VecDeque::new(),
            page: Page::Groups,
            groups: Rows::default(),
            facts: None,
            scope: Scope::default(),
            letters: Letters::default(),
            marked: BTreeMap::new(),
            all: false,
            opened: None,
            sheet: None,
            sheet_gone: false,
            scroll: 0,
            operations: Vec::new(),
            dialog: None,
            said: None,
            width,
            height,
        };
        state.resize(width, height);
        state
    }

    /// The screen has another size.
    pub(super) fn resize(&mut self, width: u16, height: u16) {
        (self.width, self.height) = (width, height);
        let lines = usize::from(height.saturating_sub(FRAME_LINES).max(1));
        self.groups.resize(lines);
        self.letters.rows.resize(lines);
    }

    /// The store's time now, as near as the last answer tells.
    pub(super) fn now(&self) -> Option<Time> {
        let (at, time) = self.health.heard?;
        let since = self.clock.saturating_sub(at).as_millis();
        Some(time.plus(Span::from_millis(u64::try_from(since).unwrap_or(u64::MAX))))
    }

    /// What the feed is to ask for.
    pub(super) fn want(&self) -> Want {
        match (self.page, self.opened) {
            (Page::Letter, Some(id)) => Want::Letter(id),
            (Page::Letters, _) | (Page::Letter, None) => {
                Want::Letters { scope: self.scope.clone(), start: self.letters.start() }
            }
            (Page::Groups, _) => Want::Groups(self.groups.current().map(Row::key)),
        }
    }

    /// Takes the counters of one moment.
    pub(super) fn sampled(&mut self, sample: Sample) {
        // A counter that went back is another store's; rates over both would be nonsense.
        if self.samples.back().is_some_and(|last| sample.dead < last.dead || sample.done < last.done) {
            self.samples.clear();
        }
        if self.samples.back().is_none_or(|last| last.at < sample.at) {
            self.samples.push_back(sample);
        }
        while self.samples.len() > SAMPLES {
            self.samples.pop_front();
        }
    }

    /// Deaths and finished messages in ten seconds, as far as it has been watched; nothing before the second sample.
    pub(super) fn rates(&self) -> Option<(u64, u64)> {
        let last = self.samples.back()?;
        let since = |sample: &&Sample| last.at.since(sample.at).as_millis() <= RATE_WINDOW_MS;
        let recent = self.samples.iter().rev().take_while(since).last()?;
        // Two samples further apart than the window still make a rate.
        let first = if recent.at == last.at { self.samples.iter().rev().nth(1)? } else { recent };
        let ms = last.at.since(first.at).as_millis();
        let per = |n: u64| n.saturating_mul(RATE_WINDOW_MS).checked_div(ms);
        Some((per(last.dead - first.dead)?, per(last.done - first.done)?))
    }

    /// Deaths between one sample and the next, oldest first.
    pub(super) fn deaths(&self) -> Vec<u64> {
        self.samples.iter().zip(self.samples.iter().skip(1)).map(|(a, b)| b.dead - a.dead).collect()
    }

    /// The group the letters are of, as far as it is listed.
    pub(super) fn scope_group(&self) -> Option<&GroupRow> {
        let id = self.scope.group?;
        self.groups.items().iter().find(|group| group.id == id)
    }

    /// Opens a list of letters.
    pub(super) fn list(&mut self, scope: Scope) {
        if self.scope != scope {
            self.letters.clear();
            self.unmark();
            self.scope = scope;
        }
        self.page = Page::Letters;
    }

    /// Nothing is selected any more.
    pub(super) fn unmark(&mut self) {
        self.marked.clear();
        self.all = false;
    }
}
