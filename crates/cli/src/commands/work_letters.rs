//! `work --dlq`: runs a command for every dead letter of one dead letter queue. The library's consumer leases and
//! settles; this file wires it to flags and signals and counts what the command decided.

use super::dlq::require_dlq;
use super::work::{By, Signals, Upkeep};
use crate::connect::{Access, App, Hold};
use crate::exit_code::{Done, ExitCode};
use crate::output::{Column, Look, Show};
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

/// What the command decided, by letter.
#[derive(Debug, Default)]
struct Tally {
    resolved: AtomicU64,
    replayed: AtomicU64,
    review: AtomicU64,
    failed: AtomicU64,
}

/// The command, counted and logged.
struct Counted {
    command: LetterCommand,
    tally: Arc<Tally>,
}

#[redrive::async_trait]
impl LetterHandler for Counted {
    async fn handle(&self, letter: DeadLetter) -> Result<Disposition, HandlerError> {
        let decided = self.command.handle(letter).await;
        let counter = match &decided {
            Ok(Disposition::Resolve { .. } | Disposition::Discard { .. }) => &self.tally.resolved,
            Ok(Disposition::Replay | Disposition::ReplayAfter(_)) => &self.tally.replayed,
            Ok(Disposition::Review { .. } | Disposition::Quarantine { .. } | Disposition::Leave) => {
                &self.tally.review
            }
            Err(_) => &self.tally.failed,
        };
        counter.fetch_add(1, Ordering::Relaxed);
        decided
    }
}

/// What the consumer did.
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

    fn cells(&self, _: &Look) -> Vec<String> {
        let numbers = [self.resolved, self.replayed, self.review, self.failed].map(|n| n.to_string());
        std::iter::once(self.dlq.to_string()).chain(numbers).collect()
    }
}

/// Runs it until it is told to stop, or as long as there are letters.
pub(super) async fn run(app: &App, command: LetterCommand, settings: Settings) -> Done {
    // Listened to before anything is leased.
    let mut signals = Signals::listen()?;
    let store = app.open(Access::Existing, Hold::Long).await?;
    require_dlq(&*store, &settings.dlq).await?;
    let tally = Arc::new(Tally::default());
    let consumer = consumer(&settings, store.store(), Counted { command, tally: Arc::clone(&tally) })?;
    app.out.note(&format!("works on the dead letters of {}", settings.dlq));
    let upkeep = Upkeep::begin(store.store());
    let stop = CancellationToken::new();
    let mut running = std::pin::pin!(consumer.run(stop.clone(), Heartbeat::default()));
    let mut stopped = None;
    let ended = loop {
        tokio::select! {
            ended = &mut running => break ended,
            by = signals.next() => {
                if stopped.is_some() {
                    // Asked twice: commands end now, and their letters are given back.
                    consumer.stop_now();
                } else {
                    app.out.note(&format!("stopping within {}; once more to stop at once", settings.grace));
                }
                stopped = stopped.or(Some(by));
                stop.cancel();
            }
        }
    };
    upkeep.end().await;
    ended?;
    let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    app.out.one(&Summary {
        dlq: settings.dlq,
        resolved: count(&tally.resolved),
        replayed: count(&tally.replayed),
        review: count(&tally.review),
        failed: count(&tally.failed),
    })?;
    Ok(if stopped == Some(By::Interrupt) { ExitCode::Interrupted } else { ExitCode::Ok })
}

fn consumer(
    settings: &Settings,
    store: Arc<dyn redrive::core::store::Store>,
    handler: Counted,
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
        // The command's own limit comes first and says more.
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
