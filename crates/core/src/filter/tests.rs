//! The promises of the filter language: tables of valid filters and what they match, tables of invalid filters and
//! where their mistakes are, and properties that hold for every text.

use super::sql::{Columns, Param, SqlCondition, narrow};
use super::*;
use crate::dead_letter::LetterRecord;
use crate::failure::{
    AnalysedFailure, Category, ErrorInfo, Failure, Reason, Recoverability, Route, Severity,
};
use crate::ids::{LeafId, MessageId};
use crate::lifecycle::State;
use crate::message::{NewMessage, Payload, Priority, StoredMessage};
use crate::policy::QueuePolicy;
use crate::time::Span;
use proptest::prelude::*;

/// 2026-01-10T12:00:00Z.
const NOW: Time = Time::from_millis(1_768_046_400_000);
const PAYLOAD: &str = r#"{"order": {"id": 4411, "big": 123456789012345678901234567890, "price": 12.50,
    "lines": [{"sku": "A-1"}, {"sku": "B-2"}], "paid": true, "note": null, "ref": "4411", "a.b c": "dotted",
    "range": "1..x"}}"#;

fn id() -> MessageId {
    "01981c3e-7d5a-7cc0-8b1f-3a52c0ffee00".parse().unwrap()
}

fn failure() -> Failure {
    Failure {
        generation: 1,
        attempt: 4,
        at: NOW.minus(Span::from_hours(3)),
        worker: Some("worker-7".into()),
        host: None,
        version: None,
        step: None,
        duration: None,
        error: ErrorInfo {
            error_type: "GatewayTimeout".into(),
            message: "Upstream \"pay\" timed out after 30s".into(),
            code: Some("504".into()),
            ..ErrorInfo::default()
        },
        category: Category::Transient,
        route: Route::Timeout,
        severity: Severity::High,
        recoverability: Recoverability::Automatic,
        confidence: 0.5,
        reasons: Vec::new(),
        signature: "Upstream <*> timed out after <*>".into(),
        leaf: LeafId::new(0xfedc_ba98_7654_3210),
        cpu: None,
        memory: None,
        log: None,
        artifacts: Vec::new(),
    }
}

fn record() -> StoredMessage {
    let payload = Payload { bytes: PAYLOAD.into(), content_type: "application/json".into() };
    let mut new = NewMessage::new(id(), "payments".parse().unwrap(), payload);
    new.kind = "charge.card".into();
    new.priority = Some(Priority::High);
    new.headers.insert("x-tenant.id".into(), "acme".into());
    new.tags = ["eu", "vip"].map(str::to_owned).into();
    new.ordering_key = Some("customer 12".into());
    new.trace = Some("00-abc-01".into());
    new.context = Some(serde_json::json!({"task": "t1", "try": [1, 2]}));
    new.accept(&QueuePolicy::default(), 1, NOW.minus(Span::from_hours(4)))
}

/// Enqueued four hours ago, leased by worker-9, failed four times.
fn message() -> Message {
    let mut message = record().view(&QueuePolicy::default(), NOW);
    message.state = State::Leased;
    message.attempts = 4;
    message.deliveries = 6;
    message.generation = 2;
    message.failed = 5;
    message.leased_by = Some("worker-9".into());
    message.failures = vec![failure()];
    message
}

/// The same message, dead for three hours.
fn letter() -> DeadLetter {
    let died = NOW.minus(Span::from_hours(3));
    let lost = AnalysedFailure::lease_lost(Span::ZERO);
    let mut record = LetterRecord::of_death(
        &record(),
        &record().lifecycle,
        &QueuePolicy::default(),
        &lost,
        Reason::MaxAttempts,
        None,
        died,
    );
    record.dlq = "payments-dlq".parse().unwrap();
    record.route = Route::Timeout;
    record.category = Category::Transient;
    record.severity = Severity::High;
    record.leaf = failure().leaf;
    record.redrives = 1;
    DeadLetter::assemble(message(), record, LeafId::new(0x11), 1, vec![failure()])
}

