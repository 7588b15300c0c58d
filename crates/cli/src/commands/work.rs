//! `work`: runs a command, or the queue's target, for every message until it is stopped. It connects the library's
//! worker and executors to flags, signals and a progress line; the library decides what happens to a message.

use super::work_letters;
use crate::connect::{Access, App, Hold, Link, policy_in};
use crate::exit_code::{CliError, CommandResult, ExitCode};
use crate::log::LogArgs;
use crate::output::{Column, Sheet, Show, ValueFormat};
use crate::policy_flags::word;
use crate::progress::Status;
use clap::{Args, ValueEnum};
use redrive::core::error::CallError;
use redrive::core::ids::QueueName;
use redrive::core::limits;
use redrive::core::store::Store;
use redrive::core::target::{CommandTarget, HttpTarget, PayloadBy, Target};
use redrive::core::time::Span;
use redrive::executor::{LetterCommand, for_target};
use redrive::maintenance::Maintenance;
use redrive::{
    CancellationToken, Context, Counts, Handler, HandlerError, Heartbeat, Outcome, Runnable as _, Worker,
    WorkerHandle,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;

const EXAMPLES: &str = "\
Examples:
  redrive work payments -- ./charge.py                one process per message, payload on stdin
  redrive work payments --concurrency 8 --timeout 30s -- ./charge.py --fast
  redrive work mails --payload file -- sendmail-from '{payload_file}'
  redrive work jobs --drain --shell 'jq -e .ok > /dev/null || exit 65'
  redrive work hooks --exec http -- https://example.com/hook
  redrive work hooks                                  use the target set by `redrive queue set hooks --target URL`
  redrive work --dlq payments-dlq -- ./triage.py      one process per dead letter, payload on stdin
  redrive work --dlq payments-dlq --letter --drain -- jq -e '.error.type == \"Duplicate\"'

Exit codes of the command: 0 done, 75 retry later, 65 dead letter at once, anything else is a failure.
With --dlq: 0 resolve, 75 redrive, 65 needs review. Anything else is a failure of the consumer: it is noted on the
letter, and no consumer gets the letter for an hour.

Every failed delivery and every dead letter is one line on stderr; see --log and --log-level.";

/// How often the progress line is updated.
const SHOW_EVERY: Duration = Duration::from_millis(250);
/// The period over which the displayed rate is averaged.
const RATE_OVER: Duration = Duration::from_secs(10);

/// What to run for each message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Exec {
    /// The command after `--`
    Command,
    /// An HTTP request to the URL after `--`
    Http,
}

/// Messages per second: `10`, `10/s`, `600/m`, `1000/h`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate(f64);

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (number, unit) = text.split_once('/').unwrap_or((text, "s"));
        let seconds = match unit {
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3_600.0,
            _ => return Err(format!("{text:?} is not a rate such as 10/s, 600/m or 1000/h")),
        };
        match number.parse::<f64>() {
            Ok(rate) if rate > 0.0 && rate.is_finite() => Ok(Self(rate / seconds)),
            Ok(_) | Err(_) => Err(format!("{text:?} is not a rate such as 10/s, 600/m or 1000/h")),
        }
    }
}

/// The flags of `work`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct WorkArgs {
    /// The queues to work on, treated as one queue
    #[arg(required_unless_present = "dlq", conflicts_with = "dlq", value_name = "QUEUE")]
    queues: Vec<QueueName>,
    /// Work on the letters of this dead letter queue instead; the command decides about each
    #[arg(long, value_name = "DLQ", conflicts_with_all = ["exec", "kind", "rate", "allow_private"])]
    dlq: Option<QueueName>,
    /// With --dlq: pass the whole letter as JSON on stdin instead of the payload
    #[arg(long, requires = "dlq", conflicts_with = "payload")]
    letter: bool,
    /// The number of messages to work on at once [default: the number of processors]
    #[arg(long, short, value_name = "N")]
    concurrency: Option<usize>,
    /// The time limit for one message [default: none for a command, 30s for a request]
    #[arg(long, value_name = "DURATION")]
    timeout: Option<Span>,
    /// How long a lease lasts; it is extended while work continues [default: the queue's policy]
    #[arg(long, value_name = "DURATION")]
    lease: Option<Span>,
    /// How long to wait for running work when stopping, before returning it to the queue
    #[arg(long, value_name = "DURATION", default_value = "30s")]
    grace: Span,
    /// Run a shell command line instead of a command
    #[arg(long, value_name = "LINE", conflicts_with = "command")]
    shell: Option<String>,
    /// How to pass the payload to the command
    #[arg(long, value_name = "HOW", value_parser = word::<PayloadBy>(&["stdin", "file"]))]
    payload: Option<PayloadBy>,
    /// Handle only this kind, messages of other kinds fail; repeatable
    #[arg(long, value_name = "KIND")]
    kind: Vec<String>,
    /// The maximum rate at which to start messages: 10/s, 600/m
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,
    /// The name of the worker [default: host, process id and a random part]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Exit after one message
    #[arg(long, conflicts_with = "drain")]
    once: bool,
    /// Exit when the queues are empty
    #[arg(long)]
    drain: bool,
    /// What to run for each message [default: command]
    #[arg(long, value_enum, value_name = "WHAT", conflicts_with = "shell")]
    exec: Option<Exec>,
    /// Allow requests to this machine and to private networks
    #[arg(long)]
    allow_private: bool,
    /// The command and its arguments, or the URL
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
    #[command(flatten)]
    log: LogArgs,
}

