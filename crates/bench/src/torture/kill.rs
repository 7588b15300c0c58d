//! The process is killed. A child works on a store and is killed after it has said a random number of things, again and
//! again, on the same directory. After every kill a copy of the directory is checked, so that the directory
//! itself goes from crash to crash without ever being closed.

use super::Outcome;
use super::disk::{read_in, write_out};
use super::inspect::Tally;
use super::ledger::Ledger;
use super::oracle::Wrong;
use super::replies::Reader;
use super::rng::Rng;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Kills on one directory before a fresh one is taken.
const CYCLES_PER_STORE: u64 = 50;

/// What a line of the log has at least: a letter and an id.
const LINE_BYTES: u64 = 39;

/// How often it is looked how far a child came.
const LOOK_EVERY: Duration = Duration::from_micros(200);

/// What to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Kills.
    pub cycles: u64,
    /// The seed of everything that can have one.
    pub seed: u64,
    /// Tasks that enqueue.
    pub producers: u64,
    /// Tasks that lease and settle.
    pub workers: u64,
    /// Whether the first promise that is seen to be broken ends it.
    pub stop_early: bool,
    /// The driver itself.
    pub program: PathBuf,
    /// Where everything happens.
    pub scratch: PathBuf,
}

/// What was done and found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Kills.
    pub cycles: u64,
    /// Enqueues that were acknowledged.
    pub enqueues: u64,
    /// Acks that were acknowledged.
    pub acks: u64,
    /// Other changes that were acknowledged.
    pub others: u64,
    /// What was found.
    pub found: Tally,
}

impl Report {
    fn enough(&self, plan: &Plan) -> bool {
        let Tally { lost, resurrected, other, .. } = self.found;
        plan.stop_early && lost + resurrected + other > 0
    }
}

/// A child that is killed when it is forgotten.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the plan.
///
/// # Errors
/// When something of the driver itself goes wrong.
pub fn run(plan: &Plan) -> Outcome<Report> {
    let runtime = super::runtime()?;
    let mut rng = Rng::of(&[plan.seed, 0x6b69_6c6c]);
    let mut report = Report::default();
    while report.cycles < plan.cycles && !report.enough(plan) {
        let store = report.cycles / CYCLES_PER_STORE;
        let (data, log) =
            (plan.scratch.join(format!("data-{store}")), plan.scratch.join(format!("log-{store}")));
        let (mut ledger, mut reader) = (Ledger::default(), Reader::default());
        let end = plan.cycles.min(report.cycles + CYCLES_PER_STORE);
        while report.cycles < end && !report.enough(plan) {
            let again =
                format!("--seed {} (cycle {}; moments differ from run to run)", plan.seed, report.cycles);
            if let Some(wrong) = cycle(plan, &data, &log, report.cycles, &mut rng)? {
                report.found.note(&wrong, &again);
            }
            report.cycles += 1;
            for line in reader.more(&log)? {
                ledger.hear(&line)?;
            }
            let copy = plan.scratch.join("copy");
            write_out(&read_in(&data)?, &copy)?;
            runtime.block_on(ledger.check(&copy, &again, &mut report.found))?;
        }
        report.enqueues += ledger.enqueues;
        report.acks += ledger.acks;
        report.others += ledger.others;
        std::fs::remove_dir_all(&data)?;
        std::fs::remove_file(&log)?;
    }
    Ok(report)
}

/// One life of a child, from its start to its kill.
fn cycle(plan: &Plan, data: &Path, log: &Path, n: u64, rng: &mut Rng) -> Outcome<Option<Wrong>> {
    let mut command = Command::new(&plan.program);
    command.arg("work").arg("--data").arg(data).arg("--log").arg(log);
    command.args(["--producers", &plan.producers.to_string(), "--workers", &plan.workers.to_string()]);
    command.args(["--seed", &plan.seed.wrapping_add(n).to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let said = || std::fs::metadata(log).map_or(0, |log| log.len());
    let before = said();
    let mut child = Killed(command.spawn()?);
    let mut first = String::new();
    if let Some(out) = child.0.stdout.take() {
        BufReader::new(out).read_line(&mut first)?;
    }
    // How much it says before it is killed: on a slow machine a life takes longer, and gets as far.
    let (lines, ms) =
        if n % 10 == 9 { (500 + rng.below(500), 200 + rng.below(300)) } else { (rng.below(200), 0) };
    if first.trim_end() == "open" {
        // Leases run out only in a life that is longer than they are, so some are.
        std::thread::sleep(Duration::from_millis(ms));
        while said() < before + lines * LINE_BYTES && child.0.try_wait()?.is_none() {
            std::thread::sleep(LOOK_EVERY);
        }
    }
    if let Some(status) = child.0.try_wait()? {
        let mut said = String::new();
        if let Some(errors) = child.0.stderr.take() {
            BufReader::new(errors).read_line(&mut said)?;
        }
        return Ok(Some(Wrong::Unopenable(format!(
            "the child ended by itself, {status}: {}",
            said.trim_end()
        ))));
    }
    child.0.kill()?;
    child.0.wait()?;
    Ok(None)
}
