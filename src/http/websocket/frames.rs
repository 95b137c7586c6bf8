//! Parses the frames that a WebSocket server sends (RFC 6455, section 5.2), without I/O.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use thiserror::Error;

/// The longest payload of a control frame, in bytes (RFC 6455, section 5.5).
pub const MAX_CONTROL: usize = 125;

/// The longest head of an unmasked frame, in bytes: opcode, length, extended length.
pub const MAX_HEAD: usize = 10;

const FIN: u8 = 0x80;
const RESERVED: u8 = 0x70;
const OPCODE: u8 = 0x0f;
const MASKED: u8 = 0x80;
/// Values of the length field that announce a length in the next 2 or 8 bytes.
const LENGTH_IN_2_BYTES: u8 = 126;
const LENGTH_IN_8_BYTES: u8 = 127;

/// The opcode of a frame (RFC 6455, section 11.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// Continues the message that is under way.
    Continuation = 0,
    /// Begins a message of text.
    Text = 1,
    /// Begins a message of bytes.
    Binary = 2,
    /// Ends the WebSocket. Its payload is a status code with an optional reason, or empty.
    Close = 8,
    /// Asks for a pong with the same payload.
    Ping = 9,
    /// Answers a ping.
    Pong = 10,
}

/// Why the server's stream cannot be relayed: a violation of RFC 6455, or a close frame that
/// filtering makes invalid. Nothing after it is parsed.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Violation {
    /// A reserved bit (RSV1 to RSV3) is set; only a negotiated extension may define its meaning.
    #[error("a frame has reserved bits set, and no extension was agreed")]
    ReservedBits,
    /// The opcode is one of 3 to 7 or 11 to 15.
    #[error("a frame has the reserved opcode {0}")]
    ReservedOpcode(u8),
    /// The payload is masked; only clients may mask.
    #[error("a frame from the server is masked")]
    Masked,
    /// A continuation frame arrived while no message was under way.
    #[error("a continuation frame continues no message")]
    NothingToContinue,
    /// A text or binary frame arrived before the end of the previous message.
    #[error("a message begins before the previous one has ended")]
    Interrupted,
    /// A control frame has no FIN bit.
    #[error("a control frame is fragmented")]
    FragmentedControl,
    /// The payload of a control frame has more than 125 bytes.
    #[error("a control frame has more than {MAX_CONTROL} bytes")]
    LongControl,
    /// The most significant bit of a 64-bit length is set.
    #[error("a frame is longer than 2^63 - 1 bytes")]
    Length,
    /// The payload of a close frame has one byte, but a status code has two.
    #[error("a close frame has a payload of one byte")]
    HalfCloseCode,
    /// The filters replaced an echo (a copy of an injected credential) that begins in the status
    /// code.
    #[error("the status code of a close frame is part of an echo of a credential")]
    EchoInCloseCode,
}

/// A part of the server's stream, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Bytes of a message, possibly none.
    Message {
        /// [`Opcode::Text`] or [`Opcode::Binary`], on every piece of the message.
        opcode: Opcode,
        /// A slice of the input, not copied.
        bytes: Bytes,
        /// Whether the message ends with these bytes.
        last: bool,
    },
    /// A whole control frame.
    Control {
        /// [`Opcode::Close`], [`Opcode::Ping`] or [`Opcode::Pong`].
        opcode: Opcode,
        /// At most 125 bytes.
        payload: Bytes,
    },
}

/// Parses frames from bytes that may be cut anywhere. Holds at most one control frame.
#[derive(Default)]
pub struct FrameReader {
    state: State,
    /// The message that is under way.
    message: Option<Opcode>,
}

/// The position of the next byte in a frame.
#[derive(Default)]
enum State {
    /// The first byte: flags and opcode.
    #[default]
    First,
    /// The second byte: mask bit and length.
    Second(Head),
    /// In the extended length of a data frame, of which `missing` bytes have not arrived.
    Length { fin: bool, missing: u8, length: u64 },
    /// In the payload of a data frame, of which `left` bytes have not arrived.
    Data { fin: bool, left: u64 },
    /// In the payload of a control frame of `length` bytes.
    Control {
        opcode: Opcode,
        length: usize,
        payload: BytesMut,
    },
    /// After a violation.
    Broken(Violation),
}

/// The first byte of a frame.
#[derive(Clone, Copy)]
struct Head {
    fin: bool,
    opcode: Opcode,
}

impl FrameReader {
    /// Takes the next piece from the front of `input`; `None` once all of `input` is consumed and
    /// more bytes are needed. A violation is final: every later call returns it again.
    pub fn read(&mut self, input: &mut Bytes) -> Result<Option<Piece>, Violation> {
        let read = self.step(input);
        if let Err(violation) = read {
            self.state = State::Broken(violation);
        }
        read
    }

