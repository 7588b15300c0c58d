//! The side that holds the directory: carries out calls from its socket for as long as it holds the directory.

use super::peer::Peer;
use super::protocol::{ENCODING, Frame, Hello, Incoming, VERSION, write};
use crate::trust;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use redrive_core::error::{Refusal, StoreError, StoreErrorKind, StoreResult};
use redrive_core::limits;
use redrive_core::store::{Call, Store};
use serde::Serialize;
use std::collections::HashMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinHandle;

/// A larger call is read and carried out on a task of its own.
const LARGE_BYTES: usize = 64 * 1024;

/// How long a server that cannot accept a connection waits before it tries again. Out of descriptors, most likely: others
/// finish meanwhile.
pub(super) const ACCEPT_AGAIN_AFTER: Duration = Duration::from_millis(50);

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
    let service = Service::new(store, Peer::Process, limits::WAITS_MAX, limits::GREETING_MAX);
    let task = tokio::spawn(async move {
        let places = Arc::new(Semaphore::new(limits::CONNECTIONS_MAX));
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(ACCEPT_AGAIN_AFTER).await;
                continue;
            };
            let place = match admit(&stream, &places) {
                Ok(place) => place,
                Err(why) => {
                    refuse(stream, why);
                    continue;
                }
            };
            let service = service.clone();
            tokio::spawn(async move {
                let (from, to) = stream.into_split();
                let _ = converse(from, to, &service, std::future::pending()).await;
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
    let places = Arc::clone(places);
    places.try_acquire_owned().map_err(|_| Peer::Process.no_more_connections(limits::CONNECTIONS_MAX))
}

/// Sends the reason and hangs up. It fits into the buffer of a new connection, so nobody waits until it is read.
fn refuse(stream: UnixStream, why: StoreError) {
    let Ok(frame) = Hello::refusing(why).pack() else { return };
    if let Ok(mut stream) = stream.into_std() {
        let _ = stream.write_all(&frame);
    }
}

/// What the connections of a server share.
#[derive(Clone)]
pub(super) struct Service {
    store: Weak<dyn Store>,
    /// How clients know this server.
    peer: Peer,
    waits: Arc<Semaphore>,
    waits_max: usize,
    greeting_max: Duration,
}

impl Service {
    pub(super) fn new(store: &Arc<dyn Store>, peer: Peer, waits_max: usize, greeting_max: Duration) -> Self {
        let waits = Arc::new(Semaphore::new(waits_max));
        Self { store: Arc::downgrade(store), peer, waits, waits_max, greeting_max }
    }
}

/// The calls of one client that are being carried out. They all run on the task of the connection, so that the replies
/// to calls of one commit are ready together and go out in one write.
struct Calls<'a> {
    service: &'a Service,
    in_flight: FuturesUnordered<BoxFuture<Result<Vec<u8>, StoreError>>>,
    /// Calls that wait for messages, apart from the others: they do not count as in flight, and end with the client.
    waiting: FuturesUnordered<BoxFuture<(u64, Option<Vec<u8>>)>>,
    /// Ends a wait when it is dropped.
    waiting_ids: HashMap<u64, oneshot::Sender<()>>,
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl<'a> Calls<'a> {
    fn new(service: &'a Service) -> Self {
        Self {
            service,
            in_flight: FuturesUnordered::new(),
            waiting: FuturesUnordered::new(),
            waiting_ids: HashMap::new(),
        }
    }

    fn has_room(&self) -> bool {
        self.in_flight.len() < limits::CALLS_IN_FLIGHT_MAX
    }

    /// Begins what a frame asks for. Returns `false` if the store is gone.
    fn begin(&mut self, id: u64, contents: &[u8]) -> bool {
        if contents.is_empty() {
            self.waiting_ids.remove(&id);
            return true;
        }
        let Some(store) = self.service.store.upgrade() else { return false };
        if contents.len() > LARGE_BYTES {
            // A call that takes long to read does not hold up the others.
            let contents = contents.to_vec();
            let done = tokio::spawn(async move {
                match ENCODING.decode(&contents) {
                    Ok(call) => answer(store, id, call).await,
                    Err(error) => Frame::of(id, &StoreResult::<()>::Err(error.into())),
                }
            });
            let lost = |_| StoreError::new(StoreErrorKind::Stopped, "carrying out a call panicked");
            self.in_flight.push(Box::pin(async move { done.await.map_err(lost)? }));
            return true;
        }
        match ENCODING.decode(contents) {
            Ok(Call::Wait { queues, at_most }) => {
                self.wait(id, async move { store.wait(queues, at_most).await });
            }
            Ok(Call::Changes { since, at_most }) => {
                self.wait(id, async move { store.changes(since, at_most).await });
            }
            Ok(call) => self.in_flight.push(Box::pin(answer(store, id, call))),
            Err(error) => {
                let reply = Frame::of(id, &StoreResult::<()>::Err(error.into()));
                self.in_flight.push(Box::pin(std::future::ready(reply)));
            }
        }
        true
    }

    /// Waits on behalf of a client. Waits have a limit of their own, so that they never use up what other calls need.
    fn wait<T: Serialize + 'static>(
        &mut self,
        id: u64,
        wait: impl Future<Output = StoreResult<T>> + Send + 'static,
    ) {
        let Ok(permit) = Arc::clone(&self.service.waits).try_acquire_owned() else {
            let why = self.service.peer.no_more_waits(self.service.waits_max);
            let refused = StoreResult::<T>::Err(why.into());
            self.in_flight.push(Box::pin(std::future::ready(Frame::of(id, &refused))));
            return;
        };
        let (end, ended) = oneshot::channel();
        self.waiting_ids.insert(id, end);
        self.waiting.push(Box::pin(async move {
            let _permit = permit;
            let reply = tokio::select! {
                waited = wait => Frame::of(id, &waited).ok(),
                _ = ended => None,
            };
            (id, reply)
        }));
    }

    /// The next reply that is ready. `None` stands for a wait that its client has ended.
    async fn next_reply(&mut self) -> Result<Option<Vec<u8>>, StoreError> {
        tokio::select! {
            Some(reply) = self.in_flight.next() => reply.map(Some),
            Some((id, reply)) = self.waiting.next() => {
                self.waiting_ids.remove(&id);
                Ok(reply)
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.in_flight.is_empty() && self.waiting.is_empty()
    }
}

/// Replies on their way to a client.
#[derive(Default)]
struct Unsent {
    bytes: Vec<u8>,
    /// The bytes at the beginning that are sent already.
    sent: usize,
    /// Whether some of what was sent may still be on this side of the connection.
    unflushed: bool,
}

impl Unsent {
    fn rest(&self) -> &[u8] {
        self.bytes.get(self.sent..).unwrap_or_default()
    }

    /// Whether everything has left.
    fn is_empty(&self) -> bool {
        self.rest().is_empty() && !self.unflushed
    }

    /// Sends a part of what there is. Nothing is lost if the caller stops waiting.
    async fn send(&mut self, to: &mut (impl AsyncWrite + Unpin)) -> std::io::Result<()> {
        if self.rest().is_empty() {
            to.flush().await?;
            self.unflushed = false;
            return Ok(());
        }
        match to.write(self.rest()).await? {
            0 => Err(std::io::ErrorKind::WriteZero.into()),
            count => {
                self.note_sent(count);
                Ok(())
            }
        }
    }

    /// Whether further replies may be added before some of these are sent.
    fn has_room(&self) -> bool {
        self.rest().len() < limits::UNSENT_BYTES_MAX
    }

    fn note_sent(&mut self, count: usize) {
        self.sent += count;
        self.unflushed = true;
        if self.rest().is_empty() {
            self.sent = 0;
            self.bytes.clear();
            self.bytes.shrink_to(limits::UNSENT_BYTES_MAX);
        }
    }
}

/// Whether a connection takes further calls.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    Yes,
    /// The client has hung up, or sent something that is no frame.
    ClientGone,
    /// This side takes no more calls, and will tell the client so.
    Stopped,
}

/// Carries out the calls of one client until it hangs up or `stop` returns, and then those that were taken before.
pub(super) async fn converse<R, W>(
    from: R,
    mut to: W,
    service: &Service,
    stop: impl Future<Output = ()>,
) -> Result<(), StoreError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let gone = |error: std::io::Error| service.peer.went_away(Some(&error));
    let mut from = Incoming::new(from, service.peer);
    let greeting = tokio::time::timeout(service.greeting_max, from.greeting());
    let Some(hello) = greeting.await.unwrap_or(Ok(None))? else { return Ok(()) };
    write(&mut to, &Hello::new().pack()?).await.map_err(gone)?;
    if hello.redrive != VERSION {
        return Ok(());
    }
    let mut calls = Calls::new(service);
    let mut unsent = Unsent::default();
    let mut reading = Reading::Yes;
    let mut stop = std::pin::pin!(stop);
    loop {
        while reading == Reading::Yes && calls.has_room() && unsent.has_room() {
            match from.next_frame() {
                Ok(Some((id, contents))) if calls.begin(id, contents) => {}
                Ok(Some(_)) => reading = Reading::Stopped,
                Ok(None) => break,
                Err(_) => reading = Reading::ClientGone,
            }
        }
        if reading != Reading::Yes {
            // Nobody waits any more: the client has hung up, or will ask whoever holds the store next.
            calls.waiting.clear();
            if calls.is_empty() && unsent.is_empty() {
                break;
            }
        }
        let reads = reading == Reading::Yes && calls.has_room() && unsent.has_room();
        let gathers = !calls.is_empty() && unsent.has_room();
        // In this order, so that a write takes along every reply that is ready.
        tokio::select! {
            biased;
            () = &mut stop, if reading == Reading::Yes => reading = Reading::Stopped,
            reply = calls.next_reply(), if gathers => unsent.bytes.extend(reply?.unwrap_or_default()),
            more = from.read_more(), if reads => if !more.unwrap_or(false) {
                reading = Reading::ClientGone;
            },
            sent = unsent.send(&mut to), if !unsent.is_empty() => sent.map_err(gone)?,
        }
    }
    if reading == Reading::Stopped {
        write(&mut to, &Frame::goodbye()).await.map_err(gone)?;
        hang_up(from, to, service.greeting_max).await;
    }
    Ok(())
}

/// Closes a connection once the client has closed it too, or after some time. A connection that is closed while the
/// client still sends may lose what was said last.
pub(super) async fn hang_up<R, W>(mut from: Incoming<R>, mut to: W, at_most: Duration)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    if to.shutdown().await.is_ok() {
        let _ = tokio::time::timeout(at_most, from.discard()).await;
    }
}

