//! The list of groups, where people land: one row for each cause, by impact, and the same counted by something else.

use super::chart::{Svg, bar, by_hour, sparkline};
use super::diagnosis::{Diagnosis, Figure, Situation, hours};
use super::fields::Asked;
use super::frame::{Frame, Section, is_waiting};
use super::text::{Marked, Pill, When, number, percent, plural, query, shell};
use super::visitor::{Failure, Visitor, see_other};
use super::{render, tables};
use askama::Template;
use axum::response::Response;
use redrive_core::group::{Group, GroupEvent, GroupQuery, GroupSort, GroupStatus};
use redrive_core::limits;
use redrive_core::query::{Cursor, PageRequest};
use redrive_core::store::{Letters as _, Role, Store as _, Work as _};
use redrive_core::time::Time;
use std::collections::BTreeMap;

/// Groups on a page.
const ROWS: usize = 25;
/// The hours of a sparkline.
const SPARK_HOURS: u64 = 12;

/// A row of the list.
pub(super) struct Row {
    pub(super) id: String,
    pub(super) error_type: String,
    pub(super) code: Option<String>,
    pub(super) template: Marked,
    pub(super) place: String,
    pub(super) state: Pill,
    pub(super) spark: Svg,
    pub(super) open: String,
    pub(super) share: String,
    pub(super) last_seen: When,
    pub(super) first_seen: When,
    pub(super) is_fresh: bool,
    pub(super) can_acknowledge: bool,
    pub(super) can_send: bool,
}

/// The state of a group as a pill.
pub(super) fn state(status: GroupStatus) -> Pill {
    match status {
        GroupStatus::New => Pill::new("blue", "New"),
        GroupStatus::Acknowledged => Pill::new("amber", "Acknowledged"),
        GroupStatus::Resolved => Pill::new("green", "Resolved"),
        GroupStatus::Ignored => Pill::new("", "Ignored"),
        GroupStatus::Regressed => Pill::new("red", "Regressed"),
    }
}

/// Where a group happens: kinds, queues, owner.
pub(super) fn place(group: &Group) -> String {
    let some = |names: Vec<&str>| match names.len() {
        0 => None,
        1..=3 => Some(names.join(", ")),
        more => names.first().map(|first| format!("{first} and {} more", more - 1)),
    };
    let kinds = some(group.kinds.iter().map(String::as_str).filter(|kind| !kind.is_empty()).collect());
    let queues = some(group.queues.iter().map(redrive_core::ids::QueueName::as_str).collect());
    let owner = group.owner.as_ref().map(|owner| format!("owner {owner}"));
    [kinds, queues, owner].into_iter().flatten().collect::<Vec<_>>().join(" · ")
}

/// The row of a group.
pub(super) fn row(group: &Group, all_open: u64, now: Time, last_visit: Option<Time>) -> Row {
    let tone = match group.status {
        GroupStatus::Resolved => "healed",
        GroupStatus::Ignored => "quiet",
        GroupStatus::New | GroupStatus::Acknowledged | GroupStatus::Regressed => "",
    };
    let deaths = by_hour(hours(group), SPARK_HOURS, now, |hour| hour.deaths.max(hour.failures));
    Row {
        id: group.id.to_string(),
        error_type: named(&group.error_type),
        code: group.code.clone(),
        template: Marked::new(&group.template),
        place: place(group),
        state: state(group.status),
        spark: sparkline(&deaths, tone, "Failures"),
        open: number(group.open),
        share: if group.open == 0 { String::new() } else { percent(group.open, all_open) },
        last_seen: When::rough(group.last_seen, now),
        first_seen: When::rough(group.first_seen, now),
        is_fresh: last_visit.is_some_and(|visit| group.first_seen > visit),
        can_acknowledge: group.status.after(GroupEvent::Acknowledge).is_some(),
        can_send: group.open > 0,
    }
}

/// The error type, or words for one that is missing.
pub(super) fn named(error_type: &str) -> String {
    if error_type.is_empty() { "Error without a type".into() } else { error_type.to_owned() }
}

/// Which groups to show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tab {
    Open,
    New,
    Regressed,
    Acknowledged,
    Resolved,
    Ignored,
    All,
}

