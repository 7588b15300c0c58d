//! A git work tree per item: made on a branch of its own, merged back into the parent branch when every step
//! succeeded, removed then, and kept when something failed, until a later attempt of the item ends. It drives the
//! `git` command and does not know which items are open.

use super::error::BatchError;
use super::steps::kinds;
use crate::executor::output::OutputLimit;
use crate::executor::process::{Process, ProcessEnd, ProcessOutput};
use redrive_core::failure::{ErrorInfo, FailureReport};
use redrive_core::time::Span;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

/// How long one git command may take.
const GIT_LIMIT: Span = Span::from_secs(120);
/// Bytes of a list of branches that are read: some hundred thousand of them.
const LIST_BYTES: usize = 16 * 1024 * 1024;
/// Bytes of `git status` kept with a failure.
const CHANGES_BYTES: usize = 2_000;

/// The repository a job runs in.
#[derive(Clone, Debug)]
pub(super) struct Repository {
    root: PathBuf,
    /// Where the work trees of this run are made.
    trees: PathBuf,
    /// Where those of every run of every job are.
    all_trees: PathBuf,
    job: String,
    /// What branches are called: `redrive/JOB/RUN`.
    prefix: String,
    /// One at a time changes the parent's branch or the list of work trees.
    turn: Arc<Mutex<()>>,
}

/// One item's work tree.
#[derive(Debug)]
pub(super) struct Tree {
    repository: Repository,
    /// What the names of all trees of its item begin with.
    item: String,
    path: PathBuf,
    branch: String,
}

/// A work tree and branch that a failed attempt left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeptTree {
    /// Where it is; none when only the branch is left.
    pub(super) path: Option<PathBuf>,
    pub(super) branch: String,
    /// The run in short, as in the branch.
    pub(super) run: String,
}

impl KeptTree {
    /// The last part of the branch: which attempt of which item.
    pub(super) fn name(&self) -> &str {
        self.branch.rsplit('/').next().unwrap_or_default()
    }
}

async fn git(directory: &Path, args: &[&str]) -> ProcessOutput {
    git_keeping(directory, args, OutputLimit::default()).await
}

async fn git_keeping(directory: &Path, args: &[&str], keep: OutputLimit) -> ProcessOutput {
    let argv = std::iter::once("git").chain(args.iter().copied());
    // Asking for a password would wait for ever.
    let process = Process::argv(argv).directory(directory).env("GIT_TERMINAL_PROMPT", "0").limit(GIT_LIMIT);
    process.keep_stdout(keep).run(&CancellationToken::new()).await
}

fn worked(done: &ProcessOutput) -> bool {
    done.ended == ProcessEnd::Exited(0)
}

fn said(done: &ProcessOutput) -> String {
    let text = done.stderr.last_lines(3, 600);
    let text = if text.is_empty() { done.stdout.last_lines(3, 600) } else { text };
    match &done.ended {
        ProcessEnd::NotStarted(not) => not.why.clone(),
        ended @ (ProcessEnd::Exited(_)
        | ProcessEnd::Signalled(_)
        | ProcessEnd::TimedOut
        | ProcessEnd::Cancelled) => {
            if text.is_empty() {
                format!("git {ended}")
            } else {
                text
            }
        }
    }
}

fn trouble(kind: &str, step: &str, what: String) -> Box<FailureReport> {
    let error = ErrorInfo { error_type: kind.to_owned(), message: what, ..ErrorInfo::default() };
    Box::new(FailureReport { error, step: Some(step.to_owned()), ..FailureReport::default() })
}

