//! Which groups to list, in which order, and everything about one of them. All of it is pure: a store passes all its
//! groups and gets the page.

use super::activity::{GroupActivity, Hour, NameCount};
use super::triage::{GroupHistoryEntry, GroupStatus, GroupTriage, Ignored};
use super::{Group, LeafCount, LeafKey};
use crate::classify::OutcomeStats;
use crate::dead_letter::Status;
use crate::error::Refusal;
use crate::failure::named;
use crate::ids::{GroupId, MessageId, QueueName};
use crate::limits;
use crate::metrics::{Alert, AlertLevel};
use crate::operation::Operation;
use crate::query::{Cursor, Page, PageRequest};
use crate::signature::{Variable, variables};
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

named! {
    /// The order in which groups are listed. Ties are broken by failures, then by id, so that the order is total.
    GroupSort, "order of groups", {
        /// Most open letters first.
        Count = "count",
        /// Highest product of open letters and hours since the first failure first.
        Impact = "impact",
        /// Latest failure first.
        LastSeen = "last_seen",
    }
}

/// Selects and orders groups. Fields that are not set do not restrict the result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupQuery {
    /// Groups with one of these statuses; with any status if empty.
    pub status: Vec<GroupStatus>,
    /// Groups with failures in this queue.
    pub queue: Option<QueueName>,
    /// Groups with this owner; without an owner if empty.
    pub owner: Option<String>,
    /// Groups first seen at this time or later.
    pub since: Option<Time>,
    /// Groups with this text in template, error type or note; case is ignored.
    pub text: Option<String>,
    /// The order. Defaults to most open letters first.
    pub sort: Option<GroupSort>,
    /// Whether to fill in [`Group::trend`].
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub trend: bool,
    /// Which page of the result.
    pub page: PageRequest,
}

impl From<PageRequest> for GroupQuery {
    fn from(page: PageRequest) -> Self {
        Self { page, ..Self::default() }
    }
}

impl GroupQuery {
    /// Refuses text that is too long.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] naming the field.
    pub fn check(&self) -> Result<(), Refusal> {
        for (field, text) in [("text", &self.text), ("owner", &self.owner)] {
            let length = text.as_ref().map_or(0, String::len);
            if length > limits::LABEL_BYTES_MAX {
                let reason = format!("{length} bytes; at most {}", limits::LABEL_BYTES_MAX);
                return Err(Refusal::invalid(field, reason));
            }
        }
        Ok(())
    }

    /// Whether the query selects this group.
    #[must_use]
    pub fn matches(&self, group: &Group) -> bool {
        let owner = group.owner.as_deref().unwrap_or_default();
        let has = |text: &str| {
            let text = text.to_lowercase();
            let note = group.note.as_deref().unwrap_or_default();
            [group.template.as_str(), group.error_type.as_str(), note]
                .iter()
                .any(|part| part.to_lowercase().contains(&text))
        };
        (self.status.is_empty() || self.status.contains(&group.status))
            && self.queue.as_ref().is_none_or(|queue| group.queues.contains(queue))
            && self.owner.as_ref().is_none_or(|wanted| wanted == owner)
            && self.since.is_none_or(|since| group.first_seen >= since)
            && self.text.as_deref().is_none_or(has)
    }

    /// Selects, orders and pages these groups.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] if the cursor belongs to another list or a text is too long.
    pub fn select(&self, mut all: Vec<Group>, now: Time) -> Result<Page<Group>, Refusal> {
        self.check()?;
        let start = usize::try_from(self.page.position("g")?.unwrap_or(0)).unwrap_or(usize::MAX);
        all.retain(|group| self.matches(group));
        let sort = self.sort.unwrap_or(GroupSort::Count);
        all.sort_by(|a, b| {
            let first = match sort {
                GroupSort::Count => b.open.cmp(&a.open),
                GroupSort::Impact => impact(b, now).cmp(&impact(a, now)),
                GroupSort::LastSeen => b.last_seen.cmp(&a.last_seen),
            };
            first.then(b.failures.cmp(&a.failures)).then(a.id.cmp(&b.id))
        });
        let end = start.saturating_add(self.page.limit());
        let next = (end < all.len()).then(|| Cursor::after("g", end as u64));
        let items = all.into_iter().skip(start).take(self.page.limit()).collect();
        Ok(Page { next, ..Page::last(items) })
    }
}

/// Open letters times hours since the group was first seen; the first hour counts as one.
fn impact(group: &Group, now: Time) -> u128 {
    let hours = now.since(group.first_seen).as_millis() / Span::from_hours(1).as_millis() + 1;
    u128::from(group.open) * u128::from(hours)
}

