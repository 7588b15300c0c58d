//! Test support shared by every crate. Never a dependency of a published crate.
//!
//! - [`conformance`]: the laws that every store must keep, in one table.
//! - [`model`]: the reference model, a store simple enough to be checked by reading it.
//! - [`streams`]: random operations on two stores at once; the stores must never disagree.
//! - [`pg`], [`redis`]: a private PostgreSQL server, a private Redis server.
//! - [`clock`], [`ids`]: a clock that tests move by hand, and ids that are the same in every run.
//!
//! # Adding a backend
//!
//! A new backend is complete when every law holds on it and no stream can tell it from the model:
//!
//! ```no_run
//! use redrive_core::store::Store;
//! use redrive_testkit::clock::TestClock;
//! use redrive_testkit::conformance::{LAWS, run_law};
//! use redrive_testkit::model::Model; // use your store instead
//! use std::sync::Arc;
//!
//! async fn make() -> (Arc<dyn Store>, Arc<TestClock>) {
//!     let clock = TestClock::shared();
//!     (Arc::new(Model::new(clock.clone())), clock)
//! }
//!
//! #[test]
//! fn every_law_holds() {
//!     let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
//!     for law in LAWS {
//!         println!("{}", law.name);
//!         runtime.block_on(run_law(law, make));
//!     }
//! }
//! ```

#![expect(clippy::expect_used, clippy::indexing_slicing, clippy::panic, reason = "laws fail by panicking")]

pub mod clock;
pub mod conformance;
pub mod ids;
pub mod model;
pub mod observe;
pub mod pg;
pub mod redis;
pub mod streams;

#[cfg(test)]
mod tests {
    use crate::clock::TestClock;
    use crate::conformance::{LAWS, run_law};
    use crate::ids::message_id;
    use crate::model::Model;
    use crate::streams::{self, Op};
    use redrive_core::message::{NewMessage, Payload};
    use redrive_core::store::{Store, Work as _};
    use std::collections::BTreeSet;
    use std::sync::Arc;

    async fn model() -> (Arc<dyn Store>, Arc<TestClock>) {
        let clock = TestClock::shared();
        (Arc::new(Model::new(clock.clone())), clock)
    }

    #[test]
    fn every_law_holds_on_the_model() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let broken: Vec<&str> = LAWS
            .iter()
            .filter(|law| runtime.block_on(runtime.spawn(run_law(law, model))).is_err())
            .map(|law| law.name)
            .collect();
        assert_eq!(broken, [""; 0]);
    }

    fn pair(ops: &[Op], ahead: Option<NewMessage>) -> Result<(), String> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let clock = TestClock::shared();
        let (a, b) = (Model::new(clock.clone()), Model::new(clock.clone()));
        runtime.block_on(async {
            b.enqueue(ahead.into_iter().collect()).await.unwrap();
            streams::run_pair(&a, &b, &clock, ops).await
        })
    }

    #[test]
    fn the_model_agrees_with_itself() {
        streams::check(32, Some(1), |ops| pair(&ops, None));
    }

    #[test]
    fn a_pair_reports_what_differs() {
        let extra = || Some(NewMessage::new(message_id(1), "a".parse().unwrap(), Payload::default()));
        let difference = pair(&[Op::Advance(1)], extra()).unwrap_err();
        assert!(
            difference.contains("after operation 0") && difference.contains("messages differ"),
            "{difference}"
        );
        let difference = pair(&[Op::Lease(1, 1, None)], extra()).unwrap_err();
        assert!(
            difference.contains("the results differ") && difference.contains("NoSuchQueue"),
            "{difference}"
        );
    }

    #[test]
    #[should_panic(expected = "kv\nthe shortest stream:\n  0: Kv(0, None, false)\n")]
    fn failing_streams_shrink_to_the_relevant_operations() {
        let has_kv = |ops: &[Op]| ops.iter().any(|op| matches!(op, Op::Kv(..)));
        streams::check(64, Some(1), |ops| if has_kv(&ops) { Err("kv".into()) } else { Ok(()) });
    }

    #[test]
    fn law_names_are_unique() {
        let names: BTreeSet<&str> = LAWS.iter().map(|law| law.name).collect();
        assert_eq!(names.len(), LAWS.len());
    }
}
