//! Takes over the terminal while `redrive top` runs (raw mode and alternate screen) and restores it afterwards, whether
//! it ends by a key, a signal, an error or a panic.

use crate::exit_code::{CliError, ExitCode};
use ratatui::crossterm::event::{DisableBracketedPaste, EnableBracketedPaste};
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::crossterm::{cursor, execute};
use std::io::{IsTerminal as _, stdin, stdout};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether this process has taken over the terminal.
static TAKEN_OVER: AtomicBool = AtomicBool::new(false);

/// Whether another program has the terminal at the moment.
static LENT: AtomicBool = AtomicBool::new(false);

/// The terminal while it is taken over; dropping this restores it.
#[derive(Debug)]
pub(super) struct Screen;

impl Screen {
    /// Takes over the terminal.
    pub(super) fn take_over() -> Result<Self, CliError> {
        restore_on_panic();
        // From here on dropping this undoes everything, even if only a part of it succeeded.
        let screen = Self;
        take()?;
        Ok(screen)
    }

    /// Returns an error if there is no terminal.
    pub(super) fn require_terminal(out: &crate::output::Output) -> Result<(), CliError> {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        if out.terminal && terminal_exists() && !dumb {
            return Ok(());
        }
        Err(CliError::new(ExitCode::Refused, "redrive top needs a terminal for its keys and its screen")
            .hint("in a pipe, use `redrive group list --watch` or `redrive dlq stats --watch`"))
    }
}

/// Takes over the terminal, for the first time or again.
fn take() -> Result<(), CliError> {
    let failed = |error: std::io::Error| CliError::io("take over the terminal", &error);
    TAKEN_OVER.store(true, Ordering::SeqCst);
    enable_raw_mode().map_err(failed)?;
    // With bracketed paste, pasted text is never mistaken for keys.
    execute!(stdout(), EnterAlternateScreen, EnableBracketedPaste, cursor::Hide).map_err(failed)
}

/// Restores the terminal while another program uses it. Ctrl-C goes to that program meanwhile.
pub(super) fn lend<T>(to: impl FnOnce() -> T) -> Result<T, CliError> {
    LENT.store(true, Ordering::SeqCst);
    restore();
    let ended = to();
    let taken = take();
    LENT.store(false, Ordering::SeqCst);
    taken.map(|()| ended)
}

/// Completes when the terminal is gone: its window was closed, or the connection was cut. Not every process gets a
/// signal then, and a read from such a terminal neither blocks nor reports the end of input.
pub(super) async fn hung_up() {
    while terminal_exists() {
        tokio::time::sleep(super::KEY_TIMEOUT).await;
    }
}

/// Whether the terminal is still there.
pub(super) fn terminal_exists() -> bool {
    stdin().is_terminal()
}

/// Whether another program has the terminal.
pub(super) fn lent() -> bool {
    LENT.load(Ordering::SeqCst)
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Restores the terminal before a panic message is printed, which would be lost with the alternate screen.
fn restore_on_panic() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            restore();
            before(info);
        }));
    });
}

/// Whether this process has the terminal; nothing may be drawn after it was restored.
pub(super) fn taken_over() -> bool {
    TAKEN_OVER.load(Ordering::SeqCst)
}

/// Restores the terminal; does nothing if it is not taken over.
pub(super) fn restore() {
    if TAKEN_OVER.swap(false, Ordering::SeqCst) {
        // Ignore errors, so that the remaining steps are tried.
        let _ = execute!(stdout(), DisableBracketedPaste, cursor::Show, LeaveAlternateScreen);
        let _ = disable_raw_mode();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_restores_the_terminal_first() {
        restore_on_panic();
        TAKEN_OVER.store(true, Ordering::SeqCst);
        let ended = std::thread::spawn(|| panic!("as a bug would")).join();
        assert!(ended.is_err() && !taken_over());
    }
}
