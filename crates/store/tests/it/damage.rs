//! Damage is reported, and a damaged record is neither served nor treated as absent (I46). The tests change every
//! column of a message, a dead letter, a failure and a stack behind the store's back, by SQL and by flipping bits in
//! the file. Reading, listing, leasing and `doctor` must report it, while the records beside it stay in use.

use redrive_core::dead_letter::{Act, ActRequest, Actor, DeadLetter};
use redrive_core::error::{CallError, Refusal, StoreError, StoreErrorKind};
use redrive_core::failure::{ErrorInfo, FailureReport};
use redrive_core::ids::{MessageId, QueueName};
use redrive_core::invariants::Verification;
use redrive_core::message::{Message, NewMessage, Payload};
use redrive_core::policy::QueuePolicy;
use redrive_core::query::Query;
use redrive_core::store::{
    LeaseRequest, LetterLeaseRequest, Letters as _, Settle, Settlement, Store as _, VerifyRequest, Work as _,
};
use redrive_store::sqlite::{Options, SqliteStore};
use rusqlite::Connection;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// The letter and the message that are damaged, and the intact ones beside them.
const DEAD: u8 = 1;
const DEAD_INTACT: u8 = 2;
const LIVE: u8 = 3;
const LIVE_INTACT: u8 = 4;

fn q() -> QueueName {
    "q".parse().unwrap()
}

fn id(n: u8) -> MessageId {
    MessageId::new(u64::from(n), [n; 10])
}

fn actor() -> Actor {
    Actor::new("ada", "test")
}

fn block<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap().block_on(work)
}

fn open(at: &Path) -> SqliteStore {
    SqliteStore::open(at, Options::default()).unwrap()
}

fn new(n: u8) -> NewMessage {
    let payload = Payload { bytes: vec![n; 40], content_type: "x/y".into() };
    NewMessage { kind: format!("charge-{n}"), ..NewMessage::new(id(n), q(), payload) }
}

fn request(max: usize) -> LeaseRequest {
    LeaseRequest {
        queues: vec![q()],
        max,
        lease_for: None,
        worker: "worker-one".into(),
        ..LeaseRequest::default()
    }
}

/// Creates two dead letters, each with a failure and a stack of its own, and two waiting messages.
fn create() -> TempDir {
    let home = TempDir::new().unwrap();
    block(async {
        let store = open(home.path());
        let policy = QueuePolicy { max_attempts: 1, ..QueuePolicy::default() };
        store.configure(q(), policy, actor()).await.unwrap();
        for n in [DEAD, DEAD_INTACT] {
            store.enqueue(vec![new(n)]).await.unwrap().remove(0).unwrap();
            let delivery = store.lease(request(1)).await.unwrap().remove(0);
            let error = ErrorInfo {
                error_type: format!("GatewayTimeout{n}"),
                message: format!("the upstream of {n} timed out"),
                stack: Some(format!("at pay.rs:{n}00\nat main.rs:{n}")),
                ..ErrorInfo::default()
            };
            let failure = FailureReport { error, ..FailureReport::default() }.analyse();
            let what = Settle::Fail { failure: Box::new(failure), policy_override: None };
            store.settle(vec![Settlement { token: delivery.token, what }]).await.unwrap().remove(0).unwrap();
        }
        store.enqueue(vec![new(LIVE), new(LIVE_INTACT)]).await.unwrap();
        assert!(verified(&store).await.is_clean());
    });
    home
}

fn copy(home: &TempDir) -> TempDir {
    let copy = TempDir::new().unwrap();
    for name in ["redrive.db", "audit.key", "commits"] {
        fs::copy(home.path().join(name), copy.path().join(name)).unwrap();
    }
    copy
}

fn change(home: &TempDir, sql: &str) {
    let connection = Connection::open(home.path().join("redrive.db")).unwrap();
    let changed = connection.execute(sql, []).unwrap();
    assert!(changed > 0, "{sql}");
}

fn columns(home: &TempDir, table: &str) -> Vec<String> {
    let connection = Connection::open(home.path().join("redrive.db")).unwrap();
    let mut statement =
        connection.prepare(&format!("SELECT name FROM pragma_table_info('{table}')")).unwrap();
    let names = statement.query_map([], |row| row.get(0)).unwrap();
    names.collect::<Result<_, _>>().unwrap()
}

/// Changes the value of a column to another one of its type, or a NULL to a value.
fn damage(home: &TempDir, table: &str, column: &str, seq: u8) {
    let other = format!(
        "CASE typeof({column}) WHEN 'integer' THEN {column} + 1 WHEN 'text' THEN {column} || 'x' \
         WHEN 'blob' THEN zeroblob(length({column})) ELSE 7 END"
    );
    change(home, &format!("UPDATE {table} SET {column} = {other} WHERE seq = {seq}"));
}

