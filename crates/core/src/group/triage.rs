//! The triage of a group: new, acknowledged, resolved, ignored, regressed. [`GroupStatus::after`] is the only place
//! where a status follows from an event; [`GroupTriage`] is that status with the owner of the group, the notes about it
//! and its history. Letters are not affected: resolving a group closes none of them.
//!
//! Everything here is pure: the caller passes the time, and a change that time alone causes (the end of being ignored)
//! takes effect when the group is next read.

use crate::dead_letter::Actor;
use crate::error::Refusal;
use crate::failure::{cut, named};
use crate::ids::GroupId;
use crate::limits;
use crate::time::Time;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

named! {
    /// The triage status of a group.
    GroupStatus, "group status", {
        /// Nobody has looked at it.
        New = "new",
        /// Somebody has looked at it.
        Acknowledged = "acknowledged",
        /// Its cause is gone.
        Resolved = "resolved",
        /// Not worth a look.
        Ignored = "ignored",
        /// It came back after it was resolved.
        Regressed = "regressed",
    }
}

named! {
    /// What can happen to a group.
    GroupEvent, "group event", {
        /// An operator has seen it.
        Acknowledge = "acknowledge",
        /// An operator says that its cause is gone.
        Resolve = "resolve",
        /// An operator says that it is not worth a look.
        Ignore = "ignore",
        /// An operator makes it new again.
        Reopen = "reopen",
        /// Another message died of it.
        Died = "died",
        /// The last of its open letters was closed by a success.
        Emptied = "emptied",
        /// The time or the number of deaths for which it was ignored is over.
        Over = "over",
    }
}

impl GroupStatus {
    /// The status after an event, or `None` if the event is not possible in this status.
    #[must_use]
    pub const fn after(self, event: GroupEvent) -> Option<Self> {
        match (self, event) {
            (Self::New | Self::Ignored | Self::Regressed, GroupEvent::Acknowledge)
            | (Self::Acknowledged, GroupEvent::Died) => Some(Self::Acknowledged),
            (Self::New | Self::Acknowledged | Self::Ignored | Self::Regressed, GroupEvent::Resolve)
            | (Self::New | Self::Acknowledged | Self::Resolved | Self::Regressed, GroupEvent::Emptied) => {
                Some(Self::Resolved)
            }
            // It is ignored for a time or a number of deaths: neither deaths nor successes end that early.
            (Self::Ignored, GroupEvent::Died | GroupEvent::Emptied) | (_, GroupEvent::Ignore) => {
                Some(Self::Ignored)
            }
            (Self::Acknowledged | Self::Resolved | Self::Ignored, GroupEvent::Reopen)
            | (Self::New, GroupEvent::Died)
            | (Self::Ignored, GroupEvent::Over) => Some(Self::New),
            (Self::Resolved | Self::Regressed, GroupEvent::Died) => Some(Self::Regressed),
            (Self::Acknowledged | Self::Resolved, GroupEvent::Acknowledge)
            | (Self::Resolved, GroupEvent::Resolve)
            | (Self::New | Self::Regressed, GroupEvent::Reopen)
            | (Self::New | Self::Acknowledged | Self::Resolved | Self::Regressed, GroupEvent::Over) => None,
        }
    }

    /// The status with the lowest rank is kept when two groups are merged. A cause that came back is never hidden, an
    /// acknowledgement is kept, and a group that nobody judged does not become ignored or resolved.
    const fn rank(self) -> u8 {
        match self {
            Self::Regressed => 0,
            Self::Acknowledged => 1,
            Self::New => 2,
            Self::Ignored => 3,
            Self::Resolved => 4,
        }
    }

    /// Whether somebody should look at it.
    #[must_use]
    pub const fn is_open(self) -> bool {
        matches!(self, Self::New | Self::Acknowledged | Self::Regressed)
    }
}

