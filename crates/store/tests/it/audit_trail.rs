//! An audit trail that somebody has tampered with: what is found, what is reported, and what is repaired.

use redrive_core::dead_letter::Actor;
use redrive_core::error::CallError;
use redrive_core::policy::QueuePolicy;
use redrive_core::query::PageRequest;
use redrive_core::store::{Letters as _, Store, VerifyRequest};
use redrive_store::sqlite::{Options, SqliteStore};
use std::path::Path;
use tempfile::TempDir;

fn open(at: &Path) -> SqliteStore {
    SqliteStore::open(at, Options::default()).unwrap()
}

fn tamper(at: &Path, sql: &str) {
    let database = rusqlite::Connection::open(at.join("redrive.db")).unwrap();
    database.execute_batch(sql).unwrap();
}

async fn set(store: &dyn Store, attempts: u32) -> Result<(), CallError> {
    let policy = QueuePolicy { max_attempts: attempts, ..QueuePolicy::default() };
    store.configure("q".parse().unwrap(), policy, Actor::new("ann", "test")).await.map(drop)
}

/// A store with four audited actions.
async fn four_acts(at: &Path) {
    let store = open(at);
    for attempts in 1..=4 {
        set(&store, attempts).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn i48_a_head_that_was_moved_is_named_by_the_next_act_and_mended_by_repair() {
    for (sql, finding, was) in [
        ("UPDATE head SET audit_n = audit_n - 1", "goes on to row 4", 3),
        (
            "UPDATE head SET audit_n = 3, audit_seal = (SELECT seal FROM audit WHERE n = 3)",
            "goes on to row 4",
            3,
        ),
        ("DELETE FROM audit WHERE n = 4", "missing at the end", 4),
    ] {
        let home = TempDir::new().unwrap();
        four_acts(home.path()).await;
        tamper(home.path(), sql);
        let store = open(home.path());
        let broken = store.audit_verify(None).await.unwrap().broken.unwrap();
        assert!(broken.contains(finding) && broken.contains("redrive doctor --repair"), "{broken}");
        let refused = set(&store, 9).await.unwrap_err().to_string();
        assert!(refused.contains(finding) && refused.contains("redrive doctor --repair"), "{refused}");
        drop(store);
        let store = open(home.path());
        let repaired = store.verify(VerifyRequest { deep: false, repair: true }).await.unwrap();
        assert_eq!(repaired.repaired, 1, "{:?}", repaired.findings);
        assert_eq!(store.audit_verify(None).await.unwrap().broken, None);
        set(&store, 9).await.unwrap();
        let rows = store.audit(PageRequest::first(9)).await.unwrap().items;
        assert_eq!((rows[0].entry.act.as_str(), rows[1].entry.act.as_str()), ("configure", "repair"));
        let detail = rows[1].entry.detail.clone().unwrap();
        assert!(detail.contains(&format!("said row {was}")), "{detail}");
        assert_eq!(store.audit_verify(None).await.unwrap().broken, None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn i48_an_end_that_was_cut_together_with_the_head_is_found_by_a_noted_head() {
    let home = TempDir::new().unwrap();
    four_acts(home.path()).await;
    let noted = open(home.path()).audit_verify(None).await.unwrap().head;
    tamper(
        home.path(),
        "DELETE FROM audit WHERE n = 4;
         UPDATE head SET audit_n = 3, audit_seal = (SELECT seal FROM audit WHERE n = 3)",
    );
    let store = open(home.path());
    assert_eq!(store.audit_verify(None).await.unwrap().broken, None, "nobody can tell without a noted head");
    let broken = store.audit_verify(Some(noted)).await.unwrap();
    assert!(broken.broken.is_some_and(|why| why.contains("not in the chain")) && !broken.mendable);
}
