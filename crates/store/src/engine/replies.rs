//! Sending replies: what the core says is due goes to its queue in the commit of the outcome. An outcome never
//! fails because of its reply: one that cannot be sent is left out, and the settlement says that none went.

use super::Engine;
use super::tables::{Incoming, Kept, Letter, Tables, unless_damaged};
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

    /// Sends the error reply that a letter owes if nothing brings the letter back by itself any more; says whether
    /// it did.
    pub(super) fn pay_if_due(&mut self, letter: &mut Letter, now: Time) -> Outcome<bool> {
        if !letter.file.owes_reply {
            return Ok(false);
        }
        let policy = self.queue(&letter.slip.queue)?.policy.clone();
        let due = letter.file.reply_is_due(&policy);
        if due {
            self.pay_reply(letter, now)?;
        }
        Ok(due)
    }

    /// Sends the error reply that a letter owes, while its body is still there.
    pub(super) fn pay_reply(&mut self, letter: &mut Letter, now: Time) -> Outcome<()> {
        letter.file.owes_reply = false;
        // A reply that does not say what went wrong is better than none.
        let failures = unless_damaged(self.tables.failures(&letter.slip))?.unwrap_or_default();
        let error = failures.last().map(|failure| &failure.error);
        let effect = Effect::Died(letter.file.reason);
        if let Some(due) = self.due_reply(&letter.slip, &letter.life, effect, None, error)? {
            self.send_reply(due, now)?;
        }
        Ok(())
    }

    /// Sends the replies that letters still owe although the rules of their queue do not send them back any more;
    /// says how many went out.
    pub(super) fn pay_replies(&mut self, limit: usize, now: Time) -> Outcome<u64> {
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
            for letter in self.tables.owing_replies(&queue, redrives, left)? {
                let mut next = letter.clone();
                if self.pay_if_due(&mut next, now)? {
                    self.tables.put_letter(&letter, &next)?;
                    sent += 1;
                }
            }
        }
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
