//! Places in an item: a dotted path (`owner.name`, `tags.0`) and what stands there, and the `json_path` that
//! finds the items in a document. Values are looked up in the text of the JSON and never re-encoded, so numbers
//! of any size stay as they were written.

use serde_json::value::RawValue;
use std::collections::HashMap;
use std::fmt;

/// A dotted path into an item. Parts are names of fields, or indexes of lists from 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ItemPath(Vec<String>);

impl ItemPath {
    /// Reads `a.b.0`; no part may be empty.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let parts: Vec<String> = text.split('.').map(str::to_owned).collect();
        if parts.iter().any(|part| part.is_empty() || part.contains(char::is_whitespace)) {
            return Err(format!("{text:?} is not a path such as id, owner.name or tags.0"));
        }
        Ok(Self(parts))
    }

    /// A path of these parts.
    pub(super) fn of(parts: &[String]) -> Self {
        Self(parts.to_vec())
    }

    /// The first part.
    pub(super) fn first(&self) -> &str {
        self.0.first().map_or("", String::as_str)
    }

    /// The JSON text at the path, if the item has it.
    pub(super) fn find<'a>(&self, item: &'a str) -> Option<&'a str> {
        self.0.iter().try_fold(item, |at, part| step(at, part))
    }

    /// What stands there as text: strings without their quotes, nothing for null, else the JSON.
    pub(super) fn text(&self, item: &str) -> Option<String> {
        self.find(item).map(text_of)
    }
}

impl fmt::Display for ItemPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("."))
    }
}

/// A JSON value as text: strings without their quotes, nothing for null, else the JSON as it is written.
pub(super) fn text_of(json: &str) -> String {
    match json.as_bytes().first() {
        Some(b'"') => serde_json::from_str(json).unwrap_or_default(),
        Some(b'n') => String::new(),
        Some(_) | None => json.to_owned(),
    }
}

/// One step down: into a field, or to the n-th of a list.
fn step<'a>(json: &'a str, part: &str) -> Option<&'a str> {
    match json.as_bytes().first()? {
        b'{' => fields(json)?.remove(part).map(RawValue::get),
        b'[' => list(json)?.get(part.parse::<usize>().ok()?).map(|raw| raw.get()),
        _ => None,
    }
}

fn fields(json: &str) -> Option<HashMap<String, &RawValue>> {
    serde_json::from_str(json).ok()
}

fn list(json: &str) -> Option<Vec<&RawValue>> {
    serde_json::from_str(json).ok()
}

/// The names of an item's own fields, sorted; empty when it has none.
pub(super) fn names(item: &str) -> Vec<String> {
    let mut names: Vec<String> = fields(item).unwrap_or_default().into_keys().collect();
    names.sort();
    names
}

/// The JSON without the spaces between its parts, so that an item is one line.
pub(super) fn compact(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let (mut quoted, mut escaped) = (false, false);
    for c in json.chars() {
        if quoted {
            quoted = c != '"' || escaped;
            escaped = c == '\\' && !escaped;
        } else if c.is_ascii_whitespace() {
            continue;
        } else {
            quoted = c == '"';
        }
        out.push(c);
    }
    out
}

/// One part of a `json_path`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Field(String),
    Index(usize),
    /// Every element of a list, every value of a map.
    Every,
}

/// Where the items are in a document: `$.items[*]`, `$.a.b`, `$['a b'][0]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JsonPath {
    text: String,
    /// Each part with where its text ends.
    parts: Vec<(Part, usize)>,
}

impl JsonPath {
    /// Reads a path. Filters, slices and `..` are refused: `filter` does the first, `offset` the second.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let wrong = |at: usize, what: &str| {
            Err(format!("{text:?} at {at}: {what}; read are $.name, ['name'], [0] and [*]"))
        };
        let Some(mut rest) = text.strip_prefix('$') else { return wrong(0, "a path begins with $") };
        let mut parts = Vec::new();
        while !rest.is_empty() {
            let at = text.len() - rest.len();
            let (part, after) = if let Some(name) = rest.strip_prefix('.') {
                let end = name.find(['.', '[']).unwrap_or(name.len());
                let (name, after) = name.split_at(end);
                match name {
                    "" => return wrong(at, "a name is missing after the dot"),
                    "*" => (Part::Every, after),
                    name => (Part::Field(name.to_owned()), after),
                }
            } else if let Some(inner) = rest.strip_prefix('[') {
                let quote = inner.chars().next().filter(|c| matches!(c, '\'' | '"'));
                let close = quote.map_or_else(|| "]".to_owned(), |quote| format!("{quote}]"));
                let inner = inner.strip_prefix(['\'', '"']).unwrap_or(inner);
                let Some((inner, after)) = inner.split_once(close.as_str()) else {
                    return wrong(at, "\"[\" is not closed");
                };
                match (inner, inner.parse()) {
                    (name, _) if quote.is_some() => (Part::Field(name.to_owned()), after),
                    ("*", _) => (Part::Every, after),
                    (_, Ok(index)) => (Part::Index(index), after),
                    (_, Err(_)) => return wrong(at, "expected a number, '*' or a quoted name in brackets"),
                }
            } else {
                return wrong(at, "expected . or [");
            };
            rest = after;
            parts.push((part, text.len() - rest.len()));
        }
        Ok(Self { text: text.to_owned(), parts })
    }

    /// Calls `each` with every match. A list at the end of a path that does not say `[*]` stands for its
    /// elements.
    ///
    /// # Errors
    /// Which part matched last when nothing does, or what `each` says.
    pub(super) fn walk<'a>(
        &self,
        document: &'a str,
        each: &mut dyn FnMut(&'a str) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut level: Vec<&'a str> = vec![document];
        let mut before = 1;
        let mut fanned = false;
        for (part, end) in &self.parts {
            let mut next = Vec::new();
            for at in &level {
                match part {
                    Part::Field(name) => next.extend(at.starts_with('{').then(|| step(at, name)).flatten()),
                    Part::Index(n) => {
                        next.extend(at.starts_with('[').then(|| step(at, &n.to_string())).flatten());
                    }
                    Part::Every => next.extend(every(at).unwrap_or_default()),
                }
            }
            let empty_list = *part == Part::Every && level.iter().any(|at| every(at).is_some());
            if next.is_empty() && !empty_list && !(fanned && level.is_empty()) {
                return Err(self.lost(before, *end, &level));
            }
            fanned |= *part == Part::Every;
            level = next;
            before = *end;
        }
        let ends_with_every = matches!(self.parts.last(), Some((Part::Every, _)));
        for at in level {
            match every(at).filter(|_| !ends_with_every && at.starts_with('[')) {
                Some(elements) => elements.into_iter().try_for_each(&mut *each)?,
                None => each(at)?,
            }
        }
        Ok(())
    }

    fn lost(&self, before: usize, end: usize, level: &[&str]) -> String {
        let matched = self.text.get(..before).unwrap_or_default();
        let part = self.text.get(before..end).unwrap_or_default();
        let there = level.first().map_or_else(|| "nothing".to_owned(), |at| describe(at));
        format!("json_path {} matches nothing: {matched} is {there}, and {part} is not in it", self.text)
    }
}

