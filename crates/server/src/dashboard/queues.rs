//! Queues: the list, and one of them with what waits, the policy in effect and when it would retry.

use super::chart::bar;
use super::fields::Sent;
use super::frame::{Frame, Section};
use super::group::Part;
use super::text::{Pill, bytes, count, number, percent, query, rough, shell, span};
use super::visitor::{Failure, Visitor, see_other};
use super::{render, tables};
use crate::problem::Problem;
use crate::request::Path;
use askama::Template;
use axum::response::Response;
use redrive_core::breaker::{BreakerState, BreakerView};
use redrive_core::ids::QueueName;
use redrive_core::message::{Message, Priority};
use redrive_core::metrics::{Event, Stats};
use redrive_core::policy::QueuePolicy;
use redrive_core::query::{PageRequest, Query};
use redrive_core::store::{Queue, Role, Store as _, WaitingFor, Work as _};
use redrive_core::time::{Span, Time};

/// The messages that are looked at to say how they spread over priorities.
const LOOKED_AT: usize = 1_000;
/// The retries shown of a backoff.
const RETRIES_SHOWN: u32 = 12;

/// A row of the list.
pub(super) struct QueueRow {
    pub(super) name: String,
    pub(super) state: Pill,
    pub(super) waiting: String,
    pub(super) ready: String,
    pub(super) scheduled: String,
    pub(super) leased: String,
    pub(super) letters: String,
    pub(super) dead_share: String,
    /// What the worst queues have most of, for their order.
    pub(super) trouble: u64,
}

/// The state of a queue as a pill, and how much it worries.
fn state(queue: &Queue, open: u64, breakers: &[BreakerView]) -> (Pill, u64) {
    let mine = || breakers.iter().filter(|breaker| breaker.queue == queue.name);
    if mine().any(|breaker| breaker.state == BreakerState::Open) {
        return (Pill::new("red", "Breaker open"), 3_000_000_000 + open);
    }
    if mine().any(|breaker| breaker.state == BreakerState::HalfOpen) {
        return (Pill::new("amber", "Probing"), 2_000_000_000 + open);
    }
    if queue.paused {
        return (Pill::new("amber", "Paused"), 1_000_000_000 + open);
    }
    if open > 0 { (Pill::new("blue", "Has dead letters"), open) } else { (Pill::new("green", "Healthy"), 0) }
}

/// The rows of all queues, by name.
pub(super) fn rows(queues: &[Queue], stats: &Stats, breakers: &[BreakerView]) -> Vec<QueueRow> {
    let row = |queue: &Queue| {
        let open =
            stats.queues.iter().find(|known| known.queue == queue.name).map_or(0, |known| known.letters_open);
        let (state, trouble) = state(queue, open, breakers);
        let of = |event: Event| -> u64 {
            let mine = stats.counters.iter().filter(|c| c.event == event && c.queue == queue.name);
            mine.map(|counter| counter.totals.count).sum()
        };
        let (done, dead) = (of(Event::Acked), of(Event::Dead));
        QueueRow {
            name: queue.name.to_string(),
            state,
            waiting: count(queue.counts.waiting),
            ready: number(queue.ready),
            scheduled: number(queue.scheduled),
            leased: count(queue.counts.leased),
            letters: number(open),
            dead_share: if done + dead == 0 { "–".into() } else { percent(dead, done + dead) },
            trouble,
        }
    };
    queues.iter().map(row).collect()
}

#[derive(Template)]
#[template(path = "queues.html")]
struct QueuesPage {
    frame: Frame,
    rows: Vec<QueueRow>,
    cli: String,
    curl: String,
}

/// `GET /queues`
pub(super) async fn list(visitor: Visitor) -> Result<Response, Failure> {
    let store = &visitor.caller.store;
    let (queues, stats, breakers) = tokio::join!(store.queues(), store.stats(), store.breakers());
    let view = QueuesPage {
        frame: Frame::new(&visitor, Section::Queues, "Queues").await,
        rows: rows(&queues?, &stats?, &breakers?),
        cli: "redrive queue list".into(),
        curl: tables::curl("GET", "/api/v1/queues", None),
    };
    render(&visitor, &view)
}

/// A retry of the policy: its number, the delay before it, and when it comes after the first failure.
struct RetryRow {
    n: u32,
    delay: String,
    after: String,
}

