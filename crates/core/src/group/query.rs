//! Which groups, in which order, and everything about one of them. Pure: a store gives all groups and is told
//! which of them are on the page.

use super::facts::{Counted, Facts, Hour};
use super::life::{GroupLife, GroupMark, GroupStatus, Ignored};
use super::{Group, LeafCount, LeafKey};
use crate::classify::Lessons;
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
    /// In which order groups are listed. Equal ones by failures, then by id: a total order.
    GroupSort, "order of groups", {
        /// Most open letters first.
        Count = "count",
        /// Most open letters times hours since it was first seen.
        Impact = "impact",
        /// Latest failure first.
        LastSeen = "last_seen",
    }
}

/// Which groups.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupQuery {
    /// With one of these statuses; any when there are none.
    pub status: Vec<GroupStatus>,
    /// With failures in this queue.
    pub queue: Option<QueueName>,
    /// Looked after by this one; by nobody when it is empty.
    pub owner: Option<String>,
    /// First seen then or later.
    pub since: Option<Time>,
    /// With this text in template, error type or note, in upper or lower case.
    pub text: Option<String>,
    /// In this order; most open letters first when not said.
    pub sort: Option<GroupSort>,
    /// The page.
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
    /// [`Refusal::Invalid`].
    pub fn check(&self) -> Result<(), Refusal> {
        for (field, text) in [("text", &self.text), ("owner", &self.owner)] {
            let length = text.as_ref().map_or(0, String::len);
            if length > limits::LABEL_BYTES_MAX {
                let why = format!("{length} bytes; at most {}", limits::LABEL_BYTES_MAX);
                return Err(Refusal::invalid(field, why));
            }
        }
        Ok(())
    }

    /// Whether a group is wanted.
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

    /// The page of these groups.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] for a cursor of another list, or text that is too long.
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

/// How much a group weighs: its open letters times the hours since it was first seen, the first one included.
fn impact(group: &Group, now: Time) -> u128 {
    let hours = now.since(group.first_seen).as_millis() / Span::from_hours(1).as_millis() + 1;
    u128::from(group.open) * u128::from(hours)
}

/// How many letters and failures of a group are of one queue and kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupShare {
    /// The queue.
    pub queue: QueueName,
    /// The kind; empty when the messages have none.
    pub kind: String,
    /// Letters not closed.
    pub open: u64,
    /// Deaths ever.
    pub total: u64,
    /// Failed deliveries ever.
    pub failures: u64,
}

/// One of a group's latest letters, without its payload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupSample {
    /// The letter.
    pub id: MessageId,
    /// Its queue.
    pub queue: QueueName,
    /// Its kind.
    pub kind: String,
    /// Its status.
    pub status: Status,
    /// When it died.
    pub dead_at: Time,
    /// What its last failure said.
    pub message: String,
}

/// A group that reads much like another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Similar {
    /// The group.
    pub id: GroupId,
    /// How much they have in common, from 0 to 1.
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
    /// Since when it has its status; nothing when it never changed.
    pub since: Option<Time>,
    /// For how long it is ignored, while it is.
    pub ignored: Option<Ignored>,
    /// What happened to it lately, oldest first.
    pub history: Vec<GroupMark>,
    /// The hours of the last two days that had something in them, oldest first.
    pub hours: Vec<Hour>,
    /// Workers that failed with it, most first.
    pub workers: Vec<Counted>,
    /// Versions that failed with it.
    pub versions: Vec<Counted>,
    /// Hosts it failed on.
    pub hosts: Vec<Counted>,
    /// By queue and kind, most failures first.
    pub shares: Vec<GroupShare>,
    /// The most frequent values in the places that vary, from its latest letters.
    pub variables: Vec<Variable>,
    /// Its latest letters.
    pub samples: Vec<GroupSample>,
    /// Groups that read much like it, most alike first.
    pub similar: Vec<Similar>,
    /// The operations that touched its letters, latest first.
    pub operations: Vec<Operation>,
    /// What became of its letters when they were sent back, and what operators said.
    pub outcomes: Lessons,
}

/// What a store reads to show one group.
#[derive(Debug)]
pub struct DetailParts {
    /// The group as it is listed.
    pub group: Group,
    /// Its life.
    pub life: GroupLife,
    /// What was counted.
    pub facts: Facts,
    /// The counts of its leaves.
    pub counts: Vec<(LeafKey, LeafCount)>,
    /// Its latest letters, latest first, at most [`limits::GROUP_LETTERS_READ`].
    pub letters: Vec<GroupSample>,
    /// All groups, itself among them or not.
    pub all: Vec<Group>,
    /// The operations that its facts name, as far as they are known.
    pub operations: Vec<Operation>,
    /// What became of its letters.
    pub outcomes: Lessons,
}

