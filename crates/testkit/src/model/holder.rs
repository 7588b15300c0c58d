//! What the holder of a store knows beside it: the workers, what changed since an earlier look, and which requests were
//! carried out. The model finds changes by comparing two pictures of everything.

use super::{Model, ModelState};
use redrive_core::changes::{Area, Changes, FeedPosition};
use redrive_core::dead_letter::Actor;
use redrive_core::error::{Refusal, StoreResult};
use redrive_core::ids::{MessageId, QueueName};
use redrive_core::limits;
use redrive_core::store::{LeaseRequest, LetterSettle, Settle};
use redrive_core::time::Time;
use redrive_core::workers::{LeaseView, WorkerView};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// The model never starts over, so that one epoch is enough.
const EPOCH: u64 = 0x006d_6f64_656c;

/// What is known of a worker beside its leases.
#[derive(Clone, Debug)]
pub(super) struct Worker {
    version: Option<String>,
    host: Option<String>,
    queues: BTreeSet<QueueName>,
    first_seen: Time,
    last_seen: Time,
    done: u64,
    failed: u64,
}

/// A request that was carried out.
pub(super) struct Request {
    verb: &'static str,
    fingerprint: String,
    at: Time,
    result: serde_json::Value,
}

impl Model {
    /// Runs a call that is carried out once for each request key.
    pub(super) fn once<R: Serialize + DeserializeOwned>(
        &self,
        verb: &'static str,
        actor: &Actor,
        call: impl FnOnce(&mut ModelState, Time) -> StoreResult<R>,
    ) -> StoreResult<R> {
        self.with_state(|state, now| state.once(verb, actor, now, |state| call(state, now)))
    }

    /// What changed since a position. The model never waits: nobody else could change it in the meantime.
    pub(super) fn changes_since(&self, since: Option<FeedPosition>) -> Changes {
        self.with_state(|state, _| {
            let now = state.picture();
            if state.pictures.last() != Some(&now) {
                state.pictures.push(now.clone());
            }
            let at = FeedPosition { epoch: EPOCH, version: state.pictures.len() as u64 };
            let seen = since.filter(|since| since.epoch == EPOCH);
            let seen = seen.and_then(|since| usize::try_from(since.version).ok()?.checked_sub(1));
            let Some(before) = seen.and_then(|n| state.pictures.get(n)) else {
                return Changes::everything(at);
            };
            let named = before.keys().chain(now.keys());
            let areas = named.filter(|area| before.get(*area) != now.get(*area)).cloned().collect();
            Changes { at, everything: false, areas }
        })
    }
}

impl ModelState {
    /// Everything that can be seen of each area, as text.
    fn picture(&self) -> BTreeMap<Area, String> {
        let mut picture: BTreeMap<Area, String> = BTreeMap::new();
        let mut add = |area: Area, what: &dyn std::fmt::Debug| {
            let text = picture.entry(area).or_default();
            write!(text, "{what:?};").expect("a string takes any text");
        };
        for (name, queue) in &self.queues {
            add(Area::Queue(name.clone()), &(&queue.policy, &queue.counts, &queue.paused_by));
        }
        for message in &self.live {
            let area = Area::Queue(message.envelope.queue.clone());
            add(area, &(message.envelope.id, &message.lifecycle));
        }
        for letter in &self.letters {
            add(Area::Dlq(letter.record.dlq.clone()), &(letter.death, &letter.record));
        }
        for (key, count) in &self.leaf_counts {
            let group = self.leaves.iter().find(|leaf| leaf.id == key.leaf).map(|leaf| leaf.group);
            add(Area::Group(group.expect("a counted leaf is known")), &(key, count));
        }
        for (group, triage) in &self.triage {
            add(Area::Group(*group), triage);
        }
        for (operation, _) in &self.operations {
            add(Area::Operation(operation.id), operation);
        }
        for breaker in &self.breakers {
            add(Area::Breakers, &breaker);
        }
        for worker in &self.workers {
            add(Area::Workers, &worker);
        }
        for row in &self.audit {
            add(Area::Audit, &row.seal);
        }
        for marker in &self.markers {
            add(Area::Markers, marker);
        }
        for ((namespace, key), entry) in &self.kv {
            add(Area::Kv(namespace.clone()), &(key, entry));
        }
        picture
    }

    fn worker(&mut self, name: &str, now: Time) -> &mut Worker {
        let fresh = Worker {
            version: None,
            host: None,
            queues: BTreeSet::new(),
            first_seen: now,
            last_seen: now,
            done: 0,
            failed: 0,
        };
        let worker = self.workers.entry(name.to_owned()).or_insert(fresh);
        worker.last_seen = now;
        worker
    }

    pub(super) fn note_lease(&mut self, request: &LeaseRequest, now: Time) {
        let worker = self.worker(&request.worker, now);
        worker.queues.extend(request.queues.iter().cloned());
        worker.version = request.version.clone().or_else(|| worker.version.take());
        worker.host = request.host.clone().or_else(|| worker.host.take());
    }

