//! A store that another process holds, reached over the socket in its directory. Every verb is one frame there
//! and one back; what it means is decided on the other side.

mod protocol;
pub(crate) mod server;

use crate::engine::enqueue::check_batch;
use crate::trust::{self, SOCKET};
use crate::verbs::absolute;
use async_trait::async_trait;
use protocol::{Call, Hello, VERSION, receive, send};
use redrive_core::audit::{AuditReport, AuditRow, AuditTrimmed};
use redrive_core::breaker::BreakerView;
use redrive_core::dead_letter::{ActRequest, Actor, DeadLetter, LetterDelivery};
use redrive_core::disclosure::Disclosure;
use redrive_core::error::{Error, Outcome, StoreError, StoreErrorKind};
use redrive_core::failure::Category;
use redrive_core::group::{Group, GroupAct, GroupDetail, GroupQuery, Marker};
use redrive_core::ids::{GroupId, MessageId, OperationId, QueueName};
use redrive_core::invariants::Verification;
use redrive_core::message::{Delivery, Message, NewMessage};
use redrive_core::metrics::Stats;
use redrive_core::operation::{Control, Member, Operation, OperationSpec, Preview, PreviewRequest};
use redrive_core::policy::QueuePolicy;
use redrive_core::query::{Page, PageRequest, Query};
use redrive_core::revision::Revision;
use redrive_core::short_id::TailQuery;
use redrive_core::store::{
    Drawer, Each, Enqueued, HandOver, Indexed, KeyState, KvEntry, LeaseRequest, LetterLeaseRequest,
    LetterSettlement, LetterState, Letters, Purged, Queue, Reaped, Settled, Settlement, Store, StoreInfo,
    VerifyRequest, WaitingFor, Work,
};
use redrive_core::time::{Span, Time};
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::future::Future;
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::UnixStream;

/// The longest path a socket address holds, with room for its end.
const ADDRESS_MAX: usize = 100;
/// Idle connections kept for the next call.
const IDLE_MAX: usize = 8;

/// A path that fits into a socket address: its own, or one through a descriptor of its directory.
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
    idle: Mutex<Vec<UnixStream>>,
    heir: Option<Heir>,
}

/// Opens the directory in this process and serves its socket, if nobody else does.
pub(crate) type TakeOver =
    Box<dyn Fn() -> Pin<Box<dyn Future<Output = Result<Arc<dyn Store>, StoreError>> + Send>> + Send + Sync>;

/// What a process does that works on a directory for long and finds its holder gone: it takes its place. From
/// then on it holds the store and talks to itself over the same socket as everybody else.
pub(crate) struct Heir {
    take_over: TakeOver,
    patience: Duration,
    held: tokio::sync::Mutex<Option<Arc<dyn Store>>>,
}

impl Heir {
    pub(crate) fn new(take_over: TakeOver, patience: Duration) -> Self {
        Self { take_over, patience, held: tokio::sync::Mutex::default() }
    }

    /// Whether another process holds the store, or is just being followed.
    fn waits(&self) -> bool {
        self.held.try_lock().map_or(true, |held| held.is_none())
    }
}

impl fmt::Debug for Heir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heir").field("patience", &self.patience).finish_non_exhaustive()
    }
}

/// How often a directory whose holder is changing is tried again.
const TRY_EVERY: Duration = Duration::from_millis(10);

impl RemoteStore {
    /// Connects to whoever holds this directory.
    ///
    /// # Errors
    /// [`StoreErrorKind::Unreachable`] when nobody answers, [`StoreErrorKind::Protocol`] when they speak
    /// another version, [`StoreErrorKind::Untrusted`] when the directory or its holder is not this user's own,
    /// [`StoreErrorKind::Busy`] when the holder has as many callers as it takes.
    pub async fn connect(directory: &Path) -> Result<Self, StoreError> {
        let store = Self { path: directory.join(SOCKET), idle: Mutex::new(Vec::new()), heir: None };
        let stream = store.dial_holder().await?;
        store.put_back(stream);
        Ok(store)
    }

    /// The same store for somebody who takes the holder's place when it is gone.
    pub(crate) fn inherit(self, heir: Heir) -> Self {
        Self { heir: Some(heir), ..self }
    }

