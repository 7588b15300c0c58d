//! Changes to the content of a dead letter: edit, patch, restore and erase. Each change makes a new revision
//! with author, time and reason, and the replaced content is kept in full, so that every earlier content can be
//! restored. This module computes the new record and content; the store keeps the revisions.

use crate::dead_letter::{Act, ActRequest, LetterRecord, Status};
use crate::error::Refusal;
use crate::ids::MessageId;
use crate::limits;
use crate::message::{Envelope, check_headers};
use crate::payload::Payload;
use crate::time::Time;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The part of a message that can be changed: its exact bytes and the headers for the handler.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// The payload.
    #[serde(flatten)]
    pub payload: Payload,
    /// Metadata for handlers.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
}

impl Content {
    /// The current content of a message.
    #[must_use]
    pub fn of(envelope: &Envelope) -> Self {
        Self { payload: envelope.payload.clone(), headers: envelope.headers.clone() }
    }

    /// A digest of 16 hex digits that distinguishes this content from others: the beginning of its SHA-256.
    #[must_use]
    pub fn digest(&self) -> String {
        let mut hash = Sha256::new();
        let headers = self.headers.iter().flat_map(|(name, value)| [name.as_str(), value.as_str()]);
        for text in [self.payload.content_type.as_str()].into_iter().chain(headers) {
            hash.update((text.len() as u64).to_be_bytes());
            hash.update(text);
        }
        hash.update(&self.payload.bytes);
        let mut text = hex(&hash.finalize());
        text.truncate(16);
        text
    }

    /// Checks the content against the limits of a message.
    ///
    /// # Errors
    /// Returns [`Refusal::Invalid`], which names the field.
    pub fn check(&self) -> Result<(), Refusal> {
        self.payload.check("payload")?;
        check_headers(&self.headers)
    }
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// New content for one letter. `None` keeps what is there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edit {
    /// The new payload.
    #[serde(default)]
    pub payload: Option<Payload>,
    /// The new headers, which replace all others.
    #[serde(default)]
    pub headers: Option<BTreeMap<String, String>>,
}

/// The record of one change to a letter's content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EditRecord {
    /// The number of the new revision; the original is 0.
    pub n: u32,
    /// When the content was changed.
    pub at: Time,
    /// Who changed it.
    pub by: String,
    /// The reason, in the actor's own words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The digest of the replaced content.
    pub before: String,
    /// The digest of the new content.
    pub after: String,
    /// Payload bytes of the replaced content, which is kept.
    pub bytes: u64,
}

/// One content of a letter, past or present.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revision {
    /// The number of the revision; 0 is the original.
    pub n: u32,
    /// Since when the letter has this content: the time of the enqueue for the original, of the edit for the
    /// others.
    pub at: Time,
    /// The author. Empty if the enqueue named no sender.
    #[serde(default)]
    pub by: String,
    /// The reason of the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The content.
    #[serde(flatten)]
    pub content: Content,
}

impl Revision {
    /// Every revision of a letter, oldest first, ending with the current one. `earlier` holds the replaced
    /// contents by number; a missing one is left out.
    #[must_use]
    pub fn list(record: &LetterRecord, envelope: &Envelope, earlier: Vec<(u32, Content)>) -> Vec<Self> {
        let revision = |n: u32, content: Content| match record.edits.iter().find(|edit| edit.n == n) {
            Some(edit) => {
                let EditRecord { at, by, reason, .. } = edit.clone();
                Self { n, at, by, reason, content }
            }
            None => {
                let by = envelope.enqueued_by.clone().unwrap_or_default();
                Self { n, at: envelope.enqueued_at, by, reason: None, content }
            }
        };
        if record.erased.is_some() {
            return Vec::new();
        }
        let mut all: Vec<Self> = earlier.into_iter().map(|(n, content)| revision(n, content)).collect();
        all.push(revision(record.revision(), Content::of(envelope)));
        all
    }
}

/// What is left of erased content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Erased {
    /// When the content was erased.
    pub at: Time,
    /// Who erased it.
    pub by: String,
    /// The reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The number of payload bytes that were erased.
    pub bytes: u64,
    /// The SHA-256 of those bytes, as proof of what was erased. `None` if the bytes were damaged already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// A letter after its content changed.
#[derive(Clone, Debug, PartialEq)]
pub struct Edited {
    /// The record with the new edit.
    pub record: LetterRecord,
    /// The message with its new content.
    pub envelope: Envelope,
}

impl Act {
    /// Whether this act changes the content of a letter rather than its status or record.
    #[must_use]
    pub const fn changes_content(&self) -> bool {
        matches!(self, Self::Edit(_) | Self::Patch(_) | Self::Restore { .. } | Self::Erase)
    }
}

