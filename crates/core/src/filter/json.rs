//! Finds one value in a JSON document and tests it. It walks the bytes without building a document, and compares
//! numbers by their digits, so integers of any size are exact. It never changes or re-encodes anything.

use super::pattern::Pattern;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;
use std::ops::Bound;

/// A value in a JSON document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum JsonValue<'a> {
    /// A string.
    Text(Cow<'a, str>),
    /// A number, as it is written.
    Number(Cow<'a, str>),
    /// `true`, `false` or `null`.
    Word(&'static str),
    /// An object or a list.
    Nested,
}

/// The value at a path, if the bytes are JSON and have one. Of a repeated key the last counts.
pub(super) fn in_bytes<'a>(bytes: &'a [u8], path: &[String]) -> Option<JsonValue<'a>> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let raw = Walk { path }.deserialize(&mut json).ok().flatten()?;
    // A payload that only begins like JSON is not JSON.
    json.end().ok()?;
    let text = raw.get();
    match text.as_bytes().first()? {
        b'"' => serde_json::from_str(text).ok().map(|s: String| JsonValue::Text(s.into())),
        b'{' | b'[' => Some(JsonValue::Nested),
        b't' => Some(JsonValue::Word("true")),
        b'f' => Some(JsonValue::Word("false")),
        b'n' => Some(JsonValue::Word("null")),
        _ => Some(JsonValue::Number(text.into())),
    }
}

/// The value at a path of a document that is already parsed.
pub(super) fn in_value<'a>(document: &'a Value, path: &[String]) -> Option<JsonValue<'a>> {
    let found = path.iter().try_fold(document, |at, part| match at {
        Value::Object(entries) => entries.get(part),
        Value::Array(items) => items.get(index(part)?),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    })?;
    Some(match found {
        Value::Null => JsonValue::Word("null"),
        Value::Bool(true) => JsonValue::Word("true"),
        Value::Bool(false) => JsonValue::Word("false"),
        Value::Number(n) => JsonValue::Number(n.to_string().into()),
        Value::String(s) => JsonValue::Text(s.into()),
        Value::Array(_) | Value::Object(_) => JsonValue::Nested,
    })
}

fn index(part: &str) -> Option<usize> {
    part.bytes().all(|b| b.is_ascii_digit()).then(|| part.parse().ok()).flatten()
}

/// Follows a path through a document while it is read, skipping everything beside the path.
struct Walk<'p> {
    path: &'p [String],
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = Option<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
        if self.path.is_empty() {
            return serde::Deserialize::deserialize(d).map(Some);
        }
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        let Some((wanted, path)) = self.path.split_first() else { return Ok(None) };
        while let Some(hit) = map.next_key_seed(KeyIs(wanted))? {
            if hit {
                found = map.next_value_seed(Walk { path })?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let Some((wanted, path)) = self.path.split_first() else { return Ok(None) };
        let wanted = index(wanted);
        for i in 0.. {
            if Some(i) == wanted {
                let found = list.next_element_seed(Walk { path })?.flatten();
                while list.next_element::<IgnoredAny>()?.is_some() {}
                return Ok(found);
            }
            if list.next_element::<IgnoredAny>()?.is_none() {
                break;
            }
        }
        Ok(None)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}

/// Compares a key without copying it.
struct KeyIs<'p>(&'p str);

impl<'de> DeserializeSeed<'de> for KeyIs<'_> {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<bool, D::Error> {
        d.deserialize_str(self)
    }
}

impl Visitor<'_> for KeyIs<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<bool, E> {
        Ok(key == self.0)
    }
}

/// A test of a JSON value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum JsonTest {
    /// A string that matches the pattern.
    Text(Pattern),
    /// Any scalar that is written so: a string, a number, `true`, `false` or `null`. Numbers also match by value.
    Unquoted(Pattern, Option<Decimal>),
    /// A number between these bounds.
    Between(Bound<Decimal>, Bound<Decimal>),
}

impl JsonTest {
    /// The test for an unquoted value; `*` stands for anything.
    pub(super) fn unquoted(text: &str) -> Self {
        Self::Unquoted(Pattern::glob(text), Decimal::parse(text))
    }

    pub(super) fn matches(&self, value: &JsonValue<'_>) -> bool {
        match (self, value) {
            (Self::Text(pattern), JsonValue::Text(text)) => pattern.matches(text),
            (Self::Text(_), JsonValue::Number(_) | JsonValue::Word(_) | JsonValue::Nested) => false,
            (Self::Unquoted(pattern, _), JsonValue::Text(text)) => pattern.matches(text),
            (Self::Unquoted(pattern, _), JsonValue::Word(word)) => pattern.matches(word),
            (Self::Unquoted(pattern, number), JsonValue::Number(text)) => {
                pattern.matches(text) || number.is_some() && *number == Decimal::parse(text)
            }
            (Self::Unquoted(pattern, _), JsonValue::Nested) => pattern.is_anything(),
            (Self::Between(from, to), JsonValue::Number(text)) => {
                Decimal::parse(text).is_some_and(|n| is_above(from, &n) && !is_beyond(to, &n))
            }
            (Self::Between(..), JsonValue::Text(_) | JsonValue::Word(_) | JsonValue::Nested) => false,
        }
    }
}

fn is_above(from: &Bound<Decimal>, n: &Decimal) -> bool {
    match from {
        Bound::Included(from) => n >= from,
        Bound::Excluded(from) => n > from,
        Bound::Unbounded => true,
    }
}

