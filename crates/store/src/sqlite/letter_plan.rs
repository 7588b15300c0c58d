//! Translates a filter into SQL: a condition on the rows of letters, and the index that finds candidates. If the
//! condition is not exact, it only narrows the candidates, and the filter itself is evaluated on each of them.

use super::reads::SqlTables;
use super::{rows, text};
use crate::engine::tables::{LetterScan, TableResult};
use redrive_core::dead_letter::Status;
use redrive_core::filter::sql::{Columns, Param, narrow};
use redrive_core::filter::{Field, RequiredValues};
use redrive_core::ids::LeafId;
use rusqlite::types::Value;

/// Maps fields to the columns of `letters` that hold exactly the same value.
struct LetterColumns;

/// A priority by its name. Levels beyond the last count as the last, as everywhere.
const PRIORITY: &str = "(CASE letters.priority WHEN 0 THEN 'critical' WHEN 1 THEN 'high' WHEN 2 THEN 'normal' \
     WHEN 3 THEN 'low' ELSE 'background' END)";
/// The current group of a leaf. An unknown leaf is its own group.
const GROUP: &str = "coalesce((SELECT group_id FROM leaves WHERE leaves.id = letters.leaf), letters.leaf)";
const ENQUEUED: &str = "(SELECT enqueued_at FROM bodies WHERE bodies.seq = letters.seq)";

