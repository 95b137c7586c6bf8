use addons::contract::{BodyFilter, BodyOut, Code, Verdict};
use http::HeaderMap;
use proptest::prelude::*;

use super::*;

const SECRET: &str = "sk-live-4f9a";
const REPLACEMENT: &str = "[REDACTED:vendor]";

/// Replaces the secret, and holds back bytes that may be its beginning.
#[derive(Default)]
struct Replace(Vec<u8>);

impl BodyFilter for Replace {
    fn chunk(&mut self, chunk: Bytes, out: &mut BodyOut) -> Verdict {
        if chunk.starts_with(b"deny") {
            return Err(Denial::new(Code::RuleDenied, "no"));
        }
        self.0.extend_from_slice(&chunk);
        while let Some(at) = position(&self.0, SECRET) {
            let after = self.0.split_off(at + SECRET.len());
            self.0.truncate(at);
            out.push(std::mem::replace(&mut self.0, after).into());
            out.push(REPLACEMENT.into());
        }
        let begins = |from: &usize| SECRET.as_bytes().starts_with(&self.0[*from..]);
        let held = (0..=self.0.len()).find(begins).unwrap();
        let held = self.0.split_off(held);
        out.push(std::mem::replace(&mut self.0, held).into());
        Ok(())
    }

    fn end(&mut self, out: &mut BodyOut, _trailers: Option<&mut HeaderMap>) -> Verdict {
        out.push(std::mem::take(&mut self.0).into());
        Ok(())
    }
}

fn position(bytes: &[u8], text: &str) -> Option<usize> {
    bytes.windows(text.len()).position(|w| w == text.as_bytes())
}

fn messages() -> Messages {
    Messages::new(vec![Box::new(|| Box::new(Replace::default()))])
}

fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut head = BytesMut::new();
    write_head(&mut head, true, Opcode::Text, payload.len());
    head[0] = first;
    [&head, payload].concat()
}

/// Returns the bytes that the client gets for each chunk.
fn sent(chunks: &[&[u8]]) -> Vec<Vec<u8>> {
    let mut messages = messages();
    let mut read = |chunk: &&[u8]| {
        let mut out = BytesMut::new();
        messages
            .read(Bytes::copy_from_slice(chunk), &mut out)
            .unwrap();
        out.to_vec()
    };
    chunks.iter().map(&mut read).collect()
}

