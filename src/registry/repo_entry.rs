//! The JSON form of a repository, in the admin API and in the store.

use addons::contract::Repo;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A repository: its name, or an object with its name and a limit on the size of a push to it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum RepoEntry {
    /// `owner/name`
    Name(String),
    /// The name, and the limit on the size of one push to the repository, in bytes.
    WithLimit {
        name: String,
        max_receive_pack_bytes: u64,
    },
}

impl From<&Repo> for RepoEntry {
    fn from(repo: &Repo) -> Self {
        let name = repo.name.to_string();
        match repo.max_receive_pack_bytes {
            None => Self::Name(name),
            Some(max_receive_pack_bytes) => Self::WithLimit {
                name,
                max_receive_pack_bytes,
            },
        }
    }
}

impl From<RepoEntry> for Repo {
    fn from(entry: RepoEntry) -> Self {
        let (name, max_receive_pack_bytes) = match entry {
            RepoEntry::Name(name) => (name, None),
            RepoEntry::WithLimit {
                name,
                max_receive_pack_bytes,
            } => (name, Some(max_receive_pack_bytes)),
        };
        Self {
            name: name.into(),
            max_receive_pack_bytes,
        }
    }
}
