//! `redrive run JOB.yaml`: a command per item of a file. Reads the job, wires the library's [`Batch`] to the store,
//! shows how far it is and what it came to. It decides nothing about items.

use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, Done, ExitCode};
use crate::log::LogArgs;
use crate::output::{Column, Look, Output, Sheet, Show, complain, escape};
use crate::progress;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use redrive::core::limits;
use redrive::core::time::Span;
use redrive::{Batch, BatchError, BatchProgress, BatchSummary, Begin, DryRun, Job, PrunedTree};
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
  redrive run resize.yaml --prune --dry-run        which work trees of failed attempts are not needed any more

The same command goes on where an earlier one stopped; what is done is never run again.";

/// The flags of `run`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct RunArgs {
    /// The job file; docs/batch.md says what is in it
    #[arg(value_name = "JOB.yaml")]
    job: PathBuf,
    /// Go on with an earlier run; an error when there is none
    #[arg(long, conflicts_with_all = ["restart", "accept_changes"])]
    resume: bool,
    /// Forget an earlier run and its results, and begin anew
    #[arg(long, conflicts_with = "accept_changes")]
    restart: bool,
    /// Go on although the job file or the input changed
    #[arg(long)]
    accept_changes: bool,
    /// Send the dead items of the run back to work first
    #[arg(long, conflicts_with = "restart")]
    retry_dead: bool,
    /// Items worked on at once, instead of what the job says
    #[arg(long, value_name = "N")]
    max_parallel: Option<usize>,
    /// Only show the items and the first commands; with --prune, only what it would remove
    #[arg(long)]
    dry_run: bool,
    /// Run nothing; remove the git work trees and branches of failed attempts that no open item needs
    #[arg(long, conflicts_with_all = ["resume", "restart", "accept_changes", "retry_dead"])]
    prune: bool,
    /// With --prune, also remove those that hold changes of open items
    #[arg(long, requires = "prune")]
    force: bool,
    /// A variable for the job: ${var.NAME}
    #[arg(long = "var", value_name = "NAME=VALUE")]
    vars: Vec<String>,
    #[command(flatten)]
    log: LogArgs,
}

/// How often a plain line says how far it is.
const EVERY: Duration = Duration::from_secs(5);
/// Groups of failures that are shown; the rest is in `redrive group list`.
const GROUPS_SHOWN: usize = 10;

