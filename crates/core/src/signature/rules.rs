//! Rules of the operator that decide which failures are the same: each maps a pattern to a fingerprint. All failures
//! that match a rule are one group, whatever else they contain.
//!
//! The patterns are untrusted: they are compiled within limits, and matching takes linear time whatever the pattern and
//! the text are.

use super::{Signature, VERSION, hashed, head, label};
use crate::failure::ErrorInfo;
use crate::limits;
use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

/// A rule as it is written in a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignatureRule {
    /// A regular expression that is matched against `type: message`.
    #[serde(rename = "match")]
    pub pattern: String,
    /// The template that all matches get; `$1` stands for the first capture group.
    pub fingerprint: String,
}

/// Why rules were refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuleError {
    /// There are too many rules.
    #[error("there are {0} signature rules, at most {max} are allowed", max = limits::SIGNATURE_RULES_MAX)]
    TooMany(usize),
    /// A rule is invalid.
    #[error("signature rule {number}: {what}")]
    Invalid {
        /// The number of the rule, from 1.
        number: usize,
        /// What is wrong.
        what: String,
    },
}

/// Compiled rules; the first that matches applies.
#[derive(Clone, Debug, Default)]
pub struct SignatureRules {
    rules: Vec<(Regex, SignatureRule)>,
}

impl SignatureRules {
    /// Compiles rules.
    ///
    /// # Errors
    /// [`RuleError`] if there are too many rules, or one is too long, not a regular expression, too large when
    /// compiled, or has an empty fingerprint.
    pub fn compile(rules: &[SignatureRule]) -> Result<Self, RuleError> {
        if rules.len() > limits::SIGNATURE_RULES_MAX {
            return Err(RuleError::TooMany(rules.len()));
        }
        let compiled = rules.iter().enumerate().map(|(at, rule)| {
            let invalid = |what: String| RuleError::Invalid { number: at + 1, what };
            let max = limits::SIGNATURE_RULE_BYTES_MAX;
            if rule.pattern.len() > max || rule.fingerprint.len() > max {
                return Err(invalid(format!("it is longer than {max} bytes")));
            }
            if label(&rule.fingerprint).is_empty() {
                return Err(invalid("its fingerprint is empty".into()));
            }
            let regex = RegexBuilder::new(&rule.pattern)
                .size_limit(limits::SIGNATURE_RULE_COMPILED_MAX)
                .dfa_size_limit(limits::SIGNATURE_RULE_COMPILED_MAX)
                .nest_limit(limits::SIGNATURE_RULE_DEPTH_MAX)
                .build()
                .map_err(|error| invalid(error.to_string()))?;
            Ok((regex, rule.clone()))
        });
        Ok(Self { rules: compiled.collect::<Result<_, _>>()? })
    }

    /// Whether there are no rules.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// The fingerprint of an error that matches a rule, and the pattern of that rule.
    fn fingerprint(&self, error: &ErrorInfo) -> Option<(String, String)> {
        if self.rules.is_empty() {
            return None;
        }
        let text = format!("{}: {}", label(&error.error_type), head(&error.message, limits::SCAN_BYTES_MAX));
        self.rules.iter().find_map(|(regex, rule)| {
            let found = regex.captures(&text)?;
            let mut fingerprint = String::new();
            found.expand(&rule.fingerprint, &mut fingerprint);
            let fingerprint = label(&fingerprint);
            // If the capture groups matched nothing, the fingerprint of the rule is used as it is.
            let fingerprint = if fingerprint.is_empty() { label(&rule.fingerprint) } else { fingerprint };
            Some((fingerprint, rule.pattern.clone()))
        })
    }
}

impl Signature {
    /// The signature of an error, by the first rule that matches or else by its wording.
    #[must_use]
    pub fn with_rules(error: &ErrorInfo, rules: &SignatureRules) -> Self {
        let Some((fingerprint, pattern)) = rules.fingerprint(error) else { return Self::of(error) };
        let leaf = hashed(VERSION, &["rule", &fingerprint]);
        Self { leaf, rule: Some(pattern), ..Self::with_template(error, fingerprint) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(pattern: &str, fingerprint: &str) -> SignatureRule {
        SignatureRule { pattern: pattern.into(), fingerprint: fingerprint.into() }
    }

    fn error(error_type: &str, message: &str) -> ErrorInfo {
        ErrorInfo { error_type: error_type.into(), message: message.into(), ..ErrorInfo::default() }
    }

    #[test]
    fn all_matches_of_a_rule_are_one_leaf_and_the_first_rule_counts() {
        let rules = SignatureRules::compile(&[
            rule("(?i)deadlock", "deadlock"),
            rule(r"^Http\w*: (\d)\d\d", "http ${1}xx"),
            rule(".*lock.*", "never for deadlocks"),
        ])
        .unwrap();
        let a = Signature::with_rules(&error("PgError", "Deadlock detected on orders"), &rules);
        let b = Signature::with_rules(&error("MySql", "deadlock found"), &rules);
        assert_eq!((a.leaf, a.template.as_str()), (b.leaf, "deadlock"));
        assert_eq!(b.rule.as_deref(), Some("(?i)deadlock"));
        let http = |n: &str| Signature::with_rules(&error("HttpError", n), &rules);
        assert_eq!(http("503 from a").leaf, http("500 from b").leaf);
        assert_eq!(http("404 x").template, "http 4xx");
        let none = error("HttpError", "no code");
        assert_eq!(Signature::with_rules(&none, &rules), Signature::of(&none));
        assert_eq!(Signature::with_rules(&none, &SignatureRules::default()), Signature::of(&none));
    }

    #[test]
    fn bad_rules_are_refused_and_say_why() {
        let refused = |rules: &[SignatureRule]| SignatureRules::compile(rules).unwrap_err().to_string();
        assert!(refused(&[rule("a", "x"), rule("(", "x")]).contains("rule 2"));
        assert!(refused(&[rule("a", " ")]).contains("fingerprint is empty"));
        assert!(refused(&[rule(&"a".repeat(5_000), "x")]).contains("longer than"));
        assert!(refused(&vec![rule("a", "x"); 1_000]).contains("1000 signature rules"));
        assert!(refused(&[rule(r"((\w{1000}){1000}){1000}", "x")]).contains("rule 1"), "too large compiled");
        assert!(
            refused(&[rule(&format!("{}a{}", "(".repeat(200), ")".repeat(200)), "x")]).contains("rule 1")
        );
        assert!(refused(&[rule(r"(a)\1", "x")]).contains("rule 1"), "no back references");
    }

    /// Patterns on which backtracking engines take exponential time.
    #[test]
    fn hostile_patterns_take_linear_time() {
        let rules =
            SignatureRules::compile(&[rule(r"(a+)+!", "x"), rule(r"(a|a)*b", "x"), rule("(.*)*c", "x")]);
        let text = "a".repeat(1_000_000) + "!";
        assert_eq!(Signature::with_rules(&error("E", &text), &rules.unwrap()).rule, None);
    }
}
