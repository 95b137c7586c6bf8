//! Reads `mcpServers`, and `tools` of polis files.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::clients;
use super::names::{conflict, server_name};
use super::{
    HttpTransport, Scope, ServerKind, ServerSettings, coding, containers, http, level, process,
};
use crate::contract::Level;
use crate::contract::settings::{Fields, Setting};

/// Default time limit of a call.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The smallest plain number that is read as milliseconds. A smaller number is read as seconds.
/// Some clients write milliseconds, others seconds.
const FIRST_MILLISECONDS: u64 = 1000;
/// Limit on the servers of one file.
const MAX_SERVERS: usize = 256;
/// The keys under which files list servers: that of this file, also of most MCP clients; that of VS
/// Code; that of Codex.
const LISTS: [&str; 3] = ["mcpServers", "servers", "mcp_servers"];

/// The entries of `mcpServers` and `tools`, by name; `None` for a disabled or invalid server.
pub(super) type Servers = BTreeMap<Arc<str>, Option<ServerSettings>>;

pub(super) fn read(fields: &Fields<'_>) -> Servers {
    let mut servers = Servers::new();
    for list in LISTS {
        let entries = fields.find(list).and_then(|at| at.entries());
        for (key, at) in entries.into_iter().flatten() {
            let refuse = |message: String| at.refuse_key(key, message);
            let Some(name) = new_name(&key.name, &servers, &at, refuse) else {
                continue;
            };
            let mounted = at.fields().and_then(|fields| server(&name, &at, &fields));
            servers.insert(name, mounted);
        }
    }
    for at in fields.list("tools", Some) {
        let tool = at
            .fields()
            .and_then(|fields| polis_tool(&at, &fields, &servers));
        if let Some(tool) = tool {
            servers.insert(Arc::clone(&tool.name), Some(tool));
        }
    }
    check_sole_prefix(fields, &servers);
    if servers.len() > MAX_SERVERS {
        fields.refuse("mcpServers", format!("has more than {MAX_SERVERS} servers"));
    }
    servers
}

/// The name of a further server. Warns if it is not the name as written. Refuses a name that is
/// reserved or conflicts with one of `servers`.
fn new_name(
    written: &str,
    servers: &Servers,
    at: &Setting<'_>,
    refuse: impl Fn(String),
) -> Option<Arc<str>> {
    let name = server_name(written).map_err(&refuse).ok()?;
    if let Some(message) = servers.keys().find_map(|other| conflict(other, &name)) {
        refuse(message);
        return None;
    }
    if *name != *written {
        let message = format!(
            "the server {written:?} is mounted as {name}: a name has at most 48 of A to Z, a to z, 0 to \
             9, _ and -"
        );
        at.report().warn_at(at.place(), message);
    }
    Some(name)
}

/// Refuses an empty prefix unless only one server is mounted: with two servers, exposed names could
/// be ambiguous.
fn check_sole_prefix(fields: &Fields<'_>, servers: &Servers) {
    let mounted = || servers.values().flatten();
    if mounted().count() < 2 {
        return;
    }
    for server in mounted().filter(|server| server.prefix.is_empty()) {
        let name = &server.name;
        let message = format!(
            "{name} has an empty prefix, which is allowed only for a sole server: remove the prefix"
        );
        fields.refuse("mcpServers", message);
    }
}

fn server(name: &Arc<str>, at: &Setting<'_>, fields: &Fields<'_>) -> Option<ServerSettings> {
    clients::ignore_in_server(fields);
    let disabled = fields.or("disabled", false, |at| at.boolean());
    let enabled = fields.or("enabled", true, |at| at.boolean());
    let default_timeout = match coding::is_sidecar(fields) {
        true => coding::TIMEOUT,
        false => TIMEOUT,
    };
    let mut timeout = fields.or("timeout", default_timeout, call_timeout);
    if let Some(of_runtime) = fields.section("runtime").find("timeout") {
        timeout = call_timeout(of_runtime).unwrap_or(timeout);
    }
    let prefix = match fields.find("prefix").and_then(|at| at.one_of(&[("", "")])) {
        Some(empty) => Arc::from(empty),
        None => format!("{name}_").into(),
    };
    let containers = match fields.find("containers") {
        Some(_) => containers(fields),
        None => vec!["*".into()],
    };
    let scope = fields.or("scope", Scope::Container, |at| {
        at.one_of(&[("container", Scope::Container), ("shared", Scope::Shared)])
    });
    let kind = kind(at, fields)?;
    if let (Scope::Shared, ServerKind::Stdio(child)) = (scope, &kind)
        && let Some(hosts) = fields.find("hosts").filter(|_| !child.hosts.is_empty())
    {
        hosts.refuse(
            "a server with scope: shared cannot have hosts, since its traffic would belong to no \
             container: use scope: container, or remove hosts",
        );
    }
    (!disabled && enabled).then(|| ServerSettings {
        name: Arc::clone(name),
        prefix,
        kind,
        timeout,
        containers,
        scope,
        classification: fields.optional("classification", level),
        resources: levels(fields, "resources", is_uri_pattern, URI_PATTERN),
        prompts: levels(fields, "prompts", |name| !name.is_empty(), "not empty"),
        place: at.place(),
    })
}

