//! Turns tokens into an expression and checks every term against its field. A parsed filter has no mistakes left:
//! evaluation and SQL have no errors to report. Reads no message and no clock.

use super::Fault;
use super::field::{self, Field, FieldType};
use super::json::{Decimal, JsonTest};
use super::lexer::{Op, Token, Value};
use super::pattern::Pattern;
use crate::ids::{IdError, LeafId, MessageId, QueueName};
use crate::limits;
use crate::short_id::IdKind;
use crate::time::{Span, Time};
use std::iter::Peekable;
use std::ops::Bound;
use std::str::FromStr;
use std::vec::IntoIter;

/// The expression of a filter.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expr {
    /// All of these.
    All(Vec<Expr>),
    /// Any of these.
    Any(Vec<Expr>),
    /// The opposite.
    Not(Box<Expr>),
    /// One test of one field.
    Term(Term),
}

impl Expr {
    /// Replaces the id of every group by the one that `current` returns for it.
    pub(super) fn replace_groups(&mut self, current: &impl Fn(LeafId) -> LeafId) {
        match self {
            Self::All(all) | Self::Any(all) => all.iter_mut().for_each(|expr| expr.replace_groups(current)),
            Self::Not(expr) => expr.replace_groups(current),
            Self::Term(Term { test: Test::Leaves(groups), .. }) => {
                groups.iter_mut().for_each(|group| *group = current(*group));
            }
            Self::Term(_) => {}
        }
    }

    /// Appends every term, in the order of the text.
    pub(super) fn collect_terms<'a>(&'a self, found: &mut Vec<&'a Term>) {
        match self {
            Self::All(parts) | Self::Any(parts) => parts.iter().for_each(|part| part.collect_terms(found)),
            Self::Not(inner) => inner.collect_terms(found),
            Self::Term(term) => found.push(term),
        }
    }
}

/// One test of one field.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Term {
    /// Its position in the text.
    pub(super) at: usize,
    /// The field that is tested.
    pub(super) field: Field,
    /// Whether the operator is `!=`: the field must be present and fail the test.
    pub(super) negated: bool,
    /// The test; it is passed if any of its alternatives is.
    pub(super) test: Test,
}

/// A list of alternatives for the value of a field.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Test {
    /// One of these ids.
    Ids(Vec<MessageId>),
    /// One of these groups.
    Leaves(Vec<LeafId>),
    /// One of these leaves, or a template that contains one of these texts.
    Signature(Vec<LeafId>, Vec<Pattern>),
    /// One of these names.
    Names(Vec<&'static str>),
    /// Text that matches one of these patterns.
    Texts(Vec<Pattern>),
    /// In one of these ranges of numbers, or of times and durations in milliseconds.
    Ranges(Vec<NumberRange>),
    /// A JSON value that passes one of these tests.
    Json(Vec<JsonTest>),
}

/// A range of numbers or of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NumberRange {
    /// From the first to the second, both included.
    Between(i64, i64),
    /// At most this many milliseconds ago.
    Last(i64),
}

/// Parses tokens; `None` if there are none. `end` is the length of the text.
pub(super) fn parse(tokens: Vec<(usize, Token)>, end: usize) -> Result<Option<Expr>, Fault> {
    if tokens.is_empty() {
        return Ok(None);
    }
    let mut parser = Parser { tokens: tokens.into_iter().peekable(), end, terms: 0 };
    let expr = parser.any(0)?;
    match parser.tokens.next() {
        None => Ok(Some(expr)),
        Some((at, _)) => Err(Fault::new(at, "\")\" closes nothing")),
    }
}

/// The words that combine terms, in any case: reading `OR` as text would change the meaning of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keyword {
    And,
    Or,
    Not,
}

fn keyword(token: &Token) -> Option<Keyword> {
    if let Token::Word(word) = token { keyword_of(word) } else { None }
}

/// Whether a word combines terms.
pub(super) fn is_keyword(word: &str) -> bool {
    keyword_of(word).is_some()
}

fn keyword_of(word: &str) -> Option<Keyword> {
    [("and", Keyword::And), ("or", Keyword::Or), ("not", Keyword::Not)]
        .into_iter()
        .find(|(name, _)| word.eq_ignore_ascii_case(name))
        .map(|(_, keyword)| keyword)
}

struct Parser {
    tokens: Peekable<IntoIter<(usize, Token)>>,
    end: usize,
    terms: usize,
}

impl Parser {
    /// Parses parts with `or` between them.
    fn any(&mut self, depth: usize) -> Result<Expr, Fault> {
        let mut parts = vec![self.all(depth)?];
        while self.tokens.next_if(|(_, token)| keyword(token) == Some(Keyword::Or)).is_some() {
            parts.push(self.all(depth)?);
        }
        Ok(one_or(parts, Expr::Any))
    }

