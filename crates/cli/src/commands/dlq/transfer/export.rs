//! `dlq export`: writes matching letters, oldest death first, as NDJSON, as CSV or as a directory of files. They are
//! masked unless `--full` is given, which is recorded in the audit trail before the first letter is read. An
//! unfinished export never has the name of a finished one.

use super::super::super::narrowed;
use super::directory::Directory;
use super::{create, csv_rows, unwritable};
use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, CommandResult, ExitCode};
use crate::id_arg;
use crate::output::{Format, compact, rules};
use crate::progress::Progress;
use clap::{Args, ValueEnum};
use redrive::core::dead_letter::{Act, DeadLetter};
use redrive::core::disclosure::{Disclosed, Disclosure};
use redrive::core::filter::Filter;
use redrive::core::ids::QueueName;
use redrive::core::operation::PreviewRequest;
use redrive::core::query::{PageRequest, Query};
use redrive::core::short_id::IdKind;
use std::io::Write;
use std::path::PathBuf;

/// The number of letters to read at a time, small because they carry payloads and stacks.
const PAGE: usize = 200;

/// The flags of `dlq export`.
#[derive(Args, Debug)]
pub(crate) struct ExportArgs {
    /// A filter; exports everything by default
    #[arg(value_name = "FILTER", default_value = "")]
    filter: String,
    /// Only letters of this dead letter queue
    #[arg(long, value_name = "DLQ")]
    dlq: Option<QueueName>,
    /// A new file to write to [default: stdout]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// A new directory to write one JSON file per letter to, with an index
    #[arg(long, value_name = "DIR", conflicts_with_all = ["out", "format"])]
    dir: Option<PathBuf>,
    /// The format of the export [default: ndjson, or csv with -o csv]
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Option<ExportFormat>,
    /// Include secrets, so that the export can be imported; this is recorded in the audit trail
    #[arg(long)]
    full: bool,
    /// The reason, recorded in the audit trail
    #[arg(long, value_name = "TEXT", requires = "full")]
    reason: Option<String>,
}

/// The format of an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExportFormat {
    /// One complete letter per line as JSON
    Ndjson,
    /// One letter per row, safe for spreadsheets
    Csv,
}

/// The destination of an export.
enum Target {
    Stdout,
    File { file: std::fs::File, part: PathBuf, path: PathBuf },
    Directory(Directory),
}

impl Target {
    fn new(args: &ExportArgs) -> Result<Self, CliError> {
        if let Some(dir) = &args.dir {
            return Directory::create(dir.clone(), !args.full && rules().is_on()).map(Self::Directory);
        }
        let Some(path) = args.out.clone() else { return Ok(Self::Stdout) };
        if path.exists() {
            let what = format!("{} is there already; an export never overwrites a file", path.display());
            return Err(CliError::new(ExitCode::Refused, what).hint("name another file, or remove it first"));
        }
        let mut part = path.clone().into_os_string();
        part.push(".part");
        let part = PathBuf::from(part);
        let file = create(&part)?;
        Ok(Self::File { file, part, path })
    }

    fn write(&mut self, app: &App, letters: &[DeadLetter], text: &str) -> Result<(), CliError> {
        match self {
            Self::Stdout => app.out.raw(text.as_bytes()),
            Self::File { file, part, .. } => {
                file.write_all(text.as_bytes()).map_err(|error| unwritable(part, &error))
            }
            Self::Directory(directory) => letters.iter().try_for_each(|letter| directory.add(letter)),
        }
    }

    /// Gives the file its final name once it is complete and synced.
    fn finish(self) -> Result<(), CliError> {
        match self {
            Self::Stdout => Ok(()),
            Self::File { file, part, path } => {
                let kept = file.sync_all().and_then(|()| std::fs::rename(&part, &path));
                kept.map_err(|error| unwritable(&path, &error))
            }
            Self::Directory(directory) => directory.finish(),
        }
    }
}

/// Runs `dlq export`.
pub(crate) async fn export(app: &App, args: ExportArgs) -> CommandResult {
    let filter = id_arg::filter(app, &args.filter, IdKind::Letter).await?;
    let filter = narrowed(filter, "dlq", args.dlq.as_ref())?;
    let mut store = app.open(Access::Existing, Hold::Long).await?;
    let csv = match (args.format, app.out.format) {
        (Some(format_flag), _) => format_flag == ExportFormat::Csv,
        (None, format) => format == Format::Csv && args.dir.is_none(),
    };
    let mut target = Target::new(&args)?;
    let total = store.call(async |store| count(store, &filter).await).await?;
    if args.full {
        let shown = Disclosure::matching(Disclosed::Export, filter.clone(), total);
        store.disclose(shown, app.actor(args.reason.clone())).await?;
    }
    let mut progress = Progress::new(&app.out, "exporting", Some(total));
    let (mut cursor, mut count) = (None, 0_u64);
    if csv {
        target.write(app, &[], &csv_rows::header()?)?;
    }
    loop {
        let query = Query { filter: filter.clone(), page: PageRequest { limit: Some(PAGE), cursor } };
        let page = store.call(async |store| store.export(query.clone()).await).await?;
        for what in &page.damaged {
            app.out.note(&format!("not exported because it is damaged: {what}"));
        }
        let letters: Vec<DeadLetter> = if args.full {
            page.items
        } else {
            page.items.iter().map(|letter| rules().letter(letter)).collect()
        };
        let text = if csv { csv_rows::rows(&letters, app.out.terminal)? } else { lines(&letters)? };
        target.write(app, &letters, &text)?;
        count += letters.len() as u64;
        progress.at(count, None);
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
    }
    drop(progress);
    target.finish()?;
    app.out.note(&format!("{count} dead letters exported{}", if args.full { "" } else { masked_note() }));
    Ok(ExitCode::Ok)
}

fn masked_note() -> &'static str {
    if rules().is_on() { ", masked; use --full for an export that can be imported" } else { "" }
}

async fn count(
    store: &dyn redrive::core::store::Store,
    filter: &Filter,
) -> redrive::core::error::StoreResult<u64> {
    // A note is allowed in every status, so this counts all letters.
    Ok(store.preview(PreviewRequest::new(Act::Note, filter.clone(), 0)).await?.count)
}

fn lines(letters: &[DeadLetter]) -> Result<String, CliError> {
    let lines: Result<Vec<String>, CliError> = letters.iter().map(compact).collect();
    Ok(lines?.into_iter().map(|line| line + "\n").collect())
}
