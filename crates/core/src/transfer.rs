//! What crosses from one store to another: a letter as it is exported, what an import must refuse, and the place an
//! imported letter takes. Pure; how it is written to a file is the business of whoever exports.

use crate::dead_letter::{DeadLetter, File};
use crate::error::Refusal;
use crate::limits;
use crate::message::{Envelope, Message};
use crate::revision::{Content, check_lineage};

/// The letter without what is only this store's: its place in the order of enqueues, and who works on it. What is
/// left is the same again after an import into an empty store.
#[must_use]
pub fn exported(letter: DeadLetter) -> DeadLetter {
    let DeadLetter { message, file, .. } = letter;
    DeadLetter {
        message: Message { envelope: Envelope { seq: 0, ..message.envelope }, ..message },
        file: File { consumer: None, consumer_until: None, ..file },
        ..letter
    }
}

/// Refuses what only looks like a letter.
///
/// # Errors
/// [`Refusal::Invalid`] for a masked one: its secrets are not in it; and for one without the lineage it tells of.
pub fn check_import(letter: &DeadLetter) -> Result<(), Refusal> {
    if letter.message.masked {
        let why = "this letter is masked: the secrets are not in it, so it cannot be worked on again; \
                   export it with --full";
        return Err(Refusal::invalid("masked", why));
    }
    letter.file.check_history()?;
    check_lineage(&letter.file, &Content::of(&letter.message.envelope), &letter.revisions)
}

/// The number of the death of an imported letter: its own where that keeps the order, else the next one. `last` is
/// the number of the latest death here.
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
