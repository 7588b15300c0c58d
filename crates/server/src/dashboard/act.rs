//! Acts on dead letters: those on one letter, which are done at once, and those on many, which begin with a page that
//! shows exactly what would happen. That page carries the token of its preview, so what is started is what was shown,
//! and the id of the operation, so sending the form twice starts it once.

use super::chart::{Svg, bar};
use super::fields::{Asked, Fields, Sent};
use super::frame::{Frame, Section};
use super::letter::may_edit;
use super::text::{When, beginning, number, percent, plural, shell, short_id, span};
use super::visitor::{Failure, Visitor, see_other};
use super::{group, render, tables};
use crate::problem::Problem;
use crate::reply::only;
use crate::request::Path;
use askama::Template;
use axum::response::Response;
use redrive_core::dead_letter::{Act, ActRequest, DeadLetter, Retry};
use redrive_core::filter::Filter;
use redrive_core::ids::{MessageId, OperationId, QueueName};
use redrive_core::operation::{OperationSpec, Preview, PreviewRequest, Rollout, reverse};
use redrive_core::store::{Letters as _, Role};
use redrive_core::time::{Span, Time};

/// How long a quarantine or a snooze lasts unless its end is named.
const A_DAY: Span = Span::from_hours(24);
/// How long a canary is watched.
const OBSERVE: Span = Span::from_secs(30);
/// How long the rate takes to rise after the canary.
const RAMP: Span = Span::from_secs(30);
/// Letters shown in a preview.
const SAMPLE: usize = 10;

/// The act that a form names.
fn act_of(fields: &Fields, now: Time) -> Result<Act, Problem> {
    let until = |fields: &Fields| -> Result<Time, Problem> {
        Ok(now.plus(fields.read::<Span>("for")?.unwrap_or(A_DAY)))
    };
    Ok(match fields.get("act").unwrap_or_default() {
        "retry" => Act::Retry(Retry {
            at: fields.read::<Span>("delay")?.map(|delay| now.plus(delay)),
            queue: fields.read("queue")?,
            priority: fields.read("priority")?,
            max_attempts: fields.read("max_attempts")?,
            force: fields.get("force").is_some(),
        }),
        "resolve" => Act::Resolve,
        "abandon" => Act::Abandon,
        "review" => Act::Review,
        "quarantine" => Act::Quarantine { until: until(fields)? },
        "release" => Act::Release,
        "reopen" => Act::Reopen,
        "note" => Act::Note,
        "purge" => Act::Purge,
        "unpurge" => Act::Unpurge,
        "pull-back" => Act::PullBack,
        "hold" => Act::Hold { on: true },
        "unhold" => Act::Hold { on: false },
        "snooze" => Act::Snooze { until: until(fields)? },
        "assign" => Act::Assign { to: fields.owned("to") },
        "move" => Act::Move { dlq: fields.need::<QueueName>("dlq")? },
        "restore" => Act::Restore { n: fields.need("n")? },
        _ => return Err(Problem::bad_request("bad_field", "there is no such act on a dead letter")),
    })
}

/// An act that is offered.
pub(super) struct Choice {
    pub(super) name: &'static str,
    pub(super) label: &'static str,
    pub(super) about: &'static str,
    pub(super) is_danger: bool,
}

/// What may be done with one letter.
#[derive(Default)]
pub(super) struct Offered {
    pub(super) any: bool,
    pub(super) can_retry: bool,
    pub(super) can_edit: bool,
    /// Acts that close it, which ask for a reason.
    pub(super) closing: Vec<Choice>,
    pub(super) simple: Vec<Choice>,
    pub(super) owner: String,
    pub(super) queue: String,
}

