//! Attempts that a sandbox must prevent. A script makes the attempts inside the sandbox; each
//! attempt is a row. Some attempts could also fail without a sandbox. Tests repeat these attempts
//! outside, to show that the sandbox is the reason for the failure.

mod accounts;
mod git_settings;
mod git_trees;
mod listed;
mod network;
mod outside;
mod placeholders;
mod protected;
mod secrets;
mod sockets;
mod system_calls;
mod writes;

use crate::fixture::{Person, User};
use crate::support::Origin;

pub use secrets::{MARK, SEARCH, mark};

/// An unprivileged user and root, except those that cannot create sandboxes on this machine.
fn people() -> Vec<Person> {
    let users = [User::Unprivileged, User::Root];
    let people = users.map(|user| Person::with(user, Origin::start()));
    people.into_iter().flatten().collect()
}
