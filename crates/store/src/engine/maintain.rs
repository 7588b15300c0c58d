//! Maintenance: what has become due for messages and letters, in bounded passes.

use super::Engine;
use super::tables::{Letter, Tables};
use redrive_core::audit::AuditEntry;
use redrive_core::dead_letter::{Act, ActRequest, Actor, Status};
use redrive_core::error::StoreResult;
use redrive_core::group::LeafKey;
use redrive_core::group::triage::SYSTEM;
use redrive_core::ids::QueueName;
use redrive_core::invariants::{Counts, Verification};
use redrive_core::limits;
use redrive_core::poison::Release;
use redrive_core::store::Reaped;
use redrive_core::time::Time;
use std::collections::{BTreeMap, BTreeSet};

impl<T: Tables> Engine<T> {
    /// One bounded pass: expired leases, overdue messages, ended quarantines, owed replies, retention, old keys.
    pub(crate) fn reap(&mut self, limit: usize, now: Time) -> StoreResult<Reaped> {
        let limit = limit.clamp(1, limits::REAP_MAX);
        let (leases_lost, timed_out) = self.reap_messages(limit, now)?;
        Ok(Reaped { leases_lost, timed_out, ..self.reap_letters(limit, now)? })
    }

    /// Like [`Self::reap`], but skips messages if the ready index would first have to be built from many of them.
    pub(crate) fn tidy(&mut self, limit: usize, now: Time) -> StoreResult<Reaped> {
        let live: i64 = self.queues()?.values().map(|row| row.counts.waiting + row.counts.leased).sum();
        if self.ready_index.is_some() || live <= limits::TIDY_MESSAGES_MAX {
            return self.reap(limit, now);
        }
        self.reap_letters(limit.clamp(1, limits::REAP_MAX), now)
    }

    /// Handles ended quarantines, owed replies, retention and old keys.
    /// Retention writes one audit row for all the letters it removes.
    fn reap_letters(&mut self, limit: usize, now: Time) -> StoreResult<Reaped> {
        let mut reaped = Reaped { released: self.end_quarantines(limit, now)?, ..Reaped::default() };
        reaped.replies_sent = self.send_owed_replies(limit, now)?;
        let mut removed: BTreeMap<QueueName, u64> = BTreeMap::new();
        for letter in self.tables.retention_ended(limit, now)? {
            self.expire_letter(&letter, now)?;
            match letter.record.status {
                // Its purge has an audit row already.
                Status::Purged => reaped.letters_gone += 1,
                Status::Pending
                | Status::Retrying
                | Status::Review
                | Status::Quarantined
                | Status::Resolved
                | Status::Abandoned => {
                    reaped.letters_expired += 1;
                    *removed.entry(letter.record.dlq).or_default() += 1;
                }
            }
        }
        if !removed.is_empty() {
            self.append_audit(AuditEntry::retention(now, &removed))?;
        }
        let requests = self.forget_requests(limit, now)?;
        reaped.keys_forgotten = self.tables.drop_keys(now.minus(limits::KEY_WINDOW), limit)? + requests;
        Ok(reaped)
    }

    /// Releases letters whose quarantine is over, as their queue's policy says. Returns how many. Leasing calls it
    /// too, so that it does not depend on a process that does maintenance.
    pub(super) fn end_quarantines(&mut self, limit: usize, now: Time) -> StoreResult<u64> {
        self.load_dlq_counts()?;
        if self.cache.quarantined <= 0 {
            return Ok(0);
        }
        let mut released = 0;
        for letter in self.tables.quarantine_ended(limit, now)? {
            let policy = self.queue(&letter.meta.queue)?.policy.clone();
            let request = ActRequest::release_to_queue(letter.meta.id);
            let sent_back = match letter.record.released_to(&policy) {
                // If the queue is full or the letter's key is in use by other work, a person has to decide.
                Release::Queue => self.run_entry(|engine| engine.act_on(&letter, &request, now))?.is_ok(),
                Release::Review => false,
            };
            if !sent_back {
                self.count_act(&letter.meta, &letter.record, &Act::Review, Status::Review, now)?;
                let record = letter.record.released_to_review(&policy, now);
                self.replace_letter(&letter, Letter { record, ..letter.clone() }, now)?;
            }
            released += 1;
        }
        Ok(released)
    }

    /// Sets damaged records aside, recounts everything and repairs what
    /// can be derived from other rows. Nothing else is ever repaired.
    pub(crate) fn repair(&mut self, deep: bool, now: Time) -> StoreResult<Verification> {
        self.flush()?;
        let aside = self.tables.set_aside(now)?;
        let census = super::reads::verify(&self.tables, &self.audit_key, deep)?;
        self.forget();
        let names: Vec<QueueName> = self.queues()?.keys().cloned().collect();
        let mut repaired = 0;
        for name in names {
            let counted = census.counted(&name);
            let row = self.queue_mut(&name)?;
            let mut right = Counts {
                waiting: counted.waiting,
                leased: counted.leased,
                dead: counted.dead,
                bytes: counted.bytes,
                ..row.counts
            };
            if !aside.is_empty() {
                // Records that were set aside are in no queue any more: count them as purged.
                right.purged += right.missing().max(0);
            }
            repaired += u64::from(row.counts != right);
            row.counts = right;
        }
        self.cache.totals = None;
        for (key, says, counted) in census.open_letters().differences(&self.tables.open_letters()?) {
            self.count_open(key, counted - says)?;
            repaired += 1;
        }
        let shown: Vec<(LeafKey, i64)> =
            self.tables.leaf_counts()?.into_iter().map(|(key, count)| (key, count.open)).collect();
        let known: BTreeSet<LeafKey> = shown.iter().map(|(key, _)| key.clone()).collect();
        let unknown = census.open().keys().filter(|key| !known.contains(key)).map(|key| (key.clone(), 0));
        for (key, open) in shown.into_iter().chain(unknown) {
            let counted = census.open().get(&key).copied().unwrap_or(0);
            if counted != open {
                self.count_leaf(key, |c| c.open = counted)?;
                repaired += 1;
            }
        }
        for (id, counted) in census.outcomes() {
            let (members, counted) = (counted.sum(), *counted);
            self.change_operation(*id, |operation| {
                operation.members = members;
                operation.outcomes = counted;
                operation.advance(now);
            })?;
            repaired += 1;
        }
        repaired += self.repair_groups()?;
        if census.trail_mendable {
            self.repair_audit_head(now)?;
            repaired += 1;
        }
        for what in &aside {
            self.append_audit(AuditEntry::new(now, &Actor::new(SYSTEM, SYSTEM), "set aside", what, 1))?;
        }
        repaired += self.tables.repair(deep)?;
        let mut verification = census.verification;
        verification.repaired = repaired + aside.len() as u64;
        Ok(verification)
    }
}
