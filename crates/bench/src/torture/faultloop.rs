//! Tests disk failures. A script runs in a child process whose k-th write, sync or truncation fails, for
//! every k until the script ends without reaching it. Afterwards a store without faults must open, verify and
//! hold every reply in the log, and no reply may follow a failed sync (I6).

use super::ToolResult;
use super::disk::{Disk, Image, LossMode, read_image, write_image};
use super::inspect::{Findings, inspect_store};
use super::oracle::{ScriptLog, Violation};
use super::replies::lines;
use super::rng::Rng;
use super::script::Script;
use super::shim::{Fault, Shim};
use super::steps::time_of;
use super::trace;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use tokio::runtime::Runtime;

/// The error number for an input/output error.
const EIO: i32 = 5;
/// The error number for a full disk.
const ENOSPC: i32 = 28;
/// The calls that fail on a dead disk: all of them.
const ALL_CALLS: &str = "wst";

/// A way in which a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// The name of the mode on the command line.
    pub name: &'static str,
    calls: &'static str,
    errno: i32,
    short: bool,
    forever: &'static str,
    /// Whether the power fails afterwards, so that unsynced data may be lost.
    power: bool,
}

const fn mode(name: &'static str, calls: &'static str, errno: i32, forever: &'static str) -> Mode {
    Mode { name, calls, errno, short: false, forever, power: false }
}

/// Every mode.
pub const MODES: [Mode; 13] = [
    mode("write-eio-once", "w", EIO, ""),
    mode("write-eio-forever", "w", EIO, ALL_CALLS),
    mode("write-enospc-once", "w", ENOSPC, ""),
    mode("write-enospc-forever", "w", ENOSPC, "w"),
    Mode { short: true, ..mode("write-short-once", "w", ENOSPC, "") },
    Mode { short: true, ..mode("write-short-forever", "w", ENOSPC, "w") },
    mode("sync-eio-once", "s", EIO, ""),
    mode("sync-eio-forever", "s", EIO, ALL_CALLS),
    mode("sync-enospc-once", "s", ENOSPC, ""),
    Mode { power: true, ..mode("sync-eio-once-power", "s", EIO, "") },
    Mode { power: true, ..mode("sync-eio-forever-power", "s", EIO, "s") },
    mode("truncate-eio-once", "t", EIO, ""),
    mode("truncate-eio-forever", "t", EIO, ALL_CALLS),
];

/// The modes to run, each with the stride between tested values of k.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Modes(pub Vec<(Mode, u64)>);

impl FromStr for Modes {
    type Err = String;

    /// Parses `all`, or mode names separated by commas. `name/7` tests every seventh k.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "all" {
            return Ok(Self(MODES.iter().map(|mode| (*mode, 1)).collect()));
        }
        let one = |part: &str| {
            let (name, stride) = part.split_once('/').unwrap_or((part, "1"));
            let mode = MODES.iter().find(|mode| mode.name == name);
            let stride = stride.parse::<u64>().ok().filter(|stride| *stride > 0);
            mode.copied().zip(stride).ok_or_else(|| format!("{part:?} is not a mode"))
        };
        text.split(',').map(one).collect::<Result<_, _>>().map(Self)
    }
}

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The modes to run.
    pub modes: Modes,
    /// The seed of the random steps, and of the first k when a stride skips some.
    pub seed: u64,
    /// The number of random steps after the tour.
    pub steps: usize,
    /// Whether the store is opened by a long-lived holder.
    pub served: bool,
    /// Whether the script is long enough to cause a checkpoint while the store is open.
    pub long: bool,
    /// Tests only this k.
    pub only: Option<u64>,
    /// The path of this driver.
    pub program: PathBuf,
    /// The directory for all files.
    pub scratch: PathBuf,
}

/// What was done and found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// For each mode, its name and the number of calls that the script makes.
    pub reached: Vec<(&'static str, u64)>,
    /// Runs of the script in which a call failed.
    pub runs: u64,
    /// Replies in those runs, all of which were kept.
    pub answers: u64,
    /// Directories that were inspected.
    pub states: u64,
    /// Replies that came after a failed sync.
    pub violations: u64,
    /// The violations that were found.
    pub found: Findings,
}