/// An act of an operator on a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "act")]
pub enum GroupAct {
    /// Note that it was seen.
    Acknowledge,
    /// Note that its cause is gone. Its letters stay as they are.
    Resolve,
    /// Ignore it for a time, for a number of deaths, or until it is reopened.
    Ignore {
        /// When it becomes new again.
        #[serde(default)]
        until: Option<Time>,
        /// The number of further deaths after which it becomes new again.
        #[serde(default)]
        count: Option<u64>,
    },
    /// Make it new again.
    Reopen,
    /// Set its owner.
    Assign {
        /// The person or team; `None` removes the owner.
        #[serde(default)]
        to: Option<String>,
    },
    /// Replace the note about it.
    Note {
        /// The text; `None` removes the note.
        #[serde(default)]
        text: Option<String>,
    },
    /// Replace the link to an issue or a runbook.
    Link {
        /// An http or https address; `None` removes the link.
        #[serde(default)]
        url: Option<String>,
    },
}

impl GroupAct {
    /// The event that this act is for the status of the group, if any.
    #[must_use]
    pub const fn event(&self) -> Option<GroupEvent> {
        match self {
            Self::Acknowledge => Some(GroupEvent::Acknowledge),
            Self::Resolve => Some(GroupEvent::Resolve),
            Self::Ignore { .. } => Some(GroupEvent::Ignore),
            Self::Reopen => Some(GroupEvent::Reopen),
            Self::Assign { .. } | Self::Note { .. } | Self::Link { .. } => None,
        }
    }

    /// The verb, as shown to users.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Acknowledge => "acknowledge",
            Self::Resolve => "resolve",
            Self::Ignore { .. } => "ignore",
            Self::Reopen => "reopen",
            Self::Assign { .. } => "assign",
            Self::Note { .. } => "note",
            Self::Link { .. } => "link",
        }
    }

    /// The verb in the audit trail, which says that the target is a group.
    #[must_use]
    pub const fn audit_name(&self) -> &'static str {
        match self {
            Self::Acknowledge => "acknowledge group",
            Self::Resolve => RESOLVED,
            Self::Ignore { .. } => "ignore group",
            Self::Reopen => "reopen group",
            Self::Assign { .. } => "assign group",
            Self::Note { .. } => "note group",
            Self::Link { .. } => "link group",
        }
    }

    /// The arguments of the act in words, for the audit trail and the history.
    #[must_use]
    pub fn detail(&self) -> Option<String> {
        match self {
            Self::Acknowledge | Self::Resolve | Self::Reopen => None,
            Self::Ignore { until, count } => {
                let until = until.map(|until| format!("until {until}"));
                let count = count.map(|count| format!("for {count} more deaths"));
                let limits: Vec<String> = until.into_iter().chain(count).collect();
                Some(if limits.is_empty() { "until it is reopened".to_owned() } else { limits.join(" or ") })
            }
            Self::Assign { to: value } | Self::Note { text: value } | Self::Link { url: value } => {
                Some(value.clone().unwrap_or_else(|| "none".to_owned()))
            }
        }
    }

    /// Refuses values that are empty, too long or out of range.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] naming the field.
    pub fn check(&self, now: Time) -> Result<(), Refusal> {
        let text = |field: &str, text: &Option<String>, max: usize| match text {
            Some(text) if text.trim().is_empty() => {
                Err(Refusal::invalid(field, "is empty; leave it out to remove the present one"))
            }
            Some(text) if text.len() > max => {
                Err(Refusal::invalid(field, format!("{} bytes; at most {max}", text.len())))
            }
            Some(_) | None => Ok(()),
        };
        match self {
            Self::Acknowledge | Self::Resolve | Self::Reopen => Ok(()),
            Self::Ignore { count: Some(0), .. } => Err(Refusal::invalid("count", "must be at least 1")),
            Self::Ignore { until: Some(until), .. } if *until <= now => {
                Err(Refusal::invalid("until", format!("{until} is in the past; it is {now}")))
            }
            Self::Ignore { .. } => Ok(()),
            Self::Assign { to } => text("owner", to, limits::LABEL_BYTES_MAX),
            Self::Note { text: note } => text("note", note, limits::NOTE_BYTES_MAX),
            Self::Link { url } => {
                text("link", url, limits::LINK_BYTES_MAX)?;
                let web = |url: &&String| url.starts_with("https://") || url.starts_with("http://");
                let plain = |url: &&String| !url.contains(|c: char| c.is_control() || c.is_whitespace());
                match url.as_ref().filter(|url| !(web(url) && plain(url))) {
                    Some(_) => {
                        Err(Refusal::invalid("link", "an address that begins with https:// or http://"))
                    }
                    None => Ok(()),
                }
            }
        }
    }
}

