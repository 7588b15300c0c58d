//! What is said on the socket of a data directory: a greeting with a version, then frames of JSON, each a call
//! and its answer. The types are the store's own; nothing is translated.

use redrive_core::dead_letter::{ActRequest, Actor, DeadLetter};
use redrive_core::disclosure::Disclosure;
use redrive_core::error::{StoreError, StoreErrorKind};
use redrive_core::failure::Category;
use redrive_core::group::{GroupAct, GroupQuery};
use redrive_core::ids::{GroupId, MessageId, OperationId, QueueName};
use redrive_core::limits;
use redrive_core::message::NewMessage;
use redrive_core::operation::{Control, OperationSpec, PreviewRequest};
use redrive_core::policy::QueuePolicy;
use redrive_core::query::{PageRequest, Query};
use redrive_core::short_id::TailQuery;
use redrive_core::store::{
    HandOver, LeaseRequest, LetterLeaseRequest, LetterSettlement, Settlement, VerifyRequest,
};
use redrive_core::time::{Span, Time};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// The version of everything said here. Both sides must say the same.
pub(super) const VERSION: u32 = 5;

/// The first frame of each side.
#[derive(Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) redrive: u32,
    /// Why the holder takes no calls on this connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) refused: Option<StoreError>,
}

impl Hello {
    /// The greeting of somebody who takes part.
    pub(super) const fn new() -> Self {
        Self { redrive: VERSION, refused: None }
    }

    /// The greeting of a holder who takes no calls from this caller, and says why.
    pub(super) const fn refusing(why: StoreError) -> Self {
        Self { redrive: VERSION, refused: Some(why) }
    }
}

/// One call: a verb of the store and what it is given.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "verb", content = "with")]
pub(super) enum Call {
    Enqueue(Vec<NewMessage>),
    Lease(LeaseRequest),
    Settle(Vec<Settlement>),
    Reap(usize),
    Wait(Vec<QueueName>, Span),
    Messages(Query),
    Message(MessageId),
    KeyState(QueueName, String),
    Cancel(Vec<MessageId>, Actor),
    Queues,
    Queue(QueueName),
    WaitingFor,
    Configure(QueueName, Box<QueuePolicy>, Actor),
    Pause(QueueName, bool, Actor),
    Purge(QueueName, Actor),
    Breakers,
    ForceBreaker(QueueName, String, bool, Actor),
    Letters(Query),
    Letter(MessageId),
    Revisions(MessageId),
    Drawers,
    LeaseLetters(LetterLeaseRequest),
    SettleLetters(Vec<LetterSettlement>),
    Act(Vec<ActRequest>),
    Groups(Box<GroupQuery>),
    Group(GroupId),
    GroupDetail(GroupId),
    ActOnGroup(GroupId, GroupAct, Actor),
    Mark(String, Actor),
    Markers(PageRequest),
    MergeGroups(Vec<GroupId>, Actor),
    LabelGroup(GroupId, Option<Category>, Actor),
    Export(Query),
    Disclose(Disclosure, Actor),
    Import(Vec<DeadLetter>, Actor),
    HandOver(Vec<HandOver>, Actor),
    IndexText(usize),
    Preview(Box<PreviewRequest>),
    Start(Box<OperationSpec>),
    Step(OperationId),
    Control(OperationId, Control, Actor),
    Operation(OperationId),
    Operations(PageRequest),
    Members(OperationId, PageRequest),
    Audit(PageRequest),
    AuditVerify(Option<String>),
    AuditTrim(Time, Actor),
    Info,
    Stats,
    Verify(VerifyRequest),
    Backup(String),
    IdsEnding(TailQuery),
    KvGet(String, String),
    KvPut(String, String, Option<Vec<u8>>, u64),
}

fn protocol(what: impl std::fmt::Display) -> StoreError {
    StoreError::new(StoreErrorKind::Protocol, format!("the store's socket: {what}"))
}

fn unreachable(error: &std::io::Error) -> StoreError {
    let why = format!(
        "the process that holds the data directory went away before it answered ({error}); \
         whether the request took effect is not known: look, then ask again"
    );
    StoreError::new(StoreErrorKind::Unreachable, why)
}

/// Makes one frame: its length in four bytes, then JSON; at most `most` bytes of it.
pub(super) fn pack<T: Serialize>(value: &T, most: usize) -> Result<Vec<u8>, StoreError> {
    let bytes = serde_json::to_vec(value).map_err(protocol)?;
    if bytes.len() > most {
        let why = format!(
            "{} bytes are too many to be sent over the store's socket at once, at most {most} can be; \
             ask for less",
            bytes.len()
        );
        return Err(StoreError::new(StoreErrorKind::Unsupported, why));
    }
    let length = u32::try_from(bytes.len()).map_err(protocol)?.to_be_bytes();
    let mut frame = Vec::with_capacity(bytes.len() + 4);
    frame.extend_from_slice(&length);
    frame.extend_from_slice(&bytes);
    Ok(frame)
}

/// Writes one frame.
pub(super) async fn write(to: &mut (impl AsyncWrite + Unpin), frame: &[u8]) -> Result<(), StoreError> {
    to.write_all(frame).await.map_err(|e| unreachable(&e))
}

/// Makes and writes one frame.
pub(super) async fn send<T: Serialize>(
    to: &mut (impl AsyncWrite + Unpin),
    value: &T,
) -> Result<(), StoreError> {
    write(to, &pack(value, limits::FRAME_BYTES_MAX)?).await
}

/// Reads one frame; nothing when the other side has hung up between frames.
pub(super) async fn receive<T: DeserializeOwned>(
    from: &mut (impl AsyncRead + Unpin),
) -> Result<Option<T>, StoreError> {
    let mut length = [0; 4];
    match from.read_exact(&mut length).await {
        Ok(_) => {}
        Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(e) => return Err(unreachable(&e)),
    }
    let length = u32::from_be_bytes(length) as usize;
    if length > limits::FRAME_BYTES_MAX {
        return Err(protocol(format!("a frame of {length} bytes is announced; that is not our protocol")));
    }
    // The announced length is a claim: memory grows with what really comes.
    let mut bytes = Vec::new();
    from.take(length as u64).read_to_end(&mut bytes).await.map_err(|e| unreachable(&e))?;
    if bytes.len() < length {
        return Err(unreachable(&std::io::ErrorKind::UnexpectedEof.into()));
    }
    serde_json::from_slice(&bytes).map(Some).map_err(protocol)
}
