//! The library as its users see it: real stores, real tasks, real processes. One binary for all of it.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a failed step in a test is a failed test; clippy.toml exempts only the test functions"
)]

mod batch;
mod batch_git;
mod dead_letter_policy;
#[allow(dead_code, reason = "shared by the loops' tests")]
mod loops_kit;
mod process;
mod readme;
mod support;
mod takeover;
mod worker;
