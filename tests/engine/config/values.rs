//! The fields of the configuration have the values of the files, or their defaults.

use std::path::Path;
use std::time::Duration;

use addons::contract::settings::{PathPattern, at_least_one};
use addons::contract::{Host, HostPattern, Level};
use addons::github::{Mentions, Patterns};
use addons::rate_limit::{Rate, RequestLimits};
use http::Method;
use testkit::each_row;
use unified_proxy::config::{Profile, load_with};

use super::{load_files, load_one};

fn mentions(names: &[&str]) -> Mentions {
    let names: Vec<_> = names.iter().map(ToString::to_string).collect();
    Mentions::new(&names)
}

#[test]
fn absent_files_mean_secure_defaults() {
    let config = load_files(&[]).unwrap();
    let addons = &config.addons;
    assert!(addons.allowlist.is_empty() && config.addons.credentials.active.is_empty());
    assert_eq!(
        config.proxy.listen.admin,
        Path::new("/var/run/proxy/api.sock")
    );
    assert_eq!(config.proxy.listen.dns, ["0.0.0.0:53".parse().unwrap()]);
    assert_eq!(config.proxy.admin_mode, 0o600);
    assert_eq!(
        config.proxy.audit.path,
        Path::new("/var/lib/unified-proxy/audit.jsonl")
    );
    assert_eq!(config.proxy.dns.types, [1, 28, 5]);
    assert_eq!(config.proxy.logging.level, "info");
    assert!(addons.github.writes_are_an_allowlist);
    assert_eq!(addons.github.mentions, mentions(&["@copilot"]));
    assert!(!addons.git.public_reads && !addons.git.allow_branch_deletion);
    assert_eq!(
        config.warnings,
        ["allowlist.yaml: no domain is allowed: every request is denied"]
    );
}

#[test]
fn keys_of_polis_at_the_top_level_and_under_server_set_defaults_of_proxy_yaml() {
    let top =
        "interceptor_addr: ':7001'\nmcp_server_addr: '127.0.0.1:7002'\nshutdown_timeout: 3s\n";
    let nested = "server: { interceptor_addr: ':7001', mcp_server_addr: '127.0.0.1:7002', shutdown_timeout: 3s }\n";
    let single = "tools: []\nsingle_port: ':7001'\nshutdown_timeout: 3s\n";
    let both = ["0.0.0.0:7001", "127.0.0.1:7002"];
    let level = "log_level: debug\nlogging: { level: warn, format: text }\n";
    let section = "logging: { level: debug, format: text }\n";
    each_row(
        [
            (top, level, &both[..]),
            (nested, section, &both),
            (single, level, &both[..1]),
        ],
        |(server, logging, listen)| {
            let polis = format!("version: \"1.0\"\n{server}{logging}");
            let file = ("mcp.yaml", polis.as_bytes());
            let proxy = load_files(&[file]).unwrap().proxy;
            let mcp: Vec<_> = proxy.listen.mcp.iter().map(ToString::to_string).collect();
            assert_eq!(mcp, listen);
            assert_eq!(proxy.shutdown_timeout, Duration::from_secs(3));
            assert_eq!(
                (&*proxy.logging.level, proxy.logging.json),
                ("debug", false)
            );
            // The keys of proxy.yaml win.
            let own = "version: 1\nlisten: { mcp: ['127.0.0.1:7009'] }\nshutdown_timeout: 9s\nlogging: { level: error, format: json }\n";
            let proxy = load_files(&[file, ("proxy.yaml", own.as_bytes())])
                .unwrap()
                .proxy;
            assert_eq!(proxy.listen.mcp, ["127.0.0.1:7009".parse().unwrap()]);
            assert_eq!(proxy.shutdown_timeout, Duration::from_secs(9));
            assert_eq!((&*proxy.logging.level, proxy.logging.json), ("error", true));
        },
    );
}