/// Runs the fault loop.
///
/// # Errors
/// If the driver itself fails.
pub fn run(plan: &Plan) -> ToolResult<Report> {
    let shim = Shim::build(&plan.scratch)?;
    let script = match plan.steps {
        steps if plan.long => Script { served: plan.served, ..Script::long(plan.seed, steps)?.0 },
        0 => Script::tour(plan.served),
        steps => Script::random(plan.seed, steps, plan.served)?,
    };
    let path = plan.scratch.join("script.json");
    script.save(&path)?;
    let mut runner =
        Runner { plan, shim, script, path, runtime: super::runtime()?, report: Report::default() };
    for (mode, stride) in &plan.modes.0 {
        let first = plan.only.unwrap_or_else(|| 1 + plan.seed % stride);
        let mut k = first;
        while runner.run_with_fault(*mode, k)? && plan.only.is_none() {
            k += stride;
        }
        runner.report.reached.push((mode.name, k.saturating_sub(1)));
    }
    Ok(runner.report)
}

struct Runner<'a> {
    plan: &'a Plan,
    shim: Shim,
    script: Script,
    path: PathBuf,
    runtime: Runtime,
    report: Report,
}

impl Runner<'_> {
    /// Runs the script with one fault. Returns `false` if the script ended before the k-th call.
    fn run_with_fault(&mut self, mode: Mode, k: u64) -> ToolResult<bool> {
        let (data, log) = (self.plan.scratch.join("data"), self.plan.scratch.join("log"));
        let traced = self.plan.scratch.join("trace");
        clear(&data, &[&log, &traced])?;
        let mut command = self.shim.command(&self.plan.program, &data, &log);
        command.arg("script").arg("--script").arg(&self.path);
        command.arg("--data").arg(&data).arg("--log").arg(&log);
        let Mode { calls, errno, short, forever, .. } = mode;
        Fault { calls, k, errno, short, forever }.put_into(&mut command);
        if mode.power {
            command.env("REDRIVE_SHIM_TRACE", &traced);
        }
        let status = command.status()?;
        let repro = format!(
            "--modes {} --k {k} --seed {} --steps {} --served {} --long {}",
            mode.name, self.plan.seed, self.plan.steps, self.plan.served, self.plan.long
        );
        if !status.success() {
            self.report.found.record(&Violation::Broken(format!("the child ended with {status}")), &repro);
        }
        let script_log = ScriptLog::read(&lines(&log)?);
        if !script_log.faulty {
            return Ok(false);
        }
        self.report.runs += 1;
        self.report.answers += script_log.answered.len() as u64;
        for violation in &script_log.after_failed_sync {
            self.report.violations += 1;
            let what = format!("replied after a failed sync: {violation}");
            self.report.found.record(&Violation::Broken(what), &repro);
        }
        if mode.power {
            self.check_after_power_cut(&script_log, &trace::read(&traced)?, k, &repro)?;
        } else {
            self.check(&script_log, &data, &repro)?;
        }
        Ok(true)
    }

    /// Inspects what the failed process left.
    fn check(&mut self, script_log: &ScriptLog, data: &Path, repro: &str) -> ToolResult<()> {
        self.report.states += 1;
        let violation = match inspect_store(&self.runtime, data, time_of(script_log.last)) {
            Err(violation) => Some(violation),
            Ok(view) => self.runtime.block_on(script_log.check(&self.script, &view))?,
        };
        if let Some(violation) = violation {
            self.report.found.record(&violation, repro);
        }
        Ok(())
    }

    /// Inspects what may remain if the power fails after the failed sync and everything the process did after
    /// it.
    fn check_after_power_cut(
        &mut self,
        script_log: &ScriptLog,
        events: &[trace::Event],
        k: u64,
        repro: &str,
    ) -> ToolResult<()> {
        let data = self.plan.scratch.join("cut");
        let mut disk = Disk::with_image(&Image::new(), true);
        events.iter().for_each(|event| disk.apply(event));
        let choices =
            [LossMode::Kept, LossMode::Dropped, LossMode::Writes, LossMode::Blocks, LossMode::Reordered];
        let mut before: Vec<Image> = Vec::new();
        for (n, choice) in choices.into_iter().enumerate() {
            let image = disk.image(choice, &mut Rng::of(&[self.plan.seed, k, n as u64]));
            if before.contains(&image) {
                continue;
            }
            write_image(&image, &data)?;
            self.check(script_log, &data, &format!("{repro} ({choice:?})"))?;
            before.push(image);
        }
        Ok(())
    }
}

fn clear(data: &Path, files: &[&PathBuf]) -> ToolResult<()> {
    if data.exists() {
        std::fs::remove_dir_all(data)?;
    }
    super::make_private(data)?;
    for file in files {
        if file.exists() {
            std::fs::remove_file(file)?;
        }
    }
    debug_assert!(read_image(data)?.is_empty(), "every run starts with an empty directory");
    Ok(())
}
