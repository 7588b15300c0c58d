//! `redrive run JOB.yaml`: runs a command for every item of a file. It reads the job, connects the library's [`Batch`]
//! to the store, and shows the progress and the result. It decides nothing about items.

use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, CommandResult, ExitCode};
use crate::log::LogArgs;
use crate::output::{Column, Output, Sheet, Show, ValueFormat, eprint_line, escape};
use crate::progress;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use redrive::core::limits;
use redrive::core::time::Span;
use redrive::{Batch, BatchError, BatchProgress, BatchSummary, DryRun, Job, PrunedTree, StartMode};
use std::io::{IsTerminal as _, Read as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  redrive run resize.yaml
  redrive run resize.yaml --dry-run
  redrive run resize.yaml --max-parallel 16 --var quality=80
  redrive run resize.yaml --retry-dead
  redrive run resize.yaml --prune --dry-run        list work trees of failed attempts that are no longer needed

Running the same command again resumes an earlier run; items that are done never run again.";

/// The flags of `run`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RunArgs {
    /// The job file; see docs/batch.md
    #[arg(value_name = "JOB.yaml")]
    job: PathBuf,
    /// Resume an earlier run; it is an error if there is none
    #[arg(long, conflicts_with_all = ["restart", "accept_changes"])]
    resume: bool,
    /// Discard an earlier run and its results, and start over
    #[arg(long, conflicts_with = "accept_changes")]
    restart: bool,
    /// Continue although the job file or the input has changed
    #[arg(long)]
    accept_changes: bool,
    /// First send the dead items of the run back to work
    #[arg(long, conflicts_with = "restart")]
    retry_dead: bool,
    /// The number of items to work on at once, overriding the job file
    #[arg(long, value_name = "N")]
    max_parallel: Option<usize>,
    /// Only show the number of items and the first commands; with --prune, only what would be removed
    #[arg(long)]
    dry_run: bool,
    /// Run nothing; remove the git work trees and branches of failed attempts that no open item needs
    #[arg(long, conflicts_with_all = ["resume", "restart", "accept_changes", "retry_dead"])]
    prune: bool,
    /// With --prune, also remove work trees that hold changes of open items
    #[arg(long, requires = "prune")]
    force: bool,
    /// A variable for the job, used as ${var.NAME}; repeatable
    #[arg(long = "var", value_name = "NAME=VALUE")]
    vars: Vec<String>,
    #[command(flatten)]
    log: LogArgs,
}

/// How often a plain progress line is printed.
const EVERY: Duration = Duration::from_secs(5);
/// The number of failure groups to show; `redrive group list` shows all of them.
const GROUPS_SHOWN: usize = 10;

