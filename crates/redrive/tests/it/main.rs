//! The library on real stores, one module per topic.

mod consumer;
mod dead_letter_policy;
mod eval;
mod group;
mod loops_kit;
mod maintenance;
mod replay;
mod split;
