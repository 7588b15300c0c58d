//! The change feed: which parts of a store changed, by version, so that whoever shows them knows when to look again.
//! It carries no data. The process that holds a store counts the versions in memory, and starts over when it starts.

use crate::ids::{GroupId, OperationId, QueueName, serde_as_text};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// A part of a store that can change.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "area", content = "name")]
pub enum Area {
    /// The messages, the counters, the policy or the pause state of a queue.
    Queue(QueueName),
    /// The letters of a dead letter queue.
    Dlq(QueueName),
    /// The counters or the life of a group.
    Group(GroupId),
    /// The progress of an operation.
    Operation(OperationId),
    /// The breakers.
    Breakers,
    /// The workers, or what is in their hands.
    Workers,
    /// The audit trail.
    Audit,
    /// The markers.
    Markers,
    /// The small durable values of a namespace.
    Kv(String),
}

/// A position in a change feed: whose versions these are, and how far the reader has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FeedPosition {
    /// Chosen at random by the process that holds the store, when it starts.
    pub epoch: u64,
    /// Grows by one with every commit that changed something.
    pub version: u64,
}

impl fmt::Display for FeedPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:x}", self.epoch, self.version)
    }
}

/// The text is not a position in a change feed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a position in a change feed; use one that an earlier reply named")]
pub struct FeedPositionError {
    text: String,
}

impl FromStr for FeedPosition {
    type Err = FeedPositionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let position = || {
            let (epoch, version) = text.split_once('-')?;
            let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_hexdigit());
            if epoch.len() != 16 || !digits(epoch) || !digits(version) {
                return None;
            }
            let number = |part: &str| u64::from_str_radix(part, 16).ok();
            Some(Self { epoch: number(epoch)?, version: number(version)? })
        };
        position().ok_or_else(|| FeedPositionError { text: text.to_owned() })
    }
}
serde_as_text!(FeedPosition);

/// What changed since a position.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changes {
    /// Where to continue.
    pub at: FeedPosition,
    /// Whether anything may have changed, because it is not known what did: the position was too old, or of a process
    /// that no longer holds the store. `areas` is empty then.
    pub everything: bool,
    /// What changed. An area may be named although nothing changed in it, but never the other way round.
    pub areas: BTreeSet<Area>,
}

impl Changes {
    /// Nothing changed since this position.
    #[must_use]
    pub const fn nothing(at: FeedPosition) -> Self {
        Self { at, everything: false, areas: BTreeSet::new() }
    }

    /// Anything may have changed up to this position.
    #[must_use]
    pub const fn everything(at: FeedPosition) -> Self {
        Self { at, everything: true, areas: BTreeSet::new() }
    }

    /// Returns true if nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        !self.everything && self.areas.is_empty()
    }

    /// Whether this area may have changed.
    #[must_use]
    pub fn covers(&self, area: &Area) -> bool {
        self.everything || self.areas.contains(area)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_read_as_it_was_written() {
        for position in [
            FeedPosition { epoch: 0, version: 0 },
            FeedPosition { epoch: u64::MAX, version: u64::MAX },
            FeedPosition { epoch: 0xab, version: 17 },
        ] {
            assert_eq!(position.to_string().parse(), Ok(position));
        }
        for wrong in
            ["", "-", "17", "00000000000000ab-", "00000000000000ab-+1", "ab-1", "00000000000000ab-1-1"]
        {
            assert!(wrong.parse::<FeedPosition>().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn areas_have_names_in_their_json() {
        let areas = [Area::Queue("q".parse().unwrap()), Area::Breakers, Area::Kv("alerts".into())];
        let text = serde_json::to_string(&areas).unwrap();
        assert_eq!(
            text,
            r#"[{"area":"queue","name":"q"},{"area":"breakers"},{"area":"kv","name":"alerts"}]"#
        );
        assert_eq!(serde_json::from_str::<[Area; 3]>(&text).unwrap(), areas);
    }
}
