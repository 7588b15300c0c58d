//! Live events over real connections.

use super::Server;
use redrive_core::access::Grant;
use redrive_server::{Config, router};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

/// Only a hang reaches this.
const PATIENCE: Duration = Duration::from_secs(300);

/// Serves the API on a port of its own until `stop`.
async fn listen(server: &Server, stop: &CancellationToken) -> SocketAddr {
    let config = Config { stop: stop.clone(), ..Config::default() };
    let router = router(Arc::clone(&server.store), config);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = stop.clone().cancelled_owned();
    tokio::spawn(async move { axum::serve(listener, router).with_graceful_shutdown(stop).await });
    address
}

/// One client of the stream.
struct Listener {
    stream: TcpStream,
    text: String,
}

impl Listener {
    /// Connects, and returns when the stream has begun.
    async fn connect(address: SocketAddr, token: &str, query: &str, last: Option<&str>) -> Self {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let last = last.map(|id| format!("last-event-id: {id}\r\n")).unwrap_or_default();
        let request = format!(
            "GET /api/v1/events{query} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n{last}\r\n"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut listener = Self { stream, text: String::new() };
        listener.until("\n\n").await;
        listener
    }

    /// Reads until this text has come, and returns all there is up to its end.
    async fn until(&mut self, wanted: &str) -> String {
        let reading = async {
            loop {
                if let Some(at) = self.text.find(wanted) {
                    let rest = self.text.split_off(at + wanted.len());
                    return std::mem::replace(&mut self.text, rest);
                }
                let mut bytes = [0; 4_096];
                let n = self.stream.read(&mut bytes).await.unwrap();
                assert_ne!(n, 0, "the stream ended; before that came {:?}", self.text);
                self.text.push_str(std::str::from_utf8(&bytes[..n]).unwrap());
            }
        };
        tokio::time::timeout(PATIENCE, reading).await.unwrap()
    }

    /// Reads until the server ends the stream.
    async fn end(mut self) -> String {
        let mut rest = Vec::new();
        tokio::time::timeout(PATIENCE, self.stream.read_to_end(&mut rest)).await.unwrap().unwrap();
        self.text + &String::from_utf8(rest).unwrap()
    }
}

/// Lets a message of a queue die.
async fn death(server: &Server, queue: &str) {
    let policy = server.ask("PATCH", &format!("/api/v1/queues/{queue}"), Some(r#"{"max_attempts":1}"#)).await;
    assert!(policy.status.is_success(), "{}", policy.body);
    server.post(&format!("/api/v1/queues/{queue}/messages"), r#"{"payload":"x"}"#).await;
    let leased = server.post(&format!("/api/v1/queues/{queue}/lease"), r#"{"worker":"ada"}"#).await;
    let token = leased["items"][0]["token"].as_str().unwrap();
    server.post(&format!("/api/v1/deliveries/{token}/fail"), r#"{"error_type":"Timeout"}"#).await;
}

#[tokio::test]
async fn what_happens_is_told_with_names_and_counts_only() {
    let (server, stop) = (Server::start().await, CancellationToken::new());
    let address = listen(&server, &stop).await;
    let mut all = Listener::connect(address, &server.admin, "", None).await;
    death(&server, "payments").await;
    let mut seen = String::new();
    for kind in ["queue", "letter", "group", "worker"] {
        // The events of one round come in any order.
        if !seen.contains(&format!("event: {kind}\n")) {
            seen += &all.until(&format!("event: {kind}\n")).await;
            seen += &all.until("\n\n").await;
        }
    }
    assert!(seen.contains(r#""dlq":"payments-dlq","open":1"#), "{seen}");
    assert!(!seen.contains("Timeout"), "no error text: {seen}");
    let preview = server.post("/api/v1/operations/preview", r#"{"filter":"queue:payments"}"#).await;
    let bound =
        serde_json::json!({"filter": "queue:payments", "bound": preview["bound"], "token": preview["token"]});
    let started = server.ask("POST", "/api/v1/operations", Some(&bound.to_string())).await;
    assert_eq!(started.status.as_u16(), 202, "{}", started.body);
    let seen = all.until("event: operation\n").await + &all.until("\n\n").await;
    assert!(seen.contains(started.body["id"].as_str().unwrap()), "{seen}");
    server.ask("PATCH", "/api/v1/queues/payments", Some(r#"{"breaker":{"key":"queue"}}"#)).await;
    server.post("/api/v1/breakers/payments/payments/open", "{}").await;
    let seen = all.until("event: breaker\n").await + &all.until("\n\n").await;
    assert!(seen.contains(r#""state":"open""#), "{seen}");
}

#[tokio::test]
async fn a_client_continues_where_it_was_or_is_told_to_start_over() {
    let (server, stop) = (Server::start().await, CancellationToken::new());
    let address = listen(&server, &stop).await;
    let mut first = Listener::connect(address, &server.admin, "", None).await;
    server.post("/api/v1/queues/a/messages", r#"{"payload":"x"}"#).await;
    let told = first.until("event: queue\n").await + &first.until("\n\n").await;
    let id = told.rsplit("id: ").next().unwrap().lines().next().unwrap().to_owned();
    drop(first);
    server.post("/api/v1/queues/b/messages", r#"{"payload":"x"}"#).await;
    let mut again = Listener::connect(address, &server.admin, "", Some(&id)).await;
    let told = again.until("\"queue\":\"b\"").await;
    assert!(!told.contains("\"queue\":\"a\"") && !told.contains("event: reset"), "{told}");
    for strange in ["0000000000000001-1", "nonsense"] {
        let mut lost = Listener::connect(address, &server.admin, "", Some(strange)).await;
        lost.until("event: reset\n").await;
    }
}

#[tokio::test]
async fn a_client_sees_the_queues_that_it_asked_for_and_may_see() {
    let (server, stop) = (Server::start().await, CancellationToken::new());
    let address = listen(&server, &stop).await;
    let limited = server.token(&[Grant::Viewer], &["pay*"]).await;
    let mut limited = Listener::connect(address, &limited, "", None).await;
    let mut asked = Listener::connect(address, &server.admin, "?queue=pay*", None).await;
    // What is hidden happens first, so that it would have been told before the rest.
    death(&server, "orders").await;
    let mut all = Listener::connect(address, &server.admin, "", None).await;
    death(&server, "payments").await;
    all.until("\"queue\":\"payments\"").await;
    for (who, listener) in [("limited", &mut limited), ("asked", &mut asked)] {
        let told = listener.until("\"dlq\":\"payments-dlq\"").await;
        assert!(!told.contains("orders"), "{who}: {told}");
        if who == "limited" {
            assert!(!told.contains("event: worker") && !told.contains("event: group"), "{told}");
        }
    }
    let producer = server.token(&[Grant::Producer], &[]).await;
    let refused = server.send(Server::request("GET", "/api/v1/events", &producer, None)).await;
    assert_eq!(refused.status.as_u16(), 403);
    let wrong = server.ask("GET", "/api/v1/events?queue=a%20b", None).await;
    assert_eq!((wrong.status.as_u16(), wrong.body["code"].as_str()), (400, Some("bad_query")));
}

#[tokio::test]
async fn streams_end_when_the_server_stops() {
    let (server, stop) = (Server::start().await, CancellationToken::new());
    let address = listen(&server, &stop).await;
    let mut clients = Vec::new();
    for _ in 0..20 {
        clients.push(Listener::connect(address, &server.admin, "", None).await);
    }
    stop.cancel();
    for client in clients {
        let rest = client.end().await;
        assert!(rest.ends_with("0\r\n\r\n"), "the stream is complete: {rest:?}");
    }
}
