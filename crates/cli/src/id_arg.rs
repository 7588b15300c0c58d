//! Ids on the command line: complete, or only the last digits that a list shows. Only this module resolves short ids;
//! commands use complete ids, and so does everything that is stored or recorded.

use crate::connect::{Access, App, Hold};
use crate::exit_code::{CliError, ExitCode};
use redrive::core::filter::{Filter, FilterError};
use redrive::core::ids::{GroupId, IdError, MessageId, OperationId};
use redrive::core::limits;
use redrive::core::query::PageRequest;
use redrive::core::short_id::{IdKind, IdSuffix, IdSuffixQuery};
use std::str::FromStr;

/// The maximum number of ids to name when several end in the same digits.
const CANDIDATES: usize = 8;

/// An id as typed on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IdArg<T> {
    /// The complete id.
    Complete(T),
    /// The last digits of the id.
    Suffix(IdSuffix),
}

impl<T: FromStr<Err = IdError>> FromStr for IdArg<T> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let not_an_id = match text.parse() {
            Ok(id) => return Ok(Self::Complete(id)),
            Err(error) => error,
        };
        text.parse().map(Self::Suffix).map_err(|_: IdError| {
            let least = limits::ID_TAIL_DIGITS_MIN;
            if !text.is_empty() && text.len() < least && text.bytes().all(|b| b.is_ascii_hexdigit()) {
                return format!("{not_an_id}, and too short for the end of one: use at least {least} digits");
            }
            format!("{not_an_id}, nor the last {least} or more digits of one")
        })
    }
}

impl<T: FromStr<Err = IdError> + Copy> IdArg<T> {
    async fn resolve(&self, app: &App, of: IdKind) -> Result<T, CliError> {
        let suffix = match self {
            Self::Complete(id) => return Ok(*id),
            Self::Suffix(suffix) => *suffix,
        };
        let id = complete(app, of, suffix).await?;
        id.parse()
            .map_err(|error: IdError| CliError::new(ExitCode::Error, format!("the store's answer: {error}")))
    }
}

impl IdArg<MessageId> {
    /// The id of the dead letter.
    pub(crate) async fn letter(&self, app: &App) -> Result<MessageId, CliError> {
        self.resolve(app, IdKind::Letter).await
    }

    /// The id of the live message.
    pub(crate) async fn message(&self, app: &App) -> Result<MessageId, CliError> {
        self.resolve(app, IdKind::Message).await
    }
}

impl IdArg<OperationId> {
    /// The id of the operation.
    pub(crate) async fn operation(&self, app: &App) -> Result<OperationId, CliError> {
        self.resolve(app, IdKind::Operation).await
    }
}

impl IdArg<GroupId> {
    /// The id of the group.
    pub(crate) async fn group(&self, app: &App) -> Result<GroupId, CliError> {
        self.resolve(app, IdKind::Group).await
    }
}

/// Resolves the ids of dead letters.
pub(crate) async fn letters(app: &App, args: &[IdArg<MessageId>]) -> Result<Vec<MessageId>, CliError> {
    let mut ids = Vec::with_capacity(args.len());
    for arg in args {
        ids.push(arg.letter(app).await?);
    }
    Ok(ids)
}

/// Resolves the ids of groups.
pub(crate) async fn groups(app: &App, args: &[IdArg<GroupId>]) -> Result<Vec<GroupId>, CliError> {
    let mut ids = Vec::with_capacity(args.len());
    for arg in args {
        ids.push(arg.group(app).await?);
    }
    Ok(ids)
}

/// Parses a filter from the command line in which ids may be short, and completes them. An invalid filter is refused
/// without opening the store.
pub(crate) async fn filter(app: &App, text: &str, id_kind: IdKind) -> Result<Filter, CliError> {
    let mut text = text.to_owned();
    loop {
        let error = match Filter::parse(&text) {
            Ok(filter) => return Ok(filter),
            Err(error) => error,
        };
        let wrong = |error: &FilterError| CliError::usage(format!("filter: {error}"));
        let Some((of, suffix)) = error.short_id.as_deref().copied() else { return Err(wrong(&error)) };
        let of = if of == IdKind::Letter { id_kind } else { of };
        let id = complete(app, of, suffix).await?;
        text =
            error.with_whole_id(&id).filter(|whole| whole.len() > text.len()).ok_or_else(|| wrong(&error))?;
    }
}

const fn name_and_list_command(of: IdKind) -> (&'static str, &'static str) {
    match of {
        IdKind::Message => ("live message", "redrive message list"),
        IdKind::Letter => ("dead letter", "redrive dlq list"),
        IdKind::Operation => ("operation", "redrive op list"),
        IdKind::Group => ("group", "redrive group list"),
    }
}

/// Finds the only id that ends in these digits.
async fn complete(app: &App, of: IdKind, suffix: IdSuffix) -> Result<String, CliError> {
    let mut store = app.open(Access::Existing, Hold::Moment).await?;
    let mut found: Vec<String> = Vec::new();
    let mut page = PageRequest::first(CANDIDATES + 1);
    loop {
        let query = IdSuffixQuery { of, tail: suffix, page };
        let ids = store.call(async |store| store.ids_ending(query.clone()).await).await?;
        found.extend(ids.items);
        match ids.next {
            Some(next) if found.len() <= CANDIDATES => {
                page = PageRequest { limit: Some(CANDIDATES + 1), cursor: Some(next) };
            }
            Some(_) | None => break,
        }
    }
    let (what, list) = name_and_list_command(of);
    match found.as_slice() {
        [] => Err(CliError::new(ExitCode::NotFound, format!("no {what} has an id that ends in {suffix}"))
            .hint(list)),
        [only] => Ok(only.clone()),
        several => {
            let more = if several.len() > CANDIDATES { ", and more" } else { "" };
            let named: Vec<&str> = several.iter().take(CANDIDATES).map(String::as_str).collect();
            let text =
                format!("{suffix} is the end of more than one {what}'s id: {}{more}", named.join(", "));
            Err(CliError::new(ExitCode::Refused, text).hint("use more digits, or the whole id"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_whole_or_their_last_digits() {
        let id = "01981c3e-7d5a-7cc0-8b1f-3a52c0ffee00";
        assert_eq!(id.parse::<IdArg<MessageId>>(), Ok(IdArg::Complete(id.parse().unwrap())));
        assert_eq!("c0ffee00".parse::<IdArg<MessageId>>(), Ok(IdArg::Suffix("c0ffee00".parse().unwrap())));
        let group = "5f3a9c21b7d4e680";
        assert_eq!(group.parse::<IdArg<GroupId>>(), Ok(IdArg::Complete(group.parse().unwrap())));
        for (text, why) in [("e00", "too short"), ("nonsense", "nor the last 4"), ("", "nor the last 4")] {
            let error = text.parse::<IdArg<MessageId>>().unwrap_err();
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }
}
