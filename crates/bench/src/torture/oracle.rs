//! What a store may show after a script was cut off, from the reference model: it takes the steps that were
//! answered, checks that each answer was the right one, and shows what there must be. A step that was not
//! answered may have happened whole or not at all (I4), so there can be a few such worlds; the store must be in
//! one of them.

use super::Outcome;
use super::script::{Script, digest};
use super::steps::{Came, KEYS, KV_KEYS, QUEUES, Stepper, queue, time_of};
use redrive::core::ids::MessageId;
use redrive::core::store::{KeyState, KvEntry, Store};
use redrive::core::time::Time;
use redrive_testkit::clock::TestClock;
use redrive_testkit::model::Model;
use redrive_testkit::observe::Seen;
use std::collections::BTreeSet;

/// Everything a script's store shows.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// Messages, letters, queues, drawers, groups, operations and the audit trail.
    pub seen: Seen,
    kv: Vec<Option<KvEntry>>,
    keys: Vec<Option<KeyState>>,
}

impl View {
    /// Reads all there is.
    ///
    /// # Errors
    /// Whatever the store says.
    pub async fn of(store: &dyn Store) -> Outcome<Self> {
        let mut seen = Seen::of(store).await?.comparable();
        seen.messages.sort_by_key(|message| message.envelope.id);
        let mut kv = Vec::new();
        for key in KV_KEYS {
            kv.push(store.kv_get("torture".into(), key.into()).await?);
        }
        let mut keys = Vec::new();
        for n in 0..QUEUES.len() {
            let known = seen.queues.iter().any(|q| q.name == queue(n));
            for key in 0..KEYS {
                let state = if known { store.key_state(queue(n), format!("key{key}")).await? } else { None };
                keys.push(state);
            }
        }
        Ok(Self { seen, kv, keys })
    }

    /// The same without when leases end: opening a store for long gives them more time.
    #[must_use]
    pub fn timeless(&self) -> Self {
        let mut view = self.clone();
        let letters = view.seen.letters.iter_mut().map(|letter| &mut letter.message);
        for message in view.seen.messages.iter_mut().chain(letters) {
            message.lease_expires_at = None;
        }
        view
    }

    fn live(&self) -> BTreeSet<MessageId> {
        self.seen.messages.iter().map(|m| m.envelope.id).collect()
    }

    fn all(&self) -> BTreeSet<MessageId> {
        self.live().into_iter().chain(self.seen.letters.iter().map(|l| l.id())).collect()
    }

    /// How another view is not this one, in the worst words that are true; nothing when it is.
    #[must_use]
    pub fn wrong(&self, other: &Self) -> Option<Wrong> {
        if self == other {
            return None;
        }
        if let Some(id) = self.all().difference(&other.all()).next() {
            return Some(Wrong::Lost(format!("message {id} is gone")));
        }
        if let Some(id) = other.live().difference(&self.live()).next() {
            return Some(Wrong::Resurrected(format!("message {id} is live again")));
        }
        Some(Wrong::Broken(format!("it shows something else: {}", self.first_difference(other))))
    }

    /// Where the two differ first, in few words: a view in full is pages long.
    fn first_difference(&self, other: &Self) -> String {
        let (must, shows) = (format!("{self:?}"), format!("{other:?}"));
        let same = must.bytes().zip(shows.bytes()).take_while(|(a, b)| a == b).count();
        let around =
            |text: &str| -> String { text.chars().skip(same.saturating_sub(120)).take(240).collect() };
        format!("…{}… must be …{}…", around(&shows), around(&must))
    }
}

/// How a store breaks what was promised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// Something that was acknowledged is not there, or not as it was acknowledged.
    Lost(String),
    /// Something that was finished is live.
    Resurrected(String),
    /// The store does not open.
    Unopenable(String),
    /// The store finds something wrong with itself, gave a wrong answer, or does not work.
    Broken(String),
}

/// What there must be before and after one step, both seen at the time of that step.
#[derive(Clone, Debug)]
pub struct Moment {
    /// The time of the step.
    pub time: Time,
    /// Before it.
    pub before: View,
    /// After it.
    pub after: View,
    /// The digest of the answer.
    pub reply: Option<u64>,
}

/// Every moment of a script in which nothing goes wrong.
///
/// # Errors
/// When the model cannot be read.
pub fn moments(script: &Script) -> Outcome<Vec<Moment>> {
    super::runtime()?.block_on(async {
        let clock = TestClock::shared();
        let model = Model::new(clock.clone());
        let mut stepper = Stepper::default();
        let mut all = Vec::new();
        for (n, step) in script.steps.iter().enumerate() {
            let time = time_of(n);
            clock.set(time);
            let before = View::of(&model).await?;
            let reply = match stepper.take(&model, step, time).await {
                Came::Said(reply) => Some(digest(&reply)),
                Came::Skipped => None,
                Came::Failed(error) => return Err(error.into()),
            };
            let after = View::of(&model).await?;
            all.push(Moment { time, before, after, reply });
        }
        Ok(all)
    })
}

