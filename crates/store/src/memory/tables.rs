//! Tables as ordered maps.

use super::pick::{first_of, gone, whole};
use crate::engine::tables::{
    Ask, BreakerAt, Candidates, DrawerCounts, FrozenMember, Heads, Kept, KeyRow, Letter, Live, QueueRow,
    Reads, Rows, Stored,
};
use redrive_core::audit::{AuditRow, ORIGIN};
use redrive_core::breaker::Breaker;
use redrive_core::dead_letter::{File, Status};
use redrive_core::failure::Failure;
use redrive_core::group::{Facts, GroupRow, Leaf, LeafCount, LeafKey, Marker};
use redrive_core::ids::{GroupId, LeafId, MessageId, OperationId, QueueName};
use redrive_core::invariants::Verification;
use redrive_core::lifecycle::Phase;
use redrive_core::message::{Envelope, NewMessage, Slip};
use redrive_core::metrics::{OpenCounts, OpenKey, Tally, TallyKey};
use redrive_core::operation::{Member, MemberOutcome, Operation, Outcomes};
use redrive_core::poison::Standing;
use redrive_core::revision::Content;
use redrive_core::store::KvEntry;
use redrive_core::survey::Survey;
use redrive_core::time::{Span, Time};
use std::collections::BTreeMap;
use std::ops::Bound;

/// A body: what of a message is not on its slip.
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
    pub(super) drawers: DrawerCounts,
    pub(super) leaves: BTreeMap<LeafId, Leaf>,
    pub(super) leaf_counts: BTreeMap<LeafKey, LeafCount>,
    pub(super) standings: BTreeMap<GroupId, Standing>,
    pub(super) group_rows: BTreeMap<GroupId, GroupRow>,
    pub(super) group_facts: BTreeMap<GroupId, Facts>,
    pub(super) markers: BTreeMap<u64, Marker>,
    pub(super) breakers: BTreeMap<BreakerAt, Breaker>,
    pub(super) tallies: BTreeMap<TallyKey, Tally>,
    pub(super) open_letters: BTreeMap<OpenKey, i64>,
    pub(super) operations: BTreeMap<u64, Operation>,
    pub(super) members: BTreeMap<(OperationId, u64), Member>,
    pub(super) audit: BTreeMap<u64, AuditRow>,
    pub(super) kv: BTreeMap<(String, String), KvEntry>,
}

impl Reads for Maps {
    fn heads(&self) -> Kept<Heads> {
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

    fn queues(&self) -> Kept<BTreeMap<QueueName, QueueRow>> {
        Ok(self.queues.clone())
    }

    fn scheduled(&self, queue: &QueueName, now: Time) -> Kept<u64> {
        let waits =
            |l: &&Live| l.slip.queue == *queue && l.life.phase == Phase::Waiting && l.life.ready_at > now;
        Ok(self.live.values().filter(waits).count() as u64)
    }

    fn is_known(&self, id: MessageId) -> Kept<bool> {
        Ok(self.live.contains_key(&id) || self.deaths.contains_key(&id))
    }

    fn live(&self, id: MessageId) -> Kept<Option<Live>> {
        Ok(self.live.get(&id).cloned())
    }

    fn live_after(&self, after: Option<MessageId>, limit: usize) -> Kept<Rows<MessageId, Live>> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        Ok(whole(self.live.range((from, Bound::Unbounded)).take(limit)))
    }

    fn live_from(&self, from: MessageId, limit: usize) -> Kept<Rows<MessageId, Live>> {
        Ok(whole(self.live.range(from..).take(limit)))
    }

    fn holding_keys(&self) -> Kept<Vec<Slip>> {
        Ok(self.letters.values().filter(|l| l.file.holds_key).map(|l| l.slip.clone()).collect())
    }

