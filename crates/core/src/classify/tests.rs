//! How the classifier judges typical errors, and that no input breaks it.

use super::*;
use proptest::prelude::*;

fn error(error_type: &str, code: &str, message: &str) -> ErrorInfo {
    ErrorInfo {
        error_type: error_type.into(),
        code: (!code.is_empty()).then(|| code.into()),
        message: message.into(),
        ..ErrorInfo::default()
    }
}

fn judge(error_type: &str, code: &str, message: &str) -> Class {
    classify(&error(error_type, code, message), &Patterns::default())
}

#[test]
fn common_errors_are_known() {
    use {Category::*, Route::*};
    for (error_type, code, message, category, route) in [
        ("LeaseExpired", "", "the worker did not settle before its lease ran out", Transient, Agent),
        ("TooLate", "", "the ttl ended before the message was done", Transient, Timeout),
        ("io::Error", "", "Connection refused (os error 111)", Transient, Network),
        ("Error", "ENOTFOUND", "getaddrinfo ENOTFOUND db.internal", Transient, Network),
        ("HttpError", "429", "slow down", Transient, Network),
        ("HttpError", "403", "no", Persistent, System),
        ("FileNotFoundError", "", "No such file or directory: 'systemfile'", Persistent, System),
        ("QuotationError", "", "no price in quotation 429", Persistent, Agent),
        ("TimeoutError", "", "", Transient, Timeout),
        ("PoolError", "", "pool exhausted: timed out waiting for a connection", Resource, System),
        ("OSError", "ENOSPC", "write failed", Resource, System),
        ("CommandFailed", "137", "killed", Resource, Agent),
        ("SQLException", "40001", "restart transaction", Transient, System),
        ("DecodeError", "", "unexpected end of JSON input", Persistent, Corruption),
        ("SSLError", "", "certificate has expired", Persistent, Network),
        ("IndexError", "", "list index out of range", Persistent, Agent),
        ("", "", "", Persistent, Agent),
    ] {
        let class = judge(error_type, code, message);
        assert_eq!(
            (class.category, class.route),
            (category, route),
            "{error_type} {code} {message}: {class:?}"
        );
        assert!(!class.reasons.is_empty());
    }
}

#[test]
fn reasons_name_what_was_found() {
    let reasons = judge("HttpError", "429", "").reasons.join("; ");
    assert!(reasons.contains("HTTP status 429: rate limited"), "{reasons}");
    let reasons = judge("", "", "dial tcp: conection refused").reasons.join("; ");
    assert!(reasons.contains("says nearly \"connection refused\""), "{reasons}");
    let reasons = judge("FrobnicationError", "", "the frobnicator is sad").reasons.join("; ");
    assert!(reasons.contains("its words sound"), "{reasons}");
}

#[test]
fn known_errors_have_more_confidence_than_guesses() {
    let known = judge("ConnectionRefusedError", "ECONNREFUSED", "connection refused").confidence;
    let guessed = judge("Zork", "", "xyzzy plugh").confidence;
    assert!(known > 0.9 && guessed < 0.7, "{known} {guessed}");
}

#[test]
fn the_cause_counts() {
    let error = ErrorInfo { cause: Some("Connection reset by peer".into()), ..ErrorInfo::default() };
    let class = classify(&error, &Patterns::default());
    assert_eq!((class.category, class.route), (Category::Transient, Route::Network));
}

#[test]
fn severity_and_recoverability_follow_the_category_unless_more_is_known() {
    let class = |category| Class::new(category, Route::Agent, 1.0);
    assert_eq!(class(Category::Transient).severity, Severity::Low);
    assert_eq!(class(Category::Resource).severity, Severity::High);
    assert_eq!(class(Category::Resource).recoverability, Recoverability::Automatic);
    assert_eq!(class(Category::Persistent).recoverability, Recoverability::Manual);
    assert_eq!(judge("", "", "checksum mismatch: the archive is corrupt").severity, Severity::High);
    assert_eq!(
        judge("ApiError", "", "your credit balance is too low").recoverability,
        Recoverability::Manual
    );
}

#[test]
fn a_users_pattern_overrides_everything_and_alone_makes_permanent() {
    let pattern = |text: &str| serde_json::from_str::<PatternSpec>(text).unwrap();
    let patterns = Patterns::compile(&[
        pattern(r#"{"match": "order \\d+ refused", "permanent": true, "category": "persistent", "route": "agent"}"#),
        pattern(r#"{"error_type": "Http*", "severity": "critical"}"#),
    ])
    .unwrap();
    let class = classify(&error("", "", "order 12 refused: connection refused"), &patterns);
    assert_eq!((class.category, class.route, class.permanent), (Category::Persistent, Route::Agent, true));
    assert_eq!((class.confidence, class.reasons.len()), (1.0, 1));
    let class = classify(&error("HttpError", "503", ""), &patterns);
    assert_eq!(
        (class.severity, class.category, class.permanent),
        (Severity::Critical, Category::Transient, false)
    );
    assert!(class.reasons.len() >= 2);
}

#[test]
fn a_long_or_strange_text_is_read_in_part() {
    for text in [
        format!("\u{0}\u{fffd}é{}connection refused", "ß".repeat(1_000_000)),
        "\u{0}\u{1}\u{1b}[31m\u{7f}\r\n\t".repeat(100_000),
        "/".repeat(1_000_000),
        "aB".repeat(500_000),
        "a ".repeat(500_000),
        "connection refused ".repeat(50_000),
        "9".repeat(1_000_000),
        String::from_utf8_lossy(&(0..=255_u8).cycle().take(1 << 20).collect::<Vec<_>>()).into_owned(),
    ] {
        let class = judge(&text, &text, &text);
        assert!((0.0..=1.0).contains(&class.confidence));
        assert!(
            class
                .reasons
                .iter()
                .all(|r| r.len() <= limits::REASON_BYTES_MAX && !r.contains(char::is_control))
        );
    }
}

proptest! {
    #[test]
    fn any_error_gets_a_bounded_and_repeatable_classification(
        error_type in ".{0,40}", code in proptest::option::of(".{0,12}"), message in "\\PC{0,300}", cause in proptest::option::of(".{0,60}"),
    ) {
        let error = ErrorInfo { error_type, message, code, cause, ..ErrorInfo::default() };
        let class = classify(&error, &Patterns::default());
        prop_assert!((0.0..=1.0).contains(&class.confidence));
        prop_assert!((1..=limits::REASONS_MAX).contains(&class.reasons.len()));
        prop_assert!(CATEGORIES.contains(&class.category) && ROUTES.contains(&class.route) && !class.permanent);
        prop_assert_eq!(class, classify(&error, &Patterns::default()));
    }
}
