//! The sixteen steps with which an operator verifies an installation, and the checks of identity;
//! tests/README.md lists both. The tests use clients that a sandbox has.
//!
//! One check has no test here: a client address that cannot be determined is denied. The kernel
//! always provides the address, so a unit test of the identity addon covers the check.

use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use testkit::each_row;

use crate::support::{
    Nameserver, Origin, Proxy, SANDBOX, SECOND, SOON, Setup, UNKNOWN_SOURCE, closed_address,
    eventually,
};

const OWN: &str = "https://github.com/owner/authorized-repo";
const OTHER: &str = "https://github.com/owner/other-repo";
const USER: &str = "https://api.github.com/user";

/// A proxy with two registered sandboxes, each with one repository, and the origin and nameserver
/// that stand in for the internet.
struct Fixture {
    origin: Origin,
    nameserver: Nameserver,
    proxy: Proxy,
}

fn start() -> Fixture {
    start_with(|_| ())
}

fn start_with(change: impl FnOnce(&mut Setup)) -> Fixture {
    let origin = Origin::scripted(|seen, _body| match (&*seen.method, &*seen.target) {
        ("GET", "/user") => Some((200, json!({ "login": "ann" }))),
        ("POST", "/v1/messages") => Some((200, json!({ "type": "message" }))),
        _ => None,
    });
    for name in ["owner/authorized-repo", "owner/other-repo"] {
        origin.create_repository(name);
    }
    let nameserver = Nameserver::start(&[("evil.example.com", &[Ipv4Addr::new(127, 1, 2, 3)])]);
    let mut setup = Setup::new(&origin);
    setup.allowlist["domains"] = json!([]);
    for host in ["github.com", "api.github.com", "api.anthropic.com"] {
        setup.host(host, origin.https);
    }
    setup.proxy["upstream"]["nameservers"] = json!([nameserver.address.to_string()]);
    setup.env.extend([
        ("ANTHROPIC_API_KEY".to_owned(), "sk-ant-real".to_owned()),
        ("GITHUB_TOKEN".to_owned(), "ghp-real".to_owned()),
    ]);
    setup.credential(json!({
        "name": "anthropic", "hosts": ["api.anthropic.com"],
        "set_headers": { "x-api-key": "${ANTHROPIC_API_KEY}" }, "remove_headers": ["authorization"],
    }));
    setup.credential(json!({
        "name": "github-api", "hosts": ["api.github.com"], "bearer": "${GITHUB_TOKEN}",
    }));
    setup.containers.clear();
    change(&mut setup);
    let proxy = setup.start();
    for (address, id, repo) in [
        (Ipv4Addr::LOCALHOST, SANDBOX, "owner/authorized-repo"),
        (SECOND, "second", "owner/other-repo"),
    ] {
        proxy.register_as(json!({ "container_ip": address, "container_id": id, "repos": [repo] }));
    }
    Fixture {
        origin,
        nameserver,
        proxy,
    }
}

impl Fixture {
    /// Clones the sandbox's repository as `copy` and pushes a commit to two branches of the
    /// repository.
    fn clone_with_a_commit(&self) {
        let git = |arguments: &[&str]| self.proxy.run("git", arguments).ok();
        git(&["clone", "--quiet", OWN, "copy"]);
        let person = ["-c", "user.name=Ann", "-c", "user.email=ann@example.com"];
        let commit = ["commit", "--quiet", "--allow-empty", "--message", "First"];
        git(&[&["-C", "copy"], &person[..], &commit].concat());
        git(&[
            "-C",
            "copy",
            "push",
            "--quiet",
            "origin",
            "HEAD:main",
            "HEAD:feature-branch",
        ]);
    }

    /// Requests `/user` of the API. Returns the status of the response to the CONNECT if it is not
    /// 200, otherwise the status of the response to the request.
    fn user_status(&self, source: Ipv4Addr, arguments: &[&str]) -> u16 {
        let curl = self.proxy.curl_from(source, &[arguments, &[USER]].concat());
        if curl.connect == 200 {
            curl.status
        } else {
            curl.connect
        }
    }
}

#[test]
fn step_1_an_authorized_repository_is_cloned() {
    let fixture = start();
    fixture.clone_with_a_commit();
    fixture
        .proxy
        .run("git", &["clone", "--quiet", OWN, "second"])
        .ok();
    let head = |at: &str| {
        fixture
            .proxy
            .run("git", &["-C", at, "rev-parse", "HEAD"])
            .ok()
    };
    assert_eq!(head("copy"), head("second"));
}

