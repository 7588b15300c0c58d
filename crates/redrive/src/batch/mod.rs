//! Batch runs.

mod error;
mod input;
mod path;
mod select;
mod spec;
mod template;
mod yaml;

use redrive_core::time::Span;
const LEASE: Span = Span::from_secs(15);
