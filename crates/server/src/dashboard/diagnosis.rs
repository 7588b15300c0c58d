//! What is wrong, in one sentence, and the four numbers below it. Pure: made from what the store replied.

use super::chart::by_hour;
use super::frame::is_waiting;
use super::text::{ago, beginning, hour, number, percent, plural, rough, span};
use redrive_core::breaker::{BreakerState, BreakerView};
use redrive_core::group::{Group, GroupStatus, Hour, Marker};
use redrive_core::metrics::Stats;
use redrive_core::time::{Span, Time};

/// A group that appeared this soon after a marker is said to have come with it.
const CAME_WITH: Span = Span::from_secs(30 * 60);
/// A group with this share of the failures, in percent, is the one reason.
const ONE_REASON: u64 = 60;
/// The hours that "today" means.
pub(super) const DAY: u64 = 24;

/// What the store replied about the state of things.
pub(super) struct Situation {
    /// All groups, with their trends.
    pub(super) groups: Vec<Group>,
    pub(super) breakers: Vec<BreakerView>,
    pub(super) stats: Stats,
    /// The latest markers, latest first.
    pub(super) markers: Vec<Marker>,
    pub(super) now: Time,
}

/// The sentence at the top of a page.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Diagnosis {
    pub(super) tone: &'static str,
    pub(super) headline: String,
    pub(super) text: String,
    /// The group it is about.
    pub(super) link: Option<String>,
}

/// One of the four numbers.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Figure {
    pub(super) name: &'static str,
    pub(super) value: String,
    /// What stands beside the value, less prominent.
    pub(super) beside: String,
    pub(super) under: String,
    pub(super) is_bad: bool,
}

/// The hours of a group.
pub(super) fn hours(group: &Group) -> &[Hour] {
    group.trend.as_ref().map_or(&[], |trend| trend.hours.as_slice())
}

impl Situation {
    /// What happened in the last hours, over all groups, oldest first.
    pub(super) fn sum(&self, n: u64, of: impl Fn(&Hour) -> u64) -> Vec<u64> {
        let mut sums = Vec::new();
        for group in &self.groups {
            let values = by_hour(hours(group), n, self.now, &of);
            sums.resize(values.len(), 0);
            sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        }
        sums
    }

    /// The groups with their deaths in the last hours, most deaths first.
    pub(super) fn by_deaths(&self, n: u64) -> Vec<(&Group, u64)> {
        let deaths = |group: &Group| by_hour(hours(group), n, self.now, |hour| hour.deaths).iter().sum();
        let mut all: Vec<(&Group, u64)> = self.groups.iter().map(|group| (group, deaths(group))).collect();
        all.sort_by_key(|(group, deaths)| (std::cmp::Reverse(*deaths), group.id));
        all
    }

    fn open(&self) -> u64 {
        self.stats.queues.iter().map(|queue| queue.letters_open).sum()
    }

    /// The breaker that holds back messages like those of this group.
    fn breaker_of(&self, group: &Group) -> Option<&BreakerView> {
        let open = self
            .breakers
            .iter()
            .filter(|b| b.state != BreakerState::Closed && group.queues.contains(&b.queue));
        open.max_by_key(|breaker| breaker.held)
    }

    /// The marker that a group came with: the last one before it was first seen, or before it came back.
    fn marker_of(&self, group: &Group) -> Option<&Marker> {
        let began = match group.status {
            GroupStatus::Regressed => came_back(hours(group))?,
            GroupStatus::New | GroupStatus::Acknowledged | GroupStatus::Resolved | GroupStatus::Ignored => {
                group.first_seen
            }
        };
        let end = began.plus(Span::from_hours(u64::from(group.status == GroupStatus::Regressed)));
        self.markers.iter().find(|marker| marker.at <= end && began.since(marker.at) < CAME_WITH)
    }

    /// What is wrong, since when, because of what, and what waits.
    pub(super) fn diagnosis(&self) -> Diagnosis {
        let by_deaths = self.by_deaths(DAY);
        let total: u64 = by_deaths.iter().map(|(_, deaths)| deaths).sum();
        let open = self.open();
        let top = by_deaths.first().copied().filter(|(_, deaths)| *deaths > 0);
        match top {
            None if open == 0 => self.all_is_well(),
            None => Diagnosis {
                tone: "amber",
                headline: "Nothing new has died.".into(),
                text: format!(
                    "{} still open from before{}.",
                    plural(open, "dead letter is", "dead letters are"),
                    self.stats.oldest_open_at.map_or_else(String::new, |at| {
                        format!("; the oldest has waited for {}", rough(self.now.since(at)))
                    })
                ),
                link: None,
            },
            Some((group, deaths)) if deaths * 100 >= total * ONE_REASON => {
                self.one_reason(group, deaths, total)
            }
            Some((group, deaths)) => self.several_reasons(&by_deaths, group, deaths, total),
        }
    }

