//! Scripts: the tour, which uses every call once, and random scripts, which continue from there. They are
//! generated with the help of the reference model, so that most steps have an effect. The child that runs a
//! script reads it from a file, logs every intended call and every reply, and continues whatever the store
//! returns.

use super::ToolResult;
use super::oracle::View;
use super::replies::Log;
use super::rng::Rng;
use super::steps::{Entry, LetterAct, SettleOp, Step, StepOutcome, StepRunner, time_of};
use redrive::core::dead_letter::{DeadLetter, Status};
use redrive::core::error::StoreError;
use redrive::core::ids::MessageId;
use redrive::core::lifecycle::State;
use redrive_store::entropy::Entropy;
use redrive_store::sqlite::{Options, SqliteStore};
use redrive_testkit::clock::TestClock;
use redrive_testkit::ids::message_id;
use redrive_testkit::model::Model;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

/// The number of bulk steps that fill a log, at 50 pages each. The store starts a checkpoint at 4,000 pages
/// while it commits, and the log restarts some steps after that.
const BULK_STEPS: u8 = 130;

/// A list of steps.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Script {
    /// The steps.
    pub steps: Vec<Step>,
    /// Whether the store is opened by a long-lived holder: its log is preallocated and leases are extended at
    /// open. The model does not extend leases, so nothing is leased when the store is reopened.
    pub served: bool,
}

fn entry(n: u64, queue: usize) -> Entry {
    Entry { n, queue, key: None, order: None, delay: 0 }
}

impl Script {
    /// Every call, in the order of a message's lifecycle. The numbers are chosen so that one of the first
    /// messages has a payload of several pages.
    #[must_use]
    pub fn tour(served: bool) -> Self {
        let big = (50..100).find(|n| super::rng::payload(*n).len() > 9_000).unwrap_or(50);
        let keyed = |n, key| Entry { key: Some(key), ..entry(n, 0) };
        let ordered = |n| Entry { order: Some(1), ..entry(n, 1) };
        let steps = vec![
            Step::Configure(0, 2),
            Step::Enqueue(vec![keyed(1, 1), keyed(2, 2), entry(3, 0), entry(4, 0)]),
            Step::Enqueue(vec![ordered(5), ordered(6), Entry { delay: 60, ..entry(7, 1) }]),
            Step::Enqueue(vec![entry(big, 2), entry(9, 2)]),
            Step::Lease(0, 3, 20),
            Step::Settle(vec![
                (1, SettleOp::Reply),
                (2, SettleOp::FailPermanently(1)),
                (3, SettleOp::Fail(2)),
            ]),
            Step::Lease(1, 2, 20),
            Step::Settle(vec![(5, SettleOp::Progress(4))]),
            Step::Settle(vec![(5, SettleOp::FailPermanently(3))]),
            Step::Act(vec![(2, LetterAct::Retry)]),
            Step::Lease(0, 4, 20),
            Step::Settle(vec![(2, SettleOp::Ack), (4, SettleOp::Release)]),
            Step::Kv(0, 7),
            Step::Lease(2, 1, 1),
            Step::Lease(0, 2, 20),
            Step::Settle(vec![(3, SettleOp::Fail(2)), (4, SettleOp::FailPermanently(1))]),
            Step::Reap,
            Step::Reopen,
            Step::Cancel(vec![7]),
            Step::Start(1, LetterAct::Resolve, 0),
            Step::StepOperation(1),
            Step::StepOperation(1),
            Step::Act(vec![(3, LetterAct::Purge), (5, LetterAct::Quarantine(5))]),
            Step::Pause(2, true),
            Step::Purge(2),
            Step::Enqueue(vec![keyed(1, 1), entry(10, 0)]),
            Step::Lease(0, 1, 20),
            Step::Settle(vec![(10, SettleOp::Ack)]),
        ];
        Self { steps, served }
    }

    /// The tour and then this many random steps, with the store closed and reopened in between.
    ///
    /// # Errors
    /// If the model cannot be read.
    pub fn random(seed: u64, steps: usize, served: bool) -> ToolResult<Self> {
        Self::tour(served).continued(seed, steps, true)
    }

    /// This script followed by random steps, with or without reopening the store.
    fn continued(self, seed: u64, steps: usize, reopens: bool) -> ToolResult<Self> {
        super::runtime()?.block_on(async {
            let mut script = self;
            let length = script.steps.len();
            let clock = TestClock::shared();
            let model = Model::new(clock.clone());
            let mut generator = StepGenerator::new(seed);
            for n in 0..length + steps {
                clock.set(time_of(n));
                if n >= script.steps.len() {
                    let view = View::of(&model).await?;
                    let leased = view.store.messages.iter().any(|m| m.state == State::Leased);
                    let step = generator.step(&view);
                    let unwanted = matches!(step, Step::Reopen) && (!reopens || (script.served && leased));
                    script.steps.push(if unwanted { Step::Reap } else { step });
                }
                if let Some(step) = script.steps.get(n) {
                    generator.runner.run(&model, step, time_of(n)).await;
                }
            }
            Ok(script)
        })
    }

