//! Filling the text index. It lags behind the letters and never slows down producers: a batch is read and folded
//! beside the writer, and the writer's commit only stores it. A letter that was changed or removed in between is
//! noticed there and left for the next pass.

use super::reads::{Policies, policies};
use super::tables::{Letter, Reads, TableResult, TextBatch, unless_damaged};
use redrive_core::failure::ErrorInfo;
use redrive_core::filter::{document, unreadable_document};
use redrive_core::limits;

/// The next letters to add to the text index. `None` if there is no text index.
pub(crate) fn batch(tables: &dyn Reads, limit: usize) -> TableResult<Option<TextBatch>> {
    let limit = limit.clamp(1, limits::INDEX_TEXT_MAX);
    let Some(state) = tables.text_state(limit)? else { return Ok(None) };
    let policies = policies(tables)?;
    let mut changed = Vec::with_capacity(state.stale.len());
    for (death, n) in &state.stale {
        let letter = tables.letters_at(&[*death])?.pop();
        let text = letter.map(|(_, letter)| text_of(tables, letter, &policies)).transpose()?;
        changed.push(((*death, *n), text));
    }
    let fresh = tables.letters_after(state.indexed_to, u64::MAX, limit.saturating_sub(changed.len()))?;
    let up_to = fresh.last().map_or(state.indexed_to, |(death, _)| *death);
    let text = |(death, letter): (u64, TableResult<Letter>)| Ok((death, text_of(tables, letter, &policies)?));
    let fresh = fresh.into_iter().map(text).collect::<TableResult<_>>()?;
    Ok(Some(TextBatch { state, up_to, fresh, changed }))
}

fn text_of(tables: &dyn Reads, letter: TableResult<Letter>, policies: &Policies) -> TableResult<String> {
    let read = |letter: Letter| {
        let searched = policies.get(&letter.meta.queue).is_some_and(|policy| policy.search_payload);
        let error = tables.failures(&letter.meta)?.pop().map_or_else(ErrorInfo::default, |last| last.error);
        let fits = letter.meta.size <= limits::INDEX_PAYLOAD_BYTES_MAX as u64;
        let body = if searched && fits { Some(tables.envelope(&letter.meta)?) } else { None };
        Ok(document(&error, body.as_ref().map(|envelope| envelope.payload.bytes.as_slice())))
    };
    Ok(unless_damaged(letter.and_then(read))?.unwrap_or_else(unreadable_document))
}
