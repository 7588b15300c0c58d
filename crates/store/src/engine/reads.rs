//! Read operations, written once over [`Reads`]: pages, single items, statistics and verification. They run on any
//! connection that can read.

use super::survey;
use super::tables::{KeyRow, Letter, Live, Reads, TableResult, unless_damaged};
use crate::metrics;
use redrive_core::audit::{AuditCheck, AuditKey, AuditReport, AuditRow, ORIGIN};
use redrive_core::dead_letter::{DeadLetter, Status};
use redrive_core::error::{Refusal, StoreErrorKind, StoreResult};
use redrive_core::filter::{Filter, LetterParts};
use redrive_core::ids::{GroupId, MessageId, OperationId, QueueName};
use redrive_core::invariants::Census;
use redrive_core::lifecycle::State;
use redrive_core::limits;
use redrive_core::message::{Envelope, Message, MessageMeta, Payload, StoredMessage};
use redrive_core::metrics::{Counters, QueueStats, Stats};
use redrive_core::operation::{Member, Operation};
use redrive_core::policy::QueuePolicy;
use redrive_core::query::{Cursor, Page, PageRequest, Query};
use redrive_core::revision::{Content, Revision};
use redrive_core::store::{Dlq, KeyState, Queue};
use redrive_core::time::Time;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

/// Rows read at once while a page is filled.
const CHUNK: usize = 512;

/// The policies of all queues.
pub(super) type Policies = BTreeMap<QueueName, Arc<QueuePolicy>>;

pub(super) fn policies(tables: &dyn Reads) -> TableResult<Policies> {
    Ok(tables.queues()?.into_iter().map(|(name, row)| (name, row.policy)).collect())
}

fn view(tables: &dyn Reads, policy: &QueuePolicy, live: Live, now: Time) -> TableResult<Message> {
    let envelope = tables.envelope(&live.meta)?;
    Ok(StoredMessage { envelope, lifecycle: live.lifecycle }.view(policy, now))
}

/// Live messages that match, in id order.
pub(crate) fn messages(tables: &dyn Reads, query: &Query, now: Time) -> StoreResult<Page<Message>> {
    let policies = policies(tables)?;
    let limit = query.page.limit();
    let with_failures = query.filter.needs_failures();
    let mut after = query.page.id("m")?;
    let until = Some(Instant::now() + limits::PAGE_TIME_MAX);
    let (mut items, mut damaged) = (Vec::new(), Vec::new());
    let (mut looked_at, mut bytes) = (0, 0);
    let open = |live: Live| -> TableResult<Message> {
        let policy = policies.get(&live.meta.queue).cloned().unwrap_or_default();
        let failures = if with_failures { tables.failures(&live.meta)? } else { Vec::new() };
        Ok(Message { failures, ..view(tables, &policy, live, now)? })
    };
    loop {
        let chunk = tables.live_after(after, CHUNK)?;
        let ended = chunk.len() < CHUNK;
        let mut left = chunk.len();
        for (id, live) in chunk {
            left -= 1;
            looked_at += 1;
            after = Some(id);
            if let Some(mut message) = or_report_damaged(live.and_then(open), &mut damaged)?
                && query.filter.matches_message(&message, now)
            {
                message.failures.clear();
                bytes += message.envelope.size();
                items.push(message);
            }
            let shown = items.len() + damaged.len();
            let looked_enough =
                looked_at >= limits::PAGE_SCAN_MAX || survey::is_fruitless(looked_at, shown, until);
            let full = shown >= limit || bytes >= limits::PAGE_BYTES_MAX || looked_enough;
            if full {
                let more = left > 0 || (!ended && !tables.live_after(after, 1)?.is_empty());
                return Ok(Page { items, next: more.then(|| Cursor::after_id("m", id)), damaged });
            }
        }
        if ended {
            return Ok(Page { damaged, ..Page::last(items) });
        }
    }
}

/// Returns `None` for a damaged record and adds it to the page's list of damaged records.
pub(super) fn or_report_damaged<T>(
    read: TableResult<T>,
    damaged: &mut Vec<String>,
) -> TableResult<Option<T>> {
    match read {
        Err(error) if error.kind == StoreErrorKind::Damaged => {
            damaged.push(error.text);
            Ok(None)
        }
        read => read.map(Some),
    }
}

