//! Talks to the store, separate from drawing: polls for the data of the current page, and executes requests. A slow
//! store never delays keys. While the user is idle, polling takes at most a fifth of the time.

use super::convert;
use super::state::{ActPreview, DataRequest, Intent, StatusMessage, Target};
use super::update::{Answer, Event, FeedEvent, PageData};
use crate::connect::{Access, App, Hold};
use crate::exit_code::CliError;
use crate::output::rules;
use redrive::core::dead_letter::{Act, ActRequest, StatusChange};
use redrive::core::error::{CallError, Refusal, StoreErrorKind};
use redrive::core::filter::Filter;
use redrive::core::group::GroupAct;
use redrive::core::ids::{GroupId, OperationId};
use redrive::core::operation::{Canary, Operation, OperationSpec, PreviewRequest, Rollout, Stage};
use redrive::core::query::{PageRequest, Query};
use redrive::core::store::Store;
use redrive::core::time::Span;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc, watch};

/// The maximum number of groups to show.
const GROUPS_MAX: usize = 500;
/// The number of latest operations to look at.
const OPERATIONS: usize = 5;
/// After a poll, rest this many times as long as the poll took.
const REST: u32 = 4;
/// The longest rest after a poll.
const REST_MAX: Duration = Duration::from_secs(30);
/// If the page changes, rest as long as the last poll took, but at most this long.
const HURRIED_REST_MAX: Duration = Duration::from_millis(250);
/// The longest rest between two steps of an operation.
const STEP_REST_MAX: Duration = Duration::from_secs(1);
/// The number of letters to send first; the rest follows when these are settled.
const CANARY: u64 = 10;
/// A redrive pauses if more than this percentage fails the same way again.
const STOP_AT_PERCENT: u8 = 20;
/// The number of letters to act on in one commit.
const LETTERS_PER_COMMIT: usize = 500;
/// The number of letters to show before a confirmation.
const SAMPLE: usize = 3;

/// A request to the store.
#[derive(Debug)]
pub(super) enum StoreRequest {
    /// Act on letters.
    Act(Intent),
    /// Act on a group.
    OnGroup(GroupId, GroupAct, Option<String>),
    /// Count the letters that an act would change.
    Preview(Intent),
    /// Start an operation and drive it to its end.
    Start(Box<ActPreview>),
}

/// The connection to the store.
pub(super) struct Feed<'a> {
    app: &'a App,
    store: Mutex<Arc<dyn Store>>,
    events: mpsc::Sender<Event>,
    /// Notified after a change, to poll at once.
    poll_now: Notify,
}

impl<'a> Feed<'a> {
    pub(super) fn new(app: &'a App, store: Arc<dyn Store>, events: mpsc::Sender<Event>) -> Self {
        Self { app, store: Mutex::new(store), events, poll_now: Notify::new() }
    }

    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sends an event to the UI; returns `false` if the UI is gone.
    async fn send(&self, event: FeedEvent) -> bool {
        self.events.send(Event::Feed(event)).await.is_ok()
    }

    async fn show_message(&self, text: String, is_error: bool) {
        self.send(FeedEvent::Message(StatusMessage { text, is_error })).await;
    }

    /// Polls for the data of the current page until the UI is gone.
    pub(super) async fn poll(&self, mut data_request: watch::Receiver<DataRequest>, every: Duration) {
        loop {
            let request = data_request.borrow_and_update().clone();
            let began = Instant::now();
            if !self.send(FeedEvent::PollStarted).await {
                return;
            }
            let event = match self.fetch(&request).await {
                Ok(answer) => FeedEvent::Answer(Box::new(answer)),
                Err(error) => FeedEvent::PollFailed(self.recover(error).await),
            };
            if !self.send(event).await {
                return;
            }
            let rest = every.max((began.elapsed() * REST).min(REST_MAX));
            let took = began.elapsed();
            tokio::select! {
                () = tokio::time::sleep(rest) => {}
                () = self.poll_now.notified() => {}
                // A key that is held down may take half of the time, but not all of it.
                changed = data_request.changed() => match changed {
                    Ok(()) => tokio::time::sleep(took.min(HURRIED_REST_MAX)).await,
                    Err(_) => return,
                },
            }
        }
    }

    /// Reconnects if the holder of the data directory is gone; returns the error text to show.
    async fn recover(&self, error: CliError) -> String {
        if error.code != crate::exit_code::ExitCode::Unreachable {
            return error.what;
        }
        match self.app.open(Access::Existing, Hold::Long).await {
            Ok(link) => *self.store.lock().unwrap_or_else(PoisonError::into_inner) = link.store(),
            Err(error) => return error.what,
        }
        error.what
    }

