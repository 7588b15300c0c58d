//! The terminal as a thing that is borrowed: raw keys and the other screen while `redrive top` runs, and everything as
//! it was afterwards, whether it ends by a key, a signal, an error or a panic. It draws nothing itself.

use crate::exit_code::{CliError, ExitCode};
use ratatui::crossterm::event::{DisableBracketedPaste, EnableBracketedPaste};
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::crossterm::{cursor, execute};
use std::io::{IsTerminal as _, stdin, stdout};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether the terminal is ours at the moment.
static BORROWED: AtomicBool = AtomicBool::new(false);

/// Whether another program has it meanwhile.
static LENT: AtomicBool = AtomicBool::new(false);

/// The terminal while it is ours; giving it back is dropping this.
#[derive(Debug)]
pub(super) struct Screen;

impl Screen {
    /// Takes the terminal.
    pub(super) fn borrow() -> Result<Self, CliError> {
        before_panics();
        // From here on everything is undone again, however far it came.
        let screen = Self;
        take()?;
        Ok(screen)
    }

    /// Refuses where there is no terminal to take.
    pub(super) fn required(out: &crate::output::Output) -> Result<(), CliError> {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        if out.terminal && there() && !dumb {
            return Ok(());
        }
        Err(CliError::new(ExitCode::Refused, "redrive top needs a terminal for its keys and its screen")
            .hint("`redrive group list --watch` and `redrive dlq stats --watch` work in a pipe"))
    }
}

/// Takes the terminal, or takes it back.
fn take() -> Result<(), CliError> {
    let failed = |error: std::io::Error| CliError::io("take the terminal", &error);
    BORROWED.store(true, Ordering::SeqCst);
    enable_raw_mode().map_err(failed)?;
    // Pasted text comes in one piece, so that it is never taken for keys.
    execute!(stdout(), EnterAlternateScreen, EnableBracketedPaste, cursor::Hide).map_err(failed)
}

/// Another program has the terminal, as it was, until it ends. Ctrl-C is that program's meanwhile.
pub(super) fn lend<T>(to: impl FnOnce() -> T) -> Result<T, CliError> {
    LENT.store(true, Ordering::SeqCst);
    give_back();
    let ended = to();
    let taken = take();
    LENT.store(false, Ordering::SeqCst);
    taken.map(|()| ended)
}

/// Ends when the terminal is gone: its window was closed, or the connection to it was cut. Not everybody is sent a
/// signal then, and whoever reads from such a terminal neither waits nor is told that there is nothing to wait for.
pub(super) async fn hung_up() {
    while there() {
        tokio::time::sleep(super::LOOK_EVERY).await;
    }
}

/// Whether the terminal is still there.
pub(super) fn there() -> bool {
    stdin().is_terminal()
}

/// Whether another program has the terminal.
pub(super) fn lent() -> bool {
    LENT.load(Ordering::SeqCst)
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Gives the terminal back before a panic says what it has to say, which would be lost with the other screen.
fn before_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            give_back();
            before(info);
        }));
    });
}

/// Whether the terminal is ours: nothing may be drawn after it was given back.
pub(super) fn borrowed() -> bool {
    BORROWED.load(Ordering::SeqCst)
}

/// Gives the terminal back as it was; harmless when it is not ours.
pub(super) fn give_back() {
    if BORROWED.swap(false, Ordering::SeqCst) {
        // Whatever fails, the rest is tried.
        let _ = execute!(stdout(), DisableBracketedPaste, cursor::Show, LeaveAlternateScreen);
        let _ = disable_raw_mode();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_gives_the_terminal_back_first() {
        before_panics();
        BORROWED.store(true, Ordering::SeqCst);
        let ended = std::thread::spawn(|| panic!("as a bug would")).join();
        assert!(ended.is_err() && !borrowed());
    }
}
