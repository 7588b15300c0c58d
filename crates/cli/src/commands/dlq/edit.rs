//! `dlq edit`: gives one letter new content from an editor, a file or flags. The store is not held while a person
//! types. If somebody else changes the letter meanwhile, the edit is refused and the changes are shown. Earlier
//! content is kept.

use super::super::enqueue::read_payload;
use super::super::only;
use super::diff::changes;
use crate::confirm::confirm;
use crate::connect::{Access, App, Hold, Link};
use crate::exit_code::{CliError, CommandResult, ExitCode};
use crate::id_arg::IdArg;
use crate::output::{eprint_line, escape, rules};
use clap::Args;
use redrive::core::content_diff::is_json;
use redrive::core::dead_letter::{Act, ActRequest, DeadLetter};
use redrive::core::disclosure::{Disclosed, Disclosure};
use redrive::core::error::{CallError, Refusal};
use redrive::core::ids::MessageId;
use redrive::core::masking::Rules;
use redrive::core::revision::{Content, Edit};
use redrive::core::store::LetterState;
use std::io::Write as _;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  EDITOR='code --wait' redrive dlq edit 01981c3e-7d5a-7cc0-8b1f-3a52c0ffee00 --retry
  redrive dlq edit ID --payload fixed.json --reason 'the address had no street' --yes
  redrive dlq edit ID --header tenant=acme --remove-header debug
  redrive dlq edit ID --restore 0";

/// The flags of `dlq edit`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct EditArgs {
    /// The id of the message, or its last digits
    #[arg(value_name = "ID")]
    id: IdArg<MessageId>,
    /// A file with the new payload; `-` for stdin [default: open $VISUAL or $EDITOR]
    #[arg(long, value_name = "FILE")]
    payload: Option<PathBuf>,
    /// Set a header; repeatable
    #[arg(long, value_name = "NAME=VALUE", value_parser = header)]
    header: Vec<(String, String)>,
    /// Remove a header; repeatable
    #[arg(long, value_name = "NAME")]
    remove_header: Vec<String>,
    /// The content type of the payload
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// Restore the content of this revision; 0 is the original
    #[arg(long, value_name = "N", conflicts_with_all = ["payload", "header", "remove_header", "content_type"])]
    restore: Option<u32>,
    /// Send the letter back to work afterwards
    #[arg(long)]
    retry: bool,
    /// Only if the letter is still at this version
    #[arg(long, value_name = "VERSION")]
    if_version: Option<u64>,
    /// Allow a JSON payload to become invalid JSON
    #[arg(long)]
    unchecked: bool,
    /// The reason, recorded on the letter and in the audit trail
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Only show what would change
    #[arg(long)]
    dry_run: bool,
    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
}

/// Parses `NAME=VALUE`.
fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        Some(_) | None => Err("write NAME=VALUE".into()),
    }
}

impl EditArgs {
    /// Whether to open an editor, because no flag sets the content.
    fn needs_editor(&self) -> bool {
        let has_content_flag =
            self.payload.is_some() || self.content_type.is_some() || self.restore.is_some();
        !has_content_flag && self.header.is_empty() && self.remove_header.is_empty()
    }

    fn request(&self, app: &App, id: MessageId, act: Act, version: u64) -> ActRequest {
        let actor = app.actor(self.reason.clone());
        ActRequest { id, act, actor, expected_version: Some(version) }
    }
}