/// Filters that match the letter.
const HITS: &[&str] = &[
    "",
    " \t\n",
    r#"queue:payments error:"timed out" attempts>3 age>2h status:pending payload.order.id:4411"#,
    "id:01981c3e-7d5a-7cc0-8b1f-3a52c0ffee00",
    "id:01981C3E-7D5A-7CC0-8B1F-3A52C0FFEE00,01981c3e-7d5a-7cc0-8b1f-3a52c0ffee01",
    "queue=payments",
    "queue:pay*",
    "queue:*ment*",
    "queue:emails,pay*",
    "queue!=emails",
    "queue!=emails,sms",
    r#"queue:"payments""#,
    "dlq:payments-dlq kind:charge.* kind!=refund",
    "state:leased",
    "reason:max_attempts route:timeout category:transient severity:high",
    "status:review,pending",
    "status!=resolved,abandoned",
    "priority:high",
    "priority!=medium",
    "signature:fedcba9876543210",
    r#"signature:"TIMED OUT after""#,
    "signature:upstream*after",
    "group:0000000000000011",
    "group!=fedcba9876543210",
    "attempts:4 attempts=4 attempts>=4 attempts<=4 attempts<5 attempts!=5",
    "attempts:3..5 attempts:4..4 attempts:4.. attempts:..4 attempts!=5..9",
    "attempts:1,4,9 attempts:1,3..5",
    "deliveries:6 generation:2 redrives:1 failures:5 failures>=5",
    "age>=3h age<=3h age:3h..3h age:2h..4h age:..4h age<1w",
    "died:3h died:4h died!=2h died:2h,4h",
    "died=2026-01-10T09:00:00Z died:2026-01-10T10:00:00+01:00",
    "died:2026-01-01T00:00:00Z..2026-02-01T00:00:00Z died:..2026-02-01T00:00:00Z",
    "died>2026-01-10T08:59:59.999Z died>=2026-01-10T09:00:00Z died<2026-01-10T09:00:00.001Z",
    "failed:4h failed>2026-01-01T00:00:00Z enqueued:5h enqueued<2026-01-10T09:00:00Z",
    "worker:worker-7 worker:worker-9 worker:worker-* worker!=worker-1",
    "tag:vip tag:eu tag:e* tag!=us",
    "not key:* not key:a not key!=a",
    r#"ordering_key:"customer 12" ordering_key:customer*"#,
    "trace:00-* type:GatewayTimeout type:*Timeout code:504 code!=500",
    "error:TIMEOUT error:upstream error:time*30s error:nope,timed",
    "timeout",
    "TIMED",
    r#""upstream \"PAY\" timed""#,
    "header.x-tenant.id:acme header.\"x-tenant.id\":ac*",
    "not header.none:x",
    "payload.order.id:4411,1 payload.order.id:44* payload.order.id:4411.0 payload.order.id!=4412",
    "payload.order.id>4410 payload.order.id<=4411 payload.order.id:4000..5000 payload.order.id:..4411",
    "payload.order.big:123456789012345678901234567890 payload.order.big>123456789012345678901234567889",
    "not payload.order.big:123456789012345678901234567891",
    "payload.order.price:12.5 payload.order.price:12.50 payload.order.price>12.49",
    "payload.order.lines.0.sku:A-1 payload.order.lines.1.sku:B-* payload.order.lines:*",
    "payload.order.paid:true payload.order.note:null payload.order.note:* not payload.order.nope:*",
    r#"payload.order.ref:4411 payload.order.ref:"4411" not payload.order.id:"4411" not payload.order.ref>1"#,
    r#"payload.order."a.b c":dotted payload.order.range:1..x"#,
    r#"payload:dotted payload:A-1,zzz payload!=zzz payload:LINES*sku payload:"\"id\"""#,
    "context.task:t1 context.try.1:2 context.try.1>=2 not context.none:1",
    "queue:x or queue:payments",
    "queue:x or queue:payments and status:pending",
    "queue:payments or queue:x and queue:y",
    "not (queue:x or status:review)",
    "not queue:x status:pending",
    "not not queue:payments",
    "NOT queue:x AND (queue:payments OR queue:y)",
    "((queue:payments)(status:pending))",
    "status:pending and not timeoutt",
];

