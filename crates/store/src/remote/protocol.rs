//! The protocol of the socket in a data directory: each side greets with its version, then every frame to the holder is a
//! [`redrive_core::store::Call`] and every frame back is its encoded reply. A frame is its length in four bytes, most
//! significant first, and that many bytes of JSON.

use redrive_core::error::{StoreError, StoreErrorKind};
use redrive_core::limits;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// The version of the protocol and of every type in it. Both sides must have the same.
pub(super) const VERSION: u32 = 7;

/// The bytes in front of a frame that hold its length.
const LENGTH_BYTES: usize = 4;

/// The first frame of each side.
#[derive(Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) redrive: u32,
    /// Why the holder takes no calls on this connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) refused: Option<StoreError>,
}

impl Hello {
    /// The greeting of a side that is ready to talk.
    pub(super) const fn new() -> Self {
        Self { redrive: VERSION, refused: None }
    }

    /// The greeting of a holder that takes no calls from this client.
    pub(super) const fn refusing(reason: StoreError) -> Self {
        Self { redrive: VERSION, refused: Some(reason) }
    }
}

fn protocol(what: impl std::fmt::Display) -> StoreError {
    StoreError::new(StoreErrorKind::Protocol, format!("the store's socket: {what}"))
}

fn unreachable(error: &std::io::Error) -> StoreError {
    let text = format!(
        "the process that holds the data directory went away before it answered ({error}); \
         whether the request took effect is not known: look, then ask again"
    );
    StoreError::new(StoreErrorKind::Unreachable, text)
}

/// A frame that is being written.
pub(super) struct Frame(Vec<u8>);

impl Frame {
    /// An empty frame, with room for its length.
    pub(super) fn new() -> Self {
        Self(vec![0; LENGTH_BYTES])
    }

    /// Where the contents are appended.
    pub(super) const fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }

    /// The finished frame, if its contents have at most `max` bytes.
    pub(super) fn finish(mut self, max: usize) -> Result<Vec<u8>, StoreError> {
        let length = self.0.len().saturating_sub(LENGTH_BYTES);
        if length > max {
            let text = format!(
                "{length} bytes are too many to be sent over the store's socket at once, at most {max} can be; \
                 ask for less"
            );
            return Err(StoreError::new(StoreErrorKind::Unsupported, text));
        }
        let prefix = u32::try_from(length).map_err(protocol)?.to_be_bytes();
        self.0.splice(..LENGTH_BYTES, prefix);
        Ok(self.0)
    }
}

/// The frame of a value.
pub(super) fn pack<T: Serialize>(value: &T) -> Result<Vec<u8>, StoreError> {
    let mut frame = Frame::new();
    serde_json::to_writer(frame.buffer(), value).map_err(protocol)?;
    frame.finish(limits::FRAME_BYTES_MAX)
}

/// Writes one frame.
pub(super) async fn write(to: &mut (impl AsyncWrite + Unpin), frame: &[u8]) -> Result<(), StoreError> {
    to.write_all(frame).await.map_err(|error| unreachable(&error))
}

/// Reads the contents of one frame. Returns `None` if the other side has hung up between frames.
pub(super) async fn read(from: &mut (impl AsyncRead + Unpin)) -> Result<Option<Vec<u8>>, StoreError> {
    let mut length = [0; LENGTH_BYTES];
    match from.read_exact(&mut length).await {
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(unreachable(&error)),
    }
    let length = u32::from_be_bytes(length) as usize;
    if length > limits::FRAME_BYTES_MAX {
        return Err(protocol(format!("a frame of {length} bytes is announced; that is not our protocol")));
    }
    // The announced length is only a claim: memory grows with the bytes that really arrive.
    let mut bytes = Vec::new();
    from.take(length as u64).read_to_end(&mut bytes).await.map_err(|error| unreachable(&error))?;
    if bytes.len() < length {
        return Err(unreachable(&std::io::ErrorKind::UnexpectedEof.into()));
    }
    Ok(Some(bytes))
}

/// Reads a value from one frame. Returns `None` if the other side has hung up between frames.
pub(super) async fn receive<T: DeserializeOwned>(
    from: &mut (impl AsyncRead + Unpin),
) -> Result<Option<T>, StoreError> {
    let bytes = read(from).await?;
    bytes.map(|bytes| serde_json::from_slice(&bytes)).transpose().map_err(protocol)
}
