//! Reading PostgreSQL: one connection, prepared statements, and the questions of [`Base`] in SQL.

use super::connect::Session;
use super::search;
use crate::engine::tables::{Candidates, LetterScan, TableResult, damaged};
use crate::staged::{Base, Bytes, KeyRange, LetterQuery, Table};
use redrive_core::ids::{MessageId, QueueName};
use redrive_core::invariants::Verification;
use redrive_core::survey::Survey;
use redrive_core::time::Time;
use std::ops::Bound;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

/// A parameter of a statement.
pub(super) type Param<'a> = &'a (dyn ToSql + Sync);

/// The rows of a store in PostgreSQL, read on one connection.
#[derive(Debug)]
pub(crate) struct PgBase {
    pub(super) session: Session,
}

/// How the keys of a table are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyColumn {
    Uuid,
    Number,
    Bytes,
    /// In a table that several areas share.
    Area,
}

/// The name of the database's table, its key column and the type of that.
fn place(table: Table) -> (&'static str, &'static str, KeyColumn) {
    match table {
        Table::Live => ("messages", "id", KeyColumn::Uuid),
        Table::Letter => ("letters", "id", KeyColumn::Uuid),
        Table::Body => ("bodies", "seq", KeyColumn::Number),
        Table::Key => ("keys", "key", KeyColumn::Bytes),
        hot if hot.is_hot() => ("counters", "key", KeyColumn::Area),
        Table::Head
        | Table::Queue
        | Table::QueueCounts
        | Table::Failure
        | Table::Revision
        | Table::DlqCount
        | Table::OpenLetters
        | Table::Leaf
        | Table::LeafCount
        | Table::Group
        | Table::GroupActivity
        | Table::GroupHistory
        | Table::Marker
        | Table::Breaker
        | Table::EventCounter
        | Table::Operation
        | Table::OperationPosition
        | Table::Member
        | Table::Audit
        | Table::Kv => ("entries", "key", KeyColumn::Area),
    }
}

/// The number of an area.
pub(super) fn area(table: Table) -> i16 {
    table as i16
}

pub(super) fn uuid(key: &[u8]) -> TableResult<Uuid> {
    Uuid::from_slice(key).map_err(|_| damaged("an id has not 16 bytes"))
}

pub(super) fn number(key: &[u8]) -> TableResult<i64> {
    let bytes = <[u8; 8]>::try_from(key).map_err(|_| damaged("a number has not 8 bytes"))?;
    Ok(int(u64::from_be_bytes(bytes)))
}

/// An unsigned number as stored. No number here comes near the sign bit.
pub(super) fn int(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

fn limit_of(limit: usize) -> i64 {
    int(limit as u64)
}

fn column<'a, T: tokio_postgres::types::FromSql<'a>>(row: &'a Row, n: usize) -> TableResult<T> {
    row.try_get(n).map_err(|error| damaged(format!("a row of the database cannot be read: {error}")))
}

fn bytes(row: &Row, n: usize) -> TableResult<Bytes> {
    column::<&[u8]>(row, n).map(Bytes::from)
}

fn key_of(row: &Row, kind: KeyColumn) -> TableResult<Vec<u8>> {
    Ok(match kind {
        KeyColumn::Uuid => column::<Uuid>(row, 0)?.as_bytes().to_vec(),
        KeyColumn::Number => column::<i64>(row, 0)?.cast_unsigned().to_be_bytes().to_vec(),
        KeyColumn::Bytes | KeyColumn::Area => column::<&[u8]>(row, 0)?.to_vec(),
    })
}

/// A value of a key column, to be bound.
enum KeyValue {
    Uuid(Uuid),
    Number(i64),
    Bytes(Vec<u8>),
}

impl KeyValue {
    fn new(kind: KeyColumn, key: &[u8]) -> TableResult<Self> {
        Ok(match kind {
            KeyColumn::Uuid => Self::Uuid(uuid(key)?),
            KeyColumn::Number => Self::Number(number(key)?),
            KeyColumn::Bytes | KeyColumn::Area => Self::Bytes(key.to_vec()),
        })
    }

    fn param(&self) -> Param<'_> {
        match self {
            Self::Uuid(value) => value,
            Self::Number(value) => value,
            Self::Bytes(value) => value,
        }
    }
}

