//! Languages that begin a traceback with a line of their own: Python, Ruby, PHP, Go and Rust.

use super::{ErrorHead, FoundTraceback, is_type};

/// The maximum number of lines of a message.
const MESSAGE_LINES_MAX: usize = 8;

/// `Traceback (most recent call last):`, frames, then the error. Chained errors follow each other; the one that was
/// raised last is at the end.
pub(super) fn python(lines: &[&str]) -> Option<FoundTraceback> {
    const CHAINS: [&str; 2] = [
        "During handling of the above exception, another exception occurred:",
        "The above exception was the direct cause of the following exception:",
    ];
    let mut chain: Vec<ErrorHead> = Vec::new();
    let mut found: Option<FoundTraceback> = None;
    let (mut first, mut begun, mut chained) = (0, false, false);
    for (n, whole) in lines.iter().enumerate() {
        // Exception groups are drawn with bars in front.
        let line = whole.trim_start_matches([' ', '|', '+']).trim_end();
        let bare = !whole.starts_with([' ', '\t']) || whole.trim_start().starts_with(['|', '+']);
        if line.ends_with("Traceback (most recent call last):") {
            if !chained {
                chain.clear();
                first = n;
            }
            (begun, chained) = (true, false);
        } else if CHAINS.contains(&line) {
            chained = true;
        } else if !begun && line.starts_with("File \"") && line.contains("\", line ") {
            // A syntax error of the program itself comes without the first line.
            let ends = lines.iter().skip(n + 1).take(4).any(|line| is_syntax(line));
            if ends {
                (begun, first) = (true, n);
                chain.clear();
            }
        } else if begun && bare && !line.is_empty() && !is_python_body(whole) {
            let Some(head) = ErrorHead::parse(line) else { continue };
            begun = false;
            let causes = chain.iter().rev().cloned().collect();
            chain.push(head.clone());
            found = Some(FoundTraceback { first, last: n, ends_innermost: true, head, causes });
        }
    }
    found
}

fn is_syntax(line: &str) -> bool {
    ["SyntaxError:", "IndentationError:", "TabError:"].iter().any(|name| line.starts_with(name))
}

/// Whether a line of an exception group is indented behind its bar.
fn is_python_body(line: &str) -> bool {
    let inside = line.trim_start().trim_start_matches(['|', '+']);
    inside.len() < line.trim_start().len() && (inside.starts_with("   ") || inside.starts_with('-'))
}

/// `app.rb:3:in 'charge': message (Type)`, then `from` lines; causes follow in the same form.
pub(super) fn ruby(lines: &[&str]) -> Option<FoundTraceback> {
    let mut found: Option<FoundTraceback> = None;
    let mut open = false;
    for (n, line) in lines.iter().enumerate() {
        if let Some(head) = ruby_head(line) {
            match found.as_mut().filter(|_| open) {
                Some(found) => {
                    found.causes.push(head);
                    found.last = n;
                }
                None => {
                    found = Some(FoundTraceback {
                        first: n,
                        last: n,
                        ends_innermost: false,
                        head,
                        causes: Vec::new(),
                    });
                    open = true;
                }
            }
        } else if let Some(found) = found.as_mut().filter(|_| open) {
            if line.trim_start().starts_with("from ") {
                found.last = n;
            } else {
                // Newer versions show the line of code between the message and the frames.
                open = line.is_empty() || line.starts_with([' ', '\t', '^']);
            }
        }
    }
    found
}

fn ruby_head(line: &str) -> Option<ErrorHead> {
    let (location, rest) =
        line.split_once(":in ").filter(|(location, _)| !location.starts_with([' ', '\t']))?;
    let (_, number) = location.rsplit_once(':')?;
    let (_, text) = rest.split_once("': ")?;
    let (message, error_type) = text.trim_end().strip_suffix(')')?.rsplit_once(" (")?;
    let is_head = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()) && is_type(error_type);
    is_head.then(|| ErrorHead { error_type: error_type.to_owned(), message: message.to_owned() })
}

