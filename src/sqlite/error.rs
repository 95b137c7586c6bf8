//! Errors of a SQLite file.

use std::io;
use std::path::PathBuf;

use rusqlite::ErrorCode;
use thiserror::Error;

/// Why the file could not be read or written.
#[derive(Debug, Error)]
pub enum SqliteError {
    /// The file does not exist. Only a starting server and a restore create it.
    #[error("{} is missing: put it back, or restart the server, which creates an empty one", .0.display())]
    Missing(PathBuf),
    /// An error of the file system.
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    /// An error of SQLite, for example because the file is not a database.
    #[error("{0}")]
    Sqlite(#[from] rusqlite::Error),
    /// `integrity_check` or `quick_check` found damage.
    #[error("the file is damaged: {0}")]
    Damaged(String),
    /// A newer version of the program made the file.
    #[error(
        "a newer version of unified-proxy made the file: it has schema version {found}, this version reads at most {expected}; use the newer version, or a backup that this version made"
    )]
    Schema { found: i64, expected: i64 },
    /// The file has no schema version (0), so the program has not made it or not finished it.
    #[error(
        "the file has no schema version, so it is empty or not a registry: restore a backup of the registry"
    )]
    Unversioned,
    /// An older version of the program made the file.
    #[error(
        "the file has schema version {found}, this program reads {expected}: the server migrates it when it starts"
    )]
    Outdated { found: i64, expected: i64 },
    /// The file has tables but no schema version.
    #[error(
        "the file is a database of another program: move it away, or set another data_dir in proxy.yaml"
    )]
    Foreign,
    /// A row that this program cannot have written.
    #[error("the row {0} has an invalid value")]
    Row(String),
    /// Another process has locked the file.
    #[error("the file is in use by another process: try again")]
    Busy,
    /// An id could not be generated.
    #[error("the system has no random numbers")]
    NoRandomness,
    /// A value could not be encoded as JSON.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
}

impl SqliteError {
    /// Whether another process has locked the file, so that a later attempt may succeed.
    pub fn is_busy(&self) -> bool {
        match self {
            Self::Busy => true,
            Self::Sqlite(error) => error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy),
            _ => false,
        }
    }

    /// Whether the file can be read but its content cannot be used.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Damaged(_)
            | Self::Schema { .. }
            | Self::Outdated { .. }
            | Self::Unversioned
            | Self::Foreign
            | Self::Row(_) => true,
            Self::Sqlite(error) => matches!(
                error.sqlite_error_code(),
                Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt)
            ),
            Self::Missing(_)
            | Self::Io { .. }
            | Self::Busy
            | Self::NoRandomness
            | Self::Json(_) => false,
        }
    }
}
