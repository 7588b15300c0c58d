//! What every page has around it: the name of the installation, the navigation with its counts, the theme. A page
//! that its visitor may not open is not offered.

use super::assets::{ICON_PATH, SCRIPT_PATH, STYLE_PATH};
use super::text::number;
use super::visitor::{Theme, Visitor};
use crate::config::{Colour, Config};
use redrive_core::breaker::BreakerState;
use redrive_core::group::{Group, GroupQuery, GroupStatus};
use redrive_core::query::PageRequest;
use redrive_core::store::{Letters as _, Role, Store as _, Work as _};

/// A page of the navigation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    Overview,
    Groups,
    Letters,
    Operations,
    Queues,
    Breakers,
    Workers,
    Alerts,
    Audit,
    Settings,
}

/// The navigation: its parts with their names, and the pages in each.
const PARTS: [(&str, &[Section]); 3] = [
    ("", &[Section::Overview, Section::Groups, Section::Letters, Section::Operations]),
    ("Run", &[Section::Queues, Section::Breakers, Section::Workers]),
    ("Office", &[Section::Alerts, Section::Audit, Section::Settings]),
];

impl Section {
    const fn path(self) -> &'static str {
        match self {
            Self::Overview => "/",
            Self::Groups => "/groups",
            Self::Letters => "/dlq",
            Self::Operations => "/operations",
            Self::Queues => "/queues",
            Self::Breakers => "/breakers",
            Self::Workers => "/workers",
            Self::Alerts => "/alerts",
            Self::Audit => "/audit",
            Self::Settings => "/settings",
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Overview => "Overview",
            Self::Groups => "Groups",
            Self::Letters => "Dead letters",
            Self::Operations => "Operations",
            Self::Queues => "Queues",
            Self::Breakers => "Breakers",
            Self::Workers => "Workers",
            Self::Alerts => "Alerts",
            Self::Audit => "Audit",
            Self::Settings => "Settings",
        }
    }

    /// Whether somebody whose token is limited to some queues may open it.
    const fn is_for_some_queues(self) -> bool {
        match self {
            Self::Letters | Self::Settings => true,
            Self::Overview
            | Self::Groups
            | Self::Operations
            | Self::Queues
            | Self::Breakers
            | Self::Workers
            | Self::Alerts
            | Self::Audit => false,
        }
    }
}

/// An entry of the navigation.
pub(super) struct Entry {
    pub(super) path: &'static str,
    pub(super) name: &'static str,
    pub(super) count: Option<String>,
    pub(super) is_current: bool,
}

/// A part of the navigation.
pub(super) struct Part {
    pub(super) name: &'static str,
    pub(super) entries: Vec<Entry>,
}

/// What every page has around it.
pub(super) struct Frame {
    pub(super) title: String,
    pub(super) instance: String,
    pub(super) tone: &'static str,
    pub(super) who: String,
    pub(super) theme: Theme,
    /// The path and query of this page, to come back to.
    pub(super) here: String,
    pub(super) parts: Vec<Part>,
    /// Where the events come from that keep the page up to date.
    pub(super) live: Option<&'static str>,
    pub(super) style: &'static str,
    pub(super) script: &'static str,
    pub(super) icon: &'static str,
    /// The time the page was made, for paper.
    pub(super) made_at: String,
}

/// The numbers beside the entries. `None` where the visitor may not know, or the store does not answer.
#[derive(Default)]
struct Counts {
    groups: Option<u64>,
    letters: Option<u64>,
    operations: Option<u64>,
    queues: Option<u64>,
    breakers: Option<u64>,
}

/// Whether a group waits for somebody.
pub(super) fn is_waiting(group: &Group) -> bool {
    match group.status {
        GroupStatus::New | GroupStatus::Acknowledged | GroupStatus::Regressed => group.open > 0,
        GroupStatus::Resolved | GroupStatus::Ignored => false,
    }
}

/// The colour of an installation that names none follows from its name: production is red.
fn colour_of(instance: &str) -> Colour {
    let name = instance.to_ascii_lowercase();
    let begins = |words: &[&str]| words.iter().any(|word| name.starts_with(word));
    if begins(&["prod", "live"]) {
        Colour::Red
    } else if begins(&["stag", "test", "qa", "pre"]) {
        Colour::Amber
    } else if begins(&["dev", "local", "demo"]) {
        Colour::Blue
    } else {
        Colour::Grey
    }
}

