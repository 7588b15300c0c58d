//! The work that is interrupted: producers, workers and an operator on one store, until the process is killed.
//! Every answer is logged after it came, every intention that may remove something before it is sent.
//!
//! | line | means | line | means |
//! |---|---|---|---|
//! | `e id` | will be sent | `E id key` | is accepted, with this key or `-` |
//! | `a id` | will be acked | `A id` | is acked |
//! | `c id` | will be cancelled | `C id` | is cancelled |
//! | `x id` | letter will be purged | `X id` | letter is purged |
//! | `L id n` | is delivered for the n-th time | `D id` | is dead |
//! | `F id`, `B id` | is back after failing, after release | `T id n` | letter is retried for the n-th time |
//! | `V id` | letter is resolved | `Q n` | the small value is n |
//! | `S` | queue rules are set, paused or resumed | `r verb id` | was refused |
//! | `! …` | something is wrong | | |

use super::Outcome;
use super::replies::Log;
use super::rng::{Rng, payload};
use super::steps::{failure, rules};
use redrive::OpenOptions;
use redrive::core::dead_letter::{Act, ActRequest, Actor, Status};
use redrive::core::ids::{MessageId, QueueName};
use redrive::core::lifecycle::State;
use redrive::core::message::{Delivery, NewMessage, Payload, Priority};
use redrive::core::policy::QueuePolicy;
use redrive::core::query::{PageRequest, Query};
use redrive::core::store::{LeaseRequest, Settle, Settlement, Store};
use redrive::core::time::Span;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

/// The queue of it all.
pub const QUEUE: &str = "jobs";
/// The small value that the operator counts up.
pub const COUNTER: (&str, &str) = ("torture", "counter");
/// Live messages at most, so that a check stays quick.
const LIVE_MAX: u64 = 1_000;
/// Letters that the operator lets lie.
const LETTERS_MAX: usize = 150;

/// The number that a message's payload is made from.
#[must_use]
pub fn number(id: MessageId) -> u64 {
    id.to_bytes().iter().fold(7, |n, byte| n.wrapping_mul(0x0100_0000_01b3) ^ u64::from(*byte))
}

fn actor() -> Actor {
    Actor::new("torture", "work")
}

struct Site {
    store: Arc<dyn Store>,
    log: Log,
    queue: QueueName,
}

/// Works until it is killed. Says `open` on standard output when the store is.
///
/// # Errors
/// When the store does not open or answers with an error: neither must happen here.
pub fn run(data: &Path, log: &Path, producers: u64, workers: u64, seed: u64) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let store = redrive::open(data, OpenOptions::default()).await?;
        let site = Arc::new(Site { store, log: Log::open(log)?, queue: QUEUE.parse()? });
        let mut out = std::io::stdout();
        out.write_all(b"open\n")?;
        out.flush()?;
        set_up(&site).await?;
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..producers {
            let site = Arc::clone(&site);
            tasks.spawn(async move { produce(&site, Rng::of(&[seed, n, 1])).await });
        }
        for n in 0..workers {
            let site = Arc::clone(&site);
            tasks.spawn(async move { work(&site, n, Rng::of(&[seed, n, 2])).await });
        }
        tasks.spawn(async move { operate(&site, Rng::of(&[seed, 3])).await });
        // Nobody ever finishes; whoever comes back has found something wrong.
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        Ok(())
    })
}

async fn set_up(site: &Site) -> Outcome<()> {
    // Rules that change nothing leave no row in the audit trail, and every act here is counted on to leave one.
    let known = site.store.queue(site.queue.clone()).await.ok().and_then(|queue| queue.policy.max_messages);
    let most = if known == Some(LIVE_MAX) { LIVE_MAX + 1 } else { LIVE_MAX };
    let policy = QueuePolicy { max_messages: Some(most), ..rules(3, Span::from_millis(150), Span::ZERO) };
    site.store.configure(site.queue.clone(), policy, actor()).await?;
    site.log.say("S")?;
    site.store.pause(site.queue.clone(), false, actor()).await?;
    Ok(site.log.say("S")?)
}

