//! A store behind a wire that can be cut: a real data directory, held and served by this process, and a socket in
//! another directory that passes everything on, or does not. What an executor sees of it is a real remote store
//! with real failures: nobody answers, the request never arrives, the answer is lost.

use redrive::OpenOptions;
use redrive::core::store::Store;
use redrive::store::remote::RemoteStore;
use std::sync::Arc;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

/// What the wire does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wire {
    /// Passes everything on.
    Whole,
    /// Hangs up.
    Cut,
    /// Passes nothing on, and does not hang up.
    Stuck,
    /// Passes everything on, but hangs up instead of passing on the answer to an import.
    LosesAnswers,
}

/// A store and the wire to it.
pub(super) struct Far {
    /// The store itself, at the other end.
    pub(super) store: Arc<dyn Store>,
    /// The store as it is seen from here.
    pub(super) remote: Arc<dyn Store>,
    wire: watch::Sender<Wire>,
    _directories: [TempDir; 2],
}

impl Far {
    pub(super) async fn new() -> Self {
        let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let [held, here] = &directories;
        let store = redrive::open(held.path(), OpenOptions::default()).await.unwrap();
        let there = held.path().join("socket");
        let listener = UnixListener::bind(here.path().join("socket")).unwrap();
        let (wire, seen) = watch::channel(Wire::Whole);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                if *seen.borrow() == Wire::Cut {
                    continue;
                }
                let far = UnixStream::connect(&there).await.unwrap();
                tokio::spawn(pass(near, far, seen.clone()));
            }
        });
        let remote = Arc::new(RemoteStore::connect(here.path()).await.unwrap());
        Self { store, remote, wire, _directories: directories }
    }

    pub(super) fn set(&self, wire: Wire) {
        self.wire.send(wire).unwrap();
    }
}

/// Passes bytes both ways as long as the wire does; ends, and so hangs up, when it does not.
async fn pass(mut near: UnixStream, mut far: UnixStream, mut wire: watch::Receiver<Wire>) {
    let (mut asked, mut answered) = ([0; 4_096], [0; 4_096]);
    let mut importing = false;
    loop {
        let now = *wire.borrow_and_update();
        if now == Wire::Cut {
            return;
        }
        tokio::select! {
            changed = wire.changed() => if changed.is_err() { return },
            n = near.read(&mut asked), if now != Wire::Stuck => match n {
                Ok(n) if n > 0 => {
                    importing |= asked[..n].windows(IMPORT.len()).any(|part| part == IMPORT);
                    if far.write_all(&asked[..n]).await.is_err() { return }
                }
                Ok(_) | Err(_) => return,
            },
            n = far.read(&mut answered), if now != Wire::Stuck => match n {
                Ok(n) if n > 0 && !(importing && now == Wire::LosesAnswers) => {
                    if near.write_all(&answered[..n]).await.is_err() { return }
                }
                Ok(_) | Err(_) => return,
            },
        }
    }
}

/// How a request to import begins on the wire: its name, after the length of the name.
const IMPORT: &[u8] = b"\xa6import";