    /// Connects to whoever holds the directory now; where that is nobody and there is an heir, to this process.
    async fn dial(&self) -> Result<UnixStream, StoreError> {
        let nobody = match (self.dial_holder().await, &self.heir) {
            (Err(error), Some(heir)) if error.kind == StoreErrorKind::Unreachable => (error, heir),
            (answer, _) => return answer,
        };
        let (mut error, heir) = nobody;
        let mut held = heir.held.lock().await;
        let end = tokio::time::Instant::now() + heir.patience;
        while tokio::time::Instant::now() < end {
            match self.dial_holder().await {
                Err(again) if again.kind == StoreErrorKind::Unreachable => error = again,
                answer => return answer,
            }
            match (heir.take_over)().await {
                Ok(store) => *held = Some(store),
                Err(locked) if locked.kind == StoreErrorKind::Locked => {
                    tokio::time::sleep(TRY_EVERY).await;
                }
                Err(other) => return Err(other),
            }
        }
        Err(error)
    }

    async fn dial_holder(&self) -> Result<UnixStream, StoreError> {
        let nobody = |e: io::Error| {
            let why = format!("nobody answers on {}: {e}", self.path.display());
            StoreError::new(StoreErrorKind::Unreachable, why)
        };
        trust::check_socket(self.path.parent().unwrap_or(Path::new(".")))?;
        let at = address(&self.path).map_err(nobody)?;
        let mut stream = UnixStream::connect(at.path()).await.map_err(nobody)?;
        trust::check_holder(stream.peer_cred().map_err(nobody)?.uid(), &self.path)?;
        // A holder that refuses may have hung up already; what it said is still there to be read.
        let sent = send(&mut stream, &Hello::new()).await;
        let heard = receive::<Hello>(&mut stream).await;
        if heard.is_err() {
            sent?;
        }
        match heard? {
            Some(Hello { refused: Some(why), .. }) => Err(why),
            Some(hello) if hello.redrive == VERSION => Ok(stream),
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

    fn put_back(&self, stream: UnixStream) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < IDLE_MAX {
            idle.push(stream);
        }
    }

    fn take_idle(&self) -> Option<UnixStream> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        // One that has something to say without being asked was hung up on meanwhile.
        while let Some(stream) = idle.pop() {
            match stream.try_read(&mut [0; 1]) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Some(stream),
                Ok(_) | Err(_) => {}
            }
        }
        None
    }

    async fn call<T: DeserializeOwned>(&self, call: Call) -> Outcome<T> {
        let mut stream = match self.take_idle() {
            Some(stream) => stream,
            None => self.dial().await?,
        };
        let of_another = self.heir.as_ref().is_some_and(Heir::waits);
        send(&mut stream, &call).await?;
        let answer: Option<Outcome<T>> = receive(&mut stream).await?;
        let gone = || {
            let why = "the process that holds the data directory went away before it answered; \
                       whether the request took effect is not known: look, then ask again";
            StoreError::new(StoreErrorKind::Unreachable, why)
        };
        match answer.ok_or_else(gone)? {
            // That is said of the other process, which will go away: here work goes on when it has.
            Err(Error::Store(error)) if of_another && error.kind == StoreErrorKind::Stopped => {
                self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
                let why = format!(
                    "the store stopped in the process that holds the data directory ({error}); \
                     whether the request took effect is not known: look, then ask again"
                );
                Err(StoreError::new(StoreErrorKind::Unreachable, why).into())
            }
            answer => {
                self.put_back(stream);
                answer
            }
        }
    }
}

