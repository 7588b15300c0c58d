//! Reading the job file: from the tree of its lines to a [`Job`]. Every mistake is collected; unknown keys come
//! with the nearest known one. What a job is stands in `spec`.

use super::path::{ItemPath, JsonPath};
use super::script::refused_argument;
use super::spec::{Command, Format, Input, Job, JobName, OnItemFailure, SortKey, Source, Step};
use super::template::{Template, shown};
use super::yaml::{self, Fields, Node, Problem, Problems, Value};
use redrive_core::backoff::Backoff;
use redrive_core::breaker::{BreakerKey, BreakerPolicy};
use redrive_core::filter::ItemFilter;
use redrive_core::limits;
use redrive_core::time::Span;

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

/// Reads a job file, or says everything that is wrong with it.
pub(super) fn read(text: &str) -> Result<Job, Vec<Problem>> {
    if text.len() > limits::JOB_FILE_BYTES_MAX {
        let what = format!("{} bytes; a job file has at most {}", text.len(), limits::JOB_FILE_BYTES_MAX);
        return Err(vec![Problem { line: 1, what }]);
    }
    let node = yaml::parse(text).map_err(|problem| vec![problem])?;
    let essence = essence(&node);
    let mut problems = Problems::default();
    let job = Fields::of("", node, &TOP, &mut problems).and_then(job);
    problems.finish(job.map(|job| Job { essence, ..job }))
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

fn job(mut top: Fields<'_>) -> Option<Job> {
    let name = top.parsed("name", JobName::parse);
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
    if let Some(step) = map.steps.iter().find(|step| step.commit_required && !map.worktree) {
        top.problems
            .add(step.line, "commit_required needs map.worktree: true; items would see each other's commits");
    }
    for (stage, steps) in [("setup", &setup), ("map", &map.steps), ("reduce", &reduce)] {
        for step in steps {
            let mut placeholders = step.templates().flat_map(Template::placeholders);
            if let Some(placeholder) = placeholders.find(|placeholder| !placeholder.is_known_in(stage)) {
                top.problems.add(step.line, format!("{stage}: there is no {} there", shown(placeholder)));
            }
        }
    }
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
    if let Value::List(list) = &node.value {
        if list.is_empty() {
            top.problems
                .add(node.line, "map is empty: at least one step, as in map: [{run: \"echo ${item.id}\"}]");
        }
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
fn staged(location: &str, node: Node, problems: &mut Problems) -> Vec<Step> {
    if let Value::List(items) = node.value {
        return items
            .into_iter()
            .enumerate()
            .filter_map(|(n, node)| step(location, n, node, problems))
            .collect();
    }
    let Some(mut fields) = Fields::of(location, node, &["steps"], problems) else { return Vec::new() };
    steps(&mut fields, "steps")
}

fn steps(fields: &mut Fields<'_>, key: &str) -> Vec<Step> {
    let location = fields.name(key);
    let nodes = fields.list(key).unwrap_or_default();
    if nodes.len() > limits::JOB_STEPS_MAX {
        let line = fields.line;
        fields.problems.add(line, format!("{location}: more than {} steps", limits::JOB_STEPS_MAX));
        return Vec::new();
    }
    let each = nodes.into_iter().enumerate();
    each.filter_map(|(n, node)| step(&location, n, node, fields.problems)).collect()
}

fn step(location: &str, n: usize, node: Node, problems: &mut Problems) -> Option<Step> {
    let location = format!("{location}[{n}]");
    let line = node.line;
    // A bare text is a command.
    if let Value::Scalar { text, .. } = &node.value {
        let run = template(line, &location, Template::shell(text), problems)?;
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
    let mut fields = Fields::of(&location, node, &STEP, problems)?;
    let name = fields.text("name").map(|(_, name)| name);
    let (run, validate, argv) = (fields.text("run"), fields.text("validate"), fields.list("argv"));
    let stdin = fields.text("stdin");
    let timeout = fields.parsed("timeout", time_limit);
    let commit_required = fields.truth("commit_required").unwrap_or(false);
    let validates = validate.is_some();
    let (command, called) = match (run, validate, argv) {
        (Some((at, text)), None, None) | (None, Some((at, text)), None) => {
            let read = Template::shell(&text);
            (Command::Shell(template(at, &location, read, problems)?), first_line(&text))
        }
        (None, None, Some(words)) => argv_command(&location, &words, problems)?,
        (..) => {
            problems.add(line, format!("{location}: needs exactly one of run, argv and validate"));
            return None;
        }
    };
    let stdin = match stdin {
        Some((at, text)) => Some(template(at, &location, Template::plain(&text), problems)?),
        None => None,
    };
    let name = name.unwrap_or(called);
    Some(Step { name, command, validates, stdin, timeout, commit_required, line })
}

fn argv_command(location: &str, words: &[Node], problems: &mut Problems) -> Option<(Command, String)> {
    let mut argv = Vec::new();
    let mut shown = Vec::new();
    for word in words {
        let Value::Scalar { text, .. } = &word.value else {
            problems.expected(&format!("{location}.argv"), word, "a list of texts");
            return None;
        };
        shown.push(text.clone());
        argv.push(template(word.line, &format!("{location}.argv"), Template::plain(text), problems)?);
    }
    if argv.is_empty() {
        return None;
    }
    if let Some((at, why)) = refused_argument(&shown) {
        let (line, word) = (words.get(at).map_or(0, |word| word.line), shown.get(at));
        problems
            .add(line, format!("{location}.argv: {:?} has a value {why}", word.map_or("", String::as_str)));
        return None;
    }
    Some((Command::Argv(argv), first_line(&shown.join(" "))))
}

/// A template, or where it is wrong. Lines of a text on several lines are counted from where it begins.
fn template(
    line: usize,
    location: &str,
    read: Result<Template, (usize, String)>,
    problems: &mut Problems,
) -> Option<Template> {
    read.map_err(|(below, what)| problems.add(line + below, format!("{location}: {what}"))).ok()
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
    location: &str,
    node: Node,
    known: &[&str],
    problems: &mut Problems,
    adjust: impl FnOnce(&mut serde_json::Map<String, serde_json::Value>),
) -> Option<(usize, T)> {
    let line = node.line;
    let serde_json::Value::Object(mut json) = node.to_json() else {
        problems.expected(location, &node, &format!("a map with {}", known.join(", ")));
        return None;
    };
    Fields::of(location, node, known, problems)?;
    json.retain(|key, _| known.contains(&key.as_str()));
    adjust(&mut json);
    match serde_json::from_value(serde_json::Value::Object(json)) {
        Ok(value) => Some((line, value)),
        Err(error) => {
            problems.add(line, format!("{location}: {error}"));
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

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = "
name: resize
input: {file: items.csv, delimiter: ';', on_bad_row: skip}
filter: size>10 kind:png
sort_by: [-size, name]
distinct: id
key: id
offset: 1
max_items: 1000
vars: {out: out}
env: {LANG: C}
setup: [{run: 'mkdir -p ${var.out}'}]
map:
  steps:
    - {run: 'convert ${item.file} ${var.out}/${item.id}.png', timeout: 30s, name: convert}
    - {argv: [test, -s, '${var.out}/${item.id}.png']}
    - {validate: 'test -s ${var.out}/${item.id}.png', stdin: '${item}'}
  max_parallel: 8
  timeout: 5m
  retry: {max_attempts: 4, backoff: {initial: 2s, cap: 1m, jitter: none}}
reduce: {steps: [{run: 'cat ${results_file}'}]}
on_item_failure: {custom: {command: 'cat >> failed'}}
continue_on_failure: true
max_failures: 50
failure_threshold: 0.2
breaker: {key: payload.host, failures: 3}
";

    fn problems(text: &str) -> Vec<String> {
        Job::parse(text)
            .map_or_else(|all| all.iter().map(ToString::to_string).collect(), |job| vec![format!("{job:?}")])
    }

    #[test]
    fn every_key_is_read() {
        let job = Job::parse(WHOLE).unwrap();
        assert_eq!((job.name(), job.max_parallel, job.max_attempts, job.offset), ("resize", 8, 4, 1));
        assert_eq!(job.map.iter().map(|step| step.name.as_str()).next(), Some("convert"));
        assert!(job.map[2].validates && job.map[2].stdin.is_some());
        assert_eq!(job.timeout, Span::from_secs(300));
        assert_eq!(job.policy().backoff.base(2), Span::from_secs(4));
        assert!(matches!(job.on_item_failure, OnItemFailure::Custom(_)));
        assert_eq!(job.policy().breaker.unwrap().failures, 3);
        assert_eq!(job.queue().as_str(), "run.resize");
    }

    #[test]
    fn every_mistake_is_reported_with_its_line_and_the_nearest_key() {
        let found = problems(
            "nme: x\ninput:\n  fil: a.csv\nmap:\n  steps:\n    - {run: true, timout: 3s}\n    - {run: a, argv: [b]}\n  \
             max_parallel: many\nmax_failures: [1]\non_item_failure: skipp\nfailure_threshold: 7\n",
        );
        for says in [
            "line 1: unknown key \"nme\"; did you mean \"name\"?",
            "line 3: unknown key \"fil\" in input; did you mean \"file\"?",
            "line 6: unknown key \"timout\" in map.steps[0]; did you mean \"timeout\"?",
            "line 7: map.steps[1]: needs exactly one of run, argv and validate",
            "line 8: map.max_parallel: expected a whole number from 1 to 1024, found \"many\"",
            "line 9: max_failures: expected text, found a list",
            "line 10: on_item_failure: expected dlq, retry, skip, stop, custom, found \"skipp\"; did you mean \"skip\"?",
            "line 11: failure_threshold: expected a share above 0",
        ] {
            assert!(found.iter().any(|line| line.starts_with(says)), "{says}\n{found:#?}");
        }
    }

    #[test]
    fn no_value_stands_in_the_script_of_an_argv() {
        let parse = |argv: &str| {
            Job::parse(&format!("name: x\ninput: {{file: a.csv}}\nmap: [{{argv: [{argv}]}}]"))
                .map_err(|p| p[0].to_string())
        };
        for argv in
            ["sh, -c, 'echo ${item.x}'", "env, /bin/bash, -lc, '${item.x}'", "python3, '-cprint(${item.x})'"]
        {
            let error = parse(argv).expect_err(argv);
            assert!(error.contains("line 3: map") && error.contains("follows -c"), "{error}");
        }
        for argv in
            ["sh, -c, 'echo \"$1\"', x, '${item.x}'", "head, -c, '${item.x}'", "sh, a.sh, '${item.x}'"]
        {
            parse(argv).expect(argv);
        }
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        let with = |extra: &str| {
            problems(&format!("name: t\ninput: {{file: x.csv}}\nmap: [true]\n{extra}")).join("\n")
        };
        for (extra, says) in [
            ("filter: 'size > 1'", "line 4: filter: \">\" needs a field right before it"),
            ("key: a..b", "is not a path"),
            ("setup: ['echo ${item.a}']", "line 4: setup: there is no ${item.a} there"),
            ("reduce: ['echo ${index}']", "line 4: reduce: there is no ${index} there"),
            ("breaker: {key: nope}", "is not a breaker key"),
            ("breaker: {failurs: 1}", "did you mean \"failures\"?"),
        ] {
            assert!(with(extra).contains(says), "{extra}: {}", with(extra));
        }
        for (text, says) in [
            ("name: a b\ninput: {file: x.csv}\nmap: [true]", "is not a job's name"),
            ("name: t\ninput: {file: x.csv, command: y}\nmap: [true]", "file or command, not both"),
            ("name: t\ninput: {file: x}\nmap: [true]", "input.format is missing"),
            ("name: t\ninput: {file: x.csv, json_path: $.a}\nmap: [true]", "goes with format: json"),
            ("name: t\ninput: {file: x.csv}", "map is missing"),
            (
                "name: t\ninput: {file: x.csv}\nmap: {steps: [{run: a, commit_required: true}]}",
                "worktree: true",
            ),
            (
                "name: t\ninput: {file: x.csv}\nmap:\n- |\n  true\n  echo '${item.x}'",
                "line 6: map[0]: ${item.x} stands",
            ),
        ] {
            let found = problems(text).join("\n");
            assert!(found.contains(says), "{text}: {found}");
        }
    }

    #[test]
    fn the_hash_sees_what_may_change_results_and_nothing_else() {
        let hash = |text: &str| Job::parse(text).unwrap().hash();
        let of = hash(WHOLE);
        assert_eq!(of, hash(&WHOLE.replace("max_parallel: 8", "max_parallel: 9 # more")));
        assert_eq!(of, hash(&WHOLE.replace("max_failures: 50", "max_failures: 60")));
        assert_ne!(of, hash(&WHOLE.replace("mkdir -p", "mkdir")));
        assert_ne!(of, hash(&WHOLE.replace("{out: out}", "{out: other}")));
    }
}