/// The letters and failures of a group in one queue and of one kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupShare {
    /// The queue.
    pub queue: QueueName,
    /// The kind; empty if the messages have none.
    pub kind: String,
    /// Letters that are not closed.
    pub open: u64,
    /// Deaths ever.
    pub total: u64,
    /// Failed deliveries ever.
    pub failures: u64,
}

/// One of the latest letters of a group, without its payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupSample {
    /// The id of the letter.
    pub id: MessageId,
    /// Its queue.
    pub queue: QueueName,
    /// Its kind.
    pub kind: String,
    /// Its status.
    pub status: Status,
    /// When it died.
    pub dead_at: Time,
    /// The error message of its last failure.
    pub message: String,
}

/// A group with a template like that of another group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SimilarGroup {
    /// The id of the similar group.
    pub id: GroupId,
    /// How similar they are, from 0 to 1.
    pub score: f64,
    /// Its open letters.
    pub open: u64,
    /// Its error type.
    pub error_type: String,
    /// Its template.
    pub template: String,
}

/// Everything about one group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupDetail {
    /// The group.
    #[serde(flatten)]
    pub group: Group,
    /// When its status last changed; `None` if it never did.
    pub since: Option<Time>,
    /// While it is ignored, for how long.
    pub ignored: Option<Ignored>,
    /// Its latest changes, oldest first.
    pub history: Vec<GroupHistoryEntry>,
    /// The hours of the last two days in which something happened, oldest first.
    pub hours: Vec<Hour>,
    /// The workers on which it failed, most failures first.
    pub workers: Vec<NameCount>,
    /// The versions in which it failed, most failures first.
    pub versions: Vec<NameCount>,
    /// The hosts on which it failed, most failures first.
    pub hosts: Vec<NameCount>,
    /// Its letters and failures by queue and kind, most failures first.
    pub shares: Vec<GroupShare>,
    /// The most frequent values of the variable parts of its template, taken from its latest letters.
    pub variables: Vec<Variable>,
    /// Its latest letters.
    pub samples: Vec<GroupSample>,
    /// Groups with similar templates, most similar first.
    pub similar: Vec<SimilarGroup>,
    /// The operations that touched its letters, latest first.
    pub operations: Vec<Operation>,
    /// What became of its letters when they were redriven, and what operators decided.
    pub outcomes: OutcomeStats,
}

/// What a store reads to show one group.
#[derive(Debug)]
pub struct DetailParts {
    /// The group as it is listed.
    pub group: Group,
    /// Its status, and what operators did to it.
    pub triage: GroupTriage,
    /// What was counted of it.
    pub activity: GroupActivity,
    /// The counters of its leaves.
    pub counts: Vec<(LeafKey, LeafCount)>,
    /// Its latest letters, latest first, at most [`limits::GROUP_LETTERS_READ`].
    pub letters: Vec<GroupSample>,
    /// All groups; it does not matter whether this group is among them.
    pub all: Vec<Group>,
    /// The operations named in its activity that the store still knows.
    pub operations: Vec<Operation>,
    /// What became of its letters when they were redriven.
    pub outcomes: OutcomeStats,
}

impl GroupDetail {
    /// Puts the detail of a group together.
    #[must_use]
    pub fn assemble(parts: DetailParts, now: Time) -> Self {
        let DetailParts { group, triage, activity, counts, mut letters, all, mut operations, outcomes } =
            parts;
        let triage = triage.at(now);
        let messages = letters.iter().map(|letter| letter.message.as_str());
        let variables = variables(&group.template, messages, limits::GROUP_VALUES_SHOWN);
        letters.truncate(limits::GROUP_SAMPLES);
        operations.sort_by_key(|operation| activity.operations().position(|id| id == operation.id));
        Self {
            since: triage.since,
            ignored: triage.ignored,
            history: triage.history,
            hours: activity.hours(now),
            workers: activity.workers(),
            versions: activity.versions(),
            hosts: activity.hosts(),
            shares: shares(&counts),
            variables,
            samples: letters,
            similar: similar(&group, &all),
            operations,
            outcomes,
            group,
        }
    }
}

fn shares(counts: &[(LeafKey, LeafCount)]) -> Vec<GroupShare> {
    let mut sums: BTreeMap<(&QueueName, &str), GroupShare> = BTreeMap::new();
    for (key, count) in counts {
        let share = sums.entry((&key.queue, &key.kind)).or_insert_with(|| GroupShare {
            queue: key.queue.clone(),
            kind: key.kind.clone(),
            open: 0,
            total: 0,
            failures: 0,
        });
        share.open = share.open.saturating_add_signed(count.open);
        share.total = share.total.saturating_add_signed(count.total);
        share.failures = share.failures.saturating_add_signed(count.failures);
    }
    let mut all: Vec<GroupShare> = sums.into_values().collect();
    all.sort_by_key(|share| std::cmp::Reverse(share.failures));
    all.truncate(limits::GROUP_SHARES_SHOWN);
    all
}