    async fn fetch(&self, request: &DataRequest) -> Result<Answer, CliError> {
        let store = self.store();
        let stats = store.stats().await?;
        let queues = store.queues().await?;
        let breakers = store.breakers().await?;
        let degraded = store.info().await?.degraded;
        let operations = store.operations(PageRequest::first(OPERATIONS)).await?.items;
        let page = match request {
            DataRequest::Groups(current) => {
                let groups = store.groups(PageRequest::first(GROUPS_MAX).into()).await?.items;
                let facts = match current {
                    Some(id) => match store.group_detail(*id).await {
                        Ok(detail) => Some(convert::facts(&detail, stats.now)),
                        // The group was merged, or its last letter is gone; the list shows that.
                        Err(CallError::Refused(_)) => None,
                        Err(error) => return Err(error.into()),
                    },
                    None => None,
                };
                PageData::Groups(
                    groups.iter().map(|group| convert::group_row(group, rules())).collect(),
                    facts,
                )
            }
            DataRequest::Letters { scope, start } => {
                let cursor = start.as_ref().map(|start| start.cursor.clone());
                let page = PageRequest { limit: Some(super::state::LETTERS_PAGE), cursor };
                let filter = scope.filter().map_err(CliError::usage)?;
                let page = store.letters(Query { filter, page }).await?;
                let rows = page.items.iter().map(|letter| convert::letter_row(letter, rules())).collect();
                PageData::Letters { scope: scope.clone(), start: start.clone(), rows, next: page.next }
            }
            DataRequest::Letter(id) => match store.letter(*id).await {
                Ok(letter) => PageData::Letter(*id, Some(Box::new(convert::sheet(&letter, rules())))),
                Err(CallError::Refused(Refusal::NoSuchLetter { .. })) => PageData::Letter(*id, None),
                Err(error) => return Err(error.into()),
            },
        };
        let (overview, sample) = convert::overview(&stats, &queues, &breakers, degraded);
        let operations = operations.iter().map(convert::operation_row).collect();
        Ok(Answer { now: stats.now, overview, sample, operations, page })
    }

    /// Executes requests, and steps through running operations meanwhile, until the UI is gone.
    pub(super) async fn execute(&self, mut requests: mpsc::Receiver<StoreRequest>) {
        let mut running: Vec<(Instant, OperationId)> = Vec::new();
        loop {
            running.sort_unstable_by_key(|(due, _)| std::cmp::Reverse(*due));
            let next = running.last().map(|(due, _)| *due);
            let request = tokio::select! {
                biased;
                request = requests.recv() => request,
                () = wait_until(next) => {
                    if let Some((_, id)) = running.pop()
                        && let Some(rest) = self.step(id).await
                    {
                        running.push((Instant::now() + rest, id));
                    }
                    continue;
                }
            };
            match request {
                None => return,
                Some(StoreRequest::Act(intent)) => self.act(intent).await,
                Some(StoreRequest::OnGroup(id, act, reason)) => self.on_group(id, act, reason).await,
                Some(StoreRequest::Preview(intent)) => self.preview(intent).await,
                Some(StoreRequest::Start(preview)) => {
                    running.extend(self.start(*preview).await.map(|id| (Instant::now(), id)));
                }
            }
        }
    }

    async fn act(&self, intent: Intent) {
        let Target::These(letters) = &intent.target else { return };
        let name = intent.act.name();
        let (mut done, mut refused) = (0usize, Vec::new());
        for chunk in letters.chunks(LETTERS_PER_COMMIT) {
            let batch = chunk.iter().map(|(id, version)| ActRequest {
                id: *id,
                act: intent.act.clone(),
                actor: self.app.actor(intent.reason.clone()),
                expected_version: Some(*version),
            });
            match self.store().act(batch.collect()).await {
                Ok(results) => {
                    for result in results {
                        match result {
                            Ok(_) => done += 1,
                            Err(refusal) => refused.push(refusal.to_string()),
                        }
                    }
                }
                Err(error) => return self.show_message(format!("{name}: {error}"), true).await,
            }
        }
        self.poll_now.notify_one();
        let text = match (letters.len(), refused.first()) {
            (1, None) => format!("{name}: done"),
            (_, None) => format!("{name}: {done} done"),
            (1, Some(why)) => format!("{name}: {why}"),
            (_, Some(why)) => format!("{name}: {done} done, {} refused, the first: {why}", refused.len()),
        };
        self.show_message(text, !refused.is_empty()).await;
    }

