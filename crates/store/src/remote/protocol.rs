//! The protocol between the process that holds a store and its clients, on any connection that carries bytes in order.
//!
//! Each side first sends its greeting: the length in four bytes, most significant first, and that many bytes of JSON with
//! the version of the protocol. The form of the greeting never changes, so that any two versions can tell each other
//! which they are. After it every frame is a length, the id of a call in eight bytes, and the contents:
//!
//! - To the holder, a [`redrive_core::store::Call`]. The client chooses the id, a new one for every call. It may send any
//!   number of calls before the first reply. A frame without contents says that nobody waits for this call any more.
//! - To the client, the encoded reply to the call with this id, in the order in which calls are done. A frame with the id 0
//!   and without contents is the last one: the holder takes no more calls on this connection, and those that have no
//!   reply by then were not carried out.
//!
//! Contents are written in [`Encoding::Compact`].

use super::peer::Peer;
use redrive_core::error::{StoreError, StoreErrorKind};
use redrive_core::limits;
use redrive_core::store::Encoding;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// The version of the protocol and of every type in it. Both sides must have the same.
pub(super) const VERSION: u32 = 9;

/// How the contents of frames are written.
pub(super) const ENCODING: Encoding = Encoding::Compact;

/// The bytes in front of a frame that hold its length.
const LENGTH_BYTES: usize = 4;
/// The bytes in front of a frame that hold its length and its id.
const HEADER_BYTES: usize = LENGTH_BYTES + 8;
/// The room made for each read from a connection: about a hundred small calls.
const READ_BYTES: usize = 32 * 1024;
/// A longer buffer is given back when a connection has nothing more to read for now.
const KEEP_BYTES: usize = 1024 * 1024;
/// Bytes of a greeting, which may carry the reason of a refusal.
const GREETING_BYTES_MAX: usize = 64 * 1024;
/// The id of the frame with which a holder says goodbye. No call has it.
const GOODBYE_ID: u64 = 0;

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

    /// The bytes to send.
    pub(super) fn pack(&self) -> Result<Vec<u8>, StoreError> {
        let text = serde_json::to_vec(self).map_err(unwritable)?;
        let length = u32::try_from(text.len()).map_err(unwritable)?;
        Ok([&length.to_be_bytes(), text.as_slice()].concat())
    }
}

fn unwritable(what: impl std::fmt::Display) -> StoreError {
    StoreError::new(StoreErrorKind::Protocol, format!("a frame of the store's protocol: {what}"))
}

/// A frame that is being written.
pub(super) struct Frame(Vec<u8>);

impl Frame {
    /// An empty frame for the call with this id, with room for its length.
    pub(super) fn new(id: u64) -> Self {
        let mut bytes = vec![0; LENGTH_BYTES];
        bytes.extend(id.to_be_bytes());
        Self(bytes)
    }

    /// The frame that says that nobody waits for this call any more.
    pub(super) fn nobody_waits(id: u64) -> Vec<u8> {
        Self::new(id).0
    }

    /// The last frame of a holder: calls without a reply were not carried out.
    pub(super) fn goodbye() -> Vec<u8> {
        Self::new(GOODBYE_ID).0
    }

    /// Whether this is the last frame of a holder.
    pub(super) const fn is_goodbye(id: u64, contents: &[u8]) -> bool {
        id == GOODBYE_ID && contents.is_empty()
    }

    /// The frame of a value.
    pub(super) fn of<T: Serialize>(id: u64, value: &T) -> Result<Vec<u8>, StoreError> {
        let mut frame = Self::new(id);
        ENCODING.encode(frame.buffer(), value)?;
        frame.finish(limits::FRAME_BYTES_MAX)
    }

