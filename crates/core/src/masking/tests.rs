//! What is masked, what is not, and that masking changes nothing else.

use super::*;
use crate::dead_letter::Act;
use crate::failure::{ClassifierRules, ErrorInfo, FailureReport};
use crate::patch::Patch;
use crate::signature::Signature;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

fn text(input: &str) -> String {
    Rules::default().mask_text(input).into_owned()
}

fn payload(input: &str) -> String {
    Rules::default().mask_payload(input.as_bytes()).text
}

#[test]
fn what_follows_a_secret_name_is_masked() {
    for (input, wanted) in [
        ("password=hunter2 next", "password=[masked] next"),
        ("DB_PASSWORD=a,b;c) next", "DB_PASSWORD=[masked]) next"),
        ("{password=abc, user=bob}", "{password=[masked], user=bob}"),
        ("a?token=xyz&b=1", "a?token=[masked]&b=1"),
        ("password: hunter2", "password: [masked]"),
        ("\"password\": \"hun ter\", \"a\": 1", "\"password\": \"[masked]\", \"a\": 1"),
        ("{\\\"password\\\":\\\"hunter2\\\",\\\"a\\\":1}", "{\\\"password\\\":\\\"[masked]\\\",\\\"a\\\":1}"),
        ("'secret' => 'x y', 2", "'secret' => '[masked]', 2"),
        ("--password hunter2 -v", "--password [masked] -v"),
        ("--api-key=abc -v", "--api-key=[masked] -v"),
        ("password: Some(\"x y\"), b", "password: [masked]), b"),
        ("secrets: {\"a\": \"}x\"} after", "secrets: [masked] after"),
        ("secrets: [1, 2", "secrets: [masked]"),
        ("user[password]=abc&x=1", "user[password]=[masked]&x=1"),
        ("<password>hunter2</password>", "<password>[masked]</password>"),
        ("<ns:password x=\"1\">hunter2</ns:password>", "<ns:password x=\"1\">[masked]</ns:password>"),
        ("<password token=\"abc\">x</password>", "<password token=\"[masked]\">[masked]</password>"),
        ("Authorization: Basic abc def\nnext", "Authorization: [masked]\nnext"),
        ("curl -H 'Cookie: a=b; c=d' url", "curl -H 'Cookie: [masked]' url"),
        ("password := `x`", "password := `[masked]`"),
        ("email: nobody", "email: nobody"),
        ("invalid token: expired", "invalid token: expired"),
        ("invalid token: abc123", "invalid token: [masked]"),
        ("token='expired'", "token='[masked]'"),
        ("password=\"never closed", "password=\"[masked]"),
        ("password= ", "password= "),
        ("password", "password"),
        ("crate::secret::open", "crate::secret::open"),
        ("secret>5 and", "secret>5 and"),
    ] {
        assert_eq!(text(input), wanted, "{input}");
    }
}

