//! Signatures of requests that Redrive sends, in the form of the Standard Webhooks specification: the receiver computes
//! the same HMAC over the id, the time and the body, and so knows that nobody else sent or changed them. This module
//! only computes. Whoever sends supplies the time and the secrets.

use crate::error::Refusal;
use crate::template::{Placeholder, Template, TextFormat};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use std::fmt;

/// The header with the id of the message. It stays the same for every attempt.
pub const ID_HEADER: &str = "webhook-id";
/// The header with the time of the attempt, in seconds since the epoch.
pub const TIMESTAMP_HEADER: &str = "webhook-timestamp";
/// The header with the signatures, separated by blanks.
pub const SIGNATURE_HEADER: &str = "webhook-signature";

/// What every secret begins with, so that people and scanners recognise one.
const PREFIX: &str = "whsec_";
/// The shortest secret: shorter ones can be guessed.
const BYTES_MIN: usize = 24;
/// The longest secret: longer ones add nothing.
const BYTES_MAX: usize = 64;
/// Secrets that sign one request. Two are enough while a receiver changes from one to the next.
const SECRETS_MAX: usize = 4;

/// Where the signing secrets of a target come from: `whsec_…` itself, or `${env.NAME}`, so that it need not be stored.
/// Several, separated by blanks, sign every request, so that a receiver can change from one to the next.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SecretSource(String);

impl fmt::Debug for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_reference() { &self.0 } else { "whsec_***" })
    }
}

impl SecretSource {
    /// A source that was not checked yet.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text as it was configured. It may be the secret itself.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether it only names where the secrets are, and holds none itself.
    #[must_use]
    pub fn is_reference(&self) -> bool {
        self.0.split_whitespace().all(|word| {
            let name = word.strip_prefix("${env.").and_then(|rest| rest.strip_suffix('}'));
            name.is_some_and(|name| !name.contains(['$', '{', '}']))
        })
    }

    /// Refuses a source that can never give a secret.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] for `field`. The text of the error does not contain the secret.
    pub fn check(&self, field: &str) -> Result<(), Refusal> {
        let invalid = |why: String| Refusal::invalid(field, why);
        let template = Template::parse(&self.0).map_err(invalid)?;
        if template.placeholders().any(|name| !matches!(name, Placeholder::Env(_))) {
            return Err(invalid("only ${env.NAME} may stand in a secret".into()));
        }
        if template.placeholders().next().is_none() {
            Secrets::parse(&self.0).map_err(invalid)?;
        }
        Ok(())
    }

    /// Reads the secrets. `env` looks up environment variables.
    ///
    /// # Errors
    /// A description of what is missing or wrong, without the secret.
    pub fn resolve(&self, env: impl Fn(&str) -> Option<String>) -> Result<Secrets, String> {
        let template = Template::parse(&self.0)?;
        for name in template.placeholders() {
            if let Placeholder::Env(variable) = name
                && env(variable).is_none()
            {
                return Err(format!("the secret is in the variable {variable}, which this process lacks"));
            }
        }
        let text = template.render(TextFormat::Plain, |name| match name {
            Placeholder::Env(variable) => env(variable).map(Into::into),
            Placeholder::Id
            | Placeholder::Queue
            | Placeholder::Kind
            | Placeholder::Key
            | Placeholder::Attempt
            | Placeholder::Payload(_)
            | Placeholder::Context(_)
            | Placeholder::Header(_) => None,
        });
        Secrets::parse(&text)
    }
}

/// The secrets that sign one request.
#[derive(Clone)]
pub struct Secrets(Vec<Vec<u8>>);

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} secrets", self.0.len())
    }
}

