//! The workload that is interrupted: producers, workers and an operator on one store, until the process is
//! killed. Every reply is logged after it arrived; every call that may remove something is logged before it
//! is made.
//!
//! | line | means | line | means |
//! |---|---|---|---|
//! | `e id` | will be sent | `E id key` | is accepted, with this key or `-` |
//! | `a id` | will be acked | `A id` | is acked |
//! | `c id` | will be cancelled | `C id` | is cancelled |
//! | `x id` | letter will be purged | `X id` | letter is purged |
//! | `L id n` | is delivered for the n-th time | `D id` | is dead |
//! | `F id`, `B id` | is back after failing, after release | `T id n` | letter is retried for the n-th time |
//! | `V id` | letter is resolved | `Q n` | the counter is n |
//! | `S` | queue is configured, paused or resumed | `r verb id` | was refused |
//! | `! …` | something is wrong | | |

use super::ToolResult;
use super::replies::Log;
use super::rng::{Rng, payload};
use super::steps::{failure, fixed_policy};
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

/// The only queue of the workload.
pub const QUEUE: &str = "jobs";
/// The key-value entry that the operator increments.
pub const COUNTER: (&str, &str) = ("torture", "counter");
/// The maximum number of live messages, so that checks stay fast.
const LIVE_MAX: u64 = 1_000;
/// The number of letters above which the operator purges.
const LETTERS_MAX: usize = 150;

/// The number from which a message's payload is generated.
#[must_use]
pub fn number(id: MessageId) -> u64 {
    id.to_bytes().iter().fold(7, |n, byte| n.wrapping_mul(0x0100_0000_01b3) ^ u64::from(*byte))
}

fn actor() -> Actor {
    Actor::new("torture", "work")
}

struct Workload {
    store: Arc<dyn Store>,
    log: Log,
    queue: QueueName,
}

/// Works until it is killed. Prints `open` on standard output once the store is open.
///
/// # Errors
/// If the store does not open or a call fails: neither may happen here.
pub fn run(data: &Path, log: &Path, producers: u64, workers: u64, seed: u64) -> ToolResult<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let store = redrive::open(data, OpenOptions::default()).await?;
        let workload = Arc::new(Workload { store, log: Log::open(log)?, queue: QUEUE.parse()? });
        let mut out = std::io::stdout();
        out.write_all(b"open\n")?;
        out.flush()?;
        set_up(&workload).await?;
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..producers {
            let workload = Arc::clone(&workload);
            tasks.spawn(async move { produce(&workload, Rng::of(&[seed, n, 1])).await });
        }
        for n in 0..workers {
            let workload = Arc::clone(&workload);
            tasks.spawn(async move { work(&workload, n, Rng::of(&[seed, n, 2])).await });
        }
        tasks.spawn(async move { operate(&workload, Rng::of(&[seed, 3])).await });
        // Tasks never finish; one that returns has failed.
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        Ok(())
    })
}

async fn set_up(workload: &Workload) -> ToolResult<()> {
    // An unchanged policy writes no audit row, but the checks expect one row per act.
    let known =
        workload.store.queue(workload.queue.clone()).await.ok().and_then(|queue| queue.policy.max_messages);
    let most = if known == Some(LIVE_MAX) { LIVE_MAX + 1 } else { LIVE_MAX };
    let policy =
        QueuePolicy { max_messages: Some(most), ..fixed_policy(3, Span::from_millis(150), Span::ZERO) };
    workload.store.configure(workload.queue.clone(), policy, actor()).await?;
    workload.log.append("S")?;
    workload.store.pause(workload.queue.clone(), false, actor()).await?;
    Ok(workload.log.append("S")?)
}

async fn produce(workload: &Workload, mut rng: Rng) -> ToolResult<()> {
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
                ..NewMessage::new(id, workload.queue.clone(), Payload { bytes, content_type: String::new() })
            };
            workload.log.append(&format!("e {id}"))?;
            batch.push(message);
        }
        if rng.one_in(8) {
            // A sender that missed the reply sends again. Only a key makes that harmless for ever: an id is
            // forgotten with its message.
            batch.extend(last.take());
        }
        let sent = batch.clone();
        let mut full = false;
        for (message, result) in sent.iter().zip(workload.store.enqueue(batch).await?) {
            match result {
                Ok(accepted) if accepted.id != message.id => {
                    workload.log.append(&format!("! {} became {}", message.id, accepted.id))?;
                }
                Ok(_) => {
                    workload.log.append(&format!(
                        "E {} {}",
                        message.id,
                        message.key.as_deref().unwrap_or("-")
                    ))?;
                }
                Err(_) => {
                    full = true;
                    workload.log.append(&format!("r e {}", message.id))?;
                }
            }
        }
        last = sent.into_iter().rfind(|message| message.key.is_some()).filter(|_| !full);
        if full {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }
}