/// Filters that do not match the letter.
const MISSES: &[&str] = &[
    "queue:payment",
    "queue:Payments",
    r#"kind:"charge.*""#,
    "queue!=payments",
    "queue!=emails,pay*",
    "id!=01981c3e-7d5a-7cc0-8b1f-3a52c0ffee00",
    "status:review",
    "attempts>4",
    "attempts<4",
    "attempts<0",
    "attempts:5..9",
    "attempts!=4",
    "age>3h",
    "age<3h",
    "age<0s",
    "died:2h",
    "died!=3h",
    "died>2026-01-10T09:00:00Z",
    "signature:0000000000000011",
    "group:fedcba9876543210",
    "key:*",
    "key!=a",
    "tag:us",
    "tag!=vip",
    "worker!=worker-7",
    "error:refused",
    "error!=timeout",
    "refused",
    r#""time*out""#,
    "type:gatewaytimeout",
    "header.X-Tenant.Id:acme",
    "payload.order.id:4412",
    "payload.order.id:04411",
    "payload.order:4411",
    "payload.order.nope:1",
    "payload.order.nope!=1",
    "payload.order.id.x:1",
    "payload.order.big:123456789012345678901234567891",
    "payload.order.paid>0",
    "payload.order.lines.2.sku:*",
    "payload:nope",
    "edited:yes",
    "payload!=dotted",
    "host:h version:1",
    "not queue:payments",
    "not (queue:x or status:pending)",
    "queue:payments and (status:review or timeoutt)",
    "queue:x queue:payments or queue:y",
];

#[test]
fn filters_match_what_they_say() {
    let letter = letter();
    for text in HITS {
        let filter = Filter::parse(text).unwrap_or_else(|e| panic!("{e}"));
        assert!(filter.matches_letter(&letter, NOW), "{text}");
    }
    for text in MISSES {
        let filter = Filter::parse(text).unwrap_or_else(|e| panic!("{e}"));
        assert!(!filter.matches_letter(&letter, NOW), "{text}");
    }
}

#[test]
fn messages_have_no_letter_fields_and_their_age_is_from_enqueue() {
    let message = message();
    for (text, hit) in [
        ("age>=4h", true),
        ("age>4h", false),
        ("status:pending", false),
        ("status!=pending", false),
        ("not status:pending", true),
        ("died:9d", false),
        ("redrives:0..9", false),
        ("error:timed type:Gateway* code:504 failed:3h worker:worker-9", true),
        ("payload.order.id:4411 state:leased queue:payments", true),
    ] {
        assert_eq!(Filter::parse(text).unwrap().matches_message(&message, NOW), hit, "{text}");
    }
    let fresh = Message { failures: Vec::new(), leased_by: None, ..message };
    for text in ["error:timed", "error!=timed", "type!=x", "failed:9d", "worker:*", "timed"] {
        let filter = Filter::parse(text).unwrap();
        assert!(!filter.matches_message(&fresh, NOW), "{text}");
        assert!(filter.needs_failures(), "{text}");
    }
    assert!(!Filter::parse("queue:x payload.a:1").unwrap().needs_failures());
}

#[test]
fn letter_fields_are_refused_in_lists_of_messages() {
    let refused = Filter::parse("queue:x (not status:pending) died:2h").unwrap().check_for_messages();
    let error = refused.unwrap_err();
    assert_eq!((error.at, error.nearest.as_deref()), (13, Some("state")));
    assert!(
        error.to_string().starts_with("only dead letters have the field \"status\" at column 14;"),
        "{error}"
    );
    for field in ["dlq:x", "reason:poison", "route:system", "category:poison", "severity:low", "signature:x"]
    {
        assert_eq!(Filter::parse(field).unwrap().check_for_messages().unwrap_err().at, 0, "{field}");
    }
    assert_eq!(
        Filter::parse("state:ready attempts>3 timeout worker:x").unwrap().check_for_messages(),
        Ok(())
    );
    assert_eq!(Filter::default().check_for_messages(), Ok(()));
}

#[test]
fn a_payload_that_is_not_json_has_no_values() {
    let mut letter = letter();
    letter.message.envelope.payload.bytes = vec![0xff, 0];
    let filter = Filter::parse("payload.order.id:4411").unwrap();
    assert!(!filter.matches_letter(&letter, NOW));
    assert!(Filter::parse("not payload.order.id:4411").unwrap().matches_letter(&letter, NOW));
}

