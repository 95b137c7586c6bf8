//! Memory of an idle sidecar, and while it relays 256 MiB of output.

use std::io::Read as _;
use std::io::Write as _;
use std::os::unix::net::UnixStream;

use serde_json::json;

use crate::support::{STEP_TIMEOUT, Sidecar};

#[test]
fn an_idle_sidecar_has_less_than_4_mib_of_anonymous_memory() {
    let sidecar = Sidecar::start();
    sidecar.assert_serves();
    sidecar.bash("true");
    sidecar.post("/ls", &json!({}));
    // Counts only anonymous memory: pages of the program's file are shared, and a debug build has
    // many of them.
    let own = sidecar.memory("RssAnon");
    assert!(own < 4 * 1024, "{own} KiB");
}

#[test]
fn output_of_256_mib_grows_the_memory_by_less_than_2_mib() {
    const OUTPUT: u64 = 256 << 20;
    let sidecar = Sidecar::start();
    sidecar.bash("seq 1 100000");
    let before = sidecar.memory("VmRSS");
    let command = format!("head -c {OUTPUT} /dev/zero | tr '\\0' x");
    let body = json!({ "command": command }).to_string();
    let mut socket = UnixStream::connect(sidecar.socket()).unwrap();
    socket.set_read_timeout(Some(STEP_TIMEOUT)).unwrap();
    let length = body.len();
    write!(
        socket,
        "POST /bash HTTP/1.1\r\nhost: s\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    let mut buffer = vec![0; 256 * 1024];
    let (mut received, mut most) = (0_u64, 0);
    let mut tail = Vec::new();
    while !tail.ends_with(b"0\r\n\r\n") {
        let read = socket.read(&mut buffer).unwrap();
        assert_ne!(read, 0);
        let after = received + read as u64;
        if received >> 24 != after >> 24 {
            most = most.max(sidecar.memory("VmRSS"));
        }
        received = after;
        tail.extend_from_slice(&buffer[read.saturating_sub(64)..read]);
        tail.drain(..tail.len().saturating_sub(128));
    }
    let tail = String::from_utf8(tail).unwrap();
    assert!(tail.contains(r#"{"type":"done","exitCode":0}"#), "{tail}");
    // The whole output, and little overhead: names of fields and sizes of chunks.
    assert!(
        received > OUTPUT && received < OUTPUT + (OUTPUT >> 5),
        "{received} bytes"
    );
    let grown = most.saturating_sub(before);
    assert!(grown < 2 * 1024, "memory grew by {grown} KiB");
}
