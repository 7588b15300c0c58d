//! The HTTP executor against a server on loopback that says exactly what the test wants, byte by byte.

use crate::support::{configure, eager, enqueue, letters, message};
use redrive::core::policy::QueuePolicy;
use redrive::core::store::{LeaseRequest, Store};
use redrive::core::target::{HttpTarget, Method, Target};
use redrive::core::time::Span;
use redrive::executor::HttpExecutor;
use redrive::{Counts, Worker};
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// What a server does with the connection after it has read the request.
type Script = Arc<dyn Fn(usize) -> Vec<u8> + Send + Sync>;

/// A server and the requests it got.
struct Server {
    at: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
}

async fn read_request(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut piece = [0; 4096];
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head
                .lines()
                .find_map(|l| l.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
            if body.len() >= length.unwrap_or(0) {
                return text;
            }
        }
        match stream.read(&mut piece).await {
            Ok(n @ 1..) => bytes.extend_from_slice(&piece[..n]),
            _ => return text,
        }
    }
}

/// Answers every connection with what the script says for it, then closes it, unless it is to hang.
async fn serve(hang: bool, script: impl Fn(usize) -> Vec<u8> + Send + Sync + 'static) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap();
    let requests = Arc::new(Mutex::new(Vec::new()));
    let (seen, script): (_, Script) = (Arc::clone(&requests), Arc::new(script));
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (seen, script) = (Arc::clone(&seen), Arc::clone(&script));
            tokio::spawn(async move {
                let request = read_request(&mut stream).await;
                let nth = {
                    let mut seen = seen.lock().unwrap();
                    seen.push(request);
                    seen.len() - 1
                };
                let _ = stream.write_all(&script(nth)).await;
                if hang {
                    let mut rest = Vec::new();
                    let _ = stream.read_to_end(&mut rest).await;
                }
            });
        }
    });
    Server { at, requests }
}

fn answer(head: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {head}\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// A target that may reach the server of the test.
fn target(at: SocketAddr, path: &str) -> HttpTarget {
    HttpTarget { allow_private: true, ..HttpTarget::new(format!("http://{at}{path}")) }
}

async fn run(store: &Arc<dyn Store>, target: HttpTarget) -> Counts {
    let handler = HttpExecutor::new(target).unwrap();
    let worker = Worker::builder(store.clone()).queue("q").fallback(handler).until_empty();
    worker.build().unwrap().run().await.unwrap()
}

async fn once(target: HttpTarget, policy: QueuePolicy) -> (Counts, Option<Value>) {
    let store = redrive::memory();
    configure(&store, "q", policy).await;
    enqueue(&store, vec![message("q", "charge", "{\"n\":1}")]).await;
    let counts = run(&store, target).await;
    let last = letters(&store)
        .await
        .first()
        .map(|l| serde_json::to_value(l.message.failures.last().unwrap()).unwrap());
    (counts, last)
}

/// The one failure of a message that is tried once.
async fn failure(target: HttpTarget) -> Value {
    let (counts, last) = once(target, eager(1)).await;
    last.unwrap_or_else(|| panic!("no dead letter: {counts:?}"))
}

#[tokio::test]
async fn a_request_carries_the_payload_and_says_who_it_is() {
    let server = serve(false, |_| answer("200 OK", "fine")).await;
    let store = redrive::memory();
    let mut sent = message("q", "charge", "{\"n\":1}");
    sent.trace = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into());
    let id = sent.id.to_string();
    enqueue(&store, vec![sent]).await;
    let headers = [("X-Team".to_owned(), "${queue}/${payload.n}".to_owned())].into();
    let target = HttpTarget { headers, ..target(server.at, "/hook?a=b#part") };
    assert_eq!(run(&store, target).await.done, 1);
    let request = server.requests.lock().unwrap()[0].clone();
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    let head = head.to_ascii_lowercase();
    assert!(head.starts_with("post /hook?a=b http/1.1\r\n"), "{head}");
    for line in [
        format!("host: {}", server.at),
        format!("idempotency-key: {id}"),
        "content-type: application/json".into(),
        "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into(),
        "redrive-queue: q".into(),
        "redrive-kind: charge".into(),
        "redrive-attempt: 1".into(),
        "x-team: q/1".into(),
    ] {
        assert!(head.lines().any(|l| l == line), "{line} is not in {head}");
    }
    assert_eq!(body, "{\"n\":1}");
}