/// One live message with its failures.
pub(crate) fn message(tables: &dyn Reads, id: MessageId, now: Time) -> StoreResult<Message> {
    let live = tables.live(id)?.ok_or(Refusal::NoSuchMessage { id })?;
    let policy = policies(tables)?.remove(&live.meta.queue).unwrap_or_default();
    let failures = tables.failures(&live.meta)?;
    Ok(Message { failures, ..view(tables, &policy, live, now)? })
}

/// The state of the message that holds an idempotency key.
pub(crate) fn key_state(tables: &dyn Reads, row: &KeyRow, now: Time) -> TableResult<State> {
    if let Some(live) = tables.live(row.id)? {
        return Ok(live.lifecycle.state(now));
    }
    // A reopened letter is dead again, whatever became of it before, and a purged one is gone until it is restored.
    Ok(match tables.letter(row.id)?.map(|letter| letter.record.status) {
        Some(Status::Purged) => State::Purged,
        Some(Status::Resolved | Status::Abandoned) | None => row.ended.unwrap_or(State::Dead),
        Some(Status::Pending | Status::Retrying | Status::Review | Status::Quarantined) => State::Dead,
    })
}

/// The message that holds an idempotency key and its state, if the key is still remembered.
pub(crate) fn key(
    tables: &dyn Reads,
    queue: &QueueName,
    key: &str,
    now: Time,
) -> StoreResult<Option<KeyState>> {
    let Some(row) = tables.key(queue, key)? else { return Ok(None) };
    if row.created_at.plus(limits::KEY_WINDOW) <= now {
        return Ok(None);
    }
    Ok(Some(KeyState { id: row.id, state: key_state(tables, &row, now)? }))
}

/// Every queue.
pub(crate) fn queues(tables: &dyn Reads, now: Time) -> StoreResult<Vec<Queue>> {
    let mut all = Vec::new();
    for (name, row) in tables.queues()? {
        let scheduled = tables.scheduled(&name, now)?;
        let waiting = u64::try_from(row.counts.waiting).unwrap_or(0);
        all.push(Queue {
            paused: row.paused_by.is_some(),
            paused_by: row.paused_by,
            scheduled,
            ready: waiting.saturating_sub(scheduled),
            counts: row.counts,
            policy: Arc::unwrap_or_clone(row.policy),
            name,
        });
    }
    Ok(all)
}

/// One queue.
pub(crate) fn queue(tables: &dyn Reads, name: &QueueName, now: Time) -> StoreResult<Queue> {
    let found = queues(tables, now)?.into_iter().find(|q| q.name == *name);
    found.ok_or_else(|| Refusal::NoSuchQueue { queue: name.clone() }.into())
}

/// Assembles a letter with the parts of its body and failures that are needed; the others stay empty. While the
/// letter is being retried, the lifecycle is the live message's.
pub(super) fn assemble_with(
    tables: &dyn Reads,
    policy: &QueuePolicy,
    letter: &Letter,
    needs: LetterParts,
    now: Time,
) -> TableResult<DeadLetter> {
    let envelope =
        if needs.body { tables.envelope(&letter.meta)? } else { envelope_without_body(&letter.meta) };
    let lifecycle = if letter.record.status == Status::Retrying {
        tables.live(letter.meta.id)?.map(|live| live.lifecycle)
    } else {
        None
    };
    let record = StoredMessage { envelope, lifecycle: lifecycle.unwrap_or_else(|| letter.lifecycle.clone()) };
    let message = record.view(policy, now);
    let group = tables.leaf(letter.record.leaf)?.map_or(letter.record.leaf, |leaf| leaf.group);
    let failures = if needs.failures { tables.failures(&letter.meta)? } else { Vec::new() };
    Ok(DeadLetter::assemble(message, letter.record.clone(), group, letter.death, failures))
}

/// An envelope with what is in the message's row and nothing of its body.
fn envelope_without_body(meta: &MessageMeta) -> Envelope {
    Envelope {
        id: meta.id,
        seq: meta.seq,
        queue: meta.queue.clone(),
        origin: meta.origin.clone(),
        kind: meta.kind.clone(),
        priority: meta.priority,
        payload: Payload::default(),
        headers: BTreeMap::new(),
        tags: BTreeSet::new(),
        key: meta.key.clone(),
        ordering_key: meta.ordering_key.clone(),
        reply_to: meta.reply_to.clone(),
        trace: None,
        context: None,
        max_attempts: meta.limits.max_attempts,
        delay: None,
        ttl: None,
        deadline: meta.limits.deadline,
        enqueued_by: None,
        enqueued_at: Time::ZERO,
    }
}

