//! Channels: where alerts are sent, and what is written there. This module checks the settings and writes the bodies;
//! the library sends them.

use super::{AlertLevel, ChannelView, Notice, NoticeStatus};
use crate::address::Network;
use crate::error::Refusal;
use crate::limits;
use crate::target::{CommandTarget, HttpTarget, Target};
use crate::template::{Placeholder, Template, TextFormat};
use crate::time::Span;
use crate::webhook::SecretSource;
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Where PagerDuty takes events.
const PAGERDUTY_URL: &str = "https://events.pagerduty.com/v2/enqueue";
/// Characters that Discord takes in one message.
const DISCORD_CHARS: usize = 2_000;
/// Characters of the summary that PagerDuty takes.
const PAGERDUTY_CHARS: usize = 1_024;
/// Recipients of one e-mail.
const RECIPIENTS_MAX: usize = 50;

/// One channel.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ChannelSettings {
    /// A JSON document to any URL, signed if there is a secret.
    Webhook(HttpChannel),
    /// A message to Slack, by an incoming webhook.
    Slack(HttpChannel),
    /// A card to Microsoft Teams, by a workflow's webhook.
    Teams(HttpChannel),
    /// A message to Discord, by a webhook.
    Discord(HttpChannel),
    /// An incident of PagerDuty, which ends with the alert.
    Pagerduty(PagerdutyChannel),
    /// An e-mail.
    Email(EmailChannel),
    /// A command that gets the notice as JSON on standard input.
    Command(CommandChannel),
    /// A line in the log of the process.
    Log(LogChannel),
}

/// A channel that is a URL.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpChannel {
    /// The URL, which may be `${env.NAME}`.
    pub url: String,
    /// The secret that signs requests, which may be `${env.NAME}`.
    pub secret: Option<SecretSource>,
    /// Headers. Their values may use `${env.NAME}`.
    pub headers: BTreeMap<String, String>,
    /// Whether this machine and private networks are allowed.
    pub allow_private: bool,
    /// Networks that are allowed, of whatever kind.
    pub allow: Vec<Network>,
    /// How long one request may take. 10 seconds unless set.
    pub timeout: Option<Span>,
    /// A PEM file with certificates to trust beside those of the system.
    pub ca_file: Option<String>,
}

/// An integration of PagerDuty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PagerdutyChannel {
    /// The key of the integration (Events API v2), which may be `${env.NAME}`.
    pub routing_key: String,
    /// Another URL than that of PagerDuty.
    pub url: Option<String>,
    /// Whether this machine and private networks are allowed.
    pub allow_private: bool,
}

/// How the connection to a mail server is protected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MailEncryption {
    /// TLS from the first byte.
    #[default]
    Tls,
    /// TLS after the greeting. A server that does not offer it gets nothing.
    Starttls,
    /// None. A password is refused then, except on this machine.
    None,
}

/// A mail server and the people who get mail.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EmailChannel {
    /// The host name of the mail server.
    pub server: String,
    /// Its port: 465 for TLS, 587 for STARTTLS, 25 otherwise.
    pub port: Option<u16>,
    /// How the connection is protected.
    pub encryption: MailEncryption,
    /// The user name, if the server wants one.
    pub user: Option<String>,
    /// The password, which may be `${env.NAME}`.
    pub password: Option<String>,
    /// The sender.
    pub from: String,
    /// The recipients.
    pub to: Vec<String>,
}

impl EmailChannel {
    /// The port to connect to.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.unwrap_or(match self.encryption {
            MailEncryption::Tls => 465,
            MailEncryption::Starttls => 587,
            MailEncryption::None => 25,
        })
    }
}

/// A command.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CommandChannel {
    /// The program and its arguments, which no shell interprets.
    pub argv: Vec<String>,
    /// The time limit. 60 seconds unless set.
    pub timeout: Option<Span>,
}

/// The log of the process. It has no settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogChannel {}

/// Fills in environment variables.
///
/// # Errors
/// What is missing or not allowed, without any value.
pub fn with_env(text: &str, env: impl Fn(&str) -> Option<String>) -> Result<String, String> {
    let template = Template::parse(text)?;
    for name in template.placeholders() {
        match name {
            Placeholder::Env(variable) if env(variable).is_some() => {}
            Placeholder::Env(variable) => {
                return Err(format!("it needs the variable {variable}, which this process does not have"));
            }
            Placeholder::Id
            | Placeholder::Queue
            | Placeholder::Kind
            | Placeholder::Key
            | Placeholder::Attempt
            | Placeholder::Payload(_)
            | Placeholder::Context(_)
            | Placeholder::Header(_) => return Err("only ${env.NAME} may stand here".into()),
        }
    }
    let value = |name: &Placeholder| match name {
        Placeholder::Env(variable) => env(variable).map(Value::from),
        Placeholder::Id
        | Placeholder::Queue
        | Placeholder::Kind
        | Placeholder::Key
        | Placeholder::Attempt
        | Placeholder::Payload(_)
        | Placeholder::Context(_)
        | Placeholder::Header(_) => None,
    };
    Ok(template.render(TextFormat::Plain, value))
}

