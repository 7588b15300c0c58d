//! Makes an HTTP request for each message; the status of the response decides the outcome. The address that is
//! connected to is checked, again for every redirect. Proxies of the environment are not used.

mod connect;
mod exchange;
mod request;

use crate::handler::{Context, Handler, HandlerError, Outcome};
use async_trait::async_trait;
pub(crate) use connect::client_config;
use exchange::{HttpClient, RequestError, Response};
use redrive_core::error::Refusal;
use redrive_core::limits;
use redrive_core::message::Payload;
use redrive_core::target::{HttpTarget, Target};
use redrive_core::time::Span;
use request::{Request, Templates};
use std::time::SystemTime;
use tokio::time::Instant;
use url::Url;

/// Characters of the response's first line in an error message.
const SNIPPET_CHARS: usize = 300;
/// Bytes of a response that are kept with a failure, so that they fit into a note.
const ARTIFACT_BYTES: usize = limits::NOTE_BYTES_MAX - 64;

/// A [`Handler`] that makes an HTTP request for each message.
///
/// The payload is the body, with its own content type, unless the target has a template. Every request carries
/// `Idempotency-Key` (the message's id, the same for every attempt), `traceparent` where the message has one,
/// and `Redrive-Queue`, `Redrive-Kind` and `Redrive-Attempt`. If the target has a secret, the request is signed as
/// Standard Webhooks describe it: `webhook-id`, `webhook-timestamp` and `webhook-signature`. If the message has a
/// `reply_to`, the body of a 2xx response is the reply. Connections are kept and used again.
#[derive(Debug)]
pub struct HttpExecutor {
    target: HttpTarget,
    url: Url,
    templates: Templates,
    client: HttpClient,
}

impl HttpExecutor {
    /// Creates an executor for this target.
    ///
    /// # Errors
    /// Returns [`Refusal::Invalid`] with the setting that is invalid.
    pub fn new(target: HttpTarget) -> Result<Self, Refusal> {
        Target::Http(target.clone()).check()?;
        let url = Url::parse(&target.url)
            .map_err(|error| error.to_string())
            .and_then(acceptable)
            .map_err(|why| Refusal::invalid("target.url", why))?;
        let templates = Templates::of(&target)?;
        let client = HttpClient::new(&target)?;
        Ok(Self { target, url, templates, client })
    }

    /// Sends a request and follows redirects as far as the target allows.
    async fn exchange(&self, mut request: Request) -> Result<Response, RequestError> {
        let mut left = self.target.redirects;
        loop {
            let response = self.client.exchange(&request).await?;
            let Some(location) = response.location.as_deref().filter(|_| left > 0) else {
                return Ok(response);
            };
            let Some(next) = request.redirected(response.status, location)? else { return Ok(response) };
            left -= 1;
            request = next;
        }
    }
}

