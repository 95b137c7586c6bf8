//! Limits of each container on requests and tunnels, and circuit breakers.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};

use crate::support::{
    Origin, Proxy, RawOrigin, Reply, SANDBOX, SECOND, SOON, Setup, eventually, handshake,
    read_connect_reply, read_reply,
};

fn with_second(origin: &Origin, policy: Value) -> Setup {
    let mut setup = Setup::new(origin);
    setup.policy = Some(policy);
    setup.containers.push((SECOND.to_string(), "second".into()));
    setup
}

/// Sends `count` requests on one connection, each when the previous response has arrived.
fn burst(proxy: &Proxy, count: usize) -> Vec<Reply> {
    let mut stream = proxy.tls("api.example.com");
    let request = "GET /status/204 HTTP/1.1\r\nHost: api.example.com\r\n\r\n";
    let replies = (0..count).map(|_| {
        stream.write_all(request.as_bytes()).unwrap();
        read_reply(&mut stream).unwrap()
    });
    replies.collect()
}

fn get_from(proxy: &Proxy, source: Ipv4Addr, url: &str) -> u16 {
    proxy.curl_from(source, &[url]).status
}

#[test]
fn a_burst_over_the_rate_limit_gets_429_and_other_hosts_and_containers_do_not() {
    let origin = Origin::start();
    let limits = json!({ "defaults": { "requests_per_second": 10, "burst_size": 200 } });
    let proxy = with_second(&origin, json!({ "version": 1, "rate_limits": limits })).start();
    let replies = burst(&proxy, 250);
    let passed = replies.iter().filter(|reply| reply.status == 204).count();
    assert!((200..250).contains(&passed), "{passed} passed");
    let rejected = replies.iter().find(|reply| reply.status == 429).unwrap();
    rejected.assert_denied(429, "rate_limited", "Rate limit exceeded");
    let body = rejected.json();
    assert_eq!(body["container_id"], SANDBOX);
    assert_eq!(body["upstream"], "api.example.com");
    assert_eq!(body["retry_after"], 1);
    assert_eq!(rejected.header("retry-after"), Some("1"));
    assert_eq!(origin.seen().len(), passed);
    // Another upstream and another container have separate buckets.
    assert_eq!(proxy.fetch("other.example.com", "/status/204").status, 204);
    let url = "http://plain.example.com/status/204";
    assert_eq!(get_from(&proxy, SECOND, url), 204);
    let labels = [
        &format!("container=\"{SANDBOX}\""),
        "upstream=\"api.example.com\"",
    ];
    let rejections = proxy.metric("proxy_rate_limit_rejected_total", &labels);
    assert_eq!(rejections as usize, 250 - passed);
    assert!(proxy.metric("proxy_rate_limit_bucket_tokens", &labels) <= 50.0);
    // The metrics of a container end with its registration.
    proxy.admin("DELETE", &format!("/internal/containers/{SANDBOX}"), None);
    let text = proxy.admin("GET", "/internal/metrics", None).text();
    assert!(!text.contains(labels[0]), "{text}");
}

#[test]
fn connects_do_not_count_against_the_request_rate_and_websockets_do() {
    let origin = Origin::start();
    let limits = json!({ "defaults": { "requests_per_second": 1, "burst_size": 1 } });
    let mut setup = Setup::new(&origin);
    setup.policy = Some(json!({ "version": 1, "rate_limits": limits }));
    let proxy = setup.start();
    for _ in 0..5 {
        proxy.tunnel("api.example.com:443");
    }
    let upgrade = [
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    ];
    let open = || proxy.https_get("api.example.com", "/websocket", &upgrade);
    assert_eq!(open().status, 101);
    open().assert_denied(429, "rate_limited", "");
}

/// Sends CONNECTs, each on a new connection, and returns the statuses of the responses.
fn connects(proxy: &Proxy, source: Ipv4Addr, authority: &str, count: usize) -> Vec<u16> {
    let ask = |_| proxy.connect_from(source, authority).0.status;
    (0..count).map(ask).collect()
}

