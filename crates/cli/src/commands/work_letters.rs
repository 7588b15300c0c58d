//! `work --dlq`: runs a command for every letter of a dead letter queue. The library's consumer leases and settles;
//! this module connects it to flags and signals and counts the decisions of the command.

use super::dlq::require_dlq;
use super::work::{BackgroundMaintenance, Signals, StopSignal};
use crate::connect::{Access, App, Hold};
use crate::exit_code::{CommandResult, ExitCode};
use crate::output::{Column, Show, ValueFormat};
use redrive::core::dead_letter::DeadLetter;
use redrive::core::ids::QueueName;
use redrive::core::time::Span;
use redrive::executor::LetterCommand;
use redrive::{
    CancellationToken, DeadLetterConsumer, Disposition, HandlerError, Heartbeat, LetterHandler, Runnable as _,
};
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How the consumer runs.
pub(super) struct Settings {
    pub(super) dlq: QueueName,
    pub(super) concurrency: usize,
    pub(super) lease: Option<Span>,
    pub(super) timeout: Option<Span>,
    pub(super) grace: Span,
    pub(super) name: Option<String>,
    pub(super) once: bool,
    pub(super) drain: bool,
}

/// Counts the decisions of the command.
#[derive(Debug, Default)]
struct DecisionCounts {
    resolved: AtomicU64,
    replayed: AtomicU64,
    review: AtomicU64,
    failed: AtomicU64,
}

/// The command, with its decisions counted.
struct CountingHandler {
    command: LetterCommand,
    counts: Arc<DecisionCounts>,
}

#[redrive::async_trait]
impl LetterHandler for CountingHandler {
    async fn handle(&self, letter: DeadLetter) -> Result<Disposition, HandlerError> {
        let decided = self.command.handle(letter).await;
        let counter = match &decided {
            Ok(Disposition::Resolve { .. } | Disposition::Discard { .. }) => &self.counts.resolved,
            Ok(Disposition::Replay | Disposition::ReplayAfter(_)) => &self.counts.replayed,
            Ok(Disposition::Review { .. } | Disposition::Quarantine { .. } | Disposition::Leave) => {
                &self.counts.review
            }
            Err(_) => &self.counts.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        decided
    }
}

/// The result of a run.
#[derive(Serialize)]
struct Summary {
    dlq: QueueName,
    resolved: u64,
    replayed: u64,
    review: u64,
    failed: u64,
}

impl Show for Summary {
    const COLUMNS: &'static [Column] = &[
        Column::whole("dlq"),
        Column::number("resolved"),
        Column::number("replayed"),
        Column::number("review"),
        Column::number("failed"),
    ];

    fn cells(&self, _: &ValueFormat) -> Vec<String> {
        let numbers = [self.resolved, self.replayed, self.review, self.failed].map(|n| n.to_string());
        std::iter::once(self.dlq.to_string()).chain(numbers).collect()
    }
}

/// Runs until it is stopped, or until it has handled as many letters as the settings ask for.
pub(super) async fn run(app: &App, command: LetterCommand, settings: Settings) -> CommandResult {
    // Listen for signals before leasing anything.
    let mut signals = Signals::listen()?;
    let store = app.open(Access::Existing, Hold::Long).await?;
    require_dlq(&*store, &settings.dlq).await?;
    let counts = Arc::new(DecisionCounts::default());
    let consumer =
        consumer(&settings, store.store(), CountingHandler { command, counts: Arc::clone(&counts) })?;
    app.out.note(&format!("working on the dead letters of {}", settings.dlq));
    let maintenance = BackgroundMaintenance::begin(store.store());
    let stop = CancellationToken::new();
    let mut running = std::pin::pin!(consumer.run(stop.clone(), Heartbeat::default()));
    let mut stopped = None;
    let ended = loop {
        tokio::select! {
            ended = &mut running => break ended,
            by = signals.next() => {
                if stopped.is_some() {
                    // On a second signal commands end now, and their letters are released.
                    consumer.stop_now();
                } else {
                    app.out.note(&format!("stopping within {}; interrupt again to stop at once", settings.grace));
                }
                stopped = stopped.or(Some(by));
                stop.cancel();
            }
        }
    };
    maintenance.end().await;
    ended?;
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    app.out.one(&Summary {
        dlq: settings.dlq,
        resolved: count(&counts.resolved),
        replayed: count(&counts.replayed),
        review: count(&counts.review),
        failed: count(&counts.failed),
    })?;
    Ok(if stopped == Some(StopSignal::Interrupt) { ExitCode::Interrupted } else { ExitCode::Ok })
}

fn consumer(
    settings: &Settings,
    store: Arc<dyn redrive::core::store::Store>,
    handler: CountingHandler,
) -> Result<DeadLetterConsumer, redrive::core::error::Refusal> {
    let mut consumer = DeadLetterConsumer::builder(store)
        .dlq(settings.dlq.as_str())
        .concurrency(settings.concurrency)
        .grace(settings.grace)
        .handler(handler);
    if let Some(lease) = settings.lease {
        consumer = consumer.lease(lease);
    }
    if let Some(timeout) = settings.timeout {
        // The command's own time limit should fire first, because its error says more.
        consumer = consumer.timeout(timeout.times(2));
    }
    if let Some(name) = &settings.name {
        consumer = consumer.name(name.clone());
    }
    if settings.once {
        consumer = consumer.at_most(1);
    }
    if settings.drain {
        consumer = consumer.until_empty();
    }
    consumer.build()
}
