//! [`evaluate`]: decides what to tell. It is a pure function of the settings, the facts, the silences, the state of the
//! last evaluation and the time.
//!
//! An alert begins when its value reaches the limit and ends when the value has stayed below a lower limit for a while,
//! so that a value that goes up and down around one limit makes one alert. It is told once, as soon as it is neither
//! silenced nor held back by quiet hours. Counts are told when they have grown, but not again for a while.

use super::facts::{CountFact, Facts, LevelFact, OTHERS};
use super::{ActiveAlert, AlertLevel, AlertSettings, Notice, NoticeStatus, Rule, Silences};
use crate::limits;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How long a group that nobody acknowledged counts as new.
const NEW_FOR: Span = Span::from_days(30);

/// An alert that holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Active {
    /// Since when it holds.
    pub since: Time,
    /// The number of the notice that told it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub told: Option<u64>,
    /// Since when the value is low enough for the alert to end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low_since: Option<Time>,
}

/// A count as it was told last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// The count.
    pub count: u64,
    /// When it was told.
    pub at: Time,
}

/// The depth of a queue at a time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The time.
    pub at: Time,
    /// The number of open letters.
    pub open: f64,
}

/// What must be remembered from one evaluation to the next, also over a restart.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AlertState {
    /// When the rules were evaluated for the first time. What was counted before is not told.
    pub began: Option<Time>,
    /// Groups that were first seen before this are not new any more, whether they were told or not.
    #[serde(default)]
    pub new_from: Time,
    /// The number of the latest notice.
    pub last_number: u64,
    /// The alerts that hold, by rule and subject.
    pub active: BTreeMap<Rule, BTreeMap<String, Active>>,
    /// The counts that were told, by rule and subject.
    pub counted: BTreeMap<Rule, BTreeMap<String, Counted>>,
    /// Two samples of the depth of each queue with open letters, older and newer, to measure growth.
    pub samples: BTreeMap<String, (Sample, Sample)>,
    /// The latest notices, oldest first, for people to look at.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub told: Vec<Notice>,
    /// Notices that were decided but perhaps not sent yet.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outbox: Vec<Notice>,
}

impl AlertState {
    /// From which time on a group must have been seen first to count as new: after the first evaluation, and not so
    /// long ago that it must be known by now.
    #[must_use]
    pub fn new_groups_from(&self, now: Time) -> Time {
        self.began.unwrap_or(now).max(self.new_from).max(now.minus(NEW_FOR))
    }
}

/// The result of an evaluation.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// What to tell now.
    pub notices: Vec<Notice>,
    /// The alerts that hold, for people to look at.
    pub active: Vec<ActiveAlert>,
    /// What to remember.
    pub state: AlertState,
}

/// Decides what to tell. `links` is the address of the server for links in notices.
#[must_use]
pub fn evaluate(
    settings: &AlertSettings,
    facts: &Facts,
    silences: &Silences,
    links: Option<&str>,
    state: &AlertState,
    now: Time,
) -> Evaluation {
    let mut round = Round { settings, silences, links, now, state: state.clone(), notices: Vec::new() };
    let first = round.state.began.is_none();
    round.state.began.get_or_insert(now);
    let horizon = round.state.new_groups_from(now);
    let is_news =
        |fact: &&LevelFact| fact.rule != Rule::NewGroup || fact.since.is_none_or(|at| at >= horizon);
    let mut levels: Vec<LevelFact> = facts.levels.iter().filter(is_news).cloned().collect();
    levels.extend(round.growth(facts, first));
    round.follow(&levels, facts);
    round.tell_levels(&levels);
    round.forget_old_groups();
    for count in &facts.counts {
        round.tell_count(count, first);
    }
    let active = round.view(&levels);
    round.state.told.extend(round.notices.iter().cloned());
    let excess = round.state.told.len().saturating_sub(limits::ALERTS_TOLD_MAX);
    round.state.told.drain(..excess);
    Evaluation { notices: round.notices, active, state: round.state }
}

