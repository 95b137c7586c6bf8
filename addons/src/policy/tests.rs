use std::time::Duration;

use http::{HeaderMap, Method, StatusCode};
use testkit::each_row;

use super::*;
use crate::contract::settings::{Passthrough, PathPattern};
use crate::contract::{
    Container, Effect, Entry, EntryMap, HostPattern, Kind, Level, Origin, Registration, System,
};
use crate::fixtures::{
    Nowhere, code, container, entry, flow, flow_of, headers, query, read_files, registration,
    request, verdict,
};

fn policy(guarded: &[&str]) -> Policy {
    let guarded = guarded.iter().map(|host| Host::parse(host).unwrap());
    let settings = PolicySettings {
        allow_private: Vec::new(),
        host_ports: Vec::new(),
        guarded_hosts: guarded.collect(),
        rules: vec![rule_with_path()],
        asks_about_hosts: false,
        hold: Duration::ZERO,
    };
    Policy::new(settings, Arc::new(Nowhere))
}

fn rule_with_path() -> Rule {
    let mut hosts = EntryMap::default();
    hosts.insert(HostPattern::parse("ruled.example.com").unwrap(), ());
    let origin = Origin {
        file: "policy.yaml".into(),
        line: 4,
    };
    Rule {
        name: "unread".into(),
        effect: Effect::DenyContinue,
        hosts,
        methods: Vec::new(),
        paths: vec![PathPattern::parse("^/secret").unwrap()],
        origin,
    }
}

fn tunnel_with(change: impl FnOnce(&mut Flow)) -> Result<(), Denial> {
    let mut flow = flow_of(&container("web"), Kind::Tunnel, "api.example.com");
    change(&mut flow);
    verdict(policy(&[]).tunnel(&mut flow))
}

fn method(method: &str, websocket: bool, entry: Arc<Entry>) -> Option<Code> {
    let mut flow = flow_of(&container("web"), Kind::Http, "api.example.com");
    flow.start_mut().entry = Some(entry);
    let mut request = request("/", &[]);
    request.method = Method::from_bytes(method.as_bytes()).unwrap();
    request.websocket = websocket;
    code(policy(&[]).request(&mut flow, &mut request))
}

fn dial(addresses: &[&str]) -> Result<Vec<String>, Denial> {
    let mut flow = flow_of(&container("web"), Kind::Tunnel, "api.example.com");
    let parsed = addresses.iter().map(|address| address.parse().unwrap());
    let mut addresses = Addresses::for_test(parsed.collect());
    verdict(policy(&[]).dial(&mut flow, &mut addresses))?;
    Ok(addresses
        .as_slice()
        .iter()
        .map(ToString::to_string)
        .collect())
}

#[test]
fn an_unlisted_host_is_denied_with_the_edit_that_would_allow_it() {
    let denial = tunnel_with(|flow| {
        flow.endpoint_mut().host = Host::parse("evil.example.com").unwrap();
        flow.start_mut().entry = None;
    })
    .unwrap_err();
    assert_eq!(denial.code(), Code::DomainNotAllowed);
    assert_eq!(denial.sentence(), "Domain not allowed: evil.example.com");
    let edit = "add \"- evil.example.com\" under domains in allowlist.yaml";
    assert_eq!(denial.edit(), Some(edit));
}

#[test]
fn a_port_of_loopback_is_dialled_for_its_own_names_and_at_no_other_port() {
    let mut settings = policy(&[]);
    settings.host_ports = vec![18434];
    each_row(
        [
            ("localhost", "127.0.0.1:18434", true),
            ("127.0.0.1", "127.0.0.1:18434", true),
            ("localhost", "127.0.0.1:18435", false),
            ("localhost", "127.0.0.1:443", false),
            ("localhost", "10.0.0.1:18434", false),
            ("127.0.0.2", "127.0.0.2:18434", false),
            ("rebound.example.com", "127.0.0.1:18434", false),
            ("a.localhost", "127.0.0.1:18434", false),
        ],
        |(host, address, is_dialled)| {
            let mut flow = flow_of(&container("web"), Kind::Tunnel, host);
            let mut addresses = Addresses::for_test(vec![address.parse().unwrap()]);
            let dialled = verdict(settings.dial(&mut flow, &mut addresses));
            assert_eq!(dialled.is_ok(), is_dialled, "{host} {address}");
        },
    );
}

