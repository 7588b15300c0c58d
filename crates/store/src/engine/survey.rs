//! Finding letters by a filter: pages, counts and frozen members. Tables give candidates, by an index and a
//! condition where they can; a letter is opened only as far as the filter looks, and the filter's evaluator
//! decides unless the tables know the answer exactly. Every look at a list is bounded in rows and in time.

use super::Engine;
use super::reads::{Policies, assemble_with, or_damaged, policies, with_present_groups};
use super::tables::{Ask, Candidates, Frozen, Kept, Letter, Reads, Tables, unless_damaged};
use redrive_core::dead_letter::{DeadLetter, Status};
use redrive_core::error::Outcome;
use redrive_core::filter::{Filter, Needs};
use redrive_core::ids::{GroupId, LeafId, OperationId};
use redrive_core::limits;
use redrive_core::operation::Member;
use redrive_core::policy::QueuePolicy;
use redrive_core::query::{Cursor, Page, Query};
use redrive_core::survey::{Facts, Survey};
use redrive_core::time::Time;
use std::collections::HashMap;
use std::time::Instant;

/// Candidates asked for at once where each of them has to be opened.
const CHUNK: usize = 512;

/// Everything of a letter.
const WHOLE: Needs = Needs { body: true, failures: true };

/// What is read once for many letters.
struct Desk<'a> {
    tables: &'a dyn Reads,
    policies: Policies,
    needs: Needs,
    now: Time,
}

impl<'a> Desk<'a> {
    fn new(tables: &'a dyn Reads, filter: &Filter, now: Time) -> Kept<Self> {
        Ok(Self { tables, policies: policies(tables)?, needs: filter.needs(), now })
    }

    fn open(&self, letter: &Letter, needs: Needs) -> Kept<DeadLetter> {
        let standard = QueuePolicy::default();
        let policy = self.policies.get(&letter.slip.queue).map_or(&standard, AsRef::as_ref);
        assemble_with(self.tables, policy, letter, needs, self.now)
    }

    /// Whether the filter matches, looking at no more of the letter than it needs.
    fn matches(&self, filter: &Filter, letter: &Letter) -> Kept<bool> {
        Ok(filter.matches_letter(&self.open(letter, self.needs)?, self.now))
    }

    /// The whole letter, if the filter matches; `exact` says that it is known to.
    fn open_match(&self, filter: &Filter, letter: &Letter, exact: bool) -> Kept<Option<DeadLetter>> {
        let wanted = exact || self.matches(filter, letter)?;
        if wanted { self.open(letter, WHOLE).map(Some) } else { Ok(None) }
    }
}

/// Letters that match, latest death first. The page ends early, with a cursor, when as much was looked at as one
/// page may.
pub(crate) fn letters(tables: &dyn Reads, query: &Query, now: Time) -> Outcome<Page<DeadLetter>> {
    letters_until(tables, query, Instant::now() + limits::PAGE_TIME_MAX, now)
}

