//! Searches that look at many rows: candidates for a filter, and the check for orphaned rows.

use super::base::{Lex, PAGE, RedisBase, rows_name};
use super::connect::{bytes, list, number};
use super::index::{self, Index};
use crate::engine::tables::{Candidates, LetterScan, TableResult};
use crate::staged::{Base as _, KeyRange, Table, seq_of};
use redrive_core::invariants::Verification;
use std::collections::HashSet;
use std::ops::Bound;
use std::time::Instant;

/// Payloads that one call looks at.
const SCAN: usize = 200;
/// Findings of one sort that are reported.
const FINDINGS_MAX: usize = 1_000;

/// The death numbers of letters that may match, in the order of the scan. Redis narrows by death and status; the caller
/// evaluates the rest of the filter.
pub(super) fn candidates(base: &RedisBase, scan: &LetterScan<'_>) -> TableResult<Candidates> {
    let start = if scan.latest_first { scan.up_to.saturating_add(1) } else { scan.after };
    let mut found = Candidates { reached: start, ..Candidates::default() };
    if scan.after >= scan.up_to {
        return Ok(Candidates { ended: true, ..found });
    }
    let statuses: Option<Vec<u8>> =
        scan.statuses.map(|wanted| wanted.iter().map(|status| index::status(*status)).collect());
    let mut lex = Lex::numbers(scan.after, scan.up_to);
    loop {
        let batch = PAGE.min(scan.rows_max.max(1));
        let page = base.members(&Index::Death.name(), &lex, scan.latest_first, batch)?;
        let ended = page.len() < batch;
        for member in &page {
            let (Some(death), Some(status)) = (member.first_chunk::<8>(), member.get(8)) else { continue };
            found.looked_at += 1;
            found.reached = u64::from_be_bytes(*death);
            if statuses.as_ref().is_none_or(|wanted| wanted.contains(status)) {
                found.deaths.push(found.reached);
                if found.deaths.len() >= scan.candidates_max {
                    return Ok(found);
                }
            }
        }
        let Some(last) = page.last().filter(|_| !ended) else {
            return Ok(Candidates { ended: true, ..found });
        };
        lex.continue_after(last, scan.latest_first);
        if found.looked_at >= scan.rows_max || scan.until.is_some_and(|until| Instant::now() >= until) {
            return Ok(found);
        }
    }
}

/// Reports rows that belong to no message, and messages without a payload.
pub(super) fn check(base: &RedisBase, verification: &mut Verification) -> TableResult<()> {
    let (mut live, mut letters) = (HashSet::new(), HashSet::new());
    for (table, seqs) in [(Table::Live, &mut live), (Table::Letter, &mut letters)] {
        each_row(base, table, |key, row| seqs.extend(seq_of(table, key, row)))?;
    }
    let bodies = fields(base, Table::Body)?;
    verification.payloads = bodies.len() as u64;
    let mut report = |what: &str, mut seqs: Vec<u64>| {
        seqs.sort_unstable();
        for seq in seqs.into_iter().take(FINDINGS_MAX) {
            verification.find("I4", format!("{what}: number {seq}"), false);
        }
    };
    let owned = |seq: &u64| live.contains(seq) || letters.contains(seq);
    report("a payload belongs to no message", bodies.iter().copied().filter(|seq| !owned(seq)).collect());
    report("a message has no payload", live.difference(&bodies).copied().collect());
    report("a dead letter has no payload", letters.difference(&bodies).copied().collect());
    let (mut failures, mut of_failures, mut of_revisions) = (0, HashSet::new(), HashSet::new());
    each_row(base, Table::Failure, |key, _| {
        failures += 1;
        of_failures.extend(first_number(key));
    })?;
    each_row(base, Table::Revision, |key, _| of_revisions.extend(first_number(key)))?;
    report("a failure belongs to no message", of_failures.into_iter().filter(|seq| !owned(seq)).collect());
    report("a revision belongs to no letter", of_revisions.difference(&letters).copied().collect());
    verification.failures = failures;
    Ok(())
}

fn first_number(key: &[u8]) -> Option<u64> {
    key.first_chunk::<8>().map(|bytes| u64::from_be_bytes(*bytes))
}

/// Looks at every row of a table that is kept in order.
fn each_row(base: &RedisBase, table: Table, mut look: impl FnMut(&[u8], &[u8])) -> TableResult<()> {
    let mut range = KeyRange { from: Bound::Unbounded, to: Bound::Unbounded };
    loop {
        let page = base.range(table, &range, false, PAGE)?;
        page.iter().for_each(|(key, row)| look(key, row));
        match page.last().filter(|_| page.len() == PAGE) {
            Some((last, _)) => range.from = Bound::Excluded(last.clone()),
            None => return Ok(()),
        }
    }
}

/// The numbers that are the keys of a table.
fn fields(base: &RedisBase, table: Table) -> TableResult<HashSet<u64>> {
    let (mut all, mut cursor) = (HashSet::new(), 0);
    loop {
        let mut command = redis::cmd("HSCAN");
        command.arg(base.session.key(&rows_name(table))).arg(cursor).arg("COUNT").arg(SCAN);
        let mut reply = list(base.session.run(&command)?)?.into_iter();
        cursor = number(reply.next().unwrap_or_default())?;
        let pairs = list(reply.next().unwrap_or_default())?;
        for key in pairs.into_iter().step_by(2) {
            all.extend(first_number(&bytes(key)?.unwrap_or_default()));
        }
        if cursor == 0 {
            return Ok(all);
        }
    }
}
