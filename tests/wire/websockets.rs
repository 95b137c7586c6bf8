//! WebSockets of hosts with a credential: the proxy redacts the secret in the upstream's messages.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls::{ServerConnection, StreamOwned};
use serde_json::{Value, json};
use testkit::each_row;
use tungstenite::protocol::{Role, WebSocket};
use tungstenite::{Error, Message};

use crate::streaming::websocket;
use crate::support::{Origin, Proxy, RawOrigin, Setup, Tls, assert_closes, frames, read_reply};

const HOST: &str = "api.example.com";
/// A host without a credential.
const OTHER: &str = "other.example.com";
const SECRET: &str = "sk-live-4f9a1c7be02d58c36e";
const REDACTED: &str = "[REDACTED:vendor]";
/// Delay between two writes, so that the proxy reads them separately.
const APART: Duration = Duration::from_millis(20);
/// A close frame with status code 1002, protocol error.
const PROTOCOL_ERROR: &[u8] = b"\x88\x02\x03\xea";
const DEFLATE: &str = "permessage-deflate; client_max_window_bits";

type Server = StreamOwned<ServerConnection, TcpStream>;

/// Starts a proxy with a credential for [`HOST`], and an upstream that speaks TLS and answers every
/// request with 101 and the header lines `fields`. `script` then gets the stream and the request's
/// head in lower case.
fn start(
    fields: &'static str,
    script: impl Fn(&mut Server, &str) -> io::Result<()> + Send + Sync + 'static,
) -> (Proxy, RawOrigin) {
    let origin = Origin::start();
    let config = Arc::new(origin.tls(&["http/1.1"]));
    let upstream = RawOrigin::start(move |socket| {
        socket.set_nodelay(true)?;
        let session = ServerConnection::new(Arc::clone(&config)).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(session, socket);
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        let head = String::from_utf8_lossy(&head).to_ascii_lowercase();
        write!(
            stream,
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n{fields}\r\n"
        )?;
        script(&mut stream, &head)?;
        stream.conn.send_close_notify();
        stream.flush()
    });
    let mut setup = Setup::new(&origin);
    for host in [HOST, OTHER] {
        setup.proxy["upstream"]["hosts"][host] = json!(upstream.address.to_string());
    }
    setup.env.push(("VENDOR_KEY".into(), SECRET.into()));
    setup.credential(json!({
        "name": "vendor", "hosts": [HOST], "set_headers": { "x-api-key": "${VENDOR_KEY}" },
    }));
    (setup.start(), upstream)
}

/// The first value of a field in a head in lower case; `None` if the head lacks the field.
fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let values = head.lines().filter_map(|line| line.strip_prefix(name));
    values.filter_map(|rest| rest.strip_prefix(": ")).next()
}

/// Requests a WebSocket with the further header lines `fields`, each with its line break. Returns
/// the stream and the response.
fn open(proxy: &Proxy, host: &str, path: &str, fields: &str) -> (Tls, crate::support::Reply) {
    let mut stream = proxy.tls(host);
    let opening = websocket(host, path).replace("\r\n\r\n", &format!("\r\n{fields}\r\n"));
    stream.write_all(opening.as_bytes()).unwrap();
    let reply = read_reply(&mut stream).unwrap();
    (stream, reply)
}

fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![first];
    match payload.len() {
        length @ ..126 => frame.push(length as u8),
        length @ ..65_536 => frame.extend([126, (length >> 8) as u8, length as u8]),
        length => {
            frame.push(127);
            frame.extend((length as u64).to_be_bytes());
        }
    }
    frame.extend(payload);
    frame
}

/// Reads all messages up to the end of the WebSocket, with tungstenite, a strict implementation
/// that the proxy does not use.
fn messages(stream: Tls) -> Vec<Message> {
    let mut client = WebSocket::from_raw_socket(stream, Role::Client, None);
    let mut messages = Vec::new();
    loop {
        match client.read() {
            Ok(message) => messages.push(message),
            Err(Error::ConnectionClosed) => return messages,
            Err(error) => panic!("{error} after {messages:?}"),
        }
    }
}

