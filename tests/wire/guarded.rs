//! Ambiguous paths on guarded hosts (those whose paths an addon judges), and removal of request
//! trailers.

use std::io::Write;

use serde_json::json;
use testkit::each_row;

use crate::support::{Origin, Proxy, Setup, frames, read_reply};

const HOST: &str = "api.example.com";
/// Two of the hosts that are guarded by default: github.com, the default of `git.hosts`, and its
/// API.
const GUARDED: [&str; 2] = ["github.com", "api.github.com"];

fn start(origin: &Origin) -> Proxy {
    let mut setup = Setup::new(origin);
    setup.containers.clear();
    for host in GUARDED {
        setup.host(host, origin.https);
    }
    let proxy = setup.start();
    proxy.register_as(json!({
        "container_ip": "127.0.0.1", "container_id": "coder", "repos": ["octocat/Hello-World"],
    }));
    proxy
}

#[test]
fn ambiguous_paths_are_refused_on_guarded_hosts() {
    let origin = Origin::start();
    let proxy = start(&origin);
    each_row(GUARDED, |host| {
        for path in [
            "/octocat/../other/repo/info/refs",
            "/octocat/./Hello-World/info/refs",
            "/octocat/%2e%2e/other/repo/info/refs",
            "/octocat/%2E./other/repo/info/refs",
            "/octocat%2fHello-World/info/refs",
            "/octocat%5Cother/info/refs",
            "/octocat\\other/info/refs",
            "/octocat/%252e%252e/other/info/refs",
            "//octocat/Hello-World/info/refs",
            "/octocat//Hello-World/info/refs",
            "/octocat;x=y/Hello-World/info/refs",
            "/octocat/Hello-World%3bx/info/refs",
            "/octocat/Hello-World%00/info/refs",
            "/octocat/Hello-World%0a/info/refs",
            "/octocat/Hello-World%7f/info/refs",
            "/octocat/%E2%82%AC/info/refs",
            "/octocat/\u{20ac}/info/refs",
            "/octocat/%zz/info/refs",
            "/octocat/%2",
        ] {
            let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n");
            let reply = proxy.https(host, request);
            assert_eq!(reply.status, 400, "{host}{path}: {reply:?}");
            // The HTTP parser may refuse the other paths itself; its responses have no denial code.
            if path.is_ascii() && !path.contains('\\') {
                reply.assert_denied(400, "malformed_request", "");
            }
        }
        let request = http::Request::get(format!("https://{host}/octocat/..%2fother"));
        let reply = proxy.h2(host, request.body("").unwrap()).unwrap();
        assert_eq!(reply.status, 400);
        assert_eq!(reply.headers["x-proxy-denied"], "malformed_request");
    });
    assert!(origin.seen().is_empty(), "{:?}", origin.seen());
}

#[test]
fn a_path_is_sent_upstream_in_the_normal_form_that_was_judged() {
    let origin = Origin::start();
    let proxy = start(&origin);
    let query = "service=git-upload-pack";
    let sent = format!("/%6Fctocat/Hello%2DWorld/info/refs?{query}");
    proxy.https_get("github.com", &sent, &[]);
    let judged = "/octocat/Hello-World/info/refs";
    assert_eq!(origin.only().target, format!("{judged}?{query}"));
    proxy.audited(json!({ "host": "github.com", "path": judged }));
}

#[test]
fn trailers_from_the_client_are_dropped() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let head = format!("POST /echo HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked");
    let body = "5\r\nhello\r\n0\r\nX-Late: yes\r\n\r\n";
    let reply = proxy.https(HOST, format!("{head}\r\nTrailer: x-late\r\n\r\n{body}"));
    assert_eq!(reply.json()["body"], "hello");

    let mut stream = proxy.tls_as(HOST, HOST, &["h2"]).unwrap();
    let mut bytes = frames::opening();
    let fields = frames::post(HOST, "/echo");
    let late = frames::literal("x-late", "yes");
    let last = frames::END_HEADERS | frames::END_STREAM;
    bytes.extend(frames::frame(
        frames::HEADERS,
        frames::END_HEADERS,
        1,
        &fields,
    ));
    bytes.extend(frames::frame(frames::DATA, 0, 1, b"hello"));
    bytes.extend(frames::frame(frames::HEADERS, last, 1, &late));
    stream.write_all(&bytes).unwrap();
    proxy.audited(json!({ "host": HOST, "status": 200, "kind": "http", "bytes_in": 5 }));
    crate::support::eventually("both requests arrive", crate::support::SOON, || {
        let seen = origin.seen();
        seen.len() == 2 && seen.iter().all(|seen| seen.received() == 5)
    });
    for seen in origin.seen() {
        assert_eq!(seen.trailers(), Vec::<String>::new(), "{}", seen.version);
        assert_eq!(seen.header("trailer"), None);
    }
    // A request without the proxy shows that the origin records trailers.
    let mut direct = std::net::TcpStream::connect(origin.http).unwrap();
    write!(direct, "{head}\r\nTrailer: x-late\r\n\r\n{body}").unwrap();
    assert_eq!(read_reply(&mut direct).unwrap().status, 200);
    assert_eq!(origin.seen()[2].trailers(), ["x-late"]);
}
