//! Ids as people type them: whole, or the last digits that a list shows. This is the only place that looks short ids
//! up. Commands go on with whole ids, and so does everything that is stored or on record.

use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, ExitCode};
use redrive::core::filter::{Filter, FilterError};
use redrive::core::ids::{GroupId, IdError, MessageId, OperationId};
use redrive::core::limits;
use redrive::core::query::PageRequest;
use redrive::core::short_id::{IdKind, IdTail, TailQuery};
use std::str::FromStr;

/// Ids that are named when several end in the same digits.
const CANDIDATES: usize = 8;

/// An id as it was typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Given<T> {
    /// All of it.
    Whole(T),
    /// Its last digits.
    Tail(IdTail),
}

impl<T: FromStr<Err = IdError>> FromStr for Given<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let no_id = match text.parse() {
            Ok(id) => return Ok(Self::Whole(id)),
            Err(error) => error,
        };
        text.parse().map(Self::Tail).map_err(|_: IdError| {
            let least = limits::ID_TAIL_DIGITS_MIN;
            if !text.is_empty() && text.len() < least && text.bytes().all(|b| b.is_ascii_hexdigit()) {
                return format!("{no_id}, and too short for the end of one: at least {least} digits");
            }
            format!("{no_id}, nor the last {least} or more digits of one")
        })
    }
}

impl<T: FromStr<Err = IdError> + Copy> Given<T> {
    async fn found(&self, app: &App, of: IdKind) -> Result<T, CliError> {
        let tail = match self {
            Self::Whole(id) => return Ok(*id),
            Self::Tail(tail) => *tail,
        };
        let id = whole(app, of, tail).await?;
        id.parse()
            .map_err(|error: IdError| CliError::new(ExitCode::Error, format!("the store's answer: {error}")))
    }
}

impl Given<MessageId> {
    /// The dead letter that is meant.
    pub(crate) async fn letter(&self, app: &App) -> Result<MessageId, CliError> {
        self.found(app, IdKind::Letter).await
    }

    /// The live message that is meant.
    pub(crate) async fn message(&self, app: &App) -> Result<MessageId, CliError> {
        self.found(app, IdKind::Message).await
    }
}

impl Given<OperationId> {
    /// The operation that is meant.
    pub(crate) async fn operation(&self, app: &App) -> Result<OperationId, CliError> {
        self.found(app, IdKind::Operation).await
    }
}

impl Given<GroupId> {
    /// The group that is meant.
    pub(crate) async fn group(&self, app: &App) -> Result<GroupId, CliError> {
        self.found(app, IdKind::Group).await
    }
}

/// The dead letters that are meant.
pub(crate) async fn letters(app: &App, given: &[Given<MessageId>]) -> Result<Vec<MessageId>, CliError> {
    let mut ids = Vec::with_capacity(given.len());
    for one in given {
        ids.push(one.letter(app).await?);
    }
    Ok(ids)
}

/// The groups that are meant.
pub(crate) async fn groups(app: &App, given: &[Given<GroupId>]) -> Result<Vec<GroupId>, CliError> {
    let mut ids = Vec::with_capacity(given.len());
    for one in given {
        ids.push(one.group(app).await?);
    }
    Ok(ids)
}

/// Reads a filter from the command line in which ids may be short; the filter has them whole. One that is wrong does
/// not even open the store.
pub(crate) async fn filter(app: &App, text: &str, ids_are: IdKind) -> Result<Filter, CliError> {
    let mut text = text.to_owned();
    loop {
        let error = match Filter::parse(&text) {
            Ok(filter) => return Ok(filter),
            Err(error) => error,
        };
        let wrong = |error: &FilterError| CliError::usage(format!("filter: {error}"));
        let Some((of, tail)) = error.short_id.as_deref().copied() else { return Err(wrong(&error)) };
        let of = if of == IdKind::Letter { ids_are } else { of };
        let id = whole(app, of, tail).await?;
        text =
            error.with_whole_id(&id).filter(|whole| whole.len() > text.len()).ok_or_else(|| wrong(&error))?;
    }
}

const fn called(of: IdKind) -> (&'static str, &'static str) {
    match of {
        IdKind::Message => ("live message", "redrive message list"),
        IdKind::Letter => ("dead letter", "redrive dlq list"),
        IdKind::Operation => ("operation", "redrive op list"),
        IdKind::Group => ("group", "redrive group list"),
    }
}

/// The one id that ends so.
async fn whole(app: &App, of: IdKind, tail: IdTail) -> Result<String, CliError> {
    let mut store = app.open(Access::Existing, Hold::Moment).await?;
    let mut found: Vec<String> = Vec::new();
    let mut page = PageRequest::first(CANDIDATES + 1);
    loop {
        let query = TailQuery { of, tail, page };
        let ids = store.ask(async |store| store.ids_ending(query.clone()).await).await?;
        found.extend(ids.items);
        match ids.next {
            Some(next) if found.len() <= CANDIDATES => {
                page = PageRequest { limit: Some(CANDIDATES + 1), cursor: Some(next) };
            }
            Some(_) | None => break,
        }
    }
    let (what, list) = called(of);
    match found.as_slice() {
        [] => {
            Err(CliError::new(ExitCode::NotFound, format!("no {what} has an id that ends in {tail}"))
                .hint(list))
        }
        [only] => Ok(only.clone()),
        several => {
            let more = if several.len() > CANDIDATES { ", and more" } else { "" };
            let named: Vec<&str> = several.iter().take(CANDIDATES).map(String::as_str).collect();
            let text = format!("{tail} is the end of more than one {what}'s id: {}{more}", named.join(", "));
            Err(CliError::new(ExitCode::Refused, text).hint("give more digits, or the whole id"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_whole_or_their_last_digits() {
        let id = "01981c3e-7d5a-7cc0-8b1f-3a52c0ffee00";
        assert_eq!(id.parse::<Given<MessageId>>(), Ok(Given::Whole(id.parse().unwrap())));
        assert_eq!("c0ffee00".parse::<Given<MessageId>>(), Ok(Given::Tail("c0ffee00".parse().unwrap())));
        let group = "5f3a9c21b7d4e680";
        assert_eq!(group.parse::<Given<GroupId>>(), Ok(Given::Whole(group.parse().unwrap())));
        for (text, why) in [("e00", "too short"), ("nonsense", "nor the last 4"), ("", "nor the last 4")] {
            let said = text.parse::<Given<MessageId>>().unwrap_err();
            assert!(said.contains(why), "{text:?}: {said}");
        }
    }
}
