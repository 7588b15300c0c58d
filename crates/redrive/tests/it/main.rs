//! The library as its users see it: real stores, real tasks, real processes. One binary for all of it.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a failed step in a test is a failed test; clippy.toml exempts only the test functions"
)]

mod alerts;
mod batch;
mod batch_git;
mod consumer;
mod dead_letter_policy;
mod eval;
mod executors;
mod group;
mod http;
mod loops_kit;
mod loops_story;
mod maintenance;
mod process;
mod push;
mod readme;
mod replay;
mod resilient;
mod split;
mod support;
mod takeover;
#[cfg(feature = "otel")]
mod traces;
mod worker;
