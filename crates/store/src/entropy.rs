//! Where randomness comes from: the operating system, or in tests a counter. Used for lease secrets and ids.

use redrive_core::ids::{MessageId, Secret};
use redrive_core::time::Time;

/// A source of random bytes.
pub trait Entropy: Send + Sync {
    /// Fills the buffer.
    fn fill(&self, bytes: &mut [u8]);

    /// A new lease secret.
    fn secret(&self) -> Secret {
        let mut bytes = [0; 16];
        self.fill(&mut bytes);
        Secret::new(bytes)
    }
}

/// The operating system's randomness.
#[derive(Clone, Copy, Debug, Default)]
pub struct System;

impl Entropy for System {
    fn fill(&self, bytes: &mut [u8]) {
        #[expect(
            clippy::expect_used,
            reason = "without randomness tokens could be guessed; going on would be worse than stopping"
        )]
        getrandom::fill(bytes).expect("the operating system gives randomness");
    }
}

/// A fresh message id at this time.
#[must_use]
pub fn new_id(entropy: &dyn Entropy, now: Time) -> MessageId {
    let mut random = [0; 10];
    entropy.fill(&mut random);
    MessageId::new(u64::try_from(now.as_millis()).unwrap_or(0), random)
}
