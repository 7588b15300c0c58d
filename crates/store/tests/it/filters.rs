//! A filter means the same everywhere: for random filters over letters in every state, what the embedded store finds
//! page by page through its indexes, its SQL and its text index is what evaluating the filter on each letter finds,
//! and its counts agree.

use crate::laws::options;
use redrive_core::dead_letter::{Act, ActRequest, Actor, DeadLetter};
use redrive_core::failure::{ErrorInfo, FailureReport};
use redrive_core::filter::Filter;
use redrive_core::ids::{GroupId, MessageId};
use redrive_core::limits;
use redrive_core::message::{NewMessage, Payload, Priority};
use redrive_core::operation::PreviewRequest;
use redrive_core::policy::QueuePolicy;
use redrive_core::query::{PageRequest, Query};
use redrive_core::store::{LeaseRequest, Letters as _, Settle, Settlement, Work as _};
use redrive_core::time::{Clock as _, Span};
use redrive_store::sqlite::SqliteStore;
use redrive_testkit::clock::TestClock;
use std::collections::BTreeMap;
use std::sync::Arc;
use tempfile::TempDir;

/// The number of letters in the store; every filter is evaluated on each.
const LETTERS: u64 = 90;
/// The number of filters per state of the index; four states make more than 20,000 pairs.
const FILTERS: usize = 60;

/// A small random number generator: the same seed gives the same test.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next()).unwrap_or(0) % n.max(1)
    }

    fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

const QUEUES: [&str; 3] = ["pay", "mail", "pay-eu"];
const KINDS: [&str; 4] = ["charge.card", "charge", "Mail", "a*b c"];
const ERRORS: [(&str, &str); 7] = [
    ("GatewayTimeout", "Upstream timed out after 30s"),
    ("GatewayTimeout", "upstream TIMED OUT after 31s \u{130}stanbul"),
    ("sql::Error", "duplicate key \"orders_pkey\" for id 4411"),
    ("sql::Error", "nul \0 in the middle"),
    ("E", "x"),
    ("Größe", "Straße ΟΔΟΣ 日本語のエラー"),
    ("ConnRefused", "connection refused (os error 111) \u{fffe}!"),
];
const PAYLOADS: [&[u8]; 9] = [
    br#"{"order":{"id":4411,"note":"Fragile"},"price":12.50}"#,
    br#"{"order":{"id":4411.0,"note":"fragile\u0021"}}"#,
    br#"{"order":{"id":44.11e2}}"#,
    br#"{"order":{"id":"4411","big":123456789012345678901234567890}}"#,
    "{\"order\":{\"note\":\"Grün\",\"paid\":true,\"none\":null}}".as_bytes(),
    b"plain text with 4411 in it",
    b"\xff\xfe not text 4411",
    b"",
    b"[1,2,{\"order\":{\"id\":4411}}]",
];

fn new_message(n: u64, rng: &mut Random) -> NewMessage {
    let mut bytes = rng.of(&PAYLOADS).to_vec();
    if rng.one_in(12) {
        bytes = vec![b'z'; limits::INDEX_PAYLOAD_BYTES_MAX + rng.below(2)];
    }
    let payload = Payload { bytes, content_type: String::new() };
    let mut new = NewMessage::new(MessageId::new(n, [7; 10]), rng.of(&QUEUES).parse().unwrap(), payload);
    new.kind = (*rng.of(&KINDS)).to_owned();
    new.priority = Some(*rng.of(&Priority::ALL));
    new.key = rng.one_in(2).then(|| format!("key-{}", n % 7 + 10 * n));
    new.ordering_key = rng.one_in(3).then(|| format!("order {n}"));
    new.trace = rng.one_in(2).then(|| format!("00-{n:032x}-01"));
    if rng.one_in(2) {
        new.tags.extend(["vip".to_owned(), format!("t{}", n % 4)]);
        new.headers.insert("x-tenant".into(), format!("acme{}", n % 3));
        new.context = Some(serde_json::json!({ "task": n % 5, "deep": ["a", n] }));
    }
    new
}

struct World {
    store: SqliteStore,
    clock: Arc<TestClock>,
    rng: Random,
}

