//! Reads input from a file or from stdin. Reading may block, so it happens on a separate thread while signals are
//! still handled.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Reads a file, or stdin if the path is `-`, up to `most` bytes.
pub(crate) async fn bytes(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let path: PathBuf = path.to_owned();
    on_a_thread(move || {
        let mut bytes = Vec::new();
        if path == Path::new("-") {
            io::stdin().lock().take(most).read_to_end(&mut bytes)?;
        } else {
            std::fs::File::open(path)?.take(most).read_to_end(&mut bytes)?;
        }
        Ok(bytes)
    })
    .await
}

/// Runs a blocking read. If the command ends first, the thread is left behind and ends with the process.
pub(crate) async fn on_a_thread<T, E>(read: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<T, E>
where
    T: Send + 'static,
    E: From<io::Error> + Send + 'static,
{
    let ended = tokio::task::spawn_blocking(read).await;
    ended.unwrap_or_else(|_| Err(io::Error::other("the thread that reads the input panicked").into()))
}
