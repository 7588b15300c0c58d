//! Languages whose frames begin with `at`: Java and other JVM languages, JavaScript and .NET. The error is above its
//! frames, and its cause is below them (Java, JavaScript) or between the two (.NET).

use super::{ErrorHead, FoundTraceback};

/// The maximum number of message lines between the line with the type and the frames.
const MESSAGE_LINES_MAX: usize = 20;

/// What may come before the type.
const PREFIXES: [&str; 4] = ["Unhandled exception. ", "Unhandled Exception: ", "Uncaught ", "Caused by: "];

/// Finds the last error with frames.
pub(super) fn find(lines: &[&str]) -> Option<FoundTraceback> {
    let mut found: Option<FoundTraceback> = None;
    // Whether frames still belong to the traceback found last, and where the lines begin that may name a new error.
    let (mut open, mut free) = (false, 0);
    for (n, line) in lines.iter().enumerate() {
        if is_frame(line) {
            if !open && let Some(new) = begin(lines, free, n) {
                found = Some(new);
                open = true;
            }
            if let Some(found) = found.as_mut().filter(|_| open) {
                found.last = n;
            }
            free = n + 1;
        } else if let Some(found) = found.as_mut().filter(|_| open) {
            if let Some(cause) = cause(line) {
                found.causes.push(cause);
                found.last = n;
            } else if !is_between_frames(line) {
                open = false;
                free = n;
            }
        }
    }
    found
}

/// The error whose frames begin at a line. It is named on the line directly above, if that has more than a word, or
/// else on the nearest line with the name of an error. A message may have several lines.
fn begin(lines: &[&str], free: usize, frame: usize) -> Option<FoundTraceback> {
    let from = free.max(frame.saturating_sub(MESSAGE_LINES_MAX));
    let above = lines.get(from..frame)?;
    let inner = |line: &str| line.trim_start().strip_prefix("---> ").map(str::to_owned);
    let named = |n: usize| {
        let line = above.get(n).filter(|line| !line.starts_with([' ', '\t']))?;
        ErrorHead::parse(without_prefix(line)).map(|head| (n, head))
    };
    let nearest = (0..above.len()).rev().find(|n| above.get(*n).is_some_and(|line| inner(line).is_none()))?;
    let near = named(nearest);
    let says_more = |head: &ErrorHead| !head.message.is_empty() || head.error_type.contains('.');
    let called = || (0..nearest).rev().filter_map(named).find(|(_, head)| is_error_name(&head.error_type));
    let (n, mut head) = near.clone().filter(|(_, head)| says_more(head)).or_else(called).or(near)?;
    let below = above.get(n + 1..).unwrap_or_default();
    for more in below.iter().filter(|line| inner(line).is_none()) {
        head.message.push('\n');
        head.message.push_str(more);
    }
    head.message.truncate(head.message.trim_end().len());
    let causes = below.iter().filter_map(|line| ErrorHead::parse(&inner(line)?)).collect();
    Some(FoundTraceback { first: from + n, last: frame, ends_innermost: false, head, causes })
}

fn is_error_name(name: &str) -> bool {
    ["Error", "Exception", "Throwable", "Failure"].iter().any(|end| name.ends_with(end))
}

fn without_prefix(line: &str) -> &str {
    let thread = line.strip_prefix("Exception in thread \"").and_then(|rest| rest.split_once("\" "));
    let line = thread.map_or(line, |(_, rest)| rest);
    PREFIXES.iter().fold(line, |line, prefix| line.strip_prefix(prefix).unwrap_or(line))
}

/// Whether a line is a frame: `    at name (file)`, `\tat name(file)`, `    at file:1:2`.
fn is_frame(line: &str) -> bool {
    let Some(body) = line.strip_prefix([' ', '\t']).and_then(|line| line.trim_start().strip_prefix("at "))
    else {
        return false;
    };
    let body = body.trim_end().trim_end_matches(" {").trim_end();
    let has_line = body.rsplit(':').next().is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()));
    body.contains('(') && (body.ends_with(')') || body.contains(") in ")) || has_line && body.contains(':')
}

/// Parses `Caused by: Type: message` and `[cause]: Type: message`.
fn cause(line: &str) -> Option<ErrorHead> {
    let line = line.trim_start();
    let cause = line.strip_prefix("Caused by: ").or_else(|| line.strip_prefix("[cause]: "))?;
    ErrorHead::parse(cause)
}

/// Whether a line may be between the frames of one error: `... 3 more`, properties of the error, suppressed errors.
fn is_between_frames(line: &str) -> bool {
    line.starts_with([' ', '\t']) || line.starts_with('}') || line.starts_with("... ")
}
