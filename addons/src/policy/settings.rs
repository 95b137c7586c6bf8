//! `policy.rules` in `policy.yaml` and `upstream.allow_private` in `proxy.yaml`.

pub(super) mod allowlist;

use std::collections::HashSet;
use std::time::Duration;

use ipnet::IpNet;

use super::Rule;
use super::people::HOST_REVISION;
use crate::contract::settings::{Fields, Files, Passthrough, PathPattern, Setting, parse_method};
use crate::contract::{Effect, HostPattern, HostSet, QuestionKind, Topic};
use crate::forges::ForgeHosts;

/// The effects that a rule may have.
const EFFECTS: [(&str, Effect); 3] = [
    ("allow", Effect::Allow),
    ("deny", Effect::DenyContinue),
    ("ask", Effect::Ask),
];

const UNKNOWN_HOSTS: [(&str, bool); 2] = [("deny", false), ("ask", true)];

/// Limit on `approvals.hold`.
const MAX_HOLD: Duration = Duration::from_secs(8);

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
    /// Whether a person is asked about a host that is on no allowlist.
    pub asks_about_hosts: bool,
    /// How long a flow waits for a person's decision before it is denied as pending.
    pub hold: Duration,
}

impl PolicySettings {
    /// Reads the settings. All hosts of forges are guarded, those of their APIs included.
    pub fn read(files: &Files<'_>) -> Self {
        let forges = ForgeHosts::read(files);
        let guarded = forges.iter().flat_map(ForgeHosts::all_hosts);
        let proxy = files.proxy.fields();
        let upstream = proxy.section("upstream");
        let policy = files.policy.fields().section("policy");
        Self {
            allow_private: upstream.list("allow_private", |at| at.parse(network)),
            host_ports: Vec::new(),
            guarded_hosts: guarded.cloned().collect(),
            rules: rules(&policy),
            asks_about_hosts: policy.or("unknown_hosts", false, |at| at.one_of(&UNKNOWN_HOSTS)),
            hold: proxy.section("approvals").or("hold", Duration::ZERO, hold),
        }
    }

    /// Whether a question is still asked under these settings, and by the same rule.
    pub fn still_asks(&self, topic: &Topic) -> bool {
        match topic.kind {
            QuestionKind::Host => self.asks_about_hosts && *topic.revision == *HOST_REVISION,
            QuestionKind::Request => self.rules.iter().any(|rule| {
                topic.rule.as_deref() == Some(&*rule.name) && *topic.revision == *rule.revision()
            }),
            QuestionKind::Tool | QuestionKind::Definition | QuestionKind::Policy => true,
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

/// Reads how long a flow waits for a person. Clients that wait longer for the response to a CONNECT
/// give up.
fn hold(at: Setting<'_>) -> Option<Duration> {
    if at.any_text() == Some("0s") {
        return Some(Duration::ZERO);
    }
    let hold = at.duration()?;
    if hold > MAX_HOLD {
        at.refuse("must be at most 8s");
    }
    Some(hold)
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
