//! Turns tokens into an expression and checks every term against its field. After this nothing about a
//! filter can be wrong: evaluation and SQL have no error to report. Reads no message and no clock.

use super::Fault;
use super::field::{self, Field, Shape};
use super::json::{Decimal, Want};
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

/// A filter's expression.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expr {
    /// All of them.
    All(Vec<Expr>),
    /// Any of them.
    Any(Vec<Expr>),
    /// Everything it does not match.
    Not(Box<Expr>),
    /// One test of one field.
    Term(Term),
}

impl Expr {
    /// Calls every group by the name that this gives it.
    pub(super) fn rename_groups(&mut self, name_of: &impl Fn(LeafId) -> LeafId) {
        match self {
            Self::All(all) | Self::Any(all) => all.iter_mut().for_each(|expr| expr.rename_groups(name_of)),
            Self::Not(expr) => expr.rename_groups(name_of),
            Self::Term(Term { test: Test::Leaves(groups), .. }) => {
                groups.iter_mut().for_each(|group| *group = name_of(*group));
            }
            Self::Term(_) => {}
        }
    }

    /// Adds every term in the order of the text.
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
    /// Where it begins in the text.
    pub(super) at: usize,
    /// What is tested.
    pub(super) field: Field,
    /// `!=`: the field must be there and fail the test.
    pub(super) negated: bool,
    /// How; any of the alternatives inside is enough.
    pub(super) test: Test,
}

/// What a field's value must be one of.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Test {
    /// These ids.
    Ids(Vec<MessageId>),
    /// These groups.
    Leaves(Vec<LeafId>),
    /// These leaves, or a template with one of these texts inside.
    Signature(Vec<LeafId>, Vec<Pattern>),
    /// These names.
    Names(Vec<&'static str>),
    /// Texts that match.
    Texts(Vec<Pattern>),
    /// Numbers, or times and durations in milliseconds.
    Reaches(Vec<Reach>),
    /// Places in JSON.
    Json(Vec<Want>),
}

/// A stretch of numbers or of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// From the first to the last, both included.
    Between(i64, i64),
    /// Not longer ago than so many milliseconds.
    Last(i64),
}

/// The expression of these tokens; nothing when there are none. `end` is where the text ends.
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

/// The words that combine terms; in capitals too, because reading `OR` as text would change what is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keyword {
    And,
    Or,
    Not,
}

fn keyword(token: &Token) -> Option<Keyword> {
    if let Token::Word(word) = token { keyword_of(word) } else { None }
}

/// Whether the word combines terms.
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
    /// Parts with `or` between them.
    fn any(&mut self, depth: usize) -> Result<Expr, Fault> {
        let mut parts = vec![self.all(depth)?];
        while self.tokens.next_if(|(_, token)| keyword(token) == Some(Keyword::Or)).is_some() {
            parts.push(self.all(depth)?);
        }
        Ok(one_or(parts, Expr::Any))
    }

    /// Parts side by side, with or without `and` between them.
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

    /// A term, `not` and what it negates, or a part in parentheses.
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
                let test =
                    Operation { field: &field, op, op_text: &op_text, op_at, values: &values }.test()?;
                Ok(Expr::Term(Term { at, field, negated: op == Op::IsNot, test }))
            }
        }
    }

    /// Text without a field.
    fn text_term(&mut self, value: &Value) -> Result<Expr, Fault> {
        self.count(value.at, 1)?;
        let test = Test::Texts(vec![inside(value)?]);
        Ok(Expr::Term(Term { at: value.at, field: Field::Error, negated: false, test }))
    }

    /// Counts every value, since every one is a comparison.
    fn count(&mut self, at: usize, values: usize) -> Result<(), Fault> {
        self.terms += values;
        if self.terms > limits::FILTER_TERMS_MAX {
            return Err(Fault::new(at, format!("more than {} terms", limits::FILTER_TERMS_MAX)));
        }
        Ok(())
    }
}

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

/// A term whose field is known and whose operator and values are still to be checked against it.
struct Operation<'a> {
    field: &'a Field,
    op: Op,
    op_text: &'a str,
    op_at: usize,
    values: &'a [Value],
}