#[async_trait]
impl Work for RemoteStore {
    async fn enqueue(&self, batch: Vec<NewMessage>) -> Outcome<Each<Enqueued>> {
        check_batch(batch.len(), batch.iter().map(|m| m.payload.bytes.len()).sum())?;
        self.call(Call::Enqueue(batch)).await
    }
    async fn lease(&self, request: LeaseRequest) -> Outcome<Vec<Delivery>> {
        self.call(Call::Lease(request)).await
    }
    async fn settle(&self, batch: Vec<Settlement>) -> Outcome<Each<Settled>> {
        check_batch(batch.len(), batch.iter().map(Settlement::payload_bytes).sum())?;
        self.call(Call::Settle(batch)).await
    }
    async fn reap(&self, limit: usize) -> Outcome<Reaped> {
        self.call(Call::Reap(limit)).await
    }
    async fn tidy(&self, _limit: usize) -> Outcome<Option<Reaped>> {
        Ok(None)
    }
    async fn wait(&self, queues: Vec<QueueName>, at_most: Span) -> Outcome<bool> {
        self.call(Call::Wait(queues, at_most)).await
    }
    async fn messages(&self, query: Query) -> Outcome<Page<Message>> {
        self.call(Call::Messages(query)).await
    }
    async fn message(&self, id: MessageId) -> Outcome<Message> {
        self.call(Call::Message(id)).await
    }
    async fn key_state(&self, queue: QueueName, key: String) -> Outcome<Option<KeyState>> {
        self.call(Call::KeyState(queue, key)).await
    }
    async fn cancel(&self, ids: Vec<MessageId>, actor: Actor) -> Outcome<Each<MessageId>> {
        self.call(Call::Cancel(ids, actor)).await
    }
    async fn queues(&self) -> Outcome<Vec<Queue>> {
        self.call(Call::Queues).await
    }
    async fn queue(&self, name: QueueName) -> Outcome<Queue> {
        self.call(Call::Queue(name)).await
    }
    async fn waiting_for(&self) -> Outcome<Option<BTreeMap<QueueName, WaitingFor>>> {
        self.call(Call::WaitingFor).await
    }
    async fn configure(&self, name: QueueName, policy: QueuePolicy, actor: Actor) -> Outcome<Queue> {
        self.call(Call::Configure(name, Box::new(policy), actor)).await
    }
    async fn pause(&self, name: QueueName, paused: bool, actor: Actor) -> Outcome<Queue> {
        self.call(Call::Pause(name, paused, actor)).await
    }
    async fn purge(&self, name: QueueName, actor: Actor) -> Outcome<Purged> {
        self.call(Call::Purge(name, actor)).await
    }
    async fn breakers(&self) -> Outcome<Vec<BreakerView>> {
        self.call(Call::Breakers).await
    }
    async fn force_breaker(
        &self,
        queue: QueueName,
        key: String,
        open: bool,
        actor: Actor,
    ) -> Outcome<BreakerView> {
        self.call(Call::ForceBreaker(queue, key, open, actor)).await
    }
}

#[async_trait]
impl Letters for RemoteStore {
    async fn letters(&self, query: Query) -> Outcome<Page<DeadLetter>> {
        self.call(Call::Letters(query)).await
    }
    async fn letter(&self, id: MessageId) -> Outcome<DeadLetter> {
        self.call(Call::Letter(id)).await
    }
    async fn revisions(&self, id: MessageId) -> Outcome<Vec<Revision>> {
        self.call(Call::Revisions(id)).await
    }