const TABS: [(Tab, &str, &str); 7] = [
    (Tab::Open, "open", "Open"),
    (Tab::New, "new", "New"),
    (Tab::Regressed, "regressed", "Regressed"),
    (Tab::Acknowledged, "acknowledged", "Acknowledged"),
    (Tab::Resolved, "resolved", "Resolved"),
    (Tab::Ignored, "ignored", "Ignored"),
    (Tab::All, "all", "All"),
];

impl Tab {
    fn named(text: Option<&str>) -> Self {
        TABS.into_iter().find(|(_, name, _)| Some(*name) == text).map_or(Self::Open, |(tab, _, _)| tab)
    }

    fn statuses(self) -> Vec<GroupStatus> {
        match self {
            Self::Open => vec![GroupStatus::New, GroupStatus::Acknowledged, GroupStatus::Regressed],
            Self::New => vec![GroupStatus::New],
            Self::Regressed => vec![GroupStatus::Regressed],
            Self::Acknowledged => vec![GroupStatus::Acknowledged],
            Self::Resolved => vec![GroupStatus::Resolved],
            Self::Ignored => vec![GroupStatus::Ignored],
            Self::All => Vec::new(),
        }
    }
}

/// By what failures are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Cause,
    Type,
    Kind,
    Queue,
    Version,
    Host,
}

const BYS: [(By, &str, &str); 6] = [
    (By::Cause, "cause", "By cause"),
    (By::Type, "type", "By error type"),
    (By::Kind, "kind", "By kind"),
    (By::Queue, "queue", "By queue"),
    (By::Version, "version", "By version"),
    (By::Host, "host", "By host"),
];

/// A choice of a list or of tabs.
pub(super) struct Choice {
    pub(super) value: &'static str,
    pub(super) label: &'static str,
    pub(super) href: String,
    pub(super) is_chosen: bool,
}

/// A row of the list by something else than cause.
pub(super) struct Share {
    pub(super) name: String,
    pub(super) count: String,
    pub(super) share: String,
    pub(super) bar: Svg,
    pub(super) href: String,
}

/// The list of groups.
#[derive(Template)]
#[template(path = "groups.html")]
struct GroupsPage {
    frame: Frame,
    diagnosis: Diagnosis,
    figures: Vec<Figure>,
    rows: Vec<Row>,
    shares: Option<Vec<Share>>,
    counted: &'static str,
    tabs: Vec<Choice>,
    bys: Vec<Choice>,
    sorts: Vec<Choice>,
    tab: &'static str,
    text: String,
    queue: String,
    owner: String,
    matching: String,
    next: Option<String>,
    is_empty_store: bool,
    may_act: bool,
    cli: String,
    curl: String,
}

/// Everything that is needed to say what is wrong.
pub(super) async fn situation(visitor: &Visitor) -> Result<Situation, Failure> {
    let store = &visitor.caller.store;
    let page = PageRequest::first(limits::PAGE_ITEMS_MAX);
    let (groups, breakers, stats, markers) = tokio::join!(
        store.groups(GroupQuery { trend: true, ..GroupQuery::from(page) }),
        store.breakers(),
        store.stats(),
        store.markers(PageRequest::first(20))
    );
    Ok(Situation {
        groups: visitor.show(&groups?.items),
        breakers: breakers?,
        stats: stats?,
        markers: visitor.show(&markers?.items),
        now: visitor.now,
    })
}

