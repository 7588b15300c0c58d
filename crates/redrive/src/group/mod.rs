//! Several loops as one program: started together, watched together, stopped together. A group never goes on in
//! silence when one of its loops has ended badly. It does no work of its own.

mod health;
mod port;

pub use health::{Health, HealthStatus, LoopHealth, LoopState, Report as HealthReport};

use crate::pace::Pace;
use crate::runnable::{Heartbeat, Runnable};
use health::Watched;
use redrive_core::error::{Error, StoreError, StoreErrorKind};
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
    /// All of them end, and so does the run, with that error.
    #[default]
    Stop,
    /// It is started again, after a while that doubles up to a minute.
    Restart,
}

/// What happens when a loop has not beaten for longer than the watchdog waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum OnStuck {
    /// The health report says so; whoever asks for it decides.
    #[default]
    Report,
    /// The run ends with an error, so that the process can be started afresh.
    Exit,
}

/// Why a run ended badly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupError {
    /// A loop could not go on.
    Failed {
        /// Which.
        name: String,
        /// Why.
        error: Error,
    },
    /// A loop gave no sign of life.
    Stuck {
        /// Which.
        name: String,
        /// For how long.
        silent: Duration,
    },
    /// Some loops did not end in time and were cut off. Their leases run out by themselves.
    CutOff {
        /// Which.
        names: Vec<String>,
    },
    /// The health port or the signals could not be had.
    Setup(String),
}

impl fmt::Display for GroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed { name, error } => write!(f, "{name} cannot go on: {error}"),
            Self::Stuck { name, silent } => {
                write!(f, "{name} gave no sign of life for {} s", silent.as_secs())
            }
            Self::CutOff { names } => write!(f, "did not end in time and were cut off: {}", names.join(", ")),
            Self::Setup(why) => f.write_str(why),
        }
    }
}

impl std::error::Error for GroupError {}

/// Workers, consumers, maintenance and whatever else is [`Runnable`], run as one.
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
    depth: u64,
}

impl fmt::Debug for LoopGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.loops.iter().map(|one| one.name()).collect();
        f.debug_struct("LoopGroup").field("loops", &names).finish_non_exhaustive()
    }
}

impl LoopGroup {
    /// An empty group over a store, whose state and dead letters are part of its health.
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
            depth: 100,
        }
    }

    /// One more loop.
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

    /// The same on any address. The report has names and counts, no payloads; there is no authentication.
    #[must_use]
    pub fn health_at(mut self, address: SocketAddr) -> Self {
        self.health = Some(address);
        self
    }

    /// How long a loop may be silent before it counts as stuck; 720 s when not said.
    #[must_use]
    pub fn watchdog(mut self, span: Span) -> Self {
        self.watchdog = span;
        self
    }

    /// What happens then.
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

    /// How long all loops together have to end once they are told to. Each has its own grace time within it.
    #[must_use]
    pub fn end_within(mut self, span: Span) -> Self {
        self.end_within = span;
        self
    }

    /// From how many open dead letters on the group calls itself degraded; 100 when not said.
    #[must_use]
    pub fn degraded_at(mut self, open_letters: u64) -> Self {
        self.depth = open_letters;
        self
    }

    /// Takes the health port, so that a wrong one is known before any work is begun.
    ///
    /// # Errors
    /// [`GroupError::Setup`] when the port cannot be had.
    pub async fn bind(self) -> Result<BoundGroup, GroupError> {
        let listener = match self.health {
            None => None,
            Some(address) => Some(TcpListener::bind(address).await.map_err(|error| {
                GroupError::Setup(format!("the health port {address} cannot be had: {error}; choose another"))
            })?),
        };
        let watched = self.loops.iter().map(|one| Watched::new(Arc::clone(one))).collect();
        let health = Health::new(Arc::clone(&self.store), watched, self.watchdog.to_std(), self.depth);
        Ok(BoundGroup { group: self, listener, health: Arc::new(health) })
    }
}

