//! Where the messages of a queue go if the user's own handlers do not process them: an HTTP request or a
//! command per message. This module describes and checks targets; the executors in the library act on them.

use crate::address::{AddressGuard, Network};
use crate::error::Refusal;
use crate::limits;
use crate::message::check_span;
use crate::template::{Placeholder, Template};
use crate::time::Span;
use crate::webhook::SecretSource;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The target that the messages of a queue are delivered to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Target {
    /// An HTTP request per message.
    Http(HttpTarget),
    /// A command per message.
    Command(CommandTarget),
}

impl Target {
    /// Checks every setting against its bounds.
    ///
    /// # Errors
    /// Returns [`Refusal::Invalid`] for the first setting that is out of bounds.
    pub fn check(&self) -> Result<(), Refusal> {
        match self {
            Self::Http(http) => http.check(),
            Self::Command(command) => command.check(),
        }
    }
}

/// The method of an HTTP request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Method {
    /// GET, without a body.
    Get,
    /// POST, the default.
    #[default]
    Post,
    /// PUT.
    Put,
    /// PATCH.
    Patch,
    /// DELETE, without a body unless the target has one.
    Delete,
}

impl Method {
    /// The name in a request.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }
}

/// An HTTP request per message. A 2xx status acknowledges the message. 408, 425, 429 and 5xx are failures that
/// honour a `Retry-After`. Every other status is a failure too, and permanent only if [`Self::dead_letter_on`]
/// lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpTarget {
    /// The URL: `http` or `https`, without a user name.
    pub url: String,
    /// The method.
    pub method: Method,
    /// The request headers. Their values are templates and may name environment variables of the worker, so
    /// that secrets need not be stored.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// The body as a template. Defaults to the bytes of the payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// The content type of that body. Defaults to `application/json`. Without a body template, the payload's
    /// own content type applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// The secret that signs each request, as Standard Webhooks describe it. Requests are not signed without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretSource>,
    /// Status codes that make the message a dead letter at once.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub dead_letter_on: Vec<u16>,
    /// The maximum number of redirects. Each address is checked like the first.
    pub redirects: u8,
    /// Whether this machine and private networks are allowed.
    pub allow_private: bool,
    /// Networks that are allowed, of whatever kind.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<Network>,
    /// The time limit of the whole exchange.
    #[serde(rename = "timeout_ms", alias = "timeout")]
    pub timeout: Span,
    /// The time limit for connecting.
    #[serde(rename = "connect_timeout_ms", alias = "connect_timeout")]
    pub connect_timeout: Span,
    /// The maximum number of bytes of the response that are read.
    pub max_response_bytes: u64,
    /// A PEM file on the worker's machine with certificates to trust beside those of the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_file: Option<String>,
}

impl Default for HttpTarget {
    fn default() -> Self {
        Self {
            url: String::new(),
            method: Method::Post,
            headers: BTreeMap::new(),
            body: None,
            content_type: None,
            secret: None,
            dead_letter_on: Vec::new(),
            redirects: 0,
            allow_private: false,
            allow: Vec::new(),
            timeout: Span::from_secs(30),
            connect_timeout: Span::from_secs(10),
            max_response_bytes: 1024 * 1024,
            ca_file: None,
        }
    }
}

fn check_length(field: &str, text: &str, max: usize) -> Result<(), Refusal> {
    if text.len() > max {
        return Err(Refusal::invalid(field, format!("{} bytes; at most {max} are allowed", text.len())));
    }
    Ok(())
}

fn check_no_nul<'a>(field: &str, mut texts: impl Iterator<Item = &'a String>) -> Result<(), Refusal> {
    if texts.any(|text| text.contains('\0')) {
        return Err(Refusal::invalid(field, "contains a NUL, which no command can be given"));
    }
    Ok(())
}

/// Whether the text consists of characters that a header name may have.
fn is_token(text: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    !text.is_empty() && text.bytes().all(fits)
}

