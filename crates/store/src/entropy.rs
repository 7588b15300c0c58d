//! Randomness for lease secrets and ids, from the operating system or, in tests, from a counter.

use redrive_core::ids::{IdSequence, MessageId, Secret};
use redrive_core::time::Time;
use std::cell::RefCell;

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

/// The operating system's randomness. A request to the system costs more than an id does, so each thread asks for a few
/// kilobytes at a time.
#[derive(Clone, Copy, Debug, Default)]
pub struct System;

/// Bytes that a thread asks the operating system for at a time: about 250 secrets.
const POOL_BYTES: usize = 4 * 1024;

/// Random bytes of one thread that nobody has seen yet.
struct Pool {
    bytes: [u8; POOL_BYTES],
    /// How many bytes at the beginning were handed out. They are erased, so no secret can be read here afterwards.
    used: usize,
}

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool { bytes: [0; POOL_BYTES], used: POOL_BYTES }) };
}

impl Pool {
    /// Fills `wanted` with bytes that are handed out only once. Returns `false` if it wants more than the pool holds.
    fn take(&mut self, wanted: &mut [u8]) -> bool {
        if wanted.len() > POOL_BYTES {
            return false;
        }
        if wanted.len() > POOL_BYTES - self.used {
            ask_the_system(&mut self.bytes);
            self.used = 0;
        }
        let end = self.used + wanted.len();
        if let Some(fresh) = self.bytes.get_mut(self.used..end) {
            wanted.copy_from_slice(fresh);
            fresh.fill(0);
        }
        self.used = end;
        true
    }
}

fn ask_the_system(bytes: &mut [u8]) {
    #[expect(
        clippy::expect_used,
        reason = "without randomness tokens could be guessed; stopping is better than going on"
    )]
    getrandom::fill(bytes).expect("the operating system gives randomness");
}

impl Entropy for System {
    fn fill(&self, bytes: &mut [u8]) {
        // A thread that is ending may have no pool any more.
        if !POOL.try_with(|pool| pool.borrow_mut().take(bytes)).unwrap_or(false) {
            ask_the_system(bytes);
        }
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
    use std::collections::BTreeSet;

    #[test]
    fn random_bytes_are_handed_out_once_and_erased() {
        let mut seen = BTreeSet::new();
        let threads: Vec<_> = (0..4)
            .map(|_| {
                std::thread::spawn(|| {
                    let mut mine = Vec::new();
                    for length in [16, 10, POOL_BYTES, 16, POOL_BYTES + 1, 33, POOL_BYTES - 1, 16].repeat(20)
                    {
                        let mut bytes = vec![0; length];
                        System.fill(&mut bytes);
                        POOL.with_borrow(|pool| {
                            assert!(pool.bytes[..pool.used].iter().all(|byte| *byte == 0))
                        });
                        // Twenty equal bytes in a row do not happen by chance.
                        assert!(bytes.windows(20).all(|run| run.iter().any(|byte| *byte != run[0])));
                        mine.extend(bytes.chunks_exact(8).map(<[u8]>::to_vec));
                    }
                    mine
                })
            })
            .collect();
        for thread in threads {
            for piece in thread.join().unwrap() {
                assert!(seen.insert(piece), "eight bytes came twice");
            }
        }
    }

    #[test]
    fn ids_of_one_process_sort_in_the_order_they_were_created() {
        let now = Time::from_millis(1_767_225_600_000);
        let ids: Vec<MessageId> = (0..20_000).map(|_| new_id(&System, now)).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
