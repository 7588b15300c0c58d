//! The text index: FTS5 over trigrams, its rows numbered by death. It stores no text, only which trigrams occur in
//! which letter, and it only narrows a search. Letters whose text changed or that are gone are noted in `text_stale`
//! in the same commit; a search reads those letters themselves until the next pass updates the index.

use super::reads::SqlTables;
use super::rows::int;
use crate::engine::tables::{TableResult, TextBatch, TextState};
use redrive_core::filter::TrigramQuery;
use redrive_core::ids::MessageId;

impl SqlTables {
    /// Every letter up to this death number is in the index.
    pub(super) fn indexed_to(&self) -> TableResult<u64> {
        Ok(self.one("SELECT indexed_to FROM text_head", &[], |row| row.get(0))?.unwrap_or(0))
    }

    /// Whether any queue has its payloads indexed.
    pub(super) fn payloads_indexed(&self) -> TableResult<bool> {
        let sql =
            "SELECT 1 FROM queues WHERE json_valid(policy) AND json_extract(policy, '$.search_payload')";
        Ok(self.one(sql, &[], |_| Ok(()))?.is_some())
    }

    /// The query reduced to those trigrams of each text that occur in few letters. Each trigram is a walk through all
    /// letters that contain it, and `er ` is in nearly all of them. Evaluating the filter checks what is left out.
    pub(super) fn rarest(&self, query: TrigramQuery, indexed_to: u64) -> TableResult<TrigramQuery> {
        let within = |parts: Vec<TrigramQuery>| -> TableResult<Vec<TrigramQuery>> {
            parts.into_iter().map(|part| self.rarest(part, indexed_to)).collect()
        };
        match query {
            TrigramQuery::All(parts) => {
                let (trigrams, others): (Vec<_>, Vec<_>) =
                    parts.into_iter().partition(|part| matches!(part, TrigramQuery::Trigram(_)));
                let mut seen = Vec::new();
                for trigram in trigrams.into_iter().take(SAMPLED_MAX) {
                    seen.push((self.recent_matches(&trigram, indexed_to)?, trigram));
                }
                seen.sort_by_key(|(times, _)| *times);
                let few = seen.iter().filter(|(times, _)| *times < TOO_COMMON).count();
                seen.truncate(few.clamp(1, QUERIED_MAX));
                let queried = seen.into_iter().map(|(_, trigram)| trigram);
                Ok(TrigramQuery::All(queried.chain(within(others)?).collect()))
            }
            TrigramQuery::Any(parts) => Ok(TrigramQuery::Any(within(parts)?)),
            TrigramQuery::Trigram(_) => Ok(query),
        }
    }

    /// How many of the latest letters in the index contain the trigram, counted up to [`TOO_COMMON`].
    fn recent_matches(&self, trigram: &TrigramQuery, indexed_to: u64) -> TableResult<u64> {
        let sql = "SELECT count(*) FROM (SELECT 1 FROM letters_text WHERE letters_text MATCH ?1 AND rowid > ?2 LIMIT ?3)";
        let from = int(indexed_to.saturating_sub(SAMPLE));
        Ok(self.one(sql, &[&fts_query(trigram), &from, &int(TOO_COMMON)], |row| row.get(0))?.unwrap_or(0))
    }

    pub(super) fn text_index(&self, limit: usize) -> TableResult<TextState> {
        let sql = "SELECT death, n FROM text_stale ORDER BY death LIMIT ?1";
        let stale = self.all(sql, &[&int(limit as u64)], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(TextState { indexed_to: self.indexed_to()?, stale })
    }

    /// Notes that the text of a message's letter has changed.
    pub(super) fn note_text_changed(&self, id: MessageId) -> TableResult<()> {
        let sql = "INSERT OR REPLACE INTO text_stale(death, n) SELECT death, (SELECT commits FROM head) FROM letters WHERE id = ?1";
        self.run(sql, &[&id.to_bytes()]).map(|_| ())
    }

    /// Notes that a letter is gone. A letter that is not in the index yet will not be added.
    pub(super) fn note_text_gone(&self, death: u64) -> TableResult<()> {
        let sql = "INSERT OR REPLACE INTO text_stale(death, n) SELECT ?1, (SELECT commits FROM head) \
                   WHERE ?1 <= (SELECT indexed_to FROM text_head)";
        self.run(sql, &[&int(death)]).map(|_| ())
    }

    pub(super) fn write_text(&self, batch: &TextBatch) -> TableResult<u64> {
        let mut added = 0;
        for ((death, n), text) in &batch.changed {
            let death = int(*death);
            if self.run("DELETE FROM text_stale WHERE death = ?1 AND n = ?2", &[&death, &int(*n)])? == 0 {
                continue;
            }
            self.run("DELETE FROM letters_text WHERE rowid = ?1", &[&death])?;
            added += self.add_text(death, text.as_deref())?;
        }
        if self.indexed_to()? != batch.state.indexed_to {
            return Ok(added);
        }
        for (death, text) in &batch.fresh {
            added += self.add_text(int(*death), Some(text))?;
        }
        self.run("UPDATE text_head SET indexed_to = ?1", &[&int(batch.up_to)])?;
        Ok(added)
    }

    /// Adds an entry for a letter that still exists. If the letter
    /// changed meanwhile, it is noted as stale and comes again.
    fn add_text(&self, death: i64, text: Option<&str>) -> TableResult<u64> {
        let Some(text) = text else { return Ok(0) };
        let sql = "INSERT INTO letters_text(rowid, threes) SELECT ?1, ?2 WHERE EXISTS (SELECT 1 FROM letters WHERE death = ?1)";
        Ok(self.run(sql, &[&death, &text])? as u64)
    }
}

/// How many of the latest letters are sampled to see how common a trigram is.
const SAMPLE: u64 = 1_000;
/// A trigram that occurs in this many sampled letters is too common to query for.
const TOO_COMMON: u64 = 250;
/// The maximum number of trigrams of one text to sample.
const SAMPLED_MAX: usize = 32;
/// The maximum number of trigrams of one text to query the index for.
const QUERIED_MAX: usize = 4;

/// The query in the language of FTS5: every text in quotes, with quotes doubled.
pub(super) fn fts_query(query: &TrigramQuery) -> String {
    let joined = |parts: &[TrigramQuery], word: &str| {
        let parts: Vec<String> = parts.iter().map(fts_query).collect();
        format!("({})", parts.join(word))
    };
    match query {
        TrigramQuery::All(parts) => joined(parts, " AND "),
        TrigramQuery::Any(parts) => joined(parts, " OR "),
        TrigramQuery::Trigram(trigram) => format!("\"{}\"", trigram.replace('"', "\"\"")),
    }
}