/// Invalid filters: text, position, part of the error, nearest known word.
const WRONG: &[(&str, usize, &str, Option<&str>)] = &[
    ("staus:pending", 0, "unknown field \"staus\"", Some("status")),
    ("queue:x atempts>3", 8, "unknown field \"atempts\"", Some("attempts")),
    ("Queue:x", 0, "unknown field \"Queue\"", Some("queue")),
    ("sig:x", 0, "unknown field \"sig\"", Some("signature")),
    ("dead_at:2h", 0, "unknown field", Some("died")),
    ("payloda.x:1", 0, "unknown field \"payloda.x\"", Some("payload")),
    ("queue.x:1", 0, "unknown field \"queue.x\"", Some("queue")),
    ("http://x", 0, "text goes in quotes", None),
    ("zzzzzz:1", 0, "unknown field", None),
    ("context:1", 0, "needs a name", None),
    ("payload>1", 7, "does not go with", None),
    ("payload:*", 8, "no text to look for", None),
    ("payload.:1", 0, "needs a name", None),
    ("payload.a..b:1", 0, "needs a name", None),
    ("header:1", 0, "header.tenant", None),
    ("status:pendng", 7, "is not a status: pending, retrying", Some("pending")),
    ("status:review,pendng", 14, "is not a status", Some("pending")),
    ("status:pend*", 7, "is not a status", Some("pending")),
    ("priority:urgent", 9, "is not a priority", None),
    ("status>pending", 6, "operator \">\" does not go with \"status\"", None),
    ("queue<x", 5, "does not go with", None),
    ("error>=x", 5, "does not go with", None),
    ("id>01981c3e-7d5a-7cc0-8b1f-3a52c0ffee00", 2, "does not go with", None),
    ("queue==x", 5, "unknown operator \"==\"", Some("=")),
    ("attempts=>3", 8, "unknown operator \"=>\"", Some(">=")),
    ("queue!x", 5, "unknown operator \"!\"", Some("!=")),
    ("attempts > 3", 9, "needs a field right before it", None),
    ("attempts> 3", 9, "a value is missing", None),
    ("queue:", 6, "a value is missing", None),
    ("status:pending,", 15, "a value is missing", None),
    ("status:,pending", 7, "a value is missing", None),
    ("attempts:three", 9, "is not a whole number", None),
    ("attempts>-1", 9, "is not a whole number", None),
    ("attempts>+1", 9, "is not a whole number", None),
    ("attempts>4294967296", 9, "is not a whole number", None),
    ("attempts>3,4", 11, "takes one value", None),
    ("attempts>3..4", 9, "is not a whole number", None),
    ("attempts:5..3", 9, "ends before it begins", None),
    ("attempts:..", 9, "needs a beginning or an end", None),
    ("attempts:3..x", 12, "is not a whole number", None),
    ("age>2", 4, "is not a duration", None),
    ("age:2h", 4, "no age is exact", None),
    ("age!=2h", 5, "no age is exact", None),
    ("died:yesterday", 5, "is not a time", None),
    ("died>2h", 5, "is not a time", None),
    ("died:2026-01-01T00:00:00Z..2h", 27, "is not a time", None),
    ("id:42", 3, "is not a message id", None),
    ("group:42", 6, "is not a group id", None),
    ("queue:a/b", 6, "cannot be a queue's name", None),
    ("queue:\"pay*\"", 6, "cannot be a queue's name", None),
    ("payload.a>x", 10, "only numbers", None),
    ("payload.a>\"1\"", 10, "only numbers", None),
    ("payload.a:5..3", 10, "ends before it begins", None),
    ("error:\"\"", 6, "no text to look for", None),
    ("\"\"", 0, "no text to look for", None),
    ("*", 0, "no text to look for", None),
    ("queue:x \"abc", 8, "unclosed quote", None),
    ("queue:\"abc\\", 6, "unclosed quote", None),
    ("\"a\\d\"", 2, "unknown escape", None),
    ("queue:a\"b\"", 7, "unexpected '\"'", None),
    ("queue:\"a\"b", 9, "unexpected 'b'", None),
    ("\"queue\":b", 7, "unexpected ':'", None),
    ("a\"b\"", 1, "unexpected '\"'", None),
    ("payload.\"a\"", 11, "needs an operator", None),
    ("(queue:a", 0, "unclosed parenthesis", None),
    ("queue:a (status:pending", 8, "unclosed parenthesis", None),
    ("queue:a)", 7, "closes nothing", None),
    ("()", 1, "a term is missing", None),
    ("or queue:a", 0, "a term is missing", None),
    ("queue:a or", 10, "a term is missing", None),
    ("queue:a and", 11, "a term is missing", None),
    ("queue:a and or b", 12, "a term is missing", None),
    ("not", 3, "a term is missing", None),
    ("-queue:a", 0, "begins with \"-\"", Some("not")),
    ("日本:x", 0, "unknown field \"日本\"", None),
    ("日本 staus:x", 7, "unknown field \"staus\"", Some("status")),
];

