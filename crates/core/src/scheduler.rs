//! Which priority is served next. Pure: the caller shows the head of each level and tells the time.
//!
//! The rule is weighted fair queueing with weights 16/8/4/2/1. Each level carries a pass number; the lowest
//! pass is served and moves on by 16/weight; a level that was empty re-enters at the current pass. Hence,
//! with all levels non-empty, each gets exactly its weight in any 31 picks, and between two background picks
//! there are at most 30 others, whatever comes and goes. Aged heads (waiting > 10 s) get one pick after every
//! eight ordinary ones, oldest first, which leaves the k-th background message served within 35k picks.

use crate::message::Priority;
use crate::time::{Span, Time};
use serde::{Deserialize, Serialize};

/// Picks per level in a full round of 31.
pub const WEIGHTS: [u64; 5] = [16, 8, 4, 2, 1];
/// A head that has waited longer is aged.
pub const AGED_AFTER: Span = Span::from_secs(10);
/// Ordinary picks between two aged ones.
pub const ORDINARY_BETWEEN_AGED: u32 = 8;
/// A deadline this close is urgent.
pub const URGENT_WITHIN: Span = Span::from_secs(5);
/// Emergency ends when the load was below its lower thresholds for this long.
pub const EMERGENCY_RELIEF: Span = Span::from_secs(10);

/// The first message of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Since when it could have been served.
    pub ready_at: Time,
    /// Its place in the order of enqueues.
    pub seq: u64,
}

/// What there is to choose from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heads {
    /// The first ready message of each level.
    pub levels: [Option<Head>; 5],
    /// The level and deadline of the ready message with the earliest deadline, if that is urgent.
    pub urgent: Option<(Priority, Time)>,
}

/// How busy the caller's machine is, each from 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// Share of memory in use.
    pub memory: f32,
    /// Share of processor time in use.
    pub cpu: f32,
}

/// Why a level was picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PickReason {
    /// It was the most urgent level with work.
    PriorityOrder,
    /// A deadline is near.
    DeadlineApproaching,
    /// Its head had waited too long.
    StarvationPrevention,
    /// Its share was due although a more urgent level had work.
    LoadBalancing,
    /// Only critical and high are served.
    EmergencyMode,
}

/// The record of one pick.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// The level.
    pub level: Priority,
    /// Why.
    pub reason: PickReason,
    /// The most urgent level that had work and was passed over.
    pub preempted: Option<Priority>,
    /// How close the longest-waiting passed-over head is to being aged: 0 is fresh, 1 is aged.
    pub starvation_risk: f32,
    /// Picks until the least urgent waiting level is served at the latest.
    pub estimated_wait_picks: u32,
}

/// Says from the load whether there is an emergency. Apart from the [`Scheduler`] so that whoever reports the
/// load need not wait for whoever picks.
#[derive(Clone, Debug, Default)]
pub struct LoadWatch {
    emergency: bool,
    relieved_since: Option<Time>,
}

impl LoadWatch {
    /// Whether only critical and high are served.
    #[must_use]
    pub const fn in_emergency(&self) -> bool {
        self.emergency
    }

    /// Takes note of the load; enters emergency at once, leaves it after lasting relief. A load that is not a
    /// number is neither: it changes nothing but does not count as relief.
    pub fn observe(&mut self, load: Load, now: Time) {
        if load.memory > 0.9 || load.cpu > 0.95 {
            self.emergency = true;
            self.relieved_since = None;
        } else if load.memory < 0.8 && load.cpu < 0.85 {
            let since = *self.relieved_since.get_or_insert(now);
            if now.since(since) >= EMERGENCY_RELIEF {
                self.emergency = false;
            }
        } else {
            self.relieved_since = None;
        }
    }
}

/// Chooses levels. One per set of queues that are served together.
#[derive(Clone, Debug, Default)]
pub struct Scheduler {
    passes: [u64; 5],
    now_pass: u64,
    ordinary: u32,
    watch: LoadWatch,
}

impl Scheduler {
    /// A scheduler that has served nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether only critical and high are served.
    #[must_use]
    pub const fn in_emergency(&self) -> bool {
        self.watch.in_emergency()
    }

    /// Takes note of the load; enters emergency at once, leaves it after lasting relief.
    pub fn observe(&mut self, load: Load, now: Time) {
        self.watch.observe(load, now);
    }

    /// Picks the level to serve next, or nothing when there is nothing to serve.
    pub fn pick(&mut self, heads: &Heads, now: Time) -> Option<Decision> {
        self.pick_when(heads, now, self.watch.in_emergency())
    }

    /// Picks as [`Self::pick`] does, for a caller that watches the load itself.
    pub fn pick_when(&mut self, heads: &Heads, now: Time, emergency: bool) -> Option<Decision> {
        let mut levels = heads.levels;
        if emergency {
            levels = [levels[0], levels[1], None, None, None];
        }
        let (level, reason) = self.choose(&levels, heads.urgent, now, emergency)?;
        let top = Priority::ALL.into_iter().find(|p| waits(&levels, *p).is_some());
        Some(Decision {
            level,
            reason,
            preempted: top.filter(|p| *p < level),
            starvation_risk: starvation_risk(&levels, level, now),
            estimated_wait_picks: if levels.iter().flatten().count() > 1 { 35 } else { 0 },
        })
    }

