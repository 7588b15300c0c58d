//! `classify`: classifies each error on stdin, one JSON object per line in and out. It needs no data directory and
//! applies the patterns of the configuration.

use crate::connect::App;
use crate::exit_code::{CliError, CommandResult};
use crate::ndjson;
use clap::Args;
use redrive::core::classify::{Class, classify};
use redrive::core::failure::{Category, ErrorInfo, Recoverability, Route, Severity};
use redrive::core::json_input;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  echo '{\"error_type\":\"HttpError\",\"code\":\"429\",\"message\":\"slow down\"}' | redrive classify
  redrive classify errors.ndjson | jq -r .category | sort | uniq -c";

/// The flags of `classify`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ClassifyArgs {
    /// A file with one JSON object per line: error_type, code, message, and optionally stack and cause; `-` for stdin
    #[arg(value_name = "FILE", default_value = "-")]
    file: PathBuf,
    /// Skip and report invalid lines, and exit with 4 if there were any
    #[arg(long)]
    keep_going: bool,
}

/// A line of the input. Other keys are ignored, because the line may be a larger record.
#[derive(Deserialize)]
struct ErrorLine {
    #[serde(default)]
    error_type: Option<String>,
    /// The field name that dead letters use.
    #[serde(default, rename = "type")]
    of_letter: Option<String>,
    #[serde(default)]
    code: Option<Value>,
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    stack: Option<String>,
    #[serde(default)]
    cause: Option<String>,
}

impl ErrorLine {
    fn error(self) -> Result<ErrorInfo, String> {
        let code = match self.code {
            None | Some(Value::Null) => None,
            Some(Value::String(code)) => Some(code),
            Some(Value::Number(code)) => Some(code.to_string()),
            Some(Value::Bool(_) | Value::Array(_) | Value::Object(_)) => {
                return Err("code is neither a text nor a number".into());
            }
        };
        Ok(ErrorInfo {
            error_type: self.error_type.or(self.of_letter).unwrap_or_default(),
            message: self.message.unwrap_or_default(),
            code: code.filter(|code| !code.is_empty()),
            stack: self.stack,
            cause: self.cause,
            ..ErrorInfo::default()
        })
    }
}

/// A line of the output.
#[derive(Serialize)]
struct ClassifiedLine<'a> {
    category: Category,
    route: Route,
    severity: Severity,
    recoverability: Recoverability,
    confidence: f64,
    reasons: &'a [String],
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    permanent: bool,
}

impl<'a> ClassifiedLine<'a> {
    fn of(class: &'a Class) -> Self {
        let Class { category, route, severity, recoverability, confidence, reasons, permanent } = class;
        Self {
            category: *category,
            route: *route,
            severity: *severity,
            recoverability: *recoverability,
            confidence: (f64::from(*confidence) * 1_000.0).round() / 1_000.0,
            reasons,
            permanent: *permanent,
        }
    }
}

/// Runs `classify`.
pub(crate) async fn run(app: &App, args: ClassifyArgs) -> CommandResult {
    let lines = ndjson::open(&args.file)?;
    let parse = |bytes: &[u8]| {
        let line: ErrorLine = json_input::parse(bytes).map_err(CliError::usage)?;
        line.error().map_err(CliError::usage)
    };
    let counts = ndjson::process(app, lines, args.keep_going, parse, async |errors: Vec<ErrorInfo>| {
        let mut text = Vec::new();
        for error in &errors {
            let class = classify(error, &app.config.known.patterns);
            serde_json::to_writer(&mut text, &ClassifiedLine::of(&class))
                .map_err(|error| CliError::io("write a classification", &error.into()))?;
            text.push(b'\n');
        }
        app.out.raw(&text)?;
        Ok(errors.iter().map(|_| Ok(())).collect())
    })
    .await?;
    Ok(counts.code())
}
