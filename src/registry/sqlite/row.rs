//! One registration as a row: what goes into the file comes back the same.

use addons::contract::{AuthMode, ContainerId, HostPattern, Level, Registration, Repo, Source};
use rusqlite::{Connection, Row, params};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use utoipa::ToSchema;

use super::StoreError;
use crate::registry::NewRegistration;

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

/// Reads row after row and answers how many there are; one that cannot be understood fails the
/// whole, as any other damage does.
pub(super) fn load(
    conn: &Connection,
    mut take: impl FnMut(Registration),
) -> Result<usize, StoreError> {
    let mut statement = conn.prepare(
        "SELECT lease, id, address, repos, auth_mode, allowed_domains, created_at, expires_at, level
         FROM containers",
    )?;
    let mut rows = statement.query([])?;
    let mut count = 0;
    while let Some(row) = rows.next()? {
        take(decode(row)?);
        count += 1;
    }
    Ok(count)
}

fn decode(row: &Row<'_>) -> Result<Registration, StoreError> {
    let lease: i64 = row.get(0)?;
    let bad = || StoreError::Row(lease);
    let text = |index| row.get::<usize, String>(index);
    let optional = |index| row.get::<usize, Option<String>>(index);

    let id = ContainerId::parse(&text(1)?).ok_or_else(bad)?;
    let source = match optional(2)? {
        Some(address) => Source::Address(address.parse().map_err(|_| bad())?),
        None => Source::Listener(id.clone()),
    };
    let repos: Vec<RepoEntry> = serde_json::from_str(&text(3)?).map_err(|_| bad())?;
    let allowed_domains = optional(5)?.map(|json| decode_domains(&json).ok_or_else(bad));
    Ok(Registration {
        id,
        lease: u64::try_from(lease).map_err(|_| bad())?,
        source,
        repos: repos.into_iter().map(Repo::from).collect(),
        auth_mode: AuthMode::parse(&text(4)?).ok_or_else(bad)?,
        created_at: from_millis(row.get(6)?).ok_or_else(bad)?,
        expires_at: from_millis(row.get(7)?).ok_or_else(bad)?,
        allowed_domains: allowed_domains.transpose()?,
        level: Level::parse(&text(8)?).ok_or_else(bad)?,
    })
}

fn decode_domains(json: &str) -> Option<Vec<HostPattern>> {
    let domains: Vec<String> = serde_json::from_str(json).ok()?;
    let patterns = domains.iter().map(|text| HostPattern::parse(text).ok());
    patterns.collect()
}

/// Begins a lease with a number above every other and above the given one: whoever had the id or
/// the address before is gone.
pub(super) fn insert(
    conn: &Connection,
    new: &NewRegistration,
    above: i64,
    now: OffsetDateTime,
) -> Result<Registration, StoreError> {
    let address = match &new.source {
        Source::Address(address) => Some(address.to_string()),
        Source::Listener(_) => None,
    };
    let repos: Vec<RepoEntry> = new.repos.iter().map(RepoEntry::from).collect();
    let repos = serde_json::to_string(&repos)?;
    let domains = new.allowed_domains.as_ref().map(|patterns| {
        let texts: Vec<String> = patterns.iter().map(HostPattern::to_string).collect();
        serde_json::to_string(&texts)
    });
    let (created_at, expires_at) = (to_millis(now), to_millis(new.expires_at));
    conn.execute(
        "DELETE FROM containers WHERE id = ?1 OR address = ?2",
        params![new.id.as_str(), address],
    )?;
    conn.execute(
        "INSERT INTO containers
         (lease, id, address, repos, auth_mode, allowed_domains, created_at, expires_at, level)
         SELECT 1 + max(?9, coalesce(max(seq), 0)), ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8
         FROM sqlite_sequence WHERE name = 'containers'",
        params![
            new.id.as_str(),
            address,
            repos,
            new.auth_mode.as_str(),
            domains.transpose()?,
            created_at,
            expires_at,
            Level::Public.as_str(),
            above,
        ],
    )?;
    let lease = conn.last_insert_rowid();
    let bad = || StoreError::Row(lease);
    Ok(Registration {
        id: new.id.clone(),
        lease: u64::try_from(lease).map_err(|_| bad())?,
        source: new.source.clone(),
        repos: new.repos.clone(),
        auth_mode: new.auth_mode,
        created_at: from_millis(created_at).ok_or_else(bad)?,
        expires_at: from_millis(expires_at).ok_or_else(bad)?,
        allowed_domains: new.allowed_domains.clone(),
        level: Level::Public,
    })
}

/// Milliseconds are what the file keeps, so that a lease is the same after a restart.
pub(super) fn to_millis(at: OffsetDateTime) -> i64 {
    i64::try_from(at.unix_timestamp_nanos() / 1_000_000).unwrap_or(i64::MAX)
}

fn from_millis(millis: i64) -> Option<OffsetDateTime> {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(millis) * 1_000_000).ok()
}
