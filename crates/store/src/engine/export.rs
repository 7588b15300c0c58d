//! Data that leaves the store: letters for an export, oldest death first, and the record of who was shown what.

use super::Engine;
use super::reads::{assemble_with, earlier_contents, or_report_damaged, policies, with_merged_groups};
use super::tables::{Letter, Reads, TableResult, Tables};
use redrive_core::dead_letter::{Actor, DeadLetter};
use redrive_core::disclosure::Disclosure;
use redrive_core::error::StoreResult;
use redrive_core::filter::LetterParts;
use redrive_core::limits;
use redrive_core::policy::QueuePolicy;
use redrive_core::query::{Cursor, Page, Query};
use redrive_core::revision::Revision;
use redrive_core::time::Time;
use redrive_core::transfer::exported;

/// Complete letters that match, oldest death first.
pub(crate) fn export(tables: &dyn Reads, query: &Query, now: Time) -> StoreResult<Page<DeadLetter>> {
    /// Rows read at once while a page is filled.
    const CHUNK: usize = 256;
    let filter = with_merged_groups(tables, &query.filter)?;
    let mut after = query.page.position("x")?.unwrap_or(0);
    let (limit, mut looked_at, mut bytes) = (query.page.limit(), 0, 0);
    let (policies, standard) = (policies(tables)?, QueuePolicy::default());
    let whole = LetterParts { body: true, failures: true };
    let open = |letter: Letter| -> TableResult<Option<(u64, DeadLetter)>> {
        let policy = policies.get(&letter.meta.queue).map_or(&standard, AsRef::as_ref);
        // Read only the parts the filter needs before reading the whole letter.
        let parts = assemble_with(tables, policy, &letter, filter.letter_parts(), now)?;
        if !filter.matches_letter(&parts, now) {
            return Ok(None);
        }
        let complete = assemble_with(tables, policy, &letter, whole, now)?;
        let revisions = earlier_revisions(tables, &letter, &complete)?;
        let earlier_bytes = revisions.iter().map(|r| r.content.payload.bytes.len() as u64).sum::<u64>();
        let size = complete.message.envelope.size() + earlier_bytes;
        Ok(Some((size, exported(DeadLetter { revisions, ..complete }))))
    };
    let (mut items, mut damaged) = (Vec::new(), Vec::new());
    loop {
        let chunk = tables.letters_after(after, u64::MAX, CHUNK)?;
        let ended = chunk.len() < CHUNK;
        let mut left = chunk.len();
        for (death, letter) in chunk {
            left -= 1;
            looked_at += 1;
            after = death;
            if let Some((size, letter)) = or_report_damaged(letter.and_then(open), &mut damaged)?.flatten() {
                bytes += size;
                items.push(letter);
            }
            let full = items.len() + damaged.len() >= limit
                || bytes >= limits::PAGE_BYTES_MAX
                || looked_at >= limits::PAGE_SCAN_MAX;
            if full {
                let more = left > 0 || !tables.letters_after(after, u64::MAX, 1)?.is_empty();
                return Ok(Page { items, next: more.then(|| Cursor::after("x", after)), damaged });
            }
        }
        if ended {
            return Ok(Page { damaged, ..Page::last(items) });
        }
    }
}

impl<T: Tables> Engine<T> {
    /// Records in the audit trail what somebody is about to be shown.
    pub(crate) fn disclose(&mut self, disclosure: &Disclosure, actor: &Actor, now: Time) -> StoreResult<()> {
        actor.check()?;
        disclosure.check()?;
        for entry in disclosure.entries(actor, now) {
            self.append_audit(entry)?;
        }
        Ok(())
    }
}

/// The earlier revisions of a letter, oldest first.
fn earlier_revisions(
    tables: &dyn Reads,
    letter: &Letter,
    complete: &DeadLetter,
) -> TableResult<Vec<Revision>> {
    if letter.record.edits.is_empty() {
        return Ok(Vec::new());
    }
    let kept = earlier_contents(tables, letter)?;
    let mut all = Revision::list(&letter.record, &complete.message.envelope, kept);
    // The last revision is the current content, which the letter has already.
    all.pop();
    Ok(all)
}
