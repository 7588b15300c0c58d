//! A store that another process holds, reached over the socket in its directory. Every call is one frame to the holder
//! and one frame back; the holder carries it out. All callers of a client share one connection.

mod connection;
mod protocol;
pub(crate) mod server;

use crate::engine::enqueue::check_batch;
use crate::trust::{self, SOCKET};
use crate::verbs::absolute;
use async_trait::async_trait;
use connection::{Connection, NoReply};
use protocol::{ENCODING, Frame, Hello, Incoming, VERSION, write};
use redrive_core::error::{CallError, StoreError, StoreErrorKind, StoreResult};
use redrive_core::store::{Call, Caller, Encoding, Reaped, Settlement, Store};
use serde::de::IgnoredAny;
use std::fmt;
use std::fs::File;
use std::future::Future;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
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
    connection: Mutex<Option<Arc<Connection>>>,
    /// Held while a new connection is made, so that callers who find none do not each make their own.
    dialing: tokio::sync::Mutex<()>,
    last_call: AtomicU64,
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
        let store = Self {
            path: directory.join(SOCKET),
            connection: Mutex::default(),
            dialing: tokio::sync::Mutex::default(),
            last_call: AtomicU64::new(0),
            takeover: None,
        };
        store.keep(&Arc::new(store.dial_holder().await?));
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
        // A holder that refuses may have hung up already; what it said is still there to be read.
        let (from, mut to) = stream.into_split();
        let mut from = Incoming::new(from);
        let sent = write(&mut to, &Hello::new().pack()?).await;
        let heard = from.greeting().await;
        if heard.is_err() {
            sent?;
        }
        match heard? {
            Some(Hello { refused: Some(why), .. }) => Err(why),
            Some(hello) if hello.redrive == VERSION => Ok(Connection::start(from, to)),
            Some(hello) => Err(StoreError::new(
                StoreErrorKind::Protocol,
                format!(
                    "the process that holds the directory speaks version {} and this one {VERSION}; \
                     use the same redrive for both",
                    hello.redrive
                ),
            )),
            None => Err(nobody(io::ErrorKind::UnexpectedEof.into())),
        }
    }

    fn keep(&self, connection: &Arc<Connection>) {
        let kept = Some(Arc::clone(connection));
        *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = kept;
    }

    fn kept(&self) -> Option<Arc<Connection>> {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        connection.as_ref().filter(|connection| connection.is_open()).map(Arc::clone)
    }

    /// Lets no further caller use this connection. Those who wait for a reply on it still get theirs.
    fn give_up(&self, connection: &Arc<Connection>) {
        let mut kept = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.as_ref().is_some_and(|kept| Arc::ptr_eq(kept, connection)) {
            *kept = None;
        }
    }

    /// The connection that all callers share; a new one if it was closed.
    async fn connection(&self) -> Result<Arc<Connection>, StoreError> {
        if let Some(connection) = self.kept() {
            return Ok(connection);
        }
        let _dialing = self.dialing.lock().await;
        // Somebody else may have made one meanwhile.
        if let Some(connection) = self.kept() {
            return Ok(connection);
        }
        let connection = Arc::new(self.dial().await?);
        self.keep(&connection);
        Ok(connection)
    }

    async fn exchange(&self, call: &Call) -> StoreResult<Vec<u8>> {
        let id = self.last_call.fetch_add(1, Ordering::Relaxed) + 1;
        let frame = Frame::of(id, call)?;
        let waits = matches!(call, Call::Wait { .. } | Call::Changes { .. });
        for _ in 0..SENDS_MAX {
            let connection = self.connection().await?;
            let of_another = self.takeover.as_ref().is_some_and(Takeover::waits);
            let reply = match connection.exchange(id, &frame, waits).await {
                Ok(reply) => reply,
                // The holder went away before it could have seen the call: ask its successor.
                Err(NoReply::NotSent) => continue,
                Err(NoReply::Unknown(error)) => return Err(error.into()),
            };
            if let Some(error) = stopped(&reply).filter(|_| of_another) {
                // The other process reports that its store stopped. It will go away, and this one will take its place.
                self.give_up(&connection);
                let text = format!(
                    "the store stopped in the process that holds the data directory ({error}); \
                     whether the request took effect is not known: look, then ask again"
                );
                return Err(StoreError::new(StoreErrorKind::Unreachable, text).into());
            }
            return Ok(reply);
        }
        let text = "the process that holds the data directory hangs up before it takes a request; nothing was sent: \
                    ask again";
        Err(StoreError::new(StoreErrorKind::Unreachable, text).into())
    }
}

/// The error of a reply that reports that the store has stopped.
fn stopped(reply: &[u8]) -> Option<StoreError> {
    // Nearly every reply is a success, which is not read twice: a map with the one key `Ok`.
    if reply.starts_with(b"\x81\xa2Ok") {
        return None;
    }
    match ENCODING.decode::<StoreResult<IgnoredAny>>(reply) {
        Ok(Err(CallError::Store(error))) => Some(error).filter(|error| error.kind == StoreErrorKind::Stopped),
        Ok(Ok(_) | Err(CallError::Refused(_))) | Err(_) => None,
    }
}

#[async_trait]
#[expect(clippy::wildcard_enum_match_arm, reason = "a new verb needs nothing special here")]
impl Caller for RemoteStore {
    async fn call(&self, call: Call) -> StoreResult<Vec<u8>> {
        let call = match call {
            Call::Enqueue { batch } => {
                check_batch(batch.len(), batch.iter().map(|message| message.payload.bytes.len()).sum())?;
                Call::Enqueue { batch }
            }
            Call::Settle { batch } => {
                check_batch(batch.len(), batch.iter().map(Settlement::payload_bytes).sum())?;
                Call::Settle { batch }
            }
            // A relative path would name another place in the holder's working directory.
            Call::Backup { target } => Call::Backup { target: absolute(&target)? },
            // The holder maintains the store.
            Call::Tidy { .. } => {
                let mut reply = Vec::new();
                ENCODING.encode(&mut reply, &StoreResult::Ok(None::<Reaped>))?;
                return Ok(reply);
            }
            other => other,
        };
        self.exchange(&call).await
    }

    fn encoding(&self) -> Encoding {
        ENCODING
    }
}
