//! The store's tests against the real thing, in one binary: the laws and the streams on every backend, and
//! what only the embedded store promises: durability, one holder, refusal of what is not ours.

mod laws;
