//! The table of the life cycle on a real store (I12): for every state a message can be in and every verb that
//! can be tried on it, what comes of it. What is refused must change nothing.

use super::Stage;
use super::kit::{failed, hopeless, new, operator, q, rules, secs};
use redrive_core::dead_letter::Act;
use redrive_core::error::{Error, Refusal};
use redrive_core::ids::{LeaseToken, MessageId};
use redrive_core::lifecycle::State;
use redrive_core::message::{NewMessage, Payload};
use redrive_core::policy::{OnExpire, QueuePolicy};
use redrive_core::progress::Progress;
use redrive_core::store::Settle;
use std::fmt::Debug;

/// The verbs, and what each comes to in the states of [`State::ALL`], in that order.
#[rustfmt::skip]
const TABLE: [(&str, [&str; 8]); 17] = [
    // verb        scheduled          ready              leased             dead               done               cancelled          expired            purged
    ("lease",     ["nothing",         "leased",          "nothing",         "nothing",         "nothing",         "nothing",         "nothing",         "nothing"]),
    ("ack",       ["stale token",     "stale token",     "done",            "stale token",     "stale token",     "stale token",     "stale token",     "stale token"]),
    ("fail",      ["stale token",     "stale token",     "scheduled",       "stale token",     "stale token",     "stale token",     "stale token",     "stale token"]),
    ("give up",   ["stale token",     "stale token",     "dead",            "stale token",     "stale token",     "stale token",     "stale token",     "stale token"]),
    ("release",   ["stale token",     "stale token",     "ready",           "stale token",     "stale token",     "stale token",     "stale token",     "stale token"]),
    ("snooze",    ["stale token",     "stale token",     "scheduled",       "stale token",     "stale token",     "stale token",     "stale token",     "stale token"]),
    ("extend",    ["stale token",     "stale token",     "leased",          "stale token",     "stale token",     "stale token",     "stale token",     "stale token"]),
    ("progress",  ["stale token",     "stale token",     "leased",          "stale token",     "stale token",     "stale token",     "stale token",     "stale token"]),
    ("reply",     ["stale token",     "stale token",     "done",            "stale token",     "stale token",     "stale token",     "stale token",     "stale token"]),
    ("cancel",    ["cancelled",       "cancelled",       "wrong state",     "wrong state",     "no such message", "no such message", "no such message", "no such message"]),
    ("purge",     ["purged",          "purged",          "nothing",         "nothing",         "nothing",         "nothing",         "nothing",         "nothing"]),
    ("retry",     ["no such letter",  "no such letter",  "no such letter",  "retrying",        "no such letter",  "no such letter",  "no such letter",  "no such letter"]),
    ("resolve",   ["no such letter",  "no such letter",  "no such letter",  "resolved",        "no such letter",  "no such letter",  "no such letter",  "no such letter"]),
    ("send",      ["again scheduled", "again ready",     "again leased",    "again dead",      "new",             "new",             "new",             "new"]),
    ("message",   ["scheduled",       "ready",           "leased",          "no such message", "no such message", "no such message", "no such message", "no such message"]),
    ("letter",    ["no such letter",  "no such letter",  "no such letter",  "dead",            "no such letter",  "no such letter",  "no such letter",  "no such letter"]),
    ("reap late", ["nothing",         "nothing",         "lost",            "nothing",         "nothing",         "nothing",         "nothing",         "nothing"]),
];

fn subject(n: u64, queue: &str, state: State) -> NewMessage {
    NewMessage { ttl: (state == State::Expired).then(|| secs(10)), ..new(n, queue) }
}

/// The short name of a refusal.
fn no(refusal: &Refusal) -> String {
    let json = serde_json::to_value(refusal).expect("refusals are JSON");
    json["refusal"].as_str().expect("tagged").replace('_', " ")
}

fn said<T: Debug>(outcome: Result<T, Refusal>, yes: impl FnOnce(T) -> String) -> String {
    outcome.map_or_else(|refusal| no(&refusal), yes)
}

fn whole<T: Debug>(outcome: Result<T, Error>) -> Result<T, Refusal> {
    outcome.map_err(|error| match error {
        Error::Refused(refusal) => refusal,
        Error::Store(error) => panic!("the store failed: {error}"),
    })
}

