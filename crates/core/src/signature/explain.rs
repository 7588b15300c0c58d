//! Explains in words why two failures are together or apart, and lists the values of the varying parts of a group. It
//! only reads; nothing is decided here.

use super::mask::words_and_sources;
use super::words::{Word, fold_list, words};
use super::{Signature, Tree};
use crate::limits;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// Whether two failures are in the same group, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Explanation {
    /// Whether they are in the same group.
    pub together: bool,
    /// The reasons in words.
    pub reasons: Vec<String>,
}

/// The values at one varying position of a template.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variable {
    /// The position of the word in the template, from 1.
    pub place: usize,
    /// The word in the template.
    pub shown: String,
    /// The number of different values, up to a limit.
    pub distinct: usize,
    /// The most frequent values and how often each was seen.
    pub top: Vec<(String, u64)>,
}

/// Explains why two failures are in the same group or in different ones.
#[must_use]
pub fn explain(a: &Signature, b: &Signature, tree: &Tree) -> Explanation {
    let group = |s: &Signature| tree.leaf_of(s.leaf).and_then(|leaf| tree.group_of(leaf)).unwrap_or(s.leaf);
    let together = group(a) == group(b);
    let mut reasons = Vec::new();
    if let (Some(rule), true) = (&a.rule, a.leaf == b.leaf) {
        reasons.push(format!("the rule {rule:?} gives both the fingerprint {:?}", a.template));
        return Explanation { together, reasons };
    }
    for (rule, template) in [(&a.rule, &a.template), (&b.rule, &b.template)] {
        if let Some(rule) = rule {
            reasons.push(format!("the rule {rule:?} gives one the fingerprint {template:?}"));
        }
    }
    let by_wording = a.rule.is_none() && b.rule.is_none();
    let mut comparable = by_wording;
    if by_wording {
        let or_none = |text: &Option<String>| text.clone().unwrap_or_else(|| "none".to_owned());
        for (what, x, y) in [
            ("error type", a.error_type.clone(), b.error_type.clone()),
            ("code", or_none(&a.code), or_none(&b.code)),
            ("top own function", or_none(&a.frame), or_none(&b.frame)),
        ] {
            if x != y {
                comparable = false;
                reasons.push(format!("the {what} differs: {x} and {y}"));
            } else if !x.is_empty() && x != "none" {
                reasons.push(format!("the {what} is the same: {x}"));
            }
        }
    }
    if comparable {
        comparable = compare(a, b, together, &mut reasons);
    }
    if together && !comparable && a.leaf != b.leaf {
        reasons
            .push("an operator merged their groups, or there was no room for a leaf of their own".to_owned());
    }
    Explanation { together, reasons }
}

/// Compares the templates. Returns whether they can be the reason for being in the same group.
fn compare(a: &Signature, b: &Signature, together: bool, reasons: &mut Vec<String>) -> bool {
    if a.template == b.template {
        reasons.push(format!("the text is the same once masked: {}", a.template));
        return true;
    }
    let (x, y) = (words(&a.template), words(&b.template));
    if x.len() != y.len() {
        reasons.push(format!("one text has {} words, the other {}", x.len(), y.len()));
        return false;
    }
    let differing = x.iter().zip(&y).enumerate().filter(|(_, (x, y))| x.plain != y.plain);
    let differing: Vec<String> =
        differing.map(|(at, (x, y))| format!("word {}: {} and {}", at + 1, x.shown, y.shown)).collect();
    if differing.is_empty() {
        reasons.push(
            "the texts differ only in the kind of their varying parts, or in the length of a list".into(),
        );
    } else if together {
        let list = differing.join("; ");
        reasons.push(format!("they differ only in words whose place varies in lines like these: {list}"));
    } else {
        let list = differing.join("; ");
        reasons.push(format!(
            "they differ in words, and too few others have been seen there to say that it varies: {list}"
        ));
    }
    true
}