/// A group whose health port is taken.
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
    /// Where the health report is served.
    #[must_use]
    pub fn health_address(&self) -> Option<SocketAddr> {
        self.listener.as_ref().and_then(|listener| listener.local_addr().ok())
    }

    /// The health report, for programs that show it themselves.
    #[must_use]
    pub fn health(&self) -> Arc<Health> {
        Arc::clone(&self.health)
    }

    /// Runs until SIGTERM or SIGINT, then ends all loops. A second signal cuts them off.
    ///
    /// # Errors
    /// As for [`Self::until`].
    pub async fn until_signalled(self) -> Result<(), GroupError> {
        let setup = |error: std::io::Error| GroupError::Setup(format!("signals cannot be had: {error}"));
        let mut terminate = signal(SignalKind::terminate()).map_err(setup)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(setup)?;
        let stop = CancellationToken::new();
        let cut = CancellationToken::new();
        let told = async {
            for token in [&stop, &cut] {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                tracing::info!("told to stop");
                token.cancel();
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            ended = self.go(stop.clone(), cut.clone()) => ended,
            () = told => Ok(()),
        }
    }

    /// Runs until `stop`, or until no loop is left, then ends all loops.
    ///
    /// # Errors
    /// What made it end otherwise, or which loops had to be cut off.
    pub async fn until(self, stop: CancellationToken) -> Result<(), GroupError> {
        self.go(stop, CancellationToken::new()).await
    }

    async fn go(self, stop: CancellationToken, cut: CancellationToken) -> Result<(), GroupError> {
        let Self { group, listener, health } = self;
        let mut loops = JoinSet::new();
        for n in 0..group.loops.len() {
            let keeper = Keeper { n, health: Arc::clone(&health), on_failure: group.on_failure };
            loops.spawn(keeper.keep(stop.clone()));
        }
        let mut beside = JoinSet::new();
        if let Some(listener) = listener {
            beside.spawn(port::serve(listener, Arc::clone(&health)));
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
            tracing::error!(%error, "the group of loops ends");
        }
        stop.cancel();
        let drained = drain(loops, &health, group.end_within.to_std(), &cut).await;
        beside.shutdown().await;
        ended.and(drained)
    }
}

/// How often the watchdog looks: often enough for short limits, rarely for long ones.
fn watch_every(limit: Duration) -> Duration {
    (limit / 4).clamp(Duration::from_millis(10), Duration::from_secs(10))
}

fn outcome(ended: Result<Result<(), GroupError>, tokio::task::JoinError>) -> Result<(), GroupError> {
    // The keeper itself neither panics nor is aborted before the end.
    ended.unwrap_or_else(|died| Err(GroupError::Setup(format!("a loop could not be kept: {died}"))))
}

/// Waits for the loops to end by themselves, and cuts off those that do not in time.
async fn drain(
    mut loops: JoinSet<Result<(), GroupError>>,
    health: &Health,
    within: Duration,
    cut: &CancellationToken,
) -> Result<(), GroupError> {
    let mut ended = Ok(());
    let all = async {
        while let Some(one) = loops.join_next().await {
            ended = std::mem::replace(&mut ended, Ok(())).and(outcome(one));
        }
    };
    tokio::select! {
        () = all => return ended,
        () = cut.cancelled() => {}
        () = tokio::time::sleep(within) => {}
    }
    let names = health.running();
    tracing::warn!(?names, "loops did not end in time and are cut off");
    loops.abort_all();
    Err(GroupError::CutOff { names })
}

/// Keeps one loop running.
struct Keeper {
    n: usize,
    health: Arc<Health>,
    on_failure: OnFailure,
}

/// A loop that ran this long was well: its next failure is a new one.
const WELL_AFTER: Duration = Duration::from_secs(300);

impl Keeper {
    async fn keep(self, stop: CancellationToken) -> Result<(), GroupError> {
        let Some(watched) = self.health.watched(self.n) else { return Ok(()) };
        let mut pace = Pace::new(Duration::from_millis(500), Duration::from_secs(60));
        loop {
            let began = Instant::now();
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
            if began.elapsed() >= WELL_AFTER {
                pace.reset();
            }
            let wait = pace.wait();
            tracing::error!(name = watched.name(), %error, ?wait, "a loop failed and is started again");
            if crate::pace::pause(&stop, wait).await {
                watched.set(LoopState::Ended);
                return Ok(());
            }
        }
    }
}

/// Runs it; a panic is an error like others.
fn run_one(
    one: Arc<dyn Runnable>,
    stop: CancellationToken,
    heartbeat: Heartbeat,
) -> impl Future<Output = Result<(), Error>> {
    let mut task = Aborting(tokio::spawn(async move { one.run(stop, heartbeat).await }));
    async move {
        (&mut task.0).await.unwrap_or_else(|died| {
            let why = format!("it panicked: {died}");
            Err(StoreError::new(StoreErrorKind::Stopped, why).into())
        })
    }
}

/// A task that ends with whoever waits for it.
struct Aborting(tokio::task::JoinHandle<Result<(), Error>>);

impl Drop for Aborting {
    fn drop(&mut self) {
        self.0.abort();
    }
}
