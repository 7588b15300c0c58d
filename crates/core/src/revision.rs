//! Changes to what a dead letter says: edit, patch, restore, erase. Each change is a new revision with author, time
//! and reason; what it replaces is kept whole, so that every earlier content can be had back. Decides what becomes
//! of file and content; keeping the revisions is the store's.

use crate::dead_letter::{Act, ActRequest, File, Status};
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

/// What can be changed of a message: its exact bytes and what goes with them to the handler.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// The bytes and what they claim to be.
    #[serde(flatten)]
    pub payload: Payload,
    /// Metadata for handlers.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
}

impl Content {
    /// The content of a message as it is now.
    #[must_use]
    pub fn of(envelope: &Envelope) -> Self {
        Self { payload: envelope.payload.clone(), headers: envelope.headers.clone() }
    }

    /// 16 digits that tell this content from others: the beginning of the SHA-256 of all of it.
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

    /// Refuses what no message could carry, naming the field.
    ///
    /// # Errors
    /// [`Refusal::Invalid`].
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

/// New content for one letter; what is not said stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Edit {
    /// Other bytes.
    #[serde(default)]
    pub payload: Option<Payload>,
    /// Other headers, all of them.
    #[serde(default)]
    pub headers: Option<BTreeMap<String, String>>,
}

/// That a letter's content was changed, on its file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EditMark {
    /// The number of the revision that came of it; the original is 0.
    pub n: u32,
    /// When.
    pub at: Time,
    /// By whom.
    pub by: String,
    /// Why, in their words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The digest of the content it replaced.
    pub before: String,
    /// The digest of the content since.
    pub after: String,
    /// Payload bytes of the content it replaced, which is kept.
    pub bytes: u64,
}

/// One content of a letter, past or present.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Revision {
    /// Which; 0 is the original.
    pub n: u32,
    /// Since when: the enqueue for the original, the edit for the others.
    pub at: Time,
    /// By whom; empty when nobody said who enqueued it.
    #[serde(default)]
    pub by: String,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What it said.
    #[serde(flatten)]
    pub content: Content,
}

impl Revision {
    /// Every content of a letter, oldest first and the present one last. `earlier` are those that were replaced,
    /// by number; nothing is made up for one that is missing.
    #[must_use]
    pub fn list(file: &File, envelope: &Envelope, earlier: Vec<(u32, Content)>) -> Vec<Self> {
        let revision = |n: u32, content: Content| match file.edits.iter().find(|mark| mark.n == n) {
            Some(mark) => {
                let EditMark { at, by, reason, .. } = mark.clone();
                Self { n, at, by, reason, content }
            }
            None => {
                let by = envelope.enqueued_by.clone().unwrap_or_default();
                Self { n, at: envelope.enqueued_at, by, reason: None, content }
            }
        };
        if file.erased.is_some() {
            return Vec::new();
        }
        let mut all: Vec<Self> = earlier.into_iter().map(|(n, content)| revision(n, content)).collect();
        all.push(revision(file.revision(), Content::of(envelope)));
        all
    }
}

/// What is left of a content that was erased.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Erased {
    /// When.
    pub at: Time,
    /// By whom.
    pub by: String,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Payload bytes there were.
    pub bytes: u64,
    /// The SHA-256 of those bytes, to prove later what was erased; nothing when they were damaged already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// A letter after its content changed.
#[derive(Clone, Debug, PartialEq)]
pub struct Edited {
    /// The file with its new mark.
    pub file: File,
    /// The message with its new content.
    pub envelope: Envelope,
}

impl Act {
    /// Whether it changes what a letter says, not where it stands.
    #[must_use]
    pub const fn is_content(&self) -> bool {
        matches!(self, Self::Edit(_) | Self::Patch(_) | Self::Restore { .. } | Self::Erase)
    }
}

/// Whether the content of a letter with this status may be changed that way.
///
/// # Errors
/// [`Refusal::WrongStatus`] with a hint at what would work.
pub fn may_change(id: MessageId, status: Status, act: &Act) -> Result<(), Refusal> {
    let refuse =
        |hint: &str| Err(Refusal::WrongStatus { id, status, act: act.name().into(), hint: hint.into() });
    match status {
        Status::Pending | Status::Review | Status::Quarantined => Ok(()),
        Status::Retrying => refuse("it was sent back to work; wait until the message is done or dies again"),
        Status::Resolved | Status::Abandoned | Status::Purged if matches!(act, Act::Erase) => Ok(()),
        Status::Resolved | Status::Abandoned => refuse("reopen it first"),
        Status::Purged => refuse("take it back with unpurge and reopen it first"),
    }
}

