//! Batch runs with a git work tree per item: merged when it went well, kept with its artifacts when not.

use super::batch::Shop;
use redrive::core::dead_letter::{Act, ActRequest, Actor};
use redrive::{Batch, PrunedTree, StartMode};
use std::process::Command;

fn git(shop: &Shop, args: &[&str]) -> String {
    let output = Command::new("git").current_dir(shop.path("repo")).args(args).output().unwrap();
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn repository() -> Shop {
    let shop = Shop::new();
    std::fs::create_dir(shop.path("repo")).unwrap();
    git(&shop, &["init", "-q", "-b", "main"]);
    for (name, value) in
        [("user.name", "tester"), ("user.email", "tester@example.com"), ("commit.gpgsign", "false")]
    {
        git(&shop, &["config", name, value]);
    }
    shop.write("repo/shared", "start\n");
    git(&shop, &["add", "."]);
    git(&shop, &["commit", "-qm", "start"]);
    shop
}

fn job(step: &str) -> String {
    format!(
        "name: g\ninput: {{command: 'printf \"1\\n2\\n3\\n\"'}}\nmap:\n  worktree: true\n  max_parallel: 3\n  \
         retry: {{max_attempts: 1}}\n  steps:\n    - commit_required: true\n      run: |\n        {step}\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_are_merged_back_and_work_trees_removed() {
    let shop = repository();
    let text = job("echo x > file-${item} && git add . && git commit -qm ${item}");
    let batch = shop.batch(&text).directory(shop.path("repo")).worktrees(shop.path("trees"));
    let summary = batch.run().await.unwrap();
    assert!(summary.is_complete(), "{summary:?}");
    for n in 1..=3 {
        assert!(shop.path(&format!("repo/file-{n}")).exists());
    }
    assert!(!git(&shop, &["branch", "--list"]).contains("redrive/"));
    assert_eq!(git(&shop, &["worktree", "list"]).lines().count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_commit_and_a_conflict_are_failures_with_artifacts() {
    let shop = repository();
    let text =
        job("[ ${item} = 1 ] && { echo loose > loose; exit 0; }; echo ${item} > shared; git commit -qam x");
    let text = text.replace("max_parallel: 3", "max_parallel: 2");
    let batch = shop.batch(&text).directory(shop.path("repo")).worktrees(shop.path("trees"));
    let summary = batch.run().await.unwrap();
    let mut letters = shop.letters().await;
    letters.sort_by_key(|letter| letter.message.envelope.seq);
    assert!(summary.dead >= 1, "{summary:?}");
    assert_eq!(letters[0].error.error_type, "CommitMissing");
    let artifacts = letters[0].message.failures[0].artifacts.join("\n");
    for part in ["worktree: ", "branch: redrive/g/", "uncommitted changes: ?? loose"] {
        assert!(artifacts.contains(part), "{part}: {artifacts}");
    }
    // Two items change one file: unless the second began after the first was merged, it conflicts.
    if let Some(conflict) = letters.get(1) {
        assert_eq!(conflict.error.error_type, "MergeConflict");
        assert_eq!(conflict.error.message, "the merge into the parent branch conflicts in shared");
    }
    assert_eq!(git(&shop, &["status", "--porcelain"]), "", "the parent is left clean");
}

/// A job of one item that leaves a change behind and fails, three times, unless `mended` is there.
const STUBBORN: &str = "name: g
input: {command: 'echo 1'}
map:
  worktree: true
  retry: {max_attempts: 3, backoff: {strategy: fixed, initial: 0s, jitter: none}}
  steps:
    - run: |
        test -e ../../../mended && exit 0
        WHAT
        exit 1
";

fn stubborn(shop: &Shop, what: &str) -> Batch {
    let batch = shop.batch(&STUBBORN.replace("WHAT", what));
    batch.directory(shop.path("repo")).worktrees(shop.path("trees"))
}

fn branches(shop: &Shop) -> Vec<String> {
    let listed = git(shop, &["for-each-ref", "--format=%(refname:short)", "refs/heads/redrive/"]);
    listed.lines().map(str::to_owned).collect()
}

/// How many work trees there are beside the repository itself.
fn trees(shop: &Shop) -> usize {
    git(shop, &["worktree", "list"]).lines().count() - 1
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_last_failed_attempt_of_an_item_is_kept_and_none_when_it_is_done() {
    let shop = repository();
    let batch = stubborn(&shop, "echo change > loose");
    assert_eq!(batch.run().await.unwrap().dead, 1);
    let letter = shop.letters().await.remove(0);
    assert_eq!(letter.message.failures.len(), 3);
    let kept = branches(&shop);
    assert_eq!((kept.len(), trees(&shop)), (1, 1), "{kept:?}");
    assert!(kept[0].ends_with("-1.3"), "{kept:?}");
    let artifacts = letter.message.failures[2].artifacts.join("\n");
    assert!(artifacts.contains(&format!("branch: {}", kept[0])), "{artifacts}");

    assert_eq!(batch.clone().retry_dead(true).run().await.unwrap().dead, 1, "it fails again");
    assert_eq!(trees(&shop), 1);
    assert!(branches(&shop)[0].ends_with("-2.3"), "{:?}", branches(&shop));
    shop.write("mended", "");
    assert!(batch.retry_dead(true).run().await.unwrap().is_complete());
    assert_eq!((branches(&shop), trees(&shop)), (Vec::new(), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_work_tree_of_a_closed_item_goes_with_the_next_run_and_with_a_restart() {
    let shop = repository();
    let batch = stubborn(&shop, "echo change > loose");
    batch.run().await.unwrap();
    let id = shop.letters().await[0].id();
    let actor = Actor::new("eve", "test");
    let request = ActRequest { id, act: Act::Abandon, actor, expected_version: None };
    shop.store.act(vec![request]).await.unwrap().remove(0).unwrap();
    assert_eq!(trees(&shop), 1);
    batch.run().await.unwrap();
    assert_eq!((branches(&shop), trees(&shop)), (Vec::new(), 0));

    batch.clone().start_mode(StartMode::Restart).run().await.unwrap();
    let first = branches(&shop);
    batch.start_mode(StartMode::Restart).run().await.unwrap();
    let second = branches(&shop);
    assert_eq!((first.len(), second.len(), trees(&shop)), (1, 1, 1));
    assert_ne!(first, second, "that of the run before is gone");
}

#[tokio::test(flavor = "multi_thread")]
async fn pruning_says_what_it_removes_and_keeps_the_changes_of_an_open_item() {
    let shop = repository();
    let batch = stubborn(&shop, "echo change > loose");
    batch.run().await.unwrap();
    let removed = |pruned: &[PrunedTree]| pruned.iter().map(|tree| tree.removed).collect::<Vec<_>>();
    let pruned = batch.prune(false, false).await.unwrap();
    assert_eq!((removed(&pruned), trees(&shop)), (vec![false], 1));
    assert!(pruned[0].why.contains("open") && pruned[0].why.contains("uncommitted changes"), "{pruned:?}");
    let pruned = batch.prune(true, true).await.unwrap();
    assert_eq!((removed(&pruned), trees(&shop)), (vec![true], 1), "a dry run removes nothing");

    // What another data directory left in the same repository is not this one's to judge.
    git(&shop, &["branch", "redrive/g/0a0a0a0a/0-1.1"]);
    let pruned = batch.prune(false, false).await.unwrap();
    assert_eq!(removed(&pruned), [false, false]);
    assert!(pruned.iter().any(|tree| tree.why.contains("does not know")), "{pruned:?}");
    let pruned = batch.prune(false, true).await.unwrap();
    assert_eq!(removed(&pruned), [true, true]);
    assert_eq!((branches(&shop), trees(&shop)), (Vec::new(), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn pruning_takes_what_holds_nothing_and_leaves_commits_that_are_nowhere_else() {
    let shop = repository();
    let batch = stubborn(&shop, "true");
    batch.run().await.unwrap();
    let pruned = batch.prune(false, false).await.unwrap();
    assert!(pruned[0].removed && pruned[0].why.contains("no changes"), "{pruned:?}");
    assert_eq!((branches(&shop), trees(&shop)), (Vec::new(), 0));

    let batch =
        stubborn(&shop, "echo x > new && git add . && git commit -qm new").start_mode(StartMode::Restart);
    batch.run().await.unwrap();
    let pruned = batch.prune(false, false).await.unwrap();
    assert!(!pruned[0].removed && pruned[0].why.contains("not merged (1)"), "{pruned:?}");
    // Somebody removed the directory by hand: the branch is still known and still holds the commit.
    std::fs::remove_dir_all(pruned[0].worktree.as_ref().unwrap()).unwrap();
    let pruned = batch.prune(false, true).await.unwrap();
    assert_eq!((pruned[0].removed, &pruned[0].worktree, branches(&shop)), (true, &None, Vec::new()));
}