/// Runs the command.
pub(crate) async fn run(app: &App, args: RunArgs) -> Done {
    args.log.begin(app.out.quiet);
    let job = read_job(&args)?;
    let directory = args.job.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let trees = worktrees();
    if inside(&app.data, &trees) {
        let what =
            format!("{} is inside {}, where work trees come and go", app.data.display(), trees.display());
        return Err(CliError::new(ExitCode::Refused, what).hint("name another directory with --data"));
    }
    if args.prune {
        return prune(app, &args, job, directory, trees).await;
    }
    if args.dry_run {
        let plan = job.dry_run(directory).await;
        app.out.one(&plan.map_err(|error| explain(&error, &args.job))?)?;
        return Ok(ExitCode::Ok);
    }
    let store = app.open(Access::Create, Hold::Long).await?;
    let begin = match (args.resume, args.restart, args.accept_changes) {
        (true, _, _) => Begin::Resume,
        (_, true, _) => Begin::Restart,
        (_, _, true) => Begin::AcceptChanges,
        (false, false, false) => Begin::Auto,
    };
    let work = std::path::absolute(app.data.join("runs").join(job.name()));
    let work = work.map_err(|error| CliError::io("find the data directory", &error))?;
    let screen = Mutex::new(Screen::new(&app.out));
    let batch = Batch::new(store.store(), job)
        .directory(directory)
        .work_directory(work)
        .worktrees(trees)
        .begin(begin)
        .retry_dead(args.retry_dead)
        .actor(app.user())
        .on_progress(move |at| screen.lock().unwrap_or_else(PoisonError::into_inner).at(at));
    let (drain, handle) = (app.on_interrupt_drain(), batch.handle());
    let again = format!("redrive run {}", args.job.display());
    app.on_interrupt(format!(
        "`{again} --data {}` goes on; what was being worked on is tried again in a moment",
        app.data.display()
    ));
    let stopper = tokio::spawn(async move {
        drain.notified().await;
        complain("finishing what was begun; Ctrl-C again ends at once");
        handle.stop();
        drain.notified().await;
        complain("giving back what was begun");
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

/// Removes work trees that are not needed any more, and says of each kept one why it is kept.
async fn prune(app: &App, args: &RunArgs, job: Job, directory: &Path, trees: PathBuf) -> Done {
    let store = app.open(Access::Existing, Hold::Long).await?;
    let batch = Batch::new(store.store(), job).directory(directory).worktrees(trees).actor(app.user());
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

/// Where git work trees are made: never in the data directory, never in the repository.
fn worktrees() -> PathBuf {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || absolute("HOME").map(|home| home.join(".cache"));
    let cache = absolute("XDG_CACHE_HOME").or_else(home).unwrap_or_else(std::env::temp_dir);
    cache.join("redrive").join("worktrees")
}

fn inside(path: &Path, outer: &Path) -> bool {
    std::path::absolute(path).is_ok_and(|path| path.starts_with(outer))
}

/// Why a run did not begin or could not go on, with its exit code.
fn explain(error: &BatchError, job: &Path) -> CliError {
    let text = error.to_string();
    match error {
        BatchError::Store(redrive::core::error::Error::Refused(refusal)) => refusal.clone().into(),
        BatchError::Store(redrive::core::error::Error::Store(error)) => error.clone().into(),
        BatchError::Job(_) => CliError::usage(text),
        BatchError::Busy { .. } | BatchError::Changed { .. } | BatchError::TakenOver(_) => {
            CliError::new(ExitCode::Refused, text)
        }
        BatchError::NothingToResume(_) => CliError::new(ExitCode::NotFound, text),
        BatchError::Stage { .. } => CliError::new(ExitCode::Error, text)
            .hint(format!("mend it; `redrive run {}` goes on", job.display())),
        BatchError::Input(_) | BatchError::Git(_) => CliError::new(ExitCode::Error, text),
    }
}

/// What failed and what can be done about it, for the person in front of the terminal.
fn advise(app: &App, summary: &BatchSummary, again: &str) {
    let note = |text: &str| app.out.note(text);
    if summary.already_finished {
        note("nothing was left to do; --restart begins anew");
    }
    if summary.bad_rows > 0 {
        note(&format!("{} rows of the input could not be read and were left out:", summary.bad_rows));
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
            "and {} more groups; `redrive group list` has them all",
            summary.groups.len() - GROUPS_SHOWN
        ));
    }
    let data = format!("--data {}", app.data.display());
    if summary.dead > 0 {
        note(&format!("look: redrive dlq list 'queue:run.{}' {data}", summary.job));
        note(&format!("after a fix: {again} --retry-dead {data}"));
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

    fn cells(&self, _: &Look) -> Vec<String> {
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

    fn sheet(&self, _: &Look) -> Sheet {
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

    fn cells(&self, _: &Look) -> Vec<String> {
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

    fn cells(&self, _: &Look) -> Vec<String> {
        vec![
            self.job.clone(),
            self.rows.to_string(),
            self.bad_rows.to_string(),
            self.total.to_string(),
            planned(self),
        ]
    }

    fn sheet(&self, _: &Look) -> Sheet {
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

/// The first items and their commands, each on lines of its own.
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

/// How far a run is: a bar on a terminal, a plain line now and then elsewhere.
struct Screen {
    bar: Option<ProgressBar>,
    plain: bool,
    begun: Instant,
    told: Instant,
    /// How many were over when this process began: its rate counts only what came after.
    first: Option<u64>,
}

impl Screen {
    fn new(out: &Output) -> Self {
        let terminal = std::io::stderr().is_terminal();
        let loud = !out.quiet;
        let bar = (terminal && loud).then(bar);
        progress::shows(bar.as_ref());
        let now = Instant::now();
        Self { bar, plain: !terminal && loud, begun: now, told: now, first: None }
    }

    fn at(&mut self, at: BatchProgress) {
        let over = at.done + at.failed;
        if over == 0 && at.enqueued < at.total {
            return self.say(at.enqueued, at.total, &format!("enqueued {} of {}", at.enqueued, at.total));
        }
        let first = *self.first.get_or_insert(over);
        let rate = rate(over.saturating_sub(first), self.begun.elapsed());
        let left = at.total.saturating_sub(over);
        let eta = if rate > 0.0 { format!(", {} left", eta(left, rate)) } else { String::new() };
        let text = format!(
            "{} of {} done, {} failed, {} retried, {} running, {rate:.1}/s{eta}",
            at.done, at.total, at.failed, at.retried, at.running
        );
        self.say(over, at.total, &text);
    }

    fn say(&mut self, over: u64, total: u64, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_length(total);
            bar.set_position(over);
            bar.set_message(escape::line(text).into_owned());
        } else if self.plain && self.told.elapsed() >= EVERY {
            self.told = Instant::now();
            complain(text);
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            progress::shows(None);
            bar.finish_and_clear();
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn rate(over: u64, elapsed: Duration) -> f64 {
    over as f64 / elapsed.as_secs_f64().max(0.001)
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
    // A template that does not parse would only cost the looks.
    if let Ok(style) = ProgressStyle::with_template("[{bar:25}] {msg}") {
        bar.set_style(style);
    }
    bar
}