impl ChannelSettings {
    /// The name of the kind.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Webhook(_) => "webhook",
            Self::Slack(_) => "slack",
            Self::Teams(_) => "teams",
            Self::Discord(_) => "discord",
            Self::Pagerduty(_) => "pagerduty",
            Self::Email(_) => "email",
            Self::Command(_) => "command",
            Self::Log(_) => "log",
        }
    }

    /// The channel as it is shown. The path of a URL is often a secret, so only its host is.
    #[must_use]
    pub fn view(&self, name: &str) -> ChannelView {
        let to = match self {
            Self::Webhook(http) | Self::Slack(http) | Self::Teams(http) | Self::Discord(http) => {
                host_of(&http.url)
            }
            Self::Pagerduty(pagerduty) => host_of(pagerduty.url.as_deref().unwrap_or(PAGERDUTY_URL)),
            Self::Email(email) => format!("{} by {}", email.to.join(", "), email.server),
            Self::Command(command) => command.argv.first().cloned().unwrap_or_default(),
            Self::Log(_) => "the log of the process that evaluates the rules".into(),
        };
        ChannelView { name: name.to_owned(), kind: self.kind().into(), to }
    }

    /// Refuses settings that can never work. What stands in environment variables is looked at when it is needed.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] naming the setting.
    pub fn check(&self, field: &str) -> Result<(), Refusal> {
        // Variables that are not set here may be set where alerts are sent.
        let any = |_: &str| Some("https://example.com".to_owned());
        let invalid =
            |name: &str, why: &str| Err(Refusal::invalid(format!("{field}.{name}"), why.to_owned()));
        match self {
            Self::Email(email) => {
                if email.server.is_empty() {
                    return invalid("server", "name the mail server");
                }
                let addresses = std::iter::once(&email.from).chain(&email.to);
                if email.to.is_empty() || addresses.clone().any(|address| !address.contains('@')) {
                    return invalid("to", "`from` and `to` need mail addresses");
                }
                if email.to.len() > RECIPIENTS_MAX {
                    return invalid("to", "too many; use a mailing list");
                }
                if email.user.is_some() != email.password.is_some() {
                    return invalid("user", "`user` and `password` belong together");
                }
                let local = ["localhost", "127.0.0.1", "::1"].contains(&email.server.as_str());
                if email.password.is_some() && email.encryption == MailEncryption::None && !local {
                    return invalid("encryption", "a password is not sent unprotected; use tls or starttls");
                }
                Ok(())
            }
            Self::Command(command) => {
                Target::Command(command.target()).check().map_err(|refusal| renamed(field, refusal))
            }
            Self::Log(_) => Ok(()),
            Self::Pagerduty(pagerduty) if pagerduty.routing_key.is_empty() => {
                invalid("routing_key", "name the key of the integration (Events API v2)")
            }
            Self::Webhook(_) | Self::Slack(_) | Self::Teams(_) | Self::Discord(_) | Self::Pagerduty(_) => {
                let target = self.http_target(any).map_err(|why| Refusal::invalid(field, why))?;
                target.map_or(Ok(()), |target| {
                    Target::Http(target).check().map_err(|refusal| renamed(field, refusal))
                })
            }
        }
    }

    /// The target that notices are sent to, for channels that are URLs.
    ///
    /// # Errors
    /// What is missing, without any value.
    pub fn http_target(&self, env: impl Fn(&str) -> Option<String>) -> Result<Option<HttpTarget>, String> {
        let limited = |url: &str, allow_private: bool, timeout: Option<Span>| {
            Ok::<_, String>(HttpTarget {
                allow_private,
                timeout: timeout.unwrap_or(Span::from_secs(10)),
                max_response_bytes: 64 * 1024,
                ..HttpTarget::new(with_env(url, &env)?)
            })
        };
        match self {
            Self::Webhook(http) | Self::Slack(http) | Self::Teams(http) | Self::Discord(http) => {
                Ok(Some(HttpTarget {
                    secret: http.secret.clone(),
                    headers: http.headers.clone(),
                    allow: http.allow.clone(),
                    ca_file: http.ca_file.clone(),
                    ..limited(&http.url, http.allow_private, http.timeout)?
                }))
            }
            Self::Pagerduty(pagerduty) => {
                let url = pagerduty.url.as_deref().unwrap_or(PAGERDUTY_URL);
                Ok(Some(limited(url, pagerduty.allow_private, None)?))
            }
            Self::Email(_) | Self::Command(_) | Self::Log(_) => Ok(None),
        }
    }

    /// What is sent.
    ///
    /// # Errors
    /// What is missing, without any value.
    pub fn body(&self, notice: &Notice, env: impl Fn(&str) -> Option<String>) -> Result<Value, String> {
        Ok(match self {
            Self::Slack(_) => slack(notice),
            Self::Teams(_) => teams(notice),
            Self::Discord(_) => discord(notice),
            Self::Pagerduty(settings) => pagerduty(notice, &with_env(&settings.routing_key, env)?),
            Self::Webhook(_) | Self::Email(_) | Self::Command(_) | Self::Log(_) => webhook(notice),
        })
    }
}

