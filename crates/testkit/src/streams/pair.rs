//! Two stores side by side: tells both the same, compares what they answer and what they show.

use super::{
    ActOp, ERRORS, FILTERS, GROUP_QUERIES, Op, QUEUES, REPLY_TO, Say, SayLetter, Send, USERS, policies,
};
use crate::clock::TestClock;
use crate::ids::{message_id, operation_id};
use crate::observe::Seen;
use redrive_core::dead_letter::{Act, ActRequest, Actor, DeadLetter, LetterDelivery};
use redrive_core::disclosure::{Disclosed, Disclosure};
use redrive_core::error::{Error, Outcome, Refusal};
use redrive_core::failure::{Category, ErrorInfo, Report};
use redrive_core::filter::Filter;
use redrive_core::group::{GroupQuery, GroupSort, GroupStatus};
use redrive_core::ids::{GroupId, LeaseToken, MessageId, QueueName, Secret};
use redrive_core::message::{Delivery, NewMessage, Payload, Priority};
use redrive_core::operation::{OperationSpec, Pace, Preview, PreviewRequest};
use redrive_core::progress::Progress;
use redrive_core::query::{Cursor, Page, PageRequest, Query};
use redrive_core::store::{
    Each, LeaseRequest, LetterLeaseRequest, LetterSettle, LetterSettlement, Queue, Settle, Settlement, Store,
    VerifyRequest,
};
use redrive_core::time::{Clock as _, Span, Time};
use redrive_core::transfer::exported;
use std::fmt::Debug;

/// Runs a stream on two empty stores that share a clock.
///
/// # Errors
/// What differs first, and after which operation.
pub async fn run_pair(a: &dyn Store, b: &dyn Store, clock: &TestClock, ops: &[Op]) -> Result<(), String> {
    let mut pair = Pair { a, b, clock, kept: Kept::default() };
    for (n, op) in ops.iter().enumerate() {
        let told = pair.apply(op).await;
        told.map_err(|why| format!("operation {n} ({op:?}): {why}"))?;
        pair.compare().await.map_err(|why| format!("after operation {n} ({op:?}): {why}"))?;
    }
    Ok(())
}

/// What the stream has seen so far.
#[derive(Default)]
struct Kept {
    sent: Vec<NewMessage>,
    tokens: Vec<(LeaseToken, LeaseToken)>,
    letter_tokens: Vec<(LeaseToken, LeaseToken)>,
    letters: Vec<DeadLetter>,
    exports: Vec<DeadLetter>,
    bound: Option<u64>,
    ids: u64,
}

struct Pair<'a> {
    a: &'a dyn Store,
    b: &'a dyn Store,
    clock: &'a TestClock,
    kept: Kept,
}

fn queue(n: usize) -> QueueName {
    QUEUES[n % QUEUES.len()].parse().expect("a name")
}

fn actor() -> Actor {
    Actor { reason: Some("stream".into()), ..Actor::new("ada", "stream") }
}

fn filter(n: usize) -> Filter {
    Filter::parse(FILTERS[n % FILTERS.len()]).expect("a filter")
}

/// One of a few ways to ask for groups.
fn group_query(n: usize, now: Time) -> GroupQuery {
    let query = GroupQuery::default();
    match n {
        0 => GroupQuery { status: vec![GroupStatus::New, GroupStatus::Regressed], ..query },
        1 => GroupQuery { queue: Some(queue(1)), sort: Some(GroupSort::Impact), ..query },
        2 => GroupQuery { owner: Some("bob".into()), sort: Some(GroupSort::LastSeen), ..query },
        3 => GroupQuery { since: Some(now.minus(Span::from_secs(60))), ..query },
        _ => GroupQuery { text: Some("BAD".into()), ..query },
    }
}

/// The item that a number chooses, counted from the latest.
fn choose<T>(all: &[T], n: usize) -> Option<&T> {
    n.checked_rem(all.len()).and_then(|n| all.iter().rev().nth(n))
}

