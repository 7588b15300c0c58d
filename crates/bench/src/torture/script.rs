//! Scripts: the tour, which takes every verb once, and random ones, which go on from there. They are made with
//! the reference model at hand, so that most steps have something to do. The child that runs a script reads it
//! from a file, logs every intention and every reply, and goes on whatever the store says.

use super::Outcome;
use super::oracle::View;
use super::replies::Log;
use super::rng::Rng;
use super::steps::{Came, Deed, Entry, Say, Step, Stepper, time_of};
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

/// Bulk steps that fill a log: 50 pages each. The store begins to move its log when it has 4,000, beside the commits, and
/// the log begins anew when that is done: some steps later.
const BULK_STEPS: u8 = 130;

/// A list of steps.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Script {
    /// The steps.
    pub steps: Vec<Step>,
    /// Whether the store is opened as by somebody who holds it for long: its log is laid out beforehand, and
    /// leases are given grace, which the model does not know, so nothing is leased when it is opened again.
    pub served: bool,
}

fn entry(n: u64, queue: usize) -> Entry {
    Entry { n, queue, key: None, order: None, delay: 0 }
}

impl Script {
    /// Every verb, in the order of a message's life. The numbers are chosen so that a payload of a few pages is
    /// among the first messages.
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
            Step::Settle(vec![(1, Say::Reply), (2, Say::Hopeless(1)), (3, Say::Fail(2))]),
            Step::Lease(1, 2, 20),
            Step::Settle(vec![(5, Say::Progress(4))]),
            Step::Settle(vec![(5, Say::Hopeless(3))]),
            Step::Act(vec![(2, Deed::Retry)]),
            Step::Lease(0, 4, 20),
            Step::Settle(vec![(2, Say::Ack), (4, Say::Release)]),
            Step::Kv(0, 7),
            Step::Lease(2, 1, 1),
            Step::Lease(0, 2, 20),
            Step::Settle(vec![(3, Say::Fail(2)), (4, Say::Hopeless(1))]),
            Step::Reap,
            Step::Reopen,
            Step::Cancel(vec![7]),
            Step::Start(1, Deed::Resolve, 0),
            Step::Go(1),
            Step::Go(1),
            Step::Act(vec![(3, Deed::Purge), (5, Deed::Quarantine(5))]),
            Step::Pause(2, true),
            Step::Purge(2),
            Step::Enqueue(vec![keyed(1, 1), entry(10, 0)]),
            Step::Lease(0, 1, 20),
            Step::Settle(vec![(10, Say::Ack)]),
        ];
        Self { steps, served }
    }

    /// The tour and then this many steps as the seed has it, with the store closed and opened in between.
    ///
    /// # Errors
    /// When the model cannot be read.
    pub fn random(seed: u64, steps: usize, served: bool) -> Outcome<Self> {
        Self::tour(served).continued(seed, steps, true)
    }

    /// This script and random steps, which close the store in between or not.
    fn continued(self, seed: u64, steps: usize, reopens: bool) -> Outcome<Self> {
        super::runtime()?.block_on(async {
            let mut script = self;
            let length = script.steps.len();
            let clock = TestClock::shared();
            let model = Model::new(clock.clone());
            let mut maker = Maker::new(seed);
            for n in 0..length + steps {
                clock.set(time_of(n));
                if n >= script.steps.len() {
                    let view = View::of(&model).await?;
                    let leased = view.seen.messages.iter().any(|m| m.state == State::Leased);
                    let step = maker.step(&view);
                    let unwanted = matches!(step, Step::Reopen) && (!reopens || (script.served && leased));
                    script.steps.push(if unwanted { Step::Reap } else { step });
                }
                if let Some(step) = script.steps.get(n) {
                    maker.stepper.take(&model, step, time_of(n)).await;
                }
            }
            Ok(script)
        })
    }

    /// The tour, then so much that the log is moved into the file while the store is open, then this many
    /// random steps on a log that begins anew. Also says with which step it becomes interesting.
    ///
    /// # Errors
    /// When the model cannot be read.
    pub fn long(seed: u64, steps: usize) -> Outcome<(Self, usize)> {
        let mut script = Self::tour(true);
        script.steps.extend((0..BULK_STEPS).map(Step::Bulk));
        let interesting = script.steps.len().saturating_sub(usize::from(BULK_STEPS) / 2);
        Ok((script.continued(seed, steps, false)?, interesting))
    }

    /// Reads a script.
    ///
    /// # Errors
    /// When it is not there or not one.
    pub fn load(path: &Path) -> Outcome<Self> {
        Ok(serde_json::from_slice(&std::fs::read(path)?)?)
    }

    /// Writes it.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn save(&self, path: &Path) -> Outcome<()> {
        Ok(std::fs::write(path, serde_json::to_vec(self)?)?)
    }
}

/// Chooses steps that have something to do.
struct Maker {
    rng: Rng,
    stepper: Stepper,
    /// The numbers of all messages so far.
    numbers: BTreeMap<MessageId, u64>,
    started: u64,
}

impl Maker {
    fn new(seed: u64) -> Self {
        let numbers = (0..100).map(|n| (message_id(n), n)).collect();
        Self { rng: Rng::of(&[seed, 0x7363_7269]), stepper: Stepper::default(), numbers, started: 1 }
    }