#[test]
fn errors_have_a_position_and_the_nearest_known_word() {
    for (text, at, what, nearest) in WRONG {
        let error = Filter::parse(text).expect_err(text);
        assert_eq!((error.at, error.nearest.as_deref()), (*at, *nearest), "{error}");
        assert!(error.what.contains(what), "{text}: {error}");
        assert_eq!(error.text, *text);
    }
}

#[test]
fn limits_are_errors() {
    let long = Filter::parse(&"é".repeat(limits::FILTER_BYTES_MAX)).unwrap_err();
    assert!(long.what.contains("longer") && long.text.len() == limits::FILTER_BYTES_MAX, "{long}");
    let odd = Filter::parse(&format!("x{}", "é".repeat(limits::FILTER_BYTES_MAX))).unwrap_err();
    assert_eq!(odd.at, limits::FILTER_BYTES_MAX - 1);

    let deep = |n: usize| format!("{}a{}", "(".repeat(n), ")".repeat(n));
    assert!(Filter::parse(&deep(limits::FILTER_DEPTH_MAX)).is_ok());
    let error = Filter::parse(&deep(limits::FILTER_DEPTH_MAX + 1)).unwrap_err();
    assert_eq!((error.at, error.what.as_str()), (33, "nested deeper than 32"));
    assert!(Filter::parse(&"not ".repeat(1_000)).unwrap_err().what.contains("nested"));

    assert!(Filter::parse(&"a ".repeat(limits::FILTER_TERMS_MAX)).is_ok());
    let error = Filter::parse(&"a ".repeat(limits::FILTER_TERMS_MAX + 1)).unwrap_err();
    assert_eq!((error.at, error.what.as_str()), (256, "more than 128 terms"));
    let list = vec!["a"; limits::FILTER_TERMS_MAX + 1].join(",");
    assert!(Filter::parse(&format!("tag:{list}")).unwrap_err().what.contains("more than"));
}

#[test]
fn errors_point_at_their_position() {
    let shown = |text: &str| Filter::parse(text).unwrap_err().to_string();
    assert_eq!(
        shown("staus:pending"),
        "unknown field \"staus\" at column 1; did you mean \"status\"?\n  staus:pending\n  ^"
    );
    assert_eq!(shown("é\t (x"), "unclosed parenthesis at column 4\n  é  (x\n     ^");
    assert_eq!(shown("a or"), "a term is missing at column 5\n  a or\n      ^");
    assert!(!shown("\u{1b}[31m:x").contains('\u{1b}'));
    let long = shown(&format!("{} zzzz:1 {}", "a ".repeat(60), "b ".repeat(40)));
    let lines: Vec<&str> = long.lines().collect();
    let caret = lines[2].chars().count() - 1;
    assert_eq!(lines[1].chars().skip(caret).take(6).collect::<String>(), "zzzz:1", "{long}");
    assert!(lines[1].chars().count() < 120 && lines[1].ends_with('…'), "{long}");
}

