//! `dlq export` and `dlq import`: move dead letters between stores.

mod csv_rows;
mod directory;
mod export;
mod import;
mod mapping;

pub(super) use export::{ExportArgs, export};
pub(super) use import::{ImportArgs, import};

use crate::exit_code::{CliError, ExitCode};
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// The name of the index file in a directory of letters.
const INDEX: &str = "index.json";

/// Creates a file that only its owner can read, because letters carry secrets. Replaces a plain file left by an
/// unfinished export; refuses anything else.
fn create(path: &Path) -> Result<std::fs::File, CliError> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_file() => {
            std::fs::remove_file(path).map_err(|error| unwritable(path, &error))?;
        }
        Ok(_) => {
            let what = format!("{} exists and is not a plain file", path.display());
            return Err(CliError::new(ExitCode::Refused, what).hint("name another path, or remove it first"));
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(unwritable(path, &error)),
    }
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(path);
    file.map_err(|error| unwritable(path, &error))
}

fn unwritable(path: &Path, error: &std::io::Error) -> CliError {
    CliError::io(format_args!("write {}", path.display()), error)
}

fn unreadable(path: &Path, error: &std::io::Error) -> CliError {
    CliError::io(format_args!("read {}", path.display()), error)
}
