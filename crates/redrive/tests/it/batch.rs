//! Batch runs with real processes: what becomes of items that fail, how a run goes on, who may run it.

use crate::support::PATIENCE;
use redrive::core::dead_letter::{Act, ActRequest, Actor, DeadLetter, Status};
use redrive::core::filter::Filter;
use redrive::core::message::{NewMessage, Payload};
use redrive::core::query::{PageRequest, Query};
use redrive::core::store::Store;
use redrive::{Batch, BatchError, BatchSummary, Job, StartMode};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// A place to run jobs in.
pub(crate) struct Shop {
    dir: tempfile::TempDir,
    pub(crate) store: Arc<dyn Store>,
}

impl Shop {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), store: redrive::memory() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    pub(crate) fn lines(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.path(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    pub(crate) fn batch(&self, job: &str) -> Batch {
        let job = Job::parse(job).unwrap_or_else(|problems| panic!("{problems:#?}"));
        Batch::new(self.store.clone(), job).directory(self.dir.path()).work_directory(self.path("work"))
    }

    pub(crate) async fn run(&self, job: &str) -> BatchSummary {
        self.batch(job).run().await.unwrap()
    }

    pub(crate) async fn letters(&self) -> Vec<DeadLetter> {
        let query = Query { filter: Filter::default(), page: PageRequest::first(1_000) };
        self.store.letters(query).await.unwrap().items
    }

    /// Somebody does this to the first letter.
    async fn act(&self, act: Act) {
        let id = self.letters().await[0].id();
        let request = ActRequest { id, act, actor: Actor::new("eve", "test"), expected_version: None };
        self.store.act(vec![request]).await.unwrap().remove(0).unwrap();
    }

    /// Somebody enqueues by hand into the queue of job t.
    async fn enqueue_by_hand(&self) {
        let queue = "run.t".parse().unwrap();
        let payload = Payload { bytes: b"1".to_vec(), content_type: "application/json".into() };
        let message =
            NewMessage { kind: "item".into(), ..NewMessage::new(redrive::new_id(), queue, payload) };
        self.store.enqueue(vec![message]).await.unwrap().remove(0).unwrap();
    }
}

/// A job over the numbers 1 to `n`, each step appending its item to `effects`.
fn job(n: u32, step: &str, extra: &str) -> String {
    format!(
        "name: t
input: {{command: 'seq 1 {n}'}}
map:
  steps:
    - run: |
        echo ${{item}} >> effects
        {step}
  max_parallel: 4
  retry: {{max_attempts: 2, backoff: {{strategy: fixed, initial: 0s, jitter: none}}}}
{extra}
"
    )
}

fn counts(summary: &BatchSummary) -> [u64; 5] {
    [summary.total, summary.done, summary.dead, summary.skipped, summary.left]
}

const THREE_FAILS: &str = "[ ${item} != 3 ] || { echo 'no such thing as 3' >&2; exit 9; }";

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_item_is_a_dead_letter_that_says_everything() {
    let shop = Shop::new();
    let summary = shop.run(&job(5, THREE_FAILS, "")).await;
    assert_eq!(counts(&summary), [5, 4, 1, 0, 0]);
    assert_eq!(summary.groups[0].count, 1);
    let letter = shop.letters().await.remove(0);
    assert_eq!(letter.error.error_type, "CommandFailed");
    assert_eq!(letter.error.code.as_deref(), Some("9"));
    assert_eq!(letter.error.message, "exit code 9: no such thing as 3");
    let failure = letter.message.failures.last().unwrap();
    assert_eq!((failure.attempt, failure.step.is_some(), failure.duration.is_some()), (2, true, true));
    assert_eq!(failure.error.context[1], "item 2");
    let log = std::fs::read_to_string(failure.log.as_ref().unwrap()).unwrap();
    assert!(log.contains("no such thing as 3"), "{log}");
    assert_eq!(letter.message.envelope.payload.bytes, b"3");
}

#[tokio::test(flavor = "multi_thread")]
async fn running_again_repeats_nothing_and_retrying_the_dead_finishes() {
    let shop = Shop::new();
    let text = job(9, "[ ${item} != 3 ] || [ -e mended ] || exit 1", "reduce: ['wc -l < ${results_file}']");
    assert_eq!(counts(&shop.run(&text).await), [9, 8, 1, 0, 0]);
    let effects = shop.lines("effects").len();
    let again = shop.run(&text).await;
    assert!(again.already_finished);
    assert_eq!((counts(&again), shop.lines("effects").len()), ([9, 8, 1, 0, 0], effects));
    shop.write("mended", "");
    let retried = shop.batch(&text).retry_dead(true).run().await.unwrap();
    assert_eq!(counts(&retried), [9, 9, 0, 0, 0]);
    assert_eq!(retried.output.as_deref().map(str::trim), Some("9"), "reduce runs again over all results");
    assert_eq!(shop.lines("effects").len(), effects + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn skipped_items_are_closed_letters() {
    let shop = Shop::new();
    let summary = shop.run(&job(5, THREE_FAILS, "on_item_failure: skip")).await;
    assert_eq!(counts(&summary), [5, 4, 0, 1, 0]);
    let letter = shop.letters().await.remove(0);
    assert_eq!(letter.record.status, Status::Abandoned);
    assert!(letter.record.resolution.unwrap().contains("skip"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_custom_command_sees_the_letter_and_decides() {
    let shop = Shop::new();
    let step = "[ ${item} -gt 2 ] || { echo \"bad ${item}\" >&2; exit 1; }";
    let custom =
        "on_item_failure: {custom: {command: \"cat >> letters; echo >> letters; test ${item} = 1\"}}";
    let summary = shop.run(&job(5, step, custom)).await;
    assert_eq!(counts(&summary), [5, 3, 1, 1, 0]);
    let seen: Vec<serde_json::Value> =
        shop.lines("letters").iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(seen.len(), 2, "each letter once");
    assert!(seen.iter().all(|letter| letter["error"]["type"] == "CommandFailed"));
    let open: Vec<DeadLetter> =
        shop.letters().await.into_iter().filter(|letter| !letter.record.status.is_closed()).collect();
    assert_eq!(open[0].record.status, Status::Review);
    assert_eq!(open[0].message.envelope.payload.bytes, b"2");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_stops_after_the_failure_is_recorded_and_goes_on_later() {
    for extra in ["on_item_failure: stop", "continue_on_failure: false", "max_failures: 1"] {
        let shop = Shop::new();
        let text = job(40, "[ ${item} != 3 ] || [ -e mended ] || exit 1", extra);
        let text =
            text.replace("max_parallel: 4", "max_parallel: 1").replace("max_attempts: 2", "max_attempts: 1");
        let summary = shop.run(&text).await;
        assert!(summary.stopped.is_some(), "{extra}: {summary:?}");
        assert_eq!((summary.dead, shop.letters().await.len()), (1, 1), "{extra}");
        assert_eq!((summary.done, summary.left), (2, 37), "{extra}: nothing begins after it");
        shop.write("mended", "");
        let rest = shop.batch(&text).retry_dead(true).run().await.unwrap();
        assert_eq!(counts(&rest), [40, 40, 0, 0, 0], "{extra}");
        assert_eq!(shop.lines("effects").len(), 41, "{extra}: each once, and the failed one again");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_share_of_failures_stops_after_ten_items() {
    let shop = Shop::new();
    let text = job(60, "exit 1", "failure_threshold: 0.5").replace("max_attempts: 2", "max_attempts: 1");
    let summary = shop.run(&text).await;
    assert!(summary.stopped.as_deref().is_some_and(|why| why.contains("failure_threshold")), "{summary:?}");
    assert!(summary.dead >= 10 && summary.left > 0, "{summary:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_kind_of_failure_has_its_type() {
    for (steps, kind, attempts) in [
        ("- {run: 'exec sleep 600', timeout: 100ms}", "Timeout", 2),
        ("- {run: 'true'}\n    - {validate: 'test -e nothing'}", "ValidationFailed", 2),
        ("- {run: 'echo No space left on device >&2; exit 1'}", "ResourceExhausted", 2),
        ("- {run: 'kill -9 $$'}", "ResourceExhausted", 2),
        ("- {argv: [/no/such/program]}", "CommandFailed", 2),
        ("- {run: 'echo ${item.b}'}", "TemplateError", 1),
    ] {
        let shop = Shop::new();
        let text = format!(
            "name: t\ninput: {{command: \"printf '{{\\\"a\\\":1}}\\\\n{{\\\"b\\\":1,\\\"skip\\\":1}}\\\\n'\"}}\n\
             max_items: 1\nmap:\n  steps:\n    {steps}\n  \
             retry: {{max_attempts: 2, backoff: {{strategy: fixed, initial: 0s, jitter: none}}}}\n"
        );
        let summary = shop.run(&text).await;
        assert_eq!(counts(&summary), [1, 0, 1, 0, 0], "{kind}");
        let letter = shop.letters().await.remove(0);
        assert_eq!((letter.error.error_type.as_str(), letter.message.failed), (kind, attempts), "{letter:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn results_come_in_the_order_of_the_items_with_their_output() {
    let shop = Shop::new();
    let text = job(30, "echo \"<${item}>\"", "sort_by: []\nreduce: [{run: 'cp ${results_file} all'}]");
    assert!(shop.run(&text).await.is_complete());
    let results: Vec<serde_json::Value> =
        shop.lines("all").iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let items: Vec<u64> = results.iter().map(|result| result["item"].as_u64().unwrap()).collect();
    assert_eq!(items, (1..=30).collect::<Vec<_>>());
    assert_eq!(results[6]["output"], "<7>\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn setup_and_reduce_run_once_and_a_failed_one_is_repeated() {
    let shop = Shop::new();
    let stages = "setup: ['echo >> setups; test -e ready']\nreduce: ['echo >> reduces; test -e willing']";
    let text = job(3, "true", stages);
    let error = shop.batch(&text).run().await.unwrap_err();
    assert!(matches!(error, BatchError::Stage { stage: "setup", .. }), "{error}");
    assert!(shop.lines("effects").is_empty());
    shop.write("ready", "");
    let error = shop.batch(&text).run().await.unwrap_err();
    assert!(matches!(error, BatchError::Stage { stage: "reduce", .. }), "{error}");
    shop.write("willing", "");
    assert!(shop.run(&text).await.is_complete());
    assert!(shop.run(&text).await.is_complete());
    assert_eq!((shop.lines("setups").len(), shop.lines("reduces").len()), (2, 2));
    assert_eq!(shop.lines("effects").len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_runs_of_one_job_at_once_are_refused() {
    let shop = Shop::new();
    let text = job(2, r#"timeout --foreground 600 sh -c "while [ ! -e go ]; do sleep 0.05; done""#, "");
    let first = shop.batch(&text).actor("eve");
    let running = tokio::spawn(async move { first.run().await });
    let late = Instant::now() + PATIENCE;
    while shop.lines("effects").is_empty() {
        assert!(Instant::now() < late, "the first run never began");
        tokio::task::yield_now().await;
    }
    let error = shop.batch(&text).run().await.unwrap_err();
    assert!(error.to_string().contains("being run by eve"), "{error}");
    let other = text.replace("name: t", "name: other").replace("effects", "others").replace("go ]", "/ ]");
    assert!(shop.run(&other).await.is_complete(), "another job is not in the way");
    shop.write("go", "");
    assert!(running.await.unwrap().unwrap().is_complete());
    assert!(shop.run(&text).await.already_finished, "afterwards it may");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_run_gives_back_what_it_holds_and_goes_on() {
    let shop = Shop::new();
    let text = job(20, "[ -e go ] || exec sleep 600", "");
    let batch = shop.batch(&text).grace(redrive::core::time::Span::from_secs(5));
    let handle = batch.handle();
    let running = tokio::spawn(async move { batch.run().await });
    let late = Instant::now() + PATIENCE;
    while shop.lines("effects").len() < 4 {
        assert!(Instant::now() < late, "the run never began");
        tokio::task::yield_now().await;
    }
    handle.stop();
    let summary = running.await.unwrap().unwrap();
    assert!(summary.interrupted);
    assert_eq!(counts(&summary), [20, 0, 0, 0, 20]);
    shop.write("go", "");
    assert!(shop.run(&text).await.is_complete());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_input_is_refused_until_it_is_accepted() {
    let shop = Shop::new();
    let text = "name: t\ninput: {file: items.csv}\nkey: id\nmap: {steps: ['echo ${item.id}=${item.v} >> effects; test ${item.v} != bad'], retry: {max_attempts: 1}}\n";
    shop.write("items.csv", "id,v\n1,a\n2,bad\n3,c\n4,bad\n");
    assert_eq!(counts(&shop.run(text).await), [4, 2, 2, 0, 0]);
    // 2 is mended, 3 changed although it was done, 4 is gone, 5 is new.
    shop.write("items.csv", "id,v\n5,e\n1,a\n2,b\n3,cc\n");
    let error = shop.batch(text).run().await.unwrap_err().to_string();
    assert!(error.contains("the input changed") && error.contains("--accept-changes"), "{error}");
    let summary = shop.batch(text).start_mode(StartMode::AcceptChanges).run().await.unwrap();
    assert_eq!(counts(&summary), [4, 4, 0, 0, 0], "{summary:?}");
    let mut new = shop.lines("effects").split_off(4);
    new.sort();
    assert_eq!(new, ["2=b", "5=e"], "what was done is not done again");
    let summary = shop.batch(text).start_mode(StartMode::Restart).run().await.unwrap();
    assert_eq!(counts(&summary), [4, 4, 0, 0, 0]);
    assert_eq!(shop.lines("effects").len(), 10);
    let none = shop
        .batch(&text.replace("name: t", "name: u"))
        .start_mode(StartMode::Resume)
        .run()
        .await
        .unwrap_err();
    assert!(matches!(none, BatchError::NothingToResume(_)));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_enqueue_adds_only_what_is_missing() {
    let shop = Shop::new();
    let text = job(12, "[ ${item} != 3 ] || exit 1", "");
    assert_eq!(counts(&shop.run(&text).await), [12, 11, 1, 0, 0]);
    let effects = shop.lines("effects").len();
    // As if the process had been killed before it noted that everything was enqueued.
    let kept = shop.store.kv_get("run".into(), "t".into()).await.unwrap().unwrap();
    let mut state: serde_json::Value = serde_json::from_slice(&kept.value).unwrap();
    state["stage"] = "enqueueing".into();
    let bytes = serde_json::to_vec(&state).unwrap();
    shop.store.kv_put("run".into(), "t".into(), Some(bytes), kept.version).await.unwrap();
    assert_eq!(counts(&shop.run(&text).await), [12, 11, 1, 0, 0]);
    assert_eq!(shop.lines("effects").len(), effects);
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_sent_back_by_hand_are_finished_by_the_next_run() {
    let shop = Shop::new();
    let text = job(4, "[ ${item} != 3 ] || [ -e mended ] || exit 1", "");
    shop.run(&text).await;
    shop.write("mended", "");
    shop.act(Act::retry()).await;
    assert_eq!(counts(&shop.run(&text).await), [4, 4, 0, 0, 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn items_closed_or_removed_by_hand_are_skipped_and_the_run_finishes() {
    for acts in [vec![Act::Resolve], vec![Act::Abandon], vec![Act::Resolve, Act::Purge]] {
        let shop = Shop::new();
        let extra = "on_item_failure: stop\nreduce: ['wc -l < ${results_file}']";
        let text = job(5, THREE_FAILS, extra);
        let text =
            text.replace("max_parallel: 4", "max_parallel: 1").replace("max_attempts: 2", "max_attempts: 1");
        let first = shop.run(&text).await;
        assert_eq!((first.stopped.is_some(), counts(&first)), (true, [5, 2, 1, 0, 2]));
        for act in &acts {
            shop.act(act.clone()).await;
        }
        let summary = shop.run(&text).await;
        assert_eq!(counts(&summary), [5, 4, 0, 1, 0], "{acts:?}");
        assert_eq!(summary.output.as_deref().map(str::trim), Some("4"), "{acts:?}: reduce ran");
        let again = shop.run(&text).await;
        assert_eq!((again.already_finished, counts(&again)), (true, [5, 4, 0, 1, 0]), "{acts:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reduce_runs_again_when_as_many_results_are_other_ones() {
    let shop = Shop::new();
    let text = "name: t\ninput: {file: items.csv}\nkey: id\nmap: ['echo ${item.id}']\nreduce: ['cp ${results_file} all']\n";
    shop.write("items.csv", "id\n1\n2\n");
    assert!(shop.run(text).await.is_complete());
    shop.write("items.csv", "id\n1\n3\n");
    let summary = shop.batch(text).start_mode(StartMode::AcceptChanges).run().await.unwrap();
    assert_eq!(counts(&summary), [2, 2, 0, 0, 0]);
    assert!(shop.lines("all")[1].contains("\"id\":\"3\""), "{:?}", shop.lines("all"));
    let again = shop.run(text).await;
    assert!(again.already_finished && again.output.is_none(), "{again:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_item_of_the_run_is_neither_executed_nor_lost() {
    let shop = Shop::new();
    shop.enqueue_by_hand().await;
    let text = job(4, "[ -e mended ] || [ ${item} != 3 ] || exit 1", "");
    let summary = shop.run(&text.replace("max_attempts: 2", "max_attempts: 1")).await;
    assert_eq!(counts(&summary), [4, 3, 1, 0, 0]);
    assert_eq!(shop.lines("effects").len(), 4, "it was not executed");
    let is_refused = |letter: &DeadLetter| letter.error.message.contains("not an item of this run");
    let letters = shop.letters().await;
    assert_eq!(letters.iter().filter(|letter| is_refused(letter)).count(), 1, "{letters:?}");
    assert!(letters.iter().all(|letter| !letter.record.status.is_closed()));

    // A letter of an earlier run, sent back.
    let shop = Shop::new();
    shop.run(&text).await;
    shop.write("mended", "");
    let stopping = text + "max_failures: 1\n";
    let anew = shop.batch(&stopping).start_mode(StartMode::Restart).run().await.unwrap();
    assert_eq!(counts(&anew), [4, 4, 0, 0, 0]);
    let effects = shop.lines("effects").len();
    shop.act(Act::Reopen).await;
    shop.act(Act::retry()).await;
    let summary = shop.run(&stopping).await;
    assert_eq!((counts(&summary), summary.stopped), ([4, 4, 0, 0, 0], None), "no failure of the run");
    assert_eq!(shop.lines("effects").len(), effects);
    let letter = shop.letters().await.remove(0);
    assert!(is_refused(&letter) && !letter.record.status.is_closed(), "{letter:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn letters_of_others_are_left_alone() {
    for extra in ["on_item_failure: skip", "on_item_failure: {custom: {command: 'cat > /dev/null'}}"] {
        let shop = Shop::new();
        shop.enqueue_by_hand().await;
        assert_eq!(counts(&shop.run(&job(4, THREE_FAILS, extra)).await), [4, 3, 0, 1, 0], "{extra}");
        let letters = shop.letters().await;
        let closed: Vec<&[u8]> = letters
            .iter()
            .filter(|letter| letter.record.status.is_closed())
            .map(|letter| letter.message.envelope.payload.bytes.as_slice())
            .collect();
        assert_eq!((letters.len(), closed), (2, vec![b"3".as_slice()]), "{extra}");
    }
}

#[tokio::test]
async fn bad_input_is_found_before_anything_runs() {
    let shop = Shop::new();
    shop.write("items.csv", "id,v\n1,a\n2\n");
    let text = "name: t\ninput: {file: items.csv}\nmap: ['echo ${item.id} >> effects']\n";
    let error = shop.batch(text).run().await.unwrap_err().to_string();
    assert!(error.contains("items.csv: line 3: column 2"), "{error}");
    let failing = "name: t\ninput: {command: 'echo oh no >&2; exit 4'}\nmap: [true]\n";
    let error = shop.batch(failing).run().await.unwrap_err().to_string();
    assert!(error.contains("exit code 4: oh no"), "{error}");
    let skipping = text.replace("items.csv}", "items.csv, on_bad_row: skip}");
    let summary = shop.run(&skipping).await;
    assert_eq!((counts(&summary), summary.bad_rows), ([1, 1, 0, 0, 0], 1));
    let unset = shop.batch(&skipping.replace("item.id", "var.x")).run().await.unwrap_err().to_string();
    assert!(unset.contains("line 3: map: ${var.x} has no value; give --var x=VALUE"), "{unset}");
    let plan = shop.batch(&skipping).dry_run().await.unwrap();
    assert_eq!(plan.items[0].commands, ["echo '1' >> effects"]);
}
