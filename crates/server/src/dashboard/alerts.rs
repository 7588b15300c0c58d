//! Alerts: what needs somebody now, what was told lately, the rules, the channels, and what is silenced.

use super::fields::Sent;
use super::frame::{Frame, Section};
use super::text::{Pill, When, ago, query, rough};
use super::visitor::{Failure, Visitor, local_path, see_other};
use super::{render, tables};
use crate::api::alerts::{self as api, AlertsView};
use crate::problem::Problem;
use askama::Template;
use axum::response::Response;
use redrive_core::alert::{ActiveAlert, AlertLevel, Notice, NoticeStatus, Rule, RuleView, Silence};
use redrive_core::store::Role;
use redrive_core::time::{Span, Time};

struct Row {
    level: Pill,
    rule: String,
    name: &'static str,
    subject: String,
    title: String,
    text: String,
    since: When,
    told: &'static str,
    link: Option<String>,
}

/// A notice that was told.
struct Told {
    when: When,
    status: Pill,
    subject: String,
    text: String,
    link: Option<String>,
}

/// A rule in words.
struct RuleRow {
    name: String,
    about: String,
    level: &'static str,
}

struct Quiet {
    name: String,
    until: String,
    by: String,
}

#[derive(Template)]
#[template(path = "alerts.html")]
struct AlertsPage {
    frame: Frame,
    rows: Vec<Row>,
    told: Vec<Told>,
    rules: Vec<RuleRow>,
    channels: Vec<(String, String, String)>,
    silenced: Vec<Quiet>,
    /// The channel to which a test was sent just now.
    tested: Option<String>,
    may_act: bool,
    cli: String,
    curl: String,
}

/// The words for a level.
const fn urgency(level: AlertLevel) -> (&'static str, &'static str) {
    match level {
        AlertLevel::Warning => ("amber", "Look soon"),
        AlertLevel::Critical => ("red", "Look now"),
    }
}

/// The page of this server that a link of an alert leads to.
fn page_of(link: &str) -> Option<String> {
    let path =
        link.split_once("://").map_or(Some(link), |(_, rest)| rest.find('/').and_then(|at| rest.get(at..)));
    path.and_then(local_path).map(str::to_owned)
}

/// What an alert is about, as people call it, and the page that shows it. A group has no other name than its cause, which
/// the text of the alert says.
fn about_what(rule: Rule, subject: &str, link: Option<&str>) -> (String, Option<String>) {
    let name = match rule {
        Rule::NewGroup => "A new group".to_owned(),
        Rule::RegressedGroup => "A group that is back".to_owned(),
        Rule::OperationHalted => "An operation".to_owned(),
        Rule::Depth
        | Rule::Growth
        | Rule::OldestAge
        | Rule::BreakerOpen
        | Rule::Poison
        | Rule::Retention
        | Rule::Abandoned
        | Rule::SlowEnqueue
        | Rule::Utilisation
        | Rule::DeadLetterRate
        | Rule::Disk
        | Rule::StoreDegraded => subject.to_owned(),
    };
    let in_path = query(subject);
    let place = match rule {
        Rule::NewGroup | Rule::RegressedGroup => format!("/groups/{in_path}"),
        Rule::OperationHalted => format!("/operations/{in_path}"),
        Rule::BreakerOpen => "/breakers".into(),
        Rule::Depth | Rule::Growth | Rule::OldestAge | Rule::Poison | Rule::Retention | Rule::Utilisation => {
            format!("/queues/{in_path}")
        }
        Rule::Abandoned | Rule::DeadLetterRate => "/dlq".into(),
        Rule::SlowEnqueue | Rule::Disk | Rule::StoreDegraded => "/settings".into(),
    };
    (name, link.and_then(page_of).or_else(|| local_path(&place).map(str::to_owned)))
}

fn told(notice: &Notice, now: Time) -> Told {
    let (tone, word) = urgency(notice.level);
    let status = match notice.status {
        NoticeStatus::Firing => Pill::new(tone, word),
        NoticeStatus::Cleared => Pill::new("green", "Over"),
        NoticeStatus::Test => Pill::new("", "Test"),
    };
    let (subject, link) = about_what(notice.rule, &notice.subject, notice.link.as_deref());
    Told { when: When::ago(notice.at, now), status, subject, text: notice.text.clone(), link }
}

fn rule_row(view: &RuleView) -> RuleRow {
    RuleRow { name: view.rule.name().replace('_', " "), about: about(view), level: urgency(view.level).1 }
}

