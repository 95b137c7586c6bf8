//! Names and protocols in tunnels, ambiguous framing, leaf certificates and the CA's key.

use std::io::{self, Read, Write};
use std::time::Duration;

use crate::support::{Origin, Proxy, Reply, Setup, assert_closes, frames, handshake, read_reply};

use testkit::each_row;

const HOST: &str = "api.example.com";

#[test]
fn a_server_name_that_differs_from_the_tunnels_host_gets_the_alert_unrecognized_name() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    each_row(["other.example.com", "blocked.example.org"], |sni| {
        let error = proxy.tls_as(HOST, sni, &["h2", "http/1.1"]).unwrap_err();
        assert_eq!(
            alert(&error),
            Some(rustls::AlertDescription::UnrecognisedName),
            "{error}"
        );
    });
    let minted = proxy.metric("proxy_leaf_certificates_total", &["outcome=\"minted\""]);
    assert_eq!(minted, 0.0, "a leaf was minted for a wrong name");
    origin.assert_untouched();
}

#[test]
fn without_sni_the_leaf_is_for_the_host_of_the_connect() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let mut config = proxy.tls_config(&["http/1.1"]);
    config.enable_sni = false;
    let stream = proxy.tunnel(&format!("{HOST}:443"));
    let mut stream = handshake(stream, HOST, config).unwrap();
    write!(stream, "GET /echo HTTP/1.1\r\nHost: {HOST}\r\n\r\n").unwrap();
    assert_eq!(read_reply(&mut stream).unwrap().status, 200);
}

#[test]
fn a_host_field_that_differs_from_the_tunnel_is_misdirected() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    each_row(
        [
            "other.example.com",
            "blocked.example.org",
            "api.example.com:8443",
        ],
        |other| {
            let reply = proxy.https(HOST, format!("GET /echo HTTP/1.1\r\nHost: {other}\r\n\r\n"));
            reply.assert_denied(421, "host_mismatch", "");
        },
    );
    // The proxy checks each request of a tunnel, not only the first.
    let mut stream = proxy.tls(HOST);
    for (host, status) in [(HOST, 200), ("other.example.com", 421)] {
        write!(stream, "GET /echo HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
        assert_eq!(read_reply(&mut stream).unwrap().status, status);
    }
    assert_eq!(origin.seen().len(), 1);
}

#[test]
fn an_authority_that_differs_from_the_tunnel_is_misdirected_over_http2() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let request = http::Request::get("https://other.example.com/echo")
        .body("")
        .unwrap();
    let reply = proxy.h2(HOST, request).unwrap();
    assert_eq!(reply.status, 421);
    assert_eq!(reply.headers["x-proxy-denied"], "host_mismatch");
    let request = http::Request::get(format!("https://{HOST}/echo"))
        .header("host", "other.example.com")
        .body("")
        .unwrap();
    let refused = proxy.h2(HOST, request);
    assert!(refused.is_err() || [400, 421].contains(&refused.unwrap().status.as_u16()));
    assert!(origin.seen().is_empty());
}

#[test]
fn an_absolute_target_for_another_host_is_refused_in_a_tunnel() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let request = format!("GET https://other.example.com/echo HTTP/1.1\r\nHost: {HOST}\r\n\r\n");
    let reply = proxy.https(HOST, request);
    assert!([400, 421].contains(&reply.status), "{reply:?}");
    assert!(origin.seen().is_empty());
}

#[test]
fn another_spelling_of_the_authority_is_not_a_mismatch() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    each_row(
        ["API.Example.com", "api.example.com:443", "api.example.com."],
        |host| {
            let reply = proxy.https(HOST, format!("GET /echo HTTP/1.1\r\nHost: {host}\r\n\r\n"));
            assert_eq!(reply.status, 200, "{host}");
        },
    );
    for seen in origin.seen() {
        assert_eq!(seen.authority, HOST);
    }
}

#[test]
fn plain_http_in_a_tunnel_is_judged() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let mut stream = proxy.tunnel("plain.example.com:80");
    for (host, status) in [("plain.example.com", 200), ("other.example.com", 421)] {
        write!(stream, "GET /echo HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
        assert_eq!(read_reply(&mut stream).unwrap().status, status);
    }
    assert_eq!(origin.only().target, "/echo");
}

