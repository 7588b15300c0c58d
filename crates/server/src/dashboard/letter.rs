//! One dead letter: why it died, what happened to it, what is in it, and what may be done with it now.

use super::fields::{Asked, Sent};
use super::frame::{Frame, Section};
use super::payload::{Form, Line, show as show_payload};
use super::text::{Marked, Pill, When, bytes, plural, query, shell, short_id, span};
use super::timeline::{Moment, moments};
use super::visitor::{Failure, Visitor};
use super::{act, group, letters, render, stack, tables};
use crate::request::Path;
use askama::Template;
use axum::response::Response;
use redrive_core::breaker::{BreakerState, BreakerView};
use redrive_core::dead_letter::{DeadLetter, Status};
use redrive_core::disclosure::{Disclosed, Disclosure};
use redrive_core::failure::Reason;
use redrive_core::filter::Filter;
use redrive_core::group::GroupDetail;
use redrive_core::ids::MessageId;
use redrive_core::query::{Cursor, PageRequest, Query};
use redrive_core::store::{Letters as _, Queue, Role, Work as _};
use redrive_core::time::Time;

/// The neighbours of a letter in the list it was opened from.
#[derive(Default)]
struct Neighbours {
    previous: Option<String>,
    next: Option<String>,
    list: String,
}

/// A name and a value.
struct Fact {
    name: &'static str,
    value: String,
    href: Option<String>,
}

/// A change of the content.
struct Revision {
    n: u32,
    when: When,
    by: String,
    reason: String,
    size: String,
    is_current: bool,
}

#[derive(Template)]
#[template(path = "letter.html")]
struct LetterPage {
    frame: Frame,
    id: String,
    short: String,
    title: String,
    group: String,
    group_name: String,
    neighbours: Neighbours,
    state: Pill,
    tone: &'static str,
    headline: String,
    story: String,
    cautions: Vec<String>,
    took: String,
    moments: Vec<Moment>,
    error_type: String,
    message: String,
    cause: Option<String>,
    trail: Vec<String>,
    stack: Vec<stack::Line>,
    payload: Vec<Line>,
    payload_note: String,
    forms: Vec<(&'static str, String, bool)>,
    left_out: String,
    is_masked: bool,
    is_revealed: bool,
    may_reveal: bool,
    headers: Vec<(String, String)>,
    facts: Vec<Fact>,
    notes: Vec<(When, String, String)>,
    revisions: Vec<Revision>,
    varies: Vec<group::Breakdown>,
    signature: Marked,
    acts: act::Offered,
    version: u64,
    cli: String,
    curl: String,
}

/// Whether something of the content is hidden.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Masking {
    /// Nothing needs to be.
    None,
    /// Something is.
    On,
    /// Something would be, but the visitor asked to see it.
    Lifted,
}

/// What the page of a letter needs beside the letter.
struct Around {
    group: Option<GroupDetail>,
    queue: Option<Queue>,
    breakers: Vec<BreakerView>,
    revisions: Vec<redrive_core::revision::Revision>,
    neighbours: Neighbours,
}

/// `GET /dlq/{id}`
pub(super) async fn show(
    visitor: Visitor,
    Path(id): Path<MessageId>,
    Asked(asked): Asked,
) -> Result<Response, Failure> {
    let stored = visitor.caller.store.letter(id).await?;
    let letter = visitor.show(&stored);
    let (was, is) = (&stored.message.envelope, &letter.message.envelope);
    let masking =
        if (&was.payload, &was.headers) == (&is.payload, &is.headers) { Masking::None } else { Masking::On };
    let form = Form::named(asked.get("payload"));
    page(&visitor, &letter, form, asked.get("filter"), asked.get("cursor"), masking).await
}

/// `POST /dlq/{id}/reveal`: the same page without masking. The audit trail records it first.
pub(super) async fn reveal(
    visitor: Visitor,
    Path(id): Path<MessageId>,
    Sent(fields): Sent,
) -> Result<Response, Failure> {
    let letter = visitor.caller.store.letter(id).await?;
    let disclosure = Disclosure::of(Disclosed::Letter, id);
    visitor.caller.store.disclose(disclosure, visitor.actor(fields.owned("reason"))).await?;
    page(&visitor, &letter, Form::named(fields.get("payload")), None, None, Masking::Lifted).await
}