    fn body(&self, slip: &Slip) -> Kept<Stored> {
        let body = self.bodies.get(&slip.seq).cloned().ok_or_else(|| gone("the payload of a message"))?;
        let rest = body.rest;
        Ok(Stored::Whole(Box::new(Envelope {
            id: slip.id,
            seq: slip.seq,
            queue: slip.queue.clone(),
            origin: slip.origin.clone(),
            kind: slip.kind.clone(),
            priority: slip.priority,
            payload: rest.payload,
            headers: rest.headers,
            tags: rest.tags,
            key: slip.key.clone(),
            ordering_key: slip.ordering_key.clone(),
            reply_to: slip.reply_to.clone(),
            trace: rest.trace,
            context: rest.context,
            max_attempts: slip.terms.max_attempts,
            delay: rest.delay,
            ttl: body.ttl,
            deadline: slip.terms.deadline,
            enqueued_by: rest.enqueued_by,
            enqueued_at: body.enqueued_at,
        })))
    }

    fn trace(&self, slip: &Slip) -> Kept<Option<String>> {
        Ok(self.bodies.get(&slip.seq).and_then(|body| body.rest.trace.clone()))
    }

    fn failures(&self, slip: &Slip) -> Kept<Vec<Failure>> {
        Ok(self.failures.range((slip.seq, 0)..=(slip.seq, u32::MAX)).map(|(_, f)| f.clone()).collect())
    }

    fn key(&self, queue: &QueueName, key: &str) -> Kept<Option<KeyRow>> {
        Ok(self.keys.get(&(queue.clone(), key.to_owned())).cloned())
    }

    fn revision(&self, slip: &Slip, n: u32) -> Kept<Option<Content>> {
        Ok(self.revisions.get(&(slip.seq, n)).cloned())
    }

    fn revision_numbers(&self, slip: &Slip) -> Kept<Vec<u32>> {
        Ok(self.revisions.range((slip.seq, 0)..=(slip.seq, u32::MAX)).map(|((_, n), _)| *n).collect())
    }

    fn letter(&self, id: MessageId) -> Kept<Option<Letter>> {
        Ok(self.deaths.get(&id).and_then(|death| self.letters.get(death)).cloned())
    }

    fn candidates(&self, ask: &Ask<'_>) -> Kept<Candidates> {
        let start = if ask.latest_first { ask.up_to.saturating_add(1) } else { ask.after };
        let mut found = Candidates { reached: start, ..Candidates::default() };
        if ask.after >= ask.up_to {
            return Ok(Candidates { ended: true, ..found });
        }
        let range = self.letters.range((Bound::Excluded(ask.after), Bound::Included(ask.up_to)));
        let mut letters: Box<dyn Iterator<Item = (&u64, &Letter)>> =
            if ask.latest_first { Box::new(range.rev()) } else { Box::new(range) };
        while found.looked_at < ask.rows && found.deaths.len() < ask.hits {
            let Some((death, letter)) = letters.next() else {
                return Ok(Candidates { ended: true, ..found });
            };
            found.looked_at += 1;
            found.reached = *death;
            if ask.statuses.is_none_or(|statuses| statuses.contains(&letter.file.status)) {
                found.deaths.push(*death);
            }
        }
        Ok(found)
    }

    fn letters_at(&self, deaths: &[u64]) -> Kept<Rows<u64, Letter>> {
        Ok(whole(deaths.iter().filter_map(|death| self.letters.get_key_value(death))))
    }

    fn survey(&self, _: &Ask<'_>) -> Kept<Option<Survey>> {
        Ok(None)
    }

    fn letters_after(&self, death: u64, bound: u64, limit: usize) -> Kept<Rows<u64, Letter>> {
        let range = (Bound::Excluded(death), Bound::Included(bound.max(death)));
        if bound <= death {
            return Ok(Vec::new());
        }
        Ok(whole(self.letters.range(range).take(limit)))
    }

    fn leasable_letters(&self, dlq: &QueueName, limit: usize, now: Time) -> Kept<Vec<Letter>> {
        let wanted = |l: &&Letter| l.file.dlq == *dlq && l.file.leasable(now);
        Ok(self.letters.values().filter(wanted).take(limit).cloned().collect())
    }

