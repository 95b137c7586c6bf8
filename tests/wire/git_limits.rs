//! Pushes that are large, incomplete, compressed or malformed.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::iter;
use http::Request;
use http_body::Frame;
use http_body_util::StreamBody;
use serde_json::json;
use testkit::each_row;

use crate::git::{Forge, HOST};
use crate::support::{SOON, Setup, eventually, incompressible, read_reply};

const MB: usize = 1 << 20;
const PIECE: usize = 16 * 1024;

/// Commits a file of incompressible bytes, and makes git push over HTTP/1.1. git sends a large push
/// in chunks. Over HTTP/2, some releases of libcurl wait for data after the last chunk, and git
/// hangs.
fn commit_noise(forge: &Forge, bytes: usize) {
    forge.work(&["config", "http.version", "HTTP/1.1"]).ok();
    std::fs::write(forge.proxy.path("work/noise"), incompressible(bytes)).unwrap();
    forge.work(&["add", "noise"]).ok();
    forge.work(&["commit", "--quiet", "-m", "Add noise"]).ok();
}

fn limited(limit: usize) -> impl FnOnce(&mut Setup) {
    move |setup| {
        let git = &mut setup.policy.as_mut().unwrap()["git"];
        git["push_limits"] = json!({ "warning_bytes": MB, "hard_limit_bytes": limit });
    }
}

/// The commands of a push that creates `main`, with the flush packet and without the pack.
fn creation() -> String {
    let id = "0123456789abcdef0123456789abcdef01234567";
    let zero = "0".repeat(40);
    let line = format!("{zero} {id} refs/heads/main\0 report-status");
    format!("{:04x}{line}0000", line.len() + 4)
}

fn head(fields: &str) -> String {
    format!("POST /acme/web.git/git-receive-pack HTTP/1.1\r\nHost: git.example.com\r\n{fields}\r\n")
}

#[test]
fn chunked_pushes_pass_and_a_large_one_logs_a_warning() {
    let forge = Forge::with(limited(100 * MB), json!({}));
    commit_noise(&forge, 3 * MB);
    forge
        .work(&[
            "-c",
            "http.postBuffer=65536",
            "push",
            "--quiet",
            "origin",
            "main",
        ])
        .ok();
    assert_eq!(forge.at_origin("main"), forge.head());
    let seen = forge.origin.seen();
    assert_eq!(
        seen.last().unwrap().header("transfer-encoding"),
        Some("chunked"),
        "{seen:?}"
    );
    eventually("the warning is logged", SOON, || {
        forge.proxy.log().contains("a large push passed")
    });
}

#[test]
fn a_push_over_the_limit_moves_no_ref_and_git_shows_why() {
    // The next test sends chunks over HTTP/2, without git: see `commit_noise`.
    each_row(
        [
            ("65536", "HTTP/1.1"),
            ("20000000", "HTTP/1.1"),
            ("20000000", "HTTP/2"),
        ],
        |(buffer, version)| {
            let forge = Forge::with(limited(2 * MB), json!({}));
            commit_noise(&forge, 3 * MB);
            let buffer = format!("http.postBuffer={buffer}");
            let version = format!("http.version={version}");
            let ran = forge.work(&["-c", &buffer, "-c", &version, "push", "origin", "main"]);
            assert_eq!(ran.code, Some(1), "{buffer} {version} {ran:?}");
            let said = &ran.stderr;
            assert!(
                said.contains("Push size exceeds limit"),
                "{buffer} {version} {said}"
            );
            assert!(
                said.contains("remote: Use Git LFS for large binary files"),
                "{said}"
            );
            assert_eq!(forge.at_origin("main"), None);
            forge.proxy.audited(json!({
                "code": "push_too_large", "status": 413, "addon": "git",
                "rule": "git.push_limits.hard_limit_bytes",
            }));
        },
    );
}

/// libcurl loops without end if the response arrives before libcurl has sent the whole body, so the
/// proxy must not respond earlier.
#[test]
fn a_push_over_the_limit_in_chunks_over_http2_is_answered_after_the_whole_body() {
    let forge = Forge::with(limited(2 * MB), json!({}));
    let pieces = 3 * MB / PIECE;
    let sent = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&sent);
    let pack = (0..pieces).map(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        Bytes::from_static(&[0; PIECE])
    });
    let body = std::iter::once(Bytes::from(creation())).chain(pack);
    let body = StreamBody::new(iter(body.map(Frame::data).map(Ok)));
    let request = Request::post("https://git.example.com/acme/web.git/git-receive-pack")
        .body(body)
        .unwrap();
    let reply = forge.proxy.h2_upload("git.example.com", request).unwrap();
    assert_eq!(sent.load(Ordering::SeqCst), pieces);
    assert_eq!(reply.status, 200);
    assert_eq!(reply.headers["x-proxy-denied"], "push_too_large");
    let said = String::from_utf8_lossy(&reply.body);
    assert!(said.contains("Push size exceeds limit"), "{said}");
}

#[test]
fn a_content_length_over_the_push_limit_is_refused_before_the_origin_is_contacted() {
    let forge = Forge::with(
        |setup| {
            limited(MB)(setup);
            setup.policy.as_mut().unwrap()["git"]["push_denials"] = "status".into();
        },
        json!({}),
    );
    let reply = forge
        .proxy
        .https("git.example.com", head("Content-Length: 250000000\r\n"));
    reply.assert_denied(413, "push_too_large", "Push size exceeds limit");
    let said = reply.json();
    assert_eq!(said["details"]["push_size_human"], "238.4 MB");
    assert_eq!(said["details"]["limit_human"], "1 MB");
    assert_eq!(said["guidance"]["options"].as_array().unwrap().len(), 3);
    let example = "git push origin HEAD~50:refs/heads/branch";
    assert_eq!(said["guidance"]["example"][0], example);
    forge.origin.assert_untouched();
}