/// The same with the instant at which a look in vain ends.
fn letters_until(tables: &dyn Reads, query: &Query, until: Instant, now: Time) -> Outcome<Page<DeadLetter>> {
    let until = Some(until);
    let filter = with_present_groups(tables, &query.filter)?;
    let desk = Desk::new(tables, &filter, now)?;
    let limit = query.page.limit();
    let mut before = query.page.position("l")?.unwrap_or(u64::MAX);
    let (mut items, mut damaged, mut bytes, mut looked_at) = (Vec::new(), Vec::new(), 0, 0);
    let page = |items, damaged, next: Option<u64>| {
        let next = next.map(|death| Cursor::after("l", death));
        Page { items, next, damaged }
    };
    loop {
        let ask = Ask {
            filter: &filter,
            statuses: None,
            after: 0,
            up_to: before.saturating_sub(1),
            latest_first: true,
            hits: (limit.saturating_sub(items.len() + damaged.len()) + 1).min(CHUNK),
            rows: limits::PAGE_SCAN_MAX.saturating_sub(looked_at).max(1),
            until,
            now,
        };
        let found = tables.candidates(&ask)?;
        looked_at += found.looked_at;
        for (death, letter) in tables.letters_at(&found.deaths)? {
            if items.len() + damaged.len() >= limit || bytes >= limits::PAGE_BYTES_MAX {
                return Ok(page(items, damaged, Some(before)));
            }
            before = death;
            let opened = letter.and_then(|letter| desk.open_match(&filter, &letter, found.exact));
            if let Some(letter) = or_damaged(opened, &mut damaged)?.flatten() {
                bytes += letter.message.envelope.size();
                items.push(letter);
            }
            if in_vain(looked_at, items.len() + damaged.len(), until) && !found.exact {
                return Ok(page(items, damaged, Some(before)));
            }
        }
        if found.ended {
            return Ok(page(items, damaged, None));
        }
        before = found.reached;
        if looked_at >= limits::PAGE_SCAN_MAX || in_vain(looked_at, items.len() + damaged.len(), until) {
            return Ok(page(items, damaged, Some(before)));
        }
    }
}

/// Whether time is up and was mostly spent on what did not match.
pub(super) fn in_vain(looked_at: usize, found: usize, until: Option<Instant>) -> bool {
    let misses = looked_at.saturating_sub(found);
    misses >= limits::PAGE_MISSES_MIN && until.is_some_and(|until| Instant::now() >= until)
}