/// The minimum score of similar groups.
const SIMILAR_MIN: f64 = 0.5;

/// The groups that are most similar to `group`.
#[must_use]
pub fn similar(group: &Group, all: &[Group]) -> Vec<SimilarGroup> {
    let own = word_counts(&group.template);
    let others = all.iter().filter(|other| other.id != group.id);
    let mut found: Vec<SimilarGroup> = others
        .map(|other| SimilarGroup {
            id: other.id,
            score: similarity(group, &own, other),
            open: other.open,
            error_type: other.error_type.clone(),
            template: other.template.clone(),
        })
        .filter(|similar| similar.score >= SIMILAR_MIN)
        .collect();
    found.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.id.cmp(&b.id)));
    found.truncate(limits::GROUP_SIMILAR_SHOWN);
    found
}

fn word_counts(template: &str) -> BTreeMap<&str, u32> {
    let mut counts = BTreeMap::new();
    for word in template.split_whitespace() {
        *counts.entry(word).or_insert(0) += 1;
    }
    counts
}

/// The similarity of two groups: three quarters for the share of common words (the Dice coefficient of the templates),
/// a quarter for the same error type.
fn similarity(group: &Group, own: &BTreeMap<&str, u32>, other: &Group) -> f64 {
    let its = word_counts(&other.template);
    let sum = |counts: &BTreeMap<&str, u32>| counts.values().sum::<u32>();
    let common: u32 = own.iter().map(|(word, n)| its.get(word).map_or(0, |m| *n.min(m))).sum();
    let both = f64::from(sum(own) + sum(&its)).max(1.0);
    let same_type = if group.error_type == other.error_type { 0.25 } else { 0.0 };
    let score = 0.75 * (2.0 * f64::from(common) / both) + same_type;
    (score * 100.0).round() / 100.0
}

/// A moment worth remembering, such as a deploy or a change of configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marker {
    /// Its number; later markers have larger numbers.
    pub n: u64,
    /// When it was set.
    pub at: Time,
    /// Who set it.
    pub by: String,
    /// What happened.
    pub text: String,
}

/// What is new among the groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupNews {
    /// Groups with open letters.
    pub open: u64,
    /// Groups that nobody has looked at.
    pub new: u64,
    /// Groups that came back after they were resolved.
    pub regressed: u64,
    /// The latest marker.
    pub marker: Option<Marker>,
    /// Groups first seen since the marker; `None` without a marker.
    pub new_since_marker: Option<u64>,
}

impl GroupNews {
    /// Counts what is new.
    #[must_use]
    pub fn of(groups: &[Group], marker: Option<Marker>) -> Self {
        let count =
            |wanted: &dyn Fn(&Group) -> bool| groups.iter().filter(|group| wanted(group)).count() as u64;
        Self {
            open: count(&|group| group.open > 0),
            new: count(&|group| group.status == GroupStatus::New),
            regressed: count(&|group| group.status == GroupStatus::Regressed),
            new_since_marker: marker.as_ref().map(|marker| count(&|group| group.first_seen >= marker.at)),
            marker,
        }
    }

    /// The alerts that follow from these counts.
    #[must_use]
    pub fn alerts(&self) -> Vec<Alert> {
        let alert = |rule: &str, text| Alert {
            rule: rule.to_owned(),
            level: AlertLevel::Warning,
            subject: "groups".to_owned(),
            text,
        };
        let mut alerts = Vec::new();
        if self.regressed > 0 {
            let text = format!("{} groups came back after they were resolved", self.regressed);
            alerts.push(alert("regressed_groups", text));
        }
        if let (Some(marker), Some(new @ 1..)) = (&self.marker, self.new_since_marker) {
            alerts.push(alert("new_groups", format!("{new} groups are new since {:?}", marker.text)));
        }
        alerts
    }
}

