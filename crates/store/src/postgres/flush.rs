//! Writing what a group changed: the fence and every table in one statement, in one round trip.
//!
//! The parts of the statement are data-modifying common table expressions over arrays, each joined with the fence. They
//! have no order among themselves, so a row is in at most one of them.

use super::base::{Param, area, int, number, uuid};
use super::inbox::Taken;
use super::term::{Term, WALL};
use crate::engine::tables::{Letter, TableResult};
use crate::staged::{Change, Changes, Columns, Table};
use redrive_core::ids::QueueName;
use redrive_core::time::Time;
use std::fmt::Write as _;
use tokio_postgres::types::ToSql;

/// A statement and its parameters.
pub(super) struct Flush<'a> {
    pub(super) sql: String,
    params: Vec<Box<dyn ToSql + Sync + 'a>>,
}

impl<'a> Flush<'a> {
    pub(super) fn params(&self) -> Vec<Param<'_>> {
        self.params
            .iter()
            .map(|param| {
                let param: Param<'_> = param.as_ref();
                param
            })
            .collect()
    }

    /// The statement that commits these changes under a term.
    pub(super) fn new(changes: &'a Changes, taken: &'a Taken, term: &Term, clock: Time) -> TableResult<Self> {
        let mut building = Building {
            flush: Flush {
                sql: "WITH fence AS (UPDATE holder SET commit = commit + 1, clock = greatest(clock, $4), \
                      seen_at = clock_timestamp() WHERE term = $1 AND nonce = $2 AND commit = $3 RETURNING 1)"
                    .to_owned(),
                params: vec![
                    Box::new(term.term),
                    Box::new(term.nonce),
                    Box::new(term.commit),
                    Box::new(clock.as_millis()),
                ],
            },
            checks: String::new(),
        };
        let of = |table: Table| {
            let rows = changes.rows.range((table, Vec::new())..);
            rows.take_while(move |((of, _), _)| *of == table).map(|((_, key), change)| (key, change))
        };
        building.messages(of(Table::Live).collect())?;
        building.bodies(of(Table::Body).collect())?;
        building.letters(of(Table::Letter).collect())?;
        building.keys(of(Table::Key).collect());
        building.entries(changes);
        building.ranges(changes);
        building.inbox(taken);
        let Building { mut flush, checks } = building;
        let _ = write!(flush.sql, " SELECT (SELECT count(*) FROM fence), {WALL}{checks}");
        Ok(flush)
    }
}

type Rows<'a> = Vec<(&'a Vec<u8>, &'a Change)>;

struct Building<'a> {
    flush: Flush<'a>,
    checks: String,
}

impl<'a> Building<'a> {
    /// Binds a value. Returns its place in the statement.
    fn bind(&mut self, value: impl ToSql + Sync + 'a) -> String {
        self.flush.params.push(Box::new(value));
        format!("${}", self.flush.params.len())
    }

    fn part(&mut self, name: &str, sql: &str) {
        let _ = write!(self.flush.sql, ", {name} AS ({sql})");
    }

    /// Ends the commit if a part did not touch as many rows as it names: two tables would disagree (I13).
    fn expect(&mut self, name: &str, count: usize) {
        let expected = self.bind(int(count as u64));
        let _ = write!(
            self.checks,
            ", CASE WHEN (SELECT count(*) FROM fence) = 1 AND (SELECT count(*) FROM {name}) <> {expected} \
             THEN refuse_commit('{name}') ELSE 0 END"
        );
    }

