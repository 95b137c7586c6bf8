//! Identification of requests by their source address or socket, and the end of a lease.

use std::io::{ErrorKind, Read, Write};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::json;
use testkit::each_row;

use crate::support::{
    Origin, Proxy, SANDBOX, SECOND, Setup, Tls, UNKNOWN_SOURCE, eventually, frames, handshake,
    read_reply,
};

/// Duration of a lease that a test uses and then lets expire.
const BRIEF: Duration = Duration::from_secs(4);
/// How long the connections of a lease may outlive it.
const ENDED: Duration = Duration::from_secs(5);

#[test]
fn an_unregistered_address_is_denied() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let (reply, _) = proxy.connect_from(UNKNOWN_SOURCE, "api.example.com:443");
    reply.assert_connect_denied(403, "unknown_source", "Unknown source IP");
    let curl = proxy.curl_from(UNKNOWN_SOURCE, &["http://plain.example.com/echo"]);
    assert_eq!(
        (curl.status, &curl.json()["code"]),
        (403, &json!("unknown_source"))
    );
    origin.assert_untouched();
}

#[test]
fn forwarding_fields_and_a_container_id_do_not_identify_a_source() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    each_row(
        [
            "X-Forwarded-For: 127.0.0.1",
            "Forwarded: for=127.0.0.1",
            "X-Real-IP: 127.0.0.1",
            "X-Container-Id: sandbox",
        ],
        |field| {
            let curl = proxy.curl_from(
                UNKNOWN_SOURCE,
                &["-H", field, "http://plain.example.com/echo"],
            );
            assert_eq!(curl.json()["code"], "unknown_source", "{field}");
        },
    );
    origin.assert_untouched();
}

#[test]
fn a_container_id_that_differs_is_denied_in_plain_requests_connects_and_tunnels() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let denied = ("container_id_mismatch", "Container ID mismatch");
    let field = "X-Container-Id: somebody-else";

    let reply = proxy.get("http://plain.example.com/echo", &[field]);
    reply.assert_denied(403, denied.0, denied.1);
    let connect = "CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com:443\r\n";
    let reply = proxy.exchange(format!("{connect}{field}\r\n\r\n"));
    reply.assert_connect_denied(403, denied.0, denied.1);
    let reply = proxy.https_get("api.example.com", "/echo", &[field]);
    reply.assert_denied(403, denied.0, denied.1);
    assert!(origin.seen().is_empty());
}

#[test]
fn a_matching_container_id_passes_and_is_not_sent_upstream() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let field = format!("X-Container-Id: {SANDBOX}");
    assert_eq!(
        proxy.get("http://plain.example.com/echo", &[&field]).status,
        200
    );
    assert_eq!(
        proxy
            .https_get("api.example.com", "/echo", &[&field])
            .status,
        200
    );
    for seen in origin.seen() {
        assert_eq!(seen.header("x-container-id"), None);
    }
}

#[test]
fn forwarding_and_proxy_fields_never_go_upstream() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let sent = [
        "X-Container-Id: sandbox",
        "Forwarded: for=10.1.2.3",
        "X-Forwarded-For: 10.1.2.3",
        "X-Forwarded-Host: inside",
        "X-Forwarded-Proto: http",
        "Via: 1.1 inside",
        "Proxy-Authorization: Basic eDp5",
        "Proxy-Connection: keep-alive",
    ];
    proxy.get("http://plain.example.com/echo", &sent);
    proxy.https_get("api.example.com", "/echo", &sent);
    let seen = origin.seen();
    assert_eq!(seen.len(), 2);
    for (name, _) in seen.iter().flat_map(|seen| &seen.headers) {
        let tells = ["forwarded", "via", "x-container-id"].contains(&name.as_str());
        assert!(
            !tells && !name.starts_with("x-forwarded") && !name.starts_with("proxy-"),
            "{name}"
        );
    }
}

#[test]
fn an_expired_registration_is_denied_as_expired_and_then_as_unknown() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.containers.clear();
    let proxy = setup.start();
    proxy.register_for(BRIEF, "127.0.0.1", "brief");
    assert_eq!(proxy.get("http://plain.example.com/echo", &[]).status, 200);
    std::thread::sleep(BRIEF + Duration::from_millis(200));
    let reply = proxy.get("http://plain.example.com/echo", &[]);
    reply.assert_denied(
        403,
        "registration_expired",
        "Container registration expired",
    );
    eventually("the entry is removed", ENDED, || {
        let reply = proxy.admin("GET", "/internal/containers/brief", None);
        reply.status == 404
    });
    let reply = proxy.get("http://plain.example.com/echo", &[]);
    reply.assert_denied(403, "unknown_source", "Unknown source IP");
    assert_eq!(origin.seen().len(), 1);
}

