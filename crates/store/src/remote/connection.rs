//! One connection to the process that holds a store, shared by all callers of a client. Each call is sent with an id and
//! the reply is handed to the caller whose id it carries, so many calls are on their way at once. Calls that are waiting
//! to be sent go out in one write.

use super::peer::Peer;
use super::protocol::{Frame, Incoming};
use redrive_core::error::StoreError;
use redrive_core::limits;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinHandle;

/// Why a call got no reply.
#[derive(Debug)]
pub(super) enum NoReply {
    /// The call was not carried out and may be sent again: the connection broke before the call was sent, or the holder
    /// said goodbye before it took the call.
    NotTaken,
    /// The connection broke after the call was sent: nobody here knows whether it was carried out.
    Unknown(StoreError),
}

/// Why a connection ended.
enum End {
    /// It broke: what was sent may have been carried out.
    Broke(StoreError),
    /// The holder said that it has carried out nothing that it did not reply to.
    Goodbye,
}

/// A caller that waits for its reply.
struct Waiter {
    reply: oneshot::Sender<Result<Vec<u8>, NoReply>>,
    /// Where its call ends in the stream of all bytes sent.
    ends_at: u64,
}

#[derive(Default)]
struct State {
    waiters: HashMap<u64, Waiter>,
    /// Frames that the next write takes.
    unsent: Vec<u8>,
    /// How many bytes were ever put into `unsent`.
    accepted_bytes: u64,
    closed: bool,
}

/// What callers share with the task that reads and writes.
#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// There is something to send.
    filled: Notify,
    /// What was waiting has been taken by a write, or the connection is closed.
    room: Notify,
    /// How many bytes were ever sent, or may have been.
    sent_bytes: AtomicU64,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands replies to their callers until the other side hangs up.
    async fn read_replies(&self, from: &mut Incoming<impl AsyncRead + Unpin>, peer: Peer) -> End {
        loop {
            loop {
                match from.next_frame() {
                    Ok(Some((id, reply))) if Frame::is_goodbye(id, reply) => return End::Goodbye,
                    Ok(Some((id, reply))) => {
                        let waiter = self.state().waiters.remove(&id);
                        // Without a waiter, the caller has stopped waiting.
                        if let Some(waiter) = waiter {
                            let _ = waiter.reply.send(Ok(reply.to_vec()));
                        }
                    }
                    Ok(None) => break,
                    Err(error) => return End::Broke(error),
                }
            }
            match from.read_more().await {
                Ok(true) => {}
                Ok(false) => return End::Broke(peer.went_away(None)),
                Err(error) => return End::Broke(error),
            }
        }
    }

    /// Sends what callers have handed in, as much at a time as there is.
    async fn write_calls(&self, to: &mut (impl AsyncWrite + Unpin), peer: Peer) -> End {
        loop {
            self.filled.notified().await;
            // Callers that got their replies together call again together: let them, and send their calls in one write.
            tokio::task::yield_now().await;
            let frames = std::mem::take(&mut self.state().unsent);
            self.room.notify_waiters();
            let mut rest = frames.as_slice();
            while !rest.is_empty() {
                let before = self.sent_bytes.load(Ordering::Relaxed);
                if !peer.failed_writes_send_nothing() {
                    self.sent_bytes.store(before + rest.len() as u64, Ordering::Relaxed);
                }
                match to.write(rest).await {
                    Ok(0) => return End::Broke(peer.went_away(None)),
                    Ok(n) => {
                        self.sent_bytes.store(before + n as u64, Ordering::Relaxed);
                        rest = rest.get(n..).unwrap_or_default();
                    }
                    Err(error) => return End::Broke(peer.went_away(Some(&error))),
                }
            }
            if let Err(error) = to.flush().await {
                return End::Broke(peer.went_away(Some(&error)));
            }
        }
    }

    /// Tells everybody who waits that no reply will come. A call of which the end was never sent cannot have been read.
    fn close(&self, end: &End) {
        let sent_bytes = self.sent_bytes.load(Ordering::Relaxed);
        let waiters = {
            let mut state = self.state();
            state.closed = true;
            state.unsent = Vec::new();
            std::mem::take(&mut state.waiters)
        };
        self.room.notify_waiters();
        for waiter in waiters.into_values() {
            let why = match end {
                End::Broke(error) if waiter.ends_at <= sent_bytes => NoReply::Unknown(error.clone()),
                End::Broke(_) | End::Goodbye => NoReply::NotTaken,
            };
            let _ = waiter.reply.send(Err(why));
        }
    }
}

/// Closes a connection when the task that reads and writes ends, for whatever reason.
struct CloseWhenDropped {
    shared: Arc<Shared>,
    end: End,
}

