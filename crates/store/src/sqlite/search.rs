//! Searching for letters: candidates in order of death, counts, and members copied
//! inside SQLite. Sources are merged by death number and read in small batches, so
//! that a scan can stop after any number of rows and report where it stopped.

use super::errors::sql_result;
use super::letter_plan::{Condition, DeathRange, Plan, Source};
use super::reads::SqlTables;
use super::rows::{self, int};
use crate::engine::tables::damaged;
use crate::engine::tables::{Candidates, Frozen, Letter, LetterScan, TableResult};
use redrive_core::ids::{LeafId, OperationId, QueueName};
use redrive_core::survey::{LetterFacts, Survey};
use redrive_core::time::Time;
use rusqlite::types::{ToSql, Value};
use rusqlite::{Row, Statement};
use std::collections::{HashMap, VecDeque};
use std::time::Instant;

/// Rows read from one source at once; fewer if there are many sources.
const BATCH: usize = 512;

/// The minimum number of rows to read at once, however few candidates are wanted: not all rows meet the condition.
const BATCH_MIN: usize = 64;

/// A query on a window of the text index takes about as long as reading this many rows, even without results.
const WINDOW_COST: usize = 1_000;

/// Reads a source in batches.
struct Stream<'p> {
    source: &'p Source,
    sql: String,
    /// Death numbers read but not consumed, and whether each meets the condition.
    buffered: VecDeque<(u64, bool)>,
    /// The range of death numbers still to be read (exclusive, inclusive).
    unread: (u64, u64),
}

impl<'p> Stream<'p> {
    fn new(source: &'p Source, range: &DeathRange, plan: &Plan, scan: &LetterScan<'_>) -> Self {
        let Source { from, death, condition, .. } = source;
        let order = if scan.latest_first { "DESC" } else { "ASC" };
        let sql = format!(
            "SELECT {death}, ({wanted}) FROM {from} WHERE {found} AND {death} > ? AND {death} <= ? \
             ORDER BY {death} {order} LIMIT ?",
            wanted = plan.condition.sql,
            found = condition.sql,
        );
        Self { source, sql, buffered: VecDeque::new(), unread: (range.after, range.up_to) }
    }

    const fn is_exhausted(&self) -> bool {
        self.unread.0 >= self.unread.1
    }

    /// Reads the next batch if none is buffered. Returns the cost in rows. A source with a window may return without
    /// rows when the time is up.
    fn fill(
        &mut self,
        tables: &SqlTables,
        plan: &Plan,
        scan: &LetterScan<'_>,
        batch: usize,
    ) -> TableResult<usize> {
        let mut work = 0;
        while self.buffered.is_empty() && !self.is_exhausted() {
            let (mut after, mut up_to) = self.unread;
            match self.source.window {
                Some(width) if scan.latest_first => after = after.max(up_to.saturating_sub(width)),
                Some(width) => up_to = up_to.min(after.saturating_add(width)),
                None => {}
            }
            let range = [int(after), int(up_to), int(batch as u64)].map(Value::Integer);
            let bound = plan.condition.params.iter().chain(&self.source.condition.params).chain(&range);
            let params: Vec<&dyn ToSql> = bound.map(|p| p as &dyn ToSql).collect();
            let read = tables.all(&self.sql, &params, |row| {
                Ok((row.get::<_, u64>(0)?, row.get::<_, Option<bool>>(1)?.unwrap_or(false)))
            })?;
            let last = read.last().map(|(death, _)| *death).filter(|_| read.len() >= batch);
            match (last, scan.latest_first) {
                (Some(death), true) => self.unread.1 = death.saturating_sub(1),
                (Some(death), false) => self.unread.0 = death,
                (None, true) => self.unread.1 = after,
                (None, false) => self.unread.0 = up_to,
            }
            work += read.len() + self.source.window.map_or(0, |_| WINDOW_COST);
            if read.is_empty() && self.source.window.is_some() {
                self.skip_gap(tables, scan)?;
            }
            self.buffered = read.into();
            if is_out_of_time(scan) || work >= scan.rows_max {
                break;
            }
        }
        Ok(work)
    }

    /// Moves on to the next existing letter: death numbers may have gaps of any width.
    fn skip_gap(&mut self, tables: &SqlTables, scan: &LetterScan<'_>) -> TableResult<()> {
        let (after, up_to) = self.unread;
        let number = |row: &Row<'_>| row.get::<_, Option<u64>>(0);
        if scan.latest_first {
            let sql = "SELECT max(death) FROM letters WHERE death <= ?1";
            let next = tables.one(sql, &[&int(up_to)], number)?.flatten();
            self.unread.1 = next.unwrap_or(after).max(after);
        } else {
            let sql = "SELECT min(death) FROM letters WHERE death > ?1";
            let next = tables.one(sql, &[&int(after)], number)?.flatten();
            self.unread.0 = next.map_or(up_to, |death| death.saturating_sub(1).min(up_to));
        }
        Ok(())
    }

