//! Messages and deliveries: sending, leasing, settling and looking.

use super::ids::IdInPath;
use super::queues::Reason;
use super::transfer::merged;
use crate::access::Caller;
use crate::ndjson::{self, Line, Lines};
use crate::problem::Problem;
use crate::reply::{Items, Shown, batch, only, page_request};
use crate::request::{BatchBody, JsonBody, OptionalBody, Params, Path, RawJson, check_encoding, parse};
use crate::request_key::idempotency_key;
use axum::Json;
use axum::extract::{FromRequest as _, Request};
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use redrive_core::disclosure::{Disclosed, Disclosure};
use redrive_core::error::{CallError, Refusal};
use redrive_core::failure::{ErrorInfo, FailureReport};
use redrive_core::filter::Filter;
use redrive_core::ids::{IdSequence, LeaseToken, MessageId, QueueName};
use redrive_core::limits;
use redrive_core::message::{Delivery, Message, NewMessage, Payload};
use redrive_core::message_spec::MessageSpec;
use redrive_core::policy::Override;
use redrive_core::progress::Progress;
use redrive_core::query::Query;
use redrive_core::store::{Call, LeaseRequest, Letters as _, Settle, Settled, Settlement, Work as _};
use redrive_core::time::Span;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::time::Duration;

/// The longest time for which a lease waits for work.
const WAIT_MAX: Span = Span::from_secs(60);
/// The shortest and longest pause after being woken without getting a message.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// Whether a body is a batch.
#[derive(Deserialize)]
struct Probe {
    messages: Option<serde::de::IgnoredAny>,
}

/// Several messages.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SendBatch {
    messages: Vec<MessageSpec>,
}

/// The ids that this process gives to messages and operations.
static IDS: IdSequence = IdSequence::new();

pub(crate) fn new_id() -> Result<MessageId, Problem> {
    let random = crate::random::bytes().map_err(|error| {
        Problem::new(StatusCode::SERVICE_UNAVAILABLE, "no_randomness", error.to_string()).retry_after(1)
    })?;
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Ok(IDS.next(u64::try_from(since.as_millis()).unwrap_or(u64::MAX), random))
}

/// What the messages of one request have in common.
#[derive(Clone)]
struct Sending {
    caller: Caller,
    /// The values of what a message does not say itself.
    template: NewMessage,
    key: Option<String>,
}

impl Sending {
    /// A message, with the position in its batch or stream, if it is in one.
    fn message(&self, mut spec: MessageSpec, at: Option<usize>) -> Result<NewMessage, Problem> {
        let queue = &self.template.queue;
        if let Some(other) = spec.queue.as_ref().filter(|other| *other != queue) {
            let what = format!("the message names queue {other}, and the path {queue}");
            return Err(Problem::bad_request("two_queues", what));
        }
        if spec.id.is_none() {
            spec.id = Some(new_id()?);
        }
        let mut message = spec.into_message(&self.template)?;
        if let (None, Some(key)) = (&message.key, &self.key) {
            message.key = Some(at.map_or_else(|| key.clone(), |at| format!("{key}/{at}")));
        }
        Ok(message)
    }
}

/// `POST /api/v1/queues/{queue}/messages`: one message, a batch, or a stream of lines.
pub(crate) async fn send(
    caller: Caller,
    Path(queue): Path<QueueName>,
    request: Request,
) -> Result<Response, Problem> {
    let headers = request.headers();
    let key = idempotency_key(headers)?;
    let trace = headers.get("traceparent").and_then(|value| value.to_str().ok()).map(str::to_owned);
    let enqueued_by = Some(caller.access.name.clone());
    let template = NewMessage { enqueued_by, trace, ..NewMessage::new(new_id()?, queue, Payload::default()) };
    let sending = Sending { caller: caller.clone(), template, key };
    if ndjson::is_stream(headers) {
        return stream(sending, request);
    }
    let body = RawJson::from_request(request, &caller.app).await?;
    let messages = match read_sent(&body)? {
        Sent::One(spec) => {
            body.check_single(&caller.app)?;
            let sent = only(caller.store.enqueue(vec![sending.message(*spec, None)?]).await?)?;
            let status = if sent.duplicate { StatusCode::OK } else { StatusCode::CREATED };
            return Ok((status, Json(sent)).into_response());
        }
        Sent::Batch(messages) => messages,
    };
    if messages.is_empty() || messages.len() > limits::BATCH_ENTRIES_MAX {
        let what = format!("a batch has 1 to {} messages", limits::BATCH_ENTRIES_MAX);
        return Err(Problem::bad_request("bad_batch", what));
    }
    let all = messages.into_iter().enumerate().map(|(at, spec)| sending.message(spec, Some(at)));
    Ok(batch(caller.store.enqueue(all.collect::<Result<_, _>>()?).await?).into_response())
}

