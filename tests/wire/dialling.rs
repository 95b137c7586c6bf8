//! The choice among a name's addresses when the proxy dials, and the connect timeout.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde_json::json;
use socket2::{Domain, Socket, Type};

use crate::support::{Nameserver, Origin, Setup};

const LOCAL: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// A loopback address that is not in `allow_private`, so the proxy must not dial it.
const GUARDED: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

#[test]
fn a_connect_that_times_out_is_an_upstream_timeout() {
    let origin = Origin::start();
    let (full, _crowd) = full_listener();
    let mut setup = Setup::new(&origin);
    setup.proxy["upstream"]["connect_timeout"] = json!("1s");
    setup.host("full.example.com", full);
    let proxy = setup.start();
    let since = Instant::now();
    let reply = proxy.get("http://full.example.com/", &[]);
    reply.assert_denied(504, "upstream_timeout", "");
    assert!(reply.text().contains("full.example.com"), "{reply:?}");
    proxy
        .fetch("full.example.com", "/")
        .assert_denied(504, "upstream_timeout", "");
    assert!(since.elapsed() >= Duration::from_secs(2));
    proxy.audited(json!({ "host": "full.example.com", "code": "upstream_timeout" }));
    assert_eq!(proxy.get("http://plain.example.com/echo", &[]).status, 200);
}

#[test]
fn only_the_permitted_addresses_of_a_dns_answer_are_dialled() {
    let origin = Origin::start();
    let port = origin.http.port();
    let guarded = TcpListener::bind((GUARDED, port)).unwrap();
    guarded.set_nonblocking(true).unwrap();
    let nameserver = Nameserver::start(&[
        (
            "mixed.example.com",
            &[GUARDED, Ipv4Addr::new(169, 254, 169, 254), LOCAL],
        ),
        (
            "mixed-and-dead.example.com",
            &[GUARDED, Ipv4Addr::new(127, 0, 0, 3)],
        ),
    ]);
    let mut setup = Setup::new(&origin);
    setup.proxy["upstream"]["nameservers"] = json!([nameserver.address.to_string()]);
    setup.proxy["upstream"]["allow_private"] = json!(["127.0.0.1/32", "127.0.0.3/32"]);
    for domain in ["mixed.example.com", "mixed-and-dead.example.com"] {
        setup.allow(json!({ "domain": domain, "ports": [port] }));
    }
    let proxy = setup.start();

    let reply = proxy.get(&format!("http://mixed.example.com:{port}/echo"), &[]);
    assert_eq!(reply.status, 200, "{reply:?}");
    let line = proxy.audited(json!({ "host": "mixed.example.com", "status": 200 }));
    assert_eq!(line["upstream_addr"], format!("{LOCAL}:{port}"));

    // Nothing listens at the permitted address; the proxy must not dial the guarded one instead.
    let reply = proxy.get(&format!("http://mixed-and-dead.example.com:{port}/"), &[]);
    reply.assert_denied(502, "upstream_unreachable", "");
    let knocked = guarded.accept().map(|(_, peer)| peer);
    assert!(
        knocked.is_err(),
        "a guarded address was dialled: {knocked:?}"
    );
}

/// Makes a listener whose accept queue is full, so that the kernel drops further SYNs. Returns its
/// address, and the sockets that keep the queue full.
fn full_listener() -> (SocketAddr, Vec<Socket>) {
    let listener = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let any = SocketAddr::from((LOCAL, 0));
    listener.bind(&any.into()).unwrap();
    listener.listen(0).unwrap();
    let address = listener.local_addr().unwrap().as_socket().unwrap();
    let mut held = vec![listener];
    while let Ok(stream) = TcpStream::connect_timeout(&address, Duration::from_millis(500)) {
        held.push(stream.into());
        assert!(held.len() < 100, "the queue never fills");
    }
    (address, held)
}
