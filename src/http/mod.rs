//! One HTTP exchange: the request and its response through the chain, bodies, WebSockets.

pub(crate) mod body;
mod buffered_body;
pub(crate) mod drain;
pub(crate) mod exchange;
mod filtering;
pub(crate) mod headers;
pub(crate) mod idle;
pub(crate) mod inspection;
pub(crate) mod outgoing;
pub(crate) mod relay;
pub(crate) mod reply;
mod upstream_response;
mod websocket;

pub use websocket::{Failure, FrameReader, Messages, Opcode, Piece, Violation};
