//! The gateway before clients and servers that mean harm.

pub mod client;
pub mod server;

mod arguments;
mod bounds;
mod definitions;
mod floods;
mod isolation;
mod levels;
mod policies;
mod questions;
mod sessions;
mod way_out;