/// The act in the audit trail for a group that was resolved, by an operator or by its last success.
pub const RESOLVED: &str = "resolve group";
/// The act in the audit trail for a group that came back by itself.
pub const CAME_BACK: &str = "group came back";
/// The name in the history for changes that no operator made.
pub const SYSTEM: &str = "system";

/// How long a group is ignored. If neither field is set, it is ignored until it is reopened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ignored {
    /// When it becomes new again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// The number of further deaths after which it becomes new again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deaths: Option<u64>,
}

/// One entry in the history of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupHistoryEntry {
    /// When it happened.
    pub at: Time,
    /// The operator, or [`SYSTEM`].
    pub by: String,
    /// The act or the event.
    pub what: String,
    /// The status from then on.
    pub status: GroupStatus,
    /// The arguments of the act and the reason for it, shortened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// The status of a group, and what operators did to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupTriage {
    /// The status.
    pub status: GroupStatus,
    /// When the status last changed; `None` if it never did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// While it is ignored, for how long.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignored: Option<Ignored>,
    /// The person or team that looks after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// What an operator noted about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// A link to an issue or a runbook.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// The latest changes, oldest first; at most [`limits::GROUP_HISTORY_MAX`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<GroupHistoryEntry>,
}

impl Default for GroupTriage {
    fn default() -> Self {
        Self {
            status: GroupStatus::New,
            since: None,
            ignored: None,
            owner: None,
            note: None,
            link: None,
            history: Vec::new(),
        }
    }
}

impl GroupTriage {
    /// The triage at this time, with the end of being ignored applied.
    #[must_use]
    pub fn at(&self, now: Time) -> Self {
        let mut triage = self.clone();
        triage.apply_time(now);
        triage
    }

    /// The status at this time.
    #[must_use]
    pub fn status_at(&self, now: Time) -> GroupStatus {
        if self.is_ignore_over(now) { GroupStatus::New } else { self.status }
    }

    fn is_ignore_over(&self, now: Time) -> bool {
        let until = self.ignored.and_then(|ignored| ignored.until);
        self.status == GroupStatus::Ignored && until.is_some_and(|until| until <= now)
    }

    /// Ends being ignored if its time is over.
    fn apply_time(&mut self, now: Time) {
        if self.is_ignore_over(now) {
            let at = self.ignored.and_then(|ignored| ignored.until).unwrap_or(now);
            self.apply(GroupEvent::Over, at, SYSTEM, Some("its time is over".to_owned()));
        }
    }

    /// Applies an event. Returns whether the status changed.
    fn apply(&mut self, event: GroupEvent, at: Time, by: &str, text: Option<String>) -> bool {
        let Some(next) = self.status.after(event).filter(|next| *next != self.status) else { return false };
        self.status = next;
        self.since = Some(at);
        if next != GroupStatus::Ignored {
            self.ignored = None;
        }
        self.push_history(at, by, event.name(), text);
        true
    }

    fn push_history(&mut self, at: Time, by: &str, what: &str, mut text: Option<String>) {
        if let Some(text) = &mut text {
            cut(text, limits::REASON_BYTES_MAX);
        }
        let (by, what) = (by.to_owned(), what.to_owned());
        self.history.push(GroupHistoryEntry { at, by, what, status: self.status, text });
        self.trim_history();
    }

    fn trim_history(&mut self) {
        let excess = self.history.len().saturating_sub(limits::GROUP_HISTORY_MAX);
        self.history.drain(..excess);
    }

