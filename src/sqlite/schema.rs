//! The schema version of a file, and its check.

use rusqlite::Connection;

use super::SqliteError;

/// Runs the migrations that a file lacks. The migration at index N brings a file from version N to
/// version N + 1. A newer file is not changed. Fails with [`SqliteError::Foreign`] if the file has
/// tables but no version. Each migration is one transaction. After an error, close the connection,
/// which rolls the transaction back.
pub fn migrate(conn: &Connection, migrations: &[&str]) -> Result<(), SqliteError> {
    let found = version(conn)?;
    if found == 0 && !is_empty(conn)? {
        return Err(SqliteError::Foreign);
    }
    for (next, step) in (1..).zip(migrations) {
        if next > found {
            conn.execute_batch(&format!(
                "BEGIN IMMEDIATE; {step} PRAGMA user_version = {next}; COMMIT;"
            ))?;
        }
    }
    Ok(())
}

/// The version of a file; 0 before the first migration.
pub fn version(conn: &Connection) -> Result<i64, SqliteError> {
    Ok(conn.query_row("PRAGMA user_version", [], |row| row.get(0))?)
}

/// Fails with [`SqliteError::Outdated`], [`SqliteError::Schema`] or [`SqliteError::Unversioned`]
/// unless the file has this version.
pub fn expect_current(conn: &Connection, expected: i64) -> Result<(), SqliteError> {
    match version(conn)? {
        found if found == expected => Ok(()),
        ..=0 => Err(SqliteError::Unversioned),
        found if found < expected => Err(SqliteError::Outdated { found, expected }),
        found => Err(SqliteError::Schema { found, expected }),
    }
}

fn is_empty(conn: &Connection) -> Result<bool, SqliteError> {
    let tables = "SELECT count(*) = 0 FROM sqlite_schema";
    Ok(conn.query_row(tables, [], |row| row.get(0))?)
}

/// Runs `quick_check` or `integrity_check`. Problems that it finds are [`SqliteError::Damaged`].
pub fn verify(conn: &Connection, pragma: &str) -> Result<(), SqliteError> {
    let mut statement = conn.prepare(&format!("PRAGMA {pragma}"))?;
    let problems = statement.query_map([], |row| row.get(0))?;
    let problems: Vec<String> = problems.collect::<Result<_, _>>()?;
    match problems.as_slice() {
        [only] if only == "ok" => Ok(()),
        _ => Err(SqliteError::Damaged(problems.join("; "))),
    }
}
