//! Read operations on groups, written once over [`Reads`]: lists, which read one row per group, and the details of
//! one group. They run on any connection that can read.

use super::tables::{Reads, TableResult, unless_damaged};
use redrive_core::dead_letter::Status;
use redrive_core::error::{Refusal, StoreResult};
use redrive_core::group::query::DetailParts;
use redrive_core::group::{self, Group, GroupDetail, GroupQuery, GroupSample, Marker};
use redrive_core::ids::{GroupId, LeafId};
use redrive_core::invariants::Census;
use redrive_core::limits;
use redrive_core::query::{Cursor, Page, PageRequest};
use redrive_core::time::Time;

fn all_groups(tables: &dyn Reads, now: Time) -> TableResult<Vec<Group>> {
    let rows = tables.group_rows()?.into_iter().filter(|(_, row)| row.sums.is_counted());
    Ok(rows.map(|(id, row)| row.view(id, now)).collect())
}

/// The groups that match a query.
pub(crate) fn groups(tables: &dyn Reads, query: &GroupQuery, now: Time) -> StoreResult<Page<Group>> {
    let mut page = query.select(all_groups(tables, now)?, now)?;
    if query.trend {
        for group in &mut page.items {
            let activity = unless_damaged(tables.group_facts(group.id))?.unwrap_or_default();
            group.trend = Some(Box::new(activity.trend(now)));
        }
    }
    Ok(page)
}

/// One group. The old id of a merged group still finds it.
pub(crate) fn group(tables: &dyn Reads, id: GroupId, now: Time) -> StoreResult<Group> {
    let named = tables.leaf(id)?.map_or(id, |leaf| leaf.group);
    let row = tables.group_row(named)?.filter(|row| row.sums.is_counted());
    Ok(row.map(|row| row.view(named, now)).ok_or(Refusal::NoSuchGroup { group: id })?)
}

/// Everything about one group.
pub(crate) fn detail(tables: &dyn Reads, id: GroupId, now: Time) -> StoreResult<GroupDetail> {
    let group = group(tables, id, now)?;
    let triage = tables.group_row(group.id)?.unwrap_or_default().triage;
    let activity = unless_damaged(tables.group_facts(group.id))?.unwrap_or_default();
    let leaves = tables.leaves_of(group.id)?;
    let mut counts = Vec::new();
    for leaf in &leaves {
        counts.extend(tables.leaf_counts_of(*leaf)?);
    }
    let mut operations = Vec::new();
    for id in activity.operations() {
        operations.extend(tables.operation(id)?);
    }
    let parts = DetailParts {
        letters: latest(tables, &leaves)?,
        all: all_groups(tables, now)?,
        outcomes: unless_damaged(tables.group_history(group.id))?.unwrap_or_default().outcome_stats,
        group,
        triage,
        activity,
        counts,
        operations,
    };
    Ok(GroupDetail::assemble(parts, now))
}

/// The latest letters of these leaves, latest first.
fn latest(tables: &dyn Reads, leaves: &[LeafId]) -> TableResult<Vec<GroupSample>> {
    let mut deaths = Vec::new();
    for leaf in leaves {
        deaths.extend(tables.deaths_of(*leaf, limits::GROUP_LETTERS_READ)?);
    }
    deaths.sort_unstable_by(|a, b| b.cmp(a));
    deaths.truncate(limits::GROUP_LETTERS_READ);
    let mut samples = Vec::with_capacity(deaths.len());
    for death in deaths {
        let Some((_, letter)) = tables.letters_at(&[death])?.pop() else { continue };
        let Some(letter) = unless_damaged(letter)? else { continue };
        if letter.record.status == Status::Purged {
            continue;
        }
        let message = match unless_damaged(tables.failures(&letter.meta))? {
            Some(failures) => {
                failures.last().map(|failure| failure.error.message.clone()).unwrap_or_default()
            }
            None => "its failures are damaged and cannot be shown".to_owned(),
        };
        samples.push(GroupSample {
            id: letter.meta.id,
            queue: letter.meta.queue,
            kind: letter.meta.kind,
            status: letter.record.status,
            dead_at: letter.record.dead_at,
            message,
        });
    }
    Ok(samples)
}

/// Markers, latest first.
pub(crate) fn markers(tables: &dyn Reads, page: &PageRequest) -> StoreResult<Page<Marker>> {
    let before = page.position("k")?.unwrap_or(u64::MAX);
    let mut items = tables.markers_before(before, page.limit() + 1)?;
    let more = items.len() > page.limit();
    items.truncate(page.limit());
    let next = items.last().filter(|_| more).map(|marker| Cursor::after("k", marker.n));
    Ok(Page { next, ..Page::last(items) })
}

/// Compares the rows of groups with the sums of their leaves (I15).
pub(super) fn check(tables: &dyn Reads, census: &mut Census) -> TableResult<()> {
    let mut counted = group::sum(&tables.leaves()?, &tables.leaf_counts()?);
    for id in tables.group_ids()? {
        let counted = counted.remove(&id).unwrap_or_default();
        let wrong = match unless_damaged(tables.group_row(id))? {
            None => Some("its row cannot be read".to_owned()),
            Some(row) => {
                let shown = row.unwrap_or_default().sums;
                let some = shown.is_counted() || counted.is_counted();
                shown.difference(&counted).filter(|_| some)
            }
        };
        if let Some(wrong) = wrong {
            census.verification.find("I15", format!("group {id}: {wrong}"), true);
        }
    }
    for (id, _) in counted {
        census.verification.find("I15", format!("group {id} has leaves but no row"), true);
    }
    Ok(())
}