    fn messages(&mut self, rows: Rows<'a>) -> TableResult<()> {
        let (mut added, mut changed, mut dropped) =
            (LiveColumns::default(), LiveColumns::default(), Vec::new());
        for (key, change) in rows {
            match (&change.row, &change.columns) {
                (Some(row), Columns::Live { seq, queue, ready_at, delayed }) => {
                    let to = if change.fresh { &mut added } else { &mut changed };
                    to.ids.push(uuid(key)?);
                    to.seqs.push(int(*seq));
                    to.queues.push(queue.as_str());
                    to.ready.push(ready_at.as_millis());
                    to.delayed.push(*delayed);
                    to.data.push(row.as_ref());
                }
                (Some(_) | None, _) => dropped.push(uuid(key)?),
            }
        }
        if !added.ids.is_empty() {
            let unnest = self.bind_live(added);
            let sql = format!(
                "INSERT INTO messages(id, seq, queue, ready_at, delayed, data) \
                 SELECT u.id, u.seq, u.queue, u.ready_at, u.delayed, u.data FROM fence, {unnest}"
            );
            self.part("add_messages", &sql);
        }
        if !changed.ids.is_empty() {
            let count = changed.ids.len();
            let unnest = self.bind_live(changed);
            let sql = format!(
                "UPDATE messages m SET queue = u.queue, ready_at = u.ready_at, delayed = u.delayed, data = u.data \
                 FROM fence, {unnest} WHERE m.id = u.id RETURNING 1"
            );
            self.part("put_messages", &sql);
            self.expect("put_messages", count);
        }
        if !dropped.is_empty() {
            let count = dropped.len();
            let ids = self.bind(dropped);
            let sql = format!(
                "DELETE FROM messages m USING fence, unnest({ids}::uuid[]) AS u(id) WHERE m.id = u.id RETURNING 1"
            );
            self.part("drop_messages", &sql);
            self.expect("drop_messages", count);
        }
        Ok(())
    }

    fn bind_live(&mut self, columns: LiveColumns<'a>) -> String {
        let (ids, seqs, queues) =
            (self.bind(columns.ids), self.bind(columns.seqs), self.bind(columns.queues));
        let (ready, delayed, data) =
            (self.bind(columns.ready), self.bind(columns.delayed), self.bind(columns.data));
        format!(
            "unnest({ids}::uuid[], {seqs}::bigint[], {queues}::text[], {ready}::bigint[], {delayed}::boolean[], \
             {data}::bytea[]) AS u(id, seq, queue, ready_at, delayed, data)"
        )
    }

    fn bodies(&mut self, rows: Rows<'a>) -> TableResult<()> {
        let (mut seqs, mut data, mut dropped) = (Vec::new(), Vec::<&[u8]>::new(), Vec::new());
        for (key, change) in rows {
            match &change.row {
                Some(row) => {
                    seqs.push(number(key)?);
                    data.push(row.as_ref());
                }
                None => dropped.push(number(key)?),
            }
        }
        if !seqs.is_empty() {
            let (seqs, data) = (self.bind(seqs), self.bind(data));
            let sql = format!(
                "INSERT INTO bodies(seq, data) SELECT u.seq, u.data FROM fence, \
                 unnest({seqs}::bigint[], {data}::bytea[]) AS u(seq, data) \
                 ON CONFLICT (seq) DO UPDATE SET data = excluded.data"
            );
            self.part("put_bodies", &sql);
        }
        if !dropped.is_empty() {
            let count = dropped.len();
            let seqs = self.bind(dropped);
            let sql = format!(
                "DELETE FROM bodies b USING fence, unnest({seqs}::bigint[]) AS u(seq) WHERE b.seq = u.seq RETURNING 1"
            );
            self.part("drop_bodies", &sql);
            self.expect("drop_bodies", count);
        }
        Ok(())
    }

    fn letters(&mut self, rows: Rows<'a>) -> TableResult<()> {
        let (mut put, mut dropped): (Vec<(&Letter, &[u8])>, _) = (Vec::new(), Vec::new());
        for (key, change) in rows {
            match (&change.row, &change.columns) {
                (Some(row), Columns::Letter(letter)) => put.push((letter, row.as_ref())),
                (Some(_) | None, _) => dropped.push(uuid(key)?),
            }
        }
        if !put.is_empty() {
            let (names, unnest) = self.bind_letters(&put);
            let columns = names.join(", ");
            let values: Vec<String> = names.iter().map(|name| format!("u.{name}")).collect();
            let set: Vec<String> =
                names.iter().skip(1).map(|name| format!("{name} = excluded.{name}")).collect();
            let sql = format!(
                "INSERT INTO letters({columns}) SELECT {} FROM fence, {unnest} ON CONFLICT (id) DO UPDATE SET {}",
                values.join(", "),
                set.join(", ")
            );
            self.part("put_letters", &sql);
        }
        if !dropped.is_empty() {
            let ids = self.bind(dropped);
            let sql = format!(
                "DELETE FROM letters l USING fence, unnest({ids}::uuid[]) AS u(id) WHERE l.id = u.id"
            );
            self.part("drop_letters", &sql);
        }
        Ok(())
    }

