//! Groups: all failures of one cause. Counters are kept per leaf; a group is the sum of its leaves, so it is
//! exact at any size and merging moves nothing but the map from leaf to group. The sums are kept beside the leaves
//! ([`GroupSums`]), so that a list of groups reads one row per group; [`sum`] is what they must be equal to.
//!
//! [`life`] is what people and time do to a group, [`facts`] what is counted of it, [`query`] which groups are asked
//! for and what is shown of one.

pub mod facts;
pub mod life;
pub mod query;

pub use facts::{Counted, Facts, Hour};
pub use life::{GroupAct, GroupEvent, GroupLife, GroupMark, GroupStatus, Ignored};
pub use query::{
    GroupDetail, GroupNews, GroupQuery, GroupSample, GroupShare, GroupSort, Marker, Similar, check_marker,
};

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

/// What stands for the kind in the counter of all kinds that have none of their own.
pub const OTHER_KINDS: &str = "(other kinds)";

impl LeafKey {
    /// The counter of the same queue for kinds that have none of their own.
    #[must_use]
    pub fn other_kinds(&self) -> Self {
        Self { kind: OTHER_KINDS.to_owned(), ..self.clone() }
    }
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
    /// The code of the error, which may be all that tells two groups apart.
    #[serde(default)]
    pub code: Option<String>,
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
    /// Where more is written.
    #[serde(default)]
    pub link: Option<String>,
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

/// The sums of a group's leaves, and what its templates have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupSums {
    /// What its leaves have in common, with differing words as `<*>`.
    pub template: String,
    /// The error type of its first leaf.
    pub error_type: String,
    /// The code of its first leaf.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
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
    /// Queues touched, at most [`limits::GROUP_KEYS_MAX`].
    pub queues: BTreeSet<QueueName>,
    /// Kinds touched, at most as many.
    pub kinds: BTreeSet<String>,
}

impl GroupSums {
    /// Adds what became of one counter of a leaf: the change of its numbers, and its times as they are now.
    pub fn add(&mut self, key: &LeafKey, [open, total, failures]: [i64; 3], count: &LeafCount) {
        self.open += open;
        self.total += total;
        self.failures += failures;
        if self.queues.is_empty() {
            (self.first_seen, self.last_seen) = (count.first_seen, count.last_seen);
        }
        self.first_seen = self.first_seen.min(count.first_seen);
        self.last_seen = self.last_seen.max(count.last_seen);
        keep(&mut self.queues, &key.queue);
        if !key.kind.is_empty() {
            keep(&mut self.kinds, &key.kind);
        }
    }

    /// Adds the sums of a group that turned out to be the same; the templates are the caller's business.
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
        other.queues.iter().for_each(|queue| keep(&mut self.queues, queue));
        other.kinds.iter().for_each(|kind| keep(&mut self.kinds, kind));
    }

    /// Whether anything was ever counted.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        !self.queues.is_empty()
    }

    /// What is wrong with these sums, if the recounted ones are right; nothing when both agree.
    #[must_use]
    pub fn difference(&self, counted: &Self) -> Option<String> {
        let numbers = [
            ("open", self.open, counted.open),
            ("total", self.total, counted.total),
            ("failures", self.failures, counted.failures),
        ];
        if let Some((what, shown, counted)) = numbers.into_iter().find(|(_, shown, counted)| shown != counted)
        {
            return Some(format!("{what} shows {shown}, recounted {counted}"));
        }
        if (self.first_seen, self.last_seen) != (counted.first_seen, counted.last_seen) {
            return Some("first and last seen are not those of its leaves".to_owned());
        }
        let face = |sums: &Self| (sums.template.clone(), sums.error_type.clone(), sums.code.clone());
        if face(self) != face(counted) {
            return Some("its template, error type or code is not that of its leaves".to_owned());
        }
        // Of more names than are kept, which ones are depends on the order they came in.
        let full = |names: usize| names >= limits::GROUP_KEYS_MAX;
        let queues = self.queues == counted.queues || full(self.queues.len());
        let kinds = self.kinds == counted.kinds || full(self.kinds.len());
        (!queues || !kinds).then(|| "its queues and kinds are not those of its leaves".to_owned())
    }
}

fn keep<T: Ord + Clone>(names: &mut BTreeSet<T>, name: &T) {
    if names.len() < limits::GROUP_KEYS_MAX && !names.contains(name) {
        names.insert(name.clone());
    }
}

/// A group as a store keeps it: enough for a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupRow {
    /// The sums of its leaves.
    pub sums: GroupSums,
    /// Its life.
    #[serde(default)]
    pub life: GroupLife,
}

impl GroupRow {
    /// The group as people see it at this time.
    #[must_use]
    pub fn view(self, id: GroupId, now: Time) -> Group {
        let status = self.life.status_at(now);
        let Self { sums, life } = self;
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
            owner: life.owner,
            note: life.note,
            link: life.link,
        }
    }
}

/// Sums leaves to groups: what a store's own sums must be equal to.
#[must_use]
pub fn sum(leaves: &[Leaf], counts: &[(LeafKey, LeafCount)]) -> BTreeMap<GroupId, GroupSums> {
    let by_leaf: BTreeMap<LeafId, &Leaf> = leaves.iter().map(|l| (l.id, l)).collect();
    let mut groups: BTreeMap<GroupId, GroupSums> = BTreeMap::new();
    for (key, count) in counts {
        let Some(leaf) = by_leaf.get(&key.leaf) else { continue };
        let face = by_leaf.get(&leaf.group).unwrap_or(leaf);
        let sums = groups.entry(leaf.group).or_insert_with(|| GroupSums {
            template: face.template.clone(),
            error_type: face.error_type.clone(),
            code: face.code.clone(),
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
