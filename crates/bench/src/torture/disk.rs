//! A disk as it may be when the power fails. The model is harsher than a real one:
//!
//! - What was written to a file before a sync of that file that said success is there. Anything written since
//!   may be there or not, in any part, in any order.
//! - The length of a file is like its content.
//! - A name (made, changed, removed) is sure once the directory was synced; strictly, only then; otherwise also
//!   once the file itself was, as on ext4.
//! - After a sync that failed, what was written before it may never arrive, even if a later sync succeeds.
//!
//! Files for shared memory (`-shm`) are not on the disk: they are made anew from the log. Nor is the room that
//! the store keeps back: nothing is ever read from it.

use super::rng::Rng;
use super::trace::{Event, zeros_at_end};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

/// A change of a file's content that is not sure yet.
#[derive(Clone, Debug)]
enum Change {
    Write { at: usize, data: Vec<u8> },
    Zeros { at: usize, length: usize },
    Length(usize),
}

/// A change together with whether a failed sync has passed over it.
#[derive(Clone, Debug)]
struct Pending {
    change: Change,
    doomed: bool,
}

/// The content of a file. The store lays its log out as zeros beforehand, so zeros at the end are not kept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    bytes: Vec<u8>,
    length: usize,
}

impl Content {
    /// The content of a file with these bytes.
    #[must_use]
    pub fn new(mut bytes: Vec<u8>) -> Self {
        let length = bytes.len();
        bytes.truncate(length - zeros_at_end(&bytes));
        Self { bytes, length }
    }

    fn resize(&mut self, length: usize) {
        self.bytes.truncate(length);
        self.length = length;
    }

    fn clear(&mut self, at: usize, length: usize) {
        let end = at + length;
        self.length = self.length.max(end);
        let kept = self.bytes.len();
        if end >= kept {
            self.bytes.truncate(at);
        } else if let Some(place) = self.bytes.get_mut(at..end) {
            place.fill(0);
        }
    }

    fn write(&mut self, at: usize, data: &[u8]) {
        self.length = self.length.max(at + data.len());
        // Zeros beyond what is kept are there already.
        let zeros = zeros_at_end(data);
        let kept = if at + data.len() > self.bytes.len() { data.len() - zeros } else { data.len() };
        let end = (at + kept).max(self.bytes.len().min(at + data.len()));
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        let count = end.saturating_sub(at);
        if let (Some(place), Some(data)) = (self.bytes.get_mut(at..end), data.get(..count)) {
            place.copy_from_slice(data);
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Inode {
    sure: Content,
    pending: Vec<Pending>,
}

/// A change of a name that is not sure yet.
#[derive(Clone, Debug)]
enum Naming {
    Made(String, usize),
    Renamed(String, String),
    Removed(String),
}

/// A disk at a moment of a recording.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    inodes: Vec<Inode>,
    /// Names that are sure.
    sure: BTreeMap<String, usize>,
    /// Names as the program sees them.
    now: BTreeMap<String, usize>,
    naming: Vec<Naming>,
    open: BTreeMap<i64, Option<usize>>,
    /// The file that was written to last.
    last: Option<usize>,
    /// Whether a name is sure only when the directory was synced.
    strict: bool,
}

/// What becomes of what is not sure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// All of it arrived: also what a killed process leaves.
    Kept,
    /// None of it.
    Dropped,
    /// Some writes, each whole, in order.
    Writes,
    /// Some blocks of 4 KiB of the writes.
    Blocks,
    /// Some blocks of 512 bytes.
    Sectors,
    /// Some blocks, in another order: an older write may come last.
    Reordered,
    /// All, but the last write ends at a multiple of 512 bytes.
    TornSector,
    /// All, but the last write ends at any byte.
    TornByte,
    /// All of some files, nothing of others.
    Files,
    /// The lengths arrived, of the content some; the rest is zeros.
    Zeros,
}

impl Choice {
    /// Every one; a choice is named by its place.
    pub const ALL: [Self; 10] = [
        Self::Kept,
        Self::Dropped,
        Self::Writes,
        Self::Blocks,
        Self::Sectors,
        Self::Reordered,
        Self::TornSector,
        Self::TornByte,
        Self::Files,
        Self::Zeros,
    ];
}

/// The content of a directory: what a machine finds when it starts again.
pub type Image = BTreeMap<String, Content>;

/// Room that the store keeps back, and how much.
const RESERVE: &str = "reserve";
const RESERVE_BYTES: u64 = 4 * 1024 * 1024;

fn is_on_disk(name: &str) -> bool {
    !name.ends_with("-shm") && name != RESERVE
}

fn apply(content: &mut Content, change: &Change) {
    match change {
        Change::Length(length) => content.resize(*length),
        Change::Write { at, data } => content.write(*at, data),
        Change::Zeros { at, length } => content.clear(*at, *length),
    }
}

/// A write cut into the blocks of the file that it touches.
fn blocks(change: &Change, size: usize) -> Vec<Change> {
    let Change::Write { at, data } = change else { return vec![change.clone()] };
    let mut pieces = Vec::new();
    let (mut at, mut rest) = (*at, data.as_slice());
    while !rest.is_empty() {
        let (piece, after) = rest.split_at((size - at % size).min(rest.len()));
        pieces.push(Change::Write { at, data: piece.to_vec() });
        at += piece.len();
        rest = after;
    }
    pieces
}

/// The write without its end.
fn torn(change: &Change, keep: usize) -> Change {
    match change {
        Change::Write { at, data } => {
            Change::Write { at: *at, data: data.iter().take(keep).copied().collect() }
        }
        Change::Zeros { at, length } => Change::Zeros { at: *at, length: keep.min(*length) },
        Change::Length(_) => change.clone(),
    }
}

impl Change {
    /// The bytes that it changes.
    fn range(&self) -> Option<(usize, usize)> {
        match self {
            Self::Write { at, data } => Some((*at, at + data.len())),
            Self::Zeros { at, length } => Some((*at, at + length)),
            Self::Length(_) => None,
        }
    }
}

impl Disk {
    /// A disk that holds this and nothing that is not sure. Strictly, names are sure only when the directory
    /// was synced.
    #[must_use]
    pub fn holding(image: &Image, strict: bool) -> Self {
        let mut disk = Self { strict, ..Self::default() };
        for (name, content) in image {
            disk.sure.insert(name.clone(), disk.inodes.len());
            disk.inodes.push(Inode { sure: content.clone(), pending: Vec::new() });
        }
        disk.now = disk.sure.clone();
        disk
    }

