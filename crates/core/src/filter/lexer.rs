//! Cuts the text of a filter into tokens. A term with a field is a single token, because a value may contain characters
//! (the colons of a time, for example) that a field may not. Fields and types are left to the parser.

use super::Fault;

/// The operators between a field and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// `:` and `=`.
    Is,
    /// `!=`.
    IsNot,
    /// `>`.
    Over,
    /// `>=`.
    AtLeast,
    /// `<`.
    Under,
    /// `<=`.
    AtMost,
}

/// The operators and how they are written.
const OPS: [(&str, Op); 7] = [
    (":", Op::Is),
    ("=", Op::Is),
    ("!=", Op::IsNot),
    (">", Op::Over),
    (">=", Op::AtLeast),
    ("<", Op::Under),
    ("<=", Op::AtMost),
];

/// Operators of other languages, and the ones that are probably meant.
const MISTAKEN: [(&str, &str); 7] =
    [("==", "="), ("::", ":"), ("=>", ">="), ("=<", "<="), ("<>", "!="), ("!", "!="), ("!:", "!=")];

/// A value as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Value {
    /// Its position in the text.
    pub(super) at: usize,
    /// Its text, without quotes and escapes.
    pub(super) text: String,
    /// Whether it was quoted; quoted values are taken literally.
    pub(super) quoted: bool,
}

/// A token of a filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    /// `(`.
    Open,
    /// `)`.
    Close,
    /// A bare word: a keyword or text to search for.
    Word(String),
    /// Quoted text to search for.
    Quoted(String),
    /// A field, an operator and at least one value.
    Term {
        /// The name of the field and its path, without quotes.
        path: Vec<String>,
        /// The operator.
        op: Op,
        /// The operator as it was written.
        op_text: String,
        /// The position of the operator.
        op_at: usize,
        /// The values between commas.
        values: Vec<Value>,
    },
}

/// All tokens of a text with their positions.
pub(super) fn lex(text: &str) -> Result<Vec<(usize, Token)>, Fault> {
    let mut lexer = Lexer { text, at: 0 };
    let mut tokens = Vec::new();
    loop {
        lexer.take_while(char::is_whitespace);
        let at = lexer.at;
        match lexer.peek() {
            None => return Ok(tokens),
            Some('(') => tokens.push((at, lexer.single(Token::Open))),
            Some(')') => tokens.push((at, lexer.single(Token::Close))),
            Some(_) => tokens.push((at, lexer.term()?)),
        }
    }
}

fn is_op(c: char) -> bool {
    matches!(c, ':' | '=' | '!' | '<' | '>')
}

fn ends_word(c: char) -> bool {
    c.is_whitespace() || matches!(c, '(' | ')' | '"')
}

struct Lexer<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn single(&mut self, token: Token) -> Token {
        self.next();
        token
    }

    fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c| !wanted(c)).unwrap_or(rest.len());
        self.at += end;
        rest.get(..end).unwrap_or_default()
    }

    fn term(&mut self) -> Result<Token, Fault> {
        let at = self.at;
        if self.peek() == Some('"') {
            let text = self.quoted()?;
            self.boundary()?;
            return Ok(Token::Quoted(text));
        }
        let path = self.path()?;
        let op_at = self.at;
        let op_text = self.take_while(is_op);
        let word = self.text.get(at..op_at).unwrap_or_default();
        if word.starts_with('-') {
            let what = format!("{word:?} begins with \"-\", which is not an operator; put text in quotes");
            return Err(Fault { nearest: Some("not".into()), ..Fault::new(at, what) });
        }
        if op_text.is_empty() {
            if word.contains('"') {
                return Err(Fault::new(op_at, "a quoted path needs an operator and a value right after it"));
            }
            self.boundary()?;
            return Ok(Token::Word(word.to_owned()));
        }
        if word.is_empty() {
            let what = format!("{op_text:?} needs a field right before it, without a space");
            return Err(Fault::new(op_at, what));
        }
        let Some((_, op)) = OPS.iter().find(|(text, _)| *text == op_text) else {
            let what = format!("unknown operator {op_text:?}");
            let meant = MISTAKEN.iter().find(|(text, _)| *text == op_text);
            return Err(Fault { nearest: meant.map(|(_, op)| (*op).to_owned()), ..Fault::new(op_at, what) });
        };
        let values = self.values(op_text)?;
        self.boundary()?;
        Ok(Token::Term { path, op: *op, op_text: op_text.to_owned(), op_at, values })
    }

    /// Reads the parts between dots; a quoted part may contain anything.
    fn path(&mut self) -> Result<Vec<String>, Fault> {
        let mut parts = Vec::new();
        loop {
            let quoted = self.peek() == Some('"') && !parts.is_empty();
            parts.push(if quoted {
                self.quoted()?
            } else {
                self.take_while(|c| c != '.' && !is_op(c) && !ends_word(c)).to_owned()
            });
            if self.peek() != Some('.') {
                return Ok(parts);
            }
            self.next();
        }
    }

    fn values(&mut self, op_text: &str) -> Result<Vec<Value>, Fault> {
        let mut values = Vec::new();
        let mut before = op_text;
        loop {
            let at = self.at;
            let quoted = self.peek() == Some('"');
            let text = if quoted {
                self.quoted()?
            } else {
                self.take_while(|c| c != ',' && !ends_word(c)).to_owned()
            };
            if text.is_empty() && !quoted {
                let what = format!("a value is missing; it comes right after {before:?}, without a space");
                return Err(Fault::new(at, what));
            }
            values.push(Value { at, text, quoted });
            if self.peek() != Some(',') {
                return Ok(values);
            }
            self.next();
            before = ",";
        }
    }

    /// Reads text in quotes; the only escapes are `\"` and `\\`.
    fn quoted(&mut self) -> Result<String, Fault> {
        let opened = self.at;
        self.next();
        let mut text = String::new();
        loop {
            let at = self.at;
            match self.next() {
                None => return Err(Fault::new(opened, "unclosed quote")),
                Some('"') => return Ok(text),
                Some('\\') => match self.next() {
                    Some(c @ ('"' | '\\')) => text.push(c),
                    Some(_) => {
                        return Err(Fault::new(at, r#"unknown escape; only \" and \\ are known in quotes"#));
                    }
                    None => return Err(Fault::new(opened, "unclosed quote")),
                },
                Some(c) => text.push(c),
            }
        }
    }

    /// Refuses characters that directly follow a word, value or quote, because they would be read as something else.
    fn boundary(&self) -> Result<(), Fault> {
        match self.peek() {
            Some(c) if !c.is_whitespace() && !matches!(c, '(' | ')') => Err(Fault::new(
                self.at,
                format!("unexpected {c:?}; put a space before it, or all of it in quotes"),
            )),
            Some(_) | None => Ok(()),
        }
    }
}
