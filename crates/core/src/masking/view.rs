//! Things as people see them unasked: everything that came from outside goes through the rules, what the store made
//! itself (ids, times, counters, names of queues) does not.

use super::{MARK, Rules};
use crate::dead_letter::{Act, Actor, DeadLetter, File, Moment, Note};
use crate::failure::{Analysed, ErrorInfo, Failure, Report, cut};
use crate::filter::Filter;
use crate::group::Group;
use crate::limits;
use crate::message::{Envelope, Message, Payload};
use crate::operation::Operation;
use crate::patch::Patch;
use crate::progress::Progress;
use crate::revision::{Edit, EditMark, Erased};
use crate::target::{CommandTarget, HttpTarget, Target};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::BTreeMap;

impl Rules {
    fn owned(&self, text: &str) -> String {
        self.mask_text(text).into_owned()
    }

    fn maybe(&self, text: Option<&String>) -> Option<String> {
        text.map(|text| self.owned(text))
    }

    fn list(&self, texts: &[String]) -> Vec<String> {
        texts.iter().map(|text| self.owned(text)).collect()
    }

    /// An error.
    #[must_use]
    pub fn error(&self, error: &ErrorInfo) -> ErrorInfo {
        ErrorInfo {
            error_type: self.owned(&error.error_type),
            message: self.owned(&error.message),
            code: self.maybe(error.code.as_ref()),
            stack: self.maybe(error.stack.as_ref()),
            context: self.list(&error.context),
            cause: self.maybe(error.cause.as_ref()),
        }
    }

    /// A failed delivery.
    #[must_use]
    pub fn failure(&self, failure: &Failure) -> Failure {
        Failure {
            step: self.maybe(failure.step.as_ref()),
            error: self.error(&failure.error),
            reasons: self.list(&failure.reasons),
            signature: self.owned(&failure.signature),
            log: self.maybe(failure.log.as_ref()),
            artifacts: self.list(&failure.artifacts),
            ..failure.clone()
        }
    }

    /// A message. It says that it is masked, so that nobody takes it for the message itself.
    #[must_use]
    pub fn message(&self, message: &Message) -> Message {
        if !self.is_on() {
            return message.clone();
        }
        let e = &message.envelope;
        let payload = Payload {
            bytes: self.mask_payload(&e.payload.bytes).text.into_bytes(),
            content_type: e.payload.content_type.clone(),
        };
        let progress = message.progress.as_ref();
        Message {
            envelope: Envelope {
                payload,
                headers: self.mask_headers(&e.headers),
                tags: e.tags.iter().map(|tag| self.owned(tag)).collect(),
                key: self.maybe(e.key.as_ref()),
                ordering_key: self.maybe(e.ordering_key.as_ref()),
                context: e.context.as_ref().map(|context| self.mask_value(context)),
                ..e.clone()
            },
            progress: progress.map(|p| Progress { note: self.owned(&p.note), ..p.clone() }),
            failures: message.failures.iter().map(|failure| self.failure(failure)).collect(),
            masked: true,
            ..message.clone()
        }
    }

    /// A dead letter; see [`Self::message`].
    #[must_use]
    pub fn letter(&self, letter: &DeadLetter) -> DeadLetter {
        if !self.is_on() {
            return letter.clone();
        }
        let notes = |note: &Note| Note { text: self.owned(&note.text), ..note.clone() };
        let edit = |mark: &EditMark| EditMark { reason: self.maybe(mark.reason.as_ref()), ..mark.clone() };
        let erased = letter.file.erased.as_ref();
        DeadLetter {
            message: self.message(&letter.message),
            file: File {
                resolution: self.maybe(letter.file.resolution.as_ref()),
                labels: letter.file.labels.iter().map(|label| self.owned(label)).collect(),
                notes: letter.file.notes.iter().map(notes).collect(),
                history: letter.file.history.iter().map(|moment| self.moment(moment)).collect(),
                edits: letter.file.edits.iter().map(edit).collect(),
                erased: erased.map(|e| Erased { reason: self.maybe(e.reason.as_ref()), ..e.clone() }),
                ..letter.file.clone()
            },
            // What it said before is for those who are shown everything.
            revisions: Vec::new(),
            signature: self.owned(&letter.signature),
            error: self.error(&letter.error),
            ..letter.clone()
        }
    }

    /// A moment in the life of a letter.
    #[must_use]
    pub fn moment(&self, moment: &Moment) -> Moment {
        let detail = self.owned(&moment.detail);
        Moment { detail, why: self.maybe(moment.why.as_ref()), ..moment.clone() }
    }

    /// A group of failures.
    #[must_use]
    pub fn group(&self, group: &Group) -> Group {
        Group {
            template: self.owned(&group.template),
            error_type: self.owned(&group.error_type),
            code: self.maybe(group.code.as_ref()),
            note: self.maybe(group.note.as_ref()),
            link: self.maybe(group.link.as_ref()),
            ..group.clone()
        }
    }

    /// An operation: what it changes payloads to is as secret as they are, and so is what it looks for in them.
    #[must_use]
    pub fn operation(&self, operation: &Operation) -> Operation {
        let actor = &operation.actor;
        Operation {
            act: self.act(&operation.act),
            filter: self.filter(&operation.filter),
            actor: Actor { reason: self.maybe(actor.reason.as_ref()), ..actor.clone() },
            ..operation.clone()
        }
    }

