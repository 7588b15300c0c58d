//! Push queues: one worker for every queue that has a target, in one loop. Queues that get a target later are picked up,
//! a changed target is applied, and a queue that loses its target is left alone. The workers decide nothing: they are
//! those of [`crate::Worker`] with the executors of [`crate::executor`].

use crate::executor::for_target;
use crate::handler::Handler;
use crate::runnable::{Heartbeat, Runnable};
use crate::waiting::{GrowingDelay, is_fatal, pause, with_timeout};
use crate::worker::Worker;
use async_trait::async_trait;
use redrive_core::error::{CallError, Refusal, StoreError, StoreErrorKind};
use redrive_core::failure::ClassifierRules;
use redrive_core::ids::QueueName;
use redrive_core::limits;
use redrive_core::store::Store;
use redrive_core::target::Target;
use redrive_core::time::Span;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::task::{Id, JoinSet};
use tokio_util::sync::CancellationToken;

/// The settings of push queues: the `[push]` section of `redrive.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PushSettings {
    /// How many messages of each queue are delivered at once.
    pub concurrency: usize,
    /// Whether targets may be commands. Whoever may configure a queue can then run commands on this machine.
    pub commands: bool,
    /// How often the queues are looked through for new and changed targets.
    pub look_every: Span,
    /// How long deliveries that have begun may go on after a stop.
    pub grace: Span,
}

impl Default for PushSettings {
    fn default() -> Self {
        Self { concurrency: 16, commands: false, look_every: Span::from_secs(5), grace: Span::from_secs(30) }
    }
}

impl PushSettings {
    /// Refuses settings that cannot work.
    ///
    /// # Errors
    /// [`Refusal::Invalid`] naming the setting.
    pub fn check(&self) -> Result<(), Refusal> {
        if !(1..=limits::LEASE_BATCH_MAX).contains(&self.concurrency) {
            let why = format!("from 1 to {}", limits::LEASE_BATCH_MAX);
            return Err(Refusal::invalid("push.concurrency", why));
        }
        if self.look_every < Span::from_millis(1) || self.look_every > Span::from_hours(1) {
            return Err(Refusal::invalid("push.look_every", "from 1ms to 1h"));
        }
        Ok(())
    }
}

/// Creates the loop that runs a worker for every queue with a target.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use redrive::LoopGroup;
/// use redrive::push::{self, PushSettings};
///
/// let store = redrive::memory();
/// let group = LoopGroup::new(store.clone()).run(push::workers(store, PushSettings::default())).bind().await?;
/// let stop = redrive::CancellationToken::new();
/// stop.cancel(); // this example ends at once
/// group.until(stop).await?;
/// # Ok(())
/// # }
/// ```
#[must_use]
pub fn workers(store: Arc<dyn Store>, settings: PushSettings) -> PushWorkers {
    PushWorkers { store, settings, rules: ClassifierRules::default(), problems: Mutex::default() }
}

/// The workers of all queues with a target. See [`workers`].
pub struct PushWorkers {
    store: Arc<dyn Store>,
    settings: PushSettings,
    rules: ClassifierRules,
    /// What is wrong with the target of a queue.
    problems: Mutex<BTreeMap<QueueName, String>>,
}

impl fmt::Debug for PushWorkers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PushWorkers").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl PushWorkers {
    /// The user's rules for grouping and classifying failures, as for a worker.
    #[must_use]
    pub fn classifier_rules(mut self, rules: ClassifierRules) -> Self {
        self.rules = rules;
        self
    }

    /// The executor for a target, or why it may not or cannot be used here.
    fn handler(&self, target: &Target) -> Result<Arc<dyn Handler>, String> {
        match target {
            Target::Command(_) if !self.settings.commands => Err(
                "its target is a command, and commands are not allowed here; set commands = true in [push] \
                     of redrive.toml, or run `redrive work`"
                    .into(),
            ),
            Target::Http(_) | Target::Command(_) => {
                for_target(target.clone()).map_err(|refusal| refusal.to_string())
            }
        }
    }

    fn worker(&self, queue: &QueueName, target: &Target) -> Result<Worker, String> {
        Worker::builder(Arc::clone(&self.store))
            .queue(queue.as_str())
            .concurrency(self.settings.concurrency)
            .grace(self.settings.grace)
            .classifier_rules(self.rules.clone())
            .fallback(self.handler(target)?)
            .build()
            .map_err(|refusal| refusal.to_string())
    }

    fn set_problem(&self, queue: &QueueName, problem: Option<String>) {
        let mut problems = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = match problem {
            Some(text) => problems.insert(queue.clone(), text.clone()).as_ref() != Some(&text),
            None => {
                problems.remove(queue);
                false
            }
        };
        if changed && let Some(why) = problems.get(queue) {
            tracing::warn!(%queue, why, "messages of this queue are not pushed");
        }
    }
}

