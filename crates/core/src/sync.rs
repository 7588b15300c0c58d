//! The seam of everything the core shares between threads. In this crate it is the standard library and
//! crossbeam. `crates/core/tests/shuttle.rs` compiles the same sources over another module of this name, where
//! every step is a point at which shuttle may switch threads; so the code under test is the code that ships,
//! and no feature flag can turn the slow one on by accident. Nothing else belongs here.

pub(crate) use crossbeam_queue::{ArrayQueue as Ring, SegQueue as Inbox};
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub(crate) use std::sync::{Mutex, MutexGuard, TryLockError};
