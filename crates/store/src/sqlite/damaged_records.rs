//! Setting damaged records aside. What is left of a row is copied to the table `damaged`, every column as text, and
//! the row is deleted, so that counters can be correct again. An unreadable failure is replaced by one that says so.
//! Nobody is ever shown a guess of what a damaged record may have contained.

use super::errors::sql_result;
use super::reads::SqlTables;
use super::rows::{self, FAILURE, int};
use crate::engine::tables::{Reads as _, TableResult};
use redrive_core::failure::{AnalysedFailure, ErrorInfo, Failure};
use redrive_core::time::{Span, Time};
use rusqlite::types::{ToSql, Value, ValueRef};
use serde_json::{Map, Value as Json};

/// Rows read at once.
const CHUNK: usize = 1_000;

impl SqlTables {
    /// Sets every damaged record aside. Returns one line for each.
    pub(super) fn set_damaged_aside(&mut self, now: Time) -> TableResult<Vec<String>> {
        let mut lines = Vec::new();
        let nameless = "SELECT id FROM messages WHERE length(id) IS NOT 16";
        for id in self.all(nameless, &[], |row| row.get::<_, Value>(0))? {
            self.move_to_damaged("messages", "id", &id, now)?;
            lines.push("a message whose id is damaged".to_owned());
        }
        let mut after = None;
        loop {
            let page = self.live_after(after, CHUNK)?;
            let Some((last, _)) = page.last() else { break };
            after = Some(*last);
            for (id, _) in page.iter().filter(|(_, live)| live.is_err()) {
                self.recent.remove(id);
                self.move_to_damaged("messages", "id", &id.to_bytes(), now)?;
                lines.push(format!("message {id}"));
            }
        }
        let mut after = 0;
        loop {
            let page = self.letters_after(after, u64::MAX, CHUNK)?;
            let Some((last, _)) = page.last() else { break };
            after = *last;
            for (death, _) in page.iter().filter(|(_, letter)| letter.is_err()) {
                self.note_text_gone(*death)?;
                self.move_to_damaged("letters", "death", &int(*death), now)?;
                lines.push(format!("the dead letter of death {death}"));
            }
        }
        self.replace_failures(now, &mut lines)?;
        self.recount_dlqs()?;
        Ok(lines)
    }

    /// Moves rows to the table `damaged`, with all their columns.
    pub(super) fn move_to_damaged(
        &self,
        table: &str,
        key: &str,
        at: &dyn ToSql,
        now: Time,
    ) -> TableResult<()> {
        self.copy_to_damaged(table, key, at, now)?;
        self.run(&format!("DELETE FROM {table} WHERE {key} = ?1"), &[at]).map(|_| ())
    }

    fn copy_to_damaged(&self, table: &str, key: &str, at: &dyn ToSql, now: Time) -> TableResult<()> {
        let mut statement =
            sql_result(self.connection.prepare(&format!("SELECT * FROM {table} WHERE {key} = ?1")))?;
        let names: Vec<String> = statement.column_names().map(str::to_owned).collect();
        let read = |row: &rusqlite::Row<'_>| {
            let cells = names.iter().enumerate().map(|(n, name)| Ok((name.clone(), cell(row.get_ref(n)?))));
            cells.collect::<rusqlite::Result<Map<String, Json>>>()
        };
        let found: Vec<Map<String, Json>> =
            sql_result(sql_result(statement.query_map([at], read))?.collect())?;
        for cells in found {
            let seq = cells.get("seq").and_then(Json::as_i64);
            let sql = "INSERT INTO damaged(place, seq, at, cells) VALUES(?1, ?2, ?3, ?4)";
            self.run(sql, &[&table, &seq, &now.as_millis(), &Json::Object(cells).to_string()])?;
        }
        Ok(())
    }

    /// Replaces damaged failures, and failures whose stack is damaged, by failures that say so.
    fn replace_failures(&self, now: Time, lines: &mut Vec<String>) -> TableResult<()> {
        let sql = format!("SELECT {FAILURE}");
        let found = self.all(&sql, &[], |row| {
            if rows::failure(row).is_some() {
                return Ok(None);
            }
            // The failure itself may be intact, and only its stack be lost.
            let own = rows::failure_is_intact(row).unwrap_or(false);
            let body = row.get_ref(2)?.as_str().ok().filter(|_| own);
            let failure: Option<Failure> = body.and_then(|body| serde_json::from_str(body).ok());
            let gone = row.get_ref(5)? == ValueRef::Null;
            Ok(Some((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, Value>(3)?, failure, gone)))
        })?;
        for (seq, n, stack, failure, gone) in found.into_iter().flatten() {
            if !gone {
                self.copy_to_damaged("stacks", "hash", &stack, now)?;
            }
            self.copy_to_damaged("failures", &format!("n = {n} AND seq"), &seq, now)?;
            self.release_stacks("seq = ?1 AND n = ?2", &[&seq, &n])?;
            self.run("DELETE FROM failures WHERE seq = ?1 AND n = ?2", &[&seq, &n])?;
            self.insert_failure(seq, n, &failure.map_or_else(|| unreadable(now), without_stack))?;
            lines.push(format!("failure {n} of message number {seq}"));
        }
        Ok(())
    }

    /// Recounts the letters of all dead letter queues.
    fn recount_dlqs(&self) -> TableResult<()> {
        let counted =
            "SELECT count(*) FROM letters l WHERE l.dlq = drawers.dlq AND l.status = drawers.status";
        self.run(&format!("UPDATE drawers SET count = ({counted}) WHERE count <> ({counted})"), &[])?;
        let missing = "INSERT INTO drawers(dlq, status, count) SELECT dlq, status, count(*) FROM letters l \
                       WHERE NOT EXISTS (SELECT 1 FROM drawers d WHERE d.dlq = l.dlq AND d.status = l.status) \
                       GROUP BY dlq, status";
        self.run(missing, &[]).map(|_| ())
    }
}

/// The replacement for a failure that cannot be read.
fn unreadable(now: Time) -> Failure {
    let mut failure = AnalysedFailure::lease_lost(Span::ZERO).into_failure(1, 1, now, None);
    failure.error = ErrorInfo {
        error_type: "damaged".into(),
        message: "the record of this failure was damaged; what was left of it was set aside".into(),
        ..ErrorInfo::default()
    };
    failure
}

fn without_stack(mut failure: Failure) -> Failure {
    failure.error.stack =
        Some("the stack of this failure was damaged; what was left of it was set aside".into());
    failure
}

/// A column value as readable JSON.
fn cell(value: ValueRef<'_>) -> Json {
    match value {
        ValueRef::Null => Json::Null,
        ValueRef::Integer(n) => n.into(),
        ValueRef::Real(n) => n.into(),
        ValueRef::Text(bytes) => String::from_utf8_lossy(bytes).into(),
        ValueRef::Blob(bytes) => bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into(),
    }
}
