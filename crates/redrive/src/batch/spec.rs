//! The job file: what a run does, read strictly. Every mistake is reported with its line, unknown keys with the
//! nearest known one. Nothing is run or opened here. Every key is documented in `docs/batch.md`.

use super::path::{ItemPath, JsonPath};
use super::template::Template;
use super::yaml::{self, Fields, Node, Problem, Problems, Value};
use redrive_core::backoff::{Backoff, Growth, Jitter};
use redrive_core::breaker::{BreakerKey, BreakerPolicy};
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
    pub(super) name: String,
    /// What of the file decides about results: the rest may change between processes of one run.
    essence: String,
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

const TOP: [&str; 19] = [
    "name",
    "input",
    "filter",
    "sort_by",
    "distinct",
    "key",
    "offset",
    "max_items",
    "vars",
    "env",
    "setup",
    "map",
    "reduce",
    "on_item_failure",
    "continue_on_failure",
    "max_failures",
    "failure_threshold",
    "breaker",
    "max_parallel",
];
const INPUT: [&str; 7] = ["file", "command", "format", "json_path", "delimiter", "on_bad_row", "timeout"];
const MAP: [&str; 5] = ["steps", "max_parallel", "timeout", "retry", "worktree"];
const STEP: [&str; 7] = ["name", "run", "argv", "validate", "timeout", "stdin", "commit_required"];
const RETRY: [&str; 3] = ["max_attempts", "max_retries", "backoff"];
const BACKOFF: [&str; 7] = ["strategy", "initial", "cap", "floor", "multiplier", "jitter", "delays"];
const BREAKER: [&str; 9] =
    ["key", "failures", "window", "within", "sample", "ratio", "open_for", "open_max", "probes"];

/// How long an item may take when the job does not say: long enough for a build, short enough to notice.
const ITEM_TIMEOUT: Span = Span::from_secs(10 * 60);
/// How long a command that makes the input may take.
const INPUT_TIMEOUT: Span = Span::from_secs(10 * 60);

impl Job {
    /// Reads a job file.
    ///
    /// # Errors
    /// Everything that is wrong with it, by line.
    pub fn parse(text: &str) -> Result<Self, Vec<Problem>> {
        if text.len() > limits::JOB_FILE_BYTES_MAX {
            let what = format!("{} bytes; a job file has at most {}", text.len(), limits::JOB_FILE_BYTES_MAX);
            return Err(vec![Problem { line: 1, what }]);
        }
        let node = yaml::parse(text).map_err(|problem| vec![problem])?;
        let essence = essence(&node);
        let mut problems = Problems::default();
        let job = Fields::of("", node, &TOP, &mut problems).and_then(job);
        problems.finish(job.map(|job| Self { essence, ..job }))
    }

    /// Changes when the file or a variable changes in a way that may change results.
    pub(super) fn hash(&self) -> String {
        let vars = serde_json::json!(self.vars).to_string();
        super::select::hex(&Sha256::digest(format!("{}\n{vars}", self.essence)))
    }

    /// The job's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The queue its items wait in.
    #[must_use]
    pub fn queue(&self) -> QueueName {
        named_queue(&format!("run.{}", self.name))
    }

