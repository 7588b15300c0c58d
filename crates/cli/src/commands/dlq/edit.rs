//! `dlq edit`: other content for one letter, from an editor, a file or flags. The store is not held while a person
//! types; whoever was faster wins, and the other is shown what the letter says now. What was there is kept.

use super::super::enqueue::read_payload;
use super::super::only;
use super::diff::{changes, is_json};
use crate::confirm::confirm;
use crate::connect::{Access, App, Hold, Link};
use crate::exit_code::{CliError, Done, ExitCode};
use crate::given::Given;
use crate::output::{complain, escape, rules};
use clap::Args;
use redrive::core::dead_letter::{Act, ActRequest, DeadLetter};
use redrive::core::disclosure::{Disclosed, Disclosure};
use redrive::core::error::{Error, Refusal};
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
    /// The letter
    #[arg(value_name = "ID")]
    id: Given<MessageId>,
    /// The new payload, from a file; `-` is stdin [default: $VISUAL or $EDITOR is opened]
    #[arg(long, value_name = "FILE")]
    payload: Option<PathBuf>,
    /// Set a header; may be given several times
    #[arg(long, value_name = "NAME=VALUE", value_parser = header)]
    header: Vec<(String, String)>,
    /// Take a header away
    #[arg(long, value_name = "NAME")]
    remove_header: Vec<String>,
    /// What the payload is
    #[arg(long, value_name = "TYPE")]
    content_type: Option<String>,
    /// The content it had in this revision; 0 is the original
    #[arg(long, value_name = "N", conflicts_with_all = ["payload", "header", "remove_header", "content_type"])]
    restore: Option<u32>,
    /// Send the letter back to work afterwards
    #[arg(long)]
    retry: bool,
    /// Only if the letter is still at this version
    #[arg(long, value_name = "VERSION")]
    if_version: Option<u64>,
    /// Let JSON become something that is no JSON
    #[arg(long)]
    unchecked: bool,
    /// Why, for the letter and the audit trail
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Only show what would change
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long, short)]
    yes: bool,
}

/// `name=value`.
fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        Some(_) | None => Err("write NAME=VALUE".into()),
    }
}

impl EditArgs {
    /// Whether an editor is to be opened: nothing else says what the content is to be.
    fn asks_a_person(&self) -> bool {
        let said = self.payload.is_some() || self.content_type.is_some() || self.restore.is_some();
        !said && self.header.is_empty() && self.remove_header.is_empty()
    }

    fn request(&self, app: &App, id: MessageId, act: Act, version: u64) -> ActRequest {
        let actor = app.actor(self.reason.clone());
        ActRequest { id, act, actor, expected_version: Some(version) }
    }
}

