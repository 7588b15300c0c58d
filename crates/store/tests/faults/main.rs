//! Injected faults, and the laws that catch them. Each fault is active for the whole process, so these tests have a
//! binary of their own and run one after the other.
#![cfg(feature = "faults")]
#![expect(clippy::expect_used, reason = "tests fail by panicking")]

use redrive_core::store::Store;
use redrive_store::entropy::System;
use redrive_store::faults::{Fault, choose};
use redrive_store::memory::MemoryStore;
use redrive_testkit::clock::TestClock;
use redrive_testkit::conformance::{LAWS, run_law};
use std::sync::{Arc, Mutex, PoisonError};

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The laws that the memory store breaks with this fault.
fn broken_laws(fault: Option<Fault>) -> Vec<&'static str> {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    choose(fault);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let make = || async {
        let clock = TestClock::shared();
        let store: Arc<dyn Store> = Arc::new(MemoryStore::with(clock.clone(), Arc::new(System)));
        (store, clock)
    };
    let broken = LAWS.iter().filter(|law| runtime.block_on(runtime.spawn(run_law(law, make))).is_err());
    let broken = broken.map(|law| law.name).collect();
    choose(None);
    broken
}

#[test]
fn without_a_fault_no_law_is_broken() {
    assert_eq!(broken_laws(None), [""; 0]);
}

#[test]
fn a_token_that_is_not_checked_is_caught() {
    let broken = broken_laws(Some(Fault::TokenNotChecked));
    assert!(broken.contains(&"settle::i17_a_stale_token_changes_nothing"), "{broken:?}");
}

#[test]
fn attempts_that_are_reset_are_caught() {
    let broken = broken_laws(Some(Fault::CountReset));
    assert!(broken.iter().any(|law| law.contains("i26_executions_never_exceed_max_attempts")), "{broken:?}");
}

#[test]
fn an_index_that_is_not_updated_is_caught() {
    assert!(!broken_laws(Some(Fault::IndexNotUpdated)).is_empty());
}

#[test]
fn an_audit_row_outside_its_commit_is_caught() {
    assert!(broken_laws(Some(Fault::AuditOutsideCommit)).iter().any(|law| law.contains("i48")));
}

#[test]
fn a_dlq_that_drops_letters_is_caught() {
    let broken = broken_laws(Some(Fault::FullDlqDrops));
    assert!(
        broken.contains(&"death::i35_a_dlq_never_refuses_a_letter_and_only_a_policy_drops_messages"),
        "{broken:?}"
    );
}
