//! Reading the tables, as the group that is being applied sees them.

use super::letters::LetterQuery;
use super::{Base, Bytes, Columns, KeyRange, Staged, Table, keys, rows};
use crate::engine::tables::{
    BreakerId, Candidates, DlqCounts, FrozenMember, Heads, KeyRow, Letter, LetterScan, Live, QueueRow, Reads,
    Rows, StoredBody, TableResult, damaged, unless_damaged,
};
use redrive_core::audit::{AuditEntry, AuditRow, ORIGIN};
use redrive_core::breaker::Breaker;
use redrive_core::failure::Failure;
use redrive_core::group::{GroupActivity, GroupRow, Leaf, LeafCount, LeafKey, Marker};
use redrive_core::ids::{GroupId, LeafId, MessageId, OperationId, QueueName};
use redrive_core::invariants::Verification;
use redrive_core::message::MessageMeta;
use redrive_core::metrics::{CounterKey, CounterTotals, Event, OpenCounts, OpenKey};
use redrive_core::operation::{Member, MemberOutcome, Operation, Outcomes};
use redrive_core::poison::GroupHistory;
use redrive_core::priority::Priority;
use redrive_core::revision::Content;
use redrive_core::short_id::IdKind;
use redrive_core::store::{KvEntry, KvItem};
use redrive_core::survey::Survey;
use redrive_core::time::Time;
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

/// Rows read at once where all rows of a table are wanted.
const CHUNK: usize = 5_000;

fn id_of(key: &[u8]) -> TableResult<MessageId> {
    let bytes = <[u8; 16]>::try_from(key).map_err(|_| damaged("an id cannot be read"))?;
    Ok(MessageId::from_bytes(bytes))
}

fn queue_of(name: &str) -> TableResult<QueueName> {
    name.parse().map_err(|_| damaged(format!("{name:?} is not a queue's name")))
}

/// The texts of a key that this store has written.
fn texts_of(key: &[u8], first: usize) -> TableResult<Vec<String>> {
    keys::to_texts(key, first).ok_or_else(|| damaged("a key cannot be read"))
}

impl<B: Base> Staged<B> {
    /// Every row of a table.
    fn all(&self, table: Table) -> TableResult<Vec<(Vec<u8>, Bytes)>> {
        self.whole_range(table, KeyRange::ALL)
    }

    /// Every row in a range of keys, however many there are.
    fn whole_range(&self, table: Table, mut range: KeyRange) -> TableResult<Vec<(Vec<u8>, Bytes)>> {
        let mut all = Vec::new();
        loop {
            let chunk = self.range(table, &range, false, CHUNK)?;
            let Some((last, _)) = chunk.last().filter(|_| chunk.len() == CHUNK) else {
                all.extend(chunk);
                return Ok(all);
            };
            range.from = Bound::Excluded(last.clone());
            all.extend(chunk);
        }
    }

    fn json_row<T: serde::de::DeserializeOwned>(
        &self,
        table: Table,
        key: &[u8],
        what: &str,
    ) -> TableResult<Option<T>> {
        self.row(table, key)?.map(|row| rows::from_json(&row, what)).transpose()
    }

    pub(super) fn operation_position(&self, id: OperationId) -> TableResult<Option<Vec<u8>>> {
        Ok(self.row(Table::OperationPosition, &id.to_bytes())?.map(|row| row.to_vec()))
    }

    fn live_rows(&self, range: &KeyRange, limit: usize) -> TableResult<Rows<MessageId, Live>> {
        let read = |(key, row): (Vec<u8>, Bytes)| {
            let id = id_of(&key)?;
            Ok((id, rows::to_live(id, &row)))
        };
        self.range(Table::Live, range, false, limit)?.into_iter().map(read).collect()
    }

    fn member_rows(
        &self,
        id: OperationId,
        from: u64,
        to: Option<u64>,
        limit: usize,
    ) -> TableResult<Vec<(u64, Member)>> {
        let end = to
            .map_or_else(|| KeyRange::prefix(&id.to_bytes()).to, |to| Bound::Included(keys::member(id, to)));
        let range = KeyRange { from: Bound::Excluded(keys::member(id, from)), to: end };
        let read = |(key, row): (Vec<u8>, Bytes)| {
            let position = key.get(16..).and_then(keys::to_number).unwrap_or(0);
            Ok((position, rows::from_json(&row, "a member of an operation")?))
        };
        self.range(Table::Member, &range, false, limit)?.into_iter().map(read).collect()
    }

