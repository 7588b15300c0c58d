//! What is not shown unasked: passwords, tokens, cards, addresses of people. [`Rules`] say by the name of a field
//! and by the look of a value what is secret, and replace exactly that by a mark such as `[masked:email]`. All
//! other bytes stay as they are: JSON is spliced, never parsed and written again, so big integers, key order and
//! white space are what they were.
//!
//! The same rules make the view of a letter that people see, and take secrets out of error text before it is
//! stored. It must not panic on any input, take more than linear time, or change what it has already masked. It is
//! a net, not a proof: a secret that looks like an ordinary word under an ordinary name is not found.

mod detect;
mod json;
mod keys;
mod lines;
mod text;
mod view;

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
    /// A kind of secret that is known by its look, whatever it is called.
    Detector, "detector", {
        /// An address of a person.
        Email = "email",
        /// A signed token of three parts.
        Jwt = "jwt",
        /// An access key of Amazon.
        Aws = "aws",
        /// A private key in PEM.
        Pem = "pem",
        /// A payment card number whose check digit is right.
        Card = "card",
        /// A bank account number whose check digits are right.
        Iban = "iban",
        /// A social security number.
        Ssn = "ssn",
        /// What follows `Bearer` or `Basic`.
        Bearer = "bearer",
        /// User and password in an address.
        Login = "login",
        /// A token with the prefix of a service that gives such tokens out.
        Token = "token",
        /// A long string of random letters and digits.
        Random = "random",
    }
}

/// What an operator wants masked, as it is configured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MaskingSpec {
    /// Whether anything is masked at all.
    pub on: bool,
    /// Whether the built-in names of fields count.
    pub builtin: bool,
    /// More names of fields whose values are secret; `*` stands for anything, case and `-_. ` do not matter.
    pub keys: Vec<String>,
    /// Names of fields that are shown although a name above matches. What a detector finds in them is masked.
    pub shown: Vec<String>,
    /// Detectors that are switched off.
    pub without: Vec<Detector>,
}

impl Default for MaskingSpec {
    fn default() -> Self {
        Self { on: true, builtin: true, keys: Vec::new(), shown: Vec::new(), without: Vec::new() }
    }
}

/// The rules, ready to be used.
#[derive(Clone, Debug)]
pub struct Rules {
    on: bool,
    keys: Arc<Keys>,
    without: Vec<Detector>,
}

/// Every failure that is analysed without a configuration asks for these.
static BUILTIN: LazyLock<Arc<Keys>> = LazyLock::new(|| Arc::new(Keys::builtin()));

impl Default for Rules {
    fn default() -> Self {
        Self { on: true, keys: Arc::clone(&BUILTIN), without: Vec::new() }
    }
}

/// A payload as it may be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Masked {
    /// The bytes; UTF-8, whatever the payload was.
    pub text: String,
    /// How many places are masked.
    pub places: usize,
}

/// A place of a text and what stands there instead.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Edit {
    range: Range<usize>,
    with: String,
}

/// What stands where a value was masked because of its name.
const MARK: &str = "[masked]";

/// What stands where a detector found something.
fn mark_of(detector: Detector) -> String {
    format!("[masked:{}]", detector.name())
}

impl Rules {
    /// Rules that mask nothing.
    #[must_use]
    pub fn off() -> Self {
        Self { on: false, ..Self::default() }
    }

    /// Reads what an operator wants.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] for a name that would match everything or nothing, or too many of them.
    pub fn compile(spec: &MaskingSpec) -> Result<Self, Refusal> {
        if spec.keys.len() + spec.shown.len() > limits::MASKING_KEYS_MAX {
            let why = format!("more than {} names of fields", limits::MASKING_KEYS_MAX);
            return Err(Refusal::invalid("masking", why));
        }
        let mut keys = if spec.builtin { Keys::builtin() } else { Keys::default() };
        for key in &spec.keys {
            keys.hide(key).map_err(|why| Refusal::invalid("masking.keys", why))?;
        }
        for key in &spec.shown {
            keys.show(key).map_err(|why| Refusal::invalid("masking.shown", why))?;
        }
        Ok(Self { on: spec.on, keys: Arc::new(keys), without: spec.without.clone() })
    }

    /// Whether anything is masked at all.
    #[must_use]
    pub const fn is_on(&self) -> bool {
        self.on
    }

    /// Whether the value of a field of this name is secret.
    #[must_use]
    pub fn hides(&self, key: &str) -> bool {
        self.on && self.keys.hides(key).is_some()
    }

    fn uses(&self, detector: Detector) -> bool {
        !self.without.contains(&detector)
    }

    /// Free text: an error message, a stack, a note of a program.
    #[must_use]
    pub fn mask_text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if !self.on {
            return Cow::Borrowed(text);
        }
        applied(text, &text::edits(self, text))
    }

    /// A payload. JSON is spliced; other text is read as free text; of what is not text only the size is told,
    /// since nobody can say what is in it. The content type is the sender's claim and is not believed.
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

    /// Headers: by name, and by what the values look like.
    #[must_use]
    pub fn mask_headers(&self, headers: &BTreeMap<String, String>) -> BTreeMap<String, String> {
        let masked = |(name, value): (&String, &String)| (name.clone(), self.mask_field(name, value));
        headers.iter().map(masked).collect()
    }

    /// One value of one name.
    #[must_use]
    pub fn mask_field(&self, name: &str, value: &str) -> String {
        if self.hides(name) && !value.is_empty() {
            return MARK.to_owned();
        }
        self.mask_text(value).into_owned()
    }

    /// Free JSON that is in memory already.
    #[must_use]
    pub fn mask_value(&self, value: &serde_json::Value) -> serde_json::Value {
        let text = value.to_string();
        let masked = self.mask_payload(text.as_bytes());
        if masked.places == 0 {
            return value.clone();
        }
        // What was spliced is JSON again; if it were not, nothing of it would be shown.
        serde_json::from_str(&masked.text).unwrap_or_else(|_| MARK.into())
    }
}

/// The text with these places replaced; they are in order and do not overlap.
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