    /// Parses parts side by side, with or without `and` between them.
    fn all(&mut self, depth: usize) -> Result<Expr, Fault> {
        let mut parts = vec![self.one(depth)?];
        while let Some((_, token)) = self.tokens.peek() {
            match keyword(token) {
                Some(Keyword::Or) => break,
                Some(Keyword::And) => {
                    self.tokens.next();
                }
                Some(Keyword::Not) => {}
                None if *token == Token::Close => break,
                None => {}
            }
            parts.push(self.one(depth)?);
        }
        Ok(one_or(parts, Expr::All))
    }

    /// Parses a term, a `not` with its operand, or an expression in parentheses.
    fn one(&mut self, depth: usize) -> Result<Expr, Fault> {
        let Some((at, token)) = self.tokens.next() else {
            return Err(Fault::new(self.end, "a term is missing"));
        };
        if depth > limits::FILTER_DEPTH_MAX {
            let what = format!("nested deeper than {}", limits::FILTER_DEPTH_MAX);
            return Err(Fault::new(at, what));
        }
        match keyword(&token) {
            Some(Keyword::Not) => return Ok(Expr::Not(Box::new(self.one(depth + 1)?))),
            Some(Keyword::And | Keyword::Or) => {
                let what = "a term is missing before this word; put it in quotes if it is text";
                return Err(Fault::new(at, what));
            }
            None => {}
        }
        match token {
            Token::Open => {
                let inner = self.any(depth + 1)?;
                match self.tokens.next() {
                    Some((_, Token::Close)) => Ok(inner),
                    Some(_) | None => Err(Fault::new(at, "unclosed parenthesis")),
                }
            }
            Token::Close => Err(Fault::new(at, "a term is missing before \")\"")),
            Token::Word(text) => self.text_term(&Value { at, text, quoted: false }),
            Token::Quoted(text) => self.text_term(&Value { at, text, quoted: true }),
            Token::Term { path, op, op_text, op_at, values } => {
                self.count(at, values.len())?;
                let field = find_field(at, path)?;
                let test = RawTerm { field: &field, op, op_text: &op_text, op_at, values: &values }.test()?;
                Ok(Expr::Term(Term { at, field, negated: op == Op::IsNot, test }))
            }
        }
    }

    /// Parses text without a field.
    fn text_term(&mut self, value: &Value) -> Result<Expr, Fault> {
        self.count(value.at, 1)?;
        let test = Test::Texts(vec![inside(value)?]);
        Ok(Expr::Term(Term { at: value.at, field: Field::Error, negated: false, test }))
    }

    /// Counts values, because each of them is a comparison.
    fn count(&mut self, at: usize, values: usize) -> Result<(), Fault> {
        self.terms += values;
        if self.terms > limits::FILTER_TERMS_MAX {
            return Err(Fault::new(at, format!("more than {} terms", limits::FILTER_TERMS_MAX)));
        }
        Ok(())
    }
}

/// The only part, or all of them combined.
fn one_or(mut parts: Vec<Expr>, many: fn(Vec<Expr>) -> Expr) -> Expr {
    match parts.pop() {
        Some(only) if parts.is_empty() => only,
        Some(last) => {
            parts.push(last);
            many(parts)
        }
        None => many(parts),
    }
}

fn find_field(at: usize, mut path: Vec<String>) -> Result<Field, Fault> {
    let joined = path.join(".");
    let rest = path.split_off(1.min(path.len()));
    let name = path.pop().unwrap_or_default();
    let dotted = field::DOTTED.iter().find(|(word, _)| *word == name);
    if let Some((word, example)) = dotted {
        if rest.is_empty() && *word == "payload" {
            return Ok(Field::PayloadText);
        }
        if rest.is_empty() || rest.iter().any(String::is_empty) {
            let what = format!("{word:?} needs a name after each dot, as in {example}");
            return Err(Fault::new(at, what));
        }
        return Ok(match *word {
            "header" => Field::Header(rest.join(".")),
            "payload" => Field::Payload(rest),
            _ => Field::Context(rest),
        });
    }
    let known = field::NAMED.iter().find(|field| rest.is_empty() && field.name() == name);
    known.cloned().ok_or_else(|| {
        let nearest = field::nearest_field(&name);
        let hint = if nearest.is_none() { " (text goes in quotes)" } else { "" };
        Fault { nearest, ..Fault::new(at, format!("unknown field {joined:?}{hint}")) }
    })
}

/// A term with a known field, whose operator and values are still to be checked.
struct RawTerm<'a> {
    field: &'a Field,
    op: Op,
    op_text: &'a str,
    op_at: usize,
    values: &'a [Value],
}

