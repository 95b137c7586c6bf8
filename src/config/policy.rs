//! `policy.yaml`

use std::collections::{BTreeMap, HashSet};

use addons::contract::settings::{Document, Fields, Setting};
use addons::contract::{EntryMap, Host, HostPattern};
use http::Method;
use regex::RegexBuilder;

use super::budgets;
use super::{ApiPolicy, Effect, GitConfig, GitHost, PolicyConfig, RuleConfig};

/// The memory that one compiled pattern may take; sensible ones take a hundredth.
const REGEX_SIZE_LIMIT: usize = 1 << 20;

const MB: u64 = 1 << 20;
const GB: u64 = 1 << 30;

const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];

/// What is blocked without a file.
const BLOCKED_PATTERNS: [(&str, &str); 3] = [
    ("PUT", r"^/repos/[^/]+/[^/]+/pulls/\d+/merge$"),
    ("POST", r"^/repos/[^/]+/[^/]+/releases$"),
    ("DELETE", r"^/repos/[^/]+/[^/]+$"),
];

/// Assistants that no text may mention, without a file.
const BLOCKED_MENTIONS: [&str; 1] = ["@copilot"];

/// The longest login that GitHub gives out, with a company's short code, in bytes.
const MAX_LOGIN: usize = 64;

const EFFECTS: [(&str, Effect); 3] = [
    ("allow", Effect::Allow),
    ("deny", Effect::Deny),
    ("ask", Effect::Ask),
];

/// Decodes the file.
pub fn read(document: &Document<'_>) -> PolicyConfig {
    let fields = document.fields();
    let policy = fields.section("policy");
    PolicyConfig {
        allow_branch_deletion: policy.or("allow_branch_deletion", false, |at| at.boolean()),
        api: api(&policy),
        rules: rules(&policy),
        git: git(&fields.section("git")),
        circuit_breakers: budgets::circuit_breakers(&fields.section("circuit_breakers")),
        rate_limits: budgets::rate_limits(&fields.section("rate_limits")),
    }
}

fn api(fields: &Fields<'_>) -> ApiPolicy {
    let mut blocked: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (method, pattern) in BLOCKED_PATTERNS {
        let patterns = blocked.entry(method.to_owned()).or_default();
        patterns.push(pattern.to_owned());
    }
    ApiPolicy {
        blocked_patterns: fields.or("blocked_api_patterns", blocked, patterns),
        allowed_patterns: fields.or("allowed_api_patterns", BTreeMap::new(), patterns),
        blocked_mutations: fields.list("blocked_graphql_mutations", |at| at.parse(graphql_name)),
        allowed_mutations: fields.list("allowed_graphql_mutations", |at| at.parse(graphql_name)),
        blocked_mentions: fields.or(
            "blocked_mentions",
            BLOCKED_MENTIONS.map(str::to_owned).to_vec(),
            |at| at.list(|at| at.parse(mention)),
        ),
        writes_are_an_allowlist: fields.or("github_writes", true, |at| {
            at.one_of(&[("allowlist", true), ("blocklist", false)])
        }),
    }
}

fn patterns(at: Setting<'_>) -> Option<BTreeMap<String, Vec<String>>> {
    let mut patterns = BTreeMap::new();
    for (key, value) in at.entries()? {
        if let Err(wrong) = method(&key.name) {
            value.refuse_key(key, wrong);
        }
        let list = value.list(|at| at.parse(pattern)).unwrap_or_default();
        patterns.insert(key.name.clone(), list);
    }
    Some(patterns)
}

fn rules(fields: &Fields<'_>) -> Vec<RuleConfig> {
    let mut names = HashSet::new();
    fields.list("rules", |at| {
        at.mapping(|fields| {
            let name = fields.need("name").and_then(|at| {
                let name = at.text()?;
                if name.is_empty() || !names.insert(name.to_owned()) {
                    at.refuse("must be a name that no other rule has");
                }
                Some(name.to_owned())
            });
            let effect = fields.need("effect").and_then(|at| at.one_of(&EFFECTS));
            let mut hosts = EntryMap::default();
            for pattern in fields.list("hosts", |at| at.parse(HostPattern::parse)) {
                hosts.insert(pattern, ());
            }
            let methods = fields.list("methods", |at| at.parse(method));
            let paths = fields.list("paths", |at| at.parse(pattern));
            Some(RuleConfig {
                name: name?,
                effect: effect?,
                hosts,
                methods,
                paths,
                origin: at.origin(),
            })
        })?
    })
}

