//! Writing the tables: every change is collected and seen by the reads of the same group.

use super::{Base, Columns, KeyRange, Staged, Table, keys, rows};
use crate::body::{self, Compression, Packed};
use crate::engine::tables::{
    BreakerId, Frozen, Heads, KeyRow, Letter, LetterScan, Live, MemberUpdate, QueueRow, Reads as _,
    TableResult, Tables, damaged,
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

impl<B: Base> Staged<B> {
    fn put_json<T: serde::Serialize>(
        &mut self,
        table: Table,
        key: Vec<u8>,
        value: Option<&T>,
    ) -> TableResult<()> {
        match value {
            Some(value) => self.put(table, key, rows::json(value)?, Columns::None),
            None => self.remove(table, key),
        }
        Ok(())
    }

    fn columns(live: &Live) -> Columns {
        Columns::Live {
            seq: live.meta.seq,
            queue: live.meta.queue.clone(),
            ready_at: live.lifecycle.ready_at,
            delayed: rows::delayed(&live.lifecycle),
        }
    }
}

impl<B: Base> Tables for Staged<B> {
    type Body = Packed;

    fn pack(new: &mut NewMessage) -> Packed {
        body::pack(new, Compression::None)
    }

    type Payload = Packed;

    fn pack_payload(payload: Payload) -> Packed {
        body::pack_payload(payload, None, Compression::None)
    }

    fn with_payload(body: Packed, payload: Packed) -> Packed {
        payload.with_rest(body.rest)
    }

    fn unpack(new: &NewMessage, body: &Packed) -> TableResult<NewMessage> {
        body.clone().put_back(new)
    }

    fn forget(&mut self) {
        self.forget_all();
    }

    fn writes(&self) -> u64 {
        self.writes
    }

    fn put_heads(&mut self, heads: &Heads) -> TableResult<()> {
        self.put(Table::Head, Vec::new(), rows::heads(heads)?, Columns::None);
        Ok(())
    }

    fn put_queue(&mut self, name: &QueueName, row: &QueueRow) -> TableResult<()> {
        let key = keys::texts(&[], name.as_str());
        self.put_json(Table::Queue, key, Some(&(row.policy.as_ref(), &row.paused_by)))?;
        self.put_queue_counts(name, row)
    }

    fn put_queue_counts(&mut self, name: &QueueName, row: &QueueRow) -> TableResult<()> {
        let counts = rows::queue_counts(&row.counts, row.peak, row.dead_peak)?;
        self.put(Table::QueueCounts, keys::texts(&[], name.as_str()), counts, Columns::None);
        Ok(())
    }

    fn put_body(&mut self, seq: u64, body: Packed, ttl: Option<Span>, enqueued_at: Time) -> TableResult<()> {
        let body = Packed { ttl, enqueued_at, ..body };
        self.add(Table::Body, keys::number(seq), rows::body(&body), Columns::None);
        Ok(())
    }

    fn drop_body(&mut self, meta: &MessageMeta) -> TableResult<()> {
        self.remove(Table::Body, keys::number(meta.seq));
        Ok(())
    }

    fn replace_body(&mut self, meta: &MessageMeta, body: Packed) -> TableResult<()> {
        let key = keys::number(meta.seq);
        let stored = self.row(Table::Body, &key)?.as_deref().and_then(rows::to_body);
        let stored =
            stored.ok_or_else(|| damaged(format!("the payload of message {} is missing", meta.id)))?;
        let body = Packed { ttl: stored.ttl, enqueued_at: stored.enqueued_at, ..body };
        self.put(Table::Body, key, rows::body(&body), Columns::None);
        Ok(())
    }

    fn add_revision(&mut self, meta: &MessageMeta, n: u32, content: &Content) -> TableResult<()> {
        let row = rows::body(&body::pack_content(content, Compression::None));
        self.put(Table::Revision, keys::numbered(meta.seq, n), row, Columns::None);
        Ok(())
    }

    fn drop_revisions(&mut self, meta: &MessageMeta) -> TableResult<()> {
        self.remove_range(Table::Revision, keys::numbered(meta.seq, 0), keys::numbered(meta.seq, u32::MAX));
        Ok(())
    }

    fn add_live(&mut self, live: &Live) -> TableResult<()> {
        let row = rows::live(live)?;
        self.add(Table::Live, live.meta.id.to_bytes().to_vec(), row, Self::columns(live));
        Ok(())
    }

    fn put_lifecycle(&mut self, meta: &MessageMeta, lifecycle: &Lifecycle) -> TableResult<()> {
        let live = Live { meta: meta.clone(), lifecycle: lifecycle.clone() };
        let row = rows::live(&live)?;
        self.put(Table::Live, meta.id.to_bytes().to_vec(), row, Self::columns(&live));
        Ok(())
    }

    fn drop_live(&mut self, meta: &MessageMeta) -> TableResult<()> {
        self.remove(Table::Live, meta.id.to_bytes().to_vec());
        Ok(())
    }

    fn add_failure(&mut self, meta: &MessageMeta, ordinal: u32, failure: &Failure) -> TableResult<()> {
        self.put_json(Table::Failure, keys::numbered(meta.seq, ordinal), Some(failure))
    }

    fn drop_failure(&mut self, meta: &MessageMeta, ordinal: u32) -> TableResult<()> {
        self.remove(Table::Failure, keys::numbered(meta.seq, ordinal));
        Ok(())
    }

    fn drop_failures(&mut self, meta: &MessageMeta) -> TableResult<()> {
        self.remove_range(Table::Failure, keys::numbered(meta.seq, 0), keys::numbered(meta.seq, u32::MAX));
        Ok(())
    }

    fn put_key(&mut self, queue: &QueueName, key: &str, row: &KeyRow) -> TableResult<()> {
        let at = keys::texts(&[queue.as_str()], key);
        self.put(Table::Key, at, rows::key(row)?, Columns::Key(row.created_at));
        Ok(())
    }

    fn drop_keys(&mut self, before: Time, limit: usize) -> TableResult<u64> {
        let mut old = self.base.old_keys(before, limit)?;
        old.retain(|key| !self.changes.rows.contains_key(&(Table::Key, key.clone())));
        let dropped = old.len() as u64;
        for key in old {
            self.remove(Table::Key, key);
        }
        Ok(dropped)
    }

    fn add_letter(&mut self, letter: &Letter) -> TableResult<()> {
        let columns = Columns::Letter(Box::new(letter.clone()));
        self.put(Table::Letter, letter.meta.id.to_bytes().to_vec(), rows::letter(letter)?, columns);
        Ok(())
    }

    fn put_letter(&mut self, _: &Letter, letter: &Letter) -> TableResult<()> {
        self.add_letter(letter)
    }

    fn drop_letter(&mut self, letter: &Letter) -> TableResult<()> {
        self.remove(Table::Letter, letter.meta.id.to_bytes().to_vec());
        Ok(())
    }

    fn put_open_letters(&mut self, key: &OpenKey, open: i64) -> TableResult<()> {
        let level = u8::try_from(key.priority.level()).unwrap_or(u8::MAX);
        let at = [vec![level], keys::texts(&[key.queue.as_str()], &key.kind)].concat();
        self.put(Table::OpenLetters, at, rows::count(open), Columns::None);
        Ok(())
    }

    fn put_dlq_count(&mut self, dlq: &QueueName, status: Status, count: i64) -> TableResult<()> {
        let key = keys::texts(&[dlq.as_str()], status.name());
        self.put(Table::DlqCount, key, rows::count(count), Columns::None);
        Ok(())
    }

    fn put_leaf(&mut self, leaf: &Leaf) -> TableResult<()> {
        self.put_json(Table::Leaf, keys::number(leaf.id.get()), Some(leaf))
    }

    fn put_leaf_count(&mut self, key: &LeafKey, count: &LeafCount) -> TableResult<()> {
        self.put_json(Table::LeafCount, keys::leaf_count(key.leaf, &key.queue, &key.kind), Some(count))
    }

    fn put_group_row(&mut self, id: GroupId, row: Option<&GroupRow>) -> TableResult<()> {
        self.put_json(Table::Group, keys::number(id.get()), row)
    }

    fn put_group_facts(&mut self, id: GroupId, facts: Option<&GroupActivity>) -> TableResult<()> {
        self.put_json(Table::GroupActivity, keys::number(id.get()), facts)
    }

    fn add_marker(&mut self, marker: &Marker) -> TableResult<()> {
        self.put_json(Table::Marker, keys::number(marker.n), Some(marker))?;
        let all = self.range(Table::Marker, &KeyRange::ALL, true, limits::MARKERS_MAX + 1)?;
        if let Some((oldest, _)) = all.get(limits::MARKERS_MAX) {
            self.remove_range(Table::Marker, Vec::new(), oldest.clone());
        }
        Ok(())
    }

    fn put_group_history(&mut self, group: GroupId, history: Option<&GroupHistory>) -> TableResult<()> {
        self.put_json(Table::GroupHistory, keys::number(group.get()), history)
    }

    fn put_breaker(&mut self, at: &BreakerId, breaker: Option<&Breaker>) -> TableResult<()> {
        let (queue, key) = at;
        self.put_json(Table::Breaker, keys::texts(&[queue.as_str()], key), breaker)
    }

    fn put_event_counter(&mut self, key: &CounterKey, totals: &CounterTotals) -> TableResult<()> {
        let at = keys::texts(&[key.event.key(), key.queue.as_str()], &key.label);
        self.put_json(Table::EventCounter, at, Some(totals))
    }

    fn add_operation(&mut self, operation: &Operation) -> TableResult<()> {
        let last = self.operations_before(u64::MAX, 1)?.first().map_or(0, |(position, _)| *position);
        let position = keys::number(last + 1);
        self.put(Table::OperationPosition, operation.id.to_bytes().to_vec(), position.clone(), Columns::None);
        self.put_json(Table::Operation, position, Some(operation))
    }

    fn put_operation(&mut self, operation: &Operation) -> TableResult<()> {
        let missing = || damaged(format!("operation {} is missing", operation.id));
        let position = self.operation_position(operation.id)?.ok_or_else(missing)?;
        self.put_json(Table::Operation, position, Some(operation))
    }

    fn add_member(&mut self, id: OperationId, position: u64, member: &Member) -> TableResult<()> {
        self.put_json(Table::Member, keys::member(id, position), Some(member))
    }

    fn put_member(&mut self, id: OperationId, position: u64, update: &MemberUpdate) -> TableResult<()> {
        let key = keys::member(id, position);
        let missing = || damaged(format!("a member of operation {id} is missing"));
        let row = self.row(Table::Member, &key)?.ok_or_else(missing)?;
        let mut member: Member = rows::from_json(&row, "a member of an operation")?;
        member.outcome = update.outcome;
        member.version = update.version.unwrap_or(member.version);
        member.why.clone_from(&update.why);
        self.put_json(Table::Member, key, Some(&member))
    }

    fn freeze(&mut self, _: OperationId, _: &LetterScan<'_>) -> TableResult<Option<Frozen>> {
        Ok(None)
    }

    fn add_audit(&mut self, row: &AuditRow) -> TableResult<()> {
        self.put_json(Table::Audit, keys::number(row.n), Some(&(&row.entry, &row.seal)))
    }

    fn drop_audit(&mut self, up_to: u64) -> TableResult<()> {
        self.remove_range(Table::Audit, Vec::new(), keys::number(up_to));
        Ok(())
    }

    fn put_kv(&mut self, namespace: &str, key: &str, entry: Option<&KvEntry>) -> TableResult<()> {
        let at = keys::texts(&[namespace], key);
        match entry {
            Some(entry) => self.put(Table::Kv, at, rows::kv(entry.version, &entry.value), Columns::None),
            None => self.remove(Table::Kv, at),
        }
        Ok(())
    }
}