#[derive(Template)]
#[template(path = "queue.html")]
struct QueuePage {
    frame: Frame,
    name: String,
    state: Pill,
    paused: Option<String>,
    figures: Vec<(&'static str, String, String)>,
    waits: Vec<(String, String)>,
    priorities: Vec<Part>,
    priorities_of: String,
    policy: Vec<(&'static str, String)>,
    retries: Vec<RetryRow>,
    jitter: &'static str,
    letters_href: String,
    is_paused: bool,
    may_act: bool,
    may_purge: bool,
    cli: String,
    curl: String,
}

/// `GET /queues/{queue}`
pub(super) async fn show(visitor: Visitor, Path(name): Path<QueueName>) -> Result<Response, Failure> {
    let store = &visitor.caller.store;
    let queue = visitor.show(&store.queue(name.clone()).await?);
    let filter = tables::parse(&format!("queue:{}", tables::quoted(name.as_str())))?;
    let (stats, breakers, waiting, messages) = tokio::join!(
        store.stats(),
        store.breakers(),
        store.waiting_for(),
        store.messages(Query { filter, page: PageRequest::first(LOOKED_AT) })
    );
    let (stats, breakers) = (stats.ok(), breakers.unwrap_or_default());
    let messages = messages.map(|page| page.items).unwrap_or_default();
    let open = stats.as_ref().and_then(|stats| stats.queues.iter().find(|known| known.queue == name));
    let open = open.map_or(0, |known| known.letters_open);
    let waiting = waiting.ok().flatten().and_then(|all| all.get(&name).copied());
    let (state, _) = state(&queue, open, &breakers);
    let text = name.to_string();
    let view = QueuePage {
        frame: Frame::new(&visitor, Section::Queues, text.clone()).await,
        state,
        paused: queue.paused.then(|| queue.paused_by.clone().unwrap_or_else(|| "somebody".into())),
        figures: figures(&queue, open, stats.as_ref(), &messages, visitor.now),
        waits: waits(waiting),
        priorities_of: match messages.len() {
            LOOKED_AT => format!("of the first {}", number(LOOKED_AT as u64)),
            n => format!("of {}", number(n as u64)),
        },
        priorities: priorities(&messages),
        policy: policy(&queue.policy),
        retries: retries(&queue.policy),
        jitter: jitter(&queue.policy),
        letters_href: format!(
            "/dlq?filter={}",
            query(&format!("queue:{} {}", tables::quoted(&text), tables::OPEN))
        ),
        is_paused: queue.paused,
        may_act: visitor.may(Role::Operator),
        may_purge: visitor.may(Role::Admin),
        cli: format!("redrive queue show {}", shell(&text)),
        curl: tables::curl("GET", &format!("/api/v1/queues/{text}"), None),
        name: text,
    };
    render(&visitor, &view)
}

/// The numbers at the top. Messages are in the order in which they were sent, so the first one that waits is the oldest.
fn figures(
    queue: &Queue,
    open: u64,
    stats: Option<&Stats>,
    messages: &[Message],
    now: Time,
) -> Vec<(&'static str, String, String)> {
    let mine = |event: Event| {
        let counters = stats.into_iter().flat_map(|stats| &stats.counters);
        counters.filter(move |c| c.event == event && c.queue == queue.name).map(|c| c.totals)
    };
    let done: u64 = mine(Event::Acked).map(|totals| totals.count).sum();
    let since = mine(Event::Acked).map(|totals| totals.since).min();
    let lived = since.zip(stats).map_or(0, |(since, stats)| stats.now.since(since).as_millis());
    let waiting = u64::try_from(queue.counts.waiting).unwrap_or(0);
    let drain = match (done, lived) {
        _ if waiting == 0 => "nothing waits".to_owned(),
        (0, _) | (_, 0) => "no message was done yet".to_owned(),
        (done, lived) => {
            let ms = waiting.saturating_mul(lived) / done;
            format!("about {} at the usual rate", rough(Span::from_millis(ms)))
        }
    };
    let sent = mine(Event::Enqueued).fold((0, None), |(count, since): (u64, Option<Time>), totals| {
        (count + totals.count, Some(since.map_or(totals.since, |known| known.min(totals.since))))
    });
    let age = |(_, since): (u64, Option<Time>)| since.map_or(0, |since| now.since(since).as_millis());
    let rates = format!("{} come in, {} are done", rate(sent.0, age(sent)), rate(done, lived));
    let oldest = messages.first().map(|message| rough(now.since(message.envelope.enqueued_at)));
    vec![
        ("Ready", number(queue.ready), drain),
        (
            "Oldest",
            oldest.unwrap_or_else(|| "–".into()),
            format!("{} for later, or for a retry", number(queue.scheduled)),
        ),
        ("In flight", count(queue.counts.leased), rates),
        (
            "Open dead letters",
            number(open),
            format!(
                "{} done, {} in store",
                number(done),
                bytes(u64::try_from(queue.counts.bytes).unwrap_or(0))
            ),
        ),
    ]
}

/// How many there are in a second, on average: `0.4/s`, `120/s`.
fn rate(count: u64, ms: u64) -> String {
    let tenths = count.saturating_mul(10_000).checked_div(ms).unwrap_or(0);
    if tenths < 100 {
        format!("{}.{}/s", tenths / 10, tenths % 10)
    } else {
        format!("{}/s", number(tenths / 10))
    }
}

fn waits(waiting: Option<WaitingFor>) -> Vec<(String, String)> {
    let parts = waiting.iter().flat_map(WaitingFor::parts);
    parts.filter(|(_, n)| *n > 0).map(|(what, n)| (what.to_owned(), number(n))).collect()
}

fn priorities(messages: &[Message]) -> Vec<Part> {
    let total = messages.len() as u64;
    let of = |priority: Priority| messages.iter().filter(|m| m.envelope.priority == priority).count() as u64;
    let part = |priority: &Priority| {
        let n = of(*priority);
        Part {
            name: priority.to_string(),
            value: number(n),
            bar: bar(&[(n, "")], total, "", &percent(n, total)),
            href: None,
        }
    };
    if messages.is_empty() { Vec::new() } else { Priority::ALL.iter().map(part).collect() }
}

fn jitter(policy: &QueuePolicy) -> &'static str {
    use redrive_core::backoff::Jitter;
    match policy.backoff.jitter {
        Jitter::None => "exactly these",
        Jitter::Full => "at most these: each delay is a random part of it",
        Jitter::Equal => "between half of these and these",
        Jitter::Decorrelated => "about these: each delay depends on the one before",
    }
}

/// The times at which a message that keeps failing is tried again.
fn retries(policy: &QueuePolicy) -> Vec<RetryRow> {
    let mut after = Span::ZERO;
    let last = policy.max_attempts.saturating_sub(1).min(RETRIES_SHOWN);
    let row = |n: u32| {
        let delay = policy.backoff.base(n);
        after = Span::from_millis(after.as_millis().saturating_add(delay.as_millis()));
        RetryRow { n, delay: span(delay), after: span(after) }
    };
    (1..=last).map(row).collect()
}

fn policy(policy: &QueuePolicy) -> Vec<(&'static str, String)> {
    let names = |all: &[redrive_core::policy::ErrorMatch]| {
        let text = serde_json::to_string(all).unwrap_or_default();
        (!all.is_empty()).then_some(text)
    };
    let all = [
        ("attempts", Some(policy.max_attempts.to_string())),
        (
            "strategy",
            serde_json::to_value(policy.strategy).ok().and_then(|v| v.as_str().map(|s| s.replace('_', " "))),
        ),
        ("lease", Some(span(policy.lease))),
        ("dead at once", names(&policy.include)),
        ("retried for a time", names(&policy.exclude)),
        ("for at most", (!policy.exclude.is_empty()).then(|| span(policy.retry_for))),
        ("time to live", policy.ttl.map(span)),
        ("priority", Some(policy.priority.to_string())),
        ("dead letter queue", policy.dlq.as_ref().map(ToString::to_string)),
        (
            "breaker",
            policy.breaker.as_ref().map(|breaker| {
                format!("by {}, opens after {} failures in a row", breaker.key, breaker.failures)
            }),
        ),
        ("automatic redrive", policy.auto_redrive.as_ref().map(|_| "on".to_owned())),
        ("sent back at most", Some(format!("{} times", policy.max_redrives))),
        ("closed letters kept", Some(span(policy.retention))),
        ("open letters kept", Some(policy.open_ttl.map_or_else(|| "for ever".into(), span))),
        ("messages at most", policy.max_messages.map(number)),
        ("bytes at most", policy.max_bytes.map(bytes)),
    ];
    all.into_iter().filter_map(|(name, value)| value.map(|value| (name, value))).collect()
}

/// `POST /queues/{queue}`: pauses, resumes or purges it.
pub(super) async fn act(
    visitor: Visitor,
    Path(name): Path<QueueName>,
    Sent(fields): Sent,
) -> Result<Response, Failure> {
    let store = &visitor.caller.store;
    let actor = visitor.actor(fields.owned("reason"));
    match fields.get("act").unwrap_or_default() {
        "pause" => drop(store.pause(name.clone(), true, actor).await?),
        "resume" => drop(store.pause(name.clone(), false, actor).await?),
        "purge" => {
            if fields.get("name") != Some(name.as_str()) {
                let what = format!("type {name} to say that its waiting messages shall be removed");
                return Err(Problem::bad_request("needs_confirmation", what).into());
            }
            while store.purge(name.clone(), actor.clone()).await?.more {}
        }
        _ => return Err(Problem::bad_request("bad_field", "there is no such act on a queue").into()),
    }
    Ok(see_other(&format!("/queues/{name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_a_digit_where_it_matters() {
        assert_eq!([rate(0, 0), rate(4, 10_000), rate(95, 10_000)], ["0.0/s", "0.4/s", "9.5/s"]);
        assert_eq!(rate(12_345, 1_000), "12,345/s");
    }

    #[test]
    fn the_backoff_is_a_table_of_times() {
        let rows = retries(&QueuePolicy::default());
        let shown: Vec<(u32, &str, &str)> =
            rows.iter().map(|r| (r.n, r.delay.as_str(), r.after.as_str())).collect();
        assert_eq!(
            shown,
            [(1, "1.0 s", "1.0 s"), (2, "2.0 s", "3.0 s"), (3, "4.0 s", "7.0 s"), (4, "8.0 s", "15 s")]
        );
    }
}
