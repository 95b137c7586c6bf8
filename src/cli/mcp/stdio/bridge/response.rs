//! The response to a message that was sent to the gateway.

use addons::contract::RpcError;
use bytes::Bytes;
use thiserror::Error;

use crate::cli::mcp::http_client::{HttpError, MAX_MESSAGE};
use crate::mcp::{EventReader, Outcome};

/// The gateway's response to a request.
pub struct Response {
    /// The received JSON text, with the request's id.
    pub text: Bytes,
    pub outcome: Outcome,
}

/// Why a message has no response.
#[derive(Debug, Error)]
pub enum CallFailure {
    /// The gateway does not know the session.
    #[error("the gateway has ended the session")]
    SessionGone,
    #[error("{0}")]
    Http(#[from] HttpError),
    /// The gateway responded with an HTTP error, or did not accept a message.
    #[error("{}", .0.message)]
    Refused(RpcError),
    #[error("the gateway closed the connection before it answered")]
    Closed,
    #[error("the gateway accepted the request but sent no response")]
    NoResponse,
    #[error("an event of the gateway is longer than {MAX_MESSAGE} bytes")]
    TooLong,
}

/// Returns the data of the next event that `piece` completes; `None` if it completes none.
pub fn next(reader: &mut EventReader, piece: &mut Bytes) -> Result<Option<Vec<u8>>, CallFailure> {
    let event = reader.next(piece).map_err(|_| CallFailure::TooLong)?;
    Ok(event.map(|event| event.data))
}