#[test]
fn a_tunnel_of_an_expired_lease_ends() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.containers.clear();
    let proxy = setup.start();
    proxy.register_for(BRIEF, "127.0.0.1", "brief");
    let mut tunnel = proxy.tunnel("api.example.com:443");
    assert_ends(&mut tunnel, BRIEF + ENDED);
}

#[test]
fn registering_an_address_again_ends_the_old_containers_tunnels_and_streams() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let (mut idle, mut busy) = (proxy.tls("api.example.com"), events(&proxy));
    proxy.register("127.0.0.1", "successor");
    assert_ends(&mut idle, ENDED);
    assert_ends(&mut busy, ENDED);
    assert_eq!(proxy.https_get("api.example.com", "/echo", &[]).status, 200);
}

#[test]
fn deleting_a_container_ends_its_tunnels_and_streams_and_no_others() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    proxy.register("127.0.0.2", "second");
    let (reply, mut other) = proxy.connect_from(SECOND, "plain.example.com:80");
    assert_eq!(reply.status, 200);
    let (mut idle, mut busy) = (proxy.tls("api.example.com"), events(&proxy));
    let reply = proxy.admin("DELETE", "/internal/containers/sandbox", None);
    assert_eq!(
        reply.json(),
        json!({"status": "unregistered", "container_id": SANDBOX})
    );
    assert_ends(&mut idle, ENDED);
    assert_ends(&mut busy, ENDED);
    let (reply, _) = proxy.connect("api.example.com:443");
    reply.assert_connect_denied(403, "unknown_source", "Unknown source IP");
    write!(
        other,
        "GET /echo HTTP/1.1\r\nHost: plain.example.com\r\n\r\n"
    )
    .unwrap();
    assert_eq!(read_reply(&mut other).unwrap().status, 200);
}

#[test]
fn an_identical_registration_keeps_the_lease_and_its_tunnels() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let mut tunnel = proxy.tls("api.example.com");
    proxy.register("127.0.0.1", SANDBOX);
    std::thread::sleep(Duration::from_secs(2));
    write!(
        tunnel,
        "GET /echo HTTP/1.1\r\nHost: api.example.com\r\n\r\n"
    )
    .unwrap();
    assert_eq!(read_reply(&mut tunnel).unwrap().status, 200);
}

#[test]
fn restoring_a_backup_does_not_revive_tunnels_of_an_ended_lease() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let registry = |arguments: &[&str]| {
        proxy.cli(&[&["registry"], arguments, &["--config", "config"]].concat())
    };
    let mut tunnel = proxy.tls("api.example.com");
    registry(&["backup", "backup.db"]).ok();
    let path = format!("/internal/containers/{SANDBOX}");
    assert_eq!(proxy.admin("DELETE", &path, None).status, 200);
    registry(&["restore", "backup.db"]).ok();
    eventually("the container is registered again", ENDED, || {
        proxy.connect("api.example.com:443").0.status == 200
    });
    // The container has a new lease, so the proxy does not serve the old tunnel.
    let _ = write!(
        tunnel,
        "GET /echo HTTP/1.1\r\nHost: api.example.com\r\n\r\n"
    );
    if let Ok(reply) = read_reply(&mut tunnel) {
        reply.assert_denied(403, "unknown_source", "Unknown source IP");
    }
    assert!(origin.seen().is_empty());
    assert_eq!(proxy.https_get("api.example.com", "/echo", &[]).status, 200);
}

#[test]
fn pooled_connections_of_one_lease_never_serve_another() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    proxy.register("127.0.0.2", "second");
    let fetch = |source| {
        proxy
            .curl_from(source, &["https://api.example.com/echo"])
            .status
    };
    assert_eq!([fetch(Ipv4Addr::LOCALHOST), fetch(SECOND)], [200, 200]);
    proxy.register("127.0.0.1", "successor");
    assert_eq!(fetch(Ipv4Addr::LOCALHOST), 200);
    let mut connections: Vec<_> = origin.seen().iter().map(|seen| seen.connection).collect();
    connections.dedup();
    assert_eq!(connections.len(), 3);
}