impl Stage<'_> {
    /// A message in this state, alone in its queue, with the token of its only delivery.
    async fn bring(&self, n: u64, queue: &str, state: State) -> (MessageId, LeaseToken) {
        self.set(queue, QueuePolicy { on_expire: OnExpire::Drop, ..rules(3) }).await;
        let id = self.send(subject(n, queue, state)).await;
        let token = self.take_one(queue).await.token;
        let first = match state {
            State::Leased => return (id, token),
            State::Scheduled => Settle::Snooze { span: secs(3_600) },
            State::Dead => hopeless("Bad"),
            State::Done => Settle::Ack,
            State::Ready | State::Cancelled | State::Expired | State::Purged => Settle::Release,
        };
        self.settle(token, first).await.expect("it holds the lease");
        match state {
            State::Cancelled => {
                self.store.cancel(vec![id], operator()).await.expect("answers");
            }
            State::Purged => {
                self.store.purge(q(queue), operator()).await.expect("answers");
            }
            State::Expired => {
                self.clock.advance(secs(10));
                self.store.reap(1_000).await.expect("answers");
            }
            State::Scheduled | State::Ready | State::Leased | State::Dead | State::Done => {}
        }
        (id, token)
    }

    async fn attempt(&self, verb: &str, n: u64, queue: &str, state: State, token: LeaseToken) -> String {
        let id = token.id;
        let settle = match verb {
            "ack" => Some(Settle::Ack),
            "fail" => Some(failed("Bad")),
            "give up" => Some(hopeless("Bad")),
            "release" => Some(Settle::Release),
            "snooze" => Some(Settle::Snooze { span: secs(60) }),
            "extend" => Some(Settle::Extend { by: None }),
            "progress" => Some(Settle::Progress { progress: Progress::new(1, None, "") }),
            "reply" => Some(Settle::Reply { payload: Payload::default() }),
            _ => None,
        };
        if let Some(what) = settle {
            return said(self.settle(token, what).await, |s| s.state.to_string());
        }
        let status = |s: redrive_core::store::LetterState| s.status.expect("it stays").to_string();
        let count = |n: u64, name: &str| if n == 0 { "nothing".to_owned() } else { name.to_owned() };
        match verb {
            "lease" => count(self.take(queue, 9).await.len() as u64, "leased"),
            "cancel" => {
                let mut each = self.store.cancel(vec![id], operator()).await.expect("answers");
                said(each.remove(0), |_| "cancelled".into())
            }
            "purge" => count(self.store.purge(q(queue), operator()).await.expect("answers").purged, "purged"),
            "retry" => said(self.act(id, Act::retry()).await, status),
            "resolve" => said(self.act(id, Act::Resolve).await, status),
            "send" => said(self.try_send(subject(n, queue, state)).await, |sent| {
                if sent.duplicate { format!("again {}", sent.state) } else { "new".into() }
            }),
            "message" => said(whole(self.store.message(id).await), |m| m.state.to_string()),
            "letter" => said(whole(self.store.letter(id).await), |l| l.message.state.to_string()),
            "reap late" => {
                self.clock.advance(secs(30));
                count(self.store.reap(1_000).await.expect("answers").leases_lost, "lost")
            }
            _ => panic!("no verb {verb:?}"),
        }
    }
}

pub(super) async fn i12_every_state_and_every_verb(stage: &Stage<'_>) {
    let mut n = 0;
    for (verb, row) in TABLE {
        for (state, expected) in State::ALL.iter().zip(row) {
            n += 1;
            let queue = format!("q{n}");
            let (id, token) = stage.bring(n, &queue, *state).await;
            let counts = stage.counts(&queue).await;
            let lives = stage.store.message(id).await;
            let lies = stage.store.letter(id).await;
            let got = stage.attempt(verb, n, &queue, *state, token).await;
            assert_eq!(got, expected, "{verb} of a {state} message");
            let changed = ["stale", "wrong", "no such", "nothing", "again"];
            if changed.iter().any(|word| expected.starts_with(word)) {
                let name = format!("{verb} of a {state} message must change nothing");
                assert_eq!(stage.counts(&queue).await, counts, "{name}");
                if verb != "reap late" {
                    assert_eq!(stage.store.message(id).await, lives, "{name}");
                    assert_eq!(stage.store.letter(id).await, lies, "{name}");
                }
            }
            // The next cell starts with nothing leased.
            stage.clock.advance(secs(60));
            stage.store.reap(1_000).await.expect("answers");
        }
    }
    assert_eq!(n, 17 * 8);
}