impl HttpTarget {
    /// A target that leaves everything else to the defaults.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), ..Self::default() }
    }

    /// The addresses that may be reached.
    #[must_use]
    pub fn guard(&self) -> AddressGuard {
        AddressGuard { allow_private: self.allow_private, allow: self.allow.clone() }
    }

    /// Checks the parts of the URL that can be judged without parsing it in full, which the executor does.
    fn check_url(&self) -> Result<(), Refusal> {
        let refused = |why: &str| Err(Refusal::invalid("target.url", why.to_owned()));
        check_length("target.url", &self.url, limits::TARGET_URL_BYTES_MAX)?;
        let Some((scheme, rest)) = self.url.split_once("://") else {
            return refused("write it out, such as https://example.com/hook");
        };
        if !["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
            return refused("only http and https are supported");
        }
        let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
        if authority.is_empty() {
            return refused("it names no host");
        }
        if authority.contains('@') {
            return refused(
                "it has a user name; send credentials in a header, such as \
                            Authorization: ${env.TOKEN}",
            );
        }
        if self.url.chars().any(|c| c.is_control() || c.is_whitespace()) {
            return refused("it contains a space or a control character");
        }
        Ok(())
    }

    fn check(&self) -> Result<(), Refusal> {
        self.check_url()?;
        if self.headers.len() > limits::HEADERS_MAX {
            let why = format!("more than {} headers", limits::HEADERS_MAX);
            return Err(Refusal::invalid("target.headers", why));
        }
        for (name, value) in &self.headers {
            if !is_token(name) {
                return Err(Refusal::invalid("target.headers", format!("{name:?} is not a header name")));
            }
            let derived =
                ["host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer"];
            if derived.iter().any(|own| name.eq_ignore_ascii_case(own)) {
                let why = format!("{name} follows from the request itself; leave it out");
                return Err(Refusal::invalid("target.headers", why));
            }
            check_length("target.headers", value, limits::HEADER_BYTES_MAX)?;
            if value.chars().any(|c| c.is_control() && c != '\t') {
                return Err(Refusal::invalid(
                    "target.headers",
                    format!("{name} contains a control character"),
                ));
            }
            Template::parse(value)
                .map_err(|why| Refusal::invalid("target.headers", format!("{name}: {why}")))?;
        }
        if let Some(body) = &self.body {
            check_length("target.body", body, limits::TARGET_BODY_BYTES_MAX)?;
            let template = Template::parse(body).map_err(|why| Refusal::invalid("target.body", why))?;
            if template.placeholders().any(|name| matches!(name, Placeholder::Env(_))) {
                let why = "environment variables are allowed in headers only";
                return Err(Refusal::invalid("target.body", why));
            }
        }
        if let Some(secret) = &self.secret {
            check_length("target.secret", secret.reveal(), limits::HEADER_BYTES_MAX)?;
            secret.check("target.secret")?;
        }
        let content_type = self.content_type.as_deref().unwrap_or_default();
        check_length("target.content_type", content_type, limits::LABEL_BYTES_MAX)?;
        if content_type.chars().any(char::is_control) {
            return Err(Refusal::invalid("target.content_type", "contains a control character"));
        }
        if self.dead_letter_on.len() > limits::RULES_MAX
            || self.dead_letter_on.iter().any(|status| !(300..=599).contains(status))
        {
            return Err(Refusal::invalid("target.dead_letter_on", "list statuses from 300 to 599"));
        }
        if self.redirects > limits::REDIRECTS_MAX {
            let why = format!("{} redirects; at most {} are followed", self.redirects, limits::REDIRECTS_MAX);
            return Err(Refusal::invalid("target.redirects", why));
        }
        if self.allow.len() > limits::RULES_MAX {
            return Err(Refusal::invalid("target.allow", format!("more than {} entries", limits::RULES_MAX)));
        }
        if self.max_response_bytes > limits::PAYLOAD_BYTES_MAX as u64 {
            let why = format!("at most {}: a response may become a message", limits::PAYLOAD_BYTES_MAX);
            return Err(Refusal::invalid("target.max_response_bytes", why));
        }
        check_span("target.timeout", self.timeout, Span::from_millis(1), limits::LEASE_MAX)?;
        check_span("target.connect_timeout", self.connect_timeout, Span::from_millis(1), limits::LEASE_MAX)
    }
}

