//! The side that holds the directory: answers calls on its socket, for as long as it holds it.

use super::protocol::{Call, Hello, VERSION, pack, receive, send, write};
use crate::trust;
use redrive_core::error::{Error, Outcome, Refusal, StoreError, StoreErrorKind};
use redrive_core::ids::QueueName;
use redrive_core::limits;
use redrive_core::store::Store;
use redrive_core::time::Span;
use serde::Serialize;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;

/// One caller. Reading ahead shows whether it is still there without taking away what it said.
type Connection = BufReader<UnixStream>;

/// Serves while it lives.
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
    let store = Arc::downgrade(store);
    let task = tokio::spawn(async move {
        let places = Arc::new(Semaphore::new(limits::CONNECTIONS_MAX));
        let waits = Arc::new(Semaphore::new(limits::WAITS_MAX));
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                // Out of descriptors, most likely: let others finish first.
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                continue;
            };
            let place = match admit(&stream, &places) {
                Ok(place) => place,
                Err(why) => {
                    refuse(stream, why);
                    continue;
                }
            };
            let (store, waits) = (Weak::clone(&store), Arc::clone(&waits));
            tokio::spawn(async move {
                let _ = converse(BufReader::new(stream), &store, &waits).await;
                drop(place);
            });
        }
    });
    Ok(Server { task, path: path.to_owned() })
}