    fn audit_rows(&self, range: &KeyRange, reverse: bool, limit: usize) -> TableResult<Vec<AuditRow>> {
        let read = |(key, row): (Vec<u8>, Bytes)| {
            let (entry, seal): (AuditEntry, String) = rows::from_json(&row, "an audit row")?;
            Ok(AuditRow { n: keys::to_number(&key).unwrap_or(0), entry, seal })
        };
        self.range(Table::Audit, range, reverse, limit)?.into_iter().map(read).collect()
    }

    fn leaf_count_rows(&self, range: KeyRange) -> TableResult<Vec<(LeafKey, LeafCount)>> {
        let read = |(key, row): (Vec<u8>, Bytes)| {
            let leaf = LeafId::new(keys::to_number(&key).unwrap_or(0));
            let mut texts = texts_of(key.get(8..).unwrap_or_default(), 1)?;
            let (kind, queue) = (texts.pop().unwrap_or_default(), texts.pop().unwrap_or_default());
            let count = rows::from_json(&row, "the counter of a leaf")?;
            Ok((LeafKey { leaf, queue: queue_of(&queue)?, kind }, count))
        };
        self.whole_range(Table::LeafCount, range)?.into_iter().map(read).collect()
    }
}

impl<B: Base> Reads for Staged<B> {
    fn heads(&self) -> TableResult<Heads> {
        let fresh = || Heads {
            seq: 0,
            death: 0,
            audit_n: 0,
            audit_seal: ORIGIN.into(),
            messages_peak: 0,
            letters_peak: 0,
        };
        self.row(Table::Head, &[])?.map_or_else(|| Ok(fresh()), |row| rows::to_heads(&row))
    }

    fn queues(&self) -> TableResult<BTreeMap<QueueName, QueueRow>> {
        let mut counts: HashMap<Vec<u8>, Bytes> = self.all(Table::QueueCounts)?.into_iter().collect();
        let mut queues = BTreeMap::new();
        for (key, row) in self.all(Table::Queue)? {
            let name = queue_of(&texts_of(&key, 0)?.pop().unwrap_or_default())?;
            let (policy, paused_by) = rows::from_json(&row, &format!("the policy of queue {name}"))?;
            let counted = counts.remove(&key).map(|row| rows::to_queue_counts(&row)).transpose()?;
            let (counts, peak, dead_peak) = counted.unwrap_or_default();
            queues.insert(name, QueueRow { policy: Arc::new(policy), paused_by, counts, peak, dead_peak });
        }
        Ok(queues)
    }

    fn scheduled(&self, queue: &QueueName, now: Time) -> TableResult<u64> {
        let (mut changed, mut pending) = (Vec::new(), 0);
        let of_live = self.changes.rows.range((Table::Live, Vec::new())..);
        for ((_, key), change) in of_live.take_while(|((table, _), _)| *table == Table::Live) {
            changed.push(id_of(key)?);
            if let Columns::Live { queue: of, ready_at, delayed, .. } = &change.columns {
                pending += u64::from(*delayed && of == queue && *ready_at > now);
            }
        }
        Ok(self.base.scheduled(queue, now, &changed)? + pending)
    }

    fn id_exists(&self, id: MessageId) -> TableResult<bool> {
        let key = id.to_bytes();
        Ok(self.row(Table::Live, &key)?.is_some() || self.row(Table::Letter, &key)?.is_some())
    }

    fn live(&self, id: MessageId) -> TableResult<Option<Live>> {
        self.row(Table::Live, &id.to_bytes())?.map(|row| rows::to_live(id, &row)).transpose()
    }

    fn live_after(&self, after: Option<MessageId>, limit: usize) -> TableResult<Rows<MessageId, Live>> {
        self.live_rows(&KeyRange::after(after.map(|id| id.to_bytes().to_vec())), limit)
    }

    fn live_from(&self, from: MessageId, limit: usize) -> TableResult<Rows<MessageId, Live>> {
        let range = KeyRange { from: Bound::Included(from.to_bytes().to_vec()), to: Bound::Unbounded };
        self.live_rows(&range, limit)
    }

