//! Changing the tables of the memory store.

use super::pick::missing;
use super::tables::{Body, Maps};
use crate::engine::tables::{
    BreakerId, Frozen, Heads, KeyRow, Letter, LetterScan, Live, MemberUpdate, QueueRow, TableResult, Tables,
};
use redrive_core::audit::AuditRow;
use redrive_core::breaker::Breaker;
use redrive_core::dead_letter::Status;
use redrive_core::failure::Failure;
use redrive_core::group::{GroupActivity, GroupRow, Leaf, LeafCount, LeafKey, Marker};
use redrive_core::ids::{GroupId, OperationId, QueueName};
use redrive_core::lifecycle::Lifecycle;
use redrive_core::limits;
use redrive_core::message::{MessageMeta, NewMessage, Payload};
use redrive_core::metrics::{CounterKey, CounterTotals, OpenKey};
use redrive_core::operation::{Member, Operation};
use redrive_core::poison::GroupHistory;
use redrive_core::revision::Content;
use redrive_core::store::KvEntry;
use redrive_core::time::{Span, Time};

impl Tables for Maps {
    type Body = NewMessage;

    fn pack(new: &mut NewMessage) -> NewMessage {
        let body = new.clone();
        new.payload = Payload::default();
        body
    }

    type Payload = Payload;

    fn pack_payload(payload: Payload) -> Payload {
        payload
    }

    fn with_payload(body: NewMessage, payload: Payload) -> NewMessage {
        NewMessage { payload, ..body }
    }

    fn unpack(_: &NewMessage, body: &NewMessage) -> TableResult<NewMessage> {
        Ok(body.clone())
    }

    fn put_heads(&mut self, heads: &Heads) -> TableResult<()> {
        self.heads = Some(heads.clone());
        Ok(())
    }

    fn put_queue(&mut self, name: &QueueName, row: &QueueRow) -> TableResult<()> {
        self.queues.insert(name.clone(), row.clone());
        Ok(())
    }

    fn put_body(
        &mut self,
        seq: u64,
        body: NewMessage,
        ttl: Option<Span>,
        enqueued_at: Time,
    ) -> TableResult<()> {
        self.bodies.insert(seq, Body { rest: body, ttl, enqueued_at });
        Ok(())
    }

    fn drop_body(&mut self, meta: &MessageMeta) -> TableResult<()> {
        self.bodies.remove(&meta.seq);
        Ok(())
    }

    fn replace_body(&mut self, meta: &MessageMeta, body: NewMessage) -> TableResult<()> {
        let slot = self.bodies.get_mut(&meta.seq).ok_or_else(|| missing("the payload of a message"))?;
        slot.rest = body;
        Ok(())
    }

    fn add_revision(&mut self, meta: &MessageMeta, n: u32, content: &Content) -> TableResult<()> {
        self.revisions.insert((meta.seq, n), content.clone());
        Ok(())
    }

    fn drop_revisions(&mut self, meta: &MessageMeta) -> TableResult<()> {
        self.revisions.retain(|(seq, _), _| *seq != meta.seq);
        Ok(())
    }

    fn add_live(&mut self, live: &Live) -> TableResult<()> {
        self.live.insert(live.meta.id, live.clone());
        Ok(())
    }

    fn put_lifecycle(&mut self, meta: &MessageMeta, lifecycle: &Lifecycle) -> TableResult<()> {
        let live = self.live.get_mut(&meta.id).ok_or_else(|| missing("a live message"))?;
        live.lifecycle = lifecycle.clone();
        Ok(())
    }

    fn drop_live(&mut self, meta: &MessageMeta) -> TableResult<()> {
        self.live.remove(&meta.id).map(|_| ()).ok_or_else(|| missing("a live message"))
    }

    fn add_failure(&mut self, meta: &MessageMeta, ordinal: u32, failure: &Failure) -> TableResult<()> {
        self.failures.insert((meta.seq, ordinal), failure.clone());
        Ok(())
    }

    fn drop_failure(&mut self, meta: &MessageMeta, ordinal: u32) -> TableResult<()> {
        self.failures.remove(&(meta.seq, ordinal));
        Ok(())
    }

    fn drop_failures(&mut self, meta: &MessageMeta) -> TableResult<()> {
        self.failures.retain(|(seq, _), _| *seq != meta.seq);
        Ok(())
    }

    fn put_key(&mut self, queue: &QueueName, key: &str, row: &KeyRow) -> TableResult<()> {
        self.keys.insert((queue.clone(), key.to_owned()), row.clone());
        Ok(())
    }

    fn drop_keys(&mut self, before: Time, limit: usize) -> TableResult<u64> {
        let old = |row: &KeyRow| row.created_at <= before;
        let victims: Vec<_> =
            self.keys.iter().filter(|(_, row)| old(row)).take(limit).map(|(key, _)| key.clone()).collect();
        for victim in &victims {
            self.keys.remove(victim);
        }
        Ok(victims.len() as u64)
    }

