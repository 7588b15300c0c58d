//! What the browser looks at: a real server with a few causes of failure, and a worker that does what is sent back.

use super::Browser;
use crate::support::{PATIENCE, ServeProcess, Workspace, text};
use serde_json::{Value, json};
use std::time::Instant;

/// A server with dead letters.
pub(super) struct Office {
    pub(super) server: ServeProcess,
    _workspace: Workspace,
}

impl Office {
    /// Opens an office with 14 failed payments of one cause and 5 mails of another.
    pub(super) fn open() -> Self {
        let workspace = Workspace::new();
        let server = workspace.serve(&["--instance", "prod-eu"]);
        let office = Self { server, _workspace: workspace };
        for queue in ["payments", "mail"] {
            office.ask("PATCH", &format!("/api/v1/queues/{queue}"), &json!({"max_attempts": 1}));
        }
        office.ask("POST", "/api/v1/markers", &json!({"text": "deploy 2.4.1"}));
        office.fail("payments", "charge", 14, "GatewayTimeout", "no answer from the gateway for order 8100");
        office.fail("mail", "receipt", 5, "BadAddress", "mailbox 17 does not exist");
        office
    }

    /// Asks the API, which must agree.
    #[track_caller]
    pub(super) fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (status, reply) = self.server.ask(method, path, &body);
        assert!((200..300).contains(&status), "{method} {path}: {status} {reply}");
        reply
    }

    /// Takes up to `max` messages and waits for the first.
    fn take(&self, queue: &str, max: usize) -> Vec<Value> {
        let wanted = json!({"max": max, "wait": "60s", "lease": "1h", "worker": "w-1", "version": "2.4.1"});
        let leased = self.ask("POST", &format!("/api/v1/queues/{queue}/lease"), &wanted);
        leased["items"].as_array().unwrap().clone()
    }

    /// Sends messages and lets each of them die of this error.
    pub(super) fn fail(&self, queue: &str, kind: &str, count: usize, error_type: &str, message: &str) {
        let payload =
            |n: usize| json!({"order": 8100 + n, "lines": [{"sku": "A-1", "n": 2}], "note": "fragile"});
        let messages: Vec<Value> = (0..count)
            .map(|n| json!({"kind": kind, "payload": payload(n), "headers": {"tenant": "acme"}}))
            .collect();
        self.ask("POST", &format!("/api/v1/queues/{queue}/messages"), &json!({"messages": messages}));
        self.settle(
            queue,
            count,
            "fail",
            &json!({"error_type": error_type, "message": message,
            "stack": "at shop::charge (src/charge.rs:41)\nat tokio::runtime::run (runtime.rs:60)"}),
        );
    }

    /// Does the work of this many messages, as soon as they are there.
    pub(super) fn work(&self, queue: &str, count: usize) {
        self.settle(queue, count, "ack", &Value::Null);
    }

    fn settle(&self, queue: &str, count: usize, how: &str, body: &Value) {
        let (mut left, began) = (count, Instant::now());
        while left > 0 {
            assert!(began.elapsed() < PATIENCE, "{left} messages of {queue} never came");
            for delivery in self.take(queue, left) {
                let token = text(&delivery["token"]);
                self.ask("POST", &format!("/api/v1/deliveries/{token}/{how}"), body);
                left -= 1;
            }
        }
    }

    /// The address of a page.
    pub(super) fn page(&self, path: &str) -> String {
        format!("{}{path}", self.server.url)
    }

    /// The id of the first item of a list.
    pub(super) fn first_id(&self, list: &str) -> String {
        text(&self.ask("GET", list, &Value::Null)["items"][0]["id"])
    }

    /// Logs a browser in.
    pub(super) fn let_in(&self, browser: &Browser) {
        browser.open(&self.page("/login"));
        browser.fill("input[name=token]", self.server.token.as_deref().unwrap());
        browser.press("Log in");
        browser.arrives("/groups");
    }
}