    fn step(&mut self, view: &View) -> Step {
        let number = |id: MessageId| self.numbers.get(&id).copied();
        let live: Vec<u64> = view.seen.messages.iter().filter_map(|m| number(m.envelope.id)).collect();
        let held: Vec<u64> = live.iter().copied().filter(|n| self.stepper.holds(*n)).collect();
        let letter =
            |l: &DeadLetter| Some((number(l.id())?, l.file.status, l.message.envelope.key.is_some()));
        let letters: Vec<(u64, Status, bool)> = view.seen.letters.iter().filter_map(letter).collect();
        let queue = self.rng.index(3);
        match self.rng.below(40) {
            0..=8 if live.len() < 24 => self.send(queue),
            9..=15 => Step::Lease(queue, 1 + self.rng.index(4), 2 + self.rng.below(40)),
            0..=24 if !held.is_empty() => self.settle(&held),
            25..=29 if !letters.is_empty() => self.act(&letters),
            30 => Step::Draw(queue, 2),
            31 => {
                let drawn = letters.iter().filter(|(n, _, _)| self.stepper.holds_letter(*n));
                Step::Return(drawn.map(|(n, _, _)| (*n, (n % 3 > 0).then_some(Deed::Resolve))).collect())
            }
            32 => Step::Kv(self.rng.index(2), u8::try_from(self.rng.below(40)).unwrap_or(0)),
            33 => {
                self.started += 1;
                let deed = if self.rng.one_in(2) { Deed::Retry } else { Deed::Resolve };
                Step::Start(self.started, deed, queue)
            }
            34 => Step::Go(self.started),
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
            let say = match self.rng.below(10) {
                0..=2 => Say::Ack,
                3 => Say::Reply,
                4 => Say::Progress(n % 9),
                5 | 6 => Say::Fail(which),
                7 => Say::Hopeless(which),
                8 => Say::Release,
                _ if self.rng.one_in(2) => Say::Snooze(2),
                _ => Say::Extend(20),
            };
            batch.push((n, say));
        }
        Step::Settle(batch)
    }

    fn act(&mut self, letters: &[(u64, Status, bool)]) -> Step {
        let Some((n, status, keyed)) = self.rng.pick(letters).copied() else { return Step::Reap };
        let deeds: &[Deed] = match status {
            Status::Pending => {
                &[Deed::Retry, Deed::Resolve, Deed::Review, Deed::Quarantine(3), Deed::Abandon, Deed::Note]
            }
            Status::Retrying | Status::Purged => &[Deed::Note],
            Status::Review | Status::Quarantined => &[Deed::Release, Deed::Resolve, Deed::Retry],
            // What the key of a message says that was done and is opened again is not settled.
            Status::Resolved | Status::Abandoned if keyed => &[Deed::Purge, Deed::Note],
            Status::Resolved | Status::Abandoned => &[Deed::Purge, Deed::Purge, Deed::Reopen],
        };
        Step::Act(vec![(n, self.rng.pick(deeds).copied().unwrap_or(Deed::Note))])
    }
}

/// Randomness that is the same in every run, so that every run writes the same bytes.
struct Counted(Mutex<Rng>);

impl Entropy for Counted {
    fn fill(&self, bytes: &mut [u8]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).fill(bytes);
    }
}

/// How a script's store is opened: with this clock and with counted randomness, for long or for a moment.
#[must_use]
pub fn options(clock: &Arc<TestClock>, seed: u64, served: bool) -> Options {
    let entropy = Arc::new(Counted(Mutex::new(Rng::of(&[seed, 0x656e_7472]))));
    Options { clock: Some(Arc::clone(clock) as Arc<_>), entropy, grace: served, ..Options::default() }
}

/// A short mark of a long reply.
#[must_use]
pub fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

fn no_lines(error: &StoreError) -> String {
    format!("{:?} {}", error.kind, error.text.replace('\n', " "))
}

/// Runs a script on the store in a directory. Logs `o` when it is open, `+ n` before step n, then `= n digest`
/// for a reply, `s n` when there was nothing to say or `- n why` when there was no reply.
///
/// # Errors
/// When the log cannot be written. A store that fails is no error: that is what the log is about.
pub fn run(data: &Path, log: &Path, script: &Script) -> Outcome<()> {
    let log = Log::open(log)?;
    let clock = TestClock::shared();
    let mut stepper = Stepper::default();
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
                    Err(error) => return Ok(log.say(&format!("- open {}", no_lines(&error)))?),
                },
            };
            if matches!(step, Step::Reopen) || n == 0 {
                log.say("o")?;
            }
            log.say(&format!("+ {n}"))?;
            match stepper.take(&opened, step, time_of(n)).await {
                Came::Said(reply) => log.say(&format!("= {n} {:x}", digest(&reply)))?,
                Came::Skipped => log.say(&format!("s {n}"))?,
                Came::Failed(error) => log.say(&format!("- {n} {}", no_lines(&error)))?,
            }
            store = Some(opened);
        }
        Ok(())
    })
}

/// Opens the store in a directory and closes it again: what happens first after a crash.
///
/// # Errors
/// When the store does not open.
pub fn recover(data: &Path) -> Outcome<()> {
    let clock = TestClock::shared();
    clock.set(time_of(100_000));
    drop(SqliteStore::open(data, options(&clock, 0, true))?);
    Ok(())
}
