//! Legacy revisions, with a handshake: up to 2025-11-25.

mod client_stream;
mod event_stream;
mod handshake;
mod http_sse;
mod post;
mod session;
mod streams;

pub use event_stream::KeptBytes;
pub use http_sse::{message, open as open_sse};
pub use post::post;
pub use session::{LegacySession, Transport};
pub use streams::{count_stream, delete, get};
