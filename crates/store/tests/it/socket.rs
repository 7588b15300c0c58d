//! The socket of a data directory under arbitrary input: garbage, frames that end
//! early or claim too much, calls in one piece and in many. The holder replies to
//! what it can, closes the connection on the rest, and keeps serving everybody else.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use redrive_core::dead_letter::Actor;
use redrive_core::error::{CallError, Refusal, StoreErrorKind, StoreResult};
use redrive_core::ids::{MessageId, QueueName};
use redrive_core::limits;
use redrive_core::message::{NewMessage, Payload};
use redrive_core::policy::QueuePolicy;
use redrive_core::store::{Call, Encoding, Store, VerifyRequest, Work as _};
use redrive_core::time::Span;
use redrive_store::remote::RemoteStore;
use redrive_store::sqlite::Options;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

/// Longer than anything here takes; only reached if something hangs.
const PATIENCE: Duration = Duration::from_secs(600);

/// The greeting of the holder, which every caller has to repeat. A greeting of another version makes it send its own.
async fn greeting(socket: &Path) -> Vec<u8> {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    stream.write_all(b"\0\0\0\x0d{\"redrive\":0}").await.unwrap();
    let mut received = Vec::new();
    stream.read_to_end(&mut received).await.unwrap();
    received
}

/// Calls that change nothing.
fn calls() -> [Call; 6] {
    [
        Call::Queues {},
        Call::Info {},
        Call::Queue { name: "none".parse().unwrap() },
        Call::Reap { limit: 0 },
        Call::Backup { target: String::new() },
        Call::Wait { queues: q(), at_most: Span::ZERO },
    ]
}

/// How many [`calls`] there are.
const CALLS: usize = 6;
/// The index in [`calls`] of the one that waits.
const WAIT: usize = 5;

/// Contents of frames that are not calls of this protocol: other values, other verbs, a map that announces more than
/// there is, text and lists that announce gigabytes, lists in lists in lists.
fn not_calls() -> [Vec<u8>; 8] {
    let compact = |value: serde_json::Value| {
        let mut bytes = Vec::new();
        Encoding::Compact.encode(&mut bytes, &value).unwrap();
        bytes
    };
    [
        b"{\"verb\":\"queues\",\"with\":{}}".to_vec(),
        compact(serde_json::json!(null)),
        compact(serde_json::json!([])),
        compact(serde_json::json!({"verb": "no_such_verb", "with": {}})),
        compact(serde_json::json!({"verb": "enqueue"})),
        b"\x82\xa4verb".to_vec(),
        b"\x82\xa4verb\xa7enqueue\xa4with\x81\xa5batch\xdd\xff\xff\xff\xff\xdb\xff\xff\xff\xff".to_vec(),
        [b"\x82\xa4verb\xa6queues\xa4with\x81\xa1x".to_vec(), vec![0x91; 50_000]].concat(),
    ]
}

/// How many [`not_calls`] there are.
const NOT_CALLS: usize = 8;

/// A frame of the call with this id.
fn frame(id: u64, contents: &[u8]) -> Vec<u8> {
    [&u32::try_from(contents.len()).unwrap().to_be_bytes(), id.to_be_bytes().as_slice(), contents].concat()
}

fn call_frame(id: u64, call: &Call) -> Vec<u8> {
    let mut contents = Vec::new();
    Encoding::Compact.encode(&mut contents, call).unwrap();
    frame(id, &contents)
}

/// The ids and contents of the frames after the greeting.
fn frames_in(received: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let (length, rest) = received.split_first_chunk::<4>().unwrap();
    let mut bytes = &rest[u32::from_be_bytes(*length) as usize..];
    let mut frames = Vec::new();
    while let Some((header, rest)) = bytes.split_first_chunk::<12>() {
        let length = u32::from_be_bytes(header[..4].try_into().unwrap()) as usize;
        frames.push((u64::from_be_bytes(header[4..].try_into().unwrap()), rest[..length].to_vec()));
        bytes = &rest[length..];
    }
    assert!(bytes.is_empty(), "the last frame is complete");
    frames
}

/// One input of a client.
#[derive(Clone, Debug)]
enum Input {
    Call(usize),
    NotACall(usize),
    Garbage(Vec<u8>),
    /// A call whose frame is cut off.
    CutFrame(usize, usize),
    /// The header of a frame of this length.
    ClaimedLength(u32),
    /// Nobody waits for the call with this id.
    NobodyWaits(u64),
}

