//! Randomness for ids, of which a server makes many. A request to the system costs more than an id does, so each thread
//! asks for a few kilobytes at a time. Secrets are not made from this.

use std::cell::RefCell;

/// Bytes that a thread asks the operating system for at a time: about 200 ids.
const POOL_BYTES: usize = 2 * 1024;

/// Random bytes of one thread, of which those at the beginning were handed out.
struct Pool {
    bytes: [u8; POOL_BYTES],
    used: usize,
}

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool { bytes: [0; POOL_BYTES], used: POOL_BYTES }) };
}

/// Random bytes that are handed out only once.
pub(crate) fn bytes<const N: usize>() -> Result<[u8; N], getrandom::Error> {
    POOL.with_borrow_mut(|pool| {
        let Pool { bytes, used } = pool;
        if bytes.len() - *used < N {
            getrandom::fill(bytes)?;
            *used = 0;
        }
        if let Some(fresh) = bytes.get(*used..).and_then(|rest| rest.first_chunk::<N>()) {
            *used += N;
            return Ok(*fresh);
        }
        // More than the pool holds.
        let mut large = [0; N];
        getrandom::fill(&mut large)?;
        Ok(large)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn no_bytes_are_handed_out_twice() {
        let ids: BTreeSet<[u8; 10]> = (0..POOL_BYTES).map(|_| bytes().unwrap()).collect();
        assert_eq!(ids.len(), POOL_BYTES);
        assert_ne!(bytes::<{ POOL_BYTES + 1 }>().unwrap(), [0; POOL_BYTES + 1]);
    }
}