impl Secrets {
    /// Parses secrets: `whsec_` and base64, separated by blanks.
    ///
    /// # Errors
    /// A description that does not contain the secret.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wanted = format!(
            "write `{PREFIX}` and the base64 of {BYTES_MIN} to {BYTES_MAX} random bytes, such as the output of \
             `echo {PREFIX}$(openssl rand -base64 32)`, or ${{env.NAME}}"
        );
        let mut keys = Vec::new();
        for word in text.split_whitespace() {
            let encoded = word.strip_prefix(PREFIX).ok_or_else(|| wanted.clone())?;
            let key = STANDARD.decode(encoded).map_err(|_| wanted.clone())?;
            if !(BYTES_MIN..=BYTES_MAX).contains(&key.len()) {
                return Err(wanted);
            }
            keys.push(key);
        }
        if keys.is_empty() || keys.len() > SECRETS_MAX {
            return Err(wanted);
        }
        Ok(Self(keys))
    }

    /// The value of [`SIGNATURE_HEADER`]: one signature for each secret.
    #[must_use]
    pub fn sign(&self, id: &str, timestamp: u64, body: &[u8]) -> String {
        let signature = |key: &Vec<u8>| {
            // An HMAC takes keys of any length.
            let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
            mac.update(format!("{id}.{timestamp}.").as_bytes());
            mac.update(body);
            Some(format!("v1,{}", STANDARD.encode(mac.finalize().into_bytes())))
        };
        self.0.iter().filter_map(signature).collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

    #[test]
    fn the_example_of_the_specification_is_signed_as_it_says() {
        let secrets = Secrets::parse(SECRET).unwrap();
        let signed = secrets.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, br#"{"test": 2432232314}"#);
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn two_secrets_give_two_signatures() {
        let one = Secrets::parse(SECRET).unwrap().sign("a", 1, b"x");
        let both = format!("{SECRET} whsec_{}", STANDARD.encode([7; 32]));
        let two = Secrets::parse(&both).unwrap().sign("a", 1, b"x");
        assert_eq!(two.split(' ').next(), Some(one.as_str()));
        assert_eq!(two.split(' ').count(), 2);
    }

    #[test]
    fn whatever_is_no_secret_is_refused_without_repeating_it() {
        let long = format!("whsec_{}", STANDARD.encode([0; 65]));
        let many = [SECRET; 5].join(" ");
        for wrong in [
            "",
            "hunter2hunter2",
            "whsec_",
            "whsec_c2hvcnQ=",
            "whsec_not base64",
            &long,
            &many,
            "${payload.x}",
        ] {
            let error = SecretSource::new(wrong).check("target.secret").unwrap_err().to_string();
            assert!(error.contains("target.secret") && !error.contains("hunter2"), "{error}");
        }
        SecretSource::new(SECRET).check("target.secret").unwrap();
        SecretSource::new("${env.HOOK_SECRET}").check("target.secret").unwrap();
    }

    #[test]
    fn a_reference_is_read_when_it_is_needed() {
        let source = SecretSource::new("${env.HOOK_SECRET}");
        let absent = source.resolve(|_| None).unwrap_err();
        assert!(absent.contains("HOOK_SECRET"), "{absent}");
        let secrets = source.resolve(|name| (name == "HOOK_SECRET").then(|| SECRET.to_owned())).unwrap();
        assert_eq!(secrets.sign("a", 1, b"x"), Secrets::parse(SECRET).unwrap().sign("a", 1, b"x"));
        assert!(source.resolve(|_| Some("short".into())).is_err());
    }

    #[test]
    fn debug_output_shows_no_secret() {
        let (stored, named) = (SecretSource::new(SECRET), SecretSource::new("${env.X}"));
        let text = format!("{stored:?} {named:?} {:?}", Secrets::parse(SECRET).unwrap());
        assert_eq!(text, "whsec_*** ${env.X} 1 secrets");
        for partly in ["${env.X} whsec_x", "whsec_x${env.X}", "${env.X}whsec_x${env.Y}"] {
            assert!(!SecretSource::new(partly).is_reference(), "{partly}");
        }
    }
}