/// What is sent in a body.
enum Sent {
    One(Box<MessageSpec>),
    Batch(Vec<MessageSpec>),
}

/// Reads a message or a batch. What is right is read in one pass: only a mistake is looked at again, to find out which of
/// the two was meant.
fn read_sent(body: &RawJson) -> Result<Sent, Problem> {
    let batch = || body.parse().map(|SendBatch { messages }| Sent::Batch(messages));
    let first = body.0.trim_ascii_start().strip_prefix(b"{").unwrap_or_default().trim_ascii_start();
    if first.starts_with(b"\"messages\"") {
        return batch();
    }
    body.parse().map(|spec| Sent::One(Box::new(spec))).or_else(|problem| match body.parse::<Probe>() {
        Ok(Probe { messages: Some(_) }) => batch(),
        Ok(Probe { messages: None }) | Err(_) => Err(problem),
    })
}

/// Sends the messages of a stream as they come, with a result for each line.
fn stream(sending: Sending, request: Request) -> Result<Response, Problem> {
    check_encoding(request.headers())?;
    // Once the reply has begun, a caller who may not send could only be told line by line.
    sending.caller.may(Call::Enqueue { batch: vec![sending.template.clone()] })?;
    let lines = Lines::new(request.into_body());
    Ok(ndjson::answer(lines, sending, |sending, batch| async move {
        let (mut messages, mut order) = (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()));
        for Line { number, text } in batch {
            let spec = text.and_then(|text| parse(&text));
            let message = spec.and_then(|spec| sending.message(spec, Some(number - 1)));
            order.push((number, message.as_ref().err().cloned()));
            messages.extend(message.ok());
        }
        let results =
            if messages.is_empty() { Ok(Vec::new()) } else { sending.caller.store.enqueue(messages).await };
        merged(order, results, |sent| json!(sent))
    }))
}

/// What a lease asks for.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LeaseBody {
    max: Option<usize>,
    #[serde(alias = "lease_ms")]
    lease: Option<Span>,
    #[serde(alias = "wait_ms")]
    wait: Option<Span>,
    worker: Option<String>,
    version: Option<String>,
    host: Option<String>,
}

/// The messages that were leased.
#[derive(Serialize)]
pub(crate) struct Leased {
    items: Vec<Delivery>,
}

/// `POST /api/v1/queues/{queue}/lease`: leases messages, and waits for some if asked to.
pub(crate) async fn lease(
    caller: Caller,
    Path(queue): Path<QueueName>,
    OptionalBody(body): OptionalBody<LeaseBody>,
) -> Result<Json<Leased>, Problem> {
    let request = LeaseRequest {
        queues: vec![queue],
        max: body.max.unwrap_or(1),
        lease_for: body.lease,
        worker: body.worker.unwrap_or_else(|| caller.access.name.clone()),
        version: body.version,
        host: body.host,
    };
    let wait = body.wait.unwrap_or(Span::ZERO).min(WAIT_MAX);
    let deliveries = if wait == Span::ZERO {
        caller.store.lease(request).await?
    } else {
        lease_within(&caller, request, wait).await?
    };
    Ok(Json(Leased { items: deliveries }))
}

