//! Two stores side by side: runs the same operations on both, and compares their results and everything they
//! show.

use super::{
    ActOp, ERRORS, FILTERS, GROUP_QUERIES, LetterSettleOp, Op, QUEUES, REPLY_TO, SendOp, SettleOp, USERS,
    policies,
};
use crate::clock::TestClock;
use crate::ids::{message_id, operation_id};
use crate::observe::StoreView;
use redrive_core::dead_letter::{Act, ActRequest, Actor, DeadLetter, LetterDelivery};
use redrive_core::disclosure::{Disclosed, Disclosure};
use redrive_core::error::{CallError, Refusal, StoreResult};
use redrive_core::failure::{Category, ErrorInfo, FailureReport};
use redrive_core::filter::Filter;
use redrive_core::group::{GroupQuery, GroupSort, GroupStatus};
use redrive_core::ids::{GroupId, LeaseToken, MessageId, QueueName, Secret};
use redrive_core::message::{Delivery, NewMessage, Payload, Priority};
use redrive_core::operation::{OperationSpec, Preview, PreviewRequest, Rollout};
use redrive_core::progress::Progress;
use redrive_core::query::{Cursor, Page, PageRequest, Query};
use redrive_core::recording::{KvWrite, OutsideAct, RecordRequest};
use redrive_core::store::{
    BatchResults, LeaseRequest, LetterLeaseRequest, LetterSettle, LetterSettlement, Queue, Settle,
    Settlement, Store, VerifyRequest,
};
use redrive_core::time::{Clock as _, Span, Time};
use redrive_core::transfer::exported;
use std::fmt::Debug;

/// Runs a stream on two empty stores that share a clock.
///
/// # Errors
/// Describes the first difference, and the operation after which it appeared.
pub async fn run_pair(a: &dyn Store, b: &dyn Store, clock: &TestClock, ops: &[Op]) -> Result<(), String> {
    let mut pair = Pair { a, b, clock, state: StreamState::default() };
    for (n, op) in ops.iter().enumerate() {
        let result = pair.apply(op).await;
        result.map_err(|why| format!("operation {n} ({op:?}): {why}"))?;
        pair.compare().await.map_err(|why| format!("after operation {n} ({op:?}): {why}"))?;
    }
    Ok(())
}

/// What the stream has seen so far.
#[derive(Default)]
struct StreamState {
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
    state: StreamState,
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

/// One of a few group queries.
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

/// The item that a number selects, counted from the latest.
fn choose<T>(all: &[T], n: usize) -> Option<&T> {
    n.checked_rem(all.len()).and_then(|n| all.iter().rev().nth(n))
}

/// The refusal without its wording: stores may word a refusal differently, but must refuse for the same
/// reason.
fn without_wording(refusal: Refusal) -> Refusal {
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
        | Refusal::RequestConflict { .. }
        | Refusal::KeyInUse { .. }
        | Refusal::RedrivenTooOften { .. }
        | Refusal::IdConflict { .. }
        | Refusal::QueueFull { .. }
        | Refusal::IsDlq { .. }
        | Refusal::Damaged { .. }
        | Refusal::WrongStage { .. }
        | Refusal::NotAllowed { .. }
        | Refusal::KvConflict { .. }) => other,
    }
}

fn without_wordings<T>(all: BatchResults<T>) -> BatchResults<T> {
    all.into_iter().map(|one| one.map_err(without_wording)).collect()
}

/// Checks that both results are equal and returns the value. A store error always fails the stream.
fn expect_same<T: PartialEq + Debug>(a: StoreResult<T>, b: StoreResult<T>) -> Result<Option<T>, String> {
    let result = |outcome: StoreResult<T>| match outcome {
        Ok(value) => Ok(Ok(value)),
        Err(CallError::Refused(refusal)) => Ok(Err(without_wording(refusal))),
        Err(CallError::Store(error)) => Err(format!("a store failed: {error}")),
    };
    let (a, b) = (result(a)?, result(b)?);
    if a == b { Ok(a.ok()) } else { Err(format!("the results differ:\n  {a:?}\n  {b:?}")) }
}

/// How a store names the one who paused a queue is up to the store.
fn without_paused_by(queue: Queue) -> Queue {
    Queue { paused_by: None, ..queue }
}

