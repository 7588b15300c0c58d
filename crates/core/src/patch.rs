//! JSON Patch (RFC 6902) on the text of a document. A change is spliced into the text: everything that it does not name
//! keeps its bytes, its order and its digits. The document is never parsed and written again, because that would round
//! large numbers, sort keys and lose the sender's spacing.
//!
//! Of a repeated key the last one counts, as in filters. Removing it removes all of them, so that no earlier one comes
//! to light. A patch applies as a whole or not at all.

mod scan;

use crate::filter::Decimal;
use crate::limits;
use scan::{Entries, Entry, skip_space, string_end, value_end};
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

/// Why a patch cannot be parsed, or does not fit a document. It names paths, never the values there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct PatchError {
    /// The number of the step, from 1; `None` if the patch or the document as a whole is wrong.
    pub step: Option<usize>,
    /// What is wrong.
    pub reason: String,
}

impl PatchError {
    fn whole(reason: impl Into<String>) -> Self {
        Self { step: None, reason: reason.into() }
    }
}

impl fmt::Display for PatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.step {
            Some(step) => write!(f, "step {step}: {}", self.reason),
            None => f.write_str(&self.reason),
        }
    }
}

/// A list of changes to a JSON document, kept as the original text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "PatchText", into = "PatchText")]
pub struct Patch {
    text: String,
    steps: Vec<Step>,
}

/// How a patch is stored and sent: as text, because only text keeps its numbers exact.
#[derive(Serialize, Deserialize)]
struct PatchText {
    patch: String,
}

impl From<Patch> for PatchText {
    fn from(patch: Patch) -> Self {
        Self { patch: patch.text }
    }
}

impl TryFrom<PatchText> for Patch {
    type Error = PatchError;

    fn try_from(text: PatchText) -> Result<Self, PatchError> {
        Self::parse(&text.patch)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    verb: Verb,
    path: Pointer,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Verb {
    Add(String),
    Remove,
    Replace(String),
    Move(Pointer),
    Copy(Pointer),
    Test(String),
}

/// A path in a document (RFC 6901).
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pointer {
    text: String,
    parts: Vec<String>,
}

impl Pointer {
    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self { text: String::new(), parts: Vec::new() });
        }
        let Some(rest) = text.strip_prefix('/') else {
            return Err(format!("{text:?} is not a JSON pointer: it must be empty or begin with /"));
        };
        let parts = rest.split('/').map(|part| {
            let odd = part.split('~').skip(1).any(|after| !after.starts_with(['0', '1']));
            if odd {
                return Err(format!("{text:?} is not a JSON pointer: write ~0 for ~ and ~1 for /"));
            }
            Ok(part.replace("~1", "/").replace("~0", "~"))
        });
        Ok(Self { text: text.to_owned(), parts: parts.collect::<Result<_, _>>()? })
    }

    /// Whether the other path is somewhere inside this one.
    fn contains(&self, other: &Self) -> bool {
        self.parts.len() < other.parts.len() && other.parts.starts_with(&self.parts)
    }

    /// The path in messages.
    fn name(&self) -> &str {
        if self.text.is_empty() { "the whole document" } else { &self.text }
    }
}

/// A step before it is checked.
#[derive(Deserialize)]
struct RawStep<'a> {
    op: String,
    path: String,
    #[serde(default)]
    from: Option<String>,
    #[serde(default, borrow, deserialize_with = "present")]
    value: Option<&'a RawValue>,
}

/// Makes a value that is `null` differ from a missing one.
fn present<'de, D: Deserializer<'de>>(d: D) -> Result<Option<&'de RawValue>, D::Error> {
    Deserialize::deserialize(d).map(Some)
}

impl Step {
    fn parse(raw: RawStep<'_>) -> Result<Self, String> {
        let RawStep { op, path, from, value } = raw;
        let path = Pointer::parse(&path)?;
        let value =
            || value.map(|raw| raw.get().to_owned()).ok_or_else(|| format!("{op:?} needs a \"value\""));
        let from = || match &from {
            Some(from) => Pointer::parse(from),
            None => Err(format!("{op:?} needs a \"from\"")),
        };
        let verb = match op.as_str() {
            "add" => Verb::Add(value()?),
            "remove" => Verb::Remove,
            "replace" => Verb::Replace(value()?),
            "move" => Verb::Move(from()?),
            "copy" => Verb::Copy(from()?),
            "test" => Verb::Test(value()?),
            _ => return Err(format!("{op:?} is none of add, remove, replace, move, copy, test")),
        };
        if matches!(verb, Verb::Remove) && path.parts.is_empty() {
            return Err("the whole document cannot be removed; replace it".into());
        }
        match &verb {
            Verb::Move(from) if from.contains(&path) => {
                Err(format!("{} cannot be moved into itself", from.name()))
            }
            Verb::Add(_)
            | Verb::Remove
            | Verb::Replace(_)
            | Verb::Move(_)
            | Verb::Copy(_)
            | Verb::Test(_) => Ok(Self { verb, path }),
        }
    }