fn git(fields: &Fields<'_>) -> GitConfig {
    let limits = fields.section("push_limits");
    let warning_bytes = limits.or("warning_bytes", 50 * MB, |at| at.size(1..=1024 * GB));
    let hard_limit_bytes = limits.or("hard_limit_bytes", 100 * MB, |at| at.size(1..=1024 * GB));
    if warning_bytes > hard_limit_bytes {
        limits.refuse("warning_bytes", "must not be above hard_limit_bytes");
    }
    let prefixes = vec!["refs/heads/sandbox/".to_owned()];
    GitConfig {
        hosts: fields.or("hosts", vec![github()], git_hosts),
        bot_branch_prefixes: fields.or("bot_branch_prefixes", prefixes, |at| {
            at.list(|at| at.parse(branch_prefix))
        }),
        public_reads: fields.or("public_reads", false, |at| {
            at.one_of(&[("deny", false), ("allow", true)])
        }),
        report_push_denials: fields.or("push_denials", true, |at| {
            at.one_of(&[("report", true), ("status", false)])
        }),
        warning_bytes,
        hard_limit_bytes,
    }
}

fn git_hosts(at: Setting<'_>) -> Option<Vec<GitHost>> {
    let mut seen = HashSet::new();
    at.list(|at| {
        let git_host = git_host(&at)?;
        if !seen.insert(git_host.host.clone()) {
            at.refuse(format!("{} stands here twice", git_host.host));
        }
        Some(git_host)
    })
}

fn git_host(at: &Setting<'_>) -> Option<GitHost> {
    if at.is_mapping() {
        return at.mapping(|fields| {
            let host = fields.need("host").and_then(|at| at.parse(Host::parse));
            let mut service = |key| fields.optional(key, |at| at.parse(Host::parse));
            let [api, uploads, raw, codeload] =
                ["api", "uploads", "raw", "codeload"].map(&mut service);
            Some(GitHost {
                host: host?,
                api,
                uploads,
                raw,
                codeload,
            })
        })?;
    }
    let host = at.parse(Host::parse)?;
    let github = github();
    if host == github.host {
        return Some(github);
    }
    Some(GitHost {
        host,
        api: None,
        uploads: None,
        raw: None,
        codeload: None,
    })
}

/// github.com, whose other hosts need not be written out.
fn github() -> GitHost {
    let name = |name: &str| Host::Name(name.into());
    GitHost {
        host: name("github.com"),
        api: Some(name("api.github.com")),
        uploads: Some(name("uploads.github.com")),
        raw: Some(name("raw.githubusercontent.com")),
        codeload: Some(name("codeload.github.com")),
    }
}

fn method(text: &str) -> Result<Method, String> {
    let wrong = || format!("must be one of {}", METHODS.join(", "));
    if !METHODS.contains(&text) {
        return Err(wrong());
    }
    Method::from_bytes(text.as_bytes()).map_err(|_| wrong())
}

fn pattern(text: &str) -> Result<String, String> {
    let compiled = RegexBuilder::new(text).size_limit(REGEX_SIZE_LIMIT).build();
    match compiled {
        Ok(_) => Ok(text.to_owned()),
        Err(regex::Error::CompiledTooBig(_)) => {
            Err("is not accepted: the compiled pattern would be larger than 1 MB".to_owned())
        }
        Err(error) => {
            // The whole message is several lines and quotes the pattern; its last line says why.
            let message = error.to_string();
            let reason = message.lines().last().unwrap_or_default();
            let reason = reason.strip_prefix("error: ").unwrap_or(reason);
            Err(format!("is not a regular expression: {reason}"))
        }
    }
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

fn branch_prefix(text: &str) -> Result<String, &'static str> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-' | b'/');
    let below = text.strip_prefix("refs/heads/").unwrap_or_default();
    let whole = below.ends_with('/') && !below.starts_with('/');
    let valid = whole && below.bytes().all(fits) && !below.contains("//") && !below.contains("..");
    valid
        .then(|| text.to_owned())
        .ok_or("must be a prefix of branches such as refs/heads/sandbox/")
}
