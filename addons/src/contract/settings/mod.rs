//! The reader of configuration files, with which each addon decodes its own settings.
//!
//! A [`Document`] is a file as a tree that knows its places (`tree`), with the variables in its
//! scalars expanded (`expand`). [`Fields`] and [`At`] make values of it and report every error
//! with file, line, column and key path.

mod decode;
mod document;
mod expand;
mod report;
mod tree;
mod units;

pub use decode::{At, Fields};
pub use document::{Document, check_version};
pub use expand::Env;
pub use report::{ConfigError, ConfigErrors, FileReport, Report};
pub use tree::{Key, Place, Scalar, Variable};
