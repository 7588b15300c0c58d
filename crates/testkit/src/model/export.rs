//! Exports and disclosures in the reference model.

use super::ModelState;
use redrive_core::dead_letter::{Actor, DeadLetter};
use redrive_core::disclosure::Disclosure;
use redrive_core::error::Refusal;
use redrive_core::limits;
use redrive_core::query::{Cursor, Page, Query};
use redrive_core::revision::Revision;
use redrive_core::time::Time;
use redrive_core::transfer::exported;

impl ModelState {
    pub(super) fn export(&self, query: &Query, after: u64, now: Time) -> Page<DeadLetter> {
        let filter = self.with_current_groups(&query.filter);
        let mut all = self.view_letters(now);
        all.sort_by_key(|letter| letter.death);
        all.retain(|letter| letter.death > after);
        let (mut items, mut bytes) = (Vec::new(), 0);
        for (n, letter) in (1..).zip(&all) {
            if filter.matches_letter(letter, now) {
                let earlier = self.earlier_contents(letter.id());
                bytes += letter.message.envelope.size();
                bytes += earlier.iter().map(|(_, c)| c.payload.bytes.len() as u64).sum::<u64>();
                let mut revisions = Revision::list(&letter.record, &letter.message.envelope, earlier);
                revisions.pop();
                items.push(exported(DeadLetter { revisions, ..letter.clone() }));
            }
            let full = items.len() >= query.page.limit() || bytes >= limits::PAGE_BYTES_MAX;
            if full || n >= limits::PAGE_SCAN_MAX {
                let next = (n < all.len()).then(|| Cursor::after("x", letter.death));
                return Page { next, ..Page::last(items) };
            }
        }
        Page::last(items)
    }

    pub(super) fn disclose(&mut self, what: &Disclosure, actor: &Actor, now: Time) -> Result<(), Refusal> {
        actor.check()?;
        what.check()?;
        what.entries(actor, now).into_iter().for_each(|entry| self.seal(entry));
        Ok(())
    }
}
