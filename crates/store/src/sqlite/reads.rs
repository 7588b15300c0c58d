//! Reading the tables, on the writer's connection inside a commit or on a reader's own connection.

use super::errors::sql_result;
use super::letter_rows::LETTER;
use super::rows::{self, Cell, META, int, json};
use super::{counters, kv, statements};
use crate::body;
use crate::engine::tables::damaged;
use crate::engine::tables::{
    BreakerId, Candidates, DlqCounts, FrozenMember, Heads, KeyRow, Letter, LetterScan, Live, QueueRow, Reads,
    StoredBody, TableResult, TextState, unless_damaged,
};
use redrive_core::audit::AuditRow;
use redrive_core::breaker::Breaker;
use redrive_core::failure::Failure;
use redrive_core::group::{GroupActivity, GroupRow, Leaf, LeafCount, LeafKey, Marker};
use redrive_core::ids::{GroupId, LeafId, MessageId, OperationId, QueueName};
use redrive_core::invariants::{Counts, Verification};
use redrive_core::message::MessageMeta;
use redrive_core::metrics::{CounterKey, CounterTotals, OpenCounts};
use redrive_core::operation::{Member, MemberOutcome, Operation, Outcomes};
use redrive_core::poison::GroupHistory;
use redrive_core::policy::QueuePolicy;
use redrive_core::revision::Content;
use redrive_core::short_id::IdKind;
use redrive_core::store::{KvEntry, KvItem};
use redrive_core::survey::Survey;
use redrive_core::time::{Span, Time};
use rusqlite::types::ToSql;
use rusqlite::{Connection, OptionalExtension as _, Row};
use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;
use std::sync::Arc;

/// A connection to the tables.
#[derive(Debug)]
pub(crate) struct SqlTables {
    pub(super) connection: Connection,
    /// Live messages that this connection wrote recently, as they are in the table. Only the writer's connection has
    /// any: nobody else writes, so they cannot be stale, and a rollback drops them all. Boxed, because a growing map
    /// moves its values while a commit waits.
    pub(super) recent: HashMap<MessageId, Box<Live>>,
    /// How many writing statements were run.
    pub(super) writes: std::cell::Cell<u64>,
}

/// Prepared statements cached per connection: enough for all there are.
const STATEMENTS: usize = 128;

impl SqlTables {
    pub(super) fn new(connection: Connection) -> Self {
        connection.set_prepared_statement_cache_capacity(STATEMENTS);
        Self { connection, recent: HashMap::new(), writes: std::cell::Cell::new(0) }
    }

