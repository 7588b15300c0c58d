//! Renders the failures of a message: the facts about each attempt, in lines that fit eighty columns.

use super::error_text;
use crate::output::table::width_of;
use crate::output::{ValueFormat, escape};
use redrive::core::failure::Failure;

/// The maximum width of a line; a sheet indents lines by two.
const WIDTH: usize = 78;
/// The indentation of the details of an attempt below its first line.
const INDENT: &str = "     ";

/// The kept failures, and a note about the number of failures that were not kept.
pub(super) fn failure_lines(kept: &[Failure], failed: u32, fmt: &ValueFormat) -> String {
    let mut lines = Vec::new();
    let failed = usize::try_from(failed).unwrap_or(usize::MAX);
    for failure in kept {
        push_failure(&mut lines, failure, fmt);
    }
    if failed > kept.len() {
        lines.push(format!(
            "({} more between the first and the last are counted, not kept)",
            failed - kept.len()
        ));
    }
    lines.join("\n")
}

fn push_failure(lines: &mut Vec<String>, failure: &Failure, fmt: &ValueFormat) {
    let (generation, attempt) = (failure.generation, failure.attempt);
    let mut head = format!("{generation}.{attempt}  {}", fmt.time(failure.at));
    let facts = [
        failure.worker.as_ref().map(|worker| format!(" by {worker}")),
        failure.host.as_ref().map(|host| format!(" on {host}")),
        failure.version.as_ref().map(|version| format!(", version {version}")),
        failure.step.as_ref().map(|step| format!(", in step {step}")),
        failure.duration.map(|took| format!(", after {took}")),
    ];
    head.extend(facts.into_iter().flatten());
    wrapped(lines, "", &head);
    let code = failure.error.code.as_deref().map(|code| format!(" ({code})")).unwrap_or_default();
    wrapped(lines, INDENT, &format!("{}{code}", error_text(&failure.error)));
    let trail = Some(failure.error.context.join(" > ")).filter(|trail| !trail.is_empty());
    let used = [
        failure.cpu.map(|seconds| format!("{seconds:.1}s of processor time")),
        failure.memory.map(|bytes| format!("{} MiB of memory", bytes.div_ceil(1 << 20))),
    ];
    let used: Vec<String> = used.into_iter().flatten().collect();
    let more = [
        ("cause", failure.error.cause.clone()),
        ("trail", trail),
        ("class", Some(format!("{}, {}, {}", failure.category, failure.route, failure.severity))),
        ("used", Some(used.join(", ")).filter(|used| !used.is_empty())),
        ("log", failure.log.clone()),
    ];
    for (name, text) in more {
        if let Some(text) = text {
            wrapped(lines, INDENT, &format!("{name}: {text}"));
        }
    }
    for place in &failure.artifacts {
        wrapped(lines, INDENT, &format!("artifact: {place}"));
    }
}

/// Wraps text in lines of at most [`WIDTH`], breaking only between words so that paths stay whole. Control characters,
/// including line breaks, are escaped.
fn wrapped(lines: &mut Vec<String>, indent: &str, text: &str) {
    let mut line = indent.to_owned();
    let mut begun = false;
    for word in escape::line(text).split(' ') {
        let width = width_of(word);
        // A word that is too long for any line gains nothing from a line of its own.
        let fits_below = width_of(INDENT) + 2 + width <= WIDTH;
        if begun && width_of(&line) + 1 + width > WIDTH && fits_below {
            lines.push(std::mem::replace(&mut line, format!("{INDENT}  ")));
            begun = false;
        }
        if begun {
            line.push(' ');
        }
        line.push_str(word);
        begun = true;
    }
    lines.push(line);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words_and_stay_whole_otherwise() {
        let path = format!("/{}", "x".repeat(100));
        let mut lines = Vec::new();
        wrapped(&mut lines, "", &format!("{} log: {path} end\nof it", "word ".repeat(30).trim_end()));
        assert!(lines.iter().all(|line| width_of(line) <= WIDTH || line.contains(&path)), "{lines:#?}");
        assert!(lines.iter().any(|line| line.ends_with(&format!("log: {path}"))), "{lines:#?}");
        assert!(lines.last().is_some_and(|line| line.ends_with("end\\nof it")));
    }
}
