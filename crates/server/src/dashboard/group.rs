//! One group: what failed, where and when, what varies, what was tried, and the one button that heals it carefully.

use super::chart::{Columns, Mark, Svg, bar, by_hour};
use super::fields::Sent;
use super::frame::{Frame, Section};
use super::groups::{commands, named, place, state};
use super::text::{Marked, Pill, When, ago, beginning, number, percent, plural, query};
use super::visitor::{Failure, Visitor, see_other};
use super::{letters, operations, render, stack, tables};
use crate::problem::Problem;
use crate::request::Path;
use askama::Template;
use axum::response::Response;
use redrive_core::breaker::BreakerView;
use redrive_core::group::{GroupAct, GroupDetail, GroupEvent, GroupStatus, Marker, NameCount};
use redrive_core::ids::GroupId;
use redrive_core::limits;
use redrive_core::operation::{Preview, PreviewRequest};
use redrive_core::query::{PageRequest, Query};
use redrive_core::signature::Variable;
use redrive_core::store::{Letters, Role, Work as _};
use redrive_core::time::{Span, Time};
use std::collections::BTreeMap;

/// A group with at most so many open letters is surveyed for its page; larger ones only when somebody is about to act.
const SURVEYED_MAX: u64 = 10_000;
/// Names shown of each kind.
const NAMES: usize = 5;
/// The latest letters that are looked at to say at which attempt they died.
const LOOKED_AT: usize = 50;

/// A name with its share.
pub(super) struct Part {
    pub(super) name: String,
    pub(super) value: String,
    pub(super) bar: Svg,
    pub(super) href: Option<String>,
}

/// A list of names with their shares.
pub(super) struct Breakdown {
    pub(super) title: &'static str,
    pub(super) parts: Vec<Part>,
}

/// One of the latest letters.
struct Sample {
    id: String,
    short: String,
    message: String,
    queue: String,
    status: Pill,
    died: When,
}

struct Similar {
    id: String,
    error_type: String,
    template: Marked,
    open: String,
    score: String,
}

struct Event {
    when: When,
    by: String,
    what: String,
    text: String,
}

/// What to think of before sending the letters back.
struct Caution {
    count: String,
    text: String,
    ages: Vec<Part>,
    warnings: Vec<String>,
}

#[derive(Template)]
#[template(path = "group.html")]
struct GroupPage {
    frame: Frame,
    id: String,
    error_type: String,
    code: Option<String>,
    template: Marked,
    place: String,
    state: Pill,
    since: Option<When>,
    owner: String,
    note: String,
    link: String,
    tone: &'static str,
    headline: String,
    story: String,
    open: u64,
    chart: Svg,
    chart_rows: Vec<(String, String, String)>,
    varies: Vec<Breakdown>,
    breakdowns: Vec<Breakdown>,
    stack: Vec<stack::Line>,
    samples: Vec<Sample>,
    similar: Vec<Similar>,
    history: Vec<Event>,
    operations: Vec<operations::Row>,
    caution: Option<Caution>,
    letters_href: String,
    may_act: bool,
    can_acknowledge: bool,
    can_resolve: bool,
    can_reopen: bool,
    is_ignored: bool,
    cli: String,
    curl: String,
}

/// `GET /groups/{id}`
pub(super) async fn show(visitor: Visitor, Path(id): Path<GroupId>) -> Result<Response, Failure> {
    let store = &visitor.caller.store;
    let detail = visitor.show(&store.group_detail(id).await?);
    let (markers, breakers) = tokio::join!(store.markers(PageRequest::first(20)), store.breakers());
    let markers = visitor.show(&markers?.items);
    let may_act = visitor.may(Role::Operator);
    let filter = tables::parse(&format!("group:{} {}", detail.group.id, tables::OPEN))?;
    let surveyed = may_act && detail.group.open > 0 && detail.group.open <= SURVEYED_MAX;
    let caution = if surveyed {
        let request = PreviewRequest::new(redrive_core::dead_letter::Act::retry(), filter, 0);
        store.preview(request).await.ok().map(|preview| caution(&preview))
    } else {
        None
    };
    let sample = match detail.samples.first() {
        Some(sample) => store.letter(sample.id).await.ok().map(|letter| visitor.show(&letter)),
        None => None,
    };
    let attempts = attempts(store.as_ref(), id).await;
    let stack =
        sample.and_then(|letter| letter.error.stack).map(|text| stack::lines(&text)).unwrap_or_default();
    let title = named(&detail.group.error_type);
    let frame = Frame::new(&visitor, Section::Groups, title).await;
    let page = view(frame, &detail, &markers, &breakers?, caution, &attempts, stack, may_act, visitor.now);
    render(&visitor, &page)
}

