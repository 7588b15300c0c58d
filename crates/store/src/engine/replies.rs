//! Sending replies, in the commit of the outcome they report. Settling a message never fails because of its reply: a
//! reply that cannot be sent is left out, and the settlement says so.

use super::Engine;
use super::tables::{Incoming, Letter, TableResult, Tables, unless_damaged};
use redrive_core::error::{CallError, StoreResult};
use redrive_core::failure::ErrorInfo;
use redrive_core::ids::{MessageId, QueueName};
use redrive_core::lifecycle::{Effect, Lifecycle};
use redrive_core::message::{MessageMeta, Payload};
use redrive_core::metrics::Event;
use redrive_core::policy::QueuePolicy;
use redrive_core::reply::{self, ReplyStatus};
use redrive_core::time::Time;

/// A worker's answer, encoded outside the commit, with its original size in bytes.
pub(crate) struct Answer<P> {
    payload: P,
    size: u64,
}

/// A reply that is due.
pub(super) struct DueReply<B> {
    queue: QueueName,
    status: ReplyStatus,
    incoming: Incoming<B>,
}

/// Encodes an answer. Everything but the payload is added inside the commit.
pub(crate) fn pack<T: Tables>(payload: Payload) -> Answer<T::Payload> {
    Answer { size: payload.bytes.len() as u64, payload: T::pack_payload(payload) }
}

impl<T: Tables> Engine<T> {
    /// Prepares the reply that follows from a change. Must be called before the message's body is deleted.
    pub(super) fn due_reply(
        &mut self,
        meta: &MessageMeta,
        lifecycle: &Lifecycle,
        effect: Effect,
        answer: Option<Answer<T::Payload>>,
        error: Option<&ErrorInfo>,
    ) -> TableResult<Option<DueReply<T::Body>>> {
        let given = answer.as_ref().map(|_| Payload::default());
        let Some(due) = reply::due(meta, lifecycle, effect, given, error) else { return Ok(None) };
        // A reply without its trace context is better than none.
        let trace = unless_damaged(self.tables.trace(meta))?.flatten();
        let status = due.status;
        let mut new = due.message(meta, lifecycle, trace);
        let size = new.payload.bytes.len() as u64;
        let rest = T::pack(&mut new);
        let (body, size) = match answer {
            Some(Answer { payload, size }) => (T::with_payload(rest, payload), size),
            None => (rest, size),
        };
        let incoming = Incoming { new, body_hash: None, size, body };
        Ok(Some(DueReply { queue: meta.queue.clone(), status, incoming }))
    }

    /// Sends a reply, ignoring the limits of its queue: a lost answer is worse than one too many, and there are no
    /// more replies than messages. Returns the id of the reply, or `None` if it could not be sent.
    pub(super) fn send_reply(&mut self, due: DueReply<T::Body>, now: Time) -> StoreResult<Option<MessageId>> {
        let sent = self.enqueue_reply(due.incoming, now)?;
        let status = if sent.is_some() { due.status.name() } else { "left_out" };
        self.count_event(Event::Replied, &due.queue, &[status], 0, now)?;
        Ok(sent)
    }

    /// Sends the error reply that a letter owes if the letter will not
    /// be redriven automatically any more. Returns whether it did.
    pub(super) fn send_owed_reply_if_due(&mut self, letter: &mut Letter, now: Time) -> StoreResult<bool> {
        if !letter.record.owes_reply {
            return Ok(false);
        }
        let policy = self.queue(&letter.meta.queue)?.policy.clone();
        let due = letter.record.reply_is_due(&policy);
        if due {
            self.send_owed_reply(letter, now)?;
        }
        Ok(due)
    }

    /// Sends the error reply that a letter owes. Must be called while the letter still has its body.
    pub(super) fn send_owed_reply(&mut self, letter: &mut Letter, now: Time) -> StoreResult<()> {
        letter.record.owes_reply = false;
        // A reply that does not say what went wrong is better than none.
        let failures = unless_damaged(self.tables.failures(&letter.meta))?.unwrap_or_default();
        let error = failures.last().map(|failure| &failure.error);
        let effect = Effect::Died(letter.record.reason);
        if let Some(due) = self.due_reply(&letter.meta, &letter.lifecycle, effect, None, error)? {
            self.send_reply(due, now)?;
        }
        Ok(())
    }

    /// Sends the replies of letters whose queue's policy no longer
    /// redrives them automatically. Returns how many were sent.
    pub(super) fn send_owed_replies(&mut self, limit: usize, now: Time) -> StoreResult<u64> {
        let rules: Vec<(QueueName, u32)> = self
            .queues()?
            .iter()
            .map(|(name, row)| {
                let limit = row.policy.auto_redrive.map_or(0, |rule| rule.limit);
                (name.clone(), limit.min(row.policy.max_redrives))
            })
            .collect();
        let mut sent = 0;
        for (queue, redrives) in rules {
            let left = limit.saturating_sub(usize::try_from(sent).unwrap_or(usize::MAX));
            if left == 0 {
                break;
            }
            for letter in self.tables.letters_owing_replies(&queue, redrives, left)? {
                let mut next = letter.clone();
                if self.send_owed_reply_if_due(&mut next, now)? {
                    self.put_letter(&letter, &next)?;
                    sent += 1;
                }
            }
        }
        Ok(sent)
    }

    fn enqueue_reply(&mut self, reply: Incoming<T::Body>, now: Time) -> StoreResult<Option<MessageId>> {
        if self.tables.id_exists(reply.new.id)? {
            return Ok(None);
        }
        let to = reply.new.queue.clone();
        match self.ensure_queue(&to, &QueuePolicy::default()) {
            Ok(()) => {}
            // The name now belongs to a dead letter queue, or there is no room for another queue.
            Err(CallError::Refused(_)) => return Ok(None),
            Err(CallError::Store(error)) => return Err(error.into()),
        }
        self.accept(reply, now).map(|accepted| Some(accepted.id))
    }
}