    fn quarantine_ended(&self, limit: usize, now: Time) -> Kept<Vec<Letter>> {
        let over = |file: &File| file.quarantined_until.is_some_and(|until| until <= now);
        let ended = |l: &Letter| l.file.status == Status::Quarantined && over(&l.file);
        Ok(first_of(self.letters.values(), ended, |l| (l.file.quarantined_until, l.slip.id), limit))
    }

    fn owing_replies(&self, queue: &QueueName, redrives: u32, limit: usize) -> Kept<Vec<Letter>> {
        let rests = |status| !matches!(status, Status::Quarantined | Status::Retrying);
        let owing = |l: &Letter| l.file.owes_reply && l.slip.queue == *queue && rests(l.file.status);
        let wanted = |l: &Letter| owing(l) && l.file.redrives >= redrives;
        Ok(first_of(self.letters.values(), wanted, |l| (l.file.redrives, l.death), limit))
    }

    fn retention_ended(&self, limit: usize, now: Time) -> Kept<Vec<Letter>> {
        let ended = |l: &Letter| l.file.is_past_retention(now);
        Ok(first_of(self.letters.values(), ended, |l| (l.file.expires_at, l.slip.id), limit))
    }

    fn drawers(&self) -> Kept<DrawerCounts> {
        Ok(self.drawers.clone())
    }

    fn open_letters(&self) -> Kept<OpenCounts> {
        Ok(OpenCounts::new(self.open_letters.clone()))
    }

    fn leaf(&self, id: LeafId) -> Kept<Option<Leaf>> {
        Ok(self.leaves.get(&id).cloned())
    }

    fn leaves(&self) -> Kept<Vec<Leaf>> {
        let mut all: Vec<Leaf> = self.leaves.values().cloned().collect();
        all.sort_by_key(|leaf| (leaf.n, leaf.id));
        Ok(all)
    }

    fn breakers(&self) -> Kept<BTreeMap<BreakerAt, Breaker>> {
        Ok(self.breakers.clone())
    }

    fn standing(&self, group: GroupId) -> Kept<Standing> {
        Ok(self.standings.get(&group).cloned().unwrap_or_default())
    }

    fn counts_of(&self, leaf: LeafId) -> Kept<Vec<(LeafKey, LeafCount)>> {
        let of_leaf = self.leaf_counts.iter().filter(|(key, _)| key.leaf == leaf);
        Ok(of_leaf.map(|(key, count)| (key.clone(), *count)).collect())
    }

    fn leaves_of(&self, group: GroupId) -> Kept<Vec<LeafId>> {
        Ok(self.leaves.values().filter(|leaf| leaf.group == group).map(|leaf| leaf.id).collect())
    }

    fn deaths_of(&self, leaf: LeafId, limit: usize) -> Kept<Vec<u64>> {
        let of_leaf = self.letters.iter().rev().filter(|(_, letter)| letter.file.leaf == leaf);
        Ok(of_leaf.take(limit).map(|(death, _)| *death).collect())
    }

    fn group_row(&self, id: GroupId) -> Kept<Option<GroupRow>> {
        Ok(self.group_rows.get(&id).cloned())
    }

    fn group_rows(&self) -> Kept<Vec<(GroupId, GroupRow)>> {
        Ok(self.group_rows.iter().map(|(id, row)| (*id, row.clone())).collect())
    }

    fn group_ids(&self) -> Kept<Vec<GroupId>> {
        Ok(self.group_rows.keys().copied().collect())
    }

    fn group_facts(&self, id: GroupId) -> Kept<Facts> {
        Ok(self.group_facts.get(&id).cloned().unwrap_or_default())
    }

    fn markers_before(&self, n: u64, limit: usize) -> Kept<Vec<Marker>> {
        Ok(self.markers.range(..n).rev().take(limit).map(|(_, marker)| marker.clone()).collect())
    }

