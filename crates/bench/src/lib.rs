//! Measurements that take longer than a test. [`accuracy`]: how often the core is right on labelled data.
//! [`suites`]: how fast the library is on this machine (`redrive-bench`). [`torture`]: drivers that try to make the embedded store break a promise: kill it, cut its power, fail its disk. The
//! binary `redrive-torture` is their command line, `docs/reliability.md` says what they prove and what not.
//! Besides, the training of the classifier (`redrive-train`) and how accurate it is (`redrive-accuracy`).

pub mod accuracy;
pub mod suites;
pub mod torture;
pub mod training;
