//! Tests the built binary as people and scripts use it, in separate processes on temporary directories. They assert
//! only on output and exit codes.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a failed step in a test is a failed test; clippy.toml exempts only the test functions"
)]

mod acts;
mod alerts;
mod bad_input;
mod browser;
mod bulk;
mod classify;
mod config;
mod demo;
mod edit;
mod evidence;
mod groups;
mod http_kill;
mod intelligence;
mod lists;
mod masking;
mod observability;
mod outputs;
mod redrives;
mod run;
mod serve;
mod signature;
mod story;
mod support;
mod terminal;
mod together;
mod top;
mod transfer;
mod triage;
mod work;
