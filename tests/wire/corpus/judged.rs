//! Denials of requests with bodies that the proxy must read before it decides. Such a body takes
//! too long to arrive, or the memory for these bodies is used up.

use std::io::Write;
use std::net::TcpStream;

use addons::contract::Code;
use serde_json::json;

use super::files::Transcripts;
use super::recorder::Recorder;
use super::request_spec::{Ingress, RequestSpec};
use crate::support::{Origin, Proxy, SANDBOX, SOON, Setup, eventually};

pub fn record_time_outs() -> Transcripts {
    let origin = Origin::start();
    let mut files = Vec::new();
    for push_denials in ["report", "status"] {
        let mut recorder = start(&origin, push_denials, "1s");
        bodies(&mut recorder, Code::BodyTimeout);
        files.extend(recorder.finish());
    }
    files
}

pub fn record_memory() -> Transcripts {
    let origin = Origin::start();
    let mut files = Vec::new();
    for push_denials in ["report", "status"] {
        let mut recorder = start(&origin, push_denials, "60s");
        let held = exhaust_memory(&recorder.proxy);
        bodies(&mut recorder, Code::InspectionBusy);
        drop(held);
        files.extend(recorder.finish());
    }
    files
}

fn start(origin: &Origin, push_denials: &str, inspect_timeout: &str) -> Recorder {
    let mut setup = Setup::new(origin);
    setup.containers.clear();
    setup.host("git-plain.example.com", origin.http);
    setup.host("api-plain.example.com", origin.http);
    setup.proxy["limits"] = json!({ "inspect_memory": "1MB", "inspect_timeout": inspect_timeout });
    setup.policy = Some(json!({ "version": 1, "git": {
        "hosts": [
            { "host": "git.example.com", "api": "api.example.com" },
            { "host": "git-plain.example.com", "api": "api-plain.example.com" },
        ],
        "push_denials": push_denials,
    } }));
    let proxy = setup.start();
    proxy.register_as(json!({
        "container_ip": "127.0.0.1", "container_id": SANDBOX, "repos": ["acme/web"],
    }));
    let recorder = Recorder::new(proxy, origin, Vec::new());
    match push_denials {
        "status" => recorder.of_pushes(),
        _ => recorder,
    }
}

/// Sends requests with unfinished bodies until one is denied for lack of memory, and returns the
/// connections of the others. Waits until each body is held or denied before it sends the next, so
/// that the container's share of the memory is used up when the first denial is recorded.
fn exhaust_memory(proxy: &Proxy) -> Vec<TcpStream> {
    let spec = RequestSpec::plain("api")
        .post("/graphql", "")
        .announcing(10);
    let mut held = Vec::new();
    loop {
        let reserved = || proxy.metric("proxy_inspection_memory_bytes", &[]);
        let before = reserved();
        let mut stream = proxy.dial();
        stream.write_all(&spec.bytes()).unwrap();
        stream.set_nonblocking(true).unwrap();
        let mut denied = false;
        eventually("the body is held or denied", SOON, || {
            denied = stream.peek(&mut [0]).is_ok();
            denied || reserved() > before
        });
        if denied {
            return held;
        }
        held.push(stream);
    }
}

/// Records denials of requests whose bodies never end.
fn bodies(recorder: &mut Recorder, code: Code) {
    let change = |spec: RequestSpec| spec.post("/graphql", "{\"query\":").announcing(1000);
    recorder.deny(code, Ingress::Plain, "", &change(RequestSpec::plain("api")));
    recorder.deny(code, Ingress::Http1, "", &change(RequestSpec::http1("api")));
    recorder.deny(code, Ingress::Http2, "", &change(RequestSpec::http2("api")));
    let push = RequestSpec::http1("git").push_of("0fff").announcing(1000);
    recorder.deny(code, Ingress::PushReport, "", &push);
}
