//! The repository rules as tests. Each rule is a pure function from the tree of files to a list of
//! complaints, so that `mod samples` can show every rule failing on a bad tree; the tests in `mod rules` run
//! the rules on this repository. A complaint says where, what and how to fix it. This file must not depend on
//! what any crate does.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a failed step in a test is a failed test; clippy.toml exempts only the test functions"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "tidy/samples.rs"]
mod samples;
#[path = "tidy/source.rs"]
mod source;

use source::{
    Source, attributes, braces_expanded, in_crate_folder, is_name_byte, item_end, paths, word_offsets,
};

/// Which workspace crates each crate may depend on (normal and build dependencies), as drawn in
/// ARCHITECTURE.md.
const EDGES: &[(&str, &[&str])] = &[
    ("redrive-core", &[]),
    ("redrive-store", &["redrive-core"]),
    ("redrive-server", &["redrive-core"]),
    ("redrive", &["redrive-core", "redrive-store"]),
    ("redrive-cli", &["redrive", "redrive-server"]),
    ("redrive-testkit", &["redrive-core"]),
    ("redrive-bench", &["redrive-server", "redrive-store", "redrive", "redrive-testkit"]),
];

/// The crate that every other crate may use in its tests.
const TESTKIT: &str = "redrive-testkit";

/// The maximum number of lines of non-test code in one file.
const MAX_LINES: usize = 600;

/// How far a listed file may fall below its allowance before the list must be updated.
const OVERSIZE_SLACK: usize = 20;

/// Files that may be longer than `MAX_LINES`, with their maximum length. This list only shrinks.
const OVERSIZE: &[(&str, usize)] = &[];

/// Paths that the core must not use, with what to do instead.
const IMPURE_PATHS: &[(&str, &str)] = &[
    ("std::time::SystemTime", "take `now` as a parameter"),
    ("std::time::Instant", "take `now` as a parameter"),
    ("std::fs", "files belong to the store"),
    ("std::net", "sockets belong to the store and the server; for address types use `core::net`"),
    ("std::thread", "threads belong to the caller"),
    ("std::env", "take the value as a parameter"),
    ("std::process", "processes belong to the caller"),
    ("tokio", "the runtime belongs to the caller"),
    ("getrandom", "take the random number as a parameter"),
    ("rand", "take the random number as a parameter"),
];

/// Names that reveal an impure path even when its module was imported under another name.
const IMPURE_NAMES: &[(&str, &str)] = &[
    ("SystemTime", "take `now` as a parameter"),
    ("Instant", "take `now` as a parameter"),
    ("now_v7", "take the id as a parameter"),
    ("new_v4", "take the id as a parameter"),
];

/// Calls that wait for time to pass.
const SLEEPS: &[&str] = &["sleep", "sleep_until", "sleep_ms"];

/// Calls that stop waiting after a time. Using one to wait for nothing is a sleep too.
const TIMED_WAITS: &[&str] = &[
    "timeout",
    "timeout_at",
    "recv_timeout",
    "recv_deadline",
    "wait_timeout",
    "wait_timeout_while",
    "park_timeout",
    "lasting",
];

/// The only timeout that a test may use: so long that only a hang reaches it.
const GUARD: &str = "PATIENCE";
const GUARD_SECS_MIN: u64 = 300;

/// Documents whose back-ticked paths are checked, besides everything under docs/.
const DOCUMENTS: &[&str] = &["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"];

/// The prefixes of back-ticked words that are checked as paths of this repository.
const PATH_PREFIXES: &[&str] = &["crates/", "docs/", "scripts/", ".ci/", "fuzz/", "examples/", "deploy/"];

/// The two files that contain the same diagram, and the words on the line above it.
const DIAGRAM_CODE: &str = "crates/core/src/lifecycle/mod.rs";
const DIAGRAM_PAGE: &str = "docs/lifecycle.md";
const DIAGRAM_MARKER: &str = "lifecycle diagram";

/// The page that lists the tests of each invariant, and the highest invariant number.
const GUARANTEES: &str = "docs/guarantees.md";
const LAST_INVARIANT: u32 = 50;