impl PgBase {
    /// The rows of a query.
    pub(super) fn query(&self, sql: &str, params: &[Param<'_>]) -> TableResult<Vec<Row>> {
        self.session.run(async {
            let statement = self.session.prepare(sql).await?;
            self.session.client().query(&statement, params).await
        })
    }

    fn one<T>(
        &self,
        sql: &str,
        params: &[Param<'_>],
        read: impl Fn(&Row) -> TableResult<T>,
    ) -> TableResult<Option<T>> {
        self.query(sql, params)?.first().map(read).transpose()
    }
}

/// The rows with these keys in one statement.
fn get_sql(name: &str, key: &str, kind: KeyColumn) -> String {
    match kind {
        KeyColumn::Area => format!("SELECT {key}, data FROM {name} WHERE {key} = ANY($1) AND area = $2"),
        KeyColumn::Uuid | KeyColumn::Number | KeyColumn::Bytes => {
            format!("SELECT {key}, data FROM {name} WHERE {key} = ANY($1)")
        }
    }
}

impl Base for PgBase {
    fn get(&self, wanted: &[(Table, Vec<Vec<u8>>)]) -> TableResult<Vec<(Table, Vec<u8>, Bytes)>> {
        // Every statement is sent before the first answer is waited for.
        let mut asked = Vec::with_capacity(wanted.len());
        for (table, keys) in wanted {
            let (name, key, kind) = place(*table);
            let param: Box<dyn ToSql + Sync + Send> = match kind {
                KeyColumn::Uuid => {
                    Box::new(keys.iter().map(|key| uuid(key)).collect::<TableResult<Vec<_>>>()?)
                }
                KeyColumn::Number => {
                    Box::new(keys.iter().map(|key| number(key)).collect::<TableResult<Vec<_>>>()?)
                }
                KeyColumn::Bytes | KeyColumn::Area => Box::new(keys.clone()),
            };
            asked.push((*table, kind, get_sql(name, key, kind), param));
        }
        let session = &self.session;
        let answers = session.run(async {
            let queries = asked.iter().map(|(table, kind, sql, param)| async move {
                let statement = session.prepare(sql).await?;
                let area = area(*table);
                let keys: Param<'_> = param.as_ref();
                let both: [Param<'_>; 2] = [keys, &area];
                let params = if *kind == KeyColumn::Area { &both[..] } else { &both[..1] };
                session.client().query(&statement, params).await
            });
            futures_util::future::try_join_all(queries).await
        })?;
        let mut found = Vec::new();
        for ((table, kind, _, _), rows) in asked.iter().zip(answers) {
            for row in &rows {
                found.push((*table, key_of(row, *kind)?, bytes(row, 1)?));
            }
        }
        Ok(found)
    }

    fn range(
        &self,
        table: Table,
        range: &KeyRange,
        reverse: bool,
        limit: usize,
    ) -> TableResult<Vec<(Vec<u8>, Bytes)>> {
        let (name, key, kind) = place(table);
        let (area, limit) = (area(table), limit_of(limit));
        let bound = |end: &Bound<Vec<u8>>, operators: (&'static str, &'static str)| {
            Ok(match end {
                Bound::Included(at) => Some((operators.0, KeyValue::new(kind, at)?)),
                Bound::Excluded(at) => Some((operators.1, KeyValue::new(kind, at)?)),
                Bound::Unbounded => None,
            })
        };
        let ends = [bound(&range.from, (">=", ">"))?, bound(&range.to, ("<=", "<"))?];
        let mut params: Vec<Param<'_>> = vec![&limit];
        let mut conditions = Vec::new();
        for (operator, value) in ends.iter().flatten() {
            params.push(value.param());
            conditions.push(format!("{key} {operator} ${}", params.len()));
        }
        if kind == KeyColumn::Area {
            params.push(&area);
            conditions.push(format!("area = ${}", params.len()));
        }
        let condition = if conditions.is_empty() { "TRUE".to_owned() } else { conditions.join(" AND ") };
        let order = if reverse { "DESC" } else { "ASC" };
        let sql = format!("SELECT {key}, data FROM {name} WHERE {condition} ORDER BY {key} {order} LIMIT $1");
        self.query(&sql, &params)?.iter().map(|row| Ok((key_of(row, kind)?, bytes(row, 1)?))).collect()
    }

    fn letters(&self, query: &LetterQuery<'_>, limit: usize) -> TableResult<Vec<(u64, MessageId, Bytes)>> {
        let limit = limit_of(limit);
        let select = "SELECT death, id, data FROM letters WHERE";
        let found = match query {
            LetterQuery::At(deaths) => {
                let deaths: Vec<i64> = deaths.iter().map(|death| int(*death)).collect();
                self.query(&format!("{select} death = ANY($1) ORDER BY death LIMIT $2"), &[&deaths, &limit])?
            }
            LetterQuery::Deaths { after, up_to } => self.query(
                &format!("{select} death > $1 AND death <= $2 ORDER BY death LIMIT $3"),
                &[&int(*after), &int(*up_to), &limit],
            )?,
            LetterQuery::Leasable { dlq, now } => self.query(
                &format!(
                    "{select} status = 'pending' AND dlq = $1 AND available_at <= $2 AND \
                     (snoozed_until IS NULL OR snoozed_until <= $2) AND (consumer_until IS NULL OR consumer_until <= $2) \
                     ORDER BY death LIMIT $3"
                ),
                &[&dlq.as_str(), &now.as_millis(), &limit],
            )?,
            LetterQuery::QuarantineEnded { now } => self.query(
                &format!("{select} status = 'quarantined' AND quarantined_until <= $1 ORDER BY quarantined_until, id LIMIT $2"),
                &[&now.as_millis(), &limit],
            )?,
            LetterQuery::OwingReplies { queue, redrives } => self.query(
                &format!(
                    "{select} owes_reply AND queue = $1 AND redrives >= $2 AND \
                     status NOT IN ('quarantined', 'retrying') ORDER BY redrives, death LIMIT $3"
                ),
                &[&queue.as_str(), &i64::from(*redrives), &limit],
            )?,
            LetterQuery::RetentionEnded { now } => self.query(
                &format!("{select} expires_at <= $1 AND status <> 'retrying' ORDER BY expires_at, id LIMIT $2"),
                &[&now.as_millis(), &limit],
            )?,
            LetterQuery::HoldingKeys => {
                self.query(&format!("{select} holds_key ORDER BY death LIMIT $1"), &[&limit])?
            }
            LetterQuery::OfLeaf(leaf) => self.query(
                &format!("{select} leaf = $1 ORDER BY death DESC LIMIT $2"),
                &[&leaf.get().cast_signed(), &limit],
            )?,
        };
        let read = |row: &Row| {
            let death = column::<i64>(row, 0)?.cast_unsigned();
            let id = MessageId::from_bytes(*column::<Uuid>(row, 1)?.as_bytes());
            Ok((death, id, bytes(row, 2)?))
        };
        found.iter().map(read).collect()
    }

    fn candidates(&self, scan: &LetterScan<'_>) -> TableResult<Candidates> {
        search::candidates(self, scan)
    }

    fn survey(&self, scan: &LetterScan<'_>) -> TableResult<Option<Survey>> {
        search::survey(self, scan)
    }

    fn scheduled(&self, queue: &QueueName, now: Time, without: &[MessageId]) -> TableResult<u64> {
        let without: Vec<Uuid> = without.iter().map(|id| Uuid::from_bytes(id.to_bytes())).collect();
        let sql =
            "SELECT count(*) FROM messages WHERE delayed AND queue = $1 AND ready_at > $2 AND id <> ALL($3)";
        let params: &[Param<'_>] = &[&queue.as_str(), &now.as_millis(), &without];
        let count = self.one(sql, params, |row| column::<i64>(row, 0))?;
        Ok(count.unwrap_or(0).cast_unsigned())
    }

    fn oldest_open(&self) -> TableResult<Option<Time>> {
        let sql = "SELECT dead_at FROM letters WHERE status IN ('pending', 'retrying', 'review', 'quarantined') \
                   ORDER BY dead_at LIMIT 1";
        self.one(sql, &[], |row| column(row, 0).map(Time::from_millis))
    }

    fn old_keys(&self, before: Time, limit: usize) -> TableResult<Vec<Vec<u8>>> {
        let sql = "SELECT key FROM keys WHERE created_at <= $1 ORDER BY created_at LIMIT $2";
        let rows = self.query(sql, &[&before.as_millis(), &limit_of(limit)])?;
        rows.iter().map(|row| column::<&[u8]>(row, 0).map(<[u8]>::to_vec)).collect()
    }

    fn ids_after(&self, table: Table, after: &[u8], limit: usize) -> TableResult<Vec<Vec<u8>>> {
        let (name, key, kind) = place(table);
        let (limit, area) = (limit_of(limit), area(table));
        let rows = match kind {
            KeyColumn::Uuid if after.is_empty() => {
                self.query(&format!("SELECT {key} FROM {name} ORDER BY {key} LIMIT $1"), &[&limit])?
            }
            KeyColumn::Uuid => self.query(
                &format!("SELECT {key} FROM {name} WHERE {key} > $1 ORDER BY {key} LIMIT $2"),
                &[&uuid(after)?, &limit],
            )?,
            KeyColumn::Number | KeyColumn::Bytes | KeyColumn::Area => self.query(
                &format!("SELECT {key} FROM {name} WHERE area = $3 AND {key} > $1 ORDER BY {key} LIMIT $2"),
                &[&after, &limit, &area],
            )?,
        };
        rows.iter().map(|row| key_of(row, kind)).collect()
    }

    fn check(&self, _: bool, verification: &mut Verification) -> TableResult<()> {
        for (what, sql) in ORPHANS {
            for row in self.query(sql, &[])? {
                verification.find("I4", format!("{what} {}", column::<i64>(&row, 0)?), false);
            }
        }
        let counts = "SELECT (SELECT count(*) FROM bodies), (SELECT count(*) FROM entries WHERE area = 13)";
        if let Some((payloads, failures)) =
            self.one(counts, &[], |row| Ok((column::<i64>(row, 0)?, column::<i64>(row, 1)?)))?
        {
            verification.payloads = payloads.cast_unsigned();
            verification.failures = failures.cast_unsigned();
        }
        Ok(())
    }
}

/// Orphaned or missing rows: a description, and the query that finds their sequence numbers.
const ORPHANS: [(&str, &str); 5] = [
    (
        "a payload belongs to no message: number",
        "SELECT b.seq FROM bodies b WHERE NOT EXISTS (SELECT 1 FROM messages m WHERE m.seq = b.seq) \
         AND NOT EXISTS (SELECT 1 FROM letters l WHERE l.seq = b.seq) LIMIT 1000",
    ),
    (
        "a message has no payload: number",
        "SELECT m.seq FROM messages m WHERE NOT EXISTS (SELECT 1 FROM bodies b WHERE b.seq = m.seq) LIMIT 1000",
    ),
    (
        "a dead letter has no payload: number",
        "SELECT l.seq FROM letters l WHERE NOT EXISTS (SELECT 1 FROM bodies b WHERE b.seq = l.seq) LIMIT 1000",
    ),
    (
        "a failure belongs to no message: number",
        "SELECT DISTINCT f.seq FROM (SELECT ('x' || encode(substring(key from 1 for 8), 'hex'))::bit(64)::bigint AS seq \
         FROM entries WHERE area = 13) f WHERE NOT EXISTS (SELECT 1 FROM messages m WHERE m.seq = f.seq) \
         AND NOT EXISTS (SELECT 1 FROM letters l WHERE l.seq = f.seq) LIMIT 1000",
    ),
    (
        "a revision belongs to no letter: number",
        "SELECT DISTINCT f.seq FROM (SELECT ('x' || encode(substring(key from 1 for 8), 'hex'))::bit(64)::bigint AS seq \
         FROM entries WHERE area = 14) f WHERE NOT EXISTS (SELECT 1 FROM letters l WHERE l.seq = f.seq) LIMIT 1000",
    ),
];
