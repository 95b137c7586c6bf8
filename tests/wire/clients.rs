//! curl, git, Python, Node.js and OpenSSL through the proxy.

use std::io::Write;
use std::process::Stdio;

use crate::support::{Origin, Proxy};

use testkit::each_row;

#[test]
fn curl_speaks_http1_and_http2_through_a_tunnel() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    each_row(
        [("--http1.1", "1.1"), ("--http2", "2")],
        |(option, version)| {
            let curl = proxy.curl(&[
                option,
                "--data",
                "hello",
                "https://api.example.com/echo?a=b",
            ]);
            assert_eq!((curl.connect, curl.status), (200, 200), "{curl:?}");
            assert_eq!(curl.version, version);
            let echo = curl.json();
            assert_eq!(echo["method"], "POST");
            assert_eq!(echo["target"], "/echo?a=b");
            assert_eq!(echo["authority"], "api.example.com");
            assert_eq!(echo["body"], "hello");
        },
    );
}

#[test]
fn curl_fetches_plain_http() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let curl = proxy.curl(&["http://plain.example.com/echo"]);
    assert_eq!((curl.connect, curl.status), (0, 200), "{curl:?}");
    assert_eq!(origin.only().authority, "plain.example.com");
}

#[test]
fn curl_shows_the_reason_of_a_denied_tunnel() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let curl = proxy.curl(&["--verbose", "https://blocked.example.org/"]);
    assert_eq!((curl.exit, curl.connect), (56, 403), "{curl:?}");
    assert!(
        curl.stderr
            .contains("403 Domain not allowed: blocked.example.org")
    );
}

#[test]
fn git_clones_and_pushes_over_https() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let bare = origin.create_repository("team/project");
    let bare = bare.to_str().unwrap();
    let git = |arguments: &[&str]| proxy.run("git", arguments).ok();

    git(&[
        "clone",
        "--quiet",
        "https://git.example.com/team/project.git",
        "copy",
    ]);
    std::fs::write(proxy.path("copy/file"), "content\n".repeat(1000)).unwrap();
    git(&["-C", "copy", "add", "file"]);
    let author = [
        "-c",
        "user.name=Tester",
        "-c",
        "user.email=tester@example.com",
    ];
    git(&[
        &["-C", "copy"],
        &author[..],
        &["commit", "--quiet", "-m", "Add a file"],
    ]
    .concat());
    git(&[
        "-C",
        "copy",
        "push",
        "--quiet",
        "origin",
        "HEAD:refs/heads/main",
    ]);
    git(&[
        "clone",
        "--quiet",
        "https://git.example.com/team/project.git",
        "second",
    ]);

    let head = |at: &str| git(&["-C", at, "rev-parse", "HEAD"]);
    assert_eq!(head("copy"), head("second"));
    assert_eq!(head("copy"), git(&["-C", bare, "rev-parse", "main"]));
}

#[test]
fn pythons_urllib_fetches() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let script = "import urllib.request as u\n\
                  for url in 'https://api.example.com/echo', 'http://plain.example.com/echo':\n  \
                      print(u.urlopen(url).status)";
    assert_eq!(proxy.run("python3", &["-c", script]).ok(), "200\n200\n");
    assert_eq!(origin.seen().len(), 2);
}

#[test]
fn pythons_requests_fetches_and_reads_a_denial() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let script = "import requests\n\
                  with requests.Session() as s:\n  \
                      print(s.post('https://api.example.com/echo', json={}).json()['method'])\n  \
                      print(s.get('http://blocked.example.org/').json()['code'])";
    let out = proxy.run("python3", &["-c", script]).ok();
    assert_eq!(out, "POST\ndomain_not_allowed\n");
}

#[test]
fn nodes_https_fetches_through_an_agent_that_keeps_its_tunnel() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let script = "
        const agent = new Tunnels({ keepAlive: true, maxSockets: 1 });
        const get = (path) => new Promise((done, failed) => https
            .get({ host: 'api.example.com', path, agent }, (answer) => {
                answer.resume().on('end', () => done(answer.statusCode));
            })
            .on('error', failed));
        (async () => {
            console.log(await get('/echo/1'), await get('/echo/2'));
            agent.destroy();
        })();";
    assert_eq!(proxy.node(script).ok(), "200 200\n");
    let seen = origin.seen();
    assert_eq!(seen[0].connection, seen[1].connection);
}

#[test]
fn openssl_verifies_the_leaf_through_a_connect() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let mut child = proxy
        .command("openssl")
        .args(["s_client", "-quiet", "-verify_return_error"])
        .args(["-connect", "api.example.com:443", "-proxy"])
        .arg(proxy.address.to_string())
        .arg("-CAfile")
        .arg(proxy.ca())
        .args(["-verify_hostname", "api.example.com"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let request = "GET /echo HTTP/1.1\r\nHost: api.example.com\r\nConnection: close\r\n\r\n";
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(request.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    drop(stdin);
    let out = String::from_utf8_lossy(&output.stdout);
    assert!(out.starts_with("HTTP/1.1 200"), "{out}{output:?}");
}