#[test]
fn an_address_literal_is_denied_unless_listed() {
    each_row(
        [
            ("93.184.216.34", "Address not allowed: 93.184.216.34"),
            ("[2606:4700::1]", "Address not allowed: [2606:4700::1]"),
        ],
        |(host, sentence)| {
            let denial = tunnel_with(|flow| {
                flow.endpoint_mut().host = Host::parse(host).unwrap();
                flow.start_mut().entry = None;
            })
            .unwrap_err();
            assert_eq!(denial.code(), Code::AddressNotAllowed);
            assert_eq!(denial.sentence(), sentence);
        },
    );
    let listed = tunnel_with(|flow| {
        flow.endpoint_mut().host = Host::parse("93.184.216.34").unwrap();
        flow.start_mut().entry = Some(entry("93.184.216.34"));
    });
    assert!(listed.is_ok());
}

#[test]
fn the_proposed_edit_lists_only_public_addresses_and_opens_only_private_networks() {
    let unlisted = |host: &str| {
        let denial = tunnel_with(|flow| {
            flow.endpoint_mut().host = Host::parse(host).unwrap();
            flow.start_mut().entry = None;
        });
        denial.unwrap_err()
    };
    each_row(
        [
            "169.254.169.254",
            "10.0.0.5",
            "[::1]",
            "[64:ff9b::a9fe:a9fe]",
        ],
        |guarded| {
            assert_eq!(unlisted(guarded).edit(), None, "{guarded}");
        },
    );
    assert_eq!(
        unlisted("93.184.216.34").edit(),
        Some("add \"- 93.184.216.34\" under domains in allowlist.yaml")
    );
    each_row(
        ["169.254.169.254:443", "100.100.100.200:80", "224.0.0.1:80"],
        |special| {
            assert_eq!(dial(&[special]).unwrap_err().edit(), None, "{special}");
        },
    );
    assert_eq!(
        dial(&["10.0.0.5:443"]).unwrap_err().edit(),
        Some("add 10.0.0.5/32 under upstream.allow_private in proxy.yaml")
    );
}

#[test]
fn a_flow_without_a_principal_is_denied() {
    let denial = tunnel_with(|flow| flow.start_mut().principal = None).unwrap_err();
    assert_eq!(denial.code(), Code::UnknownSource);
}

#[test]
fn a_part_of_the_proxy_reaches_only_the_hosts_of_its_list() {
    let system = Arc::new(System {
        name: "oauth".into(),
        hosts: vec![(Host::parse("login.example.com").unwrap(), 443)],
        trust_private: false,
        url_secrets: Default::default(),
    });
    let asks = |change: fn(&mut Flow)| {
        let mut flow = flow(Kind::Http, "login.example.com");
        flow.start_mut().entry = None;
        flow.start_mut().principal = Some(Principal::System(Arc::clone(&system)));
        change(&mut flow);
        code(policy(&[]).system(&mut flow))
    };
    assert_eq!(asks(|_| ()), None);
    let denied = Some(Code::DomainNotAllowed);
    assert_eq!(
        asks(|flow| flow.endpoint_mut().scheme = Scheme::Http),
        denied
    );
    assert_eq!(asks(|flow| flow.endpoint_mut().port = 8443), denied);
    let elsewhere = |flow: &mut Flow| {
        flow.endpoint_mut().host = Host::parse("api.example.com").unwrap();
        flow.start_mut().entry = Some(entry("api.example.com"));
    };
    assert_eq!(asks(elsewhere), denied);
    let no_system = Some(Code::InternalError);
    assert_eq!(asks(|flow| flow.start_mut().principal = None), no_system);
    let container = |flow: &mut Flow| {
        flow.start_mut().principal = Some(container("web").into());
    };
    assert_eq!(asks(container), no_system);
}

