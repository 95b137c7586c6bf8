//! Which host names, addresses, ports and methods of requests are permitted.

use std::net::Ipv4Addr;

use serde_json::json;
use testkit::each_row;

use crate::support::{Nameserver, Origin, Proxy, Setup};

const LOCAL: Ipv4Addr = Ipv4Addr::LOCALHOST;

#[test]
fn a_name_that_is_not_listed_is_denied_plain_and_in_connect() {
    let origin = Origin::start();
    let nameserver = Nameserver::start(&[("blocked.example.org", &[LOCAL])]);
    let mut setup = Setup::new(&origin);
    setup.proxy["upstream"]["nameservers"] = json!([nameserver.address.to_string()]);
    let proxy = setup.start();
    let sentence = "Domain not allowed: blocked.example.org";
    let reply = proxy.get("http://blocked.example.org/", &[]);
    reply.assert_denied(403, "domain_not_allowed", sentence);
    let (reply, _) = proxy.connect("blocked.example.org:443");
    reply.assert_connect_denied(403, "domain_not_allowed", sentence);
    assert_eq!(
        nameserver.asked(),
        Vec::<String>::new(),
        "the name was looked up before the verdict"
    );
    origin.assert_untouched();
}

#[test]
fn an_empty_allowlist_denies_everything() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.allowlist["domains"] = json!([]);
    let proxy = setup.start();
    let (reply, _) = proxy.connect("api.example.com:443");
    reply.assert_connect_denied(
        403,
        "domain_not_allowed",
        "Domain not allowed: api.example.com",
    );
}

#[test]
fn a_wildcard_matches_subdomains_at_any_depth_and_not_the_apex() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    for name in [
        "a.example.org",
        "deep.a.example.org",
        "example.org",
        "notexample.org",
    ] {
        setup.proxy["upstream"]["hosts"][name] = json!(origin.http.to_string());
    }
    setup.allow("*.example.org");
    let proxy = setup.start();
    let status = |host: &str| proxy.get(&format!("http://{host}/echo"), &[]).status;
    assert_eq!(
        [status("a.example.org"), status("deep.a.example.org")],
        [200, 200]
    );
    assert_eq!(
        [status("example.org"), status("notexample.org")],
        [403, 403]
    );
}

#[test]
fn allowed_domains_of_a_container_narrow_the_allowlist_and_never_widen_it() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.containers.clear();
    let proxy = setup.start();
    proxy.register_as(json!({
        "container_ip": "127.0.0.1", "container_id": "narrow", "repos": [],
        "allowed_domains": ["plain.example.com", "blocked.example.org"],
    }));
    assert_eq!(proxy.get("http://plain.example.com/echo", &[]).status, 200);
    each_row(["api.example.com", "blocked.example.org"], |host| {
        let (reply, _) = proxy.connect(&format!("{host}:443"));
        reply.assert_connect_denied(403, "domain_not_allowed", "Domain not allowed");
    });
}

#[test]
fn hosts_are_compared_without_letter_case_and_trailing_dot() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let (reply, _) = proxy.connect("BLOCKED.example.org.:443");
    reply.assert_connect_denied(403, "domain_not_allowed", "Domain not allowed: blocked.");
    each_row(["PLAIN.Example.COM", "plain.example.com."], |host| {
        assert_eq!(
            proxy.get(&format!("http://{host}/echo"), &[]).status,
            200,
            "{host}"
        );
    });
    for seen in origin.seen() {
        assert_eq!(seen.authority, "plain.example.com");
    }
}

#[test]
fn address_literals_are_denied_in_every_form() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    each_row(
        [
            "127.0.0.1",
            "127.1",
            "0177.0.0.1",
            "0x7f.0.0.1",
            "0x7f000001",
            "2130706433",
            "[::1]",
            "[::]",
            "[::ffff:127.0.0.1]",
            "169.254.169.254",
            "8.8.8.8",
        ],
        |literal| {
            let (reply, _) = proxy.connect(&format!("{literal}:443"));
            reply.assert_connect_denied(403, "address_not_allowed", "Address not allowed: ");
            let reply = proxy.get(&format!("http://{literal}/"), &[]);
            reply.assert_denied(403, "address_not_allowed", "Address not allowed: ");
        },
    );
    origin.assert_untouched();
}

#[test]
fn a_name_that_resolves_to_a_special_range_is_denied() {
    let special: &[[u8; 4]] = &[
        [0, 0, 0, 0],
        [10, 0, 0, 1],
        [100, 64, 0, 1],
        [100, 100, 100, 200],
        [168, 63, 129, 16],
        [169, 254, 169, 254],
        [172, 16, 0, 1],
        [192, 168, 0, 1],
        [198, 18, 0, 1],
        [203, 0, 113, 1],
        [224, 0, 0, 1],
        [255, 255, 255, 255],
    ];
    let origin = Origin::start();
    let nameserver = Nameserver::start(&[]);
    let mut setup = Setup::new(&origin);
    setup.proxy["upstream"]["nameservers"] = json!([nameserver.address.to_string()]);
    setup.allow("*.example.org");
    let proxy = setup.start();
    each_row(special.iter().enumerate(), |(index, address)| {
        let name = format!("n{index}.example.org");
        nameserver.set(&name, &[Ipv4Addr::from(*address)]);
        let reply = proxy.get(&format!("http://{name}/"), &[]);
        reply.assert_denied(403, "address_not_allowed", "Address not allowed: ");
        assert!(reply.text().contains(&name), "{}", reply.text());
        let reply = proxy.fetch(&name, "/");
        reply.assert_denied(403, "address_not_allowed", "Address not allowed: ");
    });
}

