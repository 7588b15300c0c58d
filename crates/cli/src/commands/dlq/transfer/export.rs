//! `dlq export`: letters that match, oldest death first, as lines of JSON, as a table for spreadsheets or as a
//! directory of files. Masked unless `--full` is given, which is on record before the first letter is read. An
//! export that did not finish never has the name of one that did.

use super::super::super::narrowed;
use super::directory::Directory;
use super::{create, sheet, unwritable};
use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, Done, ExitCode};
use crate::given;
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
    /// A new directory to write one JSON file per letter to, with an index
    #[arg(long, value_name = "DIR", conflicts_with_all = ["out", "format"])]
    dir: Option<PathBuf>,
    /// How letters are written [default: ndjson, or csv with -o csv]
    #[arg(long, value_enum, value_name = "FORMAT")]
    format: Option<Written>,
    /// With all secrets, for `import`; it is on record who asked
    #[arg(long)]
    full: bool,
    /// Why, for the audit trail
    #[arg(long, value_name = "TEXT", requires = "full")]
    reason: Option<String>,
}

/// How letters are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Written {
    /// One letter per line, whole.
    Ndjson,
    /// One letter per row, safe for spreadsheets.
    Csv,
}

/// Where an export goes.
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
            let what = format!("{} is there already; an export does not write over it", path.display());
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

    /// Only what is whole and durable gets its name.
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
pub(crate) async fn export(app: &App, args: ExportArgs) -> Done {
    let filter = given::filter(app, &args.filter, IdKind::Letter).await?;
    let filter = narrowed(filter, "dlq", args.dlq.as_ref())?;
    let mut store = app.open(Access::Existing, Hold::Long).await?;
    let csv = match (args.format, app.out.format) {
        (Some(written), _) => written == Written::Csv,
        (None, format) => format == Format::Csv && args.dir.is_none(),
    };
    let mut target = Target::new(&args)?;
    let total = store.ask(async |store| count(store, &filter).await).await?;
    if args.full {
        let shown = Disclosure::matching(Disclosed::Export, filter.clone(), total);
        store.disclose(shown, app.actor(args.reason.clone())).await?;
    }
    let mut progress = Progress::new(&app.out, "exporting", Some(total));
    let (mut cursor, mut count) = (None, 0_u64);
    if csv {
        target.write(app, &[], &sheet::head()?)?;
    }
    loop {
        let query = Query { filter: filter.clone(), page: PageRequest { limit: Some(PAGE), cursor } };
        let page = store.ask(async |store| store.export(query.clone()).await).await?;
        for what in &page.damaged {
            app.out.note(&format!("not exported, because it is damaged: {what}"));
        }
        let letters: Vec<DeadLetter> = if args.full {
            page.items
        } else {
            page.items.iter().map(|letter| rules().letter(letter)).collect()
        };
        let text = if csv { sheet::rows(&letters, app.out.terminal)? } else { lines(&letters)? };
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
    if rules().is_on() { ", masked; with --full they can be imported" } else { "" }
}

async fn count(
    store: &dyn redrive::core::store::Store,
    filter: &Filter,
) -> redrive::core::error::Outcome<u64> {
    // Every status: a note is possible on all.
    Ok(store.preview(PreviewRequest::new(Act::Note, filter.clone(), 0)).await?.count)
}

fn lines(letters: &[DeadLetter]) -> Result<String, CliError> {
    let lines: Result<Vec<String>, CliError> = letters.iter().map(compact).collect();
    Ok(lines?.into_iter().map(|line| line + "\n").collect())
}
