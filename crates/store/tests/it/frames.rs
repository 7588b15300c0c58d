//! The socket of a data directory under everything that could be said on it: garbage, frames that end early or claim
//! too much, calls in one piece and in many. The holder answers what can be answered, hangs up on the rest, and is
//! there for everybody else all the while.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use redrive_core::dead_letter::Actor;
use redrive_core::error::{Error, Refusal, StoreErrorKind};
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

/// Longer than anything here takes; only reached when somebody hangs.
const PATIENCE: Duration = Duration::from_secs(600);

/// The greeting of a holder, which every caller has to give back. One with another version makes it say its own.
async fn greeting(socket: &Path) -> Vec<u8> {
    let mut stream = UnixStream::connect(socket).await.unwrap();
    stream.write_all(&frame(r#"{"redrive":0}"#)).await.unwrap();
    let mut heard = Vec::new();
    stream.read_to_end(&mut heard).await.unwrap();
    heard
}

/// Calls that change nothing.
const CALLS: [&str; 6] = [
    r#"{"verb":"queues"}"#,
    r#"{"verb":"info"}"#,
    r#"{"verb":"queue","with":"none"}"#,
    r#"{"verb":"reap","with":0}"#,
    r#"{"verb":"backup","with":""}"#,
    r#"{"verb":"wait","with":[["q"],0]}"#,
];

/// The one of them that waits.
const WAIT: usize = 5;

/// Frames that are none, or none of ours.
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

/// One thing that somebody says.
#[derive(Clone, Debug)]
enum Said {
    Call(usize),
    NoCall(usize),
    Garbage(Vec<u8>),
    /// A frame that ends early.
    Cut(usize, usize),
    /// A frame that claims to be this long.
    Claim(u32),
}

fn said() -> impl Strategy<Value = Said> {
    prop_oneof![
        8 => (0..CALLS.len()).prop_map(Said::Call),
        1 => (0..NOT_CALLS.len()).prop_map(Said::NoCall),
        1 => prop::collection::vec(any::<u8>(), 0..200).prop_map(Said::Garbage),
        1 => (0..CALLS.len(), 0..10_usize).prop_map(|(n, cut)| Said::Cut(n, cut)),
        1 => any::<u32>().prop_map(Said::Claim),
    ]
}

fn bytes_of(said: &Said) -> Vec<u8> {
    match said {
        Said::Call(n) => frame(CALLS[*n]),
        Said::NoCall(n) => frame(NOT_CALLS[*n]),
        Said::Garbage(bytes) => bytes.clone(),
        Said::Cut(n, cut) => {
            let whole = frame(CALLS[*n]);
            whole[..whole.len() - 1 - cut].to_vec()
        }
        Said::Claim(length) => length.to_be_bytes().to_vec(),
    }
}

/// What somebody says on one connection, in pieces of this size; whether it begins with a greeting.
#[derive(Clone, Debug)]
struct Talk {
    greets: bool,
    says: Vec<Said>,
    piece: usize,
}

impl Talk {
    fn bytes(&self, greeting: &[u8]) -> Vec<u8> {
        let greeting = if self.greets { greeting.to_vec() } else { Vec::new() };
        [greeting, self.says.iter().flat_map(bytes_of).collect()].concat()
    }

    /// How many frames come back, where all that is said can be answered.
    fn answers(&self) -> Option<usize> {
        // Who waits and says that nothing more will come is taken to be gone.
        let all = self.greets && self.says.iter().all(|said| matches!(said, Said::Call(n) if *n != WAIT));
        all.then_some(self.says.len() + 1)
    }
}

fn talk() -> impl Strategy<Value = Talk> {
    let greets = prop::bool::weighted(0.9);
    (greets, prop::collection::vec(said(), 0..8), 1..64_usize).prop_map(|(greets, says, piece)| Talk {
        greets,
        says,
        piece,
    })
}

/// Says it, piece by piece in turns with the others, then hears everything that comes back.
async fn hold(socket: &Path, talks: &[Talk]) -> Vec<Vec<u8>> {
    let mut streams = Vec::new();
    let greeting = greeting(socket).await;
    for talk in talks {
        streams.push((UnixStream::connect(socket).await.unwrap(), talk.bytes(&greeting)));
    }
    let mut heard = Vec::new();
    let longest = streams.iter().zip(talks).map(|((_, bytes), talk)| bytes.len().div_ceil(talk.piece)).max();
    let pieces = longest.unwrap_or(0);
    for n in 0..pieces {
        for ((stream, bytes), talk) in streams.iter_mut().zip(talks) {
            if let Some(piece) = bytes.chunks(talk.piece).nth(n) {
                // The other side may have hung up already.
                let _ = stream.write_all(piece).await;
            }
        }
    }
    for (mut stream, _) in streams {
        let _ = stream.shutdown().await;
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes).await;
        heard.push(bytes);
    }
    heard
}

#[test]
fn whatever_is_said_on_the_socket_others_are_served() {
    let home = TempDir::new().unwrap();
    let socket = home.path().join("socket");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (store, other) = runtime.block_on(async {
        let store = redrive_store::open_serving(home.path(), Options::default()).unwrap();
        (store, RemoteStore::connect(home.path()).await.unwrap())
    });
    let mut runner = TestRunner::new(Config { cases: 300, failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&prop::collection::vec(talk(), 1..4), |talks| {
        let heard = runtime.block_on(async {
            let all = async {
                let heard = hold(&socket, &talks).await;
                other.queues().await.unwrap();
                RemoteStore::connect(home.path()).await.unwrap().queues().await.unwrap();
                heard
            };
            tokio::time::timeout(PATIENCE, all).await.expect("nobody hangs")
        });
        for (talk, heard) in talks.iter().zip(heard) {
            if let Some(answers) = talk.answers() {
                prop_assert_eq!(frames_in(&heard), answers, "{:?}", talk);
            }
        }
        Ok(())
    });
    outcome.unwrap();
    let verified = runtime.block_on(store.verify(VerifyRequest { deep: true, repair: false })).unwrap();
    assert!(verified.is_clean(), "{:?}", verified.findings);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_goes_where_the_caller_means_it_or_nowhere() {
    let home = TempDir::new().unwrap();
    let socket = home.path().join("socket");
    let _store = redrive_store::open_serving(home.path(), Options::default()).unwrap();
    for target in ["", "relative", "./x/../y"] {
        let call = serde_json::json!({"verb": "backup", "with": target}).to_string();
        let mut stream = UnixStream::connect(&socket).await.unwrap();
        stream.write_all(&[greeting(&socket).await, frame(&call)].concat()).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).await.unwrap();
        let heard = String::from_utf8_lossy(&heard).into_owned();
        assert!(heard.contains("is not an absolute path"), "{target:?}: {heard}");
    }
    let remote = RemoteStore::connect(home.path()).await.unwrap();
    let refused = remote.backup(String::new()).await.unwrap_err();
    assert!(matches!(refused, Error::Refused(Refusal::Invalid { .. })), "{refused}");
    for name in ["redrive.db", "audit.key", "relative", "y"] {
        assert!(!Path::new(name).exists(), "{name} is in the holder's working directory");
    }
}

fn q() -> Vec<QueueName> {
    vec!["q".parse().unwrap()]
}

fn is_busy<T>(outcome: &Result<T, Error>) -> bool {
    matches!(outcome, Err(Error::Store(error)) if error.kind == StoreErrorKind::Busy)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_who_wait_leave_room_for_those_who_bring_work() {
    let story = async {
        let home = TempDir::new().unwrap();
        let _store = redrive_store::open_serving(home.path(), Options::default()).unwrap();
        let caller = RemoteStore::connect(home.path()).await.unwrap();
        let actor = Actor::new("ada", "test");
        caller.configure(q().remove(0), QueuePolicy::default(), actor).await.unwrap();
        let mut waiting = Vec::new();
        for _ in 0..limits::WAITS_MAX {
            let waiter = RemoteStore::connect(home.path()).await.unwrap();
            waiting.push(tokio::spawn(async move { waiter.wait(q(), Span::from_hours(1)).await }));
        }
        // Refused once every place is taken, and not before.
        let asked = RemoteStore::connect(home.path()).await.unwrap();
        let refused = loop {
            let outcome = asked.wait(q(), Span::ZERO).await;
            if is_busy(&outcome) {
                break outcome.unwrap_err();
            }
            assert_eq!(outcome, Ok(false));
        };
        assert!(refused.to_string().contains("redrive work --concurrency"), "{refused}");
        // Who goes away makes room.
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
    tokio::time::timeout(PATIENCE, story).await.expect("whoever brings work gets through");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_connection_too_many_is_told_so() {
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
