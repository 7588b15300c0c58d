//! Runs random streams, and reports how to reproduce one that fails.

use super::{Op, ops};
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner};
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};

/// A stream in readable form, one operation per line.
struct Listed<'a>(&'a [Op]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().enumerate().try_for_each(|(n, op)| writeln!(f, "  {n}: {op:?}"))
    }
}

/// Runs this many random streams, from `seed` if one is given. Panics with the shortest stream that fails and
/// the seed that reproduces it.
pub fn check(cases: u32, seed: Option<u64>, run: impl Fn(Vec<Op>) -> Result<(), String>) {
    let seed = seed.unwrap_or_else(|| RandomState::new().hash_one(cases));
    let rng_seed = RngSeed::Fixed(seed);
    let config =
        Config { cases, rng_seed, failure_persistence: None, max_shrink_iters: 4_096, ..Config::default() };
    let mut runner = TestRunner::new(config);
    match runner.run(&ops(), |stream| run(stream).map_err(TestCaseError::fail)) {
        Ok(()) => {}
        Err(TestError::Abort(why)) => panic!("no streams could be generated: {why}"),
        Err(TestError::Fail(why, stream)) => {
            panic!("{why}\nthe shortest stream:\n{}REDRIVE_SEED={seed} replays it", Listed(&stream))
        }
    }
}
