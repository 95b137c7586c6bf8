//! Revisions without a handshake: from 2026-07-28 on. Between requests, only suspended calls are
//! kept.

mod discover;
mod envelope;
mod headers;
mod listen;
mod param_headers;
mod params;
mod post;
mod request;
mod retry;
mod run;
mod suspended;

pub use params::names_version;
pub use post::post;
pub use suspended::Suspended;
