//! `POST /api/v1/call`: every verb of the store over one route, for other Redrive processes. The command line uses it
//! with `--server`. A reply has the form that it has between processes on one machine, but masked: what the caller sees
//! unmasked must have been disclosed to them before, which the audit trail records.

use crate::access::Caller;
use crate::problem::Problem;
use crate::request::LargeJson;
use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use redrive_core::changes::FeedPosition;
use redrive_core::disclosure::Disclosure;
use redrive_core::error::{Refusal, StoreError, StoreErrorKind, StoreResult};
use redrive_core::filter::Filter;
use redrive_core::ids::{MessageId, QueueName};
use redrive_core::masking::{MaskedView, Rules};
use redrive_core::store::{
    CALL_VERSION, CALL_VERSION_HEADER, CALL_VERSION_OLDEST, Call, Letters as _, Store as _, Work as _,
    encode_reply,
};
use redrive_core::time::Span;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The namespace of the small values in which `redrive run` keeps its progress. The others, such as the hashes of tokens,
/// belong to the server and are not for callers.
const RUNS: &str = "run";

/// How long a disclosure lifts the mask.
const LIFTED_FOR: Duration = Duration::from_secs(60);
/// The number of disclosures that are remembered.
const LIFTED_MAX: usize = 10_000;

/// What was disclosed to whom lately.
#[derive(Default)]
pub(crate) struct Lifted(Mutex<HashMap<(String, What), Instant>>);

#[derive(Clone, PartialEq, Eq, Hash)]
enum What {
    Item(MessageId),
    Matching(String),
}

impl Lifted {
    fn note(&self, who: &str, disclosure: &Disclosure) {
        let now = Instant::now();
        let ids = disclosure.ids.iter().copied().map(What::Item);
        let matching = disclosure.filter.as_ref().map(|filter| What::Matching(filter.text().to_owned()));
        let mut lifted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lifted.retain(|_, since| since.elapsed() < LIFTED_FOR);
        for what in ids.chain(matching) {
            if lifted.len() < LIFTED_MAX {
                lifted.insert((who.to_owned(), what), now);
            }
        }
    }

    fn is(&self, who: &str, what: What) -> bool {
        let mut lifted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match lifted.get_mut(&(who.to_owned(), what)) {
            Some(since) if since.elapsed() < LIFTED_FOR => {
                // An export goes on for as long as its pages follow each other.
                *since = Instant::now();
                true
            }
            Some(_) | None => false,
        }
    }
}

/// Carries out one call.
pub(crate) async fn call(
    caller: Caller,
    headers: HeaderMap,
    body: LargeJson<Call>,
) -> Result<Response, Problem> {
    check_version(&headers)?;
    let mut buffer = Vec::new();
    answer(&caller, body.0, &mut buffer).await?;
    let mut response = Response::new(Body::from(buffer));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CALL_VERSION_HEADER, HeaderValue::from(CALL_VERSION));
    Ok(response)
}

fn check_version(headers: &HeaderMap) -> Result<(), Problem> {
    let theirs = headers.get(CALL_VERSION_HEADER).and_then(|value| value.to_str().ok()?.parse::<u32>().ok());
    if theirs.is_some_and(|version| (CALL_VERSION_OLDEST..=CALL_VERSION).contains(&version)) {
        return Ok(());
    }
    let theirs = theirs.map_or("none".to_owned(), |version| version.to_string());
    let what = format!(
        "this server speaks version {CALL_VERSION} of the calls between Redrive processes and the caller {theirs}; \
         use the same release of Redrive on both sides"
    );
    Err(Problem::new(StatusCode::CONFLICT, "wrong_version", what).with("version", CALL_VERSION))
}

/// Encodes a reply, masked by these rules.
fn masked<T: MaskedView + serde::Serialize>(
    buffer: &mut Vec<u8>,
    rules: &Rules,
    reply: StoreResult<T>,
) -> Result<(), StoreError> {
    encode_reply(buffer, &reply.map(|shown| shown.masked(rules)))
}

/// The reply to a call that is not for callers from elsewhere.
fn only_there(buffer: &mut Vec<u8>) -> Result<(), StoreError> {
    let what = "this is only possible on the machine of the server; run it there";
    let refused = StoreError::new(StoreErrorKind::Unsupported, what);
    encode_reply(buffer, &StoreResult::<()>::Err(refused.into()))
}

/// Waits for work, if there is room for one more that waits.
async fn wait(
    caller: &Caller,
    queues: Vec<QueueName>,
    at_most: Span,
    buffer: &mut Vec<u8>,
) -> Result<(), Problem> {
    let _room = caller.app.room_to_wait()?;
    Ok(encode_reply(buffer, &caller.wait(queues, at_most).await)?)
}

/// Waits for changes in the same way.
async fn changes(
    caller: &Caller,
    since: Option<FeedPosition>,
    at_most: Span,
    buffer: &mut Vec<u8>,
) -> Result<(), Problem> {
    let _room = caller.app.room_to_wait()?;
    let stop = caller.app.config.stop.clone();
    tokio::select! {
        changes = caller.store.changes(since, at_most) => Ok(encode_reply(buffer, &changes)?),
        () = stop.cancelled_owned() => {
            let changes = caller.store.changes(since, Span::ZERO).await;
            Ok(encode_reply(buffer, &changes)?)
        }
    }
}

