//! Builds requests: fills the target's templates from the message, and applies redirects. There is no I/O here.

use super::acceptable;
use super::exchange::RequestError;
use crate::handler::{Context, HandlerError, Outcome};
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT};
use redrive_core::error::Refusal;
use redrive_core::failure::UNDECODABLE;
use redrive_core::target::{HttpTarget, Method};
use redrive_core::template::{Placeholder, Template, TextFormat, at_path};
use redrive_core::webhook::{self, SecretSource};
use serde_json::Value;
use std::time::SystemTime;
use url::Url;

/// One request, ready to be sent.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) method: Method,
    pub(super) url: Url,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// The target's own headers. They may carry secrets for its host, so a redirect to another host drops them.
    own: Vec<HeaderName>,
}

impl Request {
    /// The request that follows a redirect. `None` if the redirect must not be followed: one that turns a request with
    /// a body into one without would lose the message and look like success.
    pub(super) fn redirected(&self, status: u16, location: &str) -> Result<Option<Self>, RequestError> {
        let keeps_body = matches!(status, 307 | 308);
        let bodiless = self.method == Method::Get && matches!(status, 301..=303);
        if !keeps_body && !bodiless {
            return Ok(None);
        }
        let url = self.url.join(location).map_err(|error| error.to_string()).and_then(acceptable);
        let url =
            url.map_err(|why| RequestError::Redirect(format!("the redirect cannot be followed: {why}")))?;
        if self.url.scheme() == "https" && url.scheme() == "http" {
            return Err(RequestError::Redirect("the redirect leads from https to http".into()));
        }
        let mut next = Self { url, ..self.clone() };
        if next.url.origin() != self.url.origin() {
            for name in &self.own {
                next.headers.remove(name);
            }
        }
        Ok(Some(next))
    }
}

/// The parsed templates of a target.
#[derive(Debug)]
pub(super) struct Templates {
    headers: Vec<(HeaderName, Template)>,
    body: Option<(Template, TextFormat)>,
    content_type: HeaderValue,
}

impl Templates {
    pub(super) fn of(target: &HttpTarget) -> Result<Self, Refusal> {
        let invalid = |field: &str, why: String| Refusal::invalid(format!("target.{field}"), why);
        let mut headers = Vec::new();
        for (name, value) in &target.headers {
            let name = HeaderName::try_from(name.as_str()).map_err(|e| invalid("headers", e.to_string()))?;
            headers.push((name, Template::parse(value).map_err(|why| invalid("headers", why))?));
        }
        let content_type = target.content_type.as_deref().unwrap_or("application/json");
        let parsed = target.body.as_deref().map(Template::parse).transpose();
        let body = parsed.map_err(|why| invalid("body", why))?.map(|body| (body, form_of(content_type)));
        let content_type =
            HeaderValue::from_str(content_type).map_err(|e| invalid("content_type", e.to_string()))?;
        Ok(Self { headers, body, content_type })
    }

    /// Builds the request for one message, or returns the outcome of a message for which that is impossible.
    pub(super) fn request(
        &self,
        target: &HttpTarget,
        url: &Url,
        context: &Context,
    ) -> Result<Request, Box<Outcome>> {
        let values = Values::of(self, context)?;
        let mut headers = HeaderMap::new();
        self.describe_message(context, &mut headers);
        let body = match (&self.body, target.method) {
            (Some((template, form)), _) => {
                headers.insert(CONTENT_TYPE, self.content_type.clone());
                Bytes::from(template.render(*form, |name| values.get(name)))
            }
            (None, Method::Get | Method::Delete) => Bytes::new(),
            (None, Method::Post | Method::Put | Method::Patch) => {
                let content_type = HeaderValue::from_str(&context.message().payload.content_type);
                headers.extend(content_type.ok().map(|value| (CONTENT_TYPE, value)));
                Bytes::copy_from_slice(context.bytes())
            }
        };
        let mut own = Vec::new();
        for (name, template) in &self.headers {
            let text = template.render(TextFormat::Plain, |name| values.get(name));
            let value = HeaderValue::from_str(&text).map_err(|_| {
                let why = format!("the value for the header {name} has characters that no header may have");
                Box::new(Outcome::Fail(HandlerError::new("InvalidHeader", why)))
            })?;
            headers.insert(name.clone(), value);
            own.push(name.clone());
        }
        if let Some(secret) = &target.secret {
            own.extend(sign(secret, &context.message().id.to_string(), &body, &mut headers)?);
        }
        Ok(Request { method: target.method, url: url.clone(), headers, body, own })
    }

