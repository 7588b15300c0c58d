//! Changing the content of a letter: the exact bytes in a text field, then the differences side by side, then the
//! change, for the version that was looked at. What is masked for others is shown here only after the audit trail has
//! recorded it, and never if the visitor may not see it.

use super::fields::{Asked, Sent};
use super::frame::{Frame, Section};
use super::render;
use super::text::{plural, short_id};
use super::visitor::{Failure, Visitor, see_other};
use crate::problem::Problem;
use crate::reply::only;
use crate::request::Path;
use askama::Template;
use axum::http::StatusCode;
use axum::response::Response;
use redrive_core::dead_letter::{Act, ActRequest, DeadLetter};
use redrive_core::disclosure::{Disclosed, Disclosure};
use redrive_core::ids::MessageId;
use redrive_core::payload::Payload;
use redrive_core::revision::Edit;
use redrive_core::store::Letters as _;
use serde::de::IgnoredAny;
use similar::{ChangeTag, TextDiff};

/// Lines shown of a comparison.
const LINES_MAX: usize = 800;

/// A line of a comparison: what was there and what is there.
#[derive(Debug, Default, PartialEq, Eq)]
struct DiffLine {
    old: String,
    new: String,
    is_deleted: bool,
    is_inserted: bool,
}

#[derive(Template)]
#[template(path = "edit.html")]
struct EditPage {
    frame: Frame,
    id: String,
    short: String,
    version: u64,
    /// The page only asks for a reason to reveal what is masked.
    asks: bool,
    text: String,
    reason: String,
    /// What is wrong with the text, or worth knowing about it.
    remark: Option<String>,
    is_json: bool,
    diff: Option<Vec<DiffLine>>,
    changed: String,
    can_save: bool,
}

/// Compares two texts line by line, with deletions and insertions side by side.
fn compare(old: &str, new: &str) -> Vec<DiffLine> {
    let diff = TextDiff::from_lines(old, new);
    let mut lines: Vec<DiffLine> = Vec::new();
    // Deleted lines that no inserted line stands beside yet begin here.
    let mut unpaired = 0;
    for change in diff.iter_all_changes() {
        let text = change.value().trim_end_matches('\n').to_owned();
        match change.tag() {
            ChangeTag::Equal => {
                lines.push(DiffLine { old: text.clone(), new: text, ..DiffLine::default() });
                unpaired = lines.len();
            }
            ChangeTag::Delete => lines.push(DiffLine { old: text, is_deleted: true, ..DiffLine::default() }),
            ChangeTag::Insert => {
                match lines.get_mut(unpaired).filter(|line| line.is_deleted && !line.is_inserted) {
                    Some(line) => (line.new, line.is_inserted) = (text, true),
                    None => lines.push(DiffLine { new: text, is_inserted: true, ..DiffLine::default() }),
                }
                unpaired += 1;
            }
        }
    }
    lines.truncate(LINES_MAX);
    lines
}

fn text_of(letter: &DeadLetter) -> Result<String, Problem> {
    let bytes = letter.message.envelope.payload.bytes.clone();
    String::from_utf8(bytes).map_err(|_| {
        let what = "the payload is not text; change it with `redrive dlq edit --payload-file`";
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "not_text", what)
    })
}

/// Whether the payload or the headers hold something that is masked for others.
fn is_masked(visitor: &Visitor, letter: &DeadLetter) -> bool {
    visitor.show(letter).message.envelope.payload != letter.message.envelope.payload
}

/// The letter as it is, after the audit trail has recorded that somebody is about to see it.
async fn revealed(visitor: &Visitor, id: MessageId, reason: Option<String>) -> Result<DeadLetter, Failure> {
    let letter = visitor.caller.store.letter(id).await?;
    if is_masked(visitor, &letter) {
        let disclosure = Disclosure::of(Disclosed::Payload, id);
        visitor.caller.store.disclose(disclosure, visitor.actor(reason)).await?;
    }
    Ok(letter)
}

async fn page(visitor: &Visitor, letter: &DeadLetter, text: String) -> EditPage {
    let id = letter.id().to_string();
    EditPage {
        frame: Frame::new(visitor, Section::Letters, "Edit").await,
        short: short_id(&id),
        id,
        version: letter.record.version,
        asks: false,
        is_json: serde_json::from_str::<IgnoredAny>(&text).is_ok(),
        text,
        reason: String::new(),
        remark: None,
        diff: None,
        changed: String::new(),
        can_save: false,
    }
}

fn refuse(visitor: &Visitor, letter: &DeadLetter) -> Result<(), Failure> {
    if super::letter::may_edit(visitor, letter) {
        return Ok(());
    }
    let what = "only an editor may change a letter, and only while it is pending, in review or quarantined";
    Err(Problem::new(StatusCode::FORBIDDEN, "not_allowed", what).into())
}

/// `GET /dlq/{id}/edit`
pub(super) async fn show(visitor: Visitor, Path(id): Path<MessageId>) -> Result<Response, Failure> {
    let letter = visitor.caller.store.letter(id).await?;
    refuse(&visitor, &letter)?;
    let text = text_of(&letter)?;
    let view = if is_masked(&visitor, &letter) {
        EditPage { asks: true, ..page(&visitor, &letter, String::new()).await }
    } else {
        page(&visitor, &letter, text).await
    };
    render(&visitor, &view)
}