/// A number of the message. While the letter is being retried, the live message's.
macro_rules! current {
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
            Field::Attempts => Some(current!("attempts")),
            Field::Deliveries => Some(current!("deliveries")),
            Field::Generation => Some(current!("generation")),
            Field::Failures => Some(current!("failed")),
            Field::Enqueued => Some(ENQUEUED),
            // The state of a retried message and a snooze depend on the time; the others are in records, bodies and
            // failures. The filter is evaluated on those.
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

/// A condition with its bound values.
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

/// Letters in order of death, found by an index: those that meet a condition on its first columns.
#[derive(Clone, Debug)]
pub(super) struct Source {
    /// The `FROM` clause; it includes `letters`.
    pub(super) from: &'static str,
    /// The column that holds the death number.
    pub(super) death: &'static str,
    pub(super) condition: Condition,
    /// How many death numbers to query at once, if finding one takes a time that the number of results does not bound.
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

/// A range of death numbers and the sources that together contain every match in it.
#[derive(Clone, Debug)]
pub(super) struct DeathRange {
    pub(super) after: u64,
    pub(super) up_to: u64,
    pub(super) sources: Vec<Source>,
}

/// How to find the letters of one scan: ranges in the order of the scan, and the condition that a candidate must
/// meet. An exact plan has one range, and its sources have no letter in common.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) ranges: Vec<DeathRange>,
    pub(super) condition: Condition,
    pub(super) exact: bool,
}

impl Plan {
    /// The sources of all ranges.
    pub(super) fn sources(&self) -> impl Iterator<Item = &Source> {
        self.ranges.iter().flat_map(|range| &range.sources)
    }
}

/// Leaves out letters past their retention. The letter's record must agree: a damaged column must not hide a letter,
/// because reading the row reveals the damage.
const RETAINED: &str = "(letters.expires_at IS NULL OR letters.expires_at > ? OR letters.status = 'retrying' OR \
     CASE WHEN json_valid(letters.file) THEN CAST(strftime('%s', json_extract(letters.file, '$.expires_at')) AS INTEGER) \
     IS NOT letters.expires_at / 1000 ELSE 1 END)";
/// Death numbers that the text index is queried for at once: a query without results takes some milliseconds.
const WINDOW: u64 = 100_000;
/// The maximum number of sources to merge; above it all letters are scanned.
const SOURCES_MAX: usize = 200;
/// If the leaves of a filter ever had at most this many deaths, their letters are scanned instead of the text index.
const FEW_DEATHS: i64 = 1_000;
/// The index of pending letters is used if at most one letter in this many is pending.
const PENDING_IS_RARE: i64 = 8;

impl SqlTables {
    pub(super) fn plan(&self, scan: &LetterScan<'_>) -> TableResult<Plan> {
        let compiled = narrow(scan.filter, &LetterColumns, scan.now);
        let mut condition = Condition {
            sql: format!("({})", compiled.sql),
            params: compiled.params.into_iter().map(value).collect(),
        };
        // Like the evaluation of filters, leave out purged letters unless the filter names them.
        if !scan.filter.names_purged() {
            condition.sql = format!("letters.status <> 'purged' AND {}", condition.sql);
        }
        condition.sql = format!("{RETAINED} AND {}", condition.sql);
        condition.params.insert(0, Value::Integer(scan.now.as_millis()));
        if let Some(statuses) = scan.statuses {
            let marks = vec!["?"; statuses.len()].join(", ");
            condition.sql = format!("letters.status IN ({marks}) AND {}", condition.sql);
            let names = statuses.iter().map(|status| Value::Text(status.name().into()));
            condition.params = names.chain(condition.params).collect();
        }
        let whole = |sources| DeathRange { after: scan.after, up_to: scan.up_to, sources };
        let by_text = if compiled.exact { None } else { self.by_text(scan)? };
        let ranges = match (self.sources(scan, by_text.is_some())?, by_text) {
            (Some(sources), _) => vec![whole(sources)],
            (None, Some(ranges)) => ranges,
            (None, None) => vec![whole(self.by_status(scan)?.unwrap_or_else(|| vec![Source::rows()]))],
        };
        Ok(Plan { ranges, condition, exact: compiled.exact })
    }

    /// The index on a value that every match must have. `None` if there is none, or if it leads to too many letters;
    /// with a text to search for, the letters of a large group are too many.
    fn sources(&self, scan: &LetterScan<'_>, searching: bool) -> TableResult<Option<Vec<Source>>> {
        let mut anchors = scan.filter.required_values();
        anchors.sort_by_key(rank);
        for anchor in &anchors {
            let sources = match anchor {
                RequiredValues::Ids(ids) => {
                    Some(vec![one_of("letters.id", ids.iter().map(|id| Value::Blob(id.to_bytes().to_vec())))])
                }
                RequiredValues::Keys(keys) => {
                    Some(vec![one_of("letters.key", keys.iter().map(|key| Value::Text(key.clone())))])
                }
                RequiredValues::Leaves(leaves) => self.by_leaf(leaves.clone(), searching)?,
                RequiredValues::Groups(groups) => {
                    let mut leaves = groups.clone();
                    for group in groups {
                        let sql = "SELECT id FROM leaves WHERE group_id = ?1";
                        let of_group =
                            self.all(sql, &[&rows::leaf(*group)], |row| row.get::<_, rows::Cell<LeafId>>(0))?;
                        leaves.extend(of_group.into_iter().map(|cell| cell.0));
                    }
                    self.by_leaf(leaves, searching)?
                }
                RequiredValues::Statuses(_) => None,
            };
            if sources.is_some() {
                return Ok(sources);
            }
        }
        Ok(None)
    }

    /// The text index for letters that it contains, and a scan for the others.
    fn by_text(&self, scan: &LetterScan<'_>) -> TableResult<Option<Vec<DeathRange>>> {
        let Some(trigrams) = scan.filter.trigram_query(self.payloads_indexed()?) else { return Ok(None) };
        let indexed_to = self.indexed_to()?;
        let trigrams = self.rarest(trigrams, indexed_to)?;
        let found = Source {
            from: "letters_text CROSS JOIN letters ON letters.death = letters_text.rowid",
            death: "letters_text.rowid",
            condition: Condition::new("letters_text MATCH ?", vec![Value::Text(text::fts_query(&trigrams))]),
            window: Some(WINDOW),
        };
        let stale = Source {
            from: "text_stale CROSS JOIN letters ON letters.death = text_stale.death",
            death: "text_stale.death",
            ..Source::rows()
        };
        let old =
            DeathRange { after: scan.after, up_to: scan.up_to.min(indexed_to), sources: vec![found, stale] };
        let new = DeathRange {
            after: scan.after.max(indexed_to),
            up_to: scan.up_to,
            sources: vec![Source::rows()],
        };
        let mut both = if scan.latest_first { vec![new, old] } else { vec![old, new] };
        both.retain(|range| range.after < range.up_to);
        Ok(Some(both))
    }

    /// One source per leaf, each in order of death.
    fn by_leaf(&self, mut leaves: Vec<LeafId>, searching: bool) -> TableResult<Option<Vec<Source>>> {
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
            if deaths > FEW_DEATHS {
                return Ok(None);
            }
        }
        let source =
            |leaf: &LeafId| Source::letters("letters.leaf = ?", vec![Value::Integer(rows::leaf(*leaf))]);
        Ok(Some(leaves.iter().map(source).collect()))
    }

    /// The index on a status that few letters have.
    fn by_status(&self, scan: &LetterScan<'_>) -> TableResult<Option<Vec<Source>>> {
        let anchors = scan.filter.required_values();
        let statuses = anchors.iter().find_map(|anchor| {
            if let RequiredValues::Statuses(names) = anchor { Some(names.clone()) } else { None }
        });
        let Some(mut names) = statuses else { return Ok(None) };
        let rare = [Status::Review.name(), Status::Quarantined.name()];
        names.sort_unstable();
        names.dedup();
        if names.iter().all(|name| rare.contains(name)) {
            // SQLite uses the partial index only if its condition appears literally in the query.
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
        let dlqs = self.all("SELECT DISTINCT dlq FROM drawers", &[], |row| row.get::<_, String>(0))?;
        if pending.saturating_mul(PENDING_IS_RARE) > all || dlqs.len() > SOURCES_MAX {
            return Ok(None);
        }
        let sql = "letters.status = 'pending' AND letters.dlq = ?";
        Ok(Some(dlqs.into_iter().map(|dlq| Source::letters(sql, vec![Value::Text(dlq)])).collect()))
    }
}

/// Ranks values by how few letters they are likely to match.
const fn rank(anchor: &RequiredValues) -> u8 {
    match anchor {
        RequiredValues::Ids(_) => 0,
        RequiredValues::Keys(_) => 1,
        RequiredValues::Leaves(_) => 2,
        RequiredValues::Groups(_) => 3,
        RequiredValues::Statuses(_) => 4,
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