impl GroupDetail {
    /// Puts it together.
    #[must_use]
    pub fn assemble(parts: DetailParts, now: Time) -> Self {
        let DetailParts { group, life, facts, counts, mut letters, all, mut operations, outcomes } = parts;
        let life = life.at(now);
        let messages = letters.iter().map(|letter| letter.message.as_str());
        let variables = variables(&group.template, messages, limits::GROUP_VALUES_SHOWN);
        letters.truncate(limits::GROUP_SAMPLES);
        operations.sort_by_key(|operation| facts.operations().position(|id| id == operation.id));
        Self {
            since: life.since,
            ignored: life.ignored,
            history: life.history,
            hours: facts.hours(now),
            workers: facts.workers(),
            versions: facts.versions(),
            hosts: facts.hosts(),
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

/// Groups less alike than this are not similar.
const ALIKE: f64 = 0.5;

/// The groups that read most like one.
#[must_use]
pub fn similar(group: &Group, all: &[Group]) -> Vec<Similar> {
    let own = words(&group.template);
    let others = all.iter().filter(|other| other.id != group.id);
    let mut found: Vec<Similar> = others
        .map(|other| Similar {
            id: other.id,
            score: alike(group, &own, other),
            open: other.open,
            error_type: other.error_type.clone(),
            template: other.template.clone(),
        })
        .filter(|similar| similar.score >= ALIKE)
        .collect();
    found.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.id.cmp(&b.id)));
    found.truncate(limits::GROUP_SIMILAR_SHOWN);
    found
}

fn words(template: &str) -> BTreeMap<&str, u32> {
    let mut counts = BTreeMap::new();
    for word in template.split_whitespace() {
        *counts.entry(word).or_insert(0) += 1;
    }
    counts
}

/// Twice the words in common by the words of both, and a quarter for the same error type.
fn alike(group: &Group, own: &BTreeMap<&str, u32>, other: &Group) -> f64 {
    let its = words(&other.template);
    let sum = |counts: &BTreeMap<&str, u32>| counts.values().sum::<u32>();
    let common: u32 = own.iter().map(|(word, n)| its.get(word).map_or(0, |m| *n.min(m))).sum();
    let both = f64::from(sum(own) + sum(&its)).max(1.0);
    let typed = if group.error_type == other.error_type { 0.25 } else { 0.0 };
    let score = 0.75 * (2.0 * f64::from(common) / both) + typed;
    (score * 100.0).round() / 100.0
}

/// A moment worth remembering: a deploy, a change of configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Marker {
    /// Its number; later ones have larger ones.
    pub n: u64,
    /// When.
    pub at: Time,
    /// Whose.
    pub by: String,
    /// What.
    pub text: String,
}

/// What is new among groups.
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
    /// Groups first seen since then; nothing without a marker.
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

    /// What of it somebody should know.
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

/// Refuses a marker that says nothing, or too much.
///
/// # Errors
/// [`Refusal::Invalid`].
pub fn check_marker(text: &str) -> Result<(), Refusal> {
    if text.trim().is_empty() || text.len() > limits::LABEL_BYTES_MAX || text.contains(char::is_control) {
        let why = format!("say in 1 to {} printable bytes what happened", limits::LABEL_BYTES_MAX);
        return Err(Refusal::invalid("marker", why));
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
        }
    }

    fn ids(query: &GroupQuery, all: &[Group]) -> Vec<u64> {
        let now = Time::ZERO.plus(Span::from_hours(10));
        let page = query.select(all.to_vec(), now).unwrap();
        page.items.iter().map(|group| all.iter().position(|g| g.id == group.id).unwrap() as u64 + 1).collect()
    }

    #[test]
    fn each_field_narrows_and_each_order_orders() {
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
    fn news_are_what_came_back_and_what_is_new_since_a_marker() {
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
    fn a_marker_says_something() {
        assert!(check_marker("deploy 1.4.2").is_ok());
        for bad in ["", "  ", "a\nb", &"x".repeat(999)] {
            assert!(check_marker(bad).is_err(), "{bad:?}");
        }
    }
}
