//! The feeder: asks the store what changed, reads the counts of what did, and publishes events. It works in rounds, so
//! that a busy store gives a few events per second and area, however much happens.

use super::{Draft, Events, Scope};
use redrive_core::breaker::BreakerView;
use redrive_core::changes::{Area, Changes, FeedPosition};
use redrive_core::error::{CallError, Refusal, StoreResult};
use redrive_core::ids::{GroupId, OperationId, QueueName};
use redrive_core::store::Store;
use redrive_core::time::Span;
use redrive_core::workers::WorkerView;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// The time between two rounds.
const ROUND: Duration = Duration::from_millis(250);
/// The time between two looks at the workers, whose list can be long.
const WORKERS_EVERY: Duration = Duration::from_secs(1);
/// How long one question to the store may take.
const LONG_POLL: Span = Span::from_secs(20);
/// The time before the store is asked again after an error.
const AFTER_ERROR: Duration = Duration::from_secs(1);
/// Groups, and operations, that are read one by one in a round. If more changed, clients look again at all.
const ITEMS_MAX: usize = 100;
/// The namespace of the alerts.
const ALERTS: &str = "alerts";

/// Feeds the ring until the server stops or nobody listens.
pub(super) async fn run(
    events: Arc<Events>,
    store: Arc<dyn Store>,
    since: FeedPosition,
    stop: CancellationToken,
) {
    let mut feeder = Feeder { since: Some(since), ..Feeder::default() };
    while !events.rests() {
        let round = async {
            let drafts = feeder.round(store.as_ref()).await;
            let pause = if drafts.is_ok() { ROUND } else { AFTER_ERROR };
            match drafts {
                Ok(drafts) => events.publish(&drafts),
                Err(error) => {
                    tracing::warn!(%error, "failed to read what changed; trying again");
                    feeder.since = None;
                }
            }
            tokio::time::sleep(pause).await;
        };
        tokio::select! {
            () = stop.cancelled() => return,
            () = round => {}
        }
    }
}

/// What the feeder remembers between rounds.
#[derive(Default)]
struct Feeder {
    since: Option<FeedPosition>,
    breakers: BTreeMap<(QueueName, String), Value>,
    workers: BTreeMap<String, Value>,
    workers_read: Option<Instant>,
    /// Whether the workers changed since they were read.
    workers_changed: bool,
}

impl Feeder {
    /// Waits for changes and describes them.
    async fn round(&mut self, store: &dyn Store) -> StoreResult<Vec<Draft>> {
        // If the workers are to be looked at soon, the wait must not last longer.
        let wait = if self.workers_changed { Span::from_millis(1_000) } else { LONG_POLL };
        let changes = store.changes(self.since, wait).await?;
        let mut drafts = Vec::new();
        if changes.everything {
            drafts.push(Draft { kind: "reset", scope: Scope::Everybody, data: json!({}) });
        } else {
            self.describe(store, &changes, &mut drafts).await?;
        }
        self.since = Some(changes.at);
        Ok(drafts)
    }

    async fn describe(
        &mut self,
        store: &dyn Store,
        changes: &Changes,
        drafts: &mut Vec<Draft>,
    ) -> StoreResult<()> {
        let (mut queues, mut dlqs) = (BTreeSet::new(), BTreeSet::new());
        let (mut groups, mut operations, mut breakers) = (Vec::new(), Vec::new(), false);
        for area in &changes.areas {
            match area {
                Area::Queue(queue) => {
                    queues.insert(queue);
                }
                Area::Dlq(dlq) => {
                    dlqs.insert(dlq);
                }
                Area::Group(group) => groups.push(*group),
                Area::Operation(operation) => operations.push(*operation),
                Area::Breakers => breakers = true,
                Area::Workers => self.workers_changed = true,
                Area::Kv(namespace) if namespace == ALERTS => {
                    drafts.push(Draft { kind: "alert", scope: Scope::Store(Vec::new()), data: json!({}) });
                }
                Area::Kv(_) | Area::Audit | Area::Markers => {}
            }
        }
        if !queues.is_empty() {
            drafts.extend(self::queues(store, &queues).await?);
        }
        if !dlqs.is_empty() {
            drafts.extend(letters(store, &dlqs).await?);
        }
        drafts.extend(self::groups(store, &groups).await?);
        drafts.extend(self::operations(store, &operations).await?);
        if breakers {
            drafts.extend(self.breakers(store).await?);
        }
        if self.workers_changed && self.workers_read.is_none_or(|read| read.elapsed() >= WORKERS_EVERY) {
            drafts.extend(self.workers(store).await?);
        }
        Ok(())
    }