impl World {
    async fn fail(&mut self, permanent: bool, queues: &[&str]) {
        let (kind, message) = *self.rng.of(&ERRORS);
        let code = self.rng.one_in(2).then(|| "504".to_owned());
        let error =
            ErrorInfo { error_type: kind.into(), message: message.into(), code, ..ErrorInfo::default() };
        let host = self.rng.one_in(2).then(|| format!("host-{}", self.rng.below(3)));
        let step = self.rng.one_in(2).then(|| "connect".to_owned());
        let report = FailureReport {
            error,
            permanent,
            host,
            step,
            version: Some("1.4".into()),
            ..FailureReport::default()
        };
        let what = Settle::Fail { failure: Box::new(report.analyse()), policy_override: None };
        let worker = format!("worker-{}", self.rng.below(4));
        let queues = queues.iter().map(|q| q.parse().unwrap()).collect();
        let leased = self
            .store
            .lease(LeaseRequest { queues, max: 1, lease_for: None, worker, ..LeaseRequest::default() })
            .await
            .unwrap();
        for taken in leased {
            let settlement = Settlement { token: taken.token, what: what.clone() };
            self.store.settle(vec![settlement]).await.unwrap().remove(0).unwrap();
        }
    }

    async fn letters(&self) -> Vec<DeadLetter> {
        self.walk(&Filter::default(), 1_000).await
    }

    async fn walk(&self, filter: &Filter, limit: usize) -> Vec<DeadLetter> {
        let mut all: Vec<DeadLetter> = Vec::new();
        let mut page = PageRequest::first(limit);
        loop {
            let query = Query { filter: filter.clone(), page: page.clone() };
            let found = self.store.letters(query).await.unwrap();
            assert!(found.items.len() <= limit);
            all.extend(found.items);
            match found.next {
                Some(next) => page.cursor = Some(next),
                None => return all,
            }
        }
    }

    /// Every letter with its current content, read one by one.
    async fn each_letter(&self) -> Vec<DeadLetter> {
        let mut all = Vec::new();
        for n in 1..=LETTERS {
            all.extend(self.store.letter(MessageId::new(n, [7; 10])).await);
        }
        all.sort_by_key(|letter| std::cmp::Reverse(letter.death));
        all
    }

    async fn act(&mut self, id: MessageId, act: Act) {
        let actor = Actor::new("test", "test");
        let request = ActRequest { id, act, actor, expected_version: None };
        self.store.act(vec![request]).await.unwrap().remove(0).unwrap();
    }

    /// Brings letters into every status: some are redriven and waiting, some leased, some failed again once, some
    /// dead a second time.
    async fn stir(&mut self) {
        for letter in self.letters().await {
            let pending = letter.record.status.name() == "pending";
            let id = letter.id();
            match self.rng.below(12) {
                0 if pending => self.act(id, Act::Review).await,
                1 if pending => {
                    let until = self.clock.now().plus(Span::from_hours(1));
                    self.act(id, Act::Quarantine { until }).await;
                }
                2 if pending => self.act(id, Act::Resolve).await,
                3 if pending => self.act(id, Act::Abandon).await,
                4 if pending => self.act(id, Act::retry_at(self.clock.now().plus(Span::from_hours(9)))).await,
                5 | 6 if pending => {
                    self.act(id, Act::retry()).await;
                    let permanent = self.rng.one_in(2);
                    self.fail(permanent, &[letter.message.envelope.queue.as_str()]).await;
                }
                _ => {}
            }
            self.clock.advance(Span::from_secs(self.rng.next() % 400));
        }
    }

