//! What `doctor` checks in the file itself: orphans, checksums, and with `--deep` every page and payload.

use super::body::Packed;
use super::errors::{damaged, kept};
use super::reads::SqlTables;
use super::rows::{self, Cell, FAILURE};
use crate::engine::tables::Kept;
use redrive_core::breaker::Breaker;
use redrive_core::group::Facts;
use redrive_core::invariants::Verification;
use redrive_core::poison::Standing;
use redrive_core::time::{Span, Time};

/// Rows that belong to nobody, or are missing: a description and the query that finds their number.
const ORPHANS: [(&str, &str); 6] = [
    (
        "a payload belongs to nobody: number",
        "SELECT seq FROM bodies WHERE seq NOT IN (SELECT seq FROM messages UNION ALL SELECT seq FROM letters \
         UNION ALL SELECT seq FROM damaged WHERE seq IS NOT NULL)",
    ),
    (
        "a message has no payload: number",
        "SELECT seq FROM messages WHERE seq NOT IN (SELECT seq FROM bodies)",
    ),
    (
        "a dead letter has no payload: number",
        "SELECT seq FROM letters WHERE seq NOT IN (SELECT seq FROM bodies)",
    ),
    (
        "a failure belongs to nobody: number",
        "SELECT DISTINCT seq FROM failures WHERE seq NOT IN (SELECT seq FROM messages UNION ALL SELECT seq FROM letters \
         UNION ALL SELECT seq FROM damaged WHERE seq IS NOT NULL)",
    ),
    (
        "a revision belongs to nobody: number",
        "SELECT DISTINCT seq FROM revisions WHERE seq NOT IN (SELECT seq FROM letters \
         UNION ALL SELECT seq FROM damaged WHERE seq IS NOT NULL)",
    ),
    (
        "a failure's stack is missing: number",
        "SELECT seq FROM failures WHERE stack IS NOT NULL AND stack NOT IN (SELECT hash FROM stacks)",
    ),
];

/// Columns that decisions go by and no checksum covers, compared with what they follow from.
const DERIVED: [(&str, &str); 3] = [
    (
        "the mark for delayed messages is wrong on message number",
        "SELECT seq FROM messages WHERE delayed IS NOT (phase = 0 AND ready_at > updated_at)",
    ),
    ("the id is damaged of message number", "SELECT seq FROM messages WHERE length(id) IS NOT 16"),
    (
        "a stack is counted wrong that is used by message number",
        "SELECT f.seq FROM failures f JOIN stacks s ON s.hash = f.stack GROUP BY s.hash HAVING count(*) <> s.uses",
    ),
];

pub(super) fn check(tables: &SqlTables, deep: bool, verification: &mut Verification) -> Kept<()> {
    for (what, sql) in ORPHANS {
        for seq in tables.all(sql, &[], |row| row.get::<_, i64>(0))? {
            verification.find("I4", format!("{what} {seq}"), false);
        }
    }
    let count = |sql: &str| tables.one(sql, &[], |row| row.get::<_, u64>(0)).map(Option::unwrap_or_default);
    verification.failures = count("SELECT count(*) FROM failures")?;
    let wrong = "SELECT d.dlq, d.status, d.count, (SELECT count(*) FROM letters l WHERE l.dlq = d.dlq AND \
                 l.status = d.status) AS counted FROM drawers d WHERE d.count <> counted";
    let findings = tables.all(wrong, &[], |row| {
        let (dlq, status): (String, String) = (row.get(0)?, row.get(1)?);
        Ok(format!(
            "drawer {dlq}: {status} shows {}, recounted {}",
            row.get::<_, i64>(2)?,
            row.get::<_, i64>(3)?
        ))
    })?;
    for finding in findings {
        verification.find("I15", finding, true);
    }
    advice(tables, verification)?;
    if deep {
        for (what, sql) in DERIVED {
            for seq in tables.all(sql, &[], |row| row.get::<_, i64>(0))? {
                verification.find("I46", format!("{what} {seq}"), false);
            }
        }
        text(tables, verification)?;
        pages(tables, verification)?;
    }
    let latest: i64 = if deep { -1 } else { 1_000 };
    failures(tables, latest, verification)?;
    payloads(tables, BODIES, latest, "the payload", verification)?;
    payloads(tables, REVISIONS, latest, "an earlier content", verification)
}

const BODIES: &str = "SELECT seq, rest, content_type, payload, packed, checksum, ttl, enqueued_at FROM bodies \
     ORDER BY seq DESC LIMIT ?1";
