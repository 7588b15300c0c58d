//! A process that waits to take over a directory finds that its holder's store has stopped: it keeps waiting.

use redrive_core::error::{CallError, StoreError, StoreErrorKind};
use redrive_core::time::Span;
use redrive_store::sqlite::{Options, SqliteStore};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

async fn read_frame(stream: &mut UnixStream) -> Option<Vec<u8>> {
    let length = stream.read_u32().await.ok()?;
    let mut bytes = vec![0; length as usize];
    stream.read_exact(&mut bytes).await.ok()?;
    Some(bytes)
}

async fn send_frame(stream: &mut UnixStream, bytes: &[u8]) {
    stream.write_u32(u32::try_from(bytes.len()).unwrap()).await.unwrap();
    stream.write_all(bytes).await.unwrap();
}

/// Greets like a holder, by echoing the greeting it receives, and replies to every call that its store has stopped.
async fn stopped_holder(listener: UnixListener) {
    let stopped = StoreError::new(StoreErrorKind::Stopped, "the disk failed");
    let reply = serde_json::to_vec(&Err::<(), CallError>(stopped.into())).unwrap();
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let hello = read_frame(&mut stream).await.unwrap();
        send_frame(&mut stream, &hello).await;
        while read_frame(&mut stream).await.is_some() {
            send_frame(&mut stream, &reply).await;
        }
    }
}

fn kind<T>(outcome: Result<T, CallError>) -> Option<StoreErrorKind> {
    match outcome {
        Err(CallError::Store(error)) => Some(error.kind),
        Err(CallError::Refused(_)) | Ok(_) => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_waits_for_a_stopped_holder_and_then_takes_over() {
    let home = TempDir::new().unwrap();
    let held = SqliteStore::open(home.path(), Options::default()).unwrap();
    let socket = home.path().join("socket");
    let holder = tokio::spawn(stopped_holder(UnixListener::bind(&socket).unwrap()));
    let patience = Span::from_secs(600);
    let passing = redrive_store::open(home.path(), false, false, patience).await.unwrap();
    assert_eq!(
        kind(passing.queues().await),
        Some(StoreErrorKind::Stopped),
        "a process that does not take over gets the error"
    );
    drop(passing);
    let waiting = redrive_store::open(home.path(), false, true, patience).await.unwrap();
    for _ in 0..2 {
        assert_eq!(kind(waiting.queues().await), Some(StoreErrorKind::Unreachable));
    }
    holder.abort();
    let _ = holder.await;
    drop(held);
    assert_eq!(waiting.queues().await, Ok(Vec::new()), "it holds the store now");
}
