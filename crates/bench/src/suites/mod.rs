//! The suites of `redrive-bench`: how fast this machine is with the library that the binary ships. Every
//! suite works in a temporary directory and never touches existing data.

mod bare;
mod http;
mod measure;
mod pages;
mod printer;
mod queue;
mod signature;
mod size;
mod socket;
mod store;
mod triage;
mod waits;
mod worker;

use clap::{Parser, ValueEnum};
use printer::Printer;
use std::io;
use std::path::{Path, PathBuf};

/// The suites.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Suite {
    /// The priority queue in memory, beside one bare ring: operations per second and latencies
    Queue,
    /// The embedded store: enqueue, lease, settle, dead letters
    Store,
    /// The embedded store beside the same store held by another process: what the socket between them costs
    Socket,
    /// The embedded store with a million messages and as many dead letters: open, memory, rates
    Size,
    /// A million dead letters in 200 groups: ingest, groups, filtered pages, text search, redrive beside live
    /// work
    Triage,
    /// Every page of the dashboard with a million dead letters in 200 groups: time, bytes, records read
    Pages,
    /// The HTTP API over real connections, beside the library in the same run
    Http,
    /// How fast failures are analysed: signature, group, class, verdict
    Signature,
    /// Enqueues beside a thousand workers that wait, and beside two hundred clients of the live events
    Waits,
}

/// Measures this machine with the library that `redrive` is built from. It never touches a data directory.
#[derive(Clone, Debug, Parser)]
#[command(name = "redrive-bench")]
pub struct BenchArgs {
    /// The suite to run
    #[arg(long, value_enum, default_value = "store")]
    pub suite: Suite,
    /// Where to create the temporary store [default: the temporary directory]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// The database in which the suite `store` creates its stores, each in a schema of its own, instead of directories
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,
    /// How often each measurement is repeated
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub runs: u32,
    /// Concurrent producers
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub producers: usize,
    /// Messages per run [default: as many as the suite needs]
    #[arg(long, value_name = "N")]
    pub messages: Option<u64>,
    /// Dead letters of the suites triage and pages
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub letters: u64,
    /// Groups of the suites triage and pages
    #[arg(long, value_name = "N", default_value_t = 200)]
    pub groups: u64,
    /// Bytes of each payload
    #[arg(long, value_name = "BYTES", default_value_t = 256)]
    pub payload: usize,
    /// The seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Hold this data directory and serve its socket; the socket suite starts this program once more with it
    #[arg(long, value_name = "DIR", hide = true)]
    pub hold: Option<PathBuf>,
    /// Print one JSON document instead of a table
    #[arg(long)]
    pub json: bool,
}

/// Why a suite failed.
pub type BenchError = Box<dyn std::error::Error + Send + Sync>;

/// The result of a suite.
pub(crate) type BenchResult<T> = Result<T, BenchError>;

/// Runs the requested suite and prints its figures.
///
/// # Errors
/// If a step of the suite fails. Figures measured until then are not printed.
pub async fn run(args: BenchArgs) -> Result<(), BenchError> {
    let printer = Printer { json: args.json };
    if let Some(directory) = &args.hold {
        return socket::hold(directory, &printer).await;
    }
    match args.suite {
        Suite::Queue => queue::run(&printer, &args),
        Suite::Signature => signature::run(&printer, &args),
        Suite::Triage => triage::run(&printer, args).await,
        Suite::Pages => pages::run(&printer, args).await,
        Suite::Http => http::run(&printer, args).await,
        Suite::Store => store::run(&printer, args).await,
        Suite::Socket => socket::run(&printer, args).await,
        Suite::Size => size::run(&printer, args).await,
        Suite::Waits => waits::run(&printer, args).await,
    }
}

/// The directory of this run, inside the requested one.
fn temp_directory(args: &BenchArgs) -> PathBuf {
    let parent = args.dir.clone().unwrap_or_else(std::env::temp_dir);
    parent.join(format!("redrive-bench-{}", std::process::id()))
}

/// Adds the path to an error.
fn failed_at(what: &str, path: &Path, error: &io::Error) -> BenchError {
    format!("cannot {what} {}: {error}", path.display()).into()
}
