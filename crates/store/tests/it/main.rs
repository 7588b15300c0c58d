//! Integration tests of the store, in one binary: the laws and the random streams on every backend, and what only the
//! embedded store promises: durability, one holder, and refusing data that is not ours.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "tests fail by panicking and say what they were doing"
)]

mod audit_trail;
mod bounds;
mod counters;
mod damage;
mod embedded;
mod filters;
mod golden;
mod laws;
#[cfg(feature = "nodes")]
mod nodes;
#[cfg(feature = "nodes")]
mod nodes_attacked;
mod pages;
#[cfg(feature = "postgres")]
mod pg_nodes;
#[cfg(feature = "postgres")]
mod pg_proxy;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis_cuts;
#[cfg(feature = "redis")]
mod redis_faults;
mod socket;
mod streams;
mod takeover;
mod trust;
mod waits;
mod wall_clock;
