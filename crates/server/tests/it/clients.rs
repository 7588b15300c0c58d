//! The example workers in other languages, as they are in `examples`, against a real server over TCP.

use super::Server;
use redrive_core::access::Grant;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

/// A worker process, ended with the test.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn works(program: &str, script: &str) {
    let server = Server::start().await;
    server.ask("PATCH", "/api/v1/queues/q", Some(r#"{"max_attempts":1}"#)).await;
    let token = server.token(&[Grant::Worker], &["q"]).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = server.router.clone();
    tokio::spawn(async move { axum::serve(listener, router).await });
    let mut ids = Vec::new();
    for payload in ["one", "please fail", "two", "the end"] {
        let body = serde_json::json!({"payload": payload}).to_string();
        let sent = server.post("/api/v1/queues/q/messages", &body).await;
        ids.push(sent["id"].as_str().unwrap().to_owned());
    }
    let script = format!("{}/../../examples/{script}", env!("CARGO_MANIFEST_DIR"));
    let mut command = Command::new(program);
    command.arg(script).arg("q").env("REDRIVE_URL", url).env("REDRIVE_TOKEN", token).stdout(Stdio::piped());
    let mut worker = Worker(command.spawn().unwrap());
    let out = worker.0.stdout.take().unwrap();
    // A worker settles a message before it begins the next one, so its fourth line means that three are settled.
    let lines = tokio::task::spawn_blocking(move || {
        BufReader::new(out).lines().take(4).map(Result::unwrap).collect::<Vec<String>>()
    });
    let lines = lines.await.unwrap();
    for (line, id) in lines.iter().zip(&ids) {
        assert!(line.starts_with(id.as_str()), "{lines:?}");
    }
    assert_eq!(lines.len(), 4);
    let queue = server.get("/api/v1/queues/q").await;
    assert!(queue["done"].as_u64().unwrap() >= 2, "{queue}");
    let letters = server.get("/api/v1/dlq").await;
    assert_eq!(letters["items"][0]["id"], ids[1].as_str());
    let error = &letters["items"][0]["error"];
    assert!(["ValueError", "RangeError"].contains(&error["type"].as_str().unwrap()), "{error}");
    assert!(error["stack"].as_str().unwrap().contains("handle"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_python_worker_works() {
    works("python3", "python/worker.py").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_worker_works() {
    works("node", "node/worker.mjs").await;
}
