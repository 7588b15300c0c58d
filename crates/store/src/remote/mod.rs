//! A store that another process holds, reached over the socket in its directory, or over the network (`tcp`). Every call
//! is one frame to the holder and one frame back; the holder carries it out. All callers of a client share one connection.

mod connection;
mod peer;
mod protocol;
pub(crate) mod server;
mod shared;
#[cfg(feature = "nodes")]
pub mod tcp;

use crate::engine::enqueue::check_batch;
use crate::trust::{self, SOCKET};
use crate::verbs::absolute;
use async_trait::async_trait;
use connection::{Connection, NoReply};
use peer::{NOTHING_DONE, Peer};
use protocol::{ENCODING, Frame, Hello, Incoming, VERSION, write};
use redrive_core::error::{CallError, Refusal, StoreError, StoreErrorKind, StoreResult};
use redrive_core::store::{Call, Caller, Encoding, Reaped, Settlement, Store};
use serde::de::IgnoredAny;
use shared::SharedConnection;
use std::fmt;
use std::fs::File;
use std::future::Future;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;

/// The longest path a socket address holds, with room for its end.
const ADDRESS_MAX: usize = 100;
/// How often a call is sent on a new connection because the last one broke before the call was sent.
const SENDS_MAX: u32 = 3;

/// A path that fits into a socket address: the path itself, or one through a descriptor of its directory.
struct Address {
    path: PathBuf,
    _directory: Option<File>,
}

impl Address {
    fn path(&self) -> &Path {
        &self.path
    }
}

fn address(path: &Path) -> io::Result<Address> {
    if path.as_os_str().len() <= ADDRESS_MAX {
        return Ok(Address { path: path.to_owned(), _directory: None });
    }
    let directory = File::open(path.parent().unwrap_or(Path::new(".")))?;
    let name = path.file_name().unwrap_or_default();
    let short = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name);
    Ok(Address { path: short, _directory: Some(directory) })
}

/// A store that another process holds.
#[derive(Debug)]
pub struct RemoteStore {
    path: PathBuf,
    connection: SharedConnection,
    takeover: Option<Takeover>,
}

/// Opens the directory in this process and serves its socket, if nobody else does.
pub(crate) type OpenAndServe =
    Box<dyn Fn() -> Pin<Box<dyn Future<Output = Result<Arc<dyn Store>, StoreError>> + Send>> + Send + Sync>;

/// How a long-lived process takes the holder's place when the holder is gone. From then on it holds the store and talks
/// to itself over the same socket as everybody else.
pub(crate) struct Takeover {
    take_over: OpenAndServe,
    patience: Duration,
    held: tokio::sync::Mutex<Option<Arc<dyn Store>>>,
}

impl Takeover {
    pub(crate) fn new(take_over: OpenAndServe, patience: Duration) -> Self {
        Self { take_over, patience, held: tokio::sync::Mutex::default() }
    }

    /// Whether another process holds the store, or its place is being taken right now.
    fn waits(&self) -> bool {
        self.held.try_lock().map_or(true, |held| held.is_none())
    }
}

impl fmt::Debug for Takeover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Takeover").field("patience", &self.patience).finish_non_exhaustive()
    }
}

/// The time between two attempts on a directory whose holder is changing.
const TRY_EVERY: Duration = Duration::from_millis(10);

impl RemoteStore {
    /// Connects to the process that holds this directory.
    ///
    /// # Errors
    /// [`StoreErrorKind::Unreachable`] if nobody answers, [`StoreErrorKind::Protocol`] if it speaks
    /// another version, [`StoreErrorKind::Untrusted`] if the directory or its holder does not belong to this user,
    /// [`StoreErrorKind::Busy`] if the holder has as many clients as it accepts.
    pub async fn connect(directory: &Path) -> Result<Self, StoreError> {
        let connection = SharedConnection::default();
        let store = Self { path: directory.join(SOCKET), connection, takeover: None };
        store.connection.get(|| store.dial_holder()).await?;
        Ok(store)
    }

    /// The same store for a process that takes the holder's place when the holder is gone.
    pub(crate) fn with_takeover(self, takeover: Takeover) -> Self {
        Self { takeover: Some(takeover), ..self }
    }

    /// Connects to the process that holds the directory. If there is none, a process that may take over does so first.
    async fn dial(&self) -> Result<Connection, StoreError> {
        let nobody = match (self.dial_holder().await, &self.takeover) {
            (Err(error), Some(takeover)) if error.kind == StoreErrorKind::Unreachable => (error, takeover),
            (answer, _) => return answer,
        };
        let (mut error, takeover) = nobody;
        let mut held = takeover.held.lock().await;
        let end = tokio::time::Instant::now() + takeover.patience;
        while tokio::time::Instant::now() < end {
            match self.dial_holder().await {
                Err(again) if again.kind == StoreErrorKind::Unreachable => error = again,
                answer => return answer,
            }
            match (takeover.take_over)().await {
                Ok(store) => *held = Some(store),
                Err(locked) if locked.kind == StoreErrorKind::Locked => {
                    tokio::time::sleep(TRY_EVERY).await;
                }
                Err(other) => return Err(other),
            }
        }
        Err(error)
    }