/// Carries a call out and masks its reply. Every verb is considered by name: those whose replies contain what came from
/// outside are masked here, and a new verb does not compile until somebody has decided.
async fn answer(caller: &Caller, call: Call, buffer: &mut Vec<u8>) -> Result<(), Problem> {
    let (store, who) = (&caller.store, caller.access.name.as_str());
    let off = Rules::off();
    let lifted = |what| caller.access.reveals() && caller.app.lifted.is(who, what);
    let item = |id: MessageId| if lifted(What::Item(id)) { &off } else { caller.rules() };
    let matching = |filter: &Filter| {
        if lifted(What::Matching(filter.text().to_owned())) { &off } else { caller.rules() }
    };
    match call {
        Call::Message { id } => masked(buffer, item(id), store.message(id).await)?,
        Call::Letter { id } => masked(buffer, item(id), store.letter(id).await)?,
        Call::Revisions { id } => masked(buffer, item(id), store.revisions(id).await)?,
        Call::Messages { query } => masked(buffer, matching(&query.filter), store.messages(query).await)?,
        Call::Letters { query } => masked(buffer, matching(&query.filter), store.letters(query).await)?,
        Call::Export { query } => masked(buffer, matching(&query.filter), store.export(query).await)?,
        Call::Groups { query } => masked(buffer, caller.rules(), store.groups(query).await)?,
        Call::Group { id } => masked(buffer, caller.rules(), store.group(id).await)?,
        Call::GroupDetail { id } => masked(buffer, caller.rules(), store.group_detail(id).await)?,
        Call::Preview { request } => masked(buffer, caller.rules(), store.preview(request).await)?,
        Call::Operation { id } => masked(buffer, caller.rules(), store.operation(id).await)?,
        Call::Operations { page } => masked(buffer, caller.rules(), store.operations(page).await)?,
        Call::Members { id, page } => masked(buffer, caller.rules(), store.members(id, page).await)?,
        Call::Audit { page } => masked(buffer, caller.rules(), store.audit(page).await)?,
        Call::Markers { page } => masked(buffer, caller.rules(), store.markers(page).await)?,
        // A policy that is read, changed and written again must not lose its secrets.
        Call::Queue { name } if caller.access.allows(redrive_core::store::Role::Admin) => {
            encode_reply(buffer, &store.queue(name).await)?;
        }
        Call::Queue { name } => masked(buffer, caller.rules(), store.queue(name).await)?,
        Call::Queues {} => masked(buffer, caller.rules(), store.queues().await)?,
        Call::Disclose { disclosure, actor } => {
            let done = store.disclose(disclosure.clone(), actor).await;
            if done.is_ok() {
                caller.app.lifted.note(who, &disclosure);
            }
            encode_reply(buffer, &done)?;
        }
        Call::KvGet { namespace, key } if namespace == RUNS => {
            encode_reply(buffer, &store.kv_get(namespace, key).await)?;
        }
        Call::KvPut { namespace, key, value, expected } if namespace == RUNS => {
            encode_reply(buffer, &store.kv_put(namespace, key, value, expected).await)?;
        }
        // A server records by itself what its callers do.
        Call::Backup { .. }
        | Call::KvGet { .. }
        | Call::KvPut { .. }
        | Call::KvList { .. }
        | Call::Record { .. } => only_there(buffer)?,
        Call::Wait { queues, at_most } => wait(caller, queues, at_most, buffer).await?,
        Call::Changes { since, at_most } => changes(caller, since, at_most, buffer).await?,
        Call::Tidy { .. } => encode_reply(buffer, &StoreResult::Ok(None::<redrive_core::store::Reaped>))?,
        Call::Import { batch, .. } if batch.is_empty() => {
            let refused = Refusal::invalid("batch", "there are no letters in it");
            encode_reply(buffer, &StoreResult::<()>::Err(refused.into()))?;
        }
        // Deliveries go to workers, who need them as they are. The other replies hold nothing that came from outside,
        // or only what the caller has just sent.
        call @ (Call::Enqueue { .. }
        | Call::Lease { .. }
        | Call::Settle { .. }
        | Call::Reap { .. }
        | Call::KeyState { .. }
        | Call::Cancel { .. }
        | Call::WaitingFor {}
        | Call::Configure { .. }
        | Call::Pause { .. }
        | Call::Purge { .. }
        | Call::Breakers {}
        | Call::Workers {}
        | Call::ForceBreaker { .. }
        | Call::Dlqs {}
        | Call::LeaseLetters { .. }
        | Call::SettleLetters { .. }
        | Call::Act { .. }
        | Call::ActOnGroup { .. }
        | Call::Mark { .. }
        | Call::MergeGroups { .. }
        | Call::LabelGroup { .. }
        | Call::Import { .. }
        | Call::HandOver { .. }
        | Call::IndexText { .. }
        | Call::Start { .. }
        | Call::Step { .. }
        | Call::Control { .. }
        | Call::AuditVerify { .. }
        | Call::AuditTrim { .. }
        | Call::Info {}
        | Call::Stats {}
        | Call::Verify { .. }
        | Call::IdsEnding { .. }) => call.apply(store.as_ref(), buffer).await?,
    }
    Ok(())
}
