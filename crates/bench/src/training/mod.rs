//! Trains the classifier's model from `data/training.tsv`: multinomial logistic regression, one model for the
//! category and one for the route, by gradient descent in a fixed order. It uses only operations that round
//! the same way on every machine, so the same text gives the same weights everywhere, to the byte.
//!
//! Training must not read anything but the given text, and the text must not contain rows of the sets that
//! accuracy is measured on.

use redrive::core::classify::model::{CATEGORIES, Model, OUTPUTS, ROUTES, STEPS, features, scale, shares};
use redrive::core::failure::{Category, ErrorInfo, Route};
use std::collections::BTreeMap;

/// The number of passes over the text.
const EPOCHS: usize = 24;
/// The initial learning rate. Each weight's rate decreases with the steps it has made.
const RATE: f32 = 0.6;
/// The decay of a weight towards zero at each step.
const DECAY: f32 = 0.0004;

/// The training text in the repository.
pub const TEXT: &str = include_str!("../../data/training.tsv");

/// A labelled error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The error.
    pub error: ErrorInfo,
    /// Its category.
    pub category: Category,
    /// Its route.
    pub route: Route,
}

/// Parses the text: category, route, type, code and message, separated by tabs. `#` starts a comment.
///
/// # Errors
/// Names the line and the problem.
pub fn read(text: &str) -> Result<Vec<Row>, String> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let rows = lines.map(|(at, line)| row(line).map_err(|what| format!("line {}: {what}", at + 1)));
    rows.collect()
}

fn row(line: &str) -> Result<Row, String> {
    let mut columns = line.split('\t');
    let mut next = |name: &str| columns.next().ok_or_else(|| format!("no {name}"));
    let category: Category = next("category")?.parse()?;
    let route: Route = next("route")?.parse()?;
    if !CATEGORIES.contains(&category) || !ROUTES.contains(&route) {
        return Err(format!("{category} or {route} is never seen in one error"));
    }
    let error_type = next("error type")?.to_owned();
    let code = Some(next("code")?.to_owned()).filter(|code| !code.is_empty());
    let message = next("message")?.to_owned();
    if columns.next().is_some() {
        return Err("more than five columns".into());
    }
    Ok(Row { error: ErrorInfo { error_type, code, message, ..ErrorInfo::default() }, category, route })
}

/// A training example: its features, the expected outputs, and its weight.
struct Example {
    /// The indices of the features.
    features: Vec<usize>,
    /// The expected outputs.
    wanted: [f32; OUTPUTS],
    counts: f32,
}

/// A weight and the sum of the squares of its gradients.
#[derive(Clone, Copy, Default)]
struct Weight {
    value: f32,
    moved: f32,
}

/// Trains a model.
#[must_use]
pub fn train(rows: &[Row]) -> Model {
    let mut numbers: BTreeMap<u32, usize> = BTreeMap::new();
    let mut examples: Vec<Example> = rows.iter().flat_map(|row| examples(row, &mut numbers)).collect();
    let mut weights = vec![[Weight::default(); OUTPUTS]; numbers.len()];
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    for _ in 0..EPOCHS {
        shuffle(&mut examples, &mut random);
        for example in &examples {
            learn(&mut weights, example);
        }
    }
    let quantised = numbers.iter().filter_map(|(feature, number)| {
        let steps = weights.get(*number)?.map(|weight| quantise(weight.value));
        steps.iter().any(|step| *step != 0).then_some((*feature, steps))
    });
    Model::new(quantised.collect())
}