#[test]
fn what_looks_like_a_secret_is_masked_whatever_its_name() {
    let jwt = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U";
    let pem = "-----BEGIN RSA PRIVATE KEY-----\nMIIB\nabc=\n-----END RSA PRIVATE KEY-----";
    for (input, wanted) in [
        ("mail bob.b+x@example.org.", "mail [masked:email]."),
        (&format!("got {jwt}, no"), "got [masked:jwt], no"),
        ("id AKIAIOSFODNN7EXAMPLE!", "id [masked:aws]!"),
        (&format!("a {pem} b"), "a [masked:pem] b"),
        ("a -----BEGIN EC PRIVATE KEY-----\nMII", "a [masked:pem]"),
        ("-----BEGIN CERTIFICATE-----", "-----BEGIN CERTIFICATE-----"),
        ("pay 4111 1111 1111 1111 now", "pay [masked:card] now"),
        ("pay 4111-1111-1111-1111.", "pay [masked:card]."),
        ("x4111111111111111", "x[masked:card]"),
        ("id-12-378282246310005", "id-12-[masked:card]"),
        (
            "4111111111111112 1700000000000 0000000000000000",
            "4111111111111112 1700000000000 0000000000000000",
        ),
        ("iban DE89 3704 0044 0532 0130 00 ok", "iban [masked:iban] ok"),
        ("GB82WEST12345698765432", "[masked:iban]"),
        ("GB82WEST12345698765431", "GB82WEST12345698765431"),
        ("ssn of 123-45-6789", "ssn of [masked:ssn]"),
        ("000-45-6789 987-65-4321 12-345-6789", "000-45-6789 987-65-4321 12-345-6789"),
        ("got Bearer abc.def-12", "got Bearer [masked:bearer]"),
        ("a bearer token is missing", "a bearer token is missing"),
        ("Basic dXNlcjpwYXNz", "Basic [masked:bearer]"),
        ("Basic authentication failed", "Basic authentication failed"),
        ("at postgres://bob:s3cr@t@db:5432/x", "at postgres://[masked:login]@db:5432/x"),
        ("at https://example.org/a@b", "at https://example.org/a@b"),
        ("ghp_abcdefghijklmnopqrstuvwxyz0123", "[masked:token]"),
        ("wJalrXUtnFEMI/K7MDENG/bPxRfiCY3X4MPL3K3Y", "[masked:random]"),
        ("key q9XzA7bLm2Kd8PwE5rTy here", "key [masked:random] here"),
        ("q9XzA7bLm2Kd8PwE5rTy/01a1ed4b-ba6b-7d0d-81e2-837fda2a5bdf/x", "[masked:random]"),
    ] {
        assert_eq!(text(input), wanted, "{input}");
    }
}

#[test]
fn a_value_in_the_line_below_its_name_is_masked() {
    for (input, wanted) in [
        ("password:\n  hunter2\nnext", "password:\n  [masked]\nnext"),
        ("password:\r\nhunter2\r\nnext", "password:\r\n[masked]\r\nnext"),
        ("api_key=\nabc-def-ghi", "api_key=\n[masked]"),
        ("Enter password:\nhunter2", "Enter password:\n[masked]"),
        ("secret =>\n  'x y',\n  b", "secret =>\n  '[masked]',\n  b"),
        ("{broken \"password\":\n  \"hun ter\",\n", "{broken \"password\":\n  \"[masked]\",\n"),
        ("{broken \"secrets\":\n  [\"a\",\n \"b\"], c", "{broken \"secrets\":\n  [masked], c"),
        ("password: |\n  line one\n\n  line two\nuser: bob", "password: |\n  [masked]\nuser: bob"),
        ("  secret: >-\n    folded\n  user: bob", "  secret: >-\n    [masked]\n  user: bob"),
        ("password: Some(\n    \"x y\",\n),\nuser", "password: [masked],\nuser"),
        ("run --password \\\n  hunter2 -v", "run --password \\\n  [masked] -v"),
        ("token:\nabc123def456", "token:\n[masked]"),
        ("api_key=\nYWJjZGVm==", "api_key=\n[masked]"),
        // What is not a value.
        ("password:\n", "password:\n"),
        ("invalid password:\nlogin of bob failed", "invalid password:\nlogin of bob failed"),
        ("no credentials:\nAborted.", "no credentials:\nAborted."),
        ("API_KEY=\nDB_HOST=localhost\n", "API_KEY=\nDB_HOST=localhost\n"),
        ("PASSWORD=\nDB_HOST=\n", "PASSWORD=\nDB_HOST=\n"),
        ("password:\n  min_length: 8", "password:\n  min_length: 8"),
        ("password:\n  rules:\n", "password:\n  rules:\n"),
        ("secrets:\n  - name: db", "secrets:\n  - name: db"),
        (
            "cookie:\n  at com.example.Shop.pay(Shop.java:7)",
            "cookie:\n  at com.example.Shop.pay(Shop.java:7)",
        ),
        ("bad secret:\n\t/usr/src/app/main.go:12", "bad secret:\n\t/usr/src/app/main.go:12"),
        ("password =\n[client]", "password =\n[client]"),
        ("credential:\n[2026-01-01] started", "credential:\n[2026-01-01] started"),
        ("password:\nnull", "password:\nnull"),
        ("invalid token:\nexpired", "invalid token:\nexpired"),
        ("password:\n\nhello", "password:\n\nhello"),
    ] {
        assert_eq!(text(input), wanted, "{input}");
        assert_eq!(text(wanted), wanted, "again: {input}");
    }
}

