//! The checks of `doctor` on the database file: orphaned rows, checksums, and with `--deep` every page and payload.

use super::errors::sql_result;
use super::reads::SqlTables;
use super::rows::{self, Cell, FAILURE};
use crate::body::Packed;
use crate::engine::tables::TableResult;
use crate::engine::tables::damaged;
use redrive_core::breaker::Breaker;
use redrive_core::group::GroupActivity;
use redrive_core::ids::MessageId;
use redrive_core::invariants::Verification;
use redrive_core::poison::GroupHistory;
use redrive_core::time::{Span, Time};

/// Orphaned or missing rows: a description, and the query that finds their sequence numbers.
const ORPHANS: [(&str, &str); 6] = [
    (
        "a payload belongs to no message: number",
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
        "a failure belongs to no message: number",
        "SELECT DISTINCT seq FROM failures WHERE seq NOT IN (SELECT seq FROM messages UNION ALL SELECT seq FROM letters \
         UNION ALL SELECT seq FROM damaged WHERE seq IS NOT NULL)",
    ),
    (
        "a revision belongs to no letter: number",
        "SELECT DISTINCT seq FROM revisions WHERE seq NOT IN (SELECT seq FROM letters \
         UNION ALL SELECT seq FROM damaged WHERE seq IS NOT NULL)",
    ),
    (
        "a failure's stack is missing: number",
        "SELECT seq FROM failures WHERE stack IS NOT NULL AND stack NOT IN (SELECT hash FROM stacks)",
    ),
];

/// Columns that decisions depend on and no checksum covers, compared with the values they are derived from.
const DERIVED: [(&str, &str); 3] = [
    (
        "the flag for delayed messages is wrong on message number",
        "SELECT seq FROM messages WHERE delayed IS NOT (phase = 0 AND ready_at > updated_at)",
    ),
    ("the id is damaged on message number", "SELECT seq FROM messages WHERE length(id) IS NOT 16"),
    (
        "the use count is wrong for a stack of message number",
        "SELECT f.seq FROM failures f JOIN stacks s ON s.hash = f.stack GROUP BY s.hash HAVING count(*) <> s.uses",
    ),
];

/// Runs all checks and adds what they find to the verification.
pub(super) fn check(tables: &SqlTables, deep: bool, verification: &mut Verification) -> TableResult<()> {
    for (what, sql) in ORPHANS {
        for seq in tables.all(sql, &[], |row| row.get::<_, i64>(0))? {
            verification.find("I4", format!("{what} {seq}"), false);
        }
    }
    let count = |sql: &str| tables.one(sql, &[], |row| row.get::<_, u64>(0)).map(Option::unwrap_or_default);
    verification.failures = count("SELECT count(*) FROM failures")?;
    let findings = tables.all(WRONG_DLQ_COUNTS, &[], |row| {
        let (dlq, status): (String, String) = (row.get(0)?, row.get(1)?);
        Ok(format!(
            "dead letter queue {dlq}: {status} shows {}, recounted {}",
            row.get::<_, i64>(2)?,
            row.get::<_, i64>(3)?
        ))
    })?;
    for finding in findings {
        verification.find("I15", finding, true);
    }
    check_expendable_rows(tables, verification)?;
    if deep {
        for (what, sql) in DERIVED {
            for seq in tables.all(sql, &[], |row| row.get::<_, i64>(0))? {
                verification.find("I46", format!("{what} {seq}"), false);
            }
        }
        check_text_index(tables, verification)?;
        check_pages(tables, verification)?;
    }
    let latest: i64 = if deep { -1 } else { 1_000 };
    check_failures(tables, latest, verification)?;
    check_payloads(tables, BODIES, latest, "the payload", verification)?;
    check_payloads(tables, REVISIONS, latest, "an earlier content", verification)
}

