//! Who waits for a directory and hears that its holder's store has stopped: that is not its own end.

use redrive_core::error::{Error, StoreError, StoreErrorKind};
use redrive_core::time::Span;
use redrive_store::sqlite::{Options, SqliteStore};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

async fn frame(stream: &mut UnixStream) -> Option<Vec<u8>> {
    let length = stream.read_u32().await.ok()?;
    let mut bytes = vec![0; length as usize];
    stream.read_exact(&mut bytes).await.ok()?;
    Some(bytes)
}

async fn say(stream: &mut UnixStream, bytes: &[u8]) {
    stream.write_u32(u32::try_from(bytes.len()).unwrap()).await.unwrap();
    stream.write_all(bytes).await.unwrap();
}

/// Greets like a holder, by saying back what it hears, and answers every call that its store has stopped.
async fn stopped_holder(listener: UnixListener) {
    let stopped = StoreError::new(StoreErrorKind::Stopped, "the disk failed");
    let answer = serde_json::to_vec(&Err::<(), Error>(stopped.into())).unwrap();
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        let hello = frame(&mut stream).await.unwrap();
        say(&mut stream, &hello).await;
        while frame(&mut stream).await.is_some() {
            say(&mut stream, &answer).await;
        }
    }
}

fn kind<T>(outcome: Result<T, Error>) -> Option<StoreErrorKind> {
    match outcome {
        Err(Error::Store(error)) => Some(error.kind),
        Err(Error::Refused(_)) | Ok(_) => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stopped_holder_is_waited_for_and_followed() {
    let home = TempDir::new().unwrap();
    let held = SqliteStore::open(home.path(), Options::default()).unwrap();
    let socket = home.path().join("socket");
    let holder = tokio::spawn(stopped_holder(UnixListener::bind(&socket).unwrap()));
    let patience = Span::from_secs(600);
    let passing = redrive_store::open(home.path(), false, false, patience).await.unwrap();
    assert_eq!(
        kind(passing.queues().await),
        Some(StoreErrorKind::Stopped),
        "who does not inherit is told as it is"
    );
    drop(passing);
    let heir = redrive_store::open(home.path(), false, true, patience).await.unwrap();
    for _ in 0..2 {
        assert_eq!(kind(heir.queues().await), Some(StoreErrorKind::Unreachable));
    }
    holder.abort();
    let _ = holder.await;
    drop(held);
    assert_eq!(heir.queues().await, Ok(Vec::new()), "it holds the store now");
}
