//! Laws of `verify` and `info`: a store can verify itself and describe itself.

use super::LawContext;
use super::kit::{fail, max_attempts, msg, q};
use redrive_core::dead_letter::Act;
use redrive_core::invariants::Verification;
use redrive_core::message::NewMessage;
use redrive_core::store::{Settle, VerifyRequest};

pub(super) async fn i11_i15_a_recount_reads_everything_and_finds_no_mismatch(ctx: &LawContext<'_>) {
    ctx.configure("q", max_attempts(2)).await;
    for n in 1..=6 {
        ctx.send(NewMessage { ordering_key: (n > 4).then(|| "o".into()), ..msg(n, "q") }).await;
    }
    let taken = ctx.lease("q", 4).await;
    ctx.settle(taken[0].token, Settle::Ack).await.expect("held");
    ctx.settle(taken[1].token, fail("Bad")).await.expect("held");
    let dead = ctx.dead_letter(msg(7, "other"), "Bad").await.id();
    let retried = ctx.dead_letter(msg(8, "other"), "Bad").await.id();
    ctx.act(retried, Act::retry()).await.expect("pending");
    let before = ctx.view().await;
    for (deep, repair) in [(false, false), (true, false), (true, true)] {
        let found = ctx.store.verify(VerifyRequest { deep, repair }).await.expect("succeeds");
        assert_eq!((found.messages, found.letters), (6, 2), "deep {deep}");
        if deep {
            assert_eq!((found.failures, found.audit_rows), (3, 2));
        }
        assert_eq!((found.findings, found.findings_total, found.repaired), (Vec::new(), 0, 0));
    }
    assert_eq!(ctx.view().await, before, "verifying a clean store changes nothing, with or without repair");
    assert_eq!(ctx.letter(dead).await.id(), dead);
}

pub(super) async fn an_empty_store_verifies(ctx: &LawContext<'_>) {
    let found = ctx.store.verify(VerifyRequest { deep: true, repair: true }).await.expect("succeeds");
    assert_eq!(found, Verification::default());
    let seen = ctx.view().await;
    assert!(seen.messages.is_empty() && seen.letters.is_empty() && seen.queues.is_empty());
    assert!(ctx.store.queue(q("q")).await.is_err());
}

pub(super) async fn info_names_the_backend_and_the_time(ctx: &LawContext<'_>) {
    let info = ctx.store.info().await.expect("succeeds");
    assert_eq!((info.now, info.degraded), (ctx.now(), Vec::new()));
    assert!(!info.backend.is_empty());
}
