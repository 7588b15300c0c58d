//! How often the parts that judge errors are right, on sets of errors with labels. The binary
//! `redrive-accuracy` is their command line.

pub mod classes;