/// Prefixes of absolute paths that exist on one machine only. Written in two halves so that this file passes.
const MACHINE_PATHS: &[&str] =
    &[concat!("/", "work/"), concat!("/", "root/"), concat!("/", "home/"), concat!("/", "Users/")];

/// Names of package registries and mirrors; which registry to use is up to the builder.
const REGISTRY_NAMES: &[&str] = &[
    concat!("crates.io", "-index"),
    concat!("index.", "crates"),
    concat!("static.", "crates"),
    concat!("registry", "+http"),
    concat!("sparse", "+http"),
    concat!("registry.", "npmjs"),
    concat!("pypi", ".org"),
    concat!("artifact", "ory"),
];

/// The only source that a locked package may have.
const LOCK_SOURCE: &str = concat!("registry", "+https://github.com/rust-lang/", "crates.io", "-index");

/// Every file of the repository by its path; `None` for a file that is not text.
struct Tree {
    files: BTreeMap<String, Option<String>>,
}

impl Tree {
    /// Reads the repository that this test was built from.
    fn load() -> Tree {
        let root = root();
        let files = listed_by_git(&root)
            .unwrap_or_else(|| walked(&root))
            .into_iter()
            .filter(|path| root.join(path).is_file())
            .map(|path| {
                let bytes =
                    std::fs::read(root.join(&path)).unwrap_or_else(|e| panic!("failed to read {path}: {e}"));
                let text = if bytes.contains(&0) { None } else { String::from_utf8(bytes).ok() };
                (path, text)
            })
            .collect();
        Tree { files }
    }

    /// A made-up tree for the samples.
    fn of(files: &[(&str, &str)]) -> Tree {
        Tree {
            files: files.iter().map(|(path, text)| ((*path).to_owned(), Some((*text).to_owned()))).collect(),
        }
    }

    /// Whether a file or a folder of that name exists.
    fn has(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        let folder = format!("{path}/");
        self.files.contains_key(path) || self.files.keys().any(|file| file.starts_with(&folder))
    }

    fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path)?.as_deref()
    }

    fn texts(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().filter_map(|(path, text)| Some((path.as_str(), text.as_deref()?)))
    }

    /// All Rust files, with their test code marked.
    fn sources(&self) -> Vec<Source<'_>> {
        let mut sources: Vec<Source<'_>> = self
            .texts()
            .filter(|(path, _)| has_extension(path, "rs"))
            .map(|(path, text)| Source::new(path, text))
            .collect();
        // A module declared under `#[cfg(test)]` may live in its own file.
        let elsewhere: BTreeSet<String> = sources.iter().flat_map(Source::test_modules_elsewhere).collect();
        for source in &mut sources {
            let inside = |module: &String| {
                source
                    .path
                    .strip_prefix(module.as_str())
                    .is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
            };
            if elsewhere.iter().any(inside) {
                source.test_lines.fill(true);
            }
        }
        sources
    }
}

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("the testkit lies two folders below the root").to_owned()
}

/// The files that git tracks or would track; `None` without git, outside a checkout, or when git fails.
fn listed_by_git(root: &Path) -> Option<Vec<String>> {
    let listing = Command::new("git")
        .arg("-C")
        .arg(root)
        .args(["ls-files", "-co", "--exclude-standard", "-z"])
        .output()
        .ok()?;
    let paths = String::from_utf8(listing.stdout).ok()?;
    let paths: Vec<String> = paths.split('\0').filter(|path| !path.is_empty()).map(str::to_owned).collect();
    (listing.status.success() && !paths.is_empty()).then_some(paths)
}

/// The files found by walking the folders, for a source archive without git.
fn walked(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries =
            std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("failed to list {}: {e}", folder.display()));
        for entry in entries {
            let path = entry.expect("a readable folder entry").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let is_linked_folder = path.is_symlink() && path.is_dir();
            if is_linked_folder || [".git", "target", "redrive-data"].contains(&name.as_str()) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(inside) = path.strip_prefix(root) {
                found.push(inside.to_string_lossy().into_owned());
            }
        }
    }
    found
}

fn has_extension(path: &str, wanted: &str) -> bool {
    Path::new(path).extension().is_some_and(|extension| extension == wanted)
}

