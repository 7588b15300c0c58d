//! What kind of failure an error is. [`classify`] judges the error alone, in the worker: patterns of the user,
//! then the built-in table, exact before similar, and a small trained model, combined into one confidence with
//! reasons for people. [`with_history`] goes on where the history is, in the store.
//!
//! It must not fail, look at more than a bounded part of a text, or call an error permanent unless a user's
//! pattern does. *Systematic* and *poison* never come from one error: only [`with_history`] says them.

mod history;
pub mod model;
mod patterns;
mod table;
mod tokens;

pub use history::{History, Lessons, with_history};
pub use patterns::{PatternSpec, Patterns};

use crate::failure::{Category, ErrorInfo, LEASE_EXPIRED, Recoverability, Route, Severity, TOO_LATE};
use crate::limits;
use crate::signature::head;
use model::{CATEGORIES, Model, ROUTES, Scores, shares};
use serde::{Deserialize, Serialize};
use table::Hit;
use tokens::Words;

/// What is thought of an error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Class {
    /// What kind of failure.
    pub category: Category,
    /// Which part of the world failed.
    pub route: Route,
    /// How bad it is.
    pub severity: Severity,
    /// What it takes to make the message succeed.
    pub recoverability: Recoverability,
    /// How sure that is, 0 to 1.
    pub confidence: f32,
    /// Why, for people: at most [`limits::REASONS_MAX`], each on one line.
    pub reasons: Vec<String>,
    /// A pattern of the user says that trying again is useless. Nothing else ever sets it.
    #[serde(default)]
    pub permanent: bool,
}

impl Class {
    /// How bad it is and what it takes follow from the category.
    #[must_use]
    pub fn new(category: Category, route: Route, confidence: f32) -> Self {
        let (severity, recoverability) = usual(category);
        let confidence = if confidence.is_nan() { 0.0 } else { confidence.clamp(0.0, 1.0) };
        Self { category, route, severity, recoverability, confidence, reasons: Vec::new(), permanent: false }
    }

    /// Adds a reason, on one line and bounded; beyond the bound it is left out.
    fn because(&mut self, reason: &str) {
        if self.reasons.len() < limits::REASONS_MAX {
            let line = head(reason, limits::REASON_BYTES_MAX).replace(char::is_control, " ");
            self.reasons.push(head(&line, limits::REASON_BYTES_MAX).to_owned());
        }
    }
}

/// How bad a category is, and what it takes, unless more is known.
const fn usual(category: Category) -> (Severity, Recoverability) {
    match category {
        Category::Transient => (Severity::Low, Recoverability::Automatic),
        Category::Persistent => (Severity::Medium, Recoverability::Manual),
        Category::Resource => (Severity::High, Recoverability::Automatic),
        Category::Poison => (Severity::High, Recoverability::Unlikely),
        Category::Systematic => (Severity::Critical, Recoverability::Manual),
    }
}

/// Which parts of the classifier take part, for measuring each.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// Whether the built-in table does.
    pub table: bool,
    /// The trained model.
    pub model: &'a Model,
}

impl Default for Parts<'static> {
    fn default() -> Self {
        Self { table: true, model: Model::built_in() }
    }
}

/// Judges an error by its type, code, message and cause.
#[must_use]
pub fn classify(error: &ErrorInfo, patterns: &Patterns) -> Class {
    classify_by(error, patterns, Parts::default())
}

/// The same by chosen parts only.
#[must_use]
pub fn classify_by(error: &ErrorInfo, patterns: &Patterns, parts: Parts<'_>) -> Class {
    // These two the system reports itself; their text is for people and says nothing more.
    let own = match error.error_type.as_str() {
        LEASE_EXPIRED => Some((Route::Agent, "the worker did not come back in time")),
        TOO_LATE => Some((Route::Timeout, "its time ran out before it was done")),
        _ => None,
    };
    let mut class = match own {
        Some((route, why)) => {
            let mut class = Class::new(Category::Transient, route, 0.9);
            class.because(why);
            class
        }
        None => judged(error, parts),
    };
    if let Some((pattern, name)) = patterns.find(error) {
        apply(&mut class, pattern, name);
    }
    class
}

/// What a pattern of the user says goes before everything that was found.
fn apply(class: &mut Class, pattern: &PatternSpec, name: &str) {
    let found = std::mem::take(&mut class.reasons);
    if let Some(category) = pattern.category {
        (class.severity, class.recoverability) = usual(category);
        class.category = category;
        class.confidence = 1.0;
    }
    class.route = pattern.route.unwrap_or(class.route);
    if pattern.permanent {
        class.permanent = true;
        class.recoverability = Recoverability::Manual;
    }
    class.severity = pattern.severity.unwrap_or(class.severity);
    class.because(&format!("pattern {name} of the configuration matches"));
    if pattern.category.is_none() || pattern.route.is_none() {
        found.iter().for_each(|reason| class.because(reason));
    }
}

/// Weight of the model beside the table; its scores are cut there, so that it never outweighs what is sure.
const MODEL_SCORE_MAX: f32 = 6.0;

/// How much the scores are drawn together before they become a confidence, so that 0.9 is right nine times in ten.
const SOFTER: f32 = 0.5;

