//! Filters the messages of a WebSocket and writes them as frames again, without I/O.

use addons::contract::{Denial, Host, MessageFilter};
use bytes::{Bytes, BytesMut};

use super::frames::{FrameReader, MAX_CONTROL, MAX_HEAD, Opcode, Piece, Violation, write_head};
use crate::http::filtering::Filtering;
use crate::upstream::not_answered;

/// The status code of a close frame for a violation of the protocol (RFC 6455, section 7.4.1).
const PROTOCOL_ERROR: u16 = 1002;
/// The status code of a close frame for a denied message (RFC 6455, section 7.4.1).
const POLICY_VIOLATION: u16 = 1008;

/// Why the proxy closed a WebSocket.
#[derive(Debug)]
pub enum Failure {
    /// The upstream's stream cannot be relayed.
    Violation(Violation),
    /// A filter denied a message.
    Denied(Denial),
}

impl From<Violation> for Failure {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

impl From<Denial> for Failure {
    fn from(denial: Denial) -> Self {
        Self::Denied(denial)
    }
}

impl Failure {
    fn status_code(&self) -> u16 {
        match self {
            Self::Violation(_) => PROTOCOL_ERROR,
            Self::Denied(_) => POLICY_VIOLATION,
        }
    }

    /// The denial that the audit records.
    pub fn denial(&self, host: &Host) -> Denial {
        match self {
            Self::Violation(violation) => {
                not_answered(host, &format!("broke the WebSocket protocol: {violation}"))
            }
            Self::Denied(denial) => denial.clone(),
        }
    }
}

/// Filters the frames of a server. Each message is one body for the filters, and so is the payload
/// of each control frame. Holds the bytes that the filters hold, and at most one control frame.
///
/// Since lengths change, the fragments for the client do not correspond to the server's: each
/// carries the bytes that the filters have passed since the previous one. Control frames are sent
/// between fragments.
pub struct Messages {
    reader: FrameReader,
    filters: Vec<MessageFilter>,
    message: Option<Message>,
    closed: bool,
}

/// A message that has begun and not ended.
struct Message {
    filtering: Filtering,
    /// The opcode of the next fragment to be written.
    opcode: Opcode,
}

impl Messages {
    /// Filters each message with one filter from each of `filters`, in their order.
    pub fn new(filters: Vec<MessageFilter>) -> Self {
        Self {
            reader: FrameReader::default(),
            filters,
            message: None,
            closed: false,
        }
    }

    /// Takes bytes from the server, and appends frames for the client to `out`. A failure appends a
    /// close frame; after a failure, `read` must not be called again. Bytes after the server's own
    /// close frame are discarded, as the client may ignore them.
    pub fn read(&mut self, input: Bytes, out: &mut BytesMut) -> Result<(), Failure> {
        let read = self.read_frames(input, out);
        if let Err(failure) = &read {
            write_head(out, true, Opcode::Close, 2);
            out.extend_from_slice(&failure.status_code().to_be_bytes());
        }
        read
    }

    fn read_frames(&mut self, mut input: Bytes, out: &mut BytesMut) -> Result<(), Failure> {
        out.reserve(input.len() + MAX_HEAD);
        while !self.closed
            && let Some(piece) = self.reader.read(&mut input)?
        {
            match piece {
                Piece::Message {
                    opcode,
                    bytes,
                    last,
                } => self.message(opcode, bytes, last, out)?,
                Piece::Control { opcode, payload } => self.control(opcode, payload, out)?,
            }
        }
        Ok(())
    }

    fn filtering(&self) -> Filtering {
        Filtering::new(self.filters.iter().map(|filter| filter()).collect())
    }

    fn message(
        &mut self,
        opcode: Opcode,
        bytes: Bytes,
        last: bool,
        out: &mut BytesMut,
    ) -> Result<(), Failure> {
        let mut message = self.message.take().unwrap_or_else(|| Message {
            filtering: self.filtering(),
            opcode,
        });
        if !bytes.is_empty() {
            message.filtering.feed(bytes)?;
        }
        if last {
            message.filtering.end(None)?;
        }
        let passed = &mut message.filtering.passed;
        if last || !passed.is_empty() {
            write_head(out, last, message.opcode, passed.len());
            passed
                .drain()
                .for_each(|piece| out.extend_from_slice(&piece));
            message.opcode = Opcode::Continuation;
        }
        if !last {
            self.message = Some(message);
        }
        Ok(())
    }

    fn control(
        &mut self,
        opcode: Opcode,
        payload: Bytes,
        out: &mut BytesMut,
    ) -> Result<(), Failure> {
        if opcode == Opcode::Close && payload.len() == 1 {
            return Err(Violation::HalfCloseCode.into());
        }
        // The status code is filtered too, since the echo of a credential may begin in it.
        let mut filtering = self.filtering();
        filtering.feed(payload.clone())?;
        filtering.end(None)?;
        let filtered: Vec<u8> = filtering.passed.drain().flatten().collect();
        if opcode == Opcode::Close {
            if filtered.get(..2) != payload.get(..2) {
                return Err(Violation::EchoInCloseCode.into());
            }
            self.closed = true;
        }
        let filtered = shortened(&filtered);
        write_head(out, true, opcode, filtered.len());
        out.extend_from_slice(filtered);
        Ok(())
    }
}

/// Returns the longest prefix of a payload that fits into a control frame, cut between UTF-8
/// characters. The text that replaces an echoed credential may be longer than the credential.
fn shortened(payload: &[u8]) -> &[u8] {
    let Some((fits, [next, ..])) = payload.split_at_checked(MAX_CONTROL) else {
        return payload;
    };
    let is_inside_character = |byte: u8| byte & 0xc0 == 0x80;
    if !is_inside_character(*next) {
        return fits;
    }
    let begin = fits.iter().rposition(|byte| !is_inside_character(*byte));
    begin.and_then(|end| fits.get(..end)).unwrap_or(fits)
}

#[cfg(test)]
mod tests;
