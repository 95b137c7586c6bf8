//! Denials of malformed messages, tunnels and handshakes:
//!
//! - malformed HTTP heads and DNS messages,
//! - tunnels with a protocol or a server name that the proxy does not accept there,
//! - handshakes in which the client rejects the certificate.

use std::io::Write;
use std::net::{Ipv4Addr, Shutdown};

use addons::contract::Code;

use super::recorder::Recorder;
use super::request_spec::{Ingress, RequestSpec, readable};
use super::send::{Question, exchange, rest};
use crate::support::{Proxy, handshake, tls_config_trusting};

const HOST: &str = "open.example.com";

pub fn record(recorder: &mut Recorder) {
    heads(recorder);
    protocols(recorder);
    handshakes(recorder);
    rejections(recorder);
    questions(recorder);
}

/// Sends bytes on a new connection; returns them and the response as text.
fn by_hand(proxy: &Proxy, sent: &[u8]) -> (String, String) {
    (quoted("", sent), exchange(&mut proxy.dial(), sent, false))
}

/// Sends bytes in a tunnel; returns them and everything up to the connection's end as text.
fn in_tunnel(proxy: &Proxy, host: &str, sent: &[u8]) -> (String, String) {
    let mut stream = proxy.tunnel(&format!("{host}:443"));
    let _ = stream.write_all(sent);
    let got = rest(&mut stream);
    (quoted(&format!("in a tunnel to {host}:443\n"), sent), got)
}

/// The transcript of sent bytes, after `prefix`.
fn quoted(prefix: &str, sent: &[u8]) -> String {
    let mut shown = prefix.to_owned();
    for line in readable(sent).lines() {
        shown += &format!("> {line}\n");
    }
    shown
}

fn heads(recorder: &mut Recorder) {
    let code = Code::MalformedRequest;
    for (name, head) in [
        (
            "",
            "GET /echo HTTP/1.1\r\nhost: open-plain.example.com\r\n\r\n",
        ),
        (
            "ftp",
            "GET ftp://open.example.com/ HTTP/1.1\r\nhost: open.example.com\r\n\r\n",
        ),
        (
            "two-hosts",
            "GET http://open-plain.example.com/ HTTP/1.1\r\nhost: open-plain.example.com\r\n\
             host: other.example.com\r\n\r\n",
        ),
        (
            "no-host",
            "GET http://open-plain.example.com/ HTTP/1.1\r\n\r\n",
        ),
        ("no-head", "no head at all\r\n\r\n"),
        (
            "two-lengths",
            "POST http://open-plain.example.com/ HTTP/1.1\r\nhost: open-plain.example.com\r\n\
             content-length: 1\r\ncontent-length: 2\r\n\r\na",
        ),
    ] {
        recorder.row(code, Ingress::Plain, name, |proxy| {
            by_hand(proxy, head.as_bytes())
        });
    }
    let long = "a".repeat(70_000);
    let long = format!("GET http://{HOST}/ HTTP/1.1\r\nhost: {HOST}\r\nx-long: {long}\r\n\r\n");
    recorder.row(code, Ingress::Plain, "long-head", |proxy| {
        by_hand(proxy, long.as_bytes())
    });
    for (name, head) in [
        ("", "CONNECT nowhere HTTP/1.1\r\nhost: nowhere\r\n\r\n"),
        (
            "body",
            "CONNECT open.example.com:443 HTTP/1.1\r\nhost: open.example.com\r\n\
             content-length: 2\r\n\r\nhi",
        ),
        (
            "bad-host",
            "CONNECT a_b..example.com:443 HTTP/1.1\r\nhost: open.example.com\r\n\r\n",
        ),
    ] {
        recorder.row(code, Ingress::Connect, name, |proxy| {
            by_hand(proxy, head.as_bytes())
        });
    }
    let head = b"GET /echo HTTP/1.1\r\nhost: open.example.com\r\nhost: open.example.com\r\n\r\n";
    recorder.row(code, Ingress::Http1, "two-hosts", |proxy| {
        tls_by_hand(proxy, head)
    });
    recorder.row(code, Ingress::Http1, "no-head", |proxy| {
        tls_by_hand(proxy, b"no head\r\n\r\n")
    });
    let websocket = RequestSpec::http1("git")
        .websocket()
        .path("/acme/..%2fother/live");
    recorder.deny(code, Ingress::WebSocket, "", &websocket);
}

fn tls_by_hand(proxy: &Proxy, sent: &[u8]) -> (String, String) {
    let answer = exchange(&mut proxy.tls(HOST), sent, false);
    (
        quoted(&format!("in a tunnel to {HOST}:443\n"), sent),
        answer,
    )
}