/// A dependency of one workspace crate on another.
struct Edge {
    from: String,
    to: String,
    in_tests_only: bool,
}

fn workspace_edges() -> (Vec<String>, Vec<Edge>) {
    let metadata = cargo_metadata::MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .no_deps()
        .exec()
        .expect("cargo metadata reads the workspace");
    let members: Vec<String> = metadata.packages.iter().map(|package| package.name.to_string()).collect();
    let mut edges = Vec::new();
    for package in &metadata.packages {
        for dependency in package.dependencies.iter().filter(|dependency| members.contains(&dependency.name))
        {
            edges.push(Edge {
                from: package.name.to_string(),
                to: dependency.name.clone(),
                in_tests_only: dependency.kind == cargo_metadata::DependencyKind::Development,
            });
        }
    }
    (members, edges)
}

fn wrong_edges(members: &[String], edges: &[Edge]) -> Vec<String> {
    let allowed = |from: &str| EDGES.iter().find(|(name, _)| *name == from).map(|(_, to)| *to);
    let strangers = members.iter().filter(|member| allowed(member).is_none()).map(|member| {
        format!(
            "{member}: not a crate of ARCHITECTURE.md; remove it, or draw it there and in EDGES with an ADR"
        )
    });
    let wrong = edges.iter().filter_map(|Edge { from, to, in_tests_only }| {
        let drawn = allowed(from).is_some_and(|targets| targets.contains(&to.as_str()));
        let fine = drawn || (*in_tests_only && to == TESTKIT);
        (!fine).then(|| {
            let kind = if *in_tests_only { "dev-dependency" } else { "dependency" };
            format!("{from} -> {to}: this {kind} is not in ARCHITECTURE.md's picture; remove it")
        })
    });
    strangers.chain(wrong).collect()
}

fn impure_core(tree: &Tree) -> Vec<String> {
    let mut complaints = BTreeSet::new();
    for source in tree.sources().iter().filter(|source| source.path.starts_with("crates/core/src/")) {
        let mut complain = |offset: usize, what: &str, instead: &str| {
            if !source.is_test_at(offset) {
                complaints.insert(format!("{}: `{what}` in the pure core; {instead}", source.at(offset)));
            }
        };
        for (offset, path) in paths(&source.code) {
            for (impure, instead) in IMPURE_PATHS {
                if path
                    .strip_prefix(impure)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with([':', '=']))
                {
                    complain(offset, impure, instead);
                }
            }
        }
        for (impure, instead) in IMPURE_NAMES {
            word_offsets(&source.code, impure).for_each(|offset| complain(offset, impure, instead));
        }
    }
    complaints.into_iter().collect()
}

fn missing_module_docs(tree: &Tree) -> Vec<String> {
    let sources = tree.sources();
    let bare = sources.iter().filter(|source| {
        in_crate_folder(source.path, &["src", "tests"])
            && !source.text.lines().take(3).any(|line| line.starts_with("//!"))
    });
    bare.map(|source| {
        format!("{}:1: open the file with `//!`: what it is for, and what it must not do", source.path)
    })
    .collect()
}

fn sleeps_in_tests(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for source in tree.sources() {
        for word in SLEEPS {
            complaints.extend(test_calls(&source, word).map(|at| {
                format!(
                    "{}: `{word}(` in a test; wait for a signal, or move an injected clock",
                    source.at(at)
                )
            }));
        }
        for word in TIMED_WAITS {
            let on_the_machines_clock = test_calls(&source, word).filter(|at| {
                !is_guard(arguments(&source.code, at + word.len()))
                    && !is_on_a_paused_clock(&source.code, *at)
            });
            complaints.extend(on_the_machines_clock.map(|at| {
                format!(
                    "{}: `{word}(` in a test ends with the machine's time; wait for a signal, move an injected clock, \
                     or guard against a hang with `{GUARD}`",
                    source.at(at)
                )
            }));
        }
        complaints.extend(races_in_tests(&source));
        complaints.extend(short_guards(&source));
    }
    complaints
}

