//! The payload of a message: opaque bytes that are stored, delivered and exported bit for bit and never
//! re-encoded.

use crate::error::Refusal;
use crate::limits;
use crate::message::{check_length, check_printable};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The exact bytes of a message and their content type.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "PayloadText", into = "PayloadText")]
pub struct Payload {
    /// The bytes, as enqueued.
    pub bytes: Vec<u8>,
    /// The content type that the sender declares. It never influences a decision.
    pub content_type: String,
}

impl Payload {
    /// Serializes a value as JSON.
    ///
    /// # Errors
    /// Returns an error if the value cannot be written as JSON, such as a map whose keys are not text.
    pub fn json<T: Serialize + ?Sized>(value: &T) -> Result<Self, serde_json::Error> {
        Ok(Self { bytes: serde_json::to_vec(value)?, content_type: "application/json".into() })
    }
}

impl Payload {
    /// Checks length and content type (I49). `field` names the payload in the refusal.
    ///
    /// # Errors
    /// Returns [`Refusal::Invalid`] if one of them is out of bounds.
    pub fn check(&self, field: &str) -> Result<(), Refusal> {
        check_length(field, self.bytes.len(), limits::PAYLOAD_BYTES_MAX)?;
        check_printable("content_type", &self.content_type, limits::LABEL_BYTES_MAX)
    }
}

/// The form of a payload in JSON: text if it is UTF-8, otherwise base64. Exact in both cases.
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