#[test]
fn a_principal_that_trusts_private_addresses_may_use_them_and_plain_http() {
    let system = |trust_private| {
        Arc::new(System {
            name: "traces".into(),
            hosts: vec![(Host::parse("collector.example.com").unwrap(), 4318)],
            trust_private,
            url_secrets: Default::default(),
        })
    };
    let dial = |trust_private, address: &str| {
        let mut flow = flow(Kind::Http, "collector.example.com");
        flow.endpoint_mut().port = 4318;
        flow.endpoint_mut().scheme = if trust_private {
            Scheme::Http
        } else {
            Scheme::Https
        };
        flow.start_mut().principal = Some(Principal::System(system(trust_private)));
        assert_eq!(code(policy(&[]).system(&mut flow)), None);
        let mut addresses =
            Addresses::for_test(vec![SocketAddr::new(address.parse().unwrap(), 4318)]);
        code(policy(&[]).dial(&mut flow, &mut addresses))
    };
    let denied = Some(Code::AddressNotAllowed);
    each_row(
        [
            "10.1.2.3",
            "127.0.0.1",
            "::1",
            "fd12::1",
            "::ffff:192.168.1.1",
        ],
        |address| {
            assert_eq!(dial(true, address), None, "{address}");
            assert_eq!(dial(false, address), denied, "{address}");
        },
    );
    each_row(
        [
            "169.254.169.254",
            "100.100.100.200",
            "fd00:ec2::254",
            "0.0.0.0",
            "224.0.0.1",
        ],
        |address| {
            assert_eq!(dial(true, address), denied, "{address}");
        },
    );
}

#[test]
fn a_containers_own_domains_narrow_the_allowlist() {
    let narrowed = Arc::new(Container::new(Registration {
        allowed_domains: Some(vec![HostPattern::parse("other.example.com").unwrap()]),
        ..registration("web")
    }));
    let mut flow = flow_of(&narrowed, Kind::Tunnel, "api.example.com");
    let denial = verdict(policy(&[]).tunnel(&mut flow)).unwrap_err();
    assert_eq!(denial.code(), Code::DomainNotAllowed);
    assert_eq!(denial.rule_name(), Some("allowed_domains of container web"));
    let mut flow = flow_of(&narrowed, Kind::Dns, "api.example.com");
    let asked = code(policy(&[]).dns_query(&mut flow, &query("api.example.com")));
    assert_eq!(asked, Some(Code::DomainNotAllowed));
}

#[test]
fn only_the_ports_of_the_entry_may_be_reached() {
    assert!(tunnel_with(|flow| flow.endpoint_mut().port = 80).is_ok());
    let denial = tunnel_with(|flow| flow.endpoint_mut().port = 22).unwrap_err();
    assert_eq!(denial.code(), Code::PortNotAllowed);
    assert_eq!(denial.sentence(), "Port not allowed: api.example.com:22");
    assert_eq!(
        denial.edit(),
        Some("add 22 to the ports at allowlist.yaml:3")
    );
}

#[test]
fn a_container_above_the_entrys_level_is_denied() {
    let limited = Arc::new(Entry {
        max_level: Level::Confidential,
        ..(*entry("api.example.com")).clone()
    });
    each_row(
        [
            (Level::Public, None),
            (Level::Confidential, None),
            (Level::Secret, Some(Code::LevelExceeded)),
        ],
        |(level, denied)| {
            let container = container("web");
            container.raise_level(level);
            let mut flow = flow_of(&container, Kind::Dns, "api.example.com");
            flow.start_mut().entry = Some(Arc::clone(&limited));
            let asked = code(policy(&[]).dns_query(&mut flow, &query("api.example.com")));
            assert_eq!(asked, denied);
        },
    );
}

