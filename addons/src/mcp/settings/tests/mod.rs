mod errors;
mod hidden_values;
mod native;
mod other_forms;
mod policy_servers;
mod properties;
mod warnings;

use super::*;
use crate::contract::settings::{Document, Report};
use crate::fixtures::ports::MemoryFiles;

pub(super) type Warnings = Vec<String>;

/// Reads a text; returns the settings and warnings, or all errors.
pub(super) fn read_with(
    text: &str,
    env: &[(&str, &str)],
) -> Result<(McpSettings, PolisSettings, Warnings), Vec<String>> {
    let report = Report::default();
    let env = |name: &str| {
        let found = env.iter().find(|(variable, _)| *variable == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    let absent = |name| Document::absent(name, &report);
    let files = Files {
        proxy: absent("proxy.yaml"),
        allowlist: absent("allowlist.yaml"),
        policy: absent("policy.yaml"),
        credentials: absent("credentials.yaml"),
        mcp: Document::parse("mcp.yaml", text.as_bytes(), Some(&env), &report),
    };
    let settings = McpSettings::read(&files, &MemoryFiles::default());
    let polis = PolisSettings::read(&files);
    files.refuse_unknown_keys();
    drop(files);
    match report.finish() {
        Ok(warnings) => Ok((settings, polis, warnings)),
        Err(errors) => Err(errors.to_string().lines().map(str::to_owned).collect()),
    }
}

fn read(text: &str) -> McpSettings {
    read_with(text, &[]).unwrap().0
}

fn stdio(server: &ServerSettings) -> &StdioSettings {
    match &server.kind {
        ServerKind::Stdio(settings) => settings,
        other => panic!("{other:?}"),
    }
}

fn texts(values: &[HiddenValue]) -> Vec<&str> {
    values.iter().map(|value| value.0.as_str()).collect()
}

fn http(server: &ServerSettings) -> &HttpSettings {
    match &server.kind {
        ServerKind::Http(settings) => settings,
        other => panic!("{other:?}"),
    }
}
