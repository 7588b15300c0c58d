//! What kind of failure an error is, judged from that error alone: a table of well-known words and codes,
//! read from top to bottom, the first match wins.
//!
//! It must not look at other failures: whether a cause is systematic or a message is poison shows only in
//! many of them, so those two categories never come from here. It must not fail: what nothing matches is
//! taken for a mistake in the handler, which trying again does not mend.

use crate::failure::{Category, ErrorInfo, Recoverability, Route, Severity};
use crate::signature::head;

/// Bytes of each text that are looked at. What names the cause stands near the beginning.
const SCAN_BYTES_MAX: usize = 2 * 1024;

/// What redrives and operators taught about a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Lessons {
    /// Redriven and done.
    pub redriven_ok: u32,
    /// Redriven and dead again.
    pub redriven_failed: u32,
    /// Closed as resolved by people.
    pub resolved: u32,
    /// Given up by people.
    pub abandoned: u32,
    /// What an operator said it is.
    pub said: Option<Category>,
}

impl Lessons {
    /// Both together.
    #[must_use]
    pub fn joined(&self, other: &Self) -> Self {
        Self {
            redriven_ok: self.redriven_ok.saturating_add(other.redriven_ok),
            redriven_failed: self.redriven_failed.saturating_add(other.redriven_failed),
            resolved: self.resolved.saturating_add(other.resolved),
            abandoned: self.abandoned.saturating_add(other.abandoned),
            said: self.said.or(other.said),
        }
    }
}

/// What is thought of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class {
    /// What kind of failure.
    pub category: Category,
    /// Which part of the world failed.
    pub route: Route,
    /// How bad it is.
    pub severity: Severity,
    /// What it takes to make the message succeed.
    pub recoverability: Recoverability,
}

impl Class {
    /// How bad it is and what it takes follow from the category.
    pub(crate) const fn new(category: Category, route: Route) -> Self {
        let (severity, recoverability) = match category {
            Category::Transient => (Severity::Low, Recoverability::Automatic),
            Category::Persistent => (Severity::Medium, Recoverability::Manual),
            Category::Resource => (Severity::High, Recoverability::Automatic),
            Category::Poison => (Severity::High, Recoverability::Unlikely),
            Category::Systematic => (Severity::Critical, Recoverability::Manual),
        };
        Self { category, route, severity, recoverability }
    }
}

/// A line of the table. Words are looked for anywhere in the text. Codes count as the code of the error and,
/// unless they are mere numbers, as whole words of the text: `enotfound` is not in `FileNotFoundError`.
struct Rule {
    category: Category,
    route: Route,
    codes: &'static [&'static str],
    words: &'static [&'static str],
}

/// The table, in lower case. The specific stands before the general: a full connection pool says "timed
/// out" as well, a missing host says "not found" as well, an expired certificate is no broken connection.
#[rustfmt::skip]
const RULES: [Rule; 12] = [
    // 137 is what a process killed by signal 9 exits with, on Linux nearly always for its use of memory.
    Rule { category: Category::Resource, route: Route::Agent,
        codes: &["137", "oomkilled", "sigkill"], words: &[] },
    Rule { category: Category::Resource, route: Route::System,
        codes: &["507", "53000", "53100", "53200", "53300", "53400", "enomem", "enospc", "emfile", "enfile",
            "quota", "insufficient_quota", "resource_exhausted"],
        words: &["out of memory", "outofmemory", "memoryerror", "heap space", "cannot allocate",
            "unable to allocate", "no space left", "disk full", "too many open files", "too many connections",
            "pool limit", "pool exhausted", "pool is full", "quotaexceeded", "resource exhausted"] },
    Rule { category: Category::Transient, route: Route::Network,
        codes: &["429"],
        words: &["rate limit", "rate_limit", "ratelimit", "too many requests", "throttl"] },
    Rule { category: Category::Transient, route: Route::System,
        codes: &["40001", "40p01", "55p03", "sqlite_busy"],
        words: &["deadlock", "lock wait timeout", "could not serialize", "serialization failure",
            "database is locked"] },
    Rule { category: Category::Persistent, route: Route::Corruption,
        codes: &["422", "data_loss"],
        words: &["checksum", "crc32", "corrupt", "jsondecode", "invalid json", "unexpected token",
            "end of json", "parse error", "parseerror", "malformed", "deserializ", "unmarshal", "serde_json",
            "decodeerror", "decode error", "can't decode", "cannot decode", "invalid utf-8", "missing field",
            "unknown field", "validationerror", "validation error", "validation failed"] },
    Rule { category: Category::Persistent, route: Route::Network,
        codes: &["cert_has_expired"], words: &["certificate", "unsupported protocol", "invalid url"] },
    Rule { category: Category::Transient, route: Route::Agent,
        codes: &[], words: &["no healthy", "agentunavailable", "agent unavailable", "worker lost"] },
    Rule { category: Category::Transient, route: Route::Network,
        codes: &["500", "502", "503", "08000", "08001", "08003", "08006", "unavailable", "econnrefused",
            "econnreset", "econnaborted", "epipe", "enotfound", "eai_again", "ehostunreach", "enetunreach"],
        words: &["connection refused", "connection reset", "connection aborted", "connection closed",
            "connection lost", "closed connection", "server closed", "broken pipe", "socket hang up",
            "name resolution", "getaddrinfo", "no such host", "unknownhost", "could not resolve",
            "no route to host", "network is unreachable", "bad gateway", "internal server error",
            "handshake"] },
    Rule { category: Category::Persistent, route: Route::System,
        codes: &["401", "402", "403", "404", "405", "410", "501", "28000", "28p01", "42501", "42p01", "42703",
            "23502", "23503", "23505", "23514", "unauthenticated", "permission_denied", "not_found", "eacces",
            "eperm", "enoent"],
        words: &["permission denied", "permissionerror", "access denied", "accessdenied", "unauthorized",
            "forbidden", "authentication failed", "invalid api key", "invalid credentials", "not found",
            "no such file", "does not exist", "duplicate key", "unique constraint", "foreign key",
            "integrityerror", "constraint violat", "constraint failed", "environment variable"] },
    // 124 is what timeout(1) exits with, 57014 a cancelled statement.
    Rule { category: Category::Transient, route: Route::Timeout,
        codes: &["408", "504", "124", "57014", "deadline_exceeded", "etimedout"],
        words: &["timed out", "timeout", "deadline exceeded", "deadlineexceeded", "time limit"] },
    Rule { category: Category::Transient, route: Route::System,
        codes: &["409", "eagain"], words: &["try again", "temporarily", "temporary failure"] },
    // What only calls itself an error of the network, without saying which.
    Rule { category: Category::Transient, route: Route::Network,
        codes: &[], words: &["connectionerror", "protocolerror", "networkerror"] },
];

