//! Reads the state of a run's items from the store, page by page: which are done, waiting or dead. The store is the
//! only authority.

use super::error::BatchError;
use super::select::{Key, hex};
use super::spec::Job;
use redrive_core::dead_letter::{DeadLetter, Status};
use redrive_core::filter::Filter;
use redrive_core::ids::{GroupId, MessageId, QueueName};
use redrive_core::limits;
use redrive_core::message::Message;
use redrive_core::query::{PageRequest, Query};
use redrive_core::reply;
use redrive_core::store::Store;
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};

/// The context of an item's message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ItemTag {
    pub(super) job: String,
    pub(super) run: String,
    pub(super) index: u64,
    /// The item's key.
    pub(super) item: String,
    /// The hash of the whole item.
    pub(super) body: String,
}

impl ItemTag {
    /// The tag of a message, if it has one.
    pub(super) fn of(context: Option<&serde_json::Value>) -> Option<Self> {
        serde_json::from_value(context?.clone()).ok()
    }
}

/// The result of a finished item, as stored in the results queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ItemResult {
    pub(super) run: String,
    pub(super) item: String,
    pub(super) index: u64,
    pub(super) attempt: u32,
    pub(super) duration_ms: u64,
    pub(super) output: String,
}

/// A group of failed items of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FailureGroup {
    /// The id of the group.
    pub group: GroupId,
    /// The signature that its failures have in common.
    pub template: String,
    /// The type of the error.
    pub error_type: String,
    /// The number of dead items of this run in the group.
    pub count: u64,
    /// One of these items.
    pub sample: MessageId,
}

/// The dead items of a run.
#[derive(Debug, Default)]
pub(super) struct DeadItems {
    /// Open letters, which wait for a decision.
    pub(super) open: u64,
    /// Letters that were closed without a result: skipped by the job, or resolved or abandoned by somebody.
    pub(super) skipped: u64,
    /// The failures by group, largest first.
    pub(super) groups: Vec<FailureGroup>,
    /// Every letter that can be redriven.
    pub(super) ids: Vec<MessageId>,
    /// The keys of all of them, with the hash of the item and the id and status of the letter.
    pub(super) keys: HashMap<String, (String, MessageId, Status)>,
}

/// Reads a run from the store.
pub(super) struct Ledger<'a> {
    pub(super) store: &'a dyn Store,
    pub(super) job: &'a Job,
    pub(super) run: &'a str,
    /// Restricts the ledger to these items: the hash of each by its key. `None` for all items of the run.
    pub(super) only: Option<&'a HashMap<String, String>>,
}

impl Ledger<'_> {
    /// Calls `each` with every message of a queue.
    async fn messages(&self, queue: &QueueName, mut each: impl FnMut(Message)) -> Result<(), BatchError> {
        let filter = filter(&format!("queue:{queue}"))?;
        let mut page = PageRequest::first(limits::PAGE_ITEMS_MAX);
        loop {
            let got = self.store.messages(Query { filter: filter.clone(), page: page.clone() }).await?;
            got.items.into_iter().for_each(&mut each);
            match got.next {
                Some(next) => page.cursor = Some(next),
                None => return Ok(()),
            }
        }
    }

    /// Calls `each` with every result of this run.
    pub(super) async fn results(&self, mut each: impl FnMut(ItemResult)) -> Result<(), BatchError> {
        self.messages(&self.job.results(), |message| {
            let done = message.envelope.headers.get(reply::STATUS).map(String::as_str) == Some("done");
            let result = serde_json::from_slice::<ItemResult>(&message.envelope.payload.bytes);
            let wanted = |result: &ItemResult| {
                done && result.run == self.run && self.only.is_none_or(|only| only.contains_key(&result.item))
            };
            if let Some(result) = result.ok().filter(wanted) {
                each(result);
            }
        })
        .await
    }

    /// The keys of items that are done.
    pub(super) async fn done(&self) -> Result<HashSet<String>, BatchError> {
        let mut keys = HashSet::new();
        self.results(|result| {
            keys.insert(result.item);
        })
        .await?;
        Ok(keys)
    }

    /// The messages of this run that are still to be done.
    pub(super) async fn waiting(&self) -> Result<Vec<(MessageId, ItemTag)>, BatchError> {
        let mut found = Vec::new();
        self.messages(&self.job.queue(), |message| {
            let tag = ItemTag::of(message.envelope.context.as_ref()).filter(|tag| tag.run == self.run);
            found.extend(tag.map(|tag| (message.envelope.id, tag)));
        })
        .await?;
        Ok(found)
    }

    /// The dead items, given the keys of those that are done.
    pub(super) async fn dead(&self, done: &HashSet<String>) -> Result<DeadItems, BatchError> {
        let text = format!("queue:{} context.run:\"{}\"", self.job.queue(), self.run);
        let filter = filter(&text)?;
        let mut dead = DeadItems::default();
        let mut groups: HashMap<GroupId, FailureGroup> = HashMap::new();
        let mut page = PageRequest::first(limits::PAGE_ITEMS_MAX);
        loop {
            let got = self.store.letters(Query { filter: filter.clone(), page: page.clone() }).await?;
            for letter in got.items {
                self.count(&mut dead, &mut groups, done, &letter);
            }
            match got.next {
                Some(next) => page.cursor = Some(next),
                None => break,
            }
        }
        dead.groups = groups.into_values().collect();
        dead.groups.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.group.cmp(&b.group)));
        Ok(dead)
    }

    fn count(
        &self,
        dead: &mut DeadItems,
        groups: &mut HashMap<GroupId, FailureGroup>,
        done: &HashSet<String>,
        letter: &DeadLetter,
    ) {
        let Some(tag) = ItemTag::of(letter.message.envelope.context.as_ref()) else { return };
        // An item that is no longer in the input, or has changed, does not count as a failure of this input.
        if tag.run != self.run || self.only.is_some_and(|only| only.get(&tag.item) != Some(&tag.body)) {
            return;
        }
        let status = letter.record.status;
        match status {
            // Redriven and not finished yet.
            Status::Retrying => return,
            // The item has a result.
            Status::Resolved | Status::Abandoned | Status::Purged if done.contains(&tag.item) => return,
            Status::Resolved | Status::Abandoned | Status::Purged => dead.skipped += 1,
            Status::Pending | Status::Review | Status::Quarantined => {
                dead.open += 1;
                dead.ids.push(letter.id());
            }
        }
        let group = groups.entry(letter.group).or_insert_with(|| FailureGroup {
            group: letter.group,
            template: letter.signature.clone(),
            error_type: letter.error.error_type.clone(),
            count: 0,
            sample: letter.id(),
        });
        group.count += 1;
        dead.keys.insert(tag.item, (tag.body, letter.id(), status));
    }
}

/// Parses a filter that the batch code wrote.
pub(super) fn filter(text: &str) -> Result<Filter, BatchError> {
    Filter::parse(text).map_err(|error| BatchError::Input(error.to_string()))
}

/// The text of a key, as it is stored.
pub(super) fn written(key: &Key) -> String {
    hex(key)
}