/// Refuses the text of a marker that is empty, too long or not printable.
///
/// # Errors
/// [`Refusal::Invalid`] naming the field.
pub fn check_marker(text: &str) -> Result<(), Refusal> {
    if text.trim().is_empty() || text.len() > limits::LABEL_BYTES_MAX || text.contains(char::is_control) {
        let reason = format!("say in 1 to {} printable bytes what happened", limits::LABEL_BYTES_MAX);
        return Err(Refusal::invalid("marker", reason));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(id: u64, open: u64, template: &str) -> Group {
        Group {
            id: GroupId::new(id),
            template: template.into(),
            error_type: "E".into(),
            code: None,
            status: GroupStatus::New,
            open,
            total: open,
            failures: open,
            first_seen: Time::from_millis(1),
            last_seen: Time::from_millis(1),
            queues: ["a".parse().unwrap()].into(),
            kinds: [String::new()].into(),
            owner: None,
            note: None,
            link: None,
            trend: None,
        }
    }

    fn ids(query: &GroupQuery, all: &[Group]) -> Vec<u64> {
        let now = Time::ZERO.plus(Span::from_hours(10));
        let page = query.select(all.to_vec(), now).unwrap();
        page.items.iter().map(|group| all.iter().position(|g| g.id == group.id).unwrap() as u64 + 1).collect()
    }

    #[test]
    fn every_field_narrows_the_list_and_every_order_sorts_it() {
        let mut all = vec![group(1, 3, "a b c"), group(2, 5, "a B d"), group(3, 4, "x")];
        all[1].first_seen = Time::ZERO.plus(Span::from_hours(8));
        all[2].status = GroupStatus::Ignored;
        all[2].queues = ["b".parse().unwrap()].into();
        all[0].owner = Some("ada".into());
        all[0].last_seen = Time::from_millis(9);
        all[0].note = Some("Bank is down".into());
        let q = GroupQuery::default;
        for (query, wanted) in [
            (q(), vec![2, 3, 1]),
            (GroupQuery { sort: Some(GroupSort::Impact), ..q() }, vec![3, 1, 2]),
            (GroupQuery { sort: Some(GroupSort::LastSeen), ..q() }, vec![1, 2, 3]),
            (GroupQuery { status: vec![GroupStatus::New], ..q() }, vec![2, 1]),
            (GroupQuery { queue: Some("b".parse().unwrap()), ..q() }, vec![3]),
            (GroupQuery { owner: Some("ada".into()), ..q() }, vec![1]),
            (GroupQuery { owner: Some(String::new()), ..q() }, vec![2, 3]),
            (GroupQuery { since: Some(Time::from_millis(2)), ..q() }, vec![2]),
            (GroupQuery { text: Some("a b".into()), ..q() }, vec![2, 1]),
            (GroupQuery { text: Some("BANK".into()), ..q() }, vec![1]),
            (GroupQuery { page: PageRequest::first(2), ..q() }, vec![2, 3]),
        ] {
            assert_eq!(ids(&query, &all), wanted, "{query:?}");
        }
        let first = GroupQuery::from(PageRequest::first(2)).select(all.clone(), Time::ZERO).unwrap();
        let rest = GroupQuery::from(PageRequest { limit: Some(2), cursor: first.next });
        assert_eq!(ids(&rest, &all), [1]);
        let long = GroupQuery { text: Some("x".repeat(9_999)), ..q() };
        assert!(long.select(all, Time::ZERO).is_err());
    }

    #[test]
    fn groups_that_share_words_are_similar() {
        let mine = group(1, 1, "connection to <host> refused");
        let close = group(2, 1, "connection to <host> reset by peer");
        let far = group(3, 1, "row <num> is not a number");
        let mut other_type = group(4, 1, "connection to <host> refused");
        other_type.error_type = "F".into();
        let all = [mine.clone(), close, far, other_type];
        let found: Vec<(GroupId, f64)> = similar(&mine, &all).iter().map(|s| (s.id, s.score)).collect();
        assert_eq!(found, [(GroupId::new(4), 0.75), (GroupId::new(2), 0.7)]);
        assert!(similar(&group(9, 1, ""), &[group(8, 1, "")]).is_empty());
    }

    #[test]
    fn news_counts_regressed_groups_and_groups_new_since_a_marker() {
        let mut all = [group(1, 3, "a"), group(2, 0, "b"), group(3, 1, "c")];
        all[1].status = GroupStatus::Regressed;
        all[2].first_seen = Time::from_millis(50);
        let none = GroupNews::of(&all, None);
        assert_eq!((none.open, none.new, none.regressed, none.new_since_marker), (2, 2, 1, None));
        assert_eq!(none.alerts().len(), 1);
        let marker = Marker { n: 1, at: Time::from_millis(50), by: "ada".into(), text: "deploy".into() };
        let news = GroupNews::of(&all, Some(marker));
        assert_eq!(news.new_since_marker, Some(1));
        let rules: Vec<String> = news.alerts().into_iter().map(|alert| alert.rule).collect();
        assert_eq!(rules, ["regressed_groups", "new_groups"]);
        assert_eq!(GroupNews::of(&[], None).alerts(), []);
    }

    #[test]
    fn a_marker_needs_a_printable_text() {
        assert!(check_marker("deploy 1.4.2").is_ok());
        for bad in ["", "  ", "a\nb", &"x".repeat(999)] {
            assert!(check_marker(bad).is_err(), "{bad:?}");
        }
    }
}