/// Calls of this function in test code. `timeout` only counts as a free function; on a builder it is a
/// setting.
fn test_calls<'s>(source: &'s Source<'_>, word: &'s str) -> impl Iterator<Item = usize> + 's {
    word_offsets(&source.code, word).filter(move |at| {
        let (before, after) = (source.code[..*at].trim_end(), source.code[at + word.len()..].trim_start());
        let is_setting = word.starts_with("timeout") && before.ends_with('.');
        source.is_test_at(*at) && after.starts_with('(') && !before.ends_with("fn") && !is_setting
    })
}

/// The text between the parentheses that open at or after an offset.
fn arguments(code: &str, from: usize) -> &str {
    let mut depth = 0;
    for (at, byte) in code.bytes().enumerate().skip(from) {
        match byte {
            b'(' => depth += 1,
            b')' if depth == 1 => return &code[from..at],
            b')' => depth -= 1,
            _ => {}
        }
    }
    &code[from..]
}

fn is_guard(code: &str) -> bool {
    word_offsets(code, GUARD).next().is_some()
}

/// Whether the function around an offset runs on a paused clock, which only the runtime or the test moves.
fn is_on_a_paused_clock(code: &str, at: usize) -> bool {
    let Some(start) = word_offsets(code, "fn").take_while(|start| *start < at).last() else { return false };
    let head = code[..start].rfind([';', '{', '}']).map_or(0, |end| end + 1);
    let function = &code[head..item_end(code, start).max(at)];
    function.contains("start_paused = true") || function.contains("time::advance(")
}

/// Comparisons that fail on a slow machine: `elapsed() < …` with anything but the guard.
fn races_in_tests(source: &Source<'_>) -> Vec<String> {
    let code = &source.code;
    let races = word_offsets(code, "elapsed").filter(|at| {
        let rest = code[at + "elapsed".len()..].trim_start();
        let compared = rest.strip_prefix("()").and_then(|rest| rest.trim_start().strip_prefix('<'));
        let limit = compared.map(|rest| rest.split([',', ';', '{', '}', '&', '|']).next().unwrap_or(rest));
        source.is_test_at(*at)
            && limit.is_some_and(|limit| !is_guard(limit))
            && !is_on_a_paused_clock(code, *at)
    });
    let complain = |at| {
        format!(
            "{}: a slow machine fails this comparison with `elapsed()`; wait for a signal, or move an injected clock",
            source.at(at)
        )
    };
    races.map(complain).collect()
}

/// Guards that a slow machine could reach.
fn short_guards(source: &Source<'_>) -> Vec<String> {
    let code = &source.code;
    let short = word_offsets(code, GUARD).filter(|at| {
        let value = code[*at..].split(';').next().and_then(|line| line.split_once("from_secs("));
        let seconds =
            value.and_then(|(_, rest)| rest.split(')').next()?.replace('_', "").parse::<u64>().ok());
        let is_defined = code[..*at].trim_end().ends_with("const");
        is_defined && source.is_test_at(*at) && seconds.is_none_or(|seconds| seconds < GUARD_SECS_MIN)
    });
    short
        .map(|at| {
            format!("{}: `{GUARD}` is only for hangs; make it {GUARD_SECS_MIN} s or more", source.at(at))
        })
        .collect()
}

fn oversized_files(tree: &Tree, exceptions: &[(&str, usize)]) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut seen = BTreeSet::new();
    for source in tree.sources() {
        let lines = source.test_lines.iter().filter(|is_test| !**is_test).count();
        let path = source.path;
        let allowed = exceptions.iter().find(|(listed, _)| *listed == path).map(|(_, allowed)| *allowed);
        seen.insert(path);
        match allowed {
            None if lines > MAX_LINES => complaints.push(format!(
                "{path}: {lines} lines before its tests, the limit is {MAX_LINES}; it is two ideas, split it"
            )),
            Some(_) if lines <= MAX_LINES => {
                complaints.push(format!("{path}: {lines} lines is within the limit; shrink the list"));
            }
            Some(allowed) if lines > allowed => complaints.push(format!(
                "{path}: grew to {lines} lines, {allowed} are allowed; split it, the list only shrinks"
            )),
            Some(allowed) if allowed - lines > OVERSIZE_SLACK => {
                complaints.push(format!("{path}: down to {lines} lines, not {allowed}; shrink the list"))
            }
            _ => {}
        }
    }
    let gone = exceptions.iter().filter(|(path, _)| !seen.contains(path));
    complaints.extend(gone.map(|(path, _)| format!("{path}: no such file; shrink the list")));
    complaints
}

