//! Finding letters by a filter: for pages, counts and frozen members. The tables return candidates, using an index
//! and conditions where they can. A letter is read only as far as the filter needs, and the filter is evaluated on
//! it unless the tables know the answer exactly. Every scan for a list is bounded in rows and in time.

use super::Engine;
use super::reads::{Policies, assemble_with, or_report_damaged, policies, with_merged_groups};
use super::tables::{Candidates, Frozen, Letter, LetterScan, Reads, TableResult, Tables, unless_damaged};
use redrive_core::dead_letter::{DeadLetter, Status};
use redrive_core::error::StoreResult;
use redrive_core::filter::{Filter, LetterParts};
use redrive_core::ids::{GroupId, LeafId, OperationId};
use redrive_core::limits;
use redrive_core::operation::Member;
use redrive_core::policy::QueuePolicy;
use redrive_core::query::{Cursor, Page, Query};
use redrive_core::survey::{LetterFacts, Survey};
use redrive_core::time::Time;
use std::collections::HashMap;
use std::time::Instant;

/// Candidates requested at once when each of them has to be read.
const CHUNK: usize = 512;

/// All parts of a letter.
const WHOLE: LetterParts = LetterParts { body: true, failures: true };

/// Assembles letters and evaluates the filter on them. Holds what is read once for many letters.
struct LetterReader<'a> {
    tables: &'a dyn Reads,
    policies: Policies,
    needs: LetterParts,
    now: Time,
}

impl<'a> LetterReader<'a> {
    fn new(tables: &'a dyn Reads, filter: &Filter, now: Time) -> TableResult<Self> {
        Ok(Self { tables, policies: policies(tables)?, needs: filter.letter_parts(), now })
    }

    fn open(&self, letter: &Letter, needs: LetterParts) -> TableResult<DeadLetter> {
        let standard = QueuePolicy::default();
        let policy = self.policies.get(&letter.meta.queue).map_or(&standard, AsRef::as_ref);
        assemble_with(self.tables, policy, letter, needs, self.now)
    }

    /// Whether the filter matches, reading no more of the letter than the filter needs.
    fn matches(&self, filter: &Filter, letter: &Letter) -> TableResult<bool> {
        Ok(filter.matches_letter(&self.open(letter, self.needs)?, self.now))
    }

    /// The whole letter, if the filter matches. With `exact`, it is known to match.
    fn open_match(&self, filter: &Filter, letter: &Letter, exact: bool) -> TableResult<Option<DeadLetter>> {
        let wanted = exact || self.matches(filter, letter)?;
        if wanted { self.open(letter, WHOLE).map(Some) } else { Ok(None) }
    }
}

/// Letters that match, latest death first. The page ends early,
/// with a cursor, when the limit on rows or time is reached.
pub(crate) fn letters(tables: &dyn Reads, query: &Query, now: Time) -> StoreResult<Page<DeadLetter>> {
    letters_until(tables, query, Instant::now() + limits::PAGE_TIME_MAX, now)
}

/// Like [`letters`], with the instant at which a search without matches ends.
fn letters_until(
    tables: &dyn Reads,
    query: &Query,
    until: Instant,
    now: Time,
) -> StoreResult<Page<DeadLetter>> {
    let until = Some(until);
    let filter = with_merged_groups(tables, &query.filter)?;
    let reader = LetterReader::new(tables, &filter, now)?;
    let limit = query.page.limit();
    let mut before = query.page.position("l")?.unwrap_or(u64::MAX);
    let (mut items, mut damaged, mut bytes, mut looked_at) = (Vec::new(), Vec::new(), 0, 0);
    let page = |items, damaged, next: Option<u64>| {
        let next = next.map(|death| Cursor::after("l", death));
        Page { items, next, damaged }
    };
    loop {
        let scan = LetterScan {
            filter: &filter,
            statuses: None,
            after: 0,
            up_to: before.saturating_sub(1),
            latest_first: true,
            candidates_max: (limit.saturating_sub(items.len() + damaged.len()) + 1).min(CHUNK),
            rows_max: limits::PAGE_SCAN_MAX.saturating_sub(looked_at).max(1),
            until,
            now,
        };
        let found = tables.candidates(&scan)?;
        looked_at += found.looked_at;
        for (death, letter) in tables.letters_at(&found.deaths)? {
            if items.len() + damaged.len() >= limit || bytes >= limits::PAGE_BYTES_MAX {
                return Ok(page(items, damaged, Some(before)));
            }
            before = death;
            let opened = letter.and_then(|letter| reader.open_match(&filter, &letter, found.exact));
            if let Some(letter) = or_report_damaged(opened, &mut damaged)?.flatten() {
                bytes += letter.message.envelope.size();
                items.push(letter);
            }
            if is_fruitless(looked_at, items.len() + damaged.len(), until) && !found.exact {
                return Ok(page(items, damaged, Some(before)));
            }
        }
        if found.ended {
            return Ok(page(items, damaged, None));
        }
        before = found.reached;
        if looked_at >= limits::PAGE_SCAN_MAX || is_fruitless(looked_at, items.len() + damaged.len(), until) {
            return Ok(page(items, damaged, Some(before)));
        }
    }
}

