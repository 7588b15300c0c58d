//! Several loops as one program: started together, monitored together, stopped together. If one of its loops fails, a
//! group stops or restarts it; it never continues without it silently.

mod health;
mod port;

pub use health::{Health, HealthStatus, LoopHealth, LoopState, Report as HealthReport};

use crate::runnable::{Heartbeat, Runnable};
use crate::waiting::GrowingDelay;
use health::WatchedLoop;
use redrive_core::error::{CallError, StoreError, StoreErrorKind};
use redrive_core::store::Store;
use redrive_core::time::Span;
use std::fmt;
use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// What happens when a loop ends with an error or panics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnFailure {
    /// All loops are stopped, and the run returns that error.
    #[default]
    Stop,
    /// The loop is restarted, after a delay that doubles up to a minute.
    Restart,
}

/// What happens when a loop has had no heartbeat for longer than the watchdog allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnStuck {
    /// The health report says so.
    #[default]
    Report,
    /// The run ends with an error, so that the process can be restarted.
    Exit,
}

/// Why a run of a group failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupError {
    /// A loop failed.
    Failed {
        /// The name of the loop.
        name: String,
        /// The error of the loop.
        error: CallError,
    },
    /// A loop had no heartbeat for too long.
    Stuck {
        /// The name of the loop.
        name: String,
        /// How long ago its last heartbeat was.
        silent: Duration,
    },
    /// Some loops did not end in time and were aborted. Their leases expire by themselves.
    Aborted {
        /// The names of the loops.
        names: Vec<String>,
    },
    /// The health port or the signal handlers could not be set up.
    Setup(String),
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed { name, error } => write!(f, "{name} failed: {error}"),
            Self::Stuck { name, silent } => {
                write!(f, "{name} gave no sign of life for {} s", silent.as_secs())
            }
            Self::Aborted { names } => {
                write!(f, "did not end in time and were aborted: {}", names.join(", "))
            }
            Self::Setup(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for GroupError {}

/// Runs workers, consumers, maintenance and anything else that is [`Runnable`] as one program.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use redrive::maintenance::Maintenance;
/// use redrive::{DeadLetterConsumer, LoopGroup, OnFailure, replay_each};
///
/// let store = redrive::memory();
/// let consumer =
///     DeadLetterConsumer::builder(store.clone()).dlq("mail-dlq").handler(replay_each(1)).build()?;
/// let group = LoopGroup::new(store.clone())
///     .run(consumer)
///     .run(Maintenance::new(store))
///     .on_failure(OnFailure::Restart)
///     .health_port(0) // on loopback; 0 takes a free port
///     .bind()
///     .await?;
/// println!("health: http://{}/health/ready", group.health_address().unwrap());
/// let stop = redrive::CancellationToken::new();
/// stop.cancel(); // this example ends at once; a program calls `until_signalled`
/// group.until(stop).await?;
/// # Ok(())
/// # }
/// ```
pub struct LoopGroup {
    store: Arc<dyn Store>,
    loops: Vec<Arc<dyn Runnable>>,
    health: Option<SocketAddr>,
    watchdog: Span,
    on_stuck: OnStuck,
    on_failure: OnFailure,
    end_within: Span,
    degraded_at: u64,
}

impl fmt::Debug for LoopGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.loops.iter().map(|one| one.name()).collect();
        f.debug_struct("LoopGroup").field("loops", &names).finish_non_exhaustive()
    }
}

