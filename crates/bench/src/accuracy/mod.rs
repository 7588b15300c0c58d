//! How often the core is right, measured on labelled data that somebody else made. Nothing here decides: it
//! calls the core as the command line does and counts.

pub mod classes;
pub mod filing;
pub mod grouping;