/// The result of a run.
#[derive(serde::Serialize)]
struct Summary {
    worker: String,
    #[serde(flatten)]
    counts: Counts,
}

impl Show for Summary {
    const COLUMNS: &'static [Column] = &[
        Column::whole("worker"),
        Column::number("done"),
        Column::number("failed"),
        Column::number("retried"),
        Column::number("dead"),
        Column::number("released"),
        Column::number("lost"),
    ];

    fn cells(&self, _: &ValueFormat) -> Vec<String> {
        let Counts { done, failed, retried, dead, released, lost, .. } = self.counts;
        let numbers = [done, failed, retried, dead, released, lost].map(|n| n.to_string());
        std::iter::once(self.worker.clone()).chain(numbers).collect()
    }

    fn sheet(&self, fmt: &ValueFormat) -> Sheet {
        let cells = self.cells(fmt);
        Self::COLUMNS
            .iter()
            .zip(cells)
            .fold(Sheet::default(), |sheet, (column, cell)| sheet.field(column.name, cell))
    }
}

/// Runs `work`.
pub(crate) async fn run(app: &App, args: WorkArgs) -> CommandResult {
    args.log.begin(app.out.quiet);
    let target = args.target()?;
    if let Some(dlq) = &args.dlq {
        let (command, settings) = args.letters(dlq, target)?;
        return work_letters::run(app, command, settings).await;
    }
    // Listen for signals before leasing anything.
    let mut signals = Signals::listen()?;
    let mut store = app.open(Access::Create, Hold::Long).await?;
    let queues: BTreeSet<QueueName> = args.queues.iter().cloned().collect();
    app.seed(&mut store, &queues).await?;
    let handler = match target {
        Some(target) => for_target(args.with_timeout(target)?)?,
        None => queue_targets(&mut store, &queues, &args).await?,
    };
    let worker = args.worker(app, &store, handler)?;
    app.out.note(&format!("{} works on {}", worker.name(), names(&queues)));
    let maintenance = BackgroundMaintenance::begin(store.store());
    let mut status = Status::new(&app.out);
    let handle = worker.handle();
    let mut running = std::pin::pin!(worker.run());
    let mut progress = ProgressLine::default();
    let mut tick = tokio::time::interval(SHOW_EVERY);
    let (mut stopped, mut reported) = (None, None);
    let ended = loop {
        tokio::select! {
            ended = &mut running => break ended,
            by = signals.next() => match stopped {
                None => {
                    stopped = Some(by);
                    handle.stop();
                    app.out.note(&stopping(&handle, args.grace));
                }
                // On a second signal handlers end now, and their messages return to the queue without losing an
                // attempt.
                Some(_) => handle.stop_now(),
            },
            _ = tick.tick() => {
                let error = handle.store_error();
                if let Some(text) = error.as_ref().filter(|_| error != reported) {
                    app.out.note(&format!("the store reports an error: {text}; trying again"));
                }
                reported = error;
                status.show(&progress.line(&handle.counts()));
            }
        }
    };
    status.end();
    maintenance.end().await;
    let counts = ended?;
    app.out.one(&Summary { worker: worker.name().to_owned(), counts })?;
    Ok(if stopped == Some(StopSignal::Interrupt) { ExitCode::Interrupted } else { ExitCode::Ok })
}