fn judged(error: &ErrorInfo, parts: Parts<'_>) -> Class {
    let words = Words::of(error);
    if words.list.is_empty() {
        let mut class = Class::new(Category::Persistent, Route::Agent, 0.2);
        class.because("the error says nothing");
        return class;
    }
    let hits = if parts.table {
        let mut hits = table::hits(&words);
        hits.extend(table::coded(error, &words));
        hits
    } else {
        Vec::new()
    };
    let mut scores = parts.model.score(&words.features());
    if hits.is_empty() {
        lean_to_handler(&mut scores);
    }
    let (at_category, category_share) =
        best(Category::Persistent, scores.categories, CATEGORIES, &hits, |hit| hit.category);
    let (at_route, route_share) = best(Route::Agent, scores.routes, ROUTES, &hits, |hit| hit.route);
    // Few known words and no rule: whatever the scores say, it is a guess.
    let ground = if hits.is_empty() { 0.4 + 0.6 * scores.known } else { 1.0 };
    let confidence = (category_share.min(route_share) * ground).min(0.99);
    let mut class = Class::new(at_category, at_route, confidence);
    explain(&mut class, &hits, &scores);
    refine(&mut class, &words);
    class
}

/// The less of an error is known, the likelier it is one that only the handler's own code can have.
fn lean_to_handler(scores: &mut Scores) {
    let lean = 2.0 * (1.0 - scores.known);
    for (category, score) in CATEGORIES.iter().zip(&mut scores.categories) {
        *score += if *category == Category::Persistent { lean } else { 0.0 };
    }
    for (route, score) in ROUTES.iter().zip(&mut scores.routes) {
        *score += if *route == Route::Agent { lean } else { 0.0 };
    }
}

/// The best of the choices: the model's score plus that of the surest rule for it; and its share.
fn best<T: Copy + PartialEq, const N: usize>(
    usual: T,
    scores: [f32; N],
    choices: [T; N],
    hits: &[Hit],
    of: impl Fn(&Hit) -> Option<T>,
) -> (T, f32) {
    let top = scores.iter().copied().fold(f32::MIN, f32::max);
    let mut sums = scores.map(|score| (score - top).max(-MODEL_SCORE_MAX));
    for (choice, sum) in choices.iter().zip(&mut sums) {
        let mut surest = 0.0_f32;
        let mut second = 0.0_f32;
        for hit in hits.iter().filter(|hit| of(hit) == Some(*choice)) {
            if hit.weight > surest {
                second = surest;
                surest = hit.weight;
            } else if hit.weight > second {
                second = hit.weight;
            }
        }
        // A second witness counts a little: two rules that agree are better than one.
        *sum += surest + 0.15 * second;
    }
    let mut best = (usual, 0.0);
    for (choice, share) in choices.iter().zip(shares(sums.map(|sum| sum * SOFTER))) {
        if share > best.1 {
            best = (*choice, share);
        }
    }
    best
}

/// Says why: the surest rules that agree, or that the model decided.
fn explain(class: &mut Class, hits: &[Hit], scores: &Scores) {
    let agrees = |hit: &&Hit| hit.category == Some(class.category) || hit.route == Some(class.route);
    let mut told: Vec<&Hit> = hits.iter().filter(agrees).collect();
    told.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    let mut texts: Vec<String> = Vec::new();
    for hit in told {
        let text = hit.reason.text();
        if texts.len() < 3 && !texts.contains(&text) {
            texts.push(text);
        }
    }
    texts.iter().for_each(|text| class.because(text));
    let by_rule = |of: &dyn Fn(&Hit) -> bool| hits.iter().any(of);
    let category_known = by_rule(&|hit| hit.category == Some(class.category));
    let route_known = by_rule(&|hit| hit.route == Some(class.route));
    let words = format!("{:.0} % of its words and pairs of words are known", scores.known * 100.0);
    let (category, route) = (class.category, class.route);
    match (category_known, route_known) {
        (true, true) => {}
        (false, true) => class.because(&format!("its words sound {category} ({words})")),
        (true, false) => class.because(&format!("its words sound like {route} ({words})")),
        (false, false) => class.because(&format!("its words sound {category}, like {route} ({words})")),
    }
}

/// Words of lost or damaged data, which somebody should look at soon.
const GRAVE: [&str; 6] = ["corrupt", "corrupted", "corruption", "checksum", "tampered", "crc32"];
/// Words of money: such capacity comes back only when somebody pays.
const MONEY: [&str; 6] = ["billing", "credit", "credits", "balance", "payment", "spending"];

/// How bad it is and what it takes, where single words tell more than the category.
fn refine(class: &mut Class, words: &Words) {
    let says = |list: &[&str]| words.list.iter().any(|word| list.contains(&words.text(word)));
    match class.category {
        Category::Persistent if class.route == Route::Corruption && says(&GRAVE) => {
            class.severity = Severity::High
        }
        Category::Resource if says(&MONEY) => class.recoverability = Recoverability::Manual,
        Category::Transient
        | Category::Persistent
        | Category::Resource
        | Category::Systematic
        | Category::Poison => {}
    }
}

#[cfg(test)]
mod tests;