impl File {
    /// The number of the content it has now.
    #[must_use]
    pub fn revision(&self) -> u32 {
        self.edits.last().map_or(0, |mark| mark.n)
    }

    /// Whether a body with this hash is the one the message was enqueued with; nothing when its body still is that.
    #[must_use]
    pub fn was_sent_as(&self, hash: &[u8; 32]) -> Option<bool> {
        self.body_hash.as_ref().map(|original| *original == hex(hash))
    }

    /// The letter after an edit, a patch or a restore. `earlier` is the revision that a restore names, if it is
    /// there.
    ///
    /// # Errors
    /// A refusal when the letter moved on, its status does not allow it, the patch does not fit, nothing would
    /// change, or the result is over a limit.
    pub fn edit(
        &self,
        request: &ActRequest,
        envelope: &Envelope,
        earlier: Option<Content>,
        now: Time,
    ) -> Result<Edited, Refusal> {
        let id = envelope.id;
        self.may_act(id, request, now)?;
        may_change(id, self.status, &request.act)?;
        if self.erased.is_some() {
            return Err(Refusal::Erased { id, act: request.act.name().into() });
        }
        let before = Content::of(envelope);
        let after = next_content(id, request, &before, earlier)?;
        after.check()?;
        if after == before {
            return Err(Refusal::NoChange { id });
        }
        let mark = EditMark {
            n: self.revision() + 1,
            at: now,
            by: request.actor.name.clone(),
            reason: request.actor.reason.clone(),
            before: before.digest(),
            after: after.digest(),
            bytes: envelope.size(),
        };
        let kept: u64 = self.edits.iter().map(|mark| mark.bytes).sum::<u64>() + mark.bytes;
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
        let mut file = self.clone();
        file.body_hash = file.body_hash.or_else(|| Some(hex(&envelope.body_hash())));
        file.edits.push(mark);
        file.version += 1;
        file.record_act(self, request, now);
        let envelope = Envelope { payload: after.payload, headers: after.headers, ..envelope.clone() };
        Ok(Edited { file, envelope })
    }

    /// The file after its content was erased; nothing when it was erased before. `envelope` is missing when its
    /// bytes are damaged: they go all the same.
    ///
    /// # Errors
    /// A refusal when the letter moved on or is being retried.
    pub fn erase(
        &self,
        request: &ActRequest,
        bytes: u64,
        envelope: Option<&Envelope>,
        now: Time,
    ) -> Result<Option<Self>, Refusal> {
        self.may_act(request.id, request, now)?;
        may_change(request.id, self.status, &request.act)?;
        if self.erased.is_some() {
            return Ok(None);
        }
        let mut file = self.clone();
        file.body_hash = file.body_hash.or_else(|| envelope.map(|e| hex(&e.body_hash())));
        file.erased = Some(Erased {
            at: now,
            by: request.actor.name.clone(),
            reason: request.actor.reason.clone(),
            bytes,
            sha256: envelope.map(|e| hex(&Sha256::digest(&e.payload.bytes))),
        });
        file.available_at = Time::NEVER;
        file.version += 1;
        file.record_act(self, request, now);
        Ok(Some(file))
    }
}

impl Envelope {
    /// The message without what may be about somebody: payload, headers and context.
    #[must_use]
    pub fn emptied(self) -> Self {
        Self { payload: Payload::default(), headers: BTreeMap::new(), context: None, ..self }
    }
}

