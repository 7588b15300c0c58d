//! Names and identities. Each is validated once, when it is parsed, and valid from then on. The text forms are
//! stable, because files, URLs and scripts contain them.

use crate::limits::NAME_BYTES_MAX;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Why a text is not a valid identity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {wanted}")]
pub struct IdError {
    text: String,
    wanted: &'static str,
}

impl IdError {
    pub(crate) fn new(text: &str, wanted: &'static str) -> Self {
        Self { text: text.chars().take(80).collect(), wanted }
    }
}

/// Implements text serialisation for a type that has `Display` and `FromStr`.
macro_rules! serde_as_text {
    ($name:ty) => {
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                s.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'_, str>::deserialize(d)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    };
}
pub(crate) use serde_as_text;

/// Implements serialisation as text for people, and as bytes between processes, for a type that has `Display`,
/// `FromStr` and the two conversions.
macro_rules! serde_as_text_or_bytes {
    ($name:ty, $to_bytes:expr, $from_bytes:expr) => {
        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
                if s.is_human_readable() { s.collect_str(self) } else { s.serialize_bytes(&$to_bytes(*self)) }
            }
        }
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
                struct TextOrBytes;
                impl serde::de::Visitor<'_> for TextOrBytes {
                    type Value = $name;

                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str("a string")
                    }

                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$name, E> {
                        text.parse().map_err(E::custom)
                    }

                    fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<$name, E> {
                        let wrong = |_| E::invalid_length(bytes.len(), &self);
                        bytes.try_into().map($from_bytes).map_err(wrong)
                    }
                }
                // Where a struct is flattened, what was read says nothing about whether it was meant for people.
                d.deserialize_any(TextOrBytes)
            }
        }
    };
}
pub(crate) use serde_as_text_or_bytes;

/// The identity of a message and of its dead letter: a UUIDv7 chosen at enqueue. It survives retry, death and
/// redrive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(uuid::Uuid);

impl MessageId {
    /// A UUIDv7 from a time and eighty random bits.
    #[must_use]
    pub fn new(unix_ms: u64, random: [u8; 10]) -> Self {
        Self(uuid::Builder::from_unix_timestamp_millis(unix_ms, &random).into_uuid())
    }

    /// The sixteen bytes in big-endian order, which sort by time.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.into_bytes()
    }

    /// The identity with these sixteen bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(uuid::Uuid::from_bytes(bytes))
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for MessageId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        uuid::Uuid::try_parse(text).map(Self).map_err(|_| {
            IdError::new(text, "a message id (a UUID such as 01981c3e-7d5a-7cc0-8b1f-3a52c0ffee00)")
        })
    }
}
serde_as_text_or_bytes!(MessageId, MessageId::to_bytes, MessageId::from_bytes);

/// Makes ids that sort in the order they were made, also within a millisecond.
#[derive(Debug, Default)]
pub struct IdSequence(std::sync::atomic::AtomicU64);

impl IdSequence {
    /// A sequence that has made no ids yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(std::sync::atomic::AtomicU64::new(0))
    }

    /// The next id, from the time and eighty random bits.
    #[must_use]
    pub fn next(&self, unix_ms: u64, mut random: [u8; 10]) -> MessageId {
        use std::sync::atomic::Ordering::Relaxed;
        // The twelve bits after the time count the ids of a millisecond; beyond that they borrow from the next one.
        let earliest = unix_ms << 12;
        let after = |last: u64| Some(earliest.max(last + 1));
        let last = self.0.fetch_update(Relaxed, Relaxed, after).unwrap_or(earliest);
        let mine = earliest.max(last + 1);
        [random[0], random[1]] = u16::try_from(mine & 0xfff).unwrap_or(0).to_be_bytes();
        MessageId::new(mine >> 12, random)
    }
}

/// The identity of an operation. It looks like a message id but is a type of its own, so that the two are never
/// mixed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OperationId(MessageId);

impl OperationId {
    /// An operation id from a fresh UUIDv7.
    #[must_use]
    pub fn new(id: MessageId) -> Self {
        Self(id)
    }

    /// The sixteen bytes in big-endian order.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_bytes()
    }

    /// The identity with these sixteen bytes.
    #[must_use]
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(MessageId::from_bytes(bytes))
    }
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for OperationId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self).map_err(|_: IdError| IdError::new(text, "an operation id (a UUID)"))
    }
}

/// The name of a queue or of a dead letter queue: letters, digits, `.`, `_` and `-`, starting with a letter or
/// digit.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueName(std::sync::Arc<str>);

impl QueueName {
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The default dead letter queue of this queue: `{queue}-dlq`.
    #[must_use]
    pub fn default_dlq(&self) -> Self {
        Self(format!("{}-dlq", self.0).into())
    }
}

impl fmt::Debug for QueueName {
    /// Prints quoted text, as refusals show it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for QueueName {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let fits = !text.is_empty() && text.len() <= NAME_BYTES_MAX;
        let starts = text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
        let all = text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
        if fits && starts && all {
            Ok(Self(text.into()))
        } else {
            Err(IdError::new(
                text,
                "a queue name (1 to 128 of A-Z a-z 0-9 . _ -, starting with a letter or digit)",
            ))
        }
    }
}
serde_as_text!(QueueName);

