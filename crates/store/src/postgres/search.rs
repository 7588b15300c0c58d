//! Searching for letters: a filter becomes a condition on their columns, read in the order of death in small batches, so
//! that a scan can stop after any number of rows and say where it stopped.

use super::base::{Param, PgBase, int};
use crate::engine::tables::{Candidates, LetterScan, TableResult, damaged};

use futures_util::StreamExt as _;
use redrive_core::filter::sql::{Columns, Param as Value, narrow};
use redrive_core::filter::{Field, RequiredValues};
use redrive_core::ids::{LeafId, QueueName};
use redrive_core::survey::{LetterFacts, Survey};
use redrive_core::time::Time;
use std::collections::HashMap;
use std::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

/// Rows read at once.
const BATCH: usize = 1_000;
/// The minimum number of rows to read at once, however few candidates are wanted: not all rows meet the condition.
const BATCH_MIN: usize = 64;
/// The maximum number of leaves whose letters are merged; above it all letters are read.
const LEAVES_MAX: usize = 200;

/// Maps fields to the columns of `letters` that hold exactly the same value.
struct LetterColumns;

/// A priority by its name. Levels beyond the last count as the last, as everywhere.
const PRIORITY: &str = "(CASE l.priority WHEN 0 THEN 'critical' WHEN 1 THEN 'high' WHEN 2 THEN 'normal' \
     WHEN 3 THEN 'low' ELSE 'background' END)";

