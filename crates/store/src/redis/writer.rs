//! The writer: the one thread of the node that holds the store. It applies the jobs that wait as one group, writes what
//! they changed in one call that is fenced by the term, and only then replies.
//!
//! If the answer to a call is lost, nobody is answered until it is known whether the commit happened. If another node has
//! taken the store over, nothing more is acknowledged by this one.

use super::base::RedisBase;
use super::clock::ServerClock;
use super::commit;
use super::connect::{Address, list, number, text};
use super::gate::Gate;
use super::term::{self, Outcome, Term};
use crate::access::Wants;
use crate::clock::StoreClock;
use crate::engine::Engine;
use crate::engine::tables::{TableResult, Tables as _};
use crate::engine::touched::Touched;
use crate::entropy::Entropy;
use crate::holder::Holder;
use crate::jobs::{Job, Reply, WaitingGuard};
use crate::staged::{Changes, Staged};
use redis::Value;
use redrive_core::error::{StoreError, StoreErrorKind};
use redrive_core::limits;
use redrive_core::time::Time;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

/// The tables of the holder.
pub(crate) type RedisTables = Staged<RedisBase>;

/// How often the holder says that it is alive while it has nothing to write.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// How long a holder tries to reach the server again before its callers are told that the outcome is unknown.
const RECONNECT_FOR: Duration = Duration::from_secs(30);
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);
/// How often new work is tried while the server is out of memory.
const FULL_TRY: Duration = Duration::from_secs(1);
/// Writes after which a group is committed, so that no commit keeps the server busy for long.
const GROUP_WRITES_MAX: u64 = 2_000;
/// How long replicas have to confirm a commit.
const REPLICAS_WITHIN: Duration = Duration::from_secs(5);

/// State shared by the writer and the handles that send jobs to it.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) holder: Arc<Holder>,
    /// The number of jobs not answered yet, except long ones. Long jobs look at it to let others in.
    pub(super) waiting: Arc<AtomicUsize>,
    /// Why nothing is acknowledged any more, once that is so.
    stopped: Mutex<Option<StoreError>>,
    is_stopped: AtomicBool,
    /// Why jobs were not begun lately, while that is so.
    trouble: Mutex<Option<StoreError>>,
    /// Whether the server is out of memory or disk.
    pub(super) full: AtomicBool,
    /// Commits, and round trips for single rows in the middle of groups.
    pub(super) commits: AtomicU64,
    pub(super) misses: AtomicU64,
    /// Keeps the store still for readers.
    pub(super) gate: Gate,
}

impl Shared {
    pub(super) fn new() -> Self {
        Self {
            holder: Arc::new(Holder::new()),
            waiting: Arc::default(),
            stopped: Mutex::new(None),
            is_stopped: AtomicBool::new(false),
            trouble: Mutex::new(None),
            full: AtomicBool::new(false),
            commits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            gate: Gate::default(),
        }
    }

