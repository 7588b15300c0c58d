//! Messages that were sent by SQL, in the sender's own transaction. They wait in `inbox` until the holder takes them in:
//! it enqueues them and removes their rows in one commit. Rows are found because they exist, never by a number that was
//! reached, since transactions end in another order than they begin.

use super::base::PgBase;
use crate::engine::tables::{TableResult, damaged};
use redrive_core::error::Refusal;
use redrive_core::ids::MessageId;
use redrive_core::message::{NewMessage, Payload};
use redrive_core::time::Span;
use serde::Deserialize;
use std::collections::BTreeMap;
use uuid::Uuid;

/// Rows taken in at once.
const AT_ONCE: i64 = 500;

/// What a row says about its message.
#[derive(Deserialize)]
struct Sent {
    queue: String,
    #[serde(default)]
    kind: String,
    key: Option<String>,
    ordering_key: Option<String>,
    priority: Option<String>,
    delay_ms: Option<u64>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    content_type: String,
}

/// A row of the inbox.
pub(super) struct Arrived {
    pub(super) n: i64,
    pub(super) message: Result<NewMessage, Refusal>,
}

/// What a commit does to the inbox.
#[derive(Debug, Default)]
pub(super) struct Taken {
    /// Rows whose messages are enqueued.
    pub(super) enqueued: Vec<i64>,
    /// Rows that cannot be enqueued, and why. They stay, for somebody to look at.
    pub(super) refused: Vec<(i64, String)>,
}

impl Taken {
    pub(super) fn is_empty(&self) -> bool {
        self.enqueued.is_empty() && self.refused.is_empty()
    }

    /// Notes what became of a row. A full queue leaves it waiting.
    pub(super) fn note(&mut self, n: i64, outcome: Result<(), Refusal>) {
        match outcome {
            Ok(()) => self.enqueued.push(n),
            Err(Refusal::QueueFull { .. }) => {}
            Err(refusal) => self.refused.push((n, refusal.to_string())),
        }
    }
}

/// The rows that wait, oldest first.
pub(super) fn read(base: &PgBase) -> TableResult<Vec<Arrived>> {
    let sql =
        "SELECT n, id, message::text, payload, sent_by FROM inbox WHERE refused IS NULL ORDER BY n LIMIT $1";
    let rows = base.query(sql, &[&AT_ONCE])?;
    let mut arrived = Vec::with_capacity(rows.len());
    for row in &rows {
        let unread = |e: tokio_postgres::Error| damaged(format!("a row of the inbox cannot be read: {e}"));
        let id = MessageId::from_bytes(*row.try_get::<_, Uuid>(1).map_err(unread)?.as_bytes());
        let (text, payload): (&str, &[u8]) =
            (row.try_get(2).map_err(unread)?, row.try_get(3).map_err(unread)?);
        let message = message(id, text, payload, row.try_get(4).map_err(unread)?);
        arrived.push(Arrived { n: row.try_get(0).map_err(unread)?, message });
    }
    Ok(arrived)
}

fn message(id: MessageId, text: &str, payload: &[u8], sent_by: &str) -> Result<NewMessage, Refusal> {
    let unreadable = |e: serde_json::Error| Refusal::invalid("message", format!("cannot be read: {e}"));
    let sent: Sent = serde_json::from_str(text).map_err(unreadable)?;
    let queue = sent.queue.parse().map_err(|e| Refusal::invalid("queue", format!("{e}")))?;
    let priority = sent.priority.map(|name| name.parse()).transpose();
    let payload = Payload { bytes: payload.to_vec(), content_type: sent.content_type };
    Ok(NewMessage {
        kind: sent.kind,
        key: sent.key,
        ordering_key: sent.ordering_key,
        priority: priority.map_err(|e| Refusal::invalid("priority", e))?,
        delay: sent.delay_ms.map(Span::from_millis),
        headers: sent.headers,
        enqueued_by: Some(sent_by.to_owned()),
        ..NewMessage::new(id, queue, payload)
    })
}

/// How many rows were refused.
pub(super) fn refused(base: &PgBase) -> TableResult<i64> {
    let rows = base.query("SELECT count(*) FROM inbox WHERE refused IS NOT NULL", &[])?;
    let read = |row: &tokio_postgres::Row| {
        row.try_get(0).map_err(|e| damaged(format!("a count cannot be read: {e}")))
    };
    rows.first().map_or(Ok(0), read)
}