#[test]
fn protocols_other_than_tls_and_http_are_refused_in_a_tunnel() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    each_row(
        [
            &b"SSH-2.0-client\r\n"[..],
            b"\x00\x00\x00\x2f\x04\x01binary",
            b"\x16\x02\x00\x00\x00",
            b"EHLO mail.example.com\r\n",
            b"* OK ready\r\n",
        ],
        |first| {
            for step in [first.len(), 1] {
                let reply = refused(&proxy, first, step);
                reply.assert_denied(403, "protocol_not_allowed", "");
            }
        },
    );
    origin.assert_untouched();
}

#[test]
fn http2_in_clear_text_is_refused() {
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let reply = refused(&proxy, preface, preface.len());
    assert!((400..500).contains(&reply.status), "{reply:?}");
    let mut stream = proxy.dial();
    stream.write_all(preface).unwrap();
    let reply = read_reply(&mut stream);
    assert!(reply.is_err() || (400..500).contains(&reply.unwrap().status));
    origin.assert_untouched();
}

#[test]
fn an_upgrade_to_h2c_is_refused() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let upgrade = [
        "Connection: Upgrade, HTTP2-Settings",
        "Upgrade: h2c",
        "HTTP2-Settings: AAMAAABk",
    ];
    let reply = proxy.get("http://plain.example.com/echo", &upgrade);
    assert!((400..500).contains(&reply.status), "{reply:?}");
    assert!(origin.seen().is_empty());
}

#[test]
fn a_connect_inside_a_tunnel_is_refused() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let nested = format!("CONNECT {HOST}:443 HTTP/1.1\r\nHost: {HOST}:443\r\n\r\n");
    proxy
        .https(HOST, &nested)
        .assert_denied(405, "method_not_allowed", "");
    assert!(origin.seen().is_empty());
}