#[test]
fn keys_of_proxy_yaml_set_their_fields() {
    let config = load_one(
        "proxy.yaml",
        r#"
version: 1
listen: { proxy: ["127.0.0.1:0", "[::1]:${PORT}"], dns: [], mcp: [], admin: a.sock }
admin_mode: "0660"
admin_uids: [1000]
data_dir: state
certs_dir: state/certs
shutdown_timeout: 500ms
tls: { passthrough: ["*.bank.example"] }
upstream:
  nameservers: [10.0.0.2, "10.0.0.3:5353"]
  hosts: { Git.Example.com: "10.0.0.4:8443", other.example.com: "::ffff:10.0.0.5" }
  allow_private: [10.0.0.0/8, "fd00::/8"]
  connect_timeout: 1s
  response_timeout: 2m
  idle_timeout: 1h
limits:
  max_connections: "${MANY:-7}"
  max_connections_per_container: 3
  header_read_timeout: 4s
  max_header_bytes: 16384
  inspect_body_bytes: '1MB'
  tunnels_per_second: 11
  certificates_per_minute: 5
dns: { types: [TXT], queries_per_minute: 6, distinct_names_per_minute: 8 }
logging: { level: "info,unified_proxy=debug", format: text }
audit: { path: log.jsonl, max_bytes: "2MB", keep: 1, lines_per_minute_per_container: 9, bytes_per_minute_per_container: 64KB }
approvals: { notify: [{ url: "https://hooks.example.com:8443/${SECRET}?a=b", secret: "${SECRET}" }] }
"#,
    )
    .unwrap();
    let (config, addons) = (config.proxy, config.addons);
    let host = |name| Host::parse(name).unwrap();
    assert_eq!(
        config.listen.proxy,
        [
            "127.0.0.1:0".parse().unwrap(),
            "[::1]:8443".parse().unwrap()
        ]
    );
    assert!(config.listen.dns.is_empty() && config.listen.mcp.is_empty());
    assert_eq!(config.listen.admin, Path::new("a.sock"));
    assert_eq!((config.admin_mode, config.admin_uids), (0o660, vec![1000]));
    assert_eq!(config.data_dir, Path::new("state"));
    assert_eq!(config.certs_dir, Path::new("state/certs"));
    assert_eq!(config.shutdown_timeout, Duration::from_millis(500));
    let passthrough = config.tls.passthrough.find(&host("a.bank.example"));
    assert_eq!(passthrough.unwrap().to_string(), "proxy.yaml:9");
    let upstream = config.upstream;
    assert_eq!(
        upstream.nameservers,
        [
            "10.0.0.2:53".parse().unwrap(),
            "10.0.0.3:5353".parse().unwrap()
        ]
    );
    let answer = |name| {
        let answer = upstream.hosts[&host(name)];
        (answer.address.to_string(), answer.port)
    };
    assert_eq!(answer("git.example.com"), ("10.0.0.4".into(), Some(8443)));
    assert_eq!(answer("other.example.com"), ("10.0.0.5".into(), None));
    assert_eq!(addons.policy.allow_private[1].to_string(), "fd00::/8");
    assert_eq!(upstream.connect_timeout, Duration::from_secs(1));
    assert_eq!(upstream.response_timeout, Duration::from_secs(120));
    assert_eq!(upstream.idle_timeout, Duration::from_secs(3600));
    assert_eq!(config.limits.max_connections, 7);
    assert_eq!(config.limits.max_connections_per_container, 3);
    assert_eq!(config.limits.header_read_timeout, Duration::from_secs(4));
    assert_eq!(config.limits.max_header_bytes, 16_384);
    assert_eq!(config.limits.inspect_body_bytes, 1 << 20);
    assert_eq!(addons.rate_limit.tunnels.per_second.get(), 11);
    assert_eq!(config.limits.certificates_per_minute, 5);
    assert_eq!(config.dns.types, [16]);
    let dns = addons.rate_limit.dns;
    assert_eq!(dns.queries_per_minute.get(), 6);
    assert_eq!(dns.distinct_names_per_minute.get(), 8);
    assert_eq!(config.logging.level, "info,unified_proxy=debug");
    assert!(!config.logging.json);
    assert_eq!(config.audit.path, Path::new("log.jsonl"));
    assert_eq!((config.audit.max_bytes, config.audit.keep), (2 << 20, 1));
    let [target] = &*config.approvals.notify else {
        panic!("{:?}", config.approvals);
    };
    assert_eq!(target.url, "https://hooks.example.com:8443/s3cr3t?a=b");
    assert_eq!(target.authority, (host("hooks.example.com"), 8443));
    assert_eq!(
        (target.secret.as_str(), target.arguments),
        ("s3cr3t", false)
    );
    assert!(!format!("{target:?}").contains("s3cr3t"), "{target:?}");
    let budget = addons.audit;
    assert_eq!(budget.lines_per_minute_per_container.get(), 9);
    assert_eq!(budget.bytes_per_minute_per_container.get(), 64 << 10);
}

