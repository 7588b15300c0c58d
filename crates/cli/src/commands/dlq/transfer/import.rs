//! `dlq import`: imports letters from an export, or from other systems' files with a mapping. It never changes an
//! existing letter, so an interrupted import can be run again. It reports truncated or invalid lines and imports
//! nothing from them.

use super::mapping::Mapping;
use super::{directory, unreadable};
use crate::connect::{Access, App, Hold, Link};
use crate::exit_code::{CliError, CommandResult, ExitCode};
use crate::ndjson;
use crate::output::{Column, Show, ValueFormat, eprint_line};
use crate::progress::Progress;
use clap::{Args, ValueEnum};
use redrive::core::dead_letter::{Actor, DeadLetter};
use redrive::core::error::Refusal;
use redrive::core::ids::QueueName;
use redrive::core::json_input;
use redrive::core::limits;
use redrive::core::transfer::check_import;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The number of letters of a directory to import in one commit.
const BATCH: usize = 200;

/// The flags of `dlq import`.
#[derive(Args, Debug)]
pub(crate) struct ImportArgs {
    /// An export: a file, a directory with an index, or `-` for stdin; with a mapping, any JSON file or directory
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// A TOML file that maps other JSON to letters; see docs/cli.md
    #[arg(long, value_name = "FILE", conflicts_with = "from")]
    map: Option<PathBuf>,
    /// Use a built-in mapping
    #[arg(long, value_enum, value_name = "SYSTEM")]
    from: Option<System>,
    /// The queue of mapped letters, if the mapping names none
    #[arg(long, value_name = "QUEUE")]
    queue: Option<QueueName>,
    /// Skip and report invalid lines, and exit with 4 if there were any
    #[arg(long)]
    keep_going: bool,
    /// The reason, recorded in the audit trail
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

/// A system with a built-in mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum System {
    /// The item files of a MapReduce job's dead letter queue
    Mapreduce,
}

/// The result of an import.
#[derive(Default, Serialize)]
struct Imported {
    imported: u64,
    skipped: u64,
    failed: u64,
}

impl Show for Imported {
    const COLUMNS: &'static [Column] =
        &[Column::number("imported"), Column::number("skipped"), Column::number("failed")];

    fn cells(&self, _: &ValueFormat) -> Vec<String> {
        vec![self.imported.to_string(), self.skipped.to_string(), self.failed.to_string()]
    }
}

/// An import in progress.
struct Import<'a> {
    store: Link<'a>,
    actor: Actor,
    report: Imported,
}

impl Import<'_> {
    /// Imports letters in one commit; letters that exist already are skipped.
    async fn import_batch(&mut self, batch: Vec<DeadLetter>) -> Result<Vec<ndjson::LineResult>, CliError> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let actor = &self.actor;
        let results = self.store.call(async |store| store.import(batch.clone(), actor.clone()).await).await?;
        let mut line_results = Vec::with_capacity(results.len());
        for result in results {
            line_results.push(match result {
                Ok(_) => {
                    self.report.imported += 1;
                    Ok(())
                }
                Err(Refusal::IdConflict { .. }) => {
                    self.report.skipped += 1;
                    Ok(())
                }
                Err(refusal) => Err(refusal.into()),
            });
        }
        Ok(line_results)
    }

    /// Imports the letters of a list of files.
    async fn import_files(
        &mut self,
        app: &App,
        files: &[PathBuf],
        keep_going: bool,
        parse: impl Fn(&[u8]) -> Result<DeadLetter, CliError>,
    ) -> Result<(), CliError> {
        let mut progress = Progress::new(&app.out, "reading", Some(files.len() as u64));
        for (n, chunk) in files.chunks(BATCH).enumerate() {
            let (mut letters, mut names) = (Vec::new(), Vec::new());
            let mut failure = None;
            for path in chunk {
                match directory::read(path).and_then(|bytes| parse(&bytes)) {
                    Ok(letter) => {
                        letters.push(letter);
                        names.push(path);
                    }
                    Err(error) => self.failed(path, error, keep_going, &mut failure),
                }
                if failure.is_some() {
                    break;
                }
            }
            let results = self.import_batch(letters).await?;
            for (path, result) in names.into_iter().zip(results) {
                if let Err(error) = result {
                    self.failed(path, error, keep_going, &mut failure);
                }
            }
            if let Some(error) = failure {
                return Err(error.hint("letters read before it are kept; run the import again to continue"));
            }
            progress.at(((n + 1) * BATCH).min(files.len()) as u64, None);
        }
        Ok(())
    }

    fn failed(&mut self, path: &Path, error: CliError, keep_going: bool, failure: &mut Option<CliError>) {
        let what = format!("{}: {}", path.display(), error.what);
        if keep_going {
            self.report.failed += 1;
            eprint_line(&what);
        } else if failure.is_none() {
            *failure = Some(CliError { what, ..error });
        }
    }
}

