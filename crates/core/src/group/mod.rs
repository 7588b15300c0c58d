//! Groups: all failures of one cause. Counters are kept per leaf, and a group is the sum of its leaves. It is therefore
//! exact at any size, and merging groups changes only the map from leaf to group. The sums are stored beside the leaves
//! ([`GroupSums`]), so that listing groups reads one row per group; [`sum`] recomputes what they must be equal to.
//!
//! [`triage`] holds the status of a group and what operators did to it, [`activity`] counts what happened to it, and
//! [`query`] selects groups and puts together everything that is shown of one.

pub mod activity;
pub mod query;
pub mod triage;

pub use activity::{GroupActivity, GroupTrend, Hour, NameCount};
pub use query::{
    GroupDetail, GroupNews, GroupQuery, GroupSample, GroupShare, GroupSort, Marker, SimilarGroup,
    check_marker,
};
pub use triage::{GroupAct, GroupEvent, GroupHistoryEntry, GroupStatus, GroupTriage, Ignored};

use crate::error::Refusal;
use crate::ids::{GroupId, LeafId, QueueName};
use crate::limits;
use crate::signature::common_template;
use crate::time::Time;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A leaf: one signature, and the group it belongs to now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaf {
    /// The id of the leaf.
    pub id: LeafId,
    /// The group it belongs to now.
    pub group: GroupId,
    /// The template of its error messages.
    pub template: String,
    /// The error type.
    pub error_type: String,
    /// The error code.
    #[serde(default)]
    pub code: Option<String>,
    /// The function of the topmost frame in the application's own code.
    #[serde(default)]
    pub frame: Option<String>,
    /// The version of the masking that made it. Leaves of different versions are never compared.
    #[serde(default)]
    pub version: u8,
    /// Its position in the order in which leaves were first seen.
    #[serde(default)]
    pub n: u64,
    /// The group that an operator assigned it to.
    #[serde(default)]
    pub pinned: Option<GroupId>,
    /// Whether the template comes from a rule or is the catch-all, so that the leaf is never compared with others.
    #[serde(default)]
    pub fixed: bool,
}

impl Leaf {
    /// A leaf in a group of its own, with nothing known beyond its template and error type. It is never compared with
    /// others.
    #[must_use]
    pub fn alone(id: LeafId, template: String, error_type: String) -> Self {
        let (code, frame, pinned) = (None, None, None);
        Self { id, group: id, template, error_type, code, frame, version: 0, n: 0, pinned, fixed: false }
    }
}

/// The counters of one leaf, queue and kind, updated in the commit that changes them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeafCount {
    /// Letters that are not closed.
    pub open: i64,
    /// Deaths ever.
    pub total: i64,
    /// Failed deliveries ever.
    pub failures: i64,
    /// When the first failure was seen.
    pub first_seen: Time,
    /// When the latest failure was seen.
    pub last_seen: Time,
}

impl LeafCount {
    /// Adds a change to the counters and widens the times.
    pub fn add(&mut self, open: i64, total: i64, failures: i64, at: Time) {
        if self.first_seen == Time::ZERO {
            self.first_seen = at;
        }
        if failures > 0 || total > 0 {
            self.last_seen = self.last_seen.max(at);
        }
        self.open += open;
        self.total += total;
        self.failures += failures;
    }
}

/// The key of a counter: a leaf, a queue and a kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeafKey {
    /// The leaf.
    pub leaf: LeafId,
    /// The queue.
    pub queue: QueueName,
    /// The kind.
    pub kind: String,
}

/// The kind under which all kinds without a counter of their own are counted.
pub const OTHER_KINDS: &str = "(other kinds)";

impl LeafKey {
    /// The key of the same leaf and queue for kinds without a counter of their own.
    #[must_use]
    pub fn other_kinds(&self) -> Self {
        Self { kind: OTHER_KINDS.to_owned(), ..self.clone() }
    }
}