impl Repository {
    /// The repository around this directory.
    pub(super) async fn find(
        directory: &Path,
        trees: &Path,
        job: &str,
        run: &str,
    ) -> Result<Self, BatchError> {
        let top = git(directory, &["rev-parse", "--show-toplevel"]).await;
        if !worked(&top) {
            let why =
                format!("map.worktree needs a git repository at {}: {}", directory.display(), said(&top));
            return Err(BatchError::Git(why));
        }
        let root = PathBuf::from(top.stdout.text().trim_end_matches('\n'));
        let head = git(&root, &["rev-parse", "--verify", "HEAD"]).await;
        if !worked(&head) {
            return Err(BatchError::Git(
                "map.worktree needs a commit to begin from; commit something".into(),
            ));
        }
        let short = Self::short(run);
        let prefix = format!("redrive/{job}/{short}");
        let (all_trees, trees) = (trees.to_owned(), trees.join(format!("{job}-{short}")));
        Ok(Self { root, trees, all_trees, job: job.to_owned(), prefix, turn: Arc::default() })
    }

    /// What a run is called in branches and directories.
    pub(super) fn short(run: &str) -> String {
        run.chars().rev().take(8).collect::<Vec<_>>().into_iter().rev().collect()
    }

    /// The branches that failed attempts of a run left, with their work trees; of every run of the job when none is
    /// named.
    pub(super) async fn kept_trees(&self, run: &str) -> Result<Vec<KeptTree>, BatchError> {
        let within = if run.is_empty() { String::new() } else { format!("{run}/") };
        self.matching(&format!("refs/heads/redrive/{}/{within}", self.job)).await
    }

    async fn matching(&self, pattern: &str) -> Result<Vec<KeptTree>, BatchError> {
        let args = ["for-each-ref", "--format=%(refname:short)%09%(worktreepath)", pattern];
        let listed = git_keeping(&self.root, &args, OutputLimit { head: LIST_BYTES, tail: 0 }).await;
        if !worked(&listed) {
            return Err(BatchError::Git(format!("git for-each-ref failed: {}", said(&listed))));
        }
        let prefix = format!("redrive/{}/", self.job);
        let text = String::from_utf8_lossy(&listed.stdout.kept()).into_owned();
        let lines = text.lines().filter_map(|line| line.split_once('\t'));
        let trees = lines.filter_map(|(branch, path)| {
            let (run, name) = branch.strip_prefix(&prefix)?.split_once('/')?;
            // A step may have checked out something else there: then git does not know whose tree it is.
            let usual = || self.all_trees.join(format!("{}-{run}", self.job)).join(name);
            let path = if path.is_empty() { usual() } else { PathBuf::from(path) };
            let path = Some(path).filter(|path| path.exists());
            Some(KeptTree { path, branch: branch.to_owned(), run: run.to_owned() })
        });
        Ok(trees.collect())
    }

    /// What a tree holds that is nowhere else: changes that are not committed, or commits that are not merged.
    pub(super) async fn holds(&self, tree: &KeptTree) -> Option<String> {
        if let Some(path) = &tree.path {
            let status = git(path, &["status", "--porcelain"]).await;
            if !worked(&status) {
                return Some(format!("what git could not tell ({})", said(&status)));
            }
            if status.stdout.total() > 0 {
                return Some("uncommitted changes".to_owned());
            }
        }
        let ahead = git(&self.root, &["rev-list", "--count", &format!("HEAD..{}", tree.branch)]).await;
        match ahead.stdout.text().trim() {
            "0" => None,
            count => Some(format!("commits that are not merged ({count})")),
        }
    }

    /// Removes a work tree and its branch.
    pub(super) async fn discard(&self, tree: &KeptTree) -> Result<(), String> {
        let _turn = self.turn.lock().await;
        match &tree.path {
            Some(path) => {
                let tree_path = path.display().to_string();
                let removed = git(&self.root, &["worktree", "remove", "--force", &tree_path]).await;
                if !worked(&removed) {
                    return Err(said(&removed));
                }
                // The directory of the run goes with its last tree.
                let _ = path.parent().map(std::fs::remove_dir);
            }
            // Somebody removed the directory; git does not know it yet, and would not let the branch go.
            None => drop(git(&self.root, &["worktree", "prune"]).await),
        }
        let removed = git(&self.root, &["branch", "-D", &tree.branch]).await;
        if worked(&removed) { Ok(()) } else { Err(said(&removed)) }
    }

