//! Every repository rule, failing on a bad tree and passing on a good one. No file of the repository is
//! needed.

use super::source::code_only;
use super::*;

/// Checks that there is exactly one complaint per expected start, in any order.
fn expect(mut complaints: Vec<String>, starts: &[&str]) {
    complaints.sort();
    let mut starts = starts.to_vec();
    starts.sort_unstable();
    let matches = complaints.iter().zip(&starts).all(|(complaint, start)| complaint.starts_with(start));
    assert!(matches && complaints.len() == starts.len(), "wanted {starts:#?}\ngot {complaints:#?}");
}

#[test]
fn blanks_comments_and_literals_only() {
    let blanked = |text: &str| code_only(text).split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(blanked("a // b\nc /* d /* e */ f */ g"), "a c g");
    assert_eq!(blanked(r#"a("b \" // c", d)"#), "a( , d)");
    assert_eq!(blanked("a(r#\"b \" c\"#, br\"\\\", r#type)"), "a( , b , r#type)");
    assert_eq!(blanked(r"f::<'a>('b', '\'', '\u{1F600}', '€', 'c')"), "f::<'a>( , , , , )");
    assert_eq!(blanked("for\"x\" unterminated \"y"), "for unterminated");
    let text = "a\n\"b\nc\"\n'd'\n";
    assert_eq!(code_only(text).len(), text.len());
    assert_eq!(code_only(text).lines().count(), 4);
}

#[test]
fn finds_test_code() {
    let text = "fn a() {}\n#[cfg(test)]\nuse x::{y};\nfn b() {}\n#[cfg(test)]\n#[path = \"t\"]\n\
                mod tests {\n}\nfn c() {}\n";
    let source = Source::new("crates/core/src/a.rs", text);
    assert_eq!(source.test_lines, [false, true, true, false, true, true, true, true, false]);
    let field =
        Source::new("crates/core/src/a.rs", "struct S {\n    #[cfg(test)]\n    f: u8,\n}\nfn a() {}\n");
    assert_eq!(field.test_lines.last(), Some(&false));
    let tree = Tree::of(&[
        ("crates/core/src/lifecycle/mod.rs", "#[cfg(test)]\nmod tests;\nmod other;"),
        ("crates/core/src/lifecycle/tests.rs", "fn a() {}"),
        ("crates/core/src/lifecycle/other.rs", "#[cfg(test)] mod deep;"),
        ("crates/core/src/lifecycle/other/deep/x.rs", "fn a() {}"),
    ]);
    let all_test = |source: &Source<'_>| source.test_lines.iter().all(|line| *line);
    let sources = tree.sources();
    let tests: Vec<&str> = sources.iter().filter(|s| all_test(s)).map(|s| s.path).collect();
    let expected = ["lifecycle/other.rs", "lifecycle/other/deep/x.rs", "lifecycle/tests.rs"];
    assert_eq!(tests, expected.map(|path| format!("crates/core/src/{path}")));
}

#[test]
fn expands_braces() {
    assert_eq!(braces_expanded("a"), ["a"]);
    assert_eq!(braces_expanded("a/{b,c/{d,e}}/f"), ["a/b/f", "a/c/d/f", "a/c/e/f"]);
    assert_eq!(braces_expanded("a/{b"), ["a/b"]);
}

#[test]
fn sees_wrong_edges() {
    let edge = |from: &str, to: &str, in_tests_only| Edge { from: from.into(), to: to.into(), in_tests_only };
    let members = ["redrive-core", "redrive-store", "redrive-extra"].map(str::to_owned);
    let edges = [
        edge("redrive-store", "redrive-core", false),
        edge("redrive-store", "redrive-testkit", true),
        edge("redrive-core", "redrive-testkit", true),
        edge("redrive-bench", "redrive-testkit", false),
        edge("redrive-store", "redrive-testkit", false),
        edge("redrive-core", "redrive-store", false),
        edge("redrive-server", "redrive-store", true),
    ];
    let wrong = [
        "redrive-extra: not a crate",
        "redrive-core -> redrive-store: this dependency",
        "redrive-server -> redrive-store: this dev-dependency",
        "redrive-store -> redrive-testkit: this dependency",
    ];
    expect(wrong_edges(&members, &edges), &wrong);
}

#[test]
fn sees_an_impure_core() {
    let bad = "use std::{fmt, fs as files};\nuse std::time::{Duration, Instant};\n\
               fn a() { tokio::spawn(b) }\nuse rand;\nfn c() { std::thread::spawn(d) }\n\
               fn d() { let _ = std::net::Ipv4Addr::LOCALHOST; }\n";
    let good = "//! No tokio::spawn, no std::fs.\nuse std::time::Duration;\n\
                use std::fmt;\nlet rand = brand::new();\n\
                let s = \"std::fs\";\n#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n";
    let tree = Tree::of(&[
        ("crates/core/src/a.rs", bad),
        ("crates/core/src/b.rs", good),
        ("crates/store/src/c.rs", "use std::fs;"),
    ]);
    let wrong = [
        "crates/core/src/a.rs:1: `std::fs`",
        "crates/core/src/a.rs:2: `Instant`",
        "crates/core/src/a.rs:2: `std::time::Instant`",
        "crates/core/src/a.rs:3: `tokio`",
        "crates/core/src/a.rs:4: `rand`",
        "crates/core/src/a.rs:5: `std::thread`",
        "crates/core/src/a.rs:6: `std::net`",
    ];
    expect(impure_core(&tree), &wrong);
}

#[test]
fn sees_missing_module_docs() {
    let tree = Tree::of(&[
        ("crates/core/src/a.rs", "// x\n\n//! Late but fine."),
        ("crates/core/src/b.rs", "/// Not a module's."),
        ("crates/core/tests/it/c.rs", "fn a() {}\n\n\n//! Too late."),
        ("examples/d.rs", "fn main() {}"),
    ]);
    expect(missing_module_docs(&tree), &["crates/core/src/b.rs:1:", "crates/core/tests/it/c.rs:1:"]);
}

#[test]
fn sees_sleeps_in_tests() {
    let tree = Tree::of(&[
        (
            "crates/core/src/a.rs",
            "fn a() { sleep(1) }\n#[cfg(test)]\nmod tests {\n  fn b() { thread::sleep (1) }\n}",
        ),
        (
            "crates/store/tests/it/b.rs",
            "// sleep(1)\nfn a() { no_sleep(1); }\nfn b() { time::sleep_until(t).await }",
        ),
    ]);
    expect(sleeps_in_tests(&tree), &["crates/core/src/a.rs:4:", "crates/store/tests/it/b.rs:3:"]);
}

#[test]
fn sees_waits_in_tests_that_end_with_the_machines_time() {
    let bad = "fn a() { rx.recv_timeout(Duration::from_secs(60)).unwrap() }\n\
               async fn b() { lasting(Duration::from_secs(4)).await }\n\
               async fn c() { time::timeout(time, pending::<()>()).await }\n\
               fn d() { bell.wait_timeout(seen, second) }\n\
               fn e() { assert!(begun.elapsed() < Duration::from_secs(20)) }\n\
               const PATIENCE: Duration = Duration::from_secs(60);\n";
    let good = "const PATIENCE: Duration = Duration::from_secs(1_200);\n\
                fn a() { bell.wait_timeout(seen, PATIENCE); rx.recv() }\n\
                async fn b() { time::timeout(PATIENCE, async { c().await }).await }\n\
                fn c() { builder.timeout(Span::from_secs(1)); assert!(begun.elapsed() >= second) }\n\
                fn d() { assert!(begun.elapsed() < PATIENCE, \"never\") }\n\
                #[tokio::test(start_paused = true)]\nasync fn e() { assert!(begun.elapsed() < second) }\n\
                async fn f() { time::advance(second).await; timeout(second, pending::<()>()).await }\n";
    let tree = Tree::of(&[
        ("crates/redrive/tests/it/a.rs", bad),
        ("crates/redrive/tests/it/b.rs", good),
        ("crates/redrive/src/c.rs", "fn a() { rx.recv_timeout(second) }"),
    ]);
    let wrong = [
        "crates/redrive/tests/it/a.rs:1: `recv_timeout(`",
        "crates/redrive/tests/it/a.rs:2: `lasting(`",
        "crates/redrive/tests/it/a.rs:3: `timeout(`",
        "crates/redrive/tests/it/a.rs:4: `wait_timeout(`",
        "crates/redrive/tests/it/a.rs:5: a slow machine",
        "crates/redrive/tests/it/a.rs:6: `PATIENCE`",
    ];
    expect(sleeps_in_tests(&tree), &wrong);
}

#[test]
fn sees_oversized_files() {
    let long = |lines: usize| "fn a() {}\n".repeat(lines);
    let tested = long(600) + "#[cfg(test)]\nmod tests {\n" + &long(900) + "}\n";
    let (longer, longest) = (long(601), long(900));
    let tree = Tree::of(&[
        ("crates/core/src/fits.rs", &tested),
        ("crates/core/src/long.rs", &longer),
        ("crates/core/src/listed.rs", &longest),
        ("crates/core/tests/long.rs", &longest),
    ]);
    let (path, listed) = ("crates/core/src/long.rs: 601 lines", "crates/core/src/listed.rs");
    expect(oversized_files(&tree, &[(listed, 920)]), &[path]);
    expect(oversized_files(&tree, &[(listed, 899)]), &[path, "crates/core/src/listed.rs: grew to 900"]);
    expect(oversized_files(&tree, &[(listed, 921)]), &[path, "crates/core/src/listed.rs: down to 900"]);
    let stale = [("crates/core/src/fits.rs", 700), ("crates/core/src/gone.rs", 700), (listed, 900)];
    let shrink =
        [path, "crates/core/src/fits.rs: 600 lines is within", "crates/core/src/gone.rs: no such file"];
    expect(oversized_files(&tree, &stale), &shrink);
}

#[test]
fn sees_stale_paths_in_docs() {
    let good = "`crates/core/src/{a,b}.rs`, `crates/core/src/a.rs:12` and `./scripts/test all`;\n\
                `crates/*/src`, `docs/`, `core/src/gone.rs`\n```\n`crates/gone`\n```\n\
                `crates/core/src/a.rs::name`\n";
    let tree = Tree::of(&[
        ("README.md", good),
        ("ARCHITECTURE.md", "`crates/core/src/{a,gone}.rs`"),
        ("CONTRIBUTING.md", "run\n`scripts/gone --fast`."),
        ("docs/a/b.md", "crates/unquoted and `.ci/gone`"),
        ("crates/core/src/a.rs", ""),
        ("crates/core/src/b.rs", ""),
        ("scripts/test", ""),
    ]);
    let wrong = [
        "SECURITY.md: missing",
        "ARCHITECTURE.md:1: names `crates/core/src/gone.rs`",
        "CONTRIBUTING.md:2: names `scripts/gone`",
        "docs/a/b.md:1: names `.ci/gone`",
    ];
    expect(stale_paths_in_docs(&tree), &wrong);
}

#[test]
fn sees_diverging_diagrams() {
    let code =
        "//! The lifecycle diagram:\n//!\n//! ```text\n//!  a -> b\n//!\n//!  b -> c\n//! ```\nfn a() {}\n";
    let page = "# Lifecycle
\nLifecycle diagram, as in the code.\n\n```text\n a -> b\n\n b -> c\n```\n";
    let of = |page: &str| diverging_diagrams(&Tree::of(&[(DIAGRAM_CODE, code), (DIAGRAM_PAGE, page)]));
    expect(of(page), &[]);
    expect(of(&page.replace("b -> c", "b -> d")), &["docs/lifecycle.md: diagram line 3"]);
    expect(of(&page.replace(" b -> c\n", "")), &["docs/lifecycle.md: diagram line 3"]);
    expect(of("```text\na\n```"), &["docs/lifecycle.md: no ```text block"]);
    let empty = ["crates/core/src/lifecycle/mod.rs: no ```text", "docs/lifecycle.md: no ```text"];
    expect(diverging_diagrams(&Tree::of(&[])), &empty);
}

#[test]
fn sees_unheld_invariants() {
    assert_eq!(invariants_in_name("i16_one_lease"), [16]);
    assert_eq!(invariants_in_name("crash_i1_i4_whole_or_absent"), [1, 4]);
    assert!(
        ["as_i64_value", "i16", "lease_i16", "crates/i1_a.rs", "i0_x"]
            .iter()
            .all(|n| invariants_in_name(n).is_empty())
    );
    let page = "| invariant | promise | held by |\n|---|---|---|\n\
                | I1 | kept | `i1_kept` |\n| I2 | one | `it.rs` |\n\
                | I3 | later | not yet |\n| I4, I5 | both | `it::i4_i5_gone`, `i1_kept` |\n";
    let tree = Tree::of(&[
        (GUARANTEES, page),
        ("crates/store/tests/it.rs", "fn i1_kept() {}\nasync fn crash_i2_x() {}\nfn as_i64_value() {}"),
        ("crates/testkit/src/law.rs", "pub async fn i7_law(s: &dyn Store) {}"),
        ("crates/store/src/a.rs", "fn from_i32_value() {}"),
    ]);
    let wrong = [
        "docs/guarantees.md:6: claims a test for I4",
        "docs/guarantees.md:6: claims a test for I5",
        "docs/guarantees.md:6: names the test `i4_i5_gone`",
        "crates/store/tests/it.rs:2: docs/guarantees.md does not name `crash_i2_x`",
        "crates/testkit/src/law.rs:1: docs/guarantees.md does not name `i7_law`",
    ];
    expect(unheld_invariants(&tree), &wrong);
    expect(unheld_invariants(&Tree::of(&[])), &["docs/guarantees.md: missing"]);
    expect(unheld_invariants(&Tree::of(&[(GUARANTEES, "Soon.")])), &["docs/guarantees.md: no table row"]);
}

#[test]
fn sees_unfinished_code() {
    let bad = "#[ignore]\nfn a() { todo!() }\n#[ignore = \"slow\"]\nfn b() { unimplemented ! (\"x\") }\n\
               #![allow(dead_code)]\n#[cfg_attr(test, allow(unused))]\n#[cfg_attr(miri, ignore)]\n";
    let good = "// todo!()\n#[allow(\n    dead_code,\n    reason = \"why\"\n)]\n\
                fn todo() {}\n#[doc(alias = \"allow(\")]\n\
                #[serde(rename = \"ignore\")]\nfn allow(x: u8) {}\n";
    let tree = Tree::of(&[("crates/core/src/a.rs", bad), ("crates/core/src/b.rs", good)]);
    let wrong = [
        "crates/core/src/a.rs:1: an ignored",
        "crates/core/src/a.rs:2: `todo!`",
        "crates/core/src/a.rs:3: an ignored",
        "crates/core/src/a.rs:4: `unimplemented!`",
        "crates/core/src/a.rs:5: `allow`",
        "crates/core/src/a.rs:6: `allow`",
        "crates/core/src/a.rs:7: an ignored",
    ];
    expect(unfinished_code(&tree), &wrong);
}

#[test]
fn sees_machine_specific_text() {
    let [work, root, home, _] = MACHINE_PATHS else { panic!("four starts") };
    let bad = format!("cd {work}x\n\"{home}me\"\nfile://{root}x");
    let good = format!("a{work}x ./b{home}y $C{root} http://host{home}page");
    let lock = format!("source = \"{LOCK_SOURCE}\"\nsource = \"git+https://host/x\"\n");
    let tree = Tree::of(&[
        ("docs/bad.md", &bad),
        ("docs/good.md", &good),
        ("Cargo.lock", &lock),
        ("deny.toml", LOCK_SOURCE),
        (".cargo/config.toml", "[source.x]\n"),
    ]);
    let wrong = [
        "docs/bad.md:1:",
        "docs/bad.md:2:",
        "docs/bad.md:3:",
        "Cargo.lock:2:",
        "deny.toml:1:",
        ".cargo/config.toml:1:",
    ];
    expect(machine_specific_text(&tree), &wrong);
}

#[test]
fn sees_unlisted_decisions() {
    let tree = Tree::of(&[
        ("docs/adr/README.md", "[one](0001-one.md)"),
        ("docs/adr/0001-one.md", ""),
        ("docs/adr/0002-two.md", ""),
    ]);
    expect(unlisted_decisions(&tree), &["docs/adr/0002-two.md: not in the index"]);
}

#[test]
fn lists_the_same_files_with_and_without_git() {
    // Without git the walk may find more files (ignored ones), but never fewer.
    let walked: BTreeSet<String> = walked(&root()).into_iter().collect();
    assert!(walked.contains("crates/testkit/tests/tidy.rs"));
    let listed = listed_by_git(&root()).unwrap_or_default();
    let missed: Vec<&String> =
        listed.iter().filter(|f| root().join(f).is_file() && !walked.contains(*f)).collect();
    assert!(missed.is_empty(), "the walk misses {missed:?}");
}