    /// The queue its results are kept in; nobody leases from it.
    #[must_use]
    pub fn results(&self) -> QueueName {
        named_queue(&format!("run.{}.results", self.name))
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

/// What may change while a run is under way: how much at once, and what happens to failures.
const MAY_CHANGE: [&str; 6] = [
    "max_parallel",
    "on_item_failure",
    "continue_on_failure",
    "max_failures",
    "failure_threshold",
    "breaker",
];

/// The file without what may change and without the variables, which are looked at with those of the command line.
fn essence(node: &Node) -> String {
    let mut json = node.to_json();
    if let Some(top) = json.as_object_mut() {
        top.retain(|key, _| key != "vars" && !MAY_CHANGE.contains(&key.as_str()));
        if let Some(map) = top.get_mut("map").and_then(serde_json::Value::as_object_mut) {
            map.retain(|key, _| !matches!(key.as_str(), "max_parallel" | "retry"));
        }
    }
    json.to_string()
}

/// A name that was checked when the file was read.
fn named_queue(name: &str) -> QueueName {
    name.parse().unwrap_or_else(|_| unreachable!("{name} was checked when the job was read"))
}

fn job(mut top: Fields<'_>) -> Option<Job> {
    let name = top.parsed("name", job_name);
    let input = top.take("input").and_then(|node| input(node, top.problems));
    for (there, key, example) in
        [(name.is_some(), "name", "name: resize"), (input.is_some(), "input", "input: {file: items.csv}")]
    {
        let line = top.line;
        let wrong_already = top.problems.mentions(key);
        if !there && !wrong_already {
            top.problems.add(line, format!("{key} is missing, as in {example}"));
        }
    }
    let filter = top.parsed("filter", ItemFilter::parse);
    let sort_by = sort_keys(&mut top);
    let distinct = top.parsed("distinct", ItemPath::parse);
    let key = top.parsed("key", ItemPath::parse);
    let offset = top.number("offset", 0, u64::MAX).unwrap_or(0);
    let max_items = top.number("max_items", 0, u64::MAX);
    let vars = top.texts("vars");
    let env = top.texts("env");
    let setup = steps(&mut top, "setup");
    let reduce = match top.take("reduce") {
        Some(node) => staged("reduce", node, top.problems),
        None => Vec::new(),
    };
    let map = map(&mut top);
    let on_item_failure = on_item_failure(&mut top);
    let continue_on_failure = top.truth("continue_on_failure").unwrap_or(true);
    let max_failures = top.number("max_failures", 1, u64::MAX);
    let failure_threshold = top.parsed("failure_threshold", |text| match text.parse::<f64>() {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        Ok(_) | Err(_) => Err(format!("expected a share above 0 and up to 1, such as 0.2, found {text:?}")),
    });
    let breaker = top.take("breaker").and_then(|node| breaker(node, top.problems));
    let max_parallel = top.number("max_parallel", 1, limits::RUN_PARALLEL_MAX as u64).or(map.max_parallel);
    Some(Job {
        name: name?,
        essence: String::new(),
        input: input?,
        filter,
        sort_by,
        distinct,
        key,
        offset: usize::try_from(offset).unwrap_or(usize::MAX),
        max_items: max_items.map(|n| usize::try_from(n).unwrap_or(usize::MAX)),
        vars,
        env,
        setup,
        map: map.steps,
        max_parallel: max_parallel.and_then(|n| usize::try_from(n).ok()).unwrap_or(DEFAULT_PARALLEL),
        timeout: map.timeout,
        max_attempts: map.max_attempts,
        backoff: map.backoff,
        worktree: map.worktree,
        reduce,
        on_item_failure,
        continue_on_failure,
        max_failures,
        failure_threshold,
        breaker,
    })
}

/// Items at once when the job does not say.
const DEFAULT_PARALLEL: usize = 4;

/// A job's name is part of names of queues.
fn job_name(text: &str) -> Result<String, String> {
    // The longest name made of it is its results' drawer.
    let fits = format!("run.{text}.results-dlq").parse::<QueueName>();
    match fits {
        Ok(_) if text.starts_with(|c: char| c.is_ascii_alphanumeric()) => Ok(text.to_owned()),
        Ok(_) | Err(_) => Err(format!(
            "{text:?} is not a job's name: 1 to 112 of A-Z a-z 0-9 . _ -, starting with a letter or digit"
        )),
    }
}

fn input(node: Node, problems: &mut Problems) -> Option<Input> {
    let mut fields = Fields::of("input", node, &INPUT, problems)?;
    let line = fields.line;
    let file = fields.text("file");
    let command = fields.text("command");
    let format = fields.parsed("format", |text| match text {
        "csv" => Ok(Format::Csv),
        "json" => Ok(Format::Json),
        "jsonl" | "ndjson" => Ok(Format::Jsonl),
        _ => Err(format!("expected csv, json or jsonl, found {text:?}")),
    });
    let json_path = fields.parsed("json_path", JsonPath::parse);
    let timeout = fields.parsed("timeout", str::parse::<Span>).unwrap_or(INPUT_TIMEOUT);
    let delimiter = fields.parsed("delimiter", |text| match text.as_bytes() {
        [byte] if byte.is_ascii() && !matches!(byte, b'"' | b'\n' | b'\r') => Ok(*byte),
        [b'\\', b't'] => Ok(b'\t'),
        _ => Err(format!("expected one ASCII character, found {text:?}")),
    });
    let skip_bad_rows = fields.parsed("on_bad_row", |text| match text {
        "skip" => Ok(true),
        "error" => Ok(false),
        _ => Err(format!("expected error or skip, found {text:?}")),
    });
    let by_name = file.as_ref().and_then(|(_, name)| match name.rsplit_once('.').map(|(_, end)| end) {
        Some("csv") => Some(Format::Csv),
        Some("json") => Some(Format::Json),
        Some("jsonl" | "ndjson") => Some(Format::Jsonl),
        Some(_) | None => None,
    });
    let source = match (file, command) {
        (Some((_, file)), None) => Source::File(file.into()),
        (None, Some((line, text))) => {
            let run = template(line, "input.command", Template::shell(&text), problems)?;
            Source::Command { run, timeout }
        }
        (Some(_), Some((line, _))) => {
            problems.add(line, "input: give file or command, not both");
            return None;
        }
        (None, None) => {
            problems.add(line, "input: file or command is missing");
            return None;
        }
    };
    let format = match (format.or(by_name), &source) {
        (Some(format), _) => format,
        (None, Source::Command { .. }) => Format::Jsonl,
        (None, Source::File(_)) => {
            problems.add(line, "input.format is missing: csv, json or jsonl; the file's name does not say");
            return None;
        }
    };
    if json_path.is_some() && format != Format::Json {
        problems.add(line, "input.json_path goes with format: json");
    }
    Some(Input {
        source,
        format,
        json_path,
        delimiter: delimiter.unwrap_or(b','),
        skip_bad_rows: skip_bad_rows.unwrap_or(false),
    })
}

fn sort_keys(top: &mut Fields<'_>) -> Vec<SortKey> {
    let mut keys = Vec::new();
    for node in top.list("sort_by").unwrap_or_default() {
        let Value::Scalar { text, .. } = &node.value else {
            top.problems.expected("sort_by", &node, "a field, as in name or -size");
            continue;
        };
        let (name, descending) = text.strip_prefix('-').map_or((text.as_str(), false), |rest| (rest, true));
        match ItemPath::parse(name) {
            Ok(path) => keys.push(SortKey { path, descending }),
            Err(what) => top.problems.add(node.line, format!("sort_by: {what}")),
        }
    }
    keys
}

/// What `map` says.
struct Map {
    steps: Vec<Step>,
    max_parallel: Option<u64>,
    timeout: Span,
    max_attempts: u32,
    backoff: Backoff,
    worktree: bool,
}

fn map(top: &mut Fields<'_>) -> Map {
    let mut map = Map {
        steps: Vec::new(),
        max_parallel: None,
        timeout: ITEM_TIMEOUT,
        max_attempts: 3,
        backoff: Backoff::default(),
        worktree: false,
    };
    let line = top.line;
    let Some(node) = top.take("map") else {
        top.problems.add(line, "map is missing, as in map: {steps: [{run: \"echo ${item.id}\"}]}");
        return map;
    };
    if matches!(node.value, Value::List(_)) {
        map.steps = staged("map", node, top.problems);
        return map;
    }
    let Some(mut fields) = Fields::of("map", node, &MAP, top.problems) else { return map };
    map.steps = steps(&mut fields, "steps");
    if map.steps.is_empty() && !fields.problems.mentions("map.steps") {
        let line = fields.line;
        fields.problems.add(line, "map.steps is missing or empty");
    }
    map.max_parallel = fields.number("max_parallel", 1, limits::RUN_PARALLEL_MAX as u64);
    map.timeout = fields.parsed("timeout", time_limit).unwrap_or(ITEM_TIMEOUT);
    map.worktree = fields.truth("worktree").unwrap_or(false);
    if let Some(node) = fields.take("retry")
        && let Some(mut retry) = Fields::of("map.retry", node, &RETRY, fields.problems)
    {
        let most = u64::from(limits::ATTEMPTS_MAX);
        let attempts = retry.number("max_attempts", 1, most);
        let retries = retry.number("max_retries", 0, most - 1).map(|n| n + 1);
        let attempts = attempts.or(retries).and_then(|n| u32::try_from(n).ok());
        map.max_attempts = attempts.unwrap_or(map.max_attempts);
        if let Some(node) = retry.take("backoff") {
            map.backoff = backoff(node, retry.problems).unwrap_or_default();
        }
    }
    map
}

/// A stage that is a list of steps, or a map with them.
fn staged(place: &str, node: Node, problems: &mut Problems) -> Vec<Step> {
    if let Value::List(items) = node.value {
        return items
            .into_iter()
            .enumerate()
            .filter_map(|(n, node)| step(place, n, node, problems))
            .collect();
    }
    let Some(mut fields) = Fields::of(place, node, &["steps"], problems) else { return Vec::new() };
    steps(&mut fields, "steps")
}

fn steps(fields: &mut Fields<'_>, key: &str) -> Vec<Step> {
    let place = fields.name(key);
    let nodes = fields.list(key).unwrap_or_default();
    if nodes.len() > limits::JOB_STEPS_MAX {
        let line = fields.line;
        fields.problems.add(line, format!("{place}: more than {} steps", limits::JOB_STEPS_MAX));
        return Vec::new();
    }
    let each = nodes.into_iter().enumerate();
    each.filter_map(|(n, node)| step(&place, n, node, fields.problems)).collect()
}

fn step(place: &str, n: usize, node: Node, problems: &mut Problems) -> Option<Step> {
    let place = format!("{place}[{n}]");
    let line = node.line;
    // A bare text is a command.
    if let Value::Scalar { text, .. } = &node.value {
        let run = template(line, &place, Template::shell(text), problems)?;
        return Some(Step {
            name: first_line(text),
            command: Command::Shell(run),
            validates: false,
            stdin: None,
            timeout: None,
            commit_required: false,
            line,
        });
    }
    let mut fields = Fields::of(&place, node, &STEP, problems)?;
    let name = fields.text("name").map(|(_, name)| name);
    let (run, validate, argv) = (fields.text("run"), fields.text("validate"), fields.list("argv"));
    let stdin = fields.text("stdin");
    let timeout = fields.parsed("timeout", time_limit);
    let commit_required = fields.truth("commit_required").unwrap_or(false);
    let validates = validate.is_some();
    let (command, called) = match (run, validate, argv) {
        (Some((at, text)), None, None) | (None, Some((at, text)), None) => {
            let read = Template::shell(&text);
            (Command::Shell(template(at, &place, read, problems)?), first_line(&text))
        }
        (None, None, Some(words)) => argv_command(&place, &words, problems)?,
        (..) => {
            problems.add(line, format!("{place}: needs exactly one of run, argv and validate"));
            return None;
        }
    };
    let stdin = match stdin {
        Some((at, text)) => Some(template(at, &place, Template::plain(&text), problems)?),
        None => None,
    };
    let name = name.unwrap_or(called);
    Some(Step { name, command, validates, stdin, timeout, commit_required, line })
}

fn argv_command(place: &str, words: &[Node], problems: &mut Problems) -> Option<(Command, String)> {
    let mut argv = Vec::new();
    let mut shown = Vec::new();
    for word in words {
        let Value::Scalar { text, .. } = &word.value else {
            problems.expected(&format!("{place}.argv"), word, "a list of texts");
            return None;
        };
        shown.push(text.clone());
        argv.push(template(word.line, &format!("{place}.argv"), Template::plain(text), problems)?);
    }
    if argv.is_empty() {
        return None;
    }
    Some((Command::Argv(argv), first_line(&shown.join(" "))))
}

/// A template, or where it is wrong. Lines of a text on several lines are counted from where it begins.
fn template(
    line: usize,
    place: &str,
    read: Result<Template, (usize, String)>,
    problems: &mut Problems,
) -> Option<Template> {
    read.map_err(|(below, what)| problems.add(line + below, format!("{place}: {what}"))).ok()
}

/// What a step without a name is called.
fn first_line(text: &str) -> String {
    let line = text.trim().lines().next().unwrap_or_default();
    let mut name: String = line.chars().filter(|c| !c.is_control()).take(80).collect();
    if name.len() < text.trim().len() {
        name.push('…');
    }
    name
}

fn time_limit(text: &str) -> Result<Span, String> {
    let span: Span = text.parse().map_err(|e: redrive_core::time::TimeError| e.to_string())?;
    if span < Span::from_millis(1) || span > limits::LEASE_MAX {
        return Err(format!("{span} is outside 1ms to {}", limits::LEASE_MAX));
    }
    Ok(span)
}

fn on_item_failure(top: &mut Fields<'_>) -> OnItemFailure {
    let Some(node) = top.take("on_item_failure") else { return OnItemFailure::Dlq };
    if let Value::Scalar { text, .. } = &node.value {
        match text.as_str() {
            "dlq" => return OnItemFailure::Dlq,
            "retry" => return OnItemFailure::Retry,
            "skip" => return OnItemFailure::Skip,
            "stop" => return OnItemFailure::Stop,
            _ => {}
        }
        let known = ["dlq", "retry", "skip", "stop", "custom"];
        let near = yaml::nearest(text, &known).map(|word| format!("; did you mean {word:?}?"));
        let near = near.unwrap_or_default();
        let what = format!("on_item_failure: expected {}, found {text:?}{near}", known.join(", "));
        top.problems.add(node.line, what);
        return OnItemFailure::Dlq;
    }
    let custom = Fields::of("on_item_failure", node, &["custom"], top.problems).and_then(|mut fields| {
        let line = fields.line;
        let Some(node) = fields.take("custom") else {
            fields.problems.add(line, "on_item_failure: custom is missing");
            return None;
        };
        let mut fields = Fields::of("on_item_failure.custom", node, &["command", "argv"], fields.problems)?;
        let line = fields.line;
        match (fields.text("command"), fields.list("argv")) {
            (Some((at, text)), None) => {
                let read = Template::shell(&text);
                template(at, "on_item_failure.custom.command", read, fields.problems).map(Command::Shell)
            }
            (None, Some(words)) => {
                argv_command("on_item_failure.custom", &words, fields.problems).map(|(command, _)| command)
            }
            (Some(_), Some(_)) | (None, None) => {
                fields.problems.add(line, "on_item_failure.custom: needs command or argv");
                None
            }
        }
    });
    custom.map_or(OnItemFailure::Dlq, |command| OnItemFailure::Custom(Box::new(command)))
}

/// A part whose shape the core knows: its keys are checked here, its values there.
fn shaped<T: serde::de::DeserializeOwned>(
    place: &str,
    node: Node,
    known: &[&str],
    problems: &mut Problems,
    adjust: impl FnOnce(&mut serde_json::Map<String, serde_json::Value>),
) -> Option<(usize, T)> {
    let line = node.line;
    let serde_json::Value::Object(mut json) = node.to_json() else {
        problems.expected(place, &node, &format!("a map with {}", known.join(", ")));
        return None;
    };
    Fields::of(place, node, known, problems)?;
    json.retain(|key, _| known.contains(&key.as_str()));
    adjust(&mut json);
    match serde_json::from_value(serde_json::Value::Object(json)) {
        Ok(value) => Some((line, value)),
        Err(error) => {
            problems.add(line, format!("{place}: {error}"));
            None
        }
    }
}

fn backoff(node: Node, problems: &mut Problems) -> Option<Backoff> {
    let (line, backoff): (usize, Backoff) = shaped("map.retry.backoff", node, &BACKOFF, problems, |json| {
        let strategy = json.entry("strategy").or_insert_with(|| "exponential".into());
        if strategy == "exponential" {
            json.entry("multiplier").or_insert_with(|| 2.0.into());
        }
    })?;
    backoff.check().map_err(|refusal| problems.add(line, format!("map.retry.{refusal}"))).ok()?;
    Some(backoff)
}

fn breaker(node: Node, problems: &mut Problems) -> Option<BreakerPolicy> {
    let (line, breaker): (usize, BreakerPolicy) = shaped("breaker", node, &BREAKER, problems, |json| {
        json.entry("key").or_insert_with(|| BreakerKey::Queue.to_string().into());
    })?;
    breaker.check().map_err(|refusal| problems.add(line, refusal.to_string())).ok()?;
    Some(breaker)
}
