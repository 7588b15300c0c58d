//! Three ways to break a store, each with its own check of what was promised.
//!
//! - [`kill`]: many threads work on a store in a child process that is killed at a random moment, again and
//!   again. [`ledger`] compares the log of replies with what is there afterwards.
//! - [`faultloop`]: a [`script`] runs in a child whose k-th write or sync fails, for every k.
//! - [`powercut`]: the same script is recorded; [`disk`] makes the states that a disk may be in when the power
//!   fails, thousands of them, and each must open and hold what was promised.
//!
//! In the last two [`oracle`] knows everything the store may show, from the reference model: the state after
//! the last reply, or the one after the call that was under way, and nothing else.

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

/// What the drivers give back. An error is the driver's own; what it finds out about the store is a value.
pub type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Makes a directory for its owner alone, as a store wants it.
///
/// # Errors
/// What the operating system says.
pub fn make_private(directory: &std::path::Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// A runtime on this thread, for whoever has one store and waits for each answer.
///
/// # Errors
/// When the operating system refuses.
pub fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}
