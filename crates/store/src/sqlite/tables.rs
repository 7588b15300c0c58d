//! Writing the tables, inside the writer's transaction.

use super::checksums;
use super::errors::sql_result;
use super::reads::SqlTables;
use super::rows::{self, int, ms, text};
use crate::body::{self, Compression, Packed};
use crate::engine::tables::damaged;
use crate::engine::tables::{
    BreakerId, Frozen, Heads, KeyRow, Letter, LetterScan, Live, MemberUpdate, QueueRow, TableResult, Tables,
    TextBatch,
};
use redrive_core::audit::AuditRow;
use redrive_core::breaker::Breaker;
use redrive_core::dead_letter::Status;
use redrive_core::failure::Failure;
use redrive_core::group::{GroupActivity, GroupRow, Leaf, LeafCount, LeafKey, Marker};
use redrive_core::ids::{GroupId, MessageId, OperationId, QueueName};
use redrive_core::lifecycle::{Lifecycle, Phase};
use redrive_core::limits;
use redrive_core::message::{MessageLimits, MessageMeta, NewMessage, Payload};
use redrive_core::metrics::{CounterKey, CounterTotals, OpenKey};
use redrive_core::operation::{Member, Operation};
use redrive_core::poison::GroupHistory;
use redrive_core::revision::Content;
use redrive_core::store::KvEntry;
use redrive_core::time::{Span, Time};
use rusqlite::types::ToSql;
use sha2::{Digest as _, Sha256};

impl SqlTables {
    pub(super) fn run(&self, sql: &str, params: &[&dyn ToSql]) -> TableResult<usize> {
        self.writes.set(self.writes.get() + 1);
        let mut statement = sql_result(self.connection.prepare_cached(sql))?;
        sql_result(statement.execute(params))
    }

    /// Runs a statement that must change exactly one row; any other number means that two tables disagree (I13).
    pub(super) fn run_one(&self, what: &str, sql: &str, params: &[&dyn ToSql]) -> TableResult<()> {
        match self.run(sql, params)? {
            1 => Ok(()),
            n => Err(damaged(format!("changing {what} touched {n} rows instead of one"))),
        }
    }

    /// Stores a stack once, however many failures share it.
    fn store_stack(&self, stack: &str) -> TableResult<[u8; 32]> {
        let hash: [u8; 32] = Sha256::digest(stack).into();
        let sql = "INSERT INTO stacks(hash, body, uses, checksum) VALUES(?1, ?2, 1, ?3) \
                   ON CONFLICT(hash) DO UPDATE SET uses = uses + 1";
        self.run(sql, &[&hash, &stack, &checksums::of_stack(&hash, stack)])?;
        Ok(hash)
    }

    pub(super) fn insert_failure(&self, seq: i64, n: i64, failure: &Failure) -> TableResult<()> {
        let mut without_stack = failure.clone();
        let stack = without_stack.error.stack.take().map(|stack| self.store_stack(&stack)).transpose()?;
        let body = text(&without_stack)?;
        let checksum = checksums::of_failure(seq, n, &body, stack.as_ref().map(AsRef::as_ref));
        let sql = "INSERT INTO failures(seq, n, body, stack, checksum) VALUES(?1, ?2, ?3, ?4, ?5)";
        self.run_one("a failure", sql, &[&seq, &n, &body, &stack, &checksum])
    }

    fn delete_letter_row(&self, letter: &Letter) -> TableResult<()> {
        self.run_one("a dead letter", "DELETE FROM letters WHERE death = ?1", &[&int(letter.death)])
    }

    pub(super) fn release_stacks(&self, condition: &str, params: &[&dyn ToSql]) -> TableResult<()> {
        let sql = format!("SELECT stack FROM failures WHERE stack IS NOT NULL AND {condition}");
        for hash in self.all(&sql, params, |row| row.get::<_, [u8; 32]>(0))? {
            self.run("UPDATE stacks SET uses = uses - 1 WHERE hash = ?1", &[&hash])?;
            self.run("DELETE FROM stacks WHERE hash = ?1 AND uses <= 0", &[&hash])?;
        }
        Ok(())
    }
}

