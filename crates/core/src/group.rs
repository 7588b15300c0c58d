//! Groups: all failures of one cause. Counters are kept per leaf; a group is the sum of its leaves, so it is
//! exact at any size and merging moves nothing but the map from leaf to group.

use crate::error::Refusal;
use crate::failure::named;
use crate::ids::{GroupId, LeafId, QueueName};
use crate::limits;
use crate::signature::common_template;
use crate::time::Time;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

named! {
    /// Where a group is in its own life.
    GroupStatus, "group status", {
        /// Nobody has looked at it.
        New = "new",
        /// Somebody has.
        Acknowledged = "acknowledged",
        /// Its cause is gone.
        Resolved = "resolved",
        /// Not worth a look.
        Ignored = "ignored",
        /// It came back after it was resolved.
        Regressed = "regressed",
    }
}

/// A leaf: one signature, and the group it belongs to now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leaf {
    /// The leaf.
    pub id: LeafId,
    /// Its group.
    pub group: GroupId,
    /// The template.
    pub template: String,
    /// The error type.
    pub error_type: String,
    /// The code of the error.
    #[serde(default)]
    pub code: Option<String>,
    /// The function of the top own frame.
    #[serde(default)]
    pub frame: Option<String>,
    /// The version of the masking that made it; leaves of another version are left where they are.
    #[serde(default)]
    pub version: u8,
    /// Its place in the order of first sight.
    #[serde(default)]
    pub n: u64,
    /// The group an operator put it in.
    #[serde(default)]
    pub pinned: Option<GroupId>,
    /// Its template is a rule's or the rest's: it is never compared with others.
    #[serde(default)]
    pub fixed: bool,
}

impl Leaf {
    /// A leaf in a group of its own, of which no more is known than this. No tree compares it with others.
    #[must_use]
    pub fn alone(id: LeafId, template: String, error_type: String) -> Self {
        let (code, frame, pinned) = (None, None, None);
        Self { id, group: id, template, error_type, code, frame, version: 0, n: 0, pinned, fixed: false }
    }
}

/// What is counted per leaf, queue and kind, in the commit that changes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeafCount {
    /// Letters not closed.
    pub open: i64,
    /// Deaths ever.
    pub total: i64,
    /// Failed deliveries ever.
    pub failures: i64,
    /// The first failure.
    pub first_seen: Time,
    /// The latest.
    pub last_seen: Time,
}

impl LeafCount {
    /// Adds a change; the times widen.
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

/// Where a count belongs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeafKey {
    /// The leaf.
    pub leaf: LeafId,
    /// The queue.
    pub queue: QueueName,
    /// The kind.
    pub kind: String,
}

/// A group as people see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// The group: its first leaf.
    pub id: GroupId,
    /// What its leaves have in common, with differing words as `<*>`.
    pub template: String,
    /// The error type.
    pub error_type: String,
    /// Where it is in its life.
    pub status: GroupStatus,
    /// Letters not closed.
    pub open: u64,
    /// Deaths ever.
    pub total: u64,
    /// Failed deliveries ever.
    pub failures: u64,
    /// The first failure.
    pub first_seen: Time,
    /// The latest.
    pub last_seen: Time,
    /// Queues touched.
    pub queues: BTreeSet<QueueName>,
    /// Kinds touched.
    pub kinds: BTreeSet<String>,
    /// Who looks after it.
    pub owner: Option<String>,
    /// What is known about it.
    pub note: Option<String>,
}

/// Refuses a merge of nothing, or of absurdly much.
///
/// # Errors
/// [`Refusal::Invalid`].
pub fn check_merge(groups: &[GroupId]) -> Result<(), Refusal> {
    if groups.len() < 2 || groups.len() > limits::MERGE_MAX {
        return Err(Refusal::invalid("groups", format!("name 2 to {} groups", limits::MERGE_MAX)));
    }
    Ok(())
}

/// Leaves of a group that its template is put together from: a place that varies shows in the first few.
const TEMPLATES_SHOWN: usize = 32;

/// Sums leaves to groups, most open letters first, then most failures, then by id: a total order.
#[must_use]
pub fn sum(leaves: &[Leaf], counts: &[(LeafKey, LeafCount)]) -> Vec<Group> {
    let by_leaf: BTreeMap<LeafId, &Leaf> = leaves.iter().map(|l| (l.id, l)).collect();
    let mut groups: BTreeMap<GroupId, Group> = BTreeMap::new();
    for (key, count) in counts {
        let Some(leaf) = by_leaf.get(&key.leaf) else { continue };
        let face = by_leaf.get(&leaf.group).unwrap_or(leaf);
        let group = groups.entry(leaf.group).or_insert_with(|| Group {
            id: leaf.group,
            template: face.template.clone(),
            error_type: face.error_type.clone(),
            status: GroupStatus::New,
            open: 0,
            total: 0,
            failures: 0,
            first_seen: count.first_seen,
            last_seen: count.last_seen,
            queues: BTreeSet::new(),
            kinds: BTreeSet::new(),
            owner: None,
            note: None,
        });
        let plus = |n: u64, by: i64| n.saturating_add_signed(by);
        group.open = plus(group.open, count.open);
        group.total = plus(group.total, count.total);
        group.failures = plus(group.failures, count.failures);
        group.first_seen = group.first_seen.min(count.first_seen);
        group.last_seen = group.last_seen.max(count.last_seen);
        group.queues.insert(key.queue.clone());
        if !key.kind.is_empty() {
            group.kinds.insert(key.kind.clone());
        }
    }
    let mut templates: BTreeMap<GroupId, Vec<&str>> = BTreeMap::new();
    for leaf in leaves {
        let of_group = templates.entry(leaf.group).or_default();
        if of_group.len() < TEMPLATES_SHOWN {
            of_group.push(&leaf.template);
        }
    }
    for group in groups.values_mut() {
        let others = templates.get(&group.id).into_iter().flatten().copied();
        group.template = common_template(&group.template, others);
    }
    let mut all: Vec<Group> = groups.into_values().collect();
    all.sort_by(|a, b| b.open.cmp(&a.open).then(b.failures.cmp(&a.failures)).then(a.id.cmp(&b.id)));
    all
}
