//! The payload of a message: opaque bytes that are stored, delivered and exported bit for bit and never
//! re-encoded.

use crate::error::Refusal;
use crate::limits;
use crate::message::{check_length, check_printable};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;

/// The exact bytes of a message and their content type.
#[derive(Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(try_from = "ReadPayload")]
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

/// The written form of a payload: text if it is UTF-8, otherwise bytes, which JSON has as base64. Exact in every case.
#[derive(Serialize)]
struct WrittenPayload<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<Binary<&'a [u8]>>,
    content_type: &'a str,
}

impl Serialize for Payload {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let content_type = &self.content_type;
        let written = match std::str::from_utf8(&self.bytes) {
            Ok(text) => WrittenPayload { payload: Some(text), payload_base64: None, content_type },
            Err(_) => {
                let bytes = Some(Binary(self.bytes.as_slice()));
                WrittenPayload { payload: None, payload_base64: bytes, content_type }
            }
        };
        written.serialize(s)
    }
}

/// What is read as a payload.
#[derive(Deserialize)]
struct ReadPayload {
    #[serde(default)]
    payload: Option<String>,
    #[serde(default)]
    payload_base64: Option<Binary<Vec<u8>>>,
    #[serde(default)]
    content_type: String,
}

impl TryFrom<ReadPayload> for Payload {
    type Error = String;

    fn try_from(read: ReadPayload) -> Result<Self, Self::Error> {
        let bytes = match (read.payload, read.payload_base64) {
            (Some(_), Some(_)) => return Err("give payload or payload_base64, not both".into()),
            (Some(text), None) => text.into_bytes(),
            (None, Some(Binary(bytes))) => bytes,
            (None, None) => Vec::new(),
        };
        Ok(Self { bytes, content_type: read.content_type })
    }
}

/// Bytes that are no text: base64 for people, bytes between processes.
struct Binary<B>(B);

impl Serialize for Binary<&[u8]> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        if s.is_human_readable() {
            s.serialize_str(&STANDARD.encode(self.0))
        } else {
            s.serialize_bytes(self.0)
        }
    }
}

impl<'de> Deserialize<'de> for Binary<Vec<u8>> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Base64OrBytes;
        impl Visitor<'_> for Base64OrBytes {
            type Value = Binary<Vec<u8>>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
                let wrong = |error| E::custom(format!("payload_base64 is not base64: {error}"));
                STANDARD.decode(text).map(Binary).map_err(wrong)
            }

            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Self::Value, E> {
                Ok(Binary(bytes.to_vec()))
            }

            fn visit_byte_buf<E: serde::de::Error>(self, bytes: Vec<u8>) -> Result<Self::Value, E> {
                Ok(Binary(bytes))
            }
        }
        d.deserialize_any(Base64OrBytes)
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