/// A place for a caller who is this user or root, as long as there is one.
fn admit(stream: &UnixStream, places: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, StoreError> {
    let unknown = |e| {
        StoreError::new(StoreErrorKind::Untrusted, format!("the system does not say who is calling: {e}"))
    };
    trust::check_caller(stream.peer_cred().map_err(unknown)?.uid())?;
    Arc::clone(places).try_acquire_owned().map_err(|_| {
        let why = format!(
            "the process that holds the data directory serves {} connections already and takes no more; \
             try again when some of its callers have ended, or share one connection between them",
            limits::CONNECTIONS_MAX
        );
        StoreError::new(StoreErrorKind::Busy, why)
    })
}

/// Says why and hangs up. The answer fits into the buffer of a new connection; nobody waits until it is read.
fn refuse(stream: UnixStream, why: StoreError) {
    let Ok(frame) = pack(&Hello::refusing(why), limits::FRAME_BYTES_MAX) else { return };
    if let Ok(mut stream) = stream.into_std() {
        let _ = stream.write_all(&frame);
    }
}

async fn converse(
    mut stream: Connection,
    store: &Weak<dyn Store>,
    waits: &Semaphore,
) -> Result<(), StoreError> {
    let greeting = tokio::time::timeout(limits::GREETING_MAX, receive::<Hello>(&mut stream));
    let Some(hello) = greeting.await.unwrap_or(Ok(None))? else { return Ok(()) };
    send(&mut stream, &Hello::new()).await?;
    if hello.redrive != VERSION {
        return Ok(());
    }
    loop {
        let call = match receive::<Call>(&mut stream).await {
            Ok(Some(call)) => call,
            Ok(None) => return Ok(()),
            Err(error) => {
                let _ = send(&mut stream, &Err::<(), Error>(error.clone().into())).await;
                return Err(error);
            }
        };
        let Some(store) = store.upgrade() else { return Ok(()) };
        answer(&mut stream, store.as_ref(), waits, call).await?;
    }
}

/// Waits for work on behalf of a caller, who may go away meanwhile. Waits have places of their own and leave the
/// rest to calls.
async fn wait(
    stream: &mut Connection,
    store: &dyn Store,
    waits: &Semaphore,
    (queues, at_most): (Vec<QueueName>, Span),
) -> Result<(), StoreError> {
    let Ok(_place) = waits.try_acquire() else {
        let why = format!(
            "{} callers wait for work through the process that holds the data directory, and it takes no more; \
             lease without --wait and ask again later, or let one `redrive work --concurrency N` do the work of many",
            limits::WAITS_MAX
        );
        return reply(stream, Err::<bool, _>(StoreError::new(StoreErrorKind::Busy, why).into())).await;
    };
    let waited = tokio::select! {
        waited = store.wait(queues, at_most) => waited,
        () = hung_up(stream) => {
            return Err(StoreError::new(StoreErrorKind::Unreachable, "the caller went away while it waited"));
        }
    };
    reply(stream, waited).await
}

/// Returns when the other side has hung up; never when it has said something more instead, which stays to be read.
async fn hung_up(stream: &mut Connection) {
    if stream.fill_buf().await.is_ok_and(|said| !said.is_empty()) {
        std::future::pending().await
    }
}

async fn reply<T: Serialize + Send + Sync>(
    stream: &mut Connection,
    result: Result<T, Error>,
) -> Result<(), StoreError> {
    write(stream, &frame_of(&result, limits::FRAME_BYTES_MAX)?).await
}

/// The frame of an answer. One that cannot be sent is answered with why: whoever only hangs up is asked again.
fn frame_of<T: Serialize>(result: &Result<T, Error>, most: usize) -> Result<Vec<u8>, StoreError> {
    pack(result, most).or_else(|error| pack(&Err::<(), Error>(error.into()), limits::FRAME_BYTES_MAX))
}

async fn answer(
    stream: &mut Connection,
    store: &dyn Store,
    waits: &Semaphore,
    call: Call,
) -> Result<(), StoreError> {
    match call {
        Call::Enqueue(batch) => reply(stream, store.enqueue(batch).await).await,
        Call::Lease(request) => reply(stream, store.lease(request).await).await,
        Call::Settle(batch) => reply(stream, store.settle(batch).await).await,
        Call::Reap(limit) => reply(stream, store.reap(limit).await).await,
        Call::Wait(queues, at_most) => wait(stream, store, waits, (queues, at_most)).await,
        Call::Messages(query) => reply(stream, store.messages(query).await).await,
        Call::Message(id) => reply(stream, store.message(id).await).await,
        Call::KeyState(queue, key) => reply(stream, store.key_state(queue, key).await).await,
        Call::Cancel(ids, actor) => reply(stream, store.cancel(ids, actor).await).await,
        Call::Queues => reply(stream, store.queues().await).await,
        Call::WaitingFor => reply(stream, store.waiting_for().await).await,
        Call::Queue(name) => reply(stream, store.queue(name).await).await,
        Call::Configure(name, policy, actor) => {
            reply(stream, store.configure(name, *policy, actor).await).await
        }
        Call::Pause(name, paused, actor) => reply(stream, store.pause(name, paused, actor).await).await,
        Call::Purge(name, actor) => reply(stream, store.purge(name, actor).await).await,
        Call::Breakers => reply(stream, store.breakers().await).await,
        Call::ForceBreaker(queue, key, open, actor) => {
            reply(stream, store.force_breaker(queue, key, open, actor).await).await
        }
        Call::Letters(query) => reply(stream, store.letters(query).await).await,
        Call::Letter(id) => reply(stream, store.letter(id).await).await,
        Call::Revisions(id) => reply(stream, store.revisions(id).await).await,
        Call::Drawers => reply(stream, store.drawers().await).await,
        Call::LeaseLetters(request) => reply(stream, store.lease_letters(request).await).await,
        Call::SettleLetters(batch) => reply(stream, store.settle_letters(batch).await).await,
        Call::Act(batch) => reply(stream, store.act(batch).await).await,
        Call::Groups(query) => reply(stream, store.groups(*query).await).await,
        Call::Group(id) => reply(stream, store.group(id).await).await,
        Call::GroupDetail(id) => reply(stream, store.group_detail(id).await).await,
        Call::ActOnGroup(id, act, actor) => reply(stream, store.act_on_group(id, act, actor).await).await,
        Call::Mark(text, actor) => reply(stream, store.mark(text, actor).await).await,
        Call::Markers(page) => reply(stream, store.markers(page).await).await,
        Call::MergeGroups(groups, actor) => reply(stream, store.merge_groups(groups, actor).await).await,
        Call::LabelGroup(id, category, actor) => {
            reply(stream, store.label_group(id, category, actor).await).await
        }
        Call::Export(query) => reply(stream, store.export(query).await).await,
        Call::Disclose(what, actor) => reply(stream, store.disclose(what, actor).await).await,
        Call::Import(batch, actor) => reply(stream, store.import(batch, actor).await).await,
        Call::IndexText(limit) => reply(stream, store.index_text(limit).await).await,
        Call::Preview(request) => reply(stream, store.preview(*request).await).await,
        Call::Start(spec) => reply(stream, store.start(*spec).await).await,
        Call::Step(id) => reply(stream, store.step(id).await).await,
        Call::Control(id, control, actor) => reply(stream, store.control(id, control, actor).await).await,
        Call::Operation(id) => reply(stream, store.operation(id).await).await,
        Call::Operations(page) => reply(stream, store.operations(page).await).await,
        Call::Members(id, page) => reply(stream, store.members(id, page).await).await,
        Call::Audit(page) => reply(stream, store.audit(page).await).await,
        Call::AuditVerify(head) => reply(stream, store.audit_verify(head).await).await,
        Call::AuditTrim(before, actor) => reply(stream, store.audit_trim(before, actor).await).await,
        Call::HandOver(batch, actor) => reply(stream, store.hand_over(batch, actor).await).await,
        Call::Info => reply(stream, store.info().await).await,
        Call::Stats => reply(stream, store.stats().await).await,
        Call::Verify(request) => reply(stream, store.verify(request).await).await,
        Call::Backup(target) => reply(stream, backup(store, target).await).await,
        Call::IdsEnding(query) => reply(stream, store.ids_ending(query).await).await,
        Call::KvGet(namespace, key) => reply(stream, store.kv_get(namespace, key).await).await,
        Call::KvPut(namespace, key, value, expected) => {
            reply(stream, store.kv_put(namespace, key, value, expected).await).await
        }
    }
}

/// Makes a backup where the caller means it: a path that is not absolute would name another place here than there.
async fn backup(store: &dyn Store, target: String) -> Outcome<u64> {
    if !Path::new(&target).is_absolute() {
        let why = format!("{target:?} is not an absolute path; name the new directory from the root on");
        return Err(Refusal::invalid("target", why).into());
    }
    store.backup(target).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_that_is_too_long_is_answered_with_why() {
        let (mut here, mut there) = UnixStream::pair().expect("a pair");
        for (answer, fits) in [("short", true), ("much longer than that", false)] {
            let frame = frame_of(&Ok(answer), 20).expect("one of them fits");
            write(&mut there, &frame).await.expect("it is written");
            let heard: Option<Result<String, Error>> = receive(&mut here).await.expect("a frame");
            match heard.expect("nobody hangs up") {
                Ok(text) => assert!(fits && text == answer),
                Err(Error::Store(error)) => {
                    assert!(!fits && error.kind == StoreErrorKind::Unsupported, "{error}");
                    assert!(error.text.contains("ask for less"), "{error}");
                }
                Err(Error::Refused(refusal)) => panic!("nothing was refused: {refusal}"),
            }
        }
    }
}
