//! The library as its users see it: real stores, real tasks, real processes. One binary for all of it.

mod support;
mod worker;