    /// The triage after an act of an operator.
    ///
    /// # Errors
    /// [`Refusal::WrongGroupStatus`] if the status does not allow the act, [`Refusal::Invalid`] if a value is empty,
    /// too long or out of range.
    pub fn act(&self, id: GroupId, act: &GroupAct, actor: &Actor, now: Time) -> Result<Self, Refusal> {
        act.check(now)?;
        let mut triage = self.at(now);
        if let Some(event) = act.event() {
            let status = triage.status.after(event).ok_or_else(|| Refusal::WrongGroupStatus {
                group: id,
                status: triage.status,
                act: act.name().to_owned(),
                hint: hint(triage.status, event).to_owned(),
            })?;
            triage.since = Some(now);
            triage.status = status;
            triage.ignored = None;
        }
        match act {
            GroupAct::Acknowledge | GroupAct::Resolve | GroupAct::Reopen => {}
            GroupAct::Ignore { until, count } => {
                triage.ignored = Some(Ignored { until: *until, deaths: *count });
            }
            GroupAct::Assign { to } => triage.owner.clone_from(to),
            GroupAct::Note { text } => triage.note.clone_from(text),
            GroupAct::Link { url } => triage.link.clone_from(url),
        }
        let text = [act.detail(), actor.reason.clone()].into_iter().flatten().collect::<Vec<_>>().join("; ");
        triage.push_history(now, &actor.name, act.name(), (!text.is_empty()).then_some(text));
        Ok(triage)
    }

    /// Records that another message died of it. Returns whether that changed the status, so that somebody should look.
    pub fn record_death(&mut self, now: Time) -> bool {
        self.apply_time(now);
        if let Some(left) = self.ignored.as_mut().and_then(|ignored| ignored.deaths.as_mut()) {
            *left = left.saturating_sub(1);
            if *left == 0 {
                let text = "as many messages died as it was ignored for".to_owned();
                return self.apply(GroupEvent::Over, now, SYSTEM, Some(text));
            }
        }
        self.apply(GroupEvent::Died, now, SYSTEM, None)
    }

    /// Records that the last of its open letters was closed by a success. Returns whether that resolved the group.
    pub fn record_emptied(&mut self, now: Time) -> bool {
        self.apply_time(now);
        self.apply(GroupEvent::Emptied, now, SYSTEM, Some("its last open letter succeeded".to_owned()))
    }

    /// The combined triage of two groups that are merged. Where both have a value, this one's is kept or comes first.
    #[must_use]
    pub fn joined(mut self, mut other: Self, now: Time) -> Self {
        self.apply_time(now);
        other.apply_time(now);
        if other == Self::default() && self.status.rank() <= other.status.rank() {
            return self;
        }
        let first = |a: Option<Time>, b: Option<Time>| match (a, b) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        if self.status == other.status {
            self.since = first(self.since, other.since);
            if let (Some(mine), Some(its)) = (&mut self.ignored, other.ignored) {
                // Whichever limit is reached first ends it for both.
                mine.until = first(mine.until, its.until);
                mine.deaths = match (mine.deaths, its.deaths) {
                    (Some(a), Some(b)) => Some(a.min(b)),
                    (a, b) => a.or(b),
                };
            }
        } else if other.status.rank() < self.status.rank() {
            (self.status, self.since, self.ignored) = (other.status, other.since, other.ignored);
        }
        self.owner = self.owner.or(other.owner);
        self.link = self.link.or(other.link);
        self.note = match (self.note, other.note) {
            (Some(mine), Some(its)) if mine != its => {
                let mut both = format!("{mine}\n{its}");
                cut(&mut both, limits::NOTE_BYTES_MAX);
                Some(both)
            }
            (mine, its) => mine.or(its),
        };
        self.history.append(&mut other.history);
        self.history.sort_by_key(|entry| entry.at);
        self.trim_history();
        self
    }
}