/// The acts that the status of a letter and the roles of its visitor allow.
pub(super) fn offered(visitor: &Visitor, letter: &DeadLetter) -> Offered {
    let (id, status) = (letter.id(), letter.record.status);
    if !visitor.may(Role::Operator) {
        return Offered::default();
    }
    let allowed = |act: &Act| visitor.may(act.role()) && act.next_status(id, status).is_ok();
    let until = visitor.now.plus(A_DAY);
    let closing = [
        (
            Act::Resolve,
            "resolve",
            "Resolve",
            "Close it as dealt with: the work was done otherwise, or is not needed.",
            false,
        ),
        (
            Act::Abandon,
            "abandon",
            "Abandon",
            "Close it as given up. It is kept until its retention ends.",
            true,
        ),
    ];
    let simple = [
        (
            Act::Review,
            "review",
            "Ask for review",
            "A person has to look at it before it goes anywhere.",
            false,
        ),
        (
            Act::Quarantine { until },
            "quarantine",
            "Quarantine for a day",
            "Nobody and nothing sends it back meanwhile.",
            false,
        ),
        (Act::Release, "release", "Release", "Out of quarantine or review, back to pending.", false),
        (Act::Reopen, "reopen", "Open again", "It waits for a decision again.", false),
        (Act::PullBack, "pull-back", "Take back", "Undo the redrive while no attempt has begun.", false),
        (Act::Unpurge, "unpurge", "Undo the purge", "It is there again as it was.", false),
        (
            Act::Hold { on: !letter.record.held },
            if letter.record.held { "unhold" } else { "hold" },
            if letter.record.held { "End the hold" } else { "Hold" },
            "A held letter never expires and cannot be purged.",
            false,
        ),
        (
            Act::Snooze { until },
            "snooze",
            "Snooze for a day",
            "Consumers and automatic redrives leave it alone.",
            false,
        ),
        (Act::Purge, "purge", "Purge", "Remove it. It can be undone for a day.", true),
    ];
    let choice =
        |(_, name, label, about, is_danger): (Act, &'static str, &'static str, &'static str, bool)| Choice {
            name,
            label,
            about,
            is_danger,
        };
    Offered {
        any: true,
        can_retry: allowed(&Act::retry()),
        can_edit: may_edit(visitor, letter),
        closing: closing.into_iter().filter(|(act, ..)| allowed(act)).map(choice).collect(),
        simple: simple.into_iter().filter(|(act, ..)| allowed(act)).map(choice).collect(),
        owner: letter.record.owner.clone().unwrap_or_default(),
        queue: letter.message.envelope.queue.to_string(),
    }
}

/// `POST /dlq/{id}`: acts on one letter.
pub(super) async fn on_one(
    visitor: Visitor,
    Path(id): Path<MessageId>,
    Sent(fields): Sent,
) -> Result<Response, Failure> {
    let act = act_of(&fields, visitor.now)?;
    let actor = visitor.actor(fields.owned("reason"));
    let request = ActRequest { id, act, actor, expected_version: fields.read("version")? };
    only(visitor.caller.store.act(vec![request]).await?)?;
    Ok(see_other(&format!("/dlq/{id}")))
}

/// The words for an act on many letters.
pub(super) struct Words {
    /// What it does, as a heading.
    pub(super) title: String,
    /// The label of the button that does it.
    pub(super) button: String,
    /// What it means.
    pub(super) about: &'static str,
}

/// The words for an act on `count` letters.
pub(super) fn words(act: &Act, count: u64) -> Words {
    let letters = plural(count, "letter", "letters");
    let (title, about) = match act {
        Act::Retry(_) => {
            ("Send back", "They go back to their queues and are tried again. A success closes its letter.")
        }
        Act::Review => ("Ask for review of", "A person has to look at them before they go anywhere."),
        Act::Quarantine { .. } => {
            ("Quarantine", "Nobody and nothing sends them back until the quarantine ends.")
        }
        Act::Release => ("Release", "Out of quarantine or review, back to pending."),
        Act::Resolve => ("Resolve", "They are closed as dealt with and kept until their retention ends."),
        Act::Abandon => ("Abandon", "They are closed as given up and kept until their retention ends."),
        Act::Reopen => ("Open again", "They wait for a decision again."),
        Act::Purge => ("Purge", "They are removed. That can be undone for a day."),
        Act::Unpurge => ("Undo the purge of", "They are there again as they were."),
        Act::Move { .. } => ("Move", "They go to another dead letter queue."),
        Act::Hold { on: true } => ("Hold", "Held letters never expire and cannot be purged."),
        Act::Hold { on: false } => ("End the hold of", "They may expire and be purged again."),
        Act::Snooze { .. } => ("Snooze", "Consumers and automatic redrives leave them alone meanwhile."),
        Act::Assign { .. } => ("Assign", "They get another owner."),
        Act::Label { .. } => ("Label", "Their labels change."),
        Act::Patch(_) => ("Patch", "Their payloads change. The earlier ones are kept."),
        Act::Restore { .. } => ("Restore", "They get an earlier content."),
        Act::Erase => ("Erase", "Their contents are gone for good."),
        Act::Note | Act::PullBack | Act::Edit(_) => {
            ("Change", "This cannot be done to many letters at once.")
        }
    };
    Words { title: title.to_owned(), button: format!("{title} {letters}"), about }
}

