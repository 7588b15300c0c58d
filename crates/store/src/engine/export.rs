//! What leaves the store on purpose: letters for an export, oldest death first, and the record of who was shown what.

use super::Engine;
use super::reads::{assemble_with, earlier_contents, or_damaged, policies, with_present_groups};
use super::tables::{Kept, Letter, Reads, Tables};
use redrive_core::dead_letter::{Actor, DeadLetter};
use redrive_core::disclosure::Disclosure;
use redrive_core::error::Outcome;
use redrive_core::filter::Needs;
use redrive_core::limits;
use redrive_core::policy::QueuePolicy;
use redrive_core::query::{Cursor, Page, Query};
use redrive_core::revision::Revision;
use redrive_core::time::Time;
use redrive_core::transfer::exported;

/// Letters that match, oldest death first, whole.
pub(crate) fn export(tables: &dyn Reads, query: &Query, now: Time) -> Outcome<Page<DeadLetter>> {
    /// Rows read at once while a page is filled.
    const CHUNK: usize = 256;
    let filter = with_present_groups(tables, &query.filter)?;
    let mut after = query.page.position("x")?.unwrap_or(0);
    let (limit, mut looked_at, mut bytes) = (query.page.limit(), 0, 0);
    let (policies, standard) = (policies(tables)?, QueuePolicy::default());
    let whole = Needs { body: true, failures: true };
    let open = |letter: Letter| -> Kept<Option<(u64, DeadLetter)>> {
        let policy = policies.get(&letter.slip.queue).map_or(&standard, AsRef::as_ref);
        // No more is read of what does not match than is needed to see that.
        let glance = assemble_with(tables, policy, &letter, filter.needs(), now)?;
        if !filter.matches_letter(&glance, now) {
            return Ok(None);
        }
        let seen = assemble_with(tables, policy, &letter, whole, now)?;
        let revisions = earlier(tables, &letter, &seen)?;
        let said_before = revisions.iter().map(|r| r.content.payload.bytes.len() as u64).sum::<u64>();
        let size = seen.message.envelope.size() + said_before;
        Ok(Some((size, exported(DeadLetter { revisions, ..seen }))))
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
            if let Some((size, letter)) = or_damaged(letter.and_then(open), &mut damaged)?.flatten() {
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
    /// Writes down what somebody is about to be shown.
    pub(crate) fn disclose(&mut self, disclosure: &Disclosure, actor: &Actor, now: Time) -> Outcome<()> {
        actor.check()?;
        disclosure.check()?;
        for entry in disclosure.entries(actor, now) {
            self.record(entry)?;
        }
        Ok(())
    }
}

/// What a letter said before, oldest first.
fn earlier(tables: &dyn Reads, letter: &Letter, seen: &DeadLetter) -> Kept<Vec<Revision>> {
    if letter.file.edits.is_empty() {
        return Ok(Vec::new());
    }
    let kept = earlier_contents(tables, letter)?;
    let mut all = Revision::list(&letter.file, &seen.message.envelope, kept);
    // The present one is the letter's own.
    all.pop();
    Ok(all)
}
