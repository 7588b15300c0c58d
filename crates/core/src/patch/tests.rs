//! JSON Patch against the examples of the standard, and against a simple model that works on parsed documents.

use super::*;
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof, proptest};
use proptest::{prop_assert, prop_assert_eq};
use serde_json::{Value, json};

fn patched(document: &str, patch: &str) -> Result<String, String> {
    let patch = Patch::parse(patch).map_err(|e| e.to_string())?;
    let bytes = patch.apply(document.as_bytes()).map_err(|e| e.to_string())?;
    Ok(String::from_utf8(bytes).unwrap())
}

fn one(document: &str, step: &str) -> String {
    patched(document, &format!("[{step}]")).unwrap()
}

/// The examples of RFC 6902, appendix A, in order; results are compared as parsed JSON.
#[test]
fn the_examples_of_the_standard() {
    for (document, patch, expected) in [
        (r#"{"foo":"bar"}"#, r#"[{"op":"add","path":"/baz","value":"qux"}]"#, r#"{"foo":"bar","baz":"qux"}"#),
        (
            r#"{"foo":["bar","baz"]}"#,
            r#"[{"op":"add","path":"/foo/1","value":"qux"}]"#,
            r#"{"foo":["bar","qux","baz"]}"#,
        ),
        (r#"{"baz":"qux","foo":"bar"}"#, r#"[{"op":"remove","path":"/baz"}]"#, r#"{"foo":"bar"}"#),
        (
            r#"{"foo":["bar","qux","baz"]}"#,
            r#"[{"op":"remove","path":"/foo/1"}]"#,
            r#"{"foo":["bar","baz"]}"#,
        ),
        (
            r#"{"baz":"qux","foo":"bar"}"#,
            r#"[{"op":"replace","path":"/baz","value":"boo"}]"#,
            r#"{"baz":"boo","foo":"bar"}"#,
        ),
        (
            r#"{"foo":{"bar":"baz","waldo":"fred"},"qux":{"corge":"grault"}}"#,
            r#"[{"op":"move","from":"/foo/waldo","path":"/qux/thud"}]"#,
            r#"{"foo":{"bar":"baz"},"qux":{"corge":"grault","thud":"fred"}}"#,
        ),
        (
            r#"{"foo":["all","grass","cows","eat"]}"#,
            r#"[{"op":"move","from":"/foo/1","path":"/foo/3"}]"#,
            r#"{"foo":["all","cows","eat","grass"]}"#,
        ),
        (
            r#"{"baz":"qux","foo":["a",2,"c"]}"#,
            r#"[{"op":"test","path":"/baz","value":"qux"},{"op":"test","path":"/foo/1","value":2}]"#,
            r#"{"baz":"qux","foo":["a",2,"c"]}"#,
        ),
        (
            r#"{"foo":"bar"}"#,
            r#"[{"op":"add","path":"/child","value":{"grandchild":{}}}]"#,
            r#"{"foo":"bar","child":{"grandchild":{}}}"#,
        ),
        (
            r#"{"foo":"bar"}"#,
            r#"[{"op":"add","path":"/baz","value":"qux","xyz":123}]"#,
            r#"{"foo":"bar","baz":"qux"}"#,
        ),
        (r#"{"/":9,"~1":10}"#, r#"[{"op":"test","path":"/~01","value":10}]"#, r#"{"/":9,"~1":10}"#),
        (
            r#"{"foo":["bar"]}"#,
            r#"[{"op":"add","path":"/foo/-","value":["abc","def"]}]"#,
            r#"{"foo":["bar",["abc","def"]]}"#,
        ),
    ] {
        assert_eq!(patched(document, patch).as_deref(), Ok(expected), "{patch}");
    }
}

#[test]
fn everything_else_keeps_its_bytes() {
    let odd = "\t{ \"z\" : 1.50,\n  \"a\":12345678901234567890123, \"u\\u0041\": [ 1 ,2 ] ,\"e\":{ } }\n";
    for (step, expected) in [
        (r#"{"op":"replace","path":"/z","value":1.0}"#, odd.replace("1.50", "1.0")),
        (
            r#"{"op":"replace","path":"/a","value":98765432109876543210987}"#,
            odd.replace("12345678901234567890123", "98765432109876543210987"),
        ),
        (r#"{"op":"replace","path":"/uA/1","value":3}"#, odd.replace(",2 ]", ",3 ]")),
        (r#"{"op":"add","path":"/e/k","value":null}"#, odd.replace("{ } }", "{\"k\":null } }")),
        (r#"{"op":"add","path":"/uA/0","value":0}"#, odd.replace("[ 1", "[ 0, 1")),
        (r#"{"op":"add","path":"/uA/-","value":0}"#, odd.replace(",2 ]", ",2,0 ]")),
        (r#"{"op":"remove","path":"/z"}"#, odd.replace("\"z\" : 1.50,\n  ", "")),
        (r#"{"op":"remove","path":"/a"}"#, odd.replace(",\n  \"a\":12345678901234567890123", "")),
        (r#"{"op":"remove","path":"/e"}"#, odd.replace(" ,\"e\":{ }", "")),
        (r#"{"op":"copy","from":"/a","path":"/e"}"#, odd.replace("{ }", "12345678901234567890123")),
        (r#"{"op":"add","path":"/n~1~0","value":"é"}"#, odd.replace("{ } }", "{ },\"n/~\":\"é\" }")),
        (r#"{"op":"replace","path":"","value":[]}"#, "\t[]\n".to_owned()),
        (r#"{"op":"move","from":"/a","path":"/a"}"#, odd.to_owned()),
    ] {
        assert_eq!(one(odd, step), expected, "{step}");
    }
}

#[test]
fn new_entries_have_the_spacing_of_their_neighbours() {
    let pretty = "{\n  \"a\": 1,\n  \"b\": [\n    1\n  ]\n}";
    assert_eq!(
        one(pretty, r#"{"op":"add","path":"/c","value":2}"#),
        "{\n  \"a\": 1,\n  \"b\": [\n    1\n  ],\n  \"c\": 2\n}"
    );
    assert_eq!(
        one(pretty, r#"{"op":"add","path":"/b/-","value":2}"#),
        "{\n  \"a\": 1,\n  \"b\": [\n    1,\n    2\n  ]\n}"
    );
}

#[test]
fn of_a_repeated_key_the_last_counts_and_all_are_removed() {
    let twice = r#"{"a":1,"b":0,"a":2}"#;
    assert_eq!(one(twice, r#"{"op":"replace","path":"/a","value":3}"#), r#"{"a":1,"b":0,"a":3}"#);
    assert_eq!(one(twice, r#"{"op":"add","path":"/a","value":3}"#), r#"{"a":1,"b":0,"a":3}"#);
    assert_eq!(one(twice, r#"{"op":"remove","path":"/a"}"#), r#"{"b":0}"#);
    assert_eq!(one(r#"{"a":1,"\u0061":2}"#, r#"{"op":"remove","path":"/a"}"#), "{}");
    assert_eq!(one(twice, r#"{"op":"test","path":"/a","value":2}"#), twice);
    assert_eq!(one(twice, r#"{"op":"move","from":"/a","path":"/c"}"#), r#"{"b":0,"c":2}"#);
}

#[test]
fn tests_compare_values_rather_than_text() {
    let document = r#"{"n":1.50,"big":9007199254740993,"s":"\u00e9","o":{"a":1,"b":[1,2]},"x":null}"#;
    for fits in [
        r#"{"op":"test","path":"/n","value":15e-1}"#,
        r#"{"op":"test","path":"/big","value":9007199254740993}"#,
        r#"{"op":"test","path":"/s","value":"é"}"#,
        r#"{"op":"test","path":"/o","value":{"b":[1.0,2],"a":1}}"#,
        r#"{"op":"test","path":"/x","value":null}"#,
    ] {
        assert_eq!(one(document, fits), document, "{fits}");
    }
    for other in [
        r#"{"op":"test","path":"/big","value":9007199254740992}"#,
        r#"{"op":"test","path":"/n","value":"1.50"}"#,
        r#"{"op":"test","path":"/o","value":{"a":1}}"#,
        r#"{"op":"test","path":"/o/b","value":[2,1]}"#,
        r#"{"op":"test","path":"/x","value":false}"#,
    ] {
        let why = patched(document, &format!("[{other}]")).unwrap_err();
        assert!(why.starts_with("step 1: ") && why.contains("is not what the test wants"), "{why}");
    }
}

#[test]
fn errors_name_the_step_and_the_reason() {
    let document = r#"{"a":{"b":[1,2]},"t":"text"}"#;
    for (patch, why) in [
        (r#"[{"op":"remove","path":"/x"}]"#, "step 1: there is nothing at /x"),
        (
            r#"[{"op":"test","path":"/t","value":"text"},{"op":"replace","path":"/a/c","value":1}]"#,
            "step 2: there is nothing at /a/c",
        ),
        (r#"[{"op":"add","path":"/x/y","value":1}]"#, "step 1: there is nothing at /x/y"),
        (r#"[{"op":"add","path":"/t/y","value":1}]"#, "does not lead through objects and lists here"),
        (r#"[{"op":"add","path":"/a/b/3","value":1}]"#, "/a/b/3: the list has only 2 entries"),
        (r#"[{"op":"add","path":"/a/b/01","value":1}]"#, "\"01\" is not an index of a list"),
        (r#"[{"op":"remove","path":"/a/b/-"}]"#, "there is nothing at /a/b/-"),
        (r#"[{"op":"move","from":"/a","path":"/a/b/0"}]"#, "/a cannot be moved into itself"),
        (r#"[{"op":"copy","from":"/x","path":"/y"}]"#, "there is nothing at /x"),
        (r#"[{"op":"remove","path":""}]"#, "the whole document cannot be removed"),
        (r#"[{"op":"remove","path":"a"}]"#, "is not a JSON pointer"),
        (r#"[{"op":"remove","path":"/a~2"}]"#, "write ~0 for ~ and ~1 for /"),
        (r#"[{"op":"remove","path":"/a~"}]"#, "write ~0 for ~ and ~1 for /"),
        (r#"[{"op":"add","path":"/a"}]"#, "\"add\" needs a \"value\""),
        (r#"[{"op":"move","path":"/a"}]"#, "\"move\" needs a \"from\""),
        (r#"[{"op":"delete","path":"/a"}]"#, "\"delete\" is none of add, remove"),
        (r#"[{"path":"/a"}]"#, "step 1: missing field `op`"),
        (r#"[{"op":"add","op":"remove","path":"/a"}]"#, "duplicate field `op`"),
        ("[]", "a patch has 1 to 100 steps, not 0"),
        ("{}", "not a JSON patch, a list of steps"),
        ("", "not a JSON patch, a list of steps"),
    ] {
        let text = patched(document, patch).unwrap_err();
        assert!(text.contains(why), "{patch}: {text}");
    }
}

#[test]
fn payloads_that_are_not_json_are_refused() {
    let patch = Patch::parse(r#"[{"op":"add","path":"","value":1}]"#).unwrap();
    for bytes in [&b""[..], b"{", b"\xff", b"{'a':1}", b"1 2", b"\xef\xbb\xbf{}", b"[01]", b"[\"\t\"]"] {
        let why = patch.apply(bytes).unwrap_err().to_string();
        assert!(why.starts_with("the payload is not JSON"), "{why}");
    }
}

#[test]
fn size_and_depth_are_limited() {
    let double = r#"{"op":"copy","from":"","path":"/-"}"#;
    let steps = vec![double; 60].join(",");
    let why = patched(&format!("[\"{}\"]", "x".repeat(100)), &format!("[{steps}]")).unwrap_err();
    assert!(why.contains("bytes; at most") || why.contains("deep; at most"), "{why}");
    let nested = format!("{}1{}", "[".repeat(limits::JSON_DEPTH_MAX), "]".repeat(limits::JSON_DEPTH_MAX));
    assert!(serde_json::from_str::<Value>(&nested).is_ok(), "the deepest allowed document can still be read");
    let deepest = "/0".repeat(limits::JSON_DEPTH_MAX);
    assert_eq!(one(&nested, &format!(r#"{{"op":"test","path":"{deepest}","value":1}}"#)), nested);
    let why =
        patched(&nested, &format!(r#"[{{"op":"replace","path":"{deepest}","value":[]}}]"#)).unwrap_err();
    assert!(why.contains("nested 128 deep"), "{why}");
    let too_deep = format!("[{nested}]");
    assert!(patched(&too_deep, r#"[{"op":"add","path":"","value":1}]"#).is_err());
    let many = vec![r#"{"op":"test","path":"","value":1}"#; limits::PATCH_STEPS_MAX + 1].join(",");
    assert!(patched("1", &format!("[{many}]")).unwrap_err().contains("steps, not 101"));
    let long = format!(r#"[{{"op":"add","path":"","value":"{}"}}]"#, "x".repeat(limits::PATCH_BYTES_MAX));
    assert!(patched("1", &long).unwrap_err().contains("a patch has at most"));
}

#[test]
fn a_patch_is_stored_as_its_original_text() {
    let text = r#"[ {"op":"add", "path":"/n", "value":123456789012345678901234567890.10} ]"#;
    let patch = Patch::parse(text).unwrap();
    let stored = serde_json::to_string(&patch).unwrap();
    let back: Patch = serde_json::from_str(&stored).unwrap();
    assert_eq!((back.text(), &back), (text, &patch));
    assert_eq!(patch.summary(), "add /n");
    assert_eq!(one("{}", text.trim_matches(['[', ']', ' '])), r#"{"n":123456789012345678901234567890.10}"#);
    assert!(serde_json::from_str::<Patch>(r#"{"patch":"[]"}"#).is_err());
}

/// The model: the standard applied to parsed documents.
mod model {
    use serde_json::Value;

    fn parts(path: &str) -> Vec<String> {
        path.split('/').skip(1).map(|p| p.replace("~1", "/").replace("~0", "~")).collect()
    }

    fn place(part: &str, len: usize) -> Option<usize> {
        let n: usize = part.parse().ok()?;
        (n.to_string() == part && n <= len).then_some(n)
    }

    fn put(at: &mut Value, path: &[String], value: Value) -> Option<()> {
        let Some((part, rest)) = path.split_first() else {
            *at = value;
            return Some(());
        };
        match (at, rest.is_empty()) {
            (Value::Object(map), true) => drop(map.insert(part.clone(), value)),
            (Value::Array(list), true) if part == "-" => list.push(value),
            (Value::Array(list), true) => list.insert(place(part, list.len())?, value),
            (Value::Object(map), false) => put(map.get_mut(part)?, rest, value)?,
            (Value::Array(list), false) => {
                let n = place(part, list.len())?;
                put(list.get_mut(n)?, rest, value)?;
            }
            _ => return None,
        }
        Some(())
    }

    fn take(at: &mut Value, path: &[String]) -> Option<Value> {
        let (part, rest) = path.split_first()?;
        match (at, rest.is_empty()) {
            (Value::Object(map), true) => map.remove(part),
            (Value::Array(list), true) => {
                let n = place(part, list.len()).filter(|n| *n < list.len())?;
                Some(list.remove(n))
            }
            (Value::Object(map), false) => take(map.get_mut(part)?, rest),
            (Value::Array(list), false) => {
                let n = place(part, list.len())?;
                take(list.get_mut(n)?, rest)
            }
            _ => None,
        }
    }

    /// The document after one step, if the step fits.
    pub(super) fn step(document: &Value, step: &Value) -> Option<Value> {
        let path = step["path"].as_str()?;
        let mut next = document.clone();
        let value = || step["value"].clone();
        match step["op"].as_str()? {
            "add" => put(&mut next, &parts(path), value())?,
            "remove" => drop(take(&mut next, &parts(path))?),
            "replace" => *next.pointer_mut(path)? = value(),
            "test" => return (document.pointer(path)? == &step["value"]).then_some(next),
            "copy" => {
                let value = document.pointer(step["from"].as_str()?)?.clone();
                put(&mut next, &parts(path), value)?;
            }
            "move" => {
                let from = step["from"].as_str()?;
                let inside = path.strip_prefix(from).is_some_and(|rest| rest.starts_with('/'));
                if inside {
                    return None;
                }
                if from == path {
                    return document.pointer(from).map(|_| next);
                }
                let value = take(&mut next, &parts(from))?;
                put(&mut next, &parts(path), value)?;
            }
            _ => return None,
        }
        Some(next)
    }
}

/// Few keys, so that paths often exist in documents; some need escapes in JSON, some in pointers.
const KEYS: [&str; 6] = ["a", "b", "a/b", "m~n", "q\"\u{e9}", "0"];

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        "[a-c\"\\\\/{}\\[\\],: \u{e9}\n]{0,6}".prop_map(Value::from),
    ]
}

fn document() -> impl Strategy<Value = Value> {
    scalar().prop_recursive(4, 24, 5, |inner| {
        let key = (0..KEYS.len()).prop_map(|at| KEYS[at].to_owned());
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec((key, inner), 0..4).prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

fn pointer() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        4 => (0..KEYS.len()).prop_map(|at| KEYS[at].replace('~', "~0").replace('/', "~1")),
        2 => (0_usize..4).prop_map(|n| n.to_string()),
        1 => Just("-".to_owned()),
    ];
    vec(part, 0..4).prop_map(|parts| parts.iter().map(|part| format!("/{part}")).collect())
}

fn step() -> impl Strategy<Value = Value> {
    let op =
        prop_oneof![Just("add"), Just("remove"), Just("replace"), Just("move"), Just("copy"), Just("test")];
    (op, pointer(), pointer(), document())
        .prop_map(|(op, path, from, value)| json!({"op": op, "path": path, "from": from, "value": value}))
}

/// Writes a document with spacing that no serializer would choose, from a few random bytes.
fn write(value: &Value, chance: &mut dyn Iterator<Item = u8>, out: &mut String) {
    fn space(chance: &mut dyn Iterator<Item = u8>, out: &mut String) {
        out.push_str(["", " ", "\n\t", ""][usize::from(chance.next().unwrap_or(0)) % 4]);
    }
    match value {
        Value::Array(list) => {
            out.push('[');
            for (n, item) in list.iter().enumerate() {
                out.push_str(if n > 0 { "," } else { "" });
                write(item, chance, out);
            }
            out.push(']');
        }
        Value::Object(map) => {
            out.push('{');
            for (n, (key, item)) in map.iter().enumerate() {
                out.push_str(if n > 0 { "," } else { "" });
                space(chance, out);
                out.push_str(&serde_json::to_string(key).unwrap());
                space(chance, out);
                out.push(':');
                write(item, chance, out);
            }
            space(chance, out);
            out.push('}');
        }
        other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => {
            space(chance, out);
            out.push_str(&other.to_string());
            space(chance, out);
        }
    }
}

fn written() -> impl Strategy<Value = (Value, String)> {
    (document(), vec(any::<u8>(), 64)).prop_map(|(value, chance)| {
        let mut text = String::new();
        write(&value, &mut chance.into_iter().cycle(), &mut text);
        (value, text)
    })
}

/// The entries of an object or list as they are written, with their keys.
fn raw_entries(text: &str) -> Vec<String> {
    let all = root(text).unwrap();
    let keyed = text.as_bytes()[all.start] == b'{';
    let entries = Entries { bytes: text.as_bytes(), keyed, at: all.start + 1 };
    entries.map(|e| text[e.start()..e.value.end].to_owned()).collect()
}

proptest! {
    /// A patch and the model give the same result, and refuse the same patches.
    #[test]
    fn a_patch_does_what_the_model_does((value, text) in written(), steps in vec(step(), 1..5)) {
        let mut expected = Some(value);
        for step in &steps {
            expected = expected.and_then(|value| model::step(&value, step));
        }
        let got = patched(&text, &serde_json::to_string(&steps).unwrap());
        let parsed = got.as_ref().ok().map(|text| serde_json::from_str::<Value>(text).unwrap());
        prop_assert_eq!(parsed, expected, "{} {:?}", text, got);
    }

    /// Entries beside the one that a step names keep their bytes and their order.
    #[test]
    fn neighbours_keep_their_bytes((value, text) in written(), step in step()) {
        let first = step["path"].as_str().unwrap().split('/').nth(1).map(str::to_owned);
        let op = step["op"].as_str().unwrap();
        if let (Some(_), Value::Object(map), "add" | "remove" | "replace") = (&first, &value, op)
            && let Ok(next) = patched(&text, &format!("[{step}]"))
        {
            let name = first.unwrap().replace("~1", "/").replace("~0", "~");
            let quoted = serde_json::to_string(&name).unwrap();
            let others = |all: Vec<String>| all.into_iter().filter(|e| !e.starts_with(&quoted)).collect::<Vec<_>>();
            let (before, after) = (raw_entries(&text), raw_entries(&next));
            prop_assert_eq!(before.len(), map.len());
            prop_assert_eq!(others(before), others(after));
        }
    }

    /// A change followed by its reverse restores the exact bytes.
    #[test]
    fn a_reversed_change_leaves_no_trace((value, text) in written(), path in pointer(), new in document()) {
        let add = json!([{"op": "add", "path": path, "value": new}]).to_string();
        if let Some(old) = value.pointer(&path) {
            let replace = json!([{"op": "replace", "path": path, "value": new}]).to_string();
            let raw = slice(&text, locate(&text, &Pointer::parse(&path).unwrap()).unwrap()).unwrap().to_owned();
            let back = format!("[{{\"op\":\"replace\",\"path\":{},\"value\":{raw}}}]", json!(path));
            let changed = patched(&text, &replace).unwrap();
            prop_assert_eq!(&patched(&changed, &back).unwrap(), &text);
            prop_assert_eq!(old, &serde_json::from_str::<Value>(&raw).unwrap());
        } else if let Ok(changed) = patched(&text, &add) && !path.ends_with('-') {
            let remove = json!([{"op": "remove", "path": path}]).to_string();
            prop_assert_eq!(patched(&changed, &remove).unwrap(), text);
        }
    }

    /// No text causes a panic, and every result is JSON.
    #[test]
    fn no_input_causes_a_panic(document in "[\\[\\]{}\",:\\\\a01 -]{0,40}", path in "[/a01~-]{0,6}") {
        for op in ["add", "remove", "replace", "test"] {
            let patch = json!([{"op": op, "path": path, "value": 1}]).to_string();
            if let Ok(text) = patched(&document, &patch) {
                prop_assert!(serde_json::from_str::<IgnoredAny>(&text).is_ok(), "{document} -> {text}");
            }
        }
        let _ = Patch::parse(&document);
    }
}
