//! Sending replies: what the core says is due goes to its queue in the commit of the outcome. An outcome never
//! fails because of its reply: one that cannot be sent is left out, and the settlement says that none went.

use super::Engine;
use super::tables::{Incoming, Kept, Tables, unless_damaged};
use redrive_core::error::{Error, Outcome};
use redrive_core::failure::ErrorInfo;
use redrive_core::ids::{MessageId, QueueName};
use redrive_core::lifecycle::{Effect, Life};
use redrive_core::message::{Payload, Slip};
use redrive_core::metrics::Event;
use redrive_core::policy::QueuePolicy;
use redrive_core::reply::{self, ReplyStatus};
use redrive_core::time::Time;

/// The bytes of a worker's answer, packed outside the commit, and how many they were.
pub(crate) struct Answer<P> {
    payload: P,
    size: u64,
}

/// A reply that is due: how the message ended, in which queue, and what is to be sent.
pub(super) struct Due<B> {
    asked_in: QueueName,
    status: ReplyStatus,
    incoming: Incoming<B>,
}

/// Packs an answer. Everything but the payload is put on it when it is known, in the commit.
pub(crate) fn pack<T: Tables>(payload: Payload) -> Answer<T::Payload> {
    Answer { size: payload.bytes.len() as u64, payload: T::pack_payload(payload) }
}

impl<T: Tables> Engine<T> {
    /// The reply that follows from a change, ready to be sent; must be asked before the body is dropped.
    pub(super) fn due_reply(
        &mut self,
        slip: &Slip,
        life: &Life,
        effect: Effect,
        answer: Option<Answer<T::Payload>>,
        error: Option<&ErrorInfo>,
    ) -> Kept<Option<Due<T::Body>>> {
        let given = answer.as_ref().map(|_| Payload::default());
        let Some(due) = reply::due(slip, life, effect, given, error) else { return Ok(None) };
        // A reply without its trace is better than none.
        let trace = unless_damaged(self.tables.trace(slip))?.flatten();
        let status = due.status;
        let mut new = due.message(slip, life, trace);
        let size = new.payload.bytes.len() as u64;
        let rest = T::pack(&mut new);
        let (body, size) = match answer {
            Some(Answer { payload, size }) => (T::with_payload(rest, payload), size),
            None => (rest, size),
        };
        let incoming = Incoming { new, body_hash: None, size, body };
        Ok(Some(Due { asked_in: slip.queue.clone(), status, incoming }))
    }

    /// Sends a reply past the limits of its queue: a lost answer is worse than one too many, and there are no
    /// more of them than there were messages. Gives its id, or nothing when it cannot be sent.
    pub(super) fn send_reply(&mut self, due: Due<T::Body>, now: Time) -> Outcome<Option<MessageId>> {
        let sent = self.try_reply(due.incoming, now)?;
        let status = if sent.is_some() { due.status.name() } else { "left_out" };
        self.tally(Event::Replied, &due.asked_in, &[status], 0, now)?;
        Ok(sent)
    }

    fn try_reply(&mut self, reply: Incoming<T::Body>, now: Time) -> Outcome<Option<MessageId>> {
        if self.tables.is_known(reply.new.id)? {
            return Ok(None);
        }
        let to = reply.new.queue.clone();
        match self.ensure_queue(&to, &QueuePolicy::default()) {
            Ok(()) => {}
            // The name has become a drawer's since, or there is no room for another queue.
            Err(Error::Refused(_)) => return Ok(None),
            Err(Error::Store(error)) => return Err(error.into()),
        }
        self.accept(reply, now).map(|accepted| Some(accepted.id))
    }
}
