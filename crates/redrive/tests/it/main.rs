//! The library from outside, on real stores. One binary, one module per topic.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a failed step in a test is a failed test; clippy.toml exempts only the test functions"
)]

mod resilient;
