//! The user's own patterns, from the configuration. They come before everything else, and the first that matches
//! counts. Only such a pattern, never the classifier, can call an error permanent.
//!
//! The expressions are untrusted: they run in linear time, and one that is too large when compiled is refused with its
//! number and name.

use crate::error::Refusal;
use crate::failure::{Category, ErrorInfo, Route, Severity};
use crate::limits;
use crate::policy::glob_matches;
use crate::signature::head;
use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

/// How many bytes of a message are matched.
const SCAN_BYTES_MAX: usize = 8 * 1024;

/// A pattern in the configuration. All conditions that are given must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PatternSpec {
    /// The name in reasons. Defaults to its number.
    pub name: Option<String>,
    /// A regular expression that must match somewhere in the message or in the cause.
    #[serde(rename = "match")]
    pub matches: Option<String>,
    /// The error type; `*` stands for anything.
    pub error_type: Option<String>,
    /// The exact code.
    pub code: Option<String>,
    /// The category of such an error.
    pub category: Option<Category>,
    /// The route of such an error.
    pub route: Option<Route>,
    /// The severity of such an error.
    pub severity: Option<Severity>,
    /// Whether trying again is useless.
    pub permanent: bool,
}

#[derive(Clone, Debug)]
struct Pattern {
    spec: PatternSpec,
    name: String,
    expression: Option<Regex>,
}

/// Compiled patterns; none by default.
#[derive(Clone, Debug, Default)]
pub struct Patterns {
    list: Vec<Pattern>,
}

impl Patterns {
    /// Checks and compiles patterns.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] for the first invalid pattern, with its number and name.
    pub fn compile(specs: &[PatternSpec]) -> Result<Self, Refusal> {
        if specs.len() > limits::PATTERNS_MAX {
            let reason = format!("{} patterns are more than {}", specs.len(), limits::PATTERNS_MAX);
            return Err(Refusal::invalid("classify.pattern", reason));
        }
        let compiled = specs.iter().enumerate().map(|(at, spec)| Pattern::compile(at + 1, spec));
        Ok(Self { list: compiled.collect::<Result<_, _>>()? })
    }

    /// Whether there are no patterns.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The first pattern that matches, with its name.
    pub(super) fn find(&self, error: &ErrorInfo) -> Option<(&PatternSpec, &str)> {
        let found = self.list.iter().find(|pattern| pattern.is_match(error))?;
        Some((&found.spec, &found.name))
    }
}

impl Pattern {
    fn compile(number: usize, spec: &PatternSpec) -> Result<Self, Refusal> {
        let name = spec.name.as_ref().map_or(format!("{number}"), |name| {
            format!("{number} ({})", head(name, limits::NAME_BYTES_MAX).replace(char::is_control, " "))
        });
        let invalid = |reason: String| Refusal::invalid(format!("classify.pattern {name}"), reason);
        if spec.matches.is_none() && spec.error_type.is_none() && spec.code.is_none() {
            return Err(invalid("has no condition; give match, error_type or code".into()));
        }
        if spec.category.is_none() && spec.route.is_none() && spec.severity.is_none() && !spec.permanent {
            return Err(invalid("says nothing; give category, route, severity or permanent = true".into()));
        }
        if let Some(category @ (Category::Systematic | Category::Poison)) = spec.category {
            return Err(invalid(format!(
                "category {category} is seen only in many failures; permanent = true may be meant"
            )));
        }
        if spec.route == Some(Route::Poison) {
            return Err(invalid("route poison is seen only in many failures".into()));
        }
        let too_long =
            |text: &Option<String>| text.as_ref().is_some_and(|t| t.len() > limits::PATTERN_BYTES_MAX);
        if too_long(&spec.matches) || too_long(&spec.error_type) || too_long(&spec.code) {
            return Err(invalid(format!("longer than {} bytes", limits::PATTERN_BYTES_MAX)));
        }
        let compile = |text: &String| {
            let mut builder = RegexBuilder::new(text);
            builder
                .size_limit(limits::PATTERN_SIZE_MAX)
                .dfa_size_limit(limits::PATTERN_SIZE_MAX)
                .nest_limit(32);
            builder.build().map_err(|error| {
                if matches!(error, regex::Error::CompiledTooBig(_)) {
                    return invalid("match is too large when compiled; use smaller counts".into());
                }
                let text = error.to_string();
                invalid(format!("match: {}", text.lines().last().unwrap_or_default().trim()))
            })
        };
        let expression = spec.matches.as_ref().map(compile).transpose()?;
        Ok(Self { spec: spec.clone(), name, expression })
    }