    /// The next death number it may have, and whether it is buffered or only lies beyond everything read so far.
    fn next(&self, scan: &LetterScan<'_>) -> Option<(u64, bool)> {
        match self.buffered.front() {
            Some((death, _)) => Some((*death, true)),
            None if self.is_exhausted() => None,
            None if scan.latest_first => Some((self.unread.1, false)),
            None => Some((self.unread.0.saturating_add(1), false)),
        }
    }
}

fn is_out_of_time(scan: &LetterScan<'_>) -> bool {
    scan.until.is_some_and(|until| Instant::now() >= until)
}

impl SqlTables {
    /// The death numbers of letters that may match; see [`crate::engine::tables::Reads::candidates`].
    pub(super) fn find_candidates(&self, scan: &LetterScan<'_>) -> TableResult<Candidates> {
        let plan = self.plan(scan)?;
        let start = if scan.latest_first { scan.up_to.saturating_add(1) } else { scan.after };
        let mut found = Candidates { reached: start, exact: plan.exact, ..Candidates::default() };
        for range in &plan.ranges {
            if !self.find_in(range, &plan, scan, &mut found)? {
                return Ok(found);
            }
        }
        found.ended = true;
        Ok(found)
    }

    /// Merges the sources of a range by death number. Returns whether it came to the end of the range.
    fn find_in(
        &self,
        range: &DeathRange,
        plan: &Plan,
        scan: &LetterScan<'_>,
        found: &mut Candidates,
    ) -> TableResult<bool> {
        let mut streams: Vec<Stream<'_>> =
            range.sources.iter().map(|source| Stream::new(source, range, plan, scan)).collect();
        let batch = (2 * BATCH / streams.len().max(1)).clamp(8, BATCH).min(scan.rows_max.max(1));
        // Do not read hundreds of rows to use a few of them: the next scan would read the rest again.
        let batch = batch.min(scan.candidates_max.max(BATCH_MIN));
        loop {
            for stream in streams.iter_mut().filter(|stream| stream.buffered.is_empty()) {
                found.looked_at += stream.fill(self, plan, scan, batch)?;
            }
            let heads =
                streams.iter().enumerate().filter_map(|(n, s)| s.next(scan).map(|(d, read)| (d, read, n)));
            let next = if scan.latest_first {
                heads.max_by_key(|(death, read, _)| (*death, !*read))
            } else {
                heads.min_by_key(|(death, read, _)| (*death, *read))
            };
            let Some((death, read, n)) = next else { return Ok(true) };
            if !read {
                // The time was up before this source reached its next letter; the next scan continues from here.
                found.reached =
                    if scan.latest_first { death.saturating_add(1) } else { death.saturating_sub(1) };
                return Ok(false);
            }
            let taken = streams.get_mut(n).and_then(|stream| stream.buffered.pop_front());
            let new = found.reached != death;
            found.reached = death;
            if new && taken.is_some_and(|(_, meets)| meets) {
                found.deaths.push(death);
            }
            let batch_is_used_up = streams.get(n).is_some_and(|stream| stream.buffered.is_empty());
            let looked_enough =
                batch_is_used_up && (found.looked_at >= scan.rows_max || is_out_of_time(scan));
            if found.deaths.len() >= scan.candidates_max || looked_enough {
                return Ok(false);
            }
        }
    }

    /// The letters with these death numbers, in the same order.
    pub(super) fn letters_by_death(&self, deaths: &[u64]) -> TableResult<Vec<(u64, TableResult<Letter>)>> {
        let mut letters = Vec::with_capacity(deaths.len());
        for death in deaths {
            letters.extend(self.all_letters("WHERE death = ?1", &[&int(*death)])?);
        }
        Ok(letters)
    }

    /// Summarises the matching letters, if the condition is exact.
    pub(super) fn exact_survey(&self, scan: &LetterScan<'_>) -> TableResult<Option<Survey>> {
        let plan = self.plan(scan)?;
        if !plan.exact {
            return Ok(None);
        }
        let groups = self.all("SELECT id, group_id FROM leaves", &[], |row| {
            Ok((row.get::<_, rows::Cell<LeafId>>(0)?.0, row.get::<_, rows::Cell<LeafId>>(1)?.0))
        })?;
        let groups: HashMap<LeafId, LeafId> = groups.into_iter().collect();
        let mut survey = Survey::default();
        let mut builder = SurveyBuilder { groups: &groups, queues: HashMap::new(), now: scan.now };
        for Source { from, death, condition, .. } in plan.sources() {
            let sql = format!(
                "SELECT leaf, queue, status, reason, dead_at, redrives, size, key IS NOT NULL, ordering_key IS NOT NULL \
                 FROM {from} WHERE {} AND {death} > ? AND {death} <= ? AND {}",
                condition.sql, plan.condition.sql,
            );
            let mut statement = sql_result(self.connection.prepare_cached(&sql))?;
            builder.run(&mut statement, scan, condition, &plan.condition, &mut survey)?;
        }
        Ok(Some(survey))
    }

