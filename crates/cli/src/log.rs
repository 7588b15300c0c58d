//! The log of long-running commands: one line on stderr for every relevant event of the library and the server, as text
//! or JSON, with the fields of the spans around it: the ids of the request and of the trace. This module only formats
//! events.

use crate::output::{eprint_line, escape, rules};
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
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::registry::{LookupSpan, Registry};

/// The maximum number of characters to show of one value.
const VALUE_CHARS_MAX: usize = 500;

/// The format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// Time, level, event, and `name=value` for each field
    #[default]
    Text,
    /// One JSON object per line
    Json,
}

/// The log level. Each level includes the levels before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevel {
    /// Nothing
    Off,
    /// Messages that became dead letters, and errors of the worker
    Error,
    /// Failed deliveries that will be retried, and problems with the store
    Warn,
    /// Actions of maintenance, and start and end of the worker
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

/// Flags for the log.
#[derive(Args, Debug)]
pub(crate) struct LogArgs {
    /// The format of the log on stderr
    #[arg(long = "log", value_enum, value_name = "FORMAT", default_value_t)]
    format: LogFormat,
    /// The log level [default: warn, or off with --quiet; serve: info, or warn with --quiet]
    #[arg(long = "log-level", value_enum, value_name = "LEVEL")]
    level: Option<LogLevel>,
}

impl LogArgs {
    /// Starts logging.
    pub(crate) fn begin(&self, quiet: bool) {
        self.begin_at(if quiet { LogLevel::Off } else { LogLevel::Warn });
    }

    /// Starts logging, at this level unless a flag names another.
    pub(crate) fn begin_at(&self, level: LogLevel) {
        let level = self.level.unwrap_or(level);
        // There is one command per process, so no logger is installed yet.
        let write: WriteLine = Box::new(|line| progress::without_garbling_the_bar(|| eprint_line(line)));
        let log = Log { format: self.format, level: level.into(), write };
        let _ = subscriber::set_global_default(Registry::default().with(log));
    }
}

/// Where lines go.
type WriteLine = Box<dyn Fn(&str) + Send + Sync>;

/// Writes the events of redrive's own crates.
struct Log {
    format: LogFormat,
    level: LevelFilter,
    write: WriteLine,
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Log {
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        *metadata.level() <= self.level && metadata.target().starts_with("redrive")
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.level)
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let mut fields_of_span = EventFields::default();
        attributes.record(&mut fields_of_span);
        if let Some(span) = context.span(id) {
            span.extensions_mut().insert(fields_of_span);
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        if let Some(span) = context.span(id)
            && let Some(fields_of_span) = span.extensions_mut().get_mut::<EventFields>()
        {
            values.record(fields_of_span);
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let mut fields_of_event = EventFields::default();
        event.record(&mut fields_of_event);
        for span in context.event_scope(event).into_iter().flatten() {
            if let Some(fields_of_span) = span.extensions().get::<EventFields>() {
                fields_of_event.add_missing(fields_of_span);
            }
        }
        let ms = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
        let at = Time::from_millis(i64::try_from(ms).unwrap_or(i64::MAX));
        let line = fields_of_event.line(self.format, at, event.metadata());
        (self.write)(&line);
    }
}

/// The text and fields of an event.
#[derive(Default)]
struct EventFields {
    text: String,
    fields: Vec<(&'static str, Value)>,
}

impl EventFields {
    fn add(&mut self, field: &Field, value: Value) {
        // The library names the id of a message `message`, like the text of an event, which comes first.
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

    /// Adds the fields of a span around the event, except those that the event has itself.
    fn add_missing(&mut self, around: &Self) {
        for (name, value) in &around.fields {
            if !self.fields.iter().any(|(known, _)| known == name) {
                self.fields.push((name, value.clone()));
            }
        }
    }

    fn line(self, format: LogFormat, at: Time, metadata: &Metadata<'_>) -> String {
        self.formatted(format, at, *metadata.level(), metadata.target())
    }

    fn formatted(self, format: LogFormat, at: Time, level: Level, target: &str) -> String {
        match format {
            LogFormat::Json => {
                let mut object = Map::new();
                object.insert("time".into(), at.to_string().into());
                object.insert("level".into(), level.as_str().to_lowercase().into());
                object.insert("target".into(), target.into());
                object.insert("event".into(), self.text.into());
                object.extend(self.fields.into_iter().map(|(name, value)| (name.to_owned(), value)));
                escape::json(Value::Object(object).to_string())
            }
            LogFormat::Text => {
                let mut line = format!("{at} {level} {}", self.text);
                for (name, value) in &self.fields {
                    line.push_str(&format!(" {name}={}", quoted_if_needed(value)));
                }
                line
            }
        }
    }
}

/// A value as text, quoted if it is not a single word.
fn quoted_if_needed(value: &Value) -> String {
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

impl Visit for EventFields {
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

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.add(field, ((value * 1_000.0).round() / 1_000.0).into());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.add(field, value.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields_of_event() -> EventFields {
        let fields = vec![
            ("queue", Value::from("payments")),
            ("attempt", Value::from(2)),
            ("error", Value::from("no \"route\"\n\u{1b}[31mred")),
        ];
        EventFields { text: "delivery failed".into(), fields }
    }

    #[test]
    fn a_log_line_is_one_line_for_any_error() {
        let line = fields_of_event().formatted(LogFormat::Text, Time::from_millis(5), Level::WARN, "redrive");
        let expected = r#"1970-01-01T00:00:00.005Z WARN delivery failed queue=payments attempt=2 error="no \"route\"\n\u{1b}[31mred""#;
        assert_eq!(line, expected);
    }

    #[test]
    fn json_is_one_object_with_the_same_fields() {
        let line = fields_of_event().formatted(
            LogFormat::Json,
            Time::from_millis(5),
            Level::ERROR,
            "redrive::worker",
        );
        let object: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&object["level"], &object["event"]), (&"error".into(), &"delivery failed".into()));
        assert_eq!(object["target"], "redrive::worker");
        assert_eq!(
            (&object["attempt"], &object["error"]),
            (&2.into(), &"no \"route\"\n\u{1b}[31mred".into())
        );
        assert!(!line.contains(['\n', '\u{1b}']), "{line}");
    }

    #[test]
    fn a_line_has_the_ids_of_the_request_around_it() {
        let lines = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let kept = std::sync::Arc::clone(&lines);
        let write: WriteLine = Box::new(move |line: &str| kept.lock().unwrap().push(line.to_owned()));
        let log = Log { format: LogFormat::Text, level: LevelFilter::WARN, write };
        subscriber::with_default(Registry::default().with(log), || {
            let span = tracing::error_span!("request", request_id = "r1", trace_id = tracing::field::Empty);
            span.record("trace_id", "0af7");
            span.in_scope(|| tracing::warn!(queue = "q", "refused"));
            span.in_scope(|| tracing::info!("too much detail"));
            tracing::warn!(target: "somebody_else", "not ours");
            tracing::warn!(request_id = "own", "outside");
        });
        let lines = lines.lock().unwrap().clone();
        let ends: Vec<&str> = lines.iter().filter_map(|line| line.split_once("WARN ")).map(|l| l.1).collect();
        assert_eq!(ends, ["refused queue=q request_id=r1 trace_id=0af7", "outside request_id=own"]);
    }
}