async fn verified(store: &SqliteStore) -> Verification {
    store.verify(VerifyRequest { deep: true, repair: false }).await.unwrap()
}

async fn letters(store: &SqliteStore) -> (Vec<DeadLetter>, Vec<String>) {
    let page = store.letters(Query::default()).await.unwrap();
    (page.items, page.damaged)
}

async fn messages(store: &SqliteStore) -> (Vec<Message>, Vec<String>) {
    let page = store.messages(Query::default()).await.unwrap();
    (page.items, page.damaged)
}

fn is_damaged(error: &CallError) -> bool {
    matches!(error, CallError::Store(StoreError { kind: StoreErrorKind::Damaged, .. }))
}

async fn act(store: &SqliteStore, n: u8) -> Result<(), Refusal> {
    let request = ActRequest { id: id(n), act: Act::Resolve, actor: actor(), expected_version: None };
    store.act(vec![request]).await.unwrap().remove(0).map(|_| ())
}

/// Asserts that every read reports the damaged letter and that the other one is served.
async fn assert_letter_set_aside(store: &SqliteStore, what: &str) {
    let (shown, damaged) = letters(store).await;
    assert_eq!(shown.iter().map(DeadLetter::id).collect::<Vec<_>>(), [id(DEAD_INTACT)], "{what}");
    assert_eq!(damaged.len(), 1, "{what}: {damaged:?}");
    assert!(damaged[0].contains("doctor --repair"), "{what}: {damaged:?}");
    let exported = store.export(Query::default()).await.unwrap();
    assert_eq!((exported.items.len(), exported.damaged.len()), (1, 1), "{what}");
    let dlq = shown[0].record.dlq.clone();
    let lease = LetterLeaseRequest { dlq, max: 1, lease_for: None, worker: "c".into() };
    let leased = store.lease_letters(lease).await.unwrap();
    assert!(leased.iter().all(|delivery| delivery.letter.id() == id(DEAD_INTACT)), "{what}");
    let v = verified(store).await;
    assert!(v.findings.iter().any(|f| f.invariant == "I46"), "{what}: {:?}", v.findings);
}

#[test]
fn i46_damage_in_any_column_of_a_letter_is_reported_and_set_aside() {
    let home = create();
    for column in columns(&home, "letters").into_iter().filter(|column| column != "death") {
        let home = copy(&home);
        damage(&home, "letters", &column, DEAD);
        block(async {
            let store = open(home.path());
            assert_letter_set_aside(&store, &column).await;
            if column != "id" {
                let error = store.letter(id(DEAD)).await.unwrap_err();
                assert!(is_damaged(&error), "{column}: {error}");
                let refused = act(&store, DEAD).await.unwrap_err();
                assert!(matches!(refused, Refusal::Damaged { .. }), "{column}: {refused}");
            }
            assert_eq!(store.lease(request(9)).await.unwrap().len(), 2, "{column}: work goes on");
        });
    }
}

#[test]
fn i46_damage_in_a_failure_or_its_stack_is_reported_and_set_aside() {
    let home = create();
    let body = |from: &str, to: &str| {
        format!("UPDATE failures SET body = replace(body, '{from}', '{to}') WHERE seq = {DEAD}")
    };
    let damages = [
        body("timed out", "tamed out"),
        body("GatewayTimeout1", "GatewayTimeouu1"),
        body("worker-one", "worker-two"),
        format!("UPDATE failures SET stack = NULL WHERE seq = {DEAD}"),
        format!("UPDATE failures SET n = n + 1 WHERE seq = {DEAD}"),
        format!("UPDATE failures SET checksum = checksum + 1 WHERE seq = {DEAD}"),
        "UPDATE stacks SET body = replace(body, 'pay.rs:1', 'pay.rs:7') WHERE body LIKE '%pay.rs:100%'"
            .into(),
        "UPDATE stacks SET checksum = NULL WHERE body LIKE '%pay.rs:100%'".into(),
        "DELETE FROM stacks WHERE body LIKE '%pay.rs:100%'".into(),
    ];
    for sql in &damages {
        let home = copy(&home);
        change(&home, sql);
        block(async {
            let store = open(home.path());
            assert_letter_set_aside(&store, sql).await;
            assert!(is_damaged(&store.letter(id(DEAD)).await.unwrap_err()), "{sql}");
            store.verify(VerifyRequest { deep: true, repair: true }).await.unwrap();
            let v = verified(&store).await;
            assert!(v.is_clean(), "{sql}: {:?}", v.findings);
            let mended = store.letter(id(DEAD)).await.unwrap();
            let failures = format!("{:?}", mended.message.failures);
            assert!(failures.contains("was set aside"), "{sql}: {failures}");
        });
    }
}

