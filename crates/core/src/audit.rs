//! The audit trail: one row per act, sealed in a chain. The seal of a row covers the row and the previous seal, under
//! a key that is kept outside the database. Without the key, nobody can change, remove or reorder rows unnoticed, and
//! nobody can cut rows off the end unnoticed by somebody who knows an earlier head.

use crate::dead_letter::Actor;
use crate::ids::QueueName;
use crate::limits;
use crate::masking::Rules;
use crate::query::Page;
use crate::time::{Time, TimeBound};
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet};

/// The key with which rows are sealed.
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
    /// When it was done.
    pub at: Time,
    /// Who did it.
    pub actor: String,
    /// The interface through which it was done.
    pub source: String,
    /// The act.
    pub act: String,
    /// What it was done to: the id of a letter, a queue or an operation, for example.
    pub target: String,
    /// How many items it touched.
    pub count: u64,
    /// The reason that the actor gave.
    #[serde(default)]
    pub reason: Option<String>,
    /// Further details in words.
    #[serde(default)]
    pub detail: Option<String>,
    // The fields below were added later. An entry without them must be written as before, because the seal covers its
    // text.
    /// The filter that selected the items.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// The [`fingerprint`] of the target before the act.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
    /// The [`fingerprint`] of the target after the act; `None` if it is gone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<String>,
    /// The result, if it is more than success: how many items were refused, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// The request key of the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
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
            filter: None,
            before: None,
            after: None,
            result: None,
            request: actor.request.as_ref().map(|request| request.key.clone()),
        }
    }

    /// The entry of a maintenance pass that removed letters because their retention had ended, with the number per
    /// dead letter queue.
    #[must_use]
    pub fn retention(at: Time, removed: &BTreeMap<QueueName, u64>) -> Self {
        let listed = removed.iter().take(limits::RETENTION_DLQS_LISTED_MAX);
        let mut parts: Vec<String> = listed.map(|(dlq, count)| format!("{dlq}: {count}")).collect();
        let unlisted = removed.len().saturating_sub(parts.len());
        if unlisted > 0 {
            parts.push(format!("and {unlisted} more dead letter queues"));
        }
        let actor = Actor::new("system", "maintenance");
        Self::new(at, &actor, "retention", "letters", removed.values().sum()).with_detail(parts.join(", "))
    }

    /// Adds details in words.
    #[must_use]
    pub fn with_detail(mut self, detail: impl std::fmt::Display) -> Self {
        self.detail = Some(detail.to_string());
        self
    }

    /// Adds the filter that selected the items.
    #[must_use]
    pub fn with_filter(mut self, filter: impl std::fmt::Display) -> Self {
        self.filter = Some(filter.to_string());
        self
    }

    /// Adds the [`fingerprint`]s of the target before and after the act. `before` is `None` if the act created the
    /// target, `after` if it removed it.
    #[must_use]
    pub fn with_change(mut self, before: Option<String>, after: Option<String>) -> Self {
        (self.before, self.after) = (before, after);
        self
    }

    /// Adds the result.
    #[must_use]
    pub fn with_result(mut self, result: impl std::fmt::Display) -> Self {
        self.result = Some(result.to_string());
        self
    }
}

/// Distinguishes two states of a value without revealing it: the first 16 hex digits of the SHA-256 of its JSON. This
/// shows that something changed, and whether it is back to an earlier state; it does not protect against guessing.
#[must_use]
pub fn fingerprint<T: Serialize + ?Sized>(thing: &T) -> String {
    let text = serde_json::to_vec(thing).unwrap_or_default();
    Sha256::digest(text).iter().take(8).map(|b| format!("{b:02x}")).collect()
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
    // The text is canonical: fields are in the order of the struct, and numbers and times have one spelling.
    let entry = serde_json::to_string(entry).unwrap_or_default();
    hmac_hex(key, &[previous.as_bytes(), &n.to_be_bytes(), entry.as_bytes()])
}

/// The HMAC-SHA-256 of the concatenated parts, in hex.
pub(crate) fn hmac_hex(key: &AuditKey, parts: &[&[u8]]) -> String {
    // HMAC takes keys of any length, so the `else` branch is unreachable; an empty seal would never verify.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(&key.0) else { return String::new() };
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().iter().map(|b| format!("{b:02x}")).collect()
}

