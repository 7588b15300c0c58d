//! The counters that statistics are made of, read from the file: as many rows as there are counters, however many
//! letters there are.

use super::reads::SqlTables;
use super::rows::Cell;
use crate::engine::tables::Kept;
use redrive_core::ids::QueueName;
use redrive_core::metrics::{Event, OpenCounts, OpenKey, Tally, TallyKey};
use redrive_core::priority::Priority;
use redrive_core::time::Time;

const OPEN_LETTERS: &str = "SELECT queue, kind, priority, open FROM open_letters";

/// The condition stands here as it stands in the index `letters_open`, or SQLite does not use the index.
const OLDEST_OPEN: &str = "SELECT dead_at FROM letters WHERE status IN ('pending', 'retrying', 'review', 'quarantined') \
                           ORDER BY dead_at LIMIT 1";

const TALLIES: &str = "SELECT metric, queue, label, count, sum, max, since FROM tallies";

/// Open letters by queue, kind and priority.
pub(super) fn open_letters(tables: &SqlTables) -> Kept<OpenCounts> {
    let rows = tables.all(OPEN_LETTERS, &[], |row| {
        let (queue, kind) = (row.get::<_, Cell<QueueName>>(0)?.0, row.get(1)?);
        Ok((OpenKey { queue, kind, priority: Priority::from_level(row.get(2)?) }, row.get(3)?))
    })?;
    Ok(OpenCounts::new(rows))
}

/// When the oldest open letter died: the first row of an index.
pub(super) fn oldest_open(tables: &SqlTables) -> Kept<Option<Time>> {
    let oldest = tables.one(OLDEST_OPEN, &[], |row| row.get::<_, Cell<Time>>(0))?;
    Ok(oldest.map(|cell| cell.0))
}

/// Events by queue and labels.
pub(super) fn tallies(tables: &SqlTables) -> Kept<Vec<(TallyKey, Tally)>> {
    let raw = tables.all(TALLIES, &[], |row| {
        let tally = Tally {
            count: row.get(3)?,
            sum: row.get(4)?,
            max: row.get(5)?,
            since: row.get::<_, Cell<Time>>(6)?.0,
        };
        Ok((row.get::<_, String>(0)?, row.get::<_, Cell<QueueName>>(1)?.0, row.get::<_, String>(2)?, tally))
    })?;
    // A counter that this program has no name for is left where it is.
    let known = |(event, queue, label, tally): (String, QueueName, String, Tally)| {
        let event = Event::ALL.iter().copied().find(|known| known.key() == event)?;
        Some((TallyKey { event, queue, label }, tally))
    };
    Ok(raw.into_iter().filter_map(known).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::schema;

    #[test]
    fn statistics_never_walk_the_letters() {
        let connection = rusqlite::Connection::open_in_memory().unwrap();
        let connection = schema::migrate(connection, 0).unwrap();
        for sql in [OPEN_LETTERS, OLDEST_OPEN, TALLIES] {
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