    /// Adds the headers that describe the message. Values that no header can hold are left out.
    fn describe_message(&self, context: &Context, headers: &mut HeaderMap) {
        let message = context.message();
        let said = [
            ("idempotency-key", Some(message.id.to_string())),
            ("redrive-queue", Some(message.queue.to_string())),
            ("redrive-kind", Some(message.kind.clone()).filter(|kind| !kind.is_empty())),
            ("redrive-attempt", Some(context.attempt().to_string())),
            ("traceparent", message.trace.clone()),
        ];
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("redrive/", env!("CARGO_PKG_VERSION"))));
        for (name, value) in said {
            if let Some(value) = value.and_then(|value| HeaderValue::from_str(&value).ok()) {
                headers.insert(HeaderName::from_static(name), value);
            }
        }
    }
}

/// Signs the request and returns the names of the headers that this added.
fn sign(
    secret: &SecretSource,
    id: &str,
    body: &[u8],
    headers: &mut HeaderMap,
) -> Result<Vec<HeaderName>, Box<Outcome>> {
    let misconfigured = |why: String| Box::new(Outcome::Fail(HandlerError::new("Misconfigured", why)));
    let secrets = secret.resolve(|name| std::env::var(name).ok()).map_err(misconfigured)?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let values = [
        (webhook::ID_HEADER, id.to_owned()),
        (webhook::TIMESTAMP_HEADER, now.to_string()),
        (webhook::SIGNATURE_HEADER, secrets.sign(id, now, body)),
    ];
    let mut names = Vec::with_capacity(values.len());
    for (name, value) in values {
        let value = HeaderValue::from_str(&value).map_err(|error| misconfigured(error.to_string()))?;
        headers.insert(HeaderName::from_static(name), value);
        names.push(HeaderName::from_static(name));
    }
    Ok(names)
}

fn form_of(content_type: &str) -> TextFormat {
    let kind = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match kind.as_str() {
        "application/x-www-form-urlencoded" => TextFormat::Urlencoded,
        json if json.ends_with("/json") || json.ends_with("+json") => TextFormat::Json,
        _ => TextFormat::Plain,
    }
}

/// The values for the placeholders of the templates, for one message.
struct Values<'a> {
    context: &'a Context,
    payload: Value,
}

impl<'a> Values<'a> {
    fn of(templates: &Templates, context: &'a Context) -> Result<Self, Box<Outcome>> {
        let all = || {
            let body = templates.body.iter().flat_map(|(template, _)| template.placeholders());
            body.chain(templates.headers.iter().flat_map(|(_, template)| template.placeholders()))
        };
        for name in all() {
            let missing = matches!(name, Placeholder::Env(variable) if std::env::var_os(variable).is_none());
            if let (true, Placeholder::Env(variable)) = (missing, name) {
                let why =
                    format!("the target needs the variable {variable}, which this worker does not have");
                return Err(Box::new(Outcome::Fail(HandlerError::new("Misconfigured", why))));
            }
        }
        let payload = if all().any(|name| matches!(name, Placeholder::Payload(_))) {
            serde_json::from_slice(context.bytes()).map_err(|error| {
                let why = format!("the target's template needs a payload in JSON: {error}");
                Box::new(Outcome::DeadLetter(HandlerError::new(UNDECODABLE, why)))
            })?
        } else {
            Value::Null
        };
        Ok(Self { context, payload })
    }

    fn get(&self, name: &Placeholder) -> Option<Value> {
        let message = self.context.message();
        match name {
            Placeholder::Id => Some(message.id.to_string().into()),
            Placeholder::Queue => Some(message.queue.to_string().into()),
            Placeholder::Kind => Some(message.kind.clone().into()),
            Placeholder::Key => message.key.clone().map(Value::from),
            Placeholder::Attempt => Some(self.context.attempt().into()),
            Placeholder::Payload(path) => at_path(&self.payload, path).cloned(),
            Placeholder::Context(path) => message.context.as_ref().and_then(|c| at_path(c, path)).cloned(),
            Placeholder::Header(name) => message.headers.get(name).cloned().map(Value::from),
            Placeholder::Env(name) => std::env::var(name).ok().map(Value::from),
        }
    }
}
