//! The slots of a flow, in which addons and the engine leave values for other addons, by type.

use std::any::{Any, TypeId, type_name};

/// The type of a value that one addon provides and another needs. A chain is built only if an
/// earlier addon provides each needed slot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    id: TypeId,
    name: &'static str,
}

impl Slot {
    /// The slot of a type.
    #[must_use]
    pub fn of<T: Any>() -> Self {
        Self {
            id: TypeId::of::<T>(),
            name: type_name::<T>(),
        }
    }

    /// The type's name, for messages.
    pub fn name(&self) -> &'static str {
        self.name
    }
}
