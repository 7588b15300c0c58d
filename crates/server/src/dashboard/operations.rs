//! Operations: the list, and one of them with its progress, its members and the controls that its stage allows.

use super::act::words;
use super::chart::{Svg, bar};
use super::fields::{Asked, Sent};
use super::frame::{Frame, Section};
use super::text::{Pill, When, ago, number, percent, plural, query, rough, shell, short_id, span};
use super::visitor::{Failure, Visitor, see_other};
use super::{render, tables};
use crate::problem::Problem;
use crate::request::Path;
use askama::Template;
use axum::response::Response;
use redrive_core::dead_letter::Act;
use redrive_core::ids::{GroupId, MessageId, OperationId};
use redrive_core::operation::{Control, HaltReason, Member, MemberOutcome, Operation, Stage, reverse};
use redrive_core::query::{Cursor, PageRequest};
use redrive_core::store::{Letters as _, Role};
use redrive_core::time::{Span, Time};

/// Operations or members on a page.
const ROWS: usize = 40;

/// A row of the list.
pub(super) struct Row {
    pub(super) id: String,
    pub(super) title: String,
    pub(super) who: String,
    pub(super) filter: String,
    pub(super) stage: Pill,
    pub(super) bar: Svg,
    pub(super) outcome: String,
    pub(super) when: When,
}

/// The stage as a pill.
fn stage(operation: &Operation) -> Pill {
    match operation.stage {
        Stage::Freezing => Pill::new("blue", "Writing down"),
        Stage::Canary => Pill::new("blue", "Canary"),
        Stage::Observing => Pill::new("blue", "Watching the canary"),
        Stage::Ramping => Pill::new("blue", "Ramping up"),
        Stage::Running => Pill::new("blue", "Running"),
        Stage::Settling => Pill::new("blue", "Waiting for outcomes"),
        Stage::Paused => match operation.halt.as_ref().map(|halt| halt.reason) {
            Some(HaltReason::SameFailure | HaltReason::BreakerOpen) => Pill::new("red", "Halted by itself"),
            Some(HaltReason::Operator) | None => Pill::new("amber", "Paused"),
        },
        Stage::Undoing => Pill::new("amber", "Undoing"),
        Stage::Done if operation.outcomes.failed_same + operation.outcomes.failed_other > 0 => {
            Pill::new("amber", "Done")
        }
        Stage::Done => Pill::new("green", "Done"),
        Stage::Cancelled => Pill::new("", "Cancelled"),
        Stage::Undone => Pill::new("", "Undone"),
    }
}

/// How far it has come, as a bar.
fn progress(operation: &Operation, class: &str) -> Svg {
    let of = &operation.outcomes;
    let failed = of.failed_same + of.failed_other;
    let gone = of.skipped + of.conflict + of.undone;
    let label = format!("{} of {} ended", number(of.ended()), number(operation.members));
    bar(
        &[(of.succeeded, "ok"), (of.running, "busy"), (failed, "bad"), (gone, "gone")],
        operation.members,
        class,
        &label,
    )
}

/// The title of an operation.
fn title(operation: &Operation) -> String {
    // While its members are written down nobody knows how many there are.
    if operation.stage == Stage::Freezing {
        return format!("{} letters", words(&operation.act, 0).title);
    }
    format!(
        "{} {}",
        words(&operation.act, operation.members).title,
        plural(operation.members, "letter", "letters")
    )
}

/// What came of it, in a few words.
fn outcome(operation: &Operation) -> String {
    let of = &operation.outcomes;
    let failed = of.failed_same + of.failed_other;
    match (of.ended(), failed) {
        (0, _) => "nothing yet".into(),
        (_, 0) => format!("{} ok", number(of.succeeded)),
        (_, failed) => format!("{} ok, {} failed again", number(of.succeeded), number(failed)),
    }
}

/// The row of an operation.
pub(super) fn row(operation: &Operation, now: Time) -> Row {
    let reason = operation.actor.reason.as_ref().map(|reason| format!(" · “{reason}”")).unwrap_or_default();
    Row {
        id: operation.id.to_string(),
        title: title(operation),
        who: format!("{} {}{reason}", operation.actor.name, ago(operation.created_at, now)),
        filter: operation.filter.text().to_owned(),
        stage: stage(operation),
        bar: progress(operation, ""),
        outcome: outcome(operation),
        when: When::rough(operation.created_at, now),
    }
}

