//! Decides what kind of failure an error is. [`classify`] judges the error alone, in the worker: first the patterns of
//! the user, then the built-in table (exact matches before similar ones) and a small trained model, combined into one
//! confidence with reasons in words. [`with_history`] continues in the store, where the history is.
//!
//! Classification must not fail, look at more than a bounded part of a text, or call an error permanent unless a user's
//! pattern does. *Systematic* and *poison* never follow from one error: only [`with_history`] assigns them.

mod history;
pub mod model;
mod patterns;
mod table;
mod tokens;

pub use history::{History, OutcomeStats, with_history};
pub use patterns::{PatternSpec, Patterns};

use crate::failure::{Category, ErrorInfo, LEASE_EXPIRED, Recoverability, Route, Severity, TOO_LATE};
use crate::limits;
use crate::signature::head;
use model::{CATEGORIES, Model, ROUTES, Scores, shares};
use serde::{Deserialize, Serialize};
use table::Hit;
use tokens::Words;

/// The classification of an error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Class {
    /// The kind of failure.
    pub category: Category,
    /// Which part of the system failed.
    pub route: Route,
    /// How severe it is.
    pub severity: Severity,
    /// What it takes to make the message succeed.
    pub recoverability: Recoverability,
    /// The confidence, from 0 to 1.
    pub confidence: f32,
    /// The reasons in words: at most [`limits::REASONS_MAX`], each on one line.
    pub reasons: Vec<String>,
    /// Whether a pattern of the user says that trying again is useless. Nothing else ever sets this.
    #[serde(default)]
    pub permanent: bool,
}

impl Class {
    /// A classification with the usual severity and recoverability of the category.
    #[must_use]
    pub fn new(category: Category, route: Route, confidence: f32) -> Self {
        let (severity, recoverability) = usual_for(category);
        let confidence = if confidence.is_nan() { 0.0 } else { confidence.clamp(0.0, 1.0) };
        Self { category, route, severity, recoverability, confidence, reasons: Vec::new(), permanent: false }
    }

    /// Adds a reason, cut to the maximum length and on one line. Reasons beyond the maximum number are dropped.
    fn add_reason(&mut self, reason: &str) {
        if self.reasons.len() < limits::REASONS_MAX {
            let line = head(reason, limits::REASON_BYTES_MAX).replace(char::is_control, " ");
            self.reasons.push(head(&line, limits::REASON_BYTES_MAX).to_owned());
        }
    }
}

/// The severity and recoverability of a category, unless more is known.
const fn usual_for(category: Category) -> (Severity, Recoverability) {
    match category {
        Category::Transient => (Severity::Low, Recoverability::Automatic),
        Category::Persistent => (Severity::Medium, Recoverability::Manual),
        Category::Resource => (Severity::High, Recoverability::Automatic),
        Category::Poison => (Severity::High, Recoverability::Unlikely),
        Category::Systematic => (Severity::Critical, Recoverability::Manual),
    }
}

/// Which parts of the classifier to use, so that each can be measured alone.
#[derive(Clone, Copy, Debug)]
pub struct ClassifierParts<'a> {
    /// Whether to use the built-in table.
    pub table: bool,
    /// The trained model to use.
    pub model: &'a Model,
}

impl Default for ClassifierParts<'static> {
    fn default() -> Self {
        Self { table: true, model: Model::built_in() }
    }
}

/// Classifies an error by its type, code, message and cause.
#[must_use]
pub fn classify(error: &ErrorInfo, patterns: &Patterns) -> Class {
    classify_by(error, patterns, ClassifierParts::default())
}

/// Classifies an error with some parts of the classifier only.
#[must_use]
pub fn classify_by(error: &ErrorInfo, patterns: &Patterns, parts: ClassifierParts<'_>) -> Class {
    // The system itself reports these two; their text adds nothing.
    let by_system = match error.error_type.as_str() {
        LEASE_EXPIRED => Some((Route::Agent, "the worker did not come back in time")),
        TOO_LATE => Some((Route::Timeout, "its time ran out before it was done")),
        _ => None,
    };
    let mut class = match by_system {
        Some((route, reason)) => {
            let mut class = Class::new(Category::Transient, route, 0.9);
            class.add_reason(reason);
            class
        }
        None => combine(error, parts),
    };
    if let Some((pattern, name)) = patterns.find(error) {
        apply(&mut class, pattern, name);
    }
    class
}

/// Applies a pattern of the user, which overrides everything else.
fn apply(class: &mut Class, pattern: &PatternSpec, name: &str) {
    let other_reasons = std::mem::take(&mut class.reasons);
    if let Some(category) = pattern.category {
        (class.severity, class.recoverability) = usual_for(category);
        class.category = category;
        class.confidence = 1.0;
    }
    class.route = pattern.route.unwrap_or(class.route);
    if pattern.permanent {
        class.permanent = true;
        class.recoverability = Recoverability::Manual;
    }
    class.severity = pattern.severity.unwrap_or(class.severity);
    class.add_reason(&format!("pattern {name} of the configuration matches"));
    if pattern.category.is_none() || pattern.route.is_none() {
        other_reasons.iter().for_each(|reason| class.add_reason(reason));
    }
}

/// The largest difference between two scores of the model, so that it never outweighs a sure rule.
const MODEL_SCORE_MAX: f32 = 6.0;

/// Scales the scores before they become a confidence, so that a confidence of 0.9 is right nine times in ten.
const CONFIDENCE_SCALE: f32 = 0.5;

