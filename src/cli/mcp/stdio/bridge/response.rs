//! The response to a message that was sent to the gateway.

use addons::contract::RpcError;
use bytes::Bytes;
use thiserror::Error;

use crate::cli::mcp::http_client::{HttpError, MAX_MESSAGE};
use crate::mcp::{EventReader, Outcome};

/// The response to a request.
pub struct Response {
    /// The received text, with the request's id.
    pub text: Bytes,
    pub outcome: Outcome,
}

/// Why there is no response.
#[derive(Debug, Error)]
pub enum CallFailure {
    /// The gateway does not know the session.
    #[error("the gateway has ended the session")]
    SessionGone,
    #[error("{0}")]
    Http(#[from] HttpError),
    /// An HTTP error without a JSON-RPC response.
    #[error("{}", .0.message)]
    Refused(RpcError),
    #[error("the gateway closed the connection before it answered")]
    Closed,
    #[error("the gateway accepted the request without an answer")]
    Unanswered,
    #[error("an event of the gateway is longer than {MAX_MESSAGE} bytes")]
    TooLong,
}

/// The data of the next event that a piece completes.
pub fn next(reader: &mut EventReader, piece: &mut Bytes) -> Result<Option<Vec<u8>>, CallFailure> {
    let event = reader.next(piece).map_err(|_| CallFailure::TooLong)?;
    Ok(event.map(|event| event.data))
}
