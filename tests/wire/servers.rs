//! Servers and clients as they are: heads with many lines, long URLs, statuses without a name,
//! connections that end early, wrong labels of bodies, certificates and ciphers of old servers.

use std::fmt::Write as _;
use std::io::{self, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustls::{ServerConnection, StreamOwned};
use serde_json::json;
use testkit::each_row;

use crate::support::{
    Origin, Proxy, RawOrigin, SOON, Setup, assert_closes, eventually, free_address, read_reply,
    read_request,
};

const HOST: &str = "api.example.com";
const RAW: &str = "raw.example.com";
const SECRET: &str = "sk-live-4f9a1c7be02d58c36e";

/// Starts a proxy for which [`RAW`] is at this address.
fn proxy_for(origin: &Origin, address: SocketAddr) -> Proxy {
    let mut setup = Setup::new(origin);
    setup.host(RAW, address);
    setup.start()
}

/// Starts an upstream that speaks TLS with the origin's certificates, reads one head and runs
/// `script`. Closes the connection without a close_notify.
fn tls_upstream(
    origin: &Origin,
    script: impl Fn(&mut StreamOwned<ServerConnection, TcpStream>) -> io::Result<()>
    + Send
    + Sync
    + 'static,
) -> RawOrigin {
    let config = Arc::new(origin.tls(&["http/1.1"]));
    RawOrigin::start(move |socket| {
        // Otherwise the kernel may hold the answer back until the session tickets are acknowledged,
        // and drop it with the reset.
        socket.set_nodelay(true)?;
        let session = ServerConnection::new(Arc::clone(&config)).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(session, socket);
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        script(&mut stream)
    })
}

fn lines(count: usize) -> String {
    (0..count).fold(String::new(), |mut lines, number| {
        write!(lines, "x-{number}: {number}\r\n").unwrap();
        lines
    })
}

/// Answers with as many lines as the path says, and with the number of lines of the request.
fn many_lines() -> RawOrigin {
    RawOrigin::start(|stream| {
        let mut reader = BufReader::new(stream);
        while let Some(request) = read_request(&mut reader)? {
            let mut words = request.line.split(['/', ' ']);
            let count = words.nth(2).unwrap().parse().unwrap();
            let (seen, more) = (request.fields.len(), lines(count));
            write!(
                reader.get_mut(),
                "HTTP/1.1 200 OK\r\nx-seen: {seen}\r\n{more}Content-Length: 0\r\n\r\n"
            )?;
        }
        Ok(())
    })
}

#[test]
fn heads_with_up_to_256_lines_pass_both_ways() {
    let origin = Origin::start();
    let raw = many_lines();
    let proxy = proxy_for(&origin, raw.address);
    let get = |sent: usize, wanted: usize| {
        let more = lines(sent);
        proxy.exchange(format!(
            "GET http://{RAW}/{wanted} HTTP/1.1\r\nHost: {RAW}\r\n{more}\r\n"
        ))
    };
    each_row([99, 100, 101, 200, 250], |count| {
        let reply = get(count, count);
        assert_eq!(reply.status, 200, "{count}");
        assert_eq!(reply.only("x-seen"), Some((count + 1).to_string().as_str()));
        let last = format!("x-{}", count - 1);
        assert!(reply.header(&last).is_some(), "{count}");
    });
    assert_eq!(get(257, 1).status, 431);
    let reply = get(1, 257);
    reply.assert_denied(
        502,
        "upstream_unreachable",
        "raw.example.com sent a response head",
    );
    assert!(
        reply.text().contains("256 header lines"),
        "{}",
        reply.text()
    );
    // The origin's own server takes 100 lines.
    let reply = proxy.https_get(HOST, "/echo", &[lines(120).trim_end()]);
    assert_eq!((reply.status, reply.header("x-proxy-denied")), (431, None));
}

#[test]
fn a_long_head_passes_on_a_kept_connection_in_any_pieces() {
    let (origin, raw) = (Origin::start(), many_lines());
    let proxy = proxy_for(&origin, raw.address);
    let head = |method: &str, sent: usize, wanted: usize| {
        let more = lines(sent);
        format!("{method} http://{RAW}/{wanted} HTTP/1.1\r\nHost: {RAW}\r\n{more}\r\n")
    };
    // The lines of each request and of its response, and the length of the pieces that are sent.
    each_row(
        [
            (
                &[(1, 1), (200, 200), (1, 1), (250, 3), (3, 250)][..],
                10_000,
            ),
            (&[(101, 0), (99, 101), (130, 130)], 100),
            (&[(5, 0), (220, 0)], 7),
        ],
        |(requests, length)| {
            let mut stream = proxy.dial();
            for (sent, wanted) in requests {
                for piece in head("GET", *sent, *wanted).as_bytes().chunks(length) {
                    stream.write_all(piece).unwrap();
                }
                let reply = read_reply(&mut stream).unwrap();
                assert_eq!(reply.status, 200, "{sent} {wanted}");
                assert_eq!(reply.only("x-seen"), Some((sent + 1).to_string().as_str()));
                let last = reply.header(&format!("x-{}", wanted.max(&1) - 1));
                assert_eq!(last.is_some(), *wanted > 0, "{sent} {wanted}");
            }
        },
    );
}

#[test]
fn a_post_whose_first_response_has_over_100_lines_is_not_sent_again_and_later_ones_pass() {
    let (origin, raw) = (Origin::start(), many_lines());
    let proxy = proxy_for(&origin, raw.address);
    let post = |wanted: usize| {
        proxy.exchange(format!(
            "POST http://{RAW}/{wanted} HTTP/1.1\r\nHost: {RAW}\r\nContent-Length: 0\r\n\r\n"
        ))
    };
    assert_eq!(post(98).status, 200);
    let refused = post(101);
    refused.assert_denied(
        502,
        "upstream_unreachable",
        "raw.example.com has received the request",
    );
    assert!(
        refused.text().contains("later responses"),
        "{}",
        refused.text()
    );
    each_row([101, 250], |wanted| {
        let reply = post(wanted);
        assert_eq!(reply.status, 200, "{wanted}: {}", reply.text());
    });
    assert_eq!(post(257).status, 502);
}

#[test]
fn a_url_over_8_kib_is_refused_with_the_limit() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let path = |length: usize| format!("/echo?{}", "a".repeat(length - "/echo?".len() + 1));
    each_row(
        [(8192, 200), (8193, 400), (30_000, 400)],
        |(length, status)| {
            let path = path(length);
            let plain = proxy.get(&format!("http://plain.example.com{path}"), &[]);
            let tunnel = proxy.https_get(HOST, &path, &[]);
            let request = http::Request::get(format!("https://{HOST}{path}")).body("");
            let http2 = proxy.h2(HOST, request.unwrap()).unwrap();
            assert_eq!(
                [plain.status, tunnel.status, http2.status.as_u16()],
                [status; 3],
                "{length}"
            );
            let mut clear = proxy.tunnel("plain.example.com:80");
            write!(
                clear,
                "GET {path} HTTP/1.1\r\nHost: plain.example.com\r\n\r\n"
            )
            .unwrap();
            assert_eq!(read_reply(&mut clear).unwrap().status, status, "{length}");
            if status == 400 {
                plain.assert_denied(
                    400,
                    "malformed_request",
                    "Malformed request: the path and query have",
                );
            }
        },
    );
    proxy.audited(json!({ "status": 400, "code": "malformed_request", "outcome": "denied" }));
}

