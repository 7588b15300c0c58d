//! Which letters a filter can be asked for in SQL: the condition on a row, and the index that finds candidates.
//! Where the condition is not exact this only narrows, and the filter's own evaluator decides.

use super::reads::SqlTables;
use super::rows;
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
            // The state of a retried message is by the clock, and the rest lies in bodies and failures: the
            // evaluator looks at those.
            Field::State
            | Field::Worker
            | Field::Tag
            | Field::Trace
            | Field::Type
            | Field::Code
            | Field::Error
            | Field::Header(_)
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
}

impl Source {
    fn letters(sql: &str, params: Vec<Value>) -> Self {
        Self { from: "letters", death: "letters.death", condition: Condition::new(sql, params) }
    }
}

/// How the letters of one question are found: sources without a letter in common, which together have every match,
/// and the condition that a candidate must meet.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) sources: Vec<Source>,
    pub(super) condition: Condition,
    pub(super) exact: bool,
}

/// Sources that are merged; beyond it the letters themselves are walked.
const SOURCES_MAX: usize = 200;
/// The index of pending letters is used when at most one letter in so many is pending.
const RARE: i64 = 8;

impl SqlTables {
    pub(super) fn plan(&self, ask: &Ask<'_>) -> Kept<Plan> {
        let compiled = narrow(ask.filter, &LetterColumns, ask.now);
        let mut condition = Condition {
            sql: format!("({})", compiled.sql),
            params: compiled.params.into_iter().map(value).collect(),
        };
        if let Some(statuses) = ask.statuses {
            let marks = vec!["?"; statuses.len()].join(", ");
            condition.sql = format!("letters.status IN ({marks}) AND {}", condition.sql);
            let names = statuses.iter().map(|status| Value::Text(status.name().into()));
            condition.params = names.chain(condition.params).collect();
        }
        let sources = self.sources(ask)?.unwrap_or_else(|| vec![Source::letters("1", Vec::new())]);
        Ok(Plan { sources, condition, exact: compiled.exact })
    }

    /// The index that leads to the fewest rows; nothing when all letters have to be walked.
    fn sources(&self, ask: &Ask<'_>) -> Kept<Option<Vec<Source>>> {
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
                Anchor::Leaves(leaves) => self.by_leaf(leaves.clone()),
                Anchor::Groups(groups) => {
                    let mut leaves = groups.clone();
                    for group in groups {
                        let sql = "SELECT id FROM leaves WHERE group_id = ?1";
                        let of_group =
                            self.all(sql, &[&rows::leaf(*group)], |row| row.get::<_, rows::Cell<LeafId>>(0))?;
                        leaves.extend(of_group.into_iter().map(|cell| cell.0));
                    }
                    self.by_leaf(leaves)
                }
                Anchor::Statuses(names) => self.by_status(names)?,
            };
            if sources.is_some() {
                return Ok(sources);
            }
        }
        Ok(None)
    }

    /// One source per leaf: each is in the order of deaths.
    fn by_leaf(&self, mut leaves: Vec<LeafId>) -> Option<Vec<Source>> {
        leaves.sort_unstable();
        leaves.dedup();
        let source =
            |leaf: &LeafId| Source::letters("letters.leaf = ?", vec![Value::Integer(rows::leaf(*leaf))]);
        (leaves.len() <= SOURCES_MAX).then(|| leaves.iter().map(source).collect())
    }

    fn by_status(&self, names: &[&'static str]) -> Kept<Option<Vec<Source>>> {
        let rare = [Status::Review.name(), Status::Quarantined.name()];
        let mut names = names.to_vec();
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