/// The command that removes a message whose content is damaged.
fn removal_command(tables: &SqlTables, seq: i64) -> TableResult<Option<String>> {
    let id = |row: &rusqlite::Row<'_>| row.get::<_, Cell<MessageId>>(0).map(|cell| cell.0);
    let live = tables.one("SELECT id FROM messages WHERE seq = ?1", &[&seq], id)?;
    let dead = tables.one("SELECT id FROM letters WHERE seq = ?1", &[&seq], id)?;
    let live = live.map(|id| format!("`redrive message cancel {id}`"));
    Ok(live.or_else(|| dead.map(|id| format!("`redrive dlq purge {id}`"))))
}

/// Counters of dead letter queues that differ from the number of letters in them.
const WRONG_DLQ_COUNTS: &str = "SELECT d.dlq, d.status, d.count, (SELECT count(*) FROM letters l WHERE l.dlq = d.dlq AND \
     l.status = d.status) AS counted FROM drawers d WHERE d.count <> counted";
/// Letters that are missing from the text index, and entries whose letter is gone.
const WRONG_TEXT: [(&str, &str); 2] = [
    (
        "lacks",
        "SELECT death FROM letters WHERE death <= (SELECT indexed_to FROM text_head) AND death NOT IN \
         (SELECT death FROM text_stale) AND death NOT IN (SELECT id FROM letters_text_docsize)",
    ),
    (
        "still has",
        "SELECT id FROM letters_text_docsize WHERE id NOT IN (SELECT death FROM text_stale) AND id NOT IN \
         (SELECT death FROM letters)",
    ),
];
/// A table of rows that the store can do without, the finding for an unreadable row, and the test for a readable one.
type ExpendableRows = (&'static str, &'static str, fn(&str) -> bool);
/// Rows that the store can do without.
const EXPENDABLE_ROWS: [ExpendableRows; 3] = [
    ("breakers", "a breaker cannot be read; it starts afresh", |body| {
        serde_json::from_str::<Breaker>(body).is_ok()
    }),
    ("standings", "the history of a group cannot be read; it is learned again", |body| {
        serde_json::from_str::<GroupHistory>(body).is_ok()
    }),
    ("group_facts", "the activity of a group cannot be read; it starts afresh", |body| {
        serde_json::from_str::<GroupActivity>(body).is_ok()
    }),
];

/// Repairs what can be derived from other rows: the counters of dead letter queues, unreadable rows that the store
/// can do without, and the text index, which is rebuilt. Returns how many rows were wrong.
pub(super) fn repair(tables: &SqlTables, deep: bool) -> TableResult<u64> {
    let mut repaired = 0;
    let row = |row: &rusqlite::Row<'_>| {
        Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, i64>(3)?))
    };
    for (dlq, status, counted) in tables.all(WRONG_DLQ_COUNTS, &[], row)? {
        let sql = "UPDATE drawers SET count = ?3 WHERE dlq = ?1 AND status = ?2";
        tables.run(sql, &[&dlq, &status, &counted])?;
        repaired += 1;
    }
    for (table, _, is_intact) in EXPENDABLE_ROWS {
        let bodies =
            tables.all(&format!("SELECT DISTINCT body FROM {table}"), &[], |row| row.get::<_, String>(0))?;
        for body in bodies.iter().filter(|body| !is_intact(body)) {
            tables.run(&format!("DELETE FROM {table} WHERE body = ?1"), &[body])?;
            repaired += 1;
        }
    }
    if deep {
        let mut wrong = 0;
        for (_, sql) in WRONG_TEXT {
            wrong += tables.all(sql, &[], |row| row.get::<_, i64>(0))?.len() as u64;
        }
        if wrong > 0 {
            sql_result(tables.connection.execute_batch(
                "INSERT INTO letters_text(letters_text) VALUES('delete-all'); DELETE FROM text_stale; \
                 UPDATE text_head SET indexed_to = 0;",
            ))?;
        }
        repaired += wrong;
    }
    Ok(repaired)
}

