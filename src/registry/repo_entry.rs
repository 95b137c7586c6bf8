//! A repository in JSON, in the admin API and in the store.

use addons::contract::Repo;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A repository as it is written: its name, or its name with a push limit of its own.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum RepoEntry {
    /// `owner/name`
    Name(String),
    /// The name, and how much one push to it may send.
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
