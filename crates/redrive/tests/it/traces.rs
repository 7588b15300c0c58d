//! Traces reach a collector, and everything that happens to a message is in its trace. The collector is a small one,
//! written for this test.

use crate::support::{configure, eager, enqueue, memory, message};
use redrive::core::dead_letter::{Act, ActRequest, Actor, Retry};
use redrive::core::store::Store;
use redrive::traces::Traces;
use redrive::{Context, Outcome, Worker};
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// A span, as far as the test looks at it.
#[derive(Clone, Debug, Default, PartialEq)]
struct Seen {
    name: String,
    trace: String,
    id: String,
    parent: String,
    /// The texts among its attributes.
    texts: Vec<String>,
}

/// The bodies that a collector received.
type Received = Arc<Mutex<Vec<Vec<u8>>>>;

async fn collector() -> (String, Received) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let received = Received::default();
    let kept = Arc::clone(&received);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            receive(stream, &kept).await;
        }
    });
    (address, received)
}

/// Reads one request and accepts it.
async fn receive(stream: TcpStream, kept: &Received) {
    let mut stream = BufReader::new(stream);
    let (mut line, mut length) = (String::new(), 0);
    stream.read_line(&mut line).await.unwrap();
    assert!(line.starts_with("POST /v1/traces HTTP/1.1"), "{line}");
    loop {
        line.clear();
        stream.read_line(&mut line).await.unwrap();
        match line.trim().to_lowercase().split_once(':') {
            Some(("content-length", value)) => length = value.trim().parse().unwrap(),
            Some(("content-type", value)) => assert_eq!(value.trim(), "application/x-protobuf"),
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.unwrap();
    kept.lock().unwrap().push(body);
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
}

/// The fields of a protobuf message that have a length: their numbers and their bytes.
fn fields(mut bytes: &[u8]) -> Vec<(u64, &[u8])> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = bytes[0];
            *bytes = &bytes[1..];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        match key & 7 {
            0 => drop(varint(&mut bytes)),
            1 => bytes = &bytes[8..],
            5 => bytes = &bytes[4..],
            2 => {
                let length = usize::try_from(varint(&mut bytes)).unwrap();
                found.push((key >> 3, &bytes[..length]));
                bytes = &bytes[length..];
            }
            other => panic!("wire type {other}"),
        }
    }
    found
}

/// The parts of a message with this field number.
fn parts(bytes: &[u8], number: u64) -> impl Iterator<Item = &[u8]> {
    fields(bytes).into_iter().filter(move |(n, _)| *n == number).map(|(_, part)| part)
}

/// The spans of an export: resource spans, scope spans, spans.
fn spans(export: &[u8]) -> Vec<Seen> {
    let mut all = Vec::new();
    for resource in parts(export, 1) {
        for scope in parts(resource, 2) {
            all.extend(parts(scope, 2).map(span));
        }
    }
    all
}

fn span(bytes: &[u8]) -> Seen {
    let hex = |part: &[u8]| part.iter().map(|b| format!("{b:02x}")).collect::<String>();
    let text = |part: &[u8]| String::from_utf8(part.to_vec()).unwrap();
    let mut seen = Seen::default();
    for (number, part) in fields(bytes) {
        match number {
            1 => seen.trace = hex(part),
            2 => seen.id = hex(part),
            4 => seen.parent = hex(part),
            5 => seen.name = text(part),
            // An attribute: its value, and of that its text.
            9 => seen.texts.extend(parts(part, 2).flat_map(|value| parts(value, 1).map(text))),
            _ => {}
        }
    }
    seen
}

/// Runs a worker until there is nothing left to do.
async fn work(store: &Arc<dyn Store>, outcome: fn() -> Outcome) {
    let worker = Worker::builder(Arc::clone(store)).queue("q").until_empty();
    let worker = worker.fallback(move |_: Context| async move { outcome() });
    worker.build().unwrap().run().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn enqueue_deliveries_and_redrive_of_a_message_are_one_trace() {
    let (address, received) = collector().await;
    let traces = Traces::start(&address).unwrap();
    let store = traces.observe(memory());
    configure(&store, "q", eager(3)).await;
    let mut new = message("q", "charge", "\"a payload\"");
    new.trace = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into());
    let id = new.id;
    enqueue(&store, vec![new]).await;
    work(&store, || Outcome::dead_letter("no secret leaves")).await;
    let act = Act::Retry(Retry::default());
    let retry = ActRequest { id, act, actor: Actor::new("ann", "test"), expected_version: None };
    store.act(vec![retry]).await.unwrap().remove(0).unwrap();
    let revived = store.message(id).await.unwrap();
    work(&store, || Outcome::Done).await;
    enqueue(&store, vec![message("q", "free", "1")]).await;
    traces.end().await;

    let bodies = received.lock().unwrap().clone();
    let all: Vec<Seen> = bodies.iter().flat_map(|body| spans(body)).collect();
    let named = |name: &str| all.iter().filter(|s| s.name == name).cloned().collect::<Vec<Seen>>();
    let [send, free] = named("send q").try_into().unwrap();
    assert_eq!(
        (send.trace.as_str(), send.parent.as_str()),
        ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
    );
    let [failed, done] = named("process q").try_into().unwrap();
    let [redrive] = named("redrive q").try_into().unwrap();
    for span in [&failed, &done, &redrive] {
        assert_eq!((&span.trace, &span.parent), (&send.trace, &send.id), "{span:?}");
        assert!(span.texts.contains(&id.to_string()), "{span:?}");
    }
    assert!(
        failed.texts.contains(&"fail".into()) && done.texts.contains(&"ack".into()),
        "{failed:?} {done:?}"
    );
    assert!(
        free.trace != send.trace && free.parent.is_empty(),
        "a message without a trace starts one: {free:?}"
    );
    assert_eq!(revived.envelope.trace, Some(format!("00-{}-{}-01", send.trace, send.id)));
    let raw: Vec<u8> = bodies.concat();
    for secret in ["a payload", "no secret leaves"] {
        assert!(!raw.windows(secret.len()).any(|part| part == secret.as_bytes()), "{secret} was sent");
    }
}

#[tokio::test]
async fn an_address_that_cannot_be_one_is_refused() {
    for wrong in ["", "localhost:4318", "ftp://localhost", "http://"] {
        let error = Traces::start(wrong).unwrap_err();
        assert!(error.contains("http://localhost:4318"), "{error}");
    }
}