#[test]
fn step_2_another_repository_is_not_cloned() {
    let fixture = start();
    let ran = fixture.proxy.run("git", &["clone", OTHER, "copy"]);
    assert_eq!(ran.code, Some(128));
    assert!(
        ran.stderr.contains("The requested URL returned error: 403"),
        "{ran:?}"
    );
    fixture.origin.assert_untouched();
}

/// git does not show the body of a 403 to a push, so the response is a 200 with git's own report of
/// the reason. The audit line has the status 403.
#[test]
fn step_3_a_branch_is_not_deleted() {
    let fixture = start();
    fixture.clone_with_a_commit();
    let delete = ["-C", "copy", "push", "origin", "--delete", "feature-branch"];
    let ran = fixture.proxy.run("git", &delete);
    assert_eq!(ran.code, Some(1));
    let shown = "Branch deletion blocked: refs/heads/feature-branch";
    assert!(ran.stderr.contains(shown), "{ran:?}");
    let kept = fixture
        .proxy
        .run("git", &["ls-remote", "--exit-code", OWN, "feature-branch"]);
    assert_eq!(kept.code, Some(0));
    let denied = json!({ "code": "branch_deletion_blocked", "status": 403, "outcome": "denied" });
    fixture.proxy.audited(denied);
}

#[test]
fn step_4_a_pull_request_is_not_merged() {
    let fixture = start();
    let merge = [
        "pr",
        "merge",
        "123",
        "--merge",
        "--repo",
        "owner/authorized-repo",
    ];
    let ran = fixture.proxy.gh(&merge);
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr.contains("PR merge blocked - use GitHub UI"),
        "{ran:?}"
    );
    let rest = "https://api.github.com/repos/owner/authorized-repo/pulls/123/merge";
    let curl = fixture.proxy.curl(&["--request", "PUT", rest]);
    assert_eq!(
        (curl.status, &curl.json()["code"]),
        (403, &json!("api_blocked"))
    );
    let asked = |seen: &crate::support::Seen| seen.method == "PUT";
    assert!(!fixture.origin.seen().iter().any(asked));
}

#[test]
fn step_5_an_allowed_api_is_called_with_the_key_injected() {
    let fixture = start();
    let url = "https://api.anthropic.com/v1/messages";
    let curl = fixture.proxy.curl(&["--data", "{}", url]);
    assert_eq!(
        (curl.status, &curl.json()["type"]),
        (200, &json!("message"))
    );
    let python = "import requests\n\
                  answer = requests.post('https://api.anthropic.com/v1/messages', json={},\n    \
                      headers={'x-api-key': 'up-placeholder', 'authorization': 'Bearer own'})\n\
                  print(answer.json()['type'])";
    assert_eq!(
        fixture.proxy.run("python3", &["-c", python]).ok(),
        "message\n"
    );
    let node = "
        const agent = new Tunnels();
        https.request({ host: 'api.anthropic.com', path: '/v1/messages', method: 'POST', agent },
            (answer) => { console.log(answer.statusCode); answer.resume(); }).end('{}');";
    assert_eq!(fixture.proxy.node(node).ok(), "200\n");
    let seen = fixture.origin.seen();
    assert_eq!(seen.len(), 3);
    for seen in seen {
        assert_eq!(seen.header("x-api-key"), Some("sk-ant-real"));
        assert_eq!(seen.header("authorization"), None);
    }
}

#[test]
fn step_6_an_unknown_source_is_rejected() {
    let fixture = start();
    let curl = fixture
        .proxy
        .curl_from(UNKNOWN_SOURCE, &["--verbose", USER]);
    assert_eq!((curl.exit, curl.connect), (56, 403));
    assert!(curl.stderr.contains("403 Unknown source IP"), "{curl:?}");
    fixture.origin.assert_untouched();
}

#[test]
fn step_7_registrations_survive_a_restart() {
    let mut fixture = start();
    assert_eq!(fixture.user_status(Ipv4Addr::LOCALHOST, &[]), 200);
    fixture.proxy.signal(Signal::TERM);
    assert!(fixture.proxy.wait(SOON).success());
    fixture.proxy.restart();
    assert_eq!(fixture.user_status(Ipv4Addr::LOCALHOST, &[]), 200);
}

