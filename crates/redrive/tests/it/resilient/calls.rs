//! What the caller gets: values, its own error, time limits, panics, breakers, and what a dropped call leaves.

use super::{Calls, Own, all_letters, operation, paused_clock, paused_store, quick, sound, stored};
use redrive::core::breaker::BreakerPolicy;
use redrive::core::error::Refusal;
use redrive::core::failure::{Reason, Route};
use redrive::core::time::Span;
use redrive::resilient::{CaptureStatus, Failed, FailureCause, OnOpen, Operation, Policy};
use redrive::{HandlerError, ResilientExecutor};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::Instant;

#[tokio::test(start_paused = true)]
async fn every_profile_tries_as_often_and_waits_as_long_as_its_table_says() {
    // Attempts, and the least and the most all delays together may take, in milliseconds.
    for (policy, attempts, least, most) in [
        ("llm", 3, 900 + 1_800, 1_100 + 2_200),
        ("github", 5, 800 + 1_600 + 3_200 + 6_400, 1_200 + 2_400 + 4_800 + 9_600),
        ("tool", 3, 425 + 850, 575 + 1_150),
        ("verification", 3, 2_000 + 4_000, 2_000 + 4_000),
    ] {
        let clock = paused_clock();
        let executor = ResilientExecutor::builder(paused_store(&clock)).clock(clock.clone()).build().unwrap();
        let (calls, started) = (Calls::default(), Instant::now());
        let run = || {
            calls.note();
            async { Err::<(), _>(Own(1)) }
        };
        let failed = executor.execute(policy, operation("x"), run).await.unwrap_err();
        // Timers tick in milliseconds; each delay may be rounded up by one.
        let took = u64::try_from(started.elapsed().as_millis()).unwrap();
        assert!((least..=most + u64::from(attempts)).contains(&took), "{policy}: {took} ms");
        assert_eq!((calls.made(), failed.attempts), (attempts, attempts), "{policy}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_succeeds_in_the_end_leaves_nothing() {
    let clock = paused_clock();
    let store = paused_store(&clock);
    let executor = ResilientExecutor::builder(store.clone()).clock(clock).build().unwrap();
    let calls = Calls::default();
    let run = || {
        let n = calls.note();
        async move { if n < 3 { Err(Own(1)) } else { Ok(n) } }
    };
    assert_eq!(executor.execute("llm", operation("x"), run).await, Ok(3));
    assert!(all_letters(store.as_ref()).await.is_empty());
    assert_eq!(executor.state(), redrive::resilient::OutboxState::default());
}

#[tokio::test(start_paused = true)]
async fn the_callers_own_error_comes_back_as_it_was() {
    let clock = paused_clock();
    let executor = ResilientExecutor::builder(paused_store(&clock)).clock(clock).build().unwrap();
    let calls = Calls::default();
    let run = || {
        let n = calls.note();
        async move { Err::<(), _>(Own(u64::from(n))) }
    };
    let failed = executor.execute("tool", operation("x"), run).await.unwrap_err();
    assert_eq!(failed.to_string(), "connection to model 3 refused");
    assert_eq!(failed.into_error(), Some(Own(3)), "that of the last attempt, by value");
    let text = |n: u32| async move { Err::<(), String>(format!("only text {n}")) };
    let describe = |words: &String| HandlerError::new("Text", words.clone());
    let failed = executor.execute_with("tool", operation("x"), describe, || text(7)).await.unwrap_err();
    assert_eq!(failed.into_error().as_deref(), Some("only text 7"));
}

#[tokio::test(start_paused = true)]
async fn a_permanent_error_is_not_tried_again_and_a_servers_word_is_honoured() {
    let clock = paused_clock();
    let store = paused_store(&clock);
    let executor = ResilientExecutor::builder(store.clone()).clock(clock).build().unwrap();
    let calls = Calls::default();
    let run = || {
        calls.note();
        async { Err::<(), _>(HandlerError::new("BadRequest", "no such model").code(400).permanent()) }
    };
    let failed = executor.execute("llm", operation("x"), run).await.unwrap_err();
    assert_eq!((calls.made(), failed.attempts), (1, 1));
    let letter = store.letter(stored(failed.capture)).await.unwrap();
    assert_eq!((letter.record.reason, letter.eligible), (Reason::Permanent, false));

    for (asked, least, most) in [(10, 20_000, 22_100), (9_000, 60_000, 60_100)] {
        let started = Instant::now();
        let run = || async move {
            Err::<(), _>(HandlerError::new("RateLimited", "slow down").retry_after(Span::from_secs(asked)))
        };
        executor.execute("llm", operation("x"), run).await.unwrap_err();
        let took = started.elapsed().as_millis();
        assert!((least..=most).contains(&took), "asked for {asked} s twice, within the cap of 30 s: {took}");
    }
}

#[tokio::test]
async fn an_unknown_policy_or_an_operation_that_could_not_be_kept_is_refused_before_it_runs() {
    let store = redrive::memory();
    let executor = ResilientExecutor::builder(store.clone()).build().unwrap();
    let calls = Calls::default();
    let run = || {
        calls.note();
        async { Ok::<(), Own>(()) }
    };
    let failed = executor.execute("githb", operation("x"), run).await.unwrap_err();
    assert_eq!((failed.attempts, failed.capture), (0, CaptureStatus::NotCaptured));
    assert!(failed.to_string().contains("did you mean \"github\""), "{failed}");
    let big = serde_json::json!("x".repeat(9 * 1024 * 1024));
    let failed = executor.execute("llm", Operation::new("x").json(&big), run).await.unwrap_err();
    assert!(
        matches!(&failed.cause, FailureCause::Refused(Refusal::Invalid { field, .. }) if field == "payload")
    );
    assert_eq!(calls.made(), 0);
    assert!(ResilientExecutor::builder(store.clone()).policy("no queue name!", quick(1)).build().is_err());
    let named = Policy { queue: Some("jobs".parse().unwrap()), ..quick(1) };
    assert!(ResilientExecutor::builder(store).policy("no queue name!", named).build().is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_call_that_hangs_is_timed_out_each_time() {
    let clock = paused_clock();
    let store = paused_store(&clock);
    let policy = Policy { timeout: Some(Span::from_secs(20)), ..quick(3) };
    let executor =
        ResilientExecutor::builder(store.clone()).clock(clock).policy("slow", policy).build().unwrap();
    let calls = Calls::default();
    let run = || {
        calls.note();
        pending::<Result<(), Own>>()
    };
    let started = Instant::now();
    let failed = executor.execute("slow", operation("x"), run).await.unwrap_err();
    assert_eq!(failed.cause, FailureCause::TimedOut(Span::from_secs(20)));
    assert_eq!(calls.made(), 3);
    assert_eq!(started.elapsed().as_secs(), 60);
    let letter = store.letter(stored(failed.capture)).await.unwrap();
    assert_eq!((letter.error.error_type.as_str(), letter.record.route), ("Timeout", Route::Timeout));
    assert!(letter.message.failures.iter().all(|f| f.duration == Some(Span::from_secs(20))));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_panics_is_a_failed_attempt_and_no_more() {
    let clock = paused_clock();
    let store = paused_store(&clock);
    let executor =
        ResilientExecutor::builder(store.clone()).clock(clock).policy("p", quick(2)).build().unwrap();
    let calls = Calls::default();
    let run = || {
        let n = calls.note();
        async move {
            if n == 1 {
                panic!("index 7 of an empty list");
            }
            Err::<(), _>(Own(2))
        }
    };
    let failed = executor.execute("p", operation("x"), run).await.unwrap_err();
    let letter = store.letter(stored(failed.capture)).await.unwrap();
    assert_eq!(failed.into_error(), Some(Own(2)));
    let first = &letter.message.failures[0].error;
    assert_eq!((first.error_type.as_str(), first.message.as_str()), ("Panic", "index 7 of an empty list"));

    let always = || async { panic!("again") };
    let failed: Failed<Own> = executor.execute::<(), _, _, _>("p", operation("x"), always).await.unwrap_err();
    assert_eq!((failed.attempts, &failed.cause), (2, &FailureCause::Panicked("again".into())));
    stored(failed.capture);
}

#[tokio::test(start_paused = true)]
async fn an_open_breaker_holds_calls_back_and_probes_close_it() {
    let clock = paused_clock();
    let store = paused_store(&clock);
    let breaker = Some(BreakerPolicy::new("kind".parse().unwrap()));
    let capture = Policy { breaker: breaker.clone(), ..quick(1) };
    let refuse = Policy { breaker, on_open: OnOpen::Refuse, ..quick(1) };
    let executor = ResilientExecutor::builder(store.clone())
        .clock(clock.clone())
        .policy("keep", capture)
        .policy("tell", refuse)
        .build()
        .unwrap();
    let calls = Calls::default();
    let bad = || {
        calls.note();
        async { Err::<(), _>(Own(1)) }
    };
    for policy in ["keep", "tell"] {
        for _ in 0..5 {
            executor.execute(policy, operation("a"), bad).await.unwrap_err();
        }
        let made = calls.made();
        let held = executor.execute(policy, operation("a"), bad).await.unwrap_err();
        assert_eq!((calls.made(), held.attempts), (made, 0), "not executed");
        let FailureCause::BreakerOpen { until } = held.cause else { panic!("{:?}", held.cause) };
        assert_eq!(until, Some(clock.now().plus(Span::from_secs(30))));
        if policy == "keep" {
            let letter = store.letter(stored(held.capture)).await.unwrap();
            assert_eq!((letter.record.reason, letter.message.attempts), (Reason::BreakerOpen, 0));
            assert_eq!(
                (letter.error.error_type.as_str(), letter.message.failures[0].attempt),
                ("BreakerOpen", 0)
            );
        } else {
            assert_eq!(held.capture, CaptureStatus::NotCaptured);
        }
        assert_eq!(executor.execute(policy, operation("b"), || async { Ok::<_, Own>(1) }).await, Ok(1));
    }
    tokio::time::advance(Duration::from_secs(30)).await;
    // Three may try; what they have in their hands decides.
    let (hold, gone) = (Arc::new(Notify::new()), Arc::new(Semaphore::new(0)));
    let probes: Vec<_> = (0..3)
        .map(|_| {
            let (executor, hold, gone) = (executor.clone(), hold.clone(), gone.clone());
            tokio::spawn(async move {
                let run = || async {
                    gone.add_permits(1);
                    hold.notified().await;
                    Ok::<_, Own>(())
                };
                executor.execute("tell", operation("a"), run).await
            })
        })
        .collect();
    gone.acquire_many(3).await.unwrap().forget();
    let fourth = executor.execute("tell", operation("a"), bad).await.unwrap_err();
    assert_eq!(fourth.cause, FailureCause::BreakerOpen { until: None });
    // One of them is withdrawn: its place is free again, and says nothing.
    probes[0].abort();
    while !probes[0].is_finished() {
        tokio::task::yield_now().await;
    }
    assert_eq!(executor.execute("tell", operation("a"), || async { Ok::<_, Own>(2) }).await, Ok(2));
    hold.notify_waiters();
    for probe in probes.into_iter().skip(1) {
        assert_eq!(probe.await.unwrap(), Ok(()));
    }
    let made = calls.made();
    executor.execute("tell", operation("a"), bad).await.unwrap_err();
    assert_eq!(calls.made(), made + 1, "closed again");
    sound(store.as_ref()).await;
}

#[tokio::test(start_paused = true)]
async fn a_breaker_that_opens_between_attempts_ends_the_call_with_its_own_error() {
    let clock = paused_clock();
    let store = paused_store(&clock);
    let breaker = Some(BreakerPolicy { failures: 2, ..BreakerPolicy::new("queue".parse().unwrap()) });
    let executor = ResilientExecutor::builder(store.clone())
        .clock(clock)
        .policy("p", Policy { breaker, ..quick(5) })
        .build()
        .unwrap();
    let calls = Calls::default();
    let run = || {
        let n = calls.note();
        async move { Err::<(), _>(Own(u64::from(n))) }
    };
    let failed = executor.execute("p", operation("x"), run).await.unwrap_err();
    assert_eq!((failed.attempts, failed.error()), (2, Some(&Own(2))));
    let letter = store.letter(stored(failed.capture)).await.unwrap();
    assert_eq!(letter.record.reason, Reason::BreakerOpen);
    assert_eq!(letter.error.context, ["its breaker opened after attempt 2 of 5"]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_is_withdrawn_and_nothing_is_kept() {
    let clock = paused_clock();
    let store = paused_store(&clock);
    let executor = ResilientExecutor::builder(store.clone()).clock(clock).build().unwrap();
    // In the middle of an attempt, and between two attempts.
    for fails in [false, true] {
        let (calls, (begun, started)) = (Calls::default(), oneshot::channel());
        let mut begun = Some(begun);
        let run = || {
            calls.note();
            let begun = begun.take();
            async move {
                if let Some(begun) = begun {
                    begun.send(()).unwrap();
                }
                if fails { Err::<(), _>(Own(1)) } else { pending().await }
            }
        };
        tokio::select! {
            biased;
            ended = executor.execute("github", operation("x"), run) => panic!("{ended:?}"),
            () = async { started.await.unwrap() } => {}
        }
        assert_eq!(calls.made(), 1);
    }
    assert_eq!(executor.state().withdrawn, 2);
    tokio::time::advance(Duration::from_secs(3_600)).await;
    assert!(all_letters(store.as_ref()).await.is_empty());
    assert_eq!((executor.state().buffered, executor.state().stored), (0, 0));
}
