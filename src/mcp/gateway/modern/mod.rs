//! Revisions without a handshake: from 2026-07-28 on. Each request says what the gateway needs to
//! know, and nothing is kept between requests but calls that wait for the client.

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
