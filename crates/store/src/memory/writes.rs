//! Changing the tables of the memory store.

use super::pick::gone;
use super::tables::{Body, Maps};
use crate::engine::tables::{
    Ask, BreakerAt, Fate, Frozen, Heads, Kept, KeyRow, Letter, Live, QueueRow, Tables,
};
use redrive_core::audit::AuditRow;
use redrive_core::breaker::Breaker;
use redrive_core::dead_letter::Status;
use redrive_core::failure::Failure;
use redrive_core::group::{Facts, GroupRow, Leaf, LeafCount, LeafKey, Marker};
use redrive_core::ids::{GroupId, OperationId, QueueName};
use redrive_core::lifecycle::Life;
use redrive_core::limits;
use redrive_core::message::{NewMessage, Payload, Slip};
use redrive_core::metrics::{OpenKey, Tally, TallyKey};
use redrive_core::operation::{Member, Operation};
use redrive_core::poison::Standing;
use redrive_core::revision::Content;
use redrive_core::store::KvEntry;
use redrive_core::time::{Span, Time};

impl Tables for Maps {
    type Body = NewMessage;

    fn pack(new: &mut NewMessage) -> NewMessage {
        let whole = new.clone();
        new.payload = Payload::default();
        whole
    }

    type Payload = Payload;

    fn pack_payload(payload: Payload) -> Payload {
        payload
    }

    fn with_payload(body: NewMessage, payload: Payload) -> NewMessage {
        NewMessage { payload, ..body }
    }

    fn whole(_: &NewMessage, body: &NewMessage) -> Kept<NewMessage> {
        Ok(body.clone())
    }

    fn put_heads(&mut self, heads: &Heads) -> Kept<()> {
        self.heads = Some(heads.clone());
        Ok(())
    }

    fn put_queue(&mut self, name: &QueueName, row: &QueueRow) -> Kept<()> {
        self.queues.insert(name.clone(), row.clone());
        Ok(())
    }

    fn put_body(&mut self, seq: u64, body: NewMessage, ttl: Option<Span>, enqueued_at: Time) -> Kept<()> {
        self.bodies.insert(seq, Body { rest: body, ttl, enqueued_at });
        Ok(())
    }

    fn drop_body(&mut self, slip: &Slip) -> Kept<()> {
        self.bodies.remove(&slip.seq);
        Ok(())
    }

    fn replace_body(&mut self, slip: &Slip, body: NewMessage) -> Kept<()> {
        let slot = self.bodies.get_mut(&slip.seq).ok_or_else(|| gone("the payload of a message"))?;
        slot.rest = body;
        Ok(())
    }

    fn add_revision(&mut self, slip: &Slip, n: u32, content: &Content) -> Kept<()> {
        self.revisions.insert((slip.seq, n), content.clone());
        Ok(())
    }

    fn drop_revisions(&mut self, slip: &Slip) -> Kept<()> {
        self.revisions.retain(|(seq, _), _| *seq != slip.seq);
        Ok(())
    }

    fn add_live(&mut self, live: &Live) -> Kept<()> {
        self.live.insert(live.slip.id, live.clone());
        Ok(())
    }

    fn put_life(&mut self, slip: &Slip, life: &Life) -> Kept<()> {
        let live = self.live.get_mut(&slip.id).ok_or_else(|| gone("a live message"))?;
        live.life = life.clone();
        Ok(())
    }

    fn drop_live(&mut self, slip: &Slip) -> Kept<()> {
        self.live.remove(&slip.id).map(|_| ()).ok_or_else(|| gone("a live message"))
    }

    fn add_failure(&mut self, slip: &Slip, ordinal: u32, failure: &Failure) -> Kept<()> {
        self.failures.insert((slip.seq, ordinal), failure.clone());
        Ok(())
    }

    fn drop_failure(&mut self, slip: &Slip, ordinal: u32) -> Kept<()> {
        self.failures.remove(&(slip.seq, ordinal));
        Ok(())
    }

    fn drop_failures(&mut self, slip: &Slip) -> Kept<()> {
        self.failures.retain(|(seq, _), _| *seq != slip.seq);
        Ok(())
    }

    fn put_key(&mut self, queue: &QueueName, key: &str, row: &KeyRow) -> Kept<()> {
        self.keys.insert((queue.clone(), key.to_owned()), row.clone());
        Ok(())
    }

    fn drop_keys(&mut self, before: Time, limit: usize) -> Kept<u64> {
        let old = |row: &KeyRow| row.created_at <= before;
        let victims: Vec<_> =
            self.keys.iter().filter(|(_, row)| old(row)).take(limit).map(|(key, _)| key.clone()).collect();
        for victim in &victims {
            self.keys.remove(victim);
        }
        Ok(victims.len() as u64)
    }