fn protocols(recorder: &mut Recorder) {
    let code = Code::ProtocolNotAllowed;
    let upgrade = |spec: RequestSpec| spec.field("connection", "upgrade").field("upgrade", "h2c");
    recorder.deny(
        code,
        Ingress::Plain,
        "",
        &upgrade(RequestSpec::plain("open")),
    );
    recorder.deny(
        code,
        Ingress::Http1,
        "",
        &upgrade(RequestSpec::http1("open")),
    );
    for (name, host, sent) in [
        ("", HOST, "SSH-2.0-OpenSSH_9.2\r\n"),
        (
            "http2-in-clear-text",
            HOST,
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ),
        (
            "passthrough",
            "pass.example.com",
            "GET / HTTP/1.1\r\nhost: pass.example.com\r\n\r\n",
        ),
    ] {
        recorder.row(code, Ingress::Tls, name, |proxy| {
            in_tunnel(proxy, host, sent.as_bytes())
        });
    }
    let connect = RequestSpec::http1("open")
        .method("CONNECT")
        .path("open.example.com:443");
    recorder.deny(Code::MethodNotAllowed, Ingress::Http1, "connect", &connect);
}

fn handshakes(recorder: &mut Recorder) {
    for (name, host) in [("", HOST), ("passthrough", "pass.example.com")] {
        recorder.row(Code::HostMismatch, Ingress::Tls, name, |proxy| {
            let stream = proxy.tunnel(&format!("{host}:443"));
            let config = proxy.tls_config(&["http/1.1"]);
            let ended = handshake(stream, "other.example.com", config).err();
            let asked = format!("in a tunnel to {host}:443\nTLS for other.example.com\n");
            (asked, format!("[{}]\n", ended.unwrap()))
        });
    }
    // A handshake record whose message is not a ClientHello, and one whose ClientHello is too long.
    for (name, sent) in [
        ("", &b"\x16\x03\x01\x00\x04\x02\x00\x00\x00"[..]),
        ("long-hello", b"\x16\x03\x01\x00\x04\x01\xff\xff\xff"),
    ] {
        recorder.row(Code::MalformedRequest, Ingress::Tls, name, |proxy| {
            in_tunnel(proxy, HOST, sent)
        });
    }
}

fn rejections(recorder: &mut Recorder) {
    let code = Code::ClientRejectedCertificate;
    recorder.row(code, Ingress::Tls, "unknown-ca", |proxy| {
        let stream = proxy.tunnel(&format!("{HOST}:443"));
        let other_ca = std::fs::read(proxy.path("upstream-ca.pem")).unwrap();
        let mut session = client(&other_ca);
        let mut stream = stream;
        let ended = std::iter::repeat_with(|| session.complete_io(&mut stream))
            .find_map(Result::err)
            .unwrap();
        // Sends the alert.
        let _ = session.write_tls(&mut stream);
        (trusting("another CA"), format!("[{ended}]\n"))
    });
    recorder.row(code, Ingress::Tls, "closed-in-the-handshake", |proxy| {
        let mut stream = proxy.tunnel(&format!("{HOST}:443"));
        let mut session = client(&std::fs::read(proxy.ca()).unwrap());
        session.write_tls(&mut stream).unwrap();
        // Waits for the header of the server's first record.
        let mut begun = [0; 5];
        std::io::Read::read_exact(&mut stream, &mut begun).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let _ = rest(&mut stream);
        (
            trusting("nothing that it is shown"),
            "[the client closed]\n".to_owned(),
        )
    });
    recorder.row(code, Ingress::Tls, "closed-after-the-handshake", |proxy| {
        let mut stream = proxy.tls(HOST);
        stream.conn.send_close_notify();
        stream.flush().unwrap();
        let _ = rest(&mut stream);
        (
            trusting("nothing that it is shown"),
            "[the client closed]\n".to_owned(),
        )
    });
}

fn trusting(what: &str) -> String {
    format!("in a tunnel to {HOST}:443\nTLS by a client that trusts {what}\n")
}

fn client(ca: &[u8]) -> rustls::ClientConnection {
    let config = tls_config_trusting(ca, &["http/1.1"]);
    let name = rustls::pki_types::ServerName::try_from(HOST).unwrap();
    rustls::ClientConnection::new(config.into(), name).unwrap()
}

fn questions(recorder: &mut Recorder) {
    let code = Code::MalformedRequest;
    for (name, message) in [
        ("", &b"\x12\x34\x01\0\0\0\0\0\0\0\0\0"[..]),
        (
            "chaos",
            b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x01a\0\0\x01\0\x03",
        ),
        (
            "no-host-name",
            b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x02a_\0\0\x01\0\x01",
        ),
        (
            "any",
            b"\x12\x34\x01\0\0\x01\0\0\0\0\0\0\x01a\0\0\xff\0\x01",
        ),
        (
            "update",
            b"\x12\x34\x29\0\0\x01\0\0\0\0\0\0\x01a\0\0\x01\0\x01",
        ),
    ] {
        for tcp in [false, true] {
            let from = Ipv4Addr::LOCALHOST;
            let message = message.to_vec();
            recorder.deny_dns(code, name, &Question { from, tcp, message });
        }
    }
}