#[tokio::test]
async fn a_template_makes_the_body_and_a_payload_that_does_not_fit_is_dead() {
    let server = serve(false, |_| answer("204 No Content", "")).await;
    let body = Some("{\"text\": \"order ${payload.o} failed\", \"id\": \"${id}\"}".to_owned());
    let with_body = HttpTarget { body, ..target(server.at, "/") };
    let store = redrive::memory();
    enqueue(&store, vec![message("q", "k", "{\"o\":\"a\\\"b\"}")]).await;
    assert_eq!(run(&store, with_body.clone()).await.done, 1);
    let request = server.requests.lock().unwrap()[0].clone();
    let sent: Value = serde_json::from_str(request.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(sent["text"], "order a\"b failed");
    enqueue(&store, vec![message("q", "k", "no json")]).await;
    let counts = run(&store, with_body).await;
    assert_eq!((counts.dead, counts.retried), (1, 0));
    assert_eq!(letters(&store).await[0].record.reason.to_string(), "undecodable");
    assert_eq!(server.requests.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn statuses_are_verdicts() {
    for (head, permanent) in [
        ("503 Service Unavailable", false),
        ("429 Too Many Requests", false),
        ("404 Not Found", false),
        ("422 Unprocessable Entity", true),
        ("302 Found\r\nLocation: http://example.com/", false),
    ] {
        let server = serve(false, move |_| answer(head, "\n  the printer is on fire\nmore")).await;
        let target = HttpTarget { dead_letter_on: vec![422], ..target(server.at, "/") };
        let (counts, last) = once(target, eager(2)).await;
        let last = last.unwrap();
        let status = head.split(' ').next().unwrap();
        assert_eq!((counts.retried, counts.dead), (u64::from(!permanent), 1), "{head}");
        assert_eq!((&last["error"]["type"], &last["error"]["code"]), (&"HttpStatus".into(), &status.into()));
        assert!(last["error"]["message"].as_str().unwrap().contains("the printer is on fire"), "{last}");
        assert_eq!(last["step"], "http");
    }
}

#[tokio::test]
async fn retry_after_is_honoured_within_the_caps() {
    let first_then_done = |value: &'static str| {
        move |nth| match nth {
            0 => answer(&format!("503 No\r\nRetry-After: {value}"), ""),
            _ => answer("200 OK", ""),
        }
    };
    // Asked for a second: waits for it although the queue would try again at once.
    let server = serve(false, first_then_done("1")).await;
    let mut policy = eager(2);
    policy.backoff.cap = Span::from_secs(5);
    let begun = Instant::now();
    assert_eq!(once(target(server.at, "/"), policy).await.0.done, 1);
    assert!(begun.elapsed() >= Duration::from_secs(1));
    // Asked for ages: waits as long as the queue's cap allows.
    for absurd in ["999999999999999999999", "Fri, 31 Dec 9999 23:59:59 GMT", "-1", "\u{e9}"] {
        let server = serve(false, first_then_done(absurd)).await;
        assert_eq!(once(target(server.at, "/"), eager(2)).await.0.done, 1, "{absurd}");
    }
}

#[tokio::test]
async fn servers_that_misbehave_cost_one_failure_each() {
    let endless = || {
        let mut bytes = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        for _ in 0..64 {
            bytes.extend_from_slice(b"10000\r\n");
            bytes.extend_from_slice(&[b'x'; 0x1_0000]);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes
    };
    let cases: Vec<(&str, bool, Vec<u8>, &str)> = vec![
        ("never answers", true, Vec::new(), "Timeout"),
        ("slow head", true, b"HTTP/1.1 200 OK\r\nContent-Le".to_vec(), "Timeout"),
        ("slow body", true, b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12".to_vec(), "Timeout"),
        ("half a head", false, b"HTTP/1.1 200 OK\r\nContent-Le".to_vec(), "ConnectionBroken"),
        (
            "half a body",
            false,
            b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n12".to_vec(),
            "ConnectionBroken",
        ),
        ("nothing", false, Vec::new(), "ConnectionBroken"),
        ("another protocol", false, b"SSH-2.0-OpenSSH_9.6\r\n".to_vec(), "ConnectionBroken"),
        (
            "a huge head",
            false,
            format!("HTTP/1.1 200 OK\r\nA: {}\r\n\r\n", "x".repeat(200_000)).into(),
            "ConnectionBroken",
        ),
        ("half an error", false, b"HTTP/1.1 500 No\r\nContent-Length: 10\r\n\r\n12".to_vec(), "HttpStatus"),
        (
            "an endless error",
            true,
            [&b"HTTP/1.1 500 No\r\n\r\n"[..], &vec![b'x'; 4 << 20]].concat(),
            "HttpStatus",
        ),
    ];
    for (what, hang, bytes, error) in cases {
        let server = serve(hang, move |_| bytes.clone()).await;
        // Only those who never go on run into the limit; for the others it is out of reach, however slow the machine.
        let timeout = Span::from_millis(if error == "Timeout" { 400 } else { 600_000 });
        let last = failure(HttpTarget { timeout, ..target(server.at, "/") }).await;
        assert_eq!(last["error"]["type"], error, "{what}: {last}");
    }
    // An endless body after success: read up to the limit, and the status stands.
    let server = serve(true, move |_| endless()).await;
    let small = HttpTarget { max_response_bytes: 1000, ..target(server.at, "/") };
    assert_eq!(once(small, eager(1)).await.0.done, 1);
    // Nobody there at all.
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    assert_eq!(failure(target(nobody, "/")).await["error"]["type"], "ConnectFailed");
    let unknown = HttpTarget::new("http://no-such-host.invalid/");
    assert_eq!(failure(unknown).await["error"]["type"], "DnsFailed");
}

#[tokio::test]
async fn redirects_are_checked_like_the_first_address() {
    let goal = serve(false, |_| answer("200 OK", "")).await;
    let to = |status: &'static str, location: String| {
        serve(false, move |_| answer(&format!("{status} Moved\r\nLocation: {location}"), ""))
    };
    let with = |at, redirects| HttpTarget {
        redirects,
        headers: [("X-Secret".to_owned(), "s3cret".to_owned())].into(),
        ..target(at, "/")
    };

    let server = to("307", format!("http://{}/there", goal.at)).await;
    assert_eq!(once(with(server.at, 1), eager(1)).await.0.done, 1);
    let request = goal.requests.lock().unwrap()[0].clone();
    assert!(request.starts_with("POST /there HTTP/1.1") && request.ends_with("{\"n\":1}"), "{request}");
    assert!(!request.contains("s3cret"), "what is meant for one host stays there: {request}");

    let metadata = to("307", "http://169.254.169.254/latest/meta-data/".into()).await;
    assert_eq!(failure(with(metadata.at, 3)).await["error"]["type"], "AddressBlocked");
    let file = to("307", "file:///etc/passwd".into()).await;
    assert_eq!(failure(with(file.at, 3)).await["error"]["type"], "RedirectRefused");
    let user = to("308", format!("http://user@{}/", goal.at)).await;
    assert_eq!(failure(with(user.at, 3)).await["error"]["type"], "RedirectRefused");
    // Following it would lose the body and look like success.
    let see_other = to("302", format!("http://{}/there", goal.at)).await;
    assert_eq!(failure(with(see_other.at, 3)).await["error"]["code"], "302");
    let get = HttpTarget { method: Method::Get, ..with(see_other.at, 3) };
    assert_eq!(once(get, eager(1)).await.0.done, 1);

    let around = serve(false, |_| answer("307 Again\r\nLocation: /", "")).await;
    let last = failure(with(around.at, 3)).await;
    assert_eq!((&last["error"]["code"], around.requests.lock().unwrap().len()), (&"307".into(), 4));
}

/// Every spelling of an address that must not be reached, as the standard reads addresses of URLs.
const HOSTS: &str = "
    127.0.0.1 127.1 127.0.1 2130706433 0x7f000001 0x7f.1 0x7f.0.0.1 0177.0.0.1 0177.1 017700000001
    127.0.0.0x1 127.0.0.01 0X7F.0X0.0X0.0X1 127.000.000.001 127.0.0.1. 0 0.0 0.0.0.0 00 0x0 0000
    127.255.255.254 127.127.127.127 localhost LOCALHOST LocalHost localhost. %31%32%37.0.0.1 12%37.0.0.1
    ①②⑦.⓪.⓪.① 127。0。0。1 127．0．0．1 １２７.0.0.1 [::1] [0:0:0:0:0:0:0:1]
    [0000:0000:0000:0000:0000:0000:0000:0001] [::0.0.0.1] [::] [0:0:0:0:0:0:0:0] [::ffff:127.0.0.1]
    [::FFFF:127.0.0.1] [::ffff:7f00:1] [::ffff:7f00:0001] [0:0:0:0:0:ffff:127.0.0.1] [::127.0.0.1]
    [::7f00:1] [::ffff:0:127.0.0.1] [64:ff9b::127.0.0.1] [64:ff9b::7f00:1] [64:ff9b:1::127.0.0.1]
    [2002:7f00:1::] [2002:7f00:0001::1] [2001:0:7f00:1::] [2001::1] [fe80::1] [febf::1] [fc00::1]
    [fd00::1] [fd00:ec2::254] [FD00:EC2::254] [fec0::1] [ff02::1] [ff05::2] [2001:db8::1] [3fff::1]
    [100::1] 10.0.0.1 10.1 167772161 0xa000001 0xA.1 012.0.0.1 0x0a.0x00.0x00.0x01 10.255.255.255
    [::ffff:10.0.0.1] [::ffff:a00:1] [64:ff9b::10.0.0.1] [2002:a00:1::1] 172.16.0.1 172.31.255.255
    0254.020.0.1 2886729729 0xac100001 [::ffff:172.16.0.1] 192.168.0.1 192.168.1 0300.0250.0.1
    3232235521 0xc0a80001 [::ffff:192.168.0.1] [::ffff:c0a8:1] 100.64.0.1 100.127.255.255 1681915905
    0x64400001 [::ffff:100.64.0.1] 169.254.169.254 169.254.43518 2852039166 0xa9fea9fe
    0xA9.0xFE.0xA9.0xFE 0251.0376.0251.0376 0251.254.169.254 169.16689662 [::ffff:169.254.169.254]
    [::ffff:a9fe:a9fe] [64:ff9b::169.254.169.254] [64:ff9b::a9fe:a9fe] [2002:a9fe:a9fe::]
    [::169.254.169.254] 169.254.170.2 169.254.0.1 100.100.100.200 168.63.129.16 2822734096 0xa83f8110
    224.0.0.1 239.255.255.255 3758096385 255.255.255.255 4294967295 0xffffffff 0377.0377.0377.0377
    240.0.0.1 254.1.2.3 192.0.2.1 198.51.100.1 203.0.113.1 198.18.0.1 198.19.255.255 192.0.0.1
    192.0.0.170 192.88.99.1 0.1.2.3 [::ffff:0.0.0.0] [::ffff:224.0.0.1] [::ffff:255.255.255.255]
    [2a00::5efe:7f00:1] [2a00::200:5efe:7f00:1] [5f00::1] [4000::1] [::2] [64:ff9b::] [2001:10::1]
    [2001:2::1] 127.0.0.1%00 127.0.0.1%0a [::1%25lo] [fe80::1%25eth0] 256.256.256.256 1.2.3.4.5
    0x100000000";

#[tokio::test]
async fn no_spelling_of_an_address_gets_past_the_guard() {
    // A port where somebody listens: a guard that fails would be seen as a connection.
    let server = serve(false, |_| answer("200 OK", "")).await;
    let port = server.at.port();
    assert!(HOSTS.split_whitespace().count() >= 150);
    for host in HOSTS.split_whitespace() {
        let target = HttpTarget::new(format!("http://{host}:{port}/"));
        if HttpExecutor::new(target.clone()).is_err() {
            continue;
        }
        let last = failure(target).await;
        // Whether a name with a dot at its end is known is the system's to say; what counts is that nothing is sent.
        let unknown = host == "localhost." && last["error"]["type"] == "DnsFailed";
        assert!(unknown || last["error"]["type"] == "AddressBlocked", "{host}: {last}");
    }
    assert!(server.requests.lock().unwrap().is_empty());
    for url in [
        "http://user@127.0.0.1/",
        "http://:pw@example.com/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "gopher://127.0.0.1:25/x",
        "javascript:1",
        "http://",
        "//example.com/",
        "http:///",
        "unix:/tmp/x",
    ] {
        assert!(HttpExecutor::new(HttpTarget::new(url)).is_err(), "{url}");
    }
    // An allow list names what is meant, and nothing beside it.
    let allowed = HttpTarget {
        allow: vec!["127.0.0.1/32".parse().unwrap()],
        ..HttpTarget::new(format!("http://0x7f.1:{port}/"))
    };
    assert_eq!(once(allowed.clone(), eager(1)).await.0.done, 1);
    let beside = HttpTarget { url: format!("http://127.0.0.2:{port}/"), ..allowed };
    assert_eq!(failure(beside).await["error"]["type"], "AddressBlocked");
}

#[tokio::test]
async fn https_is_spoken_with_those_who_are_trusted() {
    let directory = tempfile::tempdir().unwrap();
    let ca_file = directory.path().join("ca.pem");
    let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(&ca_file, signed.cert.pem()).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::try_from(signed.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![signed.cert.der().clone()], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(mut stream) = acceptor.accept(stream).await else { return };
                let mut piece = [0; 4096];
                let _ = stream.read(&mut piece).await;
                let _ = stream.write_all(&answer("200 OK", "")).await;
                let _ = stream.shutdown().await;
            });
        }
    });
    let trusting = HttpTarget {
        ca_file: Some(ca_file.to_str().unwrap().to_owned()),
        allow_private: true,
        ..HttpTarget::new(format!("https://localhost:{port}/"))
    };
    assert_eq!(once(trusting.clone(), eager(1)).await.0.done, 1);
    let another_name = HttpTarget { url: format!("https://127.0.0.1:{port}/"), ..trusting.clone() };
    assert_eq!(failure(another_name).await["error"]["type"], "TlsFailed");
    let distrusting = HttpTarget { ca_file: None, ..trusting.clone() };
    assert_eq!(failure(distrusting).await["error"]["type"], "TlsFailed");
    let absent = HttpTarget { ca_file: Some("no/such/file.pem".into()), ..trusting };
    assert!(HttpExecutor::new(absent).unwrap_err().to_string().contains("no/such/file.pem"));
}

