//! The audit trail: one row per act, sealed in a chain. Each row's seal covers the row and the seal before
//! it, under a key that is kept outside the database. What that proves: whoever lacks the key cannot change,
//! remove or reorder rows unnoticed, nor cut the end unnoticed by somebody who knows an earlier head.

use crate::dead_letter::Actor;
use crate::time::Time;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

/// The key of the chain.
#[derive(Clone)]
pub struct AuditKey(pub [u8; 32]);

impl std::fmt::Debug for AuditKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AuditKey(…)")
    }
}

/// What was done, before it is sealed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditEntry {
    /// When.
    pub at: Time,
    /// Who.
    pub actor: String,
    /// Through what.
    pub source: String,
    /// What.
    pub act: String,
    /// To what: an id, a queue, an operation.
    pub target: String,
    /// How many items it touched.
    pub count: u64,
    /// Why, in their words.
    #[serde(default)]
    pub reason: Option<String>,
    /// What else: a filter, a before and after.
    #[serde(default)]
    pub detail: Option<String>,
}

impl AuditEntry {
    /// An entry for one act of one actor on one target.
    #[must_use]
    pub fn new(at: Time, actor: &Actor, act: &str, target: impl std::fmt::Display, count: u64) -> Self {
        Self {
            at,
            actor: actor.name.clone(),
            source: actor.source.clone(),
            act: act.to_owned(),
            target: target.to_string(),
            count,
            reason: actor.reason.clone(),
            detail: None,
        }
    }

    /// The same entry with more said.
    #[must_use]
    pub fn with_detail(mut self, detail: impl std::fmt::Display) -> Self {
        self.detail = Some(detail.to_string());
        self
    }
}

/// A sealed row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRow {
    /// The position in the chain; 1 is the first.
    pub n: u64,
    /// What was done.
    #[serde(flatten)]
    pub entry: AuditEntry,
    /// The seal, in hex.
    pub seal: String,
}

/// The seal before the first row.
pub const ORIGIN: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// Seals an entry as row `n` after the row with seal `previous`.
#[must_use]
pub fn seal(key: &AuditKey, n: u64, previous: &str, entry: AuditEntry) -> AuditRow {
    let seal = seal_text(key, n, previous, &entry);
    AuditRow { n, entry, seal }
}

fn seal_text(key: &AuditKey, n: u64, previous: &str, entry: &AuditEntry) -> String {
    // Field order is the struct's, numbers and times have one spelling: the text is canonical.
    let entry = serde_json::to_string(entry).unwrap_or_default();
    prove(key, &[previous.as_bytes(), &n.to_be_bytes(), entry.as_bytes()])
}

/// What proves these parts to whoever has the key.
pub(crate) fn prove(key: &AuditKey, parts: &[&[u8]]) -> String {
    // HMAC takes keys of any length; the error arm cannot be reached and would only weaken to an empty seal,
    // which never verifies.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&key.0) else { return String::new() };
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().iter().map(|b| format!("{b:02x}")).collect()
}

/// Where a chain begins whose first rows were trimmed: the seal of the last row that is gone, proved by the
/// key, so that whoever lacks it cannot move the beginning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anchor {
    /// The position of the last row that was trimmed.
    pub n: u64,
    /// Its seal.
    pub seal: String,
    /// What proves the two.
    pub proof: String,
}

impl Anchor {
    /// The anchor after this row.
    #[must_use]
    pub fn after(key: &AuditKey, row: &AuditRow) -> Self {
        Self { n: row.n, seal: row.seal.clone(), proof: proof_text(key, row.n, &row.seal) }
    }

    /// Whether it was made with this key.
    #[must_use]
    pub fn holds(&self, key: &AuditKey) -> bool {
        self.proof == proof_text(key, self.n, &self.seal)
    }
}

fn proof_text(key: &AuditKey, n: u64, seal: &str) -> String {
    prove(key, &[b"redrive audit anchor", &n.to_be_bytes(), seal.as_bytes()])
}

/// What trimming did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditTrimmed {
    /// Rows removed by this call.
    pub rows: u64,
    /// Whether there is more to remove.
    pub more: bool,
}

/// What a check of the chain found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditReport {
    /// Rows checked.
    pub rows: u64,
    /// Rows that were trimmed before them; the anchor stands for these.
    #[serde(default)]
    pub trimmed: u64,
    /// The last seal.
    pub head: String,
    /// What is wrong, with the row; nothing when the chain holds.
    pub broken: Option<String>,
}

/// Checks a chain as it is read.
#[derive(Debug)]
pub struct AuditCheck<'a> {
    key: &'a AuditKey,
    report: AuditReport,
}

