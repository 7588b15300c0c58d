//! Redrive, the dead letter office for background work: the library people add.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use redrive::core::message::{NewMessage, Payload};
//! use redrive::core::store::{LeaseRequest, Settle, Settlement, Work as _};
//!
//! let store = redrive::memory();
//! let payload = Payload { bytes: b"{\"n\":1}".to_vec(), content_type: "application/json".into() };
//! store.enqueue(vec![NewMessage::new(redrive::new_id(), "demo".parse()?, payload)]).await?;
//!
//! let wanted = LeaseRequest { queues: vec!["demo".parse()?], max: 1, lease_for: None, worker: "me".into() };
//! let delivery = store.lease(wanted).await?.remove(0);
//! store.settle(vec![Settlement { token: delivery.token, what: Settle::Ack }]).await?;
//! # Ok(())
//! # }
//! ```

mod directory;

pub use directory::{OpenOptions, memory, new_id, open, restore};
pub use redrive_core as core;
pub use redrive_core::priority_queue::{Dequeued, PriorityQueue};
pub use redrive_store as store;
