//! Client connections that were idle for longer than 2 s. By then, the proxy has dropped the
//! buffers of each connection whose latest request had no body.

use std::io::{Read, Write};
use std::thread::sleep;
use std::time::Duration;

use crate::support::{Origin, Proxy, assert_closes, handshake, read_connect_reply, read_reply};

const HOST: &str = "api.example.com";
const PLAIN: &str = "plain.example.com";
/// Longer than the 2 s after which the proxy drops buffers.
const IDLE: Duration = Duration::from_secs(3);

/// A client connection, with the prefix of request targets and the `Host` of requests on it.
struct Idle {
    stream: Box<dyn Stream>,
    base: &'static str,
    host: &'static str,
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

impl Idle {
    fn of_each_kind(proxy: &Proxy) -> [Self; 3] {
        let new = |stream, base, host| Self { stream, base, host };
        [
            new(Box::new(proxy.dial()), "http://plain.example.com", PLAIN),
            new(Box::new(proxy.tunnel("plain.example.com:80")), "", PLAIN),
            new(Box::new(proxy.tls(HOST)), "", HOST),
        ]
    }

    fn head(&self, method: &str, fields: &str) -> String {
        let Self { base, host, .. } = self;
        format!("{method} {base}/echo HTTP/1.1\r\nHost: {host}\r\n{fields}\r\n")
    }

    /// Sends the parts with pauses between them, and reads the status of a response.
    fn status(&mut self, parts: &[&str]) -> u16 {
        for part in parts {
            self.stream.write_all(part.as_bytes()).unwrap();
            self.stream.flush().unwrap();
            sleep(Duration::from_millis(50));
        }
        read_reply(&mut self.stream).unwrap().status
    }
}

#[test]
fn a_connection_that_was_idle_serves_requests_as_before() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let mut connections = Idle::of_each_kind(&proxy);
    let every = |connections: &mut [Idle; 3], ask: &dyn Fn(&mut Idle)| {
        connections.iter_mut().for_each(ask);
        sleep(IDLE);
    };
    every(&mut connections, &|_| {});
    every(&mut connections, &|one| {
        let get = one.head("GET", "");
        assert_eq!(one.status(&[&get]), 200);
    });
    every(&mut connections, &|one| {
        let get = one.head("GET", "");
        let (first, rest) = get.split_at(1);
        let (middle, last) = rest.split_at(20);
        assert_eq!(one.status(&[first, middle, last]), 200);
    });
    every(&mut connections, &|one| {
        let post = one.head("POST", "Content-Length: 4\r\n");
        assert_eq!(one.status(&[&post, "bo", "dy"]), 200);
    });
    every(&mut connections, &|one| {
        let two = one.head("GET", "").repeat(2);
        assert_eq!(one.status(&[&two]), 200);
        assert_eq!(read_reply(&mut one.stream).unwrap().status, 200);
    });
    every(&mut connections, &|one| {
        assert_eq!(one.status(&["GET\r\n\r\n"]), 400);
        assert_closes(&mut one.stream);
    });
    assert_eq!(origin.seen().len(), 3 * 5);
}

#[test]
fn a_proxy_connection_that_was_idle_opens_a_tunnel() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let mut stream = proxy.dial();
    let get = format!("GET http://{PLAIN}/echo HTTP/1.1\r\nHost: {PLAIN}\r\n\r\n");
    stream.write_all(get.as_bytes()).unwrap();
    assert_eq!(read_reply(&mut stream).unwrap().status, 200);
    sleep(IDLE);
    write!(stream, "CONNECT {HOST}:443 HTTP/1.1\r\n\r\n").unwrap();
    assert_eq!(read_connect_reply(&mut stream).unwrap().status, 200);
    let mut stream = handshake(stream, HOST, proxy.tls_config(&["http/1.1"])).unwrap();
    write!(stream, "GET /echo HTTP/1.1\r\nHost: {HOST}\r\n\r\n").unwrap();
    assert_eq!(read_reply(&mut stream).unwrap().status, 200);
}

/// The rest of the denied body has the form of a request to a permitted host.
#[test]
fn the_rest_of_a_denied_body_is_not_read_as_a_request_after_an_idle_pause() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    for mut one in Idle::of_each_kind(&proxy) {
        let rest = one.head("GET", "");
        let length = format!("Content-Length: {}\r\n", 4 + rest.len());
        let denied = one
            .head("POST", &length)
            .replace(one.host, "blocked.example.org");
        let status = one.status(&[&(denied + "body")]);
        assert!([403, 421].contains(&status), "{status}");
        sleep(IDLE);
        // The write fails if the proxy has closed the connection.
        let _ = one.stream.write_all(rest.as_bytes());
        sleep(Duration::from_millis(300));
    }
    origin.assert_untouched();
}

#[test]
fn the_end_of_a_lease_closes_its_idle_connections() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let mut connections = Idle::of_each_kind(&proxy);
    for one in &mut connections {
        let get = one.head("GET", "");
        assert_eq!(one.status(&[&get]), 200);
    }
    sleep(IDLE);
    proxy.register("127.0.0.1", "successor");
    for one in &mut connections {
        assert_closes(&mut one.stream);
    }
}
