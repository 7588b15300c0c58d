//! A job file as a tree that knows its lines, and reading it field by field so that every mistake is found, not
//! only the first. Anchors, aliases and tags are refused: a job file needs none, and aliases can make a small
//! file huge. Knows nothing of jobs.

use redrive_core::limits;
use saphyr_parser::{Event, Parser, ScalarStyle};
use std::collections::BTreeMap;
use std::fmt;

/// One thing that is wrong with a job file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong, and what to do.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.what)
    }
}

/// A piece of the file and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    pub(super) line: usize,
    pub(super) value: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    /// A scalar; a plain one may also be read as a number, a truth value or nothing.
    Scalar { text: String, plain: bool },
    /// A list.
    List(Vec<Node>),
    /// Entries in the order of the file, each with the line of its key.
    Map(Vec<(usize, String, Node)>),
}

/// A place that is open while the events of a document come in.
enum Open {
    List(usize, Vec<Node>),
    Map { line: usize, entries: Vec<(usize, String, Node)>, key: Option<(usize, String)> },
}

/// Reads one document.
pub(super) fn parse(text: &str) -> Result<Node, Problem> {
    let wrong = |line: usize, what: &str| Err(Problem { line, what: what.to_owned() });
    let mut open: Vec<Open> = Vec::new();
    let mut whole = None;
    for event in Parser::new_from_str(text) {
        let (event, span) = event
            .map_err(|e| Problem { line: e.marker().line(), what: format!("not YAML: {}", e.info()) })?;
        let line = span.start.line();
        let finished = match event {
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => continue,
            Event::DocumentStart(_) if whole.is_some() => {
                return wrong(line, "a second document begins; one job per file");
            }
            Event::DocumentStart(_) => continue,
            Event::Alias(_) => return wrong(line, "aliases (*name) are not read; write the value out"),
            Event::Scalar(_, _, _, Some(_))
            | Event::SequenceStart(_, Some(_))
            | Event::MappingStart(_, Some(_)) => {
                return wrong(line, "tags (!name) are not read; leave it out");
            }
            Event::Scalar(_, _, 1.., _) | Event::SequenceStart(1.., _) | Event::MappingStart(1.., _) => {
                return wrong(line, "anchors (&name) are not read; leave it out");
            }
            Event::SequenceStart(..) => {
                open.push(Open::List(line, Vec::new()));
                None
            }
            Event::MappingStart(..) => {
                open.push(Open::Map { line, entries: Vec::new(), key: None });
                None
            }
            Event::Scalar(text, style, ..) => {
                let plain = style == ScalarStyle::Plain;
                Some(Node { line, value: Value::Scalar { text: text.into_owned(), plain } })
            }
            Event::SequenceEnd | Event::MappingEnd => open.pop().map(|location| match location {
                Open::List(line, items) => Node { line, value: Value::List(items) },
                Open::Map { line, entries, .. } => Node { line, value: Value::Map(entries) },
            }),
        };
        if open.len() > limits::JOB_FILE_DEPTH_MAX {
            return wrong(line, "nested too deeply for a job file");
        }
        if let Some(node) = finished {
            match open.last_mut() {
                Some(location) => put(location, node)?,
                None => whole = Some(node),
            }
        }
    }
    whole.ok_or_else(|| Problem { line: 1, what: "the file is empty; see docs/batch.md for a job".into() })
}

/// Puts a finished node where it belongs: in a list, as a key, or as the value of the last key.
fn put(location: &mut Open, node: Node) -> Result<(), Problem> {
    match location {
        Open::List(_, items) => items.push(node),
        Open::Map { entries, key, .. } => match key.take() {
            Some((line, name)) => entries.push((line, name, node)),
            None => match node.value {
                Value::Scalar { text, .. } => {
                    if let Some((first, ..)) = entries.iter().find(|(_, name, _)| *name == text) {
                        let what =
                            format!("{text:?} stands here a second time; the first is in line {first}");
                        return Err(Problem { line: node.line, what });
                    }
                    *key = Some((node.line, text));
                }
                Value::List(_) | Value::Map(_) => {
                    return Err(Problem { line: node.line, what: "a key must be a word".into() });
                }
            },
        },
    }
    Ok(())
}

