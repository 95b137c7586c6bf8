//! The tables of the file, and their migrations.

use rusqlite::Connection;

use super::SqliteError;

/// The migrations. The one at index N brings a file from version N to version N + 1.
const MIGRATIONS: [&str; 4] = [
    "
    CREATE TABLE containers (
        lease INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,
        address TEXT UNIQUE,                     -- NULL: a listener of its own
        repos TEXT NOT NULL,                     -- JSON, as registered
        auth_mode TEXT NOT NULL,
        allowed_domains TEXT,                    -- JSON; NULL: not narrowed
        created_at INTEGER NOT NULL,             -- milliseconds since 1970
        expires_at INTEGER NOT NULL,
        level TEXT NOT NULL
    ) STRICT;
    CREATE INDEX containers_by_expiry ON containers (expires_at);
",
    // Every lease gets a UUIDv7 (RFC 9562, section 5.7) as its new id, since the earlier numbers
    // were unique only within one file.
    "
    ALTER TABLE containers RENAME TO containers_1;
    CREATE TABLE containers (
        lease TEXT NOT NULL PRIMARY KEY,         -- UUIDv7, never used again
        id TEXT NOT NULL UNIQUE,
        address TEXT UNIQUE,                     -- NULL: a listener of its own
        repos TEXT NOT NULL,                     -- JSON, as registered
        auth_mode TEXT NOT NULL,
        allowed_domains TEXT,                    -- JSON; NULL: not narrowed
        created_at INTEGER NOT NULL,             -- milliseconds since 1970
        expires_at INTEGER NOT NULL,
        level TEXT NOT NULL
    ) STRICT, WITHOUT ROWID;
    INSERT INTO containers
    SELECT printf('%08x-%04x-7%03x-%04x-%012x', now >> 16, now & 0xffff, random() & 0xfff,
                  0x8000 | (random() & 0x3fff), random() & 0xffffffffffff),
           id, address, repos, auth_mode, allowed_domains, created_at, expires_at, level
    FROM containers_1, (SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER) AS now);
    DROP TABLE containers_1;
    CREATE INDEX containers_by_expiry ON containers (expires_at);
",
    // The abort latch: 1 after a policy decided `deny_abort`.
    "ALTER TABLE containers ADD COLUMN aborted INTEGER NOT NULL DEFAULT 0;",
    // Level and latch belong to the container's id: they outlive its lease. A trigger keeps them,
    // since leases are deleted for several reasons.
    "
    CREATE TABLE standings (
        id TEXT NOT NULL PRIMARY KEY,            -- of a container without a lease
        level TEXT NOT NULL,
        aborted INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TRIGGER keep_standing AFTER DELETE ON containers
    WHEN old.level <> 'Public' OR old.aborted BEGIN
        INSERT OR REPLACE INTO standings VALUES (old.id, old.level, old.aborted);
    END;
",
];

/// The `user_version` of a file after all migrations.
pub(super) const VERSION: i64 = MIGRATIONS.len() as i64;

/// Migrates a file to [`VERSION`]; a newer file is not changed. Fails with [`SqliteError::Foreign`]
/// if the file has tables but no version. Each migration is one transaction. After an error, close
/// the connection, which rolls the transaction back.
pub(super) fn migrate(conn: &Connection) -> Result<(), SqliteError> {
    let found = version(conn)?;
    if found == 0 && !is_empty(conn)? {
        return Err(SqliteError::Foreign);
    }
    for (next, step) in (1..).zip(MIGRATIONS) {
        if next > found {
            conn.execute_batch(&format!(
                "BEGIN IMMEDIATE; {step} PRAGMA user_version = {next}; COMMIT;"
            ))?;
        }
    }
    Ok(())
}

/// The version of a file; 0 before the first migration.
pub(super) fn version(conn: &Connection) -> Result<i64, SqliteError> {
    Ok(conn.query_row("PRAGMA user_version", [], |row| row.get(0))?)
}

/// Fails with [`SqliteError::Outdated`], [`SqliteError::Schema`] or [`SqliteError::Unversioned`]
/// unless the file has the current version.
pub(super) fn expect_current(conn: &Connection) -> Result<(), SqliteError> {
    let (found, expected) = (version(conn)?, VERSION);
    match found {
        _ if found == expected => Ok(()),
        ..=0 => Err(SqliteError::Unversioned),
        _ if found < expected => Err(SqliteError::Outdated { found, expected }),
        _ => Err(SqliteError::Schema { found, expected }),
    }
}

fn is_empty(conn: &Connection) -> Result<bool, SqliteError> {
    let tables = "SELECT count(*) = 0 FROM sqlite_schema";
    Ok(conn.query_row(tables, [], |row| row.get(0))?)
}

/// Runs `quick_check` or `integrity_check`. Problems that it finds are [`SqliteError::Damaged`].
pub(super) fn verify(conn: &Connection, pragma: &str) -> Result<(), SqliteError> {
    let mut statement = conn.prepare(&format!("PRAGMA {pragma}"))?;
    let problems = statement.query_map([], |row| row.get(0))?;
    let problems: Vec<String> = problems.collect::<Result<_, _>>()?;
    match problems.as_slice() {
        [only] if only == "ok" => Ok(()),
        _ => Err(SqliteError::Damaged(problems.join("; "))),
    }
}
