//! Reads `mcpServers`, and `tools` of polis files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::clients::{self, warn_of_bare_variable};
use super::names::{conflict, server_name};
use super::{
    Confine, E2bSettings, HiddenValue, HttpTransport, Scope, ServerKind, ServerSettings,
    StdioSettings, coding, containers, http, level,
};
use crate::contract::settings::{Fields, Setting};
use crate::contract::{Authority, Host, Level};

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
            process(&command, fields)
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

fn process(command: &Setting<'_>, fields: &Fields<'_>) -> Option<ServerKind> {
    let command = command_line(command, fields)?;
    let runtime = fields.section("runtime");
    let is_e2b = runtime.or("type", false, |at| {
        at.one_of(&[("local", false), ("e2b", true)])
    });
    let template = runtime.optional("template", |at| at.text().map(str::to_owned));
    // Read for both runtimes: a server in e2b does not use these keys, but they are not reported as
    // unknown.
    let (env, work_dir) = (environment(fields), work_dir(fields));
    let hosts = fields.list("hosts", |at| at.parse(host_and_port));
    let read = fields.list("read", |at| at.parse(visible_path));
    let write = fields.list("write", |at| {
        let path = at.parse(visible_path)?;
        if is_of_programs(&path) {
            let message = format!(
                "write: {} lets the server change files that programs of this machine execute or \
                 obey: give the server a directory of its own",
                path.display()
            );
            at.report().warn_at(at.place(), message);
        }
        Some(path)
    });
    let confine = fields.or("confine", Confine::Namespaces, |at| {
        at.one_of(&[("namespaces", Confine::Namespaces), ("none", Confine::None)])
    });
    if let (Confine::None, Some(at)) = (confine, fields.find("confine")) {
        let message = "confine: none gives the server all rights of the proxy's process";
        at.report().warn_at(at.place(), message);
    }
    let unix_sockets = fields.or("unix_sockets", false, |at| at.boolean());
    if is_e2b {
        return Some(ServerKind::E2b(E2bSettings { command, template }));
    }
    warn_of_visible_values(fields);
    Some(ServerKind::Stdio(StdioSettings {
        command,
        env,
        expanded: expanded(fields),
        work_dir,
        hosts,
        read,
        write,
        confine,
        unix_sockets,
    }))
}

/// Reads the program and its arguments; `command` may contain both.
fn command_line(command: &Setting<'_>, fields: &Fields<'_>) -> Option<Vec<HiddenValue>> {
    let text = |at: Setting<'_>| at.text().map(HiddenValue::of);
    let args = fields.list("args", text);
    let mut line = if command.is_scalar() {
        vec![text(command.clone())?]
    } else {
        command.filled_list(text)?
    };
    if line.first().is_none_or(|program| program.0.is_empty()) {
        command.refuse("must name a program");
        return None;
    }
    line.extend(args);
    Some(line)
}

/// Warns of variables in the command line of a process.
fn warn_of_visible_values(fields: &Fields<'_>) {
    for at in ["command", "args"]
        .into_iter()
        .filter_map(|key| fields.find(key))
    {
        if at.expanded().into_iter().any(|value| !value.is_empty()) {
            let message = "every user of this machine can read the values of variables in the \
                           command line of a process: pass secrets in env";
            at.report().warn_at(at.place(), message);
        }
    }
}

/// Reads `env`: a mapping, or the `NAME=value` list of polis.
fn environment(fields: &Fields<'_>) -> Vec<(String, HiddenValue)> {
    let Some(at) = fields.find("env") else {
        return Vec::new();
    };
    if at.is_mapping() {
        let entries = at.entries().into_iter().flatten();
        let read = entries.filter_map(|(key, value)| {
            if !is_variable(&key.name) {
                value.refuse_key(key, "is not a valid variable name");
                return None;
            }
            let text = value.any_text()?;
            warn_of_bare_variable(&value, text);
            Some((key.name.clone(), HiddenValue::of(text)))
        });
        return read.collect();
    }
    let list = at.list(|at| {
        let (name, value) = at.text()?.split_once('=').unzip();
        let found = name.filter(|name| is_variable(name)).zip(value);
        if found.is_none() {
            at.refuse("must be NAME=value");
        }
        let (name, value) = found?;
        Some((name.to_owned(), HiddenValue::of(value)))
    });
    list.unwrap_or_default()
}

/// The values of the variables that were expanded in the command, its arguments and `env`.
fn expanded(fields: &Fields<'_>) -> Vec<HiddenValue> {
    let read = ["command", "args", "env"].map(|key| fields.find(key));
    let values = read.into_iter().flatten().flat_map(|at| at.expanded());
    values.map(HiddenValue::of).collect()
}

fn is_variable(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_graphic() && byte != b'=';
    !name.is_empty() && name.bytes().all(fits)
}

fn work_dir(fields: &Fields<'_>) -> Option<PathBuf> {
    let named = fields.optional("work_dir", |at| at.parse(visible_path));
    named.or_else(|| fields.optional("cwd", |at| at.parse(visible_path)))
}

/// Reads an absolute path, or one below the home directory: `~/…`.
fn visible_path(text: &str) -> Result<PathBuf, &'static str> {
    let path = Path::new(text);
    let is_below_home = text == "~" || text.starts_with("~/");
    let climbs = path.components().any(|part| part.as_os_str() == "..");
    if climbs || !(path.is_absolute() || is_below_home) {
        return Err("must be an absolute path, or one below ~, without ..");
    }
    Ok(path.to_owned())
}

/// Whether a path is the home directory or in a hidden directory, where programs keep their settings,
/// and caches of packages that they execute.
fn is_of_programs(path: &Path) -> bool {
    let mut parts = path
        .components()
        .map(|part| part.as_os_str().as_encoded_bytes());
    path == Path::new("~") || parts.any(|part| part.starts_with(b"."))
}

fn host_and_port(text: &str) -> Result<(Host, u16), String> {
    let Authority { host, port } =
        Authority::parse(text, Some(443)).map_err(|error| error.to_string())?;
    Ok((host, port))
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
