//! Changes to a queue's policy: a document of settings and their new values, merged into the policy that is there. The
//! flags of `queue set`, the tables of `redrive.toml` and the API's PATCH are such documents, so this is the only place
//! that says what a partial change means. Whether the result makes sense is for [`QueuePolicy::check`] to say.
//!
//! A setting that is not named stays as it is. Settings with a table of their own (`backoff`, `breaker`, `poison`,
//! `auto_redrive`, `target`, `routes`, `handling`) are merged key by key; lists, headers and variables are replaced.
//! `null` or, where a setting can be absent, the word `none` takes a setting away. Durations may be written with or
//! without the suffix `_ms` in their name.

use crate::auto_redrive::AutoRedrive;
use crate::error::Refusal;
use crate::policy::QueuePolicy;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// A document of changes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PolicyChange(pub Map<String, Value>);

/// How the value of a setting is written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// As it is.
    Plain,
    /// A duration; the stored name ends in `_ms`.
    Span,
    /// May be absent.
    Optional,
    /// A duration that may be absent.
    OptionalSpan,
    /// A list; `none` is the empty one.
    List,
    /// A table that is merged key by key.
    Table(&'static [(&'static str, Kind)]),
    /// A table whose keys are names and whose values may be absent.
    Names,
}

const BACKOFF: &[(&str, Kind)] = &[
    ("strategy", Kind::Plain),
    ("initial", Kind::Span),
    ("cap", Kind::Span),
    ("floor", Kind::Span),
    ("multiplier", Kind::Plain),
    ("delays", Kind::Span),
    ("jitter", Kind::Plain),
];

const BREAKER: &[(&str, Kind)] = &[
    ("key", Kind::Optional),
    ("failures", Kind::Plain),
    ("window", Kind::Plain),
    ("within", Kind::Span),
    ("sample", Kind::Plain),
    ("ratio", Kind::Plain),
    ("open_for", Kind::Span),
    ("open_max", Kind::Span),
    ("probes", Kind::Plain),
];

const POISON: &[(&str, Kind)] =
    &[("detect", Kind::Plain), ("quarantine", Kind::Span), ("release", Kind::Plain)];

const AUTO_REDRIVE: &[(&str, Kind)] = &[("limit", Kind::Optional), ("backoff", Kind::Span)];

const TARGET: &[(&str, Kind)] = &[
    ("type", Kind::Plain),
    ("timeout", Kind::OptionalSpan),
    ("url", Kind::Plain),
    ("method", Kind::Plain),
    ("headers", Kind::Plain),
    ("body", Kind::Optional),
    ("content_type", Kind::Optional),
    ("dead_letter_on", Kind::List),
    ("redirects", Kind::Plain),
    ("allow_private", Kind::Plain),
    ("allow", Kind::List),
    ("connect_timeout", Kind::Span),
    ("max_response_bytes", Kind::Plain),
    ("ca_file", Kind::Optional),
    ("secret", Kind::Optional),
    ("argv", Kind::Plain),
    ("shell", Kind::Optional),
    ("payload", Kind::Plain),
    ("env", Kind::Plain),
    ("unset", Kind::Plain),
    ("directory", Kind::Optional),
];

/// The settings of a target that is a command; all others but `type` and `timeout` belong to a URL.
const COMMAND_KEYS: [&str; 6] = ["argv", "shell", "payload", "env", "unset", "directory"];

const POLICY: &[(&str, Kind)] = &[
    ("max_attempts", Kind::Plain),
    ("max_retries", Kind::Plain),
    ("strategy", Kind::Plain),
    ("backoff", Kind::Table(BACKOFF)),
    ("include", Kind::List),
    ("exclude", Kind::List),
    ("retry_for", Kind::Span),
    ("ttl", Kind::OptionalSpan),
    ("on_expire", Kind::Plain),
    ("on_dead", Kind::Plain),
    ("lease", Kind::Span),
    ("priority", Kind::Plain),
    ("dlq", Kind::Optional),
    ("routes", Kind::Names),
    ("handling", Kind::Names),
    ("breaker", Kind::Table(BREAKER)),
    ("poison", Kind::Table(POISON)),
    ("auto_redrive", Kind::Table(AUTO_REDRIVE)),
    ("max_redrives", Kind::Plain),
    ("retention", Kind::Span),
    ("open_ttl", Kind::OptionalSpan),
    ("max_messages", Kind::Optional),
    ("max_bytes", Kind::Optional),
    ("search_payload", Kind::Plain),
    ("target", Kind::Table(TARGET)),
];

