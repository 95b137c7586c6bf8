//! Reads a server that is a process: its command line, its environment and what it may see.

use std::path::{Path, PathBuf};

use super::clients::warn_of_bare_variable;
use super::{Confine, E2bSettings, HiddenValue, ServerKind, StdioSettings};
use crate::contract::settings::{Fields, Setting};
use crate::contract::{Authority, Host};

/// Reads the settings of a process, or of a server in e2b.
pub(super) fn read(command: &Setting<'_>, fields: &Fields<'_>) -> Option<ServerKind> {
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
    let read = readable(fields);
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
    let confine = confine(fields, "the server");
    let unix_sockets = fields.or("unix_sockets", false, |at| at.boolean());
    let eager = fields.or("eager", true, |at| at.boolean());
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
        eager,
    }))
}

/// Reads `confine`, and warns if the process is not confined.
pub(super) fn confine(fields: &Fields<'_>, whose: &str) -> Confine {
    let choices = [("namespaces", Confine::Namespaces), ("none", Confine::None)];
    let confine = fields.or("confine", Confine::Namespaces, |at| at.one_of(&choices));
    if let (Confine::None, Some(at)) = (confine, fields.find("confine")) {
        let message = format!("confine: none gives {whose} all rights of the proxy's process");
        at.report().warn_at(at.place(), message);
    }
    confine
}

/// Reads the paths that a process may read.
pub(super) fn readable(fields: &Fields<'_>) -> Vec<PathBuf> {
    fields.list("read", |at| at.parse(visible_path))
}

/// Reads the program and its arguments; `command` may contain both.
pub(super) fn command_line(command: &Setting<'_>, fields: &Fields<'_>) -> Option<Vec<HiddenValue>> {
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
pub(super) fn warn_of_visible_values(fields: &Fields<'_>) {
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
pub(super) fn environment(fields: &Fields<'_>) -> Vec<(String, HiddenValue)> {
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
pub(super) fn expanded(fields: &Fields<'_>) -> Vec<HiddenValue> {
    let read = ["command", "args", "env"].map(|key| fields.find(key));
    let values = read.into_iter().flatten().flat_map(|at| at.expanded());
    values.map(HiddenValue::of).collect()
}

fn is_variable(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_graphic() && byte != b'=';
    !name.is_empty() && name.bytes().all(fits)
}

pub(super) fn work_dir(fields: &Fields<'_>) -> Option<PathBuf> {
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