/// Words may differ between stores, what they say may not.
fn plain(refusal: Refusal) -> Refusal {
    match refusal {
        Refusal::Invalid { field, .. } => Refusal::invalid(field, ""),
        Refusal::WrongGroupStatus { group, status, act, .. } => {
            Refusal::WrongGroupStatus { group, status, act, hint: String::new() }
        }
        Refusal::WrongStatus { id, status, act, .. } => {
            Refusal::WrongStatus { id, status, act, hint: String::new() }
        }
        other @ (Refusal::NoSuchMessage { .. }
        | Refusal::NoSuchLetter { .. }
        | Refusal::NoSuchQueue { .. }
        | Refusal::NoSuchGroup { .. }
        | Refusal::NoSuchOperation { .. }
        | Refusal::StaleToken { .. }
        | Refusal::LeaseExpired { .. }
        | Refusal::WrongState { .. }
        | Refusal::LetterLeased { .. }
        | Refusal::VersionConflict { .. }
        | Refusal::PatchFailed { .. }
        | Refusal::NoChange { .. }
        | Refusal::Erased { .. }
        | Refusal::KeyConflict { .. }
        | Refusal::KeyInUse { .. }
        | Refusal::RedrivenTooOften { .. }
        | Refusal::IdConflict { .. }
        | Refusal::QueueFull { .. }
        | Refusal::IsDrawer { .. }
        | Refusal::Damaged { .. }
        | Refusal::WrongStage { .. }
        | Refusal::KvConflict { .. }) => other,
    }
}

fn each<T>(all: Each<T>) -> Each<T> {
    all.into_iter().map(|one| one.map_err(plain)).collect()
}

/// Whether both answered the same; a store that fails is always wrong here.
fn same<T: PartialEq + Debug>(a: Outcome<T>, b: Outcome<T>) -> Result<Option<T>, String> {
    let told = |outcome: Outcome<T>| match outcome {
        Ok(value) => Ok(Ok(value)),
        Err(Error::Refused(refusal)) => Ok(Err(plain(refusal))),
        Err(Error::Store(error)) => Err(format!("a store failed: {error}")),
    };
    let (a, b) = (told(a)?, told(b)?);
    if a == b { Ok(a.ok()) } else { Err(format!("the answers differ:\n  {a:?}\n  {b:?}")) }
}

/// How a store says who paused a queue is its own business.
fn wordless(queue: Queue) -> Queue {
    Queue { paused_by: None, ..queue }
}

fn blank(token: &mut LeaseToken) -> LeaseToken {
    std::mem::replace(token, LeaseToken { id: token.id, secret: Secret::new([0; 16]) })
}