/// How a command receives the payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PayloadBy {
    /// On standard input.
    #[default]
    Stdin,
    /// As a file, whose path is in `REDRIVE_PAYLOAD_FILE` and replaces `{payload_file}` in the arguments.
    File,
}

/// A command per message. Exit code 0 acknowledges the message, 75 asks for another attempt later, 65 makes the
/// message a dead letter at once, and every other code is a failure.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CommandTarget {
    /// The program and its arguments, which no shell interprets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub argv: Vec<String>,
    /// A shell command line, instead of `argv`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shell: Option<String>,
    /// How the command receives the payload.
    pub payload: PayloadBy,
    /// Environment variables for the command, beside those of the worker and those that describe the message.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Environment variables of the worker that the command does not get.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unset: Vec<String>,
    /// The working directory. Defaults to that of the worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// The time limit. `None` sets no limit.
    #[serde(rename = "timeout_ms", alias = "timeout", skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Span>,
}

impl CommandTarget {
    /// A target that runs a program with these arguments.
    pub fn argv(argv: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { argv: argv.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// A target that runs a shell command line.
    #[must_use]
    pub fn shell(line: impl Into<String>) -> Self {
        Self { shell: Some(line.into()), ..Self::default() }
    }

    fn check(&self) -> Result<(), Refusal> {
        let empty = self.shell.as_deref().or(self.argv.first().map(String::as_str)).is_none_or(str::is_empty);
        if empty || self.shell.is_some() != self.argv.is_empty() {
            let why = "name either a program with its arguments (argv) or a shell command line (shell)";
            return Err(Refusal::invalid("target", why));
        }
        let bytes = self.argv.iter().chain(&self.shell).map(String::len).sum::<usize>();
        if self.argv.len() > limits::ARGUMENTS_MAX || bytes > limits::ARGUMENT_BYTES_MAX {
            let why = format!(
                "at most {} arguments and {} bytes are allowed",
                limits::ARGUMENTS_MAX,
                limits::ARGUMENT_BYTES_MAX
            );
            return Err(Refusal::invalid("target.argv", why));
        }
        let env_bytes = self.env.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>();
        if env_bytes > limits::ARGUMENT_BYTES_MAX || self.unset.len() > limits::ARGUMENTS_MAX {
            let why = format!("at most {} bytes are allowed", limits::ARGUMENT_BYTES_MAX);
            return Err(Refusal::invalid("target.env", why));
        }
        if self.env.keys().chain(&self.unset).any(|name| name.is_empty() || name.contains('=')) {
            return Err(Refusal::invalid("target.env", "a variable needs a name without an equals sign"));
        }
        check_no_nul("target.argv", self.argv.iter().chain(&self.shell))?;
        check_no_nul(
            "target.env",
            self.env.iter().flat_map(|(name, value)| [name, value]).chain(&self.unset),
        )?;
        check_no_nul("target.directory", self.directory.iter())?;
        check_length(
            "target.directory",
            self.directory.as_deref().unwrap_or_default(),
            limits::TARGET_URL_BYTES_MAX,
        )?;
        self.timeout.map_or(Ok(()), |timeout| {
            check_span("target.timeout", timeout, Span::from_millis(1), limits::LEASE_MAX)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn http(change: impl FnOnce(&mut HttpTarget)) -> Result<(), String> {
        let mut target = HttpTarget::new("https://example.com/hook?a=b");
        change(&mut target);
        Target::Http(target).check().map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn an_http_target_is_checked_setting_by_setting() {
        http(|_| {}).unwrap();
        http(|t| t.url = "HTTP://[2606:4700::1111]:8080".into()).unwrap();
        http(|t| t.headers = [("Authorization".into(), "Bearer ${env.TOKEN}".into())].into()).unwrap();
        http(|t| t.body = Some("{\"n\": ${payload.n}}".into())).unwrap();
        type Change = fn(&mut HttpTarget);
        let wrong: [(Change, &str); 18] = [
            (|t| t.url = String::new(), "write it out"),
            (|t| t.url = "example.com".into(), "write it out"),
            (|t| t.url = "ftp://example.com".into(), "only http and https"),
            (|t| t.url = "https://".into(), "no host"),
            (|t| t.url = "https://user:pw@example.com/".into(), "user name"),
            (|t| t.url = "https://exa mple.com/".into(), "space"),
            (|t| t.url = format!("https://example.com/{}", "x".repeat(10_000)), "at most"),
            (|t| t.headers = [("a b".into(), String::new())].into(), "not a header name"),
            (|t| t.headers = [("Content-Length".into(), "5".into())].into(), "leave it out"),
            (|t| t.headers = [("x".into(), "a\r\nb: c".into())].into(), "control character"),
            (|t| t.headers = [("x".into(), "${nothing}".into())].into(), "not known"),
            (|t| t.body = Some("${env.HOME}".into()), "headers only"),
            (|t| t.body = Some("${".into()), "not closed"),
            (|t| t.dead_letter_on = vec![200], "300 to 599"),
            (|t| t.secret = Some(SecretSource::new("12345")), "target.secret"),
            (|t| t.redirects = 50, "at most"),
            (|t| t.timeout = Span::ZERO, "target.timeout"),
            (|t| t.max_response_bytes = u64::MAX, "may become a message"),
        ];
        for (change, says) in wrong {
            let error = http(change).unwrap_err();
            assert!(error.contains(says), "{error} should say {says}");
        }
    }

    #[test]
    fn a_command_is_either_a_program_or_a_shell_command_line() {
        let check = |target: CommandTarget| Target::Command(target).check();
        check(CommandTarget::argv(["./handler", "--fast"])).unwrap();
        check(CommandTarget::shell("grep -q ok")).unwrap();
        let both = CommandTarget { shell: Some("x".into()), ..CommandTarget::argv(["y"]) };
        let with_env = |name: &str, value: &str| CommandTarget {
            env: [(name.to_owned(), value.to_owned())].into(),
            ..CommandTarget::argv(["y"])
        };
        for wrong in [
            CommandTarget::default(),
            both,
            CommandTarget::argv([""]),
            CommandTarget::shell(""),
            CommandTarget::argv(["a\0b"]),
            CommandTarget::argv(vec!["x".to_owned(); 5_000]),
            CommandTarget::argv(["x".repeat(1 << 20)]),
            with_env("", "x"),
            with_env("a=b", "x"),
            with_env("a", "\0"),
            CommandTarget { timeout: Some(Span::ZERO), ..CommandTarget::argv(["y"]) },
        ] {
            assert!(check(wrong.clone()).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn targets_read_back_and_unknown_settings_are_errors() {
        let text = r#"{"type":"http","url":"https://example.com","timeout":"5s","dead_letter_on":[422],
            "allow":["10.0.0.0/8"]}"#;
        let target: Target = serde_json::from_str(text).unwrap();
        let Target::Http(http) = &target else { panic!("{target:?}") };
        assert_eq!(
            (http.timeout, http.method, &http.dead_letter_on),
            (Span::from_secs(5), Method::Post, &vec![422])
        );
        let again: Target = serde_json::from_str(&serde_json::to_string(&target).unwrap()).unwrap();
        assert_eq!(again, target);
        let command: Target =
            serde_json::from_str(r#"{"type":"command","argv":["x"],"payload":"file"}"#).unwrap();
        assert!(matches!(&command, Target::Command(c) if c.payload == PayloadBy::File));
        for wrong in [r#"{"type":"http","ulr":"x"}"#, r#"{"type":"mail"}"#, r#"{"url":"x"}"#] {
            assert!(serde_json::from_str::<Target>(wrong).is_err(), "{wrong}");
        }
    }
}
