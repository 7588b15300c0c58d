//! Whether a data directory, what lies in it and whoever answers on its socket is this user's own. File modes are
//! the only boundary between the users of a machine, so a directory that somebody else owns or may write is refused
//! before anything is read from it or sent to it, and no symbolic link inside it is followed. It changes nothing: it
//! says which command mends what it found.

use redrive_core::error::{StoreError, StoreErrorKind};
use std::fs::{self, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

/// The database in a data directory.
pub(crate) const DATABASE: &str = "redrive.db";
/// Held by whoever writes; says nothing by itself.
pub(crate) const LOCK: &str = "lock";
/// The key of the audit chain.
pub(crate) const KEY: &str = "audit.key";
/// The high-water mark of commits.
pub(crate) const MARK: &str = "commits";
/// Room kept back for a full disk.
pub(crate) const RESERVE: &str = "reserve";
/// A database that is being restored.
pub(crate) const RESTORING: &str = "restoring";
/// Where other processes reach the one that holds the directory.
pub(crate) const SOCKET: &str = "socket";

/// Every file that is opened in a data directory, by this program or by SQLite on its behalf.
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
/// Permission bits that let the group or everybody reach what lies in a directory.
const ENTER_BY_OTHERS: u32 = 0o011;

/// The user this process acts as.
pub(crate) fn user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Options for a file of the store: for its owner alone, and never through a symbolic link.
pub(crate) fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(0o600).custom_flags(rustix::fs::OFlags::NOFOLLOW.bits().cast_signed());
    options
}

/// Refuses a directory that somebody else owns or may write, and files of the store in it that are not this user's
/// own. Since nobody else may write there, what holds now still holds when the files are opened. A directory that
/// does not exist passes.
///
/// # Errors
/// [`StoreErrorKind::Untrusted`], with the command that mends it.
pub(crate) fn check(directory: &Path) -> Result<(), StoreError> {
    let Some(place) = check_directory(directory)? else { return Ok(()) };
    for name in FILES {
        check_entry(&directory.join(name), &place, Metadata::is_file)?;
    }
    Ok(())
}

/// The same for a directory that may become a store. One that is empty and that only this user's group may write, as
/// where the umask is 002, is closed first: nobody can have put anything into it that would be trusted.
///
/// # Errors
/// [`StoreErrorKind::Untrusted`], with the command that mends it.
pub(crate) fn check_new(directory: &Path) -> Result<(), StoreError> {
    if let Some(place) = look(directory, false)? {
        let is_open = place.uid() == user() && place.mode() & WRITE_BY_OTHERS == 0o020;
        let is_empty = || fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_none());
        if place.is_dir() && is_open && is_empty() {
            // Where that fails the check says what is to be done.
            let _ = fs::set_permissions(directory, fs::Permissions::from_mode(0o700));
        }
    }
    check(directory)
}

/// Refuses a socket whose directory is not this user's own, or that somebody else made. One that does not exist
/// passes.
///
/// # Errors
/// [`StoreErrorKind::Untrusted`], with the command that mends it.
pub(crate) fn check_socket(directory: &Path) -> Result<(), StoreError> {
    let Some(place) = check_directory(directory)? else { return Ok(()) };
    check_entry(&directory.join(SOCKET), &place, |found| found.file_type().is_socket())
}

/// Refuses to talk to a holder that runs as another user than this one, who owns the directory.
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

/// What is known about a directory that was found to be this user's own; none when there is no directory.
fn check_directory(directory: &Path) -> Result<Option<Metadata>, StoreError> {
    // Without a trailing slash, which would follow the link that is looked for.
    let directory = directory.components().as_path();
    let (Some(link), Some(place)) = (look(directory, true)?, look(directory, false)?) else {
        return Ok(None);
    };
    if !place.is_dir() {
        return Ok(None);
    }
    let shown = quoted(directory);
    let inside = quoted(&directory.join("redrive"));
    let elsewhere = if place.uid() == user() || place.uid() == 0 {
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
    if place.uid() != user() {
        let (owner, owned) = (place.uid(), owned_by_user());
        return Err(untrusted(format!(
            "the data directory {shown} belongs to user {owner}, and this process runs as user {}: its owner could \
             read and change everything in it. If it is yours, run `{owned} {shown}`, or run the command as its \
             owner: `sudo -u '#{owner}' redrive …`; {elsewhere}",
            user(),
        )));
    }
    if place.mode() & WRITE_BY_OTHERS != 0 {
        return Err(untrusted(format!(
            "the data directory {shown} can be written by other users (mode {:03o}), who could put files of their \
             own in it. Run `ls -la {shown}` to see whether everything in it is yours, then `chmod 700 {shown}`; \
             {elsewhere}",
            place.mode() & 0o7777
        )));
    }
    Ok(Some(place))
}

fn check_entry(path: &Path, place: &Metadata, is_right: fn(&Metadata) -> bool) -> Result<(), StoreError> {
    let Some(found) = look(path, true)? else { return Ok(()) };
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
    if found.mode() & WRITE_BY_OTHERS != 0 && place.mode() & ENTER_BY_OTHERS != 0 {
        return Err(untrusted(format!(
            "{shown} can be written by other users (mode {:03o}); run `chmod 600 {shown}`, then `redrive doctor --deep`",
            found.mode() & 0o7777
        )));
    }
    Ok(())
}

/// What is at a path, itself or what it leads to; none when nothing is there.
fn look(path: &Path, itself: bool) -> Result<Option<Metadata>, StoreError> {
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

/// A path as a shell takes it.
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
    fn paths_are_printed_as_a_shell_takes_them() {
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
