//! Turns a filter into a condition that a SQL store can read fewer rows with. The condition holds for every
//! row that the filter matches. It may hold for more, and then says so: the evaluator decides. Where it is
//! exact, a store may count and copy rows by it. Nothing of a filter's text ever becomes SQL: values are bound
//! parameters, and column names are the store's own.

use super::Filter;
use super::field::Field;
use super::parser::{Expr, Reach, Term, Test};
use super::pattern::Pattern;
use crate::time::Time;

/// Which column a store keeps a field in.
pub trait Columns {
    /// The column, or SQL expression, that holds exactly the field's value in every row, NULL where it is
    /// missing; nothing when there is no such column. Names are text (`priority` too), numbers integers,
    /// times integers of milliseconds since the epoch, ids blobs of 16 bytes, leaves and groups the
    /// unsigned number's bits as a signed integer. [`Field::Age`] asks for the time that age counts from:
    /// when a letter died, when a message was enqueued. [`Field::Signature`] asks for the leaf. Text must
    /// compare byte by byte. Worker, tag, error text, headers, payload and context are never asked for, nor hosts and versions.
    fn column(&self, field: &Field) -> Option<&str>;
}

/// A value to bind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Param {
    /// A number, a time, a leaf.
    Int(i64),
    /// A name or other text.
    Text(String),
    /// An id.
    Blob(Vec<u8>),
}

/// A condition and the values of its `?`, in order. `1` when nothing can be said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// The condition, fit to stand after `WHERE` or between parentheses.
    pub sql: String,
    /// What to bind.
    pub params: Vec<Param>,
    /// Whether it holds for exactly the rows that the filter matches, and so needs no evaluator.
    pub exact: bool,
}

impl Compiled {
    /// The condition that rules nothing out, of a filter or term that may.
    fn unknown() -> Self {
        Self { sql: "1".into(), params: Vec::new(), exact: false }
    }

    /// The condition of a filter that matches everything.
    fn everything() -> Self {
        Self { exact: true, ..Self::unknown() }
    }

    fn new(sql: impl Into<String>, params: Vec<Param>) -> Self {
        Self { sql: sql.into(), params, exact: true }
    }

    fn rules_nothing_out(&self) -> bool {
        self.sql == "1"
    }

    /// The conditions with a word between them, each in parentheses.
    fn joined(parts: Vec<Self>, word: &str) -> Self {
        let mut all = Self { sql: String::new(), params: Vec::new(), exact: true };
        for part in parts {
            all.exact &= part.exact;
            if !all.sql.is_empty() {
                all.sql.push_str(word);
            }
            all.sql.push('(');
            all.sql.push_str(&part.sql);
            all.sql.push(')');
            all.params.extend(part.params);
        }
        all
    }

    fn all_of(mut parts: Vec<Self>) -> Self {
        let exact = parts.iter().all(|part| part.exact);
        parts.retain(|part| !part.rules_nothing_out());
        let all = if parts.is_empty() { Self::everything() } else { Self::joined(parts, " AND ") };
        Self { exact, ..all }
    }

    fn any_of(parts: Vec<Self>) -> Self {
        let open = parts.is_empty() || parts.iter().any(Self::rules_nothing_out);
        if open { Self::unknown() } else { Self::joined(parts, " OR ") }
    }
}

/// A condition that holds for every row the filter matches at this instant.
#[must_use]
pub fn narrow(filter: &Filter, columns: &dyn Columns, now: Time) -> Compiled {
    filter.expr.as_ref().map_or_else(Compiled::everything, |expr| compile(expr, false, columns, now))
}

/// `not` is pushed down to the terms, so that one term without a column does not hide the others.
fn compile(expr: &Expr, negated: bool, columns: &dyn Columns, now: Time) -> Compiled {
    let each = |parts: &[Expr]| parts.iter().map(|part| compile(part, negated, columns, now)).collect();
    match expr {
        Expr::All(parts) if negated => Compiled::any_of(each(parts)),
        Expr::Any(parts) if negated => Compiled::all_of(each(parts)),
        Expr::All(parts) => Compiled::all_of(each(parts)),
        Expr::Any(parts) => Compiled::any_of(each(parts)),
        Expr::Not(inner) => compile(inner, !negated, columns, now),
        Expr::Term(term) => compile_term(term, negated, columns, now),
    }
}

/// A term's condition holds, fails, or is NULL when the field is missing; a missing field fails the term, so
/// the negated term must hold for NULL.
fn compile_term(term: &Term, negated: bool, columns: &dyn Columns, now: Time) -> Compiled {
    let Some(condition) = piece(term, columns, now) else { return Compiled::unknown() };
    // The complement of too much is too little: what is not exact must not be turned around.
    if condition.rules_nothing_out() || (!condition.exact && (negated || term.negated)) {
        return Compiled::unknown();
    }
    let sql = if term.negated { format!("NOT ({})", condition.sql) } else { condition.sql };
    let sql = if negated { format!("({sql}) IS NOT TRUE") } else { sql };
    Compiled { sql, ..condition }
}