fn stale_paths_in_docs(tree: &Tree) -> Vec<String> {
    let absent = DOCUMENTS.iter().filter(|path| !tree.has(path));
    let mut complaints: Vec<String> = absent.map(|path| format!("{path}: missing; write it")).collect();
    let documents = tree.texts().filter(|(path, _)| {
        DOCUMENTS.contains(path) || (path.starts_with("docs/") && has_extension(path, "md"))
    });
    for (document, text) in documents {
        for (line, code) in inline_code(text) {
            for path in code.split_whitespace().flat_map(repository_paths) {
                if !tree.has(&path) {
                    complaints.push(format!(
                        "{document}:{line}: names `{path}`, which does not exist; correct the page"
                    ));
                }
            }
        }
    }
    complaints
}

/// The back-ticked pieces of a page with their lines, outside fenced blocks.
fn inline_code(page: &str) -> Vec<(usize, &str)> {
    let mut pieces = Vec::new();
    let mut fenced = false;
    for (index, line) in page.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            pieces.extend(line.split('`').skip(1).step_by(2).map(|piece| (index + 1, piece)));
        }
    }
    pieces
}

/// The paths that a back-ticked word names: none unless it looks like a path, several if it has braces.
fn repository_paths(word: &str) -> Vec<String> {
    let word = word.trim_start_matches("./").trim_end_matches([',', '.', ';', ')']);
    let is_pattern = word.contains(['*', '<', '$', '…']);
    if is_pattern || !PATH_PREFIXES.iter().any(|prefix| word.starts_with(prefix)) {
        return Vec::new();
    }
    let file = word.split('#').next().unwrap_or(word);
    let file = file.split(':').next().unwrap_or(file);
    braces_expanded(file)
}

fn diverging_diagrams(tree: &Tree) -> Vec<String> {
    let docs_of_code = |code: &str| -> String {
        let docs = code.lines().filter_map(|line| line.trim_start().strip_prefix("//!"));
        docs.map(|line| format!("{}\n", line.strip_prefix(' ').unwrap_or(line))).collect()
    };
    let drawn = |path: &str, page: Option<String>| {
        page.as_deref().and_then(diagram).ok_or_else(|| {
            format!("{path}: no ```text block after a line with `{DIAGRAM_MARKER}`; draw it there")
        })
    };
    let code = drawn(DIAGRAM_CODE, tree.text(DIAGRAM_CODE).map(docs_of_code));
    let page = drawn(DIAGRAM_PAGE, tree.text(DIAGRAM_PAGE).map(str::to_owned));
    let (code, page) = match (code, page) {
        (Ok(code), Ok(page)) => (code, page),
        (code, page) => return [code.err(), page.err()].into_iter().flatten().collect(),
    };
    let lines = code.len().max(page.len());
    let differs = (0..lines).find(|i| code.get(*i) != page.get(*i));
    differs
        .map(|i| {
            let of = |lines: &[String]| lines.get(i).cloned().unwrap_or_else(|| "(nothing)".to_owned());
            format!(
                "{DIAGRAM_PAGE}: diagram line {} differs from {DIAGRAM_CODE}, the law; copy it over\n  \
                 code: {}\n  page: {}",
                i + 1,
                of(&code),
                of(&page)
            )
        })
        .into_iter()
        .collect()
}

/// The lines of the first ```text block after the marker; `None` if there is none or it is empty.
fn diagram(page: &str) -> Option<Vec<String>> {
    let mut lines = page.lines();
    lines.find(|line| line.to_lowercase().contains(DIAGRAM_MARKER))?;
    lines.find(|line| line.trim() == "```text")?;
    let mut block = Vec::new();
    for line in lines {
        if line.trim() == "```" {
            return (!block.is_empty()).then_some(block);
        }
        block.push(line.trim_end().to_owned());
    }
    None
}

