//! Built-in handlers for work that is not a Rust function: [`CommandExecutor`] and [`HttpExecutor`]. Their building
//! blocks are public too: [`process`] runs a child process, and [`output`] captures its output within bounds.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use redrive::Worker;
//! use redrive::core::target::CommandTarget;
//! use redrive::executor::CommandExecutor;
//!
//! let store = redrive::memory();
//! redrive::send(&store, "words", "count", &"to be or not to be").await?;
//! let count = CommandExecutor::new(CommandTarget::argv(["wc", "-w"]))?;
//! let worker = Worker::builder(store).queue("words").handler("count", count).until_empty().build()?;
//! assert_eq!(worker.run().await?.done, 1);
//! # Ok(())
//! # }
//! ```

mod command;
mod http;
mod letter;
pub mod output;
pub mod process;

pub use command::{CommandExecutor, EXIT_DEAD_LETTER, EXIT_LATER};
pub use http::HttpExecutor;
pub(crate) use http::client_config;
pub use letter::LetterCommand;

use crate::handler::Handler;
use redrive_core::error::Refusal;
use redrive_core::target::Target;
use std::sync::Arc;

/// Creates the executor for a queue's target.
///
/// # Errors
/// Returns [`Refusal::Invalid`] with the setting that is invalid.
pub fn for_target(target: Target) -> Result<Arc<dyn Handler>, Refusal> {
    Ok(match target {
        Target::Http(http) => Arc::new(HttpExecutor::new(http)?),
        Target::Command(command) => Arc::new(CommandExecutor::new(command)?),
    })
}
