//! A server that is killed under load, again and again. Clients repeat what was not acknowledged, with the same
//! idempotency key. Afterwards everything that was acknowledged is there, once.

use crate::support::{ServeProcess, Workspace, http, text, until};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, RwLock};

/// The number of clients that send.
const SENDERS: u64 = 4;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |value| value.parse().unwrap())
}

/// What the clients know, and where the server is at the moment.
struct Load {
    address: RwLock<String>,
    authorization: String,
    over: AtomicBool,
    replies: AtomicU64,
    sent: Mutex<BTreeMap<String, String>>,
    acked: Mutex<BTreeSet<String>>,
}

impl Load {
    /// Asks until the server answers. What is asked must be safe to repeat.
    fn ask(&self, path: &str, key: Option<&str>, body: &str) -> Option<(u16, Value)> {
        let key = key.map(|key| format!("idempotency-key: {key}"));
        let headers: Vec<&str> = [self.authorization.as_str()].into_iter().chain(key.as_deref()).collect();
        while !self.over.load(Ordering::Relaxed) {
            let address = self.address.read().unwrap().clone();
            match http(&address, "POST", path, &headers, body) {
                Ok(reply) => {
                    self.replies.fetch_add(1, Ordering::Relaxed);
                    return Some((reply.status, reply.json()));
                }
                Err(_) => std::thread::yield_now(),
            }
        }
        None
    }

    /// Sends messages with keys of its own.
    fn send(&self, sender: u64) {
        for n in 0.. {
            let key = format!("k-{sender}-{n}");
            let body = json!({"payload": {"n": n}}).to_string();
            let Some((status, sent)) = self.ask("/api/v1/queues/q/messages", Some(&key), &body) else {
                return;
            };
            assert!(status == 200 || status == 201, "{status} {sent}");
            self.sent.lock().unwrap().insert(key, text(&sent["id"]));
        }
    }

    /// Leases and acknowledges about as much as one client can.
    fn work(&self) {
        loop {
            let lease = r#"{"max":10,"lease":"1h","worker":"w"}"#;
            let Some((status, leased)) = self.ask("/api/v1/queues/q/lease", None, lease) else { return };
            if status == 404 {
                // Nobody has sent anything yet.
                continue;
            }
            assert_eq!(status, 200, "{leased}");
            for delivery in leased["items"].as_array().unwrap() {
                let path = format!("/api/v1/deliveries/{}/ack", text(&delivery["token"]));
                let Some((status, reply)) = self.ask(&path, None, "") else { return };
                // 409: an earlier ack whose reply was lost has taken effect.
                assert!(status == 200 || status == 409 || status == 404, "{status} {reply}");
                if status == 200 {
                    self.acked.lock().unwrap().insert(text(&delivery["id"]));
                }
            }
        }
    }
}

#[test]
fn i1_i42_what_was_acknowledged_over_http_is_there_once_after_kill_9() {
    let kills = setting("REDRIVE_HTTP_KILLS", 5);
    let mut random = setting("REDRIVE_HTTP_KILL_SEED", 11);
    let workspace = Workspace::new();
    let mut server = workspace.serve(&["-q"]);
    let load = Load {
        address: RwLock::new(server.address().to_owned()),
        authorization: format!("authorization: Bearer {}", server.token.as_deref().unwrap()),
        over: AtomicBool::new(false),
        replies: AtomicU64::new(0),
        sent: Mutex::default(),
        acked: Mutex::default(),
    };
    let last: ServeProcess = std::thread::scope(|scope| {
        for sender in 0..SENDERS {
            let load = &load;
            scope.spawn(move || load.send(sender));
        }
        scope.spawn(|| load.work());
        for _ in 0..kills {
            // xorshift, so that a seed repeats the moments of the kills.
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let enough = load.replies.load(Ordering::Relaxed) + 20 + random % 180;
            until("requests are answered", || load.replies.load(Ordering::Relaxed) >= enough);
            server.signal("-KILL");
            server.wait();
            server = workspace.serve(&["-q"]);
            *load.address.write().unwrap() = server.address().to_owned();
        }
        let enough = load.replies.load(Ordering::Relaxed) + 20;
        until("the last server answers, too", || load.replies.load(Ordering::Relaxed) >= enough);
        load.over.store(true, Ordering::Relaxed);
        server
    });
    let (sent, acked) = (load.sent.into_inner().unwrap(), load.acked.into_inner().unwrap());
    assert!(!sent.is_empty() && !acked.is_empty());
    let live = workspace.run(&["message", "list", "queue:q", "--all", "-o", "ndjson"]).ok().ndjson();
    let mut by_key: BTreeMap<String, String> = BTreeMap::new();
    for message in &live {
        let before = by_key.insert(text(&message["key"]), text(&message["id"]));
        assert_eq!(before, None, "{} is there twice", message["key"]);
        assert!(!acked.contains(&text(&message["id"])), "{} came back after its ack", message["id"]);
    }
    let queue = workspace.json(&["queue", "show", "q"]);
    let done = queue["done"].as_u64().unwrap();
    let ended: Vec<&String> = sent.keys().filter(|key| !by_key.contains_key(*key)).collect();
    for (key, id) in sent.iter().filter(|(key, _)| by_key.contains_key(*key)) {
        assert_eq!(&by_key[key], id, "{key} was acknowledged with another id");
    }
    // What is not live any more was done, each once. A message whose sender heard nothing may be done, too.
    assert!(done >= u64::try_from(ended.len()).unwrap(), "{done} done, {} gone", ended.len());
    assert!(done <= u64::try_from(ended.len()).unwrap() + SENDERS, "{done} done, {} gone", ended.len());
    assert!(u64::try_from(acked.len()).unwrap() <= done);
    workspace.run(&["doctor"]).ok();
    println!("{kills} kills, {} sends and {} acks acknowledged", sent.len(), acked.len());
    drop(last);
}