    fn all_is_well(&self) -> Diagnosis {
        let (headline, text) = match self.groups.is_empty() {
            true => {
                ("Nothing has failed yet.", "Failures of one cause will appear here as one group.".to_owned())
            }
            false => {
                ("All is well.", format!("No dead letter is open, and nothing died in the last {DAY} hours."))
            }
        };
        Diagnosis { tone: "green", headline: headline.into(), text, link: None }
    }

    fn one_reason(&self, group: &Group, deaths: u64, total: u64) -> Diagnosis {
        let place = match group.queues.iter().next() {
            Some(queue) if group.queues.len() == 1 => format!("{queue} is"),
            Some(_) => format!("{} queues are", group.queues.len()),
            None => "Work is".into(),
        };
        let (tone, headline) = match is_waiting(group) {
            true => ("red", format!("{place} failing for one reason.")),
            false => ("green", "The main reason of today's failures is dealt with.".into()),
        };
        let mut text = format!(
            "{} of the deaths of the last {DAY} h are one group, {}",
            percent(deaths, total),
            beginning(&group.error_type, 60)
        );
        text.push_str(match group.status {
            GroupStatus::Regressed => ", which came back after it was resolved",
            GroupStatus::New => ", which is new",
            GroupStatus::Acknowledged => ", which somebody is looking at",
            GroupStatus::Resolved | GroupStatus::Ignored => "",
        });
        match self.marker_of(group) {
            Some(marker) => {
                let _ = std::fmt::Write::write_fmt(
                    &mut text,
                    format_args!(
                        "; it came with {:?}, {}",
                        beginning(&marker.text, 40),
                        ago(marker.at, self.now)
                    ),
                );
            }
            None => {
                let _ = std::fmt::Write::write_fmt(
                    &mut text,
                    format_args!("; first seen {}", ago(group.first_seen, self.now)),
                );
            }
        }
        text.push('.');
        if let Some(breaker) = self.breaker_of(group) {
            let since = rough(self.now.since(breaker.since));
            let held = match breaker.held {
                0 => String::new(),
                held => format!(", and {} because of it", plural(held, "message waits", "messages wait")),
            };
            let state = if breaker.state == BreakerState::Open { "open" } else { "half open" };
            // One breaker for a whole queue has the name of the queue.
            let name = match breaker.key.as_str() {
                key if key == breaker.queue.as_str() => format!("of {key}"),
                key => format!("{key} of {}", breaker.queue),
            };
            text.push_str(&format!(" The breaker {name} has been {state} for {since}{held}."));
        }
        Diagnosis { tone, headline, text, link: Some(format!("/groups/{}", group.id)) }
    }

    fn several_reasons(
        &self,
        by_deaths: &[(&Group, u64)],
        group: &Group,
        deaths: u64,
        total: u64,
    ) -> Diagnosis {
        let groups = by_deaths.iter().filter(|(_, deaths)| *deaths > 0).count() as u64;
        let open = self.breakers.iter().filter(|b| b.state != BreakerState::Closed).count() as u64;
        let mut text = format!(
            "{} of the last {DAY} h have {}; the largest, {}, is {} of them.",
            plural(total, "death", "deaths"),
            plural(groups, "cause", "causes"),
            beginning(&group.error_type, 60),
            percent(deaths, total)
        );
        if open > 0 {
            text.push(' ');
            text.push_str(&plural(open, "breaker is open.", "breakers are open."));
        }
        let headline = format!("Work is failing for {} reasons.", number(groups));
        Diagnosis { tone: "red", headline, text, link: Some(format!("/groups/{}", group.id)) }
    }

    /// The four numbers.
    pub(super) fn figures(&self) -> Vec<Figure> {
        let last = |of: fn(&Hour) -> u64| self.sum(1, of).first().copied().unwrap_or(0);
        let (died, closed) = (last(|hour| hour.deaths), last(|hour| hour.closed));
        let since = format!("since {}", hour_begun(self.now));
        let change = match died.cmp(&closed) {
            std::cmp::Ordering::Greater => format!("+{} {since}", number(died - closed)),
            std::cmp::Ordering::Less => format!("−{} {since}", number(closed - died)),
            std::cmp::Ordering::Equal => format!("no change {since}"),
        };
        let fresh = |group: &&Group| {
            group.open > 0 && matches!(group.status, GroupStatus::New | GroupStatus::Regressed)
        };
        let fresh: Vec<&Group> = self.groups.iter().filter(fresh).collect();
        let regressed = fresh.iter().filter(|group| group.status == GroupStatus::Regressed).count() as u64;
        let under = match self.markers.first() {
            Some(marker) => {
                let since = fresh.iter().filter(|group| group.first_seen >= marker.at).count() as u64;
                format!("{} first seen since {}", number(since), beginning(&marker.text, 24))
            }
            None => format!("{} came back", number(regressed)),
        };
        vec![
            Figure {
                name: "Open dead letters",
                value: number(self.open()),
                beside: String::new(),
                under: change,
                is_bad: died > closed,
            },
            Figure {
                name: "Died / closed",
                value: number(died),
                beside: format!(" / {}", number(closed)),
                under: since,
                is_bad: false,
            },
            Figure {
                name: "Oldest open",
                value: self.stats.oldest_open_at.map_or_else(|| "none".into(), |at| span(self.now.since(at))),
                beside: String::new(),
                under: if self.stats.oldest_open_at.is_some() {
                    "since it died".into()
                } else {
                    "nothing waits".into()
                },
                is_bad: false,
            },
            Figure {
                name: "New or regressed groups",
                value: number(fresh.len() as u64),
                beside: String::new(),
                under,
                is_bad: regressed > 0,
            },
        ]
    }
}

