//! Which work trees of a job are still needed. Only the tree of the last failed attempt of an open item is: it is
//! removed as soon as the item is done, resolved or abandoned, or the job is restarted. [`Batch::prune`] also takes
//! those that hold nothing. It asks the store which items are open and decides; `git.rs` removes.

use super::error::BatchError;
use super::git::{KeptTree, Repository};
use super::ledger::{ItemTag, filter};
use super::run::Batch;
use super::state::{RunLock, RunState, Versioned};
use redrive_core::dead_letter::{DeadLetter, Status};
use redrive_core::ids::MessageId;
use redrive_core::limits;
use redrive_core::query::{PageRequest, Query};
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

/// What pruning did, or would do, with one kept work tree and its branch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PrunedTree {
    /// Whether it is gone, or would be.
    pub removed: bool,
    /// The directory; only the branch is left when there is none.
    pub worktree: Option<PathBuf>,
    /// The branch.
    pub branch: String,
    /// Why it was removed or kept.
    pub why: String,
}

/// How much is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    /// What belongs to no open item, and all but the last attempt of an open one.
    Closed,
    /// Also trees of open items that hold neither changes nor commits.
    Empty,
    /// Every one of them.
    All,
}

/// The items of a job that are not over, and the runs the store knows of.
#[derive(Debug, Default)]
struct OpenItems {
    /// What the names of their trees contain.
    labels: HashSet<String>,
    /// Where their last failure says the tree is: trees were named otherwise once.
    paths: HashSet<String>,
    runs: HashSet<String>,
}

/// What the names of all trees of one item have in common: the place of the item, and the end of its message's id.
pub(super) fn item_name(index: u64, id: MessageId) -> String {
    format!("{index}-{}", label(id))
}

fn label(id: MessageId) -> String {
    let text = id.to_string();
    text.rsplit('-').next().unwrap_or_default().to_owned()
}

/// The label of the item and the generation and attempt that a tree's name tells.
fn parsed(name: &str) -> Option<(&str, (u32, u32))> {
    let (item, attempt) = name.rsplit_once('-')?;
    let (_, label) = item.split_once('-')?;
    let (generation, attempt) = attempt.split_once('.')?;
    Some((label, (generation.parse().ok()?, attempt.parse().ok()?)))
}

impl OpenItems {
    fn add_letter(&mut self, letter: &DeadLetter) {
        let Some(tag) = ItemTag::of(letter.message.envelope.context.as_ref()) else { return };
        self.runs.insert(Repository::short(&tag.run));
        match letter.record.status {
            Status::Pending | Status::Retrying | Status::Review | Status::Quarantined => {}
            Status::Resolved | Status::Abandoned | Status::Purged => return,
        }
        self.labels.insert(label(letter.id()));
        let last = letter.message.failures.last();
        let told = last.iter().flat_map(|failure| &failure.artifacts);
        self.paths.extend(told.filter_map(|text| text.strip_prefix("worktree: ")).map(str::to_owned));
    }

    fn has(&self, tree: &KeptTree) -> bool {
        let path = tree.path.as_ref().map(|path| path.display().to_string());
        parsed(tree.name()).is_some_and(|(label, _)| self.labels.contains(label))
            || path.is_some_and(|path| self.paths.contains(&path))
    }

    /// Whether a later attempt of the same item is among the trees.
    fn is_superseded(tree: &KeptTree, last: &HashMap<String, (u32, u32)>) -> bool {
        let Some((label, attempt)) = parsed(tree.name()) else { return false };
        last.get(label).is_some_and(|last| attempt < *last)
    }
}

impl Batch {
    /// Removes work trees and branches of the job's failed attempts that nobody needs: those of items that are done or
    /// closed, all but the last of an open item, and those that hold neither changes nor commits of their own. `force`
    /// removes the others too; `dry_run` only says what would be done.
    ///
    /// # Errors
    /// [`BatchError`] when somebody runs the job, or git or the store cannot be asked.
    pub async fn prune(&self, dry_run: bool, force: bool) -> Result<Vec<PrunedTree>, BatchError> {
        let hold = RunLock::take(&self.store, self.job.name(), &self.actor).await?;
        let saved = Versioned::<RunState>::load(self.store.as_ref(), self.job.name().to_owned()).await;
        let pruned = match saved {
            Ok(saved) => {
                let run = saved.value.map(|state| state.run);
                self.sweep(run.as_deref(), if force { Extent::All } else { Extent::Empty }, dry_run).await
            }
            Err(error) => Err(error),
        };
        hold.release().await;
        pruned
    }