#[test]
fn only_whole_echoes_are_replaced_in_messages_and_control_frames() {
    let (half, rest) = SECRET.split_at(5);
    let clean = format!("<{REPLACEMENT}>");
    let whole = frame(0x81, format!("<{SECRET}>").as_bytes());
    let mut failures = Vec::new();
    for (what, chunks, expected) in [
        (
            "text in one frame",
            vec![whole.clone()],
            vec![frame(0x81, clean.as_bytes())],
        ),
        (
            "binary in one frame",
            vec![frame(0x82, format!("<{SECRET}>").as_bytes())],
            vec![frame(0x82, clean.as_bytes())],
        ),
        (
            "a frame that arrives in two pieces",
            vec![whole[..8].to_vec(), whole[8..].to_vec()],
            vec![
                frame(0x01, b"<"),
                frame(0x80, format!("{REPLACEMENT}>").as_bytes()),
            ],
        ),
        (
            "an echo across two fragments",
            vec![
                frame(0x01, format!("<{half}").as_bytes()),
                frame(0x80, format!("{rest}>").as_bytes()),
            ],
            vec![
                frame(0x01, b"<"),
                frame(0x80, format!("{REPLACEMENT}>").as_bytes()),
            ],
        ),
        (
            "an echo across fragments with a ping between them",
            vec![
                frame(0x02, half.as_bytes()),
                frame(0x89, b"are you there"),
                frame(0x00, b""),
                frame(0x80, rest.as_bytes()),
            ],
            vec![
                vec![],
                frame(0x89, b"are you there"),
                vec![],
                frame(0x82, REPLACEMENT.as_bytes()),
            ],
        ),
        (
            "only the beginning of an echo",
            vec![
                frame(0x01, half.as_bytes()),
                frame(0x80, b""),
                frame(0x81, rest.as_bytes()),
            ],
            vec![
                vec![],
                frame(0x81, half.as_bytes()),
                frame(0x81, rest.as_bytes()),
            ],
        ),
        (
            "empty messages",
            vec![frame(0x81, b""), frame(0x02, b""), frame(0x80, b"")],
            vec![frame(0x81, b""), vec![], frame(0x82, b"")],
        ),
        (
            "control frames",
            vec![
                frame(0x89, SECRET.as_bytes()),
                frame(0x8a, SECRET.as_bytes()),
                frame(0x88, format!("\x03\x0b{SECRET}").as_bytes()),
            ],
            vec![
                frame(0x89, REPLACEMENT.as_bytes()),
                frame(0x8a, REPLACEMENT.as_bytes()),
                frame(0x88, format!("\x03\x0b{REPLACEMENT}").as_bytes()),
            ],
        ),
    ] {
        let found = sent(&chunks.iter().map(Vec::as_slice).collect::<Vec<_>>());
        if found != expected {
            failures.push(format!("{what}: {found:?}"));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn bytes_after_a_close_frame_are_discarded() {
    let closing = frame(0x88, b"\x03\xe8");
    let after = [closing.clone(), frame(0x81, b"more"), b"\xff\xff".to_vec()].concat();
    assert_eq!(sent(&[&after, b"more"]), [closing, vec![]]);
}

#[test]
fn a_control_frame_that_grows_is_cut_between_characters() {
    let payload = format!("\x03\x0b{SECRET}{}", "é".repeat(55));
    let closing = &sent(&[&frame(0x88, payload.as_bytes())])[0];
    let reason = std::str::from_utf8(&closing[4..]).unwrap();
    assert!((MAX_CONTROL - 4..=MAX_CONTROL - 2).contains(&reason.len()));
    assert!(reason.starts_with(&format!("{REPLACEMENT}é")), "{reason}");
    assert_eq!(
        closing[..2],
        [0x88, u8::try_from(reason.len() + 2).unwrap()]
    );
    let bytes = [SECRET.as_bytes(), &[0x80; MAX_CONTROL - SECRET.len()]].concat();
    let ping = &sent(&[&frame(0x89, &bytes)])[0];
    assert_eq!(
        ping.len(),
        2 + REPLACEMENT.len() - 1,
        "cut before the last byte that begins a character"
    );
}

#[test]
fn a_failure_appends_a_close_frame_and_has_a_denial() {
    let host = Host::parse("api.example.com").unwrap();
    let mut failures = Vec::new();
    for (bytes, expected, code) in [
        (
            [frame(0x81, b"fine"), frame(0xc1, b"not fine")].concat(),
            [frame(0x81, b"fine"), frame(0x88, b"\x03\xea")].concat(),
            Code::UpstreamUnreachable,
        ),
        (
            [frame(0x01, b"in the middle of a message"), frame(0x81, b"")].concat(),
            [
                frame(0x01, b"in the middle of a message"),
                frame(0x88, b"\x03\xea"),
            ]
            .concat(),
            Code::UpstreamUnreachable,
        ),
        (
            frame(0x88, b"\x03"),
            frame(0x88, b"\x03\xea"),
            Code::UpstreamUnreachable,
        ),
        (
            frame(0x88, SECRET.as_bytes()),
            frame(0x88, b"\x03\xea"),
            Code::UpstreamUnreachable,
        ),
        (
            frame(0x88, format!("\x04{SECRET}").as_bytes()),
            frame(0x88, b"\x03\xea"),
            Code::UpstreamUnreachable,
        ),
        (
            frame(0x81, b"deny"),
            frame(0x88, b"\x03\xf0"),
            Code::RuleDenied,
        ),
        (
            frame(0x89, b"deny"),
            frame(0x88, b"\x03\xf0"),
            Code::RuleDenied,
        ),
    ] {
        let mut out = BytesMut::new();
        let failure = messages().read(bytes.clone().into(), &mut out).unwrap_err();
        let found = failure.denial(&host);
        if out != expected || found.code() != code {
            failures.push(format!("{}: {out:?}, {found:?}", bytes.escape_ascii()));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

/// One message, or one control frame: its first byte, and its payload in fragments.
type Sent = (u8, Vec<Vec<u8>>);

/// Encodes the messages. The control frames that are listed after a message are sent directly after
/// the message's first fragment.
fn frames_of(sent: &[Sent]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut open: Vec<Vec<u8>> = Vec::new();
    for (first, fragments) in sent {
        if *first & 0x08 != 0 {
            let mut payload = fragments.concat();
            payload.truncate(MAX_CONTROL);
            bytes.extend(frame(*first, &payload));
            continue;
        }
        bytes.extend(open.drain(..).flatten());
        let count = fragments.len();
        let frames = fragments.iter().enumerate().map(|(at, fragment)| {
            let opcode = if at == 0 { *first & 0x0f } else { 0 };
            let fin = if at + 1 == count { 0x80 } else { 0 };
            frame(fin | opcode, fragment)
        });
        let mut frames = frames.collect::<Vec<_>>();
        open = frames.split_off(1);
        bytes.extend(frames.concat());
    }
    bytes.extend(open.concat());
    bytes
}

/// Parses the bytes into whole messages and control frames.
fn read_back(mut bytes: Bytes) -> Vec<(Opcode, Vec<u8>)> {
    let mut reader = FrameReader::default();
    let (mut found, mut message) = (Vec::new(), Vec::new());
    while let Some(piece) = reader.read(&mut bytes).unwrap() {
        match piece {
            Piece::Control { opcode, payload } => found.push((opcode, payload.to_vec())),
            Piece::Message {
                opcode,
                bytes,
                last,
            } => {
                message.extend(bytes);
                if last {
                    found.push((opcode, std::mem::take(&mut message)));
                }
            }
        }
    }
    found
}

fn replaced(mut payload: Vec<u8>) -> Vec<u8> {
    let mut clean = Vec::new();
    while let Some(at) = position(&payload, SECRET) {
        clean.extend(payload.drain(..at + SECRET.len()).take(at));
        clean.extend(REPLACEMENT.as_bytes());
    }
    clean.extend(payload);
    clean
}

fn any_sent() -> impl Strategy<Value = Vec<Sent>> {
    let fragment = prop_oneof![
        Just(SECRET.as_bytes().to_vec()),
        (0..SECRET.len()).prop_map(|at| SECRET.as_bytes()[at..].to_vec()),
        (0..SECRET.len()).prop_map(|at| SECRET.as_bytes()[..at].to_vec()),
        prop::collection::vec(any::<u8>(), 0..20),
    ];
    let first = prop::sample::select(vec![0x81_u8, 0x82, 0x89, 0x8a]);
    let one = (first, prop::collection::vec(fragment, 1..6));
    prop::collection::vec(one, 1..8)
}

proptest! {
    #[test]
    fn messages_arrive_complete_in_order_and_without_the_secret(
        sent in any_sent(),
        cuts in prop::collection::vec(1..30_usize, 1..10),
    ) {
        let bytes = frames_of(&sent);
        let expected = read_back(bytes.clone().into());
        let expected: Vec<_> = expected
            .into_iter()
            .map(|(opcode, payload)| {
                let mut clean = replaced(payload);
                if matches!(opcode, Opcode::Ping | Opcode::Pong) {
                    clean = shortened(&clean).to_vec();
                }
                (opcode, clean)
            })
            .collect();
        let mut messages = messages();
        let mut out = BytesMut::new();
        let mut rest = bytes.as_slice();
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (chunk, after) = rest.split_at((*cut).min(rest.len()));
            messages.read(Bytes::copy_from_slice(chunk), &mut out).unwrap();
            rest = after;
        }
        prop_assert_eq!(read_back(out.freeze()), expected);
    }
}