/// The beginning of the latest row of hours with deaths: when a group came back, to within an hour.
fn came_back(hours: &[Hour]) -> Option<Time> {
    let mut began: Option<Time> = None;
    for hour in hours.iter().rev().filter(|hour| hour.deaths > 0) {
        if began.is_some_and(|later| later.since(hour.at) > Span::from_hours(1)) {
            break;
        }
        began = Some(hour.at);
    }
    began
}

/// The full hour before a time.
fn hour_begun(now: Time) -> String {
    format!("{}:00", hour(now).get(..2).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use redrive_core::group::GroupTrend;
    use redrive_core::ids::GroupId;

    const NOW: Time = Time::from_millis(1_767_225_600_000);

    fn group(id: u64, status: GroupStatus, deaths: u64) -> Group {
        let hours = vec![Hour { at: NOW, deaths, failures: deaths, closed: 0 }];
        Group {
            id: GroupId::new(id),
            template: "t".into(),
            error_type: format!("Error{id}"),
            code: None,
            status,
            open: deaths,
            total: deaths,
            failures: deaths,
            first_seen: NOW.minus(Span::from_secs(600)),
            last_seen: NOW,
            queues: ["payments".parse().unwrap()].into(),
            kinds: ["charge".into()].into(),
            owner: None,
            note: None,
            link: None,
            trend: Some(Box::new(GroupTrend { hours, versions: Vec::new(), hosts: Vec::new() })),
        }
    }

    fn situation(groups: Vec<Group>) -> Situation {
        let stats = serde_json::json!({
            "now": NOW, "counters": [], "queues": [{"queue": "payments", "waiting": 0, "leased": 0, "bytes": 0,
            "letters_open": groups.iter().map(|g| g.open).sum::<u64>(), "peak": 0, "letters_peak": 0}],
            "process": {"timers": {}, "counters": {}, "gauges": {}, "dead_per_second": 0.0}
        });
        let stats = serde_json::from_value(stats).unwrap();
        Situation { groups, breakers: Vec::new(), stats, markers: Vec::new(), now: NOW }
    }

    #[test]
    fn the_sentence_says_what_since_when_and_because_of_what() {
        let mut now = situation(vec![group(1, GroupStatus::Regressed, 96), group(2, GroupStatus::New, 4)]);
        now.markers.push(Marker {
            n: 1,
            at: NOW.minus(Span::from_secs(300)),
            by: "ci".into(),
            text: "deploy 1.4.2".into(),
        });
        let said = now.diagnosis();
        assert_eq!(said.headline, "payments is failing for one reason.");
        assert_eq!(
            said.text,
            "96 % of the deaths of the last 24 h are one group, Error1, which came back after it was resolved; \
             it came with \"deploy 1.4.2\", 5 min ago."
        );
        assert_eq!(said.link.as_deref(), Some("/groups/0000000000000001"));
        let said = situation(vec![group(1, GroupStatus::New, 40), group(2, GroupStatus::New, 60)]);
        assert!(said.diagnosis().headline.contains("one reason"));
        let said =
            situation(vec![group(1, GroupStatus::New, 50), group(2, GroupStatus::New, 50)]).diagnosis();
        assert_eq!(said.headline, "Work is failing for 2 reasons.");
    }

    #[test]
    fn a_quiet_office_says_so() {
        assert_eq!(situation(Vec::new()).diagnosis().headline, "Nothing has failed yet.");
        assert_eq!(situation(vec![group(1, GroupStatus::Resolved, 0)]).diagnosis().headline, "All is well.");
    }

    #[test]
    fn the_figures_agree_with_the_groups() {
        let figures =
            situation(vec![group(1, GroupStatus::New, 1_200), group(2, GroupStatus::Resolved, 0)]).figures();
        let values: Vec<&str> = figures.iter().map(|figure| figure.value.as_str()).collect();
        assert_eq!(values, ["1,200", "1,200", "none", "1"]);
        assert_eq!(figures.first().map(|f| f.under.as_str()), Some("+1,200 since 00:00"));
    }
}