    pub(super) fn one<T>(
        &self,
        sql: &str,
        params: &[&dyn ToSql],
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> TableResult<Option<T>> {
        let mut statement = sql_result(self.connection.prepare_cached(sql))?;
        sql_result(statement.query_row(params, read).optional())
    }

    pub(super) fn all<T>(
        &self,
        sql: &str,
        params: &[&dyn ToSql],
        read: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
    ) -> TableResult<Vec<T>> {
        let mut statement = sql_result(self.connection.prepare_cached(sql))?;
        let rows = sql_result(statement.query_map(params, read))?;
        sql_result(rows.collect())
    }

    /// Letters with their death numbers. A damaged letter carries its own error.
    pub(super) fn all_letters(
        &self,
        rest: &str,
        params: &[&dyn ToSql],
    ) -> TableResult<Vec<(u64, TableResult<Letter>)>> {
        let sql = format!("SELECT {} FROM letters {rest}", LETTER.as_str());
        self.all(&sql, params, rows::letter)
    }

    /// The first letters that are not damaged, so that damaged ones never stand in the way of the others. The last
    /// parameter of the statement is the limit.
    fn undamaged_letters(&self, rest: &str, params: &[&dyn ToSql], limit: usize) -> TableResult<Vec<Letter>> {
        let mut wanted = limit;
        loop {
            let most = int(wanted as u64);
            let params: Vec<&dyn ToSql> = params.iter().copied().chain([&most as &dyn ToSql]).collect();
            let found = self.all_letters(rest, &params)?;
            let all = found.len() < wanted;
            let mut letters = Vec::with_capacity(found.len());
            for (_, letter) in found {
                letters.extend(unless_damaged(letter)?);
            }
            if all || letters.len() >= limit {
                letters.truncate(limit);
                return Ok(letters);
            }
            wanted = wanted.saturating_mul(2);
        }
    }

    /// The leased messages whose rows are not damaged.
    pub(super) fn leased(&self) -> TableResult<Vec<Live>> {
        let found = self.all(statements::LIVE_LEASED, &[], rows::live)?;
        Ok(found.into_iter().filter_map(|(_, live)| live.ok()).collect())
    }

    fn all_members(&self, rest: &str, params: &[&dyn ToSql]) -> TableResult<Vec<(u64, Member)>> {
        let sql = format!(
            "SELECT position, id, version, outcome, why FROM members WHERE operation = ?1 AND {rest}"
        );
        let raw = self.all(&sql, params, |row| {
            let id = row.get::<_, Cell<MessageId>>(1)?.0;
            Ok((row.get(0)?, id, row.get(2)?, row.get::<_, String>(3)?, row.get(4)?))
        })?;
        raw.into_iter()
            .map(|(position, id, version, outcome, why)| {
                let outcome = outcome.parse().map_err(damaged)?;
                Ok((position, Member { id, version, outcome, why }))
            })
            .collect()
    }

    fn audit_rows(&self, rest: &str, params: &[&dyn ToSql]) -> TableResult<Vec<AuditRow>> {
        let sql = format!("SELECT n, entry, seal FROM audit {rest}");
        let raw = self.all(&sql, params, |row| Ok((row.get(0)?, row.get::<_, String>(1)?, row.get(2)?)))?;
        raw.into_iter()
            .map(|(n, entry, seal)| Ok(AuditRow { n, entry: json(&entry, "an audit row")?, seal }))
            .collect()
    }
}

impl Reads for SqlTables {
    fn heads(&self) -> TableResult<Heads> {
        let sql = "SELECT seq, death, audit_n, audit_seal, messages_peak, letters_peak FROM head";
        let heads = self.one(sql, &[], |row| {
            Ok(Heads {
                seq: row.get(0)?,
                death: row.get(1)?,
                audit_n: row.get(2)?,
                audit_seal: row.get(3)?,
                messages_peak: row.get(4)?,
                letters_peak: row.get(5)?,
            })
        })?;
        heads.ok_or_else(|| damaged("the head row is missing"))
    }

    fn queues(&self) -> TableResult<BTreeMap<QueueName, QueueRow>> {
        let sql = "SELECT name, policy, paused_by, enqueued, waiting, leased, dead, done, cancelled, expired, purged, \
                   bytes, peak, dead_peak FROM queues";
        let raw = self.all(sql, &[], |row| {
            let counts = Counts {
                enqueued: row.get(3)?,
                waiting: row.get(4)?,
                leased: row.get(5)?,
                dead: row.get(6)?,
                done: row.get(7)?,
                cancelled: row.get(8)?,
                expired: row.get(9)?,
                purged: row.get(10)?,
                bytes: row.get(11)?,
            };
            let queue = QueueRow {
                policy: Arc::default(),
                paused_by: row.get(2)?,
                counts,
                peak: row.get(12)?,
                dead_peak: row.get(13)?,
            };
            Ok((row.get::<_, Cell<QueueName>>(0)?.0, row.get::<_, String>(1)?, queue))
        })?;
        raw.into_iter()
            .map(|(name, policy, queue)| {
                let policy: QueuePolicy = json(&policy, &format!("the policy of queue {name}"))?;
                Ok((name, QueueRow { policy: Arc::new(policy), ..queue }))
            })
            .collect()
    }

    fn scheduled(&self, queue: &QueueName, now: Time) -> TableResult<u64> {
        let sql = "SELECT count(*) FROM messages WHERE delayed = 1 AND queue = ?1 AND ready_at > ?2";
        let count = self.one(sql, &[&queue.as_str(), &now.as_millis()], |row| row.get(0))?;
        Ok(count.unwrap_or(0))
    }

