//! The alerts in a store's small durable values, for whoever shows or silences them: the command line, the server and the
//! loop that evaluates the rules.

use super::{
    AlertRecord, CHANNEL_HEADER, KIND, NAMESPACE, Notice, QUEUE, RECORD_KEY, SILENCES_KEY, Silence, Silences,
};
use crate::error::{CallError, Refusal, StoreError, StoreErrorKind, StoreResult};
use crate::ids::MessageId;
use crate::message::{NewMessage, Payload};
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
    let bytes = serde_json::to_vec(value)
        .map_err(|error| StoreError::new(StoreErrorKind::Protocol, error.to_string()))?;
    match store.kv_put(NAMESPACE.into(), key.into(), Some(bytes), expected).await {
        Ok(version) => Ok(Some(version)),
        Err(CallError::Refused(Refusal::KvConflict { .. })) => Ok(None),
        Err(error) => Err(error),
    }
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

/// Silences something.
///
/// # Errors
/// Those of the store, and a refusal if too much is silenced.
pub async fn silence(store: &dyn Store, silence: &Silence) -> StoreResult<()> {
    let now = store.info().await?.now;
    change(store, |silences| silences.add(silence.clone(), now)).await
}

/// Ends what is silenced under this name. Returns whether there was something.
///
/// # Errors
/// Those of the store.
pub async fn unsilence(store: &dyn Store, name: &str) -> StoreResult<bool> {
    let now = store.info().await?.now;
    change(store, |silences| Ok(silences.end(name, now))).await
}

async fn change<T>(
    store: &dyn Store,
    change: impl Fn(&mut Silences) -> Result<T, Refusal>,
) -> StoreResult<T> {
    for _ in 0..CONFLICTS_MAX {
        let (mut silences, version) = read::<Silences>(store, SILENCES_KEY).await?;
        let result = change(&mut silences)?;
        if write(store, SILENCES_KEY, &silences, version).await?.is_some() {
            return Ok(result);
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
    let bytes = serde_json::to_vec(notice)
        .map_err(|error| StoreError::new(StoreErrorKind::Protocol, error.to_string()))?;
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
