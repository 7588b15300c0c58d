//! Breakers: which services are considered down, what waits because of it, and what happened to each.

use super::fields::Sent;
use super::frame::{Frame, Section};
use super::text::{Pill, When, ago, number, plural};
use super::visitor::{Failure, Visitor, see_other};
use super::{render, tables};
use crate::problem::Problem;
use askama::Template;
use axum::response::Response;
use redrive_core::breaker::{BreakerState, BreakerView};
use redrive_core::store::{Role, Work as _};
use redrive_core::time::Time;

struct Event {
    when: When,
    what: String,
}

struct Row {
    queue: String,
    key: String,
    state: Pill,
    since: When,
    held: String,
    now: String,
    events: Vec<Event>,
    is_closed: bool,
}

#[derive(Template)]
#[template(path = "breakers.html")]
struct BreakersPage {
    frame: Frame,
    rows: Vec<Row>,
    may_act: bool,
    cli: String,
    curl: String,
}

fn state(breaker: &BreakerView) -> Pill {
    match breaker.state {
        BreakerState::Closed => Pill::new("green", "Closed"),
        BreakerState::Open if breaker.forced => Pill::new("red", "Forced open"),
        BreakerState::Open => Pill::new("red", "Open"),
        BreakerState::HalfOpen => Pill::new("amber", "Half open"),
    }
}

/// What it does at the moment, in words.
fn doing(breaker: &BreakerView, now: Time) -> String {
    match (breaker.state, breaker.until) {
        (BreakerState::Open, Some(until)) => format!("probes {}", ago(until, now)),
        (BreakerState::Open, None) => "stays open until somebody closes it".into(),
        (BreakerState::HalfOpen, _) => {
            format!(
                "{} out, {} ok",
                plural(u64::from(breaker.probes_out), "probe", "probes"),
                breaker.probes_ok
            )
        }
        (BreakerState::Closed, _) => format!(
            "{} of the last {} failed, {} in a row",
            breaker.failed, breaker.results, breaker.failures_in_a_row
        ),
    }
}

fn row(breaker: &BreakerView, now: Time) -> Row {
    let event = |event: &redrive_core::breaker::BreakerEvent| Event {
        when: When::ago(event.at, now),
        what: match &event.by {
            Some(by) => format!("{} by {by}: {}", event.to.name().replace('_', " "), event.why),
            None => format!("{}: {}", event.to.name().replace('_', " "), event.why),
        },
    };
    Row {
        queue: breaker.queue.to_string(),
        key: breaker.key.clone(),
        state: state(breaker),
        since: When::ago(breaker.since, now),
        held: number(breaker.held),
        now: doing(breaker, now),
        events: breaker.events.iter().rev().take(3).map(event).collect(),
        is_closed: breaker.state == BreakerState::Closed,
    }
}

/// `GET /breakers`
pub(super) async fn list(visitor: Visitor) -> Result<Response, Failure> {
    let mut breakers = visitor.caller.store.breakers().await?;
    breakers.sort_by_key(|breaker| (breaker.state == BreakerState::Closed, std::cmp::Reverse(breaker.held)));
    breakers.truncate(200);
    let view = BreakersPage {
        frame: Frame::new(&visitor, Section::Breakers, "Breakers").await,
        rows: breakers.iter().map(|breaker| row(breaker, visitor.now)).collect(),
        may_act: visitor.may(Role::Operator),
        cli: "redrive breaker list".into(),
        curl: tables::curl("GET", "/api/v1/breakers", None),
    };
    render(&visitor, &view)
}

/// `POST /breakers`: opens or closes one.
pub(super) async fn force(visitor: Visitor, Sent(fields): Sent) -> Result<Response, Failure> {
    let open = match fields.get("act") {
        Some("open") => true,
        Some("close") => false,
        Some(_) | None => return Err(Problem::bad_request("bad_field", "open or close a breaker").into()),
    };
    let key = fields.raw("key").unwrap_or_default().to_owned();
    let actor = visitor.actor(fields.owned("reason"));
    visitor.caller.store.force_breaker(fields.need("queue")?, key, open, actor).await?;
    Ok(see_other("/breakers"))
}
