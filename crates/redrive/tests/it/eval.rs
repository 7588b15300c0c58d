//! Evaluation: outputs are scored and the score is the reply; failures stay failures.

use crate::loops_kit::{message, send, take};
use redrive::core::failure::UNDECODABLE;
use redrive::{
    Context, EvalHandler, EvalResult, Handler as _, HandlerError, Outcome, Score, exact_match, json_subset,
};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

async fn ask(handler: &EvalHandler, payload: &Value) -> Outcome {
    let store = redrive::memory();
    send(&*store, message("evals", payload)).await;
    let delivery = take(&*store, "evals").await;
    handler.handle(Context::detached(delivery, CancellationToken::new())).await
}

fn result(outcome: Outcome) -> EvalResult {
    let Outcome::Reply(payload) = outcome else { panic!("a reply was due, not {outcome:?}") };
    serde_json::from_slice(&payload.bytes).expect("json")
}

async fn double(n: i64) -> Outcome {
    Outcome::reply(&json!({"doubled": 2 * n, "steps": [n, n]}))
}

#[tokio::test]
async fn the_reply_is_the_output_and_its_score() {
    let handler = EvalHandler::new(double, json_subset);
    let good = result(ask(&handler, &json!({"input": 4, "expected": {"doubled": 8}})).await);
    assert_eq!(good.output, json!({"doubled": 8, "steps": [4, 4]}));
    assert!(good.score.passed && (good.score.score - 1.0).abs() < f64::EPSILON);
    let expected = json!({"doubled": 9, "steps": [4, 4]});
    let bad = result(ask(&handler, &json!({"input": 4, "expected": expected})).await);
    assert!(!bad.score.passed && bad.score.reason.contains("$.doubled"), "{bad:?}");
    assert!((bad.score.score - 2.0 / 3.0).abs() < 0.001);
    let exact = EvalHandler::new(double, exact_match);
    assert!(!result(ask(&exact, &json!({"input": 4, "expected": {"doubled": 8}})).await).score.passed);
    let closure =
        EvalHandler::new(double, |output: &Value, _: &Value| Score::of(output["doubled"] == 8, "mine"));
    assert!(result(ask(&closure, &json!({"input": 4})).await).score.passed);
}

#[tokio::test]
async fn no_answer_is_null_and_text_is_text() {
    let silent = EvalHandler::new(async |_: Value| (), exact_match);
    assert!(result(ask(&silent, &json!({"input": 1, "expected": null})).await).score.passed);
    let text = EvalHandler::new(
        async |_: Value| {
            let bytes = b"plain".to_vec();
            Outcome::Reply(redrive::core::message::Payload { bytes, content_type: "text/plain".into() })
        },
        exact_match,
    );
    assert_eq!(result(ask(&text, &json!({"input": 1, "expected": "plain"})).await).output, json!("plain"));
}

#[tokio::test]
async fn failures_stay_failures() {
    let broken = EvalHandler::new(
        async |_: Value| Err::<(), _>(HandlerError::new("ModelDown", "no answer")),
        exact_match,
    );
    let outcome = ask(&broken, &json!({"input": 1})).await;
    assert!(matches!(outcome, Outcome::Fail(error) if error.report().error.error_type == "ModelDown"));
    let wrong_input = ask(&EvalHandler::new(double, exact_match), &json!({"input": "four"})).await;
    assert!(
        matches!(wrong_input, Outcome::DeadLetter(error) if error.report().error.error_type == UNDECODABLE)
    );
    let no_request = ask(&EvalHandler::new(double, exact_match), &json!("nothing")).await;
    assert!(
        matches!(no_request, Outcome::DeadLetter(error) if error.report().error.error_type == UNDECODABLE)
    );
}