/// Runs `dlq edit`.
pub(crate) async fn run(app: &App, args: EditArgs) -> Done {
    let id = args.id.letter(app).await?;
    let store = app.open(Access::Existing, Hold::Moment).await?;
    let letter = store.letter(id).await?;
    if let Some(expected) = args.if_version.filter(|expected| *expected != letter.file.version) {
        let actual = letter.file.version;
        return Err(Refusal::VersionConflict { id, expected, actual }.into());
    }
    if letter.file.erased.is_some() {
        return Err(Refusal::Erased { id, act: "edit".into() }.into());
    }
    let before = Content::of(&letter.message.envelope);
    if args.asks_a_person() {
        // Whoever edits it sees all of it: first it is on record, then it is shown.
        let shown = Disclosure::of(Disclosed::Payload, id);
        store.disclose(shown, app.actor(args.reason.clone())).await?;
    }
    let rules = if args.asks_a_person() { &Rules::off() } else { rules() };
    let (after, draft) = match args.restore {
        Some(n) => {
            let content = restored(&store, id, n).await?;
            drop(store);
            (content, None)
        }
        None => {
            // Nobody waits for this directory while somebody types.
            drop(store);
            written(&args, &before).await?
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
        complain(diff.trim_end());
    }
    confirm(&format!("change dead letter {id} like this?"), args.yes).await.map_err(kept)?;
    let act = match args.restore {
        Some(n) => Act::Restore { n },
        None => Act::Edit(Box::new(edit(&before, after))),
    };
    let store = app.open(Access::Existing, Hold::Moment).await.map_err(kept)?;
    let request = args.request(app, id, act, letter.file.version);
    let state = match store.act(vec![request]).await.map(|each| each.into_iter().next()) {
        Ok(Some(Err(conflict @ Refusal::VersionConflict { .. }))) => {
            return Err(kept(stale(&store, &letter, conflict, rules).await));
        }
        Ok(Some(result)) => result.map_err(|refusal| kept(refusal.into()))?,
        Ok(None) => return Err(kept(CliError::new(ExitCode::Error, "the store gave no answer"))),
        Err(error) => return Err(kept(error.into())),
    };
    let state = if args.retry { retried(app, &store, &args, state).await? } else { state };
    app.out.one(&state)?;
    Ok(ExitCode::Ok)
}

/// What an edit has to say: only what is different.
fn edit(before: &Content, after: Content) -> Edit {
    Edit {
        payload: Some(after.payload).filter(|payload| *payload != before.payload),
        headers: Some(after.headers).filter(|headers| *headers != before.headers),
    }
}

/// Sends the letter back as it was just edited, and not if somebody changed it since.
async fn retried(
    app: &App,
    store: &Link<'_>,
    args: &EditArgs,
    edited: LetterState,
) -> Result<LetterState, CliError> {
    let request = args.request(app, edited.id, Act::retry(), edited.version);
    only(store.act(vec![request]).await?).map_err(|error| {
        let what = format!(
            "the letter was edited and is at version {}, but not sent back: {}",
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

/// Somebody else was faster: shows what they made of it.
async fn stale(store: &Link<'_>, seen: &DeadLetter, conflict: Refusal, rules: &Rules) -> CliError {
    let error = CliError::from(conflict);
    let now = match store.letter(seen.id()).await {
        Ok(now) => now,
        Err(Error::Refused(refusal)) => return refusal.into(),
        Err(Error::Store(_)) => return error,
    };
    let who = now.file.edits.last().filter(|mark| mark.n > seen.file.revision());
    let who = who.map(|mark| format!(", edited by {} at {}", mark.by, mark.at)).unwrap_or_default();
    complain(&format!("the letter is {} now, at version {}{who}", now.file.status, now.file.version));
    let (before, after) = (Content::of(&seen.message.envelope), Content::of(&now.message.envelope));
    let diff = changes(&before, &after, ("as you saw it", "as it is now"), rules);
    if !diff.is_empty() {
        complain(diff.trim_end());
    }
    error
}

/// Refuses to turn JSON into something that is none.
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
            .hint("correct it, or say --unchecked if that is meant")),
    }
}

/// The content that the flags or a person ask for, and the file with a person's text.
async fn written(args: &EditArgs, before: &Content) -> Result<(Content, Option<Draft>), CliError> {
    let mut after = before.clone();
    let mut draft = None;
    if args.asks_a_person() {
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

/// A payload in a file of its own, readable by nobody else, while a person edits it. It goes when it is not needed
/// any more, unless the text in it could not be used.
struct Draft {
    path: PathBuf,
    kept: std::cell::Cell<bool>,
}

impl Draft {
    fn new(content: &Content) -> Result<Self, CliError> {
        use std::os::unix::fs::OpenOptionsExt as _;
        let Ok(text) = std::str::from_utf8(&content.payload.bytes) else {
            let what = "the payload is not text, so no editor is opened on it";
            return Err(CliError::new(ExitCode::Refused, what).hint("give the new one with --payload FILE"));
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

    /// Opens the editor and gives the text it left. Most editors end a text with a line end; one that was not there
    /// before is taken off again.
    async fn edited(&self, before: &[u8]) -> Result<Vec<u8>, CliError> {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.trim().is_empty());
        let Some(editor) = set("VISUAL").or_else(|| set("EDITOR")) else {
            let what = "neither VISUAL nor EDITOR says which editor to open";
            return Err(CliError::usage(what).hint("EDITOR=vi redrive dlq edit …, or --payload FILE"));
        };
        // Editors are set with arguments, as for git and crontab: the shell takes them apart.
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

    /// Leaves the file where it is.
    fn keep(&self) -> &Path {
        self.kept.set(true);
        &self.path
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.kept.get() {
            // It is private and in the temporary directory; whoever cleans that up takes it too.
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
    fn an_edit_says_only_what_is_different() {
        let before = content("a", "t");
        let mut after = before.clone();
        after.headers.insert("h".into(), "v".into());
        let said = edit(&before, after.clone());
        assert_eq!((said.payload, said.headers), (None, Some(after.headers)));
        assert_eq!(edit(&before, before.clone()), Edit::default());
    }

    #[test]
    fn headers_are_names_and_values() {
        assert_eq!(header("a=b=c"), Ok(("a".into(), "b=c".into())));
        assert_eq!(header("a="), Ok(("a".into(), String::new())));
        assert!(header("=a").is_err() && header("a").is_err());
    }
}
