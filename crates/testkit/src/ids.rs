//! Ids that are the same in every run: they are made from a counter instead of random bits.

use crate::clock::START;
use redrive_core::ids::{MessageId, OperationId};

/// The n-th message id. Each is a distinct UUIDv7, and ids sort in the order of their numbers.
#[must_use]
pub fn message_id(n: u64) -> MessageId {
    let mut random = [0_u8; 10];
    for (slot, byte) in random.iter_mut().skip(2).zip(n.to_be_bytes()) {
        *slot = byte;
    }
    MessageId::new(START.as_millis().unsigned_abs(), random)
}

/// The n-th operation id. It never equals a message id that a test uses.
#[must_use]
pub fn operation_id(n: u64) -> OperationId {
    OperationId::new(message_id(n | 1 << 40))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_differ_and_sort_by_their_number() {
        let ids: Vec<MessageId> = (0..10_000).map(message_id).collect();
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(message_id(7).to_string().as_bytes()[14], b'7', "version 7");
    }
}