    /// Where the contents are appended.
    pub(super) const fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }

    /// The finished frame, if its contents have at most `max` bytes.
    pub(super) fn finish(mut self, max: usize) -> Result<Vec<u8>, StoreError> {
        let length = self.0.len().saturating_sub(HEADER_BYTES);
        if length > max {
            let text = format!(
                "{length} bytes are too many to be sent at once between processes, at most {max} can be; ask for less"
            );
            return Err(StoreError::new(StoreErrorKind::Unsupported, text));
        }
        let prefix = u32::try_from(length).map_err(unwritable)?.to_be_bytes();
        if let Some(room) = self.0.first_chunk_mut() {
            *room = prefix;
        }
        Ok(self.0)
    }
}

/// Writes all bytes, and sees to it that they leave.
pub(super) async fn write(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> std::io::Result<()> {
    to.write_all(bytes).await?;
    to.flush().await
}

/// The reading side of a connection: takes whatever has arrived in one go, and splits it into frames.
pub(super) struct Incoming<R> {
    from: R,
    peer: Peer,
    arrived: Vec<u8>,
    /// The bytes at the beginning of `arrived` that were handed out already.
    taken: usize,
}

impl<R: AsyncRead + Unpin> Incoming<R> {
    pub(super) const fn new(from: R, peer: Peer) -> Self {
        Self { from, peer, arrived: Vec::new(), taken: 0 }
    }

    fn rest(&self) -> &[u8] {
        self.arrived.get(self.taken..).unwrap_or_default()
    }

    /// Waits for more bytes. Returns `false` if the other side has hung up. Nothing is lost if the caller stops waiting.
    pub(super) async fn read_more(&mut self) -> Result<bool, StoreError> {
        if self.taken == self.arrived.len() {
            self.arrived.clear();
            if self.arrived.capacity() > KEEP_BYTES {
                self.arrived = Vec::new();
            }
        } else {
            self.arrived.drain(..self.taken);
        }
        self.taken = 0;
        // What a frame announces is only a claim: memory grows with the bytes that really arrive.
        self.arrived.reserve(READ_BYTES);
        let more = self.from.read_buf(&mut self.arrived).await;
        Ok(more.map_err(|error| self.peer.went_away(Some(&error)))? > 0)
    }

    /// Reads until the other side has hung up, and forgets what it sent.
    pub(super) async fn discard(&mut self) {
        while self.read_more().await.unwrap_or(false) {
            self.taken = self.arrived.len();
        }
    }

    /// The next frame, as the id of its call and its contents, if it has arrived completely.
    pub(super) fn next_frame(&mut self) -> Result<Option<(u64, &[u8])>, StoreError> {
        let Some((header, contents)) = self.rest().split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let (length, id) = header.split_at(LENGTH_BYTES);
        let length = self.length_of(length, limits::FRAME_BYTES_MAX)?;
        if contents.len() < length {
            return Ok(None);
        }
        let id = id.iter().fold(0, |id, byte| id << 8 | u64::from(*byte));
        let from = self.taken + HEADER_BYTES;
        self.taken = from + length;
        Ok(self.arrived.get(from..self.taken).map(|contents| (id, contents)))
    }

    /// Reads the greeting of the other side. Returns `None` if it has hung up instead.
    pub(super) async fn greeting(&mut self) -> Result<Option<Hello>, StoreError> {
        loop {
            if let Some((length, text)) = self.rest().split_first_chunk::<LENGTH_BYTES>() {
                let length = self.length_of(length, GREETING_BYTES_MAX)?;
                if let Some(text) = text.get(..length) {
                    let hello =
                        serde_json::from_slice(text).map_err(|error| self.peer.not_our_protocol(error))?;
                    self.taken += LENGTH_BYTES + length;
                    return Ok(Some(hello));
                }
            }
            if !self.read_more().await? {
                return Ok(None);
            }
        }
    }

    fn length_of(&self, bytes: &[u8], max: usize) -> Result<usize, StoreError> {
        let length = bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        if length > max {
            let what = format!("a frame of {length} bytes is announced; that is not our protocol");
            return Err(self.peer.not_our_protocol(what));
        }
        Ok(length)
    }
}