    async fn on_group(&self, id: GroupId, act: GroupAct, reason: Option<String>) {
        let name = act.name();
        match self.store().act_on_group(id, act, self.app.actor(reason)).await {
            Ok(group) => {
                self.show_message(format!("group {}: {name}, now {}", group.id, group.status), false).await
            }
            Err(error) => self.show_message(format!("{name}: {error}"), true).await,
        }
        self.poll_now.notify_one();
    }

    async fn preview(&self, intent: Intent) {
        match self.previewed(&intent).await {
            Ok(preview) => drop(self.send(FeedEvent::Preview(Box::new(preview))).await),
            Err(error) => self.show_message(error.what, true).await,
        }
    }

    async fn previewed(&self, intent: &Intent) -> Result<ActPreview, CliError> {
        let request = PreviewRequest {
            rollout: rollout(&intent.act),
            ..PreviewRequest::new(intent.act.clone(), filter_of(intent)?, SAMPLE)
        };
        let preview = self.store().preview(request).await?;
        Ok(ActPreview {
            intent: intent.clone(),
            count: preview.count,
            bound: preview.bound,
            lines: convert::preview_lines(&preview, rules()),
            token: Some(preview.token),
        })
    }

    async fn start(&self, preview: ActPreview) -> Option<OperationId> {
        let id = OperationId::new(redrive::new_id());
        match self.started(id, &preview).await {
            Ok(operation) => {
                self.app.set_interrupt_hint(exit_hint(&operation));
                self.show_message(format!("{} started as operation {id}", operation.act.name()), false).await;
                self.poll_now.notify_one();
                Some(id)
            }
            Err(error) => {
                self.show_message(error.what, true).await;
                None
            }
        }
    }

    async fn started(&self, id: OperationId, preview: &ActPreview) -> Result<Operation, CliError> {
        let Intent { act, reason, .. } = &preview.intent;
        let spec = OperationSpec {
            bound: Some(preview.bound),
            token: preview.token.clone(),
            rollout: rollout(act),
            ..OperationSpec::new(id, act.clone(), filter_of(&preview.intent)?, self.app.actor(reason.clone()))
        };
        Ok(self.store().start(spec).await?)
    }

    /// Executes one step. Returns when the next step is due, or `None` if the operation needs no more steps.
    async fn step(&self, id: OperationId) -> Option<Duration> {
        let operation = match self.store().step(id).await {
            Ok(operation) => operation,
            Err(CallError::Store(error)) if error.kind == StoreErrorKind::Unreachable => {
                return Some(STEP_REST_MAX);
            }
            Err(error) => {
                self.show_message(format!("operation {id} stopped: {error}"), true).await;
                return None;
            }
        };
        if operation.stage.is_moving() {
            return Some(operation.next_in.map_or(STEP_REST_MAX, Span::to_std).min(STEP_REST_MAX));
        }
        let row = convert::operation_row(&operation);
        let problems = if row.problems.is_empty() { String::new() } else { format!(", {}", row.problems) };
        let text = format!("{}: {} of {} {}{problems}", row.act, row.done, row.members, row.stage);
        self.show_message(text, operation.stage == Stage::Paused).await;
        self.poll_now.notify_one();
        None
    }
}

/// Completes at this time; never if there is none.
async fn wait_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

/// The rollout of an act: a redrive starts with a canary and pauses if the cause persists.
fn rollout(act: &Act) -> Rollout {
    match act.status_change() {
        Some(StatusChange::Retry) => Rollout {
            canary: Some(Canary::Count(CANARY)),
            stop_at: Some(STOP_AT_PERCENT),
            stop_on_breaker: true,
            ..Rollout::default()
        },
        Some(_) | None => Rollout::default(),
    }
}

fn exit_hint(operation: &Operation) -> String {
    format!(
        "run `redrive op watch {}` to see the outcome of the started operation and continue it",
        operation.id
    )
}

/// The filter of the letters to act on; the store skips those whose status does not allow the act.
fn filter_of(intent: &Intent) -> Result<Filter, CliError> {
    let Target::Matching { scope, .. } = &intent.target else {
        return Err(CliError::usage("the act has no filter"));
    };
    scope.filter().map_err(CliError::usage)
}
