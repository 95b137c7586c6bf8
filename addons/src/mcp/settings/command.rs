//! Reads `policies.evaluator`: how policies are evaluated, and the command of `kind: command`.

use std::path::PathBuf;
use std::time::Duration;

use super::methods::methods;
use super::process::{
    command_line, confine, environment, expanded, readable, warn_of_visible_values, work_dir,
};
use super::{CommandPolicy, PoliciesSettings};
use crate::contract::settings::{Fields, Setting};

/// Default time limit of a command, which takes longer to start than Rego takes to decide.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Default memory of a process.
const MEMORY: u64 = 256 << 20;
/// The least memory of a process: the sandbox itself starts with it.
const MIN_MEMORY: u64 = 32 << 20;
/// The most memory of a process.
const MAX_MEMORY: u64 = 1 << 40;
/// The most processors of a command.
const MAX_CPUS: usize = 1024;
/// The variables that the proxy sets for each message.
const SET: [&str; 2] = ["POLICY_INPUT", "POLICY_SRC"];
/// The keys of `kind: command` alone.
const KEYS: [&str; 10] = [
    "command", "args", "env", "source", "work_dir", "read", "confine", "memory", "cpus", "methods",
];

/// Reads the time limit, and the command if `kind` is `command`. `has_bundles` says whether there
/// are Rego bundles, too.
pub(super) fn evaluator(
    fields: &Fields<'_>,
    has_bundles: bool,
) -> (Duration, Option<CommandPolicy>) {
    let kinds = [("rego", false), ("command", true)];
    let is_command = fields.or("kind", false, |at| at.one_of(&kinds));
    let default = match is_command {
        true => TIMEOUT,
        false => PoliciesSettings::default().timeout,
    };
    let timeout = fields.or("timeout", default, |at| at.duration());
    if !is_command {
        for at in KEYS.into_iter().filter_map(|key| fields.find(key)) {
            at.refuse("belongs to kind: command: add it, or remove this key");
        }
        return (timeout, None);
    }
    if has_bundles {
        let message = "command cannot be combined with policies.bundles: remove the bundles, or \
                       this kind";
        if let Some(kind) = fields.find("kind") {
            kind.refuse(message);
        }
    }
    (timeout, command(fields))
}

fn command(fields: &Fields<'_>) -> Option<CommandPolicy> {
    let at = fields.need("command");
    let command = at.as_ref().and_then(|at| command_line(at, fields));
    warn_of_visible_values(fields);
    let env = environment(fields);
    if let Some(at) = fields.find("env")
        && let Some((name, _)) = env.iter().find(|(name, _)| SET.contains(&name.as_str()))
    {
        at.refuse(format!("{name} is set by the proxy: choose another name"));
    }
    let policy = CommandPolicy {
        command: command.unwrap_or_default(),
        env,
        expanded: expanded(fields),
        source: fields.optional("source", source),
        work_dir: work_dir(fields),
        read: readable(fields),
        confine: confine(fields, "the policy"),
        memory: fields.or("memory", MEMORY, |at| at.size(MIN_MEMORY..=MAX_MEMORY)),
        cpus: fields.or("cpus", 1, |at| at.number(1..=MAX_CPUS)),
        methods: methods(fields),
        place: at?.place(),
    };
    (!policy.command.is_empty()).then_some(policy)
}

fn source(at: Setting<'_>) -> Option<PathBuf> {
    at.text().map(PathBuf::from)
}