/// For how many damaged messages the command is looked up.
const REMOVAL_COMMANDS_MAX: u64 = 10;

const BODIES: &str = "SELECT seq, rest, content_type, payload, packed, checksum, ttl, enqueued_at FROM bodies \
     ORDER BY seq DESC LIMIT ?1";
const REVISIONS: &str = "SELECT seq, rest, content_type, payload, packed, checksum, NULL, 0 FROM revisions \
     ORDER BY seq DESC LIMIT ?1";

/// Reports unreadable rows that the store can do without: breakers and what is known about groups.
fn check_expendable_rows(tables: &SqlTables, verification: &mut Verification) -> TableResult<()> {
    for (table, what, is_intact) in EXPENDABLE_ROWS {
        let bodies = tables.all(&format!("SELECT body FROM {table}"), &[], |row| row.get::<_, String>(0))?;
        for _ in bodies.iter().filter(|body| !is_intact(body)) {
            verification.find("I46", what, true);
        }
    }
    Ok(())
}

/// Reports failures and stacks that are not what was written: all of them with `--deep`, else the latest.
fn check_failures(tables: &SqlTables, limit: i64, verification: &mut Verification) -> TableResult<()> {
    let sql = format!("SELECT {FAILURE} ORDER BY f.seq DESC, f.n DESC LIMIT ?1");
    let mut statement = sql_result(tables.connection.prepare(&sql))?;
    let mut rows = sql_result(statement.query([limit]))?;
    while let Some(row) = sql_result(rows.next())? {
        if rows::failure(row).is_none() {
            let (seq, n) = (row.get(0).unwrap_or(-1_i64), row.get(1).unwrap_or(-1_i64));
            let what = format!("failure {n} of message number {seq} is not what was written");
            verification.find("I46", what, true);
        }
    }
    Ok(())
}

/// Reports letters that a text search would miss, and entries that outlived their letter.
fn check_text_index(tables: &SqlTables, verification: &mut Verification) -> TableResult<()> {
    for (what, sql) in WRONG_TEXT {
        for death in tables.all(sql, &[], |row| row.get::<_, i64>(0))? {
            let what = format!("the text index {what} the dead letter of death {death}");
            verification.find_mended_by("I46", what, "`redrive doctor --deep --repair`");
        }
    }
    Ok(())
}

/// Runs SQLite's own check of every page and index.
fn check_pages(tables: &SqlTables, verification: &mut Verification) -> TableResult<()> {
    for line in tables.all("PRAGMA integrity_check(100)", &[], |row| row.get::<_, String>(0))? {
        if line != "ok" {
            verification.find("I46", format!("the data file is damaged: {line}"), false);
        }
    }
    Ok(())
}