    async fn dial_holder(&self) -> Result<Connection, StoreError> {
        let nobody = |e: io::Error| {
            let why = format!("nobody answers on {}: {e}", self.path.display());
            StoreError::new(StoreErrorKind::Unreachable, why)
        };
        trust::check_socket(self.path.parent().unwrap_or(Path::new(".")))?;
        let at = address(&self.path).map_err(nobody)?;
        let stream = UnixStream::connect(at.path()).await.map_err(nobody)?;
        trust::check_holder(stream.peer_cred().map_err(nobody)?.uid(), &self.path)?;
        let (from, to) = stream.into_split();
        let hello = Hello::new().pack()?;
        greet(from, to, &hello, Peer::Process, std::future::pending())
            .await?
            .ok_or_else(|| nobody(io::ErrorKind::UnexpectedEof.into()))
    }

    async fn exchange(&self, call: &Call) -> StoreResult<Vec<u8>> {
        let id = self.connection.next_id();
        let frame = Frame::of(id, call)?;
        for _ in 0..SENDS_MAX {
            let connection = self.connection.get(|| self.dial()).await?;
            let of_another = self.takeover.as_ref().is_some_and(Takeover::waits);
            let reply = match connection.exchange(id, &frame, waits(call)).await {
                Ok(reply) => reply,
                // The holder went away before it took the call: ask its successor.
                Err(NoReply::NotTaken) => continue,
                Err(NoReply::Unknown(error)) => return Err(error.into()),
            };
            let stopped = store_error(&reply).filter(|error| error.kind == StoreErrorKind::Stopped);
            if let Some(error) = stopped.filter(|_| of_another) {
                // The other process reports that its store stopped. It will go away, and this one will take its place.
                self.connection.give_up(&connection);
                return Err(Peer::Process.store_stopped(&error).into());
            }
            return Ok(reply);
        }
        let text = format!("{} hangs up before it takes a request; {NOTHING_DONE}", Peer::Process);
        Err(StoreError::new(StoreErrorKind::Unreachable, text).into())
    }
}

/// Greets the holder, with whatever it wants to see before the greeting, and starts to carry calls. Returns `None` if the
/// holder hangs up without a word.
async fn greet<R, W>(
    from: R,
    mut to: W,
    opening: &[u8],
    peer: Peer,
    until: impl Future<Output = StoreError> + Send + 'static,
) -> Result<Option<Connection>, StoreError>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    // A holder that refuses may have hung up already; what it said is still there to be read.
    let mut from = Incoming::new(from, peer);
    let sent = write(&mut to, opening).await;
    let heard = from.greeting().await;
    if heard.is_err() {
        sent.map_err(|error| peer.went_away(Some(&error)))?;
    }
    match heard? {
        Some(Hello { refused: Some(why), .. }) => Err(why),
        Some(hello) if hello.redrive == VERSION => Ok(Some(Connection::start(from, to, peer, until))),
        Some(hello) => Err(peer.other_version(hello.redrive, VERSION)),
        None => Ok(None),
    }
}

/// Whether a call takes as long as its caller has patience.
const fn waits(call: &Call) -> bool {
    matches!(call, Call::Wait { .. } | Call::Changes { .. })
}

/// The error of a reply that reports one of the machinery.
fn store_error(reply: &[u8]) -> Option<StoreError> {
    // Nearly every reply is a success, which is not read twice: a map with the one key `Ok`.
    if reply.starts_with(b"\x81\xa2Ok") {
        return None;
    }
    match ENCODING.decode::<StoreResult<IgnoredAny>>(reply) {
        Ok(Err(CallError::Store(error))) => Some(error),
        Ok(Ok(_) | Err(CallError::Refused(_))) | Err(_) => None,
    }
}

/// Refuses a batch that the holder would refuse, before it travels.
#[expect(clippy::wildcard_enum_match_arm, reason = "only batches can be too large")]
fn check_size(call: &Call) -> Result<(), Refusal> {
    match call {
        Call::Enqueue { batch } => {
            check_batch(batch.len(), batch.iter().map(|message| message.payload.bytes.len()).sum())
        }
        Call::Settle { batch } => check_batch(batch.len(), batch.iter().map(Settlement::payload_bytes).sum()),
        _ => Ok(()),
    }
}

/// The reply to [`Call::Tidy`] on a connection: the holder maintains the store.
fn nothing_to_tidy() -> StoreResult<Vec<u8>> {
    let mut reply = Vec::new();
    ENCODING.encode(&mut reply, &StoreResult::Ok(None::<Reaped>))?;
    Ok(reply)
}

#[async_trait]
#[expect(clippy::wildcard_enum_match_arm, reason = "a new verb needs nothing special here")]
impl Caller for RemoteStore {
    async fn call(&self, call: Call) -> StoreResult<Vec<u8>> {
        check_size(&call)?;
        let call = match call {
            // A relative path would name another place in the holder's working directory.
            Call::Backup { target } => Call::Backup { target: absolute(&target)? },
            Call::Tidy { .. } => return nothing_to_tidy(),
            other => other,
        };
        self.exchange(&call).await
    }

    fn encoding(&self) -> Encoding {
        ENCODING
    }
}
