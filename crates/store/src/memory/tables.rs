//! The tables of the memory store, as ordered maps.

use super::pick::{first_of, missing, undamaged};
use crate::engine::tables::{
    BreakerId, Candidates, DlqCounts, FrozenMember, Heads, KeyRow, Letter, LetterScan, Live, QueueRow, Reads,
    Rows, StoredBody, TableResult,
};
use redrive_core::audit::{AuditRow, ORIGIN};
use redrive_core::breaker::Breaker;
use redrive_core::dead_letter::{LetterRecord, Status};
use redrive_core::failure::Failure;
use redrive_core::group::{GroupActivity, GroupRow, Leaf, LeafCount, LeafKey, Marker};
use redrive_core::ids::{GroupId, LeafId, MessageId, OperationId, QueueName};
use redrive_core::invariants::Verification;
use redrive_core::lifecycle::Phase;
use redrive_core::message::{Envelope, MessageMeta, NewMessage};
use redrive_core::metrics::{CounterKey, CounterTotals, OpenCounts, OpenKey};
use redrive_core::operation::{Member, MemberOutcome, Operation, Outcomes};
use redrive_core::poison::GroupHistory;
use redrive_core::revision::Content;
use redrive_core::store::{KvEntry, KvItem};
use redrive_core::survey::Survey;
use redrive_core::time::{Span, Time};
use std::collections::BTreeMap;
use std::ops::Bound;

/// A body: the part of a message that is not in its metadata.
#[derive(Clone, Debug)]
pub(crate) struct Body {
    pub(super) rest: NewMessage,
    pub(super) ttl: Option<Span>,
    pub(super) enqueued_at: Time,
}

/// All tables of the memory store.
#[derive(Debug, Default)]
pub(crate) struct Maps {
    pub(super) heads: Option<Heads>,
    pub(super) queues: BTreeMap<QueueName, QueueRow>,
    pub(super) live: BTreeMap<MessageId, Live>,
    pub(super) bodies: BTreeMap<u64, Body>,
    pub(super) revisions: BTreeMap<(u64, u32), Content>,
    pub(super) failures: BTreeMap<(u64, u32), Failure>,
    pub(super) keys: BTreeMap<(QueueName, String), KeyRow>,
    pub(super) letters: BTreeMap<u64, Letter>,
    pub(super) deaths: BTreeMap<MessageId, u64>,
    pub(super) dlqs: DlqCounts,
    pub(super) leaves: BTreeMap<LeafId, Leaf>,
    pub(super) leaf_counts: BTreeMap<LeafKey, LeafCount>,
    pub(super) group_histories: BTreeMap<GroupId, GroupHistory>,
    pub(super) group_rows: BTreeMap<GroupId, GroupRow>,
    pub(super) group_facts: BTreeMap<GroupId, GroupActivity>,
    pub(super) markers: BTreeMap<u64, Marker>,
    pub(super) breakers: BTreeMap<BreakerId, Breaker>,
    pub(super) event_counters: BTreeMap<CounterKey, CounterTotals>,
    pub(super) open_letters: BTreeMap<OpenKey, i64>,
    pub(super) operations: BTreeMap<u64, Operation>,
    pub(super) members: BTreeMap<(OperationId, u64), Member>,
    pub(super) audit: BTreeMap<u64, AuditRow>,
    pub(super) kv: BTreeMap<(String, String), KvEntry>,
}

impl Reads for Maps {
    fn heads(&self) -> TableResult<Heads> {
        let origin = || Heads {
            seq: 0,
            death: 0,
            audit_n: 0,
            audit_seal: ORIGIN.into(),
            messages_peak: 0,
            letters_peak: 0,
        };
        Ok(self.heads.clone().unwrap_or_else(origin))
    }

    fn queues(&self) -> TableResult<BTreeMap<QueueName, QueueRow>> {
        Ok(self.queues.clone())
    }

    fn scheduled(&self, queue: &QueueName, now: Time) -> TableResult<u64> {
        let waits = |l: &&Live| {
            l.meta.queue == *queue && l.lifecycle.phase == Phase::Waiting && l.lifecycle.ready_at > now
        };
        Ok(self.live.values().filter(waits).count() as u64)
    }

    fn id_exists(&self, id: MessageId) -> TableResult<bool> {
        Ok(self.live.contains_key(&id) || self.deaths.contains_key(&id))
    }

    fn live(&self, id: MessageId) -> TableResult<Option<Live>> {
        Ok(self.live.get(&id).cloned())
    }

