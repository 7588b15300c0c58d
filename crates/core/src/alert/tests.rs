//! Tests of the evaluation: tables for each rule, and properties over random sequences.

use super::channel::ChannelSettings;
use super::*;
use crate::time::Span;
use proptest::prelude::*;
use std::collections::BTreeSet;

const START: Time = Time::from_millis(1_767_225_600_000); // 2026-01-01T00:00:00Z

fn at(seconds: u64) -> Time {
    START.plus(Span::from_secs(seconds))
}

/// A store of which only one number is known.
struct Watch {
    settings: AlertSettings,
    silences: Silences,
    state: AlertState,
}

impl Watch {
    fn new() -> Self {
        Self {
            settings: AlertSettings::default(),
            silences: Silences::default(),
            state: AlertState::default(),
        }
    }

    fn with(settings: &str) -> Self {
        let settings: AlertSettings = serde_json::from_str(settings).unwrap();
        settings.check().unwrap();
        Self { settings, ..Self::new() }
    }

    fn look(&mut self, facts: &Facts, now: Time) -> Vec<Notice> {
        let links = Some("https://redrive.example/");
        let done = evaluate(&self.settings, facts, &self.silences, links, &self.state, now);
        let again = evaluate(&self.settings, facts, &self.silences, links, &done.state, now);
        assert_eq!(again.notices, [], "the same facts at the same time tell nothing new");
        self.state = done.state;
        done.notices
    }

    fn depth(&mut self, open: f64, now: Time) -> Vec<(NoticeStatus, u64)> {
        let notices = self.look(&levels(&[(Rule::Depth, "payments", open)]), now);
        notices.into_iter().filter(|n| n.rule == Rule::Depth).map(|n| (n.status, n.firing)).collect()
    }
}

fn levels(values: &[(Rule, &str, f64)]) -> Facts {
    let fact = |(rule, subject, value): &(Rule, &str, f64)| LevelFact {
        rule: *rule,
        subject: (*subject).to_owned(),
        value: *value,
        detail: "E: <*> failed".into(),
        since: None,
    };
    Facts { levels: values.iter().map(fact).collect(), ..Facts::default() }
}

fn groups(ids: &[(&str, Time)]) -> Facts {
    let fact = |(id, since): &(&str, Time)| LevelFact {
        rule: Rule::NewGroup,
        subject: (*id).to_owned(),
        value: 1.0,
        detail: "E: <*> failed".into(),
        since: Some(*since),
    };
    Facts { levels: ids.iter().map(fact).collect(), ..Facts::default() }
}

fn counts(rule: Rule, count: u64) -> Facts {
    let fact = CountFact { rule, subject: "payments".into(), count };
    Facts { counts: vec![fact], ..Facts::default() }
}