/// Runs `run`.
pub(crate) async fn run(app: &App, args: RunArgs) -> CommandResult {
    args.log.begin(app.out.quiet);
    let job = read_job(&args)?;
    let directory = args.job.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let worktrees_dir = worktrees();
    if inside(&app.data, &worktrees_dir) {
        let what = format!(
            "{} is inside {}, where work trees are created and removed",
            app.data.display(),
            worktrees_dir.display()
        );
        return Err(CliError::new(ExitCode::Refused, what).hint("name another directory with --data"));
    }
    if args.prune {
        return prune(app, &args, job, directory, worktrees_dir).await;
    }
    if args.dry_run {
        let plan = job.dry_run(directory).await;
        app.out.one(&plan.map_err(|error| explain(&error, &args.job))?)?;
        return Ok(ExitCode::Ok);
    }
    let store = app.open(Access::Create, Hold::Long).await?;
    let begin = match (args.resume, args.restart, args.accept_changes) {
        (true, _, _) => StartMode::Resume,
        (_, true, _) => StartMode::Restart,
        (_, _, true) => StartMode::AcceptChanges,
        (false, false, false) => StartMode::Auto,
    };
    let work = std::path::absolute(app.data.join("runs").join(job.name()));
    let work = work.map_err(|error| CliError::io("find the data directory", &error))?;
    let progress_display = Mutex::new(RunProgress::new(&app.out));
    let batch = Batch::new(store.store(), job)
        .directory(directory)
        .work_directory(work)
        .worktrees(worktrees_dir)
        .start_mode(begin)
        .retry_dead(args.retry_dead)
        .actor(app.user())
        .on_progress(move |at| progress_display.lock().unwrap_or_else(PoisonError::into_inner).at(at));
    let (drain, handle) = (app.interrupt_notifier(), batch.handle());
    let again = format!("redrive run {}", args.job.display());
    app.set_interrupt_hint(format!(
        "run `{again} --data {}` to resume; items that were running are retried in a moment",
        app.data.display()
    ));
    let stopper = tokio::spawn(async move {
        drain.notified().await;
        eprint_line("finishing what was begun; press Ctrl-C again to stop at once");
        handle.stop();
        drain.notified().await;
        eprint_line("stopping; running items are returned to the queue");
        handle.stop_now();
    });
    let done = batch.run().await;
    stopper.abort();
    drop(batch);
    let summary = done.map_err(|error| explain(&error, &args.job))?;
    app.out.one(&summary)?;
    advise(app, &summary, &again);
    Ok(match &summary {
        BatchSummary { interrupted: true, .. } => ExitCode::Interrupted,
        summary if summary.is_complete() => ExitCode::Ok,
        _ => ExitCode::Partial,
    })
}

/// Removes work trees that are no longer needed, and lists every tree with the reason why it is kept or
/// removed.
async fn prune(
    app: &App,
    args: &RunArgs,
    job: Job,
    directory: &Path,
    worktrees_dir: PathBuf,
) -> CommandResult {
    let store = app.open(Access::Existing, Hold::Long).await?;
    let batch =
        Batch::new(store.store(), job).directory(directory).worktrees(worktrees_dir).actor(app.user());
    let pruned = batch.prune(args.dry_run, args.force).await.map_err(|error| explain(&error, &args.job))?;
    app.out.all(&pruned)?;
    let removed = pruned.iter().filter(|tree| tree.removed).count();
    let did = if args.dry_run { "would be removed" } else { "removed" };
    app.out.note(&format!("{removed} {did}, {} kept", pruned.len() - removed));
    Ok(ExitCode::Ok)
}

fn read_job(args: &RunArgs) -> Result<Job, CliError> {
    let name = args.job.display();
    let doing = format!("read {name}");
    let mut text = String::new();
    let file = std::fs::File::open(&args.job).map_err(|error| CliError::io(&doing, &error))?;
    let most = limits::JOB_FILE_BYTES_MAX as u64 + 1;
    file.take(most).read_to_string(&mut text).map_err(|error| CliError::io(&doing, &error))?;
    let mut job = Job::parse(&text).map_err(|problems| {
        let lines: Vec<String> =
            problems.iter().map(|problem| format!("{name}:{}: {}", problem.line, problem.what)).collect();
        CliError::usage(lines.join("\n"))
    })?;
    if let Some(n) = args.max_parallel {
        if n == 0 || n > limits::RUN_PARALLEL_MAX {
            let what = format!("--max-parallel: {n} is outside 1 to {}", limits::RUN_PARALLEL_MAX);
            return Err(CliError::usage(what));
        }
        job.set_max_parallel(n);
    }
    for var in &args.vars {
        let Some((name, value)) = var.split_once('=').filter(|(name, _)| !name.is_empty()) else {
            return Err(CliError::usage(format!("--var: {var:?} is not NAME=VALUE")));
        };
        job.set_var(name, value);
    }
    Ok(job)
}

/// The directory for git work trees, which is never inside the data directory or the repository.
fn worktrees() -> PathBuf {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || absolute("HOME").map(|home| home.join(".cache"));
    let cache = absolute("XDG_CACHE_HOME").or_else(home).unwrap_or_else(std::env::temp_dir);
    cache.join("redrive").join("worktrees")
}