fn unheld_invariants(tree: &Tree) -> Vec<String> {
    let Some(page) = tree.text(GUARANTEES) else {
        return vec![format!("{GUARANTEES}: missing; write which test holds which invariant")];
    };
    let tests = invariant_tests(tree);
    let held: BTreeSet<u32> = tests.keys().flat_map(|name| invariants_in_name(name)).collect();
    let mut complaints = Vec::new();
    let mut rows = 0;
    for (index, line) in page.lines().enumerate().filter(|(_, line)| line.starts_with('|')) {
        let cells: Vec<&str> = line.trim_matches('|').split('|').collect();
        let (Some(first), Some(third)) = (cells.first(), cells.get(2)) else { continue };
        let claimed = invariants_in_text(first);
        rows += claimed.len();
        if inline_code(third).is_empty() {
            continue;
        }
        let at = format!("{GUARANTEES}:{}", index + 1);
        complaints.extend(claimed.iter().filter(|number| !held.contains(number)).map(|number| {
            format!("{at}: claims a test for I{number}; write `fn i{number}_…`, or empty the third column")
        }));
        let named = inline_code(third).into_iter().filter_map(|(_, code)| code.rsplit("::").next());
        let unknown = named.filter(|name| !invariants_in_name(name).is_empty() && !tests.contains_key(*name));
        complaints.extend(
            unknown.map(|name| format!("{at}: names the test `{name}`, which does not exist; correct it")),
        );
    }
    if rows == 0 {
        complaints.push(format!(
            "{GUARANTEES}: no table row starts with an invariant (`| I1 | … | … |`); add them"
        ));
    }
    let unnamed = tests.iter().filter(|(name, _)| word_offsets(page, name).next().is_none());
    complaints.extend(
        unnamed.map(|(name, at)| format!("{at}: {GUARANTEES} does not name `{name}`; add it to its row")),
    );
    complaints
}

/// Test functions and laws of the testkit that are named after an invariant, with their locations.
fn invariant_tests(tree: &Tree) -> BTreeMap<String, String> {
    let mut tests = BTreeMap::new();
    for source in tree.sources() {
        for at in word_offsets(&source.code, "fn") {
            let rest = source.code[at + 2..].trim_start();
            let name: String = rest.chars().take_while(|c| *c == '_' || c.is_ascii_alphanumeric()).collect();
            let is_test = source.is_test_at(at) || source.path.starts_with("crates/testkit/src/");
            if is_test && !invariants_in_name(&name).is_empty() {
                tests.insert(name, source.at(at));
            }
        }
    }
    tests
}

/// The invariants in a function's name: `i7_…` or `…_i7_…`. `as_i64_value` has none: there is no I64.
fn invariants_in_name(name: &str) -> Vec<u32> {
    let is_name = !name.is_empty() && name.bytes().all(is_name_byte);
    let mut parts: Vec<&str> = if is_name { name.split('_').collect() } else { Vec::new() };
    parts.pop();
    let numbers = parts.into_iter().filter_map(|part| part.strip_prefix('i')?.parse().ok());
    numbers.filter(|number| (1..=LAST_INVARIANT).contains(number)).collect()
}

fn invariants_in_text(text: &str) -> Vec<u32> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric());
    words.filter_map(|word| word.strip_prefix('I')?.parse().ok()).collect()
}

fn unfinished_code(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for source in tree.sources() {
        for attribute in attributes(&source.code) {
            let has = |word: &str| word_offsets(&attribute.body, word).next().is_some();
            let conditional = attribute.body.starts_with("cfg_attr(");
            let names = |word: &str| has(word) && (conditional || attribute.body.starts_with(word));
            if names("ignore") {
                complaints.push(format!(
                    "{}: an ignored test; make it run, or delete it",
                    source.at(attribute.start)
                ));
            }
            if names("allow") && !attribute.body.contains("reason=") {
                complaints.push(format!(
                    "{}: `allow` without a reason; fix the cause, or add `reason = \"…\"`",
                    source.at(attribute.start)
                ));
            }
        }
        for word in ["todo", "unimplemented"] {
            let calls = word_offsets(&source.code, word)
                .filter(|at| source.code[at + word.len()..].trim_start().starts_with('!'));
            complaints
                .extend(calls.map(|at| format!("{}: `{word}!`; finish it, or leave it out", source.at(at))));
        }
    }
    complaints
}

