//! `redrive top` as a person uses it: the real binary in a real terminal, on a real directory, with other processes
//! beside it.

use crate::support::{Office, has_entry, until};
use crate::terminal::Terminal;
use rustix::process::Signal;
use std::process::Stdio;

fn three_letters() -> Office {
    let office = Office::new();
    for n in 0..3 {
        office.dead_letter("payments", &n.to_string(), "gateway timeout");
    }
    office
}

fn retrying(office: &Office) -> usize {
    office.items(&["dlq", "list", "status:retrying"]).len()
}

#[test]
fn a_person_looks_retries_and_redrives() {
    let office = three_letters();
    let mut top = Terminal::start(&office, &["top", "--act"]);
    let screen = top.shows("Timeout: gateway timeout");
    assert!(screen.contains("ACT") && screen.contains("1 groups, 3 open letters"), "{screen}");
    top.press("\r");
    top.shows("pending");
    top.press("jr");
    top.shows("retry: done");
    assert_eq!(retrying(&office), 1, "another process sees it while top holds the directory");
    top.press("R");
    let screen = top.shows("type 2 and Enter to go on");
    assert!(screen.contains("retry 2 dead letters"), "{screen}");
    top.press("y\r3\r");
    top.press("2\r");
    until("both were sent back", || retrying(&office) == 3);
    top.press("q");
    let (code, _) = top.ended();
    assert_eq!(code, Some(0));
    let acts: Vec<_> = office.items(&["audit", "list"]).into_iter().map(|row| row["act"].clone()).collect();
    assert!(acts.iter().any(|act| act == "retry"), "{acts:?}");
    office.run(&["doctor"]).ok();
}

#[test]
fn it_changes_nothing_unless_it_was_asked_to() {
    let office = three_letters();
    let mut top = Terminal::start(&office, &["top"]);
    top.shows("Timeout: gateway timeout");
    top.press("R");
    top.shows("read-only: start it as `redrive top --act`");
    top.press("\r");
    top.shows("pending");
    top.press("r");
    top.shows("read-only: start it as");
    top.press("\r");
    top.shows("TIMELINE");
    top.press("\u{3}");
    assert_eq!(top.ended().0, Some(0));
    assert_eq!(retrying(&office), 0);
}

#[test]
fn it_goes_on_when_the_process_that_holds_the_directory_is_gone_and_a_signal_ends_it() {
    let office = three_letters();
    let mut holder = office.spawn(&["lease", "payments", "--wait", "10m"], Stdio::null());
    until("another process holds the directory", || has_entry(&office.data(), "socket"));
    let mut top = Terminal::start(&office, &["top", "--every", "100ms"]);
    top.shows("Timeout: gateway timeout");
    holder.kill().unwrap();
    holder.wait().unwrap();
    office.enqueue("payments", "x");
    top.shows("waiting 1");
    top.press("?");
    top.shows("copy the id");
    top.signal(Signal::TERM);
    assert_eq!(top.ended().0, Some(130));
    office.run(&["doctor"]).ok();
}

#[test]
fn it_ends_with_its_terminal_and_gives_up_the_directory() {
    let office = three_letters();
    for keys in ["", "\r", "?"] {
        let mut top = Terminal::start(&office, &["top", "--every", "100ms"]);
        top.shows("Timeout: gateway timeout");
        top.press(keys);
        assert_eq!(top.hang_up(), Some(130), "{keys:?}");
        assert!(!has_entry(&office.data(), "socket"), "nobody holds the directory");
    }
    office.run(&["doctor"]).ok();
}

#[test]
fn every_signal_that_asks_for_the_end_ends_it_and_restores_the_terminal() {
    let office = three_letters();
    for signal in [Signal::HUP, Signal::TERM, Signal::INT] {
        let top = Terminal::start(&office, &["top"]);
        top.shows("Timeout: gateway timeout");
        top.signal(signal);
        assert_eq!(top.ended().0, Some(130), "{signal:?}");
    }
}