    /// The text after this step; `None` if the step does not change it.
    fn apply(&self, text: &str) -> Result<Option<String>, String> {
        match &self.verb {
            Verb::Add(value) => add(text, &self.path, value).map(Some),
            Verb::Remove => remove(text, &self.path).map(Some),
            Verb::Replace(value) => splice(text, locate(text, &self.path)?, value).map(Some),
            Verb::Copy(from) => {
                let value = slice(text, locate(text, from)?)?.to_owned();
                add(text, &self.path, &value).map(Some)
            }
            Verb::Move(from) => {
                let value = slice(text, locate(text, from)?)?.to_owned();
                if from.parts == self.path.parts {
                    return Ok(None);
                }
                add(&remove(text, from)?, &self.path, &value).map(Some)
            }
            Verb::Test(value) => {
                let found = slice(text, locate(text, &self.path)?)?;
                if same(found, value) {
                    return Ok(None);
                }
                Err(format!("{} is not what the test wants", self.path.name()))
            }
        }
    }
}

impl Patch {
    /// Parses a patch: a JSON list of steps.
    ///
    /// # Errors
    /// [`PatchError`] with the mistake and the number of the step.
    pub fn parse(text: &str) -> Result<Self, PatchError> {
        if text.len() > limits::PATCH_BYTES_MAX {
            let reason = format!("a patch has at most {} bytes, not {}", limits::PATCH_BYTES_MAX, text.len());
            return Err(PatchError::whole(reason));
        }
        let list: Vec<&RawValue> = serde_json::from_str(text)
            .map_err(|e| PatchError::whole(format!("not a JSON patch, a list of steps: {e}")))?;
        if list.is_empty() || list.len() > limits::PATCH_STEPS_MAX {
            let reason = format!("a patch has 1 to {} steps, not {}", limits::PATCH_STEPS_MAX, list.len());
            return Err(PatchError::whole(reason));
        }
        let steps = (1..).zip(list).map(|(n, raw)| {
            let at = |reason: String| PatchError { step: Some(n), reason };
            let raw = serde_json::from_str(raw.get()).map_err(|e| at(without_quotes(&e)))?;
            Step::parse(raw).map_err(at)
        });
        Ok(Self { text: text.to_owned(), steps: steps.collect::<Result<_, _>>()? })
    }

    /// The text it was parsed from.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// What it does to which paths, without the values: for the audit trail.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut text = String::new();
        for step in &self.steps {
            let verb = match &step.verb {
                Verb::Add(_) => "add",
                Verb::Remove => "remove",
                Verb::Replace(_) => "replace",
                Verb::Move(_) => "move",
                Verb::Copy(_) => "copy",
                Verb::Test(_) => "test",
            };
            let entry = format!("{}{verb} {}", if text.is_empty() { "" } else { ", " }, step.path.name());
            if text.len() + entry.len() > limits::LABEL_BYTES_MAX {
                text.push_str(", …");
                break;
            }
            text.push_str(&entry);
        }
        text
    }

    /// The document after all steps. Everything they do not touch keeps its bytes.
    ///
    /// # Errors
    /// [`PatchError`] if the bytes are not JSON, a step does not fit, or the result is too large or too deep.
    pub fn apply(&self, document: &[u8]) -> Result<Vec<u8>, PatchError> {
        let text = std::str::from_utf8(document)
            .map_err(|_| PatchError::whole("the payload is not JSON: it is not UTF-8"))?;
        serde_json::from_str::<IgnoredAny>(text)
            .map_err(|e| PatchError::whole(format!("the payload is not JSON: {}", without_quotes(&e))))?;
        check_size(text).map_err(PatchError::whole)?;
        let mut text = text.to_owned();
        for (n, step) in (1..).zip(&self.steps) {
            let at = |reason: String| PatchError { step: Some(n), reason };
            if let Some(next) = step.apply(&text).map_err(at)? {
                check_size(&next).map_err(at)?;
                text = next;
            }
        }
        Ok(text.into_bytes())
    }
}

