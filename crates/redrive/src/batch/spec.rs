//! A job: what a run does. `read` makes one of a file. Nothing is run or opened here; every key is documented in
//! `docs/batch.md`.

use super::error::BatchError;
use super::path::{ItemPath, JsonPath};
use super::template::{Placeholder, Template, shown};
use super::yaml::Problem;
use redrive_core::backoff::{Backoff, Growth, Jitter};
use redrive_core::breaker::BreakerPolicy;
use redrive_core::filter::ItemFilter;
use redrive_core::ids::QueueName;
use redrive_core::limits;
use redrive_core::poison::PoisonPolicy;
use redrive_core::policy::QueuePolicy;
use redrive_core::time::Span;
use sha2::{Digest as _, Sha256};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// How items are written in the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Csv,
    Json,
    Jsonl,
}

/// Where the input comes from.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Source {
    File(PathBuf),
    Command { run: Template, timeout: Span },
}

/// The input.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Input {
    pub(super) source: Source,
    pub(super) format: Format,
    pub(super) json_path: Option<JsonPath>,
    pub(super) delimiter: u8,
    /// Bad rows are left out, counted and shown, instead of stopping the run before it begins.
    pub(super) skip_bad_rows: bool,
}

/// One field to sort by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SortKey {
    pub(super) path: ItemPath,
    pub(super) descending: bool,
}

/// What a step runs.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Command {
    /// A text for `sh -c`.
    Shell(Template),
    /// A program and its arguments, without a shell.
    Argv(Vec<Template>),
}

/// One step.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Step {
    /// What failures call it.
    pub(super) name: String,
    pub(super) command: Command,
    /// A failure is `ValidationFailed`.
    pub(super) validates: bool,
    pub(super) stdin: Option<Template>,
    pub(super) timeout: Option<Span>,
    pub(super) commit_required: bool,
    pub(super) line: usize,
}

/// What becomes of an item that failed for good.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum OnItemFailure {
    #[default]
    Dlq,
    Retry,
    Skip,
    Stop,
    Custom(Box<Command>),
}

/// A job: what `redrive run` reads from its file.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    pub(super) name: JobName,
    /// What of the file decides about results: the rest may change between processes of one run.
    pub(super) essence: String,
    pub(super) input: Input,
    pub(super) filter: Option<ItemFilter>,
    pub(super) sort_by: Vec<SortKey>,
    pub(super) distinct: Option<ItemPath>,
    pub(super) key: Option<ItemPath>,
    pub(super) offset: usize,
    pub(super) max_items: Option<usize>,
    pub(super) vars: BTreeMap<String, String>,
    pub(super) env: BTreeMap<String, String>,
    pub(super) setup: Vec<Step>,
    pub(super) map: Vec<Step>,
    pub(super) max_parallel: usize,
    pub(super) timeout: Span,
    pub(super) max_attempts: u32,
    pub(super) backoff: Backoff,
    pub(super) worktree: bool,
    pub(super) reduce: Vec<Step>,
    pub(super) on_item_failure: OnItemFailure,
    pub(super) continue_on_failure: bool,
    pub(super) max_failures: Option<u64>,
    pub(super) failure_threshold: Option<f64>,
    pub(super) breaker: Option<BreakerPolicy>,
}

impl Job {
    /// Reads a job file.
    ///
    /// # Errors
    /// Everything that is wrong with it, by line.
    pub fn parse(text: &str) -> Result<Self, Vec<Problem>> {
        super::read::read(text)
    }

    /// Changes when the file or a variable changes in a way that may change results.
    pub(super) fn hash(&self) -> String {
        let vars = serde_json::json!(self.vars).to_string();
        super::select::hex(&Sha256::digest(format!("{}\n{vars}", self.essence)))
    }

    /// The job's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name.text
    }

    /// The queue its items wait in.
    #[must_use]
    pub fn queue(&self) -> QueueName {
        self.name.queue.clone()
    }

    /// The queue its results are kept in; nobody leases from it.
    #[must_use]
    pub fn results(&self) -> QueueName {
        self.name.results.clone()
    }

    /// Changes how many items are worked on at once.
    pub fn set_max_parallel(&mut self, n: usize) {
        self.max_parallel = n.clamp(1, limits::RUN_PARALLEL_MAX);
    }

    /// Sets a variable, also one the file gives a value.
    pub fn set_var(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.vars.insert(name.into(), value.into());
    }

    /// The rules of the job's queue: the store retries by them, and nobody else does.
    pub(super) fn policy(&self) -> QueuePolicy {
        let backoff = match self.on_item_failure {
            OnItemFailure::Retry => Backoff {
                initial: Span::ZERO,
                growth: Growth::Fixed,
                jitter: Jitter::None,
                ..Backoff::default()
            },
            OnItemFailure::Dlq | OnItemFailure::Skip | OnItemFailure::Stop | OnItemFailure::Custom(_) => {
                self.backoff.clone()
            }
        };
        QueuePolicy {
            max_attempts: self.max_attempts,
            backoff,
            breaker: self.breaker.clone(),
            // The same command fails the same way; that is the attempt limit's business, not the item's guilt.
            poison: PoisonPolicy { detect: false, ..PoisonPolicy::default() },
            lease: super::LEASE,
            ..QueuePolicy::default()
        }
    }

    /// Refuses variables that nobody gave a value.
    pub(super) fn check_vars(&self) -> Result<(), BatchError> {
        for (stage, step) in self.steps() {
            for placeholder in step.templates().flat_map(Template::placeholders) {
                if let Placeholder::Var(name) = placeholder
                    && !self.vars.contains_key(name)
                {
                    let (line, shown) = (step.line, shown(placeholder));
                    return Err(BatchError::Input(format!(
                        "line {line}: {stage}: {shown} has no value; give --var {name}=VALUE"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Every step with the stage it belongs to.
    pub(super) fn steps(&self) -> impl Iterator<Item = (&'static str, &Step)> {
        let stage =
            |name: &'static str, steps: &'_ [Step]| steps.iter().map(move |_| name).collect::<Vec<_>>();
        let names =
            [stage("setup", &self.setup), stage("map", &self.map), stage("reduce", &self.reduce)].concat();
        names.into_iter().zip(self.setup.iter().chain(&self.map).chain(&self.reduce))
    }
}

impl Command {
    /// Its templates.
    pub(super) fn templates(&self) -> &[Template] {
        match self {
            Self::Shell(template) => std::slice::from_ref(template),
            Self::Argv(all) => all,
        }
    }
}

impl Step {
    /// All its templates.
    pub(super) fn templates(&self) -> impl Iterator<Item = &Template> {
        self.command.templates().iter().chain(&self.stdin)
    }
}

/// A job's name, and the names of queues that are made of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JobName {
    text: String,
    queue: QueueName,
    results: QueueName,
}

impl JobName {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let wrong = |_| {
            format!(
                "{text:?} is not a job's name: 1 to 112 of A-Z a-z 0-9 . _ -, starting with a letter or digit"
            )
        };
        // Check the name itself, so that it starts well, and the longest name made of it: the dlq of its results.
        text.parse::<QueueName>().map_err(wrong)?;
        format!("run.{text}.results-dlq").parse::<QueueName>().map_err(wrong)?;
        let queue = format!("run.{text}").parse().map_err(wrong)?;
        let results = format!("run.{text}.results").parse().map_err(wrong)?;
        Ok(Self { text: text.to_owned(), queue, results })
    }
}