/// Maintenance that runs beside the worker while it holds the data directory: retention, automatic redrives, and
/// operations that their starter left behind.
pub(super) struct BackgroundMaintenance {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl BackgroundMaintenance {
    pub(super) fn begin(store: Arc<dyn Store>) -> Self {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            // If the store is gone for good, the worker notices by itself and reports it.
            let _ = Maintenance::new(store).run(stopped, Heartbeat::default()).await;
        });
        Self { stop, task }
    }

    pub(super) async fn end(self) {
        self.stop.cancel();
        let _ = self.task.await;
    }
}

fn names(queues: &BTreeSet<QueueName>) -> String {
    queues.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn stopping(handle: &WorkerHandle, grace: Span) -> String {
    let running = handle.counts().running;
    format!("stopping: waiting up to {grace} for {running} running messages; interrupt again to stop at once")
}

impl WorkArgs {
    /// The target given on the command line; `None` if the queues' own targets are used.
    fn target(&self) -> Result<Option<Target>, CliError> {
        let payload = self.payload.unwrap_or_default();
        let command = match (self.exec, &self.shell, self.command.as_slice()) {
            (Some(Exec::Http), None, [url]) => {
                if self.payload.is_some() {
                    return Err(CliError::usage(
                        "--payload applies to commands; a request always carries the payload",
                    ));
                }
                let allow_private = self.allow_private;
                return Ok(Some(Target::Http(HttpTarget { allow_private, ..HttpTarget::new(url) })));
            }
            (Some(Exec::Http), None, _) => {
                return Err(CliError::usage("--exec http needs one URL after --")
                    .hint("… -- https://example.com/hook"));
            }
            (_, Some(line), _) => CommandTarget { payload, ..CommandTarget::shell(line) },
            (Some(Exec::Command), None, []) => {
                return Err(CliError::usage("--exec command needs a command after --"));
            }
            (None, None, []) => {
                if self.payload.is_some() || self.allow_private {
                    let what =
                        "--payload and --allow-private need a command; they do not change the queue's target";
                    return Err(CliError::usage(what).hint("change the target with `redrive queue set`"));
                }
                return Ok(None);
            }
            (Some(Exec::Command) | None, None, argv) => {
                CommandTarget { payload, ..CommandTarget::argv(argv) }
            }
        };
        if self.allow_private {
            return Err(CliError::usage(
                "--allow-private applies to requests; a command may reach any network",
            ));
        }
        Ok(Some(Target::Command(command)))
    }

    /// Applies the time limit of this run to a target.
    fn with_timeout(&self, target: Target) -> Result<Target, CliError> {
        let target = match (target, self.timeout) {
            (target, None) => target,
            (Target::Http(http), Some(timeout)) => Target::Http(HttpTarget { timeout, ..http }),
            (Target::Command(command), timeout) => Target::Command(CommandTarget { timeout, ..command }),
        };
        target.check()?;
        Ok(target)
    }

    /// The command to run for each dead letter, and its settings.
    fn letters(
        &self,
        dlq: &QueueName,
        target: Option<Target>,
    ) -> Result<(LetterCommand, work_letters::Settings), CliError> {
        let command = match target {
            Some(Target::Command(command)) => CommandTarget { timeout: self.timeout, ..command },
            Some(Target::Http(_)) | None => {
                let what =
                    "--dlq needs a command after --, or --shell; queue targets do not apply to dead letters";
                return Err(CliError::usage(what).hint(format!("redrive work --dlq {dlq} -- CMD")));
            }
        };
        let command = LetterCommand::new(command)?;
        let command = if self.letter { command.whole_letter() } else { command };
        let settings = work_letters::Settings {
            dlq: dlq.clone(),
            concurrency: self.concurrency.unwrap_or(1),
            lease: self.lease,
            timeout: self.timeout,
            grace: self.grace,
            name: self.name.clone(),
            once: self.once,
            drain: self.drain,
        };
        Ok((command, settings))
    }

    fn worker(&self, app: &App, store: &Link<'_>, handler: Arc<dyn Handler>) -> Result<Worker, CallError> {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let mut worker = Worker::builder(store.store())
            .concurrency(self.concurrency.unwrap_or(processors.min(limits::LEASE_BATCH_MAX)))
            .grace(self.grace)
            .classifier_rules(app.config.known.clone());
        for queue in &self.queues {
            worker = worker.queue(queue.to_string());
        }
        for kind in &self.kind {
            worker = worker.handler(kind.clone(), Arc::clone(&handler));
        }
        if self.kind.is_empty() {
            worker = worker.fallback(handler);
        }
        if let Some(name) = &self.name {
            worker = worker.name(name.clone());
        }
        if let Some(lease) = self.lease {
            worker = worker.lease(lease);
        }
        if let Some(Rate(rate)) = self.rate {
            worker = worker.rate(rate);
        }
        if self.once {
            worker = worker.at_most(1);
        }
        if self.drain {
            worker = worker.until_empty();
        }
        worker.build()
    }
}

/// A handler that uses each queue's own target.
async fn queue_targets(
    store: &mut Link<'_>,
    queues: &BTreeSet<QueueName>,
    args: &WorkArgs,
) -> Result<Arc<dyn Handler>, CliError> {
    let mut handlers = BTreeMap::new();
    for queue in queues {
        let policy = store.call(async |s| policy_in(s, queue).await).await?;
        let Some(target) = policy.and_then(|policy| policy.target) else {
            let what = format!("nothing to run: no command is given, and queue {queue} has no target");
            let hint =
                format!("use `redrive work {queue} -- CMD`, or `redrive queue set {queue} --target URL`");
            return Err(CliError::usage(what).hint(hint));
        };
        handlers.insert(queue.clone(), for_target(args.with_timeout(target)?)?);
    }
    Ok(Arc::new(QueueTargets(handlers)))
}

struct QueueTargets(BTreeMap<QueueName, Arc<dyn Handler>>);

#[redrive::async_trait]
impl Handler for QueueTargets {
    async fn handle(&self, context: Context) -> Outcome {
        let queue = &context.message().queue;
        match self.0.get(queue) {
            Some(handler) => handler.handle(context).await,
            None => Outcome::Fail(HandlerError::new("NoHandler", format!("no target for the queue {queue}"))),
        }
    }
}

/// The kind of signal that asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopSignal {
    Interrupt,
    Terminate,
}

