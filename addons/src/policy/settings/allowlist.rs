//! `allowlist.yaml`, one list for HTTP and DNS.

use std::sync::Arc;

use crate::contract::settings::{Files, Setting};
use crate::contract::{Allowlist, Entry, HostPattern, Level, Origin};

const DEFAULT_PORTS: [u16; 2] = [80, 443];

/// Reads the file. Without the file, the allowlist is empty, and every request is denied.
pub fn read_allowlist(files: &Files<'_>) -> Allowlist {
    let mut allowlist = Allowlist::default();
    let fields = files.allowlist.fields();
    let entries = fields.list("domains", |at| Some((entry(&at)?, at)));
    for (entry, at) in entries {
        let entry = Arc::new(entry);
        let before = allowlist.insert(entry.pattern.clone(), entry.clone());
        if let Some(before) = before {
            let line = before.origin.line;
            at.refuse(format!(
                "{} is on the list already, in line {line}",
                entry.label
            ));
        }
    }
    if allowlist.is_empty() {
        files
            .allowlist
            .report()
            .warn("no domain is allowed: every request is denied");
    }
    allowlist
}

/// Reads an entry from a command line: `name`, or `name:port` for that port alone.
///
/// # Errors
///
/// Why the text is not an entry, and what to write instead.
pub fn parse_entry(text: &str) -> Result<Entry, String> {
    let origin = || Origin {
        file: "the command line".into(),
        line: 1,
    };
    match with_port(text) {
        Some((pattern, port)) => Ok(Entry {
            ports: vec![port],
            ..default_entry(pattern, origin())
        }),
        None => pattern(text, |pattern, port| format!("{pattern}:{port}"))
            .map(|pattern| default_entry(pattern, origin())),
    }
}

/// Adds an entry. If the allowlist has one with the same pattern, that entry gets the new ports and
/// keeps its other limits.
pub fn extend_allowlist(allowlist: &mut Allowlist, entry: Entry) {
    let extended = match allowlist.get(&entry.pattern) {
        Some(known) => {
            let mut known = Entry::clone(known);
            known.ports.extend(entry.ports);
            known.ports.sort_unstable();
            known.ports.dedup();
            known
        }
        None => entry,
    };
    allowlist.insert(extended.pattern.clone(), Arc::new(extended));
}

fn default_entry(pattern: HostPattern, origin: Origin) -> Entry {
    Entry {
        label: pattern.to_string().into(),
        pattern,
        ports: DEFAULT_PORTS.to_vec(),
        websocket: true,
        max_level: Level::Secret,
        origin,
        grant: None,
    }
}

fn entry(at: &Setting<'_>) -> Option<Entry> {
    let in_yaml =
        |pattern: &HostPattern, port| format!("{{ domain: {}, ports: [{port}] }}", quoted(pattern));
    let pattern = |text: &str| pattern(text, in_yaml);
    if !at.is_mapping() {
        return at
            .parse(pattern)
            .map(|pattern| default_entry(pattern, at.origin()));
    }
    let fields = at.fields()?;
    let pattern = fields.need("domain").and_then(|at| at.parse(pattern));
    let ports = fields.or("ports", DEFAULT_PORTS.to_vec(), |at| {
        at.filled_list(|at| at.number(1..=u16::MAX))
    });
    let websocket = fields.or("websocket", true, |at| at.boolean());
    let levels = Level::ALL.map(|level| (level.as_str(), level));
    let max_level = fields.or("max_level", Level::Secret, |at| at.one_of(&levels));
    Some(Entry {
        ports,
        websocket,
        max_level,
        ..default_entry(pattern?, at.origin())
    })
}

/// Parses a host pattern. The error for a URL or for a name with a port contains the entry to
/// write in its place; `entry_of_port` formats an entry for one port.
fn pattern(
    text: &str,
    entry_of_port: impl Fn(&HostPattern, u16) -> String,
) -> Result<HostPattern, String> {
    let wrong = match HostPattern::parse(text) {
        Ok(pattern) => return Ok(pattern),
        Err(wrong) => wrong.to_string(),
    };
    let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    // The user information is cut off: it may contain a password.
    let authority = authority.rsplit('@').next().unwrap_or_default();
    if let Ok(pattern) = HostPattern::parse(authority) {
        let pattern = quoted(&pattern);
        return Err(format!(
            "must be a name without scheme, user and path: write {pattern}"
        ));
    }
    match with_port(authority) {
        Some((pattern, port)) => Err(format!(
            "must be a name, with its ports beside it: write {}",
            entry_of_port(&pattern, port)
        )),
        None => Err(wrong),
    }
}

/// Parses `name:port`.
fn with_port(text: &str) -> Option<(HostPattern, u16)> {
    let (name, port) = text.rsplit_once(':')?;
    let port = port.parse::<u16>().ok().filter(|port| *port > 0)?;
    Some((HostPattern::parse(name).ok()?, port))
}

/// Formats a pattern for YAML: without quotes, `*` begins an alias and `[` a list.
fn quoted(pattern: &HostPattern) -> String {
    let text = pattern.to_string();
    match text.starts_with(['*', '[']) {
        true => format!("\"{text}\""),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_of_the_command_line_adds_ports_and_keeps_the_other_limits() {
        let mut allowlist = Allowlist::default();
        let configured = Entry {
            ports: vec![443],
            websocket: false,
            max_level: Level::Public,
            ..parse_entry("a.example").unwrap()
        };
        let pattern = configured.pattern.clone();
        extend_allowlist(&mut allowlist, configured);
        extend_allowlist(&mut allowlist, parse_entry("a.example:8443").unwrap());
        let entry = allowlist.get(&pattern).unwrap();
        assert_eq!(entry.ports, [443, 8443]);
        assert_eq!((entry.websocket, entry.max_level), (false, Level::Public));
    }

    #[test]
    fn a_url_on_the_command_line_is_refused_with_the_entry_to_write() {
        let error = parse_entry("https://user@a.example:8443/x").unwrap_err();
        assert!(error.ends_with("write a.example:8443"), "{error}");
    }
}