/// `POST /dlq/{id}/edit`: opens, compares or saves.
pub(super) async fn step(
    visitor: Visitor,
    Path(id): Path<MessageId>,
    Sent(fields): Sent,
) -> Result<Response, Failure> {
    let reason = fields.owned("reason");
    // Browsers send lines with CR LF; the payload gets what the person typed.
    let sent = fields.raw("payload").unwrap_or_default().replace("\r\n", "\n");
    if fields.get("step") == Some("save") {
        return save(&visitor, id, sent, reason, fields.need("version")?).await;
    }
    let letter = revealed(&visitor, id, reason.clone()).await?;
    refuse(&visitor, &letter)?;
    let old = text_of(&letter)?;
    if fields.get("step") == Some("open") {
        let view = EditPage { reason: reason.unwrap_or_default(), ..page(&visitor, &letter, old).await };
        return render(&visitor, &view);
    }
    let was_json = serde_json::from_str::<IgnoredAny>(&old).is_ok();
    let wrong = serde_json::from_str::<IgnoredAny>(&sent).err().filter(|_| was_json);
    let diff = compare(&old, &sent);
    let changed = diff.iter().filter(|line| line.is_deleted || line.is_inserted).count() as u64;
    let remark = match (&wrong, changed) {
        (Some(error), _) => Some(format!("It was JSON and is not any more: {error}.")),
        (None, 0) => Some("Nothing is different yet.".into()),
        (None, _) => None,
    };
    let view = EditPage {
        version: fields.need("version")?,
        reason: reason.unwrap_or_default(),
        remark,
        diff: Some(diff),
        changed: plural(changed, "line is different", "lines are different"),
        can_save: wrong.is_none() && changed > 0,
        ..page(&visitor, &letter, sent).await
    };
    render(&visitor, &view)
}

async fn save(
    visitor: &Visitor,
    id: MessageId,
    text: String,
    reason: Option<String>,
    version: u64,
) -> Result<Response, Failure> {
    let letter = visitor.caller.store.letter(id).await?;
    let content_type = letter.message.envelope.payload.content_type;
    let edit = Edit { payload: Some(Payload { bytes: text.into_bytes(), content_type }), headers: None };
    let act = Act::Edit(Box::new(edit));
    let request = ActRequest { id, act, actor: visitor.actor(reason), expected_version: Some(version) };
    only(visitor.caller.store.act(vec![request]).await?)?;
    Ok(see_other(&format!("/dlq/{id}")))
}

#[derive(Template)]
#[template(path = "diff.html")]
struct DiffPage {
    frame: Frame,
    id: String,
    short: String,
    versions: Vec<(u32, bool)>,
    from: String,
    diff: Vec<DiffLine>,
}

/// `GET /dlq/{id}/diff`: the content compared with an earlier one, both masked.
pub(super) async fn diff(
    visitor: Visitor,
    Path(id): Path<MessageId>,
    Asked(asked): Asked,
) -> Result<Response, Failure> {
    let revisions = visitor.show(&visitor.caller.store.revisions(id).await?);
    let from: u32 = asked.read("from")?.unwrap_or(0);
    let lossy = |bytes: &[u8]| pretty(&String::from_utf8_lossy(bytes));
    let old = revisions.iter().find(|revision| revision.n == from).map(|r| lossy(&r.content.payload.bytes));
    let new = revisions.last().map(|revision| lossy(&revision.content.payload.bytes));
    let missing =
        || Problem::new(StatusCode::NOT_FOUND, "no_such_revision", "there is no such version of the content");
    let (old, new) = old.zip(new).ok_or_else(missing)?;
    let text = id.to_string();
    let view = DiffPage {
        frame: Frame::new(&visitor, Section::Letters, "Compare").await,
        short: short_id(&text),
        id: text,
        versions: revisions.iter().map(|revision| (revision.n, revision.n == from)).collect(),
        from: if from == 0 { "the original".into() } else { format!("revision {from}") },
        diff: compare(&old, &new),
    };
    render(&visitor, &view)
}

/// JSON on lines, so that a small change is a small difference; anything else as it is.
fn pretty(text: &str) -> String {
    let shown = super::payload::show(text.as_bytes(), super::payload::Form::Tree);
    let laid_out = shown.text();
    if shown.left_out == 0 { laid_out } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_lines_stand_side_by_side() {
        let lines = compare("a\nb\nc\nd\n", "a\nB\nc\nd\ne\n");
        let shown: Vec<(&str, &str, bool, bool)> =
            lines.iter().map(|l| (l.old.as_str(), l.new.as_str(), l.is_deleted, l.is_inserted)).collect();
        assert_eq!(
            shown,
            [
                ("a", "a", false, false),
                ("b", "B", true, true),
                ("c", "c", false, false),
                ("d", "d", false, false),
                ("", "e", false, true)
            ]
        );
    }
}
