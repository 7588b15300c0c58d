//! Changes to what a letter says: the content that is replaced goes to the revisions, the new one to the bodies, in
//! one commit. What may be changed, and what becomes of the file, is the core's word.

use super::Engine;
use super::tables::{Letter, Tables, unless_damaged};
use redrive_core::dead_letter::{Act, ActRequest};
use redrive_core::error::{Outcome, Refusal};
use redrive_core::ids::OperationId;
use redrive_core::message::{Envelope, NewMessage, Slip};
use redrive_core::revision::{Content, Edited};
use redrive_core::store::LetterState;
use redrive_core::time::Time;

impl<T: Tables> Engine<T> {
    /// Edits, patches, restores or erases one letter, without its audit row.
    pub(super) fn change_content(
        &mut self,
        letter: &Letter,
        request: &ActRequest,
        operation: Option<OperationId>,
        now: Time,
    ) -> Outcome<LetterState> {
        let envelope = unless_damaged(self.tables.envelope(&letter.slip))?;
        let mut changed = match (&request.act, &envelope) {
            (Act::Erase, _) => self.erase(letter, request, envelope.as_ref(), now)?,
            (_, Some(envelope)) => self.edit(letter, request, envelope, now)?,
            (_, None) => {
                let why = "its bytes are not what was written; `redrive doctor --deep` says more";
                return Err(Refusal::invalid("payload", why).into());
            }
        };
        if let Some(next) = &mut changed {
            next.file.done_by(operation);
            next.secret = letter.secret.filter(|_| next.file.consumer.is_some());
            self.pay_if_due(next, now)?;
        }
        let file = changed.as_ref().map_or(&letter.file, |letter| &letter.file);
        let state = LetterState { id: letter.slip.id, status: Some(file.status), version: file.version };
        if let Some(next) = changed {
            // The whole row: size and breaker may have changed, which no other act does to a letter.
            self.tables.drop_letter(letter)?;
            self.tables.add_letter(&next)?;
            self.tables.text_changed(next.slip.id)?;
        }
        Ok(state)
    }

    fn edit(
        &mut self,
        letter: &Letter,
        request: &ActRequest,
        envelope: &Envelope,
        now: Time,
    ) -> Outcome<Option<Letter>> {
        let slip = &letter.slip;
        let mut earlier = None;
        if let Act::Restore { n } = &request.act {
            earlier = unless_damaged(self.tables.revision(slip, *n))?.flatten();
        }
        let Edited { file, envelope: next } = letter.file.edit(request, envelope, earlier, now)?;
        self.tables.add_revision(slip, letter.file.revision(), &Content::of(envelope))?;
        let rules = self.queue(&slip.queue)?.policy.breaker.clone();
        let breaker = rules.and_then(|rules| rules.key.read(&next.headers, &next.payload));
        let slip = Slip { size: next.size(), breaker, ..slip.clone() };
        self.tables.replace_body(&slip, T::pack(&mut as_new(&next)))?;
        Ok(Some(Letter { slip, file, ..letter.clone() }))
    }

    fn erase(
        &mut self,
        letter: &Letter,
        request: &ActRequest,
        envelope: Option<&Envelope>,
        now: Time,
    ) -> Outcome<Option<Letter>> {
        let slip = &letter.slip;
        let Some(file) = letter.file.erase(request, slip.size, envelope, now)? else { return Ok(None) };
        self.tables.drop_revisions(slip)?;
        self.tables.text_erased(letter)?;
        let mut rest = match envelope {
            Some(envelope) => as_new(&envelope.clone().emptied()),
            None => NewMessage::new(slip.id, slip.queue.clone(), redrive_core::message::Payload::default()),
        };
        let slip = Slip { size: 0, ..slip.clone() };
        self.tables.replace_body(&slip, T::pack(&mut rest))?;
        Ok(Some(Letter { slip, file, ..letter.clone() }))
    }
}

/// The message as it would be handed in today.
pub(super) fn as_new(e: &Envelope) -> NewMessage {
    NewMessage {
        priority: Some(e.priority),
        kind: e.kind.clone(),
        headers: e.headers.clone(),
        tags: e.tags.clone(),
        key: e.key.clone(),
        ordering_key: e.ordering_key.clone(),
        reply_to: e.reply_to.clone(),
        trace: e.trace.clone(),
        context: e.context.clone(),
        delay: e.delay,
        ttl: e.ttl,
        deadline: e.deadline,
        max_attempts: e.max_attempts,
        enqueued_by: e.enqueued_by.clone(),
        ..NewMessage::new(e.id, e.queue.clone(), e.payload.clone())
    }
}
