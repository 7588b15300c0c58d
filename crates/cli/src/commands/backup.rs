//! `backup` and `restore`: copies the store as of one commit, and creates a new directory from a copy. Neither
//! overwrites anything.

use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, CommandResult, ExitCode};
use crate::output::{Column, Show, ValueFormat};
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// The flags of `backup`.
#[derive(Args, Debug)]
pub(crate) struct BackupArgs {
    /// The directory to create for the copy
    #[arg(value_name = "TARGET_DIR")]
    target: PathBuf,
}

/// The flags of `restore`.
#[derive(Args, Debug)]
pub(crate) struct RestoreArgs {
    /// The backup to restore into the directory that --data names, which must not exist
    #[arg(value_name = "BACKUP_DIR")]
    backup: PathBuf,
}

/// The directory that was written.
#[derive(Serialize)]
struct Copied {
    directory: String,
    bytes: u64,
}

impl Show for Copied {
    const COLUMNS: &'static [Column] = &[Column::whole("directory"), Column::number("bytes")];

    fn cells(&self, _: &ValueFormat) -> Vec<String> {
        vec![self.directory.clone(), self.bytes.to_string()]
    }
}

/// Runs `backup`.
pub(crate) async fn backup(app: &App, args: BackupArgs) -> CommandResult {
    // The process that makes the copy may have a different working directory.
    let target = std::path::absolute(&args.target)
        .map_err(|error| CliError::io(format_args!("find {}", args.target.display()), &error))?;
    let Some(target) = target.to_str() else {
        return Err(CliError::usage(format!("{} is not UTF-8; name another directory", target.display())));
    };
    let store = app.open_without_maintenance(Access::Existing, Hold::Long).await?;
    let bytes = store.backup(target.to_owned()).await?;
    copied(app, Path::new(target), bytes)
}

/// Runs `restore`.
pub(crate) async fn restore(app: &App, args: RestoreArgs) -> CommandResult {
    app.require_directory("restore")?;
    let bytes = redrive::restore(&args.backup, &app.data).await?;
    copied(app, &app.data, bytes)
}

fn copied(app: &App, directory: &Path, bytes: u64) -> CommandResult {
    app.out.one(&Copied { directory: directory.display().to_string(), bytes })?;
    Ok(ExitCode::Ok)
}
