//! Modern revisions, without a handshake: from 2026-07-28 on. Only suspended calls are kept between
//! requests.

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