/// Compares payloads with their checksums: all of them with `--deep`, else the latest.
fn check_payloads(
    tables: &SqlTables,
    sql: &str,
    limit: i64,
    which: &str,
    verification: &mut Verification,
) -> TableResult<()> {
    let mut statement = sql_result(tables.connection.prepare(sql))?;
    let mut rows = sql_result(statement.query([limit]))?;
    while let Some(row) = sql_result(rows.next())? {
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
            Ok((_, packed)) if packed.is_intact() => {}
            Ok((seq, _)) => {
                let what = format!("{which} of message number {seq} is not what was written");
                // Looking up the command scans a whole table: with many findings, another remedy is needed anyway.
                let command = if verification.findings_total < REMOVAL_COMMANDS_MAX {
                    removal_command(tables, seq)?
                } else {
                    None
                };
                match command {
                    Some(command) => {
                        let mend = format!("{command} to go on without it, or restore a backup that has it");
                        verification.find_mended_by("I46", what, mend);
                    }
                    None => verification.find("I46", what, false),
                }
            }
            Err(error) => verification.find("I46", damaged(error).text, false),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::sqlite::{Options, SqliteStore};
    use redrive_core::dead_letter::Actor;
    use redrive_core::failure::FailureReport;
    use redrive_core::ids::{MessageId, QueueName};
    use redrive_core::message::{NewMessage, Payload};
    use redrive_core::policy::QueuePolicy;
    use redrive_core::store::{
        LeaseRequest, Letters as _, Settle, Settlement, Store as _, VerifyRequest, Work as _,
    };

    /// Adds one waiting message and one dead letter.
    async fn fill(store: &SqliteStore) {
        let queue: QueueName = "q".parse().unwrap();
        let policy = QueuePolicy { max_attempts: 1, ..QueuePolicy::default() };
        store.configure(queue.clone(), policy, Actor::new("ada", "test")).await.unwrap();
        let new = |n| NewMessage::new(MessageId::new(n, [1; 10]), queue.clone(), Payload::default());
        store.enqueue(vec![new(1), new(2)]).await.unwrap();
        let request = LeaseRequest {
            queues: vec![queue.clone()],
            max: 1,
            lease_for: None,
            worker: "w".into(),
            ..LeaseRequest::default()
        };
        let token = store.lease(request).await.unwrap()[0].token;
        let what =
            Settle::Fail { failure: Box::new(FailureReport::default().analyse()), policy_override: None };
        store.settle(vec![Settlement { token, what }]).await.unwrap();
    }

    #[tokio::test]
    async fn i15_i46_every_finding_says_what_mends_it_and_a_repair_does() {
        let home = tempfile::TempDir::new().unwrap();
        let open = || SqliteStore::open(home.path(), Options::default()).unwrap();
        fill(&open()).await;
        let raw = rusqlite::Connection::open(home.path().join("redrive.db")).unwrap();
        raw.execute_batch(
            "UPDATE drawers SET count = count + 5; UPDATE open_letters SET open = open + 5; UPDATE queues SET waiting = waiting + 1; \
             INSERT INTO breakers(queue, key, body) VALUES('q', 'k', 'no breaker'); \
             INSERT INTO standings(group_id, body) VALUES(99, 'no standing'); \
             INSERT INTO group_facts(id, body) VALUES(99, 'no facts'); UPDATE text_head SET indexed_to = 1000; \
             UPDATE bodies SET checksum = checksum + 1;",
        )
        .unwrap();
        drop(raw);
        let store = open();
        let verify = async |repair| store.verify(VerifyRequest { deep: true, repair }).await.unwrap();
        let found = verify(false).await;
        let mends = |what: &str| found.findings.iter().filter(|f| f.mend.contains(what)).count();
        assert!(found.findings.iter().all(|f| f.mend.starts_with("`redrive ")), "{:#?}", found.findings);
        assert!(mends("`redrive doctor --repair`") >= 6, "{:#?}", found.findings);
        assert_eq!(mends("`redrive doctor --deep --repair`"), 1);
        assert_eq!((mends("`redrive message cancel "), mends("`redrive dlq purge ")), (1, 1));
        assert!(
            found.findings.iter().any(|f| f.what.contains("open letters show 6, recounted 1")),
            "{found:#?}"
        );
        verify(true).await;
        let open = store.stats().await.unwrap().summary().open_by_kind;
        assert_eq!(open, [(String::new(), 1)].into());
        let left = verify(false).await;
        assert!(left.findings.iter().all(|f| !f.mend.contains("--repair")), "{:#?}", left.findings);
        assert_eq!(left.findings.len(), 2, "only the damaged payloads: {left:#?}");
        let id = left.findings.iter().find_map(|f| f.mend.strip_prefix("`redrive message cancel "));
        let id = id.unwrap().split('`').next().unwrap().parse().unwrap();
        store.cancel(vec![id], Actor::new("ada", "test")).await.unwrap().remove(0).unwrap();
        assert_eq!(verify(false).await.findings.len(), left.findings.len() - 1);
        store.index_text(100).await.unwrap();
    }
}
