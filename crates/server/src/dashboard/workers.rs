//! Workers: who works, what they have in hand and for how long.

use super::frame::{Frame, Section};
use super::text::{Pill, When, number, plural, short_id};
use super::visitor::{Failure, Visitor};
use super::{render, tables};
use askama::Template;
use axum::response::Response;
use redrive_core::store::Work as _;
use redrive_core::time::{Span, Time};
use redrive_core::workers::WorkerView;

/// A worker that has not been seen for so long, with something in hand, may be gone.
const SILENT: Span = Span::from_secs(60);
/// Messages shown of each worker.
const SHOWN: usize = 3;
/// Workers shown.
const ROWS: usize = 200;

struct InHand {
    id: String,
    short: String,
    queue: String,
    since: When,
    until: When,
}

struct Row {
    name: String,
    about: String,
    state: Pill,
    seen: When,
    in_hand: Vec<InHand>,
    more: String,
    done: String,
    failed: String,
}

#[derive(Template)]
#[template(path = "workers.html")]
struct WorkersPage {
    frame: Frame,
    rows: Vec<Row>,
    left_out: String,
    cli: String,
    curl: String,
}

/// What a worker does, as a pill.
fn state(worker: &WorkerView, now: Time) -> Pill {
    let silent = now.since(worker.last_seen) > SILENT;
    match (worker.in_hand, silent) {
        (0, false) => Pill::new("green", "Waiting for work"),
        (0, true) => Pill::new("", "Not seen lately"),
        (n, false) => Pill::new("blue", format!("{} in hand", number(n))),
        (n, true) => Pill::new("amber", format!("{} in hand, silent", number(n))),
    }
}

/// A worker in one line, for the overview.
pub(super) struct Brief {
    pub(super) name: String,
    pub(super) state: Pill,
    pub(super) seen: When,
}

/// Those with something in hand first, then the latest seen.
fn sort(workers: &mut [WorkerView]) {
    workers.sort_by_key(|worker| (worker.in_hand == 0, std::cmp::Reverse(worker.last_seen)));
}

/// The first few workers, and how many there are.
pub(super) fn brief(mut workers: Vec<WorkerView>, few: usize, now: Time) -> (Vec<Brief>, String) {
    sort(&mut workers);
    let line = |worker: &WorkerView| Brief {
        name: worker.worker.clone(),
        state: state(worker, now),
        seen: When::ago(worker.last_seen, now),
    };
    let in_hand: u64 = workers.iter().map(|worker| worker.in_hand).sum();
    let all = plural(workers.len() as u64, "worker", "workers");
    (workers.iter().take(few).map(line).collect(), format!("{all}, {} in hand", number(in_hand)))
}

fn row(worker: &WorkerView, now: Time) -> Row {
    let queues: Vec<&str> = worker.queues.iter().map(redrive_core::ids::QueueName::as_str).collect();
    let version = worker.version.as_ref().map(|version| format!("version {version}"));
    let host = worker.host.as_ref().map(|host| format!("on {host}"));
    let queues = (!queues.is_empty()).then(|| queues.join(", "));
    let in_hand = |lease: &redrive_core::workers::LeaseView| InHand {
        short: short_id(&lease.id.to_string()),
        id: lease.id.to_string(),
        queue: lease.queue.to_string(),
        since: When::rough(lease.since, now),
        until: When::ago(lease.lease_expires_at, now),
    };
    let shown = worker.leases.len().min(SHOWN) as u64;
    Row {
        name: worker.worker.clone(),
        about: [queues, version, host].into_iter().flatten().collect::<Vec<_>>().join(" · "),
        state: state(worker, now),
        seen: When::ago(worker.last_seen, now),
        in_hand: worker.leases.iter().take(SHOWN).map(in_hand).collect(),
        more: match worker.in_hand.saturating_sub(shown) {
            0 => String::new(),
            more => format!("and {}", plural(more, "more", "more")),
        },
        done: number(worker.done),
        failed: number(worker.failed),
    }
}

/// `GET /workers`
pub(super) async fn list(visitor: Visitor) -> Result<Response, Failure> {
    let mut workers = visitor.caller.store.workers().await?;
    sort(&mut workers);
    let view = WorkersPage {
        frame: Frame::new(&visitor, Section::Workers, "Workers").await,
        rows: workers.iter().take(ROWS).map(|worker| row(worker, visitor.now)).collect(),
        left_out: match workers.len().saturating_sub(ROWS) {
            0 => String::new(),
            more => plural(more as u64, "more worker is not shown", "more workers are not shown"),
        },
        cli: "redrive worker list".into(),
        curl: tables::curl("GET", "/api/v1/workers", None),
    };
    render(&visitor, &view)
}