impl PolicyChange {
    /// The policy with these changes.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] names the setting that is unknown, cannot be read or contradicts another.
    pub fn apply(&self, policy: &QueuePolicy) -> Result<QueuePolicy, Refusal> {
        let change = canonical(&self.0, POLICY, "")?;
        let mut merged = document(policy)?;
        for (name, value) in &change {
            self.merge_setting(&mut merged, name, value, policy)?;
            // One setting at a time, so that an error names the setting that it is about.
            read(&merged).map_err(|why| Refusal::invalid(self.written(name, &why), why))?;
        }
        if let (Some(strategy), None) = (change.get("strategy"), change.get("max_attempts")) {
            follow_strategy(&mut merged, strategy, policy);
        }
        read(&merged).map_err(|why| Refusal::invalid("policy", why))
    }

    fn merge_setting(
        &self,
        merged: &mut Map<String, Value>,
        name: &str,
        value: &Value,
        policy: &QueuePolicy,
    ) -> Result<(), Refusal> {
        match (name, value) {
            (_, Value::Null) => {
                merged.remove(name);
            }
            ("backoff", Value::Object(change)) => merge_backoff(table(merged, name), change)?,
            ("breaker", Value::Object(change)) => merge_breaker(merged, change, policy)?,
            ("auto_redrive", Value::Object(change)) => merge_auto_redrive(merged, change, policy)?,
            ("target", Value::Object(change)) => merge_target(merged, change)?,
            ("poison" | "routes" | "handling", Value::Object(change)) => merge(table(merged, name), change),
            (_, value) => {
                merged.insert(name.to_owned(), value.clone());
            }
        }
        Ok(())
    }

    /// The path of a setting as the document wrote it, down to the key that an error is about if it names one.
    fn written(&self, name: &str, why: &str) -> String {
        let top = name.strip_suffix("_ms").filter(|short| self.0.contains_key(*short)).unwrap_or(name);
        let mentioned = |key: &&String| why.contains(&format!("`{key}`"));
        match self.0.get(top) {
            Some(Value::Object(inside)) if inside.len() == 1 || inside.keys().any(|key| mentioned(&key)) => {
                let key = inside.keys().find(mentioned).or_else(|| inside.keys().next());
                key.map_or_else(|| top.to_owned(), |key| format!("{top}.{key}"))
            }
            Some(_) | None => top.to_owned(),
        }
    }
}

/// The document with every setting under its stored name, and `null` for what is taken away.
fn canonical(
    change: &Map<String, Value>,
    known: &[(&str, Kind)],
    section: &str,
) -> Result<Map<String, Value>, Refusal> {
    let mut stored = Map::new();
    for (written, value) in change {
        let path = format!("{section}{written}");
        let short = written.strip_suffix("_ms").unwrap_or(written);
        let is_span = |kind| matches!(kind, Kind::Span | Kind::OptionalSpan);
        let found = known.iter().find(|(name, kind)| *name == written || *name == short && is_span(*kind));
        let Some((name, kind)) = found else {
            let names: Vec<String> = known.iter().map(|(name, _)| format!("`{name}`")).collect();
            let why = format!("unknown field `{written}`, expected one of {}", names.join(", "));
            return Err(Refusal::invalid(path, why));
        };
        let none = value == "none" || value.as_array().is_some_and(|list| list == &["none"]);
        let value = match kind {
            Kind::Optional | Kind::OptionalSpan | Kind::Table(_) if none => Value::Null,
            Kind::List if none => Value::Array(Vec::new()),
            Kind::Table(inside) if value.is_object() => {
                let inside =
                    canonical(value.as_object().unwrap_or(&Map::new()), inside, &format!("{path}."))?;
                Value::Object(inside)
            }
            Kind::Names if value.is_object() => names(value),
            Kind::Plain
            | Kind::Span
            | Kind::Optional
            | Kind::OptionalSpan
            | Kind::List
            | Kind::Table(_)
            | Kind::Names => value.clone(),
        };
        let name = if is_span(*kind) { format!("{name}_ms") } else { (*name).to_owned() };
        if stored.insert(name, value).is_some() {
            return Err(Refusal::invalid(path, "is given twice, with and without `_ms`; give it once"));
        }
    }
    if section.is_empty() {
        retries_are_attempts(&mut stored)?;
    }
    Ok(stored)
}