    fn add_letter(&mut self, letter: &Letter) -> TableResult<()> {
        self.deaths.insert(letter.meta.id, letter.death);
        self.letters.insert(letter.death, letter.clone());
        Ok(())
    }

    fn put_letter(&mut self, _: &Letter, letter: &Letter) -> TableResult<()> {
        self.add_letter(letter)
    }

    fn drop_letter(&mut self, letter: &Letter) -> TableResult<()> {
        self.deaths.remove(&letter.meta.id);
        self.letters.remove(&letter.death).map(|_| ()).ok_or_else(|| missing("a dead letter"))
    }

    fn put_dlq_count(&mut self, dlq: &QueueName, status: Status, count: i64) -> TableResult<()> {
        self.dlqs.insert((dlq.clone(), status), count);
        Ok(())
    }

    fn put_leaf(&mut self, leaf: &Leaf) -> TableResult<()> {
        self.leaves.insert(leaf.id, leaf.clone());
        Ok(())
    }

    fn put_group_history(&mut self, group: GroupId, history: Option<&GroupHistory>) -> TableResult<()> {
        match history {
            Some(history) => self.group_histories.insert(group, history.clone()),
            None => self.group_histories.remove(&group),
        };
        Ok(())
    }

    fn put_group_row(&mut self, id: GroupId, row: Option<&GroupRow>) -> TableResult<()> {
        match row {
            Some(row) => self.group_rows.insert(id, row.clone()),
            None => self.group_rows.remove(&id),
        };
        Ok(())
    }

    fn put_group_facts(&mut self, id: GroupId, facts: Option<&GroupActivity>) -> TableResult<()> {
        match facts {
            Some(facts) => self.group_facts.insert(id, facts.clone()),
            None => self.group_facts.remove(&id),
        };
        Ok(())
    }

    fn add_marker(&mut self, marker: &Marker) -> TableResult<()> {
        self.markers.insert(marker.n, marker.clone());
        while self.markers.len() > limits::MARKERS_MAX {
            self.markers.pop_first();
        }
        Ok(())
    }

    fn put_breaker(&mut self, at: &BreakerId, breaker: Option<&Breaker>) -> TableResult<()> {
        match breaker {
            Some(breaker) => self.breakers.insert(at.clone(), breaker.clone()),
            None => self.breakers.remove(at),
        };
        Ok(())
    }

    fn put_leaf_count(&mut self, key: &LeafKey, count: &LeafCount) -> TableResult<()> {
        self.leaf_counts.insert(key.clone(), *count);
        Ok(())
    }

    fn put_open_letters(&mut self, key: &OpenKey, open: i64) -> TableResult<()> {
        self.open_letters.insert(key.clone(), open);
        Ok(())
    }

    fn put_event_counter(&mut self, key: &CounterKey, totals: &CounterTotals) -> TableResult<()> {
        self.event_counters.insert(key.clone(), *totals);
        Ok(())
    }

    fn add_operation(&mut self, operation: &Operation) -> TableResult<()> {
        let position = self.operations.keys().next_back().map_or(1, |last| last + 1);
        self.operations.insert(position, operation.clone());
        Ok(())
    }

    fn put_operation(&mut self, operation: &Operation) -> TableResult<()> {
        let slot = self.operations.values_mut().find(|o| o.id == operation.id);
        *slot.ok_or_else(|| missing("an operation"))? = operation.clone();
        Ok(())
    }

    fn add_member(&mut self, id: OperationId, position: u64, member: &Member) -> TableResult<()> {
        self.members.insert((id, position), member.clone());
        Ok(())
    }

    fn freeze(&mut self, _: OperationId, _: &LetterScan<'_>) -> TableResult<Option<Frozen>> {
        Ok(None)
    }

    fn put_member(&mut self, id: OperationId, position: u64, update: &MemberUpdate) -> TableResult<()> {
        let member =
            self.members.get_mut(&(id, position)).ok_or_else(|| missing("a member of an operation"))?;
        member.outcome = update.outcome;
        member.version = update.version.unwrap_or(member.version);
        member.why.clone_from(&update.why);
        Ok(())
    }

    fn drop_audit(&mut self, up_to: u64) -> TableResult<()> {
        self.audit.retain(|n, _| *n > up_to);
        Ok(())
    }

    fn add_audit(&mut self, row: &AuditRow) -> TableResult<()> {
        self.audit.insert(row.n, row.clone());
        Ok(())
    }

    fn put_kv(&mut self, namespace: &str, key: &str, entry: Option<&KvEntry>) -> TableResult<()> {
        let full_key = (namespace.to_owned(), key.to_owned());
        match entry {
            Some(entry) => self.kv.insert(full_key, entry.clone()),
            None => self.kv.remove(&full_key),
        };
        Ok(())
    }
}