const REVISIONS: &str = "SELECT seq, rest, content_type, payload, packed, checksum, NULL, 0 FROM revisions \
     ORDER BY seq DESC LIMIT ?1";

/// Rows that the store can do without, and does when they cannot be read: breakers and what is known of groups.
fn advice(tables: &SqlTables, verification: &mut Verification) -> Kept<()> {
    let breakers = "SELECT key, body FROM breakers";
    let standings = "SELECT group_id, body FROM standings";
    let text = |row: &rusqlite::Row<'_>| row.get::<_, String>(1);
    for body in tables.all(breakers, &[], text)? {
        if serde_json::from_str::<Breaker>(&body).is_err() {
            verification.find("I46", "a breaker cannot be read; it starts afresh", false);
        }
    }
    for body in tables.all(standings, &[], text)? {
        if serde_json::from_str::<Standing>(&body).is_err() {
            verification.find("I46", "what is known of a group cannot be read; it is learned again", false);
        }
    }
    for body in tables.all("SELECT id, body FROM group_facts", &[], text)? {
        if serde_json::from_str::<Facts>(&body).is_err() {
            verification.find("I46", "what was counted of a group cannot be read; it starts afresh", false);
        }
    }
    Ok(())
}

/// Failures and their stacks that are not what was written: all of them when asked to look deep, else the latest.
fn failures(tables: &SqlTables, limit: i64, verification: &mut Verification) -> Kept<()> {
    let sql = format!("SELECT {FAILURE} ORDER BY f.seq DESC, f.n DESC LIMIT ?1");
    let mut statement = kept(tables.connection.prepare(&sql))?;
    let mut rows = kept(statement.query([limit]))?;
    while let Some(row) = kept(rows.next())? {
        if rows::failure(row).is_none() {
            let (seq, n) = (row.get(0).unwrap_or(-1_i64), row.get(1).unwrap_or(-1_i64));
            let what = format!("failure {n} of message number {seq} is not what was written");
            verification.find("I46", what, true);
        }
    }
    Ok(())
}

/// What the text index lacks a search would miss; what it has too much stays when a letter is gone.
fn text(tables: &SqlTables, verification: &mut Verification) -> Kept<()> {
    let noted = "NOT IN (SELECT death FROM text_stale)";
    let missing = format!(
        "SELECT death FROM letters WHERE death <= (SELECT indexed_to FROM text_head) AND death {noted} \
         AND death NOT IN (SELECT id FROM letters_text_docsize)"
    );
    let left = format!(
        "SELECT id FROM letters_text_docsize WHERE id {noted} AND id NOT IN (SELECT death FROM letters)"
    );
    for (what, sql) in [("lacks", missing), ("still has", left)] {
        for death in tables.all(&sql, &[], |row| row.get::<_, i64>(0))? {
            verification.find(
                "I46",
                format!("the text index {what} the dead letter of death {death}"),
                false,
            );
        }
    }
    Ok(())
}

/// SQLite's own check of every page and index.
fn pages(tables: &SqlTables, verification: &mut Verification) -> Kept<()> {
    for line in tables.all("PRAGMA integrity_check(100)", &[], |row| row.get::<_, String>(0))? {
        if line != "ok" {
            verification.find("I46", format!("the data file is damaged: {line}"), false);
        }
    }
    Ok(())
}

/// Reads payloads and compares them with their checksum: all of them when asked to look deep, else the latest.
fn payloads(
    tables: &SqlTables,
    sql: &str,
    limit: i64,
    which: &str,
    verification: &mut Verification,
) -> Kept<()> {
    let mut statement = kept(tables.connection.prepare(sql))?;
    let mut rows = kept(statement.query([limit]))?;
    while let Some(row) = kept(rows.next())? {
        let read = || -> rusqlite::Result<(i64, Packed)> {
            let packed = Packed {
                rest: row.get(1)?,
                content_type: row.get(2)?,
                payload: row.get(3)?,
                unpacked: row.get(4)?,
                checksum: row.get(5)?,
                ttl: row.get::<_, Option<Cell<Span>>>(6)?.map(|cell| cell.0),
                enqueued_at: row.get::<_, Cell<Time>>(7)?.0,
            };
            Ok((row.get(0)?, packed))
        };
        verification.payloads += 1;
        match read() {
            Ok((_, packed)) if packed.is_whole() => {}
            Ok((seq, _)) => {
                let what = format!("{which} of message number {seq} is not what was written");
                verification.find("I46", what, false);
            }
            Err(error) => verification.find("I46", damaged(error).text, false),
        }
    }
    Ok(())
}
