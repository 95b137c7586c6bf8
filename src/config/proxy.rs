//! Reads the engine's keys of `proxy.yaml`.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use addons::contract::settings::{Env, Fields, Files, Passthrough, Setting};
use addons::contract::{Host, fold_address};
use addons::mcp::PolisSettings;
use tracing_subscriber::filter::{EnvFilter, LevelFilter};

use super::nameserver::parse_nameserver;
use super::{
    ApprovalsConfig, AuditConfig, DnsConfig, Limits, Listen, Logging, NotifyTarget, Profile,
    ProxyConfig, StaticAddress, TlsConfig, UpstreamConfig,
};

const KB: u64 = 1 << 10;
const MB: u64 = 1 << 20;
const GB: u64 = 1 << 30;

/// The record types that `dns.types` may contain, and their numbers. HTTPS and SVCB are left out,
/// since their address hints would lead clients around the proxy; ANY and AXFR are left out, since
/// they are types of questions only.
const RECORD_TYPES: [(&str, u16); 12] = [
    ("A", 1),
    ("NS", 2),
    ("CNAME", 5),
    ("SOA", 6),
    ("PTR", 12),
    ("MX", 15),
    ("TXT", 16),
    ("AAAA", 28),
    ("SRV", 33),
    ("NAPTR", 35),
    ("TLSA", 52),
    ("CAA", 257),
];

/// Reads the engine's keys. `mcp.yaml` may be in the format of polis, another MCP gateway. Its MCP
/// listeners, log settings and shutdown timeout are then the defaults of the corresponding keys.
pub fn read(files: &Files<'_>, profile: Profile, env: Env<'_>) -> ProxyConfig {
    let fields = files.proxy.fields();
    let polis = PolisSettings::read(files);
    let listen = listen(&fields, profile, &polis);
    let data_dir = fields.or("data_dir", profile.data_dir(), |at| path(&at));
    let certs_dir = fields.or("certs_dir", profile.certs_dir(), |at| path(&at));
    let tls = TlsConfig {
        passthrough: Passthrough::read(files).hosts(),
        upstream_ca: fields.section("tls").optional("upstream_ca", upstream_ca),
    };
    let audit = audit(&fields.section("audit"), &data_dir);
    for (what, path) in [
        ("data_dir", &data_dir),
        ("listen.admin", &listen.admin),
        ("audit.path", &audit.path),
    ] {
        if lies_in(path, &certs_dir) {
            let message = format!("must not hold {what}: sandboxes can read this directory");
            fields.refuse("certs_dir", message);
        }
    }
    ProxyConfig {
        listen,
        admin_mode: fields.or("admin_mode", 0o600, |at| at.parse(file_mode)),
        admin_uids: fields.list("admin_uids", |at| at.number(0..=u32::MAX - 1)),
        data_dir,
        certs_dir,
        shutdown_timeout: fields.or(
            "shutdown_timeout",
            polis.shutdown_timeout.unwrap_or(secs(10)),
            |at| at.duration(),
        ),
        tls,
        upstream: upstream(&fields.section("upstream")),
        limits: limits(&fields.section("limits")),
        dns: dns(&fields.section("dns")),
        logging: logging(&fields.section("logging"), profile, env, polis),
        audit,
        approvals: approvals(&fields.section("approvals")),
    }
}

fn approvals(fields: &Fields<'_>) -> ApprovalsConfig {
    ApprovalsConfig {
        ttl: fields.or("ttl", secs(60 * 60), |at| at.duration()),
        learned: fields.or("learned", true, |at| at.boolean()),
        notify: NotifyTarget::read(fields),
    }
}

fn listen(fields: &Fields<'_>, profile: Profile, polis: &PolisSettings) -> Listen {
    let mut defaults = profile.listen();
    if !polis.listen.is_empty() {
        defaults.mcp = polis.listen.iter().copied().collect();
    }
    let mut seen = HashSet::new();
    let mut address = |at: Setting<'_>| {
        let address = at.parse(socket_address)?;
        // For port 0, the kernel chooses a different free port each time.
        if address.port() != 0 && !seen.insert(address) {
            at.refuse("another listener has this address already");
        }
        Some(address)
    };
    let fields = fields.section("listen");
    Listen {
        proxy: fields.or("proxy", defaults.proxy, |at| at.filled_list(&mut address)),
        dns: fields.or("dns", defaults.dns, |at| at.list(&mut address)),
        mcp: fields.or("mcp", defaults.mcp, |at| at.list(&mut address)),
        admin: fields.or("admin", defaults.admin, |at| path(&at)),
    }
}

fn upstream_ca(at: Setting<'_>) -> Option<PathBuf> {
    let path = path(&at)?;
    if let Err(error) = File::open(&path) {
        at.refuse(format!("cannot be read: {error}"));
    }
    Some(path)
}

fn upstream(fields: &Fields<'_>) -> UpstreamConfig {
    UpstreamConfig {
        nameservers: fields.list("nameservers", |at| at.parse(parse_nameserver)),
        hosts: fields.or("hosts", HashMap::new(), static_hosts).into(),
        connect_timeout: fields.or("connect_timeout", secs(10), |at| at.duration()),
        response_timeout: fields.or("response_timeout", secs(300), |at| at.duration()),
        idle_timeout: fields.or("idle_timeout", secs(300), |at| at.duration()),
    }
}