    /// Removes what belongs to items of this run that are done or closed. What cannot be removed is only in the way.
    pub(super) async fn remove_closed_trees(&self, run: &str) {
        if !self.job.worktree {
            return;
        }
        if let Err(error) = self.sweep(Some(run), Extent::Closed, false).await {
            tracing::warn!(job = self.job.name(), %error, "work trees could not be removed; --prune tries again");
        }
    }

    /// Removes every tree and branch of a run that was given up.
    pub(super) async fn remove_trees_of(&self, run: &str) {
        let Ok(repository) = self.repository(run).await else { return };
        for tree in repository.kept_trees(&Repository::short(run)).await.unwrap_or_default() {
            let _ = repository.discard(&tree).await;
        }
    }

    pub(super) async fn repository(&self, run: &str) -> Result<Repository, BatchError> {
        Repository::find(&self.directory, &self.trees, self.job.name(), run).await
    }

    async fn sweep(
        &self,
        run: Option<&str>,
        extent: Extent,
        dry_run: bool,
    ) -> Result<Vec<PrunedTree>, BatchError> {
        let repository = self.repository(run.unwrap_or_default()).await?;
        let trees = repository.kept_trees("").await?;
        if trees.is_empty() {
            return Ok(Vec::new());
        }
        let mut open = self.open_items().await?;
        open.runs.extend(run.map(Repository::short));
        let mut last: HashMap<String, (u32, u32)> = HashMap::new();
        for (label, attempt) in trees.iter().filter_map(|tree| parsed(tree.name())) {
            let latest = last.entry(label.to_owned()).or_default();
            *latest = attempt.max(*latest);
        }
        let mut pruned = Vec::new();
        for tree in trees {
            let (mut removed, mut why) = verdict(&repository, &tree, &open, &last, extent).await;
            if removed
                && !dry_run
                && let Err(error) = repository.discard(&tree).await
            {
                (removed, why) = (false, format!("git could not remove it: {error}"));
            }
            pruned.push(PrunedTree { removed, worktree: tree.path, branch: tree.branch, why });
        }
        Ok(pruned)
    }

    /// Every item of the job that is not over, whatever run it is of.
    async fn open_items(&self) -> Result<OpenItems, BatchError> {
        let filter = filter(&format!("queue:{}", self.job.queue()))?;
        let mut open = OpenItems::default();
        let mut page = PageRequest::first(limits::PAGE_ITEMS_MAX);
        loop {
            let got = self.store.letters(Query { filter: filter.clone(), page: page.clone() }).await?;
            got.items.iter().for_each(|letter| open.add_letter(letter));
            match got.next {
                Some(next) => page.cursor = Some(next),
                None => break,
            }
        }
        let mut page = PageRequest::first(limits::PAGE_ITEMS_MAX);
        loop {
            let got = self.store.messages(Query { filter: filter.clone(), page: page.clone() }).await?;
            for message in &got.items {
                open.labels.insert(label(message.envelope.id));
                let tag = ItemTag::of(message.envelope.context.as_ref());
                open.runs.extend(tag.map(|tag| Repository::short(&tag.run)));
            }
            match got.next {
                Some(next) => page.cursor = Some(next),
                None => return Ok(open),
            }
        }
    }
}

/// Whether a tree goes, and why.
async fn verdict(
    repository: &Repository,
    tree: &KeptTree,
    open: &OpenItems,
    last: &HashMap<String, (u32, u32)>,
    extent: Extent,
) -> (bool, String) {
    if !open.runs.contains(&tree.run) {
        let why = "of a run that this data directory does not know";
        return match extent {
            Extent::All => (true, why.into()),
            Extent::Closed | Extent::Empty => (false, format!("{why}; --force removes it")),
        };
    }
    if !open.has(tree) {
        return (true, "its item is done or closed".into());
    }
    if OpenItems::is_superseded(tree, last) {
        return (true, "a later attempt of its item is kept".into());
    }
    match (extent, repository.holds(tree).await) {
        (Extent::All, _) => (true, "its item is open; --force was given".into()),
        (Extent::Empty, None) => (true, "its item is open, but it holds no changes".into()),
        (Extent::Empty, Some(what)) => {
            (false, format!("its item is open and it holds {what}; --force removes it"))
        }
        (Extent::Closed, _) => (false, "its item is open".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_tree_tells_its_item_and_attempt() {
        let id: MessageId = "01890000-0000-7000-8000-0123456789ab".parse().unwrap();
        let name = format!("{}-2.3", item_name(7, id));
        assert_eq!(name, "7-0123456789ab-2.3");
        assert_eq!(parsed(&name), Some(("0123456789ab", (2, 3))));
        for older in ["7-1.1", "7", "", "7-x-1", "notes"] {
            assert_eq!(parsed(older), None, "{older}");
        }
    }
}
