//! Short runs of every torture driver, and deliberate bugs that each driver must catch. `scripts/campaign`
//! makes the long runs; `docs/reliability.md` has their results.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "a failed step in a test is a failed test"
)]

use std::collections::BTreeMap;
use std::process::Command;

/// The output of a driver.
struct DriverOutput {
    clean: bool,
    text: String,
    numbers: BTreeMap<String, f64>,
}

impl DriverOutput {
    fn number(&self, name: &str) -> f64 {
        *self.numbers.get(name).unwrap_or_else(|| panic!("no {name} in:\n{}", self.text))
    }
}

/// Runs a driver, with a deliberate bug if `fault` names one.
fn torture(fault: &str, words: &[&str]) -> DriverOutput {
    let home = tempfile::Builder::new().prefix("torture").tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_redrive-torture"));
    command.args(words).env("TMPDIR", home.path()).env("REDRIVE_FAULT", fault);
    let output = command.output().unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    let code = output.status.code();
    assert!(matches!(code, Some(0 | 1)), "the driver itself failed ({code:?}):\n{text}");
    let pairs = text.split_whitespace().filter_map(|word| word.split_once('='));
    let numbers = pairs.filter_map(|(name, n)| Some((name.to_owned(), n.parse().ok()?))).collect();
    DriverOutput { clean: code == Some(0), text, numbers }
}

#[test]
fn i1_i2_i3_i24_nothing_acknowledged_is_lost_when_the_process_is_killed() {
    let output = torture("", &["kill", "--cycles", "40", "--seed", "1"]);
    assert!(output.clean, "{}", output.text);
    assert!(output.number("cycles") == 40.0 && output.number("enqueues") > 500.0, "{}", output.text);
}

#[test]
fn i1_i4_i7_i8_nothing_acknowledged_is_lost_when_the_power_fails() {
    let output =
        torture("", &["powercut", "--states", "1500", "--seed", "1", "--long", "60", "--nested", "12"]);
    assert!(output.clean, "{}", output.text);
    assert!(output.number("states") >= 1_500.0 && output.number("nested") > 20.0, "{}", output.text);
}

#[test]
fn i6_every_sync_that_fails_ends_the_store_and_loses_nothing() {
    let modes = "sync-eio-once,sync-eio-forever,sync-enospc-once,sync-eio-once-power,sync-eio-forever-power,\
                 truncate-eio-once,truncate-eio-forever";
    let output = torture("", &["faultloop", "--modes", modes]);
    assert!(output.clean, "{}", output.text);
    assert!(output.number("runs") > 150.0, "{}", output.text);
}

#[test]
fn i4_every_write_that_fails_for_ever_loses_nothing() {
    let output = torture("", &["faultloop", "--modes", "write-eio-forever"]);
    assert!(output.clean, "{}", output.text);
    assert!(output.number("runs") > 300.0, "{}", output.text);
}

#[test]
fn i4_i43_writes_that_fail_once_find_no_room_or_are_short_lose_nothing() {
    let modes = "write-eio-once/7,write-enospc-once/7,write-enospc-forever/7,write-short-once/7,write-short-forever/7";
    let output = torture("", &["faultloop", "--modes", modes, "--seed", "3"]);
    assert!(output.clean, "{}", output.text);
    assert!(output.number("runs") > 200.0, "{}", output.text);
}

/// Checks the drivers themselves: each deliberate bug must be found.
#[cfg(feature = "faults")]
mod controls {
    use super::torture;

    #[test]
    fn a_reply_before_its_commit_is_found_by_killing() {
        let words = ["kill", "--cycles", "400", "--stop-early", "true"];
        let output = torture("ack-before-commit", &words);
        assert!(!output.clean, "{}", output.text);
        assert!(output.number("lost") + output.number("resurrected") > 0.0, "{}", output.text);
    }

    #[test]
    fn a_missing_sync_is_found_by_cutting_the_power() {
        let output =
            torture("missing-fsync", &["powercut", "--states", "100", "--long", "0", "--nested", "0"]);
        assert!(!output.clean, "{}", output.text);
        assert!(output.number("lost") > 0.0, "{}", output.text);
    }

    #[test]
    fn a_swallowed_error_is_found_by_failing_syncs() {
        let output = torture("eio-swallowed", &["faultloop", "--modes", "sync-eio-once/3"]);
        assert!(!output.clean, "{}", output.text);
        assert!(output.number("violations") > 0.0, "{}", output.text);
    }

    #[test]
    fn an_audit_row_outside_its_commit_is_found_by_failing_writes_and_by_cutting_the_power() {
        let output = torture("audit-outside-commit", &["faultloop", "--modes", "write-eio-forever/3"]);
        assert!(output.text.contains("I48"), "{}", output.text);
        let output =
            torture("audit-outside-commit", &["powercut", "--states", "150", "--long", "0", "--nested", "0"]);
        assert!(output.text.contains("I48"), "{}", output.text);
    }
}

/// The figures of the pages of the dashboard over so many letters, by page.
fn pages(letters: u32) -> BTreeMap<String, serde_json::Value> {
    let home = tempfile::Builder::new().prefix("pages").tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_redrive-bench"));
    command.args(["--suite", "pages", "--groups", "200", "--runs", "1", "--json"]);
    command.args(["--letters", &letters.to_string()]).arg("--dir").arg(home.path());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let rows: Vec<serde_json::Value> = serde_json::from_slice(&output.stdout).unwrap();
    rows.into_iter().map(|row| (row["page"].as_str().unwrap().to_owned(), row)).collect()
}

#[test]
fn pages_stay_small_and_read_no_more_because_there_are_more_letters() {
    let (some, many) = (pages(10_000), pages(20_000));
    assert_eq!(many.len(), some.len());
    for (page, row) in many {
        let number = |row: &serde_json::Value, name: &str| row[name].as_u64().unwrap();
        assert!(number(&row, "bytes") < 100_000, "{page}: {row}");
        assert!(number(&row, "records") <= 1_500, "{page}: {row}");
        assert_eq!(number(&row, "records"), number(&some[&page], "records"), "{page}: {row}");
    }
}