fn input() -> impl Strategy<Value = Input> {
    prop_oneof![
        8 => (0..CALLS).prop_map(Input::Call),
        1 => (0..NOT_CALLS).prop_map(Input::NotACall),
        1 => prop::collection::vec(any::<u8>(), 0..200).prop_map(Input::Garbage),
        1 => (0..CALLS, 0..10_usize).prop_map(|(n, cut)| Input::CutFrame(n, cut)),
        1 => any::<u32>().prop_map(Input::ClaimedLength),
        1 => (0..10_u64).prop_map(Input::NobodyWaits),
    ]
}

fn bytes_of(id: u64, input: &Input) -> Vec<u8> {
    match input {
        Input::Call(n) => call_frame(id, &calls()[*n]),
        Input::NotACall(n) => frame(id, &not_calls()[*n]),
        Input::Garbage(bytes) => bytes.clone(),
        Input::CutFrame(n, cut) => {
            let whole = call_frame(id, &calls()[*n]);
            whole[..whole.len() - 1 - cut].to_vec()
        }
        Input::ClaimedLength(length) => [length.to_be_bytes().as_slice(), &id.to_be_bytes()].concat(),
        Input::NobodyWaits(id) => frame(*id, b""),
    }
}

/// What a client sends on one connection, in pieces of this size, and whether it begins with a greeting.
#[derive(Clone, Debug)]
struct Conversation {
    greets: bool,
    inputs: Vec<Input>,
    piece: usize,
}

impl Conversation {
    fn bytes(&self, greeting: &[u8]) -> Vec<u8> {
        let greeting = if self.greets { greeting.to_vec() } else { Vec::new() };
        let inputs = (0..).zip(&self.inputs).flat_map(|(id, input)| bytes_of(id, input));
        [greeting, inputs.collect()].concat()
    }

    /// The ids of the calls that are answered, if the holder understands where each frame begins and ends. A call that
    /// waits may be answered as well, unless the client hangs up first.
    fn answered(&self) -> Option<(Vec<u64>, Vec<u64>)> {
        let (mut surely, mut perhaps) = (Vec::new(), Vec::new());
        for (id, input) in (0..).zip(&self.inputs) {
            match input {
                Input::Call(WAIT) => perhaps.push(id),
                Input::Call(_) | Input::NotACall(_) => surely.push(id),
                Input::NobodyWaits(_) => {}
                Input::Garbage(_) | Input::CutFrame(..) | Input::ClaimedLength(_) => return None,
            }
        }
        self.greets.then_some((surely, perhaps))
    }
}

fn conversation() -> impl Strategy<Value = Conversation> {
    let greets = prop::bool::weighted(0.9);
    (greets, prop::collection::vec(input(), 0..8), 1..64_usize)
        .prop_map(|(greets, inputs, piece)| Conversation { greets, inputs, piece })
}

/// Sends all conversations, piece by piece in turns, and returns everything that comes back.
async fn run(socket: &Path, conversations: &[Conversation]) -> Vec<Vec<u8>> {
    let mut streams = Vec::new();
    let greeting = greeting(socket).await;
    for conversation in conversations {
        streams.push((UnixStream::connect(socket).await.unwrap(), conversation.bytes(&greeting)));
    }
    let mut received = Vec::new();
    let longest = streams
        .iter()
        .zip(conversations)
        .map(|((_, bytes), conversation)| bytes.len().div_ceil(conversation.piece))
        .max();
    let pieces = longest.unwrap_or(0);
    for n in 0..pieces {
        for ((stream, bytes), conversation) in streams.iter_mut().zip(conversations) {
            if let Some(piece) = bytes.chunks(conversation.piece).nth(n) {
                // The holder may have closed the connection already.
                let _ = stream.write_all(piece).await;
            }
        }
    }
    for (mut stream, _) in streams {
        let _ = stream.shutdown().await;
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes).await;
        received.push(bytes);
    }
    received
}