    /// A work tree for one attempt of an item, on a branch of its own, from where the parent branch is now.
    pub(super) async fn tree(&self, item: &str, attempt: &str) -> Result<Tree, Box<FailureReport>> {
        let name = format!("{item}-{attempt}");
        let path = self.trees.join(&name);
        let branch = format!("{}/{name}", self.prefix);
        let failed = |what: String| trouble(kinds::WORKTREE_ERROR, "worktree", what);
        let _turn = self.turn.lock().await;
        std::fs::create_dir_all(&self.trees).map_err(|e| failed(e.to_string()))?;
        // A process that was killed in the middle of this attempt may have left them.
        let tree_path = path.display().to_string();
        if path.exists() {
            git(&self.root, &["worktree", "remove", "--force", &tree_path]).await;
            git(&self.root, &["branch", "-D", &branch]).await;
        }
        let made = git(&self.root, &["worktree", "add", "-B", &branch, &tree_path, "HEAD"]).await;
        if !worked(&made) {
            return Err(failed(format!("git worktree add failed: {}", said(&made))));
        }
        Ok(Tree { repository: self.clone(), item: item.to_owned(), path, branch })
    }
}

impl Tree {
    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The commit it is at.
    pub(super) async fn head(&self) -> Result<String, Box<FailureReport>> {
        let head = git(&self.path, &["rev-parse", "HEAD"]).await;
        if worked(&head) {
            return Ok(head.stdout.text().trim().to_owned());
        }
        Err(trouble(kinds::WORKTREE_ERROR, "worktree", format!("git rev-parse failed: {}", said(&head))))
    }

    /// Merges the branch into the parent branch, one item at a time.
    pub(super) async fn merge(&self) -> Result<(), Box<FailureReport>> {
        let root = &self.repository.root;
        let _turn = self.repository.turn.lock().await;
        let note = format!("Merge {}", self.branch);
        let merged = git(root, &["merge", "--no-edit", "-m", &note, &self.branch]).await;
        if worked(&merged) {
            return Ok(());
        }
        let conflicts = git(root, &["diff", "--name-only", "--diff-filter=U"]).await;
        let files = conflicts.stdout.text().lines().take(20).collect::<Vec<_>>().join(", ");
        git(root, &["merge", "--abort"]).await;
        let what = if files.is_empty() {
            format!("the merge into the parent branch failed: {}", said(&merged))
        } else {
            format!("the merge into the parent branch conflicts in {files}")
        };
        Err(trouble(kinds::MERGE_CONFLICT, "merge", what))
    }

    /// Removes what earlier attempts of the same item left.
    pub(super) async fn remove_earlier(&self) {
        let Repository { prefix, .. } = &self.repository;
        let pattern = format!("refs/heads/{prefix}/{}-*", self.item);
        let trees = self.repository.matching(&pattern).await.unwrap_or_default();
        for tree in trees.iter().filter(|tree| tree.branch != self.branch) {
            if let Err(error) = self.repository.discard(tree).await {
                tracing::warn!(branch = tree.branch, error, "an earlier work tree could not be removed");
            }
        }
    }

    /// Removes it and its branch. What cannot be removed is only in the way of people who look.
    pub(super) async fn remove(&self) {
        let root = &self.repository.root;
        let _turn = self.repository.turn.lock().await;
        git(root, &["worktree", "remove", "--force", &self.path.display().to_string()]).await;
        git(root, &["branch", "-D", &self.branch]).await;
    }

    /// What is left to look at after a failure.
    pub(super) async fn artifacts(&self) -> Vec<String> {
        let changes = git(&self.path, &["status", "--porcelain"]).await;
        let mut changes: String = changes.stdout.text().lines().map(|line| format!("{line}; ")).collect();
        let mut end = changes.len().min(CHANGES_BYTES);
        while !changes.is_char_boundary(end) {
            end -= 1;
        }
        changes.truncate(end);
        let mut all = vec![format!("worktree: {}", self.path.display()), format!("branch: {}", self.branch)];
        if !changes.is_empty() {
            all.push(format!("uncommitted changes: {}", changes.trim_end_matches("; ")));
        }
        all
    }
}
