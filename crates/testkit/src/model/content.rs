//! Changes of a letter's content in the reference model: edit, patch, restore and erase.

use super::ModelState;
use redrive_core::dead_letter::{Act, ActRequest, LetterRecord};
use redrive_core::error::Refusal;
use redrive_core::ids::{MessageId, OperationId};
use redrive_core::revision::Content;
use redrive_core::store::LetterState;
use redrive_core::time::Time;

impl ModelState {
    /// The earlier contents of a letter, with their revision numbers.
    pub(super) fn earlier_contents(&self, id: MessageId) -> Vec<(u32, Content)> {
        (0..).zip(self.contents.get(&id).cloned().unwrap_or_default()).collect()
    }

    /// Changes the content of a letter. `record` is the record of the letter as the actor may see it.
    pub(super) fn change_content(
        &mut self,
        at: usize,
        record: &LetterRecord,
        request: &ActRequest,
        operation: Option<OperationId>,
        now: Time,
    ) -> Result<LetterState, Refusal> {
        let id = request.id;
        let envelope = self.letters[at].stored.envelope.clone();
        let state =
            |record: &LetterRecord| LetterState { id, status: Some(record.status), version: record.version };
        if request.act == Act::Erase {
            let Some(mut next) = record.erase(request, envelope.size(), Some(&envelope), now)? else {
                return Ok(state(record));
            };
            next.set_operation(operation);
            let state = state(&next);
            self.contents.remove(&id);
            self.letters[at].stored.envelope = envelope.without_content();
            self.letters[at].record = next;
            self.send_owed_reply_if_due(at, now);
            return Ok(state);
        }
        let wanted =
            |n: &u32| self.earlier_contents(id).into_iter().find(|(m, _)| m == n).map(|(_, content)| content);
        let earlier = if let Act::Restore { n } = &request.act { wanted(n) } else { None };
        let mut edited = record.edit(request, &envelope, earlier, now)?;
        edited.record.set_operation(operation);
        self.contents.entry(id).or_default().push(Content::of(&envelope));
        let breaker_key = (id, envelope.queue.clone());
        self.breaker_values.remove(&breaker_key);
        let rules = self.policy(&envelope.queue).breaker.clone();
        let next = edited.envelope;
        let value = rules.and_then(|rules| rules.key.read(&next.headers, &next.payload));
        self.breaker_values.extend(value.map(|value| (breaker_key, value)));
        let state = state(&edited.record);
        self.letters[at].stored.envelope = next;
        self.letters[at].record = edited.record;
        self.send_owed_reply_if_due(at, now);
        Ok(state)
    }
}
