//! HTTP/2 frames as bytes, for sequences that no library would send.

use std::collections::BTreeMap;
use std::io::{self, Read};

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

/// Parameters of SETTINGS (RFC 9113, section 6.5.2).
pub const MAX_CONCURRENT_STREAMS: u16 = 3;
pub const INITIAL_WINDOW_SIZE: u16 = 4;
pub const MAX_HEADER_LIST_SIZE: u16 = 6;

const ACK: u8 = 1;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The client's connection preface: the magic string and an empty SETTINGS frame.
pub fn opening() -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, &[]));
    bytes
}

/// A request without a body, as one HEADERS frame; `fields` is its HPACK block.
pub fn request(stream: u32, fields: &[u8]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, fields)
}

/// HPACK block of a GET of `path` at `https://host`, without Huffman coding and without the
/// dynamic table.
pub fn get(host: &str, path: &str) -> Vec<u8> {
    head(0x82, host, path)
}

/// HPACK block of a POST to `path` at `https://host`, in the same encoding as [`get`].
pub fn post(host: &str, path: &str) -> Vec<u8> {
    head(0x83, host, path)
}

fn head(method: u8, host: &str, path: &str) -> Vec<u8> {
    let mut fields = vec![method, 0x87];
    fields.extend(literal(":authority", host));
    fields.extend(literal(":path", path));
    fields
}

pub fn literal(name: &str, value: &str) -> Vec<u8> {
    let length = |text: &str| u8::try_from(text.len()).unwrap();
    let mut field = vec![0, length(name)];
    field.extend(name.as_bytes());
    field.push(length(value));
    field.extend(value.as_bytes());
    field
}

/// Reads frames until a RST_STREAM, a GOAWAY or the connection's end; false if the read times out
/// first.
pub fn read_until_refused(stream: &mut impl Read) -> bool {
    read_until(stream, &[RST_STREAM, GOAWAY])
}

/// Reads frames until a GOAWAY or the connection's end; false if the read times out first.
pub fn read_until_closed(stream: &mut impl Read) -> bool {
    read_until(stream, &[GOAWAY])
}

/// Reads frames until the acknowledgement of a PING; false if a GOAWAY, the connection's end or a
/// read timeout comes first.
pub fn read_until_pong(stream: &mut impl Read) -> bool {
    loop {
        match read_frame(stream) {
            Ok((PING, flags, _)) if flags & ACK != 0 => return true,
            Ok((GOAWAY, ..)) | Err(_) => return false,
            Ok(_) => {}
        }
    }
}

/// Reads frames until a SETTINGS that is not an acknowledgement, and returns the parameters in it.
pub fn read_settings(stream: &mut impl Read) -> BTreeMap<u16, u32> {
    loop {
        let (kind, flags, payload) = read_frame(stream).unwrap();
        if kind == SETTINGS && flags & ACK == 0 {
            let parameters = payload.chunks_exact(6).map(|pair| {
                let name = u16::from_be_bytes([pair[0], pair[1]]);
                (name, u32::from_be_bytes(pair[2..].try_into().unwrap()))
            });
            return parameters.collect();
        }
    }
}

fn read_frame(stream: &mut impl Read) -> io::Result<(u8, u8, Vec<u8>)> {
    let mut head = [0; 9];
    stream.read_exact(&mut head)?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut payload = vec![0; usize::try_from(length).unwrap()];
    stream.read_exact(&mut payload)?;
    Ok((head[3], head[4], payload))
}

fn read_until(stream: &mut impl Read, kinds: &[u8]) -> bool {
    loop {
        let mut head = [0; 9];
        match stream.read_exact(&mut head) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
            Err(_) => return true,
            Ok(()) if kinds.contains(&head[3]) => return true,
            Ok(()) => {}
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        if io::copy(&mut stream.take(length.into()), &mut io::sink()).is_err() {
            return true;
        }
    }
}
