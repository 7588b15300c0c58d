//! Builds the shim that stands between a child and the disk. Its source documents its environment variables.

use super::ToolResult;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The source of the shim, embedded so that the program can run from anywhere.
const SOURCE: &str = include_str!("../../../testkit/shim/shim.c");

/// The compiled shim.
#[derive(Clone, Debug)]
pub struct Shim(PathBuf);

/// Which call of a child fails, and how.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// The calls that are counted: w for writes, s for syncs, t for truncations.
    pub calls: &'static str,
    /// The number of the call that fails; 1 is the first.
    pub k: u64,
    /// The error number. For a short write, the error of the calls that follow it.
    pub errno: i32,
    /// Whether a failing write writes half of its data.
    pub short: bool,
    /// The calls that fail from then on; empty if only one call fails.
    pub forever: &'static str,
}

impl Shim {
    /// Compiles the shim in this directory.
    ///
    /// # Errors
    /// If there is no C compiler, or the compilation fails.
    pub fn build(directory: &Path) -> ToolResult<Self> {
        let (source, built) = (directory.join("shim.c"), directory.join("shim.so"));
        std::fs::write(&source, SOURCE)?;
        let mut compiler = Command::new("cc");
        compiler.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&built).arg(&source).args(["-lpthread"]);
        let output = compiler.output().map_err(|e| format!("failed to run cc: {e}"))?;
        if output.status.success() {
            return Ok(Self(built));
        }
        Err(format!("cc failed to build the shim: {}", String::from_utf8_lossy(&output.stderr)).into())
    }

    /// A command that runs this program with the shim, watching one directory and the log outside it.
    pub fn command(&self, program: &Path, directory: &Path, log: &Path) -> Command {
        let mut command = Command::new(program);
        command.env("LD_PRELOAD", &self.0);
        command.env("REDRIVE_SHIM_DIR", directory).env("REDRIVE_SHIM_LOG", log);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }
}

impl Fault {
    /// Sets the environment variables of the shim.
    pub fn put_into(self, command: &mut Command) {
        command.env("REDRIVE_SHIM_K", self.k.to_string()).env("REDRIVE_SHIM_CALLS", self.calls);
        command.env("REDRIVE_SHIM_ERRNO", self.errno.to_string());
        command.env("REDRIVE_SHIM_HOW", if self.short { "short" } else { "error" });
        command.env("REDRIVE_SHIM_FOREVER", self.forever);
    }
}
