//! Tests process kills. A child works on a store and is killed after it has written a random number of log
//! lines, again and again, on the same directory. After every kill a copy of the directory is checked, so
//! that the directory itself is never closed cleanly.

use super::ToolResult;
use super::disk::{read_image, write_image};
use super::inspect::Findings;
use super::ledger::Ledger;
use super::oracle::Violation;
use super::replies::Reader;
use super::rng::Rng;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The number of kills on one directory before a new one is used.
const CYCLES_PER_STORE: u64 = 50;

/// The minimum length of a log line: a letter and an id.
const LINE_BYTES: u64 = 39;

/// How often the driver checks the progress of the child.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The number of kills.
    pub cycles: u64,
    /// The seed of all random choices.
    pub seed: u64,
    /// The number of tasks that enqueue.
    pub producers: u64,
    /// The number of tasks that lease and settle.
    pub workers: u64,
    /// Whether the first violation ends the run.
    pub stop_early: bool,
    /// The path of this driver.
    pub program: PathBuf,
    /// The directory for all files.
    pub scratch: PathBuf,
}

/// What was done and found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The number of kills.
    pub cycles: u64,
    /// Acknowledged enqueues.
    pub enqueues: u64,
    /// Acknowledged acks.
    pub acks: u64,
    /// Other acknowledged changes.
    pub others: u64,
    /// The violations that were found.
    pub found: Findings,
}

impl Report {
    fn should_stop(&self, plan: &Plan) -> bool {
        let Findings { lost, resurrected, other, .. } = self.found;
        plan.stop_early && lost + resurrected + other > 0
    }
}

/// A child that is killed when it is dropped.
struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the kill loop.
///
/// # Errors
/// If the driver itself fails.
pub fn run(plan: &Plan) -> ToolResult<Report> {
    let runtime = super::runtime()?;
    let mut rng = Rng::of(&[plan.seed, 0x6b69_6c6c]);
    let mut report = Report::default();
    while report.cycles < plan.cycles && !report.should_stop(plan) {
        let store = report.cycles / CYCLES_PER_STORE;
        let (data, log) =
            (plan.scratch.join(format!("data-{store}")), plan.scratch.join(format!("log-{store}")));
        let (mut ledger, mut reader) = (Ledger::default(), Reader::default());
        let end = plan.cycles.min(report.cycles + CYCLES_PER_STORE);
        while report.cycles < end && !report.should_stop(plan) {
            let repro =
                format!("--seed {} (cycle {}; kill times differ from run to run)", plan.seed, report.cycles);
            if let Some(violation) = cycle(plan, &data, &log, report.cycles, &mut rng)? {
                report.found.record(&violation, &repro);
            }
            report.cycles += 1;
            for line in reader.read_new_lines(&log)? {
                ledger.read_line(&line)?;
            }
            let copy = plan.scratch.join("copy");
            write_image(&read_image(&data)?, &copy)?;
            runtime.block_on(ledger.check(&copy, &repro, &mut report.found))?;
        }
        report.enqueues += ledger.enqueues;
        report.acks += ledger.acks;
        report.others += ledger.others;
        std::fs::remove_dir_all(&data)?;
        std::fs::remove_file(&log)?;
    }
    Ok(report)
}

/// Runs one child from its start to its kill.
fn cycle(plan: &Plan, data: &Path, log: &Path, n: u64, rng: &mut Rng) -> ToolResult<Option<Violation>> {
    let mut command = Command::new(&plan.program);
    command.arg("work").arg("--data").arg(data).arg("--log").arg(log);
    command.args(["--producers", &plan.producers.to_string(), "--workers", &plan.workers.to_string()]);
    command.args(["--seed", &plan.seed.wrapping_add(n).to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let log_bytes = || std::fs::metadata(log).map_or(0, |log| log.len());
    let before = log_bytes();
    let mut child = KillOnDrop(command.spawn()?);
    let mut first = String::new();
    if let Some(out) = child.0.stdout.take() {
        BufReader::new(out).read_line(&mut first)?;
    }
    // The kill waits for log lines instead of time, so that a child gets as far on a slow machine.
    let (lines, ms) =
        if n % 10 == 9 { (500 + rng.below(500), 200 + rng.below(300)) } else { (rng.below(200), 0) };
    if first.trim_end() == "open" {
        // Some children outlive their leases, so that leases expire.
        std::thread::sleep(Duration::from_millis(ms));
        while log_bytes() < before + lines * LINE_BYTES && child.0.try_wait()?.is_none() {
            std::thread::sleep(POLL_INTERVAL);
        }
    }
    if let Some(status) = child.0.try_wait()? {
        let mut stderr_line = String::new();
        if let Some(errors) = child.0.stderr.take() {
            BufReader::new(errors).read_line(&mut stderr_line)?;
        }
        return Ok(Some(Violation::Unopenable(format!(
            "the child exited early, {status}: {}",
            stderr_line.trim_end()
        ))));
    }
    child.0.kill()?;
    child.0.wait()?;
    Ok(None)
}