    /// The tour, then enough data for a checkpoint while the store is open, then this many random steps on
    /// the restarted log. Also returns the first step worth inspecting.
    ///
    /// # Errors
    /// If the model cannot be read.
    pub fn long(seed: u64, steps: usize) -> ToolResult<(Self, usize)> {
        let mut script = Self::tour(true);
        script.steps.extend((0..BULK_STEPS).map(Step::Bulk));
        let interesting = script.steps.len().saturating_sub(usize::from(BULK_STEPS) / 2);
        Ok((script.continued(seed, steps, false)?, interesting))
    }

    /// Reads a script from a file.
    ///
    /// # Errors
    /// If the file cannot be read or is not a script.
    pub fn load(path: &Path) -> ToolResult<Self> {
        Ok(serde_json::from_slice(&std::fs::read(path)?)?)
    }

    /// Writes the script to a file.
    ///
    /// # Errors
    /// Any error of the file system.
    pub fn save(&self, path: &Path) -> ToolResult<()> {
        Ok(std::fs::write(path, serde_json::to_vec(self)?)?)
    }
}

/// Generates steps that have an effect.
struct StepGenerator {
    rng: Rng,
    runner: StepRunner,
    /// The numbers of all messages so far.
    numbers: BTreeMap<MessageId, u64>,
    started: u64,
}

impl StepGenerator {
    fn new(seed: u64) -> Self {
        let numbers = (0..100).map(|n| (message_id(n), n)).collect();
        Self { rng: Rng::of(&[seed, 0x7363_7269]), runner: StepRunner::default(), numbers, started: 1 }
    }

    fn step(&mut self, view: &View) -> Step {
        let number = |id: MessageId| self.numbers.get(&id).copied();
        let live: Vec<u64> = view.store.messages.iter().filter_map(|m| number(m.envelope.id)).collect();
        let held: Vec<u64> = live.iter().copied().filter(|n| self.runner.holds(*n)).collect();
        let letter =
            |l: &DeadLetter| Some((number(l.id())?, l.record.status, l.message.envelope.key.is_some()));
        let letters: Vec<(u64, Status, bool)> = view.store.letters.iter().filter_map(letter).collect();
        let queue = self.rng.index(3);
        match self.rng.below(40) {
            0..=8 if live.len() < 24 => self.send(queue),
            9..=15 => Step::Lease(queue, 1 + self.rng.index(4), 2 + self.rng.below(40)),
            0..=24 if !held.is_empty() => self.settle(&held),
            25..=29 if !letters.is_empty() => self.act(&letters),
            30 => Step::LeaseLetters(queue, 2),
            31 => {
                let drawn = letters.iter().filter(|(n, _, _)| self.runner.holds_letter(*n));
                Step::SettleLetters(
                    drawn.map(|(n, _, _)| (*n, (n % 3 > 0).then_some(LetterAct::Resolve))).collect(),
                )
            }
            32 => Step::Kv(self.rng.index(2), u8::try_from(self.rng.below(40)).unwrap_or(0)),
            33 => {
                self.started += 1;
                let act = if self.rng.one_in(2) { LetterAct::Retry } else { LetterAct::Resolve };
                Step::Start(self.started, act, queue)
            }
            34 => Step::StepOperation(self.started),
            35 if live.len() > 3 => Step::Cancel(self.rng.pick(&live).copied().into_iter().collect()),
            36 if live.len() > 10 => Step::Purge(queue),
            36 => Step::Pause(queue, self.rng.one_in(4)),
            37 => Step::Configure(queue, 1 + u32::try_from(self.rng.below(3)).unwrap_or(0)),
            38 => Step::Reopen,
            39 => Step::Reap,
            _ => self.send(queue),
        }
    }

    fn send(&mut self, queue: usize) -> Step {
        let count = 1 + self.rng.below(3);
        let mut batch = Vec::new();
        for _ in 0..count {
            let n = self.numbers.len() as u64;
            self.numbers.insert(message_id(n), n);
            let key = self.rng.one_in(4).then(|| self.rng.below(super::steps::KEYS));
            let order = self.rng.one_in(3).then(|| self.rng.below(2));
            let delay = if self.rng.one_in(4) { self.rng.below(9) } else { 0 };
            batch.push(Entry { n, queue, key, order, delay });
        }
        Step::Enqueue(batch)
    }