#[test]
fn a_host_name_with_an_underscore_is_refused_by_that_name() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let sentence = "Malformed request: the host name has an underscore";
    let reply = proxy.get("http://my_service.example.com/", &[]);
    reply.assert_denied(400, "malformed_request", sentence);
    let (reply, _) = proxy.connect("my_service.example.com:443");
    reply.assert_connect_denied(400, "malformed_request", sentence);
}

#[test]
fn a_status_without_a_registered_name_has_an_empty_reason() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    each_row([529, 520, 599, 218, 419], |status| {
        let path = format!("/status/{status}");
        for reply in [
            proxy.https_get(HOST, &path, &[]),
            proxy.get(&format!("http://plain.example.com{path}"), &[]),
        ] {
            assert_eq!((reply.status, reply.reason.as_str()), (status, ""));
        }
    });
    assert_eq!(
        proxy.https_get(HOST, "/status/404", &[]).reason,
        "Not Found"
    );
}

/// The upstream reads only the head, so the rest of the upload resets its connection.
#[test]
fn the_answer_of_an_origin_that_refuses_an_upload_and_closes_is_delivered() {
    const REFUSAL: &[u8] = b"HTTP/1.1 401 Unauthorized\r\nConnection: close\r\n\
                             Content-Length: 2\r\n\r\nno";
    let origin = Origin::start();
    let plain = RawOrigin::start(|mut stream| {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            head.push(byte[0]);
        }
        stream.write_all(REFUSAL)
    });
    let tls = tls_upstream(&origin, |stream| stream.write_all(REFUSAL));
    let mut setup = Setup::new(&origin);
    setup.host(RAW, plain.address);
    setup.host("tls.example.com", tls.address);
    let proxy = setup.start();
    std::fs::write(proxy.path("upload"), vec![b'a'; 5 << 20]).unwrap();
    each_row(
        [
            (format!("http://{RAW}/"), "--http1.1"),
            ("https://tls.example.com/".to_owned(), "--http1.1"),
            ("https://tls.example.com/".to_owned(), "--http2"),
        ],
        |(url, version)| {
            for expect in ["Expect: 100-continue", "Expect:"] {
                for _ in 0..5 {
                    let sent = [
                        version,
                        "--upload-file",
                        "upload",
                        "--header",
                        expect,
                        url.as_str(),
                    ];
                    let curl = proxy.curl(&sent);
                    assert_eq!(curl.status, 401, "{url} {version} {expect}: {curl:?}");
                }
            }
        },
    );
}

