//! The pkt-line framing of git's protocol: four hex digits of length, then the line.

use crate::contract::Denial;

/// Bytes of a frame's header, four hex digits.
pub(super) const HEADER: usize = 4;

/// Bytes of the longest frame that git accepts, with its header.
const LONGEST: usize = 65_520;

/// A parsed header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// The end of a list.
    Flush,
    /// A line, with the length of the frame in bytes, header included.
    Line(usize),
}

/// Parses the header at the beginning of `bytes`; `None` if it is incomplete.
///
/// Refuses:
/// - a length that is not four hex digits or is above git's limit
/// - 0001 to 0003: they are undefined in the commands of a push, and some servers end the list of
///   commands at such a frame
/// - 0004: an empty line, which cannot be a command
pub(super) fn header(bytes: &[u8]) -> Result<Option<Frame>, Denial> {
    let Some(digits) = bytes.first_chunk::<HEADER>() else {
        return Ok(None);
    };
    let mut length = 0;
    for digit in digits {
        let value = char::from(*digit).to_digit(16);
        let value = value.ok_or_else(|| malformed("a length is not four hex digits"))?;
        length = length * 16 + value as usize;
    }
    match length {
        0 => Ok(Some(Frame::Flush)),
        1..=HEADER => Err(malformed("a length of 0001 to 0004")),
        5..=LONGEST => Ok(Some(Frame::Line(length))),
        _ => Err(malformed("a line is longer than 65520 bytes")),
    }
}

/// Appends `line` as one frame.
pub(super) fn write(out: &mut Vec<u8>, line: &[u8]) {
    out.extend_from_slice(format!("{:04x}", line.len() + HEADER).as_bytes());
    out.extend_from_slice(line);
}

fn malformed(what: &str) -> Denial {
    Denial::malformed(format_args!("pkt-line: {what}"))
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn a_length_is_four_hex_digits_within_gits_limits() {
        each_row(
            [
                ("", Some(None)),
                ("003", Some(None)),
                ("0000", Some(Some(Frame::Flush))),
                ("0005a", Some(Some(Frame::Line(5)))),
                ("00aF", Some(Some(Frame::Line(0xaf)))),
                ("fff0", Some(Some(Frame::Line(65_520)))),
                ("fff1", None),
                ("0001", None),
                ("0002", None),
                ("0003", None),
                ("0004", None),
                ("+005", None),
                ("00 5", None),
                ("0x05", None),
                ("PACK", None),
            ],
            |(bytes, frame)| {
                assert_eq!(header(bytes.as_bytes()).ok(), frame, "{bytes}");
            },
        );
    }

    #[test]
    fn a_written_line_is_read_back() {
        let mut out = Vec::new();
        write(&mut out, b"unpack ok\n");
        assert_eq!(out, b"000eunpack ok\n");
        assert_eq!(header(&out).unwrap(), Some(Frame::Line(out.len())));
    }
}
