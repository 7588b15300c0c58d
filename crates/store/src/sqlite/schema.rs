//! The tables of the embedded store, and their migrations. Versions only go up: each step is one transaction that
//! also writes the version it leads to, so a crash in the middle repeats the step (I47). A file with a newer version
//! is refused and left unchanged.

use super::checksums;
use super::errors::sql_result;
use super::reads::SqlTables;
use super::rows::{self, LEASE, LIFECYCLE, META, SEARCH_COLUMNS};
use crate::engine::tables::{Reads as _, TableResult, Tables as _};
use redrive_core::error::{StoreError, StoreErrorKind};
use redrive_core::group::{self, GroupRow};
use rusqlite::Connection;
use rusqlite::types::{ToSql, Value};

/// "RDRV": marks a SQLite file as ours.
pub(super) const APPLICATION_ID: i32 = 0x5244_5256;

/// What each version adds to the one before. The first creates the tables.
const STEPS: [&str; 5] = [VERSION_1, VERSION_2, VERSION_3, VERSION_4, VERSION_5];

/// Bodies are keyed by sequence number and only appended; what changes is in narrow rows apart from them. The
/// columns of `letters` after `file` repeat values from it, for SQL to search by; they are never read back.
const VERSION_1: &str = "
CREATE TABLE head(
  one INTEGER PRIMARY KEY CHECK(one = 1), seq INTEGER NOT NULL, death INTEGER NOT NULL,
  audit_n INTEGER NOT NULL, audit_seal TEXT NOT NULL, commits INTEGER NOT NULL, clock INTEGER NOT NULL);
