//! The life of a group: new, acknowledged, resolved, ignored, regressed. [`GroupStatus::after`] is the only place
//! where a status follows from an event; [`GroupLife`] is that status with who looks after the group, what is
//! known about it and what happened to it. Letters are not its business: resolving a group closes none.
//! Pure: time is told, and what time alone does (the end of being ignored) is seen when somebody looks.

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

named! {
    /// What can happen to a group.
    GroupEvent, "group event", {
        /// Somebody has seen it.
        Acknowledge = "acknowledge",
        /// Somebody says that its cause is gone.
        Resolve = "resolve",
        /// Somebody says that it is not worth a look.
        Ignore = "ignore",
        /// Somebody takes that back.
        Reopen = "reopen",
        /// One more message died of it.
        Died = "died",
        /// The last of its open letters was closed by a success.
        Emptied = "emptied",
        /// It was ignored for long enough.
        Over = "over",
    }
}

impl GroupStatus {
    /// Where an event leads; nothing where it is not possible.
    #[must_use]
    pub const fn after(self, event: GroupEvent) -> Option<Self> {
        match (self, event) {
            (Self::New | Self::Ignored | Self::Regressed, GroupEvent::Acknowledge)
            | (Self::Acknowledged, GroupEvent::Died) => Some(Self::Acknowledged),
            (Self::New | Self::Acknowledged | Self::Ignored | Self::Regressed, GroupEvent::Resolve)
            | (Self::New | Self::Acknowledged | Self::Resolved | Self::Regressed, GroupEvent::Emptied) => {
                Some(Self::Resolved)
            }
            // Whoever ignored it has said so for a time or a count: neither deaths nor successes end it before.
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

    /// How much a person has to know of it when two groups turn out to be one: the lowest stays. A cause that
    /// came back is never hidden, what somebody has seen stays seen, and nothing that nobody judged is ignored or
    /// called resolved.
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

/// What an operator says about a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "act")]
pub enum GroupAct {
    /// Seen.
    Acknowledge,
    /// Its cause is gone. Its letters stay as they are.
    Resolve,
    /// Not worth a look, for a time, for a number of deaths, or until it is reopened.
    Ignore {
        /// It comes back then.
        #[serde(default)]
        until: Option<Time>,
        /// It comes back with that many more deaths.
        #[serde(default)]
        count: Option<u64>,
    },
    /// As if nobody had said anything.
    Reopen,
    /// Who looks after it; nobody when not said.
    Assign {
        /// The person or team.
        #[serde(default)]
        to: Option<String>,
    },
    /// What is known about it; takes the place of what was.
    Note {
        /// The words; nothing takes them away.
        #[serde(default)]
        text: Option<String>,
    },
    /// Where more is written: an issue, a runbook.
    Link {
        /// An http or https address; nothing takes it away.
        #[serde(default)]
        url: Option<String>,
    },
}

impl GroupAct {
    /// What it is to the status of a group, if anything.
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

    /// The verb, as people say it.
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

    /// The verb in the audit trail, where other things are resolved too.
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

    /// What it says beside the verb, for the audit trail and the history.
    #[must_use]
    pub fn detail(&self) -> Option<String> {
        match self {
            Self::Acknowledge | Self::Resolve | Self::Reopen => None,
            Self::Ignore { until, count } => {
                let until = until.map(|until| format!("until {until}"));
                let count = count.map(|count| format!("for {count} more deaths"));
                let said: Vec<String> = until.into_iter().chain(count).collect();
                Some(if said.is_empty() { "until it is reopened".to_owned() } else { said.join(" or ") })
            }
            Self::Assign { to: said } | Self::Note { text: said } | Self::Link { url: said } => {
                Some(said.clone().unwrap_or_else(|| "none".to_owned()))
            }
        }
    }

    /// Refuses what is too long, empty or cannot be meant.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] naming the field.
    pub fn check(&self, now: Time) -> Result<(), Refusal> {
        let text = |field: &str, text: &Option<String>, max: usize| match text {
            Some(text) if text.trim().is_empty() => {
                Err(Refusal::invalid(field, "is empty; leave it out to take away what is there"))
            }
            Some(text) if text.len() > max => {
                Err(Refusal::invalid(field, format!("{} bytes; at most {max}", text.len())))
            }
            Some(_) | None => Ok(()),
        };
        match self {
            Self::Acknowledge | Self::Resolve | Self::Reopen => Ok(()),
            Self::Ignore { count: Some(0), .. } => {
                Err(Refusal::invalid("count", "0 more deaths are none; ignore at least 1"))
            }
            Self::Ignore { until: Some(until), .. } if *until <= now => {
                Err(Refusal::invalid("until", format!("{until} is over; it is {now}")))
            }
            Self::Ignore { .. } => Ok(()),
            Self::Assign { to } => text("owner", to, limits::LABEL_BYTES_MAX),
            Self::Note { text: words } => text("note", words, limits::NOTE_BYTES_MAX),
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

/// The words of the audit trail for a group that is resolved, by a person or by its last success.
pub const RESOLVED: &str = "resolve group";
/// The words of the audit trail for a group that came back by itself.
pub const CAME_BACK: &str = "group came back";
/// Who changes a status when nobody does.
pub const SYSTEM: &str = "system";

/// For how long a group is ignored. With neither it lasts until it is reopened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ignored {
    /// It comes back then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
    /// It comes back with that many more deaths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deaths: Option<u64>,
}

/// Something that happened to a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupMark {
    /// When.
    pub at: Time,
    /// Who.
    pub by: String,
    /// What: a verb, or an event.
    pub what: String,
    /// The status from then on.
    pub status: GroupStatus,
    /// What was said, shortened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
}

/// A group's status, and what people said about the group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GroupLife {
    /// Where it is.
    pub status: GroupStatus,
    /// Since when; nothing when it never changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// For how long it is ignored, while it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignored: Option<Ignored>,
    /// Who looks after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// What is known about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Where more is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// The latest changes, oldest first; at most [`limits::GROUP_HISTORY_MAX`].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<GroupMark>,
}

impl Default for GroupLife {
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

impl GroupLife {
    /// The life as it is at this time: being ignored ends by itself.
    #[must_use]
    pub fn at(&self, now: Time) -> Self {
        let mut life = self.clone();
        life.pass(now);
        life
    }

    /// The status at this time.
    #[must_use]
    pub fn status_at(&self, now: Time) -> GroupStatus {
        if self.is_over(now) { GroupStatus::New } else { self.status }
    }

    fn is_over(&self, now: Time) -> bool {
        let until = self.ignored.and_then(|ignored| ignored.until);
        self.status == GroupStatus::Ignored && until.is_some_and(|until| until <= now)
    }

    /// What time does.
    fn pass(&mut self, now: Time) {
        if self.is_over(now) {
            let at = self.ignored.and_then(|ignored| ignored.until).unwrap_or(now);
            self.go(GroupEvent::Over, at, SYSTEM, Some("its time is over".to_owned()));
        }
    }

    /// Goes where an event leads; says whether the status is another one now.
    fn go(&mut self, event: GroupEvent, at: Time, by: &str, text: Option<String>) -> bool {
        let Some(next) = self.status.after(event).filter(|next| *next != self.status) else { return false };
        self.status = next;
        self.since = Some(at);
        if next != GroupStatus::Ignored {
            self.ignored = None;
        }
        self.mark(at, by, event.name(), text);
        true
    }

    fn mark(&mut self, at: Time, by: &str, what: &str, mut text: Option<String>) {
        if let Some(text) = &mut text {
            cut(text, limits::REASON_BYTES_MAX);
        }
        let (by, what) = (by.to_owned(), what.to_owned());
        self.history.push(GroupMark { at, by, what, status: self.status, text });
        self.forget();
    }

    fn forget(&mut self) {
        let beyond = self.history.len().saturating_sub(limits::GROUP_HISTORY_MAX);
        self.history.drain(..beyond);
    }

    /// The life after an operator's act.
    ///
    /// # Errors
    /// [`Refusal::WrongGroupStatus`] where the status does not allow it, [`Refusal::Invalid`] for words that
    /// cannot be taken.
    pub fn act(&self, id: GroupId, act: &GroupAct, actor: &Actor, now: Time) -> Result<Self, Refusal> {
        act.check(now)?;
        let mut life = self.at(now);
        if let Some(event) = act.event() {
            let status = life.status.after(event).ok_or_else(|| Refusal::WrongGroupStatus {
                group: id,
                status: life.status,
                act: act.name().to_owned(),
                hint: hint(life.status, event).to_owned(),
            })?;
            life.since = Some(now);
            life.status = status;
            life.ignored = None;
        }
        match act {
            GroupAct::Acknowledge | GroupAct::Resolve | GroupAct::Reopen => {}
            GroupAct::Ignore { until, count } => {
                life.ignored = Some(Ignored { until: *until, deaths: *count });
            }
            GroupAct::Assign { to } => life.owner.clone_from(to),
            GroupAct::Note { text } => life.note.clone_from(text),
            GroupAct::Link { url } => life.link.clone_from(url),
        }
        let said = [act.detail(), actor.reason.clone()].into_iter().flatten().collect::<Vec<_>>().join("; ");
        life.mark(now, &actor.name, act.name(), (!said.is_empty()).then_some(said));
        Ok(life)
    }

    /// One more message died of it. Says whether that brought it back.
    pub fn died(&mut self, now: Time) -> bool {
        self.pass(now);
        if let Some(left) = self.ignored.as_mut().and_then(|ignored| ignored.deaths.as_mut()) {
            *left = left.saturating_sub(1);
            if *left == 0 {
                let why = "as many messages died as it was ignored for".to_owned();
                return self.go(GroupEvent::Over, now, SYSTEM, Some(why));
            }
        }
        self.go(GroupEvent::Died, now, SYSTEM, None)
    }

    /// The last of its open letters was closed by a success. Says whether that resolved it.
    pub fn emptied(&mut self, now: Time) -> bool {
        self.pass(now);
        self.go(GroupEvent::Emptied, now, SYSTEM, Some("its last open letter succeeded".to_owned()))
    }

    /// The life of two groups that turned out to be one; what was said about this one goes first.
    #[must_use]
    pub fn joined(mut self, mut other: Self, now: Time) -> Self {
        self.pass(now);
        other.pass(now);
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
                // Whatever ends first ends it for both.
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
        self.history.sort_by_key(|mark| mark.at);
        self.forget();
        self
    }
}

/// What would work instead of an event that a status does not allow.
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
        let resolved = GroupLife { status: GroupStatus::Resolved, ..GroupLife::default() };
        let refused = resolved.act(group(), &GroupAct::Acknowledge, &ada(), NOW).unwrap_err();
        assert!(refused.to_string().contains("reopen it first"), "{refused}");
        let refused = GroupLife::default().act(group(), &GroupAct::Reopen, &ada(), NOW).unwrap_err();
        assert!(matches!(refused, Refusal::WrongGroupStatus { .. }), "{refused}");
        for act in [
            GroupAct::Ignore { until: Some(NOW), count: None },
            GroupAct::Ignore { until: None, count: Some(0) },
            GroupAct::Assign { to: Some(" ".into()) },
            GroupAct::Note { text: Some("x".repeat(limits::NOTE_BYTES_MAX + 1)) },
            GroupAct::Link { url: Some("javascript:alert(1)".into()) },
            GroupAct::Link { url: Some("https://a b".into()) },
        ] {
            let refused = GroupLife::default().act(group(), &act, &ada(), NOW);
            assert!(matches!(refused, Err(Refusal::Invalid { .. })), "{act:?}: {refused:?}");
        }
    }

    #[test]
    fn the_whole_story() {
        let mut life = GroupLife::default();
        assert!(!life.died(NOW));
        let why = Actor { reason: Some("mine".into()), ..ada() };
        life = life.act(group(), &GroupAct::Acknowledge, &why, NOW).unwrap();
        life = life.act(group(), &GroupAct::Assign { to: Some("bob".into()) }, &ada(), NOW).unwrap();
        assert!(!life.died(NOW));
        assert!(life.emptied(NOW) && !life.emptied(NOW));
        assert_eq!(life.status, GroupStatus::Resolved);
        assert!(life.died(NOW) && !life.died(NOW));
        assert_eq!((life.status, life.owner.as_deref()), (GroupStatus::Regressed, Some("bob")));
        let told: Vec<(&str, &str)> =
            life.history.iter().map(|mark| (mark.what.as_str(), mark.by.as_str())).collect();
        let wanted = [("acknowledge", "ada"), ("assign", "ada"), ("emptied", "system"), ("died", "system")];
        assert_eq!(told, wanted);
        assert_eq!(life.history.first().and_then(|mark| mark.text.as_deref()), Some("mine"));
        for n in 0..100_u64 {
            let note = GroupAct::Note { text: Some(format!("{n} {}", "é".repeat(1_000))) };
            life = life.act(group(), &note, &ada(), NOW).unwrap();
        }
        assert_eq!(life.history.len(), limits::GROUP_HISTORY_MAX);
        assert!(life.history.iter().flat_map(|m| &m.text).all(|t| t.len() <= limits::REASON_BYTES_MAX));
    }

    #[test]
    fn what_is_ignored_comes_back_by_itself() {
        let ignore = |until: Option<Time>, count| {
            GroupLife::default().act(group(), &GroupAct::Ignore { until, count }, &ada(), NOW).unwrap()
        };
        let later = NOW.plus(Span::from_hours(1));
        let timed = ignore(Some(later), None);
        assert_eq!(timed.status_at(later.minus(Span::from_millis(1))), GroupStatus::Ignored);
        assert_eq!((timed.status_at(later), timed.at(later).since), (GroupStatus::New, Some(later)));
        let mut timed = timed;
        assert!(!timed.died(NOW) && timed.status == GroupStatus::Ignored);
        assert!(!timed.emptied(NOW) && timed.status == GroupStatus::Ignored);
        assert!(!timed.died(later.plus(Span::from_hours(9))), "it was over before");
        assert_eq!((timed.status, timed.since), (GroupStatus::New, Some(later)));
        let mut counted = ignore(None, Some(3));
        assert!(!counted.died(NOW) && !counted.died(NOW));
        assert_eq!(counted.ignored.and_then(|ignored| ignored.deaths), Some(1));
        assert!(counted.died(NOW));
        assert_eq!((counted.status, counted.ignored), (GroupStatus::New, None));
        let mut forever = ignore(None, None);
        assert!(!forever.died(later) && forever.status_at(Time::NEVER) == GroupStatus::Ignored);
    }

    #[test]
    fn lives_join_so_that_nothing_is_hidden() {
        let of = |status| GroupLife { status, since: Some(NOW), ..GroupLife::default() };
        for a in GroupStatus::ALL {
            for b in GroupStatus::ALL {
                let (one, two) = (of(*a).joined(of(*b), NOW), of(*b).joined(of(*a), NOW));
                assert_eq!(one.status, two.status, "{a} and {b}");
                let open = a.is_open() || b.is_open();
                assert_eq!(one.status.is_open(), open, "{a} and {b}");
            }
        }
        let said = |status, owner: &str, note: &str| GroupLife {
            owner: Some(owner.into()),
            note: Some(note.into()),
            ..of(status)
        };
        let one = said(GroupStatus::New, "ada", "a").joined(said(GroupStatus::Regressed, "bob", "b"), NOW);
        assert_eq!((one.status, one.owner.as_deref()), (GroupStatus::Regressed, Some("ada")));
        assert_eq!(one.note.as_deref(), Some("a\nb"));
        let until = |ms, deaths| GroupLife {
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
    fn it_is_kept_as_json() {
        let life = GroupLife::default()
            .act(group(), &GroupAct::Ignore { until: None, count: Some(2) }, &ada(), NOW)
            .unwrap();
        let text = serde_json::to_string(&life).unwrap();
        assert_eq!(serde_json::from_str::<GroupLife>(&text).unwrap(), life, "{text}");
        assert_eq!(serde_json::from_str::<GroupLife>("{}").unwrap(), GroupLife::default());
    }
}
