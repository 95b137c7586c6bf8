//! Unix sockets that each belong to one container: accepted requests, access and lifetime.

use std::io::Write;
use std::net::UdpSocket;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rustix::process::{Signal, geteuid};
use serde_json::json;
use testkit::each_row;

use crate::support::listener::{
    NOERROR, NXDOMAIN, assert_ends, connect, dns_query, origin_form, question, response_code, send,
};
use crate::support::{
    Origin, Proxy, SOON, Setup, eventually, expires_in, read_connect_reply, read_reply,
};

/// Uid and gid of `nobody` in these tests.
const NOBODY: u32 = 65534;

/// How long the sockets and connections of a lease may outlive it.
const ENDED: Duration = Duration::from_secs(5);

#[test]
fn unknown_origin_form_paths_are_denied_and_one_connection_serves_mcp_dns_and_proxy_requests() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let socket = proxy.own_listener("inner", json!({}));
    let others = "Malformed request: in origin form this listener takes POST /dns-query and /mcp";
    each_row(
        [
            ("/mcp/files", others),
            ("/mcpx", others),
            ("/", others),
            ("/dns-query/", others),
            ("/DNS-QUERY", others),
            ("/internal/containers", others),
            ("/internal/approvals", others),
            ("/internal/grants", others),
        ],
        |(path, sentence)| {
            for method in ["GET", "POST"] {
                let request = origin_form(method, path, "", b"{}");
                let reply = send(&mut connect(&socket), &request);
                reply.assert_denied(400, "malformed_request", sentence);
            }
        },
    );
    // One connection serves MCP, DNS and proxy requests.
    let mut stream = connect(&socket);
    for _ in 0..2 {
        let accept = "accept: text/event-stream\r\n";
        let reply = send(&mut stream, &origin_form("GET", "/mcp", accept, b""));
        assert_eq!(reply.status, 400, "a GET without a session opens no stream");
        let reply = send(&mut stream, &dns_query(&question("plain.example.com")));
        assert_eq!(response_code(&reply), NOERROR);
        let plain =
            b"GET http://plain.example.com/echo HTTP/1.1\r\nhost: plain.example.com\r\n\r\n";
        assert_eq!(send(&mut stream, plain).status, 200);
    }
}

#[test]
fn shutdown_answers_a_pending_dns_query_and_removes_the_socket() {
    // This nameserver answers only after the signal.
    let nameserver = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut setup = Setup::new(&Origin::start());
    let address = nameserver.local_addr().unwrap().to_string();
    setup.proxy["upstream"]["nameservers"] = json!([address]);
    setup.allow("a.example.org");
    let mut proxy = setup.start();
    let socket = proxy.own_listener("inner", json!({}));
    let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o666);
    assert_eq!(socket.parent(), proxy.path("api.sock").parent());
    let (mut asking, mut idle) = (connect(&socket), connect(&socket));
    asking
        .write_all(&dns_query(&question("a.example.org")))
        .unwrap();
    let mut packet = [0; 512];
    let (length, peer) = nameserver.recv_from(&mut packet).unwrap();
    proxy.signal(Signal::TERM);
    assert_ends(&mut idle);
    packet[2] |= 0x80;
    packet[3] = NXDOMAIN;
    nameserver.send_to(&packet[..length], peer).unwrap();
    assert_eq!(response_code(&read_reply(&mut asking).unwrap()), NXDOMAIN);
    proxy.wait(SOON);
    assert!(!socket.exists(), "the socket is left behind");
}