/// Checks that the content of a letter with this status may be changed by this act.
///
/// # Errors
/// Returns [`Refusal::WrongStatus`] with a hint at what to do instead.
pub fn check_content_change(id: MessageId, status: Status, act: &Act) -> Result<(), Refusal> {
    let refuse =
        |hint: &str| Err(Refusal::WrongStatus { id, status, act: act.name().into(), hint: hint.into() });
    match status {
        Status::Pending | Status::Review | Status::Quarantined => Ok(()),
        Status::Retrying => refuse("it was sent back to work; wait until the message is done or dies again"),
        Status::Resolved | Status::Abandoned | Status::Purged if matches!(act, Act::Erase) => Ok(()),
        Status::Resolved | Status::Abandoned => refuse("reopen it first"),
        Status::Purged => refuse("undo the purge with unpurge and reopen it first"),
    }
}

impl LetterRecord {
    /// The number of the current revision.
    #[must_use]
    pub fn revision(&self) -> u32 {
        self.edits.last().map_or(0, |edit| edit.n)
    }

    /// Whether this hash is that of the body that was enqueued. `None` if the body was never changed, so that
    /// the current one can be compared.
    #[must_use]
    pub fn is_original_body(&self, hash: &[u8; 32]) -> Option<bool> {
        self.body_hash.as_ref().map(|original| *original == hex(hash))
    }

    /// The letter after an edit, a patch or a restore. `earlier` is the content of the revision that a restore
    /// names, if it exists.
    ///
    /// # Errors
    /// Returns a refusal if the letter has another version or its status does not allow the change, if the
    /// patch does not fit, if nothing would change, or if the result exceeds a limit.
    pub fn edit(
        &self,
        request: &ActRequest,
        envelope: &Envelope,
        earlier: Option<Content>,
        now: Time,
    ) -> Result<Edited, Refusal> {
        let id = envelope.id;
        self.check_act(id, request, now)?;
        check_content_change(id, self.status, &request.act)?;
        if self.erased.is_some() {
            return Err(Refusal::Erased { id, act: request.act.name().into() });
        }
        let before = Content::of(envelope);
        let after = next_content(id, request, &before, earlier)?;
        after.check()?;
        if after == before {
            return Err(Refusal::NoChange { id });
        }
        let edit = EditRecord {
            n: self.revision() + 1,
            at: now,
            by: request.actor.name.clone(),
            reason: request.actor.reason.clone(),
            before: before.digest(),
            after: after.digest(),
            bytes: envelope.size(),
        };
        let kept: u64 = self.edits.iter().map(|edit| edit.bytes).sum::<u64>() + edit.bytes;
        if self.edits.len() >= limits::EDITS_MAX || kept > limits::REVISION_BYTES_MAX {
            let why = format!(
                "was changed {} times and {kept} bytes of it would be kept; at most {} times and {} bytes. \
                 Close the letter and enqueue a new message",
                self.edits.len(),
                limits::EDITS_MAX,
                limits::REVISION_BYTES_MAX
            );
            return Err(Refusal::invalid("content", why));
        }
        let mut record = self.clone();
        record.body_hash = record.body_hash.or_else(|| Some(hex(&envelope.body_hash())));
        record.edits.push(edit);
        record.version += 1;
        record.record_act(self, request, now);
        let envelope = Envelope { payload: after.payload, headers: after.headers, ..envelope.clone() };
        Ok(Edited { record, envelope })
    }

    /// The record after the content was erased. `None` if it was erased before. `envelope` is `None` if the
    /// content is damaged; it is erased all the same.
    ///
    /// # Errors
    /// Returns a refusal if the letter has another version or is being retried.
    pub fn erase(
        &self,
        request: &ActRequest,
        bytes: u64,
        envelope: Option<&Envelope>,
        now: Time,
    ) -> Result<Option<Self>, Refusal> {
        self.check_act(request.id, request, now)?;
        check_content_change(request.id, self.status, &request.act)?;
        if self.erased.is_some() {
            return Ok(None);
        }
        let mut record = self.clone();
        record.body_hash = record.body_hash.or_else(|| envelope.map(|e| hex(&e.body_hash())));
        record.erased = Some(Erased {
            at: now,
            by: request.actor.name.clone(),
            reason: request.actor.reason.clone(),
            bytes,
            sha256: envelope.map(|e| hex(&Sha256::digest(&e.payload.bytes))),
        });
        record.available_at = Time::NEVER;
        record.version += 1;
        record.record_act(self, request, now);
        Ok(Some(record))
    }
}