impl<'a> AuditCheck<'a> {
    /// A check that starts at the origin, or where trimming left an anchor.
    #[must_use]
    pub fn new(key: &'a AuditKey, anchor: Option<&Anchor>) -> Self {
        let mut report = AuditReport { rows: 0, trimmed: 0, head: ORIGIN.into(), broken: None };
        if let Some(anchor) = anchor {
            report.trimmed = anchor.n;
            report.head.clone_from(&anchor.seal);
            if !anchor.holds(key) {
                let why = "the anchor of the trimmed rows was changed, or made with another key";
                report.broken = Some(why.into());
            }
        }
        Self { key, report }
    }

    /// The next row in order.
    pub fn row(&mut self, row: &AuditRow) {
        if self.report.broken.is_some() {
            return;
        }
        let n = self.report.trimmed + self.report.rows + 1;
        if row.n != n {
            self.report.broken = Some(format!("row {n} is missing (found row {})", row.n));
        } else if seal_text(self.key, n, &self.report.head, &row.entry) != row.seal {
            self.report.broken = Some(format!("row {n} was changed, or sealed with another key"));
        } else {
            self.report.rows += 1;
            self.report.head.clone_from(&row.seal);
        }
    }

    /// The verdict. `stored` is the head the store wrote last, `known` one that somebody noted earlier.
    #[must_use]
    pub fn finish(mut self, stored: &str, seen_known: Option<bool>) -> AuditReport {
        if self.report.broken.is_none() && self.report.head != stored {
            self.report.broken = Some(format!(
                "the chain ends at row {} but the stored head is another: rows are missing at the end",
                self.report.trimmed + self.report.rows
            ));
        }
        if self.report.broken.is_none() && seen_known == Some(false) {
            self.report.broken = Some(match self.report.trimmed {
                0 => "the given head is not in the chain: rows were cut or rewritten".into(),
                n => format!(
                    "the given head is not in the chain: rows were cut or rewritten, or it is older than row \
                     {n}, up to which the trail was trimmed"
                ),
            });
        }
        self.report
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain() -> (AuditKey, Vec<AuditRow>) {
        let key = AuditKey([7; 32]);
        let mut rows: Vec<AuditRow> = Vec::new();
        for n in 1..=5 {
            let previous = rows.last().map_or(ORIGIN.to_owned(), |r| r.seal.clone());
            let entry = AuditEntry::new(Time::from_millis(5), &Actor::new("a", "cli"), "resolve", n, 1);
            rows.push(seal(&key, n, &previous, entry));
        }
        (key, rows)
    }

    fn check(key: &AuditKey, rows: &[AuditRow], stored: &str) -> Option<String> {
        let mut check = AuditCheck::new(key, None);
        rows.iter().for_each(|r| check.row(r));
        check.finish(stored, None).broken
    }

    #[test]
    fn i48_any_change_to_the_chain_is_found() {
        let (key, rows) = chain();
        let head = rows[4].seal.clone();
        assert_eq!(check(&key, &rows, &head), None);
        let mut changed = rows.clone();
        changed[2].entry.actor = "b".into();
        assert!(check(&key, &changed, &head).unwrap().contains("row 3"));
        let mut removed = rows.clone();
        removed.remove(1);
        assert!(check(&key, &removed, &head).unwrap().contains("row 2 is missing"));
        let mut swapped = rows.clone();
        swapped.swap(0, 1);
        assert!(check(&key, &swapped, &head).is_some());
        assert!(check(&key, &rows[..4], &head).unwrap().contains("at the end"));
        assert!(check(&AuditKey([8; 32]), &rows, &head).unwrap().contains("another key"));
    }

    #[test]
    fn i48_a_trimmed_chain_is_proved_from_its_anchor() {
        let (key, rows) = chain();
        let head = rows[4].seal.clone();
        let check = |anchor: &Anchor, rows: &[AuditRow]| {
            let mut check = AuditCheck::new(&key, Some(anchor));
            rows.iter().for_each(|r| check.row(r));
            check.finish(&head, None)
        };
        let anchor = Anchor::after(&key, &rows[2]);
        let report = check(&anchor, &rows[3..]);
        assert_eq!((report.rows, report.trimmed, report.broken), (2, 3, None));
        assert!(check(&anchor, &rows[4..]).broken.unwrap().contains("row 4 is missing"));
        assert!(check(&anchor, &rows[2..]).broken.unwrap().contains("found row 3"));
        let moved = Anchor { proof: anchor.proof.clone(), ..Anchor::after(&AuditKey([8; 32]), &rows[3]) };
        assert!(check(&moved, &rows[4..]).broken.unwrap().contains("anchor"));
        let all = check(&Anchor::after(&key, &rows[4]), &[]);
        assert_eq!((all.rows, all.trimmed, all.broken), (0, 5, None));
    }
}
