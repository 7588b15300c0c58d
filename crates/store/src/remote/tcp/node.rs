//! A node that does not hold the store: sends every call to the node that does, and follows the store when another node
//! takes it over. A call that was certainly not carried out is sent to the next holder; of any other the caller is told
//! that its outcome is not known, unless repeating it is harmless.

use super::dial::dial;
use super::identity::Published;
use super::repeat;
use crate::remote::connection::{Connection, NoReply};
use crate::remote::peer::{NOTHING_DONE, Peer, UNKNOWN_OUTCOME};
use crate::remote::protocol::{ENCODING, Frame};
use crate::remote::shared::SharedConnection;
use crate::remote::{SENDS_MAX, check_size, nothing_to_tidy, store_error, waits};
use async_trait::async_trait;
use redrive_core::error::{CallError, StoreError, StoreErrorKind, StoreResult};
use redrive_core::limits;
use redrive_core::store::{Call, Caller, Encoding};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The first pause before a node asks again who holds the store. Each pause is twice as long as the one before.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// The longest such pause.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// How often a node looks whether the holder that it is connected to was replaced.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Where and how the holder of a term is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderAddress {
    /// The term. A later holder has a higher one.
    pub term: u64,
    /// Host and port.
    pub address: String,
    /// What it published for this term.
    pub published: Published,
}

/// Knows who holds the store, from wherever holders publish it.
#[async_trait]
pub trait Holders: Send + Sync + 'static {
    /// The present holder, or `None` if nobody holds the store right now.
    ///
    /// # Errors
    /// Why that cannot be found out. [`StoreErrorKind::Unreachable`] is tried again.
    async fn current(&self) -> StoreResult<Option<HolderAddress>>;

    /// Returns when a later term than this one has begun. A holder that was stopped or cut off does not hang up, so nodes
    /// watch for its successor. Unless it is implemented in another way, this asks once a second.
    async fn replaced(&self, term: u64) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            if self.current().await.is_ok_and(|now| now.is_some_and(|now| now.term > term)) {
                return;
            }
        }
    }
}

/// A holder that never changes.
#[derive(Clone, Debug)]
pub struct FixedHolder(pub HolderAddress);

#[async_trait]
impl Holders for FixedHolder {
    async fn current(&self) -> StoreResult<Option<HolderAddress>> {
        Ok(Some(self.0.clone()))
    }

    async fn replaced(&self, _term: u64) {
        std::future::pending().await
    }
}

/// A store that another node holds.
#[derive(Debug)]
pub struct NodeStore<H> {
    holders: Arc<H>,
    connection: SharedConnection,
    patience: Duration,
}

/// Connects to a holder at a known address.
///
/// # Errors
/// [`StoreErrorKind::Unreachable`] if nobody answers there or the secret is not accepted, [`StoreErrorKind::Untrusted`] if
/// it is not the holder that published this, [`StoreErrorKind::Protocol`] if it speaks another version,
/// [`StoreErrorKind::Busy`] if it has as many clients as it accepts.
pub async fn connect(
    address: impl Into<String>,
    published: Published,
) -> Result<NodeStore<FixedHolder>, StoreError> {
    let holder = FixedHolder(HolderAddress { term: 0, address: address.into(), published });
    let store = NodeStore::new(Arc::new(holder)).with_patience(Duration::ZERO);
    store.connection.get(|| store.dial()).await?;
    Ok(store)
}

impl<H: Holders> NodeStore<H> {
    /// A store that is held by whoever `holders` names. Connects with the first call.
    #[must_use]
    pub fn new(holders: Arc<H>) -> Self {
        Self { holders, connection: SharedConnection::default(), patience: limits::HOLDER_PATIENCE }
    }

