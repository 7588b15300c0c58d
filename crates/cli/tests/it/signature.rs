//! `redrive signature`: lines in, groups out, for any kind of line.

use crate::support::Workspace;

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

const LINES: &str =
    "no mailbox for user ann on host 7\nlink is up\nno mailbox for user bob on host 8\nlink is down\n";

#[test]
fn each_line_gets_its_group_and_template_in_order() {
    let workspace = Workspace::new();
    let out = text(&workspace.feed(LINES.as_bytes(), &["signature"]).ok().stdout);
    let rows: Vec<(&str, &str)> = out.lines().map(|line| line.split_once('\t').unwrap()).collect();
    assert_eq!(rows.len(), 4);
    assert_eq!(rows[0], rows[2], "filed as if all had been seen before");
    assert_eq!(rows[0].1, "no mailbox for user <*> on host <num>");
    assert_ne!(rows[1].0, rows[3].0);
    assert!(rows.iter().all(|(group, _)| group.len() == 16));
    assert!(!workspace.data().exists(), "it needs no store and makes none");
    let typed = text(&workspace.feed(LINES.as_bytes(), &["signature", "--error-type", "E"]).ok().stdout);
    assert_ne!(typed, out, "the type is part of the group");
}

#[test]
fn signature_explains_counts_and_applies_rules() {
    let workspace = Workspace::new();
    let why = |a: &str, b: &str| {
        text(&workspace.feed(LINES.as_bytes(), &["signature", "--explain", a, b]).ok().stdout)
    };
    assert!(
        why("1", "3").starts_with("together:") && why("1", "3").contains("ann and bob"),
        "{}",
        why("1", "3")
    );
    assert!(why("2", "4").starts_with("apart:"));
    workspace.feed(LINES.as_bytes(), &["signature", "--explain", "1", "9"]).code(2).says("no line 9");
    workspace.feed(LINES.as_bytes(), &["signature", "--explain", "0", "1"]).code(2).says("from 1");
    let top =
        text(&workspace.feed(LINES.as_bytes(), &["signature", "--top", "2", "-o", "ndjson"]).ok().stdout);
    assert!(top.lines().next().unwrap().contains(r#""top":[["ann",1],["bob",1]]"#), "{top}");
    let rules = workspace.file("rules.toml", "[[rules]]\nmatch = 'link is'\nfingerprint = 'link changed'\n");
    let out = text(&workspace.feed(LINES.as_bytes(), &["signature", "--rules", &rules]).ok().stdout);
    assert_eq!(out.matches("\tlink changed\n").count(), 2);
    let bad = workspace.file("bad.toml", "[[rules]]\nmatch = '('\nfingerprint = 'x'\n");
    workspace.feed(LINES.as_bytes(), &["signature", "--rules", &bad]).code(2).says("rule 1");
}

#[test]
fn any_input_is_accepted() {
    let workspace = Workspace::new();
    assert_eq!(workspace.feed(b"", &["signature"]).ok().stdout, b"");
    let mut input = b"\xff\xfe\x00bin\x1b[31m\n\nan 'open quote\n\xe2\x80\xaeolleh\n".to_vec();
    input.extend(vec![b'x'; 1 << 20]);
    input.push(b'\n');
    let out = text(&workspace.feed(&input, &["signature"]).ok().stdout);
    assert_eq!(out.lines().count(), 5);
    assert!(!out.contains('\u{1b}') && !out.contains('\u{202e}') && out.len() < 10_000, "{out}");
    for format in ["json", "ndjson", "csv", "yaml"] {
        workspace.feed(&input, &["signature", "-o", format]).ok();
    }
}
