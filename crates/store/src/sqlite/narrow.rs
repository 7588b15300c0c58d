//! Which letters a filter can be asked for in SQL: the condition on a row, and the index that finds candidates.
//! Where the condition is not exact this only narrows, and the filter's own evaluator decides.

use super::reads::SqlTables;
use super::{rows, text};
use crate::engine::tables::{Ask, Kept};
use redrive_core::dead_letter::Status;
use redrive_core::filter::sql::{Columns, Param, narrow};
use redrive_core::filter::{Anchor, Field};
use redrive_core::ids::LeafId;
use rusqlite::types::Value;

/// The columns of `letters` that hold exactly what a field means.
struct LetterColumns;

/// A priority by its name. Levels beyond the last are the last, as everywhere.
const PRIORITY: &str = "(CASE letters.priority WHEN 0 THEN 'critical' WHEN 1 THEN 'high' WHEN 2 THEN 'normal' \
     WHEN 3 THEN 'low' ELSE 'background' END)";
/// The group that a leaf belongs to now; a leaf that nobody knows is its own.
const GROUP: &str = "coalesce((SELECT group_id FROM leaves WHERE leaves.id = letters.leaf), letters.leaf)";
const ENQUEUED: &str = "(SELECT enqueued_at FROM bodies WHERE bodies.seq = letters.seq)";

/// A number of the message: while it is being retried, the live row's.
macro_rules! present {
    ($column:literal) => {
        concat!(
            "(CASE letters.status WHEN 'retrying' THEN coalesce((SELECT m.",
            $column,
            " FROM messages m WHERE m.id = letters.id), letters.",
            $column,
            ") ELSE letters.",
            $column,
            " END)"
        )
    };
}

impl Columns for LetterColumns {
    fn column(&self, field: &Field) -> Option<&str> {
        match field {
            Field::Id => Some("letters.id"),
            Field::Queue => Some("letters.queue"),
            Field::Dlq => Some("letters.dlq"),
            Field::Kind => Some("letters.kind"),
            Field::Status => Some("letters.status"),
            Field::Reason => Some("letters.reason"),
            Field::Route => Some("letters.route"),
            Field::Category => Some("letters.category"),
            Field::Severity => Some("letters.severity"),
            Field::Redrives => Some("letters.redrives"),
            Field::Owner => Some("letters.owner"),
            Field::ReviewRequired => Some("CASE letters.status WHEN 'review' THEN 'yes' ELSE 'no' END"),
            Field::Held => Some("CASE letters.held WHEN 0 THEN 'no' ELSE 'yes' END"),
            Field::Died | Field::Age => Some("letters.dead_at"),
            Field::Failed => Some("letters.last_failed_at"),
            Field::Key => Some("letters.key"),
            Field::OrderingKey => Some("letters.ordering_key"),
            Field::Signature => Some("letters.leaf"),
            Field::Group => Some(GROUP),
            Field::Priority => Some(PRIORITY),
            Field::Attempts => Some(present!("attempts")),
            Field::Deliveries => Some(present!("deliveries")),
            Field::Generation => Some(present!("generation")),
            Field::Failures => Some(present!("failed")),
            Field::Enqueued => Some(ENQUEUED),
            // The state of a retried message and a snooze are by the clock, and the rest lies in files, bodies and
            // failures: the evaluator looks at those.
            Field::State
            | Field::Snoozed
            | Field::Edited
            | Field::FirstFailed
            | Field::Closed
            | Field::ClosedBy
            | Field::Resolution
            | Field::Recoverability
            | Field::Eligible
            | Field::Alert
            | Field::Erased
            | Field::Operation
            | Field::Step
            | Field::Worker
            | Field::Host
            | Field::Version
            | Field::Tag
            | Field::Trace
            | Field::Type
            | Field::Code
            | Field::Error
            | Field::Header(_)
            | Field::PayloadText
            | Field::Payload(_)
            | Field::Context(_) => None,
        }
    }
}

/// A condition and what to bind to it.
#[derive(Clone, Debug)]
pub(super) struct Condition {
    pub(super) sql: String,
    pub(super) params: Vec<Value>,
}

impl Condition {
    fn new(sql: &str, params: Vec<Value>) -> Self {
        Self { sql: sql.to_owned(), params }
    }
}

/// Letters in the order of deaths, found by an index: all that meet a condition on its first columns.
#[derive(Clone, Debug)]
pub(super) struct Source {
    /// What is read; `letters` is in it.
    pub(super) from: &'static str,
    /// The column that holds the death.
    pub(super) death: &'static str,
    pub(super) condition: Condition,
    /// Deaths asked for at once, where the time to find one is not bounded by how many are found.
    pub(super) window: Option<u64>,
}

impl Source {
    fn letters(sql: &str, params: Vec<Value>) -> Self {
        Self { from: "letters", death: "letters.death", condition: Condition::new(sql, params), window: None }
    }