#[test]
fn a_limit_of_the_repository_replaces_that_of_the_policy() {
    let repos = json!([{ "name": "acme/web", "max_receive_pack_bytes": 5 * MB }]);
    let forge = Forge::with(limited(2 * MB), json!({ "repos": repos }));
    commit_noise(&forge, 3 * MB);
    forge.work(&["push", "--quiet", "origin", "main"]).ok();
    assert_eq!(forge.at_origin("main"), forge.head());
    commit_noise(&forge, 6 * MB);
    let said = forge.denied_push(&["main"]);
    assert!(said.contains("Push size exceeds limit"), "{said}");
}

/// Runs the loop of docs/git.md, with 1 commit for each push instead of 50.
#[test]
fn commits_that_are_too_large_together_pass_one_after_the_other() {
    let forge = Forge::with(limited(2 * MB), json!({}));
    forge.work(&["push", "--quiet", "origin", "main"]).ok();
    for part in incompressible(4 * MB).chunks(MB) {
        std::fs::write(forge.proxy.path("work/part"), part).unwrap();
        forge.work(&["add", "part"]).ok();
        forge.work(&["commit", "--quiet", "-m", "Part"]).ok();
    }
    forge.work(&["config", "http.version", "HTTP/1.1"]).ok();
    let said = forge.denied_push(&["HEAD:refs/heads/feature"]);
    assert!(said.contains("Push size exceeds limit"), "{said}");
    let guide = include_str!("../../docs/git.md");
    let (_, found) = guide.split_once("for commit in ").unwrap();
    let (chunks, _) = found.split_once("```").unwrap();
    let script = format!("cd work && for commit in {chunks}").replace("% 50", "% 1");
    forge.proxy.run("bash", &["-ec", &script]).ok();
    assert_eq!(forge.at_origin("feature"), forge.head());
}

#[test]
fn nothing_reaches_the_origin_before_the_commands_are_judged() {
    let forge = Forge::start();
    let mut stream = forge.proxy.tls("git.example.com");
    let body = creation();
    let (first, rest) = body.split_at(60);
    let fields = format!("Content-Length: {}\r\n", body.len());
    stream
        .write_all((head(&fields) + first).as_bytes())
        .unwrap();
    stream.flush().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    forge.origin.assert_untouched();
    stream.write_all(rest.as_bytes()).unwrap();
    read_reply(&mut stream).unwrap();
    assert_eq!(forge.pushes_seen(), 1);
}

#[test]
fn a_push_that_breaks_off_moves_no_ref() {
    let forge = Forge::start();
    forge.work(&["push", "--quiet", "origin", "main"]).ok();
    let before = forge.at_origin("main");
    let mut stream = forge.proxy.tls("git.example.com");
    let zero = "0".repeat(40);
    let line = format!(
        "{zero} {} refs/heads/cut\0 report-status",
        before.as_deref().unwrap().trim()
    );
    let commands = format!("{:04x}{line}0000PACK", line.len() + 4);
    stream
        .write_all((head("Content-Length: 5000\r\n") + &commands).as_bytes())
        .unwrap();
    stream.flush().unwrap();
    eventually("the push is under way", SOON, || forge.pushes_seen() > 1);
    drop(stream);
    forge
        .proxy
        .audited(json!({ "path": "/acme/web.git/git-receive-pack", "bytes_in": commands.len() }));
    assert_eq!(forge.at_origin("cut"), None);
    assert_eq!(forge.at_origin("main"), before);
}

#[test]
fn compressed_and_malformed_pushes_are_refused() {
    let forge = Forge::start();
    let compressed = head("Content-Encoding: gzip\r\nContent-Length: 4\r\n") + "0000";
    let reply = forge.proxy.https("git.example.com", compressed);
    reply.assert_denied(415, "unsupported_encoding", "Unsupported encoding");
    each_row(["0001", "0003", "xxxx", "0004", "PACK", "", "00"], |body| {
        let request = head(&format!("Content-Length: {}\r\n", body.len())) + body;
        let reply = forge.proxy.https("git.example.com", request);
        reply.assert_denied(400, "malformed_request", "Malformed request");
    });
    forge.origin.assert_untouched();
    let probe = forge
        .proxy
        .https("git.example.com", head("Content-Length: 4\r\n") + "0000");
    assert_ne!(probe.header("x-proxy-denied"), Some("malformed_request"));
    assert_eq!(forge.origin.seen().len(), 1);
}

#[test]
fn a_push_of_90_mb_raises_memory_by_less_than_20_mb() {
    let forge = Forge::start();
    forge
        .git(&["ls-remote", "--quiet", &format!("{HOST}/acme/web")])
        .ok();
    let before = forge.proxy.memory("VmHWM");
    let mut stream = forge.proxy.tls("git.example.com");
    let begin = creation();
    let length = begin.len() + 90 * MB;
    stream
        .write_all((head(&format!("Content-Length: {length}\r\n")) + &begin).as_bytes())
        .unwrap();
    let block = vec![0; MB];
    for _ in 0..90 {
        stream.write_all(&block).unwrap();
    }
    stream.flush().unwrap();
    read_reply(&mut stream).unwrap();
    assert_eq!(
        forge.origin.seen().last().unwrap().received(),
        length as u64
    );
    let grown = forge.proxy.memory("VmHWM") - before;
    assert!(grown < 20 * 1024, "{grown} KiB");
}