/// What to do instead of an event that a status does not allow.
const fn hint(status: GroupStatus, event: GroupEvent) -> &'static str {
    match (status, event) {
        (GroupStatus::Resolved, GroupEvent::Acknowledge) => "reopen it first",
        (GroupStatus::New | GroupStatus::Regressed, GroupEvent::Reopen) => "it is open already",
        (_, _) => "it is that already",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Span;

    const NOW: Time = Time::from_millis(1_000_000_000);

    fn ada() -> Actor {
        Actor::new("ada", "test")
    }

    fn group() -> GroupId {
        GroupId::new(7)
    }

    /// Every status and every event, written out by hand.
    #[test]
    fn the_table_is_complete() {
        #[rustfmt::skip]
        let table = [
            // event          new             acknowledged    resolved        ignored         regressed
            ("acknowledge", ["acknowledged", "-",            "-",            "acknowledged", "acknowledged"]),
            ("resolve",     ["resolved",     "resolved",     "-",            "resolved",     "resolved"]),
            ("ignore",      ["ignored",      "ignored",      "ignored",      "ignored",      "ignored"]),
            ("reopen",      ["-",            "new",          "new",          "new",          "-"]),
            ("died",        ["new",          "acknowledged", "regressed",    "ignored",      "regressed"]),
            ("emptied",     ["resolved",     "resolved",     "resolved",     "ignored",      "resolved"]),
            ("over",        ["-",            "-",            "-",            "new",          "-"]),
        ];
        assert_eq!(table.map(|(event, _)| event.parse::<GroupEvent>().unwrap()).as_slice(), GroupEvent::ALL);
        for (event, row) in table {
            let event: GroupEvent = event.parse().unwrap();
            for (status, wanted) in GroupStatus::ALL.iter().zip(row) {
                let found = status.after(event).map_or("-", GroupStatus::name);
                assert_eq!(found, wanted, "{status} after {event}");
            }
        }
    }

    #[test]
    fn illegal_acts_are_refused_with_a_hint_and_change_nothing() {
        let resolved = GroupTriage { status: GroupStatus::Resolved, ..GroupTriage::default() };
        let refused = resolved.act(group(), &GroupAct::Acknowledge, &ada(), NOW).unwrap_err();
        assert!(refused.to_string().contains("reopen it first"), "{refused}");
        let refused = GroupTriage::default().act(group(), &GroupAct::Reopen, &ada(), NOW).unwrap_err();
        assert!(matches!(refused, Refusal::WrongGroupStatus { .. }), "{refused}");
        for act in [
            GroupAct::Ignore { until: Some(NOW), count: None },
            GroupAct::Ignore { until: None, count: Some(0) },
            GroupAct::Assign { to: Some(" ".into()) },
            GroupAct::Note { text: Some("x".repeat(limits::NOTE_BYTES_MAX + 1)) },
            GroupAct::Link { url: Some("javascript:alert(1)".into()) },
            GroupAct::Link { url: Some("https://a b".into()) },
        ] {
            let refused = GroupTriage::default().act(group(), &act, &ada(), NOW);
            assert!(matches!(refused, Err(Refusal::Invalid { .. })), "{act:?}: {refused:?}");
        }
    }

    #[test]
    fn a_group_goes_through_every_status() {
        let mut triage = GroupTriage::default();
        assert!(!triage.record_death(NOW));
        let actor = Actor { reason: Some("mine".into()), ..ada() };
        triage = triage.act(group(), &GroupAct::Acknowledge, &actor, NOW).unwrap();
        triage = triage.act(group(), &GroupAct::Assign { to: Some("bob".into()) }, &ada(), NOW).unwrap();
        assert!(!triage.record_death(NOW));
        assert!(triage.record_emptied(NOW) && !triage.record_emptied(NOW));
        assert_eq!(triage.status, GroupStatus::Resolved);
        assert!(triage.record_death(NOW) && !triage.record_death(NOW));
        assert_eq!((triage.status, triage.owner.as_deref()), (GroupStatus::Regressed, Some("bob")));
        let changes: Vec<(&str, &str)> =
            triage.history.iter().map(|entry| (entry.what.as_str(), entry.by.as_str())).collect();
        let wanted = [("acknowledge", "ada"), ("assign", "ada"), ("emptied", "system"), ("died", "system")];
        assert_eq!(changes, wanted);
        assert_eq!(triage.history.first().and_then(|entry| entry.text.as_deref()), Some("mine"));
        for n in 0..100_u64 {
            let note = GroupAct::Note { text: Some(format!("{n} {}", "é".repeat(1_000))) };
            triage = triage.act(group(), &note, &ada(), NOW).unwrap();
        }
        assert_eq!(triage.history.len(), limits::GROUP_HISTORY_MAX);
        assert!(triage.history.iter().flat_map(|m| &m.text).all(|t| t.len() <= limits::REASON_BYTES_MAX));
    }

    #[test]
    fn an_ignored_group_comes_back_by_itself() {
        let ignore = |until: Option<Time>, count| {
            GroupTriage::default().act(group(), &GroupAct::Ignore { until, count }, &ada(), NOW).unwrap()
        };
        let later = NOW.plus(Span::from_hours(1));
        let timed = ignore(Some(later), None);
        assert_eq!(timed.status_at(later.minus(Span::from_millis(1))), GroupStatus::Ignored);
        assert_eq!((timed.status_at(later), timed.at(later).since), (GroupStatus::New, Some(later)));
        let mut timed = timed;
        assert!(!timed.record_death(NOW) && timed.status == GroupStatus::Ignored);
        assert!(!timed.record_emptied(NOW) && timed.status == GroupStatus::Ignored);
        assert!(!timed.record_death(later.plus(Span::from_hours(9))), "it was over before");
        assert_eq!((timed.status, timed.since), (GroupStatus::New, Some(later)));
        let mut counted = ignore(None, Some(3));
        assert!(!counted.record_death(NOW) && !counted.record_death(NOW));
        assert_eq!(counted.ignored.and_then(|ignored| ignored.deaths), Some(1));
        assert!(counted.record_death(NOW));
        assert_eq!((counted.status, counted.ignored), (GroupStatus::New, None));
        let mut forever = ignore(None, None);
        assert!(!forever.record_death(later) && forever.status_at(Time::NEVER) == GroupStatus::Ignored);
    }

    #[test]
    fn merged_groups_hide_nothing() {
        let of = |status| GroupTriage { status, since: Some(NOW), ..GroupTriage::default() };
        for a in GroupStatus::ALL {
            for b in GroupStatus::ALL {
                let (one, two) = (of(*a).joined(of(*b), NOW), of(*b).joined(of(*a), NOW));
                assert_eq!(one.status, two.status, "{a} and {b}");
                let open = a.is_open() || b.is_open();
                assert_eq!(one.status.is_open(), open, "{a} and {b}");
            }
        }
        let annotated = |status, owner: &str, note: &str| GroupTriage {
            owner: Some(owner.into()),
            note: Some(note.into()),
            ..of(status)
        };
        let one = annotated(GroupStatus::New, "ada", "a")
            .joined(annotated(GroupStatus::Regressed, "bob", "b"), NOW);
        assert_eq!((one.status, one.owner.as_deref()), (GroupStatus::Regressed, Some("ada")));
        assert_eq!(one.note.as_deref(), Some("a\nb"));
        let until = |ms, deaths| GroupTriage {
            ignored: Some(Ignored { until: Some(Time::from_millis(ms)), deaths }),
            ..of(GroupStatus::Ignored)
        };
        let one = until(2_000_000_000, Some(5)).joined(until(3_000_000_000, None), NOW);
        let ignored = one.ignored.unwrap();
        assert_eq!((ignored.until, ignored.deaths), (Some(Time::from_millis(2_000_000_000)), Some(5)));
        let over =
            until(2_000_000_000, None).joined(of(GroupStatus::Resolved), Time::from_millis(2_500_000_000));
        assert_eq!(over.status, GroupStatus::New, "its time was over when they were joined");
    }

    #[test]
    fn json_round_trips_and_fields_have_defaults() {
        let triage = GroupTriage::default()
            .act(group(), &GroupAct::Ignore { until: None, count: Some(2) }, &ada(), NOW)
            .unwrap();
        let text = serde_json::to_string(&triage).unwrap();
        assert_eq!(serde_json::from_str::<GroupTriage>(&text).unwrap(), triage, "{text}");
        assert_eq!(serde_json::from_str::<GroupTriage>("{}").unwrap(), GroupTriage::default());
    }
}
