//! Keeps the store still while something is read. Redis has no snapshots, but the holder is the only writer, so its
//! readers see one state if no commit is sent meanwhile.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A commit waits for readers this long, and readers for a commit. A longer read may see two states.
const STILL_FOR: Duration = Duration::from_millis(250);

#[derive(Debug, Default)]
struct State {
    readers: usize,
    writing: bool,
}

/// Lets either readers or the writer through.
#[derive(Debug)]
pub(super) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
    still_for: Duration,
}

impl Default for Gate {
    fn default() -> Self {
        Self::waiting(STILL_FOR)
    }
}

impl Gate {
    /// A gate at which nobody waits longer than this.
    fn waiting(still_for: Duration) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), still_for }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self, blocked: impl Fn(&mut State) -> bool) -> MutexGuard<'_, State> {
        let waited = self.changed.wait_timeout_while(self.lock(), self.still_for, blocked);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Reads while no commit is sent.
    pub(super) fn read<T>(&self, read: impl FnOnce() -> T) -> T {
        self.wait(|state| state.writing).readers += 1;
        let _guard = Leave { gate: self, writer: false };
        read()
    }

    /// Commits while nothing is read. New readers wait from now on.
    pub(super) fn write<T>(&self, write: impl FnOnce() -> T) -> T {
        self.lock().writing = true;
        let _guard = Leave { gate: self, writer: true };
        drop(self.wait(|state| state.readers > 0));
        write()
    }
}

/// Opens the gate again, even after a panic.
struct Leave<'a> {
    gate: &'a Gate,
    writer: bool,
}

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        let mut state = self.gate.lock();
        if self.writer {
            state.writing = false;
        } else {
            state.readers = state.readers.saturating_sub(1);
        }
        drop(state);
        self.gate.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// So long that only a hang reaches it.
    const PATIENCE: Duration = Duration::from_secs(300);

    #[test]
    fn a_commit_begins_when_the_last_reader_has_ended() {
        let gate = Arc::new(Gate::waiting(PATIENCE));
        let ended = Arc::new(AtomicBool::new(false));
        let (started, starts) = std::sync::mpsc::channel();
        let reader = std::thread::spawn({
            let (gate, ended) = (Arc::clone(&gate), Arc::clone(&ended));
            move || {
                gate.read(|| {
                    started.send(()).unwrap();
                    while !gate.lock().writing {
                        std::thread::yield_now();
                    }
                    ended.store(true, Ordering::SeqCst);
                });
            }
        });
        starts.recv().unwrap();
        gate.write(|| assert!(ended.load(Ordering::SeqCst)));
        reader.join().unwrap();
        assert_eq!(gate.lock().readers, 0);
    }

    #[test]
    fn a_reader_that_never_ends_does_not_stop_commits() {
        let gate = Gate::waiting(Duration::ZERO);
        gate.read(|| gate.write(|| ()));
    }
}
