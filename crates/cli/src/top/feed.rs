//! The part that talks to the store, apart from the part that draws: it asks again and again for what is on the
//! screen, and does what it is told to. However long the store takes, keys are answered; and however fast it is, no
//! more than a fifth of its time goes into this while nobody touches a key.

use super::state::{Intent, Previewed, Said, Target, Want};
use super::story;
use super::update::{Event, Heard, News, PageNews};
use crate::connect::{Access, App, Hold};
use crate::exit_code::CliError;
use crate::output::rules;
use redrive::core::dead_letter::{Act, ActRequest, Move};
use redrive::core::error::{Error, Refusal, StoreErrorKind};
use redrive::core::filter::Filter;
use redrive::core::group::GroupAct;
use redrive::core::ids::{GroupId, OperationId};
use redrive::core::operation::{Canary, Operation, OperationSpec, Pace, PreviewRequest, Stage};
use redrive::core::query::{PageRequest, Query};
use redrive::core::store::Store;
use redrive::core::time::Span;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc, watch};

/// Groups that are shown; whoever has more merges some.
const GROUPS_MAX: usize = 500;
/// Operations that are looked at.
const OPERATIONS: usize = 5;
/// After a question, rest so many times as long as it took.
const REST: u32 = 4;
/// But not longer than this.
const REST_MAX: Duration = Duration::from_secs(30);
/// When something else is wanted, rest as long as the last question took, but not longer than this.
const HURRY_MAX: Duration = Duration::from_millis(250);
/// The longest rest between two steps of an operation.
const STEP_REST_MAX: Duration = Duration::from_secs(1);
/// So many are sent back first; the others follow when those are done.
const CANARY: u64 = 10;
/// A redrive halts when more than so many of a hundred come back with the same failure.
const STOP_AT_PERCENT: u8 = 20;
/// Letters acted on in one commit.
const LETTERS_PER_COMMIT: usize = 500;
/// Letters of a sample that are shown before something big.
const SAMPLE: usize = 3;

/// What the feed is told to do.
#[derive(Debug)]
pub(super) enum Deed {
    /// Act on letters.
    Act(Intent),
    /// Say something about a group.
    OnGroup(GroupId, GroupAct, Option<String>),
    /// Count what an act would touch.
    Preview(Intent),
    /// Start an operation and see it through.
    Start(Box<Previewed>),
}

/// The way to the store.
pub(super) struct Feed<'a> {
    app: &'a App,
    store: Mutex<Arc<dyn Store>>,
    news: mpsc::Sender<Event>,
    /// Something was changed: ask at once.
    again: Notify,
}

impl<'a> Feed<'a> {
    pub(super) fn new(app: &'a App, store: Arc<dyn Store>, news: mpsc::Sender<Event>) -> Self {
        Self { app, store: Mutex::new(store), news, again: Notify::new() }
    }

