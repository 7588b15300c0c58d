//! A terminal to run the command in: a pseudo-terminal, and an emulation of the escape sequences that are needed to
//! know what is on the screen.

use crate::support::{PATIENCE, Workspace};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

/// The screen, and the state of the terminal.
#[derive(Default)]
struct ScreenState {
    width: usize,
    cells: Vec<Vec<char>>,
    at: (usize, usize),
    /// Private modes that are on, such as 1049, the alternate screen.
    modes: BTreeSet<String>,
    /// Every byte that was received.
    raw: Vec<u8>,
    /// An incomplete sequence or character.
    rest: Vec<u8>,
}

impl ScreenState {
    fn new(width: usize, height: usize) -> Self {
        Self { width, cells: vec![vec![' '; width]; height], ..Self::default() }
    }

    fn text(&self) -> String {
        let line = |row: &Vec<char>| row.iter().collect::<String>().trim_end().to_owned() + "\n";
        self.cells.iter().map(line).collect()
    }

    fn take(&mut self, bytes: &[u8]) {
        self.raw.extend_from_slice(bytes);
        self.rest.extend_from_slice(bytes);
        let mut rest = std::mem::take(&mut self.rest);
        while let Some(used) = self.one(&rest) {
            rest.drain(..used);
        }
        self.rest = rest;
    }

    /// Processes one character or sequence and returns its length; `None` if it is incomplete.
    fn one(&mut self, bytes: &[u8]) -> Option<usize> {
        match *bytes.first()? {
            0x1b => self.sequence(bytes),
            b'\r' => {
                self.at.0 = 0;
                Some(1)
            }
            b'\n' => {
                self.at.1 += 1;
                Some(1)
            }
            first => {
                let length = match first {
                    0..=0x7f => 1,
                    0xc0..=0xdf => 2,
                    0xe0..=0xef => 3,
                    _ => 4,
                };
                let text = std::str::from_utf8(bytes.get(..length)?).expect("a terminal is sent UTF-8");
                for c in text.chars() {
                    if let Some(cell) = self.cells.get_mut(self.at.1).and_then(|row| row.get_mut(self.at.0)) {
                        *cell = c;
                    }
                    self.at.0 += 1;
                }
                Some(length)
            }
        }
    }

    fn sequence(&mut self, bytes: &[u8]) -> Option<usize> {
        match *bytes.get(1)? {
            b'[' => {
                let end = 2 + bytes.get(2..)?.iter().position(|b| (0x40..=0x7e).contains(b))?;
                let parameters = String::from_utf8_lossy(&bytes[2..end]).into_owned();
                self.control(&parameters, bytes[end]);
                Some(end + 1)
            }
            b']' => Some(bytes.iter().position(|b| *b == 7)? + 1),
            _ => Some(2),
        }
    }

    fn control(&mut self, parameters: &str, what: u8) {
        let numbers: Vec<usize> = parameters.split(';').map(|n| n.parse().unwrap_or(0)).collect();
        let number = |n: usize| numbers.get(n).copied().unwrap_or(0).max(1);
        match what {
            b'H' => self.at = (number(1) - 1, number(0) - 1),
            b'J' => {
                for row in &mut self.cells {
                    *row = vec![' '; self.width];
                }
            }
            b'K' => {
                if let Some(row) = self.cells.get_mut(self.at.1) {
                    row.iter_mut().skip(self.at.0).for_each(|cell| *cell = ' ');
                }
            }
            b'h' => self.modes.extend(parameters.strip_prefix('?').map(str::to_owned)),
            b'l' => drop(parameters.strip_prefix('?').map(|mode| self.modes.remove(mode))),
            _ => {}
        }
    }
}

/// A command running in a terminal.
pub(crate) struct Terminal {
    pub(crate) child: Child,
    keys: File,
    /// Kept open to inspect the settings of the terminal.
    line: OwnedFd,
    screen: Arc<(Mutex<ScreenState>, Condvar)>,
    /// Reads from the terminal until it is told to release it.
    reader: JoinHandle<()>,
    closing: Arc<AtomicBool>,
}

impl Terminal {
    /// Starts the command in a terminal of 80 x 24.
    pub(crate) fn start(workspace: &Workspace, args: &[&str]) -> Self {
        Self::start_with(workspace, args, &[])
    }