CREATE TABLE queues(
  name TEXT PRIMARY KEY, policy TEXT NOT NULL, paused_by TEXT, enqueued INTEGER NOT NULL,
  waiting INTEGER NOT NULL, leased INTEGER NOT NULL, dead INTEGER NOT NULL, done INTEGER NOT NULL,
  cancelled INTEGER NOT NULL, expired INTEGER NOT NULL, purged INTEGER NOT NULL, bytes INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE messages(
  id BLOB PRIMARY KEY, seq INTEGER NOT NULL, queue TEXT NOT NULL, kind TEXT NOT NULL, priority INTEGER NOT NULL,
  size INTEGER NOT NULL, key TEXT, ordering_key TEXT, max_attempts INTEGER, ttl_ends_at INTEGER, deadline INTEGER,
  phase INTEGER NOT NULL DEFAULT 0, ready_at INTEGER NOT NULL, attempts INTEGER NOT NULL DEFAULT 0,
  deliveries INTEGER NOT NULL DEFAULT 0, generation INTEGER NOT NULL DEFAULT 1, given_back INTEGER NOT NULL DEFAULT 0,
  failed INTEGER NOT NULL DEFAULT 0, failing_since INTEGER, last_delay INTEGER, first_received_at INTEGER,
  updated_at INTEGER NOT NULL, delayed INTEGER NOT NULL DEFAULT 0, secret BLOB, worker TEXT, granted_at INTEGER,
  lease_expires_at INTEGER
) WITHOUT ROWID;
CREATE INDEX messages_delayed ON messages(queue, ready_at) WHERE delayed = 1;
CREATE TABLE bodies(
  seq INTEGER PRIMARY KEY, enqueued_at INTEGER NOT NULL, ttl INTEGER, rest BLOB, content_type TEXT NOT NULL,
  payload BLOB NOT NULL, packed INTEGER NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE failures(
  seq INTEGER NOT NULL, n INTEGER NOT NULL, body TEXT NOT NULL, stack BLOB, PRIMARY KEY(seq, n)
) WITHOUT ROWID;
CREATE TABLE stacks(hash BLOB PRIMARY KEY, body TEXT NOT NULL, uses INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE keys(
  queue TEXT NOT NULL, key TEXT NOT NULL, id BLOB NOT NULL, body_hash BLOB NOT NULL, created_at INTEGER NOT NULL,
  ended TEXT, PRIMARY KEY(queue, key)
) WITHOUT ROWID;
CREATE INDEX keys_created ON keys(created_at);
CREATE TABLE letters(
  death INTEGER PRIMARY KEY, id BLOB NOT NULL UNIQUE, seq INTEGER NOT NULL, queue TEXT NOT NULL, kind TEXT NOT NULL,
  priority INTEGER NOT NULL, size INTEGER NOT NULL, key TEXT, ordering_key TEXT, max_attempts INTEGER,
  ttl_ends_at INTEGER, deadline INTEGER, ready_at INTEGER NOT NULL, attempts INTEGER NOT NULL,
  deliveries INTEGER NOT NULL, generation INTEGER NOT NULL, given_back INTEGER NOT NULL, failed INTEGER NOT NULL,
  failing_since INTEGER, last_delay INTEGER, first_received_at INTEGER, updated_at INTEGER NOT NULL,
  file TEXT NOT NULL, secret BLOB,
  dlq TEXT NOT NULL, status TEXT NOT NULL, reason TEXT NOT NULL, route TEXT NOT NULL, category TEXT NOT NULL,
  severity TEXT NOT NULL, leaf INTEGER NOT NULL, redrives INTEGER NOT NULL, dead_at INTEGER NOT NULL,
  last_failed_at INTEGER, expires_at INTEGER, quarantined_until INTEGER, holds_key INTEGER NOT NULL,
  available_at INTEGER NOT NULL, consumer_until INTEGER);
CREATE INDEX letters_leaf ON letters(leaf, death);
CREATE INDEX letters_pending ON letters(dlq, death) WHERE status = 'pending';
CREATE INDEX letters_quarantined ON letters(quarantined_until) WHERE status = 'quarantined';
CREATE INDEX letters_expiring ON letters(expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX letters_holding ON letters(holds_key) WHERE holds_key = 1;
CREATE TABLE drawers(dlq TEXT NOT NULL, status TEXT NOT NULL, count INTEGER NOT NULL, PRIMARY KEY(dlq, status))
WITHOUT ROWID;
CREATE TABLE leaves(
  id INTEGER PRIMARY KEY, group_id INTEGER NOT NULL, template TEXT NOT NULL, error_type TEXT NOT NULL);
CREATE TABLE leaf_counts(
  leaf INTEGER NOT NULL, queue TEXT NOT NULL, kind TEXT NOT NULL, open INTEGER NOT NULL, total INTEGER NOT NULL,
  failures INTEGER NOT NULL, first_seen INTEGER NOT NULL, last_seen INTEGER NOT NULL,
  PRIMARY KEY(leaf, queue, kind)
) WITHOUT ROWID;
CREATE TABLE operations(position INTEGER PRIMARY KEY AUTOINCREMENT, id BLOB NOT NULL UNIQUE, body TEXT NOT NULL);
CREATE TABLE members(
  operation BLOB NOT NULL, position INTEGER NOT NULL, id BLOB NOT NULL, version INTEGER NOT NULL,
  outcome TEXT NOT NULL, PRIMARY KEY(operation, position)
) WITHOUT ROWID;
CREATE INDEX members_waiting ON members(operation, position) WHERE outcome = 'waiting';
CREATE TABLE audit(n INTEGER PRIMARY KEY, entry TEXT NOT NULL, seal TEXT NOT NULL);
CREATE TABLE kv(
  namespace TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, version INTEGER NOT NULL,
  PRIMARY KEY(namespace, key)
) WITHOUT ROWID;
INSERT INTO head VALUES(1, 0, 0, 0, '0000000000000000000000000000000000000000000000000000000000000000', 0, 0);
";

/// Breakers, the indicators of failing messages, the histories of groups, and all that the template tree needs to
/// know of a leaf.
const VERSION_2: &str = "
ALTER TABLE messages ADD COLUMN breaker TEXT;
ALTER TABLE messages ADD COLUMN indicators TEXT;
ALTER TABLE messages ADD COLUMN permit INTEGER;
ALTER TABLE letters ADD COLUMN breaker TEXT;
ALTER TABLE letters ADD COLUMN indicators TEXT;
ALTER TABLE leaves ADD COLUMN code TEXT;
ALTER TABLE leaves ADD COLUMN frame TEXT;
ALTER TABLE leaves ADD COLUMN version INTEGER NOT NULL DEFAULT 1;
ALTER TABLE leaves ADD COLUMN n INTEGER NOT NULL DEFAULT 0;
ALTER TABLE leaves ADD COLUMN pinned INTEGER;
ALTER TABLE leaves ADD COLUMN fixed INTEGER NOT NULL DEFAULT 0;
CREATE TABLE breakers(queue TEXT NOT NULL, key TEXT NOT NULL, body TEXT NOT NULL, PRIMARY KEY(queue, key)) WITHOUT ROWID;
CREATE TABLE standings(group_id INTEGER PRIMARY KEY, body TEXT NOT NULL);
";

/// Reply queues, moved out of the bodies; the progress of messages; and event counters, which start with this
/// version. An unreadable body stays as it is: no reply is sent for its message.
const VERSION_3: &str = "
ALTER TABLE messages ADD COLUMN reply_to TEXT;
ALTER TABLE messages ADD COLUMN progress TEXT;
ALTER TABLE letters ADD COLUMN reply_to TEXT;
ALTER TABLE letters ADD COLUMN progress TEXT;
UPDATE messages SET reply_to = (SELECT json_extract(CAST(rest AS TEXT), '$.reply_to') FROM bodies b
  WHERE b.seq = messages.seq AND rest IS NOT NULL AND json_valid(CAST(rest AS TEXT)));
UPDATE letters SET reply_to = (SELECT json_extract(CAST(rest AS TEXT), '$.reply_to') FROM bodies b
  WHERE b.seq = letters.seq AND rest IS NOT NULL AND json_valid(CAST(rest AS TEXT)));
ALTER TABLE queues ADD COLUMN peak INTEGER NOT NULL DEFAULT 0;
ALTER TABLE queues ADD COLUMN dead_peak INTEGER NOT NULL DEFAULT 0;
UPDATE queues SET peak = waiting + leased, dead_peak = dead;
CREATE TABLE tallies(
  metric TEXT NOT NULL, queue TEXT NOT NULL, label TEXT NOT NULL, count INTEGER NOT NULL, sum INTEGER NOT NULL,
  max INTEGER NOT NULL, since INTEGER NOT NULL, PRIMARY KEY(metric, queue, label)
) WITHOUT ROWID;
";

/// Triage. The version of a letter gets a column of its own, so that members can be frozen without reading the record.
const VERSION_4: &str = "
ALTER TABLE letters ADD COLUMN version INTEGER NOT NULL DEFAULT 0;
UPDATE letters SET version = coalesce(json_extract(file, '$.version'), 0) WHERE json_valid(file);
CREATE TABLE revisions(
  seq INTEGER NOT NULL, n INTEGER NOT NULL, rest BLOB, content_type TEXT NOT NULL, payload BLOB NOT NULL,
  packed INTEGER NOT NULL, checksum INTEGER NOT NULL, PRIMARY KEY(seq, n));
ALTER TABLE members ADD COLUMN why TEXT;
DROP INDEX members_waiting;
UPDATE operations SET body = json_set(body, '$.waiting', coalesce(json_extract(body, '$.members'), 0)
  - coalesce(json_extract(body, '$.succeeded'), 0) - coalesce(json_extract(body, '$.skipped'), 0))
  WHERE json_valid(body) AND json_extract(body, '$.waiting') IS NULL;
CREATE INDEX leaves_group ON leaves(group_id);
CREATE TABLE group_rows(id INTEGER PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE group_facts(id INTEGER PRIMARY KEY, body TEXT NOT NULL);
CREATE TABLE markers(n INTEGER PRIMARY KEY, body TEXT NOT NULL);
CREATE INDEX letters_key ON letters(key, death) WHERE key IS NOT NULL;
CREATE INDEX letters_rare ON letters(status, death) WHERE status IN ('review', 'quarantined');
ALTER TABLE messages ADD COLUMN origin TEXT;
ALTER TABLE letters ADD COLUMN origin TEXT;
ALTER TABLE letters ADD COLUMN snoozed_until INTEGER;
ALTER TABLE letters ADD COLUMN owner TEXT;
ALTER TABLE letters ADD COLUMN held INTEGER NOT NULL DEFAULT 0;
CREATE VIRTUAL TABLE letters_text USING fts5(
  threes, content='', contentless_delete=1, detail='none', columnsize=1, tokenize='trigram case_sensitive 1');
CREATE TABLE text_head(one INTEGER PRIMARY KEY CHECK(one = 1), indexed_to INTEGER NOT NULL);
CREATE TABLE text_stale(death INTEGER PRIMARY KEY, n INTEGER NOT NULL);
INSERT INTO text_head VALUES(1, 0);
";

/// Checksums of failures and of the rows that decisions depend on, so that damage is reported instead of served; a
/// table for what is left of damaged records; the machine's uptime and boot at the time the clock was persisted
/// (ADR 0030). Groups get the code of their errors, for lists to show it.
const VERSION_5: &str = "
ALTER TABLE messages ADD COLUMN checksum INTEGER;
ALTER TABLE letters ADD COLUMN checksum INTEGER;
ALTER TABLE failures ADD COLUMN checksum INTEGER;
ALTER TABLE stacks ADD COLUMN checksum INTEGER;
CREATE TABLE damaged(n INTEGER PRIMARY KEY, place TEXT NOT NULL, seq INTEGER, at INTEGER NOT NULL, cells TEXT NOT NULL);
ALTER TABLE head ADD COLUMN boot TEXT;
ALTER TABLE head ADD COLUMN uptime INTEGER;
UPDATE group_rows SET body = json_set(body, '$.sums.code', (SELECT code FROM leaves WHERE leaves.id = group_rows.id))
  WHERE json_valid(body) AND (SELECT code FROM leaves WHERE leaves.id = group_rows.id) IS NOT NULL;
ALTER TABLE letters ADD COLUMN owes_reply INTEGER NOT NULL DEFAULT 0;
ALTER TABLE head ADD COLUMN messages_peak INTEGER NOT NULL DEFAULT 0;
ALTER TABLE head ADD COLUMN letters_peak INTEGER NOT NULL DEFAULT 0;
UPDATE head SET
  messages_peak = (SELECT max(coalesce(sum(waiting + leased), 0), coalesce(max(peak), 0)) FROM queues),
  letters_peak = (SELECT max(coalesce(sum(dead), 0), coalesce(max(dead_peak), 0)) FROM queues);
CREATE TABLE open_letters(
  queue TEXT NOT NULL, kind TEXT NOT NULL, priority INTEGER NOT NULL, open INTEGER NOT NULL,
  PRIMARY KEY(queue, kind, priority)
) WITHOUT ROWID;
INSERT INTO open_letters SELECT queue, kind, min(priority, 4), count(*) FROM letters
  WHERE status IN ('pending', 'retrying', 'review', 'quarantined') GROUP BY 1, 2, 3;
CREATE INDEX letters_open ON letters(dead_at) WHERE status IN ('pending', 'retrying', 'review', 'quarantined');
CREATE INDEX letters_owing ON letters(queue, redrives, death) WHERE owes_reply = 1;
";

/// The version that this program writes.
pub(super) const VERSION: usize = STEPS.len();

/// Checks that the file is ours and of a known version. Returns the version; 0 for an empty file.
pub(super) fn check(connection: &Connection, path: &str) -> TableResult<usize> {
    let pragma = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    let application = sql_result(pragma("application_id"))?;
    let version = sql_result(pragma("user_version"))?;
    let tables: i64 =
        sql_result(connection.query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0)))?;
    if application == 0 && version == 0 && tables == 0 {
        return Ok(0);
    }
    if application != i64::from(APPLICATION_ID) {
        let why = format!("{path} is a SQLite database, but not one of Redrive's; name another directory");
        return Err(StoreError::new(StoreErrorKind::NotAStore, why));
    }
    match usize::try_from(version) {
        Ok(version) if (1..=VERSION).contains(&version) => Ok(version),
        Ok(_) | Err(_) => Err(StoreError::new(
            StoreErrorKind::Newer,
            format!(
                "{path} has format version {version}, this program knows up to {VERSION}; \
                 use a newer redrive (nothing was changed)"
            ),
        )),
    }
}

/// Migrates the file to the current version, one transaction per step.
pub(super) fn migrate(connection: Connection, from: usize) -> TableResult<Connection> {
    let mut tables = SqlTables::new(connection);
    for (version, step) in (1..).zip(STEPS).skip(from) {
        sql_result(tables.connection.execute_batch(&format!("BEGIN IMMEDIATE; {step}")))?;
        complete(&mut tables, version)?;
        let sql =
            format!("PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {version}; COMMIT;");
        sql_result(tables.connection.execute_batch(&sql))?;
    }
    Ok(tables.connection)
}

/// The version since which the sums of a group are in a row of its own.
const GROUPS_HAVE_ROWS: usize = 4;

/// The version since which messages, letters, failures and stacks have checksums.
const ROWS_HAVE_CHECKSUMS: usize = 5;

/// The part of a step that SQL cannot do, inside the transaction of the step.
fn complete(tables: &mut SqlTables, version: usize) -> TableResult<()> {
    match version {
        GROUPS_HAVE_ROWS => add_group_rows(tables),
        ROWS_HAVE_CHECKSUMS => add_checksums(tables),
        _ => Ok(()),
    }
}

/// Only the core can compute the common template of a group's leaves.
fn add_group_rows(tables: &mut SqlTables) -> TableResult<()> {
    for (id, sums) in group::sum(&tables.leaves()?, &tables.leaf_counts()?) {
        tables.put_group_row(id, Some(&GroupRow { sums, ..GroupRow::default() }))?;
    }
    Ok(())
}

/// Rows that get their checksum at once; this bounds the memory used.
const CHUNK: usize = 1_000;

/// Adds a checksum to every existing row. Damage is noticed from now on; earlier damage cannot be.
fn add_checksums(tables: &mut SqlTables) -> TableResult<()> {
    let live = format!("{META}, {LIFECYCLE}, {LEASE}");
    let letter = format!("{META}, {LIFECYCLE}, death, file, secret, {SEARCH_COLUMNS}");
    let of_columns = [
        ("messages", "id", live, rows::LIVE_CHECKSUMMED),
        ("letters", "death", letter, rows::LETTER_CHECKSUMMED),
        ("failures", "seq, n", "seq, n, body, stack".to_owned(), 4),
        ("stacks", "hash", "hash, body".to_owned(), 2),
    ];
    for (table, key, columns, summed) in of_columns {
        let keys = key.split(", ").count();
        let placeholders = (1..=keys).map(|n| format!("?{n}")).collect::<Vec<_>>().join(", ");
        let update = format!("UPDATE {table} SET checksum = ?{} WHERE ({key}) = ({placeholders})", keys + 1);
        let rest = format!("ORDER BY {key} LIMIT {CHUNK}");
        let first = format!("SELECT {columns}, {key} FROM {table} {rest}");
        let next = format!("SELECT {columns}, {key} FROM {table} WHERE ({key}) > ({placeholders}) {rest}");
        let mut after: Vec<Value> = Vec::new();
        loop {
            let params: Vec<&dyn ToSql> = after.iter().map(|part| part as &dyn ToSql).collect();
            let found = tables.all(if after.is_empty() { &first } else { &next }, &params, |row| {
                let key =
                    (0..keys).map(|n| row.get::<_, Value>(summed + n)).collect::<Result<Vec<_>, _>>()?;
                Ok((key, checksums::of_row(row, summed)?))
            })?;
            for (key, sum) in &found {
                let key = key.iter().map(|part| part as &dyn ToSql);
                let params: Vec<&dyn ToSql> = key.chain([sum as &dyn ToSql]).collect();
                tables.run_one("a checksum", &update, &params)?;
            }
            let Some((last, _)) = found.into_iter().next_back() else { break };
            after = last;
        }
    }
    Ok(())
}
