//! What letters say, in the reference model: edit, patch, restore, erase. As plain as `model`.

use super::Books;
use redrive_core::dead_letter::{Act, ActRequest, File};
use redrive_core::error::Refusal;
use redrive_core::ids::{MessageId, OperationId};
use redrive_core::revision::Content;
use redrive_core::store::LetterState;
use redrive_core::time::Time;

impl Books {
    /// The contents a letter had before, by number.
    pub(super) fn earlier(&self, id: MessageId) -> Vec<(u32, Content)> {
        (0..).zip(self.contents.get(&id).cloned().unwrap_or_default()).collect()
    }

    /// Changes what a letter says. `file` is its file as the actor may see it.
    pub(super) fn change_content(
        &mut self,
        at: usize,
        file: &File,
        request: &ActRequest,
        operation: Option<OperationId>,
        now: Time,
    ) -> Result<LetterState, Refusal> {
        let id = request.id;
        let envelope = self.letters[at].record.envelope.clone();
        let state = |file: &File| LetterState { id, status: Some(file.status), version: file.version };
        if request.act == Act::Erase {
            let Some(mut next) = file.erase(request, envelope.size(), Some(&envelope), now)? else {
                return Ok(state(file));
            };
            next.done_by(operation);
            let state = state(&next);
            self.contents.remove(&id);
            self.letters[at].record.envelope = envelope.emptied();
            self.letters[at].file = next;
            self.pay_if_due(at, now);
            return Ok(state);
        }
        let wanted = |n: &u32| self.earlier(id).into_iter().find(|(m, _)| m == n).map(|(_, content)| content);
        let earlier = if let Act::Restore { n } = &request.act { wanted(n) } else { None };
        let mut edited = file.edit(request, &envelope, earlier, now)?;
        edited.file.done_by(operation);
        self.contents.entry(id).or_default().push(Content::of(&envelope));
        let place = (id, envelope.queue.clone());
        self.breaker_values.remove(&place);
        let rules = self.policy(&envelope.queue).breaker.clone();
        let next = edited.envelope;
        let value = rules.and_then(|rules| rules.key.read(&next.headers, &next.payload));
        self.breaker_values.extend(value.map(|value| (place, value)));
        let state = state(&edited.file);
        self.letters[at].record.envelope = next;
        self.letters[at].file = edited.file;
        self.pay_if_due(at, now);
        Ok(state)
    }
}
