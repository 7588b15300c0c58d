//! `redrive classify`: NDJSON in, NDJSON out, without a data directory.

use crate::support::Workspace;
use serde_json::json;

#[test]
fn every_error_is_classified_in_order_and_no_store_is_created() {
    let workspace = Workspace::new();
    let input = concat!(
        r#"{"error_type":"HttpError","code":429,"message":"slow down","category":"a label","x":[1]}"#,
        "\n\n",
        r#"{"type":"OSError","code":"ENOSPC","message":"write failed"}"#,
        "\n",
        r#"{"message":"","error_type":null,"code":null}"#,
        "\n",
        r#"{"error_type":"KeyError","message":"'id'","cause":"Connection refused","stack":"at f"}"#,
    );
    let ran = workspace.feed(input.as_bytes(), &["classify"]).ok();
    let verdicts = ran.ndjson();
    let of = |key: &str| verdicts.iter().map(|v| v[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("category")[..2], [json!("transient"), json!("resource")]);
    assert_eq!(of("route")[..2], [json!("network"), json!("system")]);
    assert_eq!(verdicts.len(), 4);
    for verdict in &verdicts {
        let keys: Vec<&String> = verdict.as_object().unwrap().keys().collect();
        assert_eq!(keys.len(), 6, "{keys:?}");
        assert!((0.0..=1.0).contains(&verdict["confidence"].as_f64().unwrap()));
        assert!(!verdict["reasons"].as_array().unwrap().is_empty());
    }
    assert!(!workspace.data().exists());
}

#[test]
fn an_invalid_line_is_named_and_the_lines_before_it_are_classified() {
    let workspace = Workspace::new();
    let good = r#"{"error_type":"E","code":"","message":"timed out"}"#;
    for (bad, says) in [
        ("nonsense", "line 2: not a JSON object"),
        (r#"{"message": 1}"#, "line 2: a value is not a string"),
        (r#"{"message": "x""#, "line 2: the JSON ends too early"),
        (r#"{"code": {}, "message": ""}"#, "line 2: code is neither"),
        ("[]", "line 2: not a JSON object"),
    ] {
        let input = format!("{good}\n{bad}\n{good}\n");
        let ran = workspace.feed(input.as_bytes(), &["classify"]).code(2).says(says);
        assert_eq!(ran.ndjson().len(), 1);
        let ran = workspace.feed(input.as_bytes(), &["classify", "--keep-going"]).code(4).says(says);
        assert_eq!(ran.ndjson().len(), 2);
    }
    workspace.feed(b"{\"message\": \"\xff\"}", &["classify"]).code(2).says("line 1: not valid UTF-8");
    assert!(workspace.feed(b"", &["classify"]).ok().ndjson().is_empty());
    // An error without any information is classified as such: a pipeline gets one result for every object.
    let nothing = br#"{"other":1}
{"error_type":null,"code":null,"message":null}
{}"#;
    let verdicts = workspace.feed(nothing, &["classify"]).ok().ndjson();
    assert_eq!(verdicts.len(), 3);
    assert!(verdicts.iter().all(|v| v["reasons"][0] == "the error says nothing"), "{verdicts:?}");
}

#[test]
fn long_and_binary_messages_are_classified() {
    let workspace = Workspace::new();
    let long = json!({ "message": format!("{} connection refused", "x".repeat(1 << 20)) });
    let binary = json!({ "error_type": "\u{0}\u{1b}[31m", "message": "\u{0}\u{1}\u{7f}\u{fffd}" });
    let ran = workspace.feed(format!("{long}\n{binary}\n").as_bytes(), &["classify"]).ok();
    assert_eq!(ran.ndjson()[0]["category"], "transient");
    assert_eq!(ran.ndjson().len(), 2);
}

#[test]
fn patterns_of_the_configuration_come_first() {
    let workspace = Workspace::new();
    let config = workspace.file(
        "redrive.toml",
        "[[classify.pattern]]\nname = \"closed\"\nmatch = 'account \\d+ is closed'\ncategory = \"persistent\"\nroute = \"system\"\npermanent = true\n",
    );
    let input = r#"{"error_type":"E","message":"account 12 is closed: timed out"}"#;
    let ran = workspace.feed(input.as_bytes(), &["classify", "--config", &config]).ok();
    let verdict = &ran.ndjson()[0];
    assert_eq!((&verdict["category"], &verdict["permanent"]), (&json!("persistent"), &json!(true)));
    for (bad, says) in [
        ("[[classify.pattern]]\nmatch = \"(\"\npermanent = true", "classify.pattern 1"),
        ("[[classify.pattern]]\nmtch = \"x\"", "did you mean `match`"),
        ("[classify]\npatern = []", "did you mean `pattern`"),
    ] {
        let config = workspace.file("bad.toml", bad);
        workspace.feed(b"", &["classify", "--config", &config]).code(2).says(says);
    }
}
