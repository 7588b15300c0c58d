//! A model of a disk whose power fails. It is harsher than a real disk:
//!
//! - Data written before a successful sync of its file is durable. Any part of the data written since then
//!   may survive, in any order.
//! - The length of a file behaves like its content.
//! - A name change (create, rename, remove) is durable once the directory is synced. In strict mode only
//!   then; otherwise also once the file itself is synced, as on ext4.
//! - Data written before a failed sync may be lost even if a later sync succeeds.
//!
//! Shared memory files (`-shm`) are not part of the image: SQLite rebuilds them from the log. Neither is the
//! reserved space of the store, because nothing is ever read from it.

use super::rng::Rng;
use super::trace::{Event, zeros_at_end};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

/// A change of a file's content that is not durable yet.
#[derive(Clone, Debug)]
enum Change {
    Write { at: usize, data: Vec<u8> },
    Zeros { at: usize, length: usize },
    Length(usize),
}

/// A change, and whether a sync failed after it.
#[derive(Clone, Debug)]
struct Pending {
    change: Change,
    doomed: bool,
}

/// The content of a file. The store preallocates its log with zeros, so trailing zeros are not stored.
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
        // Zeros beyond the stored bytes are already there.
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
    durable: Content,
    pending: Vec<Pending>,
}

/// A name change that is not durable yet.
#[derive(Clone, Debug)]
enum NameChange {
    Made(String, usize),
    Renamed(String, String),
    Removed(String),
}

/// The disk at one point of a recording.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    inodes: Vec<Inode>,
    /// Durable names.
    durable: BTreeMap<String, usize>,
    /// Names as the program sees them.
    now: BTreeMap<String, usize>,
    name_changes: Vec<NameChange>,
    open: BTreeMap<i64, Option<usize>>,
    /// The file that was written to last.
    last: Option<usize>,
    /// Whether a name is durable only after a sync of the directory.
    strict: bool,
}

/// What happens to changes that are not durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossMode {
    /// All of them survive, as after a kill of the process.
    Kept,
    /// None of them survives.
    Dropped,
    /// Some writes survive, each complete and in order.
    Writes,
    /// Some 4 KiB blocks of the writes survive.
    Blocks,
    /// Some 512-byte blocks of the writes survive.
    Sectors,
    /// Some blocks survive in a different order: an older write may come last.
    Reordered,
    /// All survive, but the last write ends at a multiple of 512 bytes.
    TornSector,
    /// All survive, but the last write ends at any byte.
    TornByte,
    /// All changes of some files survive, none of the others.
    Files,
    /// The lengths survive with some of the content; the rest is zeros.
    Zeros,
}

impl LossMode {
    /// Every mode.
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

/// The content of a directory after a restart of the machine.
pub type Image = BTreeMap<String, Content>;

/// The file that reserves disk space for the store, and its size.
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

/// Splits a write at the block boundaries of its file.
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

/// The first `keep` bytes of a write.
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
    /// The range of bytes that the change covers.
    fn range(&self) -> Option<(usize, usize)> {
        match self {
            Self::Write { at, data } => Some((*at, at + data.len())),
            Self::Zeros { at, length } => Some((*at, at + length)),
            Self::Length(_) => None,
        }
    }
}

impl Disk {
    /// A disk with this durable image and no pending changes. In strict mode names are durable only after a
    /// sync of the directory.
    #[must_use]
    pub fn with_image(image: &Image, strict: bool) -> Self {
        let mut disk = Self { strict, ..Self::default() };
        for (name, content) in image {
            disk.durable.insert(name.clone(), disk.inodes.len());
            disk.inodes.push(Inode { durable: content.clone(), pending: Vec::new() });
        }
        disk.now = disk.durable.clone();
        disk
    }