    fn id_exists(&self, id: MessageId) -> TableResult<bool> {
        if self.recent.contains_key(&id) {
            return Ok(true);
        }
        let found = |sql| Ok(self.one(sql, &[&id.to_bytes()], |_| Ok(()))?.is_some());
        Ok(found("SELECT 1 FROM messages WHERE id = ?1")? || found("SELECT 1 FROM letters WHERE id = ?1")?)
    }

    fn live(&self, id: MessageId) -> TableResult<Option<Live>> {
        match self.recent.get(&id) {
            Some(live) => Ok(Some(live.as_ref().clone())),
            None => {
                let found = self.one(statements::LIVE_BY_ID, &[&id.to_bytes()], rows::live)?;
                found.map(|(_, live)| live).transpose()
            }
        }
    }

    fn live_after(
        &self,
        after: Option<MessageId>,
        limit: usize,
    ) -> TableResult<Vec<(MessageId, TableResult<Live>)>> {
        let after = after.map(MessageId::to_bytes);
        let after: &[u8] = after.as_ref().map_or(&[], AsRef::as_ref);
        self.all(statements::LIVE_AFTER, &[&after, &int(limit as u64)], rows::live)
    }

    fn live_from(&self, from: MessageId, limit: usize) -> TableResult<Vec<(MessageId, TableResult<Live>)>> {
        self.all(statements::LIVE_FROM, &[&from.to_bytes(), &int(limit as u64)], rows::live)
    }

    fn letters_holding_keys(&self) -> TableResult<Vec<MessageMeta>> {
        // A damaged letter also holds its key, if the key can be read: the order is kept until somebody has looked.
        let sql = format!("SELECT {META} FROM letters WHERE holds_key = 1");
        let metas = self.all(&sql, &[], |row| Ok(rows::meta(row, 0).ok()))?;
        Ok(metas.into_iter().flatten().collect())
    }

    fn body(&self, meta: &MessageMeta) -> TableResult<StoredBody> {
        let sql = "SELECT rest, content_type, payload, packed, checksum, ttl, enqueued_at FROM bodies WHERE seq = ?1";
        let packed = self.one(sql, &[&int(meta.seq)], |row| {
            Ok(body::Packed {
                rest: row.get(0)?,
                content_type: row.get(1)?,
                payload: row.get(2)?,
                unpacked: row.get(3)?,
                checksum: row.get(4)?,
                ttl: row.get::<_, Option<Cell<Span>>>(5)?.map(|cell| cell.0),
                enqueued_at: row.get::<_, Cell<Time>>(6)?.0,
            })
        })?;
        let missing = || damaged(format!("the payload of message {} is missing", meta.id));
        packed.map(StoredBody::Packed).ok_or_else(missing)
    }

    fn revision(&self, meta: &MessageMeta, n: u32) -> TableResult<Option<Content>> {
        let sql =
            "SELECT rest, content_type, payload, packed, checksum FROM revisions WHERE seq = ?1 AND n = ?2";
        let packed = self.one(sql, &[&int(meta.seq), &n], |row| {
            Ok(body::Packed {
                rest: row.get(0)?,
                content_type: row.get(1)?,
                payload: row.get(2)?,
                unpacked: row.get(3)?,
                checksum: row.get(4)?,
                ttl: None,
                enqueued_at: Time::ZERO,
            })
        })?;
        packed.map(|packed| packed.content(meta.id)).transpose()
    }

    fn revision_numbers(&self, meta: &MessageMeta) -> TableResult<Vec<u32>> {
        let sql = "SELECT n FROM revisions WHERE seq = ?1 ORDER BY n";
        self.all(sql, &[&int(meta.seq)], |row| row.get(0))
    }

    fn trace(&self, meta: &MessageMeta) -> TableResult<Option<String>> {
        let rest = self.one("SELECT rest FROM bodies WHERE seq = ?1", &[&int(meta.seq)], |row| row.get(0))?;
        Ok(body::trace(rest.flatten()))
    }

    fn failures(&self, meta: &MessageMeta) -> TableResult<Vec<Failure>> {
        let found = self.all(&statements::FAILURES, &[&int(meta.seq)], |row| Ok(rows::failure(row)))?;
        let broken = || damaged(format!("a failure of message {} is not what was written", meta.id));
        found.into_iter().collect::<Option<Vec<_>>>().ok_or_else(broken)
    }

