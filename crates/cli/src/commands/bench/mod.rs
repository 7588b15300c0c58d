//! `bench`: measures this machine with the shipped binary. It never touches the data directory.

mod bare;
mod measure;
mod queue;
mod signature;
mod size;
mod store;
mod triage;
mod worker;

use crate::connect::App;
use crate::exit_code::Done;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Suite {
    /// The priority queue in memory, beside one bare ring: operations per second and latencies
    Queue,
    /// The embedded store: enqueue, lease, settle, dead letters
    Store,
    /// The embedded store with a million messages and as many dead letters: open, memory, rates
    Size,
    /// A million dead letters in 200 groups: ingest, groups, filtered pages, text search, redrive beside live work
    Triage,
    /// How fast failures are understood: signature, group, class, verdict
    Signature,
}

/// The flags of `bench`.
#[derive(Args, Clone, Debug)]
pub(crate) struct BenchArgs {
    /// What to measure
    #[arg(long, value_enum, default_value = "store")]
    pub suite: Suite,
    /// Where to put the throw-away store [default: the temporary directory]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// How often each measurement is repeated
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub runs: u32,
    /// Producers at once
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub producers: usize,
    /// Messages per run [default: as many as the suite needs]
    #[arg(long, value_name = "N")]
    pub messages: Option<u64>,
    /// Dead letters of the triage suite
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub letters: u64,
    /// Groups of the triage suite
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub groups: u64,
    /// Bytes of each payload
    #[arg(long, value_name = "BYTES", default_value_t = 256)]
    pub payload: usize,
    /// The seed of everything that looks random
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// Runs it.
pub(crate) async fn run(app: &App, args: BenchArgs) -> Done {
    match args.suite {
        Suite::Queue => queue::run(app, &args),
        Suite::Signature => signature::run(app, &args),
        Suite::Triage => triage::run(app, args).await,
        Suite::Store => store::run(app, args).await,
        Suite::Size => size::run(app, args).await,
    }
}