#[derive(Template)]
#[template(path = "operations.html")]
struct OperationsPage {
    frame: Frame,
    rows: Vec<Row>,
    next: Option<String>,
    cli: String,
    curl: String,
}

/// `GET /operations`
pub(super) async fn list(visitor: Visitor, Asked(asked): Asked) -> Result<Response, Failure> {
    let page = PageRequest { limit: Some(ROWS), cursor: asked.owned("cursor").map(Cursor::from_text) };
    let page = visitor.show(&visitor.caller.store.operations(page).await?);
    let view = OperationsPage {
        frame: Frame::new(&visitor, Section::Operations, "Operations").await,
        rows: page.items.iter().map(|operation| row(operation, visitor.now)).collect(),
        next: page.next.as_ref().map(|next| tables::address(&visitor.here, &[("cursor", next.as_str())])),
        cli: "redrive op list".into(),
        curl: tables::curl("GET", "/api/v1/operations", None),
    };
    render(&visitor, &view)
}

/// A step on the way of an operation.
struct Step {
    class: &'static str,
    text: String,
}

/// A count of outcomes.
struct Count {
    class: &'static str,
    text: String,
}

struct MemberRow {
    id: String,
    short: String,
    outcome: Pill,
    why: String,
    /// The group of the failure of which it died this time.
    group: Option<String>,
}

/// A control that its stage allows.
struct Button {
    name: &'static str,
    label: &'static str,
    class: &'static str,
}

