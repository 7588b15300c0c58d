//! Sends notices to their channels. A notice is a message of the queue of alerts, so whatever goes wrong here is a failed
//! delivery like any other.

use super::mail::Mailer;
use crate::executor::{CommandExecutor, HttpExecutor};
use crate::handler::{Context, Handler, HandlerError, Outcome};
use async_trait::async_trait;
use redrive_core::alert::channel::ChannelSettings;
use redrive_core::alert::kv;
use redrive_core::alert::{AlertSettings, CHANNEL_HEADER, ChannelView, Notice};
use redrive_core::error::{CallError, Refusal};
use redrive_core::ids::{LeaseToken, Secret};
use redrive_core::json_input::nearest;
use redrive_core::message::Delivery;
use redrive_core::policy::QueuePolicy;
use redrive_core::time::Time;
use std::collections::BTreeMap;
use std::fmt;
use std::time::SystemTime;
use tokio_util::sync::CancellationToken;

/// The channels of the alerts: a [`Handler`] for the messages of their queue.
#[derive(Debug)]
pub struct Channels(BTreeMap<String, Channel>);

struct Channel {
    settings: ChannelSettings,
    /// What sends, or why it cannot.
    sender: Result<Sender, String>,
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.settings.kind())
    }
}

enum Sender {
    Http(Box<HttpExecutor>),
    Command(CommandExecutor),
    Mail(Box<Mailer>),
    Log,
}

fn env(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

impl Channels {
    /// The channels of these settings. One that cannot work here is kept: its messages fail and say why.
    #[must_use]
    pub fn new(settings: &AlertSettings) -> Self {
        let channel = |(name, settings): (&String, &ChannelSettings)| {
            let sender = sender(settings).inspect_err(|why| {
                tracing::warn!(channel = name, why, "alerts cannot be sent to this channel");
            });
            (name.clone(), Channel { settings: settings.clone(), sender })
        };
        Self(settings.channels.iter().map(channel).collect())
    }

    /// Whether there is no channel.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The channels that a notice is for.
    pub(super) fn of(&self, notice: &Notice) -> Vec<String> {
        let wanted = |name: &&String| notice.channels.is_empty() || notice.channels.contains(*name);
        self.0.keys().filter(wanted).cloned().collect()
    }

    /// The channels as they are shown.
    pub(super) fn views(&self) -> Vec<ChannelView> {
        self.0.iter().map(|(name, channel)| channel.settings.view(name)).collect()
    }

    /// What is wrong with channels.
    pub(super) fn problems(&self) -> Vec<String> {
        let problem = |(name, channel): (&String, &Channel)| {
            let why = channel.sender.as_ref().err()?;
            Some(format!("alerts cannot be sent to the channel {name}: {why}"))
        };
        self.0.iter().filter_map(problem).collect()
    }
}

/// What sends to a channel.
fn sender(settings: &ChannelSettings) -> Result<Sender, String> {
    let refused = |refusal: Refusal| refusal.to_string();
    if let Some(target) = settings.http_target(env)? {
        return HttpExecutor::new(target).map(Box::new).map(Sender::Http).map_err(refused);
    }
    match settings {
        ChannelSettings::Command(command) => {
            CommandExecutor::new(command.target()).map(Sender::Command).map_err(refused)
        }
        ChannelSettings::Email(email) => Mailer::new(email, env).map(Box::new).map(Sender::Mail),
        ChannelSettings::Log(_)
        | ChannelSettings::Webhook(_)
        | ChannelSettings::Slack(_)
        | ChannelSettings::Teams(_)
        | ChannelSettings::Discord(_)
        | ChannelSettings::Pagerduty(_) => Ok(Sender::Log),
    }
}

impl Channel {
    async fn send(&self, notice: &Notice, context: Context) -> Outcome {
        let misconfigured = |why: String| Outcome::Fail(HandlerError::new("Misconfigured", why));
        let sender = match &self.sender {
            Ok(sender) => sender,
            Err(why) => return misconfigured(why.clone()),
        };
        let body = match self.settings.body(notice, env) {
            Ok(body) => body,
            Err(why) => return misconfigured(why),
        };
        match sender {
            Sender::Http(http) => http.handle(with_body(&context, body.to_string())).await,
            Sender::Command(command) => command.handle(with_body(&context, body.to_string())).await,
            Sender::Mail(mailer) => mailer.send(notice, &context.message().id.to_string()).await,
            Sender::Log => {
                let Notice { number, rule, level, subject, text, status, .. } = notice;
                tracing::warn!(number, %rule, %level, subject, text, %status, "alert");
                Outcome::Done
            }
        }
    }
}

/// The same delivery with another body: what the receiver of the channel reads.
fn with_body(context: &Context, body: String) -> Context {
    let mut delivery: Delivery = context.delivery().clone();
    delivery.message.envelope.payload.bytes = body.into_bytes();
    Context::detached(delivery, context.cancellation().clone())
}

#[async_trait]
impl Handler for Channels {
    async fn handle(&self, context: Context) -> Outcome {
        let notice: Notice = match context.payload() {
            Ok(notice) => notice,
            Err(error) => return Outcome::Fail(error.permanent()),
        };
        let name = context.message().headers.get(CHANNEL_HEADER).cloned().unwrap_or_default();
        match self.0.get(&name) {
            Some(channel) => channel.send(&notice, context).await,
            None => {
                let why = format!("there is no channel {name:?} in [alerts.channels] any more");
                Outcome::DeadLetter(HandlerError::new("NoSuchChannel", why))
            }
        }
    }
}

/// What to say about a channel that is not there.
#[must_use]
pub fn no_such_channel(channel: &str, known: &[&str]) -> String {
    let hint = match nearest(channel, known) {
        Some(near) => format!("; did you mean `{near}`?"),
        None if known.is_empty() => "; redrive.toml has no [alerts.channels]".into(),
        None => format!("; there are {}", known.join(", ")),
    };
    format!("there is no channel {channel:?}{hint}")
}

/// Sends a test to one channel, past the queue, so that whoever asked sees at once whether it worked.
///
/// # Errors
/// If there is no such channel, and whatever went wrong on the way.
pub async fn test_channel(
    settings: &AlertSettings,
    channel: &str,
    by: &str,
    links: Option<String>,
) -> Result<(), String> {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let now = Time::from_millis(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX));
    let channels = Channels::new(settings);
    if !channels.0.contains_key(channel) {
        let known: Vec<&str> = channels.0.keys().map(String::as_str).collect();
        return Err(no_such_channel(channel, &known));
    }
    let notice = Notice::test(channel, by, now, links);
    let message =
        kv::message(crate::new_id(), &notice, channel).map_err(|error: CallError| error.to_string())?;
    let policy = QueuePolicy::default();
    let message = message.accept(&policy, 1, now).view(&policy, now);
    let token = LeaseToken { id: message.envelope.id, secret: Secret::new([0; 16]) };
    let delivery = Delivery { message, token, attempt: 1 };
    match channels.handle(Context::detached(delivery, CancellationToken::new())).await {
        Outcome::Done | Outcome::Reply(_) => Ok(()),
        Outcome::Fail(error) | Outcome::DeadLetter(error) => Err(error.report().error.message.clone()),
        Outcome::Release | Outcome::Snooze(_) => Err("the channel asks to try again later".into()),
    }
}
