//! Attempts that a sandbox must prevent. A script makes them inside, and each is a row. If an
//! attempt could also fail for another reason, it is made outside too and must succeed there.

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

/// An unprivileged user and root, without those whom this machine does not allow sandboxes.
fn people() -> Vec<Person> {
    let users = [User::Unprivileged, User::Root];
    let people = users.map(|user| Person::with(user, Origin::start()));
    people.into_iter().flatten().collect()
}
