//! Masked views: everything that came from outside goes through the rules. What the store itself made (ids, times,
//! counters, names of queues) does not.

use super::{MARK, Rules};
use crate::dead_letter::{Act, Actor, DeadLetter, LetterRecord, Note, TimelineEntry};
use crate::failure::{AnalysedFailure, ErrorInfo, Failure, FailureReport, cut};
use crate::filter::Filter;
use crate::group::Group;
use crate::limits;
use crate::message::{Envelope, Message, Payload};
use crate::operation::Operation;
use crate::patch::Patch;
use crate::progress::Progress;
use crate::revision::{Edit, EditRecord, Erased};
use crate::target::{CommandTarget, HttpTarget, Target};
use crate::webhook::SecretSource;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::BTreeMap;

impl Rules {
    fn masked(&self, text: &str) -> String {
        self.mask_text(text).into_owned()
    }

    fn masked_option(&self, text: Option<&String>) -> Option<String> {
        text.map(|text| self.masked(text))
    }

    fn masked_list(&self, texts: &[String]) -> Vec<String> {
        texts.iter().map(|text| self.masked(text)).collect()
    }

    /// Masks an error.
    #[must_use]
    pub fn error(&self, error: &ErrorInfo) -> ErrorInfo {
        ErrorInfo {
            error_type: self.masked(&error.error_type),
            message: self.masked(&error.message),
            code: self.masked_option(error.code.as_ref()),
            stack: self.masked_option(error.stack.as_ref()),
            context: self.masked_list(&error.context),
            cause: self.masked_option(error.cause.as_ref()),
        }
    }

    /// Masks a failed delivery.
    #[must_use]
    pub fn failure(&self, failure: &Failure) -> Failure {
        Failure {
            step: self.masked_option(failure.step.as_ref()),
            error: self.error(&failure.error),
            reasons: self.masked_list(&failure.reasons),
            signature: self.masked(&failure.signature),
            log: self.masked_option(failure.log.as_ref()),
            artifacts: self.masked_list(&failure.artifacts),
            ..failure.clone()
        }
    }

    /// Masks a message. The result is flagged as masked, so that nobody takes it for the message itself.
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
                tags: e.tags.iter().map(|tag| self.masked(tag)).collect(),
                key: self.masked_option(e.key.as_ref()),
                ordering_key: self.masked_option(e.ordering_key.as_ref()),
                context: e.context.as_ref().map(|context| self.mask_value(context)),
                ..e.clone()
            },
            progress: progress.map(|p| Progress { note: self.masked(&p.note), ..p.clone() }),
            failures: message.failures.iter().map(|failure| self.failure(failure)).collect(),
            masked: true,
            ..message.clone()
        }
    }

    /// Masks a dead letter; see [`Self::message`].
    #[must_use]
    pub fn letter(&self, letter: &DeadLetter) -> DeadLetter {
        if !self.is_on() {
            return letter.clone();
        }
        let notes = |note: &Note| Note { text: self.masked(&note.text), ..note.clone() };
        let edit = |edit: &EditRecord| EditRecord {
            reason: self.masked_option(edit.reason.as_ref()),
            ..edit.clone()
        };
        let erased = letter.record.erased.as_ref();
        DeadLetter {
            message: self.message(&letter.message),
            record: LetterRecord {
                resolution: self.masked_option(letter.record.resolution.as_ref()),
                labels: letter.record.labels.iter().map(|label| self.masked(label)).collect(),
                notes: letter.record.notes.iter().map(notes).collect(),
                history: letter.record.history.iter().map(|entry| self.timeline_entry(entry)).collect(),
                edits: letter.record.edits.iter().map(edit).collect(),
                erased: erased.map(|e| Erased { reason: self.masked_option(e.reason.as_ref()), ..e.clone() }),
                ..letter.record.clone()
            },
            // Earlier revisions are only for those who may see everything.
            revisions: Vec::new(),
            signature: self.masked(&letter.signature),
            error: self.error(&letter.error),
            ..letter.clone()
        }
    }

    /// Masks an entry of the timeline of a letter.
    #[must_use]
    pub fn timeline_entry(&self, entry: &TimelineEntry) -> TimelineEntry {
        let detail = self.masked(&entry.detail);
        TimelineEntry { detail, why: self.masked_option(entry.why.as_ref()), ..entry.clone() }
    }

    /// Masks a group.
    #[must_use]
    pub fn group(&self, group: &Group) -> Group {
        Group {
            template: self.masked(&group.template),
            error_type: self.masked(&group.error_type),
            code: self.masked_option(group.code.as_ref()),
            note: self.masked_option(group.note.as_ref()),
            link: self.masked_option(group.link.as_ref()),
            ..group.clone()
        }
    }

    /// Masks an operation: what it writes to payloads, and what it searches in them, is as secret as they are.
    #[must_use]
    pub fn operation(&self, operation: &Operation) -> Operation {
        let actor = &operation.actor;
        Operation {
            act: self.act(&operation.act),
            filter: self.filter(&operation.filter),
            actor: Actor { reason: self.masked_option(actor.reason.as_ref()), ..actor.clone() },
            ..operation.clone()
        }
    }

    /// The same filter if nothing in it is secret, and otherwise one that only reads like it.
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
            // An act that cannot be shown without its secrets is not shown.
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

    /// The same patch; a value that goes to a path with a secret name is masked.
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

    /// Masks the target of a queue. A value that is read from the environment when it is needed is not secret.
    #[must_use]
    pub fn target(&self, target: &Target) -> Target {
        let fields = |fields: &BTreeMap<String, String>| {
            let shown = |(name, value): (&String, &String)| {
                let named = value.contains("${env.");
                let value = if named { self.masked(value) } else { self.mask_field(name, value) };
                (name.clone(), value)
            };
            fields.iter().map(shown).collect()
        };
        match target {
            Target::Http(http) => Target::Http(HttpTarget {
                url: self.masked(&http.url),
                headers: fields(&http.headers),
                body: http.body.as_ref().map(|body| self.mask_payload(body.as_bytes()).text),
                secret: http.secret.as_ref().map(|secret| match secret.is_reference() {
                    true => secret.clone(),
                    false => SecretSource::new(self.mask_field("secret", secret.reveal())),
                }),
                ..http.clone()
            }),
            Target::Command(command) => Target::Command(CommandTarget {
                argv: self.masked_list(&command.argv),
                shell: self.masked_option(command.shell.as_ref()),
                env: fields(&command.env),
                ..command.clone()
            }),
        }
    }

    /// Removes secrets from a report for good, before it is stored, so that nobody who reads the store can find them.
    /// Signature and class are computed before, from the original. The template goes through the same rules; the leaf,
    /// which identifies the cause, stays that of the original.
    pub(crate) fn redact(&self, report: &mut FailureReport) {
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

    /// Masks a text that will be cut to `max` bytes. Only the beginning of a much longer text is kept, up to a blank,
    /// because half a secret is not recognised.
    fn redact_text(&self, text: &mut String, max: usize) {
        let kept = max.saturating_mul(4);
        if text.len() > kept {
            cut(text, kept);
            // The first pass removes the mark of the cut, the second the word that was cut.
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

impl AnalysedFailure {
    /// The failure without the secrets in its texts.
    pub(crate) fn redacted(mut self, rules: &Rules) -> Self {
        rules.redact(&mut self.report);
        self.signature.template = rules.mask_text(&self.signature.template).into_owned();
        self.reasons = rules.masked_list(&self.reasons);
        self
    }
}