/// The elements of a list or the values of a map; nothing for what is neither.
fn every(json: &str) -> Option<Vec<&str>> {
    match json.as_bytes().first()? {
        b'[' => list(json).map(|all| all.into_iter().map(RawValue::get).collect()),
        b'{' => {
            let mut all: Vec<(String, &RawValue)> = fields(json)?.into_iter().collect();
            all.sort_by(|a, b| a.0.cmp(&b.0));
            Some(all.into_iter().map(|(_, raw)| raw.get()).collect())
        }
        _ => None,
    }
}

/// What a piece of JSON is, for people.
pub(super) fn describe(json: &str) -> String {
    match json.as_bytes().first() {
        Some(b'{') => {
            let names = names(json);
            let shown: Vec<&str> = names.iter().take(8).map(String::as_str).collect();
            let more = if names.len() > shown.len() { ", …" } else { "" };
            format!(
                "a map with {}{more}",
                if shown.is_empty() { "no fields".into() } else { shown.join(", ") }
            )
        }
        Some(b'[') => format!("a list of {}", list(json).unwrap_or_default().len()),
        Some(b'"') => "text".into(),
        Some(b't' | b'f') => "true or false".into(),
        Some(b'n') => "null".into(),
        Some(_) | None => "a number".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = r#"{"meta": {"n": 2}, "items": [{"id": 12345678901234567890123, "t": "a b"}, {"id": 2}], "none": []}"#;

    fn walk(path: &str) -> Result<Vec<String>, String> {
        let mut found = Vec::new();
        JsonPath::parse(path)?.walk(DOCUMENT, &mut |json| {
            found.push(json.to_owned());
            Ok(())
        })?;
        Ok(found)
    }

    #[test]
    fn paths_find_values_as_they_are_written() {
        let id = ItemPath::parse("items.0.id").unwrap();
        assert_eq!(id.text(DOCUMENT).as_deref(), Some("12345678901234567890123"));
        assert_eq!(ItemPath::parse("items.0.t").unwrap().text(DOCUMENT).as_deref(), Some("a b"));
        assert_eq!(ItemPath::parse("items.9").unwrap().text(DOCUMENT), None);
        assert!(ItemPath::parse("a..b").is_err());
    }

    #[test]
    fn json_paths_find_items_and_say_where_they_stop() {
        assert_eq!(walk("$.items[*]").unwrap().len(), 2);
        assert_eq!(walk("$.items").unwrap().len(), 2);
        assert_eq!(walk("$['items'][1]").unwrap(), [r#"{"id": 2}"#]);
        assert_eq!(walk("$.items[*].t").unwrap(), ["\"a b\""]);
        assert_eq!(walk("$.none[*]").unwrap(), [] as [String; 0]);
        assert_eq!(walk("$.meta.*").unwrap(), ["2"]);
        let lost = walk("$.items[*].nope.x").unwrap_err();
        assert!(
            lost.contains("$.items[*] is a map with id, t") && lost.contains(".nope is not in it"),
            "{lost}"
        );
        let lost = walk("$.item").unwrap_err();
        assert!(lost.contains("$ is a map with items, meta, none"), "{lost}");
        for bad in ["items", "$..a", "$[?(@.x)]", "$[1:2]", "$.", "$['a'", "$a"] {
            assert!(JsonPath::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn compact_json_is_the_same_json() {
        let pretty = "{\n  \"a b\": \"x \\\" y\\\\\",\n  \"n\": [1, 2.50]\n}";
        assert_eq!(compact(pretty), "{\"a b\":\"x \\\" y\\\\\",\"n\":[1,2.50]}");
    }
}