    /// The same store with another limit for the time that one call spends without a holder. An attempt to connect that
    /// has begun is finished, which takes [`limits::NODE_DIAL_MAX`] at most.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Whether there is an open connection to a holder. There is none before the first call.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.connection.is_open()
    }

    async fn dial(&self) -> Result<Connection, StoreError> {
        let holder = match self.holders.current().await {
            Ok(Some(holder)) => holder,
            Ok(None) => {
                return Err(StoreError::new(
                    StoreErrorKind::Unreachable,
                    "no node holds the store right now",
                ));
            }
            Err(CallError::Store(error)) => return Err(error),
            Err(CallError::Refused(refusal)) => {
                return Err(StoreError::new(StoreErrorKind::Unsupported, refusal.to_string()));
            }
        };
        let (holders, term) = (Arc::clone(&self.holders), holder.term);
        let until = async move {
            holders.replaced(term).await;
            let text =
                format!("{} was replaced by another before it answered; {UNKNOWN_OUTCOME}", Peer::Node);
            StoreError::new(StoreErrorKind::Unreachable, text)
        };
        dial(&holder, until).await
    }

    async fn exchange(&self, call: &Call) -> StoreResult<Vec<u8>> {
        let id = self.connection.next_id();
        let frame = Frame::of(id, call)?;
        let mut search = Search::new(self.patience);
        loop {
            let began = Instant::now();
            let connection = self.connection.get(|| self.dial()).await;
            search.spent += began.elapsed();
            let connection = match connection {
                Ok(connection) => connection,
                Err(error) if may_pass(error.kind) => {
                    search.go_on(&error, 0).await?;
                    continue;
                }
                Err(error) => return Err(search.outcome(error).into()),
            };
            search.sends += 1;
            let why = match connection.exchange(id, &frame, waits(call)).await {
                Ok(reply) => match store_error(&reply) {
                    Some(error) if error.kind == StoreErrorKind::NotHolder => {
                        self.connection.give_up(&connection);
                        error
                    }
                    Some(error) if error.kind == StoreErrorKind::Stopped => {
                        // The holder's store stopped, not this one: another node will take its place.
                        self.connection.give_up(&connection);
                        return Err(Peer::Node.store_stopped(&error).into());
                    }
                    Some(_) | None => return Ok(reply),
                },
                Err(NoReply::NotTaken) => {
                    let text = format!("{} ended the connection before it took the request", Peer::Node);
                    StoreError::new(StoreErrorKind::Unreachable, text)
                }
                Err(NoReply::Unknown(error)) => {
                    search.lost_replies += 1;
                    if !repeat::is_harmless(call) || search.lost_replies > limits::NODE_REPEATS_MAX {
                        return Err(error.into());
                    }
                    error
                }
            };
            search.go_on(&why, SENDS_MAX).await?;
        }
    }
}

/// Whether a holder that cannot be reached for this reason may be reachable in a moment, or another one in its place.
const fn may_pass(kind: StoreErrorKind) -> bool {
    match kind {
        StoreErrorKind::Unreachable
        | StoreErrorKind::NotHolder
        // Another process may listen where the last holder did, until the next one has published its address.
        | StoreErrorKind::Untrusted
        | StoreErrorKind::Busy => true,
        StoreErrorKind::Full
        | StoreErrorKind::Stopped
        | StoreErrorKind::Undone
        | StoreErrorKind::Damaged
        | StoreErrorKind::Newer
        | StoreErrorKind::NotAStore
        | StoreErrorKind::Locked
        | StoreErrorKind::Io
        | StoreErrorKind::Unsupported
        | StoreErrorKind::Protocol
        | StoreErrorKind::Unauthenticated => false,
    }
}

/// The way of one call to a holder that takes it.
struct Search {
    patience: Duration,
    /// The time spent without a holder. That a holder takes long to answer does not count.
    spent: Duration,
    next_pause: Duration,
    /// How often the call was handed to a connection.
    sends: u32,
    /// How often it was sent and the reply was lost.
    lost_replies: u32,
}

impl Search {
    const fn new(patience: Duration) -> Self {
        // The first pause is none: mostly, the next holder is there already.
        Self { patience, spent: Duration::ZERO, next_pause: Duration::ZERO, sends: 0, lost_replies: 0 }
    }

    /// Pauses before the next attempt, or returns the error if there is no time left for one. The first `sends_free`
    /// sends need no time.
    async fn go_on(&mut self, why: &StoreError, sends_free: u32) -> Result<(), StoreError> {
        if self.spent >= self.patience && self.sends >= sends_free {
            return Err(self.outcome(why.clone()));
        }
        let pause = self.next_pause;
        self.next_pause = (pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        self.spent += pause;
        tokio::time::sleep(pause).await;
        Ok(())
    }

    /// What the caller is told about a call that found no holder: whether it may have taken effect is what matters most.
    fn outcome(&self, why: StoreError) -> StoreError {
        let known = if self.lost_replies == 0 { NOTHING_DONE } else { UNKNOWN_OUTCOME };
        if why.text.ends_with(known) {
            return why;
        }
        let kind = if may_pass(why.kind) { StoreErrorKind::Unreachable } else { why.kind };
        StoreError::new(kind, format!("{why}; {known}"))
    }
}

#[async_trait]
impl<H: Holders> Caller for NodeStore<H> {
    async fn call(&self, call: Call) -> StoreResult<Vec<u8>> {
        check_size(&call)?;
        // Whoever holds the store maintains it.
        if matches!(call, Call::Tidy { .. }) {
            return nothing_to_tidy();
        }
        self.exchange(&call).await
    }

    fn encoding(&self) -> Encoding {
        ENCODING
    }
}
