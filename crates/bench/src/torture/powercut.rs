//! Tests power cuts. A script is recorded once; then for every point of the recording the disk is put into
//! states that it may be in at that point ([`super::disk`]). Each state must open, verify, show everything
//! that was acknowledged up to that point, and work. For some states the recovery is recorded too, and the
//! power fails again during it.

use super::ToolResult;
use super::disk::{Disk, Image, LossMode, fingerprint, write_image};
use super::inspect::{Findings, inspect_store};
use super::oracle::{ExpectedStep, View, Violation, expected_steps};
use super::replies::lines;
use super::rng::Rng;
use super::script::Script;
use super::shim::Shim;
use super::trace::{self, Event};
use redrive::core::time::Time;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use tokio::runtime::Runtime;

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The total number of states to inspect.
    pub states: u64,
    /// The seed of all random choices.
    pub seed: u64,
    /// The number of scripts.
    pub scripts: u64,
    /// The number of random steps of each script, after the tour.
    pub steps: usize,
    /// The number of states whose recovery is interrupted too.
    pub nested: u64,
    /// The number of states taken from a script that is long enough for a checkpoint while the store is open.
    pub long: u64,
    /// Inspects only this state: script, place in the recording, round.
    pub only: Option<(u64, usize, u64)>,
    /// The path of this driver.
    pub program: PathBuf,
    /// The directory for all files.
    pub scratch: PathBuf,
}

/// What was done and found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Different states that were inspected.
    pub states: u64,
    /// States among them after a second power cut, during the recovery from the first.
    pub nested: u64,
    /// Places in the recordings.
    pub places: u64,
    /// The violations that were found.
    pub found: Findings,
}

/// A recorded script and its expected views.
struct Recording {
    events: Vec<Event>,
    expected_steps: Vec<ExpectedStep>,
}

/// What the store must show at a place of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Expectation {
    /// The number of steps that had a reply.
    answered: usize,
    /// Whether the next step was in progress.
    under_way: bool,
}

impl Expectation {
    fn read_line(&mut self, line: &str) {
        match line.split(' ').next() {
            Some("+") => self.under_way = true,
            Some("=" | "s") => {
                self.answered += 1;
                self.under_way = false;
            }
            _ => {}
        }
    }

    /// The time to inspect at, the expected view, and the view that is allowed instead.
    fn expected_views(self, expected_steps: &[ExpectedStep]) -> Option<(Time, &View, Option<&View>)> {
        match expected_steps.get(self.answered) {
            Some(next) => Some((next.time, &next.before, self.under_way.then_some(&next.after))),
            None => expected_steps.last().map(|last| (last.time, &last.after, None)),
        }
    }
}

/// Runs the power cuts.
///
/// # Errors
/// If the driver itself fails.
pub fn run(plan: &Plan) -> ToolResult<Report> {
    let shim = Shim::build(&plan.scratch)?;
    let scripts: Vec<u64> = match plan.only {
        Some((script, _, _)) => vec![script],
        None => (0..plan.scripts).collect(),
    };
    let mut report = Report::default();
    let mut share: Vec<(u64, u64, u64)> = Vec::new();
    let each = plan.states.saturating_sub(plan.long).div_ceil(scripts.len() as u64);
    share.extend(scripts.iter().map(|n| (*n, each, plan.nested / scripts.len() as u64)));
    if plan.only.is_none() && plan.long > 0 {
        share.push((LONG, plan.long, 0));
    }
    for (n, budget, nested) in share {
        let mut cutter = PowerCutter::new(plan, &shim, n)?;
        cutter.run(budget, nested)?;
        let found = cutter.report;
        report.states += found.states;
        report.nested += found.nested;
        report.places += found.places;
        report.found.merge(found.found);
    }
    Ok(report)
}

/// Cuts the power at places of one recording.
struct PowerCutter<'a> {
    plan: &'a Plan,
    shim: &'a Shim,
    n: u64,
    /// The first step to inspect, and the sampling rate of places from there on.
    from: usize,
    sample_one_in: u64,
    recording: Recording,
    runtime: Runtime,
    directory: PathBuf,
    known: HashSet<(u64, Expectation)>,
    report: Report,
}