#[expect(clippy::too_many_arguments, reason = "each is one reply of the store")]
fn view(
    frame: Frame,
    detail: &GroupDetail,
    markers: &[Marker],
    breakers: &[BreakerView],
    caution: Option<Caution>,
    attempts: &[NameCount],
    stack: Vec<stack::Line>,
    may_act: bool,
    now: Time,
) -> GroupPage {
    let group = &detail.group;
    let id = group.id.to_string();
    let (tone, headline, story) = story(detail, markers, now);
    let (cli, curl) = commands(&id);
    let allows = |event| group.status.after(event).is_some();
    GroupPage {
        frame,
        error_type: named(&group.error_type),
        code: group.code.clone(),
        template: Marked::new(&group.template),
        place: place(group),
        state: state(group.status),
        since: detail.since.map(|since| When::ago(since, now)),
        owner: group.owner.clone().unwrap_or_default(),
        note: group.note.clone().unwrap_or_default(),
        link: group.link.clone().unwrap_or_default(),
        tone,
        headline,
        story,
        open: group.open,
        chart: histogram(detail, markers, breakers, now),
        chart_rows: chart_rows(detail),
        varies: what_varies(detail),
        breakdowns: breakdowns(detail, attempts),
        stack,
        samples: detail.samples.iter().map(|sample| sample_row(sample, now)).collect(),
        similar: detail.similar.iter().map(similar_row).collect(),
        history: detail.history.iter().rev().map(|entry| event(entry, now)).collect(),
        operations: detail.operations.iter().map(|operation| operations::row(operation, now)).collect(),
        caution,
        letters_href: format!("/dlq?filter={}", query(&format!("group:{id}"))),
        may_act,
        can_acknowledge: allows(GroupEvent::Acknowledge),
        can_resolve: allows(GroupEvent::Resolve),
        can_reopen: allows(GroupEvent::Reopen),
        is_ignored: group.status == GroupStatus::Ignored,
        id,
        cli,
        curl,
    }
}

fn sample_row(sample: &redrive_core::group::GroupSample, now: Time) -> Sample {
    Sample {
        short: super::text::short_id(&sample.id.to_string()),
        id: sample.id.to_string(),
        message: beginning(&sample.message, 160),
        queue: sample.queue.to_string(),
        status: letters::state(sample.status),
        died: When::rough(sample.dead_at, now),
    }
}

fn similar_row(similar: &redrive_core::group::SimilarGroup) -> Similar {
    Similar {
        id: similar.id.to_string(),
        error_type: named(&similar.error_type),
        template: Marked::new(&similar.template),
        open: number(similar.open),
        score: format!("{:.0} % alike", similar.score * 100.0),
    }
}

fn event(entry: &redrive_core::group::GroupHistoryEntry, now: Time) -> Event {
    Event {
        when: When::ago(entry.at, now),
        by: entry.by.clone(),
        what: match entry.what.as_str() {
            "died" => "came back".into(),
            "emptied" => "resolved by the last success".into(),
            "over" => "no longer ignored".into(),
            what => what.to_owned(),
        },
        text: entry.text.clone().unwrap_or_default(),
    }
}

