//! The keys of `policy` in `policy.yaml` for GitHub's APIs.

use http::Method;

use super::{Mentions, Mutations, Patterns};
use crate::contract::settings::{Fields, Files, PathPattern, Setting, parse_method};
use crate::forges::{ForgeHosts, public_reads};

/// The patterns that block merging a pull request, creating a release and deleting a repository:
/// these are reserved for people.
const BLOCKED_PATTERNS: [(Method, &str); 3] = [
    (Method::PUT, r"^/repos/[^/]+/[^/]+/pulls/\d+/merge$"),
    (Method::POST, r"^/repos/[^/]+/[^/]+/releases$"),
    (Method::DELETE, r"^/repos/[^/]+/[^/]+$"),
];

/// Assistants that GitHub itself starts when a text mentions them.
const BLOCKED_MENTIONS: [&str; 1] = ["@copilot"];

/// The longest login at GitHub in bytes, including an enterprise's short code.
const MAX_LOGIN: usize = 64;

/// The settings of the addon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GithubSettings {
    /// The forges that are guarded.
    pub hosts: Vec<ForgeHosts>,
    /// `policy.blocked_api_patterns`
    pub blocked: Patterns,
    /// `policy.allowed_api_patterns`
    pub allowed: Patterns,
    /// Whether `policy.github_writes` is `allowlist`. If not, it is `blocklist`.
    pub writes_are_an_allowlist: bool,
    /// Whether `git.public_reads` is `allow`.
    pub public_reads: bool,
    /// The permitted and the blocked mutations.
    pub mutations: Mutations,
    /// `policy.blocked_mentions`
    pub mentions: Mentions,
}

impl GithubSettings {
    /// Reads the settings.
    pub fn read(files: &Files<'_>) -> Self {
        let fields = files.policy.fields().section("policy");
        let blocked = match fields.find("blocked_api_patterns") {
            Some(at) => patterns(&at).unwrap_or_default(),
            None => shipped_patterns(&fields),
        };
        let allowed = fields.find("allowed_api_patterns");
        let allowed = allowed.and_then(|at| patterns(&at));
        let names = |key| fields.list(key, |at| at.parse(graphql_name));
        let blocked_mutations = names("blocked_graphql_mutations");
        let allowed_mutations = names("allowed_graphql_mutations");
        let mentions = BLOCKED_MENTIONS.map(str::to_owned).to_vec();
        let mentions = fields.or("blocked_mentions", mentions, |at| {
            at.list(|at| at.parse(mention))
        });
        let writes_are_an_allowlist = fields.or("github_writes", true, |at| {
            at.one_of(&[("allowlist", true), ("blocklist", false)])
        });
        Self {
            hosts: ForgeHosts::read(files),
            blocked,
            allowed: allowed.unwrap_or_default(),
            writes_are_an_allowlist,
            public_reads: public_reads(files),
            mutations: Mutations::new(
                &allowed_mutations,
                &blocked_mutations,
                writes_are_an_allowlist,
            ),
            mentions: Mentions::new(&mentions),
        }
    }
}

/// The patterns that block requests if `blocked_api_patterns` is absent. A pattern that does not
/// compile is reported as a configuration error, as if the file contained it.
fn shipped_patterns(fields: &Fields<'_>) -> Patterns {
    let mut patterns = Vec::new();
    for (method, text) in BLOCKED_PATTERNS {
        match PathPattern::parse_ignoring_case(text) {
            Ok(pattern) => patterns.push((method, vec![pattern])),
            Err(wrong) => fields.refuse("blocked_api_patterns", wrong),
        }
    }
    patterns.into_iter().collect()
}

fn patterns(at: &Setting<'_>) -> Option<Patterns> {
    let of_methods = at.entries()?.filter_map(|(key, value)| {
        let method = parse_method(&key.name);
        let method = method.map_err(|wrong| value.refuse_key(key, wrong));
        let patterns = value.list(|at| at.parse(PathPattern::parse_ignoring_case));
        Some((method.ok()?, patterns?))
    });
    Some(of_methods.collect())
}

fn graphql_name(text: &str) -> Result<String, &'static str> {
    let begins_well = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let valid = begins_well && text.bytes().all(fits);
    valid
        .then(|| text.to_owned())
        .ok_or("must be the name of a mutation")
}

fn mention(text: &str) -> Result<String, &'static str> {
    let login = text.strip_prefix('@').unwrap_or_default();
    let ends = |c: char| c.is_ascii_alphanumeric();
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let valid = login.starts_with(ends)
        && login.ends_with(ends)
        && login.len() <= MAX_LOGIN
        && login.bytes().all(fits);
    valid
        .then(|| text.to_owned())
        .ok_or("must be @ and a login, in quotes, such as \"@copilot\"")
}
