//! The tables of the file.

/// The migrations. The one at index N brings a file from version N to version N + 1.
pub(super) const MIGRATIONS: [&str; 1] = ["
    CREATE TABLE questions (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,   -- the order of the questions
        id TEXT NOT NULL UNIQUE,                 -- 128 random bits in hexadecimal
        state TEXT NOT NULL,
        kind TEXT NOT NULL,
        container TEXT NOT NULL,
        lease TEXT NOT NULL,
        server TEXT,
        subject TEXT NOT NULL,
        arguments TEXT,                          -- canonical JSON
        argument_bytes INTEGER NOT NULL,         -- 0: without arguments, or no longer kept
        digest TEXT NOT NULL,
        rule TEXT,
        reason TEXT,
        level INTEGER NOT NULL,                  -- 0: Public, 1: Confidential, 2: Secret
        revision TEXT NOT NULL,
        created_at INTEGER NOT NULL,             -- milliseconds since 1970
        expires_at INTEGER NOT NULL,
        attempts INTEGER NOT NULL,
        decided_by TEXT,
        comment TEXT,
        closed_at INTEGER,                       -- NULL: pending
        denied_until INTEGER
    ) STRICT;
    CREATE UNIQUE INDEX pending_questions ON questions (digest, level) WHERE state = 'pending';
    CREATE INDEX pending_of_container ON questions (container) WHERE state = 'pending';
    CREATE INDEX due_questions ON questions (expires_at) WHERE state = 'pending';
    CREATE INDEX questions_of_container ON questions (container, created_at);
    CREATE INDEX questions_in_state ON questions (state);
    CREATE INDEX denied_questions ON questions (digest) WHERE state = 'denied';
    CREATE INDEX kept_arguments ON questions (state, argument_bytes) WHERE argument_bytes > 0;
    CREATE INDEX closed_questions ON questions (closed_at) WHERE closed_at IS NOT NULL;
    CREATE TABLE grants (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        id TEXT NOT NULL UNIQUE,                 -- 128 random bits in hexadecimal
        approval TEXT UNIQUE,                    -- the question; NULL: an operator gave it
        kind TEXT NOT NULL,
        container TEXT NOT NULL,
        lease TEXT NOT NULL,
        server TEXT,
        subject TEXT NOT NULL,
        level INTEGER NOT NULL,
        scope TEXT NOT NULL,
        digest TEXT,                             -- of the question, for one execution
        given_by TEXT NOT NULL,
        created_at INTEGER NOT NULL,
        expires_at INTEGER,
        used_at INTEGER,
        ended_at INTEGER,
        CHECK ((scope = 'once') = (digest IS NOT NULL)),
        CHECK (scope = 'once' OR used_at IS NULL)
    ) STRICT;
    CREATE INDEX unused_grants ON grants (digest)
        WHERE digest IS NOT NULL AND used_at IS NULL AND ended_at IS NULL;
    CREATE INDEX grants_in_force ON grants (lease, kind, subject)
        WHERE used_at IS NULL AND ended_at IS NULL;
"];

/// The `user_version` of a file after all migrations.
pub(super) const VERSION: i64 = MIGRATIONS.len() as i64;