/// What the letter is to say.
fn next_content(
    id: MessageId,
    request: &ActRequest,
    before: &Content,
    earlier: Option<Content>,
) -> Result<Content, Refusal> {
    match &request.act {
        Act::Edit(edit) => {
            if request.expected_version.is_none() {
                let why = "an edit says which version it was made from, so that nobody's work is overwritten";
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

/// Refuses the earlier contents of an imported letter unless they are exactly those its file tells of.
///
/// # Errors
/// [`Refusal::Invalid`] naming what is wrong.
pub fn check_lineage(file: &File, current: &Content, revisions: &[Revision]) -> Result<(), Refusal> {
    let refuse = |why: String| Err(Refusal::invalid("revisions", why));
    if file.erased.is_some() {
        return match revisions {
            [] => Ok(()),
            [..] => refuse("the letter was erased, so it has none".into()),
        };
    }
    if file.edits.len() > limits::EDITS_MAX {
        return refuse(format!("more than {}", limits::EDITS_MAX));
    }
    if revisions.len() != file.edits.len() {
        let why = format!(
            "the letter was edited {} times and {} of its earlier contents are here; export it with --full",
            file.edits.len(),
            revisions.len()
        );
        return refuse(why);
    }
    let contents = revisions.iter().map(|r| &r.content).chain([current]).skip(1);
    for (at, ((mark, revision), after)) in (0..).zip(file.edits.iter().zip(revisions).zip(contents)) {
        revision.content.check()?;
        let fits = revision.n == at
            && mark.n == at + 1
            && mark.before == revision.content.digest()
            && mark.bytes == revision.content.payload.bytes.len() as u64
            && mark.after == after.digest();
        if !fits {
            return refuse(format!("number {} is not what the letter's file says it was", revision.n));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dead_letter::{Actor, Captured, DeadLetter};
    use crate::failure::{Reason, Report};
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
            last: Report::default().analyse(),
            dead_at: Time::ZERO,
            reason: Reason::MaxAttempts,
            note: None,
        };
        captured.letter(&QueuePolicy::default())
    }

    fn request(letter: &DeadLetter, act: Act) -> ActRequest {
        let actor = Actor { reason: Some("why".into()), ..Actor::new("ada", "test") };
        ActRequest { id: letter.id(), act, actor, expected_version: Some(letter.file.version) }
    }

    /// The letter after an edit, with its past.
    fn edited(mut letter: DeadLetter, bytes: &str) -> DeadLetter {
        let act = Act::Edit(Box::new(Edit { payload: Some(payload(bytes)), headers: None }));
        let request = request(&letter, act);
        let Edited { file, envelope } =
            letter.file.edit(&request, &letter.message.envelope, None, NOW).unwrap();
        let earlier = letter.revisions.iter().map(|r| (r.n, r.content.clone()));
        let earlier = earlier.chain([(letter.file.revision(), Content::of(&letter.message.envelope))]);
        let mut revisions = Revision::list(&file, &envelope, earlier.collect());
        revisions.pop();
        letter.message.envelope = envelope;
        DeadLetter { file, revisions, ..letter }
    }

    #[test]
    fn the_bytes_that_are_kept_are_bounded() {
        let mut letter = edited(letter(), "{\"n\":2}");
        letter.file.edits[0].bytes = limits::REVISION_BYTES_MAX;
        let act = Act::Patch(Box::new(Patch::parse(r#"[{"op":"remove","path":"/n"}]"#).unwrap()));
        let refused = letter.file.edit(&request(&letter, act), &letter.message.envelope, None, NOW);
        assert!(matches!(refused, Err(Refusal::Invalid { field, .. }) if field == "content"));
    }

    #[test]
    fn a_lineage_fits_or_is_refused() {
        let whole = edited(edited(letter(), "{\"n\":2}"), "{\"n\":3}");
        let check = |letter: &DeadLetter| {
            check_lineage(&letter.file, &Content::of(&letter.message.envelope), &letter.revisions)
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
        broken(&|l| l.file.edits[0].bytes += 1);
        broken(&|l| drop(l.file.edits.pop()));
        let erased = whole.file.erase(&request(&whole, Act::Erase), 7, Some(&whole.message.envelope), NOW);
        let mut gone = DeadLetter { file: erased.unwrap().unwrap(), ..whole };
        assert!(check(&gone).is_err(), "an erased letter says nothing of what it was");
        gone.revisions.clear();
        assert_eq!(check(&gone), Ok(()));
    }

    #[test]
    fn who_is_shown_a_masked_letter_is_not_shown_its_past() {
        let mut letter = edited(letter(), "{\"n\":2}");
        letter.file.edits[0].reason = Some("for ada@example.com".into());
        let shown = Rules::default().letter(&letter);
        assert_eq!(shown.revisions, []);
        assert!(!shown.file.edits[0].reason.as_ref().unwrap().contains("ada@"));
    }

    #[test]
    fn digests_tell_contents_apart() {
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
    fn an_act_for_content_is_none_for_the_file() {
        let letter = letter();
        for act in [Act::Erase, Act::Restore { n: 0 }] {
            let refused = letter.file.act(letter.id(), &request(&letter, act), &QueuePolicy::default(), NOW);
            assert!(matches!(refused, Err(Refusal::Invalid { field, .. }) if field == "act"));
        }
        let resolve = request(&letter, Act::Resolve);
        assert!(letter.file.edit(&resolve, &letter.message.envelope, None, NOW).is_err());
    }
}
