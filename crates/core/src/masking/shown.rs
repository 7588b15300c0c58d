//! The masked form of everything that can be shown. The command line and the server use this one list, so that both
//! hide the same.

use super::Rules;
use crate::audit::{AuditEntry, AuditRow};
use crate::dead_letter::{DeadLetter, TimelineEntry};
use crate::group::{Group, GroupDetail, GroupHistoryEntry, GroupSample, Marker, SimilarGroup};
use crate::message::{Message, Payload};
use crate::operation::{Member, Operation, Preview};
use crate::query::Page;
use crate::revision::{Content, Revision};
use crate::signature::Variable;
use crate::store::Queue;

/// Something that can be shown once its secrets are masked.
pub trait MaskedView {
    /// The same without secrets.
    #[must_use]
    fn masked(&self, rules: &Rules) -> Self;
}

impl MaskedView for Message {
    fn masked(&self, rules: &Rules) -> Self {
        rules.message(self)
    }
}

impl MaskedView for DeadLetter {
    fn masked(&self, rules: &Rules) -> Self {
        rules.letter(self)
    }
}

impl MaskedView for TimelineEntry {
    fn masked(&self, rules: &Rules) -> Self {
        rules.timeline_entry(self)
    }
}

impl MaskedView for Group {
    fn masked(&self, rules: &Rules) -> Self {
        rules.group(self)
    }
}

impl MaskedView for Operation {
    fn masked(&self, rules: &Rules) -> Self {
        rules.operation(self)
    }
}

impl MaskedView for GroupDetail {
    fn masked(&self, rules: &Rules) -> Self {
        let text = |text: &String| rules.mask_text(text).into_owned();
        let counted = |(value, n): &(String, u64)| (text(value), *n);
        let variable = |v: &Variable| Variable { top: v.top.iter().map(counted).collect(), ..v.clone() };
        let sample = |s: &GroupSample| GroupSample { message: text(&s.message), ..s.clone() };
        let entry =
            |e: &GroupHistoryEntry| GroupHistoryEntry { text: e.text.as_ref().map(text), ..e.clone() };
        let similar = |s: &SimilarGroup| SimilarGroup { template: text(&s.template), ..s.clone() };
        Self {
            group: rules.group(&self.group),
            history: self.history.iter().map(entry).collect(),
            variables: self.variables.iter().map(variable).collect(),
            samples: self.samples.iter().map(sample).collect(),
            similar: self.similar.iter().map(similar).collect(),
            operations: self.operations.iter().map(|operation| rules.operation(operation)).collect(),
            ..self.clone()
        }
    }
}

impl MaskedView for Preview {
    fn masked(&self, rules: &Rules) -> Self {
        let sample = self.sample.iter().map(|letter| rules.letter(letter)).collect();
        Self { sample, ..self.clone() }
    }
}

impl MaskedView for Member {
    fn masked(&self, rules: &Rules) -> Self {
        let why = self.why.as_ref().map(|why| rules.mask_text(why).into_owned());
        Self { why, ..self.clone() }
    }
}

impl MaskedView for Marker {
    fn masked(&self, rules: &Rules) -> Self {
        Self { text: rules.mask_text(&self.text).into_owned(), ..self.clone() }
    }
}

impl MaskedView for Revision {
    fn masked(&self, rules: &Rules) -> Self {
        if !rules.is_on() {
            return self.clone();
        }
        let payload = &self.content.payload;
        let payload = Payload {
            bytes: rules.mask_payload(&payload.bytes).text.into_bytes(),
            content_type: payload.content_type.clone(),
        };
        Self {
            reason: self.reason.as_ref().map(|reason| rules.mask_text(reason).into_owned()),
            content: Content { payload, headers: rules.mask_headers(&self.content.headers) },
            ..self.clone()
        }
    }
}

impl MaskedView for Queue {
    fn masked(&self, rules: &Rules) -> Self {
        let mut queue = self.clone();
        queue.policy.target = self.policy.target.as_ref().map(|target| rules.target(target));
        queue
    }
}

impl MaskedView for AuditRow {
    // The seal covers the row as written; what is shown has no secrets, such as those in a target's headers.
    fn masked(&self, rules: &Rules) -> Self {
        let text = |text: &Option<String>| text.as_ref().map(|text| rules.mask_text(text).into_owned());
        let entry = AuditEntry {
            target: rules.mask_text(&self.entry.target).into_owned(),
            reason: text(&self.entry.reason),
            detail: text(&self.entry.detail),
            filter: text(&self.entry.filter),
            ..self.entry.clone()
        };
        Self { n: self.n, entry, seal: self.seal.clone() }
    }
}

impl<T: MaskedView> MaskedView for Vec<T> {
    fn masked(&self, rules: &Rules) -> Self {
        self.iter().map(|item| item.masked(rules)).collect()
    }
}

impl<T: MaskedView> MaskedView for Page<T> {
    fn masked(&self, rules: &Rules) -> Self {
        Self { items: self.items.masked(rules), next: self.next.clone(), damaged: self.damaged.clone() }
    }
}
