//! Built-in handlers for work that is not a Rust function, and what they are made of: running a child process
//! with care, and keeping what it printed within bounds. Nothing here settles a message.

pub mod output;
pub mod process;
