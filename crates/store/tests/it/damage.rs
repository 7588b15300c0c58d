//! Damage is reported, never served and never an absence (I46): every column of a message, a dead letter, a failure and
//! a stack is changed behind the store's back, by SQL and by flipped bits in the file, and whoever reads, lists, leases
//! or asks `doctor` is told, while the records beside it go on as if nothing had happened.

use redrive_core::dead_letter::{Act, ActRequest, Actor, DeadLetter};
use redrive_core::error::{Error, Refusal, StoreError, StoreErrorKind};
use redrive_core::failure::{ErrorInfo, Report};
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

/// The letter and the message that are damaged, and those beside them that are not.
const DEAD: u8 = 1;
const DEAD_WHOLE: u8 = 2;
const LIVE: u8 = 3;
const LIVE_WHOLE: u8 = 4;

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
    LeaseRequest { queues: vec![q()], max, lease_for: None, worker: "worker-one".into() }
}

/// Two dead letters, each with a failure and a stack of its own, and two messages that wait.
fn made() -> TempDir {
    let home = TempDir::new().unwrap();
    block(async {
        let store = open(home.path());
        let policy = QueuePolicy { max_attempts: 1, ..QueuePolicy::default() };
        store.configure(q(), policy, actor()).await.unwrap();
        for n in [DEAD, DEAD_WHOLE] {
            store.enqueue(vec![new(n)]).await.unwrap().remove(0).unwrap();
            let delivery = store.lease(request(1)).await.unwrap().remove(0);
            let error = ErrorInfo {
                error_type: format!("GatewayTimeout{n}"),
                message: format!("the upstream of {n} timed out"),
                stack: Some(format!("at pay.rs:{n}00\nat main.rs:{n}")),
                ..ErrorInfo::default()
            };
            let failure = Report { error, ..Report::default() }.analyse();
            let what = Settle::Fail { failure: Box::new(failure), said: None };
            store.settle(vec![Settlement { token: delivery.token, what }]).await.unwrap().remove(0).unwrap();
        }
        store.enqueue(vec![new(LIVE), new(LIVE_WHOLE)]).await.unwrap();
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

/// Changes a column to something else of its type, or to something where there was nothing.
fn spoil(home: &TempDir, table: &str, column: &str, seq: u8) {
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

fn is_damaged(error: &Error) -> bool {
    matches!(error, Error::Store(StoreError { kind: StoreErrorKind::Damaged, .. }))
}

async fn act(store: &SqliteStore, n: u8) -> Result<(), Refusal> {
    let request = ActRequest { id: id(n), act: Act::Resolve, actor: actor(), expected_version: None };
    store.act(vec![request]).await.unwrap().remove(0).map(|_| ())
}

/// Everybody who comes across the damaged letter is told, and the other one is served.
async fn assert_letter_set_aside(store: &SqliteStore, what: &str) {
    let (shown, damaged) = letters(store).await;
    assert_eq!(shown.iter().map(DeadLetter::id).collect::<Vec<_>>(), [id(DEAD_WHOLE)], "{what}");
    assert_eq!(damaged.len(), 1, "{what}: {damaged:?}");
    assert!(damaged[0].contains("doctor --repair"), "{what}: {damaged:?}");
    let exported = store.export(Query::default()).await.unwrap();
    assert_eq!((exported.items.len(), exported.damaged.len()), (1, 1), "{what}");
    let dlq = shown[0].file.dlq.clone();
    let lease = LetterLeaseRequest { dlq, max: 1, lease_for: None, worker: "c".into() };
    let leased = store.lease_letters(lease).await.unwrap();
    assert!(leased.iter().all(|delivery| delivery.letter.id() == id(DEAD_WHOLE)), "{what}");
    let v = verified(store).await;
    assert!(v.findings.iter().any(|f| f.invariant == "I46"), "{what}: {:?}", v.findings);
}

#[test]
fn i46_damage_in_any_column_of_a_letter_is_reported_and_set_aside() {
    let home = made();
    for column in columns(&home, "letters").into_iter().filter(|column| column != "death") {
        let home = copy(&home);
        spoil(&home, "letters", &column, DEAD);
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
    let home = made();
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
            let told = format!("{:?}", mended.message.failures);
            assert!(told.contains("was set aside"), "{sql}: {told}");
        });
    }
}

#[test]
fn i46_damage_in_any_column_of_a_message_is_reported_and_set_aside() {
    let home = made();
    for column in columns(&home, "messages") {
        let home = copy(&home);
        spoil(&home, "messages", &column, LIVE);
        block(async {
            let store = open(home.path());
            let v = verified(&store).await;
            assert!(v.findings.iter().any(|f| f.invariant == "I46"), "{column}: {:?}", v.findings);
            // What is not summed follows from what is: nobody is shown it, and `doctor` compares it.
            if column == "delayed" {
                return;
            }
            let (shown, damaged) = messages(&store).await;
            assert_eq!(shown.iter().map(|m| m.envelope.id).collect::<Vec<_>>(), [id(LIVE_WHOLE)], "{column}");
            assert_eq!(damaged.len(), 1, "{column}: {damaged:?}");
            if column != "id" {
                assert!(is_damaged(&store.message(id(LIVE)).await.unwrap_err()), "{column}");
            }
            let taken = store.lease(request(9)).await.unwrap();
            assert_eq!(taken.len(), 1, "{column}: the damaged one is handed to nobody");
            let ack = Settlement { token: taken[0].token, what: Settle::Ack };
            store.settle(vec![ack]).await.unwrap().remove(0).unwrap();
        });
    }
}

#[test]
fn i46_doctor_sets_damaged_records_aside_and_everything_adds_up_again() {
    let home = made();
    spoil(&home, "letters", "kind", DEAD);
    spoil(&home, "messages", "kind", LIVE);
    block(async {
        let store = open(home.path());
        let found = verified(&store).await;
        assert!(found.findings.iter().filter(|f| f.invariant == "I46").all(|f| f.repairable), "{found:?}");
        store.verify(VerifyRequest { deep: true, repair: true }).await.unwrap();
        let v = verified(&store).await;
        assert!(v.is_clean(), "{:?}", v.findings);
        let (shown, damaged) = letters(&store).await;
        assert_eq!((shown.len(), damaged.len()), (1, 0));
        assert!(matches!(store.letter(id(DEAD)).await, Err(Error::Refused(Refusal::NoSuchLetter { .. }))));
        assert_eq!(act(&store, DEAD_WHOLE).await, Ok(()));
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

/// Whatever bit is flipped where these words lie: what is shown is what was written, or it is not shown.
#[test]
fn i46_a_flipped_bit_is_never_served_as_good() {
    let home = made();
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
                let whole = |letter: &DeadLetter| {
                    dead.iter().any(|was| was.message == letter.message && was.error == letter.error)
                };
                assert!(shown.iter().all(whole), "{word} at {at}");
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
    assert!(reported >= 6, "every word lies in a record: {reported}");
}
