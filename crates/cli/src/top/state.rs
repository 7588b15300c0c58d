//! The state of `redrive top`: the data from the store and the position of the user in it. Plain data and pure
//! functions; nothing here talks to the store, reads a clock or draws.

use super::rows::{Row, Rows};
use redrive::core::dead_letter::{Act, Status};
use redrive::core::filter::Filter;
use redrive::core::ids::{GroupId, MessageId, OperationId};
use redrive::core::query::Cursor;
use redrive::core::time::{Span, Time};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The number of letters to fetch at once.
pub(super) const LETTERS_PAGE: usize = 100;
/// The maximum number of letters in the list; users narrow the filter before that.
pub(super) const LETTERS_MAX: usize = 2_000;
/// The number of counter samples to keep.
const SAMPLES: usize = 60;
/// The period over which rates are computed.
const RATE_WINDOW_MS: u64 = 10_000;
/// A poll that takes longer than this is shown as slow.
pub(super) const SLOW: Duration = Duration::from_secs(2);

/// The page that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    /// Groups of failures.
    Groups,
    /// Dead letters.
    Letters,
    /// One dead letter with its timeline.
    Letter,
}

/// The row of a group.
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

/// Details of the group under the cursor.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct GroupFacts {
    pub(super) id: GroupId,
    /// Dead letters in each of the last hours, oldest first.
    pub(super) hours: Vec<u64>,
    /// Outcomes of redrives, and the most frequent version and worker, as text.
    pub(super) words: String,
}

impl Row for GroupRow {
    type Key = GroupId;

    fn key(&self) -> GroupId {
        self.id
    }
}

/// The row of a dead letter.
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

/// An entry of a letter's timeline.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TimelineRow {
    pub(super) at: Time,
    pub(super) what: String,
    /// Details, such as an error or a note.
    pub(super) more: String,
}

/// Everything about one dead letter.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LetterView {
    pub(super) id: MessageId,
    pub(super) version: u64,
    pub(super) status: Status,
    pub(super) fields: Vec<(&'static str, String)>,
    pub(super) timeline: Vec<TimelineRow>,
    pub(super) payload: String,
    pub(super) stack: String,
}

/// An operation in one line.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OperationRow {
    pub(super) id: OperationId,
    pub(super) act: String,
    pub(super) stage: String,
    /// Whether the operation has not ended yet.
    pub(super) active: bool,
    pub(super) members: u64,
    pub(super) done: u64,
    /// What did not succeed, as text; empty if everything did.
    pub(super) problems: String,
}

/// The counters at one moment of the store's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) at: Time,
    pub(super) dead: u64,
    pub(super) done: u64,
}

/// An overview of the whole store.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Overview {
    pub(super) open: u64,
    pub(super) waiting: u64,
    pub(super) leased: u64,
    pub(super) oldest: Option<Time>,
    pub(super) breakers_open: usize,
    pub(super) paused: usize,
    /// Problems that the store reports about itself.
    pub(super) degraded: Vec<String>,
}

/// The letters that are listed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Scope {
    /// Only letters of this group.
    pub(super) group: Option<GroupId>,
    /// Include closed letters.
    pub(super) closed: bool,
    /// The filter that the user typed; it has been parsed successfully.
    pub(super) typed: String,
}

impl Scope {
    /// The scope as a filter.
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
        // Parse the typed text alone first, so that errors point into it and it cannot close our parenthesis.
        let typed = Filter::parse(&self.typed).map_err(|error| error.to_string())?;
        if !typed.is_all() {
            terms.push(format!("({})", self.typed));
        }
        Filter::parse(&terms.join(" ")).map_err(|error| error.to_string())
    }
}

/// Where a page of letters begins.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PageStart {
    /// The cursor to request the page with.
    pub(super) cursor: Cursor,
    /// The page begins after the letter with this death number.
    pub(super) after: u64,
}

/// The data that the feed requests for the current page, besides the counters.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum DataRequest {
    /// The groups, and the details of one.
    Groups(Option<GroupId>),
    /// A page of letters.
    Letters {
        /// The letters to list.
        scope: Scope,
        /// The start of the page; `None` for the first page.
        start: Option<PageStart>,
    },
    /// One letter.
    Letter(MessageId),
}