/// The most frequent values at each varying position of a group's template, from a sample of its messages.
#[must_use]
pub fn variables<'a>(
    template: &str,
    messages: impl IntoIterator<Item = &'a str>,
    top: usize,
) -> Vec<Variable> {
    let shown = words(template);
    let varies = |word: &Word| word.shown.contains('<');
    let mut counts: Vec<HashMap<String, u64>> = shown.iter().map(|_| HashMap::new()).collect();
    for message in messages {
        let mut found = Vec::new();
        for (shown, source) in words_and_sources(message) {
            found.push(Word { source, ..Word::of(&shown) });
            fold_list(&mut found);
        }
        if found.len() != shown.len() {
            continue;
        }
        for ((shown, found), counts) in shown.iter().zip(found).zip(&mut counts) {
            if varies(shown)
                && (counts.len() < limits::VARIABLE_VALUES_MAX || counts.contains_key(&found.source))
            {
                *counts.entry(found.source).or_default() += 1;
            }
        }
    }
    let variable = |(at, (word, counts)): (usize, (Word, HashMap<String, u64>))| {
        let distinct = counts.len();
        let mut values: Vec<(String, u64)> = counts.into_iter().collect();
        values.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        values.truncate(top);
        Variable { place: at + 1, shown: word.shown, distinct, top: values }
    };
    shown.into_iter().zip(counts).enumerate().filter(|(_, (word, _))| varies(word)).map(variable).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::ErrorInfo;

    fn signature(error_type: &str, message: &str) -> Signature {
        let (error_type, message) = (error_type.to_owned(), message.to_owned());
        Signature::of(&ErrorInfo { error_type, message, ..ErrorInfo::default() })
    }

    #[test]
    fn explanations_name_what_differs() {
        let mut tree = Tree::new();
        let lines = ["alice", "bob", "carol"]
            .map(|name| signature("E", &format!("no mailbox for user {name} found")));
        for line in &lines {
            tree.learn(line);
        }
        let [a, b, _] = &lines;
        let why = explain(a, b, &tree);
        assert!(why.together && why.reasons.join("\n").contains("word 5: alice and bob"), "{why:?}");
        let other = signature("F", "no mailbox for user alice found");
        let why = explain(a, &other, &tree);
        assert!(!why.together && why.reasons.join("\n").contains("error type differs: E and F"), "{why:?}");
        tree.learn(&other);
        tree.merge(&[a.leaf, other.leaf]);
        let why = explain(a, &other, &tree);
        assert!(why.together && why.reasons.join("\n").contains("operator"), "{why:?}");
        let (x, y) = (signature("E", "took 5 ms"), signature("E", "took 6 s"));
        assert!(explain(&x, &y, &tree).reasons.join("\n").contains("took <num>"));
        let apart = explain(&signature("E", "link is up"), &signature("E", "link is down"), &tree);
        assert!(!apart.together && apart.reasons.join("\n").contains("word 3: up and down"), "{apart:?}");
    }

    #[test]
    fn the_most_frequent_values_of_each_position_are_listed() {
        let messages = [
            "user bob took 5 ms at 10.0.0.1",
            "user al took 5 ms at 10.0.0.2",
            "user bob took 7 s at 10.0.0.1",
        ];
        let found = variables("user <*> took <num> at <ip>", messages, 1);
        let places: Vec<(usize, usize, &str, u64)> =
            found.iter().map(|v| (v.place, v.distinct, v.top[0].0.as_str(), v.top[0].1)).collect();
        assert_eq!(places, [(2, 2, "bob", 2), (4, 2, "5 ms", 2), (6, 2, "10.0.0.1", 2)]);
        let sizes = variables("sent <num> bytes now", ["sent 5 bytes (1.2 KB) now", "sent 5 bytes now"], 3);
        assert_eq!(sizes.len(), 1, "{sizes:?}");
        assert!(variables("", ["anything"], 3).is_empty());
    }
}