    /// Starts the command with additional environment variables.
    pub(crate) fn start_with(workspace: &Workspace, args: &[&str], variables: &[(&str, &str)]) -> Self {
        let (width, height) = (80, 24);
        // No child inherits the master side: the terminal is gone when this process closes it.
        let control = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&control).unwrap();
        unlockpt(&control).unwrap();
        tcsetwinsize(&control, Winsize { ws_row: height, ws_col: width, ws_xpixel: 0, ws_ypixel: 0 })
            .unwrap();
        let name = ptsname(&control, Vec::new()).unwrap();
        let open = || {
            rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap()
        };
        let line = open();
        let mut command = workspace.command(args);
        command.env("TERM", "xterm-256color").env_remove("NO_COLOR").envs(variables.iter().copied());
        command.stdin(Stdio::from(open())).stdout(Stdio::from(open())).stderr(Stdio::from(open()));
        let child = command.spawn().unwrap();
        let screen = Arc::new((Mutex::new(ScreenState::new(width.into(), height.into())), Condvar::new()));
        let (keys, mut output) = (File::from(control.try_clone().unwrap()), File::from(control));
        let eye = Arc::clone(&screen);
        let closing = Arc::new(AtomicBool::new(false));
        let closed = Arc::clone(&closing);
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // On Linux the end of the terminal is an error; either way nothing more comes.
            while let Ok(n @ 1..) = output.read(&mut bytes) {
                if closed.load(Ordering::SeqCst) {
                    return;
                }
                eye.0.lock().unwrap().take(&bytes[..n]);
                eye.1.notify_all();
            }
        });
        Self { child, keys, line, screen, reader, closing }
    }

    /// Closes the terminal, as if its window were closed, waits for the command to end, and returns its exit code.
    #[track_caller]
    pub(crate) fn hang_up(self) -> Option<i32> {
        let Self { mut child, keys, line, reader, closing, .. } = self;
        closing.store(true, Ordering::SeqCst);
        // Wake the reader.
        rustix::io::write(&line, b"\n").unwrap();
        reader.join().unwrap();
        drop(keys);
        crate::support::until("the command ends", || child.try_wait().unwrap().is_some());
        child.wait().unwrap().code()
    }

    /// Types a line and waits until the command has read it.
    #[track_caller]
    pub(crate) fn types(&mut self, text: &str) {
        self.press(&format!("{text}\n"));
        // The echo shows that the line has arrived.
        self.shows(text);
        crate::support::until("the line is read", || rustix::io::ioctl_fionread(&self.line).unwrap() == 0);
    }

    /// Types these keys.
    pub(crate) fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the screen shows this text, and returns the screen.
    #[track_caller]
    pub(crate) fn shows(&self, what: &str) -> String {
        let began = Instant::now();
        let mut screen = self.screen.0.lock().unwrap();
        loop {
            let text = screen.text();
            if text.contains(what) {
                return text;
            }
            assert!(began.elapsed() < PATIENCE, "never shown: {what:?}; the screen is\n{text}");
            screen = self.screen.1.wait_timeout(screen, PATIENCE).unwrap().0;
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for a command that does not restore the screen, and returns its exit code.
    #[track_caller]
    pub(crate) fn exited(mut self) -> Option<i32> {
        crate::support::until("the command ends", || self.child.try_wait().unwrap().is_some());
        self.child.wait().unwrap().code()
    }

    /// Waits for a command that does not restore the screen, and returns its exit code and every byte it wrote.
    #[track_caller]
    pub(crate) fn printed(mut self) -> (Option<i32>, String) {
        crate::support::until("the command ends", || self.child.try_wait().unwrap().is_some());
        let code = self.child.wait().unwrap().code();
        // Once no process has the terminal open, the output can be read to its end.
        drop(self.line);
        self.reader.join().unwrap();
        let screen = self.screen.0.lock().unwrap();
        (code, String::from_utf8_lossy(&screen.raw).into_owned())
    }

    /// Waits for the command to end, requires that it restored the terminal, and returns its exit code and every byte
    /// it wrote.
    #[track_caller]
    pub(crate) fn ended(mut self) -> (Option<i32>, String) {
        crate::support::until("the command ends", || self.child.try_wait().unwrap().is_some());
        let code = self.child.wait().unwrap().code();
        let began = Instant::now();
        let mut screen = self.screen.0.lock().unwrap();
        // Bracketed paste and the alternate screen are off, and the cursor is visible.
        let restored = |screen: &ScreenState| screen.modes.iter().all(|mode| mode == "25");
        while !(restored(&screen) && screen.modes.contains("25")) {
            assert!(began.elapsed() < PATIENCE, "the terminal was left in modes {:?}", screen.modes);
            screen = self.screen.1.wait_timeout(screen, PATIENCE).unwrap().0;
        }
        let modes = tcgetattr(&self.line).unwrap().local_modes;
        assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG), "{modes:?}");
        (code, String::from_utf8_lossy(&screen.raw).into_owned())
    }
}