    fn key(&self, queue: &QueueName, key: &str) -> TableResult<Option<KeyRow>> {
        let sql = "SELECT id, body_hash, created_at, ended FROM keys WHERE queue = ?1 AND key = ?2";
        let raw = self.one(sql, &[&queue.as_str(), &key], |row| {
            let id = row.get::<_, Cell<MessageId>>(0)?.0;
            let created_at = row.get::<_, Cell<Time>>(2)?.0;
            Ok((id, row.get::<_, [u8; 32]>(1)?, created_at, row.get::<_, Option<String>>(3)?))
        })?;
        raw.map(|(id, body_hash, created_at, ended)| {
            let ended = ended.map(|state| state.parse().map_err(damaged)).transpose()?;
            Ok(KeyRow { id, body_hash, created_at, ended })
        })
        .transpose()
    }

    fn letter(&self, id: MessageId) -> TableResult<Option<Letter>> {
        let found = self.all_letters("WHERE id = ?1", &[&id.to_bytes()])?.pop();
        found.map(|(_, letter)| letter).transpose()
    }

    fn candidates(&self, scan: &LetterScan<'_>) -> TableResult<Candidates> {
        self.find_candidates(scan)
    }

    fn letters_at(&self, deaths: &[u64]) -> TableResult<Vec<(u64, TableResult<Letter>)>> {
        self.letters_by_death(deaths)
    }

    fn text_state(&self, limit: usize) -> TableResult<Option<TextState>> {
        self.text_index(limit).map(Some)
    }

    fn survey(&self, scan: &LetterScan<'_>) -> TableResult<Option<Survey>> {
        self.exact_survey(scan)
    }

    fn letters_after(
        &self,
        death: u64,
        bound: u64,
        limit: usize,
    ) -> TableResult<Vec<(u64, TableResult<Letter>)>> {
        let rest = "WHERE death > ?1 AND death <= ?2 ORDER BY death LIMIT ?3";
        self.all_letters(rest, &[&int(death), &int(bound), &int(limit as u64)])
    }

    fn leasable_letters(&self, dlq: &QueueName, limit: usize, now: Time) -> TableResult<Vec<Letter>> {
        let rest = "WHERE status = 'pending' AND dlq = ?1 AND available_at <= ?2 \
                    AND (snoozed_until IS NULL OR snoozed_until <= ?2) AND (consumer_until IS NULL OR consumer_until <= ?2) ORDER BY death LIMIT ?3";
        self.undamaged_letters(rest, &[&dlq.as_str(), &now.as_millis()], limit)
    }

    fn quarantine_ended(&self, limit: usize, now: Time) -> TableResult<Vec<Letter>> {
        let rest = "WHERE status = 'quarantined' AND quarantined_until <= ?1 ORDER BY quarantined_until, id LIMIT ?2";
        self.undamaged_letters(rest, &[&now.as_millis()], limit)
    }

    fn letters_owing_replies(
        &self,
        queue: &QueueName,
        redrives: u32,
        limit: usize,
    ) -> TableResult<Vec<Letter>> {
        let rest = "WHERE owes_reply = 1 AND queue = ?1 AND redrives >= ?2 \
                    AND status NOT IN ('quarantined', 'retrying') ORDER BY redrives, death LIMIT ?3";
        self.undamaged_letters(rest, &[&queue.as_str(), &redrives], limit)
    }

    fn retention_ended(&self, limit: usize, now: Time) -> TableResult<Vec<Letter>> {
        let rest = "WHERE expires_at <= ?1 AND status <> 'retrying' ORDER BY expires_at, id LIMIT ?2";
        self.undamaged_letters(rest, &[&now.as_millis()], limit)
    }

    fn dlqs(&self) -> TableResult<DlqCounts> {
        let raw = self.all("SELECT dlq, status, count FROM drawers", &[], |row| {
            Ok((row.get::<_, Cell<QueueName>>(0)?.0, row.get::<_, String>(1)?, row.get(2)?))
        })?;
        raw.into_iter()
            .map(|(dlq, status, count)| Ok(((dlq, status.parse().map_err(damaged)?), count)))
            .collect()
    }

