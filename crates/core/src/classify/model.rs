//! The trained classifier at run time: one linear score per category and per route, summed over the features of an
//! error. The weights are part of the program; `redrive-train` makes them from the training text.
//!
//! It must not allocate per feature, depend on the machine's mathematics library, or fail: weights that cannot be read
//! count as none, and a test checks that the built-in ones can be read.

use super::tokens::Words;
use crate::failure::{Category, ErrorInfo, Route};
use std::sync::LazyLock;

/// The categories that an error alone can have; the other two need statistics.
pub const CATEGORIES: [Category; 3] = [Category::Transient, Category::Persistent, Category::Resource];
/// The routes that an error alone can have.
pub const ROUTES: [Route; 5] =
    [Route::Network, Route::Timeout, Route::Corruption, Route::Agent, Route::System];
/// The number of outputs of the model: the categories, then the routes.
pub const OUTPUTS: usize = CATEGORIES.len() + ROUTES.len();
/// The number of steps of a stored weight in one unit.
pub const STEPS: f32 = 8.0;

/// How a file of weights begins; the digit is the version of the features.
const MAGIC: &[u8; 8] = b"redrivw1";
/// The bytes of one feature: its hash and a weight for each output.
const ENTRY: usize = 4 + OUTPUTS;
/// The number of buckets in the index of features, by the upper bits of their hashes.
const BUCKETS: usize = 1 << 13;
const BUCKET_SHIFT: u32 = 32 - 13;

static BUILT_IN: LazyLock<Model> =
    LazyLock::new(|| Model::from_bytes(include_bytes!("weights.bin")).unwrap_or_default());

/// Weights by feature, sorted by the hash of the feature.
#[derive(Clone, Debug, Default)]
pub struct Model {
    entries: Vec<(u32, [i8; OUTPUTS])>,
    /// Where the features of each bucket begin, and where the last bucket ends.
    buckets: Vec<u32>,
}

/// The scores that the model gives to an error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scores {
    /// One score per entry of [`CATEGORIES`]; only differences count.
    pub categories: [f32; CATEGORIES.len()],
    /// One score per entry of [`ROUTES`].
    pub routes: [f32; ROUTES.len()],
    /// The share of the error's features that are in the training text, from 0 to 1.
    pub known: f32,
}

impl Model {
    /// The model that is part of the program.
    #[must_use]
    pub fn built_in() -> &'static Self {
        &BUILT_IN
    }

    /// A model with these weights. Features are sorted; of two with the same hash one is kept.
    #[must_use]
    pub fn new(mut entries: Vec<(u32, [i8; OUTPUTS])>) -> Self {
        entries.sort_by_key(|(feature, _)| *feature);
        entries.dedup_by_key(|(feature, _)| *feature);
        let below = |bucket: usize| {
            entries.partition_point(|(feature, _)| {
                usize::try_from(feature >> BUCKET_SHIFT).is_ok_and(|b| b < bucket)
            })
        };
        let buckets = (0..=BUCKETS).map(|bucket| u32::try_from(below(bucket)).unwrap_or(u32::MAX)).collect();
        Self { entries, buckets }
    }

    /// Reads stored weights; `None` if they are not of this version.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let body = bytes.strip_prefix(MAGIC)?;
        let entries = body.chunks_exact(ENTRY).filter_map(|entry| {
            let (feature, weights) = entry.split_first_chunk::<4>()?;
            let weights: [u8; OUTPUTS] = weights.try_into().ok()?;
            Some((u32::from_le_bytes(*feature), weights.map(u8::cast_signed)))
        });
        Some(Self::new(entries.collect()))
    }

    /// The weights in their stored form.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for (feature, weights) in &self.entries {
            bytes.extend(feature.to_le_bytes());
            bytes.extend(weights.map(i8::cast_unsigned));
        }
        bytes
    }

    /// The number of known features.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it knows no feature.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn weights(&self, feature: u32) -> Option<&[i8; OUTPUTS]> {
        let bucket = usize::try_from(feature >> BUCKET_SHIFT).ok()?;
        let from = usize::try_from(*self.buckets.get(bucket)?).ok()?;
        let to = usize::try_from(*self.buckets.get(bucket + 1)?).ok()?;
        self.entries.get(from..to)?.iter().find(|(f, _)| *f == feature).map(|(_, weights)| weights)
    }

    /// Scores the features of an error.
    #[must_use]
    pub fn score(&self, features: &[u32]) -> Scores {
        let mut sums = [0_i32; OUTPUTS];
        let mut known: u16 = 0;
        for weights in features.iter().filter_map(|feature| self.weights(*feature)) {
            known = known.saturating_add(1);
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum += i32::from(*weight);
            }
        }
        let scale = scale(known) / STEPS;
        let mut scores = sums.iter().map(|sum| f32::from(i16::try_from(*sum).unwrap_or(i16::MAX)) * scale);
        let mut next = || scores.next().unwrap_or_default();
        let categories = CATEGORIES.map(|_| next());
        let routes = ROUTES.map(|_| next());
        let all = u16::try_from(features.len().max(1)).unwrap_or(u16::MAX);
        Scores { categories, routes, known: f32::from(known) / f32::from(all) }
    }
}