fn inside(path: &Path, outer: &Path) -> bool {
    std::path::absolute(path).is_ok_and(|path| path.starts_with(outer))
}

/// Converts an error of a run into a CLI error with its exit code.
fn explain(error: &BatchError, job: &Path) -> CliError {
    let text = error.to_string();
    match error {
        BatchError::Store(redrive::core::error::CallError::Refused(refusal)) => refusal.clone().into(),
        BatchError::Store(redrive::core::error::CallError::Store(error)) => error.clone().into(),
        BatchError::Job(_) => CliError::usage(text),
        BatchError::Busy { .. } | BatchError::Changed { .. } | BatchError::TakenOver(_) => {
            CliError::new(ExitCode::Refused, text)
        }
        BatchError::NothingToResume(_) => CliError::new(ExitCode::NotFound, text),
        BatchError::Stage { .. } => CliError::new(ExitCode::Error, text)
            .hint(format!("fix it, then resume with `redrive run {}`", job.display())),
        BatchError::Input(_) | BatchError::Git(_) => CliError::new(ExitCode::Error, text),
    }
}

/// Prints notes about what failed and what to do next.
fn advise(app: &App, summary: &BatchSummary, again: &str) {
    let note = |text: &str| app.out.note(text);
    if summary.already_finished {
        note("nothing was left to do; use --restart to start over");
    }
    if summary.bad_rows > 0 {
        note(&format!("{} rows of the input could not be read and were skipped:", summary.bad_rows));
        summary.bad_row_samples.iter().for_each(|row| note(&format!("  {row}")));
    }
    if let Some(why) = &summary.stopped {
        note(&format!("stopped: {why}"));
    }
    for group in summary.groups.iter().take(GROUPS_SHOWN) {
        let error = &group.error_type;
        note(&format!("{:>7} x {error}: {} (such as {})", group.count, group.template, group.sample));
    }
    if summary.groups.len() > GROUPS_SHOWN {
        note(&format!(
            "and {} more groups; run `redrive group list` to see all",
            summary.groups.len() - GROUPS_SHOWN
        ));
    }
    let data = format!("--data {}", app.data.display());
    if summary.dead > 0 {
        note(&format!("to see the dead items: redrive dlq list 'queue:run.{}' {data}", summary.job));
        note(&format!("after fixing the cause: {again} --retry-dead {data}"));
    }
    if summary.left > 0 {
        note(&format!("{} items are left: {again} {data}", summary.left));
    }
}

impl Show for BatchSummary {
    const COLUMNS: &'static [Column] = &[
        Column::whole("job"),
        Column::number("total"),
        Column::number("done"),
        Column::number("dead"),
        Column::number("skipped"),
        Column::number("left"),
        Column::number("elapsed"),
        Column::text("output"),
    ];

    fn cells(&self, _: &ValueFormat) -> Vec<String> {
        vec![
            self.job.clone(),
            self.total.to_string(),
            self.done.to_string(),
            self.dead.to_string(),
            self.skipped.to_string(),
            self.left.to_string(),
            self.elapsed.to_string(),
            self.output.clone().unwrap_or_default().trim_end().to_owned(),
        ]
    }

    fn sheet(&self, _: &ValueFormat) -> Sheet {
        Sheet::default()
            .field("job", &self.job)
            .field("total", self.total)
            .field("done", self.done)
            .field("dead", self.dead)
            .field("skipped", self.skipped)
            .field("left", self.left)
            .field("elapsed", self.elapsed)
            .block("output", self.output.clone().unwrap_or_default())
    }
}

impl Show for PrunedTree {
    const COLUMNS: &'static [Column] =
        &[Column::whole("removed"), Column::whole("branch"), Column::text("why"), Column::text("worktree")];

