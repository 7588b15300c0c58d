//! Ids in paths: whole, or only the last digits that a list shows. A short id is resolved here, once; everything after
//! this uses whole ids.

use crate::access::Caller;
use crate::problem::Problem;
use axum::http::StatusCode;
use redrive_core::ids::{IdError, MessageId};
use redrive_core::query::PageRequest;
use redrive_core::short_id::{IdKind, IdSuffix, IdSuffixQuery};
use redrive_core::store::Store as _;
use serde::{Deserialize, Deserializer};

/// The number of ids to name when several end in the same digits.
const CANDIDATES: usize = 8;

/// An id as it stands in a path.
#[derive(Clone, Copy)]
pub(crate) enum IdInPath {
    /// The whole id.
    Whole(MessageId),
    /// Its last digits.
    Suffix(IdSuffix),
}

impl<'de> Deserialize<'de> for IdInPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let wrong: IdError = match text.parse() {
            Ok(id) => return Ok(Self::Whole(id)),
            Err(error) => error,
        };
        text.parse().map(Self::Suffix).map_err(|_: IdError| {
            serde::de::Error::custom(format!("{wrong}, nor the last 4 or more digits of one"))
        })
    }
}

impl IdInPath {
    /// The whole id of a dead letter.
    pub(crate) async fn letter(self, caller: &Caller) -> Result<MessageId, Problem> {
        self.resolve(caller, IdKind::Letter).await
    }

    /// The whole id of a live message.
    pub(crate) async fn message(self, caller: &Caller) -> Result<MessageId, Problem> {
        self.resolve(caller, IdKind::Message).await
    }

    async fn resolve(self, caller: &Caller, of: IdKind) -> Result<MessageId, Problem> {
        let suffix = match self {
            Self::Whole(id) => return Ok(id),
            Self::Suffix(suffix) => suffix,
        };
        let mut found: Vec<String> = Vec::new();
        let mut cursor = None;
        loop {
            let page = PageRequest { limit: Some(CANDIDATES), cursor };
            let page = caller.store.ids_ending(IdSuffixQuery { of, tail: suffix, page }).await?;
            found.extend(page.items);
            cursor = page.next;
            if cursor.is_none() || found.len() >= CANDIDATES {
                break;
            }
        }
        let code = if of == IdKind::Message { "no_such_message" } else { "no_such_letter" };
        match found.as_slice() {
            [] => Err(Problem::new(
                StatusCode::NOT_FOUND,
                code,
                format!("there is no {of} whose id ends in {suffix}"),
            )),
            [only] => only.parse().map_err(|error: IdError| {
                Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "damaged", error.to_string())
            }),
            several => {
                let what = format!("several ids end in {suffix}; give more digits, or the whole id");
                Err(Problem::new(StatusCode::CONFLICT, "ambiguous_id", what)
                    .with("candidates", several.to_vec()))
            }
        }
    }
}