    fn choose(
        &mut self,
        levels: &[Option<Head>; 5],
        urgent: Option<(Priority, Time)>,
        now: Time,
        emergency: bool,
    ) -> Option<(Priority, PickReason)> {
        if let Some((level, deadline)) = urgent
            && deadline <= now.plus(URGENT_WITHIN)
            && waits(levels, level).is_some()
        {
            return Some((level, PickReason::DeadlineApproaching));
        }
        let waiting = || Priority::ALL.into_iter().filter_map(|p| waits(levels, p).map(|h| (p, h)));
        if self.ordinary >= ORDINARY_BETWEEN_AGED {
            let oldest = waiting().min_by_key(|(p, h)| (h.ready_at, h.seq, *p));
            if let Some((level, head)) = oldest
                && now.since(head.ready_at) > AGED_AFTER
            {
                self.ordinary = 0;
                return Some((level, PickReason::StarvationPrevention));
            }
        }
        let pass_of = |p: Priority| self.passes.get(p.level()).copied().unwrap_or(0).max(self.now_pass);
        let (level, _) = waiting().min_by_key(|(p, _)| (pass_of(*p), *p))?;
        let top = waiting().next().map(|(p, _)| p);
        let pass = pass_of(level);
        self.now_pass = pass;
        if let (Some(slot), Some(weight)) = (self.passes.get_mut(level.level()), WEIGHTS.get(level.level())) {
            *slot = pass + WEIGHTS[0] / weight;
        }
        self.ordinary = self.ordinary.saturating_add(1);
        let reason = match (emergency, top == Some(level)) {
            (true, _) => PickReason::EmergencyMode,
            (false, true) => PickReason::PriorityOrder,
            (false, false) => PickReason::LoadBalancing,
        };
        Some((level, reason))
    }
}

fn waits(levels: &[Option<Head>; 5], p: Priority) -> Option<Head> {
    levels.get(p.level()).copied().flatten()
}

fn starvation_risk(levels: &[Option<Head>; 5], picked: Priority, now: Time) -> f32 {
    let longest = Priority::ALL
        .into_iter()
        .filter(|p| *p != picked)
        .filter_map(|p| waits(levels, p))
        .map(|h| now.since(h.ready_at).min(AGED_AFTER).as_millis())
        .max()
        .unwrap_or(0);
    #[expect(clippy::cast_precision_loss, reason = "at most 10,000")]
    let risk = longest as f32 / AGED_AFTER.as_millis() as f32;
    risk
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOW: Time = Time::from_millis(10_000_000);

    fn all_fresh() -> Heads {
        Heads { levels: [Some(Head { ready_at: NOW, seq: 1 }); 5], urgent: None }
    }

    #[test]
    fn with_all_levels_waiting_any_31_picks_hold_exactly_the_weights() {
        let mut s = Scheduler::new();
        let picks: Vec<usize> = (0..310).map(|_| s.pick(&all_fresh(), NOW).unwrap().level.level()).collect();
        for window in picks.windows(31) {
            let mut counts = [0_u64; 5];
            for level in window {
                counts[*level] += 1;
            }
            assert_eq!(counts, WEIGHTS);
        }
    }

    #[test]
    fn urgent_deadlines_come_first_and_emergency_serves_the_top_two() {
        let mut s = Scheduler::new();
        let mut heads = all_fresh();
        heads.urgent = Some((Priority::Low, NOW.plus(Span::from_secs(4))));
        let d = s.pick(&heads, NOW).unwrap();
        assert_eq!((d.level, d.reason), (Priority::Low, PickReason::DeadlineApproaching));
        assert_eq!(d.preempted, Some(Priority::Critical));
        heads.urgent = Some((Priority::Low, NOW.plus(Span::from_secs(6))));
        assert_ne!(s.pick(&heads, NOW).unwrap().reason, PickReason::DeadlineApproaching);

        s.observe(Load { memory: 0.95, cpu: 0.1 }, NOW);
        for _ in 0..100 {
            assert!(s.pick(&heads, NOW).unwrap().level <= Priority::High);
        }
        s.observe(Load { memory: 0.5, cpu: 0.1 }, NOW);
        assert!(s.in_emergency());
        s.observe(Load { memory: 0.5, cpu: 0.1 }, NOW.plus(Span::from_secs(10)));
        assert!(!s.in_emergency());
    }

    #[test]
    fn an_aged_backlog_does_not_invert_priorities() {
        let mut s = Scheduler::new();
        let old = Head { ready_at: Time::ZERO, seq: 1 };
        let fresh = Head { ready_at: NOW, seq: 2 };
        let heads = Heads { levels: [Some(fresh), None, None, None, Some(old)], urgent: None };
        let critical = (0..900).filter(|_| s.pick(&heads, NOW).unwrap().level == Priority::Critical).count();
        assert!(critical > 700, "{critical}");
    }

    proptest! {
        /// I29: the k-th background message is served within 35k picks, whatever the other levels do: come,
        /// go, and be older than the background messages (which take no aged pick here, the worst case).
        #[test]
        fn i29_background_work_has_a_bounded_wait(
            flicker in proptest::collection::vec(0_u8..16, 1..200),
            warm_up in 0_usize..100,
        ) {
            let mut s = Scheduler::new();
            let old = Head { ready_at: NOW.minus(Span::from_hours(1)), seq: 1 };
            let fresh = Head { ready_at: NOW, seq: 9 };
            let mut step = 0;
            let mut heads = |background: Option<Head>| {
                let mask = flicker[step % flicker.len()];
                step += 1;
                let mut levels = [None; 5];
                for (i, slot) in levels.iter_mut().take(4).enumerate() {
                    *slot = (mask & (1 << i) != 0).then_some(old);
                }
                levels[4] = background;
                Heads { levels, urgent: None }
            };
            for _ in 0..warm_up {
                let h = heads(None);
                s.pick(&h, NOW);
            }
            let mut served = 0;
            for pick in 1..=35 * 40 {
                let h = heads(Some(fresh));
                if s.pick(&h, NOW).unwrap().level == Priority::Background {
                    served += 1;
                }
                prop_assert!(served >= pick / 35, "{served} background picks in {pick}");
            }
        }
    }
}