fn machine_specific_text(tree: &Tree) -> Vec<String> {
    let mut complaints = Vec::new();
    for (path, text) in tree.texts() {
        let lines = || text.lines().enumerate().map(|(index, line)| (format!("{path}:{}", index + 1), line));
        for (at, line) in lines() {
            if let Some(found) = MACHINE_PATHS.iter().find(|start| names_absolute(line, start)) {
                complaints.push(format!("{at}: `{found}…` is one machine's; use a relative path"));
            }
        }
        if path == "Cargo.lock" {
            let locked = lines()
                .filter_map(|(at, line)| Some((at, line.strip_prefix("source = ")?.trim_matches('"'))));
            let foreign = locked.filter(|(_, source)| *source != LOCK_SOURCE);
            complaints.extend(
                foreign.map(|(at, _)| format!("{at}: a package from elsewhere; depend on its release")),
            );
            continue;
        }
        for (at, line) in lines() {
            if let Some(found) = REGISTRY_NAMES.iter().find(|name| line.contains(*name)) {
                complaints.push(format!(
                    "{at}: names a registry (`{found}`); which one to use is the builder's choice"
                ));
            }
            let sets_source = line.starts_with("[source") || line.starts_with("[registr");
            if path.starts_with(".cargo/") && sets_source {
                complaints
                    .push(format!("{at}: sets a registry for everybody; keep it in your own cargo home"));
            }
        }
    }
    complaints
}

/// Whether `start` begins an absolute path in this line, instead of continuing a relative path or an address.
fn names_absolute(line: &str, start: &str) -> bool {
    let continues = |c: char| c.is_alphanumeric() || ['_', '-', '.', '~', '}', ')', '*', '>'].contains(&c);
    line.match_indices(start).any(|(at, _)| !line[..at].chars().next_back().is_some_and(continues))
}

fn unlisted_decisions(tree: &Tree) -> Vec<String> {
    let index = tree.text("docs/adr/README.md").unwrap_or_default();
    let records = tree
        .texts()
        .filter_map(|(path, _)| path.strip_prefix("docs/adr/"))
        .filter(|name| *name != "README.md");
    let unlisted = records.filter(|name| !index.contains(&format!("({name})")));
    unlisted.map(|name| format!("docs/adr/{name}: not in the index; add it to docs/adr/README.md")).collect()
}

/// The rules applied to this repository.
mod rules {
    use super::*;

    fn hold(complaints: &[String]) {
        assert!(complaints.is_empty(), "\n{}\n", complaints.join("\n"));
    }

    #[test]
    fn dependencies_match_the_architecture() {
        let (members, edges) = workspace_edges();
        hold(&wrong_edges(&members, &edges));
    }

    #[test]
    fn core_is_pure() {
        hold(&impure_core(&Tree::load()));
    }

    #[test]
    fn every_file_says_what_it_is_for() {
        hold(&missing_module_docs(&Tree::load()));
    }

    #[test]
    fn tests_do_not_sleep() {
        hold(&sleeps_in_tests(&Tree::load()));
    }

    #[test]
    fn files_stay_readable() {
        hold(&oversized_files(&Tree::load(), OVERSIZE));
    }

    #[test]
    fn paths_in_docs_exist() {
        hold(&stale_paths_in_docs(&Tree::load()));
    }

    #[test]
    fn diagram_in_docs_is_the_diagram_in_code() {
        hold(&diverging_diagrams(&Tree::load()));
    }

    #[test]
    fn guarantees_name_the_tests_that_hold_them() {
        hold(&unheld_invariants(&Tree::load()));
    }

    #[test]
    fn nothing_is_left_unfinished() {
        hold(&unfinished_code(&Tree::load()));
    }

    #[test]
    fn nothing_depends_on_one_machine() {
        hold(&machine_specific_text(&Tree::load()));
    }

    #[test]
    fn decisions_are_indexed() {
        hold(&unlisted_decisions(&Tree::load()));
    }
}
