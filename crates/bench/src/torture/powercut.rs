//! The power fails. A script is recorded once; then for every point of the recording the disk is put into
//! states that it may be in at that point ([`super::disk`]), and each must open, add up, show what was promised
//! up to there, and work. Some states are opened under recording again, and the power fails during recovery.

use super::Outcome;
use super::disk::{Choice, Disk, Image, fingerprint, write_out};
use super::inspect::{Tally, look};
use super::oracle::{Moment, View, Wrong, moments};
use super::replies::lines;
use super::rng::Rng;
use super::script::Script;
use super::shim::Shim;
use super::trace::{self, Event};
use redrive::core::time::Time;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use tokio::runtime::Runtime;

/// What to do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// States to look at, in all.
    pub states: u64,
    /// The seed of everything.
    pub seed: u64,
    /// How many scripts.
    pub scripts: u64,
    /// Random steps of each script, after the tour.
    pub steps: usize,
    /// States whose recovery is cut off too.
    pub nested: u64,
    /// Of all states, those of a script that is long enough for a checkpoint while the store is open.
    pub long: u64,
    /// Only this state: script, place in the recording, round.
    pub only: Option<(u64, usize, u64)>,
    /// The driver itself.
    pub program: PathBuf,
    /// Where everything happens.
    pub scratch: PathBuf,
}

/// What was done and found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Different states that were looked at.
    pub states: u64,
    /// Of those, states after a second power cut, during recovery from the first.
    pub nested: u64,
    /// Places of the recordings.
    pub places: u64,
    /// What was found.
    pub found: Tally,
}

/// A recorded script and what it must show.
struct Recording {
    events: Vec<Event>,
    moments: Vec<Moment>,
}

/// What must be there at a place of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Promise {
    /// Steps that were answered.
    answered: usize,
    /// Whether the next one was under way.
    under_way: bool,
}

impl Promise {
    fn hear(&mut self, line: &str) {
        match line.split(' ').next() {
            Some("+") => self.under_way = true,
            Some("=" | "s") => {
                self.answered += 1;
                self.under_way = false;
            }
            _ => {}
        }
    }

    /// The time to look at, what must be there, and what may be there instead.
    fn keep(self, moments: &[Moment]) -> Option<(Time, &View, Option<&View>)> {
        match moments.get(self.answered) {
            Some(next) => Some((next.time, &next.before, self.under_way.then_some(&next.after))),
            None => moments.last().map(|last| (last.time, &last.after, None)),
        }
    }
}

/// Runs the plan.
///
/// # Errors
/// When something of the driver itself goes wrong.
pub fn run(plan: &Plan) -> Outcome<Report> {
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
        let mut cutter = Cutter::new(plan, &shim, n)?;
        cutter.run(budget, nested)?;
        let found = cutter.report;
        report.states += found.states;
        report.nested += found.nested;
        report.places += found.places;
        report.found.add(found.found);
    }
    Ok(report)
}

/// Cuts one recording.
struct Cutter<'a> {
    plan: &'a Plan,
    shim: &'a Shim,
    n: u64,
    /// The step with which it becomes interesting, and of how many places from there on one is taken.
    from: usize,
    thin: u64,
    recording: Recording,
    runtime: Runtime,
    directory: PathBuf,
    known: HashSet<(u64, Promise)>,
    report: Report,
}