    /// Every letter.
    fn rows() -> Self {
        Self::letters("1", Vec::new())
    }
}

/// A stretch of deaths and where its letters are found: sources that together have every match.
#[derive(Clone, Debug)]
pub(super) struct Stretch {
    pub(super) after: u64,
    pub(super) up_to: u64,
    pub(super) sources: Vec<Source>,
}

/// How the letters of one question are found: stretches in the order asked for, and the condition that a candidate
/// must meet. An exact plan has one stretch, and its sources have no letter in common.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) stretches: Vec<Stretch>,
    pub(super) condition: Condition,
    pub(super) exact: bool,
}

impl Plan {
    /// Where letters are found, all stretches together.
    pub(super) fn sources(&self) -> impl Iterator<Item = &Source> {
        self.stretches.iter().flat_map(|stretch| &stretch.sources)
    }
}

/// What has outlived its retention is left out too. The file of the letter has to agree: a damaged column must not hide
/// a letter, and who reads the row finds the damage.
const RETAINED: &str = "(letters.expires_at IS NULL OR letters.expires_at > ? OR letters.status = 'retrying' OR \
     CASE WHEN json_valid(letters.file) THEN CAST(strftime('%s', json_extract(letters.file, '$.expires_at')) AS INTEGER) \
     IS NOT letters.expires_at / 1000 ELSE 1 END)";
/// Deaths that the text index is asked about at once: a question that finds nothing takes some milliseconds.
const WINDOW: u64 = 100_000;
/// Sources that are merged; beyond it the letters themselves are walked.
const SOURCES_MAX: usize = 200;
/// Deaths ever in the leaves of a filter, up to which their letters are looked at rather than the text index.
const FEW: i64 = 1_000;
/// The index of pending letters is used when at most one letter in so many is pending.
const RARE: i64 = 8;

impl SqlTables {
    pub(super) fn plan(&self, ask: &Ask<'_>) -> Kept<Plan> {
        let compiled = narrow(ask.filter, &LetterColumns, ask.now);
        let mut condition = Condition {
            sql: format!("({})", compiled.sql),
            params: compiled.params.into_iter().map(value).collect(),
        };
        // Purged letters are left out of everything that does not ask for them, as the evaluator does.
        if !ask.filter.names_purged() {
            condition.sql = format!("letters.status <> 'purged' AND {}", condition.sql);
        }
        condition.sql = format!("{RETAINED} AND {}", condition.sql);
        condition.params.insert(0, Value::Integer(ask.now.as_millis()));
        if let Some(statuses) = ask.statuses {
            let marks = vec!["?"; statuses.len()].join(", ");
            condition.sql = format!("letters.status IN ({marks}) AND {}", condition.sql);
            let names = statuses.iter().map(|status| Value::Text(status.name().into()));
            condition.params = names.chain(condition.params).collect();
        }
        let whole = |sources| Stretch { after: ask.after, up_to: ask.up_to, sources };
        let by_text = if compiled.exact { None } else { self.by_text(ask)? };
        let stretches = match (self.sources(ask, by_text.is_some())?, by_text) {
            (Some(sources), _) => vec![whole(sources)],
            (None, Some(stretches)) => stretches,
            (None, None) => vec![whole(self.by_status(ask)?.unwrap_or_else(|| vec![Source::rows()]))],
        };
        Ok(Plan { stretches, condition, exact: compiled.exact })
    }

    /// The index of a value that every match has; nothing when there is none, or it leads to too many letters. With a
    /// text to search for, the letters of a large group are too many.
    fn sources(&self, ask: &Ask<'_>, searching: bool) -> Kept<Option<Vec<Source>>> {
        let mut anchors = ask.filter.anchors();
        anchors.sort_by_key(rank);
        for anchor in &anchors {
            let sources = match anchor {
                Anchor::Ids(ids) => {
                    Some(vec![one_of("letters.id", ids.iter().map(|id| Value::Blob(id.to_bytes().to_vec())))])
                }
                Anchor::Keys(keys) => {
                    Some(vec![one_of("letters.key", keys.iter().map(|key| Value::Text(key.clone())))])
                }
                Anchor::Leaves(leaves) => self.by_leaf(leaves.clone(), searching)?,
                Anchor::Groups(groups) => {
                    let mut leaves = groups.clone();
                    for group in groups {
                        let sql = "SELECT id FROM leaves WHERE group_id = ?1";
                        let of_group =
                            self.all(sql, &[&rows::leaf(*group)], |row| row.get::<_, rows::Cell<LeafId>>(0))?;
                        leaves.extend(of_group.into_iter().map(|cell| cell.0));
                    }
                    self.by_leaf(leaves, searching)?
                }
                Anchor::Statuses(_) => None,
            };
            if sources.is_some() {
                return Ok(sources);
            }
        }
        Ok(None)
    }

