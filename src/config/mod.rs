//! The configuration: one file of code for each YAML file, parsed whole into one immutable value.

mod types;

pub use types::*;