pub(super) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    pub(super) fn listen() -> Result<Self, CliError> {
        let listen = |kind| signal(kind).map_err(|error| CliError::io("listen for signals", &error));
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    pub(super) async fn next(&mut self) -> StopSignal {
        tokio::select! {
            _ = self.interrupt.recv() => StopSignal::Interrupt,
            _ = self.terminate.recv() => StopSignal::Terminate,
            // The terminal is gone, but the work should end cleanly.
            () = crate::hung_up() => StopSignal::Terminate,
        }
    }
}

/// Computes the progress line, with the rate over the last seconds.
#[derive(Default)]
struct ProgressLine {
    samples: VecDeque<(Instant, u64)>,
}

impl ProgressLine {
    fn line(&mut self, counts: &Counts) -> String {
        let Counts { done, failed, retried, dead, running, stuck, .. } = *counts;
        let now = Instant::now();
        self.samples.push_back((now, done + failed));
        while self.samples.front().is_some_and(|(at, _)| now.duration_since(*at) > RATE_OVER) {
            self.samples.pop_front();
        }
        let (since, before) = self.samples.front().copied().unwrap_or((now, 0));
        let ended = u32::try_from((done + failed).saturating_sub(before)).unwrap_or(u32::MAX);
        let rate = f64::from(ended) / now.duration_since(since).as_secs_f64().max(1.0);
        let stuck = if stuck > 0 { format!(", {stuck} stuck") } else { String::new() };
        format!(
            "{done} done, {failed} failed ({retried} retried, {dead} dead), {running} in flight{stuck}, {rate:.1}/s"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_per_second_minute_or_hour() {
        let rate = |text: &str| text.parse::<Rate>().map(|Rate(rate)| rate);
        assert_eq!(
            (rate("10"), rate("0.5/s"), rate("600/m"), rate("3600/h")),
            (Ok(10.0), Ok(0.5), Ok(10.0), Ok(1.0))
        );
        for wrong in ["", "0", "-1", "x", "10/d", "nan", "inf", "/s"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_progress_line_has_counts_and_rate() {
        let counts = Counts { done: 5, failed: 2, retried: 1, dead: 1, running: 3, ..Counts::default() };
        assert_eq!(
            ProgressLine::default().line(&counts),
            "5 done, 2 failed (1 retried, 1 dead), 3 in flight, 0.0/s"
        );
    }
}