#[test]
fn a_container_over_its_tunnel_rate_gets_429_and_others_do_not() {
    let origin = Origin::start();
    let disabled = json!({ "version": 1, "rate_limits": { "enabled": false } });
    let mut setup = with_second(&origin, disabled);
    setup.proxy["limits"]["tunnels_per_second"] = json!(1);
    let proxy = setup.start();
    let begun = Instant::now();
    // CONNECTs that policy denies count too: the rate is checked first.
    let mut statuses = connects(&proxy, Ipv4Addr::LOCALHOST, "blocked.example.org:443", 2);
    statuses.extend(connects(
        &proxy,
        Ipv4Addr::LOCALHOST,
        "api.example.com:443",
        8,
    ));
    let refilled = begun.elapsed().as_secs() as usize;
    let passed = statuses.iter().filter(|status| **status != 429).count();
    assert!((4..=4 + refilled).contains(&passed), "{statuses:?}");
    assert_eq!(statuses[..4], [403, 403, 200, 200]);

    let (rejected, _) = proxy.connect("api.example.com:443");
    rejected.assert_connect_denied(429, "rate_limited", "Rate limit exceeded");
    assert_eq!(rejected.header("retry-after"), Some("1"));
    let body = rejected.json();
    assert_eq!(body["container_id"], SANDBOX);
    assert_eq!(body["upstream"], "api.example.com");
    assert_eq!(body["retry_after"], 1);
    // Requests without a tunnel do not count.
    let plain =
        "GET http://plain.example.com/status/204 HTTP/1.1\r\nHost: plain.example.com\r\n\r\n";
    let mut kept = TcpStream::connect(proxy.address).unwrap();
    for _ in 0..10 {
        kept.write_all(plain.as_bytes()).unwrap();
        assert_eq!(read_reply(&mut kept).unwrap().status, 204);
    }
    let line = json!({ "kind": "tunnel", "code": "rate_limited", "addon": "rate_limit",
        "rule": "limits.tunnels_per_second", "host": "api.example.com" });
    proxy.audited(line);
    let labels = [
        &format!("container=\"{SANDBOX}\""),
        "upstream=\"api.example.com\"",
    ];
    assert!(proxy.metric("proxy_rate_limit_rejected_total", &labels) >= 1.0);
    let others = connects(&proxy, SECOND, "api.example.com:443", 4);
    assert_eq!(others, [200; 4]);
    eventually("a tunnel is granted again", SOON, || {
        proxy.connect("api.example.com:443").0.status == 200
    });
}

#[test]
fn the_tunnel_rate_applies_to_a_containers_socket_too() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.proxy["limits"]["tunnels_per_second"] = json!(1);
    let proxy = setup.start();
    let body = json!({ "listener": "unix", "container_id": "inner", "repos": [] });
    let reply = proxy.admin("POST", "/internal/containers", Some(body));
    let socket = PathBuf::from(reply.json()["socket"].as_str().unwrap());
    eventually("the socket exists", SOON, || socket.exists());
    let connect = |_| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        let head = "CONNECT api.example.com:443 HTTP/1.1\r\nHost: api.example.com\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        read_connect_reply(&mut stream).unwrap().status
    };
    let statuses: Vec<u16> = (0..8).map(connect).collect();
    assert_eq!(statuses[..4], [200; 4]);
    assert!(statuses.contains(&429), "{statuses:?}");
}

/// Opens a tunnel, does the TLS handshake in it, and returns how long both took; `None` if the
/// response to the CONNECT is 429.
fn open(proxy: &Proxy, source: Ipv4Addr) -> Option<Duration> {
    let begun = Instant::now();
    let (reply, stream) = proxy.connect_from(source, "api.example.com:443");
    if reply.status != 200 {
        assert_eq!(reply.status, 429);
        return None;
    }
    handshake(stream, "api.example.com", proxy.tls_config(&["http/1.1"])).unwrap();
    Some(begun.elapsed())
}

/// The median duration of [`open`] over 21 tunnels of the second container, none of which may be
/// refused.
fn median_of_new_tunnels(proxy: &Proxy) -> Duration {
    let mut times: Vec<_> = (0..21).map(|_| open(proxy, SECOND).unwrap()).collect();
    times.sort();
    times[10]
}

#[test]
fn a_flood_of_tunnels_is_limited_and_hardly_delays_other_containers() {
    const FLOODERS: usize = 3;
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.containers.push((SECOND.to_string(), "second".into()));
    let proxy = setup.start();
    median_of_new_tunnels(&proxy);
    let quiet = median_of_new_tunnels(&proxy);
    let (done, granted) = (AtomicBool::new(false), AtomicUsize::new(0));
    let begun = Instant::now();
    let flooded = std::thread::scope(|scope| {
        for _ in 0..FLOODERS {
            scope.spawn(|| {
                // The time limit ends the threads if the test fails meanwhile.
                while !done.load(Ordering::Relaxed) && begun.elapsed() < 2 * SOON {
                    let opened = open(&proxy, Ipv4Addr::LOCALHOST);
                    granted.fetch_add(usize::from(opened.is_some()), Ordering::Relaxed);
                }
            });
        }
        // When the proxy refuses the first tunnel, the burst is used up.
        eventually("the flood is refused", SOON, || {
            proxy.metric("proxy_rate_limit_rejected_total", &[SANDBOX]) > 0.0
        });
        let flooded = median_of_new_tunnels(&proxy);
        done.store(true, Ordering::Relaxed);
        flooded
    });
    // By default, a container may open 50 tunnels a second, with a burst of 200.
    let most = 200 + 50 * (1 + begun.elapsed().as_secs() as usize);
    let granted = granted.into_inner();
    assert!(
        (200..=most).contains(&granted),
        "{granted} tunnels were granted, allowed are 200 to {most}"
    );
    let bound = 8 * quiet + Duration::from_millis(20);
    assert!(
        flooded < bound,
        "a tunnel took {flooded:?} in the flood, {quiet:?} before"
    );
}