/// A table of names in which `none` takes a name away.
fn names(value: &Value) -> Value {
    let each = value.as_object().into_iter().flatten();
    let each =
        each.map(|(name, value)| (name.clone(), if value == "none" { Value::Null } else { value.clone() }));
    Value::Object(each.collect())
}

/// `max_retries` counts without the first execution, `max_attempts` with it.
fn retries_are_attempts(change: &mut Map<String, Value>) -> Result<(), Refusal> {
    let Some(retries) = change.remove("max_retries") else { return Ok(()) };
    if change.contains_key("max_attempts") {
        let why = "max_attempts and max_retries say the same thing; give one of them";
        return Err(Refusal::invalid("max_retries", why));
    }
    let attempts = match retries.as_u64() {
        Some(retries) => Value::from(retries.saturating_add(1)),
        None if retries.is_null() => Value::Null,
        None => return Err(Refusal::invalid("max_retries", format!("{retries} is not a number of retries"))),
    };
    change.insert("max_attempts".into(), attempts);
    Ok(())
}

/// The default count of one strategy is not meant as a ceiling of the other; a count that somebody chose is.
fn follow_strategy(merged: &mut Map<String, Value>, strategy: &Value, policy: &QueuePolicy) {
    let by_queue = QueuePolicy::default();
    let by_category = QueuePolicy::by_category();
    let (was, now) =
        if strategy == "by_category" { (by_queue, by_category) } else { (by_category, by_queue) };
    if policy.strategy == was.strategy && policy.max_attempts == was.max_attempts {
        merged.insert("max_attempts".into(), now.max_attempts.into());
    }
}

/// The table of a setting, made if there is none.
fn table<'a>(merged: &'a mut Map<String, Value>, name: &str) -> &'a mut Map<String, Value> {
    let value = merged.entry(name.to_owned()).or_insert_with(|| Value::Object(Map::new()));
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(table) => table,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            unreachable!("it was made an object")
        }
    }
}

fn merge(table: &mut Map<String, Value>, change: &Map<String, Value>) {
    for (name, value) in change {
        if value.is_null() {
            table.remove(name);
        } else {
            table.insert(name.clone(), value.clone());
        }
    }
}

fn merge_backoff(backoff: &mut Map<String, Value>, change: &Map<String, Value>) -> Result<(), Refusal> {
    let old = backoff.get("strategy").cloned();
    // Delays say clearly enough that the backoff is a list of them.
    let implied = change.contains_key("delays_ms").then(|| Value::from("list"));
    let strategy = change.get("strategy").cloned().or(implied).or_else(|| old.clone());
    if strategy != old {
        backoff.remove("multiplier");
        backoff.remove("delays_ms");
    }
    merge(backoff, change);
    let is = |name: &str| strategy.as_ref().is_some_and(|strategy| strategy == name);
    if let Some(strategy) = &strategy {
        backoff.insert("strategy".into(), strategy.clone());
    }
    if is("exponential") {
        backoff.entry("multiplier").or_insert_with(|| 2.0.into());
    }
    if backoff.contains_key("multiplier") && !is("exponential") {
        return Err(Refusal::invalid("backoff.multiplier", "belongs to the exponential backoff"));
    }
    match (backoff.contains_key("delays_ms"), is("list")) {
        (true, false) => Err(Refusal::invalid("backoff.delays", "belong to the backoff `list`")),
        (false, true) => {
            Err(Refusal::invalid("backoff.delays", "the backoff `list` needs delays, such as 1s,10s,1m"))
        }
        (true, true) | (false, false) => Ok(()),
    }
}