    /// Lets the next thing of the recording happen.
    pub fn happen(&mut self, event: &Event) {
        match event {
            Event::Open { fd, name, made, emptied } => self.opened(*fd, name, *made, *emptied),
            Event::Close { fd } => {
                self.open.remove(fd);
            }
            Event::Write { fd, at, data } => {
                let at = usize::try_from(*at).unwrap_or(usize::MAX);
                self.changed(*fd, Change::Write { at, data: data.clone() });
            }
            Event::Zeros { fd, at, length } => {
                let number = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
                self.changed(*fd, Change::Zeros { at: number(*at), length: number(*length) });
            }
            Event::Truncate { fd, length } => {
                self.changed(*fd, Change::Length(usize::try_from(*length).unwrap_or(usize::MAX)));
            }
            Event::Sync { fd, ok } => self.synced(*fd, *ok),
            Event::Rename { from, to } => {
                if let Some(inode) = self.now.remove(from) {
                    self.now.insert(to.clone(), inode);
                    self.naming.push(Naming::Renamed(from.clone(), to.clone()));
                }
            }
            Event::Unlink { name } => {
                self.now.remove(name);
                self.naming.push(Naming::Removed(name.clone()));
            }
            Event::Said(_) => {}
        }
    }

    fn opened(&mut self, fd: i64, name: &str, made: bool, emptied: bool) {
        if name == "." || !is_on_disk(name) {
            self.open.insert(fd, None);
            return;
        }
        let inode = match self.now.get(name) {
            Some(inode) if !made => *inode,
            Some(_) | None => {
                self.inodes.push(Inode::default());
                let inode = self.inodes.len() - 1;
                self.now.insert(name.to_owned(), inode);
                self.naming.push(Naming::Made(name.to_owned(), inode));
                inode
            }
        };
        self.open.insert(fd, Some(inode));
        if emptied {
            self.changed(fd, Change::Length(0));
        }
    }

    fn changed(&mut self, fd: i64, change: Change) {
        let n = self.open.get(&fd).copied().flatten();
        if let Some(inode) = n.and_then(|n| self.inodes.get_mut(n)) {
            self.last = n;
            inode.pending.push(Pending { change, doomed: false });
        }
    }

    fn synced(&mut self, fd: i64, ok: bool) {
        match self.open.get(&fd).copied() {
            Some(Some(n)) => {
                let Some(inode) = self.inodes.get_mut(n) else { return };
                if !ok {
                    inode.pending.iter_mut().for_each(|pending| pending.doomed = true);
                    return;
                }
                // What is doomed stays doubtful, unless it was written again: then the newer is sure.
                let mut doubtful = Vec::new();
                for pending in std::mem::take(&mut inode.pending) {
                    if pending.doomed {
                        doubtful.push(pending);
                    } else {
                        doubtful.retain(|old| !overlaps(&old.change, &pending.change));
                        apply(&mut inode.sure, &pending.change);
                    }
                }
                inode.pending = doubtful;
                if !self.strict {
                    let (sure, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.naming)
                        .into_iter()
                        .partition(|naming| matches!(naming, Naming::Made(_, inode) if *inode == n));
                    self.naming = rest;
                    sure.iter().for_each(|naming| rename(&mut self.sure, naming));
                }
            }
            Some(None) if ok => {
                for naming in std::mem::take(&mut self.naming) {
                    rename(&mut self.sure, &naming);
                }
            }
            Some(None) | None => {}
        }
    }