fn is_beyond(to: &Bound<Decimal>, n: &Decimal) -> bool {
    match to {
        Bound::Included(to) => n > to,
        Bound::Excluded(to) => n >= to,
        Bound::Unbounded => false,
    }
}

/// A JSON number by its digits: exact at any size, with one form for each value, so that `1.50` equals `15e-1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Decimal {
    negative: bool,
    /// The value is 0.DIGITS times ten to this power.
    power: i64,
    /// Without zeros at either end; empty for zero.
    digits: String,
}

impl Decimal {
    /// Parses a JSON number; `None` if the text is not one, or its exponent is out of range.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
        let (negative, rest) = text.strip_prefix('-').map_or((false, text), |rest| (true, rest));
        let (mantissa, exponent) = rest.split_once(['e', 'E']).map_or((rest, None), |(m, e)| (m, Some(e)));
        let (whole, fraction) = mantissa.split_once('.').map_or((mantissa, None), |(w, f)| (w, Some(f)));
        if !is_digits(whole) || (whole.len() > 1 && whole.starts_with('0')) {
            return None;
        }
        if fraction.is_some_and(|f| !is_digits(f)) {
            return None;
        }
        let exponent: i32 = match exponent {
            Some(e) if is_digits(e.strip_prefix(['+', '-']).unwrap_or(e)) => e.parse().ok()?,
            Some(_) => return None,
            None => 0,
        };
        let all = format!("{whole}{}", fraction.unwrap_or_default());
        let digits = all.trim_start_matches('0');
        let leading = all.len() - digits.len();
        let digits = digits.trim_end_matches('0').to_owned();
        if digits.is_empty() {
            return Some(Self { negative: false, power: 0, digits });
        }
        let power = i64::try_from(whole.len()).ok()? - i64::try_from(leading).ok()? + i64::from(exponent);
        Some(Self { negative, power, digits })
    }

    /// Whether it is an integer.
    pub(super) fn is_whole(&self) -> bool {
        i64::try_from(self.digits.len()).is_ok_and(|digits| self.power >= digits)
    }

    const fn sign(&self) -> i8 {
        match (self.digits.is_empty(), self.negative) {
            (true, _) => 0,
            (false, true) => -1,
            (false, false) => 1,
        }
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        let size = self.power.cmp(&other.power).then_with(|| self.digits.cmp(&other.digits));
        let size = if self.negative { size.reverse() } else { size };
        self.sign().cmp(&other.sign()).then(size)
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at<'a>(json: &'a str, path: &str) -> Option<JsonValue<'a>> {
        let path: Vec<String> = path.split('.').map(str::to_owned).collect();
        in_bytes(json.as_bytes(), &path)
    }

    #[test]
    fn values_are_found_in_bytes_and_in_documents_alike() {
        let json = r#"{"a": {"b": [1, "x\n", {"c": null}], "b2": true}, "1": -2.5, "u\u0041": "k"}"#;
        let value: Value = serde_json::from_str(json).unwrap();
        for (path, expected) in [
            ("a.b.0", Some(JsonValue::Number("1".into()))),
            ("a.b.1", Some(JsonValue::Text("x\n".into()))),
            ("a.b.2.c", Some(JsonValue::Word("null"))),
            ("a.b.2", Some(JsonValue::Nested)),
            ("a.b.3", None),
            ("a.b.x", None),
            ("a.b.0.c", None),
            ("a.b2", Some(JsonValue::Word("true"))),
            ("a.b2.c", None),
            ("1", Some(JsonValue::Number("-2.5".into()))),
            ("uA", Some(JsonValue::Text("k".into()))),
            ("b", None),
        ] {
            assert_eq!(at(json, path), expected, "{path}");
            let parts: Vec<String> = path.split('.').map(str::to_owned).collect();
            assert_eq!(in_value(&value, &parts), expected, "{path}");
        }
    }

    #[test]
    fn bytes_that_are_not_json_have_no_values() {
        for text in
            ["", "{", "{\"a\":1} x", "{\"a\":1}}", "{'a':1}", "a", "\u{feff}{\"a\":1}", "{\"a\":\"\\ud800\"}"]
        {
            assert_eq!(at(text, "a"), None, "{text}");
        }
        assert_eq!(in_bytes(&[0xff, b'1'], &["a".into()]), None);
        assert_eq!(at(&format!("{}1{}", "[".repeat(5_000), "]".repeat(5_000)), &"0.".repeat(4_999)), None);
    }

    #[test]
    fn the_last_of_repeated_keys_counts() {
        assert_eq!(at(r#"{"a":1,"a":2}"#, "a"), Some(JsonValue::Number("2".into())));
    }

    #[test]
    fn decimals_have_one_form_and_one_order() {
        let d = |s: &str| Decimal::parse(s).unwrap();
        for (a, b) in [("1", "1.0"), ("1e3", "1000"), ("0.015", "15e-3"), ("-0", "0"), ("100", "1E+2")] {
            assert_eq!(d(a), d(b), "{a} {b}");
        }
        let ascending = ["-1e9", "-12", "-1.2", "-0.1", "0", "1e-9", "0.1", "1", "1.2", "12", "123", "9e99"];
        for pair in ascending.windows(2) {
            assert!(d(pair[0]) < d(pair[1]), "{pair:?}");
        }
        assert_ne!(d("9007199254740993"), d("9007199254740992"));
        for text in ["", "-", "+1", "01", "1.", ".5", "1e", "1e+", "1e99999999999", "0x1", "NaN", "1_0", "١"]
        {
            assert_eq!(Decimal::parse(text), None, "{text}");
        }
    }
}
