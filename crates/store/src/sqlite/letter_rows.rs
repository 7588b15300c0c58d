//! Writing the row of a letter. All statements that do take the same parameters.

use super::errors::kept;
use super::reads::SqlTables;
use super::rows::{self, BESIDE, LETTER_SUMMED, LIFE, SLIP, int, ms, text};
use super::sums;
use super::tables::level;
use crate::engine::tables::{Kept, Letter};
use redrive_core::ids::{QueueName, Secret};
use rusqlite::types::ToSql;
use std::sync::LazyLock;

/// Every column of a letter, in the order in which rows are written and read; the checksum covers all before it.
static COLUMNS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let own = [SLIP, LIFE, "death, file, secret", BESIDE, "checksum"];
    own.into_iter().flat_map(|part| part.split(',')).map(str::trim).collect()
});

/// The columns of a letter, as [`rows::letter`] reads them.
pub(super) static LETTER: LazyLock<String> = LazyLock::new(|| COLUMNS.join(", "));

static ADD_LETTER: LazyLock<String> = LazyLock::new(|| {
    let values: Vec<String> = (1..=COLUMNS.len()).map(|n| format!("?{n}")).collect();
    format!("INSERT INTO letters({}) VALUES({})", LETTER.as_str(), values.join(","))
});

/// What has an index and never changes while a letter is of the same death.
const FIXED: [&str; 4] = ["death", "id", "key", "leaf"];

/// Changes a letter where it lies, by the parameters of [`ADD_LETTER`]: most acts touch one index of it, and to take
/// it out and put it in again would touch all.
static PUT_LETTER: LazyLock<String> = LazyLock::new(|| put_letter(|_| true));

/// The same where only its file has changed, as with nearly every act. JSON of the message is written along: an
/// older version may have put the same into other words, and the checksum goes by words.
static PUT_FILE: LazyLock<String> = LazyLock::new(|| {
    let of_message: Vec<&str> = SLIP.split(',').chain(LIFE.split(',')).map(str::trim).collect();
    put_letter(|column| !of_message.contains(&column) || ["indicators", "progress"].contains(&column))
});

fn put_letter(wanted: impl Fn(&str) -> bool) -> String {
    let place = |(n, column): (usize, &&str)| format!("{column}=?{}", n + 1);
    let numbered = || COLUMNS.iter().enumerate();
    let set: Vec<String> = numbered().filter(|(_, c)| !FIXED.contains(c) && wanted(c)).map(place).collect();
    let death: Vec<String> = numbered().filter(|(_, c)| **c == "death").map(place).collect();
    format!("UPDATE letters SET {} WHERE {}", set.join(", "), death.join(""))
}

impl SqlTables {
    pub(super) fn insert_letter(&self, letter: &Letter) -> Kept<()> {
        self.write_letter(&ADD_LETTER, letter)
    }

    /// Most acts leave the message of a letter as it was.
    pub(super) fn update_letter(&self, was: &Letter, letter: &Letter) -> Kept<()> {
        match was.slip == letter.slip && was.life == letter.life {
            true => self.write_letter(&PUT_FILE, letter),
            false => self.write_letter(&PUT_LETTER, letter),
        }
    }

    /// Runs one of the statements; all of them take every column, for the checksum.
    fn write_letter(&self, sql: &str, letter: &Letter) -> Kept<()> {
        let Letter { slip, life, file, .. } = letter;
        let (file_text, indicators, progress) = (text(file)?, rows::indicators(life)?, rows::progress(life)?);
        let values: [&dyn ToSql; LETTER_SUMMED] = [
            &slip.id.to_bytes(),
            &int(slip.seq),
            &slip.queue.as_str(),
            &slip.kind,
            &level(slip),
            &int(slip.size),
            &slip.key,
            &slip.ordering_key,
            &slip.terms.max_attempts,
            &ms(slip.terms.expires_at),
            &ms(slip.terms.deadline),
            &slip.breaker,
            &slip.reply_to.as_ref().map(QueueName::as_str),
            &slip.origin.as_ref().map(QueueName::as_str),
            &life.ready_at.as_millis(),
            &life.attempts,
            &life.deliveries,
            &life.generation,
            &life.given_back,
            &life.failed,
            &ms(life.failing_since),
            &life.last_delay.map(|d| int(d.as_millis())),
            &ms(life.first_received_at),
            &life.updated_at.as_millis(),
            &indicators,
            &progress,
            &int(letter.death),
            &file_text,
            &letter.secret.map(Secret::to_bytes),
            &file.dlq.as_str(),
            &file.status.name(),
            &file.reason.name(),
            &file.route.name(),
            &file.category.name(),
            &file.severity.name(),
            &rows::leaf(file.leaf),
            &file.redrives,
            &file.dead_at.as_millis(),
            &ms(file.last_failed_at),
            &ms(file.expires_at),
            &ms(file.quarantined_until),
            &file.holds_key,
            &file.available_at.as_millis(),
            &ms(file.consumer_until),
            &int(file.version),
            &ms(file.snoozed_until),
            &file.owner,
            &file.held,
            &file.owes_reply,
        ];
        let checksum = kept(sums::of_values(&values))?;
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
    fn a_file_is_written_without_its_message_and_a_letter_with_it() {
        let (file, letter) = (set(&PUT_FILE), set(&PUT_LETTER));
        let message = |column: &&str| SLIP.contains(*column) || LIFE.contains(*column);
        for column in ["file", "secret", "status", "version", "snoozed_until", "held", "checksum"] {
            assert!(file.contains(&column), "{column} is of the file");
        }
        for column in ["queue", "size", "attempts", "generation", "origin"] {
            assert!(letter.contains(&column) && !file.contains(&column), "{column} is of the message");
        }
        assert!(letter.iter().all(|column| message(column) || file.contains(column)));
        assert!(FIXED.iter().all(|fixed| !letter.contains(fixed)));
    }
}
