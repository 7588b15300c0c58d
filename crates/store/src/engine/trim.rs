//! Trimming the audit trail: old rows are deleted, and an anchor stays from which the rest can still be verified. The
//! anchor is stored in the key-value space and sealed with the key of the chain. Only this file writes it.

use super::Engine;
use super::tables::{Reads, TableResult, Tables};
use redrive_core::audit::{Anchor, AuditEntry, AuditTrimmed, ORIGIN};
use redrive_core::dead_letter::Actor;
use redrive_core::error::{StoreError, StoreErrorKind, StoreResult};
use redrive_core::limits;
use redrive_core::store::KvEntry;
use redrive_core::time::Time;

/// The namespace of the anchor, reserved for it.
pub(crate) const NAMESPACE: &str = "audit";
const KEY: &str = "anchor";

/// Where the chain begins, if its first rows were trimmed.
pub(crate) fn anchor(tables: &dyn Reads) -> TableResult<Option<Anchor>> {
    let Some(entry) = tables.kv(NAMESPACE, KEY)? else { return Ok(None) };
    // An unreadable anchor proves nothing; the check of the chain will say so.
    let unreadable = || Anchor { n: 0, seal: String::new(), proof: String::new() };
    Ok(Some(serde_json::from_slice(&entry.value).unwrap_or_else(|_| unreadable())))
}

/// The number and the seal of the last row, or of the anchor if all rows were trimmed.
pub(crate) fn last(tables: &dyn Reads) -> TableResult<(u64, String)> {
    if let Some(row) = tables.audit_before(u64::MAX, 1)?.into_iter().next() {
        return Ok((row.n, row.seal));
    }
    Ok(anchor(tables)?.map_or_else(|| (0, ORIGIN.to_owned()), |anchor| (anchor.n, anchor.seal)))
}

impl<T: Tables> Engine<T> {
    /// Deletes a bounded number of old rows of the audit trail.
    pub(crate) fn audit_trim(&mut self, before: Time, actor: &Actor, now: Time) -> StoreResult<AuditTrimmed> {
        actor.check()?;
        let begins = anchor(&self.tables)?;
        if begins.as_ref().is_some_and(|anchor| !anchor.holds(&self.audit_key)) {
            let why =
                "the anchor of the audit trail was changed or made with another key; nothing was trimmed";
            return Err(StoreError::new(StoreErrorKind::Damaged, why).into());
        }
        let from = begins.map_or(0, |anchor| anchor.n);
        let rows = self.tables.audit_after(from, limits::AUDIT_TRIM_CHUNK + 1)?;
        let old = rows.iter().take_while(|row| row.entry.at < before);
        let last = old.take(limits::AUDIT_TRIM_CHUNK).last();
        let Some(last) = last else { return Ok(AuditTrimmed::default()) };
        let more = rows.last().is_some_and(|row| row.n > last.n && row.entry.at < before);
        let anchor = Anchor::after(&self.audit_key, last);
        let value = serde_json::to_vec(&anchor).map_err(|error| {
            StoreError::new(StoreErrorKind::Io, format!("the anchor cannot be written: {error}"))
        })?;
        let version = self.tables.kv(NAMESPACE, KEY)?.map_or(0, |entry| entry.version) + 1;
        self.tables.put_kv(NAMESPACE, KEY, Some(&KvEntry { value, version }))?;
        self.tables.drop_audit(last.n)?;
        let trimmed = AuditTrimmed { rows: last.n - from, more };
        let entry = AuditEntry::new(now, actor, "trim", "audit", trimmed.rows);
        self.append_audit(entry.with_detail(format_args!("rows up to {}, from before {before}", last.n)))?;
        Ok(trimmed)
    }
}
