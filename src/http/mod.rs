//! HTTP exchanges: requests and responses pass the chain, their bodies are streamed or buffered for
//! a judge, and WebSockets are relayed.

mod broke_off;
mod buffered_body;
mod destination;
mod drain;
mod exchange;
mod filtering;
mod headers;
mod held;
mod idle;
mod inspection;
mod origin_form;
mod outgoing;
mod own_client;
mod pending_request;
mod permission;
mod relay;
mod reply;
mod request_body;
mod response_body;
mod revocation;
mod session;
mod streamed_body;
mod upstream_response;
mod websocket;

pub use broke_off::BodyError;
pub(crate) use destination::Ingress;
pub(crate) use headers::has_body;
pub(crate) use idle::{IdleTracker, Timeouts, Watched};
pub use inspection::{Inspection, Reservation};
pub(crate) use origin_form::OriginRequest;
#[cfg(test)]
pub use own_client::unregistered_container;
pub use own_client::{Answer, AnswerBody, OwnClient};
pub(crate) use pending_request::handle;
pub(crate) use permission::Permission;
pub(crate) use relay::relay;
pub(crate) use reply::{Reply, closing, denied_connect, empty, raw};
pub use session::Service;
pub(crate) use session::Session;
pub(crate) use streamed_body::Pieces;
pub use websocket::{Failure, FrameReader, Messages, Opcode, Piece, Violation};
