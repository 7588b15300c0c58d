//! Text patterns: literal pieces with anything between them. Matching is linear in the text for every pattern, because
//! each piece is taken at its first occurrence. These are not regular expressions, and not meant to become any.

/// A text to compare with: exact, with `*` for anything, or found anywhere inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    /// The literal pieces, with anything between two of them.
    pieces: Vec<String>,
    /// Whether anything may come before the first piece and after the last; case is ignored then.
    loose: bool,
}

impl Pattern {
    /// Matches only this text.
    pub(super) fn exact(text: &str) -> Self {
        Self { pieces: vec![text.to_owned()], loose: false }
    }

    /// Matches a whole text; `*` stands for anything.
    pub(super) fn glob(text: &str) -> Self {
        Self { pieces: text.split('*').map(str::to_owned).collect(), loose: false }
    }

    /// Matches any text that contains this one, ignoring case; `*` stands for anything if `globbing`.
    pub(super) fn inside(text: &str, globbing: bool) -> Self {
        let folded = fold(text);
        let pieces = if globbing { folded.split('*').map(str::to_owned).collect() } else { vec![folded] };
        Self { pieces, loose: true }
    }

    /// Whether it has no literal text and so matches everything.
    pub(super) fn is_anything(&self) -> bool {
        (self.loose || self.pieces.len() > 1) && self.pieces.iter().all(String::is_empty)
    }

    /// The text, if it is the only one that matches.
    pub(super) fn as_exact(&self) -> Option<&str> {
        match self.pieces.as_slice() {
            [only] if !self.loose => Some(only),
            [] | [_] | [_, ..] => None,
        }
    }

    /// The pieces that every matching text contains in this order; folded if case is ignored.
    pub(super) fn pieces(&self) -> &[String] {
        &self.pieces
    }

    /// What every matching text begins with, and whether every text that begins so matches.
    pub(super) fn prefix(&self) -> (&str, bool) {
        match self.pieces.as_slice() {
            [first, rest @ ..] if !self.loose => {
                (first, rest.len() == 1 && rest.iter().all(String::is_empty))
            }
            [] | [_, ..] => ("", false),
        }
    }

    /// Whether the text matches.
    pub(super) fn matches(&self, text: &str) -> bool {
        if self.loose {
            let folded = fold(text);
            return skip_pieces(&folded, &self.pieces).is_some();
        }
        match self.pieces.as_slice() {
            [] => false,
            [only] => text == only,
            [first, middle @ .., last] => text
                .strip_prefix(first.as_str())
                .and_then(|rest| skip_pieces(rest, middle))
                .is_some_and(|rest| rest.ends_with(last.as_str())),
        }
    }
}

/// The rest of the text after these pieces in this order, or `None` if one is missing.
fn skip_pieces<'a>(text: &'a str, pieces: &[String]) -> Option<&'a str> {
    pieces.iter().try_fold(text, |rest, piece| rest.split_once(piece.as_str()).map(|(_, after)| after))
}

/// Lower case, character by character: unlike with `str::to_lowercase`, a part of a text folds as it does in the whole.
pub(super) fn fold(text: &str) -> String {
    if text.is_ascii() {
        return text.to_ascii_lowercase();
    }
    text.chars().flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_whole_texts() {
        for (glob, text, hit) in [
            ("pay*", "payments", true),
            ("pay*", "pay", true),
            ("pay*", "repay", false),
            ("*pay", "repay", true),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("*", "", true),
            ("**", "x", true),
            ("ab*bc", "abc", false),
        ] {
            assert_eq!(Pattern::glob(glob).matches(text), hit, "{glob} {text}");
        }
        assert!(!Pattern::exact("a*").matches("ab"));
        assert!(Pattern::glob("**").is_anything() && !Pattern::exact("").is_anything());
    }

    #[test]
    fn searches_fold_case_character_by_character() {
        assert!(Pattern::inside("TIME", false).matches("a Timeout"));
        assert!(Pattern::inside("ΟΣ", false).matches("οσα"));
        assert!(Pattern::inside("conn*refused", true).matches("Connection was REFUSED by peer"));
        assert!(!Pattern::inside("conn*refused", false).matches("connection refused"));
    }

    #[test]
    fn prefixes_say_whether_they_are_enough() {
        assert_eq!(Pattern::glob("pay*").prefix(), ("pay", true));
        assert_eq!(Pattern::glob("pay*x").prefix(), ("pay", false));
        assert_eq!(Pattern::glob("*x").prefix(), ("", false));
        assert_eq!(Pattern::inside("x", true).prefix(), ("", false));
        assert_eq!(Pattern::exact("pay").as_exact(), Some("pay"));
    }
}
