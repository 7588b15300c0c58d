//! Laws of `verify` and `info`: a store can show that it adds up, and says what it is.

use super::Stage;
use super::kit::{failed, new, q, rules};
use redrive_core::dead_letter::Act;
use redrive_core::invariants::Verification;
use redrive_core::message::NewMessage;
use redrive_core::store::{Settle, VerifyRequest};

pub(super) async fn i11_i15_a_recount_walks_everything_and_finds_nothing(stage: &Stage<'_>) {
    stage.set("q", rules(2)).await;
    for n in 1..=6 {
        stage.send(NewMessage { ordering_key: (n > 4).then(|| "o".into()), ..new(n, "q") }).await;
    }
    let taken = stage.take("q", 4).await;
    stage.settle(taken[0].token, Settle::Ack).await.expect("held");
    stage.settle(taken[1].token, failed("Bad")).await.expect("held");
    let dead = stage.dead(new(7, "other"), "Bad").await.id();
    let retried = stage.dead(new(8, "other"), "Bad").await.id();
    stage.act(retried, Act::retry()).await.expect("pending");
    let before = stage.seen().await;
    for (deep, repair) in [(false, false), (true, false), (true, true)] {
        let found = stage.store.verify(VerifyRequest { deep, repair }).await.expect("answers");
        assert_eq!((found.messages, found.letters), (6, 2), "deep {deep}");
        if deep {
            assert_eq!((found.failures, found.audit_rows), (3, 2));
        }
        assert_eq!((found.findings, found.findings_total, found.repaired), (Vec::new(), 0, 0));
    }
    assert_eq!(stage.seen().await, before, "looking changes nothing, nor does mending what is whole");
    assert_eq!(stage.letter(dead).await.id(), dead);
}

pub(super) async fn an_empty_store_is_whole(stage: &Stage<'_>) {
    let found = stage.store.verify(VerifyRequest { deep: true, repair: true }).await.expect("answers");
    assert_eq!(found, Verification::default());
    let seen = stage.seen().await;
    assert!(seen.messages.is_empty() && seen.letters.is_empty() && seen.queues.is_empty());
    assert!(stage.store.queue(q("q")).await.is_err());
}

pub(super) async fn a_store_says_what_it_is_and_what_time_it_has(stage: &Stage<'_>) {
    let info = stage.store.info().await.expect("answers");
    assert_eq!((info.now, info.degraded), (stage.now(), Vec::new()));
    assert!(!info.backend.is_empty());
}