/// What happened, in sentences.
fn story(detail: &GroupDetail, markers: &[Marker], now: Time) -> (&'static str, String, String) {
    let group = &detail.group;
    let letters = plural(group.open, "letter waits", "letters wait");
    let (tone, headline) = match group.status {
        GroupStatus::Regressed => ("red", format!("It came back after it was resolved. {letters}.")),
        GroupStatus::New => ("red", format!("{letters} for a decision.")),
        GroupStatus::Acknowledged => ("amber", format!("Somebody is looking at it. {letters}.")),
        GroupStatus::Resolved if group.open == 0 => {
            ("green", "Its cause is gone and no letter waits.".into())
        }
        GroupStatus::Resolved => ("amber", format!("Its cause is said to be gone. {letters} still.")),
        GroupStatus::Ignored => ("", format!("It is ignored{}.", until(detail, now))),
    };
    let mut story = format!(
        "First seen {}, last {}; {} in all",
        ago(group.first_seen, now),
        ago(group.last_seen, now),
        plural(group.total, "message died of it", "messages died of it"),
    );
    if let Some(marker) =
        markers.iter().find(|m| m.at <= group.first_seen && group.first_seen.since(m.at) < HALF_HOUR)
    {
        story.push_str(&format!(", which began after {:?}", beginning(&marker.text, 40)));
    }
    story.push('.');
    let failures: u64 = detail.versions.iter().map(|version| version.count).sum();
    if let Some(version) = detail.versions.first().filter(|v| v.count * 10 >= failures * 9) {
        story.push_str(&format!(
            " {} of the failures are on version {}.",
            percent(version.count, failures),
            version.name
        ));
    }
    let (ok, bad) = (u64::from(detail.outcomes.redriven_ok), u64::from(detail.outcomes.redriven_failed));
    if ok + bad > 0 {
        story.push_str(&format!(
            " Of {} sent back unchanged, {} succeeded and {} died again.",
            number(ok + bad),
            number(ok),
            number(bad)
        ));
    }
    (tone, headline, story)
}

const HALF_HOUR: Span = Span::from_secs(30 * 60);

fn until(detail: &GroupDetail, now: Time) -> String {
    let Some(ignored) = &detail.ignored else { return String::new() };
    match (ignored.until, ignored.deaths) {
        (Some(until), _) => format!(" until {}", ago(until, now)),
        (None, Some(deaths)) => format!(" for {} more", plural(deaths, "death", "deaths")),
        (None, None) => " until somebody opens it again".into(),
    }
}

fn histogram(detail: &GroupDetail, markers: &[Marker], breakers: &[BreakerView], now: Time) -> Svg {
    let hours = limits::GROUP_HOURS;
    let mut marks: Vec<Mark> =
        markers.iter().map(|m| Mark { at: m.at, text: m.text.clone(), is_event: false }).collect();
    for breaker in breakers.iter().filter(|breaker| detail.group.queues.contains(&breaker.queue)) {
        let events = breaker.events.iter().map(|event| Mark {
            at: event.at,
            text: format!("breaker {} {}: {}", breaker.key, event.to, event.why),
            is_event: true,
        });
        marks.extend(events);
    }
    Columns {
        series: vec![("c1", by_hour(&detail.hours, hours, now, |hour| hour.deaths))],
        line: Some(by_hour(&detail.hours, hours, now, |hour| hour.closed)),
        marks,
        now,
        label: format!("Deaths and closed letters of this group by hour, last {hours} h"),
    }
    .draw()
}

fn chart_rows(detail: &GroupDetail) -> Vec<(String, String, String)> {
    let row = |hour: &redrive_core::group::Hour| {
        (super::text::exact(hour.at), number(hour.deaths), number(hour.closed))
    };
    detail.hours.iter().map(row).collect()
}

/// The values that vary in a group, for each place of its template.
pub(super) fn what_varies(detail: &GroupDetail) -> Vec<Breakdown> {
    detail.variables.iter().map(varies).filter(|breakdown| !breakdown.parts.is_empty()).collect()
}

/// The values at one place of the template.
fn varies(variable: &Variable) -> Breakdown {
    let total: u64 = variable.top.iter().map(|(_, count)| count).sum();
    let part = |(value, count): &(String, u64)| Part {
        name: beginning(value, 48),
        value: percent(*count, total),
        bar: bar(&[(*count, "")], total, "amber", &percent(*count, total)),
        href: None,
    };
    let mut parts: Vec<Part> = variable.top.iter().take(3).map(part).collect();
    if variable.distinct > variable.top.len().min(3) {
        let more = variable.distinct - variable.top.len().min(3);
        parts.push(Part {
            name: plural(more as u64, "more value", "more values"),
            value: String::new(),
            bar: Svg::default(),
            href: None,
        });
    }
    // One value that never varies is part of the text.
    if variable.distinct <= 1 {
        parts.clear();
    }
    Breakdown { title: "", parts }
}

