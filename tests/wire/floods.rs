//! HTTP/2 clients that are up to no good: what costs the proxy more than the client is cut off,
//! what costs neither is held to a bounded memory, and others go on.

use std::io::Write;
use std::time::Duration;

use crate::support::frames::{self, frame};
use crate::support::{Origin, Proxy, Tls};

const HOST: &str = "api.example.com";
/// How long the proxy may take to answer a flood with GOAWAY or the end.
const SOON: Duration = Duration::from_secs(10);
/// After which a write that does not get on is held back by the proxy.
const HELD_BACK: Duration = Duration::from_secs(2);

/// How a flood went.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    /// The connection was closed.
    Closed,
    /// The proxy stopped reading.
    HeldBack,
    /// All of it was taken.
    Taken,
}

#[test]
fn a_rapid_reset_flood_closes_its_connection_and_harms_no_other() {
    let (origin, proxy) = start();
    let mut stream = open(&proxy);
    let ended = flood(&mut stream, 20_000, |number| {
        let id = number * 2 + 1;
        let mut frames = frames::request(id, &frames::get(HOST, "/echo"));
        frames.extend(frame(frames::RST_STREAM, 0, id, &8_u32.to_be_bytes()));
        frames
    });
    assert_closed(&mut stream, ended);
    assert_others_go_on(&proxy);
    let reached = origin.seen().len();
    assert!(reached < 10_000, "{reached} requests got through");
}

#[test]
fn a_client_that_makes_the_proxy_reset_its_streams_is_closed_too() {
    let (origin, proxy) = start();
    let mut stream = open(&proxy);
    // A window that grows by nothing is an error of the stream, which the proxy has to reset.
    let ended = flood(&mut stream, 20_000, |number| {
        let id = number * 2 + 1;
        let mut frames = frames::request(id, &frames::get(HOST, "/slow/1000"));
        frames.extend(frame(frames::WINDOW_UPDATE, 0, id, &[0; 4]));
        frames
    });
    assert_closed(&mut stream, ended);
    assert_others_go_on(&proxy);
    let reached = origin.seen().len();
    assert!(reached < 2_000, "{reached} requests got through");
}

#[test]
fn a_head_that_never_ends_closes_its_connection() {
    let (origin, proxy) = start();
    for piece in [
        vec![],
        frames::literal("x-more", &"a".repeat(100)).repeat(8),
    ] {
        let mut stream = open(&proxy);
        let head = frame(
            frames::HEADERS,
            frames::END_STREAM,
            1,
            &frames::get(HOST, "/"),
        );
        stream.write_all(&head).unwrap();
        let ended = flood(&mut stream, 50_000, |_| {
            frame(frames::CONTINUATION, 0, 1, &piece)
        });
        assert_closed(&mut stream, ended);
        assert_others_go_on(&proxy);
    }
    assert!(origin.seen().iter().all(|seen| seen.target == "/echo"));
}

#[test]
fn floods_of_settings_and_pings_are_held_back_where_nobody_reads_the_answers() {
    let (_origin, proxy) = start();
    let before = proxy.memory("VmRSS");
    for (kind, payload) in [(frames::SETTINGS, vec![]), (frames::PING, vec![7; 8])] {
        let mut stream = open(&proxy);
        let block = frame(kind, 0, 0, &payload).repeat(1000);
        let ended = flood(&mut stream, 4_000, |_| block.clone());
        assert_ne!(
            ended,
            Ended::Taken,
            "{kind}: four million frames were taken"
        );
        assert_others_go_on(&proxy);
    }
    assert_memory(&proxy, before);
}

#[test]
fn a_flood_of_empty_data_takes_no_memory() {
    let (origin, proxy) = start();
    let before = proxy.memory("VmRSS");
    let mut stream = open(&proxy);
    // The origin answers without reading, and the body never ends.
    let fields = frames::post(HOST, "/early");
    stream
        .write_all(&frame(frames::HEADERS, frames::END_HEADERS, 1, &fields))
        .unwrap();
    let block = frame(frames::DATA, 0, 1, &[]).repeat(1000);
    flood(&mut stream, 1_000, |_| block.clone());
    assert_others_go_on(&proxy);
    assert_memory(&proxy, before);
    assert!(origin.seen().iter().all(|seen| seen.received() == 0));
}

fn start() -> (Origin, Proxy) {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    proxy.register("127.0.0.2", "second");
    assert_others_go_on(&proxy);
    (origin, proxy)
}

fn open(proxy: &Proxy) -> Tls {
    let mut stream = proxy.tls_as(HOST, HOST, &["h2"]).unwrap();
    stream.write_all(&frames::opening()).unwrap();
    stream.sock.set_write_timeout(Some(HELD_BACK)).unwrap();
    stream.sock.set_read_timeout(Some(SOON)).unwrap();
    stream
}

/// Writes frames until the proxy has enough of them, and never reads.
fn flood(stream: &mut Tls, most: u32, frames: impl Fn(u32) -> Vec<u8>) -> Ended {
    for number in 0..most {
        let bytes = frames(number);
        if let Err(error) = stream.conn.writer().write_all(&bytes) {
            panic!("the session takes no more: {error}");
        }
        while stream.conn.wants_write() {
            match stream.conn.write_tls(&mut stream.sock) {
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    return Ended::HeldBack;
                }
                Err(_) => return Ended::Closed,
            }
        }
    }
    Ended::Taken
}

#[track_caller]
fn assert_closed(stream: &mut Tls, ended: Ended) {
    assert!(
        ended == Ended::Closed || frames::read_until_closed(stream),
        "the flood was served to its end: {ended:?}"
    );
}

/// Another container's requests, on connections of its own.
#[track_caller]
fn assert_others_go_on(proxy: &Proxy) {
    let second = std::net::Ipv4Addr::new(127, 0, 0, 2);
    let curl = proxy.curl_from(second, &[&format!("https://{HOST}/echo")]);
    assert_eq!(curl.status, 200, "{curl:?}");
}

#[track_caller]
fn assert_memory(proxy: &Proxy, before: u64) {
    let grown = proxy.memory("VmRSS").saturating_sub(before);
    assert!(grown < 48 * 1024, "{grown} KiB more than before");
}