impl LoopGroup {
    /// Creates an empty group. The state of the store and its dead letters are part of the group's health.
    #[must_use]
    pub fn new(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            loops: Vec::new(),
            health: None,
            watchdog: Span::from_secs(720),
            on_stuck: OnStuck::default(),
            on_failure: OnFailure::default(),
            end_within: Span::from_secs(60),
            degraded_at: 100,
        }
    }

    /// Adds a loop.
    #[must_use]
    pub fn run(mut self, one: impl Runnable + 'static) -> Self {
        self.loops.push(Arc::new(one));
        self
    }

    /// Serves `/health/live`, `/health/ready` and `/metrics` on this port of the loopback address; 0 takes a free one.
    #[must_use]
    pub fn health_port(self, port: u16) -> Self {
        self.health_at(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port))
    }

    /// Serves the same as [`Self::health_port`] on any address. The reports contain names and counts, never payloads.
    /// There is no authentication.
    #[must_use]
    pub fn health_at(mut self, address: SocketAddr) -> Self {
        self.health = Some(address);
        self
    }

    /// How long a loop may go without a heartbeat before it counts as stuck. Defaults to 720 s.
    #[must_use]
    pub fn watchdog(mut self, span: Span) -> Self {
        self.watchdog = span;
        self
    }

    /// What happens when a loop is stuck.
    #[must_use]
    pub fn on_stuck(mut self, what: OnStuck) -> Self {
        self.on_stuck = what;
        self
    }

    /// What happens when a loop ends with an error or panics.
    #[must_use]
    pub fn on_failure(mut self, what: OnFailure) -> Self {
        self.on_failure = what;
        self
    }

    /// How long all loops together may take to end once they are stopped. Each has its own grace time within that.
    #[must_use]
    pub fn end_within(mut self, span: Span) -> Self {
        self.end_within = span;
        self
    }

    /// The number of open dead letters from which on the group counts as degraded. Defaults to 100.
    #[must_use]
    pub fn degraded_at(mut self, open_letters: u64) -> Self {
        self.degraded_at = open_letters;
        self
    }

    /// Binds the health port, so that a wrong address is known before any loop is started.
    ///
    /// # Errors
    /// Returns [`GroupError::Setup`] if the port cannot be bound.
    pub async fn bind(self) -> Result<BoundGroup, GroupError> {
        let listener = match self.health {
            None => None,
            Some(address) => Some(TcpListener::bind(address).await.map_err(|error| {
                GroupError::Setup(format!(
                    "the health port {address} cannot be bound: {error}; choose another"
                ))
            })?),
        };
        let watched = self.loops.iter().map(|one| WatchedLoop::new(Arc::clone(one))).collect();
        let health = Health::new(Arc::clone(&self.store), watched, self.watchdog.to_std(), self.degraded_at);
        Ok(BoundGroup { group: self, listener, health: Arc::new(health) })
    }
}

/// A group whose health port is bound.
pub struct BoundGroup {
    group: LoopGroup,
    listener: Option<TcpListener>,
    health: Arc<Health>,
}

impl fmt::Debug for BoundGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundGroup").field("group", &self.group).finish_non_exhaustive()
    }
}