impl Node {
    /// What it is, for people.
    pub(super) fn kind(&self) -> &'static str {
        match &self.value {
            Value::Scalar { .. } if self.is_null() => "nothing",
            Value::Scalar { plain: true, text } if text.parse::<f64>().is_ok() => "a number",
            Value::Scalar { plain: true, text } if matches!(text.as_str(), "true" | "false") => {
                "true or false"
            }
            Value::Scalar { .. } => "text",
            Value::List(_) => "a list",
            Value::Map(_) => "a map",
        }
    }

    /// Whether nothing was written.
    pub(super) fn is_null(&self) -> bool {
        matches!(&self.value, Value::Scalar { text, plain: true } if matches!(text.as_str(), "" | "~" | "null"))
    }

    /// The same as JSON, for parts whose shape another type knows.
    pub(super) fn to_json(&self) -> serde_json::Value {
        use serde_json::Value as Json;
        match &self.value {
            Value::Scalar { .. } if self.is_null() => Json::Null,
            Value::Scalar { text, plain: true } => match text.as_str() {
                "true" => Json::Bool(true),
                "false" => Json::Bool(false),
                _ => text.parse().map_or_else(|_| Json::String(text.clone()), Json::Number),
            },
            Value::Scalar { text, .. } => Json::String(text.clone()),
            Value::List(items) => Json::Array(items.iter().map(Self::to_json).collect()),
            Value::Map(entries) => {
                Json::Object(entries.iter().map(|(_, key, node)| (key.clone(), node.to_json())).collect())
            }
        }
    }
}

/// Where mistakes are collected while a file is read.
#[derive(Debug, Default)]
pub(super) struct Problems(Vec<Problem>);

impl Problems {
    pub(super) fn add(&mut self, line: usize, what: impl Into<String>) {
        if self.0.len() < limits::JOB_PROBLEMS_MAX {
            self.0.push(Problem { line, what: what.into() });
        }
    }

    pub(super) fn expected(&mut self, key: &str, node: &Node, what: &str) {
        self.add(node.line, format!("{key}: expected {what}, found {}", node.kind()));
    }

    /// Whether something about this key was found wrong.
    pub(super) fn mentions(&self, key: &str) -> bool {
        self.0.iter().any(|problem| problem.what.starts_with(key))
    }

    /// The value, if nothing was wrong.
    pub(super) fn finish<T>(mut self, value: Option<T>) -> Result<T, Vec<Problem>> {
        self.0.sort_by_key(|problem| problem.line);
        match value {
            Some(value) if self.0.is_empty() => Ok(value),
            Some(_) | None => Err(self.0),
        }
    }
}

/// The entries of one map, taken out one by one.
pub(super) struct Fields<'p> {
    /// How people call the map: "" at the top, else "map.retry" and the like.
    location: String,
    /// Where it begins.
    pub(super) line: usize,
    entries: BTreeMap<String, (usize, Node)>,
    pub(super) problems: &'p mut Problems,
}

impl<'p> Fields<'p> {
    /// The map at this place. Unknown keys are mistakes at once, with the nearest known one.
    pub(super) fn of(location: &str, node: Node, known: &[&str], problems: &'p mut Problems) -> Option<Self> {
        let line = node.line;
        let Value::Map(map) = node.value else {
            let wanted = format!("a map with {}", known.join(", "));
            problems.expected(if location.is_empty() { "the file" } else { location }, &node, &wanted);
            return None;
        };
        let mut entries = BTreeMap::new();
        for (at, key, node) in map {
            if known.contains(&key.as_str()) {
                entries.insert(key, (at, node));
            } else {
                problems.add(at, unknown(location, &key, known));
            }
        }
        Some(Self { location: location.to_owned(), line, entries, problems })
    }

    /// The full name of a key.
    pub(super) fn name(&self, key: &str) -> String {
        if self.location.is_empty() { key.to_owned() } else { format!("{}.{key}", self.location) }
    }

    /// The value of a key, if it is there and not empty.
    pub(super) fn take(&mut self, key: &str) -> Option<Node> {
        self.entries.remove(key).map(|(_, node)| node).filter(|node| !node.is_null())
    }

    /// Text; numbers and words are taken as they are written.
    pub(super) fn text(&mut self, key: &str) -> Option<(usize, String)> {
        let node = self.take(key)?;
        let name = self.name(key);
        match node.value {
            Value::Scalar { text, .. } => Some((node.line, text)),
            Value::List(_) | Value::Map(_) => {
                self.problems.expected(&name, &node, "text");
                None
            }
        }
    }

    /// Text that something else reads.
    pub(super) fn parsed<T, E: fmt::Display>(
        &mut self,
        key: &str,
        read: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let (line, text) = self.text(key)?;
        match read(&text) {
            Ok(value) => Some(value),
            Err(error) => {
                let name = self.name(key);
                self.problems.add(line, format!("{name}: {error}"));
                None
            }
        }
    }

