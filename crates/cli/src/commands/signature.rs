//! `signature`: reads error lines from stdin and prints the group of each, as assigned once all lines are known. It
//! needs no data directory and changes nothing.

use crate::connect::App;
use crate::exit_code::{CliError, CommandResult, ExitCode};
use crate::input;
use crate::output::{Column, Show, ValueFormat, escape};
use clap::Args;
use redrive::core::failure::ErrorInfo;
use redrive::core::ids::{GroupId, LeafId};
use redrive::core::limits;
use redrive::core::signature::{
    Signature, SignatureRule, SignatureRules, Tree, Variable, explain, variables,
};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  redrive signature < errors.log
  redrive signature --error-type PaymentError -o ndjson < errors.log
  redrive signature --explain 3 17 < errors.log
  redrive signature --top 5 < errors.log";

/// The maximum number of messages of a group to sample for its variables.
const SAMPLE_MAX: usize = 1_000;
/// The number of bytes of output to gather before writing.
const CHUNK: usize = 64 * 1024;

/// The flags of `signature`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SignatureArgs {
    /// The error type of all lines
    #[arg(long, value_name = "TYPE", default_value = "")]
    error_type: String,
    /// A TOML file with [[rules]], each with `match` and `fingerprint` [default: the rules of the configuration]
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Explain why two lines, numbered from 1, are in the same group or not
    #[arg(long, num_args = 2, value_names = ["A", "B"])]
    explain: Option<Vec<usize>>,
    /// Show each group with the N most frequent values of each variable
    #[arg(long, value_name = "N", conflicts_with = "explain")]
    top: Option<usize>,
}

/// The TOML of a rules file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RulesFile {
    #[serde(default)]
    rules: Vec<SignatureRule>,
}

/// The group of a line.
#[derive(Debug, Serialize)]
struct LineGroup {
    line: usize,
    group: GroupId,
    leaf: LeafId,
    template: String,
}

impl Show for LineGroup {
    const COLUMNS: &'static [Column] =
        &[Column::whole("line"), Column::id("group"), Column::id("leaf"), Column::main("template")];

    fn cells(&self, _look: &ValueFormat) -> Vec<String> {
        vec![self.line.to_string(), self.group.to_string(), self.leaf.to_string(), self.template.clone()]
    }
}

/// Why two lines are in the same group or not.
#[derive(Debug, Serialize)]
struct Explanation {
    together: bool,
    reasons: Vec<String>,
}

impl Show for Explanation {
    const COLUMNS: &'static [Column] = &[Column::whole("together"), Column::text("reasons")];

    fn cells(&self, _look: &ValueFormat) -> Vec<String> {
        vec![self.together.to_string(), self.reasons.join("; ")]
    }
}

/// A group with its variables.
#[derive(Debug, Serialize)]
struct Summary {
    group: GroupId,
    lines: usize,
    template: String,
    variables: Vec<Variable>,
}

impl Show for Summary {
    const COLUMNS: &'static [Column] =
        &[Column::id("group"), Column::whole("lines"), Column::main("template"), Column::text("variables")];

    fn cells(&self, _look: &ValueFormat) -> Vec<String> {
        let value = |(value, n): &(String, u64)| format!("{value} ({n})");
        let one = |v: &Variable| {
            let top: Vec<String> = v.top.iter().map(value).collect();
            format!("{}={}", v.place, top.join(", "))
        };
        let variables: Vec<String> = self.variables.iter().map(one).collect();
        vec![self.group.to_string(), self.lines.to_string(), self.template.clone(), variables.join("; ")]
    }
}

/// The lines that were read.
struct LearnedLines {
    tree: Tree,
    leaves: Vec<LeafId>,
    /// Sample texts of each leaf, for the variables; empty unless `--top` is given.
    samples: HashMap<LeafId, Vec<String>>,
    /// The signatures of the two lines to explain.
    explained: Vec<Option<Signature>>,
}