async fn work(workload: &Workload, n: u64, mut rng: Rng) -> ToolResult<()> {
    loop {
        let request = LeaseRequest {
            queues: vec![workload.queue.clone()],
            max: 1 + rng.index(4),
            lease_for: Some(Span::from_millis(100 + rng.below(200))),
            worker: format!("worker{n}"),
            ..LeaseRequest::default()
        };
        let deliveries = workload.store.lease(request).await?;
        if deliveries.is_empty() {
            workload.store.wait(vec![workload.queue.clone()], Span::from_millis(20)).await?;
            continue;
        }
        let mut batch = Vec::new();
        for delivery in deliveries {
            batch.extend(
                settlement_for(workload, &delivery, &mut rng)?
                    .map(|what| Settlement { token: delivery.token, what }),
            );
        }
        let settled: Vec<(MessageId, bool)> =
            batch.iter().map(|s: &Settlement| (s.token.id, s.what == Settle::Ack)).collect();
        for ((id, acked), result) in settled.into_iter().zip(workload.store.settle(batch).await?) {
            let line = match result {
                Ok(_) if acked => format!("A {id}"),
                Ok(settled) if settled.state == State::Dead => format!("D {id}"),
                Ok(_) => format!("B {id}"),
                Err(_) if acked => format!("r a {id}"),
                Err(_) => continue,
            };
            workload.log.append(&line)?;
        }
    }
}

/// Logs a delivery and decides how to settle it. Returns `None` if its lease shall expire.
fn settlement_for(workload: &Workload, delivery: &Delivery, rng: &mut Rng) -> ToolResult<Option<Settle>> {
    let message = &delivery.message;
    let id = message.envelope.id;
    workload.log.append(&format!("L {id} {}", message.deliveries))?;
    if message.envelope.payload.bytes != payload(number(id)) {
        workload.log.append(&format!("! {id} was delivered with a different payload"))?;
    }
    let which = u8::try_from(rng.below(6)).unwrap_or(0);
    Ok(match rng.below(40) {
        0..=25 => {
            workload.log.append(&format!("a {id}"))?;
            Some(Settle::Ack)
        }
        26..=33 => Some(failure(which, false)),
        34 | 35 => Some(failure(which, true)),
        36..=38 => Some(Settle::Release),
        _ => None,
    })
}

async fn operate(workload: &Workload, mut rng: Rng) -> ToolResult<()> {
    loop {
        let query = || Query { page: PageRequest::first(LETTERS_MAX + 50), ..Query::default() };
        let letters = workload.store.letters(query()).await?.items;
        let crowded = letters.len() > LETTERS_MAX;
        for _ in 0..if crowded { 40 } else { 4 } {
            let Some(letter) = rng.pick(&letters) else { break };
            let id = letter.id();
            let act = match letter.record.status {
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
                workload.log.append(&format!("x {id}"))?;
            }
            let request = ActRequest { id, act: act.clone(), actor: actor(), expected_version: None };
            let done = workload.store.act(vec![request]).await?.into_iter().next();
            match (done, act) {
                (Some(Ok(_)), Act::Purge) => workload.log.append(&format!("X {id}"))?,
                (Some(Ok(_)), Act::Retry { .. }) => {
                    workload.log.append(&format!("T {id} {}", letter.record.redrives + 1))?;
                }
                (Some(Ok(_)), _) => workload.log.append(&format!("V {id}"))?,
                (_, Act::Purge) => workload.log.append(&format!("r x {id}"))?,
                _ => {}
            }
        }
        cancel_or_pause(workload, &mut rng).await?;
        count_up(workload).await?;
    }
}

/// Cancels a message, and sometimes pauses and resumes the queue.
async fn cancel_or_pause(workload: &Workload, rng: &mut Rng) -> ToolResult<()> {
    if rng.one_in(4) {
        for paused in [true, false] {
            workload.store.pause(workload.queue.clone(), paused, actor()).await?;
            workload.log.append("S")?;
        }
    }
    let page = PageRequest::first(20);
    let live = workload.store.messages(Query { page, ..Query::default() }).await?.items;
    let Some(id) = rng.pick(&live).map(|message| message.envelope.id) else { return Ok(()) };
    workload.log.append(&format!("c {id}"))?;
    let done = workload.store.cancel(vec![id], actor()).await?.into_iter().next();
    workload.log.append(&if done.is_some_and(|result| result.is_ok()) {
        format!("C {id}")
    } else {
        format!("r c {id}")
    })?;
    Ok(())
}

/// Increments the counter.
async fn count_up(workload: &Workload) -> ToolResult<()> {
    let (space, key) = (COUNTER.0.to_owned(), COUNTER.1.to_owned());
    let entry = workload.store.kv_get(space.clone(), key.clone()).await?;
    let version = entry.map_or(0, |entry| entry.version);
    let next = workload.store.kv_put(space, key, Some((version + 1).to_be_bytes().to_vec()), version).await?;
    Ok(workload.log.append(&format!("Q {next}"))?)
}
