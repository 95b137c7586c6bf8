//! DNS rebinding: the first answer for a name is the origin's address, and every later answer is an
//! address that the proxy must not dial.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::Duration;

use serde_json::json;

use crate::support::{
    Nameserver, Origin, Proxy, RawOrigin, SANDBOX, Setup, handshake, read_reply,
    tls_config_trusting,
};

const LOCAL: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// The address of the later answers. The proxy must not dial it, since it is not in
/// `allow_private`.
const GUARDED: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Longer than 1 s, the time for which the resolver caches an answer with a TTL of 0.
const OUT_OF_THE_CACHE: Duration = Duration::from_millis(1300);

const PASSTHROUGH: &str = "passthrough.example.com";

/// Sends one request; returns whether an upstream served it.
type Ask = fn(&Proxy, &Origin, &str, u16) -> bool;

#[test]
fn the_judged_address_is_dialled_and_each_new_connection_is_judged_again() {
    let origin = Origin::start();
    let (http, https) = (origin.http.port(), origin.https.port());
    let ways: [(&str, u16, Ask); 4] = [
        ("plain.example.com", http, plain),
        ("intercepted.example.com", https, intercepted),
        ("websocket.example.com", http, websocket),
        (PASSTHROUGH, https, passthrough),
    ];
    let traps = [Trap::on(http), Trap::on(https)];
    let names = ways.map(|(name, port, _)| (name, port));
    let (proxy, _nameserver) = start(&origin, &names);
    let mut failures = Vec::new();
    for (name, port, ask) in ways {
        if !ask(&proxy, &origin, name, port) {
            let sprung = traps.iter().filter_map(Trap::sprung).collect::<Vec<_>>();
            panic!("{name}: the judged address did not serve the request; {sprung:?}");
        }
        proxy.audited(json!({ "host": name, "upstream_addr": format!("{LOCAL}:{port}") }));
    }

    // A new lease has no pooled connections, and after the pause the resolver has no cached
    // answers. So each request below needs a look-up and a new connection.
    let lease = json!({ "container_ip": "127.0.0.1", "container_id": SANDBOX, "repos": ["o/n"] });
    proxy.register_as(lease);
    sleep(OUT_OF_THE_CACHE);
    for (name, port, ask) in ways {
        if ask(&proxy, &origin, name, port) {
            failures.push(format!(
                "{name}: a request was served after the name was rebound"
            ));
        }
        proxy.audited(json!({ "host": name, "code": "address_not_allowed" }));
    }
    failures.extend(traps.iter().filter_map(Trap::sprung));
    assert!(failures.is_empty(), "{failures:#?}");
}

#[test]
fn a_pooled_connection_is_used_after_its_name_was_rebound() {
    let origin = Origin::start();
    let port = origin.http.port();
    let trap = Trap::on(port);
    let (proxy, _nameserver) = start(&origin, &[("pooled.example.com", port)]);
    for _ in 0..3 {
        assert!(plain(&proxy, &origin, "pooled.example.com", port));
        sleep(OUT_OF_THE_CACHE);
    }
    let connections: Vec<usize> = origin.seen().iter().map(|seen| seen.connection).collect();
    assert_eq!(connections, vec![connections[0]; 3]);
    for line in proxy.audit() {
        assert_eq!(line["upstream_addr"], format!("{LOCAL}:{port}"), "{line}");
    }
    assert_eq!(trap.sprung(), None);
}

#[test]
fn a_retry_on_a_new_connection_is_judged_again() {
    let origin = Origin::start();
    // This upstream closes the connection, although the response lacks `Connection: close`. So the
    // proxy pools a connection on which the next request fails.
    let raw = RawOrigin::start(|mut stream| {
        let _ = stream.read(&mut [0; 4096])?;
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    });
    let port = raw.address.port();
    let trap = Trap::on(port);
    let (proxy, _nameserver) = start(&origin, &[("retried.example.com", port)]);
    assert!(plain(&proxy, &origin, "retried.example.com", port));
    sleep(OUT_OF_THE_CACHE);
    let reply = proxy.get(&format!("http://retried.example.com:{port}/"), &[]);
    reply.assert_denied(403, "address_not_allowed", "Address not allowed: ");
    assert_eq!((raw.connections(), trap.sprung()), (1, None));
}

/// Starts a proxy that may dial 127.0.0.1 but no other loopback address, and a nameserver that
/// rebinds each name to [`GUARDED`] after the first answer.
fn start(origin: &Origin, names: &[(&str, u16)]) -> (Proxy, Nameserver) {
    let nameserver = Nameserver::start(&[]);
    let mut setup = Setup::new(origin);
    setup.proxy["upstream"]["nameservers"] = json!([nameserver.address.to_string()]);
    setup.proxy["upstream"]["allow_private"] = json!([format!("{LOCAL}/32")]);
    setup.proxy["upstream"]["hosts"] = json!({});
    setup.allowlist["domains"] = json!([]);
    for (name, port) in names {
        nameserver.rebind(name, LOCAL, GUARDED);
        if *name == PASSTHROUGH {
            setup.proxy["tls"]["passthrough"] = json!([name]);
        }
        setup.allow(json!({ "domain": name, "ports": [port] }));
    }
    (setup.start(), nameserver)
}

fn plain(proxy: &Proxy, _origin: &Origin, name: &str, port: u16) -> bool {
    proxy.get(&format!("http://{name}:{port}/echo"), &[]).status == 200
}

fn intercepted(proxy: &Proxy, _origin: &Origin, name: &str, port: u16) -> bool {
    let (reply, stream) = proxy.connect(&format!("{name}:{port}"));
    if reply.status != 200 {
        return false;
    }
    let mut stream = handshake(stream, name, proxy.tls_config(&["http/1.1"])).unwrap();
    write!(stream, "GET /echo HTTP/1.1\r\nHost: {name}:{port}\r\n\r\n").unwrap();
    read_reply(&mut stream).unwrap().status == 200
}

fn websocket(proxy: &Proxy, _origin: &Origin, name: &str, port: u16) -> bool {
    let reply = proxy.get(
        &format!("http://{name}:{port}/websocket"),
        &[
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        ],
    );
    reply.status == 101
}

/// True if the TLS handshake succeeds with the origin's certificate.
fn passthrough(proxy: &Proxy, origin: &Origin, name: &str, port: u16) -> bool {
    let (reply, stream) = proxy.connect(&format!("{name}:{port}"));
    if reply.status != 200 {
        return false;
    }
    let config = tls_config_trusting(origin.ca_pem.as_bytes(), &["http/1.1"]);
    handshake(stream, name, config).is_ok()
}

/// A listener at [`GUARDED`] that the proxy must not dial. It counts connections and closes them.
struct Trap {
    address: SocketAddr,
    knocks: Arc<AtomicUsize>,
}

impl Trap {
    fn on(port: u16) -> Self {
        let listener = TcpListener::bind((GUARDED, port)).unwrap();
        let address = listener.local_addr().unwrap();
        let knocks = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&knocks);
        std::thread::spawn(move || {
            for _closed in listener.incoming().flatten() {
                counted.fetch_add(1, Ordering::AcqRel);
            }
        });
        Self { address, knocks }
    }

    /// The number of connections as a message; `None` if the listener was not dialled.
    fn sprung(&self) -> Option<String> {
        let knocks = self.knocks.load(Ordering::Acquire);
        (knocks > 0).then(|| format!("{} was dialled {knocks} times", self.address))
    }
}