/// A policy.yaml with these defaults of circuit breakers; `recovery` is in seconds.
fn breakers(failures: u32, recovery: u32, successes: u32) -> Value {
    json!({ "version": 1, "circuit_breakers": { "defaults": {
        "failure_threshold": failures,
        "recovery_timeout": recovery,
        "success_threshold": successes,
    } } })
}

#[test]
fn the_circuit_of_an_unreachable_host_opens_for_all_containers_and_closes_after_probes() {
    let origin = Origin::start();
    let mut setup = with_second(&origin, breakers(3, 4, 2));
    // The socket is bound but does not listen yet, so connections to it are refused.
    let upstream = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    upstream.bind(&any.into()).unwrap();
    let address = upstream.local_addr().unwrap().as_socket().unwrap();
    setup.host("away.example.com", address);
    let proxy = setup.start();
    let url = "http://away.example.com/";
    for _ in 0..3 {
        proxy
            .get(url, &[])
            .assert_denied(502, "upstream_unreachable", "");
    }
    let begun = Instant::now();
    let reply = proxy.get(url, &[]);
    assert!(begun.elapsed() < SOON / 2);
    reply.assert_denied(503, "circuit_open", "Service temporarily unavailable");
    let body = reply.json();
    assert_eq!(body["reason"], "circuit_breaker_open");
    assert_eq!(body["upstream"], "away.example.com");
    let wait = reply.header("retry-after").unwrap();
    assert_eq!(body["retry_after"].to_string(), wait);
    assert_eq!(get_from(&proxy, SECOND, url), 503);
    let labels = ["upstream=\"away.example.com\""];
    assert_eq!(proxy.metric("proxy_circuit_breaker_state", &labels), 2.0);
    assert_eq!(
        proxy.metric("proxy_circuit_breaker_failures_total", &labels),
        3.0
    );
    let health = proxy.health();
    assert_eq!(health.status, 200);
    assert_eq!(health.json()["checks"]["circuits_closed"], false);
    // Once the upstream listens, probes close the circuit.
    upstream.listen(16).unwrap();
    let listener = TcpListener::from(upstream);
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut head = [0; 1024];
            let _ = stream.read(&mut head);
            let _ = stream.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n");
        }
    });
    eventually("a probe passes", SOON, || proxy.get(url, &[]).status == 204);
    assert_eq!(proxy.get(url, &[]).status, 204);
    eventually("the circuit closes", SOON, || {
        proxy.metric("proxy_circuit_breaker_state", &labels) == 0.0
    });
    assert_eq!(proxy.health().json()["checks"]["circuits_closed"], true);
}

#[test]
fn error_responses_open_the_circuit_only_for_the_container_that_got_them() {
    let origin = Origin::start();
    let proxy = with_second(&origin, breakers(3, 60, 1)).start();
    let failing = "http://plain.example.com/status/500";
    for _ in 0..3 {
        assert_eq!(get_from(&proxy, Ipv4Addr::LOCALHOST, failing), 500);
    }
    assert_eq!(get_from(&proxy, Ipv4Addr::LOCALHOST, failing), 503);
    assert_eq!(get_from(&proxy, SECOND, failing), 500);
}

#[test]
fn denials_do_not_open_a_circuit() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.policy = Some(breakers(1, 60, 1));
    let proxy = setup.start();
    for _ in 0..3 {
        let trace = "TRACE http://plain.example.com/ HTTP/1.1\r\nHost: plain.example.com\r\n\r\n";
        proxy
            .exchange(trace)
            .assert_denied(405, "method_not_allowed", "");
    }
    let url = "http://plain.example.com/status/204";
    assert_eq!(proxy.get(url, &[]).status, 204);
}

#[test]
fn a_probe_whose_client_disconnects_lets_another_probe_pass() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.policy = Some(breakers(1, 1, 1));
    // The upstream answers the first connection with 500, does not answer the second, and answers
    // all later ones with 204.
    let turn = AtomicUsize::new(0);
    let flaky = RawOrigin::start(move |mut stream| {
        let mut head = [0; 1024];
        let _ = stream.read(&mut head)?;
        match turn.fetch_add(1, Ordering::AcqRel) {
            0 => stream.write_all(b"HTTP/1.1 500 Broken\r\nConnection: close\r\n\r\n"),
            1 => stream.read_exact(&mut head),
            _ => stream.write_all(b"HTTP/1.1 204 Well\r\nConnection: close\r\n\r\n"),
        }
    });
    setup.host("flaky.example.com", flaky.address);
    let proxy = setup.start();
    let url = "http://flaky.example.com/";
    assert_eq!(proxy.get(url, &[]).status, 500);
    assert_eq!(proxy.get(url, &[]).status, 503);
    std::thread::sleep(Duration::from_millis(1200));
    let mut probe = proxy.dial();
    write!(
        probe,
        "GET {url} HTTP/1.1\r\nHost: flaky.example.com\r\n\r\n"
    )
    .unwrap();
    eventually("the probe is under way", SOON, || flaky.connections() == 2);
    assert_eq!(proxy.get(url, &[]).status, 503, "one probe at a time");
    drop(probe);
    eventually("another probe passes", SOON, || {
        proxy.get(url, &[]).status == 204
    });
}