    /// The same filter where nothing in it is secret; one that only reads like it otherwise.
    fn filter(&self, filter: &Filter) -> Filter {
        match self.mask_text(filter.text()) {
            Cow::Borrowed(_) => filter.clone(),
            Cow::Owned(text) => {
                let shown = Filter::parse(&text).or_else(|_| Filter::parse(&format!("\"{MARK}\"")));
                shown.unwrap_or_default()
            }
        }
    }

    pub(super) fn act(&self, act: &Act) -> Act {
        if !self.is_on() {
            return act.clone();
        }
        if let Act::Patch(patch) = act {
            // What cannot be shown without its secrets is not shown.
            return self.patch(patch).map_or(Act::Note, |patch| Act::Patch(Box::new(patch)));
        }
        let Act::Edit(edit) = act else { return act.clone() };
        let payload = |payload: &Payload| Payload {
            bytes: self.mask_payload(&payload.bytes).text.into_bytes(),
            content_type: payload.content_type.clone(),
        };
        Act::Edit(Box::new(Edit {
            payload: edit.payload.as_ref().map(payload),
            headers: edit.headers.as_ref().map(|headers| self.mask_headers(headers)),
        }))
    }

    /// The same steps; a value that goes to a place with a telling name is masked.
    fn patch(&self, patch: &Patch) -> Option<Patch> {
        let mut steps: Vec<BTreeMap<String, Box<RawValue>>> = serde_json::from_str(patch.text()).ok()?;
        for step in &mut steps {
            let path: String = step.get("path").and_then(|path| serde_json::from_str(path.get()).ok())?;
            let Some(value) = step.get_mut("value") else { continue };
            let masked = match path.split('/').any(|name| self.hides(name)) {
                true => format!("\"{MARK}\""),
                false => self.mask_payload(value.get().as_bytes()).text,
            };
            *value = RawValue::from_string(masked).ok()?;
        }
        Patch::parse(&serde_json::to_string(&steps).ok()?).ok()
    }

    /// A queue's target. A value that is read from the environment when it is needed is no secret.
    #[must_use]
    pub fn target(&self, target: &Target) -> Target {
        let fields = |fields: &BTreeMap<String, String>| {
            let shown = |(name, value): (&String, &String)| {
                let named = value.contains("${env.");
                let value = if named { self.owned(value) } else { self.mask_field(name, value) };
                (name.clone(), value)
            };
            fields.iter().map(shown).collect()
        };
        match target {
            Target::Http(http) => Target::Http(HttpTarget {
                url: self.owned(&http.url),
                headers: fields(&http.headers),
                body: http.body.as_ref().map(|body| self.mask_payload(body.as_bytes()).text),
                ..http.clone()
            }),
            Target::Command(command) => Target::Command(CommandTarget {
                argv: self.list(&command.argv),
                shell: self.maybe(command.shell.as_ref()),
                env: fields(&command.env),
                ..command.clone()
            }),
        }
    }

    /// Takes secrets out of a report for good, before it is stored: whoever reads the store cannot find them there.
    /// Signature and class are found before, from the original. The template goes through the same rules; the leaf,
    /// which names the cause, stays that of the original.
    pub(crate) fn redact(&self, report: &mut Report) {
        if !self.is_on() {
            return;
        }
        let error = &mut report.error;
        self.redact_text(&mut error.message, limits::ERROR_MESSAGE_BYTES_MAX);
        for (text, max) in [
            (&mut error.stack, limits::STACK_BYTES_MAX),
            (&mut error.cause, limits::ERROR_MESSAGE_BYTES_MAX),
            (&mut report.step, limits::LABEL_BYTES_MAX),
            (&mut report.log, limits::NOTE_BYTES_MAX),
        ] {
            if let Some(text) = text {
                self.redact_text(text, max);
            }
        }
        for trail in [&mut error.context, &mut report.artifacts] {
            trail.truncate(limits::TRAIL_ENTRIES_MAX);
            for text in trail {
                self.redact_text(text, limits::NOTE_BYTES_MAX);
            }
        }
    }

    /// Masks a text that will be cut to `max` bytes. Of one that is much longer only the beginning is looked at, up
    /// to a blank: half a secret is not recognised.
    fn redact_text(&self, text: &mut String, max: usize) {
        let seen = max.saturating_mul(4);
        if text.len() > seen {
            cut(text, seen);
            // First the mark of the cut, then the word that was cut.
            for _ in 0..2 {
                text.truncate(text.rfind(char::is_whitespace).unwrap_or(0));
            }
            text.push_str(" … [cut]");
        }
        if let Cow::Owned(masked) = self.mask_text(text) {
            *text = masked;
        }
    }
}

impl Analysed {
    /// The failure without the secrets in its text.
    pub(crate) fn redacted(mut self, rules: &Rules) -> Self {
        rules.redact(&mut self.report);
        self.signature.template = rules.mask_text(&self.signature.template).into_owned();
        self.reasons = rules.list(&self.reasons);
        self
    }
}
