//! The library on real stores, one module per topic.

mod dead_letter_policy;
mod loops_kit;