#[test]
fn filters_are_written_as_their_text() {
    let filter: Filter = "queue:pay* \"a \\\" b\"".parse().unwrap();
    let json = serde_json::to_string(&filter).unwrap();
    assert_eq!(json, r#""queue:pay* \"a \\\" b\"""#);
    assert_eq!(serde_json::from_str::<Filter>(&json).unwrap(), filter);
    let error = serde_json::from_str::<Filter>("\"staus:x\"").unwrap_err().to_string();
    assert!(error.contains("did you mean \"status\""), "{error}");
    assert!(Filter::default().is_all() && Filter::parse(" ").unwrap().is_all() && !filter.is_all());
    assert_eq!(filter.to_string(), filter.text());
}

/// A store with a column for everything that can have one, except groups and states.
struct Letters;

impl Columns for Letters {
    fn column(&self, field: &Field) -> Option<&str> {
        if matches!(field, Field::Group | Field::State) {
            return None;
        }
        Some(if *field == Field::Age { "died" } else { field.name() })
    }
}

fn narrowed(text: &str) -> SqlCondition {
    narrow(&Filter::parse(text).unwrap(), &Letters, NOW)
}

#[test]
fn narrowing_is_sql_without_any_text_from_the_filter() {
    let ms = NOW.as_millis();
    let text = |s: &str| Param::Text(s.into());
    for (filter, sql, params) in [
        ("", "1", vec![]),
        ("queue:a", "queue = ?", vec![text("a")]),
        ("queue!=a,b", "NOT ((queue = ?) OR (queue = ?))", vec![text("a"), text("b")]),
        ("status:pending,review", "status IN (?, ?)", vec![text("pending"), text("review")]),
        ("priority:medium", "priority = ?", vec![text("normal")]),
        ("queue:pa*", "(substr(queue, 1, length(?)) = ?)", vec![text("pa"), text("pa")]),
        ("key:*", "key = key", vec![]),
        ("not queue:pa*ts", "1", vec![]),
        ("attempts>3", "(attempts >= ?)", vec![Param::Int(4)]),
        ("attempts:3..5", "(attempts >= ? AND attempts <= ?)", vec![Param::Int(3), Param::Int(5)]),
        ("age>=2h", "(died <= ?)", vec![Param::Int(ms - 7_200_000)]),
        ("age<2h", "(died >= ?)", vec![Param::Int(ms - 7_199_999)]),
        ("age<0s", "died <> died", vec![]),
        ("not key!=*", "NOT key = key IS NOT TRUE", vec![]),
        ("age>=0s", "died = died", vec![]),
        ("died:2h", "(died >= ?)", vec![Param::Int(ms - 7_200_000)]),
        ("signature:ffffffffffffffff", "signature = ?", vec![Param::Int(-1)]),
        ("signature:ffffffffffffffff,x", "1", vec![]),
        ("group:ffffffffffffffff", "1", vec![]),
        ("payload.a:1 tag:a worker:w error:e context.a:1 header.a:b state:ready word", "1", vec![]),
        ("queue:a or word", "1", vec![]),
        ("queue:a word", "((queue = ?))", vec![text("a")]),
        ("not (queue:a or word)", "(((queue = ?)) IS NOT TRUE)", vec![text("a")]),
        ("not (queue:a word)", "1", vec![]),
        ("not word", "1", vec![]),
    ] {
        let got = narrowed(filter);
        let plain = |sql: &str| sql.replace(['(', ')'], "");
        assert_eq!((plain(&got.sql), &got.params), (plain(sql), &params), "{filter}");
        assert_eq!(got.sql.matches('?').count(), got.params.len(), "{filter}");
    }
    // A condition is exact if it needs no evaluator: everything is in columns, and no pattern was cut short.
    for (filter, exact) in [
        ("", true),
        ("queue:a,b status:pending or not (attempts>3 key!=x)", true),
        ("queue:pa* key:*", true),
        ("queue:pa*ts", false),
        ("queue:a word", false),
        ("queue:a or not word", false),
        ("signature:ffffffffffffffff", true),
        ("signature:text", false),
        ("group:ffffffffffffffff", false),
        ("age>2h died:2h age<0s", true),
        ("tag:x", false),
    ] {
        assert_eq!(narrowed(filter).exact, exact, "{filter}");
    }
    let by_id = narrowed("id:01981c3e-7d5a-7cc0-8b1f-3a52c0ffee00");
    assert_eq!(by_id.params, [Param::Blob(id().to_bytes().to_vec())]);
    let evil = narrowed(r#"kind:"x'); DROP TABLE letters; --" key:*';--* type:a';*"#);
    assert!(!evil.sql.contains(['\'', ';']), "{}", evil.sql);
}

#[test]
fn stars_cost_no_more_than_the_text() {
    let mut letter = letter();
    letter.error.message = "a".repeat(limits::ERROR_MESSAGE_BYTES_MAX);
    letter.message.envelope.payload.bytes = vec![b'a'; 8 * limits::SEARCH_PAYLOAD_BYTES_MAX];
    let stars = "a*".repeat(1_000);
    for text in [format!("error:{stars}b"), format!("payload:{stars}b"), format!("type:{stars}b")] {
        // Trying every position for every star would never end.
        assert!(!Filter::parse(&text).unwrap().matches_letter(&letter, NOW));
    }
    let every = vec!["payload:b"; limits::FILTER_TERMS_MAX].join(" or ");
    assert!(!Filter::parse(&every).unwrap().matches_letter(&letter, NOW));
    let huge = Filter::parse(&"a or ".repeat(20_000)).unwrap_err();
    assert_eq!((huge.at, huge.to_string().contains("longer than 4096")), (limits::FILTER_BYTES_MAX, true));
    letter.message.envelope.payload.bytes.extend(b"beyond");
    assert!(!Filter::parse("payload:beyond").unwrap().matches_letter(&letter, NOW), "only the first part");
}

/// A random combination of valid filters, as text and with its expected result.
fn combination() -> impl Strategy<Value = (String, bool)> {
    let usable = |all: &'static [&'static str], hit: bool| {
        let plain: Vec<&str> = all.iter().copied().filter(|t| !t.trim().is_empty()).collect();
        proptest::sample::select(plain).prop_map(move |t| (format!("({t})"), hit))
    };
    prop_oneof![usable(HITS, true), usable(MISSES, false)].prop_recursive(4, 8, 2, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| (format!("({} {})", a.0, b.0), a.1 && b.1)),
            (inner.clone(), inner.clone())
                .prop_map(|(a, b)| (format!("{} and {}", a.0, b.0), a.1 && b.1))
                .prop_map(|(t, hit)| (format!("({t})"), hit)),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| (format!("({} or {})", a.0, b.0), a.1 || b.1)),
            inner.prop_map(|a| (format!("not {}", a.0), !a.1)),
        ]
    })
}

