//! From `policy.yaml` to the guard of GitHub's APIs.

use std::sync::Arc;

use addons::github::{Forge, ForgeHosts, GithubSettings, Mentions, Mutations, Patterns};

use super::failure::Failure;
use crate::config::PolicyConfig;

/// What the guard of GitHub's APIs is made from.
pub fn settings(config: &PolicyConfig, forge: Arc<dyn Forge>) -> Result<GithubSettings, Failure> {
    let api = &config.api;
    let patterns = |key: &str, patterns| {
        let setting = |error| Failure::Setting(format!("policy.yaml: policy.{key}: {error}"));
        Patterns::new(patterns).map_err(setting)
    };
    let hosts = config.git.hosts.iter().map(|git| ForgeHosts {
        host: git.host.clone(),
        api: git.api.clone(),
        uploads: git.uploads.clone(),
        raw: git.raw.clone(),
        codeload: git.codeload.clone(),
    });
    Ok(GithubSettings {
        hosts: hosts.collect(),
        blocked: patterns("blocked_api_patterns", &api.blocked_patterns)?,
        allowed: patterns("allowed_api_patterns", &api.allowed_patterns)?,
        writes_are_an_allowlist: api.writes_are_an_allowlist,
        public_reads: config.git.public_reads,
        mutations: Mutations::new(
            &api.allowed_mutations,
            &api.blocked_mutations,
            api.writes_are_an_allowlist,
        ),
        mentions: Mentions::new(&api.blocked_mentions),
        forge,
    })
}