/// Answers the first request of the first connection. Then `end` handles the stream of each
/// connection for which `is_bad` holds; others answer every request. Returns the origin and the
/// number of requests.
fn forgetful(
    is_bad: fn(usize) -> bool,
    end: fn(&mut TcpStream) -> io::Result<()>,
) -> (RawOrigin, Arc<AtomicUsize>) {
    let (requests, connections) = (Arc::new(AtomicUsize::new(0)), AtomicUsize::new(0));
    let counted = Arc::clone(&requests);
    let raw = RawOrigin::start(move |stream| {
        let number = connections.fetch_add(1, Ordering::AcqRel);
        let mut reader = BufReader::new(stream);
        let mut is_first = number == 0;
        while read_request(&mut reader)?.is_some() {
            counted.fetch_add(1, Ordering::AcqRel);
            if is_bad(number) && !is_first {
                return end(reader.get_mut());
            }
            is_first = false;
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
            reader.get_mut().write_all(answer)?;
        }
        Ok(())
    });
    (raw, requests)
}

/// Closes with a reset.
fn reset(stream: &mut TcpStream) -> io::Result<()> {
    socket2::SockRef::from(&*stream).set_linger(Some(Duration::ZERO))
}

#[test]
fn an_idempotent_request_without_a_body_is_sent_once_more_if_its_kept_connection_ends() {
    fn partial_head(stream: &mut TcpStream) -> io::Result<()> {
        stream.write_all(b"HTTP/1.1 2")
    }
    let first: fn(usize) -> bool = |number| number == 0;
    let all: fn(usize) -> bool = |_| true;
    let origin = Origin::start();
    each_row(
        [
            (
                "GET",
                "\r\n",
                first,
                reset as fn(&mut TcpStream) -> _,
                200,
                3,
            ),
            ("GET", "\r\n", first, |_| Ok(()), 200, 3),
            ("HEAD", "\r\n", first, reset, 200, 3),
            ("DELETE", "\r\n", first, reset, 200, 3),
            ("PUT", "Content-Length: 2\r\n\r\nhi", first, reset, 502, 2),
            ("POST", "Content-Length: 0\r\n\r\n", first, reset, 502, 2),
            ("POST", "Content-Length: 2\r\n\r\nhi", first, reset, 502, 2),
            ("PATCH", "Content-Length: 0\r\n\r\n", first, reset, 502, 2),
            // A part of a response has arrived.
            ("GET", "\r\n", first, partial_head, 502, 2),
            // The new connection ends too: a request is repeated only once.
            ("GET", "\r\n", all, reset, 502, 3),
        ],
        |(method, rest, is_bad, end, status, requests)| {
            let (raw, seen) = forgetful(is_bad, end);
            let proxy = proxy_for(&origin, raw.address);
            let mut stream = proxy.dial();
            write!(stream, "GET http://{RAW}/ HTTP/1.1\r\nHost: {RAW}\r\n\r\n").unwrap();
            assert_eq!(read_reply(&mut stream).unwrap().status, 200);
            write!(
                stream,
                "{method} http://{RAW}/ HTTP/1.1\r\nHost: {RAW}\r\n{rest}"
            )
            .unwrap();
            let mut first = [0; 12];
            stream.read_exact(&mut first).unwrap();
            let got = String::from_utf8_lossy(&first).into_owned();
            assert_eq!(got, format!("HTTP/1.1 {status}"), "{method}");
            assert_eq!(seen.load(Ordering::Acquire), requests, "{method}");
        },
    );
}

