//! The command line of the benchmark suites: `cargo run -p redrive-bench --release -- --suite store`.

#![expect(clippy::print_stderr, reason = "it is a command line")]

use clap::Parser as _;
use redrive_bench::suites::{self, BenchArgs};
use std::process::ExitCode;

#[tokio::main]
async fn main() -> ExitCode {
    match suites::run(BenchArgs::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("redrive-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