    /// Binds the columns of letters. Returns their names, the id first, and the table they make.
    fn bind_letters(&mut self, put: &[(&'a Letter, &'a [u8])]) -> (Vec<&'static str>, String) {
        let mut bound: Vec<(&'static str, &'static str, String)> = Vec::new();
        macro_rules! bind {
            ($name:literal, $type:literal, |$letter:ident| $value:expr) => {
                let values: Vec<_> = put.iter().map(|($letter, _)| $value).collect();
                bound.push(($name, $type, self.bind(values)));
            };
        }
        bind!("id", "uuid", |l| uuid::Uuid::from_bytes(l.meta.id.to_bytes()));
        bind!("death", "bigint", |l| int(l.death));
        bind!("seq", "bigint", |l| int(l.meta.seq));
        bind!("queue", "text", |l| l.meta.queue.as_str());
        bind!("kind", "text", |l| l.meta.kind.as_str());
        bind!("priority", "bigint", |l| int(l.meta.priority.level() as u64));
        bind!("size", "bigint", |l| int(l.meta.size));
        bind!("key", "text", |l| l.meta.key.as_deref());
        bind!("ordering_key", "text", |l| l.meta.ordering_key.as_deref());
        bind!("dlq", "text", |l| QueueName::as_str(&l.record.dlq));
        bind!("status", "text", |l| l.record.status.name());
        bind!("reason", "text", |l| l.record.reason.name());
        bind!("route", "text", |l| l.record.route.name());
        bind!("category", "text", |l| l.record.category.name());
        bind!("severity", "text", |l| l.record.severity.name());
        bind!("leaf", "bigint", |l| l.record.leaf.get().cast_signed());
        bind!("redrives", "bigint", |l| i64::from(l.record.redrives));
        bind!("dead_at", "bigint", |l| l.record.dead_at.as_millis());
        bind!("last_failed_at", "bigint", |l| l.record.last_failed_at.map(Time::as_millis));
        bind!("expires_at", "bigint", |l| l.record.expires_at.map(Time::as_millis));
        bind!("quarantined_until", "bigint", |l| l.record.quarantined_until.map(Time::as_millis));
        bind!("holds_key", "boolean", |l| l.record.holds_key);
        bind!("available_at", "bigint", |l| l.record.available_at.as_millis());
        bind!("consumer_until", "bigint", |l| l.record.consumer_until.map(Time::as_millis));
        bind!("version", "bigint", |l| int(l.record.version));
        bind!("snoozed_until", "bigint", |l| l.record.snoozed_until.map(Time::as_millis));
        bind!("owner", "text", |l| l.record.owner.as_deref());
        bind!("held", "boolean", |l| l.record.held);
        bind!("owes_reply", "boolean", |l| l.record.owes_reply);
        let data: Vec<&[u8]> = put.iter().map(|(_, row)| *row).collect();
        bound.push(("data", "bytea", self.bind(data)));
        let names: Vec<&'static str> = bound.iter().map(|(name, _, _)| *name).collect();
        let arrays: Vec<String> = bound.iter().map(|(_, kind, place)| format!("{place}::{kind}[]")).collect();
        (names.clone(), format!("unnest({}) AS u({})", arrays.join(", "), names.join(", ")))
    }

    fn keys(&mut self, rows: Rows<'a>) {
        let (mut keys, mut created, mut data) = (Vec::<&[u8]>::new(), Vec::new(), Vec::<&[u8]>::new());
        let mut dropped: Vec<&[u8]> = Vec::new();
        for (key, change) in rows {
            match (&change.row, &change.columns) {
                (Some(row), Columns::Key(at)) => {
                    keys.push(key);
                    created.push(at.as_millis());
                    data.push(row);
                }
                (Some(_) | None, _) => dropped.push(key),
            }
        }
        if !keys.is_empty() {
            let (keys, created, data) = (self.bind(keys), self.bind(created), self.bind(data));
            let sql = format!(
                "INSERT INTO keys(key, created_at, data) SELECT u.key, u.created_at, u.data FROM fence, \
                 unnest({keys}::bytea[], {created}::bigint[], {data}::bytea[]) AS u(key, created_at, data) \
                 ON CONFLICT (key) DO UPDATE SET created_at = excluded.created_at, data = excluded.data"
            );
            self.part("put_keys", &sql);
        }
        if !dropped.is_empty() {
            let keys = self.bind(dropped);
            let sql = format!(
                "DELETE FROM keys k USING fence, unnest({keys}::bytea[]) AS u(key) WHERE k.key = u.key"
            );
            self.part("drop_keys", &sql);
        }
    }