/// What a log says about a script that was run.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// Steps that were answered, with the digest of the answer, in order; and where the store was opened.
    pub answered: Vec<(usize, u64)>,
    /// For each time the store was opened: the step before which it was, and steps that may have happened.
    doubtful: Vec<Vec<usize>>,
    /// Answers that came after a failed sync, while the store was not opened again.
    pub after_failed_sync: Vec<String>,
    /// Whether a fault was injected at all.
    pub faulty: bool,
    /// The last step that was tried.
    pub last: usize,
}

/// What may fail to be synced without ending the store: room that is kept back, a hint for the next open, and
/// the directory. SQLite syncs that once more after its log's first sync and does not look at the answer; the
/// store's own sync of it, at open, when the log is there already, is the one that counts, and ends the open.
/// That nothing is lost by this is what the modes with a power cut look at.
const ADVISORY: [&str; 3] = ["reserve", "commits", "."];

impl Told {
    /// Reads the lines of a script's log.
    #[must_use]
    pub fn read(lines: &[String]) -> Self {
        let mut told = Self { doubtful: vec![Vec::new()], ..Self::default() };
        let mut sync_failed: Option<&str> = None;
        let mut tried = None;
        for line in lines {
            let mut words = line.split(' ');
            let verb = words.next().unwrap_or("");
            let step = words.next().and_then(|word| word.parse::<usize>().ok());
            match (verb, step) {
                ("o", _) => {
                    told.doubtful.push(Vec::new());
                    sync_failed = None;
                }
                ("!", _) => {
                    told.faulty = true;
                    let name = line.rsplit(' ').next().unwrap_or("");
                    if line.contains("sync ") && !ADVISORY.contains(&name) {
                        sync_failed = sync_failed.or(Some(line));
                    }
                }
                ("+", Some(n)) => {
                    tried = Some(n);
                    told.last = n;
                }
                ("=", Some(n)) => {
                    tried = None;
                    let reply = line.rsplit(' ').next().and_then(|hex| u64::from_str_radix(hex, 16).ok());
                    told.answered.push((n, reply.unwrap_or(0)));
                    if let Some(doubt) = told.doubtful.last_mut() {
                        doubt.clear();
                    }
                    if let Some(fault) = sync_failed {
                        told.after_failed_sync.push(format!("{line} after {fault}"));
                    }
                }
                ("s", _) => tried = None,
                ("-", Some(n)) => {
                    tried = None;
                    let full = line.contains(" Full ");
                    if let Some(doubt) = told.doubtful.last_mut().filter(|doubt| !full && doubt.len() < 2) {
                        doubt.push(n);
                    }
                }
                _ => {}
            }
        }
        if let (Some(n), Some(doubt)) = (tried, told.doubtful.last_mut()) {
            doubt.push(n);
        }
        told
    }

    /// Every choice of what happened without an answer: at most one step each time the store was open.
    fn worlds(&self) -> Vec<Vec<usize>> {
        let mut worlds = vec![Vec::new()];
        for doubt in &self.doubtful {
            let with = doubt.iter().flat_map(|n| {
                worlds.iter().map(move |world| {
                    let mut longer: Vec<usize> = world.clone();
                    longer.push(*n);
                    longer
                })
            });
            let with: Vec<Vec<usize>> = with.collect();
            worlds.extend(with);
        }
        worlds
    }

    /// What is wrong with a store that shows this after such a run; nothing when one of the worlds explains it.
    ///
    /// # Errors
    /// When the model cannot be read.
    pub async fn judge(&self, script: &Script, view: &View) -> Outcome<Option<Wrong>> {
        let mut first = None;
        for world in self.worlds() {
            match self.compare(script, &world, view).await? {
                None => return Ok(None),
                Some(wrong) => first = first.or(Some(wrong)),
            }
        }
        Ok(first)
    }

    async fn compare(&self, script: &Script, also: &[usize], view: &View) -> Outcome<Option<Wrong>> {
        let clock = TestClock::shared();
        let model = Model::new(clock.clone());
        let mut stepper = Stepper::default();
        let mut all: Vec<(usize, Option<u64>)> = self.answered.iter().map(|(n, d)| (*n, Some(*d))).collect();
        all.extend(also.iter().map(|n| (*n, None)));
        all.sort_unstable();
        for (n, reply) in all {
            let Some(step) = script.steps.get(n) else { continue };
            clock.set(time_of(n));
            let came = stepper.take(&model, step, time_of(n)).await;
            if let (Came::Said(text), Some(reply)) = (came, reply)
                && digest(&text) != reply
            {
                return Ok(Some(Wrong::Broken(format!("the answer to step {n} was not {text}"))));
            }
        }
        clock.set(time_of(self.last));
        let must = View::of(&model).await?;
        Ok(if script.served { must.timeless().wrong(&view.timeless()) } else { must.wrong(view) })
    }
}
