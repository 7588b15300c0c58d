//! The writer: the one thread of the node that holds the store. It applies the jobs that wait as one group, writes what
//! they changed in one statement that is fenced by the term, and only then replies.
//!
//! If the answer to a statement is lost, nobody is answered until it is known whether the commit happened. If another
//! node has taken the store over, nothing more is acknowledged by this one.

use super::base::PgBase;
use super::clock::DatabaseClock;
use super::connect::Address;
use super::flush::Flush;
use super::inbox::{self, Taken};
use super::term::{self, Outcome, Term};
use crate::access::Wants;
use crate::clock::StoreClock;
use crate::engine::Engine;
use crate::engine::tables::{TableResult, damaged};
use crate::engine::touched::Touched;
use crate::entropy::Entropy;
use crate::holder::Holder;
use crate::jobs::{Job, Reply};
use crate::staged::{Changes, Staged};
use crate::verbs::{pack, wants_of};
use redrive_core::error::{CallError, StoreError, StoreErrorKind};
use redrive_core::limits;
use redrive_core::time::Time;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use uuid::Uuid;

/// The tables of the holder.
pub(crate) type PgTables = Staged<PgBase>;

/// How often the holder says that it is alive while it has nothing to write.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// How often the holder looks for messages that were sent by SQL.
const INBOX: Duration = Duration::from_millis(100);
/// How long a holder tries to reach the database again before its callers are told that the outcome is unknown.
const RECONNECT_FOR: Duration = Duration::from_secs(30);
const RECONNECT_PAUSE: Duration = Duration::from_millis(100);

/// State shared by the writer and the handles that send jobs to it.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) holder: Arc<Holder>,
    /// The number of jobs not answered yet, except long ones. Long jobs look at it to let others in.
    pub(super) waiting: Arc<AtomicUsize>,
    /// Why nothing is acknowledged any more, once that is so.
    stopped: Mutex<Option<StoreError>>,
    is_stopped: AtomicBool,
    /// Whether the database's disk is full.
    pub(super) full: AtomicBool,
    /// Messages sent by SQL that were refused.
    pub(super) refused: AtomicU64,
    /// Commits, and round trips for single rows in the middle of groups.
    pub(super) commits: AtomicU64,
    pub(super) misses: AtomicU64,
}

