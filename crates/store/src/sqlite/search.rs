//! Looking for letters: candidates in the order of deaths, counts, and members copied row by row inside SQLite.
//! Sources are merged by death; each is read in small batches, so a look can stop after any number of rows and say
//! where it stopped.

use super::errors::{damaged, kept};
use super::narrow::{Condition, Plan, Source};
use super::reads::SqlTables;
use super::rows::{self, int};
use crate::engine::tables::{Ask, Candidates, Frozen, Kept, Letter};
use redrive_core::ids::{LeafId, OperationId, QueueName};
use redrive_core::survey::{Facts, Survey};
use redrive_core::time::Time;
use rusqlite::types::{ToSql, Value};
use rusqlite::{Row, Statement};
use std::collections::{HashMap, VecDeque};
use std::time::Instant;

/// Rows of one source read at once; fewer where there are many sources.
const BATCH: usize = 512;

/// What has been read of a source and not been taken yet.
struct Stream<'p> {
    source: &'p Source,
    sql: String,
    /// Deaths, and whether each meets the condition.
    ahead: VecDeque<(u64, bool)>,
    /// The last death that was read.
    read_to: Option<u64>,
    dry: bool,
}

impl<'p> Stream<'p> {
    fn new(source: &'p Source, plan: &Plan, ask: &Ask<'_>) -> Self {
        let Source { from, death, condition } = source;
        let order = if ask.latest_first { "DESC" } else { "ASC" };
        let sql = format!(
            "SELECT {death}, ({wanted}) FROM {from} WHERE {found} AND {death} > ? AND {death} <= ? \
             ORDER BY {death} {order} LIMIT ?",
            wanted = plan.condition.sql,
            found = condition.sql,
        );
        Self { source, sql, ahead: VecDeque::new(), read_to: None, dry: false }
    }

    /// Reads the next batch if nothing is ahead.
    fn fill(&mut self, tables: &SqlTables, plan: &Plan, ask: &Ask<'_>, batch: usize) -> Kept<usize> {
        if self.dry || !self.ahead.is_empty() {
            return Ok(0);
        }
        let (mut after, mut up_to) = (ask.after, ask.up_to);
        match self.read_to {
            Some(death) if ask.latest_first => up_to = death.saturating_sub(1),
            Some(death) => after = death,
            None => {}
        }
        let range =
            [Value::Integer(int(after)), Value::Integer(int(up_to)), Value::Integer(int(batch as u64))];
        let bound = plan.condition.params.iter().chain(&self.source.condition.params).chain(&range);
        let params: Vec<&dyn ToSql> = bound.map(|p| p as &dyn ToSql).collect();
        let read = tables.all(&self.sql, &params, |row| {
            Ok((row.get::<_, u64>(0)?, row.get::<_, Option<bool>>(1)?.unwrap_or(false)))
        })?;
        self.dry = read.len() < batch;
        self.read_to = read.last().map(|(death, _)| *death).or(self.read_to);
        self.ahead = read.into();
        Ok(self.ahead.len())
    }
}

impl SqlTables {
    /// The deaths of letters that may match; see [`crate::engine::tables::Reads::candidates`].
    pub(super) fn find(&self, ask: &Ask<'_>) -> Kept<Candidates> {
        let plan = self.plan(ask)?;
        let mut streams: Vec<Stream<'_>> =
            plan.sources.iter().map(|source| Stream::new(source, &plan, ask)).collect();
        let batch = (2 * BATCH / streams.len().max(1)).clamp(8, BATCH);
        let start = if ask.latest_first { ask.up_to.saturating_add(1) } else { ask.after };
        let mut found = Candidates { reached: start, exact: plan.exact, ..Candidates::default() };
        loop {
            for stream in &mut streams {
                found.looked_at += stream.fill(self, &plan, ask, batch)?;
            }
            let heads =
                streams.iter().enumerate().filter_map(|(n, s)| s.ahead.front().map(|(death, _)| (*death, n)));
            let next = if ask.latest_first { heads.max() } else { heads.min() };
            let Some((_, n)) = next else {
                found.ended = true;
                return Ok(found);
            };
            let Some((death, meets)) = streams.get_mut(n).and_then(|stream| stream.ahead.pop_front()) else {
                return Err(damaged("a source of letters ended while it was read"));
            };
            found.reached = death;
            if meets {
                found.deaths.push(death);
            }
            let at_a_seam = streams.get(n).is_some_and(|stream| stream.ahead.is_empty());
            let enough = found.deaths.len() >= ask.hits
                || (at_a_seam
                    && (found.looked_at >= ask.rows
                        || ask.until.is_some_and(|until| Instant::now() >= until)));
            if enough {
                return Ok(found);
            }
        }
    }

    /// The letters of these deaths, in their order.
    pub(super) fn letters_of(&self, deaths: &[u64]) -> Kept<Vec<Letter>> {
        let mut letters = Vec::with_capacity(deaths.len());
        for death in deaths {
            letters.extend(self.all_letters("WHERE death = ?1", &[&int(*death)])?);
        }
        Ok(letters)
    }