    fn open_letters(&self) -> TableResult<OpenCounts> {
        counters::open_letters(self)
    }

    fn leaf(&self, id: LeafId) -> TableResult<Option<Leaf>> {
        let sql = "SELECT id, group_id, template, error_type, code, frame, version, n, pinned, fixed FROM leaves WHERE id = ?1";
        self.one(sql, &[&rows::leaf(id)], leaf)
    }

    fn leaves(&self) -> TableResult<Vec<Leaf>> {
        let sql = "SELECT id, group_id, template, error_type, code, frame, version, n, pinned, fixed FROM leaves ORDER BY n, id";
        self.all(sql, &[], leaf)
    }

    fn breakers(&self) -> TableResult<BTreeMap<BreakerId, Breaker>> {
        let raw = self.all("SELECT queue, key, body FROM breakers", &[], |row| {
            Ok((row.get::<_, Cell<QueueName>>(0)?.0, row.get::<_, String>(1)?, row.get::<_, String>(2)?))
        })?;
        // An unreadable breaker starts afresh: that is better than no leases at all. `doctor` reports it.
        let read = |(queue, key, body): (QueueName, String, String)| {
            serde_json::from_str(&body).ok().map(|breaker| ((queue, key), breaker))
        };
        Ok(raw.into_iter().filter_map(read).collect())
    }

    fn group_history(&self, group: GroupId) -> TableResult<GroupHistory> {
        let sql = "SELECT body FROM standings WHERE group_id = ?1";
        let body = self.one(sql, &[&rows::leaf(group)], |row| row.get::<_, String>(0))?;
        body.map_or_else(|| Ok(GroupHistory::default()), |body| json(&body, "the history of a group"))
    }

    fn leaf_count(&self, key: &LeafKey) -> TableResult<LeafCount> {
        let sql = "SELECT open, total, failures, first_seen, last_seen FROM leaf_counts \
                   WHERE leaf = ?1 AND queue = ?2 AND kind = ?3";
        let count = self
            .one(sql, &[&rows::leaf(key.leaf), &key.queue.as_str(), &key.kind], |row| leaf_count(row, 0))?;
        Ok(count.unwrap_or_default())
    }

    fn leaf_counts(&self) -> TableResult<Vec<(LeafKey, LeafCount)>> {
        let sql = "SELECT leaf, queue, kind, open, total, failures, first_seen, last_seen FROM leaf_counts";
        self.all(sql, &[], keyed_count)
    }

    fn leaf_counts_of(&self, leaf: LeafId) -> TableResult<Vec<(LeafKey, LeafCount)>> {
        let sql = "SELECT leaf, queue, kind, open, total, failures, first_seen, last_seen FROM leaf_counts \
                   WHERE leaf = ?1";
        self.all(sql, &[&rows::leaf(leaf)], keyed_count)
    }

    fn leaves_of(&self, group: GroupId) -> TableResult<Vec<LeafId>> {
        let sql = "SELECT id FROM leaves WHERE group_id = ?1";
        self.all(sql, &[&rows::leaf(group)], |row| Ok(row.get::<_, Cell<LeafId>>(0)?.0))
    }

    fn deaths_of(&self, leaf: LeafId, limit: usize) -> TableResult<Vec<u64>> {
        let sql = "SELECT death FROM letters WHERE leaf = ?1 ORDER BY death DESC LIMIT ?2";
        self.all(sql, &[&rows::leaf(leaf), &int(limit as u64)], |row| row.get(0))
    }

    fn group_row(&self, id: GroupId) -> TableResult<Option<GroupRow>> {
        let sql = "SELECT body FROM group_rows WHERE id = ?1";
        let body = self.one(sql, &[&rows::leaf(id)], |row| row.get::<_, String>(0))?;
        body.map(|body| json(&body, "a group")).transpose()
    }

    fn group_rows(&self) -> TableResult<Vec<(GroupId, GroupRow)>> {
        let raw = self.all("SELECT id, body FROM group_rows", &[], |row| {
            Ok((row.get::<_, Cell<LeafId>>(0)?.0, row.get::<_, String>(1)?))
        })?;
        // An unreadable row does not hide the others; `doctor` reports it and can recount it.
        let read = |(id, body): (GroupId, String)| serde_json::from_str(&body).ok().map(|row| (id, row));
        Ok(raw.into_iter().filter_map(read).collect())
    }