#[test]
fn a_body_that_breaks_off_is_delivered_and_then_the_client_is_aborted() {
    let origin = Origin::start();
    // Without a length, a body ends with a close_notify, which this upstream does not send.
    let open_ended = "HTTP/1.1 200 OK\r\n\r\nhello";
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n";
    let short = "HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhello";
    let complete = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
    each_row(
        [
            (open_ended, false),
            (chunked, false),
            (short, false),
            (complete, true),
        ],
        |(answer, is_complete)| {
            let raw = tls_upstream(&origin, move |stream| stream.write_all(answer.as_bytes()));
            let mut setup = Setup::new(&origin);
            setup.env.push(("VENDOR_KEY".into(), SECRET.into()));
            for host in [RAW, "guarded.example.com"] {
                setup.host(host, raw.address);
            }
            setup.credential(json!({
                "name": "vendor", "hosts": ["guarded.example.com"], "bearer": "${VENDOR_KEY}",
            }));
            let proxy = setup.start();
            for host in [RAW, "guarded.example.com"] {
                for version in ["--http1.1", "--http2"] {
                    let curl = proxy.curl(&[version, &format!("https://{host}/")]);
                    let text = String::from_utf8_lossy(&curl.body).into_owned();
                    assert_eq!(
                        (curl.status, text.as_str()),
                        (200, "hello"),
                        "{answer} {version}"
                    );
                    assert_eq!(curl.exit == 0, is_complete, "{answer} {version}: {curl:?}");
                }
            }
        },
    );
}

#[test]
fn text_with_a_wrong_encoding_is_scrubbed_and_delivered_on_a_host_with_a_credential() {
    let origin = Origin::start();
    let answer = |encoding: &str, body: &[u8]| {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Encoding: {encoding}\r\n\r\n");
        [head.as_bytes(), body].concat()
    };
    let text = format!("{{\"error\": \"no such key: {SECRET}\"}}");
    let binary = [b"\x01\x02", SECRET.as_bytes()].concat();
    each_row(
        [
            ("gzip", text.as_bytes(), true),
            ("zstd", text.as_bytes(), true),
            ("UTF-8", text.as_bytes(), true),
            ("none", text.as_bytes(), true),
            ("gzip", &binary, false),
            ("aws-chunked", text.as_bytes(), false),
        ],
        |(encoding, body, is_delivered)| {
            let answer = answer(encoding, body);
            let raw = RawOrigin::start(move |mut stream| {
                let _ = stream.read(&mut [0; 4096])?;
                stream.write_all(&answer)
            });
            let mut setup = Setup::new(&origin);
            setup.env.push(("VENDOR_KEY".into(), SECRET.into()));
            setup.host(RAW, raw.address);
            setup
                .credential(json!({ "name": "vendor", "hosts": [RAW], "bearer": "${VENDOR_KEY}" }));
            let proxy = setup.start();
            let curl = proxy.curl(&["--include", &format!("http://{RAW}/")]);
            let got = String::from_utf8_lossy(&curl.body).to_lowercase();
            assert!(!got.contains(SECRET), "{encoding}: {got}");
            if is_delivered {
                assert_eq!(curl.exit, 0, "{encoding}: {curl:?}");
                assert!(
                    got.contains("no such key: [redacted:vendor]"),
                    "{encoding}: {got}"
                );
                assert!(!got.contains("content-encoding"), "{encoding}: {got}");
            } else {
                assert!(curl.exit != 0 || curl.status == 415, "{encoding}: {curl:?}");
            }
        },
    );
}

/// `openssl s_server`, killed on drop.
struct OpenSsl(Child);

impl OpenSsl {
    /// Starts a server with the self-signed certificate `NAME.pem` in `dir`, and waits until it
    /// listens.
    fn start(dir: &std::path::Path, name: &str, address: SocketAddr, more: &[&str]) -> Self {
        let port = address.port().to_string();
        let [certificate, key] = ["pem", "key"].map(|ending| format!("{name}.{ending}"));
        let server = Command::new("openssl")
            .args(["s_server", "-quiet", "-www", "-accept", &port])
            .args(["-cert", &certificate, "-key", &key])
            .args(more)
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let server = Self(server);
        eventually("openssl listens", SOON, || {
            TcpStream::connect(address).is_ok()
        });
        server
    }
}