    /// Applies the next event of the recording.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Open { fd, name, created, truncated } => self.opened(*fd, name, *created, *truncated),
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
                    self.name_changes.push(NameChange::Renamed(from.clone(), to.clone()));
                }
            }
            Event::Unlink { name } => {
                self.now.remove(name);
                self.name_changes.push(NameChange::Removed(name.clone()));
            }
            Event::LogLine(_) => {}
        }
    }

    fn opened(&mut self, fd: i64, name: &str, created: bool, truncated: bool) {
        if name == "." || !is_on_disk(name) {
            self.open.insert(fd, None);
            return;
        }
        let inode = match self.now.get(name) {
            Some(inode) if !created => *inode,
            Some(_) | None => {
                self.inodes.push(Inode::default());
                let inode = self.inodes.len() - 1;
                self.now.insert(name.to_owned(), inode);
                self.name_changes.push(NameChange::Made(name.to_owned(), inode));
                inode
            }
        };
        self.open.insert(fd, Some(inode));
        if truncated {
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
                // A write before a failed sync stays pending, unless a newer write to the same bytes is
                // durable.
                let mut unconfirmed = Vec::new();
                for pending in std::mem::take(&mut inode.pending) {
                    if pending.doomed {
                        unconfirmed.push(pending);
                    } else {
                        unconfirmed.retain(|old| !overlaps(&old.change, &pending.change));
                        apply(&mut inode.durable, &pending.change);
                    }
                }
                inode.pending = unconfirmed;
                if !self.strict {
                    let (durable, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.name_changes)
                        .into_iter()
                        .partition(|change| matches!(change, NameChange::Made(_, inode) if *inode == n));
                    self.name_changes = rest;
                    durable.iter().for_each(|change| rename(&mut self.durable, change));
                }
            }
            Some(None) if ok => {
                for change in std::mem::take(&mut self.name_changes) {
                    rename(&mut self.durable, &change);
                }
            }
            Some(None) | None => {}
        }
    }

    /// Whether nothing can be lost any more.
    #[must_use]
    pub fn is_durable(&self) -> bool {
        self.name_changes.is_empty() && self.now.values().all(|n| self.is_settled(*n))
    }

    fn is_settled(&self, n: usize) -> bool {
        self.inodes.get(n).is_none_or(|inode| inode.pending.is_empty())
    }

    /// The image that remains if the power fails now, with this loss mode.
    #[must_use]
    pub fn image(&self, choice: LossMode, rng: &mut Rng) -> Image {
        let mut names = self.durable.clone();
        for change in &self.name_changes {
            let kept = match choice {
                LossMode::Kept | LossMode::TornSector | LossMode::TornByte => true,
                LossMode::Dropped => false,
                LossMode::Writes
                | LossMode::Blocks
                | LossMode::Sectors
                | LossMode::Reordered
                | LossMode::Files
                | LossMode::Zeros => !rng.one_in(4),
            };
            if kept {
                rename(&mut names, change);
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

fn rename(names: &mut BTreeMap<String, usize>, change: &NameChange) {
    match change {
        NameChange::Made(name, inode) => {
            names.insert(name.clone(), *inode);
        }
        NameChange::Renamed(from, to) => {
            if let Some(inode) = names.remove(from) {
                names.insert(to.clone(), inode);
            }
        }
        NameChange::Removed(name) => {
            names.remove(name);
        }
    }
}

impl Inode {
    /// The content of this file that remains with this loss mode.
    fn content(&self, choice: LossMode, is_last: bool, rng: &mut Rng) -> Content {
        let mut content = self.durable.clone();
        let changes: Vec<&Change> = self.pending.iter().map(|pending| &pending.change).collect();
        let kept: Vec<Change> = match choice {
            LossMode::Kept => changes.into_iter().cloned().collect(),
            LossMode::Dropped => Vec::new(),
            LossMode::Writes => changes.into_iter().filter(|_| rng.one_in(2)).cloned().collect(),
            LossMode::Blocks => some_blocks(&changes, 4_096, rng),
            LossMode::Sectors => some_blocks(&changes, 512, rng),
            LossMode::Reordered => {
                let mut pieces = some_blocks(&changes, 4_096, rng);
                rng.shuffle(&mut pieces);
                pieces
            }
            LossMode::TornSector | LossMode::TornByte => {
                let mut all: Vec<Change> = changes.into_iter().cloned().collect();
                if let Some(end) = all.pop_if(|_| is_last) {
                    let length = end.range().map_or(0, |(from, to)| to - from);
                    let cut = rng.index(length + 1);
                    let keep = if choice == LossMode::TornSector { cut - cut % 512 } else { cut };
                    all.push(torn(&end, keep));
                }
                all
            }
            LossMode::Files => {
                if rng.one_in(2) {
                    changes.into_iter().cloned().collect()
                } else {
                    Vec::new()
                }
            }
            LossMode::Zeros => {
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

/// A fingerprint of an image, to skip images that were already inspected.
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
/// Any error of the file system.
pub fn read_image(directory: &Path) -> io::Result<Image> {
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

/// Replaces the content of a directory by an image, and adds the file of reserved space.
///
/// # Errors
/// Any error of the file system.
pub fn write_image(image: &Image, directory: &Path) -> io::Result<()> {
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

    fn open(fd: i64, name: &str, created: bool) -> Event {
        Event::Open { fd, name: name.into(), created, truncated: false }
    }

    fn write(at: u64, data: &[u8]) -> Event {
        Event::Write { fd: 3, at, data: data.to_vec() }
    }

    fn after(events: &[Event], strict: bool, choice: LossMode) -> BTreeMap<String, Vec<u8>> {
        let mut disk = Disk { strict, ..Disk::default() };
        events.iter().for_each(|event| disk.apply(event));
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
        assert_eq!(after(&synced, false, LossMode::Dropped)["a"], b"one");
        assert_eq!(after(&synced, false, LossMode::Kept)["a"], b"oxy");
        assert!(after(&synced, true, LossMode::Dropped).is_empty(), "the name was never synced");
        let named = [synced.as_slice(), &[open(4, ".", false), Event::Sync { fd: 4, ok: true }]].concat();
        assert_eq!(after(&named, true, LossMode::Dropped)["a"], b"one");
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
        assert_eq!(after(&failed, false, LossMode::Dropped)["a"], b"");
        let repro = [failed.as_slice(), &[write(0, b"two"), Event::Sync { fd: 3, ok: true }]].concat();
        assert_eq!(after(&repro, false, LossMode::Dropped)["a"], b"two");
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
        assert_eq!(after(&events, false, LossMode::Dropped)["a"], b"old");
        assert_eq!(after(&events, false, LossMode::Kept)["a"], b"new");
    }
}