    /// Copies the matching letters into the members of an operation, if the condition is exact. The number of rows is
    /// bounded and shared between the sources.
    pub(super) fn copy_members(&self, id: OperationId, scan: &LetterScan<'_>) -> TableResult<Option<Frozen>> {
        let plan = self.plan(scan)?;
        if !plan.exact {
            return Ok(None);
        }
        let per_source = (scan.rows_max / plan.sources().count().max(1)).max(EACH_SOURCE_MIN);
        let mut end = None;
        for Source { from, death, condition, .. } in plan.sources() {
            let sql = format!(
                "SELECT {death} FROM {from} WHERE {} AND {death} > ? AND {death} <= ? ORDER BY {death} LIMIT 1 OFFSET ?",
                condition.sql
            );
            let range = [int(scan.after), int(scan.up_to), int(per_source as u64 - 1)].map(Value::Integer);
            let params: Vec<&dyn ToSql> =
                condition.params.iter().chain(&range).map(|p| p as &dyn ToSql).collect();
            let last: Option<u64> = self.one(&sql, &params, |row| row.get(0))?;
            end = [end, last].into_iter().flatten().min();
        }
        let frozen_to = end.unwrap_or(scan.up_to);
        let operation = Value::Blob(id.to_bytes().to_vec());
        let mut members = 0;
        for Source { from, death, condition, .. } in plan.sources() {
            let sql = format!(
                "INSERT INTO members(operation, position, id, version, outcome) \
                 SELECT ?, letters.death, letters.id, letters.version, 'waiting' FROM {from} \
                 WHERE {} AND {death} > ? AND {death} <= ? AND {} ORDER BY {death}",
                condition.sql, plan.condition.sql
            );
            let range = [int(scan.after), int(frozen_to)].map(Value::Integer);
            let bound = std::iter::once(&operation).chain(&condition.params).chain(&range);
            let params: Vec<&dyn ToSql> =
                bound.chain(&plan.condition.params).map(|p| p as &dyn ToSql).collect();
            members += self.run(&sql, &params)? as u64;
        }
        Ok(Some(Frozen { members, frozen_to, exhausted: end.is_none() }))
    }
}

/// The minimum number of letters to freeze per source and call: each source costs two queries.
const EACH_SOURCE_MIN: usize = 16;

/// Adds rows to a survey. Parses the name of a queue once, not once per letter.
struct SurveyBuilder<'a> {
    groups: &'a HashMap<LeafId, LeafId>,
    queues: HashMap<String, QueueName>,
    now: Time,
}

impl SurveyBuilder<'_> {
    fn run(
        &mut self,
        statement: &mut Statement<'_>,
        scan: &LetterScan<'_>,
        found: &Condition,
        wanted: &Condition,
        survey: &mut Survey,
    ) -> TableResult<()> {
        let range = [int(scan.after), int(scan.up_to)].map(Value::Integer);
        let bound = found.params.iter().chain(&range).chain(&wanted.params);
        let params: Vec<&dyn ToSql> = bound.map(|p| p as &dyn ToSql).collect();
        let mut found = sql_result(statement.query(params.as_slice()))?;
        while let Some(row) = sql_result(found.next())? {
            self.add(row, survey)?;
        }
        Ok(())
    }

    fn add(&mut self, row: &Row<'_>, survey: &mut Survey) -> TableResult<()> {
        let text = |column: usize| -> TableResult<&str> {
            sql_result(row.get_ref(column))?.as_str().map_err(|_| damaged("a letter's row cannot be read"))
        };
        let name = text(1)?;
        if !self.queues.contains_key(name) {
            let queue = name.parse().map_err(|_| damaged(format!("{name:?} is not a queue's name")))?;
            self.queues.insert(name.to_owned(), queue);
        }
        let Some(queue) = self.queues.get(name) else { return Ok(()) };
        let leaf = sql_result(row.get::<_, rows::Cell<LeafId>>(0))?.0;
        let facts = LetterFacts {
            group: self.groups.get(&leaf).copied().unwrap_or(leaf),
            queue,
            status: text(2)?.parse().map_err(damaged)?,
            reason: text(3)?.parse().map_err(damaged)?,
            dead_at: sql_result(row.get::<_, rows::Cell<Time>>(4))?.0,
            redrives: sql_result(row.get(5))?,
            bytes: sql_result(row.get(6))?,
            keyed: sql_result(row.get(7))?,
            ordered: sql_result(row.get(8))?,
        };
        survey.add(&facts, self.now);
        Ok(())
    }
}
