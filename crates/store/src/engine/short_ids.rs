//! Finding ids by their last digits. No table has an index on them: every new message would write to a random place of
//! it, and only people who type ids would read it. Instead, ids alone are read in order, a bounded number per call.

use super::tables::Reads;
use redrive_core::error::StoreResult;
use redrive_core::limits;
use redrive_core::query::{Cursor, Page};
use redrive_core::short_id::{IdKind, IdSuffixQuery};

/// Ids read at once.
const CHUNK: usize = 4_096;

/// Ids that end in the given digits, in id order.
pub(crate) fn ids_ending(tables: &dyn Reads, query: &IdSuffixQuery) -> StoreResult<Page<String>> {
    let limit = query.page.limit();
    if query.of == IdKind::Group {
        let ends = tables.group_ids()?.into_iter().filter(|id| query.tail.matches_group(*id));
        return Ok(Page::last(ends.take(limit).map(|id| id.to_string()).collect()));
    }
    let mut after = query.page.id("i")?;
    let (mut items, mut looked_at) = (Vec::new(), 0);
    loop {
        let chunk = tables.ids_after(query.of, after, CHUNK)?;
        let Some(last) = chunk.last().copied() else { return Ok(Page::last(items)) };
        let ended = chunk.len() < CHUNK;
        looked_at += chunk.len();
        for id in chunk {
            if query.tail.matches(id) {
                items.push(id.to_string());
                if items.len() >= limit {
                    return Ok(Page { items, next: Some(Cursor::after_id("i", id)), damaged: Vec::new() });
                }
            }
        }
        after = Some(last);
        if ended {
            return Ok(Page::last(items));
        }
        if looked_at >= limits::PAGE_SCAN_MAX {
            return Ok(Page { items, next: Some(Cursor::after_id("i", last)), damaged: Vec::new() });
        }
    }
}
