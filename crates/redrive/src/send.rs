//! Sending a message in one line. For everything else a message can have there is
//! [`NewMessage`](redrive_core::message::NewMessage) and the store's own verb.

use crate::new_id;
use redrive_core::error::{Error, Refusal};
use redrive_core::ids::{IdError, MessageId};
use redrive_core::message::{NewMessage, Payload};
use redrive_core::store::Store;
use serde::Serialize;
use std::sync::Arc;

/// Sends one message of a kind to a queue, its payload as JSON. When this returns, the message is kept.
///
/// # Errors
/// A refusal that names what is wrong with it, or what is wrong with the store.
pub async fn send<T: Serialize + ?Sized + Sync>(
    store: &Arc<dyn Store>,
    queue: &str,
    kind: &str,
    payload: &T,
) -> Result<MessageId, Error> {
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
