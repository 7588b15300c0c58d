//! The synchronisation primitives that this crate shares between threads: those of the standard library and
//! crossbeam. `crates/core/tests/shuttle.rs` compiles the same sources with another module of this name, in
//! which shuttle may switch threads at every step. The tested code is therefore the code that ships, without a
//! feature flag. Nothing else belongs here.

pub(crate) use crossbeam_queue::{ArrayQueue as Ring, SegQueue as Inbox};
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub(crate) use std::sync::{Mutex, MutexGuard, TryLockError};