    fn letters_holding_keys(&self) -> TableResult<Vec<MessageMeta>> {
        let letters = self.find_letters(&LetterQuery::HoldingKeys, usize::MAX)?;
        Ok(letters.into_iter().filter_map(|(_, letter)| Some(letter.ok()?.meta)).collect())
    }

    fn body(&self, meta: &MessageMeta) -> TableResult<StoredBody> {
        let missing = || damaged(format!("the payload of message {} is missing", meta.id));
        let row = self.row(Table::Body, &keys::number(meta.seq))?.ok_or_else(missing)?;
        let broken = || damaged(format!("the payload of message {} is not what was written", meta.id));
        rows::to_body(&row).map(StoredBody::Packed).ok_or_else(broken)
    }

    fn body_at_hand(&self, meta: &MessageMeta) -> TableResult<Option<StoredBody>> {
        match self.known(Table::Body, &keys::number(meta.seq)) {
            Some(_) => self.body(meta).map(Some),
            None => Ok(None),
        }
    }

    fn bodies(&self, metas: &[MessageMeta]) -> TableResult<Vec<TableResult<StoredBody>>> {
        let wanted: Vec<Vec<u8>> = metas.iter().map(|meta| keys::number(meta.seq)).collect();
        let found = self.base.get(&[(Table::Body, wanted)])?;
        let mut found: HashMap<Vec<u8>, Bytes> = found.into_iter().map(|(_, key, row)| (key, row)).collect();
        let body = |meta: &MessageMeta| {
            let broken =
                || damaged(format!("the payload of message {} is missing or not what was written", meta.id));
            let packed = found.remove(&keys::number(meta.seq)).and_then(|row| rows::to_body(&row));
            packed.map(StoredBody::Packed).ok_or_else(broken)
        };
        Ok(metas.iter().map(body).collect())
    }

    fn trace(&self, meta: &MessageMeta) -> TableResult<Option<String>> {
        let row = self.row(Table::Body, &keys::number(meta.seq))?;
        Ok(row.and_then(|row| rows::to_body(&row)).and_then(|packed| crate::body::trace(packed.rest)))
    }

    fn failures(&self, meta: &MessageMeta) -> TableResult<Vec<Failure>> {
        let rows = self.whole_range(Table::Failure, KeyRange::prefix(&keys::number(meta.seq)))?;
        let what = || format!("a failure of message {}", meta.id);
        rows.into_iter().map(|(_, row)| rows::from_json(&row, &what())).collect()
    }

    fn key(&self, queue: &QueueName, key: &str) -> TableResult<Option<KeyRow>> {
        let row = self.row(Table::Key, &keys::texts(&[queue.as_str()], key))?;
        row.map(|row| rows::to_key(&row)).transpose()
    }

    fn revision(&self, meta: &MessageMeta, n: u32) -> TableResult<Option<Content>> {
        let Some(row) = self.row(Table::Revision, &keys::numbered(meta.seq, n))? else { return Ok(None) };
        let broken = || damaged(format!("an earlier content of message {} is not what was written", meta.id));
        rows::to_body(&row).ok_or_else(broken)?.content(meta.id).map(Some)
    }

    fn revision_numbers(&self, meta: &MessageMeta) -> TableResult<Vec<u32>> {
        let rows = self.whole_range(Table::Revision, KeyRange::prefix(&keys::number(meta.seq)))?;
        Ok(rows.iter().filter_map(|(key, _)| keys::to_ordinal(key)).collect())
    }

    fn letter(&self, id: MessageId) -> TableResult<Option<Letter>> {
        self.row(Table::Letter, &id.to_bytes())?.map(|row| rows::decode_letter(id, &row)).transpose()
    }

    fn candidates(&self, scan: &LetterScan<'_>) -> TableResult<Candidates> {
        let mut found = self.base.candidates(scan)?;
        if !self.has_changed_letters() {
            return Ok(found);
        }
        // What this group changed is looked at again by the caller, who evaluates the filter.
        let covered = |death: u64| match (found.ended, scan.latest_first) {
            (true, _) => death > scan.after && death <= scan.up_to,
            (false, true) => death >= found.reached && death <= scan.up_to,
            (false, false) => death > scan.after && death <= found.reached,
        };
        let pending: Vec<u64> =
            self.pending_letters().map(|letter| letter.death).filter(|death| covered(*death)).collect();
        found.deaths.extend(pending);
        found.deaths.sort_unstable();
        found.deaths.dedup();
        if scan.latest_first {
            found.deaths.reverse();
        }
        found.exact = false;
        Ok(found)
    }