/// The filter with each group replaced by the group it was merged into.
pub(super) fn with_merged_groups(tables: &dyn Reads, filter: &Filter) -> TableResult<Filter> {
    let mut names: BTreeMap<GroupId, GroupId> = BTreeMap::new();
    for id in filter.groups() {
        names.extend(tables.leaf(id)?.map(|leaf| (id, leaf.group)));
    }
    Ok(filter.with_groups(|id| names.get(&id).copied().unwrap_or(id)))
}

/// One letter.
pub(crate) fn letter(tables: &dyn Reads, id: MessageId, now: Time) -> StoreResult<DeadLetter> {
    let letter = tables.letter(id)?.ok_or(Refusal::NoSuchLetter { id })?;
    let policy = policies(tables)?.remove(&letter.meta.queue).unwrap_or_default();
    Ok(assemble_with(tables, &policy, &letter, LetterParts { body: true, failures: true }, now)?)
}

/// Every content that a letter has had.
pub(crate) fn revisions(tables: &dyn Reads, id: MessageId) -> StoreResult<Vec<Revision>> {
    let letter = tables.letter(id)?.ok_or(Refusal::NoSuchLetter { id })?;
    let envelope = tables.envelope(&letter.meta)?;
    Ok(Revision::list(&letter.record, &envelope, earlier_contents(tables, &letter)?))
}

/// The earlier contents of a letter, by revision number.
pub(super) fn earlier_contents(tables: &dyn Reads, letter: &Letter) -> TableResult<Vec<(u32, Content)>> {
    let mut kept = Vec::new();
    for n in tables.revision_numbers(&letter.meta)? {
        kept.extend(tables.revision(&letter.meta, n)?.map(|content| (n, content)));
    }
    Ok(kept)
}

/// All counters, and the current state of the queues.
pub(crate) fn stats(tables: &dyn Reads, now: Time) -> StoreResult<Stats> {
    let counted = tables.open_letters()?;
    let open = counted.by_queue();
    let heads = tables.heads()?;
    let number = |n: i64| u64::try_from(n).unwrap_or(0);
    let queues = tables.queues()?.into_iter().map(|(queue, row)| QueueStats {
        waiting: number(row.counts.waiting),
        leased: number(row.counts.leased),
        bytes: number(row.counts.bytes),
        letters_open: number(open.get(&queue).copied().unwrap_or(0)),
        peak: number(row.peak),
        letters_peak: number(row.dead_peak),
        capacity: row.policy.max_messages,
        queue,
    });
    Ok(Stats {
        now,
        queues: queues.collect(),
        counters: Counters::new(tables.event_counters()?).views(),
        open: counted.list(),
        dlqs: dlqs(tables)?,
        messages_peak: number(heads.messages_peak),
        letters_peak: number(heads.letters_peak),
        oldest_open_at: tables.oldest_open()?,
        process: metrics::process().snapshot(now),
    })
}

/// Every dead letter queue.
pub(crate) fn dlqs(tables: &dyn Reads) -> StoreResult<Vec<Dlq>> {
    let mut all: BTreeMap<QueueName, Dlq> = BTreeMap::new();
    for ((dlq, status), count) in tables.dlqs()? {
        let dlq = all.entry(dlq.clone()).or_insert_with(|| Dlq { dlq, by_status: BTreeMap::new() });
        if count > 0 {
            dlq.by_status.insert(status, u64::try_from(count).unwrap_or(0));
        }
    }
    Ok(all.into_values().collect())
}

/// Makes a page from rows that include one more than the page holds, which tells whether there is a next page.
fn page_of<R>(mut rows: Vec<(u64, R)>, list: &str, limit: usize) -> Page<R> {
    let more = rows.len() > limit;
    rows.truncate(limit);
    let next = rows.last().filter(|_| more).map(|(position, _)| Cursor::after(list, *position));
    Page { next, ..Page::last(rows.into_iter().map(|(_, row)| row).collect()) }
}