    fn group_ids(&self) -> TableResult<Vec<GroupId>> {
        self.all("SELECT id FROM group_rows", &[], |row| Ok(row.get::<_, Cell<LeafId>>(0)?.0))
    }

    fn group_facts(&self, id: GroupId) -> TableResult<GroupActivity> {
        let sql = "SELECT body FROM group_facts WHERE id = ?1";
        let body = self.one(sql, &[&rows::leaf(id)], |row| row.get::<_, String>(0))?;
        body.map_or_else(|| Ok(GroupActivity::default()), |body| json(&body, "the activity of a group"))
    }

    fn markers_before(&self, n: u64, limit: usize) -> TableResult<Vec<Marker>> {
        let sql = "SELECT body FROM markers WHERE n < ?1 ORDER BY n DESC LIMIT ?2";
        let raw = self.all(sql, &[&int(n), &int(limit as u64)], |row| row.get::<_, String>(0))?;
        raw.into_iter().map(|body| json(&body, "a marker")).collect()
    }

    fn event_counters(&self) -> TableResult<Vec<(CounterKey, CounterTotals)>> {
        counters::event_counters(self)
    }

    fn oldest_open(&self) -> TableResult<Option<Time>> {
        counters::oldest_open(self)
    }

    fn ids_after(&self, of: IdKind, after: Option<MessageId>, limit: usize) -> TableResult<Vec<MessageId>> {
        // For letters and operations this reads nothing but the index on their ids.
        let sql = match of {
            IdKind::Message => "SELECT id FROM messages WHERE id > ?1 ORDER BY id LIMIT ?2",
            IdKind::Letter => "SELECT id FROM letters WHERE id > ?1 ORDER BY id LIMIT ?2",
            IdKind::Operation => "SELECT id FROM operations WHERE id > ?1 ORDER BY id LIMIT ?2",
            IdKind::Group => return Ok(Vec::new()),
        };
        let after = after.map_or_else(Vec::new, |id| id.to_bytes().to_vec());
        self.all(sql, &[&after, &int(limit as u64)], |row| Ok(row.get::<_, Cell<MessageId>>(0)?.0))
    }

    fn operation(&self, id: OperationId) -> TableResult<Option<Operation>> {
        let sql = "SELECT body FROM operations WHERE id = ?1";
        let body = self.one(sql, &[&id.to_bytes()], |row| row.get::<_, String>(0))?;
        body.map(|body| json(&body, "an operation")).transpose()
    }

    fn operations_before(&self, position: u64, limit: usize) -> TableResult<Vec<(u64, Operation)>> {
        let sql = "SELECT position, body FROM operations WHERE position < ?1 ORDER BY position DESC LIMIT ?2";
        let raw = self.all(sql, &[&int(position), &int(limit as u64)], |row| {
            Ok((row.get(0)?, row.get::<_, String>(1)?))
        })?;
        raw.into_iter().map(|(position, body)| Ok((position, json(&body, "an operation")?))).collect()
    }

    fn members_after(&self, id: OperationId, position: u64, limit: usize) -> TableResult<Vec<(u64, Member)>> {
        let rest = "position > ?2 ORDER BY position LIMIT ?3";
        self.all_members(rest, &[&id.to_bytes(), &int(position), &int(limit as u64)])
    }

    fn member_after(&self, id: OperationId, position: u64, count: usize) -> TableResult<Option<u64>> {
        let sql = "SELECT position FROM members WHERE operation = ?1 AND position > ?2 \
                   ORDER BY position LIMIT 1 OFFSET ?3";
        let skipped = int(count.saturating_sub(1) as u64);
        self.one(sql, &[&id.to_bytes(), &int(position), &skipped], |row| row.get(0))
    }

