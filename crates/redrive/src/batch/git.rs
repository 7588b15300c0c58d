//! A git work tree per item: made on a branch of its own, merged back into the parent branch when every step
//! succeeded, removed then, and kept when something failed. It drives the `git` command and knows nothing of
//! jobs.

use super::error::BatchError;
use super::steps::kinds;
use crate::executor::process::{Ended, Finished, Process};
use redrive_core::failure::{ErrorInfo, Report};
use redrive_core::time::Span;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

/// How long one git command may take.
const GIT_LIMIT: Span = Span::from_secs(120);
/// Bytes of `git status` kept with a failure.
const CHANGES_BYTES: usize = 2_000;

/// The repository a job runs in.
#[derive(Clone, Debug)]
pub(super) struct Repository {
    root: PathBuf,
    /// Where work trees are made.
    trees: PathBuf,
    /// What branches are called: `redrive/JOB/RUN`.
    prefix: String,
    /// One at a time changes the parent's branch or the list of work trees.
    turn: Arc<Mutex<()>>,
}

/// One item's work tree.
#[derive(Debug)]
pub(super) struct Tree {
    repository: Repository,
    path: PathBuf,
    branch: String,
}

async fn git(directory: &Path, args: &[&str]) -> Finished {
    let argv = std::iter::once("git").chain(args.iter().copied());
    // Asking for a password would wait for ever.
    let process = Process::argv(argv).directory(directory).env("GIT_TERMINAL_PROMPT", "0").limit(GIT_LIMIT);
    process.run(&CancellationToken::new()).await
}

fn worked(done: &Finished) -> bool {
    done.ended == Ended::Exited(0)
}

fn said(done: &Finished) -> String {
    let text = done.stderr.last_lines(3, 600);
    let text = if text.is_empty() { done.stdout.last_lines(3, 600) } else { text };
    match &done.ended {
        Ended::NotStarted(not) => not.why.clone(),
        ended @ (Ended::Exited(_) | Ended::Signalled(_) | Ended::TimedOut | Ended::Cancelled) => {
            if text.is_empty() { format!("{ended:?}") } else { text }
        }
    }
}

fn trouble(kind: &str, step: &str, what: String) -> Box<Report> {
    let error = ErrorInfo { error_type: kind.to_owned(), message: what, ..ErrorInfo::default() };
    Box::new(Report { error, step: Some(step.to_owned()), ..Report::default() })
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
        let short: String = run.chars().rev().take(8).collect::<Vec<_>>().into_iter().rev().collect();
        let trees = trees.join(format!("{job}-{short}"));
        let prefix = format!("redrive/{job}/{short}");
        Ok(Self { root, trees, prefix, turn: Arc::default() })
    }

    /// A work tree on a branch of its own, from where the parent branch is now.
    pub(super) async fn tree(&self, name: &str) -> Result<Tree, Box<Report>> {
        let path = self.trees.join(name);
        let branch = format!("{}/{name}", self.prefix);
        let failed = |what: String| trouble(kinds::WORKTREE_ERROR, "worktree", what);
        let _turn = self.turn.lock().await;
        std::fs::create_dir_all(&self.trees).map_err(|e| failed(e.to_string()))?;
        // A process that was killed in the middle of this attempt may have left them.
        let place = path.display().to_string();
        if path.exists() {
            git(&self.root, &["worktree", "remove", "--force", &place]).await;
            git(&self.root, &["branch", "-D", &branch]).await;
        }
        let made = git(&self.root, &["worktree", "add", "-B", &branch, &place, "HEAD"]).await;
        if !worked(&made) {
            return Err(failed(format!("git worktree add failed: {}", said(&made))));
        }
        Ok(Tree { repository: self.clone(), path, branch })
    }
}

impl Tree {
    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The commit it is at.
    pub(super) async fn head(&self) -> Result<String, Box<Report>> {
        let head = git(&self.path, &["rev-parse", "HEAD"]).await;
        if worked(&head) {
            return Ok(head.stdout.text().trim().to_owned());
        }
        Err(trouble(kinds::WORKTREE_ERROR, "worktree", format!("git rev-parse failed: {}", said(&head))))
    }

    /// Merges the branch into the parent branch, one item at a time.
    pub(super) async fn merge(&self) -> Result<(), Box<Report>> {
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