impl Drop for OpenSsl {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_failed_handshake_says_what_is_wrong_and_what_to_do() {
    let origin = Origin::start();
    let dir = tempfile::TempDir::new().unwrap();
    for (name, more) in [
        ("ca", None),
        ("leaf", Some("basicConstraints=critical,CA:FALSE")),
    ] {
        let made = Command::new("openssl")
            .args([
                "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
            ])
            .args([
                "-subj",
                "/CN=old.example.com",
                "-addext",
                "subjectAltName=DNS:*.example.com",
            ])
            .args(more.iter().flat_map(|more| ["-addext", more]))
            .args([
                "-keyout",
                &format!("{name}.key"),
                "-out",
                &format!("{name}.pem"),
            ])
            .current_dir(dir.path())
            .stderr(Stdio::null())
            .status();
        assert!(made.unwrap().success());
    }
    let leaf = free_address();
    let modern = free_address();
    let cbc = free_address();
    let rsa = free_address();
    let _servers = [
        OpenSsl::start(dir.path(), "leaf", leaf, &[]),
        OpenSsl::start(dir.path(), "ca", modern, &[]),
        OpenSsl::start(
            dir.path(),
            "ca",
            cbc,
            &["-tls1_2", "-cipher", "ECDHE-RSA-AES128-SHA:@SECLEVEL=0"],
        ),
        OpenSsl::start(
            dir.path(),
            "ca",
            rsa,
            &[
                "-tls1_2",
                "-cipher",
                "AES128-GCM-SHA256:AES128-SHA:@SECLEVEL=0",
            ],
        ),
    ];
    let start = |is_trusted: bool| {
        let mut setup = Setup::new(&origin);
        if is_trusted {
            let trusted = setup.dir().join("upstream-ca.pem");
            let own =
                ["ca.pem", "leaf.pem"].map(|name| std::fs::read(dir.path().join(name)).unwrap());
            let all = [origin.ca_pem.as_bytes(), &own[0], &own[1]].concat();
            std::fs::write(&trusted, all).unwrap();
        }
        for (name, address) in [
            ("leaf", leaf),
            ("modern", modern),
            ("cbc", cbc),
            ("rsa", rsa),
        ] {
            setup.host(&format!("{name}.example.com"), address);
        }
        setup.start()
    };
    let (trusting, other) = (start(true), start(false));
    assert_eq!(trusting.fetch("leaf.example.com", "/").status, 200);
    each_row(
        [
            (true, "modern", "CA:TRUE", "make it with CA:FALSE"),
            (
                false,
                "leaf",
                "no CA that the proxy trusts",
                "tls.upstream_ca",
            ),
            (
                true,
                "cbc",
                "CBC ciphers or RSA key exchange",
                "tls.passthrough",
            ),
            (
                true,
                "rsa",
                "CBC ciphers or RSA key exchange",
                "tls.passthrough",
            ),
        ],
        |(is_trusted, name, what, advice)| {
            let proxy = if is_trusted { &trusting } else { &other };
            let host = format!("{name}.example.com");
            let reply = proxy.fetch(&host, "/");
            reply.assert_denied(
                502,
                "upstream_tls",
                &format!("TLS handshake with {host} failed"),
            );
            let text = reply.text();
            assert!(text.contains(what) && text.contains(advice), "{text}");
        },
    );
}

/// After a final response to `Expect: 100-continue`, the proxy must not take the next bytes for the
/// body: a client that was not asked for the body sends none.
#[test]
fn a_request_that_waits_for_100_continue_is_refused_without_reading_its_body() {
    let origin = Origin::start();
    let closed = crate::support::closed_address();
    let proxy = proxy_for(&origin, closed);
    let mut stream = proxy.dial();
    write!(
        stream,
        "POST http://{RAW}/ HTTP/1.1\r\nHost: {RAW}\r\nExpect: 100-continue\r\n\
         Content-Length: 1000\r\n\r\n"
    )
    .unwrap();
    assert_eq!(read_reply(&mut stream).unwrap().status, 502);
    assert_closes(&mut stream);
}