#[test]
fn an_alert_begins_at_its_limit_and_ends_below_a_lower_one_for_a_while() {
    let mut watch = Watch::with(r#"{"rules": {"growth": {"enabled": false}}}"#);
    let steps: [(u64, f64, &[NoticeStatus]); 9] = [
        (0, 99.0, &[]),
        (10, 100.0, &[NoticeStatus::Firing]),
        (20, 500.0, &[]),
        (30, 85.0, &[]),
        (40, 79.0, &[]),
        (90, 80.0, &[]),
        (100, 79.0, &[]),
        (159, 0.0, &[]),
        (160, 0.0, &[NoticeStatus::Cleared]),
    ];
    for (seconds, open, expected) in steps {
        let told: Vec<NoticeStatus> = watch.depth(open, at(seconds)).into_iter().map(|told| told.0).collect();
        assert_eq!(told, expected, "at {seconds} s with {open}");
    }
    assert_eq!(watch.depth(100.0, at(170)), [(NoticeStatus::Firing, 3)], "it is another alert");
}

#[test]
fn a_value_that_flaps_around_its_limit_is_told_once() {
    let mut watch = Watch::new();
    let mut told = Vec::new();
    for n in 0..500 {
        told.extend(watch.depth(if n % 2 == 0 { 110.0 } else { 10.0 }, at(n * 10)));
    }
    assert_eq!(told.len(), 1, "{told:?}");
}

#[test]
fn a_new_group_is_told_once_and_those_from_before_never() {
    let mut watch = Watch::new();
    let old = ("0aaa", at(0));
    assert_eq!(watch.look(&groups(&[old]), at(10)).len(), 0);
    let new = ("0bbb", at(15));
    let told = watch.look(&groups(&[old, new]), at(20));
    let subjects: Vec<&str> = told.iter().map(|notice| notice.subject.as_str()).collect();
    assert_eq!(subjects, ["0bbb"]);
    assert_eq!(told[0].link.as_deref(), Some("https://redrive.example/groups/0bbb"));
    assert!(told[0].text.contains("E: <*> failed"));
    for n in 3..2_000 {
        assert_eq!(watch.look(&groups(&[old, new]), at(n * 3_600)).len(), 0, "in hour {n}");
    }
    let state = serde_json::to_string(&watch.state).unwrap();
    watch.state = serde_json::from_str(&state).unwrap();
    assert_eq!(watch.look(&groups(&[old, new]), at(2_000 * 3_600)).len(), 0, "nor after a restart");
}

#[test]
fn many_groups_at_once_are_a_few_notices() {
    let mut watch = Watch::new();
    watch.look(&Facts::default(), at(0));
    let names: Vec<String> = (0..60).map(|n| format!("{n:04}")).collect();
    let all: Vec<(&str, Time)> = names.iter().map(|name| (name.as_str(), at(5))).collect();
    let told = watch.look(&groups(&all), at(10));
    assert_eq!(told.len(), 10);
    assert!(told[9].text.starts_with("51 more at the same time: 0009, 0010"), "{}", told[9].text);
    assert_eq!(watch.look(&groups(&all), at(20)).len(), 0);
}

#[test]
fn every_group_is_told_once_however_many_there_are_and_the_state_stays_small() {
    let mut watch = Watch::new();
    watch.look(&Facts::default(), at(0));
    let names: Vec<String> = (0..700_u64).map(|n| format!("{n:016x}")).collect();
    let mut told = 0;
    for now in 1..=700_usize {
        // All groups that are there, as far as one page goes, in the order of their ids.
        let seen: Vec<(&str, Time)> = (now.saturating_sub(400)..now)
            .map(|n| (names[n].as_str(), at(u64::try_from(n).unwrap() * 10)))
            .collect();
        told += watch.look(&groups(&seen), at(u64::try_from(now).unwrap() * 10)).len();
    }
    assert_eq!(told, 700);
    let bytes = serde_json::to_vec(&watch.state).unwrap().len();
    assert!(bytes < crate::limits::KV_BYTES_MAX / 2, "{bytes} bytes");
}

#[test]
fn a_rule_that_could_not_look_everywhere_ends_nothing() {
    let mut watch = Watch::new();
    watch.look(&levels(&[(Rule::RegressedGroup, "a", 1.0)]), at(0));
    let blind = Facts { partial: BTreeSet::from([Rule::RegressedGroup]), ..Facts::default() };
    for n in 1..100 {
        watch.look(&blind, at(n * 60));
    }
    assert!(watch.look(&levels(&[(Rule::RegressedGroup, "a", 1.0)]), at(6_000)).is_empty());
    for n in 0..3 {
        watch.look(&Facts::default(), at(6_100 + n * 60));
    }
    assert_eq!(watch.look(&levels(&[(Rule::RegressedGroup, "a", 1.0)]), at(7_000)).len(), 1);
}

#[test]
fn counts_are_told_when_they_grow_and_not_again_for_an_hour() {
    let mut watch = Watch::new();
    let mut say = |count: u64, seconds: u64| -> Vec<String> {
        watch.look(&counts(Rule::Abandoned, count), at(seconds)).into_iter().map(|n| n.text).collect()
    };
    assert!(say(7, 0).is_empty(), "what was before is not told");
    assert_eq!(say(8, 10), ["1 dead letter was abandoned"]);
    assert!(say(9, 20).is_empty());
    assert!(say(12, 3_000).is_empty());
    assert_eq!(say(12, 3_610), ["4 dead letters were abandoned"], "nothing in between is lost");
    assert!(say(3, 9_000).is_empty(), "other counters begin again");
    assert_eq!(say(4, 9_010), ["1 dead letter was abandoned"]);
}

#[test]
fn quiet_hours_hold_warnings_back_and_let_critical_alerts_through() {
    let mut watch = Watch::with(r#"{"quiet_hours": {"from": "22:00", "to": "07:00"}}"#);
    let night = levels(&[(Rule::Depth, "payments", 150.0), (Rule::Disk, "store", 0.95)]);
    let rules = |notices: Vec<Notice>| -> Vec<(Rule, NoticeStatus)> {
        notices.into_iter().map(|notice| (notice.rule, notice.status)).collect()
    };
    assert_eq!(rules(watch.look(&night, at(0))), [(Rule::Disk, NoticeStatus::Firing)]);
    assert!(watch.look(&night, at(3_600)).is_empty());
    let morning = 7 * 3_600;
    assert_eq!(rules(watch.look(&night, at(morning))), [(Rule::Depth, NoticeStatus::Firing)]);
    // What begins and ends in the same night is not told at all; the end of what was told waits for the morning.
    let evening = 22 * 3_600;
    let brief = levels(&[(Rule::Utilisation, "mails", 0.5), (Rule::DeadLetterRate, "store", 20.0)]);
    for n in 0..10 {
        assert!(
            !rules(watch.look(&brief, at(evening + n * 60))).contains(&(Rule::Depth, NoticeStatus::Cleared))
        );
    }
    for n in 0..10 {
        assert!(watch.look(&Facts::default(), at(evening + 3_600 + n * 60)).is_empty());
    }
    let told = rules(watch.look(&Facts::default(), at(24 * 3_600 + morning)));
    assert_eq!(told, [(Rule::Depth, NoticeStatus::Cleared)]);
}

#[test]
fn what_is_silenced_is_told_afterwards_if_it_still_holds() {
    for (name, covers) in [("depth", true), ("payments", true), ("growth", false), ("mails", false)] {
        let mut watch = Watch::new();
        let silence = Silence::of(name, Span::from_hours(2), "ada".into(), None, at(0)).unwrap();
        watch.silences.add(silence, at(0)).unwrap();
        assert_eq!(watch.depth(150.0, at(10)).is_empty(), covers, "{name}");
        if covers {
            assert!(watch.depth(150.0, at(7_199)).is_empty());
            assert_eq!(watch.depth(150.0, at(7_200)).len(), 1);
        }
    }
    let mut silences = Silences::default();
    silences
        .add(Silence::of("depth", Span::from_hours(1), "ada".into(), None, at(0)).unwrap(), at(0))
        .unwrap();
    assert!(silences.end("depth", at(1)) && !silences.end("depth", at(1)));
    assert!(Silence::of("", Span::from_hours(1), "ada".into(), None, at(0)).is_err());
    assert!(Silence::of("depth", Span::ZERO, "ada".into(), None, at(0)).is_err());
}

#[test]
fn growth_is_measured_over_its_window() {
    let mut watch = Watch::with(r#"{"rules": {"growth": {"limit": 50}, "depth": {"enabled": false}}}"#);
    let mut grow = |open: f64, minutes: u64| -> Vec<NoticeStatus> {
        let facts = levels(&[(Rule::Depth, "payments", open)]);
        watch.look(&facts, at(minutes * 60)).into_iter().map(|notice| notice.status).collect()
    };
    assert!(grow(1_000.0, 0).is_empty(), "what was before is no growth");
    assert!(grow(1_040.0, 20).is_empty());
    assert_eq!(grow(1_055.0, 25), [NoticeStatus::Firing]);
    assert!(grow(1_055.0, 40).is_empty());
    assert!(grow(1_055.0, 75).is_empty(), "it begins to be flat");
    assert_eq!(grow(1_055.0, 120), [NoticeStatus::Cleared]);
}

#[test]
fn settings_name_what_differs_and_mistakes_are_found() {
    let settings = |text: &str| -> Result<AlertSettings, String> {
        let read: AlertSettings = serde_json::from_str(text).map_err(|e| crate::json_input::describe(&e))?;
        read.check().map(|()| read).map_err(|refusal| refusal.to_string())
    };
    let read = settings(
        r#"{"every": "1m", "rules": {"depth": {"limit": 10}, "slow_enqueue": {"limit": "50ms", "channels": ["ops"]},
            "oldest_age": {"limit": "2d"}, "disk": {"enabled": false}},
            "channels": {"ops": {"type": "slack", "url": "${env.SLACK_URL}"}, "log": {"type": "log"}}}"#,
    )
    .unwrap();
    assert_eq!((read.rule(Rule::Depth).limit, read.rule(Rule::Depth).clear), (Limit(10.0), Limit(8.0)));
    assert_eq!(read.rule(Rule::SlowEnqueue).limit, Limit(50.0));
    assert_eq!(read.rule(Rule::OldestAge).limit, Limit(172_800_000.0));
    assert!(!read.rule(Rule::Disk).enabled && read.rule(Rule::Growth) == RuleSettings::of(Rule::Growth));
    for (text, says) in [
        (r#"{"evry": "1m"}"#, "did you mean `every`?"),
        (r#"{"rules": {"dpth": {}}}"#, "did you mean `depth`?"),
        (r#"{"rules": {"depth": {"limt": 5}}}"#, "did you mean `limit`?"),
        (r#"{"rules": {"depth": {"limit": 5, "clear": 6}}}"#, "alerts.rules.depth.clear"),
        (r#"{"rules": {"depth": {"limit": -1}}}"#, "alerts.rules.depth"),
        (
            r#"{"rules": {"depth": {"channels": ["oops"]}}, "channels": {"ops": {"type": "log"}}}"#,
            "did you mean `ops`?",
        ),
        (r#"{"channels": {"a b": {"type": "log"}}}"#, "letters, digits"),
        (r#"{"channels": {"x": {"type": "webhook", "url": "ftp://x"}}}"#, "alerts.channels.x.url"),
        (
            r#"{"channels": {"x": {"type": "webhook", "url": "https://x", "secret": "abc"}}}"#,
            "alerts.channels.x.secret",
        ),
        (r#"{"channels": {"x": {"type": "pagerduty"}}}"#, "routing_key"),
        (r#"{"channels": {"x": {"type": "email", "server": "mx", "from": "a@b"}}}"#, "alerts.channels.x.to"),
        (
            r#"{"channels": {"x": {"type": "email", "server": "mx", "from": "a@b", "to": ["c@d"], "user": "u",
            "password": "p", "encryption": "none"}}}"#,
            "not sent unprotected",
        ),
        (r#"{"channels": {"x": {"type": "command"}}}"#, "alerts.channels.x"),
        (r#"{"quiet_hours": {"from": "25:00", "to": "07:00"}}"#, "not a time"),
        (r#"{"every": "0s"}"#, "alerts.every"),
    ] {
        let error = settings(text).unwrap_err();
        assert!(error.contains(says), "{text}: {error}");
    }
}

fn channel(json: &str) -> ChannelSettings {
    serde_json::from_str(json).unwrap()
}

#[test]
fn channels_write_what_their_receivers_read() {
    let mut notice = Notice {
        number: 7,
        firing: 7,
        status: NoticeStatus::Firing,
        rule: Rule::NewGroup,
        level: AlertLevel::Critical,
        subject: "0bbb".into(),
        text: "a new kind of failure: <script> & @everyone".into(),
        since: at(0),
        at: at(5),
        link: Some("https://redrive.example/groups/0bbb".into()),
        channels: vec!["ops".into()],
    };
    let env = |name: &str| (name == "KEY").then(|| "r0uting".to_owned());
    let body = |settings: &str, notice: &Notice| channel(settings).body(notice, env).unwrap();
    let slack = body(r#"{"type": "slack", "url": "https://x"}"#, &notice);
    assert_eq!(
        slack["text"],
        "[critical] new_group 0bbb: a new kind of failure: &lt;script&gt; &amp; @everyone\n\
         <https://redrive.example/groups/0bbb|Look>"
    );
    let discord = body(r#"{"type": "discord", "url": "https://x"}"#, &notice);
    assert_eq!(discord["allowed_mentions"]["parse"], serde_json::json!([]));
    let teams = body(r#"{"type": "teams", "url": "https://x"}"#, &notice);
    assert_eq!(teams["attachments"][0]["content"]["body"][0]["color"], "attention");
    let webhook = body(r#"{"type": "webhook", "url": "https://x"}"#, &notice);
    assert_eq!((&webhook["type"], &webhook["data"]["number"]), (&"alert.firing".into(), &7.into()));
    assert!(webhook["data"].get("channels").is_none());
    let pager = r#"{"type": "pagerduty", "routing_key": "${env.KEY}"}"#;
    let begins = body(pager, &notice);
    assert_eq!((&begins["routing_key"], &begins["event_action"]), (&"r0uting".into(), &"trigger".into()));
    notice.status = NoticeStatus::Cleared;
    notice.number = 9;
    let ends = body(pager, &notice);
    assert_eq!((&ends["event_action"], &ends["dedup_key"]), (&"resolve".into(), &begins["dedup_key"]));
    let absent = channel(r#"{"type": "pagerduty", "routing_key": "${env.NONE}"}"#).body(&notice, env);
    assert!(absent.unwrap_err().contains("NONE"));
}

#[test]
fn channels_are_shown_without_their_secrets() {
    for (settings, to) in [
        (
            r#"{"type": "slack", "url": "https://hooks.example/services/T0/S3CRET"}"#,
            "https://hooks.example/…",
        ),
        (r#"{"type": "slack", "url": "${env.SLACK}"}"#, "(from the environment)"),
        (r#"{"type": "pagerduty", "routing_key": "S3CRET"}"#, "https://events.pagerduty.com/…"),
        (
            r#"{"type": "email", "server": "mx", "from": "a@b", "to": ["c@d"], "user": "u", "password": "S3CRET"}"#,
            "c@d by mx",
        ),
    ] {
        let view = channel(settings).view("ops");
        assert_eq!(view.to, to);
        assert!(!serde_json::to_string(&view).unwrap().contains("S3CRET"));
    }
}

proptest! {
    /// Whatever a value does, it is told that it fires and that it is over in turn, and every notice has another number.
    #[test]
    fn beginning_and_end_are_told_in_turn(values in proptest::collection::vec((0.0..200.0_f64, 1..90_u64), 1..200)) {
        let mut watch = Watch::new();
        let (mut seconds, mut firing, mut number) = (0, false, 0);
        for (value, wait) in values {
            seconds += wait;
            let facts = levels(&[(Rule::Depth, "payments", value)]);
            for notice in watch.look(&facts, at(seconds)) {
                prop_assert!(notice.number > number);
                number = notice.number;
                if notice.rule != Rule::Depth {
                    continue;
                }
                let begins = notice.status == NoticeStatus::Firing;
                prop_assert_ne!(begins, firing);
                prop_assert!(begins == (value >= 100.0) && begins != (value < 80.0));
                firing = begins;
            }
        }
    }
}