#[test]
fn only_known_methods_pass() {
    let entry = entry("api.example.com");
    each_row(
        ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"],
        |known| {
            assert_eq!(method(known, false, Arc::clone(&entry)), None, "{known}");
        },
    );
    each_row(
        ["TRACE", "TRACK", "CONNECT", "PROPFIND", "get", "PRI"],
        |unknown| {
            let denied = method(unknown, false, Arc::clone(&entry));
            assert_eq!(denied, Some(Code::MethodNotAllowed), "{unknown}");
        },
    );
}

#[test]
fn a_websocket_needs_an_entry_that_allows_it() {
    let open = entry("api.example.com");
    let closed = Arc::new(Entry {
        websocket: false,
        ..(*open).clone()
    });
    assert_eq!(method("GET", true, open), None);
    let denied = Some(Code::WebsocketNotAllowed);
    assert_eq!(method("GET", true, closed), denied);
}

#[test]
fn on_guarded_hosts_ambiguous_paths_are_denied_and_others_sent_in_normal_form() {
    each_row(
        [
            ("/a/../b", true, Err(Code::MalformedRequest)),
            ("/a%2fb", true, Err(Code::MalformedRequest)),
            ("/%61bc", true, Ok("/abc")),
            ("/a/../b", false, Ok("/a/../b")),
            ("/%61bc", false, Ok("/%61bc")),
        ],
        |(path, guarded, sent)| {
            let guarded: &[&str] = if guarded { &["api.example.com"] } else { &[] };
            let mut flow = flow_of(&container("web"), Kind::Http, "api.example.com");
            let mut request = request(path, &[]);
            let verdict = verdict(policy(guarded).request(&mut flow, &mut request));
            let verdict = verdict.map(|()| request.path.sent());
            assert_eq!(verdict.map_err(|denial| denial.code()), sent, "{path}");
        },
    );
}

#[test]
fn an_ambiguous_path_is_malformed_on_hosts_of_rules_with_paths() {
    each_row(
        [
            ("/x/../secret", Some(Code::MalformedRequest)),
            ("/%2fsecret", Some(Code::MalformedRequest)),
            ("/%73ecret", Some(Code::RuleDenied)),
            ("/public", None),
        ],
        |(path, denied)| {
            let mut flow = flow_of(&container("web"), Kind::Http, "ruled.example.com");
            let mut request = request(path, &[]);
            assert_eq!(
                code(policy(&[]).request(&mut flow, &mut request)),
                denied,
                "{path}"
            );
        },
    );
}

#[test]
fn a_websocket_that_is_judged_again_needs_an_entry_that_allows_it() {
    let closed = Arc::new(Entry {
        websocket: false,
        ..(*entry("api.example.com")).clone()
    });
    each_row(
        [
            (Kind::Websocket, Some(Code::WebsocketNotAllowed)),
            (Kind::Tunnel, None),
        ],
        |(kind, denied)| {
            let mut flow = flow_of(&container("web"), kind, "api.example.com");
            flow.start_mut().entry = Some(Arc::clone(&closed));
            assert_eq!(code(policy(&[]).tunnel(&mut flow)), denied);
        },
    );
}

#[test]
fn forwarding_fields_are_cleaned_from_requests_and_alt_svc_from_responses() {
    let mut flow = flow_of(&container("web"), Kind::Http, "api.example.com");
    let mut request = request("/", &[("x_forwarded_for", "10.0.0.7"), ("accept", "*/*")]);
    assert_eq!(code(policy(&[]).request(&mut flow, &mut request)), None);
    assert_eq!(request.headers, headers(&[("accept", "*/*")]));
    let advertised = headers(&[("alt-svc", "h3=\":443\""), ("alt-svc", "h3=\":8443\"")]);
    let mut response = Response::new(StatusCode::OK, advertised);
    assert_eq!(code(policy(&[]).response(&mut flow, &mut response)), None);
    assert_eq!(response.headers, HeaderMap::new());
}

