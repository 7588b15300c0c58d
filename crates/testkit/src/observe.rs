//! Everything a store shows through its public calls. Two stores must agree on it, and a refused call must
//! leave it unchanged.

use redrive_core::audit::AuditRow;
use redrive_core::breaker::BreakerView;
use redrive_core::dead_letter::{DeadLetter, Status};
use redrive_core::error::StoreResult;
use redrive_core::filter::Filter;
use redrive_core::group::{Group, GroupDetail, GroupQuery, Marker};
use redrive_core::limits;
use redrive_core::message::Message;
use redrive_core::metrics::{Snapshot, Stats};
use redrive_core::operation::{Member, Operation};
use redrive_core::query::{Cursor, Page, PageRequest, Query};
use redrive_core::store::{Dlq, Queue, Store, with_revisions};
use redrive_core::time::Time;

/// The observable state of a store.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreView {
    /// Live messages with their failures, in the order of enqueues.
    pub messages: Vec<Message>,
    /// Letters with their earlier revisions, latest death first.
    pub letters: Vec<DeadLetter>,
    /// Queues by name.
    pub queues: Vec<Queue>,
    /// Dead letter queues by name.
    pub dlqs: Vec<Dlq>,
    /// Groups in their default order.
    pub groups: Vec<Group>,
    /// The details of the first few groups.
    pub details: Vec<GroupDetail>,
    /// Markers, latest first.
    pub markers: Vec<Marker>,
    /// Operations with their members, latest first.
    pub operations: Vec<(Operation, Vec<Member>)>,
    /// The audit trail, latest first.
    pub audit: Vec<AuditRow>,
    /// Breakers by queue and key.
    pub breakers: Vec<BreakerView>,
    /// The counters, without the current time and without what a process measures about itself.
    pub stats: Stats,
}

/// The number of groups whose details are read. A stream reads the view after every operation, and reading
/// the details of every group would take longer than everything else.
const DETAILED_GROUPS: usize = 3;

/// Reads a list to its end, with the largest page size so that there are few pages.
///
/// # Errors
/// Any error of the store.
pub async fn read_all<T, F>(mut page: impl FnMut(PageRequest) -> F) -> StoreResult<Vec<T>>
where
    F: Future<Output = StoreResult<Page<T>>>,
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

fn all_messages(page: PageRequest) -> Query {
    Query { page, ..Query::default() }
}

/// Matches letters in every status. Purged letters are listed only if the filter names that status.
fn all_letters(page: PageRequest) -> Query {
    let all: Vec<&str> = Status::ALL.iter().map(|status| status.name()).collect();
    let filter = Filter::parse(&format!("status:{}", all.join(","))).expect("names of statuses");
    Query { filter, page }
}

impl StoreView {
    /// Reads everything the store shows.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn read(store: &dyn Store) -> StoreResult<Self> {
        let listed = read_all(|page| store.messages(all_messages(page))).await?;
        let mut messages = Vec::new();
        for message in listed {
            let whole = store.message(message.envelope.id).await?;
            assert_eq!(
                Message { failures: Vec::new(), ..whole.clone() },
                message,
                "the list and the single message agree"
            );
            messages.push(whole);
        }
        let mut operations = Vec::new();
        for operation in read_all(|page| store.operations(page)).await? {
            let members = read_all(|page| store.members(operation.id, page)).await?;
            operations.push((operation, members));
        }
        let groups = read_all(|page| store.groups(GroupQuery::from(page))).await?;
        let mut details = Vec::new();
        for group in groups.iter().take(DETAILED_GROUPS) {
            let detail = store.group_detail(group.id).await?;
            assert_eq!(detail.group, *group, "the list and the detail agree");
            details.push(detail);
        }
        let mut letters = Vec::new();
        for letter in read_all(|page| store.letters(all_letters(page))).await? {
            letters.push(with_revisions(store, letter).await?);
        }
        Ok(Self {
            messages,
            letters,
            queues: store.queues().await?,
            dlqs: store.dlqs().await?,
            groups,
            details,
            markers: read_all(|page| store.markers(page)).await?,
            operations,
            audit: read_all(|page| store.audit(page)).await?,
            breakers: store.breakers().await?,
            stats: Stats { now: Time::ZERO, process: Snapshot::default(), ..store.stats().await? },
        })
    }

    /// Returns the view without what stores may differ in: the seals of audit rows, the item count of audit
    /// rows that only steer a queue or an operation, the name of the actor who paused a queue, and status counts of
    /// zero in a dead letter queue.
    #[must_use]
    pub fn comparable(mut self) -> Self {
        for queue in &mut self.queues {
            queue.paused_by = queue.paused.then(|| "somebody".to_owned());
        }
        for dlq in &mut self.dlqs {
            dlq.by_status.retain(|_, count| *count > 0);
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

    /// Describes the first part that differs, or returns `None` if both views are equal.
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
            .or_else(|| part("dead letter queues", &self.dlqs, &other.dlqs))
            .or_else(|| part("groups", &self.groups, &other.groups))
            .or_else(|| part("group details", &self.details, &other.details))
            .or_else(|| part("markers", &self.markers, &other.markers))
            .or_else(|| part("operations", &self.operations, &other.operations))
            .or_else(|| part("audit rows", &self.audit, &other.audit))
            .or_else(|| part("breakers", &self.breakers, &other.breakers))
            .or_else(|| part("counters", &self.stats.counters, &other.stats.counters))
            .or_else(|| part("stats", std::slice::from_ref(&self.stats), std::slice::from_ref(&other.stats)))
    }
}
