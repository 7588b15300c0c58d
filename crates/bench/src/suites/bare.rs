//! The bare limit: the rate that the disk and the threads allow when only bytes are appended to a file. The
//! same number of producers each wait for their own record to be durable; one thread appends all waiting
//! records to a preallocated file and syncs once for all of them.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use tokio::sync::{mpsc, oneshot};

/// A record to append.
pub(super) struct Append {
    pub(super) bytes: Vec<u8>,
    pub(super) done: oneshot::Sender<()>,
}

/// The file and the thread that appends to it.
pub(super) struct BareFile {
    pub(super) sender: mpsc::Sender<Append>,
    thread: std::thread::JoinHandle<io::Result<u64>>,
}

impl BareFile {
    /// Creates a file with room for `bytes` and starts its thread.
    pub(super) fn start(path: &Path, bytes: u64) -> io::Result<Self> {
        let mut file = File::create(path)?;
        let zeros = vec![0_u8; 1 << 20];
        for _ in 0..=(bytes >> 20) {
            file.write_all(&zeros)?;
        }
        file.sync_all()?;
        let (sender, mut waiting) = mpsc::channel::<Append>(4_096);
        let thread = std::thread::spawn(move || {
            let (mut at, mut syncs) = (0, 0);
            while let Some(first) = waiting.blocking_recv() {
                let mut group = vec![first];
                while let Ok(next) = waiting.try_recv() {
                    group.push(next);
                }
                let batch: Vec<u8> = group.iter().flat_map(|append| append.bytes.iter().copied()).collect();
                file.write_all_at(&batch, at)?;
                file.sync_data()?;
                at += batch.len() as u64;
                syncs += 1;
                for append in group {
                    let _ = append.done.send(());
                }
            }
            Ok(syncs)
        });
        Ok(Self { sender, thread })
    }

    /// Stops the thread and returns the number of syncs.
    pub(super) fn finish(self) -> io::Result<u64> {
        drop(self.sender);
        self.thread.join().map_err(|_| io::Error::other("the bare file's thread panicked"))?
    }
}
