//! The security level: which tools a container may still call once it has seen confidential
//! things.

use super::settings::OverrideRule;
use crate::contract::{Annotations, Container, Definition, Level};

/// Whether the container has seen too much for this tool.
pub(super) fn denies(
    container: &Container,
    rule: Option<&OverrideRule>,
    definition: &Definition,
) -> bool {
    container.level() >= Level::Confidential && hints(rule, definition).is_open_world()
}

/// The hints that hold for a tool.
pub(super) fn hints(rule: Option<&OverrideRule>, definition: &Definition) -> Annotations {
    rule.map_or(definition.annotations, |rule| {
        rule.annotations(definition.annotations)
    })
}