fn take_secret(token: &mut LeaseToken) -> LeaseToken {
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
            Op::Reap(limit) => expect_same(self.a.reap(*limit).await, self.b.reap(*limit).await).map(drop),
            Op::Cancel(all) => self.cancel(all).await,
            Op::Pause(n, on) => {
                let a = self.a.pause(queue(*n), *on, actor()).await.map(without_paused_by);
                expect_same(a, self.b.pause(queue(*n), *on, actor()).await.map(without_paused_by)).map(drop)
            }
            Op::ForceBreaker(n, open) => {
                let key = if *open { "even".to_owned() } else { queue(*n).to_string() };
                let a = self.a.force_breaker(queue(*n), key.clone(), *open, actor()).await;
                expect_same(a, self.b.force_breaker(queue(*n), key, *open, actor()).await).map(drop)
            }
            Op::Merge(one, other) => {
                let groups = vec![self.group(*one).await?, self.group(*other).await?];
                let a = self.a.merge_groups(groups.clone(), actor()).await;
                expect_same(a, self.b.merge_groups(groups, actor()).await).map(drop)
            }
            Op::Label(group, category) => {
                let (id, category) = (self.group(*group).await?, Category::ALL.get(*category).copied());
                let a = self.a.label_group(id, category, actor()).await;
                expect_same(a, self.b.label_group(id, category, actor()).await).map(drop)
            }
            Op::Purge(n) => {
                let a = self.a.purge(queue(*n), actor()).await;
                expect_same(a, self.b.purge(queue(*n), actor()).await).map(drop)
            }
            Op::Configure(n, which) => self.configure(queue(*n), *which).await,
            Op::Act(all) => self.act(all).await,
            Op::LeaseLetters(dlq, max, seconds) => self.lease_letters(*dlq, *max, *seconds).await,
            Op::SettleLetters(all) => self.settle_letters(all).await,
            Op::Preview(act, which, sample) => self.preview(act, *which, *sample).await,
            Op::Start(n, act, which, bounded, rollout) => {
                self.start(*n, act, *which, *bounded, rollout).await
            }
            Op::Step(n, times) => {
                for _ in 0..*times {
                    expect_same(self.a.step(operation_id(*n)).await, self.b.step(operation_id(*n)).await)?;
                }
                Ok(())
            }
            Op::Control(n, control) => {
                let a = self.a.control(operation_id(*n), *control, actor()).await;
                expect_same(a, self.b.control(operation_id(*n), *control, actor()).await).map(drop)
            }
            Op::Export(n) => {
                self.state.exports.extend(choose(&self.state.letters, *n).cloned());
                Ok(())
            }
            Op::Import(n, fresh) => self.import(*n, *fresh).await,
            Op::ActOnGroup(n, act) => {
                let (id, act) = (self.group(*n).await?, act.at(self.now()));
                let a = self.a.act_on_group(id, act.clone(), actor()).await;
                expect_same(a, self.b.act_on_group(id, act, actor()).await).map(drop)
            }
            Op::Mark(n) => {
                let text = if *n == 0 { String::new() } else { format!("deploy {n}") };
                expect_same(self.a.mark(text.clone(), actor()).await, self.b.mark(text, actor()).await)
                    .map(drop)
            }
            Op::ReadGroups(n, limit) => self.groups(*n, *limit).await,
            Op::Disclose(n, what) => self.disclose(*n, *what).await,
            Op::ReadPages(limit, n) => self.read_pages(*limit, *n).await,
            Op::IndexText(limit) => self.index(*limit).await,
            Op::KeyState(n, key) => self.key_state(*n, *key).await,
            Op::Kv(key, value, wrong) => self.kv(*key, *value, *wrong).await,
            Op::Record(key, value, wrong) => self.record(*key, *value, *wrong).await,
        }
    }

    /// Reads groups in small pages.
    async fn groups(&self, which: usize, limit: usize) -> Result<(), String> {
        let query = group_query(which % GROUP_QUERIES, self.now());
        let mut read = Vec::new();
        for store in [self.a, self.b] {
            let page = |page| store.groups(GroupQuery { page, ..query.clone() });
            read.push(small_pages(limit, page).await?);
        }
        if read[0] == read[1] { Ok(()) } else { Err(format!("groups by {query:?} differ: {read:?}")) }
    }

    /// A group if there is one, otherwise an id that does not exist.
    async fn group(&self, n: usize) -> Result<GroupId, String> {
        let groups = self.a.groups(GroupQuery::default()).await.map_err(|error| error.to_string())?.items;
        Ok(choose(&groups, n).map_or(GroupId::new(7), |group| group.id))
    }

    async fn send(&mut self, all: &[SendOp]) -> Result<(), String> {
        let mut batch = Vec::new();
        for op in all {
            self.state.ids += 1;
            let after = |seconds: u64| self.now().plus(Span::from_secs(seconds));
            let payload = Payload { bytes: vec![b'x'; op.size], content_type: String::new() };
            batch.push(NewMessage {
                kind: if op.size % 2 == 0 { "even".into() } else { String::new() },
                priority: Some(Priority::from_level(op.level)),
                key: op.key.map(|k| format!("k{k}")),
                ordering_key: op.order.map(|k| format!("o{k}")),
                delay: op.delay.map(Span::from_secs),
                ttl: op.ttl.map(Span::from_secs),
                deadline: op.deadline.map(after),
                max_attempts: op.max_attempts,
                reply_to: op.reply_to.map(|n| REPLY_TO[n % REPLY_TO.len()].parse().expect("a name")),
                trace: (op.size == 7).then(|| "00-trace".into()),
                ..NewMessage::new(message_id(self.state.ids), queue(op.queue), payload)
            });
        }
        self.state.sent.extend(batch.iter().cloned());
        self.enqueue(batch).await
    }

    async fn resend(&mut self, n: usize, other: bool) -> Result<(), String> {
        let Some(mut again) = choose(&self.state.sent, n).cloned() else { return Ok(()) };
        if other {
            again.payload.bytes.push(b'!');
        }
        self.enqueue(vec![again]).await
    }

    async fn enqueue(&self, batch: Vec<NewMessage>) -> Result<(), String> {
        let (a, b) = (self.a.enqueue(batch.clone()).await, self.b.enqueue(batch).await);
        expect_same(a.map(without_wordings), b.map(without_wordings)).map(drop)
    }

    async fn lease(&mut self, queues: usize, max: usize, seconds: Option<u64>) -> Result<(), String> {
        let queues = (0..QUEUES.len()).filter(|n| queues & (1 << n) != 0).map(queue).collect();
        let lease_for = seconds.map(Span::from_secs);
        let request =
            LeaseRequest { queues, max, lease_for, worker: format!("w{max}"), ..LeaseRequest::default() };
        let (mut a, mut b) = (self.a.lease(request.clone()).await, self.b.lease(request).await);
        let secret = |all: &mut StoreResult<Vec<Delivery>>| -> Vec<LeaseToken> {
            all.iter_mut().flatten().map(|d| take_secret(&mut d.token)).collect()
        };
        let tokens = secret(&mut a).into_iter().zip(secret(&mut b));
        self.state.tokens.extend(tokens);
        expect_same(a, b).map(drop)
    }

    async fn settle(&self, all: &[(usize, SettleOp)]) -> Result<(), String> {
        let (mut to_a, mut to_b) = (Vec::new(), Vec::new());
        for (n, op) in all {
            let Some((a, b)) = choose(&self.state.tokens, *n) else { continue };
            let what = match op {
                SettleOp::Ack => Settle::Ack,
                SettleOp::Reply(size) => Settle::Reply {
                    payload: Payload { bytes: vec![b'y'; *size], content_type: "text/plain".into() },
                },
                SettleOp::Progress(done) => {
                    Settle::Progress { progress: Progress::new(*done, Some(3), "at it") }
                }
                SettleOp::Fail(error, permanent, said) => {
                    let message = match error.checked_sub(ERRORS.len()) {
                        None => "something is wrong".to_owned(),
                        Some(n) => {
                            let user = USERS[n / ERRORS.len() % USERS.len()];
                            format!("box {user} gone")
                        }
                    };
                    let error_type = ERRORS[error % ERRORS.len()].into();
                    let report = FailureReport {
                        error: ErrorInfo { error_type, message, ..ErrorInfo::default() },
                        permanent: *permanent,
                        host: (error % 3 > 0).then(|| format!("h{}", error % 3)),
                        version: said.is_none().then(|| "1.0".to_owned()),
                        ..FailureReport::default()
                    };
                    Settle::Fail { failure: Box::new(report.analyse()), policy_override: *said }
                }
                SettleOp::Release => Settle::Release,
                SettleOp::Snooze(seconds) => Settle::Snooze { span: Span::from_secs(*seconds) },
                SettleOp::Extend(seconds) => Settle::Extend { by: seconds.map(Span::from_secs) },
            };
            to_a.push(Settlement { token: *a, what: what.clone() });
            to_b.push(Settlement { token: *b, what });
        }
        expect_same(
            self.a.settle(to_a).await.map(without_wordings),
            self.b.settle(to_b).await.map(without_wordings),
        )
        .map(drop)
    }

    async fn cancel(&self, all: &[usize]) -> Result<(), String> {
        let ids: Vec<MessageId> =
            all.iter().filter_map(|n| choose(&self.state.sent, *n)).map(|m| m.id).collect();
        let (a, b) = (self.a.cancel(ids.clone(), actor()).await, self.b.cancel(ids, actor()).await);
        expect_same(a.map(without_wordings), b.map(without_wordings)).map(drop)
    }

    async fn configure(&self, name: QueueName, which: usize) -> Result<(), String> {
        let policy = choose(&policies(), which).cloned().unwrap_or_default();
        let a = self.a.configure(name.clone(), policy.clone(), actor()).await.map(without_paused_by);
        expect_same(a, self.b.configure(name, policy, actor()).await.map(without_paused_by)).map(drop)
    }

    /// A letter if there is one, otherwise any message, so that unknown letters are requested too.
    fn letter(&self, n: usize) -> Option<(MessageId, u64)> {
        let letter = choose(&self.state.letters, n).map(|l| (l.id(), l.record.version));
        letter.or_else(|| choose(&self.state.sent, n).map(|m| (m.id, 1)))
    }

    async fn act(&self, all: &[(usize, ActOp, Option<bool>)]) -> Result<(), String> {
        let mut batch = Vec::new();
        for (n, act, wants_version) in all {
            let Some((id, version)) = self.letter(*n) else { continue };
            let edits = matches!(act, ActOp::Edit(_));
            let wants_version = wants_version.or(edits.then_some(false));
            let expected_version = wants_version.map(|wrong| version + u64::from(wrong));
            batch.push(ActRequest { id, act: act.at(self.now()), actor: actor(), expected_version });
        }
        expect_same(
            self.a.act(batch.clone()).await.map(without_wordings),
            self.b.act(batch).await.map(without_wordings),
        )
        .map(drop)
    }

    async fn lease_letters(&mut self, dlq: usize, max: usize, seconds: Option<u64>) -> Result<(), String> {
        let names = ["a-dlq", "b-dlq", "c-dlq", "bin", "net"];
        let dlq = names[dlq % names.len()].parse().expect("a name");
        let lease_for = seconds.map(Span::from_secs);
        let request = LetterLeaseRequest { dlq, max, lease_for, worker: format!("c{max}") };
        let (mut a, mut b) =
            (self.a.lease_letters(request.clone()).await, self.b.lease_letters(request).await);
        let secret = |all: &mut StoreResult<Vec<LetterDelivery>>| -> Vec<LeaseToken> {
            all.iter_mut().flatten().map(|d| take_secret(&mut d.token)).collect()
        };
        let tokens = secret(&mut a).into_iter().zip(secret(&mut b));
        self.state.letter_tokens.extend(tokens);
        expect_same(a, b).map(drop)
    }

    async fn settle_letters(&self, all: &[(usize, LetterSettleOp)]) -> Result<(), String> {
        let (mut to_a, mut to_b) = (Vec::new(), Vec::new());
        for (n, op) in all {
            let Some((a, b)) = choose(&self.state.letter_tokens, *n) else { continue };
            let what = match op {
                LetterSettleOp::Do(act) => LetterSettle::Do { act: act.at(self.now()), actor: actor() },
                LetterSettleOp::Fail => LetterSettle::Fail { note: "the consumer broke".into() },
                LetterSettleOp::Release => LetterSettle::Release,
                LetterSettleOp::Snooze(seconds) => LetterSettle::Snooze { span: Span::from_secs(*seconds) },
                LetterSettleOp::Extend(seconds) => LetterSettle::Extend { by: seconds.map(Span::from_secs) },
            };
            to_a.push(LetterSettlement { token: *a, what: what.clone() });
            to_b.push(LetterSettlement { token: *b, what });
        }
        let (a, b) = (self.a.settle_letters(to_a).await, self.b.settle_letters(to_b).await);
        expect_same(a.map(without_wordings), b.map(without_wordings)).map(drop)
    }

    async fn preview(&mut self, act: &ActOp, which: usize, sample: usize) -> Result<(), String> {
        let request = PreviewRequest::new(act.at(self.now()), filter(which), sample);
        // Each store signs with its own key.
        let without_token = |preview: Preview| Preview { token: String::new(), ..preview };
        let a = self.a.preview(request.clone()).await.map(without_token);
        let preview = expect_same(a, self.b.preview(request).await.map(without_token))?;
        self.state.bound = preview.map(|p| p.bound);
        Ok(())
    }

    async fn start(
        &self,
        n: u64,
        act: &ActOp,
        which: usize,
        bounded: bool,
        rollout: &Rollout,
    ) -> Result<(), String> {
        let bound = self.state.bound.filter(|_| bounded);
        let (id, act) = (operation_id(n), act.at(self.now()));
        let rollout = if matches!(act, Act::Retry(_)) { rollout.clone() } else { Rollout::default() };
        let spec = OperationSpec { bound, rollout, ..OperationSpec::new(id, act, filter(which), actor()) };
        expect_same(self.a.start(spec.clone()).await, self.b.start(spec).await).map(drop)
    }

    async fn import(&mut self, n: usize, fresh: bool) -> Result<(), String> {
        let Some(mut letter) = choose(&self.state.exports, n).cloned() else { return Ok(()) };
        if fresh {
            self.state.ids += 1;
            letter.message.envelope.id = message_id(self.state.ids);
            // As if from another store: a later death number, another group id, and sometimes only a masked
            // view of the letter.
            letter.death += n as u64 * 5;
            letter.message.masked = n == 3;
            if n % 2 == 1 {
                letter.group = GroupId::new(7_000 + n as u64);
            }
        }
        let batch = vec![letter];
        let (a, b) = (self.a.import(batch.clone(), actor()).await, self.b.import(batch, actor()).await);
        expect_same(a.map(without_wordings), b.map(without_wordings)).map(drop)
    }

    /// Indexes text in both stores. Whether a store has an index is up to the store; search results must not
    /// depend on it.
    async fn index(&self, limit: usize) -> Result<(), String> {
        for store in [self.a, self.b] {
            store.index_text(limit).await.map_err(|error| format!("a store failed: {error}"))?;
        }
        Ok(())
    }

    async fn disclose(&self, n: usize, what: usize) -> Result<(), String> {
        let filtered = Disclosure::matching(Disclosed::Export, filter(what), n as u64);
        let id = choose(&self.state.letters, n).map_or(message_id(u64::MAX), DeadLetter::id);
        let shown = match what {
            0 => Disclosure::of(Disclosed::Letter, id),
            1 => Disclosure { ids: Vec::new(), ..Disclosure::of(Disclosed::Payload, id) },
            _ => filtered,
        };
        let a = self.a.disclose(shown.clone(), actor()).await;
        expect_same(a, self.b.disclose(shown, actor()).await).map(drop)
    }

    /// Reads lists in small pages. Where a page ends under a filter is up to the store; the items it returns are not.
    async fn read_pages(&self, limit: usize, which: usize) -> Result<(), String> {
        for store in [self.a, self.b] {
            let query = |page| Query { filter: filter(which), page };
            let read = small_pages(limit, |page| store.letters(query(page))).await?;
            let mut matching = self.state.letters.clone();
            matching.retain(|letter| filter(which).matches_letter(letter, self.now()));
            // Lists omit the earlier revisions of a letter; exports include them.
            let mut expected = matching.clone();
            expected.iter_mut().for_each(|letter| letter.revisions.clear());
            if read != expected {
                return Err(format!("the list returned {read:?}\n  instead of {expected:?}"));
            }
            let read = small_pages(limit, |page| store.export(query(page))).await?;
            let expected: Vec<_> = matching.into_iter().rev().map(exported).collect();
            if read != expected {
                return Err(format!("the export returned {read:?}\n  instead of {expected:?}"));
            }
        }
        let mut live = Vec::new();
        for store in [self.a, self.b] {
            let query = |page| Query { page, ..Query::default() };
            live.push(small_pages(limit, |page| store.messages(query(page))).await?);
        }
        if live[0] == live[1] { Ok(()) } else { Err(format!("the lists of messages differ: {live:?}")) }
    }

    async fn key_state(&self, n: usize, key: usize) -> Result<(), String> {
        // Stores may treat an unknown queue differently, but must agree on a known one.
        if self.a.queue(queue(n)).await.is_err() {
            return Ok(());
        }
        let a = self.a.key_state(queue(n), format!("k{key}")).await;
        expect_same(a, self.b.key_state(queue(n), format!("k{key}")).await).map(drop)
    }

    async fn kv(&self, key: usize, value: Option<u8>, wrong: bool) -> Result<(), String> {
        let (space, key) = ("stream".to_owned(), format!("v{key}"));
        let a = self.a.kv_get(space.clone(), key.clone()).await;
        let entry = expect_same(a, self.b.kv_get(space.clone(), key.clone()).await)?.flatten();
        let expected = entry.map_or(0, |e| e.version) + u64::from(wrong);
        let value = value.map(|v| vec![v]);
        let a = self.a.kv_put(space.clone(), key.clone(), value.clone(), expected).await;
        expect_same(a, self.b.kv_put(space.clone(), key, value, expected).await)?;
        let page = || PageRequest::first(1 + usize::from(wrong));
        let a = self.a.kv_list(space.clone(), "v".into(), page()).await;
        expect_same(a, self.b.kv_list(space, "v".into(), page()).await).map(drop)
    }

    async fn record(&self, key: usize, value: Option<u8>, wrong: bool) -> Result<(), String> {
        let (space, key) = ("stream".to_owned(), format!("v{key}"));
        let a = self.a.kv_get(space.clone(), key.clone()).await;
        let entry = expect_same(a, self.b.kv_get(space.clone(), key.clone()).await)?.flatten();
        let expected = entry.map_or(0, |e| e.version) + u64::from(wrong);
        let act = if value.is_some() { OutsideAct::CreateToken } else { OutsideAct::RevokeToken };
        let write = KvWrite { namespace: space, key: key.clone(), value: value.map(|v| vec![v]), expected };
        let request = RecordRequest::new(act, actor(), key).with_detail("stream").writing(write);
        let batch = vec![RecordRequest::new(OutsideAct::Refuse, actor(), "cross_site"), request];
        let a = self.a.record(batch.clone()).await.map(without_wordings);
        expect_same(a, self.b.record(batch).await.map(without_wordings)).map(drop)
    }

    /// Compares everything both stores show, and checks that each one verifies.
    async fn compare(&mut self) -> Result<(), String> {
        let mut seen = Vec::new();
        for (store, name) in [(self.a, "first"), (self.b, "second")] {
            let found = store.verify(VerifyRequest { deep: true, repair: false }).await;
            let found = found.map_err(|error| format!("the {name} store cannot verify: {error}"))?;
            if !found.is_clean() {
                return Err(format!("the {name} store fails verification: {:?}", found.findings));
            }
            let all = StoreView::read(store)
                .await
                .map_err(|error| format!("the {name} store cannot be read: {error}"))?;
            seen.push(all.comparable());
        }
        if let Some(difference) = seen[0].difference(&seen[1]) {
            return Err(difference);
        }
        self.state.letters = seen.swap_remove(0).letters;
        Ok(())
    }
}

async fn small_pages<T, F>(limit: usize, page: impl Fn(PageRequest) -> F) -> Result<Vec<T>, String>
where
    F: Future<Output = StoreResult<Page<T>>>,
{
    let mut read = Vec::new();
    let mut cursor: Option<Cursor> = None;
    loop {
        let Page { items, next, .. } =
            page(PageRequest { limit: Some(limit), cursor }).await.map_err(|error| error.to_string())?;
        if items.len() > limit {
            return Err(format!("a page of {} items where {limit} were requested", items.len()));
        }
        read.extend(items);
        match next {
            Some(next) => cursor = Some(next),
            None => return Ok(read),
        }
    }
}
