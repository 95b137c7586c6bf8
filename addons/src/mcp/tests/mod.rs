mod exposed;
mod gate;
mod schema;

use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;

use super::*;
use crate::contract::settings::Place;
use crate::contract::{Definition, Pin};

pub(super) fn raw(text: impl Into<String>) -> Box<RawValue> {
    RawValue::from_string(text.into()).unwrap()
}

pub(super) fn server(name: &str) -> Arc<ServerSettings> {
    Arc::new(ServerSettings {
        name: name.into(),
        prefix: format!("{name}_").into(),
        kind: ServerKind::Stdio(StdioSettings {
            command: vec![HiddenValue("server".to_owned().into())],
            env: Vec::new(),
            expanded: Vec::new(),
            work_dir: None,
            hosts: Vec::new(),
            read: Vec::new(),
            write: Vec::new(),
            confine: Confine::Namespaces,
            unix_sockets: false,
            eager: true,
        }),
        timeout: Duration::from_secs(60),
        containers: vec!["*".into()],
        scope: Scope::Container,
        classification: None,
        resources: Vec::new(),
        prompts: Vec::new(),
        place: Place { line: 1, column: 1 },
    })
}

/// The definition of a listed tool, which is accepted.
pub(super) fn tool(text: impl Into<String>) -> Arc<Definition> {
    Arc::new(ListedTool::read(raw(text)).unwrap().pinned(Pin::Accepted))
}

/// The definition of a listed tool, which has changed since it was accepted.
pub(super) fn changed(text: impl Into<String>) -> Arc<Definition> {
    Arc::new(ListedTool::read(raw(text)).unwrap().pinned(Pin::Changed))
}

pub(super) fn overriding(server: &str, tool: &str, rule: OverrideRule) -> McpSettings {
    let mut settings = McpSettings::default();
    let key = (server.into(), tool.into());
    settings.overrides.insert(key, vec![Arc::new(rule)]);
    settings
}