/// Where a chain begins after its first rows were trimmed: the seal of the last row that is gone. The proof is made
/// with the key, so that nobody without it can move the beginning.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Anchor {
    /// The position of the last row that was trimmed.
    pub n: u64,
    /// The seal of that row.
    pub seal: String,
    /// An HMAC of position and seal.
    pub proof: String,
}

impl Anchor {
    /// The anchor for a chain that was trimmed up to and including this row.
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
    hmac_hex(key, &[b"redrive audit anchor", &n.to_be_bytes(), seal.as_bytes()])
}

/// What trimming did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditTrimmed {
    /// The number of rows removed by this call.
    pub rows: u64,
    /// Whether there are more rows to remove.
    pub more: bool,
}

/// The result of checking the chain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditReport {
    /// The number of rows checked.
    pub rows: u64,
    /// The number of rows that were trimmed before them, for which the anchor stands.
    #[serde(default)]
    pub trimmed: u64,
    /// The last seal.
    pub head: String,
    /// What is wrong, and in which row; `None` if the chain is intact.
    pub broken: Option<String>,
    /// Whether all rows are intact and only the stored head is wrong, which `redrive doctor --repair` mends.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mendable: bool,
}

/// How the stored head differs from the last row of the chain, with the command that mends it, or `None` if they agree.
/// Both arguments are the position and the seal of a row.
#[must_use]
pub fn head_mismatch(stored: (u64, &str), last: (u64, &str)) -> Option<String> {
    let (n, end) = (stored.0, last.0);
    let what = match n.cmp(&end) {
        std::cmp::Ordering::Less => {
            format!("the stored head says row {n}, but the audit trail goes on to row {end}")
        }
        std::cmp::Ordering::Greater => {
            format!(
                "the stored head says row {n}, but the audit trail ends at row {end}: rows are missing at the end"
            )
        }
        std::cmp::Ordering::Equal if stored.1 != last.1 => {
            format!("the stored head has another seal than row {end}, the last of the audit trail")
        }
        std::cmp::Ordering::Equal => return None,
    };
    Some(format!("{what}; `redrive doctor --repair` sets the head to the last row and records that it did"))
}

/// The differences between two states of a value, as `key: before -> after` for each field; empty if there are none.
/// Nested fields are joined with a dot. The values of fields with sensitive names are masked.
#[must_use]
pub fn changes<T: Serialize + ?Sized>(before: &T, after: &T) -> String {
    let fields = |value: &T| {
        let mut fields = BTreeMap::new();
        flatten(String::new(), serde_json::to_value(value).unwrap_or_default(), &mut fields);
        fields
    };
    let (before, after) = (fields(before), fields(after));
    let rules = Rules::default();
    let shown = |key: &str, value: Option<&Value>| {
        let name = key.rsplit('.').next().unwrap_or(key);
        value.map_or_else(|| "none".to_owned(), |value| rules.mask_field(name, &value.to_string()))
    };
    let keys: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let changed = keys.into_iter().filter(|key| before.get(*key) != after.get(*key));
    let lines = changed
        .map(|key| format!("{key}: {} -> {}", shown(key, before.get(key)), shown(key, after.get(key))));
    lines.collect::<Vec<_>>().join(", ")
}

/// Collects the fields of a value by path. A null counts as absent.
fn flatten(path: String, value: Value, fields: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (name, value) in map {
                let path = if path.is_empty() { name } else { format!("{path}.{name}") };
                flatten(path, value, fields);
            }
        }
        Value::Null => {}
        value @ (Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_)
        | Value::Object(_)) => {
            fields.insert(path, value);
        }
    }
}

/// Checks a chain while it is read.
#[derive(Debug)]
pub struct AuditCheck<'a> {
    key: &'a AuditKey,
    report: AuditReport,
}

impl<'a> AuditCheck<'a> {
    /// A check that starts at the first row ever, or at the anchor that trimming left.
    #[must_use]
    pub fn new(key: &'a AuditKey, anchor: Option<&Anchor>) -> Self {
        let mut report =
            AuditReport { rows: 0, trimmed: 0, head: ORIGIN.into(), broken: None, mendable: false };
        if let Some(anchor) = anchor {
            report.trimmed = anchor.n;
            report.head.clone_from(&anchor.seal);
            if !anchor.holds(key) {
                let text = "the anchor of the trimmed rows was changed, or made with another key";
                report.broken = Some(text.into());
            }
        }
        Self { key, report }
    }

