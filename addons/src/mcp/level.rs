//! The security level of a container, which rises with confidential results and limits later tool
//! calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use super::definition::is_blocked;
use super::settings::{McpSettings, OverrideRule, ServerKind, ServerSettings};
use crate::contract::{
    Annotations, Container, ContainerId, Definition, LeaseRecords, Level, Standing, Tasks,
    Unavailable,
};

/// The level of a lease that is certainly on disk. `Public` after a failed write, so that the next
/// message writes again.
struct StoredLevel(AtomicU8);

impl StoredLevel {
    fn of(container: &Container) -> &Self {
        container.state_or_init(|| Self(AtomicU8::new(container.level() as u8)))
    }
}

/// Whether `level` must be written before a message passes: it is higher than the container's
/// level, or another write of it has failed or not ended.
pub(super) fn must_be_stored(container: &Container, level: Level) -> bool {
    let stored = StoredLevel::of(container).0.load(Ordering::Acquire);
    level > container.level() || level as u8 > stored
}

/// Raises the container's level, and returns once the level is on disk. If the write fails, raises
/// the level in memory only and returns the error. The write runs in a task, so that a client
/// cannot prevent it by disconnecting.
pub(super) async fn raise(
    container: &Arc<Container>,
    level: Level,
    records: &Arc<dyn LeaseRecords>,
    tasks: &Arc<dyn Tasks>,
) -> Result<(), Unavailable> {
    let (records, container) = (Arc::clone(records), Arc::clone(container));
    let raised = tasks.run(async move {
        let reached = Standing {
            level,
            ..Standing::default()
        };
        let written = records.reach(&container, reached).await;
        container.raise_level(level);
        let stored = &StoredLevel::of(&container).0;
        match written {
            Ok(()) => stored.fetch_max(level as u8, Ordering::AcqRel),
            Err(_) => stored.swap(Level::Public as u8, Ordering::AcqRel),
        };
        written
    });
    raised.await.unwrap_or(Err(Unavailable))
}

/// Whether the container's level denies this tool of a server: `Confidential` and `Secret` deny
/// open-world tools.
pub(super) fn denies(
    container: &Container,
    server: Option<&ServerSettings>,
    rule: Option<&OverrideRule>,
    definition: &Definition,
) -> bool {
    container.level().excludes_open_world() && hints(server, rule, definition).is_open_world()
}

impl McpSettings {
    /// Whether none of a server's tools reaches the open world. A server without tools counts as
    /// reaching it, unless it is a part of the gateway; so does a tool that is blocked because its
    /// definition changed.
    pub fn is_closed_world(
        &self,
        server: &Arc<str>,
        container: &ContainerId,
        tools: &[Arc<Definition>],
    ) -> bool {
        let is_closed = |tool: &Arc<Definition>| {
            !is_blocked(self, tool) && !self.hints(server, container, tool).is_open_world()
        };
        let settings = self.servers.get(server);
        let is_own = settings.is_some_and(|one| matches!(one.kind, ServerKind::Policy(_)));
        (is_own || !tools.is_empty()) && tools.iter().all(is_closed)
    }

    /// The effective hints of a tool for a container.
    pub(super) fn hints(
        &self,
        server: &Arc<str>,
        container: &ContainerId,
        definition: &Definition,
    ) -> Annotations {
        let rule = self.override_of(server, &definition.name, container);
        let server = self.servers.get(server);
        let (server, rule) = (server.map(|server| &**server), rule.map(|rule| &**rule));
        hints(server, rule, definition)
    }
}

/// The effective hints of a tool of a server. The server's own `openWorldHint: false` is left out
/// if the server [may not say it](ServerSettings::may_say_closed_world).
fn hints(
    server: Option<&ServerSettings>,
    rule: Option<&OverrideRule>,
    definition: &Definition,
) -> Annotations {
    let mut own = definition.annotations;
    let is_believed = server.is_some_and(ServerSettings::may_say_closed_world);
    own.open_world = own.open_world.filter(|is_open| *is_open || is_believed);
    rule.map_or(own, |rule| rule.annotations(own))
}