#[test]
fn i46_damage_in_any_column_of_a_message_is_reported_and_set_aside() {
    let home = create();
    for column in columns(&home, "messages") {
        let home = copy(&home);
        damage(&home, "messages", &column, LIVE);
        block(async {
            let store = open(home.path());
            let v = verified(&store).await;
            assert!(v.findings.iter().any(|f| f.invariant == "I46"), "{column}: {:?}", v.findings);
            // A column without a checksum is derived from others: it is never shown, and `doctor` compares it.
            if column == "delayed" {
                return;
            }
            let (shown, damaged) = messages(&store).await;
            assert_eq!(
                shown.iter().map(|m| m.envelope.id).collect::<Vec<_>>(),
                [id(LIVE_INTACT)],
                "{column}"
            );
            assert_eq!(damaged.len(), 1, "{column}: {damaged:?}");
            if column != "id" {
                assert!(is_damaged(&store.message(id(LIVE)).await.unwrap_err()), "{column}");
            }
            let taken = store.lease(request(9)).await.unwrap();
            assert_eq!(taken.len(), 1, "{column}: the damaged one is leased to nobody");
            let ack = Settlement { token: taken[0].token, what: Settle::Ack };
            store.settle(vec![ack]).await.unwrap().remove(0).unwrap();
        });
    }
}

#[test]
fn i46_doctor_sets_damaged_records_aside_and_everything_adds_up_again() {
    let home = create();
    damage(&home, "letters", "kind", DEAD);
    damage(&home, "messages", "kind", LIVE);
    block(async {
        let store = open(home.path());
        let found = verified(&store).await;
        assert!(found.findings.iter().filter(|f| f.invariant == "I46").all(|f| f.repairable), "{found:?}");
        store.verify(VerifyRequest { deep: true, repair: true }).await.unwrap();
        let v = verified(&store).await;
        assert!(v.is_clean(), "{:?}", v.findings);
        let (shown, damaged) = letters(&store).await;
        assert_eq!((shown.len(), damaged.len()), (1, 0));
        assert!(matches!(
            store.letter(id(DEAD)).await,
            Err(CallError::Refused(Refusal::NoSuchLetter { .. }))
        ));
        assert_eq!(act(&store, DEAD_INTACT).await, Ok(()));
    });
    let connection = Connection::open(home.path().join("redrive.db")).unwrap();
    let kept: Vec<String> = connection
        .prepare("SELECT cells FROM damaged ORDER BY n")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    assert!(kept.len() == 2 && kept.iter().all(|cells| cells.contains("charge-")), "{kept:?}");
}

/// Whichever bit is flipped within these words, a record is shown as it was written or not at all.
#[test]
fn i46_a_flipped_bit_is_never_served_as_good() {
    let home = create();
    let (dead, live) = block(async {
        let store = open(home.path());
        (letters(&store).await.0, messages(&store).await.0)
    });
    let bytes = fs::read(home.path().join("redrive.db")).unwrap();
    let mut reported = 0;
    for word in ["timed out", "GatewayTimeout1", "pay.rs:100", "worker-one", "charge-1", "charge-3"] {
        let places = bytes.windows(word.len()).enumerate().filter(|(_, w)| *w == word.as_bytes());
        for at in places.map(|(at, _)| at).collect::<Vec<_>>() {
            let home = copy(&home);
            let mut flipped = bytes.clone();
            flipped[at + 2] ^= 1;
            fs::write(home.path().join("redrive.db"), flipped).unwrap();
            block(async {
                let store = open(home.path());
                let (shown, damaged_letters) = letters(&store).await;
                let intact = |letter: &DeadLetter| {
                    dead.iter().any(|was| was.message == letter.message && was.error == letter.error)
                };
                assert!(shown.iter().all(intact), "{word} at {at}");
                let (shown, damaged_messages) = messages(&store).await;
                assert!(shown.iter().all(|message| live.contains(message)), "{word} at {at}");
                let damaged = damaged_letters.len() + damaged_messages.len();
                reported += damaged;
                if damaged > 0 {
                    assert!(!verified(&store).await.is_clean(), "{word} at {at}");
                }
            });
        }
    }
    assert!(reported >= 6, "every word is in a record: {reported}");
}
