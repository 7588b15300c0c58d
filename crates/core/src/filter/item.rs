//! The filter language for JSON documents, such as the items of a batch run: `size>10 kind:png,jpg`. Every field is a
//! path into the document; operators, lists, ranges, `and`, `or`, `not` and parentheses work as in every other filter.
//! Text without a field is refused, because a document has no error to search.

use super::field::Field;
use super::json;
use super::lexer::{self, Token};
use super::parser::{self, Expr, Term, Test};
use super::{Fault, FilterError, check_length};
use std::fmt;

/// A filter for JSON documents. The empty filter matches everything.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ItemFilter {
    text: String,
    expr: Option<Expr>,
}

impl ItemFilter {
    /// Parses a filter whose fields are paths: `size`, `owner.name`, `tags.0`, `"a.b".c`.
    ///
    /// # Errors
    /// [`FilterError`] for the first mistake found, with its position.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        check_length(text)?;
        let expr = lexer::lex(text).and_then(under_payload).and_then(|t| parser::parse(t, text.len()));
        Ok(Self { text: text.to_owned(), expr: expr.map_err(|fault| fault.into_error(text))? })
    }

    /// The text it was parsed from.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether the filter matches this document. Bytes that are not JSON have no fields.
    #[must_use]
    pub fn matches(&self, document: &[u8]) -> bool {
        self.expr.as_ref().is_none_or(|expr| satisfies(expr, document))
    }

    /// The paths it looks at, in the order of the text.
    #[must_use]
    pub fn paths(&self) -> Vec<&[String]> {
        let mut terms = Vec::new();
        if let Some(expr) = &self.expr {
            expr.collect_terms(&mut terms);
        }
        terms.into_iter().filter_map(path_of).collect()
    }
}

impl fmt::Display for ItemFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn path_of(term: &Term) -> Option<&[String]> {
    if let Field::Payload(path) = &term.field { Some(path) } else { None }
}

/// Prefixes every field with `payload`: to this filter the document is what the payload is to a message filter.
fn under_payload(tokens: Vec<(usize, Token)>) -> Result<Vec<(usize, Token)>, Fault> {
    let one = |(at, token): (usize, Token)| match token {
        Token::Term { mut path, op, op_text, op_at, values } => {
            path.insert(0, "payload".into());
            Ok((at, Token::Term { path, op, op_text, op_at, values }))
        }
        Token::Word(word) if !parser::is_keyword(&word) => {
            Err(Fault::new(at, format!("{word:?} has no operator; write field:value, as in {word}:1")))
        }
        Token::Quoted(_) => Err(Fault::new(at, "text needs a field before it, as in name:\"text\"")),
        other @ (Token::Open | Token::Close | Token::Word(_)) => Ok((at, other)),
    };
    tokens.into_iter().map(one).collect()
}

fn satisfies(expr: &Expr, document: &[u8]) -> bool {
    match expr {
        Expr::All(parts) => parts.iter().all(|part| satisfies(part, document)),
        Expr::Any(parts) => parts.iter().any(|part| satisfies(part, document)),
        Expr::Not(inner) => !satisfies(inner, document),
        Expr::Term(term) => passes(term, document),
    }
}

/// A missing field passes no test, not even `!=`.
fn passes(term: &Term, document: &[u8]) -> bool {
    let Some(value) = path_of(term).and_then(|path| json::in_bytes(document, path)) else { return false };
    let Test::Json(tests) = &term.test else { return false };
    tests.iter().any(|test| test.matches(&value)) != term.negated
}

#[cfg(test)]
mod tests {
    use super::*;

    const ITEM: &[u8] =
        br#"{"size": 12, "kind": "png", "owner": {"name": "eve"}, "tags": ["a", "b"], "id": 7}"#;

    #[test]
    fn fields_are_paths_and_operators_are_the_usual_ones() {
        for (text, hit) in [
            ("", true),
            ("size>10", true),
            ("size>10 kind:png", true),
            ("size>10 and kind:jpg,gif", false),
            ("kind:p* or size<3", true),
            ("not owner.name:eve", false),
            ("owner.name!=bob", true),
            ("missing!=1", false),
            ("not missing:1", true),
            ("tags.1:b (id:1..7)", true),
            ("size:12.0", true),
        ] {
            assert_eq!(ItemFilter::parse(text).unwrap().matches(ITEM), hit, "{text}");
        }
        assert!(!ItemFilter::parse("size>1").unwrap().matches(b"not json"));
    }

    #[test]
    fn what_is_wrong_is_refused_with_its_place() {
        for (text, says) in [
            ("size > 10", "without a space"),
            ("size", "has no operator"),
            ("size==10", "did you mean \"=\""),
            ("\"png\"", "needs a field"),
            ("kind:png && size>1", "\"&&\""),
            ("size>big", "only numbers"),
            ("(size>1", "unclosed"),
        ] {
            let error = ItemFilter::parse(text).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn the_paths_are_known() {
        let filter = ItemFilter::parse("a.b:1 or not c>2").unwrap();
        assert_eq!(filter.paths(), [&["a".to_owned(), "b".to_owned()][..], &["c".to_owned()][..]]);
    }
}