/// Runs `dlq edit`.
pub(crate) async fn run(app: &App, args: EditArgs) -> CommandResult {
    let id = args.id.letter(app).await?;
    let store = app.open(Access::Existing, Hold::Moment).await?;
    let mut letter = store.letter(id).await?;
    if let Some(expected) = args.if_version.filter(|expected| *expected != letter.record.version) {
        let actual = letter.record.version;
        return Err(Refusal::VersionConflict { id, expected, actual }.into());
    }
    if letter.record.erased.is_some() {
        return Err(Refusal::Erased { id, act: "edit".into() }.into());
    }
    if args.needs_editor() || app.server().is_some() {
        // An editor shows the whole payload, so record the disclosure before opening it. A server masks what it has not
        // disclosed, and what was masked must not be written back.
        let shown = Disclosure::of(Disclosed::Payload, id);
        store.disclose(shown, app.actor(args.reason.clone())).await?;
        letter = store.letter(id).await?;
    }
    let before = Content::of(&letter.message.envelope);
    let rules = if args.needs_editor() { &Rules::off() } else { rules() };
    let (after, draft) = match args.restore {
        Some(n) => {
            let content = restored(&store, id, n).await?;
            drop(store);
            (content, None)
        }
        None => {
            // Do not hold the data directory while a person types.
            drop(store);
            new_content(&args, &before).await?
        }
    };
    let kept = |error: CliError| match &draft {
        Some(draft) => {
            let path = draft.keep().display();
            error.hint(format!("your text is kept: redrive dlq edit {id} --payload {path}"))
        }
        None => error,
    };
    if !args.unchecked {
        check_json(&before, &after).map_err(kept)?;
    }
    let diff = changes(&before, &after, ("as it is", "as it would be"), rules);
    if diff.is_empty() {
        app.out.note("nothing changed");
        return Ok(ExitCode::Ok);
    }
    if args.dry_run {
        app.out.raw(escape::lines(&diff).as_bytes())?;
        return Ok(ExitCode::Ok);
    }
    if !(app.out.quiet && args.yes) {
        eprint_line(diff.trim_end());
    }
    confirm(&format!("change dead letter {id} like this?"), args.yes).await.map_err(kept)?;
    let act = match args.restore {
        Some(n) => Act::Restore { n },
        None => Act::Edit(Box::new(edit(&before, after))),
    };
    let store = app.open(Access::Existing, Hold::Moment).await.map_err(kept)?;
    let request = args.request(app, id, act, letter.record.version);
    let state = match store.act(vec![request]).await.map(|each| each.into_iter().next()) {
        Ok(Some(Err(conflict @ Refusal::VersionConflict { .. }))) => {
            return Err(kept(show_concurrent_changes(&store, &letter, conflict, rules).await));
        }
        Ok(Some(result)) => result.map_err(|refusal| kept(refusal.into()))?,
        Ok(None) => return Err(kept(CliError::new(ExitCode::Error, "the store returned no result"))),
        Err(error) => return Err(kept(error.into())),
    };
    let state = if args.retry { retried(app, &store, &args, state).await? } else { state };
    app.out.one(&state)?;
    Ok(ExitCode::Ok)
}

/// An edit with only the parts that differ.
fn edit(before: &Content, after: Content) -> Edit {
    Edit {
        payload: Some(after.payload).filter(|payload| *payload != before.payload),
        headers: Some(after.headers).filter(|headers| *headers != before.headers),
    }
}

/// Sends the letter back to work, unless somebody changed it since the edit.
async fn retried(
    app: &App,
    store: &Link<'_>,
    args: &EditArgs,
    edited: LetterState,
) -> Result<LetterState, CliError> {
    let request = args.request(app, edited.id, Act::retry(), edited.version);
    only(store.act(vec![request]).await?).map_err(|error| {
        let what = format!(
            "the letter was edited and is at version {}, but was not sent back: {}",
            edited.version, error.what
        );
        CliError { what, ..error }
    })
}

async fn restored(store: &Link<'_>, id: MessageId, n: u32) -> Result<Content, CliError> {
    let found = store.revisions(id).await?.into_iter().find(|revision| revision.n == n);
    found.map(|revision| revision.content).ok_or_else(|| {
        let what = format!("dead letter {id} has no revision {n}");
        CliError::new(ExitCode::NotFound, what).hint(format!("redrive dlq diff {id} --list"))
    })
}

/// Shows what another user changed in the meantime.
async fn show_concurrent_changes(
    store: &Link<'_>,
    seen: &DeadLetter,
    conflict: Refusal,
    rules: &Rules,
) -> CliError {
    let error = CliError::from(conflict);
    let now = match store.letter(seen.id()).await {
        Ok(now) => now,
        Err(CallError::Refused(refusal)) => return refusal.into(),
        Err(CallError::Store(_)) => return error,
    };
    let who = now.record.edits.last().filter(|mark| mark.n > seen.record.revision());
    let who = who.map(|mark| format!(", edited by {} at {}", mark.by, mark.at)).unwrap_or_default();
    eprint_line(&format!("the letter is {} now, at version {}{who}", now.record.status, now.record.version));
    let (before, after) = (Content::of(&seen.message.envelope), Content::of(&now.message.envelope));
    let diff = changes(&before, &after, ("as you saw it", "as it is now"), rules);
    if !diff.is_empty() {
        eprint_line(diff.trim_end());
    }
    error
}

/// Refuses to turn a JSON payload into invalid JSON.
fn check_json(before: &Content, after: &Content) -> Result<(), CliError> {
    let kind = after.payload.content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let text = |content: &Content| String::from_utf8(content.payload.bytes.clone());
    let was = text(before).is_ok_and(|text| is_json(&text));
    if !was && kind != "application/json" && !kind.ends_with("+json") {
        return Ok(());
    }
    let mistake = match text(after) {
        Ok(text) => serde_json::from_str::<serde::de::IgnoredAny>(&text).err().map(|error| error.to_string()),
        Err(_) => Some("it is not UTF-8".to_owned()),
    };
    match mistake {
        None => Ok(()),
        Some(why) => Err(CliError::usage(format!("the payload is not JSON any more: {why}"))
            .hint("correct it, or use --unchecked if you mean that")),
    }
}

