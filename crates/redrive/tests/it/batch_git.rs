//! Batch runs with a git work tree per item: merged when it went well, kept with its artifacts when not.

use super::batch::Shop;
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
