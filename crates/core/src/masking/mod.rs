//! Masking hides what is not shown by default: passwords, tokens, card numbers, personal addresses. [`Rules`] decide by
//! the name of a field and by the look of a value what is secret, and replace exactly that by a mark such as
//! `[masked:email]`. All other bytes stay as they are: JSON is spliced, never parsed and written again, so big
//! integers, key order and white space are preserved.
//!
//! The same rules make the view of a letter that operators see, and remove secrets from error text before it is stored.
//! Masking must not panic on any input, take more than linear time, or change what is already masked. It is a safety
//! net, not a proof: a secret that looks like an ordinary word under an ordinary name is not found.

mod detect;
mod json;
mod keys;
mod lines;
mod shown;
mod text;
mod view;

pub use shown::MaskedView;

use crate::error::Refusal;
use crate::failure::named;
use crate::limits;
use keys::Keys;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::sync::{Arc, LazyLock};

named! {
    /// A kind of secret that is recognised by its look, whatever its name.
    Detector, "detector", {
        /// An email address.
        Email = "email",
        /// A JSON web token: a signed token of three parts.
        Jwt = "jwt",
        /// An access key of Amazon Web Services.
        Aws = "aws",
        /// A private key in PEM.
        Pem = "pem",
        /// A payment card number with a valid check digit.
        Card = "card",
        /// A bank account number with valid check digits.
        Iban = "iban",
        /// A US social security number.
        Ssn = "ssn",
        /// What follows `Bearer` or `Basic`.
        Bearer = "bearer",
        /// User and password in a URL.
        Login = "login",
        /// A token with the known prefix of a service.
        Token = "token",
        /// A long string of random letters and digits.
        Random = "random",
    }
}

/// The masking settings of an operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MaskingSpec {
    /// Whether anything is masked at all.
    pub on: bool,
    /// Whether the built-in field names apply.
    pub builtin: bool,
    /// More names of fields whose values are secret; `*` stands for anything, case and `-_. ` do not matter.
    pub keys: Vec<String>,
    /// Names of fields that are shown although a name above matches. Detectors still mask what they find in them.
    pub shown: Vec<String>,
    /// Detectors that are switched off.
    pub without: Vec<Detector>,
}

impl Default for MaskingSpec {
    fn default() -> Self {
        Self { on: true, builtin: true, keys: Vec::new(), shown: Vec::new(), without: Vec::new() }
    }
}

/// Compiled masking rules.
#[derive(Clone, Debug)]
pub struct Rules {
    on: bool,
    keys: Arc<Keys>,
    without: Vec<Detector>,
}

/// The built-in field names, shared because every failure that is analysed without a configuration needs them.
static BUILTIN: LazyLock<Arc<Keys>> = LazyLock::new(|| Arc::new(Keys::builtin()));

impl Default for Rules {
    fn default() -> Self {
        Self { on: true, keys: Arc::clone(&BUILTIN), without: Vec::new() }
    }
}

/// A payload that may be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Masked {
    /// The masked text; always UTF-8, whatever the payload was.
    pub text: String,
    /// The number of places that are masked.
    pub places: usize,
}

/// A range of a text and its replacement.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Edit {
    range: Range<usize>,
    with: String,
}

/// The mark for a value that was masked because of its name.
const MARK: &str = "[masked]";

/// The mark for a value that a detector found.
fn mark_of(detector: Detector) -> String {
    format!("[masked:{}]", detector.name())
}

impl Rules {
    /// Rules that mask nothing.
    #[must_use]
    pub fn off() -> Self {
        Self { on: false, ..Self::default() }
    }

    /// Compiles the settings of an operator.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] if a name matches everything or nothing, or there are too many names.
    pub fn compile(spec: &MaskingSpec) -> Result<Self, Refusal> {
        if spec.keys.len() + spec.shown.len() > limits::MASKING_KEYS_MAX {
            let reason = format!("more than {} names of fields", limits::MASKING_KEYS_MAX);
            return Err(Refusal::invalid("masking", reason));
        }
        let mut keys = if spec.builtin { Keys::builtin() } else { Keys::default() };
        for key in &spec.keys {
            keys.hide(key).map_err(|reason| Refusal::invalid("masking.keys", reason))?;
        }
        for key in &spec.shown {
            keys.show(key).map_err(|reason| Refusal::invalid("masking.shown", reason))?;
        }
        Ok(Self { on: spec.on, keys: Arc::new(keys), without: spec.without.clone() })
    }

    /// Whether anything is masked at all.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.on
    }

    /// Whether the value of a field with this name is secret.
    #[must_use]
    pub fn hides(&self, key: &str) -> bool {
        self.on && self.keys.hides(key).is_some()
    }

    fn uses(&self, detector: Detector) -> bool {
        !self.without.contains(&detector)
    }

    /// Masks free text: an error message, a stack, a note.
    #[must_use]
    pub fn mask_text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if !self.on {
            return Cow::Borrowed(text);
        }
        applied(text, &text::edits(self, text))
    }

    /// Masks a payload. JSON is spliced, and other text is treated as free text. If it is not text, only the size is
    /// shown, because its content is unknown. The content type is only the sender's claim and is ignored.
    #[must_use]
    pub fn mask_payload(&self, bytes: &[u8]) -> Masked {
        let Ok(text) = std::str::from_utf8(bytes) else {
            let size = bytes.len();
            return Masked { text: format!("[masked: {size} bytes that are not text]"), places: 1 };
        };
        if !self.on {
            return Masked { text: text.to_owned(), places: 0 };
        }
        let edits = json::edits(self, text, 0).unwrap_or_else(|| text::edits(self, text));
        Masked { text: applied(text, &edits).into_owned(), places: edits.len() }
    }

    /// Masks headers, by name and by the look of their values.
    #[must_use]
    pub fn mask_headers(&self, headers: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let masked = |(name, value): (&String, &String)| (name.clone(), self.mask_field(name, value));
        headers.iter().map(masked).collect()
    }

    /// Masks the value of a field.
    #[must_use]
    pub fn mask_field(&self, name: &str, value: &str) -> String {
        if self.hides(name) && !value.is_empty() {
            return MARK.to_owned();
        }
        self.mask_text(value).into_owned()
    }

    /// Masks a JSON value.
    #[must_use]
    pub fn mask_value(&self, value: &serde_json::Value) -> serde_json::Value {
        let text = value.to_string();
        let masked = self.mask_payload(text.as_bytes());
        if masked.places == 0 {
            return value.clone();
        }
        // A spliced document is JSON again. If it were not, nothing of it would be shown.
        serde_json::from_str(&masked.text).unwrap_or_else(|_| MARK.into())
    }
}

/// The text with these edits applied; they are in order and do not overlap.
fn applied<'a>(text: &'a str, edits: &[Edit]) -> Cow<'a, str> {
    if edits.is_empty() {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    for edit in edits {
        out.push_str(text.get(at..edit.range.start).unwrap_or_default());
        out.push_str(&edit.with);
        at = edit.range.end;
    }
    out.push_str(text.get(at..).unwrap_or_default());
    Cow::Owned(out)
}

#[cfg(test)]
mod tests;
