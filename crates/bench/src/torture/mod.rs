//! Three ways to break a store, each with its own check of what was acknowledged.
//!
//! - [`kill`]: many tasks work on a store in a child process that is killed at a random moment, again and
//!   again. [`ledger`] compares the log of replies with the store afterwards.
//! - [`faultloop`]: a [`script`] runs in a child whose k-th write or sync fails, for every k.
//! - [`powercut`]: the same script is recorded, and [`disk`] produces thousands of states that a disk may be
//!   in when the power fails. Each must open and hold everything that was acknowledged.
//!
//! In the last two, [`oracle`] derives from the reference model what the store may show: the state after the
//! last reply, or the state after the call that was in progress.

pub mod args;
pub mod disk;
pub mod faultloop;
pub mod inspect;
pub mod kill;
pub mod ledger;
pub mod oracle;
pub mod powercut;
pub mod replies;
pub mod rng;
pub mod script;
pub mod shim;
pub mod steps;
pub mod trace;
pub mod work;

/// The result of a driver. An error is a problem of the driver itself; violations of the store are values.
pub type ToolResult<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Creates a directory that only its owner can access, as a store requires.
///
/// # Errors
/// Any error of the file system.
pub fn make_private(directory: &std::path::Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// A single-threaded runtime.
///
/// # Errors
/// If the operating system refuses to create it.
pub fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}