#[test]
fn the_log_level_of_the_environment_applies_without_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let with = |level: &'static str| {
        let env = move |name: &str| (name == "LOG_LEVEL").then(|| level.to_owned());
        load_with(dir.path(), Profile::Serve, &env)
    };
    assert_eq!(with("debug").unwrap().proxy.logging.level, "debug");
    assert_eq!(with("").unwrap().proxy.logging.level, "info");
    let error = with("inof").unwrap_err().to_string();
    assert!(
        error.starts_with("proxy.yaml: logging.level: must be off,"),
        "{error}"
    );
}

#[test]
fn allowlist_entries_carry_their_settings_and_their_line() {
    let config = load_one(
        "allowlist.yaml",
        "version: 1\ndomains:\n  - A.Example.\n  - { domain: \"*.example.com\", ports: [8443], websocket: false, max_level: Public }\n",
    )
    .unwrap();
    let find = |name| config.addons.allowlist.find(&Host::parse(name).unwrap());
    let plain = find("a.example").unwrap();
    assert_eq!(
        (&*plain.label, &plain.ports[..]),
        ("a.example", &[80, 443][..])
    );
    assert_eq!((plain.websocket, plain.max_level), (true, Level::Secret));
    assert_eq!(plain.origin.to_string(), "allowlist.yaml:3");
    let special = find("x.example.com").unwrap();
    assert_eq!(
        (&*special.label, &special.ports[..]),
        ("*.example.com", &[8443][..])
    );
    assert_eq!(
        (special.websocket, special.max_level),
        (false, Level::Public)
    );
    assert_eq!(special.origin.to_string(), "allowlist.yaml:4");
    assert!(find("example.com").is_none());
}

#[test]
fn keys_of_policy_yaml_replace_their_defaults() {
    let config = load_one(
        "policy.yaml",
        r#"
version: 1
policy: { blocked_api_patterns: { PATCH: ["^/x$"] }, blocked_mentions: ["@claude", "@codex-bot"] }
git: { hosts: [git.example.com], public_reads: allow }
circuit_breakers: { defaults: { success_threshold: 4 }, upstreams: { "*.example.com": { recovery_timeout: 2m } } }
rate_limits: { defaults: { burst_size: 7 } }
"#,
    )
    .unwrap();
    let addons = &config.addons;
    let blocked = PathPattern::parse_ignoring_case("^/x$").unwrap();
    let blocked = Patterns::from_iter([(Method::PATCH, vec![blocked])]);
    assert_eq!(addons.github.blocked, blocked);
    assert_eq!(addons.github.mentions, mentions(&["@claude", "@codex-bot"]));
    let emptied = "version: 1\npolicy: { blocked_mentions: [] }\n";
    let emptied = load_one("policy.yaml", emptied).unwrap();
    assert_eq!(emptied.addons.github.mentions, mentions(&[]));
    assert_eq!(addons.github.hosts[0].api, None);
    let host = |name| Host::parse(name).unwrap();
    let breakers = &addons.circuit_breaker.upstreams;
    let breaker = breakers.find(&host("a.example.com")).unwrap();
    assert_eq!(breaker.recovery, Duration::from_secs(120));
    assert_eq!((breaker.failures.get(), breaker.successes.get()), (5, 4));
    assert!(breakers.find(&host("api.anthropic.com")).is_none());
    let rate = |per_second| Rate {
        per_second: at_least_one(per_second),
        burst: at_least_one(7),
    };
    let slower = [
        ("api.github.com", 50),
        ("api.anthropic.com", 20),
        ("api.openai.com", 20),
    ];
    let slower = slower.map(|(name, each)| (HostPattern::parse(name).unwrap(), rate(each)));
    let limits = RequestLimits::new(rate(100), slower);
    assert_eq!(addons.rate_limit.requests, Some(limits));
}