/// Runs `signature`.
pub(crate) async fn run(app: &App, args: SignatureArgs) -> CommandResult {
    let rules = rules(app, &args)?;
    let explained = args.explain.clone().unwrap_or_default();
    if explained.contains(&0) {
        return Err(CliError::usage("--explain: 0 is not a line; lines are numbered from 1"));
    }
    let (explain, top) = (args.explain.is_some(), args.top);
    let lines_to_explain = explained.clone();
    let learned = input::on_a_thread(move || {
        read(BufReader::new(io::stdin().lock()), &args, &rules, &lines_to_explain)
    });
    let learned = learned.await?;
    if explain {
        return print_explanation(app, &learned, &explained);
    }
    let templates = templates(&learned);
    match top {
        Some(top) => print_summaries(app, &learned, &templates, top),
        None => print_lines(app, &learned, &templates),
    }
}

fn rules(app: &App, args: &SignatureArgs) -> Result<SignatureRules, CliError> {
    let Some(path) = &args.rules else { return Ok(app.config.known.rules.clone()) };
    let shown = path.display();
    let text = std::fs::read_to_string(path).map_err(|e| CliError::io(format!("read {shown}"), &e))?;
    let file: RulesFile = toml::from_str(&text).map_err(|e| CliError::usage(format!("{shown}: {e}")))?;
    SignatureRules::compile(&file.rules).map_err(|e| CliError::usage(format!("{shown}: {e}")))
}

/// Reads all lines and learns their signatures.
fn read(
    mut source: impl BufRead,
    args: &SignatureArgs,
    rules: &SignatureRules,
    explained: &[usize],
) -> Result<LearnedLines, CliError> {
    let mut learned = LearnedLines {
        tree: Tree::new(),
        leaves: Vec::new(),
        samples: HashMap::new(),
        explained: vec![None; explained.len()],
    };
    let mut error = ErrorInfo { error_type: args.error_type.clone(), ..ErrorInfo::default() };
    let mut bytes = Vec::new();
    while next_line(&mut source, &mut bytes).map_err(|e| CliError::io("read stdin", &e))? {
        error.message.clear();
        error.message.push_str(&String::from_utf8_lossy(&bytes));
        let signature = Signature::with_rules(&error, rules);
        let leaf = learned.tree.learn(&signature).leaf;
        learned.leaves.push(leaf);
        for (line, place) in explained.iter().zip(&mut learned.explained) {
            if *line == learned.leaves.len() {
                *place = Some(signature.clone());
            }
        }
        if args.top.is_some() {
            let sample = learned.samples.entry(leaf).or_default();
            if sample.len() < SAMPLE_MAX {
                sample.push(error.message.clone());
            }
        }
    }
    Ok(learned)
}

/// Reads a line without its end, keeping only as many bytes as grouping looks at. Returns whether there was a line.
fn next_line(source: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let keep = limits::ERROR_MESSAGE_BYTES_MAX as u64;
    if source.by_ref().take(keep).read_until(b'\n', line)? == 0 {
        return Ok(false);
    }
    if line.last() == Some(&b'\n') {
        line.pop();
        if line.last() == Some(&b'\r') {
            line.pop();
        }
    } else if line.len() as u64 == keep {
        source.skip_until(b'\n')?;
    }
    Ok(true)
}

/// The group of each leaf with the group's template.
fn templates(learned: &LearnedLines) -> HashMap<LeafId, (GroupId, String)> {
    let mut of_group: HashMap<GroupId, String> = HashMap::new();
    let mut templates = HashMap::new();
    for leaf in &learned.leaves {
        templates.entry(*leaf).or_insert_with(|| {
            let group = learned.tree.group_of(*leaf).unwrap_or(*leaf);
            let template = || learned.tree.template_of(group).unwrap_or_default();
            (group, of_group.entry(group).or_insert_with(template).clone())
        });
    }
    templates
}

