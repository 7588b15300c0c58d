//! Evaluation: a handler runs on a given input, its output is scored against what was expected, and the score
//! goes to the sender as the reply. Nothing else is different from any other work: failures are retried and
//! dead-lettered by the queue's rules.

use crate::handler::{Context, Handler, HandlerError, IntoHandler, Outcome};
use async_trait::async_trait;
use redrive_core::message::Payload;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;

/// What is sent to an evaluation queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvalRequest {
    /// The payload the handler is given.
    pub input: Value,
    /// What its output is compared with.
    #[serde(default)]
    pub expected: Value,
}

/// How good an output is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// 0 is worthless, 1 is perfect.
    pub score: f64,
    /// Whether that is good enough.
    pub passed: bool,
    /// Why, for people.
    pub reason: String,
}

impl Score {
    /// All or nothing.
    #[must_use]
    pub fn of(passed: bool, reason: impl Into<String>) -> Self {
        Self { score: f64::from(u8::from(passed)), passed, reason: reason.into() }
    }
}

/// The reply: the output and its score.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvalResult {
    /// What the handler answered; null when it answered nothing.
    pub output: Value,
    /// How good that is.
    #[serde(flatten)]
    pub score: Score,
}

/// Compares an output with what was expected. Closures of both are evaluators.
#[async_trait]
pub trait Evaluator: Send + Sync {
    /// Scores one output.
    ///
    /// # Errors
    /// A failure of the message: the evaluator could not say.
    async fn score(&self, output: &Value, expected: &Value) -> Result<Score, HandlerError>;
}

#[async_trait]
impl<F: Fn(&Value, &Value) -> Score + Send + Sync> Evaluator for F {
    async fn score(&self, output: &Value, expected: &Value) -> Result<Score, HandlerError> {
        Ok(self(output, expected))
    }
}

/// The output must be equal to what was expected.
#[must_use]
pub fn exact_match(output: &Value, expected: &Value) -> Score {
    let passed = output == expected;
    Score::of(passed, if passed { "equal" } else { "not equal to what was expected" })
}

/// Whatever is expected must be in the output: objects may have more fields, lists must match item by item. The
/// score is the share of expected values that are there.
#[must_use]
pub fn json_subset(output: &Value, expected: &Value) -> Score {
    let (mut found, mut missing) = (0_u32, Vec::new());
    compare(output, expected, "$", &mut found, &mut missing);
    let all = f64::from(found) + missing.len() as f64;
    let score = if all > 0.0 { f64::from(found) / all } else { 1.0 };
    let reason = match missing.first() {
        None => "everything expected is there".to_owned(),
        Some(first) => format!("{} of {all} expected values differ; the first at {first}", missing.len()),
    };
    Score { score, passed: missing.is_empty(), reason }
}

fn compare(output: &Value, expected: &Value, at: &str, found: &mut u32, missing: &mut Vec<String>) {
    match (output, expected) {
        (Value::Object(has), Value::Object(wants)) => {
            for (name, want) in wants {
                let has = has.get(name).unwrap_or(&Value::Null);
                compare(has, want, &format!("{at}.{name}"), found, missing);
            }
        }
        (Value::Array(has), Value::Array(wants)) if has.len() == wants.len() => {
            for (n, (has, want)) in has.iter().zip(wants).enumerate() {
                compare(has, want, &format!("{at}[{n}]"), found, missing);
            }
        }
        (has, want) if has == want => *found += 1,
        (_, _) => missing.push(at.to_owned()),
    }
}

/// A handler around another that scores its output and replies with an [`EvalResult`].
///
/// ```
/// use redrive::{EvalHandler, Outcome, json_subset};
///
/// let double = async |n: i64| Outcome::reply(&serde_json::json!({"doubled": 2 * n, "by": "addition"}));
/// let handler = EvalHandler::new(double, json_subset);
/// // Worker::builder(store).queue("evals").handler("double", handler)
/// # let _: EvalHandler = handler;
/// ```
pub struct EvalHandler {
    inner: Arc<dyn Handler>,
    evaluator: Box<dyn Evaluator>,
}

impl std::fmt::Debug for EvalHandler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EvalHandler")
    }
}

impl EvalHandler {
    /// Scores what this handler answers with this evaluator.
    pub fn new<How>(handler: impl IntoHandler<How>, evaluator: impl Evaluator + 'static) -> Self {
        Self { inner: handler.into_handler(), evaluator: Box::new(evaluator) }
    }

    async fn scored(&self, output: Value, expected: &Value) -> Outcome {
        match self.evaluator.score(&output, expected).await {
            Ok(score) => Outcome::reply(&EvalResult { output, score }),
            Err(error) => Outcome::Fail(error),
        }
    }
}

#[async_trait]
impl Handler for EvalHandler {
    async fn handle(&self, context: Context) -> Outcome {
        let request: EvalRequest = match context.payload() {
            Ok(request) => request,
            Err(error) => return Outcome::DeadLetter(error),
        };
        let input = match Payload::json(&request.input) {
            Ok(input) => input,
            Err(error) => return Outcome::DeadLetter(error.into()),
        };
        match self.inner.handle(context.with_payload(input)).await {
            Outcome::Done => self.scored(Value::Null, &request.expected).await,
            Outcome::Reply(payload) => match serde_json::from_slice(&payload.bytes) {
                Ok(output) => self.scored(output, &request.expected).await,
                // Not JSON: text is scored as text.
                Err(_) => {
                    let text = String::from_utf8_lossy(&payload.bytes).into_owned();
                    self.scored(Value::String(text), &request.expected).await
                }
            },
            other @ (Outcome::Fail(_) | Outcome::DeadLetter(_) | Outcome::Snooze(_) | Outcome::Release) => {
                other
            }
        }
    }
}
