//! The lifecycle table on a real store (I12): the result of every verb in every state of a message. A refused
//! verb must change nothing.

use super::LawContext;
use super::kit::{fail, fail_permanently, max_attempts, msg, operator, q, secs};
use redrive_core::dead_letter::Act;
use redrive_core::error::{CallError, Refusal};
use redrive_core::ids::{LeaseToken, MessageId};
use redrive_core::lifecycle::State;
use redrive_core::message::{NewMessage, Payload};
use redrive_core::policy::{OnExpire, QueuePolicy};
use redrive_core::progress::Progress;
use redrive_core::store::Settle;
use std::fmt::Debug;

/// The verbs, and the result of each in the states of [`State::ALL`], in that order.
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
    NewMessage { ttl: (state == State::Expired).then(|| secs(10)), ..msg(n, queue) }
}

/// The short name of a refusal.
fn refusal_name(refusal: &Refusal) -> String {
    let json = serde_json::to_value(refusal).expect("refusals are JSON");
    json["refusal"].as_str().expect("tagged").replace('_', " ")
}

fn outcome_name<T: Debug>(outcome: Result<T, Refusal>, yes: impl FnOnce(T) -> String) -> String {
    outcome.map_or_else(|refusal| refusal_name(&refusal), yes)
}

fn refusal_only<T: Debug>(outcome: Result<T, CallError>) -> Result<T, Refusal> {
    outcome.map_err(|error| match error {
        CallError::Refused(refusal) => refusal,
        CallError::Store(error) => panic!("the store failed: {error}"),
    })
}

impl LawContext<'_> {
    /// A message in this state, alone in its queue, with the token of its only delivery.
    async fn message_in_state(&self, n: u64, queue: &str, state: State) -> (MessageId, LeaseToken) {
        self.configure(queue, QueuePolicy { on_expire: OnExpire::Drop, ..max_attempts(3) }).await;
        let id = self.send(subject(n, queue, state)).await;
        let token = self.lease_one(queue).await.token;
        let first = match state {
            State::Leased => return (id, token),
            State::Scheduled => Settle::Snooze { span: secs(3_600) },
            State::Dead => fail_permanently("Bad"),
            State::Done => Settle::Ack,
            State::Ready | State::Cancelled | State::Expired | State::Purged => Settle::Release,
        };
        self.settle(token, first).await.expect("the lease is held");
        match state {
            State::Cancelled => {
                self.store.cancel(vec![id], operator()).await.expect("succeeds");
            }
            State::Purged => {
                self.store.purge(q(queue), operator()).await.expect("succeeds");
            }
            State::Expired => {
                self.clock.advance(secs(10));
                self.store.reap(1_000).await.expect("succeeds");
            }
            State::Scheduled | State::Ready | State::Leased | State::Dead | State::Done => {}
        }
        (id, token)
    }

    async fn try_verb(&self, verb: &str, n: u64, queue: &str, state: State, token: LeaseToken) -> String {
        let id = token.id;
        let settle = match verb {
            "ack" => Some(Settle::Ack),
            "fail" => Some(fail("Bad")),
            "give up" => Some(fail_permanently("Bad")),
            "release" => Some(Settle::Release),
            "snooze" => Some(Settle::Snooze { span: secs(60) }),
            "extend" => Some(Settle::Extend { by: None }),
            "progress" => Some(Settle::Progress { progress: Progress::new(1, None, "") }),
            "reply" => Some(Settle::Reply { payload: Payload::default() }),
            _ => None,
        };
        if let Some(what) = settle {
            return outcome_name(self.settle(token, what).await, |s| s.state.to_string());
        }
        let status = |s: redrive_core::store::LetterState| s.status.expect("the letter stays").to_string();
        let count = |n: u64, name: &str| if n == 0 { "nothing".to_owned() } else { name.to_owned() };
        match verb {
            "lease" => count(self.lease(queue, 9).await.len() as u64, "leased"),
            "cancel" => {
                let mut each = self.store.cancel(vec![id], operator()).await.expect("succeeds");
                outcome_name(each.remove(0), |_| "cancelled".into())
            }
            "purge" => {
                count(self.store.purge(q(queue), operator()).await.expect("succeeds").purged, "purged")
            }
            "retry" => outcome_name(self.act(id, Act::retry()).await, status),
            "resolve" => outcome_name(self.act(id, Act::Resolve).await, status),
            "send" => outcome_name(self.try_send(subject(n, queue, state)).await, |sent| {
                if sent.duplicate { format!("again {}", sent.state) } else { "new".into() }
            }),
            "message" => outcome_name(refusal_only(self.store.message(id).await), |m| m.state.to_string()),
            "letter" => {
                outcome_name(refusal_only(self.store.letter(id).await), |l| l.message.state.to_string())
            }
            "reap late" => {
                self.clock.advance(secs(30));
                count(self.store.reap(1_000).await.expect("succeeds").leases_lost, "lost")
            }
            _ => panic!("unknown verb {verb:?}"),
        }
    }
}

pub(super) async fn i12_every_verb_in_every_state(ctx: &LawContext<'_>) {
    let mut n = 0;
    for (verb, row) in TABLE {
        for (state, expected) in State::ALL.iter().zip(row) {
            n += 1;
            let queue = format!("q{n}");
            let (id, token) = ctx.message_in_state(n, &queue, *state).await;
            let counts = ctx.counts(&queue).await;
            let message = ctx.store.message(id).await;
            let letter = ctx.store.letter(id).await;
            let got = ctx.try_verb(verb, n, &queue, *state, token).await;
            assert_eq!(got, expected, "{verb} of a {state} message");
            let changed = ["stale", "wrong", "no such", "nothing", "again"];
            if changed.iter().any(|word| expected.starts_with(word)) {
                let name = format!("{verb} of a {state} message must change nothing");
                assert_eq!(ctx.counts(&queue).await, counts, "{name}");
                if verb != "reap late" {
                    assert_eq!(ctx.store.message(id).await, message, "{name}");
                    assert_eq!(ctx.store.letter(id).await, letter, "{name}");
                }
            }
            // The next cell starts with no leases.
            ctx.clock.advance(secs(60));
            ctx.store.reap(1_000).await.expect("succeeds");
        }
    }
    assert_eq!(n, 17 * 8);
}