    fn add_letter(&mut self, letter: &Letter) -> Kept<()> {
        self.deaths.insert(letter.slip.id, letter.death);
        self.letters.insert(letter.death, letter.clone());
        Ok(())
    }

    fn put_letter(&mut self, _: &Letter, letter: &Letter) -> Kept<()> {
        self.add_letter(letter)
    }

    fn drop_letter(&mut self, letter: &Letter) -> Kept<()> {
        self.deaths.remove(&letter.slip.id);
        self.letters.remove(&letter.death).map(|_| ()).ok_or_else(|| gone("a dead letter"))
    }

    fn put_drawer(&mut self, dlq: &QueueName, status: Status, count: i64) -> Kept<()> {
        self.drawers.insert((dlq.clone(), status), count);
        Ok(())
    }

    fn put_leaf(&mut self, leaf: &Leaf) -> Kept<()> {
        self.leaves.insert(leaf.id, leaf.clone());
        Ok(())
    }

    fn put_standing(&mut self, group: GroupId, standing: Option<&Standing>) -> Kept<()> {
        match standing {
            Some(standing) => self.standings.insert(group, standing.clone()),
            None => self.standings.remove(&group),
        };
        Ok(())
    }

    fn put_group_row(&mut self, id: GroupId, row: Option<&GroupRow>) -> Kept<()> {
        match row {
            Some(row) => self.group_rows.insert(id, row.clone()),
            None => self.group_rows.remove(&id),
        };
        Ok(())
    }

    fn put_group_facts(&mut self, id: GroupId, facts: Option<&Facts>) -> Kept<()> {
        match facts {
            Some(facts) => self.group_facts.insert(id, facts.clone()),
            None => self.group_facts.remove(&id),
        };
        Ok(())
    }

    fn add_marker(&mut self, marker: &Marker) -> Kept<()> {
        self.markers.insert(marker.n, marker.clone());
        while self.markers.len() > limits::MARKERS_MAX {
            self.markers.pop_first();
        }
        Ok(())
    }

    fn put_breaker(&mut self, at: &BreakerAt, breaker: Option<&Breaker>) -> Kept<()> {
        match breaker {
            Some(breaker) => self.breakers.insert(at.clone(), breaker.clone()),
            None => self.breakers.remove(at),
        };
        Ok(())
    }

    fn put_leaf_count(&mut self, key: &LeafKey, count: &LeafCount) -> Kept<()> {
        self.leaf_counts.insert(key.clone(), *count);
        Ok(())
    }

    fn put_open_letters(&mut self, key: &OpenKey, open: i64) -> Kept<()> {
        self.open_letters.insert(key.clone(), open);
        Ok(())
    }

    fn put_tally(&mut self, key: &TallyKey, tally: &Tally) -> Kept<()> {
        self.tallies.insert(key.clone(), *tally);
        Ok(())
    }

    fn add_operation(&mut self, operation: &Operation) -> Kept<()> {
        let position = self.operations.keys().next_back().map_or(1, |last| last + 1);
        self.operations.insert(position, operation.clone());
        Ok(())
    }

    fn put_operation(&mut self, operation: &Operation) -> Kept<()> {
        let slot = self.operations.values_mut().find(|o| o.id == operation.id);
        *slot.ok_or_else(|| gone("an operation"))? = operation.clone();
        Ok(())
    }

    fn add_member(&mut self, id: OperationId, position: u64, member: &Member) -> Kept<()> {
        self.members.insert((id, position), member.clone());
        Ok(())
    }

    fn freeze(&mut self, _: OperationId, _: &Ask<'_>) -> Kept<Option<Frozen>> {
        Ok(None)
    }

    fn put_member(&mut self, id: OperationId, position: u64, fate: &Fate) -> Kept<()> {
        let member = self.members.get_mut(&(id, position)).ok_or_else(|| gone("a member of an operation"))?;
        member.outcome = fate.outcome;
        member.version = fate.version.unwrap_or(member.version);
        member.why.clone_from(&fate.why);
        Ok(())
    }

    fn drop_audit(&mut self, up_to: u64) -> Kept<()> {
        self.audit.retain(|n, _| *n > up_to);
        Ok(())
    }

    fn add_audit(&mut self, row: &AuditRow) -> Kept<()> {
        self.audit.insert(row.n, row.clone());
        Ok(())
    }

    fn put_kv(&mut self, namespace: &str, key: &str, entry: Option<&KvEntry>) -> Kept<()> {
        let place = (namespace.to_owned(), key.to_owned());
        match entry {
            Some(entry) => self.kv.insert(place, entry.clone()),
            None => self.kv.remove(&place),
        };
        Ok(())
    }
}
