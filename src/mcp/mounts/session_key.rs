//! What a session declares to its server about the clients that share it.

use std::sync::Arc;

use addons::json::{Members, ObjectText};
use addons::mcp::{HttpTransport, ServerKind};
use serde_json::value::RawValue;

use super::{Caller, Version};

/// The capabilities that a session for several containers may declare, each without its members.
const OF_SHARED: [&str; 3] = ["elicitation", "roots", "sampling"];

/// The revision and the capabilities for which a session was opened. Clients with equal keys share
/// the session.
#[derive(Clone, Debug)]
pub struct SessionKey {
    /// The clients' revision.
    pub version: Version,
    /// The declared capabilities.
    pub capabilities: Arc<RawValue>,
}

impl PartialEq for SessionKey {
    fn eq(&self, other: &Self) -> bool {
        self.version == other.version && self.capabilities.get() == other.capabilities.get()
    }
}

impl SessionKey {
    /// The key of a client's session that is not shared with other containers.
    pub(super) fn of(caller: &Caller) -> Self {
        Self {
            version: caller.version,
            capabilities: Arc::clone(&caller.capabilities),
        }
    }

    /// The key of a client's session that all containers share. There are few such keys, so that one
    /// container cannot make the server open many sessions: they say only which capabilities the
    /// client has, and for a server whose requests cannot be attributed to a container, not even
    /// that.
    pub(super) fn shared(version: Version, capabilities: &RawValue, kind: &ServerKind) -> Self {
        let is_attributed = match kind {
            ServerKind::Http(settings) => settings.transport == HttpTransport::Streamable,
            ServerKind::Stdio(_)
            | ServerKind::CodingSidecar(_)
            | ServerKind::E2b(_)
            | ServerKind::Policy(_) => false,
        };
        let given = Members::read(capabilities).unwrap_or_default();
        let mut declared = ObjectText::default();
        for capability in OF_SHARED {
            if is_attributed && given.get(capability).is_some() {
                declared.member(capability, "{}");
            }
        }
        Self {
            version,
            capabilities: raw(declared.end()),
        }
    }

    /// The key of a session in which no client has a say.
    pub(super) fn fixed() -> Self {
        Self {
            version: Version::V2026_07_28,
            capabilities: raw("{}".to_owned()),
        }
    }
}

fn raw(text: String) -> Arc<RawValue> {
    let text = RawValue::from_string(text);
    // The text is an object of objects, so it always parses.
    text.unwrap_or_else(|_| RawValue::NULL.to_owned()).into()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use addons::contract::{Endpoint, Host, Scheme};
    use addons::mcp::{E2bSettings, HiddenValue, HttpSettings};

    use super::*;

    fn http(transport: HttpTransport) -> ServerKind {
        let host = Host::parse("kb.example.com").unwrap();
        ServerKind::Http(HttpSettings {
            url: HiddenValue("https://kb.example.com/mcp".to_owned().into()),
            endpoint: Endpoint {
                scheme: Scheme::Https,
                host,
                port: 443,
            },
            headers: Vec::new(),
            url_secrets: Default::default(),
            transport,
        })
    }

    #[test]
    fn clients_of_a_shared_server_have_few_different_keys() {
        let e2b = ServerKind::E2b(E2bSettings {
            command: Vec::new(),
            template: None,
        });
        for (kind, most) in [
            (http(HttpTransport::Streamable), 8),
            (http(HttpTransport::Sse), 1),
            (e2b, 1),
        ] {
            let mut keys = HashSet::new();
            for number in 0..1000 {
                let flag = |bit: u32, name: &str, members: &str| match number >> bit & 1 {
                    0 => String::new(),
                    _ => format!("\"{name}\":{{{members}}},"),
                };
                let tools = if number & 8 == 0 {
                    "\"tools\":{}"
                } else {
                    "\"context\":true"
                };
                let text = format!(
                    "{{{}{}{}\"x\":{number}}}",
                    flag(0, "sampling", tools),
                    flag(1, "roots", ""),
                    flag(2, "elicitation", "\"url\":{}"),
                );
                let key = SessionKey::shared(Version::V2025_11_25, &raw(text), &kind);
                keys.insert(key.capabilities.get().to_owned());
            }
            assert_eq!(keys.len(), most, "{keys:?}");
        }
    }
}