    fn members_with(
        &self,
        id: OperationId,
        outcome: MemberOutcome,
        (after, up_to): (u64, u64),
        limit: usize,
    ) -> TableResult<Vec<FrozenMember>> {
        let params: &[&dyn ToSql] =
            &[&id.to_bytes(), &outcome.name(), &int(after), &int(limit as u64), &int(up_to)];
        let mut members = self.all(&statements::MEMBERS_WITH_LETTERS, params, |row| {
            let at = rows::LETTER_COLUMNS;
            let member = Member {
                id: row.get::<_, Cell<MessageId>>(at + 1)?.0,
                version: row.get(at + 2)?,
                outcome,
                why: row.get(at + 3)?,
            };
            // A letter that cannot be read is treated as gone: its member is left alone, and `doctor` reports it.
            let letter = rows::letter(row).ok().and_then(|(_, letter)| letter.ok());
            let letter = letter.filter(|letter| letter.meta.id == member.id);
            Ok(FrozenMember { position: row.get(at)?, member, letter })
        })?;
        // They already arrive in this order, but SQL does not promise that a join keeps it.
        members.sort_by_key(|frozen| frozen.position);
        Ok(members)
    }

    fn member_counts(&self, id: OperationId) -> TableResult<Outcomes> {
        let sql = "SELECT outcome, count(*) FROM members WHERE operation = ?1 GROUP BY outcome";
        let raw =
            self.all(sql, &[&id.to_bytes()], |row| Ok((row.get::<_, String>(0)?, row.get::<_, u64>(1)?)))?;
        let mut counts = Outcomes::default();
        for (outcome, count) in raw {
            *counts.count_mut(outcome.parse().map_err(damaged)?) += count;
        }
        Ok(counts)
    }

    fn audit_before(&self, n: u64, limit: usize) -> TableResult<Vec<AuditRow>> {
        self.audit_rows("WHERE n < ?1 ORDER BY n DESC LIMIT ?2", &[&int(n), &int(limit as u64)])
    }

    fn audit_after(&self, n: u64, limit: usize) -> TableResult<Vec<AuditRow>> {
        self.audit_rows("WHERE n > ?1 ORDER BY n LIMIT ?2", &[&int(n), &int(limit as u64)])
    }

    fn kv(&self, namespace: &str, key: &str) -> TableResult<Option<KvEntry>> {
        kv::entry(self, namespace, key)
    }

    fn kv_range(&self, namespace: &str, from: Bound<&str>, limit: usize) -> TableResult<Vec<KvItem>> {
        kv::range(self, namespace, from, limit)
    }

    fn check(&self, deep: bool, verification: &mut Verification) -> TableResult<()> {
        super::check::check(self, deep, verification)
    }
}

fn leaf(row: &Row<'_>) -> rusqlite::Result<Leaf> {
    Ok(Leaf {
        id: row.get::<_, Cell<LeafId>>(0)?.0,
        group: row.get::<_, Cell<LeafId>>(1)?.0,
        template: row.get(2)?,
        error_type: row.get(3)?,
        code: row.get(4)?,
        frame: row.get(5)?,
        version: row.get(6)?,
        n: row.get(7)?,
        pinned: row.get::<_, Option<Cell<LeafId>>>(8)?.map(|cell| cell.0),
        fixed: row.get(9)?,
    })
}

fn keyed_count(row: &Row<'_>) -> rusqlite::Result<(LeafKey, LeafCount)> {
    let key = LeafKey {
        leaf: row.get::<_, Cell<LeafId>>(0)?.0,
        queue: row.get::<_, Cell<QueueName>>(1)?.0,
        kind: row.get(2)?,
    };
    Ok((key, leaf_count(row, 3)?))
}

fn leaf_count(row: &Row<'_>, at: usize) -> rusqlite::Result<LeafCount> {
    Ok(LeafCount {
        open: row.get(at)?,
        total: row.get(at + 1)?,
        failures: row.get(at + 2)?,
        first_seen: row.get::<_, Cell<Time>>(at + 3)?.0,
        last_seen: row.get::<_, Cell<Time>>(at + 4)?.0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rows::LIFECYCLE;

    #[test]
    fn the_columns_of_the_constant_statements_are_those_that_rows_are_read_by() {
        assert!(statements::LIVE_BY_ID.contains(&format!("{META}, {LIFECYCLE}, {}, checksum", rows::LEASE)));
    }
}