impl Columns for LetterColumns {
    fn column(&self, field: &Field) -> Option<&str> {
        match field {
            Field::Id => Some("l.id"),
            Field::Queue => Some("l.queue"),
            Field::Dlq => Some("l.dlq"),
            Field::Kind => Some("l.kind"),
            Field::Status => Some("l.status"),
            Field::Reason => Some("l.reason"),
            Field::Route => Some("l.route"),
            Field::Category => Some("l.category"),
            Field::Severity => Some("l.severity"),
            Field::Redrives => Some("l.redrives"),
            Field::Owner => Some("l.owner"),
            Field::ReviewRequired => Some("(CASE l.status WHEN 'review' THEN 'yes' ELSE 'no' END)"),
            Field::Held => Some("(CASE WHEN l.held THEN 'yes' ELSE 'no' END)"),
            Field::Died | Field::Age => Some("l.dead_at"),
            Field::Failed => Some("l.last_failed_at"),
            Field::Key => Some("l.key"),
            Field::OrderingKey => Some("l.ordering_key"),
            Field::Signature => Some("l.leaf"),
            Field::Priority => Some(PRIORITY),
            // Counters of a retried message are in its own row, groups are in the leaves, and the rest is in records,
            // bodies and failures. The filter is evaluated on those.
            Field::Group
            | Field::Attempts
            | Field::Deliveries
            | Field::Generation
            | Field::Failures
            | Field::Enqueued
            | Field::State
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

type Bound = Box<dyn ToSql + Sync + Send>;

/// A condition on letters, with the values to bind.
struct Plan {
    /// The condition that a candidate must meet.
    condition: String,
    /// An index leads to everything that can match.
    anchor: Option<String>,
    /// Letters of these leaves only.
    leaves: Option<Vec<i64>>,
    params: Vec<Bound>,
    exact: bool,
}

impl Plan {
    fn new(base: &PgBase, scan: &LetterScan<'_>) -> TableResult<Self> {
        let compiled = narrow(scan.filter, &LetterColumns, scan.now);
        // Text with a NUL is in no column; the evaluator decides.
        let has_nul = |value: &Value| matches!(value, Value::Text(text) if text.contains('\0'));
        let (sql, values, exact) = match compiled.params.iter().any(has_nul) || compiled.sql == "1" {
            true => ("TRUE".to_owned(), Vec::new(), compiled.exact && compiled.sql == "1"),
            false => (compiled.sql, compiled.params, compiled.exact),
        };
        let mut plan =
            Self { condition: String::new(), anchor: None, leaves: None, params: Vec::new(), exact };
        let now = plan.bind(Box::new(scan.now.as_millis()), "bigint");
        let mut condition =
            format!("(l.expires_at IS NULL OR l.expires_at > {now} OR l.status = 'retrying')");
        if !scan.filter.names_purged() {
            condition.push_str(" AND l.status <> 'purged'");
        }
        if let Some(statuses) = scan.statuses {
            let names: Vec<String> = statuses.iter().map(|status| status.name().to_owned()).collect();
            let names = plan.bind(Box::new(names), "text[]");
            condition.push_str(&format!(" AND l.status = ANY({names})"));
        }
        let numbered = plan.number(&sql, values);
        plan.condition = format!("{condition} AND ({numbered})");
        plan.find_index(base, scan)?;
        Ok(plan)
    }

    fn bind(&mut self, value: Bound, kind: &str) -> String {
        self.params.push(value);
        format!("${}::{kind}", self.params.len())
    }

    /// Replaces every `?` by the number of its parameter.
    fn number(&mut self, sql: &str, values: Vec<Value>) -> String {
        let mut values = values.into_iter();
        let mut numbered = String::with_capacity(sql.len());
        for part in sql.split_inclusive('?') {
            let Some(text) = part.strip_suffix('?') else {
                numbered.push_str(part);
                continue;
            };
            numbered.push_str(text);
            let place = match values.next() {
                Some(Value::Int(n)) => self.bind(Box::new(n), "bigint"),
                Some(Value::Text(text)) => self.bind(Box::new(text), "text"),
                Some(Value::Blob(bytes)) => {
                    self.bind(Box::new(Uuid::from_slice(&bytes).unwrap_or_default()), "uuid")
                }
                None => "NULL".to_owned(),
            };
            numbered.push_str(&place);
        }
        numbered
    }

    /// Looks for a value that every match must have and that an index finds.
    fn find_index(&mut self, base: &PgBase, scan: &LetterScan<'_>) -> TableResult<()> {
        for required in scan.filter.required_values() {
            match required {
                RequiredValues::Ids(ids) => {
                    let ids: Vec<Uuid> = ids.iter().map(|id| Uuid::from_bytes(id.to_bytes())).collect();
                    let ids = self.bind(Box::new(ids), "uuid[]");
                    self.anchor = Some(format!("l.id = ANY({ids})"));
                    return Ok(());
                }
                RequiredValues::Keys(keys) if !keys.iter().any(|key| key.contains('\0')) => {
                    let keys: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
                    let keys = self.bind(Box::new(keys), "text[]");
                    self.anchor = Some(format!("l.key = ANY({keys})"));
                    return Ok(());
                }
                RequiredValues::Leaves(leaves) => {
                    self.leaves = Some(leaves.iter().map(|leaf| signed(*leaf)).collect())
                }
                RequiredValues::Groups(groups) => {
                    let of_groups = leaves(base)?.into_iter().filter(|(_, group)| groups.contains(group));
                    let own = groups.iter().map(|group| signed(*group));
                    let mut all: Vec<i64> = of_groups.map(|(leaf, _)| signed(leaf)).chain(own).collect();
                    all.sort_unstable();
                    all.dedup();
                    self.leaves = Some(all);
                }
                RequiredValues::Keys(_) | RequiredValues::Statuses(_) => {}
            }
        }
        if self.leaves.as_ref().is_some_and(|leaves| leaves.len() > LEAVES_MAX) {
            self.leaves = None;
        }
        Ok(())
    }
}

fn signed(leaf: LeafId) -> i64 {
    leaf.get().cast_signed()
}

/// Every leaf with its group.
fn leaves(base: &PgBase) -> TableResult<Vec<(LeafId, LeafId)>> {
    let rows = base.query("SELECT data FROM entries WHERE area = 17", &[])?;
    let read = |row: &Row| {
        let data: &[u8] = row.try_get(0).map_err(damaged)?;
        let leaf: redrive_core::group::Leaf = serde_json::from_slice(data).map_err(damaged)?;
        Ok((leaf.id, leaf.group))
    };
    rows.iter().map(read).collect()
}

/// The death numbers of letters that may match, in the order of the scan.
pub(super) fn candidates(base: &PgBase, scan: &LetterScan<'_>) -> TableResult<Candidates> {
    let plan = Plan::new(base, scan)?;
    let start = if scan.latest_first { scan.up_to.saturating_add(1) } else { scan.after };
    let mut found = Candidates { reached: start, exact: plan.exact, ..Candidates::default() };
    let (mut after, mut up_to) = (scan.after, scan.up_to);
    let sql = batch_sql(&plan, scan.latest_first);
    while after < up_to {
        let batch = BATCH.min(scan.candidates_max.max(BATCH_MIN)).min(scan.rows_max.max(1));
        let (from, to, limit) = (int(after), int(up_to), int(batch as u64));
        let mut params: Vec<Param<'_>> = plan
            .params
            .iter()
            .map(|param| {
                let p: Param<'_> = param.as_ref();
                p
            })
            .collect();
        params.extend([&from as Param<'_>, &to, &limit]);
        if let Some(leaves) = &plan.leaves {
            params.push(leaves);
        }
        let rows = base.query(&sql, &params)?;
        let ended = rows.len() < batch;
        for row in &rows {
            let death = row.try_get::<_, i64>(0).map_err(damaged)?.cast_unsigned();
            found.looked_at += 1;
            found.reached = death;
            if row.try_get::<_, Option<bool>>(1).map_err(damaged)?.unwrap_or(false) {
                found.deaths.push(death);
                if found.deaths.len() >= scan.candidates_max {
                    return Ok(found);
                }
            }
        }
        if ended {
            break;
        }
        if scan.latest_first {
            up_to = found.reached.saturating_sub(1)
        } else {
            after = found.reached
        }
        if found.looked_at >= scan.rows_max || scan.until.is_some_and(|until| Instant::now() >= until) {
            return Ok(found);
        }
    }
    found.ended = true;
    Ok(found)
}

/// The statement that reads the next batch.
fn batch_sql(plan: &Plan, latest_first: bool) -> String {
    let order = if latest_first { "DESC" } else { "ASC" };
    let n = plan.params.len();
    let (from, to, limit) = (n + 1, n + 2, n + 3);
    let range = format!("l.death > ${from}::bigint AND l.death <= ${to}::bigint");
    let condition = &plan.condition;
    match (&plan.leaves, &plan.anchor) {
        (_, Some(anchor)) => format!(
            "SELECT l.death, ({condition}) FROM letters l WHERE {anchor} AND {range} ORDER BY l.death {order} \
             LIMIT ${limit}::bigint"
        ),
        // One walk along the index per leaf, merged.
        (Some(_), None) => format!(
            "SELECT x.death, x.meets FROM unnest(${leaves}::bigint[]) AS w(leaf), LATERAL \
             (SELECT l.death, ({condition}) AS meets FROM letters l WHERE l.leaf = w.leaf AND {range} \
             ORDER BY l.death {order} LIMIT ${limit}::bigint) x ORDER BY x.death {order} LIMIT ${limit}::bigint",
            leaves = n + 4
        ),
        (None, None) => format!(
            "SELECT l.death, ({condition}) FROM letters l WHERE {range} ORDER BY l.death {order} LIMIT ${limit}::bigint"
        ),
    }
}

/// Summarises the matching letters, if the condition is exact.
pub(super) fn survey(base: &PgBase, scan: &LetterScan<'_>) -> TableResult<Option<Survey>> {
    let plan = Plan::new(base, scan)?;
    if !plan.exact {
        return Ok(None);
    }
    let groups: HashMap<LeafId, LeafId> = leaves(base)?.into_iter().collect();
    let n = plan.params.len();
    let mut sql = format!(
        "SELECT l.leaf, l.queue, l.status, l.reason, l.dead_at, l.redrives, l.size, l.key IS NOT NULL, \
         l.ordering_key IS NOT NULL FROM letters l WHERE l.death > ${}::bigint AND l.death <= ${}::bigint AND {}",
        n + 1,
        n + 2,
        plan.condition
    );
    let (from, to) = (int(scan.after), int(scan.up_to));
    let mut params: Vec<Param<'_>> = plan
        .params
        .iter()
        .map(|param| {
            let p: Param<'_> = param.as_ref();
            p
        })
        .collect();
    params.extend([&from as Param<'_>, &to]);
    if let Some(anchor) = &plan.anchor {
        sql.push_str(&format!(" AND {anchor}"));
    } else if let Some(leaves) = &plan.leaves {
        params.push(leaves);
        sql.push_str(&format!(" AND l.leaf = ANY(${}::bigint[])", n + 3));
    }
    let mut survey = Survey::default();
    let mut queues: HashMap<String, QueueName> = HashMap::new();
    let session = &base.session;
    let read = session.run(async {
        let statement = session.prepare(&sql).await?;
        let rows = session.client().query_raw(&statement, params.iter().copied()).await?;
        let mut rows = std::pin::pin!(rows);
        while let Some(row) = rows.next().await {
            if let Err(error) = add(&row?, &groups, &mut queues, scan.now, &mut survey) {
                return Ok(Err(error));
            }
        }
        Ok(Ok(()))
    })?;
    read?;
    Ok(Some(survey))
}

/// Adds one letter to a survey. Parses the name of a queue once, not once per letter.
fn add(
    row: &Row,
    groups: &HashMap<LeafId, LeafId>,
    queues: &mut HashMap<String, QueueName>,
    now: Time,
    survey: &mut Survey,
) -> TableResult<()> {
    let number = |n: usize| row.try_get::<_, i64>(n).map_err(damaged);
    let text = |n: usize| row.try_get::<_, &str>(n).map_err(damaged);
    let name = text(1)?;
    if !queues.contains_key(name) {
        let queue = name.parse().map_err(|_| damaged(format!("{name:?} is not a queue's name")))?;
        queues.insert(name.to_owned(), queue);
    }
    let Some(queue) = queues.get(name) else { return Ok(()) };
    let leaf = LeafId::new(number(0)?.cast_unsigned());
    let facts = LetterFacts {
        group: groups.get(&leaf).copied().unwrap_or(leaf),
        queue,
        status: text(2)?.parse().map_err(damaged)?,
        reason: text(3)?.parse().map_err(damaged)?,
        dead_at: Time::from_millis(number(4)?),
        redrives: u32::try_from(number(5)?).unwrap_or(u32::MAX),
        bytes: number(6)?.cast_unsigned(),
        keyed: row.try_get(7).map_err(damaged)?,
        ordered: row.try_get(8).map_err(damaged)?,
    };
    survey.add(&facts, now);
    Ok(())
}