/// The weight of each of this many features, so that a long text is not more certain than a short one.
#[must_use]
pub fn scale(features: u16) -> f32 {
    1.0 / f32::from(features.max(1)).sqrt()
}

/// The features of an error, for the model and its training.
#[must_use]
pub fn features(error: &ErrorInfo) -> Vec<u32> {
    Words::of(error).features()
}

/// Converts scores to shares that sum to 1.
#[must_use]
pub fn shares<const N: usize>(scores: [f32; N]) -> [f32; N] {
    let top = scores.iter().copied().fold(f32::MIN, f32::max);
    let powers = scores.map(|score| power(score - top));
    let sum: f32 = powers.iter().sum();
    powers.map(|power| power / sum)
}

/// e to the power of x, for x of at most 0, by (1 + x/1024)^1024: it uses only operations that every machine rounds
/// alike.
#[must_use]
pub fn power(x: f32) -> f32 {
    let mut y = 1.0 + x.clamp(-60.0, 0.0) / 1024.0;
    for _ in 0..10 {
        y *= y;
    }
    y
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_weights_are_readable_and_small() {
        let model = Model::built_in();
        assert!(model.len() > 1_000, "{}", model.len());
        assert!(model.to_bytes().len() < 200 * 1024);
        assert_eq!(model.to_bytes(), include_bytes!("weights.bin"));
    }

    #[test]
    fn invalid_weights_are_refused() {
        assert!(Model::from_bytes(b"").is_none());
        assert!(Model::from_bytes(b"redrivw0").is_none());
        assert!(Model::from_bytes(b"redrivw1").unwrap().is_empty());
        assert!(Model::default().score(&[1, 2]).known == 0.0);
    }

    #[test]
    fn every_feature_is_found() {
        let entries: Vec<(u32, [i8; OUTPUTS])> =
            (0..5_000_u32).map(|n| (n.wrapping_mul(0x9e37_79b9), [1; OUTPUTS])).collect();
        let model = Model::new(entries.clone());
        assert!(entries.iter().all(|(feature, _)| model.weights(*feature).is_some()));
        assert!(model.weights(12_345).is_none());
        assert_eq!(model.score(&[entries[0].0]).categories[0], 1.0 / STEPS);
    }

    #[test]
    fn shares_sum_to_one_and_keep_the_order() {
        let shares = shares([1.0, 3.0, -200.0]);
        assert!((shares.iter().sum::<f32>() - 1.0).abs() < 1e-5);
        assert!(shares[1] > shares[0] && shares[0] > shares[2]);
        assert!((power(-1.0) - 0.3678).abs() < 0.001);
    }
}