/// The writes of an upstream that echoes `key`; `how` selects the framing.
fn echoes(how: &str, key: &str) -> Vec<Vec<u8>> {
    let (half, rest) = key.split_at(9);
    let text = format!("before {key} after");
    match how {
        "text" => vec![frame(0x81, text.as_bytes())],
        "binary" => vec![frame(0x82, text.as_bytes())],
        "base64" => vec![frame(0x81, STANDARD.encode(key).as_bytes())],
        "fragmented" => vec![
            frame(0x01, format!("before {half}").as_bytes()),
            frame(0x00, b""),
            frame(0x80, format!("{rest} after").as_bytes()),
        ],
        "byte-by-byte" => frame(0x81, key.as_bytes())
            .into_iter()
            .map(|byte| vec![byte])
            .collect(),
        "interleaved" => vec![
            frame(0x02, half.as_bytes()),
            frame(0x89, format!("ping {key}").as_bytes()),
            frame(0x8a, format!("pong {key}").as_bytes()),
            frame(0x80, rest.as_bytes()),
        ],
        "long" => vec![frame(0x82, &[&[b'x'; 200_000], key.as_bytes()].concat())],
        "many" => vec![frame(0x81, key.as_bytes()).repeat(3)],
        "halves" => vec![frame(0x81, half.as_bytes()), frame(0x81, rest.as_bytes())],
        _ => panic!("{how}"),
    }
}

