//! HTTP/2 floods. The proxy closes the connection of a flood, stops reading from it, or holds
//! bounded memory for it, and keeps serving other containers.

use std::io::Write;
use std::time::Duration;

use crate::support::frames::{self, frame};
use crate::support::{Origin, Proxy, SOON, Tls};

use testkit::each_row;

const HOST: &str = "api.example.com";
/// Write timeout of the client. A write that times out shows that the proxy has stopped reading.
const HELD_BACK: Duration = Duration::from_secs(2);

/// How a flood ended.
#[derive(Debug, PartialEq, Eq)]
enum Ended {
    /// The connection was closed.
    Closed,
    /// The proxy stopped reading.
    HeldBack,
    /// The client wrote the whole flood.
    Taken,
}

#[test]
fn a_rapid_reset_flood_closes_its_connection_and_others_are_served() {
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

/// h2 limits the number of streams that the client resets before they are served. The default limit
/// is 20; the proxy sets it to 10.
#[test]
fn more_than_ten_streams_reset_before_they_were_served_close_their_connection() {
    let (origin, proxy) = start();
    let request_and_reset = |number: u32| {
        let id = number * 2 + 1;
        let mut frames = frames::request(id, &frames::get(HOST, "/echo"));
        frames.extend(frame(frames::RST_STREAM, 0, id, &8_u32.to_be_bytes()));
        frames
    };
    assert!(survives(&proxy, 5, request_and_reset), "5 resets");
    assert!(!survives(&proxy, 16, request_and_reset), "16 resets");
    assert_others_go_on(&proxy);
    let reached = origin.seen().len();
    assert!(reached < 10, "{reached} requests got through");
}

/// h2 limits the number of streams that it resets because of errors of the client. The default
/// limit is 1,024; the proxy sets it to 256.
#[test]
fn a_connection_with_500_stream_errors_is_closed() {
    let (_origin, proxy) = start();
    assert!(survives(&proxy, 50, window_overflow), "50 errors");
    assert!(!survives(&proxy, 500, window_overflow), "500 errors");
    assert_others_go_on(&proxy);
}

/// hyper's own defaults differ, for example 200 streams and a header list of 16 KiB.
#[test]
fn http2_settings_announce_the_limits_of_a_client() {
    let (_origin, proxy) = start();
    let mut stream = open(&proxy);
    let settings = frames::read_settings(&mut stream);
    let expected = [
        (frames::MAX_CONCURRENT_STREAMS, 128),
        (frames::INITIAL_WINDOW_SIZE, 256 * 1024),
        (frames::MAX_HEADER_LIST_SIZE, 64 * 1024),
    ];
    each_row(expected, |(name, value)| {
        assert_eq!(settings.get(&name), Some(&value), "{name}: {settings:?}");
    });
}

/// h2 bounds floods of CONTINUATION, SETTINGS, PING and empty DATA, in code that the proxy cannot
/// configure. The tests of this file passed with this version. Before you change the version here,
/// run these tests with the new version, and read h2's changelog for these limits.
#[test]
fn the_floods_that_h2_bounds_were_tested_with_this_version_of_h2() {
    let lock = include_str!("../../Cargo.lock");
    let packages = lock.split("[[package]]").map(str::trim_start);
    let h2: Vec<_> = packages
        .filter(|package| package.starts_with("name = \"h2\""))
        .collect();
    assert_eq!(h2.len(), 1, "versions of h2 in Cargo.lock: {h2:?}");
    assert!(h2[0].contains("version = \"0.4.20\""), "{}", h2[0]);
}

#[test]
fn a_flood_of_stream_errors_closes_its_connection() {
    let (origin, proxy) = start();
    let mut stream = open(&proxy);
    let ended = flood(&mut stream, 20_000, window_overflow);
    assert_closed(&mut stream, ended);
    assert_others_go_on(&proxy);
    let reached = origin.seen().len();
    assert!(reached < 2_000, "{reached} requests got through");
}

#[test]
fn a_head_that_never_ends_closes_its_connection() {
    let (origin, proxy) = start();
    each_row(
        [
            vec![],
            frames::literal("x-more", &"a".repeat(100)).repeat(8),
        ],
        |piece| {
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
        },
    );
    assert!(origin.seen().iter().all(|seen| seen.target == "/echo"));
}

#[test]
fn the_proxy_stops_reading_floods_of_settings_and_pings() {
    let (_origin, proxy) = start();
    let before = proxy.memory("VmRSS");
    each_row(
        [(frames::SETTINGS, vec![]), (frames::PING, vec![7; 8])],
        |(kind, payload)| {
            let mut stream = open(&proxy);
            let block = frame(kind, 0, 0, &payload).repeat(1000);
            let ended = flood(&mut stream, 4_000, |_| block.clone());
            assert_ne!(
                ended,
                Ended::Taken,
                "{kind}: four million frames were taken"
            );
            assert_others_go_on(&proxy);
        },
    );
    assert_memory(&proxy, before);
}

#[test]
fn a_flood_of_empty_data_takes_bounded_memory() {
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

/// A request, and a WINDOW_UPDATE that raises its stream's window above 2^31 - 1: a stream error,
/// for which the proxy must reset the stream (RFC 9113, section 6.9.1). h2 would treat an increment
/// of 0 as a connection error.
fn window_overflow(number: u32) -> Vec<u8> {
    let id = number * 2 + 1;
    let mut frames = frames::request(id, &frames::get(HOST, "/slow/1000"));
    let most = i32::MAX.to_be_bytes();
    frames.extend(frame(frames::WINDOW_UPDATE, 0, id, &most));
    frames
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

/// Writes up to `most` blocks of frames, without reading, until the proxy closes the connection or
/// stops reading.
fn flood(stream: &mut Tls, most: u32, frames: impl Fn(u32) -> Vec<u8>) -> Ended {
    for number in 0..most {
        let bytes = frames(number);
        if let Err(error) = stream.conn.writer().write_all(&bytes) {
            panic!("the TLS session accepts no more plaintext: {error}");
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

/// Whether a connection still acknowledges a PING after `count` blocks of frames, written at once
/// so that the proxy reads all of them before it serves the first stream.
fn survives(proxy: &Proxy, count: u32, frames: impl Fn(u32) -> Vec<u8>) -> bool {
    let mut stream = open(proxy);
    let mut bytes: Vec<u8> = (0..count).flat_map(frames).collect();
    bytes.extend(frame(frames::PING, 0, 0, &[1; 8]));
    stream.write_all(&bytes).is_ok() && frames::read_until_pong(&mut stream)
}

#[track_caller]
fn assert_closed(stream: &mut Tls, ended: Ended) {
    assert!(
        ended == Ended::Closed || frames::read_until_closed(stream),
        "the connection was not closed: {ended:?}"
    );
}

/// Asserts that a request of another container, on another connection, gets a 200.
#[track_caller]
fn assert_others_go_on(proxy: &Proxy) {
    let second = std::net::Ipv4Addr::new(127, 0, 0, 2);
    let curl = proxy.curl_from(second, &[&format!("https://{HOST}/echo")]);
    assert_eq!(curl.status, 200, "{curl:?}");
}

#[track_caller]
fn assert_memory(proxy: &Proxy, before: u64) {
    let grown = proxy.memory("VmRSS").saturating_sub(before);
    assert!(grown < 48 * 1024, "memory grew by {grown} KiB");
}