/// The letters that have been read so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Letters {
    pub(super) rows: Rows<LetterRow>,
    /// The start of every page after the first.
    starts: Vec<PageStart>,
    /// The start of the rest that has not been read.
    rest: Option<Cursor>,
    /// Whether any page of this list has arrived yet.
    pub(super) known: bool,
}

impl Letters {
    /// Merges a page: it replaces the letters in the same range of deaths.
    pub(super) fn merge_page(
        &mut self,
        start: Option<&PageStart>,
        fresh: Vec<LetterRow>,
        next: Option<Cursor>,
    ) {
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

    /// Whether there are more letters than have been read.
    pub(super) const fn more(&self) -> bool {
        self.rest.is_some()
    }

    /// The page to request: the next one if the cursor is near the end of the list, otherwise the one under the cursor,
    /// to refresh it.
    fn start(&self) -> Option<PageStart> {
        let near_end = self.rows.cursor() + self.rows.height() >= self.rows.items().len();
        if let (true, Some(rest)) = (near_end && self.rows.items().len() < LETTERS_MAX, &self.rest) {
            let after = self.rows.items().iter().map(|row| row.death).min().unwrap_or(u64::MAX);
            return Some(PageStart { cursor: rest.clone(), after });
        }
        let death = self.rows.current().map_or(u64::MAX, |row| row.death);
        self.starts.iter().rev().find(|start| death < start.after).cloned()
    }

    /// Clears the list for another scope.
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
    /// When the current poll started; `None` if there is none.
    pub(super) polling_since: Option<Duration>,
    /// When the last answer arrived, and the store's time in it.
    pub(super) last_answer: Option<(Duration, Time)>,
    /// The error of the last poll.
    pub(super) error: Option<String>,
}

/// An act and the letters to apply it to.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Intent {
    pub(super) act: Act,
    pub(super) target: Target,
    pub(super) reason: Option<String>,
}

/// The letters of an act.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Target {
    /// These letters, at these versions.
    These(Vec<(MessageId, u64)>),
    /// All letters that match.
    Matching {
        /// The scope of the letters.
        scope: Scope,
        /// The scope as text.
        words: String,
    },
}

/// The preview of an operation, and what is needed to start it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ActPreview {
    pub(super) intent: Intent,
    pub(super) count: u64,
    /// The number of the last death that is included.
    pub(super) bound: u64,
    /// The token that binds the start to this preview.
    pub(super) token: Option<String>,
    /// Breakdown and warnings to show before the confirmation.
    pub(super) lines: Vec<String>,
}

/// What an input line is for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Purpose {
    /// The filter of the list.
    Filter,
    /// The reason of an act, which is required.
    Reason(Box<Intent>),
    /// The text for an action on a group: a note, or the reason to resolve it.
    Group(GroupId, GroupAction),
}

/// An action on a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GroupAction {
    Acknowledge,
    Resolve,
    Note,
}

/// A dialog over the page.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Dialog {
    /// The list of keys.
    Help,
    /// An input line.
    Input {
        /// What the text is for.
        purpose: Purpose,
        /// The text typed so far.
        text: String,
        /// The error in the text.
        wrong: Option<String>,
    },
    /// A yes-or-no question.
    Ask(Box<Intent>),
    /// The store is counting the letters that an act would change.
    Counting,
    /// A confirmation by typing the number of letters.
    Confirm {
        /// The operation to start.
        preview: Box<ActPreview>,
        /// The text typed so far.
        typed: String,
    },
}

/// A message to the user.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct StatusMessage {
    pub(super) text: String,
    /// Whether it is an error.
    pub(super) is_error: bool,
}