const ADD_LIVE: &str = "INSERT INTO messages(id, seq, queue, kind, priority, size, key, ordering_key, max_attempts, \
     ttl_ends_at, deadline, ready_at, attempts, deliveries, generation, given_back, failed, failing_since, last_delay, \
     first_received_at, updated_at, delayed, breaker, indicators, reply_to, progress, origin, checksum, phase) \
     VALUES(?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11,?12,?13,?14,?15,?16,?17,?18,?19,?20,?21,?22,?23,?24,?25,?26,?27,?28,0)";

/// Like [`ADD_LIVE`] for a message that is new, due and plain, as most are: all other columns have their defaults.
const ADD_PLAIN: &str = "INSERT INTO messages(id, seq, queue, kind, priority, size, ready_at, updated_at, checksum) VALUES(?1,?2,?3,?4,?5,?6,?7,?7,?8)";

fn is_plain(live: &Live) -> bool {
    let Live { meta, lifecycle } = live;
    let fresh = Lifecycle::new(lifecycle.updated_at, lifecycle.updated_at);
    let unkeyed = meta.key.is_none() && meta.ordering_key.is_none() && meta.breaker.is_none();
    let unanswered = meta.reply_to.is_none() && meta.origin.is_none();
    unkeyed && unanswered && meta.limits == MessageLimits::default() && *lifecycle == fresh
}

const PUT_LIFECYCLE: &str = "UPDATE messages SET ready_at=?2, attempts=?3, deliveries=?4, generation=?5, given_back=?6, \
     failed=?7, failing_since=?8, last_delay=?9, first_received_at=?10, updated_at=?11, delayed=?12, phase=?13, \
     secret=?14, worker=?15, granted_at=?16, lease_expires_at=?17, permit=?18, indicators=?19, progress=?20, checksum=?21 WHERE id=?1";

/// How many rows are kept in memory as they were written: about 20 MB at most.
const RECENT_MAX: usize = 65_536;

fn delayed(lifecycle: &Lifecycle) -> bool {
    lifecycle.phase == Phase::Waiting && lifecycle.ready_at > lifecycle.updated_at
}

pub(super) fn level(meta: &MessageMeta) -> i64 {
    int(meta.priority.level() as u64)
}

impl Tables for SqlTables {
    type Body = Packed;

    fn pack(new: &mut NewMessage) -> Packed {
        body::pack(new, Compression::Large)
    }

    type Payload = Packed;

    fn pack_payload(payload: Payload) -> Packed {
        body::pack_payload(payload, None, Compression::Large)
    }

    fn with_payload(body: Packed, payload: Packed) -> Packed {
        payload.with_rest(body.rest)
    }

    fn unpack(new: &NewMessage, body: &Packed) -> TableResult<NewMessage> {
        body.clone().put_back(new)
    }

    fn forget(&mut self) {
        self.recent.clear();
    }

    fn writes(&self) -> u64 {
        self.writes.get()
    }

    fn set_aside(&mut self, now: Time) -> TableResult<Vec<String>> {
        self.set_damaged_aside(now)
    }

    fn set_letter_aside(&mut self, id: MessageId, now: Time) -> TableResult<()> {
        self.move_to_damaged("letters", "id", &id.to_bytes(), now)
    }

    fn put_heads(&mut self, heads: &Heads) -> TableResult<()> {
        let sql = "UPDATE head SET seq = ?1, death = ?2, audit_n = ?3, audit_seal = ?4, messages_peak = ?5, \
                   letters_peak = ?6 WHERE one = 1";
        let params: &[&dyn ToSql] = &[
            &int(heads.seq),
            &int(heads.death),
            &int(heads.audit_n),
            &heads.audit_seal,
            &heads.messages_peak,
            &heads.letters_peak,
        ];
        self.run_one("the head", sql, params)
    }

    fn put_queue(&mut self, name: &QueueName, row: &QueueRow) -> TableResult<()> {
        let sql = "INSERT INTO queues VALUES(?1, ?2, ?3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0) \
                   ON CONFLICT(name) DO UPDATE SET policy = ?2, paused_by = ?3";
        self.run_one("a queue", sql, &[&name.as_str(), &text(row.policy.as_ref())?, &row.paused_by])?;
        self.put_queue_counts(name, row)
    }

