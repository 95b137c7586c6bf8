//! A registration as a row of the table.

use addons::contract::{
    AuthMode, ContainerId, HostPattern, LeaseId, Level, Registration, Repo, Source, Standing,
    TOKEN_AGENT,
};
use rusqlite::{Connection, Row, params};

use super::SqliteError;
use crate::registry::RepoEntry;
use crate::sqlite::{from_millis, to_millis};

/// Passes every row to `take` and returns the number of rows. A row that cannot be decoded is an
/// error, like any other damage.
pub(super) fn load(
    conn: &Connection,
    mut take: impl FnMut(Registration),
) -> Result<usize, SqliteError> {
    let mut statement = conn.prepare(
        "SELECT lease, id, address, repos, auth_mode, allowed_domains, created_at, expires_at, level,
                aborted
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

fn decode(row: &Row<'_>) -> Result<Registration, SqliteError> {
    let lease: String = row.get(0)?;
    let bad = || SqliteError::Row(format!("of lease {lease}"));
    let text = |index| row.get::<usize, String>(index);
    let optional = |index| row.get::<usize, Option<String>>(index);

    let id = ContainerId::parse(&text(1)?).ok_or_else(bad)?;
    let source = match optional(2)? {
        Some(address) => Source::Address(address.parse().map_err(|_| bad())?),
        None if id.as_str() == TOKEN_AGENT => Source::Token,
        None => Source::Listener(id.clone()),
    };
    let repos: Vec<RepoEntry> = serde_json::from_str(&text(3)?).map_err(|_| bad())?;
    let allowed_domains = optional(5)?.map(|json| decode_domains(&json).ok_or_else(bad));
    Ok(Registration {
        id,
        lease: LeaseId::parse(&lease).ok_or_else(bad)?,
        source,
        repos: repos.into_iter().map(Repo::from).collect(),
        auth_mode: AuthMode::parse(&text(4)?).ok_or_else(bad)?,
        created_at: from_millis(row.get(6)?).ok_or_else(bad)?,
        expires_at: from_millis(row.get(7)?).ok_or_else(bad)?,
        allowed_domains: allowed_domains.transpose()?,
        standing: Standing {
            level: Level::parse(&text(8)?).ok_or_else(bad)?,
            aborted: row.get(9)?,
        },
    })
}

/// The standings of containers without a lease.
pub(super) fn kept_standings(
    conn: &Connection,
) -> Result<Vec<(ContainerId, Standing)>, SqliteError> {
    let mut statement = conn.prepare("SELECT level, aborted, id FROM standings")?;
    let mut rows = statement.query([])?;
    let mut kept = Vec::new();
    while let Some(row) = rows.next()? {
        let id: String = row.get(2)?;
        let known = ContainerId::parse(&id).zip(decode_standing(row)?);
        kept.push(known.ok_or_else(|| SqliteError::Row(format!("of container {id}")))?);
    }
    Ok(kept)
}

/// The standing of a container, with or without a lease.
pub(super) fn standing(conn: &Connection, id: &ContainerId) -> Result<Standing, SqliteError> {
    let mut statement = conn.prepare_cached(
        "SELECT level, aborted FROM containers WHERE id = ?1
         UNION ALL SELECT level, aborted FROM standings WHERE id = ?1",
    )?;
    let mut rows = statement.query([id.as_str()])?;
    let mut standing = Standing::default();
    while let Some(row) = rows.next()? {
        let stored = decode_standing(row)?;
        standing =
            standing.and(stored.ok_or_else(|| SqliteError::Row(format!("of container {id}")))?);
    }
    Ok(standing)
}

/// Decodes the columns `level` and `aborted`; `None` for an unknown level.
fn decode_standing(row: &Row<'_>) -> Result<Option<Standing>, SqliteError> {
    let (level, aborted) = (row.get::<_, String>(0)?, row.get(1)?);
    Ok(Level::parse(&level).map(|level| Standing { level, aborted }))
}

/// Sets the standing of a container, with or without a lease.
pub(super) fn set_standing(
    conn: &Connection,
    id: &ContainerId,
    standing: Standing,
) -> Result<(), SqliteError> {
    let params = params![id.as_str(), standing.level.as_str(), standing.aborted];
    let update = "UPDATE containers SET level = ?2, aborted = ?3 WHERE id = ?1";
    if conn.execute(update, params)? == 0 {
        conn.execute(
            "INSERT OR REPLACE INTO standings VALUES (?1, ?2, ?3)",
            params,
        )?;
    }
    Ok(())
}

fn decode_domains(json: &str) -> Option<Vec<HostPattern>> {
    let domains: Vec<String> = serde_json::from_str(json).ok()?;
    let patterns = domains.iter().map(|text| HostPattern::parse(text).ok());
    patterns.collect()
}

/// Inserts a lease, and deletes the leases with the same container id or the same address. Raises
/// the lease's standing to the one that the container has had so far.
pub(super) fn insert(conn: &Connection, lease: &mut Registration) -> Result<(), SqliteError> {
    lease.standing = lease.standing.and(standing(conn, &lease.id)?);
    let address = match &lease.source {
        Source::Address(address) => Some(address.to_string()),
        Source::Listener(_) | Source::Token => None,
    };
    let repos: Vec<RepoEntry> = lease.repos.iter().map(RepoEntry::from).collect();
    let domains = lease.allowed_domains.as_ref().map(|patterns| {
        let texts: Vec<String> = patterns.iter().map(HostPattern::to_string).collect();
        serde_json::to_string(&texts)
    });
    conn.prepare_cached("DELETE FROM containers WHERE id = ?1 OR address = ?2")?
        .execute(params![lease.id.as_str(), address])?;
    conn.prepare_cached(
        "INSERT INTO containers
         (lease, id, address, repos, auth_mode, allowed_domains, created_at, expires_at, level,
          aborted)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
    )?
    .execute(params![
        lease.lease.to_string(),
        lease.id.as_str(),
        address,
        serde_json::to_string(&repos)?,
        lease.auth_mode.as_str(),
        domains.transpose()?,
        to_millis(lease.created_at),
        to_millis(lease.expires_at),
        lease.standing.level.as_str(),
        lease.standing.aborted,
    ])?;
    conn.prepare_cached("DELETE FROM standings WHERE id = ?1")?
        .execute([lease.id.as_str()])?;
    Ok(())
}