    fn leaf_count(&self, key: &LeafKey) -> Kept<LeafCount> {
        Ok(self.leaf_counts.get(key).copied().unwrap_or_default())
    }

    fn leaf_counts(&self) -> Kept<Vec<(LeafKey, LeafCount)>> {
        Ok(self.leaf_counts.iter().map(|(key, count)| (key.clone(), *count)).collect())
    }

    fn tallies(&self) -> Kept<Vec<(TallyKey, Tally)>> {
        Ok(self.tallies.iter().map(|(key, tally)| (key.clone(), *tally)).collect())
    }

    fn oldest_open(&self) -> Kept<Option<Time>> {
        let open = self.letters.values().filter(|letter| !letter.file.status.is_closed());
        Ok(open.map(|letter| letter.file.dead_at).min())
    }

    fn operation(&self, id: OperationId) -> Kept<Option<Operation>> {
        Ok(self.operations.values().find(|o| o.id == id).cloned())
    }

    fn operations_before(&self, position: u64, limit: usize) -> Kept<Vec<(u64, Operation)>> {
        Ok(self.operations.range(..position).rev().take(limit).map(|(n, o)| (*n, o.clone())).collect())
    }

    fn members_after(&self, id: OperationId, position: u64, limit: usize) -> Kept<Vec<(u64, Member)>> {
        let range = (Bound::Excluded((id, position)), Bound::Included((id, u64::MAX)));
        Ok(self.members.range(range).take(limit).map(|((_, n), m)| (*n, m.clone())).collect())
    }

    fn member_after(&self, id: OperationId, position: u64, count: usize) -> Kept<Option<u64>> {
        let range = (Bound::Excluded((id, position)), Bound::Included((id, u64::MAX)));
        Ok(self.members.range(range).nth(count.saturating_sub(1)).map(|((_, position), _)| *position))
    }

    fn members_with(
        &self,
        id: OperationId,
        outcome: MemberOutcome,
        (after, up_to): (u64, u64),
        limit: usize,
    ) -> Kept<Vec<FrozenMember>> {
        if after >= up_to {
            return Ok(Vec::new());
        }
        let range = (Bound::Excluded((id, after)), Bound::Included((id, up_to)));
        let wanted = self.members.range(range).filter(|(_, m)| m.outcome == outcome).take(limit);
        let with_letter = wanted.map(|((_, position), member)| FrozenMember {
            position: *position,
            letter: self.letters.get(position).filter(|l| l.slip.id == member.id).cloned(),
            member: member.clone(),
        });
        Ok(with_letter.collect())
    }

    fn member_counts(&self, id: OperationId) -> Kept<Outcomes> {
        let mut counts = Outcomes::default();
        for member in self.members.range((id, 0)..=(id, u64::MAX)).map(|(_, member)| member) {
            *counts.of(member.outcome) += 1;
        }
        Ok(counts)
    }

    fn audit_before(&self, n: u64, limit: usize) -> Kept<Vec<AuditRow>> {
        Ok(self.audit.range(..n).rev().take(limit).map(|(_, row)| row.clone()).collect())
    }

    fn audit_after(&self, n: u64, limit: usize) -> Kept<Vec<AuditRow>> {
        let range = (Bound::Excluded(n), Bound::Unbounded);
        Ok(self.audit.range(range).take(limit).map(|(_, row)| row.clone()).collect())
    }

    fn kv(&self, namespace: &str, key: &str) -> Kept<Option<KvEntry>> {
        Ok(self.kv.get(&(namespace.to_owned(), key.to_owned())).cloned())
    }

    fn check(&self, _: bool, verification: &mut Verification) -> Kept<()> {
        let slips = || self.live.values().map(|l| &l.slip).chain(self.letters.values().map(|l| &l.slip));
        let known: std::collections::BTreeSet<u64> = slips().map(|s| s.seq).collect();
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