    fn put_queue_counts(&mut self, name: &QueueName, row: &QueueRow) -> TableResult<()> {
        let c = &row.counts;
        let sql = "UPDATE queues SET enqueued=?2, waiting=?3, leased=?4, dead=?5, done=?6, cancelled=?7, \
                   expired=?8, purged=?9, bytes=?10, peak=?11, dead_peak=?12 WHERE name=?1";
        let params: &[&dyn ToSql] = &[
            &name.as_str(),
            &c.enqueued,
            &c.waiting,
            &c.leased,
            &c.dead,
            &c.done,
            &c.cancelled,
            &c.expired,
            &c.purged,
            &c.bytes,
            &row.peak,
            &row.dead_peak,
        ];
        self.run_one("a queue", sql, params)
    }

    fn put_body(&mut self, seq: u64, body: Packed, ttl: Option<Span>, enqueued_at: Time) -> TableResult<()> {
        let sql = "INSERT INTO bodies(seq, enqueued_at, ttl, rest, content_type, payload, packed, checksum) \
                   VALUES(?1,?2,?3,?4,?5,?6,?7,?8)";
        let params: &[&dyn ToSql] = &[
            &int(seq),
            &enqueued_at.as_millis(),
            &ttl.map(|t| int(t.as_millis())),
            &body.rest,
            &body.content_type,
            &body.payload,
            &body.unpacked,
            &body.checksum,
        ];
        self.run_one("a payload", sql, params)
    }

    fn drop_body(&mut self, meta: &MessageMeta) -> TableResult<()> {
        self.run_one("a payload", "DELETE FROM bodies WHERE seq = ?1", &[&int(meta.seq)])
    }

    fn replace_body(&mut self, meta: &MessageMeta, body: Packed) -> TableResult<()> {
        let sql = "UPDATE bodies SET rest = ?2, content_type = ?3, payload = ?4, packed = ?5, checksum = ?6 \
                   WHERE seq = ?1";
        let params: &[&dyn ToSql] =
            &[&int(meta.seq), &body.rest, &body.content_type, &body.payload, &body.unpacked, &body.checksum];
        self.run_one("a payload", sql, params)
    }

    fn add_revision(&mut self, meta: &MessageMeta, n: u32, content: &Content) -> TableResult<()> {
        let body = body::pack_content(content, Compression::Large);
        let sql = "INSERT INTO revisions(seq, n, rest, content_type, payload, packed, checksum) \
                   VALUES(?1,?2,?3,?4,?5,?6,?7)";
        let params: &[&dyn ToSql] = &[
            &int(meta.seq),
            &n,
            &body.rest,
            &body.content_type,
            &body.payload,
            &body.unpacked,
            &body.checksum,
        ];
        self.run_one("a revision", sql, params)
    }

    fn drop_revisions(&mut self, meta: &MessageMeta) -> TableResult<()> {
        self.run("DELETE FROM revisions WHERE seq = ?1", &[&int(meta.seq)])?;
        Ok(())
    }

    fn add_live(&mut self, live: &Live) -> TableResult<()> {
        let Live { meta, lifecycle } = live;
        if self.recent.len() < RECENT_MAX {
            self.recent.insert(meta.id, Box::new(live.clone()));
        }
        if is_plain(live) {
            let checksum = checksums::of_live(meta, lifecycle, None, None);
            let params: &[&dyn ToSql] = &[
                &meta.id.to_bytes(),
                &int(meta.seq),
                &meta.queue.as_str(),
                &meta.kind,
                &level(meta),
                &int(meta.size),
                &lifecycle.ready_at.as_millis(),
                &checksum,
            ];
            return self.run_one("a message", ADD_PLAIN, params);
        }
        let (indicators, progress) = (rows::indicators(lifecycle)?, rows::progress(lifecycle)?);
        let checksum = checksums::of_live(meta, lifecycle, indicators.as_deref(), progress.as_deref());
        let params: &[&dyn ToSql] = &[
            &meta.id.to_bytes(),
            &int(meta.seq),
            &meta.queue.as_str(),
            &meta.kind,
            &level(meta),
            &int(meta.size),
            &meta.key,
            &meta.ordering_key,
            &meta.limits.max_attempts,
            &ms(meta.limits.expires_at),
            &ms(meta.limits.deadline),
            &lifecycle.ready_at.as_millis(),
            &lifecycle.attempts,
            &lifecycle.deliveries,
            &lifecycle.generation,
            &lifecycle.given_back,
            &lifecycle.failed,
            &ms(lifecycle.failing_since),
            &lifecycle.last_delay.map(|d| int(d.as_millis())),
            &ms(lifecycle.first_received_at),
            &lifecycle.updated_at.as_millis(),
            &delayed(lifecycle),
            &meta.breaker,
            &indicators,
            &meta.reply_to.as_ref().map(QueueName::as_str),
            &progress,
            &meta.origin.as_ref().map(QueueName::as_str),
            &checksum,
        ];
        self.run_one("a message", ADD_LIVE, params)
    }