/// Pieces of filters, valid and invalid.
const PIECES: &str = "queue attempts payload.a died status pending not or and : = != > <= ( ) \" \\ , .. * 3 2h é 日 - . \
    header.x staus age signature fedcba9876543210 2026-01-01T00:00:00Z \u{0}";

/// Text that is almost a filter, so that the parser gets some way before it refuses.
fn almost_a_filter() -> impl Strategy<Value = String> {
    let pieces: Vec<&str> = PIECES.split_whitespace().chain([" ", "\t", " ", " "]).collect();
    proptest::collection::vec(proptest::sample::select(pieces), 0..24).prop_map(|pieces| pieces.concat())
}

/// What must hold for any text.
fn holds_for_any_text(text: &str) -> Result<(), TestCaseError> {
    match Filter::parse(text) {
        Ok(filter) => {
            prop_assert_eq!(filter.text(), text);
            prop_assert_eq!(&Filter::parse(&filter.to_string()).unwrap(), &filter);
            let (_, _) = (filter.matches_letter(&letter(), NOW), filter.matches_message(&message(), NOW));
            let narrowed = narrow(&filter, &Letters, NOW);
            prop_assert_eq!(narrowed.sql.matches('?').count(), narrowed.params.len());
        }
        Err(error) => {
            prop_assert!(text.is_char_boundary(error.at) && error.text.is_char_boundary(error.at));
            prop_assert_eq!(error.to_string().lines().count(), 3);
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn no_text_panics_and_errors_point_into_it(text in "\\PC*") {
        holds_for_any_text(&text)?;
    }

    #[test]
    fn no_broken_filter_panics_either(text in almost_a_filter()) {
        holds_for_any_text(&text)?;
    }

    #[test]
    fn quoted_text_is_taken_literally(value in ".{0,40}", other in ".{0,40}") {
        let quote = |s: &str| format!("\"{}\"", s.replace('\\', "\\\\").replace('"', "\\\""));
        let mut message = message();
        message.envelope.kind.clone_from(&value);
        let filter = Filter::parse(&format!("kind:{}", quote(&value))).unwrap();
        prop_assert!(filter.matches_message(&message, NOW));
        let filter = Filter::parse(&format!("kind={}", quote(&other))).unwrap();
        prop_assert_eq!(filter.matches_message(&message, NOW), value == other);
    }

    #[test]
    fn combinations_mean_what_their_parts_mean((text, hit) in combination()) {
        match Filter::parse(&text) {
            Ok(filter) => prop_assert_eq!(filter.matches_letter(&letter(), NOW), hit, "{}", text),
            // Only limits may stand in the way.
            Err(e) => prop_assert!(e.what.contains("more than") || e.what.contains("longer"), "{}", e),
        }
    }
}
