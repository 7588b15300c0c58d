//! What the front page shows is what runs.

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The example is short, and the front page has it word for word.
#[test]
fn the_minimal_example_is_on_the_front_page() {
    let example = std::fs::read_to_string(root().join("examples/minimal.rs")).unwrap();
    assert!(example.lines().count() < 30, "{} lines", example.lines().count());
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let shown = example.split_once("\n\n").unwrap().1;
    assert!(readme.contains(shown), "README.md shows another examples/minimal.rs");
}

/// And it runs, twice on the same data: one message done and one dead letter each time.
#[test]
fn the_minimal_example_runs() {
    // The test is in target/PROFILE/deps, examples are built beside it.
    let example = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().join("examples/minimal");
    let place = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let run = Command::new(&example).current_dir(place.path()).output().unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    }
    assert!(place.path().join("redrive-data").is_dir());
}