    fn letters_at(&self, deaths: &[u64]) -> TableResult<Rows<u64, Letter>> {
        let found = self.find_letters(&LetterQuery::At(deaths), usize::MAX)?;
        let mut found: HashMap<u64, TableResult<Letter>> = found.into_iter().collect();
        Ok(deaths.iter().filter_map(|death| found.remove_entry(death)).collect())
    }

    fn survey(&self, scan: &LetterScan<'_>) -> TableResult<Option<Survey>> {
        if self.has_changed_letters() { Ok(None) } else { self.base.survey(scan) }
    }

    fn letters_after(&self, death: u64, bound: u64, limit: usize) -> TableResult<Rows<u64, Letter>> {
        self.find_letters(&LetterQuery::Deaths { after: death, up_to: bound }, limit)
    }

    fn leasable_letters(&self, dlq: &QueueName, limit: usize, now: Time) -> TableResult<Vec<Letter>> {
        self.undamaged_letters(&LetterQuery::Leasable { dlq, now }, limit)
    }

    fn quarantine_ended(&self, limit: usize, now: Time) -> TableResult<Vec<Letter>> {
        self.undamaged_letters(&LetterQuery::QuarantineEnded { now }, limit)
    }

    fn letters_owing_replies(
        &self,
        queue: &QueueName,
        redrives: u32,
        limit: usize,
    ) -> TableResult<Vec<Letter>> {
        self.undamaged_letters(&LetterQuery::OwingReplies { queue, redrives }, limit)
    }

    fn retention_ended(&self, limit: usize, now: Time) -> TableResult<Vec<Letter>> {
        self.undamaged_letters(&LetterQuery::RetentionEnded { now }, limit)
    }

    fn dlqs(&self) -> TableResult<DlqCounts> {
        let read = |(key, row): (Vec<u8>, Bytes)| {
            let mut texts = texts_of(&key, 1)?;
            let (status, dlq) = (texts.pop().unwrap_or_default(), texts.pop().unwrap_or_default());
            Ok(((queue_of(&dlq)?, status.parse().map_err(damaged)?), rows::to_count(&row)?))
        };
        self.all(Table::DlqCount)?.into_iter().map(read).collect()
    }

    fn open_letters(&self) -> TableResult<OpenCounts> {
        let read = |(key, row): (Vec<u8>, Bytes)| {
            let (level, key) = key.split_first().ok_or_else(|| damaged("a key cannot be read"))?;
            let mut texts = texts_of(key, 1)?;
            let (kind, queue) = (texts.pop().unwrap_or_default(), texts.pop().unwrap_or_default());
            let priority = Priority::from_level((*level).into());
            Ok((OpenKey { queue: queue_of(&queue)?, kind, priority }, rows::to_count(&row)?))
        };
        let counts: TableResult<Vec<_>> = self.all(Table::OpenLetters)?.into_iter().map(read).collect();
        Ok(OpenCounts::new(counts?))
    }

    fn leaf(&self, id: LeafId) -> TableResult<Option<Leaf>> {
        self.json_row(Table::Leaf, &keys::number(id.get()), "a leaf")
    }

    fn leaves(&self) -> TableResult<Vec<Leaf>> {
        let rows = self.all(Table::Leaf)?;
        let mut leaves: Vec<Leaf> =
            rows.iter().map(|(_, row)| rows::from_json(row, "a leaf")).collect::<TableResult<_>>()?;
        leaves.sort_by_key(|leaf| (leaf.n, leaf.id));
        Ok(leaves)
    }

    fn leaf_count(&self, key: &LeafKey) -> TableResult<LeafCount> {
        let at = keys::leaf_count(key.leaf, &key.queue, &key.kind);
        Ok(self.json_row(Table::LeafCount, &at, "the counter of a leaf")?.unwrap_or_default())
    }

    fn leaf_counts(&self) -> TableResult<Vec<(LeafKey, LeafCount)>> {
        self.leaf_count_rows(KeyRange::ALL)
    }

    fn leaf_counts_of(&self, leaf: LeafId) -> TableResult<Vec<(LeafKey, LeafCount)>> {
        self.leaf_count_rows(KeyRange::prefix(&keys::number(leaf.get())))
    }

