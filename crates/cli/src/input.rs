//! Reading what a command is given by a file or by stdin. Reading may wait for as long as the other side likes, so it
//! happens on a thread of its own: Ctrl-C and a request to end are heard meanwhile.

use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// Reads a file, or stdin when the path is `-`, but never more than `most` bytes.
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

/// Runs something that reads. When the command is ended meanwhile, the thread is left behind and ends with the process.
pub(crate) async fn on_a_thread<T, E>(read: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<T, E>
where
    T: Send + 'static,
    E: From<io::Error> + Send + 'static,
{
    let ended = tokio::task::spawn_blocking(read).await;
    ended.unwrap_or_else(|_| Err(io::Error::other("the thread that reads the input broke").into()))
}