fn record(shim: &Shim, plan: &Plan, data: &Path, words: &[&str]) -> Outcome<(Vec<Event>, Vec<String>)> {
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

impl<'a> Cutter<'a> {
    fn new(plan: &'a Plan, shim: &'a Shim, n: u64) -> Outcome<Self> {
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
            &["script", "--script", path.to_str().ok_or("a path that is no text")?],
        )?;
        std::fs::remove_dir_all(&data)?;
        let moments = moments(&script)?;
        let mut report = Report { places: events.len() as u64, ..Report::default() };
        for wrong in wrong_answers(&moments, &log) {
            report.found.note(&wrong, &format!("--seed {} (script {n}, no cut)", plan.seed));
        }
        Ok(Self {
            plan,
            shim,
            n,
            from,
            thin: 1,
            recording: Recording { events, moments },
            runtime: super::runtime()?,
            directory: plan.scratch.join("cut"),
            known: HashSet::new(),
            report,
        })
    }

    fn run(&mut self, budget: u64, nested: u64) -> Outcome<()> {
        if let Some((_, place, round)) = self.plan.only {
            return self.round(round, Some(place), u64::MAX, &HashSet::new());
        }
        let places = self.recording.events.len() as u64;
        self.thin = (places * ROUNDS_WANTED / budget.max(1)).max(1);
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

    /// Goes through the recording once and looks at one state per place; at these places, also at states of
    /// its recovery, and at none elsewhere.
    fn round(
        &mut self,
        round: u64,
        only: Option<usize>,
        budget: u64,
        nested: &HashSet<usize>,
    ) -> Outcome<()> {
        let mut disk = Disk::holding(&Image::new(), round % 2 == 1);
        let mut promise = Promise { answered: 0, under_way: false };
        for place in 0..self.recording.events.len() {
            let Some(event) = self.recording.events.get(place) else { break };
            disk.happen(event);
            let settles = matches!(event, Event::Said(_));
            if let Event::Said(line) = event {
                promise.hear(line);
            }
            let mut rng = Rng::of(&[self.plan.seed, self.n, place as u64, round]);
            let taken = promise.answered >= self.from && rng.one_in(self.thin);
            let wanted = match only {
                Some(only) => only == place,
                None if round == ROUNDS_MAX => nested.contains(&place),
                None => taken && (!disk.is_sure() || (round == 0 && settles)),
            };
            if !wanted {
                continue;
            }
            if self.report.states >= budget {
                return Ok(());
            }
            let choice = match round {
                0 => Choice::Kept,
                1 | 2 => Choice::Dropped,
                _ => rng.pick(&Choice::ALL).copied().unwrap_or(Choice::Kept),
            };
            let image = disk.image(choice, &mut rng);
            let again = format!("--seed {} --only {}:{place}:{round} ({choice:?})", self.plan.seed, self.n);
            if only.is_some() || self.known.insert((fingerprint(&image), promise)) {
                self.report.states += 1;
                self.check(&image, promise, false, &again)?;
            }
            if nested.contains(&place) {
                self.cut_recovery(&image, promise, &mut rng, &again)?;
            }
        }
        Ok(())
    }

    /// Puts an image in place and looks at it. A store that was recovering may have given leases more time.
    fn check(&mut self, image: &Image, promise: Promise, recovering: bool, again: &str) -> Outcome<()> {
        let Some((time, must, may)) = promise.keep(&self.recording.moments) else { return Ok(()) };
        write_out(image, &self.directory)?;
        let wrong = match look(&self.runtime, &self.directory, time) {
            Err(wrong) => Some(wrong),
            Ok(view) if recovering && may.is_some_and(|may| may.timeless() == view.timeless()) => None,
            Ok(view) if recovering => must.timeless().wrong(&view.timeless()),
            Ok(view) if may == Some(&view) => None,
            Ok(view) => must.wrong(&view),
        };
        if let Some(wrong) = wrong {
            self.report.found.note(&wrong, again);
        }
        Ok(())
    }

    /// The power fails again while the store recovers (I7).
    fn cut_recovery(&mut self, image: &Image, promise: Promise, rng: &mut Rng, again: &str) -> Outcome<()> {
        let data = self.plan.scratch.join("recovering");
        write_out(image, &data)?;
        let (events, _) = match record(self.shim, self.plan, &data, &["recover"]) {
            Ok(recorded) => recorded,
            Err(error) => {
                self.report.found.note(&Wrong::Unopenable(error.to_string()), again);
                return Ok(());
            }
        };
        let mut places: Vec<usize> = (0..events.len()).collect();
        rng.shuffle(&mut places);
        let chosen: HashSet<usize> =
            places.into_iter().take(usize::try_from(INNER).unwrap_or(usize::MAX)).collect();
        let mut disk = Disk::holding(image, rng.one_in(2));
        for (place, event) in events.iter().enumerate() {
            disk.happen(event);
            if !chosen.contains(&place) {
                continue;
            }
            let choice = rng.pick(&Choice::ALL).copied().unwrap_or(Choice::Dropped);
            let inner = disk.image(choice, rng);
            if self.known.insert((fingerprint(&inner), promise)) {
                self.report.states += 1;
                self.report.nested += 1;
                self.check(
                    &inner,
                    promise,
                    true,
                    &format!("{again}, then {choice:?} at {place} of recovery"),
                )?;
            }
        }
        Ok(())
    }
}

/// The number of the long script.
const LONG: u64 = 999;
/// States looked at of one recovery.
const INNER: u64 = 12;
/// Times a recording is gone through at least, so that a few states are from everywhere and of every kind.
const ROUNDS_WANTED: u64 = 6;
/// Times a recording is gone through at most; the number of the round in which recoveries are cut.
const ROUNDS_MAX: u64 = 10_000;

/// Answers of a run in which nothing failed that are not the model's.
fn wrong_answers(moments: &[Moment], log: &[String]) -> Vec<Wrong> {
    let told = super::oracle::Told::read(log);
    let mut wrong: Vec<Wrong> = Vec::new();
    for (n, reply) in &told.answered {
        if moments.get(*n).is_none_or(|moment| moment.reply != Some(*reply)) {
            wrong.push(Wrong::Broken(format!("the answer to step {n} is not the model's")));
        }
    }
    let due = moments.iter().filter(|moment| moment.reply.is_some()).count();
    if told.answered.len() != due {
        wrong.push(Wrong::Broken(format!("{} steps were answered, {due} were due", told.answered.len())));
    }
    wrong
}
