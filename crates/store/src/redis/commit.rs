//! Writing what a group changed: one call of the commit function, which checks the term first and then writes all or
//! nothing.

use super::connect::function;
use super::index;
use super::term::{self, Term};
use crate::staged::{Change, Changes, Columns, Table};
use redis::Cmd;
use redrive_core::time::Time;
use std::collections::BTreeMap;

/// Whether the keys of a table are kept in order, because they are read by range or page by page.
pub(super) const fn is_ordered(table: Table) -> bool {
    match table {
        Table::Body | Table::Head | Table::GroupActivity | Table::GroupHistory => false,
        Table::Live
        | Table::Letter
        // By the time of creation.
        | Table::Key
        | Table::Queue
        | Table::QueueCounts
        | Table::Failure
        | Table::Revision
        | Table::DlqCount
        | Table::OpenLetters
        | Table::Leaf
        | Table::LeafCount
        | Table::Group
        | Table::Marker
        | Table::Breaker
        | Table::EventCounter
        | Table::Operation
        | Table::OperationPosition
        | Table::Member
        | Table::Audit
        | Table::Kv => true,
    }
}

/// What is done with rows of a table. The name is the one that the commit function knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Op {
    Range,
    Add,
    Set,
    Put,
    Rank,
    Cut,
    Del,
    Index,
}

impl Op {
    const fn name(self) -> &'static str {
        match self {
            Self::Range => "range",
            Self::Add => "add",
            Self::Set => "set",
            Self::Put => "put",
            Self::Rank => "rank",
            Self::Cut => "cut",
            Self::Del => "del",
            Self::Index => "index",
        }
    }

    /// How many values an item has.
    const fn width(self) -> usize {
        match self {
            Self::Cut | Self::Del => 1,
            Self::Range | Self::Add | Self::Set | Self::Put | Self::Index => 2,
            Self::Rank => 3,
        }
    }
}

/// A value of an item.
enum Item<'a> {
    Bytes(&'a [u8]),
    Number(i64),
    Made(Vec<u8>),
}

/// The sections of a commit. Ranges are removed before rows are written.
type Sections<'a> = BTreeMap<(Op, Table), Vec<Item<'a>>>;

/// The call that commits these changes under a term. `grows` says whether it may be denied when memory is short.
pub(super) fn command(changes: &Changes, term: &Term, clock: Time, (holder, grows): (&str, bool)) -> Cmd {
    let mut command = redis::cmd("FCALL");
    command.arg(function(if grows { "grow" } else { "free" })).arg(1).arg(holder);
    term::prove(&mut command, term);
    command.arg(term.commit + 1).arg(clock.as_millis());
    for ((op, table), items) in sections(changes) {
        command.arg(op.name()).arg(table as u8).arg(u8::from(is_ordered(table)));
        command.arg(items.len() / op.width());
        for item in &items {
            match item {
                Item::Bytes(bytes) => command.arg(*bytes),
                Item::Number(number) => command.arg(*number),
                Item::Made(bytes) => command.arg(bytes.as_slice()),
            };
        }
    }
    command
}

fn sections(changes: &Changes) -> Sections<'_> {
    let mut sections = Sections::new();
    for ((table, first), last) in &changes.dropped {
        let items = sections.entry((Op::Range, *table)).or_default();
        items.extend([Item::Bytes(first), Item::Bytes(last)]);
    }
    for ((table, key), change) in &changes.rows {
        add(&mut sections, *table, key, change);
    }
    sections
}

fn add<'a>(sections: &mut Sections<'a>, table: Table, key: &'a [u8], change: &'a Change) {
    let Some(row) = &change.row else {
        // Two tables would disagree if such a row were gone already (I13).
        let op = if matches!(table, Table::Live | Table::Body) { Op::Cut } else { Op::Del };
        sections.entry((op, table)).or_default().push(Item::Bytes(key));
        if matches!(table, Table::Live | Table::Letter) {
            let items = sections.entry((Op::Index, table)).or_default();
            items.extend([Item::Bytes(key), Item::Bytes(&[])]);
        }
        return;
    };
    let op = match (&change.columns, change.fresh) {
        (Columns::Live { .. }, true) => Op::Add,
        (Columns::Live { .. }, false) => Op::Set,
        (Columns::Key(_), _) => Op::Rank,
        (Columns::None | Columns::Letter(_), _) => Op::Put,
    };
    let items = sections.entry((op, table)).or_default();
    if let Columns::Key(created_at) = &change.columns {
        items.push(Item::Number(created_at.as_millis()));
    }
    items.extend([Item::Bytes(key), Item::Bytes(row)]);
    let entries = match &change.columns {
        Columns::Live { queue, ready_at, delayed, .. } => index::of_live(key, queue, *ready_at, *delayed),
        Columns::Letter(letter) => index::of_letter(letter),
        Columns::None | Columns::Key(_) => return,
    };
    if !(change.fresh && entries.is_empty()) {
        let items = sections.entry((Op::Index, table)).or_default();
        items.extend([Item::Bytes(key), Item::Made(entries)]);
    }
}