/// The row itself, and copies without its type or code, because real errors may lack them.
fn examples(row: &Row, numbers: &mut BTreeMap<u32, usize>) -> Vec<Example> {
    let whole = row.error.clone();
    let mut variants = vec![(whole.clone(), 1.0)];
    if !whole.message.is_empty() && !whole.error_type.is_empty() {
        variants.push((ErrorInfo { error_type: String::new(), code: None, ..whole.clone() }, 0.4));
        variants.push((ErrorInfo { error_type: String::new(), ..whole.clone() }, 0.2));
    }
    if whole.code.is_some() {
        variants.push((ErrorInfo { code: None, ..whole.clone() }, 0.3));
    }
    if whole.error_type.len() > 9 {
        variants.push((ErrorInfo { message: String::new(), ..whole }, 0.15));
    }
    let wanted = wanted(row);
    let example = |(error, counts): (ErrorInfo, f32)| {
        let number = |feature: u32| {
            let next = numbers.len();
            *numbers.entry(feature).or_insert(next)
        };
        Example { features: features(&error).into_iter().map(number).collect(), wanted, counts }
    };
    variants.into_iter().map(example).collect()
}

fn wanted(row: &Row) -> [f32; OUTPUTS] {
    let categories = CATEGORIES.iter().map(|category| *category == row.category);
    let mut right = categories.chain(ROUTES.iter().map(|route| *route == row.route));
    [(); OUTPUTS].map(|()| if right.next() == Some(true) { 1.0 } else { 0.0 })
}

/// One step of gradient descent.
fn learn(weights: &mut [[Weight; OUTPUTS]], example: &Example) {
    let count = u16::try_from(example.features.len()).unwrap_or(u16::MAX);
    let each = scale(count);
    let mut scores = [0.0_f32; OUTPUTS];
    for row in example.features.iter().filter_map(|number| weights.get(*number)) {
        for (score, weight) in scores.iter_mut().zip(row) {
            *score += weight.value * each;
        }
    }
    let mut of = scores.iter().copied();
    let categories = shares(CATEGORIES.map(|_| of.next().unwrap_or_default()));
    let routes = shares(ROUTES.map(|_| of.next().unwrap_or_default()));
    let mut off = [0.0_f32; OUTPUTS];
    let shares = categories.iter().chain(&routes);
    for ((off, share), wanted) in off.iter_mut().zip(shares).zip(example.wanted) {
        *off = (share - wanted) * example.counts * each;
    }
    for number in &example.features {
        let Some(row) = weights.get_mut(*number) else { continue };
        for (weight, off) in row.iter_mut().zip(off) {
            let slope = off + DECAY * weight.value;
            weight.moved += slope * slope;
            weight.value -= RATE * slope / (weight.moved.sqrt() + 1e-4);
        }
    }
}

/// Quantises a weight; stored weights are multiples of one eighth.
fn quantise(value: f32) -> i8 {
    let steps = (value * STEPS).round().clamp(-127.0, 127.0);
    (-127..=127_i8).find(|step| f32::from(*step) >= steps).unwrap_or(127)
}

/// Shuffles the examples with xorshift, in the same order on every machine.
fn shuffle(examples: &mut [Example], random: &mut u64) {
    for at in (1..examples.len()).rev() {
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        let other = *random % (at as u64 + 1);
        examples.swap(at, usize::try_from(other).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bad_line_is_named() {
        for (text, says) in [
            ("transient\tnetwork\tA\t\tm\nwrong\tnetwork\tA\t\tm", "line 2"),
            ("transient\tpoison\tA\t\tm", "never seen"),
            ("transient\tnetwork\tA", "no code"),
            ("transient\tnetwork\tA\t\tm\tx", "more than five"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(says), "{error}");
        }
    }

    #[test]
    fn the_text_reads_and_has_every_kind() {
        let rows = read(TEXT).unwrap();
        assert!(rows.len() >= 700, "{}", rows.len());
        for category in CATEGORIES {
            assert!(rows.iter().filter(|row| row.category == category).count() > 100);
        }
        for route in ROUTES {
            assert!(rows.iter().filter(|row| row.route == route).count() > 80);
        }
    }

    #[test]
    fn the_weights_of_the_program_are_what_the_text_gives() {
        let fresh = train(&read(TEXT).unwrap()).to_bytes();
        assert!(fresh == Model::built_in().to_bytes(), "run redrive-train and commit its weights");
    }

    #[test]
    fn steps_are_rounded_and_bounded() {
        assert_eq!([0.0, 0.06, 0.07, -0.2, 99.0, -99.0].map(quantise), [0, 0, 1, -2, 127, -127]);
    }
}