/// What a pattern of URIs must be.
const URI_PATTERN: &str =
    "a URI as clients write it, with other characters than visible ASCII percent-encoded";

/// Whether a pattern can match a URI that clients may send. No client sends a space, for example.
fn is_uri_pattern(pattern: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_graphic() && !b"\\{}".contains(&byte);
    !pattern.is_empty() && pattern.bytes().all(fits)
}

/// Reads the classifications of resources or prompts, by pattern. `fits` tells whether a pattern
/// can match; `must` says what it must be.
fn levels(
    fields: &Fields<'_>,
    key: &'static str,
    fits: fn(&str) -> bool,
    must: &str,
) -> Vec<(Arc<str>, Level)> {
    let entries = fields.find(key).and_then(|at| at.entries());
    let entries = entries.into_iter().flatten();
    let read = entries.filter_map(|(key, at)| {
        if !fits(&key.name) {
            at.refuse(format!("the pattern {:?} must be {must}", key.name));
            return None;
        }
        Some((key.name.as_str().into(), level(at)?))
    });
    read.collect()
}

/// Reads a duration, or a plain number, which MCP clients write in seconds or in milliseconds.
fn call_timeout(at: Setting<'_>) -> Option<Duration> {
    let number = at.plain_number()?;
    match number {
        None => at.duration(),
        Some(0) => {
            at.refuse("must be longer than 0");
            None
        }
        Some(millis @ FIRST_MILLISECONDS..) => {
            let message = format!("timeout: {millis} is read as milliseconds; write {millis}ms");
            at.report().warn_at(at.place(), message);
            Some(Duration::from_millis(millis))
        }
        Some(seconds) => Some(Duration::from_secs(seconds)),
    }
}

/// Reads the kind of server: a command, a URL or a coding sidecar.
fn kind(at: &Setting<'_>, fields: &Fields<'_>) -> Option<ServerKind> {
    let url = ["url", "httpUrl", "serverUrl"].map(|key| fields.find(key));
    if let Some(sidecar) = coding::find(fields) {
        if fields.has("command") || url.iter().any(Option::is_some) {
            at.refuse("has both coding_sidecar and a command or a url: choose one");
            return None;
        }
        return coding::read(&sidecar).map(ServerKind::CodingSidecar);
    }
    let mut urls = url.into_iter().flatten();
    let (url, another) = (urls.next(), urls.next());
    let command = fields.find("command");
    let transport = fields.find("type").or_else(|| fields.find("transport"));
    let transport = transport.and_then(|at| {
        at.one_of(&[
            ("stdio", None),
            ("local", None),
            ("http", Some(HttpTransport::Streamable)),
            ("streamable-http", Some(HttpTransport::Streamable)),
            ("streamable_http", Some(HttpTransport::Streamable)),
            ("streamableHttp", Some(HttpTransport::Streamable)),
            ("sse", Some(HttpTransport::Sse)),
        ])
    });
    match (command, url, another) {
        (Some(command), None, _) if !matches!(transport, Some(Some(_))) => {
            process::read(&command, fields)
        }
        (None, Some(url), None) if !matches!(transport, Some(None)) => {
            http::read(&url, fields, transport.flatten().unwrap_or_default())
        }
        (None, None, _) => {
            at.refuse("needs a command, a url, or a coding_sidecar");
            None
        }
        (Some(_), Some(_), _) | (_, _, Some(_)) => {
            at.refuse("has more than one of command, url, httpUrl, serverUrl: choose one");
            None
        }
        _ => {
            at.refuse("its type does not match: stdio needs a command, http and sse need a url");
            None
        }
    }
}

/// Reads an entry of `tools` in a polis file. Such an entry describes a server.
fn polis_tool(at: &Setting<'_>, fields: &Fields<'_>, servers: &Servers) -> Option<ServerSettings> {
    let named = fields.need("name")?;
    let refuse = |message: String| named.refuse(message);
    let name = new_name(named.text()?, servers, &named, refuse);
    // Read even if the name is refused, so that all errors are found.
    let read = server(name.as_ref().unwrap_or(&Arc::default()), at, fields);
    name.and(read)
}