/// Judges an error by its type, code, message and cause.
#[must_use]
pub fn classify(error: &ErrorInfo) -> Class {
    // These two the system reports itself; their text is for people and says nothing more.
    match error.error_type.as_str() {
        "LeaseExpired" => return Class::new(Category::Transient, Route::Agent),
        "TooLate" => return Class::new(Category::Transient, Route::Timeout),
        _ => {}
    }
    let code = head(error.code.as_deref().unwrap_or_default(), SCAN_BYTES_MAX).trim().to_lowercase();
    let cause = error.cause.as_deref().unwrap_or_default();
    let parts = [error.error_type.as_str(), &error.message, cause];
    let text = parts.map(|part| head(part, SCAN_BYTES_MAX).to_lowercase()).join("\n");
    let has_word =
        |wanted: &str| text.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == wanted);
    let has_code = |wanted: &&str| code == **wanted || (wanted.parse::<u32>().is_err() && has_word(wanted));
    let matches = |rule: &&Rule| {
        rule.codes.iter().any(has_code)
            || rule.words.iter().any(|word| text.contains(word) || code.contains(word))
    };
    let found = RULES.iter().find(matches);
    found.map_or(Class::new(Category::Persistent, Route::Agent), |rule| Class::new(rule.category, rule.route))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(error_type: &str, code: &str, message: &str) -> (Category, Route) {
        let class = classify(&ErrorInfo {
            error_type: error_type.into(),
            code: (!code.is_empty()).then(|| code.into()),
            message: message.into(),
            ..ErrorInfo::default()
        });
        (class.category, class.route)
    }

    #[test]
    fn the_errors_everybody_meets_are_known() {
        use {Category::*, Route::*};
        for (error_type, code, message, wanted) in [
            ("LeaseExpired", "", "the worker did not settle before its lease ran out", (Transient, Agent)),
            ("TooLate", "", "the ttl ended before the message was done", (Transient, Timeout)),
            ("io::Error", "", "Connection refused (os error 111)", (Transient, Network)),
            ("Error", "ENOTFOUND", "getaddrinfo ENOTFOUND db.internal", (Transient, Network)),
            ("HttpError", "429", "slow down", (Transient, Network)),
            ("HttpError", "403", "no", (Persistent, System)),
            ("FileNotFoundError", "", "No such file or directory: 'systemfile'", (Persistent, System)),
            ("QuotationError", "", "no price in quotation 429", (Persistent, Agent)),
            ("TimeoutError", "", "", (Transient, Timeout)),
            ("PoolError", "", "pool exhausted: timed out waiting for a connection", (Resource, System)),
            ("OSError", "ENOSPC", "write failed", (Resource, System)),
            ("CommandFailed", "137", "killed", (Resource, Agent)),
            ("SQLException", "40001", "restart transaction", (Transient, System)),
            ("DecodeError", "", "unexpected end of JSON input", (Persistent, Corruption)),
            ("SSLError", "", "certificate has expired", (Persistent, Network)),
            ("IndexError", "", "list index out of range", (Persistent, Agent)),
            ("", "", "", (Persistent, Agent)),
        ] {
            assert_eq!(judge(error_type, code, message), wanted, "{error_type} {code} {message}");
        }
    }

    #[test]
    fn a_long_or_strange_text_is_looked_at_in_part() {
        let text = format!("\u{0}\u{fffd}é{}timeout", "ß".repeat(1_000_000));
        assert_eq!(judge(&text, &text, &text), (Category::Persistent, Route::Agent));
    }

    #[test]
    fn the_cause_beneath_counts() {
        let error = ErrorInfo { cause: Some("Connection reset by peer".into()), ..ErrorInfo::default() };
        assert_eq!(classify(&error), Class::new(Category::Transient, Route::Network));
    }

    #[test]
    fn severity_and_recoverability_follow_the_category() {
        let class = |category| Class::new(category, Route::Agent);
        assert_eq!(class(Category::Transient).severity, Severity::Low);
        assert_eq!(class(Category::Resource).severity, Severity::High);
        assert_eq!(class(Category::Resource).recoverability, Recoverability::Automatic);
        assert_eq!(class(Category::Persistent).recoverability, Recoverability::Manual);
    }

    #[test]
    fn the_table_is_in_lower_case_or_it_would_never_match() {
        for word in RULES.iter().flat_map(|rule| rule.codes.iter().chain(rule.words)) {
            assert_eq!(*word, word.to_lowercase());
            assert!(!word.is_empty());
        }
    }
}
