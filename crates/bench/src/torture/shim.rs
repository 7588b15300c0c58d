//! Building the shim and putting it between a child and the disk. Its source says what it understands.

use super::Outcome;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The source, in the program, so that the program can be run from anywhere.
const SOURCE: &str = include_str!("../../../testkit/shim/shim.c");

/// The built shim.
#[derive(Clone, Debug)]
pub struct Shim(PathBuf);

/// Which call of a child fails, and how.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The calls that are counted: w for writes, s for syncs, t for truncations.
    pub calls: &'static str,
    /// Which of them fails; 1 is the first.
    pub k: u64,
    /// The number of the error; for a short write, of those that follow it.
    pub errno: i32,
    /// Whether a failing write does half of its work.
    pub short: bool,
    /// The calls that fail from then on; none when it is that one only.
    pub forever: &'static str,
}

impl Shim {
    /// Builds it in this directory.
    ///
    /// # Errors
    /// When there is no C compiler, or it does not like the source.
    pub fn build(directory: &Path) -> Outcome<Self> {
        let (source, built) = (directory.join("shim.c"), directory.join("shim.so"));
        std::fs::write(&source, SOURCE)?;
        let mut compiler = Command::new("cc");
        compiler.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&built).arg(&source).args(["-lpthread"]);
        let output = compiler.output().map_err(|e| format!("cannot run cc: {e}"))?;
        if output.status.success() {
            return Ok(Self(built));
        }
        Err(format!("cc does not build the shim: {}", String::from_utf8_lossy(&output.stderr)).into())
    }

    /// This program, behind the shim: it watches one directory and the log that lies outside of it.
    ///
    /// # Errors
    /// When this program cannot be found.
    pub fn command(&self, program: &Path, directory: &Path, log: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("LD_PRELOAD", &self.0);
        command.env("REDRIVE_SHIM_DIR", directory).env("REDRIVE_SHIM_LOG", log);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }
}

impl Fault {
    /// Tells the shim of a child about it.
    pub fn put_into(self, command: &mut Command) {
        command.env("REDRIVE_SHIM_K", self.k.to_string()).env("REDRIVE_SHIM_CALLS", self.calls);
        command.env("REDRIVE_SHIM_ERRNO", self.errno.to_string());
        command.env("REDRIVE_SHIM_HOW", if self.short { "short" } else { "error" });
        command.env("REDRIVE_SHIM_FOREVER", self.forever);
    }
}
