//! Letters that move from one store to another: their exported form, what an import refuses, and the death
//! number of an imported letter. Pure; the exporter decides about files and formats.

use crate::dead_letter::{DeadLetter, LetterRecord};
use crate::error::Refusal;
use crate::limits;
use crate::message::{Envelope, Message};
use crate::revision::{Content, check_lineage};

/// The exported form of a letter, without what belongs to this store only: the position in the order of
/// enqueues and the lease of a consumer. An import into an empty store restores exactly this form.
#[must_use]
pub fn exported(letter: DeadLetter) -> DeadLetter {
    let DeadLetter { message, record, .. } = letter;
    DeadLetter {
        message: Message { envelope: Envelope { seq: 0, ..message.envelope }, ..message },
        record: LetterRecord { consumer: None, consumer_until: None, ..record },
        ..letter
    }
}

/// Checks that a letter can be imported.
///
/// # Errors
/// Returns [`Refusal::Invalid`] if the letter is masked, so that its secrets are missing, or if its revisions
/// do not match its record.
pub fn check_import(letter: &DeadLetter) -> Result<(), Refusal> {
    if letter.message.masked {
        let why = "this letter is masked: the secrets are not in it, so it cannot be worked on again; \
                   export it with --full";
        return Err(Refusal::invalid("masked", why));
    }
    letter.record.check_history()?;
    check_lineage(&letter.record, &Content::of(&letter.message.envelope), &letter.revisions)
}

/// The death number of an imported letter: its own if that keeps the order of deaths, otherwise the next one.
/// `last` is the highest death number in this store.
#[must_use]
pub const fn death_of_import(own: u64, last: u64) -> u64 {
    if own > last && own <= limits::DEATH_IMPORT_MAX { own } else { last + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_death_keeps_its_number_where_that_keeps_the_order() {
        for (own, last, wanted) in [
            (1, 0, 1),
            (7, 0, 7),
            (7, 6, 7),
            (7, 7, 8),
            (7, 9, 10),
            (0, 0, 1),
            (limits::DEATH_IMPORT_MAX, 3, limits::DEATH_IMPORT_MAX),
            (limits::DEATH_IMPORT_MAX + 1, 3, 4),
            (u64::MAX, 3, 4),
        ] {
            assert_eq!(death_of_import(own, last), wanted, "{own} after {last}");
        }
    }
}