#[test]
fn whatever_a_client_sends_the_others_are_served() {
    let home = TempDir::new().unwrap();
    let socket = home.path().join("socket");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (store, other) = runtime.block_on(async {
        let store = redrive_store::open_serving(home.path(), Options::default()).unwrap();
        (store, RemoteStore::connect(home.path()).await.unwrap())
    });
    let mut runner = TestRunner::new(Config { cases: 300, failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&prop::collection::vec(conversation(), 1..4), |conversations| {
        let received = runtime.block_on(async {
            let all = async {
                let received = run(&socket, &conversations).await;
                other.queues().await.unwrap();
                RemoteStore::connect(home.path()).await.unwrap().queues().await.unwrap();
                received
            };
            tokio::time::timeout(PATIENCE, all).await.expect("nothing hangs")
        });
        for (conversation, received) in conversations.iter().zip(received) {
            if let Some((surely, perhaps)) = conversation.answered() {
                let ids: Vec<u64> = frames_in(&received).into_iter().map(|(id, _)| id).collect();
                let distinct: BTreeSet<u64> = ids.iter().copied().collect();
                prop_assert_eq!(distinct.len(), ids.len(), "no call is answered twice: {:?}", conversation);
                prop_assert!(surely.iter().all(|id| distinct.contains(id)), "{:?}: {:?}", conversation, ids);
                let asked = |id| surely.contains(id) || perhaps.contains(id);
                prop_assert!(distinct.iter().all(asked), "{:?}: {:?}", conversation, ids);
            }
        }
        Ok(())
    });
    outcome.unwrap();
    let verified = runtime.block_on(store.verify(VerifyRequest { deep: true, repair: false })).unwrap();
    assert!(verified.is_clean(), "{:?}", verified.findings);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_goes_where_the_caller_means_or_nowhere() {
    let home = TempDir::new().unwrap();
    let socket = home.path().join("socket");
    let _store = redrive_store::open_serving(home.path(), Options::default()).unwrap();
    for target in ["", "relative", "./x/../y"] {
        let call = call_frame(1, &Call::Backup { target: target.into() });
        let mut stream = UnixStream::connect(&socket).await.unwrap();
        stream.write_all(&[greeting(&socket).await, call].concat()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut received = Vec::new();
        stream.read_to_end(&mut received).await.unwrap();
        let received = String::from_utf8_lossy(&received).into_owned();
        assert!(received.contains("is not an absolute path"), "{target:?}: {received}");
    }
    let remote = RemoteStore::connect(home.path()).await.unwrap();
    let refused = remote.backup(String::new()).await.unwrap_err();
    assert!(matches!(refused, CallError::Refused(Refusal::Invalid { .. })), "{refused}");
    for name in ["redrive.db", "audit.key", "relative", "y"] {
        assert!(!Path::new(name).exists(), "{name} is in the holder's working directory");
    }
}

fn q() -> Vec<QueueName> {
    vec!["q".parse().unwrap()]
}

/// As many messages as there are waiters, so that all of them are woken at once.
fn one_for_each(waiters: usize) -> Vec<NewMessage> {
    let ids = (0..waiters as u64).map(|n| MessageId::new(n, [1; 10]));
    ids.map(|id| NewMessage::new(id, q().remove(0), Payload::default())).collect()
}

fn is_busy<T>(outcome: &Result<T, CallError>) -> bool {
    matches!(outcome, Err(CallError::Store(error)) if error.kind == StoreErrorKind::Busy)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_clients_leave_room_for_clients_that_bring_work() {
    let story = async {
        let home = TempDir::new().unwrap();
        let _store = redrive_store::open_serving(home.path(), Options::default()).unwrap();
        let caller = RemoteStore::connect(home.path()).await.unwrap();
        let actor = Actor::new("ada", "test");
        caller.configure(q().remove(0), QueuePolicy::default(), actor).await.unwrap();
        let mut waiting = Vec::new();
        for _ in 0..limits::WAITS_MAX {
            let waiter = RemoteStore::connect(home.path()).await.unwrap();
            // The client that looks whether all slots are taken holds one for a moment, which may be the last one.
            waiting.push(tokio::spawn(async move {
                loop {
                    let outcome = waiter.wait(q(), Span::from_hours(1)).await;
                    if !is_busy(&outcome) {
                        break outcome;
                    }
                }
            }));
        }
        // Refused once every slot is taken, and not before.
        let asked = RemoteStore::connect(home.path()).await.unwrap();
        let refused = loop {
            let outcome = asked.wait(q(), Span::ZERO).await;
            if is_busy(&outcome) {
                break outcome.unwrap_err();
            }
            assert_eq!(outcome, Ok(false));
        };
        assert!(refused.to_string().contains("redrive work --concurrency"), "{refused}");
        // A client that goes away frees its slot.
        let gone = waiting.pop().unwrap();
        gone.abort();
        let _ = gone.await;
        while is_busy(&asked.wait(q(), Span::ZERO).await) {}
        caller.enqueue(one_for_each(waiting.len())).await.unwrap().remove(0).unwrap();
        for waiter in waiting {
            assert_eq!(waiter.await.unwrap(), Ok(true));
        }
    };
    tokio::time::timeout(PATIENCE, story).await.expect("clients that bring work get through");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_connection_too_many_is_refused() {
    // Both ends of every connection are in this process.
    let mut files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    files.current = files.maximum;
    rustix::process::setrlimit(rustix::process::Resource::Nofile, files).unwrap();
    let home = TempDir::new().unwrap();
    let _store = redrive_store::open_serving(home.path(), Options::default()).unwrap();
    let mut connected = Vec::new();
    for _ in 0..limits::CONNECTIONS_MAX {
        connected.push(RemoteStore::connect(home.path()).await.unwrap());
    }
    let refused = RemoteStore::connect(home.path()).await.unwrap_err();
    assert_eq!(refused.kind, StoreErrorKind::Busy, "{refused}");
    let refused = redrive_store::open(home.path(), false, false, Span::ZERO).await.err().unwrap();
    assert_eq!(refused.kind, StoreErrorKind::Busy, "{refused}");
    connected.pop().unwrap().queues().await.unwrap();
    let patience = Span::from_hours(1);
    redrive_store::open(home.path(), false, false, patience).await.unwrap().queues().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_wait_hold_up_nobody_on_their_connection() {
    let story = async {
        let home = TempDir::new().unwrap();
        let _store = redrive_store::open_serving(home.path(), Options::default()).unwrap();
        let shared = Arc::new(RemoteStore::connect(home.path()).await.unwrap());
        shared.configure(q().remove(0), QueuePolicy::default(), Actor::new("ada", "test")).await.unwrap();
        let mut waiting: Vec<_> = (0..limits::WAITS_MAX)
            .map(|_| {
                let shared = Arc::clone(&shared);
                tokio::spawn(async move {
                    loop {
                        let outcome = shared.wait(q(), Span::from_hours(1)).await;
                        if !is_busy(&outcome) {
                            break outcome;
                        }
                    }
                })
            })
            .collect();
        while !is_busy(&shared.wait(q(), Span::ZERO).await) {}
        // Other calls get through while all of them wait, also more of them than may be in flight.
        let calls: Vec<_> = (0..2 * limits::CALLS_IN_FLIGHT_MAX)
            .map(|_| {
                let shared = Arc::clone(&shared);
                tokio::spawn(async move { shared.queues().await })
            })
            .collect();
        for call in calls {
            assert_eq!(call.await.unwrap().map(|queues| queues.len()), Ok(1));
        }
        // A caller that stops waiting frees its slot, though its connection stays.
        let gone = waiting.pop().unwrap();
        gone.abort();
        let _ = gone.await;
        while is_busy(&shared.wait(q(), Span::ZERO).await) {}
        shared.enqueue(one_for_each(waiting.len())).await.unwrap().remove(0).unwrap();
        for waiter in waiting {
            assert_eq!(waiter.await.unwrap(), Ok(true));
        }
    };
    tokio::time::timeout(PATIENCE, story).await.expect("nobody is held up");
}

/// The other end of a client's connection, played by the test.
struct FakeHolder {
    listener: UnixListener,
    _home: TempDir,
}

impl FakeHolder {
    fn new() -> (Self, std::path::PathBuf) {
        let home = TempDir::new().unwrap();
        let path = home.path().to_owned();
        let listener = UnixListener::bind(path.join("socket")).unwrap();
        (Self { listener, _home: home }, path)
    }

    /// Accepts a client and greets it with its own greeting.
    async fn greet(&self) -> UnixStream {
        let (mut stream, _) = self.listener.accept().await.unwrap();
        let length = stream.read_u32().await.unwrap();
        let mut hello = vec![0; length as usize];
        stream.read_exact(&mut hello).await.unwrap();
        stream.write_all(&[&length.to_be_bytes(), hello.as_slice()].concat()).await.unwrap();
        stream
    }
}

/// Reads one call.
async fn heard(stream: &mut UnixStream) -> (u64, Call) {
    let length = stream.read_u32().await.unwrap();
    let id = stream.read_u64().await.unwrap();
    let mut contents = vec![0; length as usize];
    stream.read_exact(&mut contents).await.unwrap();
    (id, Encoding::Compact.decode(&contents).unwrap())
}

fn reply_frame<T: serde::Serialize>(id: u64, reply: T) -> Vec<u8> {
    let mut contents = Vec::new();
    Encoding::Compact.encode(&mut contents, &StoreResult::Ok(reply)).unwrap();
    frame(id, &contents)
}

/// Makes a call that carries a number. A fake holder replies with the number.
async fn asks(store: Arc<RemoteStore>, n: u64) -> StoreResult<u64> {
    store.kv_put("n".into(), n.to_string(), None, n).await
}

fn asked_number(call: &Call) -> Option<u64> {
    let Call::KvPut { expected, .. } = call else { return None };
    Some(*expected)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_caller_gets_its_own_reply_in_whatever_order_they_come() {
    let story = async {
        let (holder, path) = FakeHolder::new();
        let client = tokio::spawn(async move { RemoteStore::connect(&path).await.unwrap() });
        let mut stream = holder.greet().await;
        let client = Arc::new(client.await.unwrap());
        let callers: Vec<_> = (0..200).map(|n| (n, tokio::spawn(asks(Arc::clone(&client), n)))).collect();
        let mut calls = Vec::new();
        for _ in 0..200 {
            let (id, call) = heard(&mut stream).await;
            calls.push((id, asked_number(&call).unwrap()));
        }
        // A reply to a call that nobody made is nobody's.
        let mut replies = reply_frame(1 << 60, 7_u64);
        for (id, n) in calls.into_iter().rev() {
            replies.extend(reply_frame(id, n));
        }
        for piece in replies.chunks(7) {
            stream.write_all(piece).await.unwrap();
        }
        for (n, caller) in callers {
            assert_eq!(caller.await.unwrap(), Ok(n));
        }
    };
    tokio::time::timeout(PATIENCE, story).await.expect("nothing hangs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_goes_away_leaves_only_what_it_has_read_in_doubt() {
    let story = async {
        let (holder, path) = FakeHolder::new();
        let client = tokio::spawn(async move { RemoteStore::connect(&path).await.unwrap() });
        let mut stream = holder.greet().await;
        let client = Arc::new(client.await.unwrap());
        let first = tokio::spawn(asks(Arc::clone(&client), 1));
        heard(&mut stream).await;
        drop(stream);
        // The call was read and not answered: whether it took effect is not known.
        let error = first.await.unwrap().unwrap_err();
        assert!(matches!(&error, CallError::Store(e) if e.kind == StoreErrorKind::Unreachable), "{error}");
        assert!(error.to_string().contains("whether the request took effect is not known"), "{error}");
        // A call on a connection that was closed before it was sent goes to the successor.
        for n in 2..10 {
            let caller = tokio::spawn(asks(Arc::clone(&client), n));
            let mut stream = holder.greet().await;
            let (id, call) = heard(&mut stream).await;
            assert_eq!(asked_number(&call), Some(n));
            stream.write_all(&reply_frame(id, n)).await.unwrap();
            assert_eq!(caller.await.unwrap(), Ok(n));
        }
    };
    tokio::time::timeout(PATIENCE, story).await.expect("nothing hangs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reply_that_cannot_be_read_is_an_error_of_its_caller_alone() {
    let story = async {
        let (holder, path) = FakeHolder::new();
        let client = tokio::spawn(async move { RemoteStore::connect(&path).await.unwrap() });
        let mut stream = holder.greet().await;
        let client = Arc::new(client.await.unwrap());
        let callers = [1, 2].map(|n| tokio::spawn(asks(Arc::clone(&client), n)));
        let mut good = Vec::new();
        for _ in 0..2 {
            let (id, call) = heard(&mut stream).await;
            match asked_number(&call).unwrap() {
                1 => stream.write_all(&frame(id, b"\xc1garbage")).await.unwrap(),
                n => good = reply_frame(id, n),
            }
        }
        stream.write_all(&good).await.unwrap();
        let [bad, good] = callers;
        let error = bad.await.unwrap().unwrap_err();
        assert!(matches!(&error, CallError::Store(e) if e.kind == StoreErrorKind::Protocol), "{error}");
        assert_eq!(good.await.unwrap(), Ok(2));
        // A frame that is too long ends the connection, and everybody on it learns that.
        let caller = tokio::spawn(asks(Arc::clone(&client), 3));
        heard(&mut stream).await;
        stream.write_all(&[0xff; 12]).await.unwrap();
        let error = caller.await.unwrap().unwrap_err();
        assert!(matches!(&error, CallError::Store(e) if e.kind == StoreErrorKind::Protocol), "{error}");
    };
    tokio::time::timeout(PATIENCE, story).await.expect("nothing hangs");
}