impl RawTerm<'_> {
    fn test(&self) -> Result<Test, Fault> {
        match self.field.field_type() {
            FieldType::Id => self.each(|v| read_id(v, IdKind::Letter)).map(Test::Ids),
            FieldType::Leaf => self.each(|v| read_id(v, IdKind::Group)).map(Test::Leaves),
            FieldType::QueueName => self.each(queue_name).map(Test::Texts),
            FieldType::Text => self.each(|v| Ok(whole(v))).map(Test::Texts),
            FieldType::Search => self.each(inside).map(Test::Texts),
            FieldType::Signature => self.signature(),
            FieldType::OneOf(names) => self.each(|v| self.name_of(v, &names)).map(Test::Names),
            FieldType::Number => self.ranges(number, |v| number(v.at, &v.text).map(exactly)),
            FieldType::Span => {
                self.ranges(span, |v| Err(bad(v, "no age is exact; use > or <, or a range such as 1h..2h")))
            }
            FieldType::Time => self.ranges(time, |v| match v.text.parse::<Span>() {
                Ok(last) => Ok(NumberRange::Last(millis(last))),
                Err(_) => time(v.at, &v.text).map(exactly),
            }),
            FieldType::Json => self.json(),
        }
    }

    /// Reads every value the same way, for fields that have no order.
    fn each<T>(&self, read: impl Fn(&Value) -> Result<T, Fault>) -> Result<Vec<T>, Fault> {
        if self.compared()?.is_some() {
            let (op, field) = (self.op_text, self.field.name());
            let what =
                format!("operator {op:?} does not go with {field:?}, which takes \":\", \"=\" and \"!=\"");
            return Err(Fault::new(self.op_at, what));
        }
        self.values.iter().map(read).collect()
    }

    /// The single value that `>`, `>=`, `<` or `<=` compares with; `None` for the other operators.
    fn compared(&self) -> Result<Option<&Value>, Fault> {
        match (self.op, self.values) {
            (Op::Is | Op::IsNot, _) | (_, []) => Ok(None),
            (_, [only]) => Ok(Some(only)),
            (_, [_, second, ..]) => {
                Err(Fault::new(second.at, format!("operator {:?} takes one value, not a list", self.op_text)))
            }
        }
    }

    fn signature(&self) -> Result<Test, Fault> {
        let (mut leaves, mut templates) = (Vec::new(), Vec::new());
        self.each(|v| Ok(v.clone()))?.iter().try_for_each(|v| {
            match v.text.parse() {
                Ok(leaf) => leaves.push(leaf),
                Err(_) => templates.push(inside(v)?),
            }
            Ok(())
        })?;
        Ok(Test::Signature(leaves, templates))
    }

    fn name_of(&self, v: &Value, names: &[&'static str]) -> Result<&'static str, Fault> {
        let alias = *self.field == Field::Priority && v.text == "medium";
        let wanted = if alias { "normal" } else { v.text.as_str() };
        names.iter().copied().find(|name| *name == wanted).ok_or_else(|| {
            let what = format!("{:?} is not a {}: {}", v.text, self.field.name(), names.join(", "));
            Fault::new(v.at, what).near(v.text.trim_end_matches('*'), names.iter().copied())
        })
    }

    /// Numbers and times. `read` reads a value that is compared with or that ends a range, `alone` a single value.
    fn ranges(
        &self,
        read: Read<i64>,
        alone: fn(&Value) -> Result<NumberRange, Fault>,
    ) -> Result<Test, Fault> {
        if let Some(v) = self.compared()? {
            let n = read(v.at, &v.text)?;
            return Ok(Test::Ranges(vec![match self.op {
                Op::Over => NumberRange::Between(n.saturating_add(1), i64::MAX),
                Op::AtLeast => NumberRange::Between(n, i64::MAX),
                Op::Under => NumberRange::Between(i64::MIN, n.saturating_sub(1)),
                Op::AtMost => NumberRange::Between(i64::MIN, n),
                Op::Is | Op::IsNot => exactly(n),
            }]));
        }
        let one = |v: &Value| match range(v, read)? {
            Some((from, to)) => Ok(NumberRange::Between(from.unwrap_or(i64::MIN), to.unwrap_or(i64::MAX))),
            None => alone(v),
        };
        self.values.iter().map(one).collect::<Result<_, _>>().map(Test::Ranges)
    }

    fn json(&self) -> Result<Test, Fault> {
        if let Some(v) = self.compared()? {
            let n = decimal(v.at, if v.quoted { "" } else { &v.text })?;
            return Ok(Test::Json(vec![match self.op {
                Op::Over => JsonTest::Between(Bound::Excluded(n), Bound::Unbounded),
                Op::AtLeast => JsonTest::Between(Bound::Included(n), Bound::Unbounded),
                Op::Under => JsonTest::Between(Bound::Unbounded, Bound::Excluded(n)),
                Op::AtMost => JsonTest::Between(Bound::Unbounded, Bound::Included(n)),
                Op::Is | Op::IsNot => JsonTest::Between(Bound::Included(n.clone()), Bound::Included(n)),
            }]));
        }
        // Between numbers, two dots are a range; elsewhere they are text, because JSON strings may contain anything.
        let is_end = |end: &str| end.is_empty() || Decimal::parse(end).is_some();
        let is_range = |v: &Value| v.text.split_once("..").is_some_and(|(a, b)| is_end(a) && is_end(b));
        let one = |v: &Value| {
            let ends = if is_range(v) { range(v, decimal)? } else { None };
            let bound = |end: Option<Decimal>| end.map_or(Bound::Unbounded, Bound::Included);
            Ok(match ends {
                Some((from, to)) => JsonTest::Between(bound(from), bound(to)),
                None if v.quoted => JsonTest::Text(Pattern::exact(&v.text)),
                None => JsonTest::unquoted(&v.text),
            })
        };
        self.values.iter().map(one).collect::<Result<_, _>>().map(Test::Json)
    }
}

/// Reads a value from the text at a position.
type Read<T> = fn(usize, &str) -> Result<T, Fault>;

fn bad(v: &Value, what: impl Into<String>) -> Fault {
    Fault::new(v.at, what)
}

/// Reads the id of a message or group. The error shows what an id looks like, and notes whether this is a short one.
fn read_id<T: FromStr<Err = IdError>>(v: &Value, of: IdKind) -> Result<T, Fault> {
    let short_id = if v.quoted { None } else { v.text.parse().ok().map(|tail| Box::new((of, tail))) };
    v.text.parse().map_err(|e: IdError| Fault { short_id, ..bad(v, e.to_string()) })
}

/// Text that is compared as a whole.
fn whole(v: &Value) -> Pattern {
    if v.quoted { Pattern::exact(&v.text) } else { Pattern::glob(&v.text) }
}

/// Text to search for. Text that would be found everywhere is refused: something must be missing.
fn inside(v: &Value) -> Result<Pattern, Fault> {
    let pattern = Pattern::inside(&v.text, !v.quoted);
    if pattern.is_anything() { Err(bad(v, "there is no text to look for")) } else { Ok(pattern) }
}

/// The name of a queue. With `*` in it, the rest must be able to stand in a name.
fn queue_name(v: &Value) -> Result<Pattern, Fault> {
    let stand_in = if v.quoted { v.text.clone() } else { v.text.replace('*', "x") };
    match stand_in.parse::<QueueName>() {
        Ok(_) => Ok(whole(v)),
        Err(_) => Err(bad(
            v,
            format!("{:?} cannot be a queue's name (letters, digits, \".\", \"_\", \"-\")", v.text),
        )),
    }
}

/// The ends of a range; either may be absent.
type Ends<T> = (Option<T>, Option<T>);

/// The ends of a range `a..b`, or `None` if the value is not a range.
fn range<T: PartialOrd>(v: &Value, read: Read<T>) -> Result<Option<Ends<T>>, Fault> {
    let Some((from, to)) = v.text.split_once("..").filter(|_| !v.quoted) else { return Ok(None) };
    let end = |at, text: &str| if text.is_empty() { Ok(None) } else { read(at, text).map(Some) };
    match (end(v.at, from)?, end(v.at + from.len() + 2, to)?) {
        (None, None) => Err(bad(v, "a range needs a beginning or an end")),
        (Some(from), Some(to)) if from > to => Err(bad(v, "the range ends before it begins")),
        ends => Ok(Some(ends)),
    }
}

const fn exactly(n: i64) -> NumberRange {
    NumberRange::Between(n, n)
}

/// Reads a counter. All counters have 32 bits, so a number that does not fit is a typing mistake.
fn number(at: usize, text: &str) -> Result<i64, Fault> {
    let digits = text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse::<u32>().ok()).flatten();
    digits
        .map(i64::from)
        .ok_or_else(|| Fault::new(at, format!("{text:?} is not a whole number from 0 to {}", u32::MAX)))
}

fn span(at: usize, text: &str) -> Result<i64, Fault> {
    text.parse().map(millis).map_err(|e| Fault::new(at, e.to_string()))
}

fn time(at: usize, text: &str) -> Result<i64, Fault> {
    let parsed = text.parse::<Time>().map(Time::as_millis);
    parsed.map_err(|e| Fault::new(at, format!("{e}; a duration such as 2h goes with \":\" alone")))
}

fn decimal(at: usize, text: &str) -> Result<Decimal, Fault> {
    Decimal::parse(text).ok_or_else(|| Fault::new(at, "only numbers, unquoted, can be compared in JSON"))
}

fn millis(span: Span) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}