#[test]
fn a_connect_with_a_body_is_refused() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    each_row(
        [
            "Content-Length: 5\r\n\r\nhello",
            "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        ],
        |body| {
            let head = format!("CONNECT {HOST}:443 HTTP/1.1\r\nHost: {HOST}:443\r\n{body}");
            proxy
                .exchange(head)
                .assert_connect_denied(400, "malformed_request", "");
        },
    );
    let empty = format!("CONNECT {HOST}:443 HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
    let mut stream = proxy.dial();
    stream.write_all(empty.as_bytes()).unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
}

#[test]
fn ambiguous_framing_and_malformed_fields_are_refused() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let mut wrong = Vec::new();
    for fields in [
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: +5",
        "Content-Length: 5, 6",
        "Content-Length : 5",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding: identity",
        "Transfer-Encoding: chunked, gzip",
        "Transfer-Encoding : chunked",
        "X-Folded: a\r\n b",
        "X-Nul: a\0b",
        " X-Space: first",
        "Host: api.example.com",
        "Host: other.example.com",
    ] {
        let head = format!("POST /echo HTTP/1.1\r\nHost: {HOST}\r\n{fields}\r\n\r\n");
        let reply = proxy.https(HOST, format!("{head}0\r\n\r\n"));
        if reply.status != 400 {
            wrong.push(format!("{fields:?}: {reply:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(origin.seen().is_empty(), "{:?}", origin.seen());
}

/// hyper accepts all of these heads, and reads the body in one of several possible ways. Only the
/// proxy's own check refuses the heads. A refusal by the proxy has a code in `X-Proxy-Denied`; a
/// refusal by hyper has none.
#[test]
fn framing_that_hyper_accepts_is_refused_by_the_proxys_own_check() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let mut wrong = Vec::new();
    for fields in [
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: chunked, chunked",
        "Transfer-Encoding: identity, chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: xchunked, chunked",
        "Transfer-Encoding: , chunked",
    ] {
        let inside = format!("POST /echo HTTP/1.1\r\nHost: {HOST}\r\n{fields}\r\n\r\n");
        let plain = format!(
            "POST http://plain.example.com/echo HTTP/1.1\r\nHost: plain.example.com\r\n\
             {fields}\r\n\r\n"
        );
        for reply in [
            proxy.https(HOST, format!("{inside}0\r\n\r\n")),
            proxy.exchange(format!("{plain}0\r\n\r\n")),
        ] {
            let ours = reply.header("x-proxy-denied") == Some("malformed_request");
            if reply.status != 400 || !ours {
                wrong.push(format!("{fields:?}: {reply:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(origin.seen().is_empty(), "{:?}", origin.seen());
}

#[test]
fn content_length_and_chunked_never_reach_the_origin_together() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let both = "Content-Length: 4\r\nTransfer-Encoding: chunked";
    let head = format!("POST /echo HTTP/1.1\r\nHost: {HOST}\r\n{both}\r\n\r\n");
    let reply = proxy.https(HOST, format!("{head}1\r\nx\r\n0\r\n\r\n"));
    assert!([200, 400].contains(&reply.status), "{reply:?}");
    for seen in origin.seen() {
        assert!(
            seen.header("content-length").is_none() || seen.header("transfer-encoding").is_none()
        );
        assert_eq!(seen.received(), 1);
    }
}

#[test]
fn a_bare_line_feed_in_a_head_is_refused() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let head =
        format!("GET /echo HTTP/1.1\r\nHost: {HOST}\r\nX-A: b\nHost: other.example.com\r\n\r\n");
    let reply = proxy.https(HOST, head);
    assert_eq!(reply.status, 400, "{reply:?}");
    assert!(origin.seen().is_empty());
}

#[test]
fn line_breaks_and_other_invalid_http2_fields_are_refused() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    each_row(
        [
            ("x-a", "b\r\nx-injected: 1"),
            ("x-a", "b\nc"),
            ("x-a", "b\0c"),
            ("x-a\r\nx-injected", "1"),
            ("x a", "1"),
            ("X-Upper", "1"),
            (":path", "/again"),
            ("connection", "x-a"),
            ("transfer-encoding", "chunked"),
        ],
        |(name, value)| {
            let mut stream = proxy.tls_as(HOST, HOST, &["h2"]).unwrap();
            let mut fields = frames::get(HOST, "/echo");
            fields.extend(frames::literal(name, value));
            stream.write_all(&frames::opening()).unwrap();
            stream.write_all(&frames::request(1, &fields)).unwrap();
            // Waits for RST_STREAM, GOAWAY or the end of the connection: then the proxy has handled
            // the request.
            let _ = frames::read_until_refused(&mut stream);
        },
    );
    assert!(origin.seen().is_empty(), "{:?}", origin.seen());
}

#[test]
fn malformed_and_oversized_heads_get_400_or_431_and_are_audited() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    assert_eq!(proxy.exchange("NONSENSE\r\n\r\n").status, 400);
    assert_eq!(
        proxy
            .exchange("GET /internal/health HTTP/1.1\r\n\r\n")
            .status,
        400
    );
    let huge = format!("X-Huge: {}", "a".repeat(100 * 1024));
    assert_eq!(
        proxy.get("http://plain.example.com/echo", &[&huge]).status,
        431
    );
    origin.assert_untouched();
    proxy.audited(serde_json::json!({ "status": 431 }));
    proxy.audited(serde_json::json!({ "status": 400 }));
    assert_eq!(proxy.https(HOST, "NONSENSE\r\n\r\n").status, 400);
    proxy.audited(serde_json::json!({ "status": 400, "host": HOST, "port": 443 }));
}

#[test]
fn leaves_last_at_most_25_hours_and_have_random_serials_and_another_key_than_the_ca() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let mut serials = Vec::new();
    each_row([HOST, "other.example.com"], |host| {
        let stream = proxy.tls(host);
        let leaf = stream.conn.peer_certificates().unwrap()[0].to_vec();
        let file = proxy.path(&format!("{host}.der"));
        std::fs::write(&file, leaf).unwrap();
        let x509 = |arguments: &[&str]| {
            let fixed = [
                "x509",
                "-inform",
                "DER",
                "-noout",
                "-in",
                file.to_str().unwrap(),
            ];
            proxy.run("openssl", &[&fixed[..], arguments].concat())
        };
        assert_eq!(x509(&["-checkend", "0"]).code, Some(0));
        let most = (25 * 3600).to_string();
        assert_eq!(
            x509(&["-checkend", &most]).code,
            Some(1),
            "the leaf is valid for over 25 hours"
        );
        serials.push(x509(&["-serial"]).ok());
        let ca = ["x509", "-noout", "-pubkey", "-in"];
        let ca = proxy.run(
            "openssl",
            &[&ca[..], &[proxy.ca().to_str().unwrap()]].concat(),
        );
        assert_ne!(x509(&["-pubkey"]).ok(), ca.ok());
    });
    assert_ne!(serials[0], serials[1]);
    assert!(
        serials
            .iter()
            .all(|serial| serial.trim().len() >= "serial=".len() + 16)
    );
}

#[test]
fn the_ca_key_has_mode_0600_and_is_not_in_the_certificate_directory() {
    use std::os::unix::fs::PermissionsExt;
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let private = |dir: &str| {
        let files = std::fs::read_dir(proxy.path(dir)).unwrap().flatten();
        let files = files.map(|file| file.path()).filter(|path| path.is_file());
        let holds_key = |path: &std::path::PathBuf| {
            String::from_utf8_lossy(&std::fs::read(path).unwrap()).contains("PRIVATE KEY")
        };
        files.filter(holds_key).collect::<Vec<_>>()
    };
    assert_eq!(private("certs"), Vec::<std::path::PathBuf>::new());
    let keys = private("data");
    assert!(!keys.is_empty());
    for key in keys {
        let mode = std::fs::metadata(&key).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", key.display());
    }
}

#[test]
fn new_leaf_certificates_are_limited_per_container_and_minute() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.proxy["limits"]["certificates_per_minute"] = 2.into();
    let proxy = setup.start();
    for host in [HOST, "other.example.com", HOST] {
        assert_eq!(proxy.https_get(host, "/echo", &[]).status, 200, "{host}");
    }
    let third = "git.example.com";
    let refused = proxy.fetch(third, "/echo");
    refused.assert_denied(429, "rate_limited", "Rate limit exceeded");
    assert_eq!(refused.json()["upstream"], "certificates");
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait} s");
    assert_eq!(proxy.https_get(HOST, "/echo", &[]).status, 200);
}

#[test]
fn a_passthrough_tunnel_carries_only_tls_with_the_hosts_own_name_and_certificate() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.proxy["tls"]["passthrough"] = serde_json::json!(["other.example.com"]);
    let proxy = setup.start();
    let curl = [
        "--silent",
        "--cacert",
        "upstream-ca.pem",
        "https://other.example.com/echo",
    ];
    proxy.run("curl", &curl).ok();
    assert_eq!(origin.only().authority, "other.example.com");
    let stream = proxy.tunnel("other.example.com:443");
    let error = handshake(stream, HOST, proxy.tls_config(&["h2"])).unwrap_err();
    assert_eq!(
        alert(&error),
        Some(rustls::AlertDescription::UnrecognisedName),
        "{error}"
    );
    let mut stream = proxy.tunnel("other.example.com:443");
    write!(
        stream,
        "GET /echo HTTP/1.1\r\nHost: other.example.com\r\n\r\n"
    )
    .unwrap();
    let reply = read_reply(&mut stream);
    assert!(reply.is_err() || reply.unwrap().status == 403);
    assert_eq!(origin.seen().len(), 1);
}

fn alert(error: &io::Error) -> Option<rustls::AlertDescription> {
    match error.get_ref()?.downcast_ref::<rustls::Error>()? {
        rustls::Error::AlertReceived(alert) => Some(*alert),
        _ => None,
    }
}

/// Sends the first bytes of a tunnel in pieces of `step` bytes, reads the response, and asserts
/// that nothing follows it.
fn refused(proxy: &Proxy, first: &[u8], step: usize) -> Reply {
    let mut stream = proxy.tunnel(&format!("{HOST}:443"));
    stream.set_nodelay(true).unwrap();
    for piece in first.chunks(step) {
        // The proxy may close the connection before the last byte.
        if stream.write_all(piece).is_err() {
            break;
        }
        std::thread::sleep(Duration::from_millis(if step == 1 { 3 } else { 0 }));
    }
    let reply = read_reply(&mut stream).unwrap();
    assert_closes(&mut stream);
    reply
}