/// A leaf of the signature tree, and the id of a group: sixteen hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeafId(u64);

impl LeafId {
    /// The leaf with this number.
    #[must_use]
    pub const fn new(n: u64) -> Self {
        Self(n)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for LeafId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for LeafId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for LeafId {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match u64::from_str_radix(text, 16) {
            Ok(n) if text.len() == 16 && !text.starts_with('+') => Ok(Self(n)),
            Ok(_) | Err(_) => Err(IdError::new(text, "a group id (16 hexadecimal digits)")),
        }
    }
}
serde_as_text!(LeafId);

/// A group is named after its first leaf.
pub type GroupId = LeafId;

/// The right to settle one delivery: the message id and 128 random bits, new for every lease (I17).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct LeaseToken {
    /// The leased message. The store looks it up by primary key, so a token needs no index.
    pub id: MessageId,
    /// The bits that only the holder of the lease knows.
    pub secret: Secret,
}

impl LeaseToken {
    /// The bytes of the id, then those of the secret.
    fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        let (id, secret) = bytes.split_at_mut(16);
        id.copy_from_slice(&self.id.to_bytes());
        secret.copy_from_slice(&self.secret.0);
        bytes
    }

    fn from_bytes(bytes: [u8; 32]) -> Self {
        let number = |half: &[u8]| half.iter().fold(0_u128, |number, byte| number << 8 | u128::from(*byte));
        let (id, secret) = bytes.split_at(16);
        let id = MessageId::from_bytes(number(id).to_be_bytes());
        Self { id, secret: Secret::new(number(secret).to_be_bytes()) }
    }
}

impl std::hash::Hash for LeaseToken {
    /// Hashes only the message id, which keeps the secret out of everything derived from the hash.
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.id.hash(state);
    }
}

/// 128 random bits. They are compared, and never appear in logs.
#[derive(Clone, Copy, Eq)]
pub struct Secret([u8; 16]);

impl Secret {
    /// A secret of these bytes.
    #[must_use]
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes, to be stored.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }
}

impl PartialEq for Secret {
    /// Takes the same time wherever the first difference is.
    fn eq(&self, other: &Self) -> bool {
        self.0.iter().zip(other.0.iter()).fold(0_u8, |acc, (a, b)| acc | (a ^ b)) == 0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl fmt::Display for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.id.to_bytes().iter().chain(self.secret.0.iter()) {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseToken({}, …)", self.id)
    }
}

impl FromStr for LeaseToken {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || IdError::new(text, "a lease token (64 hexadecimal digits, as printed by `lease`)");
        let halves = (text.get(..32), text.get(32..));
        let (Some(id), Some(secret)) = halves else { return Err(wrong()) };
        let hex = |s: &str| -> Option<[u8; 16]> {
            if s.len() != 32 || !s.bytes().all(|b| b.is_ascii_hexdigit()) {
                return None;
            }
            u128::from_str_radix(s, 16).ok().map(u128::to_be_bytes)
        };
        match (hex(id), hex(secret)) {
            (Some(id), Some(secret)) => {
                Ok(Self { id: MessageId::from_bytes(id), secret: Secret::new(secret) })
            }
            (None, _) | (_, None) => Err(wrong()),
        }
    }
}
serde_as_text_or_bytes!(LeaseToken, LeaseToken::to_bytes, LeaseToken::from_bytes);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_time_and_read_back() {
        let early = MessageId::new(1_000, [0xff; 10]);
        let late = MessageId::new(1_001, [0; 10]);
        assert!(early < late);
        assert_eq!(early.to_string().parse::<MessageId>(), Ok(early));
        assert_eq!(MessageId::from_bytes(early.to_bytes()), early);
    }

    #[test]
    fn tokens_read_back_and_hide_their_secret() {
        let token = LeaseToken { id: MessageId::new(5, [7; 10]), secret: Secret::new([9; 16]) };
        assert_eq!(token.to_string().parse::<LeaseToken>(), Ok(token));
        assert!(!format!("{token:?}").contains("0909"));
    }

    #[test]
    fn malformed_identities_are_refused_by_name() {
        for text in ["", "abc", "01981c3e-7d5a-7cc0-8b1f-3a52c0ffee0g", "../../etc/passwd", "日本"] {
            assert!(text.parse::<MessageId>().unwrap_err().to_string().contains("message id"));
            assert!(text.parse::<LeaseToken>().unwrap_err().to_string().contains("lease token"));
        }
        for text in ["", "-x", ".x", "a b", "a/b", "é", &"x".repeat(129)] {
            assert!(text.parse::<QueueName>().unwrap_err().to_string().contains("queue name"), "{text}");
        }
        assert!("+123456789abcdef".parse::<LeafId>().is_err());
        assert!("payments-eu.v2_x".parse::<QueueName>().is_ok());
    }
}