    pub(super) fn note_letter_lease(&mut self, worker: &str, dlq: &QueueName, now: Time) {
        self.worker(worker, now).queues.insert(dlq.clone());
    }

    /// The worker that has leased a message or a letter.
    pub(super) fn lessee(&self, id: MessageId) -> Option<String> {
        let message = self.live_at(id).and_then(|at| Some(self.live[at].lifecycle.lease()?.worker.clone()));
        message.or_else(|| self.letters[self.letter_at(id)?].record.consumer.clone())
    }

    pub(super) fn note_settled(&mut self, worker: Option<String>, what: &Settle, now: Time) {
        let Some(name) = worker else { return };
        let worker = self.worker(&name, now);
        match what {
            Settle::Ack | Settle::Reply { .. } => worker.done += 1,
            Settle::Fail { .. } => worker.failed += 1,
            Settle::Release | Settle::Snooze { .. } | Settle::Extend { .. } | Settle::Progress { .. } => {}
        }
    }

    pub(super) fn note_settled_letter(&mut self, worker: Option<String>, what: &LetterSettle, now: Time) {
        let Some(name) = worker else { return };
        let worker = self.worker(&name, now);
        match what {
            LetterSettle::Do { .. } => worker.done += 1,
            LetterSettle::Fail { .. } => worker.failed += 1,
            LetterSettle::Release | LetterSettle::Snooze { .. } | LetterSettle::Extend { .. } => {}
        }
    }

    pub(super) fn list_workers(&mut self, now: Time) -> Vec<WorkerView> {
        let mut leases: BTreeMap<String, Vec<LeaseView>> = BTreeMap::new();
        for message in &self.live {
            let Some(lease) = message.lifecycle.lease().filter(|lease| lease.expires_at > now) else {
                continue;
            };
            leases.entry(lease.worker.clone()).or_default().push(LeaseView {
                id: message.envelope.id,
                queue: message.envelope.queue.clone(),
                since: lease.granted_at,
                lease_expires_at: lease.expires_at,
            });
        }
        for letter in &self.letters {
            let until = letter.record.consumer_until.filter(|until| *until > now);
            let (Some(worker), Some(until)) = (&letter.record.consumer, until) else { continue };
            leases.entry(worker.clone()).or_default().push(LeaseView {
                id: letter.stored.envelope.id,
                queue: letter.record.dlq.clone(),
                since: self.workers.get(worker).map_or(now, |worker| worker.last_seen),
                lease_expires_at: until,
            });
        }
        self.workers.retain(|name, worker| {
            worker.last_seen.plus(limits::WORKER_KNOWN_FOR) > now || leases.contains_key(name)
        });
        let view = |(name, worker): (&String, &Worker)| {
            let mut leases = leases.remove(name).unwrap_or_default();
            leases.sort_by_key(|lease| (lease.since, lease.id));
            let in_hand = leases.len() as u64;
            leases.truncate(limits::WORKER_LEASES_LISTED_MAX);
            WorkerView {
                worker: name.clone(),
                version: worker.version.clone(),
                host: worker.host.clone(),
                queues: worker.queues.iter().cloned().collect(),
                first_seen: worker.first_seen,
                last_seen: worker.last_seen,
                in_hand,
                leases,
                done: worker.done,
                failed: worker.failed,
            }
        };
        self.workers.iter().map(view).collect()
    }

    /// Carries a call out, unless it was carried out under the same request key: then returns the recorded result.
    fn once<R: Serialize + DeserializeOwned>(
        &mut self,
        verb: &'static str,
        actor: &Actor,
        now: Time,
        call: impl FnOnce(&mut Self) -> StoreResult<R>,
    ) -> StoreResult<R> {
        let Some(request) = &actor.request else { return call(self) };
        let key = (actor.name.clone(), request.key.clone());
        if let Some(known) = self.requests.get(&key).filter(|known| known.at.plus(limits::KEY_WINDOW) > now) {
            if known.verb != verb || known.fingerprint != request.fingerprint {
                return Err(Refusal::RequestConflict { key: request.key.clone() }.into());
            }
            return Ok(serde_json::from_value(known.result.clone()).expect("it was recorded"));
        }
        let result = call(self)?;
        let recorded = serde_json::to_value(&result).expect("a result has a JSON form");
        let fingerprint = request.fingerprint.clone();
        self.requests.insert(key, Request { verb, fingerprint, at: now, result: recorded });
        Ok(result)
    }

    /// Forgets requests whose window has ended, oldest first. Returns how many.
    pub(super) fn forget_requests(&mut self, limit: usize, now: Time) -> u64 {
        let over = self.requests.iter().filter(|(_, known)| known.at.plus(limits::KEY_WINDOW) <= now);
        let mut over: Vec<(Time, (String, String))> =
            over.map(|(key, known)| (known.at, key.clone())).collect();
        over.sort();
        over.truncate(limit);
        for (_, key) in &over {
            self.requests.remove(key);
        }
        over.len() as u64
    }
}