/// Runs `dlq import`.
pub(crate) async fn import(app: &App, args: ImportArgs) -> CommandResult {
    let mapping = mapping(&args)?;
    let parse = |bytes: &[u8]| match &mapping {
        None => letter(bytes),
        Some(mapping) => mapping.letter(bytes, args.queue.as_ref(), &app.config),
    };
    // Find errors in the input before creating a store for it.
    let source = Source::open(&args.file, mapping.is_some())?;
    let store = app.open(Access::Create, Hold::Long).await?;
    let mut import = Import { store, actor: app.actor(args.reason.clone()), report: Imported::default() };
    let done = match source {
        Source::Lines(lines) => {
            let processed = ndjson::process(app, lines, args.keep_going, parse, async |batch| {
                import.import_batch(batch).await
            });
            processed.await.map(|counts| import.report.failed = counts.failed)
        }
        Source::Files(files) => import.import_files(app, &files, args.keep_going, parse).await,
    };
    let report = &import.report;
    if done.is_ok() || report.imported + report.skipped > 0 {
        app.out.one(report)?;
    }
    done?;
    Ok(if report.failed == 0 { ExitCode::Ok } else { ExitCode::Partial })
}

fn mapping(args: &ImportArgs) -> Result<Option<Mapping>, CliError> {
    let mapping = match (&args.map, args.from) {
        (Some(path), _) => {
            let text = std::fs::read_to_string(path).map_err(|error| unreadable(path, &error))?;
            let wrong = |what: String| CliError::usage(format!("mapping {}: {what}", path.display()));
            Some(Mapping::parse(&text).map_err(wrong)?)
        }
        (None, Some(System::Mapreduce)) => Some(Mapping::mapreduce()),
        (None, None) => None,
    };
    if mapping.is_none() && args.queue.is_some() {
        return Err(CliError::usage("--queue is for mapped letters; letters of an export have a queue"));
    }
    Ok(mapping)
}

/// The source of letters.
enum Source {
    Lines(ndjson::Lines),
    Files(Vec<PathBuf>),
}

impl Source {
    fn open(path: &Path, mapped: bool) -> Result<Self, CliError> {
        if path.is_dir() {
            return if mapped { items(path) } else { directory::files(path) }.map(Self::Files);
        }
        // With a mapping, a `.json` file is a single document, not lines.
        let single = mapped && path.extension().is_some_and(|e| e.eq_ignore_ascii_case("json"));
        if single {
            return Ok(Self::Files(vec![path.to_owned()]));
        }
        ndjson::open(path).map(Self::Lines)
    }
}

/// The JSON files of another system's directory, sorted by name; those in `items` if it has such a subdirectory.
fn items(path: &Path) -> Result<Vec<PathBuf>, CliError> {
    let place = if path.join("items").is_dir() { path.join("items") } else { path.to_owned() };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&place).map_err(|error| unreadable(&place, &error))? {
        let file = entry.map_err(|error| unreadable(&place, &error))?.path();
        let json = file.extension().is_some_and(|e| e.eq_ignore_ascii_case("json"));
        if json && file.file_name().is_some_and(|name| name != super::INDEX) {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

/// Parses one letter of an export.
fn letter(bytes: &[u8]) -> Result<DeadLetter, CliError> {
    let letter: DeadLetter = json_input::parse(bytes).map_err(CliError::usage)?;
    check_import(&letter).map_err(|refusal| {
        CliError::new(ExitCode::Refused, refusal.to_string()).hint("export with --full")
    })?;
    let size = letter.message.envelope.payload.bytes.len();
    if size > limits::PAYLOAD_BYTES_MAX {
        return Err(CliError::usage(format!(
            "payload: {size} bytes; at most {} are allowed",
            limits::PAYLOAD_BYTES_MAX
        )));
    }
    Ok(letter)
}