/// What the letters that match are made of, of those that died up to the bound. Exact, whatever it takes.
pub(crate) fn survey(
    tables: &dyn Reads,
    filter: &Filter,
    statuses: Option<&[Status]>,
    bound: u64,
    now: Time,
) -> Kept<Survey> {
    let filter = with_present_groups(tables, filter)?;
    let ask = all_of(&filter, statuses, bound, now);
    if let Some(survey) = tables.survey(&ask)? {
        return Ok(survey);
    }
    let mut groups: HashMap<LeafId, GroupId> = HashMap::new();
    let mut survey = Survey::default();
    each_of(tables, ask, |letter| {
        let leaf = letter.file.leaf;
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

/// Shows every letter that matches, of those that died up to the bound, oldest death first.
pub(crate) fn each(
    tables: &dyn Reads,
    filter: &Filter,
    statuses: Option<&[Status]>,
    bound: u64,
    now: Time,
    show: impl FnMut(&Letter) -> Kept<()>,
) -> Kept<()> {
    let filter = with_present_groups(tables, filter)?;
    each_of(tables, all_of(&filter, statuses, bound, now), show)
}

fn all_of<'a>(filter: &'a Filter, statuses: Option<&'a [Status]>, up_to: u64, now: Time) -> Ask<'a> {
    let (after, latest_first, until) = (0, false, None);
    Ask { filter, statuses, after, up_to, latest_first, hits: CHUNK, rows: usize::MAX, until, now }
}

fn each_of(tables: &dyn Reads, mut ask: Ask<'_>, mut show: impl FnMut(&Letter) -> Kept<()>) -> Kept<()> {
    let desk = Desk::new(tables, ask.filter, ask.now)?;
    loop {
        let found = tables.candidates(&ask)?;
        for (_, letter) in tables.letters_at(&found.deaths)? {
            // No operation touches a letter that cannot be read, so it does not count here either; lists name it.
            let Some(letter) = unless_damaged(letter)? else { continue };
            if found.exact || unless_damaged(desk.matches(ask.filter, &letter))? == Some(true) {
                show(&letter)?;
            }
        }
        if found.ended {
            return Ok(());
        }
        ask.after = found.reached;
    }
}

fn facts(letter: &Letter, group: GroupId) -> Facts<'_> {
    Facts {
        group,
        queue: &letter.slip.queue,
        status: letter.file.status,
        reason: letter.file.reason,
        dead_at: letter.file.dead_at,
        redrives: letter.file.redrives,
        bytes: letter.slip.size,
        keyed: letter.slip.key.is_some(),
        ordered: letter.slip.ordering_key.is_some(),
    }
}

/// Some of the letters that match, latest death first; as many as are asked for, if there are.
pub(crate) fn sample(
    tables: &dyn Reads,
    filter: &Filter,
    statuses: Option<&[Status]>,
    bound: u64,
    count: usize,
    now: Time,
) -> Kept<Vec<DeadLetter>> {
    let filter = with_present_groups(tables, filter)?;
    let desk = Desk::new(tables, &filter, now)?;
    let (mut shown, mut up_to) = (Vec::new(), bound);
    while shown.len() < count {
        let ask = Ask {
            filter: &filter,
            statuses,
            after: 0,
            up_to,
            latest_first: true,
            hits: (count - shown.len()).min(CHUNK),
            rows: usize::MAX,
            until: None,
            now,
        };
        let found = tables.candidates(&ask)?;
        for (_, letter) in tables.letters_at(&found.deaths)? {
            if shown.len() < count {
                let opened = letter.and_then(|letter| desk.open_match(&filter, &letter, found.exact));
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
    /// Writes down, as waiting members of an operation, letters of these statuses that match and died after one
    /// death and up to another. Looks at a few letters, oldest first: others wait for this commit. Whoever calls
    /// goes on from `frozen_to` until nothing is left.
    pub(super) fn freeze_members(
        &mut self,
        id: OperationId,
        filter: &Filter,
        statuses: &[Status],
        (after, bound): (u64, u64),
        now: Time,
    ) -> Outcome<Frozen> {
        let filter = with_present_groups(&self.tables, filter)?;
        let rows = limits::FREEZE_LOOK_MAX;
        let ask = Ask {
            filter: &filter,
            statuses: Some(statuses),
            after,
            up_to: bound,
            latest_first: false,
            hits: rows,
            rows,
            until: None,
            now,
        };
        if let Some(frozen) = self.tables.freeze(id, &ask)? {
            return Ok(frozen);
        }
        let Candidates { deaths, reached, ended, .. } = self.tables.candidates(&ask)?;
        let mut members = Vec::new();
        let desk = Desk::new(&self.tables, &filter, now)?;
        for (_, letter) in self.tables.letters_at(&deaths)? {
            // A letter that cannot be read cannot be judged by a filter: it is left for `doctor` to name.
            let Some(letter) = unless_damaged(letter)? else { continue };
            if unless_damaged(desk.matches(&filter, &letter))? == Some(true) {
                members.push((letter.death, Member::frozen(letter.slip.id, letter.file.version)));
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
    use crate::memory::MemoryStore;
    use crate::verbs::Access as _;
    use redrive_core::failure::Report;
    use redrive_core::ids::MessageId;
    use redrive_core::message::{NewMessage, Payload};
    use redrive_core::store::{LeaseRequest, Settle, Settlement, Work as _};

    const LETTERS: u64 = 700;

    /// No text index, and the time is over before it begins: the look ends after the few letters it always takes.
    #[tokio::test]
    async fn a_search_for_what_is_nowhere_stops_when_time_is_up_and_says_where() {
        let store = MemoryStore::new();
        let new = |n| NewMessage::new(MessageId::new(n, [0; 10]), "q".parse().unwrap(), Payload::default());
        store.enqueue((1..=LETTERS).map(new).collect()).await.unwrap();
        let queues = vec!["q".parse().unwrap()];
        let lease =
            LeaseRequest { queues, max: limits::LEASE_BATCH_MAX, lease_for: None, worker: "w".into() };
        loop {
            let taken = store.lease(lease.clone()).await.unwrap();
            if taken.is_empty() {
                break;
            }
            let failed = taken.into_iter().map(|delivery| {
                let failure = Report { permanent: true, ..Report::default() }.analyse();
                let what = Settle::Fail { failure: Box::new(failure), said: None };
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
