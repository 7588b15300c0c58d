//! The breakers of one executor, by policy and key. The state machine is in `redrive_core::breaker`; this module holds
//! the table and the permits of attempts. Breakers are local to this process and not shared with others.

use redrive_core::breaker::{Breaker, BreakerGate, BreakerKey, BreakerPolicy, BreakerSignal};
use redrive_core::limits;
use redrive_core::message::NewMessage;
use redrive_core::time::{Clock, Time};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

type Key = (Arc<str>, String);

/// All breakers of one executor.
pub(super) struct Breakers {
    clock: Arc<dyn Clock>,
    table: Mutex<HashMap<Key, Breaker>>,
}

/// A breaker as one call sees it.
pub(super) struct Gate<'a> {
    breakers: &'a Breakers,
    rules: &'a BreakerPolicy,
    key: Key,
}

/// Permission for one attempt. If it is dropped without a result, the breaker counts neither success nor failure, and
/// the slot of a probe is free again.
pub(super) struct Permit<'a> {
    gate: &'a Gate<'a>,
    epoch: Option<u64>,
}

impl Breakers {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, table: Mutex::default() }
    }

    fn table(&self) -> MutexGuard<'_, HashMap<Key, Breaker>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The breaker of a message under a policy. `None` if the message has no value for the key.
    pub(super) fn gate<'a>(
        &'a self,
        policy: &Arc<str>,
        rules: &'a BreakerPolicy,
        message: &NewMessage,
    ) -> Option<Gate<'a>> {
        let key = match &rules.key {
            BreakerKey::Queue => Some(policy.to_string()),
            BreakerKey::Kind => Some(message.kind.clone()).filter(|kind| !kind.is_empty()),
            key @ (BreakerKey::Header(_) | BreakerKey::Payload(_)) => {
                let read = key.read(&message.headers, &message.payload)?;
                read.split_once('\n').map(|(_, value)| value.to_owned())
            }
        };
        Some(Gate { breakers: self, rules, key: (policy.clone(), key?) })
    }
}

impl Gate<'_> {
    /// Asks for permission for one attempt. Fails with the time until which the breaker stays open, if known.
    pub(super) fn enter(&self) -> Result<Permit<'_>, Option<Time>> {
        let now = self.breakers.clock.now();
        let mut table = self.breakers.table();
        if !table.contains_key(&self.key) && table.len() >= limits::BREAKERS_MAX {
            table.retain(|_, breaker| breaker.worth_keeping(self.rules, now));
            if table.len() >= limits::BREAKERS_MAX {
                return Ok(Permit { gate: self, epoch: None });
            }
        }
        let breaker = table.entry(self.key.clone()).or_insert_with(|| Breaker::new(now));
        match breaker.gate(self.rules, now) {
            BreakerGate::Free => {}
            BreakerGate::Probing(free) if free > 0 => {}
            BreakerGate::Probing(_) => return Err(None),
            BreakerGate::Held(until) => return Err(until),
        }
        Ok(Permit { gate: self, epoch: Some(breaker.grant(now)) })
    }

    /// Whether the breaker certainly allows no attempt at that time.
    pub(super) fn is_held_at(&self, at: Time) -> bool {
        let table = self.breakers.table();
        let stance = table.get(&self.key).map(|breaker| breaker.gate(self.rules, at));
        matches!(stance, Some(BreakerGate::Held(_)))
    }
}

impl Permit<'_> {
    /// Reports the result of the attempt.
    pub(super) fn settle(mut self, signal: BreakerSignal) {
        self.report(signal);
    }

    fn report(&mut self, signal: BreakerSignal) {
        let Some(epoch) = self.epoch.take() else { return };
        let gate = self.gate;
        let now = gate.breakers.clock.now();
        if let Some(breaker) = gate.breakers.table().get_mut(&gate.key) {
            breaker.settle(epoch, signal, gate.rules, now);
        }
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.report(BreakerSignal::Neutral);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redrive_core::ids::MessageId;
    use redrive_core::message::Payload;
    use redrive_core::time::Span;
    use std::sync::atomic::{AtomicI64, Ordering};

    struct ManualClock(AtomicI64);
    impl Clock for ManualClock {
        fn now(&self) -> Time {
            Time::from_millis(self.0.load(Ordering::Relaxed))
        }
    }

    fn message(region: Option<&str>) -> NewMessage {
        let id = MessageId::new(1, [1; 10]);
        let headers = region.map(|r| ("region".to_owned(), r.to_owned())).into_iter().collect();
        NewMessage { headers, ..NewMessage::new(id, "q".parse().unwrap(), Payload::default()) }
    }

    #[test]
    fn a_breaker_opens_per_key_and_probes_after_its_time_and_frees_dropped_probes() {
        let clock = Arc::new(ManualClock(AtomicI64::new(1_000_000)));
        let breakers = Breakers::new(clock.clone());
        let rules = BreakerPolicy::new("header:region".parse().unwrap());
        let name: Arc<str> = "llm".into();
        assert!(breakers.gate(&name, &rules, &message(None)).is_none(), "no value, no breaker");
        let eu = breakers.gate(&name, &rules, &message(Some("eu"))).unwrap();
        let us = breakers.gate(&name, &rules, &message(Some("us"))).unwrap();
        for _ in 0..5 {
            eu.enter().ok().unwrap().settle(BreakerSignal::Failure);
        }
        let until = Time::from_millis(1_000_000).plus(Span::from_secs(30));
        assert_eq!(eu.enter().err(), Some(Some(until)));
        assert!(eu.is_held_at(until.minus(Span::from_millis(1))) && !eu.is_held_at(until));
        assert!(us.enter().is_ok());
        clock.0.store(until.as_millis(), Ordering::Relaxed);
        let probes: Vec<_> = (0..3).map(|_| eu.enter().ok().unwrap()).collect();
        assert_eq!(eu.enter().err(), Some(None), "three probes are out");
        drop(probes);
        eu.enter().ok().unwrap().settle(BreakerSignal::Success);
        eu.enter().ok().unwrap().settle(BreakerSignal::Success);
        let many: Vec<_> = (0..10).map(|_| eu.enter().ok().unwrap()).collect();
        assert_eq!(many.len(), 10, "closed again");
    }
}
