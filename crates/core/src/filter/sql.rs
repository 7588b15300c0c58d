//! Turns a filter into a condition with which a SQL store reads fewer rows. The condition holds for every row that the
//! filter matches. It may hold for more, and then says so: the evaluator decides. If it is exact, a store may count and
//! copy rows by it. No part of a filter's text ever becomes SQL: values are bound parameters, and column names are the
//! store's own.

use super::Filter;
use super::field::Field;
use super::parser::{Expr, NumberRange, Term, Test};
use super::pattern::Pattern;
use crate::time::Time;

/// Maps fields to the columns of a store.
pub trait Columns {
    /// The column, or SQL expression, that holds exactly the value of the field in every row and NULL where it is
    /// missing, or `None` if there is no such column. Names are text (`priority` too), numbers are integers, times are
    /// integers of milliseconds since the epoch, ids are blobs of 16 bytes, and leaves and groups are the bits of the
    /// unsigned number as a signed integer. Text must compare byte by byte. For [`Field::Age`] this is the time that
    /// the age counts from: when a letter died or a message was enqueued. For [`Field::Signature`] it is the leaf. It
    /// is never called for worker, host, version, tag, error text, headers, payload and context.
    fn column(&self, field: &Field) -> Option<&str>;
}

/// A value to bind to a parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Param {
    /// A number, a time, a leaf.
    Int(i64),
    /// A name or other text.
    Text(String),
    /// An id.
    Blob(Vec<u8>),
}

/// A condition and the values of its `?` parameters, in order. The condition is `1` if nothing can be ruled out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqlCondition {
    /// The condition, which may follow `WHERE` or stand in parentheses.
    pub sql: String,
    /// The values to bind.
    pub params: Vec<Param>,
    /// Whether it holds for exactly the rows that the filter matches, so that no evaluator is needed.
    pub exact: bool,
}

impl SqlCondition {
    /// The condition of a filter or term that the store cannot decide; it rules nothing out.
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