#[test]
fn a_static_address_is_judged_like_a_resolved_one() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.host("inside.example.com", "10.1.2.3:80");
    let proxy = setup.start();
    let reply = proxy.get("http://inside.example.com/", &[]);
    reply.assert_denied(403, "address_not_allowed", "Address not allowed: ");
}

#[test]
fn a_name_is_resolved_once_and_the_judged_address_is_dialled() {
    let origin = Origin::start();
    let nameserver = Nameserver::start(&[("rebind.example.com", &[LOCAL])]);
    let mut setup = Setup::new(&origin);
    setup.proxy["upstream"]["nameservers"] = json!([nameserver.address.to_string()]);
    let port = origin.http.port();
    setup.allow(json!({ "domain": "rebind.example.com", "ports": [port] }));
    let proxy = setup.start();
    let reply = proxy.get(&format!("http://rebind.example.com:{port}/echo"), &[]);
    assert_eq!(reply.status, 200, "{reply:?}");
    // One DNS query for each address family; dialling sends no further query.
    assert!(nameserver.asked().len() <= 2, "{:?}", nameserver.asked());
}

#[test]
fn the_proxys_own_listeners_are_denied_as_destinations() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    let (proxy_address, dns_address) = (setup.address, setup.dns);
    setup.host("self.example.com", proxy_address);
    setup.host("dns.example.com", dns_address);
    let proxy = setup.start();
    each_row(["self.example.com", "dns.example.com"], |host| {
        let reply = proxy.get(&format!("http://{host}/"), &[]);
        reply.assert_denied(403, "address_not_allowed", "Address not allowed: ");
        let reply = proxy.fetch(host, "/");
        reply.assert_denied(403, "address_not_allowed", "Address not allowed: ");
    });
}

#[test]
fn an_own_listener_on_a_port_that_the_kernel_chose_is_denied_as_destination() {
    let origin = Origin::start();
    let mut setup = Setup::new(&origin);
    setup.allow(json!({ "domain": "self.example.com" }));
    setup.proxy["listen"]["proxy"] = json!([setup.address.to_string(), "127.0.0.1:0"]);
    let mut changed = setup.proxy.clone();
    let proxy = setup.start();
    let log = proxy.log();
    let listed = log.split("addresses=[").nth(1).unwrap();
    // The first address is that of DNS, the second has the configured port of the proxy.
    let chosen = listed.split([',', ']']).map(str::trim).nth(2).unwrap();
    changed["upstream"]["hosts"]["self.example.com"] = json!(chosen);
    std::fs::write(proxy.path("config/proxy.yaml"), changed.to_string()).unwrap();
    let reply = proxy.admin("POST", "/internal/reload", None);
    assert_eq!(reply.status, 200, "{}", reply.text());
    let reply = proxy.get("http://self.example.com/", &[]);
    reply.assert_denied(403, "address_not_allowed", "");
}

#[test]
fn a_port_that_the_entry_does_not_list_is_denied() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    let (reply, _) = proxy.connect("api.example.com:8443");
    reply.assert_connect_denied(403, "port_not_allowed", "");
    let reply = proxy.get("http://plain.example.com:81/", &[]);
    reply.assert_denied(403, "port_not_allowed", "");
    origin.assert_untouched();
}

#[test]
fn ambiguous_and_invalid_authorities_get_400() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    each_row(
        [
            "api.example.com:",
            "api.example.com:0",
            "api.example.com:00443",
            "api.example.com:+443",
            "api.example.com:65536",
            "api.example.com",
            "user@api.example.com:443",
            "api_example.com:443",
            "api.example.com%00:443",
            "api..example.com:443",
            "[fe80::1%25eth0]:443",
            "1.2.3.4.5:443",
        ],
        |authority| {
            let (reply, _) = proxy.connect(authority);
            assert_eq!(reply.status, 400, "{authority}: {reply:?}");
        },
    );
    origin.assert_untouched();
}

#[test]
fn trace_and_unknown_methods_are_refused() {
    let origin = Origin::start();
    let proxy = Proxy::start(&origin);
    each_row(["TRACE", "TRACK", "FROBNICATE", "get"], |method| {
        let request = format!("{method} /echo HTTP/1.1\r\nHost: api.example.com\r\n\r\n");
        let reply = proxy.https("api.example.com", request);
        reply.assert_denied(405, "method_not_allowed", "");
        let url = "http://plain.example.com/echo";
        let request = format!("{method} {url} HTTP/1.1\r\nHost: plain.example.com\r\n\r\n");
        let reply = proxy.exchange(request);
        reply.assert_denied(405, "method_not_allowed", "");
    });
    assert!(origin.seen().is_empty());
}