#[tokio::test]
async fn the_answer_is_the_reply_unless_it_is_too_long() {
    let server = serve(false, |_| answer("200 OK\r\nContent-Type: application/json", "{\"sum\":3}")).await;
    for (most, expected) in [(1000, Some("{\"sum\":3}")), (3, None)] {
        let store = redrive::memory();
        let mut asking = message("q", "k", "{}");
        asking.reply_to = Some("answers".parse().unwrap());
        enqueue(&store, vec![asking]).await;
        let counts = run(&store, HttpTarget { max_response_bytes: most, ..target(server.at, "/") }).await;
        let queues = vec!["answers".parse().unwrap()];
        let wanted = LeaseRequest {
            queues,
            max: 2,
            lease_for: None,
            worker: "test".into(),
            ..LeaseRequest::default()
        };
        let answers = store.lease(wanted).await.unwrap();
        let payload = &answers[0].message.envelope.payload;
        let text = String::from_utf8(payload.bytes.clone()).unwrap();
        match expected {
            Some(expected) => {
                assert_eq!((counts.done, text.as_str()), (1, expected));
                assert_eq!(payload.content_type, "application/json");
            }
            None => assert!(counts.dead == 1 && text.contains("ReplyTooLarge"), "{counts:?} {text}"),
        }
    }
}

#[tokio::test]
async fn a_target_is_kept_with_its_queue() {
    let store = redrive::memory();
    let target = Target::Http(HttpTarget::new("https://example.com/hook"));
    configure(&store, "q", QueuePolicy { target: Some(target.clone()), ..QueuePolicy::default() }).await;
    assert_eq!(crate::support::queue(&store, "q").await.policy.target, Some(target));
    let wrong = Target::Http(HttpTarget::new("ftp://example.com"));
    let policy = QueuePolicy { target: Some(wrong), ..QueuePolicy::default() };
    let actor = redrive::core::dead_letter::Actor::new("test", "library");
    let refused = store.configure("q".parse().unwrap(), policy, actor).await.unwrap_err();
    assert!(refused.to_string().contains("target.url"), "{refused}");
}
