//! E-mails. The feature `smtp` brings the client; without it a channel of this kind says so.

use crate::handler::{HandlerError, Outcome};
use redrive_core::alert::Notice;
use redrive_core::alert::channel::EmailChannel;

#[cfg(not(feature = "smtp"))]
pub(super) use absent::Mailer;
#[cfg(feature = "smtp")]
pub(super) use smtp::Mailer;

#[cfg(not(feature = "smtp"))]
mod absent {
    use super::{EmailChannel, HandlerError, Notice, Outcome};

    /// No mail client: there is never one of these.
    pub(crate) struct Mailer {}

    impl Mailer {
        pub(crate) fn new(_: &EmailChannel, _: fn(&str) -> Option<String>) -> Result<Self, String> {
            Err("this build cannot send e-mails; build redrive with `--features smtp`".into())
        }

        pub(crate) async fn send(&self, _: &Notice, _: &str) -> Outcome {
            Outcome::Fail(HandlerError::new("MailFailed", "this build cannot send e-mails"))
        }
    }
}

#[cfg(feature = "smtp")]
mod smtp {
    use super::{EmailChannel, HandlerError, Notice, Outcome};
    use lettre::message::{Mailbox, header};
    use lettre::transport::smtp::authentication::Credentials;
    use lettre::{AsyncSmtpTransport, AsyncTransport as _, Message, Tokio1Executor};
    use redrive_core::alert::channel::{MailEncryption, email_text, with_env};
    use std::time::Duration;

    /// How long one exchange with the mail server may take.
    const TIMEOUT: Duration = Duration::from_secs(30);

    /// A mail server and the people who get mail.
    pub(crate) struct Mailer {
        transport: AsyncSmtpTransport<Tokio1Executor>,
        from: Mailbox,
        to: Vec<Mailbox>,
    }

    impl Mailer {
        pub(crate) fn new(settings: &EmailChannel, env: fn(&str) -> Option<String>) -> Result<Self, String> {
            let mailbox = |text: &String| {
                text.parse::<Mailbox>().map_err(|error| format!("{text:?} is not a mail address: {error}"))
            };
            let server = settings.server.as_str();
            let builder = match settings.encryption {
                MailEncryption::Tls => AsyncSmtpTransport::<Tokio1Executor>::relay(server),
                MailEncryption::Starttls => AsyncSmtpTransport::<Tokio1Executor>::starttls_relay(server),
                MailEncryption::None => Ok(AsyncSmtpTransport::<Tokio1Executor>::builder_dangerous(server)),
            };
            let mut builder =
                builder.map_err(|error| error.to_string())?.port(settings.port()).timeout(Some(TIMEOUT));
            if let (Some(user), Some(password)) = (&settings.user, &settings.password) {
                let credentials = Credentials::new(with_env(user, env)?, with_env(password, env)?);
                builder = builder.credentials(credentials);
            }
            let to = settings.to.iter().map(mailbox).collect::<Result<Vec<_>, _>>()?;
            Ok(Self { transport: builder.build(), from: mailbox(&settings.from)?, to })
        }

        /// Sends the notice. Its id is that of the message, so that a mail that arrives twice can be recognised.
        pub(crate) async fn send(&self, notice: &Notice, id: &str) -> Outcome {
            let failed = |why: String| Outcome::Fail(HandlerError::new("MailFailed", why).step("smtp"));
            let (subject, text) = email_text(notice);
            let mut mail = Message::builder()
                .from(self.from.clone())
                .subject(subject)
                .message_id(Some(format!("<{id}@redrive>")))
                .header(header::ContentType::TEXT_PLAIN);
            for to in &self.to {
                mail = mail.to(to.clone());
            }
            let mail = match mail.body(text) {
                Ok(mail) => mail,
                Err(error) => return failed(error.to_string()),
            };
            match self.transport.send(mail).await {
                Ok(_) => Outcome::Done,
                Err(error) => {
                    let mut why = format!("the mail server did not take the mail: {error}");
                    let mut beneath = std::error::Error::source(&error);
                    while let Some(source) = beneath {
                        why.push_str(&format!(": {source}"));
                        beneath = source.source();
                    }
                    failed(why)
                }
            }
        }
    }
}