/// One evaluation while it goes on.
struct Round<'a> {
    settings: &'a AlertSettings,
    silences: &'a Silences,
    links: Option<&'a str>,
    now: Time,
    state: AlertState,
    notices: Vec<Notice>,
}

impl Round<'_> {
    /// How much the depth of each queue grew within the window, from samples that are at least half as old.
    fn growth(&mut self, facts: &Facts, first: bool) -> Vec<LevelFact> {
        let now = self.now;
        let half = Span::from_millis(self.settings.rule(Rule::Growth).window.as_millis() / 2);
        let depths: Vec<&LevelFact> = facts.levels.iter().filter(|fact| fact.rule == Rule::Depth).collect();
        let mut samples = std::mem::take(&mut self.state.samples);
        samples.retain(|queue, _| depths.iter().any(|fact| fact.subject == *queue));
        let mut grown = Vec::new();
        for fact in depths.into_iter().take(limits::ALERTS_SAMPLED_MAX) {
            let sample = Sample { at: now, open: fact.value };
            // A queue without samples had no open letters the last time, unless there was no last time.
            let before = Sample { at: now, open: if first { fact.value } else { 0.0 } };
            let (older, newer) = samples.entry(fact.subject.clone()).or_insert((before, sample));
            if now.since(newer.at) >= half {
                *older = *newer;
                *newer = sample;
            }
            let value = (fact.value - older.open).max(0.0);
            grown.push(LevelFact { rule: Rule::Growth, value, ..fact.clone() });
        }
        self.state.samples = samples;
        grown
    }

    /// Begins alerts, and notes since when the values of others are low.
    fn follow(&mut self, levels: &[LevelFact], facts: &Facts) {
        let now = self.now;
        let mut seen: BTreeMap<Rule, BTreeMap<&str, f64>> = BTreeMap::new();
        for fact in levels {
            seen.entry(fact.rule).or_default().insert(&fact.subject, fact.value);
            let settings = self.settings.rule(fact.rule);
            let room =
                self.state.active.values().map(BTreeMap::len).sum::<usize>() < limits::ALERTS_ACTIVE_MAX;
            let active = self.state.active.entry(fact.rule).or_default();
            if settings.fires(fact.rule, fact.value) && room && !active.contains_key(&fact.subject) {
                let since = fact.since.unwrap_or(now);
                active.insert(fact.subject.clone(), Active { since, told: None, low_since: None });
            }
        }
        for (rule, active) in &mut self.state.active {
            let settings = self.settings.rule(*rule);
            if !settings.enabled {
                active.clear();
            }
            for (subject, alert) in active.iter_mut() {
                let value = seen.get(rule).and_then(|values| values.get(subject.as_str())).copied();
                let low = match value {
                    Some(value) => settings.ends(*rule, value),
                    None => !facts.partial.contains(rule),
                };
                alert.low_since = low.then(|| alert.low_since.unwrap_or(now));
            }
        }
        self.state.active.retain(|_, active| !active.is_empty());
    }

    /// Whether people may be told about this now.
    fn may_tell(&self, rule: Rule, subject: &str, level: AlertLevel) -> bool {
        let quiet = level != AlertLevel::Critical
            && self.settings.quiet_hours.is_some_and(|hours| hours.contains(self.now));
        !quiet && !self.silences.cover(rule, subject, self.now)
    }

    /// Tells alerts that have begun and alerts that have ended.
    fn tell_levels(&mut self, levels: &[LevelFact]) {
        let mut all = std::mem::take(&mut self.state.active);
        for (rule, active) in &mut all {
            let settings = self.settings.rule(*rule);
            let mut begun = Vec::new();
            active.retain(|subject, alert| {
                let over = alert.low_since.is_some_and(|low| self.now.since(low) >= settings.clear_after);
                let silenced = self.silences.cover(*rule, subject, self.now);
                let may_tell = self.may_tell(*rule, subject, settings.level);
                match alert.told {
                    None if over => return false,
                    None => {
                        if alert.low_since.is_none() && may_tell {
                            begun.push(subject.clone());
                        }
                    }
                    Some(_) if over && (!settings.tell_end || silenced) => return false,
                    Some(firing) if over && may_tell => {
                        let held_for = self.now.since(alert.since);
                        let text = format!("it is over, after {}", rounded(held_for));
                        self.tell(*rule, subject, NoticeStatus::Cleared, text, alert.since, Some(firing));
                        return false;
                    }
                    Some(_) => {}
                }
                true
            });
            self.tell_begun(*rule, active, &begun, levels);
        }
        all.retain(|_, active| !active.is_empty());
        self.state.active = all;
    }

    /// Tells the alerts of one rule that have begun. The first few are told one by one, the rest in one notice.
    fn tell_begun(
        &mut self,
        rule: Rule,
        active: &mut BTreeMap<String, Active>,
        begun: &[String],
        levels: &[LevelFact],
    ) {
        let limit = self.settings.rule(rule).limit.0;
        let single = if begun.len() > limits::ALERTS_AT_ONCE_MAX {
            limits::ALERTS_AT_ONCE_MAX - 1
        } else {
            begun.len()
        };
        for subject in begun.iter().take(single) {
            let Some(alert) = active.get_mut(subject) else { continue };
            let fact = levels.iter().find(|fact| fact.rule == rule && fact.subject == *subject);
            let text = fact.map(|fact| fact.text(limit)).unwrap_or_default();
            alert.told = Some(self.tell(rule, subject, NoticeStatus::Firing, text, alert.since, None));
        }
        let rest: Vec<&String> = begun.iter().skip(single).collect();
        if let Some(first) = rest.first() {
            let named: Vec<&str> = rest.iter().take(20).map(|subject| subject.as_str()).collect();
            let text = format!("{} more at the same time: {}", rest.len(), named.join(", "));
            let since = active.get(*first).map_or(self.now, |alert| alert.since);
            let number = self.tell(rule, OTHERS, NoticeStatus::Firing, text, since, None);
            for subject in rest {
                if let Some(alert) = active.get_mut(subject) {
                    alert.told = Some(number);
                }
            }
        }
    }

    /// Keeps the latest of the new groups. Older ones were told; they are recognised by when they were first seen.
    fn forget_old_groups(&mut self) {
        let Some(active) = self.state.active.get_mut(&Rule::NewGroup) else { return };
        let mut seen: Vec<(Time, String)> =
            active.iter().map(|(subject, alert)| (alert.since, subject.clone())).collect();
        seen.sort();
        let excess = seen.len().saturating_sub(limits::ALERTS_NEW_GROUPS_MAX);
        for (since, subject) in seen.into_iter().take(excess) {
            active.remove(&subject);
            self.state.new_from = self.state.new_from.max(since.plus(Span::from_millis(1)));
        }
    }

    /// Tells a count that has grown. What was there before the first evaluation is not told.
    fn tell_count(&mut self, fact: &CountFact, first: bool) {
        let settings = self.settings.rule(fact.rule);
        let CountFact { rule, subject, count } = fact;
        let known = self.state.counted.entry(*rule).or_default();
        if first || !settings.enabled {
            let at = known.get(subject).map_or(Time::ZERO, |counted| counted.at);
            known.insert(subject.clone(), Counted { count: *count, at });
            return;
        }
        let last = known.get(subject).copied().unwrap_or(Counted { count: 0, at: Time::ZERO });
        // A count that shrank belongs to another store, or counters that were lost: begin again from there.
        let new = count.saturating_sub(last.count);
        if *count < last.count {
            known.insert(subject.clone(), Counted { count: *count, at: last.at });
        }
        #[expect(clippy::cast_precision_loss, reason = "compared with a limit")]
        let value = new as f64;
        // What is not told now is told the next time.
        let told_now = self.notices.iter().filter(|notice| notice.rule == *rule).count();
        if told_now >= limits::ALERTS_AT_ONCE_MAX {
            return;
        }
        let rested = self.now.since(last.at) >= settings.again_after || last.at == Time::ZERO;
        if new == 0
            || !settings.fires(*rule, value)
            || !rested
            || !self.may_tell(*rule, subject, settings.level)
        {
            return;
        }
        self.state
            .counted
            .entry(*rule)
            .or_default()
            .insert(subject.clone(), Counted { count: *count, at: self.now });
        let level =
            LevelFact { rule: *rule, subject: subject.clone(), value, detail: String::new(), since: None };
        self.tell(*rule, subject, NoticeStatus::Firing, level.text(settings.limit.0), self.now, None);
    }

    /// Adds a notice and returns its number.
    fn tell(
        &mut self,
        rule: Rule,
        subject: &str,
        status: NoticeStatus,
        text: String,
        since: Time,
        firing: Option<u64>,
    ) -> u64 {
        let settings = self.settings.rule(rule);
        self.state.last_number += 1;
        let number = self.state.last_number;
        self.notices.push(Notice {
            number,
            firing: firing.unwrap_or(number),
            status,
            rule,
            level: settings.level,
            subject: subject.to_owned(),
            text,
            since,
            at: self.now,
            link: link(self.links, rule, subject),
            channels: settings.channels,
        });
        number
    }

    /// The alerts that hold, oldest first.
    fn view(&self, levels: &[LevelFact]) -> Vec<ActiveAlert> {
        let mut view = Vec::new();
        let facts: BTreeMap<(Rule, &str), &LevelFact> =
            levels.iter().map(|fact| ((fact.rule, fact.subject.as_str()), fact)).collect();
        for (rule, active) in &self.state.active {
            let settings = self.settings.rule(*rule);
            for (subject, alert) in active {
                let fact = facts.get(&(*rule, subject.as_str()));
                view.push(ActiveAlert {
                    rule: *rule,
                    level: settings.level,
                    subject: subject.clone(),
                    text: fact.map(|fact| fact.text(settings.limit.0)).unwrap_or_default(),
                    since: alert.since,
                    told: alert.told,
                    link: link(self.links, *rule, subject),
                });
            }
        }
        view.sort_by_key(|alert| alert.since);
        view.truncate(limits::ALERTS_SHOWN_MAX);
        view
    }
}

/// A span without parts that nobody reads.
fn rounded(span: Span) -> Span {
    match span.as_millis() {
        ms @ 0..10_000 => Span::from_millis(ms),
        ms @ 10_000..3_600_000 => Span::from_secs(ms / 1_000),
        ms => Span::from_secs(ms / 60_000 * 60),
    }
}

/// Where to look at the subject of an alert.
fn link(links: Option<&str>, rule: Rule, subject: &str) -> Option<String> {
    let base = links?.trim_end_matches('/');
    Some(match rule {
        Rule::Depth | Rule::Growth | Rule::Poison | Rule::Abandoned | Rule::Utilisation | Rule::Retention => {
            format!("{base}/queues/{subject}")
        }
        Rule::NewGroup | Rule::RegressedGroup if subject == OTHERS => format!("{base}/groups"),
        Rule::NewGroup | Rule::RegressedGroup => format!("{base}/groups/{subject}"),
        Rule::BreakerOpen => format!("{base}/breakers"),
        Rule::OperationHalted => format!("{base}/operations/{subject}"),
        Rule::OldestAge => format!("{base}/dlq"),
        Rule::SlowEnqueue | Rule::DeadLetterRate | Rule::Disk | Rule::StoreDegraded => format!("{base}/"),
    })
}
