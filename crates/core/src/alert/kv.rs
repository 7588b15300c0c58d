//! The alerts in a store's small durable values, for whoever shows or silences them: the command line, the server and the
//! loop that evaluates the rules.

use super::{
    AlertRecord, CHANNEL_HEADER, KIND, NAMESPACE, Notice, QUEUE, RECORD_KEY, SILENCES_KEY, Silence, Silences,
};
use crate::dead_letter::Actor;
use crate::error::{CallError, Refusal, StoreError, StoreErrorKind, StoreResult};
use crate::ids::MessageId;
use crate::message::{NewMessage, Payload};
use crate::recording::{KvWrite, OutsideAct, RecordRequest};
use crate::store::Store;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// How often a change is tried again because somebody else made one at the same time.
const CONFLICTS_MAX: usize = 20;

/// Reads a value of the namespace, with its version. The default and 0 if there is none.
///
/// # Errors
/// Those of the store, and [`StoreErrorKind::Damaged`] if the value cannot be read.
pub async fn read<T: DeserializeOwned + Default>(store: &dyn Store, key: &str) -> StoreResult<(T, u64)> {
    let Some(entry) = store.kv_get(NAMESPACE.into(), key.into()).await? else {
        return Ok((T::default(), 0));
    };
    let value = serde_json::from_slice(&entry.value).map_err(|error| {
        let why = format!("the {key} of the alerts cannot be read: {error}");
        StoreError::new(StoreErrorKind::Damaged, why)
    })?;
    Ok((value, entry.version))
}

/// Writes a value of the namespace if it still has this version. Returns the new version, or `None` if somebody else
/// changed it.
///
/// # Errors
/// Those of the store.
pub async fn write<T: Serialize>(
    store: &dyn Store,
    key: &str,
    value: &T,
    expected: u64,
) -> StoreResult<Option<u64>> {
    match store.kv_put(NAMESPACE.into(), key.into(), Some(encode(value)?), expected).await {
        Ok(version) => Ok(Some(version)),
        Err(CallError::Refused(Refusal::KvConflict { .. })) => Ok(None),
        Err(error) => Err(error),
    }
}

fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(value).map_err(|error| StoreError::new(StoreErrorKind::Protocol, error.to_string()))
}

/// The alerts that hold and the channels, as of the last evaluation.
///
/// # Errors
/// Those of the store.
pub async fn record(store: &dyn Store) -> StoreResult<AlertRecord> {
    Ok(read(store, RECORD_KEY).await?.0)
}

/// What is silenced.
///
/// # Errors
/// Those of the store.
pub async fn silences(store: &dyn Store) -> StoreResult<Silences> {
    Ok(read(store, SILENCES_KEY).await?.0)
}

/// Silences something, which the audit trail records.
///
/// # Errors
/// Those of the store, and a refusal if too much is silenced.
pub async fn silence(store: &dyn Store, silence: &Silence, actor: Actor) -> StoreResult<()> {
    let now = store.info().await?.now;
    let request = RecordRequest::new(OutsideAct::SilenceAlert, actor, silence.name())
        .with_detail(format!("until {}", silence.until));
    change(store, request, |silences| silences.add(silence.clone(), now).map(|()| true)).await.map(drop)
}

/// Ends what is silenced under this name, which the audit trail records. Returns whether there was something.
///
/// # Errors
/// Those of the store.
pub async fn unsilence(store: &dyn Store, name: &str, actor: Actor) -> StoreResult<bool> {
    let now = store.info().await?.now;
    let request = RecordRequest::new(OutsideAct::UnsilenceAlert, actor, name);
    change(store, request, |silences| Ok(silences.end(name, now))).await
}

/// Changes what is silenced, in one commit with its record. `change` says whether there is something to change.
async fn change(
    store: &dyn Store,
    request: RecordRequest,
    change: impl Fn(&mut Silences) -> Result<bool, Refusal>,
) -> StoreResult<bool> {
    for _ in 0..CONFLICTS_MAX {
        let (mut silences, expected) = read::<Silences>(store, SILENCES_KEY).await?;
        if !change(&mut silences)? {
            return Ok(false);
        }
        let (namespace, key) = (NAMESPACE.to_owned(), SILENCES_KEY.to_owned());
        let write = KvWrite { namespace, key, value: Some(encode(&silences)?), expected };
        match store.record(vec![request.clone().writing(write)]).await?.into_iter().next() {
            Some(Err(Refusal::KvConflict { .. })) => {}
            Some(Err(refusal)) => return Err(refusal.into()),
            Some(Ok(())) | None => return Ok(true),
        }
    }
    let why = "others change the silences all the time; try again";
    Err(StoreError::new(StoreErrorKind::Busy, why).into())
}

/// The message that tells a notice to a channel.
///
/// # Errors
/// If the notice has no JSON form.
pub fn message(id: MessageId, notice: &Notice, channel: &str) -> StoreResult<NewMessage> {
    let bytes = encode(notice)?;
    let queue = QUEUE
        .parse()
        .map_err(|error: crate::ids::IdError| StoreError::new(StoreErrorKind::Protocol, error.to_string()))?;
    let payload = Payload { bytes, content_type: "application/json".into() };
    let mut message = NewMessage::new(id, queue, payload);
    message.kind = KIND.into();
    message.headers.insert(CHANNEL_HEADER.into(), channel.to_owned());
    let subject: String = notice.subject.chars().take(100).collect();
    // The end of an alert is told after its beginning.
    message.ordering_key = Some(format!("{channel}/{}/{subject}", notice.rule));
    message.key = (notice.number > 0).then(|| notice.key(channel));
    Ok(message)
}
