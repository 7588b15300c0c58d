//! The stable form of an error: what stays the same when the same cause makes another message fail.
//!
//! 1. [`mask`] replaces the varying parts of the error message by `<kind>`. The result is the template.
//! 2. The function of the topmost frame in the application's own code is found in the stack.
//! 3. [`Signature::of`] hashes both, with error type and code, into a leaf. The same error has the same leaf on every
//!    host and in every run.
//! 4. The [`Tree`] knows all leaves and decides which of them differ only in a word that varies: they are one group.
//!    Which leaves are together depends on which leaves are known, not on the order in which they came.
//! 5. With [`SignatureRules`] an operator decides instead. [`explain`](explain()) says why two failures are together or
//!    apart, and [`variables`] lists the values of the varying parts.
//!
//! This module must not panic on any input, look at more than a bounded part of it, or depend on anything but the error
//! itself and the known leaves. It does not judge the error (`classify` does) and it does not redact: the constant
//! parts of a message are kept as they are.

mod explain;
mod frame;
mod kinds;
mod mask;
mod rules;
mod slots;
mod tree;
mod words;

pub use explain::{Explanation, Variable, explain, variables};
pub use frame::is_foreign_frame;
pub use mask::mask;
pub use rules::{RuleError, SignatureRule, SignatureRules};
pub use tree::{LeafPlacement, Tree, common_template};

use crate::failure::ErrorInfo;
use crate::ids::LeafId;
use crate::limits;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Part of every leaf: incrementing it when the masking changes keeps old and new leaves apart.
pub const VERSION: u8 = 2;

/// The marks that replace varying parts in a template.
pub const MARKS: [&str; 13] = [
    "<str>", "<url>", "<email>", "<uuid>", "<time>", "<ip>", "<path>", "<num>", "<hex>", "<id>", "<host>",
    "<mac>", "<base64>",
];

/// What failures of the same cause have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// The hash of the other fields.
    pub leaf: LeafId,
    /// The message with its varying parts replaced by `<kind>`.
    pub template: String,
    /// The type or class name of the error.
    pub error_type: String,
    /// The error code, if there is one and it is not empty.
    pub code: Option<String>,
    /// The function of the topmost frame in the application's own code, without file, line and address.
    pub frame: Option<String>,
    /// The pattern of the operator's rule that made the template, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
}

impl Signature {
    /// The signature of an error, without an operator's rules.
    #[must_use]
    pub fn of(error: &ErrorInfo) -> Self {
        Self::with_template(error, mask(&error.message))
    }

    /// The signature of an error with a given template.
    fn with_template(error: &ErrorInfo, template: String) -> Self {
        let error_type = label(&error.error_type);
        let code = error.code.as_deref().map(label).filter(|code| !code.is_empty());
        let frame = error.stack.as_deref().and_then(frame::own_function);
        let (code_text, frame_text) = (code.as_deref().unwrap_or(""), frame.as_deref().unwrap_or(""));
        let leaf = hashed(VERSION, &[error_type.as_str(), code_text, template.as_str(), frame_text]);
        Self { leaf, template, error_type, code, frame, rule: None }
    }
}

/// The leaf of a list of parts. No part contains a zero byte, so different lists are never hashed alike.
fn hashed(version: u8, parts: &[&str]) -> LeafId {
    let mut hash = Sha256::new_with_prefix([version, 0]);
    for part in parts {
        hash.update(part.as_bytes());
        hash.update([0]);
    }
    LeafId::new(hash.finalize().iter().take(8).fold(0, |n: u64, byte| (n << 8) | u64::from(*byte)))
}

/// The longest prefix that fits into `bytes_max` and ends between two characters.
pub(crate) fn head(text: &str, bytes_max: usize) -> &str {
    (0..=bytes_max.min(text.len())).rev().find_map(|end| text.get(..end)).unwrap_or_default()
}

/// The longest suffix that fits into `bytes_max` and starts between two characters.
pub(crate) fn tail(text: &str, bytes_max: usize) -> &str {
    (text.len().saturating_sub(bytes_max)..=text.len()).find_map(|at| text.get(at..)).unwrap_or_default()
}

