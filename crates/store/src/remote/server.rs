//! The side that holds the directory: carries out calls from its socket for as long as it holds the directory.

use super::protocol::{Frame, Hello, VERSION, pack, receive, write};
use crate::trust;
use redrive_core::error::{Refusal, StoreError, StoreErrorKind, StoreResult};
use redrive_core::limits;
use redrive_core::store::{Call, Store, encode_reply};
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;

/// One client. Reading ahead shows whether it is still connected without losing what it sent.
type Connection = BufReader<UnixStream>;

/// Serves a store until it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    task: JoinHandle<()>,
    path: PathBuf,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
        let _ = fs::remove_file(&self.path);
    }
}

/// Begins to serve a store on a socket. The caller holds the directory's lock, so an old socket is nobody's.
pub(crate) fn serve(store: &Arc<dyn Store>, path: &Path) -> Result<Server, StoreError> {
    let refused = |e: &std::io::Error| {
        StoreError::new(StoreErrorKind::Io, format!("cannot serve on {}: {e}", path.display()))
    };
    let _ = fs::remove_file(path);
    let listener =
        super::address(path).and_then(|at| UnixListener::bind(at.path())).map_err(|e| refused(&e))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(|e| refused(&e))?;
    let store = Arc::downgrade(store);
    let task = tokio::spawn(async move {
        let places = Arc::new(Semaphore::new(limits::CONNECTIONS_MAX));
        let waits = Arc::new(Semaphore::new(limits::WAITS_MAX));
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                // Out of descriptors, most likely: let others finish first.
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                continue;
            };
            let place = match admit(&stream, &places) {
                Ok(place) => place,
                Err(why) => {
                    refuse(stream, why);
                    continue;
                }
            };
            let (store, waits) = (Weak::clone(&store), Arc::clone(&waits));
            tokio::spawn(async move {
                let _ = converse(BufReader::new(stream), &store, &waits).await;
                drop(place);
            });
        }
    });
    Ok(Server { task, path: path.to_owned() })
}

/// Admits a client of this user or root, as long as there are connections left.
fn admit(stream: &UnixStream, places: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, StoreError> {
    let unknown = |e| {
        StoreError::new(StoreErrorKind::Untrusted, format!("the system does not say who is calling: {e}"))
    };
    trust::check_caller(stream.peer_cred().map_err(unknown)?.uid())?;
    Arc::clone(places).try_acquire_owned().map_err(|_| {
        let why = format!(
            "the process that holds the data directory serves {} connections already and takes no more; \
             try again when some of its callers have ended, or share one connection between them",
            limits::CONNECTIONS_MAX
        );
        StoreError::new(StoreErrorKind::Busy, why)
    })
}

/// Sends the reason and hangs up. It fits into the buffer of a new connection, so nobody waits until it is read.
fn refuse(stream: UnixStream, why: StoreError) {
    let Ok(frame) = pack(&Hello::refusing(why)) else { return };
    if let Ok(mut stream) = stream.into_std() {
        let _ = stream.write_all(&frame);
    }
}

async fn converse(
    mut stream: Connection,
    store: &Weak<dyn Store>,
    waits: &Semaphore,
) -> Result<(), StoreError> {
    let greeting = tokio::time::timeout(limits::GREETING_MAX, receive::<Hello>(&mut stream));
    let Some(hello) = greeting.await.unwrap_or(Ok(None))? else { return Ok(()) };
    write(&mut stream, &pack(&Hello::new())?).await?;
    if hello.redrive != VERSION {
        return Ok(());
    }
    loop {
        let call = match receive::<Call>(&mut stream).await {
            Ok(Some(call)) => call,
            Ok(None) => return Ok(()),
            Err(error) => {
                let _ = write(&mut stream, &pack(&StoreResult::<()>::Err(error.clone().into()))?).await;
                return Err(error);
            }
        };
        let Some(store) = store.upgrade() else { return Ok(()) };
        answer(&mut stream, store.as_ref(), waits, call).await?;
    }
}

/// Waits on behalf of a client, which may go away meanwhile. Waits have a limit of their own, so that they never use up
/// the connections that other calls need.
async fn wait<T>(
    stream: &mut Connection,
    waits: &Semaphore,
    wait: impl Future<Output = StoreResult<T>>,
) -> Result<StoreResult<T>, StoreError> {
    let Ok(_permit) = waits.try_acquire() else {
        let why = format!(
            "{} callers wait for work through the process that holds the data directory, and it takes no more; \
             lease without --wait and ask again later, or let one `redrive work --concurrency N` do the work of many",
            limits::WAITS_MAX
        );
        return Ok(Err(StoreError::new(StoreErrorKind::Busy, why).into()));
    };
    tokio::select! {
        waited = wait => Ok(waited),
        () = hung_up(stream) => {
            Err(StoreError::new(StoreErrorKind::Unreachable, "the client went away while it waited"))
        }
    }
}

/// Returns when the other side has hung up. Never returns if it sent more instead, which stays to be read.
async fn hung_up(stream: &mut Connection) {
    if stream.fill_buf().await.is_ok_and(|said| !said.is_empty()) {
        std::future::pending().await
    }
}

/// Sends one reply, or the reason why it cannot be sent: a client that only sees a closed connection asks again.
async fn reply(stream: &mut Connection, encoded: Frame, max: usize) -> Result<(), StoreError> {
    let frame = match encoded.finish(max) {
        Ok(frame) => frame,
        Err(error) => pack(&StoreResult::<()>::Err(error.into()))?,
    };
    write(stream, &frame).await
}

#[expect(clippy::wildcard_enum_match_arm, reason = "a new verb needs nothing special here")]
async fn answer(
    stream: &mut Connection,
    store: &dyn Store,
    waits: &Semaphore,
    call: Call,
) -> Result<(), StoreError> {
    let mut frame = Frame::new();
    match call {
        Call::Wait { queues, at_most } => {
            let waited = wait(stream, waits, store.wait(queues, at_most)).await?;
            encode_reply(frame.buffer(), &waited)?;
        }
        Call::Changes { since, at_most } => {
            let changed = wait(stream, waits, store.changes(since, at_most)).await?;
            encode_reply(frame.buffer(), &changed)?;
        }
        Call::Backup { target } if !Path::new(&target).is_absolute() => {
            let text = format!("{target:?} is not an absolute path; name the new directory from the root on");
            let refused = Refusal::invalid("target", text).into();
            encode_reply(frame.buffer(), &StoreResult::<u64>::Err(refused))?;
        }
        other => other.apply(store, frame.buffer()).await?,
    }
    reply(stream, frame, limits::FRAME_BYTES_MAX).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use redrive_core::error::CallError;

    #[tokio::test]
    async fn a_reply_that_is_too_long_is_replaced_by_the_reason() {
        let (here, mut there) = UnixStream::pair().expect("a pair");
        let mut here = BufReader::new(here);
        for (text, fits) in [("short", true), ("much longer than that", false)] {
            let mut frame = Frame::new();
            encode_reply(frame.buffer(), &StoreResult::Ok(text)).expect("it has a JSON form");
            reply(&mut here, frame, 20).await.expect("it is sent");
            let heard: Option<StoreResult<String>> = receive(&mut there).await.expect("a frame");
            match heard.expect("nobody hangs up") {
                Ok(heard) => assert!(fits && heard == text),
                Err(CallError::Store(error)) => {
                    assert!(!fits && error.kind == StoreErrorKind::Unsupported, "{error}");
                    assert!(error.text.contains("ask for less"), "{error}");
                }
                Err(CallError::Refused(refusal)) => panic!("nothing was refused: {refusal}"),
            }
        }
    }
}
