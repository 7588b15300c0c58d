//! `dlq patch`: applies the same change to the payload of many letters. It first tries the patch on every letter with
//! the function that the store uses, and reports each letter that the patch does not fit. Only the store changes
//! letters, with an operation.

use super::act::{self, Selection, with_allowed_status};
use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, CommandResult, ExitCode};
use crate::input;
use crate::output::{Column, Show, ValueFormat, eprint_line};
use crate::progress::Progress;
use clap::Args;
use redrive::core::dead_letter::{Act, ActRequest, DeadLetter};
use redrive::core::ids::MessageId;
use redrive::core::limits;
use redrive::core::patch::Patch;
use redrive::core::query::{PageRequest, Query};
use redrive::core::time::Time;
use serde::Serialize;
use std::path::Path;

const EXAMPLES: &str = "\
Examples:
  redrive dlq patch --filter 'queue:mail payload.to:*@exmaple.com' --patch fix.json --dry-run
  redrive dlq patch --filter queue:mail --reason 'new host' --yes \\
    --patch '[{\"op\":\"replace\",\"path\":\"/host\",\"value\":\"b.example\"}]'
  redrive dlq edit ID --restore 0   # undo it, one letter at a time";

/// The number of letters to read at a time, small because they carry payloads.
const PAGE: usize = 200;
/// The number of letters that do not fit to show before asking for confirmation.
const SHOWN: usize = 20;

/// The flags of `dlq patch`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct PatchArgs {
    /// The patch: a JSON list of steps, a file that contains one, or - for stdin
    #[arg(long, value_name = "FILE|JSON", required_unless_present = "resume")]
    patch: Option<String>,
    #[command(flatten)]
    which: Selection,
}

/// A letter that the patch does not fit.
#[derive(Serialize)]
struct Misfit {
    id: MessageId,
    why: String,
}

impl Show for Misfit {
    const COLUMNS: &'static [Column] = &[Column::id("id"), Column::main("why")];

    fn cells(&self, _: &ValueFormat) -> Vec<String> {
        vec![self.id.to_string(), self.why.clone()]
    }
}

/// The result of trying the patch on all letters.
#[derive(Default)]
struct Trial {
    fits: u64,
    misfits: Vec<Misfit>,
}

/// Runs `dlq patch`.
pub(crate) async fn run(app: &App, args: PatchArgs) -> CommandResult {
    let which = args.which;
    let patch = match (&args.patch, which.is_resume()) {
        (Some(text), _) => read(text).await?,
        // The operation has its own patch; this placeholder only identifies the act.
        (None, true) => parse(r#"[{"op":"test","path":"","value":null}]"#)?,
        (None, false) => return Err(CliError::usage("--patch is missing; use --patch FILE or --patch JSON")),
    };
    let act = Act::Patch(Box::new(patch));
    if which.is_resume() {
        return act::run(app, which, |_| act).await;
    }
    let trial = try_out(app, &which, &act).await?;
    let (fits, misfits) = (trial.fits, trial.misfits.len());
    let code = if misfits > 0 { ExitCode::Partial } else { ExitCode::Ok };
    if which.is_dry() {
        app.out.all(&trial.misfits)?;
        app.out.note(&format!("the patch fits {fits} dead letters and does not fit {misfits}"));
        return Ok(code);
    }
    if misfits > 0 && !which.is_one() {
        eprint_line(&format!("the patch does not fit {misfits} of {} dead letters:", fits + misfits as u64));
        app.out.sample(trial.misfits.get(..SHOWN.min(misfits)).unwrap_or_default());
        if misfits > SHOWN {
            eprint_line(&format!("and {} more; use --dry-run to list all", misfits - SHOWN));
        }
    }
    act::run(app, which, |_| act).await
}

/// Tries the patch on every selected letter without changing any.
async fn try_out(app: &App, which: &Selection, act: &Act) -> Result<Trial, CliError> {
    let matching = which.matching(app).await?;
    let ids = which.ids(app).await?;
    let mut store = app.open(Access::Existing, Hold::Long).await?;
    let now = store.info().await?.now;
    let mut trial = Trial::default();
    for id in ids.iter().copied() {
        trial.note(app, act, &store.call(async |store| store.letter(id).await).await?, now);
    }
    if !ids.is_empty() {
        return Ok(trial);
    }
    let filter = with_allowed_status(act, &matching.unwrap_or_default())?;
    let mut progress = Progress::new(&app.out, "trying", None);
    let mut cursor = None;
    loop {
        let page = PageRequest { limit: Some(PAGE), cursor };
        let query = Query { filter: filter.clone(), page };
        let letters = store.call(async |store| store.letters(query.clone()).await).await?;
        for letter in &letters.items {
            trial.note(app, act, letter, now);
        }
        progress.at(trial.fits + trial.misfits.len() as u64, None);
        cursor = letters.next;
        if cursor.is_none() {
            return Ok(trial);
        }
    }
}

impl Trial {
    fn note(&mut self, app: &App, act: &Act, letter: &DeadLetter, now: Time) {
        let id = letter.id();
        let request = ActRequest { id, act: act.clone(), actor: app.actor(None), expected_version: None };
        match letter.record.edit(&request, &letter.message.envelope, None, now) {
            Ok(_) => self.fits += 1,
            Err(refusal) => self.misfits.push(Misfit { id, why: refusal.to_string() }),
        }
    }
}

/// Reads a patch from the command line, a file or stdin.
async fn read(text: &str) -> Result<Patch, CliError> {
    if text.trim_start().starts_with('[') {
        return parse(text);
    }
    let failed = |error| CliError::io(format_args!("read the patch {text}"), &error);
    let bytes = input::bytes(Path::new(text), limits::PATCH_BYTES_MAX as u64 + 1).await.map_err(failed)?;
    let content = String::from_utf8(bytes).map_err(|_| CliError::usage("--patch: not UTF-8"))?;
    parse(&content)
}

fn parse(text: &str) -> Result<Patch, CliError> {
    Patch::parse(text).map_err(|error| CliError::usage(format!("--patch: {error}")))
}