    fn settle(&mut self, held: &[u64]) -> Step {
        let count = 1 + self.rng.index(3);
        let mut batch = Vec::new();
        for _ in 0..count {
            let Some(n) = self.rng.pick(held).copied() else { continue };
            let which = u8::try_from(self.rng.below(5)).unwrap_or(0);
            let settle_op = match self.rng.below(10) {
                0..=2 => SettleOp::Ack,
                3 => SettleOp::Reply,
                4 => SettleOp::Progress(n % 9),
                5 | 6 => SettleOp::Fail(which),
                7 => SettleOp::FailPermanently(which),
                8 => SettleOp::Release,
                _ if self.rng.one_in(2) => SettleOp::Snooze(2),
                _ => SettleOp::Extend(20),
            };
            batch.push((n, settle_op));
        }
        Step::Settle(batch)
    }

    fn act(&mut self, letters: &[(u64, Status, bool)]) -> Step {
        let Some((n, status, keyed)) = self.rng.pick(letters).copied() else { return Step::Reap };
        let deeds: &[LetterAct] = match status {
            Status::Pending => &[
                LetterAct::Retry,
                LetterAct::Resolve,
                LetterAct::Review,
                LetterAct::Quarantine(3),
                LetterAct::Abandon,
                LetterAct::Note,
            ],
            Status::Retrying | Status::Purged => &[LetterAct::Note],
            Status::Review | Status::Quarantined => {
                &[LetterAct::Release, LetterAct::Resolve, LetterAct::Retry]
            }
            // The key state of a reopened message is not defined, so letters with a key are not reopened.
            Status::Resolved | Status::Abandoned if keyed => &[LetterAct::Purge, LetterAct::Note],
            Status::Resolved | Status::Abandoned => &[LetterAct::Purge, LetterAct::Purge, LetterAct::Reopen],
        };
        Step::Act(vec![(n, self.rng.pick(deeds).copied().unwrap_or(LetterAct::Note))])
    }
}

/// Randomness that is the same in every run, so that every run writes the same bytes.
struct SeededEntropy(Mutex<Rng>);

impl Entropy for SeededEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).fill(bytes);
    }
}

/// The options to open a script's store: with this clock and seeded randomness, as a long-lived holder or
/// not.
#[must_use]
pub fn options(clock: &Arc<TestClock>, seed: u64, served: bool) -> Options {
    let entropy = Arc::new(SeededEntropy(Mutex::new(Rng::of(&[seed, 0x656e_7472]))));
    Options { clock: Some(Arc::clone(clock) as Arc<_>), entropy, grace: served, ..Options::default() }
}

/// A short digest of a long reply.
#[must_use]
pub fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn on_one_line(error: &StoreError) -> String {
    format!("{:?} {}", error.kind, error.text.replace('\n', " "))
}

/// Runs a script on the store in a directory. Logs `o` when the store is open, `+ n` before step n, and then
/// `= n digest` for a reply, `s n` for a skipped step or `- n error` if there was no reply.
///
/// # Errors
/// If the log cannot be written. A failing store is not an error: the log records it.
pub fn run(data: &Path, log: &Path, script: &Script) -> ToolResult<()> {
    let log = Log::open(log)?;
    let clock = TestClock::shared();
    let mut runner = StepRunner::default();
    super::runtime()?.block_on(async {
        let mut store = None;
        for (n, step) in script.steps.iter().enumerate() {
            clock.set(time_of(n));
            if matches!(step, Step::Reopen) {
                store = None;
            }
            let opened = match store.take() {
                Some(opened) => opened,
                None => match SqliteStore::open(data, options(&clock, n as u64, script.served)) {
                    Ok(opened) => opened,
                    Err(error) => return Ok(log.append(&format!("- open {}", on_one_line(&error)))?),
                },
            };
            if matches!(step, Step::Reopen) || n == 0 {
                log.append("o")?;
            }
            log.append(&format!("+ {n}"))?;
            match runner.run(&opened, step, time_of(n)).await {
                StepOutcome::Answered(reply) => log.append(&format!("= {n} {:x}", digest(&reply)))?,
                StepOutcome::Skipped => log.append(&format!("s {n}"))?,
                StepOutcome::Failed(error) => log.append(&format!("- {n} {}", on_one_line(&error)))?,
            }
            store = Some(opened);
        }
        Ok(())
    })
}

/// Opens the store in a directory and closes it again, as after a crash.
///
/// # Errors
/// If the store does not open.
pub fn recover(data: &Path) -> ToolResult<()> {
    let clock = TestClock::shared();
    clock.set(time_of(100_000));
    drop(SqliteStore::open(data, options(&clock, 0, true))?);
    Ok(())
}
