//! The disk fails. A script runs in a child whose k-th write, sync or truncation fails, for every k until the
//! script runs through without reaching it. Afterwards a store without faults must open, add up, hold every
//! reply in the log, and none may have been given after a failed sync (I6).

use super::Outcome;
use super::disk::{Choice, Disk, Image, read_in, write_out};
use super::inspect::{Tally, look};
use super::oracle::{Told, Wrong};
use super::replies::lines;
use super::rng::Rng;
use super::script::Script;
use super::shim::{Fault, Shim};
use super::steps::time_of;
use super::trace;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use tokio::runtime::Runtime;

/// Input/output error.
const EIO: i32 = 5;
/// No space left.
const ENOSPC: i32 = 28;
/// A dead disk fails all of these.
const ALL_CALLS: &str = "wst";

/// A way in which a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode {
    /// Its name.
    pub name: &'static str,
    calls: &'static str,
    errno: i32,
    short: bool,
    forever: &'static str,
    /// Whether the power fails afterwards, so that what was not synced may be gone.
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

/// Which modes, and every which k of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Modes(pub Vec<(Mode, u64)>);

impl FromStr for Modes {
    type Err = String;

    /// `all`, or names with commas between; `name/7` takes every seventh k.
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

/// What to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which modes.
    pub modes: Modes,
    /// The seed of the random part of the script, and of which k are taken when not all are.
    pub seed: u64,
    /// Random steps after the tour.
    pub steps: usize,
    /// Whether the store is opened as by somebody who holds it for long.
    pub served: bool,
    /// Whether the script is long enough for the log to be moved into the file beside the commits.
    pub long: bool,
    /// Only this k.
    pub only: Option<u64>,
    /// The driver itself.
    pub program: PathBuf,
    /// Where everything happens.
    pub scratch: PathBuf,
}

/// What was done and found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// For each mode: its name, and the number of calls that the script makes.
    pub reached: Vec<(&'static str, u64)>,
    /// Runs of the script in which a call failed.
    pub runs: u64,
    /// Answers in those runs, all of which were held.
    pub answers: u64,
    /// Directories that were looked at.
    pub states: u64,
    /// Answers that came after a failed sync.
    pub violations: u64,
    /// What was found.
    pub found: Tally,
}

/// Runs the plan.
///
/// # Errors
/// When something of the driver itself goes wrong.
pub fn run(plan: &Plan) -> Outcome<Report> {
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
        while runner.fault(*mode, k)? && plan.only.is_none() {
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
    /// Runs the script with one fault; false when the script did not get that far.
    fn fault(&mut self, mode: Mode, k: u64) -> Outcome<bool> {
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
        let again = format!(
            "--modes {} --k {k} --seed {} --steps {} --served {} --long {}",
            mode.name, self.plan.seed, self.plan.steps, self.plan.served, self.plan.long
        );
        if !status.success() {
            self.report.found.note(&Wrong::Broken(format!("the child ended with {status}")), &again);
        }
        let told = Told::read(&lines(&log)?);
        if !told.faulty {
            return Ok(false);
        }
        self.report.runs += 1;
        self.report.answers += told.answered.len() as u64;
        for violation in &told.after_failed_sync {
            self.report.violations += 1;
            let what = format!("answered after a failed sync: {violation}");
            self.report.found.note(&Wrong::Broken(what), &again);
        }
        if mode.power {
            self.cut(&told, &trace::read(&traced)?, k, &again)?;
        } else {
            self.check(&told, &data, &again)?;
        }
        Ok(true)
    }

    /// Looks at what the failed process left.
    fn check(&mut self, told: &Told, data: &Path, again: &str) -> Outcome<()> {
        self.report.states += 1;
        let wrong = match look(&self.runtime, data, time_of(told.last)) {
            Err(wrong) => Some(wrong),
            Ok(view) => self.runtime.block_on(told.judge(&self.script, &view))?,
        };
        if let Some(wrong) = wrong {
            self.report.found.note(&wrong, again);
        }
        Ok(())
    }

    /// Looks at what may be left when, after the failed sync and whatever the process did then, the power fails.
    fn cut(&mut self, told: &Told, events: &[trace::Event], k: u64, again: &str) -> Outcome<()> {
        let data = self.plan.scratch.join("cut");
        let mut disk = Disk::holding(&Image::new(), true);
        events.iter().for_each(|event| disk.happen(event));
        let choices = [Choice::Kept, Choice::Dropped, Choice::Writes, Choice::Blocks, Choice::Reordered];
        let mut before: Vec<Image> = Vec::new();
        for (n, choice) in choices.into_iter().enumerate() {
            let image = disk.image(choice, &mut Rng::of(&[self.plan.seed, k, n as u64]));
            if before.contains(&image) {
                continue;
            }
            write_out(&image, &data)?;
            self.check(told, &data, &format!("{again} ({choice:?})"))?;
            before.push(image);
        }
        Ok(())
    }
}

fn clear(data: &Path, files: &[&PathBuf]) -> Outcome<()> {
    if data.exists() {
        std::fs::remove_dir_all(data)?;
    }
    super::make_private(data)?;
    for file in files {
        if file.exists() {
            std::fs::remove_file(file)?;
        }
    }
    debug_assert!(read_in(data)?.is_empty(), "every run starts with nothing");
    Ok(())
}
