//! The socket of a data directory under arbitrary input: garbage, frames that end
//! early or claim too much, calls in one piece and in many. The holder replies to
//! what it can, closes the connection on the rest, and keeps serving everybody else.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use redrive_core::dead_letter::Actor;
use redrive_core::error::{CallError, Refusal, StoreErrorKind};
use redrive_core::ids::{MessageId, QueueName};
use redrive_core::limits;
use redrive_core::message::{NewMessage, Payload};
use redrive_core::policy::QueuePolicy;
use redrive_core::store::{Store, VerifyRequest, Work as _};
use redrive_core::time::Span;
use redrive_store::remote::RemoteStore;
use redrive_store::sqlite::Options;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;

/// Longer than anything here takes; only reached if something hangs.
const PATIENCE: Duration = Duration::from_secs(600);

/// The greeting of the holder, which every caller has to repeat. A greeting of another version makes it send its own.
async fn greeting(socket: &Path) -> Vec<u8> {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    stream.write_all(&frame(r#"{"redrive":0}"#)).await.unwrap();
    let mut received = Vec::new();
    stream.read_to_end(&mut received).await.unwrap();
    received
}

/// Calls that change nothing.
const CALLS: [&str; 6] = [
    r#"{"verb":"queues","with":{}}"#,
    r#"{"verb":"info","with":{}}"#,
    r#"{"verb":"queue","with":{"name":"none"}}"#,
    r#"{"verb":"reap","with":{"limit":0}}"#,
    r#"{"verb":"backup","with":{"target":""}}"#,
    r#"{"verb":"wait","with":{"queues":["q"],"at_most":0}}"#,
];

/// The index in [`CALLS`] of the one that waits.
const WAIT: usize = 5;

/// Frames that are not calls, or not calls of this protocol.
const NOT_CALLS: [&str; 6] =
    ["", "null", "[]", r#"{"verb":"no_such_verb"}"#, "{\"verb\":\"enqueue\"}", "\u{0}{"];

fn frame(text: &str) -> Vec<u8> {
    [&u32::try_from(text.len()).unwrap().to_be_bytes(), text.as_bytes()].concat()
}

fn frames_in(mut bytes: &[u8]) -> usize {
    let mut count = 0;
    while let Some((length, rest)) = bytes.split_first_chunk::<4>() {
        bytes = rest.get(u32::from_be_bytes(*length) as usize..).unwrap();
        count += 1;
    }
    count
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
}

fn input() -> impl Strategy<Value = Input> {
    prop_oneof![
        8 => (0..CALLS.len()).prop_map(Input::Call),
        1 => (0..NOT_CALLS.len()).prop_map(Input::NotACall),
        1 => prop::collection::vec(any::<u8>(), 0..200).prop_map(Input::Garbage),
        1 => (0..CALLS.len(), 0..10_usize).prop_map(|(n, cut)| Input::CutFrame(n, cut)),
        1 => any::<u32>().prop_map(Input::ClaimedLength),
    ]
}

fn bytes_of(input: &Input) -> Vec<u8> {
    match input {
        Input::Call(n) => frame(CALLS[*n]),
        Input::NotACall(n) => frame(NOT_CALLS[*n]),
        Input::Garbage(bytes) => bytes.clone(),
        Input::CutFrame(n, cut) => {
            let whole = frame(CALLS[*n]);
            whole[..whole.len() - 1 - cut].to_vec()
        }
        Input::ClaimedLength(length) => length.to_be_bytes().to_vec(),
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
        [greeting, self.inputs.iter().flat_map(bytes_of).collect()].concat()
    }

    /// How many frames come back, if every input can be answered.
    fn answers(&self) -> Option<usize> {
        // A client that waits and closes its side of the connection is taken to be gone.
        let all =
            self.greets && self.inputs.iter().all(|input| matches!(input, Input::Call(n) if *n != WAIT));
        all.then_some(self.inputs.len() + 1)
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
            if let Some(answers) = conversation.answers() {
                prop_assert_eq!(frames_in(&received), answers, "{:?}", conversation);
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
        let call = serde_json::json!({"verb": "backup", "with": {"target": target}}).to_string();
        let mut stream = UnixStream::connect(&socket).await.unwrap();
        stream.write_all(&[greeting(&socket).await, frame(&call)].concat()).await.unwrap();
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
        let message = NewMessage::new(MessageId::new(1, [1; 10]), q().remove(0), Payload::default());
        caller.enqueue(vec![message]).await.unwrap().remove(0).unwrap();
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