/// A name, cut to the maximum length and on one line.
fn label(text: &str) -> String {
    head(text, limits::LABEL_BYTES_MAX).replace(char::is_control, " ").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(message: &str) -> ErrorInfo {
        ErrorInfo { error_type: "E".into(), message: message.into(), ..ErrorInfo::default() }
    }

    #[test]
    fn each_kind_of_varying_part_has_its_mark() {
        for (text, wanted) in [
            ("no 01981c3e-7d5a-7cc0-8b1f-3a52c0ffee00 here", "no <uuid> here"),
            ("task_01981C3E-7D5A-7CC0-8B1F-3A52C0FFEE00", "task_<uuid>"),
            ("at 0x7ffe, sha 9fceb02d0ae598e95dc970b74767f19372d61af8", "at <hex>, sha <hex>"),
            ("Foo@1b2c3 deadbeef facade 12abcdef", "Foo@<hex> deadbeef facade <hex>"),
            ("3 of -4.5, +6 1,000,000 1e-9 50% [7]", "<num> of <num>, <num> <num> <num> <num> [<num>]"),
            ("took 13 ms or 1h30m, 7.45 GiB of 134217728B", "took <num> or <num>, <num> of <num>"),
            ("v1.2.3 worker12 db-3 k8s p2p 1.2rc1", "v<num> worker<num> db-<num> k8s p2p <num>.<id>"),
            ("10.0.0.1:80 [::1]:443 fe80::1: no", "<ip> <ip> <ip>: no"),
            ("to /10.0.0.1:80, 300.1.1.1, a::b", "to /<ip>, <num>, a::b"),
            ("GET https://a.b/c?d=e#f. jdbc:pg://u:p@h/d", "GET <url>. jdbc:<url>"),
            ("mail a.b+c@example.org, a@b", "mail <email>, a@b"),
            (
                "open /etc/app/x.yaml: no ~/x ./y src/a.rs:4:2",
                "open <path>: no <path> <path> <path>:<num>:<num>",
            ),
            (r"C:\a\b.txt \\srv\share x/y/z GET /v1/i?a=1", "<path> <path> <path> GET <path>"),
            ("read/write and/or I/O 3/4 a / b </p>", "read/write and/or I/O <num>/<num> a / b </p>"),
            ("2026-01-31T12:00:00.5+01:00 2026-01-31 12:00:00,123 UTC", "<time> <time>"),
            ("on 2026-01-31 at 23:59:59.", "on <time> at <time>."),
            ("order-4411 ORDER#7 blk_-38 cus_9a8f7", "order-<num> ORDER#<num> blk_<num> cus_<id>"),
            (
                "user=bob id=a-4 n=5 t= ok (k=v.w): x = y",
                "user=<str> id=<str> n=<num> t= ok (k=<str>): x = y",
            ),
        ] {
            assert_eq!(mask(text), wanted, "{text}");
        }
    }

    #[test]
    fn quotes_mask_what_they_enclose_and_nothing_else() {
        for (text, wanted) in [
            ("no 'a b' \"c\" `d` `e' ‘f’ “g” ''", "no <str> <str> <str> <str> <str> <str> <str>"),
            (r#"f("a \"b\" c", 'it's', k="v")"#, "f(<str>, <str>, k=<str>)"),
            ("can't read users' data of 5", "can't read users' data of <num>"),
            ("an \"open one 17", "an \"open one <num>"),
            ("an 'open one\nand 'another", "an 'open one and 'another"),
            ("'", "'"),
        ] {
            assert_eq!(mask(text), wanted, "{text}");
        }
    }

    #[test]
    fn white_space_and_control_characters_become_one_space() {
        assert_eq!(mask("  a \r\n\t b\u{0}\u{1b}[0m c \n"), "a b [<num> c");
    }

    #[test]
    fn the_same_cause_has_the_same_leaf() {
        let (a, b) =
            (error("order-4411 of 'bob' failed after 3 s"), error("order-9 of 'al x'\n failed after 1.5 ms"));
        assert_eq!(Signature::of(&a), Signature::of(&b));
        let stack = |line: u32| Some(format!("  File \"/app/{line}.py\", line {line}, in charge"));
        let (a, b) = (ErrorInfo { stack: stack(3), ..a }, ErrorInfo { stack: stack(4), ..b });
        assert_eq!(Signature::of(&a).leaf, Signature::of(&b).leaf);
    }

    #[test]
    fn type_code_template_and_frame_each_tell_causes_apart() {
        let base = error("x");
        let others = [
            error("y"),
            ErrorInfo { error_type: "F".into(), ..base.clone() },
            ErrorInfo { code: Some("7".into()), ..base.clone() },
            ErrorInfo { stack: Some("a.rb:1:in `f'".into()), ..base.clone() },
            ErrorInfo {
                error_type: "E\0".into(),
                message: String::new(),
                code: Some("x".into()),
                ..base.clone()
            },
        ];
        let mut leaves: Vec<LeafId> = others.iter().chain([&base]).map(|e| Signature::of(e).leaf).collect();
        leaves.sort_unstable();
        leaves.dedup();
        assert_eq!(leaves.len(), 6);
        let empty = ErrorInfo { code: Some(" ".into()), ..base.clone() };
        assert_eq!(Signature::of(&empty), Signature::of(&base), "an empty code is none");
    }

    /// Leaves are stored. If this test fails, the masking has changed and `VERSION` must change too.
    #[test]
    fn a_leaf_never_changes() {
        assert_eq!(Signature::of(&error("order-4411")).leaf.to_string(), "84a744040e7a7c03");
    }

    #[test]
    fn long_messages_are_masked_in_part_and_still_group() {
        let long = |n: usize, tail: &str| {
            mask(&format!("id {} failed: {} {tail}", "7".repeat(n), "lorem ".repeat(300)))
        };
        assert_eq!(long(1, "a"), long(30, "b"));
        for text in ["é".repeat(5_000), "1 ".repeat(5_000), "a".repeat(5_000), "''".repeat(5_000)] {
            assert!(
                !mask(&text).is_empty() && mask(&text).len() <= limits::TEMPLATE_BYTES_MAX,
                "{}",
                mask(&text)
            );
        }
    }

    #[test]
    fn no_input_panics_or_exceeds_the_limits() {
        #[rustfmt::skip]
        let seeds = [
            "", "'", "\"", "`", "\\", "'\\", "\u{0}", "\u{7f}", "é", "日本", "\u{202e}", "\u{fffd}", "½", "٣",
            "-", "+", ".", "..", "/", "//", "./", "\\\\", "C:\\", ":", "::", "[", "[::", "@", "a@", "0x",
            "0", "1e", "1e-", "1.", "://", "a://", "=", "a=", "a==", "<", "2026-01-3", "2026-01-31T",
            "12:00:0", "1.2.3.4:", "µ", "5µ", "5é", "at ", "at (", "\tat (", "File \"",
            "File \"\", line , in ", "1: ::", "1: ::h0123456789abcdef", ":in `", "\n\t.go:", "x.(\n\t.go:",
        ];
        let check = |text: String| {
            let (code, stack) = (Some(text.clone()), Some(text.clone()));
            let found = Signature::of(&ErrorInfo { code, stack, ..error(&text) });
            assert!(found.template.len() <= limits::TEMPLATE_BYTES_MAX, "{text:?}");
            assert!(!found.template.contains(char::is_control) && !found.template.contains("  "), "{text:?}");
            assert!(
                found.frame.is_none_or(|f| !f.is_empty() && f.len() <= limits::LABEL_BYTES_MAX),
                "{text:?}"
            );
        };
        for a in seeds {
            check(a.repeat(3_000));
            for b in seeds {
                check(format!("{a}{b}"));
                check(format!("{a} {b}{a}"));
            }
        }
        // Pseudo-random bytes, the same ones in every run.
        let mut state = 1_u32;
        for len in 0..2_000_usize {
            let bytes: Vec<u8> = (0..len % 300)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    state.to_be_bytes()[0]
                })
                .collect();
            let text = String::from_utf8_lossy(&bytes);
            assert_eq!(Signature::of(&error(&text)), Signature::of(&error(&text)));
        }
    }
}