async fn counts(visitor: &Visitor) -> Counts {
    if !visitor.sees_all() || !visitor.may(Role::Viewer) {
        return Counts::default();
    }
    let store = &visitor.caller.store;
    let page = PageRequest::first(redrive_core::limits::PAGE_ITEMS_MAX);
    let (groups, stats, operations, breakers) = tokio::join!(
        store.groups(GroupQuery::from(page)),
        store.stats(),
        store.operations(PageRequest::first(50)),
        store.breakers()
    );
    let many = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
    Counts {
        groups: groups.ok().map(|page| many(page.items.iter().filter(|group| is_waiting(group)).count())),
        letters: stats.as_ref().ok().map(|stats| stats.queues.iter().map(|queue| queue.letters_open).sum()),
        queues: stats.as_ref().ok().map(|stats| many(stats.queues.len())),
        operations: operations
            .ok()
            .map(|page| many(page.items.iter().filter(|op| !op.stage.is_over()).count())),
        breakers: breakers
            .ok()
            .map(|all| many(all.iter().filter(|b| b.state != BreakerState::Closed).count())),
    }
}

impl Frame {
    /// The frame of a page in this section.
    pub(super) async fn new(visitor: &Visitor, section: Section, title: impl Into<String>) -> Self {
        let counts = counts(visitor).await;
        let mut frame = Self::bare(
            &visitor.caller.app.config,
            visitor.theme,
            visitor.here.path_and_query().map_or("/groups", |here| here.as_str()),
            title,
        );
        frame.who.clone_from(&visitor.caller.access.name);
        frame.made_at = super::text::exact(visitor.now);
        frame.parts = parts(visitor, section, &counts);
        frame.live = *super::EVENTS;
        frame
    }

    /// A frame without navigation, for the login page and for errors.
    pub(super) fn bare(config: &Config, theme: Theme, here: &str, title: impl Into<String>) -> Self {
        Self {
            title: title.into(),
            instance: config.instance.clone(),
            tone: config.colour.unwrap_or_else(|| colour_of(&config.instance)).name(),
            who: String::new(),
            theme,
            here: here.to_owned(),
            parts: Vec::new(),
            live: None,
            style: STYLE_PATH.as_str(),
            script: SCRIPT_PATH.as_str(),
            icon: ICON_PATH.as_str(),
            made_at: String::new(),
        }
    }
}

fn parts(visitor: &Visitor, current: Section, counts: &Counts) -> Vec<Part> {
    let count = |section: Section| match section {
        Section::Groups => counts.groups.map(number),
        Section::Letters => counts.letters.map(number),
        Section::Operations => counts.operations.filter(|n| *n > 0).map(number),
        Section::Queues => counts.queues.map(number),
        Section::Breakers => counts.breakers.filter(|n| *n > 0).map(|n| format!("{n} open")),
        Section::Overview | Section::Workers | Section::Alerts | Section::Audit | Section::Settings => None,
    };
    let offered = |section: &&Section| visitor.sees_all() || section.is_for_some_queues();
    let entry = |section: &Section| Entry {
        path: section.path(),
        name: section.name(),
        count: count(*section),
        is_current: *section == current,
    };
    let part = |(name, sections): (&'static str, &[Section])| Part {
        name,
        entries: sections.iter().filter(offered).map(entry).collect(),
    };
    PARTS.into_iter().map(part).filter(|part| !part.entries.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn production_is_red() {
        let known = [("prod-eu", "red"), ("Staging", "amber"), ("demo", "blue"), ("redrive", "grey")];
        let theme = Theme::default();
        for (name, tone) in known {
            let mut config = Config { instance: name.into(), ..Config::default() };
            assert_eq!(Frame::bare(&config, theme, "/", "").tone, tone);
            config.colour = Some(Colour::Amber);
            assert_eq!(Frame::bare(&config, theme, "/", "").tone, "amber", "whoever names a colour gets it");
        }
    }
}
