//! Derives from the reference model what a store may show after a script was interrupted. The model runs the
//! steps that had a reply, checks each reply, and shows the expected state. A step without a reply may have
//! happened completely or not at all (I4), so there can be several possible histories; the store must match
//! one of them.

use super::ToolResult;
use super::script::{Script, digest};
use super::steps::{KEYS, KV_KEYS, QUEUES, StepOutcome, StepRunner, queue, time_of};
use redrive::core::ids::MessageId;
use redrive::core::store::{KeyState, KvEntry, Store};
use redrive::core::time::Time;
use redrive_testkit::clock::TestClock;
use redrive_testkit::model::Model;
use redrive_testkit::observe::StoreView;
use std::collections::BTreeSet;

/// Everything that the store of a script shows.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// Messages, letters, queues, dead letter queues, groups, operations and the audit trail.
    pub store: StoreView,
    kv: Vec<Option<KvEntry>>,
    keys: Vec<Option<KeyState>>,
}

impl View {
    /// Reads everything.
    ///
    /// # Errors
    /// Any error of the store.
    pub async fn of(store: &dyn Store) -> ToolResult<Self> {
        let mut view = StoreView::read(store).await?.comparable();
        view.messages.sort_by_key(|message| message.envelope.id);
        let mut kv = Vec::new();
        for key in KV_KEYS {
            kv.push(store.kv_get("torture".into(), key.into()).await?);
        }
        let mut keys = Vec::new();
        for n in 0..QUEUES.len() {
            let known = view.queues.iter().any(|q| q.name == queue(n));
            for key in 0..KEYS {
                let state = if known { store.key_state(queue(n), format!("key{key}")).await? } else { None };
                keys.push(state);
            }
        }
        Ok(Self { store: view, kv, keys })
    }

    /// The view without lease expiry times: opening a store as a long-lived holder extends leases.
    #[must_use]
    pub fn without_lease_times(&self) -> Self {
        let mut view = self.clone();
        let letters = view.store.letters.iter_mut().map(|letter| &mut letter.message);
        for message in view.store.messages.iter_mut().chain(letters) {
            message.lease_expires_at = None;
        }
        view
    }

    fn live(&self) -> BTreeSet<MessageId> {
        self.store.messages.iter().map(|m| m.envelope.id).collect()
    }

    fn all(&self) -> BTreeSet<MessageId> {
        self.live().into_iter().chain(self.store.letters.iter().map(|l| l.id())).collect()
    }

    /// Describes the worst difference of another view from this one, or returns `None` if they are equal.
    #[must_use]
    pub fn violation(&self, other: &Self) -> Option<Violation> {
        if self == other {
            return None;
        }
        if let Some(id) = self.all().difference(&other.all()).next() {
            return Some(Violation::Lost(format!("message {id} is gone")));
        }
        if let Some(id) = other.live().difference(&self.live()).next() {
            return Some(Violation::Resurrected(format!("message {id} is live again")));
        }
        Some(Violation::Broken(format!(
            "the store shows a different state: {}",
            self.first_difference(other)
        )))
    }

    /// The text around the first difference; a whole view would be too long.
    fn first_difference(&self, other: &Self) -> String {
        let (must, shows) = (format!("{self:?}"), format!("{other:?}"));
        let same = must.bytes().zip(shows.bytes()).take_while(|(a, b)| a == b).count();
        let around =
            |text: &str| -> String { text.chars().skip(same.saturating_sub(120)).take(240).collect() };
        format!("…{}… instead of …{}…", around(&shows), around(&must))
    }
}

/// How a store breaks a promise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// An acknowledged change is missing or different.
    Lost(String),
    /// A finished message is live.
    Resurrected(String),
    /// The store does not open.
    Unopenable(String),
    /// The store fails its own verification, gave a wrong reply, or does not work.
    Broken(String),
}

/// The expected views before and after one step, both read at the time of the step.
#[derive(Clone, Debug)]
pub struct ExpectedStep {
    /// The time of the step.
    pub time: Time,
    /// The view before the step.
    pub before: View,
    /// The view after the step.
    pub after: View,
    /// The digest of the reply.
    pub reply: Option<u64>,
}

/// The expected views of every step of a script that runs without faults.
///
/// # Errors
/// If the model cannot be read.
pub fn expected_steps(script: &Script) -> ToolResult<Vec<ExpectedStep>> {
    super::runtime()?.block_on(async {
        let clock = TestClock::shared();
        let model = Model::new(clock.clone());
        let mut runner = StepRunner::default();
        let mut all = Vec::new();
        for (n, step) in script.steps.iter().enumerate() {
            let time = time_of(n);
            clock.set(time);
            let before = View::of(&model).await?;
            let reply = match runner.run(&model, step, time).await {
                StepOutcome::Answered(reply) => Some(digest(&reply)),
                StepOutcome::Skipped => None,
                StepOutcome::Failed(error) => return Err(error.into()),
            };
            let after = View::of(&model).await?;
            all.push(ExpectedStep { time, before, after, reply });
        }
        Ok(all)
    })
}

