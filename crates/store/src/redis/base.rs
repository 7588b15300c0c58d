//! Reading Redis: one connection and the questions of [`Base`] as ranges of sorted sets and fields of hashes.

use super::connect::{Session, bytes, function, list, number};
use super::index::{self, Index, LETTER_SUFFIX};
use super::search;
use crate::engine::tables::{Candidates, LetterScan, TableResult, damaged};
use crate::staged::{Base, Bytes, KeyRange, LetterQuery, Table};
use redis::Value;
use redrive_core::ids::{MessageId, QueueName};
use redrive_core::invariants::Verification;
use redrive_core::survey::Survey;
use redrive_core::time::Time;
use std::ops::Bound;

/// Rows or keys that one call reads.
pub(super) const PAGE: usize = 2_000;

/// A member of a sorted set with its row, if that exists.
pub(super) type Found = (Vec<u8>, Option<Bytes>);

/// A part of a sorted set, as bytes that `ZRANGE BYLEX` takes.
#[derive(Clone, Debug)]
pub(super) struct Lex {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Lex {
    fn new(from: &Bound<Vec<u8>>, to: &Bound<Vec<u8>>) -> Self {
        let end = |bound: &Bound<Vec<u8>>, unbounded: u8| match bound {
            Bound::Included(at) => [b"[", at.as_slice()].concat(),
            Bound::Excluded(at) => [b"(", at.as_slice()].concat(),
            Bound::Unbounded => vec![unbounded],
        };
        Self { from: end(from, b'-'), to: end(to, b'+') }
    }

    /// Everything.
    pub(super) fn all() -> Self {
        Self::new(&Bound::Unbounded, &Bound::Unbounded)
    }

    /// What begins with these bytes.
    pub(super) fn prefix(prefix: &[u8]) -> Self {
        let range = KeyRange::prefix(prefix);
        Self::new(&range.from, &range.to)
    }

    /// What begins with these bytes, from this member on.
    fn prefix_from(prefix: &[u8], from: Vec<u8>) -> Self {
        Self::new(&Bound::Included(from), &KeyRange::prefix(prefix).to)
    }

    /// What begins with a number greater than `after` and at most `up_to`.
    pub(super) fn numbers(after: u64, up_to: u64) -> Self {
        let from = after.checked_add(1).map_or(u64::MAX, |next| next).to_be_bytes().to_vec();
        let to = up_to.checked_add(1).map_or(Bound::Unbounded, |n| Bound::Excluded(n.to_be_bytes().to_vec()));
        Self::new(&Bound::Included(from), &to)
    }

    /// What begins with a time up to `now`.
    fn until(now: Time) -> Self {
        let after = index::after(now).to_vec();
        Self::new(&Bound::Unbounded, &Bound::Excluded(after))
    }

    /// What comes after a member, in the order of reading.
    pub(super) fn continue_after(&mut self, member: &[u8], reverse: bool) {
        let end = [b"(", member].concat();
        if reverse { self.to = end } else { self.from = end }
    }

