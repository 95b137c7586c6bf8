//! Reads `context` and `interceptor`.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::contract::settings::Fields;

/// Tools with which Docker's gateway changes itself, or runs code that calls other tools.
const OF_GATEWAY: [&str; 7] = [
    CODE_MODE,
    "mcp-activate-profile",
    "mcp-add",
    "mcp-config-set",
    "mcp-create-profile",
    "mcp-registry-import",
    "mcp-remove",
];
/// Makes tools that run code. Their names begin with its name and `-`.
const CODE_MODE: &str = "code-mode";
/// Limit on `context.capacity`. That many of the smallest contexts are within the limit on bytes.
const MAX_CAPACITY: usize = 200_000;
/// Limit on `context.ttl`.
const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);

/// How long and how many request contexts are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextSettings {
    /// How long a context is kept.
    pub ttl: Duration,
    /// The most contexts of all containers. A container has at most a tenth of them.
    pub capacity: usize,
}

impl Default for ContextSettings {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(10 * 60),
            capacity: 100_000,
        }
    }
}

impl ContextSettings {
    pub(super) fn read(fields: &Fields<'_>) -> Self {
        let default = Self::default();
        Self {
            ttl: fields.or("ttl", default.ttl, |at| {
                let ttl = at.duration()?;
                if ttl.is_zero() || ttl > MAX_TTL {
                    at.refuse("must be longer than 0 and at most 24h");
                    return None;
                }
                Some(ttl)
            }),
            capacity: fields.or("capacity", default.capacity, |at| {
                at.number(1..=MAX_CAPACITY)
            }),
        }
    }
}

/// Which tools of another gateway may be called although they change that gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterceptorSettings {
    allow: BTreeSet<&'static str>,
}

impl InterceptorSettings {
    pub(super) fn read(fields: &Fields<'_>) -> Self {
        let known = OF_GATEWAY.map(|name| (name, name));
        let allow = fields.list("allow", |at| at.one_of(&known));
        Self {
            allow: allow.into_iter().collect(),
        }
    }

    /// Whether calls of this tool are denied, since they would change the gateway that runs the tools.
    #[must_use]
    pub fn denies(&self, tool: &str) -> bool {
        let made = tool.strip_prefix(CODE_MODE);
        let tool = match made.is_some_and(|rest| rest.starts_with('-')) {
            true => CODE_MODE,
            false => tool,
        };
        OF_GATEWAY.contains(&tool) && !self.allow.contains(tool)
    }
}
