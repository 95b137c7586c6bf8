//! `git` and `policy.allow_branch_deletion` in `policy.yaml`.

use std::sync::Arc;

use crate::contract::HostSet;
use crate::contract::settings::{Files, Passthrough};
use crate::forges::{ForgeHosts, public_reads};

const MB: u64 = 1 << 20;
const GB: u64 = 1 << 30;

/// The default limits of a push are GitHub's limits of a file: GitHub warns above 50 MB and refuses
/// files above 100 MB.
const WARNING_BYTES: u64 = 50 * MB;
const HARD_LIMIT_BYTES: u64 = 100 * MB;

/// The default prefix of branches for bots.
const BOT_BRANCH_PREFIX: &str = "refs/heads/sandbox/";

/// The settings of the addon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GitSettings {
    /// The git hosts that the rules apply to.
    pub hosts: HostSet,
    /// The prefixes of refs that containers in bot mode may push to.
    pub bot_branch_prefixes: Arc<[String]>,
    /// Whether a push may delete refs.
    pub allow_branch_deletion: bool,
    /// Whether repositories outside the container's list may be read, without a credential.
    pub public_reads: bool,
    /// Whether a denied push gets git's own report instead of an HTTP error status.
    pub report_push_denials: bool,
    /// Pushes above this size in bytes are logged once they have passed.
    pub warning_bytes: u64,
    /// Pushes above this size in bytes are denied, unless the container's registration sets another
    /// limit for the repository.
    pub hard_limit_bytes: u64,
}

impl GitSettings {
    /// Reads the settings.
    pub fn read(files: &Files<'_>) -> Self {
        let fields = files.policy.fields();
        let (policy, git) = (fields.section("policy"), fields.section("git"));
        let hosts = ForgeHosts::read(files).into_iter().map(|forge| forge.host);
        let prefixes = vec![BOT_BRANCH_PREFIX.to_owned()];
        let bot_branch_prefixes = git.or("bot_branch_prefixes", prefixes, |at| {
            at.list(|at| at.parse(branch_prefix))
        });
        let public_reads = public_reads(files);
        let report_push_denials = git.or("push_denials", true, |at| {
            at.one_of(&[("report", true), ("status", false)])
        });
        let limits = git.section("push_limits");
        let limit = |key, default| limits.or(key, default, |at| at.size(1..=1024 * GB));
        let warning_bytes = limit("warning_bytes", WARNING_BYTES);
        let hard_limit_bytes = limit("hard_limit_bytes", HARD_LIMIT_BYTES);
        if warning_bytes > hard_limit_bytes {
            limits.refuse("warning_bytes", "must not be above hard_limit_bytes");
        }
        Self {
            hosts: hosts.collect(),
            bot_branch_prefixes: bot_branch_prefixes.into(),
            allow_branch_deletion: policy.or("allow_branch_deletion", false, |at| at.boolean()),
            public_reads,
            report_push_denials,
            warning_bytes,
            hard_limit_bytes,
        }
    }

    /// Reports an error for each passthrough pattern that matches a host of the forges.
    pub fn check(files: &Files<'_>, passthrough: &Passthrough<'_>) {
        for host in ForgeHosts::read(files)
            .iter()
            .flat_map(ForgeHosts::all_hosts)
        {
            passthrough.refuse_host(host, "has git rules");
        }
    }
}

fn branch_prefix(text: &str) -> Result<String, &'static str> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-' | b'/');
    let below = text.strip_prefix("refs/heads/").unwrap_or_default();
    let whole = below.ends_with('/') && !below.starts_with('/');
    let valid = whole && below.bytes().all(fits) && !below.contains("//") && !below.contains("..");
    valid
        .then(|| text.to_owned())
        .ok_or("must be a prefix of branches such as refs/heads/sandbox/")
}