    fn stop(&self, why: &StoreError) {
        self.stopped.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| why.clone());
        self.is_stopped.store(true, Ordering::SeqCst);
    }

    /// Why jobs were not begun lately.
    pub(super) fn trouble(&self) -> Option<StoreError> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_trouble(&self, why: Option<StoreError>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    /// Why nothing is acknowledged any more.
    pub(super) fn stopped(&self) -> Option<StoreError> {
        if !self.is_stopped.load(Ordering::SeqCst) {
            return None;
        }
        self.stopped.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The error of every call to a node that has lost the store.
fn lost(now: &term::Held) -> StoreError {
    let text = format!(
        "this process does not hold the store any more: {} holds it under term {}; nothing more is acknowledged here, \
         call that node or start again",
        now.node, now.term
    );
    StoreError::new(StoreErrorKind::NotHolder, text)
}

/// The error of calls whose commit certainly did not happen.
fn not_done() -> StoreError {
    let text = "the connection to Redis was lost, and nothing of the commit happened: try again";
    StoreError::new(StoreErrorKind::Undone, text)
}

/// The state of the writer thread.
pub(super) struct Writer {
    pub(super) engine: Engine<RedisTables>,
    pub(super) address: Address,
    pub(super) term: Term,
    pub(super) node: String,
    pub(super) entropy: Arc<dyn Entropy>,
    pub(super) clock: StoreClock,
    pub(super) server_clock: Arc<ServerClock>,
    pub(super) shared: Arc<Shared>,
    /// Waits for jobs.
    pub(super) runtime: Runtime,
    /// When new work was last refused by the server.
    pub(super) full_since: Option<Instant>,
}

/// Jobs that are committed together.
type Group = Vec<Job<RedisTables>>;

impl Writer {
    /// Processes jobs until every sender is gone. Each round commits the short jobs and replies to them, then commits one
    /// long job by itself.
    pub(super) fn run(mut self, mut jobs: mpsc::Receiver<Job<RedisTables>>) {
        let mut long = VecDeque::new();
        let mut seen = Instant::now();
        loop {
            let first = match long.is_empty() {
                true => match self.next_job(&mut jobs, seen) {
                    Next::Job(job) => Some(job),
                    Next::Silence => {
                        self.heartbeat();
                        seen = Instant::now();
                        continue;
                    }
                    Next::End => break,
                },
                false => None,
            };
            let arrived = first.into_iter().chain(std::iter::from_fn(|| jobs.try_recv().ok()));
            let mut group = Vec::new();
            for job in arrived.take(limits::GROUP_COMMANDS_MAX) {
                if job.cost.long { long.push_back(job) } else { group.push(job) }
            }
            let mut wrote = self.commit_jobs(group);
            wrote |= self.commit_jobs(long.pop_front().into_iter().collect());
            if wrote {
                seen = Instant::now();
            } else if seen.elapsed() >= HEARTBEAT {
                self.heartbeat();
                seen = Instant::now();
            }
        }
        if self.shared.stopped().is_none() {
            let _ = term::release(&self.engine.tables.base.session, &self.term);
        }
    }

    /// Waits for a job, but not longer than until the next heartbeat.
    fn next_job(&self, jobs: &mut mpsc::Receiver<Job<RedisTables>>, seen: Instant) -> Next {
        let left = HEARTBEAT.saturating_sub(seen.elapsed());
        match self.runtime.block_on(async { tokio::time::timeout(left, jobs.recv()).await }) {
            Ok(Some(job)) => Next::Job(job),
            Ok(None) => Next::End,
            Err(_) => Next::Silence,
        }
    }

    fn heartbeat(&mut self) {
        if self.shared.stopped().is_some() {
            return;
        }
        match term::heartbeat(&self.engine.tables.base.session, &self.term) {
            Ok(Some(wall)) => self.server_clock.set(wall),
            Ok(None) | Err(_) => {
                // Either another node holds the store, or the connection is gone; both are found out the same way.
                let _ = self.find_out(&Changes::default());
            }
        }
    }

    /// Commits jobs, in as many groups as their size needs. Returns whether anything was written.
    fn commit_jobs(&mut self, jobs: Group) -> bool {
        let Some(since) = self.full_since else { return self.commit_in_groups(jobs) };
        // What frees memory goes on by itself. What needs memory is tried again from time to time.
        let (grows, frees): (Group, Group) = jobs.into_iter().partition(|job| job.cost.grows);
        let wrote = self.commit_in_groups(frees);
        // Dropping a job closes its reply channel; its sender then reports why.
        if grows.is_empty() || since.elapsed() < FULL_TRY {
            wrote
        } else {
            self.commit_in_groups(grows) || wrote
        }
    }

    fn commit_in_groups(&mut self, jobs: Group) -> bool {
        let (mut wrote, mut jobs) = (false, jobs);
        while !jobs.is_empty() && self.shared.stopped().is_none() {
            wrote |= self.commit_group(&mut jobs);
        }
        wrote
    }

    /// Applies jobs in one commit and replies to them; what does not fit stays in `jobs`. Returns whether anything was
    /// written.
    fn commit_group(&mut self, jobs: &mut Group) -> bool {
        let now = self.clock.now();
        if let Err(error) = self.load_again(jobs, now) {
            // Dropping a job closes its reply channel; its sender then reports why.
            self.engine.forget();
            self.shared.set_trouble(Some(error));
            jobs.clear();
            return false;
        }
        self.shared.set_trouble(None);
        let mut applied = Applied::default();
        match self.apply(jobs, now, &mut applied) {
            Ok(wrote) => {
                self.engine.after_commit.record();
                let Touched { areas, available } = self.engine.take_touched();
                self.shared.holder.publish(areas);
                for reply in applied.replies {
                    reply(Ok(()));
                }
                self.shared.holder.offer(&available);
                wrote
            }
            Err(error) => {
                self.engine.forget();
                if error.kind == StoreErrorKind::Full {
                    self.out_of_memory();
                }
                for reply in applied.replies {
                    reply(Err(error.clone()));
                }
                false
            }
        }
    }

    /// Reads what the jobs will ask for, on a new session if this one is gone.
    fn load_again(&mut self, jobs: &Group, now: Time) -> TableResult<()> {
        match self.load(jobs, now) {
            Err(error) if error.kind == StoreErrorKind::Unreachable => {
                self.engine.forget();
                self.find_out(&Changes::default())?;
                self.load(jobs, now)
            }
            loaded => loaded,
        }
    }

    fn out_of_memory(&mut self) {
        self.full_since = Some(Instant::now());
        self.shared.full.store(true, Ordering::SeqCst);
    }

    /// Applies jobs and commits them. Returns whether anything was written. On error, nothing of them has happened,
    /// unless the error says that this is not known.
    fn apply(&mut self, jobs: &mut Group, now: Time, applied: &mut Applied) -> TableResult<bool> {
        let before = self.engine.tables.writes();
        let mut first_error = None;
        let mut waiting = std::mem::take(jobs).into_iter();
        for job in waiting.by_ref() {
            // A job that has been applied still waits for the commit, so it stays counted.
            applied.guards.push(job.waiting);
            applied.grows |= job.cost.grows;
            applied.frees |= !job.cost.grows;
            let (reply, error) = (job.apply)(&mut self.engine, now);
            applied.replies.push(reply);
            first_error = first_error.or(error);
            if first_error.is_some() || self.engine.tables.writes() - before >= GROUP_WRITES_MAX {
                break;
            }
        }
        *jobs = waiting.collect();
        let flushed = match first_error {
            Some(error) => Err(error),
            None => self.engine.flush(),
        };
        if let Err(error) = flushed {
            return Err(if error.kind == StoreErrorKind::Unreachable { self.reconnect() } else { error });
        }
        self.shared.misses.fetch_add(self.engine.tables.misses.take(), Ordering::Relaxed);
        let changes = self.engine.tables.take_changes();
        if changes.is_empty() {
            return Ok(false);
        }
        self.write(&changes, now, applied)?;
        self.engine.tables.committed(changes);
        self.shared.commits.fetch_add(1, Ordering::Relaxed);
        Ok(true)
    }

    /// Connects again after a read failed. Returns the error for those whose verbs were not carried out because of it.
    fn reconnect(&mut self) -> StoreError {
        self.find_out(&Changes::default()).err().unwrap_or_else(not_done)
    }

    /// Reads what the jobs will ask for.
    fn load(&mut self, jobs: &Group, now: Time) -> TableResult<()> {
        let wants: Vec<Wants> = jobs.iter().map(|job| job.wants.clone()).collect();
        let mut leased = Vec::new();
        for (queues, max) in wants.iter().filter_map(|want| want.lease.as_ref()) {
            leased.extend(self.engine.next_in_line(queues, *max, now)?);
        }
        self.engine.tables.load(&wants, leased)
    }

    /// Writes what a group changed.
    fn write(&mut self, changes: &Changes, now: Time, applied: &Applied) -> TableResult<()> {
        let mut written = self.send(changes, now, applied.grows);
        if written.as_ref().is_err_and(|error| error.kind == StoreErrorKind::Full) && applied.frees {
            // Acks go on when memory is short. What grows in the same group gets in with them, this once.
            self.out_of_memory();
            written = self.send(changes, now, false);
        } else if written.is_ok() && applied.grows {
            self.full_since = None;
            self.shared.full.store(false, Ordering::SeqCst);
        }
        match written {
            Ok(()) => self.replicated(),
            Err(error) if error.kind == StoreErrorKind::Unreachable => {
                self.find_out(changes)?;
                self.replicated()
            }
            Err(error) => {
                if error.kind == StoreErrorKind::Stopped {
                    self.shared.stop(&error);
                }
                Err(error)
            }
        }
    }

    /// Sends a commit. An error of kind `Unreachable` says that it is not known whether it happened.
    fn send(&mut self, changes: &Changes, now: Time, grows: bool) -> TableResult<()> {
        let session = &self.engine.tables.base.session;
        let command = commit::command(changes, &self.term, now, (&session.key("holder"), grows));
        let reply = self.shared.gate.write(|| session.call(&command))?;
        let mut reply = list(reply)?.into_iter();
        let mut next = || reply.next().unwrap_or_default();
        match number(next())? {
            1 => {
                self.term.commit += 1;
                self.server_clock.set(number(next())?);
                Ok(())
            }
            // The fence was not there: nothing was written. Who holds the store now is found out on a new session.
            0 => Err(StoreError::new(StoreErrorKind::Unreachable, "the store is held by another process")),
            _ => {
                let text = format!("the commit was refused and nothing of it happened: {}", text(next())?);
                Err(StoreError::new(StoreErrorKind::Undone, text))
            }
        }
    }

    /// Waits until as many replicas as were asked for have the last commit.
    fn replicated(&self) -> TableResult<()> {
        if self.address.replicas == 0 {
            return Ok(());
        }
        let mut command = redis::cmd("WAIT");
        command.arg(self.address.replicas).arg(REPLICAS_WITHIN.as_millis().to_string());
        let unknown = |why: String| {
            let text = format!(
                "the commit is on the Redis server but not confirmed by {} replicas ({why}); whether it outlives a failover \
                 is not known",
                self.address.replicas
            );
            Err(StoreError::new(StoreErrorKind::Unreachable, text))
        };
        match self.engine.tables.base.session.run(&command) {
            Ok(Value::Int(count)) if count >= i64::from(self.address.replicas) => Ok(()),
            Ok(Value::Int(count)) => unknown(format!("{count} did")),
            Ok(_) => unknown("an odd reply".to_owned()),
            Err(error) => unknown(error.text),
        }
    }

    /// Finds out what became of a commit whose answer was lost, and who holds the store. Succeeds if the commit happened.
    fn find_out(&mut self, changes: &Changes) -> TableResult<()> {
        let began = Instant::now();
        // The same for all tries: the answer to a try may be lost, too.
        let mut nonce = [0; 16];
        self.entropy.fill(&mut nonce);
        let (session, outcome) = loop {
            let tried = self.address.connect().and_then(|session| {
                let outcome = term::settle(&session, &self.term, &self.node, nonce)?;
                Ok((session, outcome))
            });
            match tried {
                Ok(found) => break found,
                Err(error) if began.elapsed() > RECONNECT_FOR => {
                    let text = format!(
                        "the Redis server cannot be reached, and whether the last commit took effect is not known: {}",
                        error.text
                    );
                    let error = StoreError::new(StoreErrorKind::Unreachable, text);
                    self.shared.stop(&error);
                    return Err(error);
                }
                Err(_) => std::thread::sleep(RECONNECT_PAUSE),
            }
        };
        self.engine.tables.base.session = session;
        match outcome {
            Outcome::Known { term, happened } => {
                self.server_clock.set(term.wall);
                self.term = term;
                match happened || changes.is_empty() {
                    true => Ok(()),
                    false => Err(not_done()),
                }
            }
            Outcome::LostStore { happened, now } => {
                let error = lost(&now);
                self.shared.stop(&error);
                if happened && !changes.is_empty() { Ok(()) } else { Err(error) }
            }
            Outcome::WentBack(error) => {
                self.shared.stop(&error);
                Err(error)
            }
        }
    }
}

/// What is left of jobs that have been applied.
#[derive(Default)]
struct Applied {
    replies: Vec<Reply>,
    guards: Vec<Option<WaitingGuard>>,
    /// Whether a job needs memory.
    grows: bool,
    /// Whether a job needs none.
    frees: bool,
}

/// What the writer waits for.
enum Next {
    Job(Job<RedisTables>),
    /// Nothing arrived until the next heartbeat.
    Silence,
    /// Every sender is gone.
    End,
}
