//! What the tests of every crate share. Never a dependency of a published crate.
//!
//! - [`conformance`]: the laws every store keeps, in one table.
//! - [`model`]: the reference model, a store short enough to be believed.
//! - [`streams`]: random operations on two stores at once, which must never disagree.
//! - [`clock`], [`ids`]: time that moves by hand, identities that are the same in every run.
//!
//! # A new backend
//!
//! It is done when every law holds on it and no stream tells it from the model:
//!
//! ```no_run
//! use redrive_core::store::Store;
//! use redrive_testkit::clock::TestClock;
//! use redrive_testkit::conformance::{LAWS, run_law};
//! use redrive_testkit::model::Model; // your store instead
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
    fn a_pair_tells_what_differs() {
        let more = || Some(NewMessage::new(message_id(1), "a".parse().unwrap(), Payload::default()));
        let shown = pair(&[Op::Advance(1)], more()).unwrap_err();
        assert!(shown.contains("after operation 0") && shown.contains("messages differ"), "{shown}");
        let told = pair(&[Op::Lease(1, 1, None)], more()).unwrap_err();
        assert!(told.contains("the answers differ") && told.contains("NoSuchQueue"), "{told}");
    }

    #[test]
    #[should_panic(expected = "kv\nthe shortest stream:\n  0: Kv(0, None, false)\n")]
    fn streams_shrink_to_what_matters() {
        let has_kv = |ops: &[Op]| ops.iter().any(|op| matches!(op, Op::Kv(..)));
        streams::check(64, Some(1), |ops| if has_kv(&ops) { Err("kv".into()) } else { Ok(()) });
    }

    #[test]
    fn every_law_has_a_name_of_its_own() {
        let names: BTreeSet<&str> = LAWS.iter().map(|law| law.name).collect();
        assert_eq!(names.len(), LAWS.len());
    }
}
