//! What the pages with lists share: addresses that keep the rest of the query, values in filters, commands to copy.

use super::text::{query, shell};
use crate::problem::Problem;
use axum::http::Uri;
use redrive_core::filter::Filter;

/// The filter for letters that nobody has closed.
pub(super) const OPEN: &str = "status:pending,retrying,review,quarantined";

/// The address of this page with some fields changed; an empty value removes the field.
pub(super) fn address(here: &Uri, changes: &[(&str, &str)]) -> String {
    let known = form_urlencoded::parse(here.query().unwrap_or_default().as_bytes());
    let is_changed = |name: &str| changes.iter().any(|(changed, _)| *changed == name);
    let kept = known.filter(|(name, value)| !is_changed(name) && !value.is_empty());
    let kept = kept.map(|(name, value)| format!("{}={}", query(&name), query(&value)));
    let added = changes.iter().filter(|(_, value)| !value.is_empty());
    let added = added.map(|(name, value)| format!("{name}={}", query(value)));
    let pairs: Vec<String> = kept.chain(added).collect();
    if pairs.is_empty() { here.path().to_owned() } else { format!("{}?{}", here.path(), pairs.join("&")) }
}

/// A value in a filter, taken literally.
pub(super) fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', r"\\").replace('"', "\\\""))
}

/// Parses a filter that was put together here or came in a form.
pub(super) fn parse(text: &str) -> Result<Filter, Problem> {
    Ok(Filter::parse(text)?)
}

/// A command that asks the API.
pub(super) fn curl(method: &str, path: &str, body: Option<&str>) -> String {
    let method = if method == "GET" { String::new() } else { format!(" -X {method}") };
    let body = body.map(|body| format!(" -H 'Content-Type: application/json' -d {}", shell(body)));
    format!(
        "curl -H \"Authorization: Bearer $REDRIVE_TOKEN\"{method}{} \"$REDRIVE_URL\"{}",
        body.unwrap_or_default(),
        shell(path)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_keeps_what_is_not_changed() {
        let here: Uri = "/dlq?filter=a%20b&cursor=x&limit=".parse().unwrap();
        assert_eq!(address(&here, &[("cursor", "")]), "/dlq?filter=a%20b");
        assert_eq!(address(&here, &[("cursor", "y/z")]), "/dlq?filter=a%20b&cursor=y%2Fz");
        assert_eq!(address(&"/dlq".parse().unwrap(), &[]), "/dlq");
    }

    #[test]
    fn values_are_quoted_for_their_reader() {
        let filter = format!("type:{}", quoted(r#"a "b" \c"#));
        Filter::parse(&filter).unwrap();
        assert_eq!(
            curl("POST", "/api/v1/x?a=b&c", Some("{\"it's\":1}")),
            r#"curl -H "Authorization: Bearer $REDRIVE_TOKEN" -X POST -H 'Content-Type: application/json' -d '{"it'\''s":1}' "$REDRIVE_URL"'/api/v1/x?a=b&c'"#
        );
    }
}