    /// Compares what the store finds with what evaluating the filter finds.
    async fn compare(&mut self, text: &str, letters: &[DeadLetter], names: &BTreeMap<GroupId, GroupId>) {
        let filter = Filter::parse(text).unwrap();
        let now = self.clock.now();
        let present = filter.with_groups(|id| names.get(&id).copied().unwrap_or(id));
        let expected: Vec<u64> =
            letters.iter().filter(|l| present.matches_letter(l, now)).map(|l| l.death).collect();
        let limit = 1 + self.rng.below(20);
        let found: Vec<u64> = self.walk(&filter, limit).await.iter().map(|l| l.death).collect();
        assert_eq!(found, expected, "pages of {limit}: {text}");
        let counted = self.store.preview(PreviewRequest::new(Act::Note, filter, 3)).await.unwrap();
        let sample: Vec<u64> = counted.sample.iter().map(|l| l.death).collect();
        assert_eq!(counted.count, expected.len() as u64, "counted: {text}");
        assert_eq!(sample, expected.iter().copied().take(3).collect::<Vec<_>>(), "sample: {text}");
    }
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// A part of a text, sometimes in another case.
fn piece(text: &str, rng: &mut Random) -> String {
    let letters: Vec<char> = text.chars().collect();
    if letters.is_empty() || rng.one_in(8) {
        return quoted("nowhere to be found");
    }
    let from = rng.below(letters.len());
    let length = 1 + rng.below(letters.len() - from);
    let part: String = letters[from..from + length].iter().collect();
    quoted(&match rng.below(3) {
        0 => part.to_uppercase(),
        1 => part.to_lowercase(),
        _ => part,
    })
}

/// One term, mostly with a value that some letter has.
fn term(letters: &[DeadLetter], rng: &mut Random) -> String {
    let letter = rng.of(letters).clone();
    let envelope = &letter.message.envelope;
    let op = *rng.of(&[":", "=", ":", "!="]);
    let cmp = *rng.of(&[">", ">=", "<", "<=", ":", "!="]);
    let or = |text: Option<&String>| text.map_or_else(|| "*".to_owned(), |text| quoted(text));
    let n = rng.below(3);
    let prefix = |text: &str| text.chars().take(n + 1).filter(|c| c.is_alphanumeric()).collect::<String>();
    match rng.below(42) {
        0 => format!("id{op}{}", letter.id()),
        1 => format!("queue{op}{}", envelope.queue),
        2 => format!("queue{op}{}*", prefix(envelope.queue.as_str())),
        3 => format!("dlq{op}{}", letter.record.dlq),
        4 => format!("kind{op}{}", quoted(&envelope.kind)),
        5 => format!("kind{op}{}*", prefix(&envelope.kind)),
        6 => format!("status{op}{},review", letter.record.status),
        7 => format!(
            "status:{}",
            rng.of(&["review", "quarantined", "pending", "retrying", "review,quarantined"])
        ),
        8 => format!("reason{op}{}", letter.record.reason),
        9 => format!("route{op}{} category{op}{}", letter.record.route, letter.record.category),
        10 => format!("severity{op}{}", letter.record.severity),
        11 => format!("signature{op}{}", letter.record.leaf),
        12 => format!("signature{op}{}", piece(&letter.signature, rng)),
        13 => format!("group{op}{}", letter.group),
        14 => format!("group{op}{}", letter.record.leaf),
        15 => format!("priority{op}{},high", envelope.priority),
        16 => format!("attempts{cmp}{}", letter.message.attempts),
        17 => format!(
            "deliveries{cmp}{} generation{cmp}{}",
            letter.message.deliveries, letter.message.generation
        ),
        18 => format!("redrives{cmp}{} failures{cmp}{}", letter.record.redrives, letter.message.failed),
        19 => format!("age{}{}s", rng.of(&[">", "<", ">=", "<="]), rng.below(20_000)),
        20 => format!("died{op}{}m failed{op}{}m", rng.below(400), rng.below(400)),
        21 => format!("died{cmp}{}", letter.record.dead_at),
        22 => format!("enqueued{cmp}{}", envelope.enqueued_at),
        23 => format!("worker{op}worker-{} host{op}host-{n}", rng.below(4)),
        24 => format!("tag{op}t{} version{op}1.*", rng.below(4)),
        25 => format!("key{op}{}", or(envelope.key.as_ref())),
        26 => format!("ordering_key{op}{} trace{op}00-*", or(envelope.ordering_key.as_ref())),
        27 => format!("type{op}{}", quoted(&letter.error.error_type)),
        28 => format!("type{op}{}* code{op}504", prefix(&letter.error.error_type)),
        29 => piece(&letter.error.message, rng),
        30 => {
            format!("error{op}{},{}", piece(&letter.error.message, rng), piece(&letter.error.error_type, rng))
        }
        31 => format!("header.x-tenant{op}acme{n} state{op}{}", letter.message.state),
        32 => format!(
            "payload{op}{}",
            piece(
                &String::from_utf8_lossy(&envelope.payload.bytes[..envelope.payload.bytes.len().min(40)]),
                rng
            )
        ),
        33 => format!(
            "payload.order.id{op}{}",
            rng.of(&["4411", "\"4411\"", "44*", "4411.0", "44.11e2", "4000..5000"])
        ),
        34 => format!(
            "payload.order.note{op}{}",
            rng.of(&["Fragile", "fragile!", "\"Grün\"", "frag*", "*", "null"])
        ),
        35 => format!("eligible{op}{} review_required{op}no", rng.of(&["yes", "no"])),
        36 => format!("review_required{op}yes alert{op}no"),
        37 => format!("recoverability{op}{} erased{op}no", letter.record.recoverability),
        38 => format!("first_failed{cmp}{}", letter.record.first_failed_at.unwrap_or(letter.record.dead_at)),
        39 => format!("closed{}{}m", rng.of(&[":", "!="]), rng.below(400)),
        40 => format!("closed_by{op}test resolution{op}*"),
        41 => format!("step{op}{} operation{op}*", rng.of(&["connect", "con*", "other"])),
        _ => format!("context.task{op}{} payload.order.paid:true,null", rng.below(5)),
    }
}

fn filter(letters: &[DeadLetter], rng: &mut Random, depth: usize) -> String {
    match rng.below(if depth == 0 { 3 } else { 8 }) {
        0..=3 => term(letters, rng),
        4 => format!("({} {})", filter(letters, rng, depth - 1), filter(letters, rng, depth - 1)),
        5 => format!("({} or {})", filter(letters, rng, depth - 1), filter(letters, rng, depth - 1)),
        6 => format!("not ({})", filter(letters, rng, depth - 1)),
        _ => format!("{} and {}", term(letters, rng), filter(letters, rng, depth - 1)),
    }
}

fn seed() -> u64 {
    std::env::var("REDRIVE_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(0x5eed)
}

#[tokio::test]
async fn the_store_and_the_evaluator_agree_on_every_filter() {
    let home = TempDir::new().unwrap();
    let clock = TestClock::shared();
    let store = SqliteStore::open(&home.path().join("data"), options(&clock)).unwrap();
    let mut world = World { store, clock, rng: Random(seed() | 1) };
    let actor = Actor::new("test", "test");
    let searched = QueuePolicy { search_payload: true, max_attempts: 3, ..QueuePolicy::default() };
    world.store.configure("pay".parse().unwrap(), searched, actor.clone()).await.unwrap();
    for n in 1..=LETTERS {
        let new = new_message(n, &mut world.rng);
        let queue = new.queue.to_string();
        world.store.enqueue(vec![new]).await.unwrap().remove(0).unwrap();
        world.fail(true, &[&queue]).await;
        world.clock.advance(Span::from_secs(world.rng.next() % 600));
    }
    // The text index holds nothing; then a part; then all letters, many of them changed since; then the changes too.
    let mut pairs = 0;
    for state in 0..4 {
        match state {
            1 => {
                world.stir().await;
                assert!(world.store.index_text(30).await.unwrap().more);
                let groups = world.store.groups(PageRequest::first(10).into()).await.unwrap().items;
                world
                    .store
                    .merge_groups(groups.iter().take(2).map(|g| g.id).collect(), actor.clone())
                    .await
                    .unwrap();
            }
            2 => {
                while world.store.index_text(1_000).await.unwrap().more {}
                world.stir().await;
            }
            3 => while world.store.index_text(7).await.unwrap().more {},
            _ => {}
        }
        let letters = world.each_letter().await;
        let mut names = BTreeMap::new();
        for letter in &letters {
            names.insert(letter.record.leaf, letter.group);
        }
        for _ in 0..FILTERS {
            let text = filter(&letters, &mut world.rng, 3);
            world.compare(&text, &letters, &names).await;
            pairs += letters.len();
        }
    }
    assert!(pairs >= 10_000, "{pairs} pairs");
}