    fn cells(&self, _: &ValueFormat) -> Vec<String> {
        let removed = if self.removed { "yes" } else { "no" };
        let place = self.worktree.as_ref().map(|path| path.display().to_string());
        vec![removed.to_owned(), self.branch.clone(), self.why.clone(), place.unwrap_or_default()]
    }
}

impl Show for DryRun {
    const COLUMNS: &'static [Column] = &[
        Column::whole("job"),
        Column::number("rows"),
        Column::number("bad_rows"),
        Column::number("total"),
        Column::text("items"),
    ];

    fn cells(&self, _: &ValueFormat) -> Vec<String> {
        vec![
            self.job.clone(),
            self.rows.to_string(),
            self.bad_rows.to_string(),
            self.total.to_string(),
            planned(self),
        ]
    }

    fn sheet(&self, _: &ValueFormat) -> Sheet {
        let more = self.total.saturating_sub(self.items.len() as u64);
        let title = if more > 0 { format!("items ({more} more follow)") } else { "items".to_owned() };
        Sheet::default()
            .field("job", &self.job)
            .field("rows", self.rows)
            .field("bad_rows", self.bad_rows)
            .field("total", self.total)
            .block(title, planned(self))
    }
}

/// The first items and their commands, one per line.
fn planned(plan: &DryRun) -> String {
    let mut lines = Vec::new();
    for item in &plan.items {
        lines.push(format!("{}: {}", item.index, item.item));
        for command in &item.commands {
            let mut parts = command.trim_end().lines();
            lines.push(format!("  $ {}", parts.next().unwrap_or_default()));
            lines.extend(parts.map(|part| format!("    {part}")));
        }
    }
    lines.join("\n")
}

/// The progress of a run: a bar on a terminal, otherwise a plain line at intervals.
struct RunProgress {
    bar: Option<ProgressBar>,
    plain: bool,
    started_at: Instant,
    printed_at: Instant,
    /// The number of settled items when this process began; the rate counts only later ones.
    first: Option<u64>,
}

impl RunProgress {
    fn new(out: &Output) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let shown = !out.quiet;
        let bar = (terminal && shown).then(bar);
        progress::set_shown_bar(bar.as_ref());
        let now = Instant::now();
        Self { bar, plain: !terminal && shown, started_at: now, printed_at: now, first: None }
    }

    fn at(&mut self, at: BatchProgress) {
        let settled = at.done + at.failed;
        if settled == 0 && at.enqueued < at.total {
            return self.say(at.enqueued, at.total, &format!("enqueued {} of {}", at.enqueued, at.total));
        }
        let first = *self.first.get_or_insert(settled);
        let rate = rate(settled.saturating_sub(first), self.started_at.elapsed());
        let left = at.total.saturating_sub(settled);
        let eta = if rate > 0.0 { format!(", {} left", eta(left, rate)) } else { String::new() };
        let text = format!(
            "{} of {} done, {} failed, {} retried, {} running, {rate:.1}/s{eta}",
            at.done, at.total, at.failed, at.retried, at.running
        );
        self.say(settled, at.total, &text);
    }

    fn say(&mut self, settled: u64, total: u64, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            bar.set_position(settled);
            bar.set_message(escape::line(text).into_owned());
        } else if self.plain && self.printed_at.elapsed() >= EVERY {
            self.printed_at = Instant::now();
            eprint_line(text);
        }
    }
}

impl Drop for RunProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            progress::set_shown_bar(None);
            bar.finish_and_clear();
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn rate(settled: u64, elapsed: Duration) -> f64 {
    settled as f64 / elapsed.as_secs_f64().max(0.001)
}

#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a guess for people; too large a number saturates"
)]
fn eta(left: u64, rate: f64) -> Span {
    Span::from_secs((left as f64 / rate).ceil() as u64)
}

fn bar() -> ProgressBar {
    let bar = ProgressBar::new(0);
    // If the template does not parse, the bar keeps its default style.
    if let Ok(style) = ProgressStyle::with_template("[{bar:25}] {msg}") {
        bar.set_style(style);
    }
    bar
}
