//! `dlq export` and `dlq import`: dead letters as NDJSON, whole. An export that did not finish never has the
//! name of one that did; an import never changes a letter that is here.

use super::super::{filter, narrowed};
use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, Done, ExitCode};
use crate::ndjson;
use crate::output::{Column, Look, Show, compact};
use crate::progress::Progress;
use clap::Args;
use redrive::core::dead_letter::DeadLetter;
use redrive::core::error::Refusal;
use redrive::core::ids::QueueName;
use redrive::core::limits;
use redrive::core::query::{PageRequest, Query};
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Letters read at a time: they carry payloads and stacks.
const PAGE: usize = 200;

/// The flags of `dlq export`.
#[derive(Args, Debug)]
pub(crate) struct ExportArgs {
    /// Which; everything when not said
    #[arg(value_name = "FILTER", default_value = "")]
    filter: String,
    /// Only this drawer
    #[arg(long, value_name = "DRAWER")]
    dlq: Option<QueueName>,
    /// A new file to write to [default: stdout]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// The flags of `dlq import`.
#[derive(Args, Debug)]
pub(crate) struct ImportArgs {
    /// An export; `-` is stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Skip bad lines, report them, and exit with 4 if there were any
    #[arg(long)]
    keep_going: bool,
    /// Why, for the audit trail
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

/// What an import did.
#[derive(Default, Serialize)]
struct Imported {
    imported: u64,
    skipped: u64,
    failed: u64,
}

impl Show for Imported {
    const COLUMNS: &'static [Column] =
        &[Column::number("imported"), Column::number("skipped"), Column::number("failed")];

    fn cells(&self, _: &Look) -> Vec<String> {
        vec![self.imported.to_string(), self.skipped.to_string(), self.failed.to_string()]
    }
}

/// Where an export goes.
enum Target {
    Stdout,
    File { file: std::fs::File, part: PathBuf, path: PathBuf },
}

impl Target {
    fn new(path: Option<PathBuf>) -> Result<Self, CliError> {
        let Some(path) = path else { return Ok(Self::Stdout) };
        if path.exists() {
            let what = format!("{} is there already; an export does not write over it", path.display());
            return Err(CliError::new(ExitCode::Refused, what).hint("name another file, or remove it first"));
        }
        let mut part = path.clone().into_os_string();
        part.push(".part");
        let part = PathBuf::from(part);
        let file = std::fs::File::create(&part).map_err(|error| unwritable(&part, &error))?;
        Ok(Self::File { file, part, path })
    }

    fn write(&mut self, app: &App, text: &str) -> Result<(), CliError> {
        match self {
            Self::Stdout => app.out.raw(text.as_bytes()),
            Self::File { file, part, .. } => {
                file.write_all(text.as_bytes()).map_err(|error| unwritable(part, &error))
            }
        }
    }

    /// Only a whole and durable file gets its name.
    fn finish(self) -> Result<(), CliError> {
        match self {
            Self::Stdout => Ok(()),
            Self::File { file, part, path } => {
                let kept = file.sync_all().and_then(|()| std::fs::rename(&part, &path));
                kept.map_err(|error| unwritable(&path, &error))
            }
        }
    }
}

fn unwritable(path: &Path, error: &std::io::Error) -> CliError {
    CliError::io(format_args!("write {}", path.display()), error)
}

/// Runs `dlq export`.
pub(crate) async fn export(app: &App, args: ExportArgs) -> Done {
    let filter = narrowed(filter(&args.filter)?, "dlq", args.dlq.as_ref())?;
    let mut store = app.open(Access::Existing, Hold::Long).await?;
    let mut target = Target::new(args.out)?;
    let mut progress = Progress::new(&app.out, "exporting", None);
    let (mut cursor, mut count) = (None, 0_u64);
    loop {
        let query = Query { filter: filter.clone(), page: PageRequest { limit: Some(PAGE), cursor } };
        let letters = store.ask(async |store| store.letters(query.clone()).await).await?;
        let lines: Result<Vec<String>, CliError> = letters.items.iter().map(compact).collect();
        let text: String = lines?.into_iter().map(|line| line + "\n").collect();
        target.write(app, &text)?;
        count += letters.items.len() as u64;
        progress.at(count, None);
        cursor = letters.next;
        if cursor.is_none() {
            break;
        }
    }
    drop(progress);
    target.finish()?;
    app.out.note(&format!("{count} dead letters exported"));
    Ok(ExitCode::Ok)
}

/// Runs `dlq import`.
pub(crate) async fn import(app: &App, args: ImportArgs) -> Done {
    let lines = ndjson::open(&args.file)?;
    let mut store = app.open(Access::Create, Hold::Long).await?;
    let actor = app.actor(args.reason);
    let mut report = Imported::default();
    let fed = ndjson::feed(app, lines, args.keep_going, letter, async |batch: Vec<DeadLetter>| {
        let results = store.ask(async |store| store.import(batch.clone(), actor.clone()).await).await?;
        let mut taken = Vec::with_capacity(results.len());
        for result in results {
            taken.push(match result {
                Ok(_) => {
                    report.imported += 1;
                    Ok(())
                }
                Err(Refusal::IdConflict { .. }) => {
                    report.skipped += 1;
                    Ok(())
                }
                Err(refusal) => Err(refusal.into()),
            });
        }
        Ok(taken)
    })
    .await;
    if let Ok(tally) = &fed {
        report.failed = tally.failed;
    }
    let some = report.imported + report.skipped > 0;
    if fed.is_ok() || some {
        app.out.one(&report)?;
    }
    Ok(fed?.code())
}

/// One line of an export.
fn letter(bytes: &[u8]) -> Result<DeadLetter, CliError> {
    let letter: DeadLetter = ndjson::json(bytes).map_err(CliError::usage)?;
    let size = letter.message.envelope.payload.bytes.len();
    if size > limits::PAYLOAD_BYTES_MAX {
        return Err(CliError::usage(format!(
            "payload: {size} bytes; at most {} are allowed",
            limits::PAYLOAD_BYTES_MAX
        )));
    }
    Ok(letter)
}