    /// Whether there is anything that may be lost.
    #[must_use]
    pub fn is_sure(&self) -> bool {
        self.naming.is_empty() && self.now.values().all(|n| self.is_settled(*n))
    }

    fn is_settled(&self, n: usize) -> bool {
        self.inodes.get(n).is_none_or(|inode| inode.pending.is_empty())
    }

    /// What the machine finds when the power fails now, with these choices.
    #[must_use]
    pub fn image(&self, choice: Choice, rng: &mut Rng) -> Image {
        let mut names = self.sure.clone();
        for naming in &self.naming {
            let kept = match choice {
                Choice::Kept | Choice::TornSector | Choice::TornByte => true,
                Choice::Dropped => false,
                Choice::Writes
                | Choice::Blocks
                | Choice::Sectors
                | Choice::Reordered
                | Choice::Files
                | Choice::Zeros => !rng.one_in(4),
            };
            if kept {
                rename(&mut names, naming);
            }
        }
        let content = |(name, n): (String, usize)| {
            let inode = self.inodes.get(n)?;
            Some((name, inode.content(choice, Some(n) == self.last, rng)))
        };
        names.into_iter().filter_map(content).collect()
    }
}

fn overlaps(a: &Change, b: &Change) -> bool {
    match (a.range(), b.range()) {
        (Some((from, to)), Some((start, end))) => from < end && start < to,
        (None, _) | (_, None) => true,
    }
}

fn rename(names: &mut BTreeMap<String, usize>, naming: &Naming) {
    match naming {
        Naming::Made(name, inode) => {
            names.insert(name.clone(), *inode);
        }
        Naming::Renamed(from, to) => {
            if let Some(inode) = names.remove(from) {
                names.insert(to.clone(), inode);
            }
        }
        Naming::Removed(name) => {
            names.remove(name);
        }
    }
}

impl Inode {
    /// The content that this choice leaves of this file.
    fn content(&self, choice: Choice, is_last: bool, rng: &mut Rng) -> Content {
        let mut content = self.sure.clone();
        let changes: Vec<&Change> = self.pending.iter().map(|pending| &pending.change).collect();
        let kept: Vec<Change> = match choice {
            Choice::Kept => changes.into_iter().cloned().collect(),
            Choice::Dropped => Vec::new(),
            Choice::Writes => changes.into_iter().filter(|_| rng.one_in(2)).cloned().collect(),
            Choice::Blocks => some_blocks(&changes, 4_096, rng),
            Choice::Sectors => some_blocks(&changes, 512, rng),
            Choice::Reordered => {
                let mut pieces = some_blocks(&changes, 4_096, rng);
                rng.shuffle(&mut pieces);
                pieces
            }
            Choice::TornSector | Choice::TornByte => {
                let mut all: Vec<Change> = changes.into_iter().cloned().collect();
                if let Some(end) = all.pop_if(|_| is_last) {
                    let length = end.range().map_or(0, |(from, to)| to - from);
                    let cut = rng.index(length + 1);
                    let keep = if choice == Choice::TornSector { cut - cut % 512 } else { cut };
                    all.push(torn(&end, keep));
                }
                all
            }
            Choice::Files => {
                if rng.one_in(2) {
                    changes.into_iter().cloned().collect()
                } else {
                    Vec::new()
                }
            }
            Choice::Zeros => {
                let mut whole = content.clone();
                changes.iter().for_each(|change| apply(&mut whole, change));
                content.resize(whole.length);
                changes.into_iter().filter(|_| rng.one_in(2)).cloned().collect()
            }
        };
        kept.iter().for_each(|change| apply(&mut content, change));
        content
    }
}

fn some_blocks(changes: &[&Change], size: usize, rng: &mut Rng) -> Vec<Change> {
    changes.iter().flat_map(|change| blocks(change, size)).filter(|_| !rng.one_in(3)).collect()
}

/// A mark of an image's whole content, to know one that was looked at already.
#[must_use]
pub fn fingerprint(image: &Image) -> u64 {
    let mut hash: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut mix = |word: u64| hash = (hash ^ word).wrapping_mul(0x9fb2_1c65_1e98_df25).rotate_left(29);
    for (name, content) in image {
        name.bytes().for_each(|byte| mix(u64::from(byte)));
        mix(content.length as u64);
        let (words, rest) = content.bytes.as_chunks::<8>();
        words.iter().for_each(|word| mix(u64::from_ne_bytes(*word)));
        rest.iter().for_each(|byte| mix(u64::from(*byte)));
    }
    hash
}

/// Reads an image from a directory.
///
/// # Errors
/// What the operating system says.
pub fn read_in(directory: &Path) -> io::Result<Image> {
    let mut image = Image::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if is_on_disk(&name) && entry.file_type()?.is_file() {
            image.insert(name, Content::new(fs::read(entry.path())?));
        }
    }
    Ok(image)
}