    /// Counts what is asked for, where the condition says exactly which letters that are.
    pub(super) fn count(&self, ask: &Ask<'_>) -> Kept<Option<Survey>> {
        let plan = self.plan(ask)?;
        if !plan.exact {
            return Ok(None);
        }
        let groups = self.all("SELECT id, group_id FROM leaves", &[], |row| {
            Ok((row.get::<_, rows::Cell<LeafId>>(0)?.0, row.get::<_, rows::Cell<LeafId>>(1)?.0))
        })?;
        let groups: HashMap<LeafId, LeafId> = groups.into_iter().collect();
        let mut survey = Survey::default();
        let mut counter = Counter { groups: &groups, queues: HashMap::new(), now: ask.now };
        for Source { from, death, condition } in &plan.sources {
            let sql = format!(
                "SELECT leaf, queue, status, reason, dead_at, redrives, size, key IS NOT NULL, ordering_key IS NOT NULL \
                 FROM {from} WHERE {} AND {death} > ? AND {death} <= ? AND {}",
                condition.sql, plan.condition.sql,
            );
            let mut statement = kept(self.connection.prepare_cached(&sql))?;
            counter.run(&mut statement, ask, condition, &plan.condition, &mut survey)?;
        }
        Ok(Some(survey))
    }

    /// Copies what is asked for into the members of an operation, where the condition says exactly what that is. A
    /// bounded stretch: as many rows as are asked for, shared between the sources.
    pub(super) fn copy_members(&self, id: OperationId, ask: &Ask<'_>) -> Kept<Option<Frozen>> {
        let plan = self.plan(ask)?;
        if !plan.exact {
            return Ok(None);
        }
        let each = (ask.rows / plan.sources.len().max(1)).max(1);
        let mut end = None;
        for Source { from, death, condition } in &plan.sources {
            let sql = format!(
                "SELECT {death} FROM {from} WHERE {} AND {death} > ? AND {death} <= ? ORDER BY {death} LIMIT 1 OFFSET ?",
                condition.sql
            );
            let range = [int(ask.after), int(ask.up_to), int(each as u64 - 1)].map(Value::Integer);
            let params: Vec<&dyn ToSql> =
                condition.params.iter().chain(&range).map(|p| p as &dyn ToSql).collect();
            let last: Option<u64> = self.one(&sql, &params, |row| row.get(0))?;
            end = [end, last].into_iter().flatten().min();
        }
        let frozen_to = end.unwrap_or(ask.up_to);
        let operation = Value::Blob(id.to_bytes().to_vec());
        let mut members = 0;
        for Source { from, death, condition } in &plan.sources {
            let sql = format!(
                "INSERT INTO members(operation, position, id, version, outcome) \
                 SELECT ?, letters.death, letters.id, letters.version, 'waiting' FROM {from} \
                 WHERE {} AND {death} > ? AND {death} <= ? AND {} ORDER BY {death}",
                condition.sql, plan.condition.sql
            );
            let range = [int(ask.after), int(frozen_to)].map(Value::Integer);
            let bound = std::iter::once(&operation).chain(&condition.params).chain(&range);
            let params: Vec<&dyn ToSql> =
                bound.chain(&plan.condition.params).map(|p| p as &dyn ToSql).collect();
            members += self.run(&sql, &params)? as u64;
        }
        Ok(Some(Frozen { members, frozen_to, exhausted: end.is_none() }))
    }
}

/// Counts rows; a queue's name is read once, not once per letter.
struct Counter<'a> {
    groups: &'a HashMap<LeafId, LeafId>,
    queues: HashMap<String, QueueName>,
    now: Time,
}

impl Counter<'_> {
    fn run(
        &mut self,
        statement: &mut Statement<'_>,
        ask: &Ask<'_>,
        found: &Condition,
        wanted: &Condition,
        survey: &mut Survey,
    ) -> Kept<()> {
        let range = [int(ask.after), int(ask.up_to)].map(Value::Integer);
        let bound = found.params.iter().chain(&range).chain(&wanted.params);
        let params: Vec<&dyn ToSql> = bound.map(|p| p as &dyn ToSql).collect();
        let mut found = kept(statement.query(params.as_slice()))?;
        while let Some(row) = kept(found.next())? {
            self.add(row, survey)?;
        }
        Ok(())
    }

    fn add(&mut self, row: &Row<'_>, survey: &mut Survey) -> Kept<()> {
        let text = |column: usize| -> Kept<&str> {
            kept(row.get_ref(column))?.as_str().map_err(|_| damaged("a letter's row cannot be read"))
        };
        let name = text(1)?;
        if !self.queues.contains_key(name) {
            let queue = name.parse().map_err(|_| damaged(format!("{name:?} is not a queue's name")))?;
            self.queues.insert(name.to_owned(), queue);
        }
        let Some(queue) = self.queues.get(name) else { return Ok(()) };
        let leaf = kept(row.get::<_, rows::Cell<LeafId>>(0))?.0;
        let facts = Facts {
            group: self.groups.get(&leaf).copied().unwrap_or(leaf),
            queue,
            status: text(2)?.parse().map_err(damaged)?,
            reason: text(3)?.parse().map_err(damaged)?,
            dead_at: kept(row.get::<_, rows::Cell<Time>>(4))?.0,
            redrives: kept(row.get(5))?,
            bytes: kept(row.get(6))?,
            keyed: kept(row.get(7))?,
            ordered: kept(row.get(8))?,
        };
        survey.add(&facts, self.now);
        Ok(())
    }
}