/// The public view of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// The id of the group, which is that of its first leaf.
    pub id: GroupId,
    /// What the templates of its leaves have in common; words that differ are `<*>`.
    pub template: String,
    /// The error type.
    pub error_type: String,
    /// The error code, which may be the only difference between two groups.
    #[serde(default)]
    pub code: Option<String>,
    /// Its triage status.
    pub status: GroupStatus,
    /// Letters that are not closed.
    pub open: u64,
    /// Deaths ever.
    pub total: u64,
    /// Failed deliveries ever.
    pub failures: u64,
    /// When the first failure was seen.
    pub first_seen: Time,
    /// When the latest failure was seen.
    pub last_seen: Time,
    /// The queues in which it was seen.
    pub queues: BTreeSet<QueueName>,
    /// The kinds of message with which it was seen.
    pub kinds: BTreeSet<String>,
    /// The person or team that looks after it.
    pub owner: Option<String>,
    /// What an operator noted about it.
    pub note: Option<String>,
    /// A link to an issue or a runbook.
    #[serde(default)]
    pub link: Option<String>,
    /// What happened to it lately. Only filled in if the query asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trend: Option<Box<GroupTrend>>,
}

/// Refuses a merge of fewer than two or too many groups.
///
/// # Errors
/// [`Refusal::Invalid`] naming the field.
pub fn check_merge(groups: &[GroupId]) -> Result<(), Refusal> {
    if groups.len() < 2 || groups.len() > limits::MERGE_MAX {
        return Err(Refusal::invalid("groups", format!("name 2 to {} groups", limits::MERGE_MAX)));
    }
    Ok(())
}

/// The sums over a group's leaves, and what their templates have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupSums {
    /// What the templates of its leaves have in common; words that differ are `<*>`.
    pub template: String,
    /// The error type of its first leaf.
    pub error_type: String,
    /// The error code of its first leaf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// Letters that are not closed.
    pub open: i64,
    /// Deaths ever.
    pub total: i64,
    /// Failed deliveries ever.
    pub failures: i64,
    /// When the first failure was seen.
    pub first_seen: Time,
    /// When the latest failure was seen.
    pub last_seen: Time,
    /// The queues in which it was seen, at most [`limits::GROUP_KEYS_MAX`].
    pub queues: BTreeSet<QueueName>,
    /// The kinds of message with which it was seen, at most as many.
    pub kinds: BTreeSet<String>,
}

impl GroupSums {
    /// Adds the change of one counter of a leaf. `count` is the counter after the change.
    pub fn add(&mut self, key: &LeafKey, [open, total, failures]: [i64; 3], count: &LeafCount) {
        self.open += open;
        self.total += total;
        self.failures += failures;
        if self.queues.is_empty() {
            (self.first_seen, self.last_seen) = (count.first_seen, count.last_seen);
        }
        self.first_seen = self.first_seen.min(count.first_seen);
        self.last_seen = self.last_seen.max(count.last_seen);
        insert_bounded(&mut self.queues, &key.queue);
        if !key.kind.is_empty() {
            insert_bounded(&mut self.kinds, &key.kind);
        }
    }

    /// Adds the sums of a group that is merged into this one. The caller updates the template.
    pub fn join(&mut self, other: &Self) {
        if other.queues.is_empty() {
            return;
        }
        if self.queues.is_empty() {
            (self.first_seen, self.last_seen) = (other.first_seen, other.last_seen);
        }
        self.open += other.open;
        self.total += other.total;
        self.failures += other.failures;
        self.first_seen = self.first_seen.min(other.first_seen);
        self.last_seen = self.last_seen.max(other.last_seen);
        other.queues.iter().for_each(|queue| insert_bounded(&mut self.queues, queue));
        other.kinds.iter().for_each(|kind| insert_bounded(&mut self.kinds, kind));
    }

