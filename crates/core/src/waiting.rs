//! Why waiting messages cannot be leased. This module only counts; breakers, ordering keys, pauses and the
//! poison rules decide.

use serde::{Deserialize, Serialize};

/// How many waiting messages of a queue cannot be leased now, by cause. A message with several causes counts
/// under each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingFor {
    /// The queue is paused.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pause: u64,
    /// A breaker of the queue is open or only lets probes through. Includes messages that are not due yet.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub breaker: u64,
    /// Another message of the same ordering key comes first, or a dead letter holds the key. Includes messages
    /// that are not due yet.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ordering_key: u64,
    /// A worker crashed on the message, so only an idle worker gets it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub idle_worker: u64,
    /// The message looks like poison and its retry was delayed for that reason. It is scheduled, not ready.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub throttle: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde demands this signature")]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl WaitingFor {
    /// The causes that apply to at least one message, with their counts.
    pub fn parts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let Self { pause, breaker, ordering_key, idle_worker, throttle } = *self;
        let all = [
            ("pause", pause),
            ("breaker", breaker),
            ("ordering_key", ordering_key),
            ("idle_worker", idle_worker),
            ("throttle", throttle),
        ];
        all.into_iter().filter(|(_, count)| *count > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_causes_that_apply_are_listed() {
        let waits = WaitingFor { breaker: 3, throttle: 1, ..WaitingFor::default() };
        assert_eq!(waits.parts().collect::<Vec<_>>(), [("breaker", 3), ("throttle", 1)]);
        assert_eq!(serde_json::to_string(&waits).unwrap(), r#"{"breaker":3,"throttle":1}"#);
        assert_eq!(serde_json::from_str::<WaitingFor>("{}").unwrap(), WaitingFor::default());
    }
}