fn record(shim: &Shim, plan: &Plan, data: &Path, words: &[&str]) -> ToolResult<(Vec<Event>, Vec<String>)> {
    let (trace, log) = (plan.scratch.join("trace"), plan.scratch.join("log"));
    for old in [&trace, &log] {
        if old.exists() {
            std::fs::remove_file(old)?;
        }
    }
    let mut command = shim.command(&plan.program, data, &log);
    command.env("REDRIVE_SHIM_TRACE", &trace).args(words);
    command.arg("--data").arg(data).arg("--log").arg(&log);
    let status = command.status()?;
    if !status.success() {
        return Err(format!("the recorded child failed: {status}").into());
    }
    Ok((trace::read(&trace)?, lines(&log)?))
}

impl<'a> PowerCutter<'a> {
    fn new(plan: &'a Plan, shim: &'a Shim, n: u64) -> ToolResult<Self> {
        let seed = plan.seed.wrapping_mul(1_000).wrapping_add(n);
        let (script, from) = match n {
            LONG => Script::long(seed, plan.steps)?,
            _ => (Script::random(seed, plan.steps, n.is_multiple_of(2))?, 0),
        };
        let path = plan.scratch.join("script.json");
        script.save(&path)?;
        let data = plan.scratch.join(format!("recorded-{n}"));
        super::make_private(&data)?;
        let (events, log) = record(
            shim,
            plan,
            &data,
            &["script", "--script", path.to_str().ok_or("the path of the script is not UTF-8")?],
        )?;
        std::fs::remove_dir_all(&data)?;
        let expected_steps = expected_steps(&script)?;
        let mut report = Report { places: events.len() as u64, ..Report::default() };
        for violation in wrong_replies(&expected_steps, &log) {
            report.found.record(&violation, &format!("--seed {} (script {n}, no cut)", plan.seed));
        }
        Ok(Self {
            plan,
            shim,
            n,
            from,
            sample_one_in: 1,
            recording: Recording { events, expected_steps },
            runtime: super::runtime()?,
            directory: plan.scratch.join("cut"),
            known: HashSet::new(),
            report,
        })
    }

    fn run(&mut self, budget: u64, nested: u64) -> ToolResult<()> {
        if let Some((_, place, round)) = self.plan.only {
            return self.round(round, Some(place), u64::MAX, &HashSet::new());
        }
        let places = self.recording.events.len() as u64;
        self.sample_one_in = (places * ROUNDS_WANTED / budget.max(1)).max(1);
        let mut rng = Rng::of(&[self.plan.seed, self.n, 0x6e65_7374]);
        let places = (0..nested).map(|_| rng.index(self.recording.events.len())).collect();
        self.round(ROUNDS_MAX, None, budget, &places)?;
        let mut round = 0;
        while self.report.states < budget && round < ROUNDS_MAX {
            self.round(round, None, budget, &HashSet::new())?;
            round += 1;
        }
        Ok(())
    }

    /// Goes through the recording once and inspects one state per place. In the round for nested cuts it
    /// inspects only the `nested` places, together with states of their recovery.
    fn round(
        &mut self,
        round: u64,
        only: Option<usize>,
        budget: u64,
        nested: &HashSet<usize>,
    ) -> ToolResult<()> {
        let mut disk = Disk::with_image(&Image::new(), round % 2 == 1);
        let mut expectation = Expectation { answered: 0, under_way: false };
        for place in 0..self.recording.events.len() {
            let Some(event) = self.recording.events.get(place) else { break };
            disk.apply(event);
            let settles = matches!(event, Event::LogLine(_));
            if let Event::LogLine(line) = event {
                expectation.read_line(line);
            }
            let mut rng = Rng::of(&[self.plan.seed, self.n, place as u64, round]);
            let taken = expectation.answered >= self.from && rng.one_in(self.sample_one_in);
            let wanted = match only {
                Some(only) => only == place,
                None if round == ROUNDS_MAX => nested.contains(&place),
                None => taken && (!disk.is_durable() || (round == 0 && settles)),
            };
            if !wanted {
                continue;
            }
            if self.report.states >= budget {
                return Ok(());
            }
            let choice = match round {
                0 => LossMode::Kept,
                1 | 2 => LossMode::Dropped,
                _ => rng.pick(&LossMode::ALL).copied().unwrap_or(LossMode::Kept),
            };
            let image = disk.image(choice, &mut rng);
            let repro = format!("--seed {} --only {}:{place}:{round} ({choice:?})", self.plan.seed, self.n);
            if only.is_some() || self.known.insert((fingerprint(&image), expectation)) {
                self.report.states += 1;
                self.check(&image, expectation, false, &repro)?;
            }
            if nested.contains(&place) {
                self.cut_recovery(&image, expectation, &mut rng, &repro)?;
            }
        }
        Ok(())
    }