/// The name of an age in a preview.
pub(super) fn age_name(up_to: Option<Span>) -> String {
    match up_to {
        Some(up_to) => format!("up to {}", super::text::rough(up_to)),
        None => "older".into(),
    }
}

struct Sample {
    id: String,
    short: String,
    error: String,
    queue: String,
    died: When,
}

#[derive(Template)]
#[template(path = "act.html")]
struct ActPage {
    frame: Frame,
    words: Words,
    count: u64,
    count_text: String,
    filter: String,
    filter_shown: String,
    act_json: String,
    operation: String,
    token: String,
    bound: u64,
    is_retry: bool,
    is_danger: bool,
    can_undo: bool,
    canary: String,
    rate: String,
    warnings: Vec<String>,
    queues: Vec<group::Part>,
    groups: Vec<group::Part>,
    ages: Vec<group::Part>,
    samples: Vec<Sample>,
    estimate: String,
    cli: String,
}

/// The filter that a form asks for: the selected letters, or all that match.
fn filter_of(fields: &Fields) -> Result<Filter, Problem> {
    let ids: Vec<&str> = fields.all("id").take(redrive_core::limits::FILTER_TERMS_MAX).collect();
    let text = if ids.is_empty() { fields.text("filter") } else { format!("id:{}", ids.join(",")) };
    tables::parse(&text)
}

/// `GET /act`: what an act would do to many letters, and the form that does it.
pub(super) async fn preview(visitor: Visitor, Asked(asked): Asked) -> Result<Response, Failure> {
    let act = act_of(&asked, visitor.now)?;
    let filter = filter_of(&asked)?;
    let request = PreviewRequest {
        rollout: Rollout { rate: Some(50), ..Rollout::default() },
        ..PreviewRequest::new(act.clone(), filter.clone(), SAMPLE)
    };
    let preview = visitor.show(&visitor.caller.store.preview(request).await?);
    let groups = group_names(&visitor, &preview).await;
    let operation = OperationId::new(crate::api::new_id()?);
    let frame = Frame::new(&visitor, Section::Operations, words(&act, preview.count).title).await;
    let page = view(frame, &asked, &act, &filter, &preview, groups, operation, visitor.now);
    render(&visitor, &page)
}

/// The groups of a preview by name.
async fn group_names(visitor: &Visitor, preview: &Preview) -> Vec<group::Part> {
    let mut parts = Vec::new();
    for entry in preview.by_group.iter().take(8) {
        let name = match visitor.caller.store.group(entry.of).await {
            Ok(group) => super::groups::named(&visitor.show(&group).error_type),
            Err(_) => entry.of.to_string(),
        };
        parts.push(part(
            beginning(&name, 60),
            entry.count,
            preview.count,
            Some(format!("/groups/{}", entry.of)),
        ));
    }
    parts
}

fn part(name: String, count: u64, total: u64, href: Option<String>) -> group::Part {
    let drawn: Svg = bar(&[(count, "")], total, "", &percent(count, total));
    group::Part { name, value: number(count), bar: drawn, href }
}