    /// The conditions, each in parentheses, joined by an operator.
    fn joined(parts: Vec<Self>, operator: &str) -> Self {
        let mut all = Self { sql: String::new(), params: Vec::new(), exact: true };
        for part in parts {
            all.exact &= part.exact;
            if !all.sql.is_empty() {
                all.sql.push_str(operator);
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

/// A condition that holds for every row that the filter matches at this time.
#[must_use]
pub fn narrow(filter: &Filter, columns: &dyn Columns, now: Time) -> SqlCondition {
    filter.expr.as_ref().map_or_else(SqlCondition::everything, |expr| compile(expr, false, columns, now))
}

/// Compiles an expression. `not` is pushed down to the terms, so that a term without a column does not hide the others.
fn compile(expr: &Expr, negated: bool, columns: &dyn Columns, now: Time) -> SqlCondition {
    let each = |parts: &[Expr]| parts.iter().map(|part| compile(part, negated, columns, now)).collect();
    match expr {
        Expr::All(parts) if negated => SqlCondition::any_of(each(parts)),
        Expr::Any(parts) if negated => SqlCondition::all_of(each(parts)),
        Expr::All(parts) => SqlCondition::all_of(each(parts)),
        Expr::Any(parts) => SqlCondition::any_of(each(parts)),
        Expr::Not(inner) => compile(inner, !negated, columns, now),
        Expr::Term(term) => compile_term(term, negated, columns, now),
    }
}

/// Compiles a term. Its condition is true, false, or NULL if the field is missing. A missing field fails the term, so
/// the negated term must hold for NULL.
fn compile_term(term: &Term, negated: bool, columns: &dyn Columns, now: Time) -> SqlCondition {
    let Some(condition) = compile_test(term, columns, now) else { return SqlCondition::unknown() };
    // The complement of too many rows is too few: a condition that is not exact must not be negated.
    if condition.rules_nothing_out() || (!condition.exact && (negated || term.negated)) {
        return SqlCondition::unknown();
    }
    let sql = if term.negated { format!("NOT ({})", condition.sql) } else { condition.sql };
    let sql = if negated { format!("({sql}) IS NOT TRUE") } else { sql };
    SqlCondition { sql, ..condition }
}

/// The condition of a term before any negation.
fn compile_test(term: &Term, columns: &dyn Columns, now: Time) -> Option<SqlCondition> {
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
            SqlCondition::any_of(patterns.iter().map(|pattern| text(column, pattern)).collect())
        }
        Test::Ranges(ranges) => {
            let ages = term.field == Field::Age;
            SqlCondition::any_of(ranges.iter().map(|range| in_range(column, *range, ages, now)).collect())
        }
        Test::Signature(..) | Test::Json(_) => return None,
    })
}

/// Whether a column can hold the value of the field: a single value that is not part of a larger one.
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

/// Databases have no unsigned 64-bit integers, so the bits are stored as a signed one.
const fn leaf_param(leaf: u64) -> Param {
    Param::Int(leaf.cast_signed())
}

fn one_of(column: &str, params: Vec<Param>) -> SqlCondition {
    let marks = vec!["?"; params.len()].join(", ");
    let sql = if params.len() == 1 { format!("{column} = ?") } else { format!("{column} IN ({marks})") };
    SqlCondition::new(sql, params)
}

/// True for any value. Not `IS NOT NULL`, which would be false rather than NULL where there is no value.
fn present(column: &str) -> SqlCondition {
    SqlCondition::new(format!("{column} = {column}"), Vec::new())
}

/// Text that matches a pattern. The prefix is compared with `substr` rather than by a range of texts, which would be
/// wrong under some collations.
fn text(column: &str, pattern: &Pattern) -> SqlCondition {
    if let Some(only) = pattern.as_exact() {
        return one_of(column, vec![Param::Text(only.to_owned())]);
    }
    let (whole, enough) = pattern.prefix();
    // SQLite's `substr` ends at a NUL, so only what is before one can be compared.
    let prefix = whole.split('\0').next().unwrap_or_default();
    let exact = enough && prefix.len() == whole.len();
    if prefix.is_empty() {
        return SqlCondition { exact, ..present(column) };
    }
    let params = vec![Param::Text(prefix.to_owned()), Param::Text(prefix.to_owned())];
    SqlCondition { exact, ..SqlCondition::new(format!("substr({column}, 1, length(?)) = ?"), params) }
}

/// A range of numbers or times, or of ages, which are ranges of times in reverse.
fn in_range(column: &str, range: NumberRange, ages: bool, now: Time) -> SqlCondition {
    let ago = |ms: i64| now.as_millis().saturating_sub(ms);
    let (from, to) = match range {
        NumberRange::Last(ms) => (ago(ms), i64::MAX),
        NumberRange::Between(from, to) if !ages => (from, to),
        // No age is negative: a time in the future has age zero.
        NumberRange::Between(_, to) if to < 0 => {
            return SqlCondition::new(format!("{column} <> {column}"), Vec::new());
        }
        NumberRange::Between(from, to) => {
            let latest = if from <= 0 { i64::MAX } else { ago(from) };
            (if to == i64::MAX { i64::MIN } else { ago(to) }, latest)
        }
    };
    let (lower, upper) = (format!("{column} >= ?"), format!("{column} <= ?"));
    match (from == i64::MIN, to == i64::MAX) {
        (true, true) => present(column),
        (false, true) => SqlCondition::new(lower, vec![Param::Int(from)]),
        (true, false) => SqlCondition::new(upper, vec![Param::Int(to)]),
        (false, false) if from == to => SqlCondition::new(format!("{column} = ?"), vec![Param::Int(from)]),
        (false, false) => {
            SqlCondition::new(format!("{lower} AND {upper}"), vec![Param::Int(from), Param::Int(to)])
        }
    }
}