    async fn drawers(&self) -> Outcome<Vec<Drawer>> {
        self.call(Call::Drawers).await
    }
    async fn lease_letters(&self, request: LetterLeaseRequest) -> Outcome<Vec<LetterDelivery>> {
        self.call(Call::LeaseLetters(request)).await
    }
    async fn settle_letters(&self, batch: Vec<LetterSettlement>) -> Outcome<Each<LetterState>> {
        self.call(Call::SettleLetters(batch)).await
    }
    async fn act(&self, batch: Vec<ActRequest>) -> Outcome<Each<LetterState>> {
        self.call(Call::Act(batch)).await
    }
    async fn groups(&self, query: GroupQuery) -> Outcome<Page<Group>> {
        self.call(Call::Groups(Box::new(query))).await
    }
    async fn group(&self, id: GroupId) -> Outcome<Group> {
        self.call(Call::Group(id)).await
    }
    async fn group_detail(&self, id: GroupId) -> Outcome<GroupDetail> {
        self.call(Call::GroupDetail(id)).await
    }
    async fn act_on_group(&self, id: GroupId, act: GroupAct, actor: Actor) -> Outcome<Group> {
        self.call(Call::ActOnGroup(id, act, actor)).await
    }
    async fn mark(&self, text: String, actor: Actor) -> Outcome<Marker> {
        self.call(Call::Mark(text, actor)).await
    }
    async fn markers(&self, page: PageRequest) -> Outcome<Page<Marker>> {
        self.call(Call::Markers(page)).await
    }
    async fn merge_groups(&self, groups: Vec<GroupId>, actor: Actor) -> Outcome<Group> {
        self.call(Call::MergeGroups(groups, actor)).await
    }
    async fn label_group(&self, id: GroupId, category: Option<Category>, actor: Actor) -> Outcome<Group> {
        self.call(Call::LabelGroup(id, category, actor)).await
    }
    async fn export(&self, query: Query) -> Outcome<Page<DeadLetter>> {
        self.call(Call::Export(query)).await
    }
    async fn disclose(&self, disclosure: Disclosure, actor: Actor) -> Outcome<()> {
        self.call(Call::Disclose(disclosure, actor)).await
    }
    async fn import(&self, batch: Vec<DeadLetter>, actor: Actor) -> Outcome<Each<MessageId>> {
        self.call(Call::Import(batch, actor)).await
    }
    async fn index_text(&self, limit: usize) -> Outcome<Indexed> {
        self.call(Call::IndexText(limit)).await
    }

    async fn preview(&self, request: PreviewRequest) -> Outcome<Preview> {
        self.call(Call::Preview(Box::new(request))).await
    }
    async fn start(&self, spec: OperationSpec) -> Outcome<Operation> {
        self.call(Call::Start(Box::new(spec))).await
    }
    async fn step(&self, id: OperationId) -> Outcome<Operation> {
        self.call(Call::Step(id)).await
    }
    async fn control(&self, id: OperationId, control: Control, actor: Actor) -> Outcome<Operation> {
        self.call(Call::Control(id, control, actor)).await
    }
    async fn operation(&self, id: OperationId) -> Outcome<Operation> {
        self.call(Call::Operation(id)).await
    }
    async fn operations(&self, page: PageRequest) -> Outcome<Page<Operation>> {
        self.call(Call::Operations(page)).await
    }
    async fn members(&self, id: OperationId, page: PageRequest) -> Outcome<Page<Member>> {
        self.call(Call::Members(id, page)).await
    }
    async fn audit(&self, page: PageRequest) -> Outcome<Page<AuditRow>> {
        self.call(Call::Audit(page)).await
    }
    async fn audit_verify(&self, head: Option<String>) -> Outcome<AuditReport> {
        self.call(Call::AuditVerify(head)).await
    }
    async fn audit_trim(&self, before: Time, actor: Actor) -> Outcome<AuditTrimmed> {
        self.call(Call::AuditTrim(before, actor)).await
    }
    async fn hand_over(&self, batch: Vec<HandOver>, actor: Actor) -> Outcome<Each<MessageId>> {
        self.call(Call::HandOver(batch, actor)).await
    }
}

#[async_trait]
impl Store for RemoteStore {
    async fn info(&self) -> Outcome<StoreInfo> {
        self.call(Call::Info).await
    }
    async fn stats(&self) -> Outcome<Stats> {
        self.call(Call::Stats).await
    }
    async fn verify(&self, request: VerifyRequest) -> Outcome<Verification> {
        self.call(Call::Verify(request)).await
    }
    async fn backup(&self, target: String) -> Outcome<u64> {
        self.call(Call::Backup(absolute(&target)?)).await
    }
    async fn ids_ending(&self, query: TailQuery) -> Outcome<Page<String>> {
        self.call(Call::IdsEnding(query)).await
    }
    async fn kv_get(&self, namespace: String, key: String) -> Outcome<Option<KvEntry>> {
        self.call(Call::KvGet(namespace, key)).await
    }
    async fn kv_put(
        &self,
        namespace: String,
        key: String,
        value: Option<Vec<u8>>,
        expected: u64,
    ) -> Outcome<u64> {
        self.call(Call::KvPut(namespace, key, value, expected)).await
    }
}