/// Operations, latest first.
pub(crate) fn operations(tables: &dyn Reads, page: &PageRequest) -> StoreResult<Page<Operation>> {
    let before = page.position("o")?.unwrap_or(u64::MAX);
    Ok(page_of(tables.operations_before(before, page.limit() + 1)?, "o", page.limit()))
}

/// One operation.
pub(crate) fn operation(tables: &dyn Reads, id: OperationId) -> StoreResult<Operation> {
    tables.operation(id)?.ok_or_else(|| Refusal::NoSuchOperation { id }.into())
}

/// The members of an operation.
pub(crate) fn members(tables: &dyn Reads, id: OperationId, page: &PageRequest) -> StoreResult<Page<Member>> {
    operation(tables, id)?;
    let after = page.position("p")?.unwrap_or(0);
    Ok(page_of(tables.members_after(id, after, page.limit() + 1)?, "p", page.limit()))
}

/// The audit trail, latest first.
pub(crate) fn audit(tables: &dyn Reads, page: &PageRequest) -> StoreResult<Page<AuditRow>> {
    let before = page.position("a")?.unwrap_or(u64::MAX);
    let rows = tables.audit_before(before, page.limit() + 1)?;
    Ok(page_of(rows.into_iter().map(|row| (row.n, row)).collect(), "a", page.limit()))
}

/// Checks the whole chain of the audit trail.
pub(crate) fn audit_verify(
    tables: &dyn Reads,
    key: &AuditKey,
    head: Option<&str>,
) -> StoreResult<AuditReport> {
    let anchor = super::trim::anchor(tables)?;
    let mut check = AuditCheck::new(key, anchor.as_ref());
    let mut after = anchor.as_ref().map_or(0, |anchor| anchor.n);
    let begins = anchor.as_ref().map_or(ORIGIN, |anchor| &anchor.seal);
    let mut seen = head.map(|h| h == begins);
    loop {
        let rows = tables.audit_after(after, CHUNK)?;
        let Some(last) = rows.last() else { break };
        after = last.n;
        for row in &rows {
            check.row(row);
            if head == Some(row.seal.as_str()) {
                seen = Some(true);
            }
        }
    }
    let stored = tables.heads()?;
    Ok(check.finish((stored.audit_n, &stored.audit_seal), seen))
}

/// Recounts everything and compares it with what is stored. Returns the census, which repairs need too.
pub(crate) fn verify(tables: &dyn Reads, key: &AuditKey, deep: bool) -> StoreResult<Census> {
    let mut census = Census::default();
    let mut after = None;
    loop {
        let page = tables.live_after(after, CHUNK)?;
        let Some((last, _)) = page.last() else { break };
        after = Some(*last);
        for (id, live) in page {
            match unless_damaged(live)? {
                Some(live) => census.message(&live.meta, &live.lifecycle),
                None => census.damaged(format!("the record of message {id} is not what was written")),
            }
        }
    }
    let mut after = 0;
    loop {
        let page = tables.letters_after(after, u64::MAX, CHUNK)?;
        let Some((last, _)) = page.last() else { break };
        after = *last;
        for (death, letter) in page {
            let Some(letter) = unless_damaged(letter)? else {
                let what = format!("the record of the dead letter of death {death} is not what was written");
                census.damaged(what);
                continue;
            };
            census.letter(&letter.meta, &letter.record);
            if letter.record.body_hash.is_some() {
                census.lineage(letter.meta.id, &letter.record, &tables.revision_numbers(&letter.meta)?);
            }
        }
    }
    let mut before = u64::MAX;
    loop {
        let page = tables.operations_before(before, CHUNK)?;
        let Some((last, _)) = page.last() else { break };
        before = *last;
        for (_, operation) in page {
            census.operation(&operation, tables.member_counts(operation.id)?);
        }
    }
    let shown = tables.queues()?.into_iter().map(|(name, row)| (name, row.counts)).collect();
    census.compare(&shown, &tables.leaf_counts()?);
    census.compare_open(&tables.open_letters()?);
    super::group_reads::check(tables, &mut census)?;
    let audit = audit_verify(tables, key, None)?;
    census.verification.audit_rows = audit.rows;
    if let Some(broken) = audit.broken {
        census.trail_mendable = audit.mendable;
        census.verification.find("I48", broken, audit.mendable);
    }
    tables.check(deep, &mut census.verification)?;
    Ok(census)
}