async fn produce(site: &Site, mut rng: Rng) -> Outcome<()> {
    let mut last: Option<NewMessage> = None;
    loop {
        let mut batch = Vec::new();
        for _ in 0..1 + rng.below(4) {
            let id = redrive::new_id();
            let bytes = payload(number(id));
            let message = NewMessage {
                priority: Some(Priority::from_level(rng.index(5))),
                key: rng.one_in(4).then(|| format!("key-{id}")),
                ordering_key: rng.one_in(8).then(|| format!("order-{}", rng.below(200))),
                delay: rng.one_in(4).then_some(Span::ZERO),
                ..NewMessage::new(id, site.queue.clone(), Payload { bytes, content_type: String::new() })
            };
            site.log.say(&format!("e {id}"))?;
            batch.push(message);
        }
        if rng.one_in(8) {
            // A sender that did not hear the answer asks again. Only a key makes that harmless for ever: an id
            // is forgotten with its message.
            batch.extend(last.take());
        }
        let sent = batch.clone();
        let mut full = false;
        for (message, result) in sent.iter().zip(site.store.enqueue(batch).await?) {
            match result {
                Ok(accepted) if accepted.id != message.id => {
                    site.log.say(&format!("! {} became {}", message.id, accepted.id))?;
                }
                Ok(_) => {
                    site.log.say(&format!("E {} {}", message.id, message.key.as_deref().unwrap_or("-")))?;
                }
                Err(_) => {
                    full = true;
                    site.log.say(&format!("r e {}", message.id))?;
                }
            }
        }
        last = sent.into_iter().rfind(|message| message.key.is_some()).filter(|_| !full);
        if full {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }
}

async fn work(site: &Site, n: u64, mut rng: Rng) -> Outcome<()> {
    loop {
        let request = LeaseRequest {
            queues: vec![site.queue.clone()],
            max: 1 + rng.index(4),
            lease_for: Some(Span::from_millis(100 + rng.below(200))),
            worker: format!("worker{n}"),
        };
        let deliveries = site.store.lease(request).await?;
        if deliveries.is_empty() {
            site.store.wait(vec![site.queue.clone()], Span::from_millis(20)).await?;
            continue;
        }
        let mut batch = Vec::new();
        for delivery in deliveries {
            batch.extend(
                received(site, &delivery, &mut rng)?.map(|what| Settlement { token: delivery.token, what }),
            );
        }
        let said: Vec<(MessageId, bool)> =
            batch.iter().map(|s: &Settlement| (s.token.id, s.what == Settle::Ack)).collect();
        for ((id, acked), result) in said.into_iter().zip(site.store.settle(batch).await?) {
            let line = match result {
                Ok(_) if acked => format!("A {id}"),
                Ok(settled) if settled.state == State::Dead => format!("D {id}"),
                Ok(_) => format!("B {id}"),
                Err(_) if acked => format!("r a {id}"),
                Err(_) => continue,
            };
            site.log.say(&line)?;
        }
    }
}

/// Takes note of a delivery and decides what to say about it; nothing when its lease is to run out.
fn received(site: &Site, delivery: &Delivery, rng: &mut Rng) -> Outcome<Option<Settle>> {
    let message = &delivery.message;
    let id = message.envelope.id;
    site.log.say(&format!("L {id} {}", message.deliveries))?;
    if message.envelope.payload.bytes != payload(number(id)) {
        site.log.say(&format!("! {id} was delivered with other bytes"))?;
    }
    let which = u8::try_from(rng.below(6)).unwrap_or(0);
    Ok(match rng.below(40) {
        0..=25 => {
            site.log.say(&format!("a {id}"))?;
            Some(Settle::Ack)
        }
        26..=33 => Some(failure(which, false)),
        34 | 35 => Some(failure(which, true)),
        36..=38 => Some(Settle::Release),
        _ => None,
    })
}

async fn operate(site: &Site, mut rng: Rng) -> Outcome<()> {
    loop {
        let query = || Query { page: PageRequest::first(LETTERS_MAX + 50), ..Query::default() };
        let letters = site.store.letters(query()).await?.items;
        let crowded = letters.len() > LETTERS_MAX;
        for _ in 0..if crowded { 40 } else { 4 } {
            let Some(letter) = rng.pick(&letters) else { break };
            let id = letter.id();
            let act = match letter.file.status {
                Status::Pending if rng.one_in(2) => Act::retry(),
                Status::Pending => Act::Resolve,
                Status::Resolved if crowded => Act::Purge,
                Status::Resolved
                | Status::Retrying
                | Status::Review
                | Status::Quarantined
                | Status::Abandoned
                | Status::Purged => {
                    continue;
                }
            };
            if act == Act::Purge {
                site.log.say(&format!("x {id}"))?;
            }
            let request = ActRequest { id, act: act.clone(), actor: actor(), expected_version: None };
            let done = site.store.act(vec![request]).await?.into_iter().next();
            match (done, act) {
                (Some(Ok(_)), Act::Purge) => site.log.say(&format!("X {id}"))?,
                (Some(Ok(_)), Act::Retry { .. }) => {
                    site.log.say(&format!("T {id} {}", letter.file.redrives + 1))?;
                }
                (Some(Ok(_)), _) => site.log.say(&format!("V {id}"))?,
                (_, Act::Purge) => site.log.say(&format!("r x {id}"))?,
                _ => {}
            }
        }
        steer(site, &mut rng).await?;
        count_up(site).await?;
    }
}

/// Cancels a message, or halts the queue for a moment.
async fn steer(site: &Site, rng: &mut Rng) -> Outcome<()> {
    if rng.one_in(4) {
        for paused in [true, false] {
            site.store.pause(site.queue.clone(), paused, actor()).await?;
            site.log.say("S")?;
        }
    }
    let page = PageRequest::first(20);
    let live = site.store.messages(Query { page, ..Query::default() }).await?.items;
    let Some(id) = rng.pick(&live).map(|message| message.envelope.id) else { return Ok(()) };
    site.log.say(&format!("c {id}"))?;
    let done = site.store.cancel(vec![id], actor()).await?.into_iter().next();
    site.log.say(&if done.is_some_and(|result| result.is_ok()) {
        format!("C {id}")
    } else {
        format!("r c {id}")
    })?;
    Ok(())
}

/// Counts the small value up.
async fn count_up(site: &Site) -> Outcome<()> {
    let (space, key) = (COUNTER.0.to_owned(), COUNTER.1.to_owned());
    let entry = site.store.kv_get(space.clone(), key.clone()).await?;
    let version = entry.map_or(0, |entry| entry.version);
    let next = site.store.kv_put(space, key, Some((version + 1).to_be_bytes().to_vec()), version).await?;
    Ok(site.log.say(&format!("Q {next}"))?)
}