    /// Whether anything was ever counted.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        !self.queues.is_empty()
    }

    /// How these sums differ from recounted ones, or `None` if they agree.
    #[must_use]
    pub fn difference(&self, counted: &Self) -> Option<String> {
        let numbers = [
            ("open", self.open, counted.open),
            ("total", self.total, counted.total),
            ("failures", self.failures, counted.failures),
        ];
        if let Some((what, stored, counted)) =
            numbers.into_iter().find(|(_, stored, counted)| stored != counted)
        {
            return Some(format!("{what} shows {stored}, recounted {counted}"));
        }
        if (self.first_seen, self.last_seen) != (counted.first_seen, counted.last_seen) {
            return Some("first and last seen are not those of its leaves".to_owned());
        }
        let labels = |sums: &Self| (sums.template.clone(), sums.error_type.clone(), sums.code.clone());
        if labels(self) != labels(counted) {
            return Some("its template, error type or code is not that of its leaves".to_owned());
        }
        // Once the limit is reached, which names are kept depends on the order in which they came.
        let full = |names: usize| names >= limits::GROUP_KEYS_MAX;
        let queues = self.queues == counted.queues || full(self.queues.len());
        let kinds = self.kinds == counted.kinds || full(self.kinds.len());
        (!queues || !kinds).then(|| "its queues and kinds are not those of its leaves".to_owned())
    }
}

/// Inserts a name unless the set is full.
fn insert_bounded<T: Ord + Clone>(names: &mut BTreeSet<T>, name: &T) {
    if names.len() < limits::GROUP_KEYS_MAX && !names.contains(name) {
        names.insert(name.clone());
    }
}

/// A stored group, with all that a list of groups needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRow {
    /// The sums over its leaves.
    pub sums: GroupSums,
    /// Its status, and what operators did to it.
    #[serde(default, rename = "life")]
    pub triage: GroupTriage,
}

impl GroupRow {
    /// The public view of the group at this time.
    #[must_use]
    pub fn view(self, id: GroupId, now: Time) -> Group {
        let status = self.triage.status_at(now);
        let Self { sums, triage } = self;
        let number = |n: i64| u64::try_from(n).unwrap_or(0);
        Group {
            id,
            template: sums.template,
            error_type: sums.error_type,
            code: sums.code,
            status,
            open: number(sums.open),
            total: number(sums.total),
            failures: number(sums.failures),
            first_seen: sums.first_seen,
            last_seen: sums.last_seen,
            queues: sums.queues,
            kinds: sums.kinds,
            owner: triage.owner,
            note: triage.note,
            link: triage.link,
            trend: None,
        }
    }
}

/// Sums the counters of leaves by group. The stored sums of a group must be equal to this.
#[must_use]
pub fn sum(leaves: &[Leaf], counts: &[(LeafKey, LeafCount)]) -> BTreeMap<GroupId, GroupSums> {
    let by_leaf: BTreeMap<LeafId, &Leaf> = leaves.iter().map(|l| (l.id, l)).collect();
    let mut groups: BTreeMap<GroupId, GroupSums> = BTreeMap::new();
    for (key, count) in counts {
        let Some(leaf) = by_leaf.get(&key.leaf) else { continue };
        let first_leaf = by_leaf.get(&leaf.group).unwrap_or(leaf);
        let sums = groups.entry(leaf.group).or_insert_with(|| GroupSums {
            template: first_leaf.template.clone(),
            error_type: first_leaf.error_type.clone(),
            code: first_leaf.code.clone(),
            ..GroupSums::default()
        });
        sums.add(key, [count.open, count.total, count.failures], count);
    }
    let mut templates: BTreeMap<GroupId, Vec<&str>> = BTreeMap::new();
    for leaf in leaves {
        templates.entry(leaf.group).or_default().push(&leaf.template);
    }
    for (id, sums) in &mut groups {
        let others = templates.get(id).into_iter().flatten().copied();
        sums.template = common_template(&sums.template, others);
    }
    groups
}
