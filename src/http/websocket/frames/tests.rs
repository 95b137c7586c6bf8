use proptest::prelude::*;
use testkit::each_row;

use super::*;

const TEXT: Opcode = Opcode::Text;
const BINARY: Opcode = Opcode::Binary;

fn message(opcode: Opcode, bytes: &'static [u8], last: bool) -> Piece {
    let bytes = Bytes::from_static(bytes);
    Piece::Message {
        opcode,
        bytes,
        last,
    }
}

fn control(opcode: Opcode, payload: &'static [u8]) -> Piece {
    let payload = Bytes::from_static(payload);
    Piece::Control { opcode, payload }
}

/// Reads the chunks, up to a violation. Consecutive pieces of one message are joined.
fn read<'a>(chunks: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Piece>, Option<Violation>) {
    let mut reader = FrameReader::default();
    let mut pieces: Vec<Piece> = Vec::new();
    for chunk in chunks {
        let mut input = Bytes::copy_from_slice(chunk);
        loop {
            match reader.read(&mut input) {
                Ok(Some(piece)) => push(&mut pieces, piece),
                Ok(None) => break,
                Err(violation) => {
                    let again = reader.read(&mut input);
                    assert_eq!(
                        again,
                        Err(violation),
                        "a later call returns the violation again"
                    );
                    return (pieces, Some(violation));
                }
            }
        }
        assert!(input.is_empty(), "{} bytes are left unread", input.len());
    }
    (pieces, None)
}

fn push(pieces: &mut Vec<Piece>, piece: Piece) {
    if let (
        Some(Piece::Message {
            bytes: before,
            last: last @ false,
            ..
        }),
        Piece::Message {
            bytes, last: ends, ..
        },
    ) = (pieces.last_mut(), &piece)
    {
        *before = [&**before, bytes].concat().into();
        *last = *ends;
    } else {
        pieces.push(piece);
    }
}

fn with_head(head: &[u8], payload: &[u8]) -> Vec<u8> {
    [head, payload].concat()
}