    fn step(&mut self, input: &mut Bytes) -> Result<Option<Piece>, Violation> {
        loop {
            match &mut self.state {
                State::Broken(violation) => return Err(*violation),
                State::Data { fin, left } => {
                    let (fin, left) = (*fin, *left);
                    return Ok(self.data(fin, left, input));
                }
                State::Control {
                    opcode,
                    length,
                    payload,
                } => {
                    let missing = *length - payload.len();
                    payload.put(input.split_to(missing.min(input.len())));
                    if payload.len() < *length {
                        return Ok(None);
                    }
                    let (opcode, payload) = (*opcode, std::mem::take(payload).freeze());
                    self.state = State::First;
                    return Ok(Some(Piece::Control { opcode, payload }));
                }
                State::First | State::Second(_) | State::Length { .. } => {
                    let Ok(byte) = input.try_get_u8() else {
                        return Ok(None);
                    };
                    self.head(byte)?;
                }
            }
        }
    }

    /// Takes the next byte of a frame head.
    fn head(&mut self, byte: u8) -> Result<(), Violation> {
        self.state = match self.state {
            State::Second(head) => second(head, byte)?,
            State::Length {
                fin,
                missing,
                length,
            } => {
                let length = length << 8 | u64::from(byte);
                match missing.saturating_sub(1) {
                    0 if length >> 63 == 1 => return Err(Violation::Length),
                    0 => State::Data { fin, left: length },
                    missing => State::Length {
                        fin,
                        missing,
                        length,
                    },
                }
            }
            _ => State::Second(self.first(byte)?),
        };
        Ok(())
    }

    /// Reads flags and opcode, and checks that the frame is allowed here.
    fn first(&mut self, byte: u8) -> Result<Head, Violation> {
        if byte & RESERVED != 0 {
            return Err(Violation::ReservedBits);
        }
        let fin = byte & FIN != 0;
        let opcode = match byte & OPCODE {
            0 => Opcode::Continuation,
            1 => Opcode::Text,
            2 => Opcode::Binary,
            8 => Opcode::Close,
            9 => Opcode::Ping,
            10 => Opcode::Pong,
            reserved => return Err(Violation::ReservedOpcode(reserved)),
        };
        match (opcode, self.message) {
            (Opcode::Continuation, None) => return Err(Violation::NothingToContinue),
            (Opcode::Text | Opcode::Binary, Some(_)) => return Err(Violation::Interrupted),
            (Opcode::Text | Opcode::Binary, None) => self.message = Some(opcode),
            (Opcode::Close | Opcode::Ping | Opcode::Pong, _) if !fin => {
                return Err(Violation::FragmentedControl);
            }
            _ => {}
        }
        Ok(Head { fin, opcode })
    }

    /// Takes the available bytes of a data frame's payload.
    fn data(&mut self, fin: bool, left: u64, input: &mut Bytes) -> Option<Piece> {
        // In this state a message is always under way.
        let opcode = self.message?;
        if input.is_empty() && left > 0 {
            return None;
        }
        let count = usize::try_from(left).map_or(input.len(), |left| left.min(input.len()));
        let bytes = input.split_to(count);
        let left = left - count as u64;
        let last = fin && left == 0;
        if last {
            self.message = None;
        }
        self.state = match left {
            0 => State::First,
            left => State::Data { fin, left },
        };
        Some(Piece::Message {
            opcode,
            bytes,
            last,
        })
    }
}

/// Reads mask bit and length.
fn second(Head { fin, opcode }: Head, byte: u8) -> Result<State, Violation> {
    if byte & MASKED != 0 {
        return Err(Violation::Masked);
    }
    if matches!(opcode, Opcode::Close | Opcode::Ping | Opcode::Pong) {
        let length = usize::from(byte);
        if length > MAX_CONTROL {
            return Err(Violation::LongControl);
        }
        let payload = BytesMut::new();
        return Ok(State::Control {
            opcode,
            length,
            payload,
        });
    }
    let extended = |missing| State::Length {
        fin,
        missing,
        length: 0,
    };
    Ok(match byte {
        LENGTH_IN_2_BYTES => extended(2),
        LENGTH_IN_8_BYTES => extended(8),
        length => State::Data {
            fin,
            left: length.into(),
        },
    })
}

/// Writes the head of an unmasked frame.
pub fn write_head(out: &mut BytesMut, fin: bool, opcode: Opcode, length: usize) {
    let flags = if fin { FIN } else { 0 };
    out.put_u8(flags | opcode as u8);
    match (u8::try_from(length), u16::try_from(length)) {
        (Ok(length), _) if length < LENGTH_IN_2_BYTES => out.put_u8(length),
        (_, Ok(length)) => {
            out.put_u8(LENGTH_IN_2_BYTES);
            out.put_u16(length);
        }
        _ => {
            out.put_u8(LENGTH_IN_8_BYTES);
            out.put_u64(length as u64);
        }
    }
}

#[cfg(test)]
mod tests;
