//! How calls and replies are written when they travel between processes. The types are the same in every encoding, and
//! so are the names of their fields, so a field that is missing or unknown is named in the error.

use crate::error::{StoreError, StoreErrorKind};
use crate::limits;
use serde::de::DeserializeOwned;
use serde::{Deserialize as _, Serialize};
use std::fmt;

/// Nesting of what is read: the deepest JSON document that is accepted, and the types around it. Each level costs stack.
const DEPTH_MAX: usize = limits::JSON_DEPTH_MAX + 64;

/// How calls and replies are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// JSON, for HTTP and for people.
    Json,
    /// MessagePack with named fields, for processes of the same version: payloads, ids and times are bytes, so nothing
    /// has to be escaped, formatted or parsed.
    Compact,
}

impl Encoding {
    /// Appends a value to `buffer`.
    ///
    /// # Errors
    /// [`StoreErrorKind::Protocol`] if the value has no form in this encoding.
    pub fn encode<T: Serialize>(self, buffer: &mut Vec<u8>, value: &T) -> Result<(), StoreError> {
        match self {
            Self::Json => serde_json::to_writer(buffer, value).map_err(unreadable),
            Self::Compact => {
                let mut serializer = rmp_serde::Serializer::new(buffer).with_struct_map();
                value.serialize(&mut serializer).map_err(unreadable)
            }
        }
    }

    /// Reads a value that [`Self::encode`] wrote.
    ///
    /// # Errors
    /// [`StoreErrorKind::Protocol`] if the bytes are not exactly one value of this type.
    pub fn decode<T: DeserializeOwned>(self, bytes: &[u8]) -> Result<T, StoreError> {
        match self {
            Self::Json => serde_json::from_slice(bytes).map_err(unreadable),
            Self::Compact => {
                let mut deserializer = rmp_serde::Deserializer::from_read_ref(bytes);
                deserializer.set_max_depth(DEPTH_MAX);
                let value = T::deserialize(&mut deserializer).map_err(unreadable)?;
                // There must be nothing left to read.
                match <()>::deserialize(&mut deserializer) {
                    Err(rmp_serde::decode::Error::InvalidMarkerRead(_)) => Ok(value),
                    Ok(()) | Err(_) => Err(unreadable("more bytes follow the value")),
                }
            }
        }
    }
}

fn unreadable(error: impl fmt::Display) -> StoreError {
    StoreError::new(
        StoreErrorKind::Protocol,
        format!("a call or a reply of the store cannot be read or written: {error}"),
    )
}
