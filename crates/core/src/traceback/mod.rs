//! Finds the last traceback in the output of a program: Python, JavaScript, Java and other JVM languages, .NET, Go,
//! Ruby, Rust and PHP. It knows only the shapes of lines, looks at a bounded part of the text, and reads its lines once
//! per language. If there is no traceback it returns `None`; it never guesses a type from an ordinary line.

mod at_frames;
mod scripts;

use crate::failure::ErrorInfo;
use crate::limits;
use crate::signature::{head, tail};

/// An error as a language prints it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traceback {
    /// The type or class, with its name in the program.
    pub error_type: String,
    /// The message, without the type.
    pub message: String,
    /// The lines of the traceback.
    pub stack: String,
    /// The underlying errors, nearest first, each as `Type: message`.
    pub causes: Vec<String>,
}

impl Traceback {
    /// Replaces the description of an error by this traceback; its code stays.
    pub fn apply_to(self, error: &mut ErrorInfo) {
        error.error_type = self.error_type;
        if !self.message.is_empty() {
            error.message = self.message;
        }
        error.stack = Some(self.stack);
        error.cause = (!self.causes.is_empty()).then(|| self.causes.join(": "));
    }
}

/// A traceback that was found, and its lines.
struct FoundTraceback {
    first: usize,
    last: usize,
    /// Whether the innermost call is printed last, so that of a long traceback the end is kept.
    ends_innermost: bool,
    head: ErrorHead,
    causes: Vec<ErrorHead>,
}

/// The type and message of an error.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ErrorHead {
    error_type: String,
    message: String,
}

impl ErrorHead {
    /// Parses `Type: message`, or a type alone, if the type looks like the name of one.
    fn parse(line: &str) -> Option<Self> {
        let line = line.trim();
        let (error_type, message) = match line.split_once(": ") {
            Some((name, message)) => (name, message.trim()),
            None => (line.trim_end_matches(':'), ""),
        };
        // `TypeError [ERR_INVALID_ARG]`: the code is Node's.
        let error_type = error_type.split_once(" [").map_or(error_type, |(name, _)| name);
        is_type(error_type).then(|| Self { error_type: error_type.to_owned(), message: message.to_owned() })
    }

    fn text(&self) -> String {
        if self.message.is_empty() {
            return self.error_type.clone();
        }
        format!("{}: {}", self.error_type, self.message)
    }
}

/// Whether a word can be the name of a type: letters, digits and the characters that join the parts of a path.
fn is_type(word: &str) -> bool {
    let joined = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.' | '$' | ':' | '\\' | '`' | '/');
    word.len() <= limits::LABEL_BYTES_MAX
        && word.starts_with(|c: char| c.is_alphabetic() || matches!(c, '_' | '\\'))
        && word.ends_with(|c: char| c.is_alphanumeric() || c == '_')
        && word.chars().all(joined)
}

/// The last traceback in a text, or `None` if there is none.
#[must_use]
pub fn last_traceback(text: &str) -> Option<Traceback> {
    let text = tail(text, limits::TRACEBACK_BYTES_MAX);
    let lines: Vec<&str> = text.lines().collect();
    let found = [
        scripts::python(&lines),
        scripts::ruby(&lines),
        scripts::php(&lines),
        scripts::go(&lines),
        scripts::rust(&lines),
        at_frames::find(&lines),
    ];
    let found = found.into_iter().flatten().max_by_key(|found| (found.last, found.first))?;
    let stack = lines.get(found.first..=found.last).unwrap_or_default().join("\n");
    let stack = match found.ends_innermost {
        true => tail(&stack, limits::STACK_BYTES_MAX),
        false => head(&stack, limits::STACK_BYTES_MAX),
    };
    Some(Traceback {
        error_type: found.head.error_type,
        message: head(&found.head.message, limits::ERROR_MESSAGE_BYTES_MAX).to_owned(),
        stack: stack.to_owned(),
        causes: found.causes.iter().take(limits::CAUSES_MAX).map(ErrorHead::text).collect(),
    })
}

#[cfg(test)]
mod tests;