#[test]
fn secrets_inside_words_and_on_command_lines_are_masked() {
    let token = "ghp_abcdefghijklmnopqrstuvwxyz0123";
    let jwt = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U";
    for (input, wanted) in [
        // Tokens after something else.
        (&*format!("x_{token}"), "x_[masked:token]"),
        (&format!("ci.deploy-{token}."), "ci.deploy-[masked:token]."),
        (&format!("next%3D{token}&a=1"), "next%3D[masked:token]&a=1"),
        (&format!("line\\n{token}\\nline"), "line\\n[masked:token]\\nline"),
        ("x_glpat-abcdefghij0123456789", "x_[masked:token]"),
        ("key_AKIAIOSFODNN7EXAMPLE", "key_[masked:aws]"),
        (&format!("session_{jwt}"), "session_[masked:jwt]"),
        ("my-sk-service-in-production-2", "my-sk-service-in-production-2"),
        ("task_test_averyverylongnameofatest", "task_test_averyverylongnameofatest"),
        ("env.npm_config_cache_directory_of_the_user", "env.npm_config_cache_directory_of_the_user"),
        ("x_ghp_short1", "x_ghp_short1"),
        // Signed URLs.
        (
            "/k?X-Amz-Date=20260101T000000Z&X-Amz-Signature=ab12cd34&a=1",
            "/k?X-Amz-Date=20260101T000000Z&X-Amz-Signature=[masked]&a=1",
        ),
        ("X-Amz-Signature: ab12cd34", "X-Amz-Signature: [masked]"),
        ("/k?sv=2024&sig=ab%2Bcd%3D&se=1", "/k?sv=2024&sig=[masked]&se=1"),
        ("/k?Expires=1&Signature=vjby%2BPxy%3D", "/k?Expires=1&Signature=[masked]"),
        ("signature: 9f86d081884c7d65", "signature: 9f86d081884c7d65"),
        ("killed with sig=9", "killed with sig=9"),
        ("X-Amz-SignedHeaders=host", "X-Amz-SignedHeaders=host"),
        // Passwords on a command line.
        ("mysql -u root -phunter2 shop", "mysql -u root -p[masked] shop"),
        ("/usr/bin/mysqldump -p'hun ter' shop", "/usr/bin/mysqldump -p'[masked]' shop"),
        ("['mysqladmin', '-uroot', '-phunter2', 'ping']", "['mysqladmin', '-uroot', '-p[masked]', 'ping']"),
        ("mariadb-dump \\\n  -phunter2 \\\n  shop", "mariadb-dump \\\n  -p[masked] \\\n  shop"),
        ("mysql -p shop -P3306 --port=3306", "mysql -p shop -P3306 --port=3306"),
        ("mysql -p$PASS -p\"\"", "mysql -p$PASS -p\"\""),
        ("mysql shop | ssh -p22 host", "mysql shop | ssh -p22 host"),
        ("mysql shop\nnmap -p80 host", "mysql shop\nnmap -p80 host"),
        ("cp -pr /var/lib/mysql -parents", "cp -pr /var/lib/mysql -parents"),
        (
            "find . -print; mkdir -parents; patch -p1; ssh -p22",
            "find . -print; mkdir -parents; patch -p1; ssh -p22",
        ),
        ("mysql://db/shop -path", "mysql://db/shop -path"),
        // Cards among letters.
        ("card4111111111111111exp1227", "card[masked:card]exp1227"),
        ("4111111111111111EUR", "[masked:card]EUR"),
        ("abc4111111111111111def", "abc[masked:card]def"),
        ("4111 1111 1111 1111x", "[masked:card]x"),
        (
            "4111111111111111ns 4111111111111111n 4111111111111111e5",
            "4111111111111111ns 4111111111111111n 4111111111111111e5",
        ),
        ("trace 4111111111111111abcdefabcdefabcd", "trace 4111111111111111abcdefabcdefabcd"),
        ("trace abcdefabcdefabcd4111111111111111", "trace abcdefabcdefabcd4111111111111111"),
        (&format!("4111111111111111x_{token}"), "[masked:card]x_[masked:token]"),
        ("part_4111111111111111_7", "part_4111111111111111_7"),
        // Email addresses in any script.
        ("mail jürgen@example.org.", "mail [masked:email]."),
        ("mail ürgen.o'neil@bücher.example,", "mail [masked:email],"),
        ("mail ju\u{308}rgen@example.org", "mail [masked:email]"),
        ("почта иван@пример.рф", "почта [masked:email]"),
        ("用户@例子.广告", "[masked:email]"),
        ("请联系bob@example.org谢谢", "请联系[masked:email]谢谢"),
        ("«bob@example.org»", "«[masked:email]»"),
        ("größe@höhe", "größe@höhe"),
        ("um 5€@stück. naïve", "um 5€@stück. naïve"),
        // A private key as a value, or directly after a word.
        (
            "Authorization: -----BEGIN RSA PRIVATE KEY-----\nMIIB\n-----END RSA PRIVATE KEY-----\nnext",
            "Authorization: [masked]\nnext",
        ),
        (
            "Authorization: Bearer -----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----\nnext",
            "Authorization: [masked]\nnext",
        ),
        (
            "Authorization: Basic abc\n-----BEGIN PRIVATE KEY-----\nMIIB",
            "Authorization: [masked]\n[masked:pem]",
        ),
        (
            "private_key=-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----,",
            "private_key=[masked],",
        ),
        ("key-----BEGIN PRIVATE KEY-----\nMIIB", "key[masked:pem]"),
        ("Authorization: -----BEGIN CERTIFICATE-----\nMIIB", "Authorization: [masked]\nMIIB"),
    ] {
        assert_eq!(text(input), wanted, "{input}");
        assert_eq!(text(wanted), wanted, "again: {input}");
    }
}