impl Envelope {
    /// The message without the parts that may contain personal data: payload, headers and context.
    #[must_use]
    pub fn without_content(self) -> Self {
        Self { payload: Payload::default(), headers: BTreeMap::new(), context: None, ..self }
    }
}

/// The content of the letter after the act.
fn next_content(
    id: MessageId,
    request: &ActRequest,
    before: &Content,
    earlier: Option<Content>,
) -> Result<Content, Refusal> {
    match &request.act {
        Act::Edit(edit) => {
            if request.expected_version.is_none() {
                let why =
                    "an edit must name the version it is based on, so that no other edit is overwritten";
                return Err(Refusal::invalid("expected_version", why));
            }
            Ok(Content {
                payload: edit.payload.clone().unwrap_or_else(|| before.payload.clone()),
                headers: edit.headers.clone().unwrap_or_else(|| before.headers.clone()),
            })
        }
        Act::Patch(patch) => {
            let bytes = patch
                .apply(&before.payload.bytes)
                .map_err(|error| Refusal::PatchFailed { id, why: error.to_string() })?;
            let content_type = before.payload.content_type.clone();
            Ok(Content { payload: Payload { bytes, content_type }, headers: before.headers.clone() })
        }
        Act::Restore { n } => earlier.ok_or_else(|| {
            Refusal::invalid(
                "revision",
                format!("dead letter {id} has no earlier revision {n}; see `dlq diff`"),
            )
        }),
        Act::Erase
        | Act::Retry(_)
        | Act::Review
        | Act::Quarantine { .. }
        | Act::Release
        | Act::Resolve
        | Act::Abandon
        | Act::Reopen
        | Act::Note
        | Act::Purge
        | Act::Unpurge
        | Act::PullBack
        | Act::Move { .. }
        | Act::Hold { .. }
        | Act::Snooze { .. }
        | Act::Assign { .. }
        | Act::Label { .. } => {
            Err(Refusal::invalid("act", format!("{} changes no content", request.act.name())))
        }
    }
}