    fn store(&self) -> Arc<dyn Store> {
        Arc::clone(&self.store.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// False when nobody listens any more.
    async fn tell(&self, news: News) -> bool {
        self.news.send(Event::News(news)).await.is_ok()
    }

    async fn say(&self, text: String, bad: bool) {
        self.tell(News::Said(Said { text, bad })).await;
    }

    /// Asks for what is wanted, again and again, until nobody listens.
    pub(super) async fn watch(&self, mut want: watch::Receiver<Want>, every: Duration) {
        loop {
            let wanted = want.borrow_and_update().clone();
            let began = Instant::now();
            if !self.tell(News::Asking).await {
                return;
            }
            let news = match self.ask(&wanted).await {
                Ok(heard) => News::Heard(Box::new(heard)),
                Err(error) => News::Trouble(self.recover(error).await),
            };
            if !self.tell(news).await {
                return;
            }
            let rest = every.max((began.elapsed() * REST).min(REST_MAX));
            let took = began.elapsed();
            tokio::select! {
                () = tokio::time::sleep(rest) => {}
                () = self.again.notified() => {}
                // Somebody who holds a key down may take half of the time, not all of it.
                changed = want.changed() => match changed {
                    Ok(()) => tokio::time::sleep(took.min(HURRY_MAX)).await,
                    Err(_) => return,
                },
            }
        }
    }

    /// Whoever held the directory may be gone: whoever holds it next is asked from now on.
    async fn recover(&self, error: CliError) -> String {
        if error.code != crate::exit_code::ExitCode::Unreachable {
            return error.what;
        }
        match self.app.open(Access::Existing, Hold::Long).await {
            Ok(link) => *self.store.lock().unwrap_or_else(PoisonError::into_inner) = link.store(),
            Err(again) => return again.what,
        }
        error.what
    }

    async fn ask(&self, want: &Want) -> Result<Heard, CliError> {
        let store = self.store();
        let stats = store.stats().await?;
        let queues = store.queues().await?;
        let breakers = store.breakers().await?;
        let degraded = store.info().await?.degraded;
        let operations = store.operations(PageRequest::first(OPERATIONS)).await?.items;
        let page = match want {
            Want::Groups(current) => {
                let groups = store.groups(PageRequest::first(GROUPS_MAX).into()).await?.items;
                let facts = match current {
                    Some(id) => match store.group_detail(*id).await {
                        Ok(detail) => Some(story::facts(&detail, stats.now)),
                        // It was merged into another, or its last letter is gone; the list says so.
                        Err(Error::Refused(_)) => None,
                        Err(error) => return Err(error.into()),
                    },
                    None => None,
                };
                PageNews::Groups(groups.iter().map(|group| story::group_row(group, rules())).collect(), facts)
            }
            Want::Letters { scope, start } => {
                let cursor = start.as_ref().map(|start| start.cursor.clone());
                let page = PageRequest { limit: Some(super::state::LETTERS_PAGE), cursor };
                let filter = scope.filter().map_err(CliError::usage)?;
                let page = store.letters(Query { filter, page }).await?;
                let rows = page.items.iter().map(|letter| story::letter_row(letter, rules())).collect();
                PageNews::Letters { scope: scope.clone(), start: start.clone(), rows, next: page.next }
            }
            Want::Letter(id) => match store.letter(*id).await {
                Ok(letter) => PageNews::Letter(*id, Some(Box::new(story::sheet(&letter, rules())))),
                Err(Error::Refused(Refusal::NoSuchLetter { .. })) => PageNews::Letter(*id, None),
                Err(error) => return Err(error.into()),
            },
        };
        let (pulse, sample) = story::pulse(&stats, &queues, &breakers, degraded);
        let operations = operations.iter().map(story::operation_row).collect();
        Ok(Heard { now: stats.now, pulse, sample, operations, page })
    }

    /// Does what it is told, and steps through operations meanwhile, until nobody tells it anything any more.
    pub(super) async fn carry_out(&self, mut deeds: mpsc::Receiver<Deed>) {
        let mut running: Vec<(Instant, OperationId)> = Vec::new();
        loop {
            running.sort_unstable_by_key(|(due, _)| std::cmp::Reverse(*due));
            let next = running.last().map(|(due, _)| *due);
            let deed = tokio::select! {
                biased;
                deed = deeds.recv() => deed,
                () = reached(next) => {
                    if let Some((_, id)) = running.pop()
                        && let Some(rest) = self.step(id).await
                    {
                        running.push((Instant::now() + rest, id));
                    }
                    continue;
                }
            };
            match deed {
                None => return,
                Some(Deed::Act(intent)) => self.act(intent).await,
                Some(Deed::OnGroup(id, act, reason)) => self.on_group(id, act, reason).await,
                Some(Deed::Preview(intent)) => self.preview(intent).await,
                Some(Deed::Start(preview)) => {
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
                Err(error) => return self.say(format!("{name}: {error}"), true).await,
            }
        }
        self.again.notify_one();
        let text = match (letters.len(), refused.first()) {
            (1, None) => format!("{name}: done"),
            (_, None) => format!("{name}: {done} done"),
            (1, Some(why)) => format!("{name}: {why}"),
            (_, Some(why)) => format!("{name}: {done} done, {} refused, the first: {why}", refused.len()),
        };
        self.say(text, !refused.is_empty()).await;
    }

    async fn on_group(&self, id: GroupId, act: GroupAct, reason: Option<String>) {
        let name = act.name();
        match self.store().act_on_group(id, act, self.app.actor(reason)).await {
            Ok(group) => self.say(format!("group {}: {name}, now {}", group.id, group.status), false).await,
            Err(error) => self.say(format!("{name}: {error}"), true).await,
        }
        self.again.notify_one();
    }

    async fn preview(&self, intent: Intent) {
        match self.previewed(&intent).await {
            Ok(preview) => drop(self.tell(News::Previewed(Box::new(preview))).await),
            Err(error) => self.say(error.what, true).await,
        }
    }

    async fn previewed(&self, intent: &Intent) -> Result<Previewed, CliError> {
        let request = PreviewRequest {
            pace: pace(&intent.act),
            ..PreviewRequest::new(intent.act.clone(), meant(intent)?, SAMPLE)
        };
        let preview = self.store().preview(request).await?;
        Ok(Previewed {
            intent: intent.clone(),
            count: preview.count,
            bound: preview.bound,
            lines: story::preview_lines(&preview, rules()),
            token: Some(preview.token),
        })
    }

    async fn start(&self, preview: Previewed) -> Option<OperationId> {
        let id = OperationId::new(redrive::new_id());
        match self.started(id, &preview).await {
            Ok(operation) => {
                self.app.on_interrupt(farewell(&operation));
                self.say(format!("{} started as operation {id}", operation.act.name()), false).await;
                self.again.notify_one();
                Some(id)
            }
            Err(error) => {
                self.say(error.what, true).await;
                None
            }
        }
    }

    async fn started(&self, id: OperationId, preview: &Previewed) -> Result<Operation, CliError> {
        let Intent { act, reason, .. } = &preview.intent;
        let spec = OperationSpec {
            bound: Some(preview.bound),
            token: preview.token.clone(),
            pace: pace(act),
            ..OperationSpec::new(id, act.clone(), meant(&preview.intent)?, self.app.actor(reason.clone()))
        };
        Ok(self.store().start(spec).await?)
    }

    /// One step; says after how long the next makes sense, or nothing when nobody has to see to it any more.
    async fn step(&self, id: OperationId) -> Option<Duration> {
        let operation = match self.store().step(id).await {
            Ok(operation) => operation,
            Err(Error::Store(error)) if error.kind == StoreErrorKind::Unreachable => {
                return Some(STEP_REST_MAX);
            }
            Err(error) => {
                self.say(format!("operation {id} stopped: {error}"), true).await;
                return None;
            }
        };
        if operation.stage.is_moving() {
            return Some(operation.next_in.map_or(STEP_REST_MAX, Span::to_std).min(STEP_REST_MAX));
        }
        let row = story::operation_row(&operation);
        let but = if row.but.is_empty() { String::new() } else { format!(", {}", row.but) };
        let text = format!("{}: {} of {} {}{but}", row.act, row.done, row.members, row.stage);
        self.say(text, operation.stage == Stage::Paused).await;
        self.again.notify_one();
        None
    }
}

/// Ends then; never when there is no such time.
async fn reached(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

/// What is sent back halts by itself when its cause is still there.
fn pace(act: &Act) -> Pace {
    match act.as_move() {
        Some(Move::Retry) => Pace {
            canary: Some(Canary::Count(CANARY)),
            stop_at: Some(STOP_AT_PERCENT),
            stop_on_breaker: true,
            ..Pace::default()
        },
        Some(_) | None => Pace::default(),
    }
}

fn farewell(operation: &Operation) -> String {
    format!("`redrive op watch {}` shows what became of what was started, and goes on with it", operation.id)
}

/// The letters that are meant; the store leaves out those whose status does not allow the act.
fn meant(intent: &Intent) -> Result<Filter, CliError> {
    let Target::Matching { scope, .. } = &intent.target else {
        return Err(CliError::usage("there is nothing to match"));
    };
    scope.filter().map_err(CliError::usage)
}
