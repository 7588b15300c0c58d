//! Workers: who has messages in hand at the moment, and for how long.

use super::frame::{Frame, Section};
use super::text::{When, beginning, number, plural, short_id};
use super::visitor::{Failure, Visitor};
use super::{render, tables};
use askama::Template;
use axum::response::Response;
use redrive_core::message::Message;
use redrive_core::query::{PageRequest, Query};
use redrive_core::store::Work as _;
use redrive_core::time::Time;
use std::collections::BTreeMap;

/// The messages in flight that are looked at.
const LOOKED_AT: usize = 1_000;
/// Messages shown of each worker.
const SHOWN: usize = 3;

struct InHand {
    id: String,
    short: String,
    what: String,
    until: Option<When>,
    progress: String,
}

struct Row {
    name: String,
    count: String,
    queues: String,
    in_hand: Vec<InHand>,
    more: String,
}

#[derive(Template)]
#[template(path = "workers.html")]
struct WorkersPage {
    frame: Frame,
    rows: Vec<Row>,
    bounded: bool,
    cli: String,
    curl: String,
}

/// The workers with their messages, by name.
fn rows(messages: &[Message], now: Time) -> Vec<Row> {
    let mut by_worker: BTreeMap<&str, Vec<&Message>> = BTreeMap::new();
    for message in messages {
        by_worker.entry(message.leased_by.as_deref().unwrap_or("(unknown)")).or_default().push(message);
    }
    let in_hand = |message: &&Message| {
        let envelope = &message.envelope;
        let kind = if envelope.kind.is_empty() { envelope.queue.to_string() } else { envelope.kind.clone() };
        InHand {
            short: short_id(&envelope.id.to_string()),
            id: envelope.id.to_string(),
            what: format!("{kind}, attempt {}", message.attempts),
            until: message.lease_expires_at.map(|at| When::ago(at, now)),
            progress: message.progress.as_ref().map(|p| beginning(&p.note, 80)).unwrap_or_default(),
        }
    };
    let row = |(name, all): (&str, Vec<&Message>)| {
        let mut queues: Vec<String> = all.iter().map(|message| message.envelope.queue.to_string()).collect();
        queues.sort_unstable();
        queues.dedup();
        Row {
            name: name.to_owned(),
            count: number(all.len() as u64),
            queues: queues.join(", "),
            in_hand: all.iter().take(SHOWN).map(in_hand).collect(),
            more: match all.len().saturating_sub(SHOWN) {
                0 => String::new(),
                more => format!("and {}", plural(more as u64, "more", "more")),
            },
        }
    };
    by_worker.into_iter().map(row).collect()
}

/// `GET /workers`
pub(super) async fn list(visitor: Visitor) -> Result<Response, Failure> {
    let query = Query { filter: tables::parse("state:leased")?, page: PageRequest::first(LOOKED_AT) };
    let page = visitor.show(&visitor.caller.store.messages(query).await?);
    let view = WorkersPage {
        frame: Frame::new(&visitor, Section::Workers, "Workers").await,
        rows: rows(&page.items, visitor.now),
        bounded: page.next.is_some(),
        cli: "redrive message list state:leased".into(),
        curl: tables::curl("GET", "/api/v1/messages?filter=state%3Aleased", None),
    };
    render(&visitor, &view)
}
