//! What ready work waits for when it cannot be leased. It only counts; what holds work back is decided by breakers,
//! ordering keys, pauses and the poison rules.

use serde::{Deserialize, Serialize};

/// How many waiting messages of a queue cannot be leased now, by what they wait for. One that waits for several things
/// is counted under each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitingFor {
    /// Somebody has to resume the queue.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub pause: u64,
    /// A breaker of the queue is open, or lets only probes through; due or not.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub breaker: u64,
    /// Another message of the same ordering key comes first, or a dead letter holds the key; due or not.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub ordering_key: u64,
    /// A worker died with it: it is given only to a worker with nothing else in its hands.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub idle_worker: u64,
    /// It is close to being taken for poison and its retry was put off for that; it is scheduled, not ready.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub throttle: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
const fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl WaitingFor {
    /// What is waited for and by how many, where any are.
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
    fn only_what_is_waited_for_is_told() {
        let waits = WaitingFor { breaker: 3, throttle: 1, ..WaitingFor::default() };
        assert_eq!(waits.parts().collect::<Vec<_>>(), [("breaker", 3), ("throttle", 1)]);
        assert_eq!(serde_json::to_string(&waits).unwrap(), r#"{"breaker":3,"throttle":1}"#);
        assert_eq!(serde_json::from_str::<WaitingFor>("{}").unwrap(), WaitingFor::default());
    }
}
