//! Evaluation: a handler runs on a given input, its output is scored against the expected one, and the score is sent to
//! the sender as the reply. Apart from that it is ordinary work: failures are retried and dead-lettered by the policy
//! of the queue.

use crate::handler::{Context, Handler, HandlerError, IntoHandler, Outcome};
use async_trait::async_trait;
use redrive_core::message::Payload;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::sync::Arc;

/// The payload of a message in an evaluation queue.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvalRequest {
    /// The payload for the handler.
    pub input: Value,
    /// The value that its output is compared with.
    #[serde(default)]
    pub expected: Value,
}

/// How good an output is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Score {
    /// 0 is worthless, 1 is perfect.
    pub score: f64,
    /// Whether the output is good enough.
    pub passed: bool,
    /// An explanation for people.
    pub reason: String,
}

impl Score {
    /// A score of 1 if the output passed, otherwise 0.
    #[must_use]
    pub fn of(passed: bool, reason: impl Into<String>) -> Self {
        Self { score: f64::from(u8::from(passed)), passed, reason: reason.into() }
    }
}

/// The reply: the output and its score.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EvalResult {
    /// The reply of the handler; null if it sent none.
    pub output: Value,
    /// The score of the output.
    #[serde(flatten)]
    pub score: Score,
}

/// Compares an output with the expected value. Closures of both are evaluators.
#[async_trait]
pub trait Evaluator: Send + Sync {
    /// Scores one output.
    ///
    /// # Errors
    /// Returns an error if the evaluator cannot score the output. The message fails then.
    async fn score(&self, output: &Value, expected: &Value) -> Result<Score, HandlerError>;
}

#[async_trait]
impl<F: Fn(&Value, &Value) -> Score + Send + Sync> Evaluator for F {
    async fn score(&self, output: &Value, expected: &Value) -> Result<Score, HandlerError> {
        Ok(self(output, expected))
    }
}

/// Passes if the output is equal to the expected value.
#[must_use]
pub fn exact_match(output: &Value, expected: &Value) -> Score {
    let passed = output == expected;
    Score::of(passed, if passed { "equal" } else { "not equal to what was expected" })
}

/// Passes if the output contains everything expected: objects may have more fields, lists must match item by item. The
/// score is the share of expected values that the output contains.
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

/// A handler that wraps another one, scores its output and replies with an [`EvalResult`].
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
    /// Creates a handler that scores the replies of `handler` with `evaluator`.
    pub fn new<Marker>(handler: impl IntoHandler<Marker>, evaluator: impl Evaluator + 'static) -> Self {
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
                // A reply that is not JSON is scored as text.
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
