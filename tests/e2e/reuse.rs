//! A sandbox that gets the address of an earlier one.

use serde_json::json;

use crate::fixture::Fixture;
use crate::summary::can_run;
use crate::support::{SOON, eventually};

const ADDRESS: &str = "198.18.7.2";
const BURST: usize = 60;
/// More requests than the bucket admits: it holds [`BURST`] tokens and gets one each second.
const REQUESTS: usize = 150;

#[test]
fn a_reused_address_inherits_neither_tunnels_nor_credentials_nor_rate_limits() {
    if !can_run("a_reused_address_inherits_neither_tunnels_nor_credentials_nor_rate_limits") {
        return;
    }
    let fixture = Fixture::with(|setup| {
        setup.policy.as_mut().unwrap()["rate_limits"] =
            json!({ "defaults": { "requests_per_second": 1, "burst_size": BURST } });
        setup.credential(json!({
            "name": "vendor", "hosts": ["api.example.com"], "containers": ["first"],
            "set_headers": { "x-api-key": "sk-live-of-the-first" },
        }));
    });
    fixture.origin.create_repository("acme/web");
    fixture.up("first", &["--address", ADDRESS, "--repo", "acme/web"]);
    // Opens a tunnel that stays open.
    let script = "exec 3<>/dev/tcp/$UNIFIED_PROXY_HOST/$UNIFIED_PROXY_PORT
        printf 'CONNECT api.example.com:443 HTTP/1.1\\r\\nHost: api.example.com:443\\r\\n\\r\\n' >&3
        head -c 12 <&3
        sleep 1000 &";
    let opened = fixture.exec("first", &format!("({script}) 2>&1 | head -c 12"));
    assert_eq!(opened.stdout, "HTTP/1.1 200", "{opened:?}");
    // curl sends the requests one after the other on one connection.
    let statuses = |name: &str, count: usize| -> Vec<String> {
        let url = format!("https://api.example.com/echo?[1-{count}]");
        let script = format!("curl -s -o /dev/null -w '%{{http_code}}\\n' '{url}'");
        fixture
            .exec(name, &script)
            .ok()
            .lines()
            .map(str::to_owned)
            .collect()
    };
    // Uses up the tokens of the bucket.
    let first = statuses("first", REQUESTS);
    assert_eq!(first.first().unwrap(), "200");
    assert_eq!(first.last().unwrap(), "429");
    let keys = |from: usize| -> Vec<bool> {
        let seen = fixture.origin.seen();
        seen[from..]
            .iter()
            .map(|seen| seen.header("x-api-key").is_some())
            .collect()
    };
    assert!(keys(0).iter().all(|has_key| *has_key) && !keys(0).is_empty());
    let before = fixture.origin.seen().len();

    fixture.sandbox(&["down", "first"]).ok();
    eventually("the first sandbox's connections are closed", SOON, || {
        fixture.proxy.metric("proxy_active_connections", &[]) == 0.0 && fixture.origin.open() == 0
    });
    fixture.up("second", &["--address", ADDRESS]);
    let second = statuses("second", BURST);
    assert!(second.iter().all(|status| status == "200"), "{second:?}");
    let with_key = keys(before);
    assert_eq!(with_key, vec![false; BURST]);
    let denied = fixture.exec("second", "git ls-remote https://git.example.com/acme/web");
    assert!(denied.stderr.contains("Repo not authorized"), "{denied:?}");
}
