//! What the tests of every crate share. Never a dependency of a published crate.
//!
//! - [`conformance`]: the laws every store keeps, in one table.
//! - [`model`]: the reference model, a store short enough to be believed.

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

#[cfg(test)]
mod tests {
    use crate::clock::TestClock;
    use crate::conformance::{LAWS, run_law};
    use crate::model::Model;
    use redrive_core::store::Store;
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

    #[test]
    fn every_law_has_a_name_of_its_own() {
        let names: BTreeSet<&str> = LAWS.iter().map(|law| law.name).collect();
        assert_eq!(names.len(), LAWS.len());
    }
}