/// Leases messages as soon as there are some. A queue that nobody has sent to yet may come to be meanwhile.
async fn lease_within(caller: &Caller, request: LeaseRequest, wait: Span) -> Result<Vec<Delivery>, Problem> {
    let until = tokio::time::Instant::now() + wait.to_std();
    let (mut room, mut pause) = (None, Duration::ZERO);
    loop {
        let deliveries = match caller.store.lease(request.clone()).await {
            Err(CallError::Refused(Refusal::NoSuchQueue { .. })) => Vec::new(),
            leased => leased?,
        };
        let left = until.saturating_duration_since(tokio::time::Instant::now());
        if !deliveries.is_empty() || left.is_zero() {
            return Ok(deliveries);
        }
        if room.is_none() {
            room = Some(caller.app.room_to_wait()?);
        }
        // A message that is held back may look ready; without a pause this would spin.
        tokio::time::sleep(pause.min(left)).await;
        let left = Span::from_millis(u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
        if !caller.wait(request.queues.clone(), left).await? {
            // The time is over, the server stops, or the token was revoked, which the gate would refuse.
            return if caller.is_still_known().await {
                Ok(Vec::new())
            } else {
                Err(caller.no_longer_known())
            };
        }
        pause = (pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
    }
}

async fn settle(caller: &Caller, token: LeaseToken, what: Settle) -> Result<Json<Settled>, Problem> {
    let settlement = Settlement { token, what };
    settlement.check()?;
    Ok(Json(only(caller.store.settle(vec![settlement]).await?)?))
}

/// The reply that an ack may carry.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AckBody {
    reply: Option<Payload>,
}

/// `POST /api/v1/deliveries/{token}/ack`
pub(crate) async fn ack(
    caller: Caller,
    Path(token): Path<LeaseToken>,
    OptionalBody(body): OptionalBody<AckBody>,
) -> Result<Json<Settled>, Problem> {
    settle(&caller, token, ack_of(body)).await
}

fn ack_of(body: AckBody) -> Settle {
    body.reply.map_or(Settle::Ack, |payload| Settle::Reply { payload })
}

/// The report of a failure.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FailBody {
    error_type: String,
    #[serde(default)]
    message: String,
    code: Option<String>,
    stack: Option<String>,
    cause: Option<String>,
    #[serde(default)]
    context: Vec<String>,
    step: Option<String>,
    #[serde(alias = "duration_ms")]
    duration: Option<Span>,
    host: Option<String>,
    version: Option<String>,
    cpu: Option<f64>,
    memory: Option<u64>,
    log: Option<String>,
    #[serde(default)]
    artifacts: Vec<String>,
    #[serde(default)]
    permanent: bool,
    #[serde(default)]
    crashed: bool,
    #[serde(alias = "retry_after_ms")]
    retry_after: Option<Span>,
    #[serde(default)]
    dead_letter: bool,
}

fn fail_of(caller: &Caller, body: FailBody) -> Settle {
    let report = FailureReport {
        error: ErrorInfo {
            error_type: body.error_type,
            message: body.message,
            code: body.code,
            stack: body.stack,
            context: body.context,
            cause: body.cause,
        },
        step: body.step,
        duration: body.duration,
        host: body.host,
        version: body.version,
        cpu: body.cpu,
        memory: body.memory,
        log: body.log,
        artifacts: body.artifacts,
        permanent: body.permanent,
        crashed: body.crashed,
        retry_after: body.retry_after,
    };
    let failure = Box::new(report.analyse_with(&caller.app.config.known));
    Settle::Fail { failure, policy_override: body.dead_letter.then_some(Override::DeadLetter) }
}

/// `POST /api/v1/deliveries/{token}/fail`
pub(crate) async fn fail(
    caller: Caller,
    Path(token): Path<LeaseToken>,
    JsonBody(body): JsonBody<FailBody>,
) -> Result<Json<Settled>, Problem> {
    let what = fail_of(&caller, body);
    settle(&caller, token, what).await
}

/// A longer lease, perhaps with progress.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ExtendBody {
    #[serde(alias = "by_ms")]
    by: Option<Span>,
    done: Option<u64>,
    total: Option<u64>,
    note: Option<String>,
}

fn extend_of(body: ExtendBody) -> Settle {
    match body.done {
        Some(done) => {
            Settle::Progress { progress: Progress::new(done, body.total, body.note.unwrap_or_default()) }
        }
        None => Settle::Extend { by: body.by },
    }
}

/// `POST /api/v1/deliveries/{token}/extend`
pub(crate) async fn extend(
    caller: Caller,
    Path(token): Path<LeaseToken>,
    OptionalBody(body): OptionalBody<ExtendBody>,
) -> Result<Json<Settled>, Problem> {
    settle(&caller, token, extend_of(body)).await
}

