//! Everything a store shows, read through its verbs: what two stores must agree on, and what a refusal must
//! leave as it was.

use redrive_core::audit::AuditRow;
use redrive_core::breaker::BreakerView;
use redrive_core::dead_letter::{DeadLetter, Status};
use redrive_core::error::Outcome;
use redrive_core::filter::Filter;
use redrive_core::group::{Group, GroupDetail, GroupQuery, Marker};
use redrive_core::limits;
use redrive_core::message::Message;
use redrive_core::metrics::{Snapshot, Stats};
use redrive_core::operation::{Member, Operation};
use redrive_core::query::{Cursor, Page, PageRequest, Query};
use redrive_core::store::{Drawer, Queue, Store};
use redrive_core::time::Time;

/// The observable state of a store.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// Live messages with their failures, in the order of enqueues.
    pub messages: Vec<Message>,
    /// Letters with what they said before, latest death first.
    pub letters: Vec<DeadLetter>,
    /// Queues by name.
    pub queues: Vec<Queue>,
    /// Drawers by name.
    pub drawers: Vec<Drawer>,
    /// Groups in their order.
    pub groups: Vec<Group>,
    /// Everything about the first few of them.
    pub details: Vec<GroupDetail>,
    /// Markers, latest first.
    pub markers: Vec<Marker>,
    /// Operations with their members, latest first.
    pub operations: Vec<(Operation, Vec<Member>)>,
    /// The audit trail, latest first.
    pub audit: Vec<AuditRow>,
    /// Breakers by queue and key.
    pub breakers: Vec<BreakerView>,
    /// What was counted, without the time and without what a process measures about itself.
    pub stats: Stats,
}

/// Groups of which everything is read: a stream looks after every operation, and reading all takes longer than the rest.
const DETAILS: usize = 3;

/// Reads a list to its end. The page size is the largest, so that the pages are few.
///
/// # Errors
/// Whatever the store says.
pub async fn walk<T, F>(mut page: impl FnMut(PageRequest) -> F) -> Outcome<Vec<T>>
where
    F: Future<Output = Outcome<Page<T>>>,
{
    let mut all = Vec::new();
    let mut cursor: Option<Cursor> = None;
    loop {
        let Page { items, next, .. } =
            page(PageRequest { limit: Some(limits::PAGE_ITEMS_MAX), cursor }).await?;
        all.extend(items);
        match next {
            Some(next) => cursor = Some(next),
            None => return Ok(all),
        }
    }
}

fn everything(page: PageRequest) -> Query {
    Query { page, ..Query::default() }
}

/// Letters in every status: purged ones are shown only to who names them.
fn every_letter(page: PageRequest) -> Query {
    let all: Vec<&str> = Status::ALL.iter().map(|status| status.name()).collect();
    let filter = Filter::parse(&format!("status:{}", all.join(","))).expect("names of statuses");
    Query { filter, page }
}

impl Seen {
    /// Reads all there is.
    ///
    /// # Errors
    /// Whatever the store says.
    pub async fn of(store: &dyn Store) -> Outcome<Self> {
        let listed = walk(|page| store.messages(everything(page))).await?;
        let mut messages = Vec::new();
        for message in listed {
            let whole = store.message(message.envelope.id).await?;
            assert_eq!(Message { failures: Vec::new(), ..whole.clone() }, message, "listed as it is shown");
            messages.push(whole);
        }
        let mut operations = Vec::new();
        for operation in walk(|page| store.operations(page)).await? {
            let members = walk(|page| store.members(operation.id, page)).await?;
            operations.push((operation, members));
        }
        let groups = walk(|page| store.groups(GroupQuery::from(page))).await?;
        let mut details = Vec::new();
        for group in groups.iter().take(DETAILS) {
            let detail = store.group_detail(group.id).await?;
            assert_eq!(detail.group, *group, "listed as it is shown");
            details.push(detail);
        }
        let mut letters = Vec::new();
        for letter in walk(|page| store.letters(every_letter(page))).await? {
            letters.push(store.with_lineage(letter).await?);
        }
        Ok(Self {
            messages,
            letters,
            queues: store.queues().await?,
            drawers: store.drawers().await?,
            groups,
            details,
            markers: walk(|page| store.markers(page)).await?,
            operations,
            audit: walk(|page| store.audit(page)).await?,
            breakers: store.breakers().await?,
            stats: Stats { now: Time::ZERO, process: Snapshot::default(), ..store.stats().await? },
        })
    }

    /// The same without what stores may differ in: seals, how many items a steering act counts, the words for
    /// who paused a queue, and statuses that no letter of a drawer has.
    #[must_use]
    pub fn comparable(mut self) -> Self {
        for queue in &mut self.queues {
            queue.paused_by = queue.paused.then(|| "somebody".to_owned());
        }
        for drawer in &mut self.drawers {
            drawer.by_status.retain(|_, count| *count > 0);
        }
        let operations: Vec<String> = self.operations.iter().map(|(op, _)| op.id.to_string()).collect();
        for row in &mut self.audit {
            row.seal.clear();
            let steers = match row.entry.act.as_str() {
                "configure" | "pause" | "resume" => true,
                "cancel" => operations.contains(&row.entry.target),
                _ => false,
            };
            if steers {
                row.entry.count = 0;
            }
            if row.entry.act != "start" {
                row.entry.detail = None;
            }
        }
        self
    }

    /// What is different, in the words of the first part that is; nothing when all is equal.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Option<String> {
        fn part<T: PartialEq + std::fmt::Debug>(name: &str, a: &[T], b: &[T]) -> Option<String> {
            if a == b {
                return None;
            }
            let at = a.iter().zip(b).position(|(a, b)| a != b).unwrap_or(a.len().min(b.len()));
            Some(format!(
                "{name} differ ({} and {}), first at {at}:\n  {:?}\n  {:?}",
                a.len(),
                b.len(),
                a.get(at),
                b.get(at)
            ))
        }
        part("messages", &self.messages, &other.messages)
            .or_else(|| part("letters", &self.letters, &other.letters))
            .or_else(|| part("queues", &self.queues, &other.queues))
            .or_else(|| part("drawers", &self.drawers, &other.drawers))
            .or_else(|| part("groups", &self.groups, &other.groups))
            .or_else(|| part("details of groups", &self.details, &other.details))
            .or_else(|| part("markers", &self.markers, &other.markers))
            .or_else(|| part("operations", &self.operations, &other.operations))
            .or_else(|| part("audit rows", &self.audit, &other.audit))
            .or_else(|| part("breakers", &self.breakers, &other.breakers))
            .or_else(|| part("counters", &self.stats.counters, &other.stats.counters))
            .or_else(|| part("stats", std::slice::from_ref(&self.stats), std::slice::from_ref(&other.stats)))
    }
}