/// Checks that the earlier contents of an imported letter are exactly those that its record lists.
///
/// # Errors
/// Returns [`Refusal::Invalid`], which names the mismatch.
pub fn check_lineage(
    record: &LetterRecord,
    current: &Content,
    revisions: &[Revision],
) -> Result<(), Refusal> {
    let refuse = |why: String| Err(Refusal::invalid("revisions", why));
    if record.erased.is_some() {
        return match revisions {
            [] => Ok(()),
            [..] => refuse("the letter was erased, so it can have none".into()),
        };
    }
    if record.edits.len() > limits::EDITS_MAX {
        return refuse(format!("more than {}", limits::EDITS_MAX));
    }
    if revisions.len() != record.edits.len() {
        let why = format!(
            "the letter was edited {} times, but {} of its earlier contents are here; export it with --full",
            record.edits.len(),
            revisions.len()
        );
        return refuse(why);
    }
    let contents = revisions.iter().map(|r| &r.content).chain([current]).skip(1);
    for (at, ((edit, revision), after)) in (0..).zip(record.edits.iter().zip(revisions).zip(contents)) {
        revision.content.check()?;
        let fits = revision.n == at
            && edit.n == at + 1
            && edit.before == revision.content.digest()
            && edit.bytes == revision.content.payload.bytes.len() as u64
            && edit.after == after.digest();
        if !fits {
            return refuse(format!("number {} does not match the record of the letter", revision.n));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dead_letter::{Actor, Captured, DeadLetter};
    use crate::failure::{FailureReport, Reason};
    use crate::masking::Rules;
    use crate::message::NewMessage;
    use crate::patch::Patch;
    use crate::policy::QueuePolicy;

    const NOW: Time = Time::from_millis(5_000);

    fn payload(bytes: impl Into<Vec<u8>>) -> Payload {
        Payload { bytes: bytes.into(), content_type: "application/json".into() }
    }

    fn letter() -> DeadLetter {
        let id = MessageId::new(1, [1; 10]);
        let captured = Captured {
            message: NewMessage::new(id, "q".parse().unwrap(), payload("{\"n\":1}")),
            began_at: Time::ZERO,
            attempts: 1,
            failed: 0,
            failures: Vec::new(),
            last: FailureReport::default().analyse(),
            dead_at: Time::ZERO,
            reason: Reason::MaxAttempts,
            note: None,
        };
        captured.letter(&QueuePolicy::default())
    }

    fn request(letter: &DeadLetter, act: Act) -> ActRequest {
        let actor = Actor { reason: Some("why".into()), ..Actor::new("ada", "test") };
        ActRequest { id: letter.id(), act, actor, expected_version: Some(letter.record.version) }
    }

    /// The letter after an edit, with its earlier revisions.
    fn edited(mut letter: DeadLetter, bytes: &str) -> DeadLetter {
        let act = Act::Edit(Box::new(Edit { payload: Some(payload(bytes)), headers: None }));
        let request = request(&letter, act);
        let Edited { record, envelope } =
            letter.record.edit(&request, &letter.message.envelope, None, NOW).unwrap();
        let earlier = letter.revisions.iter().map(|r| (r.n, r.content.clone()));
        let earlier = earlier.chain([(letter.record.revision(), Content::of(&letter.message.envelope))]);
        let mut revisions = Revision::list(&record, &envelope, earlier.collect());
        revisions.pop();
        letter.message.envelope = envelope;
        DeadLetter { record, revisions, ..letter }
    }

    #[test]
    fn the_bytes_that_are_kept_are_bounded() {
        let mut letter = edited(letter(), "{\"n\":2}");
        letter.record.edits[0].bytes = limits::REVISION_BYTES_MAX;
        let act = Act::Patch(Box::new(Patch::parse(r#"[{"op":"remove","path":"/n"}]"#).unwrap()));
        let refused = letter.record.edit(&request(&letter, act), &letter.message.envelope, None, NOW);
        assert!(matches!(refused, Err(Refusal::Invalid { field, .. }) if field == "content"));
    }

    #[test]
    fn a_lineage_fits_or_is_refused() {
        let whole = edited(edited(letter(), "{\"n\":2}"), "{\"n\":3}");
        let check = |letter: &DeadLetter| {
            check_lineage(&letter.record, &Content::of(&letter.message.envelope), &letter.revisions)
        };
        assert_eq!(check(&whole), Ok(()));
        assert_eq!(check(&letter()), Ok(()));
        let broken = |change: &dyn Fn(&mut DeadLetter)| {
            let mut letter = whole.clone();
            change(&mut letter);
            assert!(matches!(check(&letter), Err(Refusal::Invalid { field, .. }) if field == "revisions"));
        };
        broken(&|l| l.revisions.clear());
        broken(&|l| l.revisions.swap(0, 1));
        broken(&|l| l.revisions[1].n = 7);
        broken(&|l| l.revisions[0].content.payload.bytes.push(b' '));
        broken(&|l| l.revisions[0].content.headers.extend([("h".to_owned(), "v".to_owned())]));
        broken(&|l| l.message.envelope.payload.bytes.push(b' '));
        broken(&|l| l.record.edits[0].bytes += 1);
        broken(&|l| drop(l.record.edits.pop()));
        let erased = whole.record.erase(&request(&whole, Act::Erase), 7, Some(&whole.message.envelope), NOW);
        let mut gone = DeadLetter { record: erased.unwrap().unwrap(), ..whole };
        assert!(check(&gone).is_err(), "an erased letter must not bring its earlier contents");
        gone.revisions.clear();
        assert_eq!(check(&gone), Ok(()));
    }

    #[test]
    fn a_masked_letter_does_not_show_its_earlier_contents() {
        let mut letter = edited(letter(), "{\"n\":2}");
        letter.record.edits[0].reason = Some("for ada@example.com".into());
        let shown = Rules::default().letter(&letter);
        assert_eq!(shown.revisions, []);
        assert!(!shown.record.edits[0].reason.as_ref().unwrap().contains("ada@"));
    }

    #[test]
    fn digests_distinguish_contents() {
        let content = |bytes: &str, content_type: &str, header: &str| Content {
            payload: Payload { bytes: bytes.into(), content_type: content_type.into() },
            headers: [("h".to_owned(), header.to_owned())].into(),
        };
        let all =
            [content("a", "b", "c"), content("ab", "", "c"), content("a", "bc", ""), content("", "b", "ca")];
        let digests: std::collections::BTreeSet<String> = all.iter().map(Content::digest).collect();
        assert_eq!(digests.len(), all.len());
        assert!(digests.iter().all(|digest| digest.len() == 16));
    }

    #[test]
    fn content_changes_and_record_changes_are_separate_calls() {
        let letter = letter();
        for act in [Act::Erase, Act::Restore { n: 0 }] {
            let refused =
                letter.record.act(letter.id(), &request(&letter, act), &QueuePolicy::default(), NOW);
            assert!(matches!(refused, Err(Refusal::Invalid { field, .. }) if field == "act"));
        }
        let resolve = request(&letter, Act::Resolve);
        assert!(letter.record.edit(&resolve, &letter.message.envelope, None, NOW).is_err());
    }
}