/// When the message may be delivered again.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ReleaseBody {
    #[serde(alias = "delay_ms")]
    delay: Option<Span>,
}

fn release_of(body: &ReleaseBody) -> Settle {
    body.delay.map_or(Settle::Release, |span| Settle::Snooze { span })
}

/// `POST /api/v1/deliveries/{token}/release`
pub(crate) async fn release(
    caller: Caller,
    Path(token): Path<LeaseToken>,
    OptionalBody(body): OptionalBody<ReleaseBody>,
) -> Result<Json<Settled>, Problem> {
    settle(&caller, token, release_of(&body)).await
}

/// A batch of settlements.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SettleBody {
    settle: Vec<SettleEntry>,
}

/// One settlement: a token and exactly one of the four ways.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SettleEntry {
    token: LeaseToken,
    ack: Option<AckBody>,
    fail: Option<FailBody>,
    extend: Option<ExtendBody>,
    release: Option<ReleaseBody>,
}

/// `POST /api/v1/deliveries/settle`: settles many deliveries in one commit, with a result for each.
pub(crate) async fn settle_many(
    caller: Caller,
    BatchBody(body): BatchBody<SettleBody>,
) -> Result<Json<Items<Settled>>, Problem> {
    if body.settle.is_empty() || body.settle.len() > limits::BATCH_ENTRIES_MAX {
        let what = format!("settle 1 to {} deliveries", limits::BATCH_ENTRIES_MAX);
        return Err(Problem::bad_request("bad_batch", what));
    }
    let mut all = Vec::with_capacity(body.settle.len());
    for entry in body.settle {
        let token = entry.token;
        let what = match (entry.ack, entry.fail, entry.extend, entry.release) {
            (Some(body), None, None, None) => ack_of(body),
            (None, Some(body), None, None) => fail_of(&caller, body),
            (None, None, Some(body), None) => extend_of(body),
            (None, None, None, Some(body)) => release_of(&body),
            (_, _, _, _) => {
                let what = "each entry has a token and one of ack, fail, extend, release";
                return Err(Problem::bad_request("bad_batch", what));
            }
        };
        let settlement = Settlement { token, what };
        settlement.check()?;
        all.push(settlement);
    }
    Ok(batch(caller.store.settle(all).await?))
}

/// The parameters of a filtered list.
#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct FilterParams {
    pub(crate) filter: Option<String>,
    pub(crate) limit: Option<usize>,
    pub(crate) cursor: Option<String>,
}

impl FilterParams {
    /// The list that is asked for.
    pub(crate) fn query(self) -> Result<Query, Problem> {
        let filter = Filter::parse(self.filter.as_deref().unwrap_or_default())?;
        Ok(Query { filter, page: page_request(self.limit, self.cursor)? })
    }
}

/// `GET /api/v1/messages`
pub(crate) async fn list(
    caller: Caller,
    uri: Uri,
    Params(params): Params<FilterParams>,
) -> Result<Response, Problem> {
    let query = params.query()?;
    query.filter.check_for_messages()?;
    Ok(caller.page(&uri, &caller.store.messages(query).await?))
}

/// `GET /api/v1/messages/{id}`
pub(crate) async fn show(caller: Caller, Path(id): Path<IdInPath>) -> Result<Shown<Message>, Problem> {
    Ok(caller.show(&caller.store.message(id.message(&caller).await?).await?))
}

/// `POST /api/v1/messages/{id}/reveal`: the message as it is, which the audit trail records first.
pub(crate) async fn reveal(
    caller: Caller,
    Path(id): Path<IdInPath>,
    OptionalBody(body): OptionalBody<Reason>,
) -> Result<Json<Message>, Problem> {
    let id = id.message(&caller).await?;
    let message = caller.store.message(id).await?;
    caller.store.disclose(Disclosure::of(Disclosed::Message, id), caller.actor(body.reason)).await?;
    Ok(Json(message))
}

/// `DELETE /api/v1/messages/{id}`: cancels a message that waits.
pub(crate) async fn cancel(caller: Caller, Path(id): Path<IdInPath>) -> Result<Json<Value>, Problem> {
    let id = id.message(&caller).await?;
    let id = only(caller.store.cancel(vec![id], caller.actor(None)).await?)?;
    Ok(Json(json!({"id": id, "state": "cancelled"})))
}