/// Carries out one call. A reply that cannot be sent is replaced by the reason: a client that only saw a closed
/// connection would ask again.
#[expect(clippy::wildcard_enum_match_arm, reason = "a new verb needs nothing special here")]
async fn answer(store: Arc<dyn Store>, id: u64, call: Call) -> Result<Vec<u8>, StoreError> {
    let mut frame = Frame::new(id);
    match call {
        Call::Backup { target } if !Path::new(&target).is_absolute() => {
            let text = format!("{target:?} is not an absolute path; name the new directory from the root on");
            let refused = Refusal::invalid("target", text).into();
            ENCODING.encode(frame.buffer(), &StoreResult::<u64>::Err(refused))?;
        }
        other => other.apply_as(ENCODING, store.as_ref(), frame.buffer()).await?,
    }
    finish(frame, id, limits::FRAME_BYTES_MAX)
}

/// The finished frame of a reply, or that of the reason why it is too long.
fn finish(frame: Frame, id: u64, max: usize) -> Result<Vec<u8>, StoreError> {
    frame.finish(max).or_else(|error| Frame::of(id, &StoreResult::<()>::Err(error.into())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use redrive_core::error::CallError;

    #[test]
    fn a_reply_that_is_too_long_is_replaced_by_the_reason() {
        for (text, fits) in [("short", true), ("much longer than that", false)] {
            let mut frame = Frame::new(7);
            ENCODING.encode(frame.buffer(), &StoreResult::Ok(text)).expect("it has a form");
            let sent = finish(frame, 7, 15).expect("it is sent");
            let (header, contents) = sent.split_at(12);
            assert_eq!(header.last(), Some(&7));
            match ENCODING.decode::<StoreResult<String>>(contents).expect("a reply") {
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