    /// Writes an image to disk and inspects it. A store that was recovering may have extended leases.
    fn check(
        &mut self,
        image: &Image,
        expectation: Expectation,
        recovering: bool,
        repro: &str,
    ) -> ToolResult<()> {
        let Some((time, must, may)) = expectation.expected_views(&self.recording.expected_steps) else {
            return Ok(());
        };
        write_image(image, &self.directory)?;
        let violation = match inspect_store(&self.runtime, &self.directory, time) {
            Err(violation) => Some(violation),
            Ok(view)
                if recovering
                    && may.is_some_and(|may| may.without_lease_times() == view.without_lease_times()) =>
            {
                None
            }
            Ok(view) if recovering => must.without_lease_times().violation(&view.without_lease_times()),
            Ok(view) if may == Some(&view) => None,
            Ok(view) => must.violation(&view),
        };
        if let Some(violation) = violation {
            self.report.found.record(&violation, repro);
        }
        Ok(())
    }

    /// Cuts the power again while the store recovers (I7).
    fn cut_recovery(
        &mut self,
        image: &Image,
        expectation: Expectation,
        rng: &mut Rng,
        repro: &str,
    ) -> ToolResult<()> {
        let data = self.plan.scratch.join("recovering");
        write_image(image, &data)?;
        let (events, _) = match record(self.shim, self.plan, &data, &["recover"]) {
            Ok(recorded) => recorded,
            Err(error) => {
                self.report.found.record(&Violation::Unopenable(error.to_string()), repro);
                return Ok(());
            }
        };
        let mut places: Vec<usize> = (0..events.len()).collect();
        rng.shuffle(&mut places);
        let chosen: HashSet<usize> =
            places.into_iter().take(usize::try_from(INNER).unwrap_or(usize::MAX)).collect();
        let mut disk = Disk::with_image(image, rng.one_in(2));
        for (place, event) in events.iter().enumerate() {
            disk.apply(event);
            if !chosen.contains(&place) {
                continue;
            }
            let choice = rng.pick(&LossMode::ALL).copied().unwrap_or(LossMode::Dropped);
            let inner = disk.image(choice, rng);
            if self.known.insert((fingerprint(&inner), expectation)) {
                self.report.states += 1;
                self.report.nested += 1;
                self.check(
                    &inner,
                    expectation,
                    true,
                    &format!("{repro}, then {choice:?} at {place} of recovery"),
                )?;
            }
        }
        Ok(())
    }
}

/// The number of the long script.
const LONG: u64 = 999;
/// The number of states inspected during one recovery.
const INNER: u64 = 12;
/// The minimum number of rounds through a recording, so that states of every kind come from everywhere.
const ROUNDS_WANTED: u64 = 6;
/// The maximum number of rounds through a recording; also the number of the round with nested cuts.
const ROUNDS_MAX: u64 = 10_000;

/// The replies of a run without faults that differ from the model's.
fn wrong_replies(expected_steps: &[ExpectedStep], log: &[String]) -> Vec<Violation> {
    let script_log = super::oracle::ScriptLog::read(log);
    let mut violation: Vec<Violation> = Vec::new();
    for (n, reply) in &script_log.answered {
        if expected_steps.get(*n).is_none_or(|step| step.reply != Some(*reply)) {
            violation.push(Violation::Broken(format!("the reply to step {n} differs from the model's")));
        }
    }
    let due = expected_steps.iter().filter(|step| step.reply.is_some()).count();
    if script_log.answered.len() != due {
        violation.push(Violation::Broken(format!(
            "{} steps had a reply, {due} were expected",
            script_log.answered.len()
        )));
    }
    violation
}
