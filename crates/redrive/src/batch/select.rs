//! From the rows of the input to the items of the run: filter, sort, distinct, offset, limit, in this order. Each
//! item gets a key, by which a later run knows it again. Pure.

use super::error::BatchError;
use super::path::{ItemPath, names, text_of};
use super::spec::{Job, SortKey};
use super::template::{Placeholder, shown};
use super::yaml::nearest;
use sha2::{Digest as _, Sha256};
use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

/// What an item is known by: a hash of its `key` field, or of all of it.
pub(super) type Key = [u8; 16];

/// One item of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) key: Key,
    /// A hash of all of it: the same key with another body is a changed item.
    pub(super) body: Key,
    pub(super) json: String,
}

/// The items of a run, in order.
#[derive(Debug)]
pub(super) struct Selected {
    pub(super) items: Vec<Item>,
    /// A hash of keys and bodies in order: whether the input is the same as last time.
    pub(super) hash: String,
}

impl Selected {
    /// The hash of each item by its key, as they are written in the store.
    pub(super) fn bodies(&self) -> HashMap<String, String> {
        self.items.iter().map(|item| (hex(&item.key), hex(&item.body))).collect()
    }
}

/// Chooses and orders the items.
pub(super) fn select(job: &Job, mut rows: Vec<String>) -> Result<Selected, BatchError> {
    check_fields(job, &rows)?;
    if let Some(filter) = &job.filter {
        rows.retain(|row| filter.matches(row.as_bytes()));
    }
    if !job.sort_by.is_empty() {
        rows = sorted(&job.sort_by, rows);
    }
    if let Some(path) = &job.distinct {
        let mut seen = HashSet::new();
        // What has no such field is nobody's double.
        rows.retain(|row| path.find(row).is_none_or(|value| seen.insert(short_hash(&[value]))));
    }
    let end = job.max_items.map_or(rows.len(), |most| job.offset.saturating_add(most).min(rows.len()));
    rows.truncate(end);
    rows.drain(..job.offset.min(rows.len()));
    with_keys(job.key.as_ref(), rows)
}

/// Every item with its key. Without a `key` field the same item may come twice; then the second has a key of its
/// own.
fn with_keys(path: Option<&ItemPath>, rows: Vec<String>) -> Result<Selected, BatchError> {
    let mut seen: HashMap<Key, usize> = HashMap::with_capacity(rows.len());
    let mut items = Vec::with_capacity(rows.len());
    let mut all = Sha256::new();
    for (index, json) in rows.into_iter().enumerate() {
        let body = short_hash(&[&json]);
        let key = match path {
            None => {
                let times = seen.entry(body).and_modify(|n| *n += 1).or_insert(0);
                if *times == 0 { body } else { short_hash(&[&json, &times.to_string()]) }
            }
            Some(path) => {
                let value = path.find(&json).filter(|value| *value != "null");
                let Some(value) = value else {
                    return Err(BatchError::Input(format!(
                        "item {index} has no field {path}, which is its key"
                    )));
                };
                let key = short_hash(&[value]);
                if let Some(first) = seen.insert(key, index) {
                    return Err(BatchError::Input(format!(
                        "items {first} and {index} have the same key, {path} = {}; make keys unique, or say \
                         distinct: {path}",
                        text_of(value).chars().take(80).collect::<String>()
                    )));
                }
                key
            }
        };
        all.update(key);
        all.update(body);
        items.push(Item { key, body, json });
    }
    Ok(Selected { items, hash: hex(&all.finalize()) })
}

/// The first 128 bits of a hash; each part is closed by its length, so no two lists of parts read the same.
fn short_hash(parts: &[&str]) -> Key {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let mut key = Key::default();
    for (to, from) in key.iter_mut().zip(hash.finalize()) {
        *to = from;
    }
    key
}

/// Lower-case hexadecimal.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What a value is when it is sorted. Nothing comes last, whatever the direction.
#[derive(Debug, PartialEq)]
enum Rank {
    Number(f64),
    Text(String),
    Other(String),
    Nothing,
}

impl Rank {
    fn of(path: &ItemPath, row: &str) -> Self {
        let Some(json) = path.find(row) else { return Self::Nothing };
        match json.as_bytes().first() {
            Some(b'n') | None => Self::Nothing,
            // CSV knows only text; what reads like a number is sorted like one.
            Some(b'"') => {
                let text = text_of(json);
                match text.trim().parse::<f64>() {
                    Ok(n) if n.is_finite() => Self::Number(n),
                    Ok(_) | Err(_) if text.is_empty() => Self::Nothing,
                    Ok(_) | Err(_) => Self::Text(text),
                }
            }
            Some(b'-' | b'0'..=b'9') => json.parse().map_or_else(|_| Self::Other(json.into()), Self::Number),
            Some(_) => Self::Other(json.to_owned()),
        }
    }

    fn class(&self) -> u8 {
        match self {
            Self::Number(_) => 0,
            Self::Text(_) => 1,
            Self::Other(_) => 2,
            Self::Nothing => 3,
        }
    }

    fn compare(&self, other: &Self, descending: bool) -> Ordering {
        if (*self == Self::Nothing) || (*other == Self::Nothing) {
            return self.class().cmp(&other.class());
        }
        let order = match (self, other) {
            (Self::Number(a), Self::Number(b)) => a.total_cmp(b),
            (Self::Text(a), Self::Text(b)) | (Self::Other(a), Self::Other(b)) => a.cmp(b),
            (a, b) => a.class().cmp(&b.class()),
        };
        if descending { order.reverse() } else { order }
    }
}

