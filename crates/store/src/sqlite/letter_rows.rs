//! Writing the row of a letter. All statements take the same parameters.

use super::checksums;
use super::errors::sql_result;
use super::reads::SqlTables;
use super::rows::{self, LETTER_CHECKSUMMED, LIFECYCLE, META, SEARCH_COLUMNS, int, ms, text};
use super::tables::level;
use crate::engine::tables::{Letter, TableResult};
use redrive_core::ids::{QueueName, Secret};
use rusqlite::types::ToSql;
use std::sync::LazyLock;

/// Every column of a letter, in the order in which rows are
/// written and read. The checksum covers all columns before it.
static COLUMNS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let own = [META, LIFECYCLE, "death, file, secret", SEARCH_COLUMNS, "checksum"];
    own.into_iter().flat_map(|part| part.split(',')).map(str::trim).collect()
});

/// The columns of a letter, as [`rows::letter`] reads them.
pub(super) static LETTER: LazyLock<String> = LazyLock::new(|| COLUMNS.join(", "));

static ADD_LETTER: LazyLock<String> = LazyLock::new(|| {
    let values: Vec<String> = (1..=COLUMNS.len()).map(|n| format!("?{n}")).collect();
    format!("INSERT INTO letters({}) VALUES({})", LETTER.as_str(), values.join(","))
});

/// Columns that have an index and never change while a letter keeps its death number.
const FIXED: [&str; 4] = ["death", "id", "key", "leaf"];

/// Updates a letter in place, with the parameters of [`ADD_LETTER`]. Most actions touch one of its indexes; deleting
/// and inserting the row would touch all.
static PUT_LETTER: LazyLock<String> = LazyLock::new(|| update_statement(|_| true));

/// Like [`PUT_LETTER`] if only the letter's record has changed, as with nearly
/// every action. The JSON columns of the message are written too: an older version
/// may have written the same values differently, and the checksum covers the text.
static PUT_RECORD: LazyLock<String> = LazyLock::new(|| {
    let of_message: Vec<&str> = META.split(',').chain(LIFECYCLE.split(',')).map(str::trim).collect();
    update_statement(|column| !of_message.contains(&column) || ["indicators", "progress"].contains(&column))
});

fn update_statement(wanted: impl Fn(&str) -> bool) -> String {
    let assignment = |(n, column): (usize, &&str)| format!("{column}=?{}", n + 1);
    let numbered = || COLUMNS.iter().enumerate();
    let set: Vec<String> =
        numbered().filter(|(_, c)| !FIXED.contains(c) && wanted(c)).map(assignment).collect();
    let death: Vec<String> = numbered().filter(|(_, c)| **c == "death").map(assignment).collect();
    format!("UPDATE letters SET {} WHERE {}", set.join(", "), death.join(""))
}

impl SqlTables {
    pub(super) fn insert_letter(&self, letter: &Letter) -> TableResult<()> {
        self.write_letter(&ADD_LETTER, letter)
    }

    /// Updates a letter. Most actions leave its message unchanged.
    pub(super) fn update_letter(&self, stored: &Letter, letter: &Letter) -> TableResult<()> {
        match stored.meta == letter.meta && stored.lifecycle == letter.lifecycle {
            true => self.write_letter(&PUT_RECORD, letter),
            false => self.write_letter(&PUT_LETTER, letter),
        }
    }

    /// Runs one of the statements. All of them take every column, for the checksum.
    fn write_letter(&self, sql: &str, letter: &Letter) -> TableResult<()> {
        let Letter { meta, lifecycle, record, .. } = letter;
        let (record_text, indicators, progress) =
            (text(record)?, rows::indicators(lifecycle)?, rows::progress(lifecycle)?);
        let values: [&dyn ToSql; LETTER_CHECKSUMMED] = [
            &meta.id.to_bytes(),
            &int(meta.seq),
            &meta.queue.as_str(),
            &meta.kind,
            &level(meta),
            &int(meta.size),
            &meta.key,
            &meta.ordering_key,
            &meta.limits.max_attempts,
            &ms(meta.limits.expires_at),
            &ms(meta.limits.deadline),
            &meta.breaker,
            &meta.reply_to.as_ref().map(QueueName::as_str),
            &meta.origin.as_ref().map(QueueName::as_str),
            &lifecycle.ready_at.as_millis(),
            &lifecycle.attempts,
            &lifecycle.deliveries,
            &lifecycle.generation,
            &lifecycle.given_back,
            &lifecycle.failed,
            &ms(lifecycle.failing_since),
            &lifecycle.last_delay.map(|d| int(d.as_millis())),
            &ms(lifecycle.first_received_at),
            &lifecycle.updated_at.as_millis(),
            &indicators,
            &progress,
            &int(letter.death),
            &record_text,
            &letter.secret.map(Secret::to_bytes),
            &record.dlq.as_str(),
            &record.status.name(),
            &record.reason.name(),
            &record.route.name(),
            &record.category.name(),
            &record.severity.name(),
            &rows::leaf(record.leaf),
            &record.redrives,
            &record.dead_at.as_millis(),
            &ms(record.last_failed_at),
            &ms(record.expires_at),
            &ms(record.quarantined_until),
            &record.holds_key,
            &record.available_at.as_millis(),
            &ms(record.consumer_until),
            &int(record.version),
            &ms(record.snoozed_until),
            &record.owner,
            &record.held,
            &record.owes_reply,
        ];
        let checksum = sql_result(checksums::of_values(&values))?;
        let params: Vec<&dyn ToSql> = values.into_iter().chain([&checksum as &dyn ToSql]).collect();
        self.run_one("a dead letter", sql, &params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(sql: &str) -> Vec<&str> {
        let set = sql.split_once(" SET ").unwrap().1.split_once(" WHERE ").unwrap().0;
        set.split(", ").map(|part| part.split_once('=').unwrap().0).collect()
    }

    #[test]
    fn a_record_is_written_without_its_message_and_a_letter_with_it() {
        let (record, letter) = (set(&PUT_RECORD), set(&PUT_LETTER));
        let message = |column: &&str| META.contains(*column) || LIFECYCLE.contains(*column);
        for column in ["file", "secret", "status", "version", "snoozed_until", "held", "checksum"] {
            assert!(record.contains(&column), "{column} is of the record");
        }
        for column in ["queue", "size", "attempts", "generation", "origin"] {
            assert!(letter.contains(&column) && !record.contains(&column), "{column} is of the message");
        }
        assert!(letter.iter().all(|column| message(column) || record.contains(column)));
        assert!(FIXED.iter().all(|fixed| !letter.contains(fixed)));
    }
}
