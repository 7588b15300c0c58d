//! Short ids: the last digits of an id, which a person reads off a list and types. The first digits of a UUIDv7
//! are its time and the same for ids made together; the last ones are random. A short id is never an identity:
//! it is resolved once, where it enters the program, and only whole ids are stored and shown from then on.

use crate::failure::named;
use crate::ids::{GroupId, IdError, MessageId, serde_as_text};
use crate::limits;
use crate::query::PageRequest;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

named! {
    /// What an id belongs to.
    IdKind, "kind of id", {
        /// A live message.
        Message = "message",
        /// A dead letter, including purged ones.
        Letter = "letter",
        /// An operation.
        Operation = "operation",
        /// A group.
        Group = "group",
    }
}

/// The last digits of an id: at least [`limits::ID_TAIL_DIGITS_MIN`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdSuffix {
    value: u128,
    digits: u32,
}

impl IdSuffix {
    /// Whether the id of a message, a letter or an operation ends in these digits.
    #[must_use]
    pub fn matches(self, id: MessageId) -> bool {
        self.matches_number(u128::from_be_bytes(id.to_bytes()))
    }

    /// Whether the id of a group ends in these digits.
    #[must_use]
    pub fn matches_group(self, id: GroupId) -> bool {
        self.digits <= 16 && self.matches_number(u128::from(id.get()))
    }

    const fn matches_number(self, number: u128) -> bool {
        let mask = (1_u128 << (4 * self.digits)) - 1;
        number & mask == self.value
    }
}

impl fmt::Display for IdSuffix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:0width$x}", self.value, width = self.digits as usize)
    }
}

impl FromStr for IdSuffix {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let hex: String = text.chars().filter(|c| *c != '-').collect();
        let all = hex.bytes().all(|b| b.is_ascii_hexdigit());
        let fits = (limits::ID_TAIL_DIGITS_MIN..32).contains(&hex.len());
        match (u128::from_str_radix(&hex, 16), u32::try_from(hex.len())) {
            (Ok(value), Ok(digits)) if all && fits => Ok(Self { value, digits }),
            (Ok(_) | Err(_), _) => {
                Err(IdError::new(text, "a short id (the last 4 or more hexadecimal digits of an id)"))
            }
        }
    }
}
serde_as_text!(IdSuffix);

/// A search for ids by their last digits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IdSuffixQuery {
    /// What the ids belong to.
    pub of: IdKind,
    /// The digits that the ids end in.
    pub tail: IdSuffix,
    /// The page.
    #[serde(default)]
    pub page: PageRequest,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::Filter;

    #[test]
    fn a_suffix_is_the_last_digits_of_an_id() {
        let id: MessageId = "01981c3e-7d5a-7cc0-8b1f-3a52c0ffee00".parse().unwrap();
        for (text, ends) in [
            ("ee00", true),
            ("c0ffee00", true),
            ("C0FFEE00", true),
            ("8b1f-3a52c0ffee00", true),
            ("1981c3e-7d5a-7cc0-8b1f-3a52c0ffee00", true),
            ("c0ffee01", false),
            ("01981c3e", false),
        ] {
            let suffix: IdSuffix = text.parse().unwrap();
            assert_eq!(suffix.matches(id), ends, "{text}");
            assert_eq!(suffix.to_string().parse::<IdSuffix>(), Ok(suffix));
        }
        let group: GroupId = "5f3a9c21b7d4e680".parse().unwrap();
        assert!("b7d4e680".parse::<IdSuffix>().unwrap().matches_group(group));
        assert!(!"005f3a9c21b7d4e680".parse::<IdSuffix>().unwrap().matches_group(group));
    }

    #[test]
    fn a_filter_reports_the_short_id_and_accepts_the_whole_one() {
        let whole = "01981c3e-7d5a-7cc0-8b1f-3a52c0ffee00";
        for (text, of, id, result) in [
            ("id:c0ffee00", IdKind::Letter, whole, format!("id:{whole}")),
            (
                "queue:a (id!=c0ffee00 or age>2h)",
                IdKind::Letter,
                whole,
                format!("queue:a (id!={whole} or age>2h)"),
            ),
            ("group:b7d4e680 日本", IdKind::Group, "5f3a9c21b7d4e680", "group:5f3a9c21b7d4e680 日本".into()),
        ] {
            let error = Filter::parse(text).unwrap_err();
            assert_eq!(error.short_id.as_ref().map(|short| short.0), Some(of), "{text}");
            assert_eq!(error.with_whole_id(id), Some(result.clone()));
            assert!(Filter::parse(&result).is_ok(), "{result}");
        }
        for wrong in ["id:c0f", "id:nonsense", "id:\"c0ffee00\"", "attempts:c0ffee00"] {
            assert_eq!(Filter::parse(wrong).unwrap_err().short_id, None, "{wrong}");
        }
    }

    #[test]
    fn text_that_is_too_short_or_not_a_number_is_no_suffix() {
        for text in ["", "e00", "-", "e-0-0", "xyzw", "+fee", "日本語日", &"0".repeat(32)] {
            assert!(text.parse::<IdSuffix>().unwrap_err().to_string().contains("short id"), "{text}");
        }
        assert_eq!("0000".parse::<IdSuffix>().unwrap().to_string(), "0000");
    }
}