#[test]
fn an_upstream_connection_of_an_idle_tunnel_is_reused_only_by_the_same_container() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    proxy.register("127.0.0.2", "second");
    let serve = |stream: &mut Tls| {
        write!(
            stream,
            "GET /echo HTTP/1.1\r\nHost: api.example.com\r\n\r\n"
        )
        .unwrap();
        read_reply(stream).unwrap().json()["connection"].clone()
    };
    let mut idle = proxy.tls("api.example.com");
    let first = serve(&mut idle);
    // A tunnel keeps its upstream connection until the tunnel has been idle for two seconds.
    let mut eager = proxy.tls("api.example.com");
    let second = serve(&mut eager);
    assert_ne!(second, first);
    std::thread::sleep(Duration::from_secs(3));
    let (reply, stream) = proxy.connect_from(SECOND, "api.example.com:443");
    assert_eq!(reply.status, 200);
    let config = proxy.tls_config(&["http/1.1"]);
    let mut second_client = handshake(stream, "api.example.com", config).unwrap();
    let third = serve(&mut second_client);
    assert!(third != first && third != second, "{third}");
    let mut late = proxy.tls("api.example.com");
    let reused = serve(&mut late);
    assert!(reused == first || reused == second, "{reused}");
    assert_eq!(origin.connections(), 3);
}

#[test]
fn a_containers_socket_identifies_it_until_its_lease_ends() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let register = || {
        let body = json!({ "listener": "unix", "container_id": "inner", "repos": [] });
        let reply = proxy
            .admin("POST", "/internal/containers", Some(body))
            .json();
        PathBuf::from(reply["socket"].as_str().unwrap())
    };
    let ask = |stream: &mut UnixStream, id: &str| {
        let request = format!(
            "GET http://plain.example.com/echo HTTP/1.1\r\nHost: plain.example.com\r\n\
             X-Container-Id: {id}\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        read_reply(stream).unwrap().status
    };
    let socket = register();
    eventually("the socket exists", ENDED, || socket.exists());
    let mut stream = UnixStream::connect(&socket).unwrap();
    assert_eq!(ask(&mut stream, "inner"), 200);
    assert_eq!(ask(&mut stream, SANDBOX), 403);
    proxy.admin("DELETE", "/internal/containers/inner", None);
    assert_ends(&mut stream, ENDED);
    eventually("the socket is gone", ENDED, || !socket.exists());
    let successor = register();
    assert_ne!(successor, socket);
    eventually("the socket exists", ENDED, || successor.exists());
    let mut stream = UnixStream::connect(&successor).unwrap();
    assert_eq!(ask(&mut stream, "inner"), 200);
}

#[test]
fn a_pending_request_is_closed_on_both_sides_and_audited_when_its_lease_ends() {
    let host = "api.example.com";
    for (protocol, origin) in [
        ("h2", Origin::start()),
        ("h2", Origin::without_http2()),
        ("http/1.1", Origin::without_http2()),
    ] {
        let proxy = Proxy::start(&origin);
        let mut stream = proxy.tls_as(host, host, &[protocol]).unwrap();
        let request = match protocol {
            "h2" => {
                let request = frames::request(1, &frames::get(host, "/slow/20000"));
                [frames::opening(), request].concat()
            }
            _ => format!("GET /slow/20000 HTTP/1.1\r\nHost: {host}\r\n\r\n").into_bytes(),
        };
        stream.write_all(&request).unwrap();
        eventually("the request reaches the origin", ENDED, || {
            origin.seen().len() == 1
        });
        proxy.admin("DELETE", "/internal/containers/sandbox", None);
        assert_ends(&mut stream, ENDED);
        eventually("the upstream connection is closed", ENDED, || {
            origin.open() == 0
        });
        let line = proxy.audited(json!({ "kind": "http", "host": host }));
        assert_eq!(line["code"], "unknown_source", "{line}");
    }
}

/// Starts an event stream of 500 s, and reads its first 64 bytes.
fn events(proxy: &Proxy) -> impl Read {
    let mut stream = proxy.tls("api.example.com");
    write!(
        stream,
        "GET /events/10000/50 HTTP/1.1\r\nHost: api.example.com\r\n\r\n"
    )
    .unwrap();
    let mut first = [0; 64];
    stream.read_exact(&mut first).unwrap();
    stream
}

/// Reads until the connection ends. Panics if it does not end within `within`.
#[track_caller]
fn assert_ends(stream: &mut impl Read, within: Duration) {
    let since = Instant::now();
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(_) => assert!(since.elapsed() < within, "the connection still streams"),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                panic!("the connection is still open")
            }
            Err(_) => break,
        }
    }
    assert!(
        since.elapsed() < within,
        "the connection ended after {:?}",
        since.elapsed()
    );
}