    fn put_lifecycle(&mut self, meta: &MessageMeta, lifecycle: &Lifecycle) -> TableResult<()> {
        let lease = lifecycle.lease();
        let (indicators, progress) = (rows::indicators(lifecycle)?, rows::progress(lifecycle)?);
        let checksum = checksums::of_live(meta, lifecycle, indicators.as_deref(), progress.as_deref());
        let params: &[&dyn ToSql] = &[
            &meta.id.to_bytes(),
            &lifecycle.ready_at.as_millis(),
            &lifecycle.attempts,
            &lifecycle.deliveries,
            &lifecycle.generation,
            &lifecycle.given_back,
            &lifecycle.failed,
            &ms(lifecycle.failing_since),
            &lifecycle.last_delay.map(|d| int(d.as_millis())),
            &ms(lifecycle.first_received_at),
            &lifecycle.updated_at.as_millis(),
            &delayed(lifecycle),
            &lease.is_some(),
            &lease.map(|l| l.secret.to_bytes()),
            &lease.map(|l| l.worker.as_str()),
            &ms(lease.map(|l| l.granted_at)),
            &ms(lease.map(|l| l.expires_at)),
            &lease.and_then(|l| l.permit).map(int),
            &indicators,
            &progress,
            &checksum,
        ];
        self.run_one("a message", PUT_LIFECYCLE, params)?;
        if let Some(live) = self.recent.get_mut(&meta.id) {
            live.lifecycle = lifecycle.clone();
        }
        Ok(())
    }

    fn drop_live(&mut self, meta: &MessageMeta) -> TableResult<()> {
        self.recent.remove(&meta.id);
        self.run_one("a message", "DELETE FROM messages WHERE id = ?1", &[&meta.id.to_bytes()])
    }

    fn add_failure(&mut self, meta: &MessageMeta, ordinal: u32, failure: &Failure) -> TableResult<()> {
        self.insert_failure(int(meta.seq), ordinal.into(), failure)
    }

    fn drop_failure(&mut self, meta: &MessageMeta, ordinal: u32) -> TableResult<()> {
        self.release_stacks("seq = ?1 AND n = ?2", &[&int(meta.seq), &ordinal])?;
        self.run("DELETE FROM failures WHERE seq = ?1 AND n = ?2", &[&int(meta.seq), &ordinal])?;
        Ok(())
    }

    fn drop_failures(&mut self, meta: &MessageMeta) -> TableResult<()> {
        self.release_stacks("seq = ?1", &[&int(meta.seq)])?;
        self.run("DELETE FROM failures WHERE seq = ?1", &[&int(meta.seq)])?;
        Ok(())
    }

    fn put_key(&mut self, queue: &QueueName, key: &str, row: &KeyRow) -> TableResult<()> {
        let sql = "INSERT OR REPLACE INTO keys(queue, key, id, body_hash, created_at, ended) \
                   VALUES(?1,?2,?3,?4,?5,?6)";
        let params: &[&dyn ToSql] = &[
            &queue.as_str(),
            &key,
            &row.id.to_bytes(),
            &row.body_hash,
            &row.created_at.as_millis(),
            &row.ended.map(redrive_core::lifecycle::State::name),
        ];
        self.run_one("a key", sql, params)
    }

    fn drop_keys(&mut self, before: Time, limit: usize) -> TableResult<u64> {
        let sql = "DELETE FROM keys WHERE (queue, key) IN \
                   (SELECT queue, key FROM keys WHERE created_at <= ?1 ORDER BY created_at LIMIT ?2)";
        let dropped = self.run(sql, &[&before.as_millis(), &int(limit as u64)])?;
        Ok(dropped as u64)
    }

    fn add_letter(&mut self, letter: &Letter) -> TableResult<()> {
        self.insert_letter(letter)
    }

    fn put_letter(&mut self, stored: &Letter, letter: &Letter) -> TableResult<()> {
        self.update_letter(stored, letter)
    }