    /// A whole number within bounds.
    pub(super) fn number(&mut self, key: &str, min: u64, max: u64) -> Option<u64> {
        self.parsed(key, |text| match text.parse::<u64>() {
            Ok(n) if (min..=max).contains(&n) => Ok(n),
            Ok(_) | Err(_) => Err(format!("expected a whole number from {min} to {max}, found {text:?}")),
        })
    }

    /// `true` or `false`.
    pub(super) fn truth(&mut self, key: &str) -> Option<bool> {
        self.parsed(key, |text| match text {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(format!("expected true or false, found {text:?}")),
        })
    }

    /// A list, or one thing in place of a list of one.
    pub(super) fn list(&mut self, key: &str) -> Option<Vec<Node>> {
        let node = self.take(key)?;
        Some(match node.value {
            Value::List(items) => items,
            Value::Scalar { .. } | Value::Map(_) => vec![node],
        })
    }

    /// A map of texts.
    pub(super) fn texts(&mut self, key: &str) -> BTreeMap<String, String> {
        let name = self.name(key);
        let mut all = BTreeMap::new();
        let Some(node) = self.take(key) else { return all };
        let Value::Map(entries) = node.value else {
            self.problems.expected(&name, &node, "a map of texts");
            return all;
        };
        for (_, key, node) in entries {
            match node.value {
                Value::Scalar { text, .. } => {
                    all.insert(key, text);
                }
                Value::List(_) | Value::Map(_) => {
                    self.problems.expected(&format!("{name}.{key}"), &node, "text");
                }
            }
        }
        all
    }
}

/// What to say about a key nobody knows.
fn unknown(location: &str, key: &str, known: &[&str]) -> String {
    let inside = if location.is_empty() { String::new() } else { format!(" in {location}") };
    match nearest(key, known) {
        Some(word) => format!("unknown key {key:?}{inside}; did you mean {word:?}?"),
        None => format!("unknown key {key:?}{inside}; known are {}", known.join(", ")),
    }
}

/// The known word a wrong one was probably meant to be.
pub(super) fn nearest<'a>(wrong: &str, known: &[&'a str]) -> Option<&'a str> {
    if wrong.len() > limits::LABEL_BYTES_MAX {
        return None;
    }
    let bound = (wrong.chars().count() / 3).max(2);
    let distance = |word: &&str| {
        let started = wrong.len() > 2 && (word.starts_with(wrong) || wrong.starts_with(*word));
        let letters = strsim::damerau_levenshtein(wrong, word);
        if started { letters.min(bound) } else { letters }
    };
    known.iter().copied().filter(|word| distance(word) <= bound).min_by_key(distance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_knows_its_line() {
        let node = parse("a: 1\nb:\n  - x\n  - {c: 'yes', d: ~}\n").unwrap();
        let Value::Map(top) = &node.value else { panic!() };
        assert_eq!(top[1].0, 2);
        let Value::List(items) = &top[1].2.value else { panic!() };
        assert_eq!((items[0].line, items[1].line), (3, 4));
        assert_eq!(node.to_json(), serde_json::json!({"a": 1, "b": ["x", {"c": "yes", "d": null}]}));
    }

    #[test]
    fn what_could_grow_or_hide_is_refused_with_its_line() {
        let deep = format!("{}1{}", "[".repeat(50), "]".repeat(50));
        for (text, line, says) in [
            ("a: &x 1\nb: *x", 1, "anchors"),
            ("a: 1\nb: *x", 2, ""),
            ("a: !!int 1", 1, "tags"),
            ("a: 1\na: 2", 2, "second time; the first is in line 1"),
            ("a: 1\n---\nb: 1", 2, "second document"),
            ("a: [1,\nb", 2, "not YAML"),
            ("? [a]\n: 1", 1, "a key must be a word"),
            ("", 1, "empty"),
            (&deep, 1, "too deeply"),
        ] {
            let problem = parse(text).unwrap_err();
            assert!(problem.what.contains(says), "{text}: {problem}");
            assert!(problem.line.abs_diff(line) <= 1, "{text}: {problem}");
        }
    }

    #[test]
    fn a_wrong_word_finds_its_neighbour() {
        let known = ["max_items", "max_failures", "filter", "map"];
        assert_eq!(nearest("max_item", &known), Some("max_items"));
        assert_eq!(nearest("fliter", &known), Some("filter"));
        assert_eq!(nearest("quux_and_more", &known), None);
    }
}