impl BoundGroup {
    /// The address of the health port.
    #[must_use]
    pub fn health_address(&self) -> Option<SocketAddr> {
        self.listener.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// The health of the group, for programs that show it themselves.
    #[must_use]
    pub fn health(&self) -> Arc<Health> {
        Arc::clone(&self.health)
    }

    /// Runs until SIGTERM or SIGINT, then stops all loops. A second signal aborts them.
    ///
    /// # Errors
    /// The same as [`Self::until`].
    pub async fn until_signalled(self) -> Result<(), GroupError> {
        let setup =
            |error: std::io::Error| GroupError::Setup(format!("failed to listen for signals: {error}"));
        let mut terminate = signal(SignalKind::terminate()).map_err(setup)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(setup)?;
        let stop = CancellationToken::new();
        let abort = CancellationToken::new();
        let signals = async {
            for token in [&stop, &abort] {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                tracing::info!("received a signal to stop");
                token.cancel();
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            result = self.run(stop.clone(), abort.clone()) => result,
            () = signals => Ok(()),
        }
    }

    /// Runs until `stop` is cancelled or no loop is left, then stops all loops.
    ///
    /// # Errors
    /// Returns the error that ended the run, or which loops had to be aborted.
    pub async fn until(self, stop: CancellationToken) -> Result<(), GroupError> {
        self.run(stop, CancellationToken::new()).await
    }

    async fn run(self, stop: CancellationToken, abort: CancellationToken) -> Result<(), GroupError> {
        let Self { group, listener, health } = self;
        let mut loops = JoinSet::new();
        for n in 0..group.loops.len() {
            let supervisor = LoopSupervisor { n, health: Arc::clone(&health), on_failure: group.on_failure };
            loops.spawn(supervisor.run(stop.clone()));
        }
        let mut health_port = JoinSet::new();
        if let Some(listener) = listener {
            health_port.spawn(port::serve(listener, Arc::clone(&health)));
        }
        let mut ended = Ok(());
        let mut tick = tokio::time::interval(watch_every(group.watchdog.to_std()));
        while ended.is_ok() && !stop.is_cancelled() && !loops.is_empty() {
            tokio::select! {
                () = stop.cancelled() => {}
                Some(one) = loops.join_next() => ended = outcome(one),
                _ = tick.tick() => {
                    if let (Some(stuck), OnStuck::Exit) = (health.stuck(), group.on_stuck) {
                        ended = Err(stuck);
                    }
                }
            }
        }
        if let Err(error) = &ended {
            tracing::error!(%error, "the group of loops stops");
        }
        stop.cancel();
        let drained = drain(loops, &health, group.end_within.to_std(), &abort).await;
        health_port.shutdown().await;
        ended.and(drained)
    }
}

/// How often the watchdog checks heartbeats: often for short limits, rarely for long ones.
fn watch_every(limit: Duration) -> Duration {
    (limit / 4).clamp(Duration::from_millis(10), Duration::from_secs(10))
}

fn outcome(ended: Result<Result<(), GroupError>, tokio::task::JoinError>) -> Result<(), GroupError> {
    // The supervisor itself neither panics nor is aborted before the end.
    ended.unwrap_or_else(|error| Err(GroupError::Setup(format!("a loop could not be supervised: {error}"))))
}

/// Waits for the loops to end by themselves, and aborts those that do not end in time.
async fn drain(
    mut loops: JoinSet<Result<(), GroupError>>,
    health: &Health,
    within: Duration,
    abort: &CancellationToken,
) -> Result<(), GroupError> {
    let mut ended = Ok(());
    let all = async {
        while let Some(one) = loops.join_next().await {
            ended = std::mem::replace(&mut ended, Ok(())).and(outcome(one));
        }
    };
    tokio::select! {
        () = all => return ended,
        () = abort.cancelled() => {}
        () = tokio::time::sleep(within) => {}
    }
    let names = health.running();
    tracing::warn!(?names, "loops did not end in time and are aborted");
    loops.abort_all();
    Err(GroupError::Aborted { names })
}

/// Runs one loop, and restarts it if the group says so.
struct LoopSupervisor {
    n: usize,
    health: Arc<Health>,
    on_failure: OnFailure,
}

/// After a loop has run this long, the delay before its next restart starts from the beginning.
const HEALTHY_AFTER: Duration = Duration::from_secs(300);

impl LoopSupervisor {
    async fn run(self, stop: CancellationToken) -> Result<(), GroupError> {
        let Some(watched) = self.health.watched(self.n) else { return Ok(()) };
        let mut delay = GrowingDelay::new(Duration::from_millis(500), Duration::from_secs(60));
        loop {
            let started = Instant::now();
            let heartbeat = Heartbeat::default();
            watched.begin(heartbeat.clone());
            let error = match run_one(watched.runnable(), stop.clone(), heartbeat).await {
                Ok(()) => {
                    watched.set(LoopState::Ended);
                    tracing::info!(name = watched.name(), "a loop has ended");
                    return Ok(());
                }
                Err(error) => error,
            };
            watched.failed(&error);
            if self.on_failure == OnFailure::Stop || stop.is_cancelled() {
                return Err(GroupError::Failed { name: watched.name().to_owned(), error });
            }
            if started.elapsed() >= HEALTHY_AFTER {
                delay.reset();
            }
            let wait = delay.wait();
            tracing::error!(name = watched.name(), %error, ?wait, "a loop failed and is restarted");
            if crate::waiting::pause(&stop, wait).await {
                watched.set(LoopState::Ended);
                return Ok(());
            }
        }
    }
}

/// Runs a loop. A panic is returned as an error.
fn run_one(
    one: Arc<dyn Runnable>,
    stop: CancellationToken,
    heartbeat: Heartbeat,
) -> impl Future<Output = Result<(), CallError>> {
    let mut task = AbortOnDrop(tokio::spawn(async move { one.run(stop, heartbeat).await }));
    async move {
        (&mut task.0).await.unwrap_or_else(|error| {
            let why = format!("it panicked: {error}");
            Err(StoreError::new(StoreErrorKind::Stopped, why).into())
        })
    }
}

/// Aborts its task when it is dropped.
struct AbortOnDrop(tokio::task::JoinHandle<Result<(), CallError>>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