    fn drop_letter(&mut self, letter: &Letter) -> TableResult<()> {
        self.note_text_gone(letter.death)?;
        self.delete_letter_row(letter)
    }

    fn text_changed(&mut self, id: MessageId) -> TableResult<()> {
        self.note_text_changed(id)
    }

    fn text_erased(&mut self, letter: &Letter) -> TableResult<()> {
        self.run("DELETE FROM letters_text WHERE rowid = ?1", &[&int(letter.death)]).map(|_| ())
    }

    fn put_text(&mut self, batch: &TextBatch) -> TableResult<u64> {
        self.write_text(batch)
    }

    fn put_dlq_count(&mut self, dlq: &QueueName, status: Status, count: i64) -> TableResult<()> {
        let sql = "INSERT OR REPLACE INTO drawers(dlq, status, count) VALUES(?1, ?2, ?3)";
        self.run_one("the counter of a dead letter queue", sql, &[&dlq.as_str(), &status.name(), &count])
    }

    fn put_leaf(&mut self, leaf: &Leaf) -> TableResult<()> {
        let sql = "INSERT OR REPLACE INTO leaves(id, group_id, template, error_type, code, frame, version, n, pinned, fixed) \
                   VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)";
        let params: &[&dyn ToSql] = &[
            &rows::leaf(leaf.id),
            &rows::leaf(leaf.group),
            &leaf.template,
            &leaf.error_type,
            &leaf.code,
            &leaf.frame,
            &leaf.version,
            &int(leaf.n),
            &leaf.pinned.map(rows::leaf),
            &leaf.fixed,
        ];
        self.run_one("a leaf", sql, params)
    }

    fn put_group_row(&mut self, id: GroupId, row: Option<&GroupRow>) -> TableResult<()> {
        match row {
            Some(row) => {
                let sql = "INSERT OR REPLACE INTO group_rows(id, body) VALUES(?1, ?2)";
                self.run_one("a group", sql, &[&rows::leaf(id), &text(row)?])
            }
            None => self.run("DELETE FROM group_rows WHERE id = ?1", &[&rows::leaf(id)]).map(|_| ()),
        }
    }

    fn put_group_facts(&mut self, id: GroupId, facts: Option<&GroupActivity>) -> TableResult<()> {
        match facts {
            Some(facts) => {
                let sql = "INSERT OR REPLACE INTO group_facts(id, body) VALUES(?1, ?2)";
                self.run_one("the activity of a group", sql, &[&rows::leaf(id), &text(facts)?])
            }
            None => self.run("DELETE FROM group_facts WHERE id = ?1", &[&rows::leaf(id)]).map(|_| ()),
        }
    }

    fn add_marker(&mut self, marker: &Marker) -> TableResult<()> {
        let sql = "INSERT INTO markers(n, body) VALUES(?1, ?2)";
        self.run_one("a marker", sql, &[&int(marker.n), &text(marker)?])?;
        let oldest = int(marker.n.saturating_sub(limits::MARKERS_MAX as u64));
        self.run("DELETE FROM markers WHERE n <= ?1", &[&oldest]).map(|_| ())
    }

    fn put_group_history(&mut self, group: GroupId, history: Option<&GroupHistory>) -> TableResult<()> {
        let group = rows::leaf(group);
        match history {
            Some(history) => {
                let sql = "INSERT OR REPLACE INTO standings(group_id, body) VALUES(?1, ?2)";
                self.run_one("the history of a group", sql, &[&group, &text(history)?])
            }
            None => self.run("DELETE FROM standings WHERE group_id = ?1", &[&group]).map(|_| ()),
        }
    }

    fn put_breaker(&mut self, (queue, key): &BreakerId, breaker: Option<&Breaker>) -> TableResult<()> {
        match breaker {
            Some(breaker) => {
                let sql = "INSERT OR REPLACE INTO breakers(queue, key, body) VALUES(?1, ?2, ?3)";
                self.run_one("a breaker", sql, &[&queue.as_str(), key, &text(breaker)?])
            }
            None => {
                let sql = "DELETE FROM breakers WHERE queue = ?1 AND key = ?2";
                self.run(sql, &[&queue.as_str(), key]).map(|_| ())
            }
        }
    }

