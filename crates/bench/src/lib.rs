//! Drivers that try to make the embedded store break a promise: kill it, cut its power, fail its disk. The
//! binary `redrive-torture` is their command line, `docs/reliability.md` says what they prove and what not.

pub mod torture;