    /// Checks the next row in order.
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

    /// Ends the check. `stored` is the position and the seal of the row that the store wrote last; `seen_known` says
    /// whether a head that somebody noted earlier is in the chain.
    #[must_use]
    pub fn finish(mut self, stored: (u64, &str), seen_known: Option<bool>) -> AuditReport {
        let last = (self.report.trimmed + self.report.rows, self.report.head.as_str());
        if self.report.broken.is_none() {
            self.report.broken = head_mismatch(stored, last);
            self.report.mendable = self.report.broken.is_some();
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

/// Selects rows of the audit trail. Fields that are not set do not restrict the result.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Only this act.
    pub act: Option<String>,
    /// Only acts of this person or program.
    pub by: Option<String>,
    /// Only acts on this target.
    pub target: Option<String>,
    /// Only acts since then.
    pub since: Option<TimeBound>,
    /// Only acts before then.
    pub until: Option<TimeBound>,
}

impl AuditFilter {
    /// Filters a page. Rows come latest first, so there is no next page after a row that is older than `since`.
    #[must_use]
    pub fn filter_page(&self, page: Page<AuditRow>, now: Time) -> Page<AuditRow> {
        let (since, until) = (self.since.map(|bound| bound.at(now)), self.until.map(|bound| bound.at(now)));
        let past_since = page.items.last().is_some_and(|row| since.is_some_and(|since| row.entry.at < since));
        let is =
            |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|wanted| wanted == found);
        let wanted = |row: &AuditRow| {
            let entry = &row.entry;
            is(&self.act, &entry.act)
                && is(&self.by, &entry.actor)
                && is(&self.target, &entry.target)
                && since.is_none_or(|since| entry.at >= since)
                && until.is_none_or(|until| entry.at < until)
        };
        let next = page.next.filter(|_| !past_since);
        Page { next, ..Page::last(page.items.into_iter().filter(wanted).collect()) }
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

    fn check(key: &AuditKey, rows: &[AuditRow], stored: (u64, &str)) -> Option<String> {
        let mut check = AuditCheck::new(key, None);
        rows.iter().for_each(|r| check.row(r));
        check.finish(stored, None).broken
    }

    #[test]
    fn i48_a_head_that_is_not_the_last_row_is_found_and_can_be_mended() {
        let (key, rows) = chain();
        let seal = |n: usize| rows[n - 1].seal.as_str();
        for (stored, text) in [
            ((4, seal(4)), "goes on to row 5"),
            ((4, seal(5)), "goes on to row 5"),
            ((6, seal(5)), "missing at the end"),
            ((5, seal(4)), "another seal"),
        ] {
            let mut check = AuditCheck::new(&key, None);
            rows.iter().for_each(|r| check.row(r));
            let report = check.finish(stored, None);
            let broken = report.broken.unwrap();
            assert!(broken.contains(text) && broken.contains("redrive doctor --repair"), "{broken}");
            assert!(report.mendable);
        }
        let mut check = AuditCheck::new(&key, None);
        rows[1..].iter().for_each(|r| check.row(r));
        assert!(!check.finish((4, seal(4)), None).mendable, "a missing row cannot be mended");
    }

    #[test]
    fn changes_name_the_fields_that_differ_and_no_secrets() {
        let before = serde_json::json!({"a": 1, "b": {"c": "x", "d": [1]}, "password": "old", "gone": true, "n": null});
        let after = serde_json::json!({"a": 1, "b": {"c": "y", "d": [1]}, "password": "new", "made": 2});
        let wanted =
            r#"b.c: "x" -> "y", gone: true -> none, made: none -> 2, password: [masked] -> [masked]"#;
        assert_eq!(changes(&before, &after), wanted);
        assert_eq!(changes(&before, &before), "");
    }

    #[test]
    fn i48_any_change_to_the_chain_is_found() {
        let (key, rows) = chain();
        let head = (5, rows[4].seal.as_str());
        assert_eq!(check(&key, &rows, head), None);
        let mut changed = rows.clone();
        changed[2].entry.actor = "b".into();
        assert!(check(&key, &changed, head).unwrap().contains("row 3"));
        let mut removed = rows.clone();
        removed.remove(1);
        assert!(check(&key, &removed, head).unwrap().contains("row 2 is missing"));
        let mut swapped = rows.clone();
        swapped.swap(0, 1);
        assert!(check(&key, &swapped, head).is_some());
        assert!(check(&key, &rows[..4], head).unwrap().contains("at the end"));
        assert!(check(&AuditKey([8; 32]), &rows, head).unwrap().contains("another key"));
    }

    /// A row from before entries had a filter, a change or a result, and the seal it got then.
    const OLD_ROW: &str = r#"{"at":"1970-01-01T00:00:00.005Z","actor":"a","source":"cli","act":"resolve","target":"q","count":3,"reason":"done","detail":null}"#;
    const OLD_SEAL: &str = "010ceaa93c1f3e211746b2a5796d66197db5123eaba35263da40264d2ec8813c";

    #[test]
    fn i48_rows_from_before_entries_had_optional_fields_still_verify() {
        let key = AuditKey([7; 32]);
        let entry: AuditEntry = serde_json::from_str(OLD_ROW).unwrap();
        assert_eq!(serde_json::to_string(&entry).unwrap(), OLD_ROW);
        let row = AuditRow { n: 1, entry, seal: OLD_SEAL.into() };
        assert_eq!(check(&key, std::slice::from_ref(&row), (1, OLD_SEAL)), None);
        let mut forged = row;
        forged.entry.result = Some("0 refused".into());
        assert!(check(&key, &[forged], (1, OLD_SEAL)).unwrap().contains("row 1"));
    }

    #[test]
    fn i48_the_optional_fields_of_an_entry_are_sealed() {
        let key = AuditKey([7; 32]);
        let entry = AuditEntry::new(Time::from_millis(5), &Actor::new("a", "cli"), "purge", "q", 3)
            .with_filter("queue:q")
            .with_change(Some(fingerprint(&1)), None)
            .with_result("2 refused");
        let row = seal(&key, 1, ORIGIN, entry);
        let text = serde_json::to_string(&row.entry).unwrap();
        assert!(
            text.ends_with(r#""filter":"queue:q","before":"6b86b273ff34fce1","result":"2 refused"}"#),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<AuditEntry>(&text).unwrap(), row.entry);
        let changes: [fn(&mut AuditEntry); 4] = [
            |e| e.filter = None,
            |e| e.before = Some("6b86b273ff34fce2".into()),
            |e| e.after = Some("6b86b273ff34fce1".into()),
            |e| e.result = Some("1 refused".into()),
        ];
        for change in changes {
            let mut forged = row.clone();
            change(&mut forged.entry);
            assert!(check(&key, &[forged], (1, &row.seal)).unwrap().contains("row 1"));
        }
    }

    #[test]
    fn a_retention_entry_counts_per_dead_letter_queue_and_stays_short() {
        let queue = |n: usize| -> QueueName { format!("q{n:03}-dlq").parse().unwrap() };
        let entry = |queues: usize| {
            AuditEntry::retention(Time::from_millis(5), &(0..queues).map(|n| (queue(n), 2)).collect())
        };
        let two = entry(2);
        assert_eq!((two.act.as_str(), two.target.as_str(), two.count), ("retention", "letters", 4));
        assert_eq!(two.detail.as_deref(), Some("q000-dlq: 2, q001-dlq: 2"));
        let many = entry(limits::RETENTION_DLQS_LISTED_MAX + 3);
        assert!(many.detail.unwrap().ends_with("q049-dlq: 2, and 3 more dead letter queues"));
        assert_eq!(
            many.count,
            2 * (limits::RETENTION_DLQS_LISTED_MAX as u64 + 3),
            "the count is of all of them"
        );
    }

    #[test]
    fn i48_a_trimmed_chain_is_proved_from_its_anchor() {
        let (key, rows) = chain();
        let head = rows[4].seal.clone();
        let check = |anchor: &Anchor, rows: &[AuditRow]| {
            let mut check = AuditCheck::new(&key, Some(anchor));
            rows.iter().for_each(|r| check.row(r));
            check.finish((5, &head), None)
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