/// The content from the flags or from the editor, and the editor's file.
async fn new_content(args: &EditArgs, before: &Content) -> Result<(Content, Option<Draft>), CliError> {
    let mut after = before.clone();
    let mut draft = None;
    if args.needs_editor() {
        let file = Draft::new(before)?;
        after.payload.bytes = file.edited(&before.payload.bytes).await?;
        draft = Some(file);
    } else if let Some(path) = &args.payload {
        after.payload.bytes = read_payload(path).await?;
    }
    if let Some(content_type) = &args.content_type {
        after.payload.content_type.clone_from(content_type);
    }
    for name in &args.remove_header {
        after.headers.remove(name);
    }
    after.headers.extend(args.header.iter().cloned());
    Ok((after, draft))
}

/// A private temporary file for the editor. It is removed when it is no longer needed, unless its text could not be
/// used.
struct Draft {
    path: PathBuf,
    kept: std::cell::Cell<bool>,
}

impl Draft {
    fn new(content: &Content) -> Result<Self, CliError> {
        use std::os::unix::fs::OpenOptionsExt as _;
        let Ok(text) = std::str::from_utf8(&content.payload.bytes) else {
            let what = "the payload is not text, so it cannot be opened in an editor";
            return Err(CliError::new(ExitCode::Refused, what).hint("set a new payload with --payload FILE"));
        };
        let ending = if is_json(text) { "json" } else { "txt" };
        let path = std::env::temp_dir().join(format!("redrive-edit-{}.{ending}", redrive::new_id()));
        let unwritable =
            |error: &std::io::Error| CliError::io(format_args!("write {}", path.display()), error);
        let mut options = std::fs::OpenOptions::new();
        let mut file =
            options.write(true).create_new(true).mode(0o600).open(&path).map_err(|e| unwritable(&e))?;
        let draft = Self { path: path.clone(), kept: std::cell::Cell::new(false) };
        file.write_all(text.as_bytes()).map_err(|e| unwritable(&e))?;
        Ok(draft)
    }

    /// Opens the editor and returns the text it saved. Many editors add a final line break; if there was none before,
    /// it is removed again.
    async fn edited(&self, before: &[u8]) -> Result<Vec<u8>, CliError> {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        let Some(editor) = set("VISUAL").or_else(|| set("EDITOR")) else {
            let what = "neither VISUAL nor EDITOR names an editor to open";
            return Err(CliError::usage(what).hint("set EDITOR, such as EDITOR=vi, or use --payload FILE"));
        };
        // The variable may contain arguments, as for git and crontab, so let the shell split it.
        let command = format!("{editor} \"$@\"");
        let ran = std::process::Command::new("sh").args(["-c", &command, "redrive"]).arg(&self.path).status();
        let status = ran.map_err(|error| CliError::io(format_args!("run the editor {editor:?}"), &error))?;
        if !status.success() {
            let what = format!("the editor {editor:?} ended with {status}; nothing was changed");
            return Err(CliError::new(ExitCode::Error, what));
        }
        let mut bytes = read_payload(&self.path).await.map_err(|error| {
            let path = self.keep().display();
            error.hint(format!("your text is kept: {path}"))
        })?;
        if bytes.last() == Some(&b'\n') && before.last() != Some(&b'\n') {
            bytes.pop();
        }
        Ok(bytes)
    }

    /// Keeps the file and returns its path.
    fn keep(&self) -> &Path {
        self.kept.set(true);
        &self.path
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.kept.get() {
            // If this fails, the file stays in the temporary directory, where only its owner can read it.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redrive::core::message::Payload;

    fn content(text: &str, content_type: &str) -> Content {
        let payload = Payload { bytes: text.into(), content_type: content_type.into() };
        Content { payload, ..Content::default() }
    }

    #[test]
    fn json_stays_json() {
        let ok = |before: &Content, after: &Content| check_json(before, after).is_ok();
        assert!(ok(&content("{}", ""), &content("[1]", "")));
        assert!(!ok(&content("{}", ""), &content("[1", "")));
        assert!(!ok(&content("x", ""), &content("y", "application/json; charset=utf-8")));
        assert!(!ok(&content("x", ""), &content("y", "application/cloudevents+JSON")));
        assert!(ok(&content("x", "text/plain"), &content("y", "text/plain")));
    }

    #[test]
    fn an_edit_has_only_the_parts_that_differ() {
        let before = content("a", "t");
        let mut after = before.clone();
        after.headers.insert("h".into(), "v".into());
        let change = edit(&before, after.clone());
        assert_eq!((change.payload, change.headers), (None, Some(after.headers)));
        assert_eq!(edit(&before, before.clone()), Edit::default());
    }

    #[test]
    fn headers_are_names_and_values() {
        assert_eq!(header("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert_eq!(header("a="), Ok(("a".into(), String::new())));
        assert!(header("=a").is_err() && header("a").is_err());
    }
}
