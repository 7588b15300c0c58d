//! Checks that a data directory, its files and the process at the other end of its socket belong to this user. File
//! modes are the only boundary between the users of a machine. So a directory that another user owns or may write is
//! refused before anything is read from it or sent to it, and no symbolic link inside it is followed. The checks
//! repair nothing; their errors name the command that does.

use redrive_core::error::{StoreError, StoreErrorKind};
use std::fs::{self, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// The database in a data directory.
pub(crate) const DATABASE: &str = "redrive.db";
/// The lock file, locked by the holder. It has no content.
pub(crate) const LOCK: &str = "lock";
/// The key of the audit chain.
pub(crate) const KEY: &str = "audit.key";
/// The commit mark: the number of acknowledged commits.
pub(crate) const MARK: &str = "commits";
/// Space kept in reserve for a full disk.
pub(crate) const RESERVE: &str = "reserve";
/// A database that is being restored.
pub(crate) const RESTORING: &str = "restoring";
/// The socket on which other processes reach the holder of the directory.
pub(crate) const SOCKET: &str = "socket";

/// Every file that this program, or SQLite on its behalf, opens in a data directory.
const FILES: [&str; 10] = [
    DATABASE,
    "redrive.db-wal",
    "redrive.db-shm",
    "redrive.db-journal",
    LOCK,
    KEY,
    "audit.part",
    MARK,
    RESERVE,
    RESTORING,
];

/// Permission bits that let the group or everybody write.
const WRITE_BY_OTHERS: u32 = 0o022;
/// Permission bits that let the group or everybody enter a directory.
const ENTER_BY_OTHERS: u32 = 0o011;

/// The user id of this process.
pub(crate) fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Options for opening a file of the store: readable by its owner alone, and never through a symbolic link.
pub(crate) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600).custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed());
    options
}

/// Refuses a directory that another user owns or may write, and files of the store in it that do not belong to this
/// user. Nobody else may write there, so what is checked now still holds when the files are opened. A directory that
/// does not exist passes.
///
/// # Errors
/// [`StoreErrorKind::Untrusted`], with the command that fixes it.
pub(crate) fn check(directory: &Path) -> Result<(), StoreError> {
    let Some(metadata) = check_directory(directory)? else { return Ok(()) };
    for name in FILES {
        check_entry(&directory.join(name), &metadata, Metadata::is_file)?;
    }
    Ok(())
}

/// Like [`check`], for a directory that may become a store. If it is empty and only this user's group may write it,
/// as with a umask of 002, its mode is restricted first: nobody can have put anything into it that would be trusted.
///
/// # Errors
/// [`StoreErrorKind::Untrusted`], with the command that fixes it.
pub(crate) fn check_new(directory: &Path) -> Result<(), StoreError> {
    if let Some(metadata) = metadata_of(directory, false)? {
        let is_open = metadata.uid() == user() && metadata.mode() & WRITE_BY_OTHERS == 0o020;
        let is_empty = || fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_none());
        if metadata.is_dir() && is_open && is_empty() {
            // If this fails, the check below says what to do.
            let _ = fs::set_permissions(directory, fs::Permissions::from_mode(0o700));
        }
    }
    check(directory)
}

/// Refuses a socket that another user created, or whose directory
/// does not belong to this user. A socket that does not exist passes.
///
/// # Errors
/// [`StoreErrorKind::Untrusted`], with the command that fixes it.
pub(crate) fn check_socket(directory: &Path) -> Result<(), StoreError> {
    let Some(metadata) = check_directory(directory)? else { return Ok(()) };
    check_entry(&directory.join(SOCKET), &metadata, |found| found.file_type().is_socket())
}

/// Refuses to talk to a holder that does not run as this user, who owns the directory.
///
/// # Errors
/// [`StoreErrorKind::Untrusted`], with the commands that show it and remove its socket.
pub(crate) fn check_holder(runs_as: u32, socket: &Path) -> Result<(), StoreError> {
    if runs_as == user() {
        return Ok(());
    }
    let socket = quoted(socket);
    Err(untrusted(format!(
        "the process that listens on {socket} runs as user {runs_as}, not as user {}, who owns the directory; \
         nothing was sent to it. Run `fuser -v {socket}` to see it, end it, then run `rm {socket}`",
        user()
    )))
}

/// Refuses a caller who is neither this user nor root.
///
/// # Errors
/// [`StoreErrorKind::Untrusted`], with what to run instead.
pub(crate) fn check_caller(runs_as: u32) -> Result<(), StoreError> {
    if runs_as == user() || runs_as == 0 {
        return Ok(());
    }
    let owner = user();
    Err(untrusted(format!(
        "the data directory is held by user {owner}, who takes no calls from user {runs_as}; \
         run the command as `sudo -u '#{owner}' redrive …`"
    )))
}

