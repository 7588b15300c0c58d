//! Randomness for lease secrets and ids, from the operating system or, in tests, from a counter.

use redrive_core::ids::{IdSequence, MessageId, Secret};
use redrive_core::time::Time;

/// A source of random bytes.
pub trait Entropy: Send + Sync {
    /// Fills the buffer with random bytes.
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
            reason = "without randomness tokens could be guessed; stopping is better than going on"
        )]
        getrandom::fill(bytes).expect("the operating system gives randomness");
    }
}

/// The ids of this process.
static IDS: IdSequence = IdSequence::new();

/// A fresh message id, which sorts after all earlier ones of this process.
#[must_use]
pub fn new_id(entropy: &dyn Entropy, now: Time) -> MessageId {
    let mut random = [0; 10];
    entropy.fill(&mut random);
    IDS.next(u64::try_from(now.as_millis()).unwrap_or(0), random)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_one_process_sort_in_the_order_they_were_created() {
        let now = Time::from_millis(1_767_225_600_000);
        let ids: Vec<MessageId> = (0..20_000).map(|_| new_id(&System, now)).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