    fn is_match(&self, error: &ErrorInfo) -> bool {
        let of_type = self.spec.error_type.as_ref().is_none_or(|glob| glob_matches(glob, &error.error_type));
        let of_code = self.spec.code.as_ref().is_none_or(|code| error.code.as_ref() == Some(code));
        let in_text = |expression: &Regex| {
            let texts = [error.message.as_str(), error.cause.as_deref().unwrap_or_default()];
            texts.iter().any(|text| expression.is_match(head(text, SCAN_BYTES_MAX)))
        };
        of_type && of_code && self.expression.as_ref().is_none_or(in_text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(matches: &str) -> PatternSpec {
        PatternSpec { matches: Some(matches.into()), permanent: true, ..PatternSpec::default() }
    }

    #[test]
    fn hostile_patterns_are_refused_by_number_and_name() {
        for (bad, why) in [
            (spec("("), "pattern 2"),
            (spec("a{1000000}"), "match"),
            (spec("((a{100}){100}){100}"), "too large"),
            (spec(&"x".repeat(1 << 20)), "longer than"),
            (spec(&"(".repeat(500)), "match"),
            (PatternSpec { permanent: true, ..PatternSpec::default() }, "no condition"),
            (PatternSpec { permanent: false, ..spec("a") }, "says nothing"),
            (PatternSpec { category: Some(Category::Poison), ..spec("a") }, "only in many"),
            (PatternSpec { route: Some(Route::Poison), ..spec("a") }, "only in many"),
        ] {
            let bad = PatternSpec { name: Some("mine".into()), ..bad };
            let error = Patterns::compile(&[spec("good"), bad]).unwrap_err().to_string();
            assert!(
                error.contains("pattern 2 (mine)") && error.contains(why) || why == "pattern 2",
                "{error}"
            );
        }
        assert!(Patterns::compile(&vec![spec("a"); limits::PATTERNS_MAX + 1]).is_err());
    }

    #[test]
    fn an_expression_with_exponential_backtracking_elsewhere_is_quick() {
        let patterns = Patterns::compile(&[spec("^(a+)+$")]).unwrap();
        let error = ErrorInfo {
            message: format!("{}!{}", "a".repeat(4_000), "a".repeat(1 << 20)),
            ..ErrorInfo::default()
        };
        assert!(patterns.find(&error).is_none());
    }

    #[test]
    fn every_condition_must_hold_and_the_first_pattern_counts() {
        let both =
            PatternSpec { error_type: Some("Http*".into()), code: Some("418".into()), ..spec("teapot") };
        let patterns =
            Patterns::compile(&[both, PatternSpec { name: Some("any".into()), ..spec("pot") }]).unwrap();
        let mut error = ErrorInfo {
            error_type: "HttpError".into(),
            code: Some("418".into()),
            message: "a teapot".into(),
            ..ErrorInfo::default()
        };
        assert_eq!(patterns.find(&error).unwrap().1, "1");
        error.code = None;
        assert_eq!(patterns.find(&error).unwrap().1, "2 (any)");
        error.message.clear();
        assert!(patterns.find(&error).is_none());
    }

    #[test]
    fn an_unknown_key_is_refused() {
        let read = serde_json::from_str::<PatternSpec>(r#"{"match":"x","permanant":true}"#);
        assert!(read.unwrap_err().to_string().contains("permanant"));
    }
}
