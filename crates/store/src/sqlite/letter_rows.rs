//! Writing the row of a letter. All statements that do take the same parameters.

use super::reads::SqlTables;
use super::rows::{self, int, ms, text};
use super::tables::level;
use crate::engine::tables::{Kept, Letter};
use redrive_core::ids::{QueueName, Secret};
use rusqlite::types::ToSql;
use std::sync::LazyLock;

const ADD_LETTER: &str = "INSERT INTO letters(death, id, seq, queue, kind, priority, size, key, ordering_key, \
     max_attempts, ttl_ends_at, deadline, ready_at, attempts, deliveries, generation, given_back, failed, \
     failing_since, last_delay, first_received_at, updated_at, file, secret, dlq, status, reason, route, category, \
     severity, leaf, redrives, dead_at, last_failed_at, expires_at, quarantined_until, holds_key, available_at, \
     consumer_until, breaker, indicators, reply_to, progress, version, origin, snoozed_until, owner, held) \
     VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18,?19,?20,?21,?22,?23,?24,\
     ?25,?26,?27,?28,?29,?30,?31,?32,?33,?34,?35,?36,?37,?38,?39,?40,?41,?42,?43,?44,\
     ?45,?46,?47,?48)";

/// What has an index and never changes while a letter is of the same death.
const FIXED: [&str; 4] = ["death", "id", "key", "leaf"];

/// Changes a letter where it lies, by the parameters of [`ADD_LETTER`]: most acts touch one index of it, and to take
/// it out and put it in again would touch all.
static PUT_LETTER: LazyLock<String> = LazyLock::new(|| put_letter(|_| true));

/// The same where only its file has changed, as with nearly every act.
static PUT_FILE: LazyLock<String> = LazyLock::new(|| {
    let of_message: Vec<&str> = rows::SLIP.split(',').chain(rows::LIFE.split(',')).map(str::trim).collect();
    put_letter(|column| !of_message.contains(&column))
});

fn put_letter(wanted: impl Fn(&str) -> bool) -> String {
    let columns = ADD_LETTER.split_once('(').and_then(|(_, rest)| rest.split_once(')')).unwrap_or_default().0;
    let numbered = (1..).zip(columns.split(',').map(str::trim));
    let changing = numbered.filter(|(_, column)| !FIXED.contains(column) && wanted(column));
    let set: Vec<String> = changing.map(|(n, column)| format!("{column}=?{n}")).collect();
    format!("UPDATE letters SET {} WHERE death=?1", set.join(", "))
}

impl SqlTables {
    pub(super) fn insert_letter(&self, letter: &Letter) -> Kept<()> {
        self.write_letter(ADD_LETTER, letter, true)
    }

    /// Most acts leave the message of a letter as it was.
    pub(super) fn update_letter(&self, was: &Letter, letter: &Letter) -> Kept<()> {
        match was.slip == letter.slip && was.life == letter.life {
            true => self.write_letter(&PUT_FILE, letter, false),
            false => self.write_letter(&PUT_LETTER, letter, true),
        }
    }

    /// Runs one of the statements. What only the message has is put into words where the statement writes it.
    fn write_letter(&self, sql: &str, letter: &Letter, with_message: bool) -> Kept<()> {
        let Letter { slip, life, file, .. } = letter;
        let file_text = text(file)?;
        let (indicators, progress) =
            if with_message { (rows::indicators(life)?, rows::progress(life)?) } else { (None, None) };
        let params: &[&dyn ToSql] = &[
            &int(letter.death),
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
            &slip.breaker,
            &indicators,
            &slip.reply_to.as_ref().map(QueueName::as_str),
            &progress,
            &int(file.version),
            &slip.origin.as_ref().map(QueueName::as_str),
            &ms(file.snoozed_until),
            &file.owner,
            &file.held,
        ];
        self.run_one("a dead letter", sql, params)
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
        let message = |column: &&str| rows::SLIP.contains(*column) || rows::LIFE.contains(*column);
        for column in ["file", "secret", "status", "version", "snoozed_until", "held"] {
            assert!(file.contains(&column), "{column} is of the file");
        }
        for column in ["queue", "size", "attempts", "generation", "indicators", "progress", "origin"] {
            assert!(letter.contains(&column) && !file.contains(&column), "{column} is of the message");
        }
        assert!(letter.iter().all(|column| message(column) || file.contains(column)));
        assert!(FIXED.iter().all(|fixed| !letter.contains(fixed)));
    }
}
