//! A process that waits to take over a directory finds that its holder's store has stopped: it keeps waiting.

use redrive_core::error::{CallError, StoreError, StoreErrorKind};
use redrive_core::store::Encoding;
use redrive_core::time::Span;
use redrive_store::sqlite::{Options, SqliteStore};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

/// Reads a greeting.
async fn read_greeting(stream: &mut UnixStream) -> Vec<u8> {
    let length = stream.read_u32().await.unwrap();
    let mut bytes = vec![0; length as usize];
    stream.read_exact(&mut bytes).await.unwrap();
    bytes
}

/// Reads a call and returns its id.
async fn read_call(stream: &mut UnixStream) -> Option<u64> {
    let length = stream.read_u32().await.ok()?;
    let id = stream.read_u64().await.ok()?;
    let mut bytes = vec![0; length as usize];
    stream.read_exact(&mut bytes).await.ok()?;
    Some(id)
}

/// Greets like a holder, by echoing the greeting it receives, and replies to every call that its store has stopped.
async fn stopped_holder(listener: UnixListener) {
    let stopped = StoreError::new(StoreErrorKind::Stopped, "the disk failed");
    let mut reply = Vec::new();
    Encoding::Compact.encode(&mut reply, &Err::<(), CallError>(stopped.into())).unwrap();
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let hello = read_greeting(&mut stream).await;
        stream.write_u32(u32::try_from(hello.len()).unwrap()).await.unwrap();
        stream.write_all(&hello).await.unwrap();
        while let Some(id) = read_call(&mut stream).await {
            stream.write_u32(u32::try_from(reply.len()).unwrap()).await.unwrap();
            stream.write_u64(id).await.unwrap();
            stream.write_all(&reply).await.unwrap();
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
