//! Built-in handlers for work that is not a Rust function: [`CommandExecutor`] and [`HttpExecutor`], and what
//! they are made of: running a child process with care, and keeping what it printed within bounds. Nothing here
//! settles a message.

mod command;
mod http;
pub mod output;
pub mod process;

pub use command::{CommandExecutor, EXIT_DEAD_LETTER, EXIT_LATER};
pub use http::HttpExecutor;

use crate::handler::Handler;
use redrive_core::error::Refusal;
use redrive_core::target::Target;
use std::sync::Arc;

/// The executor for a queue's target.
///
/// # Errors
/// [`Refusal::Invalid`] for the setting that cannot be meant.
pub fn for_target(target: Target) -> Result<Arc<dyn Handler>, Refusal> {
    Ok(match target {
        Target::Http(http) => Arc::new(HttpExecutor::new(http)?),
        Target::Command(command) => Arc::new(CommandExecutor::new(command)?),
    })
}
