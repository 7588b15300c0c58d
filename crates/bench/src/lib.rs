//! Measurements and stress tests that take longer than a unit test.
//!
//! - [`accuracy`]: how often the core is right on labelled data (`redrive-accuracy`).
//! - [`suites`]: how fast the library is on this machine (`redrive-bench`).
//! - [`torture`]: drivers that try to make the embedded store break a promise: they kill it, cut its power
//!   and fail its disk (`redrive-torture`). `docs/reliability.md` says what they prove and what they do not.
//! - [`training`]: the training of the classifier (`redrive-train`).

pub mod accuracy;
pub mod suites;
pub mod torture;
pub mod training;
