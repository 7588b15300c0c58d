//! The most frequent statements, as constants, so that they are not assembled on every call.

use super::letter_rows::LETTER;
use super::rows::FAILURE;
use std::sync::LazyLock;

pub(super) static FAILURES: LazyLock<String> =
    LazyLock::new(|| format!("SELECT {FAILURE} WHERE f.seq = ?1 ORDER BY f.n"));

pub(super) static MEMBERS_WITH_LETTERS: LazyLock<String> = LazyLock::new(|| {
    format!(
        "SELECT {}, position, member, frozen, why FROM \
         (SELECT position, id AS member, version AS frozen, why FROM members \
         WHERE operation = ?1 AND outcome = ?2 AND position > ?3 AND position <= ?5 ORDER BY position LIMIT ?4) \
         LEFT JOIN letters ON letters.death = position",
        LETTER.as_str()
    )
});
macro_rules! live_columns {
    () => {
        "SELECT id, seq, queue, kind, priority, size, key, ordering_key, max_attempts, ttl_ends_at, deadline, \
         breaker, reply_to, origin, ready_at, attempts, deliveries, generation, given_back, failed, failing_since, last_delay, \
         first_received_at, updated_at, indicators, progress, phase, secret, worker, granted_at, lease_expires_at, permit, checksum \
         FROM messages "
    };
}
pub(super) const LIVE_BY_ID: &str = concat!(live_columns!(), "WHERE id = ?1");
// A damaged id may have any length; `doctor` looks for those.
pub(super) const LIVE_AFTER: &str =
    concat!(live_columns!(), "WHERE id > ?1 AND length(id) = 16 ORDER BY id LIMIT ?2");
pub(super) const LIVE_FROM: &str =
    concat!(live_columns!(), "WHERE id >= ?1 AND length(id) = 16 ORDER BY id LIMIT ?2");
pub(super) const LIVE_LEASED: &str = concat!(live_columns!(), "WHERE phase = 1 AND length(id) = 16");