/// Whether the time is up and was mostly spent on letters that did not match.
pub(super) fn is_fruitless(looked_at: usize, found: usize, until: Option<Instant>) -> bool {
    let misses = looked_at.saturating_sub(found);
    misses >= limits::PAGE_MISSES_MIN && until.is_some_and(|until| Instant::now() >= until)
}

/// Summarises the matching letters that died up to the bound. Exact, however long it takes.
pub(crate) fn survey(
    tables: &dyn Reads,
    filter: &Filter,
    statuses: Option<&[Status]>,
    bound: u64,
    now: Time,
) -> TableResult<Survey> {
    let filter = with_merged_groups(tables, filter)?;
    let scan = full_scan(&filter, statuses, bound, now);
    if let Some(survey) = tables.survey(&scan)? {
        return Ok(survey);
    }
    let mut groups: HashMap<LeafId, GroupId> = HashMap::new();
    let mut survey = Survey::default();
    for_each_match(tables, scan, |letter| {
        let leaf = letter.record.leaf;
        let group = match groups.get(&leaf) {
            Some(group) => *group,
            None => tables.leaf(leaf)?.map_or(leaf, |leaf| leaf.group),
        };
        groups.insert(leaf, group);
        survey.add(&facts(letter, group), now);
        Ok(())
    })?;
    Ok(survey)
}

/// Calls `show` for every matching letter that died up to the bound, oldest death first.
pub(crate) fn for_each_letter(
    tables: &dyn Reads,
    filter: &Filter,
    statuses: Option<&[Status]>,
    bound: u64,
    now: Time,
    show: impl FnMut(&Letter) -> TableResult<()>,
) -> TableResult<()> {
    let filter = with_merged_groups(tables, filter)?;
    for_each_match(tables, full_scan(&filter, statuses, bound, now), show)
}

fn full_scan<'a>(
    filter: &'a Filter,
    statuses: Option<&'a [Status]>,
    up_to: u64,
    now: Time,
) -> LetterScan<'a> {
    let (after, latest_first, until) = (0, false, None);
    LetterScan {
        filter,
        statuses,
        after,
        up_to,
        latest_first,
        candidates_max: CHUNK,
        rows_max: usize::MAX,
        until,
        now,
    }
}

fn for_each_match(
    tables: &dyn Reads,
    mut scan: LetterScan<'_>,
    mut show: impl FnMut(&Letter) -> TableResult<()>,
) -> TableResult<()> {
    let reader = LetterReader::new(tables, scan.filter, scan.now)?;
    loop {
        let found = tables.candidates(&scan)?;
        for (_, letter) in tables.letters_at(&found.deaths)? {
            // An operation skips letters that cannot be read, so they do not count here either; lists report them.
            let Some(letter) = unless_damaged(letter)? else { continue };
            if found.exact || unless_damaged(reader.matches(scan.filter, &letter))? == Some(true) {
                show(&letter)?;
            }
        }
        if found.ended {
            return Ok(());
        }
        scan.after = found.reached;
    }
}

fn facts(letter: &Letter, group: GroupId) -> LetterFacts<'_> {
    LetterFacts {
        group,
        queue: &letter.meta.queue,
        status: letter.record.status,
        reason: letter.record.reason,
        dead_at: letter.record.dead_at,
        redrives: letter.record.redrives,
        bytes: letter.meta.size,
        keyed: letter.meta.key.is_some(),
        ordered: letter.meta.ordering_key.is_some(),
    }
}

