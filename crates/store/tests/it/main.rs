//! The store's tests against the real thing, in one binary: the laws and the streams on every backend, and
//! what only the embedded store promises: durability, one holder, refusal of what is not ours.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "tests fail by panicking and say what they were at"
)]

mod bounds;
mod counters;
mod damage;
mod embedded;
mod filters;
mod frames;
mod golden;
mod heir;
mod laws;
mod pages;
mod streams;
mod trail;
mod trust;
mod wall;