/// When a rule fires, in words.
fn about(view: &RuleView) -> String {
    let limit = view.limit;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "shown to people")]
    let whole = limit.max(0.0) as u64;
    match view.rule {
        Rule::Depth => format!("a queue has {whole} open letters"),
        Rule::Growth => format!("a queue gets {whole} more open letters within its window"),
        Rule::OldestAge => format!("the oldest open letter is {} old", rough(Span::from_millis(whole))),
        Rule::NewGroup => "something fails in a new way".into(),
        Rule::RegressedGroup => "a resolved cause is back".into(),
        Rule::BreakerOpen => "a breaker opens".into(),
        Rule::Poison => "a message breaks its workers".into(),
        Rule::OperationHalted => "an operation halts by itself".into(),
        Rule::Retention => "open letters are about to be dropped".into(),
        Rule::Abandoned => "letters are abandoned".into(),
        Rule::SlowEnqueue => format!("95 % of enqueues take more than {limit} ms"),
        Rule::Utilisation => format!("a queue is more than {:.0} % full", limit * 100.0),
        Rule::DeadLetterRate => format!("more than {limit} messages die per second"),
        Rule::Disk => format!("the disk is more than {:.0} % full", limit * 100.0),
        Rule::StoreDegraded => "the store reports a problem".into(),
    }
}

fn row(alert: &ActiveAlert, now: Time) -> Row {
    let (tone, word) = urgency(alert.level);
    let level = Pill::new(tone, word);
    let (title, link) = about_what(alert.rule, &alert.subject, alert.link.as_deref());
    Row {
        level,
        rule: alert.rule.name().replace('_', " "),
        name: alert.rule.name(),
        subject: alert.subject.clone(),
        text: alert.text.clone(),
        since: When::ago(alert.since, now),
        told: if alert.told.is_some() { "told" } else { "not told: silenced, or quiet hours" },
        title,
        link,
    }
}

fn quiet(silence: &Silence, now: Time) -> Quiet {
    let reason = silence.reason.as_ref().map(|reason| format!(", “{reason}”")).unwrap_or_default();
    Quiet {
        name: silence.name().to_owned(),
        until: ago(silence.until, now),
        by: format!("{}{reason}", silence.by),
    }
}

async fn page(visitor: &Visitor, tested: Option<String>) -> Result<Response, Failure> {
    let AlertsView { record, silenced } = api::view(&visitor.caller).await?;
    let channel = |channel: redrive_core::alert::ChannelView| (channel.name, channel.kind, channel.to);
    let view = AlertsPage {
        frame: Frame::new(visitor, Section::Alerts, "Alerts").await,
        rows: record.active.iter().map(|alert| row(alert, visitor.now)).collect(),
        told: record.told.iter().rev().map(|notice| told(notice, visitor.now)).collect(),
        rules: record.rules.iter().filter(|view| view.enabled).map(rule_row).collect(),
        channels: record.channels.into_iter().map(channel).collect(),
        silenced: silenced.iter().map(|silence| quiet(silence, visitor.now)).collect(),
        tested,
        may_act: visitor.may(Role::Operator),
        cli: "redrive alert list".into(),
        curl: tables::curl("GET", "/api/v1/alerts", None),
    };
    render(visitor, &view)
}

/// `GET /alerts`
pub(super) async fn list(visitor: Visitor) -> Result<Response, Failure> {
    page(&visitor, None).await
}

/// `POST /alerts`: sends a test to a channel, silences a rule or a subject, or ends that.
pub(super) async fn act(visitor: Visitor, Sent(fields): Sent) -> Result<Response, Failure> {
    let name = fields.text("name");
    match fields.get("act").unwrap_or_default() {
        "test" => {
            api::send_test(&visitor.caller, &name).await?;
            return page(&visitor, Some(name)).await;
        }
        "silence" => {
            let span = fields.need("for")?;
            let actor = visitor.actor(fields.owned("reason"));
            api::set_silence(&visitor.caller, &name, span, actor).await?;
        }
        "end" => {
            api::end_silence(&visitor.caller, &name, visitor.actor(None)).await?;
        }
        _ => return Err(Problem::bad_request("bad_field", "there is no such act on alerts").into()),
    }
    Ok(see_other("/alerts"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_alerts_lead_to_pages_of_this_server() {
        assert_eq!(page_of("https://redrive.example/groups/00ff").as_deref(), Some("/groups/00ff"));
        assert_eq!(page_of("/queues/a").as_deref(), Some("/queues/a"));
        assert_eq!(page_of("https://redrive.example"), None);
        assert_eq!(page_of("https://redrive.example//evil.example"), None);
    }

    #[test]
    fn every_rule_says_when_it_fires() {
        let all = redrive_core::alert::AlertSettings::default().rule_views();
        assert_eq!(all.len(), Rule::ALL.len());
        let texts: std::collections::BTreeSet<String> = all.iter().map(about).collect();
        assert_eq!(texts.len(), all.len());
        assert!(texts.contains("the oldest open letter is 7 d old"), "{texts:?}");
    }
}