/// `PHP Fatal error:  Uncaught Type: message in file:3`, `Stack trace:`, `#0 …`. Causes come first; the error that was
/// thrown last follows the last `Next`.
pub(super) fn php(lines: &[&str]) -> Option<FoundTraceback> {
    let mut found: Option<FoundTraceback> = None;
    for (n, line) in lines.iter().enumerate() {
        let (is_first, text) = match (line.split_once("Uncaught "), line.strip_prefix("Next ")) {
            (Some((before, text)), _) if before.contains("Fatal error:") => (true, text),
            (None | Some(_), Some(text)) => (false, text),
            (None | Some(_), None) => {
                let traced = line.starts_with("Stack trace:") || is_php_frame(line);
                if let Some(found) = found.as_mut().filter(|_| traced || line.starts_with("  thrown in ")) {
                    found.last = n;
                }
                continue;
            }
        };
        let text = text.rsplit_once(" in ").map_or(text, |(text, _)| text);
        let Some(head) = ErrorHead::parse(text) else { continue };
        match found.as_mut().filter(|_| !is_first) {
            Some(found) => {
                found.causes.insert(0, std::mem::replace(&mut found.head, head));
                found.last = n;
            }
            None if is_first => {
                found = Some(FoundTraceback {
                    first: n,
                    last: n,
                    ends_innermost: false,
                    head,
                    causes: Vec::new(),
                });
            }
            None => {}
        }
    }
    found
}

fn is_php_frame(line: &str) -> bool {
    line.strip_prefix('#')
        .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()) && rest.contains(' '))
}

/// `panic: message` or `fatal error: message`, then `goroutine 1 [running]:` and its frames. Panics raised while
/// another one was handled follow it, indented.
pub(super) fn go(lines: &[&str]) -> Option<FoundTraceback> {
    let mut found = None;
    let mut panics: Vec<(usize, ErrorHead)> = Vec::new();
    let mut tracing = false;
    for (n, line) in lines.iter().enumerate() {
        if let Some(head) = go_head(line) {
            if !line.starts_with('\t') {
                panics.clear();
            }
            panics.push((n, head));
            tracing = false;
        } else if line.starts_with("goroutine ") && line.ends_with("]:") && !panics.is_empty() {
            let first = panics.first().map_or(n, |(n, _)| *n);
            let mut heads = std::mem::take(&mut panics).into_iter().map(|(_, head)| head).rev();
            let Some(head) = heads.next() else { continue };
            found =
                Some(FoundTraceback { first, last: n, ends_innermost: false, head, causes: heads.collect() });
            tracing = true;
        } else if tracing {
            // The first goroutine is the one that failed; an empty line ends it.
            tracing = !line.is_empty();
            if let Some(found) = found.as_mut().filter(|_| tracing) {
                found.last = n;
            }
        }
    }
    found
}

fn go_head(line: &str) -> Option<ErrorHead> {
    let line = line.trim();
    let (error_type, message) = match line.strip_prefix("panic: ") {
        Some(message) => {
            message.strip_prefix("runtime error: ").map_or(("panic", message), |m| ("runtime.Error", m))
        }
        None => ("fatal error", line.strip_prefix("fatal error: ")?),
    };
    let message = message.strip_suffix(" [recovered]").unwrap_or(message);
    Some(ErrorHead { error_type: error_type.to_owned(), message: message.to_owned() })
}

/// `thread 'main' panicked at src/main.rs:3:5:` with the message on the next line, or both on one line as older
/// versions print it; then a backtrace, if one was requested.
pub(super) fn rust(lines: &[&str]) -> Option<FoundTraceback> {
    let mut found: Option<FoundTraceback> = None;
    let (mut message_lines, mut tracing) = (0, false);
    for (n, line) in lines.iter().enumerate() {
        let location = line.strip_prefix("thread ").and_then(|rest| rest.split_once(" panicked at "));
        if let Some((_, location)) = location {
            let old = location.strip_prefix('\'').and_then(|rest| rest.rsplit_once("', "));
            let message = old.map_or_else(String::new, |(message, _)| message.to_owned());
            message_lines = if old.is_some() { 0 } else { MESSAGE_LINES_MAX };
            tracing = false;
            let head = ErrorHead { error_type: "Panic".to_owned(), message };
            found =
                Some(FoundTraceback { first: n, last: n, ends_innermost: false, head, causes: Vec::new() });
            continue;
        }
        let Some(found) = found.as_mut() else { continue };
        if line.starts_with("stack backtrace:") {
            tracing = true;
        }
        if tracing && (line.starts_with(' ') || line.starts_with("stack backtrace:")) {
            message_lines = 0;
            found.last = n;
        } else if tracing || line.starts_with("note: ") {
            (tracing, message_lines) = (false, 0);
        } else if message_lines > 0 {
            // A message usually has one line; further lines are taken if they are indented, as those of an assertion.
            if message_lines == MESSAGE_LINES_MAX || line.starts_with(' ') {
                let separator = if found.head.message.is_empty() { "" } else { "\n" };
                found.head.message.push_str(separator);
                found.head.message.push_str(line.trim_end());
                found.last = n;
                message_lines -= 1;
            } else {
                message_lines = 0;
            }
        }
    }
    found
}