async fn page(
    visitor: &Visitor,
    letter: &DeadLetter,
    form: Form,
    filter: Option<&str>,
    cursor: Option<&str>,
    masking: Masking,
) -> Result<Response, Failure> {
    let store = &visitor.caller.store;
    let (group, queue, breakers, revisions) = tokio::join!(
        store.group_detail(letter.group),
        store.queue(letter.message.envelope.queue.clone()),
        store.breakers(),
        store.revisions(letter.id())
    );
    let around = Around {
        group: group.ok().map(|group| visitor.show(&group)),
        queue: queue.ok(),
        breakers: breakers.unwrap_or_default(),
        revisions: revisions.unwrap_or_default(),
        neighbours: neighbours(visitor, letter.id(), filter, cursor).await,
    };
    let title = kind_of(letter);
    let frame = Frame::new(visitor, Section::Letters, title).await;
    render(visitor, &view(visitor, frame, letter, around, form, masking))
}

fn kind_of(letter: &DeadLetter) -> String {
    let envelope = &letter.message.envelope;
    if envelope.kind.is_empty() { envelope.queue.to_string() } else { envelope.kind.clone() }
}

/// The letters before and after this one in the page of the list it was opened from.
async fn neighbours(
    visitor: &Visitor,
    id: MessageId,
    filter: Option<&str>,
    cursor: Option<&str>,
) -> Neighbours {
    let Some(Ok(parsed)) = filter.map(Filter::parse) else {
        return Neighbours { list: "/dlq".into(), ..Neighbours::default() };
    };
    let text = query(parsed.text());
    let with = |cursor: Option<&str>| cursor.map(|c| format!("&cursor={}", query(c))).unwrap_or_default();
    let list = format!("/dlq?filter={text}{}", with(cursor));
    let page = PageRequest { limit: Some(40), cursor: cursor.map(Cursor::from_text) };
    let Ok(page) = visitor.caller.store.letters(Query { filter: parsed, page }).await else {
        return Neighbours { list, ..Neighbours::default() };
    };
    let ids: Vec<MessageId> = page.items.iter().map(DeadLetter::id).collect();
    let Some(at) = ids.iter().position(|known| *known == id) else {
        return Neighbours { list, ..Neighbours::default() };
    };
    let link = |at: usize| ids.get(at).map(|id| format!("/dlq/{id}?filter={text}{}", with(cursor)));
    Neighbours { previous: at.checked_sub(1).and_then(link), next: link(at + 1), list }
}

fn view(
    visitor: &Visitor,
    frame: Frame,
    letter: &DeadLetter,
    around: Around,
    form: Form,
    masking: Masking,
) -> LetterPage {
    let (envelope, record, now) = (&letter.message.envelope, &letter.record, visitor.now);
    let id = letter.id().to_string();
    let shown = show_payload(&envelope.payload.bytes, form);
    let (headline, story) = story(letter, around.group.as_ref());
    let here = |name: &str| tables::address(&visitor.here, &[("payload", name)]);
    LetterPage {
        frame,
        short: short_id(&id),
        title: kind_of(letter),
        group: letter.group.to_string(),
        group_name: super::groups::named(&letter.error.error_type),
        state: letters::state(record.status),
        tone: tone(record.status),
        headline,
        story,
        cautions: if record.status.is_closed() { Vec::new() } else { cautions(letter, &around) },
        took: format!("{} from enqueue to death", span(record.dead_at.since(envelope.enqueued_at))),
        moments: moments(letter, now),
        error_type: super::groups::named(&letter.error.error_type),
        message: letter.error.message.clone(),
        cause: letter.error.cause.clone(),
        trail: letter.error.context.clone(),
        stack: letter.error.stack.as_deref().map(stack::lines).unwrap_or_default(),
        payload_note: payload_note(letter),
        forms: Form::ALL.map(|(known, name)| (name, here(name), known == form)).into(),
        left_out: if shown.left_out > 0 { bytes(shown.left_out as u64) } else { String::new() },
        payload: shown.lines,
        is_masked: masking == Masking::On,
        is_revealed: masking == Masking::Lifted,
        may_reveal: visitor.caller.access.reveals(),
        headers: envelope.headers.iter().map(|(name, value)| (name.clone(), value.clone())).collect(),
        facts: facts(letter, now),
        notes: record
            .notes
            .iter()
            .map(|note| (When::ago(note.at, now), note.by.clone(), note.text.clone()))
            .collect(),
        revisions: revisions(&around.revisions, now),
        varies: around.group.as_ref().map(group::what_varies).unwrap_or_default(),
        signature: Marked::new(&letter.signature),
        acts: act::offered(visitor, letter),
        version: record.version,
        neighbours: around.neighbours,
        cli: format!("redrive dlq show {}", shell(&id)),
        curl: tables::curl("GET", &format!("/api/v1/dlq/{id}"), None),
        id,
    }
}

