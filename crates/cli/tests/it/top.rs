//! `redrive top` as a person uses it: the real binary in a real terminal, on a real directory, while other processes
//! use the same directory.

use crate::support::{Workspace, has_entry, until};
use crate::terminal::Terminal;
use rustix::process::Signal;
use std::process::Stdio;

fn three_letters() -> Workspace {
    let workspace = Workspace::new();
    for n in 0..3 {
        workspace.dead_letter("payments", &n.to_string(), "gateway timeout");
    }
    workspace
}

fn retrying(workspace: &Workspace) -> usize {
    workspace.items(&["dlq", "list", "status:retrying"]).len()
}

#[test]
fn a_person_looks_retries_and_redrives() {
    let workspace = three_letters();
    let mut top = Terminal::start(&workspace, &["top", "--act"]);
    let screen = top.shows("Timeout: gateway timeout");
    assert!(screen.contains("ACT") && screen.contains("1 groups, 3 open letters"), "{screen}");
    top.press("\r");
    top.shows("pending");
    top.press("jr");
    top.shows("retry: done");
    assert_eq!(retrying(&workspace), 1, "another process sees it while top holds the directory");
    top.press("R");
    let screen = top.shows("type 2 and press Enter to confirm");
    assert!(screen.contains("retry 2 dead letters"), "{screen}");
    top.press("y\r3\r");
    top.press("2\r");
    until("both were sent back", || retrying(&workspace) == 3);
    top.press("q");
    let (code, _) = top.ended();
    assert_eq!(code, Some(0));
    let acts: Vec<_> =
        workspace.items(&["audit", "list"]).into_iter().map(|row| row["act"].clone()).collect();
    assert!(acts.iter().any(|act| act == "retry"), "{acts:?}");
    workspace.run(&["doctor"]).ok();
}

#[test]
fn top_changes_nothing_without_the_act_flag() {
    let workspace = three_letters();
    let mut top = Terminal::start(&workspace, &["top"]);
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
    assert_eq!(retrying(&workspace), 0);
}

#[test]
fn top_continues_when_the_holder_is_gone_and_ends_on_a_signal() {
    let workspace = three_letters();
    let mut holder = workspace.spawn(&["lease", "payments", "--wait", "10m"], Stdio::null());
    until("another process holds the directory", || has_entry(&workspace.data(), "socket"));
    let mut top = Terminal::start(&workspace, &["top", "--every", "100ms"]);
    top.shows("Timeout: gateway timeout");
    holder.kill().unwrap();
    holder.wait().unwrap();
    workspace.enqueue("payments", "x");
    top.shows("waiting 1");
    top.press("?");
    top.shows("copy the id");
    top.signal(Signal::TERM);
    assert_eq!(top.ended().0, Some(130));
    workspace.run(&["doctor"]).ok();
}

#[test]
fn top_ends_with_its_terminal_and_releases_the_directory() {
    let workspace = three_letters();
    for keys in ["", "\r", "?"] {
        let mut top = Terminal::start(&workspace, &["top", "--every", "100ms"]);
        top.shows("Timeout: gateway timeout");
        top.press(keys);
        assert_eq!(top.hang_up(), Some(130), "{keys:?}");
        assert!(!has_entry(&workspace.data(), "socket"), "nobody holds the directory");
    }
    workspace.run(&["doctor"]).ok();
}

#[test]
fn every_termination_signal_ends_top_and_restores_the_terminal() {
    let workspace = three_letters();
    for signal in [Signal::HUP, Signal::TERM, Signal::INT] {
        let top = Terminal::start(&workspace, &["top"]);
        top.shows("Timeout: gateway timeout");
        top.signal(signal);
        assert_eq!(top.ended().0, Some(130), "{signal:?}");
    }
}

/// The editor waits for a line that never comes, as if a person were still typing.
#[test]
fn top_can_be_ended_while_an_editor_has_the_terminal() {
    let workspace = three_letters();
    let mut top = Terminal::start_with(
        &workspace,
        &["top", "--act"],
        &[("EDITOR", "sh -c 'echo editing; read line' --")],
    );
    top.shows("Timeout: gateway timeout");
    top.press("\r");
    top.shows("pending");
    top.press("\r");
    top.shows("TIMELINE");
    top.press("e");
    top.shows("editing");
    top.signal(Signal::TERM);
    assert_eq!(top.exited(), Some(130));
    workspace.run(&["doctor"]).ok();
}

#[test]
fn groups_that_fit_the_screen_are_all_on_it() {
    let workspace = three_letters();
    let top = Terminal::start(&workspace, &["top", "--every", "100ms"]);
    top.shows("Timeout: gateway timeout");
    for n in 0..4 {
        workspace.dead_letter("mail", &n.to_string(), "mailbox is full");
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
fn commands_that_read_a_terminal_end_on_a_signal_or_when_the_terminal_is_gone() {
    let workspace = three_letters();
    let id = workspace.dead_letter("q", "{}", "x");
    workspace.enqueue("work", "{}");
    let token = crate::support::text(&workspace.lease("work")["token"]);
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
        let mut reading = Terminal::start(&workspace, &args);
        reading.types("{nonsense");
        reading.signal(Signal::TERM);
        assert_eq!(reading.exited(), Some(130), "{args:?}");
        let mut reading = Terminal::start(&workspace, &args);
        reading.types("{nonsense");
        assert!(reading.hang_up().is_some_and(|code| code != 0), "{args:?}");
    }
    for end in ["hang up", "signal"] {
        let asking = Terminal::start(&workspace, &["dlq", "retry", "--all"]);
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
    assert_eq!(retrying(&workspace), 0);
    workspace.run(&["doctor"]).ok();
}

#[test]
fn untrusted_text_reaches_the_terminal_only_escaped() {
    let workspace = Workspace::new();
    workspace.dead_letter("q", "\u{1b}]0;pwned\u{7}", "\u{1b}]0;pwned\u{7}\u{1b}[31mred\u{9b}5m");
    let mut top = Terminal::start(&workspace, &["top", "queue:elsewhere"]);
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
fn top_refuses_to_start_without_a_terminal_or_with_invalid_flags() {
    let workspace = Workspace::new();
    workspace.enqueue("q", "x");
    workspace.run(&["top"]).code(5).says("needs a terminal");
    workspace.run(&["top", "quue:x"]).code(2).says("filter");
    workspace.run(&["top", "--every", "1ms"]).code(2).says("--every");
}
