//! Reading the counters behind the statistics. The number of rows read
//! depends on the number of counters, not on the number of letters.

use super::reads::SqlTables;
use super::rows::Cell;
use crate::engine::tables::TableResult;
use redrive_core::ids::QueueName;
use redrive_core::metrics::{CounterKey, CounterTotals, Event, OpenCounts, OpenKey};
use redrive_core::priority::Priority;
use redrive_core::time::Time;

const OPEN_LETTERS: &str = "SELECT queue, kind, priority, open FROM open_letters";

/// The condition must be written as in the index `letters_open`, or SQLite does not use the index.
const OLDEST_OPEN: &str = "SELECT dead_at FROM letters WHERE status IN ('pending', 'retrying', 'review', 'quarantined') \
                           ORDER BY dead_at LIMIT 1";

const EVENT_COUNTERS: &str = "SELECT metric, queue, label, count, sum, max, since FROM tallies";

/// Open letters by queue, kind and priority.
pub(super) fn open_letters(tables: &SqlTables) -> TableResult<OpenCounts> {
    let rows = tables.all(OPEN_LETTERS, &[], |row| {
        let (queue, kind) = (row.get::<_, Cell<QueueName>>(0)?.0, row.get(1)?);
        Ok((OpenKey { queue, kind, priority: Priority::from_level(row.get(2)?) }, row.get(3)?))
    })?;
    Ok(OpenCounts::new(rows))
}

/// The time of death of the oldest open letter: the first row of an index.
pub(super) fn oldest_open(tables: &SqlTables) -> TableResult<Option<Time>> {
    let oldest = tables.one(OLDEST_OPEN, &[], |row| row.get::<_, Cell<Time>>(0))?;
    Ok(oldest.map(|cell| cell.0))
}

/// Event counters by queue and labels.
pub(super) fn event_counters(tables: &SqlTables) -> TableResult<Vec<(CounterKey, CounterTotals)>> {
    let raw = tables.all(EVENT_COUNTERS, &[], |row| {
        let totals = CounterTotals {
            count: row.get(3)?,
            sum: row.get(4)?,
            max: row.get(5)?,
            since: row.get::<_, Cell<Time>>(6)?.0,
        };
        Ok((row.get::<_, String>(0)?, row.get::<_, Cell<QueueName>>(1)?.0, row.get::<_, String>(2)?, totals))
    })?;
    // A counter that this program does not know is ignored and stays where it is.
    let known = |(event, queue, label, totals): (String, QueueName, String, CounterTotals)| {
        let event = Event::ALL.iter().copied().find(|known| known.key() == event)?;
        Some((CounterKey { event, queue, label }, totals))
    };
    Ok(raw.into_iter().filter_map(known).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::schema;

    #[test]
    fn statistics_never_scan_the_letters() {
        let connection = rusqlite::Connection::open_in_memory().unwrap();
        let connection = schema::migrate(connection, 0).unwrap();
        for sql in [OPEN_LETTERS, OLDEST_OPEN, EVENT_COUNTERS] {
            let mut plan = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
            let steps = plan.query_map([], |row| row.get::<_, String>(3)).unwrap();
            for step in steps.map(Result::unwrap) {
                let walks = step.contains("letters") && !step.contains("INDEX letters_open");
                assert!(!walks || step == "SCAN open_letters", "{sql}: {step}");
                assert!(!step.contains("TEMP B-TREE"), "{sql}: {step}");
            }
        }
    }
}
