//! The JSON forms of a registration and of a registered container.

use addons::contract::{Container, HostPattern, Source};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use utoipa::ToSchema;

use crate::registry::RepoEntry;

/// A registration.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
pub struct RegistrationBody {
    /// The container's IPv4 or IPv6 address; required unless there is a `listener`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container_ip: Option<String>,
    /// `unix`: the container has its own Unix socket instead of an address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub listener: Option<String>,
    /// 1 to 128 characters of `A-Z a-z 0-9 _ . -`
    pub container_id: String,
    /// The repositories that the container may use.
    pub repos: Vec<RepoEntry>,
    /// `user` (default) or `bot`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auth_mode: Option<String>,
    /// The end of the lease, RFC 3339; 24 hours from now by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<String>,
    /// Host patterns that narrow the allowlist; they cannot widen it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed_domains: Option<Vec<String>>,
}

/// A registered container.
#[derive(Clone, Debug, Deserialize, Serialize, ToSchema)]
pub struct ContainerEntry {
    #[serde(flatten)]
    pub registration: RegistrationBody,
    /// The beginning of the lease, RFC 3339.
    pub created_at: String,
    /// The level of the most confidential data that the container may have read since an operator
    /// last reset or unregistered it: `Public`, `Confidential` or `Secret`.
    pub security_level: String,
    /// Whether a policy decided `deny_abort`. If so, until a reset, every request of the container
    /// to an MCP server is denied, and so is every answer to a request of a server. Only these
    /// requests pass: `initialize`, `server/discover`, `ping`, `logging/setLevel`, `tools/list`,
    /// `prompts/list`, `resources/list`, `resources/templates/list`, `resources/unsubscribe`, and
    /// `subscriptions/listen` without resources.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tool_calls_aborted: bool,
}

impl From<&Container> for ContainerEntry {
    fn from(container: &Container) -> Self {
        let (container_ip, listener) = match &container.source {
            Source::Address(address) => (Some(address.to_string()), None),
            Source::Listener(_) => (None, Some("unix".to_owned())),
            Source::Token => (None, Some("token".to_owned())),
        };
        let domains = container.allowed_domains();
        Self {
            registration: RegistrationBody {
                container_ip,
                listener,
                container_id: container.id.to_string(),
                repos: container.repos.iter().map(RepoEntry::from).collect(),
                auth_mode: Some(container.auth_mode.as_str().to_owned()),
                expires_at: Some(rfc3339(container.expires_at())),
                allowed_domains: domains
                    .map(|patterns| patterns.iter().map(HostPattern::to_string).collect()),
            },
            created_at: rfc3339(container.created_at),
            security_level: container.level().as_str().to_owned(),
            tool_calls_aborted: container.is_aborted(),
        }
    }
}

fn rfc3339(at: OffsetDateTime) -> String {
    // Cannot fail: the years of a registration have four digits.
    at.format(&Rfc3339).unwrap_or_default()
}