impl Operation<'_> {
    fn test(&self) -> Result<Test, Fault> {
        match self.field.shape() {
            Shape::Id => self.each(|v| read_id(v, IdKind::Letter)).map(Test::Ids),
            Shape::Leaf => self.each(|v| read_id(v, IdKind::Group)).map(Test::Leaves),
            Shape::QueueName => self.each(queue_name).map(Test::Texts),
            Shape::Text => self.each(|v| Ok(whole(v))).map(Test::Texts),
            Shape::Inside => self.each(inside).map(Test::Texts),
            Shape::Signature => self.signature(),
            Shape::OneOf(names) => self.each(|v| self.name_of(v, &names)).map(Test::Names),
            Shape::Number => self.reaches(number, |v| number(v.at, &v.text).map(exactly)),
            Shape::Span => {
                self.reaches(span, |v| Err(bad(v, "no age is exact; use > or <, or a range such as 1h..2h")))
            }
            Shape::Time => self.reaches(time, |v| match v.text.parse::<Span>() {
                Ok(last) => Ok(Reach::Last(millis(last))),
                Err(_) => time(v.at, &v.text).map(exactly),
            }),
            Shape::Json => self.json(),
        }
    }

    /// Every value read the same way, for fields that have no order.
    fn each<T>(&self, read: impl Fn(&Value) -> Result<T, Fault>) -> Result<Vec<T>, Fault> {
        if self.compared()?.is_some() {
            let (op, field) = (self.op_text, self.field.name());
            let what =
                format!("operator {op:?} does not go with {field:?}, which takes \":\", \"=\" and \"!=\"");
            return Err(Fault::new(self.op_at, what));
        }
        self.values.iter().map(read).collect()
    }

    /// The one value that `>`, `>=`, `<` or `<=` compares with; nothing for the other operators.
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

    /// Numbers and times: one value is read by `alone`, a compared one or the end of a range by `read`.
    fn reaches(&self, read: Read<i64>, alone: fn(&Value) -> Result<Reach, Fault>) -> Result<Test, Fault> {
        if let Some(v) = self.compared()? {
            let n = read(v.at, &v.text)?;
            return Ok(Test::Reaches(vec![match self.op {
                Op::Over => Reach::Between(n.saturating_add(1), i64::MAX),
                Op::AtLeast => Reach::Between(n, i64::MAX),
                Op::Under => Reach::Between(i64::MIN, n.saturating_sub(1)),
                Op::AtMost => Reach::Between(i64::MIN, n),
                Op::Is | Op::IsNot => exactly(n),
            }]));
        }
        let one = |v: &Value| match range(v, read)? {
            Some((from, to)) => Ok(Reach::Between(from.unwrap_or(i64::MIN), to.unwrap_or(i64::MAX))),
            None => alone(v),
        };
        self.values.iter().map(one).collect::<Result<_, _>>().map(Test::Reaches)
    }

    fn json(&self) -> Result<Test, Fault> {
        if let Some(v) = self.compared()? {
            let n = decimal(v.at, if v.quoted { "" } else { &v.text })?;
            return Ok(Test::Json(vec![match self.op {
                Op::Over => Want::Between(Bound::Excluded(n), Bound::Unbounded),
                Op::AtLeast => Want::Between(Bound::Included(n), Bound::Unbounded),
                Op::Under => Want::Between(Bound::Unbounded, Bound::Excluded(n)),
                Op::AtMost => Want::Between(Bound::Unbounded, Bound::Included(n)),
                Op::Is | Op::IsNot => Want::Between(Bound::Included(n.clone()), Bound::Included(n)),
            }]));
        }
        // Two dots are a range between numbers and plain text elsewhere: texts in JSON may hold anything.
        let is_end = |end: &str| end.is_empty() || Decimal::parse(end).is_some();
        let is_range = |v: &Value| v.text.split_once("..").is_some_and(|(a, b)| is_end(a) && is_end(b));
        let one = |v: &Value| {
            let ends = if is_range(v) { range(v, decimal)? } else { None };
            let bound = |end: Option<Decimal>| end.map_or(Bound::Unbounded, Bound::Included);
            Ok(match ends {
                Some((from, to)) => Want::Between(bound(from), bound(to)),
                None if v.quoted => Want::Text(Pattern::exact(&v.text)),
                None => Want::reads(&v.text),
            })
        };
        self.values.iter().map(one).collect::<Result<_, _>>().map(Test::Json)
    }
}

/// Reads the text at a place.
type Read<T> = fn(usize, &str) -> Result<T, Fault>;

fn bad(v: &Value, why: impl Into<String>) -> Fault {
    Fault::new(v.at, why)
}

/// An id of a message or of a group; its own error says what one looks like, and whether it is a short one.
fn read_id<T: FromStr<Err = IdError>>(v: &Value, of: IdKind) -> Result<T, Fault> {
    let short_id = if v.quoted { None } else { v.text.parse().ok().map(|tail| Box::new((of, tail))) };
    v.text.parse().map_err(|e: IdError| Fault { short_id, ..bad(v, e.to_string()) })
}

/// Text that is compared whole.
fn whole(v: &Value) -> Pattern {
    if v.quoted { Pattern::exact(&v.text) } else { Pattern::glob(&v.text) }
}

/// Text to look for. What would be found everywhere is refused: somebody left something out.
fn inside(v: &Value) -> Result<Pattern, Fault> {
    let pattern = Pattern::inside(&v.text, !v.quoted);
    if pattern.is_anything() { Err(bad(v, "there is no text to look for")) } else { Ok(pattern) }
}

/// A queue's name; with `*` in it, what is around the stars must be able to stand in one.
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

/// The ends of a range; either may be left out.
type Ends<T> = (Option<T>, Option<T>);

/// The ends of a range `a..b`; nothing when the value is no range.
fn range<T: PartialOrd>(v: &Value, read: Read<T>) -> Result<Option<Ends<T>>, Fault> {
    let Some((from, to)) = v.text.split_once("..").filter(|_| !v.quoted) else { return Ok(None) };
    let end = |at, text: &str| if text.is_empty() { Ok(None) } else { read(at, text).map(Some) };
    match (end(v.at, from)?, end(v.at + from.len() + 2, to)?) {
        (None, None) => Err(bad(v, "a range needs a beginning or an end")),
        (Some(from), Some(to)) if from > to => Err(bad(v, "the range ends before it begins")),
        ends => Ok(Some(ends)),
    }
}

const fn exactly(n: i64) -> Reach {
    Reach::Between(n, n)
}

/// Every counter has 32 bits; what does not fit is a typing mistake.
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