/// The text of an error without anything that it quotes from the document.
fn without_quotes(error: &serde_json::Error) -> String {
    match error.classify() {
        serde_json::error::Category::Data => error.to_string(),
        serde_json::error::Category::Io
        | serde_json::error::Category::Syntax
        | serde_json::error::Category::Eof => {
            format!("the mistake is at line {} column {}", error.line(), error.column())
        }
    }
}

/// Refuses a document that is too large for a message, or nested too deep to be read.
fn check_size(text: &str) -> Result<(), String> {
    if text.len() > limits::PAYLOAD_BYTES_MAX {
        let reason = format!("it would have {} bytes; at most {}", text.len(), limits::PAYLOAD_BYTES_MAX);
        return Err(reason);
    }
    let (mut depth, mut deepest, mut at) = (0_usize, 0, 0);
    let bytes = text.as_bytes();
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'"' => at = string_end(bytes, at).ok_or_else(broken)? - 1,
            b'{' | b'[' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    if deepest > limits::JSON_DEPTH_MAX {
        return Err(format!("it is nested {deepest} deep; at most {}", limits::JSON_DEPTH_MAX));
    }
    Ok(())
}

/// The error for a text that is not JSON. It never occurs: the text is JSON before the first step, and every step
/// keeps it JSON.
fn broken() -> String {
    "the document is not JSON".to_owned()
}

fn slice(text: &str, range: Range<usize>) -> Result<&str, String> {
    text.get(range).ok_or_else(broken)
}

/// The text with a range of it replaced.
fn splice(text: &str, range: Range<usize>, by: &str) -> Result<String, String> {
    let (before, after) = (slice(text, 0..range.start)?, slice(text, range.end..text.len())?);
    let mut next = String::with_capacity(before.len() + by.len() + after.len());
    next.push_str(before);
    next.push_str(by);
    next.push_str(after);
    Ok(next)
}

/// What a part of a pointer means in the object or list it is applied to.
enum Target<'a> {
    Key(&'a str),
    Index(usize),
    End,
}

/// An entry of an object or list, and its neighbours.
struct FoundEntry {
    keyed: bool,
    /// The position after the opening bracket.
    inside: usize,
    before: Option<Entry>,
    hit: Option<Entry>,
    after: Option<Entry>,
    last: Option<Entry>,
    count: usize,
}

/// Finds an entry. Of a repeated key the last counts.
fn find_entry(text: &str, container: &Range<usize>, part: &str, path: &str) -> Result<FoundEntry, String> {
    let bytes = text.as_bytes();
    let keyed = match bytes.get(container.start) {
        Some(b'{') => true,
        Some(b'[') => false,
        Some(_) | None => return Err(format!("{path} does not lead through objects and lists here")),
    };
    let target = if keyed { Target::Key(part) } else { index(part, path)? };
    let inside = container.start + 1;
    let mut found = FoundEntry { keyed, inside, before: None, hit: None, after: None, last: None, count: 0 };
    for entry in (Entries { bytes, keyed, at: inside }) {
        let is_hit = match (&target, &entry.key) {
            (Target::Key(name), Some(key)) => key_is(slice(text, key.clone())?, name),
            (Target::Index(n), None) => *n == found.count,
            (Target::End | Target::Index(_), _) | (Target::Key(_), None) => false,
        };
        if is_hit {
            found.before = found.last.take();
            found.hit = Some(entry.clone());
            found.after = None;
        } else if found.hit.is_some() && found.after.is_none() {
            found.after = Some(entry.clone());
        }
        found.last = Some(entry);
        found.count += 1;
    }
    Ok(found)
}

fn index<'a>(part: &str, path: &str) -> Result<Target<'a>, String> {
    if part == "-" {
        return Ok(Target::End);
    }
    let plain = part.bytes().all(|b| b.is_ascii_digit()) && (part == "0" || !part.starts_with('0'));
    match part.parse() {
        Ok(n) if plain => Ok(Target::Index(n)),
        Ok(_) | Err(_) => {
            Err(format!("{path}: {part:?} is not an index of a list; give a number, or - to append"))
        }
    }
}

/// Whether a key, with its quotes and escapes, equals this text.
fn key_is(quoted: &str, name: &str) -> bool {
    let bare = quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(quoted);
    if !bare.contains('\\') {
        return bare == name;
    }
    serde_json::from_str::<String>(quoted).is_ok_and(|key| key == name)
}

/// The range of the whole document, without the space around it.
fn root(text: &str) -> Result<Range<usize>, String> {
    let start = skip_space(text.as_bytes(), 0);
    let end = value_end(text.as_bytes(), start).ok_or_else(broken)?;
    Ok(start..end)
}