#[test]
fn guarded_addresses_are_removed_and_a_dial_with_none_left_is_denied() {
    assert_eq!(dial(&["8.8.8.8:443"]).unwrap(), ["8.8.8.8:443"]);
    let mixed = dial(&["169.254.169.254:443", "8.8.8.8:443", "[::1]:443"]);
    assert_eq!(mixed.unwrap(), ["8.8.8.8:443"]);
    let denial = dial(&["169.254.169.254:443", "10.0.0.1:443"]).unwrap_err();
    assert_eq!(denial.code(), Code::AddressNotAllowed);
    let sentence = "Address not allowed: api.example.com resolves to 169.254.169.254";
    assert_eq!(denial.sentence(), sentence);
}

#[test]
fn dns_answers_lose_guarded_addresses() {
    let mut flow = flow_of(&container("web"), Kind::Dns, "api.example.com");
    let resolved = ["10.0.0.1", "8.8.8.8", "::1", "::ffff:127.0.0.1"];
    let mut answer = DnsAnswer {
        addresses: resolved.iter().map(|a| a.parse().unwrap()).collect(),
    };
    assert_eq!(code(policy(&[]).dns_answer(&mut flow, &mut answer)), None);
    assert_eq!(answer.addresses, ["8.8.8.8".parse::<IpAddr>().unwrap()]);
}

#[test]
fn the_entry_is_recorded_and_explained_with_its_place() {
    let mut flow = flow_of(&container("web"), Kind::Tunnel, "api.example.com").dry_run();
    assert_eq!(code(policy(&[]).tunnel(&mut flow)), None);
    assert_eq!(flow.record().rule.as_deref(), Some("api.example.com"));
    let note = "allowed by api.example.com at allowlist.yaml:3";
    assert_eq!(
        flow.notes().first().map(|note| note.text.as_str()),
        Some(note)
    );
}

#[test]
fn hosts_to_which_a_rule_must_read_the_requests_cannot_be_passed_through() {
    const DENY: &str = "{ name: deny, effect: deny, hosts: [raw.example.com] }";
    const ASK: &str = "{ name: ask, effect: ask, hosts: [\"*.example.com\"] }";
    const READS: &str = "{ name: reads, effect: allow, methods: [GET] }";
    let reads_of = |host| format!("{{ name: r, effect: allow, methods: [GET], hosts: [{host}] }}");
    each_row(
        [
            (DENY.to_owned(), false),
            (READS.to_owned(), false),
            (
                "{ name: d, effect: deny, methods: [DELETE] }".to_owned(),
                true,
            ),
            (
                "{ name: d, effect: deny, paths: [^/a], hosts: [a.example.com] }".to_owned(),
                false,
            ),
            // The second rule cannot deny the tunnel, since the first may allow a request in it.
            (format!("{READS}, {DENY}"), true),
            (format!("{READS}, {ASK}"), true),
            (format!("{}, {ASK}", reads_of("raw.example.com")), true),
            (format!("{}, {ASK}", reads_of("a.example.com")), false),
            (format!("{DENY}, {READS}"), false),
        ],
        |(rules, refused)| {
            let files = [
                (
                    "proxy.yaml",
                    "version: 1\ntls: { passthrough: [raw.example.com] }\n",
                ),
                (
                    "policy.yaml",
                    &*format!("version: 1\npolicy: {{ rules: [{rules}] }}\n"),
                ),
            ];
            let read = read_files(&files, |files| {
                PolicySettings::read(files).check(&Passthrough::read(files));
            });
            let errors = read.err().unwrap_or_default();
            let is_reported = errors.contains("judges requests to hosts of ");
            assert_eq!(is_reported, refused, "{rules}: {errors}");
            assert_eq!(errors.is_empty(), !refused, "{rules}: {errors}");
        },
    );
}