/// The workers that run now.
#[derive(Default)]
struct Running {
    by_queue: BTreeMap<QueueName, Pushed>,
    tasks: JoinSet<Result<(), CallError>>,
}

/// One queue whose messages are pushed.
struct Pushed {
    target: Target,
    stop: CancellationToken,
    task: Id,
}

impl Running {
    /// Starts and stops workers, so that exactly the queues with a target have one.
    fn follow(&mut self, workers: &PushWorkers, wanted: BTreeMap<QueueName, Target>) {
        self.by_queue.retain(|queue, pushed| {
            let keep = wanted.get(queue) == Some(&pushed.target);
            if !keep {
                tracing::info!(%queue, "the target has changed or is gone; its worker stops");
                pushed.stop.cancel();
            }
            keep
        });
        workers.problems.lock().unwrap_or_else(PoisonError::into_inner).retain(|q, _| wanted.contains_key(q));
        for (queue, target) in wanted {
            if self.by_queue.contains_key(&queue) {
                continue;
            }
            if self.by_queue.len() >= limits::PUSH_QUEUES_MAX {
                let why = format!("more than {} queues have a target", limits::PUSH_QUEUES_MAX);
                workers.set_problem(&queue, Some(why));
                continue;
            }
            match workers.worker(&queue, &target) {
                Err(why) => workers.set_problem(&queue, Some(why)),
                Ok(worker) => {
                    workers.set_problem(&queue, None);
                    tracing::info!(%queue, worker = worker.name(), "pushing messages to the target");
                    let stop = CancellationToken::new();
                    let stopped = stop.clone();
                    let task = async move { Runnable::run(&worker, stopped, Heartbeat::default()).await };
                    let task = self.tasks.spawn(task).id();
                    self.by_queue.insert(queue, Pushed { target, stop, task });
                }
            }
        }
    }

    /// Forgets workers that have ended by themselves, so that they are started again at the next look.
    fn collect(&mut self) -> Result<(), CallError> {
        while let Some(ended) = self.tasks.try_join_next_with_id() {
            let (task, result) = match ended {
                Ok(ended) => ended,
                Err(error) => {
                    let why = format!("it panicked: {error}");
                    (error.id(), Err(StoreError::new(StoreErrorKind::Undone, why).into()))
                }
            };
            self.by_queue.retain(|_, pushed| pushed.task != task);
            match result {
                Err(error) if is_fatal(&error) => return Err(error),
                Err(error) => tracing::error!(%error, "a push worker failed; it is started again"),
                Ok(()) => {}
            }
        }
        Ok(())
    }

    /// Stops all workers and waits for them.
    async fn end(mut self) {
        for pushed in self.by_queue.values() {
            pushed.stop.cancel();
        }
        while self.tasks.join_next().await.is_some() {}
    }
}

#[async_trait]
impl Runnable for PushWorkers {
    fn name(&self) -> String {
        "push queues".into()
    }

    async fn run(&self, stop: CancellationToken, heartbeat: Heartbeat) -> Result<(), CallError> {
        let mut running = Running::default();
        let every = self.settings.look_every.to_std();
        let mut retry =
            GrowingDelay::new(every.min(Duration::from_secs(1)), Duration::from_secs(30).max(every));
        loop {
            heartbeat.beat();
            let wait = match with_timeout(self.store.queues()).await {
                Ok(queues) => {
                    let target = |queue: redrive_core::store::Queue| Some((queue.name, queue.policy.target?));
                    running.follow(self, queues.into_iter().filter_map(target).collect());
                    retry.reset();
                    every
                }
                Err(error) if is_fatal(&error) => {
                    running.end().await;
                    return Err(error);
                }
                Err(error) => {
                    tracing::warn!(%error, "the queues could not be read; trying again");
                    retry.wait()
                }
            };
            if pause(&stop, wait).await {
                running.end().await;
                return Ok(());
            }
            if let Err(error) = running.collect() {
                running.end().await;
                return Err(error);
            }
        }
    }

    fn degraded(&self) -> Vec<String> {
        let problems = self.problems.lock().unwrap_or_else(PoisonError::into_inner);
        problems.iter().map(|(queue, why)| format!("queue {queue} is not pushed: {why}")).collect()
    }
}