    fn leaves_of(&self, group: GroupId) -> TableResult<Vec<LeafId>> {
        Ok(self.leaves()?.into_iter().filter(|leaf| leaf.group == group).map(|leaf| leaf.id).collect())
    }

    fn deaths_of(&self, leaf: LeafId, limit: usize) -> TableResult<Vec<u64>> {
        Ok(self
            .find_letters(&LetterQuery::OfLeaf(leaf), limit)?
            .into_iter()
            .map(|(death, _)| death)
            .collect())
    }

    fn group_row(&self, id: GroupId) -> TableResult<Option<GroupRow>> {
        self.json_row(Table::Group, &keys::number(id.get()), "a group")
    }

    fn group_rows(&self) -> TableResult<Vec<(GroupId, GroupRow)>> {
        // An unreadable row does not hide the others; `doctor` reports it and can recount it.
        let read = |(key, row): (Vec<u8>, Bytes)| {
            Some((LeafId::new(keys::to_number(&key)?), serde_json::from_slice(&row).ok()?))
        };
        Ok(self.all(Table::Group)?.into_iter().filter_map(read).collect())
    }

    fn group_ids(&self) -> TableResult<Vec<GroupId>> {
        let rows = self.all(Table::Group)?;
        Ok(rows.iter().filter_map(|(key, _)| keys::to_number(key).map(LeafId::new)).collect())
    }

    fn group_facts(&self, id: GroupId) -> TableResult<GroupActivity> {
        let key = keys::number(id.get());
        Ok(self.json_row(Table::GroupActivity, &key, "the activity of a group")?.unwrap_or_default())
    }

    fn markers_before(&self, n: u64, limit: usize) -> TableResult<Vec<Marker>> {
        let rows = self.range(Table::Marker, &KeyRange::before(keys::number(n)), true, limit)?;
        rows.iter().map(|(_, row)| rows::from_json(row, "a marker")).collect()
    }

    fn group_history(&self, group: GroupId) -> TableResult<GroupHistory> {
        let key = keys::number(group.get());
        Ok(self.json_row(Table::GroupHistory, &key, "the history of a group")?.unwrap_or_default())
    }

    fn breakers(&self) -> TableResult<BTreeMap<BreakerId, Breaker>> {
        let mut breakers = BTreeMap::new();
        for (key, row) in self.all(Table::Breaker)? {
            let mut texts = texts_of(&key, 1)?;
            let (key, queue) = (texts.pop().unwrap_or_default(), texts.pop().unwrap_or_default());
            // An unreadable breaker starts afresh: that is better than no leases at all.
            if let Ok(breaker) = serde_json::from_slice(&row) {
                breakers.insert((queue_of(&queue)?, key), breaker);
            }
        }
        Ok(breakers)
    }

    fn event_counters(&self) -> TableResult<Vec<(CounterKey, CounterTotals)>> {
        let mut counters = Vec::new();
        for (key, row) in self.all(Table::EventCounter)? {
            let mut texts = texts_of(&key, 2)?;
            let label = texts.pop().unwrap_or_default();
            let (queue, event) = (texts.pop().unwrap_or_default(), texts.pop().unwrap_or_default());
            // A counter that this program does not know is ignored and stays where it is.
            let Some(event) = Event::ALL.iter().copied().find(|known| known.key() == event) else { continue };
            let totals = rows::from_json(&row, "an event counter")?;
            counters.push((CounterKey { event, queue: queue_of(&queue)?, label }, totals));
        }
        Ok(counters)
    }

    fn oldest_open(&self) -> TableResult<Option<Time>> {
        self.base.oldest_open()
    }

    fn ids_after(&self, of: IdKind, after: Option<MessageId>, limit: usize) -> TableResult<Vec<MessageId>> {
        let table = match of {
            IdKind::Message => Table::Live,
            IdKind::Letter => Table::Letter,
            IdKind::Operation => Table::OperationPosition,
            IdKind::Group => return Ok(Vec::new()),
        };
        let after = after.map_or_else(Vec::new, |id| id.to_bytes().to_vec());
        self.base.ids_after(table, &after, limit)?.iter().map(|key| id_of(key)).collect()
    }