fn merge_breaker(
    merged: &mut Map<String, Value>,
    change: &Map<String, Value>,
    policy: &QueuePolicy,
) -> Result<(), Refusal> {
    if change.get("key").is_some_and(Value::is_null) {
        merged.remove("breaker");
        return Ok(());
    }
    if change.is_empty() {
        return Ok(());
    }
    if policy.breaker.is_none() && !change.contains_key("key") {
        let why = "a breaker needs a key: queue, kind, header:NAME or payload.PATH";
        return Err(Refusal::invalid("breaker.key", why));
    }
    let breaker = table(merged, "breaker");
    merge(breaker, change);
    if change.contains_key("open_for_ms") && !change.contains_key("open_max_ms") {
        // A breaker that opens for longer than the longest time there is means the longest time to be as long.
        let read: Result<crate::breaker::BreakerPolicy, _> =
            serde_json::from_value(Value::Object(breaker.clone()));
        if let Ok(rules) = read {
            breaker.insert("open_max_ms".into(), rules.open_max.max(rules.open_for).as_millis().into());
        }
    }
    Ok(())
}

fn merge_auto_redrive(
    merged: &mut Map<String, Value>,
    change: &Map<String, Value>,
    policy: &QueuePolicy,
) -> Result<(), Refusal> {
    if change.get("limit").is_some_and(Value::is_null) {
        merged.remove("auto_redrive");
        return Ok(());
    }
    if change.is_empty() {
        return Ok(());
    }
    if policy.auto_redrive.is_none() && !change.contains_key("limit") {
        let why = "an automatic redrive needs a limit: how often a dead letter is sent back";
        return Err(Refusal::invalid("auto_redrive.limit", why));
    }
    let rule = table(merged, "auto_redrive");
    merge(rule, change);
    rule.entry("backoff_ms").or_insert_with(|| AutoRedrive::BACKOFF.as_millis().into());
    Ok(())
}

fn merge_target(merged: &mut Map<String, Value>, change: &Map<String, Value>) -> Result<(), Refusal> {
    if change.is_empty() {
        return Ok(());
    }
    let old = merged.get("target").and_then(|target| target.get("type")).cloned();
    let names_command = change.contains_key("argv") || change.contains_key("shell");
    let kind = match change.get("type") {
        Some(kind) => kind.clone(),
        None if change.contains_key("url") => "http".into(),
        None if names_command => "command".into(),
        None => old.clone().ok_or_else(|| {
            let why = "there is no target to change; name a URL, a command or a line for the shell first";
            Refusal::invalid("target", why)
        })?,
    };
    let http = kind == "http";
    for key in change.keys().map(|key| key.strip_suffix("_ms").unwrap_or(key)) {
        let of_both = key == "type" || key == "timeout";
        if !of_both && COMMAND_KEYS.contains(&key) == http {
            let (its, this) = if http { ("command", "URL") } else { ("URL", "command") };
            let why = format!("belongs to a {its}, and this target is a {this}");
            return Err(Refusal::invalid(format!("target.{key}"), why));
        }
    }
    if old.as_ref() != Some(&kind) {
        merged.remove("target");
    }
    let target = table(merged, "target");
    if names_command {
        // A command is either a program with arguments or a line for the shell.
        target.remove("argv");
        target.remove("shell");
    }
    merge(target, change);
    target.insert("type".into(), kind);
    Ok(())
}

fn document(policy: &QueuePolicy) -> Result<Map<String, Value>, Refusal> {
    match serde_json::to_value(policy) {
        Ok(Value::Object(document)) => Ok(document),
        Ok(_) => Err(Refusal::invalid("policy", "has no document form")),
        Err(error) => Err(Refusal::invalid("policy", error.to_string())),
    }
}

fn read(document: &Map<String, Value>) -> Result<QueuePolicy, String> {
    serde_json::from_value(Value::Object(document.clone())).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