const fn tone(status: Status) -> &'static str {
    match status {
        Status::Pending | Status::Review => "red",
        Status::Retrying | Status::Quarantined => "amber",
        Status::Resolved => "green",
        Status::Abandoned | Status::Purged => "",
    }
}

/// Why it died, in sentences.
fn story(letter: &DeadLetter, group: Option<&GroupDetail>) -> (String, String) {
    let (attempts, record) = (u64::from(letter.message.attempts), &letter.record);
    let error = super::groups::named(&letter.error.error_type);
    let headline = match record.reason {
        Reason::MaxAttempts if attempts == 1 => "It died because its only attempt failed.".into(),
        Reason::MaxAttempts => format!("It died because all {attempts} attempts failed."),
        Reason::Permanent => "It died at once: the handler reported that a retry is useless.".into(),
        Reason::Rule => "It died at once: a rule of its queue says that this failure is not retried.".into(),
        Reason::RetryBudget => "It died because the time for retries was used up.".into(),
        Reason::Expired => "It died because its time to live ended before it was done.".into(),
        Reason::Deadline => "It died because its deadline passed before it was done.".into(),
        Reason::Poison => "It was taken out because it breaks every worker that runs it.".into(),
        Reason::Undecodable => "It died because its payload could not be decoded.".into(),
        Reason::Manual => "It died because somebody, or a policy of their own, decided so.".into(),
        Reason::Imported => "It was imported as a dead letter.".into(),
        Reason::BreakerOpen => "It was not even tried: the breaker in front of its service was open.".into(),
    };
    let same =
        letter.message.failures.iter().all(|failure| failure.error.error_type == letter.error.error_type);
    let mut story = match (same, attempts) {
        (true, 2..) => format!("Every attempt ended in {error}"),
        (true | false, _) => format!("The last attempt ended in {error}"),
    };
    if let Some(version) = letter.message.failures.last().and_then(|failure| failure.version.as_ref()) {
        story.push_str(&format!(" on version {version}"));
    }
    let others =
        group.map_or(0, |group| group.group.open.saturating_sub(u64::from(!record.status.is_closed())));
    if others > 0 {
        story.push_str(&format!(
            "; {} of the same cause",
            plural(others, "other letter is open", "other letters are open")
        ));
    }
    story.push('.');
    if record.redrives > 0 {
        story.push_str(&format!(
            " It was sent back {} before.",
            plural(u64::from(record.redrives), "time", "times")
        ));
    }
    (headline, story)
}

/// What a retry would meet.
fn cautions(letter: &DeadLetter, around: &Around) -> Vec<String> {
    let envelope = &letter.message.envelope;
    let mut cautions = Vec::new();
    let mine = |breaker: &&BreakerView| {
        breaker.queue == envelope.queue
            && breaker.state != BreakerState::Closed
            && (breaker.key == envelope.kind || breaker.key == envelope.queue.as_str())
    };
    for breaker in around.breakers.iter().filter(mine) {
        cautions.push(format!(
            "The breaker {} is {}: a retry now would wait for it.",
            breaker.key,
            breaker.state.name().replace('_', " ")
        ));
    }
    if around.queue.as_ref().is_some_and(|queue| queue.paused) {
        cautions.push(format!("Queue {} is paused: a retry would wait until it is resumed.", envelope.queue));
    }
    if letter.record.consumer.is_some() {
        cautions.push("A dead letter consumer is working on it at the moment.".into());
    }
    cautions
}