#[derive(Template)]
#[template(path = "operation.html")]
struct OperationPage {
    frame: Frame,
    id: String,
    short: String,
    title: String,
    who: String,
    stage: Pill,
    steps: Vec<Step>,
    bar: Svg,
    counts: Vec<Count>,
    pace: String,
    halt: Option<String>,
    delayed: Option<String>,
    filter: String,
    facts: Vec<(&'static str, String)>,
    members: Vec<MemberRow>,
    shown: String,
    next: Option<String>,
    again_href: String,
    buttons: Vec<Button>,
    rate: Option<String>,
    is_moving: bool,
    cli: String,
    curl: String,
}

/// `GET /operations/{id}`
pub(super) async fn show(
    visitor: Visitor,
    Path(id): Path<MessageId>,
    Asked(asked): Asked,
) -> Result<Response, Failure> {
    let store = &visitor.caller.store;
    let id = OperationId::new(id);
    let operation = visitor.show(&store.operation(id).await?);
    let page = PageRequest { limit: Some(ROWS), cursor: asked.owned("cursor").map(Cursor::from_text) };
    let members = visitor.show(&store.members(id, page).await?);
    let frame = Frame::new(&visitor, Section::Operations, title(&operation)).await;
    let text = id.to_string();
    let view = OperationPage {
        frame,
        short: short_id(&text),
        title: title(&operation),
        who: started_by(&operation, visitor.now),
        stage: stage(&operation),
        steps: steps(&operation),
        bar: progress(&operation, "thick"),
        counts: counts(&operation),
        pace: pace(&operation, visitor.now),
        halt: operation
            .halt
            .as_ref()
            .filter(|_| operation.stage == Stage::Paused)
            .map(|halt| format!("{} halted it {}: {}", halt.by, ago(halt.at, visitor.now), halt.text)),
        delayed: operation.delayed.as_ref().map(|delayed| delayed.text.clone()),
        filter: operation.filter.text().to_owned(),
        facts: facts(&operation),
        members: members.items.iter().map(member).collect(),
        shown: format!("{} of {}", number(members.items.len() as u64), number(operation.members)),
        next: members.next.as_ref().map(|next| tables::address(&visitor.here, &[("cursor", next.as_str())])),
        again_href: format!("/dlq?filter={}", query(&format!("operation:{text} status:pending,review"))),
        buttons: if visitor.may(Role::Operator) { buttons(&operation) } else { Vec::new() },
        rate: (visitor.may(Role::Operator) && !operation.stage.is_over())
            .then(|| operation.rollout.rate.map(|rate| rate.to_string()).unwrap_or_default()),
        is_moving: !operation.stage.is_over() && operation.stage != Stage::Paused,
        cli: format!("redrive op show {}", shell(&text)),
        curl: tables::curl("GET", &format!("/api/v1/operations/{text}"), None),
        id: text,
    };
    render(&visitor, &view)
}

fn started_by(operation: &Operation, now: Time) -> String {
    let reason = operation.actor.reason.as_ref().map(|reason| format!(" · “{reason}”")).unwrap_or_default();
    format!("started by {} {}{reason}", operation.actor.name, ago(operation.created_at, now))
}

fn member(member: &Member) -> MemberRow {
    let outcome = match member.outcome {
        MemberOutcome::Waiting => Pill::new("", "Waiting"),
        MemberOutcome::Running => Pill::new("blue", "Under way"),
        MemberOutcome::Succeeded => Pill::new("green", "Succeeded"),
        MemberOutcome::FailedSame => Pill::new("red", "Failed again"),
        MemberOutcome::FailedOther => Pill::new("red", "Failed otherwise"),
        MemberOutcome::Skipped => Pill::new("", "Skipped"),
        MemberOutcome::Conflict => Pill::new("amber", "Conflict"),
        MemberOutcome::Undone => Pill::new("", "Undone"),
    };
    let id = member.id.to_string();
    let why = member.why.clone().unwrap_or_default();
    let group = why.strip_prefix("group ").filter(|id| id.parse::<GroupId>().is_ok()).map(str::to_owned);
    MemberRow { short: short_id(&id), id, outcome, why, group }
}

fn counts(operation: &Operation) -> Vec<Count> {
    let of = &operation.outcomes;
    let is_retry = matches!(operation.act, Act::Retry(_));
    let all = [
        (of.succeeded, "c-ok", if is_retry { "succeeded" } else { "done" }),
        (of.running, "c-busy", "under way"),
        (of.failed_same, "c-bad", "failed again, the same way"),
        (of.failed_other, "c-bad", "failed again, another cause"),
        (of.skipped, "c-gone", "skipped"),
        (of.conflict, "c-gone", "in conflict"),
        (of.undone, "c-gone", "undone"),
        (of.waiting, "c-wait", "waiting"),
    ];
    let shown = all.into_iter().filter(|(n, _, _)| *n > 0);
    shown.map(|(n, class, what)| Count { class, text: format!("{} {what}", number(n)) }).collect()
}

/// The stage that counts for the steps: while it is paused, the one it returns to.
fn position(stage: Stage) -> usize {
    match stage {
        Stage::Freezing => 0,
        Stage::Canary => 1,
        Stage::Observing => 2,
        Stage::Ramping | Stage::Running | Stage::Paused => 3,
        Stage::Settling | Stage::Undoing => 4,
        Stage::Done | Stage::Cancelled | Stage::Undone => 5,
    }
}

fn steps(operation: &Operation) -> Vec<Step> {
    let is_paused = operation.stage == Stage::Paused;
    let at = position(operation.resume_to.filter(|_| is_paused).unwrap_or(operation.stage));
    let of = &operation.outcomes;
    let rate = operation
        .rollout
        .rate
        .map_or_else(|| "Sending all".to_owned(), |rate| format!("Sending at {rate}/s"));
    let end = match operation.stage {
        Stage::Cancelled => "Cancelled".into(),
        Stage::Undone | Stage::Undoing => "Undone".into(),
        Stage::Done => {
            of.success_percent().map_or_else(|| "Report".into(), |share| format!("Report: {share} % ok"))
        }
        Stage::Freezing
        | Stage::Canary
        | Stage::Observing
        | Stage::Ramping
        | Stage::Running
        | Stage::Settling
        | Stage::Paused => "Report".into(),
    };
    let has_canary = operation.rollout.canary.is_some();
    let canary =
        operation.canary_to.max(operation.rollout.canary.map_or(0, |canary| canary.size(operation.members)));
    let (frozen, canary) = if operation.stage == Stage::Freezing {
        ("Writing down".to_owned(), "Canary".to_owned())
    } else {
        (format!("Frozen {}", number(operation.members)), format!("Canary of {}", number(canary)))
    };
    let all = [
        (0, true, frozen),
        (1, has_canary, canary),
        (2, has_canary, format!("Watched {}", span(operation.rollout.observe))),
        (3, true, if matches!(operation.act, Act::Retry(_)) { rate } else { "Acting".into() }),
        (4, true, "Outcomes".into()),
        (5, true, end),
    ];
    let step = |(n, _, text): (usize, bool, String)| {
        let class = match n.cmp(&at) {
            std::cmp::Ordering::Less => "done",
            std::cmp::Ordering::Equal if is_paused => "halted",
            std::cmp::Ordering::Equal if operation.stage.is_over() => "done",
            std::cmp::Ordering::Equal => "now",
            std::cmp::Ordering::Greater => "",
        };
        Step { class, text }
    };
    all.into_iter().filter(|(_, wanted, _)| *wanted).map(step).collect()
}

/// How fast it goes, and how long it takes.
fn pace(operation: &Operation, now: Time) -> String {
    let mut parts = Vec::new();
    let took = operation.finished_at.unwrap_or(now).since(operation.created_at);
    if operation.stage.is_over() {
        parts.push(format!("took {}", span(took)));
    } else if let Some(rate) = operation.rollout.rate {
        let left = operation.outcomes.waiting.checked_div(u64::from(rate.max(1))).unwrap_or(0);
        parts.push(format!("{rate}/s at most"));
        if operation.stage.is_moving() && left > 0 {
            parts.push(format!("about {} left", rough(Span::from_secs(left))));
        }
    }
    if let Some(stop) = operation.rollout.stop_at.filter(|_| !operation.stage.is_over()) {
        parts.push(format!("halts by itself above {stop} % of the same failure"));
    }
    parts.join(" · ")
}

fn facts(operation: &Operation) -> Vec<(&'static str, String)> {
    let pace = &operation.rollout;
    let all = [
        ("act", Some(operation.act.name().to_owned())),
        ("members", Some(number(operation.members))),
        ("canary", pace.canary.map(|canary| canary.to_string())),
        ("watched for", pace.canary.map(|_| span(pace.observe))),
        ("rate", Some(pace.rate.map_or_else(|| "no limit".into(), |rate| format!("{rate}/s")))),
        ("ramp", pace.ramp.map(span)),
        ("in flight at most", pace.in_flight.map(|n| number(u64::from(n)))),
        ("halts above", pace.stop_at.map(|share| format!("{share} % of the same failure"))),
        ("halts on a breaker", pace.stop_on_breaker.then(|| "yes".to_owned())),
        (
            "success",
            operation
                .outcomes
                .success_percent()
                .map(|_| percent(operation.outcomes.succeeded, operation.outcomes.settled())),
        ),
        ("started", Some(super::text::exact(operation.created_at))),
        ("ended", operation.finished_at.map(super::text::exact)),
    ];
    all.into_iter().filter_map(|(name, value)| value.map(|value| (name, value))).collect()
}

/// The controls that the stage of an operation allows.
fn buttons(operation: &Operation) -> Vec<Button> {
    let can_undo = reverse(&operation.act).is_some() && operation.stage != Stage::Freezing;
    let undo = Button { name: "undo", label: "Take back what has not begun", class: "" };
    let cancel = Button { name: "cancel", label: "Cancel", class: "danger" };
    let mut all = match operation.stage {
        Stage::Paused => vec![Button { name: "resume", label: "Resume", class: "primary" }, cancel],
        Stage::Freezing | Stage::Canary | Stage::Observing | Stage::Ramping | Stage::Running => {
            vec![Button { name: "pause", label: "Pause", class: "" }, cancel]
        }
        Stage::Settling | Stage::Done | Stage::Cancelled => Vec::new(),
        Stage::Undoing | Stage::Undone => return Vec::new(),
    };
    // A message that has run cannot be taken back; what an act has changed can be changed back.
    let of = &operation.outcomes;
    let is_retry = matches!(operation.act, Act::Retry(_));
    let is_left = if is_retry { of.running > 0 } else { of.sent() > of.undone };
    if can_undo && is_left {
        all.insert(all.len().min(1), undo);
    }
    all
}

/// `POST /operations/{id}`: pause, resume, cancel, another rate, undo.
pub(super) async fn control(
    visitor: Visitor,
    Path(id): Path<MessageId>,
    Sent(fields): Sent,
) -> Result<Response, Failure> {
    let control = match fields.get("control").unwrap_or_default() {
        "pause" => Control::Pause,
        "resume" => Control::Resume,
        "cancel" => Control::Cancel,
        "rate" => Control::Rate(fields.read("rate")?),
        "undo" => Control::Undo,
        _ => return Err(Problem::bad_request("bad_field", "there is no such control of an operation").into()),
    };
    visitor
        .caller
        .store
        .control(OperationId::new(id), control, visitor.actor(fields.owned("reason")))
        .await?;
    Ok(see_other(&format!("/operations/{id}")))
}
