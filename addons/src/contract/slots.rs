//! Values that addons and the engine leave on a flow for other addons, by type.

use std::any::{Any, TypeId, type_name};

use smallvec::SmallVec;

use super::denial::Denial;

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

/// The values left on one flow. A list, since there are few; it has inline room for one box.
#[derive(Default)]
pub struct Slots(SmallVec<[Box<dyn Any + Send + Sync>; 1]>);

impl Slots {
    /// Stores a value; it replaces one of the same type.
    pub fn put<T: Any + Send + Sync>(&mut self, value: T) {
        match self.0.iter_mut().find_map(|slot| slot.downcast_mut::<T>()) {
            Some(slot) => *slot = value,
            None => self.0.push(Box::new(value)),
        }
    }

    /// The value of this type, if there is one.
    pub fn find<T: Any>(&self) -> Option<&T> {
        self.0.iter().find_map(|slot| slot.downcast_ref::<T>())
    }

    /// The value of this type; an internal error if it is missing although an addon declared to
    /// provide it.
    pub fn get<T: Any>(&self) -> Result<&T, Denial> {
        self.find().ok_or_else(Denial::internal)
    }

    /// Removes and returns the value of this type.
    pub fn take<T: Any>(&mut self) -> Option<T> {
        let at = self.0.iter().position(|slot| slot.is::<T>())?;
        self.0.swap_remove(at).downcast().ok().map(|value| *value)
    }
}
