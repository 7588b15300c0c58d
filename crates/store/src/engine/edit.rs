//! Changes to the content of a letter: the old content becomes a revision and the new one the body, in one commit.
//! The core decides what may be changed and what the letter's record says afterwards.

use super::Engine;
use super::tables::{Letter, Tables, unless_damaged};
use redrive_core::dead_letter::{Act, ActRequest};
use redrive_core::error::{Refusal, StoreResult};
use redrive_core::ids::OperationId;
use redrive_core::message::{Envelope, MessageMeta, NewMessage};
use redrive_core::revision::{Content, Edited};
use redrive_core::store::LetterState;
use redrive_core::time::Time;

impl<T: Tables> Engine<T> {
    /// Edits, patches, restores or erases the content of one letter, without its audit row.
    pub(super) fn change_content(
        &mut self,
        letter: &Letter,
        request: &ActRequest,
        operation: Option<OperationId>,
        now: Time,
    ) -> StoreResult<LetterState> {
        let envelope = unless_damaged(self.tables.envelope(&letter.meta))?;
        let mut changed = match (&request.act, &envelope) {
            (Act::Erase, _) => self.erase(letter, request, envelope.as_ref(), now)?,
            (_, Some(envelope)) => self.edit(letter, request, envelope, now)?,
            (_, None) => {
                let why = "its bytes are not what was written; `redrive doctor --deep` says more";
                return Err(Refusal::invalid("payload", why).into());
            }
        };
        if let Some(next) = &mut changed {
            next.record.set_operation(operation);
            next.secret = letter.secret.filter(|_| next.record.consumer.is_some());
            self.send_owed_reply_if_due(next, now)?;
        }
        let record = changed.as_ref().map_or(&letter.record, |letter| &letter.record);
        let state = LetterState { id: letter.meta.id, status: Some(record.status), version: record.version };
        if let Some(next) = changed {
            // The whole row is replaced: only content changes alter the size and the breaker value of a letter.
            self.drop_letter(letter)?;
            self.add_letter(&next)?;
            self.tables.text_changed(next.meta.id)?;
        }
        Ok(state)
    }

    fn edit(
        &mut self,
        letter: &Letter,
        request: &ActRequest,
        envelope: &Envelope,
        now: Time,
    ) -> StoreResult<Option<Letter>> {
        let meta = &letter.meta;
        let mut earlier = None;
        if let Act::Restore { n } = &request.act {
            earlier = unless_damaged(self.tables.revision(meta, *n))?.flatten();
        }
        let Edited { record, envelope: next } = letter.record.edit(request, envelope, earlier, now)?;
        self.tables.add_revision(meta, letter.record.revision(), &Content::of(envelope))?;
        let rules = self.queue(&meta.queue)?.policy.breaker.clone();
        let breaker = rules.and_then(|rules| rules.key.read(&next.headers, &next.payload));
        let meta = MessageMeta { size: next.size(), breaker, ..meta.clone() };
        self.tables.replace_body(&meta, T::pack(&mut as_new(&next)))?;
        Ok(Some(Letter { meta, record, ..letter.clone() }))
    }

    fn erase(
        &mut self,
        letter: &Letter,
        request: &ActRequest,
        envelope: Option<&Envelope>,
        now: Time,
    ) -> StoreResult<Option<Letter>> {
        let meta = &letter.meta;
        let Some(record) = letter.record.erase(request, meta.size, envelope, now)? else { return Ok(None) };
        self.tables.drop_revisions(meta)?;
        self.tables.text_erased(letter)?;
        let mut rest = match envelope {
            Some(envelope) => as_new(&envelope.clone().without_content()),
            None => NewMessage::new(meta.id, meta.queue.clone(), redrive_core::message::Payload::default()),
        };
        let meta = MessageMeta { size: 0, ..meta.clone() };
        self.tables.replace_body(&meta, T::pack(&mut rest))?;
        Ok(Some(Letter { meta, record, ..letter.clone() }))
    }
}

/// The message as it would be enqueued today.
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
