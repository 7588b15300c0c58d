//! Which leaf a failure is filed under and which group that leaf is in. The decisions are the template tree's
//! ([`redrive_core::signature`]); here is only the map from leaf to group, written with the commit that changes it.

use super::Engine;
use super::tables::{Kept, Letter, Tables};
use redrive_core::classify::Lessons;
use redrive_core::failure::{Analysed, ErrorInfo};
use redrive_core::group::Leaf;
use redrive_core::ids::{GroupId, LeafId};
use redrive_core::signature::Signature;

impl<T: Tables> Engine<T> {
    /// Finds the leaf and the group of a failure, making them if they are new.
    pub(super) fn place(&mut self, failure: &mut Analysed) -> Kept<GroupId> {
        let sign = &failure.signature;
        if let Some(leaf) = self.tables.leaf(sign.leaf)? {
            return Ok(leaf.group);
        }
        let leaf = Leaf {
            id: sign.leaf,
            group: sign.leaf,
            template: sign.template.clone(),
            error_type: failure.report.error.error_type.clone(),
            code: sign.code.clone(),
            frame: sign.frame.clone(),
            version: 1,
            n: 0,
            pinned: None,
        };
        self.tables.put_leaf(&leaf)?;
        Ok(leaf.group)
    }

    /// The group a leaf is in now.
    pub(super) fn group_of(&mut self, leaf: LeafId) -> Kept<Option<GroupId>> {
        Ok(self.tables.leaf(leaf)?.map(|leaf| leaf.group))
    }

    /// What an outcome teaches about the group of a letter.
    pub(super) fn learn(&mut self, letter: &Letter, lesson: impl FnOnce(&mut Lessons)) -> Kept<()> {
        let group = self.group_of(letter.file.leaf)?.unwrap_or(letter.file.leaf);
        self.teach(group, |standing| lesson(&mut standing.lessons))
    }

    /// Takes in a leaf that was filed elsewhere, under the name it has there.
    pub(super) fn adopt(&mut self, id: LeafId, template: &str, error: &ErrorInfo) -> Kept<()> {
        if self.tables.leaf(id)?.is_some() {
            return Ok(());
        }
        let sign = Signature::of(error);
        let leaf = Leaf {
            id,
            group: id,
            template: template.into(),
            error_type: error.error_type.clone(),
            code: sign.code,
            frame: sign.frame,
            version: 0,
            n: 0,
            pinned: None,
        };
        self.tables.put_leaf(&leaf)
    }
}