#[test]
fn step_8_a_listed_name_resolves() {
    let fixture = start();
    let answer = fixture.proxy.dig(Ipv4Addr::LOCALHOST, &["api.github.com"]);
    assert!(answer.contains("status: NOERROR"), "{answer}");
    assert!(answer.contains("\t127.0.0.1\n"), "{answer}");
}

#[test]
fn step_9_a_name_that_is_not_listed_gets_nxdomain() {
    let fixture = start();
    let answer = fixture
        .proxy
        .dig(Ipv4Addr::LOCALHOST, &["evil.example.com"]);
    assert!(answer.contains("status: NXDOMAIN"), "{answer}");
    assert!(fixture.nameserver.asked().is_empty());
}

/// The body of the response to a GET over the admin socket. Panics unless the status is below 400.
fn internal(fixture: &Fixture, path: &str) -> String {
    let socket = fixture.proxy.path("api.sock");
    let (socket, url) = (socket.to_str().unwrap(), format!("http://localhost{path}"));
    // `--noproxy` makes curl connect to the socket instead of the proxy.
    let arguments = [
        "--silent",
        "--fail",
        "--noproxy",
        "*",
        "--unix-socket",
        socket,
        &url,
    ];
    fixture.proxy.run("curl", &arguments).ok()
}

#[test]
fn step_10_the_admin_socket_serves_metrics() {
    let fixture = start();
    fixture.user_status(Ipv4Addr::LOCALHOST, &[]);
    fixture.user_status(UNKNOWN_SOURCE, &[]);
    let text = internal(&fixture, "/internal/metrics");
    each_row(
        [
            "proxy_registered_containers 2",
            "proxy_denials_total{code=\"unknown_source\"} 1",
            "proxy_circuit_breaker_state{upstream=\"api.github.com\"} 0",
        ],
        |line| {
            assert!(
                text.lines().any(|one| one == line),
                "{line} is not in {text}"
            );
        },
    );
    let labels = [
        "method=\"GET\"",
        "upstream=\"api.github.com\"",
        "status=\"200\"",
    ];
    assert_eq!(fixture.proxy.metric("proxy_requests_total", &labels), 1.0);
}

#[test]
fn step_11_the_admin_socket_reports_health() {
    let fixture = start();
    let health: Value = serde_json::from_str(&internal(&fixture, "/internal/health")).unwrap();
    assert_eq!(health["status"], "healthy");
    each_row(
        [
            "proxy_listening",
            "dns_listening",
            "registry_accessible",
            "addons_loaded",
        ],
        |check| {
            assert_eq!(health["checks"][check], true, "{check}");
        },
    );
}

#[test]
fn step_12_the_container_id_is_not_leaked() {
    let fixture = start();
    let field = format!("X-Container-Id: {SANDBOX}");
    let sent = ["--header", &field, "--proxy-header", &field];
    assert_eq!(fixture.user_status(Ipv4Addr::LOCALHOST, &sent), 200);
    let seen = fixture.origin.only();
    assert_eq!(seen.header("x-container-id"), None);
    assert!(!format!("{:?}", seen.headers).contains(SANDBOX), "{seen:?}");
}

#[test]
fn step_13_the_circuit_of_a_failing_upstream_opens() {
    let away = closed_address().to_string();
    let fixture = start_with(|setup| {
        setup.proxy["upstream"]["hosts"]["github.com"] = away.into();
    });
    for _ in 0..5 {
        assert_eq!(fixture.proxy.curl(&[OWN]).status, 502);
    }
    let begun = Instant::now();
    let curl = fixture.proxy.curl(&[OWN]);
    assert!(begun.elapsed() < SOON / 2, "{:?}", begun.elapsed());
    assert_eq!(
        (curl.status, &curl.json()["code"]),
        (503, &json!("circuit_open"))
    );
    let ran = fixture.proxy.run("git", &["clone", OWN, "copy"]);
    assert!(ran.stderr.contains("returned error: 503"), "{ran:?}");
    assert_eq!(fixture.user_status(Ipv4Addr::LOCALHOST, &[]), 200);
}

