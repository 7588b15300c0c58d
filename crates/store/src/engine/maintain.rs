//! Maintenance: what time does to messages and letters, in bounded passes.

use super::Engine;
use super::tables::{Letter, Tables};
use redrive_core::audit::AuditEntry;
use redrive_core::dead_letter::{Act, ActRequest, Actor, Status};
use redrive_core::error::Outcome;
use redrive_core::group::LeafKey;
use redrive_core::group::life::SYSTEM;
use redrive_core::ids::QueueName;
use redrive_core::invariants::{Counts, Verification};
use redrive_core::limits;
use redrive_core::poison::Release;
use redrive_core::store::Reaped;
use redrive_core::time::Time;
use std::collections::{BTreeMap, BTreeSet};

impl<T: Tables> Engine<T> {
    /// One bounded pass: run-out leases, overdue messages, ended quarantines, owed replies, retention, old keys.
    pub(crate) fn reap(&mut self, limit: usize, now: Time) -> Outcome<Reaped> {
        let limit = limit.clamp(1, limits::REAP_MAX);
        let (leases_lost, timed_out) = self.reap_messages(limit, now)?;
        Ok(Reaped { leases_lost, timed_out, ..self.reap_letters(limit, now)? })
    }

    /// The same without messages where the index that finds them is not there and would take long to build.
    pub(crate) fn tidy(&mut self, limit: usize, now: Time) -> Outcome<Reaped> {
        let live: i64 = self.queues()?.values().map(|row| row.counts.waiting + row.counts.leased).sum();
        if self.hot.is_some() || live <= limits::TIDY_MESSAGES_MAX {
            return self.reap(limit, now);
        }
        self.reap_letters(limit.clamp(1, limits::REAP_MAX), now)
    }

    /// Ended quarantines, owed replies, retention and old keys. What retention removes is on record, one row for all of it.
    fn reap_letters(&mut self, limit: usize, now: Time) -> Outcome<Reaped> {
        let mut reaped = Reaped { released: self.end_quarantines(limit, now)?, ..Reaped::default() };
        reaped.replies_sent = self.pay_replies(limit, now)?;
        let mut removed: BTreeMap<QueueName, u64> = BTreeMap::new();
        for letter in self.tables.retention_ended(limit, now)? {
            self.remove_letter(&letter, now)?;
            match letter.file.status {
                // That it was purged has a row already.
                Status::Purged => reaped.letters_gone += 1,
                Status::Pending
                | Status::Retrying
                | Status::Review
                | Status::Quarantined
                | Status::Resolved
                | Status::Abandoned => {
                    reaped.letters_expired += 1;
                    *removed.entry(letter.file.dlq).or_default() += 1;
                }
            }
        }
        if !removed.is_empty() {
            self.record(AuditEntry::retention(now, &removed))?;
        }
        reaped.keys_forgotten = self.tables.drop_keys(now.minus(limits::KEY_WINDOW), limit)?;
        Ok(reaped)
    }

    /// Letters whose quarantine is over go where their queue says; says how many. Whoever leases sees to it too,
    /// so that it does not take a process that looks after things.
    pub(super) fn end_quarantines(&mut self, limit: usize, now: Time) -> Outcome<u64> {
        self.know_drawers()?;
        if self.cache.quarantined <= 0 {
            return Ok(0);
        }
        let mut released = 0;
        for letter in self.tables.quarantine_ended(limit, now)? {
            let policy = self.queue(&letter.slip.queue)?.policy.clone();
            let request = ActRequest::release_to_queue(letter.slip.id);
            let sent_back = match letter.file.released_to(&policy) {
                // A queue that is full, or other work with its key: then a person has to look.
                Release::Queue => self.entry(|engine| engine.act_on(&letter, &request, now))?.is_ok(),
                Release::Review => false,
            };
            if !sent_back {
                self.count_act(&letter.slip, &letter.file, &Act::Review, Status::Review, now)?;
                let file = letter.file.released_to_review(&policy, now);
                self.replace_letter(&letter, Letter { file, ..letter.clone() }, now)?;
            }
            released += 1;
        }
        Ok(released)
    }

    /// Sets damaged records aside, recounts everything and sets right what can be made again from the rest; nothing else
    /// is ever repaired.
    pub(crate) fn repair(&mut self, deep: bool, now: Time) -> Outcome<Verification> {
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
                // What was set aside is in no queue any more: it counts as removed.
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
            self.mend_trail(now)?;
            repaired += 1;
        }
        for what in &aside {
            self.record(AuditEntry::new(now, &Actor::new(SYSTEM, SYSTEM), "set aside", what, 1))?;
        }
        repaired += self.tables.repair(deep)?;
        let mut verification = census.verification;
        verification.repaired = repaired + aside.len() as u64;
        Ok(verification)
    }
}
