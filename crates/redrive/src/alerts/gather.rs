//! Gathers what the rules look at from a store: a handful of reads, each of them bounded, whatever the size of the store.

use super::AlertLoop;
use crate::waiting::with_timeout;
use redrive_core::alert::{AlertState, Facts, Rule, facts_of_stats};
use redrive_core::error::CallError;
use redrive_core::filter::Filter;
use redrive_core::group::{GroupQuery, GroupSort, GroupStatus};
use redrive_core::limits;
use redrive_core::query::{PageRequest, Query};
use redrive_core::store::Store;
use redrive_core::time::{Span, Time};
use std::sync::{Mutex, PoisonError};

/// Operations that are looked at, latest first.
const OPERATIONS_MAX: usize = 100;
/// How often letters that are about to be dropped are searched for, which reads letters.
const RETENTION_EVERY: Span = Span::from_secs(600);

/// The queues with letters that are about to be dropped, and when they were looked for.
#[derive(Debug, Default)]
pub(super) struct RetentionWatch(Mutex<Option<(Time, Vec<String>)>>);

impl AlertLoop {
    /// Reads everything the rules look at, and the time.
    pub(super) async fn gather(&self, state: &AlertState) -> Result<(Facts, Time), CallError> {
        let store = &*self.store;
        let stats = with_timeout(store.stats()).await?;
        let mut facts = facts_of_stats(&stats);
        let now = stats.now;
        for (rule, status, since) in [
            (Rule::NewGroup, GroupStatus::New, Some(state.new_groups_from(now))),
            (Rule::RegressedGroup, GroupStatus::Regressed, None),
        ] {
            if !self.settings.rule(rule).enabled {
                continue;
            }
            let page = PageRequest { limit: Some(limits::ALERTS_GROUPS_MAX), cursor: None };
            let sort = Some(GroupSort::LastSeen);
            let query = GroupQuery { status: vec![status], since, sort, page, ..GroupQuery::default() };
            let page = with_timeout(store.groups(query)).await?;
            facts.add_groups(&page.items);
            if page.next.is_some() {
                facts.partial.insert(rule);
            }
        }
        facts.add_breakers(&with_timeout(store.breakers()).await?);
        let page = PageRequest { limit: Some(OPERATIONS_MAX), cursor: None };
        facts.add_operations(&with_timeout(store.operations(page)).await?.items);
        let info = with_timeout(store.info()).await?;
        facts.add_store(&info);
        if let Some(used) = disk_used(&info.place) {
            facts.add_disk(used);
        }
        let window = self.settings.rule(Rule::Retention).window;
        if self.settings.rule(Rule::Retention).enabled {
            for queue in self.about_to_be_dropped(store, window, now).await? {
                facts.add_retention(&queue, window);
            }
        }
        Ok((facts, now))
    }

    /// The queues with open letters that their `open_ttl` drops within `window`.
    async fn about_to_be_dropped(
        &self,
        store: &dyn Store,
        window: Span,
        now: Time,
    ) -> Result<Vec<String>, CallError> {
        let known = self.retention.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((at, queues)) = known
            && now.since(at) < RETENTION_EVERY
        {
            return Ok(queues);
        }
        let mut found = Vec::new();
        for queue in with_timeout(store.queues()).await? {
            let Some(ttl) = queue.policy.open_ttl else { continue };
            let age = Span::from_millis(ttl.as_millis().saturating_sub(window.as_millis()));
            let open = "(status:pending or status:review or status:quarantined)";
            // A filter made of checked parts always parses; without one there is nothing to search.
            let Ok(filter) = Filter::parse(&format!("queue:{} {open} age>={age}", queue.name)) else {
                continue;
            };
            let page = PageRequest { limit: Some(1), cursor: None };
            if !with_timeout(store.letters(Query { filter, page })).await?.items.is_empty() {
                found.push(queue.name.to_string());
            }
        }
        *self.retention.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, found.clone()));
        Ok(found)
    }
}

/// How full the disk is on which the store lies, from 0 to 1. `None` if it does not lie on a disk here.
#[expect(clippy::cast_precision_loss, reason = "a share of a disk")]
fn disk_used(place: &str) -> Option<f64> {
    let stat = rustix::fs::statvfs(place).ok()?;
    (stat.f_blocks > 0).then(|| 1.0 - stat.f_bavail as f64 / stat.f_blocks as f64)
}