    /// The text index for what it has, and the letters themselves for what it has not.
    fn by_text(&self, ask: &Ask<'_>) -> Kept<Option<Vec<Stretch>>> {
        let Some(wording) = ask.filter.wording(self.payloads_indexed()?) else { return Ok(None) };
        let indexed_to = self.indexed_to()?;
        let wording = self.rarest(wording, indexed_to)?;
        let found = Source {
            from: "letters_text CROSS JOIN letters ON letters.death = letters_text.rowid",
            death: "letters_text.rowid",
            condition: Condition::new("letters_text MATCH ?", vec![Value::Text(text::question(&wording))]),
            window: Some(WINDOW),
        };
        let stale = Source {
            from: "text_stale CROSS JOIN letters ON letters.death = text_stale.death",
            death: "text_stale.death",
            ..Source::rows()
        };
        let old = Stretch { after: ask.after, up_to: ask.up_to.min(indexed_to), sources: vec![found, stale] };
        let new =
            Stretch { after: ask.after.max(indexed_to), up_to: ask.up_to, sources: vec![Source::rows()] };
        let mut both = if ask.latest_first { vec![new, old] } else { vec![old, new] };
        both.retain(|stretch| stretch.after < stretch.up_to);
        Ok(Some(both))
    }

    /// One source per leaf: each is in the order of deaths.
    fn by_leaf(&self, mut leaves: Vec<LeafId>, searching: bool) -> Kept<Option<Vec<Source>>> {
        leaves.sort_unstable();
        leaves.dedup();
        if leaves.len() > SOURCES_MAX {
            return Ok(None);
        }
        if searching {
            let mut deaths: i64 = 0;
            for leaf in &leaves {
                let sql = "SELECT coalesce(sum(total), 0) FROM leaf_counts WHERE leaf = ?1";
                deaths += self.one(sql, &[&rows::leaf(*leaf)], |row| row.get::<_, i64>(0))?.unwrap_or(0);
            }
            if deaths > FEW {
                return Ok(None);
            }
        }
        let source =
            |leaf: &LeafId| Source::letters("letters.leaf = ?", vec![Value::Integer(rows::leaf(*leaf))]);
        Ok(Some(leaves.iter().map(source).collect()))
    }

    /// The index of a status that few letters have.
    fn by_status(&self, ask: &Ask<'_>) -> Kept<Option<Vec<Source>>> {
        let anchors = ask.filter.anchors();
        let statuses = anchors
            .iter()
            .find_map(|anchor| if let Anchor::Statuses(names) = anchor { Some(names.clone()) } else { None });
        let Some(mut names) = statuses else { return Ok(None) };
        let rare = [Status::Review.name(), Status::Quarantined.name()];
        names.sort_unstable();
        names.dedup();
        if names.iter().all(|name| rare.contains(name)) {
            // The condition of the index stands in the question word by word, or SQLite does not use it.
            let sql = "letters.status = ? AND letters.status IN ('review', 'quarantined')";
            let source = |name: &&str| Source::letters(sql, vec![Value::Text((*name).to_owned())]);
            return Ok(Some(names.iter().map(source).collect()));
        }
        if names != [Status::Pending.name()] {
            return Ok(None);
        }
        let counted = "SELECT coalesce(sum(count) FILTER (WHERE status = 'pending'), 0), coalesce(sum(count), 0) FROM drawers";
        let (pending, all) = self
            .one(counted, &[], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?)))?
            .unwrap_or_default();
        let drawers = self.all("SELECT DISTINCT dlq FROM drawers", &[], |row| row.get::<_, String>(0))?;
        if pending.saturating_mul(RARE) > all || drawers.len() > SOURCES_MAX {
            return Ok(None);
        }
        let sql = "letters.status = 'pending' AND letters.dlq = ?";
        Ok(Some(drawers.into_iter().map(|dlq| Source::letters(sql, vec![Value::Text(dlq)])).collect()))
    }
}

/// Which anchor promises fewer letters.
const fn rank(anchor: &Anchor) -> u8 {
    match anchor {
        Anchor::Ids(_) => 0,
        Anchor::Keys(_) => 1,
        Anchor::Leaves(_) => 2,
        Anchor::Groups(_) => 3,
        Anchor::Statuses(_) => 4,
    }
}

fn one_of(column: &str, values: impl Iterator<Item = Value>) -> Source {
    let values: Vec<Value> = values.collect();
    let marks = vec!["?"; values.len()].join(", ");
    Source::letters(&format!("{column} IN ({marks})"), values)
}

fn value(param: Param) -> Value {
    match param {
        Param::Int(n) => Value::Integer(n),
        Param::Text(text) => Value::Text(text),
        Param::Blob(bytes) => Value::Blob(bytes),
    }
}