#[test]
fn an_echo_in_a_websocket_message_is_redacted_however_it_is_framed() {
    let (proxy, _upstream) = start("", |stream, head| {
        let how = head.split([' ', '/']).nth(2).unwrap_or_default();
        let key = field(head, "x-api-key").unwrap_or("no key arrived");
        for piece in echoes(how, key) {
            std::thread::sleep(APART);
            stream.write_all(&piece)?;
            stream.flush()?;
        }
        stream.write_all(&frame(0x88, format!("\x10\x01 {key}").as_bytes()))?;
        stream.read(&mut [0; 4096]).map(drop)
    });
    let (half, rest) = SECRET.split_at(9);
    let whole = format!("before {REDACTED} after");
    let mut failures = Vec::new();
    for (how, expected) in [
        ("text", vec![Message::text(&whole)]),
        ("binary", vec![Message::binary(whole.clone())]),
        ("base64", vec![Message::text(REDACTED)]),
        ("fragmented", vec![Message::text(&whole)]),
        ("byte-by-byte", vec![Message::text(REDACTED)]),
        (
            "interleaved",
            vec![
                Message::Ping(format!("ping {REDACTED}").into()),
                Message::Pong(format!("pong {REDACTED}").into()),
                Message::binary(REDACTED),
            ],
        ),
        (
            "long",
            vec![Message::binary(
                [&[b'x'; 200_000], REDACTED.as_bytes()].concat(),
            )],
        ),
        ("many", vec![Message::text(REDACTED); 3]),
        // Each message is searched separately, so halves of the secret in two messages pass.
        ("halves", vec![Message::text(half), Message::text(rest)]),
    ] {
        let (stream, reply) = open(&proxy, HOST, &format!("/{how}"), "");
        assert_eq!(reply.status, 101, "{how}: {reply:?}");
        let mut found = messages(stream);
        let Some(Message::Close(Some(closed))) = found.pop() else {
            panic!("{how}: {found:?}");
        };
        let closed = (u16::from(closed.code), closed.reason.to_string());
        if found != expected || closed != (0x1001, format!(" {REDACTED}")) {
            failures.push(format!("{how}: {found:?}, {closed:?}"));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
    let line = proxy.audited(json!({ "kind": "websocket", "path": "/text", "status": 101 }));
    assert_eq!(
        (&line["credential"], &line["code"]),
        (&json!("vendor"), &Value::Null)
    );
    let sent = whole.len() + REDACTED.len() + 7;
    assert!(line["bytes_out"].as_u64() == Some(sent as u64), "{line}");
}

#[test]
fn frames_that_cannot_be_relayed_close_a_websocket_with_a_credential() {
    let first = || frame(0x82, b"fine");
    let bad: Vec<(&str, Vec<u8>)> = vec![
        ("compressed", frame(0xc1, SECRET.as_bytes())),
        ("masked", b"\x81\x85\0\0\0\0Hello".to_vec()),
        ("reserved opcode", frame(0x83, SECRET.as_bytes())),
        ("no message to continue", frame(0x80, SECRET.as_bytes())),
        ("long ping", frame(0x89, &[b'x'; 126])),
        ("fragmented ping", frame(0x09, SECRET.as_bytes())),
        ("length", b"\x82\x7f\x80\0\0\0\0\0\0\x05Hello".to_vec()),
        ("echo in a close code", frame(0x88, SECRET.as_bytes())),
    ];
    let served = bad.clone();
    let (proxy, _upstream) = start("", move |stream, head| {
        let number = head.split([' ', '/']).nth(2).and_then(|n| n.parse().ok());
        let (_, bad) = &served[number.unwrap_or(usize::MAX)];
        stream.write_all(&[first(), bad.clone(), frame(0x82, SECRET.as_bytes())].concat())?;
        // The upstream stays open until the proxy closes the connection.
        stream.read(&mut [0; 4096]).map(drop)
    });
    let mut failures = Vec::new();
    for (number, (what, _)) in bad.iter().enumerate() {
        let (mut stream, reply) = open(&proxy, HOST, &format!("/{number}"), "");
        assert_eq!(reply.status, 101, "{what}: {reply:?}");
        let mut found = Vec::new();
        let ended = stream.read_to_end(&mut found);
        if ended.is_err() || found != [&first(), PROTOCOL_ERROR].concat() {
            failures.push(format!("{what}: {ended:?} {}", found.escape_ascii()));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
    let outcome = json!({ "kind": "websocket", "path": "/0", "code": "upstream_unreachable" });
    proxy.audited(outcome);
}

#[test]
fn a_client_that_keeps_sending_after_a_websocket_protocol_error_is_disconnected() {
    let (proxy, _upstream) = start("", |stream, _| {
        stream.write_all(b"\xff\xff")?;
        stream.read(&mut [0; 4096]).map(drop)
    });
    let (mut stream, _) = open(&proxy, HOST, "/", "");
    let mut closed = [0; 4];
    stream.read_exact(&mut closed).unwrap();
    assert_eq!(closed, PROTOCOL_ERROR);
    // 40 MB, more than the buffers of both sockets hold.
    let sent = (0..10_000).take_while(|_| stream.write_all(&[0; 4096]).is_ok());
    assert!(sent.count() < 10_000, "the proxy read all 40 MB");
}

#[test]
fn a_websocket_with_a_credential_has_no_extension_and_others_negotiate_theirs() {
    let (proxy, _upstream) = start("", |stream, head| {
        let offered = field(head, "sec-websocket-extensions").unwrap_or("none");
        stream.write_all(&frame(0x81, offered.as_bytes()))?;
        stream.write_all(b"\x88\x00")?;
        stream.read(&mut [0; 4096]).map(drop)
    });
    let offer = format!(
        "Sec-WebSocket-Extensions: {DEFLATE}\r\nSec_WebSocket_Extensions: {DEFLATE}\r\n\
         Sec-WebSocket-Protocol: chat\r\n"
    );
    let mut failures = Vec::new();
    for (host, offered) in [(HOST, "none"), (OTHER, DEFLATE)] {
        let (stream, reply) = open(&proxy, host, "/", &offer);
        assert_eq!(reply.status, 101, "{host}: {reply:?}");
        let found = messages(stream);
        if found.first() != Some(&Message::text(offered)) {
            failures.push(format!("{host}: {found:?}"));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn an_extension_that_was_not_offered_is_refused() {
    let (proxy, _upstream) = start(
        "Sec-WebSocket-Extensions: permessage-deflate\r\n",
        |stream, _| {
            // A compressed frame. It passes on a WebSocket of a host without a credential; on any
            // other, the proxy would close the connection.
            stream.write_all(b"\xc1\x07\xf2\x48\xcd\xc9\xc9\x07\x00")?;
            stream.read(&mut [0; 4096]).map(drop)
        },
    );
    let offer = format!("Sec-WebSocket-Extensions: {DEFLATE}\r\n");
    each_row(
        [(HOST, ""), (HOST, offer.as_str()), (OTHER, "")],
        |(host, offer)| {
            let (_, reply) = open(&proxy, host, "/", offer);
            reply.assert_denied(502, "upstream_unreachable", host);
        },
    );
    let (mut stream, reply) = open(&proxy, OTHER, "/", &offer);
    let agreed = reply.header("sec-websocket-extensions");
    assert_eq!((reply.status, agreed), (101, Some("permessage-deflate")));
    let mut compressed = [0; 9];
    stream.read_exact(&mut compressed).unwrap();
    assert_eq!(&compressed, b"\xc1\x07\xf2\x48\xcd\xc9\xc9\x07\x00");
}

#[test]
fn bytes_of_a_client_on_a_websocket_with_a_credential_arrive_unchanged() {
    let sent = b"\x01\x85\x01\x02\x03\x04Hello\xf3 and what is no frame \xff\xff";
    let (proxy, _upstream) = start("", |stream, _| {
        let mut read = [0; 36];
        stream.read_exact(&mut read)?;
        stream.write_all(&frame(0x82, &read))?;
        assert_eq!(
            stream.read(&mut read)?,
            0,
            "the upstream reads the end of the client's stream"
        );
        stream.write_all(&frame(0x82, b"and the other half still works"))
    });
    let (mut stream, _) = open(&proxy, HOST, "/", "");
    stream.write_all(sent).unwrap();
    let mut echo = [0; 38];
    stream.read_exact(&mut echo).unwrap();
    assert_eq!(echo[2..], sent[..]);
    stream.conn.send_close_notify();
    stream.flush().unwrap();
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    assert_eq!(rest, frame(0x82, b"and the other half still works"));
}

#[test]
fn a_websocket_with_a_credential_ends_with_its_lease() {
    let (proxy, _upstream) = start("", |stream, _| stream.read(&mut [0; 4096]).map(drop));
    let (mut stream, _) = open(&proxy, HOST, "/", "");
    let path = "/internal/containers/sandbox";
    assert_eq!(proxy.admin("DELETE", path, None).status, 200);
    assert_closes(&mut stream);
    proxy.audited(json!({ "kind": "websocket", "outcome": "aborted" }));
}

#[test]
fn a_reload_ends_a_websocket_whose_path_it_denies_and_keeps_the_others() {
    let (proxy, _upstream) = start("", |stream, _| {
        let mut read = [0; 4];
        stream.read_exact(&mut read)?;
        stream.write_all(&read)
    });
    let (mut denied, _) = open(&proxy, OTHER, "/denied", "");
    let (mut kept, _) = open(&proxy, OTHER, "/kept", "");
    let rules = "version: 1\npolicy: { rules: [{ name: no, effect: deny, paths: [^/denied$] }] }\n";
    std::fs::write(proxy.path("config/policy.yaml"), rules).unwrap();
    assert_eq!(proxy.admin("POST", "/internal/reload", None).status, 200);
    assert_closes(&mut denied);
    let mut echo = [0; 4];
    kept.write_all(b"echo").unwrap();
    kept.read_exact(&mut echo).unwrap();
    assert_eq!(&echo, b"echo");
}

#[test]
fn http2_clients_are_offered_no_websockets() {
    const ENABLE_CONNECT_PROTOCOL: &[u8] = &[0, 8];
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let mut stream = proxy.tls_as(HOST, HOST, &["h2"]).unwrap();
    stream.write_all(&frames::opening()).unwrap();
    let mut head = [0; 9];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(head[3], frames::SETTINGS);
    let mut settings = vec![0; usize::from(head[2])];
    stream.read_exact(&mut settings).unwrap();
    let mut names = settings.chunks(6).map(|setting| &setting[..2]);
    assert!(
        names.all(|name| name != ENABLE_CONNECT_PROTOCOL),
        "{settings:?}"
    );
    let fields = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "https"),
        (":authority", HOST),
        (":path", "/websocket"),
        ("sec-websocket-version", "13"),
    ];
    let fields = fields.map(|(name, value)| frames::literal(name, value));
    let request = frames::frame(frames::HEADERS, frames::END_HEADERS, 1, &fields.concat());
    stream.write_all(&request).unwrap();
    assert!(frames::read_until_refused(&mut stream));
    assert!(origin.seen().is_empty());
}
