//! MCP servers as children: how sessions with them begin, what they reach, and how they end.

mod confinement;
mod fixture;
mod hostile;
mod life;
mod properties;
mod sessions;