#[test]
fn ordinary_text_stays_as_it_is() {
    for input in [
        "connection refused: 10.0.0.1:5432 after 3 attempts (ECONNREFUSED)",
        "01981c3e-7d5a-7cc0-8b1f-3a52c0ffee00",
        "/var/tmp/.tmpj7r9KA/work/logs/01a1ed4b-ba6b-7d0d-81e2-837fda2a5bdf-1.2.log",
        "9fceb02d0ae598e95dc970b74767f19372d61af8",
        "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "at com.example.payments.PaymentRequestHandlerImpl2.handleRequest(PaymentRequestHandlerImpl2.java:42)",
        "_ZN9my_module5run17h1a2b3c4d5e6f7a8bE",
        "/usr/lib/python3.11/site-packages/MyPackage2/sub_module/Handler.py",
        "unexpected token < in JSON at position 0",
        "2026-01-31T12:00:00.000Z trace 4bf92f3577b34da6a3ce929d0e0e4736",
        "max_tokens: 4096, total_tokens=12",
        "naïve café — 日本語 \u{202e} \u{0}",
        "no address: user@localhost",
    ] {
        assert_eq!(text(input), input);
    }
}

#[test]
fn json_is_spliced_and_nothing_else_changes() {
    for (input, wanted) in [
        (
            r#"{ "a" : 1.0e2,"password":"x" , "n":12345678901234567890123 }"#,
            r#"{ "a" : 1.0e2,"password":"[masked]" , "n":12345678901234567890123 }"#,
        ),
        (r#"{"card":{"no":"1","x":[1,{"y":2}]},"b":true}"#, r#"{"card":"[masked]","b":true}"#),
        (
            r#"{"tokens":[],"secret":{},"password":"","pin":null,"otp":false,"pan":5}"#,
            r#"{"tokens":[],"secret":{},"password":"","pin":null,"otp":false,"pan":"[masked]"}"#,
        ),
        (r#"{"p\u0061ssword":"x\n\u00e9","a":"\u00e9\/"}"#, r#"{"p\u0061ssword":"[masked]","a":"\u00e9\/"}"#),
        (r#"{"a":"x \u00e9 bob@example.org \/ é"}"#, r#"{"a":"x \u00e9 [masked:email] \/ é"}"#),
        (r#"{"a":"x \u0062ob@example.org\n"}"#, r#"{"a":"x [masked:email]\n"}"#),
        (r#"{"bob@example.org":1}"#, r#"{"[masked:email]":1}"#),
        (r#"{"a":4111111111111111,"b":-4111111111111111}"#, r#"{"a":"[masked:card]","b":-4111111111111111}"#),
        (
            r#"{"body":"{\"password\":\"x\",\"deep\":\"[{\\\"secret\\\":7}]\"}"}"#,
            r#"{"body":"{\"password\":\"[masked]\",\"deep\":\"[{\\\"secret\\\":\\\"[masked]\\\"}]\"}"}"#,
        ),
        (
            r#"[{"password":"a"},{"password":"b","password":"c"}]"#,
            r#"[{"password":"[masked]"},{"password":"[masked]","password":"[masked]"}]"#,
        ),
        (
            "{\"password\":\"a\"}\n{\"password\":1}\n",
            "{\"password\":\"[masked]\"}\n{\"password\":\"[masked]\"}\n",
        ),
        ("4111 1111 1111 1111", "[masked:card]"),
        ("4111111111111111", "\"[masked:card]\""),
        ("\"bob@example.org\"", "\"[masked:email]\""),
        (r#"{"password":"a", broken"#, r#"{"password":"[masked]", broken"#),
        (r#"{"a":"\x","password":"a b"}"#, r#"{"a":"\x","password":"[masked]"}"#),
        ("password=a&b=c", "password=[masked]&b=c"),
        ("", ""),
    ] {
        assert_eq!(payload(input), wanted, "{input}");
        assert_eq!(payload(&payload(input)), wanted, "again: {input}");
    }
    let binary = Rules::default().mask_payload(&[0xff, b'p', b'w']);
    assert_eq!(binary.text, "[masked: 3 bytes that are not text]");
}

#[test]
fn deep_and_wide_documents_take_linear_time() {
    let n = 30_000;
    for input in [
        "[".repeat(n),
        format!("{}\"password\":1{}", "{\"a\":".repeat(n) + "{", "}".repeat(n + 1)),
        "a/".repeat(n),
        "a+".repeat(n),
        "1-".repeat(n),
        "a@".repeat(n),
        "4 ".repeat(n),
        "DE89 ".repeat(n),
        "password=".repeat(n),
        "password=\"".repeat(n),
        "password:[".repeat(n),
        "<password ".repeat(n),
        "-----BEGIN ".repeat(n),
        "://".repeat(n),
        "Bearer ".repeat(n),
        "\"{\\\"".repeat(n),
        "eyJ.".repeat(n),
        "eyJaaaaaa_".repeat(n),
        "ghp_".repeat(n),
        "ab4111111111111111".repeat(n),
        "password:\n".repeat(n),
        "password:\n\"".repeat(n),
        "password: |\n ".repeat(n),
        "password: (\n".repeat(n),
        "mysql -p".repeat(n),
        "ü".repeat(n),
        "ü@".repeat(n),
        "用@a用".repeat(n),
        "Authorization: -----BEGIN\n".repeat(n),
    ] {
        let masked = payload(&input);
        assert_eq!(payload(&masked), masked, "{}", &input[..20]);
    }
}

#[test]
fn headers_are_masked_by_name_and_by_look() {
    let headers = [("Authorization", "x"), ("X-Api-Key", "y"), ("from", "bob@example.org"), ("trace", "7")];
    let headers = headers.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    let masked = Rules::default().mask_headers(&headers);
    let values: Vec<&str> = masked.values().map(String::as_str).collect();
    assert_eq!(values, ["[masked]", "[masked]", "[masked:email]", "7"]);
}

#[test]
fn what_a_patch_writes_is_masked_by_its_path() {
    let patch = r#"[{"op":"replace","path":"/user/password","value":"x"},{"op":"add","path":"/n","value":12345678901234567890123},
        {"op":"add","path":"/a","value":{"token":"y","b":"z"}},{"op":"remove","path":"/c"}]"#;
    let act = Act::Patch(Box::new(Patch::parse(patch).unwrap()));
    let Act::Patch(shown) = Rules::default().act(&act) else { panic!("still a patch") };
    let wanted = r#"[{"op":"replace","path":"/user/password","value":"[masked]"},{"op":"add","path":"/n","value":12345678901234567890123},{"op":"add","path":"/a","value":{"token":"[masked]","b":"z"}},{"op":"remove","path":"/c"}]"#;
    assert_eq!(shown.text(), wanted);
    assert_eq!(Rules::off().act(&act), act);
}

#[test]
fn an_operator_configures_what_is_secret() {
    let spec = MaskingSpec {
        keys: vec!["customer_no".into()],
        shown: vec!["email*".into()],
        without: vec![Detector::Email],
        ..MaskingSpec::default()
    };
    let rules = Rules::compile(&spec).unwrap();
    let masked = rules.mask_payload(br#"{"customerNo":7,"email":"bob@example.org","password":"x"}"#);
    assert_eq!(masked.text, r#"{"customerNo":"[masked]","email":"bob@example.org","password":"[masked]"}"#);
    assert_eq!(masked.places, 2);
    let none = Rules::compile(&MaskingSpec { on: false, ..spec.clone() }).unwrap();
    assert_eq!(none.mask_text("password=x"), "password=x");
    let own = Rules::compile(&MaskingSpec { builtin: false, ..spec.clone() }).unwrap();
    assert_eq!(own.mask_text("password=x customer-no=5"), "password=x customer-no=[masked]");
    assert!(Rules::compile(&MaskingSpec { keys: vec!["*".into()], ..spec.clone() }).is_err());
    assert!(Rules::compile(&MaskingSpec { keys: vec!["a".into(); 501], ..spec }).is_err());
}

#[test]
fn stored_error_text_has_no_secrets_but_signature_and_class_use_the_original() {
    let error = ErrorInfo {
        error_type: "HttpError".into(),
        message: "login of bob@example.org with password: hunter2 timed out".into(),
        stack: Some("at login (auth.js:3)\n  token=abc123".into()),
        cause: Some("Bearer abc.def-12 rejected".into()),
        context: vec!["psql postgres://u:p@db/x".into()],
        ..ErrorInfo::default()
    };
    let report = FailureReport {
        error: error.clone(),
        step: Some("curl --password hunter2".into()),
        artifacts: vec!["secret=9".into()],
        ..FailureReport::default()
    };
    let plain = ClassifierRules { masking: Rules::off(), ..ClassifierRules::default() };
    let (masked, original) = (report.clone().analyse(), report.analyse_with(&plain));
    assert_eq!(masked.signature.leaf, Signature::of(&error).leaf);
    assert_eq!(masked.class(), original.class());
    let text = serde_json::to_string(&masked).unwrap();
    for secret in ["hunter2", "bob@", "abc123", "abc.def", "u:p@", "secret=9"] {
        assert!(!text.contains(secret), "{secret}: {text}");
        assert!(serde_json::to_string(&original).unwrap().contains(secret), "{secret}");
    }
    assert!(text.contains("timed out") && text.contains("auth.js:3"), "{text}");
}

#[test]
fn a_secret_at_the_cut_is_not_shown_in_part() {
    let message = format!("{} password=hunter2hunter2", "x ".repeat(limits::ERROR_MESSAGE_BYTES_MAX * 2 - 8));
    let error = ErrorInfo { message, ..ErrorInfo::default() };
    let kept = FailureReport { error, ..FailureReport::default() }.analyse().report.error.message;
    assert!(!kept.contains("hunter") && kept.ends_with("[cut]"), "{}", &kept[kept.len() - 40..]);
    let error = ErrorInfo { message: "e".repeat(1_000_000), ..ErrorInfo::default() };
    assert!(FailureReport { error, ..FailureReport::default() }.analyse().report.error.message.len() < 100);
}

/// A value that is found by its name only.
const CANARY: &str = "canary";

fn leaf() -> impl Strategy<Value = serde_json::Value> {
    prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        "\\PC{0,12}".prop_map(Into::into),
        "[ -~]{0,30}".prop_map(Into::into),
    ]
}

fn document() -> impl Strategy<Value = serde_json::Value> {
    let name = prop_oneof!["[a-z\"\\\\é]{0,6}", Just("password".to_owned()), Just("apiKey".to_owned())];
    leaf().prop_recursive(5, 40, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Into::into),
            proptest::collection::btree_map(name.clone(), inner, 0..5)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Puts the canary under every secret name.
fn plant(value: &mut serde_json::Value, hidden: bool) {
    match value {
        serde_json::Value::Object(map) => {
            for (name, value) in map.iter_mut() {
                let hidden = hidden || Rules::default().hides(name);
                if hidden && !value.is_object() && !value.is_array() {
                    *value = format!("{CANARY} \"{name}\"").into();
                }
                plant(value, hidden);
            }
        }
        serde_json::Value::Array(items) => {
            for value in items {
                if hidden && !value.is_object() && !value.is_array() {
                    *value = CANARY.into();
                }
                plant(value, hidden);
            }
        }
        serde_json::Value::Null
        | serde_json::Value::Bool(_)
        | serde_json::Value::Number(_)
        | serde_json::Value::String(_) => {}
    }
}

/// Whether two documents are equal apart from what is masked.
fn alike(masked: &serde_json::Value, original: &serde_json::Value) -> bool {
    match (masked, original) {
        (serde_json::Value::String(text), _) if text.contains("[masked") => true,
        (serde_json::Value::Object(a), serde_json::Value::Object(b)) => {
            a.len() == b.len()
                && a.iter().all(|(name, value)| {
                    name.contains("[masked") || b.get(name).is_some_and(|other| alike(value, other))
                })
        }
        (serde_json::Value::Array(a), serde_json::Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| alike(a, b))
        }
        (a, b) => a == b,
    }
}

/// The parts of a masked text between the marks.
fn between_marks(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find("[masked") {
        let end = rest[at..].find(']').map_or(rest.len(), |end| at + end + 1);
        parts.push(&rest[..at]);
        rest = &rest[end..];
    }
    parts.push(rest);
    parts
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2_000,
        failure_persistence: None,
        // Random words may look like secrets, so the seed is fixed. Set another one to search for more.
        rng_seed: RngSeed::Fixed(std::env::var("REDRIVE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)),
        ..ProptestConfig::default()
    })]

    #[test]
    fn any_document_stays_the_same_without_its_secrets(mut document in document(), pretty in any::<bool>()) {
        plant(&mut document, false);
        let input = if pretty { serde_json::to_string_pretty(&document) } else { serde_json::to_string(&document) };
        let input = input.unwrap();
        let masked = payload(&input);
        prop_assert!(!masked.contains(CANARY), "{input}\n{masked}");
        let read: serde_json::Value = serde_json::from_str(&masked).unwrap();
        prop_assert!(alike(&read, &document), "{input}\n{masked}");
        prop_assert_eq!(payload(&masked), masked.clone());
    }

    #[test]
    fn any_text_is_masked_without_panic_and_stays_masked(
        input in "(\\PC|[\"'\\\\={}\\[\\]<>:&@./ \n|0-9-]|password|token|mysql -p|Bearer |eyJ|x_ghp_abcdefghij0123456789|ü|用户|-----BEGIN RSA PRIVATE KEY-----|-----END RSA PRIVATE KEY-----|4111111111111111|\\[masked\\]){0,40}",
    ) {
        let once = text(&input);
        prop_assert_eq!(&text(&once), &once, "{}", input);
        // Everything between the marks is original text, in the same order.
        let mut rest = input.as_str();
        for part in between_marks(&once) {
            let at = rest.find(part);
            prop_assert!(at.is_some(), "{part:?} of {once:?} is not in {input:?}");
            rest = &rest[at.unwrap() + part.len()..];
        }
        let _ = payload(&input);
    }

    #[test]
    fn no_bytes_cause_a_panic(input in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Rules::default().mask_payload(&input);
    }

    #[test]
    fn a_canary_in_text_is_not_shown(
        before in "[a-z ,.]{0,20}",
        name in prop_oneof![Just("password"), Just("api_key"), Just("client-secret"), Just("Authorization")],
        joint in prop_oneof![Just("="), Just(": "), Just("\": \""), Just("='"), Just(" => \""), Just(":")],
        after in "[ ,.&\n]{0,1}[a-z ,.]{0,20}",
    ) {
        let masked = text(&format!("{before} {name}{joint}{CANARY}{after}"));
        prop_assert!(!masked.contains(CANARY), "{masked}");
    }
}