fn print_lines(
    app: &App,
    learned: &LearnedLines,
    templates: &HashMap<LeafId, (GroupId, String)>,
) -> CommandResult {
    let found = |leaf: &LeafId| templates.get(leaf).cloned().unwrap_or((*leaf, String::new()));
    if app.out.format.is_table() {
        let mut text = String::new();
        for leaf in &learned.leaves {
            let (group, template) = found(leaf);
            text.push_str(&format!("{group}\t{}\n", escape::line(&template)));
            if text.len() >= CHUNK {
                app.out.raw(text.as_bytes())?;
                text.clear();
            }
        }
        app.out.raw(text.as_bytes())?;
        return Ok(ExitCode::Ok);
    }
    let mut list = app.out.list();
    for (page, leaves) in learned.leaves.chunks(limits::PAGE_ITEMS_MAX).enumerate() {
        let filed = |(at, leaf): (usize, &LeafId)| {
            let (group, template) = found(leaf);
            LineGroup { line: page * limits::PAGE_ITEMS_MAX + at + 1, group, leaf: *leaf, template }
        };
        list.add(&leaves.iter().enumerate().map(filed).collect::<Vec<_>>())?;
    }
    list.end(None)?;
    Ok(ExitCode::Ok)
}

fn print_explanation(app: &App, learned: &LearnedLines, explained: &[usize]) -> CommandResult {
    let mut found = Vec::new();
    for (line, signature) in explained.iter().zip(&learned.explained) {
        let none =
            || CliError::usage(format!("--explain: there is no line {line}, only {}", learned.leaves.len()));
        found.push(signature.as_ref().ok_or_else(none)?);
    }
    let [a, b] = found.as_slice() else { return Err(CliError::usage("--explain: name two lines")) };
    let why = explain(a, b, &learned.tree);
    if app.out.format.is_table() {
        let mut text = String::from(if why.together { "together:\n" } else { "apart:\n" });
        for reason in &why.reasons {
            text.push_str(&format!("  {}\n", escape::line(reason)));
        }
        app.out.raw(text.as_bytes())?;
    } else {
        app.out.one(&Explanation { together: why.together, reasons: why.reasons })?;
    }
    Ok(ExitCode::Ok)
}

fn print_summaries(
    app: &App,
    learned: &LearnedLines,
    templates: &HashMap<LeafId, (GroupId, String)>,
    top: usize,
) -> CommandResult {
    let mut order: Vec<GroupId> = Vec::new();
    let mut counts: HashMap<GroupId, usize> = HashMap::new();
    let mut members: HashMap<GroupId, Vec<LeafId>> = HashMap::new();
    for (leaf, (group, _)) in learned.leaves.iter().filter_map(|leaf| Some((leaf, templates.get(leaf)?))) {
        let count = counts.entry(*group).or_default();
        if *count == 0 {
            order.push(*group);
        }
        *count += 1;
        let members = members.entry(*group).or_default();
        if !members.contains(leaf) {
            members.push(*leaf);
        }
    }
    let summary = |group: GroupId| {
        let template = templates.get(&group).map_or_else(String::new, |(_, template)| template.clone());
        let leaves = members.get(&group).map(Vec::as_slice).unwrap_or_default();
        let texts = leaves.iter().filter_map(|leaf| learned.samples.get(leaf)).flatten().map(String::as_str);
        let variables = variables(&template, texts.take(SAMPLE_MAX), top);
        Summary { group, lines: counts.get(&group).copied().unwrap_or(0), template, variables }
    };
    let mut all: Vec<Summary> = order.into_iter().map(summary).collect();
    all.sort_by_key(|summary| std::cmp::Reverse(summary.lines));
    app.out.all(&all)?;
    Ok(ExitCode::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_with_any_content_are_read() {
        let long = "x".repeat(limits::ERROR_MESSAGE_BYTES_MAX);
        let text = format!("a\r\n\n\u{0}b\n{long}yyy\n{long}\nlast");
        let mut source = io::Cursor::new(text.into_bytes());
        let mut lines = Vec::new();
        let mut line = Vec::new();
        while next_line(&mut source, &mut line).unwrap() {
            lines.push(String::from_utf8_lossy(&line).into_owned());
        }
        assert_eq!(lines, ["a", "", "\u{0}b", &long, &long, "last"]);
    }
}