#[test]
fn a_socket_that_a_killed_server_left_is_removed_or_taken_over() {
    const LEASE: Duration = Duration::from_secs(4);
    let mut proxy = Proxy::start(&Origin::start());
    let brief = proxy.own_listener("brief", json!({ "expires_at": expires_in(LEASE) }));
    let lasting = proxy.own_listener("lasting", json!({}));
    proxy.signal(Signal::KILL);
    proxy.wait(SOON);
    std::thread::sleep(LEASE);
    assert!(brief.exists() && lasting.exists());
    // The proxy must not remove the socket of another, running server in the same directory.
    let others = lasting.with_file_name("sandbox-0123456789ab.sock");
    let _living = UnixListener::bind(&others).unwrap();
    // The proxy must also keep a dead socket with another name and a file that is not a socket.
    let (dead, file) = (
        proxy.path("other.sock"),
        proxy.path("sandbox-ba9876543210.sock"),
    );
    drop(UnixListener::bind(&dead).unwrap());
    std::fs::write(&file, "no socket").unwrap();
    proxy.restart();
    eventually("the socket of the lasting lease is open", SOON, || {
        UnixStream::connect(&lasting).is_ok()
    });
    let ask = dns_query(&question("plain.example.com"));
    assert_eq!(response_code(&send(&mut connect(&lasting), &ask)), NOERROR);
    eventually("the socket of the expired lease is gone", SOON, || {
        !brief.exists()
    });
    assert!(others.exists() && dead.exists() && file.exists());
}

/// The admin socket's mode and `admin_uids` decide who may register containers; the mode of the
/// directory decides who can connect to the sockets in it.
#[test]
fn another_user_can_connect_if_the_directorys_mode_allows_it() {
    if !geteuid().is_root() {
        // Only root can run curl as another user.
        return;
    }
    let mut setup = Setup::new(&Origin::start());
    setup.proxy["admin_mode"] = json!("0666");
    setup.proxy["admin_uids"] = json!([NOBODY]);
    let proxy = setup.start();
    let directory = proxy.path("api.sock").parent().unwrap().to_owned();
    let curl = |socket: &PathBuf, arguments: &[&str]| {
        let mut curl = proxy.command("curl");
        curl.uid(NOBODY).gid(NOBODY).current_dir("/");
        curl.args(["--silent", "--fail", "--max-time", "5", "--unix-socket"]);
        curl.arg(socket).args(arguments).output().unwrap()
    };
    each_row(
        [(0o700, false), (0o710, false), (0o711, true)],
        |(mode, passes)| {
            std::fs::set_permissions(&directory, PermissionsExt::from_mode(mode)).unwrap();
            let body = json!({ "listener": "unix", "container_id": "theirs", "repos": [] });
            let url = "http://localhost/internal/containers";
            let registered = curl(&proxy.path("api.sock"), &["--json", &body.to_string(), url]);
            assert_eq!(
                registered.status.success(),
                passes,
                "{mode:o}: {registered:?}"
            );
            let socket = proxy.own_listener("theirs", json!({}));
            let url = ["http://localhost/dns-query", "--data-binary", "x"];
            let answered = curl(&socket, &url);
            // curl exits with 22 after an HTTP error, and with 7 if it cannot connect.
            let wanted = if passes { 22 } else { 7 };
            assert_eq!(
                answered.status.code(),
                Some(wanted),
                "{mode:o}: {answered:?}"
            );
        },
    );
}

/// `run --server` renews its lease of 60 s every 20 s. This test renews a lease of 5 s every
/// second.
#[test]
fn connections_and_socket_of_a_renewed_lease_last_until_it_expires() {
    const LEASE: Duration = Duration::from_secs(5);
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let renew = || proxy.own_listener("inner", json!({ "expires_at": expires_in(LEASE) }));
    let socket = renew();
    let ask = dns_query(&question("plain.example.com"));
    let mut questions = connect(&socket);
    let mut tunnel = connect(&socket);
    let head = "CONNECT plain.example.com:80 HTTP/1.1\r\nhost: plain.example.com\r\n\r\n";
    tunnel.write_all(head.as_bytes()).unwrap();
    assert_eq!(read_connect_reply(&mut tunnel).unwrap().status, 200);
    let inside = b"GET /echo HTTP/1.1\r\nhost: plain.example.com\r\n\r\n";
    for _ in 0..7 {
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(renew(), socket);
        assert_eq!(response_code(&send(&mut questions, &ask)), NOERROR);
        assert_eq!(send(&mut tunnel, inside).status, 200);
    }
    let renewed = Instant::now();
    assert_ends(&mut questions);
    assert_ends(&mut tunnel);
    eventually("the socket is gone", ENDED, || !socket.exists());
    let stood = renewed.elapsed();
    assert!(stood + Duration::from_secs(1) > LEASE, "{stood:?}");
    assert!(stood < LEASE + ENDED, "{stood:?}");
    assert!(UnixStream::connect(&socket).is_err());
}
