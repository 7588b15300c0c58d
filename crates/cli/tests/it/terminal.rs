//! A terminal to run the command in: a pseudo-terminal of the system, and of what terminals understand as much as is
//! needed to know what a person would see.

use crate::support::{Office, PATIENCE};
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

/// What a person would see, and what the terminal was told.
#[derive(Default)]
struct Seen {
    width: usize,
    cells: Vec<Vec<char>>,
    at: (usize, usize),
    /// Private modes that are on, such as 1049, the other screen.
    modes: BTreeSet<String>,
    /// Every byte.
    raw: Vec<u8>,
    /// What is not a whole sequence or character yet.
    rest: Vec<u8>,
}

impl Seen {
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

    /// Takes one character or sequence; nothing when it is not whole yet.
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

/// A command in a terminal.
pub(crate) struct Terminal {
    pub(crate) child: Child,
    keys: File,
    /// Kept open to look at the terminal's own settings.
    line: OwnedFd,
    seen: Arc<(Mutex<Seen>, Condvar)>,
    /// Reads what the terminal is sent, until it is told to let go of it.
    reader: JoinHandle<()>,
    closing: Arc<AtomicBool>,
}

impl Terminal {
    /// Starts the command in a terminal of 80 x 24.
    pub(crate) fn start(office: &Office, args: &[&str]) -> Self {
        Self::start_with(office, args, &[])
    }

    /// The same with more variables.
    pub(crate) fn start_with(office: &Office, args: &[&str], variables: &[(&str, &str)]) -> Self {
        let (width, height) = (80, 24);
        // No child inherits the other side: the terminal is gone when this process lets go of it.
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
        let mut command = office.command(args);
        command.env("TERM", "xterm-256color").env_remove("NO_COLOR").envs(variables.iter().copied());
        command.stdin(Stdio::from(open())).stdout(Stdio::from(open())).stderr(Stdio::from(open()));
        let child = command.spawn().unwrap();
        let seen = Arc::new((Mutex::new(Seen::new(width.into(), height.into())), Condvar::new()));
        let (keys, mut output) = (File::from(control.try_clone().unwrap()), File::from(control));
        let eye = Arc::clone(&seen);
        let closing = Arc::new(AtomicBool::new(false));
        let closed = Arc::clone(&closing);
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The end of the terminal is an error on Linux; either way nothing more comes.
            while let Ok(n @ 1..) = output.read(&mut bytes) {
                if closed.load(Ordering::SeqCst) {
                    return;
                }
                eye.0.lock().unwrap().take(&bytes[..n]);
                eye.1.notify_all();
            }
        });
        Self { child, keys, line, seen, reader, closing }
    }

    /// Takes the terminal away, as when its window is closed, and waits for the command to end; gives the exit code.
    #[track_caller]
    pub(crate) fn hang_up(self) -> Option<i32> {
        let Self { mut child, keys, line, reader, closing, .. } = self;
        closing.store(true, Ordering::SeqCst);
        // Wakes the reader.
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
        // The echo tells that the line has arrived.
        self.shows(text);
        crate::support::until("the line is read", || rustix::io::ioctl_fionread(&self.line).unwrap() == 0);
    }

    /// Types.
    pub(crate) fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    /// Waits until the screen shows this; gives the screen.
    #[track_caller]
    pub(crate) fn shows(&self, what: &str) -> String {
        let began = Instant::now();
        let mut seen = self.seen.0.lock().unwrap();
        loop {
            let text = seen.text();
            if text.contains(what) {
                return text;
            }
            assert!(began.elapsed() < PATIENCE, "never shown: {what:?}; the screen is\n{text}");
            seen = self.seen.1.wait_timeout(seen, PATIENCE).unwrap().0;
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end of a command that leaves the screen to others; gives the exit code.
    #[track_caller]
    pub(crate) fn exited(mut self) -> Option<i32> {
        crate::support::until("the command ends", || self.child.try_wait().unwrap().is_some());
        self.child.wait().unwrap().code()
    }

    /// Waits for the end of a command that leaves the screen to others; gives the exit code and every byte it was sent.
    #[track_caller]
    pub(crate) fn printed(mut self) -> (Option<i32>, String) {
        crate::support::until("the command ends", || self.child.try_wait().unwrap().is_some());
        let code = self.child.wait().unwrap().code();
        // Once nobody has the terminal open any more, what was written can be read to its end.
        drop(self.line);
        self.reader.join().unwrap();
        let seen = self.seen.0.lock().unwrap();
        (code, String::from_utf8_lossy(&seen.raw).into_owned())
    }

    /// Waits for its end, and wants the terminal as it was before; gives the exit code and every byte it was sent.
    #[track_caller]
    pub(crate) fn ended(mut self) -> (Option<i32>, String) {
        crate::support::until("the command ends", || self.child.try_wait().unwrap().is_some());
        let code = self.child.wait().unwrap().code();
        let began = Instant::now();
        let mut seen = self.seen.0.lock().unwrap();
        // Bracketed paste and the other screen are off, the cursor is visible.
        let restored = |seen: &Seen| seen.modes.iter().all(|mode| mode == "25");
        while !(restored(&seen) && seen.modes.contains("25")) {
            assert!(began.elapsed() < PATIENCE, "the terminal was left in modes {:?}", seen.modes);
            seen = self.seen.1.wait_timeout(seen, PATIENCE).unwrap().0;
        }
        let modes = tcgetattr(&self.line).unwrap().local_modes;
        assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG), "{modes:?}");
        (code, String::from_utf8_lossy(&seen.raw).into_owned())
    }
}
