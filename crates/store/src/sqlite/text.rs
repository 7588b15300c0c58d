//! The text index: FTS5 over threes of letters, its rows numbered by death. It keeps no text, only which three
//! letters stand in which letter, and it only narrows. Letters whose text changed, or that are gone, are noted in
//! `text_stale` in the same commit; a search looks at those themselves until the next pass puts them right.

use super::reads::SqlTables;
use super::rows::int;
use crate::engine::tables::{Kept, TextBatch, TextState};
use redrive_core::filter::Wording;
use redrive_core::ids::MessageId;

impl SqlTables {
    /// The death up to which every letter is in the index.
    pub(super) fn indexed_to(&self) -> Kept<u64> {
        Ok(self.one("SELECT indexed_to FROM text_head", &[], |row| row.get(0))?.unwrap_or(0))
    }

    /// Whether any queue wants its payloads searched.
    pub(super) fn payloads_indexed(&self) -> Kept<bool> {
        let sql =
            "SELECT 1 FROM queues WHERE json_valid(policy) AND json_extract(policy, '$.search_payload')";
        Ok(self.one(sql, &[], |_| Ok(()))?.is_some())
    }

    /// The same question with only those threes of each text that few letters have. Every three is a walk through all
    /// letters that have it, `er ` through nearly all there are; what is left out is the evaluator's to see.
    pub(super) fn rarest(&self, wording: Wording, indexed_to: u64) -> Kept<Wording> {
        let within = |parts: Vec<Wording>| -> Kept<Vec<Wording>> {
            parts.into_iter().map(|part| self.rarest(part, indexed_to)).collect()
        };
        match wording {
            Wording::All(parts) => {
                let (threes, others): (Vec<_>, Vec<_>) =
                    parts.into_iter().partition(|part| matches!(part, Wording::Letters(_)));
                let mut seen = Vec::new();
                for three in threes.into_iter().take(TRIED_MAX) {
                    seen.push((self.seen_lately(&three, indexed_to)?, three));
                }
                seen.sort_by_key(|(times, _)| *times);
                let few = seen.iter().filter(|(times, _)| *times < MANY).count();
                seen.truncate(few.clamp(1, ASKED_MAX));
                let asked = seen.into_iter().map(|(_, three)| three);
                Ok(Wording::All(asked.chain(within(others)?).collect()))
            }
            Wording::Any(parts) => Ok(Wording::Any(within(parts)?)),
            Wording::Letters(_) => Ok(wording),
        }
    }

    /// How many of the latest letters in the index have it, up to [`MANY`].
    fn seen_lately(&self, three: &Wording, indexed_to: u64) -> Kept<u64> {
        let sql = "SELECT count(*) FROM (SELECT 1 FROM letters_text WHERE letters_text MATCH ?1 AND rowid > ?2 LIMIT ?3)";
        let from = int(indexed_to.saturating_sub(SAMPLE));
        Ok(self.one(sql, &[&question(three), &from, &int(MANY)], |row| row.get(0))?.unwrap_or(0))
    }

    pub(super) fn text_index(&self, limit: usize) -> Kept<TextState> {
        let sql = "SELECT death, n FROM text_stale ORDER BY death LIMIT ?1";
        let stale = self.all(sql, &[&int(limit as u64)], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(TextState { indexed_to: self.indexed_to()?, stale })
    }

    /// The text of the letter of a message is not what it was.
    pub(super) fn note_text_changed(&self, id: MessageId) -> Kept<()> {
        let sql = "INSERT OR REPLACE INTO text_stale(death, n) SELECT death, (SELECT commits FROM head) FROM letters WHERE id = ?1";
        self.run(sql, &[&id.to_bytes()]).map(|_| ())
    }

    /// A letter is gone; one that is not in the index yet will not be.
    pub(super) fn note_text_gone(&self, death: u64) -> Kept<()> {
        let sql = "INSERT OR REPLACE INTO text_stale(death, n) SELECT ?1, (SELECT commits FROM head) \
                   WHERE ?1 <= (SELECT indexed_to FROM text_head)";
        self.run(sql, &[&int(death)]).map(|_| ())
    }

    pub(super) fn write_text(&self, batch: &TextBatch) -> Kept<u64> {
        let mut made = 0;
        for ((death, n), text) in &batch.changed {
            let death = int(*death);
            if self.run("DELETE FROM text_stale WHERE death = ?1 AND n = ?2", &[&death, &int(*n)])? == 0 {
                continue;
            }
            self.run("DELETE FROM letters_text WHERE rowid = ?1", &[&death])?;
            made += self.add_text(death, text.as_deref())?;
        }
        if self.indexed_to()? != batch.state.indexed_to {
            return Ok(made);
        }
        for (death, text) in &batch.fresh {
            made += self.add_text(int(*death), Some(text))?;
        }
        self.run("UPDATE text_head SET indexed_to = ?1", &[&int(batch.up_to)])?;
        Ok(made)
    }

    /// An entry for a letter that is still there. One that changed meanwhile is noted as stale and comes again.
    fn add_text(&self, death: i64, text: Option<&str>) -> Kept<u64> {
        let Some(text) = text else { return Ok(0) };
        let sql = "INSERT INTO letters_text(rowid, threes) SELECT ?1, ?2 WHERE EXISTS (SELECT 1 FROM letters WHERE death = ?1)";
        Ok(self.run(sql, &[&death, &text])? as u64)
    }
}

/// Letters that are looked at to see how many have three letters in a row.
const SAMPLE: u64 = 1_000;
/// So many of them are too many to ask for.
const MANY: u64 = 250;
/// Threes of one text that are tried on the sample: the rest is the evaluator's.
const TRIED_MAX: usize = 32;
/// Threes of one text that the index is asked for.
const ASKED_MAX: usize = 4;

/// The question to the index, in its own language: every text in quotes, quotes doubled.
pub(super) fn question(wording: &Wording) -> String {
    let joined = |parts: &[Wording], word: &str| {
        let parts: Vec<String> = parts.iter().map(question).collect();
        format!("({})", parts.join(word))
    };
    match wording {
        Wording::All(parts) => joined(parts, " AND "),
        Wording::Any(parts) => joined(parts, " OR "),
        Wording::Letters(three) => format!("\"{}\"", three.replace('"', "\"\"")),
    }
}
