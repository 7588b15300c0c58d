//! Pseudorandom numbers that are the same for the same seed. Every choice of a driver comes from here, so
//! that a failure can be reproduced.

/// A splitmix64 generator.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The generator of this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The generator of several numbers combined.
    #[must_use]
    pub fn of(parts: &[u64]) -> Self {
        let mut state = Self(0);
        for part in parts {
            state.0 ^= *part;
            state.0 = state.next();
        }
        state
    }

    /// The next 64 bits.
    #[expect(clippy::should_implement_trait, reason = "it never ends, so it is no iterator")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `bound`, or 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next().checked_rem(bound).unwrap_or(0)
    }

    /// An index into something of this length.
    pub fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap_or(0)
    }

    /// Returns `true` once in `n` times on average.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// One of the items, or `None` if there is none.
    pub fn pick<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        let at = self.index(all.len());
        all.get(at)
    }

    /// Shuffles the items.
    pub fn shuffle<T>(&mut self, all: &mut [T]) {
        for end in (1..all.len()).rev() {
            let other = self.index(end + 1);
            all.swap(end, other);
        }
    }

    /// Fills a slice with incompressible bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            for (slot, byte) in chunk.iter_mut().zip(word) {
                *slot = byte;
            }
        }
    }
}

/// The payload of the message with this number, in every driver: some are tiny, some compress well, some do
/// not, and some span many pages.
#[must_use]
pub fn payload(n: u64) -> Vec<u8> {
    let mut rng = Rng::of(&[n, 0x7061_796c]);
    match rng.below(16) {
        0..=8 => format!("{{\"n\":{n},\"of\":\"torture\"}}").into_bytes(),
        9 | 10 => format!("line {n}\n").repeat(200 + rng.index(400)).into_bytes(),
        11..=14 => {
            let mut bytes = vec![0; 1_100 + rng.index(3_000)];
            rng.fill(&mut bytes);
            bytes
        }
        _ => {
            let mut bytes = vec![0; 9_000 + rng.index(9_000)];
            rng.fill(&mut bytes);
            bytes
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_says_the_same() {
        let (mut a, mut b) = (Rng::of(&[1, 2]), Rng::of(&[1, 2]));
        assert_eq!([a.next(), a.next()], [b.next(), b.next()]);
        assert_ne!(Rng::of(&[1, 2]).next(), Rng::of(&[2, 1]).next());
        assert_eq!(payload(77), payload(77));
        assert!((0..100).any(|n| payload(n).len() > 1_024));
    }
}
