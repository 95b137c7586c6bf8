//! MCP servers as child processes: their sessions, their confinement, and their end.

mod confinement;
pub mod fixture;
mod hostile;
mod life;
mod properties;
mod sessions;
