//! The links of a chain, and the check of their order.

use std::sync::Arc;

use thiserror::Error;

use super::addon::{Addon, Order};
use super::identify::Identify;
use super::names;

/// The links that every chain must have.
const REQUIRED: [&str; 2] = [names::IDENTITY, names::POLICY];

/// A violated constraint on the links of a chain or on their order.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum OrderError {
    /// Two addons share a name.
    #[error("{0} is in the chain twice")]
    Twice(&'static str),
    /// A required addon is missing.
    #[error("{0} is missing: it cannot be switched off")]
    Missing(&'static str),
    /// The chain has no link that finds the principal, or more than one.
    #[error("the chain needs exactly one link that finds the principal")]
    NotOneIdentity,
    /// Two addons are in the wrong order.
    #[error("{first} must come before {second}")]
    Before {
        /// The addon that must come first.
        first: &'static str,
        /// The addon that must come later.
        second: &'static str,
    },
}

/// One link of the chain.
pub enum Link {
    /// The link that finds the principal.
    Identity(Arc<dyn Identify>),
    /// Any other addon.
    Addon(Arc<dyn Addon>),
}

impl Link {
    /// Its name in logs and in the [`Order`] of other addons.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Identity(identity) => identity.name(),
            Self::Addon(addon) => addon.name(),
        }
    }

    fn order(&self) -> Order {
        match self {
            Self::Identity(identity) => identity.order(),
            Self::Addon(addon) => addon.order(),
        }
    }
}

impl<A: Addon + 'static> From<Arc<A>> for Link {
    fn from(addon: Arc<A>) -> Self {
        Self::Addon(addon)
    }
}

/// Returns every violated constraint on the links and on their order.
pub(super) fn check_order(links: &[Link]) -> Vec<OrderError> {
    let names: Vec<_> = links.iter().map(Link::name).collect();
    let place = |name: &str| names.iter().position(|other| *other == name);
    let mut errors = Vec::new();
    for (index, name) in names.iter().enumerate() {
        if place(name) != Some(index) {
            errors.push(OrderError::Twice(name));
        }
    }
    let is_identity = |link: &&Link| matches!(link, Link::Identity(_));
    if links.iter().filter(is_identity).count() != 1 {
        errors.push(OrderError::NotOneIdentity);
    }
    for name in REQUIRED {
        if place(name).is_none() {
            errors.push(OrderError::Missing(name));
        }
    }
    for link in links {
        let order = link.order();
        let name = link.name();
        let after = order.after.iter().map(|other| (*other, name));
        let before = order.before.iter().map(|other| (name, *other));
        for (first, second) in after.chain(before) {
            let places = place(first).zip(place(second));
            if places.is_some_and(|(first, second)| first > second) {
                errors.push(OrderError::Before { first, second });
            }
        }
    }
    errors
}