/// Stable: rows that rank the same stay in the order of the input.
fn sorted(keys: &[SortKey], rows: Vec<String>) -> Vec<String> {
    let rank = |row: &str| keys.iter().map(|key| Rank::of(&key.path, row)).collect::<Vec<_>>();
    let mut ranked: Vec<(Vec<Rank>, String)> = rows.into_iter().map(|row| (rank(&row), row)).collect();
    ranked.sort_by(|(a, _), (b, _)| {
        let each = a.iter().zip(b).zip(keys);
        each.map(|((a, b), key)| a.compare(b, key.descending)).find(|o| o.is_ne()).unwrap_or(Ordering::Equal)
    });
    ranked.into_iter().map(|(_, row)| row).collect()
}

/// Refuses fields that no item has: a typing mistake, found before anything runs.
fn check_fields(job: &Job, rows: &[String]) -> Result<(), BatchError> {
    if rows.is_empty() {
        return Ok(());
    }
    let mut wanted: Vec<(String, ItemPath)> = Vec::new();
    let filter_paths = job.filter.as_ref().map(|filter| filter.paths()).unwrap_or_default();
    wanted.extend(filter_paths.into_iter().map(|path| ("filter".to_owned(), ItemPath::of(path))));
    wanted.extend(job.sort_by.iter().map(|key| ("sort_by".to_owned(), key.path.clone())));
    wanted.extend(job.distinct.iter().map(|path| ("distinct".to_owned(), path.clone())));
    wanted.extend(job.key.iter().map(|path| ("key".to_owned(), path.clone())));
    for (stage, step) in job.steps().filter(|(stage, _)| *stage == "map") {
        for placeholder in step.templates().flat_map(super::template::Template::placeholders) {
            if let Placeholder::Field(path) = placeholder {
                wanted.push((format!("line {}: {stage}: {}", step.line, shown(placeholder)), path.clone()));
            }
        }
    }
    for (location, path) in wanted {
        if !rows.iter().any(|row| path.find(row).is_some()) {
            let names = rows.first().map(|row| names(row)).unwrap_or_default();
            let known: Vec<&str> = names.iter().map(String::as_str).collect();
            let near = nearest(path.first(), &known).map(|name| format!("; did you mean {name:?}?"));
            let near = near.unwrap_or_else(|| format!("; the first has {}", known.join(", ")));
            return Err(BatchError::Input(format!("{location}: no item has a field {path}{near}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn select_from(extra: &str, rows: &[&str]) -> Result<Vec<String>, String> {
        let job = format!("name: t\ninput: {{file: x.json}}\nmap: [true]\n{extra}\n");
        let job = Job::parse(&job).map_err(|p| format!("{p:?}"))?;
        let rows = rows.iter().map(|row| (*row).to_owned()).collect();
        let selected = select(&job, rows).map_err(|e| e.to_string())?;
        Ok(selected.items.into_iter().map(|item| item.json).collect())
    }

    const ROWS: [&str; 5] = [
        r#"{"n":10,"k":"b"}"#,
        r#"{"n":9,"k":"a"}"#,
        r#"{"n":null,"k":"c"}"#,
        r#"{"k":"a"}"#,
        r#"{"n":10,"k":"a"}"#,
    ];

    #[test]
    fn nulls_sort_last_in_both_directions_and_ties_keep_their_order() {
        let up = select_from("sort_by: n", &ROWS).unwrap();
        assert_eq!(up, [ROWS[1], ROWS[0], ROWS[4], ROWS[2], ROWS[3]]);
        let down = select_from("sort_by: [-n, k]", &ROWS).unwrap();
        assert_eq!(down, [ROWS[4], ROWS[0], ROWS[1], ROWS[3], ROWS[2]]);
    }

    #[test]
    fn filter_distinct_offset_and_limit_come_in_this_order() {
        let all =
            select_from("filter: n>=9\nsort_by: -k\ndistinct: n\noffset: 1\nmax_items: 1", &ROWS).unwrap();
        assert_eq!(all, [ROWS[1]]);
        assert_eq!(select_from("offset: 9", &ROWS).unwrap(), [] as [&str; 0]);
    }

    #[test]
    fn a_field_that_nobody_has_is_found_before_the_run() {
        let error = select_from("filter: nn>=9", &ROWS).unwrap_err();
        assert!(error.contains("filter: no item has a field nn; did you mean \"n\"?"), "{error}");
        let job = "name: t\ninput: {file: x.json}\nmap:\n  steps:\n    - run: echo ${item.kk.z}\n";
        let error = select(&Job::parse(job).unwrap(), vec!["{\"k\":1}".into()]).unwrap_err().to_string();
        assert!(error.contains("line 5: map: ${item.kk.z}: no item has"), "{error}");
    }

    #[test]
    fn keys_are_unique_and_follow_the_content() {
        let job = Job::parse("name: t\ninput: {file: x.json}\nmap: [true]").unwrap();
        let rows = |list: &[&str]| list.iter().map(|row| (*row).to_owned()).collect::<Vec<_>>();
        let a = select(&job, rows(&["1", "1", "2"])).unwrap();
        let b = select(&job, rows(&["2", "1", "1"])).unwrap();
        let keys = |s: &Selected| s.items.iter().map(|item| item.key).collect::<HashSet<_>>();
        assert_eq!((keys(&a).len(), keys(&a)), (3, keys(&b)));
        assert_ne!(a.hash, b.hash);
        let twice = select_from("key: k", &ROWS).unwrap_err();
        assert!(twice.contains("items 1 and 3 have the same key, k = a"), "{twice}");
    }
}
