//! Previews: what an operation would do before it is started, as counts, a sample and warnings. Changes nothing.

use super::survey;
use super::tables::{Reads, TableResult};
use redrive_core::audit::AuditKey;
use redrive_core::breaker::BreakerState;
use redrive_core::dead_letter::Act;
use redrive_core::error::StoreResult;
use redrive_core::ids::QueueName;
use redrive_core::lifecycle::State;
use redrive_core::limits;
use redrive_core::operation::{Destination, Preview, PreviewRequest, possible_from};
use redrive_core::survey::Survey;
use redrive_core::time::Time;
use std::collections::BTreeMap;

/// What an operation would touch, and what to consider first.
pub(crate) fn preview(
    tables: &dyn Reads,
    request: &PreviewRequest,
    key: &AuditKey,
    now: Time,
) -> StoreResult<Preview> {
    let bound = tables.heads()?.death;
    let (filter, statuses) = (&request.filter, possible_from(&request.act));
    let survey = survey::survey(tables, filter, Some(&statuses), bound, now)?;
    let (mut to, mut conflicts) = (BTreeMap::new(), 0);
    if let Act::Retry(retry) = &request.act {
        to = destinations(tables, &survey, retry.queue.as_ref(), now)?;
        if survey.keyed > 0 && !retry.force {
            survey::for_each_letter(tables, filter, Some(&statuses), bound, now, |letter| {
                let Some(key) = &letter.meta.key else { return Ok(()) };
                let row = tables.key(letter.meta.home(), key)?;
                let taken =
                    |row: super::tables::KeyRow| row.id != letter.meta.id || row.ended == Some(State::Done);
                conflicts += u64::from(row.is_some_and(taken));
                Ok(())
            })?;
        }
    }
    let mut preview = Preview::of(request, &survey, &to, conflicts, bound, key);
    if survey.count > 0 {
        let wanted = request.sample.min(limits::PAGE_ITEMS_MAX);
        preview.sample = survey::sample(tables, filter, Some(&statuses), bound, wanted, now)?;
    }
    Ok(preview)
}

/// The queues to which the letters would be redriven, and their state.
fn destinations(
    tables: &dyn Reads,
    survey: &Survey,
    to: Option<&QueueName>,
    now: Time,
) -> TableResult<BTreeMap<QueueName, Destination>> {
    let rows = tables.queues()?;
    let breakers = tables.breakers()?;
    let counted = match to {
        Some(queue) => [(queue.clone(), survey.count)].into(),
        None => survey.by_queue.clone(),
    };
    let found = counted.into_iter().filter_map(|(queue, count)| {
        let row = rows.get(&queue)?;
        let held = u64::try_from(row.counts.waiting + row.counts.leased).unwrap_or(0);
        let theirs = breakers.iter().filter(|((of, _), _)| *of == queue && row.policy.breaker.is_some());
        let open = theirs.filter(|(_, breaker)| breaker.state(now) == BreakerState::Open);
        let destination = Destination {
            count,
            paused: row.paused_by.is_some(),
            room: row.policy.max_messages.map(|most| most.saturating_sub(held)),
            open: open.map(|((_, key), _)| key.clone()).collect(),
        };
        Some((queue, destination))
    });
    Ok(found.collect())
}