    /// Rows of the tables that several areas share.
    fn entries(&mut self, changes: &'a Changes) {
        for (name, hot) in [("entries", false), ("counters", true)] {
            let (mut put, mut dropped) = (EntryColumns::default(), EntryColumns::default());
            let own = |table: Table| matches!(table, Table::Live | Table::Body | Table::Letter | Table::Key);
            let of_name = changes.rows.iter().filter(|((table, _), _)| !own(*table) && table.is_hot() == hot);
            for ((table, key), change) in of_name {
                match &change.row {
                    Some(row) => {
                        put.areas.push(area(*table));
                        put.keys.push(key);
                        put.data.push(row);
                    }
                    None => {
                        dropped.areas.push(area(*table));
                        dropped.keys.push(key);
                    }
                }
            }
            if !put.areas.is_empty() {
                let (areas, keys, data) = (self.bind(put.areas), self.bind(put.keys), self.bind(put.data));
                let sql = format!(
                    "INSERT INTO {name}(area, key, data) SELECT u.area, u.key, u.data FROM fence, \
                     unnest({areas}::smallint[], {keys}::bytea[], {data}::bytea[]) AS u(area, key, data) \
                     ON CONFLICT (area, key) DO UPDATE SET data = excluded.data"
                );
                self.part(&format!("put_{name}"), &sql);
            }
            if !dropped.areas.is_empty() {
                let (areas, keys) = (self.bind(dropped.areas), self.bind(dropped.keys));
                let sql = format!(
                    "DELETE FROM {name} e USING fence, unnest({areas}::smallint[], {keys}::bytea[]) AS u(area, key) \
                     WHERE e.area = u.area AND e.key = u.key"
                );
                self.part(&format!("drop_{name}"), &sql);
            }
        }
    }

    /// Rows of the inbox whose messages are enqueued by this commit, or refused.
    fn inbox(&mut self, taken: &'a Taken) {
        if !taken.enqueued.is_empty() {
            let count = taken.enqueued.len();
            let numbers = self.bind(taken.enqueued.as_slice());
            let sql = format!(
                "DELETE FROM inbox i USING fence, unnest({numbers}::bigint[]) AS u(n) WHERE i.n = u.n RETURNING 1"
            );
            self.part("drop_inbox", &sql);
            self.expect("drop_inbox", count);
        }
        if !taken.refused.is_empty() {
            let numbers: Vec<i64> = taken.refused.iter().map(|(n, _)| *n).collect();
            let reasons: Vec<&str> = taken.refused.iter().map(|(_, why)| why.as_str()).collect();
            let (numbers, reasons) = (self.bind(numbers), self.bind(reasons));
            let sql = format!(
                "UPDATE inbox i SET refused = u.why FROM fence, unnest({numbers}::bigint[], {reasons}::text[]) AS u(n, why) \
                 WHERE i.n = u.n"
            );
            self.part("refuse_inbox", &sql);
        }
    }

    /// Ranges of rows that are removed. Only `entries` has such tables.
    fn ranges(&mut self, changes: &'a Changes) {
        if changes.dropped.is_empty() {
            return;
        }
        let (mut areas, mut first, mut last) = (Vec::new(), Vec::<&[u8]>::new(), Vec::<&[u8]>::new());
        for ((table, from), to) in &changes.dropped {
            areas.push(area(*table));
            first.push(from);
            last.push(to);
        }
        let (areas, first, last) = (self.bind(areas), self.bind(first), self.bind(last));
        let sql = format!(
            "DELETE FROM entries e USING fence, unnest({areas}::smallint[], {first}::bytea[], {last}::bytea[]) \
             AS u(area, first, last) WHERE e.area = u.area AND e.key >= u.first AND e.key <= u.last"
        );
        self.part("drop_ranges", &sql);
    }
}

#[derive(Default)]
struct LiveColumns<'a> {
    ids: Vec<uuid::Uuid>,
    seqs: Vec<i64>,
    queues: Vec<&'a str>,
    ready: Vec<i64>,
    delayed: Vec<bool>,
    data: Vec<&'a [u8]>,
}

#[derive(Default)]
struct EntryColumns<'a> {
    areas: Vec<i16>,
    keys: Vec<&'a [u8]>,
    data: Vec<&'a [u8]>,
}