/// The attempts at which the latest letters of a group died, most frequent first.
async fn attempts(store: &dyn Letters, id: GroupId) -> Vec<NameCount> {
    let Ok(filter) = tables::parse(&format!("group:{id}")) else { return Vec::new() };
    let latest = Query { filter, page: PageRequest::first(LOOKED_AT) };
    let Ok(page) = store.letters(latest).await else { return Vec::new() };
    let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
    for letter in &page.items {
        *counts.entry(letter.message.attempts).or_default() += 1;
    }
    let mut all: Vec<NameCount> =
        counts.into_iter().map(|(n, count)| NameCount { name: n.to_string(), count, over: 0 }).collect();
    all.sort_by_key(|attempt| std::cmp::Reverse(attempt.count));
    all
}

fn breakdowns(detail: &GroupDetail, attempts: &[NameCount]) -> Vec<Breakdown> {
    let filter = |field: &str, value: &str| {
        let text = format!("group:{} {field}:{}", detail.group.id, tables::quoted(value));
        Some(format!("/dlq?filter={}", query(&text)))
    };
    let names = |title: &'static str, field: &str, all: &[NameCount]| {
        let total: u64 = all.iter().map(|name| name.count).sum();
        let part = |name: &NameCount| Part {
            name: name.name.clone(),
            value: percent(name.count, total),
            bar: bar(&[(name.count, "")], total, "", &percent(name.count, total)),
            href: filter(field, &name.name),
        };
        Breakdown { title, parts: all.iter().take(NAMES).map(part).collect() }
    };
    let total: u64 = detail.shares.iter().map(|share| share.failures).sum();
    let part = |share: &redrive_core::group::GroupShare| Part {
        name: if share.kind.is_empty() {
            share.queue.to_string()
        } else {
            format!("{} · {}", share.queue, share.kind)
        },
        value: percent(share.failures, total),
        bar: bar(&[(share.failures, "")], total, "", &percent(share.failures, total)),
        href: filter("queue", share.queue.as_str()),
    };
    let places =
        Breakdown { title: "Queue and kind", parts: detail.shares.iter().take(NAMES).map(part).collect() };
    let all = [
        names("Version", "version", &detail.versions),
        names("Host", "host", &detail.hosts),
        names("Worker", "worker", &detail.workers),
        names("Attempt at which its latest letters died", "attempts", attempts),
        places,
    ];
    all.into_iter().filter(|breakdown| !breakdown.parts.is_empty()).collect()
}

fn caution(preview: &Preview) -> Caution {
    let most = preview.by_age.iter().map(|age| age.count).sum();
    let ages = preview.by_age.iter().filter(|age| age.count > 0).map(|age| Part {
        name: super::act::age_name(age.up_to),
        value: number(age.count),
        bar: bar(&[(age.count, "")], most, "", &percent(age.count, most)),
        href: None,
    });
    Caution {
        count: number(preview.count),
        text: plural(preview.count, "letter would go back", "letters would go back"),
        ages: ages.collect(),
        warnings: preview.warnings.iter().map(|warning| warning.text.clone()).collect(),
    }
}

/// `POST /groups/{id}`: acknowledges, resolves, ignores, reopens, assigns, notes or links a group.
pub(super) async fn act(
    visitor: Visitor,
    Path(id): Path<GroupId>,
    Sent(fields): Sent,
) -> Result<Response, Failure> {
    let act = match fields.get("act").unwrap_or_default() {
        "acknowledge" => GroupAct::Acknowledge,
        "resolve" => GroupAct::Resolve,
        "reopen" => GroupAct::Reopen,
        "ignore" => {
            let span: Option<Span> = fields.read("for")?;
            GroupAct::Ignore { until: span.map(|span| visitor.now.plus(span)), count: fields.read("count")? }
        }
        "assign" => GroupAct::Assign { to: fields.owned("to") },
        "note" => GroupAct::Note { text: fields.owned("text") },
        "link" => GroupAct::Link { url: fields.owned("url") },
        _ => return Err(Problem::bad_request("bad_field", "there is no such act on a group").into()),
    };
    visitor.caller.store.act_on_group(id, act, visitor.actor(fields.owned("reason"))).await?;
    Ok(see_other(fields.get("back").unwrap_or(&format!("/groups/{id}"))))
}
