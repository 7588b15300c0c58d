//! Damaged records out of the way. What is left of a row is kept in the table `damaged`, every column as text, and the
//! row goes, so that counters can be right again; a failure that cannot be read leaves one behind that says so. Nobody
//! is ever shown a guess of what a damaged record may have said.

use super::errors::kept;
use super::reads::SqlTables;
use super::rows::{self, FAILURE, int};
use crate::engine::tables::{Kept, Reads as _};
use redrive_core::failure::{Analysed, ErrorInfo, Failure};
use redrive_core::time::{Span, Time};
use rusqlite::types::{ToSql, Value, ValueRef};
use serde_json::{Map, Value as Json};

/// Rows looked at together.
const CHUNK: usize = 1_000;

impl SqlTables {
    /// Takes every damaged record out of the way; one line for each.
    pub(super) fn set_damaged_aside(&mut self, now: Time) -> Kept<Vec<String>> {
        let mut done = Vec::new();
        let nameless = "SELECT id FROM messages WHERE length(id) IS NOT 16";
        for id in self.all(nameless, &[], |row| row.get::<_, Value>(0))? {
            self.move_aside("messages", "id", &id, now)?;
            done.push("a message whose id is damaged".to_owned());
        }
        let mut after = None;
        loop {
            let page = self.live_after(after, CHUNK)?;
            let Some((last, _)) = page.last() else { break };
            after = Some(*last);
            for (id, _) in page.iter().filter(|(_, live)| live.is_err()) {
                self.recent.remove(id);
                self.move_aside("messages", "id", &id.to_bytes(), now)?;
                done.push(format!("message {id}"));
            }
        }
        let mut after = 0;
        loop {
            let page = self.letters_after(after, u64::MAX, CHUNK)?;
            let Some((last, _)) = page.last() else { break };
            after = *last;
            for (death, _) in page.iter().filter(|(_, letter)| letter.is_err()) {
                self.note_text_gone(*death)?;
                self.move_aside("letters", "death", &int(*death), now)?;
                done.push(format!("the dead letter of death {death}"));
            }
        }
        self.replace_failures(now, &mut done)?;
        self.recount_drawers()?;
        Ok(done)
    }

    /// Moves rows out of their table, with all that is in them.
    pub(super) fn move_aside(&self, table: &str, key: &str, at: &dyn ToSql, now: Time) -> Kept<()> {
        self.keep_aside(table, key, at, now)?;
        self.run(&format!("DELETE FROM {table} WHERE {key} = ?1"), &[at]).map(|_| ())
    }

    fn keep_aside(&self, table: &str, key: &str, at: &dyn ToSql, now: Time) -> Kept<()> {
        let mut statement =
            kept(self.connection.prepare(&format!("SELECT * FROM {table} WHERE {key} = ?1")))?;
        let names: Vec<String> = statement.column_names().map(str::to_owned).collect();
        let read = |row: &rusqlite::Row<'_>| {
            let cells = names.iter().enumerate().map(|(n, name)| Ok((name.clone(), cell(row.get_ref(n)?))));
            cells.collect::<rusqlite::Result<Map<String, Json>>>()
        };
        let found: Vec<Map<String, Json>> = kept(kept(statement.query_map([at], read))?.collect())?;
        for cells in found {
            let seq = cells.get("seq").and_then(Json::as_i64);
            let sql = "INSERT INTO damaged(place, seq, at, cells) VALUES(?1, ?2, ?3, ?4)";
            self.run(sql, &[&table, &seq, &now.as_millis(), &Json::Object(cells).to_string()])?;
        }
        Ok(())
    }

    /// Where a failure or its stack is damaged, one that says so takes its place.
    fn replace_failures(&self, now: Time, done: &mut Vec<String>) -> Kept<()> {
        let sql = format!("SELECT {FAILURE}");
        let found = self.all(&sql, &[], |row| {
            if rows::failure(row).is_some() {
                return Ok(None);
            }
            // What it says may be whole, and only its stack be lost.
            let own = rows::failure_is_whole(row).unwrap_or(false);
            let body = row.get_ref(2)?.as_str().ok().filter(|_| own);
            let said: Option<Failure> = body.and_then(|body| serde_json::from_str(body).ok());
            let gone = row.get_ref(5)? == ValueRef::Null;
            Ok(Some((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, Value>(3)?, said, gone)))
        })?;
        for (seq, n, stack, said, gone) in found.into_iter().flatten() {
            if !gone {
                self.keep_aside("stacks", "hash", &stack, now)?;
            }
            self.keep_aside("failures", &format!("n = {n} AND seq"), &seq, now)?;
            self.release_stacks("seq = ?1 AND n = ?2", &[&seq, &n])?;
            self.run("DELETE FROM failures WHERE seq = ?1 AND n = ?2", &[&seq, &n])?;
            self.insert_failure(seq, n, &said.map_or_else(|| unreadable(now), without_stack))?;
            done.push(format!("failure {n} of message number {seq}"));
        }
        Ok(())
    }

    /// Sets the counters of drawers right.
    fn recount_drawers(&self) -> Kept<()> {
        let counted =
            "SELECT count(*) FROM letters l WHERE l.dlq = drawers.dlq AND l.status = drawers.status";
        self.run(&format!("UPDATE drawers SET count = ({counted}) WHERE count <> ({counted})"), &[])?;
        let missing = "INSERT INTO drawers(dlq, status, count) SELECT dlq, status, count(*) FROM letters l \
                       WHERE NOT EXISTS (SELECT 1 FROM drawers d WHERE d.dlq = l.dlq AND d.status = l.status) \
                       GROUP BY dlq, status";
        self.run(missing, &[]).map(|_| ())
    }
}

/// What stands in the place of a failure that cannot be read.
fn unreadable(now: Time) -> Failure {
    let mut failure = Analysed::lease_lost(Span::ZERO).file(1, 1, now, None);
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

/// A column as text that a person can read.
fn cell(value: ValueRef<'_>) -> Json {
    match value {
        ValueRef::Null => Json::Null,
        ValueRef::Integer(n) => n.into(),
        ValueRef::Real(n) => n.into(),
        ValueRef::Text(bytes) => String::from_utf8_lossy(bytes).into(),
        ValueRef::Blob(bytes) => bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into(),
    }
}
