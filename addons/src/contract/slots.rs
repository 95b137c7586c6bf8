//! What one addon hands to another, by type.

use std::any::{Any, TypeId, type_name};

use smallvec::SmallVec;

use super::denial::Denial;

/// Names a type that one addon provides and another needs; the chain checks the pair at start.
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

/// The values that addons left for each other on one flow. A handful at most, so a list; and
/// often one, which needs no room of its own for that.
#[derive(Default)]
pub struct Slots(SmallVec<[Box<dyn Any + Send + Sync>; 1]>);

impl Slots {
    /// Leaves a value; a second one of the same type replaces the first.
    pub fn put<T: Any + Send + Sync>(&mut self, value: T) {
        match self.0.iter_mut().find_map(|slot| slot.downcast_mut::<T>()) {
            Some(slot) => *slot = value,
            None => self.0.push(Box::new(value)),
        }
    }

    /// The value, if some addon left one.
    pub fn find<T: Any>(&self) -> Option<&T> {
        self.0.iter().find_map(|slot| slot.downcast_ref::<T>())
    }

    /// The value, or a denial: what was declared and is missing is our fault, and denies.
    pub fn get<T: Any>(&self) -> Result<&T, Denial> {
        self.find().ok_or_else(Denial::internal)
    }

    /// Takes the value out.
    pub fn take<T: Any>(&mut self) -> Option<T> {
        let at = self.0.iter().position(|slot| slot.is::<T>())?;
        self.0.swap_remove(at).downcast().ok().map(|value| *value)
    }
}