/// The editor waits for a line that never comes, as a person would.
#[test]
fn it_can_be_ended_while_an_editor_has_the_terminal() {
    let office = three_letters();
    let mut top =
        Terminal::start_with(&office, &["top", "--act"], &[("EDITOR", "sh -c 'echo editing; read line' --")]);
    top.shows("Timeout: gateway timeout");
    top.press("\r");
    top.shows("pending");
    top.press("\r");
    top.shows("TIMELINE");
    top.press("e");
    top.shows("editing");
    top.signal(Signal::TERM);
    assert_eq!(top.exited(), Some(130));
    office.run(&["doctor"]).ok();
}

#[test]
fn groups_that_fit_the_screen_are_all_on_it() {
    let office = three_letters();
    let top = Terminal::start(&office, &["top", "--every", "100ms"]);
    top.shows("Timeout: gateway timeout");
    for n in 0..4 {
        office.dead_letter("mail", &n.to_string(), "mailbox is full");
    }
    let screen = top.shows("2 groups, 7 open letters");
    assert!(!screen.contains("above"), "{screen}");
    let screen = top.shows("mailbox is full");
    assert!(screen.contains("gateway timeout"), "{screen}");
    top.signal(Signal::TERM);
    assert_eq!(top.ended().0, Some(130));
}

/// Every command that can read from a terminal, while it reads.
#[test]
fn whatever_reads_a_terminal_ends_when_it_is_told_to_or_when_the_terminal_is_gone() {
    let office = three_letters();
    let id = office.dead_letter("q", "{}", "x");
    office.enqueue("work", "{}");
    let token = crate::support::text(&office.lease("work")["token"]);
    for args in [
        vec!["signature"],
        vec!["classify", "-", "--keep-going"],
        vec!["enqueue", "work", "--ndjson", "--keep-going"],
        vec!["enqueue", "work", "--payload-file", "-"],
        vec!["dlq", "edit", &id, "--payload", "-", "--unchecked"],
        vec!["dlq", "patch", &id, "--patch", "-"],
        vec!["dlq", "import", "-", "--keep-going"],
        vec!["ack", &token, "--reply", "-"],
        vec!["fail", &token, "--error-type", "T", "--message", "m", "--stack", "-"],
    ] {
        let mut reading = Terminal::start(&office, &args);
        reading.types("{nonsense");
        reading.signal(Signal::TERM);
        assert_eq!(reading.exited(), Some(130), "{args:?}");
        let mut reading = Terminal::start(&office, &args);
        reading.types("{nonsense");
        assert!(reading.hang_up().is_some_and(|code| code != 0), "{args:?}");
    }
    for end in ["hang up", "signal"] {
        let asking = Terminal::start(&office, &["dlq", "retry", "--all"]);
        asking.shows("[y/N]");
        let code = match end {
            "signal" => {
                asking.signal(Signal::TERM);
                asking.exited()
            }
            _ => asking.hang_up(),
        };
        assert!(matches!(code, Some(5 | 130)), "{end}: {code:?}");
    }
    assert_eq!(retrying(&office), 0);
    office.run(&["doctor"]).ok();
}

#[test]
fn nothing_that_was_handed_in_reaches_the_terminal_as_it_is() {
    let office = Office::new();
    office.dead_letter("q", "\u{1b}]0;pwned\u{7}", "\u{1b}]0;pwned\u{7}\u{1b}[31mred\u{9b}5m");
    let mut top = Terminal::start(&office, &["top", "queue:elsewhere"]);
    top.shows("no letter matches");
    top.press("/");
    top.shows("such as queue:payments");
    top.press("\u{15}\r");
    top.shows("\\u{1b}]0;pwned");
    top.press("\r");
    top.shows("TIMELINE");
    top.press("q");
    let (code, raw) = top.ended();
    assert_eq!(code, Some(0));
    assert!(!raw.contains("\u{1b}]0;pwned") && !raw.contains("\u{1b}[31mred") && !raw.contains('\u{9b}'));
}

#[test]
fn without_a_terminal_or_with_nonsense_it_says_so() {
    let office = Office::new();
    office.enqueue("q", "x");
    office.run(&["top"]).code(5).says("needs a terminal");
    office.run(&["top", "quue:x"]).code(2).says("filter");
    office.run(&["top", "--every", "1ms"]).code(2).says("--every");
}