/// Refuses URLs that this executor does not support.
fn acceptable(mut url: Url) -> Result<Url, String> {
    if !["http", "https"].contains(&url.scheme()) {
        return Err(format!("{} is not spoken, only http and https", url.scheme()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("it has a user name; send credentials in a header".into());
    }
    if url.host().is_none() || url.port_or_known_default().is_none() {
        return Err("it names no host".into());
    }
    url.set_fragment(None);
    Ok(url)
}

#[async_trait]
impl Handler for HttpExecutor {
    async fn handle(&self, context: Context) -> Outcome {
        let begun = Instant::now();
        let request = match self.templates.request(&self.target, &self.url, &context) {
            Ok(request) => request,
            Err(outcome) => return *outcome,
        };
        let limit = self.target.timeout;
        let exchange = tokio::time::timeout(limit.to_std(), self.exchange(request));
        let response = tokio::select! {
            biased;
            () = context.cancelled() => return Outcome::Release,
            response = exchange => response.unwrap_or(Err(RequestError::Slow(limit))),
        };
        let took = Span::from_millis(u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX));
        let error = match response {
            Ok(response) => match verdict(&self.target, context.message().reply_to.is_some(), response) {
                Ok(done) => return done,
                Err(error) => error,
            },
            Err(failed) => failed.into_failure(),
        };
        let mut error = error.step("http");
        error.report_mut().duration = Some(took);
        if error.report().permanent { Outcome::DeadLetter(error) } else { Outcome::Fail(error) }
    }
}

/// Decides by the response whether the message is done or failed.
fn verdict(target: &HttpTarget, wants_reply: bool, response: Response) -> Result<Outcome, HandlerError> {
    let Response { status, .. } = response;
    if (200..=299).contains(&status) {
        return match response.broken {
            Some(why) => {
                Err(RequestError::Broken(format!("the answer {status} broke off: {why}")).into_failure())
            }
            None if !wants_reply => Ok(Outcome::Done),
            None if response.cut => {
                let why = format!(
                    "the reply has more than the {} bytes that are read. The work was done, its answer is lost",
                    target.max_response_bytes
                );
                Err(HandlerError::new("ReplyTooLarge", why).permanent())
            }
            None => Ok(Outcome::Reply(Payload {
                bytes: response.body,
                content_type: response.content_type.unwrap_or_else(|| "application/octet-stream".into()),
            })),
        };
    }
    let mut text = format!("the target answered {status}");
    if let Some(reason) = hyper::StatusCode::from_u16(status).ok().and_then(|s| s.canonical_reason()) {
        text.push(' ');
        text.push_str(reason);
    }
    if (300..=399).contains(&status) && response.location.is_some() {
        text.push_str(if target.redirects == 0 {
            "; redirects are not followed unless the target allows some"
        } else {
            "; no further redirect is followed"
        });
    }
    let body = String::from_utf8_lossy(&response.body);
    let snippet = snippet(&body);
    if !snippet.is_empty() {
        text.push_str(": ");
        text.push_str(&snippet);
    }
    let mut error = HandlerError::new("HttpStatus", text).code(status);
    let report = error.report_mut();
    report.permanent = target.dead_letter_on.contains(&status);
    if matches!(status, 408 | 425 | 429 | 500..=599) {
        report.retry_after = response.retry_after;
    }
    if !snippet.is_empty() {
        let end =
            (0..=ARTIFACT_BYTES.min(body.len())).rev().find(|at| body.is_char_boundary(*at)).unwrap_or(0);
        report.artifacts.push(format!("answer:\n{}", body.get(..end).unwrap_or_default()));
    }
    Err(error)
}

/// The first line that is not empty, shortened and printable.
fn snippet(body: &str) -> String {
    let client = body.lines().map(str::trim).find(|client| !client.is_empty()).unwrap_or_default();
    client.chars().filter(|c| !c.is_control()).take(SNIPPET_CHARS).collect()
}

/// Parses `Retry-After`: seconds, or a date, which is relative to the response's own `Date` if it has one, because
/// clocks differ. Values that are too large are bounded; invalid values are ignored.
fn retry_after(value: &str, date: Option<&str>, now: SystemTime) -> Option<Span> {
    let value = value.trim();
    let span = if !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit()) {
        Span::from_secs(value.parse().unwrap_or(u64::MAX).min(limits::RETRY_AFTER_MAX.as_millis()))
    } else {
        let at = httpdate::parse_http_date(value).ok()?;
        let seen_from = date.and_then(|date| httpdate::parse_http_date(date).ok()).unwrap_or(now);
        let wait = at.duration_since(seen_from).unwrap_or_default();
        Span::from_millis(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX))
    };
    Some(span.min(limits::RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn retry_after_is_seconds_or_a_date_and_bounded() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let secs = |n| Some(Span::from_secs(n));
        let most = Some(limits::RETRY_AFTER_MAX);
        for (value, date, expected) in [
            ("120", None, secs(120)),
            (" 0 ", None, secs(0)),
            ("86401", None, most),
            ("99999999999999999999999999", None, most),
            ("18446744073709551615", None, most),
            ("Sun, 06 Nov 1994 08:50:37 GMT", None, secs(60)),
            ("Sunday, 06-Nov-94 08:50:37 GMT", None, secs(60)),
            ("Sun Nov  6 08:50:37 1994", None, secs(60)),
            ("Sun, 06 Nov 1994 08:50:37 GMT", Some("Sun, 06 Nov 1994 08:50:07 GMT"), secs(30)),
            ("Sun, 06 Nov 1994 08:50:37 GMT", Some("yesterday"), secs(60)),
            ("Sun, 06 Nov 1983 08:49:37 GMT", None, secs(0)),
            ("Fri, 31 Dec 9999 23:59:59 GMT", None, most),
            ("-5", None, None),
            ("1.5", None, None),
            ("soon", None, None),
            ("", None, None),
            ("12 monkeys", None, None),
        ] {
            assert_eq!(retry_after(value, date, now), expected, "{value} {date:?}");
        }
    }

    #[test]
    fn snippets_are_short_and_printable() {
        assert_eq!(snippet("\n  \u{1b}[31mno such\torder \nmore"), "[31mno suchorder");
        assert_eq!(snippet(&"é".repeat(1_000)).chars().count(), SNIPPET_CHARS);
        assert_eq!(snippet(""), "");
    }
}
