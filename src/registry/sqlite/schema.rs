//! The tables of the file, and their migrations.

/// The migrations. The one at index N brings a file from version N to version N + 1.
pub(super) const MIGRATIONS: [&str; 4] = [
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