/// The metadata of a directory that belongs to this user. `None` if there is no directory.
fn check_directory(directory: &Path) -> Result<Option<Metadata>, StoreError> {
    // Without a trailing slash, which would follow the symbolic link that is being checked for.
    let directory = directory.components().as_path();
    let (Some(link), Some(metadata)) = (metadata_of(directory, true)?, metadata_of(directory, false)?) else {
        return Ok(None);
    };
    if !metadata.is_dir() {
        return Ok(None);
    }
    let shown = quoted(directory);
    let inside = quoted(&directory.join("redrive"));
    let elsewhere = if metadata.uid() == user() || metadata.uid() == 0 {
        format!("or name a directory inside it, which is made for you: `{inside}`")
    } else {
        "if you did not make it, name another directory".to_owned()
    };
    if link.is_symlink() && link.uid() != user() && link.uid() != 0 {
        return Err(untrusted(format!(
            "the data directory {shown} is a symbolic link that user {} made, who can lead it anywhere; \
             name the directory itself with --data, or run `rm {shown}` if it should not be there",
            link.uid()
        )));
    }
    if metadata.uid() != user() {
        let (owner, owned) = (metadata.uid(), owned_by_user());
        return Err(untrusted(format!(
            "the data directory {shown} belongs to user {owner}, and this process runs as user {}: its owner could \
             read and change everything in it. If it is yours, run `{owned} {shown}`, or run the command as its \
             owner: `sudo -u '#{owner}' redrive …`; {elsewhere}",
            user(),
        )));
    }
    if metadata.mode() & WRITE_BY_OTHERS != 0 {
        return Err(untrusted(format!(
            "the data directory {shown} can be written by other users (mode {:03o}), who could put files of their \
             own in it. Run `ls -la {shown}` to see whether everything in it is yours, then `chmod 700 {shown}`; \
             {elsewhere}",
            metadata.mode() & 0o7777
        )));
    }
    Ok(Some(metadata))
}

fn check_entry(path: &Path, directory: &Metadata, is_right: fn(&Metadata) -> bool) -> Result<(), StoreError> {
    let Some(found) = metadata_of(path, true)? else { return Ok(()) };
    let shown = quoted(path);
    if found.is_symlink() {
        return Err(untrusted(format!(
            "{shown} is a symbolic link, and none is followed in a data directory. If you did not make it, run \
             `rm {shown}`; if you did, put the file itself there: `mv \"$(readlink -f {shown})\" {shown}`"
        )));
    }
    if !is_right(&found) {
        let aside = quoted(&PathBuf::from(format!("{}.aside", path.display())));
        return Err(untrusted(format!(
            "{shown} is not the kind of file that a data directory has under this name; run `mv {shown} {aside}`"
        )));
    }
    if found.uid() != user() {
        return Err(untrusted(format!(
            "{shown} belongs to user {}, and this process runs as user {}. If it is yours, run `{} {shown}`; \
             if you do not know it, name another directory with --data",
            found.uid(),
            user(),
            owned_by_user()
        )));
    }
    if found.mode() & WRITE_BY_OTHERS != 0 && directory.mode() & ENTER_BY_OTHERS != 0 {
        return Err(untrusted(format!(
            "{shown} can be written by other users (mode {:03o}); run `chmod 600 {shown}`, then `redrive doctor --deep`",
            found.mode() & 0o7777
        )));
    }
    Ok(())
}

/// The metadata of a path, of the link itself or of its target. `None` if nothing is there.
fn metadata_of(path: &Path, itself: bool) -> Result<Option<Metadata>, StoreError> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    match if itself { fs::symlink_metadata(path) } else { fs::metadata(path) } {
        Ok(found) => Ok(Some(found)),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(StoreError::new(StoreErrorKind::Io, format!("cannot look at {}: {e}", path.display()))),
    }
}

fn untrusted(why: String) -> StoreError {
    StoreError::new(StoreErrorKind::Untrusted, why)
}

/// The command that gives a path to this user.
fn owned_by_user() -> String {
    let group = rustix::process::getegid().as_raw();
    let sudo = if user() == 0 { "" } else { "sudo " };
    format!("{sudo}chown -R {}:{group}", user())
}

/// A path quoted for a shell.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '+' | ',' | ':' | '@');
    if !text.is_empty() && !text.starts_with('-') && text.chars().all(plain) {
        return text;
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_for_a_shell() {
        for (path, shown) in [
            ("/var/lib/redrive-data", "/var/lib/redrive-data"),
            ("", "''"),
            ("-rf", "'-rf'"),
            ("/a b/$(x)", "'/a b/$(x)'"),
            ("it's", r"'it'\''s'"),
        ] {
            assert_eq!(quoted(Path::new(path)), shown);
        }
    }
}