impl CommandChannel {
    /// The command as a target.
    #[must_use]
    pub fn target(&self) -> CommandTarget {
        let timeout = self.timeout.or(Some(Span::from_secs(60)));
        CommandTarget { timeout, ..CommandTarget::argv(&self.argv) }
    }
}

/// The same refusal about a setting of a channel.
fn renamed(field: &str, refusal: Refusal) -> Refusal {
    let Refusal::Invalid { field: inner, why } = &refusal else { return refusal };
    let inner = inner.strip_prefix("target.").unwrap_or(inner);
    Refusal::invalid(format!("{field}.{inner}"), why.clone())
}

/// The scheme and host of a URL.
fn host_of(url: &str) -> String {
    match url.split_once("://") {
        Some((scheme, rest)) => {
            format!("{scheme}://{}/…", rest.split(['/', '?', '#']).next().unwrap_or_default())
        }
        None => "(from the environment)".into(),
    }
}

fn cut(text: &str, chars: usize) -> String {
    text.chars().take(chars).collect()
}

/// The document of a webhook, in the form that Standard Webhooks recommend.
fn webhook(notice: &Notice) -> Value {
    let mut data = serde_json::to_value(notice).unwrap_or_default();
    if let Some(fields) = data.as_object_mut() {
        fields.remove("channels");
        fields.insert("title".into(), notice.title().into());
    }
    json!({"type": format!("alert.{}", notice.status), "timestamp": notice.at, "data": data})
}

/// A message of Slack. What could be read as a mention or a link is escaped.
fn slack(notice: &Notice) -> Value {
    let plain = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let mut text = plain(&notice.title());
    if let Some(link) = &notice.link {
        text.push_str(&format!("\n<{link}|Look>"));
    }
    json!({"text": text})
}

/// A card of Teams.
fn teams(notice: &Notice) -> Value {
    let colour = match (notice.status, notice.level) {
        (NoticeStatus::Cleared | NoticeStatus::Test, _) => "good",
        (NoticeStatus::Firing, AlertLevel::Critical) => "attention",
        (NoticeStatus::Firing, AlertLevel::Warning) => "warning",
    };
    let actions: Vec<Value> = notice
        .link
        .iter()
        .map(|link| json!({"type": "Action.OpenUrl", "title": "Look", "url": link}))
        .collect();
    let heading = format!("{} {}", notice.rule, notice.subject);
    json!({"type": "message", "attachments": [{
        "contentType": "application/vnd.microsoft.card.adaptive",
        "content": {
            "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
            "type": "AdaptiveCard",
            "version": "1.4",
            "body": [
                {"type": "TextBlock", "weight": "bolder", "color": colour, "wrap": true, "text": heading},
                {"type": "TextBlock", "wrap": true, "text": notice.title()},
            ],
            "actions": actions,
        },
    }]})
}

/// A message of Discord that mentions nobody.
fn discord(notice: &Notice) -> Value {
    let link = notice.link.as_ref().map(|link| format!("\n<{link}>")).unwrap_or_default();
    let room = DISCORD_CHARS.saturating_sub(link.chars().count());
    let text = format!("{}{link}", cut(&notice.title(), room));
    json!({"content": text, "allowed_mentions": {"parse": []}})
}

/// An event of PagerDuty. The end of an alert resolves the incident that its beginning made.
fn pagerduty(notice: &Notice, routing_key: &str) -> Value {
    let action = match notice.status {
        NoticeStatus::Firing | NoticeStatus::Test => "trigger",
        NoticeStatus::Cleared => "resolve",
    };
    let severity = match notice.status {
        NoticeStatus::Test => "info",
        NoticeStatus::Firing | NoticeStatus::Cleared => notice.level.name(),
    };
    let links: Vec<Value> = notice.link.iter().map(|link| json!({"href": link, "text": "Look"})).collect();
    json!({
        "routing_key": routing_key,
        "event_action": action,
        "dedup_key": format!("redrive/{}/{}/{}", notice.rule, cut(&notice.subject, 150), notice.firing),
        "payload": {
            "summary": cut(&notice.title(), PAGERDUTY_CHARS),
            "source": "redrive",
            "severity": severity,
            "timestamp": notice.at,
            "component": notice.subject,
            "class": notice.rule,
        },
        "links": links,
    })
}

/// The subject and the text of an e-mail.
#[must_use]
pub fn email_text(notice: &Notice) -> (String, String) {
    let subject: String = notice.title().chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let mut text = format!(
        "{}\n\nrule: {}\nsubject: {}\nlevel: {}\nsince: {}\n",
        notice.text, notice.rule, notice.subject, notice.level, notice.since
    );
    if let Some(link) = &notice.link {
        text.push_str(&format!("\n{link}\n"));
    }
    (cut(&subject, limits::LABEL_BYTES_MAX), text)
}
