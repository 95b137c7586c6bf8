//! What a sandbox must prevent: each attempt is a row, made inside by a script. Where an attempt
//! could fail for another reason, the same attempt is made outside and must succeed.

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

/// The unprivileged person and root, as far as this machine has them.
fn people() -> Vec<Person> {
    let users = [User::Unprivileged, User::Root];
    let people = users.map(|user| Person::with(user, Origin::start()));
    people.into_iter().flatten().collect()
}