/// Up to `count` matching letters, latest death first.
pub(crate) fn sample(
    tables: &dyn Reads,
    filter: &Filter,
    statuses: Option<&[Status]>,
    bound: u64,
    count: usize,
    now: Time,
) -> TableResult<Vec<DeadLetter>> {
    let filter = with_merged_groups(tables, filter)?;
    let reader = LetterReader::new(tables, &filter, now)?;
    let (mut shown, mut up_to) = (Vec::new(), bound);
    while shown.len() < count {
        let scan = LetterScan {
            filter: &filter,
            statuses,
            after: 0,
            up_to,
            latest_first: true,
            candidates_max: (count - shown.len()).min(CHUNK),
            rows_max: usize::MAX,
            until: None,
            now,
        };
        let found = tables.candidates(&scan)?;
        for (_, letter) in tables.letters_at(&found.deaths)? {
            if shown.len() < count {
                let opened = letter.and_then(|letter| reader.open_match(&filter, &letter, found.exact));
                shown.extend(unless_damaged(opened)?.flatten());
            }
        }
        if found.ended {
            break;
        }
        up_to = found.reached.saturating_sub(1);
    }
    Ok(shown)
}

impl<T: Tables> Engine<T> {
    /// Adds matching letters as waiting members of an operation: letters in these statuses that died in the range
    /// (exclusive, inclusive). Reads only a few letters, oldest first, to keep the commit short. The caller continues
    /// from `frozen_to` until the range is exhausted.
    pub(super) fn freeze_members(
        &mut self,
        id: OperationId,
        filter: &Filter,
        statuses: &[Status],
        (after, bound): (u64, u64),
        now: Time,
    ) -> StoreResult<Frozen> {
        let filter = with_merged_groups(&self.tables, filter)?;
        let rows = limits::FREEZE_LOOK_MAX;
        let scan = LetterScan {
            filter: &filter,
            statuses: Some(statuses),
            after,
            up_to: bound,
            latest_first: false,
            candidates_max: rows,
            rows_max: rows,
            until: None,
            now,
        };
        if let Some(frozen) = self.tables.freeze(id, &scan)? {
            return Ok(frozen);
        }
        let Candidates { deaths, reached, ended, .. } = self.tables.candidates(&scan)?;
        let mut members = Vec::new();
        let reader = LetterReader::new(&self.tables, &filter, now)?;
        for (_, letter) in self.tables.letters_at(&deaths)? {
            // The filter cannot be evaluated on an unreadable letter; `doctor` reports it.
            let Some(letter) = unless_damaged(letter)? else { continue };
            if unless_damaged(reader.matches(&filter, &letter))? == Some(true) {
                members.push((letter.death, Member::frozen(letter.meta.id, letter.record.version)));
            }
        }
        for (death, member) in &members {
            self.tables.add_member(id, *death, member)?;
        }
        Ok(Frozen { members: members.len() as u64, frozen_to: reached, exhausted: ended })
    }
}

#[cfg(all(test, feature = "memory"))]
mod tests {
    use super::*;
    use crate::access::Access as _;
    use crate::memory::MemoryStore;
    use redrive_core::failure::FailureReport;
    use redrive_core::ids::MessageId;
    use redrive_core::message::{NewMessage, Payload};
    use redrive_core::store::{LeaseRequest, Settle, Settlement, Work as _};

    const LETTERS: u64 = 700;

    /// There is no text index and the time is up at once, so the search ends after the minimum number of letters.
    #[tokio::test]
    async fn a_search_for_what_is_nowhere_stops_when_time_is_up_and_says_where() {
        let store = MemoryStore::new();
        let new = |n| NewMessage::new(MessageId::new(n, [0; 10]), "q".parse().unwrap(), Payload::default());
        store.enqueue((1..=LETTERS).map(new).collect()).await.unwrap();
        let queues = vec!["q".parse().unwrap()];
        let lease = LeaseRequest {
            queues,
            max: limits::LEASE_BATCH_MAX,
            lease_for: None,
            worker: "w".into(),
            ..LeaseRequest::default()
        };
        loop {
            let taken = store.lease(lease.clone()).await.unwrap();
            if taken.is_empty() {
                break;
            }
            let failed = taken.into_iter().map(|delivery| {
                let failure = FailureReport { permanent: true, ..FailureReport::default() }.analyse();
                let what = Settle::Fail { failure: Box::new(failure), policy_override: None };
                Settlement { token: delivery.token, what }
            });
            store.settle(failed.collect()).await.unwrap();
        }
        let query = Query { filter: "error:nowhere".parse().unwrap(), ..Query::default() };
        let over = Instant::now();
        let page = store.0.read(move |tables, now| letters_until(tables, &query, over, now)).await.unwrap();
        assert!(page.items.is_empty());
        let left = page.next.unwrap().position("l").unwrap();
        let looked_at = LETTERS + 1 - left;
        assert!((400..=limits::PAGE_MISSES_MIN as u64 + 60).contains(&looked_at), "{looked_at}");
    }
}