    fn live_after(&self, after: Option<MessageId>, limit: usize) -> TableResult<Rows<MessageId, Live>> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        Ok(undamaged(self.live.range((from, Bound::Unbounded)).take(limit)))
    }

    fn live_from(&self, from: MessageId, limit: usize) -> TableResult<Rows<MessageId, Live>> {
        Ok(undamaged(self.live.range(from..).take(limit)))
    }

    fn letters_holding_keys(&self) -> TableResult<Vec<MessageMeta>> {
        Ok(self.letters.values().filter(|l| l.record.holds_key).map(|l| l.meta.clone()).collect())
    }

    fn body(&self, meta: &MessageMeta) -> TableResult<StoredBody> {
        let body = self.bodies.get(&meta.seq).cloned().ok_or_else(|| missing("the payload of a message"))?;
        let rest = body.rest;
        Ok(StoredBody::Whole(Box::new(Envelope {
            id: meta.id,
            seq: meta.seq,
            queue: meta.queue.clone(),
            origin: meta.origin.clone(),
            kind: meta.kind.clone(),
            priority: meta.priority,
            payload: rest.payload,
            headers: rest.headers,
            tags: rest.tags,
            key: meta.key.clone(),
            ordering_key: meta.ordering_key.clone(),
            reply_to: meta.reply_to.clone(),
            trace: rest.trace,
            context: rest.context,
            max_attempts: meta.limits.max_attempts,
            delay: rest.delay,
            ttl: body.ttl,
            deadline: meta.limits.deadline,
            enqueued_by: rest.enqueued_by,
            enqueued_at: body.enqueued_at,
        })))
    }

    fn trace(&self, meta: &MessageMeta) -> TableResult<Option<String>> {
        Ok(self.bodies.get(&meta.seq).and_then(|body| body.rest.trace.clone()))
    }

    fn failures(&self, meta: &MessageMeta) -> TableResult<Vec<Failure>> {
        Ok(self.failures.range((meta.seq, 0)..=(meta.seq, u32::MAX)).map(|(_, f)| f.clone()).collect())
    }

    fn key(&self, queue: &QueueName, key: &str) -> TableResult<Option<KeyRow>> {
        Ok(self.keys.get(&(queue.clone(), key.to_owned())).cloned())
    }

    fn revision(&self, meta: &MessageMeta, n: u32) -> TableResult<Option<Content>> {
        Ok(self.revisions.get(&(meta.seq, n)).cloned())
    }

    fn revision_numbers(&self, meta: &MessageMeta) -> TableResult<Vec<u32>> {
        Ok(self.revisions.range((meta.seq, 0)..=(meta.seq, u32::MAX)).map(|((_, n), _)| *n).collect())
    }

    fn letter(&self, id: MessageId) -> TableResult<Option<Letter>> {
        Ok(self.deaths.get(&id).and_then(|death| self.letters.get(death)).cloned())
    }

    fn candidates(&self, scan: &LetterScan<'_>) -> TableResult<Candidates> {
        let start = if scan.latest_first { scan.up_to.saturating_add(1) } else { scan.after };
        let mut found = Candidates { reached: start, ..Candidates::default() };
        if scan.after >= scan.up_to {
            return Ok(Candidates { ended: true, ..found });
        }
        let range = self.letters.range((Bound::Excluded(scan.after), Bound::Included(scan.up_to)));
        let mut letters: Box<dyn Iterator<Item = (&u64, &Letter)>> =
            if scan.latest_first { Box::new(range.rev()) } else { Box::new(range) };
        while found.looked_at < scan.rows_max && found.deaths.len() < scan.candidates_max {
            let Some((death, letter)) = letters.next() else {
                return Ok(Candidates { ended: true, ..found });
            };
            found.looked_at += 1;
            found.reached = *death;
            if scan.statuses.is_none_or(|statuses| statuses.contains(&letter.record.status)) {
                found.deaths.push(*death);
            }
        }
        Ok(found)
    }

    fn letters_at(&self, deaths: &[u64]) -> TableResult<Rows<u64, Letter>> {
        Ok(undamaged(deaths.iter().filter_map(|death| self.letters.get_key_value(death))))
    }

    fn survey(&self, _: &LetterScan<'_>) -> TableResult<Option<Survey>> {
        Ok(None)
    }

    fn letters_after(&self, death: u64, bound: u64, limit: usize) -> TableResult<Rows<u64, Letter>> {
        let range = (Bound::Excluded(death), Bound::Included(bound.max(death)));
        if bound <= death {
            return Ok(Vec::new());
        }
        Ok(undamaged(self.letters.range(range).take(limit)))
    }

    fn leasable_letters(&self, dlq: &QueueName, limit: usize, now: Time) -> TableResult<Vec<Letter>> {
        let wanted = |l: &&Letter| l.record.dlq == *dlq && l.record.leasable(now);
        Ok(self.letters.values().filter(wanted).take(limit).cloned().collect())
    }

    fn quarantine_ended(&self, limit: usize, now: Time) -> TableResult<Vec<Letter>> {
        let over = |record: &LetterRecord| record.quarantined_until.is_some_and(|until| until <= now);
        let ended = |l: &Letter| l.record.status == Status::Quarantined && over(&l.record);
        Ok(first_of(self.letters.values(), ended, |l| (l.record.quarantined_until, l.meta.id), limit))
    }

    fn letters_owing_replies(
        &self,
        queue: &QueueName,
        redrives: u32,
        limit: usize,
    ) -> TableResult<Vec<Letter>> {
        let rests = |status| !matches!(status, Status::Quarantined | Status::Retrying);
        let owing = |l: &Letter| l.record.owes_reply && l.meta.queue == *queue && rests(l.record.status);
        let wanted = |l: &Letter| owing(l) && l.record.redrives >= redrives;
        Ok(first_of(self.letters.values(), wanted, |l| (l.record.redrives, l.death), limit))
    }

    fn retention_ended(&self, limit: usize, now: Time) -> TableResult<Vec<Letter>> {
        let ended = |l: &Letter| l.record.is_past_retention(now);
        Ok(first_of(self.letters.values(), ended, |l| (l.record.expires_at, l.meta.id), limit))
    }

    fn dlqs(&self) -> TableResult<DlqCounts> {
        Ok(self.dlqs.clone())
    }

    fn open_letters(&self) -> TableResult<OpenCounts> {
        Ok(OpenCounts::new(self.open_letters.clone()))
    }

    fn leaf(&self, id: LeafId) -> TableResult<Option<Leaf>> {
        Ok(self.leaves.get(&id).cloned())
    }

    fn leaves(&self) -> TableResult<Vec<Leaf>> {
        let mut all: Vec<Leaf> = self.leaves.values().cloned().collect();
        all.sort_by_key(|leaf| (leaf.n, leaf.id));
        Ok(all)
    }

    fn breakers(&self) -> TableResult<BTreeMap<BreakerId, Breaker>> {
        Ok(self.breakers.clone())
    }

    fn group_history(&self, group: GroupId) -> TableResult<GroupHistory> {
        Ok(self.group_histories.get(&group).cloned().unwrap_or_default())
    }

    fn leaf_counts_of(&self, leaf: LeafId) -> TableResult<Vec<(LeafKey, LeafCount)>> {
        let of_leaf = self.leaf_counts.iter().filter(|(key, _)| key.leaf == leaf);
        Ok(of_leaf.map(|(key, count)| (key.clone(), *count)).collect())
    }

    fn leaves_of(&self, group: GroupId) -> TableResult<Vec<LeafId>> {
        Ok(self.leaves.values().filter(|leaf| leaf.group == group).map(|leaf| leaf.id).collect())
    }

    fn deaths_of(&self, leaf: LeafId, limit: usize) -> TableResult<Vec<u64>> {
        let of_leaf = self.letters.iter().rev().filter(|(_, letter)| letter.record.leaf == leaf);
        Ok(of_leaf.take(limit).map(|(death, _)| *death).collect())
    }

    fn group_row(&self, id: GroupId) -> TableResult<Option<GroupRow>> {
        Ok(self.group_rows.get(&id).cloned())
    }

    fn group_rows(&self) -> TableResult<Vec<(GroupId, GroupRow)>> {
        Ok(self.group_rows.iter().map(|(id, row)| (*id, row.clone())).collect())
    }

    fn group_ids(&self) -> TableResult<Vec<GroupId>> {
        Ok(self.group_rows.keys().copied().collect())
    }

    fn group_facts(&self, id: GroupId) -> TableResult<GroupActivity> {
        Ok(self.group_facts.get(&id).cloned().unwrap_or_default())
    }

    fn markers_before(&self, n: u64, limit: usize) -> TableResult<Vec<Marker>> {
        Ok(self.markers.range(..n).rev().take(limit).map(|(_, marker)| marker.clone()).collect())
    }

    fn leaf_count(&self, key: &LeafKey) -> TableResult<LeafCount> {
        Ok(self.leaf_counts.get(key).copied().unwrap_or_default())
    }

    fn leaf_counts(&self) -> TableResult<Vec<(LeafKey, LeafCount)>> {
        Ok(self.leaf_counts.iter().map(|(key, count)| (key.clone(), *count)).collect())
    }

    fn event_counters(&self) -> TableResult<Vec<(CounterKey, CounterTotals)>> {
        Ok(self.event_counters.iter().map(|(key, totals)| (key.clone(), *totals)).collect())
    }

    fn oldest_open(&self) -> TableResult<Option<Time>> {
        let open = self.letters.values().filter(|letter| !letter.record.status.is_closed());
        Ok(open.map(|letter| letter.record.dead_at).min())
    }

    fn operation(&self, id: OperationId) -> TableResult<Option<Operation>> {
        Ok(self.operations.values().find(|o| o.id == id).cloned())
    }

    fn operations_before(&self, position: u64, limit: usize) -> TableResult<Vec<(u64, Operation)>> {
        Ok(self.operations.range(..position).rev().take(limit).map(|(n, o)| (*n, o.clone())).collect())
    }

    fn members_after(&self, id: OperationId, position: u64, limit: usize) -> TableResult<Vec<(u64, Member)>> {
        let range = (Bound::Excluded((id, position)), Bound::Included((id, u64::MAX)));
        Ok(self.members.range(range).take(limit).map(|((_, n), m)| (*n, m.clone())).collect())
    }

    fn member_after(&self, id: OperationId, position: u64, count: usize) -> TableResult<Option<u64>> {
        let range = (Bound::Excluded((id, position)), Bound::Included((id, u64::MAX)));
        Ok(self.members.range(range).nth(count.saturating_sub(1)).map(|((_, position), _)| *position))
    }

    fn members_with(
        &self,
        id: OperationId,
        outcome: MemberOutcome,
        (after, up_to): (u64, u64),
        limit: usize,
    ) -> TableResult<Vec<FrozenMember>> {
        if after >= up_to {
            return Ok(Vec::new());
        }
        let range = (Bound::Excluded((id, after)), Bound::Included((id, up_to)));
        let wanted = self.members.range(range).filter(|(_, m)| m.outcome == outcome).take(limit);
        let with_letter = wanted.map(|((_, position), member)| FrozenMember {
            position: *position,
            letter: self.letters.get(position).filter(|l| l.meta.id == member.id).cloned(),
            member: member.clone(),
        });
        Ok(with_letter.collect())
    }

    fn member_counts(&self, id: OperationId) -> TableResult<Outcomes> {
        let mut counts = Outcomes::default();
        for member in self.members.range((id, 0)..=(id, u64::MAX)).map(|(_, member)| member) {
            *counts.count_mut(member.outcome) += 1;
        }
        Ok(counts)
    }

    fn audit_before(&self, n: u64, limit: usize) -> TableResult<Vec<AuditRow>> {
        Ok(self.audit.range(..n).rev().take(limit).map(|(_, row)| row.clone()).collect())
    }

    fn audit_after(&self, n: u64, limit: usize) -> TableResult<Vec<AuditRow>> {
        let range = (Bound::Excluded(n), Bound::Unbounded);
        Ok(self.audit.range(range).take(limit).map(|(_, row)| row.clone()).collect())
    }

    fn kv(&self, namespace: &str, key: &str) -> TableResult<Option<KvEntry>> {
        Ok(self.kv.get(&(namespace.to_owned(), key.to_owned())).cloned())
    }

    fn kv_range(&self, namespace: &str, from: Bound<&str>, limit: usize) -> TableResult<Vec<KvItem>> {
        let start = match from {
            Bound::Included(key) => Bound::Included((namespace.to_owned(), key.to_owned())),
            Bound::Excluded(key) => Bound::Excluded((namespace.to_owned(), key.to_owned())),
            Bound::Unbounded => Bound::Included((namespace.to_owned(), String::new())),
        };
        let theirs =
            self.kv.range((start, Bound::Unbounded)).take_while(|((space, _), _)| space == namespace);
        let item = |((_, key), entry): (&(String, String), &KvEntry)| KvItem {
            key: key.clone(),
            value: entry.value.clone(),
            version: entry.version,
        };
        Ok(theirs.take(limit).map(item).collect())
    }

    fn check(&self, _: bool, verification: &mut Verification) -> TableResult<()> {
        let metas = || self.live.values().map(|l| &l.meta).chain(self.letters.values().map(|l| &l.meta));
        let known: std::collections::BTreeSet<u64> = metas().map(|s| s.seq).collect();
        for seq in self.bodies.keys().filter(|seq| !known.contains(seq)) {
            verification.find("I4", format!("the payload of message number {seq} belongs to nobody"), false);
        }
        for seq in known.iter().filter(|seq| !self.bodies.contains_key(seq)) {
            verification.find("I4", format!("message number {seq} has no payload"), false);
        }
        for (seq, _) in self.failures.keys().filter(|(seq, _)| !known.contains(seq)) {
            verification.find("I4", format!("a failure of message number {seq} belongs to nobody"), false);
        }
        for (seq, _) in self.revisions.keys().filter(|(seq, _)| !known.contains(seq)) {
            verification.find("I4", format!("a revision of message number {seq} belongs to nobody"), false);
        }
        verification.payloads = self.bodies.len() as u64;
        verification.failures = self.failures.len() as u64;
        Ok(())
    }
}