/// `GET /groups`
pub(super) async fn list(visitor: Visitor, Asked(asked): Asked) -> Result<Response, Failure> {
    if !visitor.sees_all() {
        return Ok(see_other("/dlq"));
    }
    let situation = situation(&visitor).await?;
    let tab = Tab::named(asked.get("state"));
    let (_, tab_name, _) = TABS.into_iter().find(|(known, _, _)| *known == tab).unwrap_or((tab, "open", ""));
    let by = BYS
        .into_iter()
        .find(|(_, name, _)| Some(*name) == asked.get("by"))
        .map_or(By::Cause, |(by, _, _)| by);
    let sort = asked.read("sort").ok().flatten().unwrap_or(GroupSort::Impact);
    let wanted = GroupQuery {
        status: tab.statuses(),
        queue: asked.read("queue")?,
        owner: asked.owned("owner"),
        since: None,
        text: asked.owned("q"),
        sort: Some(sort),
        trend: true,
        page: PageRequest { limit: Some(ROWS), cursor: asked.owned("cursor").map(Cursor::from_text) },
    };
    let matching = situation.groups.iter().filter(|group| wanted.matches(group)).count();
    let chosen = wanted.select(situation.groups.clone(), visitor.now)?;
    let all_open = situation.groups.iter().map(|group| group.open).sum();
    let rows = chosen.items.iter().map(|group| row(group, all_open, visitor.now, visitor.last_visit()));
    let address = |changes: &[(&str, &str)]| tables::address(&visitor.here, changes);
    let (shares, counted) = match by {
        By::Cause => (None, ""),
        By::Type | By::Kind | By::Queue => (Some(shares(by, &situation)), "Open letters"),
        By::Version | By::Host => (Some(shares(by, &situation)), "Failures"),
    };
    let statuses = tab.statuses().iter().map(|status| format!(" --status {status}")).collect::<String>();
    let page = GroupsPage {
        frame: Frame::new(&visitor, Section::Groups, "Groups").await,
        diagnosis: situation.diagnosis(),
        figures: situation.figures(),
        rows: rows.collect(),
        shares,
        counted,
        tabs: TABS
            .map(|(known, value, label)| Choice {
                value,
                label,
                href: address(&[("state", value), ("cursor", "")]),
                is_chosen: known == tab,
            })
            .into(),
        bys: BYS
            .map(|(known, value, label)| Choice {
                value,
                label,
                href: address(&[("by", value)]),
                is_chosen: known == by,
            })
            .into(),
        sorts: [
            (GroupSort::Impact, "Most impact first"),
            (GroupSort::Count, "Most open first"),
            (GroupSort::LastSeen, "Latest first"),
        ]
        .map(|(known, label)| Choice {
            value: known.name(),
            label,
            href: address(&[("sort", known.name())]),
            is_chosen: known == sort,
        })
        .into(),
        tab: tab_name,
        text: asked.text("q"),
        queue: asked.text("queue"),
        owner: asked.text("owner"),
        matching: plural(matching as u64, "group", "groups"),
        next: chosen.next.map(|next| address(&[("cursor", next.as_str())])),
        is_empty_store: situation.groups.is_empty(),
        may_act: visitor.may(Role::Operator),
        cli: format!("redrive group list --sort {sort}{statuses}"),
        curl: tables::curl("GET", &format!("/api/v1/groups?sort={sort}"), None),
    };
    render(&visitor, &page)
}

/// Failures counted by something else than cause, most first.
fn shares(by: By, situation: &Situation) -> Vec<Share> {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    match by {
        By::Cause => {}
        By::Type => {
            for group in situation.groups.iter().filter(|group| is_waiting(group)) {
                *counts.entry(group.error_type.clone()).or_default() += group.open;
            }
        }
        By::Kind => {
            situation.stats.open.iter().for_each(|o| *counts.entry(o.key.kind.clone()).or_default() += o.open)
        }
        By::Queue => situation
            .stats
            .open
            .iter()
            .for_each(|o| *counts.entry(o.key.queue.to_string()).or_default() += o.open),
        By::Version | By::Host => {
            for trend in situation.groups.iter().filter_map(|group| group.trend.as_ref()) {
                let names = if by == By::Version { &trend.versions } else { &trend.hosts };
                names.iter().for_each(|name| *counts.entry(name.name.clone()).or_default() += name.count);
            }
        }
    }
    let field = match by {
        By::Cause => "group",
        By::Type => "type",
        By::Kind => "kind",
        By::Queue => "queue",
        By::Version => "version",
        By::Host => "host",
    };
    let total: u64 = counts.values().sum();
    let mut all: Vec<(String, u64)> = counts.into_iter().filter(|(_, count)| *count > 0).collect();
    all.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    all.truncate(100);
    let share = |(name, count): (String, u64)| Share {
        href: format!(
            "/dlq?filter={}",
            query(&format!("{field}:{} {}", tables::quoted(&name), tables::OPEN))
        ),
        count: number(count),
        share: percent(count, total),
        bar: bar(&[(count, "")], total, "", &percent(count, total)),
        name: if name.is_empty() { "(none)".into() } else { name },
    };
    all.into_iter().map(share).collect()
}

/// The commands that show the same as the page of one group.
pub(super) fn commands(id: &str) -> (String, String) {
    (format!("redrive group show {}", shell(id)), tables::curl("GET", &format!("/api/v1/groups/{id}"), None))
}