/// The condition of a term before any negation.
fn piece(term: &Term, columns: &dyn Columns, now: Time) -> Option<Compiled> {
    if !is_one_value(&term.field) {
        return None;
    }
    let column = columns.column(&term.field)?;
    Some(match &term.test {
        Test::Ids(ids) => one_of(column, ids.iter().map(|id| Param::Blob(id.to_bytes().to_vec())).collect()),
        Test::Leaves(leaves) => one_of(column, leaves.iter().map(|leaf| leaf_param(leaf.get())).collect()),
        Test::Signature(leaves, templates) if templates.is_empty() => {
            one_of(column, leaves.iter().map(|leaf| leaf_param(leaf.get())).collect())
        }
        Test::Names(names) => one_of(column, names.iter().map(|name| Param::Text((*name).into())).collect()),
        Test::Texts(patterns) => {
            Compiled::any_of(patterns.iter().map(|pattern| text(column, pattern)).collect())
        }
        Test::Reaches(reaches) => {
            let ages = term.field == Field::Age;
            Compiled::any_of(reaches.iter().map(|reach| stretch(column, *reach, ages, now)).collect())
        }
        Test::Signature(..) | Test::Json(_) => return None,
    })
}

/// Whether a column can hold the whole of the field: neither many values nor a part of a larger one.
const fn is_one_value(field: &Field) -> bool {
    !matches!(
        field,
        Field::Worker
            | Field::Host
            | Field::Version
            | Field::Tag
            | Field::Error
            | Field::Header(_)
            | Field::PayloadText
            | Field::Payload(_)
            | Field::Context(_)
    )
}

/// Databases have no unsigned 64-bit integers; the bits are kept.
const fn leaf_param(leaf: u64) -> Param {
    Param::Int(leaf.cast_signed())
}

fn one_of(column: &str, params: Vec<Param>) -> Compiled {
    let marks = vec!["?"; params.len()].join(", ");
    let sql = if params.len() == 1 { format!("{column} = ?") } else { format!("{column} IN ({marks})") };
    Compiled::new(sql, params)
}

/// Any value at all. Not `IS NOT NULL`, which would be false rather than NULL where there is none.
fn present(column: &str) -> Compiled {
    Compiled::new(format!("{column} = {column}"), Vec::new())
}

/// Comparing the beginning, rather than a range of texts, is right under every collation.
fn text(column: &str, pattern: &Pattern) -> Compiled {
    if let Some(only) = pattern.as_exact() {
        return one_of(column, vec![Param::Text(only.to_owned())]);
    }
    let (whole, enough) = pattern.prefix();
    // SQLite's `substr` ends at a NUL, so only what is before one can be compared.
    let prefix = whole.split('\0').next().unwrap_or_default();
    let exact = enough && prefix.len() == whole.len();
    if prefix.is_empty() {
        return Compiled { exact, ..present(column) };
    }
    let letters = i64::try_from(prefix.chars().count()).unwrap_or(i64::MAX);
    let params = vec![Param::Int(letters), Param::Text(prefix.to_owned())];
    Compiled { exact, ..Compiled::new(format!("substr({column}, 1, ?) = ?"), params) }
}

/// A stretch of a number or time, or of an age, which is a stretch of time turned around.
fn stretch(column: &str, reach: Reach, ages: bool, now: Time) -> Compiled {
    let ago = |ms: i64| now.as_millis().saturating_sub(ms);
    let (from, to) = match reach {
        Reach::Last(ms) => (ago(ms), i64::MAX),
        Reach::Between(from, to) if !ages => (from, to),
        // No age is negative: what lies in the future is of age zero.
        Reach::Between(_, to) if to < 0 => return Compiled::new(format!("{column} <> {column}"), Vec::new()),
        Reach::Between(from, to) => {
            let latest = if from <= 0 { i64::MAX } else { ago(from) };
            (if to == i64::MAX { i64::MIN } else { ago(to) }, latest)
        }
    };
    let (lower, upper) = (format!("{column} >= ?"), format!("{column} <= ?"));
    match (from == i64::MIN, to == i64::MAX) {
        (true, true) => present(column),
        (false, true) => Compiled::new(lower, vec![Param::Int(from)]),
        (true, false) => Compiled::new(upper, vec![Param::Int(to)]),
        (false, false) if from == to => Compiled::new(format!("{column} = ?"), vec![Param::Int(from)]),
        (false, false) => {
            Compiled::new(format!("{lower} AND {upper}"), vec![Param::Int(from), Param::Int(to)])
        }
    }
}