/// The range of the value at a path.
fn locate(text: &str, path: &Pointer) -> Result<Range<usize>, String> {
    walk(text, &path.parts, &path.text)
}

fn walk(text: &str, parts: &[String], path: &str) -> Result<Range<usize>, String> {
    let mut at = root(text)?;
    for part in parts {
        let found = find_entry(text, &at, part, path)?.hit;
        at = found.ok_or_else(|| format!("there is nothing at {path}"))?.value;
    }
    Ok(at)
}

/// Puts a value at a path: in place of the present one, or as a new entry with the spacing of its neighbours.
fn add(text: &str, path: &Pointer, value: &str) -> Result<String, String> {
    let Some((part, parents)) = path.parts.split_last() else {
        return splice(text, root(text)?, value);
    };
    let parent = walk(text, parents, &path.text)?;
    let found = find_entry(text, &parent, part, &path.text)?;
    let mut entry = value.to_owned();
    if found.keyed {
        if let Some(hit) = found.hit {
            return splice(text, hit.value, value);
        }
        let between = match found.last.as_ref().and_then(|last| last.key.as_ref().map(|key| (key, last))) {
            Some((key, last)) => slice(text, key.end..last.value.start)?,
            None => ":",
        };
        let key = serde_json::to_string(part).map_err(|_| broken())?;
        entry = format!("{key}{between}{value}");
    } else {
        if let Some(hit) = found.hit {
            let lead = slice(text, hit.lead..hit.start())?;
            return splice(text, hit.start()..hit.start(), &format!("{value},{lead}"));
        }
        let target = index(part, &path.text)?;
        if matches!(target, Target::Index(n) if n != found.count) {
            return Err(format!("{}: the list has only {} entries", path.text, found.count));
        }
    }
    match found.last {
        Some(last) => {
            let lead = slice(text, last.lead..last.start())?;
            splice(text, last.value.end..last.value.end, &format!(",{lead}{entry}"))
        }
        None => splice(text, found.inside..found.inside, &entry),
    }
}

/// Removes an entry with one comma; of a repeated key all entries.
fn remove(text: &str, path: &Pointer) -> Result<String, String> {
    let Some((part, parents)) = path.parts.split_last() else {
        return Err("the whole document cannot be removed; replace it".into());
    };
    let parent = walk(text, parents, &path.text)?;
    let mut found = find_entry(text, &parent, part, &path.text)?;
    if found.hit.is_none() {
        return Err(format!("there is nothing at {}", path.text));
    }
    let mut text = text.to_owned();
    while let Some(hit) = &found.hit {
        let range = match (&found.before, &found.after) {
            (Some(before), _) => before.value.end..hit.value.end,
            (None, Some(after)) => hit.start()..after.start(),
            (None, None) => hit.start()..hit.value.end,
        };
        text = splice(&text, range, "")?;
        if !found.keyed {
            break;
        }
        // The object still begins at the same position; only its end has moved.
        found = find_entry(&text, &parent, part, &path.text)?;
    }
    Ok(text)
}

/// Whether two values are equal: numbers by value at any size, strings by their characters, objects in any order.
fn same(a: &str, b: &str) -> bool {
    match (a.as_bytes().first(), b.as_bytes().first()) {
        (Some(b'{'), Some(b'{')) => {
            let read = serde_json::from_str::<BTreeMap<String, &RawValue>>;
            let (Ok(a), Ok(b)) = (read(a), read(b)) else { return a == b };
            let equal = |(x, y): ((&String, &&RawValue), (&String, &&RawValue))| {
                x.0 == y.0 && same(x.1.get(), y.1.get())
            };
            a.len() == b.len() && a.iter().zip(&b).all(equal)
        }
        (Some(b'['), Some(b'[')) => {
            let read = serde_json::from_str::<Vec<&RawValue>>;
            let (Ok(a), Ok(b)) = (read(a), read(b)) else { return a == b };
            a.len() == b.len() && a.iter().zip(&b).all(|(x, y)| same(x.get(), y.get()))
        }
        (Some(b'"'), Some(b'"')) => {
            let read = serde_json::from_str::<String>;
            a == b || matches!((read(a), read(b)), (Ok(a), Ok(b)) if a == b)
        }
        (Some(b'-' | b'0'..=b'9'), Some(b'-' | b'0'..=b'9')) => {
            a == b || Decimal::parse(a).is_some_and(|n| Decimal::parse(b) == Some(n))
        }
        (_, _) => a == b,
    }
}

#[cfg(test)]
mod tests;
