//! Alerts: what the store says needs somebody now.

use super::frame::{Frame, Section};
use super::text::Pill;
use super::visitor::{Failure, Visitor};
use super::{render, tables};
use askama::Template;
use axum::response::Response;
use redrive_core::metrics::{Alert, AlertLevel, report};
use redrive_core::store::Store as _;

struct Row {
    level: Pill,
    rule: String,
    subject: String,
    text: String,
}

#[derive(Template)]
#[template(path = "alerts.html")]
struct AlertsPage {
    frame: Frame,
    rows: Vec<Row>,
    cli: String,
    curl: String,
}

fn row(alert: Alert) -> Row {
    let level = match alert.level {
        AlertLevel::Warning => Pill::new("amber", "Look soon"),
        AlertLevel::Critical => Pill::new("red", "Look now"),
    };
    Row { level, rule: alert.rule.replace('_', " "), subject: alert.subject, text: alert.text }
}

/// `GET /alerts`
pub(super) async fn list(visitor: Visitor) -> Result<Response, Failure> {
    let stats = visitor.caller.store.stats().await?;
    let view = AlertsPage {
        frame: Frame::new(&visitor, Section::Alerts, "Alerts").await,
        rows: report(&stats).alerts.into_iter().map(row).collect(),
        cli: "redrive queue report".into(),
        curl: tables::curl("GET", "/api/v1/stats/report", None),
    };
    render(&visitor, &view)
}
