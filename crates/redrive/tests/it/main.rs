//! The library on real stores, one module per topic.

mod consumer;
mod dead_letter_policy;
mod eval;
mod loops_kit;
mod replay;
