//! How often the core is right, measured on labelled data from independent sources. This module makes no
//! decisions of its own: it calls the core as the command line does and counts.

pub mod classes;
pub mod filing;
pub mod grouping;