impl Shared {
    pub(super) fn new() -> Self {
        Self {
            holder: Arc::new(Holder::new()),
            waiting: Arc::default(),
            stopped: Mutex::new(None),
            is_stopped: AtomicBool::new(false),
            full: AtomicBool::new(false),
            refused: AtomicU64::new(0),
            commits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    fn stop(&self, why: &StoreError) {
        self.stopped.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| why.clone());
        self.is_stopped.store(true, Ordering::SeqCst);
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
    let text = "the connection to PostgreSQL was lost, and nothing of the commit happened: try again";
    StoreError::new(StoreErrorKind::Undone, text)
}

/// The state of the writer thread.
pub(super) struct Writer {
    pub(super) engine: Engine<PgTables>,
    pub(super) address: Address,
    pub(super) term: Term,
    pub(super) node: String,
    pub(super) entropy: Arc<dyn Entropy>,
    pub(super) clock: StoreClock,
    pub(super) database_clock: Arc<DatabaseClock>,
    pub(super) shared: Arc<Shared>,
}

impl Writer {
    /// Processes jobs until every sender is gone. Each round commits the short jobs as one group and replies to them,
    /// then commits one long job by itself.
    pub(super) fn run(mut self, mut jobs: mpsc::Receiver<Job<PgTables>>) {
        let mut long = VecDeque::new();
        let (mut seen, mut looked) = (Instant::now(), None::<Instant>);
        loop {
            if looked.is_none_or(|at| at.elapsed() >= INBOX) {
                if self.take_inbox() {
                    seen = Instant::now();
                }
                looked = Some(Instant::now());
            }
            let first = match long.is_empty() {
                true => match self.next_job(&mut jobs) {
                    Next::Job(job) => Some(job),
                    Next::Silence if seen.elapsed() >= HEARTBEAT => {
                        self.heartbeat();
                        seen = Instant::now();
                        continue;
                    }
                    Next::Silence => continue,
                    Next::End => break,
                },
                false => None,
            };
            let arrived = first.into_iter().chain(std::iter::from_fn(|| jobs.try_recv().ok()));
            let mut group = Vec::new();
            for job in arrived.take(limits::GROUP_COMMANDS_MAX) {
                if job.cost.long { long.push_back(job) } else { group.push(job) }
            }
            let mut wrote = self.commit_group(group);
            wrote |= self.commit_group(long.pop_front().into_iter().collect());
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

    /// Waits for a job, but not longer than until the next look at the inbox.
    fn next_job(&self, jobs: &mut mpsc::Receiver<Job<PgTables>>) -> Next {
        let session = &self.engine.tables.base.session;
        let waited = session.wait(async { tokio::time::timeout(INBOX, jobs.recv()).await });
        match waited {
            Ok(Ok(Some(job))) => Next::Job(job),
            Ok(Ok(None)) | Err(_) => Next::End,
            Ok(Err(_)) => Next::Silence,
        }
    }

    fn heartbeat(&mut self) {
        if self.shared.stopped().is_some() {
            return;
        }
        match term::heartbeat(&self.engine.tables.base.session, &self.term) {
            Ok(Some(wall)) => self.database_clock.set(wall),
            Ok(None) | Err(_) => {
                // Either another node holds the store, or the connection is gone; both are found out the same way.
                let _ = self.find_out(&Changes::default());
            }
        }
    }

    /// Applies a group of jobs in one commit, then replies to them. Returns whether anything was written.
    fn commit_group(&mut self, group: Vec<Job<PgTables>>) -> bool {
        let full = self.shared.full.load(Ordering::SeqCst);
        let group: Vec<_> = group.into_iter().filter(|job| !(full && job.cost.grows)).collect();
        if group.is_empty() || self.shared.stopped().is_some() {
            // Dropping a job closes its reply channel; its sender then reports why.
            return false;
        }
        let (mut replies, mut guards) = (Vec::with_capacity(group.len()), Vec::with_capacity(group.len()));
        match self.apply(group, &mut replies, &mut guards) {
            Ok(wrote) => {
                self.engine.after_commit.record();
                let Touched { areas, available } = self.engine.take_touched();
                self.shared.holder.publish(areas);
                for reply in replies {
                    reply(Ok(()));
                }
                self.shared.holder.offer(&available);
                wrote
            }
            Err(error) => {
                self.engine.forget();
                if error.kind == StoreErrorKind::Full {
                    self.shared.full.store(true, Ordering::SeqCst);
                }
                for reply in replies {
                    reply(Err(error.clone()));
                }
                false
            }
        }
    }

    /// Applies a group and commits it. Returns whether anything was written. On error, nothing of the group has
    /// happened, unless the error says that this is not known.
    fn apply(
        &mut self,
        group: Vec<Job<PgTables>>,
        replies: &mut Vec<Reply>,
        guards: &mut Vec<Option<crate::jobs::WaitingGuard>>,
    ) -> TableResult<bool> {
        let now = self.clock.now();
        // What cannot be read ahead is read by the verb that needs it, which reports why it cannot.
        if let Err(error) = self.load(&group, now)
            && error.kind == StoreErrorKind::Unreachable
        {
            let _ = self.find_out(&Changes::default());
        }
        let mut first_error = None;
        for job in group {
            // A job that has been applied still waits for the commit, so it stays counted.
            guards.push(job.waiting);
            let (reply, error) = (job.apply)(&mut self.engine, now);
            replies.push(reply);
            first_error = first_error.or(error);
        }
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
        self.write(&changes, &Taken::default(), now)?;
        self.after_write(changes);
        Ok(true)
    }

    /// Takes in what was sent by SQL. Returns whether anything was written. What fails is tried again at the next look.
    fn take_inbox(&mut self) -> bool {
        if self.shared.stopped().is_some() || self.shared.full.load(Ordering::SeqCst) {
            return false;
        }
        // Without the lock, the store would only be taken over more slowly.
        let _ = term::take_lock(&self.engine.tables.base.session, &mut self.term);
        let taken = inbox::read(&self.engine.tables.base).and_then(|arrived| self.enqueue_arrived(arrived));
        match taken {
            Ok(wrote) => wrote,
            Err(error) => {
                self.engine.forget();
                if error.kind == StoreErrorKind::Unreachable {
                    let _ = self.find_out(&Changes::default());
                }
                false
            }
        }
    }

    fn enqueue_arrived(&mut self, arrived: Vec<inbox::Arrived>) -> TableResult<bool> {
        if arrived.is_empty() {
            return Ok(false);
        }
        let now = self.clock.now();
        let numbers: Vec<i64> = arrived.iter().map(|row| row.n).collect();
        let packed: Vec<_> = arrived.into_iter().map(|row| row.message.and_then(pack::<PgTables>)).collect();
        self.engine.tables.load(&[wants_of(&packed)], Vec::new())?;
        let results = match self.engine.enqueue(packed, now) {
            Ok(results) => results,
            Err(CallError::Store(error)) => return Err(error),
            Err(CallError::Refused(refusal)) => return Err(damaged(refusal)),
        };
        let mut taken = Taken::default();
        for (n, result) in numbers.into_iter().zip(results) {
            taken.note(n, result.map(|_| ()));
        }
        self.engine.flush()?;
        let changes = self.engine.tables.take_changes();
        if changes.is_empty() && taken.is_empty() {
            return Ok(false);
        }
        self.write(&changes, &taken, now)?;
        self.after_write(changes);
        let refused = inbox::refused(&self.engine.tables.base).unwrap_or(0).cast_unsigned();
        self.shared.refused.store(refused, Ordering::Relaxed);
        self.engine.after_commit.record();
        let Touched { areas, available } = self.engine.take_touched();
        self.shared.holder.publish(areas);
        self.shared.holder.offer(&available);
        Ok(true)
    }

    /// Notes that a commit happened.
    fn after_write(&mut self, changes: Changes) {
        self.engine.tables.committed(changes);
        self.shared.commits.fetch_add(1, Ordering::Relaxed);
        self.shared.full.store(false, Ordering::SeqCst);
    }

    /// Connects again after a read failed. Returns the error for those whose verbs were not carried out because of it.
    fn reconnect(&mut self) -> StoreError {
        match self.find_out(&Changes::default()) {
            Ok(()) => not_done(),
            Err(error) => error,
        }
    }

    /// Reads what the group will ask for.
    fn load(&mut self, group: &[Job<PgTables>], now: Time) -> TableResult<()> {
        let wants: Vec<Wants> = group.iter().map(|job| job.wants.clone()).collect();
        let mut leased = Vec::new();
        for (queues, max) in wants.iter().filter_map(|want| want.lease.as_ref()) {
            leased.extend(self.engine.next_in_line(queues, *max, now)?);
        }
        self.engine.tables.load(&wants, leased)
    }

    /// Writes what a group changed.
    fn write(&mut self, changes: &Changes, taken: &Taken, now: Time) -> TableResult<()> {
        let session = &self.engine.tables.base.session;
        let flush = Flush::new(changes, taken, &self.term, now)?;
        let params = flush.params();
        let answered = session.run(async {
            let statement = session.prepare(&flush.sql).await?;
            let row = session.client().query_one(&statement, &params).await?;
            Ok((row.try_get::<_, i64>(0)?, row.try_get::<_, i64>(1)?))
        });
        match answered {
            Ok((1, wall)) => {
                self.term.commit += 1;
                self.database_clock.set(wall);
                Ok(())
            }
            // The fence was not there: nothing was written. Who holds the store now is found out on a new session.
            Ok(_) => self.find_out(changes),
            Err(error) if error.kind == StoreErrorKind::Unreachable => self.find_out(changes),
            Err(error) => Err(error),
        }
    }

    /// Finds out what became of a commit whose answer was lost, and who holds the store. Succeeds if the commit happened.
    fn find_out(&mut self, changes: &Changes) -> TableResult<()> {
        let began = Instant::now();
        let mut nonce = [0; 16];
        self.entropy.fill(&mut nonce);
        let outcome = loop {
            let tried = self.address.connect().and_then(|session| {
                super::open::tune_writer(&session)?;
                let outcome = term::settle(&session, &self.term, &self.node, Uuid::from_bytes(nonce))?;
                Ok((session, outcome))
            });
            match tried {
                Ok(found) => break found,
                Err(error) if began.elapsed() > RECONNECT_FOR => {
                    let text = format!(
                        "the database cannot be reached, and whether the last commit took effect is not known: {}",
                        error.text
                    );
                    let error = StoreError::new(StoreErrorKind::Unreachable, text);
                    self.shared.stop(&error);
                    return Err(error);
                }
                Err(_) => std::thread::sleep(RECONNECT_PAUSE),
            }
        };
        let (session, outcome) = outcome;
        self.engine.tables.base.session = session;
        match outcome {
            Outcome::Known { term, happened } => {
                self.database_clock.set(term.wall);
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
        }
    }
}

/// What the writer waits for.
enum Next {
    Job(Job<PgTables>),
    /// Nothing arrived for a while.
    Silence,
    /// Every sender is gone.
    End,
}
