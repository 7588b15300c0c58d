//! A directory of letters: one JSON file per letter, named by its id, and an index that is written last. A directory
//! without an index is an unfinished export and is not imported.

use super::{INDEX, create, unreadable, unwritable};
use crate::exit_code::{CliError, ExitCode};
use crate::output::compact;
use redrive::core::dead_letter::{DeadLetter, Status};
use redrive::core::failure::Reason;
use redrive::core::ids::{GroupId, MessageId, QueueName};
use redrive::core::json_input;
use redrive::core::limits;
use redrive::core::time::Time;
use serde::{Deserialize, Serialize};
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

/// The version of the directory layout.
const VERSION: u32 = 1;

/// An entry of the index.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Entry {
    /// The id of the letter.
    pub(super) id: MessageId,
    file: String,
    queue: QueueName,
    status: Status,
    reason: Reason,
    group: GroupId,
    dead_at: Time,
    error: String,
}

/// The JSON of the index.
#[derive(Debug, Deserialize)]
pub(super) struct Index {
    redrive: u32,
    masked: bool,
    letters: Vec<Entry>,
    count: u64,
}

/// A directory that is being written.
pub(super) struct Directory {
    path: PathBuf,
    index: BufWriter<std::fs::File>,
    count: u64,
}

impl Directory {
    /// Creates the directory, or uses an empty one.
    pub(super) fn create(path: PathBuf, masked: bool) -> Result<Self, CliError> {
        let taken = match std::fs::read_dir(&path) {
            Ok(mut entries) => entries.next().is_some(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&path);
                made.map_err(|error| unwritable(&path, &error))?;
                false
            }
            Err(error) => return Err(unwritable(&path, &error)),
        };
        if taken {
            let what = format!("{} is not empty; an export needs a directory of its own", path.display());
            return Err(CliError::new(ExitCode::Refused, what).hint("name a new directory"));
        }
        let part = Self::part(&path);
        let mut index = BufWriter::new(create(&part)?);
        write!(index, "{{\"redrive\":{VERSION},\"masked\":{masked},\"letters\":[")
            .map_err(|error| unwritable(&part, &error))?;
        Ok(Self { path, index, count: 0 })
    }

    fn part(path: &Path) -> PathBuf {
        path.join(format!("{INDEX}.part"))
    }

    /// Writes one letter. The file name is made from the id alone, so that untrusted data never becomes a path.
    pub(super) fn add(&mut self, letter: &DeadLetter) -> Result<(), CliError> {
        let file = file_name(letter.id());
        let path = self.path.join(&file);
        let text = compact(letter)? + "\n";
        create(&path)?.write_all(text.as_bytes()).map_err(|error| unwritable(&path, &error))?;
        let entry = Entry {
            id: letter.id(),
            file,
            queue: letter.message.envelope.queue.clone(),
            status: letter.record.status,
            reason: letter.record.reason,
            group: letter.group,
            dead_at: letter.record.dead_at,
            error: super::super::super::error_text(&letter.error),
        };
        let comma = if self.count == 0 { "" } else { "," };
        self.count += 1;
        write!(self.index, "{comma}\n{}", compact(&entry)?)
            .map_err(|error| unwritable(&Self::part(&self.path), &error))
    }

    /// Completes the index; from then on the directory can be imported.
    pub(super) fn finish(mut self) -> Result<(), CliError> {
        let part = Self::part(&self.path);
        let ended = write!(self.index, "\n],\"count\":{}}}\n", self.count)
            .and_then(|()| self.index.flush())
            .and_then(|()| self.index.get_ref().sync_all())
            .and_then(|()| std::fs::rename(&part, self.path.join(INDEX)))
            .and_then(|()| std::fs::File::open(&self.path)?.sync_all());
        ended.map_err(|error| unwritable(&self.path, &error))
    }
}

fn file_name(id: MessageId) -> String {
    format!("{id}.json")
}

/// Reads the index of a directory and returns the files of its letters, in order.
pub(super) fn files(path: &Path) -> Result<Vec<PathBuf>, CliError> {
    let index = path.join(INDEX);
    let wrong = |what: String| CliError::usage(format!("{}: {what}", index.display()));
    let text = match std::fs::read(&index) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(wrong("is missing: the export did not finish, or this is not an export".into())
                .hint("export again, or name a mapping with --map or --from"));
        }
        Err(error) => return Err(unreadable(&index, &error)),
    };
    let read: Index = serde_json::from_slice(&text).map_err(|error| wrong(json_input::describe(&error)))?;
    if read.redrive != VERSION {
        return Err(wrong(format!("has version {}, but this program reads version {VERSION}", read.redrive)));
    }
    if read.masked {
        return Err(CliError::new(
            ExitCode::Refused,
            format!(
                "{} is a masked export: its secrets are left out, so it cannot be imported",
                path.display()
            ),
        )
        .hint("export with --full"));
    }
    if read.count != read.letters.len() as u64 {
        return Err(wrong(format!("lists {} letters, but its count is {}", read.letters.len(), read.count)));
    }
    let file = |entry: &Entry| {
        if entry.file == file_name(entry.id) {
            return Ok(path.join(&entry.file));
        }
        Err(wrong(format!("the file of letter {} has another name than its id", entry.id)))
    };
    read.letters.iter().map(file).collect()
}

/// Reads a file of bounded size.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, CliError> {
    const BYTES_MAX: u64 = 6 * limits::PAYLOAD_BYTES_MAX as u64 + 1024 * 1024;
    let size = std::fs::metadata(path).map_err(|error| unreadable(path, &error))?.len();
    if size > BYTES_MAX {
        return Err(CliError::usage(format!(
            "{}: {size} bytes, but at most {BYTES_MAX} are allowed",
            path.display()
        )));
    }
    std::fs::read(path).map_err(|error| unreadable(path, &error))
}
