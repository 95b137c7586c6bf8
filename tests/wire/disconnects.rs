//! Clients that disconnect, reset a stream or do not read during an exchange.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use testkit::each_row;

use crate::support::{Origin, Proxy, RawOrigin, Setup, eventually, frames, read_reply};

const HOST: &str = "api.example.com";
const SOON: Duration = Duration::from_secs(5);

fn aborted(proxy: &Proxy, path: &str) -> usize {
    let lines = proxy.audit();
    let of_path = lines.iter().filter(|line| line["path"] == path);
    of_path.filter(|line| line["outcome"] == "aborted").count()
}

#[test]
fn a_client_that_disconnects_in_an_exchange_leaves_one_aborted_flow_and_no_connection() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    each_row(["/slow/20000", "/events/1000/50"], |path| {
        let mut stream = proxy.tls(HOST);
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {HOST}\r\n\r\n").unwrap();
        eventually("the request reaches the origin", SOON, || {
            origin.seen().iter().any(|seen| seen.target == path)
        });
        drop(stream);
        eventually("the flow is aborted", SOON, || aborted(&proxy, path) == 1);
    });
    eventually("no connection is left", SOON, || {
        proxy.metric("proxy_active_connections", &[]) == 0.0
    });
    let counted = ["method=\"GET\"", "outcome=\"aborted\""];
    assert_eq!(proxy.metric("proxy_requests_total", &counted), 2.0);
}

#[test]
fn shutdown_does_not_wait_for_a_stream_that_its_client_reset() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.proxy["shutdown_timeout"] = "20s".into();
    let mut proxy = setup.start();
    let mut stream = proxy.tls_as(HOST, HOST, &["h2"]).unwrap();
    stream.write_all(&frames::opening()).unwrap();
    let asked = frames::request(1, &frames::get(HOST, "/slow/20000"));
    stream.write_all(&asked).unwrap();
    eventually("the request reaches the origin", SOON, || {
        !origin.seen().is_empty()
    });
    let cancel = 8_u32.to_be_bytes();
    let reset = frames::frame(frames::RST_STREAM, 0, 1, &cancel);
    stream.write_all(&reset).unwrap();
    eventually("the flow is aborted", SOON, || {
        aborted(&proxy, "/slow/20000") == 1
    });
    // The client stays connected, and the shutdown has no request to wait for.
    let signalled = Instant::now();
    proxy.signal(Signal::TERM);
    assert!(proxy.wait(Duration::from_secs(30)).success());
    assert!(signalled.elapsed() < 2 * SOON, "{:?}", signalled.elapsed());
}

#[test]
fn an_upload_continues_while_its_client_does_not_read_the_response() {
    const UPLOAD: u64 = 32 << 20;
    const ANSWER: usize = 64 << 20;
    let origin = Origin::start();
    let arrived: Arc<AtomicU64> = Arc::default();
    let counted = Arc::clone(&arrived);
    let raw = RawOrigin::start(move |mut stream| {
        let read = stream.read(&mut [0; 1024])?;
        assert!(read > 0);
        let mut answering = stream.try_clone()?;
        std::thread::spawn(move || {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {ANSWER}\r\n\r\n");
            answering.write_all(head.as_bytes())?;
            answering.write_all(&vec![b'a'; ANSWER])
        });
        let mut buffer = vec![0; 1 << 16];
        loop {
            let read = stream.read(&mut buffer)? as u64;
            if counted.fetch_add(read, Ordering::Relaxed) + read >= UPLOAD || read == 0 {
                break;
            }
        }
        stream.read(&mut buffer).map(drop)
    });
    let mut setup = Setup::new(&origin);
    setup.host("raw.example.com", raw.address);
    let proxy = setup.start();
    let mut stream = proxy.dial();
    stream.set_write_timeout(Some(SOON)).unwrap();
    let head = "POST http://raw.example.com/ HTTP/1.1\r\nHost: raw.example.com";
    write!(stream, "{head}\r\nContent-Length: {UPLOAD}\r\n\r\n").unwrap();
    // The pause lets the head of the response reach the proxy before the upload ends.
    std::thread::sleep(Duration::from_millis(300));
    stream.write_all(&vec![b'u'; UPLOAD as usize]).unwrap();
    eventually("the upload has arrived", SOON, || {
        arrived.load(Ordering::Relaxed) >= UPLOAD
    });
    let reply = read_reply(&mut stream).unwrap();
    assert_eq!((reply.status, reply.body.len()), (200, ANSWER));
}