    /// The ends as ZRANGE takes them.
    fn ends(&self, reverse: bool) -> (&[u8], &[u8]) {
        if reverse { (&self.to, &self.from) } else { (&self.from, &self.to) }
    }
}

/// The rows of a store in Redis, read on one connection.
#[derive(Debug)]
pub(crate) struct RedisBase {
    pub(super) session: Session,
}

/// The key of a table's hash, without the prefix.
pub(super) fn rows_name(table: Table) -> String {
    format!("t:{}", table as u8)
}

/// The key of a table's order, without the prefix.
fn order_name(table: Table) -> String {
    format!("o:{}", table as u8)
}

fn count_of(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

fn row(value: Value) -> TableResult<Option<Bytes>> {
    Ok(bytes(value)?.map(Bytes::from))
}

impl RedisBase {
    /// Members of a sorted set, at most a page of them.
    pub(super) fn members(
        &self,
        name: &str,
        lex: &Lex,
        reverse: bool,
        limit: usize,
    ) -> TableResult<Vec<Vec<u8>>> {
        let (first, last) = lex.ends(reverse);
        let mut command = redis::cmd("ZRANGE");
        command.arg(self.session.key(name)).arg(first).arg(last).arg("BYLEX");
        if reverse {
            command.arg("REV");
        }
        command.arg("LIMIT").arg(0).arg(count_of(limit.min(PAGE)));
        keys_of(self.session.run(&command)?)
    }

    /// Members of a sorted set with the rows they lead to.
    fn found(
        &self,
        (name, table, leads): (&str, Table, &str),
        mut lex: Lex,
        reverse: bool,
        limit: usize,
    ) -> TableResult<Vec<Found>> {
        let mut all = Vec::new();
        while all.len() < limit {
            let wanted = PAGE.min(limit - all.len());
            let (first, last) = lex.ends(reverse);
            let mut command = redis::cmd("FCALL_RO");
            command.arg(function("read")).arg(2);
            command.arg(self.session.key(name)).arg(self.session.key(&rows_name(table)));
            command.arg(first).arg(last).arg(if reverse { "REV" } else { "" });
            command.arg(count_of(wanted)).arg(leads);
            let mut values = list(self.session.call(&command)?)?.into_iter();
            let before = all.len();
            while let (Some(member), Some(found)) = (values.next(), values.next()) {
                all.push((bytes(member)?.unwrap_or_default(), row(found)?));
            }
            match all.last().filter(|_| all.len() - before == wanted) {
                Some((member, _)) => lex.continue_after(member, reverse),
                None => break,
            }
        }
        Ok(all)
    }

    /// Letters of an index.
    fn indexed(
        &self,
        index: Index,
        lex: Lex,
        reverse: bool,
        limit: usize,
    ) -> TableResult<Vec<(u64, MessageId, Bytes)>> {
        let found = self.found((&index.name(), Table::Letter, "letter"), lex, reverse, limit)?;
        found.into_iter().filter_map(|(member, row)| letter(&member, row).transpose()).collect()
    }

    /// The letters that these members of an index are about.
    fn letters_of(&self, members: &[Vec<u8>]) -> TableResult<Vec<(u64, MessageId, Bytes)>> {
        let mut letters = Vec::with_capacity(members.len());
        for chunk in members.chunks(PAGE) {
            let ids: Vec<&[u8]> = chunk.iter().filter_map(|member| id_in(member)).collect();
            if ids.is_empty() {
                continue;
            }
            let mut command = redis::cmd("HMGET");
            command.arg(self.session.key(&rows_name(Table::Letter))).arg(ids);
            for (member, value) in chunk.iter().zip(list(self.session.run(&command)?)?) {
                letters.extend(letter(member, row(value)?)?);
            }
        }
        Ok(letters)
    }

    fn letters_at(&self, deaths: &[u64], limit: usize) -> TableResult<Vec<(u64, MessageId, Bytes)>> {
        let mut sorted = deaths.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let mut members = Vec::new();
        for chunk in sorted.chunks(PAGE) {
            let mut commands = redis::pipe();
            for death in chunk {
                let lex = Lex::prefix(&death.to_be_bytes());
                let command = commands.cmd("ZRANGE").arg(self.session.key(&Index::Death.name()));
                command.arg(lex.from).arg(lex.to).arg("BYLEX").arg("LIMIT").arg(0).arg(1);
            }
            for reply in self.session.run_all(&commands)? {
                members.extend(keys_of(reply)?);
            }
        }
        members.truncate(limit);
        self.letters_of(&members)
    }

    /// Letters that a consumer may lease now. Those it may not yet are passed over by what is in the index.
    fn leasable(
        &self,
        dlq: &QueueName,
        now: Time,
        limit: usize,
    ) -> TableResult<Vec<(u64, MessageId, Bytes)>> {
        let prefix = index::name(dlq);
        let mut lex = Lex::prefix(&prefix);
        let mut members = Vec::new();
        while members.len() < limit {
            let page = self.members(&Index::Pending.name(), &lex, false, PAGE)?;
            let Some(last) = page.last() else { break };
            lex.continue_after(last, false);
            let ended = page.len() < PAGE;
            let is_due = |member: &Vec<u8>| {
                let from = member.get(prefix.len() + 8..).and_then(|rest| rest.first_chunk::<8>());
                from.is_some_and(|from| index::to_time(*from) <= now)
            };
            members.extend(page.into_iter().filter(is_due));
            if ended {
                break;
            }
        }
        members.truncate(limit);
        self.letters_of(&members)
    }
}

/// The values of a reply that are all bytes.
fn keys_of(value: Value) -> TableResult<Vec<Vec<u8>>> {
    list(value)?.into_iter().map(|key| Ok(bytes(key)?.unwrap_or_default())).collect()
}

fn id_in(member: &[u8]) -> Option<&[u8]> {
    let start = member.len().checked_sub(LETTER_SUFFIX)?;
    member.get(start..start + 16)
}

/// The letter that a member of an index is about. `None` if it has no row, which `doctor` reports.
fn letter(member: &[u8], row: Option<Bytes>) -> TableResult<Option<(u64, MessageId, Bytes)>> {
    let broken = || damaged("an entry of an index of letters cannot be read");
    let (death, id) = index::to_letter(member).ok_or_else(broken)?;
    Ok(row.map(|row| (death, id, row)))
}

impl Base for RedisBase {
    fn get(&self, wanted: &[(Table, Vec<Vec<u8>>)]) -> TableResult<Vec<(Table, Vec<u8>, Bytes)>> {
        // Every command is sent before the first reply is waited for.
        let mut commands = redis::pipe();
        let chunks =
            || wanted.iter().flat_map(|(table, keys)| keys.chunks(PAGE).map(move |chunk| (*table, chunk)));
        for (table, chunk) in chunks() {
            commands.cmd("HMGET").arg(self.session.key(&rows_name(table))).arg(chunk);
        }
        if chunks().next().is_none() {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        for ((table, chunk), reply) in chunks().zip(self.session.run_all(&commands)?) {
            for (key, value) in chunk.iter().zip(list(reply)?) {
                found.extend(row(value)?.map(|row| (table, key.clone(), row)));
            }
        }
        Ok(found)
    }

    fn range(
        &self,
        table: Table,
        range: &KeyRange,
        reverse: bool,
        limit: usize,
    ) -> TableResult<Vec<(Vec<u8>, Bytes)>> {
        let lex = Lex::new(&range.from, &range.to);
        let found = self.found((&order_name(table), table, "key"), lex, reverse, limit)?;
        Ok(found.into_iter().filter_map(|(key, row)| Some((key, row?))).collect())
    }

    fn letters(&self, query: &LetterQuery<'_>, limit: usize) -> TableResult<Vec<(u64, MessageId, Bytes)>> {
        match query {
            LetterQuery::At(deaths) => self.letters_at(deaths, limit),
            LetterQuery::Deaths { after, up_to } if after >= up_to => Ok(Vec::new()),
            LetterQuery::Deaths { after, up_to } => {
                self.indexed(Index::Death, Lex::numbers(*after, *up_to), false, limit)
            }
            LetterQuery::Leasable { dlq, now } => self.leasable(dlq, *now, limit),
            LetterQuery::QuarantineEnded { now } => {
                self.indexed(Index::Quarantined, Lex::until(*now), false, limit)
            }
            LetterQuery::OwingReplies { queue, redrives } => {
                let prefix = index::name(queue);
                let from = [prefix.as_slice(), &redrives.to_be_bytes()].concat();
                self.indexed(Index::Owing, Lex::prefix_from(&prefix, from), false, limit)
            }
            LetterQuery::RetentionEnded { now } => {
                self.indexed(Index::Expiring, Lex::until(*now), false, limit)
            }
            LetterQuery::HoldingKeys => self.indexed(Index::Holding, Lex::all(), false, limit),
            LetterQuery::OfLeaf(leaf) => {
                self.indexed(Index::Leaf, Lex::prefix(&leaf.get().to_be_bytes()), true, limit)
            }
        }
    }

    fn candidates(&self, scan: &LetterScan<'_>) -> TableResult<Candidates> {
        search::candidates(self, scan)
    }

    fn survey(&self, _: &LetterScan<'_>) -> TableResult<Option<Survey>> {
        Ok(None)
    }

    fn scheduled(&self, queue: &QueueName, now: Time, without: &[MessageId]) -> TableResult<u64> {
        let prefix = index::name(queue);
        let from = [prefix.as_slice(), &index::after(now)].concat();
        let lex = Lex::prefix_from(&prefix, from.clone());
        let mut command = redis::cmd("ZLEXCOUNT");
        command.arg(self.session.key(&Index::Delayed.name())).arg(lex.from).arg(lex.to);
        let mut count = number(self.session.run(&command)?)?.cast_unsigned();
        for chunk in without.chunks(PAGE) {
            let ids: Vec<[u8; 16]> = chunk.iter().map(|id| id.to_bytes()).collect();
            let ids: Vec<&[u8]> = ids.iter().map(<[u8; 16]>::as_slice).collect();
            let mut command = redis::cmd("HMGET");
            command.arg(self.session.key(&format!("i:{}", Table::Live as u8))).arg(ids);
            for entry in list(self.session.run(&command)?)? {
                // The number of the index and the length come before the member.
                let entry = bytes(entry)?.unwrap_or_default();
                let member = entry.get(3..).unwrap_or_default();
                let counted = member.starts_with(&prefix) && member >= from.as_slice();
                count = count.saturating_sub(u64::from(counted));
            }
        }
        Ok(count)
    }

    fn oldest_open(&self) -> TableResult<Option<Time>> {
        let first = self.members(&Index::Open.name(), &Lex::all(), false, 1)?;
        Ok(first.first().and_then(|member| member.first_chunk::<8>()).map(|at| index::to_time(*at)))
    }

    fn old_keys(&self, before: Time, limit: usize) -> TableResult<Vec<Vec<u8>>> {
        let mut command = redis::cmd("ZRANGE");
        command.arg(self.session.key(&order_name(Table::Key))).arg("-inf").arg(before.as_millis());
        command.arg("BYSCORE").arg("LIMIT").arg(0).arg(count_of(limit));
        keys_of(self.session.run(&command)?)
    }

    fn ids_after(&self, table: Table, after: &[u8], limit: usize) -> TableResult<Vec<Vec<u8>>> {
        let mut lex = Lex::all();
        if !after.is_empty() {
            lex.continue_after(after, false);
        }
        let mut ids: Vec<Vec<u8>> = Vec::new();
        while ids.len() < limit {
            let wanted = PAGE.min(limit - ids.len());
            let page = self.members(&order_name(table), &lex, false, wanted)?;
            let ended = page.len() < wanted;
            ids.extend(page);
            match ids.last().filter(|_| !ended) {
                Some(last) => lex.continue_after(last, false),
                None => break,
            }
        }
        Ok(ids)
    }

    fn check(&self, _: bool, verification: &mut Verification) -> TableResult<()> {
        search::check(self, verification)
    }
}