impl Pair<'_> {
    fn now(&self) -> Time {
        self.clock.now()
    }

    async fn apply(&mut self, op: &Op) -> Result<(), String> {
        match op {
            Op::Send(all) => self.send(all).await,
            Op::Resend(n, other) => self.resend(*n, *other).await,
            Op::Lease(queues, max, seconds) => self.lease(*queues, *max, *seconds).await,
            Op::Settle(all) => self.settle(all).await,
            Op::Advance(ms) => {
                self.clock.advance(Span::from_millis(*ms));
                Ok(())
            }
            Op::Reap(limit) => same(self.a.reap(*limit).await, self.b.reap(*limit).await).map(drop),
            Op::Cancel(all) => self.cancel(all).await,
            Op::Pause(n, on) => {
                let a = self.a.pause(queue(*n), *on, actor()).await.map(wordless);
                same(a, self.b.pause(queue(*n), *on, actor()).await.map(wordless)).map(drop)
            }
            Op::Force(n, open) => {
                let key = if *open { "even".to_owned() } else { queue(*n).to_string() };
                let a = self.a.force_breaker(queue(*n), key.clone(), *open, actor()).await;
                same(a, self.b.force_breaker(queue(*n), key, *open, actor()).await).map(drop)
            }
            Op::Merge(one, other) => {
                let groups = vec![self.group(*one).await?, self.group(*other).await?];
                let a = self.a.merge_groups(groups.clone(), actor()).await;
                same(a, self.b.merge_groups(groups, actor()).await).map(drop)
            }
            Op::Label(group, category) => {
                let (id, category) = (self.group(*group).await?, Category::ALL.get(*category).copied());
                let a = self.a.label_group(id, category, actor()).await;
                same(a, self.b.label_group(id, category, actor()).await).map(drop)
            }
            Op::Purge(n) => {
                let a = self.a.purge(queue(*n), actor()).await;
                same(a, self.b.purge(queue(*n), actor()).await).map(drop)
            }
            Op::Configure(n, which) => self.configure(queue(*n), *which).await,
            Op::Act(all) => self.act(all).await,
            Op::Draw(drawer, max, seconds) => self.draw(*drawer, *max, *seconds).await,
            Op::Return(all) => self.give_back(all).await,
            Op::Preview(act, which, sample) => self.preview(act, *which, *sample).await,
            Op::Start(n, act, which, bounded, pace) => self.start(*n, act, *which, *bounded, pace).await,
            Op::Step(n, times) => {
                for _ in 0..*times {
                    same(self.a.step(operation_id(*n)).await, self.b.step(operation_id(*n)).await)?;
                }
                Ok(())
            }
            Op::Control(n, control) => {
                let a = self.a.control(operation_id(*n), *control, actor()).await;
                same(a, self.b.control(operation_id(*n), *control, actor()).await).map(drop)
            }
            Op::Export(n) => {
                self.kept.exports.extend(choose(&self.kept.letters, *n).cloned());
                Ok(())
            }
            Op::Import(n, fresh) => self.import(*n, *fresh).await,
            Op::ActOnGroup(n, act) => {
                let (id, act) = (self.group(*n).await?, act.at(self.now()));
                let a = self.a.act_on_group(id, act.clone(), actor()).await;
                same(a, self.b.act_on_group(id, act, actor()).await).map(drop)
            }
            Op::Mark(n) => {
                let text = if *n == 0 { String::new() } else { format!("deploy {n}") };
                same(self.a.mark(text.clone(), actor()).await, self.b.mark(text, actor()).await).map(drop)
            }
            Op::Groups(n, limit) => self.groups(*n, *limit).await,
            Op::Disclose(n, what) => self.disclose(*n, *what).await,
            Op::Walk(limit, n) => self.walk(*limit, *n).await,
            Op::Index(limit) => self.index(*limit).await,
            Op::KeyState(n, key) => self.key_state(*n, *key).await,
            Op::Kv(key, value, wrong) => self.kv(*key, *value, *wrong).await,
        }
    }

    /// Reads groups in small pages.
    async fn groups(&self, which: usize, limit: usize) -> Result<(), String> {
        let query = group_query(which % GROUP_QUERIES, self.now());
        let mut met = Vec::new();
        for store in [self.a, self.b] {
            let page = |page| store.groups(GroupQuery { page, ..query.clone() });
            met.push(small_pages(limit, page).await?);
        }
        if met[0] == met[1] { Ok(()) } else { Err(format!("groups by {query:?} differ: {met:?}")) }
    }

    /// A group if there is one, else a name that nobody has.
    async fn group(&self, n: usize) -> Result<GroupId, String> {
        let groups = self.a.groups(GroupQuery::default()).await.map_err(|error| error.to_string())?.items;
        Ok(choose(&groups, n).map_or(GroupId::new(7), |group| group.id))
    }

    async fn send(&mut self, all: &[Send]) -> Result<(), String> {
        let mut batch = Vec::new();
        for said in all {
            self.kept.ids += 1;
            let after = |seconds: u64| self.now().plus(Span::from_secs(seconds));
            let payload = Payload { bytes: vec![b'x'; said.size], content_type: String::new() };
            batch.push(NewMessage {
                kind: if said.size % 2 == 0 { "even".into() } else { String::new() },
                priority: Some(Priority::from_level(said.level)),
                key: said.key.map(|k| format!("k{k}")),
                ordering_key: said.order.map(|k| format!("o{k}")),
                delay: said.delay.map(Span::from_secs),
                ttl: said.ttl.map(Span::from_secs),
                deadline: said.deadline.map(after),
                max_attempts: said.max_attempts,
                reply_to: said.reply_to.map(|n| REPLY_TO[n % REPLY_TO.len()].parse().expect("a name")),
                trace: (said.size == 7).then(|| "00-trace".into()),
                ..NewMessage::new(message_id(self.kept.ids), queue(said.queue), payload)
            });
        }
        self.kept.sent.extend(batch.iter().cloned());
        self.enqueue(batch).await
    }

    async fn resend(&mut self, n: usize, other: bool) -> Result<(), String> {
        let Some(mut again) = choose(&self.kept.sent, n).cloned() else { return Ok(()) };
        if other {
            again.payload.bytes.push(b'!');
        }
        self.enqueue(vec![again]).await
    }

    async fn enqueue(&self, batch: Vec<NewMessage>) -> Result<(), String> {
        let (a, b) = (self.a.enqueue(batch.clone()).await, self.b.enqueue(batch).await);
        same(a.map(each), b.map(each)).map(drop)
    }

    async fn lease(&mut self, queues: usize, max: usize, seconds: Option<u64>) -> Result<(), String> {
        let queues = (0..QUEUES.len()).filter(|n| queues & (1 << n) != 0).map(queue).collect();
        let lease_for = seconds.map(Span::from_secs);
        let request = LeaseRequest { queues, max, lease_for, worker: format!("w{max}") };
        let (mut a, mut b) = (self.a.lease(request.clone()).await, self.b.lease(request).await);
        let secret = |all: &mut Outcome<Vec<Delivery>>| -> Vec<LeaseToken> {
            all.iter_mut().flatten().map(|d| blank(&mut d.token)).collect()
        };
        let tokens = secret(&mut a).into_iter().zip(secret(&mut b));
        self.kept.tokens.extend(tokens);
        same(a, b).map(drop)
    }

    async fn settle(&self, all: &[(usize, Say)]) -> Result<(), String> {
        let (mut to_a, mut to_b) = (Vec::new(), Vec::new());
        for (n, say) in all {
            let Some((a, b)) = choose(&self.kept.tokens, *n) else { continue };
            let what = match say {
                Say::Ack => Settle::Ack,
                Say::Reply(size) => Settle::Reply {
                    payload: Payload { bytes: vec![b'y'; *size], content_type: "text/plain".into() },
                },
                Say::Progress(done) => Settle::Progress { progress: Progress::new(*done, Some(3), "at it") },
                Say::Fail(error, permanent, said) => {
                    let message = match error.checked_sub(ERRORS.len()) {
                        None => "something is wrong".to_owned(),
                        Some(n) => {
                            let user = USERS[n / ERRORS.len() % USERS.len()];
                            format!("box {user} gone")
                        }
                    };
                    let error_type = ERRORS[error % ERRORS.len()].into();
                    let report = Report {
                        error: ErrorInfo { error_type, message, ..ErrorInfo::default() },
                        permanent: *permanent,
                        host: (error % 3 > 0).then(|| format!("h{}", error % 3)),
                        version: said.is_none().then(|| "1.0".to_owned()),
                        ..Report::default()
                    };
                    Settle::Fail { failure: Box::new(report.analyse()), said: *said }
                }
                Say::Release => Settle::Release,
                Say::Snooze(seconds) => Settle::Snooze { span: Span::from_secs(*seconds) },
                Say::Extend(seconds) => Settle::Extend { by: seconds.map(Span::from_secs) },
            };
            to_a.push(Settlement { token: *a, what: what.clone() });
            to_b.push(Settlement { token: *b, what });
        }
        same(self.a.settle(to_a).await.map(each), self.b.settle(to_b).await.map(each)).map(drop)
    }

    async fn cancel(&self, all: &[usize]) -> Result<(), String> {
        let ids: Vec<MessageId> =
            all.iter().filter_map(|n| choose(&self.kept.sent, *n)).map(|m| m.id).collect();
        let (a, b) = (self.a.cancel(ids.clone(), actor()).await, self.b.cancel(ids, actor()).await);
        same(a.map(each), b.map(each)).map(drop)
    }

    async fn configure(&self, name: QueueName, which: usize) -> Result<(), String> {
        let policy = choose(&policies(), which).cloned().unwrap_or_default();
        let a = self.a.configure(name.clone(), policy.clone(), actor()).await.map(wordless);
        same(a, self.b.configure(name, policy, actor()).await.map(wordless)).map(drop)
    }

    /// A letter if there is one, else any message, so that the unknown is asked for too.
    fn letter(&self, n: usize) -> Option<(MessageId, u64)> {
        let letter = choose(&self.kept.letters, n).map(|l| (l.id(), l.file.version));
        letter.or_else(|| choose(&self.kept.sent, n).map(|m| (m.id, 1)))
    }

    async fn act(&self, all: &[(usize, ActOp, Option<bool>)]) -> Result<(), String> {
        let mut batch = Vec::new();
        for (n, act, insists) in all {
            let Some((id, version)) = self.letter(*n) else { continue };
            let edits = matches!(act, ActOp::Edit(_));
            let insists = insists.or(edits.then_some(false));
            let expected_version = insists.map(|wrong| version + u64::from(wrong));
            batch.push(ActRequest { id, act: act.at(self.now()), actor: actor(), expected_version });
        }
        same(self.a.act(batch.clone()).await.map(each), self.b.act(batch).await.map(each)).map(drop)
    }

    async fn draw(&mut self, drawer: usize, max: usize, seconds: Option<u64>) -> Result<(), String> {
        let names = ["a-dlq", "b-dlq", "c-dlq", "bin", "net"];
        let dlq = names[drawer % names.len()].parse().expect("a name");
        let lease_for = seconds.map(Span::from_secs);
        let request = LetterLeaseRequest { dlq, max, lease_for, worker: format!("c{max}") };
        let (mut a, mut b) =
            (self.a.lease_letters(request.clone()).await, self.b.lease_letters(request).await);
        let secret = |all: &mut Outcome<Vec<LetterDelivery>>| -> Vec<LeaseToken> {
            all.iter_mut().flatten().map(|d| blank(&mut d.token)).collect()
        };
        let tokens = secret(&mut a).into_iter().zip(secret(&mut b));
        self.kept.letter_tokens.extend(tokens);
        same(a, b).map(drop)
    }

    async fn give_back(&self, all: &[(usize, SayLetter)]) -> Result<(), String> {
        let (mut to_a, mut to_b) = (Vec::new(), Vec::new());
        for (n, say) in all {
            let Some((a, b)) = choose(&self.kept.letter_tokens, *n) else { continue };
            let what = match say {
                SayLetter::Do(act) => LetterSettle::Do { act: act.at(self.now()), actor: actor() },
                SayLetter::Fail => LetterSettle::Fail { note: "the consumer broke".into() },
                SayLetter::Release => LetterSettle::Release,
                SayLetter::Snooze(seconds) => LetterSettle::Snooze { span: Span::from_secs(*seconds) },
                SayLetter::Extend(seconds) => LetterSettle::Extend { by: seconds.map(Span::from_secs) },
            };
            to_a.push(LetterSettlement { token: *a, what: what.clone() });
            to_b.push(LetterSettlement { token: *b, what });
        }
        let (a, b) = (self.a.settle_letters(to_a).await, self.b.settle_letters(to_b).await);
        same(a.map(each), b.map(each)).map(drop)
    }

    async fn preview(&mut self, act: &ActOp, which: usize, sample: usize) -> Result<(), String> {
        let request = PreviewRequest::new(act.at(self.now()), filter(which), sample);
        // Each store proves with a key of its own.
        let unproved = |preview: Preview| Preview { token: String::new(), ..preview };
        let a = self.a.preview(request.clone()).await.map(unproved);
        let preview = same(a, self.b.preview(request).await.map(unproved))?;
        self.kept.bound = preview.map(|p| p.bound);
        Ok(())
    }

    async fn start(
        &self,
        n: u64,
        act: &ActOp,
        which: usize,
        bounded: bool,
        pace: &Pace,
    ) -> Result<(), String> {
        let bound = self.kept.bound.filter(|_| bounded);
        let (id, act) = (operation_id(n), act.at(self.now()));
        let pace = if matches!(act, Act::Retry(_)) { pace.clone() } else { Pace::default() };
        let spec = OperationSpec { bound, pace, ..OperationSpec::new(id, act, filter(which), actor()) };
        same(self.a.start(spec.clone()).await, self.b.start(spec).await).map(drop)
    }

    async fn import(&mut self, n: usize, fresh: bool) -> Result<(), String> {
        let Some(mut letter) = choose(&self.kept.exports, n).cloned() else { return Ok(()) };
        if fresh {
            self.kept.ids += 1;
            letter.message.envelope.id = message_id(self.kept.ids);
            // From elsewhere: later deaths, a group of another name, and sometimes only a view of a letter.
            letter.death += n as u64 * 5;
            letter.message.masked = n == 3;
            if n % 2 == 1 {
                letter.group = GroupId::new(7_000 + n as u64);
            }
        }
        let batch = vec![letter];
        let (a, b) = (self.a.import(batch.clone(), actor()).await, self.b.import(batch, actor()).await);
        same(a.map(each), b.map(each)).map(drop)
    }

    /// What an index does is a store's own business; what is found must not depend on it.
    async fn index(&self, limit: usize) -> Result<(), String> {
        for store in [self.a, self.b] {
            store.index_text(limit).await.map_err(|error| format!("a store failed: {error}"))?;
        }
        Ok(())
    }

    /// Reads lists in small pages. Where a page ends under a filter is the store's business; what is met is not.
    async fn disclose(&self, n: usize, what: usize) -> Result<(), String> {
        let filtered = Disclosure::matching(Disclosed::Export, filter(what), n as u64);
        let id = choose(&self.kept.letters, n).map_or(message_id(u64::MAX), DeadLetter::id);
        let shown = match what {
            0 => Disclosure::of(Disclosed::Letter, id),
            1 => Disclosure { ids: Vec::new(), ..Disclosure::of(Disclosed::Payload, id) },
            _ => filtered,
        };
        let a = self.a.disclose(shown.clone(), actor()).await;
        same(a, self.b.disclose(shown, actor()).await).map(drop)
    }

    async fn walk(&self, limit: usize, which: usize) -> Result<(), String> {
        for store in [self.a, self.b] {
            let query = |page| Query { filter: filter(which), page };
            let met = small_pages(limit, |page| store.letters(query(page))).await?;
            let mut meant = self.kept.letters.clone();
            meant.retain(|letter| filter(which).matches_letter(letter, self.now()));
            // Lists do not show what a letter said before; exports do.
            let mut expected = meant.clone();
            expected.iter_mut().for_each(|letter| letter.revisions.clear());
            if met != expected {
                return Err(format!("a walk met {met:?}\n  instead of {expected:?}"));
            }
            let met = small_pages(limit, |page| store.export(query(page))).await?;
            let expected: Vec<_> = meant.into_iter().rev().map(exported).collect();
            if met != expected {
                return Err(format!("an export met {met:?}\n  instead of {expected:?}"));
            }
        }
        let mut live = Vec::new();
        for store in [self.a, self.b] {
            let query = |page| Query { page, ..Query::default() };
            live.push(small_pages(limit, |page| store.messages(query(page))).await?);
        }
        if live[0] == live[1] { Ok(()) } else { Err(format!("walks over messages differ: {live:?}")) }
    }

    async fn key_state(&self, n: usize, key: usize) -> Result<(), String> {
        // What an unknown queue answers is not agreed upon; a known one must.
        if self.a.queue(queue(n)).await.is_err() {
            return Ok(());
        }
        let a = self.a.key_state(queue(n), format!("k{key}")).await;
        same(a, self.b.key_state(queue(n), format!("k{key}")).await).map(drop)
    }

    async fn kv(&self, key: usize, value: Option<u8>, wrong: bool) -> Result<(), String> {
        let (space, key) = ("stream".to_owned(), format!("v{key}"));
        let a = self.a.kv_get(space.clone(), key.clone()).await;
        let entry = same(a, self.b.kv_get(space.clone(), key.clone()).await)?.flatten();
        let expected = entry.map_or(0, |e| e.version) + u64::from(wrong);
        let value = value.map(|v| vec![v]);
        let a = self.a.kv_put(space.clone(), key.clone(), value.clone(), expected).await;
        same(a, self.b.kv_put(space, key, value, expected).await).map(drop)
    }

    /// Everything both show, and that both add up.
    async fn compare(&mut self) -> Result<(), String> {
        let mut seen = Vec::new();
        for (store, name) in [(self.a, "first"), (self.b, "second")] {
            let found = store.verify(VerifyRequest { deep: true, repair: false }).await;
            let found = found.map_err(|error| format!("the {name} store cannot verify: {error}"))?;
            if !found.is_clean() {
                return Err(format!("the {name} store does not add up: {:?}", found.findings));
            }
            let all =
                Seen::of(store).await.map_err(|error| format!("the {name} store cannot be read: {error}"))?;
            seen.push(all.comparable());
        }
        if let Some(difference) = seen[0].difference(&seen[1]) {
            return Err(difference);
        }
        self.kept.letters = seen.swap_remove(0).letters;
        Ok(())
    }
}

async fn small_pages<T, F>(limit: usize, page: impl Fn(PageRequest) -> F) -> Result<Vec<T>, String>
where
    F: Future<Output = Outcome<Page<T>>>,
{
    let mut met = Vec::new();
    let mut cursor: Option<Cursor> = None;
    loop {
        let Page { items, next, .. } =
            page(PageRequest { limit: Some(limit), cursor }).await.map_err(|error| error.to_string())?;
        if items.len() > limit {
            return Err(format!("a page of {} where {limit} were asked for", items.len()));
        }
        met.extend(items);
        match next {
            Some(next) => cursor = Some(next),
            None => return Ok(met),
        }
    }
}