    fn put_leaf_count(&mut self, key: &LeafKey, count: &LeafCount) -> TableResult<()> {
        let sql = "INSERT OR REPLACE INTO leaf_counts VALUES(?1,?2,?3,?4,?5,?6,?7,?8)";
        let params: &[&dyn ToSql] = &[
            &rows::leaf(key.leaf),
            &key.queue.as_str(),
            &key.kind,
            &count.open,
            &count.total,
            &count.failures,
            &count.first_seen.as_millis(),
            &count.last_seen.as_millis(),
        ];
        self.run_one("a leaf's counter", sql, params)
    }

    fn put_open_letters(&mut self, key: &OpenKey, open: i64) -> TableResult<()> {
        let OpenKey { queue, kind, priority } = key;
        let level = int(priority.level() as u64);
        let sql = "INSERT OR REPLACE INTO open_letters VALUES(?1, ?2, ?3, ?4)";
        self.run_one("a counter of letters", sql, &[&queue.as_str(), kind, &level, &open])
    }

    fn put_event_counter(&mut self, key: &CounterKey, totals: &CounterTotals) -> TableResult<()> {
        let sql = "INSERT OR REPLACE INTO tallies VALUES(?1,?2,?3,?4,?5,?6,?7)";
        let params: &[&dyn ToSql] = &[
            &key.event.key(),
            &key.queue.as_str(),
            &key.label,
            &int(totals.count),
            &int(totals.sum),
            &int(totals.max),
            &totals.since.as_millis(),
        ];
        self.run_one("a counter", sql, params)
    }

    fn add_operation(&mut self, operation: &Operation) -> TableResult<()> {
        let sql = "INSERT INTO operations(id, body) VALUES(?1, ?2)";
        self.run_one("an operation", sql, &[&operation.id.to_bytes(), &text(operation)?])
    }

    fn put_operation(&mut self, operation: &Operation) -> TableResult<()> {
        let sql = "UPDATE operations SET body = ?2 WHERE id = ?1";
        self.run_one("an operation", sql, &[&operation.id.to_bytes(), &text(operation)?])
    }

    fn add_member(&mut self, id: OperationId, position: u64, member: &Member) -> TableResult<()> {
        let sql = "INSERT INTO members(operation, position, id, version, outcome) VALUES(?1, ?2, ?3, ?4, ?5)";
        let params: &[&dyn ToSql] = &[
            &id.to_bytes(),
            &int(position),
            &member.id.to_bytes(),
            &int(member.version),
            &member.outcome.name(),
        ];
        self.run_one("a member of an operation", sql, params)
    }

    fn freeze(&mut self, id: OperationId, scan: &LetterScan<'_>) -> TableResult<Option<Frozen>> {
        self.copy_members(id, scan)
    }

    fn put_member(&mut self, id: OperationId, position: u64, update: &MemberUpdate) -> TableResult<()> {
        let sql = "UPDATE members SET outcome = ?3, version = coalesce(?4, version), why = ?5 \
                   WHERE operation = ?1 AND position = ?2";
        let (outcome, version) = (update.outcome.name(), update.version.map(int));
        let params: &[&dyn ToSql] = &[&id.to_bytes(), &int(position), &outcome, &version, &update.why];
        self.run_one("a member of an operation", sql, params)
    }

    fn drop_audit(&mut self, up_to: u64) -> TableResult<()> {
        self.run("DELETE FROM audit WHERE n <= ?1", &[&int(up_to)]).map(|_| ())
    }

    fn add_audit(&mut self, row: &AuditRow) -> TableResult<()> {
        let sql = "INSERT INTO audit(n, entry, seal) VALUES(?1, ?2, ?3)";
        self.run_one("the audit trail", sql, &[&int(row.n), &text(&row.entry)?, &row.seal])
    }

    fn put_kv(&mut self, namespace: &str, key: &str, entry: Option<&KvEntry>) -> TableResult<()> {
        match entry {
            Some(entry) => {
                let sql = "INSERT OR REPLACE INTO kv(namespace, key, value, version) VALUES(?1, ?2, ?3, ?4)";
                self.run_one("a value", sql, &[&namespace, &key, &entry.value, &int(entry.version)])
            }
            None => {
                self.run("DELETE FROM kv WHERE namespace = ?1 AND key = ?2", &[&namespace, &key])?;
                Ok(())
            }
        }
    }

    fn repair(&mut self, deep: bool) -> TableResult<u64> {
        super::check::repair(self, deep)
    }
}
