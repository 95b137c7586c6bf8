//! `registry check|backup|restore`: maintenance of the registry's file, with or without a running
//! server.

use std::fmt::Display;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use super::exit::{Failure, print};
use super::{ConfigDir, dev_state, load};
use crate::registry::sqlite::offline::{self, Present};
use crate::registry::sqlite::{FILE_NAME, SqliteError};

/// The default data directory of the appliance.
const DATA_DIR: &str = "/var/lib/unified-proxy";

/// Subcommands of `registry`.
#[derive(Debug, Subcommand)]
pub enum RegistryCommand {
    /// Check the registry's whole file for damage
    Check(DataDir),
    /// Copy the registry to another file, also while a server runs
    Backup {
        /// The file to write
        file: PathBuf,
        /// Replace an existing file
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        data: DataDir,
    },
    /// Replace the registry's contents with a backup, also while a server runs
    Restore {
        /// The backup
        file: PathBuf,
        #[command(flatten)]
        data: DataDir,
    },
}

/// The directory of the registry's file.
#[derive(Args, Debug)]
pub struct DataDir {
    /// The server's data directory [default: ./.unified-proxy if it is there, else
    /// /var/lib/unified-proxy]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// The directory of the configuration files that name the data directory
    #[arg(long, value_name = "DIR", conflicts_with = "data_dir")]
    config: Option<PathBuf>,
}

impl DataDir {
    /// Returns the path of the registry's file.
    fn file(&self) -> Result<PathBuf, Failure> {
        if self.config.is_some() {
            let config = self.config.clone();
            let proxy = load(&ConfigDir { config })?.proxy;
            return Ok(proxy.data_dir.join(FILE_NAME));
        }
        let directory = self.data_dir.as_deref().or(dev_state());
        let directory = directory.unwrap_or(Path::new(DATA_DIR));
        Ok(directory.join(FILE_NAME))
    }
}

impl RegistryCommand {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self {
            Self::Check(data) => {
                let path = data.file()?;
                let checked = offline::check(&path);
                let path = path.display();
                let count =
                    checked.map_err(|error| failed(format_args!("check {path}"), &error))?;
                print(format_args!("ok: {count} registrations in {path}"))
            }
            Self::Backup { file, force, data } => {
                let path = data.file()?;
                let present = match force {
                    true => Present::Replace,
                    false => Present::Keep,
                };
                let copied = offline::backup(&path, &file, present);
                let (path, file) = (path.display(), file.display());
                let count = copied.map_err(|error| match error {
                    SqliteError::Io { source, .. } if source.kind() == ErrorKind::AlreadyExists => {
                        Failure::usage(format_args!(
                            "{file} exists already: name another file, or replace it with --force"
                        ))
                    }
                    error => failed(format_args!("back up {path}"), &error),
                })?;
                print(format_args!("{count} registrations copied to {file}"))
            }
            Self::Restore { file, data } => {
                let path = data.file()?;
                let restored = offline::restore(&path, &file);
                let (path, file) = (path.display(), file.display());
                let restored = restored
                    .map_err(|error| failed(format_args!("restore {path} from {file}"), &error))?;
                if let Some((moved_to, why)) = &restored.moved {
                    print(moved_text(moved_to, why))?;
                }
                let count = restored.registrations;
                print(format_args!("{count} registrations restored to {path}"))
            }
        }
    }
}

/// Says why a restore moved the previous registry aside, and what can be done with that file.
fn moved_text(moved_to: &Path, why: &SqliteError) -> String {
    let path = moved_to.display();
    match why {
        SqliteError::Outdated { found, expected } => format!(
            "the previous registry has schema version {found} instead of {expected}; it was moved to {path}, which `unified-proxy registry restore` accepts as a backup"
        ),
        SqliteError::Schema { found, expected } => format!(
            "the previous registry has schema version {found}, this version of unified-proxy reads at most {expected}; it was moved to {path}, which a newer version can restore"
        ),
        SqliteError::Foreign | SqliteError::Unversioned => {
            format!("the previous file is not a registry; it was moved to {path}")
        }
        _ => format!("the damaged file was moved to {path}"),
    }
}

fn failed(what: impl Display, error: &SqliteError) -> Failure {
    Failure::internal(format_args!("cannot {what}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_unreadable_registry_that_was_moved_aside_is_called_damaged() {
        let (found, expected) = (2, 3);
        let text = |why| moved_text(Path::new("/aside"), &why);
        let damaged = text(SqliteError::Damaged("page 3".to_owned()));
        assert!(damaged.contains("damaged") && damaged.contains("/aside"));
        for why in [SqliteError::Foreign, SqliteError::Unversioned] {
            let text = text(why);
            assert!(text.contains("not a registry") && text.contains("/aside"));
        }
        for (why, advice) in [
            (
                SqliteError::Outdated { found, expected },
                "accepts as a backup",
            ),
            (SqliteError::Schema { found, expected }, "a newer version"),
        ] {
            let text = text(why);
            assert!(!text.contains("damaged"), "{text}");
            for part in ["schema version 2", "3", "/aside", advice] {
                assert!(text.contains(part), "{text}");
            }
        }
    }

    #[test]
    fn the_error_of_a_restore_names_the_registry_and_the_backup() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("backup.db");
        std::fs::write(&file, "not a database").unwrap();
        let data = DataDir {
            data_dir: Some(directory.path().to_owned()),
            config: None,
        };
        let restore = RegistryCommand::Restore { file, data };
        let failure = format!("{:?}", restore.run().unwrap_err());
        for name in [FILE_NAME, "backup.db"] {
            assert!(failure.contains(name), "{failure}");
        }
    }
}