/// One curl sends all requests. On a slow machine, a curl for each request would stay below the
/// rate.
#[test]
fn step_14_a_burst_is_limited() {
    let fixture = start();
    let url = format!("{USER}?[1-700]");
    let arguments = [
        "--silent",
        "--output",
        "/dev/null",
        "--write-out",
        "%{http_code} ",
        &url,
    ];
    let statuses = fixture.proxy.run("curl", &arguments).ok();
    let first = statuses.split(' ').position(|status| status == "429");
    assert!(first.is_some_and(|first| first >= 200), "{first:?}");
    assert_eq!(fixture.user_status(SECOND, &[]), 200);
}

#[test]
fn step_15_no_header_is_needed() {
    let fixture = start();
    assert_eq!(fixture.user_status(Ipv4Addr::LOCALHOST, &[]), 200);
    assert_eq!(
        fixture.origin.only().header("authorization"),
        Some("Bearer ghp-real")
    );
}

#[test]
fn step_16_a_container_id_that_differs_is_rejected() {
    let fixture = start();
    each_row(["--header", "--proxy-header"], |place| {
        let wrong = [place, "X-Container-Id: wrong-id"];
        assert_eq!(
            fixture.user_status(Ipv4Addr::LOCALHOST, &wrong),
            403,
            "{place}"
        );
        let id_of_another = [place, "X-Container-Id: second"];
        assert_eq!(
            fixture.user_status(Ipv4Addr::LOCALHOST, &id_of_another),
            403,
            "{place}"
        );
    });
    fixture
        .proxy
        .audited(json!({ "code": "container_id_mismatch", "status": 403 }));
    assert!(fixture.origin.seen().is_empty());
}

#[test]
fn identity_an_expired_registration_is_denied_and_removed() {
    const LEASE: Duration = Duration::from_secs(4);
    let fixture = start();
    fixture.proxy.register_for(LEASE, UNKNOWN_SOURCE, "brief");
    assert_eq!(fixture.user_status(UNKNOWN_SOURCE, &[]), 200);
    std::thread::sleep(LEASE + Duration::from_millis(200));
    assert_eq!(fixture.user_status(UNKNOWN_SOURCE, &[]), 403);
    eventually("the registration is gone", SOON, || {
        let reply = fixture
            .proxy
            .admin("GET", "/internal/containers/brief", None);
        reply.status == 404
    });
}

#[test]
fn identity_a_container_does_not_reach_anothers_repositories() {
    let fixture = start();
    let refs = |source, repo: &str| {
        let url = format!("{repo}/info/refs?service=git-upload-pack");
        fixture.proxy.curl_from(source, &[&url]).status
    };
    let (first, second) = (Ipv4Addr::LOCALHOST, SECOND);
    assert_eq!([refs(first, OWN), refs(second, OWN)], [200, 403]);
    assert_eq!([refs(first, OTHER), refs(second, OTHER)], [403, 200]);
}

/// A DNS question over UDP has no header fields, so only its source identifies the container.
#[test]
fn identity_a_dns_question_is_identified_by_its_source() {
    let fixture = start();
    each_row(
        [
            (Ipv4Addr::LOCALHOST, "NOERROR"),
            (SECOND, "NOERROR"),
            (UNKNOWN_SOURCE, "REFUSED"),
        ],
        |(source, status)| {
            let answer = fixture.proxy.dig(source, &["api.github.com"]);
            assert!(
                answer.contains(&format!("status: {status}")),
                "{source} {answer}"
            );
        },
    );
    fixture
        .proxy
        .audited(json!({ "kind": "dns", "container_id": "second" }));
}

/// The admin API has no TCP listener, only a Unix socket.
#[test]
fn identity_a_sandbox_does_not_reach_the_registration_api() {
    let fixture = start();
    let direct = format!("http://{}/internal/containers", fixture.proxy.address);
    let curl = fixture.proxy.curl(&["--noproxy", "*", &direct]);
    assert_eq!(
        (curl.status, &curl.json()["code"]),
        (400, &json!("malformed_request"))
    );
    each_row(
        [
            &direct,
            "http://localhost/internal/containers",
            "http://127.0.0.1:8081/internal/containers",
        ],
        |url| {
            let curl = fixture.proxy.curl(&[url]);
            assert_eq!(curl.status, 403, "{url}");
            assert!(!String::from_utf8_lossy(&curl.body).contains("container_ip"));
        },
    );
}