/// Puts an image into a directory in place of what is there, and the room that is kept back beside it.
///
/// # Errors
/// What the operating system says.
pub fn write_out(image: &Image, directory: &Path) -> io::Result<()> {
    super::make_private(directory)?;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if !name.to_str().is_some_and(|name| name == RESERVE || image.contains_key(name)) {
            fs::remove_file(entry.path())?;
        }
    }
    for (name, content) in image {
        let mut file = fs::File::create(directory.join(name))?;
        file.write_all(&content.bytes)?;
        file.set_len(content.length as u64)?;
    }
    let reserve =
        fs::OpenOptions::new().create(true).truncate(false).write(true).open(directory.join(RESERVE))?;
    reserve.set_len(RESERVE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(fd: i64, name: &str, made: bool) -> Event {
        Event::Open { fd, name: name.into(), made, emptied: false }
    }

    fn write(at: u64, data: &[u8]) -> Event {
        Event::Write { fd: 3, at, data: data.to_vec() }
    }

    fn after(events: &[Event], strict: bool, choice: Choice) -> BTreeMap<String, Vec<u8>> {
        let mut disk = Disk { strict, ..Disk::default() };
        events.iter().for_each(|event| disk.happen(event));
        let image = disk.image(choice, &mut Rng::new(1));
        image.into_iter().map(|(name, content)| (name, whole(&content))).collect()
    }

    fn whole(content: &Content) -> Vec<u8> {
        let mut bytes = content.bytes.clone();
        bytes.resize(content.length, 0);
        bytes
    }

    #[test]
    fn content_without_its_last_zeros_is_the_same_content() {
        let mut rng = Rng::new(5);
        for _ in 0..2_000 {
            let (mut content, mut plain) = (Content::default(), Vec::<u8>::new());
            for _ in 0..rng.index(8) {
                if rng.one_in(4) {
                    let length = rng.index(40);
                    plain.resize(length, 0);
                    content.resize(length);
                    continue;
                }
                let at = rng.index(30);
                let data: Vec<u8> = (0..rng.index(12)).map(|_| u8::from(rng.one_in(3))).collect();
                plain.resize(plain.len().max(at + data.len()), 0);
                plain[at..at + data.len()].copy_from_slice(&data);
                if data.iter().all(|byte| *byte == 0) {
                    content.clear(at, data.len());
                } else {
                    content.write(at, &data);
                }
                assert_eq!(whole(&content), plain);
            }
        }
    }

    #[test]
    fn only_what_was_synced_is_sure() {
        let synced = [open(3, "a", true), write(0, b"one"), Event::Sync { fd: 3, ok: true }, write(1, b"xy")];
        assert_eq!(after(&synced, false, Choice::Dropped)["a"], b"one");
        assert_eq!(after(&synced, false, Choice::Kept)["a"], b"oxy");
        assert!(after(&synced, true, Choice::Dropped).is_empty(), "the name was never synced");
        let named = [synced.as_slice(), &[open(4, ".", false), Event::Sync { fd: 4, ok: true }]].concat();
        assert_eq!(after(&named, true, Choice::Dropped)["a"], b"one");
    }

    #[test]
    fn a_failed_sync_dooms_what_came_before_it() {
        let failed = [
            open(3, "a", true),
            Event::Sync { fd: 3, ok: true },
            write(0, b"one"),
            Event::Sync { fd: 3, ok: false },
            Event::Sync { fd: 3, ok: true },
        ];
        assert_eq!(after(&failed, false, Choice::Dropped)["a"], b"");
        let again = [failed.as_slice(), &[write(0, b"two"), Event::Sync { fd: 3, ok: true }]].concat();
        assert_eq!(after(&again, false, Choice::Dropped)["a"], b"two");
    }

    #[test]
    fn a_removed_file_may_still_be_there_and_a_new_one_not_yet() {
        let events = [
            open(3, "a", true),
            write(0, b"old"),
            Event::Sync { fd: 3, ok: true },
            Event::Close { fd: 3 },
            Event::Unlink { name: "a".into() },
            open(3, "a", true),
            write(0, b"new"),
        ];
        assert_eq!(after(&events, false, Choice::Dropped)["a"], b"old");
        assert_eq!(after(&events, false, Choice::Kept)["a"], b"new");
    }
}
