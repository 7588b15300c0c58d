//! The resilient executor from outside: what is tried, what the caller gets, and what is in the store afterwards.

mod calls;
mod letters;
mod outage;
mod processor;
mod proxy;
mod torture;

use crate::support::{memory_on as paused_store, runtime_clock as paused_clock};
use redrive::core::dead_letter::DeadLetter;
use redrive::core::query::{PageRequest, Query};
use redrive::core::store::{Store, VerifyRequest};
use redrive::core::time::Span;
use redrive::resilient::{CaptureStatus, Operation, Policy};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// An error that nobody could make a copy of.
#[derive(Debug, PartialEq)]
struct Own(u64);

impl fmt::Display for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection to model {} refused", self.0)
    }
}

impl std::error::Error for Own {}

/// Counts calls.
#[derive(Clone, Default)]
struct Calls(Arc<AtomicU32>);

impl Calls {
    fn made(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    /// Notes a call; returns its number.
    fn note(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }
}

fn operation(kind: &str) -> Operation {
    Operation::new(kind).json(&serde_json::json!({"n": 1}))
}

/// A policy that does not make a test wait.
fn quick(attempts: u32) -> Policy {
    Policy::exponential(attempts, Span::from_millis(1), Span::from_millis(2), 0)
}

fn stored(capture: CaptureStatus) -> redrive::core::ids::MessageId {
    match capture {
        CaptureStatus::Stored(id) => id,
        CaptureStatus::Buffered(_) | CaptureStatus::Dropped(_) | CaptureStatus::NotCaptured => {
            panic!("not in the store: {capture:?}")
        }
    }
}

/// Every letter of the store.
async fn all_letters(store: &dyn Store) -> Vec<DeadLetter> {
    let mut all = Vec::new();
    let mut page = PageRequest::first(1_000);
    loop {
        let found = store.letters(Query { page: page.clone(), ..Query::default() }).await.unwrap();
        all.extend(found.items);
        match found.next {
            Some(next) => page.cursor = Some(next),
            None => return all,
        }
    }
}

/// The doctor's own check.
async fn sound(store: &dyn Store) {
    let found = store.verify(VerifyRequest { deep: true, repair: false }).await.unwrap();
    assert!(found.is_clean(), "{:?}", found.findings);
}