fn payload_note(letter: &DeadLetter) -> String {
    let payload = &letter.message.envelope.payload;
    match &letter.record.erased {
        Some(erased) => format!("erased by {}", erased.by),
        None if payload.content_type.is_empty() => bytes(payload.bytes.len() as u64),
        None => format!("{}, {}", bytes(payload.bytes.len() as u64), payload.content_type),
    }
}

fn facts(letter: &DeadLetter, now: Time) -> Vec<Fact> {
    let (envelope, record) = (&letter.message.envelope, &letter.record);
    let confidence = letter.message.failures.last().map(|failure| failure.confidence).unwrap_or_default();
    let category = match confidence > 0.0 {
        true => format!("{} ({confidence:.2})", record.category),
        false => record.category.to_string(),
    };
    let time = |at: Option<Time>| at.map(super::text::exact);
    let until = |at: Option<Time>| at.filter(|at| *at > now).map(|at| super::text::ago(at, now));
    let all: [(&'static str, Option<String>); 24] = [
        ("reason", Some(record.reason.name().replace('_', " "))),
        ("category", Some(category)),
        ("route", Some(record.route.to_string())),
        ("severity", Some(record.severity.to_string())),
        ("recovery", Some(record.recoverability.to_string())),
        ("queue", Some(envelope.queue.to_string())),
        ("dead letter queue", Some(record.dlq.to_string())),
        ("priority", Some(envelope.priority.to_string())),
        (
            "attempts",
            Some(format!("{} in this generation, {} in all", letter.message.attempts, letter.message.failed)),
        ),
        ("sent back", (record.redrives > 0).then(|| plural(u64::from(record.redrives), "time", "times"))),
        ("owner", record.owner.clone()),
        (
            "labels",
            (!record.labels.is_empty()).then(|| record.labels.iter().cloned().collect::<Vec<_>>().join(", ")),
        ),
        (
            "tags",
            (!envelope.tags.is_empty()).then(|| envelope.tags.iter().cloned().collect::<Vec<_>>().join(", ")),
        ),
        ("key", envelope.key.clone()),
        ("ordering key", envelope.ordering_key.clone()),
        ("reply to", envelope.reply_to.as_ref().map(ToString::to_string)),
        ("trace", envelope.trace.clone()),
        ("deadline", time(envelope.deadline)),
        ("held", record.held.then(|| "yes: it does not expire".to_owned())),
        ("snoozed", until(record.snoozed_until)),
        ("quarantine ends", until(record.quarantined_until)),
        ("resolution", record.resolution.clone()),
        ("removed", until(record.expires_at)),
        ("version", Some(record.version.to_string())),
    ];
    let known = all.into_iter().filter_map(|(name, value)| value.map(|value| (name, value)));
    let fact = |(name, value): (&'static str, String)| {
        let href = (name == "queue").then(|| format!("/queues/{value}"));
        Fact { name, value, href }
    };
    known.map(fact).collect()
}

fn revisions(all: &[redrive_core::revision::Revision], now: Time) -> Vec<Revision> {
    if all.len() < 2 {
        return Vec::new();
    }
    let last = all.last().map_or(0, |revision| revision.n);
    let row = |revision: &redrive_core::revision::Revision| Revision {
        n: revision.n,
        when: When::ago(revision.at, now),
        by: revision.by.clone(),
        reason: revision.reason.clone().unwrap_or_default(),
        size: bytes(revision.content.payload.bytes.len() as u64),
        is_current: revision.n == last,
    };
    all.iter().rev().map(row).collect()
}

/// Whether somebody may change the content.
pub(super) fn may_edit(visitor: &Visitor, letter: &DeadLetter) -> bool {
    let open = matches!(letter.record.status, Status::Pending | Status::Review | Status::Quarantined);
    visitor.may(Role::Editor) && open && letter.record.erased.is_none()
}
