//! Runs random streams, and says how the one that went wrong is made again.

use super::{Op, ops};
use proptest::test_runner::{Config, RngSeed, TestCaseError, TestError, TestRunner};
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};

/// A stream, one operation per line, for people.
struct Listed<'a>(&'a [Op]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().enumerate().try_for_each(|(n, op)| writeln!(f, "  {n}: {op:?}"))
    }
}

/// Runs this many streams, from a seed if one is given, and panics with the shortest that goes wrong and the seed
/// that makes it again.
pub fn check(cases: u32, seed: Option<u64>, run: impl Fn(Vec<Op>) -> Result<(), String>) {
    let seed = seed.unwrap_or_else(|| RandomState::new().hash_one(cases));
    let rng_seed = RngSeed::Fixed(seed);
    let config =
        Config { cases, rng_seed, failure_persistence: None, max_shrink_iters: 4_096, ..Config::default() };
    let mut runner = TestRunner::new(config);
    match runner.run(&ops(), |stream| run(stream).map_err(TestCaseError::fail)) {
        Ok(()) => {}
        Err(TestError::Abort(why)) => panic!("no streams could be made: {why}"),
        Err(TestError::Fail(why, stream)) => {
            panic!("{why}\nthe shortest stream:\n{}REDRIVE_SEED={seed} replays it", Listed(&stream))
        }
    }
}
