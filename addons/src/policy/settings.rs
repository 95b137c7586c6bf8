//! `policy.rules` in `policy.yaml` and `upstream.allow_private` in `proxy.yaml`.

pub(super) mod allowlist;

use std::collections::HashSet;

use ipnet::IpNet;

use super::Rule;
use crate::contract::settings::{Fields, Files, Passthrough, PathPattern, Setting, parse_method};
use crate::contract::{Effect, HostPattern, HostSet};
use crate::forges::ForgeHosts;

/// The effects that a rule may have.
const EFFECTS: [(&str, Effect); 3] = [
    ("allow", Effect::Allow),
    ("deny", Effect::DenyContinue),
    ("ask", Effect::Ask),
];

/// The settings of the addon `policy`, except for the allowlist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicySettings {
    /// Ranges that may be dialled although the address guard would deny them.
    pub allow_private: Vec<IpNet>,
    /// Ports of 127.0.0.1 that may be dialled by this address and by the name `localhost`. No file
    /// sets them, only an option of `run`.
    pub host_ports: Vec<u16>,
    /// Hosts whose paths other addons judge. An ambiguous path is denied on these hosts.
    pub guarded_hosts: HostSet,
    /// The operator's rules, in the order of the file. Hosts of rules with paths are guarded too.
    pub rules: Vec<Rule>,
}

impl PolicySettings {
    /// Reads the settings. All hosts of forges are guarded, those of their APIs included.
    pub fn read(files: &Files<'_>) -> Self {
        let forges = ForgeHosts::read(files);
        let guarded = forges.iter().flat_map(ForgeHosts::all_hosts);
        let upstream = files.proxy.fields().section("upstream");
        Self {
            allow_private: upstream.list("allow_private", |at| at.parse(network)),
            host_ports: Vec::new(),
            guarded_hosts: guarded.cloned().collect(),
            rules: rules(&files.policy.fields().section("policy")),
        }
    }

    /// Reports an error for each passthrough pattern whose hosts need decryption because of a rule.
    pub fn check(&self, passthrough: &Passthrough<'_>) {
        let mut rules = self.rules.as_slice();
        while let [rule, later @ ..] = rules {
            rules = later;
            passthrough.refuse_if(|pattern| {
                rule.must_read(pattern, later).then(|| {
                    let (name, origin) = (&rule.name, &rule.origin);
                    format!(
                        "rule {name} at {origin} judges requests to hosts of {pattern}, so they must be decrypted: remove this pattern from tls.passthrough"
                    )
                })
            });
        }
    }
}

fn rules(fields: &Fields<'_>) -> Vec<Rule> {
    let mut names = HashSet::new();
    fields.list("rules", |at| rule(&at, &mut names))
}

fn rule(at: &Setting<'_>, names: &mut HashSet<String>) -> Option<Rule> {
    let fields = at.fields()?;
    let name = fields.need("name").and_then(|at| {
        let name = at.text()?;
        if name.is_empty() || !names.insert(name.to_owned()) {
            at.refuse("must be a name that no other rule has");
        }
        Some(name)
    });
    let effect = fields.need("effect").and_then(|at| at.one_of(&EFFECTS));
    let hosts = fields.list("hosts", |at| at.parse(HostPattern::parse));
    let methods = fields.list("methods", |at| at.parse(parse_method));
    let paths = fields.list("paths", |at| at.parse(PathPattern::parse));
    Some(Rule {
        name: name?.into(),
        effect: effect?,
        hosts: hosts.into_iter().map(|host| (host, ())).collect(),
        methods,
        paths,
        origin: at.origin(),
    })
}

fn network(text: &str) -> Result<IpNet, &'static str> {
    let wrong = |_| "must be a network such as 10.1.0.0/16";
    let network: IpNet = text.parse().map_err(wrong)?;
    if network.trunc() != network {
        return Err("has bits behind its prefix: write the first address of the network");
    }
    Ok(network)
}
