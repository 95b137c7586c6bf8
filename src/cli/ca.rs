//! `ca`: the interception CA on disk.

use clap::Subcommand;
use time::OffsetDateTime;

use super::exit::{Failure, code, print};
use super::{ConfigDir, load};
use crate::tls::{CaError, CaFiles, rfc3339};

/// Subcommands of `ca`.
#[derive(Debug, Subcommand)]
pub enum CaCommand {
    /// Print the path of the CA's certificate
    Path(ConfigDir),
    /// Show the CA's certificate
    Show(ConfigDir),
    /// Replace the CA with a new one
    Rotate(ConfigDir),
}

impl CaCommand {
    /// Runs the command on the files of the server on this machine.
    pub fn run(&self) -> Result<(), Failure> {
        let (Self::Path(dir) | Self::Show(dir) | Self::Rotate(dir)) = self;
        let proxy = load(dir)?.proxy;
        let files = CaFiles::new(&proxy.data_dir, &proxy.certs_dir);
        let failed = |error: CaError| Failure::new(code::CONFIG, error);
        match self {
            Self::Path(_) => print(files.public_path().display()),
            Self::Show(_) => print(files.describe().map_err(failed)?.trim_end()),
            Self::Rotate(_) => {
                let from = files.rotate(OffsetDateTime::now_utc()).map_err(failed)?;
                print(format_args!(
                    "the certificate of the new CA is in {}; the new CA signs from {} on",
                    files.public_path().display(),
                    rfc3339(from)
                ))
            }
        }
    }
}
