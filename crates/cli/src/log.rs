//! The log of commands that run for long: one line on stderr for every event of the library that matters, as text or as
//! JSON. It formats; what is worth an event is decided where it happens.

use crate::output::{complain, escape, rules};
use crate::progress;
use clap::{Args, ValueEnum};
use redrive::core::time::Time;
use serde_json::{Map, Value};
use std::fmt;
use std::time::SystemTime;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber, subscriber};

/// Characters of one value that are shown: a line stays a line.
const VALUE_CHARS_MAX: usize = 500;

/// How the log is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Time, level, what happened, and `name=value` for the rest
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

/// What is logged. Each level has what the levels before it have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevel {
    /// Nothing
    Off,
    /// Messages that became dead letters, and what the worker cannot do
    Error,
    /// Failed deliveries that are tried again, and trouble with the store
    Warn,
    /// What maintenance did, and how the worker begins and ends
    Info,
    /// Every settlement
    Debug,
}

impl From<LogLevel> for LevelFilter {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Off => Self::OFF,
            LogLevel::Error => Self::ERROR,
            LogLevel::Warn => Self::WARN,
            LogLevel::Info => Self::INFO,
            LogLevel::Debug => Self::DEBUG,
        }
    }
}

/// The flags of the log.
#[derive(Args, Debug)]
pub(crate) struct LogArgs {
    /// How the log on stderr is written
    #[arg(long = "log", value_enum, value_name = "FORMAT", default_value_t)]
    format: LogFormat,
    /// How much is logged [default: warn, or off with --quiet]
    #[arg(long = "log-level", value_enum, value_name = "LEVEL")]
    level: Option<LogLevel>,
}

impl LogArgs {
    /// Logs from here on.
    pub(crate) fn begin(&self, quiet: bool) {
        let level = self.level.unwrap_or(if quiet { LogLevel::Off } else { LogLevel::Warn });
        // One command per process: nobody has begun a log before.
        let _ = subscriber::set_global_default(Log { format: self.format, level: level.into() });
    }
}

/// Writes events of this program's own crates to stderr.
struct Log {
    format: LogFormat,
    level: LevelFilter,
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= self.level && metadata.target().starts_with("redrive")
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut told = Told::default();
        event.record(&mut told);
        let ms = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
        let at = Time::from_millis(i64::try_from(ms).unwrap_or(i64::MAX));
        let line = told.line(self.format, at, *event.metadata().level());
        progress::beside_the_line(|| complain(&line));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// What an event says.
#[derive(Default)]
struct Told {
    text: String,
    fields: Vec<(&'static str, Value)>,
}

impl Told {
    fn add(&mut self, field: &Field, value: Value) {
        // The library calls the id of a message `message`, as the text of an event is called too; that comes first.
        let name = if field.name() == "message" { "id" } else { field.name() };
        self.fields.push((name, value));
    }

    fn add_text(&mut self, field: &Field, text: &str) {
        if field.name() == "message" && self.text.is_empty() {
            text.clone_into(&mut self.text);
            return;
        }
        let masked = rules().mask_text(text);
        let mut shown: String = masked.chars().take(VALUE_CHARS_MAX).collect();
        if shown.len() < masked.len() {
            shown.push('…');
        }
        self.add(field, Value::String(shown));
    }

    fn line(self, format: LogFormat, at: Time, level: Level) -> String {
        match format {
            LogFormat::Json => {
                let mut object = Map::new();
                object.insert("time".into(), at.to_string().into());
                object.insert("level".into(), level.as_str().to_lowercase().into());
                object.insert("event".into(), self.text.into());
                object.extend(self.fields.into_iter().map(|(name, value)| (name.to_owned(), value)));
                escape::json(Value::Object(object).to_string())
            }
            LogFormat::Text => {
                let mut line = format!("{at} {level} {}", self.text);
                for (name, value) in &self.fields {
                    line.push_str(&format!(" {name}={}", word(value)));
                }
                line
            }
        }
    }
}

/// A value in a line of text: quoted where it would not be one word.
fn word(value: &Value) -> String {
    match value {
        Value::String(text) => {
            let safe = escape::line(text);
            let plain = !safe.is_empty() && !safe.contains([' ', '"', '=']) && safe == *text;
            if plain { safe.into_owned() } else { format!("\"{}\"", safe.replace('"', "\\\"")) }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            value.to_string()
        }
    }
}

impl Visit for Told {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add_text(field, &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add_text(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.add(field, value.into());
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.add(field, value.into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told() -> Told {
        let fields = vec![
            ("queue", Value::from("payments")),
            ("attempt", Value::from(2)),
            ("error", Value::from("no \"route\"\n\u{1b}[31mred")),
        ];
        Told { text: "delivery failed".into(), fields }
    }

    #[test]
    fn a_line_is_one_line_whatever_the_error_says() {
        let line = told().line(LogFormat::Text, Time::from_millis(5), Level::WARN);
        let expected = r#"1970-01-01T00:00:00.005Z WARN delivery failed queue=payments attempt=2 error="no \"route\"\n\u{1b}[31mred""#;
        assert_eq!(line, expected);
    }

    #[test]
    fn json_is_one_object_with_the_same_fields() {
        let line = told().line(LogFormat::Json, Time::from_millis(5), Level::ERROR);
        let object: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&object["level"], &object["event"]), (&"error".into(), &"delivery failed".into()));
        assert_eq!(
            (&object["attempt"], &object["error"]),
            (&2.into(), &"no \"route\"\n\u{1b}[31mred".into())
        );
        assert!(!line.contains(['\n', '\u{1b}']), "{line}");
    }
}
