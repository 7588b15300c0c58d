//! Small versions of every torture on every commit, and deliberate bugs that each of them must catch. The long
//! ones are `scripts/campaign`; `docs/reliability.md` has their counts.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a failed step in a test is a failed test")]

use std::collections::BTreeMap;
use std::process::Command;

/// What a driver said.
struct Said {
    clean: bool,
    text: String,
    numbers: BTreeMap<String, f64>,
}

impl Said {
    fn number(&self, name: &str) -> f64 {
        *self.numbers.get(name).unwrap_or_else(|| panic!("no {name} in:\n{}", self.text))
    }
}

/// Runs a driver with a deliberate bug or with none.
fn torture(fault: &str, words: &[&str]) -> Said {
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
    Said { clean: code == Some(0), text, numbers }
}

#[test]
fn i1_i2_i3_i24_nothing_acknowledged_is_lost_when_the_process_is_killed() {
    let said = torture("", &["kill", "--cycles", "40", "--seed", "1"]);
    assert!(said.clean, "{}", said.text);
    assert!(said.number("cycles") == 40.0 && said.number("enqueues") > 500.0, "{}", said.text);
}

#[test]
fn i1_i4_i7_i8_nothing_acknowledged_is_lost_when_the_power_fails() {
    let said =
        torture("", &["powercut", "--states", "1500", "--seed", "1", "--long", "60", "--nested", "12"]);
    assert!(said.clean, "{}", said.text);
    assert!(said.number("states") >= 1_500.0 && said.number("nested") > 20.0, "{}", said.text);
}

#[test]
fn i6_every_sync_that_fails_ends_the_store_and_loses_nothing() {
    let modes = "sync-eio-once,sync-eio-forever,sync-enospc-once,sync-eio-once-power,sync-eio-forever-power,\
                 truncate-eio-once,truncate-eio-forever";
    let said = torture("", &["faultloop", "--modes", modes]);
    assert!(said.clean, "{}", said.text);
    assert!(said.number("runs") > 150.0, "{}", said.text);
}

#[test]
fn i4_every_write_that_fails_for_ever_loses_nothing() {
    let said = torture("", &["faultloop", "--modes", "write-eio-forever"]);
    assert!(said.clean, "{}", said.text);
    assert!(said.number("runs") > 300.0, "{}", said.text);
}

#[test]
fn i4_i43_writes_that_fail_once_find_no_room_or_are_short_lose_nothing() {
    let modes = "write-eio-once/7,write-enospc-once/7,write-enospc-forever/7,write-short-once/7,write-short-forever/7";
    let said = torture("", &["faultloop", "--modes", modes, "--seed", "3"]);
    assert!(said.clean, "{}", said.text);
    assert!(said.number("runs") > 200.0, "{}", said.text);
}

/// The checkers can fail: each deliberate bug is found.
#[cfg(feature = "faults")]
mod controls {
    use super::torture;

    #[test]
    fn a_reply_before_its_commit_is_found_by_killing() {
        let words = ["kill", "--cycles", "400", "--stop-early", "true"];
        let said = torture("ack-before-commit", &words);
        assert!(!said.clean, "{}", said.text);
        assert!(said.number("lost") + said.number("resurrected") > 0.0, "{}", said.text);
    }

    #[test]
    fn a_missing_sync_is_found_by_cutting_the_power() {
        let said = torture("missing-fsync", &["powercut", "--states", "100", "--long", "0", "--nested", "0"]);
        assert!(!said.clean, "{}", said.text);
        assert!(said.number("lost") > 0.0, "{}", said.text);
    }

    #[test]
    fn a_swallowed_error_is_found_by_failing_syncs() {
        let said = torture("eio-swallowed", &["faultloop", "--modes", "sync-eio-once/3"]);
        assert!(!said.clean, "{}", said.text);
        assert!(said.number("violations") > 0.0, "{}", said.text);
    }

    #[test]
    fn an_audit_row_outside_its_commit_is_found_by_failing_writes_and_by_cutting_the_power() {
        let said = torture("audit-outside-commit", &["faultloop", "--modes", "write-eio-forever/3"]);
        assert!(said.text.contains("I48"), "{}", said.text);
        let said =
            torture("audit-outside-commit", &["powercut", "--states", "150", "--long", "0", "--nested", "0"]);
        assert!(said.text.contains("I48"), "{}", said.text);
    }
}
