//! Dead letters out of one office and into another: `dlq export` and `dlq import`.

mod directory;
mod export;
mod import;
mod mapping;
mod sheet;

pub(super) use export::{ExportArgs, export};
pub(super) use import::{ImportArgs, import};

use crate::exit_code::CliError;
use std::path::Path;

/// The layout of a directory of letters, by its index.
const INDEX: &str = "index.json";

fn unwritable(path: &Path, error: &std::io::Error) -> CliError {
    CliError::io(format_args!("write {}", path.display()), error)
}

fn unreadable(path: &Path, error: &std::io::Error) -> CliError {
    CliError::io(format_args!("read {}", path.display()), error)
}
