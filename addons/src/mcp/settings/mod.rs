//! Reads `mcp.yaml`: the native form, the JSON of MCP clients, and files of the polis gateway.

mod clients;
mod coding;
mod command;
mod hidden;
mod http;
mod interceptor;
mod methods;
mod names;
mod overrides;
mod policies;
mod policy_servers;
mod polis;
mod process;
mod servers;
mod tokens;
mod types;
mod waits;

use std::sync::Arc;

use crate::contract::settings::{Fields, Files, Setting, check_version};
use crate::contract::{Level, SecretFiles};

pub use hidden::HiddenValue;
pub use interceptor::{ContextSettings, InterceptorSettings};
pub(super) use overrides::HINTS;
pub use polis::PolisSettings;
pub use tokens::{AgentToken, HumanJwt, TokenSettings};
pub use types::{
    Bundle, CodingEndpoint, CodingSettings, CommandPolicy, Confine, E2bSettings, HttpSettings,
    HttpTransport, Injected, McpSettings, OnChange, OnUnavailable, OverrideRule, OverrideRules,
    PoliciesSettings, Policy, PolicyServer, Scope, ServerKind, ServerSettings, StdioSettings,
};
pub use waits::PersonWaits;

/// The longest exposed name that APIs of models accept, in bytes.
pub const MAX_EXPOSED_NAME: usize = 64;

/// Keys that have no effect in this version, each with the feature that it would configure.
const LATER: [(&str, &str); 1] = [(
    "mcp_hosts",
    "policies for remote MCP servers that clients reach through the proxy's port",
)];

impl McpSettings {
    /// Reads the settings. Checks the files that hold secrets, so it may block.
    pub fn read(files: &Files<'_>, secret_files: &dyn SecretFiles) -> Self {
        let waits = PersonWaits::read(files);
        // `Document::fields` requires a version, which the JSON of clients lacks.
        let Some(fields) = files.mcp.root().and_then(|root| root.fields()) else {
            return Self {
                waits,
                ..Self::default()
            };
        };
        // Claims and checks the keys of polis. Their values are not needed here: they are defaults
        // for keys of `proxy.yaml`.
        PolisSettings::read(files);
        match fields.find("version") {
            // `PolisSettings::read` has checked the version of a polis file.
            Some(version) if !polis::is_polis(&fields) => check_version(&version),
            _ => {}
        }
        for (key, what) in LATER {
            if let Some(at) = fields.find(key) {
                let message =
                    format!("{key} has no effect: this version does not implement {what}");
                at.report().warn_at(at.place(), message);
            }
        }
        if let Some(at) = fields.find("approvals") {
            let message = "approvals has no effect here: write it in proxy.yaml";
            at.report().warn_at(at.place(), message);
        }
        clients::ignore_in_file(&fields);
        let mut servers = servers::read(&fields);
        let policies = policies::read(&fields.section("policies"));
        policy_servers::mount(&fields, &policies, waits.of(None), &mut servers);
        let overrides = overrides::read(&fields, &servers);
        let servers = servers.into_iter();
        let mounted = servers.filter_map(|(name, server)| Some((name, Arc::new(server?))));
        let on_definition_change = fields.or("on_definition_change", OnChange::Deny, |at| {
            at.one_of(&[("deny", OnChange::Deny), ("log", OnChange::Log)])
        });
        Self {
            allowed_hosts: fields.list("allowed_hosts", |at| at.parse(allowed_host)),
            servers: mounted.collect(),
            overrides,
            policies,
            on_definition_change,
            waits,
            tokens: TokenSettings::read(&fields.section("tokens"), secret_files),
            context: ContextSettings::read(&fields.section("context")),
            interceptor: InterceptorSettings::read(&fields.section("interceptor")),
        }
    }
}

fn allowed_host(text: &str) -> Result<Arc<str>, &'static str> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
    let is_name = !text.is_empty() && text.len() <= 260 && text.bytes().all(fits);
    if !is_name {
        return Err("must be a host name, or name:port");
    }
    Ok(text.to_ascii_lowercase().into())
}

/// Reads patterns of container ids, in which `*` matches any text.
fn containers(fields: &Fields<'_>) -> Vec<Arc<str>> {
    fields.list("containers", |at| at.parse(container_pattern))
}

fn container_pattern(text: &str) -> Result<Arc<str>, &'static str> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-*".contains(&byte);
    if (1..=128).contains(&text.len()) && text.bytes().all(fits) {
        return Ok(text.into());
    }
    Err("must be a container's id, in which * stands for any text")
}

/// Reads a classification.
fn level(at: Setting<'_>) -> Option<Level> {
    at.parse(|text| Level::parse(text).ok_or("must be Public, Confidential or Secret"))
}

/// Reads an exposed name, or the id of a bundle, which is a label of metrics.
fn short_name(text: &str) -> Result<Arc<str>, String> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    if (1..=MAX_EXPOSED_NAME).contains(&text.len()) && text.bytes().all(fits) {
        return Ok(text.into());
    }
    Err(format!(
        "must have 1 to {MAX_EXPOSED_NAME} characters of A to Z, a to z, 0 to 9, _ - and ."
    ))
}

#[cfg(test)]
mod client_files;
#[cfg(test)]
mod tests;