    /// The breakers that differ from the last look.
    async fn breakers(&mut self, store: &dyn Store) -> StoreResult<Vec<Draft>> {
        let mut drafts = Vec::new();
        let mut now = BTreeMap::new();
        for BreakerView { queue, key, state, held, .. } in store.breakers().await? {
            let data = json!({"queue": queue, "key": key, "state": state, "held": held});
            if self.breakers.get(&(queue.clone(), key.clone())) != Some(&data) {
                let scope = Scope::Queue(vec![queue.clone()]);
                drafts.push(Draft { kind: "breaker", scope, data: data.clone() });
            }
            now.insert((queue, key), data);
        }
        self.breakers = now;
        Ok(drafts)
    }

    /// The workers that differ from the last look, and those that are gone.
    async fn workers(&mut self, store: &dyn Store) -> StoreResult<Vec<Draft>> {
        let mut drafts = Vec::new();
        let mut now = BTreeMap::new();
        for WorkerView { worker, queues, in_hand, done, failed, .. } in store.workers().await? {
            let data = json!({"worker": worker, "in_hand": in_hand, "done": done, "failed": failed});
            if self.workers.remove(&worker).as_ref() != Some(&data) {
                drafts.push(Draft { kind: "worker", scope: Scope::Store(queues), data: data.clone() });
            }
            now.insert(worker, data);
        }
        for worker in std::mem::take(&mut self.workers).into_keys() {
            let data = json!({"worker": worker, "gone": true});
            drafts.push(Draft { kind: "worker", scope: Scope::Store(Vec::new()), data });
        }
        (self.workers, self.workers_read, self.workers_changed) = (now, Some(Instant::now()), false);
        Ok(drafts)
    }
}

async fn queues(store: &dyn Store, changed: &BTreeSet<&QueueName>) -> StoreResult<Vec<Draft>> {
    let all = store.queues().await?.into_iter().filter(|queue| changed.contains(&queue.name));
    let draft = |queue: redrive_core::store::Queue| Draft {
        kind: "queue",
        scope: Scope::Queue(vec![queue.name.clone()]),
        data: json!({
            "queue": queue.name,
            "paused": queue.paused,
            "scheduled": queue.scheduled,
            "ready": queue.ready,
            "leased": queue.counts.leased,
            "dead": queue.counts.dead,
        }),
    };
    Ok(all.map(draft).collect())
}

async fn letters(store: &dyn Store, changed: &BTreeSet<&QueueName>) -> StoreResult<Vec<Draft>> {
    let all = store.dlqs().await?.into_iter().filter(|dlq| changed.contains(&dlq.dlq));
    let draft = |dlq: redrive_core::store::Dlq| {
        let mut names = vec![dlq.dlq.clone()];
        // Letters usually lie in the dead letter queue that is named after their queue.
        names.extend(dlq.dlq.as_str().strip_suffix("-dlq").and_then(|queue| queue.parse().ok()));
        let data = json!({"dlq": dlq.dlq, "open": dlq.open(), "by_status": dlq.by_status});
        Draft { kind: "letter", scope: Scope::Queue(names), data }
    };
    Ok(all.map(draft).collect())
}

async fn groups(store: &dyn Store, changed: &[GroupId]) -> StoreResult<Vec<Draft>> {
    if changed.len() > ITEMS_MAX {
        return Ok(vec![too_many("group", changed.len())]);
    }
    let mut drafts = Vec::new();
    for id in changed {
        match store.group(*id).await {
            Ok(group) => drafts.push(Draft {
                kind: "group",
                scope: Scope::Store(group.queues.iter().cloned().collect()),
                data: json!({
                    "group": group.id,
                    "status": group.status,
                    "open": group.open,
                    "total": group.total,
                    "failures": group.failures,
                }),
            }),
            // It has been merged into another or forgotten since.
            Err(CallError::Refused(Refusal::NoSuchGroup { .. })) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(drafts)
}

async fn operations(store: &dyn Store, changed: &[OperationId]) -> StoreResult<Vec<Draft>> {
    if changed.len() > ITEMS_MAX {
        return Ok(vec![too_many("operation", changed.len())]);
    }
    let mut drafts = Vec::new();
    for id in changed {
        let operation = store.operation(*id).await?;
        let data = json!({
            "operation": operation.id,
            "act": operation.act.name(),
            "stage": operation.stage,
            "members": operation.members,
            "outcomes": operation.outcomes,
        });
        drafts.push(Draft { kind: "operation", scope: Scope::Store(Vec::new()), data });
    }
    Ok(drafts)
}

/// Says that more changed than is worth naming.
fn too_many(kind: &'static str, changed: usize) -> Draft {
    Draft { kind, scope: Scope::Store(Vec::new()), data: json!({"changed": changed}) }
}
