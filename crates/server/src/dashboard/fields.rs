//! The fields of a form or a query string. A field may occur several times; an empty one counts as missing, because
//! that is what a browser sends for an input that was left empty.

use super::visitor::Failure;
use crate::app::App;
use crate::problem::Problem;
use crate::request::{check_encoding, read};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use std::convert::Infallible;
use std::str::FromStr;
use std::sync::Arc;

/// The fields, in the order in which they came.
#[derive(Clone, Debug, Default)]
pub(super) struct Fields(Vec<(String, String)>);

impl Fields {
    fn parse(bytes: &[u8]) -> Self {
        let pairs = form_urlencoded::parse(bytes);
        Self(pairs.map(|(name, value)| (name.into_owned(), value.into_owned())).collect())
    }

    /// The first value of a field that is not empty.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    /// The first value of a field, exactly as it was sent, even if it is empty.
    pub(super) fn raw(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The text of a field; empty if it is missing.
    pub(super) fn text(&self, name: &str) -> String {
        self.get(name).unwrap_or_default().to_owned()
    }

    /// The text of a field, if it is there.
    pub(super) fn owned(&self, name: &str) -> Option<String> {
        self.get(name).map(str::to_owned)
    }

    /// Every value of a field that is not empty.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        let named = self.0.iter().filter(move |(known, _)| known == name);
        named.map(|(_, value)| value.trim()).filter(|value| !value.is_empty())
    }

    /// Reads a field.
    pub(super) fn read<T: FromStr<Err: ToString>>(&self, name: &str) -> Result<Option<T>, Problem> {
        let wrong =
            |error: T::Err| Problem::bad_request("bad_field", format!("{name}: {}", error.to_string()));
        self.get(name).map(|text| text.parse().map_err(wrong)).transpose()
    }

    /// Reads a field that must be there.
    pub(super) fn need<T: FromStr<Err: ToString>>(&self, name: &str) -> Result<T, Problem> {
        let missing = || Problem::bad_request("bad_field", format!("{name} is missing; fill it in"));
        self.read(name)?.ok_or_else(missing)
    }
}

/// The fields of the query string.
pub(super) struct Asked(pub(super) Fields);

impl FromRequestParts<Arc<App>> for Asked {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self, Infallible> {
        Ok(Self(Fields::parse(parts.uri.query().unwrap_or_default().as_bytes())))
    }
}

/// The fields of a form.
pub(super) struct Sent(pub(super) Fields);

impl FromRequest<Arc<App>> for Sent {
    type Rejection = Failure;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Failure> {
        let (parts, body) = request.into_parts();
        check_encoding(&parts.headers)?;
        let kind = parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let essence = kind.and_then(|kind| kind.split(';').next()).unwrap_or_default().trim();
        if !essence.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
            let what = "send the form as `Content-Type: application/x-www-form-urlencoded`";
            return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "wrong_content_type", what).into());
        }
        let bytes = read(body, app.config.body_bytes_max).await?;
        Ok(Self(Fields::parse(&bytes)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_fields_are_missing_and_repeated_ones_are_kept() {
        let fields = Fields::parse(b"id=a&id=&id=b+c&n=7&empty=++");
        assert_eq!(fields.all("id").collect::<Vec<_>>(), ["a", "b c"]);
        assert_eq!((fields.get("empty"), fields.raw("empty")), (None, Some("  ")));
        assert_eq!(fields.need::<u32>("n").unwrap(), 7);
        assert!(fields.need::<u32>("id").is_err());
        assert_eq!(fields.read::<u32>("nothing").unwrap(), None);
    }
}
