//! Checks that a real store groups failures as `redrive signature` says it would: the same lines are failed
//! through the embedded store in several random orders with a restart in the middle, and compared with the
//! groups of the whole set.

use super::grouping::{self, ToolResult};
use redrive::OpenOptions;
use redrive::core::dead_letter::Actor;
use redrive::core::failure::{ErrorInfo, FailureReport};
use redrive::core::ids::{GroupId, MessageId, QueueName};
use redrive::core::message::{NewMessage, Payload};
use redrive::core::policy::QueuePolicy;
use redrive::core::query::{PageRequest, Query};
use redrive::core::store::{LeaseRequest, Settle, Settlement, Store};
use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

/// The number of lines failed per call.
const BATCH: usize = 500;

/// `filing FILE.csv… [--orders N] [--seed N]`.
///
/// # Errors
/// If a file or a store cannot be read, or an argument is invalid.
pub fn run(args: &[String]) -> Result<String, Box<dyn std::error::Error>> {
    let (mut files, mut orders, mut seed) = (Vec::new(), 3_u64, 1_u64);
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--orders" => orders = args.next().ok_or("--orders needs a number")?.parse()?,
            "--seed" => seed = args.next().ok_or("--seed needs a number")?.parse()?,
            file => files.push(file),
        }
    }
    if files.is_empty() {
        return Err("filing needs at least one file".into());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut report = String::from("set                  lines  order  same partition\n");
    for file in files {
        let set = grouping::read(Path::new(file))?;
        let (wanted, _, _) = grouping::redrive(&set.lines);
        for order in 0..orders {
            let filed = runtime.block_on(file_all(&set.lines, seed + order))?;
            let (same, _) = grouping::accuracy(&wanted, &filed);
            writeln!(report, "{:<18} {:>7} {order:>6} {same:>15.4}", set.name, set.lines.len())?;
        }
    }
    Ok(report)
}

/// The indices of the lines in a pseudorandom order that depends only on the seed.
fn shuffled(lines: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..lines).collect();
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for at in (1..lines).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let other = usize::try_from(state % (at as u64 + 1)).unwrap_or(0);
        order.swap(at, other);
    }
    order
}

async fn open(home: &Path) -> ToolResult<Arc<dyn Store>> {
    let options = OpenOptions { create: true, ..OpenOptions::default() };
    Ok(redrive::open(home, options).await?)
}

/// Fails every line permanently, in a random order with a restart in the middle. Returns the group of each
/// line.
async fn file_all(lines: &[String], seed: u64) -> ToolResult<grouping::Groups> {
    let home = tempfile::tempdir()?;
    let queue: QueueName = "lines".parse()?;
    let order = shuffled(lines.len(), seed);
    let (first, second) = order.split_at(order.len() / 2);
    let mut ids: HashMap<MessageId, usize> = HashMap::new();
    for half in [first, second] {
        let store = open(home.path()).await?;
        let policy = QueuePolicy { max_attempts: 1, ..QueuePolicy::default() };
        store.configure(queue.clone(), policy, Actor::new("bench", "accuracy")).await?;
        for batch in half.chunks(BATCH) {
            fail(&*store, &queue, lines, batch, &mut ids).await?;
        }
    }
    let store = open(home.path()).await?;
    let mut groups: HashMap<GroupId, usize> = HashMap::new();
    let mut filed = vec![0; lines.len()];
    let mut cursor = None;
    loop {
        let page = PageRequest { limit: Some(1_000), cursor };
        let page = store.letters(Query { page, ..Query::default() }).await?;
        for letter in &page.items {
            let group = store_group(&*store, letter.record.leaf, &mut groups).await?;
            if let Some(slot) = ids.get(&letter.id()).and_then(|line| filed.get_mut(*line)) {
                *slot = group;
            }
        }
        match page.next {
            Some(next) => cursor = Some(next),
            None => return Ok(filed),
        }
    }
}

/// A number for the group that a leaf belongs to.
async fn store_group(
    store: &dyn Store,
    leaf: GroupId,
    known: &mut HashMap<GroupId, usize>,
) -> ToolResult<usize> {
    if let Some(group) = known.get(&leaf) {
        return Ok(*group);
    }
    let name = store.group(leaf).await?.id;
    let next = known.len();
    let group = *known.entry(name).or_insert(next);
    known.insert(leaf, group);
    Ok(group)
}

async fn fail(
    store: &dyn Store,
    queue: &QueueName,
    lines: &[String],
    batch: &[usize],
    ids: &mut HashMap<MessageId, usize>,
) -> ToolResult<()> {
    let mut sent = HashMap::new();
    let mut messages = Vec::new();
    for line in batch {
        let id = redrive::new_id();
        sent.insert(id, *line);
        messages.push(NewMessage::new(id, queue.clone(), Payload::default()));
    }
    for result in store.enqueue(messages).await? {
        result?;
    }
    let request = LeaseRequest {
        queues: vec![queue.clone()],
        max: batch.len(),
        lease_for: None,
        worker: "w".into(),
        ..LeaseRequest::default()
    };
    let mut settlements = Vec::new();
    for delivery in store.lease(request).await? {
        let line = sent.get(&delivery.message.envelope.id).and_then(|line| lines.get(*line));
        let error = ErrorInfo { message: line.cloned().unwrap_or_default(), ..ErrorInfo::default() };
        let failure = Box::new(FailureReport { error, ..FailureReport::default() }.analyse());
        settlements.push(Settlement {
            token: delivery.token,
            what: Settle::Fail { failure, policy_override: None },
        });
    }
    for result in store.settle(settlements).await? {
        result?;
    }
    ids.extend(sent);
    Ok(())
}
