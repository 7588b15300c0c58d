//! Alerts: what needs somebody now, the channels that tell them, and what is silenced.

use super::fields::Sent;
use super::frame::{Frame, Section};
use super::text::{Pill, When, ago};
use super::visitor::{Failure, Visitor, local_path, see_other};
use super::{render, tables};
use crate::api::alerts::{self as api, AlertsView};
use crate::problem::Problem;
use askama::Template;
use axum::response::Response;
use redrive_core::alert::{ActiveAlert, AlertLevel, Silence};
use redrive_core::store::Role;
use redrive_core::time::Time;

struct Row {
    level: Pill,
    rule: String,
    name: &'static str,
    subject: String,
    text: String,
    since: When,
    told: &'static str,
    link: Option<String>,
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
    channels: Vec<(String, String, String)>,
    silenced: Vec<Quiet>,
    /// The channel to which a test was sent just now.
    tested: Option<String>,
    may_act: bool,
    cli: String,
    curl: String,
}

fn row(alert: &ActiveAlert, now: Time) -> Row {
    let level = match alert.level {
        AlertLevel::Warning => Pill::new("amber", "Look soon"),
        AlertLevel::Critical => Pill::new("red", "Look now"),
    };
    Row {
        level,
        rule: alert.rule.name().replace('_', " "),
        name: alert.rule.name(),
        subject: alert.subject.clone(),
        text: alert.text.clone(),
        since: When::ago(alert.since, now),
        told: if alert.told.is_some() { "told" } else { "not told: silenced, or quiet hours" },
        link: alert.link.as_deref().and_then(local_path).map(str::to_owned),
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
    let AlertsView { record, silenced, .. } = api::view(&visitor.caller).await?;
    let channel = |channel: redrive_core::alert::ChannelView| (channel.name, channel.kind, channel.to);
    let view = AlertsPage {
        frame: Frame::new(visitor, Section::Alerts, "Alerts").await,
        rows: record.active.iter().map(|alert| row(alert, visitor.now)).collect(),
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
