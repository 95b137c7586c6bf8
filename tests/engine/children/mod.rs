//! MCP servers as child processes: their sessions, their confinement, and their end.

mod confinement;
mod fixture;
mod hostile;
mod life;
mod properties;
mod sessions;
