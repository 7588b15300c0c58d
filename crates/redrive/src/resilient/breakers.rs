//! The breakers of one executor, by policy and key. The state machine is the core's; here is only the table, and
//! the permit that an attempt carries. In this process only: other processes find out for themselves.

use redrive_core::breaker::{Breaker, BreakerKey, BreakerPolicy, Signal, Stance};
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

/// The right to one attempt. Dropped without a result it says nothing, and gives a probe's place back.
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

    /// The breaker of a message under a policy; none where the key has no value in it.
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
    /// Asks for one attempt; refused with the time until which nobody gets one.
    pub(super) fn enter(&self) -> Result<Permit<'_>, Option<Time>> {
        let now = self.breakers.clock.now();
        let mut table = self.breakers.table();
        if !table.contains_key(&self.key) && table.len() >= limits::BREAKERS_MAX {
            table.retain(|_, breaker| breaker.is_remarkable(self.rules, now));
            if table.len() >= limits::BREAKERS_MAX {
                return Ok(Permit { gate: self, epoch: None });
            }
        }
        let breaker = table.entry(self.key.clone()).or_insert_with(|| Breaker::new(now));
        match breaker.stance(self.rules, now) {
            Stance::Free => {}
            Stance::Probing(left) if left > 0 => {}
            Stance::Probing(_) => return Err(None),
            Stance::Held(until) => return Err(until),
        }
        Ok(Permit { gate: self, epoch: Some(breaker.grant(now)) })
    }

    /// Whether it is certain that nobody gets an attempt at that time.
    pub(super) fn is_held_at(&self, at: Time) -> bool {
        let table = self.breakers.table();
        let stance = table.get(&self.key).map(|breaker| breaker.stance(self.rules, at));
        matches!(stance, Some(Stance::Held(_)))
    }
}

impl Permit<'_> {
    /// The attempt is over.
    pub(super) fn settle(mut self, signal: Signal) {
        self.give(signal);
    }

    fn give(&mut self, signal: Signal) {
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
        self.give(Signal::Nothing);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redrive_core::ids::MessageId;
    use redrive_core::message::Payload;
    use redrive_core::time::Span;
    use std::sync::atomic::{AtomicI64, Ordering};

    struct Hand(AtomicI64);
    impl Clock for Hand {
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
    fn it_opens_per_key_probes_after_its_time_and_gives_places_back() {
        let clock = Arc::new(Hand(AtomicI64::new(1_000_000)));
        let breakers = Breakers::new(clock.clone());
        let rules = BreakerPolicy::new("header:region".parse().unwrap());
        let name: Arc<str> = "llm".into();
        assert!(breakers.gate(&name, &rules, &message(None)).is_none(), "no value, no breaker");
        let eu = breakers.gate(&name, &rules, &message(Some("eu"))).unwrap();
        let us = breakers.gate(&name, &rules, &message(Some("us"))).unwrap();
        for _ in 0..5 {
            eu.enter().ok().unwrap().settle(Signal::Failure);
        }
        let until = Time::from_millis(1_000_000).plus(Span::from_secs(30));
        assert_eq!(eu.enter().err(), Some(Some(until)));
        assert!(eu.is_held_at(until.minus(Span::from_millis(1))) && !eu.is_held_at(until));
        assert!(us.enter().is_ok());
        clock.0.store(until.as_millis(), Ordering::Relaxed);
        let probes: Vec<_> = (0..3).map(|_| eu.enter().ok().unwrap()).collect();
        assert_eq!(eu.enter().err(), Some(None), "three probes are out");
        drop(probes);
        eu.enter().ok().unwrap().settle(Signal::Success);
        eu.enter().ok().unwrap().settle(Signal::Success);
        let many: Vec<_> = (0..10).map(|_| eu.enter().ok().unwrap()).collect();
        assert_eq!(many.len(), 10, "closed again");
    }
}