/// The whole state.
#[derive(Clone, Debug)]
pub(super) struct State {
    /// Whether keys may change anything.
    pub(super) may_act: bool,
    /// The data directory.
    pub(super) data_dir: String,
    /// The time since the start.
    pub(super) clock: Duration,
    pub(super) health: Health,
    pub(super) overview: Overview,
    samples: VecDeque<Sample>,
    pub(super) page: Page,
    pub(super) groups: Rows<GroupRow>,
    /// Details of the group that was last under the cursor.
    pub(super) facts: Option<GroupFacts>,
    pub(super) scope: Scope,
    pub(super) letters: Letters,
    /// The selected letters, with their versions at that time.
    pub(super) marked: BTreeMap<MessageId, u64>,
    /// Whether all letters that match are selected.
    pub(super) all: bool,
    /// The letter that is shown on the letter page.
    pub(super) opened: Option<MessageId>,
    pub(super) sheet: Option<LetterView>,
    /// Whether that letter no longer exists.
    pub(super) sheet_gone: bool,
    /// The number of lines scrolled out at the top.
    pub(super) scroll: usize,
    pub(super) operations: Vec<OperationRow>,
    pub(super) dialog: Option<Dialog>,
    pub(super) message: Option<StatusMessage>,
    pub(super) width: u16,
    pub(super) height: u16,
}

/// Lines that are not list rows: title, overview, location and heading above; two detail lines, message and keys below.
pub(super) const FRAME_LINES: u16 = 8;

impl State {
    /// The initial state, before the first answer.
    pub(super) fn new(data_dir: String, may_act: bool, width: u16, height: u16) -> Self {
        let mut state = Self {
            may_act,
            data_dir,
            clock: Duration::ZERO,
            health: Health::default(),
            overview: Overview::default(),
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
            message: None,
            width,
            height,
        };
        state.resize(width, height);
        state
    }

    /// Adapts to a new screen size.
    pub(super) fn resize(&mut self, width: u16, height: u16) {
        (self.width, self.height) = (width, height);
        let lines = usize::from(height.saturating_sub(FRAME_LINES).max(1));
        self.groups.resize(lines);
        self.letters.rows.resize(lines);
    }

    /// The store's current time, estimated from the last answer.
    pub(super) fn now(&self) -> Option<Time> {
        let (at, time) = self.health.last_answer?;
        let since = self.clock.saturating_sub(at).as_millis();
        Some(time.plus(Span::from_millis(u64::try_from(since).unwrap_or(u64::MAX))))
    }

    /// The data to request for the current page.
    pub(super) fn data_request(&self) -> DataRequest {
        match (self.page, self.opened) {
            (Page::Letter, Some(id)) => DataRequest::Letter(id),
            (Page::Letters, _) | (Page::Letter, None) => {
                DataRequest::Letters { scope: self.scope.clone(), start: self.letters.start() }
            }
            (Page::Groups, _) => DataRequest::Groups(self.groups.current().map(Row::key)),
        }
    }

    /// Adds a sample of the counters.
    pub(super) fn add_sample(&mut self, sample: Sample) {
        // Counters that go back belong to another store; rates across both would be wrong.
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

    /// Dead letters and done messages per ten seconds; `None` before the second sample.
    pub(super) fn rates(&self) -> Option<(u64, u64)> {
        let last = self.samples.back()?;
        let since = |sample: &&Sample| last.at.since(sample.at).as_millis() <= RATE_WINDOW_MS;
        let recent = self.samples.iter().rev().take_while(since).last()?;
        // Two samples that are further apart than the window still give a rate.
        let first = if recent.at == last.at { self.samples.iter().rev().nth(1)? } else { recent };
        let ms = last.at.since(first.at).as_millis();
        let per = |n: u64| n.saturating_mul(RATE_WINDOW_MS).checked_div(ms);
        Some((per(last.dead - first.dead)?, per(last.done - first.done)?))
    }

    /// Dead letters between consecutive samples, oldest first.
    pub(super) fn deaths(&self) -> Vec<u64> {
        self.samples.iter().zip(self.samples.iter().skip(1)).map(|(a, b)| b.dead - a.dead).collect()
    }

    /// The row of the group whose letters are listed, if it is in the list of groups.
    pub(super) fn scope_group(&self) -> Option<&GroupRow> {
        let id = self.scope.group?;
        self.groups.items().iter().find(|group| group.id == id)
    }

    /// Opens a list of letters.
    pub(super) fn open_list(&mut self, scope: Scope) {
        if self.scope != scope {
            self.letters.clear();
            self.unmark();
            self.scope = scope;
        }
        self.page = Page::Letters;
    }

    /// Clears the selection.
    pub(super) fn unmark(&mut self) {
        self.marked.clear();
        self.all = false;
    }
}
