//! The exact bytes of a message. They are opaque: kept, handed out and exported bit for bit, never re-encoded.

use crate::error::Refusal;
use crate::limits;
use crate::message::{bounded, printable};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The exact bytes of a message and what they claim to be.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "PayloadText", into = "PayloadText")]
pub struct Payload {
    /// The bytes, as handed in.
    pub bytes: Vec<u8>,
    /// What the sender says they are; never acted upon.
    pub content_type: String,
}

impl Payload {
    /// A value as JSON.
    ///
    /// # Errors
    /// When the value cannot be written as JSON, such as a map whose keys are not text.
    pub fn json<T: Serialize + ?Sized>(value: &T) -> Result<Self, serde_json::Error> {
        Ok(Self { bytes: serde_json::to_vec(value)?, content_type: "application/json".into() })
    }
}

impl Payload {
    /// Refuses what no message could carry, naming the field (I49).
    ///
    /// # Errors
    /// [`Refusal::Invalid`].
    pub fn check(&self, field: &str) -> Result<(), Refusal> {
        bounded(field, self.bytes.len(), limits::PAYLOAD_BYTES_MAX)?;
        printable("content_type", &self.content_type, limits::LABEL_BYTES_MAX)
    }
}

/// How a payload is written in JSON: as text when it is UTF-8, else in base64; bit-exact either way.
#[derive(Clone, Serialize, Deserialize)]
struct PayloadText {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    #[serde(default)]
    content_type: String,
}

impl From<Payload> for PayloadText {
    fn from(p: Payload) -> Self {
        match String::from_utf8(p.bytes) {
            Ok(text) => Self { payload: Some(text), payload_base64: None, content_type: p.content_type },
            Err(e) => Self {
                payload: None,
                payload_base64: Some(STANDARD.encode(e.as_bytes())),
                content_type: p.content_type,
            },
        }
    }
}

impl TryFrom<PayloadText> for Payload {
    type Error = String;

    fn try_from(t: PayloadText) -> Result<Self, Self::Error> {
        let bytes = match (t.payload, t.payload_base64) {
            (Some(_), Some(_)) => return Err("give payload or payload_base64, not both".into()),
            (Some(text), None) => text.into_bytes(),
            (None, Some(b64)) => {
                STANDARD.decode(b64).map_err(|e| format!("payload_base64 is not base64: {e}"))?
            }
            (None, None) => Vec::new(),
        };
        Ok(Self { bytes, content_type: t.content_type })
    }
}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes, {:?})", self.bytes.len(), self.content_type)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_survive_json_bit_for_bit() {
        for bytes in [b"{\"n\": 1.0}".to_vec(), vec![0xff, 0, 1], Vec::new(), "žluť\u{0}".into()] {
            let p = Payload { bytes, content_type: "x/y".into() };
            let json = serde_json::to_string(&p).unwrap();
            assert_eq!(serde_json::from_str::<Payload>(&json).unwrap(), p);
        }
    }
}
