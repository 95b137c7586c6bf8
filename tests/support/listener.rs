//! Requests, written as bytes, on Unix sockets that each belong to one container.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::exchange::{Reply, read_reply};
use super::{Proxy, SOON, eventually};

/// DNS response codes (RFC 1035, section 4.1.1).
pub const NOERROR: u8 = 0;
pub const SERVFAIL: u8 = 2;
pub const NXDOMAIN: u8 = 3;
pub const REFUSED: u8 = 5;

/// Read timeout of a connection.
const TIMEOUT: Duration = Duration::from_secs(20);

impl Proxy {
    /// Registers a container with a Unix socket as its listener, waits until the socket exists, and
    /// returns its path. `more` are further members of the registration.
    pub fn own_listener(&self, id: &str, more: Value) -> PathBuf {
        let mut body = json!({ "listener": "unix", "container_id": id, "repos": [] });
        for (key, value) in more.as_object().unwrap() {
            body[key] = value.clone();
        }
        let reply = self.admin("POST", "/internal/containers", Some(body));
        assert_eq!(reply.status, 201, "{}", reply.text());
        let socket = PathBuf::from(reply.json()["socket"].as_str().unwrap());
        eventually("the socket exists", SOON, || socket.exists());
        socket
    }
}

/// Connects to a listener.
pub fn connect(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    stream
}

/// Sends bytes and reads one response.
pub fn send(stream: &mut UnixStream, bytes: &[u8]) -> Reply {
    // A denial may close the connection while a body is being sent.
    let _ = stream.write_all(bytes);
    read_reply(stream).unwrap()
}

/// An HTTP/1.1 request in origin form, with `Host` and `Content-Length`. `fields` are further
/// header lines, each with its CRLF.
pub fn origin_form(method: &str, path: &str, fields: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\n{fields}content-length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// A POST of a DNS message to `/dns-query` (RFC 8484).
pub fn dns_query(message: &[u8]) -> Vec<u8> {
    let fields = "content-type: application/dns-message\r\n";
    origin_form("POST", "/dns-query", fields, message)
}

/// A DNS query for the A records of a name, with the id 0x1234.
pub fn question(name: &str) -> Vec<u8> {
    let mut message = b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0".to_vec();
    for label in name.split('.') {
        message.push(u8::try_from(label.len()).unwrap());
        message.extend(label.as_bytes());
    }
    message.extend(b"\0\0\x01\0\x01");
    message
}

/// The RCODE of the DNS response in an HTTP response. Panics unless the status is 200 and the
/// fields are those of a DNS message.
#[track_caller]
pub fn response_code(reply: &Reply) -> u8 {
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(reply.only("content-type"), Some("application/dns-message"));
    assert_eq!(reply.only("cache-control"), Some("no-store"));
    assert_eq!(reply.body[2] & 0x80, 0x80, "the QR bit is not set");
    reply.body[3] & 15
}

/// Reads until the connection ends, also by a reset; panics if the read times out first.
#[track_caller]
pub fn assert_ends(stream: &mut UnixStream) {
    let mut rest = Vec::new();
    if let Err(error) = stream.read_to_end(&mut rest) {
        assert_ne!(
            error.kind(),
            ErrorKind::WouldBlock,
            "the connection is still open"
        );
    }
}
