//! Sends a message in one line. To set more than queue, kind and payload, build a
//! [`NewMessage`](redrive_core::message::NewMessage) and enqueue it through the store.

use crate::new_id;
use redrive_core::error::{CallError, Refusal};
use redrive_core::ids::{IdError, MessageId};
use redrive_core::message::{NewMessage, Payload};
use redrive_core::store::Store;
use serde::Serialize;
use std::sync::Arc;

/// Sends one message to a queue, with `payload` serialized to JSON. When this returns `Ok`, the message is stored.
///
/// # Errors
/// Returns a refusal that names the invalid field, or the error of the store.
pub async fn send<T: Serialize + ?Sized + Sync>(
    store: &Arc<dyn Store>,
    queue: &str,
    kind: &str,
    payload: &T,
) -> Result<MessageId, CallError> {
    let queue = queue.parse().map_err(|why: IdError| Refusal::invalid("queue", why.to_string()))?;
    let payload = Payload::json(payload).map_err(|why| Refusal::invalid("payload", why.to_string()))?;
    let mut message = NewMessage::new(new_id(), queue, payload);
    message.kind = kind.into();
    let id = message.id;
    match store.enqueue(vec![message]).await?.pop() {
        Some(accepted) => Ok(accepted?.id),
        None => Ok(id),
    }
}
