//! Looking for letters: candidates in the order of deaths, counts, and members copied row by row inside SQLite.
//! Sources are merged by death; each is read in small batches, so a look can stop after any number of rows and say
//! where it stopped.

use super::errors::{damaged, kept};
use super::narrow::{Condition, Plan, Source, Stretch};
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

/// Rows read at once at least, however few candidates are wanted: not all of them meet the condition.
const BATCH_MIN: usize = 64;

/// A window of the text index takes about as long as so many rows, whether anything is found in it or not.
const WINDOW_COST: usize = 1_000;

/// What has been read of a source and not been taken yet.
struct Stream<'p> {
    source: &'p Source,
    sql: String,
    /// Deaths, and whether each meets the condition.
    ahead: VecDeque<(u64, bool)>,
    /// Deaths after this one, and up to that one, are still to be read.
    left: (u64, u64),
}

impl<'p> Stream<'p> {
    fn new(source: &'p Source, stretch: &Stretch, plan: &Plan, ask: &Ask<'_>) -> Self {
        let Source { from, death, condition, .. } = source;
        let order = if ask.latest_first { "DESC" } else { "ASC" };
        let sql = format!(
            "SELECT {death}, ({wanted}) FROM {from} WHERE {found} AND {death} > ? AND {death} <= ? \
             ORDER BY {death} {order} LIMIT ?",
            wanted = plan.condition.sql,
            found = condition.sql,
        );
        Self { source, sql, ahead: VecDeque::new(), left: (stretch.after, stretch.up_to) }
    }

    const fn is_dry(&self) -> bool {
        self.left.0 >= self.left.1
    }

    /// Reads the next batch if nothing is ahead; says how much that was, in rows. A source with a window may come back
    /// with nothing when time is up.
    fn fill(&mut self, tables: &SqlTables, plan: &Plan, ask: &Ask<'_>, batch: usize) -> Kept<usize> {
        let mut work = 0;
        while self.ahead.is_empty() && !self.is_dry() {
            let (mut after, mut up_to) = self.left;
            match self.source.window {
                Some(width) if ask.latest_first => after = after.max(up_to.saturating_sub(width)),
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
            match (last, ask.latest_first) {
                (Some(death), true) => self.left.1 = death.saturating_sub(1),
                (Some(death), false) => self.left.0 = death,
                (None, true) => self.left.1 = after,
                (None, false) => self.left.0 = up_to,
            }
            work += read.len() + self.source.window.map_or(0, |_| WINDOW_COST);
            if read.is_empty() && self.source.window.is_some() {
                self.skip_gap(tables, ask)?;
            }
            self.ahead = read.into();
            if is_late(ask) || work >= ask.rows {
                break;
            }
        }
        Ok(work)
    }

    /// Moves on to the next letter there is: deaths may have gaps of any width.
    fn skip_gap(&mut self, tables: &SqlTables, ask: &Ask<'_>) -> Kept<()> {
        let (after, up_to) = self.left;
        let number = |row: &Row<'_>| row.get::<_, Option<u64>>(0);
        if ask.latest_first {
            let sql = "SELECT max(death) FROM letters WHERE death <= ?1";
            let next = tables.one(sql, &[&int(up_to)], number)?.flatten();
            self.left.1 = next.unwrap_or(after).max(after);
        } else {
            let sql = "SELECT min(death) FROM letters WHERE death > ?1";
            let next = tables.one(sql, &[&int(after)], number)?.flatten();
            self.left.0 = next.map_or(up_to, |death| death.saturating_sub(1).min(up_to));
        }
        Ok(())
    }

    /// The next death it may still have: one that was read, or one beyond everything that was.
    fn next(&self, ask: &Ask<'_>) -> Option<(u64, bool)> {
        match self.ahead.front() {
            Some((death, _)) => Some((*death, true)),
            None if self.is_dry() => None,
            None if ask.latest_first => Some((self.left.1, false)),
            None => Some((self.left.0.saturating_add(1), false)),
        }
    }
}

fn is_late(ask: &Ask<'_>) -> bool {
    ask.until.is_some_and(|until| Instant::now() >= until)
}

impl SqlTables {
    /// The deaths of letters that may match; see [`crate::engine::tables::Reads::candidates`].
    pub(super) fn find(&self, ask: &Ask<'_>) -> Kept<Candidates> {
        let plan = self.plan(ask)?;
        let start = if ask.latest_first { ask.up_to.saturating_add(1) } else { ask.after };
        let mut found = Candidates { reached: start, exact: plan.exact, ..Candidates::default() };
        for stretch in &plan.stretches {
            if !self.find_in(stretch, &plan, ask, &mut found)? {
                return Ok(found);
            }
        }
        found.ended = true;
        Ok(found)
    }

    /// Merges the sources of a stretch by death; says whether it came to the end of it.
    fn find_in(&self, stretch: &Stretch, plan: &Plan, ask: &Ask<'_>, found: &mut Candidates) -> Kept<bool> {
        let mut streams: Vec<Stream<'_>> =
            stretch.sources.iter().map(|source| Stream::new(source, stretch, plan, ask)).collect();
        let batch = (2 * BATCH / streams.len().max(1)).clamp(8, BATCH).min(ask.rows.max(1));
        // Nobody reads hundreds of rows to use a few of them; the rest would be read again by the next look.
        let batch = batch.min(ask.hits.max(BATCH_MIN));
        loop {
            for stream in streams.iter_mut().filter(|stream| stream.ahead.is_empty()) {
                found.looked_at += stream.fill(self, plan, ask, batch)?;
            }
            let heads =
                streams.iter().enumerate().filter_map(|(n, s)| s.next(ask).map(|(d, read)| (d, read, n)));
            let next = if ask.latest_first {
                heads.max_by_key(|(death, read, _)| (*death, !*read))
            } else {
                heads.min_by_key(|(death, read, _)| (*death, *read))
            };
            let Some((death, read, n)) = next else { return Ok(true) };
            if !read {
                // Time was up before this source came to its next letter: it begins there the next time.
                found.reached =
                    if ask.latest_first { death.saturating_add(1) } else { death.saturating_sub(1) };
                return Ok(false);
            }
            let taken = streams.get_mut(n).and_then(|stream| stream.ahead.pop_front());
            let new = found.reached != death;
            found.reached = death;
            if new && taken.is_some_and(|(_, meets)| meets) {
                found.deaths.push(death);
            }
            let at_a_seam = streams.get(n).is_some_and(|stream| stream.ahead.is_empty());
            let looked_enough = at_a_seam && (found.looked_at >= ask.rows || is_late(ask));
            if found.deaths.len() >= ask.hits || looked_enough {
                return Ok(false);
            }
        }
    }

    /// The letters of these deaths, in their order.
    pub(super) fn letters_of(&self, deaths: &[u64]) -> Kept<Vec<(u64, Kept<Letter>)>> {
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
        for Source { from, death, condition, .. } in plan.sources() {
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
        let each = (ask.rows / plan.sources().count().max(1)).max(EACH_SOURCE_MIN);
        let mut end = None;
        for Source { from, death, condition, .. } in plan.sources() {
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
        for Source { from, death, condition, .. } in plan.sources() {
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

/// Letters of one source frozen at once, at least: of many sources each costs two questions.
const EACH_SOURCE_MIN: usize = 16;

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
