//! Languages whose frames begin with `at`: Java and its kin, JavaScript and .NET. The error stands above its frames,
//! what caused it below them (Java, JavaScript) or between the two (.NET).

use super::{Found, Head};

/// Lines of a message that may stand between the line with the type and the frames.
const MESSAGE_LINES_MAX: usize = 20;

/// What may stand before the type.
const PREFIXES: [&str; 4] = ["Unhandled exception. ", "Unhandled Exception: ", "Uncaught ", "Caused by: "];

/// The last error with frames.
pub(super) fn find(lines: &[&str]) -> Option<Found> {
    let mut found: Option<Found> = None;
    // Whether frames still belong to what was found, and where lines that may hold a new error begin.
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
            } else if !goes_on(line) {
                open = false;
                free = n;
            }
        }
    }
    found
}

/// The error whose frames begin at a line: the line right above where it says more than a word, else the nearest one
/// that is called an error. A message may have several lines.
fn begin(lines: &[&str], free: usize, frame: usize) -> Option<Found> {
    let from = free.max(frame.saturating_sub(MESSAGE_LINES_MAX));
    let above = lines.get(from..frame)?;
    let inner = |line: &str| line.trim_start().strip_prefix("---> ").map(str::to_owned);
    let named = |n: usize| {
        let line = above.get(n).filter(|line| !line.starts_with([' ', '\t']))?;
        Head::parse(without_prefix(line)).map(|head| (n, head))
    };
    let nearest = (0..above.len()).rev().find(|n| above.get(*n).is_some_and(|line| inner(line).is_none()))?;
    let near = named(nearest);
    let says_more = |head: &Head| !head.message.is_empty() || head.error_type.contains('.');
    let called = || (0..nearest).rev().filter_map(named).find(|(_, head)| is_error_name(&head.error_type));
    let (n, mut head) = near.clone().filter(|(_, head)| says_more(head)).or_else(called).or(near)?;
    let below = above.get(n + 1..).unwrap_or_default();
    for more in below.iter().filter(|line| inner(line).is_none()) {
        head.message.push('\n');
        head.message.push_str(more);
    }
    head.message.truncate(head.message.trim_end().len());
    let causes = below.iter().filter_map(|line| Head::parse(&inner(line)?)).collect();
    Some(Found { first: from + n, last: frame, ends_innermost: false, head, causes })
}

fn is_error_name(name: &str) -> bool {
    ["Error", "Exception", "Throwable", "Failure"].iter().any(|end| name.ends_with(end))
}

fn without_prefix(line: &str) -> &str {
    let thread = line.strip_prefix("Exception in thread \"").and_then(|rest| rest.split_once("\" "));
    let line = thread.map_or(line, |(_, rest)| rest);
    PREFIXES.iter().fold(line, |line, prefix| line.strip_prefix(prefix).unwrap_or(line))
}

/// `    at name (place)`, `\tat name(place)`, `    at place:1:2`.
fn is_frame(line: &str) -> bool {
    let Some(body) = line.strip_prefix([' ', '\t']).and_then(|line| line.trim_start().strip_prefix("at "))
    else {
        return false;
    };
    let body = body.trim_end().trim_end_matches(" {").trim_end();
    let placed = body.rsplit(':').next().is_some_and(|n| n.bytes().all(|b| b.is_ascii_digit()));
    body.contains('(') && (body.ends_with(')') || body.contains(") in ")) || placed && body.contains(':')
}

/// `Caused by: Type: message` and `[cause]: Type: message`.
fn cause(line: &str) -> Option<Head> {
    let line = line.trim_start();
    let cause = line.strip_prefix("Caused by: ").or_else(|| line.strip_prefix("[cause]: "))?;
    Head::parse(cause)
}

/// What may stand between the frames of one error: `... 3 more`, properties of the error, suppressed ones.
fn goes_on(line: &str) -> bool {
    line.starts_with([' ', '\t']) || line.starts_with('}') || line.starts_with("... ")
}
