//! `backup` and `restore`: a copy as of one commit, and a new directory from it. Neither writes over anything.

use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, Done, ExitCode};
use crate::output::{Column, Look, Show};
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The flags of `backup`.
#[derive(Args, Debug)]
pub(crate) struct BackupArgs {
    /// The new directory for the copy
    #[arg(value_name = "TARGET_DIR")]
    target: PathBuf,
}

/// The flags of `restore`.
#[derive(Args, Debug)]
pub(crate) struct RestoreArgs {
    /// The backup; it becomes the directory that --data names, which must not exist
    #[arg(value_name = "BACKUP_DIR")]
    backup: PathBuf,
}

/// What was copied where.
#[derive(Serialize)]
struct Copied {
    directory: String,
    bytes: u64,
}

impl Show for Copied {
    const COLUMNS: &'static [Column] = &[Column::whole("directory"), Column::number("bytes")];

    fn cells(&self, _: &Look) -> Vec<String> {
        vec![self.directory.clone(), self.bytes.to_string()]
    }
}

/// Runs `backup`.
pub(crate) async fn backup(app: &App, args: BackupArgs) -> Done {
    // The process that copies may have another working directory than this one.
    let target = std::path::absolute(&args.target)
        .map_err(|error| CliError::io(format_args!("find {}", args.target.display()), &error))?;
    let Some(target) = target.to_str() else {
        return Err(CliError::usage(format!("{} is not UTF-8; name another directory", target.display())));
    };
    let store = app.open_as_it_is(Access::Existing, Hold::Long).await?;
    let bytes = store.backup(target.to_owned()).await?;
    copied(app, Path::new(target), bytes)
}

/// Runs `restore`.
pub(crate) async fn restore(app: &App, args: RestoreArgs) -> Done {
    app.refuse_server()?;
    let bytes = redrive::restore(&args.backup, &app.data).await?;
    copied(app, &app.data, bytes)
}

fn copied(app: &App, directory: &Path, bytes: u64) -> Done {
    app.out.one(&Copied { directory: directory.display().to_string(), bytes })?;
    Ok(ExitCode::Ok)
}