#[expect(clippy::too_many_arguments, reason = "each is one part of the page")]
fn view(
    frame: Frame,
    asked: &Fields,
    act: &Act,
    filter: &Filter,
    preview: &Preview,
    groups: Vec<group::Part>,
    operation: OperationId,
    now: Time,
) -> ActPage {
    let total = preview.count;
    let sample = |letter: &DeadLetter| Sample {
        short: short_id(&letter.id().to_string()),
        id: letter.id().to_string(),
        error: beginning(&format!("{}: {}", letter.error.error_type, letter.error.message), 120),
        queue: letter.message.envelope.queue.to_string(),
        died: When::rough(letter.record.dead_at, now),
    };
    let selected = asked.all("id").count();
    ActPage {
        frame,
        words: words(act, total),
        count: total,
        count_text: plural(total, "letter", "letters"),
        filter: filter.text().to_owned(),
        filter_shown: match selected {
            0 if filter.is_all() => "every letter".into(),
            0 => filter.text().to_owned(),
            n => format!("{n} that you selected"),
        },
        act_json: serde_json::to_string(act).unwrap_or_default(),
        operation: operation.to_string(),
        token: preview.token.clone(),
        bound: preview.bound,
        is_retry: matches!(act, Act::Retry(_)),
        is_danger: matches!(act, Act::Purge | Act::Abandon | Act::Erase),
        can_undo: reverse(act).is_some(),
        canary: asked
            .get("canary")
            .map_or_else(|| if total > 20 { "10".into() } else { String::new() }, str::to_owned),
        rate: asked
            .get("rate")
            .map_or_else(|| if total > 20_000 { "500".into() } else { "50".into() }, str::to_owned),
        warnings: preview.warnings.iter().map(|warning| warning.text.clone()).collect(),
        queues: preview
            .by_queue
            .iter()
            .take(8)
            .map(|e| part(e.of.to_string(), e.count, total, None))
            .collect(),
        groups,
        ages: preview
            .by_age
            .iter()
            .filter(|a| a.count > 0)
            .map(|a| part(age_name(a.up_to), a.count, total, None))
            .collect(),
        samples: preview.sample.iter().map(sample).collect(),
        estimate: preview.estimate.map(span).unwrap_or_default(),
        cli: if matches!(act, Act::Retry(_)) {
            format!("redrive dlq redrive {} --canary 10 --rate 50", shell(filter.text()))
        } else {
            format!("redrive dlq {} {}", act.name(), shell(filter.text()))
        },
    }
}

/// The pace that a form asks for. Only redrives have one beside their rate.
fn rollout_of(fields: &Fields, act: &Act) -> Result<Rollout, Problem> {
    let rate = fields.read("rate")?;
    if !matches!(act, Act::Retry(_)) {
        return Ok(Rollout { rate, ..Rollout::default() });
    }
    let canary = fields.read("canary")?;
    Ok(Rollout {
        observe: if canary.is_some() { fields.read("observe")?.unwrap_or(OBSERVE) } else { Span::ZERO },
        ramp: (canary.is_some() && rate.is_some()).then_some(RAMP),
        canary,
        rate,
        in_flight: fields.read("in_flight")?,
        stop_at: fields.read("stop_at")?,
        stop_on_breaker: fields.get("stop_on_breaker").is_some(),
    })
}

/// `POST /act`: starts what was previewed.
pub(super) async fn start(visitor: Visitor, Sent(fields): Sent) -> Result<Response, Failure> {
    let act: Act = serde_json::from_str(fields.raw("act_json").unwrap_or_default()).map_err(|_| {
        Problem::bad_request("bad_field", "the form is not complete; look at the preview again")
    })?;
    let id: OperationId = fields.need("operation")?;
    let spec = OperationSpec {
        bound: Some(fields.need("bound")?),
        rollout: rollout_of(&fields, &act)?,
        token: Some(fields.need("token")?),
        ..OperationSpec::new(
            id,
            act,
            tables::parse(fields.raw("filter").unwrap_or_default())?,
            visitor.actor(fields.owned("reason")),
        )
    };
    let operation = visitor.caller.store.start(spec).await?;
    Ok(see_other(&format!("/operations/{}", operation.id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bulk_act_has_words() {
        for act in [Act::retry(), Act::Resolve, Act::Abandon, Act::Purge, Act::Hold { on: true }] {
            let words = words(&act, 3_914);
            assert!(words.button.ends_with("3,914 letters") && !words.about.is_empty(), "{}", words.button);
        }
        assert_eq!(words(&Act::retry(), 1).button, "Send back 1 letter");
    }
}