impl CloseWhenDropped {
    /// Closes the connection now, for this reason.
    fn because(mut self, end: End) {
        self.end = end;
    }
}

impl Drop for CloseWhenDropped {
    fn drop(&mut self) {
        self.shared.close(&self.end);
    }
}

/// A connection that has been greeted. It is closed when it is dropped.
pub(super) struct Connection {
    peer: Peer,
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("open", &self.is_open()).finish_non_exhaustive()
    }
}

impl Connection {
    /// Starts to carry calls on a connection on which both sides have greeted each other. It breaks at the latest when
    /// `until` returns the reason.
    pub(super) fn start<R, W>(
        mut from: Incoming<R>,
        mut to: W,
        peer: Peer,
        until: impl Future<Output = StoreError> + Send + 'static,
    ) -> Self
    where
        R: AsyncRead + Unpin + Send + 'static,
        W: AsyncWrite + Unpin + Send + 'static,
    {
        let shared = Arc::new(Shared::default());
        let closing = CloseWhenDropped { shared: Arc::clone(&shared), end: End::Broke(peer.went_away(None)) };
        let task = tokio::spawn(async move {
            // All stop together, so that what was sent until then is known exactly.
            let end = tokio::select! {
                end = closing.shared.read_replies(&mut from, peer) => end,
                end = closing.shared.write_calls(&mut to, peer) => end,
                reason = until => End::Broke(reason),
            };
            closing.because(end);
        });
        Self { peer, shared, task }
    }

    /// Whether the connection was open when it was last looked at.
    pub(super) fn is_open(&self) -> bool {
        !self.shared.state().closed
    }

    /// Waits until there is room to send more.
    async fn has_room(&self) {
        loop {
            let room = self.shared.room.notified();
            {
                let state = self.shared.state();
                if state.closed || state.unsent.len() < limits::UNSENT_BYTES_MAX {
                    return;
                }
            }
            room.await;
        }
    }

    /// Sends the frame of a call and waits for the reply to this id. If the caller stops waiting and the call is itself
    /// one that waits, the holder is told.
    pub(super) async fn exchange(&self, id: u64, frame: &[u8], waits: bool) -> Result<Vec<u8>, NoReply> {
        self.has_room().await;
        let (reply, replied) = oneshot::channel();
        {
            let mut state = self.shared.state();
            if state.closed {
                return Err(NoReply::NotTaken);
            }
            state.unsent.extend_from_slice(frame);
            state.accepted_bytes += frame.len() as u64;
            let ends_at = state.accepted_bytes;
            state.waiters.insert(id, Waiter { reply, ends_at });
        }
        self.shared.filled.notify_one();
        let mut waiting = ForgetWhenDropped { shared: &self.shared, id, waits, answered: false };
        let reply = replied.await;
        waiting.answered = true;
        reply.unwrap_or_else(|_| Err(NoReply::Unknown(self.peer.went_away(None))))
    }
}

/// Forgets a caller that has stopped waiting.
struct ForgetWhenDropped<'a> {
    shared: &'a Shared,
    id: u64,
    waits: bool,
    answered: bool,
}

impl Drop for ForgetWhenDropped<'_> {
    fn drop(&mut self) {
        if self.answered {
            return;
        }
        let mut state = self.shared.state();
        let still_waits = state.waiters.remove(&self.id).is_some();
        if still_waits && self.waits && !state.closed {
            let frame = Frame::nobody_waits(self.id);
            state.accepted_bytes += frame.len() as u64;
            state.unsent.extend(frame);
            drop(state);
            self.shared.filled.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    /// Fails every write, as a connection does that broke meanwhile.
    struct Broken;

    impl AsyncWrite for Broken {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    /// Whether a call is in doubt that was being written when the connection broke.
    async fn in_doubt(peer: Peer) -> bool {
        let (reads, _other_end) = tokio::io::duplex(1);
        let connection = Connection::start(Incoming::new(reads, peer), Broken, peer, std::future::pending());
        let frame = Frame::of(1, &"a call").unwrap();
        match connection.exchange(1, &frame, false).await {
            Ok(reply) => panic!("nobody replied: {reply:?}"),
            Err(NoReply::NotTaken) => false,
            Err(NoReply::Unknown(_)) => true,
        }
    }

    #[tokio::test]
    async fn a_write_to_the_socket_that_fails_has_sent_nothing() {
        assert!(!in_doubt(Peer::Process).await);
    }

    #[cfg(feature = "nodes")]
    #[tokio::test]
    async fn a_write_through_tls_that_fails_may_have_sent_something() {
        assert!(in_doubt(Peer::Node).await);
    }
}