fn static_hosts(at: Setting<'_>) -> Option<HashMap<Host, StaticAddress>> {
    let mut hosts = HashMap::new();
    for (key, value) in at.entries()? {
        let answer = value.parse(static_address);
        match Host::parse(&key.name) {
            Ok(host @ Host::Name(_)) => {
                if let Some(answer) = answer
                    && hosts.insert(host, answer).is_some()
                {
                    value.refuse_key(key, "this name has an answer already");
                }
            }
            Ok(Host::Address(_)) => value.refuse_key(key, "must be a name, not an address"),
            Err(error) => value.refuse_key(key, error.to_string()),
        }
    }
    Some(hosts)
}

fn limits(fields: &Fields<'_>) -> Limits {
    Limits {
        max_connections: fields.or("max_connections", 20_000, |at| at.number(1..=1_000_000)),
        max_connections_per_container: fields.or("max_connections_per_container", 2000, |at| {
            at.number(1..=1_000_000)
        }),
        header_read_timeout: fields.or("header_read_timeout", secs(15), |at| at.duration()),
        // hyper reads at most 408 KB of a head.
        max_header_bytes: fields.or("max_header_bytes", 64 << 10, |at| {
            at.size(8 * KB..=256 * KB)
        }),
        inspect_body_bytes: fields.or("inspect_body_bytes", 8 << 20, |at| at.size(KB..=GB)),
        inspect_values: fields.or("inspect_values", 100_000, |at| at.number(100..=10_000_000)),
        inspect_timeout: fields.or("inspect_timeout", secs(30), |at| at.duration()),
        inspect_memory: fields.or("inspect_memory", 256 << 20, |at| at.size(MB..=1024 * GB)),
        certificates_per_minute: fields.or("certificates_per_minute", 120, |at| {
            at.number(1..=1_000_000)
        }),
    }
}

fn dns(fields: &Fields<'_>) -> DnsConfig {
    DnsConfig {
        types: fields.or("types", vec![1, 28, 5], |at| {
            at.list(|at| at.one_of(&RECORD_TYPES))
        }),
    }
}

fn logging(fields: &Fields<'_>, profile: Profile, env: Env<'_>, polis: PolisSettings) -> Logging {
    let json = polis.log_json.unwrap_or_else(|| profile.logs_json());
    let level = match fields.find("level") {
        Some(at) => at.parse(log_level),
        // The default of the shipped file: `${LOG_LEVEL:-info}`.
        None => {
            let variable = env("LOG_LEVEL").filter(|level| !level.is_empty());
            let variable = variable.or(polis.log_level);
            let level = log_level(variable.as_deref().unwrap_or("info"));
            level.map_err(|wrong| fields.refuse("level", wrong)).ok()
        }
    };
    Logging {
        level: level.unwrap_or_default(),
        json: fields.or("format", json, |at| {
            at.one_of(&[("json", true), ("text", false)])
        }),
    }
}

fn audit(fields: &Fields<'_>, data_dir: &Path) -> AuditConfig {
    let path = fields.optional("path", |at| path(&at));
    AuditConfig {
        path: path.unwrap_or_else(|| data_dir.join("audit.jsonl")),
        max_bytes: fields.or("max_bytes", 100 * MB, |at| at.size(MB..=1024 * GB)),
        keep: fields.or("keep", 5, |at| at.number(1..=1000)),
    }
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn path(at: &Setting<'_>) -> Option<PathBuf> {
    at.parse(|text| match text {
        "" => Err("must be a path"),
        _ if text.contains('\0') => Err("must not contain a NUL byte"),
        _ => Ok(PathBuf::from(text)),
    })
}

/// Whether a path is `dir` or below it. Symbolic links are not resolved.
fn lies_in(path: &Path, dir: &Path) -> bool {
    let absolute = |path| std::path::absolute(path).ok();
    match (absolute(path), absolute(dir)) {
        (Some(path), Some(dir)) => path.starts_with(dir),
        _ => false,
    }
}

fn file_mode(text: &str) -> Result<u32, &'static str> {
    let digits = text.len() == 4 && text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
    u32::from_str_radix(text, 8)
        .ok()
        .filter(|mode| digits && *mode <= 0o777)
        .ok_or("must be an octal file mode in quotes, such as \"0600\"")
}

fn socket_address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse()
        .map_err(|_| "must be an address and a port such as 0.0.0.0:8080 or [::]:8080")
}

fn static_address(text: &str) -> Result<StaticAddress, &'static str> {
    let (address, port) = match text.parse::<SocketAddr>() {
        Ok(socket) => (socket.ip(), Some(socket.port())),
        Err(_) => {
            let wrong = "must be an address such as 10.0.0.2, or with a port 10.0.0.2:8443";
            (text.parse().map_err(|_| wrong)?, None)
        }
    };
    if port == Some(0) {
        return Err("the port must not be 0");
    }
    Ok(StaticAddress {
        address: fold_address(address),
        port,
    })
}

/// Checks a level or directives, and returns them unchanged. A misspelt level must be refused here:
/// `EnvFilter` takes it for the name of a module, and would enable all log lines of that module.
fn log_level(text: &str) -> Result<String, &'static str> {
    let known = |part: &str| part.contains('=') || part.parse::<LevelFilter>().is_ok();
    let fits = text.split(',').all(|part| !part.is_empty() && known(part));
    if !fits || EnvFilter::builder().parse(text).is_err() {
        return Err(
            "must be off, error, warn, info, debug or trace, or directives such as \
                    info,unified_proxy=debug",
        );
    }
    Ok(text.to_owned())
}