    fn operation(&self, id: OperationId) -> TableResult<Option<Operation>> {
        match self.operation_position(id)? {
            Some(position) => self.json_row(Table::Operation, &position, "an operation"),
            None => Ok(None),
        }
    }

    fn operations_before(&self, position: u64, limit: usize) -> TableResult<Vec<(u64, Operation)>> {
        let rows = self.range(Table::Operation, &KeyRange::before(keys::number(position)), true, limit)?;
        let read = |(key, row): &(Vec<u8>, Bytes)| {
            Ok((keys::to_number(key).unwrap_or(0), rows::from_json(row, "an operation")?))
        };
        rows.iter().map(read).collect()
    }

    fn members_after(&self, id: OperationId, position: u64, limit: usize) -> TableResult<Vec<(u64, Member)>> {
        self.member_rows(id, position, None, limit)
    }

    fn member_after(&self, id: OperationId, position: u64, count: usize) -> TableResult<Option<u64>> {
        let members = self.member_rows(id, position, None, count)?;
        Ok(members.get(count.saturating_sub(1)).map(|(position, _)| *position))
    }

    fn members_with(
        &self,
        id: OperationId,
        outcome: MemberOutcome,
        (after, up_to): (u64, u64),
        limit: usize,
    ) -> TableResult<Vec<FrozenMember>> {
        let mut members = Vec::new();
        let mut from = after;
        while from < up_to && members.len() < limit {
            let chunk = self.member_rows(id, from, Some(up_to), limit)?;
            let Some((last, _)) = chunk.last() else { break };
            from = *last;
            members.extend(chunk.into_iter().filter(|(_, member)| member.outcome == outcome));
        }
        members.truncate(limit);
        let deaths: Vec<u64> = members.iter().map(|(position, _)| *position).collect();
        let mut letters: HashMap<u64, Letter> = HashMap::new();
        for (death, letter) in self.letters_at(&deaths)? {
            // A letter that cannot be read is treated as gone: its member is left alone, and `doctor` reports it.
            letters.extend(unless_damaged(letter)?.map(|letter| (death, letter)));
        }
        let with_letter = members.into_iter().map(|(position, member)| FrozenMember {
            position,
            letter: letters.remove(&position).filter(|letter| letter.meta.id == member.id),
            member,
        });
        Ok(with_letter.collect())
    }

    fn member_counts(&self, id: OperationId) -> TableResult<Outcomes> {
        let (mut counts, mut from) = (Outcomes::default(), 0);
        loop {
            let chunk = self.member_rows(id, from, None, CHUNK)?;
            for (position, member) in &chunk {
                *counts.count_mut(member.outcome) += 1;
                from = *position;
            }
            if chunk.len() < CHUNK {
                return Ok(counts);
            }
        }
    }

    fn audit_before(&self, n: u64, limit: usize) -> TableResult<Vec<AuditRow>> {
        self.audit_rows(&KeyRange::before(keys::number(n)), true, limit)
    }

    fn audit_after(&self, n: u64, limit: usize) -> TableResult<Vec<AuditRow>> {
        self.audit_rows(&KeyRange::after(Some(keys::number(n))), false, limit)
    }

    fn kv(&self, namespace: &str, key: &str) -> TableResult<Option<KvEntry>> {
        let Some(row) = self.row(Table::Kv, &keys::texts(&[namespace], key))? else { return Ok(None) };
        let (version, value) = rows::to_kv(&row)?;
        Ok(Some(KvEntry { value, version }))
    }

    fn kv_range(&self, namespace: &str, from: Bound<&str>, limit: usize) -> TableResult<Vec<KvItem>> {
        let at = |key: &str| keys::texts(&[namespace], key);
        let mut range = KeyRange::prefix(&at(""));
        match from {
            Bound::Included(key) => range.from = Bound::Included(at(key)),
            Bound::Excluded(key) => range.from = Bound::Excluded(at(key)),
            Bound::Unbounded => {}
        }
        let read = |(key, row): (Vec<u8>, Bytes)| {
            let (version, value) = rows::to_kv(&row)?;
            Ok(KvItem { key: texts_of(&key, 1)?.pop().unwrap_or_default(), value, version })
        };
        self.range(Table::Kv, &range, false, limit)?.into_iter().map(read).collect()
    }

    fn check(&self, deep: bool, verification: &mut Verification) -> TableResult<()> {
        self.base.check(deep, verification)
    }
}