/// What a log says about a run of a script.
#[derive(Clone, Debug, Default)]
pub struct ScriptLog {
    /// Steps that had a reply, with the digest of the reply, in order.
    pub answered: Vec<(usize, u64)>,
    /// For each time the store was open, the steps that may have happened without a reply.
    unconfirmed: Vec<Vec<usize>>,
    /// Replies that came after a failed sync and before the store was opened again.
    pub after_failed_sync: Vec<String>,
    /// Whether a fault was injected at all.
    pub faulty: bool,
    /// The last step that was tried.
    pub last: usize,
}

/// Files whose sync may fail without stopping the store: the reserved space, a hint for the next open, and
/// the directory. SQLite syncs the directory once more after the first sync of its log and ignores the
/// result. The sync that matters is the store's own, when it opens and the log already exists; if that one
/// fails, the open fails. The modes with a power cut check that nothing is lost by this.
const ADVISORY: [&str; 3] = ["reserve", "commits", "."];

impl ScriptLog {
    /// Reads the lines of a script's log.
    #[must_use]
    pub fn read(lines: &[String]) -> Self {
        let mut script_log = Self { unconfirmed: vec![Vec::new()], ..Self::default() };
        let mut sync_failed: Option<&str> = None;
        let mut tried = None;
        for line in lines {
            let mut words = line.split(' ');
            let verb = words.next().unwrap_or("");
            let step = words.next().and_then(|word| word.parse::<usize>().ok());
            match (verb, step) {
                ("o", _) => {
                    script_log.unconfirmed.push(Vec::new());
                    sync_failed = None;
                }
                ("!", _) => {
                    script_log.faulty = true;
                    let name = line.rsplit(' ').next().unwrap_or("");
                    if line.contains("sync ") && !ADVISORY.contains(&name) {
                        sync_failed = sync_failed.or(Some(line));
                    }
                }
                ("+", Some(n)) => {
                    tried = Some(n);
                    script_log.last = n;
                }
                ("=", Some(n)) => {
                    tried = None;
                    let reply = line.rsplit(' ').next().and_then(|hex| u64::from_str_radix(hex, 16).ok());
                    script_log.answered.push((n, reply.unwrap_or(0)));
                    if let Some(steps) = script_log.unconfirmed.last_mut() {
                        steps.clear();
                    }
                    if let Some(fault) = sync_failed {
                        script_log.after_failed_sync.push(format!("{line} after {fault}"));
                    }
                }
                ("s", _) => tried = None,
                ("-", Some(n)) => {
                    tried = None;
                    let full = line.contains(" Full ");
                    if let Some(steps) =
                        script_log.unconfirmed.last_mut().filter(|steps| !full && steps.len() < 2)
                    {
                        steps.push(n);
                    }
                }
                _ => {}
            }
        }
        if let (Some(n), Some(steps)) = (tried, script_log.unconfirmed.last_mut()) {
            steps.push(n);
        }
        script_log
    }

    /// Every combination of steps that may have happened without a reply: at most one for each time the store
    /// was open.
    fn possible_histories(&self) -> Vec<Vec<usize>> {
        let mut possible_histories = vec![Vec::new()];
        for steps in &self.unconfirmed {
            let with = steps.iter().flat_map(|n| {
                possible_histories.iter().map(move |history| {
                    let mut longer: Vec<usize> = history.clone();
                    longer.push(*n);
                    longer
                })
            });
            let with: Vec<Vec<usize>> = with.collect();
            possible_histories.extend(with);
        }
        possible_histories
    }

    /// Checks the view of a store after such a run. Returns `None` if one of the possible histories explains
    /// it.
    ///
    /// # Errors
    /// If the model cannot be read.
    pub async fn check(&self, script: &Script, view: &View) -> ToolResult<Option<Violation>> {
        let mut first = None;
        for history in self.possible_histories() {
            match self.compare(script, &history, view).await? {
                None => return Ok(None),
                Some(violation) => first = first.or(Some(violation)),
            }
        }
        Ok(first)
    }

    async fn compare(&self, script: &Script, also: &[usize], view: &View) -> ToolResult<Option<Violation>> {
        let clock = TestClock::shared();
        let model = Model::new(clock.clone());
        let mut runner = StepRunner::default();
        let mut all: Vec<(usize, Option<u64>)> = self.answered.iter().map(|(n, d)| (*n, Some(*d))).collect();
        all.extend(also.iter().map(|n| (*n, None)));
        all.sort_unstable();
        for (n, reply) in all {
            let Some(step) = script.steps.get(n) else { continue };
            clock.set(time_of(n));
            let outcome = runner.run(&model, step, time_of(n)).await;
            if let (StepOutcome::Answered(text), Some(reply)) = (outcome, reply)
                && digest(&text) != reply
            {
                return Ok(Some(Violation::Broken(format!("the reply to step {n} was not {text}"))));
            }
        }
        clock.set(time_of(self.last));
        let must = View::of(&model).await?;
        Ok(if script.served {
            must.without_lease_times().violation(&view.without_lease_times())
        } else {
            must.violation(view)
        })
    }
}