/// Combines the table and the model.
fn combine(error: &ErrorInfo, parts: ClassifierParts<'_>) -> Class {
    let words = Words::of(error);
    if words.list.is_empty() {
        let mut class = Class::new(Category::Persistent, Route::Agent, 0.2);
        class.add_reason("the error says nothing");
        return class;
    }
    let hits = if parts.table {
        let mut hits = table::hits(&words);
        hits.extend(table::code_hits(error, &words));
        hits
    } else {
        Vec::new()
    };
    let mut scores = parts.model.score(&words.features());
    if hits.is_empty() {
        lean_to_handler(&mut scores);
    }
    let (category, category_share) =
        best(Category::Persistent, scores.categories, CATEGORIES, &hits, |hit| hit.category);
    let (route, route_share) = best(Route::Agent, scores.routes, ROUTES, &hits, |hit| hit.route);
    // With few known words and no rule it is a guess, whatever the scores are.
    let certainty = if hits.is_empty() { 0.4 + 0.6 * scores.known } else { 1.0 };
    let confidence = (category_share.min(route_share) * certainty).min(0.99);
    let mut class = Class::new(category, route, confidence);
    explain(&mut class, &hits, &scores);
    refine(&mut class, &words);
    class
}

/// Favours an error of the handler's own code: the less of an error is known, the more likely it is one.
fn lean_to_handler(scores: &mut Scores) {
    let lean = 2.0 * (1.0 - scores.known);
    for (category, score) in CATEGORIES.iter().zip(&mut scores.categories) {
        *score += if *category == Category::Persistent { lean } else { 0.0 };
    }
    for (route, score) in ROUTES.iter().zip(&mut scores.routes) {
        *score += if *route == Route::Agent { lean } else { 0.0 };
    }
}

/// The best choice and its share, by the score of the model plus that of the surest rule for it.
fn best<T: Copy + PartialEq, const N: usize>(
    default: T,
    scores: [f32; N],
    choices: [T; N],
    hits: &[Hit],
    choice_of: impl Fn(&Hit) -> Option<T>,
) -> (T, f32) {
    let top = scores.iter().copied().fold(f32::MIN, f32::max);
    let mut sums = scores.map(|score| (score - top).max(-MODEL_SCORE_MAX));
    for (choice, sum) in choices.iter().zip(&mut sums) {
        let mut surest = 0.0_f32;
        let mut second = 0.0_f32;
        for hit in hits.iter().filter(|hit| choice_of(hit) == Some(*choice)) {
            if hit.weight > surest {
                second = surest;
                surest = hit.weight;
            } else if hit.weight > second {
                second = hit.weight;
            }
        }
        // A second rule counts a little: two rules that agree are better than one.
        *sum += surest + 0.15 * second;
    }
    let mut best = (default, 0.0);
    for (choice, share) in choices.iter().zip(shares(sums.map(|sum| sum * CONFIDENCE_SCALE))) {
        if share > best.1 {
            best = (*choice, share);
        }
    }
    best
}

/// Adds the reasons: the surest rules that agree, or that the model decided.
fn explain(class: &mut Class, hits: &[Hit], scores: &Scores) {
    let agrees = |hit: &&Hit| hit.category == Some(class.category) || hit.route == Some(class.route);
    let mut agreeing: Vec<&Hit> = hits.iter().filter(agrees).collect();
    agreeing.sort_by(|a, b| b.weight.total_cmp(&a.weight));
    let mut texts: Vec<String> = Vec::new();
    for hit in agreeing {
        let text = hit.reason.text();
        if texts.len() < 3 && !texts.contains(&text) {
            texts.push(text);
        }
    }
    texts.iter().for_each(|text| class.add_reason(text));
    let by_rule = |of: &dyn Fn(&Hit) -> bool| hits.iter().any(of);
    let category_known = by_rule(&|hit| hit.category == Some(class.category));
    let route_known = by_rule(&|hit| hit.route == Some(class.route));
    let words = format!("{:.0} % of its words and pairs of words are known", scores.known * 100.0);
    let (category, route) = (class.category, class.route);
    match (category_known, route_known) {
        (true, true) => {}
        (false, true) => class.add_reason(&format!("its words sound {category} ({words})")),
        (true, false) => class.add_reason(&format!("its words sound like {route} ({words})")),
        (false, false) => class.add_reason(&format!("its words sound {category}, like {route} ({words})")),
    }
}

/// Words for lost or damaged data, which somebody should look at soon.
const GRAVE: [&str; 6] = ["corrupt", "corrupted", "corruption", "checksum", "tampered", "crc32"];
/// Words for money: this capacity comes back only when somebody pays.
const MONEY: [&str; 6] = ["billing", "credit", "credits", "balance", "payment", "spending"];

/// Adjusts severity and recoverability where single words say more than the category.
fn refine(class: &mut Class, words: &Words) {
    let has_any = |list: &[&str]| words.list.iter().any(|word| list.contains(&words.text(word)));
    match class.category {
        Category::Persistent if class.route == Route::Corruption && has_any(&GRAVE) => {
            class.severity = Severity::High
        }
        Category::Resource if has_any(&MONEY) => class.recoverability = Recoverability::Manual,
        Category::Transient
        | Category::Persistent
        | Category::Resource
        | Category::Systematic
        | Category::Poison => {}
    }
}

#[cfg(test)]
mod tests;
