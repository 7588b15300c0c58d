//! Calls that are carried out once however often they are sent (I42). The result of a call with a request key is
//! recorded in the commit of its effect, under the actor and the key; a repetition finds it there. The records are in
//! the key-value space, in two namespaces of their own: one by key, one by time, from which old ones are removed.

use super::Engine;
use super::tables::{TableResult, Tables};
use redrive_core::dead_letter::{Actor, RequestKey};
use redrive_core::error::{Refusal, StoreError, StoreErrorKind, StoreResult};
use redrive_core::limits;
use redrive_core::store::KvEntry;
use redrive_core::time::Time;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::ops::Bound;

/// The records by actor and key, reserved for them.
pub(crate) const NAMESPACE: &str = "requests";
/// The same by time.
pub(crate) const BY_TIME: &str = "requests-by-time";

/// A call that is carried out once.
pub(crate) struct Once {
    verb: &'static str,
    actor: String,
    request: RequestKey,
}

impl Once {
    /// The call of this actor, if it has a request key.
    pub(crate) fn of(verb: &'static str, actor: &Actor) -> Option<Self> {
        let request = actor.request.clone()?;
        Some(Self { verb, actor: actor.name.clone(), request })
    }

    /// Where the record is: as long for any actor and key.
    fn place(&self) -> String {
        let mut hash = Sha256::new();
        hash.update((self.actor.len() as u64).to_be_bytes());
        hash.update(&self.actor);
        hash.update(&self.request.key);
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[derive(Serialize, Deserialize)]
struct Record {
    verb: String,
    fingerprint: String,
    at: Time,
    result: serde_json::Value,
}

fn unreadable(error: &serde_json::Error) -> StoreError {
    StoreError::new(
        StoreErrorKind::Damaged,
        format!("the record of a request key cannot be read or written: {error}"),
    )
}

/// The key of a record in the order of time.
fn time_key(at: Time, place: &str) -> String {
    format!("{:016x}-{place}", u64::try_from(at.as_millis()).unwrap_or(0))
}

impl<T: Tables> Engine<T> {
    /// Carries a call out, unless it was carried out before under the same request key: then returns its result.
    pub(crate) fn once<R: Serialize + DeserializeOwned>(
        &mut self,
        once: Option<&Once>,
        now: Time,
        call: impl FnOnce(&mut Self) -> StoreResult<R>,
    ) -> StoreResult<R> {
        let Some(once) = once else { return call(self) };
        let place = once.place();
        let found = self.tables.kv(NAMESPACE, &place)?;
        let mut expired = None;
        if let Some(entry) = &found {
            let record: Record = serde_json::from_slice(&entry.value).map_err(|error| unreadable(&error))?;
            if record.at.plus(limits::KEY_WINDOW) > now {
                if (record.verb.as_str(), &record.fingerprint) != (once.verb, &once.request.fingerprint) {
                    return Err(Refusal::RequestConflict { key: once.request.key.clone() }.into());
                }
                return Ok(serde_json::from_value(record.result).map_err(|error| unreadable(&error))?);
            }
            expired = Some(time_key(record.at, &place));
        }
        let result = call(self)?;
        let record = Record {
            verb: once.verb.to_owned(),
            fingerprint: once.request.fingerprint.clone(),
            at: now,
            result: serde_json::to_value(&result).map_err(|error| unreadable(&error))?,
        };
        let value = serde_json::to_vec(&record).map_err(|error| unreadable(&error))?;
        if let Some(expired) = expired {
            self.tables.put_kv(BY_TIME, &expired, None)?;
        }
        let version = found.map_or(0, |entry| entry.version) + 1;
        self.tables.put_kv(NAMESPACE, &place, Some(&KvEntry { value, version }))?;
        let by_time = KvEntry { value: Vec::new(), version: 1 };
        self.tables.put_kv(BY_TIME, &time_key(now, &place), Some(&by_time))?;
        Ok(result)
    }

    /// Forgets up to `limit` request keys whose window has ended. Returns how many.
    pub(super) fn forget_requests(&mut self, limit: usize, now: Time) -> TableResult<u64> {
        let end = time_key(now.minus(limits::KEY_WINDOW), "~");
        let oldest = self.tables.kv_range(BY_TIME, Bound::Unbounded, limit)?;
        let mut forgotten = 0;
        for item in oldest.iter().take_while(|item| item.key < end) {
            if let Some((_, place)) = item.key.split_once('-') {
                self.tables.put_kv(NAMESPACE, place, None)?;
            }
            self.tables.put_kv(BY_TIME, &item.key, None)?;
            forgotten += 1;
        }
        Ok(forgotten)
    }
}