#[test]
fn frames_are_parsed_as_rfc_6455_defines_them() {
    let long = [b'x'; 65_536];
    let mut failures = Vec::new();
    for (what, bytes, pieces) in [
        (
            "a text in one frame",
            b"\x81\x05Hello".to_vec(),
            vec![message(TEXT, b"Hello", true)],
        ),
        (
            "a text in three frames",
            b"\x01\x03Hel\x00\x00\x80\x02lo".to_vec(),
            vec![message(TEXT, b"Hello", true)],
        ),
        (
            "a ping between two fragments",
            b"\x02\x01a\x89\x02hi\x80\x01b".to_vec(),
            vec![
                message(BINARY, b"a", false),
                control(Opcode::Ping, b"hi"),
                message(BINARY, b"b", true),
            ],
        ),
        (
            "empty frames",
            b"\x82\x00\x8a\x00\x88\x00".to_vec(),
            vec![
                message(BINARY, b"", true),
                control(Opcode::Pong, b""),
                control(Opcode::Close, b""),
            ],
        ),
        (
            "a length in 2 bytes",
            with_head(b"\x82\x7e\x01\x00", &long[..256]),
            vec![message(BINARY, &[b'x'; 256], true)],
        ),
        (
            "a length in 8 bytes",
            with_head(b"\x82\x7f\0\0\0\0\0\x01\0\0", &long),
            vec![message(BINARY, &[b'x'; 65_536], true)],
        ),
        (
            "a length in more bytes than needed",
            b"\x82\x7e\x00\x01a\x82\x7f\0\0\0\0\0\0\0\x01b".to_vec(),
            vec![message(BINARY, b"a", true), message(BINARY, b"b", true)],
        ),
        (
            "the first bytes of the longest frame",
            b"\x82\x7f\x7f\xff\xff\xff\xff\xff\xff\xffabc".to_vec(),
            vec![message(BINARY, b"abc", false)],
        ),
    ] {
        let found = read([bytes.as_slice()]);
        if found != (pieces, None) {
            failures.push(format!("{what}: {found:?}"));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn a_frame_that_breaks_the_protocol_is_a_violation_and_yields_nothing() {
    let begun = || vec![message(TEXT, b"a", false)];
    let mut failures = Vec::new();
    for (bytes, before, violation) in [
        (&b"\xc1\x01a"[..], vec![], Violation::ReservedBits),
        (b"\xa1\x01a", vec![], Violation::ReservedBits),
        (b"\x91\x01a", vec![], Violation::ReservedBits),
        (b"\x01\x01a\xc0\x01a", begun(), Violation::ReservedBits),
        (b"\xc9\x00", vec![], Violation::ReservedBits),
        (b"\x83\x01a", vec![], Violation::ReservedOpcode(3)),
        (b"\x87\x01a", vec![], Violation::ReservedOpcode(7)),
        (b"\x8b\x01a", vec![], Violation::ReservedOpcode(11)),
        (b"\x8f\x01a", vec![], Violation::ReservedOpcode(15)),
        (b"\x81\x81\0\0\0\0a", vec![], Violation::Masked),
        (b"\x89\x80\0\0\0\0", vec![], Violation::Masked),
        (b"\x80\x01a", vec![], Violation::NothingToContinue),
        (b"\x00\x01a", vec![], Violation::NothingToContinue),
        (
            b"\x81\x01a\x80\x01a",
            vec![message(TEXT, b"a", true)],
            Violation::NothingToContinue,
        ),
        (b"\x01\x01a\x01\x01a", begun(), Violation::Interrupted),
        (b"\x01\x01a\x82\x01a", begun(), Violation::Interrupted),
        (b"\x08\x00", vec![], Violation::FragmentedControl),
        (b"\x09\x00", vec![], Violation::FragmentedControl),
        (b"\x0a\x00", vec![], Violation::FragmentedControl),
        (b"\x89\x7e\x00\x7e", vec![], Violation::LongControl),
        (b"\x89\x7e\x00\x01", vec![], Violation::LongControl),
        (b"\x8a\x7f", vec![], Violation::LongControl),
        (b"\x88\x7f", vec![], Violation::LongControl),
        (b"\x82\x7f\x80\0\0\0\0\0\0\0", vec![], Violation::Length),
        (
            b"\x82\x7f\xff\xff\xff\xff\xff\xff\xff\xff",
            vec![],
            Violation::Length,
        ),
    ] {
        let found = read([bytes]);
        if found != (before, Some(violation)) {
            failures.push(format!("{}: {found:?}", bytes.escape_ascii()));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn every_truncation_yields_a_prefix_and_no_violation() {
    let payload = [b'p'; MAX_CONTROL];
    let bytes = [
        &b"\x01\x03Hel\x89\x7d"[..],
        &payload,
        b"\x00\x7e\x00\x02lo\x80\x7f\0\0\0\0\0\0\0\x01!\x82\x00\x88\x02\x03\xe8",
    ]
    .concat();
    let (whole, violation) = read([bytes.as_slice()]);
    assert_eq!((whole.len(), violation), (5, None));
    let flat = |pieces: &[Piece]| {
        let payload = |piece: &Piece| match piece {
            Piece::Message { bytes, .. } => bytes.clone(),
            Piece::Control { payload, .. } => payload.clone(),
        };
        pieces.iter().flat_map(payload).collect::<Vec<u8>>()
    };
    for end in 0..bytes.len() {
        let (pieces, violation) = read([&bytes[..end]]);
        assert_eq!(violation, None, "cut at {end}");
        assert!(flat(&whole).starts_with(&flat(&pieces)), "cut at {end}");
        let closed = |piece: &Piece| {
            matches!(
                piece,
                Piece::Control {
                    opcode: Opcode::Close,
                    ..
                }
            )
        };
        assert!(!pieces.iter().any(closed), "cut at {end}");
    }
}

#[test]
fn a_written_head_is_parsed_back() {
    each_row(
        [0, 1, 125, 126, 127, 255, 256, 65_535, 65_536, 100_000],
        |length| {
            let mut bytes = BytesMut::new();
            write_head(&mut bytes, true, Opcode::Binary, length);
            assert!(bytes.len() <= MAX_HEAD);
            bytes.resize(bytes.len() + length, b'x');
            bytes.extend_from_slice(b"\x89\x00");
            let (pieces, violation) = read([&*bytes]);
            let expected = Piece::Message {
                opcode: Opcode::Binary,
                bytes: vec![b'x'; length].into(),
                last: true,
            };
            assert_eq!(pieces, [expected, control(Opcode::Ping, b"")], "{length}");
            assert_eq!(violation, None, "{length}");
        },
    );
}

/// Frames in any order, most of them with a valid first byte.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let first = prop_oneof![
        8 => prop::sample::select(vec![0x01, 0x02, 0x00, 0x80, 0x81, 0x82, 0x88, 0x89, 0x8a]),
        1 => any::<u8>(),
    ];
    let payload = prop::collection::vec(any::<u8>(), 0..300);
    let frame = (first, payload, any::<bool>()).prop_map(|(first, mut payload, short)| {
        if first >= 0x88 && short {
            payload.truncate(MAX_CONTROL);
        }
        let mut head = BytesMut::new();
        write_head(&mut head, true, Opcode::Text, payload.len());
        head[0] = first;
        [&head, payload.as_slice()].concat()
    });
    prop::collection::vec(frame, 0..12).prop_map(|frames| frames.concat())
}

proptest! {
    #[test]
    fn the_result_does_not_depend_on_how_the_bytes_are_cut(
        bytes in frames(),
        tail in prop::collection::vec(any::<u8>(), 0..20),
        cuts in prop::collection::vec(1..40_usize, 1..20),
    ) {
        let bytes = [bytes, tail].concat();
        let mut chunks = Vec::new();
        let mut rest = bytes.as_slice();
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (chunk, after) = rest.split_at((*cut).min(rest.len()));
            chunks.push(chunk);
            rest = after;
        }
        prop_assert_eq!(read(chunks), read([bytes.as_slice()]));
    }
}
